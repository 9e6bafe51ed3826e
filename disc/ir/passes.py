"""What a pass is and how a list of them runs: verified, checked against its stage, timed, dumped, reproducible."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from disc.artifact.output import writing
from disc.config import Options
from disc.errors import CompilerBug, DiscError
from disc.ir.control import erase_unrun
from disc.ir.ops import function_blocks
from disc.ir.reports import Report, write_report
from disc.ir.stages import check_stage, stage_of
from disc.ir.weights import WeightTable
from disc.targets.target import Target
from disc.targets.thresholds import DeviceThresholds
from disc.targets.x86_thresholds import CPU

_LOGGER = logging.getLogger("disc.passes")


@dataclass(frozen=True)
class Timing:
    """One application of a pass and the seconds it took, checks excluded."""

    name: str
    seconds: float


OnPass = Callable[[str, int], None]


@dataclass
class CompileState:
    """What passes share besides the module.

    weights: data behind `disc.weight`. thresholds: of the device that the program is compiled for. timings: one entry per pass that ran.
    dump: folder for the IR after every pass. on_pass: called before every pass with its name and how many have run. targets: that kernels
    are made for.
    """

    weights: WeightTable = field(default_factory=WeightTable)
    options: Options = field(default_factory=Options)
    thresholds: DeviceThresholds = CPU
    timings: list[Timing] = field(default_factory=list)
    dump: Path | None = None
    on_pass: OnPass = field(default=lambda name, ran: None)
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True)
class Pass:
    """One rewrite of the module. Subclasses set `name` (kebab-case) and, when the module changes its stage, `makes`."""

    name: ClassVar[str] = ""
    makes: ClassVar[str | None] = None

    def apply(self, module: ir.Module, state: CompileState) -> None:
        raise NotImplementedError(f"{type(self).__name__}.apply")


@dataclass(frozen=True)
class FunctionPass(Pass):
    """A rewrite of one function at a time, of `@main` and of the bodies of its control flow, which know nothing of each other."""

    def apply(self, module: ir.Module, state: CompileState) -> None:
        for block in function_blocks(module):
            self.apply_block(block, module, state)
        erase_unrun(module)

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        """Rewrites the function that has this block."""
        raise NotImplementedError(f"{type(self).__name__}.apply_block")


@dataclass(frozen=True)
class UpstreamPass(Pass):
    """A pass of MLIR itself, given as a textual pipeline for `builtin.module`, such as "canonicalize,cse"."""

    name: ClassVar[str] = "upstream"
    pipeline: str

    def apply(self, module: ir.Module, state: CompileState) -> None:
        with module.context:
            PassManager.parse(f"builtin.module({self.pipeline})").run(module.operation)


def pass_label(one: Pass) -> str:
    """How the command line names this pass."""
    return f"mlir:{one.pipeline}" if isinstance(one, UpstreamPass) else one.name


def run_passes(module: ir.Module, passes: Sequence[Pass], state: CompileState) -> None:
    """Runs `passes` in order. Any failure that is not a `DiscError` becomes a `CompilerBug` with a reproducer."""
    stage = stage_of(module)
    for one in passes:
        state.on_pass(pass_label(one), len(state.timings))
        before = module.operation.clone(ip=False)
        try:
            start = time.perf_counter()
            with module.context, ir.Location.unknown():
                one.apply(module, state)
            state.timings.append(Timing(pass_label(one), time.perf_counter() - start))
            _LOGGER.debug("pass %s: %.1f ms", pass_label(one), state.timings[-1].seconds * 1e3)
            stage = one.makes or stage
            _check(module, stage, state.options)
        except DiscError as error:
            if not isinstance(error, CompilerBug):
                raise
            raise _with_reproducer(one, before, error) from error
        except RecursionError:
            raise  # the caller's stack, not this pass
        except Exception as error:
            raise _with_reproducer(one, before, error) from error
        _dump(module, state)


def _check(module: ir.Module, stage: str, options: Options) -> None:
    if not options.debug_checks:
        return
    module.operation.verify()
    check_stage(module, stage)


def _dump(module: ir.Module, state: CompileState) -> None:
    if state.dump is None:
        return
    last = state.timings[-1]
    name = "".join(letter if letter.isalnum() else "-" for letter in last.name)[:60]
    path = state.dump / f"{len(state.timings):03d}-{name}.mlir"
    with writing(path):
        state.dump.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {last.name}: {last.seconds * 1e3:.1f} ms\n{module.operation.get_asm(enable_debug_info=True)}")


def _with_reproducer(one: Pass, before: ir.Operation, error: Exception) -> CompilerBug:
    """Saves the IR from before the pass under a name of its own and says how to run the pass on it again."""
    label = pass_label(one)
    return bug_with_reproducer(f"pass {label}", one.name, f"--passes={label}", before, error)


def bug_with_reproducer(where: str, hint: str, arguments: str, before: ir.Operation, error: Exception) -> CompilerBug:
    """The error for a failure of ours in `where`; with `arguments`, `disc debug opt` fails again on the IR in the report."""
    path = write_report(hint, Report(where, arguments, before.get_asm(enable_debug_info=True), error))
    return CompilerBug(
        f"compiler bug in {where}: {type(error).__name__}: {error}\n"
        f"{path} has the IR before it (without weights), the traceback and the versions: please attach it to a report\n"
        f"run it again with: disc debug replay {path}"
    )
