"""Keep the series index: each series' last sequence, newest timestamps and counts.

Each commit writes a *head file* with an *index change*: the series that the commit touched. The
file's metadata (`model.commits`) names its parent, the head file of the previous commit. Now and
then a commit writes a *full table* of all series, and the chain ends there. The Delta commit names
the current head file, so an index and the events it counts become visible together.

`compute_state` recomputes the index from the events, because compaction keeps a series' last event,
and its newest original and newest edit that are not erased.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import NEVER_US, NO_SEQUENCE, BlockColumns, Int64Array, to_int64
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.commits import NO_COMMIT, CommitMetadata, attach_metadata, read_metadata

MAX_INDEX_CHANGES: Final = 64
"""In a store of few series, a full table ends a longer chain of changes."""

SERIES_PER_CHANGE: Final = 2000
"""In a large store, the chain may have one change for this many series: reading a change takes as
long as reading that many series, and writing a full table as long as a hundred commits or more."""

MAX_MERGED_ROWS: Final = 1000
"""Merge changes of up to this many rows before they are applied to an index."""

MIN_FULL_TABLE_ROWS: Final = 10_000
"""If its changes have fewer rows, only the length of the chain requires a full table."""

_INDEX_COLUMNS: Final = {
    "last_sequence": (pa.int64(), NO_SEQUENCE),
    "newest_us": (INSTANT, NEVER_US),
    "original_sequence": (pa.int64(), NO_SEQUENCE),
    "original_us": (INSTANT, NEVER_US),
    "first_us": (INSTANT, NEVER_US),
    "edits": (pa.int64(), 0),
}
FLOOR_DEFAULTS: Final = {"floor_sequence": 0, "floor_us": NEVER_US}
"""The optional columns of `floors`.

Events below either floor left the retained range before it changed.
"""

_SCHEMA: Final = pa.schema(
    [
        ("series", pa.string()),
        *((name, data_type) for name, (data_type, _) in _INDEX_COLUMNS.items()),
    ]
)


class SeriesIds:
    """A number for the name of each series, in the order of appearance.

    It only grows, so all indexes of a store share it. An id beyond the columns of an older index
    belongs to a series that had no events then.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._by_name: tuple[Int64Array, list[str]] = np.empty(0, np.int64), []

    def __len__(self) -> int:
        return len(self._ids)

    def names(self) -> list[str]:
        """Return all names; a name's position is its id."""
        return list(self._ids)

    def by_name(self, count: int) -> tuple[Int64Array, list[str]]:
        """Return the first `count` ids in the order of their names, and these names.

        Both are kept for the next call, which returns the same objects; do not change them.
        """
        if len(self._by_name[1]) != count:
            names = self.names()[:count]
            order = pc.array_sort_indices(pa.array(names, pa.string())).to_numpy().astype(np.int64)
            self._by_name = order, [names[row] for row in order.tolist()]
        return self._by_name

    def add(self, names: Sequence[str]) -> Int64Array:
        """Return the ids of the distinct `names`; unknown names get the next ones."""
        if len(names) == 1:
            return np.array([self.add_one(names[0])])
        if not self._ids:
            self._ids.update(zip(names, range(len(names)), strict=True))
            return np.arange(len(names))
        ids = self.find(names)
        new = np.flatnonzero(ids < 0)
        ids[new] = np.arange(len(self._ids), len(self._ids) + len(new))
        self._ids.update((names[row], int(ids[row])) for row in new.tolist())
        return ids

    def add_one(self, name: str) -> int:
        """Return the id of `name`; an unknown name gets the next one."""
        return self._ids.setdefault(name, len(self._ids))

    def find(self, names: Sequence[str]) -> Int64Array:
        """Return the ids of `names`, -1 for unknown ones."""
        return np.fromiter(map(self._ids.get, names, repeat(-1)), np.int64, len(names))

    def find_one(self, name: str) -> int:
        """Return the id of `name`, -1 if it is unknown."""
        return self._ids.get(name, -1)


STATE_DEFAULTS: Final = {name: number for name, (_, number) in _INDEX_COLUMNS.items()}
"""The values of an unknown series."""

_NO_COLUMNS: Final = BlockColumns({name: np.empty(0, np.int64) for name in _INDEX_COLUMNS})


