"""disc: compile a model once, serve every input shape.

`load` and `Executable` need NumPy alone; `compile` needs the extra `compile` (torch, torch-mlir) and is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from disc.config import VERSION as __version__
from disc.config import Options
from disc.errors import DiscError
from disc.frontend.registered import set_graph_compiler, set_recording
from disc.ral.executable import Executable, Explainer, load, set_explainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from disc.api import batched, compile
    from disc.frontend.imported import Imported
    from disc.frontend.lazy.public import lazy
    from disc.frontend.user_lowerings import register_lowering
    from disc.ral.custom_functions import register_op

    cmake_prefix_path: str

__all__ = [
    "DiscError",
    "Executable",
    "Options",
    "__version__",
    "batched",
    "cmake_prefix_path",
    "compile",
    "lazy",
    "load",
    "register_lowering",
    "register_op",
]


_COMPILER = ("batched", "compile", "lazy", "register_lowering")  # what needs torch and MLIR


def __getattr__(name: str) -> object:
    """Imports the compiler, and what few programs need, when it is first used. `cmake_prefix_path`: where CMake finds the C interface."""
    if name == "cmake_prefix_path":
        return f"{__path__[0]}/ral/cmake"
    if name == "register_op":
        from disc.ral.custom_functions import register_op

        return register_op
    if name not in _COMPILER:
        raise AttributeError(f"module 'disc' has no attribute {name!r}")
    try:
        if name == "compile":
            from disc.api import compile as found
        elif name == "batched":
            from disc.api import batched as found
        elif name == "lazy":
            from disc.frontend.lazy.public import lazy as found
        else:
            from disc.frontend.user_lowerings import register_lowering as found
    except ModuleNotFoundError as error:
        from disc.errors import how_to_install

        raise DiscError(f"disc.{name} needs {error.name}; install the compiler with: {how_to_install('compile')}") from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What users call: neither submodules nor what this file imports."""
    return __all__


def _explainer() -> Explainer:
    from disc.explain import report

    return report


def _compile_graph(imported: Imported, options: Options, targets: Sequence[str]) -> Executable:
    from disc.api import compile_graph

    return compile_graph(imported, options, targets)


def _recorded(function: Callable[..., Any], options: Mapping[str, object]) -> Callable[..., Any]:
    from disc.frontend.lazy.public import recorded

    return recorded(function, options)


# What lower floors call upward is registered here, and loaded when it is first used.
set_explainer(_explainer)
set_graph_compiler(_compile_graph)
set_recording(_recorded)
