"""Where an op comes from: the user's Python line, from the stack trace that PyTorch keeps on each node."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys
import sysconfig
from types import FrameType

import numpy as np
import torch
from torch import fx
from torch_mlir import ir

from disc.ir.source_lines import source_name

OURS = os.path.dirname(__file__) + os.sep  # its frames run the user's code, or stand for nodes of a file
ONNX = os.path.join(OURS, "onnx") + os.sep  # such nodes have frames of their own
TORCH = os.path.dirname(torch.__file__) + os.sep
NUMPY = (os.path.dirname(np.__file__) + os.sep, "numpy/")  # also of its compiled code
_PATHS = sysconfig.get_paths()
STANDARD = _PATHS["stdlib"] + os.sep  # Python's own modules; what is installed may lie within
INSTALLED = (_PATHS["purelib"] + os.sep, _PATHS["platlib"] + os.sep)
GENERATED = "<eval_with_key>"  # code that PyTorch made of a graph
FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')
LAMBDA = 'File "<string>", line 1, in <lambda>'  # which PyTorch writes around a function that it traces


def is_library(file: str) -> bool:
    """Whether it is PyTorch's, NumPy's, or one of Python's own modules."""
    return file.startswith((TORCH, *NUMPY)) or is_standard(file)


@functools.lru_cache(maxsize=4096)  # it is asked of every function and class that a model names
def is_standard(file: str) -> bool:
    return file.startswith((STANDARD, "<frozen")) and not file.startswith(INSTALLED)


@functools.lru_cache(maxsize=4096)  # a decomposition's ops share one trace
def user_line(trace: str | None) -> tuple[str, int] | None:
    """The innermost frame outside PyTorch itself, NumPy and Python's own modules (the innermost of all when there is none outside), its
    file by `source_name`."""
    found = FRAME.findall((trace or "").replace(LAMBDA, ""))
    frames = [(path, int(line)) for path, line in found if not path.startswith((OURS, GENERATED))]
    outside = [frame for frame in frames if not is_library(frame[0])]
    path, line = outside[-1] if outside else frames[-1] if frames else ("", 0)
    return (source_name(path), line) if path else None


def module_path(node: fx.Node) -> str:
    """The dotted path of the nn.Module that the node belongs to, or ""."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return re.sub(r"^L\['self'\]\.?(_modules)?|^L__self___?", "", path)


def location(node: fx.Node) -> ir.Location:
    frame = user_line(node.meta.get("stack_trace"))
    place = ir.Location.file(frame[0], frame[1], 0) if frame else ir.Location.unknown()
    path = module_path(node)
    return ir.Location.name(path, childLoc=place) if path else place


def line_text(node: fx.Node) -> str:
    """ "file.py:12", or "unknown line"."""
    frame = user_line(node.meta.get("stack_trace"))
    return f"{frame[0]}:{frame[1]}" if frame else "unknown line"


def frame_text(path: str, line: int) -> str:
    """ "file.py:12" of a frame, its file by `source_name`."""
    return f"{source_name(path)}:{line}"


def traced_line(frame: FrameType) -> str | None:
    """The line of the user's that is behind the one at which a frame is, where that runs code that PyTorch made of a graph."""
    module = frame.f_locals.get("self") if frame.f_code.co_filename.startswith(GENERATED) else None
    numbers = getattr(module, "_lineno_map", None) if isinstance(module, fx.GraphModule) else None
    if not isinstance(module, fx.GraphModule) or not numbers:
        return None
    number = numbers.get(frame.f_lineno - module._prologue_start)
    node = next(itertools.islice(module.graph.nodes, number, None), None) if number is not None else None
    trace = node.meta.get("stack_trace") or "" if node is not None else ""
    found = user_line(trace) if any(not path.startswith((OURS, TORCH, GENERATED)) for path, _ in FRAME.findall(trace)) else None
    return frame_text(*found) if found else None


def running_line() -> str:
    """ "file.py:12" of the user's code that runs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename.startswith((OURS, "<")) or is_library(frame.f_code.co_filename)):
        line = traced_line(frame)
        if line is not None:
            return line
        frame = frame.f_back
    return frame_text(frame.f_code.co_filename, frame.f_lineno)
