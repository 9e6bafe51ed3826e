"""The families of schedules of products and of attention on GPUs: those that are worth compiling on each kind of GPU, of which the model
keeps some.

Those of products stay within the registers and the shared memory of their GPU with a bias and GELU behind the product, as was seen by
compiling them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from disc.speculation.block_schedules import AttentionBlock as A
from disc.speculation.block_schedules import BlockSchedule as B
from disc.speculation.block_trees import ALONG_K, BASE, FAST, HALF, SINGLE

_PARTS = (2, 4, 8, 16)

ANY_PRODUCT = B(64, 64, 32, 4, 3)  # compiles for every GPU without spills, and is right for any size


FEW_ROWS = 8  # at most, for which blocks without tensor cores are worth anything


def _split(*schedules: B) -> tuple[B, ...]:
    """These, and with parts of k."""
    return (*schedules, *(replace(each, parts=parts) for each in schedules for parts in _PARTS))


# Of few rows, whose time is that of loading the right factor: with steps of it in shared memory ahead, or straight to registers.
_STREAMED_HALF = _split(B(1, 64, 64, 4, 4), B(1, 64, 64, 4, 1), B(2, 64, 64, 4, 4), B(4, 32, 64, 4, 4))
_STREAMED_SINGLE = _split(B(1, 64, 64, 4, 3), B(1, 64, 64, 4, 1), B(2, 64, 64, 4, 3), B(4, 32, 64, 4, 3), B(8, 32, 64, 4, 3))
_STREAMED: Mapping[str, tuple[B, ...]] = {HALF: _STREAMED_HALF, SINGLE: _STREAMED_SINGLE, FAST: _STREAMED_SINGLE}


def _persistent(*schedules: B) -> tuple[B, ...]:
    """These, and with as many programs as SMs."""
    return (*schedules, *(replace(each, persistent=True) for each in schedules))


def _mapped(*schedules: B) -> tuple[B, ...]:
    """The same, whose factors tensor maps load."""
    return tuple(replace(each, mapped=True) for each in schedules)


_SMALL_HALF = _split(B(16, 64, 128, 4, 4), B(32, 64, 64, 4, 4), B(64, 64, 64, 4, 4))
_AMPERE_HALF = (*_SMALL_HALF, B(64, 128, 32, 4, 4), B(128, 64, 32, 4, 4), B(128, 128, 32, 8, 4), B(128, 256, 32, 8, 3, halves=2))
_SMALL_SINGLE = _split(B(16, 64, 64, 4, 3), B(32, 64, 32, 4, 3))
_AMPERE_SINGLE = (*_SMALL_SINGLE, B(64, 64, 32, 8, 3), B(64, 128, 32, 8, 3), B(128, 64, 32, 8, 3))
_AMPERE_FAST = (*_SMALL_SINGLE, B(64, 64, 32, 8, 3), B(64, 128, 32, 8, 3), B(128, 128, 32, 16, 3))

# Those for tensor cores.
_TILED: Mapping[int, Mapping[str, tuple[B, ...]]] = {
    80: {HALF: (*_AMPERE_HALF, *_persistent(B(128, 128, 64, 8, 3))), SINGLE: _AMPERE_SINGLE, FAST: _AMPERE_FAST},
    86: {HALF: _AMPERE_HALF, SINGLE: _AMPERE_SINGLE, FAST: _AMPERE_FAST},
    89: {HALF: _AMPERE_HALF, SINGLE: _AMPERE_SINGLE, FAST: _AMPERE_FAST},
    90: {
        HALF: (
            *_split(
                B(16, 64, 128, 4, 4), B(16, 32, 256, 4, 4), B(32, 32, 128, 4, 4), B(64, 32, 128, 4, 4), B(64, 64, 64, 4, 4),
                B(64, 64, 128, 4, 4), B(64, 128, 128, 4, 4), B(128, 128, 64, 8, 4),
            ),
            *_persistent(B(128, 256, 64, 8, 3, halves=2)), B(128, 256, 64, 8, 4, halves=2), B(128, 128, 64, 8, 4, persistent=True),
            *_mapped(B(64, 128, 128, 4, 4), *_persistent(B(128, 128, 64, 8, 4)), *_persistent(B(128, 256, 64, 8, 3, halves=2))),
        ),
        SINGLE: (*_SMALL_SINGLE, B(64, 64, 32, 4, 3), B(64, 128, 32, 8, 3), B(128, 128, 32, 8, 3)),
        FAST: (*_SMALL_SINGLE, B(64, 64, 32, 4, 4), B(64, 128, 32, 8, 4), B(128, 128, 32, 8, 4)),
        ALONG_K[SINGLE]: (
            *_split(B(16, 64, 64, 4, 3), B(16, 32, 128, 4, 4), B(64, 32, 64, 4, 3), B(64, 64, 32, 4, 3)), B(128, 64, 32, 4, 4),
            B(128, 128, 32, 8, 3),
        ),
        ALONG_K[FAST]: (
            *_split(B(16, 64, 64, 4, 3), B(64, 32, 64, 4, 4), B(64, 64, 64, 4, 4), B(64, 128, 32, 4, 4), B(64, 128, 64, 4, 4)),
            B(128, 128, 32, 8, 3), B(128, 128, 32, 8, 6), B(128, 256, 32, 8, 3, halves=2), B(128, 256, 32, 8, 4, halves=2),
            *_mapped(*_persistent(B(128, 128, 32, 8, 3)), B(128, 256, 32, 8, 4, halves=2)),
        ),
    },
    100: {
        HALF: (
            *_SMALL_HALF, *_split(B(64, 128, 64, 4, 4)), *_persistent(B(128, 128, 64, 8, 4)), B(128, 256, 64, 8, 3, halves=2),
            *_mapped(*_persistent(B(128, 128, 64, 8, 4)), B(128, 256, 64, 8, 3, halves=2)),
        ),
        SINGLE: (*_SMALL_SINGLE, B(64, 64, 32, 4, 3), B(64, 128, 32, 8, 3), B(128, 128, 32, 8, 3)),
        FAST: (*_SMALL_SINGLE, B(64, 64, 32, 4, 4), B(64, 128, 32, 8, 4), B(128, 128, 32, 8, 4)),
    },
    120: {HALF: (*_AMPERE_HALF, *_mapped(*_persistent(B(128, 128, 32, 8, 4)))), SINGLE: _AMPERE_SINGLE, FAST: _AMPERE_FAST},
}  # fmt: skip
FAMILIES: Mapping[int, Mapping[str, Sequence[B]]] = {
    architecture: {kind: (*tiled, *_STREAMED[BASE[kind]]) for kind, tiled in kinds.items()} for architecture, kinds in _TILED.items()
}


def _shared(*blocks: A) -> tuple[A, ...]:
    """These, and the last one with parts of the keys."""
    return (*blocks, *(replace(blocks[-1], parts=parts) for parts in _PARTS))


# Of attention, by the length of heads: what compiles with a mask of numbers without spills, and within the shared memory of each GPU.
_HALF_HEADS = {
    64: _shared(A(128, 64, 8, 3), A(64, 64, 4, 3), A(32, 64, 4, 3), A(16, 64, 4, 3)),
    128: _shared(A(64, 64, 8, 2), A(64, 32, 4, 2), A(16, 64, 4, 2)),
    256: _shared(A(64, 32, 8, 2), A(32, 32, 4, 2), A(16, 32, 4, 2)),
}
_SINGLE_HEADS = {
    64: _shared(A(32, 64, 8, 2), A(32, 32, 4, 2), A(16, 64, 4, 2)),
    128: _shared(A(32, 32, 8, 2), A(16, 16, 4, 2)),
}
_LARGER: Mapping[tuple[int, str, int], tuple[A, ...]] = {  # where tensor cores read operands from shared memory
    (90, HALF, 128): (A(128, 64, 8, 2), A(64, 64, 4, 2)),
    (90, SINGLE, 64): (A(64, 32, 8, 2),),
    (100, SINGLE, 64): (A(64, 32, 8, 2),),
}


def attention_family(architecture: int, kind: str, head: int) -> tuple[A, ...]:
    """The schedules of attention for heads of up to so many elements."""
    own = HALF if kind == HALF else SINGLE
    return (*_LARGER.get((architecture, own, head), ()), *(_HALF_HEADS if kind == HALF else _SINGLE_HEADS)[head])
