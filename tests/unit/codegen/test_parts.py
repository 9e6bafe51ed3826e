"""Code is compiled in parts, by several threads: the same bytes by any number of them, the same errors, and calls between the parts."""

from __future__ import annotations

import ctypes
import gc
import threading
from pathlib import Path

import pytest
import torch
from torch_mlir import ir

import disc
from disc.artifact import file as artifact
from disc.codegen.mlir import parts
from disc.codegen.mlir.lower import compile_objects, link_shared
from disc.codegen.mlir.parts import cut
from disc.errors import CompilerBug
from disc.targets.x86 import read_target

pytestmark = pytest.mark.usefixtures("own_objects")
ISA = read_target("x86-64-v3")
FUNCTIONS = 40


def function(number: int, body: str = "") -> str:
    """Adds `number` and what its table holds, 100 * number, to its argument."""
    return (
        f"llvm.mlir.global internal constant @table{number}(dense<[{100 * number}]> : tensor<1xi64>) : !llvm.array<1 x i64>\n"
        f"func.func @f{number}(%x: i64) -> i64 {{\n%own = arith.constant {number} : i64\n{body}"
        f"%place = llvm.mlir.addressof @table{number} : !llvm.ptr\n%read = llvm.load %place : !llvm.ptr -> i64\n"
        "%sum = arith.addi %x, %own : i64\n%all = arith.addi %sum, %read : i64\nreturn %all : i64\n}\n"
    )


def program(functions: list[str]) -> str:
    """The functions and an entry that calls one after the other and keeps the address of the first."""
    calls = "".join(f"%x{each + 1} = func.call @f{each}(%x{each}) : (i64) -> i64\n" for each in range(len(functions)))
    address = "%f = func.constant @f0 : (i64) -> i64\n%g = builtin.unrealized_conversion_cast %f : (i64) -> i64 to !llvm.ptr\n"
    address += "llvm.store %g, %first : !llvm.ptr, !llvm.ptr\n" if functions else ""
    head = "func.func @disc_entry(%x0: i64, %first: !llvm.ptr) -> i64 {\n"
    return "".join(functions) + f"{head}{address if functions else ''}{calls}return %x{len(functions)} : i64\n}}\n"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LEAST", 1)


def run(shared: bytes, path: Path) -> tuple[int, int]:
    path.write_bytes(shared)
    entry = ctypes.CDLL(str(path)).disc_entry
    entry.restype, entry.argtypes = ctypes.c_int64, (ctypes.c_int64, ctypes.c_void_p)
    first = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)()
    return entry(7, ctypes.addressof(first)), first(1)


@pytest.mark.usefixtures("small_parts")
def test_calls_between_parts(tmp_path: Path) -> None:
    source = program([function(number) for number in range(FUNCTIONS)])
    objects = compile_objects(source, ISA, threads=2)
    assert len(objects) == parts.PARTS
    assert run(link_shared(objects), tmp_path / "code.so") == (7 + 101 * sum(range(FUNCTIONS)), 1)


@pytest.mark.usefixtures("small_parts")
def test_every_number_of_threads_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    source = program([function(number) for number in range(FUNCTIONS)])
    alone = compile_objects(source, ISA, threads=1)
    assert all(compile_objects(source, ISA, threads) == alone for threads in (2, 3, 50))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert compile_objects(source, ISA, threads=4) == alone


def test_one_function_is_one_part(tmp_path: Path) -> None:
    source = program([])
    assert cut(source) == [source]
    path = tmp_path / "code.so"
    path.write_bytes(link_shared(compile_objects(source, ISA, threads=8)))
    entry = ctypes.CDLL(str(path)).disc_entry
    entry.restype, entry.argtypes = ctypes.c_int64, (ctypes.c_int64, ctypes.c_void_p)
    assert entry(-3, None) == -3


def test_little_code_is_one_part() -> None:
    assert len(cut(program([function(number) for number in range(FUNCTIONS)]))) == 1


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("gpu.barrier\n", "gpu.barrier"),
        ("%no = math.atan2 %own, %own : i64\n", "floating-point"),
    ],
    ids=["left over", "does not parse"],
)
def test_the_error_of_a_part(body: str, message: str) -> None:
    functions = [function(number, body if number in (11, 30) else "") for number in range(FUNCTIONS)]
    said: set[str] = set()
    for threads in (1, 3):
        with pytest.raises(CompilerBug, match=message) as raised:
            compile_objects(program(functions), ISA, threads)
        said.add(str(raised.value))
    assert len(said) == 1


def test_artifacts_hold_the_same_code(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8), torch.nn.Softmax(-1))
    found: set[bytes] = set()
    for threads in (1, 2):
        path = tmp_path / f"{threads}.disc"
        disc.compile(model, (torch.randn(3, 32),), options=disc.Options(threads=threads, cache=False)).save(path)
        found.update(artifact.read_section(path, each.name) for each in artifact.read_sections(path) if each.name.startswith("code"))
    assert len(found) == 1


def test_compiling_leaves_no_context_behind() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU())
    contexts: list[int] = []
    for _ in range(3):
        disc.compile(model, (torch.ones(2, 32),), options=disc.Options(cache=False))
        gc.collect()
        contexts.append(getattr(ir.Context, "_get_live_count")())  # noqa: B009 (private to type checkers)
    assert contexts[0] == contexts[1] == contexts[2]


def test_a_head_of_two_lines_is_refused() -> None:
    with pytest.raises(CompilerBug, match="one line: func"):
        cut("func.func @f0(%x: i64,\n%y: i64) {\nreturn\n}\n")
