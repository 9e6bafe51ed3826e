"""Signatures: right ones load, all others are refused before any code of the file is mapped."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from containers import taken_apart
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from programs import build, copy_manifest

import disc
from disc.artifact import file as artifact
from disc.artifact.signing import check_signature, sign
from disc.cli import main as cli
from disc.errors import ArtifactError, DiscError
from disc.ral import executable

PRIVATE = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))

# Says so when it is mapped into a process.
MAPPED = """
#include <stdlib.h>
#include <string.h>
#include "ral.h"
__attribute__((constructor)) static void mapped(void) { setenv("DISC_TEST_MAPPED", "1", 1); }
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  void* out = api->output(exec, 0, in[0].dims);
  if (!out) return 1;
  memcpy(out, in[0].data, 4 * in[0].dims[0]);
  return 0;
}
"""


def was_mapped() -> bool:
    """In the C environment, which os.environ does not follow."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    found = libc.getenv(b"DISC_TEST_MAPPED") is not None
    libc.unsetenv(b"DISC_TEST_MAPPED")
    return found


def public(key: ed25519.Ed25519PrivateKey = PRIVATE) -> bytes:
    return key.public_key().public_bytes_raw()


def refused(path: Path, message: str, key: bytes | None = None) -> None:
    was_mapped()
    with pytest.raises(ArtifactError, match=message):
        executable.load(path, key=key or public())
    assert not was_mapped()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    weights = [("w", "f32", np.arange(100, dtype=np.float32)), ("v", "f32", np.ones(3000, np.float32))]
    target = tmp_path / "a.disc"
    artifact.write_artifact(target, copy_manifest("f32", 1), {"x86-64-v3": build(MAPPED)}, weights)
    return target


def test_a_signed_artifact_loads_and_is_else_the_same(path: Path) -> None:
    before = {part.name: part.content for part in taken_apart(path.read_bytes()).parts}
    sign(path, PRIVATE.private_bytes_raw())
    exe = disc.load(path, key=public())
    assert was_mapped()
    assert exe(np.ones(3, np.float32)).tolist() == [1, 1, 1]
    artifact.verify(path)
    after = {part.name: part.content for part in taken_apart(path.read_bytes()).parts}
    assert {name: content for name, content in after.items() if name != b"ed25519"} == before
    assert len(after[b"ed25519"]) == 96
    assert os.listdir(path.parent) == ["a.disc"]
    disc.load(path)  # whoever gives no key asks for no signature


def test_signing_again_replaces_the_signature(path: Path) -> None:
    sign(path, OTHER.private_bytes_raw())
    sign(path, PRIVATE.private_bytes_raw())
    check_signature(path, public())
    assert [section.name for section in artifact.read_sections(path)].count("ed25519") == 1
    refused(path, f"signed with the key {public().hex()}, not with the one given, {public(OTHER).hex()}", public(OTHER))


def test_unsigned(path: Path) -> None:
    refused(path, "a.disc': not signed, and a key was given")


@pytest.mark.parametrize("part", [b"manifest", b"signature/x86-64-v3", b"code/x86-64-v3", b"weights"])
def test_content_changed_behind_right_hashes(path: Path, part: bytes) -> None:
    sign(path, PRIVATE.private_bytes_raw())
    signed = taken_apart(path.read_bytes())
    path.write_bytes(signed.changed(part, content=signed[part][:-1] + bytes([signed[part][-1] ^ 1])).to_bytes())
    refused(path, "the signature is wrong: the file is not what the owner of the key has signed")


def test_sections_added_removed_or_in_another_order(path: Path) -> None:
    from dataclasses import replace

    from containers import Part

    sign(path, PRIVATE.private_bytes_raw())
    signed = taken_apart(path.read_bytes())
    for parts in (
        (Part(b"stablehlo", b"another program"), *signed.parts),
        tuple(part for part in signed.parts if not part.name.startswith(b"code/")),
        (signed.parts[1], signed.parts[0], *signed.parts[2:]),
    ):
        path.write_bytes(replace(signed, parts=parts).to_bytes())
        refused(path, "the signature is wrong")


def test_signature_changed_cut_or_of_another_file(path: Path) -> None:
    sign(path, PRIVATE.private_bytes_raw())
    signed = taken_apart(path.read_bytes())
    section = signed[b"ed25519"]
    for content, message in (
        (section[:32] + bytes(64), "the signature is wrong"),
        (section[:-1], "section 'ed25519' is malformed"),
        (b"", "section 'ed25519' is malformed"),
        (section + b"\0", "section 'ed25519' is malformed"),
        (public(OTHER) + section[32:], "signed with the key"),
    ):
        path.write_bytes(signed.changed(b"ed25519", content=content).to_bytes())
        refused(path, message)


def test_a_file_exchanged_after_the_check_is_not_loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime gets the hash that was checked, and refuses another file of the same path."""
    sign(path, PRIVATE.private_bytes_raw())

    def check_then_exchange(checked: Path, key: bytes) -> bytes:
        digest = check_signature(checked, key)
        artifact.write_artifact(path, copy_manifest("f32", 1), {"x86-64-v3": build(MAPPED)}, [])
        return digest

    monkeypatch.setattr("disc.artifact.signing.check_signature", check_then_exchange)
    refused(path, "not the file that was expected: its header has another hash")


def test_damage_is_told_before_the_signature(path: Path) -> None:
    sign(path, PRIVATE.private_bytes_raw())
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    refused(path, "header: hash differs, the file is damaged")
    with pytest.raises(ArtifactError, match="header: hash differs"):
        sign(path, PRIVATE.private_bytes_raw())


def test_keys_that_are_none(path: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    pem = rsa.generate_private_key(65537, 1024)
    rsa_public = pem.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for key, message in (
        (tmp_path / "missing", "the key '.*missing' cannot be read: No such file"),
        (tmp_path / "text", "text' is not a public key in PEM form"),
        (b"short", "the key is not a public key in PEM form"),
        (rsa_public, "the key is not an ed25519 key"),
    ):
        with pytest.raises(DiscError, match=message):
            executable.load(path, key=key)
    with pytest.raises(DiscError, match="not an unencrypted private key"):
        sign(path, tmp_path / "text")


def test_commands_with_keys_of_openssl(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private, given = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", given], check=True)
    assert cli.main(["verify", str(path), "--key", str(given)]) == 1
    assert "not signed" in capsys.readouterr().err
    assert cli.main(["sign", str(path), "--key", str(private), "-o", str(tmp_path / "signed.disc")]) == 0
    assert cli.main(["verify", str(tmp_path / "signed.disc"), "--key", str(given), "--json"]) == 0
    output = capsys.readouterr().out
    assert json.loads(output[output.index("{") :])["signed"] is True
    disc.load(tmp_path / "signed.disc", key=given)
