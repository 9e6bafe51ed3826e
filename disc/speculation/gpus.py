"""The GPUs of this machine, as tuning sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from disc.errors import TargetError
from disc.ral import _ral
from disc.targets.cuda import read_target, target_for
from disc.targets.thresholds import Gpu


@dataclass(frozen=True)
class Device:
    """number: as in "cuda:0"; product: its name; gpu: what is known of the kind whose code runs on it, with its own SMs."""

    number: int
    product: str
    gpu: Gpu


def find_device(name: str) -> Device:
    """The GPU "cuda" or "cuda:N". Raises TargetError for another text, and where there is none of that number."""
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise TargetError(f"--device {name}: it is cpu, cuda, or cuda:N")
    number, found = int(match[1] or 0), _ral.find_gpus()["gpus"]
    if number >= len(found):
        raise TargetError(f"there is no GPU cuda:{number}: the NVIDIA driver finds {len(found)}")
    product, architecture, sms = found[number][:3]
    gpu = read_target(target_for(architecture)).gpu
    assert gpu is not None
    return Device(number, product, replace(gpu, sms=sms))
