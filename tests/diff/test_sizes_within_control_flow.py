"""Numbers that Python makes of sizes within `torch.cond`, `while_loop` and `scan`: of each size they are eager's, or the call is refused.

PyTorch's trace takes sizes to be at least 2, so what it knows without asking is wrong for 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops import scan, while_loop

import disc
from disc.errors import DiscError, ShapeConstraintError

Number = Callable[[Tensor], int]
Program = Callable[[Tensor, Tensor], Tensor]

SLICES: dict[str, Number] = {
    "[:1]": lambda a: a[:1].shape[0],
    "[:2]": lambda a: a[:2].shape[0],
    "[:3]": lambda a: a[:3].shape[0],
    "[-1:]": lambda a: a[-1:].shape[0],
    "[-2:]": lambda a: a[-2:].shape[0],
    "[1:]": lambda a: a[1:].shape[0],
    "[2:]": lambda a: a[2:].shape[0],
    "[:-1]": lambda a: a[:-1].shape[0],
    "[1:2]": lambda a: a[1:2].shape[0],
    "[-2:-1]": lambda a: a[-2:-1].shape[0],
    "[1:-1]": lambda a: a[1:-1].shape[0],
    "[:2:2]": lambda a: a[:2:2].shape[0],
    "[..., :2]": lambda a: a.t()[..., :2].shape[1],
    "numel": lambda a: a[:2].numel(),
    "len": lambda a: len(a[:2]),
    "of a sum": lambda a: a.new_zeros(a.shape[0] + 1)[:2].shape[0],
    "aten": lambda a: torch.ops.aten.slice(a, 0, 0, 2).shape[0],
    "unbind": lambda a: len(a[:2].unbind(0)),
    "narrow": lambda a: a.narrow(0, 0, 2).shape[0],
    "narrow_copy": lambda a: torch.narrow_copy(a, 0, 1, 1).shape[0],
    "topk": lambda a: a.topk(2, 0)[0].shape[0],
    "unfold": lambda a: a.unfold(0, 2, 1).shape[-1],
    "chunk": lambda a: len(a.chunk(2, 0)),
    "split": lambda a: a.split(2, 0)[0].shape[0],
    "split of sizes": lambda a: a.split([2, a.shape[0] - 2], 0)[0].shape[0],
    "tensor_split": lambda a: a.tensor_split(2, 0)[1].shape[0],
    "tensor_split of places": lambda a: a.tensor_split([2], 0)[0].shape[0],
    "tensor_split from the end": lambda a: a.tensor_split([-2], 0)[1].shape[0],
    "vsplit": lambda a: a.vsplit([1, 2])[1].shape[0],
    "pad": lambda a: F.pad(a, (0, 0, -1, -1)).shape[0],
    "squeeze": lambda a: a[:, :2].squeeze(0).dim(),
}
TRUTHS: dict[str, Number] = {
    "if >": lambda a: 1 if a.shape[0] > 1 else 4,
    "if ==": lambda a: 1 if a.shape[0] == 1 else 4,
    "if size": lambda a: 1 if a.shape[0] else 4,
    "not": lambda a: int(not a.shape[0]),
    "int": lambda a: int(a.shape[0] > 1),
    "sum": lambda a: sum([a.shape[0] > 1, True]),
    "plus": lambda a: (a.shape[0] > 1) + 1,
    "chain": lambda a: int(0 < a.shape[0] < 2),
    "twice": lambda a: (1 if (more := a.shape[0] > 1) else 3) * (more + 1),
    "in": lambda a: int(a.shape[0] in (0, 1)),
    "any": lambda a: int(any(size < 2 for size in a.shape)),
    "numel": lambda a: 1 if a.numel() else 4,
    "product": lambda a: int(a.numel() > 3),
    "max": lambda a: max(a.shape[0], 1),
    "min": lambda a: min(a.shape[0], 1),
    "max of 2": lambda a: max(a.shape[0], 2),
    "key": lambda a: {True: 3, False: 4}[bool(a.shape[0] > 1)],
}


def _taken(number: Number) -> Program:
    return lambda a, b: torch.cond(b.sum() > 0, lambda a, b: b * number(a), lambda a, b: b.clone(), (a, b))


def _counted(step: Callable[[Tensor], Tensor]) -> Program:
    return lambda a, b: while_loop(lambda i, b: i < 2, lambda i, b: (i + 1, step(b)), (torch.zeros((), dtype=torch.int64), b))[1]


PLACES: dict[str, Callable[[Number], Program]] = {
    "no control flow": lambda number: lambda a, b: b * number(a),
    "data": _taken,
    "sizes": lambda number: lambda a, b: torch.cond(a.shape[0] >= 0, lambda a, b: b * number(a), lambda a, b: b.clone(), (a, b)),
    "loop": lambda number: lambda a, b: _counted(lambda c: c * number(a))(a, b),
    "scan": lambda number: lambda a, b: scan(lambda c, row: (c * number(a), row + 0), b, b)[0],  # pyright: ignore[reportArgumentType]
    "nested": lambda number: lambda a, b: torch.cond(b.sum() > 0, _taken(number), lambda a, b: b.clone(), (a, b)),
    "branch of a loop": lambda number: lambda a, b: _counted(lambda c: _taken(number)(a, c))(a, b),
}
CASES = [(place, name, {**TRUTHS, **SLICES}[name]) for place in ("no control flow", "data") for name in {**SLICES, **TRUTHS}]
CASES += [(place, name, {**TRUTHS, **SLICES}[name]) for place in PLACES for name in ("[:2]", "[-2:-1]", "topk", "if >", "in")]
LONG = [("loop", name, {**TRUTHS, **SLICES}[name]) for name in {**SLICES, **TRUTHS}]  # traced as within `torch.cond`


@pytest.mark.parametrize(
    ("place", "name", "number"),
    [
        pytest.param(*each, id=f"{each[0]}: {each[1]}", marks=() if each in CASES else pytest.mark.long)
        for each in dict.fromkeys([*CASES, *LONG])
    ],
)
def test_a_number_of_sizes_is_eagers_or_the_call_is_refused(place: str, name: str, number: Number) -> None:
    program = PLACES[place](number)
    executable = disc.compile(lambda a, b: program(a, b), (torch.rand(5, 3), torch.ones(4)), options=disc.Options(cache=False))
    served = 0
    for size in (0, 1, 2, 3, 4, 5, 8):
        a, b = torch.rand(size, 3), torch.full((4,), 3.0)
        try:
            wanted = program(a, b)
        except (RuntimeError, IndexError, AssertionError):
            with pytest.raises(DiscError):
                executable(a, b)
            continue
        try:
            torch.testing.assert_close(executable(a, b), wanted)
            served += size > 1
        except ShapeConstraintError as error:
            assert size != 5 and "input 'a'" in str(error), (size, str(error))
    assert served >= 1


@pytest.mark.parametrize("number", [SLICES["[:2]"], SLICES["topk"], TRUTHS["if >"], TRUTHS["numel"]], ids=["slice", "topk", "if", "numel"])
@pytest.mark.parametrize("place", PLACES)
def test_the_error_names_the_line(place: str, number: Number) -> None:
    line = number.__code__.co_firstlineno
    program = PLACES[place](number)
    executable = disc.compile(lambda a, b: program(a, b), (torch.rand(5, 3), torch.ones(4)), options=disc.Options(cache=False))
    with pytest.raises(ShapeConstraintError, match=rf"dim 0 of input 'a'.* must .*test_sizes_within_control_flow.py:{line}\)"):
        executable(torch.rand(0, 3), torch.ones(4))


def test_a_branch_on_sizes_demands_it_of_the_calls_that_take_it() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        return torch.cond(a.shape[0] > 1, lambda a, b: b * a[:2].shape[0], lambda a, b: b - a.shape[0], (a, b))

    executable = disc.compile(program, (torch.rand(5, 3), torch.ones(4)))
    for size in (0, 1, 2, 3):
        a, b = torch.rand(size, 3), torch.ones(4)
        torch.testing.assert_close(executable(a, b), program(a, b))


def test_code_without_a_file() -> None:
    """As typed at Python's prompt."""
    scope: dict[str, Callable[[Tensor], Tensor]] = {}
    exec(compile("def two(x):\n    return x.sum() + (1 if x.shape[0] == 1 else 2)", "<stdin>", "exec"), {"__name__": "__main__"}, scope)
    executable = disc.compile(scope["two"], (torch.rand(5),))
    torch.testing.assert_close(executable(torch.ones(3)), torch.tensor(5.0))
    with pytest.raises(ShapeConstraintError, match=r"dim 0 of input 'x' must not be 1 \(decided at <stdin>:2\)"):
        executable(torch.ones(1))
