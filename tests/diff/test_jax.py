"""Functions exported by JAX with symbolic shapes: one compile for all sizes, against JAX itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import disc
from disc.errors import ShapeConstraintError, UnsupportedFormatError, UnsupportedOpError

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import export, lax  # noqa: E402

Array = np.ndarray[Any, Any]
SIZES = ((3, 5), (1, 7), (6, 1))
WORDS = ((2,), jnp.uint32)
F = jnp.float32


def exported(function: Callable[..., object], *arguments: tuple[tuple[object, ...], object]) -> Any:
    """arguments: shape and type; dims are numbers or expressions of b and t."""
    scope = export.SymbolicScope()
    given = [
        jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(map(str, shape)), scope=scope) if shape else (), dtype)
        for shape, dtype in arguments
    ]
    return export.export(jax.jit(function), platforms=["cpu"])(*given)


def drawn(random: np.random.Generator, aval: Any, sizes: Mapping[str, int]) -> Array:
    shape = [int(eval(str(size), {}, dict(sizes))) for size in aval.shape]
    dtype = np.dtype(aval.dtype)
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    if dtype.kind == "c":
        return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype)
    return np.asarray(random.integers(0, 2, shape)).astype(dtype)


def check(function: Callable[..., object], *arguments: tuple[tuple[object, ...], object], exact: bool = False) -> None:
    program = exported(function, *arguments)
    exe = disc.compile(program)
    for b, t in SIZES:
        random = np.random.default_rng(b)
        given = [drawn(random, each, {"b": b, "t": t}) for each in program.in_avals]
        wanted = jax.tree_util.tree_leaves(program.call(*given))
        returned = exe(*given)
        results = returned if isinstance(returned, tuple) else (returned,)
        for number, (ours, theirs) in enumerate(zip(results, wanted, strict=True)):
            assert np.asarray(ours).dtype == theirs.dtype
            tolerance = 0 if exact else 2e-4
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), tolerance, tolerance / 10, err_msg=f"{number}, {(b, t)}")


def rnn(x: Any, w: Any, u: Any, h: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(row @ w + h @ u)
        return h, h

    return lax.scan(step, h, x)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("btd,bsd->bts", q, k) / np.sqrt(8)
    positions = jnp.arange(q.shape[1])
    return jax.nn.softmax(jnp.where(positions[:, None] >= positions, scores, -1e30)) @ v


def transformer(tokens: Any, table: Any, projection: Any, out: Any, up: Any, down: Any) -> Any:
    """Two layers of two causal heads over an embedding, which is also the last product."""
    x, places = table[tokens], jnp.arange(tokens.shape[1])
    for _ in range(2):
        h = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        q, k, v = (each.reshape(*each.shape[:2], 2, 4) for each in jnp.split(h @ projection, 3, -1))
        scores = jnp.where(places[:, None] >= places, jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2, -jnp.inf)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape) @ out
        x = x + jax.nn.gelu(x @ up) @ down
    return x @ table.T


def orders(x: Any, n: Any) -> Any:
    nearest = lax.approx_max_k(x, 1), lax.approx_min_k(x, 1, reduction_dimension=0), lax.approx_max_k(x, 1, aggregate_to_topk=True)
    return jnp.sort(x, 1), jnp.argsort(-x, 1), jnp.lexsort((x[:, 0], n)), jnp.median(x, 1), lax.top_k(x, 1), jnp.unique(n, size=2), *nearest


def windows(x: Any) -> Any:
    return jnp.cumsum(x, 1), lax.cummax(x, 1, reverse=True), jnp.cumprod(x[:, :1], 0), jnp.roll(x, 2, axis=1)


def branches(p: Any, x: Any) -> Any:
    doubled = lax.while_loop(lambda c: jnp.sum(jnp.abs(c)) < 100.0, lambda c: c * 2, x + 1)
    return lax.cond(p > 0, lambda v: v * 2, lambda v: v - 1, x), lax.switch(p, [jnp.sin, jnp.cos, jnp.abs], x), doubled


def image(x: Any, w: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y).mean((1, 2)), lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def solved(a: Any, y: Any) -> Any:
    a = a @ a.mT + 3 * jnp.eye(4)
    return jnp.linalg.cholesky(a), jax.scipy.linalg.solve_triangular(a, y, lower=True), jax.scipy.linalg.solve_triangular(a, y, trans=1)


def factored(a: Any) -> Any:
    """Up to signs: products of the factors, and what has none."""
    symmetric = a @ a.mT + 3 * jnp.eye(4)
    q, r = jnp.linalg.qr(a)
    values, vectors = jnp.linalg.eigh(symmetric)
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    rebuilt = q @ r, (vectors * values[:, None, :]) @ vectors.mT, (u * s[:, None, :]) @ v
    return *rebuilt, values, s, jnp.linalg.det(symmetric), jnp.linalg.inv(symmetric), jnp.linalg.slogdet(symmetric)


def waves(z: Any, x: Any) -> Any:
    """Complex numbers: constants, what moves them, arithmetic, functions, products and transforms."""
    y = z * np.array([1 + 2j, 3j, 1, -1j], np.complex64) + (2 + 1j)
    moved = jnp.where(y.real > 0, y, 0j).T.reshape(-1)[::2], jnp.concatenate([y, jnp.conj(z)]), y == z
    functions = jnp.exp(z), jnp.sqrt(y), jnp.log(y), jnp.tanh(z), jnp.sin(z), z**2, y ** (0.5j), z / (1 + 1j), jnp.sign(y)
    spectrum = jnp.fft.fft(y), jnp.fft.ifft(y), jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x), n=5), jnp.fft.fft2(x[None, :1])
    return *moved, *functions, *spectrum, y @ jnp.ones((4, 3), np.complex64), y.sum(), jnp.abs(y), jnp.angle(y), jnp.zeros(0, np.complex64)


def placed(z: Any, w: Any) -> Any:
    """Complex numbers: extremes, with equal real parts among them, and scatters."""
    level = z.at[:, 1].set(z[:, 0].real + w[:, 1].imag * 1j)
    extremes = jnp.max(level, axis=-1), jnp.min(level, axis=0), jnp.max(z), jnp.min(w, axis=1, initial=0.1j)
    return *extremes, z.at[1:3, 0].set(w[1:3, 1]), z.at[jnp.array([0, 2, 0])].add(w[:3] * 2j)


def ordered(z: Any, w: Any) -> Any:
    """Complex numbers: orders, with equal real parts, zeros of both signs and NaN among them, running sums and products, windows."""
    level = z.at[:, 1].set(z[:, 0].real + w[:, 1].imag * 1j).at[:, 2].set(-0.0).at[1, :2].set(jnp.array([jnp.nan, 0.0 + 0j]))
    orders = jnp.sort(level), jnp.sort(w, axis=0, descending=True), jnp.argsort(level, axis=0), lax.sort((z.real, w), num_keys=1)
    running = jnp.cumsum(z, 0), jnp.cumprod(w, 1), lax.cumsum(z, 1, reverse=True), jnp.prod(z, 0), jnp.prod(w), z.prod(1) * 0
    windows = lax.reduce_window(z, 0j, lax.add, (1, 3), (1, 2), "SAME"), lax.reduce_window(w, 1 + 0j, lax.mul, (2, 3), (1, 1), "VALID")
    near = z * 1e-4
    return *orders, *running, *windows, jnp.expm1(near), jnp.log1p(near), jnp.expm1(z), jnp.log1p(z), jnp.unique(z[:2, :2], size=4)


def complex_factors(a: Any, b: Any) -> Any:
    """Of complex matrices, up to phases: products of the factors, and what has none."""
    hermitian = a @ jnp.conj(a.mT) + 3 * jnp.eye(4)
    q, r = jnp.linalg.qr(a)
    values, vectors = jnp.linalg.eigh(hermitian)
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    rebuilt = q @ r, (vectors * values[:, None, :]) @ jnp.conj(vectors.mT), (u * s[:, None, :]) @ v
    triangle, lower = jax.scipy.linalg.solve_triangular, jnp.linalg.cholesky(hermitian)
    systems = triangle(lower, b, lower=True), triangle(lower, b, lower=True, trans="C"), triangle(lower / 4, b, trans=1, unit_diagonal=True)
    lu, pivots = jax.scipy.linalg.lu_factor(hermitian)
    others = jnp.linalg.inv(hermitian), jnp.linalg.solve(hermitian, b), jnp.linalg.det(hermitian), *jnp.linalg.slogdet(hermitian)
    return *rebuilt, *systems, values, s, lower, lu, pivots, *others, jax.scipy.linalg.cholesky(hermitian), jax.scipy.linalg.expm(a / 4)


def eigenvalues(a: Any, x: Any) -> Any:
    """Of any matrices, without their order: of all powers the traces, and what the eigenvectors are multiplied with."""
    found: list[Any] = []
    for matrix in (a, x):
        values, vectors = jnp.linalg.eig(matrix)
        found += [(values[:, None] ** jnp.arange(1, 4)[None, :, None]).sum(-1), jnp.linalg.eigvals(matrix).sum(-1)]
        found += [matrix @ vectors - vectors * values[:, None], jnp.abs(vectors * jnp.conj(vectors)).sum(1)]
    return found


def turning(z: Any, n: Any) -> Any:
    """Complex numbers that loops carry and stack, and that branches take and return."""

    def step(carried: tuple[Any, Any], row: Any) -> Any:
        h = carried[0] * row * (0.5 + 0.5j) + 1j
        return (h, carried[1] + 1), (jnp.abs(h), h)

    last, stacked = lax.scan(step, (z[0] * 0, 0), z)
    turned = lax.fori_loop(0, n, lambda i, v: v * (1 + 1j) / 2, z)
    chosen = lax.cond(n > 2, lambda v: v * 2j, jnp.conj, z), lax.switch(n, [lambda v: v, lambda v: v + turned, jnp.exp], z)
    return *last, *stacked, turned, *chosen


def strided(w: Any, d: Any, x: Any) -> Any:
    """Padding that depends on sizes, and the gradient of groups of features, which are groups of the batch."""
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers)

    def grouped(d: Any) -> Any:
        return (lax.conv_general_dilated(x[:, :4, :4], d, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=3) ** 2).sum()

    return y, lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), jax.grad(grouped)(d)


def bits(key: Any) -> Any:
    """Of each generator: shapes with an even dim, with none, and of 64 bits' worth of state."""
    draws = [
        lax.rng_bit_generator(key, shape, dtype=jnp.uint32, algorithm=algorithm)
        for algorithm in (lax.RandomAlgorithm.RNG_THREE_FRY, lax.RandomAlgorithm.RNG_PHILOX)
        for shape in ((5, 3), (3, 4))
    ]
    return [each for draw in draws for each in draw]


