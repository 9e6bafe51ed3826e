"""Calls of every core ATen op, of every prim and of every function of `torch.nn.functional`, by name and dtype.

Most are calls that PyTorch's own samples of its ops make; what those do not reach is written in `written_cases.py`.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import torch
import torch._prims
import torch._refs.fft
import torch._refs.linalg
import torch._refs.nn.functional
import torch._refs.special
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.op_programs import Program, samples_table, seed
from tests.operators.written_cases import WRITTEN

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
MOST_ELEMENTS = 4_000
KEPT_CALLS, SAMPLES = 24, 9  # per op and dtype: calls to choose from; samples of one table entry that are run
CALLS = 2  # per op, in its first dtype; one in each of the others
HELPERS = {"assert_int_or_pair", "boolean_dispatch", "handle_torch_function", "has_torch_function", "has_torch_function_unary",
           "has_torch_function_variadic"}  # fmt: skip
FAMILIES = ("core", "prims", "functional")


@dataclass(frozen=True)
class Cases:
    """calls: dtype → calls, the first dtype having most. samples: entries of PyTorch's table that make them; () for written ones."""

    calls: Mapping[torch.dtype, Sequence[Program]]
    samples: tuple[str, ...] = ()


# --- names ----------------------------------------------------------------------------------------------------------------------


@cache
def names(family: str) -> tuple[str, ...]:
    """All members of the family, in order."""
    if family == "functional":
        own = (name for name in dir(F) if not name.startswith("_") and name not in HELPERS)
        return tuple(name for name in own if callable(getattr(F, name)) and getattr(F, name).__module__ not in ("typing", "collections.abc")
                     and not isinstance(getattr(F, name), type))  # fmt: skip
    if family == "prims":  # others come with torch._inductor, once that is loaded
        return tuple(str(op) for op in _overloads("prims") if op._schema.name.removeprefix("prims::") in torch._prims.__all__)
    return tuple(str(op) for op in _overloads("aten") if torch.Tag.core in op.tags)


def overload(name: str) -> torch._ops.OpOverload:
    """The op called `aten.add.Tensor`, say."""
    space, packet, form = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet), form)


def _overloads(space: str) -> list[torch._ops.OpOverload]:
    found = []
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        whose, _, rest = qualified.partition("::")
        name, _, form = rest.partition(".")
        packet = getattr(getattr(torch.ops, space), name, None) if whose == space else None
        op = getattr(packet, form or "default", None) if packet is not None else None
        if isinstance(op, torch._ops.OpOverload):
            found.append(op)
    return found


# --- cases ----------------------------------------------------------------------------------------------------------------------


def all_cases(family: str) -> dict[str, Cases]:
    """Of every member; one without any call that eager takes has no dtypes."""
    found = _functional_calls() if family == "functional" else _harvest(family, samples_table())
    return {name: _written(family, name) or _chosen(name, found.get(name, {})) for name in names(family)}


def cases_of(family: str, name: str, samples: Sequence[str]) -> Cases:
    """The cases of one member, which these entries of PyTorch's table make."""
    written = _written(family, name)
    if written is not None:
        return written
    if family == "functional":
        return _chosen(name, _functional_calls([name]).get(name, {}))
    return _chosen(name, _harvest(family, [op for op in samples_table() if op.full_name in samples]).get(name, {}))


Found = dict[torch.dtype, list[tuple[str, Program]]]  # dtype → entry of the table, call


def _written(family: str, name: str) -> Cases | None:
    make = WRITTEN.get(name if family != "functional" else f"F.{name}")
    if make is None:
        return None
    function = overload(name) if family != "functional" else getattr(F, name)
    calls: dict[torch.dtype, Sequence[Program]] = {}
    for dtype in DTYPES:
        seed(0)
        made = [_with_function(each, function) for each in make(dtype)]
        programs = [Program(0, name, "written", call, args, dict(kwargs)) for call, args, kwargs in made]
        right = [each for each in programs if _runs(each)]
        if right:
            calls[dtype] = right
    return Cases(calls)


def _with_function(
    case: tuple[Any, ...], function: Callable[..., object]
) -> tuple[Callable[..., object], tuple[object, ...], dict[str, object]]:
    """(args..., {kwargs}) of `function`, or a function of its own first."""
    if isinstance(case[0], types.FunctionType):
        function, case = case[0], case[1:]
    kwargs = case[-1] if isinstance(case[-1], dict) else {}
    return function, case[:-1] if kwargs else case, kwargs


