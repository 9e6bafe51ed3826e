"""Odd programs under `disc.lazy`, with sizes that change from step to step, compute what eager PyTorch computes."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributed, nn, set_default_dtype
from torch.autograd import backward, forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import disc
from disc.errors import DiscError
from disc.frontend.lazy.tensors import real

FUNCTIONS: Any = torch  # that take tensors for numbers
Step = Callable[[int], list[object]]
SIZES = (3, 3, 3, 5, 1, 0, 7, 3)


def rows(count: int, width: int = 4) -> Tensor:
    return torch.linspace(-1, 1.3, count * width).view(count, width)


def plain(value: object) -> object:
    """Copies of tensors, made by PyTorch."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if not isinstance(value, Tensor):
        return value
    with torch._C.DisableTorchFunction():
        return real(value).detach().clone()


def written_diagonal() -> Step:
    buffer = torch.zeros(4, 4)

    def step(count: int) -> list[object]:
        buffer.t()[0] += rows(count).sum(0)
        diagonal = buffer.diagonal()
        diagonal.add_(0.25)
        buffer.diagonal(-2).mul_(2)
        return [buffer.clone(), diagonal.sum().item()]

    return step


def gradient_of_a_diagonal() -> Step:
    weight = nn.Parameter(torch.linspace(0, 1, 16).view(4, 4))

    def step(count: int) -> list[object]:
        weight.grad = None
        (rows(count) @ weight).sum().add(weight.diagonal(1).sin().sum()).backward()
        return [weight.grad]

    return step


def as_many_parts_as_rows() -> Step:
    def step(count: int) -> list[object]:
        x = torch.cos(rows(count))
        parts = [*x.unbind(0), *x.split(2), *torch.chunk(x, 3), *x.tensor_split(2), *torch.split(x, 1)]
        return [*(row.sum() * n for n, row in enumerate(x)), *parts, *x.t().unbind(), len(parts), [float(each) for each in x.sum(1)]]

    return step


def cut_off_from_the_step_before() -> Step:
    weight, held = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4)), list[Tensor]()

    def step(count: int) -> list[object]:
        before = held.pop().detach().clone().sum() if held else torch.zeros(())
        held.append(torch.tanh(rows(count) @ weight + before))
        disc.lazy.flush()
        weight.grad = None
        held[0].sum().backward()
        return [weight.grad, before]

    return step


def hooks_of_modules() -> Step:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), list[Tensor]()
    for each in model.parameters():
        nn.init.constant_(each, 0.3)
    model[0].register_forward_hook(lambda module, given, result: result.add(1))
    model[2].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    model[2].register_full_backward_hook(lambda module, inputs, results: seen.append(inputs[0].sum()))

    def step(count: int) -> list[object]:
        model.zero_grad()
        y = model(rows(count))
        y.square().sum().backward()
        return [y, [each.grad for each in model.parameters()], seen.pop(), y.detach().clone()]

    return step


def copies_of_tensors() -> Step:
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        y = layer(rows(count)).detach()
        other = copy.copy(y)
        return [copy.deepcopy(y), pickle.loads(pickle.dumps(y)), copy.deepcopy(layer)(rows(count)), other.add_(1), y]

    return step


def transforms_of_functions() -> Step:
    weight = torch.linspace(-1, 1, 16).view(4, 4)

    def step(count: int) -> list[object]:
        x = rows(count) * 2
        shifted = weight + x.sum()
        gradient = torch.func.grad(lambda w, x: torch.tanh(x @ w).sum())(shifted, x)
        with forward_ad.dual_level():
            y = (forward_ad.make_dual(x * 2, torch.ones(count, 4)) @ weight).sin()
            tangent = forward_ad.unpack_dual(y).tangent
        return [gradient, torch.func.jacrev(lambda x: (x @ weight).sin())(x[:2]), tangent, y.sum().item()]

    return step


def hooks_that_hold_lazy_tensors() -> Step:
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        layer.zero_grad()
        x = rows(count) * 2
        factor = x.sum()
        y = layer(x)
        y.register_hook(lambda gradient: gradient * factor + x.mean(0).nan_to_num())
        y.square().sum().backward()
        return [layer.weight.grad]

    return step


