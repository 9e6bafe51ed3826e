"""Models of Hugging Face folders, compiled: `DiscModelForSequenceClassification.from_pretrained(folder)` takes the model's place in
`transformers.pipeline`.

Nothing of a folder is executed: weights are read from safetensors alone, and code that a folder brings along is not run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from disc.config import Options
from disc.errors import (
    ConfigurationError,
    DeviceError,
    InputRankError,
    InputTypeError,
    UnsupportedFormatError,
    did_you_mean,
    how_to_install,
)
from disc.ral.executable import Executable, load

try:
    import torch
    import transformers
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"disc.hf needs {missing.name}; install it with: {how_to_install('hf')}") from missing

if TYPE_CHECKING:
    import os

    Folder = str | os.PathLike[str]

ARTIFACT, RECORD = "model.disc", "disc.json"
BESIDE = (  # files of tokenizers and processors, which are copied as they are
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
# What transformers' models take for an input of text that is left out, by name.
DEFAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}
SWITCHES = ("return_dict", "output_attentions", "output_hidden_states", "use_cache")
Self = TypeVar("Self", bound="DiscModel")


class DiscModel:
    """What all tasks share. `executable` is the compiled program; `config` the model's.

    It has what `transformers.pipeline` asks of a model: `config`, `device`, `dtype`, `forward`, `main_input_name`, `can_generate`.
    """

    task: ClassVar[str] = ""
    auto_class: ClassVar[str] = ""  # of transformers

    def __init__(self, executable: Executable, config: transformers.PretrainedConfig, folder: Path | None = None) -> None:
        """folder: where the files of the tokenizer or processor lie."""
        self.executable = executable
        self.config = config
        self.name_or_path = str(folder or "")
        self._folder = folder
        self._names = [value.name for value in executable.inputs]
        self.main_input_name = self._names[0]
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self.base_model_prefix = "model"
        self.framework = "pt"

    @classmethod
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
        config = _config(path)
        if (path / ARTIFACT).is_file():
            _check_task(path, cls.task)
            return cls(load(path / ARTIFACT, threads=threads), config, path)
        if not compile:
            raise UnsupportedFormatError(f"{path} has no {ARTIFACT}: give compile=True, or what save_pretrained has written")
        model, examples = load_folder(path, cls.task)
        from disc.api import compile as compile_model

        return cls(compile_model(model, examples, target=target, options=Options(dtype=dtype, threads=threads)), config, path)

    def save_pretrained(self, folder: Folder) -> None:
        """Writes the artifact, the config, and the files of the tokenizer or processor into the folder, which `from_pretrained` reads."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
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
        as_tuple = named.pop("return_dict", None) is False
        for switch in SWITCHES:
            if named.pop(switch, None):
                raise InputTypeError(f"{switch}=True: the model was compiled without; its results are {', '.join(self._results())}")
        given = {name: value for name, value in named.items() if value is not None}
        if len(inputs) > len(self._names):
            raise InputRankError(f"{len(inputs)} inputs given; the inputs are {', '.join(self._names)}")
        given = {**dict(zip(self._names, inputs, strict=False)), **given}
        first = given.get(self.main_input_name)
        for name in self._names:
            if name not in given and name in DEFAULTS and isinstance(first, torch.Tensor):
                given[name] = DEFAULTS[name](first)
        result: Any = self.executable(cast=True, **given)
        return result.to_tuple() if as_tuple and hasattr(result, "to_tuple") else result

    def forward(self, *inputs: object, **named: object) -> Any:
        """As a call."""
        return self(*inputs, **named)

    def _results(self) -> list[str]:
        return [value.name for value in self.executable.outputs]

    def can_generate(self) -> bool:
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

    task, auto_class = "feature-extraction", "AutoModel"


class DiscModelForSequenceClassification(DiscModel):
    """`logits` of each text."""

    task, auto_class = "text-classification", "AutoModelForSequenceClassification"


