"""Text in, vectors or labels out: the step before and behind a model that takes token ids. The `tokenizers` library does the splitting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disc.errors import ConfigurationError, RequestError
from disc.serving.datatypes import BYTES
from disc.serving.settings import Limits, Text
from disc.serving.signature import Signature, TensorSpec
from disc.serving.tensors import Array, GivenTensor, elements
from disc.serving.text_files import TEXT, pad_id, read_labels, read_tokenizer, texts_of

LABEL, SCORE, EMBEDDING = "label", "score", "embedding"  # outputs beside the model's own
IDS, MASK, SEGMENTS = "input_ids", "attention_mask", "token_type_ids"
Described = tuple[str, str, list[int]]  # name, datatype, shape


class TextStep:
    """Texts → the inputs of the model; its results → these and what the settings ask for."""

    def __init__(self, folder: Path, settings: Text, signature: Signature) -> None:
        """folder: of the model's file, which has the tokenizer's too. Raises ConfigurationError where one does not fit the other."""
        self._settings = settings
        self._specs = signature.inputs
        self._outputs = signature.outputs
        _check_inputs(signature)
        self._tokenizer = read_tokenizer(folder / settings.tokenizer)
        self._pad = pad_id(self._tokenizer)
        self._tokenizer.no_padding()
        self._most = settings.max_tokens or signature.most(IDS, 1)
        self._shorten()
        self._scores = self._output(settings.labels, "labels") if settings.labels is not None else None
        self._labels = read_labels(folder / "config.json") if settings.labels is not None else []
        self._pooled = next((number for number, spec in enumerate(self._outputs) if len(spec.dims) == 3), None)
        if settings.pooling and self._pooled is None:
            raise ConfigurationError("text.pooling: no output of the model has the dims [texts, tokens, features]")

    def _shorten(self) -> None:
        if not self._settings.truncate:
            self._tokenizer.no_truncation()
            return
        if self._most is None:
            raise ConfigurationError("text.truncate: say to how many tokens by max_tokens; the model has no bound")
        self._tokenizer.enable_truncation(self._most)

    def _output(self, name: str, what: str) -> int:
        names = [spec.name for spec in self._outputs]
        if name not in names:
            raise ConfigurationError(f"text.{what}: the model has no output '{name}'; its outputs are {', '.join(names)}")
        return names.index(name)

    @property
    def largest_id(self) -> int:
        """Of all tokens that the tokenizer may give."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)

    @property
    def inputs(self) -> list[Described]:
        return [(TEXT, BYTES, [-1])]

    @property
    def outputs(self) -> list[Described]:
        """What comes beside the model's own outputs, in the order of `more`."""
        found: list[Described] = []
        if self._scores is not None:
            shape = self._outputs[self._scores].shape[:-1]
            found += [(LABEL, BYTES, shape), (SCORE, "FP32", shape)]
        if self._settings.pooling and self._pooled is not None:
            shape = self._outputs[self._pooled].shape
            found.append((EMBEDDING, "FP32", [shape[0], shape[2]]))
        return found

    def arrays(self, inputs: Sequence[GivenTensor], limits: Limits) -> list[Array]:
        """The model's inputs, one row per text, padded to the longest. Raises RequestError."""
        if len(inputs) != 1 or inputs[0].name != TEXT:
            names = ", ".join(repr(each.name[:100]) for each in inputs)
            raise RequestError(f"the model takes one input of BYTES, '{TEXT}', with a text for each row; the request has {names}")
        texts = [self._checked(number, text) for number, text in enumerate(texts_of(inputs[0], self._settings.max_texts))]
        found = self._tokenizer.encode_batch(texts)
        lengths = [len(each.ids) for each in found]
        for number, length in enumerate(lengths):
            if self._most is not None and length > self._most:
                raise RequestError(f"text {number} has {length} tokens; the model takes at most {self._most}")
            if not length:
                raise RequestError(f"text {number} has no tokens")
        if len(set(lengths)) > 1 and MASK not in [spec.name for spec in self._specs]:
            raise RequestError(
                f"without '{MASK}' in the model all texts of a request must have as many tokens: {', '.join(map(str, lengths[:8]))}"
            )
        shape = (len(found), max(lengths, default=1))  # without a text one token: a model may take its first one
        size = sum(elements(TEXT, shape, limits) * spec.datatype.storage.itemsize for spec in self._specs)
        if size > limits.input_bytes:
            raise RequestError(f"the tokens, padded to the longest text, have {size} bytes; at most {limits.input_bytes} are accepted")
        return [self._rows(spec, found, shape) for spec in self._specs]

    def _checked(self, number: int, text: bytes | str) -> str:
        """Raises RequestError before a text is split that would take long."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if len(data) > self._settings.max_bytes:
            raise RequestError(f"text {number} has {len(data)} bytes; at most {self._settings.max_bytes} are accepted")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"text {number} is not UTF-8: byte {error.start}") from None

    def _rows(self, spec: TensorSpec, found: Sequence[Any], shape: tuple[int, int]) -> Array:
        name, fill = {IDS: ("ids", self._pad), MASK: ("attention_mask", 0), SEGMENTS: ("type_ids", 0)}[spec.name]
        rows = np.full(shape, fill, spec.datatype.storage)
        for row, each in zip(rows, found, strict=True):
            values = getattr(each, name)
            row[: len(values)] = values
        return rows

    def more(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        """What `outputs` describes, of one call. inputs: as `arrays` made them."""
        found: list[Array] = []
        if self._scores is not None:
            found += self._named(np.asarray(outputs[self._scores], np.float32))
        if self._settings.pooling and self._pooled is not None:
            found.append(self._pooling(inputs, np.asarray(outputs[self._pooled], np.float32)))
        return found

    def _named(self, logits: Array) -> list[Array]:
        """The name of the largest score, and its share of a softmax. Raises RequestError for a class without a name."""
        classes = logits.shape[-1]
        if classes > len(self._labels):
            raise RequestError(f"the model has {classes} classes, config.json names {len(self._labels)}")
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        best = logits.argmax(-1)
        names = np.array([text.encode() for text in self._labels], object)[best]
        return [np.asarray(names, object), np.asarray((powers / powers.sum(-1, keepdims=True)).max(-1), np.float32)]

    def _pooling(self, inputs: Sequence[Array], states: npt.NDArray[np.float32]) -> Array:
        """[texts, tokens, features] → [texts, features]."""
        if self._settings.pooling == "first":
            return states[:, 0]
        masks = [array for array, spec in zip(inputs, self._specs, strict=True) if spec.name == MASK]
        weights = np.asarray(masks[0] if masks else np.ones(states.shape[:2]), np.float32)[:, :, None]
        return np.asarray((states * weights).sum(1) / weights.sum(1), np.float32)


def _check_inputs(signature: Signature) -> None:
    names = [spec.name for spec in signature.inputs]
    strange = [name for name in names if name not in (IDS, MASK, SEGMENTS)]
    if strange or IDS not in names:
        raise ConfigurationError(f"text: a tokenizer gives {IDS}, {MASK} and {SEGMENTS}; the model takes {', '.join(names)}")
    for spec in signature.inputs:
        if len(spec.dims) != 2 or spec.datatype.storage.kind not in "iub":
            raise ConfigurationError(
                f"text: input '{spec.name}' must be of whole numbers, [texts, tokens], not {spec.datatype.name} {spec.shape}"
            )
