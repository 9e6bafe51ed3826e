"""Training through torch.compile(backend="disc"): losses and gradients of several steps against eager, at several sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from disc.frontend import dynamo

F = nn.functional


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class SmallCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.pool, self.dropout, self.head = nn.MaxPool2d(2), nn.Dropout(0.25), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        x = self.dropout(F.relu(self.norm2(self.conv2(x))))
        return self.head(x.mean((2, 3)))


class SmallTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(ids)).mean(1))


class LstmLike(nn.Module):
    """The cell of an LSTM over the steps of a sequence, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.head = nn.Linear(4 + 6, 24), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = x.new_zeros(x.shape[0], 6)
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([step, hidden], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.head(hidden)


def images(*sizes: tuple[int, int, int]) -> list[torch.Tensor]:
    return [torch.randn(batch, 3, height, width) for batch, height, width in sizes]


EAGER_NUMBERS = {"strict": True, "random": "eager"}


def train(model: nn.Module, forward: Callable[..., torch.Tensor], batches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Losses, and the gradients of every step."""
    seen: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        loss = F.cross_entropy(forward(batch), torch.arange(batch.shape[0]) % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return [*seen, *(buffer.clone() for buffer in model.buffers())]


def compare(make: Callable[[], nn.Module], batches: Sequence[torch.Tensor], dynamic: bool | None = None) -> None:
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = make().train()
        forward = torch.compile(model, backend="disc", dynamic=dynamic, options=EAGER_NUMBERS) if compiled else model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(train(model, forward, batches))
    for ours, eager in zip(*results[::-1], strict=True):
        torch.testing.assert_close(ours, eager, rtol=2e-3, atol=2e-5)
    assert not dynamo.statistics().refused_calls


@pytest.mark.long
def test_convolutional_network() -> None:
    """A smaller one is in tests/diff/test_training.py. The height is known only as a quotient behind the pool: the part after it could not be compiled. Dropout drew other numbers."""
    compare(SmallCnn, images((2, 14, 14), (3, 15, 14), (4, 16, 17), (3, 21, 18), (2, 14, 14)))


@pytest.mark.long
def test_transformer() -> None:
    """A batch of one, which is a graph of its own, has the LSTM below."""
    ids = [torch.randint(0, 20, size) for size in ((2, 5), (3, 7), (3, 1))]
    compare(SmallTransformer, ids)


def test_lstm_cells() -> None:
    compare(LstmLike, [torch.randn(batch, 3, 4) for batch in (2, 4, 3, 1)])


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_pools_behind_strided_convolutions(pool: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    function = lambda x: pool(F.relu(conv(x)), 2)  # noqa: E731
    compiled = torch.compile(function, backend="disc", options={"strict": True})
    for x in images((2, 14, 14), (2, 15, 14), (2, 17, 14)):
        gradients = []
        for each in (compiled, function):
            conv.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                each(x).square().sum().backward()
            gradients.append([p.grad.clone() for p in conv.parameters() if p.grad is not None])
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_sizes_of_at_least_one_and_numbers_by_angles() -> None:
    """A product of a size that is Max(1, n) was left to PyTorch, and so was the whole graph where `polar` was in it."""

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        slots = max(1, x.shape[0] // 2)
        kept = torch.einsum(
            "esd,edf->esf", x.new_zeros(2 * slots + 1, 4).index_add(0, torch.arange(len(x)), x)[:-1].view(2, slots, 4), weight
        )
        angles = torch.arange(x.shape[0])[:, None] * torch.tensor([1.0, 0.1])
        turned = torch.view_as_complex(x.view(-1, 2, 2)) * torch.polar(torch.ones_like(angles), angles)
        return kept.relu().sum() + torch.view_as_real(turned).square().cos().sum()

    compiled = torch.compile(step, backend="disc", dynamic=True, options={"strict": True})
    for rows in (5, 13, 8):
        given = torch.randn(rows, 4, requires_grad=True), torch.randn(2, 4, 3, requires_grad=True)
        ours, eager = (torch.autograd.grad(each(*given), given) for each in (compiled, step))
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


class Padded(nn.Module):
    def __init__(self, padding: tuple[int, ...], mode: str) -> None:
        super().__init__()
        self.padding, self.mode = padding, mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x.sin(), self.padding, self.mode)


PADS = [(1, 2), (0, 3), (2, -1), (-1, 1), (1, 0, 2, 1), (1, 1, -1, 2), (0, 1, 1, 0, 2, 3)]


@pytest.mark.parametrize("mode", ["replicate", "reflect"])
@pytest.mark.parametrize("padding", PADS)
def test_padding(padding: tuple[int, ...], mode: str) -> None:
    """The gradient of padding by the edge ran in eager mode."""
    model = Padded(padding, mode)
    compiled = torch.compile(model, backend="disc", dynamic=True, fullgraph=True, options={"strict": True})
    for sizes in ((4, 4, 4), (5, 7, 4), (9, 4, 6)) if mode == "reflect" else ((2, 2, 2), (5, 3, 2), (3, 2, 7)):
        given = [torch.randn(2, 3, *sizes[: len(padding) // 2]).requires_grad_()]
        given.append(given[0].detach().clone().requires_grad_())
        weights = torch.randn(model(given[0]).shape)
        found = [torch.autograd.grad((each(x) * weights).sum(), x)[0] for each, x in zip((compiled, model), given, strict=True)]
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


POOLS: list[tuple[Callable[[torch.Tensor], torch.Tensor], int]] = [
    (lambda x: F.max_pool3d(x, 3, 2, 1), 3),
    (lambda x: F.max_pool3d(x, (1, 2, 2)), 3),
    (lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), 3),
    (lambda x: F.adaptive_max_pool1d(x, 2), 1),
    (lambda x: F.adaptive_max_pool2d(x, (2, 3)), 2),
    (lambda x: F.adaptive_max_pool3d(x, 2), 3),
    (lambda x: F.adaptive_avg_pool3d(x, (2, 1, 3)), 3),
]


@pytest.mark.parametrize(("pool", "rank"), POOLS)
def test_gradients_of_pools(pool: Callable[[torch.Tensor], torch.Tensor], rank: int) -> None:
    """They ran in eager mode."""
    compiled = torch.compile(pool, backend="disc", dynamic=True, fullgraph=True, options={"strict": True})
    for sizes in ((4, 6, 5), (7, 4, 9)):
        given = [torch.randn(2, 3, *sizes[:rank]).requires_grad_()]
        given.append(given[0].detach().clone().requires_grad_())
        weights = torch.randn(pool(given[0]).shape)
        found = [torch.autograd.grad((each(x) * weights).sum(), x)[0] for each, x in zip((compiled, pool), given, strict=True)]
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_means_of_channels_that_lie_innermost(rank: int) -> None:
    """PyTorch writes strides into them, whose gradient left the backward graph to PyTorch: Swin Transformers, images in channels_last."""
    pool = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]
    function = lambda x: torch.flatten(pool(x.sin().movedim(-1, 1), 1), 1).square()  # noqa: E731
    compiled = torch.compile(function, backend="disc", dynamic=True, fullgraph=True, options={"strict": True})
    for batch, *sizes in ((2, 4, 6, 5), (3, 7, 1, 2)):
        x = torch.randn(batch, *sizes[:rank], 4, requires_grad=True)
        found = [(result := each(x), torch.autograd.grad(result.sum(), x)) for each in (compiled, function)]
        torch.testing.assert_close(*found)
        assert found[0][0].stride() == found[1][0].stride()
    assert not dynamo.statistics().eager


def test_running_products() -> None:
    """PyTorch's gradient fixes the number of elements: each was compiled anew, as a product for each."""
    function = lambda x, dim: torch.cumprod(x, dim, dtype=torch.float64)  # noqa: E731
    for dim in (1, -1):
        compiled = torch.compile(function, backend="disc", dynamic=True, fullgraph=True, options={"strict": True})
        for sizes, zeros in (((3, 4, 2), ()), ((4, 6, 5), (2,)), ((2, 7, 3), (1, 4))):
            x = torch.randn(sizes)
            for place in zeros:
                x[:, place, 1:] = 0.0
            x.requires_grad_()
            weights = torch.randn(sizes, dtype=torch.float64)
            found = [torch.autograd.grad((each(x, dim) * weights).sum(), x)[0] for each in (compiled, function)]
            torch.testing.assert_close(*found)
    assert dynamo.statistics().graphs == 4


@pytest.mark.parametrize("aligned", [False, True])
def test_grids_of_affine_maps(aligned: bool) -> None:
    """PyTorch's gradient takes sizes as integers alone: the graph was left to PyTorch."""
    layer = nn.Linear(3, 6)

    def warped(x: torch.Tensor) -> torch.Tensor:
        maps = layer(x.mean((2, 3))).view(x.shape[0], 2, 3)
        return F.grid_sample(x, F.affine_grid(maps, list(x.shape), align_corners=aligned), align_corners=aligned)

    compiled = torch.compile(warped, backend="disc", dynamic=True, fullgraph=True, options={"strict": True})
    for x in images((2, 4, 5), (3, 6, 4)):
        found = [torch.autograd.grad(each(x).square().sum(), list(layer.parameters())) for each in (compiled, warped)]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def in_windows(x: torch.Tensor, size: int) -> torch.Tensor:
    batch, height, width, channels = x.shape
    x = x.view(batch, height // size, size, width // size, size, channels)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size, size, channels)


class Windows(nn.Module):
    """What Swin does with maps, twice, with half of it between: padded to whole windows, taken apart, put together, cut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(12, 3), nn.Linear(3, 3)])

    def windows(self, x: torch.Tensor, layer: nn.Module, size: int = 3) -> torch.Tensor:
        _, height, width, channels = x.shape
        padded = F.pad(x, (0, 0, 0, (size - width % size) % size, 0, (size - height % size) % size))
        _, rows, columns, _ = padded.shape
        windows = layer(in_windows(padded, size).view(-1, size * size, channels)).view(-1, size, size, channels)
        x = windows.view(-1, rows // size, columns // size, size, size, channels)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, rows, columns, channels)[:, :height, :width].contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.windows(x, self.layers[0])
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        x = self.layers[1](x)
        return (x + self.windows(x, self.layers[2])).square().mean((1, 2))


def test_windows() -> None:
    """Of `x.view(b, h // 3, 3, ...)` PyTorch made sizes like h // (h // 3), and each step of the model longer ones: minutes of tracing, and then
    a size of more than a million characters."""
    torch.manual_seed(0)
    model = Windows()
    compiled = torch.compile(model, backend="disc", dynamic=True, options={"strict": True})
    for sizes in ((2, 10, 13), (3, 16, 19)):
        x = torch.randn(*sizes, 3)
        found = [torch.autograd.grad(each(x).sum(), list(model.parameters())) for each in (compiled, model)]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert dynamo.statistics().graphs == 2


def test_a_batch_that_is_counted_from_windows() -> None:
    """The backward pass computed a number again that it is given: it had two meanings."""

    def put_together(windows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        _, height, width, channels = x.shape
        batch = int(windows.shape[0] / (height * width / 3 / 3))
        return (
            windows.view(batch, height // 3, width // 3, 3, 3, channels).permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, channels)
        )

    compiled = torch.compile(put_together, backend="disc", dynamic=True, options={"strict": True})
    for sizes in ((2, 12, 15, 4), (3, 6, 9, 5)):
        x = torch.randn(sizes)
        windows = in_windows(x, 3).requires_grad_()
        found = [torch.autograd.grad((each(windows, x) * x).sum(), windows)[0] for each in (compiled, put_together)]
        torch.testing.assert_close(*found)
