"""torch.export programs: exporting a module with every dim dynamic, and importing the program."""

from __future__ import annotations

import inspect
import json
import traceback
import warnings
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch
import torch._dynamo.config as dynamo_config
import torch.fx.experimental._config as symbolic_config
from torch import fx
from torch._subclasses import FakeTensor
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.functions import Mod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges
from torch_mlir import ir

from disc.artifact.structure import result_names
from disc.errors import CompilerBug, DiscError, UnsupportedFormatError, UnsupportedOp, UnsupportedOpError, warn
from disc.frontend.archive import check_archive
from disc.frontend.branch_demands import BranchDemands
from disc.frontend.caches import CacheLayers, growing_dims, input_names, is_layers, takes_layers, without_caches
from disc.frontend.call import arguments_by_name
from disc.frontend.complex_numbers import has_complex
from disc.frontend.conditions import relation
from disc.frontend.copies_or_views import refuse_copies_or_views
from disc.frontend.custom_ops import warn_of_effects
from disc.frontend.decisions import Decision, Found, Recorder, located
from disc.frontend.decompose import CONTROL, Decomposed, constants_by_attribute, decompose, without_bodies
from disc.frontend.decompositions import export_table
from disc.frontend.dense_views import dense_views
from disc.frontend.derivatives import Derivatives
from disc.frontend.dialects import load_frontend_dialects
from disc.frontend.dynamo_decisions import DynamoDecisions
from disc.frontend.effect_tokens import warn_of_prints
from disc.frontend.encoder_layers import masks_as_given
from disc.frontend.examples import bind_examples, check_examples, check_specs, note_lists
from disc.frontend.export_errors import DATA_DEPENDENT, DERIVATIVE, error_line, export_error, is_violated, logged_errors, quiet, shortened
from disc.frontend.folded_numbers import steps_apart
from disc.frontend.imported import Constant, FixedArgument, Imported, OutputSpec, structure_of
from disc.frontend.in_place import RetraceError
from disc.frontend.kept_values import KeptValues, kept_values
from disc.frontend.larger_examples import (
    MORE_TIMES,
    MOST_EXPORTS,
    MOST_TIMES,
    TIMES,
    Dims,
    decided_of,
    dims_behind_ones,
    dims_of,
    enough_times,
    has_ones,
    is_the_model,
    that_run,
)
from disc.frontend.layout_reads import ROW_MAJOR, LayoutReads
from disc.frontend.library_forms import library_forms
from disc.frontend.locations import line_text
from disc.frontend.lowering import GraphInput, GraphSource, LoweredGraph, lower_graph, warn_of_lost_assertions
from disc.frontend.model_functions import located_in, named_in
from disc.frontend.needed_sizes import DrySession, contradictions, inputs_of, refused_sizes
from disc.frontend.program_decisions import RECORDED, decisions_of, stored_guards
from disc.frontend.python_numbers import Functions, decides_sizes
from disc.frontend.resampling import eager_scales
from disc.frontend.size_checks import size_checks
from disc.frontend.size_conversions import asks_for_identity
from disc.frontend.size_quotients import quick_quotients
from disc.frontend.symbolic_forms import SymbolicForms, graphs_of_control_flow
from disc.frontend.symbols import Size, shape_environment, to_size
from disc.frontend.tracing_lock import alone
from disc.frontend.vmap_results import make_numbers_tensors, moved_results
from disc.frontend.widening import Key, Need, Widening, computed_of, dynamic_dims, is_derived, root_of
from disc.ir.dialect import make_context

aten = torch.ops.aten
FIXED_DIMS = "disc_fixed_dims"  # among the metadata of a program that `export_module` made: texts


def _updates_statistics(arguments: Mapping[str, object]) -> bool:
    return arguments.get("running_mean") is not None and (arguments.get("training") is True or arguments.get("use_input_stats") is True)


