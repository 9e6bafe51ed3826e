"""The instructions of one function of a skeleton, as they are written."""

from __future__ import annotations

from collections.abc import Sequence

from disc.artifact.skeletons import language_of
from disc.frontend.batched.functions import Function
from disc.frontend.batched.skeleton_values import Constants, Unsayable
from disc.ral import _ral

OPS = {name: number for number, (name, _) in enumerate(_ral.SKELETON_OPS)}
LANGUAGE = language_of(_ral.SKELETON_OPS)


class NeedsPython(Exception):
    """Code that has no instructions. line: of the user's file; new: it only has not run yet."""

    def __init__(self, reason: str, file: str, line: int, *, new: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.file, self.line, self.new = reason, file, line, new


class Instructions:
    """code: the instructions; lines: (place, line); count: registers in use, the first of which are the parameters; memo: whether results
    may be used again for the same arguments."""

    def __init__(self, constants: Constants, function: Function, parameters: Sequence[str]) -> None:
        self.name, self.file, self.memo = function.name, function.file, not function.changes_arguments()
        self.parameters = list(parameters)
        self.code: list[int] = []
        self.lines: list[list[int]] = []
        self.count = len(self.parameters)
        self.line: int = function.original.__code__.co_firstlineno
        self._constants = constants

    @property
    def registers(self) -> int:
        return max(self.count, 1)

    def refused(self, what: str) -> NeedsPython:
        """The error that says so of the line that is written."""
        return NeedsPython(what, self.file, self.line)

    def op(self, name: str, *operands: int) -> int:
        """Adds an instruction; its place."""
        place = len(self.code)
        if not self.lines or self.lines[-1][1] != self.line:
            self.lines.append([place, self.line])
        self.code += [OPS[name], *operands]
        return place

    def fresh(self) -> int:
        """A register more."""
        self.count += 1
        return self.count - 1

    def constant(self, value: object, target: int | None = None) -> int:
        """The register that gets a constant. Raises NeedsPython."""
        try:
            place = self._constants.place(self._constants.number(value))
        except Unsayable as reason:
            raise self.refused(f"{reason}") from None
        register = self.fresh() if target is None else target
        self.op("const", register, place)
        return register

    def jump(self, op: str, *operands: int) -> int:
        """A jump to a place that is not known yet; where to write it."""
        self.op(op, *operands, -1)
        return len(self.code) - 1

    def here(self, *jumps: int) -> None:
        """Where these jumps go."""
        for each in jumps:
            self.code[each] = len(self.code)
