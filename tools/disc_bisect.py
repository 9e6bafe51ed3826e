"""Finds the kernel that computes wrong values: every fusion's results become outputs, and each is compared with the NumPy oracle.

    python tools/disc_bisect.py tests.models:bert --sizes 5x31,5x31

MODEL is `package.module:factory`, a callable that returns (module, example inputs[, dynamic shapes]).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch_mlir import ir

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from disc.api import compile_state, executable_of, generate, open_session
from disc.config import DTYPES, Options
from disc.frontend.imported import Imported
from disc.frontend.models import import_model
from disc.ir.dialect import make_context
from disc.ir.interp.oracle import interpret
from disc.ir.ops import main_block, main_function, terminator_of
from disc.ir.passes import run_passes
from disc.passes.pipelines import pipeline


def expose_fusions(module: ir.Module) -> list[str]:
    """Makes every fusion result an output of `@main`; returns their names."""
    block = main_block(module)
    old = terminator_of(block)
    values, names = [], []
    for view in block.operations:
        op = view.operation
        if op.name == "kernel.fusion":
            values.extend(op.results)
            names.extend(f"{ir.StringAttr(op.attributes['name']).value} result {number}" for number in range(len(op.results)))
    with module.context, ir.Location.unknown():
        ir.Operation.create("func.return", operands=values, ip=ir.InsertionPoint(old))
        old.erase()
        kind = ir.FunctionType.get([value.type for value in block.arguments], [value.type for value in values])
        main_function(module).attributes["function_type"] = ir.TypeAttr.get(kind)
    return names


def compare(imported: Imported, inputs: Sequence[torch.Tensor], options: Options) -> None:
    """Prints the largest difference of every fusion result. options: as of the compile that is looked into."""
    session = open_session(options=options)
    state = compile_state(imported.weights, session)
    *passes, choose = pipeline(options.dtype, tree=session.tree)
    run_passes(imported.module, passes, state)
    names = expose_fusions(imported.module)
    run_passes(imported.module, (choose,), state)  # now, since no kernel may compute a result of the program within another
    executable = executable_of(imported.module, generate(imported.module, state, session), session, {"single": False})
    arrays = [tensor.numpy() for tensor in inputs]
    expected = interpret(imported.module, arrays, state.weights)
    actual = executable(*arrays)
    assert isinstance(actual, tuple)
    for name, left, right in zip(names, expected, actual, strict=True):
        with np.errstate(all="ignore"):
            difference = np.nanmax(np.abs(left.astype(np.float64) - right.astype(np.float64)), initial=0.0)
        same_nan = bool((np.isnan(left.astype(np.float64)) == np.isnan(right.astype(np.float64))).all())
        mark = "  <<<<" if difference > 1e-3 * max(1.0, float(np.abs(left.astype(np.float64)).max(initial=0.0))) or not same_nan else ""
        print(f"{difference:10.3e} {name} {left.dtype}{list(left.shape)}{mark}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--sizes", default="", help="sizes of every input, as 2x17,2x17 (default: the example inputs)")
    parser.add_argument("--dtype", default="f32", choices=DTYPES, help="as of disc.Options")
    options = parser.parse_args()
    module_name, _, factory = options.model.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    model, inputs, *rest = getattr(importlib.import_module(module_name), factory)()
    imported = import_model(model.eval(), inputs, rest[0] if rest else None, make_context())
    if options.sizes:
        wanted = [tuple(int(size) for size in text.split("x")) for text in options.sizes.split(",")]
        inputs = [_resized(tensor, sizes) for tensor, sizes in zip(inputs, wanted, strict=True)]
    compare(imported, inputs, Options(dtype=options.dtype))


def _resized(tensor: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """Values like those of `tensor` in another size."""
    torch.manual_seed(0)
    if tensor.is_floating_point():
        return torch.randn(sizes, dtype=tensor.dtype)
    return torch.randint(0, int(tensor.max()) + 1, sizes, dtype=tensor.dtype)


if __name__ == "__main__":
    main()
