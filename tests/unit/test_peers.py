"""The graphs that the benchmark's peers run, of one small layer: fused as their documentation promises, else they are no fair peers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.cases import CASES, TextModel
from bench.checks import error_of
from bench.dtypes import DTYPES
from bench.files import OPTIMIZER_TYPES, make_file
from bench.peers import VARIANTS, Workbench, as_tensor
from disc.cli.bench.runtimes import openvino_model, ort_session


def layer() -> torch.nn.Module:
    """BERT with one layer of two heads."""
    import transformers

    config = transformers.BertConfig(vocab_size=20_000, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128)
    return TextModel(transformers.BertModel(config, add_pooling_layer=False))


CASE = dataclasses.replace(CASES["bert"], name="layer", build=layer)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    torch.manual_seed(0)
    return Workbench(CASE, layer().eval(), 1, tmp_path_factory.mktemp("peers"))


def file_of(name: str, bench: Workbench) -> Path:
    return make_file(VARIANTS[name].file, bench.case, bench.model, bench.folder)


def executed_by_openvino(name: str, bench: Workbench) -> Counter[str]:
    """Kinds of the nodes that it runs after a call."""
    compiled = openvino_model(file_of(name, bench), 1, "f32")
    compiled([tensor.numpy() for tensor in CASE.inputs((2, 9))])
    return Counter(str(node.get_rt_info()["layerType"].value) for node in compiled.get_runtime_model().get_ops())


def executed_by_ort(name: str, bench: Workbench) -> Counter[str]:
    import onnx

    executed = bench.folder / "executed.onnx"
    ort_session(file_of(name, bench), 1, executed)
    return Counter(node.op_type for node in onnx.load(executed).graph.node)


def test_openvino_from_pytorch_runs_attention_as_one_node(bench: Workbench) -> None:
    pytest.importorskip("openvino")
    found = executed_by_openvino("openvino/pytorch", bench)
    assert found["Subgraph"] == 1 and found["FullyConnected"] == 6
    assert not found["MatMul"] and not found["Softmax"], "the two products and the softmax of attention are within the subgraph"


def test_openvino_from_onnx_does_not(bench: Workbench) -> None:
    """What the other test can tell apart, and why the variant from PyTorch is there."""
    pytest.importorskip("openvino")
    pytest.importorskip("onnx")
    found = executed_by_openvino("openvino/onnx", bench)
    assert found["MatMul"] == 2 and found["Softmax"] == 1


def test_the_optimizer_of_onnx_runtime_fuses_attention_and_norms(bench: Workbench) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    found, plain = executed_by_ort("ort/optimized", bench), executed_by_ort("ort/plain", bench)
    assert (found["Attention"], found["SkipLayerNormalization"], found["EmbedLayerNormalization"], found["BiasGelu"]) == (1, 2, 1, 1)
    assert not found["Softmax"]
    assert (plain["Attention"], plain["Softmax"], plain["BiasGelu"]) == (0, 1, 1)


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.file])
def test_every_file_computes_what_the_model_does(name: str, bench: Workbench) -> None:
    for package in VARIANTS[name].needs:
        pytest.importorskip(package)
    inputs = CASE.inputs((3, 11))
    with torch.no_grad():
        expected = bench.model(*inputs)
    assert error_of(as_tensor(VARIANTS[name].build(bench).bind(inputs)()), expected) < 1e-5


@pytest.mark.parametrize("name", ["ort/plain", "ort/optimized"])
def test_onnx_runtime_multiplies_in_8_bits_for_int8(name: str, bench: Workbench) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    quantized = dataclasses.replace(bench, dtype=DTYPES["int8"])
    inputs = CASE.inputs((3, 11))
    with torch.no_grad():
        expected = bench.model(*inputs)
    error = error_of(as_tensor(VARIANTS[name].build(quantized).bind(inputs)()), expected)
    assert 1e-4 < error < DTYPES["int8"].tolerance
    executed = bench.folder / "executed.onnx"
    ort_session(make_file(f"{VARIANTS[name].file}-int8", CASE, bench.model, bench.folder), 1, executed)
    kinds = Counter(node.op_type for node in onnx.load(executed).graph.node)
    assert sum(kinds[kind] for kind in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulInteger")) >= 3, kinds
    assert kinds["QAttention"] == (name == "ort/optimized"), kinds


def test_a_model_that_the_optimizer_does_not_know(bench: Workbench, tmp_path: Path) -> None:
    assert "resnet" not in OPTIMIZER_TYPES
    pytest.importorskip("onnxruntime")
    with pytest.raises(ValueError, match="knows no such model"):
        make_file("onnx-optimized", CASES["linear-512x512"], torch.nn.Identity(), tmp_path)


class Attention(torch.nn.Module):
    """Attention with its two linear layers and nothing else, so that inductor has no kernel to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (part.view(batch, length, 4, 16).transpose(1, 2) for part in self.into(x).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, 64))


@pytest.mark.parametrize(("name", "linear"), [("inductor/plain", "extern_kernels.addmm"), ("inductor/frozen", "mkldnn._linear_pointwise")])
def test_inductor_calls_fused_attention_and_packed_weights_where_frozen(name: str, linear: str, tmp_path: Path) -> None:
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    model = Attention().eval()
    case = dataclasses.replace(CASE, build=Attention, inputs=lambda shape: (torch.ones(*shape, 64),), dynamic=(0, 1))
    with torch.no_grad(), config.patch(force_disable_caches=True, freezing=False):  # back at the end
        peer, (code, *_) = run_and_get_code(VARIANTS[name].build, Workbench(case, model, 1, tmp_path))
        inputs = (torch.randn(5, 9, 64),)
        np.testing.assert_allclose(as_tensor(peer.bind(inputs)()), model(*inputs), atol=1e-5)
    assert "_scaled_dot_product_flash_attention_for_cpu" in code
    assert linear in code
