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

from disc.artifact.bounds import SHARED
from disc.errors import ShapeConstraintError
from disc.ir.graph import Attribute, Node, Snapshot
from disc.ir.op_table import BINDING, OPS, VIEWS, Kind, rules_by_op
from disc.ir.ops import block_ops, function_blocks, location_text, main_block, string_attr
from disc.ir.passes import CompileState, Pass
from disc.ir.reads import Map, dims_in, numbers_of
from disc.ir.stages import load_env
from disc.ir.symbols import ModuleEnv
from disc.shapes import Comparison, Condition, Dim, ShapeEnv, Truth

ONE = Dim.of(1)


@dataclass(frozen=True)
class FindBatchDim(Pass):
    """Stage named → named, with the attribute `disc.batch` or `disc.batch_refusal` on the module."""

    name: ClassVar[str] = "find-batch-dim"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        try:
            found = _proof(module)
        except NotIndependent as reason:
            module.operation.attributes["disc.batch_refusal"] = ir.StringAttr.get(str(reason))
        else:
            module.operation.attributes["disc.batch"] = _attribute(found)


def _proof(module: ir.Module) -> Proof:
    """With rows in all inputs; else with rows in those that are no scalars and vectors. Raises NotIndependent, as of the first."""
    try:
        return prove(module)
    except NotIndependent as reason:
        ranks = [len(node.dims) for node in Snapshot(load_env(module)).block(main_block(module)).arguments]
        shared = frozenset(number for number, rank in enumerate(ranks) if rank < 2)
        if not shared or len(shared) == len(ranks):
            raise
        try:
            return prove(module, shared)
        except NotIndependent:
            raise reason from None


class NotIndependent(Exception):
    """Why rows are not proved to be independent."""


@dataclass(frozen=True)
class Proof:
    """The batch dim: its axis in each of the inputs, SHARED where all rows have the input in common, and of the outputs."""

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
    None), or those at `position` of dim `dim` are, among others that are carried. All that may be made of them is a gather from
    their own row: anything else would depend on a row's place among the others."""

    axis: int
    dim: int | None = None
    position: int = 0

    inner: ClassVar[Dim] = ONE


State = Carried | Numbered | None  # None: uniform


def _attribute(proof: Proof) -> ir.Attribute:
    axes = {"inputs": ir.DenseI64ArrayAttr.get(list(proof.inputs)), "outputs": ir.DenseI64ArrayAttr.get(list(proof.outputs))}
    return ir.DictAttr.get({"symbol": ir.StringAttr.get(proof.symbol), **axes})


def prove(module: ir.Module, shared: frozenset[int] = frozenset()) -> Proof:
    """The batch dim of a module of stage `named`. shared: arguments that all rows have in common. Raises NotIndependent."""
    _check_sizes(module)
    env, symbol = _with_equal_first_dims(module, shared)
    _check_facts(env, symbol)
    body = Snapshot(env).block(main_block(module))
    analysis = _Analysis(env, symbol)
    inputs = [
        analysis.shared_input(number, node) if number in shared else analysis.input_axis(number, node)
        for number, node in enumerate(body.arguments)
    ]
    for node in body.nodes:
        if node.op != "input":
            analysis.visit(node)
    return Proof(symbol, tuple(inputs), tuple(analysis.output_axis(number, node) for number, node in enumerate(body.yields)))


def _with_equal_first_dims(module: ir.Module, shared: frozenset[int]) -> tuple[ModuleEnv, str]:
    """The facts of the module, and that the first dims of its inputs, but the shared ones, are equal; and the symbol of them all."""
    env = load_env(module)
    common = {f"arg{number}.0" for number in shared}
    firsts = [Dim.symbol(name) for name, source in env.sources.items() if source.endswith(".0") and source not in common]
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


def _check_sizes(module: ir.Module) -> None:
    """A size that all rows together decide is another one for several requests."""
    made = next((op for block in function_blocks(module) for op in block_ops(block) if op.name in BINDING), None)
    if made is not None:
        what = string_attr(made, "what") if "what" in made.attributes else "a size"
        raise NotIndependent(f"{what} at {location_text(made)} depends on data")


