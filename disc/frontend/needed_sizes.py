"""Which dims of an example of size 0 or 1 a model needs as they are, and who needs them.

torch.where(mask, x, y)     # mask [3, 1], x [3, 4]: a mask of another width does not fit → "where at model.py:12 needs it"
if x.shape[0] == 1:         # the other branch is not the example's                       → "decided at model.py:14"
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from disc.frontend.decisions import Decision, Found
from disc.frontend.export_errors import NO_STATIC_ANSWER, error_line, quiet
from disc.frontend.kept_caches import caches_restored
from disc.frontend.library_forms import library_forms
from disc.frontend.model_functions import named_in
from disc.frontend.symbolic_forms import SymbolicForms
from disc.frontend.widening import Key, Need, Widening

QUERIES = frozenset({"__get__", "size", "dim", "numel", "stride", "__len__"})  # refuse nothing; code of Python that looks at a size does
TRIED_SIZES, MOST_RESIZED = range(2, 8), 3  # how many dims at a time
MOST_RUNS = 64  # without data, to find out who needs which size; each takes a part of the time of an export


# --- what does not run on the widened example ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """calls: of functions of PyTorch that were begun; error: what the model raised, None where it ran, or where data decide; shapes: of the
    tensors that the functions gave, in order; whole: whether it came to its end."""

    calls: int
    error: Exception | None
    need: Need
    shapes: Sequence[Sequence[int]]
    whole: bool


class _Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.last, self.weighted = 0, "a condition", False
        self.shapes: list[Sequence[int]] = []

    def __torch_function__(
        self, func: Callable[..., object], types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        name = getattr(func, "__name__", str(func))
        self.count += 1
        self.last = "a condition" if name in QUERIES else name
        self.weighted = any(isinstance(leaf, torch.nn.Parameter) for leaf in pytree.tree_leaves((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        if name not in QUERIES:
            self.shapes += [leaf.shape for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return result


class DrySession:
    """Runs of a model without data, so that nothing that it holds changes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    @cached_property
    def _named(self) -> Sequence[object]:
        return list(named_in(self.model))  # of models of a library there are thousands: not for a session without runs

    def run(self, bound: inspect.BoundArguments) -> Run:
        args, kwargs = pytree.tree_map(self._without_data, (bound.args, bound.kwargs))
        calls = _Calls()
        try:
            # PyTorch's fused attention does not look at all sizes.
            with (
                quiet(),
                _restored(self.model),
                caches_restored(self._named, is_dry=True),
                self.mode,
                library_forms(),
                sdpa_kernel([SDPBackend.MATH]),
                calls,
            ):
                self.model(*args, **kwargs)
        except Exception as error:
            refused = None if isinstance(error, NO_STATIC_ANSWER) else error
            return Run(
                calls.count, refused, Need(f"{calls.last} at {error_line(error)} needs it", calls.weighted), calls.shapes, whole=False
            )
        return Run(calls.count, None, Need(""), calls.shapes, whole=True)

    def _without_data(self, leaf: object) -> object:
        return self.mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


