"""The one tree of exceptions. Three kinds: the user's mistake, ours (`CompilerBug`), and run-time refusals."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def printable(text: str) -> str:
    """`text` out of a file as it may be shown: what a terminal would obey (control characters, marks that turn the direction of text) and
    what has no bytes (lone surrogates) comes out as an escape, "\\x1b"."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def counted(count: int, what: str, several: str | None = None) -> str:
    """ "1 launch", "2 launches", "3 entries" (of which `several` is the word)."""
    return f"{count} {what}" if count == 1 else f"{count} {several or what + ('es' if what.endswith('ch') else 's')}"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of `words` nearest to what somebody wrote, None where none is near."""
    import difflib  # only where somebody misspells

    near = difflib.get_close_matches(word, words, n=1)
    return near[0] if near else None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """For the one of `words` nearest to what somebody wrote: " (did you mean threads?)"; "" where none is near."""
    near = nearest(word, words)
    return f" (did you mean {near}?)" if near else ""


class DiscError(Exception):
    """Base of every error that disc raises on purpose."""


class DiscWarning(UserWarning):
    """Base of every warning of disc: the result is correct, but perhaps not what the user expected (an op that runs in PyTorch)."""


# PyTorch calls a back end of torch.compile; what it generates is of no module.
_OURS = frozenset({"disc", "torch", "torch_mlir", "contextlib", "functools", ""})


_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


def warn(message: str, category: type[Warning] = DiscWarning) -> None:
    """Warns of what the user's code asked for: the warning names the line outside of disc that called it, as do filters."""
    heard = _heard.get()
    if heard is not None:
        heard.append(message)
    warner(category)(message)


@contextmanager
def noting_warnings() -> Iterator[list[str]]:
    """The messages of what this thread warns of within, for those who meet the same later, from a cache."""
    messages: list[str] = []
    before = _heard.set(messages)
    try:
        yield messages
    finally:
        _heard.reset(before)


def warner(category: type[Warning] = DiscWarning) -> Callable[[str], None]:
    """`warn` for another thread: it names the line that this thread is called from now."""
    frame = sys._getframe(0)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame = frame.f_back
    place, line, names = frame.f_code.co_filename, frame.f_lineno, frame.f_globals

    def warn_there(message: str) -> None:
        # without `module_globals`: a module's loader may raise where it is asked for the line's text
        warnings.warn_explicit(message, category, place, line, names.get("__name__", place), names.setdefault("__warningregistry__", {}))

    return warn_there


@dataclass(frozen=True)
class UnsupportedOp:
    """One op that cannot be compiled: its name, the reason, and the user's line ("file.py:12", or "unknown line")."""

    op: str
    reason: str
    location: str = "unknown line"

    def __str__(self) -> str:
        return f"{self.op} at {self.location}: {self.reason}"


class ArgumentError(DiscError, TypeError):
    """A function of disc has no such argument, or it is of another kind."""


def named_arguments(explain: Callable[[str], str]) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """For a function that people call: an argument by a name that it does not have is an ArgumentError, which says by `explain` what to
    write instead: words for this name, or "" where the arguments that there are say enough."""

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*positional: Given.args, **named: Given.kwargs) -> Result:
            for name in named:
                if name not in known:
                    there = [each for each in known if each not in ("cls", "self")]
                    words = f": {explain(name)}" if explain(name) else f"{did_you_mean(name, there)}; there are {', '.join(there)}"
                    raise ArgumentError(f"{function.__name__} has no argument {name!r}{words}")
            return function(*positional, **named)

        return checked

    return decorate


def check_path(path: object) -> None:
    """Raises ArgumentError for what is no path of a file."""
    if not isinstance(path, str | bytes | os.PathLike):
        raise ArgumentError(f"the path of a file is a str or a pathlib.Path, not {path!r:.100} of the class {type(path).__name__}")


class UnsupportedOpError(DiscError):
    """Lists *every* op of a model that disc cannot compile, with the user's source lines."""

    def __init__(self, ops: Sequence[UnsupportedOp]) -> None:
        self.ops = tuple(ops)
        lines = "\n".join(f"  - {op}" for op in self.ops)
        count = f"{len(self.ops)} op" + ("" if len(self.ops) == 1 else "s")
        super().__init__(f"{count} of this model cannot be compiled:\n{lines}")


class UnsupportedFormatError(DiscError):
    """The model file is of a kind that disc does not read (a `.pt2` of another torch version, an unknown suffix), or a damaged one."""


class ExportError(DiscError):
    """PyTorch cannot make a program of the model: the model refuses its example inputs, or `torch.export` cannot trace it."""


class StackError(DiscError):
    """Python's recursion limit leaves less stack than PyTorch or disc needs: `compile` was called from too deep, or the model's sizes are
    expressions that nest very deep."""


class ShapeConstraintError(DiscError):
    """An input, dim or relation that the compiled model does not accept; the message names the input, the dim and the sizes seen."""


class InputValueError(DiscError):
    """Numbers in the inputs that the model cannot compute with; the message names the op, the user's line and the values."""


class SingularMatrixError(InputValueError):
    """A matrix that has no inverse, or no factors of the kind that the model asks for."""


class StructureError(InputValueError):
    """A tree or graph that cannot be computed; the message names where. Those below say why."""


class CycleError(StructureError):
    """A node that is below itself; the message has the path."""


class MissingFieldError(StructureError):
    """A node lacks a child or a number that nodes of its kind have."""


class NodeIndexError(StructureError):
    """The number of a child, or of a root, is that of no node."""


