"""Values that are computed where one lies that is read no more: the memory of both is then one, and is read into the caches once.

    launch scale(%scores, %factor) -> %scaled                launch scale(%scores, %factor) -> %scaled in %scores

The launch reads each element of the value before it writes there (`Launch.over`), as its last reader, and the memory is the block's own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from disc.codegen.host.lifetimes import handed_on, last_reads, same_dims
from disc.codegen.host.steps import Block, If, Launch, Step, Value, While, roots_of
from disc.shapes import ShapeEnv


def in_place(env: ShapeEnv, block: Block, apart: Collection[Value] = (), donated: Collection[Value] = ()) -> Block:
    """The block of a program's entry, and those within, with results in the memory of what they are made of. apart: results that are wanted
    elsewhere; donated: parameters that nothing reads after the call, so that what the block does not return may lie there."""
    return _InPlace(env, apart).block(block, donated)


class _InPlace:
    def __init__(self, env: ShapeEnv, apart: Collection[Value]) -> None:
        self.env, self.apart = env, apart

    def block(self, block: Block, donated: Collection[Value] = ()) -> Block:
        block = replace(block, steps=tuple(map(self._with_inner, block.steps)))
        reads, roots, shared = last_reads(block), roots_of(block), handed_on(block)
        sharing: dict[Value, list[Value]] = {}  # of each memory, the values that lie there, before or after
        for value, root in roots.items():
            sharing.setdefault(root, [root]).append(value)
        own = {value for step in block.steps if isinstance(step, Launch) for value in step.results}
        steps: list[Step] = []
        for number, step in enumerate(block.steps):
            if isinstance(step, Launch) and not step.ties:
                ties: dict[Value, Value] = {}
                for result, operand in step.over:
                    root = roots.get(operand, operand)
                    places, behind = sharing.get(root, [root]), sharing.get(result, [result])
                    given = root in donated and not any(each in block.values for each in behind)
                    free = (root in own or given) and shared.isdisjoint(places) and all(reads.get(each, -1) <= number for each in places)
                    alone = sum(roots.get(each, each) == root for each in step.reads) == 1 and operand not in ties.values()
                    fits = result.element == operand.element and same_dims(self.env, result.dims, operand.dims)
                    if free and alone and fits and result not in ties and result not in self.apart:
                        ties[result] = operand
                        roots.update(dict.fromkeys(behind, root))
                        sharing.setdefault(root, [root]).extend(behind)
                step = replace(step, ties=tuple(ties.items())) if ties else step
            steps.append(step)
        return replace(block, steps=tuple(steps))

    def _with_inner(self, step: Step) -> Step:
        match step:
            case If():
                return replace(step, then=self.block(step.then), otherwise=self.block(step.otherwise))
            case While():
                return replace(step, body=self.block(step.body))
            case _:
                return step
