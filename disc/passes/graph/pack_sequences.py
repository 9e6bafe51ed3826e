"""pack-sequences: a program over rows of equal length becomes one over sequences of any lengths, one behind the other, without padding.

    @main(%ids: [B, L], %mask: [B, L]) → [B, L, 768], [B, 768]
→   @main(%ids: [1, T], %mask: [1, T], %first: [T], %past: [T], %starts: [N], %ends: [N]) → [1, T, 768], [N, 768]
        positions:   iota L                        →   iota T - %first
        scores:      %s                            →   select(%first[q] <= k < %past[q], %s, -inf)
        first token: slice %x[:, 0]                →   gather %x[:, %starts]
        sum:         reduce %x, dims = [1]         →   reduce_segments %x, %starts, %ends
        length:      dim_value L                   →   %ends - %starts

`first` and `past`: for each token the first token of its sequence, and the one behind the last; `starts` and `ends`: the same for each
sequence. What works on each token alone stays as it is, with one row of T tokens. The attention kernel reads the comparison of the scores
as bounds and computes nothing between two sequences (`read_segments`). `token_rules` has the proof; where it fails, the module stays and
the attribute `disc.packed_refusal` says where. Requires stage `named`, after all passes on the graph, so that fusions see the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from disc.errors import ShapeConstraintError
from disc.ir.graph import Body, Node, Snapshot
from disc.ir.ops import build, int_attr, main_block, main_function, replace_op, string_attr, tensor_type, terminator_of
from disc.ir.passes import CompileState, Pass
from disc.ir.rewriting import element_type, erase_dead, make_reshape, make_splat
from disc.ir.stages import load_env
from disc.ir.symbols import ModuleEnv
from disc.passes.graph.token_rules import Findings, Kind, NotPacked, Number, Tokens
from disc.shapes import Condition, Dim, parse_condition

NAMES = ("first", "past", "starts", "ends")  # the further inputs, in order, with "sequence_" before them


@dataclass(frozen=True)
class PackSequences(Pass):
    """Stage named → named, with `disc.packed` and four further inputs, or with `disc.packed_refusal`."""

    name: ClassVar[str] = "pack-sequences"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        try:
            rows, env = _dims(module)
            tokens = Tokens(env, rows[0], _length(env, rows[0]))
            snapshot = Snapshot(env)
            body = snapshot.block(main_block(module))
            found = tokens.run(body)
        except NotPacked as reason:
            module.operation.attributes["disc.packed_refusal"] = ir.StringAttr.get(str(reason))
            return
        _Rewrite(module, tokens, snapshot, body, found).run(rows)


def _dims(module: ir.Module) -> tuple[list[str], ModuleEnv]:
    """The symbols of the first dims of all inputs, the one that represents all of them first, and the facts with these equal."""
    env = load_env(module)
    names = [name for name, source in env.sources.items() if source.endswith(".0")]
    if not names:
        raise NotPacked("no input has a dynamic first dim")
    try:
        for other in names[1:]:
            env.equate(Dim.symbol(names[0]), Dim.symbol(other))
    except ShapeConstraintError:
        raise NotPacked("the first dims of its inputs cannot be equal") from None
    kept = str(env.simplify(Dim.symbol(names[0])))
    if kept not in names or (env.range(Dim.symbol(kept))[0] or 0) > 1:
        raise NotPacked("the number of rows is not free")
    return [kept, *(name for name in names if name != kept)], env


def _length(env: ModuleEnv, rows: str) -> str:
    """The symbol of the number of tokens. Facts that would hold for each sequence and not for all together end the proof."""
    names = list(dict.fromkeys(str(env.simplify(Dim.symbol(name))) for name, source in env.sources.items() if source.endswith(".1")))
    if len(names) != 1 or names[0] not in env.sources:
        raise NotPacked("the second dims of its inputs are not one dynamic size" if names else "no input has a dynamic second dim")
    length = names[0]
    for name in (rows, length):
        pairs = [*env.facts(), *env.inequalities()]
        if any(name in (*left.symbols(), *right.symbols()) and len({*left.symbols(), *right.symbols()}) > 1 for left, right in pairs):
            raise NotPacked("its sizes stand in a relation to each other")
        if env.divisor(Dim.symbol(name)) != 1:
            raise NotPacked("the number of rows or tokens must be a multiple of another number")
        conditions = [each.condition for each in env.requirements.values() if name in each.condition.symbols()]
        if not all(name == length and _is_bound(condition, length) for condition in conditions):
            raise NotPacked("every call is checked for a condition on the number of rows or tokens")
    return length


def _is_bound(condition: Condition, name: str) -> bool:
    """Whether the condition is the least or the largest size of `name`: its range has it too, and each sequence is checked by itself."""
    bound = condition.bound()
    return bound is not None and str(bound[0]) == name


class _Rewrite:
    def __init__(self, module: ir.Module, tokens: Tokens, snapshot: Snapshot, body: Body, found: Findings) -> None:
        self.module = module
        self.tokens = tokens
        self.body = body
        self.found = found
        self.block = main_block(module)
        self.values: dict[Node, ir.Value] = dict(zip(body.arguments, self.block.arguments, strict=True))
        for node in body.nodes:
            if node.op != "input":
                self.values[node] = snapshot.ops[node.id].results[node.result]
        self.ops = snapshot.ops
        self.positions: dict[Node, ir.Value] = {}
        self.word = ir.IntegerType.get_signless(64)

    def run(self, rows: list[str]) -> None:
        """Changes the module."""
        yielded = list(self.body.yields)
        self._free_length()
        count = len(self.block.arguments)
        self.env = self._sequences_symbol(f"arg{count + 2}.0", rows)
        self.sequences = Dim.symbol(self.symbol)
        dims = (self.tokens.length, self.tokens.length, self.sequences, self.sequences)
        unknown = ir.Location.unknown()
        self.first, self.past, self.starts, self.ends = (
            self.block.add_argument(tensor_type((dim,), self.word, self.env), unknown) for dim in dims
        )
        for node in self.body.nodes:
            self._rewrite(node)
        last = terminator_of(self.block)
        for number, node in enumerate(yielded):
            if self.found.numbers.get(node) is Number.POSITION:
                last.operands[number] = self._position(node)
        erase_dead(self.block)
        self._declare()
        kinds = [self.found.kinds[node].value for node in yielded]
        for name in ("disc.batch", "disc.batch_refusal"):  # of the program that this was
            if name in self.module.operation.attributes:
                del self.module.operation.attributes[name]
        self.module.operation.attributes["disc.packed"] = ir.DictAttr.get({
            "rows": ir.StringAttr.get(self.tokens.names[0]), "length": ir.StringAttr.get(self.tokens.names[1]),
            "outputs": ir.ArrayAttr.get([ir.StringAttr.get(kind) for kind in kinds]),
            "least": ir.IntegerAttr.get(self.word, self.found.least),
        })  # fmt: skip

    # --- symbols and the signature -------------------------------------------------------------------------------------------

    def _free_length(self) -> None:
        """All sequences together may be longer, and none of them need be there."""
        for view in list(self.module.body.operations):
            op = view.operation
            if op.name == "disc.condition" and _is_bound(parse_condition(string_attr(op, "expr")), self.tokens.names[1]):
                op.erase()
            elif op.name == "disc.symbolic_dim" and string_attr(op, "sym_name") == self.tokens.names[1]:
                op.attributes["min"] = ir.IntegerAttr.get(self.word, 0)
                if "max" in op.attributes:
                    del op.attributes["max"]

    def _sequences_symbol(self, source: str, rows: list[str]) -> ModuleEnv:
        """Adds the number of sequences, and that there is one row; returns the facts."""
        names = {string_attr(op.operation, "sym_name") for op in self.module.body.operations if op.operation.name == "disc.symbolic_dim"}
        self.symbol = next(name for name in (f"S{number}" for number in range(len(names) + 1)) if name not in names)
        before = self.module.body.operations[0].operation
        attributes = {"sym_name": self.symbol, "min": 0, "divisor": 1, "source": source}
        build("disc.symbolic_dim", attributes=attributes, before=before, location=ir.Location.unknown())
        main = main_function(self.module)
        for name in rows:
            build("disc.relation", attributes={"lhs": name, "rhs": "1"}, before=main, location=ir.Location.unknown())
        return load_env(self.module)

    def _declare(self) -> None:
        """The type of @main, and the names of the further inputs."""
        main = main_function(self.module)
        results = [operand.type for operand in terminator_of(self.block).operands]
        kinds = [argument.type for argument in self.block.arguments]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, results))
        own = list(ir.ArrayAttr(main.attributes["arg_attrs"])) if "arg_attrs" in main.attributes else []
        own += [ir.DictAttr.get({})] * (len(kinds) - len(NAMES) - len(own))
        own += [ir.DictAttr.get({"disc.name": ir.StringAttr.get(f"sequence_{name}")}) for name in NAMES]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(own)

    # --- operations ----------------------------------------------------------------------------------------------------------

    def _rewrite(self, node: Node) -> None:
        found = self.found
        if node.op != "input":
            op = self.ops[node.id]
            if node in found.own:
                self._replace(node, make_reshape(op.operands[0], op.results[0].type, op))
                return
            if node in found.tables:
                self._replace(node, self._table(node, op))
                return
            if node in found.selections:
                self._replace(node, self._selected(node, op))
                return
            if node in found.segments:
                self._replace(node, self._reduced(node, op))
                return
            if node in found.spread:
                op.attributes["dims"] = ir.DenseI64ArrayAttr.get([found.spread[node]])
            if found.numbers.get(node) is Number.LENGTH:
                self._of_length(node, op)
                return
            if node not in found.raw and node not in found.numbers:
                for place, operand in enumerate(node.operands):
                    if found.numbers.get(operand) is Number.POSITION:
                        op.operands[place] = self._position(operand)
        if found.kinds[node] is Kind.SEQUENCES and node not in found.numbers:
            self.values[node].set_type(self._packed_type(node))
        if node in found.hidden:
            self._hide(node, *found.hidden[node])

    def _replace(self, node: Node, value: ir.Value) -> None:
        replace_op(self.ops[node.id], [value])
        self.values[node] = value

    def _packed_type(self, node: Node) -> ir.RankedTensorType:
        """With the number of sequences where that of rows was."""
        dims = [dim.replace({self.tokens.names[0]: self.sequences}) for dim in node.dims]
        return tensor_type(dims, element_type(self.values[node].type), self.env)

    def _like(self, value: ir.Value, element: ir.Type) -> ir.RankedTensorType:
        kind = ir.RankedTensorType(value.type)
        return ir.RankedTensorType.get(kind.shape, element, kind.encoding)

    def _plain_positions(self, before: ir.Operation) -> ir.Value:
        """[T]: the place of each token in its sequence."""
        kind = self.first.type
        places = build("disc.iota", [], [kind], {"dim": 0}, before=before)
        return build("stablehlo.subtract", [places.results[0], self.first], [kind], before=before).results[0]

    def _position(self, node: Node) -> ir.Value:
        """The value of an iota over tokens, or of a view of one, with places in the sequence; made behind the op itself."""
        views: list[Node] = []
        while node not in self.positions and node.op != "disc.iota":
            views.append(node)
            node = node.operands[0]
        if node not in self.positions:
            op = self.ops[node.id]
            kind = op.results[0].type
            value = self._plain_positions(op)
            wide = build("disc.broadcast_in_dim", [value], [self._like(op.results[0], self.word)],
                         {"dims": [int_attr(op, "dim")], "maybe": []}, before=op).results[0]  # fmt: skip
            self.positions[node] = wide if wide.type == kind else build("stablehlo.convert", [wide], [kind], before=op).results[0]
        for view in reversed(views):
            op = self.ops[view.id]
            copy = op.clone(ip=ir.InsertionPoint(op)).operation
            copy.operands[0] = self.positions[view.operands[0]]
            self.positions[view] = copy.results[0]
            node = view
        return self.positions[node]

    def _table(self, node: Node, op: ir.Operation) -> ir.Value:
        """The rows 0 .. L of a table become each token's row of it."""
        axis, start = self.found.tables[node]
        places = self._plain_positions(op)
        if start:
            more = make_splat(np.array(start, np.int64), places.type, op)
            places = build("stablehlo.add", [places, more], [places.type], before=op).results[0]
        table = node.operands[0]
        sizes = ["1" if each == axis else str(dim) for each, dim in enumerate(table.dims)]
        return self._gather(op.operands[0], places, (axis, sizes), op.results[0].type, op)

    def _selected(self, node: Node, op: ir.Operation) -> ir.Value:
        """x[:, 0] becomes the rows of x where sequences begin."""
        choice, source = self.found.selections[node], node.operands[0]
        axis = next(each for each in range(len(source.dims)) if source.dims[each] == self.tokens.length)
        bound = self.ends if choice.from_end else self.starts
        place = bound
        if choice.offset:
            more = make_splat(np.array(-choice.offset if choice.from_end else choice.offset, np.int64), bound.type, op)
            place = build("stablehlo.add", [bound, more], [bound.type], before=op).results[0]
        rest = list(source.dims[axis + 1 :])
        element = element_type(op.results[0].type)
        flat = make_reshape(self._read(source), tensor_type([self.tokens.length, *rest], element, self.env), op)
        sizes = ["1", *(str(dim) for dim in rest)]
        chosen = self._gather(flat, place, (0, sizes), tensor_type([self.sequences, *rest], element, self.env), op)
        return make_reshape(chosen, self._packed_type(node), op)

    def _read(self, node: Node) -> ir.Value:
        """The value of an operand, with positions in the sequence where it is one."""
        return self._position(node) if self.found.numbers.get(node) is Number.POSITION else self.values[node]

    def _reduced(self, node: Node, op: ir.Operation) -> ir.Value:
        """x.sum(1) becomes the sums over each sequence's tokens, which come first for it."""
        source, (axis,) = node.operands[0], node.ints("dimensions")
        order = [axis, *(each for each in range(len(source.dims)) if each != axis)]
        value, element = self._read(source), element_type(op.results[0].type)
        heads = self.tokens.env.exact_div(source.dims[0], self.tokens.rows)
        assert heads is not None  # by token_rules
        sizes = [*((heads,) if heads != 1 else ()), *(source.dims[each] for each in order[2:])]
        if axis != 1 or heads != 1:
            turned = tensor_type([source.dims[each] for each in order], element, self.env)
            value = build("stablehlo.transpose", [value], [turned], {"permutation": order}, before=op).results[0]
        flat = make_reshape(value, tensor_type([self.tokens.length, *sizes], element, self.env), op)
        kind = tensor_type([self.sequences, *sizes], element, self.env)
        maximum = ir.BoolAttr.get(self.found.segments[node])
        found = build("disc.reduce_segments", [flat, self.starts, self.ends], [kind], {"maximum": maximum}, before=op).results[0]
        return make_reshape(found, self._packed_type(node), op)

    def _of_length(self, node: Node, op: ir.Operation) -> None:
        """A scalar that follows from the number of tokens becomes one of each sequence."""
        kind = tensor_type([self.sequences], element_type(op.results[0].type), self.env)
        if node.op == "disc.dim_value":
            lengths = build("stablehlo.subtract", [self.ends, self.starts], [self.ends.type], before=op).results[0]
            value = lengths if kind == lengths.type else build("stablehlo.convert", [lengths], [kind], before=op).results[0]
            self._replace(node, value)
            return
        for place, operand in enumerate(node.operands):
            if self.found.numbers.get(operand) is not Number.LENGTH:
                wide = tensor_type([self.sequences], element_type(op.operands[place].type), self.env)
                op.operands[place] = build(
                    "disc.broadcast_in_dim", [op.operands[place]], [wide], {"dims": [], "maybe": []}, before=op
                ).results[0]
        self.values[node].set_type(kind)

    def _gather(self, table: ir.Value, places: ir.Value, where: tuple[int, list[str]], kind: ir.Type, before: ir.Operation) -> ir.Value:
        """The slices of `table` along axis where[0] at `places`; where[1]: the size of a slice."""
        axis, sizes = where
        offsets = [each for each in range(len(sizes)) if each != axis]
        numbers = ir.Attribute.parse(
            f"#stablehlo.gather<offset_dims = {offsets}, collapsed_slice_dims = [{axis}], start_index_map = [{axis}], index_vector_dim = 1>"
        )
        texts = ir.ArrayAttr.get([ir.StringAttr.get(size) for size in sizes])
        return build("disc.gather", [table, places], [kind], {"dimension_numbers": numbers, "sizes": texts}, before=before).results[0]

    def _hide(self, node: Node, fill: float, axis: int) -> None:
        """Pairs of two sequences hold `fill` from here on."""
        value = self.values[node]
        uses = [(use.owner, use.operand_number) for use in value.uses]
        after = self.block.operations[list(self.block.operations).index(self.ops[node.id]) + 1].operation
        (row,) = (each for each in self.tokens.token_axes(node) if each != axis)
        keys, pair = self._like(value, self.word), self._like(value, ir.IntegerType.get_signless(1))
        place = build("disc.iota", [], [keys], {"dim": axis}, before=after).results[0]
        first, past = (
            build("disc.broadcast_in_dim", [bound], [keys], {"dims": [row], "maybe": []}, before=after).results[0]
            for bound in (self.first, self.past)
        )
        conditions = [self._compare(one, other, word, pair, after) for one, other, word in ((first, place, "LE"), (place, past, "LT"))]
        inside = build("stablehlo.and", conditions, [pair], before=after).results[0]
        other = self._splat(fill, value, after)
        chosen = build("stablehlo.select", [inside, value, other], [value.type], before=after).results[0]
        for owner, number in uses:
            owner.operation.operands[number] = chosen

    def _compare(self, left: ir.Value, right: ir.Value, word: str, kind: ir.Type, before: ir.Operation) -> ir.Value:
        direction = ir.Attribute.parse(f"#stablehlo<comparison_direction {word}>")
        return build("stablehlo.compare", [left, right], [kind], {"comparison_direction": direction}, before=before).results[0]

    def _splat(self, fill: float, value: ir.Value, before: ir.Operation) -> ir.Value:
        element = element_type(value.type)
        scalar = ir.RankedTensorType.get([], element)
        attribute = ir.DenseElementsAttr.get_splat(scalar, ir.FloatAttr.get(element, fill))
        constant = build("stablehlo.constant", [], [scalar], {"value": attribute}, before=before)
        return build("disc.broadcast_in_dim", constant.results, [value.type], {"dims": [], "maybe": []}, before=before).results[0]
