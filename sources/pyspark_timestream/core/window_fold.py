"""Folds rows into partial rows, one per key and *pane* of time (semantics 11.16 to 11.18).

A pane is the longest span that no window of the query cuts: the window itself, or the greatest
common divisor of window and slide. All rows of a pane lie in the same windows, so Spark may get one
row that stands for them, and add those of all tasks and batches as it adds rows. Groups may be
finer than Spark's, never coarser: Spark groups again. So whatever does not fold stays as it is.
"""

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import INSTANT, Instants
from pyspark_timestream.core.options import Parser
from pyspark_timestream.errors import SchemaRefused

Function = Literal["count", "sum", "min", "max"]
_FUNCTIONS: Final = ("count", "sum", "min", "max")

CTI: Final = "cti"
VIOLATION: Final = "violation"
_ADJUSTED: Final = "adjusted"

_MOST_ROWS: Final = 1 << 17
_MOST_BYTES: Final = 1 << 26
"""So many rows, or bytes of them, are folded together; a task holds no more."""

_ROWS_A_BATCH: Final = 1 << 14
_MOST_DIGITS: Final = 38
_SUM_DIGITS: Final = 10
"""A sum of decimals has so many digits more, in Spark and here."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A column of partial rows.

    Attributes:
        function: what it holds of its rows.
        column: the column that it is of; None: the rows themselves are counted.
    """

    function: Function
    column: str | None = None


