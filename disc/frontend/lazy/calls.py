"""Calls of PyTorch functions as the recorder sees them: what makes one call the same as another, and how it is made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

PLAIN = frozenset((float, bool, complex, torch.dtype, torch.device, torch.layout, torch.memory_format, type(Ellipsis)))
TENSORS = frozenset((Tensor, nn.Parameter, nn.Buffer))


@dataclass(frozen=True)
class Counted:
    """A function whose number of results depends on sizes, for those calls that give so many."""

    function: Callable[..., Any]
    count: int  # of results

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Value:
    """What an earlier call of the same trace gave."""

    number: int  # of the value, in the order in which the calls gave them


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that was there before."""

    number: int  # of the tensor, in the order in which the calls took them


@dataclass(frozen=True, slots=True)
class Scalar:
    """One of the Python numbers of a call."""

    place: int  # among them


def filled(template: Any, values: Sequence[Any] | Mapping[int, Any], inputs: Sequence[Any], scalars: Sequence[Any]) -> Any:
    """The template of arguments with what its places stand for."""
    kind = type(template)
    if kind is Value:
        return values[template.number]
    if kind is Input:
        return inputs[template.number]
    if kind is Scalar:
        return scalars[template.place]
    if kind is list or kind is tuple:
        return kind([filled(each, values, inputs, scalars) for each in template])
    if kind is dict:
        return {name: filled(each, values, inputs, scalars) for name, each in template.items()}
    if kind is slice:
        return slice(*(filled(each, values, inputs, scalars) for each in (template.start, template.stop, template.step)))
    return template


def references(template: Any) -> list[Value | Input]:
    """The places of tensors in a template."""
    kind = type(template)
    if kind is Value or kind is Input:
        return [template]
    if kind is list or kind is tuple:
        return [found for each in template for found in references(each)]
    if kind is dict:
        return [found for each in template.values() for found in references(each)]
    if kind is slice:
        return references((template.start, template.stop, template.step))
    return []


