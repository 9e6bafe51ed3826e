"""Programs and weights as the compile service gets them, made to harm: each refused by the name of its fault."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_mlir import ir

import disc
from disc.api import compile_imported
from disc.errors import UnsupportedFormatError
from disc.frontend.models import import_model
from disc.frontend.portable import read_portable, write_portable
from disc.frontend.stablehlo import import_stablehlo
from disc.ir.dialect import make_context
from disc.speculation.session import open_session


class Tied(nn.Module):
    """Two names, one weight; several results."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.second(x).sum(-1)


def sent(model: nn.Module, folder: Path) -> tuple[bytes, bytes]:
    imported = import_model(model.eval(), (torch.randn(3, 4),), None, make_context())
    program = write_portable(imported, folder / "weights")
    return program, (folder / "weights").read_bytes()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    return sent(nn.Linear(4, 4), tmp_path_factory.mktemp("sent"))


def refuse(program: bytes, weights: bytes, text: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=text):
        read_portable(program, weights, single=True, context=make_context())


@pytest.mark.parametrize("single", [False, True])
def test_there_and_back(tmp_path: Path, single: bool) -> None:
    model, x = (nn.Linear(4, 4) if single else Tied()).eval(), torch.randn(5, 4)
    program, weights = sent(model, tmp_path)
    imported = read_portable(program, weights, single=single, context=make_context())
    result = compile_imported(imported, open_session(options=disc.Options(cache=False)))(x)
    torch.testing.assert_close(result, model(x))
    assert len(weights) < 64 * 4 * 2 + 1000  # the shared weight once


def header(content: object) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


