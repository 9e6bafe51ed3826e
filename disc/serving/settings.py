"""How a server is set up: the limits, and what `serve.toml` may say.

The classes say all of it once: pydantic reads tables into them and checks names, types and bounds, and the text below a field is its
description in the JSON Schema (`disc serve --schema`) and in docs/settings.md. Ours are the words of the errors.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError, with_config
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import ErrorDetails, core_schema

from disc.config import MAX_GRAPHS, MAX_THREADS
from disc.errors import ConfigurationError, TargetError, did_you_mean, nearest
from disc.ral.gpu_programs import device_code

MIB = 1 << 20


class ConflictError(ConfigurationError, ValueError):
    """Keys that do not go together; pydantic, which knows ValueErrors, adds where they stand."""


def _file_name(text: str) -> str:
    if Path(text).name != text or text in ("", ".."):
        raise ValueError("must be the name of a file in the model's folder")
    return text


def _device_name(text: str) -> str:
    try:
        device_code(text)
    except TargetError as error:
        raise ValueError("must be cpu, cuda, or cuda:N for one of several GPUs") from error
    return text


def _url(text: str) -> str:
    if not re.match(r"https?://[^/]", text):
        raise ValueError('must be a URL such as "http://127.0.0.1:4318"')
    return text


# Strict: TOML has types of its own, "8" is no number and 1 is not true. A whole number is a float as well.
Flag = Annotated[bool, Strict()]
String = Annotated[str, Strict()]
FileName = Annotated[str, Strict(), AfterValidator(_file_name)]
DeviceName = Annotated[str, Strict(), AfterValidator(_device_name)]
Url = Annotated[str, Strict(), AfterValidator(_url)]
Threads = Annotated[int, Strict(), Field(ge=0, le=MAX_THREADS)]
Graphs = Annotated[int, Strict(), Field(ge=0, le=MAX_GRAPHS)]
Count = Annotated[int, Strict(), Field(ge=0)]
Positive = Annotated[int, Strict(), Field(ge=1)]
Port = Annotated[int, Strict(), Field(ge=0, le=65535)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
SomeSeconds = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
# A class below is a table. Made from Python, it checks what spans several keys; from a file, all.
_table = with_config(ConfigDict(extra="forbid", use_attribute_docstrings=True))


@_table
@dataclass(frozen=True)
class Limits:
    """Limits of one request. Checked before anything is allocated for it."""

    message_bytes: Count = 64 * MIB
    """of one gRPC message or HTTP body"""
    json_bytes: Count = 16 * MIB
    """of the JSON of an HTTP request, which binary tensors may follow"""
    fields: Positive = 8192
    """of one gRPC message, elements of packed or raw tensors aside; objects in one JSON"""
    inputs: Count = 256
    """tensors of a request"""
    outputs: Count = 256
    """tensors of an answer"""
    elements: Count = 1 << 26
    """of one tensor, given or computed"""
    input_bytes: Count = 512 * MIB
    """of all inputs of one request, be they in shared memory"""
    held_bytes: Count = 1024 * MIB
    """of all HTTP bodies and inputs from shared memory at a time; not less than message_bytes, or no such message could be held"""
    requests: Positive = 256
    """answered at the same time by the whole server; one more is refused"""
    connections: Positive = 1024
    """of each of gRPC and HTTP; fewer where the process may open few files"""
    arrival_s: SomeSeconds = 10.0
    """seconds in which the head of a request must arrive; its body has as many, and one more for each `arrival_rate` bytes of it"""
    arrival_rate: Positive = 256 << 10
    """bytes per second"""
    idle_s: SomeSeconds = 300.0
    """how long a connection may be open without a request"""
    stream_idle_s: SomeSeconds = 600.0
    """how long an open gRPC stream may be without a request"""

    def __post_init__(self) -> None:
        """Raises ConflictError."""
        if self.held_bytes < self.message_bytes:
            raise ConflictError("held_bytes must not be less than limits.message_bytes, or no such message could be held")

    def arrival_left(self, since: float, arrived: int) -> float:
        """Seconds that a body may still take of which `arrived` bytes have come `since` it began (on the monotonic clock)."""
        return since + self.arrival_s + arrived / self.arrival_rate - time.monotonic()


@_table
@dataclass(frozen=True)
class Sequence:
    """Which dims of a model are lengths that may be padded, by the user's word that `mask` makes the model ignore the padding."""

    length: String
    """the symbol, by an input and its axis, such as "input_ids.1\""""
    mask: String
    """an input that is padded with zeros"""
    pad: Mapping[str, Number] = field(default_factory=dict)
    """the value by which each other input is padded; 0 where an input is not named"""


