"""The dialects of stage `imported` in a context."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from disc.ir.dialect import load_dialects


def load_frontend_dialects(context: ir.Context) -> None:
    """`load_dialects`, and chlo: the wheel registers it only as a dependency of a pass, so an empty module goes through one."""
    load_dialects(context)
    with context:
        PassManager.parse("builtin.module(func.func(convert-torch-to-stablehlo))").run(ir.Module.create(ir.Location.unknown()).operation)
