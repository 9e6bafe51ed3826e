"""The client of the compile service: what `disc compile --remote` does."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc

from disc.artifact import file as artifact
from disc.config import Options
from disc.errors import ArtifactError, DiscError, RemoteCompileError, UnsupportedFormatError
from disc.serving.compile_service.request import KIND, SERVICE, compiler_name
from disc.serving.messages import Message, message
from disc.targets.select import named_targets

if TYPE_CHECKING:
    from disc.api import DynamicShapes, Model

PIECE = 1 << 20  # bytes of one message
_STABLEHLO, _IMPORTED = 1, 2
_UPLOAD, _DONE = 1, 4
_REQUEST, _JOB, _EVENT, _ID, _PIECE = (message(f"disc.v1.{name}") for name in ("CompileRequest", "Job", "CompileEvent", "JobId", "Piece"))


@dataclass(frozen=True)
class Service:
    """Where a compile service is.

    address: "host:port". ca: PEM file of the authority that signed its certificate; None = no TLS. certificate, key: PEM files of this
    client's own, where the service requires one. token: a bearer token.
    """

    address: str
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token: str | None = None

    def channel(self) -> grpc.Channel:
        if self.ca is None:
            return grpc.insecure_channel(self.address)
        own = (
            (self.key.read_bytes(), self.certificate.read_bytes())
            if self.key is not None and self.certificate is not None
            else (None, None)
        )
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(self.ca.read_bytes(), *own))

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)


def compile_remote(
    model: Model,
    service: Service,
    output: str | os.PathLike[str],
    example_inputs: Sequence[object] | Mapping[str, object] | None = None,
    dynamic_shapes: DynamicShapes = None,
    target: str | Sequence[str] = "native",
    options: Options | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> bool:
    """Exports `model` here, has `service` compile it, and writes the checked artifact to `output`; True if the service had it already.

    The arguments are those of `disc.compile`; target "native" means this machine. Of a `.pt2` file, too, the service gets the graph and
    the weights alone. Raises what `disc.compile` raises on the way to stage `imported`, RemoteCompileError for what the service says, and
    ArtifactError for an artifact that is not the one announced.
    """
    options = options or Options()
    for name, given in (("packed", options.packed), ("tf32", options.tf32)):
        if given:
            raise UnsupportedFormatError(f"{name}: a compile service does not take this option; compile the model here")
    with tempfile.TemporaryDirectory(prefix="disc-remote-") as folder:
        job, files = _described(model, example_inputs, dynamic_shapes, Path(folder), options)
        job.targets.extend(named_targets(target, mixed=options.dtype != "f32"))
        job.dtype, job.threads = options.dtype, options.threads or 0
        with service.channel() as channel:
            try:
                done = _compiled(channel, service, job, files, on_progress)
                on_progress("fetching")
                _fetch(channel, service, done, Path(output))
            except grpc.RpcError as error:
                raise _told(error, service) from error
    return done.cached


def _described(
    model: Model,
    example_inputs: Sequence[object] | Mapping[str, object] | None,
    dynamic_shapes: DynamicShapes,
    folder: Path,
    options: Options,
) -> tuple[Message, list[Path]]:
    """The job without its settings, and the files to send."""
    if isinstance(model, str | os.PathLike) and Path(model).suffix in (".mlir", ".mlirbc"):
        path = Path(model)
        if not path.is_file():
            raise RemoteCompileError(f"{path}: there is no such file", "UnsupportedFormatError")
        return _JOB(format=_STABLEHLO, program=_blob(path), embed_stablehlo=options.embed_stablehlo), [path]
    from disc.frontend.models import import_model
    from disc.frontend.portable import write_portable
    from disc.ir.dialect import make_context

    imported = import_model(model, example_inputs, dynamic_shapes, make_context())
    program, weights = folder / "program", folder / "weights"
    program.write_bytes(write_portable(imported, weights))
    job = _JOB(
        format=_IMPORTED, program=_blob(program), weights=_blob(weights), compiler=compiler_name(), single=imported.outputs.is_single()
    )
    return job, [program, weights]


def _blob(path: Path) -> dict[str, object]:
    with open(path, "rb") as file:
        return {"size": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").digest()}


def _compiled(channel: grpc.Channel, service: Service, job: Message, files: Sequence[Path], on_progress: Callable[[str], None]) -> Message:
    """The last event of the job. The upload waits until the service requests it."""
    from queue import SimpleQueue

    asked: SimpleQueue[bool] = SimpleQueue()

    def requests() -> Iterator[bytes]:
        yield _REQUEST(job=job).SerializeToString()
        if not asked.get():
            return
        for path in files:
            with open(path, "rb") as file:
                while piece := file.read(PIECE):
                    yield _REQUEST(piece=_PIECE(data=piece)).SerializeToString()

    call = channel.stream_stream(f"/{SERVICE}/Compile")
    try:
        for data in call(requests(), metadata=service.metadata()):
            event = _EVENT.FromString(data)
            if event.state == _UPLOAD:
                on_progress("uploading")
                asked.put(True)
            elif event.state == _DONE:
                return event
            else:
                on_progress(f"{event.stage} ({event.percent} %)" if event.stage else f"{event.ahead} jobs come first")
    finally:
        asked.put(False)
    raise RemoteCompileError(f"{service.address}: the job was cancelled", "CANCELLED")


def _fetch(channel: grpc.Channel, service: Service, done: Message, output: Path) -> None:
    """Writes the artifact once it is known to be the one announced, and whole."""
    call = channel.unary_stream(f"/{SERVICE}/Fetch")
    handle, name = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}.")
    try:
        hashed, size = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as file:
            for data in call(_ID(job=done.job).SerializeToString(), metadata=service.metadata()):
                piece = _PIECE.FromString(data).data
                size += len(piece)
                if size > done.result.size:
                    raise ArtifactError(f"{service.address} sent more than the {done.result.size} bytes it announced")
                hashed.update(piece)
                file.write(piece)
        if hashed.digest() != done.result.sha256:
            raise ArtifactError(f"{service.address} sent an artifact with another SHA-256 than it announced")
        artifact.verify(name)
        os.chmod(name, 0o644)  # mkstemp makes files that only their owner reads
        os.replace(name, output)
    except BaseException:
        os.unlink(name)
        raise


def _told(error: grpc.RpcError, service: Service) -> DiscError:
    """The service's error status as an exception of disc.errors."""
    assert isinstance(error, grpc.Call)
    trailing = cast("Sequence[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    kind = next((str(value) for name, value in trailing if name == KIND), error.code().name)
    return RemoteCompileError(f"{service.address}: {error.details() or error.code().name}", kind)
