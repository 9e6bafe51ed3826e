"""Compiled models with the face that transformers' models have, and a pipeline asks for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import torch

from disc.artifact.output import writing
from disc.config import Options
from disc.errors import DeviceError, InputRankError, InputTypeError, OutputError, UnsupportedFormatError, named_arguments
from disc.hf.folders import ARTIFACT, DEFAULTS, RECORD, check_task, load_folder, make_known, read_config
from disc.ral.executable import Executable, load
from disc.ral.mistakes import OF_MODULES

if TYPE_CHECKING:
    import transformers

    from disc.hf.folders import Folder

BESIDE = (  # files of tokenizers and processors, which are copied as they are
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "chat_template.jinja", "preprocessor_config.json",
    "processor_config.json",
)  # fmt: skip
SWITCHES = ("return_dict", "output_attentions", "output_hidden_states", "use_cache")
WORDS = {
    "torch_dtype": 'dtype="bf16" computes matrix products in bf16, dtype="f16" in f16',
    "device_map": "it runs on the CPU",
    "options": "its options are dtype and threads",
    "trust_remote_code": "no code of a folder is run",
}
IN_ONE_WAY = "it takes the folder alone, and writes the artifact, which holds the weights"
GENERATES = "disc.hf.DiscModelForCausalLM generates"
COMPILED = (
    'it is compiled, for the CPU and for inference; from_pretrained has dtype and threads, and torch.compile(model, backend="disc") trains'
)
Self = TypeVar("Self", bound="DiscModel")


def check_no_text(name: str, value: object) -> None:
    """Raises InputTypeError for texts and lists in place of what a tokenizer makes of them."""
    if isinstance(value, str | list):
        what = "a text" if isinstance(value, str) else "a list"
        raise InputTypeError(
            f"input '{name}' is {what}; the model takes what a tokenizer makes: model(**tokenizer(texts, return_tensors=\"pt\"))"
        )


class DiscModel:
    """What all tasks share. `executable` is the compiled program; `config` the model's.

    It has what `transformers.pipeline` asks of a model: `config`, `device`, `dtype`, `forward`, `main_input_name`, `can_generate`.
    """

    task: ClassVar[str] = ""

    def __init__(self, executable: Executable, config: transformers.PretrainedConfig, folder: Path | None = None) -> None:
        """folder: where the files of the tokenizer or processor lie."""
        self.executable = executable
        self.config = config
        self.name_or_path = str(folder or "")
        self._folder = folder
        self._names = [value.name for value in executable.inputs]
        self.main_input_name = self._names[0]
        self.dtype = torch.float32
        self.base_model_prefix = "model"
        self.framework = "pt"
        self.input_modalities = ("image",) if self.main_input_name == "pixel_values" else "text"  # a pipeline prints them

    if not TYPE_CHECKING:  # a type checker finds what is not there by itself

        def __getattr__(self, name: str) -> NoReturn:
            """What somebody looks for who takes it for a module. Raises AttributeError."""
            plain = f"'{type(self).__name__}' object has no attribute '{name}'"
            hint = f": {GENERATES if name == 'generate' else COMPILED}" if name in OF_MODULES else ""
            raise AttributeError(f"{plain}{hint}", name=name, obj=self)

    @property
    def device(self) -> torch.device:
        """The CPU. A pipeline asks this before it looks for the class among those that it knows."""
        make_known(type(self))
        return torch.device("cpu")

    @classmethod
    @named_arguments(lambda name: WORDS.get(name, ""))
    def from_pretrained(
        cls: type[Self], folder: Folder, *, compile: bool = True, dtype: str = "f32", threads: int | None = None, target: str = "native"
    ) -> Self:
        """The model of a folder: its `model.disc` where `save_pretrained` has left one; else its weights, compiled for every size.

        compile: False = only a folder with `model.disc` will do. dtype, threads: as of `disc.Options`, of a compile. target: as of
        `disc.compile`.

        Raises UnsupportedFormatError where the folder has no config or weights (safetensors), or its artifact is of another task, and what
        `disc.compile` and `disc.load` raise.
        """
        path = Path(folder)
        config = read_config(path)
        if (path / ARTIFACT).is_file():
            check_task(path, cls.task)
            return cls(load(path / ARTIFACT, threads=threads), config, path)
        if not compile:
            raise UnsupportedFormatError(f"{path} has no {ARTIFACT}: give compile=True, or what save_pretrained has written")
        model, examples = load_folder(path, cls.task)
        from disc.api import compile as compile_model

        return cls(compile_model(model, examples, target=target, options=Options(dtype=dtype, threads=threads)), config, path)

    @named_arguments(lambda name: IN_ONE_WAY)
    def save_pretrained(self, folder: Folder) -> None:
        """Writes the artifact, the config, and the files of the tokenizer or processor into the folder, which `from_pretrained` reads.

        Raises OutputError.
        """
        path = Path(folder)
        if path.is_file():
            raise OutputError(f"{path} is a file: give a folder")
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            self._write_into(path)

    def _write_into(self, path: Path) -> None:
        self.config.save_pretrained(path)
        (path / RECORD).write_text(json.dumps({"task": self.task}))
        for name in BESIDE:
            if self._folder is not None and (self._folder / name).is_file() and self._folder.resolve() != path.resolve():
                shutil.copyfile(self._folder / name, path / name)
        self.executable.save(path / ARTIFACT)

    def __call__(self, *inputs: object, **named: object) -> Any:
        """Runs the model, on torch tensors as its own `forward`; the result is the same class of transformers.

        An attention mask that is left out is all ones, token types all zeros; int32 and bool are widened.

        Raises InputTypeError for switches that need another program (`output_attentions=True`), and as calls of an `Executable`.
        """
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):  # what a tokenizer gives, as it is
            inputs, named = (), {**inputs[0], **named}
        as_tuple = named.pop("return_dict", None) is False
        given = self._by_name(inputs, self._without_switches(named))
        result: Any = self.executable(cast=True, **given)
        return result.to_tuple() if as_tuple and hasattr(result, "to_tuple") else result

    def _without_switches(self, named: Mapping[str, object]) -> dict[str, object]:
        """Raises InputTypeError for one that is on."""
        for switch in SWITCHES:
            if named.get(switch):
                raise InputTypeError(f"{switch}=True: the model was compiled without; its results are {', '.join(self._results())}")
        return {name: value for name, value in named.items() if name not in SWITCHES}

    def _by_name(self, inputs: tuple[object, ...], named: Mapping[str, object]) -> dict[str, object]:
        """All inputs that are given, and those that a default takes the place of. Raises InputRankError for too many."""
        given = {name: value for name, value in named.items() if value is not None}
        if len(inputs) > len(self._names):
            raise InputRankError(f"{len(inputs)} inputs given; the inputs are {', '.join(self._names)}")
        given = {**dict(zip(self._names, inputs, strict=False)), **given}
        first = given.get(self.main_input_name)
        for name, value in given.items():
            check_no_text(name, value)
        for name in self._names:
            if name not in given and name in DEFAULTS and isinstance(first, torch.Tensor):
                given[name] = DEFAULTS[name](first)
        return given

    def forward(self, *inputs: object, **named: object) -> Any:
        """As a call."""
        return self(*inputs, **named)

    def _results(self) -> list[str]:
        return [value.name for value in self.executable.outputs]

    @classmethod
    def can_generate(cls) -> bool:
        """False: it is one call of the model."""
        return False

    def eval(self: Self) -> Self:
        """Itself: it is compiled for inference."""
        return self

    def to(self: Self, device: object = None, *more: object, **options: object) -> Self:
        """Itself. Raises DeviceError for another device than the CPU."""
        if isinstance(device, str | torch.device) and torch.device(device).type != "cpu":
            raise DeviceError(f"the model is compiled for the CPU, and cannot move to {device}")
        return self


class DiscModelForFeatureExtraction(DiscModel):
    """The encoder alone: `last_hidden_state` and what else its `AutoModel` returns."""

    task = "feature-extraction"


class DiscModelForSequenceClassification(DiscModel):
    """`logits` of each text."""

    task = "text-classification"


class DiscModelForTokenClassification(DiscModel):
    """`logits` of each token."""

    task = "token-classification"


class DiscModelForMaskedLM(DiscModel):
    """`logits` over the vocabulary of each token."""

    task = "fill-mask"


class DiscModelForImageClassification(DiscModel):
    """`logits` of each image."""

    task = "image-classification"
