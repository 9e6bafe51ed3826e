"""What may stand in the place of a tensor: buffers of all kinds, and objects that look like tensors and are none."""

from __future__ import annotations

import array
import ctypes
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from programs import COPY, build, copy_manifest
from torch._subclasses.fake_tensor import FakeTensorMode

from disc.errors import ArtifactError, DeviceError, InputTypeError
from disc.ral import executable
from disc.ral.executable import Executable

SIZES = {"f32": 4, "bf16": 2, "i1": 1, "ui8": 1, "f16": 2, "i64": 8}


def copier(dtype: str = "f32", rank: int = 2) -> Executable:
    return Executable.from_parts(copy_manifest(dtype, rank), {"x86-64-v3": build(COPY, f"BYTES={SIZES[dtype]}")})


def test_ctypes_arrays() -> None:
    """Their buffers have no strides, whatever is asked for."""
    x = (ctypes.c_float * 3 * 2)()
    x[1][2] = 5
    assert np.asarray(copier()(x)).tolist() == [[0, 0, 0], [0, 0, 5]]
    y = (ctypes.c_float * 3 * 2)()
    assert copier()(x, out=y) is y and y[1][2] == 5
    assert np.asarray(copier(rank=0)(ctypes.c_float(3))).item() == 3
    swapped = (ctypes.c_float.__ctype_be__ * 3 * 2)()
    with pytest.raises(InputTypeError, match="format '>f', the byte order of another machine"):
        copier()(swapped)


def test_buffers_that_lie_in_any_way() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    views = [x[::-1, ::-2], x.T, np.broadcast_to(np.float32(2), (2, 3)), np.zeros((0, 3), np.float32), memoryview(x), np.asfortranarray(x)]
    for view in views:
        assert np.array_equal(np.asarray(copier()(view)), np.asarray(view))
    unaligned = np.frombuffer(bytes(range(25)), np.uint8)[1:].view(np.float32).reshape(2, 3)
    assert np.array_equal(np.asarray(copier()(unaligned)), unaligned)
    assert np.asarray(copier(rank=1)(array.array("f", [1, 2]))).tolist() == [1, 2]
    assert np.asarray(copier("ui8", 1)(b"\1\2")).tolist() == [1, 2]
    assert np.asarray(copier("i1", 1)(np.array([True, False]))).tolist() == [True, False]
    assert np.asarray(copier("f16", 1)(np.array([1.5], np.float16))).tolist() == [1.5]
    record = np.zeros((2, 3), [("a", "f4"), ("b", "u1")])
    with pytest.raises(InputTypeError, match="strides are no multiple of its element size"):
        copier()(record["a"])


def test_bf16_of_ml_dtypes() -> None:
    x = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    assert np.array_equal(np.asarray(copier("bf16")(x)), x.view(np.uint16))
    with pytest.raises(InputTypeError, match="expected dtype f32, got bf16"):
        copier()(x)
    with pytest.raises(InputTypeError, match="cannot be read as a tensor"):
        copier()(np.ones((2, 3), ml_dtypes.float8_e4m3fn))


@pytest.mark.parametrize("mask", [[[1, 0], [0, 0]], np.ma.nomask])
def test_a_masked_array_does_not_lose_its_mask(mask: object) -> None:
    with pytest.raises(InputTypeError, match="a masked array, whose mask would be lost"):
        copier()(np.ma.array(np.ones((2, 2), np.float32), mask=mask))


class Wrapper(torch.Tensor):
    """A tensor without storage of its own, as DTensor is."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # pyright: ignore[reportAttributeAccessIssue]

    @classmethod
    def __torch_dispatch__(cls, *arguments: object) -> object:
        raise NotImplementedError


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2, 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        fake,
        lambda: Wrapper(torch.ones(2, 3)),
        lambda: torch.ones(2, 3, device="meta"),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.ones(2, 3)]),
        lambda: torch.nested.nested_tensor([torch.ones(2, 3)], layout=torch.jagged),
        lambda: torch.masked.masked_tensor(torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)),
        lambda: torch.nn.UninitializedParameter(),
        lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
    ],
    ids=["fake", "wrapper", "meta", "coo", "csr", "quantized", "nested", "jagged", "masked", "uninitialized", "conjugate"],
)
def test_tensors_without_plain_memory(make) -> None:
    with pytest.raises(InputTypeError, match=r"^input 'x' \(argument 0\): [^\n]*$"):
        copier()(make())


def test_tensors_of_other_classes() -> None:
    """With memory of their own they are read; no result has gradients."""
    for x in (torch.nn.Parameter(torch.ones(2, 3)), torch.ones(2, 3, requires_grad=True)):
        y = copier()(x)
        assert isinstance(y, torch.Tensor) and not y.requires_grad and torch.equal(y, torch.ones(2, 3))


class Raises:
    def __init__(self, error: type[BaseException], device: int = 1) -> None:
        self.error, self.device = error, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: object) -> object:
        raise self.error


def test_what_dlpack_raises() -> None:
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            copier()(Raises(error))
    with pytest.raises(InputTypeError, match="cannot be read as a tensor"):
        copier()(Raises(RuntimeError))
    with pytest.raises(DeviceError, match="is on cuda:0"):
        copier()(Raises(KeyboardInterrupt, device=2))


def test_paths_that_no_file_has(tmp_path: Path) -> None:
    good = tmp_path / "a"
    copier().save(good)
    for path, message in ((f"{good}\0b", r"a\\x00b': cannot be opened: the path holds a NUL"), ("\ud800", "lone surrogate")):
        with pytest.raises(ArtifactError, match=message):
            executable.load(path)
    strange = tmp_path / "\x1b[2J\udcff"
    with pytest.raises(ArtifactError, match=r"\\x1b\[2J\\xff': cannot be opened"):
        executable.load(strange)
    good.rename(strange)
    assert executable.load(strange).isa == "x86-64-v3"


class ExchangeHeader(ctypes.Structure):
    """`DLPackExchangeAPIHeader`: the version, and the interface of an older one."""

    _fields_ = (("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p))


def exchange_capsule(header: ExchangeHeader) -> object:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.addressof(header), b"dlpack_exchange_api", None)


def torch_exchange() -> int:
    """The address of PyTorch's interface."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("kept", [True, False])
def test_a_newer_dlpack_that_keeps_the_older_interface(kept: bool) -> None:
    """Of an interface with another major version nothing but its header may be read."""
    header = ExchangeHeader(2, 0, torch_exchange() if kept else None)

    class Newer(torch.Tensor):
        __dlpack_c_exchange_api__ = exchange_capsule(header)

        def __dlpack__(self, **options: object) -> object:
            raise RuntimeError("asked for a capsule")

    x = torch.ones(2, 3).as_subclass(Newer)
    if kept:
        assert np.asarray(copier()(x)).tolist() == [[1, 1, 1], [1, 1, 1]]
        return
    with pytest.raises(InputTypeError, match="cannot be read as a tensor"):
        copier()(x)
