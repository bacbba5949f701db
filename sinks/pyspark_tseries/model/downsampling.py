"""Declare what a query by buckets asks for: buckets, aggregates, a group and a fill (semantics 32).

Everything is checked against a store's value columns before an event is read, and the columns of
the result follow from it.

A rollup keeps such buckets as a store (semantics 36): its settings are a property of its table. A
*change* is an original that came to a bucket which the rollup has, an edit, or an erasure; of
several changes of a bucket the last one counts.
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

from pyspark_timestream.core.instants import format_duration, format_instant
from pyspark_timestream.errors import show_value
from pyspark_tseries.errors import InvalidQuery, UnusableStore
from pyspark_tseries.model.arrays import (
    BoolArray,
    Int64Array,
    encode_names,
    is_same,
    to_int64,
)
from pyspark_tseries.model.buckets import Buckets
from pyspark_tseries.model.columns import INSTANT, RESERVED_NAMES

FUNCTIONS: Final = (
    *("mean", "min", "max", "sum", "count", "first", "last", "median", "time_weighted_mean"),
)
"""The aggregates by name; a number from 0 to 1 is a quantile."""

ALL_EVENTS: Final = "*"
"""The column of a `count` of events."""

FILLS: Final = ("null", "previous", "linear")

_ANY_TYPE: Final = ("count", "first", "last")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A column of the result.

    Attributes:
        name: its name.
        column: the value column that it is of; `*` for `count` of all events.
        function: one of `FUNCTIONS`, or `quantile`.
        quantile: from 0 to 1, both inclusive; None for other functions.
    """

    name: str
    column: str
    function: str
    quantile: float | None = None


