"""Folders of models as transformers writes them: what they hold, and what their models take."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disc.artifact.pointers import check_pointer
from disc.errors import ConfigurationError, UnsupportedFormatError, did_you_mean, how_to_install
from disc.ral.caches import layers_of

try:
    import torch
    import transformers
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"disc.hf needs {missing.name}; install it with: {how_to_install('hf')}") from missing

if TYPE_CHECKING:
    import os

    Folder = str | os.PathLike[str]

ARTIFACT, RECORD = "model.disc", "disc.json"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class Task:
    """model: its class in `disc.hf`; auto: the class of transformers that loads its folders."""

    model: str
    auto: str


TASKS = {
    "feature-extraction": Task("DiscModelForFeatureExtraction", "AutoModel"),
    "text-classification": Task("DiscModelForSequenceClassification", "AutoModelForSequenceClassification"),
    "token-classification": Task("DiscModelForTokenClassification", "AutoModelForTokenClassification"),
    "fill-mask": Task("DiscModelForMaskedLM", "AutoModelForMaskedLM"),
    "image-classification": Task("DiscModelForImageClassification", "AutoModelForImageClassification"),
    "text-generation": Task("DiscModelForCausalLM", "AutoModelForCausalLM"),
}
GENERATION = "text-generation"
# What transformers' models take for an input of text that is left out, by name.
DEFAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}


class _Compiled(transformers.PretrainedConfig):
    """The config by which transformers' lists of models have ours; no folder has it."""

    model_type = "disc"


@functools.cache
def make_known(model: type) -> None:
    """Pipelines, which print thousands of names where the class of a model is none that they know, know this one from now on."""
    for task in TASKS.values():
        if task.model == model.__name__:
            auto: Any = getattr(transformers, task.auto)
            auto.register(_Compiled, model, exist_ok=True)


def load_folder(folder: Folder, task: str) -> tuple[torch.nn.Module, Mapping[str, object]]:
    """The model of a folder with weights in safetensors, and example inputs by name.

    Raises UnsupportedFormatError for a task that is not there, a folder without config or weights, and, to generate, a model that keeps
    no cache or not a DynamicCache.
    """
    if task not in TASKS:
        raise UnsupportedFormatError(f"there is no task {task!r}{did_you_mean(task, TASKS)}; the tasks are {', '.join(TASKS)}")
    path = Path(folder)
    config = read_config(path)
    config.use_cache = generates = task == GENERATION
    for weights in path.glob("*.safetensors"):
        check_pointer(weights)
    loader: Any = getattr(transformers, TASKS[task].auto)
    options = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True, "output_loading_info": True}
    try:
        model, loaded = loader.from_pretrained(path, config=config, **options)
    except Exception as error:  # also those of safetensors, and of weights that are not those of the config
        raise UnsupportedFormatError(f"{path}: transformers cannot load it for {task}: {_first_line(error)}{_hint(path)}") from error
    _check_head(model, loaded["missing_keys"], path, task)
    return model.eval(), _steps(model, path) if generates else _examples(model, path)


def _hint(path: Path) -> str:
    """What the folder has instead of weights."""
    if any(path.glob("*.safetensors")):
        return ""
    if (path / ARTIFACT).is_file():
        return f"; it holds a compiled model, {ARTIFACT}, which from_pretrained of disc.hf, disc.load and disc serve take"
    pickled = next((each.name for each in sorted(path.glob("*.bin"))), None)
    if pickled is None:
        return ""
    return f"; {pickled} is pickled, and reading it could run code: where you trust it, transformers can save the model in safetensors"


def _check_head(model: Any, missing: Iterable[str], path: Path, task: str) -> None:
    """Raises UnsupportedFormatError where what makes the base model one for this task has no weights: transformers draws them at random.
    missing: names of weights. What the base model lacks, such as a pooler that is not used, stays as transformers has it."""
    base = f"{model.base_model_prefix}."
    drawn = sorted(name for name in missing if model.base_model is not model and not name.startswith(base))
    if drawn:
        raise UnsupportedFormatError(
            f"{path} has no weights for {task}: {', '.join(drawn[:3])} would be random; it is a model for another task"
        )


def read_config(path: Path) -> transformers.PretrainedConfig:
    """Raises UnsupportedFormatError for a folder without a config that transformers knows."""
    check_folder(path)
    try:
        return transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # of whatever the file has in the places of names and numbers
        raise UnsupportedFormatError(f"{path}/config.json: {_first_line(error)}") from error


def check_folder(path: Path) -> None:
    """Raises UnsupportedFormatError for what is no folder with a config."""
    if path.is_file():
        raise UnsupportedFormatError(f"{path} is a file: give the folder that it lies in")
    if not path.is_dir():
        hint = f"; from the hub: hf download {path} --local-dir FOLDER" if _HUB_NAME.fullmatch(str(path)) else ""
        raise UnsupportedFormatError(f"there is no folder {path}, and nothing is downloaded{hint}")
    if not (path / "config.json").is_file():
        raise UnsupportedFormatError(f"{path} has no config.json: give the folder of a model of Hugging Face")


def check_task(path: Path, task: str) -> None:
    """Raises UnsupportedFormatError for an artifact of another task."""
    try:
        found = json.loads((path / RECORD).read_text())["task"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedFormatError(f"{path / RECORD} does not say which task {ARTIFACT} is for: {error}") from error
    if found != task:
        raise UnsupportedFormatError(f"{path / ARTIFACT} is for the task {found}, not {task}: give {_class_name(found)}, or another folder")


def _class_name(task: object) -> str:
    found = TASKS.get(task) if isinstance(task, str) else None
    return f"disc.hf.{found.model}" if found is not None else "the class of that task"


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
    if "cache" in accepted:
        problem += f", which transformers {transformers.__version__} calls cache (disc.hf generates with 5.23)"
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
