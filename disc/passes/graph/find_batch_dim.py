"""find-batch-dim: a dim along which the program treats every row alone, so that a server may join requests along it.

    @main(%x: [S0, S1, 64], ...) → [S0, ...], and row i of every result depends on row i of the inputs only
→   module attribute  disc.batch = {symbol = "S0", inputs = array<i64: 0>, outputs = array<i64: 0>}

An analysis: no op changes. It takes the first dims of all inputs as equal (who joins requests must see to that: a mask of one row for
inputs of many is legal in a call of its own), and follows through all ops along which axis of each value the rows lie. A value is
*uniform* (it depends neither on the rows nor on how many there are) or *carried*: along `axis` its size is S * inner, and the elements
i * inner .. (i + 1) * inner - 1 belong to row i. An op without a rule, or of which the rule does not hold, ends the proof; the attribute
`disc.batch_refusal` then says where. Values that are the same for every row, such as a causal mask, are legal; the number of rows as data
(`x / len(x)`), and sums, scans, flips and gathers over the rows are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.errors import ShapeConstraintError
from disc.ir.graph import Attribute, Node, Snapshot
from disc.ir.op_table import ELEMENTWISE
from disc.ir.ops import main_block
from disc.ir.passes import CompileState, Pass
from disc.ir.stages import load_env
from disc.ir.symbols import ModuleEnv
from disc.shapes import Condition, Dim, ShapeEnv, Truth

ONE = Dim.of(1)


@dataclass(frozen=True)
class FindBatchDim(Pass):
    """Stage named → named, with the attribute `disc.batch` or `disc.batch_refusal` on the module."""

    name: ClassVar[str] = "find-batch-dim"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        try:
            found = prove(module)
        except NotIndependent as reason:
            module.operation.attributes["disc.batch_refusal"] = ir.StringAttr.get(str(reason))
        else:
            module.operation.attributes["disc.batch"] = _attribute(found)


class NotIndependent(Exception):
    """Why rows are not proved to be independent."""


@dataclass(frozen=True)
class Proof:
    """The batch dim: the axis of each input and output."""

    symbol: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Carried:
    """The rows lie along `axis`, `inner` elements of it for each."""

    axis: int
    inner: Dim = ONE


@dataclass(frozen=True)
class Numbered:
    """Numbers of rows, which PyTorch code uses to index (`x[rows, columns]`), along `axis`. Every element is the number of its row (dim
    None), or those at `position` of dim `dim` are, beside others that are carried. All that may be made of them is a gather from
    their own row: anything else would depend on a row's place among the others."""

    axis: int
    dim: int | None = None
    position: int = 0

    inner: ClassVar[Dim] = ONE


State = Carried | Numbered | None  # None: uniform


def _attribute(proof: Proof) -> ir.Attribute:
    axes = {"inputs": ir.DenseI64ArrayAttr.get(list(proof.inputs)), "outputs": ir.DenseI64ArrayAttr.get(list(proof.outputs))}
    return ir.DictAttr.get({"symbol": ir.StringAttr.get(proof.symbol), **axes})


def prove(module: ir.Module) -> Proof:
    """The batch dim of a module of stage `named`. Raises NotIndependent."""
    env, symbol = _with_equal_first_dims(module)
    _check_facts(env, symbol)
    body = Snapshot(env).block(main_block(module))
    analysis = _Analysis(env, symbol)
    inputs = [analysis.input_axis(number, node) for number, node in enumerate(body.arguments)]
    for node in body.nodes:
        if node.op != "input":
            analysis.visit(node)
    return Proof(symbol, tuple(inputs), tuple(analysis.output_axis(number, node) for number, node in enumerate(body.yields)))


def _with_equal_first_dims(module: ir.Module) -> tuple[ModuleEnv, str]:
    """The facts of the module, and that the first dims of its inputs are equal; and the symbol of them all."""
    env = load_env(module)
    firsts = [Dim.symbol(name) for name, source in env.sources.items() if source.endswith(".0")]
    if not firsts:
        raise NotIndependent("no input has a dynamic first dim")
    try:
        for other in firsts[1:]:
            env.equate(firsts[0], other)
    except ShapeConstraintError:
        raise NotIndependent("the first dims of its inputs cannot be equal") from None
    size = env.simplify(firsts[0])
    if len(size.symbols()) != 1 or size != Dim.symbol(size.symbols()[0]):
        raise NotIndependent("the first dims of its inputs stand in a relation to other sizes")
    return env, size.symbols()[0]


