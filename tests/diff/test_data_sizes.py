"""Sizes that depend on data: one compile for any data, against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
from torch import Tensor, nn
from torch.fx.experimental._config import patch as oblivious  # pyright: ignore[reportAttributeAccessIssue]

import disc
from disc.errors import InputValueError, ShapeConstraintError
from disc.frontend import dynamo

Results = Tensor | Sequence[Tensor]


class Model(nn.Module):
    def __init__(self, function: Callable[..., Results]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Results:
        return self.function(*(each for each in (x, y, z) if each is not None))


def check(function: Callable[..., Results], *calls: Sequence[Tensor]) -> disc.Executable:
    """Compiles for the first call; every call gives eager's results, bit for bit where they are integers."""
    executable = disc.compile(Model(function), tuple(calls[0]))
    for call in calls:
        wanted, got = function(*call), executable(*call)
        wanted, got = [each if isinstance(each, list | tuple) else [each] for each in (wanted, got)]
        for one, other in zip(wanted, got, strict=True):
            assert isinstance(other, Tensor)
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6, equal_nan=True)
    return executable


def holes(*shape: int) -> Tensor:
    return torch.randn(shape) * (torch.rand(shape) < 0.5)


def test_places_that_are_not_zero() -> None:
    def function(x: Tensor) -> Results:
        rows, columns = torch.nonzero(x, as_tuple=True)
        return torch.nonzero(x), torch.argwhere(x > 0), x[rows, columns] * 2, torch.where(x)[1] + 1

    special = torch.tensor([[0.0, -0.0, float("nan")], [float("inf"), 1e-45, 0.0]])
    check(function, *([x] for x in (holes(3, 5), holes(0, 4), holes(1, 1), holes(67, 17), torch.zeros(5, 3), torch.ones(16, 16), special)))


def test_masks_select() -> None:
    def function(x: Tensor, rows: Tensor, columns: Tensor) -> Results:
        chosen = x[rows]
        return x[x > 0] + 1, torch.masked_select(x, columns), chosen.softmax(-1), x[:, columns] @ x[:, columns].T, x[rows, 0], chosen.sum(0)

    def call(rows: int, columns: int) -> list[Tensor]:
        return [torch.randn(rows, columns), torch.rand(rows) < 0.5, torch.rand(columns) < 0.5]

    none = [torch.randn(4, 4), torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)]
    check(function, call(4, 6), call(1, 2), call(64, 17), call(2, 1), call(13, 31), none)


def test_rows_that_a_mask_selects_go_through_layers() -> None:
    layers = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).eval()
    check(lambda x: layers(x[x[:, 0] > 0]), *([x] for x in (torch.randn(6, 8), torch.randn(67, 8), torch.randn(0, 8), -torch.ones(3, 8))))


def test_masks_write() -> None:
    def function(x: Tensor, mask: Tensor) -> Results:
        doubled = torch.index_put(x, (mask,), x[mask] * 2)
        return doubled, torch.index_put(x, (x > 1,), x[x > 1] - 1, accumulate=True), torch.index_put(x, (mask,), torch.tensor(7.0))

    check(function, *([torch.randn(n, 5), torch.rand(n) < 0.5] for n in (3, 2, 1, 0, 17)))


def test_numbers_as_sizes_and_as_values() -> None:
    def function(x: Tensor, n: Tensor) -> Results:
        size: Any = n.item()
        return x[:size] * 2, x[-3:size] + 1, torch.zeros(size * size) + 1, x * x.argmax().item(), x * x.max().item() + 1, x[size:]

    check(function, *([torch.randn(length), torch.tensor(n)] for length, n in ((5, 4), (7, 0), (7, -2), (3, 99), (3, 1), (4, -9))))


def test_python_makes_numbers_of_tensors() -> None:
    """`int(x)` and `float(x)` in a model's own code."""

    def function(x: Tensor, n: Tensor) -> Results:
        counts = torch.zeros(int(n.max()) + 1).index_add(0, n, x)
        return counts, torch.arange(int(x.sum())) + 1, x * int((x > 0).all()), x * (float(x.mean()) ** 2 + float(n[0])), x[: int(n[0])]

    calls = [[torch.rand(length) * 4, torch.randint(0, 5, (length,))] for length in (5, 1, 7, 13)]
    compiled = check(function, *calls, [torch.tensor([-0.9, 0.5]), torch.tensor([0, -0])])
    for number in (torch.inf, torch.nan):
        with pytest.raises(InputValueError, match=r"check_finite at test_data_sizes.py:\d+: a number is nan"):
            compiled(torch.tensor([number]), torch.tensor([1]))


