"""What blocks of steps read and write, and what sizes depend on: what lifetimes are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from disc.codegen.host.steps import Block, Call, Function, If, Launch, Step, Value, While, roots_of
from disc.codegen.plan.symbols import divisors, may_be_zero
from disc.shapes import Dim, ShapeEnv, Truth


def risky(env: ShapeEnv, dim: Dim) -> bool:
    """Whether computing it divides by a size that may be 0."""
    return any(may_be_zero(env, divisor) for divisor in divisors([dim]))


def same_dims(env: ShapeEnv, left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    """Whether two shapes are proved to be one."""
    return len(left) == len(right) and all(env.equal(*pair) is Truth.YES for pair in zip(left, right, strict=True))


def symbols_of(dims: Iterable[Dim]) -> set[str]:
    """All symbols in sizes."""
    return {name for dim in dims for name in dim.symbols()}


def reads_of(step: Step) -> Iterator[Value]:
    """What a step reads, also in the blocks within."""
    yield from step.reads
    for block in step.blocks:
        for inner in block.steps:
            yield from reads_of(inner)
        yield from block.values


def places_of(function: Function) -> list[int]:
    """The numbers of the results for which a caller of a function has memory: whose sizes follow from its symbols, and which do not lie in
    an argument."""
    known, ties = set(function.symbols), function.ties
    return [number for number, result in enumerate(function.results) if symbols_of(result.dims) <= known and number not in ties]


def last_reads(block: Block) -> dict[Value, int]:
    """Value → number of the last step of the block that reads it; what it returns it reads at the end."""
    last = {value: number for number, step in enumerate(block.steps) for value in reads_of(step)}
    return last | dict.fromkeys(block.values, len(block.steps))


def written_by(step: Step) -> set[Value]:
    """The values in whose memory a step, or one in its blocks, puts something else; of values of its blocks, as well."""
    found = set(step.spoils)
    for block in step.blocks:
        roots = roots_of(block)
        found |= {roots.get(value, value) for inner in block.steps for value in written_by(inner)}
    if isinstance(step, While):
        found |= {each.initial for each in step.values if each.argument in found and stays(step, each.argument)}
    return found


def handed_on(block: Block) -> set[Value]:
    """The values in whose memory others may lie: what loops begin with, and give where they have no steps; what functions are given; what
    the blocks of branches and loops return."""
    found, roots = set[Value](), dict[Value, Value]()
    for step in block.walk():
        if isinstance(step, While):
            found.update(each.initial for each in step.values)
        if isinstance(step, Call):
            found.update(step.reads)
        for inner in step.blocks:
            found.update(inner.values)
            roots |= roots_of(inner)
    roots |= roots_of(block)
    while not (behind := {roots[value] for value in found if value in roots}) <= found:
        found |= behind
    return found


def overwritten(block: Block) -> set[Value]:
    """The values in whose memory launches of a block, or of its branches, put something else. Not those of loops, which begin with a copy
    of what they may not write over."""
    roots = roots_of(block)
    found = {value for step in block.steps if isinstance(step, Launch) for value in step.spoils}
    found |= {value for step in block.steps if isinstance(step, If) for inner in step.blocks for value in overwritten(inner)}
    return {roots.get(value, value) for value in found}


def stays(step: While, argument: Value) -> bool:
    """Whether the next of a carried value lies where the last one did."""
    number = next(number for number, each in enumerate(step.values) if each.argument == argument)
    returned = step.body.values[number]
    return roots_of(step.body).get(returned, returned) == argument
