"""StableHLO programs that were changed at random, through the whole compiler: each is compiled or refused by a DiscError.

hostile_stablehlo.py --programs N [--seed S] [--output FILE.json]: prints what became of them, or writes it with the machine it ran on.
Whatever else happens (another exception, a crash, more than 60 s or 6 GiB) is a failure; it is kept with its program, and the run exits
with 1. Programs run in children that the parent forks, so that a crash costs one of them.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.export import Dim  # noqa: E402

import disc  # noqa: E402
from bench.store import finding  # noqa: E402
from disc.errors import CompilerBug, DiscError  # noqa: E402
from disc.frontend.models import import_model  # noqa: E402
from disc.ir.dialect import make_context  # noqa: E402

SECONDS, MEMORY = 60, 6 << 30
PER_CHILD = 50
NUMBERS = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "5",
    "7",
    "16",
    "64",
    "65",
    "4096",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
]
ELEMENTS = [
    "f32",
    "f64",
    "f16",
    "bf16",
    "i1",
    "i8",
    "i32",
    "i64",
    "ui8",
    "ui32",
    "complex<f32>",
    "i4",
    "f8E4M3FN",
    "index",
    "!quant.any<i8>",
]
OPS = [
    "add",
    "subtract",
    "multiply",
    "maximum",
    "power",
    "tanh",
    "exponential",
    "negate",
    "not",
    "floor",
    "sqrt",
    "abs",
    "and",
    "remainder",
]


class _Function(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def _bases() -> list[str]:
    """The text of small programs over most kinds of ops, with dynamic and static dims."""
    x, y, image, ids = torch.randn(3, 8), torch.randn(8, 5), torch.randn(2, 4, 9, 10), torch.randint(0, 3, (2, 7))
    programs: list[tuple[Callable[..., object], tuple[Tensor, ...]]] = [
        (lambda x: torch.softmax(x * 2 + 1, -1), (x,)),
        (lambda x, y: F.gelu(x @ y).sum(0), (x, y)),
        (lambda x: (x.transpose(0, 1).reshape(-1), x.argmax(-1), x.std(0)), (x,)),
        (lambda x: torch.cat([x[:, 1:], -x[:, :1], x.clamp(-1, 1)], 1), (x,)),
        (lambda a, b: F.conv2d(a, b, stride=2, padding=1), (image, torch.randn(6, 4, 3, 3))),
        (lambda a: F.max_pool2d(F.pad(a, (1, 0, 2, 1)), 3, 2), (image,)),
        (lambda ids, y: F.embedding(ids, y).mean(1), (ids, y)),
        (lambda x, ids: x.scatter_add(1, ids[:, :1].expand(2, 8), x.flip(1)), (torch.randn(2, 8), ids)),
        (lambda q: F.scaled_dot_product_attention(q, q, q), (torch.randn(2, 2, 5, 8),)),
        (lambda x: torch.where(x > 0, x.cumsum(1), torch.arange(8.0)).to(torch.int32), (x,)),
    ]
    texts: list[str] = []
    for function, inputs in programs:
        for dynamic in (True, False):
            shapes = ({"inputs": tuple({0: Dim.AUTO} for _ in inputs)}) if dynamic else None
            texts.append(str(import_model(_Function(function).eval(), inputs, shapes, make_context()).module))
    return texts


def _changed(text: str, choose: random.Random) -> str:
    """One change: a number, an element type, a name, an op, a line, a piece."""
    kind = choose.randrange(8)
    if kind == 0:
        return _at_random(r"(?<![\w%#@.])-?\d+(?![\w.])", text, choose, lambda _: choose.choice(NUMBERS))
    if kind == 1:
        return _at_random(r"\b(?:f32|i64|i1|i32)\b", text, choose, lambda _: choose.choice(ELEMENTS))
    if kind == 2:
        names = re.findall(r"%\w+", text)
        return _at_random(r"%\w+", text, choose, lambda _: choose.choice(names))
    if kind == 3:
        return _at_random(r"(?<=stablehlo\.)\w+", text, choose, lambda _: choose.choice(OPS))
    if kind == 4:
        return _at_random(r"(?<=[<x])(?:\d+|\?)(?=x)", text, choose, lambda _: choose.choice(["?", *NUMBERS[:12]]))
    lines = text.splitlines(keepends=True)
    place = choose.randrange(len(lines))
    if kind == 5:
        del lines[place]
    elif kind == 6:
        lines.insert(choose.randrange(len(lines)), lines[place])
    else:
        start = choose.randrange(len(text))
        return text[:start] + choose.choice(["", "\0", "}", "é", "dense<", "loc("]) + text[start + choose.randrange(40) :]
    return "".join(lines)


def _at_random(pattern: str, text: str, choose: random.Random, new: Callable[[str], str]) -> str:
    """`text` with one match of the pattern replaced, or all that read like it."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = choose.choice(found)
    if choose.random() < 0.5:  # everywhere, so that types go on agreeing
        replacement = new(match.group())
        return re.sub(pattern, lambda each: replacement if each.group() == match.group() else each.group(), text)
    return text[: match.start()] + new(match.group()) + text[match.end() :]


def program(bases: list[str], seed: int) -> str:
    """The program of a seed: up to three changes of one of the bases."""
    choose = random.Random(seed)
    text = choose.choice(bases)
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        text = _changed(text, choose)
    return text


def _outcome(path: Path) -> tuple[str, str]:
    """(what became of the program, what is wrong with that: "" if nothing)."""
    try:
        disc.compile(path, options=disc.Options(cache=False))
    except CompilerBug as error:
        return "CompilerBug", str(error)
    except DiscError as error:
        return type(error).__name__, ""
    except BaseException:
        return "raw exception", traceback.format_exc()
    return "compiled", ""


def _run_some(sender: Connection, bases: list[str], first: int, count: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    path = Path(folder) / f"{first}.mlir"
    for seed in range(first, first + count):
        path.write_text(program(bases, seed))
        signal.alarm(SECONDS)  # ends the process: a hang is seen as a crash by this signal
        ending = _outcome(path)
        signal.alarm(0)
        sender.send((seed, *ending))
    path.unlink()


def run(programs: int, seed: int) -> dict[str, object]:
    """Compiles that many programs; returns the counts of endings and the failures."""
    bases = _bases()
    endings: collections.Counter[str] = collections.Counter()
    failures: list[dict[str, object]] = []
    forks = multiprocessing.get_context("fork")
    following, end = seed * 1_000_000, seed * 1_000_000 + programs
    with tempfile.TemporaryDirectory() as folder:
        while following < end:
            receiver, sender = forks.Pipe(duplex=False)
            arguments = (sender, bases, following, min(PER_CHILD, end - following), folder)
            child = forks.Process(target=_run_some, args=arguments)
            child.start()
            sender.close()
            last = min(following + PER_CHILD, end)
            while following < last:
                try:
                    number, ending, wrong = receiver.recv()
                except EOFError:
                    child.join()
                    ending, wrong = "crash", f"ended by signal {-(child.exitcode or 0)}"
                    number = following
                endings[ending] += 1
                if wrong:
                    failures.append({"seed": number, "ending": ending, "wrong": wrong[-2000:], "program": program(bases, number)})
                following = number + 1
                if ending == "crash":
                    break
            child.join()
    return {"programs": programs, "seed": seed, "endings": dict(endings.most_common()), "failures": failures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = run(arguments.programs, arguments.seed)
    finding("hostile StableHLO", "python tests/fuzz/hostile_stablehlo.py", found, arguments.output)
    sys.exit(bool(found["failures"]))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
