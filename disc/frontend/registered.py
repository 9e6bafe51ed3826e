"""The compiler behind the front end that PyTorch calls: it lies in a layer above, and is registered from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from disc.errors import DiscError

if TYPE_CHECKING:
    from disc.config import Options
    from disc.frontend.imported import Imported
    from disc.ral.executable import Executable

GraphCompiler = Callable[["Imported", "Options", Sequence[str]], "Executable"]
_compiler: GraphCompiler | None = None


def set_graph_compiler(compiler: GraphCompiler) -> None:
    """From now on graphs of torch.compile become executables by `compiler(imported, options, targets)`."""
    global _compiler
    _compiler = compiler


def graph_compiler() -> GraphCompiler:
    """What was registered. Raises DiscError before that."""
    if _compiler is None:
        raise DiscError("no compiler is registered for graphs of torch.compile: import disc")
    return _compiler
