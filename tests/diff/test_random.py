"""Random numbers of compiled programs: their distributions, and what they may depend on."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan
from torch.utils.checkpoint import checkpoint as checkpointed_call

import disc
from disc.errors import DiscError, DiscWarning, InputTypeError, InputValueError, UnsupportedOpError
from disc.frontend import dynamo
from disc.frontend.models import import_model
from disc.ir.dialect import make_context
from disc.ir.interp.oracle import interpret
from disc.ir.passes import CompileState, run_passes
from disc.ir.philox import words_at
from disc.passes.pipelines import to_named
from disc.serving.signature import Signature
from disc.targets.x86 import ISAS

F = nn.functional
SHAPE = (97, 211)
COUNT = SHAPE[0] * SHAPE[1]


class Call(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*inputs)


def compiled(function: Callable[..., object], *inputs: torch.Tensor, **options: object) -> disc.Executable:
    return disc.compile(Call(function), inputs, options=disc.Options(cache=False, **options))  # pyright: ignore[reportArgumentType]


def normal_cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


# Each with the distribution function of what it draws.
CONTINUOUS: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor], Callable[[np.ndarray], np.ndarray]], ...] = (
    ("rand", torch.rand_like, lambda x: x),
    ("rand f64", lambda x: torch.rand_like(x, dtype=torch.float64), lambda x: x),
    ("uniform_", lambda x: torch.empty_like(x).uniform_(2, 4), lambda x: (x - 2) / 2),
    ("randn", lambda x: torch.randn(x.shape), normal_cdf),
    ("randn f64", lambda x: torch.randn_like(x, dtype=torch.float64), normal_cdf),
    ("normal", lambda x: torch.normal(x + 3, 2.0), lambda x: normal_cdf((x - 3) / 2)),
    ("exponential_", lambda x: torch.empty_like(x).exponential_(2.0), lambda x: 1 - np.exp(-2 * x)),
    ("cauchy_", lambda x: torch.empty_like(x).cauchy_(1.0, 2.0), lambda x: np.arctan((x - 1) / 2) / math.pi + 0.5),
    ("log_normal_", lambda x: torch.empty_like(x).log_normal_(1.0, 0.5), lambda x: normal_cdf((np.log(x) - 1) / 0.5)),
    ("rrelu", lambda x: F.rrelu(x - 1, 0.1, 0.5, training=True), lambda x: (x + 0.5) / 0.4),
)
# Each with the probabilities of its values, from the first one on.
DISCRETE: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor], int, Sequence[float]], ...] = (
    ("bernoulli", lambda x: torch.bernoulli(x + 0.3), 0, (0.7, 0.3)),
    ("bernoulli_", lambda x: torch.empty_like(x).bernoulli_(0.3), 0, (0.7, 0.3)),
    ("randint", lambda x: torch.randint(-3, 4, x.shape), -3, (1 / 7,) * 7),
    ("randint of a size", lambda x: torch.randint(x.shape[0] - 90, x.shape), 0, (1 / 7,) * 7),
    ("random_", lambda x: torch.empty(x.shape, dtype=torch.int64).random_(5), 0, (0.2,) * 5),
    ("random_ of bytes", lambda x: torch.empty_like(x, dtype=torch.int8).random_() // 32, 0, (0.25,) * 4),
    ("geometric_", lambda x: torch.empty_like(x).geometric_(0.25), 1, [0.25 * 0.75**k for k in range(200)]),
    ("dropout", lambda x: F.dropout(x + 1.5, 0.25, training=True) / 2, 0, (0.25, 0.75)),
    ("multinomial", lambda x: torch.multinomial(x[:, :4] + torch.tensor([1.0, 0.0, 2.0, 5.0]), 211, True), 0, (1 / 8, 0, 1 / 4, 5 / 8)),
)


@functools.cache
def all_draws(threads: int = 2) -> disc.Executable:
    functions = [each[1] for each in CONTINUOUS] + [each[1] for each in DISCRETE]
    with pytest.warns(DiscWarning, match="training mode"):
        return compiled(lambda x: tuple(function(x) for function in functions), torch.zeros(95, 8), threads=threads)


@functools.cache
def drawn(seed: int) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(each) for each in all_draws()(torch.zeros(SHAPE), seed=seed))  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.parametrize("place", range(len(CONTINUOUS)), ids=[each[0] for each in CONTINUOUS])
def test_continuous_distributions(place: int) -> None:
    """Kolmogorov and Smirnov: a distance that one of 100,000 samples exceeds. Neighbors are independent."""
    values = drawn(7)[place].astype(np.float64).ravel()
    assert values.size == COUNT and np.isfinite(values).all()
    expected = CONTINUOUS[place][2](np.sort(values))
    steps = np.arange(COUNT + 1) / COUNT
    distance = max((steps[1:] - expected).max(), (expected - steps[:-1]).max())
    assert distance < math.sqrt(-math.log(1e-5 / 2) / 2 / COUNT)
    uniform = CONTINUOUS[place][2](values) - 0.5
    for lag in (1, 2, 16, SHAPE[1]):
        assert abs((uniform[lag:] * uniform[:-lag]).mean() * 12) < 4.5 / math.sqrt(COUNT - lag), lag


@pytest.mark.parametrize("place", range(len(DISCRETE)), ids=[each[0] for each in DISCRETE])
def test_discrete_distributions(place: int) -> None:
    _, _, first, chances = DISCRETE[place]
    values = drawn(7)[len(CONTINUOUS) + place].ravel()
    assert values.size == COUNT
    for number, chance in enumerate(chances):
        found = (values == first + number).sum()
        assert abs(found - COUNT * chance) <= 4.5 * math.sqrt(COUNT * chance * (1 - chance)) + 1e-9, (first + number, found)
    assert np.isin(values, first + np.arange(len(chances))).all()


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    """Not on threads; draws of a program, of other seeds and of other calls differ."""
    x, draw = torch.zeros(SHAPE), all_draws()
    alone = all_draws(1)
    for first, second in zip(drawn(7), alone(x, seed=7), strict=True):  # pyright: ignore[reportArgumentType]
        assert np.array_equal(first, np.asarray(second))
    uniform = [drawn(7)[0], drawn(7 + (1 << 64))[0], drawn(8)[0], drawn(-7)[0], np.asarray(draw(x)[0]), np.asarray(draw(x)[0])]  # pyright: ignore
    assert np.array_equal(uniform[0], uniform[1]), "the lowest 64 bits of a seed count"
    for number, values in enumerate(uniform[1:]):
        for other in uniform[number + 2 :]:
            assert (values == other).mean() < 0.01
    assert abs(np.corrcoef(drawn(7)[0].ravel(), (drawn(7)[2].ravel() - 2) / 2)[0, 1]) < 4.5 / math.sqrt(COUNT), "two draws of one call"


def test_bits_are_those_of_the_definition_on_every_isa() -> None:
    """Positions are counted row-major, also where no vector fits; the interpreter computes the same."""

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.rand_like(x)
        return y, y.transpose(0, 1) + 0.0, torch.randint(10, (x.shape[0],)), torch.rand(()), y.sum(1)

    x, seed = torch.zeros(5, 3), 123456789 << 20
    executable = disc.compile(
        Call(model), (x,), target=[isa for isa in ISAS if isa in ("x86-64-v3", "x86-64-v4")], options=disc.Options(cache=False)
    )
    module = import_model(Call(model), (x,), None, make_context())
    state = CompileState(module.weights)
    run_passes(module.module, to_named("f32"), state)
    for sizes in ((5, 3), (1, 1), (0, 4), (4, 0), (17, 31), (2, 1000)):
        x = torch.zeros(sizes)
        found = executable(x, seed=seed)
        count = sizes[0] * sizes[1]
        words = words_at(np.arange(count), np.array(seed), 0, 0).reshape(sizes)
        expected = (words >> 8).astype(np.float32) * np.float32(2**-24)
        assert np.array_equal(np.asarray(found[0]), expected)  # pyright: ignore[reportIndexIssue]
        assert np.array_equal(np.asarray(found[1]), expected.T)  # pyright: ignore[reportIndexIssue]
        interpreted = interpret(module.module, [x.numpy(), np.array(seed)], state.weights)
        for own, theirs in zip(found[:4], interpreted[:4], strict=True):  # pyright: ignore[reportIndexIssue]
            assert np.array_equal(np.asarray(own), theirs)
        np.testing.assert_allclose(np.asarray(found[4]), expected.sum(1), rtol=1e-5)  # pyright: ignore[reportIndexIssue]


def test_seeds_are_checked(tmp_path: object) -> None:
    executable, plain = compiled(torch.rand_like, torch.zeros(3)), compiled(lambda x: x + 1, torch.zeros(3))
    assert executable.inputs == plain.inputs, "the seed is no input of the user's"
    x = torch.zeros(4)
    with pytest.raises(InputTypeError, match="seed='a': give an int"):
        executable(x, seed="a")
    with pytest.raises(DiscError, match="seed"):
        plain(x, seed=1)
    with pytest.raises(DiscError, match="inputs"):
        executable(x, 1)
    out = torch.zeros(4)
    assert executable(x, seed=3, out=out) is out and torch.equal(out, executable(x, seed=3))  # pyright: ignore[reportArgumentType]
    file = os.path.join(str(tmp_path), "random.disc")
    executable.save(file)
    assert torch.equal(disc.load(file)(x, seed=3), out)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DiscError, match="runs without PyTorch"):
        compiled(torch.rand_like, x, random="eager")
    with pytest.raises(UnsupportedOpError, match="generator= of normal_ at "):
        compiled(lambda x: x.clone().normal_(generator=torch.Generator()), x)


def test_an_input_named_seed_stays_the_users() -> None:
    executable = disc.compile(Seeded(), (torch.zeros(3),), options=disc.Options(cache=False))
    assert torch.equal(executable(seed=torch.ones(4)) >= 1, torch.ones(4, dtype=torch.bool))  # pyright: ignore


class Seeded(nn.Module):
    def forward(self, seed: torch.Tensor) -> torch.Tensor:
        return seed + torch.rand_like(seed)


def test_a_forked_process_draws_other_numbers() -> None:
    executable, x = compiled(torch.rand_like, torch.zeros(3)), torch.zeros(8)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, executable(x).numpy().tobytes())  # pyright: ignore
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 32) != executable(x).numpy().tobytes()  # pyright: ignore


# --- torch.compile ----------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(F.dropout(torch.relu(self.norm(self.inner(x))), 0.25, self.training))


def trained(
    options: dict[str, str | int | bool | Callable[..., object]] | None, checkpoint: bool = False, autocast: bool = False
) -> list[torch.Tensor]:
    """Loss, gradients and statistics after two steps from one seed each; which differ."""
    torch._dynamo.reset()
    dynamo.reset_statistics()
    torch.manual_seed(0)
    model, x, labels = Block(), torch.randn(6, 8), torch.randint(5, (6,))

    def step(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = checkpointed_call(model, x, use_reentrant=False) if checkpoint else model(x)
        return F.cross_entropy(y.float(), labels)

    run = step if options is None else torch.compile(step, backend="disc", options=options)
    found: list[torch.Tensor] = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        loss = run(x, labels)
        loss.backward()
        found += [loss.detach(), torch.randn(2)]  # the second: how far PyTorch's generator has gone on
    assert not torch.equal(found[0], found[2])
    return [*found, *(each.grad for each in model.parameters() if each.grad is not None), *model.buffers()]


@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=pytest.mark.long)])
def test_training_has_no_eager_region(autocast: bool) -> None:
    first = trained({"strict": True, "cache": False}, autocast=autocast)
    assert not dynamo.statistics().eager and not dynamo.statistics().failed and dynamo.statistics().compiled == 2
    second = trained({"strict": True, "cache": False}, autocast=autocast)
    checkpointed = trained({"strict": True, "cache": False}, checkpoint=True, autocast=autocast)
    assert not dynamo.statistics().eager and not dynamo.statistics().failed
    for one, again, kept in zip(first, second, checkpointed, strict=True):
        assert torch.equal(one, again)
        torch.testing.assert_close(one, kept, rtol=1e-2 if autocast else 1e-4, atol=1e-2 if autocast else 1e-6)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_random_eager_draws_what_pytorch_draws(checkpoint: bool) -> None:
    eager = trained(None)
    with pytest.warns(DiscWarning, match="drawn by PyTorch"):
        found = trained({"random": "eager", "strict": True, "cache": False}, checkpoint=checkpoint)
    assert dynamo.statistics().eager == {"aten.native_dropout.default": 1}
    assert torch.equal(eager[1], found[1]), "the generator has gone on as far"
    for one, other in zip(eager, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_manual_seed_repeats_and_calls_differ() -> None:
    torch._dynamo.reset()

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.randn_like(x), F.gumbel_softmax(x, dim=-1), torch.multinomial(x + 1, 3, True)

    run = torch.compile(model, backend="disc", options={"strict": True, "cache": False}, dynamic=True)
    x = torch.zeros(4, 9)
    torch.manual_seed(5)
    first, second = run(x), run(x)
    torch.manual_seed(5)
    again = run(x)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert [each.dtype for each in first] == [each.dtype for each in model(x)]


def test_the_server_draws_for_each_request() -> None:
    """The seed is no input of the signature; what counts rows is not batched."""
    executable = compiled(lambda x: x + torch.rand_like(x), torch.zeros(3, 4))
    signature = Signature(executable.manifest)
    assert [each.name for each in signature.inputs] == ["inputs_0"] and len(signature.outputs) == 1 and signature.batch is None


def test_branches_draw() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x - torch.rand_like(x), (x,))

    executable = compiled(branch, torch.ones(3))
    for sign in (1, -1):
        found = np.asarray(executable(torch.full((1000,), float(sign)), seed=1))
        assert abs((found * sign - 1).mean() - 0.5) < 0.05


def _walk(x: torch.Tensor) -> torch.Tensor:
    """Rows [i, ...] are what iteration i of a loop draws in a loop of two iterations, and in a branch of it: [8, n]."""

    def inner(count: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.cond(count > 0, lambda total: torch.rand_like(total), lambda total: -torch.rand_like(total), (total,))
        return count + 1, total * 3 + drawn

    def step(count: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        start = (torch.zeros((), dtype=torch.int64), torch.zeros_like(rows[0]))
        both = torch.while_loop(lambda count, total: count < 2, inner, start)[1]
        return count + 1, torch.cat([rows[2:], torch.stack([both, torch.rand_like(both)])])

    return torch.while_loop(lambda count, rows: count < 4, step, (torch.zeros((), dtype=torch.int64), x))[1]


def _scanned(x: torch.Tensor) -> torch.Tensor:
    return scan(lambda total, row: (total + row, torch.rand_like(row)), x[0], x)[1]  # pyright: ignore[reportReturnType, reportArgumentType]


@pytest.mark.parametrize("function", [_walk, _scanned])
def test_each_iteration_draws_anew(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """No two rows are alike or correlate; the numbers are those of the seed, with any number of threads."""
    executables = [compiled(function, torch.zeros(8, 5), threads=threads) for threads in (1, 2)]
    x = torch.zeros(8, 4001)
    rows, again = (np.asarray(each(x, seed=3)) for each in executables)
    assert np.array_equal(rows, again) and not np.array_equal(rows, np.asarray(executables[0](x, seed=4)))
    correlation = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlation).max() < 4.5 / math.sqrt(x.shape[1])
    np.testing.assert_allclose(np.asarray(executables[0](torch.zeros(8, 1), seed=3))[:, 0], rows[:, 0])


@functools.cache
def rejected() -> disc.Executable:
    return compiled(
        lambda x: (
            torch._standard_gamma(x + 2.5), torch._standard_gamma(x + 0.4), torch._sample_dirichlet(torch.stack([x + 2, x + 1, x + 3], -1)),  # pyright: ignore
            torch.poisson(x + 3.5), torch.poisson(x.double() + 30), torch.binomial(x + 10, x + 0.3), torch.binomial(x + 200, x + 0.7),
        ),
        torch.zeros(3, 4),
    )  # fmt: skip


def gamma_cdf(shape: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: torch.special.gammainc(torch.full(x.shape, shape, dtype=torch.float64), torch.tensor(x)).numpy()


@pytest.mark.long
def test_gammas_and_betas() -> None:
    """A part of a Dirichlet distribution has a beta distribution: of (2, 1 + 3) its function is 1 - (1 - x)^5 - 5 x (1 - x)^4."""
    found = [np.asarray(each).astype(np.float64) for each in rejected()(torch.zeros(SHAPE), seed=7)]  # pyright: ignore[reportGeneralTypeIssues]
    np.testing.assert_allclose(found[2].sum(-1), 1, atol=1e-6)
    beta = (found[2][..., 0], lambda x: 1 - (1 - x) ** 5 - 5 * x * (1 - x) ** 4)
    for values, function in ((found[0], gamma_cdf(2.5)), (found[1], gamma_cdf(0.4)), beta):
        expected = function(np.sort(values.ravel()))
        steps = np.arange(COUNT + 1) / COUNT
        distance = max((steps[1:] - expected).max(), (expected - steps[:-1]).max())
        assert distance < math.sqrt(-math.log(1e-5 / 2) / 2 / COUNT)


@pytest.mark.parametrize(
    ("place", "logarithm"),
    [
        (3, lambda k: k * math.log(3.5) - 3.5 - math.lgamma(k + 1)),
        (4, lambda k: k * math.log(30) - 30 - math.lgamma(k + 1)),
        (5, lambda k: math.log(math.comb(10, k)) + k * math.log(0.3) + (10 - k) * math.log(0.7) if k <= 10 else -math.inf),
        (6, lambda k: math.log(math.comb(200, k)) + k * math.log(0.7) + (200 - k) * math.log(0.3) if k <= 200 else -math.inf),
    ],
)
def test_poisson_and_binomial(place: int, logarithm: Callable[[int], float]) -> None:
    """By search and by rejection: how often each number comes."""
    values = np.asarray(rejected()(torch.zeros(SHAPE), seed=7)[place]).ravel()  # pyright: ignore[reportIndexIssue]
    for number in range(int(values.max()) + 2):
        chance = math.exp(logarithm(number))
        assert abs((values == number).sum() - COUNT * chance) <= 4.5 * math.sqrt(COUNT * chance * (1 - chance)) + 3, number
    assert (values >= 0).all()


@pytest.mark.long
def test_distributions_at_their_limits() -> None:
    """No element; parameters at which eager's distributions have one value; rates that eager refuses."""
    assert [tuple(each.shape) for each in rejected()(torch.zeros(0, 5))][:4] == [(0, 5), (0, 5), (0, 5, 3), (0, 5)]  # pyright: ignore
    draw = compiled(lambda count, chance: (torch.binomial(count, chance), torch._standard_gamma(count)), torch.ones(2), torch.ones(2))  # pyright: ignore
    counts, chances = torch.tensor([0.0, 7, 7, 7, 1e6, math.nan]), torch.tensor([0.5, 0.0, 1.0, -0.5, 1.5, 0.5])
    found = [np.asarray(each) for each in draw(counts, chances)]  # pyright: ignore[reportGeneralTypeIssues]
    np.testing.assert_array_equal(found[0], [0, 0, 7, 0, 1e6, math.nan])
    assert found[1][0] == torch.finfo(torch.float32).tiny and np.isnan(found[1][-1])
    poisson = compiled(torch.poisson, torch.ones(3))
    assert np.asarray(poisson(torch.zeros(3))).tolist() == [0, 0, 0]
    for rate in (-1.0, math.nan, math.inf):
        with pytest.raises(InputValueError, match=r"a rate is .*: it must be finite, and not negative"):
            poisson(torch.tensor([1.0, rate]))


