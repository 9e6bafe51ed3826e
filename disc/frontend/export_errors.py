"""What PyTorch raises while it exports or traces a program, in the words of `disc.errors`."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr

import sympy
import torch
from torch._dynamo.exc import TorchDynamoException, UserError, UserErrorType
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound

from disc.errors import DiscError, ExportError, ShapeConstraintError, UnsupportedOp, UnsupportedOpError
from disc.frontend.locations import OURS, user_line

DATA_DEPENDENT = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException, PendingUnbackedSymbolNotFound)
# What a run without data cannot know.
NO_STATIC_ANSWER = (*DATA_DEPENDENT, UnsupportedOperatorException, UnsupportedFakeTensorException, TorchDynamoException)
NO_SHAPES = "PyTorch cannot infer the shape of its result (the op has no fake implementation)"
BRANCH = "use torch.cond(condition, then, other, operands), torch.while_loop for a loop, or torch.where to choose elements"
NUMBER = "int(), float(), item() and sizes of results need values that are known only when the program runs: compute with the tensor itself"
OUTSIDE = "NumPy computes outside of PyTorch, where nothing can be traced: use torch's functions, or a custom op"
DERIVATIVE = 'PyTorch does not trace this derivative with dynamic sizes; torch.compile(model, backend="disc") computes it'
HINTS = (
    (r"DynamicCache|StaticCache|past_key_values|\bCache\b",
     "of cache objects, only transformers' DynamicCache can be compiled: set model.config.use_cache = False, or take and return tensors"),
    (r"[Uu]nsupported (input|output) type|is not a pytree|not a valid (input|output)|only tensors|Input type|not a known type",
     "inputs and results may be tensors, numbers, and tuples, lists and dicts of these"),
    (r"\bSym(Int|Float|Bool)\b",
     "a dynamic size is a symbol while the model is traced: operator.index(size) is its number in the example, which fixes the dim"),
)  # fmt: skip
LOOPS = ", which fixes it: a loop over a dynamic dim has to be torch.while_loop, scan or map"
# Where PyTorch prints what it raises too, with pages of its own source.
LOUD = (
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.recording",
    "torch.fx.experimental.proxy_tensor",
)
LONGEST, SHORTEST = 400, 120
FORMS = os.path.join(OURS, "symbolic_forms.py")
_OF_ITSELF = (
    r"\(?Could this error message be improved\?.*|\(Triggered internally at.*|<Call Stack.*|See https://github\.com/pytorch/functorch.*"
)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps PyTorch from printing what it raises; the exception says it."""

    def silent(record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING

    loggers = [logging.getLogger(name) for name in LOUD]
    for each in loggers:
        each.addFilter(silent)
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            yield
    except Exception as error:
        graph = f"{getattr(error, 'partial_fx_graph', '')}\n"  # torch.export prints it where a branch depends on data
        printed = io.StringIO(printed.getvalue().replace(graph, ""))
        raise
    finally:
        sys.stderr.write(printed.getvalue())
        for each in loggers:
            each.removeFilter(silent)


@contextmanager
def logged_errors(name: str) -> Iterator[list[BaseException]]:
    """Gathers the exceptions that this logger is given, in place of printing them."""
    found: list[BaseException] = []

    def gathered(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        found.extend([] if error is None else [error])
        return error is None

    logger = logging.getLogger(name)
    logger.addFilter(gathered)
    try:
        yield found
    finally:
        logger.removeFilter(gathered)


def export_error(error: Exception, refuses: Callable[[], Exception | None]) -> DiscError:
    """The error to raise in the place of `error`. refuses: what the model itself says to its example, None if it takes it."""
    if isinstance(error, DiscError):
        return error
    if isinstance(error, DATA_DEPENDENT) or (isinstance(error, UserError) and "data-dependent" in str(error).lower()):
        return _refused(*_data_dependence(error), error)
    if isinstance(error, UnsupportedOperatorException | UnsupportedFakeTensorException):
        return _refused(str(getattr(error, "func", "an op")), NO_SHAPES, error)
    if ".numpy() is not supported for tensor subclasses" in str(error):
        return _refused("Tensor.numpy()", OUTSIDE, error)
    if isinstance(error, TorchDynamoException) and not isinstance(error, UserError):  # which export raises for these ops alone
        return _refused(*_control_flow(str(error)), error)
    if is_violated(error):
        notes = "".join(f"\n{note}{LOOPS}" for note in getattr(error, "__notes__", ()))
        return ShapeConstraintError(f"dynamic_shapes does not fit the model: {shortened(error)}{notes}")
    if isinstance(error, AssertionError) and str(error).startswith("Expected derived min value"):
        return ShapeConstraintError(f"dynamic_shapes has a dim that may be negative: {shortened(error)}")
    own = refuses()
    if own is not None:
        return ExportError(f"the model does not accept the example inputs: {_said(own)}")
    if _in_derivative(error):
        return _refused(f"torch.func.grad, vjp, jvp or jacrev{_last_call(error)}", f"{DERIVATIVE} ({_shorter(error)})", error)
    if isinstance(error, UserError):
        return ExportError(f"torch.export refuses the model or its example inputs: {_said(error)}{_hint(str(error))}")
    return ExportError(f"torch.export cannot trace the model with dynamic sizes: {_said(error)}{_hint(str(error))}")


def _in_derivative(error: Exception) -> bool:
    """Whether code that takes derivatives raised it: what it does to tensors of a trace fails in many ways."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == eager_transforms.__file__:
            return True
        trace = trace.tb_next
    return False


def _last_call(error: Exception) -> str:
    """ " of lstm", where that is the function of PyTorch that was called last."""
    trace, function = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "__torch_function__" and trace.tb_frame.f_code.co_filename == FORMS:
            function = trace.tb_frame.f_locals.get("func")
        trace = trace.tb_next
    return f" of {getattr(function, '__name__', function)}" if function is not None else ""


def _shorter(error: Exception) -> str:
    return f"{type(error).__name__}: {shortened(error)[:SHORTEST]}"


def is_violated(error: Exception) -> bool:
    """Whether torch.export says that a dim which was asked for cannot be dynamic, or, where what it would suggest makes no sense, fails."""
    if isinstance(error, AssertionError):
        return str(error).startswith("Cannot create Dim")
    asked = isinstance(error, UserError) and error.error_type is UserErrorType.CONSTRAINT_VIOLATION
    return asked or isinstance(error, ConstraintViolationError)


def _control_flow(text: str) -> tuple[str, str]:
    """Which op on control flow PyTorch refuses, and why: the first of what it says, and its first hint."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = next((line.partition(": ")[2] for line in lines if line.startswith("Higher Order Operator: ")), "")
    said = [line for line in lines if not line.startswith("This higher order operator doesn't work")]
    reason = [_difference(line) for line in said[:2] if ": " not in line or line.startswith("pair[")]
    hint = [line.removeprefix("Hint: ") for line in lines if line.startswith("Hint: ")][:1]
    op = named or "control flow on values (torch.cond, while_loop, map, scan)"
    return op, ". ".join([" ".join(reason) or "not supported", *hint])


def _difference(line: str) -> str:
    """ "value 1 differs: shape: torch.Size([2*s0]) vs torch.Size([s0])" of what PyTorch says of two lists of tensors."""
    found = re.match(r"pair\[(\d+)\] differ in '([^']*)'", line)
    return f"value {found[1]} differs: {found[2]}" if found else line


def _data_dependence(error: Exception) -> tuple[str, str]:
    """What depends on data, and what to write in its place."""
    condition = getattr(error, "cond", None)
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return "control flow or size that depends on data", f"{error.func} gives what is known only when the program runs"
    if isinstance(condition, sympy.Rel | sympy.And | sympy.Or | sympy.Not):
        return "a branch in Python that depends on data", BRANCH
    return "a number in Python that depends on data", NUMBER


def _refused(op: str, reason: str, error: Exception) -> UnsupportedOpError:
    return UnsupportedOpError([UnsupportedOp(op, reason, error_line(error))])


def error_line(error: Exception) -> str:
    """The user's line that raised it, "model.py:12", or "unknown line"."""
    frame = user_line(_trace_text(error)) or user_line(str(error))
    return f"{frame[0]}:{frame[1]}" if frame else "unknown line"


def _trace_text(error: Exception) -> str:
    lines, trace = [], error.__traceback__
    while trace is not None:
        lines.append(f'File "{trace.tb_frame.f_code.co_filename}", line {trace.tb_lineno}')
        trace = trace.tb_next
    return "\n".join(line for line in lines if 'File "<' not in line and "/disc/frontend/" not in line and "/disc/api.py" not in line)


def _said(error: Exception) -> str:
    place = error_line(error)
    at = "" if place.startswith((torch.__path__[0], "unknown")) else f" at {place}"
    return f"{type(error).__name__}{at}: {shortened(error)}"


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def shortened(error: BaseException) -> str:
    """The first paragraph of the message, without what PyTorch says about itself there."""
    text = re.split(r"\n\s*\n|\n(?=For more information|The following call|Exception raised from|from user code)", str(error).strip())[0]
    text = re.sub(_OF_ITSELF, "", text, flags=re.DOTALL)
    text = " ".join(text.split())
    return f"{text[:LONGEST]} ..." if len(text) > LONGEST else text or "(no message)"


def _hint(text: str) -> str:
    return next((f"\n{hint}" for pattern, hint in HINTS if re.search(pattern, text)), "")
