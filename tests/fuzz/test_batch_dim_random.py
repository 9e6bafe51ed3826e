"""What `find-batch-dim` concludes about values of random graphs, against the interpreter: rows computed apart and together are the same.

Every symbol of a graph is taken as the batch dim in turn, and every value for which there is a conclusion is compared, not just results.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from graphs import random_module
from oracle import Array, _inputs, _partners, _sizes, small_weights
from seeds import seeds
from torch_mlir import ir

from disc.ir.dialect import disc_context
from disc.ir.graph import Node, Snapshot
from disc.ir.interp.oracle import Symbols, evaluate_op
from disc.ir.ops import main_block
from disc.ir.stages import load_env, parse_module
from disc.ir.weights import WeightTable
from disc.passes.graph.find_batch_dim import Carried, NotIndependent, Numbered, _Analysis
from disc.shapes import Dim

SEEDS = 120
ROWS = (2, 3)


def conclusions(module: ir.Module, symbol: str) -> tuple[Snapshot, list[Node], _Analysis] | None:
    """The analysis of all values that it reaches; None where the inputs do not have the symbol in a simple way."""
    env = load_env(module)
    snapshot = Snapshot(env)
    body = snapshot.block(main_block(module))
    analysis = _Analysis(env, symbol)
    for node in body.arguments:
        axes = [axis for axis, dim in enumerate(node.dims) if analysis.mentions(dim)]
        if len(axes) > 1 or any(node.dims[axis] != Dim.symbol(symbol) for axis in axes):
            return None
        analysis.states[node] = Carried(axes[0]) if axes else None
    nodes = list(body.arguments)
    for node in body.nodes:
        if node.op != "input" and all(operand in analysis.states for operand in node.operands):
            try:
                analysis.visit(node)
            except NotIndependent:
                continue
            nodes.append(node)
    return snapshot, nodes, analysis


def evaluated(
    snapshot: Snapshot, nodes: list[Node], inputs: list[Array], symbols: dict[str, int], weights: WeightTable
) -> dict[Node, Array]:
    """The value of every node."""
    values: dict[Node, Array] = {}
    arguments = iter(inputs)
    for node in nodes:
        if node.op == "input":
            values[node] = next(arguments)
        else:
            operands = [values[operand] for operand in node.operands]
            values[node] = evaluate_op(snapshot.ops[node.id], operands, symbols, weights)[node.result]
    return values


def compare(node: Node, analysis: _Analysis, apart: list[Array], together: Array, sizes: list[int]) -> str:
    """The kind of conclusion, after it has been checked."""
    state = analysis.states[node]
    if isinstance(state, Numbered):
        if state.dim is None:
            rows = np.arange(sum(sizes)).reshape([-1 if axis == state.axis else 1 for axis in range(together.ndim)])
            np.testing.assert_array_equal(together, np.broadcast_to(rows, together.shape))
        return "numbered"
    if state is None:
        for each in apart:
            np.testing.assert_array_equal(each, together)
        return "uniform"
    np.testing.assert_allclose(np.concatenate(apart, state.axis), together, rtol=2e-2, atol=1e-3)
    return "carried" if state.inner == 1 else "carried inner"


def check(seed: int) -> Counter[str]:
    text = random_module(seed)
    found: Counter[str] = Counter()
    with disc_context(), np.errstate(all="ignore"):
        module = parse_module(text)
        weights = small_weights(module, np.random.default_rng(seed))
        partners = _partners(module)
        base = _sizes(module, np.random.default_rng(seed), 3)[2]
        for symbol in [name for name in sorted(load_env(module).sources) if name not in partners]:
            concluded = conclusions(module, symbol)
            if concluded is None:
                continue
            snapshot, nodes, analysis = concluded
            same = {narrow: 1 for narrow, wide in partners.items() if wide == symbol}
            parts = [_inputs(module, {**base, **same, symbol: rows}, seed, number) for number, rows in enumerate(ROWS)]
            joined: list[Array] = []
            for position, node in enumerate(node for node in nodes if node.op == "input"):
                state = analysis.states[node]
                if state is None:
                    parts[1][position] = parts[0][position]
                joined.append(parts[0][position] if state is None else np.concatenate([part[position] for part in parts], state.axis))
            runs = [evaluated(snapshot, nodes, inputs, Symbols(module, inputs).values, weights) for inputs in (*parts, joined)]
            for node in nodes:
                found[compare(node, analysis, [runs[0][node], runs[1][node]], runs[2][node], list(ROWS))] += node.op != "input"
    return found


@pytest.mark.parametrize("seed", seeds(60, SEEDS))
def test_rows_apart_and_together(seed: int) -> None:
    check(seed)


def test_conclusions_are_drawn() -> None:
    total = sum((check(seed) for seed in range(40)), Counter())
    assert total["carried"] > 100 and total["uniform"] > 20 and total["carried inner"] > 5, total
