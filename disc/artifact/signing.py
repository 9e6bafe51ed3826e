"""Ed25519 signatures of artifacts (RFC 8032): who built a file, checked before any of its code is mapped.

A signed artifact has one more section, `ed25519`: the public key (32 bytes) and the signature (64 bytes) of `_signed_text`, which holds the
name, size and SHA-256 of every other section in their order. A key is a PEM file, as `openssl genpkey -algorithm ed25519` and
`openssl pkey -pubout` write it, or its 32 raw bytes. Needs the package `cryptography` (the extra `sign`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disc.artifact import file as artifact
from disc.artifact.file import Section
from disc.errors import ArtifactError, DiscError, how_to_install

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Key = str | os.PathLike[str] | bytes

SECTION = "ed25519"
_KEY_SIZE, _SIGNATURE_SIZE = 32, 64
_MAX_PEM = 1 << 16  # bytes


def sign(path: str | os.PathLike[str], private_key: Key, output: str | os.PathLike[str] | None = None) -> None:
    """Writes the artifact with a signature, in place of an older one, to `output` (None: over itself), in one step.

    Every byte of the file is checked first. Raises ArtifactError, and DiscError for something that is no private key.
    """
    key = _private_key(private_key)
    artifact.verify(path)
    version, sections, _, _ = artifact.read_header(path, SECTION)
    content = key.public_key().public_bytes_raw() + key.sign(_signed_text(version, sections))
    artifact.write_with_section(path, output or path, SECTION, content)


def check_signature(path: str | os.PathLike[str], public_key: Key) -> bytes:
    """The hash of the header of an artifact that the owner of `public_key` has signed: what the runtime is to load, and nothing else.

    The header holds the hashes of all sections, and the runtime compares them before it uses any. Raises ArtifactError for a file without
    a signature, with that of another key, or with a wrong one.
    """
    key = _public_key(public_key)  # first: it says what to install
    from cryptography.exceptions import InvalidSignature

    version, sections, digest, content = artifact.read_header(path, SECTION)
    if content is None:
        raise ArtifactError(f"'{os.fspath(path)}': not signed, and a key was given to check the signature with")
    if len(content) != _KEY_SIZE + _SIGNATURE_SIZE:
        raise ArtifactError(f"'{os.fspath(path)}': section '{SECTION}' is malformed")
    if content[:_KEY_SIZE] != key.public_bytes_raw():
        raise ArtifactError(
            f"'{os.fspath(path)}': signed with the key {content[:_KEY_SIZE].hex()}, not with the one given, {key.public_bytes_raw().hex()}"
        )
    try:
        key.verify(content[_KEY_SIZE:], _signed_text(version, sections))
    except InvalidSignature:
        raise ArtifactError(f"'{os.fspath(path)}': the signature is wrong: the file is not what the owner of the key has signed") from None
    return digest


def _signed_text(version: int, sections: Sequence[Section]) -> bytes:
    sections = [section for section in sections if section.name != SECTION]
    entries = b"".join(struct.pack("<64sQ32s", section.name.encode(), section.size, section.digest) for section in sections)
    return b"disc artifact, ed25519, 1\n" + struct.pack("<II", version, len(sections)) + entries


def _private_key(key: Key) -> Ed25519PrivateKey:
    serialization, ed25519 = _cryptography()
    if isinstance(key, bytes) and len(key) == _KEY_SIZE:
        return ed25519.Ed25519PrivateKey.from_private_bytes(key)
    try:
        loaded = serialization.load_pem_private_key(_pem(key), password=None)
    except (ValueError, TypeError) as error:  # TypeError: the key is encrypted
        raise DiscError(f"{_named(key)} is not an unencrypted private key in PEM form") from error
    if not isinstance(loaded, ed25519.Ed25519PrivateKey):
        raise DiscError(f"{_named(key)} is not an ed25519 key; `openssl genpkey -algorithm ed25519` makes one")
    return loaded


def _public_key(key: Key) -> Ed25519PublicKey:
    serialization, ed25519 = _cryptography()
    if isinstance(key, bytes) and len(key) == _KEY_SIZE:
        return ed25519.Ed25519PublicKey.from_public_bytes(key)
    try:
        loaded = serialization.load_pem_public_key(_pem(key))
    except ValueError as error:
        raise DiscError(f"{_named(key)} is not a public key in PEM form (`openssl pkey -in private.pem -pubout` prints it)") from error
    if not isinstance(loaded, ed25519.Ed25519PublicKey):
        raise DiscError(f"{_named(key)} is not an ed25519 key")
    return loaded


def _cryptography():
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise DiscError(f"signatures need cryptography; install it with: {how_to_install('sign')}") from error
    return serialization, ed25519


def _pem(key: Key) -> bytes:
    if isinstance(key, bytes):
        return key
    try:
        with open(Path(key), "rb") as file:
            return file.read(_MAX_PEM)
    except OSError as error:
        raise DiscError(f"the key '{os.fspath(key)}' cannot be read: {error.strerror}") from error


def _named(key: Key) -> str:
    return "the key" if isinstance(key, bytes) else f"'{os.fspath(key)}'"
