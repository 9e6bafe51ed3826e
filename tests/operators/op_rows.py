"""What is known of each operator, from running its cases: the rows of `docs/operators.md`, and what they rest on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from disc.frontend.allow_list import FORMS, has_lowering
from disc.frontend.decompositions import OURS, find_decomposition
from disc.frontend.hlo import complex_parts, forms
from disc.passes.shape import shape_rules
from tests.fuzz.op_check import FINE, Outcome, check, comparable_sets
from tests.fuzz.op_programs import Program, seed
from tests.operators.op_cases import FAMILIES, Cases, overload

RECORD = Path(__file__).parent / "record.json"
AGREE = ("right", "random")
OWN = 2  # of the sets of inputs of a call: those of its own sizes
CALLS_OF_FIRST, CALLS_OF_OTHERS = OWN + 3, OWN + 1
OP = re.compile(r"\b(?:aten|prims)\.\w+(?:\.\w+)?")
REASON = re.compile(r"^  - (\S+) at .*?: (.*)$", re.M)

# How a row may end.
COMPILED, IN_PART, EAGER, REFUSED, FAULT, NO_CASE = "compiled", "in part", "eager in torch.compile", "refused", "fault", "no case"


@dataclass
class Row:
    """cases: calls that were compiled, or tried; agreeing: of them. dtypes: in which compiled calls agree with eager. sizes: sets of inputs of
    other sizes than the example's that eager takes; sizes_right: of them, the others being refused by the compiled program. reason: why the
    first call that is not compiled is not. samples: entries of PyTorch's table that the cases are of. rests_on: op → how it is lowered."""

    family: str
    name: str
    status: str
    dtypes: list[str] = field(default_factory=list)
    cases: int = 0
    agreeing: int = 0
    sizes: int = 0
    sizes_right: int = 0
    reason: str = ""
    samples: list[str] = field(default_factory=list)
    rests_on: dict[str, str] = field(default_factory=dict)

    def key(self) -> str:
        return f"{self.family}/{self.name}"

    def is_stale(self) -> bool:
        """Whether an op that it rests on is lowered in another way now."""
        return any(route(op) != recorded for op, recorded in self.rests_on.items())


def read_record() -> dict[str, Row]:
    rows = [Row(**each) for each in json.loads(RECORD.read_text())] if RECORD.exists() else []
    return {row.key(): row for row in rows}


def write_record(rows: Iterable[Row]) -> None:
    """One row per line, so that a change shows what changed."""
    ordered = sorted(rows, key=lambda row: ((*FAMILIES, "stablehlo").index(row.family), row.name))
    RECORD.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in ordered) + "\n]\n")


def route(name: str) -> str:
    """How calls of the op become StableHLO, or what an op of StableHLO has; "" where they do not, or it has nothing."""
    if name.startswith("stablehlo."):
        return _route_of_stablehlo(name)
    try:
        op = overload(name if name.count(".") == 2 else f"{name}.default")
    except (AttributeError, ValueError):
        return ""
    if has_lowering(op):
        return "torch-mlir" if op in FORMS else "override"
    if op in OURS:
        return "decomposition of ours"
    return "decomposition" if find_decomposition(op) is not None else ""


def _route_of_stablehlo(name: str) -> str:
    if name in shape_rules.RULES:
        return "rule"
    if name in forms.DEPRECATED | forms.DROPPED:
        return "rewritten"
    return "form" if name in forms.FORMS else "complex" if name in complex_parts.FORMS else ""


