"""A compiled model returns what the model does: names, dicts, tuples within tuples, transformers' outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

import disc
from disc.artifact.bounds import contradiction
from disc.artifact.manifest import Manifest
from disc.artifact.structure import malformed, result_names, with_names
from disc.errors import UnsupportedFormatError
from disc.frontend.models import import_model
from disc.frontend.portable import read_portable, write_portable
from disc.ir.dialect import make_context


class Pair(NamedTuple):
    total: Tensor
    parts: tuple[Tensor, None, int]


class Nested(nn.Module):
    def forward(self, x: Tensor) -> dict[str, object]:
        return {
            "sum": x + 1,
            "pair": Pair(x * 2, (x - 1, None, 7)),
            "list": [x * 3, {"deep": x * 4, 5: x * 5}],
            "ordered": OrderedDict(last=x * 6),
        }


NAMES = ["sum", "pair.total", "pair.parts.0", "list.0", "list.1.deep", "list.1.5", "ordered.last"]


def check(found: object, x: Tensor) -> None:
    wanted = Nested()(x)
    assert isinstance(found, dict) and list(found) == list(wanted)
    assert type(found["pair"]) is Pair and isinstance(found["ordered"], OrderedDict) and isinstance(found["list"], list)
    assert found["pair"].parts[1:] == (None, 7)
    torch.testing.assert_close(found, wanted)


def test_what_is_nested_stays_so(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    executable = disc.compile(Nested(), (x,))
    assert [each.name for each in executable.outputs] == NAMES
    for each in (x, torch.randn(7, 4)):
        check(executable(each), each)
    flat = executable.flat(x)
    assert len(flat) == len(NAMES)
    out = tuple(torch.empty_like(x) for _ in NAMES)
    assert executable(x, out=out) is out
    torch.testing.assert_close(out, tuple(flat))
    executable.save(tmp_path / "nested.disc")
    check(disc.load(tmp_path / "nested.disc")(x), x)


@pytest.mark.parametrize("value", [lambda x: x, lambda x: (x, x + 1), lambda x: [x], lambda x: {"one": x}, lambda x: (x, None)])
def test_small_values(value: object) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> object:
            return value(x * 2)  # type: ignore[operator]

    x = torch.randn(3)
    wanted, found = Model()(x), disc.compile(Model(), (x,))(x)
    assert type(found) is type(wanted)
    torch.testing.assert_close(found, wanted)


LOADED = """
import json, sys
import numpy as np
import disc
executable = disc.load(sys.argv[1])
results = executable(np.arange(6).reshape(2, 3), np.ones((2, 3), np.int64))
assert "transformers" not in sys.modules and "torch" not in sys.modules
first, again = results[0], results.last_hidden_state
assert first is again is results["last_hidden_state"] is results.to_tuple()[0]
try:
    results.logits
except AttributeError as error:
    print(json.dumps([list(results), list(first.shape), str(error), [each.name for each in executable.outputs]]))
"""


def test_outputs_of_transformers(tmp_path: Path) -> None:
    """Of their class where it is loaded, else of one like it."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=30)
    model = BertModel(config).eval()
    ids, mask = torch.randint(30, (2, 5)), torch.ones(2, 5, dtype=torch.int64)
    executable = disc.compile(model, (ids, mask))
    found = executable(ids, mask)
    assert isinstance(found, BaseModelOutputWithPoolingAndCrossAttentions) and found.hidden_states is None
    with torch.no_grad():
        torch.testing.assert_close(found.to_tuple(), model(ids, mask).to_tuple(), rtol=1e-4, atol=1e-5)
    path = tmp_path / "bert.disc"
    executable.save(path)
    done = subprocess.run([sys.executable, "-c", LOADED, str(path)], capture_output=True, text=True, check=True)
    names = ["last_hidden_state", "pooler_output"]
    assert json.loads(done.stdout) == [
        names,
        [2, 3, 16],
        "there is no result 'logits'; the results are last_hidden_state, pooler_output",
        names,
    ]


def test_it_travels_to_a_compile_server(tmp_path: Path) -> None:
    imported = import_model(Nested(), (torch.randn(3, 4),), None, make_context())
    program, weights = write_portable(imported, tmp_path / "weights"), (tmp_path / "weights").read_bytes()
    again = read_portable(program, weights, single=False, context=make_context())
    assert again.outputs.structure == imported.outputs.structure is not None
    wrong = import_model(Nested(), (torch.randn(3, 4),), None, make_context())
    wrong.outputs.structure["dict"].pop()  # type: ignore[index]
    with pytest.raises(UnsupportedFormatError, match="does not have each of the 7 results once"):
        read_portable(write_portable(wrong, tmp_path / "weights"), weights, single=False, context=make_context())


@pytest.mark.parametrize(
    "structure",
    [
        None, True, 1.5, "x", {}, {"tuple": 0}, {"tuple": [0]}, {"tuple": [0, 0]}, {"tuple": [0, 1, 2]}, {"list": [0, {"value": []}, 1]},
        {"dict": [["a", 0], ["a", 1]]}, {"dict": [["a", 0, 1]]}, {"dict": [[None, 0], ["b", 1]]}, {"record": "m:C", "fields": [["a b", 0]]},
        {"named_tuple": 3, "fields": [["a", 0], ["b", 1]]}, {"record": "m:C"}, {"named_tuple": "m:C", "fields": [["_a", 0], ["b", 1]]},
    ],
)  # fmt: skip
def test_malformed_ones_are_refused(structure: object) -> None:
    assert malformed(structure, 2) is not None


def test_a_manifest_whose_structure_is_wrong() -> None:
    manifest = disc.compile(Nested(), (torch.randn(3, 4),)).manifest
    assert contradiction(manifest) is None
    wrong = cast("Manifest", {**manifest, "structure": {"dict": [["sum", 0]]}})
    assert contradiction(wrong) == "manifest.structure: does not have each of the 7 results once"


def test_names() -> None:
    structure = {"dict": [["output0", 1], ["a", {"tuple": [0, 2]}], ["a.0", 3]]}
    assert malformed(structure, 4) is None
    assert result_names(structure) == {0: "a.0", 2: "a.1"}  # another one's name and the default names stay with these
    records = [{"name": f"output{number}", "rank": 1} for number in range(4)]
    assert [each["name"] for each in with_names(records, result_names(structure))] == ["a.0", "output1", "a.1", "output3"]