def _check_facts(env: ModuleEnv, symbol: str) -> None:
    """A relation to other sizes, a divisor or a condition would hold for each request and not for several."""
    pairs = [*env.facts(), *env.inequalities()]
    if any(symbol in (*left.symbols(), *right.symbols()) and len({*left.symbols(), *right.symbols()}) > 1 for left, right in pairs):
        raise NotIndependent("it stands in a relation to other sizes")
    if env.divisor(Dim.symbol(symbol)) != 1:
        raise NotIndependent("it must be a multiple of another number")
    conditions = [each for each in env.requirements.values() if symbol in each.condition.symbols() and not _is_minimum(each.condition)]
    if conditions:
        raise NotIndependent(f"every call is checked for a condition on it: {conditions[0].text()}")


def _is_minimum(condition: Condition) -> bool:
    """Whether the condition bounds one size from below: more rows satisfy it, too."""
    bound = condition.bound()
    return bound is not None and bound[1] is not None and bound[0].symbols() == (str(bound[0]),)


class _Analysis:
    def __init__(self, env: ShapeEnv, symbol: str) -> None:
        self.env = env
        self.symbol = symbol
        self.size = Dim.symbol(symbol)
        self.states: dict[Node, State] = {}

    def input_axis(self, number: int, node: Node) -> int:
        axes = [axis for axis, dim in enumerate(node.dims) if self.mentions(dim)]
        if axes != [0] or node.dims[0] != self.size:
            raise NotIndependent(f"input {number} does not have it as the size of its first dim, and of no other")
        self.states[node] = Carried(0)
        return 0

    def output_axis(self, number: int, node: Node) -> int:
        state = self.states[node]
        if not isinstance(state, Carried) or state.axis != 0 or state.inner != ONE:
            raise NotIndependent(f"result {number} does not have it as the size of its first dim")
        return 0

    def mentions(self, dim: Dim) -> bool:
        return self.symbol in dim.symbols()

    def mentioned(self, text: str) -> bool:
        return self.mentions(self.env.simplify(self.env.parse(text)))

    def visit(self, node: Node) -> None:
        """Finds the state of one value."""
        rule = RULES.get(node.op)
        states = [self.states[operand] for operand in node.operands]
        try:
            if node.op not in OF_NUMBERS and any(isinstance(state, Numbered) for state in states):
                raise NotIndependent("it uses the place of a row as data")
            if rule is not None:
                state = rule(self, node)
            elif any(states):
                raise NotIndependent("there is no rule for it")
            else:
                state = None
            self._check(node, state)
        except NotIndependent as reason:
            raise NotIndependent(f"{node.op}{f' at {node.line}' if node.line else ''}: {reason}") from None
        self.states[node] = state

    def _check(self, node: Node, state: State) -> None:
        """What holds of every value, whatever the rule said: the symbol is in the size of the carried axis and of no other."""
        for axis, dim in enumerate(node.dims):
            if state is not None and axis == state.axis:
                if self.env.equal(dim, self.size * state.inner) is not Truth.YES:
                    raise NotIndependent("the size of its rows is not what was expected")
            elif self.mentions(dim):
                raise NotIndependent(f"the number of rows is in the size of dim {axis}")
        if state is not None and (self.mentions(state.inner) or state.axis >= len(node.dims)):
            raise NotIndependent("its rows are mixed")

    def state(self, node: Node, operand: int = 0) -> State:
        return self.states[node.operands[operand]]

    def all_uniform(self, nodes: Sequence[Node]) -> None:
        if any(self.states[node] is not None for node in nodes):
            raise NotIndependent("an operand depends on the rows that must not")


Rule = Callable[[_Analysis, Node], State]


def _elementwise(analysis: _Analysis, node: Node) -> State:
    """All operands that have dims carry the rows alike; scalars (of clamp and select) are the same for all."""
    ranked = [operand for operand in node.operands if operand.dims]
    analysis.all_uniform([operand for operand in node.operands if not operand.dims])
    return _alike(analysis, ranked)


