"""Launches of Triton texts in Triton's interpreter, as a checker: every address lies in a buffer of the launch, no two programs write one
element, every element of a result is written, and bf16 computes as numbers.

The variable TRITON_INTERPRET decides while Triton is imported, so a process interprets or compiles.
Needs no torch-mlir: the stand-in driver executes launches on machines without a compiler.
"""

from __future__ import annotations

import hashlib
import linecache
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from disc.codegen.cuda.names import NAME, SCRATCH
from disc.ir.bf16 import bf16_bits, round_to_bf16

if TYPE_CHECKING:
    from disc.codegen.cuda.kernel import DeviceVersion

SMS = 3  # of the GPU, as persistent programs see it
builder: Any = interpreter_builder  # its methods are replaced while a launch is checked
_NAMES = ("create_dot", "create_masked_load", "create_masked_store", "create_atomic_rmw", "create_make_tensor_descriptor")
_PLAIN = tuple(getattr(builder, name) for name in _NAMES)
triton_itself: Any = interpreter
_PATCH = triton_itself._patch_lang


class Misuse(AssertionError):
    """A launch touched what is not its own, or left something undone."""


class _Device:
    """libdevice in NumPy: its functions run on the GPU alone."""

    NAMES: Mapping[str, Callable[..., Any]] = {
        "exp": np.exp, "log": np.log, "expm1": np.expm1, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
        "cbrt": np.cbrt, "pow": np.power, "atan2": np.arctan2, "fmod": np.fmod, "rint": np.rint, "acos": np.arccos, "acosh": np.arccosh,
        "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh, "cosh": np.cosh, "sinh": np.sinh,
        "round": lambda x: np.copysign(np.trunc(np.abs(x.astype(np.float64)) + 0.5), x),
        "erf": lambda x: torch.erf(torch.from_numpy(x)).numpy(),
        "erfc": lambda x: torch.erfc(torch.from_numpy(x)).numpy(),
        "erfinv": lambda x: torch.erfinv(torch.from_numpy(x)).numpy(),
        "lgamma": lambda x: torch.lgamma(torch.from_numpy(x)).numpy(),
    }  # fmt: skip

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.NAMES[name]

        def call(*values: Any) -> Any:
            arrays = np.broadcast_arrays(*(np.asarray(each.handle.data) for each in values))
            with np.errstate(all="ignore"):
                # f32 results of f64 arithmetic: what libdevice's last bit is, only a GPU can say.
                found = function(*(each.astype(np.float64) for each in arrays)).astype(arrays[0].dtype)
            scalar = values[0].dtype.scalar
            shape = [int(size) for size in found.shape] if any(each.type.is_block() for each in values) else []
            type_ = tl.block_type(scalar, shape) if shape else scalar
            return tl.tensor(TensorHandle(found if shape else found.reshape(1), scalar), type_)

        return call


def _dot(a: Any, b: Any, d: Any, *rest: Any) -> Any:
    """The interpreter keeps bf16 as its bits and would multiply those (triton#11584): widen first."""
    wide = [builder.cast_impl(each, tl.float32) if each.dtype.scalar is tl.bfloat16 else each for each in (a, b)]
    return _PLAIN[0](*wide, d, *rest)


def _reduced(self: Any, values: Any) -> list[Any]:
    """A reduction by a function of the text, half by half as on a GPU: the interpreter's own goes element by element."""
    (value,) = values
    found = value.handle.data
    while found.shape[self.axis] > 1:
        halves = (self.to_tensor(each, value.dtype) for each in np.split(found, 2, self.axis))
        found = self.combine_fn.fn(*halves).handle.data
    return [self.to_tensor(found if self.keep_dims else np.squeeze(found, self.axis), value.dtype)]


setattr(interpreter.ReduceOps, "generic_reduce", _reduced)  # noqa: B010


def _scanned(self: Any, values: Any) -> list[Any]:
    """A scan by a function of the text, step by step, but all lines at once."""
    (value,) = values
    steps = np.split(value.handle.data, value.handle.data.shape[self.axis], self.axis)
    for number in range(1, len(steps)):
        steps[number] = self.combine_fn.fn(*(self.to_tensor(each, value.dtype) for each in steps[number - 1 : number + 1])).handle.data
    return [self.to_tensor(np.concatenate(steps, self.axis), value.dtype)]


