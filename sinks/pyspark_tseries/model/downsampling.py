"""Declare what a query by buckets asks for: buckets, aggregates, a group and a fill (semantics 32).

Everything is checked against a store's value columns before an event is read, and the columns of
the result follow from it.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pyspark_timestream.errors import show_value
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.buckets import Buckets
from pyspark_tseries.model.columns import INSTANT

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
    if column not in schema.names:
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
