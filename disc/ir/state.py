"""Module attributes about the arguments and results of @main: `disc.state`, what there is besides the user's, `disc.state_in_place`,
`disc.replaces`, `disc.donated`, and `disc.complex`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from disc.ir.graph import parse_attributes

STATE = "disc.state"
IN_PLACE = "disc.state_in_place"  # the code may write the buffers in place
# Of an argument: it is complex to the user, and has one more dim of size 2 in the IR. Of the module: the numbers of such results.
COMPLEX = "disc.complex"
ROW_MAJOR = "disc.row_major"  # of an argument: the lines of the program that read its strides, for which it must come row-major
# Of the module: pairs of numbers, of a result and of the argument in whose place the caller puts it after each call.
REPLACES = "disc.replaces"
# Of the module: the numbers of the arguments that nothing else reads, in whose memory a call may put what it likes.
DONATED = "disc.donated"
SEED = "seed"  # the name of the argument that no user gives as one


@dataclass(frozen=True)
class State:
    """The last arguments are the buffers and, where `seeded`, the seed of the random numbers, tensor<i64>. The last results are the next
    values of the buffers and of the written arguments.

    buffers: names in the weight table, which has their first values; written: numbers of arguments.
    """

    buffers: tuple[str, ...] = ()
    written: tuple[int, ...] = ()
    seeded: bool = False

    def pairs(self, arguments: int, results: int) -> list[tuple[int, int]]:
        """(number of an argument, number of the result that is its next value), of those counts."""
        last = arguments - self.seeded
        changed = [*range(last - len(self.buffers), last), *self.written]
        return list(zip(changed, range(results - len(changed), results), strict=True))

    def attribute(self) -> ir.Attribute:
        """For the current context."""
        names = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in self.buffers])
        written = ir.DenseI64ArrayAttr.get(list(self.written))
        return ir.DictAttr.get({"buffers": names, "written": written, "seeded": ir.BoolAttr.get(self.seeded)})


def read_state(module: ir.Module) -> State | None:
    """None: the program is a function of its arguments."""
    found = parse_attributes(module.operation).get(STATE)
    if not isinstance(found, dict):
        return None
    return State(_texts(found["buffers"]), _numbers(found["written"]), bool(found["seeded"]))


def allow_in_place(module: ir.Module) -> None:
    """Lets the code write buffers in place, of a program that has any."""
    state = read_state(module)
    if state is not None and state.buffers:
        module.operation.attributes[IN_PLACE] = ir.UnitAttr.get(module.context)


def set_replaced(module: ir.Module, replaced: Mapping[int, int]) -> None:
    """replaced: number of a result → number of the argument in whose place the caller puts it."""
    if replaced:
        with module.context:
            module.operation.attributes[REPLACES] = ir.DenseI64ArrayAttr.get([number for pair in replaced.items() for number in pair])


def replaced_arguments(module: ir.Module) -> dict[int, int]:
    """As `set_replaced` has it."""
    numbers = _numbers(parse_attributes(module.operation).get(REPLACES))
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


def set_donated(module: ir.Module, donated: Collection[int]) -> None:
    """donated: numbers of arguments."""
    if donated:
        with module.context:
            module.operation.attributes[DONATED] = ir.DenseI64ArrayAttr.get(sorted(donated))


def donated_arguments(module: ir.Module) -> tuple[int, ...]:
    """As `set_donated` has them."""
    return _numbers(parse_attributes(module.operation).get(DONATED))


def complex_results(module: ir.Module) -> tuple[int, ...]:
    """The numbers of the results that are complex to the user."""
    return _numbers(parse_attributes(module.operation).get(COMPLEX))


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, tuple) else ()


def _numbers(values: object) -> tuple[int, ...]:
    return tuple(int(value) for value in values if isinstance(value, int)) if isinstance(values, Sequence) else ()
