"""Triton texts → cubins, without a GPU: what Triton and ptxas need is in the wheel of `triton`."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import linecache
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from disc.artifact.cache import Cache
from disc.artifact.file import write_bytes
from disc.codegen.cuda import cubin
from disc.codegen.cuda.cubin import Cubin, from_bytes, parameters, resources, to_bytes
from disc.codegen.cuda.kernel import DeviceVersion
from disc.codegen.cuda.maps import FIRST_ARCHITECTURE, MAP_BYTES
from disc.codegen.cuda.names import NAME
from disc.errors import CompilerBug, TargetError, how_to_install
from disc.ir.python_source import PARSING
from disc.targets.thresholds import Gpu

PORTABLE = 80  # the architecture whose text is kept for GPUs that are not known yet: later ones' are tied to their chips
PTX_VERSION = 80  # 8.0, of CUDA 12: drivers refuse text that is newer than they are
_LOCK = threading.Lock()  # Triton's settings are the process's


def assemble(versions: Sequence[DeviceVersion], gpu: Gpu, threads: int = 1, stored: Cache | None = None) -> Mapping[str, Cubin]:
    """Compiles versions for a GPU, by the key of each; equal ones once. `threads` compile; the result does not depend on them. stored: what
    was compiled before, and is kept for later.

    Raises TargetError where Triton is not installed; CompilerBug for a text that it refuses, where the code's parameters are not the
    version's, and where a block needs more shared memory than the GPU has.
    """
    wanted = {version.key: version for version in versions}
    names = {key: _name(key, gpu) for key in wanted} if stored is not None else {}
    made = {key: found for key, name in names.items() if stored is not None and (found := stored.lookup(name, _read)) is not None}
    missing = [version for key, version in wanted.items() if key not in made]
    if missing:
        made.update(zip((version.key for version in missing), _compile_all(missing, gpu, threads), strict=True))
        for version in missing:
            if stored is not None:
                content = to_bytes(made[version.key])
                stored.store(names[version.key], lambda path, content=content: write_bytes(path, memoryview(content)))
    return {key: made[key] for key in wanted}


def _read(path: Path) -> Cubin:
    return from_bytes(path.read_bytes())


def _name(key: str, gpu: Gpu) -> str:
    """Of an entry of the cache: all that decides its content."""
    return hashlib.sha256("\n".join([key, str(gpu.architecture), str(PTX_VERSION), *tool_facts().values()]).encode()).hexdigest()


@cache
def tool_facts() -> Mapping[str, str]:
    """What makes code of a text. Loads no Triton. Raises TargetError where it is not installed."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        raise TargetError(f"code for GPUs needs Triton; install it with: {how_to_install('cuda')}")
    own = hashlib.sha256(b"".join(Path(file).read_bytes() for file in (__file__, cubin.__file__)))  # how they are called, and what is kept
    tools = str(_tools(Path(found.origin).parent).stat().st_size)
    return {"triton": importlib.metadata.version("triton"), "ptxas": tools, "disc": own.hexdigest()}


def _tools(package: Path) -> Path:
    """The ptxas of CUDA 12 that Triton brings along. Its code for sm_90 runs with drivers of CUDA 12 and later; that of `ptxas-blackwell`,
    Triton's choice from sm_90 on, with those of CUDA 13 alone."""
    return package / "backends" / "nvidia" / "bin" / "ptxas"


# --- Triton ---------------------------------------------------------------------------------------------------------------


def _compile_all(versions: Sequence[DeviceVersion], gpu: Gpu, threads: int) -> list[Cubin]:
    tool_facts()
    with _LOCK, _settings(), ThreadPoolExecutor(max(1, min(threads, len(versions)))) as pool:
        return list(pool.map(lambda version: _compile(version, gpu), versions))


@contextmanager
def _settings() -> Iterator[None]:
    """Triton's, until they are what they were before: whoever else uses it in this process may want other ones."""
    import triton
    from triton import knobs

    tools = _tools(Path(triton.__file__).parent)
    with (
        tempfile.TemporaryDirectory() as folder,
        knobs.compilation.scope(),
        knobs.cache.scope(),
        knobs.nvidia.scope(),
        _one_parses(),
    ):
        knobs.compilation.disable_line_info = True  # a third of the size
        knobs.compilation.store_binary_only = False
        knobs.compilation.always_compile = True
        knobs.cache.dir = folder
        knobs.nvidia.ptxas = knobs.nvidia.ptxas_blackwell = str(tools)
        yield