def checkpoints() -> Step:
    first, second, packed = nn.Linear(4, 8), nn.Linear(8, 4), list[Tensor]()
    for each in (*first.parameters(), *second.parameters()):
        nn.init.constant_(each, 0.3)

    def step(count: int) -> list[object]:
        first.zero_grad()
        second.zero_grad()
        x = rows(count) + 1
        checkpoint(lambda x: second(torch.tanh(first(x))), x, use_reentrant=False).sum().backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda each: (packed.append(each), each)[1], lambda each: each):
            loss = torch.tanh(first(x)).sum()
        torch.autograd.backward([loss])
        count = len(packed)
        packed.clear()
        return [first.weight.grad, second.bias.grad, loss.detach(), count]

    return step


def gradients_are_zeroed_before_a_plain_loss() -> Step:
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        with torch.autograd.graph.save_on_cpu():
            loss = layer(rows(count)).square().sum()
        layer.weight.grad = torch.zeros_like(layer.weight) + 1
        torch.autograd.backward(loss)
        assert layer.weight.grad is not None
        layer.weight.grad.mul_(2)
        return [layer.weight.grad, layer.bias.grad]

    return step


def gradients_through_what_was_read() -> Step:
    weight = nn.Parameter(torch.linspace(0, 1, 16).view(4, 4))

    def step(count: int) -> list[object]:
        weight.grad = None
        y = rows(count) @ weight
        read = y.sum().item()
        z = (y * weight.sum()).sum() + read
        (gradient,) = torch.autograd.grad(z, weight, retain_graph=True)
        torch.autograd.backward([z, y.sin().sum()])
        return [gradient, weight.grad, read]

    return step


def gradients_of_gradients_of_what_was_read() -> Step:
    weight = nn.Parameter(torch.linspace(0, 1, 16).view(4, 4))

    def step(count: int) -> list[object]:
        weight.grad = None
        x = rows(count).requires_grad_()
        y = torch.tanh(x @ weight)
        read = y.sum().item()
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (slope.square().sum() * read + y.sum()).backward()
        return [slope, weight.grad, x.grad]

    return step


def losses_that_are_held() -> Step:
    trunk, heads = nn.Linear(4, 4), [nn.Linear(4, 2), nn.Linear(4, 3)]
    for each in (trunk, *heads):
        nn.init.constant_(each.weight, 0.2)
        nn.init.constant_(each.bias, 0.1)

    def step(count: int) -> list[object]:
        trunk.zero_grad()
        middle = torch.tanh(trunk(rows(count)))
        losses = [head(middle).square().sum() for head in heads]
        losses[0].backward(retain_graph=True)
        losses[1].backward()
        total = sum(losses)
        found = [trunk.weight.grad, float(total)]  # pyright: ignore[reportArgumentType]
        for each in (losses[0], total) if count else ():
            with pytest.raises(RuntimeError, match="second time"):
                each.backward()  # pyright: ignore[reportAttributeAccessIssue]
        return found

    return step


def gradients_that_come_in_place() -> Step:
    """To what is there before, and to what the program makes; and gradients that are zeroed, as to which PyTorch asks for their graph."""
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.2)
    nn.init.constant_(layer.bias, 0.1)

    def step(count: int) -> list[object]:
        layer.zero_grad(set_to_none=False)
        x = rows(count)
        made, view = x * 2, x.view(-1)
        before = made.requires_grad, x.requires_grad
        made[:, 1] = layer(rows(count))[:, 0]
        behind = made.requires_grad, made.is_leaf, x.requires_grad
        view.mul_(layer.bias.sum())
        total = made.sum().item()
        (made.sin().sum() + x.sum()).backward()
        return [*before, *behind, x.requires_grad, total, layer.weight.grad, layer.bias.grad]

    return step


def tensors_as_numbers() -> Step:
    layer = nn.Linear(4, 3)
    nn.init.constant_(layer.weight, 0.2)
    optimizer = torch.optim.LBFGS(layer.parameters(), lr=0.1, max_iter=3)

    def step(count: int) -> list[object]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(layer(rows(count + 1)), torch.ones(count + 1, 3))
            loss.backward()
            return loss

        scale, two = rows(count).abs().sum() + 0.5, (rows(count).sum() * 0).long() + 2
        results = [
            FUNCTIONS.ones(2).add_(torch.ones(2), alpha=scale),
            torch.ones(4, 3).view(FUNCTIONS.add(two, 0), 6),
            FUNCTIONS.full([2], scale),
            FUNCTIONS.arange(two),
            FUNCTIONS.Tensor([scale, two]),
        ]
        loss = optimizer.step(closure)
        return [*results, torch.as_tensor(loss).detach(), layer.weight.detach().clone()]

    return step


