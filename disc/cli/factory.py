"""Models by name: `package.module:factory`, a function of the user's."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disc.errors import UnsupportedFormatError

if TYPE_CHECKING:
    import torch

    from disc.frontend.models import DynamicShapes

    Built = tuple[torch.nn.Module, Sequence[object], DynamicShapes]

IMPORTLIB = os.path.dirname(importlib.__file__) + os.sep


def from_factory(name: str) -> Built:
    """(module, example inputs, dynamic shapes or None) of `package.module:factory`.

    Raises UnsupportedFormatError when it cannot be imported, fails, or returns something else.
    """
    module_name, _, attribute = name.partition(":")
    if attribute.startswith("//"):
        raise UnsupportedFormatError(f"{name}: nothing is downloaded: give a file or a folder of this machine")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        reason = _no_module(module_name, attribute) if missing else _user_error(error)
        raise UnsupportedFormatError(f"cannot import '{module_name}': {reason}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        known = sorted(each for each, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__)
        raise UnsupportedFormatError(f"'{module_name}' has no function '{attribute}'; it has {', '.join(known) or 'none'}")
    try:
        built = factory()
    except Exception as error:
        raise UnsupportedFormatError(f"{name} failed: {_user_error(error)}") from error
    return _checked(name, built)


def from_folder(folder: str, task: str) -> tuple[torch.nn.Module, Mapping[str, object]]:
    """The model of a Hugging Face folder, and example inputs by name, as `disc.hf.load_folder`; transformers draws no bar in the middle of
    ours."""
    from disc.hf import load_folder  # first: it says which package is missing

    importlib.import_module("transformers.utils.logging").disable_progress_bar()
    return load_folder(folder, task)


def needed_task(model: str, task: str | None) -> str:
    """The task of hf:FOLDER. Raises UnsupportedFormatError for a folder that holds no model, and where no task is given."""
    if task is not None:
        return task
    from disc.hf.folders import check_folder  # says which package is missing

    check_folder(Path(model.removeprefix("hf:")))
    raise UnsupportedFormatError(f"{model} needs --task, such as --task feature-extraction")


def _no_module(name: str, attribute: str) -> str:
    """Why there is none of this name; people give paths of files, too."""
    path = Path(name if name.endswith(".py") else f"{name}.py")
    if (name.endswith(".py") or os.sep in name) and path.is_file():
        folder = "" if path.parent == Path() else f", in the folder {path.parent}"
        return f"a module goes by its name: disc compile {path.stem}:{attribute}{folder}"
    return "there is no such module, neither in this folder nor among the installed packages"


def _checked(name: str, built: object) -> Built:
    import torch

    if isinstance(built, tuple) and len(built) in (2, 3) and isinstance(built[0], torch.nn.Module):
        inputs = (built[1],) if isinstance(built[1], torch.Tensor) else built[1]
        if isinstance(inputs, tuple | list):
            return built[0], tuple(inputs), built[2] if len(built) == 3 else None
    raise UnsupportedFormatError(
        f"{name} must return (module, example_inputs) or (module, example_inputs, dynamic_shapes), not {_kind(built)}"
    )


def _kind(value: object) -> str:
    return f"({', '.join(type(each).__name__ for each in value)})" if isinstance(value, tuple) else type(value).__name__


def _user_error(error: Exception) -> str:
    """The error and the last line of a file that it passed through."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(("<", IMPORTLIB))]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames and frames[-1].filename != __file__ else ""
    return f"{type(error).__name__}: {error}{place}"
