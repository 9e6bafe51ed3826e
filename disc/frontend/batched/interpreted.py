"""A model whose skeleton the runtime interprets in the process that learnt it: `model.batch` runs no Python then. It is the same code, with
the same proof, as of a saved model; where it cannot tell what Python would do, for instances of another form, for a block that is not
compiled, for an error, the model's code runs."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from types import FunctionType
from typing import Any, cast

import torch

from disc.artifact.skeletons import TENSOR
from disc.frontend.batched.facts import TABLES
from disc.frontend.batched.instance_types import is_named_tuple, odd_method
from disc.frontend.batched.launches import executable_of
from disc.frontend.batched.regions import Kind
from disc.frontend.batched.rows import RowClass, own_rows, row_class
from disc.frontend.batched.skeleton import Learnt, Skeleton
from disc.frontend.batched.skeleton_values import OBJECT, TEXT, Constants, NotSkeletal
from disc.ral import _ral
from disc.ral.block_programs import MOST_NODES
from disc.ral.plain_objects import Getter, NotPlain, check_plain
from disc.ral.schedule import Schedule, ScheduledBlock
from disc.ral.skeletal import native_skeleton

_NOTHING = {"kind": "nothing", "name": "", "domain": 0, "inner": 0, "table": 0, "parts": [], "tuple": False}
MOST_TIMES = 32  # that a skeleton is made anew for what was not known before
MOST_ODD = 64  # instances that are kept, to learn from them
IN_VAIN = 8  # batches in a row
Ran = tuple[list[object], dict[int, str], int]  # results, why instances have none, launches


class Interpreted:
    """kinds: that it calls. Results are made as the model's code makes them: new lists and tensors, the instances' own nodes."""

    def __init__(self, model: Learnt, examples: Sequence[Any], modules: Iterable[torch.nn.Module]) -> None:
        """examples: instances that ran. modules: whose attributes are watched anyway. Raises NotSkeletal."""
        skeleton = Skeleton(model, examples, _is_compiled, partial=True)
        if not skeleton.programs:
            raise NotSkeletal("no block of it is compiled", new=True)
        found = skeleton.instances
        if found.slots.converted is not None:
            raise NotSkeletal(found.slots.converted)
        record = skeleton.record([_NOTHING])  # pyright: ignore[reportArgumentType]
        self._slots = record["slots"]
        self.kinds, self._classes = skeleton.kinds, skeleton.tables
        self._native = native_skeleton(record)
        self._schedule = Schedule([self._block(each) for each in skeleton.programs])
        self._objects = [each.value for each in skeleton.constants.objects]
        self._texts = record["texts"]
        asked = skeleton.lowering.asked
        self._watched = _watched(skeleton.constants, {id(each) for each in modules}, skeleton.lowering.names)
        self._read = [*skeleton.lowering.read, *_of_classes(skeleton.constants, skeleton.lowering.names, asked)]
        self._names = [*found.attributes, *found.methods]
        self._known = {kind: self._signature(kind) for kind in found.classes}
        fields = {each["name"]: each["fields"] for each in record["nodes"]}
        if len(fields) < len(found.classes):
            raise NotSkeletal("instances are of several classes of one name")
        for kind in found.classes:
            self._check(kind)
        self._reader = _ral.InstanceReader(
            [
                (
                    kind,
                    [(str(name), cast("int", slot), cast("int", has)) for name, slot, has in fields[kind.__name__]],
                    found.methods_of(kind),
                )
                for kind in found.classes
            ],
            torch.Tensor,
            self._check,
            [[self._choice(*each) for each in slot.get("choices", [])] for slot in record["slots"]],
        )

    def holds(self) -> bool:
        """Whether the objects that became constants are as they were."""
        return self._watched.hold() and all(getattr(owner, name, None) is value for owner, name, value in self._read)

    def run(self, instances: Sequence[object]) -> Ran | str:
        """What instances give; or why they are others than those that it was made for."""
        try:
            ran = self._native.run_objects(
                self._schedule.native, self._reader, list(instances), MOST_NODES, self._stacked, self._fetched, self._objects
            )
        except NotPlain as reason:
            return str(reason)
        if isinstance(ran, str):
            return ran
        results, failed, launches = ran
        for number, count in launches:
            sizes = self.kinds[number].sizes
            sizes[count] = sizes.get(count, 0) + 1
        return results, failed, len(launches)

    def refuses(self, instance: object) -> str:
        """Why an instance is of another form; empty for one that is not."""
        try:
            return self._native.refuses(self._reader, [instance], MOST_NODES, self._stacked)
        except NotPlain as reason:
            return str(reason)

    def _choice(self, tag: int, number: int) -> object:
        return self._texts[number] if tag == TEXT else self._objects[number]

    def _block(self, kind: Kind) -> ScheduledBlock:
        executable, number = executable_of(kind), self._classes.index
        assert executable is not None
        return ScheduledBlock(executable, tuple(map(number, kind.rows)), kind.values, tuple(map(number, kind.results)))

    def _stacked(self, slot: int, tensors: list[torch.Tensor | None]) -> torch.Tensor | None:
        """The tensors of a slot as bytes, [n, bytes]; None where they are of another form. A node whose class has none holds None there."""
        assert self._slots[slot]["kind"] == TENSOR
        kind = self._classes[self._slots[slot]["table"]]
        if any(each is not None and not _is_row(each, kind) for each in tensors):
            return None
        nothing = torch.zeros(kind.shape, dtype=kind.dtype)
        whole = torch.stack([nothing if each is None else each.detach() for each in tensors])
        return whole.reshape(len(tensors), -1).view(torch.uint8) if nothing.numel() else torch.empty((len(tensors), 0), dtype=torch.uint8)

    def _fetched(self, table: int, data: Any) -> list[torch.Tensor]:
        """The tensors whose bytes, [n, bytes], are given."""
        kind, rows = self._classes[table], torch.from_numpy(data)
        shape = (len(rows), *kind.shape)
        whole = rows.view(kind.dtype).reshape(shape) if rows.shape[1] else torch.empty(shape, dtype=kind.dtype)
        return own_rows(whole)

    # --- classes of nodes -------------------------------------------------------------------------------------------------------

    def _signature(self, kind: type) -> tuple[object, ...]:
        """What was made of a class: its properties, its other code, and what its objects do besides."""
        held = [inspect.getattr_static(kind, name, None) for name in self._names]
        return *(each if isinstance(each, property | FunctionType) else None for each in held), odd_method(kind)

    def _check(self, kind: type) -> dict[str, Getter]:
        """As `check_plain` of what a class's objects hold. Raises NotPlain where attributes are found otherwise than when this was made."""
        if self._known.get(kind) != self._signature(kind):
            raise NotPlain(f"{kind.__name__} has other properties than it had")
        if kind is dict:
            return {}
        held = {name: inspect.getattr_static(kind, name, None) for name in self._names}
        fields: tuple[str, ...] = kind._fields if is_named_tuple(kind) else ()  # pyright: ignore[reportAttributeAccessIssue]
        return check_plain(kind, {name for name, each in held.items() if not isinstance(each, property | FunctionType)} - {*fields})


