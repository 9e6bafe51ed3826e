"""Compiling a model: the one place that wires the stages."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch_mlir import ir

from disc.artifact.cache import cache_key, file_view, open_cache
from disc.artifact.file import Manifest
from disc.codegen.build import Built, build, manifest_tables
from disc.codegen.compiles import thread_compiles
from disc.codegen.packed import obstacle, packed_entry, packed_refusal, plain_tables
from disc.codegen.x86.gemm.forms import native_features
from disc.config import VERSION, Options, read_environment
from disc.errors import TargetError, UnsupportedFormatError
from disc.frontend.imported import FixedArgument, Imported
from disc.ir.dialect import make_context
from disc.ir.passes import CompileState, bug_with_reproducer, run_passes
from disc.ir.progress import OnStep, Steps
from disc.ir.stages import dot_elements, load_env
from disc.passes.graph.pack_sequences import PackSequences
from disc.passes.pipelines import FRONT, FUSION, graph_passes
from disc.ral import _ral
from disc.ral.executable import Executable, load
from disc.speculation.tree import Tree, find_tree
from disc.speculation.versions import SpeculateVersions
from disc.targets.x86 import ISAS, USED, host_isa

if TYPE_CHECKING:
    import numpy as np
    import torch

    Examples = torch.Tensor | np.ndarray[Any, Any] | Sequence[object] | Mapping[str, object] | None
    Model = torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike[str]

DynamicShapes = Mapping[str, object] | Sequence[object] | None

_recursion_lock = threading.Lock()
_compiling = 0  # compiles in progress
_limit_before = 0  # the recursion limit without them


def compile(
    model: Model,
    example_inputs: Examples = None,
    dynamic_shapes: DynamicShapes = None,
    target: str | Sequence[str] = "native",
    options: Options | None = None,
    on_step: OnStep = lambda name, share: None,
) -> Executable:
    """Compiles `model` once for every shape of its inputs.

    model: a module, an exported program, or the path of a `.pt2`, `.mlir` or `.mlirbc` file. example_inputs: one valid set of inputs (a
    tuple, a dict by name, or one tensor for one input), needed for a module; their sizes do not matter, and what is no tensor is fixed to
    its value. dynamic_shapes: as `torch.export` takes them; None = every dim of every tensor input is dynamic. target: "native" (this CPU,
    with its bf16 and int8 instructions where the program computes in these), or ISA names such as ["x86-64-v3", "x86-64-v4",
    "x86-64-v4+avx512bf16"] (`disc.targets.x86.ISAS` lists them). The result comes out of the compile cache where the same program was
    compiled before (`stats()["compiles"]` is then 0). Warns where `Options(packed=True)` was asked for and the program cannot be packed;
    the result then is a plain one. on_step: is called with the name of every step before it runs and the share of the steps that is done,
    about. A step that runs for 20 seconds is named in a DiscWarning while it runs.

    Raises UnsupportedOpError (all ops that cannot be compiled), ExportError, InputTypeError, InputRankError (example inputs that do not
    fit), UnsupportedFormatError, TargetError, ShapeConstraintError, CompilerBug.
    """
    options = options or Options()
    target_isas(target)  # before the export: a target that does not exist should fail at once
    with Steps(on_step) as steps:
        steps("export", 0.0)
        program = _program(model, example_inputs, dynamic_shapes)
    executable = _through_cache(options, lambda: _key(program, target, options), lambda: compile_program(program, target, options, on_step))
    if "packed_refusal" in executable.manifest:
        warnings.warn(f"not packed: {executable.manifest['packed_refusal']}", stacklevel=2)
    return executable


def compile_with_tree(
    model: torch.nn.Module, example_inputs: tuple[torch.Tensor, ...], dynamic_shapes: tuple[dict[int, object], ...], tree: Tree
) -> Executable:
    """`compile` for this CPU with schedules of GEMMs chosen by `tree`, and without the cache: what tuning measures."""
    imported = import_model(model, example_inputs, dynamic_shapes, make_context())
    return compile_imported(imported, "native", Options(), tree=tree)


def compile_graph(imported: Imported, target: str | Sequence[str], options: Options) -> Executable:
    """`compile_imported` through the compile cache, for a front end whose graphs are cheap to import and have no other identity.

    The key is all that the later stages see: the module at stage `imported` with its symbols and relations, and the weights. As for other
    programs, source lines do not count.
    """
    weights = {name: imported.weights[name] for name in imported.weights}
    facts = {
        **_settings(target, options),
        "module": imported.module.operation.get_asm(),
        "single": str(imported.outputs.is_single()),
        "weights": "\n".join(f"{name}: {weight.dtype} {weight.array.shape}" for name, weight in weights.items()),
    }
    data = [(name, weight.bytes()) for name, weight in weights.items()]
    return _through_cache(options, lambda: cache_key(facts, data), lambda: compile_imported(imported, target, options))


def _through_cache(options: Options, key: Callable[[], str], produce: Callable[[], Executable]) -> Executable:
    """What the cache has under the key; else what `produce` compiles, which is stored."""
    environment = read_environment()
    if not (options.cache and environment.cache) or environment.dump is not None:  # whoever asks for dumps wants the passes to run
        return produce()
    cache, name = open_cache(environment), key()
    found = cache.lookup(name, lambda path: _load_checked(path, options))
    if found is not None:
        return found
    compiled = produce()
    cache.store(name, compiled.save)
    return compiled


def import_model(model: Model, example_inputs: Examples, dynamic_shapes: DynamicShapes, context: ir.Context) -> Imported:
    """The front end for this kind of model."""
    return _import_program(_program(model, example_inputs, dynamic_shapes), context)


def _program(model: Model, example_inputs: Examples, dynamic_shapes: DynamicShapes) -> torch.export.ExportedProgram | Path:
    """The model without Python code: a file, or an exported program."""
    import torch

    if dynamic_shapes is not None and isinstance(model, str | os.PathLike | torch.export.ExportedProgram):
        raise UnsupportedFormatError("dynamic_shapes is for a torch.nn.Module; a file or an exported program has its dims already")
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            raise UnsupportedFormatError(f"{path}: there is no such file")
        return path
    from disc.frontend.examples import examples_of
    from disc.frontend.exported import export_module

    if isinstance(model, torch.export.ExportedProgram):
        return model
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedFormatError(f"cannot compile a {type(model).__name__}: give a torch.nn.Module, an ExportedProgram or a path")
    if example_inputs is None:
        raise UnsupportedFormatError("compiling a module needs example_inputs: one tuple of valid inputs of any size")
    args, kwargs = examples_of(example_inputs)
    return export_module(model, args, dynamic_shapes, kwargs)


def compile_program(
    program: torch.export.ExportedProgram | Path,
    target: str | Sequence[str],
    options: Options,
    on_step: OnStep = lambda name, share: None,
) -> Executable:
    """`compile` without the cache, for a model without Python code. on_step: as of `compile`."""
    with Steps(on_step) as steps:
        steps("import", 0.0)
        imported = _import_program(program, make_context())
    stablehlo = _stablehlo(program) if options.embed_stablehlo else None
    return compile_imported(imported, target, options, stablehlo, on_step=on_step)


def _stablehlo(program: torch.export.ExportedProgram | Path) -> bytes:
    """What `Options.embed_stablehlo` asks for. Raises UnsupportedFormatError where the model is no StableHLO file."""
    from disc.frontend.stablehlo import portable_bytecode

    if not isinstance(program, Path):
        raise UnsupportedFormatError("embed_stablehlo: only a model that comes as StableHLO (.mlir, .mlirbc) can be embedded as StableHLO")
    return portable_bytecode(program)


def _key(program: torch.export.ExportedProgram | Path, target: str | Sequence[str], options: Options) -> str:
    """The cache key. A file counts by its bytes, a program by its graph and weights: both known before the front end has run."""
    facts = _settings(target, options)
    if isinstance(program, Path):
        return cache_key({**facts, "file": program.suffix}, [("file", file_view(program))])
    from disc.frontend.identity import program_data, program_facts

    return cache_key({**facts, **program_facts(program)}, program_data(program))


def _settings(target: str | Sequence[str], options: Options) -> dict[str, str]:
    """What of the request enters the key."""
    settings = dataclasses.asdict(options)
    del settings["cache"], settings["debug_checks"]  # neither changes the output
    return {
        "options": repr(settings),
        "target": repr(target),
        "isas": " ".join(target_isas(target, USED)),
        "schedules": find_tree(read_environment().cache_dir).digest(),
    }


def _load_checked(path: Path, options: Options) -> Executable:
    """An entry of the cache; waits for the check of its weights, so that a damaged one is found while it can still be replaced."""
    found = load(path, threads=options.threads)
    found.verify()
    return found


def _import_program(program: torch.export.ExportedProgram | Path, context: ir.Context) -> Imported:
    if isinstance(program, Path):
        return _import_file(program, context)
    from disc.frontend.exported import import_exported

    return import_exported(program, context)


def _import_file(path: Path, context: ir.Context) -> Imported:
    from disc.frontend.stablehlo import load_stablehlo

    if path.suffix == ".pt2":
        from disc.frontend.exported import import_exported, load_pt2

        return import_exported(load_pt2(path), context)
    return load_stablehlo(path, context)


def compile_imported(
    imported: Imported,
    target: str | Sequence[str],
    options: Options,
    stablehlo: bytes | None = None,
    tree: Tree | None = None,
    on_step: OnStep = lambda name, share: None,
) -> Executable:
    """Runs every stage after the front end and loads the result. stablehlo: the section of that name. tree: chooses schedules of GEMMs.

    on_step: is told of every pass before it runs, then of the code generation, and which share of the steps is done, about.
    """
    with _deep_recursion(), Steps(on_step) as steps:
        return _compile_stages(imported, target, options, stablehlo, tree, steps)


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Values are emitted by recursion over the fused graph. The limit is the process's: the last compile that ends gives it back."""
    global _compiling, _limit_before
    with _recursion_lock:
        if _compiling == 0:
            _limit_before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_limit_before, 20_000))
        _compiling += 1
    try:
        yield
    finally:
        with _recursion_lock:
            _compiling -= 1
            if _compiling == 0:
                sys.setrecursionlimit(_limit_before)


