"""Inputs of `disc run`, `bench` and `explain`: from .npy files, or random of given sizes."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from numpy.lib.format import MAGIC_PREFIX

from disc.artifact.manifest import InputRecord, Manifest, arguments_of
from disc.artifact.structures import StructuresRecord
from disc.cli.output import type_text
from disc.errors import InputRankError, InputTypeError, ShapeConstraintError, counted
from disc.explain.symbols import check_memory, find_symbols
from disc.ir.weights import STORAGE
from disc.ral.block_programs import MOST_NODES
from disc.ral.flat_values import flat_instances
from disc.ral.nested import flat_arrays
from disc.shapes import parse_dim

Array = npt.NDArray[np.generic]

RANDOM_HELP = (
    "Random inputs by name: 'ids=2x17,mask=2x17'. Floats are normal, integers 0 or 1, or of a range: 'ids=2x17:0..30000' "
    "(the end is left out). Inputs of static sizes may be left out; without names the entries are taken in order. May be repeated."
)
SWEEP_HELP = (
    "Time over the sizes of one symbol or dim, the others as in the inputs: 'S1=1:512' (powers of two, what lies next and between), "
    "'S1=1:512:32' (each 32nd), 'S1=1,8,100', 'x.1=1:512' (the size of dim 1 of input 'x'), 'S0,S2=1:64' (both have the same)."
)
MOST_SIZES = 1000  # of a sweep
_RANGE = re.compile(r"(?P<first>\d+):(?P<last>\d+)(?::(?P<step>\d+))?")
_RANDOM = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<sizes>\d+(?:x\d+)*)?(?::(?P<low>-?\d+)\.\.(?P<high>-?\d+))?")


def inputs_of(manifest: Manifest, files: Sequence[str], random: Sequence[str]) -> list[Array]:
    """As `given_inputs`; a model over structures also takes one JSON file with a structure, or a list of some."""
    record, skeleton = manifest.get("structures"), manifest.get("skeleton")
    nested = [each.rpartition("=")[2] for each in files if each.endswith(".json")]
    if (record is None and skeleton is None) or not nested:
        return given_inputs(arguments_of(manifest), files, random)
    if len(files) > 1 or random:
        raise InputRankError("a JSON file has whole structures: give one, and no other inputs")
    found = _json(nested[0])
    instances = found if isinstance(found, list) else [found]
    if skeleton is not None:
        return list(flat_instances(skeleton, instances, MOST_NODES))
    if not all(isinstance(each, dict) for each in instances):
        raise InputTypeError(f"{nested[0]} is neither a JSON object nor a list of objects")
    return list(flat_arrays(cast("StructuresRecord", record), cast("list[Mapping[str, object]]", instances), MOST_NODES))


def _json(path: str) -> object:
    """Raises InputTypeError."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputTypeError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputTypeError(f"{path} is no JSON: {error}") from error
    except RecursionError as error:
        raise InputTypeError(f"{path} nests deeper than JSON is read: give the structure as .npy files") from error


@dataclass(frozen=True)
class _Request:
    """One entry of --random: the sizes, and the range [low, high) of integers."""

    sizes: tuple[int, ...]
    low: int
    high: int


def given_inputs(records: Sequence[InputRecord], files: Sequence[str], random: Sequence[str]) -> list[Array]:
    """All inputs, from `[name=]file.npy` texts and then from `random`.

    Raises InputRankError for missing and unknown ones, InputTypeError for files that are no arrays.
    """
    found = _by_name(records, "--input", files)
    arrays: dict[str, Array] = {name: _read(path) for name, path in found.items()}
    rest = [record for record in records if record["name"] not in arrays]
    if random:
        return _merged(records, arrays, random_inputs(rest, ",".join(random)))
    if rest:
        names = ", ".join(f"'{record['name']}' ({type_text(record['dtype'], record['dims'])})" for record in rest)
        raise InputRankError(f"missing {names}: give --input NAME=FILE.npy for each, or --random {example_sizes(rest)}")
    return _merged(records, arrays, {})


def _merged(records: Sequence[InputRecord], *parts: dict[str, Array]) -> list[Array]:
    merged = {name: array for part in parts for name, array in part.items()}
    return [merged[record["name"]] for record in records]


def example_sizes(records: Sequence[InputRecord]) -> str:
    """A text that `random_inputs` takes, with 8 for each symbol."""
    eights = defaultdict[str, int](lambda: 8)
    sizes = [[dim if isinstance(dim, int) else parse_dim(dim).evaluate(eights) for dim in record["dims"]] for record in records]
    return ",".join(f"{record['name']}={'x'.join(map(str, each))}" for record, each in zip(records, sizes, strict=True))


def random_inputs(records: Sequence[InputRecord], text: str) -> dict[str, Array]:
    """An array for each input, the same for the same text.

    Raises InputRankError for missing and unknown inputs, ShapeConstraintError for text that is no size or the wrong rank.
    """
    entries = _by_name(records, "--random", [entry for entry in text.split(",") if entry])
    generator = np.random.default_rng(0)
    return {record["name"]: _random(record, _request(record, entries.get(record["name"])), generator) for record in records}


