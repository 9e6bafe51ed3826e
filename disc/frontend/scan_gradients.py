"""Gradients of `scan`: PyTorch's own, but for what a step keeps for them, and results without gradients (integers), which PyTorch refuses.

What it keeps, and the gradients themselves, are copies, since results of a body must not share memory, and halves of one tensor do. They
lie row by row: PyTorch wants one layout of what is carried, and a dim of size 1 has any. Lowered, a copy is none. What is the same in every
step is not kept once per step, what is drawn is kept. That what backward adds up in every step leaves its loop is the work of `loop_sums`.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import DispatchKey
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._higher_order_ops.partitioner import HopPartitionedGraph, create_hop_joint_graph
from torch._higher_order_ops.scan import ScanAutogradImpl, ScanAutogradOp, scan_op
from torch._higher_order_ops.utils import materialize_as_graph, prepare_fw_with_masks_all_requires_grad
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.locations import running_line
from disc.frontend.python_kernels import python_kernels
from disc.frontend.random_ops import draws_in_eager
from disc.frontend.replaced import replaced

# `torch._higher_order_ops` has the function under the name of its module.
_scan = importlib.import_module("torch._higher_order_ops.scan")
_utils = importlib.import_module("torch._higher_order_ops.utils")


@contextmanager
def gradients_of_scans() -> Iterator[None]:
    """Within, gradients of `scan` are these. What traces holds a lock meanwhile."""
    replacements = {(_scan, "ScanAutogradImpl"): _Copying, (_utils, "prepare_fw_with_masks_all_requires_grad"): _with_tangents}
    with python_kernels({(scan_op, DispatchKey.Autograd): _differentiable}), replaced(replacements):
        yield


def _with_tangents(step: Callable[..., object]) -> Callable[..., tuple[Any, list[bool]]]:
    """As PyTorch prepares a step's function, but every result has a tangent, as it has in the graph, integers too."""
    prepared = prepare_fw_with_masks_all_requires_grad(step)

    def results_and_mask(*operands: object) -> tuple[Any, list[bool]]:
        results, _ = prepared(*operands)
        return results, [True] * len(results)

    return results_and_mask


def _differentiable(
    combine_fn: Callable[..., object], init: Sequence[Tensor], xs: Sequence[Tensor], additional_inputs: Sequence[object]
) -> object:
    """A step's function, its first state, the rows of all steps, and what every step takes, by PyTorch's names."""
    given = (*init, *xs, *additional_inputs)
    if not torch.is_grad_enabled() or not any(isinstance(each, Tensor) and each.requires_grad for each in given):
        with torch._C._AutoDispatchBelowAutograd():
            return scan_op(combine_fn, init, xs, additional_inputs)
    more = _sizes(given, additional_inputs)
    additional_inputs, combine_fn = (*additional_inputs, *more), _without_last(combine_fn, len(more))
    given = (*given, *more)
    constant = [each for each in init if each.dtype.is_floating_point and not each.requires_grad]
    with disable_proxy_modes_tracing():
        for each in constant:  # a step's state has gradients of the steps behind it though the first one has none
            each.requires_grad_()
        try:
            parts = _partitioned(combine_fn, (*init, *(each[0] for each in xs), *additional_inputs), len(init) + len(xs))
        finally:
            for each in constant:
                each.requires_grad_(False)
    return _Scan.apply(parts, len(init), len(xs), len(additional_inputs), *given)


def _sizes(given: Sequence[object], known: Sequence[object]) -> list[torch.SymInt]:
    """Sizes of the operands that are symbols, but for those that are given: as operands they are there in every step, and none is kept."""
    sizes = [size for each in given if isinstance(each, Tensor) for size in each.shape if isinstance(size, torch.SymInt)]
    symbols = {size.node.expr: size for size in sizes if size.node.expr.is_Symbol}
    named = {each.node.expr for each in known if isinstance(each, torch.SymInt)}
    return [size for symbol, size in symbols.items() if symbol not in named]


def _without_last(step: Callable[..., object], count: int) -> Callable[..., object]:
    return (lambda *operands: step(*operands[:-count])) if count else step


