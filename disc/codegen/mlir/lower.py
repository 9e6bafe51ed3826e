"""MLIR text → LLVM → objects → shared object, for one ISA level."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from disc.codegen.mlir.mlir_c import emit_object, run_passes
from disc.codegen.mlir.parts import cut
from disc.errors import CompilerBug, TargetError, UnsupportedFormatError
from disc.ir.ops import string_attr
from disc.targets.target import Target

ENTRY = "disc_entry"  # the only function that the runtime looks up
PIPELINE = (
    "builtin.module(convert-vector-to-scf,convert-scf-to-cf,convert-vector-to-llvm{force-32bit-vector-indices=0},"
    "convert-math-to-llvm,arith-expand,convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)
_HIDDEN = 1  # as the dialect llvm numbers visibilities


def compile_objects(source: str, target: Target, threads: int, opt_level: int = 3, external: Collection[str] = ()) -> list[bytes]:
    """The object files of kernel and host text for one ISA level. `threads` compile them, or fewer where no more can be started. external:
    names that another object file defines, as kernels to be launched.

    Raises CompilerBug for text that does not lower. Neither it nor the result depends on the threads.
    """
    parts = cut(source, external)
    waiting = deque(enumerate(parts))
    objects: dict[int, bytes] = {}
    errors: dict[int, Exception] = {}

    def work() -> None:
        compiler = _Compiler(target, opt_level)
        with suppress(IndexError):  # none waits any more
            while True:
                number, part = waiting.popleft()
                try:
                    objects[number] = compiler.object_file(part)
                except Exception as error:
                    errors[number] = error

    helpers = _start(min(threads, len(parts)) - 1, work)
    try:
        work()
    finally:
        waiting.clear()  # not empty where this thread was interrupted
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[min(errors)]
    return [objects[number] for number in range(len(parts))]


def compile_object(source: str, target: Target, opt_level: int = 3) -> bytes:
    """The object file of a text as a whole. Raises CompilerBug for text that does not lower."""
    return _Compiler(target, opt_level).object_file(source)


def _start(count: int, work: Callable[[], None]) -> list[threading.Thread]:
    """Up to so many threads: the system may grant fewer (RLIMIT_NPROC)."""
    started: list[threading.Thread] = []
    for _ in range(count):
        thread = threading.Thread(target=work, name="disc-compile")
        try:
            thread.start()
        except RuntimeError:
            break
        started.append(thread)
    return started


class _Compiler:
    """What one thread has to compile parts with, one after the other."""

    def __init__(self, target: Target, opt_level: int) -> None:
        self._target, self._opt_level = target, opt_level
        self._context = ir.Context(load_on_create_dialects=[])  # the text and the passes load theirs
        self._context.enable_multithreading(False)  # its threads would only wait for each other
        self._messages: list[str] = []
        self._context.attach_diagnostic_handler(_noting(self._messages))

    def object_file(self, source: str) -> bytes:
        """Of one part. Raises CompilerBug for text that does not lower."""
        self._messages.clear()
        with self._context, ir.Location.unknown(), tempfile.TemporaryDirectory() as folder:
            try:
                module = ir.Module.parse(source)
            except ir.MLIRError as error:
                if "integer constant out of range" in str(error):
                    raise UnsupportedFormatError("a size or position that the program computes does not fit 64 bits") from error
                raise CompilerBug(f"generated code does not lower: {error}") from error
            passes = PassManager.parse(PIPELINE)
            passes.enable_verifier(False)  # it takes longer than the passes, which are MLIR's own; what they leave is verified
            path = Path(folder) / "code.o"
            if not run_passes(passes, module) or not emit_object(module, self._opt_level, *_finish(module, self._target), path):
                raise CompilerBug(f"generated code does not lower: {'; '.join(self._messages)}")
            return path.read_bytes()


def _noting(messages: list[str]) -> Callable[[ir.Diagnostic], bool]:
    """A handler that keeps the context's diagnostics. It must not know the context's owner: no collector sees such a cycle."""

    def note(diagnostic: ir.Diagnostic) -> bool:
        messages.append(f"{diagnostic.location}: {diagnostic.message}")
        return True

    return note


def _finish(module: ir.Module, target: Target) -> tuple[str, list[str]]:
    """Marks every function for the ISA level, so that the machine that compiles does not matter, and hides all but the entry.

    Returns the name of a function defined in the module, and of those that it only declares.
    """
    features = [f"+{name}" for name in (*target.level_features, *sorted(target.feature_names))]
    features += ["+prefer-256-bit"] if target.lanes == 8 else ["-prefer-256-bit"]
    attribute = ir.Attribute.parse("#llvm.target_features<[" + ", ".join(f'"{name}"' for name in features) + "]>")
    hidden = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _HIDDEN)
    defined: list[str] = []
    declared: list[str] = []
    for view in module.body.operations:
        op = view.operation
        if op.name != "llvm.func":
            continue
        name = string_attr(op, "sym_name")
        if not len(op.regions[0].blocks):
            declared.append(name)
            continue
        defined.append(name)
        # Inlined, a micro-kernel's accumulators and the constants of an epilogue spill each other; and what else could be inlined would
        # depend on the parts. (The one other caller is what the execution engine wraps around every function.)
        op.attributes["no_inline"] = ir.UnitAttr.get()
        if name != ENTRY:
            op.attributes["visibility_"] = hidden
        op.attributes["target_cpu"] = ir.StringAttr.get(target.level)
        op.attributes["target_features"] = attribute
    return defined[0], declared


def link_shared(objects: list[bytes]) -> bytes:
    """A shared object of these objects. What LLVM itself calls (memcpy, fmod) is found where it is loaded: the runtime, which is C++,
    has libm and libc. Needs cc or ld.

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
