"""Records the calls of PyTorch functions of one thread, and computes them when a value is read (Dali, paper 004, section 2).

A call that no compiled trace goes through is run at once, by PyTorch, and noted; nothing is different from a program without a recorder but
that its trace is known afterwards. A trace that has come a second time is compiled. From then on a program that begins as that trace does
gets objects without values, and its calls are only compared with the trace: no shape rule runs. When a value is read, what has been
compiled runs if the trace ends there and its guards hold of the sizes; if not, the calls are made by PyTorch, one after the other.

Here is what PyTorch, and what stands for functions of PyTorch, calls: the mode, and what ends or interrupts recording from aside. What
becomes of a call is in `recording.py`, what the tree of traces is told in `trace_tree.py`, and how runs end in `run_ends.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch._C import DisableTorchFunction
from torch.autograd import profiler
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

from disc.frontend.backend_settings import Settings
from disc.frontend.lazy.accumulated import has_hooks
from disc.frontend.lazy.calls import PLAIN, TENSORS
from disc.frontend.lazy.outline import is_freed
from disc.frontend.lazy.recording import MOST_KNOWN, Recording
from disc.frontend.lazy.run_ends import RunEnds
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.tensors import LazyTensor, become_plain, new_handle, real
from disc.frontend.lazy.trace_tree import TraceTree, autocast_dtype
from disc.frontend.lazy.traces import Run
from disc.ral._ral import Follower, LazyTurns


class Recorder(TorchFunctionMode):
    """settings: as of torch.compile. Calls of other threads that use its values take turns with its own.

    Calls that a compiled trace goes through never come here: `_ral.Follower` gives what stands for their results, and has a program that
    only computes values run where one of these is read.
    """

    def __init__(self, settings: Settings, statistics: LazyStatistics) -> None:
        super().__init__()
        self._lock = LazyTurns()
        self.follower = Follower(_framework(self._lock), self._called, self._end_for_read)
        self.follower.recorder = self
        vars(self)["__torch_function__"] = MethodType(self.follower.mode_function, self)  # what PyTorch calls
        self._tree = TraceTree(self.follower)
        self._ends = RunEnds(self._tree, settings, statistics)
        self.recording = Recording(self._tree, self._ends, settings, statistics)
        self.entered = False  # it is among the modes of PyTorch
        self._taking = False  # a call; what is called within that is a finalizer's, and not recorded
        self.paused = False  # others trace: their functions are called as without a recorder

    def _called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], inside: bool) -> Any:
        """A call that no compiled trace goes through. inside: PyTorch's modes are on, as a method of a handle was called."""
        if inside:
            with DisableTorchFunction():
                result = self._called(func, args, kwargs, False)
            if self.follower.stopped:
                self.step_aside()
            return result
        return self._alone(self._taken, func, args, kwargs)

    def _taken(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Within, no garbage is collected: finalizers may call anything, and end what a call has begun with."""
        if self._taking:
            return func(*real(args), **real(kwargs))
        collecting = gc.isenabled()
        gc.disable()
        self._taking = True
        try:
            return self.recording.taken(func, args, kwargs)
        finally:
            self._taking = False
            if collecting:
                gc.enable()

    def _end_for_read(self, ended: Run | None) -> None:
        """What is recorded comes before a read that the follower makes. ended: a run that is over, as its program has refused it. PyTorch's
        modes are off."""
        if ended is None:
            self._alone(self._ends.end)
        else:
            self._alone(self._ends.compute, ended)

    def _alone(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of ours: other threads wait for it. Native code that reads numbers (`torch.Tensor([a, b])`) has autograd off,
        which what is computed for it is not to be without."""
        if (
            torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
            and not torch.is_inference_mode_enabled()
        ):
            with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), torch._C.DispatchKeySet.from_raw_repr(0)):
                return self._alone(function, *args)
        with self._lock:
            self.follower.enter()
            try:
                return function(*args)
            finally:
                self.follower.leave()

    def look_around(self) -> None:
        """Nothing is recorded where calls are watched as they are made: by hooks for what autograd keeps, modes of dispatch (what traces or
        counts operations), modes of functions that began before this one and so come behind it, or a search for tangents or for gradients
        that are no numbers. Traces begin anew for another default dtype."""
        watched = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None  # pyright: ignore[reportAttributeAccessIssue]
        traced = torch._C._len_torch_dispatch_stack() > 0 or torch.is_anomaly_enabled()
        modes = _modes()
        behind = modes[: modes.index(self)] if self in modes else []
        watched = watched or not all(isinstance(each, DeviceContext) for each in behind)
        self.follower.active = not watched and not traced and torch.autograd.forward_ad._current_level < 0
        self._tree.follow_default_dtype()

    def join(self) -> None:
        """Is the last of the modes of PyTorch, which is asked first."""
        self.__enter__()
        self.entered, self.follower.modes = True, torch._C._len_torch_function_stack()

    def leave(self) -> None:
        """Leaves the modes of PyTorch, also where others have come since. One that began before and has ended meanwhile has taken this one
        away in its place, as the last one, and goes now."""
        others = _modes()
        behind = others[others.index(self) + 1 :] if self in others else []
        for _ in behind:
            torch._C._pop_torch_function_stack()
        self.entered, self.follower.modes = False, 0
        self.__exit__(None, None, None)
        for each in behind:
            torch._C._push_on_torch_function_stack(each)

    def step_aside(self) -> None:
        """Leaves the modes of PyTorch, if it is the last one: what is never recorded costs nothing then."""
        count = torch._C._len_torch_function_stack()
        if self.entered and count and torch._C._get_function_stack_at(count - 1) is self:
            self.entered, self.follower.modes = False, 0
            self.__exit__(None, None, None)

    def records(self) -> bool:
        """Whether a call that is made now would be recorded."""
        follower = self.follower
        return follower.active and not follower.stopped and not follower.busy and not torch._C._are_functorch_transforms_active()

    @property
    def at_work(self) -> bool:
        """Whether what is called now is called by the recorder, or for what it runs."""
        return self.follower.busy or self._ends.at_work or self.recording.occupied > 0

    def called(self, func: Callable[..., Any], *args: Any) -> Any:
        """A call of a function that PyTorch does not hand over, as one of those that it does."""
        return self._called(func, args, {}, True)

    def run_now(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A function that PyTorch does not hand over, which may read anything."""
        with self._lock:
            with DisableTorchFunction():
                self._ends.settle()
            with self.recording.aside():  # it may hold lazy tensors, which its arguments do not show
                return self.recording.call_now(func, args, kwargs)[1]

    def settle(self) -> None:
        """Computes what has been recorded."""
        if not self._ends.settling and self.follower.settle():
            return
        with self._lock, DisableTorchFunction():
            self._ends.settle()

    def settle_before(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls what may change what has been recorded, though the recorder is not told. A call of ours that calls it is recorded."""
        if self.follower.busy:
            return function(*real(args), **real(kwargs))
        self.settle()
        with self.recording.aside():
            return function(*real(args), **real(kwargs))

    def pause_for(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls what looks at tensors by itself, wherever they are: in a module, say. There are no lazy ones meanwhile."""
        if self.at_work or self.follower.stopped:
            return function(*real(args), **real(kwargs))
        self.settle()
        for each in self.follower.outliving():
            become_plain(each)
        with self.recording.aside():
            self.paused = True
            try:
                return function(*real(args), **real(kwargs))
            finally:
                self.paused = False

    def end_of_step(self) -> None:
        """An optimizer has made a step. From now on the trace ends here, unless a backward pass through one of its values may follow, as
        where a second optimizer has its turn: what nobody reads would hold all batches, and be one program for many steps."""
        run = self._tree.run
        if run.pending or run.here.before is None or run.here.ends or self.at_work or not self.records():
            return
        with DisableTorchFunction():  # a node of autograd is locked while it is asked what it has saved: a call of ours would wait for it
            values = [run.proxy(number)._value for number in run.live()]
            ends = all(each is not None and (not each.requires_grad or is_freed(each)) for each in values)
        if ends:
            self._tree.end_behind(run.here)


def _framework(turns: LazyTurns) -> dict[str, object]:
    """What `_ral.Follower` has to know of PyTorch, and the lock of a recorder."""
    return {
        "handle": LazyTensor, "make": new_handle, "without": DisableTorchFunction, "grad_enabled": torch.is_grad_enabled,
        "autocast": torch._C._is_any_autocast_enabled, "autocast_dtype": autocast_dtype, "unflatten": pytree.tree_unflatten,
        "transforms": torch._C._are_functorch_transforms_active, "storage": torch.Tensor.untyped_storage, "size": torch.Size,
        "is_neg": torch.Tensor.is_neg, "is_conj": torch.Tensor.is_conj, "default_dtype": torch.get_default_dtype,
        "profiler": vars(profiler), "modes": torch._C._len_torch_function_stack, "turns": turns, "hooked": has_hooks,
        "tensors": TENSORS, "constants": PLAIN, "most_known": MOST_KNOWN,
    }  # fmt: skip


def _modes() -> list[object]:
    """Of functions that are on, the last of which is asked first."""
    return [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]
