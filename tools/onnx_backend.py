"""The standard's own test of ONNX operators (`onnx.backend.test`, default domain: node, simple and PyTorch cases), compiled and compared.

    python tools/onnx_backend.py                 counts by outcome, and the reasons of what is refused
    python tools/onnx_backend.py softmax cast    only cases with one of these in their names
    python tools/onnx_backend.py --every 4       a fourth of the cases
    python tools/onnx_backend.py --record        also writes tests/golden/onnx_backend.json, and bench/results/fuzz/onnx-backend.json, which
                                                 has the outcomes by operator

Outcomes: "right" is equal to the case's results within its own tolerances; "refused" is an error of `disc.errors`; "wrong" another result;
"raw" a CompilerBug, or any other exception. Shapes, axes and the like are inputs of many cases, so that what they decide depends on data.
"with constants" are the refused cases once more, with such inputs as initializers, as models have them. Where a file leaves open what its
constants demand of a dim, how long a sequence is, or whether an optional is there, the inputs are given as examples. Results of 16 bits may
differ by two roundings.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import multiprocessing
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import disc  # noqa: E402
from bench.store import finding  # noqa: E402
from disc.config import Options  # noqa: E402
from disc.errors import CompilerBug, DiscError, UnsupportedOpError  # noqa: E402

LAST_PLACES = {"float16": 2**-9, "bfloat16": 2**-6}  # relative, what two roundings of these types differ by
BATCH = 100  # cases of one process
DRAWN = ("test_bernoulli", "test_training_dropout_default", "test_training_dropout", "test_training_dropout_mask")
DATA = Path(onnx.__file__).parent / "backend/test/data"
FILES = ("simple", "pytorch-converted", "pytorch-operator")
EXAMPLES_HELP = re.compile("^ExportError|give example_inputs|expected a tensor, got NoneType")
RECORD, FINDINGS = ROOT / "tests/golden/onnx_backend.json", ROOT / "bench/results/fuzz/onnx-backend.json"


@dataclass(frozen=True)
class Case:
    """data: pairs of inputs and results."""

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[object], Sequence[object]]]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Outcome:
    kind: str
    reason: str = ""


def cases(parts: Sequence[str] = (), modules: Sequence[str] = ()) -> Iterator[Case]:
    """The node cases whose operators are all of the default domain. parts: of names; modules: of the standard's cases, None: all."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
        found = node._NodeTestCases if modules else node.collect_testcases(None)
    for each in found:
        if each.model is None or (parts and not any(part in each.name for part in parts)):
            continue
        if {opset.domain for opset in each.model.opset_import} <= {"", "ai.onnx"}:
            yield Case(each.name, each.model, list(each.data_sets or ()), each.rtol, each.atol)
    yield from () if modules else _from_files(parts)


def _from_files(parts: Sequence[str]) -> Iterator[Case]:
    """The cases that the standard has as files: small models, and single operators as PyTorch exported them."""
    for folder in (folder for kind in FILES for folder in sorted((DATA / kind).iterdir())):
        if parts and not any(part in folder.name for part in parts):
            continue
        model = onnx.load(folder / "model.onnx")
        if not {opset.domain for opset in model.opset_import} <= {"", "ai.onnx"}:
            continue
        sets = sorted(folder.glob("test_data_set_*"))
        data = [(_stored(each, "input", model.graph.input), _stored(each, "output", model.graph.output)) for each in sets]
        yield Case(folder.name, model, data, 1e-3, 1e-7)


def _stored(folder: Path, kind: str, values: Sequence[onnx.ValueInfoProto]) -> list[object]:
    return [
        _loaded((folder / f"{kind}_{i}.pb").read_bytes(), value) for i, value in enumerate(values) if (folder / f"{kind}_{i}.pb").exists()
    ]


def _loaded(content: bytes, value: onnx.ValueInfoProto) -> object:
    if value.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if value.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def with_constants(case: Case) -> Case | None:
    """The case with its small inputs as initializers where these may decide shapes; None where it has none."""
    if len(case.data) != 1:
        return None
    inputs, results = case.data[0]
    fixed = {i: np.asarray(each) for i, each in enumerate(inputs) if _decides(case, i, each)}
    if not fixed:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    left = [each for i, each in enumerate(model.graph.input) if i not in fixed]
    model.graph.initializer.extend(numpy_helper.from_array(value, model.graph.input[i].name) for i, value in fixed.items())
    del model.graph.input[:]
    model.graph.input.extend(left)
    return Case(case.name, model, [([each for i, each in enumerate(inputs) if i not in fixed], results)], case.rtol, case.atol)


def _decides(case: Case, place: int, value: object) -> bool:
    """Shapes, axes, numbers of turns, conditions; scales of a Resize; ends of a Range."""
    if not isinstance(value, np.ndarray | np.generic) or np.ndim(value) > 1:
        return False
    if {node.op_type for node in case.model.graph.node} & FIRST_DECIDES or _name_starts(case, FIRST_DECIDES):
        return True
    return bool(place) and (
        np.asarray(value).dtype.kind in "iub" or _name_starts(case, {"Resize", "Upsample", "OneHot", "Dropout", "Training_dropout"})
    )


