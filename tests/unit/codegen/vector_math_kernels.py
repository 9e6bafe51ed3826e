"""Kernels for the tests of the vector math: a loop over one function, compiled for one ISA and called on NumPy arrays."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch_mlir import ir
from torch_mlir.execution_engine import ExecutionEngine
from torch_mlir.passmanager import PassManager
from torch_mlir.runtime import get_ranked_memref_descriptor

from disc.codegen.x86.math.functions import emit_binary, emit_unary
from disc.targets.x86 import LEVELS, host_isa

PIPELINE = (
    "builtin.module(canonicalize,cse,convert-vector-to-scf,convert-scf-to-cf,expand-strided-metadata,convert-vector-to-llvm,convert-math-to-llvm,"
    "convert-arith-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)
RUN_HERE = LEVELS[: LEVELS.index(host_isa()) + 1]  # levels whose code this machine can run
LANES = {"x86-64-v3": 8, "x86-64-v4": 16}
FEATURES = {
    "x86-64-v3": ("+avx", "+avx2", "+fma", "+bmi", "+bmi2", "+f16c"),
    "x86-64-v4": ("+avx512f", "+avx512vl", "+avx512dq", "+avx512bw", "+avx512cd", "+fma"),
}
NUMPY_TYPES = {"f32": np.float32, "f64": np.float64}


@dataclass
class TextBuilder:
    """The smallest VectorBuilder: a list of lines."""

    lanes: int
    lines: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)  # constants
    constants: dict[tuple[str, str], str] = field(default_factory=dict)

    def op(self, text: str, result_type: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def const(self, value: float | int, element: str) -> str:
        spelled = f"{value:.17e}" if element.startswith("f") else str(int(value))
        if (spelled, element) not in self.constants:
            text = f"arith.constant dense<{spelled}> : {self.vec(element)}"
            self.constants[spelled, element] = self.constant(text)
        return self.constants[spelled, element]

    def from_table(self, values: Sequence[float], element: str) -> str:
        if len(values) == 1:
            return self.const(values[0], element)
        numbers = ", ".join(f"{value:.17e}" for value in values)
        return self.constant(f"arith.constant dense<[{numbers}]> : {self.vec(element)}")

    def constant(self, text: str) -> str:
        self.first.append(f"%c{len(self.first)} = {text}")
        return f"%c{len(self.first) - 1}"

    def where_any(self, mask: str, values: Sequence[str], types: Sequence[str], compute: Callable[[], Sequence[str]]) -> list[str]:
        some, listed = self.op(f"vector.reduction <or>, {mask} : {self.vec('i1')} into i1", "i1"), ", ".join(types)
        result = f"%v{len(self.lines)}"
        self.lines.append(f"{result}:{len(types)} = scf.if {some} -> ({listed}) {{")
        self.lines.append(f"scf.yield {', '.join(compute())} : {listed}")
        self.lines += ["} else {", f"scf.yield {', '.join(values)} : {listed}", "}"]
        return [f"{result}#{number}" for number in range(len(types))]

    def for_each(
        self, table: Sequence[float], values: Sequence[tuple[str, str]], step: Callable[[str, Sequence[str]], Sequence[str]]
    ) -> Sequence[str]:
        result, whole, wide = f"%v{len(self.lines)}", f"vector<{len(table)}xf64>", self.vec("f64")
        numbers, listed = ", ".join(f"{value:.17e}" for value in table), ", ".join(kind for _, kind in values)
        constant = self.constant(f"arith.constant dense<[{numbers}]> : {whole}")
        bounds = [self.constant(f"arith.constant {each} : index") for each in (0, len(table), 1)]
        carried = [f"{result}_{place}" for place in range(len(values))]
        initial = ", ".join(f"{name} = {value}" for name, (value, _) in zip(carried, values, strict=True))
        header = f"{result}:{len(values)} = scf.for {result}_at = {bounds[0]} to {bounds[1]} step {bounds[2]}"
        self.lines.append(f"{header} iter_args({initial}) -> ({listed}) {{")
        number = self.op(f"vector.extract {constant}[{result}_at] : f64 from {whole}", "f64")
        found = step(self.op(f"vector.broadcast {number} : f64 to {wide}", wide), carried)
        self.lines += [f"scf.yield {', '.join(found)} : {listed}", "}"]
        return [f"{result}#{place}" for place in range(len(values))]

    def vec(self, element: str) -> str:
        return f"vector<{self.lanes}x{element}>"


def kernel_text(function: str, element: str, inputs: int, lanes: int) -> str:
    builder = TextBuilder(lanes)
    memref, vector = f"memref<?x{element}>", builder.vec(element)
    one_input = inputs == 1
    result = emit_unary(builder, function, "%x0", element) if one_input else emit_binary(builder, function, "%x0", "%x1", element)
    loads = "\n".join(f"%x{index} = vector.load %in{index}[%i] : {memref}, {vector}" for index in range(inputs))
    arguments = ", ".join(f"%in{index}: {memref}" for index in range(inputs))
    body = "\n".join([*builder.first, *builder.lines])
    return f"""func.func @kernel({arguments}, %out: {memref}) attributes {{llvm.emit_c_interface}} {{
%zero = arith.constant 0 : index
%step = arith.constant {lanes} : index
%size = memref.dim %out, %zero : {memref}
scf.for %i = %zero to %size step %step {{
{loads}
{body}
vector.store {result}, %out[%i] : {memref}, {vector}
}}
return
}}"""


def set_target(module: ir.Module, target: str) -> None:
    features = ",".join(f'"{feature}"' for feature in FEATURES[target])
    for operation in module.body.operations:
        if operation.operation.name == "llvm.func":
            operation.attributes["target_cpu"] = ir.StringAttr.get(target)
            operation.attributes["target_features"] = ir.Attribute.parse(f"#llvm.target_features<[{features}]>")


class MathKernel:
    """One function over whole arrays, whose sizes are multiples of 16."""

    def __init__(self, function: str, element: str, inputs: int = 1, target: str = RUN_HERE[-1], lanes: int = 0) -> None:
        self.dtype = NUMPY_TYPES[element]
        with ir.Context():
            module = ir.Module.parse(kernel_text(function, element, inputs, lanes or LANES[target]))
            PassManager.parse(PIPELINE).run(module.operation)
            set_target(module, target)
            self.engine = ExecutionEngine(module, opt_level=3, enable_object_dump=True)
        self.entry = self.engine.lookup("kernel")

    def bind(self, *arrays: np.ndarray) -> Callable[[], None]:
        """A call of the kernel on these arrays, the last of which is written."""
        pointers = [ctypes.pointer(ctypes.pointer(get_ranked_memref_descriptor(array))) for array in arrays]
        packed = (ctypes.c_void_p * len(pointers))(*[ctypes.cast(pointer, ctypes.c_void_p) for pointer in pointers])
        entry = self.entry

        def call() -> None:
            # The closure keeps the descriptors alive.
            assert len(pointers) == len(packed)
            entry(packed)

        return call

    def __call__(self, *inputs: np.ndarray) -> np.ndarray:
        size = inputs[0].size
        padded = [np.resize(values.astype(self.dtype), max(16, -(-size // 16) * 16)) for values in inputs]
        out = np.empty_like(padded[0])
        self.bind(*padded, out)()
        return out[:size]

    def dump_object(self, path: Path) -> None:
        self.engine.dump_to_object_file(str(path))
