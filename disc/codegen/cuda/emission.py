"""Which kernel a fusion is on a GPU, and its versions."""

from __future__ import annotations

from disc.codegen.cuda.attention import attention_tree, attention_versions
from disc.codegen.cuda.factors import TENSOR
from disc.codegen.cuda.gemm import has_library_product, may_have_maps, product_tree, product_versions
from disc.codegen.cuda.grouped import GROUPED
from disc.codegen.cuda.kernel import DeviceChoice, DeviceKernel
from disc.codegen.cuda.library import OPS, library_extents, library_op, library_versions
from disc.codegen.cuda.names import FAULT
from disc.codegen.cuda.plans import (
    AttentionPlan,
    HostPlan,
    LibraryPlan,
    LoopPlan,
    ProductPlan,
    RowBlock,
    RowsPlan,
    attention_plan,
    product_plan,
    read_blocks,
    read_tree,
)
from disc.codegen.cuda.rows import loop_versions, row_versions
from disc.codegen.plan.attention import read_attention
from disc.codegen.plan.contraction import read_contraction
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.library import LibraryPlan as HostLibraryPlan
from disc.codegen.plan.library import choose_library, may_be_library
from disc.codegen.plan.rows import check_single_dot, plan_rows
from disc.codegen.plan.softmax import read_segments
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.plan.text import IllegalPlan, Plan
from disc.errors import CompilerBug
from disc.ir.op_table import ELEMENTWISE
from disc.shapes import Dim
from disc.speculation.block_families import FAMILIES
from disc.speculation.block_schedules import CUBLASLT
from disc.speculation.block_trees import FAST, SINGLE, BlockTree, attention_trees, product_trees
from disc.targets.cuda_thresholds import KERNELS
from disc.targets.target import Target
from disc.targets.thresholds import Gpu

MOST_ELEMENTS = 1 << 20  # of a block, in Triton
_KINDS: dict[str, type[Plan] | tuple[type[Plan], ...]] = {
    "loop": LoopPlan,
    "stitch": RowsPlan,
    "compute": ProductPlan,
    "attention": AttentionPlan,
    "library": (LibraryPlan, HostPlan),
}


def choose_device(fusion: Fusion, target: Target) -> Plan:
    """The plan of a fusion's kernel."""
    kind, precision = fusion.kind, FAST if target.tf32 else SINGLE
    if kind == "loop":
        return LoopPlan(*KERNELS.loop)
    if kind == "stitch":
        return RowsPlan(tuple(RowBlock(*each) for each in KERNELS.rows), RowBlock(*KERNELS.looped))
    if kind == "compute" and target.gpu is not None:
        return product_plan(_own_tree(fusion, target, target.gpu, precision), precision)
    if kind == "attention" and target.gpu is not None:
        return attention_plan(attention_tree(fusion, attention_trees(target.gpu.architecture), precision), precision)
    if kind == "library":
        op = library_op(fusion).op
        return LibraryPlan(op, precision) if op in OPS else HostPlan(choose_library(fusion.body).function)
    raise CompilerBug(f"fusion {fusion.name} has the unknown kind {kind!r}")


def may_have(fusion: Fusion, plan: Plan) -> None:
    """Raises IllegalPlan where the fusion cannot be the kernel of the plan."""
    if fusion.kind not in _KINDS or not isinstance(plan, _KINDS[fusion.kind]):
        raise IllegalPlan("", f"a fusion of kind {fusion.kind} cannot be a kernel {plan.name}")
    match plan:
        case LoopPlan():
            _check_block("block", plan.warps, plan.block)
        case RowsPlan():
            for block in plan.blocks:
                _check_block("blocks", block.warps, block.rows, block.columns)
            _check_block("looped", plan.looped.warps, plan.looped.rows, plan.looped.columns)
            lengths = [block.columns for block in plan.blocks]
            if lengths != sorted(set(lengths)):
                raise IllegalPlan("blocks", "must be for longer rows each")
        case ProductPlan():
            if CUBLASLT in read_tree(plan).schedules and not has_library_product(fusion):
                raise IllegalPlan("schedules", f"{CUBLASLT} has products of matrices with nothing, or a bias, behind them")
            if not may_have_maps(fusion, read_tree(plan).schedules):
                raise IllegalPlan(
                    "schedules",
                    "tensor maps load matrices in memory whose rows may be multiples of 16 bytes; of a batch, no persistent ones do",
                )
            _check_precision(plan.precision)
        case AttentionPlan():
            read_blocks(plan)
            _check_precision(plan.precision)
        case LibraryPlan():
            if plan.op != library_op(fusion).op or plan.op not in OPS:
                raise IllegalPlan("op", f"follows from the fusion and must be {library_op(fusion).op}, which must have a kernel")
            _check_precision(plan.precision)
        case HostPlan():
            may_be_library(fusion.body, HostLibraryPlan(plan.function))
        case _:
            raise CompilerBug(f"nothing checks a plan {plan.name}")


