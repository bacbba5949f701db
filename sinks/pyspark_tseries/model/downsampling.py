"""Declare a query by buckets: its buckets, aggregates, group and fill (semantics 32).

All of it is checked against a store's value columns before any event is read, and decides the
columns of the result.

A rollup keeps such buckets as a store (semantics 36): its settings are a property of its table. A
*change* is a new original in a bucket that the rollup has, an edit, or an erasure; if a bucket has
several changes, the last one counts.
"""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import MAX_DIGITS
from pyspark_timestream.core.instants import format_duration, format_instant
from pyspark_timestream.errors import show_value
from pyspark_tseries.errors import InvalidQuery, UnusableStore
from pyspark_tseries.model.arrays import (
    BoolArray,
    Int64Array,
    encode_values,
    find_number_runs,
    is_same,
    list_values,
    to_int64,
)
from pyspark_tseries.model.buckets import Buckets
from pyspark_tseries.model.columns import INSTANT, RESERVED_NAMES

FUNCTIONS: Final = (
    *("mean", "min", "max", "sum", "count", "first", "last", "median", "time_weighted_mean"),
)
"""The aggregates; a number from 0 to 1 stands for a quantile."""

ALL_EVENTS: Final = "*"
"""The column of a `count` of events."""

FILLS: Final = ("null", "previous", "linear")

_ANY_TYPE: Final = ("count", "first", "last")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A column of the result.

    Attributes:
        name: its name.
        column: the aggregated value column; `*` for `count` of all events.
        function: one of `FUNCTIONS`, or `quantile`.
        quantile: from 0 to 1, both inclusive; None for other functions.
    """

    name: str
    column: str
    function: str
    quantile: float | None = None


@dataclass(frozen=True, slots=True)
class Downsampling:
    """The parameters of a query by buckets.

    Attributes:
        buckets: the buckets.
        aggregates: the result's columns after group and `timestamp`.
        group: the column to group by, `series` or a value column; None: all events are one group.
        fill: one of `FILLS`, or a value; None if only buckets with events have rows.
        is_filled: True if missing buckets get rows.
    """

    buckets: Buckets
    aggregates: tuple[Aggregate, ...]
    group: str | None = "series"
    fill: Any = None
    is_filled: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns of events that the aggregation reads."""
        groups = [] if self.group is None else [self.group]
        return list(dict.fromkeys(["series", "timestamp", *groups, *self.value_columns]))

    @property
    def value_columns(self) -> list[str]:
        """The value columns that are aggregated."""
        columns = [a.column for a in self.aggregates if a.column != ALL_EVENTS]
        return list(dict.fromkeys(columns))


def plan_downsampling(
    schema: pa.Schema,
    buckets: Buckets,
    requested: Mapping[str, Any],
    group: str | None = "series",
    *,
    fill: Any,
    is_filled: bool,
) -> Downsampling:
    """Return a query by buckets of a store with the value columns `schema`, checked.

    Raises:
        InvalidQuery: a column is unknown, or does not have its aggregate.
    """
    aggregates = parse_aggregates(schema, dict(requested))
    if group is not None and group != "series":
        _check_tag(schema, group, aggregates)
    if is_filled:
        parse_fill(fill, schema, aggregates)
    return Downsampling(buckets, aggregates, group, fill, is_filled)


def _check_tag(schema: pa.Schema, tag: str, aggregates: Sequence[Aggregate]) -> None:
    tags = [field.name for field in schema if not pa.types.is_nested(field.type)]
    if tag not in tags:
        raise InvalidQuery(
            f"{show_value(tag)} is not a value column to group by",
            ", ".join(tags) or "none: no value column has single values",
            "name one of these, or none for all series together; without by() each has its rows",
        )
    if any(aggregate.name == tag for aggregate in aggregates):
        raise InvalidQuery(
            f"the result has a column '{tag}' anyway, that of by('{tag}')",
            "another name",
            "rename the aggregate",
        )


def parse_aggregates(schema: pa.Schema, requested: dict[str, Any]) -> tuple[Aggregate, ...]:
    """Return the aggregates `name=function` and `name=(column, function)` of a store's columns.

    Raises:
        InvalidQuery: an unknown column or function, or one that the column's type does not have.
    """
    if not requested:
        raise InvalidQuery(
            "no aggregate is named",
            "such as celsius='mean', or n=('*', 'count')",
            "name the columns of the result",
        )
    return tuple(_parse_aggregate(schema, name, function) for name, function in requested.items())


