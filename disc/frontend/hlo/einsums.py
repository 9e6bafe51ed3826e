"""StableHLO's older ops on tensors whose dims have letters, and on rows that numbers choose.

    "stablehlo.einsum"(%a, %b) {einsum_config = "ab,bc->ac"}             a dot_general, its dims in the order of the result
    "stablehlo.unary_einsum"(%a) {einsum_config = "aba->b"}              elements of the diagonal, sums over dims that the result lacks
    "stablehlo.torch_index_select"(%x, %rows) {dim = 1, batch_dims = 1}  a gather

Dims that "..." stands for are the last ones of it in each operand, as many as the tensor has beside its letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, FormError, Values, kind_of, signless
from disc.ir.ops import element_of, int_attr, rank_of, string_attr

REST = "..."
FIRST_OF_REST = 0xE000  # letters that no program writes


@dataclass(frozen=True)
class _Lettered:
    """A tensor, and the letter of each of its dims."""

    value: ir.Value
    letters: str


def einsum(op: ir.Operation) -> Values:
    (left, right), wanted = _operands(op)
    e = Emitter(op)
    left = _plain(e, left, right.letters + wanted)
    right = _plain(e, right, left.letters + wanted)
    both = [each for each in left.letters if each in right.letters]
    batch, contracted = [each for each in both if each in wanted], [each for each in both if each not in wanted]
    letters = "".join([*batch, *(each for side in (left, right) for each in side.letters if each not in both)])
    numbers = ir.Attribute.parse(
        f"#stablehlo.dot<lhs_batching_dimensions = {_places(left, batch)}, rhs_batching_dimensions = {_places(right, batch)}, "
        f"lhs_contracting_dimensions = {_places(left, contracted)}, rhs_contracting_dimensions = {_places(right, contracted)}>"
    )
    sizes = {letter: size for side in (left, right) for letter, size in zip(side.letters, kind_of(side.value).shape, strict=True)}
    kind = ir.RankedTensorType.get([sizes[letter] for letter in letters], element_of(op.results[0]))
    product = e.one("stablehlo.dot_general", [left.value, right.value], kind, {"dot_dimension_numbers": numbers})
    return [_ordered(e, _Lettered(product, letters), wanted)]


def unary_einsum(op: ir.Operation) -> Values:
    (x,), wanted = _operands(op)
    e = Emitter(op)
    return [_ordered(e, _plain(e, x, wanted), wanted)]


def _operands(op: ir.Operation) -> tuple[list[_Lettered], str]:
    """The operands, and the letters of the result.

    Raises: FormError for a text that does not fit them.
    """
    text = string_attr(op, "einsum_config").replace(" ", "")
    inputs, arrow, wanted = text.partition("->")
    given = inputs.split(",")
    if not arrow or len(given) != len(op.operands):
        raise FormError(f'"{text}" is not of {len(op.operands)} operands and a result')
    found = [_Lettered(value, _letters(each, rank_of(value))) for value, each in zip(op.operands, given, strict=True)]
    letters = _letters(wanted, rank_of(op.results[0]))
    if len(set(letters)) != len(letters) or not set(letters) <= {letter for each in found for letter in each.letters}:
        raise FormError(f'in "{text}", each letter of the result stands there once, and in an operand')
    return found, letters


def _letters(text: str, rank: int) -> str:
    before, rest, after = text.partition(REST)
    count = rank - len(before) - len(after)
    if count < 0 or (count and not rest) or not all(each.isalpha() for each in before + after):
        raise FormError(f'"{text}" are not the letters of {rank} dims')
    return before + "".join(chr(FIRST_OF_REST + place) for place in range(count - 1, -1, -1)) + after


def _plain(e: Emitter, x: _Lettered, needed: str) -> _Lettered:
    """Each letter once, and those alone that are needed: elements of diagonals, then sums."""
    while (double := next((each for each in x.letters if x.letters.count(each) > 1), None)) is not None:
        x = _diagonal(e, x, x.letters.index(double), x.letters.rindex(double))
    dropped = [place for place, letter in enumerate(x.letters) if letter not in needed]
    if not dropped:
        return x
    return _Lettered(e.reduce("add", x.value, dropped), "".join(each for each in x.letters if each in needed))


def _diagonal(e: Emitter, x: _Lettered, first: int, second: int) -> _Lettered:
    """Where the numbers of two dims are equal, without the second one."""
    places = [e.iota(x.value, dim, signless(32)) for dim in (first, second)]
    element = element_of(x.value)
    chosen = e.select(e.compare("EQ", *places), x.value, e.expand(e.constant(0, element), x.value, []))
    return _Lettered(e.reduce("add", chosen, [second]), x.letters[:second] + x.letters[second + 1 :])


def _places(x: _Lettered, letters: Sequence[str]) -> list[int]:
    return [x.letters.index(each) for each in letters]


def _ordered(e: Emitter, x: _Lettered, wanted: str) -> ir.Value:
    order = _places(x, wanted)
    return x.value if order == sorted(order) else e.transpose(x.value, order)


def torch_index_select(op: ir.Operation) -> Values:
    x, rows = op.operands
    e, dim, batch = Emitter(op), int_attr(op, "dim"), int_attr(op, "batch_dims")
    new = rank_of(rows) - batch  # dims of the result in the place of `dim`
    offsets = [*range(batch, dim), *range(dim + new, rank_of(x) - 1 + new)]
    shared = list(range(batch))
    numbers = ir.Attribute.parse(
        f"#stablehlo.gather<offset_dims = {offsets}, collapsed_slice_dims = [{dim}], operand_batching_dims = {shared}, "
        f"start_indices_batching_dims = {shared}, start_index_map = [{dim}], index_vector_dim = {rank_of(rows)}>"
    )
    kept = [e.index(1 if each in (*shared, dim) else e.size(x, each)) for each in range(rank_of(x))]
    words = [e.one("arith.index_cast", [size], signless(64)) for size in kept]  # the op's verifier refuses indices
    sizes = e.one("tensor.from_elements", words, ir.RankedTensorType.get([len(words)], signless(64)))
    return [e.one("stablehlo.dynamic_gather", [x, rows, sizes], op.results[0].type, {"dimension_numbers": numbers})]
