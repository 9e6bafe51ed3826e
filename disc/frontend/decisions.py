"""What a trace decided about sizes: every condition under which a graph of PyTorch is the model.

    if x.shape[1] % 2 == 0:                 # model.py:12, with an example of 12: the branch is gone from the graph
        ...                                 → "mod(s1, 2) == 0", decided at model.py:12

PyTorch keeps most of them as guards. It keeps none that holds because it takes every symbolic size to be at least 2 (`x.shape[0] == 1`);
these are recorded while a module is exported.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import sympy
import torch
from torch import fx
from torch._export import non_strict_utils
from torch._guards import ShapeGuard, SLoc
from torch.fx.experimental import proxy_tensor, sym_node
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files
from torch.utils._sympy.functions import IsNonOverlappingAndDenseIndicator

from disc.frontend import dense_views, numpy_numbers, plain_numbers, size_conversions
from disc.frontend import symbolic_forms as forms
from disc.frontend.conditions import condition_of, condition_of_text, relation
from disc.frontend.known_decisions import weakened
from disc.frontend.locations import GENERATED, NUMPY, ONNX, TORCH, frame_text, line_text, traced_line
from disc.frontend.size_conversions import taken_symbolic
from disc.frontend.symbols import SymbolError, linear_form, to_text
from disc.shapes import ALWAYS, NEVER, Condition, Dim, parse_dim

COMPARISONS = {"__eq__": "==", "__ne__": "!=", "__le__": "<=", "__lt__": "<", "__ge__": ">=", "__gt__": ">"}
EXTREMES = {"__sym_max__": ">=", "__sym_min__": "<="}
# PyTorch's own arithmetic on sizes, and what is put around it here
_WATCHING = os.path.join(os.path.dirname(__file__), "dynamo_decisions.py")
_PASSED = frozenset({*uninteresting_files(), __file__, dense_views.__file__, _WATCHING})
# Frames between the user's code and a size: `if size:` compares in the first, modes of functions, and what is called in the place of
# `int`, are in the others.
_THROUGH = frozenset(
    module.__file__
    for module in (torch, forms, torch.overrides, non_strict_utils, proxy_tensor, numpy_numbers, plain_numbers, size_conversions)
)
_COUNTING = frozenset({*_THROUGH, sym_node.__file__})  # a condition in arithmetic; of comparisons PyTorch's own core makes some there
REFUSING = frozenset({"_verify_batch_size", "_verify_spatial_size"})  # of torch.nn.functional: they compare sizes and raise
_DISC = os.path.dirname(os.path.dirname(__file__)) + os.sep

# Functions of PyTorch, by file, whose decisions concern strides, or how a view is taken apart: values are the same either way.
LAYOUT: dict[str, frozenset[str]] = {
    "_prims_common/__init__.py": frozenset({
        "check_contiguous_sizes_strides", "is_contiguous", "is_contiguous_or_false", "is_channels_last_contiguous_2d",
        "is_channels_last_contiguous_3d", "is_channels_last_contiguous_or_false_2d", "is_channels_last_contiguous_or_false_3d",
        "are_strides_like_channels_last", "are_strides_like_channels_last_or_false", "is_non_overlapping_and_dense",
        "is_non_overlapping_and_dense_or_false", "_is_non_overlapping_and_dense_or_false",
        "compute_elementwise_output_logical_to_physical_perm", "compute_elementwise_output_strides", "should_swap", "__lt__", "ge",
    }),
    "_prims/__init__.py": frozenset({"_collapse_view_helper"}),
    "_refs/__init__.py": frozenset({"_reshape_view_helper_core_alg"}),
    # whether elements of what is written share memory; what is broadcast is compared elsewhere
    "_meta_registrations.py": frozenset({"meta_copy_", "_scatter_meta_output"}),
    "_subclasses/functional_tensor.py": frozenset({"__new__"}),  # a tensor within a trace is made of sizes and strides
    # the memory format that a convolution's result has; whether there is a view without a copy
    "_subclasses/fake_impls.py": frozenset({"convert", "_compute_stride", "maybe_guard_or_false", "maybe_guard_or_true"}),
}  # fmt: skip

# Of what control flow takes: Dynamo takes every size to be at least 2, as PyTorch does, and asks it of sizes that are expressions.
_CHECKED_BY_DYNAMO = "_dynamo/guards.py"
_BROADCAST = ("_subclasses/fake_impls.py", "infer_size")  # of PyTorch: whether a size is 1
FITS = "fits"
# Of these, PyTorch's C++ core asks whether the source lies densely, to read it as it is or a copy; that frame of Python has called it.
_READ_DENSELY = (
    torch.Tensor.contiguous, torch.ops.aten.contiguous.default, torch.ops.aten.flatten.using_ints, torch.ops.aten.linear.default,
)  # fmt: skip
_CALLS = {"__torch_function__": "func", "__call__": "self"}  # of PyTorch's functions that call such an op: their variable
DENSE = "dense"
_CONVOLUTION = ("_subclasses/fake_impls.py", "conv")  # of PyTorch: chooses how a convolution is computed


@dataclass(frozen=True)
class Decision:
    """A condition on the symbols of a graph. why: "decided at model.py:12"; layout: it decided how data lie in memory, and no value.
    message: what the error says, in place of the condition in words."""

    condition: Condition
    why: str = ""
    layout: bool = False
    message: str = ""


@dataclass(frozen=True)
class Undecided:
    """A condition that cannot be checked: its text, the reason, and the place."""

    text: str
    reason: str
    place: str


Found = Decision | Undecided


def decision_text(found: Found) -> str:
    """What was decided, without where."""
    return found.text if isinstance(found, Undecided) else repr(found.condition.alternatives)


# --- recording ------------------------------------------------------------------------------------------------------------------


class Recorder:
    """While it is entered, records each comparison of sizes in the user's Python code, and where PyTorch makes a guard.

    recorded: conditions that held, in terms of the symbols as they were then. at_once: whether a comparison is a plain bool there, as code
    has it that asks `is True`; those that `torch.cond` and `torch._check` take stay what they are. as_numbers: where code takes a size for
    Python's number, as `range` does, which fixes it: what PyTorch calls the size → the first place.
    """

    def __init__(self, at_once: bool) -> None:
        self.recorded: list[Found] = []
        self.as_numbers: dict[str, str] = {}
        self._at_once = at_once
        self._saved: list[tuple[type, str, Callable[..., object]]] = []

    def __enter__(self) -> Recorder:
        for kind in (torch.SymInt, torch.SymFloat):
            for name, sign in COMPARISONS.items():
                self._replace(kind, name, lambda real, sign=sign: self._comparison(real, sign))
        opposites = [getattr(torch.SymInt, name) for name in reversed(EXTREMES)]
        for (name, sign), opposite in zip(EXTREMES.items(), opposites, strict=True):
            self._replace(torch.SymInt, name, lambda real, sign=sign, opposite=opposite: self._extreme(real, opposite, sign))
        self._replace(torch.SymInt, "__index__", self._number)
        self._replace(torch.SymBool, "__bool__", self._truth)
        self._replace(torch.SymBool, "__int__", self._truth)
        self._replace(ShapeEnv, "_get_sloc", _with_user_line)
        self._replace(ShapeEnv, "_get_user_frame", lambda _: _user_frame)
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        for note in self._fixed_sizes() if error is not None else ():
            error.add_note(note)  # pyright: ignore[reportOptionalMemberAccess]
        for kind, name, real in reversed(self._saved):
            setattr(kind, name, real)

    def _replace(self, kind: type, name: str, wrap: Callable[[Callable[..., object]], Callable[..., object]]) -> None:
        real = getattr(kind, name)
        self._saved.append((kind, name, real))
        setattr(kind, name, wrap(real))

    def _comparison(self, real: Callable[..., object], sign: str) -> Callable[..., object]:
        """A comparison that PyTorch answers by itself is decided; another one is a SymBool, which `_truth` sees."""

        def compare(left: object, right: object) -> object:
            if isinstance(left, torch.SymInt) and isinstance(right, float) and right.is_integer():
                right = int(right)  # of a float PyTorch does not say that it fixes a size
            result = real(left, right)
            answer = known_truth(result)
            is_known = answer is not None or (self._at_once and isinstance(result, torch.SymBool))
            if not is_known or (frame := _own_code()) is None:
                return result
            stays = not self._at_once or frame.f_lasti in taken_symbolic(frame.f_code)
            if answer is None and stays:
                return result
            held = result.node.bool_() if isinstance(result, torch.SymBool) else bool(result)
            self._record(lambda: relation(sign, expression_of(left), expression_of(right)), held, frame, f"{left} {sign} {right}")
            return result if stays else held

        return compare

    def _extreme(self, real: Callable[..., object], opposite: Callable[..., Any], sign: str) -> Callable[..., object]:
        """A maximum or minimum that is one of its operands, or that PyTorch simplifies to one: which one has been decided.

        Of `max(1, n // 2)`, which is n // 2 for sizes of 2 and more, PyTorch does not know that it is where it is -min(-1, -(n // 2)).
        """

        def extreme(left: torch.SymInt, right: object) -> object:
            result = real(left, right)
            frame = _own_code()
            if frame is None:
                return result
            if isinstance(right, int | torch.SymInt) and any(taken(result, left, right)):
                turned = -opposite(-left, -right)
                result = result if any(taken(turned, left, right)) else turned
            for first, second in taken(result, left, right):
                self._record(lambda first=first, second=second: relation(sign, first, second), True, frame, f"{first} {sign} {second}")
            return result

        return extreme

    def _truth(self, real: Callable[..., object]) -> Callable[..., object]:
        """Of a condition, as a bool or an int."""

        def truth(value: torch.SymBool) -> object:
            expression = value.node.expr
            answer = real(value)
            if (frame := _own_code(_COUNTING)) is not None:
                self._record(lambda: condition_of(expression), bool(answer), frame, str(expression))
            return answer

        return truth

    def _number(self, real: Callable[..., object]) -> Callable[..., object]:
        def number(value: torch.SymInt) -> object:
            symbols = value.node.expr.free_symbols if value.node.constant is None else ()
            frame = _own_code() if symbols else None
            if frame is not None:
                place = traced_line(frame) or frame_text(frame.f_code.co_filename, frame.f_lineno)
                for source in (each for symbol in symbols for each in value.node.shape_env.var_to_sources.get(symbol, ())):
                    self.as_numbers.setdefault(source.name, place)
            return real(value)

        return number

    def _fixed_sizes(self) -> list[str]:
        """What `as_numbers` says, in words."""
        places = dict[str, list[str]]()
        for source, place in self.as_numbers.items():
            found = re.fullmatch(r"L\['(\w+)'\](.*)\.size\(\)\[(\d+)\]", source)
            places.setdefault(place, []).append(f"dim {found[3]} of input '{found[1]}{found[2]}'" if found else source)
        return [f"{' and '.join(sources)} is taken for a number at {place}" for place, sources in places.items()]

    def _record(self, condition: Callable[[], Condition], answer: bool, frame: FrameType, text: str) -> None:
        place = traced_line(frame) or frame_text(frame.f_code.co_filename, frame.f_lineno)
        try:
            found = condition() if answer else condition().negated()
            decided = weakened(frame.f_code.co_filename, frame.f_code.co_name, frame.f_locals, found)
            self.recorded.append(Decision(decided, _why(place)))
        except (SymbolError, ValueError) as error:
            self.recorded.append(Undecided(text if answer else f"not ({text})", str(error), place))


def _why(place: str) -> str:
    return "" if not place else f"decided by {place}" if place.startswith("PyTorch's ") else f"decided at {place}"


def known_truth(result: object) -> bool | None:
    """What a comparison of sizes is, where that is known at once."""
    if isinstance(result, bool):
        return result
    expression = result.node.expr if isinstance(result, torch.SymBool) else None
    return bool(expression) if expression in (sympy.true, sympy.false) else None


def taken(result: object, left: object, right: object) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """(the operand that an extreme is, the other one)."""
    own, other = expression_of(left), expression_of(right)
    return ((first, second) for first, second in ((own, other), (other, own)) if own != other and _takes(result, first))


def _takes(result: object, first: sympy.Expr) -> bool:
    """Whether an extreme of two sizes is the first of them. PyTorch simplifies `max(1, n)` wherever it occurs."""
    if expression_of(result) == first:
        return True
    simplified = result.node.shape_env.simplify(expression_of(result)) if isinstance(result, torch.SymInt) else None
    return simplified == first


def expression_of(value: object) -> sympy.Expr:
    """Raises: SymbolError."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.expr
    if isinstance(value, int | float):
        return sympy.sympify(value)
    raise SymbolError(f"{value!r} is no number")


