"""ISA levels of this machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from disc.errors import TargetError

# What each x86-64 psABI level adds, by the names of /proc/cpuinfo.
LEVEL_FLAGS: dict[str, tuple[str, ...]] = {
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "popcnt"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}

# Features beyond the levels that code is generated for on this machine: LLVM's name → that of /proc/cpuinfo. (Not AMX: no micro-kernel
# uses it, so a target that asks for it only says so in `explain`.)
FEATURE_FLAGS: dict[str, str] = {"avx512bf16": "avx512_bf16", "avx512vnni": "avx512_vnni"}

# Every ISA that code is generated for, each better than those before it on a CPU that has it.
ISAS = (
    "x86-64-v3",
    "x86-64-v4",
    "x86-64-v4+avx512vnni",
    "x86-64-v4+avx512bf16",
    "x86-64-v4+avx512bf16+avx512vnni",
    "x86-64-v4+avx512bf16+avx512vnni+amx-tile+amx-bf16+amx-int8",
)


def cpu_flags() -> frozenset[str]:
    """The CPU's flags as the kernel lists them; empty where there is no /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return frozenset()
    for line in path.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def host_isa(features: Collection[str] = ()) -> str:
    """The best ISA level that this CPU runs, with those of `features` (LLVM's names) that it has.

    Raises TargetError naming the missing features of the lowest level.
    """
    flags = cpu_flags()
    missing = [flag for flag in LEVEL_FLAGS["x86-64-v3"] if flag not in flags]
    if missing:
        raise TargetError(f"this CPU lacks {', '.join(missing)}: disc needs x86-64-v3 (AVX2 and FMA) at least")
    if any(flag not in flags for flag in LEVEL_FLAGS["x86-64-v4"]):
        return "x86-64-v3"
    return "+".join(["x86-64-v4", *(name for name, flag in FEATURE_FLAGS.items() if name in features and flag in flags)])


def named_targets(target: str | Sequence[str], *, mixed: bool) -> list[str]:
    """The targets with "native" put in terms of this machine, for a compile on another one. mixed: with types narrower than f32.

    Raises TargetError.
    """
    names = [target] if isinstance(target, str) else list(target)
    features = tuple(FEATURE_FLAGS) if mixed else ()
    return list(dict.fromkeys(host_isa(features) if name == "native" else name for name in names))