def lengths_of_rows(x: Any, n: Any, w: Any) -> Any:
    """A gated layer in both directions over rows of different lengths."""

    def step(state: tuple[Any, Any], given: tuple[Any, Any]) -> Any:
        (h, c), (row, place) = state, given
        i, f, g, o = jnp.split(jnp.concatenate([row, h], -1) @ w, 4, -1)
        new = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        own = jax.nn.sigmoid(o) * jnp.tanh(new)
        keep = (place < n)[:, None]
        return (jnp.where(keep, own, h), jnp.where(keep, new, c)), jnp.where(keep, own, 0.0)

    zeros = jnp.zeros((x.shape[0], 6))
    rows = jnp.moveaxis(x, 1, 0), jnp.arange(x.shape[1])
    return [lax.scan(step, (zeros, zeros), rows, reverse=reverse) for reverse in (False, True)]


def rotary(q: Any, k: Any, mask: Any) -> Any:
    """Heads that share keys, rotated positions, a mask of rows."""
    b, t, _, d = q.shape
    angles = jnp.einsum("t,f->tf", jnp.arange(t, dtype=F), 10000.0 ** (-jnp.arange(0, d, 2) / d))
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]

    def turned(x: Any) -> Any:
        even, odd = x[..., ::2], x[..., 1::2]
        return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    scores = jnp.einsum("bqhd,bkhd->bhqk", turned(q), jnp.repeat(turned(k), 2, axis=2))
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)) & (mask > 0)[:, None, None], scores, jnp.finfo(F).min)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), jnp.repeat(k, 2, axis=2)).reshape(b, t, -1)