def _own_code(through: Container[str] = _THROUGH) -> FrameType | None:
    """What called a method of a size, where it is no code of this package, and none of PyTorch's but what refuses some sizes."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename in through or frame.f_code.co_filename.startswith((ONNX, *NUMPY))):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name in REFUSING:
        return frame
    return frame if frame is not None and is_own(frame) else None


def is_own(frame: FrameType) -> bool:
    """Whether it runs the user's code, or a graph of it; a module of the user's may have no file, as in Python's prompt."""
    name = frame.f_code.co_filename
    module = str(frame.f_globals.get("__name__", "torch"))  # code that PyTorch writes itself is in no module
    typed_in = name.startswith("<") and not name.startswith("<frozen") and module.partition(".")[0] not in ("torch", "disc")
    return name.startswith(GENERATED) or typed_in or not name.startswith((TORCH, _DISC, "<"))


@contextmanager
def located() -> Iterator[None]:
    """While graphs are traced that no user's code makes: guards know which function of PyTorch made them."""
    real = ShapeEnv._get_sloc
    ShapeEnv._get_sloc = lambda self, framework_loc=None: SLoc(framework_loc or _framework_summary(sys._getframe(1)), None)
    try:
        yield
    finally:
        ShapeEnv._get_sloc = real


def _framework_summary(frame: FrameType | None) -> traceback.FrameSummary | None:
    while frame is not None and frame.f_code.co_filename in _PASSED:
        frame = frame.f_back
    return _summary(frame) if frame is not None else None


