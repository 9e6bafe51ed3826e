"""`disc compile-server`: compiles what clients send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from disc.cli.output import AsJson, Debug, announcing, print_json
from disc.config import read_environment
from disc.errors import ConfigurationError, how_to_install


def compile_server_command(
    folder: Annotated[Path | None, typer.Option(help="Uploads, jobs and results; default: compile-server in the cache folder.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC port; 0: any free one.")] = 8010,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Compilers at the same time.")] = 1,
    queue: Annotated[int, typer.Option(min=1, help="Jobs that may wait; more are refused.")] = 16,
    memory: Annotated[int, typer.Option(min=1, help="GiB of address space of one job.")] = 16,
    seconds: Annotated[int, typer.Option(min=1, help="Time that one job may take.")] = 900,
    stall: Annotated[int, typer.Option(min=1, help="Seconds that the next piece of an upload may take.")] = 20,
    tokens: Annotated[Path | None, typer.Option(help="File of bearer tokens, one per line, of which clients must show one.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Clients must show a certificate that this authority (PEM) signed.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compile for clients (`disc compile --remote`) until SIGTERM: each job in a confined process, equal programs once."""
    try:
        from disc.serving.compile_service.service import CompileServer
        from disc.serving.compile_service.settings import GIB, CompileLimits, CompileSettings
        from disc.serving.grpc.server import termination
        from disc.serving.listening import address
        from disc.serving.logs import log_to_stderr
        from disc.serving.settings import Access, Tls
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"disc compile-server needs {error.name}; install it with: {how_to_install('serve')}") from error
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        raise ConfigurationError("--certificate and --key go together, and --client-ca needs both")
    settings = CompileSettings(
        folder=folder or read_environment().cache_dir / "compile-server",
        host=host,
        port=port,
        jobs=jobs,
        limits=CompileLimits(queue=queue, memory_bytes=memory * GIB, cpu_s=seconds, wall_s=seconds, arrival_s=stall),
        tls=Tls(str(certificate), str(key), str(client_ca) if client_ca else None) if certificate is not None else None,
        access=Access(inference_tokens=str(tokens) if tokens else None),
    )
    log_to_stderr()
    server = CompileServer(settings)
    server.start()
    with termination() as wait:  # before the message: a reader of it may send SIGTERM
        with announcing():
            if as_json:
                print_json({"host": host, "port": server.port, "folder": str(settings.folder)})
            else:
                print(f"compiling on {address(host, server.port)} (gRPC)")
        wait()
    server.stop()
