"""`disc serve`: answers requests for models over gRPC and HTTP."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disc.artifact.file import hint
from disc.cli.output import AsJson, Debug, Ops, announcing, print_json
from disc.config import MAX_GRAPHS, silence_grpc
from disc.errors import ConfigurationError, how_to_install
from disc.ral.custom_functions import register_ops

if TYPE_CHECKING:
    from disc.serving.server import Server


def _print_schema(wanted: bool) -> None:
    if wanted:
        from disc.serving.settings import settings_schema  # of the extra `serve` it needs pydantic alone, which typer has brought

        print(json.dumps(settings_schema(), indent=2, ensure_ascii=False))
        raise typer.Exit


def serve_command(
    paths: Annotated[
        list[Path], typer.Argument(help=".disc files, or a folder of NAME.disc and NAME/VERSION/model.disc.", metavar="MODEL.disc|DIR")
    ],
    config: Annotated[Path | None, typer.Option(help="Settings (TOML); the options below take precedence.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="gRPC port; default 8001, 0: any free one.")] = None,
    http_port: Annotated[int | None, typer.Option(min=0, max=65535, help="HTTP port; default 8000, 0: any free one.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="A port for /metrics alone; default: it is on the HTTP port.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N, for every model; by default what its file has code for.")] = None,
    graphs: Annotated[
        int | None, typer.Option(min=0, max=MAX_GRAPHS, help="CUDA graphs that each model keeps on its GPU; default 0.")
    ] = None,
    log_requests: Annotated[bool, typer.Option("--log-requests", help="A line of the log for every request.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="Let clients load and unload models.")] = False,
    allow_failed_models: Annotated[
        bool, typer.Option("--allow-failed-models", help="Serve the others where a model cannot be loaded.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", is_eager=True, callback=_print_schema, help="Print the JSON Schema of the settings, for editors.")
    ] = False,
    ops: Ops = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Serve models over the Open Inference Protocol until SIGTERM."""
    silence_grpc()
    try:
        from disc.serving.grpc.server import termination
        from disc.serving.logs import log_to_stderr
        from disc.serving.server import Server, few_arenas, most_files
        from disc.serving.settings import ServerSettings, read_settings
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"disc serve needs {error.name}; install it with: {how_to_install('serve')}") from error
    for path in paths:
        if not path.exists():
            raise ConfigurationError(f"{path}: there is no such file or folder{hint(path)}")
        if path.is_file() and hint(path):
            raise ConfigurationError(f"{path} is no artifact{hint(path)}")
    settings = read_settings(config) if config is not None else ServerSettings()
    given = {key: value for key, value in {"host": host, "port": port, "http_port": http_port}.items() if value is not None}
    flags = {
        "admin": admin or settings.admin,
        "allow_failed_models": allow_failed_models or settings.allow_failed_models,
        "request_log": log_requests or settings.request_log,
    }
    metrics = settings.metrics if metrics_port is None else dataclasses.replace(settings.metrics, port=metrics_port)
    settings = dataclasses.replace(settings, **given, **flags, metrics=metrics).for_all_models(device, graphs)
    register_ops(ops or ())
    log_to_stderr()
    few_arenas()
    most_files()
    server = Server(paths, settings)
    server.start()
    with termination() as wait:  # before the message: a reader of it may send SIGTERM
        with announcing():
            _announce(server, as_json=as_json)
        wait()
    server.stop()


def _announce(server: Server, *, as_json: bool) -> None:
    from disc.serving.listening import address

    settings = server.settings
    models = [f"{model.name}:{model.version}" for model in server.core.repository.models()]
    if as_json:
        ports = {"port": server.port, "http_port": server.http_port, "metrics_port": server.metrics_port}
        print_json({"host": settings.host, **ports, "models": models})
    else:
        page = (
            ""
            if server.http_port is None
            else f", http{'s' if settings.tls else ''}://{address(settings.host, server.http_port)} (REST, status page)"
        )
        print(f"serving {', '.join(models) or 'no model'} on {address(settings.host, server.port)} (gRPC){page}")
