"""The conditions under which an exported program is the model, from all places where PyTorch and disc keep them."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from disc.frontend.conditions import relation
from disc.frontend.decisions import Decision, Found, guards_in_text, guards_of
from disc.frontend.symbols import lower_limit, shape_environment, to_size, to_text, upper_limit
from disc.shapes import Dim, parse_dim

RECORDED = "disc_decisions"  # among the metadata of a program that `export_module` made


def decisions_of(program: ExportedProgram, recorded: Sequence[Found] | None) -> list[Found]:
    """The conditions under which `program` is the model: recorded while it was exported, guards of its symbols, ranges of its dims.

    recorded: by `export_module`; None for a program that something else made.
    """
    environment = shape_environment(node.meta.get("val") for node in program.graph.nodes)
    if environment is None:
        return []
    found: list[Found] = [*(recorded or ()), *guards_of(environment)]
    for size, values in program.range_constraints.items():
        low = lower_limit(values) if recorded is None and isinstance(size, sympy.Symbol) else None
        if low is not None and low not in (0, 2):  # PyTorch's own bound is 2; another one is the user's, or a condition's
            found.append(Decision(relation(">=", size, low), f"its range begins at {low}"))
        if (high := upper_limit(values)) is not None:
            found.append(Decision(relation("<=", size, high), f"its range ends at {high}"))
    return found


def stored_guards(program: ExportedProgram) -> list[Found]:
    """The guards of a program from a file, where its symbols have none."""
    environment = shape_environment(node.meta.get("val") for node in program.graph.nodes)
    if environment is None or environment.guards:
        return []
    return guards_in_text(program._guards_code, _source_texts(program))


def _source_texts(program: ExportedProgram) -> dict[str, Dim]:
    """How stored guards name the sizes of the inputs: "L['x'].size()[1]" → its size."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    found: dict[str, Dim] = {}
    for position, (name, path) in enumerate(zip(names, _input_paths(program), strict=True)):
        value = placeholders[name].meta["val"] if name in placeholders else None
        sizes = {f".size()[{dim}]": size for dim, size in enumerate(value.shape)} if isinstance(value, torch.Tensor) else {"": value}
        for suffix, size in sizes.items():
            if isinstance(size, int | torch.SymInt):
                dim = parse_dim(to_text(to_size(size)))
                found |= {f"L{path}{suffix}": dim, f"L['flat_args'][{position}]{suffix}": dim}
    return found


def _input_paths(program: ExportedProgram) -> list[str]:
    """The place of each input among the arguments, as guards name it: "['x']", "['pair'][0]"."""
    spec = program.call_spec.in_spec
    assert spec is not None, "an exported program records the structure of its inputs"
    args, kwargs = pytree.tree_unflatten(range(spec.num_leaves), spec)
    signature = program.module_call_graph[0].signature
    names = (signature.forward_arg_names if signature is not None else None) or [f"args_{number}" for number in range(len(args))]
    paths = pytree.tree_leaves_with_path({**dict(zip(names, args, strict=False)), **kwargs})
    ordered = sorted((position, pytree.keystr(path)) for path, position in paths)
    return [text for _, text in ordered]
