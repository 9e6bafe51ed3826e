"""What a call takes and gives besides its arguments and results: tensors that stay from call to call, and the seed of random numbers."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from disc.artifact.manifest import BufferRecord, InputRecord, StateRecord
from disc.errors import DiscError, InputTypeError
from disc.ral import _ral

_WORD = 1 << 64
Array = np.ndarray[Any, np.dtype[Any]]  # npt.NDArray[Any], without numpy.typing
HOST = -1  # in place of the number of a GPU


class _Seeds:
    """A seed of its own for each call of this process that is given none."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)  # or children would draw what their parent draws

    def renew(self) -> None:
        self._numbers = itertools.count(int.from_bytes(os.urandom(8)))

    def __call__(self) -> int:
        return next(self._numbers)  # one step of the interpreter: no two threads get the same


_seeds = _Seeds()


class Seed:
    """A seed that a call was given: any int; its lowest 64 bits count. Raises InputTypeError for what is no int."""

    def __init__(self, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputTypeError(f"seed={value!r}: give an int")
        self.value = int(value)


class State(MutableMapping[str, Array]):
    """The tensors that an executable keeps from call to call, by name. Reading gives a copy, as a NumPy array (bf16 as its bits in
    uint16); setting one takes an array of the same dtype and sizes. `numpy.savez(file, **executable.state)` saves all of them, and
    `executable.state.update(numpy.load(file))` brings them back.

    Those that the program writes in place may be changed in part when a call fails behind the checks of its inputs; the exception has a
    note that says so. A call that fails leaves all others as they were. Calls of several threads take turns.

    They lie where the tensors of the last call lay, and are copied when those of the next call lie elsewhere.
    """

    def __init__(self, records: list[BufferRecord], first: list[Array], in_place: Container[int]) -> None:
        """first: what `reset` goes back to; is not changed. in_place: the numbers of those that calls write to."""
        self._names = {record["name"]: place for place, record in enumerate(records)}
        self._first = first
        self._in_place = in_place
        self.lock = threading.RLock()
        self.tensors: list[Array | _ral.Stored] = self._begin()
        self._gpu = HOST  # where all of them lie

    def __repr__(self) -> str:
        """Names, types and sizes."""
        shown = (f"{name}: {each.dtype}{list(each.shape)}" for name, each in self.items())
        return f"<disc.State {', '.join(shown) or 'without tensors'}>"

    def move(self, gpu: int, keep: Callable[[Array, int, int], _ral.Stored] | None = None) -> None:
        """All of them lie on this GPU from now on, or in this process's memory (HOST). keep: copies an array there, by its number."""
        if gpu == self._gpu:
            return
        arrays = [self._array(place) for place in range(len(self.tensors))]
        self.tensors = list(arrays) if keep is None or gpu == HOST else [keep(each, gpu, place) for place, each in enumerate(arrays)]
        self._gpu = gpu

    def _array(self, place: int) -> Array:
        """What it holds; its own memory where that is this process's."""
        tensor = self.tensors[place]
        if not isinstance(tensor, _ral.Stored):
            return tensor
        array = np.empty_like(self._first[place])
        tensor.read(array)
        return array

    def _begin(self) -> list[Array | _ral.Stored]:
        return [each.copy() if place in self._in_place else each for place, each in enumerate(self._first)]

    def __getitem__(self, name: str) -> Array:
        with self.lock:
            return self._array(self._names[name]).copy()

    def __setitem__(self, name: str, value: Array) -> None:
        """Raises DiscError for a name that there is not, and InputTypeError for another dtype or size."""
        if name not in self._names:
            raise DiscError(f"there is no state '{name}'; there is {', '.join(map(repr, self._names))}")
        place, given = self._names[name], np.asarray(value)
        first = self._first[place]
        if (given.dtype, given.shape) != (first.dtype, first.shape):
            raise InputTypeError(f"state '{name}' is {first.dtype}{list(first.shape)}, got {given.dtype}{list(given.shape)}")
        with self.lock:
            self.move(HOST)
            self.tensors[place] = given.copy()

    def __delitem__(self, name: str) -> None:
        """Raises DiscError: the program needs all of them."""
        raise DiscError(f"state '{name}' cannot be deleted; reset() brings back its first value")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def reset(self) -> None:
        """All tensors are as the model had them when it was compiled."""
        with self.lock:
            self.tensors, self._gpu = self._begin(), HOST


class HiddenValues:
    """The calls of a program that has such values."""

    def __init__(self, context: _ral.Context, record: StateRecord, inputs: Sequence[InputRecord], first: Mapping[str, Array]) -> None:
        """inputs: of the code; first: the first values of the buffers, by name."""
        self._context = context
        self._seeded = record["seeded"]
        self._writes = bool(record["buffers"] or record["written"])
        buffers, updated = record["buffers"], set(record.get("updated", []))
        self._start = start = len(inputs) - self._seeded - len(buffers)
        changed = [place for place in range(len(buffers)) if inputs[start + place].get("written")]
        self.state = State(buffers, [first[each["name"]] for each in buffers], changed)
        self._replaced = [place for place in range(len(buffers)) if start + place not in updated]
        names = [each["name"] for number, each in enumerate(inputs) if number in updated]
        self._note = f"what the call writes in place may be changed in part: {', '.join(map(repr, names))}" if names else ""
        context.kept, context.written = len(self._replaced), record["written"]

    def call(self, inputs: tuple[object, ...], out: object) -> object:
        """inputs: a `Seed` may be the last. Raises as `Executable.__call__`; DiscError where `out` is given and the program writes."""
        given = inputs[-1] if inputs and isinstance(inputs[-1], Seed) else None
        arguments = inputs if given is None else inputs[:-1]
        if given is not None and not self._seeded:
            raise InputTypeError("seed: the model draws no random numbers")
        seed = (_signed(_seeds() if given is None else given.value),) if self._seeded else ()
        if not self._writes:
            return self._context.call((*arguments, *seed), out)
        if out is not None:
            raise DiscError("out: results of a model that writes state or inputs are always fresh tensors")
        with self.state.lock:
            if self._context.open_gpu is not None:
                self.state.move(_ral.place_of(arguments), self._keep)
            try:
                results, kept = self._context.call_keeping((*arguments, *self.state.tensors, *seed))
            except Exception as error:
                if self._note:
                    error.add_note(self._note)
                raise
            for place, value in zip(self._replaced, kept, strict=True):
                self.state.tensors[place] = value
        return results

    def _keep(self, array: Array, gpu: int, place: int) -> _ral.Stored:
        return self._context.keep_on(np.ascontiguousarray(array).reshape(array.shape), gpu, self._start + place)


def _signed(number: int) -> int:
    """The i64 of the lowest 64 bits."""
    low = number % _WORD
    return low - _WORD if low >= _WORD // 2 else low
