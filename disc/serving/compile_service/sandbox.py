"""Confines a process, then becomes a command: `python -I -S sandbox.py LIMITS COMMAND...`, with `Confinement` as JSON.

Limits of CPU time, address space, file size and open files; no core dumps; no new privileges; killed with its parent; no network where
the kernel lets a process give it up; files may be written in its own folder alone (Landlock) where the kernel has that. Run as a file,
with nothing but the standard library: a process can only enter a user namespace while it has one thread.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # system calls
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
# Rights of <linux/landlock.h>: writing a file; removing and making entries of every kind; renaming across folders; truncating.
_WRITE_FILE, _ENTRIES, _REFER, _TRUNCATE = 1 << 1, 0b1_1111_1111_0000, 1 << 13, 1 << 14
_OPEN_FILES = 512

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Confinement:
    """What a job may use. cpu_s: seconds. memory: bytes of address space. file: bytes of one file. folder: the only one it may write."""

    cpu_s: int
    memory: int
    file: int
    folder: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def confine(limits: Confinement) -> Mapping[str, str]:
    """Confines this process for good; says of "network" and "files" whether they are closed, or why not."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    found = {"network": _leave_network(), "files": _write_only_in(limits.folder)}
    for what, value in (
        (resource.RLIMIT_CPU, limits.cpu_s), (resource.RLIMIT_AS, limits.memory), (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):  # fmt: skip
        most = resource.getrlimit(what)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(what, (value, value + 5 if what == resource.RLIMIT_CPU else value))  # SIGXCPU first, which can be distinguished
    return found


def _leave_network() -> str:
    """Moves into a network of its own, without interfaces."""
    if _libc.unshare(_CLONE_NEWNET) == 0:
        return "closed"
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return f"open: {os.strerror(ctypes.get_errno())}"
    # Files are made as before: this user alone is known in the new namespace, under its own number.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return "closed"


def _write_only_in(folder: str) -> str:
    version = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    if version < 1:
        return f"open: {os.strerror(ctypes.get_errno())}"
    handled = _WRITE_FILE | _ENTRIES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("<Q", handled)
    ruleset = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        return f"open: {os.strerror(ctypes.get_errno())}"
    for path in (folder, "/dev/null"):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = handled if os.path.isdir(path) else handled & (_WRITE_FILE | _TRUNCATE)
        rule = struct.pack("<Qi", allowed, descriptor)
        if _libc.syscall(_LANDLOCK_ADD, ruleset, ctypes.c_int(_LANDLOCK_PATH_BENEATH), rule, ctypes.c_uint32(0)) != 0:
            return f"open: {os.strerror(ctypes.get_errno())}"
        os.close(descriptor)
    if _libc.syscall(_LANDLOCK_RESTRICT, ruleset, ctypes.c_uint32(0)) != 0:
        return f"open: {os.strerror(ctypes.get_errno())}"
    os.close(ruleset)
    return "closed"


def main() -> None:
    found = confine(Confinement(**json.loads(sys.argv[1])))
    if len(sys.argv) == 2:
        print(json.dumps(found))  # asked what this kernel allows
        return
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
