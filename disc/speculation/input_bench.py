"""Measures on this machine how many values a fusion of each kind should read (`inputs.py`): programs whose fusions could read 16 to 40
values, in and out of the caches, each compiled with every limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from disc.artifact.output import writing
from disc.ral.executable import Executable
from disc.speculation.bench import time_call
from disc.speculation.inputs import KINDS, InputRecord, read_inputs
from disc.speculation.records import make_ready
from disc.targets.thresholds import InputLimits

LIMITS = (4, 6, 8, 12, 16, 24, 48)
SIZES = (4, 256, 2048)  # rows of WIDTH: in L1 and L2, in the last level of caches, and out of it
WIDTH, HEADS = 1024, 16

CompileWith = Callable[[nn.Module, tuple[Tensor, ...], Mapping[str, object], InputLimits], Executable]


class _OfMany(nn.Module):
    """`function` of a list of tensors."""

    def __init__(self, function: Callable[[tuple[Tensor, ...]], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(inputs)


def _total(inputs: tuple[Tensor, ...]) -> Tensor:
    return sum(inputs[1:], inputs[0])


def _gates(inputs: tuple[Tensor, ...]) -> Tensor:
    return sum((torch.tanh(a) * b for a, b in zip(inputs[2::2], inputs[3::2], strict=True)), torch.tanh(inputs[0]) * inputs[1])


def _normalized(inputs: tuple[Tensor, ...]) -> Tensor:
    return F.softmax(F.layer_norm(torch.tanh(inputs[0]) * _total(inputs[1:]), (WIDTH,)), -1)


def _epilogue(inputs: tuple[Tensor, ...]) -> Tensor:
    return inputs[0] @ torch.full((WIDTH, WIDTH), 0.01) + _total(inputs[1:])


def _attention(inputs: tuple[Tensor, ...]) -> Tensor:
    query, key, value, *biases = (each.reshape(-1, HEADS, WIDTH // HEADS).transpose(0, 1) for each in inputs)
    scores = query @ key.transpose(1, 2) * 0.1 + _total(tuple(bias[..., :1] for bias in biases))
    return F.softmax(scores, -1) @ value


@dataclass(frozen=True)
class InputProgram:
    """A program whose fusions of one kind could read `count` values."""

    name: str
    kind: str
    function: Callable[[tuple[Tensor, ...]], Tensor]
    count: int


PROGRAMS = (
    InputProgram("sum", "loop", _total, 40),
    InputProgram("gates", "loop", _gates, 32),
    InputProgram("rows", "stitch", _normalized, 16),
    InputProgram("product", "compute", _epilogue, 24),
    InputProgram("attention", "attention", _attention, 24),
)


def measure_inputs(compile_with: CompileWith, store: Path) -> Iterator[InputRecord]:
    """Measures the programs that `store` does not hold yet, all limits in turns, and keeps each when it is done. Yields the records.

    Raises OutputError when they cannot be kept, and what `compile_with` raises.
    """
    make_ready(store)
    for program in missing_programs(store):
        records = list(_measured(compile_with, program))
        with writing(store), store.open("a") as file:
            file.write("".join(f"{json.dumps(asdict(record))}\n" for record in records))
        yield from records


def missing_programs(store: Path) -> list[InputProgram]:
    """Those that a store does not hold yet."""
    known = {record.program for record in measured_inputs(store)}
    return [program for program in PROGRAMS if program.name not in known]


def measured_inputs(store: Path) -> list[InputRecord]:
    """What a store holds of these limits: another version of disc may have measured others."""
    return [record for record in read_inputs(store) if set(record.seconds) == set(LIMITS)]


def _measured(compile_with: CompileWith, program: InputProgram) -> Iterator[InputRecord]:
    example = tuple(torch.zeros(7, WIDTH) for _ in range(program.count))
    dynamic = {"inputs": tuple({0: torch.export.Dim.AUTO} for _ in example)}
    made = {
        limit: compile_with(_OfMany(program.function), example, dynamic, InputLimits(**dict.fromkeys(KINDS, limit))) for limit in LIMITS
    }
    for exe in made.values():
        exe.threads = 1
    for rows in SIZES:
        inputs = tuple(torch.randn(rows, WIDTH) for _ in range(program.count))
        out = {limit: exe(*inputs) for limit, exe in made.items()}
        seconds: dict[int, float] = dict.fromkeys(LIMITS, math.inf)
        for limit in (*LIMITS, *LIMITS[::-1]):  # a second time in the other order, against drifts of the machine
            seconds[limit] = min(seconds[limit], time_call(partial(made[limit], *inputs, out=out[limit])))
        yield InputRecord(program.name, program.kind, rows, seconds)
