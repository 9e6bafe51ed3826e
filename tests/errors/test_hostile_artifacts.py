"""Artifacts made to harm, most of them with right hashes: both readers refuse each by the name of its fault, before any of its code runs."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from containers import Container, Part, taken_apart

from disc.artifact import file as artifact
from disc.cli import main as cli
from disc.errors import ArtifactError, DiscError
from disc.ral import executable

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0" / "linear.disc"
GOOD = taken_apart(GOLDEN.read_bytes())
MANIFEST = json.loads(GOOD[b"manifest"])
SIZE = GOLDEN.stat().st_size
PLACES = {section.name: section for section in artifact.read_sections(GOLDEN)}


def described(**changes: object) -> Container:
    """A manifest with other values; the signature as it was."""
    return GOOD.changed(b"manifest", content=json.dumps({**MANIFEST, **changes}).encode())


def manifest(content: bytes) -> Container:
    return GOOD.changed(b"manifest", content=content)


def input_record(**changes: object) -> Container:
    return described(inputs=[{**MANIFEST["inputs"][0], **changes}])


def output_record(**changes: object) -> Container:
    return described(outputs=[{**MANIFEST["outputs"][0], **changes}])


def symbol(**changes: object) -> Container:
    return described(symbols=[{**MANIFEST["symbols"][0], **changes}])


def kernel(**changes: object) -> Container:
    return described(kernels=[{**MANIFEST["kernels"][0], **changes}])


def batch(inputs: list[int], outputs: list[int]) -> object:
    return {"symbol": "S0", "inputs": inputs, "outputs": outputs}


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 0


def signature(content: bytes) -> Container:
    return GOOD.changed(b"signature", content=content)


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def lists(
    inputs: bytes = b"\0\0\0\0", outputs: bytes = b"\0\0\0\0", rest: bytes = b"\0\0\0\0" * 3, weights: bytes = b"\0\0\0\0"
) -> Container:
    return signature(struct.pack("<I", 1) + inputs + outputs + rest + weights)


def weight(offset: int, size: int) -> Container:
    return lists(weights=struct.pack("<I", 1) + text(b"w") + struct.pack("<qq", offset, size))


def value(dtype: int, rank: int, *dims: int) -> bytes:
    return struct.pack("<I", 1) + text(b"x") + struct.pack(f"<II{len(dims)}q", dtype, rank, *dims)


CODE = f"code/{MANIFEST['code'][0]}".encode()
FIRST = PLACES["manifest"].offset

# Name → the file, and what both readers say. A pair of messages: of the Python reader (`disc verify`), of the runtime (`disc.load`).
CASES: dict[str, tuple[Container | bytes, str | tuple[str, str]]] = {
    # --- the header
    "empty": (b"", "header: the file has 0 bytes, too few for an artifact"),
    "magic alone": (b"DISC\r\n\x1a\n", "header: the file has 8 bytes, too few for an artifact"),
    "text": (b"hello, world\n" * 10, "header: not a disc artifact"),
    "zip": (b"PK\x03\x04" + bytes(100), "header: not a disc artifact"),
    "elf": (b"\x7fELF" + bytes(100), "header: not a disc artifact"),
    "pickle": (b"\x80\x04\x95" + bytes(100), "header: not a disc artifact"),
    "line ends converted": (replace(GOOD, magic=b"DISC\n\x1a\n\0"), "header: not a disc artifact"),
    "version 0": (replace(GOOD, version=0), "header: format version 0 is no longer read; rebuild the artifact with this disc"),
    "version 3": (replace(GOOD, version=3), "header: format version 3 is newer than this runtime reads (2); rebuild the artifact or upgrade disc"),
    "version 2^32-1": (replace(GOOD, version=2**32 - 1), "header: format version 4294967295 is newer than this runtime reads (2); rebuild"),
    "65 sections": (replace(GOOD, count=65), "header: damaged"),
    "2^32-1 sections": (replace(GOOD, count=2**32 - 1), "header: damaged"),
    "more sections than bytes": (struct.pack("<8sIIQQ", b"DISC\r\n\x1a\n", 1, 64, 40, 0) + bytes(8), ("header: hash differs", "header: damaged")),
    "no sections": (Container(()), "section 'manifest' is missing"),
    "one section less": (replace(GOOD, count=len(GOOD.parts) - 1), "header: hash differs, the file is damaged"),
    "too small": (replace(GOOD, file_size=SIZE - 1), f"header: the file should have {SIZE - 1} bytes and has {SIZE}"),
    "too large": (replace(GOOD, file_size=2**64 - 1), f"header: the file should have {2**64 - 1} bytes and has {SIZE}"),
    "reserved": (replace(GOOD, reserved=1), "header: damaged"),
    "another header's hash": (replace(GOOD, header_digest=bytes(32)), "header: hash differs, the file is damaged"),
    # --- the section table
    "overlap": (GOOD.changed(b"signature", offset=FIRST), "section 'signature' has a wrong place"),
    "overlap by one line": (GOOD.changed(b"signature", offset=PLACES["signature"].offset - 64), "section 'signature' has a wrong place"),
    "over the header": (GOOD.changed(b"manifest", offset=0), "section 'manifest' has a wrong place"),
    "gap": (GOOD.changed(b"signature", offset=PLACES["signature"].offset + 64), "section 'signature' has a wrong place"),
    "gap that is there": (replace(GOOD, places={b"signature": PLACES["signature"].offset + 64}), "section 'signature' has a wrong place"),
    "unaligned": (GOOD.changed(b"manifest", offset=FIRST + 1), "section 'manifest' has a wrong place"),
    "weights off the page": (replace(GOOD, places={b"weights": PLACES["weights"].offset + 64}), "section 'weights' has a wrong place"),
    "beyond the file": (GOOD.changed(b"weights", offset=-(-SIZE // 4096) * 4096), "section 'weights' has a wrong place"),
    "offset -64": (GOOD.changed(b"manifest", offset=-64), "section 'manifest' has a wrong place"),
    "offset 2^63": (GOOD.changed(b"manifest", offset=2**63), "section 'manifest' has a wrong place"),
    "size beyond the file": (GOOD.changed(b"weights", size=PLACES["weights"].size + 1), "section 'weights' has a wrong place"),
    "size 2^63": (GOOD.changed(b"weights", size=2**63), "section 'weights' has a wrong place"),
    "size 2^64-1": (GOOD.changed(b"weights", size=-1), "section 'weights' has a wrong place"),
    "offset and size wrap": (GOOD.changed(b"manifest", size=2**64 - FIRST), "section 'manifest' has a wrong place"),
    "size too small": (GOOD.changed(b"weights", size=PLACES["weights"].size - 1), "header: bytes after the last section"),
    "order": (replace(GOOD, parts=GOOD.parts[:1] + GOOD.parts[:0:-1]).changed(b"signature", offset=FIRST), "section 'weights' has a wrong place|section 'signature' has a wrong place"),
    "twice": (replace(GOOD, parts=(*GOOD.parts[:-1], Part(b"manifest", b"{}"), GOOD.parts[-1])), "section 'manifest' occurs twice"),
    "two weights": (replace(GOOD, parts=(*GOOD.parts, GOOD.parts[-1])), "section 'weights' occurs twice"),
    "no name": (replace(GOOD, parts=(Part(b"", b"x"), *GOOD.parts)), "header: section 0 has a malformed name"),
    "NUL in a name": (replace(GOOD, parts=(Part(b"weights\0x", b"x"), *GOOD.parts)), "header: section 0 has a malformed name"),
    "no manifest": (GOOD.without(b"manifest"), "section 'manifest' is missing"),
    "no signature": (GOOD.without(b"signature"), "section 'signature' is missing"),
    "no weights": (GOOD.without(b"weights"), "section 'weights' is missing"),
    "padding": (replace(GOOD, padding=b"\1"), "padding before section 'signature' is damaged"),
    "more bytes": (replace(GOOD, tail=b"\0"), "header: bytes after the last section"),
    "wrong hash of the manifest": (GOOD.changed(b"manifest", digest=bytes(32)), "section 'manifest': hash differs, the file is damaged"),
    "wrong hash of code": (GOOD.changed(CODE, digest=bytes(32)), f"section '{CODE.decode()}': hash differs, the file is damaged"),
    # --- the manifest
    "not JSON": (manifest(b"{"), "section 'manifest' is not JSON"),
    "not UTF-8": (manifest(b'"\xff"'), "section 'manifest' is not JSON"),
    "deep": (manifest(b"[" * 200_000), "section 'manifest' is not JSON"),
    "huge number": (manifest(b"1" * 5000), "section 'manifest' is not JSON"),
    "a list": (manifest(b"[]"), "section 'manifest' is malformed: manifest: expected an object, got a list"),
    "missing keys": (manifest(b"{}"), "section 'manifest' is malformed: manifest: 'checks', 'compiler', 'counters', 'inputs', 'kernels', 'options', 'outputs', 'single', 'symbols' is missing"),
    "a name that is a list": (input_record(name=[]), "section 'manifest' is malformed: manifest.inputs[0].name: expected a str, got a list"),
    "a bool for a number": (described(outputs=[{**MANIFEST["outputs"][0], "rank": True}]), "section 'manifest' is malformed: manifest.outputs[0].rank: expected an int, got a bool"),
    "a number for a bool": (described(single=1), "section 'manifest' is malformed: manifest.single: expected a bool, got an int"),
    "a dim that is null": (input_record(dims=[None, 8]), "section 'manifest' is malformed: manifest.inputs[0].dims[0]: expected an int or a str, got null"),
    "unknown dtype": (input_record(dtype="object"), "section 'manifest' is malformed: a dtype, a name or a number that cannot be stored"),
    "NUL in an input's name": (input_record(name="a\0b"), "section 'manifest' is malformed: a dtype, a name or a number that cannot be stored"),
    "a dim of 2^70": (input_record(dims=[2**70, 8]), "section 'manifest' is malformed: a number that is not finite, or needs more than 64 bits"),
    "a dim of -1": (input_record(dims=[-1, 8]), "manifest.inputs[0].dims: a size that no dim can have"),
    "65 dims": (input_record(dims=[1] * 65), "manifest.inputs[0]: rank 65, more than 64"),
    "rank 3e8": (output_record(rank=300_000_000, dims=[]), "manifest.outputs[0].rank: 300000000, not 0 to 64"),
    "rank -1": (output_record(rank=-1, dims=[]), "manifest.outputs[0].rank: -1, not 0 to 64"),
    "dims of another rank": (output_record(dims=[1] * 9), "manifest.outputs[0].dims: 9 dims of a result of rank 2"),
    "infinity": (described(options={"x": float("inf")}), "a number that is not finite, or needs more than 64 bits"),
    "not a number": (described(options={"x": float("nan")}), "a number that is not finite, or needs more than 64 bits"),
    "an option of 4000 digits": (described(options={"x": 10**4000}), "a number that is not finite, or needs more than 64 bits"),
    "900 lists in each other": (described(options={"x": nested(900)}), "lists and objects are nested deeper than 32"),
    "a lone surrogate": (described(compiler="\ud800"), "section 'manifest' is malformed: text with a lone surrogate"),
    "a surrogate for a key": (described(options={"\udfff": 1}), "section 'manifest' is malformed: text with a lone surrogate"),
    "a symbol of no input": (symbol(source="arg7.0"), "manifest.symbols[0].source: 'arg7.0' is no dim and no scalar of the inputs"),
    "a symbol of no dim": (symbol(source="arg0.2"), "manifest.symbols[0].source: 'arg0.2' is no dim and no scalar"),
    "a symbol of a tensor": (symbol(source="arg0"), "manifest.symbols[0].source: 'arg0' is no dim and no scalar"),
    "a symbol of a word": (symbol(source="argx.0"), "manifest.symbols[0].source: 'argx.0' is no dim and no scalar"),
    "a source with escapes": (symbol(source="\x1b[2J"), "manifest.symbols[0].source: '\\x1b[2J' is no dim"),
    "an empty range": (symbol(min=5, max=4), "manifest.symbols[0]: an impossible range or divisor"),
    "divisor 0": (symbol(divisor=0), "manifest.symbols[0]: an impossible range or divisor"),
    "a kernel's counter": (kernel(counters=[10**6] * len(MANIFEST["kernels"][0]["versions"])), "manifest.kernels[0].counters: a number of none of the"),
    "more counters than versions": (kernel(counters=[0] * 9), "manifest.kernels[0]: 9 counters of"),
    "versions that are texts": (kernel(versions=["a"]), "manifest.kernels[0].versions[0]: expected an object, got a str"),
    "a batch of no axis": (described(batch=batch(inputs=[9], outputs=[0])), "manifest.batch.inputs: no axes of the inputs"),
    "a batch of two axes": (described(batch=batch(inputs=[0, 0], outputs=[0])), "manifest.batch.inputs: no axes of the inputs"),
    "fixed at -1": (described(fixed=[{"name": "n", "position": -1, "value": "1"}]), "manifest.fixed: positions that no arguments have"),
    "a weight at -64": (described(weights=[{**MANIFEST["weights"][0], "offset": -64}]), "manifest.weights[0]: a place that no weight can have"),
    "a weight of rank 65": (described(weights=[{**MANIFEST["weights"][0], "shape": [1] * 65}]), "manifest.weights[0].shape: a shape that no"),
    "single without outputs": (described(single=True, outputs=[], batch=batch(inputs=[0], outputs=[])), "manifest.single: a program with 0 outputs cannot return"),
    "fewer inputs than the signature": (described(inputs=[], symbols=[], batch=batch(inputs=[], outputs=[0])), "section 'signature' differs from what the manifest says"),
    "other kernels than the signature": (described(kernels=[]), "section 'signature' differs from what the manifest says"),
    "other dims than the signature": (input_record(dims=["S0", 9]), "section 'signature' differs from what the manifest says"),
    # --- the signature, which the runtime reads before the manifest
    "empty signature": (signature(b""), ("differs from what the manifest says", "section 'signature': version 0, expected 1; rebuild")),
    "signature of another version": (signature(struct.pack("<I", 9)), ("differs", "section 'signature': version 9, expected 1; rebuild the artifact with this disc")),
    "2^32-1 inputs": (lists(inputs=b"\xff\xff\xff\xff"), ("differs", "section 'signature' is malformed")),
    "a name of 2^32-1 bytes": (lists(inputs=struct.pack("<II", 1, 2**32 - 1)), ("differs", "section 'signature' is malformed")),
    "dtype 15": (lists(inputs=value(15, 1, 1)), ("differs", "section 'signature' is malformed")),
    "rank 65": (lists(inputs=value(0, 65, *range(65))), ("differs", "section 'signature' is malformed")),
    "rank 2^31": (lists(inputs=value(0, 2**31)), ("differs", "section 'signature' is malformed")),
    "dim -2": (lists(inputs=value(0, 1, -2)), ("differs", "section 'signature' is malformed")),
    "2^32-1 weights": (lists(weights=b"\xff\xff\xff\xff"), ("differs", "section 'signature' is malformed")),
    "weight at -64": (weight(-64, 4), ("differs", "section 'signature' is malformed")),
    "weight of -1 bytes": (weight(0, -1), ("differs", "section 'signature' is malformed")),
    "weight off its line": (weight(32, 4), ("differs", "section 'signature' is malformed")),
    "weight beyond the section": (weight(1 << 40, 4), ("differs", "weight 'w' lies outside section 'weights'")),
    "weight too long": (weight(0, 1 << 40), ("differs", "weight 'w' lies outside section 'weights'")),
    "weight that wraps": (weight(2**63 - 64, 2**63 - 1), ("differs", "weight 'w' lies outside section 'weights'")),
    "more after the signature": (signature(GOOD[b"signature"] + b"\0"), ("differs", "section 'signature' is malformed")),
    # --- code: whole by its hash, so `disc verify` has no complaint
    "code that is no ELF file": (GOOD.changed(CODE, content=b"\x7fELF" + bytes(64)), ("", f"section '{CODE.decode()}': cannot be loaded")),
    "no code": (GOOD.without(CODE), ("", "the artifact has no code")),
}  # fmt: skip


def said(reader: Callable[[Path], object], path: Path) -> str:
    """The message of the refusal; "" if there is none."""
    try:
        reader(path)
    except DiscError as error:
        return str(error)
    return ""


def test_the_taken_apart_artifact_is_good(tmp_path: Path) -> None:
    """So that each case below is refused for its own fault."""
    assert GOOD.to_bytes() == GOLDEN.read_bytes()
    assert len(CASES) >= 50


@pytest.mark.parametrize("name", CASES)
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    content, messages = CASES[name]
    path = tmp_path / "a.disc"
    path.write_bytes(content.to_bytes() if isinstance(content, Container) else content)
    wanted = messages if isinstance(messages, tuple) else (messages, messages)
    for reader, message in zip((artifact.verify, executable.load), wanted, strict=True):
        text = said(reader, path)
        assert any(part in text for part in message.split("|")), text
        assert bool(text) == bool(message), text
        if text:
            assert text.startswith(f"'{path}': "), text


def test_things_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    for name, message in (
        ("fifo", "not a regular file"),
        (".", "a folder, not an artifact: give a .disc file"),
        ("loop", "cannot be opened: Too many levels of symbolic links"),
        ("dangling", "cannot be opened: No such file or directory"),
    ):
        for reader in (artifact.verify, executable.load):
            with pytest.raises(ArtifactError, match=message):
                reader(tmp_path / name)
    for reader in (artifact.verify, executable.load):
        with pytest.raises(ArtifactError, match="not a regular file"):
            reader(Path("/dev/zero"))


def test_sizes_are_bounded_before_anything_is_read(tmp_path: Path) -> None:
    """A sparse file: a manifest of 40 GB costs its writer nothing."""
    path = tmp_path / "a.disc"
    for name, size in (("manifest", 40 << 30), ("signature", 33 << 20), (CODE.decode(), 2 << 30)):
        content = bytearray(GOOD.changed(name.encode(), size=size).to_bytes())
        count = len(GOOD.parts)
        place = next(index for index, part in enumerate(GOOD.parts) if part.name == name.encode())
        struct.pack_into("<Q", content, 16, size + (1 << 30))
        struct.pack_into("<Q", content, 32 + 112 * place + 72, size)
        end = 32 + 112 * count
        content[end : end + 32] = hashlib.sha256(content[:end]).digest()
        path.write_bytes(content)
        os.truncate(path, size + (1 << 30))
        for reader in (artifact.verify, artifact.read_manifest, executable.load):
            assert f"section '{name}' is larger than any that disc writes ({size} bytes)" in said(reader, path)


def test_a_weight_outside_its_section(tmp_path: Path) -> None:
    """Manifest and signature agree; `disc verify` sees it, as the runtime does."""
    changed: Any = {**MANIFEST, "weights": [{**record, "offset": 1 << 40} for record in MANIFEST["weights"]]}
    container = GOOD.changed(b"manifest", content=json.dumps(changed).encode()).changed(
        b"signature", content=artifact.signature_bytes(changed)
    )
    (tmp_path / "a.disc").write_bytes(container.to_bytes())
    for reader in (artifact.verify, executable.load):
        assert f"weight '{MANIFEST['weights'][0]['name']}' lies outside section 'weights'" in said(reader, tmp_path / "a.disc")


def test_terminal_escapes_of_a_file_are_shown_not_obeyed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x9b31m\u202e"
    path = tmp_path / "a.disc"
    changed: Any = {
        **MANIFEST, "compiler": evil, "checks": [{"message": evil}], "batch_refusal": evil, "options": {evil: evil}, "counters": MANIFEST["counters"],
        "kernels": [{**MANIFEST["kernels"][0], "kind": evil, "notes": [evil], "lines": [evil]}, *MANIFEST["kernels"][1:]],
    }  # fmt: skip
    changed.pop("batch", None)
    good = GOOD.changed(b"manifest", content=json.dumps(changed).encode()).changed(b"signature", content=artifact.signature_bytes(changed))
    section = Part(evil.encode(), b"x")
    path.write_bytes(replace(good, parts=(section, *good.parts)).to_bytes())
    for options in ([], ["--json"]):
        assert cli.main(["inspect", str(path), *options]) == 0
        assert cli.main(["explain", str(path), *options]) == 0
    assert cli.main(["explain", str(path), "--html", str(tmp_path / "a.html")]) == 0
    path.write_bytes(replace(good, parts=(replace(section, digest=bytes(32)), *good.parts)).to_bytes())
    assert cli.main(["verify", str(path)]) == 1
    assert "\\x1b" in said(executable.load, path)
    output = "".join(capfd.readouterr()) + said(executable.load, path) + (tmp_path / "a.html").read_text()
    assert not {"\x1b", "\x9b", "\u202e"} & set(output)
