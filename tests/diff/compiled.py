"""Compiled code against an oracle: one compile for an ISA level (for all with --long), then many shapes.

`text_program` compiles StableHLO text and holds the interpreter as oracle; `module_program` compiles a torch function and holds eager torch.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from levels import levels_of_this_test
from torch import nn
from torch_mlir import ir

import disc
from disc.codegen.plan.text import Plan, read_plan
from disc.codegen.x86.plans import KINDS
from disc.frontend.stablehlo import import_stablehlo
from disc.ir.dialect import make_context
from disc.ir.interp.oracle import interpret
from disc.ir.interp.values import bf16_bits, bf16_values, element_name
from disc.ir.ops import main_block, terminator_of
from disc.ir.passes import CompileState, run_passes
from disc.passes.pipelines import FRONT
from disc.ral.executable import Executable, load
from disc.targets.x86 import host_isa

Array = np.ndarray[Any, Any]
Inputs = Sequence[torch.Tensor]
Function = Callable[..., object]

ISAS = ("x86-64-v3", "x86-64-v4") if host_isa() == "x86-64-v4" else ("x86-64-v3",)
SIZES = (0, 1, 2, 7, 8, 9, 13, 15, 16, 17, 31, 64, 67)
TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}
EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def between_unmapped_memory(tensor: torch.Tensor, gap: int, *, first: bool) -> torch.Tensor:
    """A copy of an f32 tensor at the begin, or the end, of pages with nothing mapped in the `gap` bytes before and behind them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    count = tensor.numel() * 4
    size = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
    base = libc.mmap(None, 2 * gap + size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert libc.mprotect(base + gap, size, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    array = np.ctypeslib.as_array((ctypes.c_float * tensor.numel()).from_address(base + gap + (0 if first else size - count)))
    return torch.from_numpy(array).reshape(tensor.shape).copy_(tensor)


def plans_of(executable: Executable) -> list[Plan]:
    """What was decided of the kernel of each launch."""
    return [read_plan(str(record.get("plan")), KINDS) for record in executable.manifest["kernels"]]


def both_targets(model: object, *arguments: object, **options: object) -> list[Executable]:
    """One compile for levels of this machine, loaded once for each."""
    isas = levels_of_this_test(ISAS)
    compiled = disc.compile(model, *arguments, target=isas, **options)  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.disc"
        compiled.save(path)
        return [load(path, isa=isa) for isa in isas]


# --- StableHLO text against the interpreter ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TextProgram:
    """A compiled module of StableHLO text, and the same module at stage `named` for the interpreter."""

    executables: list[Executable]
    module: ir.Module
    state: CompileState
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[str, ...]

    def expected(self, inputs: Sequence[Array]) -> list[Array]:
        """The interpreter's results (bf16 in float32)."""
        held = [bf16_values(each) if element == "bf16" else each for each, element in zip(inputs, self.inputs, strict=True)]
        return interpret(self.module, held, self.state.weights)

    def check(self, inputs: Sequence[Array], ulps: float = 0, absolute: float = 0.0) -> None:
        """Every target gives the interpreter's results: equal where `ulps` is 0, else within so many units of the last place."""
        wanted = self.expected(inputs)
        wrong: list[str] = []
        for executable in self.executables:
            returned = executable(*inputs)
            results = returned if isinstance(returned, tuple) else (returned,)
            assert len(results) == len(wanted)
            for number, (ours, theirs) in enumerate(zip(results, wanted, strict=True)):
                element = self.outputs[number]
                values = bf16_values(ours) if element == "bf16" else ours
                difference = mismatch(values, theirs, ulps * EPSILON.get(element, 0.0), absolute)
                if difference:
                    wrong.append(f"{executable.isa} {self.ops[number]}: {difference}")
        sizes = [each.shape for each in inputs]
        assert not wrong, f"inputs {self.inputs} of sizes {sizes}:\n" + "\n".join(wrong)


def mismatch(ours: Array, theirs: Array, relative: float, absolute: float) -> str:
    """What differs, "" for nothing: NaN equals NaN; where no tolerance is given, zeros have equal signs too."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{ours.shape} instead of {theirs.dtype}{theirs.shape}"
    if ours.dtype.kind != "f":
        differs = ours != theirs
    else:
        differs = ~np.isclose(ours, theirs, rtol=relative, atol=absolute, equal_nan=True)
        if relative == 0 and absolute == 0:
            differs |= (theirs == 0) & (np.signbit(ours) != np.signbit(theirs))
    if not differs.any():
        return ""
    places = np.argwhere(differs)
    shown = ", ".join(f"{ours[tuple(at)]!s} for {theirs[tuple(at)]!s} at {[int(each) for each in at]}" for at in places[:4])
    return f"{len(places)} of {ours.size} elements: {shown}"


def text_program(text: str) -> TextProgram:
    """Compiles a module with one public function; the executables return a tuple, or its one result."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.mlir"
        path.write_text(text)
        executables = both_targets(path)
    imported = import_stablehlo(text, make_context())
    state = CompileState(weights=imported.weights)
    run_passes(imported.module, FRONT, state)
    block = main_block(imported.module)
    inputs = tuple(element_name(argument.type) for argument in block.arguments)
    results = list(terminator_of(block).operands)
    outputs = tuple(element_name(value.type) for value in results)
    ops = tuple(
        "input" if isinstance(value, ir.BlockArgument) else str(value.owner.opview if hasattr(value.owner, "opview") else value.owner)
        for value in results
    )
    return TextProgram(executables, imported.module, state, inputs, outputs, ops)


def function_text(arguments: str, body: Sequence[tuple[str, str]]) -> str:
    """`@main` with `arguments` ("%x: tensor<?xf32>, ...") that returns the value of every (op text, result type) of `body`."""
    lines = [f"%{number} = {op}" for number, (op, _) in enumerate(body)]
    types = ", ".join(kind for _, kind in body)
    values = ", ".join(f"%{number}" for number in range(len(body)))
    inside = "\n  ".join([*lines, f"return {values} : {types}"])
    return f"func.func @main({arguments}) -> ({types}) {{\n  {inside}\n}}\n"


def to_bits(array: Array, element: str) -> Array:
    """What an executable takes for values of `element`: bf16 as its bits."""
    return bf16_bits(array.astype(np.float32)) if element == "bf16" else array


# --- torch functions against eager ------------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*inputs)


@dataclass(frozen=True, eq=False)
class ModuleProgram:
    """A compiled torch module, and the module."""

    executables: list[Executable]
    model: nn.Module

    def check(self, *inputs: torch.Tensor, tolerance: float | None = None) -> None:
        """Every target agrees with eager: same kinds and sizes, values within the dtype's tolerance (relative to the largest value)."""
        with torch.no_grad():
            wanted = [leaf for leaf in torch.utils._pytree.tree_leaves(self.model(*inputs)) if leaf is not None]
        for executable in self.executables:
            results = executable(*inputs)
            given = list(results) if isinstance(results, tuple | list) else [results]
            assert len(given) == len(wanted)
            for number, (ours, theirs) in enumerate(zip(given, wanted, strict=True)):
                where = f"result {number} on {executable.isa} for {[tuple(each.shape) for each in inputs]}"
                assert_close(ours, theirs, tolerance, where)


def assert_close(ours: object, theirs: object, tolerance: float | None, where: str) -> None:
    assert isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor), where
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, (
        f"{where}: {ours.dtype}{tuple(ours.shape)}, {theirs.dtype}{tuple(theirs.shape)}"
    )
    if not theirs.dtype.is_floating_point:
        assert torch.equal(ours, theirs), f"{where}: {ours} instead of {theirs}"
        return
    name = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[theirs.dtype]
    finite = theirs[theirs.isfinite()]
    scale = max(float(finite.abs().max()), 1.0) if finite.numel() else 1.0
    limit = TOLERANCE[name] if tolerance is None else tolerance
    torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit * scale, equal_nan=True, msg=lambda text: f"{where}: {text}")


def module_program(model: nn.Module | Function, *example: torch.Tensor, dynamic: Sequence[Sequence[int]] | None = None) -> ModuleProgram:
    """Compiles with every dim dynamic, or with the dims that `dynamic` lists for each input."""
    module = (model if isinstance(model, nn.Module) else Wrapped(model)).eval()
    shapes: object = None
    if dynamic is not None:
        each = tuple(dict.fromkeys(dims, torch.export.Dim.AUTO) for dims in dynamic)
        shapes = (each,) if isinstance(module, Wrapped) else each
    return ModuleProgram(both_targets(module, tuple(example), shapes), module)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Standard normal values; for integers and bools small values of both signs where legal."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype.is_floating_point:
        return values.to(dtype)
    if dtype == torch.bool:
        return values > 0
    scaled = (values * 5).round()
    return (scaled.abs() if dtype == torch.uint8 else scaled).to(dtype)
