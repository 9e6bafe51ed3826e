"""One record per op of stage `named`: what passes, the interpreter and the emitters need to know of it.

A new op begins here: the dialect, the legality of the stages, costs, what fusion may do with it and what the analyses prove of it follow
from its record. What cannot be derived are rules, in tables by op name: values (`interp/`), dims (`passes/shape/shape_rules.py`), code
(`codegen/x86/`). `rules_by_op` refuses a rule for an op that is not here; `tests/unit/ir/test_op_table.py` that a rule is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from disc.errors import CompilerBug
from disc.ir.reads import Map, Place, Reads, at, dims_in, numbers_of
from disc.shapes import Dim, ShapeEnv

if TYPE_CHECKING:
    from disc.ir.graph import Node

R = TypeVar("R")
ZERO = Dim.of(0)
ONE = Dim.of(1)
EXTERNAL = "external.call"  # of no dialect that is registered: an IRDL op with variadic operands demands one type of all of them
IN_RANGE = "disc.in_range"  # of a gather: whoever calls the program sees to it that its indices are in range; they are not reported
WHAT = "disc.what"  # of a gather: what an index out of range means to the user, with "{actual}" and "{expected}" for it and the size
STORED = "disc.store"  # marks a view that its producer writes to memory in the viewed order


class Kind(Enum):
    """What an op does with elements."""

    MADE = auto()  # computed wherever it is read, from positions and sizes: it takes no memory
    STORED = auto()  # lies in memory before the program runs
    ELEMENTWISE = auto()  # from the elements of its operands at the same index
    VIEW = auto()  # each element is one of its operand's, determined by the index
    STRUCTURAL = auto()  # each element is one of its operands', chosen among several or by data
    REDUCTION = auto()
    WINDOW = auto()  # a reduction of what a window sees
    DOT = auto()
    CONVOLUTION = auto()
    SEQUENTIAL = auto()  # element after element, in an order
    LIBRARY = auto()  # by a function of the runtime, which gets whole tensors: a launch of its own
    SIZE = auto()  # a number in memory becomes a size, which the host reads
    CONTROL = auto()  # runs functions of the module: branches and loops of the host program
    END = auto()


class Sizes(Enum):
    """Where the dims of a result come from, in a program that a front end delivers."""

    RULE = auto()  # a rule of name-dims
    OPERANDS = auto()  # those of the operands, which must be equal
    FIRST = auto()  # those of the first operand
    TYPE = auto()  # static ones, of its type
    GIVEN = auto()  # those in vectors of sizes, one for each result, that follow its operands


@dataclass(frozen=True)
class Op:
    """An op of stage `named`.

    cost: vector instructions per element of the result, where memory is not what it waits for; needs: the attributes that it carries
    from stage `named` on, of a library op in the order in which its function gets them: integers, bools and sizes; operands: their names,
    where the op is ours; results: how many it then has; imported: the ops of a front end that become it, itself among them
    where one may deliver it; reads: which elements of its operands it is made of, None where only rules of its own know; reorders,
    repeats: of a view, whether the elements lie in another order, and whether one may be there several times; mixing: what it does to a
    dim of which it does not keep the positions, in words of messages.
    """

    name: str
    kind: Kind
    cost: int = 1
    needs: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    results: int = 1
    imported: tuple[str, ...] = ()
    sizes: Sizes = Sizes.RULE
    reads: Reads | None = None
    reorders: bool = False
    repeats: bool = False
    mixing: str = "it mixes"

    @property
    def dialect(self) -> str:
        return self.name.partition(".")[0]


# --- which elements of its operands an op reads -----------------------------------------------------------------------


def _reads_nothing(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """No operands."""
    return ()


def _reads_elementwise(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Every operand at the index of the result; those without dims have one element for all."""
    return tuple(tuple(map(at, range(len(operand.dims)))) for operand in node.operands)


