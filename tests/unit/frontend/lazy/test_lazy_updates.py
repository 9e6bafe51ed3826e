"""What a recorded step, or a graph of torch.compile, writes: where the tensor lies if nothing else needs its old value, and right anyhow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import disc
from disc.errors import DiscWarning, OutOfMemoryError, WrittenError
from disc.frontend.backend_settings import Settings
from disc.frontend.graph_calls import or_eager
from disc.frontend.kept_traces import EagerGraph
from disc.ral.executable import Executable

Step = Callable[..., Tensor]
FUNCTIONS: Any = torch  # one that is no public one


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each program that is compiled, how many results may be computed where an input lies."""
    counts = list[int]()
    before = Executable.replace_inputs

    def noted(self: Executable) -> None:
        counts.append(sum("replaces" in record for record in self.manifest["outputs"]))
        before(self)

    monkeypatch.setattr(Executable, "replace_inputs", noted)
    return counts


def check(step: Step, made: Callable[[], Sequence[Tensor]], *, steps: int = 5) -> None:
    """A step that writes tensors and gives one, by itself and recorded: values of all of them, their memory, and their versions."""
    eager, lazy = made(), made()
    places, versions = [each.data_ptr() for each in lazy], [each._version for each in lazy]
    torch.manual_seed(0)
    wanted = [float(step(*eager, torch.randn(4, 6))) for _ in range(steps)]
    torch.manual_seed(0)
    with disc.lazy(strict=True):
        found = [float(step(*lazy, torch.randn(4, 6))) for _ in range(steps)]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(list(lazy), list(eager))
    assert [each.data_ptr() for each in lazy] == places
    assert all(each._version >= version + steps for each, version in zip(lazy, versions, strict=True))


def tensors(*shapes: tuple[int, ...]) -> Callable[[], list[Tensor]]:
    def made() -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(shape, generator=generator) for shape in shapes]

    return made


def momentum(w: Tensor, m: Tensor, x: Tensor) -> Tensor:
    made = x @ w
    m.mul_(0.9).add_(made.sum(0), alpha=0.1)
    w.sub_(m, alpha=0.1)
    return made.sum()


def test_elementwise_updates_are_made_in_place(replaced: list[int]) -> None:
    check(momentum, tensors((6, 5), (6, 5)))
    assert max(replaced) == 2


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda weights: torch.optim.SGD(weights, lr=0.1),
    lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    lambda weights: torch.optim.AdamW(weights, lr=0.1, amsgrad=True),
    lambda weights: torch.optim.RMSprop(weights, lr=0.1, foreach=False),
]


@pytest.mark.parametrize("number", range(len(OPTIMIZERS)))
@pytest.mark.parametrize("zeroed_last", [False, True])
def test_optimizers(replaced: list[int], number: int, zeroed_last: bool) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 7, bias=False), nn.BatchNorm1d(7), nn.GELU(), nn.Linear(7, 3))
        return model, OPTIMIZERS[number](model.parameters())

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        if not zeroed_last:
            optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if zeroed_last:
            optimizer.zero_grad()
        return loss.detach()

    inputs = torch.randn(6, 4, 6, generator=torch.Generator().manual_seed(2))
    (eager, slow), (lazy, fast) = made(), made()
    wanted = [float(step(eager, slow, x)) for x in inputs]
    with disc.lazy(strict=True):
        found = [float(step(lazy, fast, x)) for x in inputs]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lazy.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fast.state_dict()["state"], slow.state_dict()["state"], rtol=1e-3, atol=1e-4)
    if not zeroed_last:
        assert max(replaced) >= 2


def read_afterwards(w: Tensor, x: Tensor) -> Tensor:
    old = w * 1
    w.mul_(2)
    return (x @ old).sum() + old.cumsum(0).sum()


def transposed(w: Tensor, x: Tensor) -> Tensor:
    w.add_(w.t() * 0.5)
    return (x @ w).sum()


def broadcast(w: Tensor, x: Tensor) -> Tensor:
    w.sub_(w[:1] * 0.5)
    return (x @ w).sum()


def shifted(w: Tensor, x: Tensor) -> Tensor:
    w.add_(w.roll(1, 0) * 0.25)
    return (x @ w).sum()


def by_a_sum(w: Tensor, x: Tensor) -> Tensor:
    w.div_(w.abs().sum(1, keepdim=True))
    return (x @ w).sum()


@pytest.mark.parametrize("step", [read_afterwards, transposed, broadcast, shifted, by_a_sum])
def test_old_values_that_are_needed(step: Step) -> None:
    check(step, tensors((6, 6)))


