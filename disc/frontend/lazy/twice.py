"""Gradients that the backward programs of compiled traces do not have, whose values were read before the backward pass.

The program of such a trace is AOTAutograd's, whose backward program cannot be differentiated, and takes zeros for the gradients of
results that have none: of one that is infinite, or at a pole of its derivative, these become NaN (a root of zero, which is only printed).
Where gradients of gradients may follow (`create_graph=True`), or such zeros may be why a gradient is not finite, the trace's calls are made
again by PyTorch, on the same inputs, and what autograd says of these is the gradient. Calls that have drawn random numbers, or have written
their inputs, are not: there such a gradient is an error. Zeros for what the gradients go through anyhow are only added to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, NoReturn

import torch

from disc.frontend.lazy.reached import Edge, by_edges

Gradients = tuple[torch.Tensor | None, ...]


def differentiate_twice(
    results: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    made_again: Callable[[], Sequence[torch.Tensor]] | None,
    ways: Sequence[Set[int]],
) -> None:
    """Has gradients of gradients of a program's results, and those that zeros may have spoiled, be those of `made_again`: the same
    values, as PyTorch computes them of the inputs. Where that is None, what may be spoiled is a RuntimeError of the pass. ways: of each
    result, the places of those that its gradients go through.
    Results that are views of others, or of inputs, stay as they are: PyTorch's error says that there is no such gradient."""
    differentiable = [each for each in results if each.requires_grad and each.grad_fn is not None]
    nodes = {each.grad_fn for each in differentiable}
    if len(nodes) != 1:
        return
    node = nodes.pop()
    assert node is not None
    sources = {each.output_nr: place for place, each in enumerate(results) if each.grad_fn is node}
    versions = [each._version for each in inputs]
    edges = node.next_functions

    def gradients(found: Gradients, given: Gradients) -> Gradients | None:
        again = torch.is_grad_enabled()
        if not again:
            asked = [place for number, place in sources.items() if given[number] is not None]
            beside = set(sources.values()).difference(*(ways[place] for place in asked))
            if not beside or all(map(_is_finite, found)):
                return None
        if made_again is None:
            return None if again else _refused()
        variables = _of_edges(edges, inputs)
        wanted = [place for place, each in enumerate(variables) if each is not None]
        if variables.count(None) != sum(source is None for source, _ in edges):
            return None
        if versions != [each._version for each in inputs]:
            if not again:
                _refused()
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                "an input of what disc.lazy has compiled, of which gradients of gradients are computed"
            )
        values = made_again()
        heads = [(values[sources[number]], each) for number, each in enumerate(given) if each is not None and number in sources]
        made = torch.autograd.grad(
            [value for value, _ in heads], [variables[place] for place in wanted], [each for _, each in heads],
            create_graph=again, allow_unused=True,
        )  # fmt: skip
        results: list[Any] = list(found)
        for place, each in zip(wanted, made, strict=True):
            results[place] = each
        return tuple(results)

    node.register_hook(gradients)  # pyright: ignore[reportArgumentType]


def _refused() -> NoReturn:
    raise RuntimeError(
        "disc.lazy: a gradient is not finite, perhaps because of values that nobody has asked the gradients of, and that one program has "
        "computed together with these: read or hold them without gradients (`detach`), or call disc.lazy.flush() before they are computed"
    )


def _is_finite(gradient: torch.Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())


def _of_edges(edges: Sequence[Edge], inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The inputs that gradients go to, by the edges of a program's node."""
    known = by_edges(inputs)
    return [inputs[known[edge]] if edge in known else None for edge in edges]