def test_distributions_of_torch() -> None:
    """Objects of `torch.distributions` as programs make them, whose arguments PyTorch does not check while it traces."""
    made = (
        lambda x: torch.distributions.Gamma(x, x * 2, validate_args=False).sample(),
        lambda x: torch.distributions.Beta(x, x, validate_args=False).sample(),
        lambda x: torch.distributions.NegativeBinomial(x, x / 4, validate_args=False).sample(),
    )
    found = compiled(lambda x: tuple(each(x) for each in made), torch.ones(3, 4))(torch.full(SHAPE, 2.0), seed=1)
    for values, mean, variance in zip(found, (0.5, 0.5, 2.0), (0.125, 0.05, 4.0), strict=True):  # pyright: ignore
        assert abs(np.asarray(values).mean() - mean) < 4.5 * math.sqrt(variance / COUNT)


def test_permutations_and_draws_without_replacement() -> None:
    executable = compiled(lambda x: (torch.randperm(x.shape[0]), torch.multinomial(x, 4)), torch.ones(5, 6))
    order, places = (np.asarray(each) for each in executable(torch.tensor([[1.0, 1, 0, 1, 1]] * 50), seed=1))  # pyright: ignore
    assert sorted(order) == list(range(50)) and list(order) != list(range(50))
    assert (np.sort(places) == [0, 1, 3, 4]).all() and len({tuple(row) for row in places}) > 10


