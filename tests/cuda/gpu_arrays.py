"""Arrays on GPUs of the stand-in driver: a framework with DLPack, and what the driver counts. Loads neither torch nor Triton."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # of DLPack, by the kind of NumPy's dtype
MEMORY = 1 << 30  # bytes of each GPU
Numbers = npt.NDArray[Any]


class Counts(ctypes.Structure):
    """`fake_counts`."""

    NAMES = (
        *("calls", "launches", "executed", "copies", "fills", "waits", "allocated", "live_blocks", "live_bytes", "live_host"),
        *("live_modules", "live_streams", "live_events", "graphs", "graph_launches", "live_graphs", "calls_made", "plain_copies"),
    )
    _fields_ = [(name, c_int64) for name in NAMES]


class DlTensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8),
        ("lanes", c_uint16), ("shape", ctypes.POINTER(c_int64)), ("strides", ctypes.POINTER(c_int64)), ("offset", c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    """`DLManagedTensorVersioned`."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", DlTensor),
    ]


api = ctypes.pythonapi
api.PyCapsule_New.restype, api.PyCapsule_New.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]
api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
_contexts: list[c_void_p] = []
_driver: list[ctypes.CDLL] = []


def start(library: str, memory: int = MEMORY) -> ctypes.CDLL:
    """The stand-in with two GPUs of so many bytes. The runtime finds the library that is loaded already."""
    driver = ctypes.CDLL(library)
    driver.fake_get_counts.restype = Counts
    driver.fake_configure(2, 90, 13000, c_int64(memory))
    driver.cuInit(0)
    _driver.append(driver)
    for number in range(2):
        _contexts.append(c_void_p())
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(_contexts[-1]), number)
    return driver


def counts() -> Counts:
    return _driver[0].fake_get_counts()


def context(gpu: int) -> c_void_p:
    """The primary one of a GPU."""
    return _contexts[gpu]


def on(gpu: int, name: str, *arguments: object) -> None:
    """Calls the driver with this GPU's context."""
    driver = _driver[0]
    driver.cuCtxPushCurrent_v2(_contexts[gpu])
    status = getattr(driver, name)(*arguments)
    driver.cuCtxPopCurrent_v2(ctypes.byref(c_void_p()))
    assert status == 0, (name, status)


