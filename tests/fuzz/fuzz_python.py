"""Fuzzes the Python readers of what nobody may trust, with atheris: `python fuzz_python.py TARGET [libFuzzer's options] [CORPUS...]`.

artifact: the section table, hashes made right, then the manifest. manifest: JSON against its types. request: messages of the compile service.
archive: zip archives as .pt2 files. Whatever is read must end in an error of ours or in none.
"""

from __future__ import annotations

import hashlib
import inspect
import json.decoder
import os
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import atheris

from disc.artifact import file as artifact
from disc.artifact import records as artifact_records
from disc.errors import ArtifactError, ServingError, UnsupportedFormatError
from disc.frontend import archive
from disc.serving.compile_service import request as compile_request
from disc.serving.compile_service.settings import CompileLimits
from disc.serving.grpc import handlers as grpc_handlers
from disc.serving.messages import message

REQUEST = message("disc.v1.CompileRequest")
FOLDER = Path(tempfile.mkdtemp(prefix="disc-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
LIMITS = CompileLimits(upload_bytes=1 << 16)


def resealed(content: bytes) -> bytes:
    """With right hashes of all sections that lie in the file."""
    file = bytearray(content)
    if len(file) < 32:
        return content
    struct.pack_into("<Q", file, 16, len(file))
    count = struct.unpack_from("<I", file, 12)[0]
    end = 32 + 112 * count
    if count > 64 or end + 32 > len(file):
        return bytes(file)
    for entry in range(32, end, 112):
        offset, size = struct.unpack_from("<QQ", file, entry + 64)
        if offset + size <= len(file):
            part = bytes(file[offset : offset + size])
            weights = bytes(file[entry : entry + 64]).rstrip(b"\0") == b"weights"
            digest = hashlib.sha256(hashlib.sha256(part).digest() if weights and part else part).digest()
            file[entry + 80 : entry + 112] = hashlib.sha256(b"").digest() if weights and not part else digest
    file[end : end + 32] = hashlib.sha256(file[:end]).digest()
    return bytes(file)


def fuzz_artifact(data: bytes) -> None:
    path = FOLDER / "a.disc"
    path.write_bytes(resealed(data[1:]) if data[:1] and data[0] & 1 else data[1:])
    try:
        artifact.verify(path)
        artifact.read_manifest(path)
    except ArtifactError:
        return


def fuzz_manifest(data: bytes) -> None:
    try:
        read = artifact.parse_manifest({"manifest": data})
    except ArtifactError:
        return
    assert read["code"] == [], "code without a signature was accepted"


def fuzz_request(data: bytes) -> None:
    """Messages, each after its length in two bytes."""
    messages: list[bytes] = []
    while len(data) >= 2:
        size = int.from_bytes(data[:2], "little")
        messages.append(data[2 : 2 + size])
        data = data[2 + size :]
    for name in ("program", "weights", "job.json"):
        (FOLDER / name).unlink(missing_ok=True)
    try:
        requests = (grpc_handlers.parsed(REQUEST, each) for each in messages)
        first = next(requests, None)
        if first is None or first.WhichOneof("part") != "job":
            return
        compile_request.check_job(first.job, LIMITS)
        compile_request.job_key(first.job)
        compile_request.receive(requests, first.job, FOLDER, LIMITS)
    except ServingError:
        return


def fuzz_archive(data: bytes) -> None:
    path = FOLDER / "a.pt2"
    path.write_bytes(data)
    try:
        archive.check_archive(path)
    except UnsupportedFormatError:
        return


TARGETS = {"artifact": fuzz_artifact, "manifest": fuzz_manifest, "request": fuzz_request, "archive": fuzz_archive}


def instrument() -> None:
    """Function by function: atheris' hook on imports does not see what an editable install's own hook finds."""
    for module in (artifact, artifact_records, archive, compile_request, grpc_handlers, zipfile, json.decoder):
        for value in list(vars(module).values()):
            members = vars(value).values() if inspect.isclass(value) else (value,)
            for each in members:
                if inspect.isfunction(each) and each.__module__ == module.__name__:
                    atheris.instrument_func(each)


if __name__ == "__main__":
    instrument()
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()