def _check_block(field: str, warps: int, *sizes: int) -> None:
    """Of blocks, Triton takes powers of two alone."""
    for size in (warps, *sizes):
        if size < 1 or size & (size - 1):
            raise IllegalPlan(field, f"must have powers of two, not {size}")
    if warps > 32:
        raise IllegalPlan(field, f"may have 32 warps, not {warps}")
    if sizes[0] * (sizes[1] if len(sizes) > 1 else 1) > MOST_ELEMENTS:
        raise IllegalPlan(field, f"may have {MOST_ELEMENTS} elements")


def _check_precision(name: str) -> None:
    if name not in (SINGLE, FAST):
        raise IllegalPlan("precision", f"is {SINGLE} or {FAST}, not {name}")


def _known(fusion: Fusion, tree: BlockTree, precision: str, target: Target) -> BlockTree:
    """The tree of a plan; with what it rests on where it is the target's own, which the text of a plan does not say."""
    if target.gpu is None:
        return tree
    own = _own_tree(fusion, target, target.gpu, precision)
    return own if (own.schedules, own.nodes) == (tree.schedules, tree.nodes) else tree


def _own_tree(fusion: Fusion, target: Target, gpu: Gpu, precision: str) -> BlockTree:
    """What is chosen for a product."""
    return product_tree(fusion, product_trees(gpu.architecture, target.trees), FAMILIES[gpu.architecture], precision)


def _extents(fusion: Fusion, target: Target) -> tuple[Dim, ...]:
    """What the kernel loops over."""
    space = fusion.space()
    if fusion.kind == "library":
        return library_extents(fusion)
    if fusion.kind == "compute":
        return read_contraction(space, check_single_dot(fusion.body)).extents
    if fusion.kind == "attention":
        products = read_attention(fusion.body)[:2]
        return tuple(extent for node in products for extent in read_contraction(space, node).extents)
    if fusion.kind == "stitch":
        plan = plan_rows(space, fusion.body, frozenset(), target.thresholds)
        return plan.groups(space), space.env.product(plan.space[len(plan.group_dims) :])
    return tuple(space.env.product(root.dims) for root in fusion.body.yields)


def emit_device(fusion: Fusion, plan: Plan, target: Target) -> DeviceKernel:
    """All versions of a fusion's kernel by a plan that it may have. Raises CompilerBug for another one, TargetError for what its emitter
    has no code for."""
    body = fusion.body
    symbols = body_symbols(fusion.space(), body, *_extents(fusion, target))
    choice: DeviceChoice | None = None
    if isinstance(plan, LoopPlan):
        versions = loop_versions(fusion, symbols, plan)
    elif isinstance(plan, RowsPlan):
        versions = row_versions(fusion, symbols, plan, target.thresholds)
    elif isinstance(plan, ProductPlan):
        versions, choice = product_versions(fusion, symbols, _known(fusion, read_tree(plan), plan.precision, target), plan.precision)
    elif isinstance(plan, AttentionPlan):
        versions, choice = attention_versions(fusion, symbols, read_blocks(plan), plan.precision)
    elif isinstance(plan, LibraryPlan):
        versions = library_versions(fusion, symbols, plan.precision)
    else:
        raise CompilerBug(f"fusion {fusion.name} cannot be a kernel {plan.name}")
    faults = any(each.name == FAULT for each in versions[0].parameters)
    return DeviceKernel(fusion.name, fusion.kind, symbols, versions, faults, choice, _arithmetic(fusion, plan), _flops(fusion, plan))


def _flops(fusion: Fusion, plan: Plan) -> Dim | None:
    """As `DeviceKernel` has it: of products without what follows them; elsewhere one for each element of an op. A product of a causal
    softmax counts whole."""
    space, body = fusion.space(), fusion.body
    if isinstance(plan, ProductPlan):
        c = read_contraction(space, check_single_dot(body))
        return c.batch * c.m * c.n * c.k * 2
    if isinstance(plan, AttentionPlan):
        one, two = (read_contraction(space, node) for node in read_attention(body)[:2])
        return None if read_segments(space, one, read_attention(body)[2]) is not None else one.batch * one.m * one.n * (one.k + two.n) * 2
    if isinstance(plan, LibraryPlan):
        return None
    worked = [
        node.operands[0] if node.op == "stablehlo.reduce" else node for node in body.nodes if node.op in {*ELEMENTWISE, "stablehlo.reduce"}
    ]
    return sum((space.env.product(node.dims) for node in worked), Dim.of(0))


def _arithmetic(fusion: Fusion, plan: Plan) -> str:
    """As `DeviceKernel` has it."""
    if isinstance(plan, ProductPlan):
        factors = check_single_dot(fusion.body).operands
    elif isinstance(plan, AttentionPlan):
        factors = read_attention(fusion.body)[0].operands
    elif isinstance(plan, LibraryPlan) and plan.op == GROUPED:
        factors = library_op(fusion).operands
    else:
        return ""
    elements = {each.element for each in factors[:2]}
    if not elements <= set(TENSOR):
        return ""
    return elements.pop() if len(elements) == 1 and "f32" not in elements else plan.precision
