"""StableHLO's own reference interpreter as an oracle: it shares no code with disc.

A program is text with letters for dynamic dims, such as `tensor<2xNxf32>`: compiled once with every letter as `?`, and evaluated by the
reference with the sizes put in, for any number of sizes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from compiled import Array, both_targets, mismatch, to_bits
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.frontend.dialects import load_frontend_dialects
from disc.ir.bf16 import bf16_values
from disc.ir.dialect import make_context
from disc.ir.interp.values import constant_attribute, constant_value, element_name, held_dtype
from disc.ral.executable import Executable

_LETTER = re.compile(r"(?<=[<x])([A-Z])(?=x)")


class OracleProgram:
    """A program with letters for its dynamic dims, compiled for every target of this machine, or by `compiled`."""

    def __init__(self, text: str, compiled: Callable[[Path], list[Executable]] = both_targets) -> None:
        self.text = text
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.mlir"
            path.write_text(_LETTER.sub("?", text))
            self.executables = compiled(path)

    def check(
        self, sizes: Mapping[str, int], seed: int = 0, relative: float = 1e-6, inputs: Sequence[Array] | None = None,
        reference: Callable[..., Sequence[Array]] | None = None,
    ) -> None:  # fmt: skip
        """Every target gives what the reference gives for drawn inputs (or `inputs`, bf16 in f32). relative: tolerance of floats.

        reference: the results in numpy, for ops that end the process of StableHLO's interpreter, which has no rule for them.
        """
        module = _module(_LETTER.sub(lambda found: str(sizes[found[1]]), self.text))
        function = next(op.operation for op in module.body.operations if ir.StringAttr(op.operation.attributes["sym_name"]).value == "main")
        types = [argument.type for argument in function.regions[0].blocks[0].arguments]
        random = np.random.default_rng(seed)
        given = list(inputs) if inputs is not None else [_drawn(random, type_) for type_ in types]
        elements = [element_name(each) for each in ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results]
        if reference is not None:
            wanted = reference(*given)
        else:
            with module.context, ir.Location.unknown():
                attributes = [constant_attribute(each, type_) for each, type_ in zip(given, types, strict=True)]
                wanted = list(map(constant_value, _stablehlo.eval_module(module, attributes)))
        arguments = [to_bits(each, element_name(type_)) for each, type_ in zip(given, types, strict=True)]
        for executable in self.executables:
            returned = executable(*arguments)
            results = returned if isinstance(returned, tuple) else (returned,)
            for number, (ours, theirs, element) in enumerate(zip(results, wanted, elements, strict=True)):
                values = bf16_values(np.asarray(ours)) if element == "bf16" else np.asarray(ours)
                tolerance = {"bf16": 2**-7, "f16": 2**-9}.get(element, relative) if relative else 0.0
                difference = mismatch(values, theirs, tolerance, tolerance)
                assert not difference, f"{executable.isa}, result {number}, sizes {dict(sizes)}: {difference}\n{self.text}"


def _module(text: str) -> ir.Module:
    context = make_context()
    load_frontend_dialects(context)
    with context:
        return ir.Module.parse(text)


def _drawn(random: np.random.Generator, type_: ir.Type) -> Array:
    """Small numbers of both signs, with zeros among them and some that are equal."""
    element, shape = element_name(type_), ir.ShapedType(type_).shape
    dtype = held_dtype(element)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(np.bool_)
    low = 0 if element.startswith("ui") else -6
    values = random.integers(low, 7, shape)
    return (values / 4).astype(dtype) if dtype.kind == "f" else values.astype(dtype)
