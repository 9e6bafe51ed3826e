"""Every kind of call that goes through torch-mlir gives what eager gives: each form of the allow-list, in each type that it takes.

All calls are lowered in one graph, which is interpreted at sizes of 0, 1 and more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import pytest
import torch

from disc.frontend.allow_list import FORMS
from disc.frontend.lowering import lower_graph, planned_call
from disc.frontend.op_builder import RuleError
from disc.frontend.torch_mlir_calls import ALL, CARRIERS
from tests.diff.single_calls import (
    SIZES,
    CallGraph,
    In,
    SingleCall,
    Size,
    Values,
    anything,
    call,
    difference,
    eager,
    finite,
    front_context,
    interpreted,
    named,
    nonzero,
    places,
    positive,
)  # fmt: skip

aten = torch.ops.aten
FIRST = (3, -2, 2.5)  # numbers beside a tensor
ZEROS_WITHOUT_SIGN = (aten.relu.default,)  # the larger of -0.0 and 0.0 is either
CONVERSIONS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
OVERRIDDEN_WITHOUT_DIMS = (aten.sum.dim_IntList, aten.mean.dim, aten.prod.dim_int)


def calls_of(op: torch._ops.OpOverload, dtype: torch.dtype) -> Iterator[SingleCall]:
    """Calls of a form with tensors of `dtype`."""

    def tensor(dims: str, values: Values = anything) -> In:
        return In(dims, dtype, values)

    names = [argument.name for argument in op._schema.arguments]
    x, kind = tensor("a b 4"), op._schema.name.removeprefix("aten::")
    if op in CONVERSIONS:
        for other in sorted(ALL, key=str):
            yield call(op, x, **{"dtype": other}) if op is CONVERSIONS[0] else call(op, x, other)
    elif kind == "where":
        for one, other in ((tensor("b 4"), tensor("a 1 1")), (x, tensor(""))):
            yield call(op, In("a 1 4", torch.bool), *_of(op, one, other))
    elif kind == "masked_fill":
        yield call(op, x, In("b 1", torch.bool), tensor("") if op is aten.masked_fill.Tensor else 2)
    elif kind == "embedding":
        yield call(op, tensor("5 4"), In("a b", torch.int64, places))
        yield call(op, tensor("5 4"), In("a", torch.int32, places), 1)
    elif kind == "copy":
        yield call(op, x, In("b 4"))
        yield call(op, In("a 4"), tensor("4"))
    elif kind == "cat":
        yield call(op, [x, tensor("a b 3")], -1)
        yield call(op, [tensor("a 4"), In("b 4", torch.int64), tensor("2 4")], 0)
        yield call(op, [tensor("0"), tensor("a 4")], 0)
    elif kind.endswith("_like"):
        yield call(op, x, *([2] if kind == "full_like" else []))
        yield call(op, x, *([2.5] if kind == "full_like" else []), dtype=torch.float32)
    elif kind in ("mm", "bmm", "mv", "dot", "matmul", "linear", "addmm", "baddbmm", "convolution"):
        yield from _products(op, kind, dtype)
    elif kind == "pow":
        base = tensor("a b 4", positive)
        yield call(op, 2, base) if op is aten.pow.Scalar else call(op, base, tensor("b 4", positive))
    elif kind in ("sum", "mean", "prod"):
        yield from _sums(op, kind, dtype)
    elif kind in ("unsqueeze", "permute", "t", "expand", "flip", "transpose"):
        yield from _views(op, kind, dtype)
    elif "other" in names:
        yield from _binary(op, dtype)
    else:
        yield call(op, x)
        yield call(op, tensor(""))


def _of(op: torch._ops.OpOverload, one: In, other: In) -> tuple[object, object]:
    """The two, or numbers where the op takes numbers."""
    overload = op._overloadname
    return 2 if overload in ("Scalar", "ScalarSelf") else one, 2.5 if overload in ("Scalar", "ScalarOther") else other


def _binary(op: torch._ops.OpOverload, dtype: torch.dtype) -> Iterator[SingleCall]:
    values = nonzero if "div" in op._opname else anything
    x = In("a b 4", dtype)
    if op._overloadname == "Scalar":
        numbers = [number for number in FIRST if "bitwise" not in op._opname or isinstance(number, int)]
        yield from (call(op, x, number) for number in numbers)
        return
    for other in ("a b 4", "b 1", ""):
        yield call(op, x, In(other, dtype, values))
    yield call(op, In("", dtype), In("b 4", dtype, values))
    yield call(op, x, In("4", torch.float64, values))
    yield call(op, In("4", torch.int64), In("", dtype, values))
    if op in (aten.add.Tensor, aten.mul.Tensor):
        yield call(op, x, 2.5)
        yield call(op, x, Size("a"))
    if op in (aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor):
        yield call(op, x, x, alpha=3)


def _sums(op: torch._ops.OpOverload, kind: str, dtype: torch.dtype) -> Iterator[SingleCall]:
    x = In("a b 4", dtype)
    if kind == "prod":
        yield call(op, x, 1, True) if op is aten.prod.dim_int else call(op, In("b", dtype))
    elif op._overloadname == "default":
        yield call(op, x)
        yield call(op, In("", dtype))
    else:
        for dims in ([-1], [0, 2], [1], [], None):
            yield call(op, x, dims, True)
            yield call(op, x, dims)
        yield call(op, In("", dtype), [0], True)
        yield call(op, x, [1], dtype=torch.float32)


def _views(op: torch._ops.OpOverload, kind: str, dtype: torch.dtype) -> Iterator[SingleCall]:
    x = In("a b 4", dtype)
    given: dict[str, list[tuple[object, ...]]] = {
        "unsqueeze": [(x, 0), (x, -1), (In("", dtype), 0)],
        "permute": [(x, [2, 0, 1]), (x, [-1, 0, 1]), (In("", dtype), [])],
        "t": [(In("a 4", dtype),), (In("a", dtype),), (In("", dtype),)],
        "expand": [
            (In("a 1 4", dtype), [-1, Size("b"), -1]), (In("4", dtype), [Size("a"), 4]), (In("", dtype), [Size("a"), 3]),
            (x, [Size("a"), Size("b"), 4]), (In("3 1", dtype), [2, 3, 5]),
        ],
        "flip": [(x, [0, -1]), (x, [])],
        "transpose": [(x, 0, -1), (x, 1, 1)],
    }  # fmt: skip
    yield from (call(op, *args) for args in given[kind])


def _products(op: torch._ops.OpOverload, kind: str, dtype: torch.dtype) -> Iterator[SingleCall]:
    def of(*dims: str) -> list[In]:
        return [In(each, dtype, finite) for each in dims]

    given = {
        "mm": [of("a 4", "4 b")],
        "bmm": [of("a b 4", "a 4 3"), of("a 4 b", "a b 4")],
        "mv": [of("a 4", "4")],
        "dot": [of("4", "4")],
        "matmul": [
            of("a b 4", "4 3"), of("a b 4", "a 4 b"), of("a 2 b 4", "a 2 4 b"), of("4", "4"), of("a 4", "4"), of("4", "a 4 3"),
            of("a b 4", "4"), of("a 1 b 4", "2 4 3"), of("4", "4 b"),
        ],
        "linear": [of("a b 4", "3 4", "3"), of("a 4", "3 4"), of("4", "3 4", "3"), of("a 4", "b 4")],
        "addmm": [of("3", "a 4", "4 3"), of("a b", "a 4", "4 b"), of("a 1", "a 4", "4 b")],
        "baddbmm": [of("a b 3", "a b 4", "a 4 3"), of("3", "a b 4", "a 4 3")],
    }  # fmt: skip
    yield from (call(op, *args) for args in given.get(kind, []))
    if kind == "convolution":
        for x, weight, bias in ((of("a 2 9 9", "4 2 3 3", "4")), (of("a 2 b 9", "4 2 1 3", "4"))):
            yield call(op, x, weight, bias, [2, 1], [1, 1], [1, 1], False, [0, 0], 1)
            yield call(op, x, weight, None, [1, 1], [0, 1], [1, 2], False, [0, 0], 1)
        x, weight, bias = of("a 4 9", "6 2 3", "6")
        yield call(op, x, weight, bias, [2], [1], [1], False, [0], 2)
        x, weight = of("a 2 5 5 5", "3 2 3 3 3")
        yield call(op, x, weight, None, [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", sorted({*ALL, *CARRIERS}, key=str), ids=str)
def test_forms_agree_with_eager(dtype: torch.dtype) -> None:
    graph = CallGraph()
    for op in FORMS:
        for each in calls_of(op, dtype):  # pyright: ignore[reportArgumentType]
            if graph.add(each) and not goes_through(graph, each):
                graph.remove(each)
    assert_equal(graph, SIZES)
    assert len(graph.nodes) > (20 if dtype in CARRIERS else 50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8, torch.bool, torch.uint16], ids=str)
def test_tensors_without_dims(dtype: torch.dtype) -> None:
    """Every form, with tensors of rank 0 for all of its operands, gives eager's answer, by an override where torch-mlir has none, and ends no process."""
    graph, refused = CallGraph(), 0
    for op in FORMS:
        each = SingleCall(op, tuple(_without_dims(op, dtype)))  # pyright: ignore[reportArgumentType]
        if not graph.add(each):
            refused += 1
        elif op not in OVERRIDDEN_WITHOUT_DIMS and not goes_through(graph, each):
            graph.remove(each)
    assert_equal(graph, SIZES[:1])
    assert len(graph.nodes) + refused > 25 and len(graph.nodes) > 15


