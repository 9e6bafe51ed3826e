"""How a server is set up: the limits, and what `serve.toml` may say."""

from __future__ import annotations

import dataclasses
import time
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from disc.errors import ConfigurationError, did_you_mean

Settings = TypeVar("Settings")
MIB = 1 << 20
COPY = ("when_needed", "always", "never")
POOLING = ("", "mean", "first")


@dataclass(frozen=True)
class Limits:
    """Limits of one request. Checked before anything is allocated for it.

    message_bytes: of one gRPC message or HTTP body. json_bytes: of the JSON of an HTTP request, which binary tensors may follow. fields: of
    one gRPC message, elements of packed or raw tensors aside; objects in one JSON. inputs, outputs: tensors. elements: of one tensor, given
    or computed. input_bytes: of all inputs of one request, be they in shared memory. held_bytes: of all HTTP bodies and inputs from shared
    memory at a time. requests: answered at the same time by the whole server; one more is refused.

    connections: of each of gRPC and HTTP; fewer where the process may open few files. arrival_s: seconds in which the head of a request
    must arrive; its body has as many, and one more for each `arrival_rate` bytes of it. arrival_rate: bytes per second. idle_s: how long a
    connection may be open without a request. stream_idle_s: how long an open gRPC stream may be without a request.
    """

    message_bytes: int = 64 * MIB
    json_bytes: int = 16 * MIB
    fields: int = 8192
    inputs: int = 256
    outputs: int = 256
    elements: int = 1 << 26
    input_bytes: int = 512 * MIB
    held_bytes: int = 1024 * MIB
    requests: int = 256
    connections: int = 1024
    arrival_s: float = 10.0
    arrival_rate: int = 256 << 10
    idle_s: float = 300.0
    stream_idle_s: float = 600.0

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        for name in ("requests", "connections", "fields", "arrival_s", "arrival_rate", "idle_s", "stream_idle_s"):
            if not getattr(self, name):
                raise ConfigurationError(f"limits.{name} must not be 0")
        if self.held_bytes < self.message_bytes:
            raise ConfigurationError("limits.held_bytes must not be less than limits.message_bytes, or no such message could be held")

    def arrival_left(self, since: float, arrived: int) -> float:
        """Seconds that a body may still take of which `arrived` bytes have come `since` it began (on the monotonic clock)."""
        return since + self.arrival_s + arrived / self.arrival_rate - time.monotonic()


@dataclass(frozen=True)
class Sequence:
    """Which dims of a model are lengths that may be padded, by the user's word that `mask` makes the model ignore the padding.

    length: the symbol, by an input and its axis, such as "input_ids.1". mask: an input that is padded with zeros. pad: the value by
    which each other input is padded; 0 where an input is not named.
    """

    length: str
    mask: str
    pad: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Text:
    """A tokenizer before a model that takes token ids: clients send texts, as the input "text" of BYTES.

    tokenizer: the file of the `tokenizers` library, in the folder of the model's file. max_tokens: of a text, 0: what the model takes;
    longer texts are refused. truncate: they are cut instead. max_bytes, max_texts: of one text and of one request. labels: an output of
    scores; "label" (its best class, as id2label in the folder's config.json names it) and "score" come beside it. pooling: "mean" over the
    tokens or the "first" one of the first output [texts, tokens, features], as the output "embedding"; "": none.
    """

    tokenizer: str = "tokenizer.json"
    max_tokens: int = 0
    truncate: bool = False
    max_bytes: int = 64 << 10
    max_texts: int = 256
    labels: str | None = None
    pooling: str = ""

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.pooling not in POOLING:
            raise ConfigurationError(f"text.pooling must be one of {', '.join(map(repr, POOLING))}, not {self.pooling!r}")
        if Path(self.tokenizer).name != self.tokenizer:
            raise ConfigurationError(f"text.tokenizer must be the name of a file in the model's folder, not {self.tokenizer!r}")


@dataclass(frozen=True)
class ModelSettings:
    """How one model is served.

    batching: requests are joined where the artifact has a proved batch dim, is packed, or takes structures. max_batch: rows of a joined
    call. max_tokens: of a joined call of a packed program, or nodes of one over structures (a single request may have more).
    queue_delay_us: how long the first request of a batch waits for more; 0: a batch takes what is waiting. max_queue: requests that may
    wait; more are refused.
    concurrency: calls at the same time. threads: per call; 0: as the executable was loaded. priority_levels: 1 (first) to this number;
    default_priority: of a request that names none.
    default_timeout_us: how long a request without a timeout may wait; 0: for ever. versions: how many of the newest versions of a
    folder are served. sequence: which lengths may be padded. text: a tokenizer before the model. warm_up: sets of sizes to run after
    loading, each such as "ids=1x16,mask=1x16".
    copy: when the file is copied to memory, so that writers to it do not reach the model: "when_needed" (the kernel does not let this
    process hold writers back, or another process is about to write), "always", or "never" (files are only ever replaced by rename).
    """

    batching: bool = True
    max_batch: int = 32
    max_tokens: int = 4096
    queue_delay_us: int = 0
    max_queue: int = 128
    concurrency: int = 1
    threads: int = 0
    priority_levels: int = 10
    default_priority: int = 5
    default_timeout_us: int = 0
    versions: int = 1
    warm_up: tuple[str, ...] = ()
    sequence: Sequence | None = None
    text: Text | None = None
    copy: str = "when_needed"

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.copy not in COPY:
            raise ConfigurationError(f"copy must be one of {', '.join(COPY)}, not {self.copy!r}")


