"""The commands that read an artifact: run, explain, inspect, verify, sign."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from disc.artifact import file as artifact
from disc.artifact.manifest import Manifest, arguments_of, results_of
from disc.artifact.output import check_output, check_place, whole_file, writing
from disc.artifact.signing import check_signature, sign
from disc.cli.inputs import RANDOM_HELP, SWEEP_HELP, Array, inputs_of, swept
from disc.cli.output import AsJson, Debug, Ops, Threads, byte_size, duration, print_json, print_table, spinner, type_text
from disc.config import MAX_GRAPHS
from disc.errors import ConfigurationError, TargetError, UnsupportedFormatError, counted, printable
from disc.explain.export import model_explorer_json
from disc.explain.report import check_text, decision_texts
from disc.explain.symbols import symbol_text
from disc.explain.timeline import timeline
from disc.ral.block_files import read_described
from disc.ral.custom_functions import register_ops
from disc.ral.executable import Executable, describe, load
from disc.ral.gpu_programs import device_code
from disc.ral.skeletal import skeleton_lines
from disc.ral.structured import structure_lines

Artifact = Annotated[Path, typer.Argument(help="A .disc file.", metavar="MODEL.disc")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", help="[NAME=]FILE.npy; repeat for each input. Of a model over structures: one FILE.json.")
]
Random = Annotated[list[str] | None, typer.Option("--random", help=RANDOM_HELP)]
Graphs = Annotated[
    int,
    typer.Option(
        min=0, max=MAX_GRAPHS, help="How many calls a GPU keeps as CUDA graphs: from the third with the same sizes on, one launch each."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, or cuda:N for one of several GPUs; by default what the file has code for.")]


def run_command(
    path: Artifact,
    inputs: Inputs = None,
    random: Random = None,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", help="FILE.npy for each result in order, or one FILE.npz for all.")
    ] = None,
    threads: Threads = None,
    device: Device = None,
    ops: Ops = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run an artifact on given or random inputs."""
    register_ops(ops or ())
    executable = load(path, threads=threads, isa=device_code(device))
    arrays = inputs_of(executable.manifest, inputs or [], random or [])
    targets = _output_files(outputs or [], len(results_of(executable.manifest)))
    start = time.perf_counter()
    results = _results(executable, arrays)
    seconds = time.perf_counter() - start
    names = [record["name"] for record in results_of(executable.manifest)]
    _write(targets, names, results)
    rows = [
        _summary(record["name"], record["dtype"], array) for record, array in zip(results_of(executable.manifest), results, strict=True)
    ]
    if as_json:
        print_json({"seconds": seconds, "outputs": rows, "files": targets})
        return
    print_table(("result", "type", "min", "mean", "max", "NaN/Inf"), [tuple(map(_cell, row.values())) for row in rows], left=2)
    print(f"first call: {duration(seconds)}" + (f"; wrote {', '.join(targets)}" if targets else ""))


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else value


def _results(executable: Executable, arrays: Sequence[Array]) -> list[Array]:
    return [np.asarray(each) for each in executable.flat(*arrays)]


def _output_files(outputs: Sequence[str], results: int) -> list[str]:
    """The files to write. Raises UnsupportedFormatError and OutputError before the model runs."""
    archive = len(outputs) == 1 and outputs[0].endswith(".npz")
    if not archive and len(outputs) > results:
        raise UnsupportedFormatError(f"{counted(len(outputs), 'output file')} for {counted(results, 'result')}")
    for path in outputs:
        if not archive and not path.endswith(".npy"):
            raise UnsupportedFormatError(f"--output {path}: give one .npy file per result, or one .npz file for all")
        check_output(path)
    return list(outputs)


def _write(targets: Sequence[str], names: Sequence[str], results: Sequence[Array]) -> None:
    if len(targets) == 1 and targets[0].endswith(".npz"):
        with whole_file(targets[0]) as file:
            np.savez(file, **dict(zip(names, results, strict=True)))  # pyright: ignore[reportArgumentType] - names are not its options
        return
    for path, array in zip(targets, results, strict=False):
        with whole_file(path) as file:
            np.save(file, array)