@_table
@dataclass(frozen=True)
class Text:
    """A tokenizer before a model that takes token ids: clients send texts, as the input "text" of BYTES."""

    tokenizer: FileName = "tokenizer.json"
    """the file of the `tokenizers` library, in the folder of the model's file"""
    max_tokens: Count = 0
    """of a text, 0: what the model takes; longer texts are refused"""
    truncate: Flag = False
    """they are cut instead"""
    max_bytes: Count = 64 << 10
    """of one text"""
    max_texts: Count = 256
    """of one request"""
    labels: String | None = None
    """an output of scores; "label" (its best class, as id2label in the folder's config.json names it) and "score" come beside it"""
    pooling: Literal["", "mean", "first"] = ""
    """"mean" over the tokens or the "first" one of the first output [texts, tokens, features], as the output "embedding"; "": none"""


@_table
@dataclass(frozen=True)
class ModelSettings:
    """How one model is served."""

    batching: Flag = True
    """requests are joined where the artifact has a proved batch dim, is packed, or takes structures"""
    max_batch: Positive = 32
    """rows of a joined call"""
    max_tokens: Positive = 4096
    """of a joined call of a packed program, or nodes of one over structures (a single request may have more)"""
    queue_delay_us: Count = 0
    """how long the first request of a batch waits for more; 0: a batch takes what is waiting"""
    max_queue: Count = 128
    """requests that may wait; more are refused"""
    concurrency: Positive = 1
    """calls at the same time"""
    threads: Threads = 0
    """per call; 0: as the executable was loaded"""
    device: DeviceName | None = None
    """"cpu", "cuda", or "cuda:N" for one of several GPUs; without it what the file has code for, CPUs first"""
    graphs: Graphs = 0
    """how many calls a GPU keeps as CUDA graphs: from the third with the same sizes on, a call is one launch"""
    priority_levels: Positive = 10
    """priorities go from 1 (first) to this number"""
    default_priority: Positive = 5
    """of a request that names none"""
    default_timeout_us: Count = 0
    """how long a request without a timeout may wait; 0: for ever"""
    versions: Positive = 1
    """how many of the newest versions of a folder are served"""
    warm_up: tuple[String, ...] = ()
    """sets of sizes to run after loading, each such as "ids=1x16,mask=1x16\""""
    sequence: Sequence | None = None
    """which lengths may be padded"""
    text: Text | None = None
    """a tokenizer before the model"""
    copy: Literal["when_needed", "always", "never"] = "when_needed"
    """when the file is copied to memory, so that writers to it do not reach the model: "when_needed" (the kernel does not let this process
    hold writers back, or another process is about to write), "always", or "never" (files are only ever replaced by rename)"""

    def __post_init__(self) -> None:
        """Raises ConflictError."""
        if self.default_priority > self.priority_levels:
            raise ConflictError(f"default_priority, {self.default_priority}, must not be more than priority_levels, {self.priority_levels}")


@_table
@dataclass(frozen=True)
class Tls:
    """Encryption: the server's certificate, and that of clients."""

    certificate: String
    """PEM file of the server's certificate"""
    key: String
    """PEM file of its private key"""
    client_ca: String | None = None
    """PEM file: clients must show a certificate that it signed"""


