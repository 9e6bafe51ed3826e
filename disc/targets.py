"""ISA levels of this machine."""

from __future__ import annotations

from pathlib import Path

from disc.errors import TargetError

# What each x86-64 psABI level adds, by the names of /proc/cpuinfo.
LEVEL_FLAGS: dict[str, tuple[str, ...]] = {
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "popcnt"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}

# Features beyond the levels that code is generated for: LLVM's name → that of /proc/cpuinfo.
FEATURE_FLAGS: dict[str, str] = {"avx512bf16": "avx512_bf16"}
BF16_ISA = "x86-64-v4+avx512bf16"


def cpu_flags() -> frozenset[str]:
    """The CPU's flags as the kernel lists them; empty where there is no /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return frozenset()
    for line in path.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def host_isa() -> str:
    """The best ISA level that this CPU runs. Raises TargetError naming the missing features of the lowest one."""
    flags = cpu_flags()
    missing = [flag for flag in LEVEL_FLAGS["x86-64-v3"] if flag not in flags]
    if missing:
        raise TargetError(f"this CPU lacks {', '.join(missing)}: disc needs x86-64-v3 (AVX2 and FMA) at least")
    return "x86-64-v4" if all(flag in flags for flag in LEVEL_FLAGS["x86-64-v4"]) else "x86-64-v3"


def host_bf16_isa() -> str:
    """As `host_isa`, with the bf16 dot products of AVX-512 where this CPU has them."""
    isa = host_isa()
    return BF16_ISA if isa == "x86-64-v4" and FEATURE_FLAGS["avx512bf16"] in cpu_flags() else isa
