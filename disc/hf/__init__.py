"""Models of Hugging Face folders, compiled: `DiscModelForSequenceClassification.from_pretrained(folder)` takes the model's place in
`transformers.pipeline`. `DiscModelForCausalLM` generates, by transformers' own `generate`: one program is the prompt's and each step's.

Nothing of a folder is executed: weights are read from safetensors alone, and code that a folder brings along is not run.
"""

from typing import TYPE_CHECKING

from disc.errors import did_you_mean
from disc.hf.folders import TASKS, load_folder
from disc.hf.models import (
    DiscModel,
    DiscModelForFeatureExtraction,
    DiscModelForImageClassification,
    DiscModelForMaskedLM,
    DiscModelForSequenceClassification,
    DiscModelForTokenClassification,
)

if TYPE_CHECKING:
    from disc.hf.generation import DiscModelForCausalLM


def __getattr__(name: str) -> object:
    """What generates is imported when it is asked for: transformers takes over a second for its part of that."""
    if name != "DiscModelForCausalLM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, __all__)}; there are {', '.join(__all__)}")
    from disc.hf.generation import DiscModelForCausalLM

    return DiscModelForCausalLM


def __dir__() -> list[str]:
    """With what is imported when it is asked for."""
    return sorted({*globals(), *__all__})


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