def alignments(scores: Any, labels: Any) -> Any:
    """The forward sums of connectionist temporal classification."""
    b, length = labels.shape
    wide = jnp.zeros((b, 2 * length + 1), jnp.int32).at[:, 1::2].set(labels)
    same = jnp.concatenate([jnp.ones((b, 2), bool), wide[:, 2:] == wide[:, :-2]], 1)
    first = jnp.take_along_axis(scores[:, 0], wide[:, 1:2], 1)[:, 0]
    start = jnp.full((b, 2 * length + 1), -1e30).at[:, 0].set(scores[:, 0, 0]).at[:, 1].set(first)

    def step(alpha: Any, row: Any) -> Any:
        one, two = (jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=-1e30)[:, :-by] for by in (1, 2))
        new = jnp.logaddexp(jnp.logaddexp(alpha, one), jnp.where(same | (wide == 0), -1e30, two))
        return new + jnp.take_along_axis(row, wide, 1), None

    last, _ = lax.scan(step, start, jnp.swapaxes(scores, 0, 1)[1:])
    return -jnp.logaddexp(last[:, -1], last[:, -2])


def of_segments(x: Any, n: Any, nodes: Any, target: Any) -> Any:
    """Sums of segments, and messages along edges."""
    message = jax.nn.relu(nodes[target])
    most = jnp.full(nodes.shape, -jnp.inf).at[target].max(message)
    score = message.sum(-1)
    weight = jnp.exp(score - jax.ops.segment_max(score, target, nodes.shape[0])[target])
    whole = jax.ops.segment_sum(weight, target, nodes.shape[0])[target]
    extremes = jax.ops.segment_max(x, n, 5), jax.ops.segment_min(x, n, 5), jax.ops.segment_prod(x, n, 5)
    return jax.ops.segment_sum(x, n, 5), *extremes, jnp.bincount(n, length=5), jnp.where(jnp.isfinite(most), most, 0), weight / whole


