"""A recorded trace seen from outside: which tensors go in, which of its values are needed when it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import cast

import torch

from disc.frontend.lazy.calls import BACKWARD, DETACHING, GRADIENT, PASSES, SET_GRADIENT, Input, Value, references
from disc.frontend.lazy.reached import Saved, apart_from_each_other, passed, reached, saved_by, ways
from disc.frontend.lazy.traces import Made, Run, Step


class NotCompiledError(Exception):
    """A trace that PyTorch goes on running. step: the call that is why, if one is; behind: whether the trace may end behind that, which is
    part of it else."""

    def __init__(self, why: str, step: Step | None = None, *, behind: bool = False) -> None:
        super().__init__(why)
        self.step, self.behind = step, behind


@dataclass
class Outline:
    """Of a run that has ended. Raises NotCompiledError for one that cannot be compiled.

    written: inputs that it writes; tensors: that go in; made: what is known of every value; needed: numbers of the values that outlive
    the run; views: those of them that are taken anew, as value, step, and place among its results; freed: those whose backward pass has
    been. differentiable: whether gradients of values may be asked for later; gradients: then, input → what its gradient becomes,
    reached: value → the inputs that gradients of it go to, apart: inputs that require gradients, and get none of any value, saves: whether
    PyTorch has saved anything for these gradients, which one pass frees, and ways: value → the values that its gradients go through.
    twins: input → the one in the same memory that stands for it; sharing: inputs that share memory, and are others to the program.
    """

    run: Run
    written: Set[int]
    steps: list[Step] = field(init=False)
    tensors: list[torch.Tensor] = field(init=False)
    made: dict[int, Made] = field(init=False)
    needed: list[int] = field(init=False)
    freed: frozenset[int] = field(init=False)
    differentiable: bool = field(init=False)
    views: list[tuple[int, int, int]] = field(default_factory=list)
    gradients: dict[int, int | Input | None] = field(default_factory=dict)
    reached: dict[int, frozenset[int]] = field(default_factory=dict)
    apart: frozenset[int] = frozenset()
    saves: bool = True
    ways: dict[int, frozenset[int]] = field(default_factory=dict)
    twins: dict[int, int] = field(default_factory=dict)
    sharing: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.steps, self.tensors = self.run.here.steps(), self.run.inputs
        self.made = {step.first + n: each for step in self.steps for n, each in enumerate(e for e in step.results if type(e) is Made)}
        self._check_inputs()
        self._choose_outputs()
        self._choose_twins()

    def _check_inputs(self) -> None:
        taken = {each.number for step in self.steps if step.context.grad and step.func not in DETACHING
                 for each in references((step.args, step.kwargs)) if isinstance(each, Input)}  # fmt: skip
        goes_on = any(each.requires_grad and not each.is_leaf and number in taken for number, each in enumerate(self.tensors))
        passes = self._first_pass()
        if goes_on and passes is not None:
            raise NotCompiledError("gradients go on into what was computed before the trace", passes)
        if any(each.is_conj() or each.is_neg() for each in self.tensors):
            raise NotCompiledError("an input is a conjugate or a negative view")

    def _first_pass(self) -> Step | None:
        """Where gradients are first computed: the trace may end there, so that what comes before is a program with gradients."""
        return next((step for step in self.steps if step.func in PASSES), None)

    # --- what comes out ----------------------------------------------------------------------------------------------------------------

    def _choose_outputs(self) -> None:
        """The values that somebody still holds. Views of others are taken anew of these."""
        makers = {number: (place, step) for place, step in enumerate(self.steps) for number in _made_by(step)}
        live = self.run.live()
        real = {number: cast("torch.Tensor", self.run.proxy(number)._value) for number in live}
        graphs = [number for number in live if real[number].requires_grad]
        self.freed = frozenset(number for number in graphs if self._first_pass() is not None and is_freed(real[number]))
        kept = [number for number in graphs if number not in self.freed]
        self.differentiable = bool(kept)
        if any(real[number].is_leaf for number in kept):
            raise NotCompiledError("the trace ends within a function that is differentiated")
        if kept:
            if any(step.func is BACKWARD for step in self.steps):
                line = makers[kept[0]][1].line
                raise NotCompiledError(f"gradients of a value made at {line} may be asked for after backward()", self._first_pass())
            self.needed = live
            self.reached = {number: reached(real[number], self.tensors, self.written) for number in kept}
            differentiable = {number for number, each in enumerate(self.tensors) if each.requires_grad}
            self.apart = frozenset(differentiable.difference(*self.reached.values()))
            for number in passed({number: real[number] for number in kept}):
                makers[number][1].passed = True
            self._check_passes({number: real[number] for number in kept}, makers)
            self._follow_gradients()
            return
        needed, views = dict[int, None](), dict[int, None]()
        for number in live:
            self._need(number, makers, needed, views)
        self.needed = list(needed)
        for number in views:
            place, step = makers[number]
            leaf = [n for n, each in enumerate(step.results) if type(each) is Made][number - step.first]
            self.views.append((number, place, leaf))

    def _check_passes(self, kept: Mapping[int, torch.Tensor], makers: Mapping[int, tuple[int, Step]]) -> None:
        """A backward pass frees all that a program with gradients has kept: values that may have a pass each are of two programs."""
        saved = Saved(self.tensors, self.written)
        pair = apart_from_each_other(kept, saved)
        if pair is None:
            self.saves = any(map(saved.of, kept.values()))
            self.ways = ways(kept)
            return
        (place, step), (other, later) = makers[pair[0]], makers[pair[1]]
        why = f"values made at {step.line} and {later.line} may have a backward pass each"
        raise NotCompiledError(why) if place == other else NotCompiledError(why, step, behind=True)

    def _need(self, number: int, makers: Mapping[int, tuple[int, Step]], needed: dict[int, None], views: dict[int, None]) -> None:
        """A value: it is computed, or is a view of such as are, which is made behind these."""
        if self.made[number].root is None:
            needed[number] = None
            return
        _, step = makers[number]
        for each in references((step.args, step.kwargs)):
            if isinstance(each, Value):
                self._need(each.number, makers, needed, views)
        if step.writes or any(each is not None and (type(each) is not Made or each.root is None) for each in step.results):
            raise NotCompiledError(f"a view made at {step.line} is kept, and is not made by a call that only makes views")
        views[number] = None

    def _follow_gradients(self) -> None:
        """What becomes of `grad` of the inputs in a trace without a backward pass."""
        for step in self.steps:
            if step.func == SET_GRADIENT:
                leaf, given = step.args
                if not isinstance(leaf, Input) or isinstance(given, Value):
                    raise NotCompiledError(f"a gradient is set at {step.line} before a backward pass")
                self.gradients[leaf.number] = given
            elif step.func == GRADIENT and any(type(each) is Made for each in step.results):
                raise NotCompiledError(f"a gradient is read at {step.line} before a backward pass")

    def _choose_twins(self) -> None:
        """Which of several tensors in exactly the same memory stands for all of them: the one whose version tells that it is written, or
        that gradients go to, where these may be asked for later."""
        twins = self.run.twins
        self.sharing = {number for number, first in enumerate(twins) if first < 0}
        for first in {first for number, first in enumerate(twins) if 0 <= first != number}:
            group = [number for number, each in enumerate(twins) if each == first]
            preferred = [each for each in group if each in self.written]
            if self.differentiable and any(self.tensors[each].requires_grad for each in group):
                preferred = [each for each in group if self.tensors[each].requires_grad]
                if len(preferred) > 1:
                    self.sharing |= set(group)
                    continue
            chosen = next(iter(preferred), first)
            self.twins |= {number: chosen for number in group if number != chosen}


def _made_by(step: Step) -> range:
    return range(step.first, step.first + sum(type(each) is Made for each in step.results))


def is_freed(value: torch.Tensor) -> bool:
    """Whether no gradient of a value that PyTorch computed can be asked for any more: a backward pass has freed what each way back from it
    needs first. Where it has freed what others of them need behind that, as of a part that two losses have, some can."""
    pending, seen, freed = [value.grad_fn], set[object](), False
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        saved = saved_by(node)
        if saved:
            return False
        if saved is None:
            freed = True
            continue
        pending += [each for each, _ in node.next_functions]
    return freed
