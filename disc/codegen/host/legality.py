"""What a host program must be for its plan and code to be right: each rule raises CompilerBug where it is broken.

Every value is written once, before it is read, in the block that reads it or one around; so is every symbol bound. A value in whose memory
something else is put is not read afterwards, and its memory may be written: it was written in the same block or, for a branch, in one
around outside of which no loop begins, or it is what a loop carries, or a donated or state parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disc.codegen.host.conditions import covered
from disc.codegen.host.lifetimes import last_reads, symbols_of
from disc.codegen.host.program import Program
from disc.codegen.host.steps import Block, Call, Copy, Fill, Function, If, Mode, Read, Step, Value, While, roots_of
from disc.errors import CompilerBug
from disc.shapes import Dim, dim_min


def verify(program: Program) -> None:
    """All rules. Raises CompilerBug."""
    checker = _Checker(program)
    for function in program.functions:
        checker.function(function)
    checker.facts()


class _Checker:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names: set[str] = set()
        self.bound: set[str] = set(program.sources)
        self.place = ""

    def function(self, function: Function) -> None:
        self.place = function.name
        is_entry = function is self.program.entry
        values = [each.value for each in function.parameters]
        symbols = set(self.program.sources) if is_entry else set(function.symbols)
        self._new_values(values)
        if not is_entry:
            self._new_symbols(function.symbols)
            self._new_symbols(function.returned)
            self._new_values(function.results)
            self._same(function.block.values, function.results, "returned values")
            self._require(len(function.block.sizes) == len(function.returned), "returns another number of sizes than it says")
            self._require(not any(each.mode is Mode.STATE for each in function.parameters), "has state, which the entry alone has")
        else:
            self._require(not function.block.sizes, "returns sizes")
        writable = {each.value for each in function.parameters if each.mode is not Mode.READ}
        self._block(function.block, set(values) | set(self.program.weight_slots), symbols, writable)

    def facts(self) -> None:
        """What is declared of a step's symbol beside its range and divisor is checked where steps read it."""
        env, own = self.program.env, self.bound - set(self.program.sources)
        checks = [self.program.checks[number] for number in self.program.late_checks]
        checked = covered(check.condition for check in checks if check.condition is not None)
        checked |= {(check.kind, check.actual, check.expected) for check in checks if isinstance(check.actual, Dim)}
        pairs = {pair: pair for pair in env.facts()} | {(dim_min(more, less), less): (more, less) for more, less in env.inequalities()}
        for fact, (left, right) in pairs.items():
            kind = "equal" if fact == (left, right) else "at_least"
            good = not symbols_of((left, right)) & own or (kind, left, right) in checked
            self._require(good, f"relies on {left} {'==' if kind == 'equal' else '>='} {right}, which no step checks")
        for name in own:
            symbol, solved = Dim.symbol(name), env.simplify(Dim.symbol(name))
            self._require(solved == symbol or ("equal", symbol, solved) in checked, f"relies on what {name} is, which no step checks")

    # --- blocks ---------------------------------------------------------------------------------------------------------

    def _block(self, block: Block, values: set[Value], symbols: set[str], writable: set[Value]) -> set[Value]:
        """values, symbols: seen from around; writable: of these, what may be written over. Returns which of them are."""
        seen, known, free = set(values), set(symbols), set(writable)
        roots = roots_of(block)
        last = last_reads(block)
        written: set[Value] = set()
        for number, step in enumerate(block.steps):
            self._visible(step.reads, seen, step)
            self._known(_sizes_of(step), known, step)
            self._step(step)
            inner = self._inside(step, seen, known, free)
            for operand in [*step.spoils, *sorted(inner, key=lambda each: each.name)]:
                root = roots.get(operand, operand)
                others = [value for value in step.reads if roots.get(value, value) == root]
                self._require(len(others) <= 1, f"reads what it writes over, in `{step.lines()[0]}`")
                self._require(root in free, f"writes over {operand.ref}, which is not its own, in `{step.lines()[0]}`")
                sharing = {value for value in seen if roots.get(value, value) == root}
                late = [value.ref for value in sharing if last.get(value, -1) > number]
                self._require(not late, f"reads {', '.join(sorted(late))} after `{step.lines()[0]}` wrote over it")
                if root in writable:
                    written.add(root)
            self._new_values(step.results)
            self._known([dim for value in step.results for dim in value.dims], known | set(step.binds), step)
            self._new_symbols(step.binds)
            seen.update(step.results)
            known.update(step.binds)
            free.update(result for result in step.results if result not in roots)
        self._visible(block.values, seen, None)
        self._known(block.sizes, known, None)
        return written

    def _inside(self, step: Step, seen: set[Value], known: set[str], free: set[Value]) -> set[Value]:
        """Checks the blocks of a step; returns what they write over."""
        if isinstance(step, If):
            return {value for block in step.blocks for value in self._block(block, seen, known, free)}
        if isinstance(step, While):
            arguments = [each.argument for each in step.values]
            names = [each.symbol for each in step.sizes]
            self._new_values(arguments)
            self._new_symbols(names)
            self._known([side for each in step.condition.comparisons() for side in (each.left, each.right)], known | set(names), step)
            self._known([dim for each in arguments for dim in each.dims], known | set(names), step)
            self._block(step.body, seen | set(arguments), known | set(names), set(arguments))
        return set()

    def _step(self, step: Step) -> None:
        match step:
            case Fill(_, byte):
                self._require(0 <= byte <= 255, f"fills with {byte}, which is no byte")
            case Copy(made, source):
                self._require(made.element == source.element, f"copies {source} to {made}")
            case Read(_, value):
                self._require(value.element == "i64", f"reads a size from {value}")
            case Call(function, arguments, sizes, made, symbols):
                self._require(function in self.program.functions, f"calls {function.name}, which the program does not have")
                self._same(arguments, [each.value for each in function.parameters], f"arguments of {function.name}")
                self._same(made, function.results, f"results of {function.name}")
                self._require(len(sizes) == len(function.symbols) and len(symbols) == len(function.returned), f"sizes of {function.name}")
                given = [each for each, parameter in zip(arguments, function.parameters, strict=True) if parameter.mode is Mode.DONATED]
                self._require(len(set(arguments)) == len(arguments) or not given, f"gives {function.name} an argument twice")
            case If():
                for block in step.blocks:
                    self._same(block.values, step.made, "values of a branch")
                    self._require(len(block.sizes) == len(step.symbols), "another number of sizes of a branch")
            case While():
                self._same(step.body.values, [each.argument for each in step.values], "values of a loop's body")
                self._same([each.initial for each in step.values], [each.result for each in step.values], "values of a loop")
                self._same([each.initial for each in step.values], [each.argument for each in step.values], "values of a loop")
                self._require(len(step.body.sizes) == len(step.sizes) > 0, "another number of sizes of a loop's body, or none")
            case _:
                pass
        for operand in step.spoils:
            self._require(operand in step.reads, f"writes over {operand.ref}, which `{step.lines()[0]}` does not read")

    # --- rules ----------------------------------------------------------------------------------------------------------

    def _visible(self, values: Iterable[Value], seen: set[Value], step: Step | None) -> None:
        for value in values:
            self._require(value in seen, f"reads {value} in `{step.lines()[0] if step else 'return'}`, which nothing has written")

    def _known(self, sizes: Iterable[Dim], known: set[str], step: Step | None) -> None:
        late = sorted(symbols_of(sizes) - known)
        self._require(not late, f"needs {', '.join(late)} in `{step.lines()[0] if step else 'return'}`, which nothing has bound")

    def _new_values(self, values: Iterable[Value]) -> None:
        for value in values:
            self._require(value.name not in self.names, f"writes {value} twice")
            self.names.add(value.name)

    def _new_symbols(self, names: Iterable[str]) -> None:
        for name in names:
            self._require(name not in self.bound, f"binds {name} twice")
            self.bound.add(name)

    def _same(self, left: Sequence[Value], right: Sequence[Value], what: str) -> None:
        same = len(left) == len(right) and all(
            one.element == other.element and len(one.dims) == len(other.dims) for one, other in zip(left, right, strict=True)
        )
        self._require(same, f"{what}: {', '.join(map(str, left))} for {', '.join(map(str, right))}")

    def _require(self, good: bool, what: str) -> None:
        if not good:
            raise CompilerBug(f"host program {self.place}: {what}")


def _sizes_of(step: Step) -> list[Dim]:
    """The sizes that a step needs before it runs."""
    match step:
        case Copy():
            return [step.start]
        case Call():
            return list(step.sizes)
        case If():
            return [side for each in step.condition.comparisons() for side in (each.left, each.right)]
        case While():
            return [each.initial for each in step.sizes]
        case _:
            return []