def integers(x: Any, y: Any) -> Any:
    word = x.astype(jnp.uint32) * jnp.uint32(0x45D9F3B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    signs = y // 3, y % 3, -y // 4, lax.rem(y, 4), jnp.right_shift(y, 1), jnp.gcd(y, 12), *jnp.divmod(y, -5), ~y, (y & 7) | 8
    return word, lax.population_count(x), lax.clz(x), y.astype(jnp.int8) * 100, jnp.packbits(y > 0, axis=-1), *signs


def derivatives(x: Any, w: Any) -> Any:
    def function(v: Any) -> Any:
        return jnp.tanh(w @ v) * v.sum()

    curved = jax.vmap(jax.hessian(lambda v: (jnp.sin(v) ** 2 * v[::-1]).sum()))(x)
    return jax.vmap(jax.jacrev(function))(x), curved, jax.jvp(function, (x[0],), (jnp.ones_like(x[0]),))


def sampled(scores: Any, key: Any) -> Any:
    order = jnp.argsort(-scores, axis=-1)
    ranked = jnp.take_along_axis(scores, order, -1)
    chances = jax.nn.softmax(ranked, -1)
    kept = jnp.cumsum(chances, -1) - chances < 0.8
    choice = jnp.argmax(jnp.where(kept, ranked, -jnp.inf) + jax.random.gumbel(key, ranked.shape), -1)
    return jnp.take_along_axis(order, choice[:, None], -1)[:, 0], kept.sum(-1)


def halves(x: Any, y: Any) -> Any:
    """Sizes in arithmetic."""
    b, t = x.shape
    pairs = x[:, : 2 * (t // 2)].reshape(b, t // 2, 2).max(-1)
    joined = jnp.concatenate([x.ravel(), y.ravel()]), jnp.stack([x, x], 1).reshape(2 * b, t), jnp.tile(x, (2, 3))
    return pairs, *joined, x / t, jnp.kron(x, jnp.array([[1.0, 2.0]])), jnp.arange(b * t).reshape(b, t) % 7, jnp.meshgrid(x[0], y[:, 0])


def nested(n: Any, x: Any) -> Any:
    rows = jax.vmap(lambda row: lax.cond(row.sum() > 0, jnp.sin, lambda v: v * 0 - 1, row))(x)
    turns = lax.fori_loop(0, n + 2, lambda k, v: lax.cond(k % 2 == 0, lambda u: u + k, lambda u: u * 0.5, v), x)
    inner = lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, lax.fori_loop(0, c[0], lambda j, u: u + j, c[1])), (0, x))
    return rows, turns, inner[1], lax.map(lambda row: jnp.cumsum(row)[-1] * n, x)


PROGRAMS: dict[str, tuple[Any, ...]] = {
    "scan": (rnn, (("b", "t", 8), F), ((8, 16), F), ((16, 16), F), (("t", 16), F)),
    "attention": (attention, *[(("b", "t", 8), F)] * 3),
    "transformer": (transformer, (("b", "t"), jnp.int32), *[(shape, F) for shape in ((17, 8), (8, 24), (8, 8), (8, 32), (32, 8))]),
    "orders": (orders, (("b", "t"), F), (("b",), jnp.int32)),
    "windows": (windows, (("b", "t"), F)),
    "branches": (branches, ((), jnp.int32), (("b", "t"), F)),
    "image": (image, (("b", "2*t", "2*t", 3), F), ((3, 3, 3, 8), F)),
    "strided": (strided, ((3, 3, 3, 8), F), ((3, 3, 1, 3), F), (("b", "t + 3", "t + 3", 3), F)),
    "factored": (factored, (("b", 4, 4), F)),
    "waves": (waves, (("b", 4), jnp.complex64), (("b", 5), F)),
    "placed": (placed, (("b + 3", 4), jnp.complex64), (("b + 3", 4), jnp.complex64)),
    "ordered": (ordered, (("b + 2", "t + 3"), jnp.complex64), (("b + 2", "t + 3"), jnp.complex64)),
    "complex factors": (complex_factors, (("b", 4, 4), jnp.complex64), (("b", 4, "t"), jnp.complex64)),
    "eigenvalues": (eigenvalues, (("b", 4, 4), jnp.complex64), (("b", 4, 4), F)),
    "turning": (turning, (("t", "b"), jnp.complex64), ((), jnp.int32)),
    "lengths of rows": (lengths_of_rows, (("b", "t", 3), F), (("b",), jnp.int32), ((9, 24), F)),
    "rotary": (rotary, (("b", "t", 4, 6), F), (("b", "t", 2, 6), F), (("b", "t"), jnp.int32)),
    "alignments": (alignments, (("b", "t + 1", 6), F), (("b", "t"), jnp.int32)),
    "segments": (of_segments, (("b", "t"), F), (("b",), jnp.int32), (("b", 4), F), (("t",), jnp.int32)),
    "integers": (integers, (("b", "t"), jnp.int32), (("b", "t"), jnp.int32)),
    "derivatives": (derivatives, (("b", "t"), F), (("t", "t"), F)),
    "sampled": (sampled, (("b", "t"), F), WORDS),
    "halves": (halves, (("b", "t"), F), (("t", "b"), F)),
    "nested": (nested, ((), jnp.int32), (("b", "t"), F)),
    "solved": (solved, (("b", 4, 4), F), (("b", 4, 2), F)),
}


LONG = (
    "ordered",
    "complex factors",
    "attention",
    "strided",
    "solved",
    "lengths of rows",
    "rotary",
    "segments",
    "derivatives",
    "sampled",
    "nested",
)


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.long) if each in LONG else each for each in PROGRAMS])
def test_one_compile_gives_what_jax_gives(name: str) -> None:
    check(*PROGRAMS[name])


