"""Mistakes and odd programs under `disc.lazy` end as in PyTorch, in calls that are only recorded too: the same errors with the user's line."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import disc
from disc.frontend.lazy import public, recorder, recording, run_ends
from disc.frontend.lazy.outline import is_freed
from disc.frontend.lazy.run_ends import RunEnds

X = torch.linspace(-1, 1, 12).view(3, 4)
W = torch.linspace(0, 2, 16).view(4, 4)


def outcome(step: Callable[[], object]) -> tuple[Any, str]:
    """What a step gives, or the kind and the beginning of its error; the notes of the error."""
    try:
        value = step()
        return value.tolist() if isinstance(value, Tensor | np.ndarray) else value, ""
    except RuntimeError as error:
        return (type(error), str(error).split("\n")[0][:60]), " ".join(getattr(error, "__notes__", []))


def both(step: Callable[[int], object], times: int = 6) -> list[str]:
    """Runs a step in eager mode and lazily; the outcomes have to agree. Returns the notes of the lazy errors."""
    expected = [outcome(lambda n=n: step(n))[0] for n in range(times)]
    with disc.lazy():
        found = [outcome(lambda n=n: step(n)) for n in range(times)]
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, float | list):
            np.testing.assert_allclose(ours[0], theirs, rtol=1e-4)
        else:
            assert ours[0] == theirs
    return [notes for _, notes in found]


def test_a_loss_that_is_no_scalar() -> None:
    w = nn.Parameter(W.clone())

    def step(n: int) -> object:
        w.grad = None
        loss = (X @ w).tanh()
        (loss.sum() if n < 4 else loss).backward()
        return w.grad

    both(step)
    assert disc.lazy.stats().hits


def test_a_loss_that_is_a_scalar_for_some_sizes() -> None:
    """The backward pass is only recorded when the sizes come that make it an error."""
    w = nn.Parameter(W[0].clone())

    def step(n: int) -> object:
        w.grad = None
        loss = X[: 1 if n < 4 else 2] @ w
        loss.backward()
        assert w.grad is not None
        return w.grad.sum().item()

    notes = both(step)
    assert disc.lazy.stats().hits
    assert all(not each or "test_lazy_misuse.py:" in each for each in notes)


def test_a_graph_is_freed_twice() -> None:
    w = nn.Parameter(W.clone())

    def step(n: int) -> object:
        w.grad = None
        loss = (X @ w).square().sum()
        loss.backward()
        if n >= 3:
            loss.backward()
        return w.grad

    both(step)


def test_a_parameter_is_changed_while_it_is_needed() -> None:
    w = nn.Parameter(W.clone())

    def step(n: int) -> object:
        w.grad = None
        loss = (X @ w).square().sum()
        if n >= 3:
            with torch.no_grad():
                w.mul_(1.0)
        loss = loss + (w * w).sum()
        if n == 4:
            w.data.mul_(1.0)
        loss.backward()
        return w.grad

    both(step)

    def late(n: int) -> object:
        w.grad = None
        loss = (w * w).sum()
        with torch.no_grad():
            w.add_(0.0)
        loss.backward()  # "modified by an inplace operation"
        return w.grad

    both(late)


def test_a_class_that_there_is_not() -> None:
    """An op of the program has other words and another exception for it than the call."""
    w = nn.Parameter(W.clone())
    for n in range(6):
        with disc.lazy():
            loss = nn.functional.cross_entropy(X @ w, torch.tensor([0, 1, 7 if n in (3, 5) else 2]))
            if n in (3, 5):
                with pytest.raises(IndexError, match="Target 7 is out of bounds") as raised:
                    loss.item()
                assert "test_lazy_misuse.py:" in "".join(raised.value.__notes__)
            else:
                assert loss.item() > 0
                loss.backward()
    assert disc.lazy.stats().hits, disc.lazy.stats()


def test_recording_ends_within_another_mode() -> None:
    before = torch._C._len_torch_function_stack()
    disc.lazy.enable()
    with torch.device("meta"):
        disc.lazy.disable()
        assert torch.zeros(2).is_meta
    assert torch._C._len_torch_function_stack() == before
    assert torch.zeros(2).tolist() == [0, 0]


def test_an_exception_between_recorded_calls() -> None:
    total = torch.zeros(3)

    def step(n: int) -> object:
        if n == 0:
            total.zero_()
        total.add_(1)
        if n in (2, 4):
            raise RuntimeError("mine")
        return (total * 2).tolist()

    both(step, 8)


def test_a_read_inside_a_hook() -> None:
    w, seen = nn.Parameter(W.clone()), list[float]()

    def step(n: int) -> object:
        w.grad = None
        other = (X @ W).tanh().sum()
        loss = (X @ w).square().sum()
        if n >= 3:
            handle = w.register_hook(lambda gradient: seen.append(other.item() + gradient.sum().item()))
            loss.backward()
            handle.remove()
        else:
            loss.backward()
        return w.grad

    both(step)
    assert len(seen) == 6
    np.testing.assert_allclose(seen[3:], seen[:3], rtol=1e-4)


def test_a_read_or_a_flush_runs_the_program_without_python_and_python_tells_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    by_python = list[object]()
    run_compiled = RunEnds._run_compiled
    monkeypatch.setattr(RunEnds, "_run_compiled", lambda self, run: (by_python.append(run), run_compiled(self, run))[1])

    def step(rows: Tensor, index: Tensor, scale: float) -> Tensor:
        doubled = rows + rows
        return doubled.index_select(0, index) * scale

    index, other = torch.tensor([0, 2]), torch.tensor([1, 0, 2])
    expected = {scale: (step(X, index, scale).tolist(), step(X, other, scale).tolist()) for scale in (1.5, 2.5)}
    with disc.lazy():
        for number in range(6):  # of two sizes and numbers, and then again of the same ones
            for at in (index, other):
                step(X, at, 1.5 + number % 2).tolist()
        by_python.clear()
        hits = disc.lazy.stats().hits
        for number in range(4):
            assert step(X, index, 1.5 + number % 2).tolist() == expected[1.5 + number % 2][0]
        pending = step(X, other, 1.5)
        reader = threading.Thread(target=lambda: read.append(pending.tolist()))
        read = list[object]()
        reader.start()
        reader.join()
        assert read == [expected[1.5][1]]
        held = step(X, index, 2.5)
        disc.lazy.flush()
        assert held.tolist() == expected[2.5][0]
        assert disc.lazy.stats().hits >= hits + 5 and not by_python
        by_python.clear()
        with pytest.raises(IndexError):
            step(X, torch.tensor([0, 9]), 1.5).tolist()
        assert by_python
        with torch.profiler.profile() as profile:
            step(X, index, 1.5).tolist()
        assert any("disc.lazy" in event.name for event in profile.events() or [])
        assert step(X, index, 2.5).tolist() == expected[2.5][0]


def test_threads_record_at_once_and_read_each_others_values() -> None:
    w, found, gate = nn.Parameter(W.clone()), dict[int, list[float]](), threading.Barrier(3)
    handed: dict[int, Tensor] = {}

    def work(number: int) -> None:
        gate.wait()
        with disc.lazy():
            found[number] = []
            for _ in range(6):
                handed[number] = torch.tanh(X * (number + 1) @ w.detach())
                found[number].append(handed[number].sum().item())
            handed[number] = torch.tanh(X * (number + 1) @ w.detach())
            gate.wait()
            found[number].append((handed[(number + 1) % 3] * 2).sum().item())  # pending in another thread
            gate.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for number in range(3):
        own, next_one = ((torch.tanh(X * (which + 1) @ W).sum().item()) for which in (number, (number + 1) % 3))
        np.testing.assert_allclose(found[number], [own] * 6 + [2 * next_one], rtol=1e-4)


def test_optimizers_of_two_threads_that_overlap() -> None:
    """What tells them that a compiler is looking, which is the process's, stayed on."""
    events = [threading.Event() for _ in range(3)]

    def work(first: bool) -> None:
        layer = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(layer.parameters())

        def closure() -> float:
            events[not first].set()
            events[1 if first else 2].wait(20)
            return 0.0

        with disc.lazy():
            if not first:
                events[0].wait(20)
            layer(X).sum().backward()
            optimizer.step(closure)
            if first:
                events[2].set()

    threads = [threading.Thread(target=work, args=(first,)) for first in (True, False)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not torch.compiler.is_compiling()


def test_a_fork_leaves_pending_values_to_both() -> None:
    read, write = os.pipe()
    expected = torch.tanh(X @ W).sum().item()
    with disc.lazy():
        for _ in range(4):
            torch.tanh(X @ W).sum().item()
        pending = torch.tanh(X @ W).sum()
        child = os.fork()
        if child == 0:
            try:
                values = [pending.item(), torch.tanh(X @ W).sum().item()]
                os.write(write, ("ok" if np.allclose(values, expected, rtol=1e-4) else repr(values)).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 100) == b"ok"
        assert pending.item() == pytest.approx(expected, rel=1e-4)
    os.close(read)
    os.close(write)


def test_handles_are_used_again_only_when_nobody_holds_them() -> None:
    held = list[Tensor]()
    with disc.lazy():
        for n in range(8):
            y = torch.tanh(X @ W) + n % 2
            if n >= 4:
                y.mine = n  # pyright: ignore[reportAttributeAccessIssue]
                held.append(y)
            assert y.sum().item() == pytest.approx((torch.tanh(X @ W) + n % 2).sum().item(), rel=1e-4)
            assert not hasattr(torch.tanh(X @ W), "mine")
    assert len(set(map(id, held))) == 4
    for n, each in enumerate(held, 4):
        assert each.mine == n  # pyright: ignore[reportAttributeAccessIssue]
        torch.testing.assert_close(each + 0, torch.tanh(X @ W) + n % 2)


def test_handles_that_only_others_hold_are_freed_with_these() -> None:
    """They stayed among those that outlive their run, and what came to lie there was taken for one."""
    with disc.lazy():
        ys, zs = cast("Any", (X * 2).unbind(0)), (X * 3).unbind(0)
        assert ys[0].sum().item() != 0
        ys[0].other, ys[1].other, ys[2].other = zs
        follower, gone = public._thread.active.follower, [weakref.ref(each) for each in zs]  # pyright: ignore[reportOptionalMemberAccess]
        del ys, zs
        assert not follower.outliving() and not any(each() is not None for each in gone)


def test_an_interrupt_while_a_call_makes_its_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it had made stayed in the run, and the next ones stood for others' values."""
    make, left = recorder.new_handle, [-1]

    def interrupted() -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return make()

    monkeypatch.setattr(recorder, "new_handle", interrupted)
    expected, held = [(row * 2).tolist() for row in (X + 1).unbind(0)], list[Any]()
    with disc.lazy():
        for times in range(6):
            held.append(X + 1)
            y = held[-1] * 2
            left[0] = 2 if times % 2 else -1  # none is used again: all are held
            if left[0] > 0:
                with pytest.raises(KeyboardInterrupt):
                    y.unbind(0)
            held += [y, *y.unbind(0)]
            assert [each.tolist() for each in held[-3:]] == expected
    assert disc.lazy.stats().hits, disc.lazy.stats()


def test_a_thread_reads_while_another_one_is_within_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ended under the call."""
    make, armed, within, seen, held = recorder.new_handle, list[Tensor](), threading.Event(), list[object](), list[Tensor]()

    def read() -> None:
        within.wait(10)
        seen.append(armed[0].tolist())

    def changing() -> Any:
        if armed and not within.is_set():
            within.set()
            reader.join(0.2)
        return make()

    monkeypatch.setattr(recorder, "new_handle", changing)
    reader = threading.Thread(target=read)
    reader.start()
    with disc.lazy():
        for n in range(6):
            held.append(X + 1)
            if n == 5:
                armed.append(held[-1])
            held += [held[-1] * 2, held[-1] * 2 + 10]
            assert held[-1].tolist() == ((X + 1) * 2 + 10).tolist()
    reader.join(10)
    assert seen == [(X + 1).tolist()] and disc.lazy.stats().hits


def test_handles_that_are_dropped_late_are_used_again() -> None:
    """Their values go at once. One that somebody has marked, or looks at from aside, is none that another value may get."""

    def computed() -> Any:
        y = torch.tanh(X @ W)
        assert y.sum().item() != 0 and not hasattr(y, "mine")
        return y

    with disc.lazy():
        y = [computed() for _ in range(4)][-1]
        value, aside = weakref.ref(y._value), weakref.ref(y)
        y.mine = 1
        del y
        assert value() is None and aside() is None
        y = computed()
        for _ in range(20):
            value, y = weakref.ref(y._value), computed()
            assert value() is None
        for _ in range(4):  # the collector frees who holds one
            cycle: list[Any] = [*(computed() for _ in range(4))]
            cycle.insert(0, cycle)
            del cycle
            gc.collect()
    torch.testing.assert_close(y + 0, torch.tanh(X @ W))


def test_nothing_of_a_call_is_kept_behind_its_backward_pass() -> None:
    """Its inputs and its weights, where values are read before: gradients of gradients could still follow."""
    layer, inputs = torch.nn.Linear(4, 4), list[weakref.ref[Tensor]]()
    weight = weakref.ref(layer.weight)

    def run(layer: torch.nn.Module, x: Tensor) -> None:
        inputs.append(weakref.ref(x))
        loss = torch.tanh(layer(x)).sum()
        assert loss.item() != 0
        loss.backward()

    with disc.lazy():
        for _ in range(5):
            run(layer, torch.randn(3, 4))
    assert disc.lazy.stats().hits
    del layer
    gc.collect()
    assert weight() is None and not any(each() is not None for each in inputs)


def test_what_never_repeats_leaves_pytorch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the warning no call is handed over any more, and a block that is entered again does not start anew."""
    monkeypatch.setattr(run_ends, "FRUITLESS", 20)
    with pytest.warns(UserWarning, match="none of which came twice") as caught, disc.lazy():
        for n in range(30):
            X.clamp(max=n / 40).sum().item()
        assert torch._C._len_torch_function_stack() == 0
        held = X.clamp(max=0.5).sum()
        assert type(held) is Tensor
    with disc.lazy():
        assert torch._C._len_torch_function_stack() == 0
        X.sum().item()
    assert torch._C._len_torch_function_stack() == 0
    assert len(caught) == 1


def test_what_differs_in_every_step_is_no_part_of_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traces grew with every step, though the rest of the program was compiled."""
    monkeypatch.setattr(recording, "MOST_BRANCHES", 4)
    with disc.lazy():
        found, steps = list[float](), list[int]()
        for n in range(24):
            y = (torch.tanh(X @ W) * 2).clamp(max=n / 40)
            found.append((torch.sin(y) + 1).sum().item())
            steps.append(disc.lazy.stats().noted)
    expected = [(torch.sin((torch.tanh(X @ W) * 2).clamp(max=n / 40)) + 1).sum().item() for n in range(24)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert steps[-1] == steps[-8] and disc.lazy.stats().hits >= 20, disc.lazy.stats()


def test_what_is_new_in_every_step_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equations, strides of inputs, functions for numbers of results: those that are known go on to be recorded."""
    for each in (recorder, recording):
        monkeypatch.setattr(each, "MOST_KNOWN", 64)

    def step(n: int) -> Tensor:
        x = torch.arange(60.0).view(3, 20)
        parts = x.flatten().split(1 + n % 59) if n % 2 else (x.as_strided((2, 2), (1, 1 + n // 2 % 50)),)
        return torch.einsum(f"iz,jz->{' ' * n}", x, x) + torch.stack([(each + 1).sum() for each in parts]).sum()

    def known() -> float:
        with disc.lazy():
            return (X.sin() @ W).square().sum().item()

    first = [known() for _ in range(4)]
    for n in range(200):
        expected = step(n)
        with disc.lazy():
            torch.testing.assert_close(step(n).item(), expected.item())
    hits = disc.lazy.stats().hits
    assert known() == pytest.approx(first[0])
    assert disc.lazy.stats().hits == hits + 1
    (mine,) = public._thread.recorders.values()
    assert len(mine.follower.roles) <= 64


def test_many_first_calls_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that began otherwise was compiled any more."""
    monkeypatch.setattr(recording, "MOST_BRANCHES", 4)
    with disc.lazy():
        for n in range(8):
            X.clamp(max=n / 40).sum().item()
        before = disc.lazy.stats().hits
        for _ in range(5):
            ((X * 2).tanh() + 1).sum().item()
        assert disc.lazy.stats().hits == before + 3


def test_a_loss_that_nobody_reads() -> None:
    """All steps were one trace, which held every batch, and was compiled as a whole."""
    layer, batches = nn.Linear(4, 2), list[weakref.ref[Tensor]]()
    other = nn.Linear(4, 2)
    other.load_state_dict(layer.state_dict())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (layer, other)]

    def step(n: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        batch = torch.full((3, 4), 0.5)
        batches.append(weakref.ref(batch))
        optimizer.zero_grad()
        model(batch.sin() if n % 2 else batch).square().mean().backward()
        optimizer.step()

    with disc.lazy():
        for n in range(24):
            step(n, layer, optimizers[0])
            assert all(each() is None for each in batches[:-1])
    for n in range(24):
        step(n, other, optimizers[1])
    torch.testing.assert_close(list(layer.parameters()), list(other.parameters()), rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits >= 18 and disc.lazy.stats().compiles <= 3, disc.lazy.stats()


def test_two_optimizers_that_take_turns() -> None:
    """Between their steps the graph of what the first one made is needed on."""
    nets = [(nn.Linear(4, 4), nn.Linear(4, 1)) for _ in range(2)]
    for one, other in zip(*nets, strict=True):
        other.load_state_dict(one.state_dict())
    optimizers = [[torch.optim.SGD(each.parameters(), 0.1) for each in pair] for pair in nets]

    def step(number: int, count: int) -> list[float]:
        (maker, judge), (first, second) = nets[number], optimizers[number]
        made = torch.tanh(maker(X[:count]))
        second.zero_grad()
        judged = judge(made.detach()).square().mean() + judge(X[:count]).mean()
        judged.backward()
        second.step()
        first.zero_grad()
        loss = judge(made).square().mean()
        loss.backward()
        first.step()
        return [judged.item(), loss.item()]

    for count in (3, 3, 3, 2, 3, 1, 2, 3):
        with disc.lazy():
            found = step(0, count)
        np.testing.assert_allclose(found, step(1, count), rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits and not disc.lazy.stats().refused, disc.lazy.stats()


def test_a_failed_call_is_raised_once() -> None:
    """Where PyTorch makes calls that were pending, as the program goes on otherwise: the end of recording computes nothing of them."""
    w = nn.Parameter(W.clone())

    def step(count: int) -> object:
        w.grad = None
        h = X @ w
        (h + torch.ones(count)).sum().backward()
        return w.grad

    for count in (4, 4, 4, 3, 4, 3, 4):
        expected = outcome(lambda count=count: step(count))[0]
        with disc.lazy():
            found = outcome(lambda count=count: step(count))[0]
        assert found == expected
    assert disc.lazy.stats().hits, disc.lazy.stats()


class _Pair:
    """Two nets without a weight in common, and one that both use."""

    def __init__(self) -> None:
        self.one, self.other, self.common = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        for number, each in enumerate(self.parameters()):
            nn.init.constant_(each, 0.1 * number + 0.1)

    def parameters(self) -> list[Tensor]:
        return [*self.one.parameters(), *self.other.parameters(), *self.common.parameters()]

    def losses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.common(self.one(x)).tanh().sum(), self.common(self.other(x * 2)).square().sum()


def read_both(net: _Pair, x: Tensor) -> object:
    one, other = net.losses(x)
    found = one.item() + other.item()
    one.backward()
    other.backward()
    return found


def _read_and_passed(read: Tensor, *losses: Tensor) -> object:
    """A value that is read, before losses have their passes in this order."""
    found = read.item()
    for each in losses:
        each.backward()
    return found


def read_one_and_pass_the_other_first(net: _Pair, x: Tensor) -> object:
    one, other = net.losses(x)
    return _read_and_passed(one, other, one)


def of_two_chains_that_cross(net: _Pair, x: Tensor) -> object:
    one, other = net.one(x), net.other(x)
    first, second = one.tanh().sum(), other.square().sum()
    return _read_and_passed(first, second, first)


def beside_their_sum(net: _Pair, x: Tensor) -> object:
    one, other = net.losses(x)
    return _read_and_passed(one + other, one, other)


def a_step_between(net: _Pair, x: Tensor) -> object:
    """Of an optimizer, behind which what the second pass needs is held."""
    one, other = net.losses(x)
    one.backward()
    torch.optim.Adam(net.one.parameters()).step()
    other.backward()
    return one.item() + other.item()


def many(net: _Pair, x: Tensor) -> object:
    losses = [net.one(row).square().sum() for row in x]
    found = sum(each.item() for each in losses)
    for each in losses:
        each.backward()
    return found


def a_loss_that_is_infinite(net: _Pair, x: Tensor) -> object:
    one, other = (net.one(x) * float("inf")).sum(), (net.one(x) + net.other(x)).sum()
    if torch.isfinite(one):
        one.backward()
    other.backward()
    return other.item()


def beside_a_pole(net: _Pair, x: Tensor) -> object:
    """The derivative of what is only looked at is infinite."""
    h = net.one(x)
    change, loss = (h - h.detach()).norm(), net.other(h).square().sum()
    found = loss.item() + change.item()
    loss.backward()
    return found


def twice(net: _Pair, x: Tensor) -> object:
    one, other = net.losses(x)
    one.item()
    one.backward()
    with pytest.raises(RuntimeError, match="second time"):
        one.backward()
    other.backward()
    return other.item()


def a_part_that_saves_nothing(net: _Pair, x: Tensor) -> object:
    """Both have it in common, and each of them frees nothing of it."""
    h = net.one.bias + x
    one, other = h.sum(), (h * net.other.bias).sum()
    found = one.item() + other.item()
    other.backward()
    one.backward()
    with pytest.raises(RuntimeError, match="second time"):
        other.backward()
    return found


def what_saves_nothing_again(net: _Pair, x: Tensor) -> object:
    loss = (net.one.bias + x).sum()
    found = loss.item()
    loss.backward()
    loss.backward()
    return found


@pytest.mark.parametrize(
    "step",
    [
        a_part_that_saves_nothing,
        what_saves_nothing_again,
        read_both,
        read_one_and_pass_the_other_first,
        of_two_chains_that_cross,
        beside_their_sum,
        a_step_between,
        many,
        a_loss_that_is_infinite,
        twice,
    ],
)
def test_each_loss_has_a_backward_pass(step: Callable[[_Pair, Tensor], object]) -> None:
    """One frees nothing that the other needs, though one program would have kept it all."""
    net, expected = _Pair(), _Pair()
    for n in range(12):
        x = X * (1 + 0.1 * n)
        with disc.lazy():
            found = step(net, x)
        assert found == pytest.approx(step(expected, x), rel=1e-3)
        torch.testing.assert_close(
            [each.grad for each in net.parameters()], [each.grad for each in expected.parameters()], rtol=1e-3, atol=1e-4
        )
    before = disc.lazy.stats().uncompiled
    with disc.lazy():
        step(net, X)
    assert disc.lazy.stats().uncompiled == before and disc.lazy.stats().hits, disc.lazy.stats()


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


def test_what_may_be_spoiled_is_refused_where_it_cannot_be_made_again() -> None:
    """Zeros for the gradient of an infinite value beside the loss make the loss's gradients NaN; dropout would draw anew."""
    weight, bias = nn.Parameter(W.clone()), nn.Parameter(torch.zeros(4))

    def step(n: int, factor: float) -> Tensor:
        weight.grad = bias.grad = None
        hidden = nn.functional.dropout(X * (1 + n % 3) @ weight + bias, 0.5)
        beside, loss = (hidden * torch.tensor(factor)).sum(), hidden.square().sum()
        beside.item()
        loss.item()
        loss.backward()
        return cast("Tensor", weight.grad)

    for n in range(5):
        with disc.lazy():
            step(n, 2.0)
    with pytest.raises(RuntimeError, match="flush"), disc.lazy():
        step(5, float("inf"))
    assert disc.lazy.stats().hits


def test_a_loss_that_overflows_beside_what_it_is_made_of() -> None:
    """Its gradients are those of eager, infinite or not numbers: a scaler of losses looks for them."""
    weight = nn.Parameter(W.clone())

    def step(n: int) -> Tensor:
        weight.grad = None
        hidden = nn.functional.dropout(X * (1 + n % 3) @ weight, 0.5)
        loss = hidden.square().sum() * (float("inf") if n == 6 else 1.0 + n)
        hidden.sum().item()
        loss.item()
        loss.backward()
        return cast("Tensor", weight.grad)

    for n in range(8):
        with disc.lazy():
            finite = bool(step(n).isfinite().all())
        assert finite == (n != 6)
    assert disc.lazy.stats().hits


class _Last:
    """Calls PyTorch where it is freed."""

    def __init__(self, value: Tensor, found: list[float], *, in_cycle: bool) -> None:
        self.value, self.found, self.cycle = value, found, self if in_cycle else None

    def __del__(self) -> None:
        self.found.append(float((self.value * 3).sum()))
        disc.lazy.flush()


@pytest.mark.parametrize("in_cycle", [False, True])
def test_finalizers_call_pytorch(in_cycle: bool) -> None:
    """They run where a call lets go of what it has promised, or of a gradient, and where garbage is collected."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1 if in_cycle else 0)
    try:
        results = list[list[Any]]()
        for lazily in (False, True):
            weight, count, mine = nn.Parameter(W.clone()), 0, list[Any]()
            for count in range(9):
                found = list[float]()
                with disc.lazy() if lazily else nullcontext():
                    hidden = (X[: 1 + count % 3] @ weight).tanh()
                    out = hidden @ weight
                    out.last = _Last(hidden.detach(), found, in_cycle=in_cycle)  # pyright: ignore[reportAttributeAccessIssue]
                    loss = out.square().sum()
                    _Last(loss.detach(), found, in_cycle=in_cycle)
                    del out
                    if count % 2:
                        _Last(X, found, in_cycle=in_cycle)
                    weight.grad = None
                    loss.backward()
                    weight.grad.last = _Last(X, found, in_cycle=in_cycle)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
                    mine += [loss.item(), cast("Tensor", weight.grad).clone()]
                    weight.grad = None
                    del loss, hidden
                gc.collect()
                mine += [sorted(found)]
            results.append(mine)
    finally:
        gc.set_threshold(*thresholds)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_what_functions_in_python_have_saved() -> None:
    """Programs are such: a state that outlives a step of an optimizer comes of one."""
    value = _Square.apply(torch.ones(3, requires_grad=True)).sum() + 1
    assert not is_freed(value)
    value.backward()
    assert is_freed(value)