def _parse_aggregate(schema: pa.Schema, name: str, requested: Any) -> Aggregate:
    column, function = (
        requested if isinstance(requested, tuple) and len(requested) == 2 else (name, requested)
    )
    quantile = None
    if isinstance(function, float | int) and not isinstance(function, bool):
        if not 0 <= function <= 1:
            raise InvalidQuery(
                f"{name}: {function!r} is not a quantile", "from 0 to 1", "correct it"
            )
        function, quantile = "quantile", float(function)
    elif not isinstance(function, str) or function not in FUNCTIONS:
        raise InvalidQuery(
            f"{name}: {show_value(function)} is not an aggregate",
            f"{', '.join(map(repr, FUNCTIONS))}, or a quantile from 0 to 1",
            "name one of these",
        )
    if name in RESERVED_NAMES:
        raise InvalidQuery(f"a column of events is called '{name}'", "another name", "rename it")
    if column == ALL_EVENTS and function == "count":
        return Aggregate(name, column, function)
    if column == ALL_EVENTS or column not in schema.names:
        # A column may be named '*', but here that means all events.
        raise InvalidQuery(
            f"{name}: the store has no value column {column!r}",
            ", ".join(schema.names) or "events without values",
            f"write {name}=('COLUMN', {function!r}), or ('*', 'count') for the number of events",
        )
    data_type = schema.field(column).type
    if not _has_function(data_type, function):
        raise InvalidQuery(
            f"{name}: column '{column}' ({data_type}) has no {function}",
            ", ".join(f for f in FUNCTIONS if _has_function(data_type, f)),
            "take one of these, or another column",
        )
    return Aggregate(name, column, function, quantile)


def _has_function(data_type: pa.DataType, function: str) -> bool:
    if function in _ANY_TYPE:
        return True
    if function in ("min", "max"):
        return not pa.types.is_nested(data_type)
    return is_number(data_type) or pa.types.is_decimal(data_type)


def is_number(data_type: pa.DataType) -> bool:
    """Return whether a type is of integers or floats."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type))


def parse_fill(fill: Any, schema: pa.Schema, aggregates: Sequence[Aggregate]) -> None:
    """Check a fill against the result's columns.

    Raises:
        InvalidQuery: a column has no values on a line, or cannot hold the value.
    """
    word = fill if isinstance(fill, str) and fill in FILLS else None
    for aggregate in aggregates:
        if aggregate.function == "count":
            continue
        data_type = result_type(schema, aggregate)
        if word == "linear" and not is_number(data_type):
            raise InvalidQuery(
                f"column '{aggregate.name}' ({data_type}) has no values on a line",
                "'null', 'previous', or a value",
                "take another fill, or aggregate only numbers",
            )
        if word is None and not _can_hold(data_type, fill):
            words = [name for name in FILLS if name != "linear" or is_number(data_type)]
            raise InvalidQuery(
                f"column '{aggregate.name}' ({data_type}) cannot hold the fill {show_value(fill)}",
                f"{', '.join(map(repr, words))}, or a value of its type",
                "correct it",
            )


def _can_hold(data_type: pa.DataType, fill: Any) -> bool:
    # Arrow makes 1.0 of True, and [120] of b"x".
    if isinstance(fill, bool) and not pa.types.is_boolean(data_type):
        return False
    if isinstance(fill, bytes | bytearray) and pa.types.is_nested(data_type):
        return False
    try:
        held = pa.array([fill], data_type)[0].as_py()
        # Arrow makes 1 of 1.5. A float takes the nearest value, as it does everywhere.
        return bool(
            pa.types.is_nested(data_type) or pa.types.is_floating(data_type) or held == fill
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False


def result_type(schema: pa.Schema, aggregate: Aggregate) -> pa.DataType:
    """Return the type of an aggregate's column."""
    if aggregate.function == "count":
        return pa.int64()
    data_type = schema.field(aggregate.column).type
    if aggregate.function in ("first", "last", "min", "max"):
        return data_type
    if aggregate.function == "sum":
        if pa.types.is_decimal(data_type):
            return pa.decimal128(MAX_DIGITS, data_type.scale)
        return pa.int64() if pa.types.is_integer(data_type) else pa.float64()
    return pa.float64()


