"""What recorded code leaves behind is PyTorch's own tensors, as the same objects, wherever they are."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.frontend.lazy.public import recorded
from disc.frontend.lazy.tensors import LazyTensor

SIZES = ((3, 5), (4, 5), (3, 7), (4, 6), (2, 9), (3, 5))


@dataclass
class Kept:
    state: Tensor | None = None
    states: list[Tensor] = field(default_factory=list[Tensor])


class Tagger(nn.Module):
    """Leaves its state in every place that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.kept, self.by_name = Kept(), dict[str, object]()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.zeros(x.shape[0], 8)
        self.kept.states = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            self.kept.states.append(h)
        self.state, self.kept.state, self.by_name["pair"], self.closure = h, h, (h, [h]), lambda: h
        self.mean = nn.Parameter(h.mean(0))
        self.register_buffer("total", h.detach() + 1)
        self.data = h.detach()
        self.same = self.data.contiguous()
        self.leaf = torch.zeros(8).requires_grad_()
        self.named = h * 3
        self.named.label = "three"  # pyright: ignore[reportAttributeAccessIssue]
        self.doubled = h * 2
        self.doubled.retain_grad()
        self.hooked = h * 4
        self.seen = list[Tensor]()
        self.hooked.register_hook(self.seen.append)
        return h, torch.stack(self.kept.states, 1)


def lazy_ones() -> list[Any]:
    """Those that stand for something."""
    return [each for each in gc.get_objects() if type(each) is LazyTensor and each._run is not None]


@pytest.fixture(params=["function", "block"])
def tagger(request: pytest.FixtureRequest) -> tuple[Tagger, Callable[[Tensor], Any], Tagger]:
    """One with what records it, and another with the same weights."""
    torch.manual_seed(0)
    ours = Tagger()
    return ours, recorded(ours, {}) if request.param == "function" else disc.lazy(ours), copy.deepcopy(ours)


def test_each_is_a_tensor_and_the_same_object(tagger: tuple[Tagger, Callable[[Tensor], Any], Tagger]) -> None:
    ours, call, theirs = tagger
    for batch, steps in SIZES:
        x = torch.randn(batch, steps, 4)
        (h, states), expected = call(x), theirs(x)
        assert not lazy_ones()
        torch.testing.assert_close((h, states), expected, rtol=1e-4, atol=1e-5)
        assert type(h) is Tensor and ours.state is h and ours.kept.state is h and ours.closure() is h and ours.kept.states[-1] is h
        assert ours.by_name["pair"][0] is h and ours.by_name["pair"][1][0] is h  # pyright: ignore[reportIndexIssue]
        assert type(ours.mean) is nn.Parameter and list(ours.state_dict()) == list(theirs.state_dict())
        assert ours.named.label == "three" and ours.leaf.is_leaf and ours.doubled.retains_grad  # pyright: ignore[reportAttributeAccessIssue]
        assert weakref.ref(h)() is h
        for each in (ours, theirs):
            each.zero_grad()
            (each.state.sum() + each.doubled.square().sum() + each.leaf.mul(2).sum() + each.named.sum() + each.hooked.sum()).backward()
        for mine, other in ((ours.doubled, theirs.doubled), (ours.leaf, theirs.leaf), (ours.cell.weight_hh, theirs.cell.weight_hh)):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.seen, theirs.seen)
        ours.data.add_(1)
        torch.testing.assert_close(ours.same, theirs.data + 1, rtol=1e-4, atol=1e-5)  # the same memory


def test_whatever_takes_tensors_takes_them(tagger: tuple[Tagger, Callable[[Tensor], Any], Tagger]) -> None:
    ours, call, _ = tagger
    for batch, steps in SIZES:
        call(torch.randn(batch, steps, 4))
        data = ours.data
        assert type(nn.Parameter(data)) is nn.Parameter and type(nn.Buffer(data)) is Tensor
        torch.testing.assert_close(torch.func.vmap(torch.sum)(data), data.sum(1))
        torch.testing.assert_close(torch.func.grad(lambda x: x.square().sum())(data), 2 * data)
        torch.testing.assert_close(torch.func.jvp(torch.sin, (data,), (data,))[1], data.cos() * data)
        file = io.BytesIO()
        torch.save(ours.state_dict(), file)
        file.seek(0)
        torch.testing.assert_close(torch.load(file)["total"], ours.total)
        for copied in (pickle.loads(pickle.dumps(data)), copy.deepcopy(data), torch.from_dlpack(data), torch.tensor(data.numpy())):
            assert type(copied) is Tensor
            torch.testing.assert_close(copied, data)
        assert type(copy.deepcopy(ours.mean)) is nn.Parameter
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(torch.sin, backend="eager", fullgraph=True)(ours.data), ours.data.sin())


def test_after_an_error_what_was_computed_before_is_there() -> None:
    kept = Kept()

    @disc.lazy
    def function(x: Tensor, fails: bool) -> Tensor:
        kept.state = torch.tanh(x) * 2
        if fails:
            raise KeyError("stop")
        return kept.state

    for count in (3, 4, 5, 6):
        x = torch.randn(count)
        with pytest.raises(KeyError, match="stop"):
            function(x, True)
        assert type(kept.state) is Tensor
        torch.testing.assert_close(kept.state, torch.tanh(x) * 2)
        assert function(x, False) is kept.state and not lazy_ones()


def test_a_tensor_that_others_hold_as_another_object_has_the_same_memory() -> None:
    seen = list[Tensor]()

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * 2

    for count in (3, 4, 5):
        seen.clear()
        with disc.lazy():
            x = torch.ones(count) + 1
            y = Watched.apply(x)
            weight = torch.zeros(count).requires_grad_()
            z = Watched.apply(weight)
        assert type(x) is Tensor is type(y) and seen[0].data_ptr() == x.data_ptr()
        x.add_(1)
        torch.testing.assert_close(seen[0], torch.full((count,), 3.0))
        z.sum().backward()
        torch.testing.assert_close(weight.grad, torch.full((count,), 2.0))


def test_objects_are_freed() -> None:
    given = list[Tensor]()
    with disc.lazy():
        for count in range(3, 40):
            given[:] = [torch.ones(count) * each for each in range(20)]
            float(given[0].sum())
    first = weakref.ref(given[0])
    given.clear()
    assert first() is None and not lazy_ones()


def test_parameters_that_are_made_while_calls_are_recorded() -> None:
    """They are parameters, and so are their copies; hooks get the object itself."""
    seen = list[Tensor]()
    gc.disable()  # nothing of ours may hold them until a collection
    try:
        with disc.lazy():
            model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
            for each in model.parameters():
                each.label = "mine"  # pyright: ignore[reportAttributeAccessIssue]
            copies = copy.deepcopy(model).to(torch.float64), pickle.loads(pickle.dumps(model))
            for each in model.parameters():
                each.register_post_accumulate_grad_hook(seen.append)
            for count in (3, 3, 3, 5):
                seen.clear()
                model.zero_grad()
                model(torch.ones(count, 4)).square().sum().backward()
                assert {id(each) for each in seen} == {id(each) for each in model.parameters()}
                with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
                    list(torch.ones(count).sum() + 1)
    finally:
        gc.enable()
    assert all(type(each) is nn.Parameter for each in model.parameters())
    for other in copies:
        assert all(type(each) is nn.Parameter for each in other.parameters())
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.double(), theirs.double())
            assert mine.grad is not None and theirs.grad is None and theirs.requires_grad
