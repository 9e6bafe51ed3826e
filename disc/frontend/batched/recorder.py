"""What a batch of instances asks for, and in which order it is computed: by depth and kind (ACROBAT 4.1), or from an agenda where that
takes less; only what a read needs, and last what no block reads (its program phases). Calls are recorded and ordered in C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from disc.errors import AliasError
from disc.frontend.batched.launches import Programs, Table
from disc.frontend.batched.regions import ENOUGH, Kind, NotRegular, Region
from disc.frontend.batched.rows import Row, RowClass, own_rows, row_class, settled
from disc.frontend.batched.techniques import Techniques
from disc.frontend.batched.tracing import make_kind
from disc.ral import _ral
from disc.ral._ral import Launch

Tensors = Sequence[torch.Tensor]
Lower = Callable[[Kind], None]  # gives a kind its `lifted`, or the reason why it has none


class Recorder(_ral.Tape):
    """One call of `batch`. launches: how many compiled blocks ran. before_change: called before a tensor is changed in place, with its row.

    `region(region, arguments)`, in C++, records a call like one that was recorded before; `missed` is asked to record others. kept: called
    with lists and dicts that a region returns, and its arguments.
    """

    def __init__(self, lower: Lower, programs: Programs, techniques: Techniques) -> None:
        super().__init__(Row)
        self.before_change = _nothing
        self.launches = 0
        self.immediate: dict[str, int] = {}
        self._lower = lower
        self._programs = programs
        self._techniques = techniques
        self.tables: dict[RowClass, Table] = {}
        self._constants: dict[Kind, tuple[int, ...]] = {}  # their places in the tables
        self._placed: dict[tuple[int, int, bool], tuple[torch.Tensor, int]] = {}  # by `_placed_name`: the tensor and its row
        self._given: dict[int, Row] = {}  # by the tensor's identity; the row holds the tensor

    def close(self) -> None:
        """Nothing is recorded from now on; rows that somebody keeps can still be computed."""
        self.before_change, self.missed, self.kept = _nothing, None, None

    # --- recording --------------------------------------------------------------------------------------------------------------

    def record(self, region: Region, arguments: tuple[object, ...]) -> tuple[object, ...]:
        """Records a call of the region. Raises NotRegular."""
        numbers, arguments = arguments, region.with_tensors(arguments)
        rows: list[object] = []
        values: list[int] = []
        key = region.describe(arguments, rows, values)
        kind = region.kinds.get(key)
        if kind is None:
            if region.has_varied(arguments):
                return self.record(region, numbers)
            kind = self._new_kind(region, arguments, numbers, rows, values)
            if kind is None:
                return self.record(region, numbers)
            region.kinds[key] = kind
        if self._techniques.native_recorder:
            region.learn(arguments, kind)
        given = [self._row(each) for each in rows]
        return kind.outputs(self.note(kind, given, values).results, given, arguments)

    @staticmethod
    def _new_kind(
        region: Region, arguments: tuple[object, ...], numbers: tuple[object, ...], rows: Sequence[object], values: Sequence[int]
    ) -> Kind | None:
        """None where the region can be a block only with its numbers as constants, which it has from then on: what computes with a tensor
        in the place of a number may give another dtype, or fail. numbers: the arguments with these. Raises NotRegular."""
        try:
            kind = make_kind(region, arguments, rows, len(values))
        except NotRegular:
            if not region.numbers and not values:
                raise
            kind = None
        if kind is not None and not region.numbers:
            return kind
        found = region.indices, region.numbers
        if kind is None:
            region.indices = frozenset()
        region.numbers = None
        try:
            plain_rows: list[object] = []
            plain_values: list[int] = []
            region.describe(numbers, plain_rows, plain_values)
            plain = make_kind(region, numbers, plain_rows, len(plain_values))
        except NotRegular:
            region.indices, region.numbers = found
            raise
        if kind is None or plain.results != kind.results:
            return None
        region.indices, region.numbers = found
        return kind

    def _row(self, value: object) -> Row:
        """The row of this call for a row or a given tensor; a row of another call, which someone has kept, is a given tensor, and one whose
        tensor was changed."""
        if type(value) is Row and self._holds(value):
            return value
        tensor = settled(value)
        assert isinstance(tensor, torch.Tensor)
        row = self._given.get(id(tensor))
        if row is None or row.version != tensor._version:
            row = Row(row_class(tensor), None, 0, tensor)
            self._given[id(tensor)] = row
        return row

    def _holds(self, row: Row) -> bool:
        """Whether the row is of this call, and nobody has changed its tensor."""
        if row.launch is None or row.launch.recorder is not self:
            return False
        return row.value is None or row.value._version == row.version

    def constant(self, launch: Launch) -> None:
        """What depends on weights alone is computed once."""
        places = self._constants.get(launch.kind)
        if places is None:
            with torch.no_grad():
                places = self._constants[launch.kind] = tuple(self._placed_value(each) for each in launch.kind.run())
        launch.done = True
        for row, place in zip(launch.results, places, strict=True):
            row.place, row.depth = place, 0

    def _placed_value(self, value: torch.Tensor) -> int:
        table = self.table(row_class(value))
        table.take(1)[0] = value
        return table.used - 1

    def shares(self, tensor: torch.Tensor) -> bool:
        """Whether a row is a view of a given tensor's memory."""
        memory = tensor.untyped_storage()._cdata
        return any(row.shared and row.tensor().untyped_storage()._cdata == memory for row in self._given.values())

    # --- computing --------------------------------------------------------------------------------------------------------------

    def compute(self, row: Row) -> None:
        """Computes what a row needs, and gives it its value. Raises what computing it raised."""
        launch = row.launch
        assert launch is not None
        if not launch.done:
            self.immediate[launch.kind.region.name] = self.immediate.get(launch.kind.region.name, 0) + 1
            self.flush([row])
        if launch.error is not None:
            raise launch.error
        if row.value is None:
            row.value = self.tables[row.kind].data[row.place].clone()
            row.version = row.value._version

    def flush(self, needed: Sequence[Row] | None = None) -> None:
        """Computes what waits: all of it, or what `needed` needs."""
        self._execute(_ral.choose(self, needed, self._techniques.order))

    def settle(self) -> None:
        """Computes what waits, before something is changed."""
        self.flush()

    def values(self, rows: Sequence[Row]) -> list[object]:
        """The values of rows that are computed, as `tolist` gives them; for those that failed, the exception."""
        found: list[object] = [None] * len(rows)
        groups: dict[RowClass, list[int]] = {}
        for number, row in enumerate(rows):
            if row.launch is not None and row.launch.error is not None:
                found[number] = row.launch.error
            elif row.value is not None:
                found[number] = row.value.tolist()
            else:
                groups.setdefault(row.kind, []).append(number)
        for kind, numbers in groups.items():
            data = self.tables[kind].data[torch.tensor([rows[each].place for each in numbers])].tolist()
            for number, value in zip(numbers, data, strict=True):
                found[number] = value
        return found

    def fetch(self, rows: Sequence[Row]) -> None:
        """Gives each of the computed rows a tensor of its own."""
        groups: dict[RowClass, list[Row]] = {}
        for row in rows:
            if row.value is None and row.launch is not None and row.launch.error is None:
                groups.setdefault(row.kind, []).append(row)
        for kind, members in groups.items():
            data = self.tables[kind].data[torch.tensor([each.place for each in members])]
            for row, own in zip(members, own_rows(data), strict=True):
                row.value, row.version = own, own._version

    def hand_out(self, rows: Sequence[Row]) -> None:
        """Called with the rows of the results, which have their values, before the user gets these."""

    def _execute(self, groups: list[list[Launch]]) -> None:
        """Launches, those of a group of one kind, which depend on nothing that waits but groups before theirs."""
        if _ral.all_compiled(groups):
            self._run_compiled(groups)
            return
        compiled: list[list[Launch]] = []
        for group in groups:
            if self._is_compiled(group[0].kind):
                compiled.append(group)
                continue
            self._run_compiled(compiled)
            compiled = []
            self._run_group(group)
        self._run_compiled(compiled)
        _ral.finish(groups)

    def _is_compiled(self, kind: Kind) -> bool:
        """Compiles it first where it is called often enough."""
        if kind.lifted is None and kind.refusal is None and kind.calls >= ENOUGH:
            self._lower(kind)
        return kind.slot >= 0

    def _run_compiled(self, groups: list[list[Launch]]) -> None:
        """Groups of compiled blocks: as one native call, or one by one where something fails."""
        if not groups:
            return
        given = _ral.unplaced(groups)
        if given is None or not self._techniques.native_schedule or not self._run_together(groups, given):
            for group in groups:
                self._run_group(group)
        _ral.finish(groups)

    def _run_together(self, groups: list[list[Launch]], given: list[Row]) -> bool:
        """Whether all could be computed. given: rows that lie in no table yet."""
        self.place(given)
        tables = [self.table(each) for each in self._programs.classes]
        batches, indices, used = _ral.arrange(groups, [each.used for each in tables])
        for table, rows in zip(tables, used, strict=True):
            table.reserve(rows - table.used)
        try:
            self._programs.run(tables, batches, indices)
        except Exception:
            _ral.displace(groups)
            return False
        for table, rows in zip(tables, used, strict=True):
            table.used = rows
            self._programs.rows[table.kind] = rows
        for group in groups:
            self._count(group)
        return True

    def _run_group(self, group: list[Launch]) -> None:
        for each in group:
            each.done = True
            each.error = _failed(each)
        ready = [each for each in group if each.error is None]
        if not ready:
            return
        kind = ready[0].kind
        if kind.lifted is None:
            self._run_each(ready)
            return
        try:
            self._run_lifted(kind, ready)
        except Exception as error:
            self._isolate(ready, error)

    def _count(self, group: list[Launch]) -> None:
        sizes = group[0].kind.sizes
        sizes[len(group)] = sizes.get(len(group), 0) + 1
        self.launches += 1

    def _isolate(self, group: list[Launch], error: Exception) -> None:
        """Finds out whose fault an error is."""
        if len(group) == 1:
            group[0].error = error
            return
        for each in group:
            try:
                self._run_lifted(each.kind, [each])
            except Exception as own:
                each.error = own

    def _run_each(self, group: list[Launch]) -> None:
        """Runs launches one by one in PyTorch: kinds that are too rare to be compiled, or cannot be."""
        kind = group[0].kind
        kind.eager += len(group)
        for each in group:
            try:
                with torch.no_grad():
                    results = kind.run(*(row.tensor() for row in each.rows), *map(torch.tensor, each.values))
            except Exception as error:
                each.error = error
                continue
            for row, value in zip(each.results, results, strict=True):
                row.value = value
                row.version = value._version

    def _run_lifted(self, kind: Kind, group: list[Launch]) -> None:
        given = _ral.unplaced([group])
        assert given is not None  # none of the group failed
        self.place(given)
        count = len(group)
        rows = [torch.tensor([each.rows[place].place for each in group]) for place in range(len(kind.rows))]
        values = [torch.tensor([each.values[place] for each in group]) for place in range(kind.values)]
        tables = [self.table(each) for each in kind.block.tables()]
        wanted: dict[RowClass, int] = {}
        for each in kind.results:
            wanted[each] = wanted.get(each, 0) + count
        for each, rows_wanted in wanted.items():
            self.table(each).reserve(rows_wanted)
        views = [table.data[: table.used] for table in tables]
        before = {each: self.table(each).used for each in wanted}
        places, out = [], []
        for each in kind.results:
            table = self.table(each)
            places.append(table.used)
            out.append(table.take(count))
        try:
            self.call(kind, views, rows, values, out)
        except Exception:
            for each, used in before.items():
                self.table(each).used = used
            raise
        self._count(group)
        for number, each in enumerate(group):
            for row, first in zip(each.results, places, strict=True):
                row.place = first + number

    def call(self, kind: Kind, tables: Tensors, rows: Tensors, values: Tensors, out: Tensors) -> None:
        """Runs the kind's block, as of `Lifted`."""
        assert kind.lifted is not None
        kind.lifted(tables, rows, values, out)

    def _copy(self, kind: RowClass, rows: list[Row]) -> None:
        """Puts values into the table, each given tensor once. Where Python hands on what a launch made, as it is, that is a given tensor in
        a row of its own: the gradient of the one is no part of the gradient of the other."""
        new: dict[tuple[int, int, bool], torch.Tensor] = {}
        for row in rows:
            assert row.value is not None
            if row.version != row.value._version:
                raise AliasError(f"a tensor {kind} was changed in place after a block was to read it")
            if (name := _placed_name(row)) not in self._placed:
                new[name] = row.value
        table = self.table(kind)
        first = table.used
        if new:
            torch.stack([each.detach() for each in new.values()], out=table.take(len(new)))
        for number, (name, value) in enumerate(new.items()):
            self._placed[name] = (value, first + number)
        for row in rows:
            row.place = self._placed[_placed_name(row)][1]

    def table(self, kind: RowClass) -> Table:
        table = self.tables.get(kind)
        if table is None:
            table = self.tables[kind] = Table(kind, self._programs.rows.get(kind, 0))
        return table

    def place(self, given: list[Row]) -> None:
        """Copies the values that no table holds yet: given tensors, and what PyTorch computed."""
        missing: dict[RowClass, dict[int, Row]] = {}
        for row in given:
            missing.setdefault(row.kind, {})[id(row)] = row
        for kind, found in missing.items():
            self._copy(kind, list(found.values()))


def _placed_name(row: Row) -> tuple[int, int, bool]:
    """The tensor's identity and version, and whether it was given."""
    return id(row.value), row.version, row.launch is None


def _nothing(row: Row) -> None:
    del row


def _failed(launch: Launch) -> Exception | None:
    """Why a row that it reads could not be computed."""
    return next((row.launch.error for row in launch.rows if row.launch is not None and row.launch.error is not None), None)


def compiled_kinds(region: Region) -> int:
    """How many constants and shapes of the region are compiled."""
    return sum(kind.lifted is not None for kind in region.kinds.values())
