"""Results that may be computed where an input lies: whose memory they take, and when they have their own."""

from __future__ import annotations

import copy
import struct
from typing import Any

import numpy as np
import pytest
import torch
from programs import ADD, add_manifest, build

from disc.artifact.manifest import Manifest
from disc.errors import ArtifactError, ShapeConstraintError
from disc.ral.executable import Executable

FUNCTIONS: Any = torch  # one that is no public one


def replacing(place: int = 1) -> Manifest:
    described = copy.deepcopy(add_manifest())
    described["outputs"][0]["replaces"] = place
    return described


def adder() -> Executable:
    weights = [("bias", "f32", np.array(0.5, np.float32))]
    made = Executable.from_parts(replacing(), {"x86-64-v3": build(ADD)}, weights)
    made.replace_inputs()
    return made


def test_a_result_lies_where_the_input_lay() -> None:
    add, a, b = adder(), torch.ones(3, 4), torch.arange(12.0).reshape(3, 4)
    wanted = b + 1.5
    assert add(a, b) is b and torch.equal(b, wanted)
    assert torch.equal(a, torch.ones(3, 4))
    empty = torch.ones(0, 4)
    assert add(torch.ones(0, 4), empty) is empty
    leaf = torch.ones(2, 4, requires_grad=True)
    assert add(torch.ones(2, 4), leaf) is leaf and leaf.tolist() == [[2.5] * 4] * 2


def test_memory_that_may_not_be_written() -> None:
    """Not row-major, shared with the other input, NumPy's, or a copy of what was given: the result is a tensor of its own."""
    add = adder()
    base = torch.arange(40.0)
    pairs = [
        (torch.ones(3, 4), torch.arange(12.0).reshape(4, 3).t()),
        (torch.ones(3, 4), torch.ones(1, 4).expand(3, 4)),
        (torch.ones(3, 4), torch.arange(24.0).reshape(3, 8)[:, :4]),
        (base[:12].view(3, 4), base[8:20].view(3, 4)),
        (base[:12].view(3, 4), base[:12].view(3, 4)),
        (torch.ones(3, 4), torch.ones(3, 4, dtype=torch.complex64).conj().imag),
    ]
    for a, b in pairs:
        was, wanted = b.clone(), a + b + 0.5
        found = add(a, b)
        assert isinstance(found, torch.Tensor) and found is not b
        assert torch.equal(found, wanted) and torch.equal(b, was)
    for first in (torch.ones(3, 4), np.ones((3, 4), np.float32)):
        array = np.ones((3, 4), np.float32)
        found = add(first, array)
        assert found is not array and np.asarray(found).tolist() == [[2.5] * 4] * 3 and array[0, 0] == 1


def test_inputs_are_written_for_those_who_ask_for_it() -> None:
    weights = [("bias", "f32", np.array(0.5, np.float32))]
    add = Executable.from_parts(replacing(), {"x86-64-v3": build(ADD)}, weights)
    b = torch.ones(3, 4)
    assert add(torch.ones(3, 4), b) is not b and b[0, 0] == 1
    add.replace_inputs()
    out = torch.empty(3, 4)
    assert add(torch.ones(3, 4), b, out=out) is out and b[0, 0] == 1


def test_a_call_that_fails_writes_nothing() -> None:
    b = torch.ones(3, 4)
    with pytest.raises(ShapeConstraintError):
        adder()(torch.ones(2, 4), b)
    assert torch.equal(b, torch.ones(3, 4))


def test_tensors_that_share_their_memory_until_one_is_written() -> None:
    b = torch.ones(3, 4)
    other = FUNCTIONS._lazy_clone(b)
    assert adder()(torch.ones(3, 4), b) is b
    assert torch.equal(other, torch.ones(3, 4)) and b[0, 0] == 2.5


@pytest.mark.parametrize("change", ["beyond", "negative", "dtype", "rank", "written"])
def test_manifests_that_say_what_cannot_be(change: str) -> None:
    described = replacing({"beyond": 2, "negative": -1}.get(change, 1))
    if change == "dtype":
        described["outputs"][0]["dtype"] = "f64"
    if change == "rank":
        described["outputs"][0]["rank"] = 1
    if change == "written":
        described["inputs"][1]["written"] = True
    with pytest.raises((ArtifactError, struct.error)):
        Executable.from_parts(described, {"x86-64-v3": build(ADD)}, [("bias", "f32", np.array(0.5, np.float32))])
