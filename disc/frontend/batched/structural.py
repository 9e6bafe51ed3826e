"""Models whose recursion follows their instances alone: what is called depends on attributes of the instance, never on values.

    if tree.is_leaf:                                 kind 0: tree.is_leaf is true; block 0 of the column `word`
        return self.leaf(tree.word)          ─►      kind 1: it is false; block 1 of the results of `left` and `right`
    return self.node(self(tree.left), self(tree.right))

Such a batch is computed without running the model's code: a walk in C++ finds the nodes, numbers them by height, and one native call runs
their blocks (CORTEX, section 4). The paths are found by running the model's rewritten code on a stand-in for an instance, whose attributes
are questions that are answered both ways. `may_be_structural` says of which code that shows all that it does.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from disc.errors import DiscError
from disc.frontend.batched.classify import Classes
from disc.frontend.batched.emit import CALL
from disc.frontend.batched.functions import Function
from disc.frontend.batched.regions import INDEX, Kind, Region
from disc.frontend.batched.rows import Row, RowClass, own_rows
from disc.frontend.batched.steps import Branch, Compute, Return, Seen, Step, Unpack, defines, walk
from disc.ral.plain_objects import NotPlain, check_plain
from disc.ral.schedule import NodeKind, Question, Schedule, ScheduledBlock, Structures

if TYPE_CHECKING:
    from disc.ral.executable import Executable

MOST_PATHS = 16
LONGEST = 16  # questions on a path
Find = Callable[[Any], Function | None]
Asked = Sequence[tuple[str, bool, bool]]  # (attribute, whether for None, answer)


class NotStructural(Exception):
    """The recursion is not found to be one that instances alone decide."""


class _NotYet(NotStructural):
    """What a path needs was not found yet: the structure of results, or a compiled block."""


# --- which code ---------------------------------------------------------------------------------------------------------------


def may_be_structural(function: Function) -> frozenset[str] | None:
    """The attributes of the instance that are compared with None; None where the code does more than ask for attributes of its last
    parameter, call itself and compute tensors, so that a stand-in for the parameter would not show what it does."""
    code = _code_of(function)
    return frozenset(code.none) if code is not None and all(map(code.allows, code.steps)) else None


def refused_line(function: Function) -> tuple[int, bool]:
    """The line of the first step that is not followed, and whether it only has not run yet; 0 where it is no step."""
    if function.refusal is not None:
        return function.refusal.line, False
    code = _code_of(function)
    refused = next((each for each in code.steps if not code.allows(each)), None) if code is not None else None
    return (0, False) if code is None or refused is None else (refused.line, code.classes.of(refused) == "new")


def _code_of(function: Function) -> _Code | None:
    if function.source is None:
        return None
    arguments = function.source.arguments
    given = [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults or not given:
        return None
    steps = list(walk(function.source.steps))
    classes = Classes(function.source.steps, lambda each: isinstance(each, Function) and each.is_straight())
    return _Code(given[-1].arg, classes, function, steps)


@dataclass
class _Code:
    """attributes: names bound to attributes of the parameter → which; answers: names that are true or false by them; none: the attributes
    that are compared with None. Without loops a name is bound before it is read in the order of the source."""

    parameter: str
    classes: Classes
    function: Function
    steps: list[Step]
    attributes: dict[str, set[str]] = field(default_factory=dict)
    answers: set[str] = field(default_factory=set)
    none: set[str] = field(default_factory=set)

    def allows(self, step: Step) -> bool:
        """Whether the step is of the kinds that are followed; steps come in the order of the source."""
        if self.parameter in defines(step):
            return False
        if isinstance(step, Return | Unpack):
            return self.classes.of(step) in ("control", "glue", "tensor")
        if isinstance(step, Branch):
            return self.classes.of(step) == "control" and isinstance(step.test, ast.Name) and step.test.id in self.answers
        if not isinstance(step, Compute):
            return False
        kind, value = self.classes.of(step), step.value
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == self.parameter:
            self.attributes.setdefault(step.target, set()).add(value.attr)
            self.answers.add(step.target)
            return kind == "plain" and not value.attr.startswith("__")
        if kind == "call":
            return step.seen.callees == {self.function} and step.seen.categories == {"function"}
        if kind == "plain":
            self.answers.add(step.target)
            return self._is_answer(value)
        if step.kind == "move" and isinstance(value, ast.Name) and value.id in self.answers:
            self.answers.add(step.target)
            self.attributes.setdefault(step.target, set()).update(self.attributes.get(value.id, ()))
        return kind in ("tensor", "glue", "path") and self.parameter not in _names(value)

    def _is_answer(self, value: ast.expr) -> bool:
        """`not x`, and `x is None` of an attribute."""
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not):
            return isinstance(value.operand, ast.Name) and value.operand.id in self.answers
        if not isinstance(value, ast.Compare) or not isinstance(value.ops[0], ast.Is | ast.IsNot) or not isinstance(value.left, ast.Name):
            return False
        other = value.comparators[0]
        if value.left.id not in self.attributes or not isinstance(other, ast.Constant) or other.value is not None:
            return False
        self.none |= self.attributes[value.left.id]
        return True


def _names(value: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}


# --- its paths ----------------------------------------------------------------------------------------------------------------


class _Attribute:
    """The value of an attribute of the instance; whether it is true is a question."""

    __slots__ = ("_disc_name", "_disc_path")

    def __init__(self, name: str, path: _Path) -> None:
        self._disc_name, self._disc_path = name, path

    def __bool__(self) -> bool:
        return self._disc_path.answer(self._disc_name, is_none=False)


class _Instance:
    """Stands for an instance."""

    __slots__ = ("_disc_path",)

    def __init__(self, path: _Path) -> None:
        self._disc_path = path

    def __getattr__(self, name: str) -> object:
        return self._disc_path.attribute(name)


@dataclass(frozen=True)
class _Call:
    """The one block of a path. rows: (attribute of the child, place among the rows of its result); columns: attributes that are its further
    numbers; result: what the path returns, with places among the block's results for rows."""

    region: Region
    key: tuple[object, ...]
    kind: Kind
    rows: tuple[tuple[str, int], ...]
    columns: tuple[str, ...]
    result: object


