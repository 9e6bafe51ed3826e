"""Attention with relative bias against eager: scores plus terms by the distance of query and key, which the attention kernel reads itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from compiled import ModuleProgram, module_program, plans_of, randn
from torch import Tensor, nn

from disc.codegen.x86.plans import AttentionBlocksPlan

# Around a vector, a panel, a block of rows and a block of keys; the example has (2, 11).
SIZES = ((1, 1), (2, 2), (1, 7), (3, 13), (2, 16), (1, 17), (2, 63), (1, 64), (1, 65), (2, 95), (1, 97), (1, 131), (1, 511), (1, 513))
ALL = [[0, 1], [0, 1]]


class Text(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask)[0]


def inputs(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Ids, and a mask that hides the end of every sentence but the first."""
    ids = torch.randint(3, 90, (batch, length), generator=torch.Generator().manual_seed(length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1:, length - length // 3 :] = 0
    return ids, mask


def first(**options: Any) -> nn.Module:
    return transformers.DebertaModel(transformers.DebertaConfig(**tiny(), **options))


def second(**options: Any) -> nn.Module:
    return transformers.DebertaV2Model(transformers.DebertaV2Config(**tiny(), **options))


def tiny() -> dict[str, Any]:
    return {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 90,
        "max_position_embeddings": 600, "relative_attention": True, "max_relative_positions": 40,
    }  # fmt: skip


def compiled(build: Callable[..., nn.Module], **options: object) -> ModuleProgram:
    torch.manual_seed(0)
    return module_program(Text(build(**options)), *inputs(2, 11), dynamic=ALL)


def check(program: ModuleProgram) -> None:
    for size in SIZES:
        program.check(*inputs(*size))


def kernels(program: ModuleProgram, kind: str) -> list[dict[str, object]]:
    return [record for record in program.executables[0].manifest["kernels"] if record["kind"] == kind]  # type: ignore[union-attr,misc]


@pytest.mark.parametrize(
    ("build", "options", "terms"),
    [
        (first, {"pos_att_type": ["c2p", "p2c"]}, 2),
        pytest.param(first, {"pos_att_type": ["p2c"]}, 1, marks=pytest.mark.long),
        (second, {"pos_att_type": ["p2c", "c2p"], "position_buckets": 8}, 2),
        pytest.param(second, {"pos_att_type": ["c2p"], "position_buckets": 8, "share_att_key": True}, 1, marks=pytest.mark.long),
        pytest.param(second, {"pos_att_type": ["c2p", "p2c"], "share_att_key": True}, 2, marks=pytest.mark.long),
    ],
)
def test_every_layer_is_one_attention_kernel(build: Callable[..., nn.Module], options: dict[str, object], terms: int) -> None:
    program = compiled(build, **options)
    attention = kernels(program, "attention")
    assert len(attention) == 2 and len([plan for plan in plans_of(program.executables[0]) if isinstance(plan, AttentionBlocksPlan)]) == 2
    assert [str(record["ops"]).count("disc.gather") for record in attention] == [terms] * 2  # gathered where scores are made
    assert not of_pairs(program)
    check(program)


def of_pairs(program: ModuleProgram) -> list[str]:
    """The results of kernels with an element for each pair of positions; the distances of DeBERTa are min(S1, 40) * 2 at most."""
    records = program.executables[0].manifest["kernels"]
    results = [str(result) for record in records for result in record["results"]]  # type: ignore[union-attr]
    assert any("S1" in result for result in results)
    return [result for result in results if len(re.findall(r"[\[ ]S1(?= \*|,|\])", result)) > 1]


def encoder(**options: Any) -> nn.Module:
    sizes = {"d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 48, "vocab_size": 90, "relative_attention_num_buckets": 12}
    return transformers.T5EncoderModel(transformers.T5Config(**sizes, **options, relative_attention_max_distance=40))


@pytest.mark.parametrize("layers", [1, 3])
def test_bias_by_distance_is_no_buffer(layers: int) -> None:
    """Layers of T5 share a bias: a row of distances for every head, in the order in which keys follow each other."""
    program = compiled(encoder, num_layers=layers)
    assert len(kernels(program, "attention")) == layers
    assert not of_pairs(program)
    assert "f32[2, S1 * 2]" in [str(result) for record in kernels(program, "loop") for result in record["results"]]  # type: ignore[union-attr]
    check(program)
    for executable in program.executables:  # eager cannot split the heads of no tokens
        assert executable(*inputs(2, 0)).shape == (2, 0, 32)  # type: ignore[union-attr]


def merged(x: Tensor, bias: Tensor) -> Tensor:
    """Heads and batch as one dim around every product, the mask added in between, softmax over the merged dims."""
    batch, length, _ = x.shape
    q = x.view(batch, length, 4, 16).transpose(1, 2).reshape(batch * 4, length, 16)
    scores = torch.bmm(q, q.transpose(1, 2)).view(batch, 4, length, length) + bias
    p = torch.softmax(scores.view(batch * 4, length, length), -1)
    return torch.bmm(p, q).view(batch, 4, length, 16).transpose(1, 2).reshape(batch, length, 64)


def test_merged_heads_are_one_attention_kernel() -> None:
    program = module_program(merged, randn(2, 7, 64), randn(7, 7), dynamic=[[0, 1], [0, 1]])
    assert len(kernels(program, "attention")) == 1 and not kernels(program, "stitch")
    for batch, length in ((0, 3), (1, 1), (3, 7), (2, 64), (1, 97), (1, 515)):
        program.check(randn(batch, length, 64), randn(length, length))


def test_a_product_that_is_used_merged_too() -> None:
    """The scores are also read as they are: both forms hold."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        q = x.view(batch, length, 4, 16).transpose(1, 2).reshape(batch * 4, length, 16)
        scores = torch.bmm(q, q.transpose(1, 2))
        return scores.sum(0), torch.relu(scores.view(batch, 4, length, length))

    program = module_program(both, randn(2, 7, 64), dynamic=[[0, 1]])
    for batch, length in ((1, 1), (3, 7), (2, 33)):
        program.check(randn(batch, length, 64))


def windows(x: Tensor) -> Tensor:
    """Windows as batch dims: two merges, of three dims, with a reduction and a gather between product and split."""
    batch, length, _ = x.shape
    parts = x.view(batch, length // 2, 2, 2, 8).permute(0, 1, 3, 2, 4).reshape(-1, 2, 8)
    product = torch.bmm(parts, parts.transpose(1, 2)).gather(2, torch.tensor([[[1, 0], [0, 0]]]).expand(parts.shape[0], 2, 2))
    return product.amax(-1, keepdim=True).exp().expand(-1, 2, 3).permute(0, 2, 1).reshape(batch, length // 2, 2, 3, 2)


def test_three_merged_dims() -> None:
    program = module_program(windows, randn(2, 6, 16), dynamic=[[0]])
    for batch in (1, 2, 5):
        program.check(randn(batch, 6, 16))
