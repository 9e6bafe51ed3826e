"""transformers' DynamicCache as an input and a result of compiled models."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
    T5Config,
    T5ForConditionalGeneration,
)

import disc
from disc.artifact.structure import malformed, result_names
from disc.errors import DiscWarning, ExportError, InputRankError, InputTypeError, ShapeConstraintError
from disc.frontend.models import import_model
from disc.frontend.portable import read_portable, write_portable
from disc.ir.dialect import make_context

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "vocab_size": 50, "max_position_embeddings": 64,
}  # fmt: skip
NAMES = [f"past_key_values.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])


def cache(batch: int, length: int, layers: int = 2, heads: int = 2, size: int = 8) -> Any:
    return DynamicCache([(torch.randn(batch, heads, length, size), torch.randn(batch, heads, length, size)) for _ in range(layers)])


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


@pytest.fixture(scope="module")
def compiled(llama: LlamaForCausalLM) -> disc.Executable:
    return disc.compile(llama, {"input_ids": IDS, "past_key_values": cache(2, 3)})


def check(executable: Any, model: Any, past: Any, ids: Tensor) -> None:
    before = past.get_seq_length()
    with torch.no_grad():
        wanted = model(ids, past_key_values=copy.deepcopy(past))
    found = executable(input_ids=ids, past_key_values=past)
    assert [type(found), type(found.past_key_values)] == [type(wanted), DynamicCache]
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=1e-5)
    assert len(found.past_key_values) == len(wanted.past_key_values)
    for layer, eager in zip(found.past_key_values.layers, wanted.past_key_values.layers, strict=True):
        torch.testing.assert_close((layer.keys, layer.values), (eager.keys, eager.values), atol=1e-5, rtol=1e-5)
        assert layer.is_initialized and (layer.dtype, layer.device) == (eager.dtype, eager.device)
    assert past.get_seq_length() == before  # what is given is not written


@pytest.mark.parametrize(("batch", "tokens", "past"), [(1, 1, 0), (2, 5, 0), (1, 1, 1), (3, 1, 7), (2, 4, 9)])
def test_any_batch_length_and_past(llama: LlamaForCausalLM, compiled: disc.Executable, batch: int, tokens: int, past: int) -> None:
    check(compiled, llama, cache(batch, past), torch.randint(50, (batch, tokens)))
    assert compiled.stats()["compiles"] in (0, 1)


def test_gpt2_from_an_example_of_one_token_without_past() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=50, n_positions=64)).eval()
    executable = disc.compile(model, {"input_ids": IDS[:1, :1], "past_key_values": cache(1, 0, heads=4)})
    for batch, tokens, past in ((1, 1, 0), (2, 5, 0), (3, 2, 7)):
        check(executable, model, cache(batch, past, heads=4), torch.randint(50, (batch, tokens)))


def test_requests_with_caches_may_be_joined(compiled: disc.Executable) -> None:
    """A condition of transformers on the elements of a cache, which more rows satisfy, too, is none on joining."""
    assert compiled.manifest.get("batch") == {"symbol": "S0", "inputs": [0] * 5, "outputs": [0] * 5}
    parts = [(torch.randint(50, (rows, 2)), *(torch.randn(rows, 2, 3, 8) for _ in range(4))) for rows in (1, 3)]
    together = compiled.flat(*(torch.cat(each) for each in zip(*parts, strict=True)))
    for each, apart in zip(together, zip(*(compiled.flat(*part) for part in parts), strict=True), strict=True):
        torch.testing.assert_close(each, torch.cat(apart), atol=1e-5, rtol=1e-5)


def test_a_cache_goes_round(llama: LlamaForCausalLM, compiled: disc.Executable) -> None:
    past: Any = DynamicCache()
    eager = DynamicCache()
    for number in range(3):
        ids = IDS[:, : 3 - number]
        found: Any = compiled(ids, past) if number else compiled(input_ids=ids, past_key_values=past)
        with torch.no_grad():
            wanted = llama(ids, past_key_values=eager)
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=1e-5)
        past = found.past_key_values
    assert past.get_seq_length() == 6


def test_the_ways_to_give_one(compiled: disc.Executable) -> None:
    past = cache(2, 3)
    layers = [{"key": layer.keys, "value": layer.values} for layer in past.layers]
    flat = [tensor for layer in layers for tensor in layer.values()]
    wanted: Any = compiled(IDS, *flat)
    ways: list[Any] = [
        compiled(IDS, past),
        compiled(IDS, past_key_values=past),
        compiled({"input_ids": IDS, "past_key_values": past}),
        compiled(input_ids=IDS, past_key_values=layers),
        compiled(input_ids=IDS.int(), past_key_values=past, cast=True),
        compiled(input_ids=IDS, **dict(zip(NAMES, flat, strict=True))),
    ]
    for found in ways:
        assert torch.equal(found.logits, wanted.logits)
    assert [each.name for each in compiled.inputs] == ["input_ids", *NAMES]
    assert [each.name for each in compiled.outputs] == ["logits", *NAMES]
    assert "stitch" in str(compiled.explain(input_ids=IDS, past_key_values=past))


def test_fixed_arguments_before_it(llama: LlamaForCausalLM) -> None:
    executable = disc.compile(llama, (IDS, None, None, cache(2, 3)))
    past = cache(2, 5)
    with torch.no_grad():
        wanted = llama(IDS, past_key_values=copy.deepcopy(past)).logits
    for found in (executable(IDS, None, None, past), executable(IDS, past)):
        torch.testing.assert_close(found.logits, wanted, atol=1e-5, rtol=1e-5)  # pyright: ignore[reportAttributeAccessIssue]


def test_dims_as_the_user_says(llama: LlamaForCausalLM) -> None:
    length = {2: Dim.AUTO}
    shapes = {"input_ids": {1: Dim.AUTO}, "past_key_values": [{"key": length, "value": length}] * 2}
    executable = disc.compile(llama, {"input_ids": IDS, "past_key_values": cache(2, 3)}, dynamic_shapes=shapes)
    check(executable, llama, cache(2, 6), IDS)
    with pytest.raises(ShapeConstraintError, match="dim 0 must be 2, got 1"):
        executable(input_ids=IDS[:1], past_key_values=cache(1, 3))


def test_a_model_that_makes_its_own(llama: LlamaForCausalLM) -> None:
    """`use_cache` is transformers' default."""
    found: Any = disc.compile(llama, {"input_ids": IDS})(IDS[:, :3])
    with torch.no_grad():
        wanted = llama(IDS[:, :3])
    assert str(found.past_key_values).startswith("DynamicCache(")
    torch.testing.assert_close(found.past_key_values.layers[1].values, wanted.past_key_values.layers[1].values, atol=1e-5, rtol=1e-5)


