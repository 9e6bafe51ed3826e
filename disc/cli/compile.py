"""`disc compile`."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disc.artifact import file as artifact
from disc.artifact.manifest import arguments_of, results_of
from disc.artifact.output import check_output
from disc.cli.factory import from_factory, from_folder, needed_task
from disc.cli.output import AsJson, Debug, Threads, byte_size, print_json, progress, type_text
from disc.config import DTYPES as OPTION_DTYPES
from disc.config import Options, dtype_name
from disc.errors import ConfigurationError, InputTypeError, ShapeConstraintError, UnsupportedFormatError, counted, how_to_install

if TYPE_CHECKING:
    import torch

    from disc.api import Model

MODEL_HELP = (
    "A .pt2, .onnx, .mlir or .mlirbc file, or package.module:factory, a function that returns (module, example_inputs[, dynamic_shapes]); "
    "or hf:FOLDER of a Hugging Face model."
)
PT2_NOTE = (
    "note: PyTorch may run code that a .pt2 file brings along; for files of unknown origin use ONNX or StableHLO (.onnx, .mlir, .mlirbc)"
)
DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
AMP = tuple(name for name in OPTION_DTYPES if name != "f32")


def compile_command(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, metavar="MODEL")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The artifact to write; default: the model's name with .disc.")
    ] = None,
    dynamic: Annotated[list[str] | None, typer.Option(help="NAME=0,1: only these dims of this input of a factory are dynamic.")] = None,
    static: Annotated[list[str] | None, typer.Option(help="NAME=1 or NAME: these dims, or all, are fixed to the example's sizes.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="native (the default), x86-64-v3, x86-64-v4, or a GPU such as sm_90; several by commas.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Convert a factory's module and inputs first: f32, f64, f16 or bf16.")] = None,
    amp: Annotated[str | None, typer.Option(help="Compute f32 matrix products in this type: bf16, f16 or int8.")] = None,
    tf32: Annotated[bool, typer.Option("--tf32", help="On GPUs, round the operands of f32 products to tf32: faster.")] = False,
    threads: Threads = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do not use the compile cache.")] = False,
    embed_stablehlo: Annotated[
        bool, typer.Option("--embed-stablehlo", help="Store the program in the artifact as well, for a .mlir or .mlirbc file.")
    ] = False,
    packed: Annotated[
        bool, typer.Option("--packed", help="For a server that joins requests of different lengths without padding, where that is proved.")
    ] = False,
    task: Annotated[str | None, typer.Option(help="Of hf:FOLDER: feature-extraction, text-classification, fill-mask and so on.")] = None,
    remote: Annotated[str | None, typer.Option(help="HOST:PORT of a `disc compile-server` that compiles it.")] = None,
    remote_ca: Annotated[Path | None, typer.Option(help="Authority (PEM) that signed the server's certificate; none: no TLS.")] = None,
    remote_token: Annotated[Path | None, typer.Option(help="File with the bearer token that the server requires.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for every step on standard error.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compile a model into one artifact for every shape of its inputs."""
    path = output or Path(Path(os.path.abspath(model.rpartition(":")[2] or model)).stem + ".disc")
    check_output(path)
    folder = model.removeprefix("hf:") if model.startswith("hf:") else None
    if folder is not None:
        task = needed_task(model, task)
    elif task is not None:
        raise UnsupportedFormatError(f"--task is for hf:FOLDER, a folder of Hugging Face; {model} is none")
    is_file = ":" not in model or os.path.exists(model)
    if (is_file or folder is not None) and (dynamic or static or dtype):
        raise UnsupportedFormatError(
            "--dynamic, --static and --dtype are for package.module:factory; a file has its dims and types already"
        )
    if amp and dtype_name(amp) not in AMP:
        raise InputTypeError(f"--amp {amp}: the types are {', '.join(AMP)}")
    if embed_stablehlo and not (is_file and model.endswith((".mlir", ".mlirbc"))):
        raise UnsupportedFormatError("--embed-stablehlo is for models that come as StableHLO (.mlir, .mlirbc)")
    if model.endswith(".pt2"):
        print(PT2_NOTE, file=sys.stderr)
    targets = [name for names in target or ["native"] for name in names.split(",")]
    start = time.perf_counter()
    with progress(f"compiling {model}", verbose) as on_step:
        import disc

        compile_model = disc.compile  # a DiscError says what to install where the compiler is not
        from disc.api import FIXED_SIZES

        source = model
        if folder is not None and task is not None:
            from disc.frontend.exported import export_module

            module, examples = from_folder(folder, task)
            on_step("export", 0.0)
            source = export_module(module, (), None, examples)
        elif not is_file:
            from disc.frontend.exported import export_module

            module, inputs, shapes = from_factory(model)
            module, inputs = _converted(module, inputs, dtype)
            shapes = _dynamic_shapes(module, inputs, dynamic or [], static or []) if dynamic or static else shapes
            on_step("export", 0.0)
            source = export_module(module, tuple(inputs), shapes)
        options = Options(
            threads=threads, dtype=amp or "f32", cache=not no_cache, embed_stablehlo=embed_stablehlo, packed=packed, tf32=tf32
        )
        if remote is not None:
            cached = _compile_remote(source, path, remote, remote_ca, remote_token, targets, options)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="not packed: ")  # printed below, for a remote compile too
                if not is_file:  # only what the factory or the options fixed is fixed
                    warnings.filterwarnings("ignore", message=re.escape(FIXED_SIZES))
                executable = compile_model(source, target=targets, options=options, on_step=on_step)
            executable.save(path)
            cached = executable.stats()["compiles"] == 0
    seconds = time.perf_counter() - start
    manifest = artifact.read_manifest(path)
    size = path.stat().st_size
    if "packed_refusal" in manifest:
        print(f"not packed: {manifest['packed_refusal']}", file=sys.stderr)
    if as_json:
        print_json({
            "output": str(path), "bytes": size, "seconds": seconds, "cached": cached, "kernels": len(manifest["kernels"]),
            "isas": manifest.get("code", []), "inputs": arguments_of(manifest), "outputs": results_of(manifest),
        })  # fmt: skip
        return
    how = "from the cache" if cached else counted(len(manifest["kernels"]), "kernel")
    print(f"{path}: {byte_size(size)}, {', '.join(manifest.get('code', []))}, {how}, {seconds:.1f} s")
    for record in arguments_of(manifest):
        print(f"input {record['name']}: {type_text(record['dtype'], record['dims'])}")


