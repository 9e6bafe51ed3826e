"""Source files as messages and artifacts name them: by the package or project they belong to, not by where they lie on this machine."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from pathlib import PurePath

_PACKAGES = ("site-packages", "dist-packages")


@functools.cache
def source_name(path: str) -> str:
    """ "transformers/models/bert/modeling_bert.py", "model.py": the same wherever the package or project lies.

    A file of an installed package is named from the folder of packages on, one of a package with `__init__.py` from the outermost package
    on, any other from the longest entry of `sys.path` or the working folder that it lies in; where it lies in none, its folder's name
    and its own are left. What is no path ("<string>") stays as it is.
    """
    if not os.path.isabs(path):
        return path
    parts = PurePath(os.path.normpath(path)).parts
    for name in _PACKAGES:
        if name in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(name) :])
    folders = [folder for folder in _folders() if path.startswith(folder)]
    package = _outermost_package(os.path.dirname(path))
    start = len(package or max(folders, key=len, default=""))
    return path[start:] if start else "/".join(parts[-2:]).removeprefix("//").lstrip("/")


def source_line(line: str) -> str:
    """ "file.py:12" with the name of its file."""
    path, colon, number = line.rpartition(":")
    return f"{source_name(path)}:{number}" if colon else source_name(line)


def _folders() -> list[str]:
    """Where projects and the standard library lie, each with a slash at its end."""
    known = [os.path.abspath(entry) for entry in sys.path] + [sysconfig.get_path("stdlib"), os.getcwd()]
    return [folder + os.sep for folder in known if folder != os.sep and os.path.isdir(folder)]


def _outermost_package(folder: str) -> str | None:
    """The folder, with a slash at its end, that holds the outermost package that `folder` belongs to; None: it is no package."""
    found = None
    while os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
        found = folder.rstrip(os.sep) + os.sep
    return found