class _Path:
    """One run of the code, with answers given in advance. asked: (attribute, whether for None, answer)."""

    def __init__(self, search: _Search, answers: Sequence[bool]) -> None:
        self.asked: list[tuple[str, bool, bool]] = []
        self._search = search
        self._answers = answers
        self._known: dict[tuple[str, bool], bool] = {}
        self._attributes: dict[str, _Attribute] = {}
        self._children: dict[int, tuple[str, int]] = {}  # by identity of the row
        self._kept: list[object] = []  # so that identities stay
        self._call: tuple[Region, tuple[object, ...], Kind, tuple[tuple[str, int], ...], tuple[str, ...]] | None = None
        self._made: dict[int, int] = {}

    def run(self) -> _Call:
        """Raises NotStructural."""
        result = self._returned(self._search.root, (*self._search.owner, _Instance(self)))
        if self._call is None:
            raise NotStructural("a path computes nothing")
        call = _Call(*self._call, self._places(result))
        if set(self._attributes) - {name for name, _, _ in self.asked} - {name for name, _ in call.rows} - set(call.columns):
            raise NotStructural("it reads an attribute that nothing depends on")
        return call

    def _returned(self, function: Function, arguments: tuple[object, ...]) -> object:
        made = function.entry(self, *arguments)
        if not function.asks:
            return made
        value = None
        while True:
            try:
                request = made.send(value)
            except StopIteration as stop:
                return stop.value
            if request[0] != CALL:
                raise _NotYet("a step has not run yet")
            value = self._child(request[1], request[2], request[3])

    def answer(self, name: str, *, is_none: bool) -> bool:
        """Whether an attribute is true, or None."""
        known = self._known.get((name, is_none))
        if known is None:
            place = len(self.asked)
            if place == LONGEST:
                raise NotStructural("too many questions")
            known = self._known[name, is_none] = self._answers[place] if place < len(self._answers) else True
            self.asked.append((name, is_none, known))
        return known

    def others(self, given: int) -> list[list[bool]]:
        """The answers of paths that part from this one behind the first `given` questions."""
        return [[*(each for _, _, each in self.asked[:place]), False] for place in range(given, len(self.asked))]

    def attribute(self, name: str) -> object:
        if name in self._search.none and self.answer(name, is_none=True):
            return None
        return self._attributes.setdefault(name, _Attribute(name, self))

    def _child(self, callee: Any, arguments: tuple[object, ...], named: dict[str, object] | None) -> object:
        """The result of the call for a child."""
        owner = self._search.owner
        whole = (*owner, *arguments) if isinstance(callee, torch.nn.Module) or hasattr(callee, "__self__") else arguments
        same = len(whole) == len(owner) + 1 and all(one is other for one, other in zip(whole, owner, strict=False))
        bound = getattr(callee, "__self__", callee)
        if not same or named or (owner and bound is not owner[0]) or self._search.find(callee) is not self._search.root:
            raise NotStructural("it calls more than itself")
        child = whole[-1]
        if type(child) is not _Attribute:
            raise NotStructural("it calls itself with what is no attribute")
        if self._search.result is None:
            raise _NotYet("what it returns is not known")
        return self._filled(child._disc_name, self._search.result)

    def _filled(self, name: str, result: object) -> object:
        if isinstance(result, tuple):
            return tuple(self._filled(name, each) for each in cast("tuple[object, ...]", result))
        place = cast("int", result)
        row = Row(self._search.classes[place], cast("Any", self), 0)
        self._children[id(row)] = (name, place)
        self._kept.append(row)
        return row

    def region(self, region: Region, arguments: tuple[object, ...]) -> tuple[object, ...]:
        """Called by the code: straight-line tensor code."""
        if self._call is not None:
            raise NotStructural(f"a node computes more than one block: {region.name}")
        columns = tuple(each._disc_name for each in arguments if type(each) is _Attribute)
        given = [0 if type(each) is _Attribute else each for each in arguments]
        rows: list[Any] = []
        values: list[int] = []
        key = region.describe(given, rows, values)
        if len(columns) != len(values) or key.count(INDEX) != len(values) or any(id(row) not in self._children for row in rows):
            raise NotStructural("a block takes more than results and numbers of the instance")
        kind = region.kinds.get(key)
        if kind is None or kind.lifted is None:
            raise _NotYet("a block is not compiled")
        made = [Row(each, cast("Any", self), 1) for each in kind.results]
        self._made = {id(row): place for place, row in enumerate(made)}
        self._kept.append(made)
        self._call = (region, key, kind, tuple(self._children[id(row)] for row in rows), columns)
        return kind.outputs(made, rows, given)

    def changing(self, value: object) -> None:
        """Called by the code before it changes something in place."""
        raise NotStructural("it changes something in place")

    def _places(self, result: object) -> object:
        if type(result) is tuple:
            return tuple(self._places(each) for each in cast("tuple[object, ...]", result))
        if type(result) is not Row or id(result) not in self._made:
            raise NotStructural("it returns more than what its blocks computed")
        return self._made[id(result)]