class DiscModelForTokenClassification(DiscModel):
    """`logits` of each token."""

    task, auto_class = "token-classification", "AutoModelForTokenClassification"


class DiscModelForMaskedLM(DiscModel):
    """`logits` over the vocabulary of each token."""

    task, auto_class = "fill-mask", "AutoModelForMaskedLM"


class DiscModelForImageClassification(DiscModel):
    """`logits` of each image."""

    task, auto_class = "image-classification", "AutoModelForImageClassification"


TASKS: dict[str, type[DiscModel]] = {
    each.task: each
    for each in (
        DiscModelForFeatureExtraction,
        DiscModelForSequenceClassification,
        DiscModelForTokenClassification,
        DiscModelForMaskedLM,
        DiscModelForImageClassification,
    )
}


def load_folder(folder: Folder, task: str) -> tuple[torch.nn.Module, Mapping[str, torch.Tensor]]:
    """The model of a folder with weights in safetensors, and example inputs by name.

    Raises UnsupportedFormatError for a task that is not there and a folder without config or weights.
    """
    if task not in TASKS:
        raise UnsupportedFormatError(f"there is no task {task!r}{did_you_mean(task, TASKS)}; the tasks are {', '.join(TASKS)}")
    path = Path(folder)
    config = _config(path)
    config.use_cache = False
    loader: Any = getattr(transformers, TASKS[task].auto_class)
    try:
        model = loader.from_pretrained(path, config=config, use_safetensors=True, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedFormatError(f"{path}: transformers cannot load it for {task}: {_first_line(error)}") from error
    return model.eval(), _examples(model, path)


def _config(path: Path) -> transformers.PretrainedConfig:
    if not (path / "config.json").is_file():
        raise UnsupportedFormatError(f"{path} has no config.json: give the folder of a model of Hugging Face")
    try:
        return transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedFormatError(f"{path}/config.json: {_first_line(error)}") from error


def _check_task(path: Path, task: str) -> None:
    """Raises UnsupportedFormatError for an artifact of another task."""
    try:
        found = json.loads((path / RECORD).read_text())["task"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedFormatError(f"{path / RECORD} does not say which task {ARTIFACT} is for: {error}") from error
    if found != task:
        raise UnsupportedFormatError(f"{path / ARTIFACT} is for the task {found}, not {task}: give {_class_name(found)}, or another folder")


def _class_name(task: object) -> str:
    found = TASKS.get(task) if isinstance(task, str) else None
    return f"disc.hf.{found.__name__}" if found is not None else "the class of that task"


def _examples(model: Any, path: Path) -> dict[str, torch.Tensor]:
    """One valid set of inputs: those that the tokenizer of the folder makes, or pixels of the config's size."""
    config = model.config
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.zeros(2, getattr(config, "num_channels", 3), height, width)}
    if model.main_input_name != "input_ids":
        raise UnsupportedFormatError(f"{path}: a model of '{model.main_input_name}'; disc.hf knows input_ids and pixel_values")
    names = _tokenizer_names(path) or ["input_ids", "attention_mask"]
    return {name: DEFAULTS.get(name, torch.ones_like)(torch.ones(2, 8, dtype=torch.int64)) for name in names}


def _tokenizer_names(path: Path) -> list[str]:
    """What the folder's tokenizer gives to the model; [] without one that says so."""
    try:
        found = json.loads((path / "tokenizer_config.json").read_text()).get("model_input_names", [])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError) as error:
        raise UnsupportedFormatError(f"{path / 'tokenizer_config.json'}: {error}") from error
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise UnsupportedFormatError(f"{path / 'tokenizer_config.json'}: model_input_names is no list of names")
    return found


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


__all__ = [
    "TASKS",
    "DiscModel",
    "DiscModelForFeatureExtraction",
    "DiscModelForImageClassification",
    "DiscModelForMaskedLM",
    "DiscModelForSequenceClassification",
    "DiscModelForTokenClassification",
    "load_folder",
]
