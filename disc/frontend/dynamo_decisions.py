"""What Dynamo decides about sizes without a guard, where it traces the functions of `torch.cond` and its like.

    lambda a: a * a[:2].shape[0] if a.shape[0] > 1 else a       # 2 and true for every size: PyTorch takes sizes to be at least 2

The graph that an export then makes of Dynamo's has nothing of it. Here each decision is kept in Dynamo's symbols, which become those of
the export where it runs Dynamo's graph on its inputs. What slices take (`slices.taking`) calls in Dynamo's graph tell, as they run.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import sympy
import torch
import torch._higher_order_ops.utils as higher_order
from torch import fx
from torch._export import non_strict_utils
from torch._guards import TracingContext
from torch.fx.experimental import sym_node, symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from disc.frontend import decisions
from disc.frontend.branch_demands import BranchDemands
from disc.frontend.conditions import condition_of, relation
from disc.frontend.decisions import COMPARISONS, EXTREMES, REFUSING, Decision, Found, Undecided, expression_of, known_truth, taken
from disc.frontend.locations import GENERATED, TORCH, frame_text, line_text
from disc.frontend.replaced import replaced
from disc.frontend.slices import TAKING, taking
from disc.frontend.symbols import SymbolError, to_text
from disc.shapes import Condition, Dim, parse_dim

Backend = Callable[[fx.GraphModule, list[torch.Tensor]], Callable[..., object]]
_DYNAMO = TORCH + "_dynamo/"
# Python code that Dynamo traces in the place of functions that are built in, of its own and of `torch.export`
_STAND_INS = (_DYNAMO + "polyfills/", str(non_strict_utils.__file__))
_RUNS_OPS = (_DYNAMO + "utils.py", "run_node")
# between who asks and the answer
_ASKING = frozenset((*(str(module.__file__) for module in (torch, sym_node, symbolic_shapes, decisions)), __file__))


class DynamoDecisions:
    """Of one export."""

    def __init__(self, demands: BranchDemands) -> None:
        self._demands = demands
        self._found: list[tuple[ShapeEnv, Found]] = []
        self._asked: list[tuple[ShapeEnv, Found]] = []  # in Dynamo's symbols

    def of(self, env: ShapeEnv | None) -> list[Found]:
        """In the symbols of an environment of the export."""
        return [found for each, found in self._found if each is env]

    @contextmanager
    def recorded(self) -> Iterator[DynamoDecisions]:
        """Within, Dynamo traces what control flow runs."""
        setup = higher_order.setup_compilation_env

        @contextmanager
        def watched() -> Iterator[Backend]:
            with setup() as backend:
                yield self._watched(backend)

        functions: dict[tuple[type, str], object] = {
            (sym_node.SymNode, "guard_bool"): self._guarding(sym_node.SymNode.guard_bool),
            **{(torch.SymInt, name): self._comparing(getattr(torch.SymInt, name), sign) for name, sign in COMPARISONS.items()},
            **{(torch.SymInt, name): self._choosing(getattr(torch.SymInt, name), sign) for name, sign in EXTREMES.items()},
        }
        _told.append(self._demands)
        try:
            with replaced({(higher_order, "setup_compilation_env"): watched, **functions}):
                yield self
        finally:
            _told.remove(self._demands)

    def _guarding(self, real: Callable[..., bool]) -> Callable[..., bool]:
        """Of a truth that Python asks for."""

        def guard_bool(node: sym_node.SymNode, file: str, line: int) -> bool:
            env, expression = node.shape_env, node.expr
            known = len(env.guards) if env is not None else 0
            answer = real(node, file, line)
            if env is not None and len(env.guards) == known and _asking() not in (None, _RUNS_OPS):
                self._ask(env, lambda: condition_of(expression) if answer else condition_of(expression).negated(), str(expression))
            return answer

        return guard_bool

    def _comparing(self, real: Callable[..., object], sign: str) -> Callable[..., object]:
        """Of a comparison that is answered as soon as it is made."""

        def compare(left: torch.SymInt, right: object) -> object:
            result = real(left, right)
            answer = known_truth(result)
            if answer is not None and _asking() is not None and expression_of(left) != expression_of(right):
                held = lambda: relation(sign, expression_of(left), expression_of(right))  # noqa: E731
                self._ask(left.node.shape_env, lambda: held() if answer else held().negated(), f"{left} {sign} {right}")
            return result

        return compare

    def _choosing(self, real: Callable[..., object], sign: str) -> Callable[..., object]:
        """Of an extreme that is one of its operands."""

        def extreme(left: torch.SymInt, right: object) -> object:
            result = real(left, right)
            for first, second in taken(result, left, right) if _asking() is not None else ():
                self._ask(left.node.shape_env, lambda first=first, second=second: relation(sign, first, second), f"{first} {sign} {second}")
            return result

        return extreme

    def _ask(self, env: ShapeEnv, condition: Callable[[], Condition], text: str) -> None:
        line = _own_line()
        if line is None:
            return
        try:
            found = Decision(condition(), f"decided at {line}")
            if found.condition.symbols():
                self._asked.append((env, found))
        except (SymbolError, ValueError) as error:
            self._asked.append((env, Undecided(text, str(error), line)))

    def _watched(self, backend: Backend) -> Backend:
        def compile_graph(module: fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., object]:
            _tell_what_is_taken(module)
            run = backend(module, examples)

            def called(*inputs: object) -> object:
                self._translate(module, inputs)
                return run(*inputs)

            return called

        return compile_graph

    def _translate(self, module: fx.GraphModule, inputs: Sequence[object]) -> None:
        sizes = list(_sizes(module, inputs))
        env = next((size.node.shape_env for size, _ in sizes), None)
        if env is None:
            return
        found = [each for around, each in self._asked if around is env]
        self._asked = [(around, each) for around, each in self._asked if around is not env]
        in_export = {size.node._expr: own for size, own in sizes if isinstance(size.node._expr, sympy.Symbol)}
        translated = [_translated(each, env, in_export) for each in found]
        known = {own.node.shape_env for own in _sizes_of(inputs)}
        self._found += [(each, found) for each in known for found in translated]


def _asking() -> tuple[str, str] | None:
    """The file and the function of Dynamo, which interprets Python, that asks; None where that is an op's code."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in _ASKING:
        frame = frame.f_back
    code = frame.f_code
    return (code.co_filename, code.co_name) if code.co_filename.startswith(_DYNAMO) else None


