"""Inputs for transformers' models: which ones a model is given, in which layouts, and their values."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tiny_configs import VOCABULARY
from transformers import PreTrainedConfig

FIRST_ID = 4  # below are those that mean something: padding, begin, end, parts of another kind
# The layouts that an input has in one model or another.
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "input_ids": ("text", "text codes", "codes text"),
    "decoder_input_ids": ("text", "text codes"),
    "inputs": ("text", "wave"),
    "attention_mask": ("mask",),
    "bbox": ("boxes",),
    "pixel_values": ("image", "frames"),
    "pixel_values_videos": ("frames",),
    "input_values": ("wave", "channel wave", "time mel", "mel time"),
    "input_features": ("mel time", "time mel", "channel time mel"),
    "input_features_mask": ("feature mask",),
    "past_values": ("series", "series channels"),
    "past_time_features": ("time features",),
    "past_observed_mask": ("series ones",),
    "flattened_patches": ("patches",),
    "qformer_input_ids": ("text",),
    "query_embeds": ("queries",),
    "task_inputs": ("text",),
    "latents": ("latents",),
    "states": ("states",),
    "actions": ("actions",),
    "returns_to_go": ("rewards",),
    "timesteps": ("steps",),
}
_TEXT, _OTHERS = ("input_ids", "bbox"), ("pixel_values", "input_features", "input_values")
_STEPS = ("states", "actions", "returns_to_go", "timesteps")


def plans(model: torch.nn.Module, config: Any, class_name: str) -> Iterator[dict[str, str]]:
    """Which inputs in which layouts the model may take, the fullest first."""
    accepted = inspect.signature(model.forward).parameters
    required = [name for name, each in accepted.items() if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    main = getattr(model, "main_input_name", "input_ids")
    least = list(dict.fromkeys([*required, *([main] if isinstance(main, str) and main in accepted else [])]))
    decoder = ["decoder_input_ids"] if "decoder_input_ids" in accepted and getattr(config, "is_encoder_decoder", False) else []
    generating = "Generation" in class_name or "CausalLM" in class_name  # the places of other parts in the text would have to be marked
    texts = [name for name in _TEXT if name in accepted]
    others = [name for name in _OTHERS if name in accepted and not (generating and "input_ids" in accepted and main not in _OTHERS)]
    mask = ["attention_mask"] if "attention_mask" in accepted and ("input_ids" in [*least, *texts]) else []
    if any(name in least for name in _OTHERS) and generating:
        texts = [name for name in texts if name in least]
    sets = [least + texts + others + mask + decoder, least + texts + others + decoder, least + mask + decoder, least + decoder, least]
    feature_mask = ["input_features_mask"] if "input_features_mask" in accepted else []
    every_step, every_other = ([name for name in names if name in accepted] for names in (_STEPS, _OTHERS))
    sets += [least + feature_mask, every_step, least + every_other + mask]
    seen: set[tuple[str, ...]] = set()
    for names in sets:
        unique = tuple(dict.fromkeys(names))
        if unique in seen or not unique or any(name not in LAYOUTS for name in unique):
            continue
        seen.add(unique)
        for layouts in itertools.product(*(LAYOUTS[name] for name in unique)):
            yield dict(zip(unique, layouts, strict=True))


def value(layout: str, name: str, config: Any, batch: int, length: int, scale: float) -> torch.Tensor:
    """The input `name` for texts of `length` tokens and images of `scale` times the size that the config says."""
    generator = torch.Generator().manual_seed(1000 * batch + length + sum(map(ord, name)))
    image = int(field(config, "image_size", default=64) * scale)
    mel = field(config, "num_mel_bins", "feature_size", "feature_projection_input_dim", "input_dim", "mel_bins", default=80)
    frames = 2 * field(config, "max_source_positions", default=0) or field(
        config, "max_length" if name == "input_values" else "", default=8 * length
    )
    codes = field(config, "num_codebooks", "num_channels", "n_codes_total", default=4)
    points = field(config, "context_length", "prediction_length", default=32)
    channels = field(config, "num_channels", "in_channels", "in_chans", "num_input_channels", default=3)
    shapes: dict[str, tuple[int, ...]] = {
        "text": (batch, length),
        "text codes": (batch, length, codes),
        "codes text": (batch, codes, length),
        "image": (batch, channels, image, image),
        "frames": (batch, field(config, "num_frames", "frames_per_clip", default=8), channels, image, image),
        "wave": (batch, 2000 + 400 * length),
        "channel wave": (batch, field(config, "audio_channels", default=1), 1920 * (length // 4 + 1)),
        "time mel": (batch, frames, mel),
        "mel time": (batch, mel, frames),
        "channel time mel": (batch, 1, frames, mel),
        "series": (batch, points + max(field(config, "lags_sequence", default=0), *_list(config, "lags_sequence"))),
        "series channels": (batch, points, field(config, "num_input_channels", "input_size", default=1)),
        "time features": (batch, points + max(0, *_list(config, "lags_sequence")), field(config, "num_time_features", default=1)),
        "patches": (batch, 16, 2 + field(config, "patch_embed_hidden_size", default=768)),
        "queries": (batch, length, field(config, "hidden_size", default=64)),
        "latents": (batch, field(config, "hidden_size", default=64), length),
        "states": (batch, length, field(config, "state_dim", default=17)),
        "actions": (batch, length, field(config, "act_dim", default=4)),
        "rewards": (batch, length, 1),
    }
    if layout in ("text", "text codes", "codes text"):
        ids = min(field(config, "vocab_size", default=VOCABULARY), VOCABULARY)
        return torch.randint(FIRST_ID, max(FIRST_ID + 1, ids), shapes[layout], generator=generator)
    if layout == "mask":
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, -1] = 0  # never all ones, which eager treats apart (the library then leaves the mask out, and some models become others)
        mask[1:, length - length // 4 :] = 0
        return mask
    if layout == "feature mask":
        return torch.ones(batch, frames, dtype=torch.int64)
    if layout == "steps":
        return torch.arange(length).expand(batch, length).contiguous()
    if layout == "series ones":
        return torch.ones(shapes["series"])
    if layout == "boxes":
        corners = torch.randint(0, 500, (batch, length, 2), generator=generator)
        return torch.cat([corners, corners + 100], -1)
    values = torch.randn(shapes[layout], generator=generator)
    if layout == "patches":
        values[..., :2] = torch.stack([torch.arange(16) // 4 + 1.0, torch.arange(16) % 4 + 1.0], -1)
    return values


def field(config: Any, *names: str, default: int) -> int:
    """The first of the fields that the config or one of its parts has; of a list its first element."""
    for each in _parts(config):
        for name in names:
            found = getattr(each, name, None) if name else None
            if isinstance(found, list | tuple) and found:
                found = found[0]
            if isinstance(found, int) and not isinstance(found, bool):
                return found
    return default


def _list(config: Any, name: str) -> list[int]:
    found = getattr(config, name, None)
    return list(found) if isinstance(found, list | tuple) and found else [0]


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(type(config), "sub_configs", {}):
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield from _parts(part)
