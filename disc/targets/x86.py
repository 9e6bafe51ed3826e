"""x86-64: the one table of CPU features, what code may assume of a CPU by the name of its ISA, and what this machine has.

An ISA is a level of the x86-64 psABI and, after "+", further features by their LLVM names: "x86-64-v4+avx512bf16".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from disc.errors import TargetError


@dataclass(frozen=True)
class Feature:
    """name: LLVM's, which the runtime uses too (`ral/src/cpu/cpu.cc`); flag: that of /proc/cpuinfo; level: the first level that has it, ""
    for none; used: code is generated for it where a level does not say so."""

    name: str
    flag: str
    level: str = ""
    used: bool = False


V3, V4 = "x86-64-v3", "x86-64-v4"
# Of what level 3 adds to level 2, and so on. Widest registers, in f32 lanes: `LANES`.
FEATURES: tuple[Feature, ...] = (
    Feature("avx", "avx", V3),
    Feature("avx2", "avx2", V3),
    Feature("bmi", "bmi1", V3),
    Feature("bmi2", "bmi2", V3),
    Feature("f16c", "f16c", V3),
    Feature("fma", "fma", V3),
    Feature("lzcnt", "abm", V3),
    Feature("movbe", "movbe", V3),
    Feature("popcnt", "popcnt", V3),
    Feature("avx512f", "avx512f", V4),
    Feature("avx512bw", "avx512bw", V4),
    Feature("avx512cd", "avx512cd", V4),
    Feature("avx512dq", "avx512dq", V4),
    Feature("avx512vl", "avx512vl", V4),
    Feature("avx512bf16", "avx512_bf16", used=True),
    Feature("avx512vnni", "avx512_vnni", used=True),
    Feature("avx512fp16", "avx512_fp16"),
    Feature("avxvnni", "avx_vnni"),
    Feature("amx-tile", "amx_tile"),
    Feature("amx-bf16", "amx_bf16"),
    Feature("amx-int8", "amx_int8"),
)
LANES = {V3: 8, V4: 16}  # f32 lanes of the widest registers, by level, the lowest first
USED = tuple(feature.name for feature in FEATURES if feature.used)

# Every ISA that code is generated for, each better than those before it on a CPU that has it.
ISAS = (
    V3,
    V4,
    "x86-64-v4+avx512vnni",
    "x86-64-v4+avx512bf16",
    "x86-64-v4+avx512bf16+avx512vnni",
    "x86-64-v4+avx512bf16+avx512vnni+amx-tile+amx-bf16+amx-int8",
)


@dataclass(frozen=True)
class Isa:
    """level: "x86-64-v4"; lanes: f32 in a vector; level_features: LLVM names of what the level has; features: what comes on top."""

    level: str
    lanes: int
    level_features: tuple[str, ...]
    features: frozenset[str]

    @property
    def llvm_features(self) -> tuple[str, ...]:
        """All features by their LLVM names."""
        return (*self.level_features, *sorted(self.features))


def read_isa(name: str) -> Isa:
    """ "x86-64-v4+avx512bf16" → level and features. Raises TargetError for a level that has no code generator."""
    level, *features = name.split("+")
    if level not in LANES:
        raise TargetError(f"there is no code generator for {level!r}; the levels are {', '.join(LANES)}")
    return Isa(level, LANES[level], level_features(level), frozenset(features))


def level_features(level: str) -> tuple[str, ...]:
    """LLVM's names of what a level has beyond level 2, those of the levels below included."""
    below = tuple(LANES)[: tuple(LANES).index(level) + 1]
    return tuple(feature.name for feature in FEATURES if feature.level in below)


def cpu_flags() -> frozenset[str]:
    """The CPU's flags as the kernel lists them; empty where there is no /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return frozenset()
    for line in path.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def missing_flags(level: str, flags: Collection[str]) -> list[str]:
    """What a CPU with these flags lacks of what the level adds to the one below, by the names of /proc/cpuinfo."""
    return [feature.flag for feature in FEATURES if feature.level == level and feature.flag not in flags]


def further_flags(flags: Collection[str]) -> list[str]:
    """The features that a CPU with these flags has beyond all levels, by the names of /proc/cpuinfo."""
    return [feature.flag for feature in FEATURES if not feature.level and feature.flag in flags]


def host_isa(features: Collection[str] = ()) -> str:
    """The best ISA level that this CPU runs, with those of `features` (LLVM's names) that it has.

    Raises TargetError naming the missing features of the lowest level.
    """
    flags = cpu_flags()
    missing = missing_flags(V3, flags)
    if missing:
        raise TargetError(f"this CPU lacks {', '.join(missing)}: disc needs x86-64-v3 (AVX2 and FMA) at least")
    if missing_flags(V4, flags):
        return V3
    return "+".join([V4, *(each.name for each in FEATURES if each.used and each.name in features and each.flag in flags)])


def named_targets(target: str | Sequence[str], *, mixed: bool) -> list[str]:
    """The targets with "native" put in terms of this machine, for a compile on another one. mixed: with types narrower than f32.

    Raises TargetError.
    """
    names = [target] if isinstance(target, str) else list(target)
    features = USED if mixed else ()
    return list(dict.fromkeys(host_isa(features) if name == "native" else name for name in names))
