"""Guards: the conditions on a call's sizes under which a version of a kernel may run.

    "divides(16, S1)"      "equal(S0, S2) and at_least(64, S1)"      "beyond_cache(S0 * S1 * 4)"      "aligned(16)"      ""

The text stands in the IR (`versions` of a fusion) and in the manifest; it is written by `str` and read by `parse`, here alone. The host
entry evaluates guards by `codegen/host/guards.py`, which `holds` is the reference for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from disc.shapes import Dim, ShapeEnv, Truth, parse_dim
from disc.targets.x86_thresholds import CPU

_CALL = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_JOIN = " and "


@dataclass(frozen=True)
class _Limit:
    """A positive number and a size that is compared with it."""

    spelling: ClassVar[str]
    number: int
    size: Dim

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"a guard compares sizes with positive numbers, not with {self.number}")

    def __str__(self) -> str:
        return f"{self.spelling}({self.number}, {self.size})"

    def fits(self, size: int) -> bool:
        """Whether the condition holds for a size of so many."""
        raise NotImplementedError

    def holds(self, sizes: Mapping[str, int], cache_bytes: int, aligned: bool = True) -> bool:
        del cache_bytes, aligned
        return self.fits(self.size.evaluate(sizes))


@dataclass(frozen=True)
class Divides(_Limit):
    """`size` is a multiple of `number`."""

    spelling = "divides"

    def fits(self, size: int) -> bool:
        return size % self.number == 0

    def implied_by(self, env: ShapeEnv) -> Truth:
        return env.divides(self.number, self.size)


@dataclass(frozen=True)
class AtMost(_Limit):
    """`size <= number`."""

    spelling = "at_most"

    def fits(self, size: int) -> bool:
        return size <= self.number

    def implied_by(self, env: ShapeEnv) -> Truth:
        return env.le(self.size, self.number)


@dataclass(frozen=True)
class AtLeast(_Limit):
    """`size >= number`."""

    spelling = "at_least"

    def fits(self, size: int) -> bool:
        return size >= self.number

    def implied_by(self, env: ShapeEnv) -> Truth:
        return env.le(self.number, self.size)


@dataclass(frozen=True)
class Equal:
    """`left == right`: a broadcast from one size to the other does not expand."""

    spelling: ClassVar[str] = "equal"
    left: Dim
    right: Dim

    def __str__(self) -> str:
        return f"{self.spelling}({self.left}, {self.right})"

    def holds(self, sizes: Mapping[str, int], cache_bytes: int, aligned: bool = True) -> bool:
        del cache_bytes, aligned
        return self.left.evaluate(sizes) == self.right.evaluate(sizes)

    def implied_by(self, env: ShapeEnv) -> Truth:
        return env.equal(self.left, self.right)


@dataclass(frozen=True)
class BeyondCache:
    """The results, of `bytes` together, are larger than the last-level cache, and each begins on a cache line."""

    spelling: ClassVar[str] = "beyond_cache"
    bytes: Dim

    def __str__(self) -> str:
        return f"{self.spelling}({self.bytes})"

    def holds(self, sizes: Mapping[str, int], cache_bytes: int, aligned: bool = True) -> bool:
        return aligned and self.bytes.evaluate(sizes) > cache_bytes

    def implied_by(self, env: ShapeEnv) -> Truth:
        """Never YES: where results begin is not known before the call."""
        _, most = env.range(self.bytes)
        return Truth.NO if most is not None and most <= CPU.smallest_cache else Truth.UNKNOWN


@dataclass(frozen=True)
class Aligned:
    """Every argument and result of the kernel that is no weight begins at a multiple of `bytes`, a power of two. Weights always do, up to
    the 64 bytes at which they lie in memory."""

    spelling: ClassVar[str] = "aligned"
    bytes: int

    def __post_init__(self) -> None:
        if self.bytes not in (2, 4, 8, 16, 32, 64):
            raise ValueError(f"a guard compares addresses with powers of two up to 64, not with {self.bytes}")

    def __str__(self) -> str:
        return f"{self.spelling}({self.bytes})"

    def holds(self, sizes: Mapping[str, int], cache_bytes: int, aligned: bool = True) -> bool:
        del sizes, cache_bytes
        return aligned

    def implied_by(self, env: ShapeEnv) -> Truth:
        """Addresses are not known before the call."""
        del env
        return Truth.UNKNOWN


Single = Divides | Equal | AtMost | AtLeast | BeyondCache | Aligned


@dataclass(frozen=True)
class All:
    """All of `parts` hold: none of them (the guard that always holds), or at least two. Made by `all_of`."""

    parts: tuple[Single, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parts) == 1:
            raise ValueError(f"a guard of one part is that part itself: {self.parts[0]}")

    def __str__(self) -> str:
        return _JOIN.join(map(str, self.parts))

    def holds(self, sizes: Mapping[str, int], cache_bytes: int, aligned: bool = True) -> bool:
        return all(each.holds(sizes, cache_bytes, aligned) for each in self.parts)

    def implied_by(self, env: ShapeEnv) -> Truth:
        found = [each.implied_by(env) for each in self.parts]
        if Truth.NO in found:
            return Truth.NO
        return Truth.UNKNOWN if Truth.UNKNOWN in found else Truth.YES


Guard = Single | All
"""Each has, besides its text:

