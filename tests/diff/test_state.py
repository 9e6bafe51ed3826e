"""Programs that write: what they keep from call to call, and inputs."""

from __future__ import annotations

import copy
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import disc
from disc.errors import AliasError, ConfigurationError, DiscError, InputTypeError, ShapeConstraintError, UnsupportedOpError
from disc.serving.model import load_model
from disc.serving.settings import Limits, ModelSettings


class Running(nn.Module):
    """Counts its calls and sums rows up, in two types; draws a number for each call."""

    count: torch.Tensor
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("total", torch.ones(4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.total.add_(x.sum(0))
        return self.total / self.count


class Cache(nn.Module):
    keys: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 16, 8))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, position, x)
        return torch.matmul(x, self.keys.transpose(1, 2))


class Writing(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        y.mul_(2)
        x.add_(y + z)
        return x.sum(-1)


def compiled(model: nn.Module, *inputs: torch.Tensor) -> disc.Executable:
    return disc.compile(copy.deepcopy(model), inputs, options=disc.Options(cache=False))


def test_buffers_are_kept_from_call_to_call(tmp_path: Path) -> None:
    model = Running()
    first = compiled(model, torch.ones(3, 4, dtype=torch.bfloat16))
    assert [each.name for each in first.inputs] == ["x"] and len(first.outputs) == 1
    path = tmp_path / "running.disc"
    first.save(path)
    loaded = disc.load(path)
    for rows in (3, 1, 0, 7):
        x = torch.randn(rows, 4).to(torch.bfloat16)
        expected = model(x)
        for executable in (first, loaded):
            assert torch.equal(executable(x), expected)  # pyright: ignore[reportArgumentType]
            assert executable.state["count"] == model.count.numpy()
            assert np.array_equal(executable.state["total"], model.total.view(torch.uint16).numpy())
    first.save(path)
    assert dict(disc.load(path).state)["count"] == 3, "a file has the values of the compile"
    np.savez(tmp_path / "state.npz", **first.state)  # pyright: ignore[reportArgumentType]
    first.state.reset()
    assert first.state["count"] == 3 and dict(loaded.state)["count"] == 7
    with np.load(tmp_path / "state.npz") as saved:
        first.state.update(saved)
    assert torch.equal(first(x), model(x))  # pyright: ignore[reportArgumentType]


def test_state_is_checked() -> None:
    executable, plain = compiled(Running(), torch.ones(3, 4, dtype=torch.bfloat16)), compiled(nn.ReLU(), torch.ones(3))
    assert len(plain.state) == 0
    given = executable.state["count"]
    given[...] = 99
    assert executable.state["count"] == 3, "what is read is a copy"
    with pytest.raises(InputTypeError, match=r"state 'count' is int64\[\], got int64\[1\]"):
        executable.state["count"] = np.zeros(1, np.int64)
    with pytest.raises(DiscError, match="there is no state 'counts'; there is 'count', 'total'"):
        executable.state["counts"] = given
    with pytest.raises(DiscError, match="cannot be deleted"):
        del executable.state["count"]
    x = torch.ones(3, 4, dtype=torch.bfloat16)
    with pytest.raises(DiscError, match="out: results"):
        executable(x, out=torch.empty(4, dtype=torch.bfloat16))
    executable.state["count"] = np.array(9)
    executable(x)
    assert executable.state["count"] == 10


def test_a_call_that_fails_changes_nothing() -> None:
    model = Cache()
    executable = compiled(model, torch.randn(2, 3, 8), torch.arange(3))
    for places in ([0, 1, 2], [15], [], [5, 4]):
        x, position = torch.randn(2, len(places), 8), torch.tensor(places, dtype=torch.int64)
        torch.testing.assert_close(executable(x, position), model(x, position))
        assert np.array_equal(executable.state["keys"], model.keys.numpy())
    with pytest.raises(ShapeConstraintError, match="index 16 is out of range"):
        executable(torch.randn(2, 2, 8), torch.tensor([3, 16]))
    with pytest.raises(ShapeConstraintError):
        executable(torch.randn(2, 3, 8), torch.tensor([3]))
    assert np.array_equal(executable.state["keys"], model.keys.numpy())


def test_calls_of_several_threads_take_turns() -> None:
    executable, x = compiled(Running(), torch.ones(3, 4, dtype=torch.bfloat16)), torch.zeros(2, 4, dtype=torch.bfloat16)
    workers = [threading.Thread(target=lambda: [executable(x) for _ in range(50)]) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert executable.state["count"] == 203


def test_inputs_are_written() -> None:
    model = Writing()
    executable = compiled(model, *(torch.randn(3, 4) for _ in range(3)))
    for sizes in ((5, 7), (1, 1), (0, 3)):
        own = [torch.randn(sizes) for _ in range(3)]
        theirs = [each.clone() for each in own]
        torch.testing.assert_close(executable(*own), model(*theirs))
        assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))
    x, y = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    assert isinstance(executable(x, y, z := np.ones((2, 3), np.float32)), np.ndarray)
    assert (x == 4).all() and (y == 2).all() and (z == 1).all()


def test_inputs_that_cannot_be_written_are_refused() -> None:
    executable, x, y = compiled(Writing(), *(torch.randn(3, 4) for _ in range(3))), torch.ones(4, 4), torch.ones(4, 4)
    fixed = np.ones((4, 4), np.float32)
    fixed.flags.writeable = False
    for inputs, error, words in (
        ((x, x, y), AliasError, "overlaps input 'y'"),
        ((x.t(), y.clone(), y), AliasError, "is not contiguous") if not x.t().is_contiguous() else ((x, y, y), AliasError, "overlaps"),
        ((fixed, y.numpy(), x.numpy()), InputTypeError, "read-only"),
    ):
        with pytest.raises(error, match=words):
            executable(*inputs)
    assert (x == 1).all() and (y == 1).all()


