"""Opening a model file with the runtime that reads it; no torch here, so that memory is measured without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    Session = Any  # of a package that need not be there

Arrays = Sequence[npt.NDArray[np.generic]]
Open = Callable[[Path, int, str], Callable[[Arrays], Callable[[], object]]]

OPENVINO = {"NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}  # besides the threads and the precision


def open_disc(path: Path, threads: int, precision: str) -> Callable[[Arrays], Callable[[], object]]:
    """An artifact, which was compiled for a precision. The result binds inputs: arrays → the call."""
    import disc

    exe = disc.load(path, threads=threads)
    return lambda arrays: lambda: exe(*arrays)


def ort_session(path: Path, threads: int, executed: Path | None = None) -> Session:
    """ONNX Runtime's session of a file. executed: where the graph that it runs is written."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    if executed is not None:
        options.optimized_model_filepath = str(executed)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def open_ort(path: Path, threads: int, precision: str) -> Callable[[Arrays], Callable[[], object]]:
    """In f32 whatever the precision: that is the fastest it has for a float model on a CPU."""
    session = ort_session(path, threads)
    names = [entry.name for entry in session.get_inputs()]

    def bind(arrays: Arrays) -> Callable[[], object]:
        feeds = dict(zip(names, arrays, strict=True))
        return lambda: session.run(None, feeds)

    return bind


def openvino_model(path: Path, threads: int, precision: str, callers: int = 1) -> Session:
    """OpenVINO's compiled model of a file. precision: its INFERENCE_PRECISION_HINT; left alone, it computes in bf16 where the CPU can.
    callers: who call at the same time, each with `threads`."""
    import openvino  # pyright: ignore[reportMissingImports]

    streams = {"NUM_STREAMS": callers, "INFERENCE_NUM_THREADS": threads * callers, "INFERENCE_PRECISION_HINT": precision}
    return openvino.Core().compile_model(str(path), "CPU", {**OPENVINO, **streams})


def open_openvino(path: Path, threads: int, precision: str, callers: int = 1) -> Callable[[Arrays], Callable[[], object]]:
    """Every binding has an infer request of its own: callers may call theirs at the same time."""
    compiled = openvino_model(path, threads, precision, callers)

    def bind(arrays: Arrays) -> Callable[[], object]:
        request, inputs = compiled.create_infer_request(), list(arrays)
        return lambda: request.infer(inputs, share_inputs=True, share_outputs=True)

    return bind


OPEN: dict[str, Open] = {"disc": open_disc, "ort": open_ort, "openvino": open_openvino}
