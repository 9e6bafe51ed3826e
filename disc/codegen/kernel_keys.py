"""Which fusions share a kernel: those with one key, in which symbols and arguments have numbers for names and places.

    with equal facts about S0 and S1, one key:    fusion(%a, %b) over S0    and    fusion(%b, %a) over S1

A key holds the ops of a fusion in the order in which its results need them, and all that is known of its symbols: ranges, divisors,
relations and inequalities, also of symbols that these connect with its own. So two fusions with one key are one computation over one set
of facts once the symbols of one are renamed to those of the other: what the emission of one proves holds for the other. A fact that holds
for one alone keeps them apart.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from disc.codegen.plan.fusion import PLAN
from disc.codegen.plan.kernel import Kernel
from disc.errors import CompilerBug
from disc.ir.graph import Attribute, Body, Node
from disc.shapes import Dim, ShapeEnv, Symbol
from disc.speculation.schedules import SCHEDULE_SYMBOLS

_WORD = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)")
_APART = frozenset({"name", PLAN})  # attributes of a fusion that may differ; a kernel is shared where plans are equal, too
_UNNUMBERED = _APART | {"kind", "notes", "versions"}  # those that say nothing of arguments by their places

_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class KernelKey:
    """Of one fusion, or of several that become one kernel.

    text: what those that share a kernel have in common. symbols: the base symbols in it. arguments: of the regions, but those that an
    earlier fusion of the key makes; operands: their values in the program. All in the order of the text. order: where the values of the
    text stand in their regions.
    """

    text: str
    symbols: tuple[str, ...]
    arguments: tuple[Node, ...]
    operands: tuple[Node, ...]
    order: tuple[int, ...]

    @property
    def numbers(self) -> dict[int, int]:
        """Of the values of a single region, by where they stand in it."""
        return {place: number for number, place in enumerate(self.order)}

    def operands_of(self, made: KernelKey, arguments: Sequence[Node]) -> tuple[Node, ...]:
        """What a kernel gets that was made for the fusion `made`, whose arguments it takes in this order."""
        own = dict(zip(made.arguments, self.operands, strict=True))
        return tuple(own[each] for each in arguments)

    def kernel_of(self, made: KernelKey, kernel: Kernel) -> Kernel:
        """A kernel that was made for the fusion `made`, with the symbols that this one passes to it."""
        names = dict(zip(made.symbols, self.symbols, strict=True))
        return _over(kernel, names) if made.symbols != self.symbols else kernel


class KernelKeys:
    """Makes the keys of one program. Its env must not learn any more."""

    def __init__(self, env: ShapeEnv) -> None:
        self._env = env
        self._declared = frozenset(env.names())
        self._facts = env.premises()
        self._connected: dict[tuple[str, ...], tuple[dict[str, Dim], str]] = {}
        self._texts: dict[tuple[str, ...], dict[Dim, str]] = {}

    def key(self, *fusions: Node) -> KernelKey:
        """The key of a fusion, given by its first result; of several that become one kernel, in the order of the program."""
        writer = _Writer(self._env, self._declared)
        for fusion in fusions:
            writer.fusion(fusion)
        symbols = _in_order(piece for piece in writer.pieces if isinstance(piece, Dim))
        if symbols not in self._connected:
            self._connected[symbols] = self._connect(symbols)
        numbered, facts = self._connected[symbols]
        texts = self._texts.setdefault(symbols, {})
        for piece in writer.pieces:
            if isinstance(piece, Dim) and piece not in texts:
                texts[piece] = f"\0{piece.replace(numbered)}\0"  # no other text holds this character
        text = "".join(texts[piece] if isinstance(piece, Dim) else piece for piece in writer.pieces)
        return KernelKey(f"{text}\n{facts}", tuple(numbered), tuple(writer.arguments), tuple(writer.operands), tuple(writer.order))

    def _connect(self, symbols: tuple[str, ...]) -> tuple[dict[str, Dim], str]:
        """Numbers for these symbols and for all that facts connect with them, and those facts."""
        numbered = {name: Dim.symbol(f"c{number}") for number, name in enumerate(symbols)}
        left, texts = list(self._facts), list[str]()
        while touching := [each for each in left if not numbered.keys().isdisjoint(each[1].symbols())]:
            whole = [each for each in touching if numbered.keys() >= set(each[1].symbols())]
            if not whole:
                _, size = min(touching, key=lambda each: f"{each[0]} {_hidden(each[1], numbered)}")
                for name in size.symbols():
                    numbered.setdefault(name, Dim.symbol(f"c{len(numbered)}"))
                continue
            texts += [f"{size.replace(numbered)} {what}" for what, size in whole]
            left = [each for each in left if each not in whole]
        return numbered, "\n".join(sorted(texts))


def _hidden(size: Dim, numbered: Mapping[str, Dim]) -> Dim:
    """The size with one name for all symbols that have no number yet."""
    return size.replace({name: numbered.get(name, Dim.symbol("other")) for name in size.symbols()})


def _in_order(sizes: Iterable[Dim]) -> tuple[str, ...]:
    """The symbols in the order of the sizes that are one symbol, then those that sizes mention otherwise: in what order a sum or a
    product has its symbols depends on their names."""
    distinct = list(dict.fromkeys(sizes))
    alone = [atom.name for atom in (size.sole_atom for size in distinct) if isinstance(atom, Symbol)]
    return tuple(dict.fromkeys([*alone, *(name for size in distinct for name in size.symbols())]))


class _Writer:
    """Writes fusions as pieces: texts, and sizes over the program's symbols."""

    def __init__(self, env: ShapeEnv, declared: frozenset[str]) -> None:
        self.pieces: list[str | Dim] = []
        self.arguments: list[Node] = []
        self.operands: list[Node] = []
        self.order: list[int] = []
        self._env, self._declared = env, declared
        self._names: dict[Node, str] = {}  # of values in the text
        self._ops = 0

    def fusion(self, node: Node) -> None:
        """Its results in the program have names from now on."""
        body = node.body
        assert body is not None
        self._outside = dict(zip(body.arguments, node.operands, strict=True))
        self.pieces.append("fusion")
        self._attributes({name: value for name, value in node.attrs.items() if name not in _APART})
        if not node.attrs.keys() <= _UNNUMBERED:
            for argument in body.arguments:
                self._name(argument)
        self._region(body)
        places = {each: place for place, each in enumerate(body.nodes)}
        self.order += [places[each] for each in self._names if each in places]
        for result, value in zip(node.siblings, body.yields, strict=True):
            self._names[result] = self._names[value]

    def _region(self, body: Body) -> None:
        """The ops that the yields need, in the order of need; then those that nothing needs."""
        for op in _needed(body):
            self._op(op)
        self.pieces.append(f"\nyield {', '.join(map(self._name, body.yields))}")
        for argument in body.arguments:
            self._name(argument)

    def _op(self, node: Node) -> None:
        """node: its first result."""
        operands = ", ".join(map(self._name, node.operands))
        number, self._ops = self._ops, self._ops + 1
        self.pieces.append(f"\n{number} = {node.op}({operands})")
        self._attributes(node.attrs)
        if node.body is not None:
            for place, argument in enumerate(node.body.arguments):
                self._names[argument] = f"{number}:{place}"
                self._type(argument)
            self._region(node.body)
            self.pieces.append("\nend")
        for place, result in enumerate(node.siblings or (node,)):
            self._names[result] = f"{number}.{place}"
            self._type(result)

    def _name(self, node: Node) -> str:
        """What a value is called; an argument that is not called anything yet gets the next number."""
        if node not in self._names:
            operand = self._outside[node]
            if operand in self._names:
                self._names[node] = self._names[operand]
            else:
                self._names[node] = f"%{len(self.arguments)}"
                self.pieces.append(f"\n{self._names[node]} {'weight' if operand.op == 'disc.weight' else 'value'}")
                self._type(node)
                self.arguments.append(node)
                self.operands.append(operand)
        return self._names[node]

    def _type(self, node: Node) -> None:
        self.pieces.append(f" {node.element}[")
        for size in node.dims:
            self.pieces += [size, ","]
        self.pieces.append("]")

    def _attributes(self, attributes: Mapping[str, Attribute]) -> None:
        for name in sorted(attributes):
            self.pieces.append(f" {name}=")
            self._attribute(attributes[name])

    def _attribute(self, value: Attribute) -> None:
        if isinstance(value, str):
            self._words(value)
        elif isinstance(value, tuple):
            self.pieces.append("(")
            for each in value:
                self._attribute(each)
                self.pieces.append(",")
            self.pieces.append(")")
        elif isinstance(value, dict):
            self._attributes(value)
            self.pieces.append(";")
        else:
            self.pieces.append(_array(value) if isinstance(value, np.ndarray) else repr(value))

    def _words(self, text: str) -> None:
        """A text whose symbols are renamed: a size as such, any other word by word."""
        words = _WORD.split(text)
        if self._declared.isdisjoint(words):
            self.pieces.append(repr(text))
            return
        try:
            self.pieces.append(self._env.simplify(self._env.parse(text)))
        except ValueError:
            self.pieces += [self._env.simplify(Dim.symbol(word)) if word in self._declared else repr(word) for word in words]


