"""The symbols of a program as people meet them: what each is, its value for given inputs, and inputs for another value."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disc.artifact.bounds import MADE
from disc.artifact.manifest import InputRecord, Manifest, arguments_of
from disc.errors import InputTypeError, OutOfMemoryError, ShapeConstraintError, did_you_mean
from disc.shapes import parse_dim

_DIM = re.compile(r"(?P<name>.+)\.(?P<dim>\d+)")  # "x.1": dim 1 of input 'x'


def symbol_text(record: Mapping[str, object], manifest: Manifest) -> str:
    """ "S0 = dim 1 of input 'ids', 0 to 512, a multiple of 8"."""
    text = str(record["name"])
    if "what" in record:
        text += f" = {record['what']}"
    elif "source" in record:
        argument, _, dim = str(record["source"]).removeprefix("arg").partition(".")
        name = manifest["inputs"][int(argument)]["name"]
        text += f" = dim {dim} of input '{name}'" if dim else f" = the value of input '{name}'"
    text += f", {record['min']} to {record.get('max', 'any')}"
    return text + (f", a multiple of {record['divisor']}" if record["divisor"] != 1 else "")


def sizes_of(manifest: Manifest, inputs: Sequence[object]) -> dict[str, int]:
    """The value of every symbol for these inputs, but of those that kernels compute."""
    sizes: dict[str, int] = {}
    for record in manifest["symbols"]:
        source = record.get("source", MADE)
        if source != MADE:
            argument, _, dim = source.removeprefix("arg").partition(".")
            given = inputs[int(argument)]
            sizes[record["name"]] = int(given.shape[int(dim)]) if dim else int(given)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return sizes


def find_symbols(manifest: Manifest, text: str) -> list[str]:
    """Of "S0", or "S0,S2" for several that have the same size. Raises ShapeConstraintError."""
    return list(dict.fromkeys(_find_symbol(manifest, each.strip()) for each in text.split(",")))


def _find_symbol(manifest: Manifest, text: str) -> str:
    """The symbol of this name, or of a dim of an input ("x.1"). Raises ShapeConstraintError where there is none that inputs decide."""
    given = {record["name"]: record for record in manifest["symbols"] if record.get("source", MADE) != MADE}
    if text in given:
        return text
    found = _symbol_of_dim(manifest, text)
    if found in given:
        return found
    if any(text == record["name"] for record in manifest["symbols"]):
        raise ShapeConstraintError(f"'{text}' is a size that the model computes: only those of inputs can be chosen")
    known = ", ".join(symbol_text(record, manifest) for record in given.values())
    there = f"those of this model are: {known}" if known else "every size of this model is fixed"
    raise ShapeConstraintError(f"there is no symbol '{text}'{did_you_mean(text, given)}; {there}")


def _symbol_of_dim(manifest: Manifest, text: str) -> str:
    """ "S1" of "x.1"; "" for what is no dim of an input. Raises ShapeConstraintError for a dim that is fixed or computed from symbols."""
    match = _DIM.fullmatch(text)
    dims = next((each["dims"] for each in arguments_of(manifest) if match and each["name"] == match["name"]), None)
    if match is None or dims is None:
        return ""
    place = int(match["dim"])
    if place >= len(dims):
        raise ShapeConstraintError(f"input '{match['name']}' has {len(dims)} dims, counted from 0: there is no {text}")
    dim = dims[place]
    if isinstance(dim, int):
        raise ShapeConstraintError(f"dim {place} of input '{match['name']}' is fixed to {dim}")
    if any(record["name"] == dim for record in manifest["symbols"]):
        return dim
    raise ShapeConstraintError(f"dim {place} of input '{match['name']}' is {dim}: give the size of a symbol in it")


def inputs_at(manifest: Manifest, inputs: Sequence[object], symbols: Sequence[str], size: int) -> list[object]:
    """These inputs with another size of these symbols, and of every dim that follows from them; the values of a longer one repeat.

    Raises InputTypeError for an input that cannot be resized, being neither a NumPy array nor a tensor of PyTorch.
    """
    sizes = sizes_of(manifest, inputs) | dict.fromkeys(symbols, size)
    sources = {record.get("source") for record in manifest["symbols"] if record["name"] in symbols}
    records = arguments_of(manifest)
    changed = [
        _with_value(value, size) if f"arg{place}" in sources else _resized(record, value, sizes)
        for place, (record, value) in enumerate(zip(records, inputs, strict=False))
    ]
    return [*changed, *inputs[len(records) :]]  # a seed stays


def _with_value(scalar: Any, value: int) -> object:
    return type(scalar)(value) if isinstance(scalar, int | float) else scalar * 0 + value  # of the same kind and dtype


def _resized(record: InputRecord, value: Any, sizes: Mapping[str, int]) -> object:
    wanted = [dim if isinstance(dim, int) else parse_dim(dim).evaluate(sizes) for dim in record["dims"]]
    if not wanted or list(value.shape) == wanted:
        return value
    if isinstance(value, np.ndarray):
        check_memory(record["name"], wanted, value.itemsize)
        return np.zeros(wanted, value.dtype) if 0 in value.shape else np.ascontiguousarray(_repeated(value, wanted))
    if not hasattr(value, "new_zeros"):
        raise InputTypeError(f"input '{record['name']}' is a {type(value).__name__}: give a NumPy array or a tensor of PyTorch")
    return value.new_zeros(wanted) if 0 in value.shape else _repeated(value, wanted).contiguous()


def check_memory(name: str, sizes: Sequence[int], itemsize: int) -> None:
    """Before an input is made of sizes that somebody wrote. Raises OutOfMemoryError where it is larger than all memory of this machine: it
    might be granted, and the process ended when it fills it."""
    needed, there = math.prod(sizes) * itemsize, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        shape = ", ".join(map(str, sizes))
        raise OutOfMemoryError(
            f"input '{name}' of [{shape}] would take {needed / 2**30:,.1f} GiB: this machine has {there / 2**30:,.1f} GiB"
        )


def _repeated(value: Any, sizes: Sequence[int]) -> Any:
    """The array or tensor cut to these sizes, or repeated along dims that are shorter."""
    for axis, size in enumerate(sizes):
        if size != value.shape[axis]:
            value = value[(slice(None),) * axis + ([place % value.shape[axis] for place in range(size)],)]
    return value
