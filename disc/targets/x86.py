"""x86-64: the one table of CPU features, the targets that code is generated for, and what this machine has.

A target is named by a level of the x86-64 psABI and, after "+", further features by their LLVM names: "x86-64-v4+avx512bf16".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from disc.errors import TargetError
from disc.targets.target import Feature, Target
from disc.targets.x86_thresholds import CACHES, x86_thresholds

V3, V4 = "x86-64-v3", "x86-64-v4"
LEVELS = (V3, V4)  # the lowest first
# What level 3 adds to level 2, level 4 to level 3, and what comes beyond. The runtime's table of them is `ral/src/cpu/cpu.cc`.
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
    Feature("avx512bf16", "avx512_bf16", elements=("bf16",)),
    Feature("avx512vnni", "avx512_vnni", elements=("ui8",)),
    Feature("avx512fp16", "avx512_fp16"),
    Feature("avxvnni", "avx_vnni"),
    Feature("amx-tile", "amx_tile"),
    Feature("amx-bf16", "amx_bf16"),
    Feature("amx-int8", "amx_int8"),
)
_BY_NAME = {feature.name: feature for feature in FEATURES}
USED = tuple(feature for feature in FEATURES if feature.elements)  # code is generated for them
# Multiply-adds of a core per cycle: two instructions on whole registers. `vdpbf16ps` multiplies pairs, `vpdpbusd` fours.
_MACS = {V3: {"f32": 16, "f64": 8}, V4: {"f32": 32, "f64": 16}}
_FEATURE_MACS = {"avx512bf16": ("bf16", 64), "avx512vnni": ("ui8", 128)}

# Every target by its name, each better than those before it on a CPU that has it.
ISAS = (V3, V4, "x86-64-v4+avx512vnni", "x86-64-v4+avx512bf16", "x86-64-v4+avx512bf16+avx512vnni")


def read_target(name: str) -> Target:
    """The target of a name. Raises TargetError for a level or feature that no code is generated for."""
    level, *features = name.split("+")
    if level not in LEVELS or any(each not in [feature.name for feature in USED] for each in features):
        raise TargetError(f"there is no code generator for {name!r}; the targets are {', '.join(ISAS)}")
    return _target(level, [_BY_NAME[each] for each in features])


def _target(level: str, features: Sequence[Feature], native: bool = False) -> Target:
    rates = {**_MACS[level], **dict(_FEATURE_MACS[feature.name] for feature in features)}
    registers = 32 if level == V4 else 16
    return Target(
        device="cpu",
        level=level,
        level_features=level_features(level),
        features=tuple(features),
        lanes=16 if level == V4 else 8,
        registers=registers,
        caches=CACHES,
        macs=tuple(rates.items()),
        thresholds=x86_thresholds(registers, CACHES),
        native=native,
    )


def level_features(level: str) -> tuple[str, ...]:
    """LLVM's names of what a level has beyond level 2, those of the levels below included."""
    return tuple(feature.name for feature in FEATURES if feature.level in LEVELS[: LEVELS.index(level) + 1])


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


def native_target() -> Target:
    """This machine, with every feature of it that code is generated for.

    Raises TargetError naming the missing features of the lowest level.
    """
    flags = cpu_flags()
    missing = missing_flags(V3, flags)
    if missing:
        raise TargetError(f"this CPU lacks {', '.join(missing)}: disc needs x86-64-v3 (AVX2 and FMA) at least")
    if missing_flags(V4, flags):
        return _target(V3, [], native=True)
    return _target(V4, [feature for feature in USED if feature.flag in flags], native=True)


def host_isa(elements: Collection[str] = ()) -> str:
    """The name of this machine for a program whose products have left operands of these elements. Raises as `native_target`."""
    return native_target().for_elements(elements).name
