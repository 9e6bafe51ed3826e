"""Sentence embeddings: the encoder of a `sentence_transformers.SentenceTransformer`, compiled.

    model = SentenceTransformer(folder)
    model[0] = DiscTransformer.load(folder)

Pooling, normalization and all that the other modules do stay where they are; tokenizing is that of sentence-transformers.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, Self

from disc.errors import ConfigurationError, InputTypeError, UnsupportedFormatError, did_you_mean, how_to_install
from disc.hf import DiscModelForFeatureExtraction

try:
    from sentence_transformers.base.modules import Transformer
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"disc.hf.sentences needs {missing.name}; install it with: {how_to_install('sentences')}") from missing

# What sentence-transformers adds to the arguments of each model that it loads: for its downloads.
_OF_DOWNLOADS = frozenset({"subfolder", "token", "cache_dir", "revision", "local_files_only", "trust_remote_code", "code_revision"})
_ARGUMENTS = tuple(inspect.signature(DiscModelForFeatureExtraction.from_pretrained).parameters)[1:]


class DiscTransformer(Transformer):
    """Takes the place of `sentence_transformers.base.modules.Transformer`, the first module of a SentenceTransformer.

    `model` is a `disc.hf.DiscModelForFeatureExtraction`, compiled for every number and length of texts. `DiscTransformer(folder)` and
    `DiscTransformer.load(folder)`, which also reads the length at which texts are cut, take a local folder, of a model of Hugging Face or
    of a SentenceTransformer; `model_kwargs` are arguments of `DiscModelForFeatureExtraction.from_pretrained`: `dtype`, `threads`, `target`,
    `compile`. `save` writes the artifact beside config and tokenizer, and a folder with one is loaded without compiling.

    Raises: what `DiscModelForFeatureExtraction.from_pretrained` does; ConfigurationError for an argument that it does not have;
    UnsupportedFormatError for another task than feature extraction, another backend and adapters of PEFT.
    """

    def __init__(self, model_name_or_path: str | os.PathLike[str], **options: Any) -> None:
        """options: as of `Transformer`."""
        super().__init__(_folder(model_name_or_path), **options)

    @classmethod
    def load(cls, model_name_or_path: str | os.PathLike[str], *arguments: Any, **options: Any) -> Self:
        """The first module of a saved SentenceTransformer, or of a folder of a model. arguments, options: as of `Transformer.load`."""
        return super().load(_folder(model_name_or_path), *arguments, **options)

    def _load_model(
        self, model_name_or_path: str, transformer_task: str, config: object, backend: str, is_peft_model: bool, **model_kwargs: Any
    ) -> Any:
        """Where sentence-transformers loads the model that it runs."""
        if transformer_task != DiscModelForFeatureExtraction.task:
            raise UnsupportedFormatError(f"a DiscTransformer gives token embeddings; it is not for the task {transformer_task}")
        if backend != "torch":
            raise UnsupportedFormatError(f"a DiscTransformer is compiled from PyTorch; leave out backend={backend!r}")
        if is_peft_model:
            raise UnsupportedFormatError(f"{model_name_or_path} holds adapters of PEFT: merge them into a model and save that first")
        arguments = {name: value for name, value in model_kwargs.items() if name not in _OF_DOWNLOADS}
        for name in arguments:
            if name not in _ARGUMENTS:
                known = ", ".join(_ARGUMENTS)
                raise ConfigurationError(f"model_kwargs: there is no argument {name!r}{did_you_mean(name, _ARGUMENTS)}; there are {known}")
        return DiscModelForFeatureExtraction.from_pretrained(Path(model_name_or_path, model_kwargs.get("subfolder", "")), **arguments)

    def train(self, mode: bool = True) -> DiscTransformer:
        """Itself, for mode False. Raises InputTypeError for True: it is compiled for inference."""
        if mode:
            raise InputTypeError("a DiscTransformer is compiled for inference; train with sentence-transformers' own Transformer")
        super().train(mode)
        return self

    def save(self, output_path: str | os.PathLike[str], *args: object, safe_serialization: bool = True, **kwargs: object) -> None:
        """Writes the artifact, the config, the tokenizer and what `load` reads into a folder. safe_serialization: True, always."""
        self.model.save_pretrained(output_path)
        self.processor.save_pretrained(output_path)
        self.save_config(str(output_path))


def _folder(path: str | os.PathLike[str]) -> str:
    if not Path(path).is_dir():
        raise UnsupportedFormatError(f"there is no folder {path}: nothing is downloaded, give a local one")
    return str(path)


__all__ = ["DiscTransformer"]
