"""Recursion with a stack of its own, for what is as deep as a user's program is long.

    def depth(node: Node) -> Recursive[int]:
        return 1 + max([(yield depth(operand)) for operand in node.operands], default=0)

    run_recursive(depth(node))

Python counts the frames of the whole thread, those of the user's code among them, and gives up at a limit that belongs to the process.
Here one call costs no frame: `yield f(x)` gives what `f(x)` returns, or raises what it raises.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
Recursive = Generator["Recursive[Any]", Any, T]
"""A computation that yields others of its kind, is sent what they return, and returns a `T`."""


def run_recursive(first: Recursive[T]) -> T:
    """What `first` returns. Raises what it raises."""
    stack: list[Recursive[Any]] = [first]
    answer: Any = None
    error: BaseException | None = None
    while stack:
        try:
            inner = stack[-1].send(answer) if error is None else stack[-1].throw(error)
        except StopIteration as end:
            stack.pop()
            answer, error = end.value, None
        except BaseException as raised:
            stack.pop()
            answer, error = None, raised
        else:
            stack.append(inner)
            answer = error = None
    if error is not None:
        raise error
    return answer