# Op → whether a call of it is one in training mode, by its arguments.
TRAINING: dict[object, Callable[[Mapping[str, object]], bool]] = {
    **dict.fromkeys((aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default, aten.feature_alpha_dropout.default,
                     aten.native_dropout.default), lambda arguments: arguments["train"] is True and arguments["p"] != 0),
    aten.rrelu.default: lambda arguments: arguments["training"] is True,
    aten.batch_norm.default: _updates_statistics, aten.instance_norm.default: _updates_statistics,
}  # fmt: skip
Exports = tuple[ExportedProgram, SymbolicForms, KeptValues]  # a program, who fixed its dims, and what the model kept
DynamicShapes = Mapping[str, object] | Sequence[object] | None
INPUT_NAMES = "disc_input_names"  # metadata of a program's graph module: what its inputs are called in the file that it came from
OUTPUT_NAMES = "disc_output_names"  # likewise, its results


@alone
def import_exported(program: ExportedProgram, context: ir.Context) -> Imported:
    """Lowers `program` to a module at stage `imported`.

    Raises: UnsupportedOpError listing every op that cannot be compiled, or written buffers that share memory.
    """
    try:
        return _imported(program, context)
    except DiscError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        raise CompilerBug(f"compiler bug in the front end, at {place}: {type(error).__name__}: {error}") from error


def _imported(program: ExportedProgram, context: ir.Context) -> Imported:
    load_frontend_dialects(context)
    program = _without_transforms(program)
    _warn_of_training(program)
    stored, recorded = stored_guards(program), program.graph_module.meta.get(RECORDED)
    fixed_dims, row_major = program.graph_module.meta.get(FIXED_DIMS, ()), program.graph_module.meta.get(ROW_MAJOR, {})
    refuse_copies_or_views(program)
    warn_of_lost_assertions(program.graph)
    warn_of_effects(program.graph)
    warn_of_prints(program.graph)
    stored += size_checks(program.graph_module, arguments_by_name)
    names: Sequence[str] | None = program.graph_module.meta.get(INPUT_NAMES) or _cache_names(program)
    program, decomposed = _decomposed(program)
    _refuse_shared(program, program.graph_signature.buffers_to_mutate.values())
    placeholders = {node.name: decomposed.values[node] for node in program.graph.nodes if node.op == "placeholder"}
    changing = program.graph_signature.buffers_to_mutate.values()
    inputs, leaves, weights, fixed, places = [], [], {}, [], {}
    buffers: dict[str, tuple[GraphInput, torch.Tensor]] = {}
    given = sum(spec.kind == InputKind.USER_INPUT for spec in program.graph_signature.input_specs)
    for spec in program.graph_signature.input_specs:
        node = placeholders.get(spec.arg.name)
        if spec.kind == InputKind.USER_INPUT:
            leaves.append(not isinstance(spec.arg, ConstantArgument))
            if isinstance(spec.arg, ConstantArgument):
                fixed.append(FixedArgument(spec.arg.name, len(leaves) - 1, spec.arg.value))
            elif node is not None:
                places[spec.arg.name] = len(inputs)
                lines = row_major.get(given - len(leaves), ())
                inputs.append(GraphInput(node, names[len(leaves) - 1] if names is not None else spec.arg.name, ", ".join(lines)))
        elif node is not None and spec.target is not None and spec.target in changing:
            buffers[spec.target] = (GraphInput(node, spec.target), _stored_tensor(program, spec.target))
        elif node is not None and spec.target is not None and spec.kind != InputKind.CUSTOM_OBJ:  # who takes such an object is refused
            weights[node] = (spec.target, _stored_tensor(program, spec.target))
    weights |= decomposed.constants
    outputs, decisions = _outputs(program, decomposed), lambda: [*decisions_of(program, recorded), *stored, *decomposed.demands]
    ranges = _ranges(program)
    next_buffers = _written(program, decomposed, OutputKind.BUFFER_MUTATION)
    next_inputs = _written(program, decomposed, OutputKind.USER_INPUT_MUTATION)
    source = GraphSource(
        decomposed.graph,
        [*inputs, *(buffers[name][0] for name in next_buffers)],
        weights,
        [*outputs, *next_buffers.items(), *next_inputs.items()],
        ranges,
        decisions,
        recorded is not None,
        decomposed.bodies,
        [(name, buffers[name][1]) for name in next_buffers],
        [places[name] for name in next_inputs],
    )
    lowered = lower_graph(source, context)
    _note_on_module(lowered.module, fixed_dims)
    return Imported(
        lowered.module,
        lowered.weights,
        tuple(argument.name for argument in inputs),
        _output_spec(program, lowered, len(next_buffers) + len(next_inputs)),
        program.call_spec.in_spec,
        tuple(i for i, is_argument in enumerate(leaves) if is_argument),
        tuple(fixed),
    )


