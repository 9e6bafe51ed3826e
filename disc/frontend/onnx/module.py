"""A module of PyTorch that runs an ONNX graph: what torch.export traces."""

from __future__ import annotations

import inspect
import keyword
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch._subclasses import FakeTensorMode

from disc.errors import DiscError, UnsupportedOp, UnsupportedOpError, printable
from disc.frontend.export_errors import NO_STATIC_ANSWER, quiet
from disc.frontend.onnx.file import ModelFile
from disc.frontend.onnx.graph import Graph, Runner, Step, Values
from disc.frontend.onnx.inputs import Input
from disc.frontend.onnx.narrow import arrived
from disc.frontend.onnx.values import Constant, Narrow, Sizes, Value
from disc.frontend.onnx.values import Sequence as ValueSequence

Results = torch.Tensor | tuple[torch.Tensor, ...]
_WRITTEN = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
_FEW = 16  # numbers of a file that are all written into kernels


class OnnxModule(torch.nn.Module):
    """The model as a module: inputs are parameters of `forward`, in the order of the graph, as are the results; a single one is no tuple.

    inputs: parameter → what it is in the file.
    """

    def __init__(self, model: ModelFile, inputs: Sequence[Input], empty: Mapping[str, Value] | None = None) -> None:
        """empty: the values of inputs of the graph that are no parameters."""
        super().__init__()
        self.graph = Graph(model.graph, model)
        self._opset = model.opset
        parameters = identifiers(each.name for each in inputs)
        self.inputs = dict(zip(parameters, inputs, strict=True))
        known: Values = {**self.graph.constants, **{name: each.value() for name, each in model.weights.items()}, **(empty or {})}
        self._steps = self._folded(known)
        read = set(self.graph.outputs).union(*(step.reads() for step in self._steps))
        known = {name: value for name, value in known.items() if name in read}
        self._known = self._registered(known)
        self._literals = _literals(self._known.values())
        signature = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self.inputs]
        self.forward = self._forward(inspect.Signature(signature))

    def _folded(self, known: Values) -> list[Step]:
        """The steps that remain; the results of the others are added to `known`."""
        runner = Runner(self._opset, lambda constant: constant.data)
        return [step for step in self.graph.steps if not runner.fold(step, known)]

    def _registered(self, known: Values) -> Values:
        """The same constants, as buffers of this module."""
        names, kept = identifiers(known), {}
        for name, (original, value) in zip(names, known.items(), strict=True):
            data = value.stored if isinstance(value, Narrow) else value
            if isinstance(data, Constant):
                self.register_buffer(f"w_{name}", data.data)
                data = Constant(data.data, f"w_{name}")
                value = Narrow(data, value.kind) if isinstance(value, Narrow) else data
            kept[original] = value
        return kept

    def _forward(self, signature: inspect.Signature) -> Callable[..., Results]:
        def forward(*args: torch.Tensor, **named: torch.Tensor) -> Results:
            given = signature.bind(*args, **named).arguments
            self._require_equal(given)
            values: Values = {**self._known, **self._arrived(given)}
            runner = Runner(self._opset, self._materialized)
            for step in self._steps:
                if not runner.fold(step, values):
                    runner.run([step], values)
            results = tuple(each for name in self.graph.outputs for each in self._results(name, values[name]))
            return results if len(results) != 1 else results[0]

        forward.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        return forward

    def reached(self, sizes: Sequence[tuple[int, ...]]) -> int:
        """How many nodes can be run with inputs of these sizes, as far as that takes no data."""
        with quiet(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            given = {name: torch.empty(size, dtype=each.dtype) for (name, each), size in zip(self.inputs.items(), sizes, strict=True)}
            values: Values = {**self._known, **self._arrived(given)}
            runner = Runner(self._opset, self._materialized)
            for count, step in enumerate(self._steps):
                try:
                    if not runner.fold(step, values):
                        runner.run([step], values)
                except (DiscError, *NO_STATIC_ANSWER):
                    return count
        return len(self._steps)

    def _arrived(self, given: Mapping[str, torch.Tensor]) -> Values:
        """The inputs of the graph."""
        values: Values = {}
        for name, value in given.items():
            own = self.inputs[name]
            here = Narrow(arrived(value, own.kind), own.kind) if own.kind else value
            if not own.sequence:
                values[own.name] = here
                continue
            before = values.get(own.sequence)
            values[own.sequence] = ValueSequence((*(before.items if isinstance(before, ValueSequence) else ()), here))
        return values

    def _require_equal(self, given: Mapping[str, torch.Tensor]) -> None:
        """Dims of one name have one size."""
        first: dict[str, int] = {}
        for name, tensor in given.items():
            for size, dim in zip(tensor.shape, self.inputs[name].dims, strict=True):
                if isinstance(dim, str) and dim:
                    torch._check(first.setdefault(dim, size) == size)

    def _materialized(self, constant: Constant) -> torch.Tensor:
        if constant.buffer in self._literals:
            return torch.full(constant.data.shape, self._literals[constant.buffer], dtype=constant.data.dtype)
        return getattr(self, constant.buffer) if constant.buffer is not None else constant.data

    def _results(self, name: str, value: Value) -> list[torch.Tensor]:
        """A sequence is as many results as it has items."""
        if isinstance(value, ValueSequence):
            return [each for item in value.items for each in self._results(name, item)]
        if isinstance(value, Narrow):
            return self._results(name, value.stored)
        if isinstance(value, torch.Tensor):
            return [value]
        if isinstance(value, Constant):
            return [self._materialized(value)]
        if isinstance(value, Sizes):
            return [value.tensor()]
        raise UnsupportedOpError([UnsupportedOp(f"output '{printable(name)}'", "it is an empty optional; results are tensors")])


def _literals(values: Iterable[Value]) -> dict[str | None, bool | int | float]:
    """The single numbers that are no weights, by buffer: all where a file has few, else those that stand in it more than once, as those of
    layers do. A number within simplifies its kernel, but makes it another one than that with the scale, say, of another quantized layer."""
    numbers = [each for each in values if isinstance(each, Constant) and each.data.numel() == 1 and each.data.dtype in _WRITTEN]
    counts = Counter(_bits(each.data) for each in numbers)
    return {each.buffer: each.data.item() for each in numbers if len(counts) <= _FEW or counts[_bits(each.data)] > 1}


def _bits(number: torch.Tensor) -> tuple[torch.dtype, bytes]:
    """What tells it from another one: NaN equals itself, and 0.0 is not -0.0."""
    return number.dtype, bytes(number.reshape(1).view(torch.uint8).tolist())


def identifiers(names: Iterable[str]) -> list[str]:
    """A name of Python for each, all of them different: the name itself where it is one."""
    found: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = f"_{plain}" if not plain or plain[0].isdigit() or keyword.iskeyword(plain) or hasattr(torch.nn.Module, plain) else plain
        while plain in found:
            plain += "_"
        found[plain] = None
    return list(found)
