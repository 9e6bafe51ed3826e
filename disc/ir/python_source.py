"""Python's parser, from several threads at once."""

from __future__ import annotations

import ast
import threading

# CPython 3.11 counts the depth of `ast.parse` for all threads together, and raises SystemError where two take turns within it
# (python/cpython#106905). Ours are kept apart by the lock; those of other packages are not, so that a failed call is made again.
PARSING = threading.RLock()
_ATTEMPTS = 8


def parse_expression(source: str) -> ast.expr:
    """The tree of one expression. Raises what `ast.parse` does."""
    tree = _parsed(source, "eval")
    assert isinstance(tree, ast.Expression)
    return tree.body


def parse_source(source: str) -> ast.Module:
    """The tree of statements. Raises what `ast.parse` does."""
    tree = _parsed(source, "exec")
    assert isinstance(tree, ast.Module)
    return tree


def _parsed(source: str, mode: str) -> ast.AST:
    with PARSING:
        for _ in range(_ATTEMPTS - 1):
            try:
                return ast.parse(source, mode=mode)
            except SystemError:
                continue
        return ast.parse(source, mode=mode)
