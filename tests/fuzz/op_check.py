"""Compiles one call, calls it with several sets of inputs, and says how each call ended."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

import disc
from disc.errors import CompilerBug, DiscError
from tests.fuzz.op_exclusions import is_known
from tests.fuzz.op_factors import unique_of
from tests.fuzz.op_programs import FLOATS, Calls, Program, seed

FINE = (
    "right",
    "refused",
    "refused in the call",
    "both refuse",
    "random",
    "computes more",
    "invalid example",
    "torch cannot",
    "eager fails",
    "known",
)
OPTIONS = disc.Options(cache=False, threads=1)
TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
# Eager has no kernel, or none for this dtype: a limit of eager's, which no compiled program has to share.
NO_KERNEL = (
    "not implemented for",
    "not yet implemented",
    "not supported",
    "is not implemented",
    "does not support",
    "unsupported",
    "expected scalar type",
    "INTERNAL ASSERT",
    "view size is not compatible",
    "to be true, but got false",
    "MKL FFT error",  # of inputs without elements
)
NEW_SIZES = (0, 1, 2, 3, 5, 8, 9, 16, 19)

Mark = Callable[[str], None]
Sets = Callable[["Program", int], list[list[torch.Tensor]]]  # program, calls → inputs of each call
Run = Callable[[Sequence[torch.Tensor]], object]
Call = Callable[..., object]


@dataclass(frozen=True)
class Outcome:
    """kind: one of FINE, or a failure. text: what happened, for a reader. where: for failures of one class, the same."""

    kind: str
    text: str = ""
    where: str = ""


def check(program: Program, through: str, mark: Mark, calls: int, sets: Sets | None = None) -> list[Outcome]:
    """One outcome per call; the first is that of the program's own inputs.

    through: "compile" (disc.compile) or "backend" (torch.compile). mark: is told what begins, so that a crash has a name. sets: the inputs,
    `input_sets` where nothing else is said.
    """
    sets = sets or input_sets
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        outcomes = (_check_compile if through == "compile" else _check_backend)(program, mark, calls, sets)
    return [
        Outcome("known", each.text, each.where) if each.kind not in FINE and is_known(str(program), each.kind, each.text) else each
        for each in outcomes
    ]


def _check_compile(program: Program, mark: Mark, calls: int, sets: Sets) -> list[Outcome]:
    module, inputs = program.module(), program.tensors()
    mark("eager")
    wanted = _eager(module, inputs)
    mark("compile")
    try:
        executable = disc.compile(module, tuple(inputs), options=OPTIONS)
    except Exception as error:
        return [_error(error, "both refuse" if isinstance(wanted, Exception) else "refused")]
    executable.like = torch.empty(0)
    outcomes = []
    for given in sets(program, calls):
        mark("eager")
        wanted = _eager(module, given)
        mark("call")
        outcome = _compared(module, given, wanted, lambda xs: executable(*xs))
        if outcome.kind == "answers" and not outcomes:
            return [Outcome("invalid example", outcome.text)]  # against what `disc.compile` asks for; the program is PyTorch's trace of it
        outcomes.append(outcome)
    return outcomes


def _check_backend(program: Program, mark: Mark, calls: int, sets: Sets) -> list[Outcome]:
    module, outcomes = program.module(), []
    torch._dynamo.reset()
    dynamic = random.Random(program.number).choice((None, True))
    compiled = torch.compile(module, backend="disc", dynamic=dynamic)
    for given in sets(program, min(calls, 3)):
        mark("eager")
        wanted = _eager(module, given)
        mark("torch.compile")
        outcome = _compared(module, given, wanted, lambda xs: compiled(*xs), _any_error_is_raw(wanted))
        if outcome.kind not in FINE and _fails_too(module, given, wanted, dynamic):
            outcome = Outcome("torch cannot", outcome.text)
        outcomes.append(outcome)
        if outcome.kind not in FINE:
            break
    return outcomes


def _any_error_is_raw(wanted: object) -> bool:
    return not isinstance(wanted, Exception)


def _fails_too(module: Calls, given: Sequence[torch.Tensor], wanted: object, dynamic: bool | None) -> bool:
    """Whether torch.compile is wrong without us: with the backend that runs the traced graph in eager."""
    torch._dynamo.reset()
    other = torch.compile(module, backend="aot_eager", dynamic=dynamic)
    return _compared(module, given, wanted, lambda xs: other(*xs), _any_error_is_raw(wanted)).kind not in FINE


# --- inputs ---------------------------------------------------------------------------------------------------------------------


def input_sets(program: Program, calls: int) -> list[list[torch.Tensor]]:
    """The program's own inputs; the same in other memory layouts; inputs of other sizes, each set of sizes once."""
    return _sets(program, calls, 2 * calls, lambda given: True)


