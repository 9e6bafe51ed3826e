"""Stage `fused` → kernels, host entry, object code: the back end in one screen.

Equal fusions are compiled once, by structural key (paper §6, `kernel_keys.py`): equal layers of a model share one kernel, also over
different symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from disc.codegen.backend import Backend, backend_of
from disc.codegen.compiles import count_compile
from disc.codegen.fusions import Place, Planned, plan_places, read_functions, read_fusions
from disc.codegen.host.conditions import covered, report
from disc.codegen.host.entry import ENTRY, emit_host
from disc.codegen.host.in_place import in_place
from disc.codegen.host.lifetimes import overwritten
from disc.codegen.host.memory import Plans, plan_memory
from disc.codegen.host.program import Check, Program, Source
from disc.codegen.host.replaced import replaced_inputs, with_last
from disc.codegen.host.steps import Function, Launch, Mode, Parameter, Read, Value
from disc.codegen.manifest import input_names, read_source, size_words
from disc.codegen.plan.index import ONE, ZERO, checks_indices, lookups
from disc.codegen.plan.kernel import Kernel, Lookup
from disc.codegen.plan.listing import Assembled, Listing, Means
from disc.codegen.plan.symbols import body_divisors
from disc.codegen.plan.updates import overwritten_arguments
from disc.codegen.steps import StepMaker, ValueOf, run_by, weight_value
from disc.codegen.weights import WeightSlots, WeightStore
from disc.errors import CompilerBug
from disc.ir.control import WHEN
from disc.ir.graph import Node, Snapshot
from disc.ir.op_table import BINDING
from disc.ir.ops import string_attr
from disc.ir.stages import load_env
from disc.ir.state import donated_arguments, read_state, replaced_arguments
from disc.ir.symbols import KERNEL, ModuleEnv
from disc.ir.weights import Weight, WeightTable
from disc.shapes import ALWAYS, Condition, Dim, Truth, any_of, dim_min, parse_condition
from disc.targets.target import Target


@dataclass(eq=False)
class ForTarget:
    """What was made for one target. listing: its text; weights: the numbers in `Built.weights` of those that the code counts."""

    program: Program
    listing: Listing
    assembled: Assembled
    weights: list[int]

    @property
    def code(self) -> bytes:
        """The section."""
        return self.assembled.code


@dataclass(frozen=True, eq=False)
class Part:
    """A module of stage `fused`, whose fusions have plans for these targets."""

    module: ir.Module
    targets: tuple[Target, ...]


@dataclass(eq=False)
class Built:
    """By the name of the target, the best last; all weights that any of the code reads, and the first values of the program's state.

    first: the numbers of these, in `weights`.
    """

    targets: dict[str, ForTarget]
    weights: list[tuple[str, Weight]]
    first: list[int]


def build(parts: Sequence[Part], weights: WeightTable, means: Means, on_part: Callable[[Part], None] = lambda part: None) -> Built:
    """Compiles a program for the targets of its parts, which differ in how their ops are fused, and in nothing else. on_part: is called
    before the work on each.

    Raises CompilerBug when a fusion cannot be generated, TargetError for what a target has no code for, and without a linker.
    """
    count_compile()
    store = WeightStore(weights)
    made: dict[str, ForTarget] = {}
    for part in parts:
        on_part(part)
        reader = _Reader(part.module, weights)
        for target in part.targets:
            slots = WeightSlots(store)
            program, listing = reader.program(target, slots)
            made[target.name] = ForTarget(program, listing, backend_of(target).assemble(listing, target, means), slots.numbers)
    if len({each.program.updated for each in made.values()}) > 1:
        raise CompilerBug("the targets of a program write other inputs in place")
    state = read_state(parts[0].module)
    return Built(made, store.entries, [store.plain(name) for name in state.buffers] if state is not None else [])


class _Reader:
    """Reads the fused module once; makes a program per target."""

    def __init__(self, module: ir.Module, weights: WeightTable) -> None:
        self.env = load_env(module)
        self.module = module
        self.weights = weights
        snapshot = Snapshot(self.env)
        self.functions = read_functions(module, snapshot)
        self.body = self.functions["main"]
        self.sources = {name: read_source(text) for name, text in self.env.sources.items() if text != KERNEL}
        found = list(self._binding("main", frozenset()))
        self.binding = {str(node.attrs["symbol"]): node for node, _ in found}  # in the order of the program
        self._bound_with = {str(node.attrs["symbol"]): known for node, known in found}
        self._known_with: dict[frozenset[str], ModuleEnv] = {}
        self.fusions = read_fusions(module, self.env, self.functions)
        self.when = self._premises()
        self.input_names = input_names(module)
        self.replaced, self.donated = replaced_arguments(module), donated_arguments(module)
        self._plans: Plans = {}  # targets whose launches hand on the same values share them

    def _binding(self, name: str, before: frozenset[str]) -> Iterator[tuple[Node, frozenset[str]]]:
        """The ops that bind sizes, of a function and of those that its control flow runs, each with the sizes that are bound whenever it
        has run. before: those that are when the function begins."""
        for node in self.functions[name].nodes:
            if node.op in BINDING:
                before |= {str(node.attrs["symbol"])}
                yield node, before
            for inner in run_by(node):
                yield from self._binding(inner, before)

    def program(self, target: Target, slots: WeightSlots) -> tuple[Program, Listing]:
        """The program and the text of all its code for one target."""
        made: dict[str, tuple[Place, Kernel]] = {}
        placed: dict[Node, tuple[Place, Place, Kernel]] = {}
        counters: dict[tuple[str, int, str], int] = {}
        backend = backend_of(target)
        for planned in plan_places(self.fusions, target.name, backend.read):
            if planned.key not in made:
                made[planned.key] = (planned.place, _kernel(backend, planned, target, len(made)))
            placed[planned.place.node] = (planned.place, *made[planned.key])
        kernels = [kernel for _, kernel in made.values()]
        checks = self._checks()
        late = self._checked_reads(checks)
        plain: list[Node] = []
        maker = StepMaker(
            self.functions,
            lambda node, value_of: self._launch(*placed[node], value_of, slots, counters) if node in placed else None,
            self.env,
            plain.append,
            lambda name, value: Read(name, value, late[name]),
        )
        arguments = [Value(f"arg{number}", node.element, node.dims) for number, node in enumerate(self.body.arguments)]
        block = maker.block("main", arguments)
        remote = target.device != "cpu"
        wanted = {block.values[result]: arguments[argument] for result, argument in self.replaced.items()}
        block = with_last(self.env, block, wanted)
        block = block if remote else in_place(self.env, block, wanted, [arguments[number] for number in self.donated])
        launches = [step for step in block.walk() if isinstance(step, Launch)]
        read = {weight_value(node): slots.plain(str(node.attrs["name"])) for node in plain}
        reporting = [number for number, launch in enumerate(launches) if launch.kernel.checks_indices or launch.kernel.library is not None]
        index_checks = {number: len(checks) + position for position, number in enumerate(reporting)}
        inputs = _made_of_one(dict(zip(arguments, self.input_names, strict=True)), launches)
        origins = _origins(launches, inputs)
        checks += [_reported(launches[number], inputs, origins) for number in reporting]
        written = overwritten(block)
        parameters = tuple(Parameter(each, Mode.DONATED if each in written else Mode.READ) for each in arguments)
        entry = Function(ENTRY, parameters, block)
        gigahertz = target.thresholds.device.rates.gigahertz
        if not set(entry.ties.values()).isdisjoint(self.donated):
            raise CompilerBug("a result lies in the memory of an input that nothing reads after the call")
        program = Program(self.env, (entry,), self.sources, checks, read, index_checks, self._describe, remote, gigahertz)
        memory = plan_memory(program, self._plans)
        program.replaces = replaced_inputs(program, memory, wanted)
        host = emit_host(program, memory)
        return program, Listing(tuple(kernels), tuple(backend.shared(kernels, target)), host)

    def _checked_reads(self, checks: Sequence[Check]) -> dict[str, tuple[int, ...]]:
        """By the size that kernels compute: the numbers of the checks that can be made once it is read, and not before."""
        order = {name: number for number, name in enumerate(self.binding)}
        found: dict[str, list[int]] = {name: [] for name in order}
        for number, check in enumerate(checks):
            late = [name for name in _symbols(check) if name in order]
            if late:
                found[max(late, key=order.__getitem__)].append(number)
        return {name: tuple(numbers) for name, numbers in found.items()}

    def _launch(
        self,
        place: Place,
        made: Place,
        kernel: Kernel,
        value_of: ValueOf,
        slots: WeightSlots,
        counters: dict[tuple[str, int, str], int],
    ) -> Launch:
        """made: the place that the kernel was made for. counters: the numbers of those that launches before have, by kernel, number of the
        version and its words, which tell the symbols; those that are not there yet are added."""
        kernel = replace(place.key.kernel_of(made.key, kernel), lines=place.lines, modules=place.modules)
        operands = place.key.operands_of(made.key, made.arguments)
        names = {number: str(operand.attrs["name"]) for number, operand in enumerate(operands) if operand.op == "disc.weight"}
        weights: dict[int, int] = {}
        for pack in kernel.packed:
            scales = names[pack.scales] if pack.scales is not None else None
            weights[pack.argument] = slots.packed(names[pack.argument], pack, scales)
            if pack.scales is not None:
                weights[pack.scales] = weights[pack.argument]  # the code finds them in the panels
        for number, name in names.items():
            if number not in weights:
                weights[number] = slots.plain(name)
        versions = [(kernel.name, number, version.describe()) for number, version in enumerate(kernel.versions)]
        numbers = tuple(counters.setdefault(version, len(counters)) for version in versions)
        inputs, results = tuple(map(value_of, operands)), tuple(map(value_of, place.results))
        ties = ((results[0], inputs[kernel.updates]),) if kernel.updates is not None else ()
        over = self._over(place, kernel, value_of)
        return Launch(kernel, place.work.name, inputs, results, weights, numbers, ties, names, over)

    def _over(self, place: Place, kernel: Kernel, value_of: ValueOf) -> tuple[tuple[Value, Value], ...]:
        """As of `Launch`."""
        pairs = overwritten_arguments(place.work.kind, place.work.body)
        if not pairs or kernel.split is not None:
            return ()
        operands, arguments = place.node.operands, place.work.body.arguments
        given = {argument: operand for argument, operand in zip(arguments, operands, strict=True) if operands.count(operand) == 1}
        return tuple((value_of(place.results[number]), value_of(given[argument])) for number, argument in pairs if argument in given)

    # --- checks ---------------------------------------------------------------------------------------------------------

    def _checks(self) -> list[Check]:
        conditions = [*self._condition_checks(with_message=True)]  # the program's own words go before ours
        checks = list(conditions)
        for number, argument in enumerate(self.body.arguments):
            for axis, size in enumerate(argument.dims):
                checks.extend(self._dim_checks(number, axis, size))
        conditions += self._condition_checks(with_message=False)
        checks.extend(check for check in conditions if check not in checks)
        known = covered(check.condition for check in conditions if check.condition is not None)
        for name in self.binding:  # what its range is the step checks that binds it
            symbol, solved = Dim.symbol(name), self.env.simplify(Dim.symbol(name))
            if solved != symbol and ("equal", symbol, solved) not in known:
                checks.append(Check("equal", symbol, solved, f"{self._describe(symbol)} must be {self._describe(solved)}: got {{actual}}"))
        for name, source in self.sources.items():
            checks.extend(each for each in self._range_checks(name, source) if (each.kind, Dim.symbol(name), each.expected) not in known)
        inequalities = {(dim_min(more, less), less): more for more, less in self.env.inequalities()}
        for left, right in self.env.facts():
            if ("equal", left, right) in known or ("at_least", inequalities.get((left, right), left), right) in known:
                continue
            if (left, right) in inequalities:
                more = inequalities[left, right]
                checks.append(Check("at_least", more, right, f"{self._describe(more)} must be at least {self._describe(right)}"))
                continue
            checks.append(
                Check("equal", left, right, f"the sizes of the inputs must satisfy {self._describe(left)} == {self._describe(right)}")
            )
        checks.extend(self._broadcast_checks())
        checks.extend(self._slice_checks())
        return checks

    def _condition_checks(self, with_message: bool) -> Iterator[Check]:
        """What the exporter decided, or what the program itself asserts, with a message."""
        for requirement in self.env.requirements.values():
            if bool(requirement.message) is not with_message:
                continue
            told = report(requirement, self._describe)
            yield Check("condition", told.actual, told.expected, told.message, requirement.condition)

    def _dim_checks(self, number: int, axis: int, size: Dim) -> list[Check]:
        if size.is_const:
            return []  # the runtime checks static dims against the signature
        names = size.symbols()
        if len(names) == 1 and str(size) == names[0] and self.sources.get(names[0]) == Source(number, axis):
            return []
        message = f"dim {axis} of input '{self.input_names[number]}' must equal {self._describe(size)}"
        return [Check("equal", (number, axis), size, message)]

    def _range_checks(self, name: str, source: Source) -> list[Check]:
        low, high = self.env.range(Dim.symbol(name))
        divisor = self.env.divisor(Dim.symbol(name))
        what, value = self._describe(Dim.symbol(name)), self._raw(source)
        checks: list[Check] = []
        if low is not None and (low > 0 or source.dim is None):  # a size is never negative, a scalar used as a size may be
            checks.append(Check("at_least", value, Dim.of(low), f"{what} must be at least {low}"))
        if high is not None:
            checks.append(Check("at_most", value, Dim.of(high), f"{what} must be at most {high}"))
        if divisor > 1:
            checks.append(Check("divides", value, Dim.of(divisor), f"{what} must be a multiple of {divisor}: got {{actual}}"))
        solved = self.env.simplify(Dim.symbol(name))
        if solved != Dim.symbol(name):
            checks.append(Check("equal", value, solved, f"{what} must equal {self._describe(solved)}"))
        return checks

    def _raw(self, source: Source) -> Dim | tuple[int, int]:
        if source.dim is None:
            name = next(name for name, each in self.sources.items() if each == source)
            return Dim.symbol(name)
        return (source.argument, source.dim)

    def _broadcast_checks(self) -> list[Check]:
        checks: dict[tuple[Dim, Dim], Check] = {}
        for fusion in self.fusions:
            for node in fusion.work.body.nodes:
                if node.op != "disc.broadcast_in_dim":
                    continue
                for axis in node.ints("maybe"):
                    actual, expected = node.operands[0].dims[axis], node.dims[node.ints("dims")[axis]]
                    where = f" (line {node.line})" if node.line else ""
                    message = f"sizes {self._describe(actual)} and {self._describe(expected)} do not broadcast{where}"
                    checks.setdefault((actual, expected), Check("broadcasts", actual, expected, message))
        return list(checks.values())

    def _slice_checks(self) -> list[Check]:
        """That slices with elements lie within their operands, where the symbols do not say so."""
        checks: dict[tuple[Dim, Dim, Condition], Check] = {}
        slices = [(node, self.when.get(fusion.node, ALWAYS)) for fusion in self.fusions for node in fusion.work.body.nodes]
        for node, when in dict.fromkeys(each for each in slices if each[0].op == "disc.slice"):
            strides = node.ints("strides") or (1,) * len(node.dims)
            starts = [self.env.simplify(self.env.parse(text)) for text in node.texts("starts")]
            for axis, (start, size, stride) in enumerate(zip(starts, node.dims, strides, strict=True)):
                for low, high in ((ZERO, start), (start + (size - 1) * stride + 1, node.operands[0].dims[axis])):
                    some = dim_min(size, ONE)
                    env = self._env_with((some, low, high))
                    if self._is_at_most(env, low, high, when) or self._is_at_most(env, some * low, some * high, when):
                        continue
                    where = f" (line {node.line})" if node.line else ""
                    message = f"a slice{where} must lie within its operand: {self._describe(low)} must be at most {self._describe(high)}"
                    check = Check("at_most", some * low, some * high, message)
                    if when != ALWAYS:
                        within = any_of((when.negated(), Condition.of("<=", some * low, some * high)))
                        check = Check("condition", some * low, some * high, message, within)
                    checks.setdefault((some * low, some * high, when), check)
        return list(checks.values())

    def _is_at_most(self, env: ModuleEnv, low: Dim, high: Dim, when: Condition) -> bool:
        """Whether that is proved of calls that satisfy `when`."""
        if env.le(low, high) is Truth.YES:
            return True
        if when == ALWAYS:
            return False
        with env.supposing(env.known_when(when, env.requirements)):
            return env.le(low, high) is Truth.YES

    def _premises(self) -> dict[Node, Condition]:
        """Fusion → when it runs, where sizes choose that; the branches around may say more."""
        functions = {
            string_attr(each.operation, "sym_name"): each.operation
            for each in self.module.body.operations
            if each.operation.name == "func.func"
        }
        found: dict[Node, Condition] = {}

        def walk(name: str, around: Condition) -> None:
            own = functions[name].attributes
            when = parse_condition(string_attr(functions[name], WHEN)) if WHEN in own else around
            for node in self.functions[name].nodes:
                found[node] = when
                for inner in run_by(node):
                    walk(inner, when)

        walk("main", ALWAYS)
        return found

    def _env_with(self, sizes: Sequence[Dim]) -> ModuleEnv:
        """What has been checked before a kernel runs that needs these sizes and no later ones."""
        late = (self._bound_with[name] for name in self.binding if any(name in size.symbols() for size in sizes))
        known = frozenset[str]().union(*late)
        if len(known) == len(self.binding):
            return self.env
        if known not in self._known_with:
            self._known_with[known] = load_env(self.module, [name for name in self.binding if name not in known])
        return self._known_with[known]

    def _describe(self, size: Dim) -> str:
        """An expression in words: symbols become "dim 1 of input 'ids'"."""
        if size.is_const:
            return str(size)
        words = {name: self._source_words(source) for name, source in self.sources.items()}
        words |= {name: size_words(node) for name, node in self.binding.items()}
        names = size.symbols()
        if len(names) == 1 and str(size) == names[0]:
            return words.get(names[0], names[0])
        return f"{size} (" + ", ".join(f"{name} = {words.get(name, name)}" for name in names) + ")"

    def _source_words(self, source: Source) -> str:
        name = self.input_names[source.argument]
        return f"the value of input '{name}'" if source.dim is None else f"dim {source.dim} of input '{name}'"


def _kernel(backend: Backend, planned: Planned, target: Target, number: int) -> Kernel:
    """The kernel of a place, the `number`-th of its program."""
    work = planned.place.work
    kernel = backend.emit(f"{work.name}_{number}".replace(".", "_"), work, planned.plan, target)
    checks = kernel.checks_indices or checks_indices(work.checked, work.body)
    notes = (*kernel.notes, *planned.place.node.texts("notes"))
    number_of = {argument: position for position, argument in enumerate(planned.place.arguments)}
    found = lookups(work.body) if checks else ()
    reads = tuple(Lookup(number_of.get(table), frozenset(number_of[each] for each in indices), what) for table, indices, what in found)
    divisors = body_divisors(work.space(), work.body)
    return replace(kernel, checks_indices=checks, lookups=reads, notes=notes, divisors=divisors, plan=str(planned.plan))


def _symbols(check: Check) -> set[str]:
    """The sizes that a check needs."""
    sizes = [each for each in (check.actual, check.expected) if isinstance(each, Dim)]
    return {name for each in (*sizes, *((check.condition,) if check.condition is not None else ())) for name in each.symbols()}


def _made_of_one(inputs: Mapping[Value, str], launches: Sequence[Launch]) -> dict[Value, str]:
    """The names of inputs, also for integers that a kernel makes of those of one input alone: where several lookups share an index, a
    kernel of its own makes negative numbers count from the end."""
    named = dict(inputs)
    for launch in launches:
        read = {*launch.reads}
        if len(read) == 1 and not launch.weights and launch.kernel.library is None and all(map(_is_integer, (*read, *launch.results))):
            origin = named.get(next(iter(read)))
            named.update({} if origin is None else dict.fromkeys(launch.results, origin))
    return named


def _origins(launches: Sequence[Launch], inputs: Mapping[Value, str]) -> dict[Value, str]:
    """The same for values of any type, of which weights may be part: what a check of values is told of."""
    made = dict(inputs)
    for launch in launches:
        names = {made.get(value) for value in launch.reads}
        name = names.pop() if len(names) == 1 else None
        made.update({result: name for result in launch.results if name is not None})
    return made


def _reported(launch: Launch, inputs: Mapping[Value, str], origins: Mapping[Value, str]) -> Check:
    """What a launch reports when it fails. Of a library function, which gives the reason, who called it."""
    if launch.kernel.library is None:
        return _index_check(launch, origins if all(each.what for each in launch.kernel.lookups) else inputs)
    where = f" at {', '.join(launch.kernel.lines[:3])}" if launch.kernel.lines else ""
    return Check("library", Dim.of(0), Dim.of(0), f"{launch.kernel.library.words}{where}")


def _index_check(launch: Launch, inputs: Mapping[Value, str]) -> Check:
    """What a launch that gathers reports when an index in its data is out of range; names the inputs where only these can hold it, and the
    weights that are looked up."""
    lookups = launch.kernel.lookups
    held, named = _sources(launch, lookups, inputs)
    where = f" at {', '.join(launch.kernel.lines[:3])}" if launch.kernel.lines else ""
    name = f"input {' or '.join(named)}: " if 0 < len(held) == len(named) else ""
    if launch.kernel.reports:
        return Check("index", Dim.of(0), Dim.of(0), f"{launch.kernel.reports}{where} ({launch.name})")
    message = f"{name}{_meaning(lookups)}{where} ({launch.name})"
    return Check("index", Dim.of(0), Dim.of(0), message + _tables(launch, inputs))


def _meaning(lookups: Sequence[Lookup]) -> str:
    """What an index out of range means. Which lookup it was is not known."""
    meanings = list(dict.fromkeys(each.what for each in lookups))
    if len(meanings) < 2:
        return next(filter(None, meanings), "index {actual} is out of range for a dim of size {expected}")
    texts = [each.rpartition(": ")[0] or "an index is out of range for its dim" for each in meanings]
    return f"{', or '.join(texts)}: got {{actual}}"


def _tables(launch: Launch, inputs: Mapping[Value, str]) -> str:
    """The weights that a launch looks up, with their sizes, by which one knows which it was, and the inputs that index each."""
    words: dict[str, None] = {}
    for each in launch.kernel.lookups:
        if each.table is None or each.table not in launch.names or each.what:
            continue
        held, named = _sources(launch, [each], inputs)
        by = f", indexed by input {' or '.join(named)}" if len(launch.kernel.lookups) > 1 and 0 < len(held) == len(named) else ""
        words[f"{launch.names[each.table]} [{', '.join(map(str, launch.inputs[each.table].dims))}]{by}"] = None
    return f"; looked up: {'; '.join(words)}" if words else ""


def _is_integer(value: Value) -> bool:
    return value.element.lstrip("u").startswith("i") and value.element != "i1"


def _sources(launch: Launch, lookups: Sequence[Lookup], inputs: Mapping[Value, str]) -> tuple[list[Value], list[str]]:
    """What an index can come from, and the names of what of that are inputs of the program. A check of values has them of any type."""
    held = {launch.inputs[number]: each.what for each in lookups for number in sorted(each.indices)}
    found = [value for value, what in held.items() if what or _is_integer(value)]
    return found, [f"'{inputs[value]}'" for value in found if value in inputs]
