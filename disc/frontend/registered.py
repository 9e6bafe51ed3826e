"""What the front end that PyTorch calls needs of layers above it: it is registered from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disc.errors import DiscError

if TYPE_CHECKING:
    from disc.config import Options
    from disc.frontend.imported import Imported
    from disc.ral.executable import Executable

GraphCompiler = Callable[["Imported", "Options", Sequence[str]], "Executable"]


Recording = Callable[[Callable[..., Any], Mapping[str, object]], Callable[..., Any]]
_compiler: GraphCompiler | None = None
_recording: Recording | None = None


def set_graph_compiler(compiler: GraphCompiler) -> None:
    """From now on graphs of torch.compile become executables by `compiler(imported, options, targets)`."""
    global _compiler
    _compiler = compiler


def graph_compiler() -> GraphCompiler:
    """What was registered. Raises DiscError before that."""
    if _compiler is None:
        raise DiscError("no compiler is registered for graphs of torch.compile: import disc")
    return _compiler


def set_recording(recording: Recording) -> None:
    """From now on functions are recorded by `recording(function, options)`."""
    global _recording
    _recording = recording


def recorded_form(function: Callable[..., Any], options: Mapping[str, object]) -> Callable[..., Any]:
    """A function that does the same, what it calls being recorded by `disc.lazy`, and gives tensors. Raises DiscError before one is
    registered."""
    if _recording is None:
        raise DiscError("nothing is registered that records functions: import disc")
    return _recording(function, options)
