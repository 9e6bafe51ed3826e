"""Attention kernels against eager: lengths around every block, masks of every kind, rows without a key, values that are not finite."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import ISAS, ModuleProgram, module_program, plans_of, randn
from torch import Tensor, nn

import disc
from disc.codegen.x86.plans import AttentionBlocksPlan, AttentionRowsPlan
from disc.targets.x86 import V4

pytestmark = pytest.mark.sampled(2)

# 0, 1, primes, around a vector (8, 16), a panel (64), a block of rows (96) and a block of keys (512), and more than two blocks.
LENGTHS = (0, 1, 2, 5, 7, 16, 17, 63, 64, 65, 95, 96, 97, 131, 193, 511, 512, 513, 1025)


def qkv(rows: int, keys: int, heads: int = 2, width: int = 16, kv_heads: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    kv_heads = heads if kv_heads is None else kv_heads
    return randn(1, heads, rows, width), randn(1, kv_heads, keys, width, seed=1), randn(1, kv_heads, keys, width, seed=2)


def kinds(program: ModuleProgram) -> list[str]:
    return [str(record["kind"]) for record in program.executables[0].manifest["kernels"]]


def blocks(program: ModuleProgram) -> AttentionBlocksPlan:
    """The plan of its attention kernels for the best target: all have a running softmax, and the same bounds."""
    plans = [each for each in plans_of(program.executables[-1]) if isinstance(each, AttentionBlocksPlan | AttentionRowsPlan)]
    found = [each for each in plans if isinstance(each, AttentionBlocksPlan)]
    assert found and len(found) == len(plans) and len({(each.causal, each.dots) for each in found}) == 1, plans
    return found[0]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


SELF = [[2], [2], [2]]
DOTS = ISAS[-1] == V4  # few rows of scores as dot products: with whole AVX-512 registers alone


def test_every_length() -> None:
    program = module_program(attention, *qkv(17, 23), dynamic=SELF)
    assert kinds(program).count("attention") == 1 and not blocks(program).causal
    for length in LENGTHS:
        program.check(*qkv(length, length))
    for rows, keys in ((1, 600), (0, 5), (5, 0), (97, 1), (3, 1024), (100, 7)):
        program.check(*qkv(rows, keys))


@pytest.mark.parametrize("width", [1, 5, 8, 24, 64, 72, 80, 128])
def test_every_width_of_a_head(width: int) -> None:
    program = module_program(attention, *qkv(17, 23, width=width), dynamic=SELF)
    for length in (1, 7, 65, 97, 515):
        program.check(*qkv(length, length, width=width))


@pytest.mark.parametrize("rows,keys", [(1, 1), (1, 33), (6, 64), (97, 97), (200, 515)])
def test_static_sizes(rows: int, keys: int) -> None:
    """Tiles and panels of known sizes; the number of heads is dynamic."""
    program = module_program(attention, *qkv(rows, keys, heads=3), dynamic=[[1], [1], [1]])
    for heads in (0, 1, 2, 5):
        program.check(*qkv(rows, keys, heads=heads))
    causal_program = module_program(causal, *qkv(rows, keys, heads=3), dynamic=[[1], [1], [1]])
    causal_program.check(*qkv(rows, keys))


def test_causal_skips_keys() -> None:
    program = module_program(causal, *qkv(17, 23), dynamic=SELF)
    assert blocks(program).causal
    for length in LENGTHS:
        program.check(*qkv(length, length))
    for rows, keys in ((3, 700), (700, 3), (513, 1100), (1100, 513)):
        program.check(*qkv(rows, keys))


def test_causal_skips_keys_in_bf16() -> None:
    """The mask's constants are bf16 too."""

    def inputs(rows: int, keys: int) -> list[Tensor]:
        return [each.bfloat16() for each in qkv(rows, keys)]

    program = module_program(causal, *inputs(17, 23), dynamic=SELF)
    assert blocks(program).causal
    for rows, keys in ((0, 5), (1, 1), (97, 97), (513, 513), (3, 700), (700, 3)):
        program.check(*inputs(rows, keys))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_count_where_they_are_masked(bad: float) -> None:
    """0 x inf and 0 x NaN are NaN, in a skipped block too; masked keys of any value do not matter."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2]).unsqueeze(-1)
        scores = torch.where(allowed, q @ k.transpose(-1, -2), -math.inf)
        return torch.softmax(scores, -1) @ v

    compiled = module_program(program, *qkv(17, 23), dynamic=SELF)
    assert blocks(compiled).causal
    q, k, v = qkv(700, 700)
    v[0, 1, 650, 3] = bad
    k[0, 0, 660] = bad
    compiled.check(q, k, v)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38, -3e38])
def test_scores_that_are_not_finite(bad: float) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) + bias, -1) @ v

    compiled = module_program(program, *qkv(5, 7), randn(5, 7), dynamic=[*SELF, [0, 1]])
    assert kinds(compiled).count("attention") == 1
    for keys in (3, 100, 1030):
        bias = randn(4, keys)
        bias[1] = bad  # a whole row
        bias[2, keys // 2] = bad
        bias[3, : keys // 2] = bad  # all of the first block of keys of a long row
        compiled.check(*qkv(4, keys), bias)


class Masked(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("boolean", [True, False])
def test_masks_and_rows_without_a_key(boolean: bool) -> None:
    def mask(rows: int, keys: int) -> Tensor:
        allowed = randn(rows, keys) > -0.5
        allowed[::3] = False
        return allowed if boolean else torch.where(allowed, randn(rows, keys, seed=3), -math.inf)

    program = module_program(Masked(), *qkv(5, 7), mask(5, 7), dynamic=[*SELF, [0, 1]])
    assert blocks(program).safe
    for rows, keys in ((1, 1), (4, 0), (7, 13), (97, 64), (99, 513), (5, 1100)):
        program.check(*qkv(rows, keys), mask(rows, keys))


def test_causal_with_earlier_keys() -> None:
    """Queries at the end of longer keys, as with a cache: the bound depends on both lengths."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        past = k.shape[-2] - q.shape[-2]
        allowed = torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2]).unsqueeze(-1) + past
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

    compiled = module_program(program, *qkv(5, 9), dynamic=SELF)
    assert blocks(compiled).causal
    for rows, keys in ((1, 1), (1, 700), (3, 515), (97, 97), (100, 1100), (9, 4)):
        compiled.check(*qkv(rows, keys))