def comparable_sets(program: Program, calls: int) -> list[list[torch.Tensor]]:
    """As `input_sets`, but of the sizes that are drawn those that eager takes, few of them without elements. Dims of 1 stay."""
    module, rng = program.module(), random.Random(program.number)

    ones = [[size == 1 for size in x.shape] for x in program.tensors()]  # dims that an op may need to be 1

    def takes(given: Sequence[torch.Tensor]) -> bool:
        if any(was and size != 1 for dims, x in zip(ones, given, strict=True) for was, size in zip(dims, x.shape, strict=True)):
            return False
        return (all(x.numel() for x in given) or rng.random() < 0.3) and not isinstance(_eager(module, given), Exception)

    return _sets(program, calls, 10 * calls, takes)


def _sets(program: Program, calls: int, draws: int, takes: Callable[[Sequence[torch.Tensor]], bool]) -> list[list[torch.Tensor]]:
    rng = random.Random(program.number)
    seed(program.number)
    own = program.tensors()
    if not own or any(x.layout != torch.strided or x.device.type != "cpu" for x in own):
        return [own]
    sets = [own, [_strided(x, rng) for x in own]]
    seen: set[tuple[torch.Size, ...]] = {tuple(x.shape for x in own)}
    for _ in range(draws):
        made = _resized(own, rng)
        shapes = tuple(x.shape for x in made)
        if len(sets) < calls and shapes not in seen and takes(made):
            sets.append(made)
        seen.add(shapes)
    return sets[:calls]


