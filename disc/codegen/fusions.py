"""The fusions of a module of stage `fused`, and the kernels that they become on a device by the plans that stand on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from torch_mlir import ir

from disc.codegen.kernel_keys import KernelKey, KernelKeys
from disc.codegen.plan.fusion import PLAN, Fusion, KernelPlan
from disc.codegen.plan.updates import updated_argument
from disc.errors import CompilerBug
from disc.ir.control import WHILE
from disc.ir.graph import Body, Node, Snapshot
from disc.ir.ops import functions_of, string_attr
from disc.ir.state import IN_PLACE, read_state
from disc.shapes import ShapeEnv
from disc.speculation.guards import ALWAYS, Guard, parse


@dataclass(frozen=True, eq=False)
class Place:
    """A fusion in the program. work: what a device sees of it; results: in the program; key: what equal ones share; joined: by argument
    that another fusion makes for this one alone, the key of both as one kernel; plans: by the name of the target.

    arguments: of the region, in the order in which a kernel that is made for this place takes them; lines: the user's;
    modules: the paths of those that its ops belong to.
    """

    work: Fusion
    results: tuple[Node, ...]
    key: KernelKey
    joined: Mapping[Node, KernelKey]
    plans: Mapping[str, str]
    arguments: tuple[Node, ...]
    lines: tuple[str, ...]
    modules: tuple[str, ...]

    @property
    def node(self) -> Node:
        """Its first result."""
        return self.results[0]

    @property
    def planned_by(self) -> tuple[object, ...]:
        """Equal for places that have the same plan: of the fusion, and of it with the maker of each argument, also in which order they
        have their ops and arguments, as a plan may number these, and whose memory they may take."""
        keys = (self.key, *(self.joined.get(argument) for argument in self.key.arguments))
        spare = tuple(argument in self.work.spare for argument in self.key.arguments)
        return (spare, *((key.text, key.order) if key is not None else None for key in keys))


@dataclass(frozen=True, eq=False)
class Planned:
    """A place of which a kernel is made, and its plan. key: the text that equal kernels share."""

    place: Place
    plan: KernelPlan
    key: str


def read_functions(module: ir.Module, snapshot: Snapshot) -> dict[str, Body]:
    """The functions of a module by name, `main` first."""
    return {string_attr(each, "sym_name"): snapshot.block(each.regions[0].blocks[0]) for each in functions_of(module)}


def read_fusions(module: ir.Module, env: ShapeEnv, functions: Mapping[str, Body]) -> list[Place]:
    """Those of all functions, by name, in order. Raises CompilerBug for versions that are no guards, and where none is left to run."""
    checked = "disc.checked_indices" in module.operation.attributes
    keys = KernelKeys(env)
    made: dict[Node, Place] = {}
    found: list[Place] = []
    carried = _carried(functions)
    kept = _kept(module, functions["main"])
    for program, node in [(each, node) for each in functions.values() for node in each.nodes]:
        if node.op != "kernel.fusion" or node.result:
            continue
        makers = tuple(_maker(made.get(operand), node, program) for operand in node.operands)
        place = _place(node, env, checked, makers, keys, _spare(node, program, carried, kept))
        made.update((result, place) for result in node.siblings)
        found.append(place)
    return found


def _maker(place: Place | None, user: Node, program: Body) -> Place | None:
    """What a fusion makes, where only `user` reads it, and as one operand."""
    if place is None or any(result.uses != [user] or result in program.yields for result in place.results):
        return None
    return place


def _carried(functions: Mapping[str, Body]) -> set[Node]:
    """The arguments of loops' bodies that these carry. A function is run by one op alone."""
    loops = [node for body in functions.values() for node in body.nodes if node.op == WHILE and not node.result]
    return {
        argument for loop in loops for argument in functions[str(loop.attrs["body"]).removeprefix("@")].arguments[: loop.integer("carried")]
    }


def _kept(module: ir.Module, main: Body) -> dict[Node, Node]:
    """The buffers of the program that it gives new values → these, where they may be written in place. Not inputs: a caller's may overlap
    each other, and a call that fails leaves them."""
    state = read_state(module)
    if state is None or IN_PLACE not in module.operation.attributes:
        return {}
    pairs = state.pairs(len(main.arguments), len(main.yields))[: len(state.buffers)]
    found = {main.arguments[argument]: main.yields[result] for argument, result in pairs}
    return {argument: result for argument, result in found.items() if all(map(_is_fusion, argument.uses))}


