"""The softmax of rows in a row kernel: what its values allow beyond what its ops say one by one.

Its exponents are 0 at most, its sums 1 at least (or NaN), so that a product with a sum's reciprocal, within 2.5 ulp with the exponential's
own error, takes the place of the division. A NaN score makes NaN of the sum, and so of the whole row, without the maximum's help.
"""

from __future__ import annotations

from disc.codegen.plan.index import Index, view_index
from disc.codegen.plan.softmax import read_softmax
from disc.codegen.x86.emit import Emitter, Predicate
from disc.codegen.x86.math.exp_log import exponential_of_negative
from disc.codegen.x86.math.vector_math import VectorMath
from disc.ir.graph import Body, Node
from disc.ir.op_table import IN_ORDER_VIEWS
from disc.shapes.recursion import Recursive


def bind_softmaxes(e: Emitter, body: Body) -> None:
    """Gives `e` the rules for the f32 softmaxes along last dims in `body`."""
    for node in body.nodes:
        if node.op != "stablehlo.divide" or node.element != "f32":
            continue
        exponential = node.operands[0]
        if exponential.op != "stablehlo.exponential" or exponential.operands[0].op != "stablehlo.subtract":
            continue
        shifted = exponential.operands[0]
        if read_softmax(shifted.operands[0], node) is None:
            continue
        e.own_rules[exponential] = _exponential
        e.own_rules[node] = _quotient
        maximum, total = _reductions(shifted.operands[1]), _reductions(node.operands[1])
        private = [exponential, shifted, *maximum]
        if not any(each in body.yields for each in private) and _all_users(private) <= {*private, *total, node}:
            e.silent_maxima.add(maximum[-1])


def _reductions(value: Node) -> list[Node]:
    """What lies between `value` and the reduction before it, that included: views, and the guard of a row without finite scores."""
    found = [value]
    while found[-1].op != "stablehlo.reduce":
        last = found[-1]
        if last.op == "stablehlo.select":
            found += [last.operands[0], *(user for user in last.operands[0].operands if user.op in IN_ORDER_VIEWS)]
        found.append(last.operands[2] if last.op == "stablehlo.select" else last.operands[0])
    return found


def _all_users(nodes: list[Node]) -> set[Node]:
    return {user for node in nodes for user in node.uses}


def _exponential(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
    return exponential_of_negative(VectorMath(e.b, "f32"), (yield e.compute(node.operands[0], index, predicate)))


def _quotient(e: Emitter, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
    """The exponential times the reciprocal of the sum, which is computed where the sum is."""
    m = VectorMath(e.b, "f32")
    total, at = node.operands[1], index
    while (viewed := view_index(e.space, total, at)) is not None:
        total, at = total.operands[0], viewed
    scope, key = e.scope(at, predicate), ("reciprocal", total.id, at, predicate)
    if key not in scope.memo:
        with e.b.at(scope):
            one = m.const(1.0)
            scope.memo[key] = m.div(one, (yield e.compute(total, at, predicate)))
    return m.mul((yield e.compute(node.operands[0], index, predicate)), scope.memo[key])