def _summary(name: str, dtype: str, array: Array) -> dict[str, object]:
    """Name, type, least, mean and greatest finite value, and how many are not finite."""
    values = (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else array
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    least, mean, greatest = (float(each) for each in (finite.min(), finite.mean(), finite.max())) if finite.size else (None, None, None)
    missing = int(numbers.size - finite.size)
    return {"name": name, "type": type_text(dtype, array.shape), "min": least, "mean": mean, "max": greatest, "not_finite": missing}


def explain_command(
    path: Artifact,
    inputs: Inputs = None,
    random: Random = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a timeline of threads and launches of one call, for Perfetto.")] = None,
    sweep: Annotated[str | None, typer.Option(help=SWEEP_HELP)] = None,
    target: Annotated[str | None, typer.Option(help="Explain the code for this target, such as sm_90, without running it.")] = None,
    threads: Threads = None,
    ops: Ops = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show every kernel: source lines, versions, guards; with inputs also times and the share of the machine's limit."""
    register_ops(ops or ())
    if target is not None and (inputs or random):
        raise ConfigurationError("--target explains code that is not run: leave out the inputs")
    if trace is not None and not inputs and not random:
        raise ConfigurationError("--trace is of one call: give --input NAME=FILE.npy for each input, or --random")
    if sweep is not None and not inputs and not random:
        raise ConfigurationError("--sweep measures calls: give --input NAME=FILE.npy for each input, or --random")
    for output in (html, trace):
        if output is not None:
            check_place(output)
    executable = load(path, threads=threads) if target is None else describe(path, _section(path, target))
    with spinner("measuring"):
        if inputs or random:
            arrays = inputs_of(executable.manifest, inputs or [], random or [])
            report = executable.explain(*arrays)
            if sweep is not None:
                symbol, sizes = swept(executable.manifest, sweep)
                report = dataclasses.replace(report, sweep=executable.sweep(symbol, sizes, *arrays))
            if trace is not None:
                with writing(trace):
                    trace.write_text(timeline(executable.trace(*arrays), executable.manifest), encoding="utf-8")
        else:
            report = executable.explain()
    if html is not None:
        with writing(html):
            html.write_text(report.to_html(), encoding="utf-8")
    if as_json:
        print(report.to_json())
    elif html is None and trace is None:
        print(report)
    else:
        print(f"wrote {' and '.join(str(each) for each in (html, trace) if each is not None)}")


def _section(path: Path, target: str) -> str:
    """The code section for a target, by its name or what users call it. Raises TargetError."""
    names = artifact.read_manifest(path).get("code", [])
    found = [name for name in names if target in (name, name.rpartition("+")[2])]
    if not found:
        raise TargetError(f"{path} has no code for {target}: it has {', '.join(names)}")
    return found[-1]


def inspect_command(
    path: Artifact,
    export: Annotated[Path | None, typer.Option(help="Write the graph of launches, nested by module, as JSON for Model Explorer.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show what an artifact is: inputs, outputs, sections, kernels, weights. Runs nothing of it."""
    sections = artifact.read_sections(path)
    manifest = read_described(path)
    if export is not None:
        check_place(export)
        with writing(export):
            export.write_text(model_explorer_json(manifest, path.name), encoding="utf-8")
        if as_json:
            print_json({"file": str(export)})
        else:
            print(f"wrote {export}")
        return
    if as_json:
        print_json({**manifest, "sections": [{"name": each.name, "offset": each.offset, "bytes": each.size} for each in sections]})
        return
    for line in _description(path, manifest, sections):
        print(printable(line))
    print_table(("section", "bytes", "offset"), [(each.name, each.size, each.offset) for each in sections])


def _description(path: Path, manifest: Manifest, sections: Sequence[artifact.Section]) -> Iterator[str]:
    yield f"{path}: {byte_size(path.stat().st_size)}, by {manifest['compiler']}, for {', '.join(manifest.get('code', []))}"
    for record in arguments_of(manifest):
        yield f"input  {record['name']}: {type_text(record['dtype'], record['dims'])}"
    for fixed in manifest.get("fixed", []):
        yield f"fixed  {fixed['name']} = {fixed['value']}"
    for record in results_of(manifest):
        yield f"output {record['name']}: {type_text(record['dtype'], record.get('dims', ['?'] * record['rank']))}"
    structures = manifest.get("structures")
    if structures is not None:
        yield from structure_lines(structures)
    state = manifest.get("state")
    if state is not None:
        yield from (f"state  {each['name']}: {type_text(each['dtype'], each['dims'])}" for each in state["buffers"])
        yield from (f"writes {manifest['inputs'][number]['name']}" for number in state["written"])
        if state["seeded"]:
            yield "random numbers, from a seed per call"
    for symbol in manifest["symbols"]:
        yield f"symbol {symbol_text(cast('Mapping[str, object]', symbol), manifest)}"
    batch = manifest.get("batch")
    if "skeleton" in manifest:
        yield from skeleton_lines(manifest["skeleton"])
    if structures is not None or "skeleton" in manifest:
        yield "batch  structures of several requests"
    else:
        yield f"batch  {batch['symbol']}" if batch is not None else f"batch  none: {manifest.get('batch_refusal', 'not looked for')}"
    packed = manifest.get("packed")
    if packed is not None:
        yield f"packed rows {packed['rows']} of {packed['length']} tokens, {', '.join(packed['outputs'])}"
    elif "packed_refusal" in manifest:
        yield f"packed no: {manifest['packed_refusal']}"
    for check in manifest["checks"]:
        yield f"check  {check_text(check['message'])}"
    for text in decision_texts(manifest):
        yield f"export {text}"
    kinds = Counter(str(record.get("kind", "kernel")) for record in manifest["kernels"])
    yield f"launches {len(manifest['kernels'])}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    yield f"weights {len(manifest.get('weights', []))}"
    yield f"options {', '.join(f'{name}: {_option(value)}' for name, value in manifest['options'].items())}"
    yield f"embedded StableHLO: {'section stablehlo' if any(each.name == 'stablehlo' for each in sections) else 'no'}"


def _option(value: object) -> str:
    if value is None:
        return "default"
    return " ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)


def verify_command(
    path: Artifact,
    key: Annotated[Path | None, typer.Option(help="The public key (PEM) whose owner must have signed it.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check every byte of an artifact against its hashes, and its signature."""
    if key is not None:
        check_signature(path, key)
    artifact.verify(path)
    if as_json:
        print_json({"path": str(path), "ok": True, "bytes": path.stat().st_size, "signed": key is not None})
        return
    print(
        f"{printable(str(path))}: {byte_size(path.stat().st_size)}, all checksums match"
        + (f", signed by the owner of {key}" if key is not None else "")
    )


def sign_command(
    path: Artifact,
    key: Annotated[Path, typer.Option(help="Your ed25519 private key (PEM), as `openssl genpkey -algorithm ed25519` makes it.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The signed artifact; default: over the file itself.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Sign an artifact, so that `disc verify --key` and `disc.load(path, key=...)` can verify who made it."""
    sign(path, key, output)
    if as_json:
        print_json({"path": str(output or path), "signed": True})
        return
    print(f"{output or path}: signed")