def _alike(analysis: _Analysis, nodes: Sequence[Node]) -> State:
    found = {analysis.states[node] for node in nodes}
    if len(found) > 1:
        raise NotIndependent("its operands have their rows along different dims")
    return next(iter(found), None)


def _made(analysis: _Analysis, node: Node) -> State:
    """Constants and weights."""
    return None


def _dim_value(analysis: _Analysis, node: Node) -> State:
    if analysis.mentioned(str(node.attrs["expr"])):
        raise NotIndependent("the number of rows is used as data")
    return None


def _spread(analysis: _Analysis, node: Node) -> Carried | None:
    """A value that is made anew over the rows, equal in each: the axis that has their number."""
    axes = [axis for axis, dim in enumerate(node.dims) if analysis.mentions(dim)]
    if not axes:
        return None
    inner = analysis.env.exact_div(node.dims[axes[0]], analysis.size)
    if len(axes) > 1 or inner is None:
        raise NotIndependent("the number of rows is in the size of more than one dim")
    return Carried(axes[0], inner)


def _iota(analysis: _Analysis, node: Node) -> State:
    state = _spread(analysis, node)
    if state is None or node.integer("dim") != state.axis:
        return state
    if state.inner != ONE:
        raise NotIndependent("it numbers the rows")
    return Numbered(state.axis)


def _broadcast(analysis: _Analysis, node: Node) -> State:
    state, targets, undecided = analysis.state(node), node.ints("dims"), node.ints("maybe")
    if state is not None:
        same = analysis.env.equal(node.operands[0].dims[state.axis], node.dims[targets[state.axis]]) is Truth.YES
        if state.axis in undecided and not same:
            raise NotIndependent("whether the rows are broadcast is decided by their number")
        return _moved(state, targets[state.axis], state.inner)
    made = _spread(analysis, node)
    if made is not None and any(targets[axis] == made.axis for axis in undecided):
        raise NotIndependent("whether the rows are broadcast is decided by their number")
    return made


def _moved(state: Carried | Numbered, axis: int, inner: Dim) -> State:
    if isinstance(state, Carried):
        return Carried(axis, inner)
    if state.dim is not None or inner != ONE:
        raise NotIndependent("it uses the place of a row as data")
    return Numbered(axis)


def _reshape(analysis: _Analysis, node: Node) -> State:
    """Row-major positions stay. With p elements before the rows' axis, a new axis before which there are p as well has the rows again."""
    state = analysis.state(node)
    if state is None:
        return None
    before = analysis.env.product(node.operands[0].dims[: state.axis])
    for axis, dim in enumerate(node.dims):
        if analysis.mentions(dim):
            inner = analysis.env.exact_div(dim, analysis.size)
            if inner is None or analysis.env.equal(analysis.env.product(node.dims[:axis]), before) is not Truth.YES:
                break
            return _moved(state, axis, inner)
    raise NotIndependent("its rows are mixed with another dim")


def _transpose(analysis: _Analysis, node: Node) -> State:
    state = analysis.state(node)
    return None if state is None else Carried(node.ints("permutation").index(state.axis), state.inner)


def _reduce(analysis: _Analysis, node: Node) -> State:
    count = len(node.siblings)
    analysis.all_uniform(node.operands[count:])
    state = _alike(analysis, node.operands[:count])
    if state is None:
        return None
    gone = node.ints("dimensions")
    if state.axis in gone:
        raise NotIndependent("it reduces over the rows")
    return Carried(state.axis - sum(axis < state.axis for axis in gone), state.inner)


def _reduce_window(analysis: _Analysis, node: Node) -> State:
    count = len(node.siblings)
    analysis.all_uniform(node.operands[count:])
    state = _alike(analysis, node.operands[:count])
    if state is not None and node.ints("window_dimensions")[state.axis] != 1:
        raise NotIndependent("its window slides over the rows")
    if state is not None:  # with a window of one, any other stride or padding would change the size, which _check sees
        steps = [node.ints(name) for name in ("window_strides", "base_dilations") if name in node.attrs]
        if any(step[state.axis] != 1 for step in steps) or _padded(node, state.axis):
            raise NotIndependent("its window slides over the rows")
    return state


