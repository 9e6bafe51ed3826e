"""disc and its peers behind one face: built once per case, bound to the inputs of one shape, called.

A peer whose package is missing, or that cannot build the model, is a `Skipped` with its reason.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from bench.cases import Case, Inputs
from bench.dtypes import DTYPES, Dtype
from bench.runtimes import OPEN

if TYPE_CHECKING:
    from disc import Executable

Call = Callable[[], object]
Bind = Callable[[Inputs], Call]


@dataclass(frozen=True)
class Peer:
    """bind: the inputs, converted outside the timed part → the call. setup: seconds until the first call could be made."""

    name: str
    bind: Bind
    setup: float
    executable: Executable | None = None


@dataclass(frozen=True)
class Skipped:
    """A peer that does not take part, and why."""

    name: str
    reason: str


@dataclass
class Workbench:
    """What a peer is built from. folder: of the ONNX file, exported when first asked for and shared by the processes of one case."""

    case: Case
    model: nn.Module
    threads: int
    folder: Path
    dtype: Dtype = field(default_factory=lambda: DTYPES["fp32"])

    def onnx(self, held: str = "f32") -> Path:
        """The model as a file. held: "f32", or "int8" for weights that ONNX Runtime quantized."""
        path = onnx_file(self.folder, self.case.name, held)
        if not path.exists():
            if held == "int8":
                _quantize(self.onnx(), path)
            else:
                export_onnx(self.case, self.model, path)
        return path


def onnx_file(folder: Path, case: str, held: str) -> Path:
    return folder / (f"{case}.onnx" if held == "f32" else f"{case}-{held}.onnx")


def _quantize(source: Path, path: Path) -> None:
    """Dynamic quantization as ONNX Runtime does it: weights in 8 bits, activations in every call."""
    from onnxruntime.quantization import QuantType, quantize_dynamic  # pyright: ignore[reportMissingImports]

    quantize_dynamic(str(source), str(path), weight_type=QuantType.QInt8)


def export_onnx(case: Case, model: nn.Module, path: Path) -> None:
    """Writes the model with every dynamic dim of the case dynamic. The legacy exporter: it needs no package but onnx."""
    inputs = case.inputs(case.example)
    names = [f"input{number}" for number in range(len(inputs))]
    axes = {name: {dim: f"dim{dim}" for dim in case.dynamic} for name in names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, str(path), dynamo=False, input_names=names, dynamic_axes=axes, opset_version=18)


def build_disc(bench: Workbench) -> Peer:
    return _compiled("disc", bench, bench.dtype.disc)


def build_disc_bf16(bench: Workbench) -> Peer:
    """What disc's 8 bits are judged by."""
    return _compiled("disc-bf16", bench, "bf16")


def build_disc_f32(bench: Workbench) -> Peer:
    """What disc's 16 bits are judged by."""
    return _compiled("disc-fp32", bench, "f32")


def _compiled(name: str, bench: Workbench, dtype: str) -> Peer:
    """Without the compile cache: the set-up is a whole compile."""
    import disc

    start = time.perf_counter()
    options = disc.Options(threads=bench.threads, cache=False, dtype=dtype)
    exe = disc.compile(bench.model, bench.case.inputs(bench.case.example), bench.case.dynamic_shapes, options=options)
    return Peer(name, lambda inputs: lambda: exe(*inputs), time.perf_counter() - start, exe)


def build_eager(bench: Workbench) -> Peer:
    """The model itself; its weights and inputs in the dtype's own type."""
    model = _converted(bench)
    return Peer("eager", lambda inputs: _call(model, _cast(inputs, bench)), 0.0)


def build_autocast(bench: Workbench) -> Peer:
    """The f32 model within `torch.autocast`, entered once and for good: then it casts every weight once, not in every call.

    The process must be this peer's alone.
    """
    if bench.dtype.torch == "float32":
        raise ValueError(f"autocast computes in bf16 or f16, not {bench.dtype.name}")
    torch.clear_autocast_cache()  # of the case before
    torch.autocast("cpu", getattr(torch, bench.dtype.torch)).__enter__()
    return Peer("autocast", lambda inputs: _call(bench.model, inputs), 0.0)