@_table
@dataclass(frozen=True)
class Access:
    """Bearer tokens; without either file everybody may infer."""

    inference_tokens: String | None = None
    """a file with one per line"""
    admin_tokens: String | None = None
    """a file of those that may administrate, too, which always needs `--admin`"""


@_table
@dataclass(frozen=True)
class Tracing:
    """OpenTelemetry traces."""

    endpoint: Url | None = None
    """of an OTLP collector over HTTP, "http://127.0.0.1:4318"; without it as the OTEL_* variables say"""
    service: String | None = None
    """its name in the traces, unless OTEL_SERVICE_NAME says"""


@_table
@dataclass(frozen=True)
class Metrics:
    """Prometheus metrics."""

    port: Port | None = None
    """of their own, instead of `/metrics` on the HTTP port; 0 lets the system choose"""
    detail: Flag = False
    """also by sizes of requests and by versions of kernels, which are hundreds of series a model"""


@_table
@dataclass(frozen=True)
class ServerSettings:
    """All of a server."""

    host: String = "127.0.0.1"
    """the address to listen on"""
    port: Port = 8001
    """of gRPC; 0 lets the system choose"""
    http_port: Port | None = 8000
    """of HTTP; 0 lets the system choose"""
    admin: Flag = False
    """clients may load and unload models"""
    allow_failed_models: Flag = False
    """models that cannot be loaded are left out; otherwise the server does not start without them, or, with `admin`, is not ready"""
    shared_memory: Flag = False
    """inputs may come in shared memory"""
    memory_bytes: Count = 0
    """what the loaded models may need together; 0: no bound"""
    drain_delay_s: Seconds = 0.0
    """after SIGTERM, how long requests are still accepted while health says NOT_SERVING"""
    drain_timeout_s: Seconds = 30.0
    """how long accepted requests may take then"""
    limits: Limits = field(default_factory=Limits)
    """of requests and connections"""
    tls: Tls | None = None
    """encryption; without this table there is none"""
    access: Access = field(default_factory=Access)
    """who may do what"""
    tracing: Tracing | None = None
    """OpenTelemetry traces; without this table there are none"""
    metrics: Metrics = field(default_factory=Metrics)
    """Prometheus metrics"""
    request_log: Flag = False
    """a line of the log for every request"""
    defaults: ModelSettings = field(default_factory=ModelSettings)
    """of every model"""
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    """a table for each by its name, which starts from `defaults`"""

    def __post_init__(self) -> None:
        """Raises ConflictError."""
        if self.metrics.port is not None and self.http_port is None:
            raise ConflictError("metrics.port needs HTTP: http_port must be set, too")

    def for_model(self, name: str) -> ModelSettings:
        return self.models.get(name, self.defaults)

    def for_all_models(self, device: str | None, graphs: int | None) -> ServerSettings:
        """These, but with every model on a device, and with so many CUDA graphs, where they are given. Raises TargetError."""
        device_code(device)
        chosen: dict[str, Any] = {key: value for key, value in {"device": device, "graphs": graphs}.items() if value is not None}
        models = {name: replace(each, **chosen) for name, each in self.models.items()}
        return replace(self, defaults=replace(self.defaults, **chosen), models=models)


def read_settings(path: Path) -> ServerSettings:
    """The settings of a TOML file. Raises ConfigurationError, which names the keys that are wrong."""
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
    return settings_of(tables)


def settings_of(tables: Mapping[str, object]) -> ServerSettings:
    """The settings of nested tables; one under `models` starts from `defaults`. Raises ConfigurationError, a line for each wrong key."""
    try:
        return _adapter().validate_python(_with_defaults(tables))
    except ValidationError as error:
        # A model's table has what it took from `defaults`, too: what is wrong there is said once.
        lines = dict.fromkeys(_message(each) for each in error.errors() if not _from_defaults(each["loc"], tables))
        raise ConfigurationError("\n".join(lines)) from error


