"""Work that a compile does, counted: it must grow as the program does, and a length padded to a multiple of a chunk must cost no search."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import disc
from disc.passes.fusion.clusters import Clusters
from disc.shapes import ShapeEnv, Truth
from disc.shapes import bounds as _dim_bounds
from disc.shapes.facts import Facts


class Counter:
    """Counts the calls of a method."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        self.calls = 0
        method = getattr(kind, name)

        def counted(*given: object, **named: object) -> object:
            self.calls += 1
            return method(*given, **named)

        patch.setattr(kind, name, counted)


def compile_text(folder: Path, text: str) -> None:
    (folder / "program.mlir").write_text(text)
    disc.compile(folder / "program.mlir", options=disc.Options(cache=False, threads=1))


# --- sizes ----------------------------------------------------------------------------------------------------------------------


def test_a_padded_length_has_one_form() -> None:
    env = ShapeEnv()
    rows, length = env.symbol("S0"), env.symbol("S1")
    spellings = [
        length + (8 - length % 8) % 8,  # PyTorch's usual formula
        length + -length % 8,
        -(-length // 8) * 8,
        (length + 7) // 8 * 8,
        length - length % 8 + (length % 8 + 7) // 8 * 8,
    ]
    assert len({env.simplify(each) for each in spellings}) == 1
    padded, chunks = spellings[0], spellings[0] // 8
    assert env.simplify(padded // chunks) == 8 and env.divisor(padded) == 8
    assert env.equal(rows * chunks * 8 * 64, rows * padded * 64) is Truth.YES
    assert env.range(padded - length) == (0, 7)
    for value in range(40):
        assert {each.evaluate({"S1": value}) for each in spellings} == {-(-value // 8) * 8}


def test_a_question_has_a_bound() -> None:
    """Sums of roundings, as the places of buffers are, could be compared with each other for ever."""
    env = ShapeEnv()
    rounded = [(env.symbol(f"S{i}") * env.symbol(f"S{i + 1}") * 4 + 63) // 64 * 64 for i in range(8)]
    bounds = env._facts.bounds()
    left, right = sum(rounded[1:4], rounded[0]), sum(rounded[5:], rounded[4])
    assert env.le(left, right) is Truth.UNKNOWN
    atoms = len(left.atoms()) + len(right.atoms())
    assert bounds.steps_taken <= (2 + 4 * atoms) * _dim_bounds._MAXIMUM_STEPS


def test_derived_symbols_look_at_no_fact_again(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ShapeEnv()
    base = [env.symbol(f"S{i}") for i in range(6)]
    env.equate(base[0] * base[1], base[2] * base[3])
    learnt = Counter(monkeypatch, Facts, "learn_equal")
    for i in range(100):
        env.define(f"D{i}", base[i % 6] * (i + 2))
    assert learnt.calls == 0
    assert env.simplify(env.parse("D7")) == base[1] * 9
    with pytest.raises(ValueError, match="declared already"):
        env.define("D7", base[0])


# --- programs -------------------------------------------------------------------------------------------------------------------


class Chunked(nn.Module):
    """Gated linear attention in chunks, its length padded to a multiple of them."""

    def __init__(self, chunk: int = 8) -> None:
        super().__init__()
        self.chunk = chunk
        self.qkv, self.gate, self.out = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        chunk = self.chunk
        pad = (chunk - length % chunk) % chunk
        parts = (*self.qkv(x).chunk(3, -1), -torch.sigmoid(self.gate(x)) / 16)
        padded = [nn.functional.pad(each, (0, 0, 0, pad)) for each in parts]
        count = (length + pad) // chunk
        q, k, v, g = (each.reshape(batch, count, chunk, 2, width // 2).permute(0, 3, 1, 2, 4) for each in padded)
        g = g.cumsum(-2)
        queries = q * g.exp()
        scores = (queries @ (k * (-g).exp()).transpose(-1, -2)) * torch.tril(torch.ones(chunk, chunk))
        last = g[..., -1:, :]
        states = (k * (last - g).exp()).transpose(-1, -2) @ v
        decay = last.squeeze(-2).cumsum(2)
        weights = (decay.unsqueeze(3) - decay.unsqueeze(2)).clamp(max=0).exp() * torch.tril(torch.ones(count, count), -1)[..., None]
        state = torch.einsum("bhnmd,bhmde->bhnde", weights, states)
        mixed = (scores @ v + queries @ state).permute(0, 2, 3, 1, 4).reshape(batch, length + pad, width)
        return x + self.out(mixed[:, :length])


def test_attention_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stayed in name-dims for minutes, and merge-slices ended the process."""
    torch.manual_seed(0)
    model = Chunked().eval()
    learnt = Counter(monkeypatch, Facts, "learn_equal")
    compiled = disc.compile(model, (torch.randn(2, 37, 32),), options=disc.Options(cache=False, threads=1))
    assert learnt.calls < 1500
    assert all("mod(mod" not in symbol.get("expr", "") for symbol in compiled.manifest["symbols"])
    for batch, length in [
        (1, 9),
        (2, 17),
        (3, 31),
        (1, 61),
    ]:  # torch.export decides whether one chunk, or no padding, is enough: refused by name
        x = torch.randn(batch, length, 32)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def layers(count: int) -> str:
    """Dot, tanh, row reduction, residual: `count` times."""
    kind, lines, value = "tensor<?x?x16xf32>", [], "%x"
    for i in range(count):
        lines.append(f"""
  %w{i} = stablehlo.constant dense<0.{i + 1:03d}> : tensor<16x16xf32>
  %d{i} = stablehlo.dot_general {value}, %w{i}, contracting_dims = [2] x [0] : ({kind}, tensor<16x16xf32>) -> {kind}
  %t{i} = stablehlo.tanh %d{i} : {kind}
  %z{i} = stablehlo.constant dense<0.0> : tensor<f32>
  %s{i} = stablehlo.reduce(%t{i} init: %z{i}) applies stablehlo.add across dimensions = [2] : ({kind}, tensor<f32>) -> tensor<?x?xf32>
  %c{i} = chlo.broadcast_subtract %t{i}, %s{i} {{broadcast_dimensions = array<i64: 0, 1>}} : ({kind}, tensor<?x?xf32>) -> {kind}
  %y{i} = stablehlo.add %c{i}, {value} : {kind}""")
        value = f"%y{i}"
    return f"func.func @main(%x: {kind}) -> {kind} {{{''.join(lines)}\n  return {value} : {kind}\n}}\n"


def sizes(count: int) -> str:
    """`count` inputs with sizes of their own, and a product for each neighboring pair: buffers of that many sizes."""
    vector, matrix = "tensor<?x16xf32>", "tensor<?x?xf32>"
    lines = ["\n  %w = stablehlo.constant dense<0.5> : tensor<16x16xf32>\n  %z = stablehlo.constant dense<0.0> : tensor<f32>"]
    for i in range(count):
        lines.append(
            f"\n  %a{i} = stablehlo.dot_general %x{i}, %w, contracting_dims = [1] x [0] : ({vector}, tensor<16x16xf32>) -> {vector}"
        )
    for i in range(count):
        lines.append(
            f"\n  %b{i} = stablehlo.dot_general %a{i}, %a{(i + 1) % count}, contracting_dims = [1] x [1] : ({vector}, {vector}) -> {matrix}"
        )
        lines.append(
            f"\n  %r{i} = stablehlo.reduce(%b{i} init: %z) applies stablehlo.add across dimensions = [0, 1] : ({matrix}, tensor<f32>) -> tensor<f32>"
        )
    value = "%r0"
    for i in range(1, count):
        lines.append(f"\n  %q{i} = stablehlo.add {value}, %r{i} : tensor<f32>")
        value = f"%q{i}"
    arguments = ", ".join(f"%x{i}: {vector}" for i in range(count))
    return f"func.func @main({arguments}) -> tensor<f32> {{{''.join(lines)}\n  return {value} : tensor<f32>\n}}\n"


def test_groups_find_their_producers_without_looking_at_all_groups(tmp_path: Path) -> None:
    counts = []
    for count in (4, 8, 16):
        with pytest.MonkeyPatch.context() as patch:
            asked = Counter(patch, Clusters, "successors")
            compile_text(tmp_path, layers(count))
            counts.append(asked.calls)
    assert counts[2] - counts[1] <= 2.5 * (counts[1] - counts[0]) + 20, counts


def test_the_buffer_plan_searches_for_proofs_that_samples_leave_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Counter(monkeypatch, _dim_bounds.Bounds, "never_negative")
    compile_text(tmp_path, sizes(6))
    assert searched.calls < 2000, searched.calls
