"""Results of the client: metadata, events, results of queries, receipts."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.instants import FINAL_US, MIN_US, format_instant
from pyspark_tseries.client.chart import render_html, shown_times
from pyspark_tseries.client.data_frames import to_pandas, to_polars
from pyspark_tseries.errors import IncompatibleValue, InvalidQuery
from pyspark_tseries.model.arrays import is_same, to_int64
from pyspark_tseries.model.columns import EDIT_TIME, EVENT_FIELDS, INSTANT, ORIGINAL_FIELDS
from pyspark_tseries.write.numbering import NumberedRows

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = [
    "RECEIPT_SCHEMA",
    "Event",
    "EventMetadata",
    "QueryResult",
    "build_receipt",
    "format_events",
    "format_span",
]

RECEIPT_SCHEMA: Final = pa.schema([field.with_nullable(True) for field in EVENT_FIELDS])
"""The columns that a writer of many rows gets back."""

_METADATA = [field.name for field in (*EVENT_FIELDS[1:], *ORIGINAL_FIELDS, EDIT_TIME)]


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """The metadata of an event; `timestamp` is in UTC."""

    sequence: int
    timestamp: datetime
    author: str


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An event.

    Attributes:
        sequence: in its series.
        timestamp: in UTC; of a `values` query that of the original, also where it was edited.
        author: who wrote it.
        value: of the one value column; name -> value where the store has several.
        original: the event that it overrides; None for an original.
        edit_timestamp: when the edit was made; None for an original.
    """

    sequence: int
    timestamp: datetime
    author: str
    value: Any
    original: EventMetadata | None = None
    edit_timestamp: datetime | None = None

    def __eq__(self, other: object) -> bool:
        """True if all is equal; a NaN is equal to a NaN, as the same value of the same event."""
        if not isinstance(other, Event):
            return NotImplemented
        same = self._key() == other._key() and self.edit_timestamp == other.edit_timestamp
        return same and is_same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.sequence, self.timestamp, self.author, self.original

    @property
    def is_edit(self) -> bool:
        """True if it overrides another event."""
        return self.original is not None

    @property
    def original_sequence(self) -> int:
        """The sequence that an edit of this event names: its original's, or its own."""
        return self.sequence if self.original is None else self.original.sequence


