"""Small models of transformers' architectures: a small config, random weights, inputs that eager takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tiny_configs import variants
from tiny_inputs import plans, value
from transformers.models.auto import modeling_auto

# The tasks whose model is taken, the first that an architecture has: whole models, with what follows their encoder.
TASKS = (
    "FOR_SEQ_TO_SEQ_CAUSAL_LM", "FOR_SPEECH_SEQ_2_SEQ", "FOR_CAUSAL_LM", "FOR_MASKED_LM", "FOR_ZERO_SHOT_IMAGE_CLASSIFICATION",
    "FOR_IMAGE_CLASSIFICATION", "FOR_CTC", "FOR_AUDIO_CLASSIFICATION", "FOR_VIDEO_CLASSIFICATION", "FOR_OBJECT_DETECTION",
    "FOR_SEMANTIC_SEGMENTATION", "FOR_UNIVERSAL_SEGMENTATION", "FOR_DEPTH_ESTIMATION", "FOR_IMAGE_TO_IMAGE",
    "FOR_ZERO_SHOT_OBJECT_DETECTION", "FOR_VISUAL_QUESTION_ANSWERING", "FOR_IMAGE_TEXT_TO_TEXT", "FOR_SEQUENCE_CLASSIFICATION",
    "FOR_TIME_SERIES_PREDICTION", "FOR_TEXT_TO_WAVEFORM", "",
)  # fmt: skip
MAXIMUM_PARAMETERS = 120_000_000
_SEARCH_SECONDS = 90  # of CPU time, to find a config and inputs that run


@dataclass(frozen=True)
class Tiny:
    """A model that runs in eager, its class, and inputs by name for sizes that it has not seen."""

    name: str
    module: torch.nn.Module
    layouts: Mapping[str, str]
    config: Any

    def inputs(self, batch: int, length: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
        """Texts of `length` tokens, images of `scale` times the size that the config says."""
        return {name: value(layout, name, self.config, batch, length, scale) for name, layout in self.layouts.items()}


def architectures() -> dict[str, str]:
    """Every model type of the library, in order, and the class of it that is taken."""
    tables: list[Mapping[str, Any]] = [
        getattr(modeling_auto, f"MODEL_{task}_MAPPING_NAMES" if task else "MODEL_MAPPING_NAMES") for task in TASKS
    ]
    found: dict[str, str] = {}
    for name in sorted(set().union(*tables)):
        classes = next(table[name] for table in tables if name in table)
        found[name] = classes if isinstance(classes, str) else classes[0]
    return found


def build(model_type: str, class_name: str, sizes: Sequence[tuple[int, int, float]]) -> Tiny:
    """The first model that eager runs at all `sizes`, else at most of them, the first included. It takes the tensors of `layouts` and
    returns a tuple of tensors. RuntimeError with what the library raised where none runs."""
    wanted = getattr(transformers, class_name)
    best: tuple[int, Tiny] | None = None
    errors: dict[str, None] = {}
    start = time.process_time()
    for make in variants(wanted.config_class, model_type):
        try:
            config = make()
            model = _model(wanted, config)
            for plan in plans(model, config, class_name):
                tiny = Tiny(class_name, _forward(model, list(plan)), plan, config)
                count = _runs(tiny, sizes, errors)
                if count and (best is None or count > best[0]):
                    best = count, tiny
                if (best and best[0] == len(sizes)) or time.process_time() - start > _SEARCH_SECONDS:
                    break
        except Exception as error:
            errors[f"{type(error).__name__}: {error}"[:300]] = None
        if best:
            return best[1]
    raise RuntimeError("; then ".join(list(errors)[:4]))


def _model(wanted: Any, config: Any) -> torch.nn.Module:
    with torch.device("meta"):
        size = sum(each.numel() for each in wanted(config).parameters())
    if size > MAXIMUM_PARAMETERS:
        raise RuntimeError(f"{size} parameters")
    torch.manual_seed(0)
    return _spread(wanted(config).eval())


@torch.no_grad()
def _spread(model: torch.nn.Module) -> torch.nn.Module:
    """Weights that make a difference: as the library makes them attention is nearly uniform, and deep networks fade to zero."""
    for name, each in model.named_parameters():
        if each.dim() >= 2 and each.is_floating_point() and each.numel() > 1:
            wide = each[0].numel() ** -0.5
            if float(each.std()) < wide:
                each.normal_(0, wide)
        elif name.endswith("bias") and not each.any():
            each.normal_(0, 0.1)
        elif name.endswith("weight") and (each == 1).all():
            each.add_(0.1 * torch.randn_like(each))
    return model


def _runs(tiny: Tiny, sizes: Sequence[tuple[int, int, float]], errors: dict[str, None]) -> int:
    """At how many of the sizes eager runs it; none where it does not at the first, or finds no number."""
    count = 0
    for index, each in enumerate(sizes):
        try:
            with torch.no_grad():
                results = tiny.module(**tiny.inputs(*each))
        except Exception as error:
            errors[f"{type(error).__name__}: {error}"[:300]] = None
        else:
            count += any(bool(result.isfinite().any()) for result in results)
        if index == 0 and not count:
            return 0
    return count


def _forward(model: torch.nn.Module, names: Sequence[str]) -> torch.nn.Module:
    """A module with these arguments: torch.export names inputs by them."""

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

    scope: dict[str, Any] = {"tensors": lambda outputs: tuple(_tensors(outputs))}
    passed = ", ".join(f"{name}={name}" for name in names)
    exec(f"def forward(self, {', '.join(names)}):\n    return tensors(self.model({passed}))", scope)
    Wrapped.forward = scope["forward"]
    return Wrapped().eval()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
