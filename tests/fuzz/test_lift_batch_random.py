"""`lift-batch` on random graphs, against the interpreter: what the lifted program makes of instances together is what the program makes of
each, for every choice of shared arguments."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from graphs import random_module
from oracle import Array, _inputs, _sizes, normalized, small_weights
from seeds import seeds
from torch_mlir import ir

from disc.errors import CompilerBug, DiscError
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.ops import block_ops, main_block, main_function
from disc.ir.passes import CompileState
from disc.ir.stages import check_stage
from disc.passes.graph.lift_batch import SHARED, LiftBatch

SEEDS = 100
COUNTS = (0, 1, 3)


def mark_shared(module: ir.Module, shared: list[int]) -> None:
    entries = [
        ir.DictAttr.get({SHARED: ir.UnitAttr.get()} if number in shared else {}) for number in range(len(main_block(module).arguments))
    ]
    main_function(module).attributes["arg_attrs"] = ir.ArrayAttr.get(entries)


def check(seed: int) -> Counter[str]:
    """Which ops were lifted; "refused" where the graph was."""
    text = random_module(seed)
    with disc_context(), np.errstate(all="ignore"):
        module, lifted = normalized(text), normalized(text)
        random = np.random.default_rng(seed)
        weights = small_weights(module, random)
        arguments = len(main_block(module).arguments)
        shared = [number for number in range(arguments) if random.random() < 0.3][: arguments - 1]
        mark_shared(lifted, shared)
        try:
            LiftBatch().apply(lifted, CompileState())
        except CompilerBug:
            raise
        except DiscError:
            return Counter({"refused": 1})
        lifted.operation.verify()
        check_stage(lifted, "named")
        sizes = _sizes(module, np.random.default_rng(seed), 3)[2]
        instances = [_inputs(module, sizes, seed, number) for number in (0, 1, 2)]
        for instance in instances:
            for number in shared:
                instance[number] = instances[0][number]
        wanted = [interpret(module, instance, weights) for instance in instances]
        for count in COUNTS:
            compare(lifted, instances, wanted, shared, count, weights)
        return Counter(op.name for op in block_ops(main_block(lifted)))


def compare(
    lifted: ir.Module, instances: list[list[Array]], wanted: list[list[Array]], shared: list[int], count: int, weights: object
) -> None:
    inputs = [
        each
        if number in shared
        else np.stack([instance[number] for instance in instances[:count]])
        if count
        else np.zeros((0, *each.shape), each.dtype)
        for number, each in enumerate(instances[0])
    ]
    results = interpret(lifted, inputs, weights)  # pyright: ignore[reportArgumentType]
    for number, result in enumerate(results):
        assert result.shape == (count, *wanted[0][number].shape)
        for instance in range(count):
            np.testing.assert_allclose(result[instance], wanted[instance][number], rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("seed", seeds(40, SEEDS))
def test_together_and_one_by_one(seed: int) -> None:
    check(seed)


def test_graphs_are_lifted() -> None:
    total = sum((check(seed) for seed in range(30)), Counter())
    assert total["refused"] < 10 and total["stablehlo.dot_general"] > 5 and total["disc.gather"] > 2, total
