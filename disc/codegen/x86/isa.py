"""What code may assume of a CPU, by ISA name: a level of the x86-64 psABI and further features by their LLVM names."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import TargetError

_V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt")
LEVELS: dict[str, tuple[int, tuple[str, ...]]] = {
    "x86-64-v3": (8, _V3),
    "x86-64-v4": (16, (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
}


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
    if level not in LEVELS:
        raise TargetError(f"there is no code generator for {level!r}; the levels are {', '.join(LEVELS)}")
    lanes, level_features = LEVELS[level]
    return Isa(level, lanes, level_features, frozenset(features))
