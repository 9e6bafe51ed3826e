"""Bad ONNX files: every one an error that names the file, the node or tensor, and the reason. Nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser

import disc
from disc.errors import ConfigurationError, DiscError, ExportError, UnsupportedFormatError, UnsupportedOpError
from disc.frontend.onnx.file import read_model
from disc.frontend.onnx.inputs import graph_inputs
from disc.frontend.onnx.module import OnnxModule
from disc.frontend.onnx.ops import RULES, rule_for

HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'
PLAIN = "f (float[n, 4] x) => (float[n, 4] y) { h = Exp (x) y = MatMul (h, w) }"


def plain() -> onnx.ModelProto:
    model = parser.parse_model(HEADER + PLAIN)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    return model


def refusal(path: Path, model: onnx.ModelProto | bytes, kind: type[DiscError]) -> str:
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    with pytest.raises(kind) as caught:
        disc.compile(path)
    assert type(caught.value) is kind
    return str(caught.value)


def test_damaged_files(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.onnx", plain().SerializeToString()
    assert "not a whole ONNX model" in refusal(path, whole[: len(whole) - 7], UnsupportedFormatError)
    assert "not an ONNX model" in refusal(path, b"", UnsupportedFormatError)
    assert "m.onnx" in refusal(path, b"\x00" * 64, UnsupportedFormatError)
    for cut in range(1, len(whole), 5):  # wherever it is cut
        refusal(path, whole[:cut], UnsupportedFormatError)


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "y"


def _dangling(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[1] = "nowhere"


def _output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "z"


def _old(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 8
    body = helper.make_graph([helper.make_node("Identity", ["i"], ["o"])], "body", [_float("i")], [_float("o")])
    model.graph.node.append(helper.make_node("Scan", ["", "x"], ["s"], body=body, num_scan_inputs=1))


def _float(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])


def _new(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 999


def _types(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 4), np.int64), "w"))


def _kind(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL


def _dims(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 5


def _negative(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -4


def _huge(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 2**60


def _attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("speed", 3))


def _twice(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


FAULTS: list[tuple[Callable[[onnx.ModelProto], None], str]] = [
    (_cycle, r"node Exp_1 \(Exp\) reads 'y', which a later node makes: the graph has a cycle"),
    (_dangling, r"node MatMul_2 \(MatMul\) reads 'nowhere', which nothing makes"),
    (_output, "its output 'z' is what nothing makes"),
    (_old, "of operator set 8, whose Exp, Identity, MatMul, Scan changed since, cannot be converted; export it anew"),
    (_new, "operator set 999 is not supported; disc reads 1 to"),
    (_types, r"m\.onnx:MatMul_2:2: node 'MatMul_2' \(MatMul\): input 'B' is int64, another one is float"),
    (_kind, r"'Exp_1' \(Exp\): input 'input' is a tensor of bool, which Exp does not take"),
    (_dims, "tensor 'w' does not have the data of its dims"),
    (_negative, "tensor 'w' has the dims"),
    (_huge, "tensor 'w' does not have the data of its dims"),
    (_attribute, "not a valid ONNX model.*speed"),
    (_twice, "two initializers have one name"),
]


@pytest.mark.parametrize(("damage", "message"), FAULTS, ids=[damage.__name__.strip("_") for damage, _ in FAULTS])
def test_faults(damage: Callable[[onnx.ModelProto], None], message: str, tmp_path: Path) -> None:
    model = plain()
    damage(model)
    text = refusal(tmp_path / "m.onnx", model, UnsupportedFormatError)
    import re

    assert re.search(message, text, re.DOTALL), text


def test_all_unknown_operators_at_once(tmp_path: Path) -> None:
    model = plain()
    model.opset_import.append(helper.make_opsetid("acme", 1))
    model.graph.node.extend([helper.make_node("Explode", ["x"], ["a"], name="boom", domain="acme"), helper.make_node("Nope", ["x"], ["b"])])
    text = refusal(tmp_path / "m.onnx", model, UnsupportedOpError)
    assert "2 ops of this model" in text
    assert "onnx.acme.Explode at m.onnx:boom:3: disc has no rule for this operator of the domain" in text
    assert "onnx.Nope at m.onnx:Nope_4:4: operator set 17 has no such operator" in text


def test_what_depends_on_data_names_the_node(tmp_path: Path) -> None:
    model = parser.parse_model(HEADER + "f (float[n, 4] x, int64[2] axes) => (float y) { y = ReduceSum (x, axes) }")
    model.graph.node[0].name = "/head/Sum"
    text = refusal(tmp_path / "m.onnx", model, UnsupportedOpError)
    assert "onnx.ReduceSum at m.onnx:/head/Sum:1: its axes depend on data" in text


def test_what_has_no_lowering_names_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, ("", "Det"), lambda node: torch.special.airy_ai(node.tensor(0)))
    model = parser.parse_model(HEADER + "f (float[3, 3] x) => (float y) { y = Det (x) }")
    model.graph.node[0].name = "/head/Det"
    assert "m.onnx:/head/Det:1" in refusal(tmp_path / "m.onnx", model, UnsupportedOpError)


def test_shapes_that_contradict_name_the_node(tmp_path: Path) -> None:
    with pytest.raises(DiscError, match=r"m\.onnx:MatMul_1:1: node 'MatMul_1' \(MatMul\) cannot be computed"):
        onnx.save(parser.parse_model(HEADER + "f (float[2, 3] x) => (float[2, 2] y) { y = MatMul (x, x) }"), tmp_path / "m.onnx")
        disc.compile(tmp_path / "m.onnx")


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname", "link.bin", "missing.bin", "", "sub/../../outside.bin"])
def test_external_data_outside_of_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(64))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    text = refusal(folder / "m.onnx", _external(location), UnsupportedFormatError)
    assert "tensor 'w' has its data in" in text and "model's folder" in text


@pytest.mark.parametrize(("offset", "length"), [("0", "65"), ("8", "64"), ("-1", "64"), ("x", "64"), ("0", "32"), ("9" * 30, "64")])
def test_external_data_at_no_place_of_its_file(offset: str, length: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    assert "tensor 'w'" in refusal(tmp_path / "m.onnx", _external("w.bin", offset, length), UnsupportedFormatError)


def _external(location: str, offset: str = "0", length: str = "64") -> onnx.ModelProto:
    model = plain()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    return model


def test_functions_that_call_themselves_or_grow(tmp_path: Path) -> None:
    header = '<ir_version: 9, opset_import: ["" : 17, "l" : 1]>\n'
    call = "f (float[n] x) => (float[n] y) { y = l.f0 (x) }\n"
    local = '<domain: "l", opset_import: ["" : 17, "l" : 1]>\n'
    circle = parser.parse_model(header + call + local + "f0 (a) => (b) { b = l.f0 (a) }")
    assert "function 'f0' calls itself" in refusal(tmp_path / "m.onnx", circle, UnsupportedFormatError)
    doubling = [f"{local}f{i} (a) => (c) {{ b = l.f{i + 1} (a) c = l.f{i + 1} (b) }}" for i in range(40)]
    many = parser.parse_model(header + call + "\n".join([*doubling, local + "f40 (a) => (b) { b = Exp (a) }"]))
    assert "more than 1000000 nodes" in refusal(tmp_path / "m.onnx", many, UnsupportedFormatError)


def test_random_damage_is_refused_or_read(tmp_path: Path) -> None:
    """Bytes changed, removed and added: no exception but those of `disc.errors` comes out of reading, whatever it is read as."""
    random, path, kinds = Random(0), tmp_path / "m.onnx", set[type]()
    files = tuple(model.SerializeToString() for model in (parser.parse_model(FUNCTIONS), plain(), parser.parse_model(OLD), _packed()))
    for _ in range(300):
        data = bytearray(random.choice(files))
        for _ in range(random.choice((1, 2, 4))):
            at = random.randrange(len(data))
            data[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
        path.write_bytes(data)
        try:
            model = read_model(path, lambda domain, op: rule_for(domain, op) is not None)
            OnnxModule(model, graph_inputs(model.graph, model.weights))
            kinds.add(type(None))
        except (UnsupportedFormatError, UnsupportedOpError, ExportError) as error:
            kinds.add(type(error))
    assert UnsupportedFormatError in kinds and len(kinds) > 1


FUNCTIONS = """<ir_version: 9, opset_import: ["" : 17, "l" : 1]>
f (float[n, 4] x) => (float[n, 4] y) { k = Constant <value: tensor = float[2] {1, 2}> () s = Shape (x) y = l.g (x) }
<domain: "l", opset_import: ["" : 17]> g (a) => (b) { b = Exp (a) }"""


OLD = """<ir_version: 4, opset_import: ["" : 9]>
f (float[n, 4] x) => (float[n, 4] y) { s = Softmax <axis: int = 1> (x) k = Constant <value: tensor = float[4] {1, 2, 3, 4}> () y = Add (s, k) }"""


def _packed() -> onnx.ModelProto:
    """With weights of 4 and 8 bits."""
    text = "f (float[n, 4] x) => (float[n, 4] y) { c = Cast <to: int = 1> (e) d = Cast <to: int = 1> (w) s = Mul (c, d) y = Add (x, s) }"
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>' + text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 4), ml_dtypes.int4), "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 4), ml_dtypes.float8_e5m2), "e"))
    return model


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    onnx.save(plain(), tmp_path / "m.onnx")
    for name in [name for name in sys.modules if name.startswith("disc.frontend.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigurationError, match="needs the package 'onnx'; install it with"):
        disc.compile(tmp_path / "m.onnx")