def inference() -> Step:
    layer, buffer = nn.Linear(4, 2), torch.zeros(2)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        with torch.inference_mode():
            y = torch.relu(layer(rows(count)))
            z = y + torch.arange(2)
            y.add_(1)
            buffer.add_(y.sum(0))
        return [y, z, y.requires_grad, z.sum().item(), buffer.clone(), layer(rows(count)).requires_grad]

    return step


def sparse_gradients() -> Step:
    table = nn.Embedding(6, 4, sparse=True)
    nn.init.constant_(table.weight, 0.2)
    optimizer = torch.optim.SparseAdam(table.parameters(), 0.01)

    def step(count: int) -> list[object]:
        optimizer.zero_grad()
        (table(torch.arange(count) % 6) * 2).square().sum().backward()
        optimizer.step()
        assert table.weight.grad is not None
        return [table.weight.detach().clone(), table.weight.grad.to_dense()]

    return step


def of_sizes_alone() -> Step:
    """No tensor goes in."""

    def step(count: int) -> list[object]:
        with torch.device("cpu"):
            y = torch.ones(count, 2) * 2
        return [(torch.ones(count) + 1).tolist(), y]

    return step


def two_heads_of_a_trunk_that_is_freed() -> Step:
    """The gradients of the second head were silently none."""
    trunk, first, second = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def step(count: int) -> list[object]:
        for each in (trunk, first, second):
            each.zero_grad()
        middle = torch.tanh(trunk(rows(count)))
        first(middle).square().sum().backward()
        loss = second(middle).square().sum()
        value = loss.item()
        loss.backward(inputs=list(second.parameters()))
        return [value, second.weight.grad, trunk.weight.grad]

    return step


def a_graph_that_is_retained_though_its_weights_are_written() -> Step:
    layer = nn.Linear(4, 3)

    def step(count: int) -> list[object]:
        layer.zero_grad()
        loss = torch.tanh(layer(rows(count + 1)) @ layer.weight).sum()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            layer.weight.mul_(0.9)
        value = loss.item()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        return [value, layer.weight.grad]

    return step


def outputs_of_other_sizes() -> Step:
    largest, places, product = torch.empty(0), torch.empty(0, dtype=torch.int64), torch.zeros(4, 4)

    def step(count: int) -> list[object]:
        x = rows(count) * 1.5
        torch.max(x, 1, out=(largest, places))
        torch.mm(x.t(), x, out=product)
        return [largest.clone(), places + 1, product.clone()]

    return step


def another_default_dtype() -> Step:
    def step(count: int) -> list[object]:
        x = rows(count) * 2
        before = (x > 0) * 1.5
        torch.set_default_dtype(torch.float64)
        try:
            within = (x > 0) * 1.5
        finally:
            torch.set_default_dtype(torch.float32)
        return [before, within, (x > 0) * 1.5, within.dtype is torch.float64]

    return step


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = list[str]()

    def __torch_dispatch__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def modes_of_dispatch() -> Step:
    """They see each call, once."""
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        x = rows(count) * 2
        with _Names() as names:
            y = torch.tanh(layer(x)).sum()
        with FlopCounterMode(display=False) as flops:
            layer(x).sum().backward()
        return [y.item(), *(each == "aten.tanh.default" for each in names.seen), flops.get_total_flops(), (x + 1).sum().item()]

    return step


class _Doubled(TorchFunctionMode):
    """What gives twice what `tanh` does, and asks the tensor for its shape meanwhile."""

    def __torch_function__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * (2 if args[0].shape else 1) if func in (torch.tanh, Tensor.tanh) else result


def modes_of_functions() -> Step:
    """Before the recorder, and behind it."""
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        layer.zero_grad()
        x = layer(rows(count))
        with _Doubled():
            y, z = x.tanh(), torch.tanh(x)
        (y.sum() + z.square().sum()).backward()
        return [y, z, layer.weight.grad, y.sum().item()]

    return step


