"""torch.export programs: exporting a module with every dim dynamic, and importing the program."""

from __future__ import annotations

import inspect
import json
import traceback
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import sympy
import torch
import torch.fx.experimental._config as symbolic_config
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, SymIntArgument, TensorArgument
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges
from torch_mlir import ir

from disc.errors import CompilerBug, DiscError, ShapeConstraintError, UnsupportedFormatError, UnsupportedOp, UnsupportedOpError, warn
from disc.frontend.archive import check_archive
from disc.frontend.conditions import relation
from disc.frontend.decisions import Decision, Found, Recorder, located
from disc.frontend.decompose import Decomposed, constants_by_attribute, decompose, without_bodies
from disc.frontend.decompositions import export_table
from disc.frontend.dialects import load_frontend_dialects
from disc.frontend.examples import bind_examples, check_examples, check_specs
from disc.frontend.export_errors import NO_STATIC_ANSWER, export_error, quiet, shortened
from disc.frontend.imported import Constant, FixedArgument, Imported, OutputSpec
from disc.frontend.in_place import RetraceError
from disc.frontend.locations import line_text
from disc.frontend.lowering import GraphInput, GraphSource, arguments_by_name, lower_graph, warn_of_assertions
from disc.frontend.program_decisions import RECORDED, decisions_of, stored_guards
from disc.frontend.size_checks import size_checks
from disc.frontend.symbolic_forms import SymbolicForms
from disc.frontend.symbols import shape_environment, to_size

aten = torch.ops.aten


def _updates_statistics(arguments: Mapping[str, object]) -> bool:
    return arguments.get("running_mean") is not None and (arguments.get("training") is True or arguments.get("use_input_stats") is True)


# Op → whether a call of it is one in training mode, by its arguments.
TRAINING: dict[object, Callable[[Mapping[str, object]], bool]] = {
    **dict.fromkeys((aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default, aten.feature_alpha_dropout.default,
                     aten.native_dropout.default), lambda arguments: arguments["train"] is True and arguments["p"] != 0),
    aten.rrelu.default: lambda arguments: arguments["training"] is True,
    aten.batch_norm.default: _updates_statistics, aten.instance_norm.default: _updates_statistics,
}  # fmt: skip
DynamicShapes = Mapping[str, object] | Sequence[object] | None