def _with_user_line(real: Callable[..., object]) -> Callable[..., object]:
    """PyTorch records which of its own functions made a guard; the user's line only under Dynamo."""

    def locate(env: ShapeEnv, framework_loc: str | None = None) -> SLoc:
        frame: FrameType | None = sys._getframe(1)
        summary = _framework_summary(frame)
        line = None
        while frame is not None and line is None and (frame.f_code.co_filename.startswith(GENERATED) or not is_own(frame)):
            line = traced_line(frame)
            frame = frame.f_back
        if line is None and frame is not None:
            line = frame_text(frame.f_code.co_filename, frame.f_lineno)
        return SLoc(framework_loc or summary, line)

    return locate


def _user_frame(_: ShapeEnv) -> FrameType | None:
    """By whose bytecode PyTorch tells an `assert` on data, which it keeps for run time, from a branch, which it refuses."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _PASSED:
        frame = frame.f_back
    return frame


def _summary(frame: FrameType) -> traceback.FrameSummary:
    """Where PyTorch made a guard; of the function that chooses how a convolution is computed also how many images there are, of the one
    that broadcasts whether the result is the same for a size of 1, and of what calls an op whether that reads its source densely."""
    code, kept = frame.f_code, dict[str, str]()
    place = (code.co_filename.removeprefix(TORCH), code.co_name)
    if place == _CONVOLUTION and (images := _images(frame)):
        kept["images"] = images
    if place == _BROADCAST and _fits(frame):
        kept[FITS] = ""
    called = frame.f_locals.get(_CALLS.get(code.co_name, ""))
    if any(called is each for each in _READ_DENSELY):
        kept[DENSE] = ""
    return traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, locals=kept or None)


def _fits(frame: FrameType) -> bool:
    """Whether of two sizes that are broadcast one is 1, or both are the same: then it does not matter whether the other one is 1."""
    sizes = [frame.f_locals.get(name) for name in ("sizeA", "sizeB")]
    return 1 in [each for each in sizes if isinstance(each, int)] or _same(*sizes)


def _same(left: object, right: object) -> bool:
    return isinstance(left, torch.SymInt) and isinstance(right, torch.SymInt) and _replaced(left) == _replaced(right)


def _replaced(size: torch.SymInt) -> sympy.Expr:
    """A size by the symbols that stand for others. PyTorch's own `node.expr` joins symbols while it looks, and asks here from where."""
    joined, expr = size.node.shape_env.replacements, size.node._expr
    while (further := expr.xreplace(joined)) != expr:
        expr = further
    return expr


