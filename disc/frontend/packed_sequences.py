"""`pack_padded_sequence` and `pad_packed_sequence` while a module is exported: lengths are data, the number of sequences is not.

PyTorch takes all of a packed sequence for data. Here its `batch_sizes` knows where it came from, so that recurrent layers go over the
padded rows, with what lies behind a sequence's end left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from disc.frontend.replaced import replaced

Size = int | torch.SymInt
_ORIGIN = "_disc_packed"  # an attribute of `batch_sizes`


@dataclass(frozen=True)
class Packed:
    """alive: [length, batch], whether a sequence has an element there. index: [length, batch], the row of that element in the packed data,
    0 where there is none; places: of each row, its place among those of `alive`, row after row. lengths: [batch], in decreasing order."""

    lengths: Tensor
    alive: Tensor
    index: Tensor
    places: Tensor

    @property
    def batch(self) -> Size:
        return self.alive.shape[1]

    def padded(self, data: Tensor) -> Tensor:
        """[length, batch, ...]; what is behind the end of a sequence is anything."""
        return data.index_select(0, self.index.flatten()).reshape(*self.alive.shape, *data.shape[1:])

    def packed(self, rows: Tensor) -> Tensor:
        """The data of what is [length, batch, ...]."""
        return rows.flatten(0, 1).index_select(0, self.places)


def packed_of(batch_sizes: object) -> Packed | None:
    """What the packed sequence was made of, where `pack` made it."""
    return getattr(batch_sizes, _ORIGIN, None)


def pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """`torch._pack_padded_sequence`."""
    rows = x.transpose(0, 1) if batch_first else x
    longest = cast("int", lengths.max().item())
    torch._check(longest <= rows.shape[0], lambda: "a sequence is longer than the padded input")
    torch._check(lengths.min().item() >= 1, lambda: "Length of all samples has to be greater than 0")
    ascents = (lengths[1:] > lengths[:-1]).sum().item()
    torch._check(ascents <= 0, lambda: "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True")
    alive = torch.arange(rows.shape[0]).unsqueeze(1) < lengths
    counts = alive.sum(1)
    rank = (counts.cumsum(0) - counts).unsqueeze(1) + torch.arange(rows.shape[1])
    packed = Packed(lengths, alive, torch.where(alive, rank, 0), alive.flatten().nonzero().squeeze(1))
    batch_sizes = counts.index_select(0, torch.arange(longest))
    setattr(batch_sizes, _ORIGIN, packed)
    return packed.packed(rows), batch_sizes


def pad(data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: Size) -> tuple[Tensor, Tensor]:
    """`torch._pad_packed_sequence`; total_length: at least that of the longest sequence."""
    packed = packed_of(batch_sizes)
    if packed is None:
        return torch._pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length)  # pyright: ignore
    shown = packed.alive.reshape(*packed.alive.shape, *[1] * (data.dim() - 1))
    rows = torch.where(shown, packed.padded(data), padding_value)
    further = rows.new_full((total_length, *rows.shape[1:]), padding_value)  # it may be longer than the input
    found = torch.cat((rows, further)).index_select(0, torch.arange(total_length))  # pyright: ignore[reportCallIssue, reportArgumentType]
    return (found.transpose(0, 1) if batch_first else found), packed.lengths


def item(x: Tensor, index: object) -> object:
    """`x[index]`: the first batch size is the number of sequences."""
    packed = packed_of(x) if isinstance(index, int) and index == 0 else None
    return torch.Tensor.__getitem__(x, index) if packed is None else packed.batch  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class _Padded:
    """As much of a padded input as `nn.RNNBase` asks for."""

    batch: Size

    def size(self, dim: int) -> Size:
        return self.batch


@contextmanager
def sizes_of_packed_batches() -> Iterator[None]:
    """Modules of recurrent layers make a Python number of the number of sequences; within, they take it as it is."""
    kept = {(nn.RNNBase, "get_expected_hidden_size"): nn.RNNBase.get_expected_hidden_size,
            (nn.LSTM, "get_expected_cell_size"): nn.LSTM.get_expected_cell_size}  # fmt: skip
    with replaced({place: _of_batch(original) for place, original in kept.items()}):
        yield


def _of_batch(original: Callable[..., object]) -> Callable[..., object]:
    def expected(self: nn.RNNBase, x: Tensor, batch_sizes: Tensor | None) -> object:
        packed = packed_of(batch_sizes)
        return original(self, x, batch_sizes) if packed is None else original(self, _Padded(packed.batch), None)

    return expected


FORMS: dict[Callable[..., object], Callable[..., object]] = {
    torch._pack_padded_sequence: pack,  # pyright: ignore[reportPrivateImportUsage]
    torch._pad_packed_sequence: pad,  # pyright: ignore[reportPrivateImportUsage]
    torch.Tensor.__getitem__: item,
}
