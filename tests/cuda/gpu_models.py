"""Models on GPUs of the stand-in driver, which runs every launch in Triton's interpreter: `python gpu_models.py LIBRARY NAME...`.

Each is compiled to one artifact, loaded, and called with tensors of the host and of a GPU, on the default stream and on another one: results
are eager's, nothing is waited for where nothing is read, nothing is left behind. Prints for each how many launches ran.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from gpu_arrays import Array, Counts, Lender, counts, on, start, wait
from stand_in_kernels import Executor, texts
from torch import nn
from torch.utils._pytree import tree_leaves

import disc
from disc.ral.executable import load
from tests.models import MODELS, shapes

Tensors = tuple[torch.Tensor, ...]
DYNAMIC = torch.export.Dim.DYNAMIC
KEPT = ("live_blocks", "live_host", "live_modules", "live_events", "live_graphs")  # what is as it was when all is over


class Layer(nn.Module):
    """A layer of a transformer with a mask: products with epilogues, attention, LayerNorm and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, "gelu", batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_mask=mask)


class Image(nn.Module):
    """Convolutions, with a stride and with groups, and what goes with them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.norm(self.first(x)))
        return self.last(torch.nn.functional.max_pool2d(self.second(found), 2, 2, 1).mean((2, 3)))


class Rows(nn.Module):
    """Softmax behind LayerNorm, rows that are looked up by indices, which are checked, and sums, also of all numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.table = nn.LayerNorm(24), nn.Embedding(9, 24)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.norm(self.table(ids))
        return torch.softmax(found, -1), found.sum(0), found.sum()


class Chosen(nn.Module):
    """A size that lies in the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)


class Hosted(nn.Module):
    """Ops without a kernel for GPUs, between some that have one: functions of the runtime compute them on the host."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = (x * 8).to(torch.int64)
        near = x.mT @ x + 8 * torch.eye(8)
        solved = torch.linalg.solve(near, x.sum(0) + 1)
        spectrum = torch.view_as_real(torch.fft.rfft(x * 2))
        return (
            solved * 2,
            spectrum + 1,
            torch.logcumsumexp(x, 0).exp(),
            torch.gcd(whole, whole.flip(1)),
            torch.special.zeta(x.abs() + 2, x.abs() + 1),
        )


class Unique(nn.Module):
    """Rows, of which the host counts those that differ."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.unique((x * 2).round(), dim=0) + 1


class Counting(nn.Module):
    """Keeps tensors from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        self.calls += 1
        return self.total * 2 + self.calls


def _masked(batch: int, length: int) -> Tensors:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, 16, generator=generator), torch.randn(length, length, generator=generator)


def _numbers(*sizes: int) -> Tensors:
    return (torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes))),)


def _ids(count: int) -> Tensors:
    return (torch.arange(count) * 5 % 9,)


Program = tuple[nn.Module, list[Tensors], Any]
PROGRAMS: dict[str, Callable[[], Program]] = {
    "layer": lambda: (
        Layer().eval(),
        [_masked(2, 5), _masked(1, 7), _masked(3, 1)],
        ({0: DYNAMIC, 1: torch.export.Dim("length")}, {0: torch.export.Dim("length"), 1: torch.export.Dim("length")}),
    ),
    "image": lambda: (Image().eval(), [_numbers(2, 3, 9, 11), _numbers(1, 3, 12, 7)], ({0: DYNAMIC, 2: DYNAMIC, 3: DYNAMIC},)),
    "rows": lambda: (Rows().eval(), [_ids(5), _ids(1), _ids(8), _ids(0)], ({0: DYNAMIC},)),
    "hosted": lambda: (Hosted(), [_numbers(5, 8), _numbers(1, 8), _numbers(13, 8)], ({0: DYNAMIC},)),
    "unique": lambda: (Unique(), [_numbers(7, 1), _numbers(1, 1)], ({0: DYNAMIC},)),
    "chosen": lambda: (Chosen(), [(_numbers(3, 5)[0].relu(),), (torch.zeros(2, 2),)], ({0: DYNAMIC, 1: DYNAMIC},)),
}  # fmt: skip
READS = {"chosen", "hosted", "unique"}  # wait for what they read


