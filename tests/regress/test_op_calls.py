"""Calls of single ops that the op fuzzer found: each ended in another error than a `DiscError`, in a crash, or in a number that eager refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import disc
from disc.errors import DiscError, ShapeConstraintError, UnsupportedOpError

F = torch.nn.functional
aten = torch.ops.aten
Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


class Calls(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> object:
        return self.function(*tensors)


def compiled(function: Function, *inputs: torch.Tensor) -> disc.Executable:
    return disc.compile(Calls(function), inputs, options=disc.Options(cache=False))


def check(function: Function, *inputs: torch.Tensor, others: tuple[tuple[torch.Tensor, ...], ...] = ()) -> None:
    executable = compiled(function, *inputs)
    executable.like = torch.empty(0)
    for given in (inputs, *others):
        torch.testing.assert_close(executable(*given), function(*given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [0, 2, 3, 5])
def test_divisors_in_checks_are_checked_first(size: int) -> None:
    """A check on entry divided by a size that a later check bounds: SIGFPE for a dim of 0."""
    executable = compiled(lambda x: x.chunk(5, -1), torch.randn(5, 5))
    x = torch.randn(3, size)
    if size == 5:
        torch.testing.assert_close(torch.from_dlpack(executable(x)[4]), x[:, 4:])
        return
    with pytest.raises(ShapeConstraintError):
        executable(x)


def test_tensors_without_dims() -> None:
    x, index = torch.tensor(3.0), torch.tensor(0)
    check(lambda x: x.squeeze(0), x)
    check(lambda x, i: x.scatter_add(0, i, x), x, index)
    check(lambda x, i: x.scatter(0, i, x + 1), x, index)
    with pytest.raises(UnsupportedOpError, match="without dims"):
        compiled(lambda x: aten.select_scatter(x, x, 0, 0), x)


def test_written_values_take_the_type_of_what_is_written() -> None:
    x = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    check(lambda x, y: torch.select_scatter(x, y, 0, 1), x, torch.randn(4).abs() * 9)
    check(lambda x, y: torch.slice_scatter(x, y, 0, 1, 2), x, torch.randn(1, 4).abs() * 9)


@pytest.mark.parametrize(
    "function, inputs",
    [
        (lambda x, y: aten.select_scatter(x, y, 0, 0), (torch.ones(2, 3), torch.ones(2, 1, 3))),
        (lambda x, y: aten.select_scatter(x, y, 5, 0), (torch.ones(2, 3), torch.ones(2))),
        (lambda x, y: x.clone().index_put([torch.tensor([1])], y), (torch.ones(5, 5), torch.ones(2, 1, 5))),
        (lambda x: aten.index_put(x, [torch.tensor([0]), torch.tensor([0])], x), (torch.tensor(1.0),)),
        (lambda x, y: x.clone().remainder_(y), (torch.ones(()), torch.ones(7, 1))),
        (lambda x: aten._softmax(x, 7, False), (torch.ones(2, 3, 4),)),  # torch-mlir did not come to an end
        (lambda x: torch.diag(x, -(2**63)), (torch.ones(3, 3),)),
        (lambda x: aten._upsample_nearest_exact1d(x, [], 2.0), (torch.ones(1, 8),)),
        (lambda x: aten.pairwise_distance(x, x, -2.0), (torch.ones(3, dtype=torch.bool),)),
        (lambda x: aten.hypot(x, x), (torch.ones(3, dtype=torch.uint64),)),
    ],
)
def test_refused_in_words(function: Function, inputs: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(DiscError) as raised:
        compiled(function, *inputs)
    assert not isinstance(raised.value, disc.errors.CompilerBug)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "function, good, bad",
    [
        (lambda x: F.pad(x, (1, 2), mode="circular"), (2, 3, 5), (2, 3, 1)),
        (lambda x: F.pad(x, (1, 1), mode="reflect"), (2, 3, 5), (2, 3, 1)),
        (lambda x: F.max_pool1d(x, 2), (2, 3, 5), (2, 3, 1)),
        (lambda x: F.avg_pool2d(x, 2), (2, 3, 5, 5), (2, 3, 5, 1)),
        (lambda x: F.conv1d(x, torch.ones(3, 3, 2)), (2, 3, 5), (2, 3, 1)),
        (lambda x: F.interpolate(x, scale_factor=2.0), (2, 3, 5), (2, 3, 0)),
        (lambda x: x.norm(-1.0), (2, 3), (0, 3)),
        (lambda x: x.unfold(-1, 2, 1), (3, 5), (3, 1)),
        (lambda x: F.group_norm(x, 1), (2, 3), (1, 1)),
        (lambda x: torch.einsum("ij,kj->ik", x.byte(), x.byte()), (4, 5), (4, 1)),
        (lambda x: x.byte().sum_to_size(1), (4,), (1,)),
        (lambda x: torch.tensor(2.0).index_select(0, x.long() - 1), (1,), (2,)),
    ],
)
def test_sizes_that_eager_refuses(function: Function, good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    """Checks that hold for every size of 2 or more leave no trace in an exported program."""
    check(function, torch.ones(good))
    with pytest.raises(ShapeConstraintError):
        executable = compiled(function, torch.ones(good))
        executable(torch.ones(bad))


def test_statistics_have_eagers_type() -> None:
    x, weight = torch.randn(1, 6, 3).half(), torch.randn(6).half()
    torch._dynamo.reset()
    function = torch.compile(lambda x: torch.native_group_norm(x, weight, weight, 1, 6, 3, 2, 0.5), backend="disc")
    with torch.no_grad():
        assert [each.dtype for each in function(x)] == [torch.float16] * 3


def test_f64_rows_that_begin_within_a_line() -> None:
    """Rows are stored along the lines of the result; what is read from scratch there was permuted as 4 bytes."""
    check(lambda x, m: torch.softmax(x + m, -1), torch.randn(3, 3, 3).double(), torch.randn(3, 3).double())
    attention = torch.nn.MultiheadAttention(2, 1).double().eval()
    mask = torch.randn(3, 3).double()
    x = torch.randn(3, 2, 2).double()
    check(lambda x: attention(x, x, x, attn_mask=mask)[0], x)


@pytest.mark.parametrize("dtype, span, places", [(torch.float32, 151, 4), (torch.float64, 1076, 4)])
def test_exp2_is_right_to_4_ulp_everywhere(dtype: torch.dtype, span: int, places: int) -> None:
    """It was e^(x ln2), which multiplies the rounding of its argument by |x|: 34 ulp at 127."""
    x = torch.linspace(-span, span, 20_001, dtype=torch.float64).to(dtype)
    x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 0.0], dtype=dtype)])
    executable = compiled(torch.exp2, x)
    executable.like = torch.empty(0)
    found, wanted = executable(x), torch.exp2(x.double()).to(dtype)
    integer = torch.int32 if dtype == torch.float32 else torch.int64
    assert int((found.view(integer) - wanted.view(integer)).abs()[~wanted.isnan()].max()) <= places
    assert torch.equal(found.isnan(), wanted.isnan())


def test_an_assertion_on_values_within_control_flow_is_checked() -> None:
    """It was dropped without a word. Where the other branch runs, it is not checked."""

    def asserting(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "positive")  # pyright: ignore[reportPrivateImportUsage]
        return x + 1

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 3, asserting, lambda x: x - 1, (x,))

    executable = compiled(function, torch.ones(3, 4))
    for x in (torch.ones(2, 4), -torch.ones(3, 5)):
        torch.testing.assert_close(executable(x), function(x))
    with pytest.raises(ShapeConstraintError, match=r"the assertion 'positive' does not hold.*test_op_calls.py:\d+"):
        executable(torch.tensor([[9.0, -1.0]]))


@pytest.mark.parametrize(
    ("function", "inputs", "refused"),
    [
        (F.conv1d, ((1, 4, 5), (3, 4, 3)), ((9, 4, 5), (8, 4, 0))),
        (F.conv1d, ((1, 4, 5), (3, 4, 3)), ((1, 0, 5), (3, 0, 3))),
        (torch.linalg.vander, ((2, 5),), ((3, 1),)),
    ],
)
def test_kernels_and_columns_of_no_size(
    function: Function, inputs: tuple[tuple[int, ...], ...], refused: tuple[tuple[int, ...], ...]
) -> None:
    """Eager refuses these sizes, or makes a result without channels; the compiled call answered."""
    shapes = tuple(dict.fromkeys(range(len(each)), torch.export.Dim.AUTO) for each in inputs)
    example = tuple(torch.randn(each) for each in inputs)
    executable = disc.compile(Calls(function), example, dynamic_shapes=(shapes,), options=disc.Options(cache=False))
    torch.testing.assert_close(executable(*example), function(*example))
    with pytest.raises(ShapeConstraintError):
        executable(*(torch.randn(each) for each in refused))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("bounds", [(2.1, -2.9, -1.0), (0.5, 5.2, 1.5), (-1.7, 3.0, 1.9)])
def test_integers_from_fractions(bounds: tuple[float, float, float], dtype: torch.dtype) -> None:
    """The fractions of start and step count for the number of elements alone: 2, 1, 0, -1, -2 from 2.1 down, not 2, 1, 0, 0, -1."""
    check(lambda x: x.to(torch.int64)[0] * 0 + torch.arange(*bounds, dtype=dtype).to(torch.int64), torch.ones(3))


def test_no_indices() -> None:
    """torch-mlir read the first of an empty list, SIGSEGV: it is given no op that is not on its list."""
    with pytest.raises(UnsupportedOpError, match="no lowering for this op"):
        compiled(lambda x, y: aten._index_put_impl_.default(x.clone(), [], y, False, False), torch.zeros(0), torch.zeros(3))


@pytest.mark.parametrize("how", [{}, {"padding_idx": 0}, {"padding_idx": -1}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_embedding_whatever_its_gradients(how: dict[str, object]) -> None:
    inputs = torch.randn(5, 6), torch.tensor([[1, 2], [3, 0]])
    run = compiled(lambda table, places: F.embedding(places, table, **how), *inputs)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(run(*inputs), F.embedding(inputs[1], inputs[0]))


def test_full_like_of_bytes() -> None:
    for x in (torch.tensor(3, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.uint8)):
        torch.testing.assert_close(compiled(lambda x: torch.full_like(x, 5), x)(x), torch.full_like(x, 5))


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.6, 0.2), (0, 2)])
def test_addbmm(beta: float, alpha: float) -> None:
    inputs = torch.full((5, 10), torch.inf) if beta == 0 else torch.randn(1), torch.randn(3, 5, 4), torch.randn(3, 4, 10)

    def function(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.addbmm(x, left, right, beta=beta, alpha=alpha)

    torch.testing.assert_close(compiled(function, *inputs)(*inputs), function(*inputs))
