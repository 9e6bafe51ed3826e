"""Products on a GPU: blocks of the result on the tensor cores, operands read through their views, with what follows as an epilogue.

A convolution is the same product, its operand the patches of the image, which are found by index and never stored (implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from disc.codegen.cuda.emit import Buffer, Emitter, Predicate
from disc.codegen.cuda.factors import TENSOR, bind_lanes, common_element, factor, only_at, zero
from disc.codegen.cuda.joins import Join
from disc.codegen.cuda.kernel import DeviceChoice, DeviceVersion, emit_version
from disc.codegen.cuda.maps import FACTORS, make_maps, may_map
from disc.codegen.cuda.products import library_product
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.text import Scope, Variable
from disc.codegen.cuda.types import in_memory, rounded
from disc.codegen.cuda.vectors import line_guards, vector_guards
from disc.codegen.plan.contraction import Contraction, declare, forward_indices, read_contraction, trace_views
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ONE, IndexSpace, split_linear
from disc.codegen.plan.rows import check_single_dot
from disc.errors import CompilerBug, TargetError
from disc.shapes import Dim, Truth
from disc.speculation.block_families import ANY_PRODUCT
from disc.speculation.block_schedules import CUBLASLT, MAPPED_PROGRAMS, BlockSchedule, LibrarySchedule, ProductSchedule
from disc.speculation.block_trees import ALONG_K, FAST, HALF, BlockTree, one_schedule
from disc.speculation.guards import ALWAYS, Aligned, AtLeast, AtMost, Guard, all_of
from disc.targets.cuda_thresholds import KERNELS


def product_versions(
    fusion: Fusion, symbols: tuple[str, ...], tree: BlockTree, precision: str
) -> tuple[tuple[DeviceVersion, ...], DeviceChoice | None]:
    """The versions of a compute kernel, and what chooses among those that have a schedule.

    tree: as `product_tree` gives it; precision: of products of f32, as Triton's dot takes it. The schedules are those of the versions that
    load 16 bytes at a time, where sizes and addresses allow it; other calls, and tensors that need positions of 64 bits, have one version
    each.
    """
    space = fusion.space()
    c = read_contraction(space, check_single_dot(fusion.body), channels_inside=True)
    declare(space, c)
    narrow, *wide = body_versions(space, fusion.body)
    if not _on_tensor_cores(c):
        versions = [_Product(fusion, ANY_PRODUCT, precision, far).version(symbols, guard) for guard, far in (narrow, *wide)]
        return tuple(versions), None
    plain = _without_parts(tree)
    divides = vector_guards(space, fusion.body, c)
    lines = [each for each in line_guards(space, c) or () if each not in divides]  # what tensor maps need besides
    wide_loads = (narrow[0], *divides, Aligned(16))
    versions, sure = list[DeviceVersion](), True
    for number, schedule in enumerate(tree.schedules):
        if isinstance(schedule, LibrarySchedule):
            continue
        product = _Product(fusion, schedule, precision, False)
        asked = [each for each in (*(lines if schedule.mapped else ()), *product.needs()) if each.implied_by(space.env) is not Truth.YES]
        sure = sure and not asked
        if any(each.implied_by(space.env) is Truth.NO for each in asked):
            continue
        versions.append(replace(product.version(symbols, all_of((*wide_loads, *asked))), schedule=number))
    if not sure:  # the tree may choose parts or maps where there is no scratch for them, or maps of nothing
        versions.append(_Product(fusion, plain, precision, False).version(symbols, all_of(wide_loads)))
    if divides and wide:
        versions.append(_Product(fusion, plain, precision, False).version(symbols, narrow[0]))
    last = BlockSchedule(*KERNELS.wide_product) if wide else plain
    versions.append(_Product(fusion, last, precision, bool(wide)).version(symbols, ALWAYS))
    if CUBLASLT in tree.schedules:
        every = vector_guards(space, fusion.body, c, small=True)
        product = _by_library(fusion, versions[-1], all_of((narrow[0], *every, Aligned(16))), precision)
        versions.insert(0, replace(product, schedule=tree.schedules.index(CUBLASLT)))
    return tuple(versions), DeviceChoice(tree, (c.m, c.n, c.k, c.batch))


def product_tree(
    fusion: Fusion, trees: Mapping[str, BlockTree], families: Mapping[str, Collection[BlockSchedule]], precision: str
) -> BlockTree:
    """The tree of a compute fusion's schedules, with what is known of its sizes decided. trees, families: by the kind of product."""
    space = fusion.space()
    c = read_contraction(space, check_single_dot(fusion.body), channels_inside=True)
    if not _on_tensor_cores(c):
        return one_schedule(ANY_PRODUCT)
    kind = precision if common_element(c.left, c.right) == "tl.float32" else HALF
    along = ALONG_K.get(kind, "")
    kind = along if along in trees and _lies_along_k(space, c) else kind
    tree = trees[kind]
    if not has_library_product(fusion):
        tree = tree.without_library()
    tree = tree.without_maps(lambda each: may_map(fusion, space, c, each), families[kind])
    return tree.prune({number: size.const for number, size in enumerate((c.m, c.n, c.k, c.batch)) if size.is_const})


