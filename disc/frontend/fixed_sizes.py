"""Sizes that Dynamo leaves open and that the trace of values and gradients fixes, by a decomposition or by PyTorch's own code in C++.

    zeros.index_put((rows,), x, accumulate=True)    # whose decomposition adds: x has as many columns as zeros, and not one

A guard then has each other size compiled anew, until PyTorch's limit of compiles leaves them to eager: whoever asked for dynamic sizes is
told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import format_stack
from torch.utils._sympy.symbol import SymT, symbol_is_type

from disc.frontend.locations import frame_text, user_line
from disc.frontend.replaced import replaced


@contextmanager
def fixed_sizes(environment: ShapeEnv | None) -> Iterator[dict[str, str]]:
    """Line of a call ("file.py:12", or "unknown line") → the number that its trace makes of an open size of `environment`. (That two are
    equal, as of a mask and what it masks, is said by the program as a rule.)"""
    found: dict[str, str] = {}
    if environment is None:
        yield found
        return
    is_open = {each for each in environment.var_to_range if each not in environment.replacements and symbol_is_type(each, SymT.SIZE)}
    original = ShapeEnv._set_replacement

    def set_replacement(env: ShapeEnv, symbol: sympy.Symbol, value: sympy.Expr, why: str) -> None:
        original(env, symbol, value, why)
        known = env.replacements.get(symbol) if env is environment and symbol in is_open else None
        if known is not None and known.is_number:
            is_open.remove(symbol)
            frame = user_line("".join(format_stack()))
            found.setdefault(frame_text(*frame) if frame else "unknown line", str(known))

    with replaced({(ShapeEnv, "_set_replacement"): set_replacement}):
        yield found
