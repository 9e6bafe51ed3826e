"""An FX graph of ATen ops → a module at stage `imported`, op by op through the table of rules.

Every op that no rule takes is collected, so that the user sees all of them at once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import BuiltinFunctionType
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch.export.graph_signature import CustomObjArgument
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges
from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from disc.errors import CompilerBug, UnsupportedOp, UnsupportedOpError, warn
from disc.frontend.allow_list import FORMS
from disc.frontend.branch_demands import Premise, branches_of, only_in, premises_of
from disc.frontend.call import NOT_DECOMPOSED, Call, arguments_by_name
from disc.frontend.computed_numbers import ROUNDING, expression_of
from disc.frontend.conditions import relation
from disc.frontend.control_flow import CONTROL_FLOW, ControlCall
from disc.frontend.custom_ops import FUNCTIONALIZED, custom_call, functionalized_call, is_custom
from disc.frontend.decisions import Decision, Found, Settled, Undecided, asserted, guarded_facts, settle
from disc.frontend.effect_tokens import CHECKS
from disc.frontend.examples import weight_problem
from disc.frontend.folded_numbers import folded_reason
from disc.frontend.imported import Constant
from disc.frontend.locations import line_text, location, user_line
from disc.frontend.op_builder import (
    MLIR_TYPES,
    NO_RULE,
    PARTS,
    OpBuilder,
    RuleError,
    Tensor,
    check_kind,
    element_type,
    integers,
    is_static,
    tensor_type,
)
from disc.frontend.rules import assertions, complex_views, data_sizes, factorizations, override_of
from disc.frontend.rules.distributions import is_drawn
from disc.frontend.rules.random import RANDOM
from disc.frontend.symbol_names import explained, symbol_places
from disc.frontend.symbols import (
    IndexArithmetic,
    Size,
    SymbolError,
    lower_limit,
    relaxed_minimum,
    shape_environment,
    solve_base,
    to_shape,
    to_size,
    to_text,
    upper_limit,
)
from disc.frontend.torch_mlir import Kind, Lowerings
from disc.frontend.torch_mlir_calls import Form, Plan, emit, plan
from disc.ir.state import COMPLEX, ROW_MAJOR, SEED, STATE, State
from disc.ir.weights import STORAGE, Weight, WeightTable

aten = torch.ops.aten

DROPPED = ("aten._assert_tensor_metadata", "aten.sym_constrain_range", "aten._make_dep_token")


@dataclass(frozen=True)
class GraphInput:
    """A placeholder that becomes an argument, under the user's name. row_major: the lines for which it must come so; "": none."""

    node: fx.Node
    name: str
    row_major: str = ""


@dataclass(frozen=True)
class GraphSource:
    """A graph with the meaning of its placeholders and outputs.

    outputs: nodes or plain constants, in order; weights: placeholder or get_attr node → (name, data). decisions: finds, once the graph is
    lowered, what has been decided about its sizes; None where the caller of the graph checks its guards. bounds_are_decisions: whatever
    bounds a size from below is among the decisions, PyTorch's own bounds apart. bodies: get_attr node → the graph that control flow runs.
    buffers: names and first values of the last inputs, which the program keeps from call to call; written: the numbers of inputs that it
    writes. The last outputs are the next values of the buffers, then of these inputs.
    """

    graph: fx.Graph
    inputs: Sequence[GraphInput]
    weights: Mapping[fx.Node, tuple[str, torch.Tensor]]
    outputs: Sequence[tuple[str, fx.Node | Constant]]
    ranges: Mapping[sympy.Symbol, ValueRanges]
    decisions: Callable[[], list[Found]] | None = None
    bounds_are_decisions: bool = False
    bodies: Mapping[fx.Node, fx.Graph] = field(default_factory=dict)
    buffers: Sequence[tuple[str, torch.Tensor]] = ()
    written: Sequence[int] = ()

    @property
    def kept(self) -> frozenset[fx.Node]:
        """The inputs that are buffers, of which the program makes next values."""
        return frozenset(each.node for each in self.inputs[len(self.inputs) - len(self.buffers) :])

    @property
    def graphs(self) -> tuple[fx.Graph, ...]:
        """That of the program, and those that control flow runs."""
        return (self.graph, *self.bodies.values())


@dataclass(frozen=True)
class LoweredGraph:
    module: ir.Module
    weights: WeightTable
    result_names: tuple[str, ...]
    constants: dict[int, Constant]


def lower_graph(source: GraphSource, context: ir.Context) -> LoweredGraph:
    """Raises: UnsupportedOpError naming every op without a rule; CompilerBug when our own output does not verify."""
    with context, ir.Location.unknown():
        try:
            return _cleaned(_Lowering(source).run())
        except RuleError as error:
            raise UnsupportedOpError([UnsupportedOp("output", str(error))]) from error


