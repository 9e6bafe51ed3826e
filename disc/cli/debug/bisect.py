"""Finds the kernel that computes wrong values: every fusion's results become outputs, and each is compared with the NumPy oracle.

disc debug bisect encoder:block --sizes 5x31x256,5x31
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch_mlir import ir

from disc.api import executable_of
from disc.cli.factory import from_factory
from disc.codegen.session import compile_state, generate
from disc.config import Options
from disc.errors import InputTypeError, ShapeConstraintError
from disc.frontend.imported import Imported
from disc.frontend.models import import_model
from disc.ir.dialect import make_context
from disc.ir.graph import location_line
from disc.ir.interp.oracle import interpret
from disc.ir.ops import main_block, main_function, terminator_of
from disc.ir.passes import run_passes
from disc.passes.pipelines import pipeline
from disc.speculation.session import open_session


class Exposed(NamedTuple):
    """A result of a fusion: its name, and the user's lines behind the fusion."""

    name: str
    lines: tuple[str, ...]


def expose_fusions(module: ir.Module) -> list[Exposed]:
    """Makes every fusion result an output of `@main`."""
    block = main_block(module)
    old = terminator_of(block)
    values, found = [], list[Exposed]()
    for view in block.operations:
        op = view.operation
        if op.name == "kernel.fusion":
            values.extend(op.results)
            lines = tuple(dict.fromkeys(filter(None, (location_line(str(each.location)) for each in op.regions[0].blocks[0].operations))))
            name = ir.StringAttr(op.attributes["name"]).value
            found.extend(Exposed(f"{name} result {number}", lines) for number in range(len(op.results)))
    with module.context, ir.Location.unknown():
        ir.Operation.create("func.return", operands=values, ip=ir.InsertionPoint(old))
        old.erase()
        kind = ir.FunctionType.get([value.type for value in block.arguments], [value.type for value in values])
        main_function(module).attributes["function_type"] = ir.TypeAttr.get(kind)
    return found


def compare(imported: Imported, inputs: Sequence[torch.Tensor], options: Options) -> None:
    """Prints the largest difference of every fusion result, and which is the first that is wrong: what it makes goes into later ones.
    options: as of the compile that is looked into."""
    session = open_session(options=options)
    state = compile_state(imported.weights, session)
    *passes, choose = pipeline(options.dtype, tree=session.tree)
    run_passes(imported.module, passes, state)
    exposed = expose_fusions(imported.module)
    run_passes(imported.module, (choose,), state)  # now, since no kernel may compute a result of the program within another
    executable = executable_of(imported.module, generate(imported.module, state, session), session, {"single": False})
    arrays = [tensor.numpy() for tensor in inputs]
    expected = interpret(imported.module, arrays, state.weights)
    actual = executable(*arrays)
    assert isinstance(actual, tuple)
    first: Exposed | None = None
    for each, left, right in zip(exposed, expected, actual, strict=True):
        with np.errstate(all="ignore"):
            difference = np.nanmax(np.abs(left.astype(np.float64) - right.astype(np.float64)), initial=0.0)
        same_nan = bool((np.isnan(left.astype(np.float64)) == np.isnan(right.astype(np.float64))).all())
        wrong = difference > 1e-3 * max(1.0, float(np.abs(left.astype(np.float64)).max(initial=0.0))) or not same_nan
        first = each if wrong and first is None else first
        print(f"{difference:10.3e} {each.name} {left.dtype}{list(left.shape)}{'  <<<<' if wrong else ''}")
    if first is None:
        print("no kernel computes other values than the reference interpreter")
    else:
        print(f"first wrong: {first.name}, of {', '.join(first.lines) or 'no known line'}; later ones may only be given wrong values")


def bisect(model: str, sizes: str, dtype: str) -> None:
    """model: `package.module:factory`, a callable that returns (module, example inputs[, dynamic shapes]). sizes: "2x17,2x17", of every
    input; "" = those of the example. dtype: as of `disc.Options`. Raises DiscError where the model cannot be made or compiled."""
    module, inputs, shapes = from_factory(model)
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    if any(isinstance(each, torch.Tensor) for each in pytree.tree_leaves([each for each in inputs if not isinstance(each, torch.Tensor)])):
        raise InputTypeError("disc debug bisect takes models without tensors in lists, tuples or dicts of the example inputs")
    imported = import_model(module.eval(), tuple(inputs), shapes, make_context())
    if sizes:
        wanted = [_sizes(text) for text in sizes.split(",")]
        if [len(each) for each in wanted] != [each.ndim for each in tensors]:
            ranks = ", ".join(str(each.ndim) for each in tensors)
            example = ",".join("x".join(map(str, each.shape)) for each in tensors)
            raise ShapeConstraintError(f"--sizes {sizes}: give one set of sizes per input, of ranks {ranks}, such as {example}")
        tensors = [_resized(tensor, each) for tensor, each in zip(tensors, wanted, strict=True)]
    compare(imported, tensors, Options(dtype=dtype))


def _resized(tensor: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """Values like those of `tensor` in another size."""
    torch.manual_seed(0)
    if tensor.is_floating_point():
        return torch.randn(sizes, dtype=tensor.dtype)
    return torch.randint(0, int(tensor.max()) + 1, sizes, dtype=tensor.dtype)


def _sizes(text: str) -> tuple[int, ...]:
    """ "2x17" → (2, 17)."""
    parts = text.split("x") if text else []
    if not all(part.isdigit() for part in parts):
        raise ShapeConstraintError(f"--sizes: {text!r} is no set of sizes such as 2x17")
    return tuple(map(int, parts))
