"""The generator against the known answers of its authors (Random123, `kat_vectors`: philox4x32-10)."""

import numpy as np
import pytest

from disc.ir.philox import philox, words_at

ONES = 0xFFFFFFFF
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], block: tuple[int, ...]) -> None:
    found = philox([np.array(word, np.uint32) for word in counter], [np.array(word, np.uint32) for word in key])
    assert tuple(int(word) for word in found) == block


def test_a_counter_is_the_position_and_the_stream() -> None:
    position, seed = np.array([0x85A308D3243F6A88 - (1 << 64)], np.int64), np.array(0x299F31D0A4093822, np.int64)
    words = [int(words_at(position, seed, 0x0370734413198A2E, number)[0]) for number in range(4)]
    assert tuple(words) == KNOWN[2][2]
