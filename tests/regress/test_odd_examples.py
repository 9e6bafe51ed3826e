"""Examples and callables of kinds that people have, which once failed far from their cause, or were taken without a word."""

import warnings
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch

import disc
from disc.errors import DiscError, DiscWarning, InputRankError, UnsupportedFormatError

X = torch.randn(2, 3)


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


class OfPair(torch.nn.Module):
    def forward(self, pair: Pair, more: OrderedDict[str, torch.Tensor]) -> torch.Tensor:
        more.move_to_end("c")
        return pair.a - pair.b + more["c"]


class OfWords(torch.nn.Module):
    def forward(self, **words: torch.Tensor) -> torch.Tensor:
        return words["a"] + words["b"]


def test_named_tuples_and_ordered_dicts_stay_such() -> None:
    compiled = disc.compile(OfPair(), (Pair(X, X + 1), OrderedDict(c=X, d=X)))
    a, b, c = torch.randn(3, 5, 7)
    torch.testing.assert_close(compiled(a, b, c, c), a - b + c)


def test_inputs_without_names_are_refused_by_theirs() -> None:
    with pytest.raises(InputRankError, match=r"forward takes 'a' by \*\*words: give a module whose forward names its inputs"):
        disc.compile(OfWords(), {"a": X, "b": X})


def test_a_builtin_is_a_function_of_tensors() -> None:
    torch.testing.assert_close(disc.compile(torch.relu, (X,))(torch.ones(4, 5)), torch.ones(4, 5))


def test_a_program_without_inputs_is_warned_of() -> None:
    with pytest.warns(DiscWarning, match="nothing of the example is an input"):
        disc.compile(lambda texts: torch.tensor([len(each) for each in texts]), (["a", "bc"],))


def test_what_is_no_file() -> None:
    with pytest.raises(
        UnsupportedFormatError, match=r"bert-base-uncased: there is no such file; a model is .*disc compile hf:FOLDER --task"
    ):
        disc.compile("bert-base-uncased")


def test_sizes_of_results_are_numbers_where_they_are_fixed() -> None:
    compiled = disc.compile(torch.nn.Linear(3, 4).eval(), (X,))
    assert compiled.outputs[0].dims == ("S0", 4) and compiled.inputs[0].dims == ("S0", 3)


def test_strict_raises_for_an_op_without_a_lowering() -> None:
    strict = torch.compile(lambda x: torch.special.airy_ai(x * 2) + 1, backend="disc", options={"strict": True})
    with pytest.raises(Exception, match=r"(?s)UnsupportedOpError.*airy_ai.*no lowering"):
        strict(X)


def test_lazy_is_a_decorator_with_and_without_parentheses() -> None:
    for decorate in (disc.lazy, disc.lazy(threads=1)):
        function = decorate(lambda x: torch.relu(x) + 1)
        torch.testing.assert_close(function(X), torch.relu(X) + 1)
    with pytest.raises(DiscError, match="takes options by name"):
        disc.lazy(3)


class OfPacked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1][0]


def test_what_pytorch_keeps_in_an_lstm_is_not_warned_of() -> None:
    """Lists of its parameters, which it makes anew where a trace replaces these."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DiscWarning)
        disc.compile(OfPacked().eval(), (torch.randn(2, 5, 3), torch.tensor([5, 2])), options=disc.Options(cache=False))
