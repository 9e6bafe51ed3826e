"""disc and its peers behind one face: built once per case, bound to the inputs of one shape, called.

A peer whose package is missing, or that cannot build the model, is a `Skipped` with its reason.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import torch
from torch import nn
from torch._inductor import config as inductor_config

from bench.cases import MOST_INPUTS, Case, Inputs, Instances, TrainedInstances, TrainingStep, build, stacked
from bench.checks import first_tensor
from bench.dtypes import DTYPES, Dtype
from bench.figures import peer_of
from bench.files import OPSET, OPTIMIZER_TYPES, make_file
from disc.cli.bench.runtimes import OPEN, OPENVINO

if TYPE_CHECKING:
    from disc import Executable

Call = Callable[[], object]
Bind = Callable[[Inputs], Call]
Build = Callable[["Workbench"], "Peer"]
TRAINED_IN = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}  # by autocast, beside weights of f32
RECORDINGS = 20  # calls whose recording is timed apart


@dataclass(frozen=True)
class Peer:
    """bind: the inputs, converted outside the timed part → the call. setup: seconds until the first call could be made. recording: what
    calls of the model with such inputs cost to record, where they are."""

    name: str
    bind: Bind
    setup: float
    executable: Executable | None = None
    recording: Callable[[Inputs], dict[str, float]] | None = None


@dataclass(frozen=True)
class Skipped:
    """A peer that does not take part, and why."""

    name: str
    reason: str


@dataclass
class Workbench:
    """What a peer is built from. folder: of the model files, shared by the processes of one case."""

    case: Case
    model: nn.Module
    threads: int
    folder: Path
    dtype: Dtype = field(default_factory=lambda: DTYPES["fp32"])

    def __post_init__(self) -> None:
        """A step of training computes in the dtype beside weights of f32, for all peers alike."""
        if isinstance(self.model, TrainingStep):
            self.model.computed_in = getattr(torch, self.dtype.torch)


def build_disc(bench: Workbench) -> Peer:
    return _compiled("disc", bench, bench.dtype.disc)


def build_disc_bf16(bench: Workbench) -> Peer:
    """What disc's 8 bits are judged by."""
    return _compiled("disc-bf16", bench, "bf16")


def build_disc_limited(bench: Workbench, inputs: int) -> Peer:
    """disc whose fusions read at most so many inputs. The process must be this peer's alone."""
    from disc.speculation.inputs import KINDS
    from disc.targets import select
    from disc.targets.thresholds import InputLimits

    limited = select.native_target().reading(InputLimits(**dict.fromkeys(KINDS, inputs)))
    mock.patch.object(select, "native_target", lambda: limited).start()
    return _compiled(f"disc-f{inputs}", bench, bench.dtype.disc)


def build_disc_cached(bench: Workbench) -> Peer:
    """A step of training by disc with the compile cache of the process: what a program costs that was compiled before."""
    if not isinstance(bench.model, TrainingStep):
        raise TypeError("the suite `compile` measures what is no step of training")
    return _trained("disc-cached", bench, bench.model, "disc", {"threads": bench.threads})


def build_disc_recomputing(bench: Workbench) -> Peer:
    """Half of what a step of training keeps for its backward pass; the rest is computed again."""
    if not isinstance(bench.model, TrainingStep):
        raise TypeError("only steps of training keep anything")
    return _trained("disc-recomputing", bench, bench.model, "disc", {"threads": bench.threads, "cache": False, "memory": 0.5})


def build_disc_f32(bench: Workbench) -> Peer:
    """What disc's 16 bits are judged by."""
    return _compiled("disc-fp32", bench, "f32")


def _compiled(name: str, bench: Workbench, dtype: str) -> Peer:
    """Without the compile cache: the set-up is a whole compile."""
    import disc

    if isinstance(bench.model, Instances):
        return _batched(name, bench, bench.model, dtype)
    if isinstance(bench.model, TrainingStep):
        if dtype not in TRAINED_IN:
            raise ValueError(f"steps of training compute in {', '.join(TRAINED_IN)}, not {dtype}")
        bench.model.computed_in = TRAINED_IN[dtype]
        return _trained(name, bench, bench.model, "disc", {"threads": bench.threads, "cache": False})
    start = time.perf_counter()
    options = disc.Options(threads=bench.threads, cache=False, dtype=dtype)
    exe = disc.compile(bench.model, bench.case.inputs(bench.case.example), bench.case.dynamic_shapes, options=options)
    return Peer(name, lambda inputs: lambda: exe(*inputs), time.perf_counter() - start, exe)


