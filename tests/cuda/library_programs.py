"""Library kernels of GPUs in Triton's interpreter, around the sizes of their blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from device_oracle import Checked
from library_models import GROUPS, Pools, Scans, Scatters, Sorts

from disc.config import Options
from disc.ir.bf16 import round_to_bf16


def scans() -> Iterator[int]:
    """No line, and lines a little longer than a short block."""
    yield from _scans((0, 4), (3, 66))


def long_scans() -> Iterator[int]:
    """Lines around the long block, and more lines than a program has lanes."""
    yield from _scans((1, 2), (129, 6), (2, 1030))


def _scans(*sizes: tuple[int, int]) -> Iterator[int]:
    program = Checked.of_model(Scans(), Scans.example(), Scans.dims())
    random = np.random.default_rng(0)
    for rows, columns in sizes:
        yield program.check([random.normal(size=(rows, columns)).astype("f4"), random.integers(0, 9, rows)], 1e-4)


def scatters() -> Iterator[int]:
    """No update, and several of one place."""
    yield from _scatters(9, (0, 3), (5, 4))


def long_scatters() -> Iterator[int]:
    """More updates than a program looks through at once; slots of several blocks."""
    yield from _scatters(9, (1, 1), (129, 4))
    yield from _scatters(130, (3, 2), (40, 7))


def _scatters(width: int, *sizes: tuple[int, int]) -> Iterator[int]:
    random, model = np.random.default_rng(0), Scatters(width)
    program = Checked.of_model(model, model.example(), model.dims())
    for updates, wide in sizes:
        floats = [random.normal(size=(rows, width)).astype("f4") for rows in (9, updates)]
        ids, at = random.integers(0, 9, updates), random.integers(0, 9, (min(updates, 5), wide))
        yield program.check([floats[0], ids, floats[1], at], 1e-4)


def sorts() -> Iterator[int]:
    """With equal elements, NaN and both zeros; lines of one block and of two."""
    yield from _sorts((1, 2), (2, 33))


def long_sorts() -> Iterator[int]:
    """Lines of several blocks."""
    yield from _sorts((3, 64), (3, 129))


def _sorts(*sizes: tuple[int, int]) -> Iterator[int]:
    program = Checked.of_model(Sorts(), Sorts.example(), Sorts.dims())
    random = np.random.default_rng(0)
    for rows, columns in sizes:
        x = random.normal(size=(rows, columns)).astype("f4").round(1)
        x[0, :2] = (0.0, -0.0)
        x[rows - 1, columns - 1] = np.nan
        yield program.check([x, random.integers(0, 6, rows + columns), random.normal(size=(rows, 3)).astype("f4")])


def groups() -> Iterator[int]:
    """Groups without rows, that end within a block, and rows behind the last group."""
    random = np.random.default_rng(0)
    for element in ("bf16", "f32"):
        with TemporaryDirectory() as folder:
            program = Checked.of_text(GROUPS.format(element=element), Path(folder))
        for rows, ends in ((0, (0, 0, 0)), (1, (0, 1, 1)), (70, (33, 33, 66))):
            x, matrices = (random.normal(size=shape).astype("f4") for shape in ((rows, 20), (3, 20, 70)))
            if element == "bf16":
                x, matrices = round_to_bf16(x), round_to_bf16(matrices)
            yield program.check([x, matrices, np.array(ends, np.int32)], 1e-4)


def segments() -> Iterator[int]:
    """Sequences of one token, of a block of rows and of a little more, and none at all."""
    program = Checked.of_model(Pools(), Pools.example(), Pools.dims(), options=Options(packed=True, cache=False))
    random = np.random.default_rng(0)
    for lengths in ((), (1,), (8, 1, 9, 17)):
        tokens, ends = sum(lengths), np.cumsum(lengths, dtype=np.int64)
        x = random.normal(size=(1, tokens, 140)).astype("f4")
        bounds = [ends - np.array(lengths, np.int64), ends]
        yield program.check([x, *(np.repeat(each, lengths) for each in bounds), *bounds], 1e-5)


PROGRAMS = {
    "scans": scans, "scatters": scatters, "sorts": sorts, "groups": groups, "segments": segments, "long_scans": long_scans, "long_scatters": long_scatters, "long_sorts": long_sorts,
}  # fmt: skip