def import_exported(program: ExportedProgram, context: ir.Context) -> Imported:
    """Lowers `program` to a module at stage `imported`.

    Raises: UnsupportedOpError listing every op that cannot be compiled, or a buffer that the model writes.
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
    _warn_of_training(program)
    stored, recorded = stored_guards(program), program.graph_module.meta.get(RECORDED)
    warn_of_assertions(program.graph)
    stored += size_checks(program.graph_module, arguments_by_name)
    program, decomposed = _decomposed(program)
    placeholders = {node.name: decomposed.values[node] for node in program.graph.nodes if node.op == "placeholder"}
    inputs, leaves, weights, fixed = [], [], {}, []
    for spec in program.graph_signature.input_specs:
        node = placeholders.get(spec.arg.name)
        if spec.kind == InputKind.USER_INPUT:
            leaves.append(not isinstance(spec.arg, ConstantArgument))
            if isinstance(spec.arg, ConstantArgument):
                fixed.append(FixedArgument(spec.arg.name, len(leaves) - 1, spec.arg.value))
            elif node is not None:
                inputs.append(GraphInput(node, spec.arg.name))
        elif node is not None and spec.target is not None and spec.kind != InputKind.CUSTOM_OBJ:  # who takes such an object is refused
            weights[node] = (spec.target, _stored_tensor(program, spec.target))
    weights |= decomposed.constants
    outputs, decisions = _outputs(program, decomposed), lambda: [*decisions_of(program, recorded), *stored]
    source = GraphSource(decomposed.graph, inputs, weights, outputs, _ranges(program), decisions, recorded is not None)
    lowered = lower_graph(source, context)
    return Imported(
        lowered.module,
        lowered.weights,
        tuple(argument.name for argument in inputs),
        OutputSpec(lowered.result_names, lowered.constants, program.call_spec.out_spec),
        program.call_spec.in_spec,
        tuple(i for i, is_argument in enumerate(leaves) if is_argument),
        tuple(fixed),
    )


def _decomposed(program: ExportedProgram) -> tuple[ExportedProgram, Decomposed]:
    """The graph in ops that have rules, and the program whose signature it has: another one where PyTorch has to trace it anew."""
    _refuse_mutation(program)
    with warnings.catch_warnings(), sizes_from_two(), located():
        warnings.simplefilter("ignore")
        try:
            return program, decompose(program.graph_module)
        except RetraceError:
            pass
        try:
            program = without_bodies(program).run_decompositions(export_table())
        except Exception as error:
            _refuse_complex(program)  # PyTorch itself fails on some of them
            raise export_error(error, lambda: None) from error
    _refuse_mutation(program)
    graph = program.graph
    return program, Decomposed(graph, {node: node for node in graph.nodes}, constants_by_attribute(program.graph_module))


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


def _refuse_mutation(program: ExportedProgram) -> None:
    """Raises: UnsupportedOpError naming each buffer or input that the model writes."""
    signature = program.graph_signature
    producers = {node.name: node for node in program.graph.nodes}
    written = [(name, "buffer", target) for name, target in signature.buffers_to_mutate.items()]
    written += [(name, "input", target) for name, target in signature.user_inputs_to_mutate.items()]
    reason = "the model writes it in place; a compiled model has no state (batch norm in training mode? call model.eval())"
    ops = [UnsupportedOp(f"{kind} {target}", reason, line_text(producers[name])) for name, kind, target in written]
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


def _refuse_complex(program: ExportedProgram) -> None:
    """Raises: UnsupportedOpError naming each op that makes a complex tensor."""
    ops: list[UnsupportedOp] = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.is_complex():
            ops.append(UnsupportedOp(str(node.target), "complex numbers are not supported", line_text(node)))
    if ops:
        raise UnsupportedOpError(ops)


def _stored_tensor(program: ExportedProgram, target: str) -> torch.Tensor:
    """A parameter, a buffer (persistent or not) or a lifted constant."""
    value = program.state_dict.get(target)
    if value is None:
        value = program.constants[target]
    assert isinstance(value, torch.Tensor)
    return value


def _outputs(program: ExportedProgram, decomposed: Decomposed) -> list[tuple[str, fx.Node | Constant]]:
    nodes = {node.name: node for node in program.graph.nodes}
    outputs: list[tuple[str, fx.Node | Constant]] = []
    for spec in program.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            raise UnsupportedOpError([UnsupportedOp(f"output {spec.target}", f"outputs of kind {spec.kind.name} are not supported")])
        if isinstance(spec.arg, TensorArgument | SymIntArgument):
            outputs.append((spec.arg.name, decomposed.values[nodes[spec.arg.name]]))
        elif isinstance(spec.arg, ConstantArgument):
            outputs.append(("", spec.arg.value))
        else:
            raise UnsupportedOpError([UnsupportedOp("output", f"outputs of type {type(spec.arg).__name__} are not supported")])
    return outputs


# --- exporting ------------------------------------------------------------------------------------------------------------------


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
    positional, named = _distinct(example_inputs, kwargs or {})
    bound = bind_examples(model, positional, named)
    check_examples(model, bound)
    shapes = _specs_by_name(bound, dynamic_shapes)
    widened = _widened(bound, shapes)
    try:
        return _export(model, widened.args, widened.kwargs, shapes)
    except RecursionError:
        raise  # says nothing about the model
    except Exception as error:
        # A size of 1 that the model itself needs (a broadcast dim, one channel) cannot be widened: the user's own example decides.
        same = all(a is b for a, b in zip(_leaves(bound), _leaves(widened), strict=True))
        if isinstance(error, UnsupportedOpError) or dynamic_shapes is not None or same:
            raise export_error(error, lambda: _refusal(model, bound)) from error
    try:
        return _export(model, bound.args, bound.kwargs, shapes)
    except RecursionError:
        raise
    except Exception as error:
        raise export_error(error, lambda: _refusal(model, bound)) from error


def _refusal(model: torch.nn.Module, bound: inspect.BoundArguments) -> Exception | None:
    """What the model raises on the example's own sizes; None where it runs. It runs without data, so nothing that it holds changes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with quiet(), mode, torch.no_grad():
            args, kwargs = pytree.tree_map(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, (bound.args, bound.kwargs))
            model(*args, **kwargs)
    except Exception as error:
        return None if isinstance(error, NO_STATIC_ANSWER) else error
    return None


