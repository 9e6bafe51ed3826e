"""A StableHLO function with complex tensors as one of real tensors alone.

    %z = stablehlo.multiply %x, %y : tensor<?xcomplex<f32>>   ─►   a * c - b * d and a * d + b * c of the parts

A value is two real ones. What is given to the function, and what it returns, is a real tensor with one more dim of size 2, the last, as it
lies in memory; the attribute `disc.complex` says so. Fourier transforms become ops of the library. Requires that calls are inlined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from torch_mlir import ir

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.hlo import complex_arithmetic as arithmetic
from disc.frontend.hlo import complex_linear_algebra as linear_algebra
from disc.frontend.hlo import devices
from disc.frontend.hlo.complex_arithmetic import Parts, joined, parted
from disc.frontend.hlo.complex_windows import dynamic_window
from disc.frontend.hlo.custom_calls import PARTS, PASSED_ON
from disc.frontend.hlo.emit import Emitter, FormError, Values, kind_of
from disc.ir.control import REGION_OPS
from disc.ir.ops import Attribute, block_ops, build, element_of, ints_attr, location_text, rank_of, string_attr
from disc.ir.reducers import REDUCTIONS
from disc.ir.state import COMPLEX

Value = ir.Value | Parts


def is_complex(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and isinstance(element_of(value), ir.ComplexType)


def has_complex(op: ir.Operation) -> bool:
    """Whether it takes or makes a complex tensor, or an op in it does."""
    if any(map(is_complex, (*op.operands, *op.results))):
        return True
    return any(has_complex(inner.operation) for region in op.regions for block in region.blocks for inner in block.operations)


def split_complex(module: ir.Module, function: ir.Operation) -> None:
    """Rewrites the body of `function`, where it has complex tensors.

    Raises: UnsupportedOpError naming every op on complex tensors that has no form.
    """
    block = function.regions[0].blocks[0]
    if not any(map(is_complex, block.arguments)) and not any(map(has_complex, block_ops(block))):
        return
    rewriter = _Rewriter()
    ops = block_ops(block)
    rewriter.arguments(function, block)
    rewriter.ops(ops)
    if rewriter.refused:
        raise UnsupportedOpError(rewriter.refused)
    rewriter.erase_old()
    kinds = [value.type for value in block.arguments]
    results = [operand.type for operand in block_ops(block)[-1].operands]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, results))
    if rewriter.returned:
        module.operation.attributes[COMPLEX] = ir.DenseI64ArrayAttr.get(rewriter.returned)


def _real(kind: ir.Type) -> ir.RankedTensorType:
    """Of one part."""
    tensor = ir.RankedTensorType(kind)
    return ir.RankedTensorType.get(tensor.shape, ir.ComplexType(tensor.element_type).element_type)


class _Rewriter:
    """One function. returned: the numbers of its complex results. What is rewritten stays until the end: a value that is made in the place
    of an erased one would be taken for it."""

    def __init__(self) -> None:
        self.parts: dict[ir.Value, Parts] = {}
        self.old: list[ir.Operation] = []
        self.old_arguments: list[tuple[ir.Block, int]] = []
        self.refused: list[UnsupportedOp] = []
        self.returned: list[int] = []

    def arguments(self, function: ir.Operation, block: ir.Block) -> None:
        attributes = list(ir.ArrayAttr(function.attributes["arg_attrs"])) if "arg_attrs" in function.attributes else []
        described = [{entry.name: entry.attr for entry in ir.DictAttr(each)} for each in attributes] or [{} for _ in block.arguments]
        e = Emitter(block_ops(block)[0])
        for number, argument in enumerate(block.arguments):
            if not is_complex(argument):
                continue
            kind = _real(argument.type)
            argument.set_type(ir.RankedTensorType.get([*kind.shape, 2], kind.element_type))
            self.parts[argument] = parted(e, argument)
            described[number][COMPLEX] = ir.UnitAttr.get()
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(each) for each in described])

    def ops(self, ops: Sequence[ir.Operation]) -> None:
        """ops: the function's own, without those that make parts of its arguments."""
        for op in [op for op in ops if self._touches(op)]:
            if op.name != "func.return":
                self.old.append(op)
            self._rewrite(op)

    def erase_old(self) -> None:
        for op in reversed(self.old):
            op.erase()
        for block, count in self.old_arguments:
            for _ in range(count):
                block.erase_argument(0)

    def _touches(self, op: ir.Operation) -> bool:
        return any(operand in self.parts for operand in op.operands) or has_complex(op)

    def _rewrite(self, op: ir.Operation) -> None:
        if op.name == "func.return":
            return self._return(op)
        if op.name in REGION_OPS or op.name == "stablehlo.sort" or (op.name in REDUCTIONS and not _has_form(op)):
            return self._control(op)
        if op.name == "stablehlo.return":
            build(op.name, self._split(op.operands), before=op)
            return None
        given: list[Value] = [self.parts.get(operand, operand) for operand in op.operands]
        try:
            if any(is_complex(each) for each in given if isinstance(each, ir.Value)):
                return  # of an op that is refused
            form = FORMS.get(op.name)
            if form is None:
                raise FormError("it has no form for complex numbers here")
            e = Emitter(op)
            found = [_as_declared(e, each, result) for each, result in zip(form(e, op, given), op.results, strict=True)]
        except FormError as error:
            self.refused.append(UnsupportedOp(op.name, str(error), location_text(op)))
            return
        for result, value in zip(op.results, found, strict=True):
            if isinstance(value, Parts):
                self.parts[result] = value
            else:
                result.replace_all_uses_with(value)

    def _control(self, op: ir.Operation) -> None:
        """An op with regions: a complex value that it carries, combines or returns is two, the imaginary parts behind all others."""
        blocks = [block for region in op.regions for block in region.blocks]
        kinds = [_real(each.type) if is_complex(each) else each.type for each in op.results]
        kinds += [_real(each.type) for each in op.results if is_complex(each)]
        attributes: dict[str, Attribute] = {name: op.attributes[name] for name in op.attributes}
        groups = 2 if op.name in REDUCTIONS else 1  # what is reduced, and from where
        operands = [part for group in _grouped(list(op.operands), groups) for part in self._split(group)]
        made = build(op.name, operands, kinds, attributes, len(blocks), before=op)
        for block, region in zip(blocks, made.regions, strict=True):
            block.append_to(region)
            self._block(block, groups)
        behind = iter(list(made.results)[len(op.results) :])
        for old, new in zip(op.results, list(made.results)[: len(op.results)], strict=True):
            if is_complex(old):
                self.parts[old] = Parts(new, next(behind))
            else:
                old.replace_all_uses_with(new)

    def _block(self, block: ir.Block, groups: int) -> None:
        """Of an op with regions, with its arguments, which are split by `groups`, and what it returns."""
        ops, old = block_ops(block), list(block.arguments)
        for group in _grouped(old, groups):
            first = [block.add_argument(_real(each.type) if is_complex(each) else each.type, ops[-1].location) for each in group]
            for argument, own in zip(group, first, strict=True):
                if is_complex(argument):
                    self.parts[argument] = Parts(own, block.add_argument(own.type, ops[-1].location))
                else:
                    argument.replace_all_uses_with(own)
        self.ops(ops)
        self.old_arguments.append((block, len(old)))

    def _split(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        """Real parts in the place of complex numbers, the imaginary parts of these behind."""
        found = [(value, self.parts.get(value)) for value in values]
        return [value if parts is None else parts.re for value, parts in found] + [parts.im for _, parts in found if parts is not None]

    def _return(self, op: ir.Operation) -> None:
        e = Emitter(op)
        for number, operand in enumerate(op.operands):
            if operand in self.parts:
                self.returned.append(number)
                op.operands[number] = joined(e, self.parts[operand])


def _grouped(values: Sequence[ir.Value], groups: int) -> list[Sequence[ir.Value]]:
    size = len(values) // groups
    return [values[group * size : (group + 1) * size] for group in range(groups)]


# --- forms ----------------------------------------------------------------------------------------------------------------------

Form = Callable[[Emitter, ir.Operation, Sequence[Value]], Sequence[Value]]


def _parts_of(e: Emitter, value: Value) -> Parts:
    """A real tensor has an imaginary part of 0."""
    return value if isinstance(value, Parts) else Parts(value, e.number("multiply", value, 0))


def _each_part(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """Ops that move elements, or are linear: the same on the real parts, and on the imaginary ones."""
    if op.regions:
        raise FormError("its region computes with complex numbers")
    made: list[Values] = []
    for part in ("re", "im"):
        operands = [getattr(each, part) if isinstance(each, Parts) else each for each in given]
        kinds = [_real(result.type) if is_complex(result) else result.type for result in op.results]
        made.append(e.make(op.name, operands, kinds, {name: op.attributes[name] for name in op.attributes}))
    return [Parts(re, im) for re, im in zip(*made, strict=True)]


def _size(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """A shape, which both parts have."""
    operands = [each.re if isinstance(each, Parts) else each for each in given]
    return e.make(op.name, operands, [each.type for each in op.results], {name: op.attributes[name] for name in op.attributes})


def _custom_call(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    target = string_attr(op, "call_target_name")
    if target in CALLS:
        return _called(e, op, given, target)
    if target in PARTS:
        devices.whole(op)
    elif target not in PASSED_ON:
        raise FormError(f"there is no rule for the target {target!r} with complex numbers")
    return given


def _called(e: Emitter, op: ir.Operation, given: Sequence[Value], target: str) -> Sequence[Value]:
    """Of a call, whose operands and attributes no verifier has seen."""
    try:
        found = CALLS[target](e, op, given)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise FormError(f"its operands or attributes are not those of {target!r}") from error
    if list(map(_kind_of, found)) != list(map(_kind_of, op.results)):
        raise FormError(f"its results are not those of {target!r}")
    return found


def _kind_of(value: Value) -> tuple[int, str]:
    """The rank, and the type of the elements."""
    if isinstance(value, Parts):
        return rank_of(value.re), str(ir.ComplexType.get(element_of(value.re)))
    return rank_of(value), str(element_of(value))


def _as_declared(e: Emitter, value: Value, result: ir.Value) -> Value:
    """With the static sizes of the type that the program states."""
    if isinstance(value, Parts):
        kind = _real(result.type)
        return value if value.re.type == kind else Parts(e.one("tensor.cast", [value.re], kind), e.one("tensor.cast", [value.im], kind))
    return value if value.type == result.type else e.one("tensor.cast", [value], result.type)


def _unary(function: Callable[[Emitter, Parts], Value]) -> Form:
    return lambda e, op, given: [function(e, _parts_of(e, given[0]))]


def _binary(function: Callable[[Emitter, Parts, Parts], Value]) -> Form:
    return lambda e, op, given: [function(e, _parts_of(e, given[0]), _parts_of(e, given[1]))]


def _constant(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """Read from its text, as a real constant with one more dim: MLIR's bindings have no class for complex elements."""
    kind = _real(op.results[0].type)
    found = re.search("value = dense<(.*?)> : tensor<", str(op.get_asm(print_generic_op_form=True)), re.DOTALL)
    if found is None:
        raise FormError("its values are not in the file")
    text = found[1].replace("(", "[").replace(")", "]")
    splat = found[1].startswith("(")
    whole = ir.RankedTensorType.get([*([] if splat else kind.shape), 2], kind.element_type)
    values = np.array(ir.DenseElementsAttr(ir.Attribute.parse(f"dense<{text}> : {whole}")))
    return [Parts(*(e.array(np.ascontiguousarray(np.broadcast_to(values[..., part], kind.shape)), kind) for part in (0, 1)))]


def _complex(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    re, im = given
    assert isinstance(re, ir.Value) and isinstance(im, ir.Value)
    return [Parts(re, im)]


def _counted(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    sizes = [each for each in given if isinstance(each, ir.Value)]
    return [_parts_of(e, e.one(op.name, sizes, _real(op.results[0].type), {name: op.attributes[name] for name in op.attributes}))]


def _convert(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    result = op.results[0]
    if not is_complex(result):
        raise FormError("a complex number as a real one: take its real part")
    element = ir.ComplexType(element_of(result)).element_type
    if isinstance(given[0], Parts):
        return [Parts(e.convert(given[0].re, element), e.convert(given[0].im, element))]
    return [_parts_of(e, e.convert(given[0], element))]


def _compare(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    direction = str(op.attributes["comparison_direction"]).rstrip(">").split()[-1]
    x, y = (_parts_of(e, each) for each in given)
    if direction not in ("EQ", "NE"):
        raise FormError("complex numbers have no order")
    both = e.compare(direction, x.re, y.re), e.compare(direction, x.im, y.im)
    return [e.binary("and" if direction == "EQ" else "or", *both)]


def _is_finite(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    x = _parts_of(e, given[0])
    parts = [e.one("stablehlo.is_finite", [each], op.results[0].type) for each in (x.re, x.im)]
    return [e.binary("and", *parts)]


def _product(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """An op that is linear in its first two operands: four real ones."""
    x, y = (_parts_of(e, each) for each in given[:2])
    kind, attributes = _real(op.results[0].type), {name: op.attributes[name] for name in op.attributes}
    rest = [each for each in given[2:] if isinstance(each, ir.Value)]

    def of(left: ir.Value, right: ir.Value) -> ir.Value:
        return e.one(op.name, [left, right, *rest], kind, attributes)

    return [Parts(e.binary("subtract", of(x.re, y.re), of(x.im, y.im)), e.binary("add", of(x.re, y.im), of(x.im, y.re)))]


def _has_form(op: ir.Operation) -> bool:
    """Whether a reduction is a sum, or an extreme in JAX's order: by the real parts, of equal ones by the imaginary parts. Any other one
    combines pairs, one after the other."""
    block = op.regions[0].blocks[0]
    return len(op.operands) == 2 and (_is_sum(block) or (op.name == "stablehlo.reduce" and _direction(block) is not None))


def _reduce(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    x, start = (_parts_of(e, each) for each in given)
    direction, dims = _direction(op.regions[0].blocks[0]), ints_attr(op, "dimensions")
    if direction is not None:
        return [_extreme(e, direction, x, start, dims)]

    def total(part: ir.Value, first: ir.Value) -> ir.Value:
        return e.binary("add", e.reduce("add", part, dims), first)

    return [Parts(total(x.re, start.re), total(x.im, start.im))]


def _window_sum(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    kind = _real(op.results[0].type)
    attributes: dict[str, Attribute] = {name: op.attributes[name] for name in op.attributes}
    x, start = (_parts_of(e, each) for each in given)
    made: list[ir.Value] = []
    for operands in ([x.re, start.re], [x.im, start.im]):
        part = build(op.name, operands, [kind], attributes, 1, before=e.before)
        _put_sum(part, element_of(start.re))
        made.append(part.results[0])
    return [Parts(*made)]


def _put_sum(op: ir.Operation, element: ir.Type) -> None:
    scalar = ir.RankedTensorType.get([], element)
    block = ir.Block.create_at_start(op.regions[0], [scalar] * 2, [op.location] * 2)
    with ir.InsertionPoint(block):
        build(
            "stablehlo.return", build("stablehlo.add", list(block.arguments), [scalar], location=op.location).results, location=op.location
        )


def _is_sum(block: ir.Block) -> bool:
    return [each.name for each in block_ops(block)] == ["stablehlo.add", "stablehlo.return"]


def _direction(block: ir.Block) -> str | None:
    """ "GT" of a function of two numbers that gives the larger one, as JAX writes it, "LT" of the smaller one; None of another one."""
    place = {value: str(number) for number, value in enumerate(block.arguments)}
    texts: list[str] = []
    for op in block_ops(block):
        sign = str(op.attributes["comparison_direction"]).rstrip(">").split()[-1] if op.name == "stablehlo.compare" else ""
        texts.append(f"{op.name.partition('.')[2]}{sign}({', '.join(place[each] for each in op.operands if each in place)})")
        place |= dict.fromkeys(op.results, texts[-1])
    for sign in ("GT", "LT"):
        real, imaginary = ("real(0), real(1)", "imag(0), imag(1)")
        chosen = f"select(compareEQ({real}), compare{sign}({imaginary}), compare{sign}({real}))"
        if texts and texts[-1] == f"return(select({chosen}, 0, 1))":
            return sign
    return None


def _extreme(e: Emitter, direction: str, x: Parts, start: Parts, dims: Sequence[int]) -> Parts:
    kind = "maximum" if direction == "GT" else "minimum"
    element = element_of(x.re)
    least = -np.inf if direction == "GT" else np.inf
    others = [dim for dim in range(rank_of(x.re)) if dim not in dims]
    re = e.reduce(kind, x.re, dims)
    first = e.compare("EQ", x.re, e.expand(re, x.re, others))
    im = e.reduce(kind, e.select(first, x.im, e.constant(least, element)), dims)
    by_real, by_imaginary = e.compare(direction, start.re, re), e.compare(direction, start.im, im)
    wins = e.select(e.compare("EQ", start.re, re), by_imaginary, by_real)
    return Parts(e.select(wins, start.re, re), e.select(wins, start.im, im))


def _scatter(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """What is put in the place of others, or added to them: the same for each part."""
    block = op.regions[0].blocks[0]
    is_update = [each.name for each in block_ops(block)] == ["stablehlo.return"] and block_ops(block)[0].operands[0] == block.arguments[-1]
    if len(given) != 3 or not (is_update or _is_sum(block)):
        raise FormError("it puts neither numbers nor sums")
    source, places, updates = given
    assert isinstance(places, ir.Value)
    kind = _real(op.results[0].type)
    scalar = ir.RankedTensorType.get([], kind.element_type)
    made: list[ir.Value] = []
    for first, second in zip(*((each.re, each.im) for each in (_parts_of(e, source), _parts_of(e, updates))), strict=True):
        attributes: dict[str, Attribute] = {name: op.attributes[name] for name in op.attributes}
        part = build(op.name, [first, places, second], [kind], attributes, 1, before=e.before)
        inner = ir.Block.create_at_start(part.regions[0], [scalar] * 2, [op.location] * 2)
        with ir.InsertionPoint(inner):
            arguments = list(inner.arguments)
            result = arguments[1] if is_update else build("stablehlo.add", arguments, [scalar], location=op.location).results[0]
            build("stablehlo.return", [result], location=op.location)
        made.append(part.results[0])
    return [Parts(*made)]


def _fft(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    kind, lengths = str(op.attributes["fft_type"]).rstrip(">").split()[-1], ints_attr(op, "fft_length")
    source = given[0]
    dims = list(range(rank_of(source.re if isinstance(source, Parts) else source) - len(lengths), rank_of(op.results[0])))
    if kind in ("FFT", "IFFT"):
        return [parted(e, _transformed(e, joined(e, _parts_of(e, source)), dims, kind == "IFFT"))]
    result = op.results[0]
    if kind == "RFFT":
        assert isinstance(source, ir.Value)
        shape = [*_real(result.type).shape, 2]
        sizes = [size if size >= 0 else e.size(source, dim) for dim, size in enumerate(shape)]
        attributes: dict[str, Attribute] = {"dim": dims[-1], "norm": 0}
        half = e.one("disc.dynamic_rfft", [source, e.sizes(sizes)], ir.RankedTensorType.get(shape, element_of(source)), attributes)
        return [parted(e, _transformed(e, half, dims[:-1], inverse=False))]
    assert isinstance(source, Parts)
    whole = _transformed(e, joined(e, source), dims[:-1], inverse=True)
    sizes = [size if size >= 0 else e.size(whole, dim) for dim, size in enumerate(kind_of(result).shape)]
    return [e.one("disc.dynamic_irfft", [whole, e.sizes(sizes)], result.type, {"dim": dims[-1], "norm": 2})]


def _transformed(e: Emitter, x: ir.Value, dims: Sequence[int], inverse: bool) -> ir.Value:
    """x: parts in the last dim."""
    for dim in dims:
        x = e.one("disc.fft", [x], x.type, {"dim": dim, "inverse": inverse, "norm": 2 if inverse else 0})
    return x


CALLS: Mapping[str, Form] = {"stablehlo.dynamic_reduce_window": dynamic_window, **linear_algebra.CALLS}
_MOVING = """
    add subtract negate reshape dynamic_reshape transpose broadcast_in_dim dynamic_broadcast_in_dim slice dynamic_slice real_dynamic_slice
    dynamic_update_slice concatenate pad dynamic_pad reverse gather dynamic_gather select optimization_barrier
    set_dimension_size torch_index_select unary_einsum broadcast all_gather all_to_all collective_broadcast collective_permute
"""
FORMS: Mapping[str, Form] = {
    **{f"stablehlo.{name}": _each_part for name in _MOVING.split()},
    **{f"chlo.broadcast_{name}": _each_part for name in ("add", "subtract", "select")},
    "tensor.cast": _each_part, "tensor.dim": _size, "shape.shape_of": _size, "stablehlo.get_dimension_size": _size,
    "stablehlo.constant": _constant, "stablehlo.complex": _complex, "chlo.broadcast_complex": _complex, "stablehlo.convert": _convert,
    "stablehlo.real": _unary(lambda e, x: x.re), "stablehlo.imag": _unary(lambda e, x: x.im),
    "chlo.conj": _unary(lambda e, x: Parts(x.re, e.unary("negate", x.im))),
    "stablehlo.compare": _compare, "chlo.broadcast_compare": _compare, "stablehlo.is_finite": _is_finite,
    "stablehlo.abs": _unary(arithmetic.magnitude), "stablehlo.exponential": _unary(arithmetic.exponential),
    "stablehlo.log": _unary(arithmetic.logarithm), "stablehlo.sqrt": _unary(arithmetic.square_root),
    "stablehlo.exponential_minus_one": _unary(arithmetic.exponential_minus_one), "stablehlo.cbrt": _unary(arithmetic.cube_root),
    "stablehlo.log_plus_one": _unary(arithmetic.log_plus_one),
    "stablehlo.rsqrt": _unary(arithmetic.one_over_root), "stablehlo.sine": _unary(arithmetic.sine),
    "stablehlo.cosine": _unary(arithmetic.cosine), "stablehlo.sign": _unary(arithmetic.sign),
    "stablehlo.tan": _unary(lambda e, x: arithmetic.tangent(e, x, turned=False)),
    "stablehlo.tanh": _unary(lambda e, x: arithmetic.tangent(e, x, turned=True)), "stablehlo.logistic": _unary(arithmetic.logistic),
    "stablehlo.multiply": _binary(arithmetic.multiply), "chlo.broadcast_multiply": _binary(arithmetic.multiply),
    "stablehlo.divide": _binary(arithmetic.divide), "chlo.broadcast_divide": _binary(arithmetic.divide),
    "stablehlo.power": _binary(arithmetic.power), "chlo.broadcast_power": _binary(arithmetic.power),
    "stablehlo.dot_general": _product, "stablehlo.dot": _product, "stablehlo.convolution": _product,
    "stablehlo.dynamic_conv": _product, "stablehlo.einsum": _product,
    "stablehlo.reduce": _reduce, "stablehlo.reduce_window": _window_sum, "stablehlo.iota": _counted, "stablehlo.dynamic_iota": _counted,
    "stablehlo.cholesky": linear_algebra.cholesky, "stablehlo.triangular_solve": linear_algebra.triangular_solve,
    "stablehlo.scatter": _scatter,
    "stablehlo.fft": _fft, "stablehlo.custom_call": _custom_call,
}  # fmt: skip
