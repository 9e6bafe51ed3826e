"""The fusions of a module of stage `fused`, and the kernels that they become on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from disc.codegen.plan.fusion import Fusion, KernelPlan
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node, Snapshot
from disc.ir.ops import string_attr
from disc.shapes import ShapeEnv
from disc.speculation.guards import ALWAYS, Guard, parse


@dataclass(frozen=True, eq=False)
class Place:
    """A fusion in the program. work: what a device sees of it; results, operands: in the program; key: the text that equal ones share."""

    work: Fusion
    results: tuple[Node, ...]
    operands: tuple[Node, ...]
    key: str

    @property
    def node(self) -> Node:
        """Its first result."""
        return self.results[0]


@dataclass(frozen=True, eq=False)
class Planned:
    """A place of which a kernel is made, and its plan."""

    place: Place
    plan: KernelPlan


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
    del copy.attributes["name"]
    constant = "".join("w" if operand.op == "disc.weight" else "." for operand in node.operands)
    pairs = zip(body.arguments, node.operands, strict=True)
    weights = frozenset(argument for argument, operand in pairs if operand.op == "disc.weight")
    work = Fusion(name, string_attr(op, "kind"), body, weights, env, checked, _guards(name, node, env), makers)
    return Place(work, node.siblings, node.operands, f"{constant}\n{copy.get_asm(use_local_scope=True)}")


def _guards(name: str, node: Node, env: ShapeEnv) -> tuple[Guard, ...]:
    try:
        guards = tuple(parse(text, env.parse) for text in node.texts("versions")) or (ALWAYS,)
    except ValueError as error:
        raise CompilerBug(f"the versions of fusion {name}: {error}") from error
    if guards[-1] != ALWAYS:
        raise CompilerBug(f"the last version of fusion {name} has the guard {guards[-1]}, so that there may be none to run")
    return guards


def plan_places(places: Sequence[Place], choose: Callable[[Fusion], KernelPlan]) -> list[Planned]:
    """The kernels of a program on one device, in order: equal fusions are planned once, and those that another one's kernel computes as
    well have none of their own."""
    by_work = {id(place.work): place for place in places}
    plans: dict[tuple[str, ...], KernelPlan] = {}
    planned: list[Planned] = []
    joined: set[int] = set()
    for place in places:
        makers = [by_work[id(maker)].key if maker is not None else "" for maker in place.work.makers]
        key = (place.key, *makers)
        if key not in plans:
            plans[key] = choose(place.work)
        plan = plans[key]
        if plan.joins is not None:
            maker = by_work[id(place.work.maker(plan.joins))]
            joined.add(id(maker))
            place = _join(maker, place, plan.joins)
        planned.append(Planned(place, plan))
    return [each for each in planned if id(each.place) not in joined]


def _join(maker: Place, user: Place, argument: int) -> Place:
    """Both as one, in the place of the user; its operands are the maker's, then its own but that one."""
    operands = (*maker.operands, *user.operands[:argument], *user.operands[argument + 1 :])
    name = f"{maker.work.name}_{user.work.name.removeprefix('compute_')}"
    return Place(replace(user.work, name=name), user.results, operands, f"{maker.key}\n{argument}\n{user.key}")
