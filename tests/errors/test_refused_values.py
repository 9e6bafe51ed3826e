"""Values that PyTorch's kernels refuse: refused in the call, too, with the input, the value and the user's line."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import disc
from disc.errors import DiscError, DiscWarning

Inputs = tuple[Tensor, ...]
X, SHARES = torch.arange(24.0).reshape(4, 6) / 24, torch.full((3, 4), 0.5)
PLANES, SCORES = torch.ones(1, 1, 2, 2), F.log_softmax(torch.zeros(7, 2, 5), -1)
NAN = torch.full((3, 4), torch.nan)


def ints(*values: int) -> Tensor:
    return torch.tensor(values)


# Name → (call, inputs that are taken, then for each case: inputs that are refused, and what the message says of them).
CASES: dict[str, tuple[Callable[..., Tensor], Inputs, list[tuple[Inputs, str]]]] = {
    "one_hot": (lambda x: F.one_hot(x, 5), (ints(0, 2, 4),), [((ints(5, 5, 1),), "input 'x': .*got 5 of 5"), ((ints(1, -1, 2),), "input 'x': .*got -1")]),
    "one_hot, a size": (lambda x, y: F.one_hot(x, y.shape[1]), (ints(1, 2, 4), X), [((ints(1, 6, 4), X), "input 'x': .*got 6 of 6")]),
    "one_hot, of the largest": (lambda x: F.one_hot(x), (ints(1, 2, 4),), [((ints(1, -2, 4),), "got -2")]),
    "one_hot, summed": (lambda x: F.one_hot(x + 1, 5).float().sum(0), (ints(0, 2, 3),), [((ints(0, 2, 4),), "input 'x': .*got 5 of 5")]),
    "bincount": (torch.bincount, (ints(1, 2, 4),), [((ints(1, -2, 4),), "a number is negative")]),
    "repeat_interleave": (lambda x, n: x.repeat_interleave(n, 0), (X, ints(1, 2, 0, 1)), [((X, ints(1, -2, 0, 1)), "a number of repeats is negative")]),
    "multinomial": (lambda p: torch.multinomial(p, 2), (SHARES,), [((-SHARES,), "a weight is -0.5"), ((0 * SHARES,), "are 0"), ((NAN,), "a weight is nan")]),
    "bernoulli": (torch.bernoulli, (SHARES,), [((SHARES + 1,), "input 'p': .*got 1 .rounded"), ((-SHARES,), "input 'p': .*got -1"), ((NAN,), "input 'p': .*between 0 and 1")]),
    "poisson": (torch.poisson, (SHARES,), [((-SHARES,), "a rate is -0.5")]),
    "normal": (lambda mean, std: torch.normal(mean, std), (SHARES, SHARES), [((SHARES, -SHARES), "input 'std': .*got -1")]),
    "binary_cross_entropy": (F.binary_cross_entropy, (SHARES, SHARES), [
        ((SHARES + 2, SHARES), "of input must .*got 2"), ((NAN, SHARES), "of input must"), ((SHARES, -3 * SHARES), "of target must .*got -2"),
    ]),
    "gaussian_nll_loss": (F.gaussian_nll_loss, (SHARES, SHARES, SHARES), [((SHARES, SHARES, -SHARES), "input 'var': .*negative")]),
    "ctc_loss": (F.ctc_loss, (SCORES, torch.ones(2, 3, dtype=torch.int64), ints(7, 6), ints(3, 2)), [
        ((SCORES, torch.ones(2, 3, dtype=torch.int64), ints(8, 6), ints(3, 2)), "input_lengths .*got 8"),
        ((SCORES, torch.ones(2, 3, dtype=torch.int64), ints(7, 6), ints(4, 2)), "target_lengths .*got 4"),
        ((SCORES, torch.ones(2, 3, dtype=torch.int64), ints(7, 6), ints(3, -2)), "target_lengths .*got -2"),
    ]),
    "ctc_loss, one behind the other": (F.ctc_loss, (SCORES, ints(1, 2, 3, 4, 1), ints(7, 6), ints(3, 2)), [
        ((SCORES, ints(1, 2, 3, 4, 1), ints(7, 6), ints(3, 3)), "must add up to the length of targets.*: got 1 "),
    ]),
    "nll_loss": (F.nll_loss, (X, ints(0, 5, 2, -100)), [((X, ints(0, 6, 2, 1)), "input 'target': index 6 "), ((X, ints(0, -1, 2, 1)), "index -1 ")]),
    "cross_entropy": (F.cross_entropy, (X, ints(0, 5, 2, -100)), [((X, ints(0, 6, 6, 1)), "input 'target': index 6 .* size 6")]),
    "multi_margin_loss": (F.multi_margin_loss, (X, ints(0, 5, 2, 1)), [((X, ints(0, 6, 2, 1)), "input 'target': index 6 ")]),
    "embedding": (F.embedding, (ints(0, 3), X), [((ints(4, 4), X), "input 'input': index 4 .* size 4"), ((ints(-1, 0), X), "index -1 ")]),
    "embedding_bag": (F.embedding_bag, (ints(0, 3, 1), X, ints(0, 2)), [
        ((ints(0, 4, 1), X, ints(0, 2)), "input 'input': index 4 "), ((ints(0, 3, 1), X, ints(1, 2)), "input 'offsets': .*got 1"),
        ((ints(0, 3, 1), X, ints(0, 5)), "input 'offsets': .*got 5"), ((ints(0, 3, 1), X, ints(0, -1)), "input 'offsets': .*got -1"),
    ]),
    "embedding_bag, to the last": (lambda i, w, o: F.embedding_bag(i, w, o, include_last_offset=True), (ints(0, 3, 1), X, ints(0, 2, 3)), [
        ((ints(0, 3, 1), X, ints(0, 2, 5)), "input 'o': .*got 5"),
    ]),
    "max_unpool2d": (lambda x, i: F.max_unpool2d(x, i, (2, 2)), (PLANES, ints(0, 3, 8, 15).reshape(1, 1, 2, 2)), [
        ((PLANES, ints(0, 3, 8, 16).reshape(1, 1, 2, 2)), "input 'i': .*got 16 of 16"), ((PLANES, ints(0, 3, 8, -1).reshape(1, 1, 2, 2)), "got -1 of 16"),
    ]),
    "searchsorted": (lambda s, v, o: torch.searchsorted(s, v, sorter=o), (ints(3, 1, 2), ints(1, 2), ints(1, 2, 0)), [
        ((ints(3, 1, 2), ints(1, 2), ints(1, 2, 3)), "input 'o': index 3 .* size 3"),
    ]),
    "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s), (X, X > 0.5, torch.ones(24)), [((X, X >= 0, torch.ones(2)), "index .* out of range")]),
    "select": (lambda x, i: x[i], (X, torch.tensor(2)), [((X, torch.tensor(4)), "a slice"), ((X, torch.tensor(-5)), "a slice")]),
    "split": (lambda x, n: x.split(n.tolist())[1], (X, ints(2, 2)), [((X, ints(2, 3)), "got 5 and 4")]),
    "zeros": (lambda n: torch.zeros(n.item()), (ints(2),), [((ints(-1),), "got -1")]),  # pyright: ignore
    "//": (lambda a, b: a // b, (ints(4, 5), ints(2, 3)), [((ints(4, 5), ints(2, 0)), "input 'b': .*divided by zero")]),
    "%": (lambda a, b: a % b, (ints(4, 5), ints(2, 3)), [((ints(4, 5), ints(0, 0)), "input 'b': .*divided by zero")]),
    "fmod": (torch.fmod, (ints(4, 5), ints(2, 3)), [((ints(4, 5), ints(2, 0)), "input 'other': .*divided by zero")]),
    "div, truncated": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), (ints(4, 5), ints(2, 3)), [((ints(4, 5), ints(0, 3)), "input 'b': .*divided by zero")]),
    "cholesky_inverse": (torch.cholesky_inverse, (torch.eye(3),), [((torch.zeros(3, 3),), "input 'input': .*the matrix is singular")]),
    "inv": (torch.linalg.inv, (torch.eye(3),), [((torch.zeros(3, 3),), "the matrix is singular")]),
    "histc": (lambda x: torch.histc(x, 4), (X,), [((X * torch.nan,), "a number is nan")]),
}  # fmt: skip
LESS_THAN_A_CALL = {"select", "split", "zeros", "one_hot, of the largest"}  # Dynamo reads a number, or fixes it


def _module(call: Callable[..., Tensor], inputs: Inputs) -> nn.Module:
    """With as many parameters as there are inputs, under the names that `call` has for them."""
    try:
        names = list(inspect.signature(call).parameters)[: len(inputs)]
    except ValueError:
        names = ["input", "other"][: len(inputs)]
    names = ["p"] if call in (torch.bernoulli, torch.poisson) else names
    space: dict[str, Callable[..., Tensor]] = {}
    exec(f"def forward(self, {', '.join(names)}): return self.call({', '.join(names)})", space)
    kind: type[nn.Module] = type("Refused", (nn.Module,), {"forward": space["forward"], "call": staticmethod(call)})
    return kind().eval()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_what_eager_refuses(name: str) -> None:
    call, taken, cases = CASES[name]
    module = _module(call, taken)
    executable = disc.compile(module, taken, options=disc.Options(cache=False, threads=1))
    found = executable(*taken)
    if name not in ("multinomial", "bernoulli", "poisson", "normal"):
        torch.testing.assert_close(found, call(*taken))
    for inputs, message in cases:
        with pytest.raises((RuntimeError, IndexError, ValueError, ZeroDivisionError)):
            call(*inputs)
        with pytest.raises(DiscError, match=message):
            executable(*inputs)
    torch.testing.assert_close(torch.zeros_like(executable(*taken)), torch.zeros_like(found))  # pyright: ignore[reportArgumentType]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(set(CASES) - LESS_THAN_A_CALL))
def test_under_torch_compile_the_error_is_eagers(name: str) -> None:
    call, taken, cases = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: call(*inputs), backend="disc", dynamic=True)
    compiled(*taken)
    for inputs, _ in cases:
        with warnings.catch_warnings(), pytest.raises((RuntimeError, IndexError, ValueError, ZeroDivisionError)):
            warnings.simplefilter("ignore", DiscWarning)
            compiled(*inputs)