holds(sizes, cache_bytes, aligned): whether it holds in a call with these values of the symbols, on a machine whose last-level cache has so
many bytes. aligned: whether all results of the kernel begin on a cache line, and its arguments as `Aligned` asks for. Raises KeyError and
ZeroDivisionError as `Dim.evaluate`.
implied_by(env): whether it holds in every call, in none, or in some.
"""

ALWAYS = All()
_Kind = TypeVar("_Kind", Divides, Equal, AtMost, AtLeast, BeyondCache, Aligned)
_LIMITS: dict[str, Callable[[int, Dim], Single]] = {each.spelling: each for each in (Divides, AtMost, AtLeast)}


def parts_of(guard: Guard) -> tuple[Single, ...]:
    """The conditions that hold together where `guard` does."""
    return guard.parts if isinstance(guard, All) else (guard,)


def parts_of_kind(guard: Guard, kind: type[_Kind]) -> tuple[_Kind, ...]:
    """Those of `parts_of` that are of this class."""
    return tuple(each for each in parts_of(guard) if isinstance(each, kind))


def all_of(guards: Iterable[Guard]) -> Guard:
    """The guard that holds where all of these do, their parts in this order, each once."""
    parts = tuple(dict.fromkeys(part for guard in guards for part in parts_of(guard)))
    return parts[0] if len(parts) == 1 else All(parts)


def asked_of(guards: Iterable[Guard], env: ShapeEnv) -> Guard | None:
    """The guard of those that do not hold in every call; None where one of them holds in none."""
    truths = [(guard, guard.implied_by(env)) for guard in guards]
    if any(truth is Truth.NO for _, truth in truths):
        return None
    return all_of(guard for guard, truth in truths if truth is not Truth.YES)


def parse(text: str, dim: Callable[[str], Dim] = parse_dim) -> Guard:
    """The guard whose text this is. dim: reads a size, `ShapeEnv.parse` where symbols must have been declared.

    Raises ValueError for a text that is none, for a condition that is not known, and what `dim` raises.
    """
    return all_of(_single(each, dim) for each in text.split(_JOIN)) if text else ALWAYS


def _single(text: str, dim: Callable[[str], Dim]) -> Single:
    match = _CALL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no guard")
    name, operands = match[1], [dim(each) for each in _operands(match[2])]
    if name in _LIMITS and len(operands) == 2 and operands[0].is_const:
        return _LIMITS[name](operands[0].const, operands[1])
    if name == Equal.spelling and len(operands) == 2:
        return Equal(*operands)
    if name == BeyondCache.spelling and len(operands) == 1:
        return BeyondCache(*operands)
    if name == Aligned.spelling and len(operands) == 1 and operands[0].is_const:
        return Aligned(operands[0].const)
    raise ValueError(f"{text!r} is no guard that is known here")


def _operands(text: str) -> list[str]:
    """Splits "a, b" at the commas outside parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
