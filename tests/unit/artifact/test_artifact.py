"""The artifact file: what is written is read back, and no damage goes unnoticed by either reader."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from programs import COPY, build, copy_manifest

from disc.artifact import file as artifact
from disc.errors import ArtifactError, DiscError
from disc.ral import executable


def run(path: Path) -> None:
    """The C++ reader: loads and calls."""
    exe = executable.load(path, threads=1)
    assert exe(np.ones(3, np.float32)).tolist() == [1, 1, 1]


READERS: list[Callable[[Path], None]] = [artifact.verify, run]


def weights() -> list[artifact.NamedWeight]:
    big = np.arange(100, dtype=np.float32)
    return [
        ("first", "f32", big),
        ("same storage", "f32", big),
        ("transposed", "f32", big.reshape(10, 10).T),
        ("bits", "bf16", np.arange(3, dtype=np.uint16)),
        ("none", "i64", np.empty((0, 5), np.int64)),
        ("scalar", "i1", np.array(True)),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "a.disc"
    code = {"x86-64-v3": build(COPY, "BYTES=4"), "x86-64": b"never loaded"}
    artifact.write_artifact(target, copy_manifest("f32", 1), code, weights(), stablehlo=b"ML\xefR and more")
    return target


def test_what_is_written_is_read_back(path: Path) -> None:
    for reader in READERS:
        reader(path)
    described = artifact.read_manifest(path)
    assert described["inputs"] == [{"name": "x", "dtype": "f32", "dims": ["S0"]}]
    assert described.get("code") == ["x86-64", "x86-64-v3"]
    assert artifact.read_section(path, "stablehlo") == b"ML\xefR and more"
    assert artifact.read_section(path, "code/x86-64") == b"never loaded"
    section = next(section for section in artifact.read_sections(path) if section.name == "weights")
    assert section.offset % 4096 == 0
    content = path.read_bytes()[section.offset :]
    table = described.get("weights", [])
    for (name, dtype, array), record in zip(weights(), table, strict=True):
        assert (record["name"], record["dtype"], record["shape"]) == (name, dtype, list(array.shape))
        assert record["offset"] % 64 == 0
        assert content[record["offset"] : record["offset"] + record["size"]] == array.tobytes()
    assert table[0]["offset"] == table[1]["offset"] != table[2]["offset"]


def test_equal_input_gives_equal_bytes(path: Path) -> None:
    before = path.read_bytes()
    code = {"x86-64": b"never loaded", "x86-64-v3": build(COPY, "BYTES=4")}
    artifact.write_artifact(path, copy_manifest("f32", 1), code, weights(), stablehlo=b"ML\xefR and more")
    assert path.read_bytes() == before


def small_artifact(path: Path) -> bytes:
    """An artifact with code too small to be an ELF file, so that every byte of it can be tried."""
    artifact.write_artifact(path, copy_manifest("f32", 1), {"x86-64": b"code"}, [("w", "f32", np.ones(20, np.float32))])
    return path.read_bytes()


def test_every_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.disc"
    content = small_artifact(path)
    assert len(content) < 5000
    weights_at = artifact.read_sections(path)[-1].offset
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"header|section|padding"):
            artifact.verify(path)
        if place < weights_at:  # the weights are checked by the first call, which this code does not get to
            with pytest.raises(
                ArtifactError,
                match=r"header|section '(manifest|signature/x86-64|code/x86-64)': hash|padding|section '.*' has a wrong place",
            ):
                executable.load(path)


def test_flipped_bytes_of_a_running_artifact_are_refused(path: Path) -> None:
    content = path.read_bytes()
    weights_at = artifact.read_sections(path)[-1].offset
    generator = random.Random(1)
    places = [*range(weights_at, len(content)), *(generator.randrange(weights_at) for _ in range(1000))]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        for reader in READERS:
            with pytest.raises(ArtifactError):
                reader(path)


def test_damaged_weights_are_named_and_stay_refused(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    exe = executable.load(path)
    for _ in range(2):
        with pytest.raises(ArtifactError, match="section 'weights': hash differs"):
            exe(np.ones(3, np.float32))
    with pytest.raises(ArtifactError, match="section 'weights': hash differs"):
        exe.save(path)


def test_truncations_and_additions_are_refused(path: Path) -> None:
    content = path.read_bytes()
    lengths = [*range(200), *range(200, len(content), 97), len(content) - 1]
    for damaged in (*(content[:length] for length in lengths), content + b"\0", content + content):
        path.write_bytes(damaged)
        for reader in READERS:
            with pytest.raises(ArtifactError, match="header"):
                reader(path)


def test_other_versions_are_refused(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for version, message in ((3, "format version 3 is newer than this runtime reads"), (0, "format version 0 is no longer read; rebuild")):
        content[8:12] = struct.pack("<I", version)
        path.write_bytes(content)
        for reader in READERS:
            with pytest.raises(ArtifactError, match=message):
                reader(path)


def test_tampered_tables_are_refused(tmp_path: Path) -> None:
    """Files with right hashes but hostile tables: no place outside the file, no overlap, no wrong count gets through."""
    import hashlib

    path = tmp_path / "a.disc"
    content = small_artifact(path)
    count = len(artifact.read_sections(path))
    generator = random.Random(2)
    hostile = [0, 1, 63, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1, len(content), len(content) + 64]
    for _ in range(300):
        damaged = bytearray(content)
        place = 32 + generator.randrange(count) * 112 + generator.choice([64, 72])
        damaged[place : place + 8] = struct.pack("<Q", generator.choice(hostile))
        end = 32 + count * 112
        damaged[end : end + 32] = hashlib.sha256(damaged[:end]).digest()
        if damaged == content:
            continue
        path.write_bytes(damaged)
        for reader in READERS:
            with pytest.raises(ArtifactError, match=r"header|section"):
                reader(path)


def test_tampered_signatures_are_refused(tmp_path: Path) -> None:
    """Random changes to the signature behind a right hash: refused or harmless, never a crash."""
    path = tmp_path / "a.disc"
    generator = random.Random(3)
    original = artifact.signature_bytes
    for _ in range(500):

        def changed(described: artifact.Manifest) -> bytes:
            content = bytearray(original(described))
            for _ in range(generator.randint(1, 3)):
                content[generator.randrange(len(content))] = generator.choice([0, 1, 255, generator.randrange(256)])
            return bytes(content[: generator.randint(0, len(content))] if generator.random() < 0.3 else content)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(artifact, "signature_bytes", changed)
            artifact.write_artifact(path, copy_manifest("f32", 1), {"x86-64-v3": build(COPY, "BYTES=4")}, weights())
        try:
            exe = executable.load(path, threads=1)
            exe.stats()
        except (DiscError, ValueError):
            continue


def test_other_files_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    text = tmp_path / "text"
    text.write_text("hello " * 100)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    cases = [
        (empty, "too few"),
        (text, "not a disc artifact"),
        (tmp_path / "missing", "cannot be opened"),
        (tmp_path, "a folder, not an artifact"),
    ]
    for path, message in cases:
        for reader in READERS:
            with pytest.raises(ArtifactError, match=message):
                reader(path)
    with pytest.raises(ArtifactError, match="regular"):
        executable.load(fifo)


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="NUL"):
        artifact.write_artifact(path, {**copy_manifest("f32", 1), "counters": ["a\0b"]}, {"x86-64": b""})
    with pytest.raises(ValueError, match="longer than 64"):
        artifact.write_artifact(path, copy_manifest("f32", 1), {"x86-64" + "+sha" * 20: b""})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["a.disc"]