def _images(frame: FrameType) -> str | None:
    """The symbol for the number of images of a convolution, where it is no other dim of its input."""
    source = frame.f_locals.get("input_")
    if not isinstance(source, torch.Tensor) or source.dim() < 3 or not isinstance(source.shape[0], torch.SymInt):
        return None
    images, *others = (_replaced(each) if isinstance(each, torch.SymInt) else sympy.sympify(each) for each in source.shape)
    known = images.is_symbol and not any(images in each.free_symbols for each in others)
    return str(images) if known else None


# --- guards ---------------------------------------------------------------------------------------------------------------------


def guards_of(env: ShapeEnv) -> list[Found]:
    """The guards of an environment of shapes, and the assertions that it left to run time."""
    found = found_in(env.guards)
    for asserts in env.deferred_runtime_asserts.values():
        found += [_decision(each.expr, "", layout=False) for each in asserts]
    return found


def found_in(guards: Iterable[ShapeGuard]) -> list[Found]:
    found: list[Found] = []
    for guard in guards:
        frame = guard.sloc.framework_loc
        own = frame.filename.removeprefix(TORCH) if isinstance(frame, traceback.FrameSummary) else ""
        layout = isinstance(frame, traceback.FrameSummary) and (frame.name in LAYOUT.get(own, ()) or _counts_images(frame, guard.expr))
        noted = (frame.locals or {}) if isinstance(frame, traceback.FrameSummary) else {}
        layout = layout or FITS in noted or (DENSE in noted and not isinstance(guard.expr, sympy.Eq))
        layout = layout or (own == _CHECKED_BY_DYNAMO and isinstance(guard.expr, sympy.Ge) and guard.expr.rhs == 2)
        # PyTorch's C++ core asks that of every tensor that it makes.
        layout = layout or (guard.sloc.maybe_user_loc is None and guard.expr.has(IsNonOverlappingAndDenseIndicator))
        layout = layout and not _fixes_a_size(guard.expr)
        found.append(_decision(guard.expr, _place(guard.sloc), layout))
    return found


