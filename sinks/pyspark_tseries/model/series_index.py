"""The head of a store: where each series stands, and the counts that must not be lost.

The head is a fold over commits. A commit writes a *delta*, the series it touched, as a file whose
metadata names its parent; now and then a *snapshot* of all series ends the chain. Which head is
the current one is part of the Delta commit itself, so a head and its rows appear together.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.block_columns import BlockColumns
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.head_checksums import check_note, room_for_sums

__all__ = [
    "ABSENT",
    "EMPTY_NOTE",
    "FLOORS",
    "NEVER_US",
    "Head",
    "Note",
    "SeriesIds",
    "advance",
    "delta_of",
    "floors_of",
    "merge",
    "next_note",
    "of_series",
    "read_note",
    "snapshot_due",
    "snapshot_of",
    "with_note",
]

Longs = npt.NDArray[np.int64]

ABSENT: Final = -1
"""The last sequence of a series without events."""

NEVER_US: Final = -(2**62)
"""A timestamp before every legal one: that of a series without events."""

MAX_DELTAS: Final = 64
MIN_SNAPSHOT_ROWS: Final = 10_000
"""Below so many rows since the last snapshot only the number of deltas asks for a new one."""

_NOTE_KEY: Final = b"tseries"
_COLUMNS: Final = {
    "last_sequence": (pa.int64(), ABSENT),
    "newest_us": (INSTANT, NEVER_US),
    "original_sequence": (pa.int64(), ABSENT),
    "original_us": (INSTANT, NEVER_US),
}
FLOORS: Final = {"floor_sequence": 0, "floor_us": NEVER_US}
"""Optional columns: below them a series' events are out of range for good, since a change of the
retained range. A head without them has no floors."""

_SCHEMA: Final = pa.schema(
    [("series", pa.string()), *((name, kind) for name, (kind, _) in _COLUMNS.items())]
)


class SeriesIds:
    """A number for every series' name, in the order of appearance.

    It only grows, so heads of one store share it: an id that an older head does not reach is a
    series without events there.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def names(self) -> list[str]:
        """All names; a name's position is its id."""
        return list(self._ids)

    def add(self, names: Sequence[str]) -> Longs:
        """The ids of `names`, which are distinct; unknown names get the next ones."""
        found = self.find(names)
        new = np.flatnonzero(found < 0)
        found[new] = np.arange(len(self._ids), len(self._ids) + len(new))
        self._ids.update((names[row], int(found[row])) for row in new.tolist())
        return found

    def find(self, names: Sequence[str]) -> Longs:
        """The ids of `names`, -1 for unknown ones."""
        return np.fromiter(map(self._ids.get, names, repeat(-1)), np.int64, len(names))


@dataclass(frozen=True, slots=True)
class Note:
    """What a head file says besides its rows.

    Attributes:
        parent: the id of the head it follows; None at the first commit.
        commit: the number of the commit, 0, 1, 2, ... per store.
        commit_us: when it was committed; never decreasing.
        depth: deltas since the last snapshot; 0 in a snapshot.
        rows: rows in these deltas.
        dropped: rows that `outOfOrder=drop` left out, since the store's creation.
        adjusted: rows that `outOfOrder=adjust` raised, since the store's creation.
        last_dropped: the latest example: series, timestamps, commit; None where there is none.
        last_adjusted: the same of adjusted rows.
        retained: the retained range since it was changed; None where it is that of the creation.
        retained_since: the commit that changed it.
        policy: who may do what, as JSON, since it was set; None where it is that of the creation.
    """

    parent: int | None
    commit: int
    commit_us: int
    depth: int = 0
    rows: int = 0
    dropped: int = 0
    adjusted: int = 0
    last_dropped: dict[str, Any] | None = None
    last_adjusted: dict[str, Any] | None = None
    retained: str | None = None
    retained_since: int | None = None
    policy: str | None = None


EMPTY_NOTE: Final = Note(parent=None, commit=-1, commit_us=NEVER_US)
"""The note of a store without commits."""


def _no_columns() -> BlockColumns:
    return BlockColumns({name: np.empty(0, np.int64) for name in _COLUMNS})


@dataclass(frozen=True, slots=True)
class Head:
    """Where each series stands after one commit.

    Attributes:
        ids: a position in the columns for each series' name.
        columns: `last_sequence`; `newest_us`, the newest timestamp of any event;
            `original_sequence` and `original_us`, those of the newest original; where the
            retained range was changed `floor_sequence` and `floor_us`, see `floors`.
        note: the commit.
    """

    ids: SeriesIds = field(default_factory=SeriesIds)
    columns: BlockColumns = field(default_factory=_no_columns)
    note: Note = EMPTY_NOTE

    def of(self, names: Sequence[str]) -> dict[str, Longs]:
        """The columns of the series `names`; of unknown ones ABSENT and NEVER_US."""
        absent = {name: number for name, (_, number) in _COLUMNS.items()}
        return self.columns.take(self.ids.find(names), absent)

    def floors(self, names: Sequence[str]) -> dict[str, Longs]:
        """`floor_sequence`, `floor_us` of the series `names`: an event below either is gone."""
        return self.columns.take(self.ids.find(names), FLOORS)


