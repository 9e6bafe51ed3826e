"""Runs the instances of a batch: each on a stack of generators of its own, until it needs a value; then what the values need is computed
for all that wait (ACROBAT 4.2, without fibers)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any, Protocol, TypeVar

import torch

from disc.errors import AliasError, StructureError
from disc.frontend.batched.cycles import cycle, line_of
from disc.frontend.batched.emit import CALL, READ
from disc.frontend.batched.functions import Function
from disc.frontend.batched.instances import CASTS, Frame, Instance, as_read, run_plain
from disc.frontend.batched.keys import Key, is_fixed, role_of
from disc.frontend.batched.members import Members
from disc.frontend.batched.random_state import random_state, restore, same_state
from disc.frontend.batched.recorder import Recorder
from disc.frontend.batched.regions import NotRegular, Region
from disc.frontend.batched.rows import Row, containers, settled
from disc.frontend.batched.steps import Seen
from disc.frontend.batched.values import FRESH, category_of, data_category, holds_tensors, kind_of, unwrapped
from disc.ral import _ral

SUSPICIOUS = 1 << 10  # calls inside of each other: at this depth and each time it doubles they are searched for a cycle
DEEPEST = 1 << 20  # which only a structure without an end reaches
_RUNNING = object()  # in the memory of results: the call has begun


_Callee = tuple[Function, tuple[object, ...], object]  # the function, its arguments before those of the call, and who is called
_CHANGEABLE = (list, dict, set, deque, bytearray, Iterator)
Container = TypeVar("Container")


class _Needs(Exception):
    """line: "file:line" of the user's code that asked for it, once that is known."""

    def __init__(self, reason: str, line: str = "") -> None:
        super().__init__(reason)
        self.line = line

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.line})" if self.line else super().__str__()


class NeedsOrder(_Needs):
    """An instance is about to do what may change or read more than itself."""


class NeedsPython(_Needs):
    """An instance changes in place what blocks and PyTorch would see differently."""


