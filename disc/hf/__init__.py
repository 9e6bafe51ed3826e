"""Models of Hugging Face folders, compiled: `DiscModelForSequenceClassification.from_pretrained(folder)` takes the model's place in
`transformers.pipeline`. `DiscModelForCausalLM` generates, by transformers' own `generate`: one program is the prompt's and each step's.

Nothing of a folder is executed: weights are read from safetensors alone, and code that a folder brings along is not run.
"""

from __future__ import annotations

import inspect
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
    InputValueError,
    ShapeConstraintError,
    UnsupportedFormatError,
    did_you_mean,
    how_to_install,
)
from disc.ral.caches import layers_of
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
    "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "chat_template.jinja", "preprocessor_config.json",
    "processor_config.json",
)  # fmt: skip
# What transformers' models take for an input of text that is left out, by name.
DEFAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}
OPTIONAL = ("position_ids", "logits_to_keep")  # what some models that generate do not take
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


class DiscModelForCausalLM(DiscModel, transformers.GenerationMixin):
    """`logits` of the next token, and a cache of keys and values; `generate` is that of transformers (greedy, sampling, beams, streamers).

    One program computes prompts and steps, any number of tokens behind a cache of any length, 0 too: both differ in sizes alone.
    """

    task, auto_class = "text-generation", "AutoModelForCausalLM"
    _is_stateful = False  # to transformers: a cache can go back to an earlier token

    def __init__(self, executable: Executable, config: transformers.PretrainedConfig, folder: Path | None = None) -> None:
        """folder: where the files of the tokenizer and `generation_config.json` lie."""
        super().__init__(executable, config, folder)
        stored = folder is not None and (folder / "generation_config.json").is_file()
        made = transformers.GenerationConfig
        self.generation_config = made.from_pretrained(str(folder)) if stored else made.from_model_config(config)
        self._longest: int | None = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)

    def save_pretrained(self, folder: Folder) -> None:
        """As of `DiscModel`, and `generation_config.json`."""
        super().save_pretrained(folder)
        self.generation_config.save_pretrained(str(folder))

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]: transformers reads off it what the model takes
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: transformers.Cache | None = None,
        *,
        logits_to_keep: int | torch.Tensor = 0,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **named: object,
    ) -> Any:
        """Logits of each token, float [batch, tokens, vocabulary], and the cache, as transformers' model gives them.

        input_ids: i64 [batch, tokens]. attention_mask: i64 [batch, past + tokens], all ones where it is left out. position_ids: i64
        [batch, tokens], those behind the past where they are left out. past_key_values: a DynamicCache, which gets the new tokens, too;
        None or one without tensors: there is no past. logits_to_keep: of the last so many tokens (0: of all), or of these places, i64
        [places].

        Raises InputValueError for more tokens than the model has positions; ShapeConstraintError for a mask of another shape;
        InputTypeError for another kind of cache, and for switches that need another program; and as calls of an `Executable`.
        """
        cache: Any = transformers.DynamicCache() if past_key_values is None else past_key_values
        layers: Any = layers_of(cache, "past_key_values")
        (batch, tokens), past = _sizes(input_ids), layers[0]["key"].shape[2] if layers else 0
        self._check_length(past, tokens)
        _check_mask(attention_mask, batch, past, tokens)
        places = _kept_places(logits_to_keep, tokens)
        inputs = {
            "input_ids": input_ids,
            "attention_mask": torch.ones(batch, past + tokens, dtype=torch.int64) if attention_mask is None else attention_mask,
            "position_ids": torch.arange(past, past + tokens).repeat(batch, 1) if position_ids is None else position_ids,
            "past_key_values": layers or cache,
            "logits_to_keep": places,
        }
        taken = {name: value for name, value in inputs.items() if name not in OPTIONAL or name in self._names}
        others = {name: value for name, value in self._without_switches(named).items() if value is not None}
        result: Any = self.executable(cast=True, **taken, **others)
        if "logits_to_keep" not in self._names:
            result.logits = result.logits[:, places]
        cache.layers = result.past_key_values.layers
        result.past_key_values = None if use_cache is False else cache
        return result.to_tuple() if return_dict is False else result

    def _check_length(self, past: int, tokens: int) -> None:
        if self._longest is not None and past + tokens > self._longest:
            raise InputValueError(
                f"{past + tokens} tokens ({past} of them in the cache), and the model has positions for {self._longest}: give a shorter "
                "prompt, or fewer max_new_tokens"
            )

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """As `forward`."""
        return self.forward(*inputs, **named)

    @classmethod
    def can_generate(cls) -> bool:
        """True."""
        return True

    def is_remote_code(self) -> bool:
        """False: no code of the folder is run. transformers' `generate` asks."""
        return False

    def get_experts_implementation(self) -> dict[str, str]:
        """{}: the program is compiled. transformers' `generate` asks."""
        return {}


