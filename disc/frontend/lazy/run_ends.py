"""How a run of a recorder ends: its values are computed, by a program that serves the trace or by PyTorch, and a trace that has come often
enough gets a program.

A run ends where a value is read, and wherever `recording.py` says so. What is pending then is run by the first program whose guards hold of
the sizes (`variants.py`); where there is none, or it fails, PyTorch makes the calls (`replay.py`). Traces that differ in numbers of steps
share programs (`kin.py`).
"""

from __future__ import annotations

from time import perf_counter_ns

from disc.errors import warn
from disc.frontend.backend_settings import Settings
from disc.frontend.dynamo import without_function_modes
from disc.frontend.lazy.compiled import compile_run
from disc.frontend.lazy.kin import WORTH_COMPILING, AllKin, Member
from disc.frontend.lazy.outline import NotCompiledError, Outline
from disc.frontend.lazy.replay import run_again
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.trace_tree import TraceTree
from disc.frontend.lazy.traces import Run
from disc.frontend.lazy.variants import ProgramFailedError, Variant

MOST_VARIANTS = 8  # of a trace, for sizes that its guards tell apart
MOST_PROGRAMS = 64  # of a recorder
MOST_STEPS = 500_000  # calls of all traces that are kept
FRUITLESS = 500  # traces that never came again, until recording stops


