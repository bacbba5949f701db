"""`Questions`: what one can ask of a store, of its last commit or of an earlier one."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_timestream.core.instants import datetime_to_us
from pyspark_timestream.errors import show_value
from pyspark_tseries.client import sql
from pyspark_tseries.client.range_query import RangeQuery
from pyspark_tseries.client.results import QueryResult
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.ranges import to_whole
from pyspark_tseries.model.series_choice import parse_choice, parse_name
from pyspark_tseries.read.view import View

if TYPE_CHECKING:
    import duckdb


class Questions(ABC):
    """The queries of an open store; each is answered from one commit."""

    @abstractmethod
    def _view(self) -> View:
        """Return the commit that a question asked now is about."""

    def range_query(self) -> RangeQuery:
        """Begin a query for all values; its methods narrow it step by step."""
        return RangeQuery(open_view=self._view)

    def latest(
        self,
        series: str | Iterable[str] | None = None,
        count: int = 1,
        at: datetime | None = None,
        *,
        prefix: str | None = None,
        pattern: str | None = None,
        columns: Iterable[str] | None = None,
    ) -> QueryResult:
        """Return the newest events of series: originals in the retained range, edits merged in.

        A series without such an event has no row. An erased event has null values. The process
        keeps the events in memory (512 MB at most, of all stores), and the next question for these
        series reads later commits alone.

        Args:
            series: the name of a series, or of several; None: all that `prefix` or `pattern` picks.
            count: how many events of each series, at least 1.
            at: an aware datetime; only events at or before it count. None: all.
            prefix: how the names of the series begin.
            pattern: what they look like: `*` is any text, `?` one letter, `[...]` one of some.
            columns: the columns of the result, in their order; None: all.

        Raises:
            InvalidQuery: the store lacks one of `columns`, `count` is below 1, `at` has no zone, or
                series are chosen in two ways.
            PermissionDenied: the author may not read.
        """
        choice = parse_choice(series, prefix, pattern)
        number = to_whole(count)
        if number < 1:
            raise InvalidQuery(f"count {number} is below 1", "1 or more", "correct it")
        at_us = None if at is None else datetime_to_us(at, InvalidQuery, "at")
        names = () if columns is None else columns
        is_one = isinstance(names, str) or not isinstance(names, Iterable)
        wanted = RangeQuery().columns(*([names] if is_one else names)).wanted
        answer = self._view().latest(choice, number, at_us, wanted)
        return QueryResult(answer.table, answer.selected)

    def series(self, *, prefix: str | None = None, pattern: str | None = None) -> pa.Table:
        """List the series that have events, sorted by name, without reading a file of events.

        Args:
            prefix: how the names of the series begin.
            pattern: what they look like: `*` is any text, `?` one letter, `[...]` one of some.

        Returns:
            A row for each series: `series`, its name; `events` and `edits`, how many originals and
            edits it ever got; `first`, the earliest timestamp of these originals; `newest`, that of
            the newest one that is not erased, null if all are. Times are in UTC.

        Raises:
            InvalidQuery: both `prefix` and `pattern` are given, or one is no text.
            PermissionDenied: the author may not read.
        """
        return self._view().list_series(parse_choice(None, prefix, pattern))

    def as_of(self, moment: datetime | int) -> "StoreAsOf":
        """Return the store as it was, to be asked the same questions.

        Args:
            moment: an aware datetime: the store at that time; or the number of a commit: the store
                right after it.

        Raises:
            InvalidQuery: events that were visible then may be gone, the commit was never made, or
                the datetime has no time zone.
            PermissionDenied: the author may not ask for the past (`query_obsolete`).
        """
        if isinstance(moment, datetime):
            return StoreAsOf(self._view().at_time(datetime_to_us(moment, InvalidQuery)))
        try:
            number = to_whole(moment)
        except InvalidQuery:
            raise InvalidQuery(
                f"{show_value(moment)} is neither a time nor the number of a commit",
                "an aware datetime, or an int",
                "convert it",
            ) from None
        return StoreAsOf(self._view().at_commit(number))

    def history(self, series: str, sequence: int) -> pa.Table:
        """Return an original and all its edits that are still stored, in the order of sequences.

        Args:
            series: the name of the series.
            sequence: the sequence of the original, or of one of its edits.

        Returns:
            A row for each: `series`, `sequence`, `timestamp`, `author`, the values,
            `original_sequence`, `original_timestamp` and `original_author`, `commit` and
            `commit_time`; and of an erased one, whose values are null, `erased_by`, `erased_at` and
            `erased_because`. Times are in UTC.

        Raises:
            NoSuchEvent: the event is not stored: it never was, or compaction has removed it.
            InvalidQuery: the series is no text, or the sequence no whole number.
            PermissionDenied: the author may not ask for the past (`query_obsolete`).
        """
        return self._view().versions(parse_name(series), to_whole(sequence))

    def sql(self, statement: str, parameters: Any = None) -> "duckdb.DuckDBPyRelation":
        """Query in SQL through DuckDB, which reads the store's files; the views are of one commit.

        `events` has the current values of all series, as a query for values shows them;
        `all_events` every stored event as it was written, also outside the retained range; `series`
        a row for each series, as `series()`. `events` and `all_events` have no order. Columns,
        files and row groups that the statement does not need are not read.

        Args:
            statement: one read-only statement, such as SELECT, FROM, SUMMARIZE, EXPLAIN or,
                with DuckDB 2, PIVOT. Times are shown in UTC. It may name frames and tables of
                Arrow in variables of the caller.
            parameters: a sequence for `?` or `$1`, or a mapping for `$name`.

        Returns:
            A relation of DuckDB, with `to_arrow_table()`, `df()`, `pl()` and `fetchall()`. DuckDB
            runs it when its rows are asked for; it keeps showing its commit. The relations of a
            thread share a connection, so read one stream of rows to its end before the next.

        Raises:
            ModuleNotFoundError: DuckDB is not installed.
            InvalidQuery: the statement does more than read.
            PermissionDenied: the author may not ask this.
            duckdb.Error: DuckDB refuses the statement, or cannot run it.
        """
        return sql.ask(self._view(), statement, parameters)

    def connect(self) -> "duckdb.DuckDBPyConnection":
        """Return a DuckDB in memory with the views of `sql`, for a person's own work.

        It shows the commit of its opening until `refresh`. The views can only be read; own tables,
        views, settings and files are the caller's. Threads take a `cursor()` each; of a store in an
        object store, `refresh` gives the cursor the views.

        Raises:
            ModuleNotFoundError: DuckDB is not installed.
            PermissionDenied: the author may not read the store.
        """
        return sql.connect(self._view())

    def refresh(self, connection: "duckdb.DuckDBPyConnection") -> None:
        """Let the views of a connection of `connect`, or of any other DuckDB, show the last commit.

        Relations of the connection that have not run yet show it, too.

        Raises:
            PermissionDenied: the author may not read the store.
            duckdb.Error: the connection is closed, is in a transaction, or has tables with the
                names of the views.
        """
        sql.show(connection, self._view())


@dataclasses.dataclass(frozen=True)
class StoreAsOf(Questions):
    """A store as it was at a time or after a commit; it never changes."""

    _past: View

    @property
    def commit(self) -> int:
        """The number of the last commit that counts; -1 if there was none yet."""
        return self._past.snapshot.metadata.commit

    def _view(self) -> View:
        return self._past

    def __repr__(self) -> str:
        return f"StoreAsOf('{self._past.snapshot.root}', commit {self.commit})"
