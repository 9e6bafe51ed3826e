"""Every override is needed: torch-mlir's own form of a call of each op is found wanting, in the way that the override says.

Where a new torch-mlir does better, this fails, and the rule can go.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_mlir import ir

from disc.errors import DiscError
from disc.frontend import lowering
from disc.frontend.lowering import LoweredGraph, lower_graph
from disc.frontend.rules import OVERRIDES
from disc.frontend.rules.overrides import Fault
from disc.frontend.torch_mlir_calls import Form
from disc.ir.passes import CompileState, run_passes
from disc.passes.pipelines import GRAPH
from tests.diff.single_calls import (
    SIZES,
    CallGraph,
    In,
    SingleCall,
    Size,
    call,
    difference,
    eager,
    finite,
    first,
    from_the_end,
    front_context,
    interpreted,
    named,
    nonzero,
    places,
    positive,
)  # fmt: skip

aten = torch.ops.aten
A, B = Size("a"), Size("b")
X, INTEGERS, BOOLS = In("a b 4"), In("a b 4", torch.int64), In("a b 4", torch.bool)
BYTES = In("a b 4", torch.uint8, positive)
ROW = In("4")
INDEX = In("3", torch.int64, places)
WINDOW = ([4, 4, 4], [2, 2, 2], [1, 1, 1], True)


def pool(dims: int) -> tuple[object, ...]:
    return (In(" ".join(["a 2", *["9"] * dims])), *(part if isinstance(part, bool) else part[:dims] for part in WINDOW))


SHIFTED = (In("", torch.int32), In("4", torch.int32, first))
WITNESSES: tuple[SingleCall, ...] = (
    *(call(getattr(aten, name).default, X) for name in ("erfc", "erfinv", "lgamma", "digamma")),
    call(aten.abs.default, BYTES),
    call(aten.bitwise_left_shift.Tensor, *SHIFTED), call(aten.bitwise_right_shift.Tensor, *SHIFTED),
    call(aten.bitwise_left_shift.Tensor_Scalar, INTEGERS, 1), call(aten.bitwise_right_shift.Tensor_Scalar, INTEGERS, 1),
    *(call(packet.Tensor, INTEGERS, In("4", torch.int64, first)) for packet in (aten.__lshift__, aten.__rshift__)),
    *(call(packet.Scalar, INTEGERS, 1) for packet in (aten.__lshift__, aten.__rshift__)),
    call(aten.fmod.Scalar, X, 2.0), call(aten.fmod.Tensor, X, X),
    call(aten.div.Tensor_mode, X, X, rounding_mode="floor"), call(aten.div.Scalar_mode, X, -0.3, rounding_mode="floor"),
    call(aten.floor_divide.default, X, X), call(aten.floor_divide.Scalar, X, -0.3),
    call(aten.remainder.Tensor, INTEGERS, In("a b 4", torch.int64, nonzero)), call(aten.remainder.Scalar, INTEGERS, -3),
    call(aten.pow.Tensor_Scalar, X, 0.5), call(aten.clamp.Tensor, X, ROW, In("")),
    call(aten.clamp.default, INTEGERS, None, 2.5), call(aten.clamp_min.default, INTEGERS, 0.5), call(aten.clamp_max.default, INTEGERS, 0.5),
    call(aten.add.Tensor, X, 0), call(aten.add.Scalar, X, 0),
    call(aten.isinf.default, BYTES), call(aten.trunc.default, X),
    call(aten._to_copy.default, X, dtype=torch.int64), call(torch.ops.prims.convert_element_type.default, X, torch.int64),
    call(aten.roll.default, X, [3, -1], [0, 1]), call(aten.detach_.default, X), call(aten.view.dtype, X, torch.int32),
    call(aten.signbit.default, In("a b 4", torch.bfloat16)), call(aten.copysign.Tensor, X, X), call(aten.copysign.Scalar, X, -1.0),
    call(aten.hypot.default, X, X), call(aten.fmax.default, X, In("")), call(aten.fmin.default, X, In("")),
    call(aten.view.default, X, [A, -1]), call(aten._unsafe_view.default, X, [A, -1]), call(aten.reshape.default, X, [A, -1]),
    call(aten.flatten.using_ints, X), call(aten.unflatten.int, X, 1, [B, 1]), call(aten.view_copy.default, X, [-1]),
    call(aten.squeeze.default, In("a 1 4")), call(aten.squeeze.dim, X, 1), call(aten.squeeze.dims, In("a 1"), [1]),
    call(aten.transpose.int, In(""), 0, -1), call(aten.repeat.default, X, [2, 1, 1]), call(aten.as_strided.default, In("3 4"), [3, 4], [4, 1]),
    call(aten.unbind.int, X, 2), call(aten.slice.Tensor, X, 1, 0, -1), call(aten.select.int, X, 1, 0),
    call(aten.slice_scatter.default, X, In("a b 4"), 1, 1, sys.maxsize), call(aten.select_scatter.default, In("a 4"), In("b"), 1, 3),
    call(aten.split.Tensor, X, B, 1), call(aten.split_with_sizes.default, X, [B, 0], 1), call(aten.chunk.default, X, 2, 1),
    call(aten.constant_pad_nd.default, X, [A, 1], 0.0),
    call(aten.full.default, [3], 1, dtype=torch.uint8), call(aten.zeros.default, [A, 4]), call(aten.ones.default, [A, 4]),
    call(aten.new_full.default, BYTES, [], 1), call(aten.full_like.default, In("", torch.uint8, positive), 1),
    call(aten.new_zeros.default, X, [B, 2]), call(aten.new_ones.default, X, [B, 2]),
    call(aten.empty.memory_format, [A, 4]), call(aten.empty_like.default, X), call(aten.new_empty.default, X, [B, 2]),
    call(aten.empty_strided.default, [A, 4], [4, 1]), call(aten.empty_permuted.default, [A, 4], [0, 1]),
    call(aten.scalar_tensor.default, 2.5, dtype=torch.uint8), call(aten.arange.start_step, 9, 0, -2),
    call(aten.sum.dim_IntList, In(""), [0], True), call(aten.mean.dim, In(""), [0], True), call(aten.prod.dim_int, In(""), 0),
    *(call(packet.default, X, [0]) for packet in (aten.amax, aten.amin)), *(call(packet.default, X) for packet in (aten.max, aten.min)),
    *(call(packet.dim, X, 0) for packet in (aten.max, aten.min)), *(call(packet.default, X, 0) for packet in (aten.argmax, aten.argmin)),
    *(call(packet.default, BYTES) for packet in (aten.any, aten.all)), *(call(packet.dim, BYTES, 1) for packet in (aten.any, aten.all)),
    call(aten.any.dims, BYTES, [1]), call(aten.all.dims, BOOLS, [1]),
    *(call(packet.default, X, 1) for packet in (aten.cumsum, aten.cumprod, aten.cummax, aten.cummin)),
    call(aten.addmm.default, In("a 4"), In("a 4", values=finite), In("4 4", values=finite), beta=0), call(aten.baddbmm.default, X, In("a b 4", values=finite), In("a 4 4", values=finite), beta=0),
    call(aten.convolution.default, In("a 2 9", values=finite), In("3 2 b", values=finite), None, [1], [4], [1], False, [0], 1),
    call(aten.index_select.default, X, 2, In("", torch.int64, first)), call(aten.gather.default, In(""), 0, In("", torch.int64, first)),
    call(aten.index.Tensor, In("5 b"), [In("3", torch.int64, from_the_end)]),
    *(
        call(packet.default, In("5 4"), [In("1", torch.int64, from_the_end)], In("1 4"))
        for packet in (aten.index_put, aten._unsafe_index_put)
    ),
    call(aten.scatter.src, In(""), 0, In("", torch.int64, first), In("")), call(aten.scatter.value, In(""), 0, In("", torch.int64, first), 1.0),
    call(aten.scatter_add.default, In(""), 0, In("", torch.int64, first), In("")),
    call(aten._unsafe_index.Tensor, In("5 b"), [INDEX]), call(aten.diagonal.default, In("3 4")), call(aten.unfold.default, In("a 9"), 1, 3, 2),
    call(aten.index_add.default, In("a 5"), 1, INDEX, In("a 3")), call(aten.index_copy.default, In("a 5"), 1, In("1", torch.int64, places), In("a 1")),
    call(aten.scatter_reduce.two, In("a 5"), 1, In("a 1", torch.int64, places), In("a 1"), "amax"),
    call(aten.max_pool2d_with_indices.default, In("a 2 9 9"), [3, 3]), call(aten.max_pool3d_with_indices.default, In("a 2 9 9 9"), [3, 3, 3]),
    call(aten.rand.default, [A, 4]), call(aten.randn.default, [A, 4]), call(aten.randint.default, 9, [A, 4]), call(aten.randint.low, 3, 9, [A, 4]),
    *(call(packet.default, X) for packet in (aten.rand_like, aten.randn_like, aten.uniform, aten.normal_functional, aten.bernoulli,
                                             aten.exponential, aten.cauchy, aten.log_normal, aten.random, aten.poisson,
                                             aten._standard_gamma)),
    call(aten.normal.Tensor_float, X, 2.0), call(aten.normal.float_Tensor, 1.0, X), call(aten.normal.Tensor_Tensor, X, X),
    call(aten.normal.float_float, 1.0, 2.0, [A, 4]), call(aten.bernoulli.p, X, 0.5), call(aten.bernoulli.Tensor, X, X),
    call(aten.geometric.default, X, 0.5), call(aten.randint_like.default, X, 9), call(aten.randint_like.low_dtype, X, 3, 9),
    call(aten.random.to, X, 9), call(getattr(aten.random, "from"), X, 3, 9),
    call(aten.sort.default, X), call(aten.sort.stable, X, stable=True), call(aten.topk.default, X, 2),
    call(aten.searchsorted.Tensor, In("7"), X), call(aten.searchsorted.Scalar, In("7"), 1.0),
    call(aten.bucketize.Tensor, X, In("7")), call(aten.bucketize.Scalar, 1.0, In("7")), call(aten.histc.default, X, 5, -1, 1),
    *(call(packet.default, In("a 4 4", values=finite)) for packet in (
        aten.linalg_cholesky, aten.cholesky, aten.linalg_inv, aten.inverse, aten.linalg_det, aten.det, aten.linalg_slogdet)),
    call(aten.cholesky_solve.default, In("4 b"), In("4 4", values=finite)), call(aten.linalg_solve.default, In("4 4", values=finite), In("4 b")),
    call(aten.linalg_solve_triangular.default, In("4 4", values=finite), In("4 b"), upper=True),
    *(call(packet.default, In("a 4 4", values=finite)) for packet in (
        aten.linalg_qr, aten.linalg_lu_factor_ex, aten.linalg_lu, aten._linalg_eigh, aten._linalg_svd, aten.linalg_matrix_exp,
        aten.linalg_cholesky_ex, aten.linalg_inv_ex, aten._linalg_det, aten._linalg_slogdet)),
    call(aten.linalg_householder_product.default, In("a 4 4"), In("a 4")), call(aten._linalg_solve_ex.default, In("a 4 4", values=finite), In("a 4 b")),
    call(aten.lu_unpack.default, In("a 4 4"), In("a 4", torch.int32, positive)), call(aten.linalg_lu_solve.default, In("a 4 4"), In("a 4", torch.int32, positive), In("a 4 b")),
    call(aten.special_zeta.default, X, X), call(aten.special_zeta.self_scalar, 2.0, X), call(aten.special_zeta.other_scalar, X, 2.0),
    call(aten.gcd.default, INTEGERS, INTEGERS), call(aten.lcm.default, INTEGERS, INTEGERS), call(aten.igamma.default, X, X), call(aten.igammac.default, X, X), call(aten.logcumsumexp.default, X, 1),
    call(aten._grouped_mm.default, In("a 16", torch.bfloat16), In("3 16 8", torch.bfloat16), In("3", torch.int32, places)),
    call(aten.avg_pool1d.default, *pool(1)), call(aten.avg_pool2d.default, *pool(2)), call(aten.avg_pool3d.default, *pool(3)),
)  # fmt: skip


def lowered(each: SingleCall, monkeypatch: pytest.MonkeyPatch, form: Form | None) -> tuple[CallGraph, LoweredGraph]:
    """The call by torch-mlir's form, or by the override where there is none."""
    monkeypatch.setattr(lowering, "FORMS", {each.op: form} if form else {})
    graph = CallGraph()
    assert graph.add(each), f"{each}: PyTorch refuses it"
    return graph, lower_graph(graph.source(), front_context())


