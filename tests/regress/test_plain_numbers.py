"""Programs that ask a size what only a plain number has: they are right, or their dim is fixed with the line, and never the trace's symbol."""

from __future__ import annotations

import copy
import dataclasses
import fractions
import functools
import json
import math
import numbers
import operator
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from compiled import Wrapped
from torch import Tensor

import disc
from disc.errors import DiscWarning, ExportError, ShapeConstraintError, UnsupportedOpError
from disc.frontend.exported import export_module

UNCACHED = disc.Options(cache=False)
TABLES: dict[object, Tensor] = {}
ORDERED: OrderedDict[object, object] = OrderedDict(first=0.5, second=2)
LISTED: list[object] = [0.5]
QUEUE: deque[object] = deque([0.5])
TRUE = True


@functools.lru_cache
def table(n: int) -> Tensor:
    return torch.arange(n) * 0.5


def of_tables(x: Tensor) -> Tensor:
    key = f"{x.shape[0]}"
    for each in (key, x.shape[0]):
        if each not in TABLES:
            TABLES[each] = torch.arange(x.shape[0]) * 1.0
    return x + (table(x.shape[0]) + TABLES[key] + TABLES[x.shape[0]])[:, None]


def caught(x: Tensor) -> Tensor:
    def check() -> None:
        raise ValueError(f"{x.shape[0]} rows")

    try:
        check()
    except ValueError as error:
        return x * int(str(error).split()[0])
    return x


FIXING: list[Callable[[Any], Any]] = [
    lambda x: x * len(str(x.shape[0])),
    lambda x: x * int(f"{x.shape[0]}"),
    lambda x: x * len(f"{x.shape[0]:03d}{x.shape[0] / 2}{x.shape[0] > 1}"),
    lambda x: x * {"4x6": 2.0}.get(f"{x.shape[0]}x{x.shape[1]}", 4.0),
    lambda x: x * {"4_6": 2.0}.get("_".join(map(str, x.shape)), 4.0),
    lambda x: x * len(repr(x.shape)),
    lambda x: x * {4: 1.0, 7: 2.0}.get(x.shape[0], 9.0),
    lambda x: x + 1 if tuple(x.shape) in {(4, 6), (7, 6)} else x,
    lambda x: x * (hash(x.shape[0]) % 5),
    lambda x: x * (pow(x.shape[0], 2, 7) + (x.shape[0] ^ 3) + (x.shape[0] | 3) + 2 ** x.shape[0] + (1 << x.shape[0])),
    lambda x: x * round(x.shape[0], -1) + x.shape[0].bit_count() + sum(x.shape[0].to_bytes(2, "little")),
    lambda x: x * np.hypot(x.shape[0] * 0.5, 3),
    lambda x: x * np.cbrt((x.shape[0] + 1) / 3) + torch.from_numpy(np.linspace(0, x.shape[0] / 4, 6)),
    lambda x: x * (np.float32(0.1) * x.shape[0]) + np.round(x.shape[0] / 3, 2) + np.sqrt(x.shape[0]).astype(np.float32),
    lambda x: x * float(np.uint8(3) - x.shape[0]) + len(repr(np.sqrt(x.shape[0]))) + np.sqrt(x.shape[0]).itemsize,
    lambda x: x + 1 if x.shape[0] == 4.0 else x,
    lambda x: x * float(fractions.Fraction(x.shape[0], 3)) + len(json.dumps({"rows": x.shape[0]})),
    lambda x: x[torch.from_numpy(np.arange(x.shape[0])[::-1].copy())] if np.isscalar(x.shape[0]) else x,
    of_tables,
    caught,
]


