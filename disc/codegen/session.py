"""A compile without its front end: what it depends on, and what makes code of a module. Nothing here loads PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from disc.artifact.cache import open_kernels
from disc.artifact.output import writing
from disc.codegen.build import Built, Part, build
from disc.codegen.plan.listing import Means
from disc.config import Environment, Options, checked_options, read_environment
from disc.errors import TargetError, UnsupportedFormatError
from disc.ir.passes import CompileState, bug_with_reproducer
from disc.ir.stages import dot_elements
from disc.ir.weights import WeightTable
from disc.ral import _ral
from disc.speculation.block_trees import find_trees
from disc.speculation.inputs import find_limits
from disc.speculation.tree import Tree, find_tree
from disc.targets.select import for_program, select_targets
from disc.targets.target import Target


@dataclass(frozen=True)
class Session:
    """What a compile depends on besides the program: made once, before it begins, so that the key of the cache and the code cannot
    disagree.

    targets: with all that a native one could use. tree: chooses the schedules of GEMMs. threads: that may compile.
    """

    targets: tuple[Target, ...]
    options: Options
    environment: Environment
    tree: Tree
    threads: int


def open_session(target: str | Sequence[str] = "native", options: Options | None = None, tree: Tree | None = None) -> Session:
    """Reads the environment and the machine. tree: None = the one of this machine. Raises TargetError; DiscError for the environment."""
    options, environment = checked_options(options), read_environment()
    threads = options.threads or environment.threads or int(_ral.find_cores("")["threads"])
    targets = tuple(dataclasses.replace(each, tf32=options.tf32 and each.gpu is not None) for each in select_targets(target))
    _check_options(targets, options)
    limits = find_limits(environment.cache_dir)
    targets = tuple(each if each.gpu is None else dataclasses.replace(each, trees=find_trees(environment.cache_dir, each.gpu.architecture))
                    for each in targets)  # fmt: skip
    targets = targets if limits is None else tuple(each if each.gpu is not None else each.reading(limits) for each in targets)
    return Session(targets, options, environment, tree or find_tree(environment.cache_dir), threads)


def _check_options(targets: Sequence[Target], options: Options) -> None:
    """Raises TargetError for an option that a target cannot have."""
    gpus = [target.label for target in targets if target.gpu is not None]
    if gpus and options.dtype == "int8":
        raise TargetError(f'dtype="int8" is for CPUs, not for {", ".join(gpus)}: choose "bf16" or "f16", or leave the GPU out')


def compile_state(weights: WeightTable, session: Session, on_pass: Callable[[str, int], None] = lambda name, ran: None) -> CompileState:
    """What the passes of this compile share. Those that run once for all targets decide by the table of the first one's device."""
    dump, thresholds = session.environment.dump, session.targets[0].thresholds.device
    return CompileState(weights, session.options, thresholds, dump=dump, on_pass=on_pass, targets=session.targets)


def generate(module: ir.Module, state: CompileState, session: Session) -> Built:
    """Code for a module of stage `fused`, whose fusions have plans for all targets."""
    return generate_parts([Part(module, session.targets)], state, session)


def generate_parts(parts: Sequence[Part], state: CompileState, session: Session) -> Built:
    """Code for the targets of all parts; a failure of ours leaves the IR of the part and the command that repeats it."""
    own = [Part(part.module, for_program(part.targets, sorted(dot_elements(part.module)))) for part in parts]
    kept = open_kernels(session.environment) if session.options.cache and session.environment.cache else None
    at = [own[0]]
    try:
        built = build(own, state.weights, Means(session.threads, kept), at.append)
    except (TargetError, UnsupportedFormatError, RecursionError):
        raise
    except Exception as error:
        emit = f"--emit={at[-1].targets[0].label}"
        raise bug_with_reproducer("code generation", "codegen", emit, at[-1].module.operation, error) from error
    if state.dump is not None:
        for name, made in built.targets.items():
            path = state.dump / f"{len(state.timings) + 1:03d}-kernels-{name}.mlir"
            with writing(path):
                path.write_text(made.listing.text)
    return built
