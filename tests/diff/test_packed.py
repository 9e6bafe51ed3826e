"""Packed programs: sequences one behind the other give what each gives alone, whatever the others are."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from compiled import ISAS
from levels import levels_of_this_test
from torch import nn

import disc
from disc.config import Options
from disc.errors import ArtifactError, ShapeConstraintError
from disc.ral.executable import Executable, load
from disc.serving.packing import call_packed

Array = np.ndarray[Any, Any]
VOCABULARY = 100
LENGTHS = ((5,), (1, 2, 3), (7, 1, 96, 97, 13, 95, 31), (191, 3, 4, 5), (64, 64, 63, 65), (17, 1, 1, 1, 16, 15))


class Text(nn.Module):
    """A model of ids and mask, with its pooled output where it has one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> object:
        found = self.model(input_ids=ids, attention_mask=mask)
        pooled = getattr(found, "pooler_output", None)
        return found.last_hidden_state if pooled is None else (found.last_hidden_state, pooled)


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    small: dict[str, Any] = {"vocab_size": VOCABULARY}
    usual = {**small, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 128}
    t = transformers
    makers = {
        "bert": lambda: t.BertModel(t.BertConfig(**usual)),
        "distilbert": lambda: t.DistilBertModel(t.DistilBertConfig(**small, dim=64, n_heads=4, n_layers=1, hidden_dim=128)),
        "albert": lambda: t.AlbertModel(t.AlbertConfig(**usual, embedding_size=32)),
        "gpt2": lambda: t.GPT2Model(t.GPT2Config(**small, n_embd=64, n_head=4, n_layer=1, use_cache=False)),
        "roberta": lambda: t.RobertaModel(t.RobertaConfig(**usual, pad_token_id=1)),
        "t5": lambda: t.T5EncoderModel(t.T5Config(**small, d_model=64, num_heads=4, num_layers=2, d_ff=128, d_kv=16)),
    }
    return Text(makers[name]().eval())