class RunEnds:
    """settling: runs that get their values now: what is called for that, as the function of a program with gradients, ends no run."""

    def __init__(self, tree: TraceTree, settings: Settings, statistics: LazyStatistics) -> None:
        self.settling = 0
        self._tree, self._settings, self._statistics = tree, settings, statistics
        self._follower = tree.follower
        self._fruitless = self._programs = self._compiling = 0
        self._kin = AllKin()

    @property
    def at_work(self) -> bool:
        """Whether what is called now is called for what runs, or is compiled."""
        return self.settling > 0 or self._compiling > 0

    def settle(self) -> None:
        """The trace ends here, unless what asks for that is called for the values of a run."""
        if not self.settling:
            self.end()

    def end(self) -> None:
        """The trace ends here."""
        run = self._tree.run
        self._tree.begin()
        self.compute(run)

    def compute(self, run: Run) -> None:
        """Computes a run that is over."""
        try:
            if run.here.before is not None:
                self._end_of(run)
        finally:
            self._follower.finish(run)

    def come_off(self) -> None:
        """The program does not go on as any compiled trace: what is pending gets values, and the rest of the run is run as it comes."""
        run = self._tree.run
        if self._run_compiled(run):
            self._tree.begin()
            self._follower.finish(run)
        else:
            self.by_pytorch()

    def by_pytorch(self) -> None:
        """PyTorch makes the calls that are pending, and runs the rest of the run as it comes."""
        run = self._tree.run
        run.deferring, run.pending = False, 0
        try:
            self._run_again(run)
        except BaseException:  # no more than what came before the failing call has values: nothing goes on from there
            self._tree.begin()
            self._follower.finish(run)
            raise
        self._follower.loosen()

    def _end_of(self, run: Run) -> None:
        segment = run.here.segment
        if run.pending and self._run_compiled(run):
            return
        if self._tree.steps > MOST_STEPS:
            self._stop(f"{self._tree.steps} different calls", run)
        if run.pending:
            self._run_again(run)
        self._statistics.uncompiled += 1
        segment.history.note(run)
        if self._serve(run) or segment.history.runs >= WORTH_COMPILING:
            self._fruitless = segment.history.runs = 0
        else:
            self._fruitless += 1
            if self._fruitless >= FRUITLESS and not self._statistics.hits:
                self._stop(f"{FRUITLESS} traces, none of which came twice", run)

    def _run_compiled(self, run: Run) -> bool:
        """Whether there was a compiled program for the run as it is, which has been run, and has not failed."""
        began = perf_counter_ns()
        segment = run.here.segment
        for place, variant in enumerate(segment.variants):
            symbols = variant.fits(run)
            if symbols is None:
                continue
            if place:
                segment.variants.insert(0, segment.variants.pop(place))
            chosen, statistics = perf_counter_ns(), self._statistics
            statistics.replaying_ns += chosen - began
            self.settling += 1
            try:
                variant.execute(run, symbols)
            except ProgramFailedError as error:
                if self._settings.strict or isinstance(error.why, Warning):
                    raise error.why from None
                return False  # PyTorch says why, in its words
            finally:
                self.settling -= 1
            statistics.computing_ns += perf_counter_ns() - chosen
            statistics.hits += 1
            if variant.native is not None:
                variant.native.admit(run)
            self._follower.set_programs(run.here.number, [each.native for each in segment.variants if each.native is not None])
            return True
        return False

    def _run_again(self, run: Run) -> None:
        self.settling += 1
        try:
            values = run_again(run)
        finally:
            self.settling -= 1
        self._tree.renew_roots(run, values)

    def _serve(self, run: Run) -> bool:
        """Has the trace, which PyTorch has run, served by a program from now on: one that its kin have, or one that is made now, as it has
        come often enough."""
        segment, began = run.here.segment, perf_counter_ns()
        if any(each.fits(run) is not None for each in segment.variants):  # the program came off it on the way, as by an error
            return False
        if segment.refused or len(segment.variants) >= MOST_VARIANTS:
            return False
        try:
            outline = Outline(run, segment.history.written)
        except NotCompiledError as error:
            if segment.history.runs >= WORTH_COMPILING:
                self._refuse(run, error)
            return False
        member = self._kin.of(outline)
        variant = None if member is None else member.variant()
        self._statistics.replaying_ns += perf_counter_ns() - began
        if member is not None and variant is not None:
            member.kin.history.runs -= 1
            self._add(run, variant)
            self._statistics.shared += 1
            return True
        member = None if member is None or member.kin.refused else member
        came = segment.history.runs >= WORTH_COMPILING or (member is not None and member.kin.came_often())
        return came and self._programs < MOST_PROGRAMS and self._compile(run, member)

    def _compile(self, run: Run, member: Member | None) -> bool:
        """Makes a program for the trace: one for all its kin, if it has any and that can be, or for the trace alone."""
        segment = run.here.segment
        for each in run.here.steps():
            each.scalars = self._follower.numbers(each.number)
        self._compiling += 1
        try:
            with without_function_modes():
                family, variant = compile_run(run, segment.history, self._settings, self._statistics, member)
        except NotCompiledError as error:
            if member is not None:
                member.kin.refused = str(error)
                return segment.history.runs >= WORTH_COMPILING and self._compile(run, None)
            self._refuse(run, error)
            return False
        finally:
            self._compiling -= 1
        if member is not None:
            member.kin.add(family)
        self._add(run, variant)
        self._statistics.compiles += 1
        self._programs += 1
        if self._programs == MOST_PROGRAMS:
            warn(f"disc.lazy: {MOST_PROGRAMS} programs have been compiled, no further ones are; do Python numbers change in every step?")
        return True

    def _refuse(self, run: Run, error: NotCompiledError) -> None:
        run.here.segment.refused = str(error)
        self._statistics.refused[str(error)] += 1
        if error.step is not None and error.behind:
            self._tree.end_behind(error.step)
        elif error.step is not None:
            next(each for each in run.here.steps() if each.number == error.step.number).alone = True
        elif self._settings.strict and error.__cause__ is not None:
            raise error.__cause__ from error

    def _add(self, run: Run, variant: Variant) -> None:
        step = run.here
        step.segment.variants.insert(0, variant)
        while step.before is not None:
            step.ahead.insert(0, variant)
            self._follower.set_ahead(step.number)
            step = step.before

    def _stop(self, why: str, run: Run) -> None:
        self._follower.stopped = True
        self._tree.clear()
        self._kin.clear()
        self._tree.begin()
        warn(f"disc.lazy: {why}; nothing is recorded any more (at {run.here.line})")
