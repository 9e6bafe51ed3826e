"""What cannot be exported, or was not meant: one message each, every one a `DiscError`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.export import Dim

import disc
from disc.errors import (
    CompilerBug,
    DiscError,
    DiscWarning,
    ExportError,
    InputRankError,
    InputTypeError,
    ShapeConstraintError,
    TargetError,
    UnsupportedFormatError,
    UnsupportedOpError,
)
from disc.frontend.exported import export_module, import_exported
from disc.ir.dialect import make_context

OPTIONS = disc.Options(cache=False, threads=1)


class Calls(nn.Module):
    """forward(x, y, ...) by a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, *others: object) -> object:
        return self.function(x, *others)


class Subclass(torch.Tensor):
    pass


def linear() -> nn.Module:
    return nn.Linear(4, 4).eval()


X = torch.randn(3, 4)


# --- example inputs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "example", [X, X.numpy(), (X,), [X], (X.numpy(),), {"input": X}], ids=["tensor", "array", "tuple", "list", "arrays", "names"]
)
def test_one_tensor_is_one_input(example: object) -> None:
    model = linear()
    executable = disc.compile(model, example, options=OPTIONS)  # pyright: ignore[reportArgumentType]
    assert len(executable.manifest["inputs"]) == 1
    other = torch.randn(7, 4)
    torch.testing.assert_close(executable(other), model(other))


EXAMPLES: dict[str, tuple[object, type[DiscError], str]] = {
    "number": (3, InputTypeError, r"example_inputs is a int; write disc.compile\(model, \(x, mask\)\)"),
    "text": ("x", InputTypeError, "example_inputs is a str; write"),
    "generator": ((x for x in [X]), InputTypeError, "example_inputs is a generator; write"),
    "set": ({1}, InputTypeError, "example_inputs is a set; write"),
    "mapping without names": ({1: X}, InputTypeError, "a mapping has the inputs by name; 1 is no name"),
    "array of objects": ((np.array([None]),), InputTypeError, "an array of object"),
    "too many": ((X, X), InputRankError, "example_inputs do not fit forward.*too many positional arguments"),
    "too few": ((), InputRankError, "missing a required argument: 'input'"),
    "unknown name": ({"x": X}, InputRankError, "missing a required argument: 'input'"),
    "fake": ((FakeTensorMode().from_tensor(X),), InputTypeError, "example of input 'input': a FakeTensor has no data"),
    "meta": ((X.to("meta"),), InputTypeError, "example of input 'input': a tensor on the meta device has no data"),
    "subclass": ((X.as_subclass(Subclass),), InputTypeError, "tensors of the subclass Subclass are not supported"),
    "sparse": ((X.to_sparse(),), InputTypeError, "tensors of layout sparse_coo are not supported"),
    "quantized": ((torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),), InputTypeError, "quantized tensors are not supported"),
    "other width": ((torch.randn(3, 5),), ExportError, r"the model does not accept the example inputs: .*\[3, 5\] X \[4, 4\]"),
    "other dtype": ((X.long(),), UnsupportedOpError, "operands of different types .torch.float32, torch.int64."),
    "complex": ((X.to(torch.complex64),), DiscError, "complex"),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    example, kind, text = EXAMPLES[name]
    with pytest.raises(kind, match=text):
        disc.compile(linear(), example, options=OPTIONS)  # pyright: ignore[reportArgumentType]
    assert "Traceback" not in capfd.readouterr().err  # PyTorch prints pages of its own source otherwise


# --- models ---------------------------------------------------------------------------------------------------------------------


def branches(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def halves(x: torch.Tensor) -> torch.Tensor:
    while x.abs().max() > 1:
        x = x / 2
    return x


def quantized_by_pytorch() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})


