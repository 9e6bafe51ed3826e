"""Random programs over random structures, saved and loaded: the artifact gives what the program gives, before and after it is written."""

from __future__ import annotations

import collections
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from test_batched_random import Writer, batches, made, structure

import disc
from disc.config import Options
from disc.errors import InstanceError, NodeKindError, SaveError, ShapeConstraintError

OPTIONS = Options(cache=False, threads=1)
ALLOWED = (NodeKindError, ShapeConstraintError)  # a shape that no example had; numbers that a block refuses


def nested(node: Any, known: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The structure as mappings; a node that is shared is one mapping."""
    if id(node) not in known:
        known[id(node)] = {"word": node.word, "children": [nested(each, known) for each in node.children]}
    return known[id(node)]


def check(seed: int, path: Path) -> str:
    """What became of the program: "saved", or why it is not."""
    source = Writer(seed).program()
    torch.manual_seed(seed)
    model: Any = made(source, seed)().eval()
    examples = [each for batch in batches(seed) for each in batch]
    batched: Any = disc.batched(model, options=OPTIONS)
    try:
        with torch.no_grad():
            expected = [model(each) for each in examples]
        batched.batch(examples)
        before = batched.batch(examples)
        batched.save(path, examples)
    except (SaveError, InstanceError) as error:
        return str(error)
    program = disc.load(path)
    draw = random.Random(-seed)
    others = [structure(draw, 0, []) for _ in range(8)]
    compared(source, before, expected)
    compared(source, run(program, examples), expected)
    known: dict[int, dict[str, Any]] = {}
    nodes = cast("Any", program.manifest).get("skeleton", {"nodes": []})["nodes"]
    used = {str(name) for each in nodes for name, *_ in each["fields"]}
    if used == {"word", "children"}:
        compared(source, run(program, [nested(each, known) for each in examples]), expected)
    with torch.no_grad():
        compared(source, run(program, others), [model(each) for each in others])
        for given in (examples, others, examples):  # in the process: the interpreter runs, or the code where it cannot
            compared(source, batched.batch(given), [model(each) for each in given])
    return "saved"


def run(program: Any, instances: list[Any]) -> list[Any]:
    """Results; None for instances that take another way than the examples did."""
    try:
        return program.batch(instances)
    except InstanceError as error:
        wrong = [each for each in error.failures.values() if not isinstance(each, ALLOWED)]
        assert not wrong, wrong
        return [None if isinstance(each, Exception) else each for each in error.results]


def compared(source: str, found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if one is not None:
            np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=source)


@pytest.mark.parametrize("seed", [3])
def test_saved_programs(seed: int, tmp_path: Path) -> None:
    assert check(seed, tmp_path / "model.disc") == "saved"


@pytest.mark.long
def test_more_saved_programs(tmp_path: Path) -> None:
    found = collections.Counter(check(seed, tmp_path / "model.disc") == "saved" for seed in range(100, 160))
    assert found[True] > 20
