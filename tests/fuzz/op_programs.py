"""Random calls of PyTorch's ops: out of the samples that PyTorch keeps for its own tests, and made from the schemas of ATen.

A number gives a program, always the same one. Some are right as they come; others get an argument of another type, dtype, rank or size.
"""

from __future__ import annotations

import random
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.fuzz.op_exclusions import is_excluded

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
RARE = (torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)
SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 17)
NUMBERS = (0, 1, -1, 2, 0.5, -1.5, 3, True, 1e-5, 100, float("inf"), float("nan"))
WORDS = (
    "mean",
    "sum",
    "none",
    "tanh",
    "floor",
    "trunc",
    "reflect",
    "same",
    "valid",
    "ij",
    "linear",
    "constant",
    "amax",
    "prod",
    "left",
    "",
)
MOST_ELEMENTS = 20_000
OF_SAMPLES = 0.65  # of the programs; the others are made from schemas


@dataclass(frozen=True)
class Program:
    """A call of `function`. kind: where it comes from, and what was changed. clone: the op may write its inputs, so it gets copies."""

    number: int
    name: str
    kind: str
    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    clone: bool = False

    def leaves(self) -> tuple[list[object], pytree.TreeSpec]:
        return pytree.tree_flatten((self.args, self.kwargs))

    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves()[0] if isinstance(leaf, torch.Tensor)]

    def module(self) -> Calls:
        """Takes the tensors of the call; everything else is fixed."""
        leaves, spec = self.leaves()
        return Calls(self.name, self.function, [_HOLE if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec, self.clone)

    def __str__(self) -> str:
        args, kwargs = pytree.tree_map(_shown, (self.args, self.kwargs))
        return f"{self.name}({', '.join([*map(str, args), *(f'{k}={v}' for k, v in kwargs.items())])}) [{self.kind}]"


_HOLE = object()


class Calls(torch.nn.Module):
    def __init__(self, op: str, function: Callable[..., object], leaves: list[object], spec: pytree.TreeSpec, clone: bool) -> None:
        super().__init__()
        self.op, self.function, self.leaves, self.spec, self.clone = op, function, leaves, spec, clone
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> object:
        given = iter([x.clone() for x in tensors] if self.clone else tensors)
        args, kwargs = pytree.tree_unflatten([next(given) if leaf is _HOLE else leaf for leaf in self.leaves], self.spec)
        return self.function(*args, **kwargs)


def _shown(leaf: object) -> object:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    strides = "" if leaf.layout != torch.strided or leaf.is_contiguous() else f" strides {list(leaf.stride())}"
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{strides}"


def seed(number: int) -> None:
    """Of the CPU's generator alone: `torch.manual_seed` notes its callers for devices that are not there, most of a small call's time."""
    torch.default_generator.manual_seed(number)


def make_program(number: int) -> Program:
    """The program of this number."""
    rng = random.Random(number)
    while True:
        seed(rng.randrange(2**31))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = (_from_samples if rng.random() < OF_SAMPLES else _from_schema)(number, rng)
        if found is None or is_excluded(found.name) or sum(x.numel() for x in found.tensors()) > MOST_ELEMENTS:
            continue
        if any(x.requires_grad for x in found.tensors()):
            args, kwargs = pytree.tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (found.args, found.kwargs))
            found = replace(found, args=args, kwargs=kwargs)
        return _changed(found, rng) if rng.random() < 0.2 else found


def first_name(number: int) -> str:
    """The name of the op that is drawn first for this number; nearly always the program's, and far cheaper to know."""
    rng = random.Random(number)
    rng.randrange(2**31)
    return rng.choice(samples_table()).full_name if rng.random() < OF_SAMPLES else str(rng.choice(overloads()))


# --- samples of PyTorch's tests -------------------------------------------------------------------------------------------------