@dataclass
class _Search:
    """root: the function; owner: the arguments before the instance; none: attributes that are compared with None. result: what the function
    returns, with places among the results of its blocks for rows; classes: the kinds of these."""

    root: Function
    owner: tuple[object, ...]
    find: Find
    none: frozenset[str]
    result: object = None
    classes: tuple[RowClass, ...] = ()

    def paths(self) -> list[tuple[list[tuple[str, bool, bool]], _Call]]:
        """Every path with its answers. Raises NotStructural."""
        found: list[tuple[list[tuple[str, bool, bool]], _Call]] = []
        waiting: list[list[bool]] = [[]]
        later: list[list[bool]] = []
        while waiting or later:
            if not waiting:
                if self.result is None:
                    raise _NotYet("no path ends")
                waiting, later = later, []
            answers = waiting.pop()
            path = _Path(self, answers)
            try:
                call = path.run()
            except _NotYet:
                if self.result is not None:
                    raise
                waiting += path.others(len(answers))
                later.append([each for _, _, each in path.asked])
                continue
            waiting += path.others(len(answers))
            self._agree(call)
            found.append((path.asked, call))
            if len(found) > MOST_PATHS:
                raise NotStructural("too many paths")
        return found

    def _agree(self, call: _Call) -> None:
        """All paths return the same."""
        if self.result is None:
            self.result, self.classes = call.result, call.kind.results
        if self.result != call.result or self.classes != call.kind.results or sorted(_leaves(call.result)) != [*range(len(self.classes))]:
            raise NotStructural("paths return different things")


def _leaves(result: object) -> Iterator[int]:
    if isinstance(result, tuple):
        for each in cast("tuple[object, ...]", result):
            yield from _leaves(each)
    else:
        yield cast("int", result)


# --- running ------------------------------------------------------------------------------------------------------------------


UNKNOWN = (
    DiscError,
    NotPlain,
    AttributeError,
    TypeError,
    ValueError,
    RecursionError,
)  # an instance fails, or the walk knows none of its kind


@dataclass(frozen=True)
class Walked:
    """What a batch is to compute, as `Structures.walk` finds it. batches: i64 [n, 3], the path, how many nodes, where their numbers begin
    in `indices`. rows: i64 [instances, results]. used: rows of each table."""

    batches: np.ndarray
    indices: np.ndarray
    rows: np.ndarray
    used: list[int]