def settings_schema() -> dict[str, Any]:
    """The JSON Schema of `serve.toml`: the server's keys are its properties, those of the tables within are below "$defs"."""
    schema = _adapter().json_schema(schema_generator=_TomlSchema)
    return {"$schema": _TomlSchema.schema_dialect, **schema, "title": "serve.toml: the settings of disc serve"}


@cache
def _adapter() -> TypeAdapter[ServerSettings]:
    return TypeAdapter(ServerSettings)


class _TomlSchema(GenerateJsonSchema):
    """TOML has no null: what may be None is a key that is left out."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        absent = "default" in schema and schema["default"] is None
        return self.generate_inner(schema["schema"]) if absent else super().default_schema(schema)

    def field_title_should_be_set(self, schema: object) -> bool:
        return False  # it says the name again


def _with_defaults(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    defaults, models = tables.get("defaults"), tables.get("models")
    if not isinstance(defaults, dict) or not isinstance(models, dict):
        return tables
    return {**tables, "models": {name: {**defaults, **own} if isinstance(own, dict) else own for name, own in models.items()}}


def _from_defaults(where: tuple[int | str, ...], tables: Mapping[str, Any]) -> bool:
    """Whether an error is of a key that the model has from `defaults`."""
    if len(where) < 3 or where[0] != "models":
        return False
    return _with_defaults(tables)["models"][where[1]] is not tables["models"][where[1]] and where[2] not in tables["models"][where[1]]


def _message(error: ErrorDetails) -> str:
    """What is wrong with one key, in the words of TOML; `where` is its dotted path."""
    *above, last = error["loc"] or ("",)
    where, given, bounds = ".".join(map(str, error["loc"])), error["input"], error.get("ctx", {})
    kind = error["type"]
    if isinstance(bounds.get("error"), ConflictError):
        return ".".join([*map(str, error["loc"]), str(bounds["error"])])
    if kind == "unexpected_keyword_argument":
        names = _keys_at(above)
        near = did_you_mean(str(last), names) or ("" if above else _elsewhere(str(last)))
        return f"{where} is no setting{near}; there are {', '.join(names)}"
    if kind == "missing":
        return f"{'.'.join(map(str, above)) or 'the file'} is not complete: {last} is missing"
    if kind in _TYPES:
        return f"{where} must be {_TYPES[kind]}, not {_TOML.get(type(given), type(given).__name__)}"
    if kind == "literal_error":
        return f"{where} must be one of {bounds['expected']}, not {given!r}"
    if kind in _BOUNDS:
        return f"{where} must be {_BOUNDS[kind].format(**bounds)}, not {given!r}"
    return f"{where} {bounds['error'] if kind == 'value_error' else error['msg']}, not {given!r}"


def _elsewhere(key: str) -> str:
    """ " (did you mean max_batch, in [defaults]?)", of a key at the top of the file."""
    for table in ("defaults", "limits"):
        near = nearest(key, _keys_at([table]))
        if near is not None:
            return f" (did you mean {near}, in [{table}]?)"
    return ""


_TOML: dict[type, str] = {dict: "a table", list: "a list"}
_TYPES = {
    "dataclass_type": "a table", "mapping_type": "a table", "dict_type": "a table", "tuple_type": "a list",
    "int_type": "of type int", "float_type": "of type float", "bool_type": "of type bool", "string_type": "of type str",
}  # fmt: skip
_BOUNDS = {
    "greater_than_equal": "at least {ge:g}", "greater_than": "more than {gt:g}", "less_than_equal": "at most {le:g}",
    "finite_number": "a finite number",
}  # fmt: skip


def _keys_at(where: list[int | str]) -> list[str]:
    """The keys that the table at this path may have."""
    schema = settings_schema()
    node = schema
    for part in where:
        node = node["properties"][part] if part in node.get("properties", {}) else node["additionalProperties"]
        node = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    return list(node["properties"])