def others_that_trace() -> Step:
    layer, weight = nn.Linear(4, 4), torch.linspace(-1, 1, 16).view(4, 4)
    nn.init.constant_(layer.weight, 0.2)
    script: Any = torch.jit.script(nn.Sequential(copy.deepcopy(layer), nn.Tanh()))

    def step(count: int) -> list[object]:
        x = rows(count) * 2
        made = nn.Linear(4, 2)  # its weights are recorded
        with torch.no_grad():
            made.weight.fill_(0.5)
            made.bias.zero_()
        results: list[object] = [script(x), script(x + weight.sum())]
        if count > 2:
            traced, exported = FUNCTIONS.jit.trace(made, (x,)), torch.export.export(made, (x,))
            results += [
                traced(x + 1),
                exported.module()(x),
                torch.jit.script(made)(x),
                len(FUNCTIONS.fx.experimental.proxy_tensor.make_fx(lambda x: x.sin() + 1)(x).graph.nodes),
            ]
        return [*results, (x + 1).sum().item()]

    return step


def functions_that_hold_lazy_tensors() -> Step:
    """Within a reentrant checkpoint PyTorch runs the code in a function of its own."""
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        layer.zero_grad()
        x = (rows(count) * 2).requires_grad_()
        factor = rows(count).abs().sum() + 1
        y = checkpoint(lambda x: torch.tanh(layer(x)) * factor, x, use_reentrant=True)
        y.sum().backward()
        return [y.detach(), x.grad, layer.weight.grad, factor.item()]

    return step


class _Tagged(Tensor):
    pass


def tensors_of_other_classes() -> Step:
    def step(count: int) -> list[object]:
        x, tagged = rows(count) * 2, rows(count).as_subclass(_Tagged)
        both = [x * tagged, tagged + x, torch.add(x, tagged)]
        return [*(type(each) is _Tagged for each in both), *(each.as_subclass(Tensor) for each in both), x.sum().item()]

    return step


def hooks_of_all_modules() -> Step:
    """The parts of a compiled program are none: `nonzero` is PyTorch's."""
    layer, seen = nn.Linear(4, 4), list[str]()
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        seen.clear()
        handle = nn.modules.module.register_module_forward_hook(lambda module, given, result: seen.append(type(module).__name__))
        try:
            y = layer(rows(count))
            place = torch.ones(count).topk(min(count, 1)).values + torch.as_strided(y.detach() + 1, (count, 2), (4, 1)).sum()
            y.square().sum().backward()
            return [y, place, len(seen)]
        finally:
            disc.lazy.flush()
            assert seen == ["Linear"]
            handle.remove()

    return step


def native_code_reads_what_is_written_before() -> Step:
    buffer = torch.zeros(4)

    def step(count: int) -> list[object]:
        y = rows(count) * 2
        disc.lazy.flush()
        y.add_(1)
        copied = [copy.deepcopy(y), pickle.loads(pickle.dumps(y.mul_(2)))]
        buffer.add_(y.sum(0))
        return [*copied, torch.from_dlpack(FUNCTIONS.utils.dlpack.to_dlpack(buffer)).clone(), y, buffer.clone()]

    return step


def gradients_of_what_the_loss_is_made_of() -> Step:
    """They are asked for when the loss has been read, and its program would be one with theirs."""
    first, last = nn.Linear(4, 5), nn.Linear(5, 3)

    def step(count: int) -> list[object]:
        seen, results = list[Tensor](), list[object]()
        for ask in range(3):
            middle = torch.tanh(first(rows(count + 1)))
            scores = last(middle)
            best = int(scores.sum(0).argmax().item())
            loss = scores[:, best].sum()
            if ask == 0:
                results += [best, *torch.autograd.grad(loss, [middle, first.weight])]
                continue
            if ask == 1:
                middle.register_hook(seen.append)
            else:
                middle.retain_grad()
            loss.backward(inputs=[middle, last.weight])
            results += [middle.grad, last.weight.grad, len(seen), *seen]
            last.weight.grad = None
        return results

    return step


class _Pair(NamedTuple):
    one: Tensor
    other: Tensor


def sequences_of_other_classes() -> Step:
    def step(count: int) -> list[object]:
        x = rows(count) * 2
        pair = _Pair(x, x + 1)
        ordered = OrderedDict(input=x, mat2=x.t() + 1)
        return [
            torch.stack(pair),
            torch.cat(x.sort(1)[:1] + pair),
            torch.mm(**ordered),
            FUNCTIONS._foreach_add(pair, 1),
            (x + 1).sum().item(),
        ]

    return step


