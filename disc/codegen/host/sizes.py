"""Conditions on sizes in the host code: the checks on entry, what steps rely on, and what branches and loops ask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from disc.codegen.host.abi import TENSOR_BYTES, TENSOR_OFFSETS
from disc.codegen.host.conditions import covered
from disc.codegen.host.flow import MOST_BYTES, HostBuilder
from disc.codegen.host.program import Check, Program, Source
from disc.codegen.mlir.builder import Variable
from disc.shapes import Comparison, Condition, Dim, Truth

_SIGNS = {"==": "eq", "!=": "ne", "<=": "sle", "<": "slt", ">=": "sge", ">": "sgt"}


def _multiplies(dim: Dim) -> bool:
    """Whether sizes are multiplied in `dim`, at any depth."""
    pending, seen = [dim], {dim}
    while pending:
        current = pending.pop()
        if any(sum(power for _, power in product) > 1 for _, product in current.monomials):
            return True
        fresh = {operand for atom in current.atoms() for operand in atom.operands()} - seen
        pending += fresh
        seen |= fresh
    return False


def _may_wrap(dim: Dim) -> bool:
    """Whether 64 bits may not hold the expression though they hold its symbols with room: all but a symbol plus a small number."""
    rest = dim - dim.constant_term
    return not (rest.is_const or rest.sole_atom is not None) or abs(dim.constant_term) > MOST_BYTES


class Sizes:
    """Emits conditions for one function; adds the checks of what steps rely on to the program's."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.b = HostBuilder(program.env, self._check_divisor)
        self._left = set[int]()  # checks that steps have yet to make

    # --- inputs ---------------------------------------------------------------------------------------------------------

    def input_field(self, argument: int, field: str) -> str:
        """A pointer out of an input's ral_tensor."""
        b = self.b
        slot = b.op(f"llvm.getelementptr %inputs[{argument * TENSOR_BYTES + TENSOR_OFFSETS[field]}] : (!llvm.ptr) -> !llvm.ptr, i8")
        return b.op(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")

    def load_symbols(self) -> None:
        """Binds the symbols of the inputs."""
        for name, source in self.program.sources.items():
            self._define(name, self._source_value(source))

    def _define(self, name: str, value: str) -> None:
        signed = self.program.env.le(0, Dim.symbol(name)) is not Truth.YES
        self.b.variables[name] = Variable(name, value, self.b.scope, signed=signed)

    def _source_value(self, source: Source) -> str:
        if source.dim is None:
            data = self.input_field(source.argument, "data")
            return self.b.read(data) if self.program.remote else self.b.op(f"llvm.load {data} : !llvm.ptr -> i64")
        return self._input_dim(source.argument, source.dim)

    def _input_dim(self, argument: int, dim: int) -> str:
        b = self.b
        slot = b.op(f"llvm.getelementptr {self.input_field(argument, 'dims')}[{dim}] : (!llvm.ptr) -> !llvm.ptr, i64")
        return b.op(f"llvm.load {slot} : !llvm.ptr -> i64")

    # --- checks on entry ------------------------------------------------------------------------------------------------

    def check_entry(self) -> None:
        """All checks that the program comes with, but those that kernels report, and those of sizes that steps bind."""
        late = self.program.late_checks
        self._left = set(late)
        self.check(
            [number for number, check in enumerate(self.program.checks) if check.kind not in ("index", "library") and number not in late]
        )

    def check(self, numbers: Sequence[int]) -> None:
        """Leaves where one of these checks of the program fails."""
        for number in numbers:
            self._check(number, self.program.checks[number])
        self._left.difference_update(numbers)
        self.b.checked = not self._left

    def _check(self, number: int, check: Check) -> None:
        b = self.b
        if check.condition is not None:
            assert isinstance(check.actual, Dim)
            good = self._holds(check.condition)
            b.leave_unless(good, number, b.scalar(check.actual), b.scalar(check.expected))
            return
        actual = self._input_dim(*check.actual) if isinstance(check.actual, tuple) else b.scalar(check.actual)
        expected = b.scalar(check.expected)
        if check.kind == "divides":
            rest = b.op(f"arith.remsi {actual}, {expected} : i64")
            good = b.op(f"arith.cmpi eq, {rest}, {b.index(0)} : i64")
        elif check.kind == "broadcasts":
            one = b.op(f"arith.cmpi eq, {actual}, {b.index(1)} : i64")
            good = b.op(f"arith.ori {one}, {b.op(f'arith.cmpi eq, {actual}, {expected} : i64')} : i1")
        else:
            comparison = {"equal": "eq", "at_least": "sge", "at_most": "sle"}[check.kind]
            good = b.op(f"arith.cmpi {comparison}, {actual}, {expected} : i64")
        b.leave_unless(good, number, actual, expected)

    def _holds(self, condition: Condition) -> str:
        """The i1 of a condition; false where 64 bits may not hold one of its sizes."""
        return self._any_of([[self._guarded(each) for each in conjunction] for conjunction in condition.alternatives])

    def _any_of(self, alternatives: Sequence[Sequence[str]]) -> str:
        b = self.b
        every = [reduce(lambda left, right: b.op(f"arith.andi {left}, {right} : i1"), each) for each in alternatives]
        return reduce(lambda left, right: b.op(f"arith.ori {left}, {right} : i1"), every)

    def _guarded(self, comparison: Comparison) -> str:
        b = self.b
        good = self._compare(comparison)
        for side in (comparison.left, comparison.right):
            if _multiplies(side):
                good = b.op(f"arith.andi {good}, {b.fits(side)} : i1")
        return good

    def _compare(self, comparison: Comparison) -> str:
        b = self.b
        return b.op(f"arith.cmpi {_SIGNS[comparison.sign]}, {b.scalar(comparison.left)}, {b.scalar(comparison.right)} : i64")

    def _check_divisor(self, size: Dim, value: str) -> None:
        b = self.b
        number = self._add("divisor", size, Dim.of(0), f"{self.program.describe(size)} must not be {{expected}}")
        good = b.op(f"arith.cmpi ne, {value}, {b.index(0)} : i64")
        b.leave_unless(good, number, value, b.index(0))

    def _add(self, kind: str, actual: Dim, expected: Dim, message: str) -> int:
        self.program.checks.append(Check(kind, actual, expected, message))
        return len(self.program.checks) - 1

    # --- what steps rely on ---------------------------------------------------------------------------------------------

    def asks(self, condition: Condition) -> str:
        """The i1 of a condition that a branch or loop asks, whose sizes must fit."""
        for each in condition.comparisons():
            self.require_fits(each.left)
            self.require_fits(each.right)
        return self._any_of([[self._compare(each) for each in conjunction] for conjunction in condition.alternatives])

    def value(self, size: Dim) -> str:
        """The value of a size that a step hands on, which must fit."""
        self.require_fits(size)
        return self.b.scalar(size)

    def require_fits(self, size: Dim) -> None:
        """Leaves where computing a size in 64 bits might wrap."""
        if not size.is_const and _may_wrap(size):
            text = f"{self.program.describe(size)} is too large: got {{actual}}"
            self.b.leave_unless(self.b.fits(size), self._add("size", size, Dim.of(MOST_BYTES), text), self.b.scalar(size), self.b.index(0))

    def require_equal(self, given: Sequence[Dim], wanted: Sequence[Dim], what: str) -> None:
        """Leaves unless two shapes of one rank are the same."""
        for left, right in zip(given, wanted, strict=True):
            if self.program.env.equal(left, right) is not Truth.YES:
                self._require("eq", left, right, f"{what}: a dim {{actual}} must be {{expected}}")

    def require_at_most(self, less: Dim, more: Dim, what: str) -> None:
        """Leaves unless a size is at most another."""
        if not self.program.env.at_most(less, more):
            self._require("sle", less, more, f"{what}: {{actual}} must be at most {{expected}}")

    def _require(self, how: str, left: Dim, right: Dim, message: str) -> None:
        b = self.b
        values = self.value(left), self.value(right)
        good = b.op(f"arith.cmpi {how}, {values[0]}, {values[1]} : i64")
        b.leave_unless(good, self._add("size", left, right, message), *values)

    def bind(self, name: str, value: str, given: Sequence[Dim] = (), checks: Sequence[int] = ()) -> None:
        """Binds a symbol to a size that a step gives, and checks what is declared of it.

        given: what the size may be, all of which has been checked to fit (`value`); where these prove something it is not checked. checks:
        the numbers of the program's that come next, for one that says the same in the user's words.
        """
        stated = covered(each for number in checks if (each := self.program.checks[number].condition) is not None)
        b, env = self.b, self.program.env
        self._define(name, value)
        symbol = Dim.symbol(name)
        low, high = env.range(symbol)
        said = low is not None and ("at_least", symbol, Dim.of(low)) in stated
        if low is None or (not said and not (given and all(env.at_most(low, each) for each in given))):
            self._limit(name, value, "sge", -MOST_BYTES if low is None else low)
        said = high is not None and ("at_most", symbol, Dim.of(high)) in stated
        if high is None or (not said and not (given and all(env.at_most(each, high) for each in given))):
            self._limit(name, value, "sle", MOST_BYTES if high is None else high)
        divisor = env.divisor(symbol)
        if divisor > 1 and not (given and all(env.divides(divisor, each) is Truth.YES for each in given)):
            rest = b.op(f"arith.remsi {value}, {b.index(divisor)} : i64")
            what = self.program.describe(symbol)
            number = self._add("size", symbol, Dim.of(divisor), f"{what} must be a multiple of {divisor}: got {{actual}}")
            b.leave_unless(b.op(f"arith.cmpi eq, {rest}, {b.index(0)} : i64"), number, value, b.index(divisor))

    def _limit(self, name: str, value: str, how: str, limit: int) -> None:
        b = self.b
        words = {"sge": "at least", "sle": "at most"}[how]
        what = self.program.describe(Dim.symbol(name))
        number = self._add("size", Dim.symbol(name), Dim.of(limit), f"{what} must be {words} {limit}: got {{actual}}")
        b.leave_unless(b.op(f"arith.cmpi {how}, {value}, {b.index(limit)} : i64"), number, value, b.index(limit))
