"""An ONNX file as an exported program, every dim dynamic that the file does not fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram

from disc.errors import DiscError, ExportError, InputRankError, InputTypeError
from disc.frontend.exported import INPUT_NAMES, OUTPUT_NAMES, export_module, has_fixed_sizes
from disc.frontend.onnx.dims import equal_sizes, example_sizes
from disc.frontend.onnx.file import read_model
from disc.frontend.onnx.inputs import Examples, Input, empty_inputs, flat_examples, graph_inputs, named_examples
from disc.frontend.onnx.module import OnnxModule
from disc.frontend.onnx.ops import rule_for


def export_onnx(path: Path, examples: object = None) -> ExportedProgram:
    """examples: as `disc.compile` takes them, whose sizes the trace takes; None: sizes are chosen.

    Raises: UnsupportedFormatError, UnsupportedOpError as `read_model`; UnsupportedOpError, ExportError for a node that cannot be compiled
    or computed, which the message names; ShapeConstraintError.
    """
    model = read_model(path, lambda domain, op: rule_for(domain, op) is not None)
    given = named_examples(model.graph, model.weights, examples) if examples is not None else None
    inputs = graph_inputs(model.graph, model.weights, given)
    module = OnnxModule(model, inputs, empty_inputs(model.graph, model.weights, given)).eval()
    dynamic = tuple({place: Dim.AUTO for place, dim in enumerate(each.dims) if isinstance(dim, str)} for each in inputs)
    if given is None:
        program = _traced(module, inputs, dynamic, _choices(inputs, module))
    else:
        program = _traced_for(module, inputs, dynamic, _given_sizes(inputs, given))
    program.graph_module.meta[INPUT_NAMES] = tuple(each.name for each in inputs)
    if len(module.graph.outputs) == len(program.graph_signature.user_outputs):  # an output that is a sequence becomes several
        program.graph_module.meta[OUTPUT_NAMES] = module.graph.outputs
    return program


def _traced(
    module: OnnxModule, inputs: Sequence[Input], dynamic: tuple[Mapping[int, object], ...], choices: Iterable[list[tuple[int, ...]]]
) -> ExportedProgram:
    """The program of the first choice of sizes that can be traced and leaves no computed size of 0 or 1, else of the first that can be
    traced. Raises: the error of the first."""
    first: DiscError | None = None
    found: ExportedProgram | None = None
    for sizes in choices:
        tensors = tuple(torch.ones(size, dtype=each.dtype) for each, size in zip(inputs, sizes, strict=True))
        try:
            program = export_module(module, tensors, dynamic)
        except DiscError as error:
            if not isinstance(error, ExportError) and found is None:
                raise
            first = first or error
            continue
        if not has_fixed_sizes(program):
            return program
        found = found or program
    if found is None:
        assert first is not None
        raise first
    return found


def _traced_for(
    module: OnnxModule, inputs: Sequence[Input], dynamic: tuple[Mapping[int, object], ...], sizes: list[tuple[int, ...]]
) -> ExportedProgram:
    """With the dims fixed that are 1 in the example where it cannot be traced else, as what is broadcast. Raises: as `_traced`."""
    try:
        return _traced(module, inputs, dynamic, [sizes])
    except ExportError as error:
        wider = tuple({dim: kind for dim, kind in dims.items() if size[dim] != 1} for dims, size in zip(dynamic, sizes, strict=True))
        if wider == dynamic:
            raise
        try:
            return _traced(module, inputs, wider, [sizes])
        except DiscError:
            raise error from None


def _choices(inputs: Sequence[Input], module: OnnxModule) -> Iterator[list[tuple[int, ...]]]:
    yield from example_sizes(inputs)
    equal = equal_sizes(inputs, module.reached)
    if equal is not None:
        yield equal


def _given_sizes(inputs: Sequence[Input], examples: Examples) -> list[tuple[int, ...]]:
    """Raises: InputTypeError, InputRankError for examples that do not fit the file."""
    return [_example_size(each, example) for each, example in zip(inputs, flat_examples(examples), strict=True)]


def _example_size(each: Input, example: object) -> tuple[int, ...]:
    wanted = f"input '{each.name}' is {str(each.dtype).removeprefix('torch.')}{list(each.dims)}"
    if not isinstance(example, torch.Tensor) or example.dtype != each.dtype:
        raise InputTypeError(
            f"example_inputs: {wanted}, not {example.dtype if isinstance(example, torch.Tensor) else type(example).__name__}"
        )
    if example.dim() != len(each.dims) or any(
        isinstance(dim, int) and dim != size for dim, size in zip(each.dims, example.shape, strict=True)
    ):
        raise InputRankError(f"example_inputs: {wanted}, not {list(example.shape)}")
    return tuple(example.shape)
