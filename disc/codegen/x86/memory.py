"""Loads and stores of lanes: contiguous, masked, gathered and scalar, with conversion between storage and register form."""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.mlir.builder import Builder, register_element
from disc.codegen.x86.elementwise import storage_element, to_register, to_storage
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim


@dataclass(frozen=True, eq=False)
class Buffer:
    """A row-major tensor in memory: base pointer (SSA !llvm.ptr), dims, MLIR element type."""

    pointer: str
    dims: tuple[Dim, ...]
    element: str


def address(b: Builder, buffer: Buffer, offset: str) -> str:
    """The pointer to element `offset` (i64)."""
    return b.op(f"llvm.getelementptr {buffer.pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {storage_element(buffer.element)}")


def load_contiguous(b: Builder, buffer: Buffer, offset: str, mask: str | None) -> str:
    """lanes consecutive elements from `offset`; masked lanes are not read and hold zero."""
    element = storage_element(buffer.element)
    vector, align = b.vec(element), ELEMENT_BYTES[buffer.element]
    pointer = address(b, buffer, offset)
    if mask is None:
        return to_register(b, b.op(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {vector}"), buffer.element)
    zero = b.const(0, element)
    text = (
        f"llvm.intr.masked.load {pointer}, {mask}, {zero} {{alignment = {align} : i32}} : (!llvm.ptr, {b.vec('i1')}, {vector}) -> {vector}"
    )
    return to_register(b, b.op(text), buffer.element)


def load_reversed(b: Builder, buffer: Buffer, offset: str, mask: str | None) -> str:
    """lanes consecutive elements down from `offset`; masked lanes are not read and hold zero."""
    order = ", ".join(str(lane) for lane in reversed(range(b.lanes)))

    def reversed_lanes(value: str, type_: str) -> str:
        return b.op(f"vector.shuffle {value}, {value} [{order}] : {type_}, {type_}", type_)

    start = b.op(f"arith.subi {offset}, {b.index(b.lanes - 1)} : i64")
    loaded = load_contiguous(b, buffer, start, None if mask is None else reversed_lanes(mask, b.vec("i1")))
    return reversed_lanes(loaded, b.vec(register_element(buffer.element)))


def load_alternate(b: Builder, buffer: Buffer, offset: str, mask: str | None) -> str:
    """Every other one of 2 * lanes elements from `offset`, of which the others are not read; masked lanes neither, and hold zero. A
    gather takes several times as long."""
    lanes, flags = range(b.lanes), b.vec("i1")
    halves: list[str] = []
    for half in range(2):
        if mask is None:
            own = b.constant(f"arith.constant dense<[{', '.join(str(lane % 2 == 0).lower() for lane in lanes)}]> : {flags}")
        else:
            places = ", ".join(str(b.lanes if lane % 2 else (half * b.lanes + lane) // 2) for lane in lanes)
            own = b.op(f"vector.shuffle {mask}, {b.const(0, 'i1')} [{places}] : {flags}, {flags}", flags)
        start = b.op(f"arith.addi {offset}, {b.index(half * b.lanes)} : i64") if half else offset
        halves.append(load_contiguous(b, buffer, start, own))
    vector, even = b.vec(register_element(buffer.element)), ", ".join(str(2 * lane) for lane in lanes)
    return b.op(f"vector.shuffle {halves[0]}, {halves[1]} [{even}] : {vector}, {vector}", vector)


def load_repeated(b: Builder, buffer: Buffer, offset: str, times: int, phase: int, mask: str | None) -> str:
    """Consecutive elements from `offset`, each in `times` lanes, of the first one `phase` lanes less; what masked lanes alone would hold is
    not read, and they hold zero. A gather takes several times as long."""
    element, flags = storage_element(buffer.element), b.vec("i1")
    order = [(lane + phase) // times for lane in range(b.lanes)]
    count = 1 << order[-1].bit_length()
    vector, own, align = f"vector<{count}x{element}>", f"vector<{count}xi1>", ELEMENT_BYTES[buffer.element]
    pointer = address(b, buffer, offset)
    if mask is None and order[-1] == count - 1:
        loaded = b.op(f"llvm.load {pointer} {{alignment = {align} : i64}} : !llvm.ptr -> {vector}")
    else:
        given, wanted = mask or b.const(1, "i1"), ""
        for copy in range(times):
            lanes = [times * number + copy - phase for number in range(count)]
            places = ", ".join(str(lane if 0 <= lane < b.lanes else b.lanes) for lane in lanes)
            each = b.op(f"vector.shuffle {given}, {b.const(0, 'i1')} [{places}] : {flags}, {flags}", own)
            wanted = b.op(f"arith.ori {wanted}, {each} : {own}") if wanted else each
        zero = b.constant(f"arith.constant dense<{'0.0' if element.startswith('f') else '0'}> : {vector}")
        text = f"llvm.intr.masked.load {pointer}, {wanted}, {zero} {{alignment = {align} : i32}} : (!llvm.ptr, {own}, {vector}) -> {vector}"
        loaded = b.op(text)
    spread = b.op(f"vector.shuffle {loaded}, {loaded} [{', '.join(map(str, order))}] : {vector}, {vector}", b.vec(element))
    return to_register(b, spread, buffer.element)


def prefetch(b: Builder, buffer: Buffer, offset: str, level: int = 1) -> None:
    """Prefetches the cache line of element `offset`, which need not exist, into the cache of `level` 1 or 2."""
    hint = 4 - level
    b.statement(
        f'"llvm.intr.prefetch"({address(b, buffer, offset)}) <{{cache = 1 : i32, hint = {hint} : i32, rw = 0 : i32}}> : (!llvm.ptr) -> ()'
    )


def load_gather(b: Builder, buffer: Buffer, offsets: str, mask: str | None) -> str:
    """One element per lane from an i64 vector of offsets."""
    element = storage_element(buffer.element)
    vector, align = b.vec(element), ELEMENT_BYTES[buffer.element]
    pointers = b.op(f"llvm.getelementptr {buffer.pointer}[{offsets}] : (!llvm.ptr, {b.vec('i64')}) -> {b.vec('!llvm.ptr')}, {element}")
    mask = mask or b.const(1, "i1")
    text = f"llvm.intr.masked.gather {pointers}, {mask}, {b.const(0, element)} {{alignment = {align} : i32}} : "
    return to_register(b, b.op(text + f"({b.vec('!llvm.ptr')}, {b.vec('i1')}, {vector}) -> {vector}"), buffer.element)


def load_scalar(b: Builder, buffer: Buffer, offset: str, mask: str | None) -> str:
    """One element in every lane. Under a mask that is off in all lanes the function's arguments are read instead: a buffer may be empty."""
    element = storage_element(buffer.element)
    pointer = address(b, buffer, offset)
    if mask is not None:
        allowed = b.op(f"vector.extract {mask}[0] : i1 from {b.vec('i1')}")
        pointer = b.op(f"arith.select {allowed}, {pointer}, %args : !llvm.ptr")
    scalar = b.op(f"llvm.load {pointer} : !llvm.ptr -> {element}")
    return to_register(b, b.op(f"vector.broadcast {scalar} : {element} to {b.vec(element)}"), buffer.element)


def store_contiguous(b: Builder, buffer: Buffer, offset: str, value: str, mask: str | None, *, stream: bool = False) -> None:
    """Stores lanes to consecutive elements. stream: past the caches; the address must be a multiple of the vector's size, and a fence
    must follow the last such store."""
    element = storage_element(buffer.element)
    vector, align = b.vec(element), ELEMENT_BYTES[buffer.element]
    pointer, stored = address(b, buffer, offset), to_storage(b, value, buffer.element)
    if stream:
        b.statement(f"llvm.store {stored}, {pointer} {{alignment = {align * b.lanes} : i64, nontemporal}} : {vector}, !llvm.ptr")
        return
    if mask is None:
        b.statement(f"llvm.store {stored}, {pointer} {{alignment = {align} : i64}} : {vector}, !llvm.ptr")
        return
    b.statement(
        f"llvm.intr.masked.store {stored}, {pointer}, {mask} {{alignment = {align} : i32}} : {vector}, {b.vec('i1')} into !llvm.ptr"
    )


def store_scatter(b: Builder, buffer: Buffer, offsets: str, value: str, mask: str | None) -> None:
    """Stores one element per lane at an i64 vector of offsets."""
    element = storage_element(buffer.element)
    vector, align = b.vec(element), ELEMENT_BYTES[buffer.element]
    stored = to_storage(b, value, buffer.element)
    pointers = b.op(f"llvm.getelementptr {buffer.pointer}[{offsets}] : (!llvm.ptr, {b.vec('i64')}) -> {b.vec('!llvm.ptr')}, {element}")
    mask = mask or b.const(1, "i1")
    b.statement(
        f"llvm.intr.masked.scatter {stored}, {pointers}, {mask} {{alignment = {align} : i32}} : "
        f"{vector}, {b.vec('i1')} into {b.vec('!llvm.ptr')}"
    )


def store_scalar(b: Builder, buffer: Buffer, offset: str, value: str) -> None:
    """Stores lane 0."""
    element = storage_element(buffer.element)
    stored = to_storage(b, value, buffer.element)
    scalar = b.op(f"vector.extract {stored}[0] : {element} from {b.vec(element)}")
    b.statement(f"llvm.store {scalar}, {address(b, buffer, offset)} : {element}, !llvm.ptr")


def fence_streams(b: Builder) -> None:
    """Makes streamed results visible to other threads before anything that comes after."""
    b.statement('llvm.call_intrinsic "llvm.x86.sse.sfence"() : () -> ()')