def test_what_only_a_plain_number_has_fixes_the_dim() -> None:
    for function in FIXING:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            export_module(Wrapped(function), (torch.randn(4, 6),))
        texts = [str(each.message) for each in found if issubclass(each.category, DiscWarning)]
        place = f"test_plain_numbers.py:{function.__code__.co_firstlineno}"
        assert any(text.startswith("dim 0 of input 'inputs_0' is fixed to 4 by ") for text in texts), place
        assert function in (of_tables, caught) or all(place in text for text in texts), texts

    with pytest.warns(
        DiscWarning, match=r"fixed to 4 by arithmetic of NumPy in fewer than 64 bits at test_plain_numbers.py:\d+ \(np.int64"
    ):
        export_module(Wrapped(lambda x: x * (np.int32(5) * x.shape[0])), (torch.randn(4, 6),))

    def all_of_them(x: Tensor) -> tuple[object, ...]:
        return tuple(function(x) for function in FIXING)

    with pytest.warns(DiscWarning, match="dim 0 of input 'inputs_0' is fixed to 4"):
        executable = disc.compile(Wrapped(all_of_them), (torch.randn(4, 6),), options=UNCACHED)
    assert not TABLES and not table.cache_info().currsize, "nothing of a trace stays in a cache"
    x = torch.randn(4, 6)
    for ours, theirs in zip(executable(x), all_of_them(x), strict=True):  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(ShapeConstraintError, match=r"dim 0 must be 4, got 7 \(fixed by code at test_plain_numbers.py"):
        executable(torch.randn(7, 6))


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept, self.most = torch.zeros(0), 0

    def forward(self, n: int) -> Tensor:
        if n > self.most:
            self.kept, self.most = torch.arange(n) * 1.0, n
        return self.kept[:n]


class Table:
    last: Tensor | None = None


@dataclasses.dataclass(slots=True)
class Sizes:
    rows: object = None
    all_rows: ClassVar[object] = None


POSITIONS, HOLDER, GLOBAL = Positions(), Table(), torch.zeros(0)
SIZES, NAMED = Sizes(), SimpleNamespace(rows=None)


@functools.lru_cache(maxsize=8)
def words(name: str) -> list[str]:
    return [name]


@functools.lru_cache(maxsize=8)
def held(name: str) -> Table:
    found = Table()
    found.last = torch.arange(3) * 1.0
    return found


def of_containers(x: Tensor) -> Tensor:
    new = torch.arange(x.shape[0]) * 1.0
    for kept in (LISTED, QUEUE):
        kept.append(new)
    ORDERED["first"] = ORDERED["third"] = new
    appended = threading.Thread(target=lambda: (LISTED.append("other"), QUEUE.append("other"), ORDERED.update(other=3)))
    appended.start()
    appended.join()
    last = held("last").last
    assert last is not None
    return x * len(words("traced")) + last.sum() + new[:, None]


def of_kept(x: Tensor) -> Tensor:
    global GLOBAL
    if GLOBAL.shape[0] < x.shape[0]:
        GLOBAL = torch.arange(x.shape[0]) * 1.0
    HOLDER.last = torch.arange(x.shape[0]) * 1.0
    return x + (GLOBAL[: x.shape[0]] + HOLDER.last + POSITIONS(x.shape[0]))[:, None]


def of_sizes(fails: bool) -> Callable[[Tensor], Tensor]:
    last = None

    def function(x: Tensor, memory: dict[str, object] = {}) -> Tensor:  # noqa: B006
        nonlocal last
        last = NAMED.rows = SIZES.rows = Sizes.all_rows = of_sizes.rows = memory["rows"] = x.shape[0]  # pyright: ignore
        return x * last if not fails else x.reshape(5, 5, 5)

    return function


def test_sizes_are_kept_nowhere() -> None:
    for fails in (True, False):
        function = of_sizes(fails)
        names = r"SimpleNamespace.rows, Sizes.all_rows, Sizes.rows, \['rows'\] of a dict, last, of_sizes.rows"
        with pytest.raises(ExportError) if fails else pytest.warns(DiscWarning, match=f"forward sets {names}: a compiled program does not"):
            export_module(Wrapped(function), (torch.randn(4, 6),))
        kept = function.__closure__ or ()
        assert [NAMED.rows, SIZES.rows, Sizes.all_rows, *(each.cell_contents for each in kept)] == [None, None, None, fails, None]
        assert not vars(of_sizes) and function.__defaults__ == ({},)


def test_what_is_kept_outside_of_the_model_is_restored() -> None:
    executable = disc.compile(Wrapped(of_kept), (torch.randn(4, 6),), options=UNCACHED)
    assert HOLDER.last is None and not GLOBAL.numel() and POSITIONS.most == 0
    for rows in (7, 4, 2):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(executable(x), of_kept(x))