def _cache_names(program: ExportedProgram) -> Sequence[str] | None:
    """What the inputs of a program are called that takes a cache; None for others."""
    tree = program.call_spec.in_spec
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    return input_names(names, tree) if tree is not None and tree.num_leaves == len(names) else None


def _output_spec(program: ExportedProgram, lowered: LoweredGraph, hidden: int) -> OutputSpec:
    """hidden: how many results, the last, the caller does not get."""
    tree = program.call_spec.out_spec
    structure = structure_of(tree, lowered.constants) if tree is not None else None
    shown = {**result_names(structure), **dict(enumerate(program.graph_module.meta.get(OUTPUT_NAMES, ())))}
    return OutputSpec(lowered.result_names[: len(lowered.result_names) - hidden], lowered.constants, tree, structure, shown)


def _note_on_module(module: ir.Module, fixed_dims: Sequence[str]) -> None:
    if fixed_dims:
        texts = [ir.StringAttr.get(text, module.context) for text in fixed_dims]
        module.operation.attributes["disc.fixed_dims"] = ir.ArrayAttr.get(texts, module.context)


def _decomposed(program: ExportedProgram) -> tuple[ExportedProgram, Decomposed]:
    """The graph in ops that have rules, and the program whose signature it has: another one where PyTorch has to trace it anew."""
    with warnings.catch_warnings(), sizes_from_two(), quiet(), located(), dense_views():
        warnings.simplefilter("ignore")
        try:
            return program, decompose(program.graph_module)
        except RetraceError:
            pass
        # PyTorch's decompositions are those of real numbers, and leave what control flow runs as it is.
        whole = has_complex(program.graph_module) or any(node.target in CONTROL for node in program.graph.nodes)
        try:
            program = _retraced(without_bodies(program), {} if whole else export_table())
            return program, decompose(program.graph_module)  # PyTorch keeps gradients that are composite ops, whatever the table says
        except Exception as error:
            _refuse_shared(program, program.graph_signature.buffers)
            raise export_error(error, lambda: None) from error


def _retraced(program: ExportedProgram, table: dict[torch._ops.OperatorBase, Callable[..., object]]) -> ExportedProgram:
    """The program with ops decomposed by `table`, without PyTorch's checks of its guards, which it runs as Python on symbolic sizes:
    `n != min(4, n)` would decide there which of the two is the lesser. Who compiles checks the guards themselves."""
    guards, program._guards_code = program._guards_code, []
    try:
        found = program.run_decompositions(table)
    finally:
        program._guards_code = guards
    return found


def with_plain_weights(program: ExportedProgram) -> ExportedProgram:
    """The program with the tensors inside of weights that are tensor subclasses, such as torchao's quantized ones, in place of these.

    Raises: DiscError where PyTorch cannot take them apart.
    """
    if not any(map(is_traceable_wrapper_subclass, program.state_dict.values())):
        return program
    with warnings.catch_warnings(), sizes_from_two(), located(), dense_views():
        warnings.simplefilter("ignore")
        try:
            # The guards of a program from a file are text only: the retrace finds them by running them.
            plain = program.run_decompositions({}) if stored_guards(program) else _retraced(program, {})
        except Exception as error:
            raise export_error(error, lambda: None) from error
    plain.graph_module.meta |= program.graph_module.meta
    return plain


def _ranges(program: ExportedProgram) -> dict[sympy.Symbol, ValueRanges]:
    """The ranges of the symbols; decomposing may have made new ones, and may have found what another one is."""
    environment = shape_environment(node.meta.get("val") for node in program.graph.nodes)
    if environment is None:
        return {}
    known = dict(environment.var_to_range)
    for symbol, values in program.range_constraints.items():
        # A user's minimum of 0 or 1 does not change that PyTorch took the size to be at least 2.
        known[symbol] = ValueRanges(max(values.lower, known[symbol].lower), values.upper) if symbol in known else values
    return {symbol: values for symbol, values in known.items() if symbol not in environment.replacements}


