"""Functions of torch.compile whose loops Dynamo unrolls: from the second number of steps on they are recorded instead.

Dynamo runs a loop before a backend is asked: each number of steps is a graph of its own, and after eight of them PyTorch runs the rest
without a compiler. Its guards have to hold, as Python may do anything with a number of steps; so the function has to run as Python does,
and what it calls is recorded (`disc.lazy`), whose programs are one for all numbers of steps.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, FrameType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import fx
from torch._dynamo import eval_frame
from torch._guards import TracingContext

from disc.frontend.locations import line_text
from disc.frontend.loops_found import FEWEST_STEPS
from disc.frontend.registered import recorded_form

_WRAPPER, _FUNCTION, _CONTEXT = "compile_wrapper", "fn", "self"  # what torch.compile gives, and what that closes over
_Calls = frozenset[tuple[str, str]]


@dataclass
class Unrolling:
    """A graph of a compiled function. calls: which functions it calls at which lines, and under which conditions; number: how many calls
    these are. known: of the graphs of the function that have loops, the number of calls by the same."""

    frame: FrameType
    calls: _Calls
    number: int
    known: dict[_Calls, int] = field(repr=False)

    @classmethod
    def of(cls, graph: fx.Graph) -> Unrolling | None:
        """Of the graph that Dynamo has just made; None where no function of torch.compile runs."""
        frame = _wrapper_frame()
        context = None if frame is None else frame.f_locals.get(_CONTEXT)
        if frame is None or not isinstance(context, eval_frame._TorchDynamoContext):
            return None
        nodes = [node for node in graph.nodes if node.op.startswith("call_") and _gives_tensors(node)]
        dtypes = [str(node.meta["example_value"].dtype) for node in graph.find_nodes(op="placeholder") if _gives_tensors(node)]
        calls = {(str(node.target), line_text(node)) for node in nodes} | {(each, "input") for each in dtypes}
        calls.add((str(torch.is_grad_enabled()), "gradients"))
        return cls(frame, frozenset(calls), len(nodes), _known.setdefault(context, {}))

    def has_other_steps(self) -> bool:
        """Whether the function has brought a graph that is the same but for the number of steps of its loops."""
        return self.known.get(self.calls, self.number) != self.number

    def note(self, loops: int) -> None:
        """That many loops have been found in the graph. Where none is, as steps take more than a scan of the joint graph can, there may be
        one nevertheless: most calls are made many times then."""
        if loops or self.number >= FEWEST_STEPS * len(self.calls):
            self.known.setdefault(self.calls, self.number)

    def record_from_now_on(self, options: Mapping[str, object]) -> bool:
        """Has the compiled function run its own code from the next call on, what it calls being recorded, and Dynamo see none of it.
        Returns whether there is a place for that."""
        code, (function, context) = self.frame.f_code, (self.frame.f_locals[name] for name in (_FUNCTION, _CONTEXT))
        wrappers = [each for each in _functions_over(context) if each.__code__ is code and _cell(each).cell_contents is function]
        for wrapper in wrappers:
            _cell(wrapper).cell_contents = torch._dynamo.disable(_Recorded(function, recorded_form(function, options)))
        _switched.update(wrappers)
        return bool(wrappers)


class _Recorded:
    """What a compiled function runs in the place of its function. Where something traces what it does, it is the function itself."""

    def __init__(self, function: Callable[..., Any], recorded: Callable[..., Any]) -> None:
        self.function, self.recorded = function, recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced = TracingContext.try_get() is not None or torch.compiler.is_exporting() or torch._C._len_torch_dispatch_stack()
        if traced or eval_frame._stance.stance == "force_eager":
            return self.function(*args, **kwargs)
        count_no_frames()
        return self.recorded(*args, **kwargs)


def count_no_frames() -> None:
    """Has the compiled function that runs not count compiled frames: with `fullgraph=True` it would be an error that there is none."""
    if (count := getattr(eval_frame, "set_fullgraph_compiled_frame_count", None)) is not None:
        count(-1)


def forget_all() -> None:
    """Compiled functions are as if none had been called: Dynamo traces those again that are recorded. For `torch._dynamo.reset()`."""
    for wrapper in _switched:
        cell = _cell(wrapper)
        recorded = eval_frame.innermost_fn(cell.cell_contents)
        assert isinstance(recorded, _Recorded)
        cell.cell_contents = recorded.function
    _switched.clear()
    _known.clear()


_known: WeakKeyDictionary[Any, dict[_Calls, int]] = WeakKeyDictionary()
_switched: WeakSet[FunctionType] = WeakSet()  # what torch.compile has given whose functions are recorded: they may hold it themselves


def _cell(wrapper: FunctionType) -> CellType:
    """What torch.compile has given closes over its function by."""
    assert wrapper.__closure__ is not None
    return wrapper.__closure__[wrapper.__code__.co_freevars.index(_FUNCTION)]


def _wrapper_frame() -> FrameType | None:
    """Of the innermost compiled function that runs."""
    frame = sys._getframe(1)
    while frame is not None and (frame.f_code.co_name != _WRAPPER or frame.f_code.co_filename != eval_frame.__file__):
        frame = frame.f_back
    return frame


def _gives_tensors(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _functions_over(value: object) -> list[FunctionType]:
    """Whose closures hold it: the frame of a function that runs does not tell which function it is."""
    cells = [each for each in gc.get_referrers(value) if type(each) is CellType]
    closures = [each for cell in cells for each in gc.get_referrers(cell) if type(each) is tuple]
    return [each for closure in closures for each in gc.get_referrers(closure) if type(each) is FunctionType]