GENERATOR = torch.Generator()
WITH_A_GENERATOR = {
    "rand": lambda x: x + torch.rand(x.shape, generator=GENERATOR),
    "bernoulli": lambda x: torch.bernoulli(x, generator=GENERATOR),
    "randperm": lambda x: x[torch.randperm(x.shape[0], generator=GENERATOR)],
    "multinomial": lambda x: torch.multinomial(x, 2, generator=GENERATOR),
    "normal_": lambda x: torch.empty_like(x).normal_(generator=GENERATOR),
}


@pytest.mark.parametrize("name", WITH_A_GENERATOR)
def test_draws_from_a_generator_are_refused_by_name_and_drawn_by_torch_compile(name: str) -> None:
    function, x = WITH_A_GENERATOR[name], torch.rand(5, 4)
    with pytest.raises(UnsupportedOpError, match=rf"generator= of {name} at test_random.py:\d+: .* seed="):
        disc.compile(lambda x: function(x), (x,))
    compiled = torch.compile(function, backend="disc", dynamic=True)
    drawn: list[torch.Tensor] = []
    for step in (compiled, compiled, function):
        GENERATOR.manual_seed(3)
        drawn.append(step(x))
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


def test_no_generator_is_none() -> None:
    compiled = disc.compile(
        lambda x: x[torch.randperm(x.shape[0], generator=None)], [torch.randn(5)], dynamic_shapes=[{0: torch.export.Dim.AUTO}]
    )
    for size in (2, 3, 17):
        x = torch.randn(size)
        assert torch.equal(torch.as_tensor(compiled(x)).sort().values, x.sort().values)
