"""Conditions on sizes that the export decided by the example: proved, checked in every call, or refused; never a wrong result."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.export import Dim

import disc
from disc.errors import ShapeConstraintError, UnsupportedOpError

HERE = Path(__file__).name


class One(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Two(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


class Pool(nn.Module):
    """Sums a strided convolution and an average pool; the longer of both is cut, the result padded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.up = nn.Conv1d(4, 4, 3, stride=2, padding=1), nn.AvgPool1d(2, 2), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[-1]
        y, z = self.conv(x), self.pool(x)
        m = min(y.size(-1), z.size(-1))
        y = self.up((y[..., :m] + z[..., :m]).transpose(1, 2)).reshape(x.shape[0], -1, 4)
        return F.pad(y, (0, 0, 0, n - y.shape[1])) if y.shape[1] < n else y


def is_right(run: Callable[..., object], model: nn.Module, *inputs: Tensor) -> bool:
    """True where the result is eager's, False where the call is refused; anything else fails."""
    try:
        result = run(*inputs)
    except ShapeConstraintError:
        return False
    expected = model(*inputs)
    assert isinstance(result, Tensor) and result.shape == expected.shape, (result, expected.shape)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    return True


# Each with an example of 12 columns: what the export decided, and the columns that are refused.
BRANCHES: dict[str, tuple[Callable[[Tensor], Tensor], str, set[int]]] = {
    "even": (lambda x: x * 2 if x.shape[1] % 2 == 0 else x + 1, "must be even", {1, 5, 9, 13}),
    "remainder": (lambda x: x * 2 if x.shape[1] % 5 == 2 else x + 1, "must leave 2 when divided by 5", {0, 1, 5, 6, 8, 9, 13, 14}),
    "no multiple": (lambda x: x * 2 if x.shape[1] % 5 else x + 1, "must not be a multiple of 5", {0, 5}),
    "not one": (lambda x: x * 2 if x.shape[1] == 1 else x + 1, "must not be 1", {1}),
    "not zero": (lambda x: x * 2 if x.shape[1] == 0 else x + 1, "must not be 0", {0}),
    "truth": (lambda x: x * 2 if x.shape[1] else x + 1, "must not be 0", {0}),
    "count": (lambda x: x.new_ones(()) if x.numel() == 0 else x.sum(), "must not be 0", {0}),
    "more than one": (lambda x: x * 2 if x.shape[1] > 1 else x + 1, "must be at least 2", {0, 1}),
    "other number": (lambda x: x * 2 if x.shape[1] != 9 else x + 1, "must not be 9", {9}),
    "between": (lambda x: x * 2 if 5 < x.shape[1] < 14 else x + 1, "must be at least 6", {0, 1, 5, 14}),
    "half": (lambda x: x * 2 if x.shape[1] / 2 > 3.5 else x + 1, "must be at least 8", {0, 1, 5, 6}),
    "product": (lambda x: x * 2 if x.shape[0] * x.shape[1] > 30 else x + 1, "must be at least 31", {0, 1, 5, 6, 8, 9}),
    "either": (lambda x: x * 2 if x.shape[1] == 3 or x.shape[1] % 4 == 0 else x + 1, "must be a multiple of 4", {1, 5, 6, 9, 13, 14}),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_on_sizes_is_checked(name: str) -> None:
    function, words, refused = BRANCHES[name]
    model = One(function)
    exe = disc.compile(model, (torch.randn(3, 12),))
    for columns in (0, 1, 5, 6, 8, 9, 12, 13, 14):
        assert is_right(exe, model, torch.randn(3, columns)) is (columns not in refused), columns
    with pytest.raises(ShapeConstraintError, match=rf"dim 1 of input 'x'.* {words}.*{HERE}:\d+\)"):
        exe(torch.randn(3, min(refused)))


def test_sizes_that_the_layout_alone_is_about_are_taken() -> None:
    """The export decides whether the slice is contiguous; no value depends on it."""
    model = One(lambda x: x[:, : min(x.shape[1] // 2, (x.shape[1] + 1) // 2)] * 2)
    exe = disc.compile(model, (torch.randn(3, 12),))
    assert all(is_right(exe, model, torch.randn(3, columns)) for columns in range(10))
    decisions = exe.manifest.get("decisions")
    assert decisions is not None and decisions["checked"] == [] and decisions["layout"] > 0 and decisions["proved"] > 0


def test_copies_that_are_views_for_some_sizes() -> None:
    """PyTorch's core asks itself whether a slice lies densely, which refused slices of one row; where what is written decides what is read,
    the program is refused."""

    def shifted(x: Tensor) -> Tensor:
        y = torch.flatten(x[:, 1:-1])
        mapped = F.linear(x[:, None, 1:-1].transpose(1, 2), x[:1, :1])
        sized = F.interpolate(torch.ones(1, 1, 2, 2), (x.shape[0] // 2 + 1, x.shape[1] // 2), mode="bicubic")
        return torch.cat([sized.view(-1), x[..., :-1].contiguous().view(-1), x[:, 1:-1].contiguous()[0] * 2, y, mapped[:, :, 0].sum(0)])

    exe = disc.compile(One(shifted), (torch.randn(4, 6),))
    assert all(is_right(exe, One(shifted), torch.randn(shape)) for shape in ((4, 6), (4, 3), (1, 3), (2, 4), (1, 5), (3, 9)))

    def written(x: Tensor) -> Tensor:
        x = x * 1
        x[:, 1:-1].reshape(-1).add_(1)
        return x

    with pytest.raises(UnsupportedOpError, match=rf"aten.reshape.default at {HERE}:\d+: .* sizes decide whether it is a view"):
        disc.compile(One(written), (torch.randn(4, 6),))


def test_a_relation_of_two_inputs() -> None:
    model = Two(lambda x, y: x * 2 if x.shape[0] > y.shape[0] else x + 1)
    exe = disc.compile(model, (torch.randn(5, 3), torch.randn(2, 4)))
    assert is_right(exe, model, torch.randn(2, 3), torch.randn(1, 4))
    with pytest.raises(ShapeConstraintError, match=r"dim 0 of input 'x' must be at least .*dim 0 of input 'y'"):
        exe(torch.randn(2, 3), torch.randn(2, 4))


def test_a_pool_and_a_convolution_of_odd_length() -> None:
    model = Pool().eval()
    shapes = ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC},)
    exe = disc.compile(model, (torch.randn(2, 4, 12),), dynamic_shapes=shapes)
    taken = [n for n in range(2, 16) if is_right(exe, model, torch.randn(3, 4, n))]
    assert taken and all(n % 2 == 0 for n in taken) and {8, 10, 12, 14} <= set(taken)


def test_a_branch_that_no_integer_decides_is_checked() -> None:
    """5 columns by 0.7 are no more than 3.5, in f64."""
    model = One(lambda x: x * 2 if x.shape[1] * 0.7 > 3.5 else x + 1)
    exe = disc.compile(model, (torch.randn(3, 12),))
    for columns in range(20):
        assert is_right(exe, model, torch.randn(3, columns)) is (columns > 5), columns
    with pytest.raises(ShapeConstraintError, match=rf"the truth .* of 3\.5 >= 0\.7\*.*dim 1 of input 'x'.*\(decided at {HERE}:\d+\)"):
        exe(torch.randn(3, 5))


def test_a_branch_that_cannot_be_checked_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=rf"the condition .* at .*{HERE}:\d+: .* has no integer form"):
        disc.compile(One(lambda x: x * 2 if x.shape[1] ** 1.3 > 5 else x + 1), (torch.randn(3, 12),))


@pytest.mark.parametrize(
    "squeeze", [lambda x: x.squeeze(), lambda x: torch.squeeze_copy(x), lambda x: x.squeeze(1), lambda x: x.squeeze((1, 2))]
)
def test_squeeze_of_a_dim_that_is_one(squeeze: Callable[[Tensor], Tensor]) -> None:
    model = One(lambda x: squeeze(x) + 1)
    exe = disc.compile(model, (torch.randn(3, 4, 5, 1),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO, 2: Dim.AUTO},))
    for sizes in ((3, 4, 5), (0, 2, 3), (2, 0, 7), (1, 4, 5), (3, 1, 5), (3, 4, 1)):
        is_right(exe, model, torch.randn(*sizes, 1))
    assert is_right(exe, model, torch.randn(3, 4, 5, 1)) and is_right(exe, model, torch.randn(0, 2, 3, 1))
    with pytest.raises(ShapeConstraintError, match=rf"dim 1 of input 'x' must not be 1 \(squeeze at .*{HERE}:\d+ would remove it\): got 1"):
        exe(torch.randn(3, 1, 5, 1))


class Branches(nn.Module):
    def forward(self, x: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        return x * 2 if x.shape[0] >= 3 and pair[1].shape[0] % 3 == 1 else x + 1


@pytest.mark.parametrize("stored", [False, True])
def test_a_program_that_the_user_exported(stored: bool, tmp_path: Path) -> None:
    """Its guards and ranges hold, also where it comes from a file."""
    inputs = (torch.randn(8, 12), (torch.randn(2, 2), torch.randn(7, 3)))
    shapes = ({0: Dim("rows", min=3, max=40), 1: Dim.AUTO}, ({0: Dim.AUTO}, {0: Dim.AUTO}))
    program = torch.export.export(Branches(), inputs, dynamic_shapes=shapes)
    path = tmp_path / "model.pt2"
    if stored:
        torch.export.save(program, path)
    exe = disc.compile(path if stored else program)
    for rows, others in ((8, 7), (3, 1), (2, 7), (41, 7), (40, 10), (8, 6), (1, 1)):
        given = (torch.randn(rows, 12), (torch.randn(2, 2), torch.randn(others, 3)))
        expected = 3 <= rows <= 40 and others % 3 == 1
        flat = One(lambda x, pair=given[1]: Branches()(x, pair))
        assert is_right(lambda x, pair=given[1]: exe(x, *pair), flat, given[0]) is expected, (rows, others)
    with pytest.raises(ShapeConstraintError, match="dim 0 of input 'pair_1' must leave 1 when divided by 3"):
        exe(torch.randn(8, 12), torch.randn(2, 2), torch.randn(6, 3))


def test_a_derived_dim() -> None:
    rows = Dim("rows", min=2, max=100)
    model = Two(lambda x, y: x.sum(0) + y.sum(0))
    exe = disc.compile(model, (torch.randn(4, 3), torch.randn(8, 3)), dynamic_shapes=({0: rows}, {0: 2 * rows}))
    assert is_right(exe, model, torch.randn(5, 3), torch.randn(10, 3))
    with pytest.raises(ShapeConstraintError, match="dim 0 of input 'y' must equal"):
        exe(torch.randn(5, 3), torch.randn(11, 3))
    with pytest.raises(ShapeConstraintError, match="dim 0 of input 'x' must be at most 100"):
        exe(torch.randn(101, 3), torch.randn(202, 3))


def test_the_checks_live_in_the_artifact(tmp_path: Path) -> None:
    """Every ISA level checks, and `explain` counts."""
    model = One(lambda x: x * 2 if x.shape[1] % 2 == 0 else x + 1)
    disc.compile(model, (torch.randn(3, 12),), target=["x86-64-v3", "x86-64-v4"]).save(tmp_path / "model.disc")
    exe = disc.load(tmp_path / "model.disc")
    with pytest.raises(ShapeConstraintError, match=r"must be even \(decided at .*\): got 9"):
        exe(torch.randn(3, 9))
    text = str(exe.explain())
    assert "1 condition on sizes: 0 proved, 0 about strides alone, 1 checked in every call" in text
    assert "dim 1 of input 'x' must be even" in text


def test_two_programs_that_differ_by_a_decision_alone() -> None:
    """The compile cache must not give one for the other: their graphs are equal."""
    odd, any_size = One(lambda x: x * 2 if x.shape[1] != 1 else x + 1), One(lambda x: x * 2)
    x = torch.randn(3, 12)
    first, second = disc.compile(odd, (x,)), disc.compile(any_size, (x,))
    assert not is_right(first, odd, torch.randn(3, 1)) and is_right(second, any_size, torch.randn(3, 1))


class Attention(nn.Module):
    """One query is not causal."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if query.shape[2] > 1:
            return F.scaled_dot_product_attention(query, key, key, is_causal=True)
        return F.scaled_dot_product_attention(query, key, key)


def test_a_causal_attention_of_one_query() -> None:
    model = Attention()
    exe = disc.compile(model, (torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)))
    assert is_right(exe, model, torch.randn(2, 2, 4, 8), torch.randn(2, 2, 9, 8))
    assert not is_right(exe, model, torch.randn(2, 2, 1, 8), torch.randn(2, 2, 9, 8))


@pytest.mark.parametrize("example", [2, 20])
def test_the_number_of_images_chooses_an_implementation_alone(example: int) -> None:
    """Where gradients are wanted, PyTorch takes another implementation of a convolution from 16 images on."""
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)).eval()
    dynamic = {axis: torch.export.Dim.AUTO for axis in (0, 2, 3)}
    executable = disc.compile(model, (torch.randn(example, 8, 10, 12),), dynamic_shapes=(dynamic,))
    for images in (1, 3, 15, 16, 21):
        x = torch.randn(images, 8, 5, 6)
        torch.testing.assert_close(executable(x), model(x).detach())
    assert "0 to any" in str(executable.explain())


class Step(nn.Module):
    """A decoder with its cache as inputs and results."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
        config = transformers.LlamaConfig(num_hidden_layers=1, vocab_size=50, max_position_embeddings=64, **sizes)
        self.model = transformers.LlamaForCausalLM(config)

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        cache = transformers.DynamicCache()
        cache.update(keys, values, 0)
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.logits, out.past_key_values.layers[0].keys


def test_an_empty_cache() -> None:
    """`0 if keys.numel() == 0 else keys.shape[-2]` is the same length for a cache without positions."""

    def inputs(batch: int, tokens: int, past: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.randint(1, 50, (batch, tokens)), torch.randn(batch, 2, past, 16), torch.randn(batch, 2, past, 16)

    model = Step().eval()
    auto = Dim.AUTO
    with torch.no_grad():
        executable = disc.compile(model, inputs(2, 4, 5), dynamic_shapes=({0: auto, 1: auto}, {0: auto, 2: auto}, {0: auto, 2: auto}))
        for sizes in ((1, 1, 0), (2, 7, 0), (1, 1, 1), (3, 5, 17)):
            x = inputs(*sizes)
            torch.testing.assert_close(executable(*x), model(*x), rtol=1e-4, atol=1e-4)
    with pytest.raises(ShapeConstraintError, match="dim 0 of input"):
        executable(*inputs(0, 1, 3))


def test_an_assertion_on_data_is_checked_in_every_call(tmp_path: Path) -> None:
    source = tmp_path / "asserting.py"  # pytest rewrites the assertions of its own files
    source.write_text(
        "def function(x):\n    lengths = (x != 0).sum(1)\n    assert lengths.max().item() <= 3\n    return x + lengths[:, None]\n"
    )
    function = runpy.run_path(str(source))["function"]
    compiled = disc.compile(One(function), (torch.tensor([[1, 0, 3, 0]]),), options=disc.Options(cache=False))
    x = torch.tensor([[1, 2, 0, 0, 3], [0, 0, 0, 1, 0]])
    assert torch.equal(compiled(x), function(x))
    with pytest.raises(ShapeConstraintError, match=r"at \S*asserting\.py:3 must be at most 3: got 4"):
        compiled(torch.ones(1, 4, dtype=torch.int64))


@pytest.mark.parametrize("compare", [lambda root: root == 3, lambda root: root != 2, lambda root: root >= 3, lambda root: root < 4])
def test_whole_roots_of_sizes_are_compared_by_squares(compare: Callable[[int], bool]) -> None:
    def function(x: Tensor) -> Tensor:
        return x + 1 if compare(torch.sym_int(x.numel() ** 0.5)) else x - 1

    compiled = disc.compile(One(function), (torch.zeros(2, 5),), options=disc.Options(cache=False))
    for sizes in ((2, 2), (2, 4), (3, 3), (3, 5), (4, 4), (5, 5)):
        x = torch.zeros(sizes)
        if torch.equal(function(x), x + 1):
            assert torch.equal(compiled(x), x + 1)
        else:
            with pytest.raises(ShapeConstraintError, match=HERE):
                compiled(x)


def test_a_multiple_of_a_rounded_quotient_is_one_of_all_of_it() -> None:
    """`2 * math.ceil((n + 1) / 2)`: the quotient is `n // 2 + 1`, a sum."""

    def function(x: Tensor) -> Tensor:
        size = 2 * math.ceil((x.shape[0] + 1) / 2) - 3 * math.ceil((x.shape[1] + 3) / 3)
        return x.new_ones(size) if size > 0 else x

    compiled = disc.compile(One(function), (torch.zeros(40, 5),), options=disc.Options(cache=False))
    for sizes in ((40, 5), (41, 7), (24, 3), (23, 1)):
        x = torch.zeros(sizes)
        assert torch.equal(compiled(x), function(x))