class Array:
    """Numbers on a GPU. streams: for which consumers asked for it; lent: what their capsules point to. `[...]` gives a view."""

    def __init__(self, values: Numbers, gpu: int = 0) -> None:
        self.shape, self.dtype, self.gpu, self.streams, self.lent = values.shape, values.dtype, gpu, list[object](), list[object]()
        self.place, self.owner, self.steps = c_uint64(), cast("object", None), cast("tuple[int, ...] | None", None)
        values = np.ascontiguousarray(values)
        on(gpu, "cuMemAlloc_v2", ctypes.byref(self.place), ctypes.c_size_t(values.nbytes + 1))
        on(gpu, "cuMemcpyAsync", self.place, c_uint64(values.ctypes.data), ctypes.c_size_t(values.nbytes), None)
        on(gpu, "cuStreamSynchronize", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.gpu

    def __dlpack__(self, *, stream: object = None, max_version: object = None) -> object:
        self.streams.append(stream)
        dims = (c_int64 * len(self.shape))(*self.shape)
        strides = None if self.steps is None else (c_int64 * len(self.shape))(*self.steps)
        code, bits = CODES[self.dtype.kind], 8 * self.dtype.itemsize
        tensor = DlTensor(self.place.value, 2, self.gpu, len(self.shape), code, bits, 1, dims, strides, 0)
        managed = Managed(1, 0, None, None, 0, tensor)
        self.lent.append(managed)  # which holds dims and strides; one array may be two arguments of a call
        return api.PyCapsule_New(ctypes.addressof(managed), b"dltensor_versioned", None)

    def view(self, like: Numbers, whole: Numbers) -> Array:
        """What `like`, a view of `whole`, is of the array, which holds `whole`. Strides may be negative or 0."""
        made = object.__new__(Array)
        made.shape, made.dtype, made.gpu, made.streams, made.lent, made.owner = like.shape, like.dtype, self.gpu, [], [], self
        made.place = c_uint64(self.place.value + like.ctypes.data - whole.ctypes.data)
        made.steps = tuple(step // like.itemsize for step in like.strides)
        return made

    def numpy(self, stream: c_void_p | None = None) -> Numbers:
        """What the array, which is row-major, holds once the stream is done."""
        found = np.empty(self.shape, self.dtype)
        on(self.gpu, "cuMemcpyAsync", c_uint64(found.ctypes.data), self.place, ctypes.c_size_t(found.nbytes), stream)
        on(self.gpu, "cuStreamSynchronize", stream)
        return found

    def __del__(self) -> None:
        if self.owner is None:
            on(self.gpu, "cuMemFree_v2", self.place)


def from_dlpack(other: Any) -> Array:
    """An array over the memory of another's, which is row-major."""
    made, (kind, made_gpu) = object.__new__(Array), other.__dlpack_device__()
    assert kind == 2
    capsule = other.__dlpack__(max_version=(1, 0))
    tensor = Managed.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")).tensor
    letter = next(kind for kind, code in CODES.items() if code == tensor.code)
    made.dtype = np.dtype(np.bool_ if letter == "b" else f"{letter}{tensor.bits // 8}")
    made.shape, made.gpu, made.place = tuple(tensor.shape[: tensor.ndim]), made_gpu, c_uint64(tensor.data)
    made.owner, made.streams, made.lent, made.steps = (capsule, other), [], [], None
    return made


class Header(ctypes.Structure):
    """`DLPackExchangeAPI`, with its header."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        *((name, c_void_p) for name in ("older", "allocate", "give", "take", "read", "stream")),
    ]


class Lender(Array):
    """An array of a framework that also has DLPack's C exchange interface: its own allocator and its current stream, which is `current`.
    made: how many tensors the allocator has made; live: of these, that have not been given back."""

    current: c_void_p = c_void_p()
    made, live, fails = 0, 0, False
    held: ClassVar[dict[int, tuple[object, ...]]] = {}


_FREE = ctypes.CFUNCTYPE(None, c_void_p)
_ALLOCATE = ctypes.CFUNCTYPE(c_int32, ctypes.POINTER(DlTensor), ctypes.POINTER(c_void_p), c_void_p, c_void_p)
_READ = ctypes.PYFUNCTYPE(c_int32, ctypes.py_object, ctypes.POINTER(DlTensor))
_TAKE = ctypes.PYFUNCTYPE(c_int32, c_void_p, ctypes.POINTER(ctypes.py_object))
_STREAM = ctypes.PYFUNCTYPE(c_int32, c_int32, c_int32, ctypes.POINTER(c_void_p))


@_FREE
def _give_back(managed: int) -> None:
    tensor = Managed.from_address(managed).tensor
    on(tensor.device_id, "cuMemFreeAsync", c_uint64(tensor.data), Lender.current)
    Lender.live -= 1
    del Lender.held[managed]


@_ALLOCATE
def _allocate(wanted: Any, found: Any, context: object, tell: object) -> int:
    del context, tell
    if Lender.fails:
        return -1
    like = wanted[0]
    dims, place = (c_int64 * like.ndim)(*like.shape[: like.ndim]), c_uint64()
    count = int(np.prod(dims[:], dtype=np.int64)) * like.bits // 8
    on(like.device_id, "cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(count + 16))
    tensor = DlTensor(place.value, like.device_type, like.device_id, like.ndim, like.code, like.bits, 1, dims, None, 0)
    managed = Managed(1, 0, None, ctypes.cast(_give_back, c_void_p), 0, tensor)
    Lender.held[ctypes.addressof(managed)] = managed, dims
    Lender.made, Lender.live = Lender.made + 1, Lender.live + 1
    found[0] = ctypes.addressof(managed)
    return 0


@_READ
def _read(array: Lender, found: Any) -> int:
    dims = (c_int64 * len(array.shape))(*array.shape)
    array.lent.append(dims)
    found[0] = DlTensor(
        array.place.value, 2, array.gpu, len(array.shape), CODES[array.dtype.kind], 8 * array.dtype.itemsize, 1, dims, None, 0
    )
    return 0


class _Taken:
    """What `deleter` is called for when the last array over it is gone."""

    def __init__(self, managed: int) -> None:
        self.managed = managed

    def __del__(self) -> None:
        _FREE(Managed.from_address(self.managed).deleter)(self.managed)


@_TAKE
def _take(managed: int, found: Any) -> int:
    tensor, made = Managed.from_address(managed).tensor, object.__new__(Lender)
    letter = next(kind for kind, code in CODES.items() if code == tensor.code)
    made.dtype, made.shape = np.dtype(f"{letter}{tensor.bits // 8}"), tuple(tensor.shape[: tensor.ndim])
    made.gpu, made.place, made.owner, made.streams, made.lent, made.steps = (
        tensor.device_id,
        c_uint64(tensor.data),
        _Taken(managed),
        [],
        [],
        None,
    )
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    found[0] = made
    return 0


@_STREAM
def _stream(kind: int, gpu: int, found: Any) -> int:
    del kind, gpu
    found[0] = Lender.current.value
    return 0


_INTERFACE = Header(1, 3, None, *(ctypes.cast(each, c_void_p) for each in (_allocate, _take, _take, _read, _stream)))
_NAME = b"dlpack_exchange_api"  # which the capsule points to
Lender.__dlpack_c_exchange_api__ = api.PyCapsule_New(ctypes.addressof(_INTERFACE), _NAME, None)  # pyright: ignore[reportAttributeAccessIssue]


def wait() -> None:
    """Until both GPUs have done all that was asked of them."""
    for gpu in range(len(_contexts)):
        on(gpu, "cuCtxSynchronize")


def arrays(values: Sequence[Numbers], gpu: int = 0) -> list[Array]:
    return [Array(each, gpu) for each in values]