def _compile_stages(
    imported: Imported,
    target: str | Sequence[str],
    options: Options,
    stablehlo: bytes | None,
    tree: Tree | None,
    on_step: OnStep,
) -> Executable:
    compiles = thread_compiles()
    to_fused = [*FRONT, *graph_passes(options.dtype)]
    steps = 2 * (len(to_fused) + len(FUSION) + 1)  # passes take about half of the time
    state = CompileState(
        weights=imported.weights,
        options=options,
        dump=read_environment().dump,
        on_pass=lambda name, ran: on_step(name, min(ran / steps, 0.5)),
    )
    run_passes(imported.module, to_fused, state)
    module, packed = _fused(imported.module, state)
    on_step("generate-code", 0.5)
    elements = dot_elements(module)
    isas = target_isas(target, [feature for element in sorted(elements) for feature in native_features(element)])
    built = _generate(module, state, isas, tree or find_tree(read_environment().cache_dir))
    with module.context, ir.Location.unknown():
        tables = manifest_tables(built, module, load_env(module))
    manifest: dict[str, object] = {
        "format": 1,
        "compiler": f"disc {VERSION}",
        **tables,
        **packed,
        **({"fixed": [_fixed_record(each) for each in imported.fixed]} if imported.fixed else {}),
        "single": imported.outputs.is_single(),
        "options": {"threads": options.threads, "isas": list(isas)},
    }
    weights = [(name, weight.dtype, weight.array) for name, weight in built.weights]
    compiles = thread_compiles() - compiles
    return Executable.from_parts(cast("Manifest", manifest), built.code, weights, stablehlo, threads=options.threads, compiles=compiles)


