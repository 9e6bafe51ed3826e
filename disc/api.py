"""Compiling a model: the one place that wires the stages."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_stack
from typing import TYPE_CHECKING, TypeVar, cast

from torch_mlir import ir

from disc.artifact.cache import cache_key, open_cache
from disc.artifact.file import file_view
from disc.artifact.manifest import Manifest, TargetRecord, arguments_of
from disc.artifact.structure import with_names
from disc.codegen.build import Built, Part
from disc.codegen.compiles import thread_compiles
from disc.codegen.manifest import manifest_tables, state_table, target_tables
from disc.codegen.packed import obstacle, packed_entry, packed_refusal, plain_tables
from disc.codegen.session import compile_state, generate_parts
from disc.config import VERSION, Options, checked_options, option_names
from disc.errors import (
    DiscError,
    StackError,
    UnsupportedOpError,
    did_you_mean,
    named_arguments,
    noting_warnings,
    warn,
)
from disc.frontend.fewer_collections import fewer_collections
from disc.frontend.imported import FixedArgument, Imported
from disc.frontend.jax_export import JaxProgram
from disc.frontend.kept_programs import found_program, settings_of, uses_cache
from disc.frontend.models import DynamicShapes, import_model, import_program, model_files, program_of, stablehlo_of
from disc.ir.dialect import make_context
from disc.ir.passes import CompileState, run_passes
from disc.ir.progress import OnStep, Steps
from disc.ir.stages import load_env
from disc.ir.state import allow_in_place
from disc.passes.graph.map_rows import has_rows, mark_rows
from disc.passes.graph.pack_sequences import PackSequences
from disc.passes.pipelines import FUSION, fusion_passes, to_named
from disc.ral.executable import Executable
from disc.speculation.block_trees import BlockTree, trees_text
from disc.speculation.session import Session, open_session
from disc.speculation.tree import Tree
from disc.targets.target import Target
from disc.targets.thresholds import DeviceThresholds, Gpu, InputLimits

if TYPE_CHECKING:
    import torch

    from disc.frontend.models import Examples, Model, Program

Instances = TypeVar("Instances")  # a model of one instance: a module, a class of modules or a function

_LOGGER = logging.getLogger("disc.cache")
WAY_OUT = 'torch.compile(model, backend="disc") runs such ops in PyTorch and compiles the rest; docs/operators.md lists what compiles'
FIXED_SIZES = "every dim of this program is fixed: it takes the sizes of its inputs alone"


# What other compilers and exporters call arguments → what to write here.
_OTHER_NAMES = {
    **dict.fromkeys(("dynamic", "dynamic_axes"), "every dim is dynamic; dynamic_shapes=, as of torch.export, fixes or bounds some"),
    **dict.fromkeys(("mode", "fullgraph"), "it is for torch.compile, where disc is a backend; disc.compile makes one program"),
    "backend": "disc is the compiler here, and a backend of torch.compile",
    "device": 'target="sm_90" compiles for a GPU of that generation, beside the CPU; calls run where their tensors lie',
    **dict.fromkeys(("input_names", "output_names"), "inputs have the names that forward gives them, results those of its keys and fields"),
}


def _explain_argument(name: str) -> str:
    """What to write instead of an argument that `compile` does not have."""
    if name in option_names():
        return f"it is one of the options: disc.compile(..., options=disc.Options({name}=...))"
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    known = inspect.signature(compile).parameters
    near = did_you_mean(name, known).strip(" ()")
    return near or f"there are {', '.join(known)}; example inputs by name are one dict: disc.compile(model, {{{name!r}: ...}})"


@named_arguments(_explain_argument)
def compile(
    model: Model,
    example_inputs: Examples = None,
    dynamic_shapes: DynamicShapes = None,
    target: str | Sequence[str] = "native",
    options: Options | None = None,
    on_step: OnStep = lambda name, share: None,
) -> Executable:
    """Compiles `model` once for every shape of its inputs.

    model: a module, a function of tensors, an exported program, a function exported by `jax.export` (its arguments are the leaves of
    those of JAX that the function reads), or the path of a `.pt2`, `.onnx`, `.mlir` or `.mlirbc` file. example_inputs: one valid set of
    inputs (a tuple, a dict by name, or one tensor for one input), needed for a module or function; their sizes do not matter, and what is
    no tensor is fixed to its value.
    An ONNX file needs none: its dims with a name, or without a size, are dynamic; where no sizes are found that can be
    traced, examples give them. dynamic_shapes: as `torch.export` takes them; None = every dim of every tensor input is dynamic. target:
    "native" (this CPU, with its bf16 and int8 instructions where the program computes in these), or ISA names such as ["x86-64-v3",
    "x86-64-v4", "x86-64-v4+avx512bf16"] (`disc.targets.x86.ISAS` lists them). The result comes from the compile cache where the same
    program was compiled before (`stats()["compiles"]` is then 0). Warns where `Options(packed=True)` was asked for and the program cannot
    be packed; the result then is a plain one. on_step: is called with the name of every step before it runs and the share of the steps
    that is done, about. A step that runs for 20 seconds is named in a DiscWarning while it runs.

    Raises UnsupportedOpError (all ops that cannot be compiled), ExportError, InputTypeError, InputRankError (example inputs that do not
    fit), UnsupportedFormatError, TargetError, ShapeConstraintError, StackError, CompilerBug; ConfigurationError where the package `onnx` is
    missing.
    """
    if checked_options(options).random == "eager":
        raise DiscError('random="eager" is for torch.compile: a compiled program runs without PyTorch')
    with _stack_named(), fewer_collections(), _way_out(model):
        session = open_session(target, options)  # before the export: a target that does not exist should fail at once
        with Steps(on_step) as steps:
            steps("export", 0.0)
            program = program_of(model, example_inputs, dynamic_shapes)
        executable = _through_cache(session, lambda: _key(program, session), lambda: compile_program(program, session, on_step))
    if "packed_refusal" in executable.manifest:
        warn(f"not packed: {executable.manifest['packed_refusal']}")
    given = isinstance(example_inputs, tuple | list | Mapping) and len(example_inputs) > 0
    if given and not executable.manifest["inputs"] and "state" not in executable.manifest:
        warn("nothing of the example is an input (numbers and texts are constants of the program): each call gives what the example gave")
    if dynamic_shapes is None and not isinstance(program, JaxProgram) and not _is_code(model) and _all_fixed(executable.manifest):
        warn(f"{FIXED_SIZES}; to leave them open, export the model with dynamic_shapes, or give disc.compile the module")
    return executable


def _is_code(model: object) -> bool:
    """Whether it is a module or a function, whose sizes disc leaves open by itself, and not what was exported before."""
    return callable(model) and not _is_exported(model)


def _is_exported(model: object) -> bool:
    return hasattr(model, "range_constraints")


def _all_fixed(manifest: Manifest) -> bool:
    dims = [dim for record in arguments_of(manifest) for dim in record["dims"]]
    return bool(dims) and all(isinstance(dim, int) for dim in dims)


@contextmanager
def _way_out(model: object) -> Iterator[None]:
    """Adds to a refusal of ops what else the user of a PyTorch module can do."""
    try:
        yield
    except UnsupportedOpError as error:
        if _is_code(model) or _is_exported(model):
            error.add_note(WAY_OUT)
        raise


def compile_with_tree(
    model: torch.nn.Module, example_inputs: tuple[torch.Tensor, ...], dynamic_shapes: tuple[object, ...], tree: Tree
) -> Executable:
    """`compile` for this CPU with schedules of GEMMs chosen by `tree`, and without the cache: what tuning measures."""
    return compile_imported(import_model(model, example_inputs, dynamic_shapes, make_context()), open_session(tree=tree))


def compile_with_blocks(
    model: torch.nn.Module,
    example_inputs: tuple[torch.Tensor, ...],
    dynamic_shapes: tuple[object, ...],
    gpu: Gpu,
    trees: Mapping[str, BlockTree],
    tf32: bool,
) -> Executable:
    """The same for GPUs of a kind, with schedules of products chosen by these trees."""
    session = open_session(f"sm_{gpu.architecture}", Options(cache=False, tf32=tf32))
    targets = tuple(dataclasses.replace(each, trees=trees_text(trees)) for each in session.targets)
    imported = import_model(model, example_inputs, dynamic_shapes, make_context())
    return compile_imported(imported, dataclasses.replace(session, targets=targets))


def compile_with_inputs(
    model: torch.nn.Module, example_inputs: tuple[torch.Tensor, ...], dynamic_shapes: DynamicShapes, limits: InputLimits
) -> Executable:
    """`compile` for this CPU with fusions that read so many values, and without the cache: what tuning measures."""
    session = open_session(options=Options(cache=False))
    session = dataclasses.replace(session, targets=tuple(each.reading(limits) for each in session.targets))
    return compile_imported(import_model(model, example_inputs, dynamic_shapes, make_context()), session)


def compile_block(
    module: torch.nn.Module, example_inputs: tuple[torch.Tensor, ...], tables: Sequence[int | None], options: Options | None = None
) -> Executable:
    """Compiles a module that computes one instance into a program for any number of them, for `disc.ral.schedule`.

    example_inputs: of one instance; their sizes are those of all instances. The module's weights are shared. tables: for each input the
    number of the table whose rows it is, None for an input that every call gives for all instances, [count, ...]; inputs behind those are
    the same for all instances. The program takes the tables, [rows, ...], in order of first use, then for each input that is a row a vector
    of row numbers, i64 [count], then the other inputs; its results are [count, ...]. Row numbers are not checked, but moved into the table.

    Raises what `compile` does; UnsupportedOpError for an op that cannot be computed for several instances at once; DiscError for a module
    that keeps state or draws random numbers.
    """
    from disc.frontend.exported import export_instance

    session = open_session(options=options)
    with _stack_named(), fewer_collections():
        imported = import_program(export_instance(module, example_inputs), make_context())
        with imported.module.context:
            mark_rows(imported.module, tables)
        return _through_cache(session, lambda: _graph_key(imported, session), lambda: compile_imported(imported, session))


def batched(model: Instances, *, options: Options | None = None) -> Instances:
    """`model` for batches of instances, any Python objects: `batched(module)` and `@batched` on a function give a
    `disc.frontend.batched.public.Batched`, with `batch(instances)`, `explain` and `stats`; `@batched` on a class of modules gives each of
    its modules these, and calls of one instance run as batches of one. `batch` returns what single calls would, with gradients where
    `gradients=True` asks for them.

    Blocks, straight-line tensor code between calls, branches and reads of values, are found while instances run, and compiled when they
    were called some times. Raises UnsupportedFormatError for what is neither a module, a class of modules nor a function.
    """
    from disc.frontend.batched.public import make_batched

    return make_batched(
        model,
        lambda module, example, tables: compile_block(module, example, tables, options),
        lambda module, example: compile(module, example, options=options),
    )


def compile_graph(imported: Imported, options: Options, targets: Sequence[str]) -> Executable:
    """`compile_imported` through the compile cache, for a front end whose graphs are cheap to import and have no other
    identity.

    The key is all that the later stages see: the module at stage `imported` with its symbols and relations, and the weights. As for other
    programs, source lines do not count.
    """
    session = open_session(targets, options)
    with _stack_named(), fewer_collections():
        return _through_cache(session, lambda: _graph_key(imported, session), lambda: compile_imported(imported, session))


def _graph_key(imported: Imported, session: Session) -> str:
    """The key of a program that is imported already."""
    weights = {name: imported.weights[name] for name in imported.weights}
    facts = {
        **settings_of(session),
        "module": imported.module.operation.get_asm(),
        "single": str(imported.outputs.is_single()),
        "weights": "\n".join(f"{name}: {weight.dtype} {weight.array.shape}" for name, weight in weights.items()),
    }
    return cache_key(facts, [(name, weight.bytes()) for name, weight in weights.items()])


def compile_program(program: Program, session: Session, on_step: OnStep = lambda name, share: None) -> Executable:
    """`compile` without the cache, for a model without Python code. on_step: as of `compile`."""
    with Steps(on_step) as steps, noting_warnings() as said:
        steps("import", 0.0)
        imported = import_program(program, make_context())
    stablehlo = stablehlo_of(program) if session.options.embed_stablehlo else None
    return compile_imported(imported, session, stablehlo, on_step, said)


def compile_imported(
    imported: Imported,
    session: Session,
    stablehlo: bytes | None = None,
    on_step: OnStep = lambda name, share: None,
    warnings: Sequence[str] = (),
) -> Executable:
    """Runs every stage after the front end and loads the result. stablehlo: the section of that name. warnings: of the front
    end, which a program from the cache repeats.

    on_step: called before every pass, then before code generation, with the approximate share of the steps that are done.
    """
    with Steps(on_step) as step:
        before = thread_compiles()
        first = to_named(session.options.dtype, has_rows(imported.module))
        count = 2 * (len(first) + len(FUSION))  # passes take about half of the time
        state = compile_state(imported.weights, session, lambda name, ran: step(name, min(ran / count, 0.5)))
        run_passes(imported.module, first, state)
        parts, packed = _fused(imported.module, state, session)
        step("generate-code", 0.5)
        built = generate_parts(parts, state, session)
        outputs = imported.outputs
        more = {
            **_with_names(packed, outputs.shown),
            **({"fixed": [_fixed_record(each) for each in imported.fixed]} if imported.fixed else {}),
            "single": outputs.is_single(),
            **({"structure": outputs.structure} if outputs.structure is not None else {}),
            **({"warnings": list(warnings)} if warnings else {}),
        }
        compiles = thread_compiles() - before
        return executable_of(parts[0].module, built, session, more, stablehlo=stablehlo, compiles=compiles, names=outputs.shown)


def _fused(module: ir.Module, state: CompileState, session: Session) -> tuple[list[Part], Mapping[str, object]]:
    """The modules of stage `fused`, and what the manifest says of packing."""
    refusal: str | None = None
    if state.options.packed:
        packed = _copy(module)
        with module.context, ir.Location.unknown():
            before = plain_tables(module)
        run_passes(packed, [PackSequences()], state)
        refusal = packed_refusal(packed)
        if refusal is None:
            parts = _parts(packed, state, session)
            with packed.context, ir.Location.unknown():
                refusal = next(filter(None, (obstacle(part.module) for part in parts)), None)
                if refusal is None:
                    return parts, {"packed": {**packed_entry(parts[0].module), **before}}
    return _parts(module, state, session), {} if refusal is None else {"packed_refusal": refusal}


def _parts(module: ir.Module, state: CompileState, session: Session) -> list[Part]:
    """A module of stage `named` as each device fuses it, by its own thresholds."""
    groups: dict[tuple[str, DeviceThresholds], list[Target]] = {}
    for target in session.targets:
        groups.setdefault((target.device, target.thresholds.device), []).append(target)
    if [device for device, _ in groups] == ["cpu"]:  # what the code takes and gives is the same for all targets
        allow_in_place(module)
    copies = [module, *(_copy(module) for _ in range(1, len(groups)))]
    for own, ((device, thresholds), targets) in zip(copies, groups.items(), strict=True):
        run_passes(own, fusion_passes(session.tree, device), dataclasses.replace(state, thresholds=thresholds, targets=tuple(targets)))
    return [Part(own, tuple(targets)) for own, targets in zip(copies, groups.values(), strict=True)]


def _copy(module: ir.Module) -> ir.Module:
    with module.context, ir.Location.unknown():
        return ir.Module.parse(module.operation.get_asm(enable_debug_info=True))


def _note_replaced(outputs: list[dict[str, object]], replaced: Sequence[Mapping[int, int]]) -> None:
    """Says of outputs that the code of all targets may compute them where an input lies. replaced: as of `Program`."""
    for number, record in enumerate(outputs):
        inputs = {each.get(number) for each in replaced}
        if len(inputs) == 1 and None not in inputs:
            record["replaces"] = inputs.pop()


def executable_of(
    module: ir.Module,
    built: Built,
    session: Session,
    more: Mapping[str, object],
    *,
    stablehlo: bytes | None = None,
    compiles: int = 1,
    isa: str | None = None,
    names: Mapping[int, str] | None = None,
) -> Executable:
    """Loads generated code. more: what else its manifest says. names: of results that have some, by number. The others: as of
    `Executable.from_parts`."""
    program = next(iter(built.targets.values())).program  # the others take and give the same
    with module.context, ir.Location.unknown():
        spoiled = {number for made in built.targets.values() for number in made.program.spoiled}
        tables = manifest_tables(program, module, load_env(module), spoiled)
    _note_replaced(cast("list[dict[str, object]]", tables["outputs"]), [made.program.replaces for made in built.targets.values()])
    outputs = with_names(cast("Sequence[Mapping[str, object]]", tables["outputs"]), names or {})
    manifest: dict[str, object] = {
        "compiler": f"disc {VERSION}",
        **tables,
        "outputs": outputs,
        **state_table(module, program, built.weights, built.first),
        **more,
        "options": {"threads": session.options.threads, "isas": list(built.targets)},
    }
    weights = [(name, weight.dtype, weight.array) for name, weight in built.weights]
    targets = {
        name: cast("TargetRecord", target_tables(made.program, made.weights, made.assembled)) for name, made in built.targets.items()
    }
    code = {name: made.code for name, made in built.targets.items()}
    return Executable.from_parts(
        cast("Manifest", manifest),
        code,
        weights,
        stablehlo,
        targets,
        threads=session.options.threads,
        isa=isa,
        compiles=compiles,
        elsewhere=isa is None,
        graphs=session.options.graphs,
    )


def _with_names(packed: Mapping[str, object], names: Mapping[int, str]) -> Mapping[str, object]:
    """What the manifest says of packing, with the names of results."""
    if "packed" not in packed:
        return packed
    record = cast("dict[str, object]", packed["packed"])
    results = cast("Sequence[Mapping[str, object]]", record["results"])
    return {"packed": {**record, "results": with_names(results, names)}}


def _fixed_record(argument: FixedArgument) -> dict[str, object]:
    return {"name": argument.name, "position": argument.position, "value": repr(argument.value)}


@contextmanager
def _stack_named() -> Iterator[None]:
    """Nothing here recurses as deep as a program is long, but PyTorch does as deep as sizes nest, and the caller's frames count too."""
    try:
        yield
    except RecursionError as error:
        limit, used = sys.getrecursionlimit(), sum(1 for _ in walk_stack(None))
        raise StackError(
            f"the stack is too short: Python's limit is {limit} frames, and disc was called with {used} in use; call it from fewer, or "
            "raise the limit (a model whose sizes are computed in very many steps needs that too)"
        ) from error


