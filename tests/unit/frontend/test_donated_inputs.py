"""What a compiled forward pass has kept is written over by the backward pass, unless somebody holds it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from disc.errors import WrittenError
from disc.frontend import graph_calls
from disc.ral.executable import Executable

CLASSES = 37


class Classifier(nn.Module):
    """Its backward pass computes the gradient of the logits where these lie."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.layer(x), labels)


class Calls:
    """Of backward passes: whether what is spoiled was written over (True), or copies of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.in_place: list[bool] = []
        original = graph_calls._donated

        def noting(inputs: list[object], *others: Any, **named: Any) -> list[object]:
            found = original(inputs, *others, **named)
            self.in_place.append(found is inputs)
            return found

        monkeypatch.setattr(graph_calls, "_donated", noting)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    torch._dynamo.reset()
    return Calls(monkeypatch)


def given(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    labels[::5] = -100  # which counts for nothing
    return torch.randn(rows, 16, generator=generator), labels


def models() -> tuple[nn.Module, Any]:
    """One in PyTorch, and the same compiled."""
    torch.manual_seed(0)
    eager = Classifier()
    same = Classifier()
    same.load_state_dict(eager.state_dict())
    return eager, torch.compile(same, backend="disc", dynamic=True, options={"strict": True})


def gradients(model: Any) -> list[Tensor]:
    found = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    return found


def test_logits_are_written_over(calls: Calls) -> None:
    eager, compiled = models()
    for number, rows in enumerate((7, 4, 33, 128)):
        x, labels = given(rows, number)
        losses = [model(x, labels) for model in (eager, compiled)]
        torch.testing.assert_close(*losses)
        for each in losses:
            each.backward()
        torch.testing.assert_close(gradients(compiled), gradients(eager))
    assert calls.in_place == [True] * 4


def test_a_graph_that_is_retained(calls: Calls) -> None:
    """Its tensors stay what they are, for as many backward passes as there are."""
    eager, compiled = models()
    x, labels = given(12)
    for model in (eager, compiled):
        loss = model(x, labels)
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
    torch.testing.assert_close(gradients(compiled), gradients(eager))
    assert calls.in_place == [False, False, True]


def check_hooks(calls: Calls, keep: Callable[[Tensor], Any], unpack: Callable[[Tensor], Tensor]) -> None:
    """With hooks that keep something of each tensor that is kept for the backward pass: it stays as it is."""
    eager, compiled = models()
    x, labels = given(12)
    held: list[Any] = []

    def pack(value: Tensor) -> Tensor:
        held.append(keep(value))
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = compiled(x, labels)
    before = [each.clone() for each in held]
    loss.backward()
    eager(x, labels).backward()
    assert len(held) > 2 and all(list(one) == list(other) for one, other in zip(map(flat, held), map(flat, before), strict=True))
    torch.testing.assert_close(gradients(compiled), gradients(eager))
    assert calls.in_place == [False]


def flat(kept: Any) -> Any:
    """The elements of a tensor, or the bytes of a storage."""
    return kept.flatten().tolist() if isinstance(kept, Tensor) else kept


def test_tensors_that_hooks_hold(calls: Calls) -> None:
    check_hooks(calls, lambda value: value, lambda value: value)


def test_memory_that_views_hold(calls: Calls) -> None:
    """A hook that gives a view of what it keeps."""
    check_hooks(calls, lambda value: value, lambda value: value.view_as(value))


def test_memory_that_a_storage_holds(calls: Calls) -> None:
    check_hooks(calls, lambda value: value.untyped_storage(), lambda value: value)


def test_gradients_that_are_written_over_themselves(calls: Calls) -> None:
    """The gradient of what is kept is written over, and is a result."""

    def loss(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
        return torch.select_scatter(x + h @ w, torch.zeros(w.shape[1]), 0, 0).sigmoid().sum()

    compiled = torch.compile(loss, backend="disc", dynamic=True, options={"strict": True})
    for rows in (5, 9):
        operands = [
            torch.randn(rows, 6, requires_grad=True),
            torch.randn(rows, 4, requires_grad=True),
            torch.randn(4, 6, requires_grad=True),
        ]
        found = torch.autograd.grad(compiled(*operands), operands)
        torch.testing.assert_close(found, torch.autograd.grad(loss(*operands), operands))


def test_a_result_that_the_caller_has_too(calls: Calls) -> None:
    """What is kept and returned is not the backward pass's alone."""
    layer = nn.Linear(16, CLASSES)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        logits = layer(x)
        return logits, logits.log_softmax(-1).square().sum()

    compiled = torch.compile(both, backend="disc", dynamic=True, options={"strict": True})
    x, _ = given(9)
    logits, total = compiled(x)
    before = logits.detach().clone()
    total.backward()
    assert torch.equal(logits.detach(), before)
    found = gradients(layer)
    both(x)[1].backward()
    torch.testing.assert_close(found, gradients(layer), rtol=1e-4, atol=1e-4)


def test_threads(calls: Calls) -> None:
    eager, compiled = models()
    x, labels = given(12)
    parameters = list(compiled.parameters())
    expected = torch.autograd.grad(eager(x, labels), list(eager.parameters()))
    torch.autograd.grad(compiled(x, labels), parameters)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                torch.testing.assert_close(torch.autograd.grad(compiled(x, labels), parameters), expected)
        except BaseException as error:  # of a thread: raised below
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed, failed
    assert all(calls.in_place)


def test_a_call_that_fails_in_the_middle(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not go to PyTorch, which would compute with what was written, and a second pass does not either. No gradient has come of it,
    and the next step is eager's."""
    eager, compiled = models()
    x, labels = given(12)
    for each in (eager, compiled):
        each(x, labels).backward()
    loss = compiled(x, labels)

    def failing(executable: Executable, inputs: Sequence[object]) -> object:
        del executable
        for each in inputs:
            if isinstance(each, Tensor) and each.is_floating_point() and not each.requires_grad:
                each.fill_(torch.nan)
        raise WrittenError("the call failed when it had begun to write over inputs")

    with monkeypatch.context() as patched:
        patched.setattr(graph_calls, "called_by_position", failing)
        with pytest.raises(WrittenError, match="had begun to write"):
            loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    torch.testing.assert_close(gradients(compiled), gradients(eager))  # of the first pass
    x, labels = given(9)
    for each in (eager, compiled):
        each(x, labels).backward()
    torch.testing.assert_close(gradients(compiled), gradients(eager))
