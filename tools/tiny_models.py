"""Small models of transformers' architectures: a config shrunk by the names of its fields, random weights, inputs by their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
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
_WIDTH, _HEADS = 64, 4
# The first pattern that a field's name matches gives its value, where that is smaller than the default.
_SIZES: tuple[tuple[str, int], ...] = (
    (r"vocab_size(_or_config_json_file)?|type_vocab_size|entity_vocab_size|.*codebook_size|n_vocab", 128),
    (r".*num_key_value_heads|num_kv_heads|num_key_value_groups|multi_query_group_num|n_head_kv", 2),
    (r".*heads|n_head", _HEADS),
    (r"(num|n)_(hidden_|encoder_|decoder_|text_|transformer_|mtp_)*(layers?|blocks)|.*_layers|depth|num_blocks|layers", 2),
    (r".*(intermediate_size|ffn_dim|inner_dim|ffn_hidden_size)|d_ff|n_inner|mlp_dim|expert_dim", 96),
    (r"head_dim|d_kv|kv_channels|(qk|v|k)_head_dim|.*_head_dim|attention_head_size", _WIDTH // _HEADS),
    (r"rotary_dim|rope_dim|qk_rope_head_dim|partial_rotary_dim", 8),
    (r"(q|kv|o)_lora_rank", 32),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_k|moe_topk|num_experts_per_token", 2),
    (r"(max|n)_position(s|_embeddings)|max_seq_len(gth)?|max_sequence_length|n_ctx|max_(source|target)_positions|seq_len(gth)?", 128),
    (r"image_size|img_size|pretrain_image_size", 64),
    (r"(hidden|embed|embedding|d|n)_(size|dim|model|embd)|dim|d_embed|.*_hidden_size|.*_hidden_dim|.*embed_dim|projection_dim", _WIDTH),
    (r"num_queries|num_labels_of_queries", 8),
    (r"num_mel_bins", 16),
    (r"num_conv_pos_embeddings", 16),
)  # fmt: skip
_LISTS = r"depths|num_layers|layers|num_blocks|decoder_layers|encoder_layers"


@dataclass(frozen=True)
class Tiny:
    """A model that runs in eager, its class, and inputs by name for sizes that it has not seen."""

    name: str
    module: torch.nn.Module
    kinds: Mapping[str, str]
    config: Any

    def inputs(self, batch: int, length: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
        """Texts of `length` tokens, images of `scale` times the size that the config says."""
        generator = torch.Generator().manual_seed(1000 * batch + length)
        return {name: _input(name, self.config, batch, length, scale, generator) for name in self.kinds}


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


def build(model_type: str, class_name: str) -> Tiny:
    """A model whose forward takes the tensors of `kinds` and returns a tuple of tensors. Raises whatever the library raises."""
    wanted = getattr(transformers, class_name)
    config = None
    errors: list[str] = []
    for shrink in (_small, _few_layers):
        try:
            config = _config(wanted.config_class, shrink)
            with torch.device("meta"):
                size = sum(each.numel() for each in wanted(config).parameters())
            if size <= MAXIMUM_PARAMETERS:
                torch.manual_seed(0)
                return _wrapped(class_name, wanted(config).eval(), config)
            errors.append(f"{size} parameters")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    raise RuntimeError("; then ".join(errors))


# --- configs --------------------------------------------------------------------------------------------------------------------


def _config(kind: type, shrink: Any) -> Any:
    default = kind()
    values = _shrunk(default, shrink)
    parts = {name: _shrunk(getattr(default, name), shrink) for name in getattr(kind, "sub_configs", {}) if getattr(default, name, None)}
    config = kind(**values, **parts)
    for each in (config, *(getattr(config, name) for name in parts)):
        each.use_cache = False
    return config


def _shrunk(config: Any, shrink: Any) -> dict[str, Any]:
    """The fields that change. Token ids stay within the vocabulary."""
    found: dict[str, Any] = {}
    for name, value in (config if isinstance(config, dict) else config.to_dict()).items():
        if name.startswith("_") or isinstance(value, bool):
            continue
        small = shrink(name, value)
        if isinstance(value, int) and name.endswith(("_token_id", "_token_index")) and value >= 128:
            small = 3
        if name.endswith("layer_types") or name in ("mlp_layer_types", "layer_types", "rope_parameters"):
            continue  # made anew, for as many layers
        if small is not None and small != value:
            found[name] = small
    return found


def _small(name: str, value: object) -> object:
    if isinstance(value, int):
        size = next((size for pattern, size in _SIZES if re.fullmatch(pattern, name)), None)
        return None if size is None or size >= value else size
    return _few_layers(name, value)


def _few_layers(name: str, value: object) -> object:
    """Layers and vocabulary alone, for configs whose widths depend on each other."""
    if isinstance(value, int) and any(re.fullmatch(pattern, name) for pattern, _ in (_SIZES[0], _SIZES[3])):
        return min(value, _SIZES[0][1] if re.fullmatch(_SIZES[0][0], name) else _SIZES[3][1])
    if isinstance(value, list | tuple) and re.fullmatch(_LISTS, name) and value and all(isinstance(each, int) for each in value):
        return type(value)(1 for _ in value)
    return None


# --- inputs ---------------------------------------------------------------------------------------------------------------------

_KNOWN = (
    "input_ids", "attention_mask", "token_type_ids", "bbox", "pixel_values", "pixel_values_videos", "input_values", "input_features",
    "decoder_input_ids", "past_values", "series", "encoder_outputs",
)  # fmt: skip


def _wrapped(class_name: str, model: torch.nn.Module, config: Any) -> Tiny:
    accepted = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    names = [main] if main in accepted else []
    names += [name for name in ("input_ids", "pixel_values", "bbox", "attention_mask") if name in accepted and name not in names]
    if "input_ids" in names and "pixel_values" in names and _is_generating(class_name):
        names.remove("pixel_values")  # its places in the text would have to be marked
    if "attention_mask" in names and "input_ids" not in names:
        names.remove("attention_mask")
    if "decoder_input_ids" in accepted and getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    if not names or any(name not in _KNOWN for name in names):
        raise RuntimeError(f"no inputs are known for {main}")
    return Tiny(class_name, _forward(model, names), dict.fromkeys(names, ""), config)


def _is_generating(class_name: str) -> bool:
    return "Generation" in class_name or "CausalLM" in class_name


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


def _field(config: Any, *names: str, default: int) -> int:
    for each in (config, *(getattr(config, part, None) for part in ("text_config", "vision_config", "backbone_config", "audio_config"))):
        for name in names:
            value = getattr(each, name, None)
            if isinstance(value, int | list | tuple):
                return int(value if isinstance(value, int) else value[0])
    return default


def _input(name: str, config: Any, batch: int, length: int, scale: float, generator: torch.Generator) -> torch.Tensor:
    ids = _field(config, "vocab_size", default=128)
    if name in ("input_ids", "decoder_input_ids"):
        return torch.randint(4, max(5, min(ids, 128)), (batch, length), generator=generator)
    if name == "attention_mask":
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, -1] = 0  # never all ones, which eager treats apart (the library then leaves the mask out, and some models become others)
        mask[1:, length - length // 4 :] = 0
        return mask
    if name == "bbox":
        corners = torch.randint(0, 500, (batch, length, 2), generator=generator)
        return torch.cat([corners, corners + 100], -1)
    channels, image = _field(config, "num_channels", "in_channels", "in_chans", default=3), _field(config, "image_size", default=64)
    image = int(image * scale)
    if name == "pixel_values":
        return torch.randn(batch, channels, image, image, generator=generator)
    if name == "pixel_values_videos":
        return torch.randn(batch, _field(config, "num_frames", default=8), channels, image, image, generator=generator)
    if name == "input_values":
        return torch.randn(batch, 2000 + 400 * length, generator=generator)
    if name == "input_features":
        mel = _field(config, "num_mel_bins", "feature_size", default=80)
        frames = 2 * _field(config, "max_source_positions", default=8 * length)
        return torch.randn(batch, mel, frames, generator=generator)
    return torch.randn(batch, _field(config, "context_length", "prediction_length", default=32), generator=generator)