def inputs(generator: np.random.Generator, rows: int, length: int) -> tuple[Array, Array]:
    mask = np.ones((rows, length), np.int64)
    mask[-1, 2 * length // 3 + 1 :] = 0
    return generator.integers(2, VOCABULARY, (rows, length)), mask


def packed(model: nn.Module, example: tuple[torch.Tensor, ...], **options: Any) -> Executable:
    made = disc.compile(model, example, options=Options(packed=True, cache=False, **options))
    assert "packed" in made.manifest, made.manifest.get("packed_refusal")
    return made


def compiled(model: nn.Module, example: tuple[torch.Tensor, ...], tmp_path: Any) -> list[Executable]:
    isas = levels_of_this_test(ISAS)
    made = disc.compile(model, example, target=isas, options=Options(packed=True, cache=False))
    assert "packed" in made.manifest, made.manifest.get("packed_refusal")
    made.save(tmp_path / "packed.disc")
    return [load(tmp_path / "packed.disc", isa=isa) for isa in isas]


def compare(executable: Executable, model: nn.Module, requests: list[tuple[Array, ...]], tolerance: float = 2e-5) -> None:
    for found, request in zip(call_packed(executable, requests), requests, strict=True):
        with torch.no_grad():
            wanted = model(*(torch.from_numpy(each) for each in request))
        for one, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bert", "distilbert", "albert", "gpt2"])
def test_models(name: str) -> None:
    model, generator = built(name), np.random.default_rng(0)
    example = tuple(torch.from_numpy(each) for each in inputs(generator, 2, 5))
    executable = packed(model, example)
    for lengths in LENGTHS:
        compare(executable, model, [inputs(generator, 1, length) for length in lengths])
    compare(executable, model, [inputs(generator, 3, 7), inputs(generator, 1, 29), inputs(generator, 2, 1)])


def test_reduced_precision() -> None:
    model, generator = built("bert"), np.random.default_rng(0)
    example = tuple(torch.from_numpy(each) for each in inputs(generator, 2, 5))
    executable = packed(model, example, dtype="bf16")
    for lengths in LENGTHS:
        compare(executable, model, [inputs(generator, 1, length) for length in lengths], 2e-2)


@pytest.mark.parametrize(("name", "words"), [("roberta", "disc.cumulative"), ("t5", "stored")])
def test_refusals_name_the_op(name: str, words: str) -> None:
    example = tuple(torch.from_numpy(each) for each in inputs(np.random.default_rng(0), 2, 5))
    model = built(name)
    with pytest.warns(UserWarning, match="not packed: "):
        found = disc.compile(model, example, options=Options(packed=True, cache=False))
    refusal = found.manifest.get("packed_refusal", "")
    assert words in refusal and ".py:" in refusal, refusal
    with pytest.raises(ArtifactError, match="not packed"):
        call_packed(found, [inputs(np.random.default_rng(0), 1, 3)])
    with torch.no_grad():
        for one, other in zip(listed(found(*example)), listed(model(*example)), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


class Heads(nn.Module):
    """Attention over features, causal or not."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.heads, self.causal, self.project = heads, causal, nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("width", "heads"), [(64, 4), (60, 5), (24, 3)])
def test_other_sequences_leave_no_trace(causal: bool, width: int, heads: int, tmp_path: Any) -> None:
    """Not even infinities and NaN, which no mask hides."""
    model, generator = Heads(width, heads, causal).eval(), np.random.default_rng(0)
    for executable in compiled(model, (torch.randn(2, 5, width),), tmp_path):
        for lengths in ((9, 17, 5), (100, 96, 190, 3), (1, 700, 1), (513, 2, 1)):
            requests = [(generator.standard_normal((1, length, width)).astype(np.float32),) for length in lengths]
            compare(executable, model, requests)
            for bad in (np.nan, np.inf):
                spoiled = [(np.full_like(requests[0][0], bad),), *requests[1:-1], (np.full_like(requests[-1][0], bad),)]
                clean = call_packed(executable, requests)[1:-1]
                for one, other in zip(call_packed(executable, spoiled)[1:-1], clean, strict=True):
                    np.testing.assert_array_equal(one[0], other[0])


def test_nothing_to_compute(tmp_path: Any) -> None:
    model = Heads(16, 2, False).eval()
    for executable in compiled(model, (torch.randn(2, 5, 16),), tmp_path):
        empty = np.zeros((1, 0, 16), np.float32)
        assert [each[0].shape for each in call_packed(executable, [(empty,), (empty,)])] == [(1, 0, 16)] * 2
        x = np.ones((1, 3, 16), np.float32)
        between = call_packed(executable, [(empty,), (x,), (empty,), (x,), (empty,)])
        np.testing.assert_array_equal(between[1][0], between[3][0])


def test_wrong_bounds_are_cut(tmp_path: Any) -> None:
    """A caller who makes up bounds gets wrong numbers, never memory outside of the tokens."""
    x = np.ones((1, 5, 16), np.float32)
    rows = np.array([0], np.int64)
    for executable in compiled(Heads(16, 2, False).eval(), (torch.randn(2, 5, 16),), tmp_path):
        for first, past in ((-(2**40), 2**40), (3, 1), (2**62, -(2**62)), (-1, 6)):
            executable(x, np.full(5, first, np.int64), np.full(5, past, np.int64), rows, rows + 5)


def test_requests_that_do_not_fit() -> None:
    model, generator = built("bert"), np.random.default_rng(0)
    example = tuple(torch.from_numpy(each) for each in inputs(generator, 2, 5))
    executable = packed(model, example)
    ids, mask = inputs(generator, 2, 5)
    with pytest.raises(ShapeConstraintError, match="at least 1 tokens"):
        call_packed(executable, [(ids[:, :0], mask[:, :0])])
    with pytest.raises(ShapeConstraintError, match="same rows and tokens"):
        call_packed(executable, [(ids, mask[:1])])
    with pytest.raises(ShapeConstraintError, match="out of range"):
        call_packed(executable, [inputs(generator, 1, 513)])


class Pooled(nn.Module):
    """A sentence encoder: the mean over the tokens of the mask, normalized; other ways to pool beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = built("bert")

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.model(ids, mask)[0]
        kept = mask.unsqueeze(-1)
        total, count = (hidden * kept).sum(1), kept.sum(1).clamp(min=1e-9)
        largest = hidden.masked_fill(kept == 0, -1e9).amax(1)
        return nn.functional.normalize(total / count), hidden.mean(1), mask.sum(1), largest, total / kept.sum(1).sqrt()


PRIMES = (2, 3, 5, 7, 11, 13, 67, 127, 257)


def test_pooling() -> None:
    """One sequence, many, lengths 1, 2 and primes; rows that are padded themselves; other requests leave no trace."""
    model, generator = Pooled().eval(), np.random.default_rng(0)
    executable = packed(model, tuple(torch.from_numpy(each) for each in inputs(generator, 2, 5)))
    assert executable.manifest["packed"]["outputs"] == ["sequences"] * 5  # pyright: ignore[reportTypedDictNotRequiredAccess]
    for lengths in (*LENGTHS, (1,), (2,), (1, 1), PRIMES, (3,) * 40):
        compare(executable, model, [inputs(generator, 1, length) for length in lengths])
    compare(executable, model, [inputs(generator, 3, 7), inputs(generator, 1, 29), inputs(generator, 2, 2)])
    request = inputs(generator, 2, 13)
    alone = call_packed(executable, [request])[0]
    for one, other in zip(call_packed(executable, [inputs(generator, 1, 31), request, inputs(generator, 2, 9)])[1], alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


class Reductions(nn.Module):
    """What follows from the tokens of a sequence, from its length and from places in it, in all element types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.project = nn.Linear(24, 130)

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, ...]:
        place = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        x = self.project(x)
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)  # [rows, heads, tokens, width]
        return (
            x.sum(1), x.transpose(1, 2).mean(2), heads.amax(2), x.double().sum(1), number.sum(1), number.int().sum(1, dtype=torch.int32),
            place.sum(1) + place[:, 0], x.sum(1) * (x.shape[1] * 2.0) ** 0.5, (number * place).sum(1), x.half().sum(1),
        )  # fmt: skip


def reductions(generator: np.random.Generator, rows: int, length: int) -> tuple[Array, Array]:
    return generator.standard_normal((rows, length, 24)).astype(np.float32), generator.integers(-(2**62), 2**62, (rows, length))


def test_reductions(tmp_path: Any) -> None:
    model, generator = Reductions().eval(), np.random.default_rng(0)
    example = tuple(torch.from_numpy(each) for each in reductions(generator, 2, 5))
    for executable in compiled(model, example, tmp_path):
        for lengths in (*LENGTHS, (1,), PRIMES, (1,) * 50):
            requests = [reductions(generator, 1 + length % 2, length) for length in lengths]
            for found, request in zip(call_packed(executable, requests), requests, strict=True):
                with torch.no_grad():
                    wanted = model(*(torch.from_numpy(each) for each in request))
                for one, other in zip(found, wanted, strict=True):
                    tolerance = 0 if one.dtype.kind == "i" else 1e-2 if one.dtype == np.float16 else 2e-5
                    np.testing.assert_allclose(one, other.numpy(), rtol=tolerance, atol=tolerance)


def test_values_that_are_not_finite_stay_in_their_sequence(tmp_path: Any) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.mean(1), x.amax(1)

    x = np.random.default_rng(0).standard_normal((3, 1, 4, 70)).astype(np.float32)
    x[0, 0, 1, :3] = np.nan, np.inf, -np.inf
    x[2, 0, :, 5] = -np.inf
    for executable in compiled(Both(), (torch.randn(2, 5, 70),), tmp_path):
        compare(executable, Both(), [(each,) for each in x])
        with pytest.raises(ShapeConstraintError, match="at least 1 tokens"):
            call_packed(executable, [(x[0],), (x[0, :, :0],)])


def test_a_mean_over_no_tokens(tmp_path: Any) -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(1)

    x, none = np.ones((1, 3, 8), np.float32), np.zeros((1, 0, 8), np.float32)
    for executable in compiled(Mean(), (torch.randn(2, 5, 8),), tmp_path):
        compare(executable, Mean(), [(none,), (x,), (none,)])
        compare(executable, Mean(), [(none,)])
        for first, past in ((-(2**40), 2**40), (3, 1), (2**62, -(2**62)), (-1, 6)):  # bounds that are made up are cut
            bounds = np.full(3, first, np.int64), np.full(3, past, np.int64), np.array([first]), np.array([past])
            assert cast("Array", executable(x, *bounds)).shape == (1, 8)


@pytest.mark.parametrize("form", ["over rows", "given back", "length of tokens", "product", "variance"])
def test_what_is_no_reduction_of_a_sequence(form: str) -> None:
    class Refused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if form == "over rows":
                return x - x.sum((0, 1))
            if form == "given back":
                return x - x.mean(1, keepdim=True)
            if form == "length of tokens":
                return x * x.shape[1]
            return x.prod(1) if form == "product" else x.var(1)

    with pytest.warns(UserWarning, match=r"not packed: .* at .*test_packed\.py"):
        found = disc.compile(Refused(), (torch.randn(3, 5, 8),), options=Options(packed=True, cache=False))
    x = torch.randn(2, 7, 8)
    torch.testing.assert_close(found(x), Refused()(x), atol=1e-5, rtol=1e-5)


def test_programs_with_code_for_gpus_pool_too() -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(1)

    found = disc.compile(Mean(), (torch.randn(3, 5, 8),), target=["x86-64-v3", "sm_90"], options=Options(packed=True, cache=False))
    assert "packed" in found.manifest, found.manifest.get("packed_refusal")
    generator = np.random.default_rng(0)
    compare(found, Mean(), [(generator.standard_normal((1, length, 8), np.float32),) for length in (2, 5, 1)])


def test_chosen_places_count_from_the_start_of_their_sequence(tmp_path: Any) -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            place = torch.arange(x.shape[1]).expand(x.shape[0], -1)
            return place[:, 1] + x[:, 1], place[:, -1] * x[:, 0]

    requests = [(np.full((1, length), length),) for length in (2, 5, 3)]
    for executable in compiled(Chosen(), (torch.ones(2, 5, dtype=torch.int64),), tmp_path):
        compare(executable, Chosen(), requests)
