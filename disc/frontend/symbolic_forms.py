"""While a module is exported: forms of functions that keep sizes symbolic, and a record of who fixes a size.

PyTorch's own C++ code of some functions reads sizes as plain integers, by which torch.export fixes a dim to the example's size.
"""

from __future__ import annotations

import functools
import itertools
import operator
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import CodeType

import sympy
import torch
import torch._higher_order_ops.utils as higher_order
import torch.fx.experimental._config as symbolic_config
import torch.nn.functional as F
from torch import Tensor
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.variables import builtin as dynamo_builtins
from torch._guards import detect_fake_mode
from torch._higher_order_ops import associative_scan, cond, scan, while_loop
from torch._higher_order_ops import map as map_along
from torch.fx.experimental.proxy_tensor import _make_temp_remove_mode_context_manager, get_proxy_mode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols, statically_known_true
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import Mod, PythonMod
from torch.utils._sympy.symbol import SymT, symbol_is_type

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.alignment_losses import FORMS as ALIGNMENT_FORMS
from disc.frontend.associative_scans import sequential_scans
from disc.frontend.composites import conv_tbc
from disc.frontend.composites import one_hot as one_hot_of
from disc.frontend.computed_numbers import ROUNDING
from disc.frontend.distribution_forms import FORMS as DISTRIBUTIONS
from disc.frontend.fake_quantization import FORMS as QUANTIZED_FORMS
from disc.frontend.fractional_pools import FORMS as FRACTIONAL_FORMS
from disc.frontend.grouped_products import FORMS as GROUPED_FORMS
from disc.frontend.histograms import FORMS as HISTOGRAMS
from disc.frontend.locations import running_line, user_line
from disc.frontend.matrix_functions import FORMS as MATRIX_FORMS
from disc.frontend.numpy_numbers import computes_in_fewer_bits
from disc.frontend.packed_sequences import FORMS as PACKED_FORMS
from disc.frontend.packed_sequences import sizes_of_packed_batches
from disc.frontend.plain_numbers import plain, plain_where_asked
from disc.frontend.recurrent_forms import RECURRENT_FORMS
from disc.frontend.replaced import replaced
from disc.frontend.sized_forms import FORMS as SIZED_FORMS
from disc.frontend.sized_forms import less_by
from disc.frontend.slices import demands, item
from disc.frontend.spectrograms import SPECTROGRAMS
from disc.frontend.tensor_indices import FORMS as INDEX_FORMS
from disc.frontend.tensor_indices import traced_indices
from disc.frontend.transformed_layers import FORMS as TRANSFORMED_FORMS
from disc.frontend.transformed_layers import is_transformed
from disc.frontend.untraced import untraced

Form = Callable[..., object]
See = Callable[[Callable[..., object], Sequence[object], Mapping[str, object]], None]
UNBACKED = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
GENERATOR = (
    "a program has no generator of PyTorch: leave the argument out and call it with seed=, which repeats its draws; "
    'torch.compile(model, backend="disc") draws from the generator'
)
PLAIN_NUMBER = "code at {} that takes it for a plain number (functions of torch keep it dynamic)"
OF_FEWER_BITS = "arithmetic of NumPy in fewer than 64 bits at {} (np.int64, np.float64 and Python's numbers keep it dynamic)"
_MAKING = (torch.tensor, torch.full, torch.scalar_tensor, torch.as_tensor)
ANY_SIZE = 2  # for a size that depends on data


def _is_of_sizes(value: object) -> bool:
    """Whether it is a condition, and none on data, which stays one."""
    return isinstance(value, torch.SymBool) and not free_unbacked_symbols(value)