def _cleaned(lowered: LoweredGraph) -> LoweredGraph:
    """Raises: CompilerBug."""
    try:
        PassManager.parse("builtin.module(cse)").run(lowered.module.operation)
    except ir.MLIRError as error:
        raise CompilerBug(f"frontend: the imported module does not verify: {error}") from error
    return lowered


def warn_of_lost_assertions(graph: fx.Graph) -> None:
    """Warns of every assertion on floats whose values an export has not kept: it drops them, and their line, where sizes take part."""
    values = [node.meta.get("val") for node in graph.nodes]
    environment = shape_environment(values)
    kept = {value.node.expr for value in values if isinstance(value, torch.SymFloat)}
    found = environment.deferred_runtime_asserts.values() if environment is not None else ()
    for each in (each for asserts in found for each in asserts):
        if any(symbol_is_type(symbol, SymT.UNBACKED_FLOAT) and symbol not in kept for symbol in each.expr.free_symbols):
            what = f"an assertion that compares a value with sizes ({each.expr})"
            warn(f"{what} is dropped by PyTorch's export: the compiled program does not check it")


def _op_name(node: fx.Node) -> str:
    """ "aten.add.Tensor", "trunc" of Python's own."""
    return node.target.__name__ if isinstance(node.target, BuiltinFunctionType) else str(node.target)


def lower_or_refuse(
    source: GraphSource, context: ir.Context, known: Mapping[fx.Node, UnsupportedOp]
) -> LoweredGraph | dict[fx.Node, UnsupportedOp]:
    """The lowered graph; or the nodes that cannot be lowered, with the reason, where there are any.

    known: nodes that the caller refuses. A rule that fails refuses its op, too.

    Raises: UnsupportedOpError for what is no node's fault; CompilerBug.
    """
    folded = [(node, reason) for node in source.graph.nodes if (reason := folded_reason(node)) is not None]
    if folded:  # sizes of other nodes are made of it, so that nothing of the graph can be compiled
        raise UnsupportedOpError([UnsupportedOp(_op_name(node), reason, line_text(node)) for node, reason in folded])
    with context, ir.Location.unknown():
        lowering = _Lowering(source, tolerant=True)
        for node, reason in known.items():
            lowering.refuse(node, reason)
        try:
            return _cleaned(lowering.run())
        except UnsupportedOpError:
            if not lowering.refused:
                raise
            inputs = [node for node in lowering.refused if node.op == "placeholder"]
            return lowering.refused | {user: lowering.refused[node] for node in inputs for user in node.users}


def to_weight(tensor: torch.Tensor) -> Weight:
    """A view of the tensor's storage (no copy for a CPU tensor without the negative or the conjugate bit), of a complex one by parts.

    Raises: RuleError for a dtype without a type in the IR.
    """
    problem = weight_problem(tensor)
    if problem is not None:
        raise RuleError(problem)
    data = tensor.detach().cpu().resolve_conj().resolve_neg()
    if data.dtype in PARTS:
        data = torch.view_as_real(data)
    name = str(element_type(data.dtype))
    if data.dtype == torch.bfloat16:
        return Weight(data.view(torch.uint16).numpy(), name)
    assert name in STORAGE
    return Weight(data.numpy(), name)


