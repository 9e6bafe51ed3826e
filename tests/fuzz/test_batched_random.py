"""Random recursive programs over random structures: `disc.batched` gives what the program gives instance by instance, with and without each
technique, and leaves behind what it leaves behind (weights, lists). Blocks are computed by PyTorch, as launches of native schedules or one
by one."""

from __future__ import annotations

import linecache
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batched_blocks import Interpreted, PythonSchedule, by_pytorch, interpreted, scheduled
from test_batched import same
from torch import nn

from disc.errors import AliasError, InstanceError
from disc.frontend.batched import launches, structural
from disc.frontend.batched.public import Batched
from disc.frontend.batched.techniques import AGENDA, ALL, DEPTH, MOST, Techniques

SIZE = 4


class Net(nn.Module):
    """The parts of the random programs."""

    kept: list[torch.Tensor]  # the program's global list

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.w, self.u = nn.Embedding(6, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(2 * SIZE, SIZE)
        self.log: list[int] = []


class Writer:
    """Writes one program. effects: it may change what other instances see. in_place: it may change tensors in place."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.effects = self.draw.random() < 0.2
        self.in_place = self.draw.random() < 0.4
        self.recursive = False
        self.count = 0

    def program(self) -> str:
        lines = ["def helper(self, node, x, n):", *self._body(["x"], 1, 2, calls=False), ""]
        lines += [
            "def gathered(self, xs, x):",
            "    xs.append(torch.tanh(x))",
            "    ys = xs",
            "    ys += [x * 2]",
            "    return sum(xs)",
            "",
        ]
        lines += ["def pair(self, x, n):", *self._straight(["x"], 1), "    return x, n", ""]
        return "\n".join(
            [*lines, "def forward(self, node):", "    x = self.emb.weight[node.word] * 1", *self._body(["x"], 1, 5, calls=True), ""]
        )

    def _body(self, names: list[str], depth: int, most: int, *, calls: bool) -> list[str]:
        lines: list[str] = []
        names = list(names)
        for _ in range(self.draw.randint(1, most)):
            lines += self._statement(names, depth, calls)
        a, b = self._pick(names), self._pick(names)
        if depth == 1:
            lines.append("    return " + (self.draw.choice([a, f"torch.tanh({a} + {b})"]) if not calls else f"torch.tanh({a}) + {b} * 0.5"))
        return lines

    def _straight(self, names: list[str], depth: int) -> list[str]:
        return [line for _ in range(self.draw.randint(0, 2)) for line in self._computed(names, depth, "x")]

    def _pick(self, names: list[str]) -> str:
        return self.draw.choice(names)

    def _new(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def _expression(self, names: list[str]) -> str:
        a, b = self._pick(names), self._pick(names)
        return self.draw.choice([
            f"self.w({a})", f"torch.tanh({a} + {b})", f"{a} * 0.5 + {b}", f"{a} - {b}", f"torch.relu({a})", f"self.u(torch.cat([{a}, {b}]))",
            f"torch.softmax({a}, 0)", f"torch.cat([{a}[:2], {b}[2:]])", f"torch.stack([{a}, {b}]).sum(0)", f"{a}.chunk(2)[0].repeat(2)",
            f"torch.where({a} > {b}, {a}, {b})", "torch.zeros(4)", f"{a}[[1, 0, 3, 2]]", f"+{a}", f"{a}.view(4)",
        ])  # fmt: skip

    def _computed(self, names: list[str], depth: int, target: str | None = None) -> list[str]:
        target = target or self.draw.choice([self._new(), self._pick(names)])
        value = self._expression(names)
        if target not in names:
            names.append(target)
        return [f"{'    ' * depth}{target} = {value}"]

    def _statement(self, names: list[str], depth: int, calls: bool) -> list[str]:
        kinds = [self._computed] * 4 + [self._packed, self._listed, self._guarded, self._indexed, self._conditional]
        kinds += [self._looped, self._waited] if depth < 3 else []
        kinds += [self._changed] * 2 if self.in_place else []
        kinds += [self._touched] if self.effects else []
        if calls:
            kinds += [self._helped] * 2 + ([self._children] * 3 if depth == 1 and not self.recursive else [])
        return self.draw.choice(kinds)(names, depth)

    def _packed(self, names: list[str], depth: int) -> list[str]:
        space, a, b = "    " * depth, self._pick(names), self._pick(names)
        c, d = self._new(), self._new()
        lines = self.draw.choice([
            [f"{c}, {d} = {b}, {a}"], [f"{c}, {d} = ({a} + {b}).chunk(2)", f"{c}, {d} = {c}.repeat(2), {d}.repeat(2)"],
            [f"box = {{'a': {a}}}", f"box['b'] = {b}", f"{c}, {d} = box['b'], box['a']"], [f"({c}, ({d}, _)) = ({a}, ({b}, node.word))"],
        ])  # fmt: skip
        names += [c, d]
        return [space + line for line in lines]

    def _listed(self, names: list[str], depth: int) -> list[str]:
        space, a, b, c = "    " * depth, self._pick(names), self._pick(names), self._new()
        xs = f"l{c}"
        lines = [f"{xs} = [{a}]", f"{xs}.append({b} * 0.5)", *([f"{xs}.append({a})"] if self.draw.random() < 0.5 else [])]
        lines.append(self.draw.choice([
            f"{c} = sum({xs})", f"{c} = torch.stack({xs}).mean(0)", f"{c} = sum([torch.tanh(e) for e in {xs}])", f"{c} = {xs}[-1] + {xs}.pop()",
            f"{c} = [e * 2 for e in {xs} if e is not None][-1]", f"{c} = gathered(self, {xs}, {a})", f"{c} = list({xs}).pop()",
        ]))  # fmt: skip
        names.append(c)
        return [space + line for line in lines]

    def _condition(self, names: list[str]) -> str:
        a = self._pick(names)
        return self.draw.choice([
            "node.word % 2 == 0", "node.children", "len(node.children) > 1 and node.word > 2", f"float({a}.sum()) > 0", f"{a}.max() > 0.3",
            f"int({a}.argmax()) == 1", f"{a}.tolist()[0] > 0 or node.word == 1", f"not ({a}[0] > 0)", f"{a}[0].item() < 0.1",
        ])  # fmt: skip

    def _guarded(self, names: list[str], depth: int) -> list[str]:
        space = "    " * depth
        lines = [f"{space}if {self._condition(names)}:", *self._computed(list(names), depth + 1, self._pick(names))]
        if self.draw.random() < 0.3:
            lines.append(f"{space}    return {self._pick(names)}")
        elif self.draw.random() < 0.5:
            lines += [f"{space}else:", *self._body(names, depth + 1, 2, calls=False)]
        return lines

    def _conditional(self, names: list[str], depth: int) -> list[str]:
        target = self._new()
        line = f"{'    ' * depth}{target} = {self._expression(names)} if {self._condition(names)} else {self._pick(names)}"
        names.append(target)
        return [line]

    def _indexed(self, names: list[str], depth: int) -> list[str]:
        space, a, target = "    " * depth, self._pick(names), self._new()
        line = self.draw.choice([
            f"{target} = self.emb.weight[node.word] + {a}", f"{target} = {a} * node.word", f"{target} = self.emb(torch.tensor(node.word))",
            f"{target} = {a} + {a}[node.word % 4]", f"{target}, _ = pair(self, {a}, node.word)",
        ])  # fmt: skip
        names.append(target)
        return [space + line]

    def _looped(self, names: list[str], depth: int) -> list[str]:
        space, a = "    " * depth, self._pick(names)
        head = self.draw.choice(["for _ in range(node.word % 3):", "for child in node.children:"])
        lines = [space + head, *self._computed(list(names), depth + 1, a)]
        if self.draw.random() < 0.3:
            lines += [f"{space}    if {self._condition(names)}:", f"{space}        {self.draw.choice(['break', 'continue'])}"]
        return [*lines, *self._computed(list(names), depth + 1, a)]

    def _waited(self, names: list[str], depth: int) -> list[str]:
        space, a, k = "    " * depth, self._pick(names), self._new()
        lines = [f"{k} = 0", f"while {k} < 3 and ({self._condition(names)}):", f"    {k} += 1", f"    {a} = {a} * 0.5 - 0.1"]
        return [space + line for line in lines]

    def _helped(self, names: list[str], depth: int) -> list[str]:
        target, a = self._new(), self._pick(names)
        names.append(target)
        return [f"{'    ' * depth}{target} = helper(self, node, {a}, node.word)"]

    def _children(self, names: list[str], depth: int) -> list[str]:
        space, a, target = "    " * depth, self._pick(names), self._new()
        self.recursive = True  # once: programs with several such statements take time without end
        lines = self.draw.choice([
            [f"{target} = {a}", "for child in node.children:", f"    {target} = torch.tanh({target} + self(child))"],
            [f"{target} = sum([self(child) for child in node.children], {a})"],
            [f"{target} = {a}", "if len(node.children) > 1:", f"    {target} = self.u(torch.cat([self(node.children[0]), self(node.children[-1])]))"],
        ])  # fmt: skip
        names.append(target)
        return [space + line for line in lines]

    def _changed(self, names: list[str], depth: int) -> list[str]:
        space, a, b, c = "    " * depth, self._pick(names), self._pick(names), self._new()
        lines = self.draw.choice([
            [f"{a} += {b}"], [f"{a}.mul_(0.5)"], [f"{a}[0] = 0.25"], [f"{c} = torch.zeros(4)", f"{c} += {a}"], [f"{c} = {a}[:2]", f"{a} += 0.1",
            f"{c} = {c}.repeat(2)"], [f"{c} = {a} * 2", f"{c} += {b}"], [f"{c} = {a}", f"{c} -= {b}"], [f"{c} = torch.add({a}, {b})", f"torch.add({a}, 1, out={c})"],
        ])  # fmt: skip
        if f"{c} =" in lines[0]:
            names.append(c)
        return [space + line for line in lines]

    def _touched(self, names: list[str], depth: int) -> list[str]:
        space, a = "    " * depth, self._pick(names)
        return [
            space
            + self.draw.choice(
                [
                    "self.log.append(node.word)",
                    f"{a} = {a} + torch.rand(4)",
                    f"{a} = {a} * len(self.log)",
                    f"KEPT.append({a})",
                    f"kept = KEPT; kept[-1:] = [{a}, {a} * 2]; {a} = {a} + kept[0]",
                ]
            )
        ]


def made(source: str, seed: int) -> type[Net]:
    """The program as a module; its source can be read as that of any file."""
    name = f"<random {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"torch": torch, "KEPT": []}
    exec(compile(source, name, "exec"), scope)
    return type("Program", (Net,), {"forward": scope["forward"], "kept": scope["KEPT"]})


def structure(draw: random.Random, depth: int, known: list[Any]) -> Any:
    """A tree, some of whose nodes are shared."""
    if known and depth == 3 and draw.random() < 0.3:
        return draw.choice(known)
    children = [structure(draw, depth + 1, known) for _ in range(draw.choice([0, 1, 2, 2]) if depth < 3 else 0)]
    node = SimpleNamespace(word=draw.randrange(6), children=children)
    if depth == 3:
        known.append(node)
    return node


def batches(seed: int) -> list[list[Any]]:
    draw = random.Random(seed)
    known: list[Any] = []
    return [[structure(draw, 0, known) for _ in range(count)] for count in (1, 3, 0, 6, 6)]


def check(seed: int, wrap: Any = by_pytorch) -> Batched:
    source = Writer(seed).program()
    torch.manual_seed(seed)
    model, other = made(source, seed)(), made(source, seed)()
    other.load_state_dict(model.state_dict())
    batched = wrap(other)
    for number, instances in enumerate(batches(seed)):
        torch.manual_seed(number)
        with torch.no_grad():
            expected = [model(each) for each in instances]
        torch.manual_seed(number)
        try:
            found = batched.batch(instances)
        except InstanceError as error:
            assert all(isinstance(each, AliasError) for each in error.failures.values()), source
            return batched
        try:
            same(found, expected)
            same((other.log, other.kept), (model.log, model.kept))
            same(list(other.parameters()), list(model.parameters()))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, batch {number}\n{source}\n{batched.explain()}") from error
    return batched


# --- trees that instances alone decide -------------------------------------------------------------------------------------------


class TreeWriter(Writer):
    """Writes a program for the native walk: what it calls depends on attributes of the node, and each way through it is one block. chains:
    nodes may have one child."""

    chains = False

    def program(self) -> str:
        pair = self.draw.random() < 0.5
        leaf = self.draw.choice(["node.left is None", "node.is_leaf", "not node.left"])
        lines = ["def forward(self, node):", f"    if {leaf}:", *self._computing(["self.emb.weight[node.word]"], pair, "        ")]
        self.chains = self.draw.random() < 0.4
        if self.chains:
            lines += ["    if node.right is None:", *self._computing([self._child("left", pair)], pair, "        ")]
        if self.draw.random() < 0.5:
            lines += ["    if node.flag:", *self._node(pair, "        ")]
        return "\n".join([*lines, *self._node(pair, "    "), ""])

    def _node(self, pair: bool, space: str) -> list[str]:
        children = [
            self._child(side, pair) for side in self.draw.choice([("left", "right"), ("right", "left"), ("left", "left"), ("left",)])
        ]
        return self._computing(children, pair, space)

    def _child(self, side: str, pair: bool) -> str:
        return f"self(node.{side})" + (self.draw.choice(["[0]", "[1]"]) if pair else "")

    def _computing(self, given: list[str], pair: bool, space: str) -> list[str]:
        """Binds what is given to names, computes, and returns a result or two."""
        names = [self._new() for _ in given]
        lines = [f"{space}{name} = {value}" for name, value in zip(names, given, strict=True)]
        if self.draw.random() < 0.4:
            names.append(self._new())
            lines.append(f"{space}{names[-1]} = self.emb.weight[node.word] * 2")
        for _ in range(self.draw.randint(0, 3)):
            target = self._new()
            lines.append(f"{space}{target} = {self._expression(names)}")
            names.append(target)
        a, b = self._pick(names), self._pick(names)
        return [*lines, f"{space}return torch.tanh({a} + {b}), {b} * 0.5" if pair else f"{space}return torch.tanh({a}) - {b} * 0.5"]


def tree(draw: random.Random, depth: int, known: list[Any], chains: bool) -> Any:
    """A tree, some of whose nodes are shared; every inner node has two children, or with `chains` one."""
    if known and draw.random() < 0.2:
        return draw.choice(known)
    node = SimpleNamespace(word=draw.randrange(6), left=None, right=None, is_leaf=True, flag=draw.random() < 0.3)
    if depth and draw.random() < 0.8:
        node.is_leaf = False
        node.left = tree(draw, depth - 1, known, chains)
        node.right = None if chains and draw.random() < 0.3 else tree(draw, depth - 1, known, chains)
    known.append(node)
    return node


def check_trees(seed: int, techniques: Techniques) -> Batched:
    writer = TreeWriter(seed)
    source = writer.program()
    torch.manual_seed(seed)
    model = made(source, seed)().eval()
    draw = random.Random(seed)
    batched = scheduled(model, techniques)
    for count in (6, 6, 1, 0, 9):
        known: list[Any] = []
        instances = [tree(draw, 4, known, writer.chains) for _ in range(count)]
        with torch.no_grad():
            expected = [model(each) for each in instances]
        try:
            same(batched.batch(instances), expected)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {count} trees\n{source}\n{batched.explain()}") from error
    return batched


# --- tests ------------------------------------------------------------------------------------------------------------------------

WITHOUT = [
    ALL, Techniques(native_walk=False), Techniques(native_recorder=False), Techniques(native_schedule=False), Techniques(order=DEPTH),
    Techniques(order=AGENDA), Techniques(order=MOST),
]  # fmt: skip


@pytest.fixture
def by_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native schedules of blocks that PyTorch computes."""
    for module in (launches, structural):
        monkeypatch.setattr(module, "Schedule", PythonSchedule)


@pytest.mark.parametrize("seed", range(6))
def test_programs(seed: int) -> None:
    check(seed)


def test_programs_in_schedules(by_schedules: None) -> None:
    for seed in range(12):
        check(seed, lambda model, seed=seed: scheduled(model, WITHOUT[seed % len(WITHOUT)]))


def test_trees(by_schedules: None) -> None:
    walked = sum(check_trees(seed, ALL).stats()["walked"] > 0 for seed in range(12))
    assert walked > 3
    for seed, techniques in enumerate(WITHOUT[1:]):
        found = check_trees(seed, techniques).stats()["walked"]
        assert techniques.native_walk or not found


def check_folded(seeds: range) -> int:
    """Programs by the interpreter, without folded tables and with them; how many blocks had some."""
    folded: list[int] = []
    for budget in (0, 1 << 20):
        Interpreted.folded = 0
        assert sum(check(seed, interpreted(budget)).stats()["launches"] for seed in seeds) > 0
        folded.append(Interpreted.folded)
    assert folded[0] == 0
    return folded[1]


def test_folded_tables() -> None:
    assert check_folded(range(4)) > 0


@pytest.mark.long
def test_more_folded_tables() -> None:
    assert check_folded(range(100, 250)) > 50


@pytest.mark.long
def test_more_programs(by_schedules: None) -> None:
    for seed in range(100, 600):
        check(seed)
        check(seed, lambda model, seed=seed: scheduled(model, WITHOUT[seed % len(WITHOUT)]))


@pytest.mark.long
def test_more_trees(by_schedules: None) -> None:
    for seed in range(100, 500):
        check_trees(seed, WITHOUT[seed % len(WITHOUT)])
