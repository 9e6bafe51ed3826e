"""One node as a rule sees it: its inputs as tensors, sizes or numbers, its attributes with the defaults of its version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import torch
from onnx import defs

from disc.errors import printable
from disc.frontend.onnx.narrow import decoded
from disc.frontend.onnx.tensors import DTYPES, NARROW
from disc.frontend.onnx.values import Constant, Leaf, Narrow, NodeError, Number, Sizes, Value, numbers, sizes_of, type_name
from disc.frontend.onnx.values import Sequence as ValueSequence


class Subgraph:
    """A graph that a node holds. inputs, outputs: names, in order. draws: whether it draws random numbers, or a graph in it does."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    draws: bool


Attribute = int | float | str | bytes | list[int] | list[float] | list[str] | torch.Tensor | Narrow | Subgraph


@dataclass(frozen=True)
class Traced:
    """A graph as a function. operands: what it reads from around it; call: of its inputs and of such operands, its results."""

    operands: list[Leaf]
    call: Callable[[Sequence[Value], Sequence[Leaf]], tuple[Value, ...]]


@dataclass(frozen=True)
class Node:
    """inputs: None for one that is left out. outputs: how many the graph names, up to the last one.

    opset: the number of the operator set. schema: of the standard, None for an operator of another domain. materialize: a constant as a
    tensor of the trace. run: a graph of the node on values, in the scope that the node stands in; traced: one as a function.
    """

    op: str
    inputs: Sequence[Value]
    outputs: int
    attributes: Mapping[str, Attribute]
    schema: defs.OpSchema | None
    opset: int
    materialize: Callable[[Constant], torch.Tensor]
    run: Callable[[Subgraph, Sequence[Value]], tuple[Value, ...]]
    traced: Callable[[Subgraph], Traced]

    # --- inputs -------------------------------------------------------------------------------------------------------------

    def has(self, place: int) -> bool:
        return place < len(self.inputs) and self.inputs[place] is not None

    def value(self, place: int) -> Value:
        return self.inputs[place] if place < len(self.inputs) else None

    def tensor(self, place: int) -> torch.Tensor:
        """Raises NodeError where there is none."""
        return self.as_tensor(self.value(place), f"input {place}")

    def optional(self, place: int) -> torch.Tensor | None:
        return self.tensor(place) if self.has(place) else None

    def tensors(self) -> list[torch.Tensor]:
        return [self.tensor(place) for place in range(len(self.inputs))]

    def as_tensor(self, value: Value, what: str = "a value") -> torch.Tensor:
        if isinstance(value, Constant):
            return self.materialize(value)
        if isinstance(value, Sizes):
            return value.tensor()
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, Narrow):
            return decoded(self.stored(value), value.kind)
        kind = "missing" if value is None else "a sequence"
        raise NodeError(f"{what} is {kind}, and must be a tensor", unsupported=False)

    def stored(self, value: Narrow) -> torch.Tensor:
        return self.materialize(value.stored) if isinstance(value.stored, Constant) else value.stored

    def sequence(self, place: int) -> tuple[Value, ...]:
        value = self.value(place)
        if not isinstance(value, ValueSequence):
            raise NodeError(f"input {place} is no sequence", unsupported=False)
        return value.items

    def sizes(self, place: int) -> Sizes | None:
        """Numbers that are known when compiling, or computed from sizes; None where the input is data."""
        return sizes_of(self.value(place))

    def integers(self, place: int, what: str) -> list[Number]:
        """As `sizes`. Raises NodeError for data."""
        known = self.sizes(place)
        if known is None:
            raise NodeError(f"its {what} depend on data; they must be constants, or computed from the sizes of tensors")
        return list(known.numbers)

    def integer(self, place: int, what: str) -> Number:
        known = self.integers(place, what)
        if len(known) != 1:
            raise NodeError(f"its {what} is one number, not {len(known)}", unsupported=False)
        return known[0]

    def constants(self, place: int, what: str) -> list[int]:
        """Integers that no size decides."""
        known = self.integers(place, what)
        if not all(isinstance(each, int) for each in known):
            raise NodeError(f"its {what} depend on the sizes of inputs")
        return [int(each) for each in known]

    def known(self, place: int) -> Constant | None:
        value = self.value(place)
        return value if isinstance(value, Constant) else None

    def number(self, place: int, what: str) -> int | float | bool:
        """One element of a constant. Raises NodeError for data."""
        value = self.known(place)
        if value is None:
            raise NodeError(f"its {what} depends on data")
        if value.data.numel() != 1:
            raise NodeError(f"its {what} is one number, not {value.data.numel()}", unsupported=False)
        return numbers(value)[0]

    def numbers(self, place: int, what: str) -> list[int | float | bool]:
        """The elements of a constant."""
        value = self.known(place)
        if value is None:
            raise NodeError(f"its {what} depend on data")
        return numbers(value)

    # --- attributes ---------------------------------------------------------------------------------------------------------

    def given(self, name: str) -> bool:
        """Whether the file has this attribute."""
        return name in self.attributes

    def attr_int(self, name: str, default: int | None = None) -> int:
        found = self._attribute(name, default)
        if not isinstance(found, int):
            raise self._wrong(name)
        return found

    def attr_float(self, name: str, default: float | None = None) -> float:
        found = self._attribute(name, default)
        if not isinstance(found, int | float):
            raise self._wrong(name)
        return float(found)

    def attr_text(self, name: str, default: str | None = None) -> str:
        found = self._attribute(name, default)
        if not isinstance(found, bytes | str):
            raise self._wrong(name)
        return printable(found.decode(errors="replace") if isinstance(found, bytes) else found)

    def attr_ints(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        found = self._attribute(name, list(default) if default is not None else None)
        if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
            raise self._wrong(name)
        return [each for each in found if isinstance(each, int)]

    def attr_floats(self, name: str) -> list[float]:
        found = self._attribute(name, None)
        if not isinstance(found, list):
            raise self._wrong(name)
        return [float(each) for each in found if isinstance(each, int | float)]

    def attr_graph(self, name: str) -> Subgraph:
        found = self.attributes.get(name)
        if not isinstance(found, Subgraph):
            raise self._wrong(name)
        return found

    def attr_dtype(self, name: str) -> torch.dtype:
        """The type of PyTorch that an attribute names. Raises NodeError for one that is not supported."""
        kind = self.attr_kind(name)
        if kind not in DTYPES:
            raise NodeError(f"type {onnx.TensorProto.DataType.Name(kind)}")
        return DTYPES[kind]

    def attr_kind(self, name: str) -> int:
        """The number of a type that an attribute names."""
        kind = self.attr_int(name)
        if kind not in DTYPES and kind not in NARROW:
            raise NodeError(f"type {onnx.TensorProto.DataType.Name(kind) if kind in onnx.TensorProto.DataType.values() else kind}")
        return kind

    def _attribute(self, name: str, default: Attribute | None) -> Attribute | None:
        if name in self.attributes:
            return self.attributes[name]
        if default is None and self.schema is not None and name in self.schema.attributes:
            stated = self.schema.attributes[name].default_value
            return onnx.helper.get_attribute_value(stated) if stated.type else None
        return default

    def _wrong(self, name: str) -> NodeError:
        return NodeError(f"its attribute '{name}' is missing or of another type", unsupported=False)


# --- types ------------------------------------------------------------------------------------------------------------------------


def check_inputs(node: Node) -> dict[str, str]:
    """The types that the schema's type variables stand for.

    Raises: NodeError for inputs whose types the operator does not take, or that differ where they must be one.
    """
    bound: dict[str, str] = {}
    if node.schema is None:
        return bound
    allowed = {each.type_param_str: each.allowed_type_strs for each in node.schema.type_constraints}
    for place, name in enumerate(map(type_name, node.inputs)):
        formal = _formal(node.schema.inputs, place)
        if name is None or formal is None:
            continue
        variable = formal.type_str
        kinds = allowed.get(variable, [variable])
        if not any(f"tensor({name})" in kind for kind in kinds):
            raise NodeError(f"input '{formal.name}' is a tensor of {name}, which {node.op} does not take", unsupported=False)
        if variable in allowed and formal.is_homogeneous and bound.setdefault(variable, name) != name:
            raise NodeError(f"input '{formal.name}' is {name}, another one is {bound[variable]}; they must be one type",
                            unsupported=False)  # fmt: skip
    return bound


def expected_type(node: Node, place: int, bound: Mapping[str, str]) -> str | None:
    """The type of a result as far as the schema says it."""
    formal = _formal(node.schema.outputs, place) if node.schema is not None else None
    return bound.get(formal.type_str) if formal is not None else None


def _formal(parameters: Sequence[defs.OpSchema.FormalParameter], place: int) -> defs.OpSchema.FormalParameter | None:
    """The parameter at this place; the last one may stand for many."""
    if place < len(parameters):
        return parameters[place]
    last = parameters[-1] if parameters else None
    return last if last is not None and last.option == defs.OpSchema.FormalParameterOption.Variadic else None
