"""The builder of host functions: calls of the runtime, leaving at once when one fails, branches and loops over blocks of the dialect cf.

A failing call may leave from any depth, which regions of scf do not allow; so a function is a graph of blocks, and `choose` and `repeat`
are the only ones that shape it. What is within a branch or loop is a scope of its own, as in kernels: a size that depends on nothing there
is computed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from disc.codegen.host.abi import API_OFFSETS
from disc.codegen.host.lifetimes import risky
from disc.codegen.mlir.builder import Builder, Scope
from disc.shapes import Atom, Dim, FloorDiv, Max, Min, Mod, ShapeEnv, Symbol, Truth
from disc.shapes.algebra import inner_first

POINTER = "!llvm.ptr"
API = ("alloc", "output", "launch", "fail", "choose")  # what every program may call of ral_host_api
MEMORY_API = ("free", "copy", "fill", "read")  # what one with other steps than launches calls, too
LIBRARY_API = ("library",)  # what one with library kernels calls, too
WATCH_API = ("watch",)  # what one with kernels of a GPU that check indices calls, too
TYPES = {
    "alloc": ((POINTER, "i64"), POINTER),
    "output": ((POINTER, "i64", POINTER), POINTER),
    "launch": ((POINTER, "i64", POINTER, POINTER, "i64", "i64", "i64"), "i32"),
    "fail": ((POINTER, "i64", "i64", "i64"), "i32"),
    "choose": ((POINTER, POINTER, POINTER, "i64"), "i64"),
    "free": ((POINTER, POINTER), "i32"),
    "copy": ((POINTER, POINTER, POINTER, "i64"), "i32"),
    "fill": ((POINTER, POINTER, "i64", "i32"), "i32"),
    "read": ((POINTER, POINTER, POINTER), "i32"),
    "library": ((POINTER, "i64", "i64", "i64", POINTER, POINTER), "i32"),
    "watch": ((POINTER, "i64"), "i32"),
}
POINTER_BYTES = 8  # also of any other entry of ral_host_api
MOST_BYTES = 1 << 60  # of an arena: far more than there can be, far less than 64 bits hold

Typed = tuple[str, str]
"""An SSA value and its type."""


class HostBuilder(Builder):
    """Leaves instead of dividing by zero, which would end the process. check: emits that a size is not 0.

    checked: all that the program relies on has been checked in this call, so that what is proved from it holds. loops: how many are around
    what is emitted.
    """

    def __init__(self, env: ShapeEnv, check: Callable[[Dim, str], None]) -> None:
        super().__init__(1)
        self._env, self._check = env, check
        self.checked = False
        self._api: dict[str, str] = {}
        self._blocks = 0
        self.loops = 0
        self._risky: dict[Dim, bool] = {}

    # --- sizes ----------------------------------------------------------------------------------------------------------

    def scope_of(self, dim: Dim) -> Scope:
        """What may divide by zero stays where it is needed: a branch may have asked whether it can be computed."""
        if dim not in self._risky:
            self._risky[dim] = risky(self._env, dim)
        return self.scope if self._risky[dim] else super().scope_of(dim)

    def divisor(self, dim: Dim) -> str:
        value = self.scalar(dim)
        if not dim.is_const and not self._found(("divisor", dim)) and not (self.checked and self._env.le(1, dim) is Truth.YES):
            self.scope.memo["divisor", dim] = value
            self._check(dim, value)
        return value

    def bytes(self, size: Dim) -> str:
        """The value of `size`, or more than any memory where computing it in 64 bits might wrap."""
        exact = self.scalar(size)
        if size.is_const:
            return exact
        good = self.op(f"arith.cmpf ole, {self.estimate(size)}, {self.constant(f'arith.constant {MOST_BYTES}.0 : f64')} : f64")
        return self.op(f"arith.select {good}, {exact}, {self.index(MOST_BYTES)} : i64")

    def fits(self, size: Dim) -> str:
        """The i1 that 64 bits hold a size and more than that."""
        magnitude = self.op(f"math.absf {self.estimate(size)} : f64")
        return self.op(f"arith.cmpf ole, {magnitude}, {self.constant(f'arith.constant {MOST_BYTES}.0 : f64')} : f64")

    def estimate(self, dim: Dim) -> str:
        """About the value of `dim` in f64, which does not wrap; not ordered where it has none."""
        for inner in inner_first(dim, lambda each: all(self._found(("estimate", atom)) is not None for atom in each.atoms())):
            self.estimate(inner)
        total = self.constant("arith.constant 0.0 : f64")
        for coefficient, factors in dim.monomials:
            value = self.constant(f"arith.constant {coefficient}.0 : f64")
            for atom, power in factors:
                for _ in range(power):
                    value = self.op(f"arith.mulf {value}, {self._estimate_atom(atom)} : f64")
            total = self.op(f"arith.addf {total}, {value} : f64")
        return total

    def _estimate_atom(self, atom: Atom) -> str:
        key = ("estimate", atom)
        found = self._found(key)
        if found is None:
            if isinstance(atom, Symbol):
                found = self.op(f"arith.sitofp {self.variables[atom.name].ssa} : i64 to f64")
            else:
                op = {FloorDiv: "divf", Mod: "remf", Min: "minimumf", Max: "maximumf"}[type(atom)]
                left, right = (self.estimate(each) for each in (atom.left, atom.right))
                found = self.op(f"arith.{op} {left}, {right} : f64")
            self.scope.memo[key] = found
        return found

    def _found(self, key: object) -> str | None:
        """What was emitted under a key in this scope or one around."""
        scope: Scope | None = self.scope
        while scope is not None:
            if key in scope.memo:
                return scope.memo[key]
            scope = scope.parent
        return None

    # --- the runtime ----------------------------------------------------------------------------------------------------

    def load_api(self, names: Sequence[str]) -> None:
        """Loads functions of ral_host_api."""
        for name in names:
            self._api[name] = self.op(f"llvm.load {self.api_field(name)} : !llvm.ptr -> !llvm.ptr")

    def load_memory_api(self) -> None:
        """Loads the functions that reach memory, and makes room for a number that is read."""
        self.load_api(MEMORY_API)
        self._word = self.op(f"llvm.alloca {self.index(1)} x i64 : (i64) -> !llvm.ptr")

    def api_field(self, name: str) -> str:
        """The address of an entry of ral_host_api."""
        return self.op(f"llvm.getelementptr %api[{API_OFFSETS[name] // POINTER_BYTES}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")

    def ask(self, name: str, *operands: str) -> str:
        """Calls a function of ral_host_api; returns what it returns."""
        types, result = TYPES[name]
        return self.op(f"llvm.call {self._api[name]}({', '.join(('%exec', *operands))}) : !llvm.ptr, ({', '.join(types)}) -> {result}")

    def demand(self, name: str, *operands: str) -> str:
        """As `ask`; leaves where the function fails."""
        result = self.ask(name, *operands)
        if TYPES[name][1] == POINTER:
            null = self.op("llvm.mlir.zero : !llvm.ptr")
            self.leave_unless(self.op(f'llvm.icmp "ne" {result}, {null} : !llvm.ptr'))
        else:
            zero = self.constant("arith.constant 0 : i32")
            self.leave_unless(self.op(f"arith.cmpi eq, {result}, {zero} : i32"))
        return result

    def results(self, text: str, types: Sequence[str]) -> list[str]:
        """Appends an op with several results; `text` ends before their types."""
        name = self.fresh()
        if len(types) == 1:
            self.statement(f"{name} = {text}{types[0]}")
            return [name]
        self.statement(f"{name}:{len(types)} = {text}({', '.join(types)})")
        return [f"{name}#{number}" for number in range(len(types))]

    def read(self, pointer: str) -> str:
        """The i64 that a kernel wrote, or will."""
        self.demand("read", pointer, self._word)
        return self.op(f"llvm.load {self._word} : !llvm.ptr -> i64")

    def offset(self, base: str, size: str) -> str:
        """An address so many bytes behind another."""
        return self.op(f"llvm.getelementptr {base}[{size}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")

    # --- control --------------------------------------------------------------------------------------------------------

    def leave_unless(self, condition: str, number: int | None = None, *sizes: str) -> None:
        """Returns 1 when `condition` does not hold: the runtime knows why, or is told that check `number` failed, and two sizes."""
        if number is None:
            self.statement(f"{self._branch(condition, '^failed')}:")
            return
        after = self._branch(condition, f"^check{number}")
        self.statement(f"^check{number}:")
        self.ask("fail", self.index(number), *sizes)
        self.statement("cf.br ^failed")
        self.statement(f"{after}:")

    @contextmanager
    def only_when(self, condition: str, after: str) -> Iterator[None]:
        """What is emitted within runs when `condition` holds, before what comes behind the label `after`, which sees nothing of it."""
        self.statement(f"{self._branch(condition, after)}:")
        yield
        self.statement(f"cf.br {after}")
        self.statement(f"{after}:")

    def _branch(self, condition: str, otherwise: str) -> str:
        """The label of a new block, for when `condition` holds."""
        self.statement(f"cf.cond_br {condition}, ^next{self._blocks}, {otherwise}")
        self._blocks += 1
        return f"^next{self._blocks - 1}"

    def choose(
        self, condition: str, then: Callable[[], Sequence[str]], otherwise: Callable[[], Sequence[str]], types: Sequence[str] = ()
    ) -> list[str]:
        """Runs one of two; returns what it returned."""
        number = self._number()
        labels = [f"^then{number}", f"^else{number}"]
        texts: list[str] = []
        for label, arm in zip(labels, (then, otherwise), strict=True):
            with self._within() as scope:
                values = arm()
                self.statement(_jump(f"^join{number}", list(zip(values, types, strict=True))))
            texts += [f"{label}:", *scope.lines]
        results = [(self.fresh(), type_) for type_ in types]
        self.scope.lines += [f"cf.cond_br {condition}, {labels[0]}, {labels[1]}", *texts, _label(f"^join{number}", results)]
        return [name for name, _ in results]

    def repeat(
        self, initial: Sequence[Typed], condition: Callable[[Sequence[str]], str], body: Callable[[Sequence[str]], Sequence[str]]
    ) -> list[str]:
        """Runs `body` as long as `condition` holds, both of what is carried; returns what is carried in the end."""
        number = self._number()
        carried = [(self.fresh(), type_) for _, type_ in initial]
        names = [name for name, _ in carried]
        self.loops += 1
        with self._within() as head:
            good = condition(names)
            with self._within() as inside:
                following = body(names)
                self.statement(_jump(f"^head{number}", list(zip(following, (type_ for _, type_ in initial), strict=True))))
        self.loops -= 1
        self.scope.lines += [_jump(f"^head{number}", initial), _label(f"^head{number}", carried), *head.lines]
        self.scope.lines += [f"cf.cond_br {good}, ^body{number}, ^after{number}", f"^body{number}:", *inside.lines, f"^after{number}:"]
        return names

    def _number(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    @contextmanager
    def _within(self) -> Iterator[Scope]:
        parent = self.scope
        self.scope = Scope(parent.depth + 1, parent)
        yield self.scope
        self.scope = parent


def _jump(label: str, values: Sequence[Typed]) -> str:
    if not values:
        return f"cf.br {label}"
    return f"cf.br {label}({', '.join(name for name, _ in values)} : {', '.join(type_ for _, type_ in values)})"


def _label(label: str, values: Sequence[Typed]) -> str:
    return f"{label}({', '.join(f'{name}: {type_}' for name, type_ in values)}):" if values else f"{label}:"
