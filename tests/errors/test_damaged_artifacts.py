"""Random damage of a real compiled artifact: every case refused by both readers, none gives a number, none crashes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from disc.artifact import file as artifact
from disc.errors import ArtifactError
from disc.ral import executable

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0" / "linear.disc"


def flipped_bit(content: bytearray, generator: random.Random) -> None:
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)


def flipped_bits(content: bytearray, generator: random.Random) -> None:
    for _ in range(generator.randint(2, 64)):
        flipped_bit(content, generator)


def truncated(content: bytearray, generator: random.Random) -> None:
    del content[generator.randrange(len(content)) :]


def removed(content: bytearray, generator: random.Random) -> None:
    start = generator.randrange(len(content))
    del content[start : start + generator.randint(1, 4096)]


def inserted(content: bytearray, generator: random.Random) -> None:
    start = generator.randrange(len(content))
    content[start:start] = generator.randbytes(generator.randint(1, 4096))


def zeroed(content: bytearray, generator: random.Random) -> None:
    start = generator.randrange(len(content))
    size = min(generator.randint(1, 4096), len(content) - start)
    content[start : start + size] = bytes(size)


def moved(content: bytearray, generator: random.Random) -> None:
    """A sector that was written in the place of another one."""
    sectors = len(content) // 512
    source, target = (512 * generator.randrange(sectors) for _ in range(2))
    content[target : target + 512] = content[source : source + 512]


WAYS = (flipped_bit, flipped_bits, truncated, removed, inserted, zeroed, moved)


def call(path: Path) -> None:
    executable.load(path, threads=1)(np.zeros((2, 8), np.float32))


def refuse_all(folder: Path, count: int, seed: int) -> None:
    good = GOLDEN.read_bytes()
    path = folder / "a.disc"
    generator = random.Random(seed)
    tried = 0
    while tried < count:
        content = bytearray(good)
        generator.choice(WAYS)(content, generator)
        if content == good:  # zeros over zeros
            continue
        tried += 1
        path.write_bytes(content)
        for reader in (artifact.verify, call):
            with pytest.raises(ArtifactError, match=r"header|section|padding"):
                reader(path)


def test_random_damage_is_refused(tmp_path: Path) -> None:
    refuse_all(tmp_path, 500, seed=1)


@pytest.mark.long
def test_much_random_damage_is_refused(tmp_path: Path) -> None:
    refuse_all(tmp_path, 10_000, seed=2)
