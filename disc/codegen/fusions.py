"""The fusions of a module of stage `fused`, and the kernels that they become on a device by the plans that stand on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from disc.codegen.plan.fusion import Fusion, KernelPlan
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node, Snapshot
from disc.ir.ops import string_attr
from disc.shapes import ShapeEnv
from disc.speculation.guards import ALWAYS, Guard, parse

PLAN = "disc.plan"  # the attribute: a dictionary of texts by the name of the target


@dataclass(frozen=True, eq=False)
class Place:
    """A fusion in the program. work: what a device sees of it; results, operands: in the program; key: the text that equal ones share,
    plans apart; plans: by the name of the target."""

    work: Fusion
    results: tuple[Node, ...]
    operands: tuple[Node, ...]
    key: str
    plans: Mapping[str, str]

    @property
    def node(self) -> Node:
        """Its first result."""
        return self.results[0]


@dataclass(frozen=True, eq=False)
class Planned:
    """A place of which a kernel is made, and its plan. key: the text that equal kernels share."""

    place: Place
    plan: KernelPlan
    key: str


def read_fusions(module: ir.Module, env: ShapeEnv, snapshot: Snapshot, body: Body) -> list[Place]:
    """Those of the main function, in order. Raises CompilerBug for versions that are no guards, and where none is left to run."""
    checked = "disc.checked_indices" in module.operation.attributes
    made: dict[Node, Place] = {}
    found: list[Place] = []
    for node in body.nodes:
        if node.op != "kernel.fusion" or node.result:
            continue
        makers = tuple(_maker(made.get(operand), node, body) for operand in node.operands)
        place = _place(snapshot.ops[node.id], node, env, checked, makers)
        made.update((result, place) for result in node.siblings)
        found.append(place)
    return found


def _maker(place: Place | None, user: Node, program: Body) -> Fusion | None:
    """What a fusion makes, where only `user` reads it, and as one operand."""
    if place is None or any(result.uses != [user] or result in program.yields for result in place.results):
        return None
    return place.work


def _place(op: ir.Operation, node: Node, env: ShapeEnv, checked: bool, makers: tuple[Fusion | None, ...]) -> Place:
    body = node.body
    assert body is not None
    copy = op.clone(ip=False)
    name = string_attr(op, "name")
    for attribute in ("name", PLAN):
        if attribute in copy.attributes:
            del copy.attributes[attribute]
    constant = "".join("w" if operand.op == "disc.weight" else "." for operand in node.operands)
    pairs = zip(body.arguments, node.operands, strict=True)
    weights = frozenset(argument for argument, operand in pairs if operand.op == "disc.weight")
    work = Fusion(name, string_attr(op, "kind"), body, weights, env, checked, _guards(name, node, env), makers)
    plans = node.attrs.get(PLAN, {})
    assert isinstance(plans, dict)
    texts = {target: str(text) for target, text in plans.items()}
    return Place(work, node.siblings, node.operands, f"{constant}\n{copy.get_asm(use_local_scope=True)}", texts)


def _guards(name: str, node: Node, env: ShapeEnv) -> tuple[Guard, ...]:
    try:
        guards = tuple(parse(text, env.parse) for text in node.texts("versions")) or (ALWAYS,)
    except ValueError as error:
        raise CompilerBug(f"the versions of fusion {name}: {error}") from error
    if guards[-1] != ALWAYS:
        raise CompilerBug(f"the last version of fusion {name} has the guard {guards[-1]}, so that there may be none to run")
    return guards


def maker_keys(places: Sequence[Place]) -> list[tuple[str, ...]]:
    """For each place, by operand, the key of the fusion that makes it for this one alone, "" where there is none."""
    keys = {id(each.work): each.key for each in places}
    return [tuple(keys[id(maker)] if maker is not None else "" for maker in place.work.makers) for place in places]


def plan_places(places: Sequence[Place], target: str, read: Callable[[str], KernelPlan]) -> list[Planned]:
    """The kernels of a program for the target of a name, in order: a fusion that another one's kernel computes as well has none of its own.

    Raises CompilerBug for a fusion without a plan, and for a plan that joins what others read as well.
    """
    by_work = {id(place.work): place for place in places}
    plans: dict[str, KernelPlan] = {}
    planned: list[Planned] = []
    joined: set[int] = set()
    for place in places:
        text = place.plans.get(target)
        if text is None:
            raise CompilerBug(f"fusion {place.work.name} has no plan for {target}: choose-kernels has not run for it")
        plan = plans[text] = plans.get(text) or read(text)
        if plan.joins is None:
            planned.append(Planned(place, plan, f"{text}\n{place.key}"))
            continue
        maker = by_work.get(id(place.work.maker(plan.joins)))
        if maker is None:
            raise CompilerBug(
                f"the plan of fusion {place.work.name} for {target} joins argument {plan.joins}, which is not made for it alone"
            )
        joined.add(id(maker))
        planned.append(Planned(_join(maker, place, plan.joins), plan, f"{text}\n{maker.key}\n{place.key}"))
    return [each for each in planned if id(each.place) not in joined]


def _join(maker: Place, user: Place, argument: int) -> Place:
    """Both as one, in the place of the user; its operands are the maker's, then its own but that one."""
    operands = (*maker.operands, *user.operands[:argument], *user.operands[argument + 1 :])
    name = f"{maker.work.name}_{user.work.name.removeprefix('compute_')}"
    return replace(user, work=replace(user.work, name=name), operands=operands)
