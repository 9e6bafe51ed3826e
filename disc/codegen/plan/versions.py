"""What a version of a row kernel may rely on: its guard, read once, for emitters of any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from disc.codegen.plan.index import IndexSpace
from disc.ir.graph import Body
from disc.shapes import Dim, Truth
from disc.speculation.guards import ALWAYS, Aligned, AtLeast, AtMost, BeyondCache, Divides, Equal, Guard, parts_of
from disc.speculation.versions import broadcast_guard


@dataclass(frozen=True)
class RowVersion:
    """A version and the facts in its guard.

    guard: as the host evaluates it. whole: its rows are of a multiple of so many elements, and of what length (None: of any). resolved: no
    run-time broadcast of the fusion expands. streams: results do not fit into the caches. most_rows: there are at most so many rows, each
    of which is cut into parts (None: any number, and none is cut).
    """

    guard: Guard = ALWAYS
    whole: Divides | None = None
    resolved: bool = False
    streams: bool = False
    most_rows: AtMost | None = None

    def whole_length(self, lanes: int) -> Dim | None:
        """The length of rows that are known to be whole vectors of `lanes` elements."""
        return self.whole.size if self.whole is not None and self.whole.number % lanes == 0 else None

    def is_whole(self, space: IndexSpace, lanes: int, lengths: list[Dim]) -> bool:
        """Whether rows of these lengths are whole vectors of `lanes` elements."""
        return self.whole_length(lanes) is not None or all(space.env.divides(lanes, length) is Truth.YES for length in lengths)


def read_version(guard: Guard, body: Body) -> RowVersion:
    """The facts that a guard gives of the fusion `body`. A condition that gives none here leaves the version right, only slower."""
    whole, streams, most_rows = None, False, None
    equal: set[Equal] = set()
    for part in parts_of(guard):
        match part:
            case Divides():
                whole = part
            case Equal():
                equal.add(part)
            case AtMost():
                most_rows = part
            case BeyondCache():
                streams = True
            case AtLeast() | Aligned():  # of how long rows it pays for; how wide loads may be
                pass
            case _:
                assert_never(part)
    resolved = bool(equal) and equal.issuperset(part for part in parts_of(broadcast_guard(body)))
    return RowVersion(guard, whole, resolved, streams, most_rows)
