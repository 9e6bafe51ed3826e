"""The commands about this machine: doctor, and the compile cache."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import tempfile
import textwrap
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from disc.artifact import file as artifact
from disc.artifact.cache import Cache, check_folder, open_cache, open_kernels, open_traces
from disc.artifact.manifest import arguments_of
from disc.cli.help import Command, Group, examples
from disc.cli.output import AsJson, Debug, byte_size, print_json, print_table, type_text
from disc.config import VERSION, read_environment
from disc.errors import ArtifactError, TargetError, counted, how_to_install
from disc.ral import _ral
from disc.targets import cuda
from disc.targets.x86 import LEVELS, cpu_flags, further_flags, missing_flags

cache_app = typer.Typer(cls=Group, no_args_is_help=True, help="The compile cache.")
INPUTS_WIDTH = 72  # characters of a table's cell: programs of torch.compile may have hundreds of inputs

# What the extras that users may want are recognized by: a module of each distribution.
EXTRAS = {
    "serve": ("aiohttp", "grpc", "prometheus_client", "google.protobuf", "pydantic"), "onnx": ("onnx",),
    "peers": ("onnx", "onnxruntime", "openvino", "matplotlib"), "hf": ("transformers",),
    "sentences": ("sentence_transformers", "transformers"), "text": ("tokenizers",), "cuda": ("triton",), "sign": ("cryptography",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"), "remote": ("grpc", "google.protobuf", "safetensors"),
    "ray": ("aiohttp", "grpc", "prometheus_client", "google.protobuf", "pydantic", "ray"), "tune": ("sklearn",),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that doctor looked at; `problem` says what to do, "" when all is well."""

    name: str
    value: str
    problem: str = ""


def doctor_command(as_json: AsJson = False, debug: Debug = False) -> None:
    """Check that this machine can compile and run. Exits with 1 when something is missing."""
    findings = [*_cpu(), *_gpus(), *_packages(), _extras(), _linker(), _cache_folder(), _threads()]
    healthy = not any(finding.problem for finding in findings)
    if as_json:
        print_json({"ok": healthy, "findings": [asdict(finding) for finding in findings]})
    else:
        rows = [(finding.name, finding.value, finding.problem or "ok") for finding in findings]
        print_table(("what", "found", "verdict"), rows, left=3)
    if not healthy:
        raise typer.Exit(1)