def test_batch_norm_trains() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.0)).train()
    executable = compiled(model, torch.randn(6, 4))
    for rows in (9, 2):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(executable(x), model(x).detach(), rtol=1e-5, atol=1e-5)
    for name, value in executable.state.items():
        np.testing.assert_allclose(value, model.state_dict()[name], rtol=1e-5)


def test_shared_memory_is_refused() -> None:
    model = Running()
    model.register_buffer("same", model.total[:2])

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).sum() + self.inner.same  # pyright: ignore[reportOperatorIssue]

    with pytest.raises(UnsupportedOpError, match=r"buffer inner.total.*its memory is that of inner.same too"):
        disc.compile(Both(), (torch.ones(3, 4, dtype=torch.bfloat16),), options=disc.Options(cache=False))


def test_a_server_refuses_what_keeps_state(tmp_path: Path) -> None:
    path = tmp_path / "1.disc"
    compiled(Running(), torch.ones(3, 4, dtype=torch.bfloat16)).save(path)
    with pytest.raises(ConfigurationError, match="keeps tensors from call to call"):
        load_model("running", "1", path, ModelSettings(), Limits())


# --- in place -------------------------------------------------------------------------------------------------------------------


class Caches(nn.Module):
    """Three caches: one is written by a slice from a place that data say, another at places that data say, and read as it was; the third
    twice."""

    slices: torch.Tensor
    places: torch.Tensor
    twice: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slices", torch.zeros(16, 3, 4))
        self.register_buffer("places", torch.zeros(16, 4))
        self.register_buffer("twice", torch.zeros(3, 16, 4))

    def forward(self, x: torch.Tensor, start: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first: int = start.item()  # pyright: ignore[reportAssignmentType]
        torch._check(first >= 0)
        torch._check(first + x.shape[0] <= 16)
        self.slices.narrow(0, first, x.shape[0]).copy_(x)
        self.twice.narrow(1, first, x.shape[0]).copy_(x.transpose(0, 1))
        self.twice[:, 1] = 1
        old = self.places.sum(0)
        self.places.index_copy_(0, index, y)
        return x * self.slices.sum(0) + self.twice.sum(1), self.places[index] + old


def test_caches_are_written_in_place() -> None:
    model = Caches()
    executable = compiled(model, torch.randn(2, 3, 4), torch.tensor(3), torch.randn(3, 4), torch.arange(3))
    assert executable.manifest["state"]["updated"] == [4, 5]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    for start, places in ((0, [3]), (5, [1, 2]), (14, []), (7, [15, 0, 7])):
        inputs = (
            torch.randn(2, 3, 4),
            torch.tensor(start),
            torch.randn(len(places), 4),
            torch.tensor(places, dtype=torch.int64),
        )
        torch.testing.assert_close(executable(*inputs), model(*inputs))
        for name, value in executable.state.items():
            assert np.array_equal(value, model.state_dict()[name].numpy()), name
    before = executable.state["places"]
    with pytest.raises(ShapeConstraintError, match="index 16 is out of range") as caught:
        executable(torch.randn(1, 3, 4), torch.tensor(2), torch.randn(2, 4), torch.tensor([1, 16]))
    assert np.array_equal(executable.state["places"], before), "indices are checked before the first is written"
    assert caught.value.__notes__ == ["what the call writes in place may be changed in part: 'slices', 'places'"]
    executable.state.reset()
    assert not executable.state["places"].any() and not executable.state["slices"].any()


class Shown(nn.Module):
    """Returns a cache itself, which is the caller's then; of two others the old value is read after they are written, of one of these
    through a branch that may return it as it is. An input is written, too."""

    shown: torch.Tensor
    kept: torch.Tensor
    chosen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("shown", "kept", "chosen"):
            self.register_buffer(name, torch.zeros(8, 4))

    def forward(self, x: torch.Tensor, index: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        old = self.kept.clone()
        self.kept.index_copy_(0, index, x)
        self.shown.index_copy_(0, index, x)
        chosen = torch.cond(x.sum() > 0, lambda a: a.clone(), lambda a: a * 2, (self.chosen,))
        self.chosen.index_copy_(0, index, x)
        own.index_copy_(0, index, x)
        return self.shown, old + self.kept, chosen + own.sum()


def test_a_value_that_is_returned_or_read_as_it_was_is_not_written_over() -> None:
    model = Shown()
    executable = compiled(model, torch.randn(3, 4), torch.arange(3), torch.zeros(6, 4))
    assert "updated" not in executable.manifest["state"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    results: list[tuple[torch.Tensor, torch.Tensor]] = []
    for places in ([0, 5], [5], [1, 2, 3]):
        inputs = torch.randn(len(places), 4), torch.tensor(places)
        own = torch.randn(6, 4)
        theirs = own.clone()
        expected = tuple(each.clone() for each in model(*inputs, theirs))
        given = executable(*inputs, own)
        assert isinstance(given, tuple)
        torch.testing.assert_close(given, expected)
        assert torch.equal(own, theirs)
        results.append((given[0], expected[0]))
        for name, value in executable.state.items():
            assert np.array_equal(value, model.state_dict()[name].numpy()), name
    assert all(torch.equal(have, want) for have, want in results), "later calls write over no result"