FIRST_DECIDES = {"ConstantOfShape", "Range", "Loop", "If", "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"}


def _name_starts(case: Case, ops: set[str]) -> bool:
    """Whether it is a case of one of these, in its expanded form too."""
    return case.name.removeprefix("test_").startswith(tuple(op.lower() for op in ops))


def run(case: Case, folder: Path, *, examples: bool = False) -> Outcome:
    """examples: the first inputs are given to the compiler, whose sizes a file that leaves them open may need."""
    path = folder / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = tuple(map(_example, case.data[0][0])) if examples else None
            compiled = disc.compile(path, given, options=Options(cache=False))
        for inputs, expected in case.data:
            returned = compiled(*[_tensor(each) for each in _flat(inputs) if each is not None])
            results = list(returned) if isinstance(returned, list | tuple) else [returned]
            problem = difference(results, _flat(expected), case.rtol, case.atol, drawn=case.name.startswith(DRAWN))
            if problem:
                return Outcome("wrong", problem)
    except CompilerBug as error:
        return Outcome("raw", str(error)[:300])
    except UnsupportedOpError as error:
        return Outcome("refused", "; ".join(f"{op.op}: {op.reason}" for op in error.ops))
    except DiscError as error:
        return Outcome("refused", f"{type(error).__name__}: {str(error)[:300]}")
    except Exception as error:
        return Outcome("raw", f"{type(error).__name__}: {str(error)[:300]}")
    return Outcome("right")


def _example(value: object) -> object:
    return [_tensor(each) for each in value] if isinstance(value, list) else None if value is None else _tensor(value)


def _tensor(value: object) -> object:
    import ml_dtypes
    import torch

    array = _stored_as(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value))
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array)) if array.dtype.kind in "biuf" else value


def _stored_as(array: np.ndarray) -> np.ndarray:
    """An array of a type without arithmetic as disc takes and gives it: integers as their values, floats as their codes."""
    if array.dtype.name in ("int4", "int2"):
        return array.astype(np.int8)
    if array.dtype.name in ("uint4", "uint2"):
        return array.astype(np.uint8)
    return array.view(np.uint8) if array.dtype.name.startswith(("float8", "float4")) else array


def _flat(values: Sequence[object]) -> list[object]:
    """The items of sequences, in the place of these: as disc gives them."""
    return [item for each in values for item in (_flat(each) if isinstance(each, list | tuple) else [each])]


def difference(results: Sequence[object], expected: Sequence[object], rtol: float, atol: float, *, drawn: bool = False) -> str:
    """What is wrong, "" where nothing is. drawn: values are random, so only types and shapes are compared."""
    import torch

    if len(results) < len(expected):
        return f"{len(results)} results, not {len(expected)}"
    for have, want in zip(results, expected, strict=False):
        got = have.float().numpy() if isinstance(have, torch.Tensor) and have.dtype == torch.bfloat16 else np.asarray(have)
        wanted = _stored_as(numpy_helper.to_array(want) if isinstance(want, onnx.TensorProto) else np.asarray(want))
        if wanted.dtype.name == "bfloat16" and got.dtype == np.uint16:  # of a program without inputs, whose results are NumPy's
            got = (got.astype(np.uint32) << 16).view(np.float32)
        room = max(rtol, LAST_PLACES.get(wanted.dtype.name, 0.0))
        wanted = wanted.astype(np.float32) if wanted.dtype.name == "bfloat16" else wanted
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return f"{got.dtype}{list(got.shape)}, not {wanted.dtype}{list(wanted.shape)}"
        if not drawn and not np.allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=room, atol=max(atol, room * 1e-2), equal_nan=True
        ):
            return f"{got.reshape(-1)[:4]}, not {wanted.reshape(-1)[:4]}"
    return ""


def cause(reason: str) -> str:
    """A reason without names and numbers, to count by."""
    return re.sub(r"'[^']*'|\b[su]?\d+\b|\S+\.onnx\S*", "_", reason)[:160]


def _after(case: Case, folder: Path) -> Outcome:
    """What becomes of a case: as it is, and where that is refused, with its shapes as constants."""
    found = run(case, folder)
    if found.kind != "refused":
        return found
    if EXAMPLES_HELP.search(found.reason):
        given = run(case, folder, examples=True)
        if given.kind != "refused":
            return Outcome("right with examples") if given.kind == "right" else given
    again = with_constants(case)
    if again is None:
        return found
    fixed = run(again, folder)
    if EXAMPLES_HELP.search(fixed.reason):
        fixed = run(again, folder, examples=True)
    return Outcome("right with constants") if fixed.kind == "right" else fixed


def _work(order: Sequence[Case], folder: Path, out: Connection) -> None:
    for case in order:
        start = time.perf_counter()
        found = _after(case, folder)
        out.send((case.name, found, time.perf_counter() - start))
    out.close()


