"""disc and its peers behind one face: built once per model, bound to the inputs of one shape, called.

A peer whose package is missing, or that cannot build the model, is a `Skipped` with its reason.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from bench.cases import Case, Inputs

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
    """What the peers of one model share: the model, threads, and the ONNX file, exported when first asked for."""

    case: Case
    model: nn.Module
    threads: int
    folder: Path
    _onnx: Path | None = field(default=None, init=False)

    def onnx(self) -> Path:
        if self._onnx is None:
            self._onnx = self.folder / f"{self.case.name}.onnx"
            export_onnx(self.case, self.model, self._onnx)
        return self._onnx


def export_onnx(case: Case, model: nn.Module, path: Path) -> None:
    """Writes the model with every dynamic dim of the case dynamic. The legacy exporter: it needs no package but onnx."""
    inputs = case.inputs(case.example)
    names = [f"input{number}" for number in range(len(inputs))]
    axes = {name: {dim: f"dim{dim}" for dim in case.dynamic} for name in names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, str(path), dynamo=False, input_names=names, dynamic_axes=axes, opset_version=18)


def build_disc(bench: Workbench) -> Peer:
    """Without the compile cache: the set-up is a whole compile."""
    import disc

    start = time.perf_counter()
    options = disc.Options(threads=bench.threads, cache=False)
    exe = disc.compile(bench.model, bench.case.inputs(bench.case.example), bench.case.dynamic_shapes, options=options)
    return Peer("disc", lambda inputs: lambda: exe(*inputs), time.perf_counter() - start, exe)


def build_eager(bench: Workbench) -> Peer:
    return Peer("eager", lambda inputs: lambda: bench.model(*inputs), 0.0)


def build_inductor(bench: Workbench) -> Peer:
    """torch.compile with dynamic shapes; its set-up includes the first call. Every later recompile falls into the warm-up."""
    start = time.perf_counter()
    torch._dynamo.reset()
    compiled = torch.compile(bench.model, dynamic=True)
    compiled(*bench.case.inputs(bench.case.example))
    return Peer("inductor", lambda inputs: lambda: compiled(*inputs), time.perf_counter() - start)


def build_ort(bench: Workbench) -> Peer:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    path = bench.onnx()
    start = time.perf_counter()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = bench.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def bind(inputs: Inputs) -> Call:
        feeds = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return lambda: session.run(None, feeds)[0]

    return Peer("ort", bind, time.perf_counter() - start)


def build_openvino(bench: Workbench) -> Peer:
    """In fp32: left alone, OpenVINO computes in bf16 where the CPU can."""
    import openvino  # pyright: ignore[reportMissingImports]

    path = bench.onnx()
    start = time.perf_counter()
    config = {"INFERENCE_NUM_THREADS": bench.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", config)

    def bind(inputs: Inputs) -> Call:
        feeds = [tensor.numpy() for tensor in inputs]
        return lambda: compiled(feeds, share_inputs=True, share_outputs=True)[0]

    return Peer("openvino", bind, time.perf_counter() - start)


BUILDERS: dict[str, Callable[[Workbench], Peer]] = {
    "disc": build_disc,
    "eager": build_eager,
    "inductor": build_inductor,
    "ort": build_ort,
    "openvino": build_openvino,
}
NEEDS: dict[str, tuple[str, ...]] = {"ort": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}
PEERS = tuple(name for name in BUILDERS if name != "disc")


def build_peers(case: Case, model: nn.Module, names: list[str], threads: int) -> tuple[list[Peer], list[Skipped]]:
    """disc first, then the peers asked for."""
    built: list[Peer] = []
    skipped: list[Skipped] = []
    with tempfile.TemporaryDirectory(prefix="disc-bench-") as folder:
        bench = Workbench(case, model, threads, Path(folder))
        for name in dict.fromkeys(["disc", *names]):
            peer = _build(name, bench)
            if isinstance(peer, Peer):
                built.append(peer)
            else:
                skipped.append(peer)
    return built, skipped


def _build(name: str, bench: Workbench) -> Peer | Skipped:
    missing = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        return Skipped(name, f"not installed: {', '.join(missing)} (pip install -e '.[bench]')")
    try:
        return BUILDERS[name](bench)
    except Exception as error:  # a peer that fails on a model is a line of the report, not the end of the run
        return Skipped(name, f"{type(error).__name__}: {str(error).strip()[:300]}")


def as_tensor(result: object) -> torch.Tensor:
    """The result of any peer, copied: some hand out memory that their next call writes again."""
    return torch.as_tensor(result).clone()
