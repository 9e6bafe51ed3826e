"""Custom functions: C functions of the user's that programs call by the name of an op."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from disc.errors import ArtifactError
from disc.ral import _ral


@dataclass(frozen=True)
class BoundFunction:
    """What was registered for an op. digest: the SHA-256 of the library, in hexadecimal digits."""

    op: str
    symbol: str
    digest: str

    @property
    def target(self) -> str:
        """How programs name it."""
        return f"op:{self.op}@{self.digest}:{self.symbol}"


PYTORCHS = (
    "aten",
    "prims",
    "prim",
    "profiler",
    "c10d",
    "_c10d_functional",
    "higher_order",
    "inductor",
    "rngprims",
)  # namespaces of PyTorch's
_NAME = re.compile(r"\w+::\w+(\.\w+)?", re.ASCII)

_registered: dict[str, BoundFunction] = {}
_lock = threading.Lock()


def register_op(op: str, *, library: str | os.PathLike[str], symbol: str) -> str:
    """Binds the custom op `op` ("mylib::scale") to a C function: programs that are compiled from now on call it, without PyTorch, and
    artifacts that need it can be loaded. Returns the SHA-256 of the library.

    library: the path of a shared library; its bytes are read once, hashed, and loaded from memory for the rest of the process. symbol: a
    function as `ral_function` of the installed header `ral.h` describes (docs/custom-ops.md has an example). An artifact names the op, the
    symbol and the hash, and is refused where they differ from what is registered: what it was compiled for is what runs.

    Raises ArtifactError for a library that cannot be loaded or lacks the symbol, or a name that is no custom op's.
    """
    if not isinstance(op, str) or _NAME.fullmatch(op) is None:
        raise ArtifactError(f"disc.register_op: {op!r} is no name of a custom op such as 'mylib::scale'")
    if op.partition("::")[0] in PYTORCHS:
        raise ArtifactError(
            f"disc.register_op: {op} is an op of PyTorch's, which disc compiles itself: give disc.register_lowering another way"
        )
    if not isinstance(symbol, str) or not symbol.isidentifier():
        raise ArtifactError(f"disc.register_op: {symbol!r} is no name of a C function")
    if not isinstance(library, str | os.PathLike):
        raise ArtifactError(f"disc.register_op: library is a {type(library).__name__}, not the path of a shared library")
    op = op.removesuffix(".default")
    path = Path(library).resolve()
    digest = _ral.register_function(op, os.fsencode(path), symbol)
    with _lock:
        _registered[op] = BoundFunction(op, symbol, digest)
    return digest


def bound_function(op: str) -> str | None:
    """How a program names the function that was registered for an op; None where none was."""
    found = _registered.get(op)
    return found.target if found is not None else None


def registered_functions() -> Mapping[str, BoundFunction]:
    """By the names of their ops."""
    return dict(_registered)


def register_ops(bindings: Iterable[str]) -> None:
    """`register_op` of texts such as "mylib::scale=./libscale.so:scale", as a command line has them. Raises ArtifactError."""
    for text in bindings:
        op, _, rest = text.partition("=")
        library, _, symbol = rest.rpartition(":")
        if not op or not library or not symbol:
            raise ArtifactError(f"--op {text}: expected OP=LIBRARY:SYMBOL, such as mylib::scale=./libscale.so:scale")
        register_op(op, library=library, symbol=symbol)