class _Lowering:
    def __init__(self, source: GraphSource, tolerant: bool = False) -> None:
        """tolerant: a failure of a rule refuses the op instead of ending the import."""
        self.source = source
        self.tolerant = tolerant
        self.module = ir.Module.create()
        self.weights = WeightTable()
        self.values: dict[fx.Node, Tensor | tuple[Tensor, ...]] = {}
        self.unsupported: list[UnsupportedOp] = []
        self.refused: dict[fx.Node, UnsupportedOp] = {}
        self.bounds: list[Decision] = []
        self.ranges = self._relaxed_ranges()
        self.lowerings = Lowerings(functools.partial(_expected_kinds, source.graphs))
        self.checked: set[fx.Node] = set()

    def run(self) -> LoweredGraph:
        function, block, emitter = self._create_function()
        with ir.InsertionPoint(emitter.sizes.anchor):
            for node in self._used_weights():
                self._emit_weight(emitter, node)
        with ir.InsertionPoint(block):
            for node in self.source.graph.nodes:
                if node.op == "call_function":
                    self._emit_node(emitter, node)
            settled = self._settled(emitter)
            self.unsupported += [UnsupportedOp(f"the condition {each.text}", each.reason, each.place) for each in settled.undecided]
            if self.unsupported:
                raise UnsupportedOpError(explained(self.unsupported, emitter.places))
            names, constants = self._emit_return(emitter, function)
        emitter.sizes.finish()
        self.module.operation.attributes["disc.symbols"] = self._symbols_attribute(emitter)
        self._write_conditions(settled)
        # StableHLO clamps an index that is out of range; PyTorch raises, and so must the compiled model.
        self.module.operation.attributes["disc.checked_indices"] = ir.UnitAttr.get(self.module.context)
        self.module.operation.attributes["disc.result_names"] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])
        self._write_state(emitter.seed is not None)
        return LoweredGraph(self.module, self.weights, tuple(names), constants)

    def _write_state(self, seeded: bool) -> None:
        buffers = tuple(self.weights.add(name, to_weight(first)) for name, first in self.source.buffers)
        state = State(buffers, tuple(self.source.written), seeded)
        if state != State():
            self.module.operation.attributes[STATE] = state.attribute()

    # --- the function and its sizes -----------------------------------------------------------------------------------------

    def _create_function(self) -> tuple[ir.Operation, ir.Block, OpBuilder]:
        types, attributes, taken = [], [], []
        for argument in self.source.inputs:
            if argument.node in self.refused:
                continue
            try:
                kind, described = self._argument(argument)
            except (RuleError, SymbolError) as error:
                self._refuse(argument.node, str(error))
                continue
            taken.append(argument)
            types.append(kind)
            attributes.append(ir.DictAttr.get(described))
        seeded = any(is_random(node.target) and node not in self.refused for graph in self.source.graphs for node in graph.nodes)
        if seeded:
            types.append(tensor_type((), torch.int64))
            attributes.append(ir.DictAttr.get({"disc.name": ir.StringAttr.get(SEED)}))
        function_type = ir.TypeAttr.get(ir.FunctionType.get(types, []))
        described = {"sym_name": ir.StringAttr.get("main"), "function_type": function_type, "arg_attrs": ir.ArrayAttr.get(attributes)}
        with ir.InsertionPoint(self.module.body):
            function = ir.Operation.create("func.func", attributes=described, regions=1)
        block = ir.Block.create_at_start(function.regions[0], types, [ir.Location.unknown()] * len(types))
        index = ir.IndexType.get()
        with ir.InsertionPoint(block):
            # All shape arithmetic goes above this op, which is erased at the end.
            anchor = ir.Operation.create("arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, 0)})
        arithmetic = IndexArithmetic(anchor, {})
        self._add_bases(arithmetic, taken, block)
        with ir.InsertionPoint(block):
            self.values |= {node: self._stand_ins(node.meta["val"]) for node in self.refused if isinstance(node.meta["val"], torch.Tensor)}
        for argument, value in zip(taken, block.arguments, strict=False):
            meta = argument.node.meta["val"]
            if isinstance(meta, torch.Tensor):
                self.values[argument.node] = Tensor(value, to_shape(meta.shape), meta.dtype)
        emitter = OpBuilder(arithmetic, self.weights, self.ranges)
        emitter.kept = self.source.kept
        emitter.places = symbol_places((argument.name, argument.node.meta["val"]) for argument in self.source.inputs)
        if seeded:
            emitter.seed = Tensor(block.arguments[len(taken)], (), torch.int64)
        return function, block, emitter

    def _argument(self, argument: GraphInput) -> tuple[ir.Type, dict[str, ir.Attribute]]:
        value = argument.node.meta["val"]
        described: dict[str, ir.Attribute] = {"disc.name": ir.StringAttr.get(argument.name)}
        if not isinstance(value, torch.Tensor):
            if isinstance(value, torch.SymInt):
                described["disc.symbol"] = ir.StringAttr.get(to_text(to_size(value)))
            elif not isinstance(value, int):
                raise RuleError(f"an input of type {type(value).__name__} is not supported")
            return ir.IntegerType.get_signless(64), described
        check_kind(value)
        kind = tensor_type(to_shape(value.shape), value.dtype)
        i64 = ir.IntegerType.get_signless(64)
        dims = [ir.IntegerAttr.get(i64, s) if isinstance(s, int) else ir.StringAttr.get(to_text(s)) for s in to_shape(value.shape)]
        if value.dtype in PARTS:
            if argument.name not in dict(self.source.buffers):
                described[COMPLEX] = ir.UnitAttr.get(self.module.context)
            dims.append(ir.IntegerAttr.get(i64, 2))
        described["disc.dims"] = ir.ArrayAttr.get(dims)
        if argument.row_major:
            described[ROW_MAJOR] = ir.StringAttr.get(argument.row_major)
        return kind, described

    def _add_bases(self, arithmetic: IndexArithmetic, inputs: Sequence[GraphInput], block: ir.Block) -> None:
        """Where each symbol can be read: a dim that is the symbol itself before a scalar argument, a linear dim last.

        inputs: whose values are the first arguments of `block`.
        """
        found: list[tuple[int, str, Callable[[], ir.Value]]] = []
        for argument, value in zip(inputs, block.arguments, strict=False):
            meta = argument.node.meta["val"]
            if isinstance(meta, torch.Tensor):
                readers = [(size, 0, _dim_reader(arithmetic, value, i)) for i, size in enumerate(to_shape(meta.shape))]
            else:
                readers = [(to_size(meta), 1, _scalar_reader(arithmetic, value))]
            for size, preference, read in readers:
                if isinstance(size, int):
                    continue
                if isinstance(size, ROUNDING) and expression_of(to_text(size)) is not None:  # a number that the forward graph has computed
                    found.append((preference, to_text(size), read))
                    continue
                rank = preference if isinstance(size, sympy.Symbol) else 2
                found += [(rank, name, reader) for name, reader in solve_base(size, read, lambda: arithmetic).items()]
        for _, name, reader in sorted(found, key=lambda entry: entry[0]):
            arithmetic.bases.setdefault(name, reader)

    def _relaxed_ranges(self) -> dict[sympy.Symbol, ValueRanges]:
        # A symbol of a float is no size, and none is left in the graph: its value comes as an f64 tensor.
        ranges = {s: values for s, values in self.source.ranges.items() if isinstance(s, sympy.Symbol) and s.is_integer}
        when = self._premises()  # a size of a branch may be negative in calls that do not take it
        sizes: dict[sympy.Expr, fx.Node] = {}
        for node in (node for graph in self.source.graphs if when.get(graph) is None for node in graph.nodes):
            # Also of numbers: `x[2:].shape[0]`, which is 0 for 1 row, is no more than `n - 2` where nothing else of the slice is used.
            sizes |= {size: node for size in _sizes_of(node.meta.get("val")) if isinstance(size, sympy.Expr) and size not in sizes}
        known = [size for size in sorted(sizes, key=str) if size.free_symbols <= set(ranges)]
        relaxed = dict[sympy.Symbol, ValueRanges]()
        for symbol, value in ranges.items():
            least, reason = relaxed_minimum(symbol, ranges, known, self.source.bounds_are_decisions)
            relaxed[symbol] = ValueRanges(least, value.upper)
            if reason is not None and (place := line_text(sizes[reason])):
                op = sizes[reason].target
                by = f"needed by {op} at" if isinstance(op, torch._ops.OpOverload) else "needed at"
                self.bounds.append(Decision(relation(">=", symbol, least), f"{by} {place}"))
        return relaxed

    def _used_symbols(self) -> set[str]:
        sizes = (size for argument in self.source.inputs for size in _sizes_of(argument.node.meta["val"]))
        return {str(symbol) for size in sizes for symbol in sympy.sympify(size).free_symbols}

    def _settled(self, emitter: OpBuilder) -> Settled:
        """All that was decided about the sizes: by PyTorch, by asserts of the graph, by the rules of its ops."""
        environment = shape_environment(node.meta.get("val") for node in self.source.graph.nodes)
        replacements, known = environment.replacements if environment is not None else {}, self._used_symbols() | set(emitter.sizes.late)
        if self.source.decisions is not None:
            when = self._premises()
            found = [
                *self.source.decisions(),
                *(only_in(when.get(graph), each) for graph in self.source.graphs for each in asserted(graph)),
            ]
        else:
            found = guarded_facts(environment, known) if environment is not None else []
            late = emitter.sizes.late.keys()  # sizes that no guard knows
            found += [
                each for each in asserted(self.source.graph) if isinstance(each, Decision) and not late.isdisjoint(each.condition.symbols())
            ]
        self._compute(emitter, [*found, *emitter.decisions], environment)
        known |= set(emitter.sizes.late)
        places, named = self._places_of_views() - known, known | {str(symbol) for symbol in replacements} | self._named()
        found = [each for each in found if isinstance(each, Undecided) or places.isdisjoint(each.condition.symbols())]
        found = [each for each in found if isinstance(each, Undecided) or named.issuperset(each.condition.symbols())]
        return settle([*found, *self.bounds, *emitter.decisions], replacements, known)

    def _premises(self) -> dict[fx.Graph, Premise]:
        """When the graphs run that control flow runs, where sizes decide."""
        bodies = self.source.bodies
        return premises_of(
            self.source.graph, lambda graph: ((node, bodies[node]) for node in graph.find_nodes(op="get_attr") if node in bodies)
        )

    def _compute(self, emitter: OpBuilder, found: Sequence[Found], environment: ShapeEnv | None) -> None:
        """Binds the numbers that conditions are about and that the program computes."""
        names = {name for each in found if isinstance(each, Decision) for name in each.condition.symbols()}
        for name in sorted(names):
            number = expression_of(name)
            is_bound = name in emitter.sizes.bases  # perhaps as a part of the number before
            if number is not None and environment is not None and not is_bound:
                number = number.xreplace({each: environment.replace(each) for each in number.free_symbols})
                with ir.InsertionPoint(emitter.sizes.place(number)):
                    emitter.compute(name, number)

    def _named(self) -> set[str]:
        """The symbols in the values of all nodes. PyTorch decides about others that it has thrown away, such as those that stood for the
        sizes of what a loop carries."""
        sizes = [size for graph in self.source.graphs for node in graph.nodes for size in _sizes_of(node.meta.get("val"))]
        return {str(symbol) for size in sizes for symbol in sympy.sympify(size).free_symbols}

    def _places_of_views(self) -> set[str]:
        """Symbols in where views begin in memory: no value depends on them, and what bounds them bounds the sizes of the views too."""
        values = [value for node in self.source.graph.nodes for value in pytree.tree_leaves(node.meta.get("val"))]
        offsets = [value.storage_offset() for value in values if isinstance(value, torch.Tensor) and value.layout == torch.strided]
        return {str(symbol) for each in offsets if isinstance(each, torch.SymInt) for symbol in each.node.expr.free_symbols}

    def _write_conditions(self, settled: Settled) -> None:
        attributes = self.module.operation.attributes
        entries = [{"expr": str(each.condition), "why": each.why, "message": each.message} for each in settled.decisions]
        texts = [ir.DictAttr.get({name: ir.StringAttr.get(text) for name, text in entry.items() if text}) for entry in entries]
        if texts:
            attributes["disc.conditions"] = ir.ArrayAttr.get(texts)
        word = ir.IntegerType.get_signless(64)
        for name, count in (("disc.layout_decisions", settled.layout), ("disc.fixed_decisions", settled.always)):
            if count:
                attributes[name] = ir.IntegerAttr.get(word, count)

    def _symbols_attribute(self, emitter: OpBuilder) -> ir.Attribute:
        used = self._used_symbols() | set(emitter.sizes.late)
        i64 = ir.IntegerType.get_signless(64)
        entries: dict[str, ir.Attribute] = {}
        for symbol, value_range in sorted(self.ranges.items(), key=lambda item: str(item[0])):
            if str(symbol) not in used:
                continue
            known = {"min": lower_limit(value_range), "max": upper_limit(value_range)}
            entry = {name: ir.IntegerAttr.get(i64, value) for name, value in known.items() if value is not None}
            entries[str(symbol)] = ir.DictAttr.get(entry)
        for name, least in emitter.least.items():
            entries.setdefault(name, ir.DictAttr.get({"min": ir.IntegerAttr.get(i64, least)}))
        return ir.DictAttr.get(entries)

    # --- weights ------------------------------------------------------------------------------------------------------------

    def _used_weights(self) -> list[fx.Node]:
        return [node for node in self.source.weights if node.users]

    def _emit_weight(self, emitter: OpBuilder, node: fx.Node) -> None:
        name, data = self.source.weights[node]
        try:
            self.values[node] = emitter.weight(name, to_weight(data), tuple(data.shape), data.dtype)
        except RuleError as error:
            self.unsupported.append(UnsupportedOp(f"weight {name}", str(error)))
            self.values[node] = self._stand_in(data)

    # --- ops ----------------------------------------------------------------------------------------------------------------

    def _emit_node(self, emitter: OpBuilder, node: fx.Node) -> None:
        meta = node.meta.get("val")
        name = str(node.target)
        if name.startswith(DROPPED) or (meta is not None and not isinstance(meta, torch.Tensor | list | tuple)):
            if node.target in data_sizes.NUMBERS:
                self._emit_number(emitter, node)
            elif (reason := folded_reason(node)) is not None:
                self._refuse(node, reason)
            return
        if node.target is operator.getitem:
            self._emit_getitem(node)
            return
        if node.target in assertions.RULES:
            self._emit_assertion(emitter, node)
            return
        if meta is None and not node.users:
            if node.target in CHECKS:
                self._emit_check(emitter, node)
            return
        if node in self.refused:
            self.values[node] = self._stand_ins(meta)
            return
        with location(node):
            try:
                for each in (*node.all_input_nodes, node):
                    self._check_kind(each)
                self.values[node] = self._apply(emitter, node)
            except (RuleError, SymbolError) as error:
                self._refuse(node, str(error))
                self.values[node] = self._stand_ins(meta)
            except Exception as error:
                if not self.tolerant:
                    raise
                self._refuse(node, f"its lowering failed ({type(error).__name__}: {error})")
                self.values[node] = self._stand_ins(meta)

    def _emit_number(self, emitter: OpBuilder, node: fx.Node) -> None:
        with location(node):
            try:
                self._check_kind(node.all_input_nodes[0])
                call = Call(node, self._bind(node))
                data_sizes.NUMBERS[node.target](emitter, call)
                if isinstance(node.meta["val"], torch.SymBool):  # what takes a number takes the tensor; no size is computed from it
                    self.values[node] = emitter.reshape(call.tensor("self"), ())
            except (RuleError, SymbolError) as error:
                self._refuse(node, str(error))

    def _emit_assertion(self, emitter: OpBuilder, node: fx.Node) -> None:
        is_scalar = node.target is aten._assert_scalar.default
        with location(_with_line(node)):
            try:
                for each in node.all_input_nodes:
                    self._check_kind(each)
                arguments = {"assert_msg": node.args[1]} if is_scalar else self._bind(node)  # what it looks at is an expression of numbers
                assertions.RULES[node.target](emitter, Call(node, arguments))
            except (RuleError, SymbolError) as error:
                self._refuse(node, str(error))

    def _emit_check(self, emitter: OpBuilder, node: fx.Node) -> None:
        with location(node):
            try:
                factorizations.check_errors(emitter, Call(node, self._bind(node)))
            except RuleError as error:
                self._refuse(node, str(error))

    def _check_kind(self, node: fx.Node) -> None:
        """Raises: RuleError where a value is no dense tensor of the CPU, of a dtype with a type in the IR."""
        if node in self.checked:
            return
        value = node.meta.get("val")
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if isinstance(tensor, torch.Tensor):
                check_kind(tensor)
        self.checked.add(node)

    def _apply(self, emitter: OpBuilder, node: fx.Node) -> Tensor | tuple[Tensor, ...]:
        if (view := complex_views.RULES.get(node.target)) is not None:
            return view(emitter, Call(node, self._bind(node)))
        complex_views.refuse_complex(node)
        made = data_sizes.RULES.get(node.target)
        if made is None and isinstance(node.meta["val"], torch.Tensor) and 0 in (shape := to_shape(node.meta["val"].shape)):
            return emitter.full(0, shape, node.meta["val"].dtype)  # StableHLO refuses to read from no elements, even nothing
        lower = CONTROL_FLOW.get(node.target)
        if lower is not None:
            return lower(emitter, self._control(emitter, node))
        if node.target in FUNCTIONALIZED:
            parts = functionalized_call(emitter, node, {name: self._argument_value(each) for name, each in node.kwargs.items()})
            return cast("tuple[Tensor, ...]", parts)  # nobody reads what is None
        call = Call(node, self._bind(node))
        form, override = FORMS.get(node.target), override_of(node.target)
        planned = plan(call, form) if form is not None else None
        if form is not None and planned is not None:
            result = self._emit_planned(emitter, call, form, planned)
        elif override is not None:
            result = override.rule(emitter, call)
        elif made is not None:
            result = made(emitter, call)
        elif is_custom(node.target):
            found = custom_call(emitter, node, call.arguments)
            result = found[0] if isinstance(node.meta["val"], torch.Tensor) else found
        else:
            raise RuleError(node.meta.get(NOT_DECOMPOSED, NO_RULE))
        meta = node.meta["val"]
        if isinstance(result, tuple):
            return tuple(self._checked(emitter, node, part, wanted) for part, wanted in zip(result, meta, strict=False))
        return self._checked(emitter, node, result, meta)

    def _emit_planned(self, emitter: OpBuilder, call: Call, form: Form, planned: Plan) -> Tensor | tuple[Tensor, ...]:
        """torch-mlir refuses a call whose result would have a size that PyTorch does not know (`h * (16 // h)`), because an operand has it:
        then the operands have the sizes that PyTorch knows."""
        try:
            return emit(emitter, self.lowerings, call, planned)
        except RuleError:
            looser = planned_call(call.node)
            if looser is None or looser.kind == planned.kind:
                raise
            loose = Call(call.node, {name: self._loosened(emitter, each) for name, each in arguments_by_name(call.node).items()})
            again = plan(loose, form)
            if again is None:
                raise
            return emit(emitter, self.lowerings, loose, again)

    def _loosened(self, emitter: OpBuilder, argument: object) -> object:
        if isinstance(argument, list | tuple):
            return [self._loosened(emitter, part) for part in argument]
        value = self._argument_value(argument)
        if not isinstance(argument, fx.Node) or not isinstance(value, Tensor):
            return value
        shape = to_shape(argument.meta["val"].shape)
        if tensor_type(shape, value.dtype) == value.value.type:
            return value
        return emitter.op("tensor.cast", [value.value], shape, value.dtype)

    def _control(self, emitter: OpBuilder, node: fx.Node) -> ControlCall:
        """Raises: RuleError for a graph that this compiler did not get."""

        def run(graph: fx.Node, operands: Sequence[object]) -> list[Tensor]:
            with emitter.only_when(dict(branches_of(node)).get(graph)), emitter.holding() as held:
                return assertions.with_held(emitter, emitted(self.source.bodies[graph], operands), held)

        def emitted(body: fx.Graph, operands: Sequence[object]) -> list[Tensor]:
            for placeholder, operand in zip(body.find_nodes(op="placeholder"), operands, strict=True):
                if isinstance(operand, Tensor):
                    self.values[placeholder] = operand
            for inner in body.nodes:
                if user_line(inner.meta.get("stack_trace")) is None:  # PyTorch ran the graph as generated code
                    inner.meta["stack_trace"] = node.meta.get("stack_trace")
                if inner.op == "call_function":
                    self._emit_node(emitter, inner)
                if self.tolerant and inner in self.refused:  # PyTorch can run the control flow as a whole alone
                    raise RuleError(str(self.refused[inner]))
            (returned,) = body.output_node().args
            found = [self._argument_value(each) for each in (returned if isinstance(returned, list | tuple) else [returned])]
            if not all(isinstance(each, Tensor) for each in found):
                raise RuleError("it returns something else than tensors")
            return cast("list[Tensor]", found)

        if any(each.op == "get_attr" and each not in self.source.bodies and each not in self.values for each in node.all_input_nodes):
            raise RuleError(NO_RULE)
        return ControlCall(node, self._argument_value, run, self._draws)

    def _draws(self, graph: fx.Node) -> bool:
        """Whether a graph that control flow runs draws random numbers, or one that it runs itself."""
        nodes = self.source.bodies[graph].nodes
        return any(is_random(node.target) or (node in self.source.bodies and self._draws(node)) for node in nodes)

    def _checked(self, emitter: OpBuilder, node: fx.Node, result: Tensor, meta: torch.Tensor) -> Tensor:
        """The result under the shape that PyTorch computed; a static size known on either side is kept."""
        if result.dtype != meta.dtype or result.rank != meta.dim():
            raise CompilerBug(f"frontend: the rule of {node.target} gives {result.value.type}, PyTorch {meta.dtype} {tuple(meta.shape)}")
        shape = to_shape(meta.shape)
        known: tuple[Size, ...] = tuple(have if isinstance(have, int) else want for have, want in zip(result.shape, shape, strict=True))
        if tensor_type(known, result.dtype) == result.value.type:
            return Tensor(result.value, known, result.dtype)
        name = "stablehlo.reshape" if is_static(known) else "tensor.cast"
        return emitter.op(name, [result.value], known, result.dtype)

    def _refuse(self, node: fx.Node, reason: str) -> None:
        name = f"input {node.name}" if node.op == "placeholder" else _op_name(node)
        self.refuse(node, UnsupportedOp(name, reason, line_text(node)))

    def refuse(self, node: fx.Node, reason: UnsupportedOp) -> None:
        self.refused[node] = reason
        self.unsupported.append(reason)

    def _stand_ins(self, meta: object) -> Any:
        """A value of the right type after a refused op, so that the ops after it are examined too; of lists, tuples."""
        if isinstance(meta, list | tuple):
            return tuple(self._stand_ins(part) for part in meta if isinstance(part, torch.Tensor | list | tuple))
        return self._stand_in(meta)

    def _stand_in(self, meta: object) -> Tensor:
        assert isinstance(meta, torch.Tensor)
        shape = to_shape(meta.shape)
        dtype = meta.dtype if meta.dtype in MLIR_TYPES or meta.dtype in PARTS else torch.float32  # never read: every op on it is refused
        kind = tensor_type(shape, dtype)
        value = ir.Operation.create("builtin.unrealized_conversion_cast", results=[kind], operands=[]).result
        return Tensor(value, shape, dtype)

    def _emit_getitem(self, node: fx.Node) -> None:
        parent, position = node.args
        assert isinstance(parent, fx.Node) and isinstance(position, int)
        parts = self.values[parent]
        assert isinstance(parts, tuple)
        if position < len(parts):
            self.values[node] = parts[position]
        elif node.users:
            self._refuse(parent, f"result {position} is not supported")
            self.values[node] = self._stand_ins(node.meta["val"])

    def _bind(self, node: fx.Node) -> dict[str, object]:
        return {name: self._argument_value(value) for name, value in arguments_by_name(node).items()}

    def _argument_value(self, argument: object) -> object:
        if isinstance(argument, list | tuple):
            return [self._argument_value(item) for item in argument]
        if not isinstance(argument, fx.Node):
            return argument
        if argument in self.values:
            return self.values[argument]
        return _constant_or_size(argument.meta.get("val"), argument)

    def _emit_return(self, emitter: OpBuilder, function: ir.Operation) -> tuple[list[str], dict[int, Constant]]:
        names, constants, operands, whole = [], {}, [], []
        last = len(self.source.outputs) - len(self.source.written)
        buffers = range(last - len(self.source.buffers), last)
        for position, (name, output) in enumerate(self.source.outputs):
            if not isinstance(output, fx.Node):
                constants[position] = output
                continue
            number = output.meta.get("val")
            if isinstance(number, torch.SymBool):
                tensor = emitter.condition(number.node.expr)
            else:
                value = self._argument_value(output)
                kind = torch.float64 if isinstance(number, torch.SymFloat) else torch.int64
                tensor = value if isinstance(value, Tensor) else emitter.size_scalar(to_size(value), kind)
            if tensor.dtype in PARTS and position not in buffers:
                whole.append(len(names))
            names.append(name)
            operands.append(tensor.value)
        ir.Operation.create("func.return", operands=operands)
        if whole:
            self.module.operation.attributes[COMPLEX] = integers(whole)
        inputs = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, [operand.type for operand in operands]))
        return names, constants