@cache
def samples_table() -> Sequence[Any]:
    """PyTorch's table of ops with samples."""
    try:
        import expecttest  # noqa: F401  # pyright: ignore
    except ModuleNotFoundError:  # PyTorch's test helpers derive a class from its TestCase; nothing else of it is used here
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # pyright: ignore[reportAttributeAccessIssue]
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as table
    # Calls that draw random numbers would be no calls that do: the seed is set within, by Python code.
    table.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # pyright: ignore[reportPrivateImportUsage]
    return table.op_db


def _from_samples(number: int, rng: random.Random) -> Program | None:
    op = rng.choice(samples_table())
    if rng.random() < 0.06 and op.error_inputs_func is not None:
        return _error_sample(number, op, rng)
    dtypes = sorted(op.dtypes, key=str)
    common = [dtype for dtype in dtypes if dtype in FLOATS[:1] + INTEGERS[:1]]
    dtype = rng.choice(common if common and rng.random() < 0.4 else dtypes)
    try:
        samples = list(op.sample_inputs("cpu", dtype))
    except Exception:  # some need what this machine lacks
        return None
    if not samples:
        return None
    sample = rng.choice(samples)
    forms = [form for form in (op.op, op.method_variant, op.inplace_variant) if form is not None]
    function = rng.choice(forms) if rng.random() < 0.3 else op.op
    kind = {id(op.method_variant): "method", id(op.inplace_variant): "in place"}.get(id(function), "sample")
    return Program(
        number, op.full_name, kind, function, (sample.input, *sample.args), dict(sample.kwargs), kind == "in place" and rng.random() < 0.7
    )


def _error_sample(number: int, op: Any, rng: random.Random) -> Program | None:
    try:
        samples = list(op.error_inputs("cpu"))
    except Exception:
        return None
    if not samples:
        return None
    sample = rng.choice(samples).sample_input
    return Program(number, op.full_name, "sample of an error", op.op, (sample.input, *sample.args), dict(sample.kwargs))


# --- schemas --------------------------------------------------------------------------------------------------------------------


@cache
def overloads() -> Sequence[torch._ops.OpOverload]:
    """All of ATen that can be called from Python, by name."""
    found = []
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
        op = getattr(packet, overload or "default", None) if packet is not None else None
        if isinstance(op, torch._ops.OpOverload) and not any(a.is_out for a in op._schema.arguments) and "backward" not in name:
            found.append(op)
    return found


