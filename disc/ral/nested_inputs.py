"""Arguments of a call that hold tensors, as the model's own do → the inputs one after the other.

    exe({"a": a, "b": (b, c)}, [d])         # of inputs "x_a", "x_b_0", "x_b_1", "y_0": a, b, c, d

Names of inputs are those of arguments with keys, fields and places behind them. What does not fit these is left as it is, for the call to
refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence


def spread(inputs: Sequence[object], names: Sequence[str]) -> tuple[object, ...] | None:
    """The `inputs` with what containers hold in their place, in the order of `names`, of all inputs; None where these do not say so."""
    found, rest = list[object](), [_plain(name) for name in names]
    for value in inputs:
        if not _holds(value):
            found.append(value)
            continue
        held = list(_leaves(value, ""))
        block = rest[len(found) : len(found) + len(held)]
        prefixes = [block[0].removesuffix(path) for path, _ in held if block and block[0].endswith(path)]
        arranged = next((each for each in (_arranged(held, prefix) for prefix in prefixes) if sorted(each) == sorted(block)), None)
        if arranged is None and held:
            return None
        found += [arranged[name] for name in block] if arranged is not None else []
    return tuple(found)


def spread_named(named: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    """The same of inputs by name; those that do not fit are left."""
    known, found = {_plain(name): name for name in names}, dict[str, object]()
    for name, value in named.items():
        arranged = _arranged(list(_leaves(value, "")), _plain(name)) if _holds(value) and name not in names else {}
        fits = bool(arranged) and known.keys() >= arranged.keys()
        found |= {known[each]: leaf for each, leaf in arranged.items()} if fits else {name: value}
    return found


def _holds(value: object) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _arranged(held: Sequence[tuple[str, object]], prefix: str) -> dict[str, object]:
    """Nothing where two would have one name."""
    found = {prefix + path: leaf for path, leaf in held}
    return found if len(found) == len(held) else {}


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        parts = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        keys = getattr(value, "_fields", range(len(value)))
        parts = [(str(key), each) for key, each in zip(keys, value, strict=True)]
    else:
        yield path, value
        return
    for key, each in parts:
        yield from _leaves(each, f"{path}_{_plain(key)}")


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name).lower()