@contextmanager
def _restored(model: torch.nn.Module) -> Iterator[None]:
    """Puts back what the modules held, tensors without data among what they keep from a run otherwise."""
    held = [(module.__dict__, dict(module.__dict__), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for attributes, before, buffers in held:
            attributes.clear()
            attributes.update(before)
            before["_buffers"].clear()
            before["_buffers"].update(buffers)


def refused_sizes(model: torch.nn.Module, widening: Widening) -> dict[Key, Need]:
    """The dims without whose size in the example the model does not run; {} where the model runs on the widened example, or not even on
    the example itself."""
    session, left = DrySession(model), MOST_RUNS

    def attempt(kept: Collection[Key]) -> Run | None:
        nonlocal left
        left -= 1
        return session.run(widening.arguments(kept)) if left >= 0 else None

    failure, every = attempt(()), list(widening.sizes)
    whole = attempt(every)
    if failure is None or failure.error is None or whole is None or whole.error is not None:
        return {}
    kept: dict[Key, Need] = {}
    while failure is not None and failure.error is not None:
        found = _furthest(attempt, kept, every, failure)
        if found is None:
            kept |= {key: failure.need for key in every if key not in kept}
            break
        key, after = found
        kept[key] = failure.need
        failure = after
    return _fewest(attempt, kept)


def _furthest(
    attempt: Callable[[Collection[Key]], Run | None], kept: Mapping[Key, Need], every: Sequence[Key], failure: Run
) -> tuple[Key, Run] | None:
    """The dim that, kept as well, lets the model run furthest; None where none helps alone."""
    best: tuple[Key, Run] | None = None
    for key in every:
        run = attempt({*kept, key}) if key not in kept else None
        if run is not None and (run.error is None or run.calls > (best[1] if best else failure).calls):
            best = key, run
            if run.error is None:
                break
    return best


def _fewest(attempt: Callable[[Collection[Key]], Run | None], kept: dict[Key, Need]) -> dict[Key, Need]:
    """Without those that are not needed: the same dim of all tensors at once, such as the batch, then each."""
    groups = [[key for key in kept if key[1] == dim] for dim in sorted({dim for _, dim in kept})]
    for group in [*groups, *([key] for key in kept)]:
        rest = {key: need for key, need in kept.items() if key not in group}
        run = attempt(rest) if rest and len(rest) < len(kept) else None
        if run is not None and run.error is None:
            kept = rest
    return kept


# --- what was decided otherwise for the widened example -------------------------------------------------------------------------


@dataclass(frozen=True)
class Contradictions:
    """What in a program does not hold for the example it was made of.

    fixed: dims for which the trace took the size that they were widened to; needs: dims that a condition is about; sizes: those under
    which the conditions are decided as for the example, {} where there are none.
    """

    fixed: dict[Key, Need]
    needs: dict[Key, Need]
    sizes: dict[Key, int]


def contradictions(
    program: ExportedProgram, widening: Widening, needed: Iterable[Found], decided: Iterable[Found], forms: SymbolicForms
) -> Contradictions:
    """needed: conditions of ops; decided: those of branches, which concern no dim that was asked for."""
    fixed: dict[Key, Need] = {}
    sizes: dict[str, int] = {}
    keys: dict[str, list[Key]] = {}
    for _, tensor, value in inputs_of(program, widening.bound):
        for dim, size in enumerate(value.shape):
            key = (id(tensor), dim)
            if isinstance(size, torch.SymInt):
                sizes[str(size.node._expr)] = tensor.shape[dim]
            if key not in widening.sizes:
                continue
            if isinstance(size, torch.SymInt):
                keys.setdefault(str(size.node._expr), []).append(key)
            if not isinstance(size, torch.SymInt) or size.node.expr.is_Integer:
                fixed[key] = Need(f"fixed by {who}" if (who := forms.who_fixed(size)) else "a weight needs it", who is None)
    failing = [each for each in needed if isinstance(each, Decision) and fails(each, sizes)]
    for each in decided:
        if isinstance(each, Decision) and not each.layout and fails(each, sizes):
            concerned = [key for name in each.condition.symbols() for key in keys.get(name, ())]
            failing += [] if any(map(widening.was_given, concerned)) else [each]
    equal = [each for each in failing if each.condition.sole is not None and each.condition.sole.sign == "=="]
    needs: dict[Key, Need] = {}
    for each in equal or failing:
        concerned = [key for name in each.condition.symbols() for key in keys.get(name, ())]
        needs |= {key: Need(each.why) for key in concerned if key not in needs}
    others = _other_sizes(failing, sizes, keys, widening) if needs and not equal else {}
    return Contradictions({key: need for key, need in fixed.items() if key not in needs}, needs, others)


def _other_sizes(
    failing: Sequence[Decision], example: Mapping[str, int], keys: Mapping[str, Sequence[Key]], widening: Widening
) -> dict[Key, int]:
    """Small sizes for which the conditions are decided as for the example: a mask as long as what it masks."""
    names = sorted({name for each in failing for name in each.condition.symbols() if name in keys})
    concerned = [key for name in names for key in keys[name]]
    if len(names) > MOST_RESIZED or any(map(widening.was_given, concerned)):
        return {}
    now = {**example, **{name: widening.sizes[own[0]] for name, own in keys.items()}}
    for chosen in sorted(itertools.product(TRIED_SIZES, repeat=len(names)), key=lambda sizes: (sum(sizes), sizes)):
        values = {**now, **dict(zip(names, chosen, strict=True))}
        if all(fails(each, values) for each in failing):
            return {key: size for name, size in zip(names, chosen, strict=True) for key in keys[name]}
    return {}


def fails(decision: Decision, sizes: Mapping[str, int]) -> bool:
    """Whether it does not hold for these sizes; False where they do not say."""
    try:
        return not decision.condition.evaluate(sizes)
    except (KeyError, ZeroDivisionError):
        return False


def inputs_of(program: ExportedProgram, bound: inspect.BoundArguments) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each tensor of the example, its name in the program, and what it is there; none where the program has them in another order."""
    placeholders = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    leaves = pytree.tree_leaves((bound.args, bound.kwargs))
    if len(names) != len(leaves):
        return []
    found: list[tuple[str, torch.Tensor, torch.Tensor]] = []
    for leaf, name in zip(leaves, names, strict=True):
        value = placeholders.get(name)
        if isinstance(leaf, torch.Tensor) and isinstance(value, torch.Tensor):
            found.append((name, leaf, value))
    return found if all(leaf.dim() == value.dim() and leaf.dtype == value.dtype for _, leaf, value in found) else []
