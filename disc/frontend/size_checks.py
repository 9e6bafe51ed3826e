"""Sizes that eager PyTorch refuses, or takes for another program, although its trace keeps no condition about them.

    torch.nn.functional.pad(x, (1, 1), mode="reflect")      # eager: needs a size of at least 2
                                                            → "s0 >= 2", needed by aten.pad at model.py:12

A trace takes every symbolic size to be at least 2. What PyTorch checks in C++ and what holds for such sizes leaves nothing behind, but disc
takes sizes of 0 and 1, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import fx

from disc.frontend.branch_demands import only_in, premises_within
from disc.frontend.conditions import relation
from disc.frontend.decisions import Decision, Found, Undecided
from disc.frontend.locations import line_text
from disc.frontend.symbols import Size, SymbolError, to_shape
from disc.shapes import Condition, any_of

Arguments = Mapping[str, object]
Needed = Iterable[Condition]
SMALL_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool)


def size_checks(module: fx.GraphModule, arguments_of: Callable[[fx.Node], Arguments]) -> list[Found]:
    """What the calls in `module`, and in the graphs that it calls, need of their sizes. arguments_of: a call's, by name."""
    found: list[Found] = []
    when = premises_within(module)
    for part in (each for each in module.modules() if isinstance(each, fx.GraphModule)):
        for node in part.graph.nodes:
            needs = NEEDS.get(_name(node.target))
            if needs is None:
                continue
            place = line_text(node)
            try:
                why = f"squeeze at {place} would remove it" if needs is _squeezed else f"needed by {node.target} at {place}"
                found += [only_in(when.get(part), Decision(each, why)) for each in needs(node, arguments_of(node))]
            except SymbolError as error:
                found.append(Undecided(f"of the sizes of {node.target}", str(error), place))
    return found


def _name(target: object) -> str:
    return target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""


def _sizes(argument: object) -> Sequence[Size]:
    """Of a node that is a tensor, or of the first of several; none of anything else."""
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else None
    value = value[0] if isinstance(value, list | tuple) else value
    return to_shape(value.shape) if isinstance(value, torch.Tensor) else ()


def _at_least(sizes: Sequence[Size], least: int) -> Iterator[Condition]:
    """Sizes that are numbers have been checked by PyTorch."""
    return (relation(">=", size, least) for size in sizes if not isinstance(size, int))


def _window(dims: int) -> Callable[[fx.Node, Arguments], Needed]:
    """A window that fits its source gives one result or more."""
    return lambda node, arguments: _at_least(_sizes(node)[-dims:], 1)


def _convolution(dims: int) -> Callable[[fx.Node, Arguments], Needed]:
    """As `_window`; a kernel of no size is refused, and of a source without channels eager makes a result without them."""

    def needed(node: fx.Node, arguments: Arguments) -> Needed:
        yield from _window(dims)(node, arguments)
        yield from _at_least(_sizes(arguments["weight"])[1:], 1)

    return needed


def _columns(node: fx.Node, arguments: Arguments) -> Needed:
    """The powers of each element, as many as there are elements: more than one."""
    return _at_least(_sizes(arguments["x"])[-1:], 2) if arguments.get("N") is None else ()


def _kernel_3d(node: fx.Node, arguments: Arguments) -> Needed:
    """Eager's average over three dims requires a source as large as the window, whatever the padding."""
    window = arguments["kernel_size"]
    sizes = list(window) * 3 if isinstance(window, list | tuple) else []
    source = _sizes(arguments["self"])
    for dim, least in zip((-3, -2, -1), sizes, strict=False):
        if isinstance(least, int):
            yield from _at_least([source[dim]], least)


