"""Small configs for transformers' architectures: fields are shrunk by their names and by how they depend on each other."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedConfig

VOCABULARY = 128
_WIDTH, _HEADS, _LAYERS, _MOST_LAYERS = 64, 4, 2, 4
_LAYER_COUNT = r"(num|n)_(hidden_|encoder_|decoder_|text_|transformer_|mtp_)*(layers?|blocks)|.*_layers|depth|num_blocks|layers"
_VOCABULARY = r"vocab_size(_or_config_json_file|_per_layer_input)?|type_vocab_size|entity_vocab_size|.*codebook_size|n_vocab|.*vocab_size"
_IMAGE, _IMAGE_SIZE = r"image_size|img_size|pretrain_image_size", 64
_QUERIES = r"num_queries|num_labels_of_queries"
_ALWAYS = ((_VOCABULARY, VOCABULARY), (_IMAGE, _IMAGE_SIZE), (_QUERIES, 8))
_HEAD_COUNT = r".*heads|n_head"
_KEY_VALUE_HEADS = r".*num_key_value_heads|num_kv_heads|num_key_value_groups|multi_query_group_num|n_head_kv|.*kv_heads"
_INTERMEDIATE = r".*(intermediate_size|ffn_dim|inner_dim|ffn_hidden_size)|d_ff|n_inner|mlp_dim|expert_dim"
_HIDDEN = r"(hidden|embed|embedding|d|n)_(size|dim|model|embd)|dim|d_embed|.*_hidden_(size|dim)|.*embed_dim|projection_dim|.*embedding_size"
# The first pattern that a field's name matches gives its value, where that is smaller than the default.
_SIZES: tuple[tuple[str, int], ...] = (
    (_VOCABULARY, VOCABULARY),
    (_KEY_VALUE_HEADS, 2),
    (_HEAD_COUNT, _HEADS),
    (_INTERMEDIATE, 96),
    (r"head_dim|d_kv|kv_channels|(qk|v|k)_head_dim|.*_head_dim|attention_head_size", _WIDTH // _HEADS),
    (r"rotary_dim|rope_dim|qk_rope_head_dim|partial_rotary_dim", 8),
    (r"(q|kv|o)_lora_rank", 32),
    (r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_k|moe_topk|num_experts_per_token", 2),
    (r"(max|n)_position(s|_embeddings)|max_seq_len(gth)?|max_sequence_length|n_ctx|max_(source|target)_positions|seq_len(gth)?", 128),
    (_IMAGE, _IMAGE_SIZE),
    (r"num_frames|frames_per_clip", 8),
    (_HIDDEN, _WIDTH),
    (_QUERIES, 8),
    (r"num_mel_bins", 16),
    (r"num_conv_pos_embeddings", 16),
)  # fmt: skip
_STAGES = r"depths|num_layers|layers|num_blocks|decoder_layers|encoder_layers|layer_depths|stage_num_blocks"
_WIDTHS = r"hidden_sizes|embed_dims?|conv_dim|out_channels|dims?|channels|stage_(in|mid|out)_channels|decoder_hidden_sizes"
_TAPS = r".*(out_indices|visual_indexes)"  # layers whose results are used: as many as the default takes
_SOME_LAYERS = r".*(layers|indexes|indices|ids|idx)"
# Fields without which a model cannot be made.
_NEEDED: dict[str, Any] = {
    "prediction_length": 8, "vocab_size": VOCABULARY, "default_language": "en_XX", "num_experts_per_tok": 2, "num_key_value_heads": 2,
    "pad_token_id": 1, "mask_token_id": 2,
}  # fmt: skip
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
# What a model type needs beyond the rules here: widths that its default leaves open, lists that its number of layers does not make.
_OF_TYPE: dict[str, dict[str, Any]] = {
    "blip_2_qformer": {"use_qformer_text_input": True},
    "blt": {"encoder_hash_byte_group_vocab": VOCABULARY},
    "chameleon": {"vocabulary_map": {"<image>": 3}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {**_ROPE, "mrope_section": [2, 3, 3]}}},
    "depth_pro": {"patch_size": _IMAGE_SIZE},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm4v_moe_text": {"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}},
    "glm4v_text": {"rope_parameters": {**_ROPE, "mrope_section": [2, 3, 3]}},
    "glm_image_text": {"rope_parameters": {**_ROPE, "mrope_section": [2, 3, 3]}},
    "hunyuan_v1_dense": {"head_dim": _WIDTH // _HEADS},
    "mimi": {"upsample_groups": _WIDTH},
    "ministral": {"head_dim": _WIDTH // _HEADS},
    "timesfm2_5": {"context_length": 128},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "attention_hidden_size": 2 * _WIDTH,
        "attention_head_dim": 2 * _WIDTH // _HEADS,
    },
}  # fmt: skip
_PARTS = {"encoder": "bert", "decoder": "bert", "vision_config": "vit", "text_config": "bert"}
_KEPT = ("model_type", "id2label", "label2id", "per_layer_config", "allow_global_per_layer_attribute_access")
Shrink = Callable[[str, int, dict[str, Any]], int | None]  # a field's name, its default, all fields
_RESNET: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}


def variants(kind: type, name: str) -> Iterator[Callable[[], Any]]:
    """Functions that make configs of the class `kind` for the model type `name`, the smallest first. They raise what the library raises."""
    for shrink in (_small, _fewer_heads, _fewer_layers):
        for keep_kinds in (True, False):
            yield functools.partial(_made, kind, name, shrink, keep_kinds)


def _made(kind: type, name: str, shrink: Shrink, keep_kinds: bool) -> Any:
    return _config(_default(kind, name), shrink, keep_kinds)


def _default(kind: type, name: str) -> Any:
    try:
        return kind()
    except Exception:
        parts = [part for part, each in getattr(kind, "sub_configs", {}).items() if each is AutoConfig and part in _PARTS]
        if not parts:
            raise
        encoder = next((each for begin, each in (("vision", "vit"), ("speech", "wav2vec2")) if name.startswith(begin)), "bert")
        types = {**_PARTS, "encoder": encoder}
        made = {part: AutoConfig.for_model(types[part]) for part in parts}
        if "decoder" in made:
            made["decoder"].is_decoder = made["decoder"].add_cross_attention = True
        return kind(**{part: each.to_dict() for part, each in made.items()})


def _config(default: Any, shrink: Shrink, keep_kinds: bool) -> Any:
    """A config like `default`; with `keep_kinds` one layer at least of every kind."""
    if type(default).__name__ == "TimmBackboneConfig":
        return transformers.ResNetConfig(**{**_RESNET, "out_indices": [1, 2, 3, 4][-len(default.out_indices or [1]) :]})
    default.allow_global_per_layer_attribute_access = True  # what some layers have otherwise is made anew of the smaller numbers
    fields = {name: value for name, value in default.to_dict().items() if not name.startswith("_") and name not in _KEPT}
    parts = {
        name: _config(getattr(default, name), shrink, keep_kinds)
        for name in fields
        if isinstance(getattr(default, name, None), PreTrainedConfig)
    }
    if hasattr(default, "out_indices") and default.out_indices:
        fields["out_indices"] = list(default.out_indices)
    values = {name: value for name, value in fields.items() if name not in parts}
    config = type(default)(**{**_chosen(default, values), **_shrunk(default.model_type, values, shrink, keep_kinds), **parts})
    for switch in ("use_cache", "use_timm_backbone"):
        if getattr(config, switch, None):
            setattr(config, switch, False)
    return config


def _chosen(default: Any, values: dict[str, Any]) -> dict[str, Any]:
    """What the config that this one is a part of says about it."""
    try:
        usual = type(default)()
        usual.allow_global_per_layer_attribute_access = True
    except Exception:
        return values
    if usual.to_dict() == default.to_dict():
        return {}
    return {
        name: value for name, value in values.items() if getattr(usual, name, None) != value and name not in ("out_features", "stage_names")
    }


def _shrunk(model_type: str, fields: dict[str, Any], shrink: Shrink, keep_kinds: bool) -> dict[str, Any]:
    """The fields that change."""
    found = {name: value for name, value in _NEEDED.items() if name in fields and fields[name] is None}
    if isinstance(fields.get("attention_types"), list):  # [[kinds, how often]]
        found["attention_types"] = [[kinds, 1] for kinds, _ in fields["attention_types"]]
    if isinstance(fields.get("languages"), list | tuple):
        found["default_language"] = fields["languages"][0]
    for name, value in fields.items():
        if isinstance(value, int) and not isinstance(value, bool):
            small = shrink(name, value, fields)
            if name.endswith(("_token_id", "_token_index", "_id")) and value >= VOCABULARY:
                small = 3
            if small is not None and small != value:
                found[name] = small
    for factor, count, width in (("expand", "num_heads", "head_dim"), ("mamba_expand", "mamba_n_heads", "mamba_d_head")):
        if shrink is _small and _is_count(fields.get(factor)) and count in fields and width in fields:
            found.update({width: fields[factor] * min(_WIDTH, fields["hidden_size"]) // 8, count: 8})
    found.update(_layers(fields, found, keep_kinds))
    found.update(_lists(fields, shrink))
    found.update(_rope(fields, found))
    found.update(_OF_TYPE.get(model_type, {}))
    return found


# --- numbers --------------------------------------------------------------------------------------------------------------------


def _small(name: str, value: int, fields: dict[str, Any]) -> int | None:
    """One width for all configs, whatever the default."""
    if re.fullmatch(_KEY_VALUE_HEADS, name) and value == fields.get("num_attention_heads"):
        return min(value, _HEADS)
    size = next((size for pattern, size in _SIZES if re.fullmatch(pattern, name)), None)
    heads = fields.get("num_heads", fields.get("num_attention_heads"))
    if re.fullmatch(_HIDDEN, name) and isinstance(heads, list | tuple) and all(map(_is_count, heads)):  # of stages, which double the width
        size = _WIDTH // _HEADS * heads[0]
    if name == "window_size" and _is_count(fields.get("image_size")):
        size = 2
    return None if size is None or size >= value else size


def _fewer_heads(name: str, value: int, fields: dict[str, Any]) -> int | None:
    """Every width and number of heads divided by one power of two; the size of a head stays."""
    if any(re.fullmatch(pattern, name) for pattern, _ in _ALWAYS):
        return _fewer_layers(name, value, fields)
    heads = [each for field, each in fields.items() if _is_head_count(field, each)]
    widths = [each for field, each in fields.items() if _is_width(field, each)]
    factor = 1
    while factor < 64 and heads and all(each % (2 * factor) == 0 for each in heads + widths) and min(widths, default=64) >= 64 * factor:
        factor *= 2
    if re.fullmatch(_KEY_VALUE_HEADS, name):
        return max(1, value // factor)
    return value // factor if _is_head_count(name, value) or _is_width(name, value) else None


def _is_head_count(name: str, value: object) -> bool:
    return _is_count(value) and bool(re.fullmatch(_HEAD_COUNT, name)) and not re.fullmatch(_KEY_VALUE_HEADS, name)


def _is_width(name: str, value: object) -> bool:
    return _is_count(value) and any(re.fullmatch(pattern, name) for pattern in (_INTERMEDIATE, _HIDDEN)) and "head" not in name


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _fewer_layers(name: str, value: int, fields: dict[str, Any]) -> int | None:
    """The vocabulary, the images and the queries alone, for configs whose widths depend on each other."""
    return next((min(value, size) for pattern, size in _ALWAYS if re.fullmatch(pattern, name)), None)


# --- lists ----------------------------------------------------------------------------------------------------------------------


def _layers(fields: dict[str, Any], found: dict[str, Any], keep_kinds: bool) -> dict[str, Any]:
    """The numbers of layers, and the lists with an element for each layer or with the numbers of some."""
    lists = {name: value for name, value in fields.items() if isinstance(value, list | tuple) and value}
    stages = {len(value) for value in lists.values() if len(value) <= 8 and all(isinstance(each, int | float) for each in value)}
    counts = {
        name: value
        for name, value in fields.items()
        if _is_count(value) and re.fullmatch(_LAYER_COUNT, name) and name not in found and value not in stages
    }
    depth = max((value for name, value in counts.items()), default=0)
    layers = _LAYERS
    for name, value in lists.items():
        if re.fullmatch(_TAPS, name) and max(value) >= depth // 2:
            layers = max(layers, len(value))
        elif keep_kinds and len(value) == depth and all(isinstance(each, str) for each in value):
            layers = max(layers, min(_MOST_LAYERS, len(set(value))))
    changed: dict[str, Any] = {name: min(value, layers) for name, value in counts.items()}
    for name, value in lists.items():
        if depth <= layers:
            continue
        if re.fullmatch(_TAPS, name):
            first = int(max(value) == depth)  # the embedding counts as the first
            changed[name] = list(range(first, first + len(value)))
        elif len(value) == depth and (keep_kinds or not all(isinstance(each, str) for each in value)):
            changed[name] = _each_kind(value, layers)
        elif re.fullmatch(_SOME_LAYERS, name) and all(isinstance(each, int) for each in value) and 0 <= min(value) <= max(value) < depth:
            changed[name] = [each for each in value if each < layers] or [layers - 1]
    for name in ("first_k_dense_replace", "moe_layer_start_index", "first_kv_shared_layer_idx", "num_kv_shared_layers"):
        if _is_count(fields.get(name)):
            changed[name] = min(fields[name], 1)
    return changed


def _each_kind(value: Sequence[Any], count: int) -> list[Any]:
    """`count` elements in order, one at least of every kind as far as that goes."""
    firsts = list({str(each): place for place, each in reversed(list(enumerate(value)))}.values())
    chosen = sorted(firsts)[:count]
    chosen += [place for place in range(len(value)) if place not in chosen][: count - len(chosen)]
    return [value[place] for place in sorted(chosen)]


def _lists(fields: dict[str, Any], shrink: Shrink) -> dict[str, Any]:
    """One block in each stage; widths of stages divided by one power of two."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if not (isinstance(value, list | tuple) and value and all(_is_count(each) for each in value)):
            continue
        if re.fullmatch(_STAGES, name):
            found[name] = type(value)(1 for _ in value)
        elif re.fullmatch(_WIDTHS, name) and shrink is _small:
            factor = 1
            while max(value) // factor > 128 and all(each % (2 * factor) == 0 and each // (2 * factor) >= 8 for each in value):
                factor *= 2
            found[name] = type(value)(each // factor for each in value)
    return {name: value for name, value in found.items() if value != fields[name]}


def _rope(fields: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Sections of a rotary embedding with several axes, which share half a head."""
    changed: dict[str, Any] = {}
    for name in ("rope_parameters", "rope_scaling"):
        value = fields.get(name)
        if not isinstance(value, dict) or not isinstance(value.get("mrope_section"), list):
            continue
        merged = {**fields, **found}
        heads, width = merged.get("num_attention_heads") or 1, merged.get("hidden_size") or 64
        part = value.get("partial_rotary_factor") or merged.get("partial_rotary_factor") or 1.0
        half = int((merged.get("head_dim") or width // heads) * part) // 2
        sections = value["mrope_section"]
        scaled = [max(1, half * each // sum(sections)) for each in sections]
        scaled[0] += half - sum(scaled)
        changed[name] = {**value, "mrope_section": scaled}
    return changed