def outcomes(order: Sequence[Case], limit: float) -> Iterator[tuple[str, Outcome, float]]:
    """Of each case, in order, with its seconds. A process of its own runs up to BATCH of them, and ends with the case that takes more than
    `limit` seconds or kills it."""
    context = multiprocessing.get_context("fork")  # this process holds the cases, and has run nothing
    with tempfile.TemporaryDirectory() as folder:
        place = 0
        while place < len(order):
            into, out = context.Pipe(duplex=False)
            worker = context.Process(target=_work, args=(order[place : place + BATCH], Path(folder), out))
            worker.start()
            out.close()
            for case in order[place : place + BATCH]:
                try:
                    found = into.recv() if into.poll(limit) else (case.name, Outcome("slow", f"more than {limit:.0f} s"), limit)
                except EOFError:
                    worker.join()
                    found = (case.name, Outcome("raw", f"the process ended with {worker.exitcode}"), 0.0)
                yield found
                place += 1
                if found[1].kind == "slow" or (worker.exitcode or 0) != 0:
                    break
            worker.kill()
            worker.join()


def _known(log: Path | None) -> dict[str, Outcome]:
    lines = log.read_text().splitlines() if log is not None and log.exists() else []
    return {each["name"]: Outcome(each["kind"], each["reason"]) for each in map(json.loads, lines)}


def _report(found: Mapping[str, Outcome]) -> None:
    counts = Counter(each.kind for each in found.values())
    right = sum(count for kind, count in counts.items() if kind.startswith("right"))
    print(f"{len(found)} cases: {dict(counts)}; {right / max(1, len(found)):.1%} right")
    reasons = Counter(f"{each.kind}: {cause(each.reason)}" for each in found.values() if not each.kind.startswith("right"))
    for reason, count in reasons.most_common(80):
        print(f"{count:5} {reason}")


def _record(found: Mapping[str, Outcome], others: Mapping[str, Outcome], every: int) -> None:
    """Counts are of those that were chosen; the names are of `others` of the log too."""
    record: dict[str, object] = {"onnx": onnx.__version__, "every": every, "counts": dict(Counter(each.kind for each in found.values()))}
    found = {**others, **found}
    for kind in ("right", "right with constants", "right with examples"):
        record[kind] = sorted(name for name, each in found.items() if each.kind == kind)
    record["others"] = {
        name: f"{each.kind}: {cause(each.reason)}" for name, each in sorted(found.items()) if not each.kind.startswith("right")
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def operator_of(case: Case) -> str:
    """What a case is of, for counts."""
    if "_expanded" in case.name:
        return "operators in their standard's definition"
    ops = {node.op_type for node in case.model.graph.node} - {"Constant"}
    return next(iter(ops)) if len(ops) == 1 else "several operators"


def _findings(chosen: Sequence[Case], found: Mapping[str, Outcome]) -> dict[str, object]:
    """operators: name → outcome → cases; the names of those that are not right, with the reason. Cases that were not run are counted."""
    counts: dict[str, Counter[str]] = {}
    done = [case for case in chosen if case.name in found]
    for case in done:
        counts.setdefault(operator_of(case), Counter())[found[case.name].kind] += 1
    others = {name: f"{each.kind}: {cause(each.reason)}" for name, each in sorted(found.items()) if not each.kind.startswith("right")}
    totals = Counter(each.kind for each in found.values())
    return {
        "onnx": onnx.__version__,
        "not run": len(chosen) - len(done),
        "outcomes": dict(totals),
        "operators": {op: dict(counts[op]) for op in sorted(counts)},
        "others": others,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--every", type=int, default=1, help="only every N-th case")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a case")
    parser.add_argument("--log", type=Path, help="a file of outcomes, a line each; cases that it has are not run again")
    parser.add_argument("--again", action="store_true", help="with --log: those that it has, unless they are right, are run again")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    chosen = list(itertools.islice(cases(arguments.parts), 0, None, arguments.every))
    known = {name: each for name, each in _known(arguments.log).items() if not arguments.again or each.kind.startswith("right")}
    found = {case.name: known[case.name] for case in chosen if case.name in known}
    for name, outcome, seconds in outcomes([case for case in chosen if case.name not in known], arguments.limit):
        found[name] = outcome
        print(f"{name} {outcome.kind} {seconds:.2f} s {outcome.reason[:200]}", flush=True)
        if arguments.log is not None:
            with arguments.log.open("a") as log:
                log.write(json.dumps({"name": name, "kind": outcome.kind, "reason": outcome.reason}) + "\n")
    _report(found)
    if arguments.record:
        _record(found, known, arguments.every)
        finding("ONNX backend tests", "python tools/onnx_backend.py", _findings(chosen, found), FINDINGS)
    sys.exit(1 if any(each.kind in ("wrong", "raw", "slow") for each in found.values()) else 0)


if __name__ == "__main__":
    main()
