"""Answer questions about one commit of a store: its view (semantics 31).

A view never changes, so all its answers are consistent. The client, rollups and followers open
views; the answers are pure functions of the snapshot, its index and the chosen series. Two short
ones are in this module: the list of series, from the index, and the versions of an event.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.errors import wrap_methods
from pyspark_tseries.errors import InvalidQuery, NoSuchEvent
from pyspark_tseries.model.arrays import (
    MAX_NUMBER,
    MIN_NUMBER,
    NEVER_US,
    NO_SEQUENCE,
    Int64Array,
    to_int64,
)
from pyspark_tseries.model.columns import (
    ERASED_FIELDS,
    ERASURE_FIELD,
    INSTANT,
    event_schema,
    file_schema,
    result_schema,
)
from pyspark_tseries.model.downsampling import Downsampling, result_fields
from pyspark_tseries.model.properties import AccessCheck
from pyspark_tseries.model.ranges import Point, Query, Range, SeriesChoice
from pyspark_tseries.model.series_index import STATE_DEFAULTS, SeriesIndex
from pyspark_tseries.read.downsample import downsample, gaps
from pyspark_tseries.read.newest import find_newest_count, find_series, read_newest_one
from pyspark_tseries.read.newest_table import ask_newest
from pyspark_tseries.read.scan import Answer, Scope, run_query, stream_query, stream_schema
from pyspark_tseries.storage.erasures import Erasure, read_records
from pyspark_tseries.storage.failures import explain_failure, explained_failures
from pyspark_tseries.storage.row_reader import RowFilter, base_fields, read_rows
from pyspark_tseries.storage.snapshot import Snapshot

_LOG: Final = logging.getLogger(__name__)

SERIES_SCHEMA: Final = pa.schema(
    [
        pa.field("series", pa.string(), nullable=False),
        pa.field("events", pa.int64()),
        pa.field("edits", pa.int64()),
        pa.field("first", INSTANT),
        pa.field("newest", INSTANT),
    ]
)
"""A null means that no original is visible (`newest`), or that the number is unknown (semantics
31.3): the head was rebuilt after events had been removed, or is of an old store."""


@dataclass(frozen=True)
@wrap_methods(lambda view, error: explain_failure(view.snapshot.location, error))
class View:
    """One commit of a store, and who asks.

    Attributes:
        snapshot: the store as of the commit.
        principal: whose rights count if the store has a policy.
    """

    snapshot: Snapshot
    principal: str

    @property
    def access(self) -> AccessCheck:
        """The permissions of the principal."""
        return AccessCheck(self.snapshot.settings.policy, self.principal)

    def choose(self, choice: SeriesChoice) -> Scope:
        """Return the chosen series, sorted and distinct.

        Series that were chosen by name may be unknown.
        """
        index = self.snapshot.index(choice.names)
        if choice.names is not None:
            if self.snapshot.as_of is None:
                warn_of_unknown_series(self.snapshot, index, choice.names)
            return Scope(self.snapshot, index, list(choice.names))
        names = None if choice.is_all else choice.pick(known_series(index))
        return Scope(self.snapshot, index, names)

    def select(
        self, query: Query, choice: SeriesChoice, columns: Sequence[str] | None = None
    ) -> Answer:
        """Run `query` on the chosen series, in the order of their names; see `run_query`.

        Raises:
            PermissionDenied: the principal may not ask this.
            InvalidQuery: as `run_query`.
        """
        self.access.require_query(query)
        scope = self.choose(choice)
        if (count := find_newest_count(query)) is not None:
            return ask_newest(scope, count, columns=columns)
        return run_query(scope, query, columns=columns)

    def stream(
        self, query: Query, choice: SeriesChoice, columns: Sequence[str] | None = None
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows of `select`, in batches that are read one by one.

        Raise what `select` raises, now or with the batches.
        """
        self.access.require_query(query)
        scope = self.choose(choice)
        schema = stream_schema(self.snapshot, columns)
        return schema, stream_query(scope, query, columns)

    def latest(
        self,
        choice: SeriesChoice,
        count: int = 1,
        at_us: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Answer:
        """Return the `count` newest originals of each chosen series, with their latest edits.

        With `at_us`, only originals at or before that time count. Raise as `select` does.
        """
        self.access.require_query(Query(view=Range(Point("last_count", count))))
        return ask_newest(self.choose(choice), count, at_us, columns)

    def newest(self, series: str) -> tuple[pa.Table, SeriesIndex]:
        """Return the newest original of a series, not cached, and the index, at least of it.

        Raise as `latest` does.
        """
        self.access.require_query(Query(view=Range(Point("last_count", 1))))
        index = self.snapshot.index([series])
        columns = result_schema(self.snapshot.values).names
        return read_newest_one(self.snapshot, index, series, columns), index

    def list_series(self, choice: SeriesChoice) -> pa.Table:
        """Return the chosen series that have events, sorted by name; see `SERIES_SCHEMA`."""
        self.access.require_query(Query())
        return list_series(self.choose(choice))

    def versions(self, series: str, sequence: int) -> pa.Table:
        """Return the versions of an event; see `read_versions`."""
        self._require_past("ask for the versions of an event")
        return read_versions(self.snapshot, series, sequence)

    def at_time(self, us: int) -> "View":
        """Return the store as it was at a time; raise as `Snapshot.at_time` does."""
        self._require_past("ask for the past of the store")
        return dataclasses.replace(self, snapshot=self.snapshot.at_time(us))

    def at_commit(self, number: int) -> "View":
        """Return the store as it was right after a commit, which must have been made.

        Raises:
            InvalidQuery: there is no such commit, or events of that time may be gone.
        """
        self._require_past("ask for the past of the store")
        last_commit = self.snapshot.metadata.commit
        if not 0 <= number <= last_commit:
            accepted = (
                f"0 to {last_commit}" if last_commit >= 0 else "none, the store has no commits"
            )
            raise InvalidQuery(
                f"there is no commit {number}",
                accepted,
                "name a commit that history() shows, or a time",
            )
        return dataclasses.replace(self, snapshot=self.snapshot.at_commit(number))

    def _require_past(self, to_do: str) -> None:
        self.access.require_query(Query())
        self.access.require("query_obsolete", to_do)

    def downsample(
        self, query: Query, choice: SeriesChoice, plan: Callable[[pa.Schema], Downsampling]
    ) -> tuple[pa.Schema, Iterator[pa.Table]]:
        """Return the columns of a query by buckets, and its rows, some series at a time.

        `plan` returns what to aggregate of a store with the given value columns.

        Raises:
            PermissionDenied: the principal may not ask this.
            InvalidQuery: as `plan` and `read.downsample`.
        """
        self.access.require_query(query)
        schema = pa.schema(self.snapshot.values)
        downsampling = plan(schema)
        rows = downsample(self.choose(choice), query, downsampling)
        return result_fields(schema, downsampling), self._name_failures(rows)

    def gaps(self, query: Query, choice: SeriesChoice, longer_than_us: int) -> pa.Table:
        """Return the gaps between the originals of a `values` query; see `read.downsample`.

        Raises:
            PermissionDenied: the principal may not ask this.
            InvalidQuery: as `run_query`.
        """
        self.access.require_query(query)
        return gaps(self.choose(choice), query, longer_than_us)

    def _name_failures(self, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
        with explained_failures(self.snapshot.location):
            yield from rows


_warned: Final[set[tuple[str, str]]] = set()
"""The stores and unknown series that this process has warned of."""

_MAX_WARNED: Final = 100


def warn_of_unknown_series(
    snapshot: Snapshot,
    index: SeriesIndex,
    names: Sequence[str],
    advice: str = "series() lists the names, and prefix= and pattern= choose by their form",
) -> None:
    """Warn once of a series that a question names and the store does not have."""
    root = snapshot.location.root
    is_unknown = index.lookup(names)["last_sequence"] == NO_SEQUENCE
    for row in np.flatnonzero(is_unknown).tolist():
        place = root, names[row]
        if place not in _warned and len(_warned) < _MAX_WARNED:
            _warned.add(place)
            _LOG.warning(
                "the store '%s' has no series '%s', which a question names; next step: correct the "
                "name, unless its first event is still to come: %s",
                *place,
                advice,
            )


def known_series(index: SeriesIndex) -> list[str]:
    """Return the names of all series that have events, in the order of the index."""
    names = index.ids.names()
    rows = np.flatnonzero(index.columns["last_sequence"] != NO_SEQUENCE)
    return (
        names[: len(rows)]
        if len(rows) == index.columns.rows
        else [names[row] for row in rows.tolist()]
    )


def read_versions(snapshot: Snapshot, series: str, sequence: int) -> pa.Table:
    """Return an original and its edits, in the order of their sequences.

    Args:
        snapshot: the store.
        series: the name of the series.
        sequence: the sequence of the original or of one of its edits.

    Returns:
        The event's own metadata, the values, the original's metadata, commit and commit time, and
        `ERASED_FIELDS`.

    Raises:
        NoSuchEvent: the event is not stored.
        UnusableStore: the record of an erasure is missing or damaged.
    """
    schema = pa.schema(field.with_nullable(True) for field in file_schema(snapshot.values))
    if not MIN_NUMBER <= sequence <= MAX_NUMBER:
        raise _unknown_error(snapshot, series, sequence)
    event = _read_event(snapshot, schema, series, sequence)
    if not event.num_rows:
        raise _unknown_error(snapshot, series, sequence)
    overridden = event["original_sequence"][0].as_py()
    original = sequence if overridden is None else int(overridden)
    rows = pa.concat_tables(
        [
            _read_event(snapshot, schema, series, original, "event"),
            _read_edits(snapshot, schema, series, original),
        ]
    )
    order = np.argsort(to_int64(rows["sequence"]), kind="stable")
    return _show_erasures(snapshot, rows.take(pa.array(order)))


def _read_event(
    snapshot: Snapshot, schema: pa.Schema, series: str, sequence: int, kind: str | None = None
) -> pa.Table:
    """Return the event `sequence` of a series, if it is stored and of the kind."""
    files = [file for file in snapshot.files if kind in (None, file.kind)]
    row_filter = RowFilter([series], sequences=(sequence, sequence), commits=snapshot.commits)
    return read_rows(snapshot.location, files, schema, row_filter)


def _read_edits(snapshot: Snapshot, schema: pa.Schema, series: str, original: int) -> pa.Table:
    later = original + 1, MAX_NUMBER
    row_filter = RowFilter([series], sequences=later, commits=snapshot.commits)
    is_its_edit = pc.field("original_sequence") == original
    return read_rows(snapshot.location, snapshot.edit_files, schema, row_filter, is_its_edit)


def _show_erasures(snapshot: Snapshot, rows: pa.Table) -> pa.Table:
    """Return rows with `ERASED_FIELDS` in place of the id of the erasure."""
    ids_of_rows = rows[ERASURE_FIELD.name].to_pylist()
    missing_ids = set(ids_of_rows) - {None}
    erasure_of_id: dict[str, Erasure] = {}
    if missing_ids:
        for record in read_records(snapshot.location, snapshot.metadata.erasure):
            erasure_of_id[record.erasure.id] = record.erasure
            if missing_ids <= erasure_of_id.keys():
                break
    erasures = [erasure_of_id.get(erasure_id) for erasure_id in ids_of_rows]
    columns = [
        pa.array([erasure and erasure.principal for erasure in erasures], pa.string()),
        pa.array([erasure and erasure.time_us for erasure in erasures], pa.int64()).cast(INSTANT),
        pa.array([erasure and erasure.reason for erasure in erasures], pa.string()),
    ]
    rows = rows.select(event_schema(snapshot.values).names)
    for field, column in zip(ERASED_FIELDS, columns, strict=True):
        rows = rows.append_column(field, column)
    return rows


def _unknown_error(snapshot: Snapshot, series: str, sequence: int) -> NoSuchEvent:
    last = snapshot.index([series]).lookup_one(series)["last_sequence"]
    newest = "the series has no events" if last < 0 else f"its newest event is sequence {last}"
    reason = ", compaction has removed it" if 0 <= sequence <= last else ""
    return NoSuchEvent(
        f"series '{series}': event {sequence} is not stored{reason}; {newest}",
        "the sequence of a stored event",
        "ask for one in the result of a query",
    )


def list_series(scope: Scope) -> pa.Table:
    """Return the series that have an event, sorted by name, in the columns of `SERIES_SCHEMA`.

    The names of `scope` are sorted and distinct, and it has no range of keys.
    """
    snapshot, index = scope.snapshot, scope.index
    series = find_series(index, scope.names)
    states = index.columns.take(series.rows, STATE_DEFAULTS)
    names = pa.array(series.names, pa.string())
    edits, first_us, original_us = (states[name] for name in ("edits", "first_us", "original_us"))
    if snapshot.as_of is not None and snapshot.horizon >= 0:
        edits, first_us = _count_as_of(snapshot, names, first_us)
    unknown = first_us == NEVER_US
    return pa.Table.from_arrays(
        [
            names,
            pa.array(states["last_sequence"] + 1 - edits, mask=unknown),
            pa.array(edits, mask=unknown),
            pa.array(first_us, mask=unknown).cast(INSTANT),
            pa.array(original_us, mask=original_us == NEVER_US).cast(INSTANT),
        ],
        schema=SERIES_SCHEMA,
    )


def _count_as_of(
    snapshot: Snapshot, names: pa.Array, stored_first_us: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return number of edits and first time as of an earlier commit, from the current ones.

    Compaction may have removed rows of that time, but none of later commits. `stored_first_us` has
    the first times among the rows of that time that are left.
    """
    assert snapshot.as_of is not None
    now = snapshot.newest_index(names.to_pylist()).lookup(names.to_pylist())
    later = RowFilter(commits=(snapshot.as_of + 1, MAX_NUMBER))

    def read_later(kind: str) -> tuple[Int64Array, Int64Array]:
        every = [*snapshot.files, *snapshot.later_files]
        files = [file for file in every if (file.kind == "edit") == (kind == "edit")]
        columns = ("series", "timestamp", "commit")
        rows = read_rows(snapshot.location, files, base_fields(columns), later)
        codes = to_int64(pc.index_in(rows["series"].cast(pa.string()), names).fill_null(-1))
        return codes[codes >= 0], to_int64(rows["timestamp"])[codes >= 0]

    codes, _ = read_later("edit")
    edits = now["edits"] - np.bincount(codes, minlength=len(names))
    first_us = now["first_us"].copy()
    if snapshot.has_erasures:
        # A later original is older than all before it only behind an erased one (18.8).
        codes, us = read_later("event")
        later_us = np.full(len(names), MAX_NUMBER)
        np.minimum.at(later_us, codes, us)
        is_later = (later_us <= first_us) & (stored_first_us != NEVER_US)
        first_us[is_later] = stored_first_us[is_later]
    return edits, first_us
