"""Blocks that PyTorch computes, as `disc.batched` takes them: what is tested without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from programs import COPY, build, copy_manifest
from torch import nn

from disc.config import Options
from disc.frontend.batched.blocks import Block
from disc.frontend.batched.public import Batched
from disc.frontend.batched.techniques import ALL, Techniques
from disc.frontend.exported import export_instance
from disc.frontend.models import import_program
from disc.ir.dialect import make_context
from disc.ir.interp.oracle import interpret
from disc.ir.passes import CompileState, run_passes
from disc.passes.graph.map_rows import mark_rows
from disc.passes.pipelines import BLOCK, FRONT
from disc.ral.executable import Executable
from disc.ral.schedule import Schedule


class OneByOne:
    """A block for B instances, instance by instance."""

    executable: Any = None
    takes_weights = False

    def __init__(self, block: Block) -> None:
        self.block = block

    def __call__(self, tables: Any, rows: Any, values: Any, out: Any) -> None:
        which = [self.block.tables().index(each) for each in self.block.rows]
        for number in range(out[0].shape[0]):
            given = [tables[table][index[number]] for table, index in zip(which, rows, strict=True)]
            results = self.block.module(*given, *(each[number] for each in values))
            for target, result in zip(out, results, strict=True):
                target[number] = result


class Interpreted(OneByOne):
    """What the passes make of a block for any number of instances, by the interpreter. folded: blocks whose rows became tables, of all."""

    folded: ClassVar[int] = 0

    def __init__(self, block: Block, budget: int) -> None:
        super().__init__(block)
        tables = block.tables()
        example = (*(torch.zeros(each.shape, dtype=each.dtype) for each in block.rows), *(torch.tensor(0) for _ in range(block.values)))
        self._imported = import_program(export_instance(block.module, example), make_context())
        self._weights = self._imported.weights
        state = CompileState(self._weights, Options(fold_tables=budget))
        with self._imported.module.context:
            mark_rows(self._imported.module, [*map(tables.index, block.rows), *(None for _ in range(block.values))])
        run_passes(self._imported.module, (*FRONT, *BLOCK), state)
        Interpreted.folded += "disc.folded_tables" in self._imported.module.operation.attributes

    def __call__(self, tables: Any, rows: Any, values: Any, out: Any) -> None:
        with self._imported.module.context:
            results = interpret(self._imported.module, [each.numpy() for each in (*tables, *rows, *values)], self._weights)
        for target, result in zip(out, results, strict=True):
            target.copy_(torch.from_numpy(result))


def interpreted(budget: int) -> Callable[[nn.Module], Batched]:
    return lambda model: Batched(model, lambda block: Interpreted(block, budget))


@cache
def _program() -> Executable:
    weights = [("weight", "f32", np.zeros(1, np.float32))]
    return Executable.from_parts(copy_manifest("f32", 1), {"x86-64": build(COPY, "BYTES=4")}, weights, threads=1)


class Scheduled(OneByOne):
    """The same as a program that schedules take, which `PythonSchedule` runs."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.executable = self

    @property
    def context(self) -> Any:
        return _program().context  # some program: it is never called


class PythonSchedule(Schedule):
    """Runs batches of `Scheduled` blocks; looks at every row that is read."""

    def __init__(self, blocks: Any) -> None:
        super().__init__(blocks)
        self._blocks = blocks

    def run(self, tables: Any, used: Any, batches: Any, indices: Any) -> list[int]:
        used = list(used)
        for number, count, offset in batches.tolist():
            block = self._blocks[number]
            vectors = indices[offset : offset + (len(block.rows) + block.values) * count].reshape(-1, count).tolist()
            first = dict.fromkeys(block.results, 0)
            results = [block.executable.block.module(*_operands(block, tables, used, vectors, each)) for each in range(count)]
            for place, table in enumerate(block.results):
                begin = used[table] + first[table] * count
                first[table] += 1
                assert begin + count <= tables[table].shape[0]
                for each in range(count):
                    tables[table][begin + each] = results[each][place]
            for table, times in first.items():
                used[table] += times * count
        return used


def _operands(block: Any, tables: Any, used: list[int], vectors: list[list[int]], each: int) -> list[torch.Tensor]:
    rows = vectors[: len(block.rows)]
    assert all(0 <= vector[each] < used[table] for table, vector in zip(block.rows, rows, strict=True))
    given = [tables[table][vector[each]].clone() for table, vector in zip(block.rows, rows, strict=True)]
    return given + [torch.tensor(vector[each]) for vector in vectors[len(block.rows) :]]


def by_pytorch(model: nn.Module) -> Batched:
    return Batched(model, OneByOne)


def scheduled(model: nn.Module, techniques: Techniques = ALL) -> Batched:
    """Where `Schedule` is `PythonSchedule`, which the runtime's interpreter cannot call."""
    return Batched(model, Scheduled, replace(techniques, native_skeleton=False))
