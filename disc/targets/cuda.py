"""NVIDIA GPUs: a target for every generation that code is made for, whose host code runs on any x86-64-v3.

A user writes "sm_90"; the target's own name, "cuda:x86-64-v3+sm_90", says of which CPU the host code is, too.
"""

from __future__ import annotations

from dataclasses import replace

from disc.errors import TargetError
from disc.targets.cuda_thresholds import GPU, GPUS
from disc.targets.target import Feature, Target
from disc.targets.x86 import V3
from disc.targets.x86 import read_target as read_host

DEVICE = "cuda"
_BY_NAME = {f"sm_{gpu.architecture}": gpu for gpu in GPUS}
NAMES = tuple(_BY_NAME)


def read_target(name: str) -> Target:
    """The target of a name. Raises TargetError for a GPU that no code is generated for."""
    if name not in _BY_NAME:
        raise TargetError(f"there is no code generator for {name!r}; the GPUs are {', '.join(NAMES)}")
    host = read_host(V3)
    thresholds = replace(host.thresholds, device=GPU)
    return replace(host, device=DEVICE, features=(Feature(name, ""),), thresholds=thresholds, gpu=_BY_NAME[name])
