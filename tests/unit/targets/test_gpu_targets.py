"""Which target's code a GPU is given."""

import pytest

from disc.errors import TargetError
from disc.targets.cuda import target_for


def test_own_lower_or_portable_code() -> None:
    wanted = {80: "sm_80", 86: "sm_86", 87: "sm_86", 89: "sm_89", 90: "sm_90", 100: "sm_100", 103: "sm_80", 120: "sm_120", 121: "sm_80"}
    assert {architecture: target_for(architecture) for architecture in wanted} == wanted


def test_a_gpu_that_is_too_old() -> None:
    with pytest.raises(TargetError, match=r"compute capability 7\.5"):
        target_for(75)
