"""A target that is no CPU: a backend whose kernels are scalar loops, and calls of its artifacts through the C interface of the runtime.

What a device owes beside the emitter is the functions of `stub_device.c`. Nothing here, and nothing that a compile for it runs, is of
x86: `main` says which modules were loaded.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import disc
from disc.codegen.backend import register_backend
from disc.codegen.mlir.builder import Builder, Loop, Variable, float_literal
from disc.codegen.mlir.lower import compile_objects, link_shared
from disc.codegen.plan.fusion import Fusion, KernelPlan
from disc.codegen.plan.index import Index, view_index
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.listing import Assembled, Listing, Means
from disc.errors import CompilerBug, DeviceError
from disc.ir.graph import Node
from disc.shapes import Dim
from disc.speculation.tree import Tree
from disc.targets.select import Family, register_family
from disc.targets.target import Target
from disc.targets.thresholds import Caches
from disc.targets.x86_thresholds import x86_thresholds

NAME = "stub:x86-64"  # the device, and the ISA of its host code
OPS = {"add": "arith.addf", "subtract": "arith.subf", "multiply": "arith.mulf", "maximum": "arith.maximumf", "exponential": "math.exp"}


def stub_target(name: str) -> Target:
    """The only one. Nothing reads its thresholds."""
    del name
    caches = Caches(l1=32 << 10, l2=1 << 20, last=1 << 20, line=64, l1_ways=8)
    return Target("stub", "x86-64", (), (), 4, 16, caches, (("f32", 1),), x86_thresholds(16, caches))


@dataclass(frozen=True)
class Plan:
    """Every kernel is planned alike."""

    joins: int | None = None

    def __str__(self) -> str:
        return "scalar"

    def renumbered(self, numbers: Mapping[int, int]) -> Plan:
        del numbers
        return self


class Emitter:
    """The value of an element in f32, computed anew wherever it is read."""

    def __init__(self, fusion: Fusion) -> None:
        self.b, self.space, self.pointers = Builder(1), fusion.space(), dict[Node, str]()
        self.loops = 0

    def argument(self, number: int, type_: str) -> str:
        slot = self.b.op(f"llvm.getelementptr %args[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return self.b.op(f"llvm.load {slot} : !llvm.ptr -> {type_}")

    def place(self, node: Node, index: Index) -> str:
        offset = self.b.scalar(self.space.linear(index, node.dims))
        return self.b.op(f"llvm.getelementptr {self.pointers[node]}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, f32")

    def value(self, node: Node, index: Index) -> str:
        if node in self.pointers:
            return self.b.op(f"llvm.load {self.place(node, index)} : !llvm.ptr -> f32")
        if node.op == "stablehlo.constant":
            return self.b.constant(f"arith.constant {float_literal(float(np.asarray(node.attrs['value']).item()), 'f32')} : f32")
        if node.name in OPS and node.element == "f32":
            return self.b.op(f"{OPS[node.name]} {', '.join(self.value(each, index) for each in node.operands)} : f32")
        source = view_index(self.space, node, index)
        if source is not None:
            return self.value(node.operands[0], source)
        if node.op == "stablehlo.reduce" and node.body is not None and node.body.yields[0].name in OPS:
            return self.reduced(node, OPS[node.body.yields[0].name], index)
        raise CompilerBug(f"the stub has no {node.op} of {node.element}")

    def reduced(self, node: Node, op: str, index: Index) -> str:
        source, initial = node.operands
        (axis,) = node.ints("dimensions")
        with self.each(source.dims[axis], [(self.value(initial, ()), "f32")]) as (loop, position):
            value = self.value(source, (*index[:axis], position, *index[axis:]))
            loop.yields.append(self.b.op(f"{op} {loop.carried[0]}, {value} : f32"))
        return loop.results[0]

    @contextmanager
    def each(self, size: Dim, initial: Sequence[tuple[str, str]] = ()) -> Iterator[tuple[Loop, Dim]]:
        """A loop over [0, size), and its variable as an index."""
        self.loops += 1
        variable = self.space.variable(f"i{self.loops}", size)
        with (
            self.b.loop(self.b.index(0), self.b.scalar(size), self.b.index(1), initial) as loop,
            self.b.variable(str(variable), loop.index),
        ):
            yield loop, variable


class Stub:
    """`Backend` of the device "stub": one task per kernel, which computes every result in scalars."""

    def choose(self, fusion: Fusion, target: Target, tree: Tree) -> Plan:
        return Plan()

    def read(self, text: str) -> Plan:
        if text != "scalar":
            raise ValueError(f"{text!r} is no plan of the stub")
        return Plan()

    def refusal(self, fusion: Fusion, plan: KernelPlan, target: Target) -> tuple[str, str] | None:
        return None

    def emit(self, name: str, fusion: Fusion, plan: KernelPlan, target: Target) -> Kernel:
        e, body = Emitter(fusion), fusion.body
        values = (*body.arguments, *body.yields)
        pointers = [e.argument(number, "!llvm.ptr") for number in range(len(values))]
        symbols = tuple(sorted({each for node in body.nodes for dim in node.dims for each in dim.symbols()}))
        for number, symbol in enumerate(symbols):
            e.b.variables[symbol] = Variable(symbol, e.argument(len(values) + number, "i64"), e.b.root)
        e.pointers = dict(zip(body.arguments, pointers, strict=False))
        for root, pointer in zip(body.yields, pointers[len(body.arguments) :], strict=True):
            with ExitStack() as loops:
                index = tuple(loops.enter_context(e.each(size))[1] for size in root.dims)
                value = e.value(root, index)
                e.pointers[root] = pointer
                e.b.statement(f"llvm.store {value}, {e.place(root, index)} : f32, !llvm.ptr")
        head = f"func.func @{name}(%args: !llvm.ptr, %begin: i64, %end: i64, %scratch: !llvm.ptr) {{"
        source = "\n".join([head, *e.b.globals, *e.b.root.lines, "return", "}"]) + "\n"
        one = Dim.of(1)
        lines, ops = tuple(dict.fromkeys(node.line for node in body.nodes if node.line)), tuple(node.op for node in body.nodes)
        return Kernel(fusion.name, fusion.kind, (Version(name),), symbols, one, one, Dim.of(0), source, lines, ops)

    def shared(self, kernels: Sequence[Kernel], target: Target) -> Sequence[str]:
        return []

    def assemble(self, listing: Listing, target: Target, means: Means) -> Assembled:
        return Assembled(link_shared(compile_objects(listing.text, target, means.threads)))


# --- calls of an artifact on the device -----------------------------------------------------------------------------------------


class Tensor(ctypes.Structure):
    """`ral_tensor`."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("dims", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_uint16), ("device", ctypes.c_uint8), ("device_id", ctypes.c_uint8),
    ]  # fmt: skip


