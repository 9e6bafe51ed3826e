"""Conditions on sizes as checks of the host entry, in the user's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from disc.ir.symbols import Requirement
from disc.shapes import Comparison, Condition, Dim, Mod

Describe = Callable[[Dim], str]


@dataclass(frozen=True)
class Report:
    """The message of a failed check: `message` with {actual} and {expected} replaced by these sizes."""

    message: str
    actual: Dim
    expected: Dim


def report(requirement: Requirement, describe: Describe) -> Report:
    """The text and the two sizes that a failing call reports."""
    if requirement.message:
        return _own_message(requirement, describe)
    words = ", or ".join(" and ".join(_words(each, describe) for each in conjunction) for conjunction in requirement.condition.alternatives)
    text = f"{words} ({requirement.why})" if requirement.why and not _names_place(words, requirement.why) else words
    first = requirement.condition.comparisons()[0]
    subject = _subject(first)
    names = requirement.condition.symbols()
    if requirement.condition.sole is not None and _is_symbol(subject) and len(names) == 1:
        return Report(f"{text}: got {{actual}}", subject, first.right)
    if len(names) == 1:
        return Report(f"{text}: {describe(Dim.symbol(names[0]))} is {{actual}}", Dim.symbol(names[0]), first.right)
    if requirement.condition.sole is not None and _is_symbol(first.left) and _is_symbol(first.right):
        return Report(f"{text}: got {{actual}} and {{expected}}", first.left, first.right)
    if len(names) == 2:
        return Report(f"{text}: {names[0]} is {{actual}}, {names[1]} is {{expected}}", Dim.symbol(names[0]), Dim.symbol(names[1]))
    return Report(f"{text}: got {{actual}} and {{expected}}", first.left, first.right)


def _names_place(words: str, why: str) -> bool:
    """Whether the words name the line of the decision: `assert x.max().item() <= 3` gives a number and decides in one line."""
    place = why.removeprefix("decided at ")
    return place != why and f" at {place} " in words


def _own_message(requirement: Requirement, describe: Describe) -> Report:
    """A message from the program, with numbered places for sizes: the first two places get their values, others are described."""
    text = requirement.message.replace("{actual}", "actual").replace("{expected}", "expected")
    told: list[Dim] = []
    for number, size in enumerate(requirement.sizes):
        place = f"{{{number}}}"
        if place in text and len(told) < 2 and not size.is_const:
            text = text.replace(place, ("{actual}", "{expected}")[len(told)], 1)
            told.append(size)
        text = text.replace(place, describe(size))
    if not told:
        subject = _subject(requirement.condition.comparisons()[0])
        return Report(f"{text}: {describe(subject)} is {{actual}}", subject, Dim.of(0))
    return Report(text, told[0], told[1] if len(told) > 1 else Dim.of(0))


def _subject(comparison: Comparison) -> Dim:
    """What a comparison is about."""
    left = comparison.left if not comparison.left.is_const else comparison.right
    atom = left.sole_atom
    return atom.left if isinstance(atom, Mod) and atom.right.is_const and comparison.right.is_const else left


def _is_symbol(dim: Dim) -> bool:
    return dim.symbols() == (str(dim),)


def _words(comparison: Comparison, describe: Describe) -> str:
    left, right, sign = comparison.left, comparison.right, comparison.sign
    atom = left.sole_atom
    if isinstance(atom, Mod) and atom.right.is_const and right.is_const and sign in ("==", "!="):
        return f"{describe(atom.left)} must {_remainder(sign, atom.right.const, right.const)}"
    if left.is_const:
        left, right = right, left
        sign = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}.get(sign, sign)
    orders = {">=": "be at least", "<=": "be at most", ">": "be more than", "<": "be less than"}
    verb = orders.get(sign) or ("equal" if sign == "==" else "not be" if right.is_const else "differ from")
    return f"{describe(left)} must {verb} {describe(right)}"


def _remainder(sign: str, divisor: int, rest: int) -> str:
    if divisor == 2 and rest in (0, 1):
        return "be even" if (sign == "==") == (rest == 0) else "be odd"
    if rest == 0:
        return f"{'' if sign == '==' else 'not '}be a multiple of {divisor}"
    return f"{'' if sign == '==' else 'not '}leave {rest} when divided by {divisor}"


def covered(conditions: Iterable[Condition]) -> set[tuple[str, Dim, Dim]]:
    """What conditions check already, as (kind, actual, expected) of other checks."""
    found: set[tuple[str, Dim, Dim]] = set()
    for condition in conditions:
        sole = condition.sole
        if sole is None:
            continue
        order, atom = sole.at_least(), sole.left.sole_atom
        if order is not None:
            found |= {("at_least", *order), ("at_most", order[1], order[0])}
        elif sole.sign == "==":
            found |= {("equal", sole.left, sole.right), ("equal", sole.right, sole.left)}
            if isinstance(atom, Mod) and sole.right == 0:
                found.add(("divides", atom.left, atom.right))
    return found
