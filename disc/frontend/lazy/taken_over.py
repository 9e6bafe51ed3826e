"""What of PyTorch does not go through its modes of functions, and has to know of lazy tensors: it is replaced when recording is first
enabled, and does what it did wherever nothing is recorded."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch._functorch.eager_transforms
import torch._functorch.predispatch
import torch.fx.experimental.proxy_tensor
import torch.onnx
import torch.overrides
import torch.utils._python_dispatch
import torch.utils.checkpoint
import torch.utils.dlpack
from torch._dynamo import config, eval_frame, trace_rules
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from disc.frontend.lazy.accumulated import ACCUMULATOR, REGISTERING, forget, reduced, registered
from disc.frontend.lazy.recorder import Recorder
from disc.frontend.lazy.tensors import LazyTensor, real
from disc.frontend.lazy.traces import forget_mark
from disc.frontend.lazy.transforms import grad_and_value
from disc.frontend.unrolled_functions import count_no_frames
from disc.ral._ral import has_handle, replace_handler, replace_method
from disc.ral.executable import Executable

Active = Callable[[], Recorder | None]  # the recorder of the thread
NATIVE = (
    (torch._functorch.predispatch, "_add_batch_dim_impl"), (torch._functorch.eager_transforms, "_wrap_for_grad"),
    (torch.utils.dlpack, "to_dlpack"), (torch.utils.checkpoint, "_make_saved_tensor"), (Executable, "__call__"),
    *((torch.UntypedStorage, name)
      for name in ("__getitem__", "__setitem__", "fill_", "copy_", "resize_", "byteswap", "_write_file", "_set_from_file")),
)  # fmt: skip
# What begins or ends something that each call of PyTorch in between has to see when it is made.
WATCHING = (
    (torch._functorch.predispatch, "_vmap_increment_nesting_impl"), (torch._functorch.eager_transforms, "_grad_increment_nesting"),
    (torch._functorch.predispatch, "_jvp_increment_nesting_impl"), (torch._functorch.eager_transforms, "_func_increment_nesting"),
    (torch.autograd.forward_ad, "enter_dual_level"), (torch.autograd.forward_ad, "exit_dual_level"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"), (torch.autograd.graph.saved_tensors_hooks, "__exit__"),
    (torch._C, "_set_default_dtype"), (torch._C, "_set_default_tensor_type"), (torch, "set_anomaly_enabled"),
)  # fmt: skip
# What tells, or says, what is drawn from then on.
SEEDING = ("manual_seed", "seed", "get_state", "set_state", "clone_state", "graphsafe_get_state", "graphsafe_set_state")
MODES_OF_DISPATCH = ((torch.utils._python_dispatch.TorchDispatchMode, "__enter__"),
                     (torch.utils._python_dispatch.TorchDispatchMode, "__exit__"))  # fmt: skip
# What looks at tensors by itself, those of modules among them: tracers and compilers.
LOOKING = (
    (torch.export, "export"), (torch.onnx, "export"), (torch.jit, "trace"), (torch.jit, "trace_module"), (torch.jit, "script"),
    (torch.fx.experimental.proxy_tensor._MakefxTracer, "trace"),
)  # fmt: skip
SCRIPTS = ((torch._C.ScriptFunction, "__call__"), (torch._C.ScriptMethod, "__call__"))
SWAP = (torch.utils, "swap_tensors")
REDUCED = (torch.nn.parallel.DistributedDataParallel, "forward")
GRADIENT = (torch._functorch.eager_transforms, "grad_and_value_impl")
_ours: set[Callable[..., Any]] = set()
_before: dict[Callable[..., Any], Callable[..., Any]] = {}
_counting = threading.Lock()
_counting_steps = 0  # of optimizers, of all threads, that are being made


def take_over(active: Active) -> None:
    """To be called whenever recording is enabled: there may be new optimizers."""
    pending = list(torch.optim.Optimizer.__subclasses__())
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        step = vars(kind).get("step")
        if callable(step) and not _is_ours(step):
            kind.step = _noted(_step(step, active))  # pyright: ignore[reportAttributeAccessIssue]
    if not _is_ours(torch.inference_mode.__enter__):
        torch.inference_mode.__enter__ = _noted(_no_inference(torch.inference_mode.__enter__, active))
    if not _is_ours(eval_frame._callback_from_stance):
        eval_frame._callback_from_stance = _noted(_recorded_instead(eval_frame._callback_from_stance, active))
        config.nontraceable_tensor_subclasses.add(LazyTensor)  # Dynamo's guards read its memory: what takes one runs as it is
    apply = vars(torch.autograd.Function)["apply"].__func__
    if not _is_ours(apply):
        torch.autograd.Function.apply = classmethod(_noted(_apply(apply, active)))  # pyright: ignore[reportAttributeAccessIssue]
    group = torch._C._group_tensors_by_device_and_dtype
    if not _is_ours(group):
        ours = _noted(_group(group))
        _as_before_to_dynamo(ours, group)
        torch._C._group_tensors_by_device_and_dtype = ours
    for kind, names, wrapped in ((torch.Generator, SEEDING, _of_default_generator), (ACCUMULATOR, REGISTERING, registered)):
        for name in names:
            method = getattr(kind, name)
            if not _is_ours(method):
                replace_method(kind, name, _noted(wrapped(method, active)))
    named = _replaced_handler()
    kinds = (
        (NATIVE, _with_tensors), (WATCHING, _watched), (MODES_OF_DISPATCH, _watched), ([GRADIENT], grad_and_value), ([SWAP], _swapping),
        ([REDUCED], reduced),
        (LOOKING, _paused), (((torch.autograd, "backward"), *SCRIPTS), _settled),
    )  # fmt: skip
    for places, wrapped in kinds:
        for module, name in places:
            function = getattr(module, name)
            if not _is_ours(function):
                ours = _noted(wrapped(function, active))
                _as_before_to_dynamo(ours, function)
                setattr(module, name, ours)
                if isinstance(module, ModuleType):
                    named[id(function)] = ours
    _replace_by_name(named)


def _as_before_to_dynamo(ours: Callable[..., Any], original: Callable[..., Any]) -> None:
    """Dynamo, which may trace in another thread meanwhile, sees the function that was there."""

    def traced(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    TorchInGraphFunctionVariable._get_handlers()  # it looks functions up by name, once
    if not _is_ours(trace_rules.load_object):
        trace_rules.load_object = _noted(_loaded(trace_rules.load_object))  # others it looks up anew, where processes form a group
    _before[ours] = original
    torch.compiler.substitute_in_graph(ours, skip_signature_check=True)(traced)


def _loaded(load: Callable[[str], object]) -> Callable[[str], object]:
    """What Dynamo finds by a name: the function that was there."""

    def loaded(name: str) -> object:
        found = load(name)
        return _before.get(found, found) if callable(found) else found

    return loaded


def _replaced_handler() -> dict[int, Callable[..., Any]]:
    """Functions of PyTorch in Python ask in Python who is to run them; the follower is asked first, without. By the identity of what is
    replaced."""
    handler = torch.overrides.handle_torch_function
    if _is_ours(handler):
        return {}
    stack = (torch._C._len_torch_function_stack, torch._C._get_function_stack_at, torch._C._is_torch_function_enabled)
    return {id(handler): _noted(replace_handler(handler, *stack))}


def _replace_by_name(replaced: Mapping[int, Callable[..., Any]]) -> None:
    """Modules that have imported functions by name, those of the user among them, have ours from now on; but those of native code, where
    Dynamo looks for what it knows. replaced: by the identity of the functions, which ours keep."""
    modules = [each for name, each in list(sys.modules.items()) if not name.startswith("torch._C.")] if replaced else []
    for module in modules:
        for name, found in list(getattr(module, "__dict__", {}).items()):
            ours = replaced.get(id(found))
            if ours is not None:
                setattr(module, name, ours)


def _with_tensors(function: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """Native code that takes tensors as they are, behind what is recorded, which may write them."""

    @functools.wraps(function)
    def taken(*args: Any, **kwargs: Any) -> Any:
        recorder = active()
        if recorder is not None and not recorder.at_work:
            recorder.settle()
        return function(*real(args), **real(kwargs)) if has_handle(args, kwargs) else function(*args, **kwargs)

    return taken


def _settled(function: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """Native code that changes what is recorded: gradients."""

    @functools.wraps(function)
    def taken(*args: Any, **kwargs: Any) -> Any:
        recorder = active()
        return function(*real(args), **real(kwargs)) if recorder is None else recorder.settle_before(function, args, kwargs)

    return taken


def _paused(function: Callable[..., Any], active: Active) -> Callable[..., Any]:
    @functools.wraps(function)
    def taken(*args: Any, **kwargs: Any) -> Any:
        recorder = active()
        return function(*args, **kwargs) if recorder is None else recorder.pause_for(function, args, kwargs)

    return taken


def _swapping(swap: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """PyTorch swaps nothing that is referred to weakly, as by us."""

    @functools.wraps(swap)
    def taken(t1: torch.Tensor, t2: torch.Tensor) -> Any:
        for each in (t1, t2):
            forget_mark(each)
            forget(each)
        return swap(t1, t2)

    return _paused(taken, active)


def _no_inference(enter: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """Inference tensors do not tell what is written: where calls are recorded, there are none, and no gradients."""

    @functools.wraps(enter)
    def taken(mode: torch.inference_mode) -> None:
        recorder = active()
        if recorder is None or recorder.follower.stopped or not mode.mode:
            return enter(mode)
        mode._inference_mode_context = torch.no_grad()  # pyright: ignore[reportAttributeAccessIssue]
        return mode._inference_mode_context.__enter__()

    return taken


def _recorded_instead(callback_of: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """Functions of torch.compile are recorded as any others: Dynamo would look into lazy tensors, and into the recorder."""

    @functools.wraps(callback_of)
    def taken(callback: Any) -> Any:
        recorder = active()
        if recorder is None or recorder.follower.stopped or recorder.paused or callback is False:
            return callback_of(callback)
        count_no_frames()
        return None

    return taken


def _watched(function: Callable[..., Any], active: Active) -> Callable[..., Any]:
    @functools.wraps(function)
    def taken(*args: Any, **kwargs: Any) -> Any:
        recorder = active()
        if recorder is None or recorder.at_work:
            return function(*args, **kwargs)
        recorder.settle()
        try:
            return function(*args, **kwargs)
        finally:
            recorder.look_around()

    return taken


def _of_default_generator(function: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """What is recorded draws from the default generator alone."""
    watched = _watched(function, active)

    @functools.wraps(function)
    def taken(generator: torch.Generator, *args: Any, **kwargs: Any) -> Any:
        return (watched if generator is torch.default_generator else function)(generator, *args, **kwargs)

    return taken


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    _ours.add(function)
    return function


def _is_ours(function: Any) -> bool:
    """Whether it is, or wraps one: an optimizer's class wraps its own step when it is first used."""
    while function is not None and not (isinstance(function, Hashable) and function in _ours):  # methods of C++ are not hashable
        function = getattr(function, "__wrapped__", None)
    return function is not None


