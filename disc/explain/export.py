"""The launches of a program as a graph for Model Explorer (https://github.com/google-ai-edge/model-explorer), nested by module."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from disc.artifact.manifest import Manifest, arguments_of
from disc.errors import printable
from disc.explain.text import counted_names, module_text

Node = dict[str, object]


def model_explorer_json(manifest: Manifest, label: str) -> str:
    """A collection of one graph: a node for each input and each launch, an edge for each result that a launch reads. label: of the
    collection."""
    inputs = [_input(place, str(record["name"]), record["dtype"], record["dims"]) for place, record in enumerate(arguments_of(manifest))]
    known = {str(node["id"]) for node in inputs}
    known |= {f"kernel{number}" for number in range(len(manifest["kernels"]))}
    records = cast("Sequence[Mapping[str, object]]", manifest["kernels"])
    launches = [_launch(number, record, known) for number, record in enumerate(records)]
    return json.dumps({"label": printable(label), "graphs": [{"id": "launches", "nodes": [*inputs, *launches]}]}, indent=1)


def _input(place: int, name: str, dtype: str, dims: Sequence[int | str]) -> Node:
    kind = f"{dtype}[{', '.join(map(str, dims))}]"
    return {"id": f"arg{place}", "label": printable(name), "namespace": "", "attrs": _attributes({"type": kind}), "incomingEdges": []}


def _launch(number: int, record: Mapping[str, object], known: set[str]) -> Node:
    """known: the nodes that there are; other operands are weights."""
    operands, types = _texts(record, "operands"), _texts(record, "inputs")
    edges = [
        {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
        for place, source in enumerate(operands)
        if source in known
    ]
    weights = [f"{name}: {kind}" for name, kind in zip(operands, types, strict=False) if name and name not in known]
    guards = [str(version["guard"]) or "any shape" for version in cast("Sequence[Mapping[str, object]]", record.get("versions", ()))]
    about = {
        "kind": str(record.get("kind", "")),
        "ops": counted_names(_texts(record, "ops")),
        "modules": "\n".join(_texts(record, "modules")),
        "lines": "\n".join(_texts(record, "lines")),
        "weights": "\n".join(weights),
        "versions": "\n".join(guards),
        "notes": "\n".join(_texts(record, "notes")),
        "flops": str(record.get("flops") or ""),
        "bytes": str(record.get("bytes") or ""),
    }
    results = [{"id": str(place), "attrs": _attributes({"type": kind})} for place, kind in enumerate(_texts(record, "results"))]
    return {
        "id": f"kernel{number}",
        "label": printable(str(record.get("kernel", record["name"]))),
        "namespace": printable(module_text(_texts(record, "modules"))).replace("/", "_").replace(".", "/"),
        "attrs": _attributes(about),
        "incomingEdges": edges,
        "outputsMetadata": results,
    }


def _attributes(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": "\n".join(map(printable, value.split("\n")))} for key, value in values.items() if value]


def _texts(record: Mapping[str, object], key: str) -> list[str]:
    return [str(each) for each in cast("Sequence[object]", record.get(key, ()))]
