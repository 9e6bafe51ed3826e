"""Calls: dtypes, layouts, kinds of tensors, given outputs, results."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false
# What a call returns is of the caller's kind: an `object` to a checker.

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from programs import ADD, COPY, SHAPED, TWO, add_manifest, build, copy_manifest, manifest, two_manifest

from disc.config import Options, read_environment
from disc.errors import AliasError, DeviceError, DiscError, InputRankError, InputTypeError, OutOfMemoryError, ShapeConstraintError
from disc.ral.executable import Executable

TORCH = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "ui8": torch.uint8,
    "ui16": torch.uint16, "ui32": torch.uint32, "ui64": torch.uint64, "f16": torch.float16, "bf16": torch.bfloat16,
    "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip


def copier(dtype: str, rank: int) -> Executable:
    size = torch.empty(0, dtype=TORCH[dtype]).element_size()
    return Executable.from_parts(copy_manifest(dtype, rank), {"x86-64-v3": build(COPY, f"BYTES={size}")})


@pytest.mark.parametrize("dtype", TORCH)
def test_every_dtype_goes_through(dtype: str) -> None:
    x = torch.tensor([[0, 1, 2], [3, 100, 5]]).to(TORCH[dtype])
    exe = copier(dtype, 2)
    y = exe(x)
    assert isinstance(y, torch.Tensor)
    assert y.dtype == x.dtype
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))
    assert y.data_ptr() != x.data_ptr()
    bits = x.view(torch.uint16).numpy() if dtype == "bf16" else x.numpy()
    from_numpy = exe(bits)
    assert isinstance(from_numpy, np.ndarray)
    assert from_numpy.dtype == bits.dtype
    assert np.array_equal(from_numpy, bits)
    assert from_numpy.flags.writeable


@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "f64"])
def test_every_layout_is_read_and_copies_are_counted(dtype: str) -> None:
    x = torch.arange(120).reshape(4, 5, 6).to(TORCH[dtype]).numpy()
    layouts = {
        "transposed": x.transpose(2, 0, 1), "partly transposed": x.transpose(0, 2, 1), "step": x[::2, :, ::3], "negative": x[::-1, :, ::-2],
        "stride 0": np.broadcast_to(x[:1, :, :1], (4, 5, 6)), "slice": x[1:3, 1:, :-1],
    }  # fmt: skip
    exe = copier(dtype, 3)
    for count, (name, layout) in enumerate(layouts.items(), 1):
        assert np.array_equal(exe(layout), layout), name
        assert exe.stats()["copied_inputs"] == count
    assert exe.stats()["copied_bytes"] == sum(layout.size * layout.itemsize for layout in layouts.values())


def test_the_negative_bit_is_resolved() -> None:
    exe = copier("f32", 2)
    x = torch.randn(3, 4)
    imaginary = torch.randn(3, 4, dtype=torch.complex64).conj().imag
    for negated in (torch._neg_view(x), torch._neg_view(x.t()), torch._neg_view(x)[1:, :2], imaginary):
        assert negated.is_neg()
        assert torch.equal(exe(negated), negated)
    plain = TensorOfAnotherFramework(torch._neg_view(x))
    assert torch.equal(torch.from_dlpack(exe(plain)), -x)
    with pytest.raises(InputTypeError, match="negative bit"):
        exe(x, out=torch._neg_view(torch.empty(3, 4)))


class TensorOfAnotherFramework:
    """A wrapper that passes PyTorch's methods on, without its C interface."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def is_neg(self) -> bool:
        return self.tensor.is_neg()

    def resolve_neg(self) -> torch.Tensor:
        return self.tensor.resolve_neg()

    def __dlpack__(self, **options: object) -> object:
        return self.tensor.__dlpack__(**options)  # pyright: ignore[reportArgumentType]

    def __dlpack_device__(self) -> object:
        return self.tensor.__dlpack_device__()