def merge(head: Head, delta: pa.Table) -> Head:
    """`head` after the commit of `delta`; `head` itself stays as it is."""
    rows = head.ids.add(delta["series"].to_pylist())
    absent = _absent(head.columns, delta.column_names)
    changes = {name: _longs(delta[name]) for name in absent if name in delta.column_names}
    return Head(head.ids, head.columns.put(rows, changes, absent), read_note(delta.schema))


def of_series(delta: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows of the series `names`: merged, such deltas say of these what whole ones say."""
    # Half a surrogate pair names no series, but may be asked for.
    texts = pa.array([name.encode(errors="replace") for name in names], pa.string())
    return delta.filter(pc.is_in(delta["series"], texts))


def _absent(*named: Collection[str]) -> dict[str, int]:
    """The columns of a head and what an unknown series has in each; floors only where named."""
    floors = {key: low for key, low in FLOORS.items() if any(key in names for names in named)}
    return {name: absent for name, (_, absent) in _COLUMNS.items()} | floors


def _longs(column: pa.ChunkedArray) -> Longs:
    values: Longs = column.cast(pa.int64()).to_numpy()
    return values


def delta_of(names: pa.Array, columns: Mapping[str, Longs]) -> pa.Table:
    """A delta: the series of `names` with where they stand now; floors where `columns` has them."""
    arrays = [pa.array(columns[name]).cast(kind) for name, (kind, _) in _COLUMNS.items()]
    table = pa.Table.from_arrays([names.cast(pa.string()), *arrays], schema=_SCHEMA)
    for name in FLOORS:
        if name in columns:
            table = table.append_column(name, pa.array(columns[name]))
    return table


def snapshot_of(head: Head) -> pa.Table:
    """All series that have events, as one table with the head's note at depth 0."""
    size = head.columns.rows
    table = delta_of(pa.array(head.ids.names()[:size], pa.string()), head.columns)
    there = table.filter(pa.array(head.columns["last_sequence"] != ABSENT))
    return with_note(there, dataclasses.replace(head.note, depth=0, rows=0))


def floors_of(head: Head) -> pa.Table | None:
    """The floors of all series as a delta that changes nothing else; None where there are none."""
    if "floor_sequence" not in head.columns:
        return None
    size = head.columns.rows
    columns = {name: pa.array(head.columns[name]) for name in FLOORS}
    return pa.table({"series": pa.array(head.ids.names()[:size], pa.string()), **columns})


def snapshot_due(note: Note, series: int) -> bool:
    """Whether the chain that ends in `note` is long, or larger than all of its `series`."""
    return note.depth > MAX_DELTAS or note.rows > max(series, MIN_SNAPSHOT_ROWS)


def next_note(head: Head, head_id: int | None, *, now_us: int, rows: int) -> Note:
    """The note of a delta of `rows` series on top of `head`, which is stored as `head_id`."""
    note = head.note
    return dataclasses.replace(
        note,
        parent=head_id,
        commit=note.commit + 1,
        commit_us=max(note.commit_us, now_us),
        depth=note.depth + 1,
        rows=note.rows + rows,
    )


def advance(head: Head, delta: pa.Table, note: Note) -> tuple[Head, pa.Table]:
    """The head after a commit, and the table of its file: `delta`, or all series where it is due.

    Args:
        head: before the commit.
        delta: the series it touches, as `delta_of` makes it.
        note: the commit, as `next_note` makes it.
    """
    delta = with_note(delta, note)
    after = merge(head, delta)
    if not snapshot_due(note, len(head.ids)):
        return after, delta
    table = snapshot_of(after)
    return dataclasses.replace(after, note=read_note(table.schema)), table


def with_note(delta: pa.Table, note: Note) -> pa.Table:
    """`delta` with `note` in its schema's metadata."""
    text = json.dumps(dataclasses.asdict(note)).encode()
    return delta.replace_schema_metadata({_NOTE_KEY: text, **room_for_sums(text)})


def read_note(schema: pa.Schema) -> Note:
    """The note that with_note left in a schema; raises ValueError where it left none."""
    metadata = schema.metadata or {}
    if _NOTE_KEY not in metadata:
        raise ValueError("it has no note")
    check_note(metadata, metadata[_NOTE_KEY])
    try:
        return Note(**json.loads(metadata[_NOTE_KEY]))
    except TypeError as error:
        raise ValueError("its note is of another form") from error
