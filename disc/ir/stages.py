"""The stages of the IR: what is legal at each, and how the symbols of a module are read and written."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from disc.errors import CompilerBug, UnsupportedFormatError
from disc.ir.control import callees, check_control
from disc.ir.op_table import BINDING, CONTROL, OPS, PRODUCTS
from disc.ir.ops import DYNAMIC, block_ops, dims_of, function_blocks, functions_of, location_text, main_block, string_attr, terminator_of
from disc.ir.reducers import REDUCTIONS, reduction_fault
from disc.ir.symbols import DEFINITIONS, KERNEL, ModuleEnv, Requirement, condition, relation, symbolic_dim
from disc.shapes import Dim, ShapeEnv, parse_condition, parse_dim

STAGES = ("imported", "named", "fused")

NAMED_OPS: frozenset[str] = frozenset(OPS)
FUSED_OPS: frozenset[str] = frozenset(["disc.weight", "kernel.fusion", "stablehlo.constant", "func.return"]) | BINDING | CONTROL
IMPORTED_DIALECTS: frozenset[str] = frozenset(["stablehlo", "chlo", "arith", "tensor", "shape", "math", "disc", "func", "external"])

_FUSION_NEEDS = ("kind", "name")


def parse_module(text: str) -> ir.Module:
    """Reads IR in the current context, which gets the dialects that a front end may use (chlo is loaded with a pass that makes it).

    Raises: UnsupportedFormatError with MLIR's message for a text that is not valid IR.
    """
    PassManager.parse("builtin.module(func.func(convert-torch-to-stablehlo))").run(ir.Module.parse("").operation)
    try:
        return ir.Module.parse(text)
    except ir.MLIRError as error:
        raise UnsupportedFormatError(f"not valid IR: {error}") from error


# --- legality ---------------------------------------------------------------------------------------------------------


def stage_of(module: ir.Module) -> str:
    """The stage a module is in, by what it contains."""
    if any(op.name == "kernel.fusion" for block in function_blocks(module) for op in block_ops(block)):
        return "fused"
    named = any(op.operation.name in DEFINITIONS for op in module.body.operations)
    return "named" if named or _carries_encodings(module) else "imported"


def _carries_encodings(module: ir.Module) -> bool:
    """Whether a module without dynamic dims has its static ones named."""
    results = (result for op in block_ops(main_block(module)) for result in op.results)
    kinds = [value.type for value in (*main_block(module).arguments, *results) if isinstance(value.type, ir.RankedTensorType)]
    ranked = [kind for kind in kinds if ir.RankedTensorType(kind).rank > 0]
    return bool(ranked) and ir.RankedTensorType(ranked[0]).encoding is not None


def check_stage(module: ir.Module, stage: str) -> None:
    """Raises CompilerBug naming the first op of `module` that is illegal at `stage`."""
    rules: dict[str, Callable[[ir.Operation], str | None]] = {"imported": _imported_fault, "named": _named_fault, "fused": _fused_fault}
    if stage not in rules:
        raise CompilerBug(f"there is no stage {stage!r}; the stages are {', '.join(STAGES)}")
    symbols = [string_attr(op.operation, "sym_name") for op in module.body.operations if op.operation.name == "disc.symbolic_dim"]
    for op in [op for block in function_blocks(module) for op in block_ops(block)]:
        fault = rules[stage](op)
        if fault is None and stage != "imported":
            fault = _types_fault(op, frozenset(symbols))
        if fault is not None:
            raise CompilerBug(f"{op.name} at {location_text(op)} is not legal at stage {stage}: {fault}")
    if stage != "imported":
        for function in functions_of(module):
            _check_signature(function)
        check_control(module)
        _check_bound(module)


def _imported_fault(op: ir.Operation) -> str | None:
    return None if op.name.split(".")[0] in IMPORTED_DIALECTS else "its dialect does not belong to imported IR"


def _named_fault(op: ir.Operation) -> str | None:
    if op.name not in NAMED_OPS:
        return "no such op is left at this stage"
    return _missing(op, OPS[op.name].needs) or (reduction_fault(op) if op.name in REDUCTIONS else None)


def _missing(op: ir.Operation, names: Sequence[str]) -> str | None:
    return next((f"it lacks the attribute {name!r}" for name in names if name not in op.attributes), None)


def _fused_fault(op: ir.Operation) -> str | None:
    if op.name not in FUSED_OPS:
        return "it must be inside a kernel.fusion"
    if op.name != "kernel.fusion":
        return _named_fault(op)
    return _missing(op, _FUSION_NEEDS) or _region_fault(op)


def _region_fault(fusion: ir.Operation) -> str | None:
    """The body holds ops of stage `named` and `kernel.yield`, and reads nothing from outside but its arguments."""
    block = fusion.regions[0].blocks[0]
    inside = {value: None for op in block_ops(block) for value in op.results} | {value: None for value in block.arguments}
    for op in block_ops(block):
        if op.name != "kernel.yield" and _named_fault(op) is not None:
            return f"its body holds {op.name}: {_named_fault(op)}"
        if any(operand not in inside for operand in op.operands):
            return f"its body reads a value from outside in {op.name}"
    return None


def _types_fault(op: ir.Operation, symbols: frozenset[str]) -> str | None:
    for result in op.results:
        fault = _encoding_fault(result.type, symbols)
        if fault is not None:
            return fault
    return None


def _encoding_fault(kind: ir.Type, symbols: frozenset[str]) -> str | None:
    """Every ranked tensor of rank 1 or more names each dim: an integer for a static one, a defined symbol for a dynamic one."""
    if not isinstance(kind, ir.RankedTensorType):
        return f"the result type {kind} is not a tensor"
    if kind.rank == 0:
        return None if kind.encoding is None else f"the rank-0 type {kind} carries an encoding"
    if kind.encoding is None or not isinstance(kind.encoding, ir.ArrayAttr) or len(kind.encoding) != kind.rank:
        return f"the type {kind} does not name its dims"
    for size, entry in zip(kind.shape, kind.encoding, strict=True):
        if isinstance(entry, ir.IntegerAttr) and entry.value == size:
            continue
        if size == DYNAMIC and isinstance(entry, ir.FlatSymbolRefAttr) and entry.value in symbols:
            continue
        return f"the entry {entry} of the type {kind} is neither its size nor a defined symbol"
    return None


def _check_signature(function: ir.Operation) -> None:
    block = function.regions[0].blocks[0]
    declared = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    returned = [operand.type for operand in terminator_of(block).operands]
    if [value.type for value in block.arguments] != list(declared.inputs) or returned != list(declared.results):
        name = string_attr(function, "sym_name")
        raise CompilerBug(f"the type of @{name} does not agree with its arguments and what it returns")


def _check_bound(module: ir.Module) -> None:
    """Every symbol that an op binds is bound by one op, before any value has a dim that depends on it; in a function that control flow
    runs, for that function alone."""
    made = [op for op in module.body.operations if "source" in op.operation.attributes and string_attr(op.operation, "source") == KERNEL]
    if not made:
        return
    env = load_env(module)
    blocks = {string_attr(function, "sym_name"): function.regions[0].blocks[0] for function in functions_of(module)}
    left = _check_bound_in(main_block(module), blocks, env, set(env.made))
    if left:
        raise CompilerBug(f"no op binds {sorted(left)[0]}")


def _check_bound_in(block: ir.Block, blocks: Mapping[str, ir.Block], env: ModuleEnv, waiting: set[str]) -> set[str]:
    """waiting: the symbols that no op has bound yet. Returns those that none has bound behind the block, or in it."""
    waiting, left = set(waiting), set(waiting)
    for op in block_ops(block):
        early = sorted({name for result in op.results for dim in dims_of(result, env) for name in dim.symbols()} & waiting)
        if early:
            raise CompilerBug(f"{op.name} at {location_text(op)} stands before {early[0]}, which its result has, is bound")
        for name in callees(op):
            left &= _check_bound_in(blocks[name], blocks, env, left)
        bound = string_attr(op, "symbol") if op.name in BINDING else None
        if bound is not None and bound not in left:
            raise CompilerBug(f"{op.name} at {location_text(op)} binds {bound}, which is bound already, or no symbol of data")
        waiting.discard(bound or "")
        left.discard(bound or "")
    return left


# --- symbols ----------------------------------------------------------------------------------------------------------


def load_env(module: ir.Module, unknown: Container[str] = ()) -> ModuleEnv:
    """The facts that a module of stage `named` or later states. unknown: symbols that no relation is to say anything about."""
    env = ModuleEnv(module)
    ops = [op.operation for op in module.body.operations]
    symbols: list[tuple[str, int | None, int | None, int]] = []
    for op in ops:
        if op.name == "disc.symbolic_dim" and "source" in op.attributes:
            low, high, divisor = (
                ir.IntegerAttr(op.attributes[key]).value if key in op.attributes else None for key in ("min", "max", "divisor")
            )
            symbols.append((string_attr(op, "sym_name"), low, high, divisor or 1))
            env.sources[symbols[-1][0]] = string_attr(op, "source")
    relations: list[tuple[Dim, Dim]] = []
    for op in ops:
        if op.name == "disc.relation":
            left, right = (parse_dim(string_attr(op, side)) for side in ("lhs", "rhs"))
            if not any(name in unknown for name in (*left.symbols(), *right.symbols())):
                relations.append((left, right))
    env.adopt(_base_facts(tuple(symbols), tuple(relations)))
    for op in ops:
        if op.name == "disc.condition":
            requirement = _requirement(op)
            env.requirements[requirement.condition] = requirement
    for op in ops:
        if op.name == "disc.symbolic_dim" and "expr" in op.attributes:
            env.add_derived(string_attr(op, "sym_name"), env.parse(string_attr(op, "expr")))
    return env


@lru_cache(maxsize=16)
def _base_facts(symbols: tuple[tuple[str, int | None, int | None, int], ...], relations: tuple[tuple[Dim, Dim], ...]) -> ShapeEnv:
    """What base symbols (name, least, largest, divisor) and relations say. Every pass reads its module's anew, and few passes change them:
    what follows from many relations takes seconds to find."""
    env = ShapeEnv()
    for symbol in symbols:
        env.symbol(*symbol)
    for left, right in relations:
        env.equate(left, right)
    return env


def _requirement(op: ir.Operation) -> Requirement:
    why, message = (string_attr(op, name) if name in op.attributes else "" for name in ("why", "message"))
    sizes = [ir.StringAttr(each).value for each in ir.ArrayAttr(op.attributes["sizes"])] if "sizes" in op.attributes else []
    return Requirement(parse_condition(string_attr(op, "expr")), why, message, tuple(map(parse_dim, sizes)))


def store_env(module: ir.Module, env: ModuleEnv) -> None:
    """Writes what `env` knows at the top of `module`: base symbols, derived ones, relations, conditions, in order of declaration."""
    for op in list(module.body.operations):
        if op.operation.name in DEFINITIONS:
            op.operation.erase()
    for name in (*env.sources, *env.derived):
        symbolic_dim(env, name)
    for name in env.sources:
        symbol = Dim.symbol(name)
        solved = env.simplify(symbol)
        if solved != symbol:
            relation(env, symbol, solved)
    for left, right in env.facts():
        relation(env, left, right)
    for requirement in env.requirements.values():
        condition(env, requirement)


def dot_elements(module: ir.Module) -> frozenset[str]:
    """The element types of the left operands of all dots and convolutions, at any stage and depth."""
    found: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in PRODUCTS:
            found.add(str(ir.ShapedType(op.operands[0].type).element_type))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return frozenset(found)