def _own_line() -> str | None:
    """The line that Dynamo is at, where that is code of the user's, or code of PyTorch's that refuses sizes."""
    frames = [each for each in TracingContext.extract_stack() if not each.filename.startswith(_STAND_INS)]
    if not frames or (frames[-1].filename.startswith(TORCH) and frames[-1].name not in REFUSING):
        return None
    own = [each for each in frames if not each.filename.startswith((TORCH, GENERATED))]
    return frame_text(own[-1].filename, own[-1].lineno or 0) if own else None


def _sizes(module: fx.GraphModule, inputs: Sequence[object]) -> Iterator[tuple[torch.SymInt, sympy.Expr]]:
    """(a size in Dynamo's symbols, the same in those of the export)."""
    for node, given in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        example = node.meta.get("example_value")
        pairs: list[tuple[object, object]] = [(example, given)]
        if isinstance(example, torch.Tensor) and isinstance(given, torch.Tensor):
            pairs = list(zip(example.shape, given.shape, strict=True))
        for size, own in pairs:
            if isinstance(size, torch.SymInt) and isinstance(own, int | torch.SymInt):
                yield size, sympy.sympify(own.node.expr if isinstance(own, torch.SymInt) else own)


def _sizes_of(inputs: Sequence[object]) -> list[torch.SymInt]:
    """In the export."""
    sizes = (size for each in inputs for size in (each.shape if isinstance(each, torch.Tensor) else (each,)))
    return [size for size in sizes if isinstance(size, torch.SymInt)]


_TAKING = {function: number for number, function in enumerate(TAKING)}
_FUNCTIONS = tuple(_TAKING)
_told: list[BranchDemands] = []  # those that are entered


def taken_by(number: int, line: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Tells what a call demands of sizes. number: that of its function."""
    for condition in taking(_FUNCTIONS[number], args, kwargs):
        for each in _told:
            each.tell(Decision(condition, f"decided at {line}"), args[0])


def _tell_what_is_taken(module: fx.GraphModule) -> None:
    """Adds calls of `taken_by` to Dynamo's graph, and to those that it runs, before each call that takes some elements."""
    for part in (each for each in module.modules() if isinstance(each, fx.GraphModule)):
        for node in part.graph.nodes:
            number = _TAKING.get(_function(node))
            if number is not None:
                with part.graph.inserting_before(node):
                    part.graph.call_function(taken_by, (number, line_text(node), node.args, node.kwargs))
        part.recompile()


def _function(node: fx.Node) -> object:
    """What a call of a graph calls, as modes of functions see it."""
    if node.op == "call_method":
        return getattr(torch.Tensor, str(node.target), None)
    return (torch.Tensor.__getitem__ if node.target is operator.getitem else node.target) if node.op == "call_function" else None


def _translated(found: Found, env: ShapeEnv, in_export: Mapping[sympy.Symbol, sympy.Expr]) -> Found:
    if isinstance(found, Undecided):
        return found
    images: dict[str, Dim] = {}
    for symbol in (each for each in (*env.var_to_range, *in_export) if str(each) in found.condition.symbols()):
        expression = env.replace(symbol)
        if expression.free_symbols <= in_export.keys():
            images[str(symbol)] = parse_dim(to_text(expression.xreplace(dict(in_export))))
    unknown = [name for name in found.condition.symbols() if name not in images]
    if unknown:
        return Undecided(str(found.condition), f"{unknown[0]} is no size of what control flow takes", found.why.removeprefix("decided at "))
    return replace(found, condition=found.condition.replace(images))
