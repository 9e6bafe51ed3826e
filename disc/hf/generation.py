"""Generation of text by a compiled program: transformers' own `generate` around it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from disc.errors import InputRankError, InputValueError, ShapeConstraintError, named_arguments
from disc.hf.models import IN_ONE_WAY, DiscModel, check_no_text
from disc.ral.caches import layers_of
from disc.ral.executable import Executable

if TYPE_CHECKING:
    from disc.hf.folders import Folder

OPTIONAL = ("position_ids", "logits_to_keep")  # what some models do not take


class DiscModelForCausalLM(DiscModel, transformers.GenerationMixin):
    """`logits` of the next token, and a cache of keys and values; `generate` is that of transformers (greedy, sampling, beams, streamers).

    One program computes prompts and steps, any number of tokens behind a cache of any length, 0 too: both differ in sizes alone.
    """

    task = "text-generation"
    _is_stateful = False  # to transformers: a cache can go back to an earlier token

    def __init__(self, executable: Executable, config: transformers.PretrainedConfig, folder: Path | None = None) -> None:
        """folder: where the files of the tokenizer, and the settings of generation, lie."""
        super().__init__(executable, config, folder)
        stored = folder is not None and (folder / "generation_config.json").is_file()
        made = transformers.GenerationConfig
        self.generation_config = made.from_pretrained(str(folder)) if stored else made.from_model_config(config)
        self._longest: int | None = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)

    @named_arguments(lambda name: IN_ONE_WAY)
    def save_pretrained(self, folder: Folder) -> None:
        """As of `DiscModel`, and the settings of generation."""
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

    def generate(self, *inputs: Any, **options: Any) -> Any:
        """As of transformers: tokens i64 [batch, prompt + new], or its output with scores where that is asked for. A `DynamicCache` that is
        given as `past_key_values` gets the tokens, too. Raises what `forward` does."""
        if inputs:
            check_no_text("input_ids", inputs[0])
        return super().generate(*inputs, **options)  # pyright: ignore[reportAttributeAccessIssue]: it has what `generate` uses of a model

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