def _is_fusion(user: Node) -> bool:
    """What control flow returns may lie in the memory of what it is given: no other use knows whether that is read afterwards."""
    return user.op == "kernel.fusion"


def _becomes(node: Node, argument: Node, wanted: Node | None, program: Body) -> bool:
    """Whether a fusion only writes over `argument`, of its region, and what it makes is `wanted`, or is only written over until it is; no
    other result of the program may lie in that memory."""
    assert node.body is not None
    if wanted is None or len(node.siblings) != 1 or updated_argument(node.body) is not argument:
        return False
    if not all(map(_is_fusion, node.uses)):
        return False
    if node is wanted:
        return program.yields.count(node) == 1
    last = node.uses[-1] if node.uses else None
    if last is None or last.body is None or node in program.yields or last.operands.count(node) != 1:
        return False
    return _becomes(last.siblings[0], last.body.arguments[last.operands.index(node)], wanted, program)


def _spare(node: Node, program: Body, carried: Set[Node], kept: Mapping[Node, Node]) -> frozenset[Node]:
    """The arguments whose memory is the program's own, and which it does not read after this fusion. Not the results of branches, which
    may lie in the memory of another value."""
    assert node.body is not None
    return frozenset(
        argument
        for argument, operand in zip(node.body.arguments, node.operands, strict=True)
        if (operand in carried or operand.op in ("kernel.fusion", WHILE) or _becomes(node, argument, kept.get(operand), program))
        and operand.uses[-1] is node
        and operand not in program.yields
        and node.operands.count(operand) == 1
    )


def _place(node: Node, env: ShapeEnv, checked: bool, makers: Sequence[Place | None], keys: KernelKeys, spare: frozenset[Node]) -> Place:
    body, name = node.body, str(node.attrs["name"])
    assert body is not None
    weights = frozenset(argument for argument, operand in zip(body.arguments, node.operands, strict=True) if operand.op == "disc.weight")
    parts = tuple(maker.work if maker is not None else None for maker in makers)
    work = Fusion(name, str(node.attrs["kind"]), body, weights, env, checked, _guards(name, node, env), parts, spare)
    made = [(argument, maker) for argument, maker in zip(body.arguments, makers, strict=True) if maker is not None]
    joined = {argument: keys.key(maker.node, node) for argument, maker in made}
    plans = node.attrs.get(PLAN, {})
    assert isinstance(plans, dict)
    texts = {target: str(text) for target, text in plans.items()}
    return Place(work, node.siblings, keys.key(node), joined, texts, body.arguments, body.lines(weights), body.modules(weights))


def _guards(name: str, node: Node, env: ShapeEnv) -> tuple[Guard, ...]:
    try:
        guards = tuple(parse(text, env.parse) for text in node.texts("versions")) or (ALWAYS,)
    except ValueError as error:
        raise CompilerBug(f"the versions of fusion {name}: {error}") from error
    if guards[-1] != ALWAYS:
        raise CompilerBug(f"the last version of fusion {name} has the guard {guards[-1]}, so that there may be none to run")
    return guards


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
        decided = plan.renumbered(place.key.numbers)
        if plan.joins is None:
            planned.append(Planned(place, plan, f"{decided}\n{place.key.text}"))
            continue
        maker = by_work.get(id(place.work.maker(plan.joins)))
        if maker is None:
            raise CompilerBug(
                f"the plan of fusion {place.work.name} for {target} joins argument {plan.joins}, which is not made for it alone"
            )
        joined.add(id(maker))
        both = _join(maker, place, place.arguments[plan.joins])
        planned.append(Planned(both, plan, f"{decided}\n{both.key.text}"))
    return [each for each in planned if id(each.place) not in joined]


def _join(maker: Place, user: Place, argument: Node) -> Place:
    """Both as one, in the place of the user; its arguments are the maker's, then its own but that one."""
    work = replace(user.work, name=f"{maker.work.name}_{user.work.name.removeprefix('compute_')}")
    arguments = (*maker.arguments, *(each for each in user.arguments if each is not argument))
    lines = tuple(dict.fromkeys((*maker.lines, *user.lines)))
    modules = tuple(dict.fromkeys((*maker.modules, *user.modules)))
    return replace(user, work=work, key=user.joined[argument], arguments=arguments, lines=lines, modules=modules)
