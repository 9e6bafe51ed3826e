"""Conditions of PyTorch on sizes, as sympy expressions or as the Python text that a `.pt2` file keeps, → `disc.shapes.Condition`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy
from torch.utils._sympy import functions as torch_sympy

from disc.frontend.computed_numbers import name_of
from disc.frontend.symbols import EXACT, SymbolError, to_text
from disc.ir.python_source import parse_expression
from disc.shapes import ALWAYS, NEVER, Comparison, Condition, Dim, all_of, any_of, ceildiv, dim_max, dim_min, parse_dim
from disc.shapes.algebra import is_power_of_two
from disc.shapes.conditions import NEGATED

_SIGNS: tuple[tuple[type[sympy.Basic], str], ...] = (
    (sympy.Eq, "=="), (sympy.Ne, "!="), (sympy.Le, "<="), (sympy.Lt, "<"), (sympy.Ge, ">="), (sympy.Gt, ">"),
)  # fmt: skip
_QUOTIENTS = (torch_sympy.IntTrueDiv, torch_sympy.FloatTrueDiv)
_POWERS = (sympy.Pow, torch_sympy.PowByNatural)
_WHOLE_PARTS = (torch_sympy.TruncToInt, torch_sympy.FloorToInt)
_TURNED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<"}


_ONE = Dim.of(1)


@dataclass(frozen=True)
class _Number:
    """numerator / denominator, the denominator positive where it is a size that is not 0.

    PyTorch compares the f64 next to a quotient. It compares like the quotient itself as long as numbers of the user's are short binary
    fractions and sizes are below 2**26. Of what else is computed of such an f64 but its double and its half, this is not known.
    """

    numerator: Dim
    denominator: Dim = _ONE

    @property
    def is_rounded(self) -> bool:
        return not self.denominator.is_const or not is_power_of_two(self.denominator.const)

    def __add__(self, other: _Number) -> _Number:
        """Raises: SymbolError where a rounded number is rounded again."""
        if self.is_rounded or other.is_rounded:
            raise SymbolError(f"how the sum of {self} and {other} is rounded decides")
        if self.denominator == other.denominator:
            return _Number(self.numerator + other.numerator, self.denominator)
        return _Number(self.numerator * other.denominator + other.numerator * self.denominator, self.denominator * other.denominator)

    def __neg__(self) -> _Number:
        return _Number(-self.numerator, self.denominator)

    def __mul__(self, other: _Number) -> _Number:
        """Raises: as a sum."""
        if (self.is_rounded and not other.is_scale) or (other.is_rounded and not self.is_scale):
            raise SymbolError(f"how the product of {self} and {other} is rounded decides")
        return _Number(self.numerator * other.numerator, self.denominator * other.denominator)

    def over(self, other: _Number) -> _Number:
        """The quotient. Raises: SymbolError where the sign of the divisor is not known, or a rounded number is rounded again."""
        if other.is_rounded or (self.is_rounded and not other.is_scale):
            raise SymbolError(f"how the quotient of {self} and {other} is rounded decides")
        if any(coefficient < 0 for coefficient, _ in other.numerator.monomials) or other.numerator == 0:
            raise SymbolError(f"it divides by {other.numerator}, which may be negative or 0")
        return _Number(self.numerator * other.denominator, self.denominator * other.numerator)

    @property
    def is_scale(self) -> bool:
        """Whether a product with it is exact: a power of two, or its negative."""
        return self.numerator.is_const and is_power_of_two(abs(self.numerator.const)) and not self.is_rounded

    def __str__(self) -> str:
        return str(self.numerator) if self.denominator == _ONE else f"({self.numerator}) / ({self.denominator})"

    @property
    def whole(self) -> Dim:
        """Raises: SymbolError for a fraction."""
        if self.denominator != 1:
            raise SymbolError(f"{self.numerator} / {self.denominator} has no integer form")
        return self.numerator


def _compared(sign: str, left: _Number, right: _Number) -> Condition:
    """In one form; without symbols it always or never holds."""
    if left.denominator == right.denominator:
        a, b = left.numerator, right.numerator
    else:
        a, b = left.numerator * right.denominator, right.numerator * left.denominator
    condition = Condition(((Comparison(sign, a, b).normalized(),),))
    return condition if condition.symbols() else ALWAYS if condition.evaluate({}) else NEVER


def _constant(value: float) -> _Number:
    """Raises: SymbolError for a number that is no short binary fraction."""
    try:
        fraction = Fraction(value)
    except (OverflowError, ValueError) as error:
        raise SymbolError(f"{value} is no finite number") from error
    if fraction.denominator > EXACT:
        raise SymbolError(f"{value} is no fraction of a power of two: how it is rounded decides")
    return _Number(Dim.of(fraction.numerator), Dim.of(fraction.denominator))


# --- sympy ----------------------------------------------------------------------------------------------------------------------


def relation(sign: str, left: sympy.Expr | int, right: sympy.Expr | int) -> Condition:
    """`left sign right`; sympy would fold what follows from its assumption that every size is positive.

    Raises: SymbolError.
    """
    return _compared(sign, _number(sympy.sympify(left)), _number(sympy.sympify(right)))


def condition_of(expression: sympy.Basic) -> Condition:
    """Raises: SymbolError for what is no condition on integers, ValueError for one that is too long."""
    if expression in (sympy.true, sympy.false):
        return ALWAYS if expression == sympy.true else NEVER
    if isinstance(expression, sympy.And | sympy.Or):
        return (all_of if isinstance(expression, sympy.And) else any_of)(map(condition_of, expression.args))
    if isinstance(expression, sympy.Not):
        return condition_of(expression.args[0]).negated()
    for kind, sign in _SIGNS:
        if isinstance(expression, kind):
            left, right = expression.args
            assert isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)
            found = _of_cases(sign, left, right) or _of_whole_root(sign, left, right)
            return found or _of_integers(sign, left, right)
    raise SymbolError(f"{expression} is no comparison")


def _of_integers(sign: str, left: sympy.Expr, right: sympy.Expr) -> Condition:
    """A comparison of integers, or of fractions; where how floats are rounded decides, of what a call computes with 1.

    Raises: SymbolError.
    """
    try:
        return relation(sign, left, right)
    except SymbolError:
        if sign in ("!=", "<", ">"):
            return _of_integers(NEGATED[sign], left, right).negated()
        name = name_of(sympy.Eq(left, right) if sign == "==" else sympy.Ge(left, right) if sign == ">=" else sympy.Ge(right, left))
        if name is None:
            raise
        return Condition.of(">=", parse_dim(name), _ONE)


def _of_cases(sign: str, left: sympy.Expr, right: sympy.Expr) -> Condition | None:
    """A number that depends on conditions, as a bool among the data is written, against another. None for other comparisons."""
    if isinstance(right, sympy.Piecewise):
        left, right, sign = right, left, _TURNED.get(sign, sign)
    if not isinstance(left, sympy.Piecewise):
        return None
    met: list[Condition] = []
    before = ALWAYS
    for case in left.args:
        value, when = case.args
        assert isinstance(value, sympy.Expr)
        condition = condition_of(when)
        met.append(all_of([before, condition, relation(sign, value, right)]))
        before = all_of([before, condition.negated()])
    return any_of(met)


def _of_whole_root(sign: str, left: sympy.Expr, right: sympy.Expr) -> Condition | None:
    """`int(n ** 0.5)`, or of `math.sqrt(n)`, compared with a number, by squares: with n below 2**52 the root is rounded right. None for
    other comparisons."""
    if left.is_Integer:
        left, right, sign = right, left, _TURNED.get(sign, sign)
    root_of = left.args[0] if isinstance(left, _WHOLE_PARTS) else None
    is_root = isinstance(root_of, torch_sympy.OpaqueUnaryFn_sqrt) or (isinstance(root_of, torch_sympy.FloatPow) and root_of.args[1] == 0.5)
    if root_of is None or not is_root or not right.is_Integer or right < 0:
        return None
    (radicand,) = root_of.args[0].args if isinstance(root_of.args[0], torch_sympy.ToFloat) else (root_of.args[0],)
    assert isinstance(radicand, sympy.Expr)
    root = int(right)
    at_least, above = relation(">=", radicand, root * root), relation(">=", radicand, (root + 1) ** 2)
    return {
        "==": lambda: all_of([at_least, above.negated()]), "!=": lambda: any_of([at_least.negated(), above]),
        ">=": lambda: at_least, "<": at_least.negated, ">": lambda: above, "<=": above.negated,
    }[sign]()  # fmt: skip


def _number(expression: sympy.Expr) -> _Number:
    try:
        return _Number(parse_dim(to_text(expression)))
    except (SymbolError, AttributeError):
        pass
    if isinstance(expression, sympy.Float):
        return _constant(float(expression))
    if isinstance(expression, sympy.Rational):
        return _Number(Dim.of(int(expression.p)), Dim.of(int(expression.q)))
    parts = [part for part in expression.args if isinstance(part, sympy.Expr)]
    if isinstance(expression, torch_sympy.ToFloat):
        return _number(parts[0])
    if isinstance(expression, _QUOTIENTS):
        return _number(parts[0]).over(_number(parts[1]))
    if isinstance(expression, _POWERS) and parts[1].is_Integer and 0 < int(parts[1]) <= 8:
        return _product([_number(parts[0])] * int(parts[1]))
    if isinstance(expression, sympy.Add):
        total = _Number(Dim.of(0))
        for part in parts:
            total = total + _number(part)
        return total
    if isinstance(expression, sympy.Mul):
        return _product([_number(part) for part in parts])
    raise SymbolError(f"{expression} has no integer form")


def _product(factors: list[_Number]) -> _Number:
    total = _Number(Dim.of(1))
    for factor in factors:
        total = total * factor
    return total


# --- Python text ----------------------------------------------------------------------------------------------------------------

_TEXT_SIGNS: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.NotEq: "!=", ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">"}


def condition_of_text(text: str, sizes: Mapping[str, Dim]) -> Condition:
    """sizes: the text of a source ("L['x'].size()[1]") → its size.

    Raises: SymbolError for what is no condition on these, ValueError for one that is too long.
    """
    try:
        return _TextReader(sizes).condition(parse_expression(text))
    except SyntaxError as error:
        raise SymbolError("it is no expression of Python") from error


class _TextReader:
    def __init__(self, sizes: Mapping[str, Dim]) -> None:
        self.sizes = sizes

    def condition(self, node: ast.expr) -> Condition:
        if isinstance(node, ast.BoolOp):
            return (all_of if isinstance(node.op, ast.And) else any_of)(map(self.condition, node.values))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            return (all_of if isinstance(node.op, ast.BitAnd) else any_of)(map(self.condition, (node.left, node.right)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.condition(node.operand).negated()
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return ALWAYS if node.value else NEVER
        if not isinstance(node, ast.Compare) or not all(type(op) in _TEXT_SIGNS for op in node.ops):
            raise SymbolError(f"{ast.unparse(node)} is no comparison of sizes")
        numbers = [self.number(each) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, numbers, numbers[1:], strict=False)
        return all_of(_compared(_TEXT_SIGNS[type(op)], left, right) for op, left, right in pairs)

    def number(self, node: ast.expr) -> _Number:
        text = ast.unparse(node)
        if text in self.sizes:
            return _Number(self.sizes[text])
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return _constant(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.number(node.operand)
        if isinstance(node, ast.BinOp):
            return self.arithmetic(node)
        if isinstance(node, ast.Call) and not node.keywords:
            return self.call(ast.unparse(node.func), [self.number(each) for each in node.args], text)
        raise SymbolError(f"{text} is no size of an input")

    def arithmetic(self, node: ast.BinOp) -> _Number:
        left, right = self.number(node.left), self.number(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left + -right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left.over(right)
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            return _Number(left.whole // right.whole if isinstance(node.op, ast.FloorDiv) else left.whole % right.whole)
        if isinstance(node.op, ast.Pow) and right.whole.is_const and 0 < right.whole.const <= 8:
            return _product([left] * right.whole.const)
        raise SymbolError(f"{ast.unparse(node)} has no integer form")

    def call(self, name: str, given: list[_Number], text: str) -> _Number:
        if name in ("min", "max") and given:
            total = given[0].whole
            for each in given[1:]:
                total = (dim_min if name == "min" else dim_max)(total, each.whole)
            return _Number(total)
        if name in ("float", "torch.sym_float", "int") and len(given) == 1 and (name != "int" or given[0].denominator == 1):
            return given[0]
        if name in ("math.floor", "math.ceil") and len(given) == 1:
            round_ = Dim.__floordiv__ if name == "math.floor" else ceildiv
            return _Number(round_(given[0].numerator, given[0].denominator))
        raise SymbolError(f"{text} has no integer form")