setattr(interpreter.ScanOps, "generic_scan", _scanned)  # noqa: B010


def _cast(self: Any, value: Any, type_: Any) -> Any:
    """f32 becomes bf16 by rounding to nearest, ties to even, as on a GPU: the interpreter's own cuts bits off."""
    if value.dtype.scalar is tl.float32 and type_.scalar is tl.bfloat16:
        return TensorHandle(bf16_bits(round_to_bf16(value.data)), tl.bfloat16)
    return _PLAIN_CAST(self, value, type_)


_PLAIN_CAST = interpreter.InterpreterBuilder.cast_impl
setattr(interpreter.InterpreterBuilder, "cast_impl", _cast)  # noqa: B010


class Checked:
    """The buffers of one launch, in which loads and stores must stay. results: those that the kernel writes; shared: those
    that any of its programs may write; maps: tensor maps that a program may make."""

    def __init__(self, buffers: Mapping[str, torch.Tensor], results: Sequence[str], shared: Sequence[str] = (), maps: int = 0) -> None:
        self.buffers = {name: (each.data_ptr(), each.element_size(), each.numel()) for name, each in buffers.items()}
        self.writers = {name: np.full(buffers[name].numel(), -1) for name in results}
        self.shared, self.maps = shared, maps
        self.made = Counter[tuple[int, ...]]()  # maps, by program

    def __enter__(self) -> Checked:
        for name, method in zip(_NAMES, (_dot, self.load, self.store, self.atomic, self.describe), strict=True):
            setattr(builder, name, method)
        # Triton patches its language anew at every call of a function of a text, which would take most of the time.
        self._patches = _PATCH(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        # Numbers are arrays of one element there, which NumPy 2.5 makes no int of by itself: Triton 3.6 asks it to.
        self._patches.set_attr(tl.core.tensor, "__index__", lambda each: each.handle.data.item())
        triton_itself._patch_lang = lambda fn: type(self._patches)()  # pyright: ignore[reportUnknownLambdaType]
        return self

    def __exit__(self, *error: object) -> None:
        triton_itself._patch_lang = _PATCH
        self._patches.restore()
        for name, method in zip(_NAMES, _PLAIN, strict=True):
            setattr(builder, name, method)

    def visit(self, pointers: Any, mask: Any, stores: bool) -> None:
        address, active = np.broadcast_arrays(pointers.data, mask.data)
        address = address[active.astype(bool)].astype(np.int64)
        if not address.size:
            return
        for name, (begin, size, count) in self.buffers.items():
            place, rest = np.divmod(address - begin, size)
            inside = (place >= 0) & (place < count)
            if inside.any():
                if not inside.all() or rest.any():
                    raise Misuse(f"{'store' if stores else 'load'} at {name}[{place[~inside][:3]}] of {count}, or between elements")
                if stores and name not in self.shared:
                    self._written(name, place)
                return
        raise Misuse(f"address {address[0]:#x} lies in no buffer of the launch")

    def _written(self, name: str, place: Any) -> None:
        if name not in self.writers:
            raise Misuse(f"a store to {name}, which is an argument")
        x, y, z = builder.grid_idx
        program = (z * 65536 + y) * (1 << 31) + x
        others = self.writers[name][place]
        if ((others != -1) & (others != program)).any():
            raise Misuse(f"programs {program} and {others.max()} both write {name}")
        self.writers[name][place] = program

    def load(self, pointers: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        self.visit(pointers, mask, stores=False)
        return _PLAIN[1](pointers, mask, other, *rest, **named)

    def store(self, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self.visit(pointers, mask, stores=True)
        return _PLAIN[2](pointers, value, mask, *rest)

    def atomic(self, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self.visit(pointers, mask, stores=True)
        return _PLAIN[3](op, pointers, value, mask, *rest)

    def describe(self, base: Any, shape: Any, strides: Any, box: Sequence[int], *rest: Any) -> Any:
        """A tensor map, as `cuTensorMapEncodeTiled` would take it, of memory that lies in a buffer. Triton asks for no more than that base
        and strides are multiples of 16 bytes."""
        sizes, steps = ([int(each.data.item()) for each in numbers] for numbers in (shape, strides))
        width, first = base.dtype.element_ty.primitive_bitwidth // 8, int(base.data.item())
        if not all(0 < size < 1 << 32 for size in sizes) or max(box) > 256 or not all(0 < width * step < 1 << 40 for step in steps):
            raise Misuse(f"a tensor map of {sizes} elements, {steps} apart, in boxes of {list(box)}")
        if steps[0] < sizes[-1] and sizes[0] > 1:
            raise Misuse(f"a tensor map of {sizes} elements, {steps} apart: its rows overlap")
        past = first + width * (sum((size - 1) * step for size, step in zip(sizes, steps, strict=True)) + 1)
        if not any(begin <= first and past <= begin + size * count for begin, size, count in self.buffers.values()):
            raise Misuse(f"a tensor map of {sizes} elements, {steps} apart, is of more than a buffer")
        self.made[tuple(builder.grid_idx)] += 1
        if self.made[tuple(builder.grid_idx)] > self.maps:
            raise Misuse(f"a program makes more tensor maps than {self.maps}")
        return _PLAIN[4](base, shape, strides, box, *rest)

    def missed(self) -> dict[str, int]:
        """Elements of each result that no program wrote."""
        return {name: int((writers == -1).sum()) for name, writers in self.writers.items() if (writers == -1).any()}


@cache
def load(text: str) -> Any:
    """The kernel of a text. Triton reads its source by `inspect`, and writes it anew before its first launch."""
    filename = f"<kernel {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    space: dict[str, Any] = {"tl": tl, "triton": triton, "libdevice": _Device(), "__name__": "kernels"}
    exec(compile(text, filename, "exec"), space)
    return space[NAME]


def launched_grid(version: DeviceVersion, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Programs along each axis."""
    first, *others = (dim.evaluate(sizes) for dim in version.grid)
    return (min(first, SMS) if version.persistent else first, *others)


def launch(
    version: DeviceVersion, arguments: Mapping[str, torch.Tensor], results: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> Any:
    """Runs all programs of a version. Returns (flag, index, size) of a fault where it checks indices.

    Raises Misuse, and what Triton raises for a text that it refuses."""
    buffers = {**arguments, **results}
    faults = torch.zeros(3, dtype=torch.int64)
    zeroed = 0
    if version.scratch is not None:
        size, zeroed = (dim.evaluate(sizes) // 4 for dim in (version.scratch.bytes, version.scratch.zeroed))
        buffers[SCRATCH] = torch.full((size,), 0x7FC00000, dtype=torch.int32)  # NaN as f32
        buffers[SCRATCH][:zeroed] = 0
    checks = any(each.name == "fault" for each in version.parameters)
    if checks:
        buffers["fault"] = faults
    for name, number in version.hints:
        value = buffers[name].data_ptr() if name in buffers else sizes[name.removeprefix("n_")]
        if value % number:
            raise Misuse(f"{name} is {value}, which {number} does not divide, as it is promised to")
    values = [buffers[each.name] if each.name in buffers else sizes[each.name.removeprefix("n_")] for each in version.parameters]
    grid = launched_grid(version, sizes)
    try:
        shared = [name for name, is_there in (("fault", checks), (SCRATCH, version.scratch is not None)) if is_there]
        for each in version.ahead:
            with Checked(buffers, [], shared):
                if all(launched_grid(each, sizes)):
                    load(each.text)[launched_grid(each, sizes)](*values)
        with Checked(buffers, list(results), shared, version.maps) as checked:
            if all(grid):
                load(version.text)[grid](*values)
    except interpreter.InterpreterError as error:
        raise Misuse(f"{error.__cause__ or error}\n{version.text}") from error
    if version.scratch is not None and all(grid) and buffers[SCRATCH][:zeroed].any():
        raise Misuse(f"counters are left as they were counted\n{version.text}")
    if checked.missed():
        raise Misuse(f"never written: {checked.missed()}\n{version.text}")
    return tuple(faults.tolist())