def _with_line(node: fx.Node) -> fx.Node:
    """The node, or, where PyTorch has made it at the end of a trace, what it looks at."""
    while user_line(node.meta.get("stack_trace")) is None and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def planned_call(node: fx.Node) -> Plan | None:
    """How the call goes through torch-mlir, as far as PyTorch's own sizes determine it; None where it does not.

    Raises: RuleError, SymbolError for a call that has no lowering.
    """
    form = FORMS.get(node.target)
    if form is None:
        return None
    return plan(Call(node, {name: _described(value) for name, value in arguments_by_name(node).items()}), form)


def _expected_kinds(graphs: Sequence[fx.Graph]) -> Iterator[Kind]:
    for node in [node for graph in graphs for node in graph.nodes]:
        with suppress(RuleError, SymbolError):
            planned = planned_call(node) if node.op == "call_function" else None
            if planned is not None:
                yield planned.kind


def _described(argument: object) -> object:
    """An argument as `plan` looks at it, before there are values."""
    if isinstance(argument, list | tuple):
        return [_described(part) for part in argument]
    if not isinstance(argument, fx.Node):
        return argument
    value = argument.meta.get("val")
    if isinstance(value, torch.Tensor):
        return Tensor(cast(ir.Value, None), to_shape(value.shape), value.dtype)
    return _constant_or_size(value, argument)


