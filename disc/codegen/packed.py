"""The manifest of a program that `pack-sequences` has rewritten, and whether its kernels keep sequences apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch_mlir import ir

from disc.codegen.manifest import input_records, output_records, symbol_records
from disc.codegen.plan.attention import keeps_segments_apart
from disc.codegen.plan.index import IndexSpace
from disc.ir.graph import Body, Node, Snapshot, parse_attributes
from disc.ir.ops import main_block
from disc.ir.stages import load_env
from disc.shapes import Dim


def packed_refusal(module: ir.Module) -> str | None:
    """Why `pack-sequences` left the module alone, None where it did not."""
    found = parse_attributes(module.operation).get("disc.packed_refusal")
    return found if isinstance(found, str) else None


def packed_entry(module: ir.Module) -> Mapping[str, object]:
    """The attributes that `pack-sequences` wrote: the symbols of rows and tokens, the kind of each output, the least length."""
    found = cast("dict[str, object]", parse_attributes(module.operation)["disc.packed"])
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def plain_tables(module: ir.Module) -> Mapping[str, object]:
    """The inputs, outputs and symbols of a module of stage `named` that is to be packed: what its users see."""
    env = load_env(module)
    body = Snapshot(env).block(main_block(module))
    return {
        "inputs": input_records(module, body.arguments),
        "results": output_records(module, body.yields),
        "symbols": symbol_records(env, env.sources),
    }


def obstacle(module: ir.Module) -> str | None:
    """Why a packed module of stage `fused` would mix sequences or need memory for all pairs of tokens, None where it does neither."""
    env = load_env(module)
    length = Dim.symbol(str(packed_entry(module)["length"]))
    for node in Snapshot(env).block(main_block(module)).nodes:
        if node.op != "kernel.fusion":
            continue
        assert node.body is not None
        if env.exact_div(env.product(node.dims), length * length) is not None:
            return f"{_named(node.body)}: values of all pairs of tokens would be stored, since there is no attention kernel{_notes(node)}"
        if node.attrs["kind"] == "attention" and not keeps_segments_apart(IndexSpace(env.copy(), False), node.body):
            return f"{_named(node.body)}: its attention kernel does not see where sequences end"
    return None


def _named(body: Body) -> str:
    """The op and line of the first value with pairs, or of the first at all."""
    lines = [node for node in body.nodes if node.line]
    return f"{lines[0].op} at {lines[0].line}" if lines else body.nodes[-1].op


def _notes(node: Node) -> str:
    found = node.texts("notes")
    return f" ({'; '.join(found)})" if found else ""
