"""What the symbols in a message are, in the user's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import sympy
import torch

from disc.errors import UnsupportedOp
from disc.frontend.symbols import to_shape, to_size

_SYMBOL = re.compile(r"\b[su][0-9]+\b")


def symbol_places(inputs: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Symbol → "dim 1 of input 'x'", for symbols that are a dim or a number themselves. inputs: name and example value."""
    places: dict[str, str] = {}
    for name, value in inputs:
        sizes = to_shape(value.shape) if isinstance(value, torch.Tensor) else ()
        for dim, size in enumerate(sizes):
            if isinstance(size, sympy.Symbol):
                places.setdefault(size.name, f"dim {dim} of input '{name}'")
        if isinstance(value, torch.SymInt) and isinstance(size := to_size(value), sympy.Symbol):
            places.setdefault(size.name, f"input '{name}'")
    return places


def legible(text: str, places: Mapping[str, str]) -> str:
    """The text with the meaning of each symbol at its end."""
    return text + _legend(text, places)


def explained(ops: Sequence[UnsupportedOp], places: Mapping[str, str]) -> list[UnsupportedOp]:
    """The same with the meaning of each symbol at the end of the reason."""
    return [replace(op, reason=op.reason + _legend(f"{op.op} {op.reason}", places)) for op in ops]


def _legend(text: str, places: Mapping[str, str]) -> str:
    names = dict.fromkeys(name for name in _SYMBOL.findall(text) if name in places or name.startswith("u"))
    entries = [f"{name} = {places.get(name, 'a number that depends on data')}" for name in names]
    return f" ({', '.join(entries)})" if entries else ""