def may_have_maps(fusion: Fusion, schedules: Iterable[ProductSchedule]) -> bool:
    """Whether the schedules that load by tensor maps can load the factors of a compute fusion."""
    space = fusion.space()
    c = read_contraction(space, check_single_dot(fusion.body), channels_inside=True)
    return all(isinstance(each, LibrarySchedule) or may_map(fusion, space, c, each) for each in schedules)


def has_library_product(fusion: Fusion) -> bool:
    """Whether the GPU's own library has the product of a compute fusion."""
    space = fusion.space()
    return library_product(fusion, space, read_contraction(space, check_single_dot(fusion.body), channels_inside=True), False) is not None


def _by_library(fusion: Fusion, other: DeviceVersion, guard: Guard, precision: str) -> DeviceVersion:
    """The version that is computed by the GPU's own library, with the parameters of another one."""
    space = fusion.space()
    c = read_contraction(space, check_single_dot(fusion.body), channels_inside=True)
    product = library_product(fusion, space, c, precision == FAST)
    if product is None:
        raise CompilerBug(f"no library has the product of fusion {fusion.name}")
    guards = [guard] if AtLeast(1, c.k).implied_by(space.env) is Truth.YES else [guard, AtLeast(1, c.k)]
    return DeviceVersion(all_of(guards), "", other.parameters, (c.m, c.n, c.batch), 1, product=product)


def _lies_along_k(space: IndexSpace, c: Contraction) -> bool:
    """Whether values of k of the right factor lie next to each other in memory."""
    declare(space, c)
    batch, column, depth = (Dim.symbol(name) for name in ("gb", "gn", "gk"))
    found = trace_views(space, c.right.node, c.right.locate(batch, column, depth)[0])
    form = None if found is None else split_linear(found[1], "gk")
    return form is not None and form[0] == ONE


def _without_parts(tree: BlockTree) -> BlockSchedule:
    """The schedule of a version for any size."""
    found = next((each for each in tree.blocks if each.parts == 1 and each.rows >= 64), tree.blocks[0])
    return replace(found, parts=1, persistent=False, mapped=False)


def _on_tensor_cores(c: Contraction) -> bool:
    """Whether tensor cores sum the product."""
    return all(each.element in TENSOR for each in (c.node, c.left.node, c.right.node))


