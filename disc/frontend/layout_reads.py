"""What a model reads of how tensors lie in memory, while it is exported.

    x + x.stride(0)             # model.py:12: the number of the trace is in the graph
    if y.is_contiguous(): ...   # the other branch is gone from it

A compiled program takes each input for row-major, in whatever memory it comes, and sizes of 0 and 1 have strides of their own. So inputs
on which such a number depends must come row-major, what is asked of other values becomes a condition on sizes, and what neither says is
refused, with the line. What PyTorch's own code reads chooses how it computes, not what.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType

import sympy
import torch
import torch._ops
import torch._tensor
from torch import fx
from torch._dynamo.variables.tensor import TensorVariable
from torch._export import non_strict_utils
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.conditions import relation
from disc.frontend.decisions import Decision
from disc.frontend.locations import TORCH, frame_text
from disc.frontend.symbols import Size, SymbolError, product, same_size, to_shape
from disc.ir.python_source import parse_source
from disc.shapes import Condition, all_of, any_of

ROW_MAJOR = "disc_row_major"  # among the metadata of a program that `export_module` made: number of an input from the end → lines
CONTIGUOUS = "is_contiguous"
DIMS = frozenset({"stride", "sym_stride"})  # which may be asked for one dim
STRIDES = DIMS | {"dim_order", "is_non_overlapping_and_dense"}
OFFSETS = frozenset({"storage_offset", "sym_storage_offset"})
VIEWS = frozenset({"_is_view", "is_set_to"})
READS = frozenset({CONTIGUOUS, *STRIDES, *OFFSETS, *VIEWS})
BASE = torch.Tensor._base.__get__  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
# Dims from the innermost outwards, for each rank.
FORMATS: dict[torch.memory_format, Callable[[int], Sequence[int] | None]] = {
    torch.contiguous_format: lambda rank: tuple(reversed(range(rank))),
    torch.channels_last: lambda rank: (1, 3, 2, 0) if rank == 4 else None,
    torch.channels_last_3d: lambda rank: (1, 4, 3, 2, 0) if rank == 5 else None,
}
# Frames between the model's code and a function of a tensor.
_THROUGH = frozenset(module.__file__ for module in (torch._ops, torch._tensor, torch.overrides, non_strict_utils))
OF_ORDER = "how this value lies in memory depends on sizes, not always as in the trace; numbers of elements are products of x.shape"


class LayoutReads:
    """What one export has read. inputs: how many leaves the arguments have.

    rows: number of an input from the end → the lines for which it must be row-major. decisions: what must hold of sizes.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.rows: dict[int, list[str]] = {}
        self.decisions: list[Decision] = []
        self._refused: dict[UnsupportedOp, None] = {}

    def check(self) -> None:
        """Raises: UnsupportedOpError."""
        if self._refused:
            raise UnsupportedOpError(list(self._refused))

    def see(self, func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """A function of PyTorch that is called now."""
        name = "_base" if func == BASE else getattr(func, "__name__", "").partition(".")[0]
        if name not in READS and func != BASE:
            return
        frame = _model_frame()
        value = args[0] if args else kwargs.get("self")
        if frame is None or not isinstance(value, torch.Tensor) or not _matters(name, frame.f_code, frame.f_lineno):
            return
        place = frame_text(frame.f_code.co_filename, frame.f_lineno)
        node = _node(value)
        placeholders = list(node.graph.find_nodes(op="placeholder")) if node is not None else []
        own = placeholders[len(placeholders) - self.inputs :]
        sources = [each for each in _inputs_of(node) if each in own] if node is not None else []
        if name in VIEWS or func == BASE:
            self._refuse(name, "whether a tensor is a view differs from call to call", place)
        elif any(not _is_row_major(each) for each in sources):
            self._refuse(name, "the example has an input there that is not row-major, and so is not taken as it lies", place)
        elif name == CONTIGUOUS:
            self._decide(value, args[1] if len(args) > 1 else kwargs.get("memory_format", torch.contiguous_format), place)
        elif "as_strided" not in frame.f_code.co_names:  # to which strides go, where the code has it: it reads the same elements then
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            self._number(name, value, node in sources, sources, [dim] if isinstance(dim, int) and name in DIMS else None, place)
        for each in sources:
            lines = self.rows.setdefault(len(own) - 1 - own.index(each), [])
            if place not in lines:
                lines.append(place)

    def _decide(self, value: torch.Tensor, format: object, place: str) -> None:
        order = FORMATS[format](value.dim()) if isinstance(format, torch.memory_format) and format in FORMATS else None
        if order is None:
            return  # false for every tensor of the rank
        try:
            holds = _contiguous(value, order)
            self.decisions.append(Decision(holds if value.is_contiguous(memory_format=format) else holds.negated(), f"decided at {place}"))  # pyright: ignore[reportArgumentType]
        except (SymbolError, ValueError):
            self._refuse(CONTIGUOUS, OF_ORDER, place)

    def _number(
        self, name: str, value: torch.Tensor, is_input: bool, sources: Sequence[fx.Node], dims: Sequence[int] | None, place: str
    ) -> None:
        sizes = to_shape(value.shape)
        if all(isinstance(size, int) for size in sizes) and all(_is_fixed(each) for each in sources):
            return  # the trace has it as it is, once these are row-major
        if name in OFFSETS:
            self._refuse(name, "what lies before an input in memory differs from call to call", place)
        elif not is_input:
            self._refuse(name, OF_ORDER, place)
        else:
            read = range(value.dim()) if dims is None else [dim % value.dim() for dim in dims]
            if any(sizes[dim] in (0, 1) for dim in read):
                self._refuse(name, "the stride of a dim of size 0 or 1 differs from call to call", place)
                return
            why = f"decided at {place}"
            self.decisions += [Decision(relation("!=", size, 0), why) for size in sizes if not isinstance(size, int)]
            self.decisions += [Decision(relation("!=", sizes[dim], 1), why) for dim in read if not isinstance(sizes[dim], int)]

    def _refuse(self, name: str, reason: str, place: str) -> None:
        self._refused[UnsupportedOp(f"Tensor.{name}", reason, place)] = None

    @contextmanager
    def of_control_flow(self) -> Iterator[None]:
        """While PyTorch traces what `torch.cond` and its like run, which it does by Dynamo: no mode sees that."""
        real = TensorVariable.call_method

        def call(variable: TensorVariable, tx: object, name: str, *rest: object, **named: object) -> object:
            code, line = getattr(tx, "f_code", None), getattr(tx, "lineno", 0)
            if name in READS and isinstance(code, CodeType) and not code.co_filename.startswith(TORCH) and _matters(name, code, line):
                self._refuse(name, "in a branch or loop it is not checked", frame_text(code.co_filename, line))
            return real(variable, tx, name, *rest, **named)  # pyright: ignore[reportArgumentType, reportCallIssue]

        TensorVariable.call_method = call  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            TensorVariable.call_method = real


def _model_frame() -> FrameType | None:
    """What called a function of PyTorch, where that is not PyTorch."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename in _THROUGH or frame.f_code.co_name == "__torch_function__"):
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith((TORCH, "<")) else frame


def _node(value: torch.Tensor) -> fx.Node | None:
    """Of the graph that is being traced."""
    mode = get_proxy_mode()
    slot = get_proxy_slot(value, mode.tracer, None) if mode is not None else None  # pyright: ignore[reportArgumentType]
    return slot.proxy.node if slot is not None else None  # pyright: ignore[reportAttributeAccessIssue]


def _inputs_of(node: fx.Node) -> Iterator[fx.Node]:
    """The placeholders that a value depends on."""
    seen, left = {node}, [node]
    while left:
        each = left.pop()
        if each.op == "placeholder" and isinstance(each.meta.get("val"), torch.Tensor):
            yield each
        new = [other for other in each.all_input_nodes if other not in seen]
        seen.update(new)
        left += new


def _is_fixed(node: fx.Node) -> bool:
    """Whether all strides of an input are, where it is row-major: those of dims of size 0 and 1 say nothing."""
    return all(isinstance(size, int) and size > 1 for size in to_shape(node.meta["val"].shape))


def _is_row_major(node: fx.Node) -> bool:
    value = node.meta["val"]
    sizes, strides = to_shape(value.shape), to_shape(value.stride())
    return all(
        size == 1 or same_size(stride, product(sizes[dim + 1 :])) for dim, (size, stride) in enumerate(zip(sizes, strides, strict=True))
    )


def _contiguous(value: torch.Tensor, order: Sequence[int]) -> Condition:
    """When a tensor lies in this order, from its strides; dims of size 1 do not matter, nor does anything of an empty row-major one."""
    sizes, strides = to_shape(value.shape), to_shape(value.stride())
    expected: Size = 1
    every: list[Condition] = []
    for dim in order:
        every.append(any_of((_equal(sizes[dim], 1), _equal(strides[dim], expected))))
        expected = product([expected, sizes[dim]])
    whole = all_of(every)
    return any_of((whole, *(_equal(size, 0) for size in sizes))) if tuple(order) == tuple(reversed(range(len(sizes)))) else whole


def _equal(left: Size, right: Size) -> Condition:
    return relation("==", sympy.sympify(left), sympy.sympify(right))


# --- what changes nothing -------------------------------------------------------------------------------------------------------


def _matters(name: str, code: CodeType, line: int) -> bool:
    """Whether values may depend on what is read at this line: `if not x.is_contiguous(): x = x.contiguous()` is the same either way."""
    if name != CONTIGUOUS:
        return True
    return not any(_is_harmless(each, line) for each in _statements("".join(linecache.getlines(code.co_filename))))


@functools.lru_cache(maxsize=64)
def _statements(source: str) -> tuple[ast.AST, ...]:
    try:
        tree = parse_source(source)
    except (SyntaxError, ValueError):
        return ()
    return tuple(each for each in ast.walk(tree) if isinstance(each, ast.If | ast.IfExp | ast.Assert))


def _is_harmless(found: ast.AST, line: int) -> bool:
    assert isinstance(found, ast.If | ast.IfExp | ast.Assert)
    test = found.test
    if not test.lineno <= line <= (test.end_lineno or test.lineno):
        return False
    if isinstance(found, ast.Assert):
        return True
    asked = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if not (isinstance(asked, ast.Call) and isinstance(asked.func, ast.Attribute) and asked.func.attr == CONTIGUOUS):
        return False
    own = ast.dump(asked.func.value)
    if isinstance(found, ast.IfExp):
        return all(_is_same(each, own) for each in (found.body, found.orelse))
    return all(_keeps(each, own) for each in (*found.body, *found.orelse))


def _is_same(value: ast.expr, own: str) -> bool:
    """`x`, `x.contiguous()`, `x.clone()`."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("contiguous", "clone"):
        value = value.func.value
    return ast.dump(value) == own


def _keeps(statement: ast.stmt, own: str) -> bool:
    if isinstance(statement, ast.Pass):
        return True
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if len(targets) != 1 or not isinstance(statement, ast.Assign):
        return False
    return ast.dump(targets[0]).replace("Store()", "Load()") == own and _is_same(statement.value, own)
