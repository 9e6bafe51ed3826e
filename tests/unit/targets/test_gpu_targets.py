"""Which target's code a GPU is given."""

import pytest

from disc.codegen.cuda.rows import MOST_NARROW
from disc.errors import TargetError
from disc.speculation.block_families import FAMILIES, attention_family
from disc.speculation.block_trees import ATTENTION
from disc.targets.cuda import target_for
from disc.targets.cuda_thresholds import KERNELS


def test_own_lower_or_portable_code() -> None:
    wanted = {80: "sm_80", 86: "sm_86", 87: "sm_86", 89: "sm_89", 90: "sm_90", 100: "sm_100", 103: "sm_80", 120: "sm_120", 121: "sm_80"}
    assert {architecture: target_for(architecture) for architecture in wanted} == wanted


def test_a_gpu_that_is_too_old() -> None:
    with pytest.raises(TargetError, match=r"compute capability 7\.5"):
        target_for(75)


def test_positions_of_32_bits_have_room_for_what_is_none() -> None:
    """Extents are rounded up to blocks, and where programs share them to a whole block of each: none of these positions wraps."""
    products = [each for kinds in FAMILIES.values() for family in kinds.values() for each in family]
    attention = [each for gpu in FAMILIES for kind, head in ATTENTION for each in attention_family(gpu, kind, head)]
    rounded = [
        *(max(each.rows * each.group, each.columns, each.depth * (each.parts + 1)) for each in products),
        *(max(each.rows, each.keys * (each.parts + 1)) for each in attention),
        KERNELS.loop[0], *(columns for columns, _, _ in KERNELS.rows), KERNELS.looped[0] * (max(KERNELS.row_parts) + 1),
        KERNELS.columns[0] * (max(KERNELS.column_parts) + 1), KERNELS.columns[1] * (max(KERNELS.column_parts) + 1),
        *(max(sizes) for sizes in KERNELS.scans), KERNELS.scatter[0], max(KERNELS.ranks), max(KERNELS.grouped), max(KERNELS.segments),
    ]  # fmt: skip
    assert MOST_NARROW + 2 * max(rounded) <= 1 << 31  # twice: a loop goes one step beyond
