"""Gradients of batches against those of the model run instance by instance in PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from batched_blocks import by_pytorch
from dynamic_models import CASES, Tree, TreeLSTM, trees
from torch import Tensor, nn

import disc
from disc.api import compile_block
from disc.errors import DiscError, InstanceError
from disc.frontend.batched.blocks import Block
from disc.frontend.batched.differentiate import Source, differentiated
from disc.frontend.batched.facts import gathered
from disc.frontend.batched.public import make_batched
from disc.frontend.batched.rows import row_class

HIDDEN = 8


def tensors(found: Any) -> list[Tensor]:
    """The floats among results."""
    if isinstance(found, Tensor):
        return [found] if found.is_floating_point() else []
    return [each for part in found for each in tensors(part)] if isinstance(found, list | tuple) else []


def loss(results: Any) -> Tensor:
    """Another factor for every element of every result."""
    found = tensors(results)
    return torch.stack([(each * torch.linspace(0.5, 1.5, each.numel()).reshape(each.shape)).sum() / (2 + place)
                        for place, each in enumerate(found)]).sum()  # fmt: skip


def gradients(results: Any, sources: Sequence[Tensor]) -> list[Tensor]:
    total = loss(results)
    found = torch.autograd.grad(total, sources, allow_unused=True)
    return [total.detach(), *(torch.zeros_like(source) if each is None else each for source, each in zip(sources, found, strict=True))]


def check(model: nn.Module, batched: Any, instances: list[Any], sources: Sequence[Tensor] | None = None) -> None:
    sources = sources or list(model.parameters())
    expected = gradients([model(each) for each in instances], sources)
    found = gradients(batched.batch(instances, gradients=True), sources)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_models(name: str) -> None:
    torch.manual_seed(0)
    make, instances = CASES[name]
    model = make(HIDDEN).eval()
    batched = by_pytorch(model)
    for count in (1, 6, 3):
        check(model, batched, instances(count))
    assert batched.stats()["launches"] > 0 and batched.stats()["recaptures"] == 0, batched.explain()


def test_training_with_compiled_blocks() -> None:
    """Weights change from step to step: blocks are compiled once, and take them as they are."""
    torch.manual_seed(0)
    model, twin = TreeLSTM(HIDDEN), TreeLSTM(HIDDEN)
    twin.load_state_dict(model.state_dict())
    batched: Any = disc.batched(model)
    many = trees(24)
    optimizers = [torch.optim.SGD(each.parameters(), 0.02) for each in (model, twin)]
    compiles = []
    for step, count in enumerate((8, 1, 5, 24, 3)):
        chosen = many[step : step + count]
        losses = [loss(batched.batch(chosen, gradients=True)), loss([twin(each) for each in chosen])]
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
        for each, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            each.backward()
            optimizer.step()
        compiles.append(batched.stats()["compiles"])
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert compiles[0] == compiles[-1] > 0 and batched.stats()["recaptures"] == 0
    assert batched.stats()["walked"] > 0 and batched.stats()["eager"] == 0, batched.explain()
    assert "with gradients" in batched.explain()
    with torch.no_grad():  # without gradients the new weights are seen
        torch.testing.assert_close(loss(batched.batch(many)), loss([model(each) for each in many]), rtol=1e-4, atol=1e-5)


class Chain(nn.Module):
    """What an instance holds, through blocks, code that runs in Python, and a part without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, steps: list[Tensor]) -> Tensor:
        h = torch.zeros(3)
        for x in steps:
            h = torch.tanh(self.first(h + x))
            if h.sum() > 0.4:
                h = self.second(h)
        with torch.no_grad():
            size = h.norm()
        return outside(h) / (1 + size)


def outside(h: Tensor) -> Tensor:
    global calls  # a statement that is not followed: the function runs in Python
    calls += 1
    return h * h + h.detach()


calls = 0


def test_given_tensors_reads_and_python() -> None:
    torch.manual_seed(1)
    model = Chain()
    batched = by_pytorch(model)
    instances = [[torch.randn(3, requires_grad=(count + each) % 2 == 0) for each in range(count)] for count in (1, 2, 4, 5, 3)]
    given = [x for each in instances for x in each if x.requires_grad]
    for _ in range(2):
        check(model, batched, instances, [*model.parameters(), *given])