DTYPES = {"float32": 11, "int64": 4}  # of NumPy: ral_dtype


class Device:
    """The device, registered in this process, and artifacts on it."""

    def __init__(self, folder: Path) -> None:
        root = Path(disc.__file__).parent / "ral"
        library = folder / "stub.so"
        source = Path(__file__).with_name("stub_device.c")
        options = ["-O1", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{root / 'include'}"]
        subprocess.run(["gcc", *options, str(source), "-o", str(library)], check=True)
        self.ral, self.own = ctypes.CDLL(str(root / "libral.so")), ctypes.CDLL(str(library))
        self.ral.ral_last_error.restype = ctypes.c_char_p
        self.own.stub_count.restype = ctypes.c_int64
        functions = (ctypes.c_void_p * 9).in_dll(self.own, "stub_device")  # abi and name, state, then the functions
        self.allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(functions[3])
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(functions[4])
        self.copy = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(functions[5])
        number = ctypes.c_int32()
        self.check(self.ral.ral_register_device(ctypes.byref(functions), ctypes.byref(number)))
        self.number = number.value

    def check(self, status: int) -> None:
        if status:
            raise RuntimeError(self.ral.ral_last_error().decode())

    def counts(self) -> dict[str, int]:
        names = ("allocated", "freed", "copied", "filled", "launched")
        return {name: self.own.stub_count(number) for number, name in enumerate(names)}

    def call(self, path: Path, inputs: Sequence[npt.NDArray[np.generic]]) -> list[npt.NDArray[np.float32]]:
        """The results of one call of an artifact on inputs that are copied to the device."""
        context = ctypes.c_void_p()
        self.check(self.ral.ral_load_file(str(path).encode(), None, ctypes.byref(context)))
        try:
            count = self.ral.ral_output_count(context)
            given, outputs = (Tensor * len(inputs))(), (Tensor * count)()
            held = [(ctypes.c_int64 * each.ndim)(*each.shape) for each in inputs]
            for tensor, array, dims in zip(given, inputs, held, strict=True):
                data = self.allocate(None, max(array.nbytes, 1))
                self.copy(None, data, array.ctypes.data, array.nbytes)
                tensor.data, tensor.dims, tensor.rank = data, dims, array.ndim
                tensor.dtype, tensor.device = DTYPES[array.dtype.name], self.number
            try:
                self.check(self.ral.ral_call(context, given, len(inputs), None, outputs, count))
            finally:
                for tensor in given:
                    self.free(None, tensor.data)
            return [self.taken(output) for output in outputs]
        finally:
            self.ral.ral_unload(context)

    def taken(self, output: Tensor) -> npt.NDArray[np.float32]:
        """A result, copied from the device; its memory is given back."""
        assert output.device == self.number
        found = np.empty([output.dims[axis] for axis in range(output.rank)], np.float32)
        self.copy(None, found.ctypes.data, output.data, found.nbytes)
        self.ral.ral_release(ctypes.byref(output))
        return found


class Small(nn.Module):
    """Element-wise ops with a weight, a reduction of rows and one of columns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = torch.relu(x * self.weight + y) - 0.5
        return first, (first * y).sum(-1), torch.exp(x).amax(0)


class Part(nn.Module):
    """Returns an input, which is copied, and as many rows as an input says, which the host reads."""

    def forward(self, x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x[:rows] * 2


def run(device: Device, path: Path, model: nn.Module, inputs: Sequence[torch.Tensor]) -> float:
    """The largest error of a call of the file that `model` was compiled to."""
    with torch.no_grad():
        expected = [each.numpy() for each in model(*(each if each.ndim else int(each) for each in inputs))]
    found = device.call(path, [each.numpy() for each in inputs])
    assert [each.shape for each in found] == [each.shape for each in expected]
    return max(float(np.abs(one - other).max(initial=0)) for one, other in zip(found, expected, strict=True))


def main() -> dict[str, object]:
    """Compiles two models for the stub, saves them, and calls the files; what came of it."""
    register_family(Family("stub", (NAME,), stub_target))
    register_backend("stub", Stub)
    told, errors = dict[str, object](), list[float]()
    torch.manual_seed(0)
    dynamic = torch.export.Dim.DYNAMIC
    with tempfile.TemporaryDirectory() as folder:
        small, part = Path(folder) / "small.disc", Path(folder) / "part.disc"
        device, options = Device(Path(folder)), disc.Options(cache=False)
        model = Small()
        executable = disc.compile(model, (torch.ones(5, 3), torch.ones(5, 3)), ({0: dynamic}, {0: dynamic}), NAME, options)
        executable.save(small)
        disc.compile(Part(), (torch.ones(5, 3), 2), ({0: dynamic}, dynamic), NAME, options).save(part)  # pyright: ignore[reportArgumentType]
        told["isa"] = disc.load(small).isa
        try:
            executable(torch.ones(5, 3), torch.ones(5, 3))
        except DeviceError as error:
            told["refusal"] = str(error)
        before = device.counts()
        for rows in (1, 2, 7, 64):
            errors.append(run(device, small, model, [torch.randn(rows, 3), torch.randn(rows, 3)]))
            for some in (0, 1, rows):
                errors.append(run(device, part, Part(), [torch.randn(rows, 3), torch.tensor(some)]))
        try:
            device.call(part, [np.ones((5, 3), np.float32), np.array(6)])
        except RuntimeError as error:
            told["check"] = str(error)
        told["launched"] = device.counts()["launched"] - before["launched"]
        del executable
        told["left"] = device.counts()["allocated"] - device.counts()["freed"]
    told["largest"] = max(errors)
    told["x86"] = sorted(name for name in sys.modules if name.startswith("disc.codegen.x86"))
    return told


if __name__ == "__main__":
    print(json.dumps(main()))
