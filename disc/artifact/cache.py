"""The compile cache: a folder of artifacts named by the SHA-256 of everything that decides their content.

An entry is written to a temporary file next to its place and renamed, so readers and other writers, in any number, see a whole entry or
none, and a process that is killed leaves at most a temporary file, which a later writer removes. The time of change of an entry is its last
use.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from disc.config import Environment
from disc.errors import ArtifactError, warn

Loaded = TypeVar("Loaded")

HASH_CHUNK = 4 << 20  # bytes: the hash of long data is the hash of the hashes of such chunks, which threads share
TEMPORARY_AGE = 3600  # seconds: a temporary file older than this has no writer any more
_ENTRY_NAME = re.compile(r"([0-9a-f]{64})\.disc")
_TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{64}\.disc\..+")


# ---- Keys -------------------------------------------------------------------------------------------------------------------------


def cache_key(facts: Mapping[str, str], data: Iterable[tuple[str, memoryview]]) -> str:
    """The key of what `facts` and the named bytes `data` decide, by this compiler.

    facts: the program's text, options, targets and the like; their order does not matter, nor does that of `data`.
    """
    total = hashlib.sha256()
    for name, text in sorted({**facts, **compiler_facts()}.items()):
        _update(total, name.encode(), text.encode())
    named = sorted(data, key=lambda each: each[0])
    for (name, _), digest in zip(named, _digests([view for _, view in named]), strict=True):
        _update(total, name.encode(), digest)
    return total.hexdigest()


def _update(total: hashlib._Hash, *fields: bytes) -> None:
    """Adds fields with their lengths, so that no two lists of fields give the same bytes."""
    for each in fields:
        total.update(len(each).to_bytes(8, "little"))
        total.update(each)


def _digests(views: list[memoryview]) -> list[bytes]:
    """The hash of each: that of the hashes of its chunks. hashlib lets go of the GIL, so threads help where there are cores."""
    flat = [view.cast("B") for view in views]
    chunks = [view[start : start + HASH_CHUNK] for view in flat for start in range(0, len(view), HASH_CHUNK)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        hashed = iter(list(pool.map(lambda chunk: hashlib.sha256(chunk).digest(), chunks)))
    return [hashlib.sha256(b"".join(next(hashed) for _ in range(0, len(view), HASH_CHUNK))).digest() for view in flat]


@functools.cache
def compiler_facts() -> Mapping[str, str]:
    """What of the compiler decides its output: its sources and data (so that a developer never sees a stale result) and the versions below
    it."""
    folder = Path(__file__).parents[1]
    sources = hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("data/*.json")]):
        _update(sources, str(path.relative_to(folder)).encode(), path.read_bytes())
    return {
        "compiler sources": sources.hexdigest(),
        **{f"version of {name}": _version(name) for name in ("torch", "torch-mlir", "numpy", "triton")},
    }


def _version(name: str) -> str:
    import importlib.metadata  # an eighth of the time of `import disc`

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


# ---- The folder -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One compiled program. size: bytes; used: its last use, in seconds since the epoch."""

    key: str
    path: Path
    size: int
    used: float


class Cache:
    """The entries of one folder, at most `limit` bytes of them."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def lookup(self, key: str, load: Callable[[Path], Loaded]) -> Loaded | None:
        """What `load` makes of the entry; None when there is none. An entry that `load` refuses (ArtifactError) is removed.

        Raises ArtifactError for a folder that others may write to: code is loaded from it.
        """
        path = self._path(key)
        try:
            path.stat()
            check_folder(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _warn_unusable(self.folder, error)
            return None
        try:
            loaded = load(path)
        except ArtifactError as error:
            return self._damaged(path, error)
        except OSError as error:
            _warn_unusable(self.folder, error)
            return None
        with contextlib.suppress(OSError):  # a folder that is only read does not know when its entries were used
            os.utime(path)
        return loaded

    def has(self, key: str) -> bool:
        """Whether there is an entry, damaged or not."""
        return self._path(key).exists()

    def _damaged(self, path: Path, error: ArtifactError) -> None:
        if not path.exists():
            return  # another process removed it just now
        warn(f"the compile cache held a damaged entry, compiling anew: {error}")
        with contextlib.suppress(OSError):  # it is refused again next time
            path.unlink(missing_ok=True)

    def store(self, key: str, write: Callable[[Path], None]) -> None:
        """Lets `write` make the entry (in one step, as `artifact.write_artifact` does), then removes the least recently used ones.

        A folder that cannot be written costs a warning, not the compile. Raises ArtifactError as `lookup` does.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(self.folder)
            write(self._path(key))
            self._evict()
        except OSError as error:
            _warn_unusable(self.folder, error)

    def entries(self) -> list[Entry]:
        """All entries, the least recently used first."""
        found: list[Entry] = []
        for path, status in self._files(_ENTRY_NAME):
            found.append(Entry(path.name.removesuffix(".disc"), path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: (entry.used, entry.key))

    def clear(self) -> int:
        """Removes every entry and every temporary file, nothing else of the folder; returns the number of entries removed."""
        entries = self.entries()
        for path in [entry.path for entry in entries] + [path for path, _ in self._files(_TEMPORARY_NAME)]:
            path.unlink(missing_ok=True)
        return len(entries)

    def _evict(self) -> None:
        entries = self.entries()
        total = sum(entry.size for entry in entries)
        for entry in entries:
            if total <= self.limit:
                break
            entry.path.unlink(missing_ok=True)
            total -= entry.size
        for path, status in self._files(_TEMPORARY_NAME):
            if time.time() - status.st_mtime > TEMPORARY_AGE:
                path.unlink(missing_ok=True)

    def _files(self, name: re.Pattern[str]) -> list[tuple[Path, os.stat_result]]:
        """The files of such a name; those that another process removes in the meantime are left out."""
        found: list[tuple[Path, os.stat_result]] = []
        if not self.folder.is_dir():
            return found
        for path in self.folder.iterdir():
            if not name.fullmatch(path.name):
                continue
            try:
                found.append((path, path.stat()))
            except FileNotFoundError:
                continue
        return found

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.disc"


def check_folder(folder: Path) -> None:
    """Raises ArtifactError for one that others may write to, OSError where there is none."""
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ArtifactError(
            f"the cache folder '{folder}' may be written by other users, who could put code into it: "
            "make it yours alone (chmod 700), or set DISC_CACHE_DIR"
        )


def open_cache(environment: Environment) -> Cache:
    """The cache that the environment names."""
    return Cache(environment.cache_dir, environment.cache_size)


def open_kernels(environment: Environment) -> Cache:
    """Beside the programs, kernels that a compiler of its own made for a GPU: they are many, small and shared by programs."""
    return Cache(environment.cache_dir / "kernels", environment.cache_size // 8)


def open_traces(environment: Environment) -> Cache:
    """Beside the programs, what PyTorch's traces of the graphs of torch.compile have come to."""
    return Cache(environment.cache_dir / "traces", environment.cache_size // 8)


def _warn_unusable(folder: Path, error: OSError) -> None:
    warn(f"the compile cache '{folder}' cannot be used: {error.strerror or error}; set DISC_CACHE_DIR to another folder, or DISC_CACHE=0")
