"""Options and the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from disc.errors import ArgumentError, DiscError, did_you_mean

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0.1.0"  # of disc, as pyproject.toml has it
RANDOM = ("philox", "eager")
DTYPES = ("f32", "bf16", "f16", "int8")
_SPELLINGS = {
    "float32": "f32", "fp32": "f32", "float": "f32", "float64": "f64", "fp64": "f64", "double": "f64",
    "float16": "f16", "fp16": "f16", "half": "f16", "bfloat16": "bf16",
}  # fmt: skip
MAX_THREADS = 1024  # per call; the pool of a process has fewer
MAX_GRAPHS = 1 << 16  # of a program on one GPU
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Environment:
    """What the environment variables say.

    DISC_DUMP: folder for numbered IR after every pass. DISC_CACHE_DIR: the compile cache (default: $XDG_CACHE_HOME/disc).
    DISC_CACHE=0 turns the cache off. DISC_CACHE_SIZE: what it may hold, in bytes or as 500M or 8G (default: 8G).
    DISC_THREADS: default number of threads; without it OMP_NUM_THREADS (its first number), as in PyTorch: what starts several processes
    side by side sets that so that they share the cores. cache_size: in bytes. traces: a standard
    OTEL_* variable names where traces go, and none forbids it.
    """

    dump: Path | None
    cache_dir: Path
    cache: bool
    cache_size: int
    threads: int | None
    traces: bool


def silence_grpc() -> None:
    """Keeps gRPC's C library from writing lines of its own between those of a server's log. To be called before it is imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that we start: ours, and these variables over it."""
    return {**os.environ, **more}


def read_environment() -> Environment:
    """Reads the process environment anew (cheap; tests change it)."""
    from pathlib import Path  # which programs without an environment to read need not load

    dump, cache = os.environ.get("DISC_DUMP"), os.environ.get("DISC_CACHE") or "1"
    if cache not in ("0", "1"):
        raise DiscError(f"DISC_CACHE={cache!r}: 0 turns the compile cache off, 1 on; DISC_CACHE_DIR names its folder")
    base = os.environ.get("XDG_CACHE_HOME") or _home() / ".cache"
    return Environment(
        dump=Path(dump) if dump else None,
        cache_dir=Path(os.environ.get("DISC_CACHE_DIR") or Path(base) / "disc"),
        cache=cache == "1",
        cache_size=_bytes(os.environ.get("DISC_CACHE_SIZE") or "8G"),
        threads=threads_of_environment(),
        traces=_traces(os.environ),
    )


def _home() -> Path:
    """Of a user that no list names, as a container may run, the root, which is where container engines put it."""
    from pathlib import Path

    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def threads_of_environment() -> int | None:
    """The default number of threads, None: neither variable is set. What OpenMP itself would ignore in OMP_NUM_THREADS is ignored here too.

    Raises DiscError for a DISC_THREADS that is no such number.
    """
    own = os.environ.get("DISC_THREADS")
    if own and (not own.isdecimal() or not 0 < int(own[:9]) <= MAX_THREADS):
        raise DiscError(f"DISC_THREADS={own!r}: give a number of threads, from 1 to {MAX_THREADS}")
    shared = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(own) if own else min(int(shared[:9]), MAX_THREADS) if shared.isdecimal() and int(shared[:9]) > 0 else None


def check_threads(threads: object) -> None:
    """Raises DiscError for what is neither a number of threads nor None."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS):
        raise DiscError(f"threads={threads!r}: give a number from 1 to {MAX_THREADS}, or None for the default")


def dtype_name(dtype: object) -> str:
    """Our name of a type that is spelt as PyTorch or other tools do: "f16" for "float16", "fp16" or torch.float16. Another word is returned
    as it is."""
    name = str(dtype).removeprefix("torch.")
    return _SPELLINGS.get(name, name)


def check_graphs(graphs: object) -> None:
    """Raises DiscError for what is no number of CUDA graphs."""
    if isinstance(graphs, bool) or not isinstance(graphs, int) or not 0 <= graphs <= MAX_GRAPHS:
        raise DiscError(f"graphs={graphs!r}: give how many CUDA graphs to keep, from 0 to {MAX_GRAPHS}")


