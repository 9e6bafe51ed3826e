"""What the host code needs to know of a kernel: how to call it, over how many tasks, under which guards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from disc.shapes import Dim, dim_max
from disc.speculation.guards import ALWAYS, Guard
from disc.speculation.schedules import Schedule
from disc.speculation.tree import Tree


@dataclass(frozen=True)
class Ahead:
    """A launch before that of a version, with the same arguments and scratch."""

    function: str
    grid: tuple[Dim, ...]


@dataclass(frozen=True)
class Blocks:
    """How a version runs in blocks of a GPU.

    grid: how many along x, y, z, up to three. schedule: the number of the one that it is compiled for, of a kernel with a `BlockChoice`;
    None: it runs whatever is chosen; words: that schedule, for display. scratch: bytes of memory of the call in which blocks hand values
    on, the first `zeroed` of which are 0 before the launch, and after it; where it lies is the last argument. None: it takes no such
    argument.
    numbers: what the device gets behind the grid, whichever version runs: of a version that is a product of the device's library.
    ahead: what is launched before it, in this order. persistent: no more blocks than the device has SMs are launched.
    An index out of range is written where the device says, and the host does not wait for it.
    """

    grid: tuple[Dim, ...]
    schedule: int | None = None
    words: str = ""
    scratch: Dim | None = None
    zeroed: Dim | None = None
    numbers: tuple[Dim, ...] = ()
    ahead: tuple[Ahead, ...] = ()
    persistent: bool = False


@dataclass(frozen=True)
class BlockChoice:
    """Which schedule the versions of a kernel on a GPU are taken of, in every call. nodes: of the tree; schedules: how many there are to
    choose among; features: those of the tree, except for the number of SMs, which the runtime knows."""

    nodes: tuple[tuple[int, int, int, int], ...]
    schedules: int
    features: tuple[Dim, Dim, Dim, Dim]


@dataclass(frozen=True)
class Version:
    """One compiled version: its function name, and the guard that must hold for it.

    schedule: of a kernel with a `Choice`, how this version walks over its matrices; the tree chooses it, not the guard.
    blocks: of a version for a GPU. predicted: picoseconds that one thread takes, by the rates of the target; None: nobody counted.
    """

    function: str
    guard: Guard = ALWAYS
    schedule: Schedule | None = None
    blocks: Blocks | None = None
    predicted: Dim | None = None

    def describe(self) -> str:
        """For display and the manifest: when it runs, or how; "" for the version without a condition."""
        if self.blocks is not None:
            return "; ".join(filter(None, (self.blocks.words, str(self.guard))))
        return str(self.guard) if self.schedule is None else self.schedule.describe()


@dataclass(frozen=True)
class PackedWeight:
    """A weight argument to be replaced by panels: array[panel][k][column] of element (k, n) at flat position start + k*k_step + n*n_step.

    argument: which kernel input; columns: panel width, zeros beyond n; group: values of k that lie side by side for each column, so that
    the panels are array[panel][k // group][column][k % group], zeros beyond k. block, scales: after the rows of every `block` values of k
    (0 = none) follows a row of f32, one per column, out of the kernel input `scales`: array[n][k / block], row-major. tile: where it is not
    0, k is (3, 3, channels), and before these panels come those of the weights transformed for tiles of so many outputs
    (`codegen/plan/winograd.py`), with k of ((tile + 2)^2, channels).
    """

    argument: int
    k: int
    n: int
    k_step: int
    n_step: int
    start: int
    columns: int
    group: int = 1
    block: int = 0
    scales: int | None = None
    tile: int = 0


@dataclass(frozen=True)
class Parts:
    """How k may be split over the tasks of a GEMM, as its schedules say.

    k: its values; multiple: how many of them, times any number, a part may have. counters: bytes that are zeroed before the launch, at the
    start of `partials` bytes of memory of the call; where they lie is one more argument of the kernel. rows: of the result, for which this
    memory is enough; with more, k is not split, independent of the schedule.
    """

    k: Dim
    multiple: int
    counters: Dim
    partials: Dim
    rows: Dim


@dataclass(frozen=True)
class Choice:
    """The schedule of a GEMM is chosen in every call: one version for each of `tree.schedules`.

    features: those of the tree, except for the number of threads, which the runtime knows. tile: rows of a tile, of which
    the rows of a task are a multiple. splits: whether a task may take k in pieces. parts: None where k is never split over tasks.
    """

    tree: Tree
    features: tuple[Dim, Dim, Dim, Dim]
    tile: int
    splits: bool
    parts: Parts | None = None


@dataclass(frozen=True)
class Split:
    """How the first version runs: `functions` one after the other, the version's own last, each over `tasks` tasks of `cost` each.

    partials: bytes of memory of the call that they hand values on in; where it lies is one more argument of the kernel.
    """

    functions: tuple[str, ...]
    tasks: Dim
    cost: Dim
    partials: Dim


@dataclass(frozen=True)
class Lookup:
    """What a kernel reads or writes at indices. table: the number of the argument that it is, None where the kernel computes it; indices:
    of those that the indices are computed from. what: what an index out of range means, where it is more than that."""

    table: int | None
    indices: frozenset[int]
    what: str = ""


@dataclass(frozen=True)
class LibraryTensor:
    """A tensor that a library function gets. place: of its address among the kernel's arguments, None for a result that nothing reads."""

    place: int | None
    element: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class LibraryCall:
    """What the runtime's function of a name is called with. words: what it is called in messages."""

    function: str
    words: str
    operands: tuple[LibraryTensor, ...]
    results: tuple[LibraryTensor, ...]
    numbers: tuple[Dim, ...]


@dataclass(frozen=True)
class Kernel:
    """One kernel of an artifact.

    name: for display; kind: loop, stitch, compute, ...; versions: tried in order, the last always runs; symbols: the base
    symbols passed after the pointers; tasks, cost (per task, in cycles), scratch (bytes per thread): expressions over symbols.
    micro_kernels: the shared (form, rows, vectors) functions that `source` calls; functions: further shared ones, as
    (name, MLIR text); packed: weights wanted in panels.
    checks_indices: the last argument is where an index out of range is reported. reports: the words for that, with "{actual}" and
    "{expected}", where it is no index of a gather. lookups: what is read or written at such indices.
    library: of a kernel that is a call of a library function, which has no `source` and divides its work into tasks itself.
    updates: the argument in whose memory the one result lies; None where results have memory of their own.
    divisors: what its sizes are divided by and may be 0, which the host refuses.
    plan: the text of what was decided. arithmetic: of products that a GPU's tensor cores do: "bf16", "f16", "tf32x3" or "tf32".
    source: MLIR text of all versions; lines: the user's source lines; ops: the op names fused; notes: why it is as it is;
    modules: the paths of the modules that its ops belong to.
    """

    name: str
    kind: str
    versions: tuple[Version, ...]
    symbols: tuple[str, ...]
    tasks: Dim
    cost: Dim
    scratch: Dim
    source: str
    lines: tuple[str, ...]
    ops: tuple[str, ...]
    notes: tuple[str, ...] = ()
    flops: Dim | None = None
    bytes: Dim | None = None
    micro_kernels: tuple[tuple[str, int, int], ...] = ()
    functions: tuple[tuple[str, str], ...] = ()
    packed: tuple[PackedWeight, ...] = ()
    choice: Choice | None = None
    block_choice: BlockChoice | None = None
    split: Split | None = None
    checks_indices: bool = False
    lookups: tuple[Lookup, ...] = ()
    reports: str = ""
    library: LibraryCall | None = None
    updates: int | None = None
    divisors: tuple[Dim, ...] = ()
    plan: str = ""
    modules: tuple[str, ...] = ()
    arithmetic: str = ""

    @property
    def runs_in_blocks(self) -> bool:
        """Whether it runs on a GPU."""
        return self.versions[0].blocks is not None

    @property
    def partials(self) -> Dim | None:
        """Bytes of memory of the call that tasks hand values on in, None for a kernel that takes no such argument."""
        scratch = [version.blocks.scratch for version in self.versions if version.blocks is not None and version.blocks.scratch is not None]
        if scratch:
            return reduce(dim_max, scratch)
        parts = self.split or (self.choice.parts if self.choice is not None else None)
        return parts.partials if parts is not None else None
