"""What the client gives back: metadata, events, results of queries."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.client.chart import page
from pyspark_tseries.errors import IncompatibleValue, InvalidQuery
from pyspark_tseries.model.columns import EVENT, ORIGINAL
from pyspark_tseries.model.series_state import longs

__all__ = ["Event", "EventMetadata", "QueryResult"]


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """What an event is besides its value; `timestamp` is in UTC."""

    sequence: int
    timestamp: datetime
    author: str


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Attributes:
        sequence: in its series.
        timestamp: in UTC.
        author: who wrote it.
        value: of the one value column; name -> value where the store has several.
        original: what it overrides; None where it is no edit.
    """

    sequence: int
    timestamp: datetime
    author: str
    value: Any
    original: EventMetadata | None = None

    @property
    def is_edit(self) -> bool:
        """Whether it overrides another event."""
        return self.original is not None

    @property
    def original_sequence(self) -> int:
        """The sequence that an edit of this event names: its original's, or its own."""
        return self.sequence if self.original is None else self.original.sequence


@dataclass(frozen=True)
class QueryResult:
    """The result of a range query on one series.

    Attributes:
        table: the events, with the columns of a read through Spark.
        selected_count: the number of events that the query found, before its limit.
    """

    table: pa.Table
    selected_count: int

    @property
    def is_complete(self) -> bool:
        """Whether the limit left nothing out."""
        return self.selected_count == len(self)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The events, in the order of the query.

        Raises:
            IncompatibleValue: a column holds a time that Python has no datetime or date for.
        """
        fixed = {field.name for field in (*EVENT, *ORIGINAL)}
        names = self.table.column_names
        values = [name for name in names if name not in fixed]
        cells = [_cells(self.table, name) for name in names]
        rows = zip(*cells, strict=True)
        return tuple(_event(dict(zip(names, row, strict=True)), values) for row in rows)

    def to_arrow(self) -> pa.Table:
        """The events as a table: metadata, values, original's metadata."""
        return self.table

    def merge(self, other: "QueryResult") -> "QueryResult":
        """This result brought up to date by `other`, a later one of the same series.

        An event of `other` replaces one of the same sequence; of an original and its edits the
        highest sequence stays, in the original's place. The result is complete.

        Raises:
            InvalidQuery: the results are of different series.
        """
        names = {
            name for result in (self, other) for name in result.table["series"].unique().to_pylist()
        }
        if len(names) > 1:
            shown = ", ".join(sorted(f"'{name}'" for name in names))
            raise InvalidQuery(
                f"the results are of different series, {shown}; accepted: results of one series; "
                "next step: merge those of each series by themselves"
            )
        both = pa.concat_tables([other.table, self.table], promote_options="default")
        sequence = longs(both["sequence"])
        _, first = np.unique(sequence, return_index=True)
        original = longs(pc.coalesce(both["original_sequence"], both["sequence"]))[first]
        _, from_end = np.unique(original[::-1], return_index=True)
        rows = first[len(first) - 1 - from_end]
        return QueryResult(both.take(pa.array(rows)), len(rows))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def _repr_html_(self) -> str:
        return page(self.table, self.selected_count)


def _cells(table: pa.Table, name: str) -> list[Any]:
    """A column's values as Python has them.

    Raises:
        IncompatibleValue: a time is outside the years 1 to 9999.
    """
    try:
        values: list[Any] = table[name].to_pylist()
    except OverflowError:
        raise IncompatibleValue(
            f"column '{name}' ({table[name].type}) holds a time that Python has no value for; "
            "accepted: the years 1 to 9999; next step: take the result with to_arrow(), or cast "
            "the column before it is appended"
        ) from None
    return values


def _event(row: Mapping[str, Any], values: list[str]) -> Event:
    original = None
    if row["original_sequence"] is not None:
        original = EventMetadata(*(row[field.name] for field in ORIGINAL))
    value = row[values[0]] if len(values) == 1 else {name: row[name] for name in values}
    return Event(row["sequence"], row["timestamp"], row["author"], value, original)
