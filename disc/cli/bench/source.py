"""The model that peers run: read anew in each process, with the same random weights in all of them."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from disc.artifact.manifest import InputRecord
from disc.cli.factory import from_factory, from_folder, needed_task
from disc.errors import ConfigurationError, counted
from disc.frontend.caches import takes_layers, without_caches
from disc.frontend.models import DynamicShapes

OPSET = 18
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.bool: "i1"}


@dataclass(frozen=True)
class Source:
    """A module and one valid call of it."""

    module: nn.Module
    args: tuple[object, ...]
    kwargs: dict[str, object]
    shapes: DynamicShapes = None

    def filled(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The call with other tensors, which are in the order of `names`. Raises ConfigurationError where the call has not as many."""
        if not self.args and set(names) == {name for name, value in self.kwargs.items() if isinstance(value, torch.Tensor)}:
            return (), {**self.kwargs, **dict(zip(names, tensors, strict=True))}
        leaves, structure = pytree.tree_flatten((self.args, self.kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if len(places) != len(tensors):
            raise ConfigurationError(
                f"the model's example has {counted(len(places), 'tensor')}, the artifact {counted(len(tensors), 'input')}: "
                "are they one model?"
            )
        for place, tensor in zip(places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, structure)


def read_source(model: str, task: str | None) -> Source:
    """The module of what `disc compile` takes, but for ONNX and StableHLO. Random numbers of its making are the same in every process.

    Raises what making it raises; ConfigurationError for a file that holds no PyTorch model.
    """
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    if model.startswith("hf:"):
        module, examples = from_folder(model.removeprefix("hf:"), needed_task(model, task))
        plain = without_caches((), examples)[1]
        return Source(takes_layers(module, plain), (), plain)
    if ":" in model and not os.path.exists(model):
        module, inputs, shapes = from_factory(model)
        return Source(module, tuple(inputs), {}, shapes)
    if model.endswith(".pt2"):
        from disc.frontend.exported import load_pt2

        program = load_pt2(model)
        args, kwargs = program.example_inputs or ((), {})
        return Source(program.module(), tuple(args), dict(kwargs))
    raise ConfigurationError(f"{model} holds no PyTorch model")


class _Flat(nn.Module):
    """Tensors in the order of the artifact's inputs → a tuple of all tensors of the result: what an ONNX file takes and gives."""

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        super().__init__()
        self.module = source.module
        self._source, self._names = source, names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self._source.filled(self._names, tensors)
        return tuple(leaf for leaf in pytree.tree_leaves(self.module(*args, **kwargs)) if isinstance(leaf, torch.Tensor))


def onnx_file(model: str, task: str | None, records: Sequence[InputRecord], folder: Path) -> Path:
    """The ONNX file of a model: its own, or one that PyTorch's exporter writes into `folder` for the first who asks. Every dim that the
    artifact leaves open is open in it."""
    if model.endswith(".onnx"):
        return Path(model)
    path = folder / "model.onnx"
    if path.exists():
        return path
    source = read_source(model, task)
    names = [record["name"] for record in records]
    args, kwargs = source.args, source.kwargs
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if not args and set(names) <= set(kwargs):
        tensors = [torch.as_tensor(kwargs[name]) for name in names]
    axes = {
        record["name"]: {axis: f"{record['name']}_{axis}" for axis, dim in enumerate(record["dims"]) if isinstance(dim, str)}
        for record in records
    }
    part = path.with_suffix(".part")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        flat = _Flat(source, names)
        torch.onnx.export(flat, tuple(tensors), str(part), dynamo=False, input_names=names, dynamic_axes=axes, opset_version=OPSET)
    return part.rename(path)