@dataclass(frozen=True, slots=True)
class SeriesIndex:
    """The state of each series after the commit of `metadata`: one row of numbers for each.

    `ids` has the position of each series in the columns:

    - `last_sequence`: of any event, erased or not.
    - `newest_us`: the newest timestamp of any event that is not erased.
    - `original_sequence`, `original_us`: of the newest original that is not erased.
    - `first_us`, `edits`: the earliest timestamp of any original, and the number of edits ever
      made, events included that were erased or that compaction has removed.
    - `floor_sequence`, `floor_us`: only if the retained range was changed, or an event erased.

    NEVER_US for a series with events means, in `newest_us` or `original_us`, that all its events,
    or all its originals, are erased, and in `first_us` that neither this nor `edits` is known. Then
    the head is from before these columns, or was rebuilt when some events were not stored any more.
    """

    ids: SeriesIds = field(default_factory=SeriesIds)
    columns: BlockColumns = field(default_factory=lambda: _NO_COLUMNS)
    metadata: CommitMetadata = NO_COMMIT

    @property
    def cti_us(self) -> int:
        """The store's CTI; NEVER_US if it has none."""
        store_us = self.metadata.ctis.store_us
        return NEVER_US if store_us is None else store_us

    def names(self) -> list[str]:
        """Return the series of its rows; some may have no events."""
        return self.ids.names()[: self.columns.rows]

    def by_name(self) -> tuple[Int64Array, list[str]]:
        """Return its rows in the order of their series, and these series; see `SeriesIds`."""
        return self.ids.by_name(self.columns.rows)

    def lookup(self, names: Sequence[str]) -> dict[str, Int64Array]:
        """Return the columns of the series `names`; NO_SEQUENCE and NEVER_US for unknown ones."""
        return self.columns.take(self.ids.find(names), STATE_DEFAULTS)

    def lookup_one(self, name: str) -> dict[str, int]:
        """Return what `lookup` returns for one series, as numbers."""
        return self.columns.row(self.ids.find_one(name), STATE_DEFAULTS)

    def floors(self, names: Sequence[str]) -> dict[str, Int64Array]:
        """Return `floor_sequence` and `floor_us` of `names`: events below one are out of range."""
        return self.columns.take(self.ids.find(names), FLOOR_DEFAULTS)

    def lookup_all(self, names: Sequence[str]) -> dict[str, Int64Array]:
        """Return the columns of `lookup` and of `floors`."""
        return self.columns.take(self.ids.find(names), STATE_DEFAULTS | FLOOR_DEFAULTS)


@dataclass(frozen=True, slots=True)
class OneSeries:
    """An index change of one series, as numbers, so that a single append needs no columns.

    Attributes:
        series: the name of the series.
        state: its numbers by column, without floors.
    """

    series: str
    state: Mapping[str, int]

    def to_table(self) -> pa.Table:
        """Return the table that `make_change` returns."""
        numbers = (
            pa.array([self.state[name]], data_type)
            for name, (data_type, _) in _INDEX_COLUMNS.items()
        )
        names = pa.array([self.series], pa.string())
        return pa.Table.from_arrays([names, *numbers], schema=_SCHEMA)


def apply_change(index: SeriesIndex, change: pa.Table) -> SeriesIndex:
    """Return `index` after the commit of `change`; `index` itself does not change."""
    return _put_rows(index, change, read_metadata(change.schema))


def _put_rows(index: SeriesIndex, change: pa.Table, metadata: CommitMetadata) -> SeriesIndex:
    # NumPy converts a million names to str in a quarter of the time.
    names = change["series"].to_numpy().tolist()
    rows = index.ids.add(names)
    changed = set(change.column_names)
    absent = _default_values(index.columns, changed)
    changes = {name: to_int64(change[name]) for name in absent if name in changed}
    return SeriesIndex(index.ids, index.columns.put(rows, changes, absent), metadata)


def merge_changes(changes: Sequence[pa.Table]) -> list[pa.Table]:
    """Merge neighbouring changes of few rows; the result, in order, makes the same index."""
    merged: list[pa.Table] = []
    for is_small, run in groupby(changes, _is_small_change):
        tables = list(run)
        if not is_small or len(tables) == 1:
            merged += tables
            continue
        rows = pa.concat_tables([table.replace_schema_metadata(None) for table in tables])
        # A series keeps its first position, and gets the values of its last row.
        last_rows = {name: row for row, name in enumerate(rows["series"].to_pylist())}
        chosen = rows.take(pa.array(list(last_rows.values()), pa.int64())).combine_chunks()
        merged.append(chosen.replace_schema_metadata(tables[-1].schema.metadata))
    return merged