def test_sliding_windows_over_a_cache_of_all_tokens() -> None:
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)).eval()
    executable = disc.compile(model, {"input_ids": IDS, "past_key_values": cache(2, 3)})
    for batch, tokens, past in ((1, 1, 0), (2, 7, 0), (3, 2, 9)):
        check(executable, model, cache(batch, past), torch.randint(50, (batch, tokens)))
    with pytest.raises(ExportError, match=r"layer 0 .* is a DynamicSlidingWindowLayer.*set model\.config\.use_cache = False"):
        disc.compile(model, {"input_ids": IDS})


class Doubled(nn.Module):
    """A cache within other structures, of a module that is none of transformers'."""

    def forward(self, pair: tuple[Tensor, DynamicCache]) -> dict[str, object]:
        rows, past = pair
        for number in range(len(past)):
            past.update(rows, rows * 2, number)
        return {"sum": rows.sum(), "caches": [past, 7]}


def test_within_structures() -> None:
    rows = torch.randn(2, 2, 1, 8)
    with pytest.warns(DiscWarning, match="dim 1 of input 'pair_0' is fixed to 2"):
        executable = disc.compile(Doubled(), ((rows, cache(2, 3)),))
    assert [each.name for each in executable.inputs] == [
        "pair_0",
        *(f"pair_1.{layer}.{part}" for layer in range(2) for part in ("key", "value")),
    ]
    past = cache(2, 5)
    found: Any = executable(rows, past)
    assert found["caches"][1] == 7
    assert torch.equal(found["caches"][0].layers[1].values, torch.cat([past.layers[1].values, rows * 2], 2))