def _partitioned(step: Callable[..., object], given: tuple[object, ...], changing: int) -> HopPartitionedGraph:
    """The graphs of a step and of its gradients. changing: the first so many operands are others in every step."""
    # What is written in place is no more before there are gradients of it, and ops are still those that have gradients of their own.
    plain = materialize_as_graph(step, given, subgraph_decomp_table={})
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(DispatchKey.Functionalize)
    functional = torch.func.functionalize(plain, remove="mutations")
    plain = materialize_as_graph(functional, given, exclude_key_set=excluded, subgraph_decomp_table={torch.ops.aten.copy.default: _copied})
    joint = create_hop_joint_graph(plain, given, functionalize=True)  # pyright: ignore[reportArgumentType]
    graph = joint.joint_gm.graph
    inputs = list(graph.find_nodes(op="placeholder"))
    changed = {*inputs[:changing], *inputs[len(given) :], *keep_drawn(graph)}
    for node in (each for each in graph.nodes if each.op == "call_function" and each not in changed):
        if not changed.isdisjoint(node.all_input_nodes):
            changed.add(node)
        elif any(isinstance(each, Tensor) for each in pytree.tree_leaves(node.meta.get("val"))):  # one of them, or several (a norm)
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    return joint.partition(min_cut_rematerialization_partition, always_recompute_complex_exprs=True)


def _copied(to: Tensor, value: Tensor, non_blocking: bool = False) -> Tensor:
    """What `copy_` leaves: the op that it is where nothing is written has no gradients."""
    return value.to(to.dtype).expand_as(to).clone()


def keep_drawn(graph: fx.Graph) -> set[fx.Node]:
    """Has a partition keep what is drawn for the backward pass, which would draw anew. Returns these nodes."""
    from disc.frontend.lowering import is_random  # loaded when a graph is compiled, not where its trace is kept

    drawn = [node for node in graph.nodes if node.op == "call_function" and (is_random(node.target) or draws_in_eager(node.target))]
    kept = {each for node in drawn for each in (node, *(user for user in node.users if user.target is operator.getitem))}
    for node in kept:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return kept


class _Scan(ScanAutogradOp):
    """With gradients that have none: what a step keeps for them is to PyTorch no function of the operands, so that gradients of gradients
    would lack a part."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.no_grad():
            found = ScanAutogradOp.backward(ctx, *gradients)
        scan = ctx._scan_impl
        given = (*scan.init, *scan.xs, *scan.additional_inputs, *gradients)
        sources = [each for each in given if isinstance(each, Tensor) and each.requires_grad]
        if not torch.is_grad_enabled() or not sources:
            return found
        return tuple(_Last.apply(each, *sources) if isinstance(each, Tensor) else each for each in found)


class _Last(torch.autograd.Function):
    """A gradient, and what it is a function of."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: object, *gradients: object) -> None:
        torch.autograd.set_detect_anomaly(False)  # what traces has it on, and would warn of what is only refused
        raise UnsupportedOpError([UnsupportedOp("scan", "gradients of gradients", running_line())])


class _Copying(ScanAutogradImpl):
    def _optimize_forward_intermediates(self) -> None:
        super()._optimize_forward_intermediates()
        _copy_results(self.hop_partitioned_graph.fw_gm, self.hop_partitioned_graph.n_fw_outputs)

    def _break_bw_input_output_aliasing(self) -> None:
        _copy_results(self.hop_partitioned_graph.bw_gm, 0)

    def call_backward(self, *grad_fw_outputs: Tensor) -> tuple[object, ...]:
        self.saved_fw_additional_inputs = [each.clone() if isinstance(each, Tensor) else each for each in self.saved_fw_additional_inputs]
        return super().call_backward(*(each.clone(memory_format=torch.contiguous_format) for each in grad_fw_outputs))


def _copy_results(module: fx.GraphModule, first: int) -> None:
    """From the one with this number on."""
    output = module.graph.output_node()
    results = list(output.args[0])  # pyright: ignore[reportArgumentType]
    with module.graph.inserting_before(output):
        for place in range(first, len(results)):
            value = results[place].meta.get("val") if isinstance(results[place], fx.Node) else None
            if isinstance(value, Tensor):
                copy = module.graph.call_function(
                    torch.ops.aten.clone.default, (results[place],), {"memory_format": torch.contiguous_format}
                )
                copy.meta = dict(results[place].meta)
                results[place] = copy
    output.args = (tuple(results),)
    module.recompile()