def _sizes(ids: object) -> tuple[int, int]:
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2:
        raise InputRankError("input_ids: expected a tensor [batch, tokens]")
    return ids.shape[0], ids.shape[1]


def _check_mask(mask: torch.Tensor | None, batch: int, past: int, tokens: int) -> None:
    if mask is not None and mask.shape != (batch, past + tokens):
        raise ShapeConstraintError(
            f"attention_mask is {list(mask.shape)}; expected [{batch}, {past + tokens}], for {past} tokens in the cache and {tokens} more"
        )


def _kept_places(keep: int | torch.Tensor, tokens: int) -> torch.Tensor:
    """The places of the tokens whose logits are computed."""
    if isinstance(keep, torch.Tensor):
        return keep
    return torch.arange(max(tokens - keep, 0) if keep else 0, tokens)


TASKS: dict[str, type[DiscModel]] = {
    each.task: each
    for each in (
        DiscModelForFeatureExtraction,
        DiscModelForSequenceClassification,
        DiscModelForTokenClassification,
        DiscModelForMaskedLM,
        DiscModelForImageClassification,
        DiscModelForCausalLM,
    )
}


def load_folder(folder: Folder, task: str) -> tuple[torch.nn.Module, Mapping[str, object]]:
    """The model of a folder with weights in safetensors, and example inputs by name.

    Raises UnsupportedFormatError for a task that is not there, a folder without config or weights, and, to generate, a model that keeps
    no cache or not a DynamicCache.
    """
    if task not in TASKS:
        raise UnsupportedFormatError(f"there is no task {task!r}{did_you_mean(task, TASKS)}; the tasks are {', '.join(TASKS)}")
    path = Path(folder)
    config = _config(path)
    config.use_cache = generates = TASKS[task] is DiscModelForCausalLM
    loader: Any = getattr(transformers, TASKS[task].auto_class)
    try:
        model = loader.from_pretrained(path, config=config, use_safetensors=True, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedFormatError(f"{path}: transformers cannot load it for {task}: {_first_line(error)}") from error
    return model.eval(), _steps(model, path) if generates else _examples(model, path)


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


def _steps(model: Any, path: Path) -> dict[str, object]:
    """Inputs behind a cache, in the order of the program's. Sizes that are not the same differ."""
    batch, past, tokens, kept = 2, 3, 4, 5
    accepted = inspect.signature(model.forward).parameters
    problem = "takes no past_key_values"
    cache: Any = transformers.DynamicCache()
    if "past_key_values" in accepted:
        try:
            with torch.no_grad():
                cache = model(torch.ones(batch, past, dtype=torch.int64), past_key_values=cache).past_key_values
            problem = None if cache is not None and layers_of(cache, "its cache") else "keeps no cache"
        except Exception as error:  # models that keep something else refuse such a cache in many ways
            problem = f"cannot be run with a DynamicCache: {_first_line(error)}"
    if problem is not None:
        raise UnsupportedFormatError(
            f"{path}: {type(model).__name__} {problem}; text-generation needs a model with a cache of keys and values"
        )
    inputs: dict[str, object] = {
        "input_ids": torch.ones(batch, tokens, dtype=torch.int64),
        "past_key_values": cache,
        "attention_mask": torch.ones(batch, past + tokens, dtype=torch.int64),
        "position_ids": torch.arange(past, past + tokens).repeat(batch, 1),
        "logits_to_keep": torch.arange(kept) % tokens,
    }
    return {name: inputs[name] for name in accepted if name in inputs}


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
    "DiscModelForCausalLM",
    "DiscModelForFeatureExtraction",
    "DiscModelForImageClassification",
    "DiscModelForMaskedLM",
    "DiscModelForSequenceClassification",
    "DiscModelForTokenClassification",
    "load_folder",
]