@dataclass(frozen=True)
class _Style:
    """What the tensors of one call have in common."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _from_schema(number: int, rng: random.Random) -> Program | None:
    op = rng.choice(overloads())
    shape = tuple(rng.choice(SIZES) for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 4, 5))))
    dtype = rng.choice((torch.float32, torch.float32, torch.float32, *FLOATS, *INTEGERS, torch.bool, rng.choice(RARE)))
    style, args, kwargs = _Style(shape, dtype), [], {}
    for argument in op._schema.arguments:
        if argument.has_default_value() and rng.random() < 0.6:
            if not argument.kwarg_only:
                args.append(argument.default_value)
            continue
        value = _argument(str(argument.real_type), argument.name, style, rng)
        if value is _HOLE:
            return None
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return Program(number, str(op), "schema", op, tuple(args), kwargs, op._schema.is_mutable and rng.random() < 0.7)


def _argument(kind: str, name: str, style: _Style, rng: random.Random) -> object:
    if kind.startswith("Optional["):
        return None if rng.random() < 0.4 else _argument(kind[9:-1], name, style, rng)
    if kind.endswith("?"):
        return None if rng.random() < 0.4 else _argument(kind[:-1], name, style, rng)
    if kind.startswith("List["):
        count = rng.choice((0, 1, 2, 2, 3, len(style.shape)))
        return [_argument(kind[5:-1], name, style, rng) for _ in range(count)]
    makers: dict[str, Callable[[], object]] = {
        "Tensor": lambda: _tensor(name, style, rng),
        "int": lambda: rng.choice((0, 0, 1, 1, -1, 2, -2, 3, len(style.shape), 7)),
        "SymInt": lambda: rng.choice((0, 1, 1, 2, 3, -1, *style.shape)),
        "float": lambda: float(rng.choice(NUMBERS)),
        "number": lambda: rng.choice(NUMBERS),
        "Scalar": lambda: rng.choice(NUMBERS),
        "bool": lambda: rng.random() < 0.5,
        "str": lambda: rng.choice(WORDS),
        "Device": lambda: torch.device("cpu"),
        "Layout": lambda: torch.strided,
        "MemoryFormat": lambda: rng.choice((torch.contiguous_format, torch.preserve_format, torch.channels_last)),
    }
    if name in ("dtype", "out_dtype", "self_dtype") and kind in ("int", "ScalarType"):
        return rng.choice((*FLOATS, *INTEGERS, torch.bool))
    if name == "layout" and kind == "int":
        return torch.strided
    if name == "memory_format" and kind == "int":
        return torch.contiguous_format
    return makers[kind]() if kind in makers else _HOLE


def _tensor(name: str, style: _Style, rng: random.Random) -> torch.Tensor:
    shape, dtype = list(style.shape), style.dtype
    if shape and rng.random() < 0.25:
        place = rng.randrange(len(shape))
        shape[place] = rng.choice((1, rng.choice(SIZES)))
    if rng.random() < 0.15:
        shape = [rng.choice(SIZES) for _ in range(rng.choice((0, 1, 2, 3)))]
    if "ind" in name or name == "target":
        dtype = torch.int64
    elif "mask" in name or name == "condition":
        dtype = torch.bool
    elif rng.random() < 0.08:
        dtype = rng.choice((*FLOATS, *INTEGERS, torch.bool))
    return with_values(shape, dtype, rng, small=dtype == torch.int64)


def with_values(shape: Sequence[int], dtype: torch.dtype, rng: random.Random, small: bool = False) -> torch.Tensor:
    """Random numbers, now and then not finite."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        low = 0 if small or dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64) else -9
        return torch.randint(low, 3 if small else 10, tuple(shape)).to(dtype)
    x = torch.randn(tuple(shape)) * rng.choice((0.3, 1.0, 1.0, 5.0))
    return x.to(dtype)


# --- changes --------------------------------------------------------------------------------------------------------------------


def _changed(program: Program, rng: random.Random) -> Program:
    """The call with one argument changed."""
    leaves, spec = program.leaves()
    if not leaves:
        return program
    place = rng.randrange(len(leaves))
    leaves[place] = _other_tensor(leaves[place], rng) if isinstance(leaves[place], torch.Tensor) else _other_value(leaves[place], rng)
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return replace(program, args=args, kwargs=kwargs, kind=f"{program.kind}, argument {place} changed")


def _other_tensor(x: object, rng: random.Random) -> object:
    assert isinstance(x, torch.Tensor)
    if x.layout != torch.strided:
        return x
    choice = rng.randrange(9)
    if choice == 0:
        return x.to(rng.choice((*FLOATS, *INTEGERS, torch.bool)))
    if choice == 1:
        return x.reshape(-1)[0] if x.numel() else x.new_zeros(())
    if choice == 2 and x.dim():
        return x.narrow(rng.randrange(x.dim()), 0, 0)
    if choice == 3 and x.dim() and x.numel():
        return x.narrow(rng.randrange(x.dim()), 0, 1)
    if choice == 4:
        return x.unsqueeze(rng.randrange(x.dim() + 1))
    if choice == 5 and x.dim():
        return torch.cat([x, x], rng.randrange(x.dim()))
    if choice == 6 and x.dim() > 1:
        return x.transpose(0, -1)
    if choice == 7:
        return x.expand(2, *x.shape)
    return rng.choice((x.to("meta"), x.to(torch.complex64), 2.0, None)) if rng.random() < 0.3 else x.clone()


def _other_value(value: object, rng: random.Random) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, -value, 0, 1, -1, 5, 2.5, 2**31, -(2**63)))
    if isinstance(value, float):
        return rng.choice((0.0, -value, 1, value * 3, float("nan")))
    return rng.choice((None, 1, "other", value))