def verified(family: str, name: str, cases: Cases, mark: Callable[[str], None] = lambda stage: None) -> Row:
    """Compiles the calls and compares them with eager, at their own sizes and others."""
    row = Row(family, name, NO_CASE, samples=list(cases.samples))
    calls = [program for programs in cases.calls.values() for program in programs]
    outcomes = [(program, check(program, "compile", mark, CALLS_OF_FIRST, comparable_sets)) for program in calls[:1]]
    outcomes += _in_one_compile(calls[1:], mark)
    agreeing = {id(program) for program, found in outcomes if _agrees(found)}
    row.dtypes = [str(dtype)[6:] for dtype, programs in cases.calls.items() if all(id(program) in agreeing for program in programs)]
    row.cases, row.agreeing = len(outcomes), sum(_agrees(found) for _, found in outcomes)
    others = [each for _, found in outcomes for each in found[OWN:]]
    row.sizes, row.sizes_right = len(others), sum(each.kind in AGREE for each in others)
    if outcomes:
        row.status, row.reason = _status(outcomes, mark)
        own = {name} if family != "functional" else _called(outcomes[0][0])
        row.rests_on = {op: route(op) for op in sorted({*own, *OP.findall(row.reason)})}
    return row


def _in_one_compile(programs: Sequence[Program], mark: Callable[[str], None]) -> list[tuple[Program, list[Outcome]]]:
    """The outcomes of each call; they are compiled one by one only where not all agree."""

    def run(calls: Sequence[tuple[tuple[object, ...], dict[str, object]]]) -> list[object]:
        return [each.function(*args, **kwargs) for each, (args, kwargs) in zip(programs, calls, strict=True)]

    if len(programs) > 1 and not any(program.clone for program in programs):
        whole = Program(0, programs[0].name, "together", run, ([(each.args, each.kwargs) for each in programs],), {})
        found = check(whole, "compile", mark, CALLS_OF_OTHERS, comparable_sets)
        if all(each.kind == "right" for each in found):  # "random" might be one of them, with the others wrong
            return [(program, found) for program in programs]
    return [(program, check(program, "compile", mark, CALLS_OF_OTHERS, comparable_sets)) for program in programs]


def _agrees(outcomes: Sequence[Outcome]) -> bool:
    """Whether inputs of the call's own sizes give eager's result, some of other sizes too, and none a wrong one."""
    others = outcomes[OWN:]
    fixed = bool(others) and not any(each.kind in AGREE for each in others)
    return all(each.kind in AGREE for each in outcomes[:OWN]) and all(each.kind in FINE for each in others) and not fixed


def _status(outcomes: Sequence[tuple[Program, list[Outcome]]], mark: Callable[[str], None]) -> tuple[str, str]:
    failed = [(program, found) for program, found in outcomes if not _agrees(found)]
    if not failed:
        return COMPILED, ""
    for program, found in failed:
        for each in found:
            if each.kind not in FINE:
                return FAULT, f"{program}: {each.kind}: {_first_line(each.text)}"
    program, found = failed[0]
    reason = reason_of(next(each for each in found if each.kind not in AGREE))
    if len(failed) < len(outcomes) or found[0].kind in AGREE:
        return IN_PART, f"{reason} ({program})" if program.kind != "written" else reason
    through = check(program, "backend", mark, 1)
    return (EAGER if through[0].kind in AGREE else REFUSED), reason


def reason_of(outcome: Outcome) -> str:
    """Of a refusal, without places in files."""
    listed = [f"{op}: {reason}" for op, reason in dict.fromkeys(REASON.findall(outcome.text))]
    return "; ".join(listed[:2]) or f"{outcome.kind}: {_first_line(outcome.text)}"


def _first_line(text: str) -> str:
    return re.sub(r" at \S+\.py:\d+", "", text.strip().splitlines()[0] if text.strip() else "")[:200]


def _called(program: Program) -> set[str]:
    """The ATen ops that the call is made of in eager."""
    called: set[str] = set()

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: torch._ops.OpOverload, types: object, args: tuple[object, ...] = (), kwargs: object = None
        ) -> object:
            called.add(str(func))
            return func(*args, **(kwargs or {}))  # pyright: ignore[reportCallIssue]

    seed(0)
    with Names(), torch.no_grad():
        program.module()(*program.tensors())
    return called