MODELS: dict[str, tuple[Callable[[], nn.Module], type[DiscError], str]] = {
    "TorchScript": (lambda: torch.jit.script(linear()), UnsupportedFormatError, "a TorchScript module cannot be compiled"),
    "weights without data": (lambda: nn.Linear(4, 4, device="meta"), UnsupportedFormatError, "weight 'weight': a tensor on the meta device"),
    "quantized by PyTorch": (quantized_by_pytorch, UnsupportedFormatError, "Linear '0' is quantized by PyTorch"),
    "branch on data": (lambda: Calls(branches), UnsupportedOpError, r"a branch in Python that depends on data at .*test_export_errors.py:\d+: use torch.cond"),
    "loop on data": (lambda: Calls(halves), UnsupportedOpError, r"a branch in Python that depends on data at .*test_export_errors.py:\d+: .*torch.while_loop"),
    "range of data": (lambda: Calls(lambda x: sum(x * i for i in range(int(x.sum())))), UnsupportedOpError, r"a number in Python that depends on data at .*test_export_errors.py:\d+"),
    "equal": (lambda: Calls(lambda x: x if torch.equal(x, -x) else -x), UnsupportedOpError, r"depends on data at .*test_export_errors.py:\d+: aten.equal.default gives"),
    "size in a branch": (lambda: Calls(lambda x: torch.cond(x.sum() > 0, lambda x: (x[x > 0] + x.flatten()).sum(), torch.sum, (x,))), UnsupportedOpError, r"at .*test_export_errors.py:\d+: in a branch or a loop it may be 0, and other sizes may not depend on it"),
    "result without a type": (lambda: Calls(lambda x: object()), ExportError, "torch.export"),
    "raises": (lambda: Calls(lambda x: [][0]), ExportError, "the model does not accept the example inputs: IndexError at .*test_export_errors.py"),
    "no shape rule": (lambda: Calls(lambda x: torch.geqrf(x)[0]), UnsupportedOpError, "PyTorch cannot infer the shape of its result"),
    "strided kernel": (lambda: Calls(lambda x: nn.functional.conv_transpose1d(x[None], x[:, None], stride=2, output_padding=1)), DiscError, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, kind, text = MODELS[name]
    with pytest.raises(kind, match=text) as caught:
        disc.compile(make().eval() if name != "TorchScript" else make(), (X,), options=OPTIONS)
    assert len(str(caught.value)) < 1000
    printed = capfd.readouterr().err
    assert "Traceback" not in printed and "def forward" not in printed


TRAINING: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
    "dropout": (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), ("aten.dropout.default",)),
    "batch norm": (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), ("aten.batch_norm.default",)),
    "both": (nn.Sequential(nn.BatchNorm1d(4), nn.AlphaDropout(0.1)), ("aten.batch_norm.default", "aten.alpha_dropout.default")),
    "rrelu": (nn.Sequential(nn.RReLU()), ("aten.rrelu.default",)),
}


@pytest.mark.parametrize("name", TRAINING)
def test_a_model_in_training_mode_says_so(name: str) -> None:
    model, ops = TRAINING[name]
    with pytest.warns(DiscWarning, match=r"the model is in training mode.*call model.eval\(\)") as caught:
        disc.compile(copy.deepcopy(model).train(), (X,), options=OPTIONS)
    lines = "\n".join(str(each.message) for each in caught).splitlines()
    assert tuple(line.split()[0] for line in lines if line.startswith("  aten.")) == ops
    torch.testing.assert_close(disc.compile(model.eval(), (X,), options=OPTIONS)(X), model(X))


def test_what_does_the_same_in_training_is_compiled() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.0), nn.GELU()).train()
    torch.testing.assert_close(disc.compile(model, (X,), options=OPTIONS)(X), model(X).detach())


def test_a_defect_of_the_front_end_is_a_compiler_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise KeyError("val")

    monkeypatch.setattr("disc.frontend.exported.lower_graph", fails)
    with pytest.raises(CompilerBug, match=r"compiler bug in the front end, at test_export_errors.py:\d+: KeyError: 'val'"):
        import_exported(export_module(linear(), (X,)), make_context())