def result_fields(schema: pa.Schema, downsampling: Downsampling) -> pa.Schema:
    """Return the columns of the result: the group if any, `timestamp`, and the aggregates."""
    groups = [] if downsampling.group is None else [downsampling.group]
    with_series = schema.insert(0, pa.field("series", pa.string()))
    fields = [
        pa.field(a.name, result_type(schema, a), metadata=_unit_of(schema, a))
        for a in downsampling.aggregates
    ]
    return pa.schema([*map(with_series.field, groups), pa.field("timestamp", INSTANT), *fields])


def _unit_of(schema: pa.Schema, aggregate: Aggregate) -> dict[bytes, bytes] | None:
    """Return the unit of an aggregate: its column's, or none for a count."""
    return None if aggregate.function == "count" else schema.field(aggregate.column).metadata


def find_bands(aggregates: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return, by aggregate, the minimum and the maximum of its column, if the query has them.

    >>> find_bands({"a": "mean", "low": ("a", "min"), "high": ("a", "max"), "n": ("a", "count")})
    {'a': ('low', 'high')}
    """
    columns = {
        name: requested if isinstance(requested, tuple) else (name, requested)
        for name, requested in aggregates.items()
    }
    bands = {}
    for column in dict.fromkeys(column for column, _ in columns.values()):
        functions = {name: function for name, (of, function) in columns.items() if of == column}
        low, high = (
            next((name for name, function in functions.items() if function == edge), None)
            for edge in ("min", "max")
        )
        between = [
            name
            for name, function in functions.items()
            if function not in ("min", "max", "sum", "count")
        ]
        if low is not None and high is not None and between:
            bands[between[0]] = low, high
    return bands


_AGGREGATE: Final = re.compile(
    r"(?:(?P<name>[^=\s]+)\s*=\s*)?(?:(?P<column>\S+)\s+)?(?P<function>\S+)"
)


def parse_aggregate_list(value: str) -> tuple[tuple[str, str, str | float], ...]:
    """Return name, column and function of each aggregate of a text.

    Raises:
        ValueError: a part is not an aggregate, or two have one name.

    >>> parse_aggregate_list("celsius mean, hottest = celsius 0.95, n = count")
    (('celsius', 'celsius', 'mean'), ('hottest', 'celsius', 0.95), ('n', '*', 'count'))
    """
    parsed = [_parse_part(text.strip()) for text in value.split(",")]
    names = [name for name, _, _ in parsed]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"two aggregates have the name '{name}': name one as in 'hottest = celsius max'"
            )
    return tuple(parsed)


def _parse_part(text: str) -> tuple[str, str, str | float]:
    match = _AGGREGATE.fullmatch(text)
    column = None if match is None else match["column"]
    if match is None or (column is None and match["function"].lower() != "count"):
        raise ValueError(f"'{text}' is not 'COLUMN FUNCTION', 'NAME = COLUMN FUNCTION' or 'count'")
    function: str | float = match["function"].lower()
    if column is None:
        return match["name"] or "count", ALL_EVENTS, function
    with contextlib.suppress(ValueError):
        function = float(function)
    if function not in FUNCTIONS and not (isinstance(function, float) and 0 <= function <= 1):
        raise ValueError(
            f"'{text}': '{match['function']}' is none of {', '.join(FUNCTIONS)}, and no quantile "
            "from 0 to 1"
        )
    name = match["name"] or ("count" if column == ALL_EVENTS else column)
    return name, column, function


def parse_aggregate_argument(text: str) -> tuple[str, tuple[str, str | float]]:
    """Return the name of an aggregate, its column and function, of an argument of a command.

    Raises:
        ValueError: the text is not an aggregate.

    >>> parse_aggregate_argument("celsius=mean"), parse_aggregate_argument("n=count")
    (('celsius', ('celsius', 'mean')), ('n', ('*', 'count')))
    """
    name, _, function = (side.strip() for side in text.partition("="))
    is_short = (
        bool(name and function) and len(function.split()) == 1 and function.lower() != "count"
    )
    try:
        parsed = parse_aggregate_list(f"{name} = {name} {function}" if is_short else text)
        if len(parsed) == 1:
            return parsed[0][0], parsed[0][1:]
        problem = f"'{text}' is {len(parsed)} aggregates"
    except ValueError as error:
        problem = str(error)
    raise ValueError(
        f"--aggregate: {problem}; accepted: COLUMN=FUNCTION, NAME='COLUMN FUNCTION' or NAME=count; "
        "next step: write it so, such as celsius=mean"
    )


PROPERTY: Final = "tseries.rollup"
"""The property of a rollup's table with its settings, as JSON."""

COVERED: Final = "tseries:rollup"
"""The version of this transaction is the last commit of the source that the rollup covers."""

BEGUN: Final = "tseries:rollup:begun"
"""The same for an unfinished first run: the buckets written so far are of that commit."""

REASON_FIELD: Final = pa.field("reason", pa.string())
"""The value column that says why a bucket was edited; null in its original."""

CHANGES: Final = pa.schema(
    [
        pa.field("series", pa.string()),
        pa.field("timestamp", INSTANT),
        pa.field("commit", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("original", pa.int64()),
        pa.field("author", pa.string()),
        pa.field("because", pa.string()),
        pa.field("count", pa.int64()),
    ]
)
"""Changes of buckets: the series and start of the bucket, the commit, the sequence of the added or
erased event, that of its original, the author, the reason for an erasure, and the number of changes
that the row stands for."""

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RollupSettings:
    """The settings of a rollup; they never change.

    Attributes:
        source: the id of the source store.
        buckets: the buckets.
        aggregates: its value columns, beside `reason`.
    """

    source: str
    buckets: Buckets
    aggregates: tuple[Aggregate, ...]

    @property
    def downsampling(self) -> Downsampling:
        """The query by buckets; its rows are the rollup's events."""
        return Downsampling(self.buckets, self.aggregates)

    def values(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the value columns of the rollup of a store with the value columns `schema`."""
        return [*list(result_fields(schema, self.downsampling))[2:], REASON_FIELD]

    def to_json(self) -> str:
        """Return the text of `PROPERTY`; `parse_rollup_settings` reads it back."""
        buckets = self.buckets
        aggregates = {
            aggregate.name: [
                aggregate.column,
                aggregate.function if aggregate.quantile is None else aggregate.quantile,
            ]
            for aggregate in self.aggregates
        }
        settings = {
            "version": _VERSION,
            "source": self.source,
            "microseconds": buckets.us,
            "months": buckets.months,
            "timezone": buckets.zone,
            "origin": buckets.origin_us,
            "aggregates": aggregates,
        }
        return json.dumps(settings, ensure_ascii=False)

    def describe(self) -> dict[str, str]:
        """Return the settings for people, by their names."""
        buckets = self.buckets
        months = "1 month" if buckets.months == 1 else f"{buckets.months} months"
        aggregates = [
            f"{aggregate.name} = {_describe_aggregate(aggregate)}" for aggregate in self.aggregates
        ]
        return {
            "every": format_duration(buckets.us) if buckets.us else months,
            "timezone": buckets.zone or "UTC",
            "origin": format_instant(buckets.origin_us).removesuffix("Z"),
            "aggregates": ", ".join(aggregates),
        }


def _describe_aggregate(aggregate: Aggregate) -> str:
    function = aggregate.function if aggregate.quantile is None else f"{aggregate.quantile:g}"
    return f"{aggregate.column} {function}"


def parse_rollup_settings(properties: Mapping[str, str], root: str) -> RollupSettings | None:
    """Return the settings in the properties of the store at `root`; None if it is not a rollup.

    Raises:
        UnusableStore: they are of another version.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return None
    settings = json.loads(text)
    if settings["version"] != _VERSION:
        raise UnusableStore(
            f"the rollup '{root}' has settings of version {settings['version']}",
            str(_VERSION),
            "go on with the version of this package that wrote them",
        )
    aggregates = tuple(
        Aggregate(name, column, function)
        if isinstance(function, str)
        else Aggregate(name, column, "quantile", float(function))
        for name, (column, function) in settings["aggregates"].items()
    )
    buckets = Buckets(
        settings["microseconds"], settings["months"], settings["timezone"], settings["origin"]
    )
    return RollupSettings(settings["source"], buckets, aggregates)


def check_aggregates(aggregates: Sequence[Aggregate]) -> None:
    """Refuse aggregates that no rollup has.

    Raises:
        InvalidQuery: one depends on events before its bucket, or has a name that is in use.
    """
    for aggregate in aggregates:
        if aggregate.function == "time_weighted_mean":
            raise InvalidQuery(
                f"{aggregate.name}: a rollup has no time_weighted_mean, which depends on values "
                "from before the bucket",
                "aggregates of the bucket's own events",
                "take 'mean', or ask the source with every()",
            )
        name = aggregate.name.lower()
        if name in (REASON_FIELD.name, "edit_of", *RESERVED_NAMES):
            raise InvalidQuery(
                f"a rollup has a column '{name}' anyway", "another name", "rename the aggregate"
            )
        if [other_aggregate.name.lower() for other_aggregate in aggregates].count(name) > 1:
            raise InvalidQuery(
                f"two aggregates have the name '{name}' in a store",
                "names that differ in more than case",
                "rename one of them",
            )


def keep_last_changes(changes: pa.Table) -> pa.Table:
    """Return the last change of each bucket, sorted by series and start, with the number of all."""
    if not changes.num_rows:
        return changes
    _, codes = encode_values(changes["series"].combine_chunks())
    starts, commit, sequence, counts = (
        to_int64(changes[name]) for name in ("timestamp", "commit", "sequence", "count")
    )
    order = np.lexsort((sequence, commit, starts, codes))
    begins, sizes = find_number_runs(codes[order], starts[order])
    last_rows = order[begins + sizes - 1]
    last = changes.take(pa.array(last_rows))
    sums = np.add.reduceat(counts[order], begins)
    return last.set_column(last.schema.get_field_index("count"), "count", pa.array(sums))


def describe_reasons(changes: pa.Table) -> pa.Array:
    """Return the text of column `reason` for each row of changes."""
    return pa.array([_describe_reason(**row) for row in changes.to_pylist()], pa.string())


def _describe_reason(
    author: str, sequence: int, original: int, because: str | None, count: int, **_: Any
) -> str:
    event = f"event {sequence}"
    if because is not None:
        edit = "" if sequence == original else f", an edit of event {original}"
        sentence = f"{author} erased {event}{edit}: {because}"
    elif sequence == original:
        sentence = f"{author} added {event}"
    else:
        sentence = f"{author} edited event {original} by {event}"
    return sentence if count == 1 else f"{sentence}; the last of {count} changes"


def merge_ranges(lows: Int64Array, highs: Int64Array, max_ranges: int) -> list[tuple[int, int]]:
    """Return at most `max_ranges` disjoint, ascending ranges that cover all; lows are inclusive."""
    if not len(lows):
        return []
    order = np.argsort(lows, kind="stable")
    lows, reach = lows[order], np.maximum.accumulate(highs[order])
    gaps = lows[1:] - reach[:-1]
    is_gap = np.flatnonzero(gaps > 0)
    # Close the smallest gaps: reading a little too much is cheaper than many small reads.
    widest = is_gap[np.argsort(-gaps[is_gap], kind="stable")[: max_ranges - 1]]
    cuts = np.sort(widest)
    firsts, lasts = np.append(0, cuts + 1), np.append(cuts, len(lows) - 1)
    return list(zip(lows[firsts].tolist(), reach[lasts].tolist(), strict=True))


def flag_changed(old: pa.Table, new: pa.Table) -> BoolArray:
    """Flag the rows in which two tables of the same columns differ; a NaN equals a NaN."""
    changed = np.zeros(new.num_rows, bool)
    for name in new.column_names:
        changed |= ~_flag_same(old[name].combine_chunks(), new[name].combine_chunks())
    return changed


def _flag_same(old: pa.Array, new: pa.Array) -> BoolArray:
    if pa.types.is_nested(new.type):
        pairs = zip(list_values(old), list_values(new), strict=True)
        return np.array([is_same(*pair) for pair in pairs], bool)
    same = pc.fill_null(pc.equal(old, new), False)
    same = pc.or_(same, pc.and_(pc.is_null(old), pc.is_null(new)))
    if pa.types.is_floating(new.type):
        both_nan = pc.and_(pc.is_nan(old), pc.is_nan(new))
        same = pc.or_(same, pc.fill_null(both_nan, False))
    flags: BoolArray = np.asarray(same, bool)
    return flags