def weights_that_are_swapped() -> Step:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    nn.init.constant_(one.weight, 0.2)
    nn.init.constant_(other.weight, 0.3)

    def step(count: int) -> list[object]:
        y = one(rows(count)) - other(rows(count) * 2)
        torch.utils.swap_tensors(one.weight, other.weight)
        return [y, one.weight.detach().clone(), one(rows(count)).sum().item()]

    return step


def parts_that_are_written_of_each_other() -> Step:
    """Gradients of what is written go to what it is written with, and to what was there before."""
    layer = nn.Linear(4, 3)
    nn.init.constant_(layer.weight, 0.2)

    def step(count: int) -> list[object]:
        layer.zero_grad()
        y, out = layer(rows(count + 2)), torch.zeros(count + 2, 3)
        out[:, 1:] = y[:, :2]
        out[0] += y[1]
        (out * out).sum().backward()
        return [out, layer.weight.grad, layer.bias.grad]

    return step


def gradients_that_are_no_numbers() -> Step:
    weight = nn.Parameter(torch.ones(4))

    def step(count: int) -> list[object]:
        weight.grad = None
        with warnings.catch_warnings(), torch.autograd.detect_anomaly():
            warnings.simplefilter("ignore")
            y = ((weight * 0).sqrt() * rows(count + 1)).sum()
            with pytest.raises(RuntimeError, match="returned nan values"):
                y.backward()
        (weight * rows(count)).sum().backward()
        return [weight.grad, (rows(count) + 1).sum().item()]

    return step


def views_or_copies_by_their_sizes() -> Step:
    def step(count: int) -> list[object]:
        x = rows(count, 2) * 1.0
        before, behind = x.t().reshape(-1), x.t().reshape(-1)  # views for one row
        x.add_(1)
        total = x.sum().item()
        behind.add_(1)
        return [before, x, total]

    return step


def zeros_have_a_sign() -> Step:
    x, calls = torch.ones(3, dtype=torch.complex64), [0]

    def step(count: int) -> list[object]:
        calls[0] += 1
        found = list[object]()
        for zero in (0.0, -0.0) if calls[0] % 2 else (-0.0, 0.0):
            h = x.real
            for _ in range(9 + calls[0] % 3):
                h = torch.tanh(h + 1) * zero
            found += [torch.angle(torch.full((3,), complex(-1, zero)) * x.real).sum().item(), (1 / h).sum().item()]
        return found

    return step


def gradients_that_are_deleted() -> Step:
    weight = nn.Parameter(torch.linspace(0, 1, 4))

    def step(count: int) -> list[object]:
        if weight.grad is not None:
            del weight.grad
        loss = (rows(count) * weight).sin().sum()
        value = loss.item()
        loss.backward()
        y = rows(count) * weight
        del y.grad
        return [value, weight.grad, y.sum().item()]

    return step


def names_that_were_imported_before() -> Step:
    weight = nn.Parameter(torch.linspace(0, 1, 4))

    def step(count: int) -> list[object]:
        weight.grad = None
        set_default_dtype(torch.float64)
        y = torch.arange(count) * 1.5
        set_default_dtype(torch.float32)
        loss = (rows(count) * weight).sin().sum()
        backward([loss])
        return [y, y.dtype is torch.float64, weight.grad]

    return step


def storages_that_are_looked_at() -> Step:
    x = torch.ones(4)
    storage = x.untyped_storage()

    def step(count: int) -> list[object]:
        x.fill_(count)
        y, first = x * 2, storage[3]
        storage.fill_(0)  # pyright: ignore[reportAttributeAccessIssue]
        z = x + 1
        storage.copy_(torch.full((4,), 2.0).untyped_storage())
        return [y, first, z, x.sum().item()]

    return step


def hooks_of_what_adds_up_gradients() -> Step:
    weight, other = nn.Parameter(torch.linspace(0, 1, 4)), nn.Parameter(torch.linspace(-1, 1, 4))
    found: Any = weight.view_as(weight).grad_fn
    accumulator, calls = found.next_functions[0][0], [0]
    accumulator.register_prehook(lambda gradients: (gradients[0] * 2,))
    held: Any = other.view_as(other).grad_fn  # the graph of a loss that somebody holds is no hook

    def step(count: int) -> list[object]:
        calls[0] += 1
        if calls[0] == 5:
            held.next_functions[0][0].register_hook(lambda *given: calls.append(calls[0]))
        results = list[object]()
        for each in (weight, other):
            each.grad = None
            loss = (rows(count) * each).sin().sum()
            loss.backward()
            results += [loss.item(), each.grad]
        return [*results, *calls]

    return step


