"""Hooks of what adds up the gradients of leaves, as DistributedDataParallel has them: a program's backward pass calls none, so that calls
which take such leaves are PyTorch's."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from disc.ral._ral import forget_leaf, note_leaf

if TYPE_CHECKING:
    from disc.frontend.lazy.recorder import Recorder

ACCUMULATOR: Any = torch._C._functions.AccumulateGrad  # pyright: ignore[reportAttributeAccessIssue]
REGISTERING = ("register_hook", "register_prehook")
_REGISTER = tuple(getattr(ACCUMULATOR, name) for name in REGISTERING)
_known: dict[int, weakref.ref[torch.Tensor]] = {}  # leaves that have been looked at, by their addresses
_reduced: dict[int, weakref.ref[torch.Tensor]] = {}  # those whose hooks are C++'s


def has_hooks(leaf: torch.Tensor) -> bool:
    """Whether somebody has registered any, as of now; where not, the follower does not ask again until `forget`."""
    key = id(leaf)
    if key in _reduced or _has_hooks(leaf):
        return True
    _known[key] = _referred(leaf)
    note_leaf(key)
    return False


def forget(leaf: torch.Tensor) -> None:
    """It is looked at anew, and nothing refers to it weakly."""
    _forget(id(leaf))


def _referred(leaf: torch.Tensor) -> weakref.ref[torch.Tensor]:
    key = id(leaf)
    return weakref.ref(leaf, lambda _: _forget(key))


def _forget(key: int) -> None:
    _known.pop(key, None)
    _reduced.pop(key, None)
    forget_leaf(key)


def _has_hooks(leaf: torch.Tensor) -> bool:
    """PyTorch tells who registers a hook which others there are."""
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        node: Any = leaf.view_as(leaf).grad_fn
    accumulator = node.next_functions[0][0]
    for register in _REGISTER:
        handle = register(accumulator, _nothing)
        hooks = handle.hooks_dict_ref()
        handle.remove()
        if hooks:
            return True
    return False


def _nothing(*given: object) -> None:
    pass


def registered(function: Callable[..., Any], active: Callable[[], Recorder | None]) -> Callable[..., Any]:
    """A method that registers a hook: what is recorded is computed before."""

    @functools.wraps(function)
    def taken(accumulator: Any, *args: Any) -> Any:
        recorder = active()
        if recorder is not None and not recorder.at_work:
            recorder.settle()
        forget(accumulator.variable)
        return function(accumulator, *args)

    return taken


def reduced(forward: Callable[..., Any], active: Callable[[], Recorder | None]) -> Callable[..., Any]:
    """The forward pass of a module whose gradients are reduced over processes."""

    @functools.wraps(forward)
    def taken(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        recorder = active()
        leaves = [] if recorder is None else [each for each in module.parameters() if each.requires_grad and id(each) not in _reduced]
        if recorder is not None and leaves and not recorder.at_work:
            recorder.settle()
        for each in leaves:
            forget(each)
            _reduced[id(each)] = _referred(each)
        return forward(module, *args, **kwargs)

    return taken
