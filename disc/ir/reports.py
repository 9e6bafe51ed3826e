"""What a failure of ours leaves behind: one zip file that is enough to see it again on another machine."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import traceback
import zipfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from disc.config import VERSION, read_environment
from disc.errors import UnsupportedFormatError
from disc.targets.x86 import cpu_flags

PACKAGES = ("torch", "torch-mlir", "numpy", "transformers", "onnx", "jax", "triton")
MODULE, RECORD, TRACEBACK = "module.mlir", "report.json", "traceback.txt"
LARGEST = 1 << 28  # bytes of a member that are read


@dataclass(frozen=True)
class Report:
    """where: "pass simplify". arguments: of `disc debug opt`, which fails again on the module. error: what was raised, or its text."""

    where: str
    arguments: str
    module: str
    error: Exception | str


def write_report(hint: str, report: Report) -> Path:
    """The path of a new zip file among the temporary ones."""
    handle, path = tempfile.mkstemp(prefix=f"disc-{hint}-", suffix=".zip")
    trace = "".join(traceback.format_exception(report.error)) if isinstance(report.error, Exception) else report.error
    record = {
        "where": report.where,
        "arguments": report.arguments,
        "error": f"{type(report.error).__name__}: {report.error}",
        "versions": {"disc": VERSION, "python": platform.python_version(), **_installed()},
        "machine": {"processor": platform.machine(), "system": platform.platform(), "cores": os.cpu_count(), "flags": sorted(cpu_flags())},
        "environment": {name: str(value) for name, value in asdict(read_environment()).items()},
    }
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(MODULE, report.module)
        bundle.writestr(RECORD, json.dumps(record, indent=2))
        bundle.writestr(TRACEBACK, trace)
    return Path(path)


def read_report(path: Path) -> Report:
    """Raises UnsupportedFormatError for a file that is none."""
    try:
        with zipfile.ZipFile(path) as bundle:
            if any(bundle.getinfo(name).file_size > LARGEST for name in (MODULE, RECORD)):
                raise ValueError(f"a member has more than {LARGEST >> 20} MiB")
            record = json.loads(bundle.read(RECORD))
            texts = [record[name] for name in ("where", "arguments", "error")]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{RECORD} has no texts")
            return Report(texts[0], texts[1], bundle.read(MODULE).decode(), texts[2])
    except FileNotFoundError:
        raise UnsupportedFormatError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UnsupportedFormatError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        reason = error.args[0] if isinstance(error, KeyError) else error  # whose own text has quotes around it
        raise UnsupportedFormatError(f"{path} is no report of disc: {reason}") from error


def _installed() -> dict[str, str]:
    """Versions of those packages that are there."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