# --- the cache ------------------------------------------------------------------------------------------------------------------


def _through_cache(session: Session, key: Callable[[], str], produce: Callable[[], Executable]) -> Executable:
    """What the cache has under the key; else what `produce` compiles, which is stored."""
    environment = session.environment
    if not uses_cache(session):
        return produce()
    cache, name = open_cache(environment), key()
    found = found_program(name, session)
    if found is not None:
        return found
    start = time.perf_counter()
    compiled = produce()
    _LOGGER.info("compiled in %.2f s, kept in %s: %s", time.perf_counter() - start, environment.cache_dir, name)
    cache.store(name, compiled.save)
    compiled.entry = name
    return compiled


def _key(program: Program, session: Session) -> str:
    """The cache key. A file counts by its bytes (they name the files that belong to it), a program by its graph and weights: both are known
    before the front end has run."""
    facts = settings_of(session)
    if isinstance(program, Path):
        return cache_key(
            {**facts, "file": program.suffix}, [(str(number), file_view(path)) for number, path in enumerate(model_files(program))]
        )
    if isinstance(program, JaxProgram):
        return cache_key({**facts, "file": ".mlirbc"}, [("0", memoryview(program.bytecode))])
    from disc.frontend.identity import program_data, program_facts

    return cache_key({**facts, **program_facts(program)}, program_data(program))
