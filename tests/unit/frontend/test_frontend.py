"""The import of whole models: what a module at stage `imported` looks like, what belongs to it, and every refusal."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.errors import UnsupportedFormatError, UnsupportedOpError
from disc.frontend.exported import export_module, import_exported, load_pt2
from disc.frontend.imported import Imported
from disc.frontend.stablehlo import import_stablehlo, load_stablehlo
from disc.frontend.symbols import to_text
from disc.ir.dialect import make_context
from tests.models import MODELS, shapes
from tests.unit.frontend.test_frontend_ops import assert_agrees, named


def imported_model(name: str) -> tuple[nn.Module, Imported]:
    model, inputs, dynamic_shapes = MODELS[name]()
    return model, import_exported(export_module(model, inputs, dynamic_shapes), make_context())


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "vit", "resnet", "mlp"])
def test_model_agrees_with_pytorch(name: str) -> None:
    model, inputs, _ = MODELS[name]()
    imported = imported_model(name)[1]
    from disc.ir.passes import CompileState, run_passes
    from disc.passes.shape.name_dims import NameDims
    from disc.passes.shape.resolve_broadcasts import ResolveBroadcasts

    run_passes(imported.module, [NameDims(), ResolveBroadcasts()], CompileState(weights=imported.weights))
    for sample in [inputs, *shapes(name)[:4]]:
        assert_agrees(imported, model, sample, 1e-3)


def test_deterministic() -> None:
    first, second = (str(imported_model("bert")[1].module) for _ in range(2))
    assert first == second


class Weights(nn.Module):
    """Tied parameters, buffers of both kinds, a plain tensor attribute, a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4))
        self.second = self.first
        self.kept = nn.Buffer(torch.randn(4))
        self.scratch = nn.Buffer(torch.randn(4), persistent=False)
        self.plain = torch.randn(4)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, nothing: None = None) -> dict[str, object]:
        y = (x + self.first + self.scratch) * self.plain + self.second * self.kept
        return {"y": y, "rest": (y * scale + torch.tensor([1.0, 2.0, 3.0, 4.0]), nothing)}


def test_weights_are_views_of_the_parameters() -> None:
    model = Weights()
    program = export_module(model, (torch.randn(3, 4),), kwargs={"scale": torch.randn(4)})
    imported = import_exported(program, make_context())
    arrays = [weight.array for weight in imported.weights.entries.values()]
    assert len(arrays) == 5
    assert np.shares_memory(next(a for a in arrays if np.array_equal(a, model.first.detach())), model.first.detach().numpy())
    assert imported.input_names == ("x", "scale")


def test_outputs_are_rebuilt() -> None:
    program = export_module(Weights(), (torch.randn(3, 4),), kwargs={"scale": torch.randn(4)})
    outputs = import_exported(program, make_context()).outputs
    assert outputs.rebuild(["y", "z"]) == {"y": "y", "rest": ("z", None)}


def test_symbols_and_dims() -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2, 4).sum(1)  # whose sizes are those of the call, not dims of the example that happen to be 4

    text = str(import_exported(export_module(Pairs(), (torch.randn(6, 4),)), make_context()).module)
    assert re.search(r'disc.dims = \["s\d+", "s\d+"\], disc.name = "x"', text)
    assert re.search(r'expr = "mod\(s\d+ \* s\d+, 8\) == 0", why = "decided .*test_frontend.py:84"', text)
    assert "min = 0" in text and "max" not in text


