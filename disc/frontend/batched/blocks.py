"""Blocks: straight-line tensor code of one instance, and how it is run for many rows of tables at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from disc.frontend.batched.rows import RowClass

if TYPE_CHECKING:
    from disc.ral.executable import Executable


@dataclass(frozen=True)
class Block:
    """Straight-line tensor code. name: function and line, unique in a model.

    module: `forward(*rows, *values)` of ONE instance gives a tuple of tensors; its weights are parameters or constants, shared by all
    instances. rows: the kind of each argument that is a row of a table. values: how many i64 scalars (0-d tensors) follow. results: the
    kind of each result, which becomes a run of rows of the table of that kind.
    """

    name: str
    module: torch.nn.Module
    rows: tuple[RowClass, ...]
    values: int
    results: tuple[RowClass, ...]

    def tables(self) -> tuple[RowClass, ...]:
        """The distinct kinds of rows, in order of first use: one table each."""
        return tuple(dict.fromkeys(self.rows))


class Lifted(Protocol):
    """A block for B instances. executable: that of `compile_block`; None where it is no compiled program. takes_weights: they are inputs of
    it, behind the others."""

    executable: Executable | None
    takes_weights: bool

    def __call__(
        self,
        tables: Sequence[torch.Tensor],
        rows: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        out: Sequence[torch.Tensor],
    ) -> None:
        """tables: [N, *shape] for each of `Block.tables()`. rows: i64 [B] for each row argument, in [0, N). values: i64 [B] each. out:
        [B, *shape] for each result, apart from what `tables` covers."""
        ...


Lift = Callable[[Block], Lifted]
CompileBlock = Callable[[torch.nn.Module, tuple[torch.Tensor, ...], Sequence[int | None]], "Executable"]  # as `disc.api.compile_block`
