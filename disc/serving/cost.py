"""What a call costs by rows and length, learned from the calls that ran."""

from __future__ import annotations

import threading

import numpy as np


class CallCost:
    """Seconds of a call as a + b·rows + c·rows·length + d·rows·length², the orders in which the work of token-wise layers and
    attention grow; least squares over the calls so far, in which older ones fade (weight 0.5 after some 140 calls).

    It never decides whether a result is right, only whether padding pays; so until it knows enough it knows nothing.
    """

    ENOUGH = 8  # calls of at least two different sizes
    FADE = 0.995

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._normal = np.zeros((4, 4))
        self._right = np.zeros(4)
        self._calls = 0
        self._sizes: set[tuple[int, int]] = set()
        self._weights: np.ndarray | None = None

    def add(self, rows: int, length: int, seconds: float) -> None:
        """One call that ran. Errors count relative to its time, so that short calls are fitted as well as long ones."""
        if not rows or not length or seconds <= 0:
            return
        terms = _terms(rows, length) / seconds
        with self._lock:
            self._normal = self._normal * self.FADE + np.outer(terms, terms)
            self._right = self._right * self.FADE + terms
            self._calls += 1
            if len(self._sizes) < 2:
                self._sizes.add((rows, length))
            self._weights = None

    def seconds(self, rows: int, length: int) -> float | None:
        """The expected time of a call; None as long as too few were seen."""
        with self._lock:
            if self._calls < self.ENOUGH or len(self._sizes) < 2:
                return None
            if self._weights is None:
                self._weights = self._fitted()
            return float(_terms(rows, length) @ self._weights)

    def _fitted(self) -> np.ndarray:
        """Non-negative weights: a term that comes out negative is left out, as no more work takes less time."""
        used = np.ones(4, bool)
        scale = 1 / np.sqrt(np.maximum(np.diag(self._normal), 1e-300))
        weights = np.zeros(4)
        while used.any():
            ridge = self._normal[np.ix_(used, used)] * np.outer(scale[used], scale[used]) + 1e-6 * np.eye(int(used.sum()))
            solved = np.linalg.solve(ridge, self._right[used] * scale[used]) * scale[used]
            if (solved >= 0).all():
                weights[used] = solved
                return weights
            used[np.flatnonzero(used)[solved < 0]] = False
        return weights


def _terms(rows: int, length: int) -> np.ndarray:
    return np.array([1.0, rows, rows * length, rows * length * length])