def _constant_or_size(value: object, node: fx.Node) -> object:
    if isinstance(value, torch.SymInt):
        return to_size(value)
    if isinstance(value, torch.SymFloat):
        expression = value.node.expr
        return float(expression) if expression.is_number else expression
    if isinstance(value, int | float | bool | None):
        return value
    if isinstance(value, CustomObjArgument):
        raise RuleError(f"its argument of type {value.class_fqn.rpartition('.')[2]} is not supported")
    raise RuleError(f"argument {node.name} of type {type(value).__name__} is not supported")


def _sizes_of(value: object) -> list[Size]:
    if isinstance(value, torch.Tensor):
        return list(to_shape(value.shape))
    if isinstance(value, torch.SymInt):
        return [to_size(value)]
    if isinstance(value, list | tuple):
        return [size for item in value for size in _sizes_of(item)]
    return []


def is_random(op: object) -> bool:
    """Whether an op draws from the seed of the call."""
    return op in RANDOM or is_drawn(op)


def _dim_reader(arithmetic: IndexArithmetic, value: ir.Value, dim: int) -> Callable[[], ir.Value]:
    def read() -> ir.Value:
        return ir.Operation.create("tensor.dim", results=[arithmetic.index], operands=[value, arithmetic.constant(dim)]).result

    return read


def _scalar_reader(arithmetic: IndexArithmetic, value: ir.Value) -> Callable[[], ir.Value]:
    def read() -> ir.Value:
        return ir.Operation.create("arith.index_cast", results=[arithmetic.index], operands=[value]).result

    return read