@dataclass(frozen=True, slots=True)
class Downsampling:
    """What a query by buckets asks for.

    Attributes:
        buckets: the buckets.
        aggregates: the result's columns after group and `timestamp`.
        tag: the value column to group by; None for the series.
        fill: one of `FILLS`, or a value; None for buckets with events alone.
        is_filled: True if missing buckets get rows.
    """

    buckets: Buckets
    aggregates: tuple[Aggregate, ...]
    tag: str | None = None
    fill: Any = None
    is_filled: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns of events that the aggregation reads."""
        tags = [] if self.tag is None else [self.tag]
        return list(dict.fromkeys(["series", "timestamp", *tags, *self.value_columns]))

    @property
    def value_columns(self) -> list[str]:
        """The value columns that are aggregated."""
        named = [a.column for a in self.aggregates if a.column != ALL_EVENTS]
        return list(dict.fromkeys(named))


def plan_downsampling(
    schema: pa.Schema,
    buckets: Buckets,
    named: Mapping[str, Any],
    tag: str | None = None,
    *,
    fill: Any = None,
    is_filled: bool = False,
) -> Downsampling:
    """Return what a query by buckets asks of a store with the value columns `schema`.

    Raises:
        InvalidQuery: a column is unknown, or does not have what is asked of it.
    """
    aggregates = parse_aggregates(schema, dict(named))
    if tag is not None:
        _check_tag(schema, tag, aggregates)
    if is_filled:
        parse_fill(fill, schema, aggregates)
    return Downsampling(buckets, aggregates, tag, fill, is_filled)


def _check_tag(schema: pa.Schema, tag: str, aggregates: Sequence[Aggregate]) -> None:
    tags = [field.name for field in schema if not pa.types.is_nested(field.type)]
    if tag not in tags:
        raise InvalidQuery(
            f"{show_value(tag)} is not a value column to group by",
            ", ".join(tags) or "none: no value column has single values",
            "name one of these, or leave by() out to group by series",
        )
    if any(aggregate.name == tag for aggregate in aggregates):
        raise InvalidQuery(
            f"the result has a column '{tag}' anyway, that of by('{tag}')",
            "another name",
            "rename the aggregate",
        )


def parse_aggregates(schema: pa.Schema, given: dict[str, Any]) -> tuple[Aggregate, ...]:
    """Return the aggregates `name=function` and `name=(column, function)` of a store's columns.

    Raises:
        InvalidQuery: an unknown column or function, or one that the column's type does not have.
    """
    if not given:
        raise InvalidQuery(
            "no aggregate is named",
            "such as celsius='mean', or n=('*', 'count')",
            "name the columns of the result",
        )
    return tuple(_parse_aggregate(schema, name, what) for name, what in given.items())


def _parse_aggregate(schema: pa.Schema, name: str, given: Any) -> Aggregate:
    column, function = given if isinstance(given, tuple) and len(given) == 2 else (name, given)
    quantile = None
    if isinstance(function, float | int) and not isinstance(function, bool):
        if not 0 <= function <= 1:
            raise InvalidQuery(
                f"{name}: {function!r} is not a quantile", "from 0 to 1", "correct it"
            )
        function, quantile = "quantile", float(function)
    elif function not in FUNCTIONS:
        raise InvalidQuery(
            f"{name}: {function!r} is not an aggregate",
            f"{', '.join(map(repr, FUNCTIONS))}, or a quantile from 0 to 1",
            "name one of these",
        )
    if name in ("series", "timestamp"):
        raise InvalidQuery(f"the result has a column '{name}' anyway", "another name", "rename it")
    if column == ALL_EVENTS and function == "count":
        return Aggregate(name, column, function)
    if column == ALL_EVENTS or column not in schema.names:
        # A column may be named '*', but that means all events here.
        raise InvalidQuery(
            f"{name}: the store has no value column {column!r}",
            ", ".join(schema.names) or "events without values",
            f"write {name}=('COLUMN', {function!r}), or ('*', 'count') for the number of events",
        )
    kind = schema.field(column).type
    if not _has_function(kind, function):
        raise InvalidQuery(
            f"{name}: column '{column}' ({kind}) has no {function}",
            ", ".join(f for f in FUNCTIONS if _has_function(kind, f)),
            "take one of these, or another column",
        )
    return Aggregate(name, column, function, quantile)


def _has_function(kind: pa.DataType, function: str) -> bool:
    if function in _ANY_TYPE:
        return True
    if function in ("min", "max"):
        return not pa.types.is_nested(kind)
    return is_number(kind) or pa.types.is_decimal(kind)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is of integers or floats."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def parse_fill(wanted: Any, schema: pa.Schema, aggregates: Sequence[Aggregate]) -> None:
    """Check a fill against the result's columns.

    Raises:
        InvalidQuery: a column has no values on a line, or cannot hold the value.
    """
    for aggregate in aggregates:
        if aggregate.function == "count":
            continue
        kind = result_type(schema, aggregate)
        if wanted == "linear" and not is_number(kind):
            raise InvalidQuery(
                f"column '{aggregate.name}' ({kind}) has no values on a line",
                "'null', 'previous', or a value",
                "take another fill, or aggregate numbers alone",
            )
        if not (isinstance(wanted, str) and wanted in FILLS):
            try:
                pa.array([wanted], kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise InvalidQuery(
                    f"column '{aggregate.name}' ({kind}) cannot hold the fill {wanted!r}",
                    f"{', '.join(map(repr, FILLS))}, or a value of its type",
                    "correct it",
                ) from None


def result_type(schema: pa.Schema, aggregate: Aggregate) -> pa.DataType:
    """Return the type of an aggregate's column."""
    if aggregate.function == "count":
        return pa.int64()
    kind = schema.field(aggregate.column).type
    if aggregate.function in ("first", "last", "min", "max"):
        return kind
    if aggregate.function == "sum":
        if pa.types.is_decimal(kind):
            return pa.decimal128(38, kind.scale)
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()
    return pa.float64()


def result_fields(schema: pa.Schema, wanted: Downsampling) -> pa.Schema:
    """Return the columns of the result: the group, `timestamp`, and the aggregates."""
    group = pa.field("series", pa.string()) if wanted.tag is None else schema.field(wanted.tag)
    fields = [
        pa.field(a.name, result_type(schema, a), metadata=_unit_of(schema, a))
        for a in wanted.aggregates
    ]
    return pa.schema([group, pa.field("timestamp", INSTANT), *fields])


def _unit_of(schema: pa.Schema, aggregate: Aggregate) -> dict[bytes, bytes] | None:
    """Return the unit of an aggregate's column, which is the aggregate's too, but for a count."""
    return None if aggregate.function == "count" else schema.field(aggregate.column).metadata