def _padding(node: fx.Node, arguments: Arguments) -> Needed:
    """What is wrapped around or reflected must be there: the whole padding, and the edge that a reflection leaves out."""
    name = _name(node.target)
    mode = arguments.get("mode", "circular" if "circular" in name else "reflect")
    amounts, sizes = arguments.get("pad", arguments.get("padding")), _sizes(arguments["self"])
    if mode not in ("circular", "reflect") or not isinstance(amounts, list | tuple):
        return
    for place, amount in enumerate(amounts):
        if isinstance(amount, int) and amount > 0:
            yield from _at_least([sizes[-1 - place // 2]], amount + (mode == "reflect"))


def _spatial(node: fx.Node, arguments: Arguments) -> Needed:
    return _at_least(_sizes(arguments.get("self", arguments.get("input")))[2:], 1)


def _resampled(node: fx.Node, arguments: Arguments) -> Needed:
    """Of one element or more to one or more."""
    yield from _spatial(node, arguments)
    yield from _at_least(_sizes(node)[2:], 1)


def _all_of_self(node: fx.Node, arguments: Arguments) -> Needed:
    return _at_least(_sizes(arguments["self"]), 1)


def _matrix(node: fx.Node, arguments: Arguments) -> Needed:
    return _at_least(_sizes(arguments["mat"]), 1)


def _classes(node: fx.Node, arguments: Arguments) -> Needed:
    sizes = _sizes(arguments["self"])
    return _at_least(sizes[1:2] if len(sizes) > 1 else sizes, 1)


def _norm(node: fx.Node, arguments: Arguments) -> Needed:
    """There is no least of nothing, nor any other norm of a negative order."""
    order, sizes = arguments.get("ord", arguments.get("p")), _sizes(arguments["self"])
    if not isinstance(order, int | float) or order >= 0:
        return ()
    dims = arguments.get("dim")
    chosen = dims if isinstance(dims, list | tuple) and dims else [dims] if isinstance(dims, int) else range(len(sizes))
    return _at_least([sizes[int(dim)] for dim in chosen], 1) if sizes else ()


def _einsum(node: fx.Node, arguments: Arguments) -> Needed:
    """Where a size is 1 eager adds, which gives int64, and else multiplies matrices, which keeps the type."""
    operands = arguments["tensors"]
    for operand in operands if isinstance(operands, list | tuple) else ():
        if isinstance(operand, fx.Node) and operand.meta["val"].dtype in SMALL_INTEGERS:
            yield from (relation("!=", size, 1) for size in _sizes(operand) if not isinstance(size, int))


def _sum_to_size(node: fx.Node, arguments: Arguments) -> Needed:
    """What has the size already is not summed, and keeps its type."""
    x, wanted = arguments["self"], arguments["size"]
    if not isinstance(x, fx.Node) or x.meta["val"].dtype not in SMALL_INTEGERS or not isinstance(wanted, list | tuple):
        return
    pairs = list(zip(_sizes(x), to_shape(wanted), strict=True)) if len(wanted) == len(_sizes(x)) else []
    if pairs and not any(isinstance(size, int) and isinstance(to, int) and size != to for size, to in pairs):
        yield any_of(relation("!=", size, to) for size, to in pairs if not isinstance(size, int))


def _squeezed(node: fx.Node, arguments: Arguments) -> Needed:
    """A size that PyTorch does not know is taken for one that is not 1; a size of 1 would give a result of another rank."""
    dims, sizes = arguments.get("dim"), _sizes(arguments["self"])
    chosen = range(len(sizes)) if dims is None else [dims] if isinstance(dims, int) else dims if isinstance(dims, list | tuple) else ()
    return (relation("!=", size, 1) for size in (sizes[int(dim)] for dim in chosen if sizes) if not isinstance(size, int))


_UPSAMPLE = "nearest1d nearest2d nearest3d linear1d bilinear2d trilinear3d bicubic2d"
_UPSAMPLE_TOO = "nearest_exact1d nearest_exact2d nearest_exact3d bilinear2d_aa bicubic2d_aa"
NEEDS: dict[str, Callable[[fx.Node, Arguments], Needed]] = {
    **{f"{kind}{dims}d{suffix}": _window(dims) for kind in ("max_pool", "avg_pool") for dims in (1, 2, 3)
       for suffix in ("", "_with_indices")},
    **{f"conv{dims}d": _convolution(dims) for dims in (1, 2, 3)}, "linalg_vander": _columns,
    "avg_pool3d": _kernel_3d,
    **{f"reflection_pad{dims}d": _padding for dims in (1, 2, 3)}, "pad": _padding, "_pad_circular": _padding,
    **{f"upsample_{kind}": _resampled for kind in _UPSAMPLE.split()}, **{f"_upsample_{kind}": _resampled for kind in _UPSAMPLE_TOO.split()},
    "grid_sampler": _spatial, "grid_sampler_2d": _spatial, "grid_sampler_3d": _spatial,
    "cross_entropy_loss": _classes, "multilabel_margin_loss": _all_of_self, "multi_margin_loss": _all_of_self, "addmv": _matrix,
    "linalg_vector_norm": _norm, "norm": _norm, "einsum": _einsum, "sum_to_size": _sum_to_size,
    "squeeze": _squeezed, "squeeze_": _squeezed, "squeeze_copy": _squeezed,
}  # fmt: skip
