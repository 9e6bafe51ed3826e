"""A* finds what trying everything finds; what coupling leaves out loses nothing; bounds are bounds."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from torch_mlir import ir

from disc.codegen.fusions import Place, read_functions, read_fusions
from disc.codegen.plan.rows import plan_kernel
from disc.codegen.plan.search.astar import Found, search
from disc.codegen.plan.search.coupling import Loop, couple
from disc.codegen.plan.search.problem import Partial, Problem, Variable
from disc.codegen.plan.search.rows import RowsProblem
from disc.codegen.x86.rows.regions import pose, ruled
from disc.ir.dialect import disc_context
from disc.ir.graph import Snapshot
from disc.ir.passes import CompileState, run_passes
from disc.ir.stages import load_env, parse_module
from disc.passes.pipelines import FUSION
from disc.shapes import Dim
from disc.targets.x86 import read_target

TARGET = read_target("x86-64-v4")


# --- problems made of tables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """A term of arbitrary numbers: its bound is the least that is left."""

    scope: tuple[int, ...]
    costs: dict[tuple[int, ...], float]

    def bound(self, values: Partial) -> float:
        fits = (cost for key, cost in self.costs.items() if all(given in (None, value) for given, value in zip(values, key, strict=True)))
        return min(fits)


def made_up(seed: int) -> Problem:
    source = random.Random(seed)
    sizes = [source.randint(1, 4) for _ in range(source.randint(1, 6))]
    variables = tuple(Variable(f"v{number}", tuple(range(size)), source.randrange(size)) for number, size in enumerate(sizes))
    terms: list[Table] = []
    for _ in range(source.randint(1, 6)):
        scope = tuple(sorted(source.sample(range(len(sizes)), source.randint(1, min(3, len(sizes))))))
        keys = itertools.product(*(range(sizes[number]) for number in scope))
        terms.append(Table(scope, {key: source.choice((1.0, 1.0, 2.5, source.random() * 5, math.inf)) for key in keys}))
    return Problem(variables, tuple(terms))


def least(problem: Problem) -> float:
    """By trying everything."""
    return min(problem.cost(each) for each in itertools.product(*(variable.values for variable in problem.variables)))


def is_best(problem: Problem, found: Found) -> None:
    best = least(problem)
    assert found.proved and math.isclose(problem.cost(found.assignment), best, rel_tol=1e-6), (found, best)
    if math.isclose(best, problem.cost(problem.rules), rel_tol=1e-9):
        assert found.assignment == problem.rules


@pytest.mark.parametrize("seed", range(200))
def test_the_best_of_any_problem_is_found(seed: int) -> None:
    problem = made_up(seed)
    if math.isfinite(problem.cost(problem.rules)):
        is_best(problem, search(problem))


def test_a_search_that_ends_early_is_never_worse_than_the_rules() -> None:
    for seed in range(60):
        problem = made_up(seed)
        for most in (0, 1, 3, 10):
            found = search(problem, most)
            assert found.cost == problem.cost(found.assignment) <= problem.cost(problem.rules)
            assert found.candidates <= most + 4


def test_a_variable_has_the_rules_value() -> None:
    with pytest.raises(ValueError, match="3 must be one of"):
        Variable("rows", (1, 2), 3)


# --- coupling ---------------------------------------------------------------------------------------------------------------


def test_loops_couple_where_stage_size_and_access_agree() -> None:
    rows, columns = Dim.symbol("S0"), Dim.symbol("S1")
    loops = [
        Loop(0, "max", rows, "rows"), Loop(0, "max", columns, "sum"), Loop(1, "sum", rows, "rows", frozenset({0})),
        Loop(1, "sum", columns, "sum", frozenset({0})), Loop(2, "apart", rows, "rows"), Loop(3, "stored", columns, "store", frozenset({0, 1})),
    ]  # fmt: skip
    classes = couple(loops, lambda left, right: left == right)
    assert [[loops.index(loop) for loop in found] for found in classes] == [[0, 2], [1, 3], [4], [5]]


# --- row kernels ------------------------------------------------------------------------------------------------------------

SYMBOLS = "".join(
    f'"disc.symbolic_dim"() {{sym_name = "S{number}", min = 0 : i64, divisor = 1 : i64, source = "arg0.{number}"}} : () -> ()\n'
    for number in range(3)
)


class Text:
    """A program over rows of one type, written line by line."""

    def __init__(self, *dims: str, inputs: int = 1) -> None:
        sizes, names = "x".join("?" if each.startswith("@") else each for each in dims), ", ".join(dims)
        kept, kept_names = "x".join("?" if each.startswith("@") else each for each in dims[:-1]), ", ".join(dims[:-1])
        self.full, self.row = f"tensor<{sizes}xf32, [{names}]>", f"tensor<{kept}xf32, [{kept_names}]>"
        self.rank, self.inputs, self.lines = len(dims), inputs, list[str]()

    def op(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def unary(self, op: str, x: str) -> str:
        return self.op(f"stablehlo.{op} {x} : {self.full}")

    def binary(self, op: str, x: str, y: str) -> str:
        return self.op(f"stablehlo.{op} {x}, {y} : {self.full}")

    def reduce(self, op: str, x: str) -> str:
        """Along the last dim, back to the full shape."""
        start = "%low" if op == "maximum" else "%zero"
        of = f"({self.full}, tensor<f32>) -> {self.row}"
        found = self.op(f"stablehlo.reduce({x} init: {start}) applies stablehlo.{op} across dimensions = [{self.rank - 1}] : {of}")
        dims = ", ".join(map(str, range(self.rank - 1)))
        return self.op(f'"disc.broadcast_in_dim"({found}) {{dims = array<i64: {dims}>, maybe = array<i64>}} : ({self.row}) -> {self.full}')

    def softmax(self, x: str) -> str:
        e = self.unary("exponential", self.binary("subtract", x, self.reduce("maximum", x)))
        return self.binary("divide", e, self.reduce("add", e))

    def norm(self, x: str) -> str:
        d = self.binary("subtract", x, self.reduce("add", x))
        return self.binary("multiply", d, self.unary("rsqrt", self.reduce("add", self.binary("multiply", d, d))))

    def returned(self, x: str) -> str:
        arguments = ", ".join(f"%x{number}: {self.full}" for number in range(self.inputs))
        constants = "%low = stablehlo.constant dense<0xFF800000> : tensor<f32>\n%zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
        body = "\n".join(self.lines)
        return f"{SYMBOLS}func.func @main({arguments}) -> {self.full} {{\n{constants}{body}\nreturn {x} : {self.full}\n}}"


def softmax() -> str:
    t = Text("@S0", "@S1")
    return t.returned(t.softmax("%x0"))


def cross_entropy() -> str:
    """Softmax of 3-D logits and the logarithm of what the labels pick: here by a product with their one-hot form."""
    t = Text("@S0", "@S1", "@S2", inputs=2)
    picked = t.binary("multiply", t.softmax("%x0"), "%x1")
    return t.returned(t.unary("negate", t.unary("log", t.reduce("add", picked))))


def gated_norm() -> str:
    t = Text("@S0", "@S1")
    gated = t.binary("multiply", "%x0", t.unary("logistic", "%x0"))
    return t.returned(t.binary("multiply", gated, t.unary("rsqrt", t.reduce("add", t.binary("multiply", gated, gated)))))


def two_sums() -> str:
    """The second sum may come a round later: nothing but the result needs it."""
    t = Text("@S0", "200", inputs=2)
    normed = t.norm("%x0")
    return t.returned(t.binary("add", normed, t.reduce("add", t.unary("exponential", "%x1"))))


def norms_of_a_sum() -> str:
    t = Text("@S0", "1024", inputs=4)
    total = t.binary("add", t.binary("add", "%x0", "%x1"), t.binary("add", "%x2", "%x3"))
    return t.returned(t.softmax(t.norm(total)))


def elementwise() -> str:
    t = Text("@S0", "64", inputs=2)
    return t.returned(t.binary("add", t.unary("tanh", "%x0"), "%x1"))


SMALL = (softmax, cross_entropy, gated_norm, two_sums, elementwise)


def posed(text: str, *, beyond: bool = False) -> RowsProblem:
    """Of the one fusion of a program."""
    with disc_context():
        module = parse_module(text)
        run_passes(module, FUSION[:-1], CompileState(targets=(TARGET,)))
        return _posed(_fusions(module)[-1], beyond)


def _fusions(module: ir.Module) -> list[Place]:
    env = load_env(module)
    return read_fusions(module, env, read_functions(module, Snapshot(env)))


def _posed(place: Place, beyond: bool) -> RowsProblem:
    work = place.work
    space = work.space()
    (plan,) = plan_kernel(space, work.body, work.kind, TARGET.thresholds)
    return pose(space, work.body, plan, TARGET, ruled(space, work.body, plan, work.kind, TARGET, beyond=beyond), beyond)


@pytest.mark.parametrize("program", SMALL)
@pytest.mark.parametrize("beyond", [False, True])
def test_the_best_plan_is_found(program: Callable[[], str], beyond: bool) -> None:
    problem = posed(program(), beyond=beyond).problem
    assert problem.space <= 20_000
    is_best(problem, search(problem))


def partials(problem: Problem, count: int) -> Iterator[tuple[list[int | None], list[int | None], list[int]]]:
    """Random assignments, each with two of its parts, the first within the second."""
    source = random.Random(7)
    for _ in range(count):
        whole = [source.choice(variable.values) for variable in problem.variables]
        more = [value if source.random() < 0.6 else None for value in whole]
        yield [value if source.random() < 0.6 else None for value in more], more, whole


@pytest.mark.parametrize("program", [*SMALL, norms_of_a_sum])
@pytest.mark.parametrize("beyond", [False, True])
def test_bounds_never_exceed_what_they_bound(program: Callable[[], str], beyond: bool) -> None:
    problem = posed(program(), beyond=beyond).problem
    for less, more, whole in partials(problem, 60):
        for low, middle, high in zip(problem.parts(less), problem.parts(more), problem.parts(whole), strict=True):
            assert low <= middle * (1 + 1e-12) and middle <= high * (1 + 1e-12)


@pytest.mark.parametrize("program", SMALL)
def test_what_coupling_leaves_out_loses_nothing(program: Callable[[], str]) -> None:
    """With the values that another one decides as variables of their own, no plan is better."""
    text = program()
    few = posed(text)
    every = _with_every_value(text)
    assert every.problem.space == few.problem.space * 2 ** (len(every.values) - len(few.values))
    assert math.isclose(search(every.costs, 10**6).cost, search(few.costs, 10**6).cost, rel_tol=1e-9)


def _with_every_value(text: str) -> RowsProblem:
    from disc.codegen.plan.search import rows

    with pytest.MonkeyPatch.context() as patch:
        read = rows.read_stages
        patch.setattr(rows, "read_stages", lambda body, plan: replace(read(body, plan), left_out={}))
        return posed(text)


def test_the_search_of_a_cross_entropy() -> None:
    """Dali (paper 004, §2.4) eliminates 7 of 14 variables and looks at 155 candidates."""
    found, seconds = _timed(posed(cross_entropy()))
    assert found.problem.open <= found.variables // 2
    assert seconds < 0.05
    assert search(found.problem).candidates <= 155


def test_the_search_of_a_large_fusion() -> None:
    """Dali (§2.3) shrinks 8.8e12 plans of a Transformer's fusion to 1.05e6."""
    found, seconds = _timed(posed(norms_of_a_sum()))
    assert found.space >= 10**6 * found.problem.space
    assert seconds < 1 and search(found.problem).proved


