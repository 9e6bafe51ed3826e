"""Functions exported by `jax.export`: portable StableHLO with symbolic shapes, whose constraints JAX has written as assertions.

JAX itself is not imported: an exported function has its program with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from disc.errors import UnsupportedFormatError

SHARDING = b"sdy"  # the dialect's name, which stands in bytecode as it is


class Exported(Protocol):
    """The part of `jax.export.Exported` that is read."""

    @property
    def fun_name(self) -> str: ...

    @property
    def platforms(self) -> Sequence[str]: ...

    @property
    def nr_devices(self) -> int: ...

    @property
    def ordered_effects(self) -> Sequence[object]: ...

    def mlir_module(self) -> str: ...

    @property
    def mlir_module_serialized(self) -> bytes: ...


@dataclass(frozen=True)
class JaxProgram:
    """name: of the function, for messages; bytecode: its program as a portable artifact of StableHLO; text: the same, where the bytecode
    has attributes of a dialect that can only be read as text (rules of sharding)."""

    name: str
    bytecode: bytes
    text: str | None


def is_exported(model: object) -> TypeGuard[Exported]:
    """Whether `model` is what `jax.export.export(...)(...)` returns."""
    return type(model).__module__.partition(".")[0] == "jax" and type(model).__name__ == "Exported"


def program_of_jax(exported: Exported) -> JaxProgram:
    """Raises: UnsupportedFormatError for a function that was exported for other devices than one CPU."""
    name = f"the JAX function {exported.fun_name}"
    if tuple(exported.platforms) != ("cpu",):
        given = ", ".join(exported.platforms)
        raise UnsupportedFormatError(f'{name} is exported for {given}: export it with jax.export.export(..., platforms=["cpu"])')
    if exported.nr_devices != 1:
        raise UnsupportedFormatError(f"{name} is exported for {exported.nr_devices} devices, and a compiled program runs on one")
    if exported.ordered_effects:
        raise UnsupportedFormatError(f"{name} has ordered effects ({', '.join(map(str, exported.ordered_effects))}): a program has none")
    bytecode = bytes(exported.mlir_module_serialized)
    return JaxProgram(name, bytecode, exported.mlir_module() if SHARDING in bytecode else None)
