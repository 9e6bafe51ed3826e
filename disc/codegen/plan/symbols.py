"""The sizes that a kernel is called with, and what it divides by to compute others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from disc.codegen.plan.index import IndexSpace
from disc.ir.graph import Body
from disc.shapes import Dim, FloorDiv, Mod, ShapeEnv, Truth


def body_symbols(space: IndexSpace, body: Body, *extents: Dim) -> tuple[str, ...]:
    """Every base symbol that the dims and expressions of `body` mention, sorted.

    extents: of what the kernel loops over; a product of dims may have been replaced by an equal one of other symbols.
    """
    return tuple(sorted({name for dim in (*extents, *_sizes(space, body)) for name in dim.symbols()}))


def body_divisors(space: IndexSpace, body: Body) -> tuple[Dim, ...]:
    """What the dims and expressions of `body` are divided by and may be 0, each once: kernels do not look."""
    found = dict.fromkeys(divisors(_sizes(space, body)))
    return tuple(dim for dim in found if may_be_zero(space.env, dim))


def may_be_zero(env: ShapeEnv, divisor: Dim) -> bool:
    return divisor.const <= 0 if divisor.is_const else env.le(1, divisor) is not Truth.YES


def _sizes(space: IndexSpace, body: Body) -> Iterator[Dim]:
    for node in body.nodes:
        yield from node.dims
        texts = [text for key in ("starts", "low", "sizes") for text in node.texts(key)]
        if node.op == "disc.dim_value":
            texts.append(str(node.attrs["expr"]))
        for text in texts:
            yield space.env.simplify(space.env.parse(text))


def divisors(dims: Iterable[Dim]) -> Iterator[Dim]:
    """What sizes are divided by, at any depth."""
    for dim in dims:
        for atom in dim.atoms():
            yield from divisors(atom.operands())
            if isinstance(atom, FloorDiv | Mod):
                yield atom.right