def _traces(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environment.get(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))


def _bytes(text: str) -> int:
    """ "500M" → bytes; the units are powers of 1024."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1].upper() in _UNITS else (text, "")
    if not number.isdecimal():
        raise DiscError(f"DISC_CACHE_SIZE={text!r} is no size: give bytes, or a number with K, M, G or T")
    return int(number) * _UNITS.get(unit, 1)


@dataclass(frozen=True)
class Options:
    """How to compile. Every field that changes the output enters the cache key.

    threads: threads per call; None = DISC_THREADS, or OMP_NUM_THREADS, or every core that the affinity mask and the CPU quota of the
    control group grant. dtype: "f32" computes in the model's own types; "bf16" or "f16" rounds the operands of f32 dots to that type
    (automatic mixed precision: they still accumulate in f32, and everything else stays f32; "bf16" rounds those of convolutions over an
    even number of channels-last channels too, "f16" of none but those that are dots); "int8" multiplies f32 activations by weights in 8
    bits, both quantized (weights per output column and 128 values when compiling, activations per row in every call), and does the other
    dots in bf16; other spellings (fp16, bfloat16, torch.float16) mean the same. cache: use the compile cache. embed_stablehlo: store the
    model as StableHLO portable bytecode in the artifact (for models that come as StableHLO files). packed: compile for a server that
    computes requests of different lengths one behind the other, without padding; where that cannot be proved, the artifact is an ordinary
    one and says why. debug_checks: legality check after every pass (on by default). random: "philox" draws random numbers with a
    counter-based generator, the same for any number of threads; "eager" (for torch.compile alone) leaves them to PyTorch, which then draws
    what it draws without torch.compile. tf32: on GPUs, products of f32 round their operands to tf32, 10 bits behind the point, instead of
    splitting them into parts that together are as exact as f32. CPUs multiply f32 as it is. graphs: how many CUDA graphs the program keeps
    on each GPU (`Executable.graphs`); the file says nothing of it, `disc.load(..., graphs=8)` does. fold_tables: bytes of tables that a
    block of `disc.batched` may have in place of what it would compute of one row of an embedding; 0: it computes it.
    """

    threads: int | None = None
    dtype: str = "f32"
    cache: bool = True
    embed_stablehlo: bool = False
    packed: bool = False
    debug_checks: bool = True
    random: str = "philox"
    tf32: bool = False
    graphs: int = 0
    fold_tables: int = 64 << 20

    def __new__(cls, *values: object, **named: object) -> Options:
        """Raises ArgumentError for an option that there is not."""
        for name in named:
            if name not in option_names():
                known = ", ".join(option_names())
                raise ArgumentError(f"disc.Options has no {name!r}{did_you_mean(name, option_names())}; there are {known}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_threads(self.threads)
        check_graphs(self.graphs)
        if isinstance(self.fold_tables, bool) or not isinstance(self.fold_tables, int) or self.fold_tables < 0:
            raise DiscError(f"fold_tables={self.fold_tables!r}: give a number of bytes, from 0")
        name = dtype_name(self.dtype)
        if name not in DTYPES:
            raise DiscError(f"dtype={self.dtype!r}: choose one of {', '.join(DTYPES)}")
        object.__setattr__(self, "dtype", name)
        if self.random not in RANDOM:
            raise DiscError(f"random={self.random!r}: choose one of {', '.join(RANDOM)}")


def option_names() -> list[str]:
    return [each.name for each in fields(Options)]


def checked_options(given: object) -> Options:
    """The options of a call, None = the defaults. Raises ArgumentError for what are none."""
    if given is None:
        return Options()
    if not isinstance(given, Options):
        example = ", ".join(f"{name}={value!r}" for name, value in given.items()) if isinstance(given, dict) else "threads=2"
        raise ArgumentError(f"options is a {type(given).__name__}: give disc.Options({example})")
    return given
