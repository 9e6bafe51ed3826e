"""What a model takes and gives, read from its manifest, and whether the sizes of a request fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disc.artifact.bounds import SHARED
from disc.artifact.manifest import Manifest, arguments_of, results_of
from disc.errors import ArtifactError, RequestError
from disc.serving.datatypes import OF_DTYPE, Datatype
from disc.serving.packing import layout_of
from disc.shapes import Dim, parse_dim


@dataclass(frozen=True)
class TensorSpec:
    """One input or output. dims: a size, or an expression of symbols."""

    name: str
    datatype: Datatype
    dims: tuple[int | Dim, ...]

    @property
    def shape(self) -> list[int]:
        """As the protocol's metadata has it: -1 = any size."""
        return [dim if isinstance(dim, int) else -1 for dim in self.dims]


@dataclass(frozen=True)
class Batch:
    """The dim along which requests may be joined, as the compiler proved. inputs, outputs: the axis of each; SHARED for an input without
    rows, which has to be equal. most: rows, None for any number."""

    symbol: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    most: int | None


@dataclass(frozen=True)
class _Range:
    least: int  # elements of a dim
    most: int | None  # None: without end
    divisor: int  # of every size


class Signature:
    """The inputs, outputs, symbols and the batch dim of one model."""

    def __init__(self, manifest: Manifest) -> None:
        """The inputs and outputs of a packed program are described as those of the program before packing, which is the server's concern.

        Raises ArtifactError for a manifest that contradicts itself.
        """
        try:
            self.packed = layout_of(manifest)
            self.structures = manifest.get("structures")
            self.skeleton = manifest.get("skeleton")
            self._read(_as_users_know_it(manifest))
        except (ValueError, KeyError, IndexError) as error:
            raise ArtifactError(f"the manifest contradicts itself: {type(error).__name__}: {error}") from error

    def _read(self, manifest: Manifest) -> None:
        self.inputs = tuple(_spec(record["name"], record["dtype"], record["dims"]) for record in arguments_of(manifest))
        self.outputs = tuple(
            _spec(record["name"], record["dtype"], record.get("dims", ["?"] * record["rank"])) for record in results_of(manifest)
        )
        self.positions = {spec.name: position for position, spec in enumerate(self.inputs)}
        self._ranges = {each["name"]: _Range(each["min"] or 0, each.get("max"), each["divisor"]) for each in manifest["symbols"]}
        self._first = self._first_places()
        self.batch = self._batch(manifest)

    def _first_places(self) -> dict[str, tuple[int, int]]:
        """Where each plain symbol is first seen: (input, axis)."""
        found: dict[str, tuple[int, int]] = {}
        for position, spec in enumerate(self.inputs):
            for axis, dim in enumerate(spec.dims):
                if isinstance(dim, Dim) and str(dim) == next(iter(dim.symbols()), None):
                    found.setdefault(str(dim), (position, axis))
        return found

    def most(self, name: str, axis: int) -> int | None:
        """The largest size of a dim of an input; None: there is no bound."""
        dim = self.inputs[self.positions[name]].dims[axis]
        bounds = self._ranges.get(str(dim))
        return dim if isinstance(dim, int) else bounds.most if bounds is not None else None

    def places(self) -> dict[str, str]:
        """Where each symbol is first seen, as INPUT.AXIS."""
        return {name: f"{self.inputs[position].name}.{axis}" for name, (position, axis) in self._first.items()}

    def _batch(self, manifest: Manifest) -> Batch | None:
        record = manifest.get("batch")
        if record is None:
            return None
        inputs, outputs = tuple(record["inputs"]), tuple(record["outputs"])
        rows = [(spec, axis) for spec, axis in zip(self.inputs, inputs, strict=True) if axis != SHARED]
        results = zip(self.outputs, outputs, strict=True)
        wrong = any(axis < 0 or isinstance(spec.dims[axis], int) for spec, axis in (*rows, *results))
        if record["symbol"] not in self._first or not rows or wrong:
            raise ValueError("its batch dim is not one of its dims")
        firsts = {str(spec.dims[axis]) for spec, axis in rows}
        bounds = [each.most for name, each in self._ranges.items() if name in firsts and each.most is not None]
        return Batch(record["symbol"], inputs, outputs, min(bounds, default=None))

    def sizes(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The size of every symbol for inputs of these shapes. Raises RequestError where they do not fit the model.

        The runtime checks the same for every call, but for joined requests it would see only the sum of their rows.
        """
        sizes: dict[str, int] = {}
        for spec, shape in zip(self.inputs, shapes, strict=True):
            if len(shape) != len(spec.dims):
                raise RequestError(f"input '{spec.name}' must have {len(spec.dims)} dims, got {len(shape)}")
            for dim, size in zip(spec.dims, shape, strict=True):
                if isinstance(dim, Dim) and str(dim) in self._first:
                    sizes.setdefault(str(dim), size)
        for spec, shape in zip(self.inputs, shapes, strict=True):
            self._check(spec, shape, sizes)
        for name, size in sizes.items():
            self._check_range(name, size)
        return sizes

    def _check(self, spec: TensorSpec, shape: tuple[int, ...], sizes: Mapping[str, int]) -> None:
        for axis, (dim, size) in enumerate(zip(spec.dims, shape, strict=True)):
            if isinstance(dim, int):
                expected = dim
            elif all(name in sizes for name in dim.symbols()):
                expected = dim.evaluate(sizes)
            else:
                continue  # depends on the value of an input: the runtime checks it
            if size != expected:
                words = "" if isinstance(dim, int) or str(dim) not in self._first else f" (dim {self._words(str(dim))})"
                raise RequestError(f"dim {axis} of input '{spec.name}' must be {expected}{words}, got {size}")

    def _words(self, symbol: str) -> str:
        position, axis = self._first[symbol]
        return f"{axis} of input '{self.inputs[position].name}'"

    def _check_range(self, name: str, size: int) -> None:
        bounds = self._ranges.get(name)
        if bounds is None:
            return
        if size < bounds.least or (bounds.most is not None and size > bounds.most) or size % bounds.divisor:
            words = [f"at least {bounds.least}"] if bounds.least > 0 else []
            words += [f"at most {bounds.most}"] if bounds.most is not None else []
            words += [f"a multiple of {bounds.divisor}"] if bounds.divisor != 1 else []
            raise RequestError(f"dim {self._words(name)} must be {', '.join(words)}, got {size}")

    def output_elements(self, sizes: Mapping[str, int]) -> int:
        """How many elements the largest output has for these sizes; outputs whose sizes depend on values count as 0."""
        largest = 0
        for spec in self.outputs:
            count = 1
            for dim in spec.dims:
                if isinstance(dim, int):
                    count *= dim
                elif all(name in sizes for name in dim.symbols()):
                    count *= dim.evaluate(sizes)
                else:
                    count = 0
            largest = max(largest, count)
        return largest


def _as_users_know_it(manifest: Manifest) -> Manifest:
    """A packed program's manifest with the tables of the program before."""
    record = manifest.get("packed")
    if record is None:
        return manifest
    return {**manifest, "inputs": record["inputs"], "outputs": record["results"], "symbols": record["symbols"]}


def _spec(name: str, dtype: str, dims: Sequence[int | str]) -> TensorSpec:
    return TensorSpec(name, OF_DTYPE[dtype], tuple(_dim(dim) for dim in dims))


def _dim(text: int | str) -> int | Dim:
    dim = Dim.of(text) if isinstance(text, int) else parse_dim("unknown" if text == "?" else text)
    return dim.const if dim.is_const else dim