def _batched(name: str, bench: Workbench, model: Instances, dtype: str, tables: int = 0) -> Peer:
    """`disc.batched` of a model for one instance, once it has run often enough that its blocks are compiled. tables: bytes of folded ones;
    0: the matrix products are those of the peers and of the limit."""
    import disc

    start = time.perf_counter()
    batched = disc.batched(model.model, options=disc.Options(threads=bench.threads, cache=False, dtype=dtype, fold_tables=tables))

    def bind(inputs: Inputs) -> Call:
        instances = model.chosen(*inputs)
        if isinstance(model, TrainedInstances):
            return lambda: model.step(lambda: stacked(batched.batch(instances, gradients=True)))  # pyright: ignore[reportCallIssue]
        return lambda: stacked(batched.batch(instances))  # pyright: ignore[reportCallIssue]

    call = bind(bench.case.inputs(bench.case.example))
    for _ in range(4):
        call()
    return Peer(name, bind, time.perf_counter() - start)


def build_disc_folded(bench: Workbench) -> Peer:
    """disc as users have it: what is a function of a word lies in a table."""
    from disc.config import Options

    if not isinstance(bench.model, Instances) or isinstance(bench.model, TrainedInstances):
        raise TypeError("only models for one instance have such tables, and their training has none")
    return _batched("disc-folded", bench, bench.model, bench.dtype.disc, Options().fold_tables)


def build_by_hand(bench: Workbench) -> Peer:
    """A model for one instance as PyTorch code that someone has batched level by level. Its structure is found in each call."""
    model = bench.model
    if not isinstance(model, Instances) or isinstance(model, TrainedInstances):
        raise TypeError("only models for one instance are batched by hand, and their training is not")
    return Peer("by-hand", lambda inputs: lambda: model.by_hand(*inputs), 0.0)


def build_dynet(bench: Workbench, strategy: int) -> Peer:
    """A model for one instance in DyNet, which batches the operators of all instances."""
    from bench.dynet_models import bind, dynet_of

    model = bench.model
    if not isinstance(model, Instances):
        raise TypeError("only models for one instance are written for DyNet")
    dynet = dynet_of(strategy)
    return Peer("dynet", lambda inputs: bind(dynet, model, model.chosen(*inputs)), 0.0)


def build_disc_onnx(bench: Workbench) -> Peer:
    """disc's artifact of the ONNX file of the model."""
    import disc

    path = make_file("onnx", bench.case, bench.model, bench.folder)
    start = time.perf_counter()
    exe = disc.compile(str(path), options=disc.Options(threads=bench.threads, cache=False, dtype=bench.dtype.disc))
    return Peer("disc-onnx", lambda inputs: lambda: exe(*inputs), time.perf_counter() - start, exe)


def _trained(name: str, bench: Workbench, step: TrainingStep, backend: str, options: dict[str, object] | None = None) -> Peer:
    """A training step whose network is compiled by a backend of torch.compile."""
    start = time.perf_counter()
    step.compile_network(backend, options)
    step(*bench.case.inputs(bench.case.example))
    return Peer(name, lambda inputs: _call(step, inputs), time.perf_counter() - start)


def build_disc_lazy(bench: Workbench) -> Peer:
    """PyTorch's code under `disc.lazy`, recorded anew in every call: the backward pass and the optimizer are in the program. The process
    must be this peer's alone."""
    import disc

    start = time.perf_counter()
    disc.lazy.disable()  # of the case before, in which the weights were drawn: numbers that are drawn in loops are others than eager's
    bench = dataclasses.replace(bench, model=build(bench.case))
    disc.lazy.enable(threads=bench.threads, cache=False)

    def bind(inputs: Inputs) -> Call:
        def call() -> object:
            result = bench.model(*inputs)
            disc.lazy.flush()
            return result

        return call

    call = bind(bench.case.inputs(bench.case.example))
    for _ in range(3):  # a trace is compiled when it has come twice
        call()
    return Peer("disc-lazy", bind, time.perf_counter() - start, recording=partial(_recording, bench.model))