def _needed(body: Body) -> list[Node]:
    """The first results of the ops, each after the makers of its operands, from the yields on; then those that no yield needs."""
    found: dict[Node, None] = {}
    pending = [_maker(node) for node in reversed((*body.yields, *body.nodes))]
    while pending:
        node = pending[-1]
        missing = [maker for maker in map(_maker, node.operands) if maker.op != "input" and maker not in found]
        if node in found or node.op == "input" or not missing:
            pending.pop()
            if node.op != "input":
                found[node] = None
        else:
            pending += reversed(missing)
    return list(found)


def _maker(node: Node) -> Node:
    return node.siblings[0] if node.siblings else node


def _array(values: npt.NDArray[np.generic]) -> str:
    """The values as a digest; of one value for all, that one."""
    kept = values if any(values.strides) else values.flat[:1]
    return f"{values.dtype}{values.shape}{kept.size}:{hashlib.sha256(kept.tobytes()).hexdigest()}"


# --- a kernel with other symbols ------------------------------------------------------------------------------------------


def _over(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The kernel with its symbols renamed wherever the host or a person reads them."""
    word = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    notes = tuple(word.sub(lambda match: names[match[1]], note) for note in kernel.notes)
    sizes = {name: Dim.symbol(other) for name, other in names.items()}
    return replace(_renamed(kernel, sizes), symbols=tuple(names.get(name, name) for name in kernel.symbols), notes=notes)


def _renamed(value: _Value, sizes: Mapping[str, Dim]) -> _Value:
    """A size, or what holds sizes at any depth. Raises CompilerBug for a symbol that the key of its kernel does not have."""
    if isinstance(value, Dim):
        unknown = [name for name in value.symbols() if name not in sizes and name not in SCHEDULE_SYMBOLS]
        if unknown:
            raise CompilerBug(f"a kernel that others share has the size {value}, but its key lacks {unknown[0]}")
        return value.replace(sizes)  # pyright: ignore[reportReturnType]
    if isinstance(value, tuple):
        every = tuple(_renamed(each, sizes) for each in value)
        return value if all(map(operator.is_, every, value)) else every  # pyright: ignore[reportReturnType]
    if is_dataclass(value) and not isinstance(value, type):
        found = {each.name: getattr(value, each.name) for each in fields(value)}
        changed = {name: _renamed(each, sizes) for name, each in found.items()}
        return replace(value, **{name: each for name, each in changed.items() if each is not found[name]})
    return value