@dataclass(frozen=True, slots=True)
class WindowFold:
    """How rows become partial rows.

    Attributes:
        event_time: the timestamp column that windows are about.
        pane_us: the length of a pane; panes begin at multiples of it since 1970.
        by: the columns of the key.
        partials: the partial values, one column each.
        columns: the columns of the rows that are folded, as Spark's JSON of a schema.
    """

    event_time: str
    pane_us: int
    by: tuple[str, ...]
    partials: tuple[Partial, ...]
    columns: str

    def to_text(self) -> str:
        """Return the text of option `foldWindows`."""
        partials = [[each.function, each.column] for each in self.partials]
        return json.dumps(
            {
                "eventTime": self.event_time,
                "pane": self.pane_us,
                "by": list(self.by),
                "partials": partials,
                "columns": self.columns,
            }
        )

    def name_partials(self) -> list[str]:
        """Return the names of the partial columns, which no other column has."""
        prefix, taken = "partial", [name.lower() for name in (self.event_time, CTI, *self.by)]
        while any(name.startswith(prefix) for name in taken):
            prefix += "_"
        return [f"{prefix}{number}" for number in range(len(self.partials))]

    def build_schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of partial rows: event time, CTI, key and partial values.

        Raises:
            SchemaRefused: `rows` lacks a column, or a column has a type that is not folded.
        """
        for name in (self.event_time, CTI):
            if _find(rows, name).type != INSTANT:
                raise SchemaRefused(
                    f"column '{name}' is {_find(rows, name).type}",
                    "a timestamp column",
                    "give it the type timestamp in .schema(...), or name another column",
                )
        keys = [(name, _check_key(_find(rows, name))) for name in self.by]
        partials = [
            (name, _find_type(partial, rows))
            for name, partial in zip(self.name_partials(), self.partials, strict=True)
        ]
        return pa.schema([(self.event_time, INSTANT), (CTI, INSTANT), *keys, *partials])


def _parse(text: str) -> WindowFold | None:
    if not text.strip():
        return None
    try:
        given = json.loads(text)
        partials = tuple(Partial(function, column) for function, column in given["partials"])
        fold = WindowFold(
            given["eventTime"], given["pane"], tuple(given["by"]), partials, given["columns"]
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError("not what aggregate_windows writes") from error
    names = [fold.event_time, fold.columns, *fold.by, *(each.column or "" for each in partials)]
    is_known = all(each.function in _FUNCTIONS for each in partials)
    is_whole = type(fold.pane_us) is int and 0 < fold.pane_us < 2**63
    if not (is_known and is_whole and all(isinstance(name, str) for name in names)):
        raise ValueError("not what aggregate_windows writes")
    return fold


FOLD: Final = Parser(
    _parse,
    "the text that aggregate_windows writes",
    format=WindowFold.to_text,
    none_text="",
)
"""Reads option `foldWindows`."""


def _find(rows: pa.Schema, name: str) -> pa.Field:
    place = rows.get_field_index(name)
    if place < 0:
        raise SchemaRefused(
            f"there is no column '{name}'",
            ", ".join(f"'{each}'" for each in rows.names),
            "name one of these, or add it to .schema(...)",
        )
    return rows.field(place)


def _is_ordered(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_boolean(kind)
        or _is_bytes(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _check_key(field: pa.Field) -> pa.DataType:
    if not _is_ordered(field.type):
        raise SchemaRefused(
            f"column '{field.name}' is {field.type}, by which rows are not folded",
            "columns of numbers, texts, bytes, booleans, dates or timestamps",
            "name a field inside of it in .schema(...), such as `a.b`, or use groupBy(...) behind "
            "advance_time",
        )
    return field.type


def _find_type(partial: Partial, rows: pa.Schema) -> pa.DataType:
    """Return the type of a partial column, which holds whatever may be in it."""
    if partial.column is None:
        return pa.int64()
    field, types = _find(rows, partial.column), pa.types
    if partial.function == "count":
        return pa.int64()
    if partial.function in ("min", "max") and _is_ordered(field.type):
        return field.type
    if partial.function == "sum" and types.is_integer(field.type):
        return pa.int64()
    if partial.function == "sum" and types.is_decimal(field.type):
        digits = min(_MOST_DIGITS, field.type.precision + _SUM_DIGITS)
        return pa.decimal128(digits, field.type.scale)
    if types.is_floating(field.type):
        raise SchemaRefused(
            f"column '{field.name}' is {field.type}, and a sum or mean of such numbers depends on "
            "the order in which they are added: its last digits would change with the batches",
            "sums and means of whole numbers and decimals; count, min and max of any number",
            f"declare '{field.name}' as a decimal in .schema(...), such as decimal(18,6), or use "
            "groupBy(...) behind advance_time",
        )
    raise SchemaRefused(
        f"column '{field.name}' is {field.type}, of which there is no {partial.function}",
        "min and max of numbers, texts, bytes, booleans, dates and timestamps; sums and means of "
        "whole numbers and decimals; counts of all",
        "choose another column, or use groupBy(...) behind advance_time",
    )


def fold_rows(
    fold: WindowFold, rows: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fold the rows of a task, and keep the greatest CTI of those that are folded together.

    Args:
        fold: how to fold.
        rows: the columns of `batches`.
        batches: rows of data, with CTI rows between them.

    Returns:
        Rows of `fold.build_schema(rows)`.
    """
    schema = fold.build_schema(rows)
    waiting: list[pa.RecordBatch] = []
    ctis: list[pa.Array] = []
    count = size = 0
    for batch in batches:
        # A task gives CTIs in batches of their own, so that rows of data need no filter.
        if batch[CTI].null_count:
            waiting.append(batch)
        else:
            ctis.append(batch[CTI])
        count, size = count + len(batch), size + batch.nbytes
        if count >= _MOST_ROWS or size >= _MOST_BYTES:
            yield from _fold(fold, schema, pa.Table.from_batches(waiting, rows), ctis)
            waiting, ctis, count, size = [], [], 0, 0
    yield from _fold(fold, schema, pa.Table.from_batches(waiting, rows), ctis)