@contextmanager
def _one_parses() -> Iterator[None]:
    """One thread at a time parses Python: CPython counts the depth of syntax trees for all threads together, and raises SystemError where
    that of another one ("AST constructor recursion depth mismatch", 3.11) has come in between."""
    from triton.runtime.jit import JITCallable

    kinds: Any = JITCallable
    plain, lock = kinds.parse, threading.RLock()

    def parse(function: Any) -> Any:
        with lock:
            return plain(function)

    kinds.parse = parse
    try:
        yield
    finally:
        kinds.parse = plain


def _compile(version: DeviceVersion, gpu: Gpu) -> Cubin:
    import triton
    from triton.backends.compiler import GPUTarget

    architecture, portable = gpu.architecture, gpu.architecture == PORTABLE
    options = {
        "num_warps": version.warps,
        "num_stages": version.stages,
        "enable_fp_fusion": True,
        "enable_reflect_ftz": version.flushes,
        **({"ptx_version": PTX_VERSION} if portable else {}),
    }
    signature = {each.name: each.type for each in version.parameters}
    places = {each.name: number for number, each in enumerate(version.parameters)}
    attributes = {(places[name],): [["tt.divisibility", number]] for name, number in version.hints}
    try:
        with _loaded(version) as function:
            built: Any = triton.compile(
                _source(function, signature, attributes), target=GPUTarget("cuda", architecture, 32), options=options
            )
    except Exception as error:  # Triton raises anything
        raise CompilerBug(f"Triton refuses a kernel for sm_{architecture}: {error}\n{version.text}") from error
    code, facts = built.asm["cubin"], built.metadata
    registers, stack = resources(code)
    found = Cubin(
        code, built.asm["ptx"] if portable else "", 32 * facts.num_warps, facts.num_ctas, facts.shared, facts.global_scratch_size,
        registers, stack, tuple(parameters(code)),
    )  # fmt: skip
    sizes = [each.size for each in version.parameters]
    if [size for _, size in found.parameters] != [*sizes, 8, 8]:
        raise CompilerBug(f"the code for sm_{architecture} takes parameters of {found.parameters}, the kernel has {version.parameters}")
    scratch = MAP_BYTES * version.maps if architecture >= FIRST_ARCHITECTURE else 0
    if (found.scratch, facts.global_scratch_align <= MAP_BYTES) != (scratch, True):
        raise CompilerBug(f"the code for sm_{architecture} takes {found.scratch} bytes of global scratch memory for a block, not {scratch}")
    if found.shared > gpu.shared_block:
        raise CompilerBug(f"a block needs {found.shared} bytes of shared memory, sm_{architecture} has {gpu.shared_block}\n{version.text}")
    return found


def _source(function: Any, signature: dict[str, str], attributes: dict[tuple[int, ...], list[list[Any]]]) -> Any:
    """What Triton compiles. One thread at a time parses."""
    from triton.compiler import ASTSource

    class Source(ASTSource):
        def hash(self) -> str:
            with PARSING:
                return str(super().hash())

        def make_ir(self, *arguments: Any, **named: Any) -> Any:
            with PARSING:
                return super().make_ir(*arguments, **named)

    return Source(function, signature, {}, attributes)


@contextmanager
def _loaded(version: DeviceVersion) -> Iterator[Any]:
    """The kernel of a text, whose source Triton reads by `inspect`: an entry of `linecache` is enough, no file."""
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import libdevice

    filename = f"<disc {version.key}>"
    linecache.cache[filename] = (len(version.text), None, version.text.splitlines(keepends=True), filename)
    space: dict[str, Any] = {"tl": tl, "triton": triton, "libdevice": libdevice, "__name__": "disc_kernels"}
    try:
        exec(compile(version.text, filename, "exec"), space)  # of text that this package wrote
        yield space[NAME]
    finally:
        linecache.cache.pop(filename, None)