def _padded(node: Node, axis: int) -> bool:
    padding = node.attrs.get("padding")
    return padding is not None and any(int(each) for each in padding[axis])  # pyright: ignore[reportIndexIssue, reportArgumentType, reportGeneralTypeIssues, reportOptionalSubscript]


def _concatenate(analysis: _Analysis, node: Node) -> State:
    numbers = [operand for operand in node.operands if isinstance(analysis.states[operand], Numbered)]
    if numbers:
        return _with_numbers(analysis, node, numbers)
    state = _alike(analysis, node.operands)
    if state is not None and node.integer("dimension") == state.axis:
        raise NotIndependent("it concatenates along the rows")
    return state


def _with_numbers(analysis: _Analysis, node: Node, numbers: Sequence[Node]) -> State:
    """Indices: the numbers of rows beside indices of other dims."""
    state, along = analysis.states[numbers[0]], node.integer("dimension")
    rest = {analysis.states[operand] for operand in node.operands if operand not in numbers}
    assert isinstance(state, Numbered)
    if len(numbers) > 1 or state.dim is not None or along == state.axis or numbers[0].dims[along] != ONE or rest - {Carried(state.axis)}:
        raise NotIndependent("it uses the place of a row as data")
    before = analysis.env.simplify(sum((operand.dims[along] for operand in node.operands[: node.operands.index(numbers[0])]), Dim.of(0)))
    if not before.is_const:
        raise NotIndependent("it uses the place of a row as data")
    return Numbered(state.axis, along, before.const)


def _slice(analysis: _Analysis, node: Node) -> State:
    state = analysis.state(node)
    for axis, (start, stride) in enumerate(zip(node.texts("starts"), node.ints("strides"), strict=True)):
        if analysis.mentioned(start):
            raise NotIndependent("the number of rows decides where it begins")
        if state is not None and axis == state.axis and (analysis.env.simplify(analysis.env.parse(start)) != 0 or stride != 1):
            raise NotIndependent("it takes some of the rows")
    return state


def _pad(analysis: _Analysis, node: Node) -> State:
    analysis.all_uniform(node.operands[1:])
    state = analysis.state(node)
    for axis, (low, interior) in enumerate(zip(node.texts("low"), node.ints("interior"), strict=True)):
        if analysis.mentioned(low):
            raise NotIndependent("the number of rows decides how much it pads")
        if state is not None and axis == state.axis and (analysis.env.simplify(analysis.env.parse(low)) != 0 or interior):
            raise NotIndependent("it pads between the rows")
    return state


def _along_other_dims(name: str) -> Rule:
    """Ops that work along the dims of attribute `name`."""

    def rule(analysis: _Analysis, node: Node) -> State:
        state = analysis.state(node)
        value = node.attrs[name]
        if state is not None and state.axis in (value if isinstance(value, tuple) else (value,)):
            raise NotIndependent("it works along the rows")
        return state

    return rule


def _table(value: Attribute) -> dict[str, Attribute]:
    assert isinstance(value, dict)
    return value


def _axes(table: dict[str, Attribute], name: str) -> tuple[int, ...]:
    value = table[name]
    assert isinstance(value, tuple)
    return value  # pyright: ignore[reportReturnType]


def _dot(analysis: _Analysis, node: Node) -> State:
    """The rows are a batch dim of both sides, or a free dim of one."""
    numbers = _table(node.attrs["dot_dimension_numbers"])
    sides = [(analysis.state(node, side), _axes(numbers, f"{name}_batch"), _axes(numbers, f"{name}_contract"))
             for side, name in ((0, "lhs"), (1, "rhs"))]  # fmt: skip
    carried = [(side, state) for side, (state, _, _) in enumerate(sides) if state is not None]
    if not carried:
        return None
    if len(carried) == 2:
        positions = [batch.index(state.axis) if state.axis in batch else -1 for state, batch, _ in sides if state is not None]
        if positions[0] != positions[1] or positions[0] < 0 or carried[0][1].inner != carried[1][1].inner:
            raise NotIndependent("it multiplies rows with other rows")
        return Carried(positions[0], carried[0][1].inner)
    side, state = carried[0]
    _, batch, contract = sides[side]
    if state.axis in contract or state.axis in batch:
        raise NotIndependent("it sums over the rows")
    free = [axis for axis in range(len(node.operands[side].dims)) if axis not in (*batch, *contract)]
    left = len(node.operands[0].dims) - len(sides[0][1]) - len(sides[0][2]) if side == 1 else 0
    return Carried(len(batch) + left + free.index(state.axis), state.inner)


