"""Packed sequences in graphs of torch.compile: Dynamo skips the functions that make and open them, whose sizes are data.

pack_padded_sequence(x, lengths)    →    in Dynamo's graph, `pack(x, lengths)` of `packed_sequences.py`
batch_sizes[0], in PyTorch's layers →    `batch_of(batch_sizes)`, a size
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch._dynamo.variables import BuiltinVariable, ConstantVariable, TensorVariable, TorchInGraphFunctionVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch._guards import Source
from torch.nn.modules import rnn as layers
from torch.nn.utils import rnn

from disc.frontend.packed_sequences import batch_of, pack, packed_of, pad
from disc.frontend.replaced import replaced


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | list[int], batch_first: bool = False, enforce_sorted: bool = True
) -> rnn.PackedSequence:
    order = None
    lengths = lengths.to(torch.int64) if isinstance(lengths, Tensor) else torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    if not enforce_sorted:
        lengths, order = torch.sort(lengths, descending=True)
        order = order.to(input.device)
        input = input.index_select(0 if batch_first else 1, order)
    data, batch_sizes = pack(input, lengths, batch_first)
    return rnn.PackedSequence(data, batch_sizes, order, None)


def pad_packed_sequence(
    sequence: rnn.PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    data, batch_sizes, _, order = sequence
    if order is None:
        return pad(data, batch_sizes, batch_first, padding_value, total_length)
    rows, lengths = pad(data, batch_sizes, batch_first, padding_value, total_length, order.shape[0])
    return rows.index_select(0 if batch_first else 1, order), lengths[order.cpu()]


TRACED: dict[Callable[..., object], Callable[..., object]] = {
    rnn.pack_padded_sequence: pack_padded_sequence, rnn.pad_packed_sequence: pad_packed_sequence,
}  # fmt: skip


class _Form(UserFunctionVariable):
    """One of the functions in TRACED. Dynamo goes through the form."""

    @classmethod
    def create_with_source(cls, value: Callable[..., object], source: Source) -> UserFunctionVariable:
        install_guard(source.make_guard(GuardBuilder.CLOSURE_MATCH))
        return UserFunctionVariable(TRACED[value])  # pyright: ignore[reportArgumentType]


RULES: dict[Callable[..., object], type[VariableTracker]] = {
    **dict.fromkeys(TRACED, _Form), **dict.fromkeys((pack, pad, batch_of), TorchInGraphFunctionVariable),
}  # fmt: skip


@contextmanager
def traced_packing() -> Iterator[None]:
    """Within, Dynamo takes packed sequences into its graphs."""
    rules = get_torch_obj_rule_map()
    kept = {function: rules.get(function) for function in RULES}
    rules.update(RULES)
    try:
        with replaced({(BuiltinVariable, "_handle_insert_op_in_graph"): _operator(BuiltinVariable._handle_insert_op_in_graph)}):
            yield
    finally:
        for function, rule in kept.items():
            if rule is None:
                del rules[function]
            else:
                rules[function] = rule


def _operator(original: Callable[..., VariableTracker | None]) -> Callable[..., VariableTracker | None]:
    """Dynamo's handler of functions of `operator` that go into its graph."""

    @functools.wraps(original)
    def handler(
        self: BuiltinVariable, tx: InstructionTranslatorBase, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker | None:
        sizes = _batch_sizes(*args) if self.fn is operator.getitem and tx.f_globals is vars(layers) else None
        if sizes is None:
            return original(self, tx, args, kwargs)
        packed = packed_of(sizes)
        if packed is not None and isinstance(packed.batch, int):
            return ConstantVariable.create(packed.batch)
        return TorchInGraphFunctionVariable(batch_of).call_function(tx, args[:1], {})

    return handler


def _batch_sizes(x: VariableTracker, key: VariableTracker) -> Tensor | None:
    """Those whose first one is read. Recurrent layers read no other integer of a tensor."""
    if not isinstance(x, TensorVariable) or not isinstance(key, ConstantVariable) or key.as_python_constant() != 0:
        return None
    example = cast("Tensor", x.proxy.node.meta["example_value"])
    return example if example.dtype == torch.int64 else None