def program(name: str) -> Program:
    """A module, inputs of several sizes, and which dims are dynamic."""
    torch.manual_seed(0)
    if name in PROGRAMS:
        return PROGRAMS[name]()
    module, _, dims = MODELS[name]()
    return module, shapes(name)[:4], dims


def eager(module: nn.Module, inputs: Tensors) -> list[np.ndarray[Any, Any]]:
    with torch.no_grad():
        results = module(*inputs)
    return [each.numpy().copy() for each in tree_leaves(results) if isinstance(each, torch.Tensor)]


def same(found: Sequence[np.ndarray[Any, Any]], wanted: Sequence[np.ndarray[Any, Any]]) -> None:
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype), number
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(other).max(initial=0))))


def there(values: Tensors, gpu: int = 0) -> list[Array]:
    return [Array(each.numpy(), gpu) for each in values]


def check_calls(exe: Any, module: nn.Module, cases: Sequence[Tensors], waits: bool) -> None:
    """With tensors of a GPU, on the default stream and on another."""
    stream = c_void_p()
    on(0, "cuStreamCreate", byref(stream), 1)
    exe.flat(*there(cases[0]))  # the first call loads the program
    for inputs in cases:
        wanted = eager(module, inputs)
        for each in (None, stream):
            given = there(inputs)
            before = counts().waits
            found = exe.flat(*given) if each is None else _on_stream(exe, given, each)
            assert waits or counts().waits == before, "a call waits"
            same([result.numpy(each) for result in found], wanted)
            del found, given
    exe.synchronize()
    on(0, "cuStreamDestroy_v2", stream)


def check_strided(exe: Any, module: nn.Module, inputs: Tensors) -> None:
    """Inputs that are not contiguous: backward, transposed, with gaps."""
    copied = exe.stats()["copied_inputs"]
    given: list[Array] = []
    for each in inputs:
        whole = np.zeros([2 * size for size in each.shape[::-1]], each.numpy().dtype)
        view = whole.T[tuple(slice(None, None, -2) for _ in each.shape)]
        view[...] = each.numpy()
        given.append(Array(whole).view(view, whole))
    same([result.numpy() for result in exe.flat(*given)], eager(module, inputs))
    assert exe.stats()["copied_inputs"] - copied == sum(each.numel() > 1 for each in inputs)


def check_graphs(exe: Any, module: nn.Module, cases: Sequence[Tensors], reads: bool) -> None:
    """As CUDA graphs: the second call of a size is recorded, the third is one launch."""
    exe.graphs = len(cases)
    before = counts()
    for number in range(3):
        for inputs in cases:
            changed = tuple(each.flip(0) for each in inputs) if number == 2 else inputs
            same([result.numpy() for result in exe.flat(*there(changed))], eager(module, changed))
    found = exe.stats()["graphs"]
    assert found == {
        "records": (1 - reads) * len(cases),
        "replays": (1 - reads) * len(cases),
        "evictions": 0,
        "refusals": reads * len(cases),
    }
    assert counts().graph_launches - before.graph_launches == found["replays"]
    exe.graphs = 0


def _on_stream(exe: Any, given: Sequence[Array], stream: c_void_p) -> list[Array]:
    results = exe(*given, stream=stream.value)
    return [each for each in tree_leaves(results) if isinstance(each, Array)]


