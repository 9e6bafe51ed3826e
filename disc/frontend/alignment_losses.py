"""`ctc_loss` as a loop over time: PyTorch's own reads the lengths in Python.

A. Graves et al., "Connectionist Temporal Classification", 2006, section 4.1: the forward variables alpha over the labels with blanks
between them, in logarithms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.scan import scan_op

from disc.frontend.checked_values import checked

Lengths = Tensor | Sequence[int]
REDUCTIONS = ("none", "mean", "sum")


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """log_probs: f32 or f64 [time, batch, classes], or [time, classes]; targets: [batch, labels], or all of them one behind the other."""
    if reduction not in REDUCTIONS or log_probs.dim() not in (2, 3) or log_probs.dtype not in (torch.float32, torch.float64):
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)  # pyright: ignore[reportArgumentType]
    scores = log_probs.unsqueeze(1) if log_probs.dim() == 2 else log_probs
    steps, lengths = (torch.as_tensor(each).reshape(-1) for each in (input_lengths, target_lengths))
    steps, lengths = _checked(steps, lengths, scores.shape[0], targets)
    labels = _labels(targets, lengths, blank)
    loss = _negative_log_likelihood(scores, labels, steps, lengths)
    loss = torch.where(torch.isinf(loss), 0.0, loss) if zero_infinity else loss
    if reduction == "mean":
        return (loss / lengths.clamp(min=1)).mean()
    return loss.sum() if reduction == "sum" else loss.squeeze(0) if log_probs.dim() == 2 else loss


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """`torch.ctc_loss`, which has numbers for the reductions."""
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, REDUCTIONS[reduction], zero_infinity)


def _checked(steps: Tensor, lengths: Tensor, time: int, targets: Tensor) -> tuple[Tensor, Tensor]:
    steps = checked(steps, time + 1, "ctc_loss: input_lengths must be from 0 to the length of log_probs: got {actual}")
    lengths = checked(lengths, targets.shape[-1] + 1, "ctc_loss: target_lengths must be from 0 to the length of targets: got {actual}")
    if targets.dim() == 1:
        words = "ctc_loss: target_lengths must add up to the length of targets: got {actual} more"
        lengths = lengths + checked(lengths.sum() - targets.shape[0], 1, words)
    return steps, lengths


def _labels(targets: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """[batch, 2 * labels + 1]: blank, the first label, blank, ...; what is behind a target's length is blank."""
    rows = targets
    if targets.dim() == 1:
        starts = lengths.cumsum(0) - lengths
        places = starts.unsqueeze(1) + torch.arange(targets.shape[0])
        rows = F.pad(targets, (0, 1))[torch.minimum(places, torch.full_like(places, targets.shape[0]))]
    counted = torch.arange(rows.shape[1]) < lengths.unsqueeze(1)
    rows = torch.where(counted, rows, blank)
    pairs = torch.stack((torch.full_like(rows, blank), rows), 2).reshape(rows.shape[0], 2 * rows.shape[1])
    return F.pad(pairs, (0, 1), value=blank)


def _negative_log_likelihood(log_probs: Tensor, labels: Tensor, steps: Tensor, lengths: Tensor) -> Tensor:
    time, batch, places = log_probs.shape[0], log_probs.shape[1], torch.arange(labels.shape[1])
    skips = (places % 2 == 1) & (places >= 3) & (labels != _behind(labels, 2, 0))
    scores = log_probs.gather(2, labels.unsqueeze(0).expand(time, batch, labels.shape[1]))
    nothing = torch.where(places == 0, 0.0, -math.inf).to(scores.dtype).expand(batch, labels.shape[1])
    running = torch.arange(time).unsqueeze(1) < steps

    def step(before: Tensor, score: Tensor, runs: Tensor, first: Tensor, skips: Tensor) -> list[Tensor]:
        skipped = torch.where(skips, _behind(before, 2, -math.inf), -math.inf)
        begun = torch.where(
            first, torch.maximum(before, _behind(before, 1, -math.inf)), _total(before, _behind(before, 1, -math.inf), skipped)
        )
        after = torch.where(runs.unsqueeze(-1), begun + score, before)
        return [after]

    (alpha,) = scan_op(step, [nothing.clone()], [scores, running, torch.arange(time) == 0], (skips,))
    last = 2 * lengths.unsqueeze(1)
    behind_label = torch.where(last > 0, alpha.gather(1, (last - 1).clamp(min=0)), -math.inf)
    return -_total(alpha.gather(1, last), behind_label).squeeze(1)


def _behind(x: Tensor, count: int, value: float) -> Tensor:
    """Each row moved by `count` places, `value` in their stead."""
    return F.pad(x, (count, 0), value=value).narrow(1, 0, x.shape[1])


def _total(*logarithms: Tensor) -> Tensor:
    """log(sum(exp(...))), of nothing -inf; its slopes are numbers there, too."""
    largest = functools.reduce(torch.maximum, logarithms).detach()
    is_infinite = torch.isinf(largest)
    finite = torch.where(is_infinite, 0.0, largest)
    total = sum((torch.exp(each - finite) for each in logarithms), torch.zeros_like(finite))
    return torch.where(is_infinite, largest, torch.log(torch.where(is_infinite, 1.0, total)) + finite)


FORMS: dict[Callable[..., object], Callable[..., object]] = {F.ctc_loss: ctc_loss, torch.ctc_loss: _ctc_loss}
