"""The inputs of a graph that are no weights: tensors, sequences of tensors, optional ones.

A sequence is as many inputs of the program as the user's example has items, an optional that is empty is none: a program has the inputs
that it was compiled with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import torch

from disc.errors import InputRankError, InputTypeError, UnsupportedOp, UnsupportedOpError, printable
from disc.frontend.examples import examples_of
from disc.frontend.onnx.tensors import DTYPES, NARROW
from disc.frontend.onnx.values import Sequence as ValueSequence
from disc.frontend.onnx.values import Value

Examples = Mapping[str, object]  # by name: a tensor, a list of tensors for a sequence, None for an optional that is empty


@dataclass(frozen=True)
class Input:
    """An input of the program. dims: a size, the name of a dim, or "" for one without a name. kind: of a type without arithmetic, which
    comes stored in `dtype`. sequence: the input of the graph that it is an item of."""

    name: str
    dtype: torch.dtype
    dims: tuple[int | str, ...]
    kind: int = 0
    sequence: str = ""


def graph_inputs(graph: onnx.GraphProto, weights: Mapping[str, object], examples: Examples | None = None) -> list[Input]:
    """Raises: UnsupportedOpError for inputs that are no tensors of a supported type, or have no rank, and for sequences without an example;
    InputTypeError for an example of another kind than its input."""
    found: list[Input] = []
    refused: list[UnsupportedOp] = []
    for each in _own(graph, weights):
        reason = _problem(each, examples)
        if reason is not None:
            refused.append(UnsupportedOp(f"input '{printable(each.name)}'", reason, "the graph's inputs"))
        elif _is_sequence(each):
            found += _items(each, examples[each.name] if examples is not None else ())
        elif examples is None or not _is_empty(each, examples[each.name]):
            found.append(_input(each.name, tensor_type(each.type)))
    if refused:
        raise UnsupportedOpError(refused)
    return found


def empty_inputs(graph: onnx.GraphProto, weights: Mapping[str, object], examples: Examples | None) -> dict[str, Value]:
    """Inputs of the graph for which the program has none, and their values."""
    given = [each for each in _own(graph, weights) if examples is not None]
    empty: dict[str, Value] = {each.name: ValueSequence() for each in given if _is_sequence(each) and not _length(examples, each)}
    return empty | {each.name: None for each in given if examples is not None and examples[each.name] is None}


def named_examples(graph: onnx.GraphProto, weights: Mapping[str, object], given: object) -> dict[str, object]:
    """The user's examples by the names of the graph's inputs. Raises: InputRankError where they are not one for each."""
    positional, named = examples_of(given)
    names = [each.name for each in _own(graph, weights)]
    wrong = [name for name in named if name not in names]
    if wrong:
        raise InputRankError(f"example_inputs: the model has no input '{wrong[0]}'; its inputs are {', '.join(names)}")
    examples = [*positional, *(named[name] for name in names if name in named)]
    if len(names) != len(examples):
        raise InputRankError(f"example_inputs: the model has {len(names)} inputs, not {len(examples)}")
    return dict(zip(names, examples, strict=True))


def flat_examples(examples: Examples) -> list[object]:
    """One for each input of the program."""
    listed = (each if isinstance(each, list | tuple) else [each] for each in examples.values() if each is not None)
    return [item for each in listed for item in each]


def tensor_type(kind: onnx.TypeProto) -> onnx.TypeProto.Tensor | None:
    """Of a tensor, of the items of a sequence, and of an optional one."""
    if kind.HasField("optional_type"):
        return tensor_type(kind.optional_type.elem_type)
    if kind.HasField("sequence_type"):
        return tensor_type(kind.sequence_type.elem_type)
    return kind.tensor_type if kind.HasField("tensor_type") else None


def _own(graph: onnx.GraphProto, weights: Mapping[str, object]) -> list[onnx.ValueInfoProto]:
    return [each for each in graph.input if each.name not in weights]


def _is_optional(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("optional_type")


def _is_sequence(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.optional_type.elem_type if _is_optional(value) else value.type
    return kind.HasField("sequence_type")


def _length(examples: Examples | None, value: onnx.ValueInfoProto) -> int:
    """Of the example of a sequence."""
    example = examples[value.name] if examples is not None else ()
    return len(example) if isinstance(example, list | tuple) else 0


def _is_empty(value: onnx.ValueInfoProto, example: object) -> bool:
    """Whether an optional is. Raises: InputTypeError for an example that is no tensor."""
    if isinstance(example, torch.Tensor) or (example is None and _is_optional(value)):
        return example is None
    raise InputTypeError(f"example_inputs: input '{printable(value.name)}' is a tensor, not a {type(example).__name__}")


def _items(value: onnx.ValueInfoProto, example: object) -> list[Input]:
    """Raises: InputTypeError."""
    if example is None and _is_optional(value):
        return []
    if not isinstance(example, list | tuple) or not all(isinstance(each, torch.Tensor) for each in example):
        raise InputTypeError(f"example_inputs: input '{printable(value.name)}' is a sequence: give a list of tensors")
    kind = tensor_type(value.type)
    return [_input(f"{value.name}[{number}]", kind, value.name, item.dim()) for number, item in enumerate(example)]


def _input(name: str, kind: onnx.TypeProto.Tensor | None, sequence: str = "", rank: int = 0) -> Input:
    """rank: of an item of a sequence, where the file does not say it."""
    assert kind is not None
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else printable(dim.dim_param) for dim in kind.shape.dim)
    if sequence:  # whose items may differ in what the file calls by one name
        dims = tuple(dim if isinstance(dim, int) else "" for dim in dims) if kind.HasField("shape") else ("",) * rank
    narrow = NARROW.get(kind.elem_type)
    return Input(name, narrow or DTYPES[kind.elem_type], dims, kind.elem_type if narrow else 0, sequence)


def _problem(value: onnx.ValueInfoProto, examples: Examples | None) -> str | None:
    kind = tensor_type(value.type)
    if kind is None:
        return f"it is a {str(value.type.WhichOneof('value')).removesuffix('_type')}; inputs are tensors, and sequences of them"
    if kind.elem_type not in DTYPES and kind.elem_type not in NARROW:
        known = kind.elem_type in onnx.TensorProto.DataType.values()
        return f"tensors of {onnx.TensorProto.DataType.Name(kind.elem_type) if known else kind.elem_type} are not supported"
    if _is_sequence(value):
        return "it is a sequence, whose length the file does not say: give example_inputs" if examples is None else None
    if not kind.HasField("shape"):
        return "the file does not say its rank"
    if any(dim.HasField("dim_value") and dim.dim_value < 0 for dim in kind.shape.dim):
        return "it has a dim of negative size"
    return None