def _refuse_shared(program: ExportedProgram, written: Container[str]) -> None:
    """written: names of buffers. Raises: UnsupportedOpError naming each of them whose memory another tensor of the model is, too."""
    tensors = [(name, value) for table in (program.state_dict, program.constants) for name, value in table.items()]
    places = [(name, value.untyped_storage().data_ptr()) for name, value in tensors if isinstance(value, torch.Tensor) and value.numel()]
    ops: list[UnsupportedOp] = []
    for name, place in places:
        others = [other for other, same in places if same == place and other != name]
        if name in written and others:
            ops.append(UnsupportedOp(f"buffer {name}", f"the model writes in place, and its memory is that of {', '.join(others)} too"))
    if ops:
        raise UnsupportedOpError(ops)


def _warn_of_training(program: ExportedProgram) -> None:
    """Names each op that does in training what it does not in evaluation: it is compiled, but who deploys a model rarely wants it."""
    found: list[str] = []
    for module in (each for each in program.graph_module.modules() if isinstance(each, fx.GraphModule)):
        for node in module.graph.nodes:
            trains = TRAINING.get(node.target)
            if trains is not None and trains(arguments_by_name(node)):
                found.append(f"{node.target} at {line_text(node)}")
    if found:
        places = "\n  ".join(found)
        warn(f"the model is in training mode and is compiled so; for inference, call model.eval() first:\n  {places}")


def _stored_tensor(program: ExportedProgram, target: str) -> torch.Tensor:
    """A parameter, a buffer (persistent or not) or a lifted constant."""
    value = program.state_dict.get(target)
    if value is None:
        value = program.constants[target]
    assert isinstance(value, torch.Tensor)
    return value


WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def _outputs(program: ExportedProgram, decomposed: Decomposed) -> list[tuple[str, fx.Node | Constant]]:
    """What the caller gets."""
    nodes = {node.name: node for node in program.graph.nodes}
    outputs: list[tuple[str, fx.Node | Constant]] = []
    for spec in program.graph_signature.output_specs:
        if spec.kind in (*WRITTEN, OutputKind.TOKEN):
            continue
        if spec.kind != OutputKind.USER_OUTPUT:
            raise UnsupportedOpError([UnsupportedOp(f"output {spec.target}", f"outputs of kind {spec.kind.name} are not supported")])
        if isinstance(spec.arg, TensorArgument | SymIntArgument | SymFloatArgument | SymBoolArgument):
            outputs.append((spec.arg.name, decomposed.values[nodes[spec.arg.name]]))
        elif isinstance(spec.arg, ConstantArgument):
            outputs.append(("", spec.arg.value))
        else:
            raise UnsupportedOpError([UnsupportedOp("output", f"outputs of type {type(spec.arg).__name__} are not supported")])
    return outputs


def _written(program: ExportedProgram, decomposed: Decomposed, kind: OutputKind) -> dict[str, fx.Node | Constant]:
    """The next value of each tensor that the model writes, by its name."""
    nodes = {node.name: node for node in program.graph.nodes}
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind == kind]
    return {str(spec.target): decomposed.values[nodes[spec.arg.name]] for spec in specs}


# --- exporting ------------------------------------------------------------------------------------------------------------------


@alone
def export_module(
    model: torch.nn.Module,
    example_inputs: tuple[object, ...],
    dynamic_shapes: DynamicShapes = None,
    kwargs: Mapping[str, object] | None = None,
) -> ExportedProgram:
    """`torch.export` with every dim of every tensor dynamic unless `dynamic_shapes` says otherwise.

    A dim that the model fixes becomes static. An example size of 0 or 1 would be taken for a constant by torch.export, so the
    export runs on examples whose dynamic dims are at least 2.

    Raises: UnsupportedOpError when the model's control flow or sizes depend on data, or an op has no shape rule; InputRankError,
    InputTypeError, ShapeConstraintError, UnsupportedFormatError where the model, the inputs or `dynamic_shapes` are wrong; ExportError.
    """
    positional, named = _distinct(*without_caches(example_inputs, kwargs or {}))
    bound = bind_examples(model, positional, named)
    check_examples(model, bound)
    model = takes_layers(model, (positional, named))
    widening, violated = Widening(bound, _specs_by_name(bound, dynamic_shapes)), None
    while True:
        try:
            program, forms, kept = _export(model, widening)
        except RecursionError:
            raise  # says nothing about the model
        except Exception as error:
            needs = _needed_to_export(model, widening, error)
            made = _larger(model, widening, widening.by_size()) if not needs and is_violated(error) else None
            if made is not None:
                return _finished(widening, *made)
            if not needs and is_violated(error) and widening.forget_names():
                violated = error
                continue
            if not needs:
                error = violated or error
                told = export_error(error, lambda: DrySession(model).run(bound).error)
                note_lists(told, bound)
                raise told from error
        else:
            found = contradictions(program, widening, size_checks(program.graph_module, arguments_by_name), _decided(program), forms)
            if widening.resize(found.sizes):
                continue
            widened = [key for key in found.fixed if widening.widen_more(key)]
            needs = found.needs | {key: need for key, need in found.fixed.items() if key not in widened}
            if not needs and not widened:
                return _finished(widening, *_without_ones(model, widening, (program, forms, kept)))
        for key, need in needs.items():
            widening.keep(key, need)