def _by_name(records: Sequence[InputRecord], option: str, entries: Sequence[str]) -> dict[str, str]:
    """Input name → the text after `name=`; entries without a name take the inputs in order."""
    names = [record["name"] for record in records]
    found: dict[str, str] = {}
    for position, entry in enumerate(entries):
        name, equals, value = entry.partition("=")
        if not equals:
            if position >= len(names):
                raise InputRankError(f"{option} {entry}: the model has only {counted(len(names), 'input')}")
            name, value = names[position], entry
        if name not in names or name in found:
            problem = "is given twice" if name in found else f"is no input; the inputs are {', '.join(map(repr, names))}"
            raise InputRankError(f"{option} {entry}: '{name}' {problem}")
        found[name] = value
    return found


def _read(path: str) -> Array:
    try:
        with open(path, "rb") as file:
            start = file.read(len(MAGIC_PREFIX))
        if start.startswith(b"PK"):
            raise InputTypeError(f"{path} holds several arrays; give one .npy file per input")
        if start != MAGIC_PREFIX:
            raise InputTypeError(f"{path} is no .npy file, which numpy.save(path, array) writes")
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputTypeError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        reason = "it holds Python objects, which reading would run" if "allow_pickle" in str(error) else str(error)
        raise InputTypeError(f"{path} cannot be read as a .npy file: {reason}") from error


def _request(record: InputRecord, text: str | None) -> _Request:
    declared = type_text(record["dtype"], record["dims"])
    if text is None:
        sizes = tuple(dim for dim in record["dims"] if isinstance(dim, int))
        if len(sizes) < len(record["dims"]):
            raise InputRankError(f"missing sizes for '{record['name']}' ({declared}): add {record['name']}=SIZES, such as 2x17")
        return _Request(sizes, 0, 2)
    match = _RANDOM.fullmatch(text)
    if match is None:
        raise ShapeConstraintError(f"'{text}' is no size: write {record['name']}=2x17, or {record['name']}=2x17:0..30000 with a range")
    sizes = tuple(int(size) for size in (match["sizes"] or "").split("x") if size)
    if len(sizes) != len(record["dims"]):
        raise ShapeConstraintError(f"input '{record['name']}' is {declared}: give {counted(len(record['dims']), 'size')}, not {len(sizes)}")
    low, high = (int(match["low"]), int(match["high"])) if match["low"] else (0, 2)
    if low >= high:
        raise ShapeConstraintError(f"'{text}': the range {low}..{high} is empty")
    return _Request(sizes, low, high)


def _random(record: InputRecord, request: _Request, generator: np.random.Generator) -> Array:
    dtype = record["dtype"]
    check_memory(record["name"], request.sizes, 8)  # as they are drawn
    if dtype == "bf16":  # its 16 bits are the upper half of f32's
        bits = generator.standard_normal(request.sizes).astype(np.float32).view(np.uint32) >> 16
        return np.asarray(bits, np.uint16)
    if dtype.startswith("f"):
        return np.asarray(generator.standard_normal(request.sizes), STORAGE[dtype])
    return np.asarray(generator.integers(request.low, request.high, request.sizes), STORAGE[dtype])


def swept(manifest: Manifest, text: str) -> tuple[str, list[int]]:
    """The symbol and its sizes, of "S1=1:512" and the like; of a range without a step, those that the symbol may have.

    Raises ShapeConstraintError for other text, and for a symbol that is not there.
    """
    name, equals, wanted = text.rpartition("=")
    match = _RANGE.fullmatch(wanted)
    if not equals or not (match or re.fullmatch(r"\d+(,\d+)*", wanted)):
        raise ShapeConstraintError(f"--sweep {text}: write S1=1:512, S1=1:512:32 or S1=1,8,100, with the symbol or dim that varies")
    symbols = find_symbols(manifest, name)
    if match is None:
        return name, [int(size) for size in wanted.split(",")]
    first, last = int(match["first"]), int(match["last"])
    step = int(match["step"] or 1)
    if first > last or step < 1:
        raise ShapeConstraintError(f"--sweep {text}: the range {wanted} is empty")
    if match["step"] is None:
        divisor = math.lcm(*(record["divisor"] for record in manifest["symbols"] if record["name"] in symbols))
        return name, _telling_sizes(first, last, divisor)
    if (last - first) // step >= MOST_SIZES:
        raise ShapeConstraintError(
            f"--sweep {text}: these are {(last - first) // step + 1} sizes, more than {MOST_SIZES}: take a larger step"
        )
    return name, list(range(first, last + 1, step))


def _telling_sizes(first: int, last: int, divisor: int) -> list[int]:
    """Both ends and, in units of `divisor`, between them powers of two, the sizes behind these, and those half way to the next: where other
    versions begin to run, and where a remainder is left."""
    powers = (divisor << exponent for exponent in range(64))
    found = {size for power in powers for size in (power, power + divisor, power + power // divisor // 2 * divisor)}
    ends = {first, last} if divisor == 1 else {-(-first // divisor) * divisor, last // divisor * divisor}
    return sorted(size for size in found | ends if first <= size <= last) or [first]