def _step(step: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """Optimizers that count their steps read the counts as Python numbers, unless they are told that a compiler is looking. Traces end
    behind a step."""

    @functools.wraps(step)
    def taken(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        recorder = active()
        if recorder is None or recorder.follower.stopped:
            return step(optimizer, *args, **kwargs)
        counting = [group for group in optimizer.param_groups if group.get("capturable") is False]
        if not counting:
            result = step(optimizer, *args, **kwargs)
        else:
            with _as_compiled(counting):
                result = step(optimizer, *args, **kwargs)
        recorder.end_of_step()
        return result

    return taken


@contextmanager
def _as_compiled(groups: list[dict[str, Any]]) -> Iterator[None]:
    """For a step of an optimizer with these groups, which count. The flag is the process's: the last thread's step takes it away."""
    global _counting_steps
    with _counting:
        ours = _counting_steps > 0 or not torch.compiler._is_compiling_flag  # else a compiler is looking
        _counting_steps += ours
        torch.compiler._is_compiling_flag = True
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False
        with _counting:
            _counting_steps -= ours
            torch.compiler._is_compiling_flag = not ours or _counting_steps > 0


def _apply(apply: Callable[..., Any], active: Active) -> Callable[..., Any]:
    """Functions with a backward of their own run Python code: on tensors, and at once."""

    @functools.wraps(apply)
    def taken(kind: type, *args: Any, **kwargs: Any) -> Any:
        recorder = active()
        if recorder is None:
            return apply(kind, *real(args), **real(kwargs))  # of one that stands for another, native code would make no graph
        return recorder.run_now(functools.partial(apply, kind), args, kwargs)

    return taken


def _group(group: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients are clipped in groups of one device and dtype, which native code makes of tensors alone."""

    @functools.wraps(group)
    def taken(tensors: list[list[Any]], with_indices: bool = False) -> Any:
        if not any(type(each) is LazyTensor for row in tensors for each in row):
            return group(tensors, with_indices)
        found: dict[Any, Any] = {}
        for number, first in enumerate(tensors[0]):
            rows, numbers = found.setdefault((first.device, first.dtype), ([[] for _ in tensors], []))
            for row, mine in zip(rows, tensors, strict=True):
                row += mine[number : number + 1]  # an optimizer that keeps no such tensors has an empty list
            numbers.append(number)
        return found

    return taken
