"""Cuts the text of a program's code into parts that are compiled apart, side by side, and then linked.

How it is cut depends on the text alone, so an artifact is the same however many threads compiled it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from disc.errors import CompilerBug

PARTS = 8  # at most: each costs some 5 ms besides its work, and rarely are more cores free
LEAST = 1500  # weight of a part, where it can be that much: about 60 ms
LOOP = 12  # lines that an op of the dialect scf counts for: it becomes blocks, and vectorizer and unroller look at each

_DEFINITION = re.compile(r"^(?=llvm\.mlir\.global |func\.func )", re.MULTILINE)
_HEAD = re.compile(r"^func\.func @(\w+)\(([^()\n]*)\)((?: -> .+)?) \{$", re.MULTILINE)
_SYMBOL = re.compile(r"@(\w+)")


@dataclass(frozen=True)
class _Function:
    """text: of the function, after the tables that it alone reads. declaration: for the parts that call it."""

    name: str
    declaration: str
    text: str

    @cached_property
    def weight(self) -> int:
        """About how long it takes to compile, in lines."""
        return self.text.count("\n") + LOOP * self.text.count("scf.")


def cut(source: str, external: Collection[str] = ()) -> list[str]:
    """The parts, the one that takes longest first. Each declares what it calls of the others.

    source: MLIR text of functions, each behind the globals that it reads. No function may depend on being inlined into another. external:
    names that the text takes the addresses of as if they were kernels, and that it does not define.

    Raises CompilerBug for a function whose head is longer than a line.
    """
    functions = _functions(source)
    total = sum(function.weight for function in functions)
    count = max(1, min(PARTS, len(functions), total // LEAST))
    weights, parts = [0] * count, [list[_Function]() for _ in range(count)]
    for function in sorted(functions, key=lambda each: -each.weight):
        lightest = weights.index(min(weights))
        weights[lightest] += function.weight
        parts[lightest].append(function)
    declarations = _declarations(functions, external)
    order = sorted(range(count), key=lambda number: -weights[number])
    return [_text(parts[number], declarations) for number in order]


def _declarations(functions: Sequence[_Function], external: Collection[str]) -> dict[str, str]:
    kernels = {name: f"func.func private @{name}(!llvm.ptr, i64, i64, !llvm.ptr)\n" for name in external}
    return kernels | {function.name: function.declaration for function in functions}


def _functions(source: str) -> list[_Function]:
    found: list[_Function] = []
    globals_ = ""
    for text in _DEFINITION.split(source):
        head = _HEAD.match(text)
        if head is None and text.startswith("func.func "):
            raise CompilerBug(f"a function's head does not stand in one line: {text.partition(chr(10))[0]}")
        if head is None:
            globals_ += text
            continue
        types = ", ".join(argument.split(": ")[1] for argument in head[2].split(", ") if argument)
        found.append(_Function(head[1], f"func.func private @{head[1]}({types}){head[3]}\n", globals_ + text))
        globals_ = ""
    return found


def _text(functions: list[_Function], declarations: dict[str, str]) -> str:
    text = "".join(function.text for function in functions)
    own = {function.name for function in functions}
    called = (name for name in dict.fromkeys(_SYMBOL.findall(text)) if name not in own)
    return "".join(declarations[name] for name in called if name in declarations) + text
