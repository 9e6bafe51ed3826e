"""Sums, means, extremes, arg-extremes, any/all, scans."""

from __future__ import annotations

import math

import torch
from torch_mlir import ir

from disc.frontend.call import TAKES_NOTHING, Call
from disc.frontend.locations import line_text
from disc.frontend.op_builder import NO_RULE, REDUCED_PRECISION, OpBuilder, RuleError, Tensor, wrap_dim
from disc.frontend.rules.overrides import Fault, Override, Rule, overrides
from disc.frontend.symbols import product

aten = torch.ops.aten
REFUSED, WRONG = Fault.REFUSED, Fault.WRONG


def reduced_dims(call: Call, rank: int, name: str = "dim") -> list[int]:
    if not call.has(name) or call.raw(name) == []:
        return list(range(rank))
    return sorted({wrap_dim(dim, rank) for dim in call.integers(name)}) if rank else []


def lowest(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def require_elements(e: OpBuilder, call: Call, x: Tensor, dims: list[int]) -> None:
    """There is no extreme of nothing, as in eager; what softmax makes of it is nothing too."""
    if TAKES_NOTHING in call.node.meta:
        return
    for dim in dims:
        e.require(">=", x.shape[dim], 1, f"{call.node.target} at {line_text(call.node)} has no value for a dim of size 0")


def reduced(e: OpBuilder, x: Tensor, kind: str, initial: bool | int | float, dims: list[int], call: Call) -> Tensor:
    return e.reshape(e.reduce(x, kind, initial, dims), call.shape)


def extreme(kind: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor:
        x = call.tensor("self")
        initial = lowest(x.dtype) if kind == "maximum" else highest(x.dtype)
        dims = reduced_dims(call, x.rank)
        require_elements(e, call, x, dims)
        return reduced(e, x, kind, initial, dims, call)

    return rule


def any_or_all(kind: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor:
        x = e.convert(call.tensor("self"), torch.bool)
        result = reduced(e, x, kind, kind == "and", reduced_dims(call, x.rank), call)
        return e.convert(result, call.dtype)

    return rule


def first_index(e: OpBuilder, x: Tensor, best: Tensor, dim: int) -> Tensor:
    """The first position along `dim` that holds `best` (x reduced over dim); NaN is found where PyTorch finds it."""
    spread = e.broadcast(e.unsqueeze(best, dim), x.shape)
    hit = e.compare("eq", x, spread)
    if x.dtype.is_floating_point:
        hit = e.binary("or", hit, e.compare("ne", x, x))
    position = e.iota(x.shape, dim, torch.int64)
    none = torch.iinfo(torch.int64).max
    return e.reduce(e.select(hit, position, e.full(none, x.shape, torch.int64)), "minimum", none, [dim])


def arg_extreme(kind: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor:
        x = call.tensor("self")
        if x.rank == 0:
            return e.scalar(0, torch.int64)
        require_elements(e, call, x, [wrap_dim(call.integer("dim"), x.rank)] if call.has("dim") else list(range(x.rank)))
        if not call.has("dim"):
            x = e.reshape(x, (product(x.shape),))
        dim = wrap_dim(call.integer("dim"), x.rank) if call.has("dim") else 0
        best = e.reduce(x, kind, lowest(x.dtype) if kind == "maximum" else highest(x.dtype), [dim])
        return e.reshape(first_index(e, x, best, dim), call.shape)

    return rule


def extreme_with_index(kind: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
        x = call.tensor("self")
        dim = wrap_dim(call.integer("dim"), x.rank)
        if x.rank == 0:
            return x, e.scalar(0, torch.int64)
        require_elements(e, call, x, [dim])
        best = e.reduce(x, kind, lowest(x.dtype) if kind == "maximum" else highest(x.dtype), [dim])
        return e.reshape(best, call.shape), e.reshape(first_index(e, x, best, dim), call.shape)

    return rule


def scan(kind: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> Tensor:
        x = e.convert(call.tensor("self"), call.dtype)
        return cumulative(e, x, wrap_dim(call.integer("dim"), x.rank), kind)

    return rule


def cumulative(e: OpBuilder, x: Tensor, dim: int, kind: str) -> Tensor:
    if x.rank == 0:
        return x
    wide = e.convert(x, torch.float32) if x.dtype in REDUCED_PRECISION else x
    i64 = ir.IntegerType.get_signless(64)
    scanned = e.op("disc.cumulative", [wide.value], x.shape, wide.dtype, dim=ir.IntegerAttr.get(i64, dim), kind=ir.StringAttr.get(kind))
    return e.convert(scanned, x.dtype)


def scan_with_index(kind: str) -> Rule:
    def rule(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
        x = call.tensor("self")
        dim = wrap_dim(call.integer("dim"), x.rank)
        values = cumulative(e, x, dim, kind)
        if not any(user.args[1] == 1 and user.users for user in call.node.users):
            return (values,)
        if x.rank == 0:
            return values, e.scalar(0, torch.int64)
        return values, last_change(e, x, values, dim)

    return rule


def last_change(e: OpBuilder, x: Tensor, values: Tensor, dim: int) -> Tensor:
    """Where the extreme up to each place lies: the last of equal ones, or the last NaN."""
    changes = e.compare("eq", x, values)
    if x.dtype.is_floating_point:
        changes = e.binary("or", changes, e.compare("ne", x, x))
    places = e.select(changes, e.iota(x.shape, dim, torch.int64), e.full(0, x.shape, torch.int64))
    return cumulative(e, places, dim, "max")


def of_no_dims(e: OpBuilder, call: Call) -> Tensor:
    """The sum, mean or product of a tensor without dims: its element."""
    x = call.tensor("self")
    if x.rank:
        raise RuleError(NO_RULE)
    return e.convert(x, call.dtype)


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.CRASH, "of a tensor without dims that keeps its dims", {aten.sum.dim_IntList: of_no_dims, aten.mean.dim: of_no_dims}),
    **overrides(REFUSED, "of a tensor without dims", {aten.prod.dim_int: of_no_dims}),
    **overrides(WRONG, "an answer for a dim of size 0; the extremes of numbers without a sign", {
        aten.amax.default: extreme("maximum"), aten.amin.default: extreme("minimum"),
        aten.max.default: extreme("maximum"), aten.min.default: extreme("minimum"),
    }),
    **overrides(WRONG, "an answer for a dim of size 0", {
        aten.max.dim: extreme_with_index("maximum"), aten.min.dim: extreme_with_index("minimum"),
        aten.argmax.default: arg_extreme("maximum"), aten.argmin.default: arg_extreme("minimum"),
    }),
    **overrides(WRONG, "of bytes, whose bits are combined", {
        aten.any.default: any_or_all("or"), aten.any.dim: any_or_all("or"), aten.any.dims: any_or_all("or"),
        aten.all.default: any_or_all("and"), aten.all.dim: any_or_all("and"),
    }),
    **overrides(REFUSED, "no StableHLO lowering", {
        aten.all.dims: any_or_all("and"), aten.cumsum.default: scan("sum"), aten.cumprod.default: scan("prod"),
        aten.cummax.default: scan_with_index("max"), aten.cummin.default: scan_with_index("min"),
    }),
}  # fmt: skip
