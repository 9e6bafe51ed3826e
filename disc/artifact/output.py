"""Files that take their name when they are complete: readers of the path see the old file or the new one, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from disc.errors import OutputError, check_path, printable

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
}  # fmt: skip
_LONGEST_NAME = 255  # bytes: of a file, on Linux


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the system in the body become OutputErrors that name `path`."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        refused = OutputError(f"'{printable(os.fsdecode(path))}': cannot be written: {error.strerror or error}")
        refused.errno = error.errno
        raise refused from error


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file that takes the name `path` when the body ends well, and leaves nothing behind otherwise.

    A symbolic link is followed: the file it names is replaced. Permissions of a file that is replaced are kept. Raises OutputError, before
    the body runs where `path` names something that is no regular file.
    """
    with writing(path):
        target, mode = _target(path)
        descriptor, temporary = _temporary(target)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):  # a full or failing disk: the first error is the one to report
                os.unlink(temporary)
            raise
        _flush_folder(target.parent)


def check_output(path: str | os.PathLike[str]) -> None:
    """Raises OutputError where `whole_file` would refuse the path; for before long work."""
    with writing(path):
        _target(path)


def check_place(path: str | os.PathLike[str]) -> None:
    """Raises OutputError where nothing can be written: for before long work, and for what may be a device or a pipe, too."""
    with writing(path):
        if os.path.isdir(path):
            raise _not_replaced(path, "a folder")
        _check_folder(os.fsdecode(path), os.path.dirname(os.fsdecode(path)))


def _not_replaced(path: str | os.PathLike[str], kind: str) -> OutputError:
    return OutputError(f"'{printable(os.fsdecode(path))}' is {kind}, which will not be replaced by a file: give another name")


def _check_folder(path: str, folder: str) -> None:
    if folder and not os.path.isdir(folder):
        raise OutputError(f"'{printable(path)}': the folder {printable(folder)} does not exist")


def _target(path: str | os.PathLike[str]) -> tuple[Path, int | None]:
    """The file to replace, and its permissions; None: there is none yet."""
    from pathlib import Path  # a part of what `import disc` would cost; only what writes needs it

    check_path(path)
    shown = printable(os.fsdecode(path))
    try:
        status = os.stat(path)
    except FileNotFoundError:
        target = Path(os.path.realpath(os.fsdecode(path)))  # of a link, what it names
        _check_folder(os.fsdecode(path), str(target.parent) if os.path.islink(path) else os.path.dirname(os.fsdecode(path)))
        return target, None
    except ValueError:  # not OSError: the path holds a NUL or a lone surrogate
        raise OutputError(f"'{shown}': cannot be written: no file can have this name") from None
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise _not_replaced(path, kind)
    return Path(os.path.realpath(os.fsdecode(path))), stat.S_IMODE(status.st_mode)


def _temporary(target: Path) -> tuple[int, Path]:
    """A new file next to the target, with the permissions that new files have."""
    end = f".{os.urandom(4).hex()}"
    name = os.fsencode(target.name)[: _LONGEST_NAME - 1 - len(end)]
    while True:
        temporary = target.parent / os.fsdecode(b"." + name + end.encode())
        try:
            return os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666), temporary
        except FileExistsError:
            end = f".{os.urandom(4).hex()}"


def _flush_folder(folder: Path) -> None:
    """The new name outlives a loss of power, where the folder may be read and its file system knows how."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
