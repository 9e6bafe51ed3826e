"""Checks that AOTAutograd strings on a token, so that they keep their order, as the calls that they are.

    %r = with_effects(%token, _linalg_check_errors, %numbers, ...)     ─►     _linalg_check_errors(%numbers, ...)
    return %r[0], %y                                                          return %y

A graph with other effects (prints, custom ops) stays as it is: PyTorch runs these.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch._higher_order_ops.effects import with_effects

from disc.errors import warn
from disc.frontend.graph_parts import Executable
from disc.frontend.locations import line_text
from disc.frontend.output_views import output_node

CHECKS = (torch.ops.aten._linalg_check_errors.default,)
PRINTS = (torch.ops.aten._print.default, torch.ops.higher_order.print)


def warn_of_prints(graph: fx.Graph) -> None:
    """Warns of every print: compiled programs do not."""
    for node in graph.nodes:
        if node.target in PRINTS or (node.target is with_effects and node.args[1] in PRINTS):
            warn(f"the print at {line_text(node)}: the compiled program does not print")


def without_tokens(module: fx.GraphModule) -> tuple[fx.GraphModule, int]:
    """The module without tokens, and how many these were, the first of its arguments and results. 0: the module itself."""
    effects = module.graph.find_nodes(op="call_function", target=with_effects)
    if not effects or any(node.args[1] not in CHECKS for node in effects):
        return module, 0
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))  # pyright: ignore[reportArgumentType]
    tokens = _tokens(graph)
    output = output_node(graph)
    (returned,) = output.args
    assert isinstance(returned, list | tuple)
    count = len(tokens)
    passed = [list(returned[:count]), graph.find_nodes(op="placeholder")[:count]]
    if any(each != tokens for each in passed) or any(set(token.users) != {output} for token in tokens):
        return module, 0
    output.args = (returned[count:],)
    for token in tokens:
        graph.erase_node(token)
    return fx.GraphModule(module, graph), count


def erase_tokens(module: fx.GraphModule) -> str:
    """Takes out what PyTorch strings checks on where no caller gives tokens: arguments of their own, which nothing returns. Gives the name
    of another effect, where there is one: the module is as it was, then."""
    effects = module.graph.find_nodes(op="call_function", target=with_effects)
    others = [str(node.args[1]) for node in effects if node.args[1] not in CHECKS]
    if others or not effects:
        return others[0] if others else ""
    for token in _tokens(module.graph):
        module.graph.erase_node(token)
    module.recompile()
    return ""


def _tokens(graph: fx.Graph) -> list[fx.Node]:
    """Has the checks of a graph be calls; gives what they were strung on."""
    return list(dict.fromkeys(_call(graph, node) for node in graph.find_nodes(op="call_function", target=with_effects)))


def _call(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Puts the call in the place of `node`, and returns the token, which is that after it, too."""
    token, op, *arguments = node.args
    with graph.inserting_before(node):
        call = graph.call_function(op, tuple(arguments), dict(node.kwargs))  # pyright: ignore[reportArgumentType]
    assert isinstance(token, fx.Node)
    call.meta = {name: value for name, value in node.meta.items() if name != "val"}
    for user in list(node.users):
        assert user.target is operator.getitem and (user.args[1] == 0 or not user.users), "a check returns nothing but the token"
        user.replace_all_uses_with(token)
        graph.erase_node(user)
    graph.erase_node(node)
    return token


def with_tokens(run: Executable, count: int) -> Executable:
    """Takes and returns so many tokens more, which PyTorch gives as None and does not read."""
    if not count:
        return run

    def taking(inputs: list[object]) -> Sequence[object]:
        return [*[None] * count, *run(inputs[count:])]

    return taking
