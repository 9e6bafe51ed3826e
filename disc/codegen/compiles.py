"""How often this process has called the code generator: counted where it runs."""

from __future__ import annotations

import threading

_lock = threading.Lock()
_process = 0


class _Thread(threading.local):
    count = 0


_thread = _Thread()


def count_compile() -> None:
    """One more, by the calling thread."""
    global _process
    with _lock:
        _process += 1
    _thread.count += 1


def process_compiles() -> int:
    """By every thread of this process so far: the same before and after what must not compile."""
    return _process


def thread_compiles() -> int:
    """By the calling thread so far: the difference over a piece of work is what that work compiled, whatever others do meanwhile."""
    return _thread.count
