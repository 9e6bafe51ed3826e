"""Derivatives of `torch.func` in a model that is compiled, with dynamic dims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

import disc
from disc.errors import DiscError, UnsupportedOpError

LINEAR = torch.nn.Linear(4, 4)
CUBES: Callable[[Tensor], Tensor] = lambda y: (y**3).sum()  # noqa: E731


def _around(x: Tensor) -> Tensor:
    """Reads a tensor and a size of the model around it."""
    n, doubled = x.shape[0], x * 2
    return grad(lambda z: (z**2 * doubled).sum() * n)(x)


def _step(x: Tensor) -> object:
    """One step of the weights."""
    weights = dict(LINEAR.named_parameters())
    gradients = grad(lambda own: functional_call(LINEAR, own, (x,)).square().mean())(weights)
    return {name: weights[name] - 0.1 * gradients[name] for name in weights}


CASES: dict[str, Callable[[Tensor], object]] = {
    "grad": lambda x: grad(CUBES)(x),
    "two arguments": lambda x: grad(lambda a, b: (a * b.sin()).sum(), argnums=(0, 1))(x, x + 1),
    "with the value": lambda x: grad_and_value(lambda y: (LINEAR(y).relu() ** 2).mean())(x),
    "with more": lambda x: grad(lambda y: ((y.tanh() ** 2).sum(), {"more": y * 2}), has_aux=True)(x),
    "jvp": lambda x: jvp(torch.sin, (x,), (x * 2,)),
    "vjp": lambda x: vjp(lambda y: y.softmax(1), x)[1](x),
    "vjp with more": lambda x: [each for each in vjp(lambda y: (y.exp(), y + 1), x, has_aux=True) if isinstance(each, Tensor)],
    "jacrev": lambda x: jacrev(lambda y: y.sin().sum(0) * y.sum())(x),
    "jacfwd": lambda x: jacfwd(torch.tanh)(x),
    "hessian": lambda x: hessian(CUBES)(x),
    "each row's": lambda x: vmap(grad(CUBES))(x),
    "each row's jacobian": lambda x: vmap(jacrev(lambda row: row.sin() * row.sum()))(x),
    "each row's hessian": lambda x: vmap(hessian(lambda row: (row.sin() ** 2).sum()))(x),
    "twice": lambda x: grad(lambda y: grad(CUBES)(y).sum())(x),
    "a jacobian of a derivative": lambda x: jacrev(grad(CUBES))(x),
    "around": _around,
    "of the weights": _step,
    "with a batch beside": lambda x: vmap(torch.cumsum, (0, None))(x, 0) + grad(CUBES)(x),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_derivatives(name: str) -> None:
    function = CASES[name]
    executable = disc.compile(lambda x: function(x), (torch.randn(3, 4),))
    for rows in (5, 1, 13):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(executable(x), function(x), atol=1e-4, rtol=1e-4)


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin, "tanh": torch.tanh, "square": torch.square, "softmax": lambda y: y.softmax(-1), "cumsum": lambda y: y.cumsum(-1),
    "scaled": lambda y: y * y.mean(), "flipped": lambda y: y.flip(0) * y, "normed": lambda y: y / (y.square().sum() + 1),
    "shaped": lambda y: y.reshape(-1).reshape(y.shape),
}  # fmt: skip
BACKWARDS = {**STEPS, "sliced": lambda y: torch.cat([y[:1], y[1:] * 2]), "gelu": torch.nn.functional.gelu}
TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "grad": lambda value, x: grad(lambda y: value(y).sum())(x),
    "vjp": lambda value, x: vjp(value, x)[1](x.cos()),
    "jvp": lambda value, x: jvp(value, (x,), (x.cos(),)),
    "grad of rows": lambda value, x: vmap(grad(lambda row: value(row).square().sum()))(x),
    "jacrev of rows": lambda value, x: vmap(jacrev(value))(x),
    "jacfwd of rows": lambda value, x: vmap(jacfwd(value))(x),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_random_derivatives(name: str) -> None:
    """Of chains of functions, at sizes of 1 and primes."""
    random = np.random.default_rng(list(TRANSFORMS).index(name))
    steps = BACKWARDS if name in ("grad", "vjp") else STEPS
    chains = [[steps[step] for step in random.choice(list(steps), 4)] for _ in range(3)]

    def derivatives(x: Tensor) -> list[object]:
        return [TRANSFORMS[name](lambda y, chain=chain: functools.reduce(lambda value, step: step(value), chain, y), x) for chain in chains]

    executable = disc.compile(derivatives, (torch.randn(4, 6, dtype=torch.float64),))
    for shape in ((4, 6), (1, 7), (5, 1), (13, 3)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(executable(x), derivatives(x))


def test_the_derivative_of_gelu_within_a_batch_keeps_its_size_dynamic() -> None:
    function = vmap(jacrev(torch.nn.functional.gelu))
    compiled = disc.compile(lambda x: function(x), (torch.randn(3, 4),))
    for size in (1, 3, 5):
        x = torch.randn(size, 4)
        found = compiled(x)
        assert isinstance(found, Tensor)
        torch.testing.assert_close(found, function(x), rtol=1e-5, atol=1e-5)


def test_errors_of_the_function_are_its_own() -> None:
    with pytest.raises(DiscError, match="to return a scalar Tensor"):
        disc.compile(lambda x: grad(torch.sin)(x), (torch.randn(3, 4),))


def _pulls(function: Callable[[Tensor], Tensor], pulls: int = 1) -> Callable[[Tensor], object]:
    def derivatives(x: Tensor) -> object:
        value, pull = vjp(function, x)[:2]
        return value, [pull(torch.ones_like(value) * scale) for scale in range(pulls)]

    return derivatives


DRAWS: dict[str, Callable[[Tensor], object]] = {
    "rand_like": _pulls(lambda y: y * torch.rand_like(y)),
    "bernoulli": _pulls(lambda y: y * torch.bernoulli(torch.full_like(y, 0.5))),
    "dropout": _pulls(lambda y: F.dropout(y, 0.5)),
    "dropout of attention": _pulls(lambda y: F.scaled_dot_product_attention(LINEAR(y)[None], y[None], y[None], dropout_p=0.5)),
    "two pulls": _pulls(lambda y: y * torch.rand_like(y), 2),
    "a pull alone": lambda x: vjp(lambda y: y * torch.rand_like(y), x)[1](x),
    "a branch": _pulls(lambda y: torch.cond(y.sum() > 0, lambda z: z * torch.rand_like(z), lambda z: z * 2, (y,))),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_that_would_be_drawn_twice_are_refused_by_line(name: str) -> None:
    with pytest.raises(
        UnsupportedOpError,
        match=r"^1 op .*\n  - (torch.func.vjp|torch.func.grad, vjp, jvp or jacrev(?: of \w+)?|control flow on values .*) at test_derivatives.py:\d+: ",
    ):
        disc.compile(DRAWS[name], (torch.randn(3, 4),))


def test_draws_of_one_trace_and_dropout_of_nothing_compile() -> None:
    x = torch.randn(5, 4)
    value, (slope,) = _run(lambda x: (lambda g, v: (v, (g,)))(*grad_and_value(lambda y: (y * torch.rand_like(y)).sum())(x)), x)
    torch.testing.assert_close((slope * x).sum(), value)
    for chance, training in ((0.0, True), (0.5, False)):
        function = _pulls(lambda y, chance=chance, training=training: F.dropout(y * 3, chance, training))
        torch.testing.assert_close(_run(function, x), function(x))


def _run(function: Callable[[Tensor], object], x: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    found = disc.compile(function, (torch.randn(3, 4),))(x)
    assert isinstance(found, tuple)
    return found


def test_writes_of_captured_tensors_are_refused_as_in_eager() -> None:
    def counted(x: Tensor) -> object:
        count = x.sum(0)

        def function(y: Tensor) -> Tensor:
            count.add_(1)
            return y * 2

        return _pulls(function)(x), count

    with pytest.raises(DiscError, match="would mutate a captured Tensor"):
        disc.compile(counted, (torch.randn(3, 4),))


class Potential(torch.nn.Module):
    """An energy and its forces, as models of molecules compute them."""

    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), act, torch.nn.Linear(8, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x.requires_grad_(True)
        apart = (x[:, None] - x[None]).square().sum(-1) + 1
        energy = self.net(x).sum() + (1 / apart).sum()
        return energy, -torch.autograd.grad(energy, x)[0]


class Counting(Potential):
    """It writes a buffer, too."""

    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__(act)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        energy, forces = super().forward(x)
        return energy + self.calls, forces


@pytest.mark.parametrize(("kind", "act"), [(Potential, torch.nn.SiLU()), (Potential, torch.nn.Tanh()), (Counting, torch.nn.Tanh())])
def test_autograd_within_a_model(kind: type[Potential], act: torch.nn.Module) -> None:
    executable, eager = disc.compile(kind(act), (torch.randn(5, 4),), options=disc.Options(cache=False)), kind(act)
    for rows in (1, 3, 13):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(executable(x.clone()), tuple(each.detach() for each in eager(x.clone())), atol=1e-5, rtol=1e-5)


GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": lambda x, y: torch.autograd.grad((y**3).sum() * y.tanh().sum(), y)[0],
    "twice": lambda x, y: torch.autograd.grad(torch.autograd.grad(y.sigmoid().sum(), y, create_graph=True)[0].square().sum(), y)[0],
    "detached": lambda x, _: (lambda z: torch.autograd.grad((z**3).sum() * z.tanh().sum(), z, create_graph=True)[0].detach())(
        x.detach().clone().requires_grad_()
    ),
    "along": lambda x, y: torch.autograd.grad(y.softmax(1), y, grad_outputs=x)[0],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_autograd_within_a_function(name: str) -> None:
    executable = disc.compile(lambda x: GRADIENTS[name](x, x.clone().requires_grad_()), (torch.randn(5, 4),))
    for rows in (1, 3, 13):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(executable(x), GRADIENTS[name](x, x.clone().requires_grad_()), atol=1e-5, rtol=1e-5)
