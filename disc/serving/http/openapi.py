"""The OpenAPI description of the HTTP side: every route that `disc.serving.http.server` has."""

from __future__ import annotations

from collections.abc import Mapping

from disc.config import VERSION
from disc.serving.datatypes import BYTES, DATATYPES

Schema = Mapping[str, object]
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
ANY: Schema = {"type": "object"}


def _object(required: str = "", **properties: Schema) -> Schema:
    """required: names by spaces."""
    return {"type": "object", "properties": properties, **({"required": required.split()} if required else {})}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _of(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TYPE: Schema = {"type": "string", "enum": [*DATATYPES, BYTES]}
_SHAPE = _list({"type": "integer", "description": "-1 in metadata: any size"})
_DATA: Schema = {"type": "array", "items": {}, "description": "nested, or flat in row-major order"}
_TENSOR = {"name": TEXT, "shape": _SHAPE, "datatype": _TYPE}
SCHEMAS: Mapping[str, Schema] = {
    "Error": _object("error", error=TEXT),
    "Tensor": _object("name shape datatype", **_TENSOR, data=_DATA, parameters=ANY),
    "TensorMetadata": _object("name shape datatype", **_TENSOR),
    "Request": _object("inputs", id=TEXT, parameters=ANY, inputs=_list(_of("Tensor")), outputs=_list(_object("name", name=TEXT))),
    "Answer": _object("model_name outputs", model_name=TEXT, model_version=TEXT, id=TEXT, outputs=_list(_of("Tensor"))),
    "Server": _object("name version extensions", name=TEXT, version=TEXT, extensions=_list(TEXT)),
    "Model": _object(
        "name versions platform inputs outputs",
        name=TEXT, versions=_list(TEXT), platform=TEXT, inputs=_list(_of("TensorMetadata")), outputs=_list(_of("TensorMetadata")),
    ),
    "Ready": _object("ready", name=TEXT, ready=FLAG),
    "Live": _object("live", live=FLAG),
    "Statistics": _object("model_stats", model_stats=_list(ANY)),
    "Index": _list(_object("name version state", name=TEXT, version=TEXT, state=TEXT, reason=TEXT)),
    "Status": _object("server ready seconds answered models", server=TEXT, ready=FLAG, seconds=WHOLE, answered=WHOLE, models=_list(ANY)),
    "Config": ANY,
    "Nothing": ANY,
}  # fmt: skip
# Method and path → what it does, and the schema of the answer. Those of a model are there a second time, with a version.
ROUTES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("get", "/v2"): ("The server's name, version and extensions", "Server"),
    ("get", "/v2/health/live"): ("Whether the process answers", "Live"),
    ("get", "/v2/health/ready"): ("Whether requests should be sent here; 503 when not", "Ready"),
    ("get", "/v2/models/stats"): ("Counts and times of every model", "Statistics"),
    ("post", "/v2/repository/index"): ("Every model there is; needs --admin", "Index"),
    ("post", "/v2/repository/models/{model}/load"): ("Load a model, or its newest version; needs --admin", "Nothing"),
    ("post", "/v2/repository/models/{model}/unload"): ("Unload a model; needs --admin", "Nothing"),
    ("get", "/status.json"): ("What the status page shows", "Status"),
}
OF_MODEL: Mapping[tuple[str, str], tuple[str, str]] = {
    ("get", ""): ("Inputs and outputs of a model", "Model"),
    ("get", "/ready"): ("Whether the model answers", "Ready"),
    ("get", "/config"): ("How the model is served, as Triton's ModelConfig", "Config"),
    ("get", "/stats"): ("Counts and times of the model", "Statistics"),
    ("post", "/infer"): ("Answer one request", "Answer"),
}
PAGES = {
    "/": ("The status page", "text/html"),
    "/metrics": ("Prometheus metrics, unless they have a port of their own", "text/plain"),
    "/openapi.json": ("This description", "application/json"),
}


def description() -> Mapping[str, object]:
    """OpenAPI 3.1."""
    paths: dict[str, dict[str, object]] = {}
    for (method, path), (words, schema) in ROUTES.items():
        paths.setdefault(path, {})[method] = _operation(method, path, words, schema)
    for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        for (method, rest), (words, schema) in OF_MODEL.items():
            paths.setdefault(prefix + rest, {})[method] = _operation(method, prefix + rest, words, schema)
    for path, (words, kind) in PAGES.items():
        paths[path] = {"get": {"summary": words, "responses": {"200": {"description": "OK", "content": {kind: {"schema": {}}}}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "disc", "version": VERSION, "description": "The Open Inference Protocol (KServe v2), status and metrics"},
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _operation(method: str, path: str, words: str, schema: str) -> Schema:
    places = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    made: dict[str, object] = {
        "summary": words,
        "parameters": [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in places],
        "responses": {
            "200": {"description": "OK", "content": _json(schema)},
            "default": {"description": "What is wrong", "content": _json("Error")},
        },
    }
    if path.endswith("/infer"):
        made["requestBody"] = {"required": True, "content": _json("Request")}
    return made


def _json(schema: str) -> Schema:
    return {"application/json": {"schema": _of(schema)}}
