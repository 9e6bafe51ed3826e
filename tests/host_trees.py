"""Host programs for tests: hand-written ones with what a tree of steps can do, and random ones by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from host_programs import COUNT, MIXES, PICK, PUT, TOTAL, Handed, Sizes, Writer, Written, below

from disc.codegen.host.steps import Block, Function, Mode, Value, roots_of
from disc.shapes import Condition, Dim, dim_min


def read_size() -> Written:
    """Nonzero, gather, sum: the size of the gathered values is what a kernel counted."""
    w = Writer()
    x = w.input(w.size())
    picked = w.launch(PICK, x, dims=(w.read(w.launch(COUNT, x)),))
    return w.finish(picked, w.launch(TOTAL, picked))


def carried_loop() -> Written:
    """Two carried buffers, both of which begin as the same input, and a value within."""
    w = Writer()
    n, m = w.size(), w.size()
    x, z = w.input(n), w.input(m)

    def body(_: Sizes, values: Sequence[Value]) -> Handed:
        first = w.launch(MIXES[1], *values, dims=(n,))
        inner = w.launch(MIXES[3], values[1], z, dims=(n * 2,))
        return [first, w.launch(MIXES[2], inner, dims=(n,))], [count + 1 for count in _]

    results, _ = w.loop([0], [x, x], lambda sizes: below(sizes[0], m), body)
    return w.finish(*results)


def in_place_loop() -> Written:
    """Each iteration writes over the value of the last; the value that it begins as stays as it is."""
    w = Writer()
    n, m = w.size(), w.size()
    x, z = w.input(n), w.input(m)
    own = w.launch(MIXES[0], x, dims=(n,))

    def body(sizes: Sizes, values: Sequence[Value]) -> Handed:
        return [w.launch(MIXES[1], each, z, dims=(n,), over=each) for each in values], [sizes[0] + 1]

    results, _ = w.loop([0], [x, own], lambda sizes: below(sizes[0], m), body)
    return w.finish(*results, x)


def growing_buffer() -> Written:
    """Doubles a buffer until it has room for `m` elements."""
    w = Writer()
    n, m = w.size(low=1), w.size()
    x, z = w.input(n), w.input(m)

    def body(sizes: Sizes, values: Sequence[Value]) -> Handed:
        room = w.fill(0, sizes[0] * 2)
        return [w.copy(values[0], into=room)], [sizes[0] * 2]

    (grown,), (size,) = w.loop([n], [x], lambda sizes: below(sizes[0], m), body, lambda sizes: [(sizes[0],)])
    return w.finish(grown, w.launch(MIXES[2], grown, z, dims=(size,)))


def append_loop() -> Written:
    """Appends to a buffer that grows when it is full; otherwise it is carried on as it is."""
    w = Writer()
    n, m = w.size(), w.size()
    x, z = w.input(n), w.input(m)

    def body(sizes: Sizes, values: Sequence[Value]) -> Handed:
        count, room = sizes

        def grow() -> Handed:
            return [w.copy(values[0], into=w.fill(0, room * 2 + 1))], [room * 2 + 1]

        made, (size,) = w.branch(Condition.of("==", count, room), grow, lambda: ([values[0]], [room]), lambda bound: [(bound[0],)], sizes=1)
        return made, [count + 1, size]

    (buffer,), (_, size) = w.loop([0, n], [x], lambda sizes: below(sizes[0], m), body, lambda sizes: [(sizes[1],)])
    return w.finish(buffer, w.launch(TOTAL, w.launch(MIXES[1], buffer, z, dims=(size,))))


def branches() -> Written:
    """A result whose size both branches have, and one of which each says how large it is."""
    w = Writer()
    n, m = w.size(), w.size()
    x, z = w.input(n), w.input(m)

    def work(count: Dim) -> Value:
        return w.launch(MIXES[1], w.launch(MIXES[2], x, z, dims=(n,)), dims=(count,))

    (same,), _ = w.branch(below(n, m), lambda: ([work(n)], []), lambda: ([x], []), lambda _: [(n,)])
    (sized,), _ = w.branch(below(n, m), lambda: ([work(n * 3)], [n * 3]), lambda: ([z], [m]), lambda sizes: [(sizes[0],)], sizes=1)
    return w.finish(same, sized, w.launch(TOTAL, sized))


def nested_loops() -> Written:
    """The inner loop has as many iterations as the outer one has begun, and a size that a kernel counts."""
    w = Writer()
    n, m = w.size(), w.size()
    x, z = w.input(n), w.input(m)

    def outer(sizes: Sizes, values: Sequence[Value]) -> Handed:
        def inner(own: Sizes, carried: Sequence[Value]) -> Handed:
            picked = w.launch(PICK, z, dims=(w.read(w.launch(COUNT, z)),))
            return [w.launch(MIXES[1], carried[0], picked, dims=(n,))], [own[0] + 1]

        (result,), _ = w.loop([0], [values[0]], lambda own: below(own[0], sizes[0] + 1), inner)
        return [w.launch(MIXES[2], result, dims=(n,))], [sizes[0] + 1]

    results, _ = w.loop([0], [x], lambda sizes: below(sizes[0], m), outer)
    return w.finish(*results)


def called_functions() -> Written:
    """One function called with two sizes; one that writes over its argument and returns a value of a size that it reads."""
    w = Writer()
    n, m = w.size(), w.size()
    x, z = w.input(n), w.input(m)

    def twice(sizes: Sizes, values: Sequence[Value]) -> Handed:
        return [w.launch(MIXES[1], w.launch(MIXES[2], values[0], dims=sizes), dims=sizes)], []

    def picks(sizes: Sizes, values: Sequence[Value]) -> Handed:
        count = w.read(w.launch(COUNT, values[0]))
        return [w.launch(PICK, values[0], dims=(count,)), w.launch(MIXES[3], values[0], dims=sizes, over=values[0])], [count]

    first = w.function("twice", 1, lambda sizes: [(sizes, Mode.READ)], twice, lambda sizes, _: [sizes])
    second = w.function("picks", 1, lambda sizes: [(sizes, Mode.DONATED)], picks, lambda sizes, own: [own, sizes], returned=1)
    (one,), _ = w.call(first, [x], [n], lambda _: [(n,)])
    (other,), _ = w.call(first, [z], [m], lambda _: [(m,)])
    (picked, changed), _ = w.call(second, [one], [n], lambda sizes: [sizes, (n,)])
    return w.finish(other, picked, changed)


def decode_step() -> Written:
    """A step of decoding: the cache is donated and returned with a row more, which is computed of it."""
    w = Writer()
    rows, width = w.size(low=1), w.size()
    cache, token, place = w.input(rows, width, mode=Mode.DONATED), w.input(width), w.input(1)
    row = w.launch(MIXES[1], token, cache, dims=(width,))
    after = w.launch(PUT, cache, row, place, dims=(rows, width), over=cache)
    return w.finish(after, w.launch(TOTAL, after))


def state_slot() -> Written:
    """A running sum in a state, changed in place; what is returned is a copy."""
    w = Writer()
    n = w.size()
    state, x = w.input(n, mode=Mode.STATE), w.input(n)
    changed = w.launch(MIXES[0], state, x, dims=(n,), over=state)
    return w.finish(changed, w.launch(TOTAL, changed))


TREES: dict[str, Callable[[], Written]] = {
    each.__name__: each
    for each in (
        read_size, carried_loop, in_place_loop, growing_buffer, append_loop, branches, nested_loops, called_functions, decode_step, state_slot,
    )
}  # fmt: skip


def random_tree(seed: int) -> Written:
    """A program of random steps, in which everything is read that may be."""
    return _Random(seed).write()


@dataclass
class _Scope:
    """What is seen in a block. own: the values in whose memory something else may be put."""

    values: list[Value]
    sizes: list[Dim]
    own: list[Value] = field(default_factory=list)
    depth: int = 0


class _Random:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.w = Writer()
        self.functions: list[tuple[Function, int]] = []
        self.budget = 26

    def write(self) -> Written:
        w = self.w
        n, m = w.size(), w.size()
        modes = [Mode.READ, Mode.READ, self.random.choice(list(Mode))]
        inputs = [w.input(size, mode=mode) for size, mode in zip((n, m, n), modes, strict=True)]
        for number in range(self.random.randint(0, 2)):
            self._function(number)
        scope = _Scope(inputs, [n, m], [inputs[2]] if modes[2] is not Mode.READ else [])
        self._steps(scope, self.random.randint(3, 9))
        returned = [self.random.choice(scope.values) for _ in range(self.random.randint(1, 4))]
        return w.finish(*returned)

    def _function(self, number: int) -> None:
        mode = self.random.choice((Mode.READ, Mode.DONATED))

        def body(sizes: Sizes, values: Sequence[Value]) -> Handed:
            scope = _Scope(list(values), list(sizes), list(values) if mode is Mode.DONATED else [], 1)
            self._steps(scope, self.random.randint(1, 3))
            return [self._sized(scope, sizes[0])], []

        made = self.w.function(f"function{number}", 1, lambda sizes: [(sizes, mode)], body, lambda sizes, _: [sizes])
        self.functions.append((made, number))

    def _steps(self, scope: _Scope, count: int) -> None:
        for _ in range(count):
            kinds = [self._mix, self._mix, self._over, self._read, self._fill, self._copy, self._call]
            if scope.depth < 3 and self.budget > 0:
                kinds += [self._branch, self._sized_branch, self._loop, self._loop, self._growing]
            self.budget -= 1
            self.random.choice(kinds)(scope)

    def _add(self, scope: _Scope, *values: Value) -> None:
        scope.values += values
        scope.own += values

    def _value(self, scope: _Scope) -> Value:
        return self.random.choice(scope.values)

    def _values(self, scope: _Scope) -> list[Value]:
        return [self._value(scope) for _ in range(self.random.randint(1, 3))]

    def _size(self, scope: _Scope) -> Dim:
        size = self.random.choice(scope.sizes)
        return self.random.choice((size, size, size + 1, size * 2, Dim.of(3)))

    def _sized(self, scope: _Scope, size: Dim) -> Value:
        """A value of this size: one that there is, or a new one."""
        fitting = [value for value in scope.values if value.dims == (size,)]
        if fitting and self.random.random() < 0.6:
            return self.random.choice(fitting)
        return self._mix(scope, size)

    def _mix(self, scope: _Scope, size: Dim | None = None) -> Value:
        if size is None and self.random.random() < 0.5:
            return self._may_be_over(scope)
        result = self.w.launch(self.random.choice(MIXES), *self._values(scope), dims=(self._size(scope) if size is None else size,))
        self._add(scope, result)
        return result

    def _may_be_over(self, scope: _Scope) -> Value:
        first = self._value(scope)
        result = self.w.launch(self.random.choice(MIXES), first, *self._values(scope), dims=first.dims, may_be_over=first)
        self._add(scope, result)
        return result

    def _give_up(self, scope: _Scope, value: Value) -> None:
        """The value is gone, and all that lie where it did."""
        roots = roots_of(Block(tuple(self.w.current())))
        root = roots.get(value, value)
        gone = {each for each in scope.values if roots.get(each, each) == root}
        scope.values[:] = [each for each in scope.values if each not in gone]
        scope.own[:] = [each for each in scope.own if each not in gone]

    def _over(self, scope: _Scope) -> None:
        if not scope.own:
            return
        value = self.random.choice(scope.own)
        self._give_up(scope, value)
        others = self._values(scope) if scope.values else []
        self._add(scope, self.w.launch(self.random.choice(MIXES), value, *others, dims=value.dims, over=value))

    def _read(self, scope: _Scope) -> None:
        value = self._value(scope)
        size = self.w.read(self.w.launch(COUNT, value))
        scope.sizes.append(size)
        self._add(scope, self.w.launch(PICK, value, dims=(size,)))

    def _fill(self, scope: _Scope) -> None:
        self._add(scope, self.w.fill(self.random.randint(0, 3), self._size(scope)))

    def _copy(self, scope: _Scope) -> None:
        self._add(scope, self.w.copy(self._value(scope)))

    def _call(self, scope: _Scope) -> None:
        if not self.functions:
            return
        function, _ = self.random.choice(self.functions)
        value = self._value(scope)
        if function.parameters[0].mode is Mode.DONATED:
            if not scope.own:
                return
            value = self.random.choice(scope.own)
            self._give_up(scope, value)
        results, _ = self.w.call(function, [value], value.dims, lambda _: [value.dims])
        self._add(scope, *results)

    def _inner(self, scope: _Scope, values: Sequence[Value] = (), sizes: Sizes = ()) -> _Scope:
        return _Scope([*scope.values, *values], [*scope.sizes, *sizes], list(values), scope.depth + 1)

    def _condition(self, scope: _Scope) -> Condition:
        return Condition.of(self.random.choice(("<", "==", "!=")), self._size(scope), self._size(scope))

    def _branch(self, scope: _Scope) -> None:
        size = self._size(scope)

        def arm() -> Handed:
            inner = self._inner(scope)
            self._steps(inner, self.random.randint(0, 3))
            return [self._sized(inner, size) for _ in range(2)], []

        results, _ = self.w.branch(self._condition(scope), arm, arm, lambda _: [(size,), (size,)])
        self._add_branch(scope, results)

    def _add_branch(self, scope: _Scope, results: Sequence[Value]) -> None:
        """Those that lie in memory of their own may be written over."""
        scope.values += results
        scope.own += [each for each in results if each not in roots_of(Block(tuple(self.w.current())))]

    def _sized_branch(self, scope: _Scope) -> None:
        def arm() -> Handed:
            inner = self._inner(scope)
            self._steps(inner, self.random.randint(0, 3))
            value = self.random.choice([each for each in inner.values if len(each.dims) == 1])
            return [value], list(value.dims)

        results, sizes = self.w.branch(self._condition(scope), arm, arm, lambda own: [own], sizes=1)
        scope.sizes += sizes
        self._add_branch(scope, results)

    def _loop(self, scope: _Scope) -> None:
        values = self._values(scope)
        count = dim_min(self._size(scope), Dim.of(self.random.randint(1, 4)))

        def body(sizes: Sizes, carried: Sequence[Value]) -> Handed:
            inner = self._inner(scope, carried, sizes)
            self._steps(inner, self.random.randint(1, 4))
            return [self._sized(inner, each.dims[0]) for each in carried], [sizes[0] + 1]

        results, sizes = self.w.loop([0], values, lambda own: below(own[0], count), body)
        scope.sizes += sizes
        self._add(scope, *results)

    def _growing(self, scope: _Scope) -> None:
        value = self._value(scope)
        count = dim_min(self._size(scope), Dim.of(3))

        def body(sizes: Sizes, carried: Sequence[Value]) -> Handed:
            inner = self._inner(scope, carried, sizes)
            self._steps(inner, self.random.randint(0, 3))
            last = self.random.choice([each for each in inner.values if len(each.dims) == 1])
            return [last], [sizes[0] + 1, last.dims[0]]

        results, sizes = self.w.loop([0, value.dims[0]], [value], lambda own: below(own[0], count), body, lambda own: [(own[1],)])
        scope.sizes += sizes
        self._add(scope, *results)
