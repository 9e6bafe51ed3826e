"""The example inputs of a module, as the user gives them: what they are, and whether they fit the model."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree

from disc.errors import InputRankError, InputTypeError, ShapeConstraintError, UnsupportedFormatError
from disc.frontend.not_models import SCRIPT

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)  # PyTorch's own kinds of a tensor with data
Examples = tuple[tuple[object, ...], dict[str, object]]


def examples_of(given: object) -> Examples:
    """Positional and named inputs. One tensor is one input.

    Raises: InputTypeError for anything else than a tensor, a tuple or list, or a mapping by name.
    """
    if isinstance(given, torch.Tensor | np.ndarray):
        given = (given,)
    if isinstance(given, Mapping):
        wrong = [name for name in given if not isinstance(name, str)]
        if wrong:
            raise InputTypeError(f"example_inputs: a mapping has the inputs by name; {wrong[0]!r} is no name")
        return (), pytree.tree_map(_as_tensor, dict(given))
    if isinstance(given, tuple | list):
        return pytree.tree_map(_as_tensor, tuple(given)), {}
    raise InputTypeError(
        f"example_inputs is a {type(given).__name__}; write disc.compile(model, (x, mask)) for model(x, mask), "
        'disc.compile(model, x) for one tensor, or disc.compile(model, {"x": x, "mask": mask})'
    )


def _as_tensor(leaf: object) -> object:
    if not isinstance(leaf, np.ndarray):
        return leaf
    try:
        return torch.from_numpy(np.ascontiguousarray(leaf)).reshape(leaf.shape)
    except TypeError as error:
        raise InputTypeError(f"example_inputs: an array of {leaf.dtype}: {error}") from error


def bind_examples(model: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
    """The inputs by parameter of `forward`. Raises InputRankError where they do not fit it."""
    taken = "..."
    try:
        signature = inspect.signature(model.forward)
        taken = ", ".join(signature.parameters)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        nested = len(args) == 1 and isinstance(args[0], tuple | list)
        hint = "it has a tuple in a tuple: write (x, mask), not ((x, mask),)" if nested else "give one tuple or dict of all inputs"
        if args and all(type(each) is int for each in args):
            hint = f"it has sizes: give tensors of any size, such as torch.randn({', '.join(map(str, args))})"
        raise InputRankError(f"example_inputs do not fit forward({taken}): {error}; {hint}") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and bound.arguments.get(name):
            first = next(iter(bound.arguments[name]))
            raise InputRankError(f"forward takes '{first}' by **{name}: give a module whose forward names its inputs")
    return bound


def check_examples(model: torch.nn.Module, bound: inspect.BoundArguments) -> None:
    """Raises: InputTypeError for a tensor without data of its own, and for a dataclass, UnsupportedFormatError for a module or weight of
    such a kind."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedFormatError(SCRIPT)
    for name, module in model.named_modules():
        if hasattr(module, "_packed_params"):
            raise UnsupportedFormatError(
                f"{type(module).__name__} '{name}' is quantized by PyTorch, which disc does not read: give the model before that; "
                'disc.Options(dtype="int8") quantizes it'
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
            raise UnsupportedFormatError(f"weight '{name}': {_problem(tensor)}")
    for name, tensor in named_tensors(bound.arguments):
        problem = _problem(tensor)
        if problem is not None:
            raise InputTypeError(f"example of input '{name}': {problem}")
    for path, leaf in pytree.tree_leaves_with_path(dict(bound.arguments), is_leaf=_is_dataclass):
        if _is_dataclass(leaf):
            raise InputTypeError(
                f"example of input '{_place(path)}': a {type(leaf).__name__} is a dataclass; inputs may be tensors, numbers, and "
                "tuples, named tuples, lists and dicts of these: make it one in a module around the model, or take its fields as inputs"
            )


def note_lists(error: Exception, bound: inspect.BoundArguments) -> None:
    """Adds to an error of a model which inputs of its example are lists of numbers, where tensors may be meant."""
    for name, value in bound.arguments.items():
        if isinstance(value, list) and pytree.tree_all(lambda leaf: isinstance(leaf, int | float), value):
            made = 'tokenizers make tensors with return_tensors="pt"'
            error.add_note(f"input '{name}' of the example is a list: where it should be a tensor, give torch.tensor(...) of it; {made}")


def named_tensors(arguments: Mapping[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor under its place: "x", "pair[0]"."""
    for path, leaf in pytree.tree_leaves_with_path(dict(arguments)):
        if isinstance(leaf, torch.Tensor):
            yield _place(path), leaf


def _place(path: pytree.KeyPath) -> str:
    return pytree.keystr(path[:1]).strip("[']") + pytree.keystr(path[1:])


def _is_dataclass(leaf: object) -> bool:
    """Other than transformers' outputs, which are dicts, too."""
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type | Mapping)


def _problem(tensor: torch.Tensor) -> str | None:
    """Why this tensor can be no input or weight; None: it can."""
    if isinstance(tensor, FakeTensor):
        return "a FakeTensor has no data; give a tensor with values"
    if tensor.device.type == "meta":
        return "a tensor on the meta device has no data; give one with values"
    if type(tensor) not in PLAIN:
        return f"tensors of the subclass {type(tensor).__name__} are not supported; give a plain torch.Tensor"
    if tensor.is_nested or tensor.layout is not torch.strided:
        layout = "jagged" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        return f"tensors of layout {layout} are not supported; give a dense tensor"
    return "quantized tensors are not supported; give what dequantize() returns" if tensor.is_quantized else None


def weight_problem(tensor: torch.Tensor) -> str | None:
    """Why the data of a weight cannot be stored; None: it can."""
    return _problem(tensor)


def check_specs(names: Sequence[str], specs: object) -> None:
    """Raises: ShapeConstraintError where `dynamic_shapes` is not one entry per input, or has the name of a dim in a dim's place."""
    for path, leaf in pytree.tree_leaves_with_path(specs):
        if isinstance(leaf, str):
            place = f"dynamic_shapes{pytree.keystr(path)}"
            raise ShapeConstraintError(f"{place} is {leaf!r}: give torch.export.Dim({leaf!r}); without dynamic_shapes every dim is dynamic")
    inputs = ", ".join(map(repr, names)) or "none"
    if isinstance(specs, Mapping):
        unknown = [name for name in specs if name not in names]
        missing = [name for name in names if name not in specs]
        if unknown:
            raise ShapeConstraintError(f"dynamic_shapes names {unknown[0]!r}, which is no input of this call; the inputs are {inputs}")
        if missing:
            raise ShapeConstraintError(f"dynamic_shapes has no entry for input {missing[0]!r}; the inputs are {inputs}")
    elif isinstance(specs, torch.Tensor):
        raise ShapeConstraintError(
            "dynamic_shapes is a Tensor: the inputs of the example are one tuple, disc.compile(model, (x, mask)), or one dict by name"
        )
    elif not isinstance(specs, tuple | list):
        raise ShapeConstraintError(f"dynamic_shapes is a {type(specs).__name__}: give a tuple with an entry per input, or a dict by name")
    elif len(specs) != len(names):
        raise ShapeConstraintError(f"dynamic_shapes has {len(specs)} entries for {len(names)} inputs ({inputs})")