def test_what_means_something_behind_a_trace_stays_in_caches() -> None:
    mine = words("mine")
    held("mine")
    export_module(Wrapped(of_containers), (torch.randn(4, 6),))
    assert words("mine") is mine and words.cache_info().currsize == 2 and held.cache_info().currsize == 0
    assert LISTED[0] == QUEUE[0] == 0.5 and {*LISTED[1:], *QUEUE} <= {0.5, "other"} and LISTED[-1] == QUEUE[-1] == "other"
    assert list(ORDERED.items()) == [("first", 0.5), ("second", 2), ("other", 3)]


def said(x: Tensor) -> Tensor:
    print(f"rows: {x.shape[0]}", x.shape)
    message = f"{x.shape} has no rows"
    if x.dim() != 2:
        raise ValueError(message)
    assert x.dim() == 2, f"{x.shape}"
    return x + x.shape[0]


def test_texts_in_code_that_is_loaded_anew(tmp_path: Path) -> None:
    file = tmp_path / "loaded.py"
    for use, is_fixed in (("print      ", False), ("x = x * len", True)):
        file.write_text(f"def function(x):\n    {use}(f'{{x.shape[0]}}')\n    return x\n")
        known: dict[str, Any] = {"__name__": "loaded"}
        exec(compile(file.read_text(), str(file), "exec"), known)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            export_module(Wrapped(known["function"]), (torch.randn(4, 6),))
        assert any("fixed to 4 by code at" in str(each.message) for each in found) == is_fixed


def parts_and_bits(x: Tensor) -> tuple[object, ...]:
    n = x.shape[0]
    return x * n.real + n.imag, x * n.numerator + n.denominator, x * (n & 7) + ~n, x * divmod(100, n + 1)[1], x * (n / 2).real


@functools.singledispatch
def doubled(n: object) -> float:
    return 0.0


@doubled.register
def _(n: int) -> float:
    return int(n) * 2 + float(n)


def classes(x: Tensor) -> Tensor:
    n = x.shape[0]
    x = x * sum(map(int, x.shape)) if n.__class__ is int and [*map(type, x.shape)] == [int, int] else x
    big, copied = n >= 0, copy.deepcopy({"n": n})
    return x * doubled(n) + (copied["n"] if isinstance(big, bool) and not isinstance(n, bool) else 0)


def patterns(x: Tensor) -> Tensor:
    match x.shape[0]:
        case int(n):
            x = x * n
    match x.shape[0] / 2:
        case int():
            x = x - 1
        case float(half):
            x = x + half
    return x + 1 if isinstance(x.shape[1], numbers.Integral) and type(x.shape[1]) is int else x


def of_numpy(x: Tensor) -> tuple[object, ...]:
    n, whole = x.shape[0], torch.arange(3)
    floats = [np.floor(n / 2), np.ceil(n * 0.3), np.rint(n / 3), np.trunc(n / 3), np.rint(n), np.round(n / 3), np.power(n, 0.5), np.sqrt(n)]
    wholes = [np.floor(n), np.square(n), np.maximum(n, 3), np.clip(n, 2, 8), np.mod(n, 3), np.power(n, 2), np.int64(2) * n]
    kinds = [isinstance(each, np.floating) for each in (np.sqrt(n) * 2, float(np.sqrt(n)), np.floor(n))], isinstance(wholes[2], int)
    return (
        *(whole * each for each in (*floats, *wholes)), whole * kinds[0].index(False) + kinds[1],
        whole + np.log(n) + np.log2(n) + np.log10(n), whole * np.tanh(n) + np.arctan(n) + np.float64(0.5) * n,
        whole * (np.float32(0.1) * np.sqrt(n)) + np.sqrt(n).round() + (np.uint8(3) - np.square(n)),
        whole * np.sqrt(n).item() + np.ceil(n / 2).astype(int), x[: np.ceil(n / 2).astype(int)], x[: int(np.ceil(n * 0.7))],
        x[-np.int64(3) :], x[: np.int64(5)],
    )  # fmt: skip


