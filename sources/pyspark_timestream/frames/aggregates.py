"""Windows that the source folds before Spark gets their rows (semantics 11.16 to 11.18).

The tasks of the source make partial rows (`rules.window_fold`), and Spark adds these by the same
window and key as it would the rows themselves. This module sets up both steps.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, DataFrameReader
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import (
    DataType,
    DecimalType,
    StringType,
    StructField,
    StructType,
)

from pyspark_timestream.core.arrow import CTI_COLUMN, MAX_DIGITS
from pyspark_timestream.core.instants import TICK_US, read_duration
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.frames.transforms import (
    advance_time,
    check_name,
    check_time_columns,
    quote_name,
    read_names,
    read_schema,
)
from pyspark_timestream.rules.window_fold import Function, Partial, WindowFold

_OPTION: Final = "foldWindows"
_FORMAT: Final = "timestream"
_WINDOW: Final = "window"
_PARTIALS: Final[Mapping[str, tuple[Function, ...]]] = {
    "count": ("count",),
    "sum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum", "count"),
    "mean": ("sum", "count"),
}
"""Aggregate -> the partial values that it is made of."""

_MOST_MEAN_DIGITS: Final = 28
_MOST_MEAN_SCALE: Final = 13
"""Decimals with more digits have means that Spark's own functions cannot make of a sum."""

_COUNT_DIGITS: Final = 12
"""A mean covers fewer rows than 10 to this power: its count has at most this many digits."""


def aggregate_windows(
    reader: DataStreamReader | DataFrameReader,
    window: str,
    aggregates: Mapping[str, str | Sequence[str]],
    by: str | Sequence[str] = (),
    slide: str | None = None,
    event_time: str = "start_time",
) -> DataFrame:
    """Return aggregates of event-time windows, folded by the source before Spark gets the rows.

    The result equals `advance_time(reader.load(), event_time)` with `groupBy(*by, F.window(
    event_time, window, slide)).agg(...)`: the same rows, names, types and release. Semantics 11.16.

        hours = aggregate_windows(
            reader, "1 hour", {"trips": "count", "minutes": ("sum", "minutes")}, by="station"
        )

    Args:
        reader: `spark.readStream.format("timestream")` or `spark.read...`, with the options and
            the schema of transport `kafka`, and a source of CTIs. It stays as it is.
        window: the length of a window, such as `1 hour`.
        aggregates: a column of the result -> `count` (of rows), or a function and its column:
            `count` (of values), `sum`, `min`, `max`, `avg` or `mean`.
        by: the columns of the key; none: one row for each window.
        slide: windows begin at multiples of it; at most `window`, and by default as long.
        event_time: the timestamp column that windows and CTIs are about.

    Returns:
        The columns `by`, then `window` (a struct of `start` and `end`), then `aggregates`.

    Raises:
        SchemaRefused: the reader is another format's, or lacks a column; a column has a type that
            is not folded, such as a sum of doubles, which depends on the order of rows.
        SettingRefused: a setting of the session would lose rows or hold them back.
        ValueError: a duration, a function or a name is not as above.
    """
    length_us = _parse_length("window", window)
    slide_us = length_us if slide is None else _parse_length("slide", slide)
    if slide_us > length_us:
        raise ValueError(
            f"slide={slide!r} is longer than window={window!r}: accepted is at most as long, or "
            "some rows would be in no window"
        )
    by = tuple(read_names("by", by))
    check_name("event_time", event_time)
    if not isinstance(aggregates, Mapping):
        raise ValueError(
            f"aggregates={aggregates!r}: accepted is a mapping, such as {{'rows': 'count'}}"
        )
    functions = {name: _parse_aggregate(name, aggregate) for name, aggregate in aggregates.items()}
    _check_names(by, functions, event_time)
    rows = reader.load()
    check_time_columns(rows, event_time)
    _check_format(rows)
    schema = read_schema(rows)
    needed = [partial for pair in functions.values() for partial in _list_partials(*pair)]
    partials = tuple(dict.fromkeys(needed))
    pane_us = math.gcd(length_us, slide_us)
    fold = WindowFold(event_time, pane_us, by, partials, schema.json())
    folded = _load_folded(reader, schema, fold)
    columns = dict(zip(partials, map(quote_name, fold.name_partials()), strict=True))
    period = F.window(quote_name(event_time), _format_us(length_us), _format_us(slide_us))
    keys = [quote_name(name) for name in by]
    grouped = advance_time(folded, event_time).groupBy(*keys, period.alias(_WINDOW))
    types = {field.name: field.dataType for field in schema.fields}
    results = []
    for name, (function, column) in functions.items():
        partial_columns = [columns[partial] for partial in _list_partials(function, column)]
        results.append(_merge(function, types.get(column or ""), partial_columns).alias(name))
    return grouped.agg(*results)


def _parse_length(argument: str, text: str) -> int:
    accepts = "a duration above 0, such as '1 hour'"
    return read_duration(argument, text, accepts, at_least_us=TICK_US)


def _format_us(us: int) -> str:
    return f"{us} microseconds"


def _parse_aggregate(name: str, aggregate: str | Sequence[str]) -> tuple[str, str | None]:
    """Return the function and its column; None: the rows."""
    # A Column would answer `==` with another Column.
    if isinstance(aggregate, str) and aggregate == "count":
        return "count", None
    pair = tuple(aggregate) if isinstance(aggregate, list | tuple) else ()
    if len(pair) == 2 and pair[0] in _PARTIALS and isinstance(pair[1], str):
        return pair
    raise ValueError(
        f"aggregates[{name!r}]={aggregate!r}: accepted are 'count', and pairs such as ('sum', "
        f"'minutes') of a function ({', '.join(_PARTIALS)}) and a column"
    )


