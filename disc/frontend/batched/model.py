"""A model whose instances run as a batch: its functions, what was learnt of them, and the blocks that they became."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, ClassVar

import torch

from disc.errors import DiscError, InstanceError
from disc.frontend.batched.blocks import Block, Lifted
from disc.frontend.batched.cycles import line_of
from disc.frontend.batched.driver import Driver
from disc.frontend.batched.facts import attributes_held, code_of_calls, gathered, watched
from disc.frontend.batched.functions import Function
from disc.frontend.batched.instances import Instance, run_plain
from disc.frontend.batched.interpreted import Interpreter
from disc.frontend.batched.launches import Programs
from disc.frontend.batched.members import Members
from disc.frontend.batched.recorder import Recorder, compiled_kinds
from disc.frontend.batched.regions import SAVED_STRUCTURES, STRUCTURES, Kind, Region
from disc.frontend.batched.rows import Row, settled
from disc.frontend.batched.steps import Seen
from disc.frontend.batched.structural import Recursion, find_recursion, may_be_structural
from disc.frontend.batched.techniques import Techniques
from disc.frontend.batched.values import calls_forward, category_of, unwrapped
from disc.ral._ral import Facts

EXAMPLES = 64  # instances that are kept, to learn from them what instances are when the model is saved
ROUNDS = 8  # runs of examples until nothing more is learnt


@dataclass
class Counts:
    """Since the model was made. batches: calls of `batch`; instances: of all of them; launches: of compiled blocks; rows: block
    calls in them; compiles: blocks compiled; recaptures: times that all was forgotten as a weight or a setting had changed; eager:
    block calls that ran in PyTorch one by one; immediate: results that were wanted as tensors before the instance could wait for
    them; walked: batches by a native walk; interpreted: by the runtime's interpreter."""

    batches: int = 0
    instances: int = 0
    launches: int = 0
    compiles: int = 0
    recaptures: int = 0
    immediate: int = 0
    walked: int = 0
    interpreted: int = 0
    in_python: dict[str, str] = field(default_factory=dict)