@pytest.mark.parametrize("function", [said, parts_and_bits, patterns, classes, of_numpy])
def test_sizes_stay_dynamic(function: Callable[[Tensor], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executable = disc.compile(Wrapped(function), (torch.randn(4, 6),), options=UNCACHED)
    with np.errstate(divide="ignore"):
        for rows in (4, 1, 7, 12, 0):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(executable(x), function(x), equal_nan=True)


def identity(x: Tensor) -> Tensor:
    return x * 2 if (x.shape[0] > 5) is True else x * 3 if (x.shape[0] % 2 == 0) is False else x


def equality(x: Tensor) -> Tensor:
    x = x * {True: 2.0, False: 3.0}[x.shape[0] > 5] + float(x.shape[0] > 1)
    match x.shape[0] % 2 == 0:
        case True:
            return x + 1
    return x + 1 if (x.shape[0] > 5) == True else x - 1  # noqa: E712


def is_big(n: int) -> bool:
    big = n > 5
    return big


def of_flag(x: Tensor, flag: bool) -> Tensor:
    return x * 5 if flag is True else x


def identity_of_names(x: Tensor) -> Tensor:
    n, strict = x.shape[0], x.dim() if x.dim() > 4 else None
    x = x * 2 if (n > 5) is TRUE else x * 3 if operator.is_(n % 2 == 0, False) else x
    picked = n > 1
    x = torch.cond(n > 9, torch.sin, torch.cos, (x,)) + torch.cond(picked, torch.exp, torch.abs, (x,))
    return of_flag(x, n > 5) * (2 if is_big(n) is not True else 3) + (strict is True)


def numbers_of_truths(x: Tensor) -> Tensor:
    big, even = x.shape[0] > 5, x.shape[0] % 2 == 0
    x = x * [5, 6][big] * (x * even + -big + (big + even) + (even & 1) + (even > 0)) + torch.full((6,), even)
    x = x * 5 if (np.square(x.shape[0]) > 2) is TRUE else x * 2 if big == 1 or np.int8(5) < x.shape[0] else x
    return x * np.where(big, 2.0, 3.0).item() if np.logical_or(even, big) else x * 3 if ~even else x


@pytest.mark.parametrize("function", [identity, equality, identity_of_names, numbers_of_truths])
def test_truths_are_what_they_are(function: Callable[[Tensor], Tensor]) -> None:
    executable = disc.compile(Wrapped(function), (torch.randn(4, 6),), options=UNCACHED)
    for rows, served in ((4, True), (2, True), (8, False), (3, False)):
        x = torch.randn(rows, 6)
        if served:
            torch.testing.assert_close(executable(x), function(x))
        else:
            with pytest.raises(ShapeConstraintError, match=r"decided at test_plain_numbers.py:\d+"):
                executable(x)


def test_conditions_of_branches_stay_dynamic_where_identity_is_asked() -> None:
    def function(x: Tensor, strict: object = None) -> Tensor:
        asked = strict is True
        n, m = x.shape[0], (x > 0).sum().item()
        x = torch.cond(n > 5, torch.sin, torch.cos, (x,)) + asked
        return torch.cond(m > 2, torch.exp, torch.abs, (x,))

    executable = disc.compile(Wrapped(function), (torch.randn(4, 6),), options=UNCACHED)
    for rows in (4, 9, 0):
        for x in (torch.ones(rows, 6), -torch.ones(rows, 6)):
            torch.testing.assert_close(executable(x), function(x))
    with pytest.raises(UnsupportedOpError, match=r"test_plain_numbers.py:\d+"):
        disc.compile(Wrapped(lambda x: x * 2 if ((x > 0).sum().item() > 2) is True else x), (torch.randn(4, 6),), options=UNCACHED)


def test_truths_within_branches() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.cond(y.sum() > 0, lambda x: x * float(x.shape[0] > 5), lambda x: x * math.pi, (x,))

    executable = disc.compile(Wrapped(function), (torch.randn(4, 6), torch.ones(2)), options=UNCACHED)
    for rows in (4, 9):
        for y in (torch.ones(2), -torch.ones(2)):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(executable(x, y), function(x, y))
