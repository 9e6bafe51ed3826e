"""One compile, many shapes: compiles a base-size BERT with disc and compares it with eager PyTorch. Run by tools/quickstart.sh."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers
from rich.console import Console
from rich.table import Table

import disc

EXAMPLE = (3, 17)
SHAPES = ((1, 1), (1, 7), (1, 16), (1, 37), (2, 13), (3, 17), (5, 31), (4, 50), (1, 97), (8, 64), (1, 256), (1, 509))
TOLERANCE = 1e-4
TIMED_CALLS = 3


class Bert(torch.nn.Module):
    """BERT-base of ids and mask, with random weights: nothing is downloaded."""

    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask)[0]


def inputs(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids; every row but the first is padded for its last third."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1:, length - length // 3 :] = 0
    return torch.randint(3, 30_000, (batch, length)), mask


def milliseconds(call: Callable[[], object]) -> float:
    """The median of a few calls after one that is not timed."""
    call()
    times: list[float] = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> int:
    """Exit code 1 when a result is too far from eager's."""
    console = Console(highlight=False)
    threads = 1  # one thread each: with more, PyTorch's idle threads spin and the two would disturb each other
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Bert().eval()
    if os.getloadavg()[0] > 0.5:
        console.print("Other work is running on this machine: the times below are rough, the errors are not.")
    console.print(f"Compiling BERT-base with one example of batch {EXAMPLE[0]}, length {EXAMPLE[1]} ...")
    start = time.perf_counter()
    exe = disc.compile(model, inputs(*EXAMPLE), options=disc.Options(threads=threads))
    origin = "compiled" if exe.stats()["compiles"] else "taken from the compile cache"
    console.print(f"{origin} in {time.perf_counter() - start:.1f} s")
    worst = compare(console, model, exe, threads)
    console.print(f"shapes: {len(SHAPES)}   compiles in this process: {exe.stats()['compiles']}   largest error: {worst:.1e}")
    if not worst <= TOLERANCE:
        console.print(f"[red]The largest error is above {TOLERANCE:.0e}: this is a bug, please report it.[/red]")
        return 1
    console.print('Next: README.md, "Three uses"; your own model: disc.compile(model, example_inputs).', soft_wrap=True)
    return 0


def compare(console: Console, model: torch.nn.Module, exe: disc.Executable, threads: int) -> float:
    """Prints one row per shape; the largest error of all."""
    table = Table(title=f"BERT-base, fp32, {threads} thread{'s' * (threads != 1)}, one compiled model for every row")
    for name in ("batch x length", "max abs error", "disc ms", "eager ms", "eager / disc"):
        table.add_column(name, justify="right")
    errors: list[float] = []
    with torch.no_grad():
        for shape in SHAPES:
            args = inputs(*shape)
            result = exe(*args)
            assert isinstance(result, torch.Tensor)
            errors.append(float((result - model(*args)).abs().max()))
            own, eager = milliseconds(lambda args=args: exe(*args)), milliseconds(lambda args=args: model(*args))
            table.add_row(f"{shape[0]} x {shape[1]}", f"{errors[-1]:.1e}", f"{own:.1f}", f"{eager:.1f}", f"{eager / own:.2f}")
    console.print(table)
    return max(errors)


if __name__ == "__main__":
    sys.exit(main())
