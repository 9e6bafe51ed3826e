"""What is unique of the factors of a matrix: signs, orders and bases of equal values are anybody's choice, what they multiply to is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch

Call = Callable[..., object]


def unique_of(op: str) -> Unique | None:
    """For an op that factors a matrix; None for others, all of whose results are unique. op: as `torch.linalg.svd`, `aten._linalg_svd`."""
    words = set(re.split(r"[._]", op))
    if "svd" in words or {"pca", "lowrank"} <= words:
        return Unique(_of_svd_turned if words & {"linalg", "prims"} else _of_svd)
    if "qr" in words:
        return Unique(_of_qr)
    return Unique(_of_eigh) if "eigh" in words else None


class Unique:
    """From the results of a call to what of them has to agree."""

    def __init__(self, take: Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]) -> None:
        self.take = take

    def __call__(self, results: object) -> object:
        """Results of another number (of an op that gives the values alone) are themselves unique."""
        if not isinstance(results, tuple | list) or not all(isinstance(each, torch.Tensor) and each.dim() for each in results):
            return results
        return self.take(results) if len(results) > 1 else results

    def after(self, call: Call) -> Call:
        """The same of what a call returns."""
        return lambda *inputs: self(call(*inputs))


def _of_svd(results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    u, s, v = results
    return _of_svd_turned((u, s, v.mH))


def _of_svd_turned(results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    u, s, vh = results
    count = s.shape[-1]
    return u[..., :count] * s.unsqueeze(-2).to(u.dtype) @ vh[..., :count, :], s, u.mH @ u, vh @ vh.mH


def _of_qr(results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    q, r = results
    return r.mH @ r, *((q @ r, q.mH @ q) if q.numel() else ())


def _of_eigh(results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    values, vectors = results
    return values, vectors * values.unsqueeze(-2).to(vectors.dtype) @ vectors.mH, vectors.mH @ vectors