def _is_small_change(change: pa.Table) -> bool:
    return bool(change.num_rows <= MAX_MERGED_ROWS and change.column_names == _SCHEMA.names)


def filter_series(change: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows of the series `names`; an index of such changes is complete for them."""
    # A name with an unpaired surrogate cannot exist, but may be looked up.
    texts = pa.array([name.encode(errors="replace") for name in names], pa.string())
    return change.filter(pc.is_in(change["series"], texts))


def _default_values(*column_names: Collection[str]) -> dict[str, int]:
    """Return an unknown series' value in each column; with floors if `column_names` has them."""
    floors = {
        key: low
        for key, low in FLOOR_DEFAULTS.items()
        if any(key in names for names in column_names)
    }
    return STATE_DEFAULTS | floors


def make_change(names: pa.Array, columns: Mapping[str, Int64Array]) -> pa.Table:
    """Return a change of the series `names` with their values in `columns`, floors included."""
    # A view takes a tenth of the time of a cast, which matters in a small commit.
    arrays = [
        pa.array(columns[name]).view(data_type) for name, (data_type, _) in _INDEX_COLUMNS.items()
    ]
    texts = names if names.type == pa.string() else names.cast(pa.string())
    table = pa.Table.from_arrays([texts, *arrays], schema=_SCHEMA)
    for name in FLOOR_DEFAULTS:
        if name in columns:
            table = table.append_column(name, pa.array(columns[name]))
    return table


def make_full_table(index: SeriesIndex) -> pa.Table:
    """Return a table of all series that have events, with the metadata of `index` at depth 0."""
    table = make_change(pa.array(index.names(), pa.string()), index.columns)
    rows = table.filter(pa.array(index.columns["last_sequence"] != NO_SEQUENCE))
    return attach_metadata(rows, dataclasses.replace(index.metadata, depth=0, rows=0))


def floors_table(index: SeriesIndex) -> pa.Table | None:
    """Return the floors of all series as a change of nothing else; None if there are none."""
    if "floor_sequence" not in index.columns:
        return None
    columns = {name: pa.array(index.columns[name]) for name in FLOOR_DEFAULTS}
    return pa.table({"series": pa.array(index.names(), pa.string()), **columns})


def needs_full_table(metadata: CommitMetadata, series: int) -> bool:
    """Return whether the chain of changes is long, or has more rows than the store has series."""
    max_depth = max(MAX_INDEX_CHANGES, series // SERIES_PER_CHANGE)
    return metadata.depth > max_depth or metadata.rows > max(series, MIN_FULL_TABLE_ROWS)


def next_metadata(
    index: SeriesIndex,
    head_id: int | None,
    *,
    now_us: int,
    rows: int,
    marks: dict[str, int] | None = None,
) -> CommitMetadata:
    """Return the metadata of the commit after `index`, the index of the head `head_id`."""
    metadata = index.metadata
    return dataclasses.replace(
        metadata,
        parent=head_id,
        commit=metadata.commit + 1,
        commit_us=max(metadata.commit_us, now_us),
        depth=metadata.depth + 1,
        rows=metadata.rows + rows,
        marks=marks or None,
    )


def advance_index(
    index: SeriesIndex, change: pa.Table, metadata: CommitMetadata, row: OneSeries | None = None
) -> tuple[SeriesIndex, pa.Table]:
    """Return the index after a commit, and its table: `change`, or all series if that is due.

    A caller that also has `change` as numbers passes them as `row`.
    """
    change = attach_metadata(change, metadata)
    if row is not None:
        absent = _default_values(index.columns)
        columns = index.columns.put_one(index.ids.add_one(row.series), row.state, absent)
        after = SeriesIndex(index.ids, columns, metadata)
    else:
        after = _put_rows(index, change, metadata)
    if not needs_full_table(metadata, len(index.ids)):
        return after, change
    table = make_full_table(after)
    return dataclasses.replace(after, metadata=read_metadata(table.schema)), table


STATE_COLUMNS: Final = (
    *("series", "sequence", "timestamp", "original_sequence", "commit", "commit_time", "erasure"),
)
"""`compute_state` computes the state of a series from these columns of events."""

_COMBINED_BY: Final = {"first_us": "min", "edits": "sum", "events": "sum"}
"""How several values of a series are combined; other columns take the maximum."""

_EMPTY: Final = {
    **STATE_DEFAULTS,
    "edit_sequence": NO_SEQUENCE,
    "horizon_sequence": NO_SEQUENCE,
    "horizon_us": NEVER_US,
    "events": 0,
}


def compute_state(events: pa.Table, horizon: int) -> pa.Table:
    """Return the state of each series, one row each; NO_SEQUENCE or NEVER_US if no event counts.

    `last_sequence`: of any event; `newest_us`: of any event that is not erased, an edit's time at
    most that of its commit; `original_sequence`, `original_us`: of originals that are not erased;
    `first_us`: the earliest timestamp of any original; `edits`, `events`: their numbers;
    `edit_sequence`: of edits that are not erased; `horizon_sequence`, `horizon_us`: the last
    sequence, and the newest timestamp of an original that is not erased, in the commits up to
    `horizon`, inclusive.

    Only the given events count, so after compaction `first_us` and the numbers leave out what was
    removed. If only erased edits are left of a series, every time is NEVER_US.
    """
    sequence = events["sequence"]
    us = events["timestamp"].cast(pa.int64())
    has_values = pc.is_null(events["erasure"])
    is_edit = pc.is_valid(events["original_sequence"])
    is_valued_original = pc.and_not(has_values, is_edit)
    is_valued_edit = pc.and_(has_values, is_edit)
    # An edit may have taken its time from an original in the future that is now erased (18.8).
    edit_us = pc.min_element_wise(us, events["commit_time"].cast(pa.int64()))
    counted_us = pc.if_else(is_valued_edit, edit_us, us)
    is_early = pc.less_equal(events["commit"], horizon)
    none = pa.scalar(None, pa.int64())
    columns = {
        "last_sequence": sequence,
        "newest_us": pc.if_else(has_values, counted_us, none),
        "original_sequence": pc.if_else(is_valued_original, sequence, none),
        "original_us": pc.if_else(is_valued_original, us, none),
        "first_us": pc.if_else(is_edit, none, us),
        "edits": is_edit.cast(pa.int64()),
        "edit_sequence": pc.if_else(is_valued_edit, sequence, none),
        "horizon_sequence": pc.if_else(is_early, sequence, none),
        "horizon_us": pc.if_else(pc.and_(is_early, is_valued_original), us, none),
        "events": np.ones(events.num_rows, np.int64),
    }
    return _combine_rows(pa.table({"series": events["series"].cast(pa.string()), **columns}))


def combine_states(states: Iterable[pa.Table]) -> pa.Table:
    """Return the state of all events from the states of subsets."""
    tables = list(states)
    if not tables:
        columns = {name: pa.array([], pa.int64()) for name in _EMPTY}
        return pa.table({"series": pa.array([], pa.string()), **columns})
    first_times = [
        pc.if_else(
            pc.equal(table["first_us"], NEVER_US), pa.scalar(None, pa.int64()), table["first_us"]
        )
        for table in tables
    ]
    column_index = tables[0].schema.get_field_index("first_us")
    with_nulls = [
        table.set_column(column_index, "first_us", us)
        for table, us in zip(tables, first_times, strict=True)
    ]
    return _combine_rows(pa.concat_tables(with_nulls))


def _combine_rows(table: pa.Table) -> pa.Table:
    functions = [(name, _COMBINED_BY.get(name, "max")) for name in _EMPTY]
    grouped = table.group_by("series").aggregate(functions)
    columns = {
        name: grouped[f"{name}_{function}"].fill_null(_EMPTY[name]).combine_chunks()
        for name, function in functions
    }
    return pa.table({"series": grouped["series"], **columns})


def state_to_change(table: pa.Table) -> pa.Table:
    """Return states as the rows of a change, without commit metadata."""
    names = table["series"].combine_chunks()
    return make_change(names, {name: to_int64(table[name]) for name in _EMPTY})


def build_index(
    states: pa.Table, metadata: CommitMetadata, floors: pa.Table | None = None
) -> SeriesIndex:
    """Return the index of series in these states, with the `floors` from `floors_table`."""
    index = apply_change(SeriesIndex(), attach_metadata(state_to_change(states), metadata))
    return index if floors is None else apply_change(index, attach_metadata(floors, metadata))
