"""What a launch of a kernel on a GPU needs: the text, who gets which parameter, the grid."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from disc.codegen.cuda.emit import Buffer, Emitter
from disc.codegen.cuda.structural import RULES
from disc.codegen.cuda.text import INDENT, Variable, Writer
from disc.codegen.cuda.types import MEMORY
from disc.codegen.plan.index import IndexSpace, checks_indices
from disc.ir.graph import Body, Node
from disc.shapes import Dim, Truth
from disc.speculation.guards import ALWAYS, Guard

NAME = "kernel"  # of every kernel's function: equal texts are one kernel


@dataclass(frozen=True)
class Parameter:
    """name: in the text; type: Triton's, "*fp32" or "i32"."""

    name: str
    type: str


@dataclass(frozen=True)
class DeviceVersion:
    """One compiled version of a kernel.

    text: of all functions, that of NAME last; parameters: pointers of the arguments, of the results, then base symbols, then the place of
    faults where indices are checked. grid: programs along x, y, z. warps, stages: as Triton takes them.
    """

    guard: Guard
    text: str
    parameters: tuple[Parameter, ...]
    grid: tuple[Dim, ...]
    warps: int
    stages: int = 3

    @property
    def key(self) -> str:
        """Equal for versions that are the same code."""
        return hashlib.sha256(f"{self.text}{self.parameters}{self.warps}{self.stages}".encode()).hexdigest()


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel of a GPU's program. symbols: the base symbols among its parameters; versions: tried in order, the last always runs."""

    name: str
    kind: str
    symbols: tuple[str, ...]
    versions: tuple[DeviceVersion, ...]
    checks_indices: bool


def emit_version(
    fusion_body: Body,
    space: IndexSpace,
    symbols: tuple[str, ...],
    shape: str,
    emit: Callable[[Emitter, tuple[Buffer, ...]], None],
    grid: tuple[Dim, ...],
    warps: int,
    *,
    guard: Guard = ALWAYS,
    wide: bool = False,
    stages: int = 3,
) -> DeviceVersion:
    """A version whose statements `emit` writes: it gets the emitter, with arguments as leaves and symbols as variables, and the results."""
    w = Writer(shape, wide)
    integer, parameters = "i64" if wide else "i32", list[Parameter]()
    e = Emitter(w, space, RULES)

    def buffer(name: str, node: Node) -> Buffer:
        parameters.append(Parameter(name, f"*{MEMORY[node.element]}"))
        return Buffer(name, node.dims, node.element)

    for number, argument in enumerate(fusion_body.arguments):
        e.leaves[argument] = buffer(f"a{number}", argument)
    results = tuple(buffer(f"r{number}", root) for number, root in enumerate(fusion_body.yields))
    declared = frozenset(space.env.names())
    for symbol in symbols:
        signed = symbol in declared and space.env.le(0, Dim.symbol(symbol)) is not Truth.YES
        parameters.append(Parameter(f"n_{symbol}", integer))
        w.bind(symbol, Variable(f"n_{symbol}", w.root, signed=signed))
    if checks_indices(space.checked_indices, fusion_body):
        parameters.append(Parameter("fault", "*i64"))
        e.fault = "fault"
    emit(e, results)
    head = f"def {NAME}({', '.join(each.name for each in parameters)}):"
    helpers = [f"@triton.jit\ndef {name}{text}" for name, text in sorted(w.functions.items())]
    text = "\n".join([*helpers, "@triton.jit", head, *(INDENT + line for line in w.root.lines or ["pass"])]) + "\n"
    return DeviceVersion(guard, text, tuple(parameters), grid, warps, stages)