@pytest.mark.parametrize("more", [0, 1, 2])
def test_numbers_that_must_fit_a_size(more: int) -> None:
    """A trace says of the number what it is by the size: calls in which it is not that are refused."""

    def function(x: Tensor, n: Tensor) -> Results:
        size: Any = n.item()
        return torch.ones(size + more) * x

    compiled = check(function, *([torch.randn(n + more), torch.tensor(n)] for n in (5, 7, 2, 13)))
    for length, n in ((5 + more - 1, 5), (5 + more + 1, 5), (5, 5 - more - 1)):
        with pytest.raises(ShapeConstraintError, match="must equal dim 0 of input 'x'"):
            compiled(torch.randn(length), torch.tensor(n))


@pytest.mark.long
def test_rows_that_data_choose() -> None:
    """Products, norms and attention of rows under a mask, as for any other number of rows; experts that each take theirs."""
    weight = torch.randn(8, 8)

    def function(x: Tensor, mask: Tensor, place: Tensor) -> Results:
        rows = nn.functional.linear(x[mask], weight)
        mixed = nn.functional.scaled_dot_product_attention(rows[None], rows[None], rows[None])
        number: Any = place.item()
        experts = torch.zeros_like(x).index_add(0, torch.where(mask)[0], rows)
        return nn.functional.layer_norm(mixed, (8,)), experts, x[number] * 2, nn.functional.one_hot(mask.long())

    executable = check(
        function, *([torch.randn(n, 8), torch.arange(n) % 3 > 0, torch.tensor(place)] for n, place in ((9, 4), (17, -1), (2, 0)))
    )
    with pytest.raises(ShapeConstraintError, match=r"a slice .* must lie within its operand"):
        executable(torch.randn(9, 8), torch.ones(9, dtype=torch.bool), torch.tensor(9))


def test_repeats() -> None:
    def function(x: Tensor, repeats: Tensor) -> Results:
        return torch.repeat_interleave(x, repeats, dim=0) + 1, torch.repeat_interleave(x, repeats, dim=1), torch.repeat_interleave(repeats)

    numbers = ([1, 2, 3], [0, 5, 0, 2], [0, 0], [64])
    executable = check(function, *([torch.randn(len(each), len(each)), torch.tensor(each)] for each in numbers))
    with pytest.raises(ShapeConstraintError, match=r"repeat_interleave.*negative.*test_data_sizes\.py:\d+ must be at least 0.*: got -1"):
        executable(torch.randn(2, 2), torch.tensor([3, -1]))


def test_counts() -> None:
    executable = check(
        lambda x: (torch.bincount(x), torch.bincount(x, minlength=5)), *([torch.tensor(x).long()] for x in ([1, 2, 1], [9, 9, 0], [0], []))
    )
    check(  # at least as many as another tensor has rows
        lambda x, y: torch.bincount(x, minlength=y.shape[0]).clamp(min=1) + 0 * y.sum(),
        *([torch.tensor(x).long(), torch.ones(n)] for x, n in (([1, 2, 1], 4), ([9, 0], 3), ([], 2), ([0], 7))),
    )
    with pytest.raises(ShapeConstraintError, match=r"bincount.*negative.* must be at least 0.*: got -1"):
        executable(torch.tensor([1, -1]))
    check(lambda x, weights: torch.bincount(x, weights), *([torch.tensor(x), torch.randn(len(x))] for x in ([1, 2, 1], [9, 9, 0], [0])))


def test_at_least_as_many_counts_as_a_size() -> None:
    def function(x: Tensor, n: Tensor) -> Results:
        return torch.bincount(n, minlength=x.shape[0]), n.bincount(minlength=x.shape[0] + 1).cumsum(0)

    calls = [(4, [1, 2, 0, 1]), (1, [0]), (1, [0, 0]), (2, [4]), (7, [6, 2]), (3, [])]
    compiled = check(function, *([torch.ones(rows), torch.tensor(n, dtype=torch.int64)] for rows, n in calls))
    with pytest.raises(ShapeConstraintError, match="at least 0"):
        compiled(torch.ones(3), torch.tensor([1, -1]))