def test_layouts_that_need_no_copy() -> None:
    exe = copier("f32", 3)
    for x in (np.ones((3, 4, 5), np.float32)[1:], np.ones((3, 1, 5), np.float32).transpose(1, 0, 2), np.ones((3, 0, 5), np.float32)[::-1]):
        assert np.array_equal(exe(x), x)
    assert exe.stats()["copied_inputs"] == 0


def test_misaligned_input_is_copied() -> None:
    x = np.frombuffer(b"\0" + np.arange(8, dtype=np.float32).tobytes(), dtype=np.float32, offset=1)
    exe = copier("f32", 1)
    assert np.array_equal(exe(x), np.arange(8))
    assert exe.stats()["copied_inputs"] == 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2), (2**40, 0)])
def test_size_zero(shape: tuple[int, ...]) -> None:
    exe = copier("f32", len(shape))
    assert exe(np.empty(shape, np.float32)).shape == shape
    assert tuple(exe(torch.empty(shape)).shape) == shape
    out = np.empty(shape, np.float32)
    assert exe(torch.empty(shape), out=out) is out


def test_rank_zero_and_python_scalars() -> None:
    assert copier("f32", 0)(np.float32(2.5)) == 2.5
    assert copier("f64", 0)(2.5) == 2.5
    assert copier("i1", 0)(True).dtype == np.bool_
    first, second = Executable.from_parts(two_manifest(), {"x86-64-v3": build(TWO)})(7)
    assert first.tolist() == [7, 8]
    assert second.tolist() == [14, 14]
    with pytest.raises(InputTypeError, match=r"input 'n' \(argument 0\): the int does not fit"):
        Executable.from_parts(two_manifest(), {"x86-64-v3": build(TWO)})(2**63)


def test_the_kind_of_the_first_tensor_comes_back(adder: Executable) -> None:
    x = np.ones((2, 4), np.float32)
    assert isinstance(adder(torch.ones(2, 4), x), torch.Tensor)
    assert isinstance(adder(x, torch.ones(2, 4)), np.ndarray)


def test_the_kind_without_tensors() -> None:
    exe = Executable.from_parts(two_manifest(), {"x86-64-v3": build(TWO)})
    assert isinstance(exe(1)[0], np.ndarray)
    exe.like = torch.empty(0)
    assert isinstance(exe(1)[0], torch.Tensor)


