"""The instances of a batch, and the calls that each is inside of."""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any

from disc.frontend.batched.functions import Function
from disc.frontend.batched.keys import Key
from disc.frontend.batched.rows import Row

CASTS: dict[str, Callable[[Any], object]] = {"bool": bool, "float": float, "int": int}


class Frame:
    """A call of one of the user's functions. key: of its result, where that may be kept."""

    __slots__ = ("arguments", "function", "generator", "key")

    def __init__(self, function: Function, generator: GeneratorType[Any, Any, Any], arguments: tuple[object, ...], key: Key | None) -> None:
        self.function = function
        self.generator = generator
        self.arguments = arguments
        self.key = key


class Instance:
    """One instance of a batch. asked: the value that it waits for and how it is read. done: it has a result or an error. touched: it may
    have changed what is not its own."""

    def __init__(self, number: int, arguments: tuple[object, ...]) -> None:
        self.number = number
        self.arguments = arguments
        self.restart()

    def restart(self) -> None:
        self.frames: list[Frame] = []
        self.asked: tuple[str, Row] | None = None
        self.sent: object = None
        self.failure: Exception | None = None
        self.result: object = None
        self.error: Exception | None = None
        self.done = False
        self.touched = False


def run_plain(instance: Instance, target: Callable[[Any], object]) -> None:
    """Runs an instance in PyTorch, by the model itself."""
    instance.restart()
    try:
        instance.result = target(instance.arguments[-1])
    except Exception as error:
        instance.error = error
    instance.done = True


def as_read(how: str, value: Any, row: Row) -> object:
    """What PyTorch gives: `bool(x)`, `float(x)`, `x.item()`, `x.tolist()` of a value as `tolist` made it."""
    if how == "tolist":
        return value
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        return CASTS[how](row.tensor()) if how in CASTS else row.tensor().item()  # raises what PyTorch raises
    return CASTS[how](value) if how in CASTS else value