def test_runs_of_equal_elements() -> None:
    def function(x: Tensor, y: Tensor) -> Results:
        return *torch.unique_consecutive(x, return_inverse=True, return_counts=True), torch.unique_consecutive(y, dim=1)

    nan = float("nan")
    xs = ([1.0, 1.0, 2.0], [nan, nan, 0.0, -0.0, float("inf")], [], [5.0], [3.0] * 17)
    check(function, *([torch.tensor(x), torch.tensor([[1, 1, 2, 2], [1, 1, 1, 3]])] for x in xs))


def test_counts_alone_of_what_is_unique() -> None:
    """The counts came as an empty inverse."""

    def counted(x: torch.Tensor) -> tuple[object, ...]:
        rows = x.reshape(1, -1)
        return torch.unique_consecutive(x, return_counts=True), rows.unique_consecutive(return_counts=True, dim=-1)

    compiled = disc.compile(counted, [torch.randint(3, (9,))])
    for size in (1, 2, 30):
        x = torch.randint(3, (size,))
        torch.testing.assert_close(compiled(x), counted(x))


@pytest.mark.parametrize("function", [torch.unique_consecutive, torch.unique])
def test_unique_slices(function: Callable[..., Any]) -> None:
    """Of a dim from the end; slices without elements are compared by neither."""
    ys = torch.tensor([[1, 1, 2, 2], [1, 1, 1, 1], [1, 1, 1, 1]]), torch.ones(2, 5), torch.ones(1, 1), torch.ones(4, 0)
    executable = check(
        lambda y: (*function(y, return_inverse=True, return_counts=True, dim=-1), function(y, dim=-2)), *([y.long()] for y in ys[:3])
    )
    with pytest.raises(ShapeConstraintError, match=r"unique.*compares slices that have elements"):
        executable(ys[3].long())


def test_unique_elements() -> None:
    def function(x: Tensor) -> Results:
        return *torch.unique(x, return_inverse=True, return_counts=True), torch.unique(x > 0)

    nan = float("nan")
    check(function, *([torch.tensor(x)] for x in ([[1.0, nan, 0.0], [0.0, nan, float("inf")]], [[2.0]], [[3.0, 3.0]])), [torch.ones(0, 3)])


@pytest.mark.long
def test_parts_between_places_that_are_data() -> None:
    def function(x: Tensor, places: Tensor) -> Results:
        return [part * 2 for part in torch.tensor_split(x, places, dim=1)]

    check(function, *([torch.randn(2, size), torch.tensor(places)] for size, places in ((7, [1, 3]), (7, [-3, 20]), (2, [2, 0]))))


@pytest.mark.long
def test_combinations() -> None:
    def function(x: Tensor) -> Results:
        return torch.combinations(x), torch.combinations(x, 3, with_replacement=True), torch.combinations(x, 1)

    check(function, *([torch.arange(size)] for size in (4, 2, 7)))


def test_captured_by_dynamo() -> None:
    """Where a user has Dynamo capture such sizes, a graph is compiled as a whole, and its assertions are checked."""

    def function(x: Tensor, length: int) -> Results:
        count: Any = (x > 0).sum().item()
        torch._check(count <= 9)
        return x[x > 0] * 2, torch.arange(count) + 1, x[:, -length:] + 1

    dynamo.reset_statistics()
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True), oblivious(backed_size_oblivious=True):  # pyright: ignore
        compiled = torch.compile(function, backend="disc", dynamic=True, options={"strict": True})
        for size, length in ((3, 2), (4, 9)):
            x = torch.randn(2, size)
            torch.testing.assert_close(compiled(x, length), function(x, length))
        with pytest.raises(ShapeConstraintError, match=r"at \S+:\d+ must be at most 9 \(decided at \S+:\d+\): got 10"):
            compiled(torch.ones(2, 5), 2)
    assert dynamo.statistics().graphs == 1 and not dynamo.statistics().eager