def _is_compiled(kind: Kind) -> bool:
    return executable_of(kind) is not None and kind.lifted is not None and not kind.lifted.takes_weights


def _is_row(tensor: torch.Tensor, kind: RowClass) -> bool:
    return row_class(tensor) is kind and tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_neg()


# --- constants ----------------------------------------------------------------------------------------------------------------------


def _watched(constants: Constants, modules: set[int], names: dict[str, int]) -> _ral.Facts:
    """The objects that became constants, with the attributes that code asks for, but for modules that are watched anyway."""
    facts = _ral.Facts()
    for each in constants.objects:
        value = each.value
        if each.like != OBJECT:
            facts.add_sequence(value)
        elif each.keys is not None:
            facts.add_dict(value, set(value))
        elif id(value) not in modules and isinstance(getattr(value, "__dict__", None), dict):
            facts.add_dict(vars(value), {*names} & vars(value).keys())
            for table in TABLES if isinstance(value, torch.nn.Module) else ():
                held = getattr(value, table)
                facts.add_dict(held, set(held))
    return facts


def _of_classes(constants: Constants, names: dict[str, int], absent: set[str]) -> list[tuple[Any, str, object]]:
    """Attributes that objects have from their classes, and those of classes: (class, name, value); None for those of `absent` that there
    are none of."""
    found: list[tuple[Any, str, object]] = []
    for each in constants.objects:
        is_class = isinstance(each.value, type)
        owner, own = each.value if is_class else type(each.value), {} if is_class else getattr(each.value, "__dict__", {})
        asked = [name for name, number in names.items() if number in each.attributes and name not in own and hasattr(owner, name)]
        found += [(owner, name, getattr(owner, name)) for name in asked]
        found += [(owner, name, None) for name in absent if not hasattr(owner, name)]
    return found


