"""From the names that users give to targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disc.errors import TargetError
from disc.targets import cuda
from disc.targets.target import Target
from disc.targets.x86 import ISAS, USED, native_target, read_target


@dataclass(frozen=True)
class Family:
    """The targets of one device. names: all of them, the least first; read: the target of a name."""

    device: str
    names: tuple[str, ...]
    read: Callable[[str], Target]


_FAMILIES: dict[str, Family] = {
    "cpu": Family("cpu", ISAS, read_target),
    cuda.DEVICE: Family(cuda.DEVICE, cuda.NAMES, cuda.read_target),
}


def register_family(family: Family) -> None:
    """Adds the targets of a device, or replaces them. What makes code for it is registered by `disc.codegen.backend`."""
    _FAMILIES[family.device] = family


def target_names() -> tuple[str, ...]:
    """Every target but "native", those of a device together, the least first."""
    return tuple(name for family in _FAMILIES.values() for name in family.names)


def _hint(name: str) -> str:
    """What somebody means who gives a name that is none."""
    device = name.partition(":")[0].lower()
    if device in (cuda.DEVICE, "gpu"):
        return " (a GPU goes by its generation)"
    if device == "cpu":
        return " (this CPU is native)"
    level = {"avx2": "x86-64-v3", "avx512": "x86-64-v4", "avx512f": "x86-64-v4", "avx-512": "x86-64-v4"}.get(device)
    return f" (did you mean {level}?)" if level is not None else ""


def select_targets(names: str | Sequence[str]) -> tuple[Target, ...]:
    """The targets by their names, each once, the best of a device last; "native" is this machine.

    Raises TargetError for a name that is no target, and for "native" on a CPU below x86-64-v3.
    """
    given = [names] if isinstance(names, str) else list(names) if isinstance(names, Sequence) else [names]
    wrong = [name for name in given if not isinstance(name, str)]
    known = target_names()
    if wrong:
        raise TargetError(f"target: {wrong[0]!r} is no name; the targets are native, {', '.join(known)}")
    found: dict[str, tuple[int, Target]] = {}
    for name in given:
        family = next((family for family in _FAMILIES.values() if name in family.names), None)
        if name == "native":
            target = native_target()
        elif family is not None:
            target = family.read(name)
        else:
            hint = _hint(name)
            raise TargetError(f"there is no target {name!r}{hint}; the targets are native, {', '.join(known)}")
        place = known.index(name if family is not None else target.name)
        found.setdefault(target.name, (place, target))
    if not found:
        raise TargetError("the list of targets is empty")
    return tuple(target for _, target in sorted(found.values(), key=lambda each: each[0]))


def for_program(targets: Sequence[Target], elements: Sequence[str]) -> tuple[Target, ...]:
    """The targets for a program whose products have left operands of these elements (`Target.for_elements`), each once."""
    return tuple({own.name: own for own in (target.for_elements(elements) for target in targets)}.values())


def named_targets(names: str | Sequence[str], *, mixed: bool) -> list[str]:
    """The names with "native" put in terms of this machine, for a compile on another one. mixed: with types narrower than f32.

    Raises TargetError.
    """
    narrow = [element for feature in USED for element in feature.elements] if mixed else []
    return [target.label for target in for_program(select_targets(names), narrow)]