class SymbolicForms(TorchFunctionMode):
    """Calls FORMS in the place of the functions that would fix a dim.

    fixed: the symbol of a dim → what fixed it, "unflatten (model.py:12)"; a weight that does (a convolution's channels) does not count.
    demanded: sizes, what they must at least be, though no guard says so, and where. see: is told of every call.
    """

    def __init__(self, see: See = lambda func, args, kwargs: None) -> None:
        super().__init__()
        self._see = see
        self.fixed: dict[sympy.Symbol, str] = {}
        self._known: dict[sympy.Symbol, sympy.Expr] = {}
        self.demanded: list[tuple[sympy.Expr, int, str]] = []
        self._conditions: set[sympy.Symbol] = set()  # fixed by a condition: a weight behind it may need that size, too
        self._plain: set[sympy.Symbol] = set()  # fixed by code that reads a plain number: no constant made of it is such a weight
        self._numbers = Numbers()
        self._read: dict[sympy.Symbol, str] = {}  # what says so, with the line of such code that reads it
        self._depth = 0  # of calls that are no such code

    def __torch_function__(
        self, func: Callable[..., object], types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        form = FORMS.get(func, func)
        if any(map(_is_of_sizes, args)) and (func in _MAKING or any(isinstance(each, Tensor) for each in args)):
            args = [plain(each) if _is_of_sizes(each) else each for each in args]  # `x * (n > 5)`
        kwargs = {name: value for name, value in (kwargs or {}).items() if name != "generator" or value is not None}
        self._see(func, args, kwargs)
        if isinstance(kwargs.get("generator"), torch.Generator):  # of which PyTorch's export keeps nothing that a call could set
            raise UnsupportedOpError([UnsupportedOp(f"generator= of {getattr(func, '__name__', func)}", GENERATOR, running_line())])
        if self._numbers.concern(func, (*args, *kwargs.values())):
            return self._numbers.call(func, args, kwargs)
        mode = detect_fake_mode(args)
        if mode is None or mode.shape_env is None:
            return form(*args, **kwargs)
        env = mode.shape_env
        self.demanded += [(size.node.expr, least, running_line()) for size, least in demands(func, args, kwargs)]
        self._note_conditions(env)
        given = (args, kwargs)
        of_weights = bool(self._plain or self._read) and _has_parameter(given)
        suspects = self._conditions | self._plain if of_weights else self._conditions
        for symbol in suspects & _symbols_of(given) if suspects else ():
            if needs_size(form, given, env, symbol):  # as layers check what they were made for (`nn.LSTM`), and models their channels
                self._conditions.discard(symbol)
                self._plain.discard(symbol)
                del self.fixed[symbol]
        with self.elsewhere():
            result = form(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        read = {} if of_weights else self._read  # what else may need a size that was read is made of it
        self._record(env.replacements, f"{name} ({{}})", lambda symbol: symbol not in read and needs_size(form, given, env, symbol))
        return result

    def _note_conditions(self, env: ShapeEnv) -> None:
        self._conditions.update(self._record(env.replacements, "a condition in Python at {} or before", lambda symbol: False))

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Within, what reads sizes is no code of the user's."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def of_numbers(self) -> Iterator[None]:
        """Within, the line is known at which code of the user's reads a size as a plain number, as `range`, lists and NumPy do."""

        def watched(real: Callable[..., object]) -> Callable[..., object]:
            def read(node: SymNode, file: str, line: int) -> object:
                env, read = node.shape_env, node.expr
                if self._depth or env is None:
                    return real(node, file, line)
                self._note_conditions(env)
                here = running_line()
                why = OF_FEWER_BITS if computes_in_fewer_bits() else PLAIN_NUMBER
                self._read = {**{each: why.format(here) for each in read.free_symbols if isinstance(each, sympy.Symbol)}, **self._read}
                if node.pytype is float or read.has(*ROUNDING):  # of a float PyTorch does not note that it fixes sizes
                    for each in (each for each in read.free_symbols if not symbol_is_type(each, UNBACKED)):
                        env.evaluate_expr(sympy.Eq(each, env.size_hint(each)))
                result = real(node, file, line)
                self._plain.update(self._record(env.replacements, PLAIN_NUMBER, lambda symbol: False))
                return result

            return read

        with replaced({(SymNode, name): watched(getattr(SymNode, name)) for name in ("guard_int", "guard_float")}), plain_where_asked():
            yield

    def leave_control_flow(self) -> None:
        """What was fixed where this mode did not see it was fixed by the weights there."""
        mode = detect_fake_mode()
        if mode is not None and mode.shape_env is not None:
            self._known = dict(mode.shape_env.replacements)

    def who_fixed(self, size: object) -> str | None:
        """What fixed the dim of this size; None where nothing did, or a weight."""
        symbol = size.node._expr if isinstance(size, torch.SymInt) else None
        while isinstance(symbol, sympy.Symbol) and symbol in self._known and symbol not in self.fixed:
            symbol = self._known[symbol]
        return self.fixed.get(symbol) if isinstance(symbol, sympy.Symbol) else None

    def _record(
        self, replacements: Mapping[sympy.Symbol, sympy.Expr], who: str, needed: Callable[[sympy.Symbol], bool]
    ) -> list[sympy.Symbol]:
        """The symbols that were fixed since the last call, and by no weight. who: with {} for the line. needed: whether a weight fixes the
        dim of a symbol."""
        if replacements == self._known:
            return []
        new = [symbol for symbol, value in replacements.items() if value.is_Integer and not self._known.get(symbol, symbol).is_Integer]
        self._known = dict(replacements)
        place = user_line("".join(traceback.format_stack()[:-2])) if new else None
        found = [symbol for symbol in new if not needed(symbol)]
        line = f"{place[0]}:{place[1]}" if place else "an unknown line"
        for symbol in found:
            self.fixed[symbol] = self._read[symbol] if symbol in self._read else who.format(line)
        return found


def _has_parameter(arguments: object) -> bool:
    return any(isinstance(leaf, torch.nn.Parameter) for leaf in pytree.tree_leaves(arguments))


def _symbols_of(arguments: object) -> set[sympy.Symbol]:
    """Of the sizes of tensors, also of dims that were fixed since."""
    sizes = (size for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor) for size in leaf.shape)
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node._expr.free_symbols}