def _distinct(inputs: tuple[object, ...], named: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """The inputs with a copy of every tensor that occurs again: torch.export would take the two for one input."""
    seen: set[int] = set()

    def copied(leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            return leaf.clone()
        seen.add(id(leaf))
        return leaf

    return pytree.tree_map(copied, (tuple(inputs), dict(named)))


def _leaves(bound: inspect.BoundArguments) -> list[object]:
    return pytree.tree_leaves((bound.args, bound.kwargs))


def sizes_from_two() -> AbstractContextManager[object]:
    """PyTorch's default reasoning, under which a symbolic size is never 1, so that it takes no dim for a broadcast one.

    A user may have set the other for the process. `lowering` brings sizes 0 and 1 back.
    """
    return symbolic_config.patch(backed_size_oblivious=False)  # pyright: ignore[reportAttributeAccessIssue]


def _export(model: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], shapes: dict[str, object]) -> ExportedProgram:
    with warnings.catch_warnings(), sizes_from_two(), quiet(), Recorder() as recorder, SymbolicForms() as forms:
        warnings.simplefilter("ignore")
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    _record(program, shapes, recorder.recorded)
    _warn_of_fixed_dims(program, shapes, forms)
    return program


def _warn_of_fixed_dims(program: ExportedProgram, shapes: dict[str, object], forms: SymbolicForms) -> None:
    """Warns of every dim that was to be dynamic and that something else than a weight fixed.

    shapes: the specs by parameter, in the order of the inputs. forms: the record of the export.
    """
    for place in _declared_dims(program, shapes) or ():
        who = forms.who_fixed(place.size)
        if who is not None:
            fixed = f"dim {place.dim} of input '{place.name}' is fixed to {to_size(place.size)} by {who}"
            warn(f"{fixed}: the compiled program takes no other size there")


@dataclass(frozen=True)
class _DeclaredDim:
    """A dim that was declared dynamic. least: the user's minimum."""

    name: str
    dim: int
    size: object
    least: int | None


def _declared_dims(program: ExportedProgram, shapes: dict[str, object]) -> list[_DeclaredDim] | None:
    """The dynamic dims of all inputs; None for specs in another form than one per input."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    specs = pytree.tree_leaves(shapes, is_leaf=lambda spec: spec is None or (isinstance(spec, dict) and all(map(_is_int, spec))))
    if len(specs) != len(names):
        return None
    found: list[_DeclaredDim] = []
    for name, spec in zip(names, specs, strict=True):
        value = placeholders[name].meta["val"] if name in placeholders else None
        for dim in _dynamic_dims(spec):
            size = value.shape[dim] if isinstance(value, torch.Tensor) else None
            found.append(_DeclaredDim(name, dim, size, getattr(spec[dim], "min", None)))
    return found


def _record(program: ExportedProgram, shapes: dict[str, object], recorded: Sequence[Found]) -> None:
    """Keeps with the program all that was decided about its sizes, the user's minima among it, where these are known."""
    dims = _declared_dims(program, shapes)
    if dims is None:
        return
    minima = [
        Decision(relation(">=", to_size(each.size), each.least), f"its range begins at {each.least}")
        for each in dims
        if each.least is not None and isinstance(each.size, torch.SymInt)
    ]
    program.graph_module.meta[RECORDED] = [*recorded, *minima]


def _is_int(value: object) -> bool:
    return isinstance(value, int)


def _specs_by_name(bound: inspect.BoundArguments, dynamic_shapes: DynamicShapes) -> dict[str, object]:
    """Parameter name → the dynamic dims of each tensor in its argument; all of them when the user says nothing."""
    if dynamic_shapes is None:
        return {name: pytree.tree_map(_every_dim, value) for name, value in bound.arguments.items()}
    check_specs(list(bound.arguments), dynamic_shapes)
    if isinstance(dynamic_shapes, Mapping):
        return dict(dynamic_shapes)
    return dict(zip(bound.arguments, dynamic_shapes, strict=True))


def _every_dim(value: object) -> object:
    return {dim: Dim.AUTO for dim in range(value.dim())} if isinstance(value, torch.Tensor) else None


def _widened(bound: inspect.BoundArguments, specs: Mapping[str, object]) -> inspect.BoundArguments:
    """The arguments with each dynamic dim of size 0 or 1 widened to 2."""
    arguments = {name: _widen_tree(value, specs.get(name)) for name, value in bound.arguments.items()}
    return inspect.BoundArguments(bound.signature, OrderedDict(arguments))


def _widen_tree(value: object, spec: object) -> object:
    if spec is None:
        return value
    if isinstance(value, torch.Tensor):
        for dim in _dynamic_dims(spec):
            if not -value.dim() <= dim < value.dim():
                raise ShapeConstraintError(f"dynamic_shapes has an entry for dim {dim} of an input with {value.dim()} dims")
            value = _widen(value, dim)
        return value
    if isinstance(value, Mapping) and isinstance(spec, Mapping):
        return {name: _widen_tree(part, spec.get(name)) for name, part in value.items()}
    if isinstance(value, list | tuple) and isinstance(spec, list | tuple):
        if len(value) != len(spec):
            raise ShapeConstraintError(f"dynamic_shapes has {len(spec)} entries for a {type(value).__name__} of {len(value)} inputs")
        parts = [_widen_tree(part, inner) for part, inner in zip(value, spec, strict=True)]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _widen(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    if tensor.shape[dim] == 0:
        return tensor.new_zeros([2 if i == dim else size for i, size in enumerate(tensor.shape)])
    return tensor.repeat_interleave(2, dim) if tensor.shape[dim] == 1 else tensor


def _dynamic_dims(spec: object) -> list[int]:
    if isinstance(spec, Mapping):
        return [dim for dim, size in spec.items() if size is not None and size is not Dim.STATIC and not isinstance(size, int)]
    if isinstance(spec, list | tuple):
        return [dim for dim, size in enumerate(spec) if size is not None and size is not Dim.STATIC and not isinstance(size, int)]
    return []


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
    try:
        return torch.export.load(path)
    except Exception as error:
        raise UnsupportedFormatError(f"{path}: PyTorch cannot load this program: {type(error).__name__}: {shortened(error)}") from error


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