@dataclass(frozen=True, eq=False)
class QueryResult:
    """The result of a range query on one series.

    Attributes:
        table: the events, with the columns of a read through Spark, or those asked for.
        selected_count: the number of events that the query found, before its limit.
        kind: of the query: `values`, `allEdits` or `latestEdits`.
    """

    table: pa.Table
    selected_count: int
    kind: str = "values"

    @property
    def is_complete(self) -> bool:
        """True if the limit left nothing out."""
        return self.selected_count == len(self)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The events, in the order of the query.

        Raises:
            IncompatibleValue: a column has a time that no Python datetime or date can hold.
            InvalidQuery: the query left out some of their metadata.
        """
        self._need(_METADATA, "events")
        fixed = {field.name for field in (*EVENT_FIELDS, *ORIGINAL_FIELDS, EDIT_TIME)}
        names = self.table.column_names
        values = [name for name in names if name not in fixed]
        cells = [_read_values(self.table, name) for name in names]
        rows = zip(*cells, strict=True)
        return tuple(_build_event(dict(zip(names, row, strict=True)), values) for row in rows)

    def to_arrow(self) -> pa.Table:
        """The events as a table: metadata, values, original's metadata, and `edit_timestamp`.

        In a `values` query `timestamp` is the original's, so times are in order.
        """
        return self.table

    def to_pandas(self) -> "pandas.DataFrame":
        """The events as a pandas frame that keeps every value.

        Times are `datetime64[us, UTC]`. Integers are pandas' nullable ones and Booleans
        `boolean`, with or without nulls, so that a null makes no integer a float; lists, maps and
        structs are Arrow's. A null float is NaN.
        """
        return to_pandas(self.table)

    def to_polars(self) -> "polars.DataFrame":
        """The events as a Polars frame; times are `Datetime('us', 'UTC')`, nulls stay null.

        Raises:
            ModuleNotFoundError: Polars is not installed; says how to install it.
        """
        return to_polars(self.table)

    def merge(self, other: "QueryResult") -> "QueryResult":
        """This result brought up to date by `other`, a later one of the same series.

        An event of `other` replaces one of the same sequence; of an original and its edits the
        highest sequence stays, in the original's place and at its time. The result is complete.

        Raises:
            InvalidQuery: the results are of different series, or lack the columns that say so.
        """
        for result in (self, other):
            result._need(["series", "sequence", "original_sequence"], "merge")
        names = {
            name for result in (self, other) for name in result.table["series"].unique().to_pylist()
        }
        if len(names) > 1:
            shown = ", ".join(sorted(f"'{name}'" for name in names))
            raise InvalidQuery(
                f"the results are of different series, {shown}",
                "results of one series",
                "merge those of each series by themselves",
            )
        tables = [_show_originals(result) for result in (other, self)]
        both = pa.concat_tables(tables, promote_options="default")
        sequence = to_int64(both["sequence"])
        _, first = np.unique(sequence, return_index=True)
        original = to_int64(pc.coalesce(both["original_sequence"], both["sequence"]))[first]
        _, from_end = np.unique(original[::-1], return_index=True)
        rows = first[len(first) - 1 - from_end]
        return QueryResult(both.take(pa.array(rows)), len(rows))

    def __eq__(self, other: object) -> bool:
        """True if kind, columns, events and counts are equal; a NaN is equal to a NaN."""
        if not isinstance(other, QueryResult):
            return NotImplemented
        counts = (self.kind, self.selected_count) == (other.kind, other.selected_count)
        if not counts or self.table.schema != other.table.schema:
            return False
        return all(map(_is_same_column, self.table.columns, other.table.columns))

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        names = self.table.column_names
        parts = []
        if "series" in names and len(self):
            parts.append(f"'{self.table['series'][0].as_py()}'")
        more = self.selected_count - len(self)
        parts.append(format_events(len(self)) + (f", {more} more beyond the limit" if more else ""))
        if "timestamp" in names and len(self):
            us = to_int64(shown_times(self.table))
            parts.append(format_span(int(us.min()), int(us.max())))
        return f"QueryResult({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return render_html(self.table, self.selected_count)

    def _need(self, columns: Sequence[str], what: str) -> None:
        lacking = [name for name in columns if name not in self.table.column_names]
        if lacking:
            raise InvalidQuery(
                f"{what} needs the columns {', '.join(lacking)}, which the query left out",
                "a result with them",
                "name them in columns(), or use to_arrow(), to_pandas() or to_polars()",
            )


def _is_same_column(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if one.equals(other):
        return True
    # Arrow finds no NaN equal to another; these columns may have some.
    has_floats = any(name in str(one.type) for name in ("float", "double"))
    return has_floats and len(one) == len(other) and is_same(one.to_pylist(), other.to_pylist())


def _show_originals(result: QueryResult) -> pa.Table:
    """The table of a result, with times as a `values` query shows them."""
    table = result.table
    if result.kind == "values" or "timestamp" not in table.column_names:
        return table
    result._need(["original_timestamp"], "merge")
    place = table.column_names.index("timestamp")
    return table.set_column(place, EVENT_FIELDS[2], shown_times(table))


def format_events(count: int) -> str:
    """A number of events, for people."""
    return f"{count:,} event" + ("" if count == 1 else "s")


def format_span(first_us: int, last_us: int) -> str:
    """The time from `first_us` to `last_us`, both inclusive, for people."""
    ends = (format_instant(min(max(us, MIN_US), FINAL_US)) for us in (first_us, last_us))
    return " to ".join(dict.fromkeys(ends))


def _read_values(table: pa.Table, name: str) -> list[Any]:
    """The values of a column as Python objects.

    Raises:
        IncompatibleValue: a time is outside the years 1 to 9999.
    """
    try:
        values: list[Any] = table[name].to_pylist()
    except OverflowError:
        raise IncompatibleValue(
            f"column '{name}' ({table[name].type}) holds a time that Python cannot represent",
            "the years 1 to 9999",
            "take the result with to_arrow(), or cast the column before it is appended",
        ) from None
    return values


def _build_event(row: Mapping[str, Any], values: list[str]) -> Event:
    original = None
    if row["original_sequence"] is not None:
        original = EventMetadata(*(row[field.name] for field in ORIGINAL_FIELDS))
    value = row[values[0]] if len(values) == 1 else {name: row[name] for name in values}
    edited = row[EDIT_TIME.name]
    return Event(row["sequence"], row["timestamp"], row["author"], value, original, edited)


def build_receipt(rows: pa.Table, numbered: Sequence[NumberedRows], author: str) -> pa.Table:
    """The metadata of each row of a batch, in the order of the batch; nulls for a dropped row.

    Args:
        rows: columns of `RowPlan.staged`.
        numbered: the numbered appends, and the numbered edits if there are any.
        author: of the rows without one.
    """
    edit = rows["original_sequence"].is_valid().to_numpy()
    sequence = np.zeros(len(rows), np.int64)
    stamp, there = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    # A part's events are in terms of its own rows: the appends, or the edits.
    kinds = [np.flatnonzero(~edit), np.flatnonzero(edit)] if edit.any() else [np.arange(len(rows))]
    for mine, events in zip(kinds, numbered, strict=True):
        at = mine[events.order]
        sequence[at], stamp[at], there[at] = events.sequence, events.timestamp_us, True
    columns = [
        rows["series"],
        pa.array(sequence, mask=~there),
        pa.array(stamp, mask=~there).cast(INSTANT),
        rows["author"].fill_null(author),
    ]
    return pa.Table.from_arrays(columns, schema=RECEIPT_SCHEMA)