def _finished(widening: Widening, program: ExportedProgram, forms: SymbolicForms, kept: KeptValues) -> ExportedProgram:
    kept.check(program)
    _note_fixed_dims(program, widening, forms)
    return with_plain_weights(program)


def _has_lowerings(program: ExportedProgram) -> bool:
    """Whether all ops of the program can be compiled: with more dynamic dims there may be one that cannot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import_exported(with_plain_weights(program), make_context())
        except DiscError:
            return False
    return True


def _without_ones(model: torch.nn.Module, widening: Widening, made: Exports) -> Exports:
    """The program, or that of a larger example, in which no size is 1 by chance."""
    dims, decided = dims_of(made[0], widening, made[1]), _decided(made[0])
    groups = dims_behind_ones(dims, decided)
    are_fixed = any(key in dims.fixed for group in groups for key in group)
    return _larger(model, widening, groups, decided_of(dims, decided), need_ones=not are_fixed) or made


def _larger(
    model: torch.nn.Module,
    widening: Widening,
    groups: Sequence[Sequence[Key]],
    decided: set[Key] | None = None,
    *,
    need_ones: bool = False,
) -> Exports | None:
    """The program of an example in which dims of `groups` are larger; None where it is not the model for the example itself. decided: what
    else its conditions may be about: a size that is bound to another one for the sake of those would no longer be free, as a batch is.
    need_ones: it is only for sizes of 1 that are larger there."""
    session, times, most, best = DrySession(model), TIMES, MOST_TIMES, None
    for _ in range(MOST_EXPORTS):
        keys = that_run(session, widening, groups, times) if groups else set()
        if not keys:
            break
        enough, is_known = enough_times(session, widening, keys, times, most)
        if not enough and need_ones:
            break
        times = enough or times
        made = _exported_larger(model, widening, keys, times)
        dims = dims_of(made[0], widening, made[1]) if made is not None else None
        if dims is not None and dims.wrong:
            groups = [[key for key in group if key in keys] for group in groups if not set(group) & set(dims.wrong)]
            continue
        if made is None or dims is None or not _serves(made[0], dims, keys, decided):
            if best is not None or times == TIMES:
                break  # the smaller example's program, the example's own, or what its export raised, is there
            times = most = times // MORE_TIMES
            continue
        best = made
        if (
            (is_known and enough)
            or times == most
            or not keys & {key for group in dims_behind_ones(dims, _decided(made[0])) for key in group}
        ):
            break
        times *= MORE_TIMES
    return best


def _exported_larger(model: torch.nn.Module, widening: Widening, keys: set[Key], times: int) -> Exports | None:
    try:
        return _export(model, widening.larger(keys, times))
    except RecursionError:
        raise
    except Exception:
        return None


def _serves(program: ExportedProgram, dims: Dims, keys: set[Key], decided: set[Key] | None) -> bool:
    """Whether the program of a larger example, whose dims `keys` are larger, may stand in for the example's own."""
    conditions = [*size_checks(program.graph_module, arguments_by_name), *_decided(program)]
    is_free = decided is None or decided_of(dims, conditions) <= decided | keys
    return is_free and is_the_model(dims, conditions) and _has_lowerings(program)


