"""What a launch of a kernel on a GPU needs: the text, who gets which parameter, the grid."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from disc.codegen.cuda.emit import Buffer, Emitter
from disc.codegen.cuda.names import FAULT, NAME, SCRATCH
from disc.codegen.cuda.products import LibraryProduct
from disc.codegen.cuda.structural import RULES
from disc.codegen.cuda.text import INDENT, Variable, Writer
from disc.codegen.cuda.types import MEMORY
from disc.codegen.plan.index import IndexSpace, checks_indices
from disc.ir.graph import Body, Node
from disc.shapes import Dim, Truth
from disc.shapes.algebra import Symbol
from disc.speculation.block_trees import AttentionTree, BlockTree
from disc.speculation.guards import ALWAYS, Aligned, Divides, Guard, parts_of


@dataclass(frozen=True)
class Parameter:
    """name: in the text; type: Triton's, "*fp32" or "i32"."""

    name: str
    type: str

    @property
    def size(self) -> int:
        """Bytes."""
        return 4 if self.type == "i32" else 8


@dataclass(frozen=True)
class Scratch:
    """Memory of a call in which the programs of one launch hand values on: `bytes`, the first `zeroed` of which are 0 before and after."""

    bytes: Dim
    zeroed: Dim


@dataclass(frozen=True)
class DeviceVersion:
    """One compiled version of a kernel.

    text: of all functions, that of NAME last; parameters: pointers of the arguments, of the results, then base symbols, then FAULT where
    indices are checked, then SCRATCH where there is any. grid: programs along x, y, z. warps, stages: as Triton takes them. hints: (name of
    a parameter, what divides its address in bytes, or its value), which the guard ensures. schedule: the number of the one that it is
    compiled for, of a kernel with a `DeviceChoice`; None: it runs whatever is chosen. flushes: exp2, and functions of libdevice, may give 0
    where the result is a denormal number. product: of a version that is no code of ours, what the GPU's library computes instead; its text
    is empty then, and its grid m, n and batch. persistent: there need be no more programs than SMs, whatever the grid. ahead: what
    is launched before it with the same arguments, each behind the one before. maps: tensor maps that each program makes in global scratch
    memory, of GPUs that have them.
    """

    guard: Guard
    text: str
    parameters: tuple[Parameter, ...]
    grid: tuple[Dim, ...]
    warps: int
    stages: int = 3
    hints: tuple[tuple[str, int], ...] = ()
    scratch: Scratch | None = None
    schedule: int | None = None
    flushes: bool = False
    product: LibraryProduct | None = None
    persistent: bool = False
    ahead: tuple[DeviceVersion, ...] = ()
    maps: int = 0

    @property
    def key(self) -> str:
        """Equal for versions that are the same code."""
        return hashlib.sha256(f"{self.text}{self.parameters}{self.warps}{self.stages}{self.hints}{self.flushes}".encode()).hexdigest()


@dataclass(frozen=True)
class DeviceChoice:
    """What chooses the schedule of a kernel in every call. features: those of the tree but the number of SMs, which the runtime knows."""

    tree: BlockTree | AttentionTree
    features: tuple[Dim, Dim, Dim, Dim]


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel of a GPU's program. symbols: the base symbols among its parameters; versions: tried in order, the last always runs. choice:
    of the schedule, where versions have one: a version then runs where its guard holds and its schedule is the one that is chosen.
    arithmetic: of products on tensor cores: "bf16", "f16", "tf32x3", "tf32"; "" without any. flops: of a launch, an add and a multiply
    being two; None where nobody counted."""

    name: str
    kind: str
    symbols: tuple[str, ...]
    versions: tuple[DeviceVersion, ...]
    checks_indices: bool
    choice: DeviceChoice | None = None
    arithmetic: str = ""
    flops: Dim | None = None


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
    hints: Mapping[str, int] | None = None,
    scratch: Scratch | None = None,
    faults: bool = False,
    flushes: bool = False,
    persistent: bool = False,
    maps: int = 0,
) -> DeviceVersion:
    """A version whose statements `emit` writes: it gets the emitter, with arguments as leaves and symbols as variables, and the results.

    hints: further ones than those that the guard, and what is known of symbols, give by themselves.
    faults: `emit` reports faults of its own, also where the indices of the body are not checked.
    """
    w = Writer(shape, wide)
    integer, parameters = "i64" if wide else "i32", list[Parameter]()
    e = Emitter(w, space, RULES)

    def buffer(name: str, node: Node) -> Buffer:
        parameters.append(Parameter(name, f"*{MEMORY[node.element]}"))
        return Buffer(name, node.dims, node.element)

    for number, argument in enumerate(fusion_body.arguments):
        e.leaves[argument] = buffer(f"a{number}", argument)
    results = tuple(buffer(f"r{number}", root) for number, root in enumerate(fusion_body.yields))
    found = {**_hints(guard, [each.name for each in parameters], symbols), **(hints or {})}
    declared = frozenset(space.env.names())
    for symbol in symbols:
        signed = symbol in declared and space.env.le(0, Dim.symbol(symbol)) is not Truth.YES
        if symbol in declared and space.env.divisor(Dim.symbol(symbol)) > 1:
            found[f"n_{symbol}"] = math.lcm(found.get(f"n_{symbol}", 1), space.env.divisor(Dim.symbol(symbol)))
        parameters.append(Parameter(f"n_{symbol}", integer))
        w.bind(symbol, Variable(f"n_{symbol}", w.root, signed=signed))
    if faults or checks_indices(space.checked_indices, fusion_body):
        parameters.append(Parameter(FAULT, "*i64"))
        e.fault = FAULT
    if scratch is not None:
        parameters.append(Parameter(SCRATCH, "*i32"))
    emit(e, results)
    head = f"def {NAME}({', '.join(each.name for each in parameters)}):"
    helpers = [f"@triton.jit\ndef {name}{text}" for name, text in sorted(w.functions.items())]
    text = "\n".join([*helpers, "@triton.jit", head, *(INDENT + line for line in w.root.lines or ["pass"])]) + "\n"
    return DeviceVersion(
        guard, text, tuple(parameters), grid, warps, stages, tuple(sorted(found.items())), scratch, flushes=flushes, persistent=persistent,
        maps=maps,
    )  # fmt: skip


def _hints(guard: Guard, pointers: list[str], symbols: tuple[str, ...]) -> dict[str, int]:
    """What a guard says of parameters."""
    found: dict[str, int] = {}
    for part in parts_of(guard):
        if isinstance(part, Aligned):
            found.update(dict.fromkeys(pointers, part.bytes))
        elif isinstance(part, Divides):
            atom = part.size.sole_atom
            if isinstance(atom, Symbol) and atom.name in symbols:
                name = f"n_{atom.name}"
                found[name] = math.lcm(found.get(name, 1), part.number)
    return found
