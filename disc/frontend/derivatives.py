"""`torch.func.grad`, `vjp`, `jvp` and what is made of them, while a module is exported.

A trace before dispatch sees what is differentiated, and not the derivative. So the whole of an outermost transform, `vmap` around a
derivative too, is traced by itself, behind dispatch, where its derivative is ops like any other; these take its place:

    grad(lambda y: (y**3).sum())(x)      →      pow(x, 2) * 3, on the tensors that the module's own trace has
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import apis, eager_transforms
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode, _make_temp_remove_mode_context_manager, make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.locations import running_line
from disc.frontend.random_ops import draws
from disc.frontend.replaced import replaced
from disc.frontend.vmap_results import make_numbers_tensors

aten = torch.ops.aten
DRAWS = "its function draws random numbers ({op}), and is computed again for each call of what vjp returns, with other ones"
Function = Callable[..., object]
_DERIVATIVES = ("grad_impl", "grad_and_value_impl", "_jvp_with_argnums", "_vjp_with_argnums")
_BATCHES = ("vmap_impl", "_chunked_vmap")


class Derivatives:
    """traced: whether transforms are traced by themselves; otherwise a derivative ends the export, and is noted: met.

    whole: whether all of the model is, since it calls `torch.autograd.grad`, which is noted, too: what autograd keeps of the ops before it
    is no part of a trace before dispatch.
    """

    def __init__(self, traced: bool = False, whole: bool = False) -> None:
        self.traced, self.whole = traced, whole
        self.met = self.met_autograd = False
        self._depth = 0  # of transforms that are being traced

    @contextmanager
    def of_functions(self, model: torch.nn.Module) -> Iterator[None]:
        """Within, what `torch.func` calls to compute its transforms is this, while `model` is exported."""
        wrap = self._outermost if self.traced else self._noted
        forms: dict[tuple[object, str], object] = {(eager_transforms, name): wrap(getattr(eager_transforms, name)) for name in _DERIVATIVES}
        if self.traced:
            forms |= {(apis, name): wrap(getattr(apis, name)) for name in _BATCHES}
            forms[eager_transforms, "_jvp_with_argnums"] = wrap(_by_pullbacks)
            forms[eager_transforms, "_vjp_with_argnums"] = self._pulled_back(_VJP)
            # What `hessian` calls. A derivative that is differentiated forwards, or for many outputs at once twice, is computed by code of
            # PyTorch that reads sizes as plain integers.
            forms[eager_transforms, "jacfwd"] = _JACREV
            forms[eager_transforms, "jacrev"] = _gradient
        forms[torch.autograd, "grad"] = self._noted_autograd(torch.autograd.grad)
        if not self.whole:
            with replaced(forms):
                yield
            return
        own, kept = model.forward, vars(model).get("forward")
        model.forward = functools.wraps(own)(lambda *args, **kwargs: self._inlined(lambda given, named: own(*given, **named), args, kwargs))
        try:
            with replaced(forms):
                yield
        finally:
            del model.forward
            if kept is not None:
                model.forward = kept

    def _noted_autograd(self, real: Function) -> Function:
        def grad(*args: object, **kwargs: object) -> object:
            self.met_autograd = True
            return real(*args, **kwargs)

        return grad

    def _noted(self, real: Function) -> Function:
        def transform(*args: object, **kwargs: object) -> object:
            if _is_traced((args, kwargs)):
                self.met = True
                raise RuntimeError("a derivative of torch.func")
            return real(*args, **kwargs)

        return transform

    def _outermost(self, real: Function) -> Function:
        def transform(*args: object, **kwargs: object) -> object:
            try:
                return self._inlined(lambda given, named: real(*given, **named), args, kwargs)
            except (KeyError, TorchDynamoException):  # of control flow, to which `torch.func` does not apply
                form = _BY_AUTOGRAD.get(real)
                if form is None or self._depth:
                    raise
                return self._inlined(lambda given, named: form(*given, **named), args, kwargs)

        return transform

    def _pulled_back(self, real: Function) -> Function:
        """`vjp`, whose function computes the forward pass anew: the two are traced by themselves, and equal ops are merged later."""

        def transform(func: Function, *primals: object, argnums: object = None, has_aux: bool = False) -> object:
            if self._depth or not _is_traced(primals):
                return real(func, *primals, argnums=argnums, has_aux=has_aux)

            def all_of(given: Sequence[object]) -> Sequence[object]:
                found = real(func, *given, argnums=argnums, has_aux=has_aux)
                assert isinstance(found, tuple)
                return found

            def pull(*cotangents: object, **_: object) -> object:
                return self._inlined(lambda given, further: _call(all_of(given)[1], further), primals, cotangents, repeated=True)

            kept = self._inlined(lambda given: [each for each in all_of(given) if not callable(each)], primals, repeated=True)
            value, *further = _sequence(kept)
            return (value, pull, *further)

        return transform

    def _inlined(self, function: Function, *arguments: object, repeated: bool = False) -> object:
        """What `function` returns, by the ops that it comes to, on these arguments.

        repeated: some of the ops are computed elsewhere too, and must come to the same there. Writes do not come here: PyTorch refuses
        those of tensors that a function with a derivative captures.

        Raises: UnsupportedOpError.
        """
        if self._depth or not _is_traced(arguments):
            return function(*arguments)
        leaves, structure = pytree.tree_flatten(arguments)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        returned: list[object] = []

        def flat(*values: Tensor) -> list[Tensor]:
            given = iter(values)
            self._depth += 1
            try:
                found = function(*pytree.tree_unflatten([next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure))
            finally:
                self._depth -= 1
            returned[:] = [found]
            return [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor)]

        mode = detect_fake_mode(tensors)
        assert mode is not None
        untold = _make_temp_remove_mode_context_manager(PreDispatchTorchFunctionMode)
        with untold(), _disable_current_modes(), mode, enable_python_dispatcher():
            module = make_fx(flat, record_stack_traces=True)(*tensors)
        if repeated:
            _check_draws(module)
        module.graph.eliminate_dead_code()  # among it how PyTorch's tangents find shapes, on another device
        make_numbers_tensors(module)
        with preserve_node_meta():  # the lines
            results = iter(fx.Interpreter(module).run(*tensors))
        return pytree.tree_map(lambda leaf: next(results) if isinstance(leaf, Tensor) else leaf, returned[0])


def _check_draws(module: fx.GraphModule) -> None:
    """Raises: UnsupportedOpError, if an op of the graph, or of one within it, draws random numbers: another trace has others."""
    nodes = [node for graph in module.modules() if isinstance(graph, fx.GraphModule) for node in graph.graph.nodes]
    drawn = [node for node in nodes if draws(node.target, node.args, node.kwargs)]
    if drawn:
        raise UnsupportedOpError([UnsupportedOp("torch.func.vjp", DRAWS.format(op=drawn[0].target), running_line())])


def _gradient(func: Function, argnums: int | tuple[int, ...]) -> Function:
    """`jacrev`, of a function with one number as its result by `grad`."""

    def derivative(*arguments: object) -> object:
        results = pytree.tree_leaves(func(*arguments))
        is_number = len(results) == 1 and isinstance(results[0], Tensor) and not results[0].dim()
        return (apis.grad if is_number else _JACREV)(func, argnums)(*arguments)

    return derivative


def _by_pullbacks(func: Function, primals: Any, tangents: Any, argnums: Any, *, strict: bool = False, has_aux: bool) -> Any:
    """`jvp`, as the derivative of the pullback, which is linear: jvp(f, x, t) = vjp(u → vjp(f, x)(u), 0)(t). Where tangents are pushed
    forwards, beside numbers and tensors that have none, code of PyTorch reads sizes as plain integers."""
    try:
        found: Any = _VJP(func, *primals, has_aux=has_aux)
        value, pull, *further = found
        tangent = _VJP(pull, pytree.tree_map(torch.zeros_like, value))[1](tuple(tangents))[0]
    except RuntimeError:  # of an op whose gradient has no gradient, or a result of integers
        return _JVP(func, primals, tangents, argnums, strict=strict, has_aux=has_aux)
    return (value, tangent, *further)


def _grad_and_value(
    func: Function, argnums: int | tuple[int, ...], has_aux: bool, args: Sequence[object], kwargs: dict[str, object]
) -> tuple[Any, Any]:
    """As `torch.func.grad_and_value`, by the autograd of tensors."""

    def variable(leaf: object) -> object:
        return leaf.detach().requires_grad_() if isinstance(leaf, Tensor) else leaf

    given = list(args)
    places = [argnums] if isinstance(argnums, int) else list(argnums)
    for place in places:
        given[place] = pytree.tree_map(variable, given[place])
    with torch.enable_grad():
        found: Any = func(*given, **kwargs)
        value, aux = found if has_aux else (found, None)
        leaves, structure = pytree.tree_flatten(given[argnums] if isinstance(argnums, int) else tuple(given[place] for place in places))
        slopes = pytree.tree_unflatten(list(_AUTOGRAD(value, leaves, materialize_grads=True)), structure)
    plain, further = value.detach(), pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, aux)
    return slopes, (plain, further) if has_aux else plain


def _grad(func: Function, argnums: int | tuple[int, ...], has_aux: bool, args: Sequence[object], kwargs: dict[str, object]) -> Any:
    slopes, value = _grad_and_value(func, argnums, has_aux, args, kwargs)
    return (slopes, value[1]) if has_aux else slopes


_AUTOGRAD, _JVP, _VJP = torch.autograd.grad, eager_transforms._jvp_with_argnums, eager_transforms._vjp_with_argnums
_BY_AUTOGRAD: dict[Function, Function] = {eager_transforms.grad_impl: _grad, eager_transforms.grad_and_value_impl: _grad_and_value}
_JACREV = eager_transforms.jacrev


def _is_traced(arguments: object) -> bool:
    mode = detect_fake_mode(pytree.tree_leaves(arguments))
    return mode is not None and mode.shape_env is not None


def _call(function: object, arguments: Sequence[object]) -> object:
    assert callable(function)
    return function(*arguments)


def _sequence(value: object) -> Sequence[object]:
    assert isinstance(value, list)
    return value
