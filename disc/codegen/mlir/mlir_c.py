"""MLIR's C API by ctypes, for calls that take long: ctypes releases the GIL during a call, which MLIR's own bindings keep."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_bool, c_int, c_int8, c_void_p
from pathlib import Path
from typing import Any

from torch_mlir import _mlir_libs, ir
from torch_mlir.passmanager import PassManager

_library = ctypes.CDLL(str(Path(_mlir_libs.__path__[0]) / "libTorchMLIRAggregateCAPI.so"))
_NOWHERE = 1 << 12  # an address for functions of other object files, which are never called


class _Text(ctypes.Structure):
    """MlirStringRef."""

    _fields_ = (("data", ctypes.c_char_p), ("length", ctypes.c_size_t))

    @classmethod
    def of(cls, text: str) -> _Text:
        data = text.encode()
        return cls(data, len(data))


def _function(name: str, result: object, *arguments: object) -> Any:
    found: Any = _library[name]
    found.restype, found.argtypes = result, arguments
    return found


_run_passes = _function("mlirPassManagerRunOnOp", c_int8, c_void_p, c_void_p)
_verify = _function("mlirOperationVerify", c_bool, c_void_p)
_create = _function("mlirExecutionEngineCreate", c_void_p, c_void_p, c_int, c_int, c_void_p, c_bool, c_bool)
_register = _function("mlirExecutionEngineRegisterSymbol", None, c_void_p, _Text, c_void_p)
_lookup = _function("mlirExecutionEngineLookup", c_void_p, c_void_p, _Text)
_dump = _function("mlirExecutionEngineDumpToObjectFile", None, c_void_p, _Text)
_destroy = _function("mlirExecutionEngineDestroy", None, c_void_p)

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _pointer(bound: object) -> int:
    """The C object behind one of the bindings; valid as long as that lives."""
    capsule = getattr(bound, "_CAPIPtr")  # noqa: B009 (documented for this use, private to type checkers)
    return _capsule_pointer(capsule, _capsule_name(capsule))


def run_passes(passes: PassManager, module: ir.Module) -> bool:
    """Runs the passes, then the verifier. False: one failed, and what handles the context's diagnostics knows why."""
    operation = _pointer(module.operation)
    return bool(_run_passes(_pointer(passes), operation)) and _verify(operation)


def emit_object(module: ir.Module, opt_level: int, defined: str, declared: Sequence[str], path: Path) -> bool:
    """Writes the object file of a module of dialect llvm, position-independent. False: it does not translate, as above.

    defined: one of its functions. declared: functions that are called but not defined in it.
    """
    engine = _create(_pointer(module), opt_level, 0, None, True, True)
    if not engine:
        return False
    try:
        for name in declared:
            _register(engine, _Text.of(name), _NOWHERE)
        if not _lookup(engine, _Text.of(defined)):  # compiles the module
            return False
        _dump(engine, _Text.of(str(path)))
    finally:
        _destroy(engine)
    return True
