"""`disc ray`: serves, compiles and tunes on the machines of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Annotated

import typer

from disc.cli.help import Command, Group, examples
from disc.cli.output import AsJson, Debug, print_json, print_table
from disc.config import DTYPES, read_environment
from disc.errors import ConfigurationError, DiscError, InputTypeError, how_to_install
from disc.targets.select import named_targets

Address = Annotated[str, typer.Option(help='The cluster: HOST:PORT of its head, or "auto" on one of its machines.')]
WorkingDir = Annotated[Path | None, typer.Option("--working-dir", help="A folder of Python files that the machines get, for factories.")]

ray_app = typer.Typer(cls=Group, name="ray", no_args_is_help=True, help="Serve, compile and tune on the machines of a Ray cluster.")


@ray_app.command("serve", cls=Command, epilog=examples("ray serve"))
def serve_command(
    path: Annotated[Path, typer.Argument(help="A .disc file or a folder of NAME/VERSION/model.disc, at this path on every machine.")],
    address: Address = "auto",
    config: Annotated[Path | None, typer.Option(help="Settings (TOML), as for disc serve.")] = None,
    name: Annotated[str, typer.Option(help="Of the application; deploying it again replaces its replicas one after another.")] = "disc",
    replicas: Annotated[int, typer.Option(min=1, help="How many, where they are not scaled.")] = 1,
    scale: Annotated[str | None, typer.Option(help="LEAST:MOST replicas, scaled by the load.")] = None,
    cpus: Annotated[float, typer.Option(min=0.1, help="CPUs of a replica.")] = 1.0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="gRPC port of the proxies, on every interface.")] = 9000,
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="HTTP port of the proxies.")] = 8000,
    host: Annotated[str, typer.Option(help="Where the HTTP proxies listen.")] = "127.0.0.1",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Deploy models with Ray Serve, or update them; they are served until the cluster or `serve.shutdown` ends it."""
    from disc.serving.settings import ServerSettings, read_settings

    settings = read_settings(config) if config is not None else ServerSettings()
    try:
        import ray

        from disc.serving.ray.deployment import deploy, start
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"disc ray serve needs {error.name}; install it with: {how_to_install('ray')}") from error
    try:
        ray.init(address, log_to_driver=False)
    except ConnectionError as error:
        raise ConfigurationError(f"there is no Ray cluster at {address}: {error}") from error
    start(grpc_port=port, http_port=http_port, host=host)
    deploy(path, settings, name=name, route=f"/{name}", replicas=replicas, autoscaling=_scale(scale), cpus=cpus)
    if as_json:
        print_json({"name": name, "port": port, "http_port": http_port, "route": f"/{name}"})
    else:
        print(f"{name} is served on port {port} (gRPC) and http://{host}:{http_port}/{name} (REST)")


def _scale(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    least, colon, most = text.partition(":")
    if not colon or not least.isdecimal() or not most.isdecimal() or not 0 <= int(least) <= int(most) or int(most) == 0:
        raise ConfigurationError(f"--scale {text}: give the least and the most replicas, such as 1:8")
    return {"min_replicas": int(least), "max_replicas": int(most)}


@ray_app.command("compile", cls=Command, epilog=examples("ray compile"))
def compile_command(
    models: Annotated[list[str], typer.Argument(help="Files (.pt2, .onnx, .mlir, .mlirbc) or package.module:factory.", metavar="MODEL...")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the artifacts.")],
    address: Address = "auto",
    working_dir: WorkingDir = None,
    target: Annotated[list[str] | None, typer.Option(help="As for disc compile; native (the default) means this machine.")] = None,
    amp: Annotated[str | None, typer.Option(help="As for disc compile: bf16, f16 or int8.")] = None,
    cpus: Annotated[float, typer.Option(min=0.1, help="CPUs of one compile.")] = 1.0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compile many models, spread over the machines; fails when one of them does, after the others are written."""
    from disc.serving.ray.cluster import Machines, compile_many

    if amp is not None and amp not in DTYPES[1:]:
        raise InputTypeError(f"--amp {amp}: the types are {', '.join(DTYPES[1:])}")
    options = [f"--target={name}" for name in named_targets(target or "native", mixed=amp is not None)]
    options += [f"--amp={amp}"] if amp is not None else []
    rows: list[dict[str, object]] = []
    for path, result in compile_many(Machines(address, working_dir), models, output, options, cpus):
        rows.append({"output": str(path), "seconds": round(result.seconds, 1), "machine": result.node[:8], "error": result.error})
    failed = sum(row["error"] is not None for row in rows)
    if as_json:
        print_json(rows)
        raise typer.Exit(1 if failed else 0)
    print_table(("artifact", "s", "machine", ""), [(row["output"], row["seconds"], row["machine"], row["error"] or "") for row in rows])
    if failed:
        raise DiscError(f"{failed} of {len(rows)} models could not be compiled")


@ray_app.command("tune", cls=Command, epilog=examples("ray tune"))
def tune_command(
    address: Address = "auto",
    threads: Annotated[list[int] | None, typer.Option("--threads", min=1, help="As for disc tune.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure the GEMM schedules on idle machines: each kind of machine gets a tree of its own, on all machines of that kind."""
    from disc.serving.ray.cluster import Machines, slug, tune_cluster
    from disc.speculation.tree import tree_path

    store = read_environment().cache_dir / "tune"
    fitted = tune_cluster(Machines(address), store, threads)
    if as_json:
        print_json({kind: {"tree": str(tree_path(store / slug(kind))), "held_out": vars(each.held_out)} for kind, each in fitted.items()})
        return
    for kind, each in fitted.items():
        print(f"{kind}\n{indent(each.describe(), '  ')}\n  {tree_path(store / slug(kind))}")
