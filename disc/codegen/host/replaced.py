"""Results that take the place of inputs: the caller puts them there after each call, and they may be computed there at once.

    launch step(%gradient, %weight) -> %new        an output of its own, or the memory of the input %weight
    return %new

The code is the same, whether an output lies in memory of its own or in that of the input, which the runtime decides in each call. So it
must be right for both: no step reads the input afterwards, and the launch reads each element of it before it writes there. A call that
fails must have written nothing. So these launches come last, and from the first of them on nothing can fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from disc.codegen.host.lifetimes import handed_on, last_reads, reads_of, risky, same_dims, written_by
from disc.codegen.host.memory import Memory
from disc.codegen.host.program import Program
from disc.codegen.host.steps import Block, Launch, Step, Value, roots_of
from disc.shapes import Dim, ShapeEnv

ZERO = Dim.of(0)


def with_last(env: ShapeEnv, block: Block, wanted: Mapping[Value, Value]) -> Block:
    """The block with the launches at its end that may write results over inputs: those that fail never, and whose results and operands no
    other step needs to have before. wanted: result → input."""
    last = [step for step in block.steps if _never_fails(env, step) and _over(step, wanted)]
    while True:
        others = [step for step in block.steps if step not in last]
        kept = [step for step in last if _may_wait(step, others, roots_of(block))]
        if len(kept) == len(last):
            return replace(block, steps=(*others, *last)) if last else block
        last = kept


def replaced_inputs(program: Program, memory: Memory, wanted: Mapping[Value, Value]) -> dict[int, int]:
    """Of the outputs, by number, those that the code may compute in the memory of an input, and its number. wanted: as in `with_last`."""
    entry, block = program.entry, program.entry.block
    if program.remote:
        return {}
    inputs = {value: number for number, value in enumerate(program.arguments)}
    outputs = {value: number for number, value in enumerate(program.outputs)}
    reads, roots, plan, shared = last_reads(block), roots_of(block), memory.blocks[block], handed_on(block)
    found: dict[int, int] = {}
    for position in range(_first_that_never_fails(program.env, block.steps), len(block.steps)):
        for result, operand in _over(block.steps[position], wanted):
            direct = result in plan.direct and result not in roots and entry.block.values.count(result) == 1
            if direct and reads[operand] == position and operand not in shared and same_dims(program.env, result.dims, operand.dims):
                found[outputs[result]] = inputs[operand]
    return found


def _over(step: Step, wanted: Mapping[Value, Value]) -> list[tuple[Value, Value]]:
    return [(result, operand) for result, operand in step.over if wanted.get(result) == operand] if isinstance(step, Launch) else []


def _never_fails(env: ShapeEnv, step: Step) -> bool:
    """Whether a step asks for no memory, and finds nothing wrong. What it divides sizes by was checked by then."""
    if not isinstance(step, Launch):
        return False
    kernel = step.kernel
    divides = bool(kernel.divisors) or risky(env, kernel.tasks) or risky(env, kernel.cost)
    fails = kernel.checks_indices or kernel.library is not None or divides
    return not fails and kernel.scratch == ZERO and kernel.partials is None


def _may_wait(step: Step, others: Sequence[Step], roots: Mapping[Value, Value]) -> bool:
    results, needed = set(step.results), {roots.get(value, value) for value in step.reads}
    return all(
        results.isdisjoint(reads_of(other)) and needed.isdisjoint(roots.get(value, value) for value in written_by(other))
        for other in others
    )


def _first_that_never_fails(env: ShapeEnv, steps: Sequence[Step]) -> int:
    """The number of the step from which on none fails."""
    return max((number + 1 for number, step in enumerate(steps) if not _never_fails(env, step)), default=0)
