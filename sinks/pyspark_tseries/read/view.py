"""Ask one commit of a store: every question is asked of such a view (semantics 31).

A view never changes, so all that is asked of it belongs together. The client, rollups and followers
open views; what they ask are pure functions of the snapshot, its index and the chosen series.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_timestream.errors import wrap_methods
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.arrays import NO_SEQUENCE
from pyspark_tseries.model.columns import result_schema
from pyspark_tseries.model.downsampling import Downsampling, result_fields
from pyspark_tseries.model.policy import AccessCheck
from pyspark_tseries.model.ranges import Point, Query, Range
from pyspark_tseries.model.series_choice import SeriesChoice
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.read.downsample import check_values, downsample, gaps
from pyspark_tseries.read.newest import asked_count, read_newest_one
from pyspark_tseries.read.newest_table import ask_newest
from pyspark_tseries.read.scan import Answer, run_query
from pyspark_tseries.read.series_list import list_series
from pyspark_tseries.read.stream import stream_query, stream_schema
from pyspark_tseries.read.versions import read_versions
from pyspark_tseries.storage.failures import explain_failure, named_failures
from pyspark_tseries.storage.snapshot import Snapshot


@dataclass(frozen=True)
@wrap_methods(lambda view, error: explain_failure(view.snapshot.location, error))
class View:
    """One commit of a store, and who asks.

    Attributes:
        snapshot: the store as of the commit.
        principal: whose rights count where the store has a policy.
    """

    snapshot: Snapshot
    principal: str

    @property
    def access(self) -> AccessCheck:
        """What the principal may do."""
        return AccessCheck(self.snapshot.settings.policy, self.principal)

    def choose(self, choice: SeriesChoice) -> tuple[SeriesIndex, list[str] | None]:
        """Return the index, at least of the chosen series, and their names; None for all.

        Series that were chosen by name may be unknown. Names are sorted and distinct.
        """
        if choice.names is not None:
            return self.snapshot.index(choice.names), list(choice.names)
        index = self.snapshot.index()
        return index, None if choice.is_all else choice.pick(known_series(index))

    def select(
        self, query: Query, choice: SeriesChoice, columns: Sequence[str] | None = None
    ) -> Answer:
        """Run `query` on the chosen series, in the order of their names; see `run_query`.

        Raises:
            PermissionDenied: the principal may not ask this.
            InvalidQuery: as `run_query`.
        """
        self.access.require_query(query)
        index, names = self.choose(choice)
        if (count := asked_count(query)) is not None:
            return ask_newest(self.snapshot, index, names, count, columns=columns)
        return run_query(self.snapshot, index, query, names, columns=columns)

    def stream(
        self, query: Query, choice: SeriesChoice, columns: Sequence[str] | None = None
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema of what `select` returns, and its rows in batches, read as they go.

        Raise what `select` raises, now or with the batches.
        """
        self.access.require_query(query)
        index, names = self.choose(choice)
        schema = stream_schema(self.snapshot, columns)
        return schema, stream_query(self.snapshot, index, query, names, columns)

    def latest(
        self,
        choice: SeriesChoice,
        count: int = 1,
        at_us: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Answer:
        """Return the `count` newest originals of each chosen series, with their latest edits.

        With `at_us` only originals at or before that time are asked for. Raise as `select` does.
        """
        self.access.require_query(Query(view=Range(Point("last_count", count))))
        index, names = self.choose(choice)
        return ask_newest(self.snapshot, index, names, count, at_us, columns)

    def newest(self, series: str) -> tuple[pa.Table, SeriesIndex]:
        """Return what `latest` has of a series, without keeping it, and the index, at least of it.

        Raise as `latest` does.
        """
        self.access.require_query(Query(view=Range(Point("last_count", 1))))
        index, columns = self.snapshot.index([series]), result_schema(self.snapshot.values).names
        return read_newest_one(self.snapshot, index, series, columns), index

    def list_series(self, choice: SeriesChoice) -> pa.Table:
        """Return the chosen series that have events, sorted by name; see `SERIES_SCHEMA`."""
        self.access.require_query(Query())
        return list_series(self.snapshot, *self.choose(choice))

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
        last = self.snapshot.metadata.commit
        if not 0 <= number <= last:
            accepted = f"0 to {last}" if last >= 0 else "none, the store has no commits"
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
        check_values(query, "buckets")
        self.access.require_query(query)
        schema = pa.schema(self.snapshot.values)
        wanted = plan(schema)
        index, names = self.choose(choice)
        rows = downsample(self.snapshot, index, query, wanted, names)
        return result_fields(schema, wanted), self._name_failures(rows)

    def gaps(self, query: Query, choice: SeriesChoice, longer_than_us: int) -> pa.Table:
        """Return the gaps between the originals of a `values` query; see `read.downsample`.

        Raises:
            PermissionDenied: the principal may not ask this.
            InvalidQuery: as `run_query`.
        """
        check_values(query, "gaps")
        self.access.require_query(query)
        index, names = self.choose(choice)
        return gaps(self.snapshot, index, query, longer_than_us, names)

    def _name_failures(self, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
        with named_failures(self.snapshot.location):
            yield from rows


def known_series(index: SeriesIndex) -> list[str]:
    """Return the names of all series that have events, in the order of the index."""
    names = index.ids.names()
    known = np.flatnonzero(index.columns["last_sequence"] != NO_SEQUENCE)
    return (
        names[: len(known)]
        if len(known) == index.columns.rows
        else [names[row] for row in known.tolist()]
    )