def _recording(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Of one call, in microseconds: `recording`, until the model has returned, and the times that `disc.lazy.stats()` tells apart. calls:
    that were recorded; first_transformation: of the program, when it was made."""
    import disc

    stats = disc.lazy.stats()
    first, before, recording = stats.transforming_ns / max(stats.compiles, 1), dataclasses.replace(stats), list[int]()
    start = time.perf_counter_ns()
    for _ in range(RECORDINGS):
        begin = time.perf_counter_ns()
        result = model(*inputs)
        recording.append(time.perf_counter_ns() - begin)
        disc.lazy.flush()
        del result
    step, after = time.perf_counter_ns() - start, disc.lazy.stats()

    def each(name: str) -> float:
        return (getattr(after, name) - getattr(before, name)) / RECORDINGS

    times = {"recording": statistics.median(recording), "hash": each("recording_ns"), "transformation": each("replaying_ns"),
             "computation": each("computing_ns"), "step": step / RECORDINGS, "first_transformation": first}  # fmt: skip
    return {"calls": each("recorded"), "hits": each("hits"), **{name: value / 1e3 for name, value in times.items()}}


@functools.cache
def _start_torch_lazy() -> None:
    """Once in a process."""
    import torch._lazy.ts_backend

    torch._lazy.ts_backend.init()


def build_torch_lazy(bench: Workbench) -> Peer:
    """PyTorch's own lazy tensors, by their TorchScript backend: recorded anew in every call, computed at its end. Results are read into the
    CPU's memory. The process must be this peer's alone."""
    import torch._lazy

    start = time.perf_counter()
    _start_torch_lazy()
    model = _converted(bench).to("lazy")

    def bind(inputs: Inputs) -> Call:
        given = [each.to("lazy") for each in _cast(inputs, bench)]

        def call() -> object:
            result = model(*given)
            torch._lazy.mark_step()
            return first_tensor(result).to("cpu")

        return call

    bind(bench.case.inputs(bench.case.example))()
    return Peer("torch-lazy", bind, time.perf_counter() - start)


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
    if isinstance(bench.model, TrainingStep):
        raise TypeError("a step of training is within autocast for every peer")
    torch.clear_autocast_cache()  # of the case before
    torch.autocast("cpu", getattr(torch, bench.dtype.torch)).__enter__()
    return Peer("autocast", lambda inputs: _call(bench.model, inputs), 0.0)


def build_quantized(bench: Workbench) -> Peer:
    """PyTorch's own dynamic quantization of linear layers: weights in 8 bits, activations quantized in every call."""
    if bench.dtype.name != "int8":
        raise ValueError(f"dynamic quantization computes in 8 bits, not {bench.dtype.name}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls it deprecated in favor of another package
        from torch.ao.nn.quantized.dynamic import Linear
        from torch.ao.quantization import quantize_dynamic

        model = quantize_dynamic(nn.Sequential(bench.model), {nn.Linear}, dtype=torch.qint8)[0]  # it swaps children, not the root
    if not any(isinstance(each, Linear) for each in model.modules()):
        raise ValueError("the model has no nn.Linear that PyTorch could quantize")
    return Peer("quantized", lambda inputs: _call(model, inputs), 0.0)


def build_inductor(bench: Workbench, frozen: bool = False) -> Peer:
    """torch.compile with dynamic shapes; its set-up includes the first call. Every later recompile falls into the warm-up.

    frozen: set for the whole process, since it counts in every later recompile: calls must end before another variant is built.
    """
    start = time.perf_counter()
    torch._dynamo.reset()
    inductor_config.freezing = frozen
    if isinstance(bench.model, TrainingStep):
        return _trained("inductor", bench, bench.model, "inductor")
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
    return bench.model if isinstance(bench.model, TrainingStep) else bench.model.to(getattr(torch, bench.dtype.torch))


def _cast(inputs: Inputs, bench: Workbench) -> Inputs:
    if isinstance(bench.model, TrainingStep):
        return inputs
    held = getattr(torch, bench.dtype.torch)
    return tuple(tensor.to(held) if tensor.is_floating_point() else tensor for tensor in inputs)


def _call(function: Callable[..., object], inputs: Inputs) -> Call:
    return lambda: function(*inputs)


def _from_file(runtime: str, kind: str) -> Build:
    """A runtime that reads a file of this kind; making the file is no part of its set-up."""

    def build(bench: Workbench) -> Peer:
        path = make_file(file_kind(runtime, kind, bench.dtype), bench.case, bench.model, bench.folder)
        start = time.perf_counter()
        bind = OPEN[runtime](path, bench.threads, bench.dtype.openvino)
        return Peer(runtime, lambda inputs: bind([tensor.numpy() for tensor in inputs]), time.perf_counter() - start)

    return build


def file_kind(runtime: str, kind: str, dtype: Dtype) -> str:
    """What the file holds in this dtype: ONNX Runtime's is quantized for int8."""
    return kind + dtype.file if runtime == "ort" else kind


@dataclass(frozen=True)
class Variant:
    """One way to run a peer. settings: for the reports. needs: packages. file: the kind of model file it reads (`bench.files`)."""

    build: Build
    settings: str
    needs: tuple[str, ...] = ()
    file: str = ""


def _file_variant(runtime: str, file: str, settings: str, *needs: str) -> Variant:
    return Variant(_from_file(runtime, file), settings, needs, file)


_TORCH = "weights and inputs in the dtype (int8: f32)"
_ORT = (
    "InferenceSession, ORT_ENABLE_ALL, the threads of the run within an op, one between ops; f32 in the bf16 table too; int8: "
    "quantize_dynamic first, weights QInt8"
)
_OPENVINO = (
    f"compile_model for CPU with {', '.join(f'{key}={value}' for key, value in OPENVINO.items())}, the run's threads and precision "
    "(int8: bf16)"
)
# A peer's name, or "peer/variant" where it has several. The fastest variant of a peer that is right, shape by shape, is the peer.
VARIANTS: dict[str, Variant] = {
    "disc": Variant(build_disc, "disc.compile, or disc.batched of instances, with the run's dtype and threads, without the compile cache"),
    "disc-folded": Variant(build_disc_folded, "disc.batched with functions of an embedding's rows in tables, which disc has without"),
    "disc-bf16": Variant(build_disc_bf16, "disc in bf16"),
    "disc-fp32": Variant(build_disc_f32, "disc in f32"),
    "disc-cached": Variant(build_disc_cached, "a step of training by disc, with the compile cache"),
    "disc-recomputing": Variant(build_disc_recomputing, "a step of training by disc with options={'memory': 0.5}"),
    "disc-onnx": Variant(build_disc_onnx, "disc.compile of the ONNX file of ort/plain", ("onnx",), "onnx"),
    "disc-lazy": Variant(build_disc_lazy, "the PyTorch code under disc.lazy, recorded in every call, without the compile cache"),
    "torch-lazy": Variant(build_torch_lazy, "PyTorch's lazy tensors (torch._lazy, TorchScript), one mark_step a call, its result read"),
    **{
        f"disc-f{count}": Variant(partial(build_disc_limited, inputs=count), f"disc, whose fusions read at most {count} inputs")
        for count in MOST_INPUTS
    },
    "eager": Variant(build_eager, f"PyTorch's module, called under no_grad; {_TORCH}"),
    "by-hand": Variant(build_by_hand, "models for one instance: PyTorch operators on all nodes of a level, found by Python in each call"),
    "dynet/depth": Variant(partial(build_dynet, strategy=1), "the models in DyNet, autobatch 1; one thread", ("dynet",)),
    "dynet/agenda": Variant(partial(build_dynet, strategy=2), "the models in DyNet, autobatch 2; one thread", ("dynet",)),
    "autocast": Variant(build_autocast, "the f32 module within torch.autocast, which keeps the weights it has cast"),
    "quantized": Variant(build_quantized, "torch.ao.quantization.quantize_dynamic of every nn.Linear, qint8"),
    "inductor/plain": Variant(build_inductor, f"torch.compile(dynamic=True); {_TORCH}"),
    "inductor/frozen": Variant(
        partial(build_inductor, frozen=True),
        f"the same with torch._inductor.config.freezing: weights are constants, packed for oneDNN; {_TORCH}",
    ),
    "onednn-packed": Variant(build_onednn_packed, "mkldnn._linear_pointwise with the weight reordered ahead of time"),
    "mkl-packed": Variant(build_mkl_packed, "mkl._mkl_linear with the weight packed for the very number of rows"),
    "ort/plain": _file_variant("ort", "onnx", f"torch.onnx.export (dynamo=False, opset {OPSET}); {_ORT}", "onnx", "onnxruntime"),
    "ort/optimized": _file_variant(
        "ort", "onnx-optimized",
        'exported with attn_implementation="eager", then onnxruntime.transformers.optimizer.optimize_model with the model type, heads and '
        f"width; then as ort/plain. Types it knows: {', '.join(dict.fromkeys(OPTIMIZER_TYPES.values()))}",
        "onnx", "onnxruntime",
    ),
    "openvino/pytorch": _file_variant(
        "openvino", "ir", f"openvino.convert_model of the module, save_model with compress_to_fp16=False; {_OPENVINO}", "openvino"
    ),
    "openvino/onnx": _file_variant("openvino", "onnx", f"the ONNX file of ort/plain; {_OPENVINO}", "onnx", "openvino"),
}  # fmt: skip
PEERS: dict[str, tuple[str, ...]] = {
    peer: tuple(name for name in VARIANTS if peer_of(name) == peer) for peer in dict.fromkeys(map(peer_of, VARIANTS)) if peer != "disc"
}


def build_peer(name: str, bench: Workbench) -> Peer | Skipped:
    """A peer that fails on a model is a line of the report, not the end of the run. name: of a variant."""
    variant = VARIANTS[name]
    missing = [package for package in variant.needs if importlib.util.find_spec(package) is None]
    if missing:
        return Skipped(name, f"not installed: {', '.join(missing)} (pip install --group bench)")
    try:
        return variant.build(bench)
    except Exception as error:
        return Skipped(name, f"{type(error).__name__}: {str(error).strip()[:300]}")


def as_tensor(result: object) -> torch.Tensor:
    """The (first) result of any peer in f32 (integers as they are), copied: some hand out memory that their next call writes again."""
    tensor = first_tensor(result)
    return tensor.to(torch.float32, copy=True) if tensor.is_floating_point() else tensor.clone()