def tensor(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


WEIGHTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no safetensors file"),
    "pickle": (b"\x80\x04\x95cos\nsystem\n" * 20, "no safetensors file"),
    "zip": (b"PK\x03\x04" + bytes(100), "no safetensors file"),
    "header of 2^64-1 bytes": (b"\xff" * 8 + b"{}", "no safetensors file"),
    "header of 200 MB": (struct.pack("<Q", 200 << 20) + b"{}", "no safetensors file"),
    "header beyond the file": (struct.pack("<Q", 100) + b"{}", "no safetensors file"),
    "no JSON": (header(b"hello"), "no safetensors file"),
    "a list": (header([]), "no safetensors file"),
    "deep": (header(b"[" * 100_000), "no safetensors file"),
    "not UTF-8": (header(b'{"\xff": 1}'), "no safetensors file"),
    "overlap": (header({"a": tensor(), "b": tensor(offsets=(4, 12))}) + bytes(12), "no safetensors file"),
    "the same place": (header({"a": tensor(), "b": tensor()}) + bytes(8), "no safetensors file"),
    "gap": (header({"a": tensor(offsets=(8, 16))}) + bytes(16), "no safetensors file"),
    "beyond the file": (header({"a": tensor(shape=(4,), offsets=(0, 16))}) + bytes(8), "no safetensors file"),
    "more bytes": (header({"a": tensor()}) + bytes(16), "no safetensors file"),
    "negative offset": (header({"a": tensor(offsets=(-8, 0))}) + bytes(8), "no safetensors file"),
    "end before begin": (header({"a": tensor(offsets=(8, 0))}) + bytes(8), "no safetensors file"),
    "offset 2^64": (header({"a": tensor(offsets=(0, 2**64))}) + bytes(8), "no safetensors file"),
    "shape does not fit": (header({"a": tensor(shape=(3,))}) + bytes(8), "no safetensors file"),
    "shape whose product wraps": (header({"a": tensor(shape=(2**32, 2**32, 2))}) + bytes(8), "no safetensors file"),
    "negative dim": (header({"a": tensor(shape=(-2,))}) + bytes(8), "no safetensors file"),
    "unknown dtype": (header({"a": tensor(dtype="OBJECT")}) + bytes(8), "no safetensors file"),
    "complex": (header({"a": tensor(dtype="C64", shape=(1,))}) + bytes(8), "no safetensors file|element type C64"),
    "8-bit floats": (header({"a": tensor(dtype="F8_E4M3", shape=(8,))}) + bytes(8), "element type F8_E4M3, which is not supported"),
    "bool of 2": (header({"a": tensor(dtype="BOOL", shape=(8,))}) + b"\2" * 8, "weight 'a' holds a bool that is neither 0 nor 1"),
    "shares nothing": (header({"__metadata__": {"b": "same as c"}, "a": tensor()}) + bytes(8), "'b' shares the storage of 'c', which is not there"),
    "shares with itself": (header({"__metadata__": {"b": "same as b"}, "a": tensor()}) + bytes(8), "which is not there"),
    "shares and is": (header({"__metadata__": {"a": "same as a"}, "a": tensor()}) + bytes(8), "which is not there"),
    "another weight": (header({"a": tensor()}) + bytes(8), "reads the weight '.*', which is not among the weights"),
    "another type": (header({"weight": tensor(dtype="F64", shape=(4, 4), offsets=(0, 128)), "bias": tensor(shape=(4,), offsets=(128, 144))}) + bytes(144), "reads the weight 'weight' as tensor<4x4xf32>, but it is f64"),
    "another shape": (header({"weight": tensor(shape=(16,), offsets=(0, 64)), "bias": tensor(shape=(4,), offsets=(64, 80))}) + bytes(80), "reads the weight 'weight' as tensor<4x4xf32>, but it is f32 \\[16\\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_refused_by_name(good: tuple[bytes, bytes], name: str) -> None:
    content, text = WEIGHTS[name]
    refuse(good[0], content, text)


PROGRAMS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "@main"),
    "text": (b"hello", "does not parse"),
    "not UTF-8": (b"\xff\xfe\xfd", "does not parse"),
    "no function": (b"module {}", "does not have one function, @main"),
    "a declaration": (b"func.func private @main() -> ()", "does not have one function, @main"),
    "two functions": (b"func.func @main() { return }\nfunc.func @other() { return }", "does not have one function, @main"),
    "no names": (b"func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }", "disc.result_names or disc.symbols is missing"),
    "too few names": (b"module attributes {disc.result_names = [], disc.symbols = {}} { func.func @main(%x: tensor<2xf32> {disc.name = \"x\"}) -> tensor<2xf32> { return %x : tensor<2xf32> } }", "not every input and result has a name"),
    "an input without a name": (b"module attributes {disc.result_names = [\"y\"], disc.symbols = {}} { func.func @main(%x: tensor<2xf32> {disc.other = \"x\"}) -> tensor<2xf32> { return %x : tensor<2xf32> } }", "an input or result has no name"),
    "a custom op": (b"module attributes {disc.result_names = [], disc.symbols = {}} { func.func @main() { \"external.call\"() : () -> () return } }", "the program calls a custom op"),
    "names that are numbers": (b"module attributes {disc.result_names = [1], disc.symbols = {}} { func.func @main(%x: tensor<2xf32> {disc.name = \"x\"}) -> tensor<2xf32> { return %x : tensor<2xf32> } }", "an input or result has no name"),
    "bytecode cut off": (b"ML\xefR\x0dMLIR", "does not parse"),
    "bytecode of the future": (b"ML\xefR\xff\xff\xff\xff\xff\xff\xff\xff\xff", "does not parse"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_refused_by_name(good: tuple[bytes, bytes], name: str) -> None:
    content, text = PROGRAMS[name]
    refuse(content, header({"a": tensor()}) + bytes(8), text)


def test_cut_bytecode_is_refused(good: tuple[bytes, bytes]) -> None:
    for length in range(4, len(good[0]), 17):
        with pytest.raises(UnsupportedFormatError):
            read_portable(good[0][:length], good[1], single=True, context=make_context())


def test_every_bit_of_a_weights_header_is_refused_or_changes_nothing(good: tuple[bytes, bytes]) -> None:
    size = 8 + int.from_bytes(good[1][:8], "little")
    content = header(json.loads(good[1][8:size]) | {"__metadata__": {"note": "read by nobody"}}) + good[1][size:]
    size = 8 + int.from_bytes(content[:8], "little")
    context = make_context()
    wanted = read_weights(good[0], content, context)
    assert wanted == read_weights(*good, context)
    same = 0
    for bit in range(8 * size):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = read_weights(good[0], bytes(flipped), context)
        except UnsupportedFormatError:
            continue
        assert found == wanted, bytes(flipped[:size])
        same += 1
    assert len("read by nobody") < same < size  # some bits of the note, and nothing else


def read_weights(program: bytes, weights: bytes, context: ir.Context) -> dict[str, tuple[str, list[object]]]:
    table = read_portable(program, weights, single=True, context=context).weights
    return {name: (table[name].dtype, table[name].array.tolist()) for name in table}


SQUARE = "func.func @main(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {{ {} return %a : tensor<?x4xf32> }}"
HUGE = f"tensor<?x{1 << 62}xf32>"
TEXTS = {
    "attributes nested 100,000 deep": ("module attributes {a.a = " + "[" * 100_000 + "]" * 100_000 + "} {}", "nested 100001 deep; 256 are the limit"),
    "types nested 5,000 deep": ("func.func private @f(" + "tuple<" * 5000 + "i1" + ">" * 5000 + ")", "nested 5001 deep"),
    "nested beside arrows that close nothing": ("module { " + "-> " * 9000 + "(" * 5000 + " }", "nested 5001 deep"),
    "regions nested 5,000 deep": (SQUARE.format('"stablehlo.case"(%a) ({' * 5000), "nested 10002 deep"),
    "dims of 2^62": (f"func.func @main(%a: {HUGE}) -> {HUGE} {{ %0 = stablehlo.add %a, %a : {HUGE} return %0 : {HUGE} }}", "more than 2^48 elements"),
    "a constant that is a resource": (
        "func.func @main() -> tensor<4xf32> { %0 = stablehlo.constant dense_resource<w> : tensor<4xf32> return %0 : tensor<4xf32> }"
        + '{-# dialect_resources: { builtin: { w: "0x0400000000000000000000000000000000000000" } } #-}',
        "constants in dense_resource form",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_would_end_the_process_are_refused(case: str) -> None:
    text, words = TEXTS[case]
    with pytest.raises(UnsupportedFormatError, match=re.escape(words)):
        import_stablehlo(text, make_context())


def test_brackets_in_ordinary_programs_are_no_nesting() -> None:
    lines = [f"%{n} = stablehlo.compare GT, %a, %a : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xi1>\n" for n in range(600)]
    assert import_stablehlo(SQUARE.format("".join(lines)), make_context())


CONVOLUTION = """func.func @main(%x: tensor<1x2x4x4xf32>, %w: tensor<3x2x1x1xf32>) -> tensor<1x3x4x4xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, NUMBER, 1]x[o, i, NUMBER, 1]->[b, f, NUMBER, 1], window = {}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x2x4x4xf32>, tensor<3x2x1x1xf32>) -> tensor<1x3x4x4xf32>
  return %0 : tensor<1x3x4x4xf32>
}
"""
POOLING = """func.func @main(%x: tensor<1x8xf32>) -> tensor<1x8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %zero) <{padding = dense<0> : tensor<NUMBERx2xi64>, window_dimensions = array<i64: 1, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<1x8xf32>, tensor<f32>) -> tensor<1x8xf32>
  return %0 : tensor<1x8xf32>
}
"""


@pytest.mark.parametrize(("text", "good", "message"), [(CONVOLUTION, "0", "dimension number"), (POOLING, "2", "a padding of")])
@pytest.mark.parametrize("number", ["2147483648", "99999999999999999999999999"])
def test_numbers_that_end_the_parser(text: str, good: str, message: str, number: str) -> None:
    import_stablehlo(text.replace("NUMBER", good), make_context())
    with pytest.raises(UnsupportedFormatError, match=message):
        import_stablehlo(text.replace("NUMBER", number), make_context())


@pytest.mark.parametrize(("condition", "message"), [("s9 >= 2", "holds s9, which nothing binds"), ("s0 dense<", "cannot be read")])
def test_conditions_of_strangers(tmp_path: Path, condition: str, message: str) -> None:
    path = tmp_path / "program.mlir"
    attributes = f'disc.symbols = {{s0 = {{min = 0 : i64}}}}, disc.conditions = [{{expr = "{condition}"}}]'
    path.write_text(f"""module attributes {{{attributes}}} {{
      func.func @main(%x: tensor<?xf32> {{disc.dims = ["s0"]}}) -> tensor<?xf32> {{
        return %x : tensor<?xf32>
      }}
    }}""")
    with pytest.raises(UnsupportedFormatError, match=message):
        disc.compile(path, options=disc.Options(cache=False))
