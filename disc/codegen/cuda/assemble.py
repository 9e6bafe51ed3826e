"""Triton texts → cubins, without a GPU: what Triton and ptxas need is in the wheel of `triton`."""

from __future__ import annotations

import hashlib
import linecache
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from disc.codegen.cuda.kernel import NAME, DeviceVersion
from disc.errors import CompilerBug, TargetError, how_to_install

ARCHITECTURES = (80, 86, 89, 90, 100, 120)  # of `sm_...`


@dataclass(frozen=True)
class Cubin:
    """Code of one version for one GPU.

    threads, shared: threads of a block, and bytes of memory that they share; parameters: (offset, size) in bytes of each, the last two
    Triton's own scratch pointers.
    """

    code: bytes
    threads: int
    shared: int
    parameters: tuple[tuple[int, int], ...]


def assemble(version: DeviceVersion, architecture: int) -> Cubin:
    """Compiles a version for `sm_<architecture>`.

    Raises TargetError where Triton is not installed, CompilerBug for a text that it refuses, and where the code's parameters are not the
    version's.
    """
    triton = _triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = _load(version.text)
    signature = {each.name: each.type for each in version.parameters}
    options = {
        "num_warps": version.warps,
        "num_stages": version.stages,
        "enable_fp_fusion": True,
        "enable_reflect_ftz": False,  # the default flushes denormals in libdevice's functions
    }
    places = {each.name: number for number, each in enumerate(version.parameters)}
    attributes = {(places[name],): [["tt.divisibility", number]] for name, number in version.hints}
    try:
        built = triton.compile(ASTSource(function, signature, {}, attributes), target=GPUTarget("cuda", architecture, 32), options=options)
    except Exception as error:  # Triton raises anything
        raise CompilerBug(f"Triton refuses a kernel for sm_{architecture}: {error}\n{version.text}") from error
    code = built.asm["cubin"]
    found = Cubin(code, 32 * built.metadata.num_warps, built.metadata.shared, tuple(parameters(code)))
    sizes = [8 if each.type.startswith("*") or each.type == "i64" else 4 for each in version.parameters]
    if [size for _, size in found.parameters] != [*sizes, 8, 8]:
        raise CompilerBug(f"the code for sm_{architecture} takes parameters of {found.parameters}, the kernel has {version.parameters}")
    return found


def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise TargetError(f"code for GPUs needs Triton; install it with: {how_to_install('cuda')}") from error
    from triton import knobs

    knobs.compilation.disable_line_info = True  # a third of the size
    return triton


def _load(text: str) -> Any:
    """The kernel of a text, whose source Triton reads by `inspect`: an entry of `linecache` is enough, no file."""
    import triton.language as tl
    from triton.language.extra.cuda import libdevice

    filename = f"<disc {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    space: dict[str, Any] = {"tl": tl, "triton": _triton(), "libdevice": libdevice, "__name__": "disc_kernels"}
    exec(compile(text, filename, "exec"), space)  # of text that this package wrote
    return space[NAME]


def parameters(cubin: bytes) -> list[tuple[int, int]]:
    """(offset, size) of every parameter: attribute 0x17, KPARAM_INFO, of the section .nv.info.<function>."""
    info, at, found = _sections(cubin)[f".nv.info.{NAME}"], 0, dict[int, tuple[int, int]]()
    while at < len(info):
        length = struct.unpack_from("<H", info, at + 2)[0] if info[at] == 4 else 0
        if info[at : at + 2] == b"\x04\x17":
            _, ordinal, offset, word = struct.unpack_from("<IHHI", info, at + 4)
            found[ordinal] = (offset, word >> 18)
        at += 4 + length
    return [found[ordinal] for ordinal in sorted(found)]


def _sections(elf: bytes) -> Mapping[str, bytes]:
    """The contents of the sections of an ELF file by name."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", elf, table + number * size) for number in range(count)]
    label = heads[names][4]
    return {elf[label + head[0] :].split(b"\0", 1)[0].decode(): elf[head[4] : head[4] + head[5]] for head in heads}