def test_scales_that_are_data() -> None:
    """The `alpha` and `beta` of sums and products."""

    def function(x: Tensor, y: Tensor, factor: Tensor) -> list[Tensor]:
        s: Any = factor.item()
        count: Any = x.shape[0]
        return [
            torch.add(x, y[0], alpha=s), torch.add(x, y, alpha=count),
            torch.addmm(x, y.T, y, alpha=s, beta=s), x.index_add(0, torch.tensor([1, 0]), y[:2], alpha=s),
        ]  # fmt: skip

    dynamo.reset_statistics()
    with dynamo_config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="disc", dynamic=True, options={"strict": True})
        for size in (3, 5):
            given = torch.randn(size, size), torch.randn(size, size), torch.tensor(0.3)
            torch.testing.assert_close(compiled(*given), function(*given))
    assert not dynamo.statistics().eager


@pytest.mark.parametrize("length", [0, 1, 3])
def test_floats_that_a_graph_hands_to_python(length: int) -> None:
    """They are what they are, not the integer below."""

    def function(x: Tensor) -> Tensor:
        y = x * 2
        return y.sin() if y.sum().item() > 3 else y.cos()

    torch._dynamo.reset()
    with dynamo_config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="disc")
        for last in (3.0004, 3.9, 2.9996, -3.5):
            x = torch.full((length,), last / 2 / max(length, 1))
            torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.unique(x) + 1, lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique_consecutive(x) + 1, lambda x: x.masked_select(x > 0) + 1, lambda x: x[x > 0] + 1,
        lambda x: torch.nonzero(x), lambda x: x.flatten()[torch.arange(x.numel())] + 1,
    ],
)  # fmt: skip
def test_graphs_of_torch_compile_without_elements(function: Callable[[Tensor], Results], shape: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend="disc", fullgraph=True, options={"strict": True})
        wanted, got = function(torch.zeros(shape)), compiled(torch.zeros(shape))
    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (wanted, got)), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype


def test_rows_of_no_rows_are_refused() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, i: x[i] + 1, backend="disc", options={"strict": True})
    with pytest.raises((ShapeConstraintError, IndexError), match=r"out of (range|bounds)"):
        compiled(torch.zeros(0, 3), torch.zeros(2, dtype=torch.int64))


def test_what_a_program_asserts_of_a_size_is_checked_where_it_is_bound() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        chosen = x[x > 0]
        torch._check(chosen.shape[0] == y.shape[0])
        torch._check(chosen.shape[0] <= 3)
        return chosen * y

    executable = check(function, [torch.tensor([1.0, -1.0, 2.0]), torch.ones(2)], [torch.ones(3), torch.ones(3)])
    with pytest.raises(ShapeConstraintError, match="must"):
        executable(torch.tensor([1.0, 1.0]), torch.ones(3))
    with pytest.raises(ShapeConstraintError, match="at most 3"):
        executable(torch.ones(4), torch.ones(4))


def test_a_program_says_which_of_its_sizes_depend_on_data() -> None:
    executable = disc.compile(Model(lambda x: torch.nonzero(x) * 2), (torch.ones(3),))
    assert executable.manifest["outputs"][0].get("dims") == ["S1", "1"]
    assert "the size of aten.nonzero.default's result at" in str(executable.manifest.get("batch_refusal"))
    text = str(executable.explain())
    assert "S1 = the size of aten.nonzero.default's result at" in text
    assert executable.explain(torch.ones(2)).sizes == {"S0": 2}


class Asserting(torch.nn.Module):
    """Takes a truth out of a tensor, which the trace then knows, as models do that check their inputs."""

    def forward(self, x: Tensor) -> Tensor:
        fine: Any = (x > -100).all().item()
        torch._check(fine)
        return x * 2 + int(fine)


def test_a_truth_that_the_trace_knows() -> None:
    model = Asserting()
    executable = disc.compile(model, torch.randn(3, 4))
    for rows in (0, 1, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(torch.as_tensor(executable(x)), model(x))
    with pytest.raises(ShapeConstraintError, match=r"the value of aten\.item\.default at test_data_sizes\.py:\d+ must be"):
        executable(torch.full((2, 4), -1000.0))
