"""The `disc` dialect, defined in Python and lowered to IRDL; the ops are described in docs/architecture.md.

Only structure (operands, results, regions, traits) is declared here, so that every op prints in generic form and takes
free attributes; the legality of attributes is checked per stage in `stages.py`.
"""

import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]
from torch_mlir.dialects import ext, irdl
from torch_mlir.dialects import torch as torch_dialect

from disc.ir.op_table import BINDING, OPS, Sizes


class Disc(ext.Dialect, name="disc"):
    """Symbolic dims, weights and fusions."""


class SymbolicDim(Disc.Operation, name="symbolic_dim"):
    """One dim symbol: `sym_name`, `min`, optional `max`, `divisor`, and either `source` (base) or `expr` (derived)."""

    sym_name: ir.StringAttr


class Relation(Disc.Operation, name="relation"):
    """A fact between base symbols: `lhs` equals `rhs`."""

    lhs: ir.StringAttr
    rhs: ir.StringAttr


class Condition(Disc.Operation, name="condition"):
    """What every call is checked for on entry: `expr` (grammar: disc/shapes/conditions.py) holds; `why` and `message` are for messages."""

    expr: ir.StringAttr


def _define(name: str, operands: Sequence[str], results: int) -> None:
    """The class of an op of ours: results and operands as of its record, attributes at will."""
    made = {f"out{number}" if number else "out": ext.Result[Any] for number in range(results)}
    fields = {**made, **{operand: ext.Operand[Any] for operand in operands}}
    short = name.partition(".")[2]
    traits = [] if name in BINDING else [ext.Pure]  # the symbol that an op binds may be used where its result is not
    keywords = {"name": short, "traits": traits}
    types.new_class(short, (Disc.Operation,), keywords, lambda body: body.update(__annotations__=fields))


for _op in OPS.values():
    if _op.dialect == "disc":
        _define(_op.name, _op.operands, _op.results)
    if _op.sizes is Sizes.GIVEN:
        for _name in _op.imported:
            _define(_name, (*_op.operands, *(f"sizes{number}" for number in range(_op.results))), _op.results)


# A reduction by `kind` of what a window sees, whose numbers, one for each dim, may be sizes; padding: [rank, 2].
_define("disc.dynamic_window", ("source", "windows", "strides", "dilations", "holes", "padding"), 1)


# The bindings look for `torch_mlir.dialects.<name>` at every `value.owner` of a dialect without generated classes, and search the
# file system again each time. An empty module ends the search at once (17 times faster passes).
for _name in ("stablehlo", "chlo", "disc", "kernel"):
    sys.modules.setdefault(f"torch_mlir.dialects.{_name}", types.ModuleType(_name))


def _definition() -> bytes:
    """The dialect in IRDL, as bytecode. The bindings learn of the classes here; to make it of them again for every context takes long."""
    with ir.Context(), ir.Location.unknown():
        Disc.load()
        written = BytesIO()
        Disc._mlir_module.operation.write_bytecode(written)  # pyright: ignore[reportAttributeAccessIssue]
    return written.getvalue()


_DEFINITION = _definition()
_MADE = ("arith", "func", "math", "shape", "tensor")  # MLIR's dialects that we make ops of: parsers and passes load what else they need


def make_context() -> ir.Context:
    """A fresh MLIR context with every dialect that disc reads or writes."""
    context = ir.Context(load_on_create_dialects=list(_MADE))
    load_dialects(context)
    return context


def load_dialects(context: ir.Context) -> None:
    """Registers stablehlo, chlo, torch and disc in `context` (safe to repeat).

    `kernel.fusion` and `kernel.yield` stay unregistered: an IRDL op with variadic operands demands one type of all of them.
    """
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        _stablehlo.register_dialect(context)
        torch_dialect.register_dialect(context)  # pyright: ignore[reportAttributeAccessIssue]
        if not context.is_dialect_loaded("disc"):
            irdl.load_dialects(ir.Module.parse(_DEFINITION))
            for op in Disc.operations:  # pyright: ignore[reportAttributeAccessIssue]
                op._attach_traits()


@contextmanager
def disc_context() -> Iterator[ir.Context]:
    """`with disc_context():` enters a fresh context and an unknown location."""
    context = make_context()
    with context, ir.Location.unknown():
        yield context
