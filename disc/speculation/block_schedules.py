"""The schedules of products on a GPU: each is a kernel of its own, of which the tree of a product chooses one in every call.

A text is "128x256x64+w8+s3+g8", with "+t" behind it for tensor maps, "+p" where it is persistent, "+h2" for halves
and "/4" for parts of k; or "cublaslt".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Programs of a launch that share blocks of a result, at most: scratch for what each leaves is set aside. More than a few for each SM of the
# largest GPU gain nothing.
SPLIT_PROGRAMS = 1024
# Programs of a launch that make tensor maps, at most, but persistent ones, which are as many as SMs: each has scratch for its own. The maps
# of so many take 16 MiB, and their blocks of 64 x 64 are a result of 268 million elements.
MAPPED_PROGRAMS = 1 << 16
_TEXT = re.compile(r"(\d+)x(\d+)x(\d+)\+w(\d+)\+s(\d+)\+g(\d+)(\+t)?(\+p)?(?:\+h(\d+))?(?:/(\d+))?")
TENSOR_ROWS = 16  # of a block, at least, that tensor cores multiply
MAP_BOX = 256  # elements of a block along each dim, at most, that a tensor map loads
_ATTENTION = re.compile(r"(\d+)x(\d+)\+w(\d+)\+s(\d+)(?:/(\d+))?")


@dataclass(frozen=True)
class BlockSchedule:
    """A program computes a block of the result.

    rows, columns: of a block; depth: values of k of a step: powers of two, columns and depth 16 at least. Fewer rows than tensor cores
    multiply are multiplied one by one, in registers, with what is loaded of the right factor. warps: of a program. stages: steps whose
    operands are in shared memory at a time. group: blocks of rows that go one after the other over the same columns, so that these stay in
    L2. halves: parts of a block's columns that are stored one after the other, so that what follows the product has registers. parts: of
    k, each a program of its own; their sums are added in their order by the program that comes last. persistent: there are no more programs
    than SMs, and each computes block after block: the factors of the next one are on their way while results are stored. mapped: factors
    are loaded by tensor maps (TMA): one thread asks for a block of a matrix, instead of all for 16 bytes of it each.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8
    halves: int = 1
    parts: int = 1
    persistent: bool = False
    mapped: bool = False

    def __post_init__(self) -> None:
        for size, least in ((self.rows, 1), (self.columns, 16), (self.depth, 16)):
            if size < least or size & (size - 1):
                raise ValueError(f"{self}: blocks are powers of two, columns and depth 16 at least")
        if self.streams and self.halves > 1:
            raise ValueError(f"{self}: the few rows of a block are stored at once")
        if self.persistent and (self.streams or self.parts > 1):
            raise ValueError(f"{self}: persistent programs have whole blocks for tensor cores")
        if self.mapped and (self.streams or max(self.rows, self.columns, self.depth) > MAP_BOX):
            raise ValueError(f"{self}: tensor maps load blocks for tensor cores, of at most {MAP_BOX} rows and columns")
        if min(self.warps, self.stages, self.group, self.halves, self.parts) < 1 or self.warps & (self.warps - 1):
            raise ValueError(f"{self}: warps are a power of two, and all numbers positive")
        if self.columns % (self.halves * 16) or self.halves not in (1, 2):
            raise ValueError(f"{self}: a block has one or two halves of at least 16 columns")

    @property
    def streams(self) -> bool:
        """Whether rows multiply the right factor by themselves, and not tensor cores."""
        return self.rows < TENSOR_ROWS

    def __str__(self) -> str:
        mapped, persistent, halves = "+t" * self.mapped, "+p" * self.persistent, f"+h{self.halves}" if self.halves > 1 else ""
        parts = f"/{self.parts}" if self.parts > 1 else ""
        return f"{self.rows}x{self.columns}x{self.depth}+w{self.warps}+s{self.stages}+g{self.group}{mapped}{persistent}{halves}{parts}"

    def describe(self) -> str:
        """The text that `explain` shows."""
        halves = ", stored in halves" if self.halves > 1 else ""
        parts = f", k split into {self.parts} parts" if self.parts > 1 else ""
        kind = ", in registers" if self.streams else f"{', by TMA' * self.mapped}{', persistent' * self.persistent}"
        return f"blocks of {self.rows} x {self.columns}, {self.depth} of k, {self.warps} warps, {self.stages} stages{kind}{halves}{parts}"


@dataclass(frozen=True)
class LibrarySchedule:
    """A product by the GPU's own library, where a process has it and the kernel is a product with nothing, or a bias, behind it."""

    def __str__(self) -> str:
        return "cublaslt"

    def describe(self) -> str:
        """The text that `explain` shows."""
        return "cuBLASLt"


CUBLASLT = LibrarySchedule()
ProductSchedule = BlockSchedule | LibrarySchedule


def read_schedule(text: str) -> ProductSchedule:
    """The schedule of a text. Raises ValueError for a text that is none."""
    if text == str(CUBLASLT):
        return CUBLASLT
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no schedule of a GPU")
    *block, mapped, persistent, halves, parts = match.groups()
    rows, columns, depth, warps, stages, group = map(int, block)
    return BlockSchedule(rows, columns, depth, warps, stages, group, int(halves or 1), int(parts or 1), bool(persistent), bool(mapped))


@dataclass(frozen=True)
class AttentionBlock:
    """A schedule of attention: rows and keys of a block, powers of two, 16 at least; warps, stages of the pipeline; parts: programs that
    share the keys of a block of rows. A text is "16x64+w4+s3", with "/8" behind it for parts."""

    rows: int
    keys: int
    warps: int
    stages: int
    parts: int = 1

    def __post_init__(self) -> None:
        for size in (self.rows, self.keys):
            if size < 16 or size & (size - 1):
                raise ValueError(f"{self}: blocks are powers of two, 16 at least")
        if min(self.warps, self.stages, self.parts) < 1 or self.warps & (self.warps - 1):
            raise ValueError(f"{self}: warps are a power of two, and all numbers positive")

    def __str__(self) -> str:
        parts = f"/{self.parts}" if self.parts > 1 else ""
        return f"{self.rows}x{self.keys}+w{self.warps}+s{self.stages}{parts}"

    def describe(self) -> str:
        """The text that `explain` shows."""
        parts = f", keys split into {self.parts} parts" if self.parts > 1 else ""
        return f"blocks of {self.rows} queries x {self.keys} keys, {self.warps} warps, {self.stages} stages{parts}"


def read_attention_block(text: str) -> AttentionBlock:
    """The schedule of a text. Raises ValueError for a text that is none."""
    match = _ATTENTION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no schedule of attention on a GPU")
    return AttentionBlock(*(int(each or 1) for each in match.groups()))