def test_minimum_that_the_model_needs() -> None:
    """x[2:] has a size of s0 - 2 in PyTorch's arithmetic, so sizes below 2 are refused rather than computed wrongly."""

    class Tail(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[2:]

    text = str(import_exported(export_module(Tail(), (torch.randn(5),)), make_context()).module)
    assert "min = 2" in text


def test_dim_that_the_model_fixes_is_static() -> None:
    imported = import_exported(export_module(nn.Linear(4, 2), (torch.randn(1, 4),)), make_context())
    assert "tensor<?x4xf32>" in str(imported.module)


def test_expressions() -> None:
    from sympy import Integer, Max, Symbol
    from torch.utils._sympy.functions import FloorDiv

    s0, s1 = Symbol("s0", integer=True, positive=True), Symbol("s1", integer=True, positive=True)
    assert to_text(s0 * 2 + 1) == "s0 * 2 + 1"
    assert to_text(FloorDiv(s0 - 1, Integer(2)) * s1) in ("s1 * floordiv(s0 - 1, 2)", "floordiv(s0 - 1, 2) * s1")
    assert to_text(Max(s0, 3)) == "max(3, s0)"


# --- refusals -------------------------------------------------------------------------------------------------------------------


def refusal(model: nn.Module, *inputs: torch.Tensor) -> UnsupportedOpError:
    with pytest.raises(UnsupportedOpError) as caught:
        import_exported(export_module(model, inputs), make_context())
    return caught.value


class ThreeMissing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ordered = torch.special.airy_ai(x)
        return ordered.sum() + torch.special.hermite_polynomial_h(x, x).sum() + torch.special.laguerre_polynomial_l(x, x).sum()


def test_every_unsupported_op_is_listed_with_its_line() -> None:
    error = refusal(ThreeMissing(), torch.randn(4, 5))
    assert [op.op for op in error.ops] == [
        "aten.special_airy_ai.default",
        "aten.special_hermite_polynomial_h.default",
        "aten.special_laguerre_polynomial_l.default",
    ]
    assert all(re.search(r"test_frontend\.py:\d+$", op.location) for op in error.ops)


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_branches_on_data_are_reported() -> None:
    error = refusal(Branch(), torch.randn(4, 5))
    assert "data" in str(error)
    assert "test_frontend.py:" in str(error)


# --- files ----------------------------------------------------------------------------------------------------------------------

PROGRAM = """
func.func private @twice(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = stablehlo.add %a, %a : tensor<?x4xf32>
  return %0 : tensor<?x4xf32>
}
func.func @net(%a: tensor<?x4xf32>, %b: tensor<20x20xTYPE>) -> (tensor<?x4xf32>, tensor<20x20xTYPE>) {
  %0 = func.call @twice(%a) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %c = stablehlo.constant dense<VALUES> : tensor<20x20xTYPE>
  %s = stablehlo.constant dense<1.0> : tensor<20x20xTYPE>
  %1 = stablehlo.add %b, %c : tensor<20x20xTYPE>
  %2 = stablehlo.add %1, %s : tensor<20x20xTYPE>
  return %0, %2 : tensor<?x4xf32>, tensor<20x20xTYPE>
}
"""


def program(kind: str) -> str:
    values = np.arange(400.0).reshape(20, 20).tolist()
    return PROGRAM.replace("TYPE", kind).replace("VALUES", str(values))


def test_stablehlo_text() -> None:
    imported = import_stablehlo(program("f32"), make_context())
    text = str(imported.module)
    assert "call" not in text and "func.func @main" in text
    assert "dense<1.000000e+00>" in text
    assert np.array_equal(imported.weights["constant"].array, np.arange(400.0, dtype=np.float32).reshape(20, 20))
    assert imported.input_names == ("arg0", "arg1")


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_stablehlo_bytecode(kind: str) -> None:
    portable = _stablehlo.serialize_portable_artifact_str(program(kind), "1.0.0")
    imported = import_stablehlo(portable, make_context())
    assert np.array_equal(imported.weights["constant"].array.astype(np.float64), np.arange(400.0).reshape(20, 20))


def test_stablehlo_refusals(tmp_path: Path) -> None:
    context = make_context()
    cases = {"x.tflite": r"x\.tflite: StableHLO files have the suffix \.mlir or \.mlirbc", "x.mlir": r"x\.mlir:1:"}
    for name, message in cases.items():
        (tmp_path / name).write_text("func.func @f(")
        with pytest.raises(UnsupportedFormatError, match=message):
            load_stablehlo(tmp_path / name, context)
    with pytest.raises(UnsupportedFormatError, match="2 public functions"):
        import_stablehlo("module { func.func @a() {return} func.func @b() {return} }", context)
    with pytest.raises(UnsupportedFormatError, match="neither MLIR text nor bytecode"):
        import_stablehlo(b"\xff\xfe\x00", context)


def test_pt2_round_trip_and_other_version(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    path = tmp_path / "model.pt2"
    torch.export.save(export_module(model, (torch.randn(3, 4),)), path)
    assert import_exported(load_pt2(path), make_context()).input_names == ("input",)
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(torch.__version__.encode(), b"1.99.0"))
    with pytest.raises(UnsupportedFormatError, match=r"1\.99\.0.*this is PyTorch"):
        load_pt2(other)
    (tmp_path / "text.pt2").write_text("no archive")
    with pytest.raises(UnsupportedFormatError, match=r"not a \.pt2 archive"):
        load_pt2(tmp_path / "text.pt2")


def test_pt2_that_pytorch_cannot_load_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch logs the reason with its traceback, and raises that something was logged."""
    path, other = tmp_path / "model.pt2", tmp_path / "other.pt2"
    torch.export.save(export_module(nn.Linear(4, 2), (torch.randn(3, 4),)), path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            target.writestr(name, re.sub(rb'"schema_version": \{"major": \d+', b'"schema_version": {"major": 99', source.read(name)))
    with pytest.raises(UnsupportedFormatError, match=r"other\.pt2: PyTorch cannot load this program: SerializeError: .*major=99"):
        load_pt2(other)
    assert "deserializing" not in caplog.text


def test_context_is_the_callers() -> None:
    context = make_context()
    imported = import_stablehlo("func.func @main() { return }", context)
    assert isinstance(imported.module, ir.Module) and imported.module.context == context


def test_named_import_of_a_model() -> None:
    model = nn.Linear(4, 2)
    assert_agrees(named(model, (torch.randn(3, 4),)), model, (torch.randn(7, 4),))