def test_random_numbers_are_those_of_jax() -> None:
    def draws(key: Any, x: Any) -> Any:
        first, second = jax.random.split(key)
        return jax.random.uniform(first, x.shape), jax.random.bernoulli(second, 0.3, x.shape)

    check(draws, WORDS, (("b", "t"), F), exact=True)


@pytest.mark.long
def test_distributions_of_jax() -> None:
    """Near those of JAX: they go through functions that round in another way."""

    def draws(key: Any, x: Any) -> Any:
        first, second, third, fourth = jax.random.split(key, 4)
        dropped = jnp.where(jax.random.bernoulli(second, 0.5, x.shape), x, 0)
        return jax.random.normal(first, x.shape), dropped, jax.random.randint(third, x.shape, 0, 10), jax.random.categorical(fourth, x)

    check(draws, WORDS, (("b", "t"), F))


@pytest.mark.long
def test_random_bits_are_those_of_xla() -> None:
    check(bits, ((4,), jnp.uint32), exact=True)


@pytest.mark.long
def test_a_loop_in_code_that_nothing_reads_leaves_no_function() -> None:
    """For a shape of 1 or more, JAX multiplies what it draws to raise smaller ones by 0; a pass that saw it left the loop's functions."""
    check(lambda key: jax.random.gamma(key, 2.0, (5,)), WORDS)