# --- when -----------------------------------------------------------------------------------------------------------------------------


class Interpreter:
    """When a model's skeleton is interpreted. reason: why it is not. left: why the code ran an instance of the last batch that was."""

    def __init__(self) -> None:
        self.reason: str | None = "nothing has run yet"
        self.left: str | None = None
        self._made: Interpreted | None = None
        self._tried: object = None
        self._times = 0  # that it was made
        self._in_vain = 0  # batches in a row of which Python had to run most instances
        self._odd: list[object] = []  # instances of other forms that the code has results for
        self._shown: Sequence[object] = []  # what the last skeleton was made for
        self._refused: dict[int, object] = {}  # of the last batch, by number: instances of other forms

    @property
    def runs(self) -> bool:
        """Whether the skeleton takes the code's place."""
        return self._made is not None

    def forget(self) -> None:
        """The blocks are others from now on."""
        self._made = None

    def prepare(self, model: Learnt, examples: Sequence[object], modules: Sequence[torch.nn.Module], known: object) -> bool:
        """Makes the skeleton, if that was not tried with what is known now. Whether something of the model may have been learnt."""
        if self._made is not None and not self._made.holds():
            self._made = self._tried = None
        if self._made is not None or known == self._tried or self._times >= MOST_TIMES or self._in_vain >= IN_VAIN:
            return False
        self._tried = known
        if self._odd and not self._make(model, [*examples, *self._odd], modules):
            self._odd = []  # which no skeleton with the others has
        if self._made is None and not self._make(model, examples, modules) and self._shown:
            self._make(model, self._shown, modules)
        return True

    def _make(self, model: Learnt, examples: Sequence[object], modules: Sequence[torch.nn.Module]) -> bool:
        try:
            self._made = Interpreted(model, examples, modules)
        except (NotSkeletal, NotPlain) as reason:
            self.reason = str(reason)
            return False
        self.reason, self._shown = None, examples
        self._times += 1
        return True

    def run(self, instances: Sequence[object]) -> Ran | None:
        """None where the code has to run for all instances. Those of another form than that it was made for have no results."""
        if self._made is None:
            return None
        ran = self._made.run(instances)
        self.left = None
        if not isinstance(ran, str):
            self._refused = {}
            return ran
        reasons = {number: why for number, each in enumerate(instances) if (why := self._made.refuses(each))}
        others = [each for number, each in enumerate(instances) if number not in reasons]
        if reasons:
            ran = self._made.run(others) if others else ([], {}, 0)
        if isinstance(ran, str):
            self.reason, self._made, self._tried = ran, None, None
            return None
        self._refused = {number: instances[number] for number in reasons}
        return _merged(ran, reasons, len(instances))

    def judge(self, why: dict[int, str], failures: Collection[int], instances: int, learnt: bool) -> None:
        """After Python ran the instances that had no result: why, by their numbers; failures: which of them have none in Python either."""
        right = [number for number in why if number not in failures]
        self.left = why[right[0]] if right else None
        odd = [self._refused[number] for number in right if number in self._refused] if self._times < MOST_TIMES else []
        if odd or (right and learnt):
            self._odd = [*self._odd, *odd][-MOST_ODD:]
            self._made = self._tried = None
        self._in_vain = self._in_vain + 1 if 2 * len(right) > instances else 0
        if self._in_vain >= IN_VAIN:
            self.reason, self._made = next(iter(why.values())), None


def _merged(ran: Ran, reasons: dict[int, str], count: int) -> Ran:
    """The results of a batch without the instances of `reasons` as those of the whole one."""
    results, why, launches = ran
    numbers = [number for number in range(count) if number not in reasons]
    whole: list[object] = [None] * count
    for number, result in zip(numbers, results, strict=True):
        whole[number] = result
    return whole, dict(sorted({**reasons, **{numbers[place]: each for place, each in why.items()}}.items())), launches