class Refused:
    """Compiles all but what is asked for."""

    def __init__(self, *, gradients: bool, products: bool) -> None:
        self.gradients, self.products, self.blocks = gradients, products, 0

    def block(self, module: nn.Module, example: Any, tables: Any) -> Any:
        backward = any(name.startswith("tangents") for name in inspect.signature(module.forward).parameters)
        if backward and self.gradients:
            raise DiscError("no gradient today")
        return compile_block(module, example, tables)

    def product(self, module: nn.Module, example: Any) -> Any:
        if self.products:
            raise DiscError("no product today")
        return disc.compile(module, example)


@pytest.mark.parametrize("what", ["gradients", "products"])
def test_what_cannot_be_compiled_is_pytorchs(what: str) -> None:
    """Counted, and explained."""
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN)
    refused = Refused(gradients=what == "gradients", products=what == "products")
    batched: Any = make_batched(model, refused.block, refused.product)
    many = trees(8)
    for chosen in (many[:6], many, many[2:3]):
        check(model, batched, chosen)
    assert f"in PyTorch: DiscError: no {what[:-1]} today" in batched.explain()
    assert (batched.stats()["eager"] > 20) == (what == "gradients")


def test_several_ways_back_and_rows_without_gradients() -> None:
    """Some calls of a launch, in a graph that is gone through twice, and beside a batch that is not."""
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN)
    batched: Any = disc.batched(model)
    many = trees(9)
    weights = list(model.parameters())
    for _ in range(3):
        batched.batch(many, gradients=True)
    results, twin = batched.batch(many, gradients=True), [model(each) for each in many]
    other = loss(batched.batch(many[:5], gradients=True))  # its memory is its own
    for chosen in ([1, 4], [0, 8, 4], list(range(9))):
        totals = [loss([each[number][0] for number in chosen]) for each in (results, twin)]
        found, expected = (torch.autograd.grad(each, weights, retain_graph=True, allow_unused=True) for each in totals)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    expected = torch.autograd.grad(loss([model(each) for each in many[:5]]), weights)
    for one, two in zip(torch.autograd.grad(other, weights), expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_shared_nodes_sums_of_batches_and_threads() -> None:
    """What several nodes read gets the sum; a weight gets that of all batches; threads have memory of their own."""
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN)
    batched: Any = disc.batched(model)
    one, two, three = trees(3)
    other = Tree(0, two, two)
    many = [Tree(0, one, other), other, two, Tree(0, other, other), one, Tree(0, three, one)]
    assert batched.batch([], gradients=True) == []
    for chosen in (many[:1], many[3:5], many, many):
        check(model, batched, chosen)
    weights, chosen = list(model.parameters()), (many, many[2:4])
    totals = [loss(batched.batch(each, gradients=True)) for each in chosen]
    for total in (*totals, totals[0]):
        total.backward(retain_graph=True)
    expected = [gradients([model(tree) for tree in each], weights)[1:] for each in chosen]
    for weight, first, second in zip(weights, *expected, strict=True):
        torch.testing.assert_close(weight.grad, 2 * first + second, rtol=1e-4, atol=1e-5)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: gradients(batched.batch(chosen[number % 2], gradients=True), weights)[1:], range(16)))
    for number, each in enumerate(found):
        for one_gradient, other_gradient in zip(each, expected[number % 2], strict=True):
            torch.testing.assert_close(one_gradient, other_gradient, rtol=1e-4, atol=1e-5)