_RUNS_OPS = ("_dynamo/utils.py", "run_node")


def is_of_op(guard: ShapeGuard) -> bool:
    """Whether code of PyTorch asked that computes, not code that Dynamo interprets, nor a guard of Dynamo's."""
    frame = guard.sloc.framework_loc
    if not isinstance(frame, traceback.FrameSummary) or not frame.filename.startswith(TORCH):
        return False
    own = frame.filename.removeprefix(TORCH)
    return not own.startswith("_dynamo/") or (own, frame.name) == _RUNS_OPS


def _fixes_a_size(expression: sympy.Basic) -> bool:
    """Whether it says that a computed size is a number: PyTorch puts the number in its place in all that follows."""
    return (
        isinstance(expression, sympy.Eq)
        and {bool(side.is_Integer) for side in expression.args} == {True, False}
        and not any(_is_solved(side) for side in expression.args)
    )


def _is_solved(side: sympy.Basic) -> bool:
    """Whether PyTorch solves an equality of it with a number, and says of the symbol itself that it is fixed."""
    form = linear_form(side) if isinstance(side, sympy.Expr) else None
    return form is not None and form[0] == 1


def _counts_images(frame: traceback.FrameSummary, expression: sympy.Basic) -> bool:
    """Whether a guard is on the number of images of a convolution. Which of its implementations PyTorch takes depends on that (16 and
    more, where gradients are required), and so do the strides of the result; its values do not, and any number of images is allowed."""
    return frame.locals is not None and {repr(str(symbol)) for symbol in expression.free_symbols} == {frame.locals.get("images")}


def _decision(expression: sympy.Basic, place: str, layout: bool) -> Found:
    try:
        return Decision(condition_of(expression), _why(place), layout)
    except (SymbolError, ValueError) as error:
        return Decision(ALWAYS, layout=True) if layout else Undecided(str(expression), str(error), place)


def _place(sloc: SLoc) -> str:
    """The user's line; where there is none, the function of PyTorch."""
    if sloc.maybe_user_loc is not None:
        return sloc.maybe_user_loc
    frame = sloc.framework_loc
    if not isinstance(frame, traceback.FrameSummary):
        return frame or ""
    own = frame.filename.startswith(TORCH)
    return f"PyTorch's {frame.name}" if own else frame_text(frame.filename, frame.lineno or 0)


def guards_in_text(texts: Iterable[str], sizes: Mapping[str, Dim]) -> list[Found]:
    """The guards of a program that was loaded from a file, which keeps them as Python expressions without a line.

    sizes: the text of a source ("L['x'].size()[1]") → its size.
    """
    found: list[Found] = []
    for text in texts:
        try:
            found.append(Decision(condition_of_text(text, sizes)))
        except (SymbolError, ValueError) as error:
            found.append(Undecided(text, str(error), ""))
    return found


