"""One compile job as a confined process: started, watched, ended, its result checked. It may hang, crash, eat memory: no other suffers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from disc.artifact import file as artifact
from disc.errors import ArtifactError, JobLimitError, JobRefusedError, ModelFailedError, ServingError, WithdrawnError
from disc.serving.compile_service import sandbox
from disc.serving.compile_service.settings import CompileLimits, CompileSettings
from disc.serving.logs import log

RESULT = "model.disc"
IMPORT = "import"  # the stage in which a worker reads the program
POLL_S = 0.1
MAX_OUTPUT = 1 << 20  # bytes that a worker may say
MAX_MESSAGE = 16 << 10  # characters of an error for the client
_FAILED = "the compiler failed on this program; the server's log has the reason"
_NO_MEMORY = re.compile(rb"MemoryError|bad_alloc|out of memory|[Cc]annot allocate memory|failed to map segment", re.IGNORECASE)


def what_is_closed(folder: Path) -> Mapping[str, str]:
    """What the kernel lets jobs be cut off from: "network" and "files", each "closed" or the reason why not."""
    command = [sys.executable, "-I", "-S", sandbox.__file__, sandbox.Confinement(10, 1 << 30, 1 << 20, str(folder)).to_json()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        return {"network": "open: the sandbox failed", "files": "open: the sandbox failed"}
    return cast("dict[str, str]", json.loads(done.stdout))


def run_job(folder: Path, settings: CompileSettings, on_stage: Callable[[str, int], None], withdrawn: Callable[[], bool]) -> Path:
    """Compiles what lies in `folder`; returns the checked artifact in it.

    on_stage: called with the compiler's current stage. withdrawn: polled ten times a second; True ends the job. Raises JobRefusedError,
    JobLimitError, ModelFailedError, WithdrawnError.
    """
    process = _started(folder, settings)
    try:
        said = _followed(process, folder, settings.limits, on_stage, withdrawn)
        code = process.wait(timeout=POLL_S * 50)
    except subprocess.TimeoutExpired:
        raise ModelFailedError(_FAILED) from None
    finally:
        _end(process)
    if said.get("done") is True and code == 0:
        return _checked_result(folder, settings.limits)
    raise _failure(said, code, folder, settings.limits)


def _started(folder: Path, settings: CompileSettings) -> subprocess.Popen[bytes]:
    limits = settings.limits
    confinement = sandbox.Confinement(limits.cpu_s, limits.memory_bytes, limits.disk_bytes, str(folder))
    command = [sys.executable, "-I", "-S", sandbox.__file__, confinement.to_json(), *settings.worker]
    environment = {
        "PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONDONTWRITEBYTECODE": "1", "DISC_CACHE": "0",
    }  # fmt: skip
    with open(folder / "log", "wb") as errors:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )


def _followed(
    process: subprocess.Popen[bytes],
    folder: Path,
    limits: CompileLimits,
    on_stage: Callable[[str, int], None],
    withdrawn: Callable[[], bool],
) -> Mapping[str, object]:
    """Reads what the worker says until it is silent for good; its last words."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    end = time.monotonic() + limits.wall_s
    pending, total = b"", 0
    last: Mapping[str, object] = {}
    while True:
        if withdrawn():
            raise WithdrawnError("the job was cancelled")
        if time.monotonic() > end:
            raise JobLimitError(f"the job took more than {limits.wall_s:g} s")
        if _used(folder) > limits.disk_bytes:
            raise _too_large("disk", limits)
        if not select.select([descriptor], [], [], POLL_S)[0]:
            if process.poll() is not None:
                return last  # it is gone, and what it started holds the pipe open
            continue
        piece = os.read(descriptor, 1 << 16)
        total += len(piece)
        if not piece:
            return last
        if total > MAX_OUTPUT:
            log("job_fault", error="the worker says too much")
            raise ModelFailedError(_FAILED)
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            last = _fields(line)
            if isinstance(stage := last.get("stage"), str):
                percent = last.get("percent")
                on_stage(stage[:100], min(max(percent, 0), 100) if isinstance(percent, int) else 0)


def _fields(line: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _used(folder: Path) -> int:
    """Bytes on disk below the folder; what vanishes meanwhile does not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the process and whatever it started; its session is its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _checked_result(folder: Path, limits: CompileLimits) -> Path:
    """The artifact that the untrusted worker has written. Raises ModelFailedError."""
    path = folder / RESULT
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > limits.disk_bytes:
            raise ArtifactError("not a plain file")
        artifact.verify(path)
    except (OSError, ArtifactError) as error:
        log("job_fault", error=f"the worker left no artifact: {error}")
        raise ModelFailedError(_FAILED) from error
    return path


def _too_large(what: str, limits: CompileLimits) -> JobLimitError:
    allowed = {"memory": limits.memory_bytes, "disk": limits.disk_bytes}[what]
    return JobLimitError(f"the job needed more than {allowed >> 20} MiB of {what}")


def _failure(said: Mapping[str, object], code: int, folder: Path, limits: CompileLimits) -> ServingError:
    """The error for a job that failed. said: the end of its standard error."""
    error = said.get("error")
    if isinstance(error, dict):
        fields = cast("dict[str, object]", error)
        kind, message = str(fields.get("kind")), str(fields.get("message"))
        if kind == "limit":
            return _too_large("disk" if message == "disk" else "memory", limits)
        if message:
            return JobRefusedError(_for_client(message, folder)[:MAX_MESSAGE], kind[:100])
    tail = _log_tail(folder / "log")
    if code == -signal.SIGXCPU:
        return JobLimitError(f"the job took more than {limits.cpu_s} s of CPU time")
    if code == -signal.SIGXFSZ:
        return _too_large("disk", limits)
    if _NO_MEMORY.search(tail):
        return _too_large("memory", limits)
    log("job_fault", code=code, error=str(error), tail=tail[-2000:].decode(errors="replace"))
    if code == -signal.SIGKILL:
        return JobLimitError("the system killed the job, as it does when memory runs out")
    if code in (-signal.SIGSEGV, -signal.SIGBUS) and said.get("stage") == IMPORT:
        # Parsing is recursive, in C++: a program that is nested deeply enough ends it, in text and in bytecode.
        return JobRefusedError("the program cannot be read: it is malformed, or nested too deeply", "UnsupportedFormatError")
    if code < 0:
        return ModelFailedError(f"the compiler crashed on this program ({signal.Signals(-code).name})")
    return ModelFailedError(_FAILED)


def _for_client(message: str, folder: Path) -> str:
    """Without the places of this machine; those of the program's own source lines stay."""
    for place in (str(folder), str(Path(artifact.__file__).parents[2]), sys.prefix, sys.base_prefix):
        message = message.replace(f"{place}/", "")
    return message


def _log_tail(path: Path) -> bytes:
    """The end of a worker's standard error. The worker owns its folder, so the name may lead elsewhere by now."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - (64 << 10)))
            return file.read(64 << 10)
    except (OSError, ValueError) as error:
        return str(error).encode()
