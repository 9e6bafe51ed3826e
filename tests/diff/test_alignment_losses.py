"""`ctc_loss` against eager: any time, batch and number of labels in one program, padded and concatenated targets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import Wrapped
from torch import Tensor

import disc
from disc.errors import DiscError

SIZES = [(7, 2, 5, 3), (1, 1, 2, 1), (12, 3, 4, 5), (31, 5, 17, 7)]  # time, batch, classes, labels


def example(time: int, batch: int, classes: int, labels: int) -> tuple[Tensor, ...]:
    """Repeated labels, anything behind the end of a target, a target that is longer than its input, an empty one."""
    targets = torch.randint(1, classes, (batch, labels))
    targets[:, 1:2] = targets[:, :1]
    lengths = torch.randint(0, labels + 1, (batch,))
    targets[torch.arange(labels) >= lengths.unsqueeze(1)] = -1
    return torch.randn(time, batch, classes).log_softmax(-1), targets, torch.randint(0, time + 1, (batch,)), lengths


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_padded_targets(reduction: str) -> None:
    infinite = reduction == "none"
    function = lambda *call: F.ctc_loss(*call, reduction=reduction, zero_infinity=not infinite)  # noqa: E731
    executable = disc.compile(Wrapped(function), example(*SIZES[0]))
    for sizes in SIZES * 3:
        call = example(*sizes)
        torch.testing.assert_close(executable(*call), function(*call), rtol=1e-5, atol=1e-5)


def test_targets_one_behind_the_other() -> None:
    function = lambda *call: F.ctc_loss(*call, blank=1, reduction="none")  # noqa: E731
    scores, lengths = torch.randn(6, 2, 5).log_softmax(-1), torch.tensor([2, 1])
    executable = disc.compile(Wrapped(function), (scores, torch.tensor([2, 3, 4]), torch.tensor([6, 4]), lengths))
    for counts in ([2, 1], [0, 3], [1, 1]):
        targets, lengths = torch.randint(2, 5, (sum(counts),)), torch.tensor(counts)
        call = (scores, targets, torch.tensor([5, 6]), lengths)
        torch.testing.assert_close(executable(*call), function(*call), rtol=1e-5, atol=1e-5)


def test_lengths_are_checked() -> None:
    executable = disc.compile(Wrapped(lambda *call: F.ctc_loss(*call)), example(*SIZES[0]))
    scores, targets, steps, lengths = example(*SIZES[0])
    for wrong in ((scores, targets, steps + 8, lengths), (scores, targets, steps, lengths + 4), (scores, targets, steps, lengths - 9)):
        with pytest.raises(DiscError, match="_lengths must be from 0 to the length of"):
            executable(*wrong)
