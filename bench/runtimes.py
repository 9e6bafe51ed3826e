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
        return lambda: session.run(None, feeds)[0]

    return bind


def openvino_model(path: Path, threads: int, precision: str) -> Session:
    """OpenVINO's compiled model of a file. precision: its INFERENCE_PRECISION_HINT; left alone, it computes in bf16 where the CPU can."""
    import openvino  # pyright: ignore[reportMissingImports]

    return openvino.Core().compile_model(
        str(path), "CPU", {**OPENVINO, "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
    )


def open_openvino(path: Path, threads: int, precision: str) -> Callable[[Arrays], Callable[[], object]]:
    compiled = openvino_model(path, threads, precision)
    return lambda arrays: lambda: compiled(list(arrays), share_inputs=True, share_outputs=True)[0]


OPEN: dict[str, Open] = {"disc": open_disc, "ort": open_ort, "openvino": open_openvino}