def find_bands(named: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return which aggregate lies between the minimum and the maximum of its column.

    >>> find_bands({"a": "mean", "low": ("a", "min"), "high": ("a", "max"), "n": ("a", "count")})
    {'a': ('low', 'high')}
    """
    wanted = {
        name: what if isinstance(what, tuple) else (name, what) for name, what in named.items()
    }
    bands = {}
    for column in dict.fromkeys(column for column, _ in wanted.values()):
        functions = {name: function for name, (of, function) in wanted.items() if of == column}
        edges = [
            next((n for n, f in functions.items() if f == edge), None) for edge in ("min", "max")
        ]
        between = [n for n, f in functions.items() if f not in ("min", "max", "sum", "count")]
        if None not in edges and between:
            bands[between[0]] = (str(edges[0]), str(edges[1]))
    return bands


_AGGREGATE: Final = re.compile(
    r"(?:(?P<name>[^=\s]+)\s*=\s*)?(?:(?P<column>\S+)\s+)?(?P<function>\S+)"
)


def parse_aggregate_list(value: str) -> tuple[tuple[str, str, str | float], ...]:
    """Return name, column and function of each aggregate of a text.

    Raises:
        ValueError: a part is no aggregate, or two have one name.

    >>> parse_aggregate_list("celsius mean, hottest = celsius 0.95, n = count")
    (('celsius', 'celsius', 'mean'), ('hottest', 'celsius', 0.95), ('n', '*', 'count'))
    """
    parsed = [_parse_part(part.strip()) for part in value.split(",")]
    names = [name for name, _, _ in parsed]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"two aggregates have the name '{name}': name one as in 'hottest = celsius max'"
            )
    return tuple(parsed)


def _parse_part(part: str) -> tuple[str, str, str | float]:
    found = _AGGREGATE.fullmatch(part)
    column = None if found is None else found["column"]
    if found is None or (column is None and found["function"].lower() != "count"):
        raise ValueError(f"'{part}' is not 'COLUMN FUNCTION', 'NAME = COLUMN FUNCTION' or 'count'")
    function: str | float = found["function"].lower()
    if column is None:
        return found["name"] or "count", ALL_EVENTS, function
    with contextlib.suppress(ValueError):
        function = float(function)
    if function not in FUNCTIONS and not (isinstance(function, float) and 0 <= function <= 1):
        raise ValueError(
            f"'{part}': '{found['function']}' is none of {', '.join(FUNCTIONS)}, and no quantile "
            "from 0 to 1"
        )
    name = found["name"] or ("count" if column == ALL_EVENTS else column)
    return name, column, function


def parse_aggregate_argument(text: str) -> tuple[str, tuple[str, str | float]]:
    """Return the name of an aggregate, its column and function, of an argument of a command.

    Raises:
        ValueError: the text is no aggregate.

    >>> parse_aggregate_argument("celsius=mean"), parse_aggregate_argument("n=count")
    (('celsius', ('celsius', 'mean')), ('n', ('*', 'count')))
    """
    name, _, what = (part.strip() for part in text.partition("="))
    is_short = bool(what) and len(what.split()) == 1 and what.lower() != "count"
    try:
        parsed = parse_aggregate_list(f"{name} = {name} {what}" if is_short else text)
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
"""The transaction whose version is the source's commit up to which the rollup has all buckets."""

BEGUN: Final = "tseries:rollup:begun"
"""The same of a first run that has not ended: the buckets that are there are of that commit."""

REASON: Final = pa.field("reason", pa.string())
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
"""Changes of buckets: the series and start of the bucket, the commit, the sequence of the event
that was added or erased, that of its original, who did it, the reason of an erasure, and how many
changes the row stands for."""

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RollupSettings:
    """What a rollup has; it never changes.

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
        """The query by buckets whose rows are the rollup's events."""
        return Downsampling(self.buckets, self.aggregates)

    def values(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the value columns of the rollup of a store with the value columns `schema`."""
        return [*list(result_fields(schema, self.downsampling))[2:], REASON]

    def to_json(self) -> str:
        """Return the text of `PROPERTY`; `parse_settings` reads it back."""
        buckets = self.buckets
        aggregates = {
            each.name: [each.column, each.function if each.quantile is None else each.quantile]
            for each in self.aggregates
        }
        told = {
            "version": _VERSION,
            "source": self.source,
            "microseconds": buckets.us,
            "months": buckets.months,
            "timezone": buckets.zone,
            "origin": buckets.origin_us,
            "aggregates": aggregates,
        }
        return json.dumps(told, ensure_ascii=False)

    def describe(self) -> dict[str, str]:
        """Return the settings for people, by their names."""
        buckets = self.buckets
        months = "1 month" if buckets.months == 1 else f"{buckets.months} months"
        shown = [f"{each.name} = {_describe(each)}" for each in self.aggregates]
        return {
            "every": format_duration(buckets.us) if buckets.us else months,
            "timezone": buckets.zone or "UTC",
            "origin": format_instant(buckets.origin_us).removesuffix("Z"),
            "aggregates": ", ".join(shown),
        }


def _describe(aggregate: Aggregate) -> str:
    function = aggregate.function if aggregate.quantile is None else f"{aggregate.quantile:g}"
    return f"{aggregate.column} {function}"


def parse_settings(properties: Mapping[str, str], root: str) -> RollupSettings | None:
    """Return the settings in the properties of the store at `root`; None if it is no rollup.

    Raises:
        UnusableStore: they are of another version.
    """
    text = properties.get(PROPERTY)
    if text is None:
        return None
    told = json.loads(text)
    if told["version"] != _VERSION:
        raise UnusableStore(
            f"the rollup '{root}' has settings of version {told['version']}",
            str(_VERSION),
            "go on with the version of this package that wrote them",
        )
    aggregates = tuple(
        Aggregate(name, column, function)
        if isinstance(function, str)
        else Aggregate(name, column, "quantile", float(function))
        for name, (column, function) in told["aggregates"].items()
    )
    buckets = Buckets(told["microseconds"], told["months"], told["timezone"], told["origin"])
    return RollupSettings(told["source"], buckets, aggregates)


def check_aggregates(aggregates: Sequence[Aggregate]) -> None:
    """Refuse aggregates that no rollup has.

    Raises:
        InvalidQuery: one depends on events before its bucket, or has a name that it cannot have.
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
        if name in (REASON.name, "edit_of", *RESERVED_NAMES):
            raise InvalidQuery(
                f"a rollup has a column '{name}' anyway", "another name", "rename the aggregate"
            )
        if [each.name.lower() for each in aggregates].count(name) > 1:
            raise InvalidQuery(
                f"two aggregates have the name '{name}' in a store",
                "names that differ in more than case",
                "rename one of them",
            )


def fold_changes(changes: pa.Table) -> pa.Table:
    """Return the last change of each bucket, by series and start, with the number of all."""
    if not changes.num_rows:
        return changes
    _, codes = encode_names(changes["series"].combine_chunks())
    starts, commit, sequence, counts = (
        to_int64(changes[name]) for name in ("timestamp", "commit", "sequence", "count")
    )
    order = np.lexsort((sequence, commit, starts, codes))
    first = np.flatnonzero(_begins(codes[order], starts[order]))
    last = order[np.append(first[1:], len(order)) - 1]
    folded = changes.take(pa.array(last))
    sums = np.add.reduceat(counts[order], first)
    return folded.set_column(folded.schema.get_field_index("count"), "count", pa.array(sums))


def _begins(codes: Int64Array, starts: Int64Array) -> BoolArray:
    begins = np.ones(len(codes), bool)
    begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] != starts[:-1])
    return begins