def test_grouped_heads_are_read_in_place() -> None:
    """No kernel repeats keys or values: the attention reads the head of its group."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    compiled = module_program(program, *qkv(5, 9, 6, 16, 2), dynamic=SELF)
    assert kinds(compiled) in (["loop", "attention"], ["attention"])  # the loop scales the queries
    for length in (1, 13, 64, 130, 530):
        compiled.check(*qkv(length, length, 6, 16, 2))


def test_another_function_of_rows_keeps_them_whole() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.relu(q @ k.transpose(-1, -2))
        return (scores / (scores.sum(-1, keepdim=True) + 1)) @ v

    compiled = module_program(program, *qkv(17, 23), dynamic=SELF)
    assert any(isinstance(plan, AttentionRowsPlan) for plan in plans_of(compiled.executables[-1]))
    for length in (0, 1, 7, 64, 97, 300):
        compiled.check(*qkv(length, length))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    def narrow(length: int) -> tuple[Tensor, ...]:
        return tuple(each.to(dtype) for each in qkv(length, length, width=32))

    program = module_program(causal, *narrow(17), dynamic=SELF)
    for length in (1, 7, 64, 97, 513, 700):
        program.check(*narrow(length), tolerance=2e-2)


def test_strided_inputs_of_a_layer() -> None:
    """Heads side by side in one projection, as every encoder has them."""

    def program(x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (3, 16)).transpose(1, 2) for each in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    compiled = module_program(program, randn(2, 7, 144), dynamic=[[0, 1]])
    assert kinds(compiled).count("attention") == 1
    for batch, length in ((1, 1), (3, 7), (2, 97), (1, 520), (0, 4), (4, 0)):
        compiled.check(randn(batch, length, 144))


def layers(x: Tensor, mask: Tensor, heads: int = 4) -> Tensor:
    """Two layers that read one mask."""
    for _ in range(2):
        y = x.unflatten(-1, (heads, 16)).transpose(1, 2)
        x = F.scaled_dot_product_attention(y, y, y, attn_mask=mask).transpose(1, 2).flatten(2)
    return x


def causal_rows(length: int) -> Tensor:
    return torch.arange(length) <= torch.arange(length).unsqueeze(-1)


PADDED = ((1, 1), (2, 7), (3, 16), (1, 64), (2, 97), (1, 131), (2, 515), (0, 3), (3, 0))


def padding(batch: int, length: int) -> Tensor:
    """True for keys that count: none for the second sentence, all but some at the ends for the others."""
    kept = torch.ones(batch, length, dtype=torch.bool)
    kept[:, length - length // 4 :] = False
    kept[2:, : length // 3] = False
    kept[1:2] = False
    return kept


@pytest.mark.parametrize("additive", [False, True])
def test_causal_layers_share_no_mask(additive: bool) -> None:
    """Every layer computes the mask of rows and columns from their numbers, and skips keys; rows without a key give what eager gives."""

    def program(x: Tensor, kept: Tensor) -> Tensor:
        mask = causal_rows(x.shape[1]) & kept[:, None, None, :]
        return layers(x, torch.where(mask, 0.0, -math.inf) if additive else mask)

    compiled = module_program(program, randn(2, 7, 64), padding(2, 7), dynamic=[[0, 1], [0, 1]])
    assert kinds(compiled) == ["loop", "attention"] * 2  # the loops scale the queries
    assert blocks(compiled).causal is not additive  # a score of NaN or +inf is still one when -inf is added
    for batch, length in PADDED:
        compiled.check(randn(batch, length, 64), padding(batch, length))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_behind_a_shared_mask(bad: float) -> None:
    def program(x: Tensor, kept: Tensor) -> Tensor:
        return layers(x, causal_rows(x.shape[1]) & kept[:, None, None, :])

    compiled = module_program(program, randn(2, 7, 64), padding(2, 7), dynamic=[[0, 1], [0, 1]])
    x, kept = randn(1, 600, 64), padding(1, 600)
    x[0, 550, 5] = bad
    compiled.check(x, kept)


def biased(x: Tensor, table: Tensor, kept: Tensor) -> Tensor:
    """A bias by distance in layers that all read it, as in T5."""
    distance = torch.arange(x.shape[1]).unsqueeze(-1) - torch.arange(x.shape[1])
    bias = table[distance.clamp(-8, 8) + 8].permute(2, 0, 1).unsqueeze(0)
    return layers(x, torch.where(kept[:, None, None, :], bias, -math.inf))


def test_layers_with_a_bias_are_attention_kernels() -> None:
    compiled = module_program(biased, randn(2, 7, 64), randn(17, 4), padding(2, 7), dynamic=[[0, 1], [], [0, 1]])
    assert kinds(compiled).count("attention") == 2 and "compute" not in kinds(compiled)
    for batch, length in PADDED:
        compiled.check(randn(batch, length, 64), randn(17, 4), padding(batch, length))


def test_layers_with_a_bias_of_one_sentence() -> None:
    """A batch that is known to be 1: the masked bias has no more elements than the bias, and stays one value."""
    compiled = module_program(biased, randn(1, 7, 64), randn(17, 4), padding(1, 7), dynamic=[[1], [], [1]])
    assert kinds(compiled).count("attention") == 2 and "compute" not in kinds(compiled)
    for length in (1, 2, 17, 64, 130, 515):
        compiled.check(randn(1, length, 64), randn(17, 4), padding(1, length))


def returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(q @ k.transpose(-1, -2), -1)
    return p @ v, p


def scored(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores, -1) @ v, scores


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = torch.softmax(q @ k.transpose(-1, -2), -1)
    return torch.relu(p @ v) + (p @ q)


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.transpose(-1, -2) @ torch.softmax(q @ k.transpose(-1, -2), -1)


def kept(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores, -1) @ v + scores.sum(-1, keepdim=True)


def wide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.softmax((q @ k.transpose(-1, -2)).double(), -1) @ v.double()).float()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (returned, "the probabilities are returned"),
        (scored, "the scores are returned"),
        (dropped, "the probabilities are read more than once"),
        (turned, "the second dot does not have the probabilities on its left"),
        (kept, "the scores are read by other kernels too"),
        (wide, "the scores are f64"),
    ],
)
def test_explain_says_why_there_is_no_attention_kernel(program: Callable[..., object], reason: str) -> None:
    compiled = module_program(program, *qkv(9, 9), dynamic=SELF)
    compiled.check(*qkv(13, 13))
    assert "attention" not in kinds(compiled)
    found = [
        (kernel, note) for kernel in compiled.executables[0].explain().kernels for note in kernel.notes if "no attention kernel" in note
    ]
    assert found and all(reason in note for _, note in found), [note for _, note in found]


class Returned(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = q @ k.transpose(-1, -2)
        p = torch.softmax(scores, -1)
        return p @ v, p


def test_explain_names_the_line_of_both_dots() -> None:
    compiled = module_program(Returned(), *qkv(9, 9), dynamic=SELF)
    first = inspect.getsourcelines(Returned)[1] + 2
    (kernel,) = [each for each in compiled.executables[0].explain().kernels if any("no attention kernel" in note for note in each.notes)]
    assert any(f"test_attention.py:{first})" in note for note in kernel.notes)
    assert any(line.endswith(f"test_attention.py:{first + 2}") for line in kernel.lines)


def test_explain_says_nothing_of_dots_without_a_softmax_between_them() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(torch.relu(x @ y) @ y, -1)

    compiled = module_program(program, randn(5, 16), randn(16, 16), dynamic=[[0], []])
    assert not any("attention" in note for kernel in compiled.executables[0].explain().kernels for note in kernel.notes)


@pytest.mark.usefixtures("every_level")
@pytest.mark.parametrize("width", [16, 24, 64, 80, 256, 272])
def test_few_rows(width: int) -> None:
    """One row is what decoding asks for; around the number of rows that are worth packing the keys, and around 16 and 64 keys."""
    program = module_program(attention, *qkv(17, 23, width=width), dynamic=SELF)
    assert blocks(program).dots is (DOTS and width in (16, 64, 80, 256))
    for rows in (1, 3, 4, 5):
        for keys in (1, 2, 15, 16, 17, 63, 64, 65, 100, 513):
            program.check(*qkv(rows, keys, width=width))


@pytest.mark.usefixtures("every_level")
@pytest.mark.parametrize("rows", [1, 4, 5])
def test_few_rows_of_grouped_heads_behind_a_mask(rows: int) -> None:
    """A known number of rows; keys of one head lie far apart, and some rows have none."""

    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def inputs(keys: int) -> tuple[Tensor, ...]:
        mask = randn(rows, keys, seed=4) > -0.5
        mask[-1] = False
        return randn(1, 6, rows, 32), randn(1, keys, 2, 32, seed=1), randn(1, keys, 2, 32, seed=2), mask

    compiled = module_program(program, *inputs(23), dynamic=[[], [1], [1], [1]])
    assert blocks(compiled).dots is (DOTS and rows <= 4)
    for keys in (1, 2, 16, 33, 64, 130, 700):
        compiled.check(*inputs(keys))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_few_rows_with_keys_that_are_not_finite(bad: float) -> None:
    program = module_program(attention, *qkv(1, 23), dynamic=SELF)
    q, k, v = qkv(2, 90)
    k[0, 0, 70, 3], k[0, 1, 5, 9] = bad, bad
    program.check(q, k, v)


@pytest.mark.parametrize("masked", [False, True])
def test_heads_of_any_size(masked: bool) -> None:
    """The scale follows from their size, which was fixed to the example's, without a warning."""

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def inputs(batch: int, rows: int, columns: int, size: int) -> tuple[torch.Tensor, ...]:
        q, k, v = (torch.randn(batch, 3, length, size) for length in (rows, columns, columns))
        return (q, k, v, torch.randn(rows, columns)) if masked else (q, k, v)

    compiled = disc.compile(Attention(), inputs(2, 5, 7, 8), options=disc.Options(cache=False))
    for sizes in ((3, 6, 4, 12), (1, 2, 9, 5)):
        given = inputs(*sizes)
        torch.testing.assert_close(compiled(*given), Attention()(*given), rtol=1e-4, atol=1e-5)