def _traced_codes() -> Iterator[CodeType]:
    """Of the functions of PyTorch that Dynamo traces for `torch.cond` and its like, one for all graphs."""
    for function in (scan, cond, while_loop, map_along, associative_scan):
        for constant in function.__code__.co_consts:
            if isinstance(constant, CodeType) and constant.co_name.endswith(
                ("_op_wrapper", *(f"run_flattened_{each}" for each in FLATTENED))
            ):
                yield constant


FLATTENED = ("scan", "map", "associative_scan")
TRACED = tuple(_traced_codes())


@contextmanager
def graphs_of_control_flow() -> Iterator[None]:
    """Lets PyTorch trace the functions of `torch.cond` and its like without `SymbolicForms`, a mode that it cannot look through.

    Each time anew: where Dynamo has a trace of an earlier call, its guards compare the sizes of that with symbols, which fixes these. So
    would a size that Dynamo takes for another one, of a weight, since the example has both alike.
    """
    without = _make_temp_remove_mode_context_manager(SymbolicForms)
    original = higher_order.setup_compilation_env

    @contextmanager
    def setup() -> Iterator[object]:
        for code in TRACED:
            reset_code(code)
        with without() as forms, original() as backend, symbolic_config.patch(use_duck_shape=False):  # pyright: ignore[reportAttributeAccessIssue]
            with forms.elsewhere() if isinstance(forms, SymbolicForms) else nullcontext():
                yield backend
            if isinstance(forms, SymbolicForms):
                forms.leave_control_flow()

    higher_order.setup_compilation_env = setup
    # While it exports, PyTorch has functions of its own in the place of Python's `max` and `min`; Dynamo, which asks whether it has met
    # `max`, would take each for the other.
    names = dynamo_builtins.__dict__
    given = {each: names.get(each.__name__) for each in (max, min)}
    names.update(max=max, min=min)
    try:
        with sequential_scans(), sizes_of_packed_batches(), traced_indices():
            yield
    finally:
        higher_order.setup_compilation_env = original
        for each, before in given.items():
            names.pop(each.__name__) if before is None else names.update({each.__name__: before})