def _without_dims(op: torch._ops.OpOverload, dtype: torch.dtype) -> Iterator[object]:
    """A tensor of rank 0, or the smallest number of what else the op requires."""
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if kind == "Tensor" or (kind == "Optional[Tensor]" and argument.name == "bias"):
            yield In("", torch.bool if argument.name in ("condition", "mask") else dtype, positive)
        elif kind == "List[Tensor]":
            yield [In("", dtype), In("", dtype)]
        elif argument.kwarg_only or argument.has_default_value():
            return
        else:
            smallest = {"int": dtype if argument.name == "dtype" else 0, "number": 2, "bool": False}
            yield smallest.get(kind, [])


def assert_equal(graph: CallGraph, every: Sequence[Mapping[str, int]]) -> None:
    """All calls of the graph give what eager gives, at each of these sizes."""
    lowered = lower_graph(graph.source(), front_context())
    named(lowered.module, lowered.weights)
    wrong: list[str] = []
    for sizes in every:
        tensors = graph.draw(sizes)
        results = iter(interpreted(lowered.module, lowered.weights, tensors))
        for each, (_, parts) in graph.nodes.items():
            ours = [next(results) for _ in parts]
            theirs = eager(each, [tensors[place] for place in graph.operands[each]], sizes)
            zeros = each.op not in ZEROS_WITHOUT_SIGN
            found = [difference(*pair, zeros) for pair in zip(ours, theirs, strict=True)] if theirs is not None else []
            wrong += [f"{each} at {sizes}: {text}" for text in found if text]
    assert not wrong, "\n".join(wrong)


def goes_through(graph: CallGraph, each: SingleCall) -> bool:
    """Whether the form takes the call; another one has an override, or is refused."""
    with suppress(RuleError):
        return planned_call(graph.nodes[each][0]) is not None
    return False
