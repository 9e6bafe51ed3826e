"""The options of `torch.compile(backend="disc", options=...)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from disc.config import Options
from disc.errors import DiscError, TargetError, did_you_mean
from disc.targets.cuda import target_for
from disc.targets.select import select_targets

OPTIONS = ("threads", "dtype", "cache", "random", "tf32", "graphs")
WORDS = (*OPTIONS, "target", "strict", "memory")


@dataclass(frozen=True)
class Settings:
    """The options of `torch.compile(options=...)`. strict: an error of ours is raised instead of running the part in PyTorch. targets: of
    the device where the tensors lie, or those asked for, which must be of it; () before that is known. memory: a share of what is kept for
    a backward pass where time alone counts."""

    options: Options = field(default_factory=Options)
    strict: bool = False
    targets: tuple[str, ...] = ()
    memory: float = 1.0


def checked_settings(given: Mapping[str, object]) -> Settings:
    """Raises DiscError for an option that is not there, or makes no sense here."""
    if "packed" in given:
        raise DiscError(
            "torch.compile(options=...): packed is for artifacts, whose inputs it changes for a server: "
            "disc.compile(model, example_inputs, options=disc.Options(packed=True))"
        )
    unknown = sorted(set(given) - set(WORDS))
    if unknown:
        wrong = ", ".join(name + did_you_mean(name, WORDS) for name in unknown)
        raise DiscError(f"torch.compile(options=...): disc has no option {wrong}; there are {', '.join(WORDS)}")
    fields = {name: value for name, value in given.items() if name in OPTIONS}
    asked = given.get("target")
    names = () if asked is None else (asked,) if isinstance(asked, str) else tuple(cast("Sequence[str]", asked))
    if names:
        select_targets(names)
    options = dataclasses.replace(Options(), **fields)  # pyright: ignore[reportArgumentType]
    return Settings(options, bool(given.get("strict", False)), names, _share(given.get("memory", 1.0)))


def _share(memory: object) -> float:
    if isinstance(memory, bool) or not isinstance(memory, int | float) or not 0 <= memory <= 1:
        raise DiscError(f"torch.compile(options=...): memory is a share of what is kept for a backward pass, from 0 to 1, not {memory!r}")
    return float(memory)


def checked_targets(asked: tuple[str, ...], here: tuple[str, ...]) -> tuple[str, ...]:
    """Raises TargetError where a target asked for is of another device than the tensors."""
    device = select_targets(here)[0].device
    wrong = [name for name in asked if select_targets(name)[0].device != device]
    if wrong:
        raise TargetError(f"torch.compile(options=...): the tensors lie on the {device}, target {wrong[0]} is none of its")
    return asked


def targets_of(values: Iterable[object]) -> tuple[str, ...]:
    """Those of the GPUs where tensors of a graph lie; of this CPU where there is none. Raises TargetError for a GPU without code."""
    gpus = {value.device for value in values if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
    capabilities = {torch.cuda.get_device_capability(gpu) for gpu in gpus}
    return tuple(sorted({target_for(10 * major + minor) for major, minor in capabilities})) or ("native",)