def needs_size(func: Callable[..., object], arguments: object, env: ShapeEnv, symbol: sympy.Symbol) -> bool:
    """Whether `func`, which reads a tensor of static dims too, fails where `symbol` is another size: that tensor, a weight, fixes the dim.

    `func` runs on tensors without data.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
    if not any(leaf.dim() and all(isinstance(size, int) for size in leaf.shape) for leaf in tensors):
        return False
    fixed = env.replacements[symbol]

    def size(value: int | torch.SymInt) -> int:
        if not isinstance(value, torch.SymInt):
            return value
        symbols = value.node._expr.free_symbols
        hints = {each: ANY_SIZE if symbol_is_type(each, UNBACKED) else env.size_hint(each) for each in symbols}
        return int(value.node._expr.xreplace({**hints, symbol: fixed + 1}))

    def other(leaf: object) -> object:
        if isinstance(leaf, Tensor):
            return torch.empty([size(each) for each in leaf.shape], dtype=leaf.dtype, device="meta")
        return size(leaf) if isinstance(leaf, torch.SymInt) else leaf

    with untraced():
        args, kwargs = pytree.tree_map(other, arguments)
        try:
            func(*args, **kwargs)
        except Exception:
            return True
    return False


class Numbers:
    """Tensors of one element that hold a size: `torch.tensor(x.shape[1])`, and sums, differences and products of such with integers.

    As the bound of a slice or of a clamp PyTorch would read such a tensor as data, of which it knows nothing; here the bound is the size.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Tensor, torch.SymInt]] = {}  # by id; the tensor stays alive, so that no other one gets its id

    def concern(self, func: Callable[..., object], args: Sequence[object]) -> bool:
        """True for a call that makes or reads such a tensor."""
        if func == torch.scalar_tensor:
            return bool(args) and isinstance(args[0], torch.SymInt)
        return bool(self._sizes) and func in READERS and any(id(argument) in self._sizes for argument in args)

    def call(self, func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """The result of `func`; where it is such a tensor, it is known as one from now on."""
        sizes = [self._size(argument) for argument in args]
        if func == torch.Tensor.item:
            return sizes[0]
        if func in CLAMPS and id(args[0]) not in self._sizes:
            return func(*sizes, **{name: self._size(argument) for name, argument in kwargs.items()})
        result = func(*args, **kwargs)
        size = sizes[0] if func in KEEPERS else ARITHMETIC[func](*sizes) if func in ARITHMETIC and _whole(sizes) and not kwargs else None
        if isinstance(size, torch.SymInt) and isinstance(result, Tensor) and result.dtype == torch.int64:
            self._sizes[id(result)] = (result, size)
        return result

    def _size(self, value: object) -> object:
        return self._sizes[id(value)][1] if id(value) in self._sizes else value


def _whole(values: Sequence[object]) -> bool:
    return all(isinstance(value, int | torch.SymInt) for value in values)


KEEPERS = frozenset({torch.scalar_tensor, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.detach_})
CLAMPS = frozenset({torch.clamp, torch.Tensor.clamp})
ARITHMETIC: dict[Callable[..., object], Callable[..., object]] = {
    torch.Tensor.add: operator.add, torch.Tensor.__add__: operator.add, torch.Tensor.__radd__: operator.add,
    torch.Tensor.sub: operator.sub, torch.Tensor.__sub__: operator.sub, torch.Tensor.__rsub__: lambda right, left: left - right,
    torch.Tensor.mul: operator.mul, torch.Tensor.__mul__: operator.mul, torch.Tensor.__rmul__: operator.mul,
}  # fmt: skip
READERS = frozenset({torch.Tensor.item, *KEEPERS, *CLAMPS, *ARITHMETIC})


def max_pool_1d(
    x: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """As an image of one row."""

    def row(value: int | Sequence[int], other: int) -> list[int]:
        return [other, value if isinstance(value, int) else value[0]]

    image, shape = x.unsqueeze(-2), (row(kernel_size, 1), row(stride or kernel_size, 1), row(padding, 0), row(dilation, 1), ceil_mode)
    if return_indices:
        values, indices = F.max_pool2d_with_indices(image, *shape)
        return values.squeeze(-2), indices.squeeze(-2)
    return F.max_pool2d(image, *shape).squeeze(-2)


def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather` after the other dims are broadcast."""
    if dim is None:
        return x.reshape(-1).gather(0, indices.reshape(-1))
    place = dim % x.dim()
    others = torch.broadcast_shapes(*((*each.shape[:place], *each.shape[place + 1 :]) for each in (x, indices)))

    def spread(value: Tensor) -> Tensor:
        return value.expand(*others[:place], value.shape[place], *others[place:])

    return spread(x).gather(place, spread(indices))


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """As eager makes them, by a mask of all tuples of places that are in order; PyTorch's own C++ code makes sizes that an export loses."""
    if r < 2:
        return x.unsqueeze(1) if r == 1 else x.new_empty([0])
    places = [torch.arange(x.shape[0]).reshape([-1 if dim == number else 1 for dim in range(r)]) for number in range(r)]
    ordered = [first <= second if with_replacement else first < second for first, second in itertools.pairwise(places)]
    return x[functools.reduce(torch.logical_and, ordered).nonzero()]


def unique_consecutive(x: Tensor, *flags: bool, dim: int | None = None, **named: bool) -> object:
    """PyTorch's trace of a negative dim gives a result of other dims. flags: as they were given, since which results there are depends
    on whether they have names."""
    along = flags[2] if len(flags) == 3 else dim
    place = along + x.dim() if along is not None and -x.dim() <= along < 0 else along
    return torch.unique_consecutive(x, *flags[:2], dim=place, **named)  # pyright: ignore[reportCallIssue]


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """As many classes as the largest number says are a size that depends on data; PyTorch's decomposition makes it a Python number."""
    if isinstance(num_classes, torch.SymInt) or num_classes != -1:
        return one_hot_of(x, num_classes)
    torch._check(x.min().item() >= 0, lambda: "class values must be non-negative")
    return (x.unsqueeze(-1) == torch.arange(x.max().item() + 1)).to(torch.int64)


def _transform(original: Callable[..., Tensor], halved: bool) -> Form:
    """Of `n` elements, whether the tensor has more or fewer of them: PyTorch's own code decides by the example.

    halved: it takes n // 2 + 1 of them.
    """

    def transform(x: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
        if n is None:
            return original(x, None, dim, norm)
        wanted = n // 2 + 1 if halved else n
        if not statically_known_true(x.shape[dim] == wanted):
            shape = list(x.shape)
            shape[dim] = wanted
            x = torch.cat([x, x.new_zeros(shape)], dim).narrow(dim, 0, wanted)
        return original(x, n, dim, norm)

    return transform


def _mean(original: Callable[..., Tensor]) -> Form:
    """Of complex numbers by parts: PyTorch makes a complex number of the size that it divides by."""

    def mean(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        if not x.is_complex():
            return original(x, dim, keepdim, dtype=dtype) if dim is not None else original(x, dtype=dtype)
        dims = list(range(x.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
        parts = torch.view_as_real(x if dtype is None else x.to(dtype))
        return torch.view_as_complex(parts.mean([each % x.dim() for each in dims], keepdim) if dims else parts)

    return mean


MANY_ROWS = 25  # eager measures distances between more rows by a product of matrices


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """By the form that eager takes for the sizes of a call; PyTorch's own code takes that of the example."""
    sizes = (x1.shape[-2], x2.shape[-2]) if min(x1.dim(), x2.dim()) > 1 else ()
    is_dynamic = any(isinstance(size, torch.SymInt) for size in sizes)
    if p != 2 or compute_mode != "use_mm_for_euclid_dist_if_necessary" or not is_dynamic or x1.dtype != x2.dtype:
        return torch.cdist(x1, x2, p, compute_mode)
    if is_differentiated():
        return torch.cdist(x1, x2, p, "donot_use_mm_for_euclid_dist")  # of which the gradient is eager's for any number of rows

    def by_product(a: Tensor, b: Tensor) -> Tensor:
        return torch.cdist(a, b, 2.0, "use_mm_for_euclid_dist")

    def by_difference(a: Tensor, b: Tensor) -> Tensor:
        return torch.cdist(a, b, 2.0, "donot_use_mm_for_euclid_dist")

    return cond(torch.sym_max(*sizes) > MANY_ROWS, by_product, by_difference, (x1, x2))  # pyright: ignore[reportArgumentType]


def is_differentiated() -> bool:
    """Whether the trace is one behind dispatch, or within `torch.func`, where derivatives are taken."""
    mode = get_proxy_mode()
    return (mode is not None and not mode.pre_dispatch) or is_transformed()


def nbytes(x: Tensor) -> int:
    """PyTorch's own C++ code reads the sizes as plain integers."""
    return x.numel() * x.element_size()


def cov(x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """Without weights; PyTorch's own C++ code looks at the sum of those that are not there."""
    if fweights is not None or aweights is not None or x.is_complex() or x.dim() > 2 or x.dtype == torch.bool:
        return torch.cov(x, correction=correction, fweights=fweights, aweights=aweights)
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    rows = rows if x.is_floating_point() else rows.to(torch.get_default_dtype())
    centered = rows - rows.mean(1, keepdim=True)
    return (centered @ centered.transpose(0, 1) / less_by(rows.shape[1], correction, 0)).squeeze()


def corrcoef(x: Tensor) -> Tensor:
    if x.is_complex() or x.dim() > 2 or x.dtype == torch.bool:
        return torch.corrcoef(x)
    covariance = cov(x)
    if not covariance.dim():
        return covariance / covariance
    deviation = covariance.diagonal().sqrt()
    return (covariance / deviation.unsqueeze(1) / deviation.unsqueeze(0)).clamp(-1, 1)


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Padding up to a multiple makes a dim that is written as one.

    `n + (c - n % c) % c` has no factor that PyTorch sees: a reshape to chunks of c would have sizes that hold each other, and tracing
    spends minutes on them.
    """
    amounts = [_up_to_multiple(x.shape[-1 - place // 2], each) if place % 2 else each for place, each in enumerate(pad)]
    return F.pad(x, amounts, mode, value)  # pyright: ignore[reportArgumentType]  # PyTorch declares sizes as plain integers


def _up_to_multiple(size: int | torch.SymInt, amount: int | torch.SymInt) -> int | torch.SymInt:
    """`amount`, as the difference to a multiple where it is the remainder that is missing to one."""
    if not isinstance(amount, torch.SymInt) or not isinstance(size, torch.SymInt):
        return amount
    missing = amount.node.expr
    multiple = missing.args[1] if isinstance(missing, Mod | PythonMod) else None
    if not isinstance(multiple, sympy.Integer) or multiple <= 0:
        return amount
    number = int(multiple)
    whole = missing.args[0].replace(lambda each: _is_remainder(each, number), lambda each: each.args[0])
    total = sympy.expand(whole + size.node.expr)
    if any(term.as_coeff_Mul()[0] % number for term in sympy.Add.make_args(total)):
        return amount
    return (size + number - 1) // number * number - size  # pyright: ignore[reportOperatorIssue]  # whole numbers stay whole


def _is_remainder(expression: sympy.Basic, number: int) -> bool:
    return isinstance(expression, Mod | PythonMod) and expression.args[1] == number


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """By views; PyTorch's own C++ code reads the sizes as plain integers."""
    if x.dim() < 3 or downscale_factor < 1:
        return torch.pixel_unshuffle(x, downscale_factor)
    *batch, channels, height, width = x.shape
    blocks = x.reshape(*batch, channels, height // downscale_factor, downscale_factor, width // downscale_factor, downscale_factor)
    last = x.dim() - 1
    turned = blocks.permute(*range(last - 1), last, last + 2, last - 1, last + 1)
    return turned.reshape(*batch, channels * downscale_factor**2, height // downscale_factor, width // downscale_factor)


FORMS: dict[Callable[..., object], Form] = {
    **RECURRENT_FORMS,
    **PACKED_FORMS,
    **SPECTROGRAMS,
    **HISTOGRAMS,
    **DISTRIBUTIONS,
    **FRACTIONAL_FORMS,
    **QUANTIZED_FORMS,
    **GROUPED_FORMS,
    **MATRIX_FORMS,
    **SIZED_FORMS,
    **ALIGNMENT_FORMS,
    **INDEX_FORMS,
    **TRANSFORMED_FORMS,
    Tensor.__getitem__: item,
    F.max_pool1d: max_pool_1d,
    torch.max_pool1d: max_pool_1d,
    torch.take_along_dim: take_along_dim,
    torch.combinations: combinations,
    torch.unique_consecutive: unique_consecutive,
    torch.Tensor.unique_consecutive: unique_consecutive,
    torch.conv_tbc: conv_tbc,
    F.one_hot: one_hot,
    F.pad: pad,
    F.pixel_unshuffle: pixel_unshuffle,
    torch.Tensor.take_along_dim: take_along_dim,
    **{original: _transform(original, False) for original in (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.ihfft)},
    **{original: _transform(original, True) for original in (torch.fft.irfft, torch.fft.hfft)},
    **{original: _mean(original) for original in (torch.mean, torch.Tensor.mean)},
    torch.Tensor.nbytes.__get__: nbytes,  # pyright: ignore[reportAttributeAccessIssue]
    torch.cdist: cdist,
    torch.cov: cov,
    torch.Tensor.cov: cov,
    torch.corrcoef: corrcoef,
    torch.Tensor.corrcoef: corrcoef,
}
