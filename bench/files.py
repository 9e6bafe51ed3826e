"""The model files that runtimes read, each made as the runtime's documentation says. PyTorch and transformers are needed here alone."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

from bench.cases import Case, build

SUFFIXES = {"ir": ".xml"}  # others: .onnx
# By the model types of transformers, those of onnxruntime.transformers.optimizer. It knows no other that is measured here.
OPTIMIZER_TYPES = {"bert": "bert", "albert": "bert", "gpt2": "gpt2", "t5": "t5", "vit": "vit", "swin": "swin"}
OPSET = 18


def file_path(folder: Path, case: str, kind: str) -> Path:
    """Where the file of a kind lies."""
    return folder / f"{case}-{kind}{SUFFIXES.get(kind, '.onnx')}"


def make_file(kind: str, case: Case, model: nn.Module, folder: Path) -> Path:
    """The file, made when it is first asked for; the processes of one case share the folder, and make it one after the other.

    kind: "onnx"; "onnx-optimized", what ONNX Runtime's optimizer of transformers makes of the model with eager attention; either with
    "-int8" behind it, weights quantized by ONNX Runtime; "ir", OpenVINO's conversion of the PyTorch model.

    Raises ValueError where the optimizer knows no such model.
    """
    path = file_path(folder, case.name, kind)
    if path.exists():
        return path
    if kind.endswith("-int8"):
        _quantize(make_file(kind.removesuffix("-int8"), case, model, folder), path)
    elif kind == "onnx-optimized":
        _optimize(case, path)
    elif kind == "onnx":
        export_onnx(case, model, path)
    else:
        _convert(case, model, path)
    return path


def export_onnx(case: Case, model: nn.Module, path: Path) -> None:
    """Writes the model with every dynamic dim of the case dynamic. The legacy exporter: it needs no package but onnx."""
    inputs = case.inputs(case.example)
    names = [f"input{number}" for number in range(len(inputs))]
    axes = {name: {dim: f"dim{dim}" for dim in case.dynamic} for name in names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, str(path), dynamo=False, input_names=names, dynamic_axes=axes, opset_version=OPSET)


def _optimize(case: Case, path: Path) -> None:
    """The optimizer finds attention only where it was exported from its plain form: its patterns are older than PyTorch's fused one."""
    from onnxruntime.transformers.optimizer import optimize_model  # pyright: ignore[reportMissingImports]

    model = build(case)
    network = getattr(model, "model", None)
    config = getattr(network, "config", None)
    known = OPTIMIZER_TYPES.get(getattr(config, "model_type", ""))
    if network is None or config is None or known is None:
        raise ValueError("onnxruntime.transformers knows no such model")
    if network._supports_sdpa:  # T5 has the plain form alone
        network.set_attn_implementation("eager")
    plain = path.with_suffix(".plain.onnx")
    export_onnx(case, model, plain)
    heads = config.num_attention_heads if isinstance(getattr(config, "num_attention_heads", None), int) else 0  # 0: it finds out
    made = optimize_model(str(plain), model_type=known, num_heads=heads, hidden_size=config.hidden_size if heads else 0, use_gpu=False)
    made.save_model_to_file(str(path))
    plain.unlink()


def _quantize(source: Path, path: Path) -> None:
    """Dynamic quantization as ONNX Runtime does it: weights in 8 bits, activations in every call."""
    from onnx import TensorProto  # pyright: ignore[reportMissingImports]
    from onnxruntime.quantization import QuantType, quantize_dynamic  # pyright: ignore[reportMissingImports]

    # ONNX infers no types behind the optimizer's fused ops, which are of another domain; all that is multiplied here is f32.
    options = {"DefaultTensorType": TensorProto.FLOAT}
    quantize_dynamic(str(source), str(path), weight_type=QuantType.QInt8, extra_options=options)


def _convert(case: Case, model: nn.Module, path: Path) -> None:
    """From PyTorch itself, as OpenVINO's documentation converts a module. Weights stay f32: the file's default would be f16."""
    import openvino  # pyright: ignore[reportMissingImports]

    inputs = case.inputs(case.example)
    shapes = [openvino.PartialShape([-1 if dim in case.dynamic else size for dim, size in enumerate(each.shape)]) for each in inputs]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        converted = openvino.convert_model(model, example_input=inputs, input=shapes)
    openvino.save_model(converted, str(path), compress_to_fp16=False)
