"""The standard's own test of ONNX operators (`onnx.backend.test`, node cases of the default domain), compiled and compared.

    python tools/onnx_backend.py                 counts by outcome, and the reasons of what is refused
    python tools/onnx_backend.py softmax cast    only cases with one of these in their names
    python tools/onnx_backend.py --every 4       a fourth of the cases
    python tools/onnx_backend.py --record        also writes tests/golden/onnx_backend.json

Outcomes: "right" is equal to the case's results within its own tolerances; "refused" is an error of `disc.errors`; "wrong" another result;
"raw" a CompilerBug, or any other exception. Shapes, axes and the like are inputs of many cases, so that what they decide depends on data.
"with constants" are the refused cases once more, with such inputs as initializers, as models have them. Results of 16 bits may differ by
two roundings.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import disc
from disc.config import Options
from disc.errors import CompilerBug, DiscError, UnsupportedOpError

LAST_PLACES = {"float16": 2**-9, "bfloat16": 2**-6}  # relative, what two roundings of these types differ by
RECORD = Path(__file__).resolve().parents[1] / "tests/golden/onnx_backend.json"


@dataclass(frozen=True)
class Case:
    """data: pairs of inputs and results."""

    name: str
    model: onnx.ModelProto
    data: list[tuple[Sequence[object], Sequence[object]]]
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
        np.asarray(value).dtype.kind in "iub" or _name_starts(case, {"Resize", "OneHot", "Dropout", "Training_dropout"})
    )


FIRST_DECIDES = {"ConstantOfShape", "Range", "Loop", "If", "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"}


def _name_starts(case: Case, ops: set[str]) -> bool:
    """Whether it is a case of one of these, in its expanded form too."""
    return case.name.removeprefix("test_").startswith(tuple(op.lower() for op in ops))


def run(case: Case, folder: Path) -> Outcome:
    path = folder / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = disc.compile(path, options=Options(cache=False))
        for inputs, expected in case.data:
            given = compiled(*[_tensor(each) for each in inputs])
            results = list(given) if isinstance(given, list | tuple) else [given]
            problem = difference(results, expected, case.rtol, case.atol)
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


def _tensor(value: object) -> object:
    import ml_dtypes
    import torch

    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array)) if array.dtype.kind in "biuf" else value


def difference(results: Sequence[object], expected: Sequence[object], rtol: float, atol: float) -> str:
    """What is wrong, "" where nothing is."""
    import torch

    if len(results) < len(expected):
        return f"{len(results)} results, not {len(expected)}"
    for have, want in zip(results, expected, strict=False):
        got = have.float().numpy() if isinstance(have, torch.Tensor) and have.dtype == torch.bfloat16 else np.asarray(have)
        wanted = numpy_helper.to_array(want) if isinstance(want, onnx.TensorProto) else np.asarray(want)
        room = max(rtol, LAST_PLACES.get(wanted.dtype.name, 0.0))
        wanted = wanted.astype(np.float32) if wanted.dtype.name == "bfloat16" else wanted
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return f"{got.dtype}{list(got.shape)}, not {wanted.dtype}{list(wanted.shape)}"
        if not np.allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=room, atol=max(atol, room * 1e-2), equal_nan=True):
            return f"{got.reshape(-1)[:4]}, not {wanted.reshape(-1)[:4]}"
    return ""


def cause(reason: str) -> str:
    """A reason without names and numbers, to count by."""
    return re.sub(r"'[^']*'|\b[su]?\d+\b|\S+\.onnx\S*", "_", reason)[:160]


def _right(outcomes: Mapping[str, Outcome]) -> list[str]:
    return sorted(name for name, each in outcomes.items() if each.kind == "right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--every", type=int, default=1, help="only every N-th case")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    outcomes: dict[str, Outcome] = {}
    constants: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in itertools.islice(cases(arguments.parts), 0, None, arguments.every):
            start = time.perf_counter()
            outcomes[case.name] = found = run(case, Path(folder))
            again = with_constants(case) if found.kind == "refused" else None
            if again is not None:
                constants[case.name] = run(again, Path(folder))
            shown = " ".join([found.kind, constants[case.name].kind if case.name in constants else ""])
            print(f"{case.name} {shown} {time.perf_counter() - start:.2f} s {constants.get(case.name, found).reason[:200]}", flush=True)
    counts = Counter(each.kind for each in outcomes.values())
    final = {**outcomes, **constants}
    print(f"{len(outcomes)} cases: {dict(counts)}; with constants: {dict(Counter(each.kind for each in final.values()))}")
    for reason, count in Counter(cause(each.reason) for each in final.values() if each.kind != "right").most_common(60):
        print(f"{count:5} {reason}")
    if arguments.record:
        record = {"onnx": onnx.__version__, "every": arguments.every, "counts": dict(counts), "right": _right(outcomes)}
        record |= {"right with constants": _right(constants)}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if any(each.kind in ("wrong", "raw") for each in final.values()) else 0)


if __name__ == "__main__":
    main()
