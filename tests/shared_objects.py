"""Object files that tests share, those of later sessions too.

What LLVM makes of a part of a program depends on its text, the ISA and the level of optimization alone (tests/unit/codegen/test_parts.py),
so a part that any test has compiled with the same LLVM and by the same code is not compiled again. Programs are cut in other parts here than for a user, so that
they share more: micro-kernels, which are most of the code of a small program, and long functions, such as those that a model keeps in
every precision. Tests of the code itself use the fixture `own_objects`.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import pytest

from disc.codegen.mlir import lower, mlir_c, parts

KEPT = 3 * 24 * 3600  # seconds
LONG = 1000  # weight of a function that is a part of its own: 40 ms, of which 9 would be the same for any part
_MICRO_KERNEL = re.compile(r"disc_micro_(\w+)_\d+x(\d+)x(\d+)")  # form, rows, vectors, lanes: those for one number of vectors come together
_cut, _object_file = lower.cut, lower._Compiler.object_file


def _cut_apart(source: str, external: Collection[str] = ()) -> list[str]:
    """As `parts.cut`: micro-kernels by families, every long function, and the rest."""
    functions = parts._functions(source)
    declarations = parts._declarations(functions, external)
    families: dict[object, list[parts._Function]] = {}
    for function in functions:
        micro = _MICRO_KERNEL.fullmatch(function.name)
        family = micro.groups() if micro else function.name if function.weight >= LONG else None
        families.setdefault(family, []).append(function)
    return [parts._text(family, declarations) for family in families.values()]


def _compiled_by() -> str:
    """What decides, besides the text and the target, which object a part becomes."""
    return " ".join([version("torch-mlir"), *(Path(str(module.__file__)).read_text() for module in (lower, mlir_c))])


def _forget(folder: Path) -> None:
    """Removes what no session of some days has needed."""
    oldest = time.time() - KEPT
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another session's work
            if path.stat().st_mtime < oldest:
                path.unlink()


@contextmanager
def shared_objects(folder: Path) -> Iterator[None]:
    """Keeps objects in the folder, for every process that does so."""
    folder.mkdir(parents=True, exist_ok=True)
    _forget(folder)
    compiled_by = _compiled_by()

    def object_file(compiler: lower._Compiler, source: str) -> bytes:
        target = compiler._target
        key = f"{compiled_by}\n{target.level} {target.level_features} {target.lanes} {sorted(target.feature_names)} {compiler._opt_level}\n{source}"
        path = folder / hashlib.sha256(key.encode()).hexdigest()
        with suppress(FileNotFoundError):
            os.utime(path)
            return path.read_bytes()
        content = _object_file(compiler, source)
        whole = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        whole.write_bytes(content)
        whole.replace(path)
        return content

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower, "cut", _cut_apart)
        patch.setattr(lower._Compiler, "object_file", object_file)
        yield


@contextmanager
def own_objects() -> Iterator[None]:
    """As without `shared_objects`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower, "cut", _cut)
        patch.setattr(lower._Compiler, "object_file", _object_file)
        yield
