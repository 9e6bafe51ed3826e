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
PORTABLE = 80  # the architecture whose PTX later GPUs take
_BY_NAME = {f"sm_{gpu.architecture}": gpu for gpu in GPUS}
NAMES = tuple(_BY_NAME)

LAST_FORWARD = 90  # code for architectures below runs on later ones of the same generation; from here on Triton's is for its chip alone


def target_for(architecture: int) -> str:
    """The target whose code suits a GPU best (90: compute capability 9.0): its own, else a lower one of its generation, else portable
    PTX for sm_80, as the runtime chooses. Raises TargetError for a GPU that no code runs on."""
    known = [gpu.architecture for gpu in GPUS if gpu.architecture <= architecture]
    if architecture in known:
        return f"sm_{architecture}"
    lower = [each for each in known if each < LAST_FORWARD and each // 10 == architecture // 10]
    if not known:
        raise TargetError(f"no code is generated for GPUs of compute capability {architecture // 10}.{architecture % 10}")
    return f"sm_{max(lower, default=PORTABLE)}"


def read_target(name: str) -> Target:
    """The target of a name. Raises TargetError for a GPU that no code is generated for."""
    if name not in _BY_NAME:
        raise TargetError(f"there is no code generator for {name!r}; the GPUs are {', '.join(NAMES)}")
    host = read_host(V3)
    thresholds = replace(host.thresholds, device=GPU)
    return replace(host, device=DEVICE, features=(Feature(name, ""),), thresholds=thresholds, gpu=_BY_NAME[name])