@alone
def export_instance(model: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """`export_module` with every dim as it is in the example. Raises as that does."""
    bound = inspect.signature(model.forward).bind(*example)
    return export_module(model, example, {name: pytree.tree_map(lambda _: {}, value) for name, value in bound.arguments.items()})


def _needed_to_export(model: torch.nn.Module, widening: Widening, error: Exception) -> dict[Key, Need]:
    """The dims that have to stay as they are where an export fails; {} where that is no help."""
    if isinstance(error, (*DATA_DEPENDENT, DiscError)) or not widening.sizes:
        return {}
    needs = refused_sizes(model, widening)
    if needs or any(map(widening.was_given, widening.sizes)):
        return needs
    return dict.fromkeys(widening.sizes, Need(f"torch.export fails at {error_line(error)} with another size"))


def has_fixed_sizes(program: ExportedProgram) -> bool:
    """Whether a size that the program computes is a number in it, as it is on the example."""
    return has_ones(_decided(program))


def _decided(program: ExportedProgram) -> list[Found]:
    return decisions_of(program, program.graph_module.meta.get(RECORDED))


def _distinct(inputs: tuple[object, ...], named: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """The inputs with a copy of every tensor that occurs again: torch.export would take the two for one input."""
    seen: set[int] = set()

    def copied(leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            return leaf.clone()
        seen.add(id(leaf))
        return leaf

    return pytree.tree_map(copied, (tuple(inputs), dict(named)))


@contextmanager
def sizes_from_two() -> Iterator[None]:
    """PyTorch's default reasoning, under which a symbolic size is never 1, so that it takes no dim for a broadcast one; floats of sizes are
    computed as Python does.

    A user may have set the other for the process. `lowering` brings sizes 0 and 1 back.
    """
    with symbolic_config.patch(backed_size_oblivious=False), eager_scales(), steps_apart():  # pyright: ignore[reportAttributeAccessIssue]
        yield


def _without_fake_cache() -> AbstractContextManager[object]:
    """What PyTorch keeps of each traced op costs more than it saves: up to half of an export where sizes are long expressions."""
    return dynamo_config.patch(fake_tensor_cache_enabled=False)  # pyright: ignore[reportAttributeAccessIssue]


def _export(model: torch.nn.Module, widening: Widening) -> Exports:
    derivatives = Derivatives()
    try:
        made = _export_known(derivatives, model, widening)
        if not derivatives.met_autograd or not _loses_values(made[0]):
            return made
    except RecursionError:
        raise
    except Exception:
        if not (derivatives.met or derivatives.met_autograd):
            raise
    return _export_known(Derivatives(traced=True, whole=derivatives.met_autograd), model, widening)


def _loses_values(program: ExportedProgram) -> bool:
    """Whether a graph of control flow has a tensor of its trace for a constant: for what autograd keeps there PyTorch makes no node."""
    modules = (each for each in program.graph_module.modules() if isinstance(each, fx.GraphModule))
    return any(isinstance(value, FakeTensor) for each in modules for _, value in constants_by_attribute(each).values())


def _export_known(derivatives: Derivatives, model: torch.nn.Module, widening: Widening) -> Exports:
    functions = Functions()
    try:
        made = _export_with(functions, derivatives, model, widening)
        if not functions.used or not decides_sizes(made[0].graph):
            return made
    except RecursionError:
        raise
    except Exception:
        if not functions.used or derivatives.met:
            raise
    return _export_with(Functions(plain=True), derivatives, model, widening)


def _export_with(functions: Functions, derivatives: Derivatives, model: torch.nn.Module, widening: Widening) -> Exports:
    example, shapes, named = widening.arguments(), widening.specs, list(named_in(model))
    reads = LayoutReads(len(pytree.tree_leaves((example.args, example.kwargs))))
    with (
        warnings.catch_warnings(),
        sizes_from_two(),
        _without_fake_cache(),
        quiet(),
        graphs_of_control_flow(),
        masks_as_given(),
        library_forms(),
        functions.of_sizes(named),
        derivatives.of_functions(model),
        located_in(named),
        dense_views(),
        quick_quotients(),
        moved_results(),
        BranchDemands() as demands,
        DynamoDecisions(demands).recorded() as decisions,
        Recorder(asks_for_identity(named)) as recorder,
        reads.of_control_flow(),
        SymbolicForms(reads.see) as forms,
        forms.of_numbers(),
        kept_values(model, named) as kept,
    ):
        warnings.simplefilter("ignore")
        program = torch.export.export(model, example.args, example.kwargs, dynamic_shapes=shapes, strict=False)
    reads.check()
    program = _without_transforms(program)
    program.graph_module.meta[ROW_MAJOR] = reads.rows
    environment = shape_environment(node.meta.get("val") for node in program.graph.nodes)
    needed = [Decision(relation(">=", size, sympy.Integer(least)), f"decided at {line}") for size, least, line in forms.demanded]
    _record(program, widening, [*recorder.recorded, *reads.decisions, *demands.of(environment), *decisions.of(environment), *needed])
    return program, forms, kept


TRANSFORMS = "torch._functorch.predispatch"  # the module of what stands for `torch.func` in a graph: `vmap`, whose batch is a dim behind it


def _without_transforms(program: ExportedProgram) -> ExportedProgram:
    """The program with what `torch.func.vmap` makes of its function in its place.

    Raises: UnsupportedOpError for derivatives, of whose trace PyTorch keeps neither what they are taken of nor in which direction.
    """
    found = [node for node in program.graph.nodes if getattr(node.target, "__module__", None) == TRANSFORMS]
    if not found:
        return program
    derived = [node for node in found if not any(word in node.target.__name__ for word in ("vmap", "batch_dim", "decompositions"))]
    if derived:
        raise UnsupportedOpError([UnsupportedOp("torch.func.grad, vjp, jvp or jacrev", DERIVATIVE, line_text(derived[0]))])
    meta = program.graph_module.meta
    for module in (each for each in program.graph_module.modules() if isinstance(each, fx.GraphModule)):
        for node in module.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
            module.graph.erase_node(node)  # where types are converted: it asks for sizes that a vmapped tensor does not have
        module.recompile()
    with warnings.catch_warnings(), sizes_from_two(), located(), dense_views():
        warnings.simplefilter("ignore")
        program = program.run_decompositions({})
    make_numbers_tensors(program.graph_module)
    program.graph_module.meta |= meta
    return program


def _note_fixed_dims(program: ExportedProgram, widening: Widening, forms: SymbolicForms) -> None:
    """Keeps with the program who fixed each dim that was to be dynamic, and warns of those that no weight fixed.

    forms: the record of the export.
    """
    notes: list[str] = []
    for name, tensor, _ in inputs_of(program, widening.bound):
        for dim in range(tensor.dim()):
            need = widening.kept.get((id(tensor), dim))
            if need is not None:
                notes.append(f"dim {dim} of input '{name}' is fixed to {tensor.shape[dim]}: {need.why}")
                if not need.by_weight:
                    warn(f"{notes[-1]}; the compiled program takes no other size there")
    for place in _declared_dims(program, widening.specs) or ():
        who = forms.who_fixed(place.size)
        if who is not None:
            notes.append(f"dim {place.dim} of input '{place.name}' is fixed to {to_size(place.size)} by {who}")
            warn(f"{notes[-1]}: the compiled program takes no other size there")
    program.graph_module.meta[FIXED_DIMS] = tuple(notes)


@dataclass(frozen=True)
class _DeclaredDim:
    """A dim that was declared dynamic. least, most, called: the user's range and name of it."""

    name: str
    dim: int
    size: object
    least: int | None
    most: int | None
    called: Dim | None


def _declared_dims(program: ExportedProgram, shapes: Mapping[str, object]) -> list[_DeclaredDim] | None:
    """The dynamic dims of all inputs; None for specs in another form than one per input."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    specs = pytree.tree_leaves(shapes, is_leaf=lambda spec: spec is None or (isinstance(spec, dict) and all(map(_is_int, spec))))
    if len(specs) != len(names):
        return None
    found: list[_DeclaredDim] = []
    for name, spec in zip(names, specs, strict=True):
        value = placeholders[name].meta["val"] if name in placeholders else None
        for dim, declared in dynamic_dims(spec).items():
            size = value.shape[dim] if isinstance(value, torch.Tensor) else None
            most = getattr(declared, "max", None)
            most = None if most is None or most >= int_oo else int(most)
            found.append(
                _DeclaredDim(name, dim, size, getattr(declared, "min", None), most, declared if isinstance(declared, Dim) else None)
            )
    return found


def _record(program: ExportedProgram, widening: Widening, recorded: Sequence[Found]) -> None:
    """Keeps with the program all that was decided about its sizes, what the user's specs say of them among it, where this is known."""
    dims = _declared_dims(program, widening.declared)
    if dims is None:
        return
    sized = [(each, to_size(each.size)) for each in dims if isinstance(each.size, torch.SymInt)]
    declared = [
        Decision(relation(">=", size, each.least), f"its range begins at {each.least}") for each, size in sized if each.least is not None
    ]
    if widening.unnamed:  # of named dims PyTorch says the rest
        for each, size in sized:
            if each.most is not None:
                declared.append(Decision(relation("<=", size, each.most), f"its range ends at {each.most}"))
        declared += _relations([(each.called, size) for each, size in sized if each.called is not None])
    program.graph_module.meta[RECORDED] = [*recorded, *declared]


def _remainder(size: Any, factor: int) -> Any:
    return Mod(size, factor)


def _relations(named: Sequence[tuple[Dim, Size]]) -> Iterator[Decision]:
    """That dims of one name have one size, and those that are computed of it, `4 * h + 1`, theirs."""
    first: dict[str, tuple[Dim, int, Size]] = {}  # of each name: the dim, its factor, its size but for what is added
    for dim, size in sorted(named, key=lambda each: is_derived(each[0])):
        offset = computed_of(dim, 0)
        factor = computed_of(dim, 1) - offset
        name = root_of(dim).__name__
        if name not in first:
            first[name] = dim, factor, size - offset
            if factor != 1:
                yield Decision(relation("==", _remainder(size - offset, factor), 0), f"it is {dim.__name__}")
            continue
        other, other_factor, multiple = first[name]
        text = f"both are {dim.__name__}" if dim.__name__ == other.__name__ else f"they are {dim.__name__} and {other.__name__}"
        yield Decision(relation("==", other_factor * (size - offset), factor * multiple), text)


def _is_int(value: object) -> bool:
    return isinstance(value, int)


def _specs_by_name(bound: inspect.BoundArguments, dynamic_shapes: DynamicShapes) -> dict[str, object]:
    """Parameter name → the dynamic dims of each tensor in its argument; all of them when the user says nothing."""
    if dynamic_shapes is None:
        return {name: pytree.tree_map(_every_dim, value, is_leaf=is_layers) for name, value in bound.arguments.items()}
    check_specs(list(bound.arguments), dynamic_shapes)
    if isinstance(dynamic_shapes, Mapping):
        return dict(dynamic_shapes)
    return dict(zip(bound.arguments, dynamic_shapes, strict=True))


def _every_dim(value: object) -> object:
    if isinstance(value, CacheLayers):
        return growing_dims(value)
    return {dim: Dim.AUTO for dim in range(value.dim())} if isinstance(value, torch.Tensor) else None


# --- .pt2 -----------------------------------------------------------------------------------------------------------------------


def load_pt2(path: str | Path) -> ExportedProgram:
    """`torch.export.load`. A `.pt2` file can run code when it is loaded: load only files that you trust.

    Raises: UnsupportedFormatError for a file that is not an archive as PyTorch writes it, that another version of PyTorch wrote, or
    that PyTorch cannot load (a custom op that is not registered).
    """
    check_archive(path)
    written = pt2_torch_version(path)
    ours = torch.__version__.split("+")[0]
    if written is not None and written.split("+")[0].split(".")[:2] != ours.split(".")[:2]:
        raise UnsupportedFormatError(f"{path} was written by PyTorch {written}; this is PyTorch {ours}: export the model again")
    with logged_errors("torch.export") as logged:
        try:
            program = torch.export.load(path)
        except Exception as error:
            cause = logged[-1] if logged else error  # what is raised then only says that something was logged
            raise UnsupportedFormatError(f"{path}: PyTorch cannot load this program: {type(cause).__name__}: {shortened(cause)}") from error
    return with_plain_weights(program)


def pt2_torch_version(path: str | Path) -> str | None:
    """The version of PyTorch that wrote the archive, read from its JSON without loading anything."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".json"):
                continue
            record = json.loads(archive.read(name))
            if isinstance(record, dict) and "torch_version" in record:
                return str(record["torch_version"])
    return None
