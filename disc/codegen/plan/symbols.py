"""The sizes that a kernel is called with."""

from __future__ import annotations

from disc.codegen.plan.index import IndexSpace
from disc.ir.graph import Body
from disc.shapes import Dim


def body_symbols(space: IndexSpace, body: Body, *extents: Dim) -> tuple[str, ...]:
    """Every base symbol that the dims and expressions of `body` mention, sorted.

    extents: of what the kernel loops over; a product of dims may have been replaced by an equal one of other symbols.
    """
    names = {name: None for extent in extents for name in extent.symbols()}
    for node in body.nodes:
        texts = [text for key in ("starts", "low", "sizes") for text in node.texts(key)]
        if node.op == "disc.dim_value":
            texts.append(str(node.attrs["expr"]))
        for dim in (*node.dims, *(space.env.simplify(space.env.parse(text)) for text in texts)):
            names.update(dict.fromkeys(dim.symbols()))
    return tuple(sorted(names))
