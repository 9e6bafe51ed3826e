"""Whole models: one compile each, many shapes, against eager PyTorch."""

from __future__ import annotations

import copy
import random
import re
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from replay_digests import TARGETS, describe, digests_of, noted_links, recorded_digests
from torch.utils import _pytree as pytree

import disc
from disc import api
from disc.codegen.compiles import process_compiles
from disc.frontend.imported import Imported
from tests.models import FULL, MODELS, shapes

TOLERANCE = 1e-4
TWINS = ("roberta", "distilbert", "clip-vision", "deberta-v1")  # of bert, vit and deberta: the same kernels
UNCACHED = disc.Options(cache=False)


def flat(value: object) -> list[torch.Tensor]:
    """The tensors of a model's result, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def assert_close(model: torch.nn.Module, inputs: Sequence[torch.Tensor], *executables: disc.Executable) -> None:
    """Every output has eager's dims and differs by at most TOLERANCE."""
    with torch.no_grad():
        expected = flat(model(*inputs))
    for executable in executables:
        actual = flat(executable(*inputs))
        assert [tensor.shape for tensor in actual] == [tensor.shape for tensor in expected]
        for ours, theirs in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0.0)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of every program that a test imports, with source lines, before any pass."""
    texts: list[str] = []
    compile_imported = api.compile_imported

    def noted(program: Imported, *arguments: Any, **named: Any) -> disc.Executable:
        assert program.module.operation.verify()
        texts.append(program.module.operation.get_asm(enable_debug_info=True))
        return compile_imported(program, *arguments, **named)

    monkeypatch.setattr(api, "compile_imported", noted)
    return texts


def assert_clean(text: str) -> None:
    """Nothing of the torch dialect, no weight printed as a constant, no f64 arithmetic, a line on every op."""
    assert not re.search(r"\btorch\.[a-z]", re.sub(r'"[^"]*"', "", text))
    assert "dense_resource" not in text
    assert "f64" not in text
    assert all(constant.count(",") < 256 for constant in re.findall(r"dense<(.*?)>", text))
    computed = [line for line in text.splitlines() if re.search(r"= (stablehlo|chlo)\.(?!constant)", line)]
    assert computed and not [line for line in computed if "loc(unknown)" in line]


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name in TWINS else name for name in MODELS])
def test_one_compile_serves_every_shape(name: str, tmp_path: Path, imported: list[str]) -> None:
    model, example, dynamic_shapes = MODELS[name]()
    model.eval()
    path = tmp_path / "model.disc"
    before = process_compiles()
    with noted_links() as links:
        executable = disc.compile(model, example, dynamic_shapes, target=TARGETS, options=UNCACHED)
        executable.save(path)
        assert digests_of(describe(path, links)) == recorded_digests()[name], "see tools/disc_replay.py"
    assert_clean(*imported)
    samples = shapes(name)
    assert len(samples) >= 12
    avx2 = disc.load(path, isa="x86-64-v3")
    for inputs in samples:
        assert_close(model, inputs, executable, avx2)
    assert executable.stats()["compiles"] == process_compiles() - before == 1
    assert_close(model, samples[0], disc.load(path))


@pytest.mark.long
@pytest.mark.parametrize("name", FULL)
def test_base_sizes(name: str) -> None:
    model, example, dynamic_shapes = MODELS[name](full=True)
    model.eval()
    executable = disc.compile(model, example, dynamic_shapes, options=UNCACHED)
    for inputs in shapes(name, full=True):
        assert_close(model, inputs, executable)


def test_a_thousand_shapes_leave_memory_flat() -> None:
    model, example, dynamic_shapes = MODELS["bert"]()
    compiles = process_compiles()
    executable = disc.compile(model.eval(), example, dynamic_shapes, options=disc.Options(cache=False, threads=2))
    generator = random.Random(0)

    def run(count: int) -> None:
        for _ in range(count):
            batch, length = generator.randint(1, 6), generator.randint(1, 70)
            executable(torch.randint(0, 100, (batch, length)), torch.ones(batch, length, dtype=torch.int64))

    executable(torch.zeros(6, 70, dtype=torch.int64), torch.ones(6, 70, dtype=torch.int64))
    run(200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(1000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 * 1024, f"{grown} KiB more after 1,000 shapes"
    assert executable.stats()["compiles"] == process_compiles() - compiles == 1


def test_training_through_torch_compile() -> None:
    torch.manual_seed(0)
    reference = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8))
    trained = copy.deepcopy(reference)
    compiled = torch.compile(trained, backend="disc", dynamic=True)
    for batch in (3, 5, 1, 0, 2, 17):
        losses = []
        for model in (reference, compiled):
            loss = model(torch.full((batch, 7, 16), 0.1) + torch.arange(16)).square().sum()
            loss.backward()
            losses.append(loss)
        torch.testing.assert_close(losses[0], losses[1], atol=1e-4, rtol=1e-5)
        for left, right in zip(reference.parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(left.grad, right.grad, atol=1e-3, rtol=1e-4)
        reference.zero_grad()
        trained.zero_grad()


def test_an_index_out_of_range_is_an_error_and_loses_nothing() -> None:
    table = torch.nn.Embedding(10, 16)
    executable = disc.compile(table, (torch.zeros(2, 3, dtype=torch.int64),), options=UNCACHED)
    for bad in ([[1, 10]], [[-1, 2]]):
        with pytest.raises(disc.DiscError, match="out of range for a dim of size 10"):
            executable(torch.tensor(bad))
    good = torch.tensor([[0, 9]])
    torch.testing.assert_close(executable(good), table(good))
