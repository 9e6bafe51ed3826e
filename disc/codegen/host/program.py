"""The host program: what runs on the CPU in every call, as a tree of steps (`codegen/host/steps.py`) with what it checks first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from disc.codegen.host.steps import Function, Launch, Mode, Read, Value
from disc.shapes import Condition, Dim, ShapeEnv
from disc.targets.x86_thresholds import CPU


@dataclass(frozen=True)
class Source:
    """Where a base symbol's value is: dim `dim` of input `argument`, or its value when `dim` is None."""

    argument: int
    dim: int | None


@dataclass(frozen=True)
class Check:
    """A condition, on entry or where its last size is read: `kind` is equal, at_least, at_most, divides, broadcasts (1 or equal) or
    condition; "index" is one that a kernel reports, "library" what a library function reports, "divisor" one of a size by which another
    is divided, "size" one of what a step relies on.

    `message` says what must hold; after a last ": " it may say what came, with {actual} and {expected}. condition: of that kind alone.
    """

    kind: str
    actual: Dim | tuple[int, int]
    expected: Dim
    message: str
    condition: Condition | None = None


@dataclass(eq=False)
class Program:
    """What the host code does. functions: the entry, then those that it calls; index_checks: number of a launch → number of the check of
    its indices, or of what its library function reports; describe: sizes in words; remote: another device runs the launches, at some later
    time, so that the host code reaches memory through the runtime alone. gigahertz: by which costs in cycles become time. replaces: of the
    outputs, by number, those that may lie where an input lay, and its number.

    Emitting it adds checks: of sizes that others are divided by, and of what steps rely on.
    """

    env: ShapeEnv
    functions: tuple[Function, ...]
    sources: dict[str, Source]
    checks: list[Check]
    weight_slots: dict[Value, int]
    index_checks: dict[int, int]
    describe: Callable[[Dim], str]
    remote: bool = False
    gigahertz: int = CPU.rates.gigahertz
    replaces: Mapping[int, int] = field(default_factory=dict[int, int])

    @property
    def entry(self) -> Function:
        """What the runtime calls."""
        return self.functions[0]

    @property
    def arguments(self) -> tuple[Value, ...]:
        """The inputs."""
        return tuple(each.value for each in self.entry.parameters)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What the runtime makes memory for: what is returned and does not lie in a donated input."""
        ties = self.entry.ties
        return tuple(value for number, value in enumerate(self.entry.block.values) if number not in ties)

    @property
    def updated(self) -> tuple[int, ...]:
        """The numbers of the inputs in whose memory a result lies."""
        return tuple(sorted(set(self.entry.ties.values())))

    @property
    def spoiled(self) -> tuple[int, ...]:
        """The numbers of the inputs in whose memory lies what no result is."""
        updated = self.updated
        return tuple(number for number, each in enumerate(self.entry.parameters) if each.mode is Mode.DONATED and number not in updated)

    @property
    def launches(self) -> list[Launch]:
        """In the order of the text, which numbers them."""
        return launches_of(self.functions)

    @property
    def library(self) -> list[str]:
        """The names of the library functions that launches call, which have their numbers in this order."""
        return list(dict.fromkeys(launch.kernel.library.function for launch in self.launches if launch.kernel.library is not None))

    @property
    def late_checks(self) -> frozenset[int]:
        """The numbers of the checks that steps make."""
        reads = (step for function in self.functions for step in function.block.walk() if isinstance(step, Read))
        return frozenset(number for step in reads for number in step.checks)

    def __str__(self) -> str:
        return "\n".join(map(str, self.functions)) + "\n"


def launches_of(functions: Sequence[Function]) -> list[Launch]:
    """The launches of functions in the order of the text."""
    return [step for function in functions for step in function.block.walk() if isinstance(step, Launch)]
