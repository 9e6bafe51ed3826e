"""LSTM, GRU and RNN in graphs of torch.compile: Dynamo leaves their modules out, and PyTorch would trace one step after the other. And
functions that PyTorch would take apart, a loss wrongly, `one_hot` without its check, a pool into strides, a grid and running products into
what takes no symbolic sizes, before a table of decompositions is asked; and what `torch.func` would do to sizes; and numbers that are fixed
are no inputs.

PyTorch has no place where a backend says how it wants a function traced. So the function of Dynamo that compiles a frame is wrapped: for
frames of this backend alone, and as long as they are traced, Dynamo takes recurrent modules, and the ops are those of `recurrent_forms`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType

import torch
from torch._C import DispatchKey
from torch._dynamo import config, convert_frame
from torch._dynamo.eval_frame import innermost_backend
from torch._dynamo.exc import BackendCompilerFailed, Unsupported

from disc.frontend import product_gradients, transform_forms
from disc.frontend.composites import multilabel_margin_loss, one_hot
from disc.frontend.dense_views import dense_views
from disc.frontend.fewer_collections import fewer_collections
from disc.frontend.fixed_floats import fixed_floats
from disc.frontend.packed_tracing import traced_packing
from disc.frontend.pool_gradients import mean_pool_2d, mean_pool_3d
from disc.frontend.python_kernels import python_kernels
from disc.frontend.recurrent_forms import gru, lstm, rnn_relu, rnn_tanh
from disc.frontend.scan_gradients import gradients_of_scans
from disc.frontend.size_quotients import quick_quotients
from disc.frontend.sized_forms import affine_grid_generator
from disc.frontend.tensor_indices import traced_indices

aten = torch.ops.aten
CHECKED = {aten.multilabel_margin_loss.default: multilabel_margin_loss, aten.one_hot.default: one_hot}
FORMS = {
    aten.lstm.input: lstm, aten.gru.input: gru, aten.rnn_tanh.input: rnn_tanh, aten.rnn_relu.input: rnn_relu,
    aten.lstm.data: lstm, aten.gru.data: gru, aten.rnn_tanh.data: rnn_tanh, aten.rnn_relu.data: rnn_relu,
    aten.adaptive_avg_pool2d.default: mean_pool_2d, aten.adaptive_avg_pool3d.default: mean_pool_3d,
    aten.affine_grid_generator.default: affine_grid_generator,
    **CHECKED,
}  # fmt: skip
SIZES_OF_DATA = "Dynamic shape operator"  # Dynamo's words for what it does not trace by default
KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


def trace_recurrent_layers(backend: Callable[..., object], without_graph: Callable[[Unsupported, CodeType], None]) -> None:
    """From now on, in what is compiled for `backend`. without_graph: is told why Dynamo leaves a function to PyTorch as a whole, which asks
    no backend. To be called once."""
    original = convert_frame._compile
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_frame(*args: object, **kwargs: object) -> object:
        ours = any(_is_of(value, backend) for value in (*args, *kwargs.values()) if callable(value))
        if not ours:
            return original(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]
        with (
            config.patch(allow_rnn=True),
            forms(),
            traced_indices(),
            traced_packing(),
            fixed_floats(),
            dense_views(),
            quick_quotients(),
            fewer_collections(),
        ):
            try:
                return original(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]
            except Unsupported as error:
                given = signature.bind(*args, **kwargs).arguments
                if given["one_graph"]:  # then Dynamo raises it, and has done what follows
                    raise
                if not error.msg.startswith(SIZES_OF_DATA):
                    without_graph(error, given["code"])
                    raise
                found = error
            # The function would have no graph at all, as one with a loop that cannot be left in the middle: such sizes become symbols.
            try:
                with config.patch(capture_dynamic_output_shape_ops=True):
                    return original(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]
            except BackendCompilerFailed:  # as strict=True asks for
                raise
            except Exception as error:  # some of which Dynamo would raise
                without_graph(error if isinstance(error, Unsupported) else found, given["code"])
                raise found from error

    convert_frame._compile = compile_frame  # pyright: ignore[reportAttributeAccessIssue]


def _is_of(function: Callable[..., object], backend: Callable[..., object]) -> bool:
    """Whether it is the compiler that Dynamo made of the backend: with or without options, given by name or as a function."""
    innermost = innermost_backend(function)
    return getattr(innermost, "compiler_fn", innermost) is backend


@contextmanager
def forms() -> Iterator[None]:
    """The ops are the forms. What traces holds a lock meanwhile."""
    kernels = {(op, key): form for op, form in FORMS.items() for key in KEYS}
    products = {(product_gradients.OP, DispatchKey.Autograd): product_gradients.cumprod}
    with python_kernels({**kernels, **products, **transform_forms.FORMS}), gradients_of_scans():
        yield


def checked_forms() -> AbstractContextManager[None]:
    """As `forms`, of the ops alone that PyTorch cannot trace as they look at values. What traces holds a lock meanwhile."""
    return python_kernels({(op, key): form for op, form in CHECKED.items() for key in KEYS})
