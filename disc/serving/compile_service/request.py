"""Requests to the compile service: checked before anything is stored for it, then received piece by piece."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from collections.abc import Iterator
from pathlib import Path

from disc.artifact.cache import cache_key
from disc.config import DTYPES, VERSION
from disc.errors import DeadlineError, RequestError
from disc.serving.compile_service.settings import CompileLimits
from disc.serving.messages import Message
from disc.targets.select import target_names

SERVICE = "disc.v1.CompileService"
KIND = "disc-error-kind"  # trailing metadata of a call that fails
FORMATS = {1: "stablehlo", 2: "imported"}
MAX_THREADS = 1024
_DIGEST = 32  # bytes


def compiler_name() -> str:
    """What must be equal on both sides for programs of the format `imported`: disc, and the MLIR it is made of."""
    return f"disc {VERSION}, torch-mlir {_version('torch-mlir')}"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def check_job(job: Message, limits: CompileLimits) -> None:
    """Raises RequestError for a job that this service does not take."""
    if job.format not in FORMATS:
        raise RequestError(f"format {job.format}: the formats are STABLEHLO (1) and IMPORTED (2)")
    imported = FORMATS[job.format] == "imported"
    for name, blob in (("program", job.program), ("weights", job.weights)):
        if blob.size and len(blob.sha256) != _DIGEST:
            raise RequestError(f"{name}: sha256 has {len(blob.sha256)} bytes, not {_DIGEST}")
    if not job.program.size:
        raise RequestError("program: its size is 0")
    if not imported and job.weights.size:
        raise RequestError("weights: a program of StableHLO has its weights inside")
    if imported and not job.weights.size:
        raise RequestError("weights: an imported program needs a safetensors file, which may be empty of tensors")
    if job.program.size + job.weights.size > limits.upload_bytes:
        raise RequestError(
            f"the program and its weights have {job.program.size + job.weights.size} bytes; {limits.upload_bytes} are the limit"
        )
    if imported and job.compiler != compiler_name():
        raise RequestError(
            f"the program was made by {job.compiler[:200]!r}; this service has {compiler_name()!r}: use the same versions, or StableHLO"
        )
    if imported and job.embed_stablehlo:
        raise RequestError("embed_stablehlo: only a program of StableHLO can be embedded")
    if not job.targets or len(set(job.targets)) != len(job.targets) or any(each not in target_names() for each in job.targets):
        raise RequestError(f"targets: give one or more of {', '.join(target_names())}, each once")
    if (job.dtype or "f32") not in DTYPES:
        raise RequestError(f"dtype {job.dtype[:20]!r}: the types are {', '.join(DTYPES)}")
    if job.threads > MAX_THREADS:
        raise RequestError(f"threads: {MAX_THREADS} are the limit")


def job_key(job: Message) -> str:
    """The hash of all that decides the artifact, this compiler included: 64 hex digits."""
    return cache_key({"job": _fields(job), "program": job.program.sha256.hex(), "weights": job.weights.sha256.hex()}, [])


def _fields(job: Message) -> str:
    """What `compile_job.Request` reads."""
    return json.dumps({
        "format": FORMATS[job.format], "targets": sorted(job.targets, key=target_names().index), "dtype": job.dtype or "f32",
        "threads": job.threads or None, "single": bool(job.single), "embed_stablehlo": bool(job.embed_stablehlo),
    }, sort_keys=True)  # fmt: skip


def receive(requests: Iterator[Message], job: Message, folder: Path, limits: CompileLimits) -> None:
    """Writes the files of a job: the contents of `requests`, checked against the declared sizes and hashes. Raises RequestError,
    DeadlineError."""
    rest = b""
    start, arrived = time.monotonic(), 0
    for name, blob in (("program", job.program), ("weights", job.weights)):
        hashed, missing = hashlib.sha256(), blob.size
        with open(folder / name, "xb") as file:
            while missing:
                piece = rest or _next_piece(requests, name, missing)
                part, rest = piece[:missing], piece[missing:]
                arrived += len(part)
                if time.monotonic() - start > limits.arrival_s + arrived / limits.upload_rate:
                    raise DeadlineError(f"the upload is slower than {limits.upload_rate} bytes per second")
                file.write(part)
                hashed.update(part)
                missing -= len(part)
        if blob.size and hashed.digest() != blob.sha256:
            raise RequestError(f"{name}: the bytes received have another SHA-256 than declared")
    if rest:
        raise RequestError("more bytes received than declared")
    (folder / "job.json").write_text(_fields(job))


def _next_piece(requests: Iterator[Message], name: str, missing: int) -> bytes:
    request = next(requests, None)
    if request is None:
        raise RequestError(f"{name}: {missing} bytes did not arrive")
    if request.WhichOneof("part") != "piece" or not request.piece.data:
        raise RequestError(f"{name}: expected a piece of it")
    return request.piece.data
