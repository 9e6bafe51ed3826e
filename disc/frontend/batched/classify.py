"""What each step of a function is, by what running showed: tensor code, a read of a value, a call, or Python's own."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from disc.frontend.batched.normal_form import is_temporary
from disc.frontend.batched.steps import Branch, Compute, Effect, Jump, Loop, Raise, Return, Step, Unpack, names, uses, walk
from disc.frontend.batched.values import READS

CREATIONS = frozenset({"zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "clone"})
UNTOLD = (ast.Is, ast.IsNot, ast.In, ast.NotIn)


class Classes:
    """The classes of a function's steps:

    "tensor": pure tensor code; "path": finds a module, weight or function; "glue": packs and unpacks what it is given; "plain": other pure
    Python; "change": of a container; "mutation": of a tensor, in place, that other names may hold; "call": asks the driver; "read": needs a
    value on the host; "control"; "new": has not run yet.

    is_straight: whether a user's function is straight-line tensor code throughout.
    """

    def __init__(self, steps: Sequence[Step], is_straight: Callable[[object], bool]) -> None:
        self._steps = list(walk(steps))
        self._is_straight = is_straight
        self._known: dict[Step, str] = {}
        self._unshared: dict[str, bool] = {}
        calls = [each for each in self._steps if isinstance(each, Compute) and each.seen.categories == {"numbers"}]
        self.lists = {made for each in calls if (made := self._displayed(each)) is not None}  # whose parts are the numbers of new tensors

    def of(self, step: Step) -> str:
        found = self._known.get(step)
        if found is None:
            found = self._known[step] = self._classify(step)
        return found

    def _classify(self, step: Step) -> str:
        if isinstance(step, Return | Jump | Raise):
            return "control"
        if isinstance(step, Loop):
            return "control" if step.items is None or step.seen.learnt() else "new"
        if isinstance(step, Compute) and step.kind in ("display", "move"):
            return "tensor" if step in self.lists else "glue"
        if isinstance(step, Effect) and not isinstance(step.statement, ast.Assign):
            return "change"
        if not step.seen.learnt():
            return "new"
        if isinstance(step, Branch):
            return "read" if "tensor" in step.seen.kinds else "control"
        if isinstance(step, Unpack):
            return "tensor" if step.seen.only("tensor") else "glue"
        if isinstance(step, Effect):
            return "mutation" if "tensor" in step.seen.kinds else "change"
        assert isinstance(step, Compute)
        return self._call(step) if step.kind == "call" else self._operation(step)

    def _operation(self, step: Compute) -> str:
        seen = step.seen
        if step.kind == "attribute":
            if seen.only("tensor"):
                return "tensor"
            if seen.only("module", "namespace"):
                return "path"
            return "glue" if seen.only("tensors") else "plain"
        if step.kind == "item":
            if seen.only("tensor"):
                return "tensor"
            constant = isinstance(step.value, ast.Subscript) and isinstance(step.value.slice, ast.Constant)
            return "path" if seen.only("module") else "glue" if constant and seen.only("tensors") else "plain"
        if step.kind == "inplace":
            return "change" if not seen.only("tensor") else "tensor" if self.unshared(step.target) else "mutation"
        if isinstance(step.value, ast.UnaryOp) and isinstance(step.value.op, ast.Not):
            return "read" if "tensor" in seen.kinds else "plain"
        if isinstance(step.value, ast.Compare) and isinstance(step.value.ops[0], UNTOLD):
            return "plain"
        return "tensor" if "tensor" in seen.kinds else "plain"

    def _call(self, step: Compute) -> str:
        categories, seen = step.seen.categories, step.seen
        if categories <= {"torch"} or categories == {"number"} or (categories == {"numbers"} and self._displayed(step) is not None):
            return "tensor"
        if categories == {"function"}:
            return "tensor" if all(map(self._is_straight, seen.callees)) else "call"
        if categories == {"read"}:
            return "read" if self._reads_alone(step) else "call"
        if categories == {"cast"}:
            return "read" if "tensor" in seen.kinds and self._casts_alone(step) else "plain"
        if categories == {"sum"}:
            return "tensor" if seen.containers else "plain"
        if categories == {"path"}:
            return "path"
        if categories == {"maker"}:
            return "glue"
        if categories <= {"pure", "given", "number", "numbers", "cast"}:
            return "plain"
        return "change" if categories == {"changing"} else "call"

    def _displayed(self, step: Compute) -> Compute | None:
        """The step that writes the list `torch.tensor([a, b])` is made of; None where that is not written there."""
        called = step.value
        first = called.args[0] if isinstance(called, ast.Call) and called.args else None
        if not isinstance(first, ast.Name) or not is_temporary(first.id):
            return None
        made = [each for each in self._steps if isinstance(each, Compute) and each.target == first.id]
        return made[0] if len(made) == 1 and made[0].kind == "display" else None

    @staticmethod
    def _reads_alone(step: Compute) -> bool:
        called = step.value
        return isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and not called.args and not called.keywords

    @staticmethod
    def _casts_alone(step: Compute) -> bool:
        called = step.value
        return (
            isinstance(called, ast.Call) and len(called.args) == 1 and not called.keywords and not isinstance(called.args[0], ast.Starred)
        )

    def read_of(self, step: Compute) -> tuple[str, ast.expr]:
        """How a value is read, and of what."""
        value = step.value
        if isinstance(value, ast.UnaryOp):
            return "bool", value.operand
        assert isinstance(value, ast.Call)
        if isinstance(value.func, ast.Attribute):
            return READS[value.func.attr], value.func.value
        assert isinstance(value.func, ast.Name)
        return value.func.id if value.func.id in ("bool", "float", "int") else "item", value.args[0]

    def unshared(self, name: str) -> bool:
        """Whether nothing else can hold the tensor of this name, so that changing it in place is computing another one.

        True where the name is bound by operators and by calls that make new tensors, and read by tensor code that keeps no alias.
        """
        found = self._unshared.get(name)
        if found is None:
            self._unshared[name] = True  # which what follows asks for in circles
            found = self._unshared[name] = all(self._keeps_alone(step, name) for step in self._steps)
        return found

    def _keeps_alone(self, step: Step, name: str) -> bool:
        if isinstance(step, Compute) and step.target == name and step.kind != "inplace" and not self._makes_new(step):
            return False
        if isinstance(step, Unpack | Loop) and name in (names(step.targets) if isinstance(step, Unpack) else {step.target}):
            return False
        if name not in uses(step) or isinstance(step, Return):
            return True
        if not isinstance(step, Compute):
            return False
        if step.kind == "inplace":
            return step.seen.only("tensor")
        return self.of(step) == "tensor" and (_is_arithmetic(step) or self._is_linear(step))

    def _is_linear(self, step: Compute) -> bool:
        """Whether it is a call of PyTorch whose result is no view: its name says so."""
        return step.seen.categories == {"torch"} and _called_name(step) in CREATIONS | {
            "tanh",
            "sigmoid",
            "relu",
            "softmax",
            "linear",
            "exp",
        }

    def _makes_new(self, step: Compute) -> bool:
        if _is_arithmetic(step):
            return self.of(step) in ("tensor", "plain") and not is_temporary(step.target)
        return step.kind == "call" and step.seen.categories == {"torch"} and _called_name(step) in CREATIONS


def _is_arithmetic(step: Compute) -> bool:
    """Whether it is an operator, of those that make new tensors."""
    return step.kind == "operator" and not (isinstance(step.value, ast.UnaryOp) and isinstance(step.value.op, ast.UAdd))


def _called_name(step: Compute) -> str:
    called = step.value
    if not isinstance(called, ast.Call):
        return ""
    return called.func.attr if isinstance(called.func, ast.Attribute) else called.func.id if isinstance(called.func, ast.Name) else ""
