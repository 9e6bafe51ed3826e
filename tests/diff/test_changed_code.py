"""Models whose code becomes another after batches ran: patched methods, hooks, other classes. What is learnt of the old code is forgotten."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.errors import SaveError


@dataclass
class Node:
    word: int
    kids: list[Node] = field(default_factory=list)


class Summed(nn.Module):
    """A recursion that instances decide."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.step = nn.Embedding(20, 8), nn.Linear(16, 8)
        self.scale_word = 1.5

    def word(self, tree: Node, kind: str = "word") -> Tensor:
        return self.words.weight[tree.word] * getattr(self, "scale_" + kind) * getattr(self, "factor", 1.0)

    def forward(self, tree: Node) -> Tensor:
        h = self.word(tree)
        for kid in tree.kids:
            h = torch.tanh(self.step(torch.cat([h, self(kid)])))
        return h


class Decided(Summed):
    """One that values decide."""

    def forward(self, tree: Node) -> Tensor:
        h = self.word(tree)
        for kid in tree.kids:
            h = torch.tanh(self.step(torch.cat([h, self(kid)])))
            if float(h.sum()) > 0.5:
                h = h * 0.5
        return h


def more(module: nn.Module, given: object, result: Any) -> Any:
    return result + 1


def first(self: Summed, tree: Node) -> Tensor:
    return self.words.weight[tree.word] * 3


def _other_class(model: Summed) -> None:
    model.__class__ = type("Other", (type(model),), {"forward": first})


def _wrapped(model: Summed) -> None:
    forward = model.forward
    model.forward = lambda tree: forward(tree) * 2


def _code(model: Summed) -> Callable[[], None]:
    function = type(model).forward
    assert isinstance(function, types.FunctionType)
    code = function.__code__
    function.__code__ = first.__code__
    return lambda: setattr(function, "__code__", code)


def _class(model: Summed) -> Callable[[], None]:
    function = type(model).forward
    type(model).forward = first
    return lambda: setattr(type(model), "forward", function)


def _linear(model: Summed) -> Callable[[], None]:
    function = nn.Linear.forward
    nn.Linear.forward = lambda self, input: input[..., : self.out_features] * self.bias
    return lambda: setattr(nn.Linear, "forward", function)


def _call(model: Summed) -> Callable[[], None]:
    call = type(model).__call__
    type(model).__call__ = lambda self, tree: call(self, tree) + 1
    return lambda: delattr(type(model), "__call__")


def _every_hook(model: Summed) -> Callable[[], None]:
    return torch.nn.modules.module.register_module_forward_hook(lambda module, given, result: result * 2).remove


def _method(model: Summed) -> Callable[[], None]:
    function = Summed.word
    Summed.word = lambda self, tree, kind="word": first(self, tree)
    return lambda: setattr(Summed, "word", function)


CHANGES: dict[str, Callable[[Summed], object]] = {
    "setting of a computed name": lambda model: setattr(model, "scale_word", 0.5),
    "setting of a name in a text": lambda model: setattr(model, "factor", 2.0),
    "method": _method,
    "forward of the model": lambda model: setattr(model, "forward", types.MethodType(first, model)),
    "forward wrapped": _wrapped,
    "forward of a layer": lambda model: setattr(model.step, "forward", lambda x: x[:8]),
    "hook": lambda model: model.register_forward_hook(more),
    "hook before": lambda model: model.register_forward_pre_hook(lambda module, given: (Node(given[0].word),)),
    "hook of a layer": lambda model: model.step.register_forward_hook(more),
    "another class": _other_class,
    "code of the class": _code,
    "forward of the class": _class,
    "call of the class": _call,
    "forward of linear layers": _linear,
    "hook of every module": _every_hook,
}


def trees(seed: int) -> list[Node]:
    generator = torch.Generator().manual_seed(seed)

    def tree(depth: int) -> Node:
        count = int(torch.randint(0, 4 if depth else 1, (), generator=generator))
        return Node(int(torch.randint(20, (), generator=generator)), [tree(depth - 1) for _ in range(count)])

    return [tree(3) for _ in range(6)]


def the_same(batched: Any, model: nn.Module, instances: list[Node], gradients: bool) -> None:
    found = batched.batch(instances, gradients=gradients)
    with torch.no_grad():
        for own, each in zip(found, instances, strict=True):
            torch.testing.assert_close(own.detach(), model(each), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(("kind", "gradients"), [(Summed, False), (Decided, False), (Summed, True)])
def test_other_code_runs(kind: type[Summed], gradients: bool, name: str) -> None:
    """Also once the change is undone."""
    torch.manual_seed(0)
    model = kind().eval()
    batched: Any = disc.batched(model, options=disc.Options(cache=False))
    for seed in range(3):
        the_same(batched, model, trees(seed), gradients)
    undo = CHANGES[name](model)
    try:
        for seed in (5, 6):
            the_same(batched, model, trees(seed), gradients)
    finally:
        if callable(undo):
            undo()
    the_same(batched, model, trees(7), gradients)


def test_a_model_with_hooks_is_not_saved_without_them(tmp_path: object) -> None:
    model = Summed().eval()
    batched: Any = disc.batched(model, options=disc.Options(cache=False))
    batched.batch(trees(0))
    handle = model.register_forward_hook(more)
    with pytest.raises(SaveError, match=r"a call of Summed runs more than the `forward` of its class: hooks, or a method of its own"):
        batched.save(f"{tmp_path}/tree.disc")
    assert "all in Python" in batched.explain()
    handle.remove()
    batched.save(f"{tmp_path}/tree.disc", trees(0))