def op_count(module: ir.Module, state: CompileState) -> int:
    run_passes(module, GRAPH, state)
    return sum(" = " in line and "symbolic_dim" not in line for line in str(module).splitlines())


def answer(program: LoweredGraph, tensors: list[torch.Tensor]) -> list[np.ndarray] | None:
    """The results; None where the program refuses the call."""
    try:
        return interpreted(program.module, program.weights, tensors)
    except DiscError:
        return None


def is_wrong(graph: CallGraph, each: SingleCall, theirs: LoweredGraph, own: LoweredGraph) -> bool:
    """Whether torch-mlir's form answers otherwise than eager, or not where the override does."""
    for sizes in SIZES:
        tensors = graph.draw(sizes)
        wanted, found = eager(each, [tensors[place] for place in graph.operands[each]], sizes), answer(theirs, tensors)
        if wanted is None or found is None:
            as_eager = (answer(own, tensors) is None) == (wanted is None)
            if as_eager and (wanted is None) != (found is None):
                return True
        elif any(difference(*pair) for pair in zip(found, wanted, strict=True)):
            return True
    return False


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """At most so many bytes more: some forms would take all that there is before they fail."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def faults(each: SingleCall, monkeypatch: pytest.MonkeyPatch) -> set[Fault]:
    """What is wrong with torch-mlir's form of the call."""
    try:
        with limited_memory(2 << 30):
            graph, program = lowered(each, monkeypatch, Form())
            state = named(program.module, program.weights)
    except (DiscError, MemoryError):  # a CompilerBug: ops that are not legal at stage `named`
        return {Fault.REFUSED}
    _, own = lowered(each, monkeypatch, None)
    own_state = named(own.module, own.weights)
    found = {Fault.WRONG} if is_wrong(graph, each, program, own) else set[Fault]()
    return found | ({Fault.WORSE} if op_count(program.module, state) > op_count(own.module, own_state) else set())


@pytest.mark.parametrize("each", [each for each in WITNESSES if OVERRIDES[each.op].fault is not Fault.CRASH], ids=lambda each: str(each.op))
def test_torch_mlir_is_found_wanting(each: SingleCall, monkeypatch: pytest.MonkeyPatch) -> None:
    override = OVERRIDES[each.op]
    assert override.fault in faults(each, monkeypatch), f"{each.op}: {override.because}: this is no longer so"


def _lower(each: SingleCall) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        lowered(each, monkeypatch, Form())


@pytest.mark.parametrize("each", [each for each in WITNESSES if OVERRIDES[each.op].fault is Fault.CRASH], ids=lambda each: str(each.op))
def test_torch_mlir_crashes(each: SingleCall) -> None:
    process = multiprocessing.get_context("fork").Process(target=_lower, args=(each,))
    process.start()
    process.join(60)
    assert process.exitcode is not None and process.exitcode < 0, f"{each.op}: {OVERRIDES[each.op].because}: this is no longer so"


def test_every_override_has_a_witness() -> None:
    assert {each.op for each in WITNESSES} == set(OVERRIDES)
    assert all(override.because for override in OVERRIDES.values())