class Owner(Protocol):
    """The model whose instances run. members: how it is called for one."""

    members: Members

    def find(self, callee: Any) -> Function | None:
        """The user's function that a call of `callee` runs; None for others."""
        ...

    def note(self, reason: str, line: str) -> None:
        """Notes what runs in Python, why, and the "file:line"."""
        ...

    def refresh(self) -> None:
        """Writes functions anew where more was learnt."""
        ...

    def check_facts(self) -> None:
        """Forgets all blocks where something that they were made with has changed."""
        ...

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether blocks were made with a tensor of the same memory."""
        ...


class Driver:
    """One call of `batch`. ordered: instances run one after another, as something in the model may depend on their order."""

    def __init__(self, recorder: Recorder, model: Owner, root: Function, *, ordered: bool) -> None:
        self._recorder = recorder
        self._model = model
        self._root = root
        self._ordered = ordered
        self._current: Instance | None = None
        self._own: dict[int, object] = {}  # containers that the model made, by identity
        self._foreign: dict[int, object] = {}  # and others that it changes
        recorder.before_change = self._before_change
        recorder.missed, recorder.kept = self._region, self._own_parts
        self.region = recorder.region  # called by the users' functions, as they are rewritten
        self._memory: dict[Key, tuple[object, ...]] = {}
        self._callees: dict[object, _Callee] = {}  # by identity, of the function and of what it is bound to
        self._roles: dict[type, int] = {}
        self._kept: list[object] = []  # what keys name by identity lives as long as they

    def run(self, instances: Sequence[Instance]) -> tuple[str | None, str | None]:
        """Runs all. Returns why they had to be ordered, and why Python has to run the model, where that was found out."""
        try:
            return self._run(instances)
        finally:
            self._recorder.close()

    def _run(self, instances: Sequence[Instance]) -> tuple[str | None, str | None]:
        first, why = 0, None
        if not self._ordered:
            first, why = self._together(instances)
        self._ordered = True
        for instance in instances[first:]:
            instance.restart()
            self._memory.clear()
            try:
                self._begin(instance)
                while not instance.done:
                    self._answer([instance])
                    self._advance(instance)
                self._finish_foreign(instance)
            except NeedsPython as reason:
                self._recorder.flush()
                for each in instances[instance.number :]:
                    run_plain(each, self._model.members.call)
                return why, str(reason)
        self._recorder.flush()
        return why, None

    def _finish_foreign(self, instance: Instance) -> None:
        try:
            self._settle_foreign()
        except Exception as error:
            instance.error = instance.error or error
        self._foreign.clear()

    def _together(self, instances: Sequence[Instance]) -> tuple[int, str | None]:
        """Runs the instances side by side; the first that has to wait for those before it, and why."""
        limit, why = len(instances), None
        for instance in instances:
            if instance.number >= limit:
                break
            try:
                self._begin(instance)
            except NeedsOrder as order:
                limit, why = instance.number, str(order)
        while True:
            waiting = [each for each in instances[:limit] if not each.done]
            if not waiting:
                return limit, why
            self._answer(waiting)
            for instance in waiting:
                try:
                    if instance.number < limit:
                        self._advance(instance)
                except NeedsOrder as order:
                    limit, why = instance.number, str(order)

    def _answer(self, waiting: Sequence[Instance]) -> None:
        """Computes the values that instances wait for."""
        asked = [(each, *each.asked) for each in waiting if each.asked is not None]
        self._recorder.flush([row for _, _, row in asked])
        for (instance, how, row), value in zip(asked, self._recorder.values([row for _, _, row in asked]), strict=True):
            instance.asked = None
            if isinstance(value, Exception):
                instance.failure = value
                continue
            try:
                instance.sent = as_read(how, value, row)
            except Exception as error:
                instance.failure = error

    # --- one instance -----------------------------------------------------------------------------------------------------------

    def _begin(self, instance: Instance) -> None:
        self._model.refresh()
        self._current = instance
        try:
            value = self._enter(instance, self._root, instance.arguments, {})
        except (NeedsOrder, NeedsPython):
            raise
        except Exception as error:
            instance.error, instance.done = error, True
            return
        if instance.frames:
            self._advance(instance, value)
        else:
            instance.result, instance.done = value, True

    def _advance(self, instance: Instance, value: object = None) -> None:
        """Runs the instance until it waits for a value or is done."""
        self._current = instance
        frames = instance.frames
        if value is None:
            value, instance.sent = instance.sent, None
        while frames:
            generator = frames[-1].generator
            try:
                if instance.failure is not None:
                    failure, instance.failure = instance.failure, None
                    request = generator.throw(failure)
                else:
                    request = generator.send(value)
                value = None
                if request[0] == CALL:
                    value = self._call(instance, request[1], request[2], request[3])
                elif request[0] == READ:
                    value = self._read(instance, request[1], request[2])
                    if instance.asked is not None:
                        return
                else:
                    value = self._learn(instance, request[1], request[2], request[3], request[4])
            except StopIteration as stop:
                value = stop.value
                frame = frames.pop()
                if frame.key is not None:
                    self._keep(frame.key, value)
            except (NeedsOrder, NeedsPython) as needed:
                needed.line = needed.line or _line_in(frames[-1], needed)
                self._drop(instance)
                raise
            except Exception as error:
                if frames and frames[-1].generator.gi_frame is not None:  # raised by what was asked: the user's line is there
                    instance.failure = error
                    continue
                self._drop(instance)
                instance.error, instance.done = error, True
                return
        instance.result, instance.done = value, True

    def _drop(self, instance: Instance) -> None:
        """Forgets the calls that an instance leaves unfinished."""
        for frame in instance.frames:
            if frame.key is not None:
                self._memory.pop(frame.key, None)
        instance.frames.clear()

    def _read(self, instance: Instance, how: str, value: Any) -> object:
        """The value on the host; leaves `asked` set where it has to be computed."""
        if type(value) is not Row:
            return CASTS[how](value) if how in CASTS else getattr(value, how)()
        if value.value is not None:
            return as_read(how, value.value.tolist(), value)
        instance.asked = (how, value)
        return None

    def _call(self, instance: Instance, callee: Any, arguments: tuple[Any, ...], named: dict[str, Any] | None) -> object:
        known = self._callees.get((id(callee.__func__), id(callee.__self__)) if type(callee) is MethodType else id(callee))
        if known is not None or (known := self._known_callee(callee)) is not None:
            return self._enter(instance, known[0], known[1] + arguments, named or {})
        function, category = self._model.find(callee), category_of(callee)
        if category in ("unknown", "function"):
            return self._opaque(callee, function, arguments, named)
        if category == "changing":
            self.changing(_changed_by(callee, arguments))
        if category in ("pure", "changing", "maker", "sum"):
            return callee(*arguments, **(named or {}))
        return self._alone(callee, arguments, named)

    def _known_callee(self, callee: Any) -> _Callee | None:
        """The user's function that a call runs, which is known to the end of the batch, or until something may have changed more."""
        function = self._model.find(callee)
        if function is None or function.source is None:
            return None
        found = (function, _with_owner(unwrapped(callee), ()), callee)
        self._callees[(id(callee.__func__), id(callee.__self__)) if type(callee) is MethodType else id(callee)] = found
        return found

    def _check_facts(self) -> None:
        """Something ran that may have changed what is known."""
        self._callees.clear()
        self._model.check_facts()

    def _opaque(self, callee: Any, function: Function | None, arguments: tuple[Any, ...], named: dict[str, Any] | None) -> object:
        """A call of what may do anything: in the order of the instances, after all that was recorded before it."""
        self._order(callee, function)
        self._recorder.flush()
        self._touch()
        self._settle_foreign()
        result = self._alone(callee, arguments, named)
        self._check_facts()
        return result

    @staticmethod
    def _alone(callee: Any, arguments: tuple[Any, ...], named: dict[str, Any] | None) -> object:
        """A call of what knows no rows. Raises AliasError where it changes in place a tensor that other rows are views of."""
        shared: list[Row] = []

        def tensor(row: Row) -> torch.Tensor:
            shared.extend([row] if row.shared else [])
            return row.tensor()

        given = {name: settled(each, tensor) for name, each in (named or {}).items()}
        result = callee(*(settled(each, tensor) for each in arguments), **given)
        for row in shared:
            if row.tensor()._version != row.version:
                raise AliasError(f"{getattr(callee, '__qualname__', callee)} changes in place a tensor {row.kind} that has views")
        return result

    # --- changes in place -------------------------------------------------------------------------------------------------------

    def owned(self, container: Container, *operands: object) -> Container:
        """Notes a container that the model made: changing it changes nothing that others see. operands: what an operator or a slice made it
        of, which may give what there was before where these are more than lists and numbers."""
        if all(type(each) in (list, int, bool) for each in operands):
            self._own[id(container)] = container
        return container

    def changing(self, value: object) -> None:
        """Called before the user's code changes a value in place."""
        if isinstance(value, _CHANGEABLE):
            if id(value) not in self._own:
                if not self._ordered:
                    raise NeedsOrder(f"the model changes a {type(value).__name__} that it did not make")
                self._foreign[id(value)] = value
                self._touch()
        elif isinstance(value, Row):
            value.own()
        elif isinstance(value, torch.Tensor):
            self._in_order("changes a tensor in place")
            if self._recorder.shares(value) or self._model.is_weight(value):
                self._refuse_change(f"a tensor {list(value.shape)}")

    def _touch(self) -> None:
        assert self._current is not None
        self._current.touched = True

    def _settle_foreign(self) -> None:
        """Puts tensors in the place of rows in what is not the model's own."""
        for each in self._foreign.values():
            settled(each)

    def _before_change(self, row: Row) -> None:
        self._in_order("changes a tensor in place")
        if row.shared:
            self._refuse_change(f"a tensor {row.kind}")

    def _in_order(self, what: str) -> None:
        if not self._ordered:
            raise NeedsOrder(f"the model {what}")
        self._recorder.settle()

    def _refuse_change(self, what: str) -> None:
        assert self._current is not None
        reason = f"{what} is changed in place, which has views or is a weight"
        if self._current.touched:
            raise AliasError(f"{reason}, after a call that may have changed more: run such a model without `disc.batched`")
        raise NeedsPython(reason)

    def _order(self, callee: object, function: Function | None) -> None:
        """Notes what runs in Python; waits for the instances before this one, as it may change what they see."""
        name = getattr(callee, "__qualname__", type(callee).__name__)
        reason, line = f"{name} runs in Python: it is not known to have no effects", ""
        if function is not None and function.refusal is not None:
            where = function.refusal.line or function.original.__code__.co_firstlineno
            reason, line = f"{name} runs in Python: {function.refusal.reason}", f"{function.file}:{where}"
        self._model.note(reason, line)
        if not self._ordered:
            raise NeedsOrder(reason, line)

    def _enter(self, instance: Instance, function: Function, arguments: tuple[Any, ...], named: dict[str, Any]) -> object:
        """Calls one of the user's functions. Its result where that is known at once, else None, with a frame more."""
        if function.source is None:
            return self._opaque(function.original, function, arguments, named)
        key = self._key(function, arguments, named)
        if key is not None:
            known = self._memory.get(key)
            if known is not None and known[0] is _RUNNING:
                if known[1] is instance:
                    raise cycle([*_calls(instance, function), arguments]) or _endless(function, len(instance.frames))
                key = None
            elif known is not None:
                return known[0]
            else:
                self._memory[key] = (_RUNNING, instance)
        try:
            made = function.entry(self, *arguments, **named)
        except BaseException:
            if key is not None:
                self._memory.pop(key, None)
            raise
        if function.asks:
            depth = len(instance.frames)
            if depth >= SUSPICIOUS and depth.bit_count() == 1:
                found = cycle([*_calls(instance, function), arguments])
                if found is not None or depth >= DEEPEST:
                    raise found or _endless(function, depth)
            instance.frames.append(Frame(function, made, arguments, key))
            return None
        if key is not None:
            self._keep(key, made)
        return made

    def _key(self, function: Function, arguments: tuple[Any, ...], named: dict[str, Any]) -> Key | None:
        """What names a call whose result may be used again: structures by identity, constants by value; None where results differ."""
        if self._ordered or named or function.changes_arguments():
            return None
        key = _ral.call_key(function, arguments, self._roles, role_of)
        if key is not None:
            self._kept.append(arguments)
        return key

    def _keep(self, key: Key, value: object) -> None:
        if type(value) is Row or is_fixed(value):
            self._memory[key] = (value,)
        else:
            self._memory.pop(key, None)

    # --- regions ----------------------------------------------------------------------------------------------------------------

    def _region(self, region: Region, arguments: tuple[object, ...]) -> tuple[object, ...]:
        """A call of a region that is not known yet: recorded, or run at once in PyTorch where it is no block."""
        try:
            found = self._recorder.record(region, arguments)
            for each in found:
                if isinstance(each, list | dict):
                    self._own_parts(each, arguments)
            return found
        except NotRegular as refused:
            reason, refused_effects = refused.reason, refused.effects
            if refused.effects and not self._ordered:
                region.note_irregular(reason)
                raise NeedsOrder(f"{region.name}: {refused.reason}") from refused
        if refused_effects:
            self._recorder.flush()
            for each in arguments:
                if isinstance(each, torch.Tensor) and self._recorder.shares(each):
                    self._refuse_change(f"a tensor {list(each.shape)}")
        given = [settled(each, Row.own if refused_effects else Row.tensor) for each in arguments]  # may find that Python has to run it all
        if refused_effects:
            self._touch()
        found = region.code(*given)
        region.note_irregular(reason)  # that of an instance which fails in PyTorch, too, says nothing of others
        if refused_effects:
            self._check_facts()
        self._own_parts(found, arguments)
        return found

    def _own_parts(self, made: object, arguments: tuple[object, ...]) -> None:
        """Notes the containers in an output of a region which are not those of its arguments."""
        given = {id(each) for each in containers(arguments)}
        for each in containers((made,)):
            if id(each) not in given:
                self._own[id(each)] = each

    # --- learning ---------------------------------------------------------------------------------------------------------------

    def _learn(self, instance: Instance, seen: Seen, callee: Any, arguments: tuple[Any, ...], named: dict[str, Any] | None) -> object:
        """A call that has not run before: notes what it is, and runs it on tensors."""
        named = named or {}
        category, function = category_of(callee), self._model.find(callee)
        values = (*arguments, *named.values())
        if function is not None:
            seen.note_call("function", function)
            seen.bound.add(isinstance(callee, MethodType | torch.nn.Module))
            owner = getattr(callee, "__self__", None)
            own = "object" if isinstance(callee, MethodType) and not isinstance(owner, torch.nn.Module) else "constant"
            seen.note(own, *(kind for kind in map(kind_of, values) if kind == "object"))
            return self._call(instance, callee, arguments, named)
        tensors = any(map(holds_tensors, values))
        if category in ("unknown", "function"):
            seen.note_call("unknown")
            return self._call(instance, callee, arguments, named)
        if category == "changing":
            self.changing(_changed_by(callee, arguments))
        if category in ("pure", "changing", "maker", "sum", "given"):
            found = "path" if callee is getattr and isinstance(values[0], torch.nn.Module) else category
            if category == "given" and not isinstance(callee, type):
                found = data_category(arguments, named)
            seen.note_call(found, containers=category == "sum" and tensors)
            if callee in (getattr, hasattr):
                seen.note(kind_of(values[0]))
            made = callee(*arguments, **named)
            return self.owned(made) if category == "pure" and isinstance(made, _CHANGEABLE) and callee in FRESH else made
        if category == "cast":
            seen.note_call("cast")
            seen.note(*map(kind_of, values))
            return self._alone(callee, arguments, named)
        if "out" in named:
            self._in_order("changes a tensor in place")
        before = random_state()
        result = self._alone(callee, arguments, named)
        if not same_state(before, random_state()):
            if not self._ordered:
                restore(before)
                raise NeedsOrder(f"{getattr(callee, '__name__', type(callee).__name__)} draws random numbers")
            seen.note_call("unknown")
            self._model.note(f"{getattr(callee, '__name__', type(callee).__name__)} draws random numbers: it runs in Python", "")
            return result
        owner = getattr(callee, "__self__", None)
        computes = tensors or holds_tensors(result) or isinstance(owner, torch.Tensor)
        found = "read" if category == "read" else "torch" if computes else "pure"
        seen.note_call(found, containers=any(kind_of(each) == "tensors" for each in values))
        return result


def _changed_by(callee: Any, arguments: tuple[object, ...]) -> object:
    """What `xs.append(x)` and `next(xs)` change."""
    return arguments[0] if callee is next and arguments else callee.__self__


def _with_owner(callee: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if isinstance(callee, MethodType):
        return (callee.__self__, *arguments)
    return (callee, *arguments) if isinstance(callee, torch.nn.Module) else arguments


def _line_in(frame: Frame, error: Exception) -> str:
    """ "file:line" in a call of the user's function at which it stands, or out of which the error came."""
    code, file = frame.generator.gi_frame, frame.function.file
    return f"{file}:{code.f_lineno}" if code is not None else line_of(error, {file})


def _endless(function: Function, depth: int) -> StructureError:
    return StructureError(f"{function.name} calls itself {depth} times: does the structure end?")


def _calls(instance: Instance, function: Function) -> list[tuple[object, ...]]:
    """The arguments of the calls of the function that the instance is inside of."""
    return [frame.arguments for frame in instance.frames if frame.function is function]
