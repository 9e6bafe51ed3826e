"""Contexts with every dialect."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from disc.ir.dialect import make_context


def test_contexts_are_made_in_many_threads_at_once() -> None:
    """It crashed the process."""
    with ThreadPoolExecutor(4) as threads:
        contexts = list(threads.map(lambda _: make_context(), range(40)))
    assert all(context.is_dialect_loaded("disc") for context in contexts)