def _reads_transpose(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    order = node.ints("permutation")
    return (tuple(at(order.index(dim)) for dim in range(len(order))),)


def _reads_broadcast(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Dims of size 1 are repeated."""
    source, undecided = node.operands[0].dims, node.ints("maybe")
    return (
        tuple(
            Place() if source[number] == ONE else Place(ZERO, ((dim, 1),), undecided=number in undecided)
            for number, dim in enumerate(node.ints("dims"))
        ),
    )


def _reads_slice(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    starts = [env.simplify(env.parse(text)) for text in node.texts("starts")]
    return (tuple(Place(start, ((dim, step),)) for dim, (start, step) in enumerate(zip(starts, node.ints("strides"), strict=True))),)


def _reads_diagonals(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    row, column = node.integer("row"), node.integer("column")
    distance = Place(node.dims[row], ((column, 1), (row, -1)))
    return (tuple(distance if dim == column else at(dim) for dim in range(len(node.dims)) if dim != row),)


def _reads_unfold(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    along, inside = node.integer("dim"), len(node.dims) - 1
    window = Place(ZERO, ((along, node.integer("step")), (inside, 1)))
    return (tuple(window if dim == along else at(dim) for dim in range(inside)),)


def _reads_reverse(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    reversed_dims = node.ints("dimensions")
    sizes = enumerate(node.operands[0].dims)
    return (tuple(Place(size - 1, ((dim, -1),)) if dim in reversed_dims else at(dim) for dim, size in sizes),)


def _reads_pad(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    lows, between = [env.simplify(env.parse(text)) for text in node.texts("low")], node.ints("interior")
    return tuple(Place(low * -1, ((dim, 1),), step + 1) for dim, (low, step) in enumerate(zip(lows, between, strict=True))), ()


def _reads_concatenate(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    along, start, found = node.integer("dimension"), ZERO, list[Map]()
    for operand in node.operands:
        found.append(tuple(Place(start * -1 if dim == along else ZERO, ((dim, 1),)) for dim in range(len(node.dims))))
        start = start + operand.dims[along]
    return tuple(found)


def _reads_reduce(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Operands along their kept dims; initial values."""
    gone, found = node.ints("dimensions"), list[Place | None]()
    for dim in range(len(node.operands[0].dims)):
        found.append(None if dim in gone else at(len([place for place in found if place is not None])))
    return _with_initials(node, tuple(found))


def _reads_reduce_window(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """A dim along which the window is one element, and moves by one, is kept."""
    rank = len(node.dims)
    ones, padding = (1,) * rank, node.attrs.get("padding")
    lists = [node.ints(name) or ones for name in ("window_dimensions", "window_strides", "base_dilations")]
    padded = np.zeros((rank, 2)) if padding is None else cast("np.ndarray[tuple[int, ...], np.dtype[np.generic]]", padding)
    plain = [all(each[dim] == 1 for each in lists) and not padded[dim].any() for dim in range(rank)]
    return _with_initials(node, tuple(at(dim, wide=not plain[dim]) for dim in range(rank)))


def _with_initials(node: Node, source: Map) -> tuple[Map, ...]:
    count = len(node.operands) // 2
    return (source,) * count + ((),) * count


def _reads_along_dim(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Lines along dim `dim`, as much of each as the position there determines."""
    return (tuple(at(dim, wide=dim == node.integer("dim")) for dim in range(len(node.dims))),)


def _reads_dot(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Batch dims of both sides come first in the result, then the free ones of the left, then those of the right."""
    numbers = numbers_of(node, "dot_dimension_numbers")
    place = len(dims_in(numbers, "lhs_batch"))
    found: list[Map] = []
    for name, operand in zip(("lhs", "rhs"), node.operands[:2], strict=True):
        batch, contracted = dims_in(numbers, f"{name}_batch"), dims_in(numbers, f"{name}_contract")
        source: list[Place | None] = []
        for dim in range(len(operand.dims)):
            free = dim not in batch and dim not in contracted
            source.append(at(place) if free else at(batch.index(dim)) if dim in batch else None)
            place += free
        found.append(tuple(source))
    return tuple(found)


def _reads_scaled_dot(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """The steps are [columns, blocks]; columns come last in the result."""
    return *_reads_dot(node, env), (at(len(node.dims) - 1), None)


def _reads_convolution(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Of the image, windows; which of its channels an output reads follows from the groups. Of the kernel, what makes the output."""
    numbers, (image, kernel) = numbers_of(node, "dimension_numbers"), node.operands
    spatial = zip(dims_in(numbers, "input_spatial"), dims_in(numbers, "output_spatial"), strict=True)
    batch, feature = (cast("int", numbers[name]) for name in ("output_batch", "output_feature"))
    source: list[Place | None] = [None] * len(image.dims)
    weights: list[Place | None] = [None] * len(kernel.dims)
    for dim, result in spatial:
        source[dim] = at(result, wide=True)
    source[cast("int", numbers["input_batch"])] = at(batch) if node.integer("batch_group_count", 1) == 1 else at(batch, feature, wide=True)
    if node.integer("feature_group_count", 1) != 1:
        source[cast("int", numbers["input_feature"])] = at(feature, wide=True)
    weights[cast("int", numbers["kernel_output"])] = at(feature)
    return tuple(source), tuple(weights)


# --- element-wise ops: costs in vector instructions of a polynomial and what prepares its argument --------------------

_UNARY = {
    "abs": 1, "bitcast_convert": 1, "cbrt": 30, "ceil": 1, "convert": 0, "cosine": 30, "count_leading_zeros": 1, "exponential": 14,
    "exponential_minus_one": 24, "floor": 1, "is_finite": 1, "log": 20, "log_plus_one": 24, "logistic": 20, "negate": 1, "not": 1,
    "popcnt": 1, "round_nearest_afz": 1, "round_nearest_even": 1, "rsqrt": 12, "sign": 1, "sine": 30, "sqrt": 8, "tan": 36, "tanh": 24,
}  # fmt: skip
_CHLO = {
    "acos": 1, "acosh": 1, "asin": 1, "asinh": 1, "atan": 1, "atanh": 1, "cosh": 1, "digamma": 1, "erf": 26, "erf_inv": 30, "erfc": 30,
    "is_inf": 1, "is_neg_inf": 1, "is_pos_inf": 1, "lgamma": 1, "sinh": 1, "square": 1, "tan": 36,
}  # fmt: skip
_BROADCASTING = {
    "add": 1, "and": 1, "atan2": 40, "compare": 1, "divide": 8, "maximum": 1, "minimum": 1, "multiply": 1, "or": 1, "power": 60,
    "remainder": 30, "select": 1, "shift_left": 1, "shift_right_arithmetic": 1, "shift_right_logical": 1, "subtract": 1, "xor": 1,
}  # fmt: skip


def _elementwise(name: str, cost: int, *forms: str) -> Op:
    return Op(name, Kind.ELEMENTWISE, cost, imported=(name, *forms), sizes=Sizes.OPERANDS, reads=_reads_elementwise)


_ELEMENTWISE = (
    *(_elementwise(f"stablehlo.{name}", cost) for name, cost in _UNARY.items()),
    *(_elementwise(f"chlo.{name}", cost) for name, cost in _CHLO.items()),
    *(_elementwise(f"stablehlo.{name}", cost, f"chlo.broadcast_{name}") for name, cost in _BROADCASTING.items()),
    _elementwise("stablehlo.clamp", 1),
    # A random word of each position: ten rounds of two wide products.
    Op("disc.philox", Kind.ELEMENTWISE, 150, needs=("stream", "word"), operands=("position", "seed"), imported=("disc.philox",),
       sizes=Sizes.FIRST, reads=_reads_elementwise),
)  # fmt: skip

# --- the others -------------------------------------------------------------------------------------------------------

_MADE = (
    Op("stablehlo.constant", Kind.MADE, 0, sizes=Sizes.TYPE, reads=_reads_nothing,
       imported=("stablehlo.constant", "arith.constant", "chlo.constant", "chlo.constant_like")),
    Op("disc.iota", Kind.MADE, 0, needs=("dim",), imported=("stablehlo.iota", "stablehlo.dynamic_iota"), reads=_reads_nothing),
    Op("disc.dim_value", Kind.MADE, 0, needs=("expr",), imported=("stablehlo.get_dimension_size",), reads=_reads_nothing),
    Op("disc.weight", Kind.STORED, needs=("name",), imported=("disc.weight",), sizes=Sizes.TYPE, reads=_reads_nothing),
)  # fmt: skip
_VIEWS = (
    # Row-major positions stay: where groups of dims become groups of dims, only `ShapeEnv` knows.
    Op("disc.reshape", Kind.VIEW, 0, operands=("source",), imported=("stablehlo.reshape", "stablehlo.dynamic_reshape")),
    Op("disc.broadcast_in_dim", Kind.VIEW, 0, needs=("dims", "maybe"), operands=("source",), reads=_reads_broadcast, repeats=True,
       imported=("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim"), mixing="it spreads"),
    Op("stablehlo.transpose", Kind.VIEW, 0, imported=("stablehlo.transpose",), reads=_reads_transpose, reorders=True),
    Op("disc.slice", Kind.VIEW, 0, needs=("starts", "strides"), operands=("source",), reads=_reads_slice, reorders=True,
       imported=("stablehlo.slice", "stablehlo.real_dynamic_slice"), mixing="it takes some of"),
    Op("disc.diagonals", Kind.VIEW, 0, needs=("row", "column"), operands=("source",), reads=_reads_diagonals, reorders=True, repeats=True),
    # Windows along `dim`, every `step` elements one; the places in a window are one more dim, the last.
    Op("disc.unfold", Kind.VIEW, 0, needs=("dim", "step"), operands=("source",), imported=("disc.dynamic_unfold",), sizes=Sizes.GIVEN,
       reads=_reads_unfold, reorders=True, repeats=True, mixing="it takes windows along"),
    Op("stablehlo.reverse", Kind.VIEW, 0, imported=("stablehlo.reverse",), sizes=Sizes.FIRST, reads=_reads_reverse, reorders=True,
       mixing="it works along"),
)  # fmt: skip
_STRUCTURAL = (
    Op("stablehlo.concatenate", Kind.STRUCTURAL, imported=("stablehlo.concatenate",), reads=_reads_concatenate,
       mixing="it concatenates along"),
    Op("disc.pad", Kind.STRUCTURAL, needs=("low", "interior"), operands=("source", "value"), reads=_reads_pad, mixing="it pads between",
       imported=("stablehlo.pad", "stablehlo.dynamic_pad")),
    Op("disc.gather", Kind.STRUCTURAL, needs=("dimension_numbers", "sizes"), operands=("source", "indices"),
       imported=("stablehlo.gather", "stablehlo.dynamic_gather")),
    Op("stablehlo.dynamic_slice", Kind.STRUCTURAL, imported=("stablehlo.dynamic_slice",)),
    Op("stablehlo.dynamic_update_slice", Kind.STRUCTURAL, imported=("stablehlo.dynamic_update_slice",), sizes=Sizes.FIRST),
)  # fmt: skip
_COMBINING = (
    Op("stablehlo.reduce", Kind.REDUCTION, imported=("stablehlo.reduce",), reads=_reads_reduce, mixing="it reduces over"),
    Op("stablehlo.reduce_window", Kind.WINDOW, imported=("stablehlo.reduce_window", "disc.dynamic_window"), reads=_reads_reduce_window,
       mixing="its window slides over"),
    Op("stablehlo.dot_general", Kind.DOT, imported=("stablehlo.dot_general", "stablehlo.dot"), reads=_reads_dot, mixing="it sums over"),
    Op("disc.scaled_dot", Kind.DOT, needs=("dot_dimension_numbers",), operands=("left", "right", "scales"), reads=_reads_scaled_dot,
       mixing="it sums over"),
    Op("stablehlo.convolution", Kind.CONVOLUTION, imported=("stablehlo.convolution", "stablehlo.dynamic_conv"), reads=_reads_convolution,
       mixing="its window slides over"),
    Op("disc.cumulative", Kind.SEQUENTIAL, needs=("dim", "kind"), operands=("source",), imported=("disc.cumulative",), sizes=Sizes.FIRST,
       reads=_reads_along_dim, mixing="it works along"),
    Op("stablehlo.scatter", Kind.SEQUENTIAL, imported=("stablehlo.scatter", "stablehlo.select_and_scatter")),
    Op("disc.size_of", Kind.SIZE, 0, needs=("symbol",), operands=("value",), imported=("disc.size_of",), sizes=Sizes.FIRST,
       reads=_reads_elementwise, mixing="its size depends on data: it makes one of"),
    Op("control.while", Kind.CONTROL, needs=("carried", "body"), imported=("stablehlo.while",), mixing="it loops over"),
    Op("control.case", Kind.CONTROL, needs=("branches",), imported=("stablehlo.case", "stablehlo.if"), mixing="it branches on"),
    Op("func.return", Kind.END),
)  # fmt: skip
_LIBRARY = (
    # Stable; NaN is larger than all other numbers, and 0.0 equals -0.0. The values, and where each was.
    Op("disc.sort", Kind.LIBRARY, 64, needs=("dim", "descending"), operands=("source",), results=2, imported=("disc.sort",),
       sizes=Sizes.FIRST, reads=_reads_along_dim, mixing="it sorts along"),
    # The first of `disc.sort`, as many as the result has.
    Op("disc.topk", Kind.LIBRARY, 8, needs=("dim", "largest"), operands=("source",), results=2, imported=("disc.dynamic_topk",),
       sizes=Sizes.GIVEN, reads=_reads_along_dim, mixing="it selects along"),
    # How many elements of a sorted line, along the last dim, come before each value; with `right` also those that equal it.
    Op("disc.search", Kind.LIBRARY, 64, needs=("right",), operands=("values", "lines"), imported=("disc.search",), sizes=Sizes.FIRST),
    # How often each place of the result occurs among the operand's elements; those outside count nowhere.
    Op("disc.count", Kind.LIBRARY, 4, operands=("places",), imported=("disc.dynamic_count",), sizes=Sizes.GIVEN),
    # For each segment the sum of the source's rows from its start up to its end, or with `maximum` their largest element, NaN above all.
    Op("disc.reduce_segments", Kind.LIBRARY, 2, needs=("maximum",), operands=("source", "starts", "ends")),
    # Rows up to the first of `ends` times the first matrix, from there to the second times the second, ...; those behind the last are 0.
    Op("disc.grouped_dot", Kind.LIBRARY, 64, operands=("rows", "matrices", "ends"), imported=("disc.dynamic_grouped_dot",),
       sizes=Sizes.GIVEN),
    # Of planes: the convolution of a source [b, c, h, w] by a kernel [o, c, y, x] by strides of 1; the gradient of the kernel, by that of
    # the result. `top`, `left`: zeros before the source; behind it there are as many as the result takes.
    Op("disc.tiled_convolution", Kind.LIBRARY, 64, needs=("top", "left"), operands=("source", "kernel")),
    Op("disc.kernel_gradient", Kind.LIBRARY, 64, needs=("top", "left"), operands=("source", "gradient"),
       imported=("disc.dynamic_kernel_gradient",), sizes=Sizes.GIVEN),
    # Of matrices [..., n, n]: the lower factor L of L * L^T; x of a * x = b, of a triangle or all of a; (determinant, sign, logarithm).
    Op("disc.cholesky", Kind.LIBRARY, 64, operands=("source",), imported=("disc.cholesky",), sizes=Sizes.FIRST),
    # With numbers of what failed: 0, or the order of a minor that is not positive-definite, [...].
    Op("disc.cholesky_ex", Kind.LIBRARY, 64, operands=("source",), results=2, imported=("disc.dynamic_cholesky_ex",), sizes=Sizes.GIVEN),
    Op("disc.triangular_solve", Kind.LIBRARY, 64, needs=("upper", "unit"), operands=("right", "matrix"),
       imported=("disc.triangular_solve",), sizes=Sizes.FIRST),
    Op("disc.solve", Kind.LIBRARY, 64, operands=("right", "matrix"), imported=("disc.solve",), sizes=Sizes.FIRST),
    Op("disc.inverse", Kind.LIBRARY, 64, operands=("source",), imported=("disc.inverse",), sizes=Sizes.FIRST),
    # Fourier transforms along dim `dim`, complex numbers as pairs in one more dim, the last; sums times 1 (norm 0), the root of 1 / n (1)
    # or 1 / n (2): of complex numbers; of real ones the frequencies up to half of n; back from these.
    Op("disc.fft", Kind.LIBRARY, 32, needs=("dim", "inverse", "norm"), operands=("source",), imported=("disc.fft",), sizes=Sizes.FIRST,
       mixing="it transforms along"),
    Op("disc.rfft", Kind.LIBRARY, 32, needs=("dim", "norm"), operands=("source",), imported=("disc.dynamic_rfft",), sizes=Sizes.GIVEN,
       mixing="it transforms along"),
    Op("disc.irfft", Kind.LIBRARY, 32, needs=("dim", "norm"), operands=("source",), imported=("disc.dynamic_irfft",), sizes=Sizes.GIVEN,
       mixing="it transforms along"),
    Op("disc.determinant", Kind.LIBRARY, 64, operands=("source",), results=3, imported=("disc.dynamic_determinant",), sizes=Sizes.GIVEN),
    # Of matrices [..., m, n], k = min(m, n): (L and U in one, pivots from 1 [..., k], the order of rows [..., m],
    # the first zero of U, from 1, or 0);
    # the order of rows that pivots make; (R and below it reflections, their factors [..., k]); the first columns
    # of the product of reflections;
    # of a symmetric one, by its lower triangle, (eigenvalues, ascending, eigenvectors); (U, singular values, V^T); the exponential.
    Op("disc.lu", Kind.LIBRARY, 64, operands=("source",), results=4, imported=("disc.dynamic_lu",), sizes=Sizes.GIVEN),
    # The same; a zero on the diagonal of U fails the call.
    Op("disc.lu_checked", Kind.LIBRARY, 64, operands=("source",), results=4, imported=("disc.dynamic_lu_checked",), sizes=Sizes.GIVEN),
    Op("disc.permutation", Kind.LIBRARY, 8, operands=("pivots",), imported=("disc.dynamic_permutation",), sizes=Sizes.GIVEN),
    Op("disc.householder", Kind.LIBRARY, 64, operands=("source",), results=2, imported=("disc.dynamic_householder",), sizes=Sizes.GIVEN),
    Op("disc.householder_product", Kind.LIBRARY, 64, operands=("reflections", "factors"), imported=("disc.dynamic_householder_product",),
       sizes=Sizes.GIVEN),
    Op("disc.eigh", Kind.LIBRARY, 256, operands=("source",), results=2, imported=("disc.dynamic_eigh",), sizes=Sizes.GIVEN),
    Op("disc.svd", Kind.LIBRARY, 512, operands=("source",), results=3, imported=("disc.dynamic_svd",), sizes=Sizes.GIVEN),
    Op("disc.matrix_exp", Kind.LIBRARY, 256, operands=("source",), imported=("disc.matrix_exp",), sizes=Sizes.FIRST),
    # Of complex matrices [..., m, n, 2]: as those of real ones above; (determinant, divided by its magnitude, the logarithm of that);
    # (Q, R); of any square matrix, real or complex, (eigenvalues, eigenvectors).
    *(Op(f"disc.{name}", Kind.LIBRARY, cost, operands=operands, results=results, imported=(f"disc.dynamic_{name}",), sizes=Sizes.GIVEN)
      for name, cost, operands, results in (
          ("complex_cholesky", 128, ("source",), 1), ("complex_cholesky_ex", 128, ("source",), 2),
          ("complex_determinant", 128, ("source",), 3), ("complex_eig", 1024, ("source",), 2), ("complex_eigh", 1024, ("source",), 2),
          ("complex_householder", 128, ("source",), 2), ("complex_householder_product", 128, ("reflections", "factors"), 1),
          ("complex_lu", 128, ("source",), 4), ("complex_lu_checked", 128, ("source",), 4), ("complex_qr", 128, ("source",), 2),
          ("complex_solve", 128, ("right", "matrix"), 1), ("complex_svd", 1024, ("source",), 3), ("eig", 512, ("source",), 2),
      )),
    Op("disc.complex_triangular_solve", Kind.LIBRARY, 128, needs=("upper", "unit"), operands=("right", "matrix"),
       imported=("disc.complex_triangular_solve",), sizes=Sizes.FIRST),
    # Of the rows of a matrix their places in lexicographic order; weights, finite numbers, or rates, as they are, where they are none the
    # call fails; the logarithms of the sums of exp(x) up to each element; elementwise functions of two numbers that take iterations.
    Op("disc.order_rows", Kind.LIBRARY, 64, operands=("rows",), imported=("disc.dynamic_order_rows",), sizes=Sizes.GIVEN),
    Op("disc.check_weights", Kind.LIBRARY, 4, operands=("weights",), imported=("disc.check_weights",), sizes=Sizes.FIRST),
    Op("disc.check_finite", Kind.LIBRARY, 4, operands=("numbers",), imported=("disc.check_finite",), sizes=Sizes.FIRST),
    Op("disc.check_rates", Kind.LIBRARY, 4, operands=("numbers",), imported=("disc.check_rates",), sizes=Sizes.FIRST),
    Op("disc.logcumsumexp", Kind.LIBRARY, 64, needs=("dim",), operands=("source",), imported=("disc.logcumsumexp",), sizes=Sizes.FIRST,
       reads=_reads_along_dim, mixing="it adds along"),
    Op("disc.zeta", Kind.LIBRARY, 512, operands=("x", "q"), imported=("disc.zeta",), sizes=Sizes.FIRST),
    Op("disc.igamma", Kind.LIBRARY, 512, operands=("a", "x"), imported=("disc.igamma",), sizes=Sizes.FIRST),
    Op("disc.igammac", Kind.LIBRARY, 512, operands=("a", "x"), imported=("disc.igammac",), sizes=Sizes.FIRST),
    Op("disc.gcd", Kind.LIBRARY, 64, operands=("left", "right"), imported=("disc.gcd",), sizes=Sizes.FIRST),
    Op("disc.lcm", Kind.LIBRARY, 64, operands=("left", "right"), imported=("disc.lcm",), sizes=Sizes.FIRST),
    # A custom op: the function `target`, which is none of the runtime's; `function` is its name for people. Any operands and results.
    Op(EXTERNAL, Kind.LIBRARY, 64, needs=("function", "target", "numbers"), imported=(EXTERNAL,), mixing="its custom op may mix"),
)  # fmt: skip


def _by_name(ops: Iterable[Op]) -> dict[str, Op]:
    found: dict[str, Op] = {}
    for op in ops:
        if op.name in found:
            raise CompilerBug(f"two records for {op.name}")
        found[op.name] = op
    return found


OPS: Mapping[str, Op] = _by_name((*_ELEMENTWISE, *_MADE, *_VIEWS, *_STRUCTURAL, *_COMBINING, *_LIBRARY))
# What a front end may deliver → the op that name-dims makes of it.
IMPORTED: Mapping[str, Op] = {name: op for op in OPS.values() for name in op.imported}

# --- questions --------------------------------------------------------------------------------------------------------


def of_kind(*kinds: Kind) -> frozenset[str]:
    """The names of the ops of these kinds."""
    return frozenset(op.name for op in OPS.values() if op.kind in kinds)


ELEMENTWISE = of_kind(Kind.ELEMENTWISE)
MADE = of_kind(Kind.MADE)
VIEWS = of_kind(Kind.VIEW)
REORDERING = frozenset(name for name in VIEWS if OPS[name].reorders)
IN_ORDER_VIEWS = VIEWS - REORDERING
REPEATING = frozenset(name for name in VIEWS if OPS[name].repeats)
STRUCTURAL = of_kind(Kind.STRUCTURAL)
DOTS = of_kind(Kind.DOT)
PRODUCTS = of_kind(Kind.DOT, Kind.CONVOLUTION)
SEQUENTIAL = of_kind(Kind.SEQUENTIAL)
LIBRARY = of_kind(Kind.LIBRARY)
BINDING = of_kind(Kind.SIZE)
CONTROL = of_kind(Kind.CONTROL)
# What they make is stored: no kernel computes it again for a reader.
ALONE = of_kind(Kind.SEQUENTIAL, Kind.WINDOW, Kind.LIBRARY, Kind.SIZE, Kind.CONTROL)
PARTIAL = of_kind(Kind.STRUCTURAL, Kind.WINDOW)  # an operand may not be read at all
WINDOWED = of_kind(Kind.WINDOW, Kind.CONVOLUTION, Kind.REDUCTION)  # what a window sees, and the sums and means that are no window
# An element of these is not made of the operands' elements at its own row-major position.
MOVING = REORDERING | PARTIAL | of_kind(Kind.REDUCTION) | {op.name for op in OPS.values() if op.kind is Kind.MADE and "dim" in op.needs}
ALONG_DIM = frozenset(op.name for op in OPS.values() if "dim" in op.needs and op.operands)  # `dim` is one of their first operand
SOURCES = of_kind(Kind.STORED) | {"input"}  # "input": an argument of a block, as `graph.Node` has it
CONSTANTS = frozenset({"stablehlo.constant", "arith.constant", "chlo.constant"})


def rules_by_op(what: str, own: Mapping[str, R], kinds: Mapping[Kind, R] | None = None) -> dict[str, R]:
    """A table of rules by op name: those of `own`, and for the other ops that of their kind.

    Raises: CompilerBug for a rule of an op that has no record.
    """
    unknown = [name for name in own if name not in OPS and name not in IMPORTED]
    if unknown:
        raise CompilerBug(f"{what}: there is no record for {', '.join(unknown)}")
    derived = {op.name: kinds[op.kind] for op in OPS.values() if op.kind in kinds} if kinds else {}
    return {**derived, **own}