def check(name: str, executor: Executor, folder: Path) -> int:
    """One program; how many launches ran."""
    start_counts, launched = counts(), executor.launched
    module, cases, dims = program(name)
    path = folder / f"{name}.disc"
    with texts():
        disc.compile(module, cases[0], dims, ["x86-64-v3", "sm_90"], disc.Options(cache=False)).save(path)
    exe: Any = load(path)
    staged: Any = load(path, isa="cuda@1")
    for inputs in cases:
        same(staged.flat(*(each.numpy() for each in inputs)), eager(module, inputs))
    check_calls(exe, module, cases, name in READS)
    check_strided(exe, module, cases[0])
    check_graphs(exe, module, cases[:2], name in READS)
    assert all((exe.stats()[each] > 0) == (name in READS) for each in ("fetches", "fetched_bytes"))
    del exe, staged
    settle(start_counts)
    return executor.launched - launched


def settle(before: Counts) -> None:
    """Nothing is left of what was loaded since."""
    gc.collect()
    wait()
    after = counts()
    left = {name: getattr(after, name) - getattr(before, name) for name in KEPT}
    assert not any(left.values()), left
    assert after.executed == after.launches


def check_state(executor: Executor, folder: Path) -> int:
    """A model that keeps tensors, with tensors of the host and of GPUs in turn, on several streams, and as CUDA graphs."""
    before, launched = counts(), executor.launched
    module = Counting()
    with texts():
        disc.compile(module, _numbers(3, 4), ({0: DYNAMIC},), ["x86-64-v3", "sm_90"], disc.Options(cache=False)).save(folder / "state.disc")
    exe: Any = load(folder / "state.disc", isa="cuda")
    for size in (3, 1, 5):
        (x,) = _numbers(size, 4)
        same([np.asarray(exe(x.numpy()))], eager(module, (x,)))
    kept: Any = module
    same([exe.state["total"], exe.state["calls"]], [kept.total.numpy(), kept.calls.numpy()])
    del exe
    exe, stream = load(folder / "state.disc", graphs=2), c_void_p()
    on(0, "cuStreamCreate", byref(stream), 1)
    kept.total.zero_(), kept.calls.zero_()
    for number, where in enumerate(("0", "0", "0 stream", "0 stream", "1", "host", "0", "set", "0", "0", "reset", "1", "0")):
        (x,) = _numbers(3 + number % 2, 4)
        if where == "set":
            exe.state["total"] = np.full(4, 7, np.float32)
            kept.total.fill_(7)
        elif where == "reset":
            exe.state.reset()
            kept.total.zero_(), kept.calls.zero_()
        elif where == "host":
            same([np.asarray(exe(x.numpy()))], eager(module, (x,)))
        else:
            found = exe(*there((x,), int(where[0])), **({"stream": stream.value} if "stream" in where else {}))
            same([found.numpy(stream if "stream" in where else None)], eager(module, (x,)))
        if number % 3 == 1:
            same([exe.state["total"], exe.state["calls"]], [kept.total.numpy(), kept.calls.numpy()])
    # Results lie in memory of the framework's allocator, on its stream; what the model keeps does not.
    Lender.current = stream
    (x,) = _numbers(3, 4)
    made, found = Lender.made, exe(Lender(x.numpy()))
    assert type(found) is Lender and (Lender.made, Lender.live) == (made + 1, 1), (Lender.made, Lender.live)
    same([found.numpy(stream)], eager(module, (x,)))
    found = None
    gc.collect()
    assert Lender.live == 0
    Lender.current = c_void_p()
    same([exe.state["total"], exe.state["calls"]], [kept.total.numpy(), kept.calls.numpy()])
    exe.state.reset()  # frees it in the order of that stream
    on(0, "cuStreamSynchronize", stream)
    on(0, "cuStreamDestroy_v2", stream)
    del exe
    settle(before)
    return executor.launched - launched


def main() -> None:
    driver = start(sys.argv[1])
    executor = Executor(driver)
    torch.backends.mha.set_fastpath_enabled(False)  # it gives NaN for masks of numbers
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(sys.argv[2:]):
            driver.fake_set_seed(number, 30 * (number % 2))
            driver.fake_set_protection(number % 2)
            launched = check_state(executor, Path(folder)) if name == "state" else check(name, executor, Path(folder))
            assert launched > 0 and not executor.errors
            print(name, launched, flush=True)


if __name__ == "__main__":
    main()
