"""The random numbers of PyTorch, Python and NumPy: whether something drew some, and putting them back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

State = tuple[Any, ...]


def random_state() -> State:
    return torch.random.get_rng_state(), random.getstate(), np.random.get_state(legacy=True)


def same_state(one: State, other: State) -> bool:
    same = one[2][2:] == other[2][2:] and bool((one[2][1] == other[2][1]).all())
    return same and bool(torch.equal(one[0], other[0])) and one[1] == other[1]


def restore(state: State) -> None:
    torch.random.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])