class Recursion:
    """A model whose recursion instances alone decide, with a compiled block for each kind of node."""

    def __init__(self, search: _Search, paths: Sequence[tuple[list[tuple[str, bool, bool]], _Call]]) -> None:
        self.paths = paths
        self.result, self.results = search.result, search.classes
        self._changes = Seen.changes
        self._calls = [call for _, call in paths]
        self._kinds = [call.kind for call in self._calls]
        self._classes = list(dict.fromkeys(each for kind in self._kinds for each in (*kind.rows, *kind.results)))
        self._tables = [torch.empty((0, *each.shape), dtype=each.dtype) for each in self._classes]
        number = {each: place for place, each in enumerate(self._classes)}
        self._places = [number[each] for each in self.results]
        blocks = [ScheduledBlock(_executable(kind), _numbers(kind.rows, number), kind.values, tuple(self._places)) for kind in self._kinds]
        nodes = [
            NodeKind(place, {name: name for name, _ in call.rows}, {name: name for name in call.columns}, call.rows, call.columns)
            for place, call in enumerate(self._calls)
        ]
        read = {name for asked, _ in paths for name, _, _ in asked} | {name for each in nodes for name in (*each.fields, *each.columns)}
        self._schedule = Schedule(blocks)
        self.question = _question([(asked, place) for place, (asked, _) in enumerate(paths)])
        self._structures = Structures(self._schedule, nodes, len(self.results), self.question, lambda kind: check_plain(kind, read))

    @property
    def executables(self) -> list[Executable]:
        """The program of each path."""
        return [_executable(kind) for kind in self._kinds]

    def holds(self) -> bool:
        """Whether what it was made of is still so."""
        return self._changes == Seen.changes and all(call.region.kinds.get(call.key) is call.kind for call in self._calls)

    def run(self, instances: Sequence[object]) -> tuple[list[object], int] | None:
        """The results, and how many launches they took; None where the model's code has to run: an instance fails, or is none that the walk
        knows."""
        try:
            walked = self.arranged(instances)
            self._reserve(walked.used)
            self._schedule.run(self._tables, [0] * len(self._classes), walked.batches, walked.indices)
        except UNKNOWN:
            return None
        self.count(walked)
        columns = [self._rows(place, walked.rows[:, number]) for number, place in enumerate(self._places)]
        return [_filled(self.result, each) for each in zip(*columns, strict=True)], len(walked.batches)

    def arranged(self, instances: Sequence[object]) -> Walked:
        """What a batch is to compute. Raises one of `UNKNOWN`."""
        return Walked(*self._structures.walk(instances, [0] * len(self._classes)))

    def count(self, walked: Walked) -> None:
        """Notes the launches of a batch."""
        for block, count in zip(walked.batches[:, 0].tolist(), walked.batches[:, 1].tolist(), strict=True):
            sizes = self._kinds[block].sizes
            sizes[count] = sizes.get(count, 0) + 1

    @property
    def kinds(self) -> list[Kind]:
        """The block of each path."""
        return self._kinds

    @property
    def classes(self) -> list[RowClass]:
        """Those of the tables."""
        return self._classes

    @property
    def filled(self) -> Callable[[Sequence[torch.Tensor]], object]:
        """Makes a result of its tensors, those of `results`."""
        return lambda values: _filled(self.result, values)

    def _reserve(self, used: Sequence[int]) -> None:
        """Tables are kept from batch to batch: what is handed out is copied."""
        for place, (count, each) in enumerate(zip(used, self._classes, strict=True)):
            if self._tables[place].shape[0] < count:
                self._tables[place] = torch.empty((count + count // 4, *each.shape), dtype=each.dtype)

    def _rows(self, table: int, rows: np.ndarray) -> list[torch.Tensor]:
        found = self._tables[table].index_select(0, torch.from_numpy(np.ascontiguousarray(rows)))
        return own_rows(found)


def find_recursion(root: Function, owner: tuple[object, ...], find: Find) -> Recursion | str:
    """The recursion of a function that is called with `owner` and an instance; or why it is not known to be one that instances decide."""
    none = may_be_structural(root)
    if none is None:
        return f"{root.name} does more than to look at attributes, call itself and compute"
    search = _Search(root, owner, find, none)
    try:
        return Recursion(search, search.paths())
    except NotStructural as reason:
        return f"{root.name}: {reason}"
    except Exception as error:  # the code asks more of the stand-in than it can show
        return f"{root.name}: {type(error).__name__}: {error}"


def _numbers(classes: Sequence[RowClass], number: dict[RowClass, int]) -> tuple[int, ...]:
    return tuple(number[each] for each in classes)


def _executable(kind: Kind) -> Executable:
    found = getattr(kind.lifted, "executable", None)
    if found is None:
        raise NotStructural("a block is no compiled program")
    return found


def _question(paths: Sequence[tuple[list[tuple[str, bool, bool]], int]], depth: int = 0) -> Question | int:
    """Paths by their answers, as questions."""
    asked, number = paths[0]
    if depth == len(asked):
        return number
    name, is_none, _ = asked[depth]
    sides = [[each for each in paths if each[0][depth][2] is answer] for answer in (True, False)]
    return Question(name, is_none, _question(sides[0], depth + 1), _question(sides[1], depth + 1))


def _filled(result: object, values: Sequence[torch.Tensor]) -> object:
    if isinstance(result, tuple):
        return tuple(_filled(each, values) for each in cast("tuple[object, ...]", result))
    return values[cast("int", result)]
