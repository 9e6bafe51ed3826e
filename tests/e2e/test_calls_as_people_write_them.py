"""What is called: functions, methods and partials compile as modules do; a mapping is a call by name; cast widens what is narrower."""

from __future__ import annotations

import functools
from collections import UserDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import disc
from disc.errors import DiscError, InputRankError, InputTypeError, UnsupportedFormatError
from disc.ral.widen import is_exact

LINEAR = nn.Linear(4, 3)


def equal(found: object, expected: object) -> bool:
    return isinstance(found, Tensor) and isinstance(expected, Tensor) and torch.equal(found, expected)


def scaled(x: Tensor, scale: float = 2.0) -> Tensor:
    return LINEAR(x) * scale


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.table(ids) * mask[..., None]


@pytest.fixture(scope="module")
def encoder() -> tuple[Encoder, disc.Executable]:
    model = Encoder()
    return model, disc.compile(model.encode, {"ids": torch.zeros(2, 3, dtype=torch.int64), "mask": torch.ones(2, 3)})


@pytest.mark.parametrize("kind", ["function", "partial", "closure"])
def test_functions(kind: str) -> None:
    inner = LINEAR
    function = {"function": scaled, "partial": functools.partial(scaled, scale=3.0), "closure": lambda x: inner(x).relu()}[kind]
    exe = disc.compile(function, torch.randn(2, 4))
    assert exe.inputs[0].name == "x"
    for rows in (0, 1, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(exe(x), function(x).detach())


def test_what_is_no_function_of_tensors() -> None:
    for given in (print, 3, None):
        with pytest.raises(UnsupportedFormatError, match="a function of tensors"):
            disc.compile(given, torch.randn(2))  # pyright: ignore[reportArgumentType]


def test_a_mapping_is_a_call_by_name(encoder: tuple[Encoder, disc.Executable]) -> None:
    model, exe = encoder
    ids, mask = torch.tensor([[1, 9]]), torch.tensor([[1.0, 0.0]])
    expected = model.encode(ids, mask).detach()
    for kind in (dict, UserDict):  # tokenizers give a UserDict
        assert equal(exe(kind(mask=mask, ids=ids)), expected)
    with pytest.raises(InputRankError, match="missing 'mask'; unknown 'masks'"):
        exe({"ids": ids, "masks": mask})
    with pytest.raises(InputTypeError, match="3 is no name"):
        exe({3: ids})


def test_cast_widens_what_stays_exact(encoder: tuple[Encoder, disc.Executable]) -> None:
    model, exe = encoder
    ids, mask = torch.tensor([[1, 9], [0, 3]]), torch.tensor([[True, False], [True, True]])
    expected = model.encode(ids, mask.float()).detach()
    for narrow in (torch.int32, torch.int16, torch.uint8):
        assert equal(exe(ids.to(narrow), mask, cast=True), expected)
    assert equal(exe({"ids": ids.int(), "mask": mask.to(torch.bfloat16)}, cast=True), expected)
    from_numpy = exe(ids.int().numpy(), mask.half().numpy(), cast=True)
    assert isinstance(from_numpy, np.ndarray) and np.array_equal(from_numpy, expected.numpy())
    with pytest.raises(InputTypeError, match=r"expected dtype i64, got i32; with cast=True the call widens it"):
        exe(ids.int(), mask.float())
    with pytest.raises(InputTypeError, match=r"expected dtype i64, got f32$"):
        exe(ids.float(), mask.float(), cast=True)
    with pytest.raises(InputTypeError, match=r"expected dtype f32, got f64$"):
        exe(ids, mask.double(), cast=True)


def test_fixed_arguments_may_be_given_too() -> None:
    exe = disc.compile(scaled, (torch.randn(2, 4), 2.0))
    x = torch.randn(5, 4)
    assert equal(exe(x.half().float(), 2.0), exe(x.half(), 2.0, cast=True))
    assert equal(exe({"x": x, "scale": 2.0}), exe(x))
    with pytest.raises(InputTypeError, match=r"scale was fixed to 2\.0 when the model was compiled, got 3\.0"):
        exe({"x": x, "scale": 3.0})


def test_exactness_against_all_values_of_a_dtype() -> None:
    """Every pair of dtypes, against what a trip there and back does to the ends and to a value with all bits of the mantissa."""
    names = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    for given in names:
        dtype = getattr(torch, given)
        if dtype is torch.bool:
            values = torch.tensor([False, True])
        elif dtype.is_floating_point:
            info = torch.finfo(dtype)
            values = torch.tensor([info.max, info.tiny, info.smallest_normal, 1 + info.eps, float("inf")], dtype=torch.float64).to(dtype)
        else:
            limits = torch.iinfo(dtype)
            values = torch.tensor([limits.min, limits.max, limits.max - 1], dtype=dtype)
        for wanted in set(names) - {given}:
            there = values.to(getattr(torch, wanted))
            exact = bool((there.to(dtype) == values).all() and (there.double() == values.double()).all())
            if dtype is torch.int64 and wanted.startswith("float"):
                exact = False  # 2^63 - 1 becomes 2^63, which the way back saturates
            assert is_exact(given, wanted) == exact, (given, wanted)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_arguments_that_hold_tensors_as_the_models_do() -> None:
    """Each was "expected a tensor, got dict"; the order of keys is the example's, whichever the call has."""

    def model(d: dict[str, Any], pair: Pair, rest: list[Tensor]) -> Tensor:
        return d["a b"] - d["t"][0] * d["t"][1].sum() * d["k"] + pair.left @ pair.right + rest[0]

    def example(n: int, k: int = 2) -> tuple[dict[str, Any], Pair, list[Tensor]]:
        return {"k": k, "t": (torch.randn(n), torch.randn(n + 1)), "a b": torch.randn(n)}, Pair(*torch.randn(2, n)), [torch.randn(n)]

    executable = disc.compile(model, example(3))
    for n in (1, 5):
        d, pair, rest = example(n)
        turned = {"a b": d["a b"], "t": d["t"], "k": 2}
        for result in (executable(d, pair, rest), executable(turned, pair, rest), executable(turned, rest=rest, pair=pair)):
            torch.testing.assert_close(result, model(d, pair, rest))
    with pytest.raises(InputTypeError, match="d_k was fixed to 2"):
        executable(*example(3, 7))
    with pytest.raises(DiscError):
        executable({"a": rest[0]}, pair, rest)
    only = disc.compile(lambda d: d["x"] - d["y"], ({"y": torch.randn(3), "x": torch.randn(3)},))
    x, y = torch.randn(2, 4)
    for result in (only({"x": x, "y": y}), only(d={"y": y, "x": x}), only(d_y=y, d_x=x)):
        torch.testing.assert_close(result, x - y)