def test_names_and_assertions_are_those_of_the_function() -> None:
    def scaled(params: Any, x: Any) -> Any:
        return {"y": x @ params["w"], "rows": x}

    b, t = export.symbolic_shape("b, t", constraints=("t >= 3",))
    shapes = {"w": jax.ShapeDtypeStruct((t, 4), F)}, jax.ShapeDtypeStruct((b, t), F)
    exe = disc.compile(export.export(jax.jit(scaled), platforms=["cpu"])(*shapes))
    assert [record["name"] for record in exe.manifest["inputs"]] == ["params['w']", "x"]
    assert exe(jnp.ones((3, 4)), jnp.ones((2, 3)))[1].shape == (2, 4)  # pyright: ignore[reportIndexIssue]
    with pytest.raises(ShapeConstraintError, match=r"args\[1\].shape\[1\] \(= 5\) .* dim 0 of input 'x'"):
        exe(np.ones((3, 4), np.float32), np.ones((2, 5), np.float32))
    with pytest.raises(ShapeConstraintError, match=r"t >= 3|>= 3 for"):
        exe(np.ones((2, 4), np.float32), np.ones((2, 2), np.float32))


def test_what_is_refused() -> None:
    struct = jax.ShapeDtypeStruct((4,), F)
    tpu = export.export(jax.jit(jnp.sin), platforms=["tpu"])(struct)
    with pytest.raises(UnsupportedFormatError, match="the JAX function sin is exported for tpu"):
        disc.compile(tpu)
    with pytest.raises(UnsupportedFormatError, match="has its shapes"):
        disc.compile(export.export(jax.jit(jnp.sin), platforms=["cpu"])(struct), (np.ones(4),))
    with pytest.raises(UnsupportedOpError, match="there is no rule for the target 'lapack_cgees_ffi' with complex numbers"):
        disc.compile(export.export(jax.jit(jax.scipy.linalg.sqrtm), platforms=["cpu"])(jax.ShapeDtypeStruct((4, 4), jnp.complex64)))
    with jax.enable_x64(True):
        running = exported(lambda z: jnp.cumprod(z, 0), (("b", 3), jnp.complex128))
    with pytest.raises(UnsupportedOpError, match="a dynamic window of products of complex128"):
        disc.compile(running)