def test_without_torch(compiled: disc.Executable, tmp_path: Path) -> None:
    compiled.save(tmp_path / "llama.disc")
    past = cache(2, 3)
    wanted: Any = compiled(IDS, past)
    flat = [tensor.numpy() for layer in past.layers for tensor in (layer.keys, layer.values)]
    np.savez(tmp_path / "given.npz", IDS.numpy(), *flat)
    code = """
import sys, numpy as np, disc
given = list(np.load(sys.argv[1] + "/given.npz").values())
executable = disc.load(sys.argv[1] + "/llama.disc")
past = [{"key": key, "value": value} for key, value in zip(given[1::2], given[2::2])]
found = executable(input_ids=given[0], past_key_values=past)
again = executable(input_ids=given[0][:, :1], past_key_values=found.past_key_values)
assert [sorted(layer) for layer in again.past_key_values] == [["key", "value"]] * 2
assert again.past_key_values[1]["value"].shape == (2, 2, 8, 8) and "torch" not in sys.modules
np.savez(sys.argv[1] + "/found.npz", found.logits, again.logits)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    first, second = np.load(tmp_path / "found.npz").values()
    np.testing.assert_array_equal(first, wanted.logits.numpy())
    follows: Any = compiled(IDS[:, :1], wanted.past_key_values)
    np.testing.assert_array_equal(second, follows.logits.numpy())


def test_programs_exported_by_others(llama: LlamaForCausalLM) -> None:
    """In a process of its own: transformers' registration holds for all of it."""
    code = """
import torch, disc
from transformers import DynamicCache, LlamaForCausalLM, LlamaConfig
from transformers.integrations.executorch import register_dynamic_cache_export_support
from tests.e2e.test_caches import IDS, NAMES, SIZES, cache, check
register_dynamic_cache_export_support()
model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
both, rows = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}
with torch.no_grad():
    inputs = {"input_ids": IDS, "past_key_values": cache(2, 3)}
    program = torch.export.export(model, (), inputs, dynamic_shapes={"input_ids": both, "past_key_values": [[rows] * 2] * 2})
for executable in (disc.compile(program), disc.compile(model, inputs)):
    check(executable, model, cache(3, 5), torch.randint(50, (3, 2)))
    assert sorted(each.name for each in executable.inputs) == sorted(["input_ids", *NAMES]), executable
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_it_crosses_to_another_machine(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    imported = import_model(llama, {"input_ids": IDS, "past_key_values": cache(2, 3)}, None, make_context())
    program = write_portable(imported, tmp_path / "weights")
    again = read_portable(program, (tmp_path / "weights").read_bytes(), single=False, context=make_context())
    assert again.input_names == ("input_ids", *NAMES) and again.outputs.structure == imported.outputs.structure
    assert list(again.outputs.shown.values()) == ["logits", *NAMES]


def test_what_does_not_fit(llama: LlamaForCausalLM, compiled: disc.Executable) -> None:
    for example, message in (
        (DynamicCache(), r"cache of the example is empty: give one whose layers have tensors \[batch, heads, length, size\]"),
        (StaticCache(config=llama.config, max_cache_len=8), "the cache of the example is of StaticCache; .*only a DynamicCache"),
        (DynamicCache([(torch.ones(2, 3, 8), torch.ones(2, 3, 8))]), r"layer 0 .* has tensors of 3 dims; expected \[batch, heads"),
    ):
        with pytest.raises(InputTypeError, match=message):
            disc.compile(llama, {"input_ids": IDS, "past_key_values": example})
    t5 = T5ForConditionalGeneration(T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=50)).eval()
    with pytest.raises(ExportError, match=r"returns is of EncoderDecoderCache;.* set model\.config\.use_cache = False"):
        disc.compile(t5, {"input_ids": IDS, "decoder_input_ids": IDS})
    mistral = DynamicCache(config=MistralConfig(**SIZES, sliding_window=4))
    mistral.update(torch.ones(2, 2, 3, 8), torch.ones(2, 2, 3, 8), 0)
    for given, kind, message in (
        (cache(2, 3, layers=1), InputRankError, "input 'past_key_values' is a cache of 1 layers; the model's has 2"),
        (
            cache(3, 3),
            ShapeConstraintError,
            r"dim 0 of input 'past_key_values\.0\.key' must equal dim 0 of input 'input_ids': got 3, expected 2",
        ),
        (cache(2, 3, heads=4), ShapeConstraintError, r"input 'past_key_values\.0\.key' \(argument 1\): dim 1 must be 2, got 4"),
        ([torch.ones(2)], InputTypeError, r"expected a DynamicCache or \[\{'key': \.\.\., 'value': \.\.\.\}, \.\.\.\], got a list"),
        (mistral, InputTypeError, "layer 0 of input 'past_key_values' is a DynamicSlidingWindowLayer"),
        (StaticCache(config=llama.config, max_cache_len=8), InputTypeError, "input 'past_key_values' is of StaticCache"),
    ):
        with pytest.raises(kind, match=message):
            compiled(input_ids=IDS, past_key_values=given)
    with pytest.raises(InputTypeError, match="input 'input_ids' is no cache, and got a DynamicCache"):
        compiled(cache(2, 3), IDS)
    with pytest.raises(InputRankError, match=r"missing 'past_key_values\.0\.key'"):
        compiled(input_ids=IDS)
    with pytest.raises(InputTypeError, match="the cache is empty, and no other input tells its batch"):
        compiled(input_ids=5, past_key_values=DynamicCache())


def test_structures() -> None:
    layer = {"dict": [["key", 0], ["value", 1]]}
    assert malformed({"dict": [["past", {"cache": [layer]}]]}, 2) is None
    assert result_names({"dict": [["past", {"cache": [layer]}]]}) == {0: "past.0.key", 1: "past.0.value"}
    for wrong in ({"cache": 3}, {"cache": [0, 1]}, {"cache": [{"dict": [["key", 0], ["other", 1]]}]}, {"cache": [{"tuple": [0, 1]}]}):
        assert malformed(wrong, 2) is not None