class Scaled(nn.Module):
    """With a weight of rank 0 and one that is not contiguous; half of the children are not reached, in launches with others that are."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.table, self.join = nn.Parameter(torch.tensor(1.5)), nn.Embedding(20, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.join.weight = nn.Parameter(torch.randn(HIDDEN, 2 * HIDDEN)[:, ::2])

    def forward(self, tree: Tree) -> Tensor:
        if tree.is_leaf:
            return self.table.weight[tree.word]
        left, right = self(tree.left), self(tree.right)
        return torch.tanh(self.join(left * self.scale + right.detach()))


def test_walked_batches_with_weights_of_any_form() -> None:
    torch.manual_seed(0)
    model = Scaled().double()
    batched: Any = disc.batched(model)
    for count in (9, 9, 9, 1):
        check(model, batched, trees(count))
    assert batched.stats()["walked"] == 3 and batched.stats()["eager"] == 0, batched.explain()


def test_what_autograd_refuses() -> None:
    model = TreeLSTM(HIDDEN)
    batched, many = by_pytorch(model), trees(3)
    results = batched.batch(many, gradients=True)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    with pytest.raises(RuntimeError, match="was changed in place before its gradient was computed"):
        loss(results).backward()
    assert not loss(batched.batch(many)).requires_grad  # where none are asked for
    frozen = TreeLSTM(HIDDEN).requires_grad_(False)
    assert not loss(by_pytorch(frozen).batch(many, gradients=True)).requires_grad


def test_weights_that_are_frozen_and_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks held the elements that a weight had when it was frozen. Where only trained weights change, nothing is looked at in full."""
    torch.manual_seed(0)
    model = TreeLSTM(HIDDEN)
    batched, many = by_pytorch(model), trees(4)
    looks = []
    monkeypatch.setattr("disc.frontend.batched.model.gathered", lambda *given: looks.append(1) or gathered(*given))
    for frozen in ([1, 2], [2], []):
        for number, each in enumerate(model.parameters()):
            each.requires_grad_(number not in frozen)
        for _ in range(4):
            looks.clear()
            check(model, batched, many, [each for each in model.parameters() if each.requires_grad])
            with torch.no_grad():
                for each in model.parameters():
                    each.sub_(0.01 * each.requires_grad)
    assert batched.stats()["recaptures"] > 0 and not looks


WAYS = [lambda x: x, lambda x: [None, x].pop(), lambda x: x.view(-1), lambda x: (x + x.detach()) / 2]  # code of a lambda is not followed


class HandsOn(nn.Module):
    """What blocks made, handed on by Python."""

    def __init__(self, way: Any) -> None:
        super().__init__()
        self.words, self.step, self.ways = nn.Embedding(30, HIDDEN), nn.Linear(HIDDEN, HIDDEN), {"this": way}

    def forward(self, words: list[int]) -> Tensor:
        h = torch.zeros(HIDDEN)
        for word in words:
            h = self.ways["this"](self.step(h) + self.words.weight[word])
        return h


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_python_hands_on(way: Any, compiled: bool) -> None:
    """Its gradient was counted twice where PyTorch had computed it, as in the first batch."""
    torch.manual_seed(0)
    model = HandsOn(way)
    batched = disc.batched(model) if compiled else by_pytorch(model)
    for _ in range(3):
        check(model, batched, [[7 * number + place for place in range(number % 4)] for number in range(1, 5)])