def build_quantized(bench: Workbench) -> Peer:
    """PyTorch's own dynamic quantization of linear layers: weights in 8 bits, activations quantized in every call."""
    if bench.dtype.name != "int8":
        raise ValueError(f"dynamic quantization computes in 8 bits, not {bench.dtype.name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls it deprecated in favour of another package
        from torch.ao.nn.quantized.dynamic import Linear
        from torch.ao.quantization import quantize_dynamic

        model = quantize_dynamic(nn.Sequential(bench.model), {nn.Linear}, dtype=torch.qint8)[0]  # it swaps children, not the root
    if not any(isinstance(each, Linear) for each in model.modules()):
        raise ValueError("the model has no nn.Linear that PyTorch could quantize")
    return Peer("quantized", lambda inputs: _call(model, inputs), 0.0)


def build_inductor(bench: Workbench) -> Peer:
    """torch.compile with dynamic shapes; its set-up includes the first call. Every later recompile falls into the warm-up."""
    start = time.perf_counter()
    torch._dynamo.reset()
    compiled = torch.compile(_converted(bench), dynamic=True)
    compiled(*_cast(bench.case.inputs(bench.case.example), bench))
    return Peer("inductor", lambda inputs: _call(compiled, _cast(inputs, bench)), time.perf_counter() - start)


def build_onednn_packed(bench: Workbench) -> Peer:
    """oneDNN's linear layer with the weight reordered beforehand, as inductor's freezing calls it."""
    linear = _linear(_converted(bench))
    packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def bind(inputs: Inputs) -> Call:
        (x,) = _cast(inputs, bench)
        return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, linear.bias, "none", [], "")

    return Peer("onednn-packed", bind, 0.0)


def build_mkl_packed(bench: Workbench) -> Peer:
    """MKL's product with the weight packed for the very number of rows it is called with. f32 alone."""
    if bench.dtype.name != "fp32":
        raise ValueError(f"MKL packs f32 weights, not {bench.dtype.name}")
    linear = _linear(bench.model)

    def bind(inputs: Inputs) -> Call:
        (x,), rows = inputs, inputs[0].shape[0]
        packed = torch.ops.mkl._mkl_reorder_linear_weight(linear.weight.detach(), rows)
        return lambda: torch.ops.mkl._mkl_linear(x, packed, linear.weight, linear.bias, rows)

    return Peer("mkl-packed", bind, 0.0)


def _linear(model: nn.Module) -> nn.Linear:
    if not isinstance(model, nn.Linear):
        raise ValueError("packed products are measured for a linear layer alone")
    return model


def _converted(bench: Workbench) -> nn.Module:
    return bench.model.to(getattr(torch, bench.dtype.torch))


def _cast(inputs: Inputs, bench: Workbench) -> Inputs:
    held = getattr(torch, bench.dtype.torch)
    return tuple(tensor.to(held) if tensor.is_floating_point() else tensor for tensor in inputs)


def _call(function: Callable[..., object], inputs: Inputs) -> Call:
    return lambda: function(*inputs)


def build_ort(bench: Workbench) -> Peer:
    return _from_file("ort", bench)


def build_openvino(bench: Workbench) -> Peer:
    return _from_file("openvino", bench)


def _from_file(name: str, bench: Workbench) -> Peer:
    """A runtime that reads the ONNX file; its set-up does not count the export."""
    path = bench.onnx(held_by(name, bench.dtype))
    start = time.perf_counter()
    bind = OPEN[name](path, bench.threads, bench.dtype.openvino)
    return Peer(name, lambda inputs: bind([tensor.numpy() for tensor in inputs]), time.perf_counter() - start)


def held_by(name: str, dtype: Dtype) -> str:
    """What the file that this runtime reads holds."""
    return dtype.file if name == "ort" else "f32"


BUILDERS: dict[str, Callable[[Workbench], Peer]] = {
    "disc": build_disc,
    "disc-bf16": build_disc_bf16,
    "disc-fp32": build_disc_f32,
    "eager": build_eager,
    "autocast": build_autocast,
    "quantized": build_quantized,
    "inductor": build_inductor,
    "onednn-packed": build_onednn_packed,
    "mkl-packed": build_mkl_packed,
    "ort": build_ort,
    "openvino": build_openvino,
}
NEEDS: dict[str, tuple[str, ...]] = {"ort": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}
PEERS = tuple(name for name in BUILDERS if name != "disc")


def build_peer(name: str, bench: Workbench) -> Peer | Skipped:
    """Whoever fails on a model is a line of the report, not the end of the run."""
    missing = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        return Skipped(name, f"not installed: {', '.join(missing)} (pip install -e '.[bench]')")
    try:
        return BUILDERS[name](bench)
    except Exception as error:
        return Skipped(name, f"{type(error).__name__}: {str(error).strip()[:300]}")


def as_tensor(result: object) -> torch.Tensor:
    """The result of any peer in f32 (integers as they are), copied: some hand out memory that their next call writes again."""
    tensor = torch.as_tensor(result)
    return tensor.to(torch.float32, copy=True) if tensor.is_floating_point() else tensor.clone()