def gradients_are_one_object() -> Step:
    weight = nn.Parameter(torch.linspace(0, 1, 4))

    def step(count: int) -> list[object]:
        weight.grad = None
        (rows(count) * weight).sin().sum().backward()
        gradient: Any = weight.grad
        gradient.label = count
        same = weight.grad is gradient
        weight.sum().item()
        later: Any = weight.grad
        return [same, later is gradient, later.label]

    return step


PROGRAMS = (
    written_diagonal, gradient_of_a_diagonal, as_many_parts_as_rows, cut_off_from_the_step_before, hooks_of_modules, copies_of_tensors,
    transforms_of_functions, hooks_that_hold_lazy_tensors, checkpoints, gradients_are_zeroed_before_a_plain_loss,
    gradients_through_what_was_read, gradients_of_gradients_of_what_was_read, losses_that_are_held, gradients_that_come_in_place,
    tensors_as_numbers, inference, sparse_gradients, of_sizes_alone, two_heads_of_a_trunk_that_is_freed,
    a_graph_that_is_retained_though_its_weights_are_written, outputs_of_other_sizes, another_default_dtype, modes_of_dispatch,
    others_that_trace, modes_of_functions, functions_that_hold_lazy_tensors, tensors_of_other_classes, sequences_of_other_classes, native_code_reads_what_is_written_before,
    gradients_of_what_the_loss_is_made_of, hooks_of_all_modules, weights_that_are_swapped,
    gradients_that_are_no_numbers, parts_that_are_written_of_each_other, views_or_copies_by_their_sizes, zeros_have_a_sign,
    gradients_that_are_deleted, names_that_were_imported_before, storages_that_are_looked_at, hooks_of_what_adds_up_gradients,
    gradients_are_one_object,
)  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", PROGRAMS)
def test_program(make: Callable[[], Step]) -> None:
    results = list[list[object]]()
    for lazily in (False, True):
        torch.manual_seed(0)
        step, found = make(), list[object]()
        for count in SIZES:
            if lazily:
                with disc.lazy():
                    result = step(count)
            else:
                result = step(count)
            found.append(plain(result))
        results.append(found)
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits, disc.lazy.stats()


def test_a_mode_of_functions_that_began_before() -> None:
    layer, found = nn.Linear(4, 4), list[Tensor]()
    for count in (3, 3, 3, 3, 5):
        with _Doubled(), disc.lazy():
            y = layer(rows(count)).tanh()
            found.append(y.detach())
        torch.testing.assert_close(found[-1], 2 * layer(rows(count)).tanh().detach())


def test_gradients_are_reduced_over_processes() -> None:
    """By what is C++'s and was there before recording began."""
    distributed.init_process_group(
        "gloo",
        store=distributed.HashStore(),  # pyright: ignore[reportPrivateImportUsage]
        rank=0,
        world_size=1,
    )
    try:
        layer = nn.Linear(4, 2)
        parallel = nn.parallel.DistributedDataParallel(layer)

        def doubled(buffer: Tensor) -> Any:
            future = torch.futures.Future[Tensor]()
            future.set_result(buffer * 2)
            return future

        parallel.register_comm_hook(None, lambda state, bucket: doubled(bucket.buffer()))  # pyright: ignore[reportArgumentType]
        for count in (3, 3, 3, 5, 3):
            with disc.lazy():
                parallel.zero_grad()
                loss = parallel(rows(count)).square().mean()
                loss.backward()
                found = layer.weight.grad
            (expected,) = torch.autograd.grad(layer(rows(count)).square().mean(), [layer.weight])
            torch.testing.assert_close(plain(found), expected * 2)
    finally:
        distributed.destroy_process_group()