def _check_facts(env: ModuleEnv, symbol: str) -> None:
    """A relation to other sizes, a divisor or a condition would hold for each request and not for several."""
    pairs = [*env.facts(), *env.inequalities()]
    if any(symbol in (*left.symbols(), *right.symbols()) and len({*left.symbols(), *right.symbols()}) > 1 for left, right in pairs):
        raise NotIndependent("it stands in a relation to other sizes")
    if env.divisor(Dim.symbol(symbol)) != 1:
        raise NotIndependent("it must be a multiple of another number")
    conditions = [
        each for each in env.requirements.values() if symbol in each.condition.symbols() and not _stays(env, each.condition, symbol)
    ]
    if conditions:
        raise NotIndependent(f"every call is checked for a condition on it: {conditions[0].text()}")


def _stays(env: ShapeEnv, condition: Condition, symbol: str) -> bool:
    """Whether the condition, where it holds for some rows, holds for more of them, too: all its comparisons do."""
    return all(symbol not in (*each.left.symbols(), *each.right.symbols()) or _grows(env, each, symbol) for each in condition.comparisons())


def _grows(env: ShapeEnv, comparison: Comparison, symbol: str) -> bool:
    """Of `p >= 0`: whether another row makes p no smaller. Of `p != 0`: that, and p is never negative."""
    order = comparison.at_least()
    if order is None and comparison.sign != "!=":
        return False
    size = order[0] - order[1] if order is not None else comparison.left - comparison.right
    grows = env.at_most(size, size.replace({symbol: Dim.symbol(symbol) + 1}))
    return grows and (order is not None or env.at_most(0, size))


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

    def shared_input(self, number: int, node: Node) -> int:
        if any(self.mentions(dim) for dim in node.dims):
            raise NotIndependent(f"input {number}, which all rows share, has it as a size")
        self.states[node] = None
        return SHARED

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
        states = [self.states[operand] for operand in node.operands]
        try:
            if node.op not in OF_NUMBERS and any(isinstance(state, Numbered) for state in states):
                raise NotIndependent("it uses the place of a row as data")
            state = RULES[node.op](self, node)
            self._check(node, state)
        except NotIndependent as reason:
            raise NotIndependent(f"{node.op}{f' at {node.line}' if node.line else ''}: {reason}") from None
        self.states[node] = state

    def _check(self, node: Node, state: State) -> None:
        """What holds of every value, independent of the rule: the symbol is in the size of the carried axis and of no other."""
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


Rule = Callable[[_Analysis, Node], State]


def _by_reads(analysis: _Analysis, node: Node) -> State:
    """Every element reads values that are carried in its own row alone, and no uniform value at a place that follows the row."""
    reads = OPS[node.op].reads
    if reads is None:
        return _unknown(analysis, node)
    maps = list(zip(node.operands, reads(node, analysis.env), strict=True))
    found: dict[State, None] = {}
    for operand, places in maps:
        state = analysis.states[operand]
        if state is not None:
            found[_followed(analysis, node, operand, state, places)] = None
        if any(place is not None and analysis.mentions(place.offset) for place in places):
            raise NotIndependent("the number of rows decides where it begins")
    if len(found) > 1:
        raise NotIndependent("its operands have their rows along different dims")
    state = next(iter(found), None) or _spread(analysis, node)
    if state is not None and not isinstance(state, Numbered):
        _check_uniform(analysis, [places for operand, places in maps if analysis.states[operand] is None], state.axis)
    return state


def _unknown(analysis: _Analysis, node: Node) -> State:
    if any(analysis.states[operand] for operand in node.operands):
        raise NotIndependent("there is no rule for it")
    return None


def _control(analysis: _Analysis, node: Node) -> State:
    """Branches and loops are one for all rows."""
    raise NotIndependent("what it runs is not looked into")


def _followed(analysis: _Analysis, node: Node, operand: Node, state: Carried | Numbered, places: Map) -> State:
    """Where the rows of an operand are in the result."""
    place = places[state.axis] if state.axis < len(places) else None
    if place is None or place.same is None:
        raise NotIndependent(f"{OPS[node.op].mixing} the rows")
    if place.undecided and analysis.env.equal(operand.dims[state.axis], node.dims[place.same]) is not Truth.YES:
        raise NotIndependent("whether the rows are broadcast is decided by their number")
    return _moved(state, place.same, state.inner)


def _check_uniform(analysis: _Analysis, maps: Sequence[Map], axis: int) -> None:
    """Values that are the same for every row are read in the same way in each."""
    for place in (place for places in maps for place in places if place is not None and place.follows(axis)):
        if place.undecided:
            raise NotIndependent("whether the rows are broadcast is decided by their number")
        raise NotIndependent("it uses the place of a row as data")


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


def _concatenate(analysis: _Analysis, node: Node) -> State:
    numbers = [operand for operand in node.operands if isinstance(analysis.states[operand], Numbered)]
    return _with_numbers(analysis, node, numbers) if numbers else _by_reads(analysis, node)