def test_an_instance_that_fails() -> None:
    model = TreeLSTM(HIDDEN)
    many = trees(4)
    with pytest.raises(InstanceError) as caught:
        by_pytorch(model).batch([*many, object()], gradients=True)
    sources = list(model.parameters())
    expected = gradients([model(each) for each in many], sources)
    for one, other in zip(gradients(caught.value.results[:4], sources), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# --- what weights get -----------------------------------------------------------------------------------------------------------


class Terms(nn.Module):
    """A product with a vector, with a matrix from either side, an outer product, a row of a table, a bias, and an element-wise factor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(3, 4), nn.Embedding(5, 3)
        self.left, self.right, self.both = (nn.Parameter(torch.randn(size)) for size in ((2, 3), (4, 2), (3, 4)))

    def forward(self, x: Tensor, word: Tensor) -> tuple[Tensor, ...]:
        row = torch.ops.aten.index.Tensor(self.table.weight, [word])
        square = torch.outer(x + row, self.linear(x))
        return self.left @ square @ self.right, square * self.both, word + 1


def test_terms_of_weights() -> None:
    module, x = Terms(), torch.randn(6, 3)
    words = torch.tensor([4, 0, 4, 1, 1, 4])
    results = tuple(row_class(each) for each in module(x[0], words[0]))
    block = Block("terms", module, (row_class(x[0]),), 1, results)
    both = differentiated(block)
    found = both.gradient
    assert found is not None and found.rows == (0,) and found.results == (0, 1)
    kinds = {id(term.weight): term.kind for term in found.terms}
    named = {name: kinds[id(each)] for name, each in module.named_parameters()}
    assert named == {"linear.weight": "product", "linear.bias": "whole", "table.weight": "row", "left": "product",
                     "right": "product", "both": "whole"}  # fmt: skip
    assert {each.turned for each in both.forward.weights if each.tensor is module.linear.weight} == {True}

    def plain(graph: Any) -> list[Tensor]:
        return [(each.tensor.t() if each.turned else each.tensor).detach() for each in graph.weights]

    incoming = [torch.randn(6, 2, 2), torch.randn(6, 3, 4)]
    forward = [both.forward.module(x[each], words[each], *plain(both.forward)) for each in range(6)]
    parts: dict[str, list[Any]] = {"row": [x], "number": [words]}
    stacked = [torch.stack([each[place] for each in forward]) for place in range(len(forward[0]))]
    parts |= {"result": stacked[:3], "kept": stacked[3:]}
    assert [row_class(each[0]) for each in parts["kept"]] == list(both.kept)

    def at(source: Source) -> Tensor:
        return parts[source.kind][source.place].reshape(6, *source.shape)

    given = [at(each) for each in found.inputs]
    back = [found.graph.module(*(each[i] for each in given), *(g[i] for g in incoming), *plain(found.graph)) for i in range(6)]
    parts["made"] = [torch.stack([each[place] for each in back]) for place in range(1, len(back[0]))]
    assert [row_class(each[0]) for each in parts["made"]] == list(found.made)
    sums: dict[int, Tensor] = {}
    for term in found.terms:
        sums[id(term.weight)] = term.added(list(map(at, term.parts)), sums.get(id(term.weight)), lambda left, right: left.t() @ right)
    made = [module(x[each], words[each]) for each in range(6)]
    pairs = [(each[place], incoming[place][number]) for number, each in enumerate(made) for place in (0, 1)]
    weights = list(module.parameters())
    expected = torch.autograd.grad([each for each, _ in pairs], weights, [each for _, each in pairs])
    for weight, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(sums[id(weight)], other)


def test_a_block_without_gradients() -> None:
    class Whole(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return (x + 1,)

    number = row_class(torch.zeros(2, dtype=torch.int64))
    assert differentiated(Block("whole", Whole(), (number,), 0, (number,))).gradient is None


class Row(nn.Module):
    """A result that is a row of a weight: a view of it, where PyTorch computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 5)

    def forward(self, number: int) -> Tensor:
        return self.table.weight[number]


def test_rows_of_weights_have_gradients_from_the_first_batch_on() -> None:
    model = Row()
    batched: Any = disc.batched(model, options=disc.Options(cache=False))
    for _ in range(6):
        model.table.weight.grad = None
        torch.stack(batched.batch([1, 3, 3, 6], gradients=True)).sum().backward()
        assert model.table.weight.grad is not None
        assert model.table.weight.grad[:, 0].tolist() == [0, 1, 0, 2, 0, 0, 1]


class Begun(nn.Module):
    """Begins with what depends on weights alone, which all instances share; some end with it, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.join = nn.Embedding(7, 5), nn.Linear(10, 5)

    def forward(self, words: list[int]) -> tuple[Tensor, Tensor]:
        h = self.table.weight[0] * 2
        for word in words:
            h = torch.tanh(self.join(torch.cat([h, self.table.weight[word]])))
        return h, self.join.bias + 1


class Changed(nn.Module):
    """Changes in place what it has computed, before and after others read it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(7, 6), nn.Linear(6, 2)

    def forward(self, words: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        h = self.table.weight[len(words)].clone()
        h[0] = 1.0
        h += 2
        halves = h.view(2, 3)
        halves[1].mul_(3)
        return h, halves, self.last(h.clone())


@pytest.mark.parametrize("kind", [Begun, Changed])
@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.long)])
def test_shared_beginnings_and_changes(kind: type[nn.Module], compiled: bool) -> None:
    model = kind()
    batched: Any = disc.batched(model, options=disc.Options(cache=False)) if compiled else by_pytorch(model)
    for count in (1, 3, 6, 6, 2, 6):
        check(model, batched, [[(3 * each + place) % 7 for place in range(each % 4)] for each in range(count)])