def asserted(graph: fx.Graph) -> list[Found]:
    """The conditions on sizes that `aten._assert_scalar` states in a graph; those on data are left out."""
    found: list[Found] = []
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        value = node.args[0].meta.get("val") if isinstance(node.args[0], fx.Node) else node.args[0]
        if isinstance(value, torch.SymBool) and not _bounds_bool(value.node.expr):
            found.append(_decision(value.node.expr, line_text(node), layout=False))
    return found


def _bounds_bool(condition: sympy.Basic) -> bool:
    """Whether it says no more than that a bool among the data, which PyTorch writes as a case, is 0 or 1."""
    flags = condition.atoms(sympy.Piecewise)
    if len(flags) != 1:
        return False
    (flag,) = flags
    return all(each.args[0] in (0, 1) for each in flag.args) and all(condition.xreplace({flag: value}) == True for value in _BITS)  # noqa: E712


_BITS = (sympy.Integer(0), sympy.Integer(1))


def guarded_facts(env: ShapeEnv, known: Container[str]) -> list[Found]:
    """What the guards of a graph teach whose caller checks them: facts about the inputs, as `Condition.is_fact` has them.

    known: the symbols that inputs have. Facts with numbers in them are no help, unless they say what a size is.
    """
    found: list[Found] = []
    sizes = {str(symbol) for symbol, values in env.var_to_range.items() if values.lower >= 0}
    for each in guards_of(env):
        if isinstance(each, Undecided) or each.layout:
            continue
        condition = _in_known_symbols(each.condition, {str(symbol): value for symbol, value in env.replacements.items()})
        for part in condition.parts():
            sole = part.sole
            if sole is None or any(name not in known for name in part.symbols()):
                continue
            if not part.is_fact():
                found += map(Decision, part.root() if sizes.issuperset(part.symbols()) else ())
            elif sole.sign == "==" or all(side.constant_term == 0 for side in (sole.left, sole.right)):
                found.append(Decision(part))
    return found


# --- all of a program -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settled:
    """What a trace decided, each condition once, in terms of the inputs' symbols. layout: how many decided how data lie in memory, and no
    value; always: how many hold by themselves."""

    decisions: tuple[Decision, ...]
    undecided: tuple[Undecided, ...]
    layout: int
    always: int


def settle(found: Iterable[Found], replacements: Mapping[sympy.Symbol, sympy.Expr], known: Container[str]) -> Settled:
    """replacements: what the environment of shapes found some symbols to be. known: the symbols that inputs have.

    A condition that concerns the layout here and a value there concerns a value; one with a place goes before one without.
    """
    values = {str(symbol): value for symbol, value in replacements.items()}
    kept: dict[Condition, Decision] = {}
    layout: set[Condition] = set()
    undecided: dict[str, Undecided] = {}
    always = 0
    for each in found:
        if isinstance(each, Undecided):
            undecided.setdefault(each.text, each)
            continue
        condition = _in_known_symbols(each.condition, values)
        unknown = [name for name in condition.symbols() if name not in known]
        if each.layout:
            layout.add(condition)
        elif condition == NEVER or unknown:
            reason = f"{unknown[0]} depends on data" if unknown else "it never holds"
            text = str(each.condition) if each.condition.symbols() else "a condition on sizes"
            undecided.setdefault(text, Undecided(text, reason, each.why.removeprefix("decided at ").removeprefix("decided by ")))
        for part in condition.parts() if not each.layout and not unknown else []:
            if part.sole is None and not part.symbols():
                always += 1
            elif part not in kept or not kept[part].why:
                kept[part] = Decision(part, each.why, message=each.message)
    return Settled(tuple(kept.values()), tuple(undecided.values()), len(layout - kept.keys()), always)


def _in_known_symbols(condition: Condition, values: Mapping[str, sympy.Expr]) -> Condition:
    """The condition with replaced symbols replaced, until none is left; symbols whose replacement is no integer stay."""
    for _ in range(8):
        images: dict[str, Dim] = {}
        for name in condition.symbols():
            if name in values:
                try:
                    images[name] = parse_dim(to_text(values[name]))
                except SymbolError:
                    continue
        if not images:
            return condition
        condition = condition.replace(images)
    return condition
