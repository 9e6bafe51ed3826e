"""`torch.func.grad` and `grad_and_value` of recorded programs, by autograd: the levels of PyTorch's transforms hold tensors with values, so
that what comes before, and what is in them, could not be one program with what comes after."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._functorch.eager_transforms import _slice_argnums
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from disc.frontend.lazy.calls import writes
from disc.frontend.lazy.recorder import Recorder
from disc.frontend.lazy.recording import WritesOutsideError
from disc.frontend.lazy.tensors import real

Function = Callable[..., Any]


class _Writes(TorchFunctionMode):
    """Whether a function writes anything in place."""

    found = False

    def __torch_function__(self, func: Function, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.found = self.found or writes(func, kwargs or {})
        return func(*args, **(kwargs or {}))


def grad_and_value(original: Function, active: Callable[[], Recorder | None]) -> Function:
    """In the place of PyTorch's own. Code that is differentiated for the first time, and such as writes in place, is left to that: what a
    transform refuses to have written, autograd takes."""
    known = WeakKeyDictionary[CodeType, bool]()  # whether code writes nothing

    @functools.wraps(original)
    def taken(func: Function, argnums: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder, code = active(), _code_of(func)
        if recorder is None or code is None or not recorder.records():
            return original(func, argnums, has_aux, args, kwargs)
        leaves = pytree.tree_leaves(_slice_argnums(args, argnums, as_tuple=False))
        if known.get(code) and all(isinstance(each, torch.Tensor) and each.is_floating_point() for each in leaves):
            try:
                return _recorded(recorder, original, func, argnums, has_aux, args, kwargs)
            except WritesOutsideError:  # another branch than before: it is taken anew
                known[code] = False
                recorder.settle()
        seen = _Writes()

        def watched(*args: Any, **kwargs: Any) -> Any:
            with seen:
                return func(*args, **kwargs)

        found = original(watched, argnums, has_aux, args, kwargs)
        known[code] = known.get(code, True) and not seen.found
        return found

    return taken


def _code_of(func: object) -> CodeType | None:
    while isinstance(func, functools.partial):
        func = func.func
    func = type(func).forward if isinstance(func, torch.nn.Module) else func
    return getattr(func, "__code__", None)


def _recorded(
    recorder: Recorder, original: Function, func: Function, argnums: Any, has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    outer = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves, spec = pytree.tree_flatten(_slice_argnums(args, argnums, as_tuple=False))
        variables = [_within(each, outer, recorder) for each in leaves]
        with recorder.recording.writing_what_is_made_within():
            output = func(*_replaced(args, argnums, pytree.tree_unflatten(variables, spec)), **kwargs)
        value, aux = output if has_aux and isinstance(output, tuple) and len(output) == 2 else (output, None)
        if not isinstance(value, torch.Tensor) or value.dim() != 0 or (has_aux and value is output):  # PyTorch says so in its words
            given = real(output)
            with torch.set_grad_enabled(outer):
                return original(lambda *_, **__: given, argnums, has_aux, args, kwargs)
        gradients = _gradients(value, variables)
        freed = functools.partial(_outside, variables=variables, outer=outer, recorder=recorder)
        gradient = pytree.tree_unflatten([freed(each) for each in gradients], spec)
        value, aux = pytree.tree_map(lambda each: each if _is_from_outside(each, variables) else freed(each), (value, aux))
    return gradient, (value, aux) if has_aux else value


def _gradients(value: torch.Tensor, variables: list[torch.Tensor]) -> list[torch.Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(each) for each in variables]
    return list(torch.autograd.grad(value, variables, create_graph=True, allow_unused=True, materialize_grads=True))


def _replaced(args: tuple[Any, ...], argnums: Any, given: Any) -> list[Any]:
    """The arguments with `given` for those of these numbers: one, or as many."""
    found = list(args)
    for number, each in zip(argnums, given, strict=True) if isinstance(argnums, tuple) else [(argnums, given)]:
        found[number] = each
    return found


def _within(x: torch.Tensor, outer: bool, recorder: Recorder) -> torch.Tensor:
    """The argument as the function sees it. Gradients of the result go on into it where they would without the transform."""
    return x.view_as(x) if outer and x.requires_grad else recorder.called(_variable, x)


def _is_from_outside(y: Any, variables: list[torch.Tensor]) -> bool:
    """Whether it is a weight as it is."""
    return isinstance(y, torch.Tensor) and y.requires_grad and y.is_leaf and not any(y is each for each in variables)


def _outside(y: Any, variables: list[torch.Tensor], outer: bool, recorder: Recorder) -> Any:
    """A result without the transform's own level."""
    if not isinstance(y, torch.Tensor) or not y.requires_grad:
        return y
    return recorder.called(_freed, y, *variables) if outer else y.detach()


def _variable(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_()


def _freed(y: torch.Tensor, *variables: torch.Tensor) -> torch.Tensor:
    """With gradients only if there are any but those of the variables: autograd tells."""
    pending, seen = [y.grad_fn] if y.grad_fn is not None else [], set[object]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        before = [each for each, _ in node.next_functions if each is not None]
        leaf = getattr(node, "variable", None)  # of what stands for a leaf in a trace None
        if not before and not any(leaf is each for each in variables):
            return y.view_as(y)
        pending += before
    return y.detach()
