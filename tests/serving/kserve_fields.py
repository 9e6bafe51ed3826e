"""Run by the interpreter of kserve's own virtual environment: `python kserve_fields.py FOLDER` checks the manifests against kserve's models."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import kserve.models
import kubernetes.client
import yaml

KINDS = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}


def check(value: object, kind: str, where: str) -> int:
    """Every key is a field of the model `kind`, whose fields have kinds of their own; how many keys there are."""
    if inner := re.fullmatch(r"(?:list\[|dict\(str, )(.*)[\])]", kind):
        assert isinstance(value, list if kind.startswith("list") else dict), f"{where} is no {kind}"
        entries = enumerate(value) if isinstance(value, list) else value.items()
        return sum(check(each, inner[1], f"{where}[{key}]") for key, each in entries)
    model = getattr(kserve.models, kind, None) or getattr(kubernetes.client, kind, None)
    if model is None:
        return 0
    assert isinstance(value, dict), f"{where} is no {kind}"
    known = {key: model.openapi_types[name] for name, key in model.attribute_map.items()}
    for key in value:
        assert key in known, f"{where}.{key}: {kind} has no such field, but {sorted(known)}"
    return len(value) + sum(check(each, known[key], f"{where}.{key}") for key, each in value.items())


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            assert check(document, KINDS[document["kind"]], path.name) > 10
    print("conformant")
