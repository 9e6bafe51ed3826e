"""What makes two exported programs the same for the compiler, source lines aside: texts, and the bytes of the weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram

from disc.frontend.decisions import decision_text
from disc.frontend.exported import INPUT_NAMES, OUTPUT_NAMES
from disc.frontend.program_decisions import RECORDED
from disc.frontend.symbols import shape_environment


def program_facts(program: ExportedProgram) -> dict[str, str]:
    """Graph, types, names, structure, and what is known of the sizes."""
    environment = shape_environment(node.meta.get("val") for node in program.graph.nodes)
    code = program.graph_module.print_readable(print_output=False).splitlines()
    return {
        "graph": "\n".join(line for line in code if not line.lstrip().startswith("#")),  # comments are the source lines
        "signature": repr(program.graph_signature),
        "ranges": str(program.range_constraints),
        "guards": "\n".join(str(guard.expr) for guard in environment.guards) if environment is not None else "",
        "stored guards": "\n".join(program._guards_code),
        "decisions": "\n".join(map(decision_text, program.graph_module.meta.get(RECORDED, ()))),
        "call": str(program.call_spec),
        "inputs": str(program.graph_module.meta.get(INPUT_NAMES)),
        "outputs": str(program.graph_module.meta.get(OUTPUT_NAMES)),
        "tensors": "\n".join(f"{name}: {value.dtype} {tuple(value.shape)}" for name, value in _tensors(program)),
    }


def program_data(program: ExportedProgram) -> Iterator[tuple[str, memoryview]]:
    """The bytes of every parameter, buffer and constant, by name."""
    for name, value in _tensors(program):
        if value.numel():
            yield name, value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _tensors(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    attributes = [node.target for node in program.graph.nodes if node.op == "get_attr"]
    own = {name: getattr(program.graph_module, name, None) for name in attributes}
    for kind, table in (("state", program.state_dict), ("constant", program.constants), ("attribute", own)):
        for name, value in table.items():
            if isinstance(value, torch.Tensor):
                yield f"{kind} {name}", value