def _cpu() -> list[Finding]:
    flags = cpu_flags()
    found = [Finding("machine", f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}")]
    levels: list[str] = []
    missing: list[str] = []
    for level in LEVELS:
        missing = missing_flags(level, flags)
        if missing:
            break
        levels.append(level)
    problem = "" if levels else f"this CPU lacks {', '.join(missing)}: disc needs x86-64-v3 at least"
    lacking = f" (the next level lacks {', '.join(missing)})" if levels and missing else ""
    found.append(Finding("ISA levels", (", ".join(levels) or "none") + lacking, problem))
    return [*found, Finding("further features", ", ".join(further_flags(flags)) or "none")]


def _gpus() -> list[Finding]:
    """The driver and each GPU with the targets whose code runs there. Nothing is amiss without any."""
    try:
        found = _ral.find_gpus()
    except TargetError as error:
        return [Finding("GPUs", f"none: {error}")]
    version = f"CUDA {found['driver'] // 1000}.{found['driver'] % 1000 // 10}"
    rows = [Finding("NVIDIA driver", version)]
    for number, (name, architecture, processors, memory) in enumerate(found["gpus"]):
        code = [target for target in cuda.NAMES if _runs_on(number, target)]
        what = f"{name}, sm_{architecture}, {processors} SMs, {byte_size(memory)}; runs code for {', '.join(code) or 'no target'}"
        rows.append(Finding(f"cuda:{number}", what))
    return rows


def _runs_on(gpu: int, target: str) -> bool:
    try:
        return bool(_ral.choose_code([cuda.read_target(target).name], f"cuda@{gpu}"))
    except TargetError:
        return False


def _packages() -> list[Finding]:
    found = [Finding("disc", f"{VERSION} ({Path(__file__).parents[1]})")]
    for name in ("numpy", "torch", "torch-mlir"):
        try:
            found.append(Finding(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            problem = f"compiling needs it (running does not): {how_to_install('compile')}"
            found.append(Finding(name, "not installed", problem))
    return found


def _extras() -> Finding:
    there = [name for name, modules in EXTRAS.items() if all(map(_is_there, modules))]
    others = [name for name in EXTRAS if name not in there]
    return Finding("extras", (", ".join(there) or "none") + (f"; not installed: {', '.join(others)}" if others else ""))


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def _linker() -> Finding:
    path = shutil.which("ld") or shutil.which("cc") or shutil.which("gcc")
    return Finding("linker", path or "none", "" if path else "compiling needs ld or cc on PATH: install binutils or gcc")


def _cache_folder() -> Finding:
    environment = read_environment()
    entries = open_cache(environment).entries()
    value = f"{environment.cache_dir}: {counted(len(entries), 'entry', 'entries')}, {byte_size(sum(entry.size for entry in entries))}"
    value += f" of {byte_size(environment.cache_size)}" if environment.cache else ", off (DISC_CACHE=0)"
    nearest = environment.cache_dir
    while not nearest.exists():
        nearest = nearest.parent
    value += f"; {byte_size(shutil.disk_usage(nearest).free)} free on its disk"
    return Finding("cache", value, _cache_problem(environment.cache_dir, nearest) if environment.cache else "")


def _cache_problem(folder: Path, nearest: Path) -> str:
    """Why no program can be kept in the folder, of whose path `nearest` is what there is; "" where one can."""
    try:
        if nearest == folder:
            check_folder(folder)
        with tempfile.TemporaryFile(dir=nearest):
            return ""
    except ArtifactError as error:
        return str(error)
    except OSError as error:
        return f"{nearest} cannot be written ({error.strerror}): set DISC_CACHE_DIR"


def _threads() -> Finding:
    cores = _ral.find_cores("")
    chosen = read_environment().threads
    source = " (DISC_THREADS or OMP_NUM_THREADS)" if chosen else ""
    quota = f"CPU quota {cores['quota']:g}" if cores["quota"] else "no CPU quota"
    found = f"{chosen or cores['threads']} per call{source}; {cores['allowed']} of {cores['online']} CPUs allowed, {quota}"
    return Finding("threads", found)


@cache_app.command("ls", cls=Command, epilog=examples("cache ls"))
def cache_ls_command(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the entries, the least recently used first."""
    cache = _cache()
    entries = cache.entries()
    if as_json:
        listed = [{"key": each.key, "bytes": each.size, "used": each.used, "inputs": _inputs(each.path)} for each in entries]
        print_json({"folder": str(cache.folder), "limit": cache.limit, "entries": listed})
        return
    rows = []
    for each in entries:
        inputs = textwrap.shorten(_inputs(each.path), INPUTS_WIDTH, placeholder=" ...")
        rows.append((each.key[:16], inputs, byte_size(each.size), time.strftime("%F %T", time.localtime(each.used))))
    print_table(("key", "inputs", "size", "last used"), rows, left=2)
    held = byte_size(sum(each.size for each in entries))
    print(f"{cache.folder}: {counted(len(entries), 'entry', 'entries')}, {held} of {byte_size(cache.limit)}")


def _inputs(path: Path) -> str:
    try:
        records = arguments_of(artifact.read_manifest(path))
    except ArtifactError:
        return "damaged"
    return ", ".join(f"{record['name']}: {type_text(record['dtype'], record['dims'])}" for record in records)


@cache_app.command("verify", cls=Command, epilog=examples("cache verify"))
def cache_verify_command(as_json: AsJson = False, debug: Debug = False) -> None:
    """Check every byte of every entry; damaged ones are removed. Exits with 1 when there were any."""
    entries = _cache().entries()
    damaged: dict[str, str] = {}
    for entry in entries:
        try:
            artifact.verify(entry.path)
        except ArtifactError as error:
            damaged[entry.key] = str(error)
            entry.path.unlink(missing_ok=True)
    if as_json:
        print_json({"entries": len(entries), "damaged": damaged})
    else:
        whole = len(entries) - len(damaged)
        print("\n".join([*(f"removed {message}" for message in damaged.values()), f"whole: {counted(whole, 'entry', 'entries')}"]))
    if damaged:
        raise typer.Exit(1)


@cache_app.command("clear", cls=Command, epilog=examples("cache clear"))
def cache_clear_command(as_json: AsJson = False, debug: Debug = False) -> None:
    """Remove every entry, kernels of GPUs that programs share and traces of torch.compile among them."""
    cache, environment = _cache(), read_environment()
    removed = cache.clear() + open_kernels(environment).clear() + open_traces(environment).clear()
    if as_json:
        print_json({"folder": str(cache.folder), "removed": removed})
        return
    print(f"{cache.folder}: removed {counted(removed, 'entry', 'entries')}")


def _cache() -> Cache:
    return open_cache(read_environment())