def _check_names(by: Sequence[str], names: Iterable[str], event_time: str) -> None:
    results = [*by, _WINDOW, *names]
    lowered = [name.lower() for name in results]
    twice = [name for name in results if lowered.count(name.lower()) > 1]
    if twice:
        raise ValueError(
            f"two columns of the result would have the name {twice[0]!r} (in any case; "
            f"{_WINDOW!r} is the window's): accepted are names that differ; rename the aggregate"
        )
    if len(results) == len(by) + 1:
        raise ValueError("aggregates is empty: accepted is at least one, such as {'rows': 'count'}")
    if {event_time.lower(), CTI_COLUMN} & {name.lower() for name in by}:
        raise ValueError(
            f"by={list(by)!r} names the event time or 'cti': accepted are other columns, since "
            "rows of a window are folded without regard to their time in it"
        )


def _list_partials(function: str, column: str | None) -> list[Partial]:
    return [Partial(partial_function, column) for partial_function in _PARTIALS[function]]


def _check_format(rows: DataFrame) -> None:
    """Refuse rows of another source, which would not know the option that folds them."""
    if hasattr(rows, "_jdf"):
        try:
            plan: Any = rows._jdf.queryExecution().analyzed()
            format_name = plan.sourceName() if rows.isStreaming else plan.table().name()
        except (Py4JError, TypeError):
            format_name = "a table or a format of Spark's own"
    else:
        format_name = getattr(rows._plan, "_format", None)
    if _FORMAT not in str(format_name).lower():
        raise SchemaRefused(
            f"the reader reads {format_name}, not format '{_FORMAT}', so nothing would fold its "
            "rows",
            f"a reader with format('{_FORMAT}') and transport 'kafka'",
            "use groupBy(...) behind advance_time",
        )


def _load_folded(
    reader: DataStreamReader | DataFrameReader, schema: StructType, fold: WindowFold
) -> DataFrame:
    """Load the partial rows; leave the reader as it was, except that it has a schema now."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    types = {field.name: field.dataType for field in schema.fields}
    partial_schema = fold.build_schema(arrow)
    key_fields = [
        StructField(name, types[name]) for name in partial_schema.names[: -len(fold.partials)]
    ]
    partial_fields = [
        StructField(field.name, from_arrow_type(field.type)) for field in partial_schema
    ][len(key_fields) :]
    for partial in fold.partials:
        _check_text(partial, types)
    try:
        return (
            reader.schema(StructType([*key_fields, *partial_fields]))
            .option(_OPTION, fold.to_text())
            .load()
        )
    finally:
        reader.schema(schema).option(_OPTION, "")


def _check_text(partial: Partial, types: Mapping[str, DataType]) -> None:
    kind = types.get(partial.column or "")
    if partial.function in ("min", "max") and isinstance(kind, StringType) and kind != StringType():
        raise SchemaRefused(
            f"column '{partial.column}' is {kind.simpleString()}, and only the bytes of texts are "
            f"compared for {partial.function}",
            "texts without a collation",
            "declare it as string in .schema(...), or use groupBy(...) behind advance_time",
        )


def _merge(function: str, data_type: DataType | None, partial_columns: Sequence[Column]) -> Column:
    """Return the aggregate of a group of partial rows; `data_type` is its column's type."""
    if function == "count":
        return F.coalesce(F.sum(partial_columns[0]), F.lit(0).cast("bigint"))
    if function in ("min", "max"):
        return F.min(partial_columns[0]) if function == "min" else F.max(partial_columns[0])
    if isinstance(data_type, DecimalType):
        digits = min(MAX_DIGITS, data_type.precision + 10)
        total = F.sum(partial_columns[0]).cast(DecimalType(digits, data_type.scale))
        return (
            total
            if function == "sum"
            else divide_as_mean(data_type, total, F.sum(partial_columns[1]))
        )
    if function == "sum":
        return F.sum(partial_columns[0])
    # Spark adds doubles for a mean, so whole numbers of 64 bits must not go beyond their type.
    total = F.sum(partial_columns[0].cast("decimal(20,0)")).cast("double")
    return total / F.nullif(F.sum(partial_columns[1]), F.lit(0)).cast("double")


def divide_as_mean(data_type: DecimalType, total: Column, count: Column) -> Column:
    """Divide as Spark's mean of decimals does: rounded once, half up, to four more digits.

    Its operator `/` would round twice, or to fewer digits. So divide the quotient and the remainder
    separately: the remainder is less than the count, which leaves enough digits.
    """
    if data_type.precision > _MOST_MEAN_DIGITS or data_type.scale > _MOST_MEAN_SCALE:
        raise SchemaRefused(
            f"a mean is asked of a column that is {data_type.simpleString()}",
            f"means of decimals of at most {_MOST_MEAN_DIGITS} digits, {_MOST_MEAN_SCALE} of them "
            "after the decimal point",
            "ask for its sum and count and divide these, or declare it with less digits in "
            ".schema(...)",
        )
    scale, mean_scale = data_type.scale, data_type.scale + 4
    rows = F.nullif(count, F.lit(0)).cast(DecimalType(_COUNT_DIGITS, 0))
    remainder = (total % rows).cast(DecimalType(_COUNT_DIGITS + scale, scale))
    quotient = ((total - remainder) / rows).cast(DecimalType(data_type.precision - scale + 1, 0))
    fraction = (remainder / rows).cast(DecimalType(mean_scale + 1, mean_scale))
    return (quotient + fraction).cast(DecimalType(data_type.precision + 4, mean_scale))