@dataclass(frozen=True)
class Tls:
    """certificate, key: PEM files of the server. client_ca: clients must show a certificate that it signed."""

    certificate: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True)
class Access:
    """Bearer tokens. inference_tokens: a file with one per line; with neither file everybody may infer. admin_tokens: a file of those that
    may administrate, too, which always needs `--admin`."""

    inference_tokens: str | None = None
    admin_tokens: str | None = None


@dataclass(frozen=True)
class Tracing:
    """OpenTelemetry traces. endpoint: of an OTLP collector over HTTP, "http://127.0.0.1:4318"; None: as the OTEL_* variables say.
    service: its name in the traces, unless OTEL_SERVICE_NAME says."""

    endpoint: str | None = None
    service: str | None = None


@dataclass(frozen=True)
class Metrics:
    """Prometheus metrics. port: of their own, instead of `/metrics` on the HTTP port; 0 lets the system choose. detail: also by sizes of
    requests and by versions of kernels, which are hundreds of series a model."""

    port: int | None = None
    detail: bool = False


@dataclass(frozen=True)
class ServerSettings:
    """All of a server. host: the address to listen on. port, http_port: 0 lets the system choose; http_port None: no HTTP. drain_delay_s:
    after SIGTERM, how long requests are still accepted while health says NOT_SERVING. drain_timeout_s: how long accepted requests may take
    then. admin: clients may load and unload models. shared_memory: inputs may come in shared memory. memory_bytes: what the loaded models
    may need together; 0: no bound. allow_failed_models: models that cannot be loaded are left out; otherwise the server does not start
    without them, or, with `admin`, is not ready. request_log: a line of the log for every request. limits, tls, access, tracing, metrics:
    tables of their own. defaults: of every model. models: a table for each by its name, which starts from `defaults`."""

    host: str = "127.0.0.1"
    port: int = 8001
    http_port: int | None = 8000
    admin: bool = False
    allow_failed_models: bool = False
    shared_memory: bool = False
    memory_bytes: int = 0
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 30.0
    limits: Limits = field(default_factory=Limits)
    tls: Tls | None = None
    access: Access = field(default_factory=Access)
    tracing: Tracing | None = None
    metrics: Metrics = field(default_factory=Metrics)
    request_log: bool = False
    defaults: ModelSettings = field(default_factory=ModelSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.metrics.port is not None and self.http_port is None:
            raise ConfigurationError("metrics.port needs HTTP: http_port must be set, too")

    def for_model(self, name: str) -> ModelSettings:
        return self.models.get(name, self.defaults)


def read_settings(path: Path) -> ServerSettings:
    """The settings of a TOML file. Raises ConfigurationError, which names the key."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
    return settings_of(tables)


def settings_of(tables: Mapping[str, object]) -> ServerSettings:
    """The settings of nested tables. A table under `models` starts from `defaults`. Raises ConfigurationError."""
    plain = {key: value for key, value in tables.items() if key != "models"}
    settings = _read(ServerSettings, plain, "")
    models: dict[str, ModelSettings] = {}
    for name, table in _table(tables.get("models", {}), "models").items():
        models[name] = _read(ModelSettings, _table(table, f"models.{name}"), f"models.{name}.", settings.defaults)
    return dataclasses.replace(settings, models=models)


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} must be a table")
    return cast("Mapping[str, object]", value)


def _read(kind: type[Settings], table: Mapping[str, object], where: str, base: Settings | None = None) -> Settings:
    """A dataclass from a table; keys that it lacks keep the values of `base`, or the defaults."""
    hints = typing.get_type_hints(kind)
    names = [each.name for each in dataclasses.fields(kind)]  # pyright: ignore[reportArgumentType]
    for key in table:
        if key not in names:
            raise ConfigurationError(f"{where}{key} is no setting{did_you_mean(key, names)}; there are {', '.join(names)}")
    values = {key: _value(hints[key], value, f"{where}{key}") for key, value in table.items()}
    try:
        return dataclasses.replace(base, **values) if base is not None else kind(**values)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except TypeError as error:
        raise ConfigurationError(f"{where.rstrip('.') or 'the file'} is not complete: {error}") from error


def _value(kind: object, value: object, where: str) -> object:
    """`value` converted to the type of `kind`."""
    options = [each for each in typing.get_args(kind) if each is not type(None)] if isinstance(kind, types.UnionType) else [kind]
    wanted = options[0]
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        return _read(wanted, _table(value, where), f"{where}.")
    if typing.get_origin(wanted) is tuple:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ConfigurationError(f"{where} must be a list of strings")
        return tuple(value)
    if typing.get_origin(wanted) is Mapping:
        return _table(value, where)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, cast("type", wanted)) or (isinstance(value, bool) and wanted is not bool):
        raise ConfigurationError(f"{where} must be of type {cast('type', wanted).__name__}, not {type(value).__name__}")
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        raise ConfigurationError(f"{where} must not be negative")
    return value
