"""What names a call whose result may be used again: structures by identity, constants by value."""

from __future__ import annotations

import torch

from disc.frontend.batched.rows import Row
from disc.frontend.batched.values import CONSTANTS

Key = tuple[object, ...]
CHANGES, CONSTANT, MODULE, STRUCTURE = range(4)  # as in ral/src/python/call_key.cc
_FIXED = (Row, *CONSTANTS)


def role_of(kind: type) -> int:
    """What an argument of this type is to the name of a call: it changes from call to call, is named by its value, or by its identity."""
    if issubclass(kind, Row | torch.Tensor | list | dict | set | tuple | slice | complex):
        return CHANGES
    if issubclass(kind, CONSTANTS):
        return CONSTANT
    return MODULE if issubclass(kind, torch.nn.Module) else STRUCTURE


def is_fixed(value: object) -> bool:
    """Whether nobody can change the result of one caller for another."""
    return isinstance(value, _FIXED) or (isinstance(value, tuple) and all(map(is_fixed, value)))