def _timed(posed: RowsProblem) -> tuple[RowsProblem, float]:
    """Seconds of the processor."""
    start = time.process_time()
    search(posed.problem)
    return posed, time.process_time() - start


def test_what_several_passes_need_is_kept_where_it_is_expensive() -> None:
    """A gate is read by a product with itself, not by the sum: what the rules overlook."""
    found = posed(gated_norm())
    decision = found.decision(search(found.problem).assignment)
    assert [node.name for node in decision.cached] == ["multiply"]
    assert not any(variable.rule for variable in found.problem.variables if variable.name.startswith("keep"))


def test_a_reduction_may_come_in_a_later_round() -> None:
    found = posed(two_sums())
    (late,) = [variable for variable in found.problem.variables if variable.name.startswith("round of")]
    assert len(late.values) > 1
    moved = list(found.problem.rules)
    moved[found.problem.variables.index(late)] = late.values[-1]
    stages = found.decision(tuple(moved)).stages
    assert [len(stage) for stage in stages] == [1, 2] and sum(map(len, found.plan.stages)) == 3


def names(variables: Sequence[Variable]) -> list[str]:
    return [variable.name for variable in variables]


def test_the_variables_of_a_softmax() -> None:
    found = posed(softmax())
    assert names(found.problem.variables) == [
        "keep exponential 6", "rows", "rows up to", "results past the caches", "vectors of round 0", "vectors of round 1", "vectors of results",
    ]  # fmt: skip
    assert found.problem.variables[1].stands_for == 5  # loops over rows: of two reductions, two values that may be kept, and the results
