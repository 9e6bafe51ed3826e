"""A compile without its front end: what makes code of a module. Nothing here loads PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir

from disc.artifact.cache import open_kernels
from disc.artifact.output import writing
from disc.codegen.build import Built, Part, build
from disc.codegen.plan.listing import Means
from disc.errors import TargetError, UnsupportedFormatError
from disc.ir.passes import CompileState, bug_with_reproducer
from disc.ir.stages import dot_elements
from disc.ir.weights import WeightTable
from disc.speculation.session import Session
from disc.targets.select import for_program


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