def _convolution(analysis: _Analysis, node: Node) -> State:
    numbers = _table(node.attrs["dimension_numbers"])
    analysis.all_uniform(node.operands[1:])
    state = analysis.state(node)
    if state is None:
        return None
    if state.axis != numbers["input_batch"] or node.integer("batch_group_count", 1) != 1:
        raise NotIndependent("its window slides over the rows")
    output = numbers["output_batch"]
    assert isinstance(output, int)
    return Carried(output, state.inner)


def _gather(analysis: _Analysis, node: Node) -> State:
    """Each row's own indices into one table, the same indices into every row, or each row's indices into that row (through a batching
    dim, or through the numbers of the rows among the indices)."""
    numbers = _table(node.attrs["dimension_numbers"])
    table, indices = analysis.state(node, 0), analysis.state(node, 1)
    if any(analysis.mentioned(size) for position, size in enumerate(node.texts("sizes")) if table is None or position != table.axis):
        raise NotIndependent("the number of rows decides how much it takes")
    offsets, vector = _axes(numbers, "offset_dims"), numbers["vector_dim"]
    assert isinstance(vector, int)
    kept = [axis for axis in range(len(node.dims)) if axis not in offsets]  # where the dims of the indices go
    if isinstance(table, Numbered) or (isinstance(indices, Numbered) and not _own_row(numbers, table, indices, vector)):
        raise NotIndependent("it uses the place of a row as data")
    if isinstance(indices, Numbered):
        return Carried(kept[indices.axis - (indices.axis > vector)])
    if indices is not None and indices.axis != vector:
        place = kept[indices.axis - (indices.axis > vector)]
        if table is None:
            return Carried(place, indices.inner)
        pairs = list(zip(_axes(numbers, "operand_batch"), _axes(numbers, "indices_batch"), strict=True))
        if (table.axis, indices.axis) in pairs and table.inner == indices.inner:
            return Carried(place, indices.inner)
    if table is not None and indices is None:
        dropped = (*_axes(numbers, "collapsed"), *_axes(numbers, "operand_batch"))
        whole = analysis.env.parse(node.texts("sizes")[table.axis])
        taken = analysis.env.equal(whole, node.operands[0].dims[table.axis]) is Truth.YES
        if table.axis not in dropped and table.axis not in _axes(numbers, "start_map") and taken:
            window = [axis for axis in range(len(node.operands[0].dims)) if axis not in dropped]
            return Carried(offsets[window.index(table.axis)], table.inner)
    if table is None and indices is None:
        return None
    raise NotIndependent("it gathers from other rows")


def _own_row(numbers: dict[str, Attribute], table: State, indices: Numbered, vector: int) -> bool:
    """Whether the one index into the dim of the rows is the number of the row that it stands in."""
    mapped = _axes(numbers, "start_map")
    if not isinstance(table, Carried) or table.inner != ONE or indices.dim != vector or indices.position >= len(mapped):
        return False
    return mapped[indices.position] == table.axis and mapped.count(table.axis) == 1 and table.axis in _axes(numbers, "collapsed")


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "stablehlo.constant": _made, "disc.weight": _made, "disc.dim_value": _dim_value, "disc.iota": _iota,
    "disc.broadcast_in_dim": _broadcast, "disc.reshape": _reshape, "stablehlo.transpose": _transpose,
    "stablehlo.reduce": _reduce, "stablehlo.reduce_window": _reduce_window, "stablehlo.concatenate": _concatenate,
    "disc.slice": _slice, "disc.pad": _pad, "stablehlo.reverse": _along_other_dims("dimensions"),
    "disc.cumulative": _along_other_dims("dim"), "stablehlo.dot_general": _dot, "stablehlo.convolution": _convolution,
    "disc.gather": _gather,
}  # fmt: skip
OF_NUMBERS = frozenset({"disc.broadcast_in_dim", "disc.reshape", "stablehlo.concatenate", "disc.gather"})
