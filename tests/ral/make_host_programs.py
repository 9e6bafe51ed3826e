"""Writes compiled host programs, with arguments and what Python says of the results, for tree_test.cc.

    python tests/ral/make_host_programs.py FOLDER

Per program: NAME.so, its code; NAME.fake.so, the same for a device of fake_device.h; NAME.signature; NAME.cases. That is a list of i64:
whether results may lie where inputs did, the number of cases; of each the inputs, then the outputs, then what each input holds afterwards. A tensor is its rank, its dims, its
elements; one of rank -1 is not compared.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import numpy as np  # noqa: E402
from host_programs import TARGET, Array, Written  # noqa: E402
from host_trees import TREES, random_tree  # noqa: E402

from disc.artifact.manifest import signature_bytes  # noqa: E402
from disc.codegen.backend import backend_of  # noqa: E402
from disc.codegen.host.steps import Launch, Mode, roots_of  # noqa: E402
from disc.codegen.plan.listing import Listing, Means  # noqa: E402
from disc.shapes import Dim  # noqa: E402
from disc.targets.x86 import read_target  # noqa: E402

SIZES = ((0, 0), (0, 3), (1, 1), (2, 7), (7, 3), (31, 5))
RANDOM = range(2000, 2012)
_CAST = re.compile(
    r"^(%\w+) = func\.constant @(\w+) : .*\n(%\w+) = builtin\.unrealized_conversion_cast \1 : (.*) to !llvm\.ptr$", re.MULTILINE
)


def recorded(written: Written) -> str:
    """The source in which what is launched is a record (fake_device.h): the address of the function, and how many arguments it takes."""
    words = {each.name: len(each.inputs) + len(each.results) + len(each.kernel.symbols) for each in written.program.launches}
    remote = Written(replace(written.program, checks=[], remote=True), written.kinds, written.texts)
    source = _CAST.sub(
        r"\1 = func.constant @\2 : \4\n\3_function = builtin.unrealized_conversion_cast \1 : \4 to !llvm.ptr\n"
        r"\3 = llvm.mlir.addressof @\2_record : !llvm.ptr\nllvm.store \3_function, \3 : !llvm.ptr, !llvm.ptr",
        remote.source,
    )
    for function in written.program.functions:
        launches = [step for step in function.block.walk() if isinstance(step, Launch)]
        records = [
            f"llvm.mlir.global internal @{each.name}_record(dense<[0, {words[each.name]}]> : tensor<2xi64>) : !llvm.array<2 x i64>\n"
            for each in launches
        ]
        head = f"func.func @{function.name}("
        source = source.replace(head, "".join(records) + head, 1)
    return source


def tensor(array: Array | None) -> list[int]:
    """As the file has it."""
    return [-1] if array is None else [array.ndim, *array.shape, *array.reshape(-1).tolist()]


def case(written: Written, sizes: tuple[int, ...]) -> list[int]:
    """One case."""
    inputs = written.inputs(sizes)
    block, ties = written.program.entry.block, written.program.entry.ties
    wanted = [np.asarray(each) for each in written.evaluate([each.copy() for each in inputs])]
    outputs = [each for number, each in enumerate(wanted) if number not in ties]
    after: list[Array | None] = []
    roots = roots_of(block)
    for number, (parameter, own) in enumerate(zip(written.program.entry.parameters, inputs, strict=True)):
        places = [place for place, parameter_number in ties.items() if parameter_number == number]
        same = [wanted[place] for place in places if wanted[place].shape == own.shape]
        same += [
            each
            for value, each in zip(block.values, wanted, strict=True)
            if roots.get(value) == parameter.value and parameter.mode is Mode.STATE and each.shape == own.shape
        ]
        after.append(own if parameter.mode is Mode.READ else same[0] if same else None)
    return [number for each in (*inputs, *outputs, *after) for number in tensor(each)]


def write(folder: Path, name: str, written: Written) -> None:
    """The four files of a program."""
    target = read_target(TARGET)
    (folder / f"{name}.so").write_bytes(written.code)
    (folder / f"{name}.fake.so").write_bytes(backend_of(target).assemble(Listing((), (), recorded(written)), target, Means()).code)
    manifest = written.manifest()
    (folder / f"{name}.signature").write_bytes(signature_bytes({**manifest, "weights": []}))
    lows = [written.program.env.range(Dim.symbol(symbol))[0] or 0 for symbol in written.program.sources]
    good = [sizes[: len(lows)] for sizes in SIZES if all(size >= low for size, low in zip(sizes, lows, strict=False))]
    numbers = [bool(written.program.spoiled), len(good), *(number for sizes in good for number in case(written, sizes))]
    (folder / f"{name}.cases").write_bytes(np.array(numbers, np.int64).tobytes())


def main() -> None:
    """Command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in TREES.items():
        write(folder, name, program())
    for seed in RANDOM:
        write(folder, f"random{seed}", random_tree(seed))
    (folder / "programs").write_text("".join(f"{name}\n" for name in (*TREES, *(f"random{seed}" for seed in RANDOM))))


if __name__ == "__main__":
    main()
