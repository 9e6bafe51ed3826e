"""What a program is compiled for, as a value: made once, before anything else of a compile, and handed to all that depends on it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from disc.targets.thresholds import Caches, Gpu, InputLimits, Thresholds


@dataclass(frozen=True)
class Feature:
    """name: LLVM's, which the runtime uses too; flag: that of /proc/cpuinfo; level: the first level that has it, "" for none. elements: of
    left operands of products that code multiplies faster with it, where a level does not say so."""

    name: str
    flag: str
    level: str = ""
    elements: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """One kind of processor that kernels are made for.

    device: "cpu". level: the least that its processors have ("x86-64-v4"); level_features: what that means, by LLVM's names; features: what
    they have beyond it. native: this machine, of whose features a program keeps those that it needs. lanes: f32 in a vector register;
    registers: vector registers; macs: multiply-adds of a core per cycle, by element of the left operand as instructions
    take it ("f32", "f64", "bf16", "ui8": products of bytes summed in i32). thresholds: what its kernels decide by.
    gpu: of a target whose kernels run on one; the rest, but for the thresholds of the device, is then of the CPU that runs the host code.
    tf32: its products of f32 round their operands to tf32. trees: the text of the trees of schedules that `disc tune` made for GPUs of its
    kind (`speculation/block_trees.py`), "" where there are none.
    """

    device: str
    level: str
    level_features: tuple[str, ...]
    features: tuple[Feature, ...]
    lanes: int
    registers: int
    caches: Caches
    macs: tuple[tuple[str, int], ...]
    thresholds: Thresholds
    native: bool = False
    gpu: Gpu | None = None
    tf32: bool = False
    trees: str = ""

    @property
    def name(self) -> str:
        """ "x86-64-v4+avx512bf16": names the section of the artifact. That of another device than the CPU begins with its name and a colon;
        what follows is of the CPU that runs its host code."""
        isa = "+".join([self.level, *self.feature_names])
        return isa if self.device == "cpu" else f"{self.device}:{isa}"

    @property
    def label(self) -> str:
        """What a user writes for it: "sm_90", or the name."""
        return self.name if self.gpu is None else f"sm_{self.gpu.architecture}"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """LLVM's names of the features beyond the level."""
        return tuple(feature.name for feature in self.features)

    def __str__(self) -> str:
        return self.name

    def macs_per_cycle(self, element: str) -> int:
        """Multiply-adds of a core per cycle on operands of this element; those of f32 where the table has no other."""
        return dict(self.macs).get(element, dict(self.macs)["f32"])

    def for_elements(self, elements: Collection[str]) -> Target:
        """The target for a program whose products have left operands of these elements: the native one leaves out what does not help, so
        that its code runs on more machines."""
        if not self.native:
            return self
        return replace(self, features=tuple(each for each in self.features if set(each.elements) & set(elements)))

    def reading(self, limits: InputLimits) -> Target:
        """The target with other limits of what a fusion reads."""
        device = self.thresholds.device
        fusion = replace(device.fusion, most_inputs=limits)
        return replace(self, thresholds=replace(self.thresholds, device=replace(device, fusion=fusion)))

    def host(self) -> Target:
        """The CPU that runs the host code, as a target."""
        return self if self.device == "cpu" else replace(self, device="cpu", features=(), gpu=None, trees="")
