"""What a function of a model is made of: steps with atoms (names and constants) as operands, between branches, loops and calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar


class Seen:
    """What running showed of one step. kinds: of the value that decides (`values.kind_of`); empty: it has not run yet.

    categories: of a call's callee; callees: the user's functions among them; bound: whether these came with their first argument;
    containers: an argument was a container of tensors.
    """

    __slots__ = ("bound", "callees", "categories", "containers", "kinds")
    changes: ClassVar[int] = 0  # grows whenever something new is seen anywhere

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.categories: set[str] = set()
        self.callees: set[object] = set()
        self.bound: set[bool] = set()
        self.containers = False

    def note(self, *kinds: str) -> None:
        """Adds kinds."""
        if not self.kinds.issuperset(kinds):
            self.kinds.update(kinds)
            Seen.changes += 1

    def note_call(self, category: str, callee: object = None, *, containers: bool = False) -> None:
        """Adds what a call was."""
        if category not in self.categories or (callee is not None and callee not in self.callees) or containers > self.containers:
            self.categories.add(category)
            self.callees |= {callee} if callee is not None else set()
            self.containers = self.containers or containers
            Seen.changes += 1

    def learnt(self) -> bool:
        return bool(self.kinds or self.categories)

    def only(self, *kinds: str) -> bool:
        return bool(self.kinds) and self.kinds <= set(kinds)


@dataclass(eq=False)
class Step:
    """line: of the user's file."""

    line: int
    seen: Seen = field(default_factory=Seen, kw_only=True)


@dataclass(eq=False)
class Compute(Step):
    """`target = value`. kind: "call", "attribute", "item", "operator", "display", "move", "inplace" (`target += value`)."""

    kind: str
    target: str
    value: ast.expr
    operator: ast.operator | None = None


@dataclass(eq=False)
class Unpack(Step):
    """`(a, (b, c)) = value`."""

    targets: ast.expr
    value: ast.expr


@dataclass(eq=False)
class Effect(Step):
    """A statement that is run as it is: `container[index] = value`, `del name`, `import`."""

    statement: ast.stmt


@dataclass(eq=False)
class Branch(Step):
    test: ast.expr
    body: list[Step]
    otherwise: list[Step]


@dataclass(eq=False)
class Loop(Step):
    """`for target in items`; items None: without an end but `break`."""

    target: str
    items: ast.expr | None
    body: list[Step]
    otherwise: list[Step]


@dataclass(eq=False)
class Return(Step):
    value: ast.expr


@dataclass(eq=False)
class Jump(Step):
    """`break` or `continue`."""

    statement: ast.stmt


@dataclass(eq=False)
class Raise(Step):
    statement: ast.Raise


def walk(steps: Sequence[Step]) -> Iterator[Step]:
    """All steps, those inside of branches and loops too."""
    for step in steps:
        yield step
        if isinstance(step, Branch | Loop):
            yield from walk(step.body)
            yield from walk(step.otherwise)


def names(node: ast.AST | None) -> set[str]:
    """The names that an expression or statement reads or writes."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if node is not None else set()


def uses(step: Step) -> set[str]:
    """The names that the step itself reads; for branches and loops: what decides."""
    if isinstance(step, Compute):
        return names(step.value) | ({step.target} if step.kind == "inplace" else set())
    if isinstance(step, Unpack | Return):
        return names(step.value)
    if isinstance(step, Effect | Raise):
        return names(step.statement)
    if isinstance(step, Branch):
        return names(step.test)
    return names(step.items) if isinstance(step, Loop) else set()


def defines(step: Step) -> set[str]:
    """The names that the step itself binds."""
    if isinstance(step, Compute):
        return {step.target}
    if isinstance(step, Unpack):
        return names(step.targets)
    if isinstance(step, Loop) and step.items is not None:
        return {step.target}
    if isinstance(step, Effect):
        bound = {alias.asname or alias.name.partition(".")[0] for alias in getattr(step.statement, "names", ())}
        return bound | {each.id for each in ast.walk(step.statement) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}
    return set()


def live_after(steps: Sequence[Step]) -> dict[Step, set[str]]:
    """For each step the names whose values are read after it (Muchnick, Advanced Compiler Design, 14.1.3), inside loops by repetition."""
    found: dict[Step, set[str]] = {}

    def backward(block: Sequence[Step], live: set[str], leave: set[str], again: set[str]) -> set[str]:
        for step in reversed(block):
            if isinstance(step, Jump):
                live = set(leave if isinstance(step.statement, ast.Break) else again)
            elif isinstance(step, Return | Raise):
                live = set()
            found[step] = set(live)
            if isinstance(step, Branch):
                live = backward(step.body, live, leave, again) | backward(step.otherwise, live, leave, again)
            elif isinstance(step, Loop):
                live = loop(step, live, leave, again)
            live = (live - defines(step)) | uses(step)
        return live

    def loop(step: Loop, live: set[str], leave: set[str], again: set[str]) -> set[str]:
        ended = backward(step.otherwise, live, leave, again)
        head = ended if step.items is not None else set[str]()
        while True:
            entered = backward(step.body, head, live, head)
            entered = entered - {step.target} if step.items is not None else entered
            if entered <= head:
                return head
            head = head | entered

    backward(steps, set(), set(), set())
    return found