# --- dynamic_shapes -------------------------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[object, str]] = {
    "wrong key": ({"x": None}, "dynamic_shapes names 'x', which is no input of this call; the inputs are 'input'"),
    "no key": ({}, "dynamic_shapes has no entry for input 'input'"),
    "too few": ((), r"dynamic_shapes has 0 entries for 1 inputs \('input'\)"),
    "a number": (3, "dynamic_shapes is a int"),
    "no such dim": (({7: Dim("b")},), "dynamic_shapes has an entry for dim 7 of input .*, which has 2 dims"),
    "a dim that a weight fixes": (({1: Dim("b", min=2)},), "dynamic_shapes does not fit the model: .*Suggested fixes: b = 4|dynamic_shapes does not fit the model"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_dynamic_shapes(name: str) -> None:
    shapes, text = SHAPES[name]
    with pytest.raises(ShapeConstraintError, match=text):
        disc.compile(linear(), (X,), shapes, options=OPTIONS)  # pyright: ignore[reportArgumentType]


def test_an_entry_of_no_kind() -> None:
    with pytest.raises(ExportError, match=r"2\.5"):
        disc.compile(linear(), (X,), ({0: 2.5},), options=OPTIONS)


# --- values that are fixed ------------------------------------------------------------------------------------------------------


def scaled(x: torch.Tensor, scale: float, mode: str, mask: torch.Tensor | None = None) -> torch.Tensor:
    return x * scale + (1 if mode == "one" else 2) + (0 if mask is None else mask)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, scale: float, mode: str, mask: torch.Tensor | None = None) -> torch.Tensor:
        return scaled(x, scale, mode, mask)


@pytest.fixture(scope="module")
def executable() -> disc.Executable:
    return disc.compile(Scaled().eval(), (X, 2.0, "one"), options=OPTIONS)


def test_fixed_values_may_be_left_out_or_given_again(executable: disc.Executable) -> None:
    wanted = scaled(X, 2.0, "one")
    for result in (
        executable(X),
        executable(X, 2.0, "one"),
        executable(X, scale=2.0),
        executable(X, mode="one", scale=2.0),
        executable(x=X, scale=2.0),
    ):
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("value", [3.0, 2, True, None, "2.0", X])
def test_another_value_is_refused_by_name(executable: disc.Executable, value: object) -> None:
    text = "scale was fixed to 2.0 when the model was compiled, got "
    with pytest.raises(InputTypeError, match=text):
        executable(X, value, "one")
    with pytest.raises(InputTypeError, match=text):
        executable(X, scale=value)


def test_fixed_values_are_in_the_artifact(executable: disc.Executable, tmp_path: object) -> None:
    path = f"{tmp_path}/scaled.disc"
    executable.save(path)
    loaded = disc.load(path)
    assert [(each["name"], each["value"]) for each in loaded.manifest.get("fixed", [])] == [("scale", "2.0"), ("mode", "'one'")]
    with pytest.raises(InputTypeError, match="mode was fixed to 'one' when the model was compiled, got 'two'"):
        loaded(X, mode="two")


def test_a_call_with_too_many_inputs_is_what_it_was(executable: disc.Executable) -> None:
    with pytest.raises(InputRankError, match=r"expected 1 input \(.*\), got 2"):
        executable(X, X)


# --- other arguments ------------------------------------------------------------------------------------------------------------


def test_dynamic_shapes_of_what_has_its_dims() -> None:
    program = export_module(linear(), (X,))
    with pytest.raises(UnsupportedFormatError, match="a file or an exported program has its dims already"):
        disc.compile(program, None, ({0: Dim("b")},), options=OPTIONS)


@pytest.mark.parametrize("target", [3, None, ["native", 4]])
def test_a_target_that_is_no_name(target: object) -> None:
    with pytest.raises(TargetError, match="is no name; the targets are native, x86-64-v3"):
        disc.compile(linear(), X, target=target, options=OPTIONS)  # pyright: ignore[reportArgumentType]


CONTROL_FLOW = {
    "a carried shape that changes": (
        lambda x: torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, torch.cat([y, y])), (torch.tensor(0), x)),
        r"torch\.while_loop at test_export_errors\.py:\d+: .*value 1 differs: shape: torch\.Size\(\[2\*s\d+\]\) vs torch\.Size\(\[s\d+\]\)",
    ),
    "a carried type that changes": (
        lambda x: torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.double()), (torch.tensor(0), x)),
        r"torch\.while_loop at .*value 1 differs: dtype: torch\.float64 vs torch\.float32",
    ),
    "a branch that returns its input": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x, lambda x: x + 1, (x,)),
        r"torch\.cond at .*aliasing.*input\.clone\(\)",
    ),
}


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_control_flow_that_pytorch_refuses(name: str) -> None:
    body, words = CONTROL_FLOW[name]

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return body(x)

    with pytest.raises(UnsupportedOpError, match=words):
        disc.compile(Model(), (torch.randn(3),))
