"""Philox4x32-10, the counter-based generator of `disc.philox`: constants, and the words in NumPy.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. A word depends on its counter
and key alone, so that results are the same for any number of threads and any width of vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # of words 0 and 2 of the counter
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # added to the two words of the key after each round

_BITS, _MASK = np.uint64(32), np.uint64(0xFFFFFFFF)

Words = npt.NDArray[np.uint32]


def philox(counter: Sequence[Words], key: Sequence[Words]) -> list[Words]:
    """The four words of the block of a counter of four words (the lowest first) under a key of two; arrays broadcast."""
    low, high, third, fourth = (np.asarray(word, np.uint64) for word in counter)
    keys = [np.asarray(word, np.uint64) for word in key]
    for _ in range(ROUNDS):
        even, odd = low * np.uint64(MULTIPLIERS[0]), third * np.uint64(MULTIPLIERS[1])
        low, high = (odd >> _BITS) ^ high ^ keys[0], odd & _MASK
        third, fourth = (even >> _BITS) ^ fourth ^ keys[1], even & _MASK
        keys = [(word + np.uint64(step)) & _MASK for word, step in zip(keys, KEY_STEPS, strict=True)]
    return [np.asarray(word).astype(np.uint32) for word in (low, high, third, fourth)]


def words_at(position: npt.NDArray[np.int64], seed: npt.NDArray[np.int64], stream: int, word: int) -> Words:
    """The values of `disc.philox`: the counter is the position (words 0, 1) and the stream (words 2, 3), the key is the seed."""
    return philox((*_halves(position), *_halves(np.asarray(stream, np.int64))), _halves(seed))[word]


def _halves(number: npt.NDArray[np.int64]) -> tuple[Words, Words]:
    bits = np.asarray(number).astype(np.uint64)
    return (bits & _MASK).astype(np.uint32), (bits >> _BITS).astype(np.uint32)
