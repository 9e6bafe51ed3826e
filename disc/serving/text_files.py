"""The files of a text step, beside the model's, and the texts of a request."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from disc.errors import ConfigurationError, RequestError, counted, how_to_install
from disc.serving.datatypes import BYTES
from disc.serving.shared_memory import SharedBytes
from disc.serving.tensors import GivenTensor

if TYPE_CHECKING:
    Tokenizer = Any  # of a package that need not be there

TEXT = "text"  # the input
PADDING = ("[PAD]", "<pad>", "<|endoftext|>")  # where the file does not say


def read_tokenizer(path: Path) -> Tokenizer:
    """Raises ConfigurationError."""
    try:
        from tokenizers import Tokenizer as Kind
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"text needs {error.name}; install it with: {how_to_install('text')}") from error
    if not path.is_file():
        raise ConfigurationError(f"text: there is no {path}: put the tokenizer's file (tokenizer.json) beside the model's")
    try:
        return Kind.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigurationError(f"text: {path} is no file of the tokenizers library: {error}") from error


def pad_id(tokenizer: Tokenizer) -> int:
    said = tokenizer.padding
    if said is not None:
        return said["pad_id"]
    return next((found for token in PADDING if (found := tokenizer.token_to_id(token)) is not None), 0)


def read_labels(path: Path) -> list[str]:
    """The names of classes 0, 1, ... of a Hugging Face config. Raises ConfigurationError."""
    try:
        named = json.loads(path.read_text())["id2label"]
        return [str(named[str(number)]) for number in range(len(named))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"text.labels: {path} has no id2label that names classes 0, 1, ...: {error!r}") from error


def texts_of(given: GivenTensor, most: int) -> Sequence[bytes | str]:
    """The elements of an input of BYTES, of one dim. most: texts of a request. Raises RequestError."""
    if given.datatype != BYTES or len(given.shape) != 1:
        raise RequestError(
            f"input '{TEXT}' must be of BYTES with one dim, a text for each row, not {given.datatype[:20]} {list(given.shape[:8])}"
        )
    if given.shape[0] > most:
        raise RequestError(f"the request has {given.shape[0]} texts; at most {most} are accepted")
    content = given.content
    if isinstance(content, SharedBytes):
        raise RequestError(f"input '{TEXT}': texts are not taken from shared memory")
    found = _prefixed(cast("memoryview", content)) if isinstance(content, memoryview) else cast("Sequence[bytes | str]", content)
    if len(found) != given.shape[0]:
        raise RequestError(f"input '{TEXT}' has {counted(len(found), 'text')}, its shape [{given.shape[0]}] needs {given.shape[0]}")
    return found


def _prefixed(content: memoryview) -> list[bytes]:
    """Raw bytes: before each text its length in four bytes, little-endian."""
    found: list[bytes] = []
    at = 0
    while at < len(content):
        if at + 4 > len(content):
            raise RequestError(f"input '{TEXT}': its bytes end within the length of text {len(found)}")
        (size,) = struct.unpack_from("<I", content, at)
        at += 4 + size
        if at > len(content):
            raise RequestError(f"input '{TEXT}': its bytes end within text {len(found)}")
        found.append(bytes(content[at - size : at]))
    return found