def never_sizes(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
    """The places of the numbers in templates of arguments that are no size, whichever sizes they are equal to: exponents, steps of slices,
    dims that are named, what tensors are filled with, all numbers of convolutions (strides, dilations, groups) and of paddings that repeat
    elements."""
    found = {each for name in DIMS if name in kwargs for each in _numbers(kwargs[name])}
    if func is torch.full:
        found |= {each for value in (*args[1:], kwargs.get("fill_value")) for each in _numbers(value)}
    found |= {each for part in _slices((*args, *kwargs.values())) for each in _numbers(part.step)}
    constant = func in CONSTANTS or (func is nn.functional.pad and kwargs.get("mode") != "constant")
    return found | {each for value in (*args, *kwargs.values()) for each in _numbers(value)} if constant else found


def is_plain(kwargs: Mapping[str, object]) -> bool:
    """Whether a call of one of `MAKING` gives a new tensor of this CPU, of which no gradients are asked for."""
    device = kwargs.get("device")
    return not any(kwargs.get(name) for name in _NOT_MADE) and (device is None or torch.device(cast("str", device)).type == "cpu")


def _numbers(template: Any) -> list[int]:
    if type(template) is Scalar:
        return [template.place]
    return [found for each in template for found in _numbers(each)] if isinstance(template, list | tuple) else []


def _slices(template: Any) -> list[slice]:
    if type(template) is slice:
        return [template]
    return [found for each in template for found in _slices(each)] if isinstance(template, list | tuple) else []


def scaled(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of one of `VARYING` where tensors without dims stand for its floats. What has to be a Python number scales an argument: that
    is multiplied by it."""
    named = dict(kwargs)
    scale = named.pop("alpha", None) if "alpha" in named else named.pop("value", None)
    left = list(args)
    if len(left) == POSITIONAL_VALUE:
        scale = left.pop()
    if not isinstance(scale, Tensor):
        return func(*args, **kwargs)
    left[1] = [each * scale for each in left[1]] if isinstance(left[1], list | tuple) else left[1] * scale
    return func(*left, **named)


def _named(names: str) -> dict[Callable[..., object], str]:
    """What PyTorch calls for the methods and attributes of a tensor, by function."""
    found = dict[Callable[..., object], str]()
    for name in names.split():
        member = getattr(Tensor, name, None)
        if member is not None:
            found[member if callable(member) else member.__get__] = name
    return found


# What is asked of a tensor, not computed.
FACTS = _named(
    "dtype device layout requires_grad is_leaf shape ndim itemsize nbytes is_cuda is_cpu is_meta is_sparse is_quantized is_nested "
    "is_mkldnn is_sparse_csr is_xla is_mps is_xpu is_ipu is_vulkan is_maia is_ort is_mtia size dim ndimension numel nelement "
    "is_floating_point is_complex is_signed element_size get_device __len__ stride is_contiguous storage_offset is_inference is_conj "
    "is_neg has_names names"
)
FACTS |= {torch.is_floating_point: "is_floating_point", torch.is_complex: "is_complex", torch.numel: "numel"}
# What needs the tensor itself, or changes what is known of it.
READS = frozenset(
    _named(
        "item tolist numpy __array__ __bool__ __int__ __float__ __complex__ __index__ __repr__ __format__ __contains__ __dlpack__ data_ptr "
        "storage untyped_storage _typed_storage share_memory_ is_shared pin_memory is_pinned grad_fn _version _base is_set_to "
        "_is_view register_hook register_post_accumulate_grad_hook retain_grad retains_grad requires_grad_ set_ resize_ resize_as_ "
        "rename_ output_nr _backward_hooks _post_accumulate_grad_hooks apply_ map_ map2_ __cuda_array_interface__ detach_ to_sparse "
        "record_stream module_load t_ transpose_ squeeze_ unsqueeze_ swapaxes_ swapdims_ as_strided_ "
        "_make_subclass as_subclass __dlpack_device__ __deepcopy__ __reduce_ex__ __setstate__"
    )
) | {member.__set__ for name in ("data", "requires_grad") if (member := getattr(Tensor, name))}
FILLED_BY_CHANCE = frozenset(
    _named("normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_")
)  # of a tensor nobody waits for: drawn at once, as without a recorder
DRAWING = frozenset((torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal))  # at once, as they have no tensors
# Whose Python floats may be tensors as well, or scale one.
_SUMS = "add sub mul div true_divide lerp addcmul addcdiv"
VARYING = frozenset(
    _named(" ".join(f"{each} {each}_ __{each}__ __r{each}__ __i{each}__" for each in (*_SUMS.split(), "truediv")))
) | {
    getattr(torch, name)
    for each in _SUMS.split()
    for name in (each, f"_foreach_{each}", f"_foreach_{each}_")
    if hasattr(torch, name) and name not in ("_foreach_sub", "_foreach_sub_", "_foreach_lerp", "_foreach_lerp_")
}  # fmt: skip
_POWERS = "pow float_power matrix_power"
CONSTANTS = (
    frozenset(_named(" ".join(f"{each} {each}_ __{each}__ __r{each}__ __i{each}__" for each in _POWERS.split())))
    | {getattr(torch, each) for each in _POWERS.split()}
    | {torch.linalg.matrix_power}
    | {getattr(torch, f"conv{kind}{dims}d") for kind in ("", "_transpose") for dims in (1, 2, 3)}
)
DIMS = ("dim", "dims", "axis", "dim0", "dim1", "start_dim", "end_dim")
POSITIONAL_VALUE = 4  # arguments of addcmul and addcdiv, if the last is `value`
_PARTS = "unbind chunk split split_with_sizes tensor_split hsplit vsplit dsplit unsafe_chunk unsafe_split unsafe_split_with_sizes"
# What makes tensors of sizes alone, and where that is not all that they may be asked for.
MAKING = frozenset((torch.zeros, torch.ones, torch.empty, torch.full))
_NOT_MADE = ("out", "requires_grad", "generator", "layout", "pin_memory", "names", "memory_format")
# How many results they give depends on sizes: `Counted` ones are recorded.
SIZED = frozenset(_named(_PARTS)) | {getattr(torch, name) for name in _PARTS.split()} | {torch.functional.split}
BACKWARD = Tensor.backward
_DATA: Any = Tensor.data
DETACHING = (Tensor.detach, torch.detach, _DATA.__get__)
PASSES = (BACKWARD, torch.autograd.grad)  # they run hooks
_INPUTS = 4  # the place of `inputs` among the arguments of `backward`
_GRAD: Any = Tensor.grad
GRADIENT, SET_GRADIENT, DELETE_GRADIENT = _GRAD.__get__, _GRAD.__set__, _GRAD.__delete__
_GRAPH: Any = Tensor.grad_fn
GRADIENT_FUNCTION = _GRAPH.__get__
WATCHED = (Tensor.retain_grad, Tensor.register_post_accumulate_grad_hook)  # what gradients are written to
# Of what requires no gradients these tell nothing new, and change nothing: `zero_grad(set_to_none=False)` calls them.
OF_CONSTANTS = (GRADIENT_FUNCTION, Tensor.requires_grad_)
_IN_PLACE = "setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor"
_ASSIGNING = frozenset(f"__{name}__" for name in _IN_PLACE.split())


def asked_for(func: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments whose gradients a call asks for, behind the call that made them."""
    if func in WATCHED or func in (Tensor.register_hook, GRADIENT_FUNCTION):  # hooks of a node see the gradients that come there
        return [*args[:1]]
    place = 1 if func is torch.autograd.grad else _INPUTS
    inputs = kwargs.get("inputs", args[place] if len(args) > place else None) if func in PASSES else None
    return [*inputs] if isinstance(inputs, list | tuple) else [inputs]


def writes(func: Callable[..., object], kwargs: Mapping[str, object]) -> bool:
    """Whether a function of PyTorch writes what it is given, by its name."""
    name = getattr(func, "__name__", "")
    return kwargs.get("out") is not None or name in _ASSIGNING or (name.endswith("_") and not name.endswith("__"))
