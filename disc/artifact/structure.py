"""How the results of a program stand within the value that the model returned, as the manifest says it: `structure`.

A structure is JSON: the number of a result; {"value": a constant}; {"tuple" or "list": [structures]}; {"dict" or "ordered": [[key,
structure], ...]}, whose keys are texts or integers; {"named_tuple" or "record": "module:class", "fields": [[name, structure], ...]};
{"cache": [{"dict": [["key", structure], ["value", structure]]}, ...]}. A record is one of transformers' outputs, a cache its DynamicCache,
layer by layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

SEQUENCES = ("tuple", "list", "cache")
MAPPINGS = ("dict", "ordered")
LAYER = ("key", "value")  # what a layer of a cache has
CLASSES = ("named_tuple", "record")
RETURN_TYPES = "torch.return_types"  # module of the named tuples of PyTorch's operators, which list their fields in `__match_args__`
_DEFAULT = re.compile(r"output[0-9]+")  # what a result without a name of its own is called


def parts_of(structure: object) -> list[tuple[str | int, object]]:
    """What a structure holds, each by its key, name or position; nothing for a result or a constant."""
    if not isinstance(structure, dict) or "value" in structure:
        return []
    kind = kind_of(structure)
    if kind in SEQUENCES:
        return list(enumerate(structure[kind]))
    return [(key, part) for key, part in structure["fields" if kind in CLASSES else kind]]


def kind_of(structure: dict[str, object]) -> str:
    """Which of the kinds above it is; "" for none."""
    return next((kind for kind in ("value", *SEQUENCES, *MAPPINGS, *CLASSES) if kind in structure), "")


def results_in(structure: object) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """Where each result stands: the keys that lead to it, and its number; in their order."""
    if isinstance(structure, int):
        yield (), structure
    for key, part in parts_of(structure):
        for place, number in results_in(part):
            yield (key, *place), number


def result_names(structure: object) -> dict[int, str]:
    """Names for the results that stand under a key or in a field: "last_hidden_state", "past_key_values.0". The rest have none."""
    found: dict[int, str] = {}
    for place, number in results_in(structure):
        name = ".".join(map(str, place))
        if place and isinstance(place[0], str) and "\0" not in name and name not in found.values() and not _DEFAULT.fullmatch(name):
            found[number] = name
    return found


def with_names(records: Sequence[Mapping[str, object]], names: Mapping[int, str]) -> list[dict[str, object]]:
    """The records of a manifest's results, each with its name where it has one."""
    return [{**record, "name": names.get(number, record["name"])} for number, record in enumerate(records)]


def malformed(structure: object, results: int) -> str | None:
    """What is wrong with a structure of an untrusted file, for a program with so many results; None where it is one."""
    problem = _malformed(structure)
    if problem is None and sorted(number for _, number in results_in(structure)) != list(range(results)):
        problem = f"does not have each of the {results} results once"
    return problem


def _malformed(structure: object) -> str | None:
    if isinstance(structure, int) and not isinstance(structure, bool):
        return None
    kind = kind_of(structure) if isinstance(structure, dict) else ""
    if not kind:
        return "has a part of no known kind"
    record = cast("dict[str, object]", structure)
    if kind == "value":
        return None if isinstance(record["value"], int | float | str | None) else "has a constant that is no number or text"
    parts: object = record[kind]
    if kind in CLASSES:
        if not isinstance(parts, str):
            return "has a class without a name"
        parts = record.get("fields")
    if not isinstance(parts, list):
        return f"has a {kind} without parts"
    if kind not in SEQUENCES:
        wrong = [part for part in parts if not (isinstance(part, list) and len(part) == 2 and _is_key(part[0], kind))]
        if wrong or len({part[0] for part in parts}) != len(parts):
            return f"has a {kind} with keys that are none, or not unique"
        parts = [part[1] for part in parts]
    if kind == "cache" and not all(isinstance(part, dict) and _is_layer(part) for part in parts):
        return "has a cache with a layer that has not a key and a value"
    return next((problem for problem in map(_malformed, cast("Sequence[object]", parts)) if problem is not None), None)


def _is_layer(part: dict[str, object]) -> bool:
    fields = part.get("dict")
    return isinstance(fields, list) and [each[0] for each in fields if isinstance(each, list) and each] == list(LAYER)


def _is_key(key: object, kind: str) -> bool:
    if kind in CLASSES:
        return isinstance(key, str) and key.isidentifier() and not key.startswith("_")
    return isinstance(key, int | str) and not isinstance(key, bool)