def _compile_remote(
    source: Model, path: Path, address: str, ca: Path | None, token: Path | None, targets: list[str], options: Options
) -> bool:
    """True if the server had the artifact already. Raises ConfigurationError when gRPC is not installed or a file cannot be read."""
    try:
        from disc.serving.compile_service.client import Service, compile_remote
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--remote needs {error.name}; install it with: {how_to_install('remote')}") from error
    try:
        service = Service(address, ca=ca, token=token.read_text().strip() if token is not None else None)
        return compile_remote(source, service, path, target=targets, options=options)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{error.filename}: there is no such file") from error


def _converted(module: torch.nn.Module, inputs: Sequence[object], dtype: str | None) -> tuple[torch.nn.Module, Sequence[object]]:
    if dtype is None:
        return module, inputs
    name = dtype_name(dtype)
    if name not in DTYPES:
        raise InputTypeError(f"--dtype {dtype}: the types are {', '.join(DTYPES)}")
    import torch

    wanted = getattr(torch, DTYPES[name])
    converted = [each.to(wanted) if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in inputs]
    return module.to(wanted), tuple(converted)


def _dynamic_shapes(
    module: torch.nn.Module, inputs: Sequence[object], dynamic: Sequence[str], static: Sequence[str]
) -> Mapping[str, object]:
    """`dynamic_shapes` for torch.export: every dim is dynamic but those that the options say are not."""
    import torch
    from torch.export import Dim

    arguments = inspect.signature(module.forward).bind(*inputs).arguments
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            raise ShapeConstraintError(
                f"--dynamic and --static need tensor inputs; '{name}' is a {type(value).__name__}: let the factory return dynamic_shapes"
            )
    ranks = {name: value.dim() for name, value in arguments.items()}
    chosen = {name: set(range(rank)) for name, rank in ranks.items()}
    for name, dims in _dims_by_name("--dynamic", dynamic, ranks).items():
        chosen[name] = set(dims)
    for name, dims in _dims_by_name("--static", static, ranks).items():
        chosen[name] -= set(dims)
    return {name: {dim: Dim.AUTO if dim in chosen[name] else Dim.STATIC for dim in range(rank)} for name, rank in ranks.items()}


def _dims_by_name(option: str, texts: Sequence[str], ranks: Mapping[str, int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for text in texts:
        name, equals, dims = text.partition("=")
        if name not in ranks:
            raise ShapeConstraintError(f"{option} {text}: the model has no input '{name}'; its inputs are {', '.join(map(repr, ranks))}")
        numbers = dims.split(",") if equals else [str(dim) for dim in range(ranks[name])]
        if not all(number.isdecimal() and int(number) < ranks[name] for number in numbers):
            raise ShapeConstraintError(f"{option} {text}: dims of '{name}' are numbers from 0 to {ranks[name] - 1}, such as {name}=0")
        found[name] = [int(number) for number in numbers]
    return found
