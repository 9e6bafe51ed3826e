"""MLIR text → LLVM → object → shared object, for one ISA level."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from torch_mlir import ir
from torch_mlir.execution_engine import ExecutionEngine
from torch_mlir.passmanager import PassManager

from ...errors import CompilerBug, TargetError
from ...ir.ops import string_attr
from .isa import Isa
from .micro import MICRO_PREFIX

PIPELINE = (
    "builtin.module(convert-vector-to-scf,convert-scf-to-cf,convert-vector-to-llvm{force-32bit-vector-indices=0},"
    "convert-math-to-llvm,arith-expand,convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)


def lower_to_llvm(source: str) -> ir.Module:
    """Parses kernel text and lowers it to the llvm dialect (in the current context)."""
    try:
        module = ir.Module.parse(source)
        PassManager.parse(PIPELINE).run(module.operation)
    except ir.MLIRError as error:
        raise CompilerBug(f"generated code does not lower: {error}") from error
    return module


def set_target(module: ir.Module, isa: Isa) -> None:
    """Marks every function for the ISA level, so that the machine that compiles does not matter."""
    features = [f"+{name}" for name in isa.llvm_features]
    features += ["+prefer-256-bit"] if isa.lanes == 8 else ["-prefer-256-bit"]
    attribute = ir.Attribute.parse("#llvm.target_features<[" + ", ".join(f'"{name}"' for name in features) + "]>")
    for view in module.body.operations:
        op = view.operation
        if op.name != "llvm.func" or not len(op.regions[0].blocks):
            continue
        if string_attr(op, "sym_name").startswith(MICRO_PREFIX):
            op.attributes["no_inline"] = ir.UnitAttr.get()  # inlined, its accumulators and the constants of an epilogue spill each other
        op.attributes["target_cpu"] = ir.StringAttr.get(isa.level)
        op.attributes["target_features"] = attribute


def compile_object(source: str, isa: Isa, opt_level: int = 3) -> bytes:
    """The object file of kernel and host text for one ISA level."""
    with ir.Context(), ir.Location.unknown():
        module = lower_to_llvm(source)
        set_target(module, isa)
        engine = ExecutionEngine(module, opt_level=opt_level, enable_object_dump=True, enable_pic=True)
        first = next(view.operation for view in module.body.operations if view.operation.name == "llvm.func")
        engine.raw_lookup(ir.StringAttr(first.attributes["sym_name"]).value)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "code.o"
            engine.dump_to_object_file(str(path))
            return path.read_bytes()


def link_shared(objects: list[bytes]) -> bytes:
    """A shared object of these objects, with libm and libc for what LLVM itself calls (memcpy, fmod). Needs cc or ld.

    Raises TargetError when the machine has no linker.
    """
    linker = shutil.which("ld") or shutil.which("cc") or shutil.which("gcc")
    if linker is None:
        raise TargetError("compiling needs a linker: neither ld nor cc was found on PATH (install binutils or gcc)")
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, content in enumerate(objects):
            path = Path(folder) / f"{number}.o"
            path.write_bytes(content)
            paths.append(str(path))
        output = Path(folder) / "code.so"
        command = [linker, "-shared", "-o", str(output), *paths, "-z", "noexecstack"]
        if not linker.endswith("ld"):
            command = [linker, "-shared", "-o", str(output), *paths, "-Wl,-z,noexecstack", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerBug(f"linking failed: {done.stderr.strip()}")
        return output.read_bytes()
