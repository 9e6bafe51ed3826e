"""Numbers of a program that tracing has fixed, such as the `eps` of a norm: they are constants of Dynamo's graph.

With dynamic=True, Dynamo makes every float of the program an input, since it may become an operand of an op. Most become an attribute of an
op, which takes a number only, so that a guard fixes them. PyTorch drops such inputs only once AOTAutograd has traced the graph, forward and
backward, and then begins anew with the function of the program. All that it learns there of these numbers is known before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import sympy
import torch
import torch.nn.functional as F
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.symbolic_convert import TensorifyState
from torch.utils._sympy.symbol import SymT, symbol_is_type

from disc.frontend.replaced import replaced

WITHOUT_OPERANDS = frozenset({F.embedding, F.embedding_bag})  # norms of rows: of an op that takes them as numbers, or they are not used
_dropped = OutputGraph.remove_tensorify_specialized_graphargs


@contextmanager
def fixed_floats() -> Iterator[None]:
    """Within, floats that a guard has fixed, or that are no operand of any op, are no inputs of the graphs that Dynamo makes."""
    noted: set[str] = set()

    @functools.wraps(_dropped)
    def drop(self: OutputGraph) -> None:
        for name in _fixed(self):
            noted.add(name)
            TensorifyState.specialize(name)
        _dropped(self)

    try:
        with replaced({(OutputGraph, "remove_tensorify_specialized_graphargs"): drop}):
            yield
    finally:
        TensorifyState.force_specializations -= noted  # other functions have floats of the same names


def _fixed(output: OutputGraph) -> set[str]:
    environment, taken = output.shape_env, set[sympy.Symbol]()
    for node in output.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymFloat) and any(user.target not in WITHOUT_OPERANDS for user in node.users):
            taken |= value.node.expr.free_symbols  # of the numbers that guards have left open
    floats = (symbol for symbol in environment.backed_var_to_val if symbol_is_type(symbol, SymT.FLOAT))
    return {str(symbol) for symbol in floats if symbol not in taken}