def _runs(program: Program) -> bool:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            program.module()(*program.tensors())
        except Exception:
            return False
    return True


def _chosen(name: str, found: Found) -> Cases:
    """Of the calls that were found, some that differ, those of the op's own samples first."""
    own = name.split(".")[-2] if "." in name else name
    calls: dict[torch.dtype, Sequence[Program]] = {}
    samples: list[str] = []
    for dtype in DTYPES:
        order = sorted(found.get(dtype, ()), key=lambda pair: (own.strip("_") not in pair[0], *_plainness(pair[1])))
        kinds: dict[object, tuple[str, Program]] = {}
        for pair in order:
            kinds.setdefault(_kind(pair[1]), pair)
        taken = list(kinds.values())[: CALLS if not calls else 1]
        if taken:
            calls[dtype] = [program for _, program in taken]
            samples += [entry for entry, _ in taken if entry not in samples]
    return Cases(calls, tuple(samples))


def _plainness(program: Program) -> tuple[bool, bool]:
    """False comes first: no tensor without elements; some dim that can have another size."""
    shapes = [x.shape for x in program.tensors()]
    return any(0 in shape for shape in shapes), not any(size > 1 for shape in shapes for size in shape)


def _kind(program: Program) -> object:
    return tuple(leaf.dim() if isinstance(leaf, torch.Tensor) else repr(leaf)[:40] for leaf in program.leaves()[0])


# --- samples of PyTorch's tests -------------------------------------------------------------------------------------------------


@dataclass
class _Recorder(TorchDispatchMode):
    """Keeps the calls of one space of ops that have a tensor of `dtype`, or none."""

    space: str
    entry: str
    dtype: torch.dtype
    found: dict[str, Found] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        name = str(func)
        kept = self.found.setdefault(name, {}).setdefault(self.dtype, [])
        call = (args, kwargs or {})
        tensors = [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, torch.Tensor)]
        if (
            name.startswith(self.space)
            and len([1 for entry, _ in kept if entry == self.entry]) < SAMPLES
            and len(kept) < KEPT_CALLS * (1 + (func._schema.name.split("::")[1].strip("_") in self.entry))
            and sum(x.numel() for x in tensors) <= MOST_ELEMENTS
            and (not tensors or any(x.dtype == self.dtype for x in tensors))
        ):
            args_, kwargs_ = pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, call)
            result = func(*args, **(kwargs or {}))
            kept.append((self.entry, Program(0, name, "sample", func, args_, kwargs_, func._schema.is_mutable)))
            return result
        return func(*args, **(kwargs or {}))


def _harvest(family: str, entries: Iterable[Any]) -> dict[str, Found]:
    """The calls of ops that the samples make: of PyTorch's references for prims, of the ops themselves for ATen."""
    space = "aten." if family == "core" else "prims."
    found: dict[str, Found] = {}
    for op in entries:
        function = op.op if family == "core" else _reference(op.full_name)
        for dtype in DTYPES:
            if function is None or dtype not in op.dtypes:
                continue
            recorder = _Recorder(space, op.full_name, dtype, found)
            for sample in _samples(op, dtype):
                with recorder, warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("ignore")
                    try:
                        function(sample.input, *sample.args, **sample.kwargs)
                    except Exception:  # what eager refuses is no case
                        continue
    return found


def _reference(name: str) -> Callable[..., object] | None:
    found: Any = torch._refs
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else None


def _samples(op: Any, dtype: torch.dtype) -> list[Any]:
    """The first ones: more in the first dtype that the op has."""
    first = next(each for each in DTYPES if each in op.dtypes)
    seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return list(islice(op.sample_inputs("cpu", dtype), SAMPLES if dtype == first else SAMPLES // 3))
        except Exception:  # some need what this machine lacks
            return []


def _functional_calls(wanted: Sequence[str] | None = None) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for name in wanted or names("functional"):
        for op in samples_table():
            if op.name not in (f"nn.functional.{name}", name):
                continue
            for dtype in DTYPES:
                if dtype not in op.dtypes:
                    continue
                calls = (Program(0, name, "sample", op.op, (s.input, *s.args), dict(s.kwargs)) for s in _samples(op, dtype))
                small = (each for each in calls if sum(x.numel() for x in each.tensors()) <= MOST_ELEMENTS)
                found.setdefault(name, {}).setdefault(dtype, []).extend((op.full_name, each) for each in small if _runs(each))
    return found