def _fixed_record(argument: FixedArgument) -> dict[str, object]:
    return {"name": argument.name, "position": argument.position, "value": repr(argument.value)}


def _fused(module: ir.Module, state: CompileState) -> tuple[ir.Module, Mapping[str, object]]:
    """The module of stage `fused`, and what the manifest says of packing."""
    fusion = (*FUSION, SpeculateVersions())
    refusal: str | None = None
    if state.options.packed:
        with module.context, ir.Location.unknown():
            packed, before = ir.Module.parse(module.operation.get_asm(enable_debug_info=True)), plain_tables(module)
        run_passes(packed, [PackSequences()], state)
        refusal = packed_refusal(packed)
        if refusal is None:
            run_passes(packed, fusion, state)
            with packed.context, ir.Location.unknown():
                refusal = obstacle(packed)
                if refusal is None:
                    return packed, {"packed": {**packed_entry(packed), **before}}
    run_passes(module, fusion, state)
    return module, {} if refusal is None else {"packed_refusal": refusal}


def _generate(module: ir.Module, state: CompileState, isas: Sequence[str], tree: Tree) -> Built:
    """Code for a module of stage `fused`; a failure of ours leaves its IR and the command that repeats it."""
    try:
        built = build(module, state.weights, isas, tree, _threads(state.options))
    except (TargetError, UnsupportedFormatError):
        raise
    except Exception as error:
        raise bug_with_reproducer("code generation", "codegen", f"--emit={isas[0]}", module.operation, error) from error
    if state.dump is not None:
        for isa, text in built.sources.items():
            (state.dump / f"{len(state.timings) + 1:03d}-kernels-{isa}.mlir").write_text(text)
    return built


def _threads(options: Options) -> int:
    """How many may compile: as many as a call may have."""
    return options.threads or read_environment().threads or int(_ral.find_cores("")["threads"])


def target_isas(target: str | Sequence[str], features: Sequence[str] = ()) -> tuple[str, ...]:
    """The ISA levels to compile for; features: what "native" includes beyond the level, where the CPU has it.

    Raises TargetError for a name that is no target, and for "native" on a CPU below x86-64-v3.
    """
    names = [target] if isinstance(target, str) else list(target) if isinstance(target, Sequence) else [target]
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise TargetError(f"target: {wrong[0]!r} is no name; the targets are native, {', '.join(ISAS)}")
    found: dict[str, None] = {}
    for name in names:
        if name == "native":
            found[host_isa(features)] = None
        elif name in ISAS:
            found[name] = None
        elif name.startswith("sm_"):
            raise TargetError(f"target {name!r}: GPU code is not generated yet; use one of {', '.join(('native', *ISAS))}")
        else:
            raise TargetError(f"there is no target {name!r}; the targets are native, {', '.join(ISAS)}")
    if not found:
        raise TargetError("the list of targets is empty")
    return tuple(sorted(found, key=ISAS.index))