class _Product:
    """The version of a compute kernel by one schedule."""

    def __init__(self, fusion: Fusion, schedule: BlockSchedule, precision: str, wide: bool) -> None:
        self.fusion, self.block, self.precision, self.wide, self.space = fusion, schedule, precision, wide, fusion.space()
        self.node = check_single_dot(fusion.body)
        if self.node.op == "disc.scaled_dot":
            raise TargetError(f"no kernel for GPUs of products of int8 (line {self.node.line})")
        self.c: Contraction = read_contraction(self.space, self.node, channels_inside=True)
        declare(self.space, self.c)
        if schedule.halves > 1:
            self.space.variable("gh", self.c.n)
        tiles = _ceil(self.c.m, schedule.rows) * _ceil(self.c.n, schedule.columns) * self.c.batch
        self.tiles, self.join = tiles, Join(schedule.parts, schedule.rows * schedule.columns, tiles)

    def needs(self) -> list[Guard]:
        """What the schedule asks of sizes, besides those of lines: scratch for what its programs leave, or for the maps that each makes."""
        block, asked = self.block, list[Guard]()
        if block.parts > 1:
            asked.append(self.join.fits)
        elif block.mapped and not block.persistent:
            asked.append(AtMost(MAPPED_PROGRAMS, self.tiles))
        return [*asked, AtLeast(1, self.c.k)] if block.mapped else asked  # a map is of at least one element

    def version(self, symbols: tuple[str, ...], guard: Guard) -> DeviceVersion:
        block = self.block
        return emit_version(
            self.fusion.body, self.space, symbols, f"[{block.rows}, {block.columns}]", self._emit, (self.tiles * block.parts,),
            block.warps, guard=guard, wide=self.wide, stages=block.stages, scratch=self.join.scratch() if block.parts > 1 else None,
            persistent=block.persistent, maps=FACTORS if block.mapped else 0,
        )  # fmt: skip

    def _emit(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        w, block, c = e.w, self.block, self.c
        m, n = w.number(c.m), w.number(c.n)
        down, across = w.let(f"tl.cdiv({m}, {block.rows})", "i"), w.let(f"tl.cdiv({n}, {block.columns})", "i")
        program = w.let(f"tl.program_id(0){'.to(tl.int64)' if self.wide else ''}", "i")
        if block.persistent:
            tiles = w.number(self.tiles)
            with w.block(f"for tile in tl.range({program}, {tiles}, tl.num_programs(0), flatten=True):"):
                self._block(e, results, "tile", "", down, across)
            return
        part = w.let(f"{program} % {block.parts}", "i") if block.parts > 1 else ""
        self._block(e, results, w.let(f"{program} // {block.parts}", "i") if part else program, part, down, across)

    def _block(self, e: Emitter, results: tuple[Buffer, ...], tile: str, part: str, down: str, across: str) -> None:
        """One block of the result, or a part of it. down, across: how many there are."""
        w, block, c = e.w, self.block, self.c
        place, batch = tile, "0"
        if c.batch != ONE:
            batch, place = w.let(f"{tile} // ({down} * {across})", "b"), w.let(f"{tile} % ({down} * {across})", "i")
        w.bind("gb", Variable(batch, w.scope))
        # Neighboring programs work on `group` blocks of rows by one of columns: what these read stays in L2.
        width = w.let(f"{across} * {block.group}", "i")
        first = w.let(f"{place} // {width} * {block.group}", "i")
        height = w.let(f"tl.minimum({down} - {first}, {block.group})", "i")
        row = w.let(f"({first} + {place} % {width} % {height}) * {block.rows}", "i")
        column = w.let(f"{place} % {width} // {height} * {block.columns}", "i")
        self._lanes(e, "gm", f"{row} + tl.arange(0, {block.rows})[:, None]", 0, c.m, block.rows, w.scope)
        self._lanes(e, "gn", f"{column} + tl.arange(0, {block.columns})[None, :]", 1, c.n, block.columns, w.scope)
        if not _on_tensor_cores(c):
            self._store(e, results, self._outer(e), column)
            return
        begin, end = self._span(e, part)
        if block.streams:
            self._stream(e, row, begin, end)
        else:
            self._tensor(e, (row, column), begin, end)
        if not part:
            self._store(e, results, "sums", column)
            return
        lanes = w.let(f"tl.arange(0, {block.rows})[:, None] * {block.columns} + tl.arange(0, {block.columns})[None, :]", "i")
        self.join.leave(e, tile, part, lanes, "sums")
        with self.join.last(e, tile) as scope:
            for name in ("gm", "gn"):  # what follows the product is computed here, once there are sums
                w.bind(name, replace(w.variables[name], scope=scope))
            w.statement(f"sums = tl.zeros([{block.rows}, {block.columns}], tl.float32)")
            for (found,) in self.join.found(e, tile, [lanes], block.rows * block.columns, block.warps):
                w.statement(f"sums += {found}")
            self._store(e, results, "sums", column)

    def _lanes(self, e: Emitter, name: str, text: str, axis: int, extent: Dim, size: int, scope: Scope) -> None:
        bind_lanes(e, self.space, name, text, axis, extent, size, scope)

    def _span(self, e: Emitter, part: str) -> tuple[str, str]:
        """The values of k of this program: whole steps, but for the last."""
        w, k = e.w, e.w.number(self.c.k)
        if not part:
            return "0", k
        span = w.let(f"tl.cdiv(tl.cdiv({k}, {self.block.depth}), {self.block.parts}) * {self.block.depth}", "i")
        return w.let(f"{part} * {span}", "i"), w.let(f"tl.minimum({part} * {span} + {span}, {k})", "i")

    def _store(self, e: Emitter, results: tuple[Buffer, ...], sums: str, column: str) -> None:
        """What follows the product, and the results."""
        w, block = e.w, self.block
        if block.halves == 1:
            self._store_columns(e, results, sums, "gn")
            return
        width = block.columns // 2
        halves = [w.name("half"), w.name("half")]
        w.statement(f"{', '.join(halves)} = tl.split(tl.permute(tl.reshape({sums}, [{block.rows}, 2, {width}]), [0, 2, 1]))")
        for number, half in enumerate(halves):
            with w.part() as scope, w.shaped(block.rows, width):
                self._lanes(e, "gh", f"{column} + {number * width} + tl.arange(0, {width})[None, :]", 1, self.c.n, block.columns, scope)
                self._store_columns(e, results, half, "gh")

    def _store_columns(self, e: Emitter, results: tuple[Buffer, ...], sums: str, columns: str) -> None:
        at = self.c.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol(columns))
        value = e.w.let(rounded(sums, self.node.element))
        e.leaves[self.node] = only_at(self.node, at, value)
        indices = forward_indices(self.space, self.fusion.body, self.node, at)
        for root, result in zip(self.fusion.body.yields, results, strict=True):
            if root not in indices:
                raise CompilerBug(f"{root.op} (line {root.line}) is not reached from the product of its fusion")
            e.store_block(result, root, indices[root], ("gm", columns))

    def _tensor(self, e: Emitter, place: tuple[str, str], begin: str, end: str) -> None:
        """Sums of products of whole blocks, in `sums`. place: the first row and the first column."""
        w, block = e.w, self.block
        narrow = common_element(self.c.left, self.c.right)
        maps = make_maps(e, self.fusion, self.c, block) if block.mapped else None
        w.statement(f"sums = tl.zeros([{block.rows}, {block.columns}], tl.float32)")
        with w.block(f"for step in range({begin}, {end}, {block.depth}):") as scope:
            factors: list[str] = []
            for number, (operand, symbol, free, lanes) in enumerate(
                ((self.c.left, "gk", "gm", "[None, :]"), (self.c.right, "gk1", "gn", "[:, None]"))
            ):
                if maps is not None:
                    found = w.let(maps[number].load(place[number], "step"))
                    factors.append(found if maps[number].turned == bool(number) else w.let(f"tl.trans({found})"))
                    continue
                self._lanes(e, symbol, f"step + tl.arange(0, {block.depth}){lanes}", 1 - number, self.c.k, block.depth, scope)
                shape = (block.depth, block.columns) if number else (block.rows, block.depth)
                factors.append(factor(e, operand, free, symbol, narrow, shape))
            precision = self.precision if narrow == "tl.float32" else "ieee"
            w.statement(f'sums = tl.dot({factors[0]}, {factors[1]}, sums, input_precision="{precision}")')

    def _stream(self, e: Emitter, row: str, begin: str, end: str) -> None:
        """The same of so few rows that tensor cores would multiply mostly nothing: what is loaded of the right factor is multiplied by each
        row, element by element, and summed along k behind the loop."""
        w, block = e.w, self.block
        rows = [f"gm{number}" for number in range(block.rows)]
        sums = [w.name("sum") for _ in rows]
        for number, (name, each) in enumerate(zip(rows, sums, strict=True)):
            place = w.let(f"{row} + tl.arange({number}, {number + 1})[:, None]", "i") if block.rows > 1 else row
            live = w.let(f"{place} < {w.number(self.c.m)}", "m") if block.rows > 1 else ""
            self.space.variable(name, self.c.m)
            w.bind(name, Variable(place, w.scope, live=live))
            w.statement(f"{each} = tl.zeros([{block.depth}, {block.columns}], tl.float32)")
        with w.block(f"for step in tl.range({begin}, {end}, {block.depth}, num_stages={block.stages}):") as scope:
            self._lanes(e, "gk", f"step + tl.arange(0, {block.depth})[:, None]", 0, self.c.k, block.depth, scope)
            narrow = common_element(self.c.left, self.c.right)
            right = factor(e, self.c.right, "gn", "gk", narrow, (block.depth, block.columns))
            for name, each in zip(rows, sums, strict=True):
                left = factor(e, self.c.left, name, "gk", narrow, (block.depth, 1))
                w.statement(f"{each} += {left}.to(tl.float32) * {right}.to(tl.float32)")
        w.statement(f"sums = tl.sum({sums[0]}, 0, keep_dims=True)")
        for number, each in enumerate(sums[1:], 1):
            own = w.let(f"tl.arange(0, {block.rows})[:, None] == {number}", "m")
            w.statement(f"sums = tl.where({own}, tl.sum({each}, 0, keep_dims=True), sums)")

    def _outer(self, e: Emitter) -> str:
        """A column by a row at a time, for elements that tensor cores do not sum exactly."""
        w, element = e.w, self.node.element
        w.statement(f"sums = tl.zeros([{self.block.rows}, {self.block.columns}], {in_memory(element)})")
        with w.block(f"for step in range(0, {w.number(self.c.k)}):") as scope:
            factors: list[str] = []
            for operand, symbol, free in ((self.c.left, "gk", "gm"), (self.c.right, "gk1", "gn")):
                w.bind(symbol, Variable(w.let("tl.zeros([], tl.int64) + step", "i") if self.wide else "step", scope))
                index, bounds = operand.locate(Dim.symbol("gb"), Dim.symbol(free), Dim.symbol(symbol))
                predicate: Predicate = ()
                for position, low, high in bounds:
                    predicate = e.within(position, low, high, predicate)
                value = e.value(operand.node, index, predicate)
                kept = f"tl.where({e.mask(predicate)}, {value}, {zero(operand.node)})" if predicate else value
                factors.append(w.let(f"{kept}.to({in_memory(element)})"))
            product = f"{factors[0]} {'&' if element == 'i1' else '*'} {factors[1]}"
            w.statement(f"sums = sums {'|' if element == 'i1' else '+'} {product}")
        return "sums"


def _ceil(size: Dim, by: int) -> Dim:
    return (size + (by - 1)) // by