def test_two_that_change_places() -> None:
    """Each is written while the other still needs its old value."""

    def step(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        old = a.clone()
        a.copy_(b * 2)
        b.copy_(old + 1)
        return (x @ a @ b).sum()

    check(step, tensors((6, 6), (6, 6)))


def test_a_value_that_outlives_the_step() -> None:
    """The value that becomes the weight, and the weight's old one, are held as tensors of their own."""
    held = list[list[Tensor]]()

    def step(w: Tensor, x: Tensor) -> Tensor:
        before, new = w + 0, w * 0.5 + x.sum()
        w.copy_(new)
        held.append([before, new])
        return new.sum()

    check(step, tensors((6, 6)))
    torch.testing.assert_close(held[5:], held[:5])


def test_views_strides_and_sizes() -> None:
    def made() -> list[Tensor]:
        base = torch.arange(144.0).reshape(12, 12)
        return [base[3:9, :6], torch.arange(36.0).reshape(6, 6).t(), torch.zeros(0, 6), torch.tensor(2.0), torch.arange(12.0)[3:9]]

    def step(a: Tensor, b: Tensor, empty: Tensor, number: Tensor, line: Tensor, x: Tensor) -> Tensor:
        for each in (a, b, empty, number, line):
            each.mul_(0.5).add_(1)
        return (x @ a @ b).sum() + number + line.sum()

    check(step, made)


def test_memory_that_inputs_share() -> None:
    """Recorded with memory of their own, and called with such as overlaps."""

    def step(w: Tensor, other: Tensor) -> Tensor:
        made = other * 2
        w.mul_(0.5).add_(1)
        return (made * 2).sum()

    def inputs(shared: bool) -> tuple[Tensor, Tensor]:
        base = torch.arange(24.0)
        return base[:12], base[6:18] if shared else base[12:].clone()

    results, written = list[float](), list[Tensor]()
    for lazy in (False, True):
        with disc.lazy() if lazy else torch.no_grad():
            for shared in (False, False, False, True, False, True):
                w, other = inputs(shared)
                results.append(float(step(w, other)))
                written.append(w.clone())
    torch.testing.assert_close(results[6:], results[:6])
    torch.testing.assert_close(written[6:], written[:6])


def test_memory_that_several_storages_have() -> None:
    """As of arrays that are handed over twice: a write by the one was not seen by the other."""

    def steps() -> Iterator[list[float]]:
        array = np.ones(4, np.float32)
        one, part, same = torch.from_numpy(array), torch.from_numpy(array[1:]), torch.from_dlpack(torch.from_numpy(array))
        for _ in range(6):
            one.mul_(1.5)
            yield [(part * 2).sum().item(), (same * 3).sum().item()]
            same.add_(1)
            yield [one[1:].sum().item(), part.sum().item()]

    expected = list(steps())
    with disc.lazy():
        np.testing.assert_allclose(list(steps()), expected)


def test_tied_weights() -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        head.weight = embedding.weight
        model = nn.Sequential(embedding, head)
        return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(ids).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    (eager, slow), (lazy, fast), ids = made(), made(), torch.arange(6).reshape(2, 3)
    wanted = [float(step(eager, slow, ids)) for _ in range(5)]
    with disc.lazy(strict=True):
        found = [float(step(lazy, fast, ids)) for _ in range(5)]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lazy.state_dict(), eager.state_dict())


def test_gradients_that_need_the_old_value() -> None:
    """Autograd sees that a saved tensor was written, as without a recorder."""

    def fails(recorded: bool) -> list[str]:
        messages = list[str]()
        w = torch.ones(6, 6)
        with disc.lazy() if recorded else torch.enable_grad():
            for _ in range(4):
                leaf = torch.ones(6, 6, requires_grad=True)
                kept = leaf * w
                assert float(kept.sum()) > 0
                w.mul_(0.5).add_(1)
                float(w.sum())
                with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
                    kept.sum().backward()
                messages.append(type(error.value).__name__)
        return messages

    assert fails(True) == fails(False)


def test_a_call_that_fails_leaves_what_it_would_write(replaced: list[int]) -> None:
    """An index that is out of range is found before anything is written, by the program and by eager alike."""
    table, w, seen = torch.randn(5, 4), torch.zeros(3, 4), torch.zeros(4)

    def step(at: Tensor) -> Tensor:
        w.add_(1)
        rows = table[at]
        seen.mul_(0.5).add_(rows.sum(0))
        return rows.sum()

    good, bad = torch.tensor([0, 1, 4]), torch.tensor([0, 5, 1])
    with disc.lazy():
        for _ in range(4):
            step(good).item()
        assert max(replaced) == 2
        was = seen.clone()
        with pytest.raises(IndexError):
            step(bad).item()
        torch.testing.assert_close(seen, was)
        assert w.unique().tolist() == [5.0]  # as in eager: the first of the calls has been made, and once
        step(good).item()
    torch.testing.assert_close(seen, was * 0.5 + table[good].sum(0))


