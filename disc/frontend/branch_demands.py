"""What a branch of `torch.cond` demands of sizes, where sizes decide which branch runs: it is demanded of calls that take the branch alone.

    torch.cond(x.shape[0] > 3, lambda a: a.topk(4, 0)[0], lambda a: a[:1], (x,))      → "s0 <= 3 or s0 >= 4", decided at model.py:12

PyTorch makes guards of what ops ask while it traces a branch, and takes them for true of all that follows, the other branch too. Here they
become conditions that name the branch, and PyTorch forgets them when the branch ends. An equality by which it has replaced a symbol stays:
the sizes of the graph are written with it. So does what a condition in Python asks of sizes, and all that a branch asks whose predicate is
data, and a loop: PyTorch itself traces these in every call, whatever is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import TypeVar

import sympy
import torch
import torch._dynamo.variables.higher_order_ops as dynamo_ops
from torch import fx
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._guards import ShapeGuard
from torch._higher_order_ops.utils import _maybe_run_with_interpreter
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges

from disc.frontend.conditions import condition_of
from disc.frontend.decisions import Found, Undecided, found_in, is_of_op
from disc.frontend.symbols import SymbolError
from disc.shapes import ALWAYS, Condition, all_of, any_of

cond_module = import_module("torch._higher_order_ops.cond")  # of the package, the name is that of the function
COND = torch.ops.higher_order.cond
_Graph = TypeVar("_Graph", fx.Graph, fx.GraphModule)
Premise = Condition | None  # of the calls that run a graph; None: nothing is known of them


def premises(predicate: object) -> tuple[Premise, Premise]:
    """When the first branch is taken, and when the second, where sizes alone decide."""
    expression = predicate.node.expr if isinstance(predicate, torch.SymBool) else None
    if expression is None or expression in (sympy.true, sympy.false):
        return None, None
    try:
        taken = condition_of(expression)
        return taken, taken.negated()
    except (SymbolError, ValueError):
        return None, None


def branches_of(node: fx.Node) -> list[tuple[fx.Node, Premise]]:
    """The graphs (get_attr nodes) that a call of `torch.cond` runs on sizes, and when."""
    if node.target is not COND:
        return []
    predicate = node.args[0].meta.get("val") if isinstance(node.args[0], fx.Node) else node.args[0]
    graphs = [each for each in node.args[1:3] if isinstance(each, fx.Node)]
    return list(zip(graphs, premises(predicate), strict=True))


def premises_of(graph: _Graph, bodies: Callable[[_Graph], Iterable[tuple[fx.Node, _Graph]]]) -> dict[_Graph, Premise]:
    """When the graphs run that control flow in `graph` runs, and those in these. bodies: those that one runs, each behind the get_attr node
    that stands for it."""
    found: dict[_Graph, Premise] = {}
    pending: list[tuple[_Graph, Premise]] = [(graph, None)]
    while pending:
        outer, premise = pending.pop()
        for node, body in bodies(outer):
            own = dict(each for user in node.users for each in branches_of(user)).get(node)
            found[body] = within(premise, own)
            pending.append((body, found[body]))
    return found


def premises_within(module: fx.GraphModule) -> dict[fx.GraphModule, Premise]:
    """When the graphs run that control flow in `module` runs, and those in these."""
    return premises_of(module, _modules_in)


def _modules_in(module: fx.GraphModule) -> Iterator[tuple[fx.Node, fx.GraphModule]]:
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, str(node.target), None)
        if isinstance(value, fx.GraphModule):
            yield node, value


def within(outer: Premise, premise: Premise) -> Premise:
    """Of a graph in a graph: that of both, or of one where both are too long."""
    if outer is None or premise is None:
        return outer or premise
    try:
        return all_of((outer, premise))
    except ValueError:
        return premise


def only_in(premise: Premise, found: Found) -> Found:
    """What has been found while a graph was traced, demanded of the calls that run it."""
    if premise is None or isinstance(found, Undecided) or found.layout:
        return found
    try:
        return replace(found, condition=any_of((premise.negated(), found.condition)))
    except ValueError:
        return found


# --- while PyTorch traces -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Known:
    """What an environment of shapes knew before it traced a graph. guards: how many it had."""

    guards: int
    replacements: dict[sympy.Symbol, sympy.Expr]
    ranges: dict[sympy.Symbol, ValueRanges]
    axioms: frozenset[sympy.Expr]
    divisible: frozenset[sympy.Expr]

    @staticmethod
    def of(env: ShapeEnv) -> _Known:
        ranges, axioms = dict(env.var_to_range), frozenset(env.axioms)
        return _Known(len(env.guards), dict(env.replacements), ranges, axioms, frozenset(env.divisible))

    def forget(self, env: ShapeEnv, guards: Sequence[ShapeGuard]) -> None:
        """Makes the environment forget these guards, made since, and what it has concluded since."""
        env.guards[self.guards :] = [each for each in env.guards[self.guards :] if each not in guards]
        for symbol in {symbol for each in guards for symbol in each.expr.free_symbols}:
            if isinstance(symbol, sympy.Symbol) and symbol in self.ranges:
                env.var_to_range[symbol] = self.ranges[symbol]
        for axiom in env.axioms.keys() - self.axioms:
            del env.axioms[axiom]
        env.divisible &= self.divisible
        env._update_version_counter()
        env._version_counter += 1


@contextmanager
def demanded_in(premise: Premise, env: ShapeEnv | None, found: list[Found]) -> Iterator[None]:
    """Within, PyTorch traces a graph that runs under a premise. found: what ops ask there is added."""
    if premise is None or env is None:
        yield
        return
    known = _Known.of(env)
    yield
    if env.replacements == known.replacements:
        guards = [each for each in env.guards[known.guards :] if is_of_op(each)]
        found += [only_in(premise, each) for each in found_in(guards)]
        known.forget(env, guards)


class BranchDemands:
    """While it is entered, a model is exported. Dynamo, which PyTorch has trace control flow first, has an environment of its own."""

    def __init__(self) -> None:
        self._found: list[tuple[ShapeEnv, Found]] = []
        self._around: list[tuple[ShapeEnv | None, Premise]] = []  # the graphs that are being traced
        self._sized: list[bool] = []  # of the calls that Dynamo looks at: whether sizes are the predicate
        self._undo: list[Callable[[], None]] = []

    def of(self, env: ShapeEnv | None) -> list[Found]:
        return [found for each, found in self._found if each is env]

    def tell(self, found: Found, x: object) -> None:
        """That a call of a tensor demands something, in the graph that is being traced."""
        sizes = [size for size in x.shape if isinstance(size, torch.SymInt)] if isinstance(x, torch.Tensor) else []
        for env in {size.node.shape_env for size in sizes}:
            self._found.append((env, only_in(self._premise(env), found)))

    def _premise(self, env: ShapeEnv | None) -> Premise:
        """Of the graph that is being traced."""
        return next((premise for around, premise in reversed(self._around) if around is env), None)

    def __enter__(self) -> BranchDemands:
        table = cond_module.cond_op.python_key_table
        real = table[FakeTensorMode]
        table[FakeTensorMode] = self._faking(real)
        self._undo.append(lambda: table.update({FakeTensorMode: real}))
        self._replace(cond_module, "trace_cond", self._tracing)
        self._replace(dynamo_ops, "speculate_subgraph", self._speculating)
        self._replace(dynamo_ops.CondHigherOrderVariable, "_call_function", self._calling)
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: ModuleType | type, name: str, wrap: Callable[[Callable[..., object]], Callable[..., object]]) -> None:
        real = getattr(owner, name)
        self._undo.append(lambda: setattr(owner, name, real))
        setattr(owner, name, wrap(real))

    def _tracing(self, real: Callable[..., object]) -> Callable[..., object]:
        def trace(mode: object, op: object, predicate: object, *rest: object) -> object:
            true, false, operands = rest
            return real(mode, op, predicate, *self._scoped(predicate, *map(_maybe_run_with_interpreter, (true, false))), operands)

        return trace

    def _faking(self, real: Callable[..., object]) -> Callable[..., object]:
        return lambda mode, predicate, true, false, operands: real(mode, predicate, *self._scoped(predicate, true, false), operands)

    def _scoped(self, predicate: object, *functions: Callable[..., object]) -> list[Callable[..., object]]:
        """The branches of a call, in which demands are theirs."""
        env = predicate.node.shape_env if isinstance(predicate, torch.SymBool) else None

        def scoped(function: Callable[..., object], own: Premise) -> Callable[..., object]:
            def run(*operands: object) -> object:
                premise, found = within(self._premise(env), own), list[Found]()
                self._around.append((env, premise))
                try:
                    with demanded_in(premise if own is not None else None, env, found):
                        return function(*operands)
                finally:
                    self._around.pop()
                    self._found += [(env, each) for each in found] if env is not None else []

            return run

        return [scoped(*each) for each in zip(functions, premises(predicate), strict=True)]

    def _calling(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(variable: object, tx: object, args: Sequence[object], kwargs: dict[str, object]) -> object:
            predicate = next(iter((*args, *kwargs.values())), None)
            real_value = predicate.realize() if isinstance(predicate, VariableTracker) else None
            self._sized.append(isinstance(real_value, SymNodeVariable))
            try:
                return real(variable, tx, args, kwargs)
            finally:
                self._sized.pop()

        return call

    def _speculating(self, real: Callable[..., object]) -> Callable[..., object]:
        """What ops ask there they ask again, of the symbols of the export, when the graph of Dynamo runs."""

        def speculate(tx: InstructionTranslatorBase, *rest: object, **named: object) -> object:
            env = tx.fake_mode.shape_env if tx.fake_mode is not None else None
            is_branch = named.get("source_target") is COND and bool(self._sized) and self._sized[-1]
            with demanded_in(ALWAYS, env, []) if is_branch else nullcontext():
                return real(tx, *rest, **named)

        return speculate