def _fold(
    fold: WindowFold, schema: pa.Schema, table: pa.Table, ctis: list[pa.Array]
) -> Iterator[pa.RecordBatch]:
    data = _select_data(fold, table)
    if len(data):
        yield from _fold_data(fold, schema, data).to_batches(max_chunksize=_ROWS_A_BATCH)
    greatest = pc.max(pa.chunked_array([*table[CTI].chunks, *ctis], INSTANT))
    if greatest.is_valid:
        cti = pa.array([greatest.as_py()], INSTANT)
        columns = [cti if each.name == CTI else pa.nulls(1, each.type) for each in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _select_data(fold: WindowFold, table: pa.Table) -> pa.Table:
    """Return the rows that `advance_time` and a window leave: on time, with an event time."""
    conditions = []
    if table[CTI].null_count < len(table):
        conditions.append(table[CTI].is_null())
    if table[fold.event_time].null_count:
        conditions.append(table[fold.event_time].is_valid())
    if VIOLATION in table.column_names and table[VIOLATION].null_count < len(table):
        is_adjusted = pc.fill_null(pc.equal(table[VIOLATION], _ADJUSTED), True)
        conditions.append(is_adjusted)
    used = {fold.event_time, *fold.by, *(each.column for each in fold.partials if each.column)}
    table = table.select([name for name in table.column_names if name in used])
    return table.filter(functools.reduce(pc.and_, conditions)) if conditions else table


def _fold_data(fold: WindowFold, schema: pa.Schema, table: pa.Table) -> pa.Table:
    us = table[fold.event_time].cast(pa.int64()).to_numpy()
    # Spark drops rows before 1970, and advance_time names the time of one: they keep their times.
    panes = np.where(us < 0, us, us - us % fold.pane_us)
    keys = {f"k{number}": table[name] for number, name in enumerate(fold.by)}
    columns: dict[str, Any] = {**keys, "pane": pa.array(panes)}
    asked: list[tuple[Any, str]] = []
    ranked: dict[int, pa.Array] = {}
    for number, partial in enumerate(fold.partials):
        name = f"p{number}"
        if partial.column is None:
            asked.append(([], "count_all"))
            continue
        values = table[partial.column]
        if partial.function in ("min", "max"):
            if pa.types.is_floating(values.type):
                values = _to_sortable(values)
            elif _is_bytes(values.type):
                values, ranked[number] = _rank(values)
        columns[name] = values
        asked.append((name, partial.function))
        if partial.function == "sum" and not _is_safe(values, schema.field(2 + len(keys) + number)):
            # Spark adds these rows itself, so that a sum is out of bounds where Spark says so.
            columns["row"] = pa.array(np.arange(len(table)))
    grouped = [*keys, "pane", *(["row"] if "row" in columns else [])]
    folded = pa.table(columns).group_by(grouped, use_threads=False).aggregate(asked)
    results = [folded["pane"].cast(INSTANT), pa.nulls(len(folded), INSTANT)]
    results += [folded[name] for name in keys]
    for number, (partial, (name, function)) in enumerate(zip(fold.partials, asked, strict=True)):
        column = folded[f"{name}_{function}" if partial.column else function]
        kind = schema.field(2 + len(keys) + number).type
        if number in ranked:
            column = ranked[number].take(column)
        elif pa.types.is_floating(kind):
            column = _from_sortable(column)
        results.append(column.cast(kind))
    return pa.Table.from_arrays(results, schema=schema)


def _is_safe(values: pa.ChunkedArray, field: pa.Field) -> bool:
    """Return whether no sum of some of these values leaves the type of its column."""
    types = pa.types
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is None:
        return True
    most = max(abs(bounds["min"]), abs(bounds["max"]))
    if types.is_decimal(field.type):
        return bool(most * len(values) < 10 ** (field.type.precision - field.type.scale))
    return bool(most * len(values) < 2**63)


_SIGN: Final = np.int64(63)
_MAGNITUDE: Final = np.int64(2**63 - 1)


def _to_sortable(values: pa.ChunkedArray) -> pa.Array:
    """Map numbers to integers in Spark's order: any NaN is greatest, and -0.0 is 0.0."""
    is_null = values.is_null().to_numpy() if values.null_count else None
    numbers = pc.fill_null(values, 0.0).to_numpy().astype(np.float64)
    bits: Instants = (np.where(np.isnan(numbers), np.nan, numbers) + 0.0).view(np.int64)
    return pa.array(bits ^ ((bits >> _SIGN) & _MAGNITUDE), mask=is_null)


def _from_sortable(ordered: pa.ChunkedArray) -> pa.Array:
    is_null = ordered.is_null().to_numpy() if ordered.null_count else None
    keys: npt.NDArray[np.int64] = pc.fill_null(ordered, 0).to_numpy()
    bits = keys ^ ((keys >> _SIGN) & _MAGNITUDE)
    return pa.array(bits.view(np.float64), mask=is_null)


def _rank(values: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return the rank of each value in the order of its bytes, and the values by their ranks."""
    encoded = values.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    order = pc.sort_indices(encoded.dictionary)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    return pa.array(ranks).take(encoded.indices), encoded.dictionary.take(order)