def tell_reasons(changes: pa.Table) -> pa.Array:
    """Return the text of column `reason` for each row of changes."""
    return pa.array([_tell_reason(**row) for row in changes.to_pylist()], pa.string())


def _tell_reason(
    author: str, sequence: int, original: int, because: str | None, count: int, **_: Any
) -> str:
    what = f"event {sequence}"
    if because is not None:
        edit = "" if sequence == original else f", an edit of event {original}"
        said = f"{author} erased {what}{edit}: {because}"
    elif sequence == original:
        said = f"{author} added {what}"
    else:
        said = f"{author} edited event {original} by {what}"
    return said if count == 1 else f"{said}; the last of {count} changes"


def merge_ranges(lows: Int64Array, highs: Int64Array, most: int) -> list[tuple[int, int]]:
    """Return at most `most` disjoint ranges, rising, that cover all; lows are inclusive."""
    if not len(lows):
        return []
    order = np.argsort(lows, kind="stable")
    lows, reach = lows[order], np.maximum.accumulate(highs[order])
    gaps = lows[1:] - reach[:-1]
    open_ = np.flatnonzero(gaps > 0)
    # Close the smallest gaps: reading a little too much is cheaper than many small reads.
    widest = open_[np.argsort(-gaps[open_], kind="stable")[: most - 1]]
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
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return np.array([is_same(*pair) for pair in pairs], bool)
    same = pc.fill_null(pc.equal(old, new), False)
    same = pc.or_(same, pc.and_(pc.is_null(old), pc.is_null(new)))
    if pa.types.is_floating(new.type):
        both = pc.and_(pc.is_nan(old), pc.is_nan(new))
        same = pc.or_(same, pc.fill_null(both, False))
    flags: BoolArray = np.asarray(same, bool)
    return flags