class OnlyDlpack:
    """A tensor of an unknown framework."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldDlpack(OnlyDlpack):
    """A producer from before DLPack 1.0."""

    def __dlpack__(self) -> object:
        return self.array.__dlpack__()


@pytest.mark.parametrize("kind", [OnlyDlpack, OldDlpack])
def test_anything_with_dlpack(adder: Executable, kind: type[OnlyDlpack]) -> None:
    x = kind(np.ones((2, 4), np.float32))
    assert np.array_equal(np.from_dlpack(adder(x, x)), np.full((2, 4), 2.5))


def test_other_device(adder: Executable) -> None:
    x = OnlyDlpack(np.ones((2, 4), np.float32), (2, 1))
    with pytest.raises(DeviceError, match=r"input 'b' \(argument 1\): is on cuda:1, the artifact has code for the CPU only"):
        adder(torch.ones(2, 4), x)


def test_gradients_are_not_tracked(adder: Executable) -> None:
    y = adder(torch.nn.Parameter(torch.ones(2, 4)), torch.ones(2, 4, requires_grad=True))
    assert not y.requires_grad


def test_read_only_arrays_are_read(adder: Executable) -> None:
    x = np.ones((2, 4), np.float32)
    x.flags.writeable = False
    assert adder(x, x)[0, 0] == 2.5
    with pytest.raises(InputTypeError, match=r"output 'c' \(index 0\): cannot be read as a tensor"):
        adder(x, x, out=x)


def test_named_inputs(adder: Executable) -> None:
    a, b = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
    assert np.array_equal(adder(a, b=b), adder(b=b, a=a))
    with pytest.raises(InputRankError, match=r"missing 'a'.*unknown 'c'"):
        adder(b=b, c=a)
    with pytest.raises(InputRankError, match="given twice 'a'"):
        adder(a, a=a)


def test_results_outlive_the_executable() -> None:
    exe = copier("f32", 1)
    x = torch.arange(1000.0)
    y, z = exe(x), exe(x.numpy())
    del exe
    assert torch.equal(y, x)
    assert np.array_equal(z, x)
    y += 1  # fresh storage
    assert x[0] == 0


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (((2, 4),), InputRankError, r"expected 2 inputs \(.a., .b.\), got 1"),
        (((2, 4), (2, 4), (2, 4)), InputRankError, r"expected 2 inputs \(.a., .b.\), got 3"),
        (((2, 4), (2, 4, 1)), InputRankError, r"input 'b' \(argument 1\): expected rank 2, got 3 \(shape \[2, 4, 1\]\)"),
        (((2, 5), (2, 4)), ShapeConstraintError, r"input 'a' \(argument 0\): dim 1 must be 4, got 5"),
        (((2, 4), (3, 4)), ShapeConstraintError, "dim 0 of input 'b' must equal dim 0 of input 'a': got 3, expected 2"),
    ],
)
def test_shape_errors(adder: Executable, inputs: tuple[tuple[int, ...], ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        adder(*(np.ones(shape, np.float32) for shape in inputs))
    x = np.ones((2, 4), np.float32)
    assert adder(x, x)[0, 0] == 2.5  # the next call is not affected


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((2, 4)), "expected dtype f32, got f64"),
        (torch.ones(2, 4, dtype=torch.bfloat16), "expected dtype f32, got bf16"),
        (np.ones((2, 4), ">f4"), "has the unsupported element format '>f'"),
        (np.ones((2, 4), "clongdouble"), "has the unsupported element format 'Zg'"),
        (torch.zeros(2, 4, dtype=torch.complex32), "has a dtype that disc does not support"),
        (torch.ones(2, 4, dtype=torch.complex64), "expected dtype f32, got complex64"),
        (np.ones((2, 4), "complex128"), "expected dtype f32, got complex128"),
        (np.ones((2, 4), [("x", "f4"), ("y", "i1")])["x"], "its strides are no multiple of its element size; make it contiguous"),
        (torch.ones(2, 4).to_sparse(), "cannot be read as a tensor: .*"),
        (torch.ones(2, 4, device="meta"), "cannot be read as a tensor: .*"),
        ("text", "expected a tensor, got str"),
        (None, "expected a tensor, got NoneType"),
        ([1.0], "expected a tensor, got list"),
        (3, "expected dtype f32, got i64"),
    ],
)
def test_input_type_errors(adder: Executable, x: object, message: str) -> None:
    with pytest.raises(InputTypeError, match=rf"^input 'b' \(argument 1\): {message}"):
        adder(np.ones((2, 4), np.float32), x)


def test_check_messages_may_place_the_values() -> None:
    described = add_manifest()
    described["checks"] = [{"message": "rows of 'b': {actual} instead of {expected}"}]
    exe = Executable.from_parts(described, {"x86-64-v3": build(ADD)}, [("bias", "f32", np.zeros((), np.float32))])
    with pytest.raises(ShapeConstraintError, match=r"^rows of 'b': 3 instead of 2$"):
        exe(np.ones((2, 4), np.float32), np.ones((3, 4), np.float32))


def test_given_outputs(adder: Executable) -> None:
    x = np.ones((2, 4), np.float32)
    for out in (np.empty((2, 4), np.float32), torch.empty(2, 4)):
        assert adder(x, x, out=out) is out
        assert out[1, 3] == 2.5
    exe = Executable.from_parts(two_manifest(), {"x86-64-v3": build(TWO)})
    outs = [np.empty(2, np.int64), torch.empty(2, dtype=torch.int64)]
    assert exe(5, out=outs) is outs
    assert outs[0].tolist() == [5, 6]
    assert outs[1].tolist() == [10, 10]


def test_given_outputs_that_do_not_fit(adder: Executable) -> None:
    x = np.ones((2, 4), np.float32)
    cases = [
        (np.empty((3, 4), np.float32), ShapeConstraintError, r"the result has dims \[2, 4\], the given buffer \[3, 4\]"),
        (np.empty((2, 4)), InputTypeError, "the result has dtype f32, the given buffer f64"),
        (np.empty(8, np.float32), InputRankError, "the result has rank 2, the given buffer 1"),
        (np.empty((4, 2), np.float32).T, AliasError, "the given buffer is not contiguous"),
        (x, AliasError, "the given buffer overlaps input 'a'"),
        ((), InputRankError, "expected 1 outputs, got 0"),
    ]
    for out, error, message in cases:
        with pytest.raises(error, match=message):
            adder(x, x, out=out)


def test_given_outputs_that_overlap(adder: Executable) -> None:
    memory = np.zeros(24, np.float32)
    a, b = memory[:8].reshape(2, 4), memory[12:20].reshape(2, 4)
    with pytest.raises(AliasError, match="overlaps input 'a'"):
        adder(a, b, out=memory[4:12].reshape(2, 4))
    with pytest.raises(AliasError, match="overlaps input 'b'"):
        adder(a, b[::-1], out=memory[16:24].reshape(2, 4))
    exe = Executable.from_parts(two_manifest(), {"x86-64-v3": build(TWO)})
    shared = np.zeros(3, np.int64)
    with pytest.raises(AliasError, match="overlaps the one given for output 'first'"):
        exe(1, out=(shared[:2], shared[1:]))


@pytest.mark.parametrize("dims", [(2**40, 4), (2**62, 2**62), (2**31, 2**31), (1, 2**60)])
def test_impossible_sizes_are_out_of_memory(dims: tuple[int, ...]) -> None:
    exe = shaped()
    with pytest.raises(OutOfMemoryError, match="output 'y'"):
        exe(np.array(dims))
    assert exe(np.array((2, 3))).shape == (2, 3)


def test_negative_size() -> None:
    with pytest.raises(ShapeConstraintError, match=r"output 'y' \(0\): \[2, -1\] has a negative dim"):
        shaped()(np.array((2, -1)))


def shaped() -> Executable:
    described = manifest([{"name": "x", "dtype": "i64", "dims": [2]}], [{"name": "y", "dtype": "f32", "rank": 2}])
    return Executable.from_parts(described, {"x86-64-v3": build(SHAPED)})


def test_copying_an_absurd_input_is_out_of_memory() -> None:
    x = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (2**40, 2**15), (0, 0))
    with pytest.raises(OutOfMemoryError, match="cannot allocate"):
        copier("f32", 2)(x)


def test_what_it_takes_and_gives(adder: Executable) -> None:
    assert [(each.name, each.dtype, each.dims, str(each)) for each in adder.inputs] == [
        ("a", "f32", ("S0", 4), "f32[S0, 4]"),
        ("b", "f32", ("S1", 4), "f32[S1, 4]"),
    ]
    assert [(each.name, each.dims) for each in adder.outputs] == [("c", ("?", "?"))]


def test_it_is_neither_pickled_nor_copied(adder: Executable) -> None:
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(DiscError, match=r"neither pickled nor copied: save\(\) it to a file"):
            copied(adder)


@pytest.mark.parametrize("threads", [-1, 0, 1025, 10**30, 1.5, "2", True])
def test_numbers_of_threads_that_are_none(adder: Executable, threads: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiscError, match="give a number from 1 to 1024, or None"):
        adder.threads = threads  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(DiscError, match="give a number from 1 to 1024, or None"):
        Options(threads=threads)  # pyright: ignore[reportArgumentType]
    monkeypatch.setenv("DISC_THREADS", str(threads))
    if threads not in (True, "2"):
        with pytest.raises(DiscError, match="DISC_THREADS="):
            read_environment()
