"""name-dims: names every dim by a symbol on the types and turns shape operands into attributes and types.

    func.func @main(%x: tensor<?x768xf32> {disc.dims = ["s0", 768]}) -> tensor<?x12x64xf32> {
      %n = tensor.dim %x, %c0
      %s = tensor.from_elements %n, %c12, %c64
      %y = stablehlo.dynamic_reshape %x, %s
becomes
    "disc.symbolic_dim"() {sym_name = "S0", source = "arg0.0", ...}
    func.func @main(%x: tensor<?x768xf32, [@S0, 768]>) -> tensor<?x12x64xf32, [@S0, 12, 64]> {
      %y = "disc.reshape"(%x)

Requires stage `imported`; guarantees stage `named`. Every size is an expression of base symbols, the sizes and scalars of the
arguments; a size that depends on tensor data is reported. Facts that the program requires stay as `disc.relation`. The conditions under
which the front end made the program (the module attribute `disc.conditions`) are proved, or stay as `disc.condition` and are checked in
every call; how many were what is kept in the attribute `disc.decisions`. The regions of control flow become functions (`outline.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.errors import CompilerBug, UnsupportedOp, UnsupportedOpError
from disc.ir.ops import block_ops, location_text, main_block, string_attr
from disc.ir.passes import CompileState, Pass
from disc.ir.rewriting import producer
from disc.ir.stages import store_env
from disc.ir.symbols import ModuleEnv, Requirement
from disc.passes.shape.input_symbols import InputSizes, declare_inputs
from disc.passes.shape.named_form import NamedForm
from disc.passes.shape.outline import outline
from disc.passes.shape.shape_rules import Shapes
from disc.shapes import Dim

# Each round uses the facts that the round before found further down; real programs need two.
MAX_ROUNDS = 8


@dataclass(frozen=True)
class NameDims(Pass):
    name: ClassVar[str] = "name-dims"
    makes: ClassVar[str | None] = "named"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        env = ModuleEnv(module)
        inputs = declare_inputs(module, env)
        later = [requirement for requirement in inputs.conditions if not _teaches(env, requirement)]
        shapes = infer_shapes(module, env, inputs)
        for requirement in later if not shapes.unsupported else ():
            env.require(requirement)
        shapes.unsupported += _leaking(module, env, inputs)
        if shapes.unsupported:
            raise UnsupportedOpError(shapes.unsupported)
        _count(module, env, inputs.conditions)
        store_env(module, env)
        NamedForm(module, shapes, env).rewrite()
        outline(module, shapes.when)


def _leaking(module: ir.Module, env: ModuleEnv, inputs: InputSizes) -> list[UnsupportedOp]:
    """The sizes of regions, where data give them, on which more rests than what is computed there.

    Such a size is checked where it is bound, in calls that take the branch. Facts hold for the whole program, so none may follow from it
    about other sizes: it may be 0, be bounded from above, and stand in relations to sizes of the same region.
    """
    own: dict[str, tuple[ir.Operation, ir.Block]] = {}
    for value, size in inputs.made.items():
        op, symbol = producer(value), size.item()
        assert op is not None and isinstance(symbol, Dim)
        if op.block != main_block(module):
            own |= {name: (op, op.block) for name in symbol.symbols()}

    def is_apart(size: Dim, name: str) -> bool:
        return all(each in own and own[each][1] == own[name][1] for each in size.symbols())

    def says_nothing(size: Dim, name: str) -> bool:
        symbol = Dim.symbol(name)
        return size.coefficient(symbol) == -1 and own.keys().isdisjoint((size + symbol).symbols())

    found: dict[str, UnsupportedOp] = {}
    for name, (op, _) in own.items():
        low = env.range(Dim.symbol(name))[0]
        apart = (low is None or low <= 0) and is_apart(env.simplify(Dim.symbol(name)), name)
        for kind, size in env.premises():
            if name in size.symbols() and size != Dim.symbol(name) and not is_apart(size, name):
                apart = apart and kind == "is not negative" and says_nothing(size, name)
        if not apart:
            place = location_text(op)
            what = string_attr(op, "what").removesuffix(f" at {place}") if "what" in op.attributes else op.name
            found.setdefault(place, UnsupportedOp(what, "in a branch or a loop it may be 0, and other sizes may not depend on it", place))
    return list(found.values())


def _teaches(env: ModuleEnv, requirement: Requirement) -> bool:
    """Requires a condition at once where it gives a fact about sizes; another one waits until the program's own facts are known."""
    if not requirement.condition.is_fact():
        return False
    env.require(requirement)
    return True


def _count(module: ir.Module, env: ModuleEnv, conditions: Sequence[Requirement]) -> None:
    """Replaces the front end's conditions by their number and how many of them were proved."""
    attributes = module.operation.attributes
    layout, fixed = (
        ir.IntegerAttr(attributes[name]).value if name in attributes else 0 for name in ("disc.layout_decisions", "disc.fixed_decisions")
    )
    for name in ("disc.conditions", "disc.layout_decisions", "disc.fixed_decisions"):
        if name in attributes:
            del attributes[name]
    proved = fixed + sum(each.condition not in env.requirements for each in conditions)
    checked = len(env.requirements)
    if proved or layout or checked:
        word = ir.IntegerType.get_signless(64)
        counts = {"proved": proved, "layout": layout, "checked": checked}
        attributes["disc.decisions"] = ir.DictAttr.get({name: ir.IntegerAttr.get(word, count) for name, count in counts.items()})


def infer_shapes(module: ir.Module, env: ModuleEnv, inputs: InputSizes) -> Shapes:
    """Walks @main until a walk teaches no new fact, so that facts found late also decide what comes early."""
    for _ in range(MAX_ROUNDS):
        known = env.knowledge()
        shapes = Shapes(env, [each.condition for each in inputs.conditions])
        shapes.dims.update(inputs.dims)
        shapes.values.update(inputs.values)
        shapes.made.update(inputs.made)
        for op in block_ops(main_block(module)):
            shapes.visit(op)
        if shapes.unsupported or env.knowledge() == known:
            return shapes
    raise CompilerBug(f"the facts about sizes are still growing after {MAX_ROUNDS} walks")