def _strided(x: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """The same values in memory that is not contiguous."""
    choice = rng.randrange(4)
    if choice == 0 and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if choice == 1 and x.dim():
        return torch.stack([x, x], -1)[..., 0]
    if choice == 2 and x.dim():
        return torch.cat([x[:1], x])[1:]
    return x.clone()


def _resized(own: Sequence[torch.Tensor], rng: random.Random) -> list[torch.Tensor]:
    """Equal sizes stay equal, some others change; the values are drawn from those that were there."""
    sizes = sorted({size for x in own for size in x.shape})
    new = {size: size if rng.random() < 0.35 else rng.choice(NEW_SIZES) for size in sizes}
    if sum(_elements(x, new) for x in own) > 200_000:
        new = {size: min(size, to) for size, to in new.items()}
    made = []
    for x in own:
        flat, count = x.reshape(-1), _elements(x, new)
        source = flat if flat.numel() else torch.ones(1, dtype=x.dtype)
        made.append(source[torch.randint(source.numel(), (count,))].reshape([new[size] for size in x.shape]))
    return made


def _elements(x: torch.Tensor, new: dict[int, int]) -> int:
    count = 1
    for size in x.shape:
        count *= new[size]
    return count


# --- calls ----------------------------------------------------------------------------------------------------------------------


def _eager(module: Call, inputs: Sequence[torch.Tensor]) -> object:
    """The result, or the exception."""
    seed(0)
    try:
        return module(*[_copy(x) for x in inputs])
    except Exception as error:
        return error


def _copy(x: torch.Tensor) -> torch.Tensor:
    """With the strides, where it has some; a write into an expanded tensor would fail in any case."""
    if x.layout != torch.strided or x.device.type == "meta":
        return x
    copy = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype)
    copy.copy_(x) if not _overlaps(x) else copy.as_strided((copy.untyped_storage().nbytes() // copy.element_size(),), (1,)).copy_(
        _memory(x)
    )
    return copy


def _overlaps(x: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def _memory(x: torch.Tensor) -> torch.Tensor:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return x.as_strided((extent,), (1,))


def _compared(module: Calls, given: Sequence[torch.Tensor], wanted: object, run: Run, strict: bool = False) -> Outcome:
    """strict: any exception is a failure."""
    inputs = [_copy(x) for x in given]
    shapes = ", ".join(f"{str(x.dtype)[6:]}{list(x.shape)}" for x in given)
    try:
        ours = run(inputs)
    except Exception as error:
        if strict:
            return Outcome("raw", f"called with {shapes}: {_text(error)}", _where(error))
        if isinstance(wanted, Exception):
            return (
                Outcome("both refuse")
                if isinstance(error, DiscError) or type(error) is type(wanted) or not _is_ours(error)
                else _error(error, "both refuse")
            )
        return _error(error, "refused in the call", f"called with {shapes}: ")
    if isinstance(wanted, Exception):
        text = str(wanted)
        if any(part in text for part in NO_KERNEL) or isinstance(wanted, NotImplementedError):
            return Outcome("computes more")
        return Outcome("answers", f"called with {shapes}: eager refuses ({type(wanted).__name__}: {text[:300]}), disc answers")
    difference = _difference(ours, wanted)
    call: Call = module
    if difference is not None and difference.startswith("values") and (unique := unique_of(module.op)):
        ours, wanted, call = unique(ours), unique(wanted), unique.after(module)
        difference = _difference(ours, wanted)
    if difference is None:
        return Outcome("right")
    if _is_random(call, given, wanted):
        return Outcome("random")
    if difference.startswith("values") and _as_close_as_eager(call, given, ours, wanted):
        return Outcome("right")
    return Outcome("wrong", f"called with {shapes}: {difference}", difference.split(":")[0])


def _difference(ours: object, wanted: object) -> str | None:
    found, expected = ([leaf for leaf in pytree.tree_leaves(each) if leaf is not None] for each in (ours, wanted))
    if len(found) != len(expected):  # constants of a program are no results of it
        expected = [leaf for leaf in expected if isinstance(leaf, torch.Tensor)]
    if len(found) != len(expected):
        return f"count: {len(found)} results for {len(expected)}"
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            if isinstance(theirs, int | float | bool) and _number(mine) != float(theirs) and theirs == theirs:
                return f"number: result {number} is {mine}, eager's {theirs}"
            continue
        if not isinstance(mine, torch.Tensor):
            return f"type: result {number} is {type(mine).__name__}"
        if mine.dtype != theirs.dtype:
            return f"dtype: result {number} is {mine.dtype}, eager's {theirs.dtype}"
        if mine.shape != theirs.shape:
            return f"shape: result {number} is {list(mine.shape)}, eager's {list(theirs.shape)}"
        if theirs.layout != torch.strided or theirs.device.type == "meta":
            continue
        if not _close(mine, theirs):
            return f"values: result {number}: {_sample(mine, theirs)}"
    return None


def _number(value: object) -> float:
    return float(value.item()) if isinstance(value, torch.Tensor) else float(value)  # pyright: ignore


def _close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    tolerance = TOLERANCES.get(theirs.dtype)
    if tolerance is None:
        return _close_complex(mine, theirs) if theirs.dtype.is_complex else torch.equal(mine, theirs)
    scale = 1.0 if theirs.dtype != torch.float64 else 1e-1
    return torch.allclose(mine.double(), theirs.double(), tolerance, tolerance * scale, equal_nan=True)


def _close_complex(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """A transform rounds each of its results as it does the largest."""
    size = theirs.abs().nan_to_num(0, 0, 0)
    return torch.allclose(mine, theirs, 1e-3, 1e-4 * max(1.0, float(size.mean())) if size.numel() else 1e-4, equal_nan=True)


def _sample(mine: torch.Tensor, theirs: torch.Tensor) -> str:
    a, b = mine.reshape(-1), theirs.reshape(-1)
    wrong = [place for place in range(b.numel()) if not _close(a[place], b[place])] or [0]  # all near, beside each alone
    return f"{len(wrong)} of {b.numel()} differ, at {wrong[0]} {a[wrong[0]].item()} for {b[wrong[0]].item()}"


def _is_random(module: Call, given: Sequence[torch.Tensor], wanted: object) -> bool:
    """Whether eager gives something else with another seed, or leaves memory as it finds it."""
    for number in (1, 2):
        seed(number)
        keep = [torch.full((200,), 7.0) for _ in range(50)]
        del keep
        try:
            again = module(*[_copy(x) for x in given])
        except Exception:
            return True
        if _difference(again, wanted) is not None:
            return True
    return False


def _as_close_as_eager(module: Call, given: Sequence[torch.Tensor], ours: object, wanted: object) -> bool:
    """Whether, measured by the result in f64, ours is about as near as eager's."""
    wide = [x.double() if x.dtype in FLOATS else x for x in given]
    exact = _eager(module, wide)
    if isinstance(exact, Exception):
        return False
    for mine, theirs, true in zip(*(pytree.tree_leaves(each) for each in (ours, wanted, exact)), strict=True):
        if not isinstance(theirs, torch.Tensor) or _close(mine, theirs):
            continue
        if theirs.dtype not in FLOATS or true.shape != theirs.shape:
            return False
        bits = torch.finfo(theirs.dtype).eps * 16
        error, allowed = (mine.double() - true).abs(), 4 * (theirs.double() - true).abs() + bits * true.abs().nan_to_num(0, 0, 0).amax()
        same = (mine.double() == theirs.double()) | (mine.isnan() & theirs.isnan())
        if not bool((same | (error <= allowed)).all()):
            return False
    return True


# --- errors ---------------------------------------------------------------------------------------------------------------------


def _error(error: Exception, refused: str, before: str = "") -> Outcome:
    if isinstance(error, CompilerBug):
        return Outcome("bug", before + _text(error), _where(error.__cause__ or error) + " " + str(error).splitlines()[0][:150])
    if isinstance(error, DiscError):
        return Outcome(refused, f"{type(error).__name__}: {error}")
    return Outcome("raw", before + _text(error), _where(error))


def _is_ours(error: BaseException) -> bool:
    """Whether it passed code of disc; PyTorch's tracing may refuse what eager refuses with an exception of another kind."""
    return any("/disc/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))


def _text(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return f"{type(error).__name__}: {str(error)[:400]}\n" + "".join(lines)[-1800:]


def _where(error: BaseException) -> str:
    """The exception and the last line of ours that it passed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/disc/" in f.filename or "/torch/" in f.filename]
    ours = [f for f in frames if "/disc/" in f.filename and "site-packages" not in f.filename]
    last = [*ours[-1:], *frames[-1:]]
    return f"{type(error).__name__} in " + " / ".join(f"{f.filename.rsplit('/', 1)[1]}:{f.name}" for f in last)