class Model:
    """target: a module or a function, of one argument or of several (`Members`). lift: compiles a block. gradients: whether results have
    some."""

    gradients: ClassVar[bool] = False

    def __init__(self, target: torch.nn.Module | FunctionType, lift: Callable[[Block], Lifted], techniques: Techniques) -> None:
        self.target = target
        self.members = Members(target)
        self.techniques = techniques
        self.counts = Counts()
        self._lift = lift
        self._facts: tuple[object, ...] = ()
        self._watched: Facts | None = None
        self._known = (0, 0)  # functions and kinds, when `_watched` was made
        self._lock = threading.RLock()
        self.running = threading.local()
        self._begin()

    def _begin(self) -> None:
        """Nothing is known yet of the code."""
        self._functions: dict[FunctionType, Function] = {}
        self._code = code_of_calls(self._modules())
        self._seen_changes = -1
        self._ordered: str | None = None
        self._in_python = self._why_in_python()
        self._programs = Programs()
        self._dropped = False  # kinds whose blocks are in `_programs`
        self._recursion: Recursion | str = "nothing has run yet"
        self._searched: tuple[int, int] | None = None
        self._interpreter = Interpreter()
        self._settled = False  # the last batch showed nothing new
        self._examples: list[object] = []
        self.root = self._function(self.members.function())

    def _why_in_python(self) -> str | None:
        """Why a call of the model itself is more than its code."""
        if not isinstance(self.target, torch.nn.Module) or calls_forward(self.target):
            return None
        return f"a call of {type(self.target).__name__} runs more than the `forward` of its class: hooks, or a method of its own"

    # --- running ----------------------------------------------------------------------------------------------------------------

    def batch(self, instances: Sequence[object]) -> list[object]:
        """`[target(each) for each in instances]`, computed together. Raises InstanceError where some instances fail."""
        with self._lock, self.mode():
            self.running.active = True
            try:
                self.members.check(instances)
                return self._batch([self._arguments(each) for each in instances])
            finally:
                self.running.active = False

    def mode(self) -> contextlib.AbstractContextManager[None]:
        """What the model's own code runs in."""
        return torch.no_grad()

    def recorder(self) -> Recorder:
        """A recorder of one batch."""
        return Recorder(self._lower, self._programs_now(), self.techniques)

    def _arguments(self, instance: object) -> tuple[object, ...]:
        return (self.target, instance) if isinstance(self.target, torch.nn.Module) else (instance,)

    def _batch(self, arguments: Sequence[tuple[object, ...]]) -> list[object]:
        self.check_facts()
        found = self._walked(arguments)
        if found is None:
            found = self._interpreted(arguments)
        return found if found is not None else self._learning(arguments)

    def _learning(self, arguments: Sequence[tuple[object, ...]]) -> list[object]:
        """As `_run`; instances that showed something are kept, but for those that failed."""
        known = (Seen.changes, Kind.made)
        failed: Collection[int] = range(len(arguments))
        try:
            results = self._run(arguments)
            failed = ()
            return results
        except InstanceError as error:
            failed = error.failures
            raise
        finally:
            self._settled = known == (Seen.changes, Kind.made)
            if not self._settled:
                good = [each[-1] for number, each in enumerate(arguments) if number not in failed]
                self._examples = [*self._examples, *good][-EXAMPLES:]

    def _run(self, arguments: Sequence[tuple[object, ...]]) -> list[object]:
        """The results by the model's rewritten code. Raises InstanceError."""
        recorder = self.recorder()
        instances = [Instance(number, each) for number, each in enumerate(arguments)]
        if self._in_python is None:
            driver = Driver(recorder, self, self.root, ordered=self._ordered is not None)
            why, self._in_python = driver.run(instances)
            self._ordered = self._ordered or why
        else:
            for each in instances:
                run_plain(each, self.members.call)
        self.counts.batches += 1
        self.counts.instances += len(instances)
        results = _results(recorder, instances)
        self.counts.launches += recorder.launches
        self.counts.immediate += sum(recorder.immediate.values())
        if not self._holds():
            self._watch(self._gathered_facts())
        failures = {each.number: each.error for each in instances if each.error is not None}
        if failures:
            raise InstanceError(self._failure_text(failures), results, failures)
        return results

    def _interpreted(self, arguments: Sequence[tuple[object, ...]]) -> list[object] | None:
        """The results by the runtime's interpreter; None where the model's code has to run. Instances that it cannot tell of run by the
        code, which also says what is wrong with them. Raises InstanceError."""
        interpreter = self._interpreter
        if self.gradients or not self.techniques.native_skeleton or self.why_not_native() is not None or not arguments:
            return None
        if not interpreter.runs and not self._settled:
            return None
        if interpreter.prepare(self, self.examples, self._modules(), (Seen.changes, Kind.made, self.counts.compiles)):
            self.refresh()
            self._watch(self._gathered_facts())
        ran = interpreter.run([each[-1] for each in arguments])
        if ran is None:
            return None
        results, why, launches = ran
        self.counts.batches += not why
        self.counts.interpreted += len(why) < len(arguments)
        self.counts.instances += len(arguments) - len(why)
        self.counts.launches += launches
        return self._completed(arguments, results, why) if why else results

    def _completed(self, arguments: Sequence[tuple[object, ...]], results: list[object], why: dict[int, str]) -> list[object]:
        """Results with those that the model's code gives for the instances of `why`. Raises InstanceError."""
        known = (Seen.changes, Kind.made, self.counts.compiles)
        failures: dict[int, Exception] = {}
        try:
            found = self._learning([arguments[each] for each in why])
        except InstanceError as error:
            numbers = [*why]
            found, failures = error.results, {numbers[place]: each for place, each in error.failures.items()}
        for number, result in zip(why, found, strict=True):
            results[number] = result
        self._interpreter.judge(why, failures, len(arguments), known != (Seen.changes, Kind.made, self.counts.compiles))
        if failures:
            raise InstanceError(self._failure_text(failures), results, failures)
        return results

    def _programs_now(self) -> Programs:
        """The compiled blocks as one schedule, without those of blocks that were forgotten."""
        if self._dropped:
            self._programs, self._dropped = Programs(), False
            for kind in self._kinds():
                kind.slot = -1
                self._programs.admit(kind)
        return self._programs

    def _walked(self, arguments: Sequence[tuple[object, ...]]) -> list[object] | None:
        """The results by a native walk over the instances; None where the model's code has to run."""
        recursion = self._known_recursion(arguments)
        found = self.walk(recursion, [each[-1] for each in arguments]) if recursion is not None else None
        if found is None:
            return None
        results, launches = found
        self.counts.batches += 1
        self.counts.walked += 1
        self.counts.instances += len(arguments)
        self.counts.launches += launches
        return results

    def walk(self, recursion: Recursion, instances: Sequence[object]) -> tuple[list[object], int] | None:
        """As `Recursion.run`."""
        return recursion.run(instances)

    def _known_recursion(self, arguments: Sequence[tuple[object, ...]]) -> Recursion | None:
        """What takes the place of the model's code, if that is known."""
        if not self.techniques.native_walk:
            return None
        recursion = self._recursion
        if not isinstance(recursion, Recursion) or not recursion.holds():
            searched = (Seen.changes, self.counts.compiles)
            if searched == self._searched or self._ordered or self._in_python or not arguments:
                return None
            self.refresh()
            self._searched = searched
            recursion = self._recursion = find_recursion(self.root, arguments[0][:-1], self.find)
            if isinstance(recursion, str):
                return None
        return recursion

    def recursion_to_save(self) -> Recursion | str:
        """The recursion with all of its blocks compiled; or why it is not known to be one that instances decide."""
        with self._lock, torch.no_grad():
            self.check_facts()
            if self._in_python is not None:
                return self._in_python
            self.refresh()
            if may_be_structural(self.root) is not None:
                for kind in list(self._kinds()):
                    if kind.lifted is None and kind.refusal is None:
                        self._lower(kind)
            owner = (self.target,) if isinstance(self.target, torch.nn.Module) else ()
            return find_recursion(self.root, owner, self.find)

    @property
    def examples(self) -> list[object]:
        """The last instances of batches that showed more of the model than those before them."""
        return list(self._examples)

    def why_not_native(self) -> str | None:
        """Why instances run one after another, or all in Python, so that no skeleton takes the code's place."""
        return self._in_python or self._ordered

    def run_until_known(self, examples: Sequence[object]) -> list[object]:
        """The results of examples, by runs that leave nothing of the code to be learnt, with all blocks compiled. Raises InstanceError."""
        with self._lock, torch.no_grad():
            self.check_facts()
            arguments = [self._arguments(each) for each in examples]
            results: list[object] = []
            for _ in range(ROUNDS):
                known = (Seen.changes, Kind.made)
                self.running.active = True
                try:
                    results = self._run(arguments)
                finally:
                    self.running.active = False
                self.refresh()
                if known == (Seen.changes, Kind.made):
                    break
            for kind in list(self._kinds()):
                if kind.lifted is None and (kind.refusal is None or kind.crowded) and (kind.rows or kind.values):
                    self._lower(kind, SAVED_STRUCTURES)
        return results

    def learnt(self, original: FunctionType, arguments: Sequence[object]) -> Function:
        """A function of one argument that the model did not call itself, such as a property's, after runs on these."""
        function = self._function(original)
        with self._lock, torch.no_grad():
            for _ in range(ROUNDS):
                known = (Seen.changes, Kind.made)
                Driver(self.recorder(), self, function, ordered=False).run(
                    [Instance(number, (each,)) for number, each in enumerate(arguments)]
                )
                self.refresh()
                if known == (Seen.changes, Kind.made):
                    break
        return function

    def _failure_text(self, failures: dict[int, Exception]) -> str:
        number, error = next(iter(failures.items()))
        line = line_of(error, {each.file for each in self._functions.values()})
        where = f" at {line}" if line else ""
        more = f"; {len(failures) - 1} others failed too: {', '.join(map(str, list(failures)[1:9]))}" if len(failures) > 1 else ""
        return f"instance {number} failed{where}: {type(error).__name__}: {error}{more}; the results of the others are in `.results`"

    # --- functions --------------------------------------------------------------------------------------------------------------

    def find(self, callee: Any) -> Function | None:
        """The user's function that a call of `callee` runs; None for others."""
        callee = unwrapped(callee)
        if isinstance(callee, torch.nn.Module):
            return self._function(type(callee).forward) if category_of(callee) == "function" else None
        function = callee.__func__ if isinstance(callee, MethodType) else callee
        if not isinstance(function, FunctionType):
            return None
        known = self._functions.get(function)
        return known if known is not None else self._function(function) if category_of(callee) == "function" else None

    def _function(self, original: Any) -> Function:
        while not self.gradients and hasattr(original, "__wrapped__") and original.__globals__.get("__name__") == "torch.utils._contextlib":
            original = original.__wrapped__  # `@torch.no_grad()`: results carry no gradients anyway
        found = self._functions.get(original)
        if found is None:
            found = self._functions[original] = Function(original, self.find, gradients=self.gradients)
            found.refresh()
        return found

    def refresh(self) -> None:
        """Writes functions anew where more was learnt."""
        while self._seen_changes != Seen.changes:
            self._seen_changes = Seen.changes
            for function in list(self._functions.values()):
                function.refresh()

    def note(self, reason: str, line: str) -> None:
        self.counts.in_python[reason] = line

    # --- blocks -----------------------------------------------------------------------------------------------------------------

    def _lower(self, kind: Kind, most: int = STRUCTURES) -> None:
        """Compiles the kind, unless `most` of its region are compiled."""
        kind.crowded = compiled_kinds(kind.region) >= most
        if kind.crowded:
            kind.refusal = f"{most} blocks of this place are compiled already, for other constants and shapes"
            return
        try:
            kind.lifted, kind.refusal = self._lift(kind.block), None
            self._programs.admit(kind)
            self.counts.compiles += 1
        except DiscError as error:
            kind.refusal = f"{type(error).__name__}: {error}"

    def regions(self) -> Iterator[Region]:
        for function in self._functions.values():
            yield from function.regions.values()

    def functions(self) -> list[Function]:
        return list(self._functions.values())

    @property
    def ordered(self) -> str | None:
        """Why instances run one after another; None where they run side by side."""
        return self._ordered

    @property
    def recursion(self) -> str | None:
        """Why the model's code runs for each instance; None where a native walk over instances is known to take its place."""
        return self._recursion if isinstance(self._recursion, str) else None

    @property
    def interpreted(self) -> str | None:
        """Why the skeleton is not interpreted; None where it is."""
        if not self.techniques.native_skeleton:
            return "it is left out"
        if not self._interpreter.runs and not self._settled and self._examples and self.why_not_native() is None:
            return "the last batch still showed more of the code"
        return self.why_not_native() or self._interpreter.reason

    @property
    def left(self) -> str | None:
        """Why the code ran an instance of the last interpreted batch, though it has a result; None where it ran none."""
        return self._interpreter.left

    @property
    def in_python(self) -> str | None:
        """Why all runs in Python, instance by instance; None where blocks run."""
        return self._in_python

    # --- what was assumed -------------------------------------------------------------------------------------------------------

    def check_facts(self) -> None:
        """Forgets all blocks where a weight, an attribute or a global that they were made with has changed; all that was learnt where a
        call runs other code."""
        if self._holds():
            return
        if self._code != code_of_calls(self._modules()) or not all(each.is_as_read() for each in self.functions()):
            self.counts.recaptures += any(region.kinds for region in self.regions())
            self._begin()
        facts = self._gathered_facts()
        if facts != self._facts or any(map(self.is_stale, self._kinds())):
            made = [region for region in self.regions() if region.kinds]
            self.counts.recaptures += bool(made)
            for region in made:
                region.forget()
            self._dropped = True
            self._interpreter.forget()
        self._watch(facts)

    def is_stale(self, kind: Kind) -> bool:
        """Whether a weight that the block was made with has other elements now."""
        return kind.stale()

    def _holds(self) -> bool:
        """Whether all is as it was, the objects themselves, and no more of the model is known than then."""
        return self._watched is not None and self._known == (len(self._functions), Kind.made) and self._watched.hold()

    def _watch(self, facts: tuple[object, ...]) -> None:
        self._facts = facts
        self._known = (len(self._functions), Kind.made)
        functions = [each.original for each in self._functions.values()]
        weights = {id(each): each for kind in self._kinds() for each, _ in kind.weights}.values()
        self._watched = watched(functions, self._modules(), weights, self._by_value(), gradients=self.gradients)

    def _kinds(self) -> Iterator[Kind]:
        for region in self.regions():
            yield from region.kinds.values()

    def _modules(self) -> list[torch.nn.Module]:
        return list(self.target.modules()) if isinstance(self.target, torch.nn.Module) else []

    def _gathered_facts(self) -> tuple[object, ...]:
        return gathered([each.original for each in self._functions.values()], self._modules(), self._by_value())

    def _by_value(self) -> set[str]:
        """The names that attributes may be asked for by which no code has."""
        return attributes_held(self._modules()) if any(each.asks_by_value() for each in self.functions()) else set()

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether blocks were made with a tensor of the same memory."""
        memory = tensor.untyped_storage()._cdata
        return any(each.untyped_storage()._cdata == memory for kind in self._kinds() for each, _ in kind.weights)


def _results(recorder: Recorder, instances: Sequence[Instance]) -> list[object]:
    """The results with tensors in the place of rows; the error of an instance that failed in its place."""
    for instance in instances:
        wanted: list[Row] = []

        def collect(row: Row, wanted: list[Row] = wanted) -> Row:
            wanted.append(row)
            return row

        if instance.error is None:
            settled(instance.result, collect)
            instance.error = next((row.launch.error for row in wanted if row.launch is not None and row.launch.error is not None), None)
        instance.sent = wanted
    wanted = [row for each in instances if each.error is None for row in each.sent]  # pyright: ignore
    recorder.fetch(wanted)
    recorder.hand_out(wanted)
    handed: set[int] = set()
    return [each.error if each.error is not None else settled(each.result, lambda row: _own_tensor(row, handed)) for each in instances]


def _own_tensor(row: Row, handed: set[int]) -> torch.Tensor:
    """The row's tensor; a copy where another result has it already, unless it is the user's own."""
    value = row.tensor()
    if row.launch is None:
        return value
    if id(value) in handed:
        return value.clone()
    handed.add(id(value))
    return value
