"""One loaded version of a model: its executable, its queue, and what it has done."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from disc.errors import (
    ArtifactError,
    ConfigurationError,
    DeadlineError,
    InputRankError,
    InputTypeError,
    InputValueError,
    ModelFailedError,
    OutOfMemoryError,
    OverloadedError,
    RequestError,
    ServingError,
    ShapeConstraintError,
    TargetError,
    WithdrawnError,
)
from disc.ral.executable import Executable, load
from disc.ral.gpu_programs import device_code
from disc.serving.artifact_source import Source
from disc.serving.batcher import Batcher, Job
from disc.serving.datatypes import BYTES, OF_DTYPE
from disc.serving.joining import Inputs, joining_of
from disc.serving.logs import log
from disc.serving.request import Answer, Request, arrays_of, output_positions, schedule_of
from disc.serving.settings import Limits, ModelSettings
from disc.serving.signature import Signature, TensorSpec
from disc.serving.statistics import Statistics
from disc.serving.tensors import Array
from disc.serving.text import IDS, MASK, Described, TextStep
from disc.serving.text_files import TEXT
from disc.serving.tracing import Trace

PLATFORM = "disc"
# Where the model was written is nothing for clients.
_PLACE = r"(?:[^\s,:()]+\.py:\d+|line \d+)"
_SOURCE_LINE = re.compile(rf" ?\((?:line|decided at) [^)]*\)| at {_PLACE}(?:, {_PLACE})*")
_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s/:'\"]+/)+")
Cancellation = Callable[[Callable[[], object]], bool]  # registers what to do when the client gives up; False: it already has


class LoadedModel:
    """A version that answers requests. Dropping the last reference unloads it: requests under way keep it alive."""

    def __init__(
        self, name: str, version: str, executable: Executable, settings: ModelSettings, limits: Limits, source: Source, folder: Path
    ) -> None:
        """folder: of the artifact. Raises ConfigurationError where the settings do not fit the model."""
        self.name = name
        self.version = version
        self.executable = executable
        self.settings = settings
        state = executable.manifest.get("state")
        if state is not None and (state["buffers"] or state["written"]):
            raise ConfigurationError("the model keeps tensors from call to call, or writes its inputs: a server answers each request alone")
        unknown = [f"{each.name} ({each.dtype})" for each in (*executable.inputs, *executable.outputs) if each.dtype not in OF_DTYPE]
        if unknown:
            raise ConfigurationError(f"the protocol has no complex numbers: {', '.join(unknown)}; torch.view_as_real makes pairs of them")
        self.signature = Signature(executable.manifest)
        self._own_outputs = _described(self.signature.outputs)
        self.text = TextStep(folder, settings.text, self.signature) if settings.text is not None else None
        self.statistics = Statistics()
        self.source = source
        self._limits = limits
        joining = joining_of(self.signature, settings)
        most = self.signature.batch.most if self.signature.batch else None
        self.batcher = Batcher(_runner(executable), joining, settings, most, self.statistics.batch)
        structured = self.signature.structures or self.signature.skeleton
        if structured is not None:
            widest = max((math.prod(each["dims"]) for each in structured["tables"]), default=1)
            executable.most_nodes = limits.elements // max(widest, 1)
        if settings.threads:
            executable.threads = settings.threads

    def infer(self, request: Request, cancellation: Cancellation | None = None, trace: Trace | None = None) -> Answer:
        """Answers one request; `trace` gets the times of its parts. Raises ServingError."""
        start = time.perf_counter_ns()
        try:
            answer, shape = self._infer(request, cancellation, trace, start)
        except ServingError as error:
            self.statistics.failure(time.perf_counter_ns() - start, _reason(error), str(error))
            raise
        self.statistics.success(time.perf_counter_ns() - start, shape)
        return answer

    def _infer(self, request: Request, cancellation: Cancellation | None, trace: Trace | None, start: int) -> tuple[Answer, str]:
        text = self.text if any(given.datatype == BYTES or given.name == TEXT for given in request.inputs) else None
        arrays = arrays_of(request, self.signature, self._limits) if text is None else text.arrays(request.inputs, self._limits)
        described = self._own_outputs + ([] if text is None else text.outputs)
        wanted = output_positions(request, [name for name, _, _ in described], self._limits)
        schedule = schedule_of(request, self.settings)
        sizes = self.signature.sizes([array.shape for array in arrays])
        if self.signature.output_elements(sizes) > self._limits.elements:
            raise RequestError(f"an output for these sizes would have more than {self._limits.elements} elements")
        expires = None if schedule.wait_s is None else time.monotonic() + schedule.wait_s
        deadline = None if request.remaining_s is None else time.monotonic() + request.remaining_s
        job = Job(arrays, sizes, schedule.priority, expires, deadline)
        if cancellation is not None and not cancellation(lambda: self.batcher.withdraw(job)):
            raise WithdrawnError("the request was cancelled")
        try:
            outputs = self._submit(job, request)
        finally:
            if trace is not None:
                trace.model(self.name, self.version, start, job)
        if text is not None and max(wanted, default=-1) >= len(outputs):
            outputs = [*outputs, *text.more(arrays, outputs)]
        results = [(*described[position][:2], outputs[position]) for position in wanted]
        return Answer(self.name, self.version, request.id, results), ",".join(f"{name}={size}" for name, size in sizes.items())

    def _submit(self, job: Job, request: Request) -> list[Array]:
        """The outputs, or an error whose text may be shown to the client."""
        try:
            return self.batcher.submit(job)
        except ServingError:
            raise
        except (ShapeConstraintError, InputTypeError, InputRankError, InputValueError) as error:
            raise RequestError(for_clients(str(error))) from error
        except OutOfMemoryError as error:
            raise OverloadedError("there is not enough memory for a request of these sizes") from error
        except Exception as error:
            log("model_failed", model=self.name, version=self.version, id=request.id, error=f"{type(error).__name__}: {error}")
            raise ModelFailedError("the model failed; the server's log has the reason") from error

    @property
    def inputs(self) -> list[Described]:
        """Name, datatype and shape of what clients send."""
        return (
            self.text.inputs if self.text is not None else [(each.name, each.datatype.name, each.shape) for each in self.signature.inputs]
        )

    @property
    def outputs(self) -> list[Described]:
        """Name, datatype and shape of what they get."""
        return self._own_outputs + (self.text.outputs if self.text is not None else [])

    @property
    def bytes(self) -> int:
        """What it holds in memory: its file, mapped or copied, and the buffers of its calls."""
        return self.source.stamp.size + cast("int", self.executable.stats()["arena_bytes"])


def for_clients(text: str) -> str:
    """A message without source lines and folders."""
    return _FOLDERS.sub("", _SOURCE_LINE.sub("", text))


def _described(specs: Sequence[TensorSpec]) -> list[Described]:
    return [(each.name, each.datatype.name, each.shape) for each in specs]


def _runner(executable: Executable) -> Callable[[Inputs], list[Array]]:
    """A call of the executable that gives a list of arrays."""
    return lambda inputs: [np.asarray(each) for each in executable.flat(*inputs)]


def _reason(error: ServingError) -> str:
    """The word for a failure that users of such servers know from their metrics."""
    if isinstance(error, OverloadedError | DeadlineError):
        return "REJECTED"
    if isinstance(error, WithdrawnError):
        return "CANCELED"
    return "BACKEND" if isinstance(error, ModelFailedError) else "OTHER"


def load_model(name: str, version: str, path: Path, settings: ModelSettings, limits: Limits) -> LoadedModel:
    """Loads an artifact, checks all of it, and warms it up. Raises DiscError."""
    source = Source(path, settings.copy)
    try:
        executable = load(source.readable, threads=settings.threads or None, isa=device_code(settings.device), graphs=settings.graphs)
        executable.verify()
    except (ArtifactError, TargetError) as error:
        raise type(error)(str(error).replace(source.readable, str(path))) from error
    model = LoadedModel(name, version, executable, settings, limits, source, path.parent)
    if model.text is not None:
        _check_vocabulary(executable, model.signature, model.text)
    if settings.warm_up and (model.signature.structures or model.signature.skeleton) is not None:
        raise ConfigurationError("warm_up: a model over structures is not warmed up by sizes; leave it out")
    for text in settings.warm_up:
        inputs = _zeros(model.signature, text)
        packed = model.signature.packed
        executable(*(inputs if packed is None else packed.join([inputs])))
    return model


def _check_vocabulary(executable: Executable, signature: Signature, text: TextStep) -> None:
    """Calls the model with the largest token that the tokenizer may give. Raises ConfigurationError where it has no such token."""
    arrays = [
        np.full((1, 1), text.largest_id if spec.name == IDS else int(spec.name == MASK), spec.datatype.storage) for spec in signature.inputs
    ]
    try:
        executable.flat(*(arrays if signature.packed is None else signature.packed.join([arrays])))
    except (InputValueError, ShapeConstraintError) as error:
        raise ConfigurationError(
            f"text: the tokenizer is not the model's: it has tokens up to number {text.largest_id} ({for_clients(str(error))})"
        ) from error


def _zeros(signature: Signature, text: str) -> Inputs:
    """Inputs full of zeros, of the sizes in "x=1x16,mask=1x16". Raises ConfigurationError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for entry in filter(None, text.split(",")):
        name, _, sizes = entry.partition("=")
        parts = [part for part in sizes.split("x") if part]
        if name not in signature.positions:
            names = ", ".join(f"'{spec.name}'" for spec in signature.inputs)
            raise ConfigurationError(f"warm_up: {entry!r}: the model has no input '{name}'; its inputs are {names}")
        if not all(part.isdecimal() for part in parts):
            raise ConfigurationError(f"warm_up: {entry!r} is not INPUT=SIZES, such as {signature.inputs[0].name}=1x16")
        shapes[name] = tuple(int(part) for part in parts)
    for spec in signature.inputs:
        if not any(dim < 0 for dim in spec.shape):
            shapes.setdefault(spec.name, tuple(spec.shape))
        if spec.name not in shapes:
            raise ConfigurationError(f"warm_up: {text!r} lacks the sizes of '{spec.name}'")
    return [np.zeros(shapes[spec.name], spec.datatype.storage) for spec in signature.inputs]