def test_an_error_behind_the_writing_is_no_reason_to_compute_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would begin with the new values."""

    def run(inputs: list[object]) -> list[object]:
        raise WrittenError("written")

    def ran_out(inputs: list[object]) -> list[object]:
        raise OutOfMemoryError("none left")

    graph = EagerGraph(torch.fx.symbolic_trace(lambda x: (x + 1,)))
    with pytest.raises(WrittenError):
        or_eager(run, graph, Settings(), "here")([torch.ones(2)])
    with pytest.warns(DiscWarning, match="refused a call"):
        assert or_eager(ran_out, graph, Settings(), "here")([torch.ones(2)])[0].tolist() == [2, 2]


def test_a_tensor_of_inference_mode() -> None:
    """After steps with others: PyTorch refuses to write it outside that mode, when it has."""
    with torch.inference_mode():
        eager, lazy = torch.ones(6, 5), torch.ones(6, 5)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        momentum(eager, torch.zeros(6, 5), torch.ones(4, 6))
    with disc.lazy():
        for each in (torch.ones(6, 5), torch.ones(6, 5), torch.ones(6, 5)):
            momentum(each, torch.zeros(6, 5), torch.ones(4, 6)).item()
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            momentum(lazy, torch.zeros(6, 5), torch.ones(4, 6)).item()
    torch.testing.assert_close(lazy, eager)


def test_threads_that_run_one_program() -> None:
    results = dict[int, tuple[Tensor, Tensor]]()

    def work(number: int) -> None:
        w, m = (each * (number + 1) for each in tensors((60, 50), (60, 50))())
        with disc.lazy():
            for _ in range(12):
                momentum(w, m, torch.ones(4, 60)).item()
        results[number] = w, m

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number in range(4):
        w, m = (each * (number + 1) for each in tensors((60, 50), (60, 50))())
        for _ in range(12):
            momentum(w, m, torch.ones(4, 60))
        torch.testing.assert_close(results[number], (w, m), rtol=1e-3, atol=1e-4)


def test_lazy_clones_keep_their_values() -> None:
    """Of a tensor that shares its memory until one of both is written."""
    w = torch.ones(6, 6)
    m = torch.zeros(6, 6)
    with disc.lazy():
        for _ in range(4):
            momentum(w, m, torch.ones(4, 6)).item()
        kept, was = FUNCTIONS._lazy_clone(w), w.clone()
        momentum(w, m, torch.ones(4, 6)).item()
    torch.testing.assert_close(kept, was)
    assert not torch.equal(w, was)


def test_written_inputs_are_computed_in_place(replaced: list[int]) -> None:
    """Where a graph updates them element by element: what it returns besides, and their versions, are as in eager."""

    def update(w: Tensor, m: Tensor, x: Tensor) -> Tensor:
        m.mul_(0.9).add_(x, alpha=0.1)
        w.sub_(m, alpha=0.1)
        return x * 2

    compiled = torch.compile(update, backend="disc", options={"strict": True})
    for overlapping in (False, True, False):
        given = [torch.arange(60.0), torch.arange(60.0) * 2, torch.arange(20.0) + 1]
        wanted = [each.clone() for each in given]
        w, m, x = given[0][:20], given[0][20:40] if overlapping else given[1][:20], given[2]
        v, n, y = wanted[0][:20], wanted[0][20:40] if overlapping else wanted[1][:20], wanted[2]
        version = w._version
        torch.testing.assert_close(compiled(w, m, x), update(v, n, y))
        torch.testing.assert_close(given, wanted)
        assert w._version > version
    assert max(replaced) == 2


def test_a_result_that_becomes_an_input_keeps_its_memory() -> None:
    def copied(w: Tensor, x: Tensor) -> Tensor:
        made = x * 2
        w.copy_(made)
        return made.view(-1)

    w, x = torch.zeros(3, 4), torch.ones(3, 4)
    made = torch.compile(copied, backend="disc", options={"strict": True})(w, x)
    w.zero_()
    assert made.tolist() == [2] * 12


def with_a_loop(w: Tensor, x: Tensor, n: Tensor) -> Tensor:
    def step(i: Tensor, h: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        return i + 1, h * 2 + x, k.clone()

    _, h, k = torch.while_loop(lambda i, h, k: i < n, step, (torch.zeros((), dtype=torch.int64), w.clone(), w.clone()))
    w.mul_(0.5)
    return h + k


def with_branches(w: Tensor, x: Tensor, n: Tensor) -> Tensor:
    h = torch.cond(n > 0, lambda w, x: w.clone(), lambda w, x: w * 1, (w, x))
    w.mul_(0.5)
    return h


@pytest.mark.parametrize("function", [with_a_loop, with_branches])
def test_old_values_that_control_flow_hands_on(function: Callable[..., Tensor]) -> None:
    with torch.no_grad():
        compiled = torch.compile(function, backend="disc", options={"strict": True})
        for steps in (0, 1, 3, 0):
            mine, wanted = torch.ones(20), torch.ones(20)
            found = compiled(mine, torch.ones(20), torch.tensor(steps))
            torch.testing.assert_close(found, function(wanted, torch.ones(20), torch.tensor(steps)))
            torch.testing.assert_close(mine, wanted)


def test_what_torch_compile_may_not_write() -> None:
    def update(w: Tensor, x: Tensor) -> Tensor:
        w.mul_(0.5).add_(x)
        return x * 2

    with torch.inference_mode():
        w = torch.ones(8)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        torch.compile(update, backend="disc", options={"strict": True})(w, torch.ones(8))
    assert w.tolist() == [1] * 8
