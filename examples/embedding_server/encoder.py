"""A sentence encoder, compiled for packed batches: no token of a request is padding, whatever the lengths. Writes models/sentences/1."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import disc

WORDS = ["[PAD]", "[UNK]", "a", "the", "cat", "dog", "sat", "ran", "on", "mat", "very", "far"]


class Encoder(nn.Module):
    """The mean of the states of all tokens that count, of length 1. ids, mask [texts, tokens], 64-bit integers → [texts, features]."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        states = self.bert(input_ids, attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return {"sentence_embedding": nn.functional.normalize(mean, dim=1)}


def main() -> None:
    torch.manual_seed(0)  # random weights: BertModel.from_pretrained("FOLDER") and its tokenizer.json for yours
    config = BertConfig(vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    example = {"input_ids": torch.randint(2, len(WORDS), (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
    executable = disc.compile(Encoder(BertModel(config)).eval(), example, options=disc.Options(packed=True))

    folder = Path("models/sentences/1")
    folder.mkdir(parents=True, exist_ok=True)
    executable.save(folder / "model.disc")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    main()