def _with_numbers(analysis: _Analysis, node: Node, numbers: Sequence[Node]) -> State:
    """Indices: the numbers of rows together with indices of other dims."""
    state, along = analysis.states[numbers[0]], node.integer("dimension")
    rest = {analysis.states[operand] for operand in node.operands if operand not in numbers}
    assert isinstance(state, Numbered)
    if len(numbers) > 1 or state.dim is not None or along == state.axis or numbers[0].dims[along] != ONE or rest - {Carried(state.axis)}:
        raise NotIndependent("it uses the place of a row as data")
    before = analysis.env.simplify(sum((operand.dims[along] for operand in node.operands[: node.operands.index(numbers[0])]), Dim.of(0)))
    if not before.is_const:
        raise NotIndependent("it uses the place of a row as data")
    return Numbered(state.axis, along, before.const)


def _gather(analysis: _Analysis, node: Node) -> State:
    """Each row's own indices into one table, the same indices into every row, or each row's indices into that row (through a batching
    dim, or through the numbers of the rows among the indices)."""
    numbers = numbers_of(node, "dimension_numbers")
    source, indices = analysis.state(node, 0), analysis.state(node, 1)
    if any(analysis.mentioned(size) for position, size in enumerate(node.texts("sizes")) if source is None or position != source.axis):
        raise NotIndependent("the number of rows decides how much it takes")
    offsets, vector = dims_in(numbers, "offset_dims"), numbers["vector_dim"]
    assert isinstance(vector, int)
    kept = [axis for axis in range(len(node.dims)) if axis not in offsets]  # where the dims of the indices go
    if isinstance(source, Numbered) or (isinstance(indices, Numbered) and not _own_row(numbers, source, indices, vector)):
        raise NotIndependent("it uses the place of a row as data")
    if isinstance(indices, Numbered):
        return Carried(kept[indices.axis - (indices.axis > vector)])
    if indices is not None and indices.axis != vector:
        place = kept[indices.axis - (indices.axis > vector)]
        if source is None:
            return Carried(place, indices.inner)
        pairs = list(zip(dims_in(numbers, "operand_batch"), dims_in(numbers, "indices_batch"), strict=True))
        if (source.axis, indices.axis) in pairs and source.inner == indices.inner:
            return Carried(place, indices.inner)
    if source is not None and indices is None:
        dropped = (*dims_in(numbers, "collapsed"), *dims_in(numbers, "operand_batch"))
        whole = analysis.env.parse(node.texts("sizes")[source.axis])
        taken = analysis.env.equal(whole, node.operands[0].dims[source.axis]) is Truth.YES
        if source.axis not in dropped and source.axis not in dims_in(numbers, "start_map") and taken:
            window = [axis for axis in range(len(node.operands[0].dims)) if axis not in dropped]
            return Carried(offsets[window.index(source.axis)], source.inner)
    if source is None and indices is None:
        return None
    raise NotIndependent("it gathers from other rows")


def _own_row(numbers: dict[str, Attribute], table: State, indices: Numbered, vector: int) -> bool:
    """Whether the one index into the dim of the rows is the number of the row that it stands in."""
    mapped = dims_in(numbers, "start_map")
    if not isinstance(table, Carried) or table.inner != ONE or indices.dim != vector or indices.position >= len(mapped):
        return False
    return mapped[indices.position] == table.axis and mapped.count(table.axis) == 1 and table.axis in dims_in(numbers, "collapsed")


def _update_slice(analysis: _Analysis, node: Node) -> State:
    """Rows are written as a whole: along them the start is moved to 0, since nothing else fits."""
    source, update, *starts = (analysis.states[operand] for operand in node.operands)
    if any(starts):
        raise NotIndependent("each row is written at a place of its own")
    if source != update or isinstance(source, Numbered):
        raise NotIndependent("its operands have their rows along different dims")
    return source


RULES: dict[str, Rule] = rules_by_op(
    "find-batch-dim",
    {"disc.dim_value": _dim_value, "disc.iota": _iota, "disc.reshape": _reshape, "stablehlo.concatenate": _concatenate,
     "disc.gather": _gather, "stablehlo.dynamic_update_slice": _update_slice},
    {**dict.fromkeys(Kind, _by_reads), Kind.CONTROL: _control},
)  # fmt: skip
OF_NUMBERS = VIEWS | {"stablehlo.concatenate", "disc.gather"}