class NodeKindError(StructureError):
    """A node is of no known kind, or has what nodes of its kind have not: a child that is no node, a word that is no integer."""


class TooManyNodesError(StructureError):
    """A structure has more nodes than the program accepts."""


class InstanceError(DiscError):
    """Instances of a batch that failed; the message names the first and its line.

    results: of all instances, in place of a failed one its error. failures: number of the instance → error.
    """

    def __init__(self, message: str, results: list[object], failures: dict[int, Exception]) -> None:
        super().__init__(message)
        self.results, self.failures = results, failures


class SaveError(DiscError):
    """A model over structures that needs Python, and so cannot be saved; the message names the line."""


class CustomOpError(DiscError):
    """A custom op failed, or did not keep what its fake implementation says. What the op raised is the cause (`__cause__`)."""


class WrittenError(DiscError):
    """A call has written its inputs, and failed, or what it computed besides could not be handed over. Why is the message or the cause
    (`__cause__`)."""


class InputTypeError(DiscError):
    """An input of the wrong dtype, or something that is not a tensor."""


class InputRankError(DiscError):
    """An input of the wrong rank, or the wrong number of inputs."""


class DeviceError(DiscError):
    """An input on a device that the artifact has no code for."""


class AliasError(DiscError):
    """A given output buffer overlaps an input or another output; a tensor that others see is changed in place."""


class ArtifactError(DiscError):
    """A `.disc` file that cannot be trusted or read: truncated, changed, of a newer format, or not an artifact."""


class OutputError(DiscError, OSError):
    """A file that could not be written, or that would replace something that is no regular file; the message names it."""


class TargetError(DiscError):
    """The CPU or GPU lacks what the artifact or the requested target needs; the message names the feature."""


class OutOfMemoryError(DiscError):
    """A buffer of the size that these shapes need could not be allocated."""


class CancelledError(DiscError):
    """A call was ended from outside before it was done. (Ctrl+C raises KeyboardInterrupt.)"""


class ServingError(DiscError):
    """Base of what a server answers a request with instead of a result. The message goes to the client: no paths, no addresses."""


class RequestError(ServingError):
    """A request that is malformed or does not fit the model."""


class ModelNotFoundError(ServingError):
    """No such model, or no such version of it."""


class NotReadyError(ServingError):
    """The server is starting or draining, or the model is being loaded."""


class OverloadedError(ServingError):
    """A queue or another bounded resource is full; the request was not executed."""


class DeadlineError(ServingError):
    """The request's deadline or timeout passed before it was executed, or its deadline while a loop ran whose end depends on data."""


class WithdrawnError(ServingError):
    """The client cancelled the request before it was executed, or while a loop ran whose end depends on data."""


class UnsupportedRequestError(ServingError):
    """A part of the protocol that this server does not have, or that is switched off."""


class UnauthenticatedError(ServingError):
    """The request carries no token, or an unknown one."""


class ForbiddenError(ServingError):
    """The token's rights do not cover this request."""


class ModelFailedError(ServingError):
    """The model could not run for a reason that is not the request's; the server's log has it."""


class JobNotFoundError(ServingError):
    """The compile service knows no such job of this client."""


class JobRefusedError(ServingError):
    """The program of a compile job cannot be compiled: a mistake in the program, which the message describes. kind: the error's name in
    this file."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class JobLimitError(ServingError):
    """A compile job needed more time, memory or disk than the service gives."""


class RemoteCompileError(DiscError):
    """A compile service could not be reached, refused, or failed. kind: its own name for the error, or the gRPC status."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class ConfigurationError(DiscError):
    """A server configuration that cannot be used; the message names the key."""


class PlanError(DiscError):
    """A plan of a kernel, written into the program, that its fusion cannot have."""


class CompilerBug(DiscError):
    """Our mistake: the message names the pass, the saved IR and the exact command that runs it again."""


# --- a package that is missing: `disc` on the package index is another project, so no message names a distribution of ours as if the index
# had it; the packages themselves are listed, with the versions that the installed metadata states.

DISTRIBUTION = "disc-compiler"  # as pyproject.toml has it; the package is imported as `disc`
_REQUIREMENT = r"""(?P<what>[^;]+?)\s*(;.*\bextra\s*==\s*["'](?P<extra>[^"']+)["'])?"""  # without: of every installation
_OWN = rf"{DISTRIBUTION}\[(?P<extras>[^\]]+)\]"


def how_to_install(*extras: str) -> str:
    """The command that installs what these extras need, such as "pip install 'grpcio<2,>=1.85.1'", whatever the index has under our name;
    without extras, what every installation has.

    Where disc is not installed but imported from a checkout, the command installs the checkout.
    """
    import importlib.metadata  # only where something is missing: `import disc` stays fast
    import shlex

    try:
        listed = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return f"pip install {shlex.quote('.[' + ','.join(extras) + ']' if extras else '.')} (in the checkout of disc)"
    packages = dict.fromkeys(package for extra in extras or (None,) for package in _packages(extra, listed))
    return f"pip install {shlex.join(packages)}"


def _packages(extra: str | None, listed: list[str]) -> list[str]:
    """The requirements of one extra, or (None) of every installation; those of extras that it names in their place."""
    found: list[str] = []
    for line in listed:
        match = re.fullmatch(_REQUIREMENT, line)
        if match is None or match["extra"] != extra:
            continue
        own = re.fullmatch(_OWN, match["what"])
        if own is None:
            found.append(match["what"])
        else:
            found += [package for name in own["extras"].split(",") for package in _packages(name.strip(), listed)]
    return found