def test_within_inference_mode() -> None:
    layer = nn.Linear(4, 4)
    for count in SIZES:
        with torch.inference_mode():
            x = rows(count)
            with disc.lazy():
                y = torch.tanh(layer(x)) + x
                total = y.sum().item()
            assert torch.is_inference_mode_enabled()
            with pytest.raises(DiscError, match="in inference mode"):
                disc.lazy.enable()
            torch.testing.assert_close(plain(y), torch.tanh(layer(x)) + x)
            assert not y.requires_grad
            assert total == pytest.approx(y.sum().item(), abs=1e-5)
    assert disc.lazy.stats().hits, disc.lazy.stats()


def seed_the_default_generator_again() -> None:
    torch.default_generator.set_state(torch.default_generator.get_state())
    torch.default_generator.manual_seed(6)


@pytest.mark.parametrize(("seeded", "behind"), [(torch, list), (torch.default_generator, seed_the_default_generator_again)])
def test_seeds_hold_for_what_is_drawn_behind_them(seeded: Any, behind: Callable[[], object]) -> None:
    for count in SIZES:
        with disc.lazy():
            drawn = list[Tensor]()
            for _ in range(2):
                seeded.manual_seed(5)
                drawn.append(nn.functional.dropout(torch.ones(count + 3, 4)))
                behind()
            assert torch.equal(*drawn)
    assert disc.lazy.stats().hits >= 2 * (len(SIZES) - 2), disc.lazy.stats()
    assert disc.lazy.stats().compiles == 1, disc.lazy.stats()


def test_what_ends_a_trace_or_fails_is_no_part_of_it() -> None:
    state, expected = torch.zeros(4), torch.zeros(4)
    for count in SIZES:
        with disc.lazy():
            x = torch.tanh(rows(count))
            state.add_(x.sum(0))
            with pytest.raises(RuntimeError):
                torch.matmul(x, torch.ones(3, 3))
            state.mul_(2)
            unequal, sizes = torch.equal(x, torch.ones(2, 2)), x.unique().shape
        assert not unequal
        assert sizes == torch.tanh(rows(count)).unique().shape
        expected.add_(torch.tanh(rows(count)).sum(0)).mul_(2)
    torch.testing.assert_close(plain(state), expected)
    assert disc.lazy.stats().compiles < 6, disc.lazy.stats()


def test_a_state_that_is_carried_on_is_compiled() -> None:
    """Truncated backpropagation through time: what a step begins with is cut off from the step before."""
    torch.manual_seed(0)
    layers = [nn.LSTM(4, 4) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1) for layer in layers]

    def step(number: int, count: int, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        optimizers[number].zero_grad()
        before = None if state is None else (state[0].detach(), state[1].detach())
        y, after = layers[number](rows(count + 2).unsqueeze(1), before)
        y.square().mean().backward()
        optimizers[number].step()
        return after

    state, lazy_state = None, None
    for count in SIZES:
        state = step(0, count, state)
        with disc.lazy():
            lazy_state = step(1, count, lazy_state)
        torch.testing.assert_close(plain(lazy_state), plain(state), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(list(layers[1].parameters()), list(layers[0].parameters()), rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits > 1 and not disc.lazy.stats().refused, disc.lazy.stats()
    assert lazy_state is not None
    with pytest.raises(RuntimeError, match="second time"):
        lazy_state[1].sum().backward()


@pytest.mark.parametrize("whole", [False, True])
def test_functions_of_torch_compile_are_recorded(whole: bool) -> None:
    torch._dynamo.reset()
    layer = nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="disc", fullgraph=whole)
    twice = torch.compile(lambda x: torch.tanh(x) * 2, backend="disc", fullgraph=whole)
    for count in SIZES:
        x, results = rows(count), list[list[Tensor | None]]()
        for lazily in (True, False):
            layer.weight.grad = None
            with disc.lazy() if lazily else nullcontext():
                y = twice(compiled(x)).sum() + compiled(x * 2).sum() if lazily else (torch.tanh(layer(x)) * 2).sum() + layer(x * 2).sum()
                y.backward()
            results.append([torch.tensor(y.item()), layer.weight.grad])
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits, disc.lazy.stats()
    torch.testing.assert_close(twice(rows(3)), torch.tanh(rows(3)) * 2)  # compiled, as ever
    if not whole:  # a value that was recorded, in PyTorch
        with disc.lazy():
            y = rows(3) + 1
        torch.testing.assert_close(twice(y), torch.tanh(rows(3) + 1) * 2)
        torch.testing.assert_close(compiled(y), layer(rows(3) + 1))
