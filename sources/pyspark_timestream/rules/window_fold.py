"""Folds rows into partial rows, one per key and *pane* of time (semantics 11.16 to 11.18).

A pane is the longest interval that no window of the query cuts: the window itself, or the greatest
common divisor of window and slide. All rows of a pane lie in the same windows, so one partial row
may stand for them, and Spark adds the partial rows of all tasks and batches as it adds rows. So it
does no harm to fold too few rows together, and a row that cannot be folded passes unchanged. Rows
of different groups must never be folded together.
"""

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import CTI_COLUMN, INSTANT, MAX_DIGITS, Integers, Mask
from pyspark_timestream.core.declarations import Parser
from pyspark_timestream.core.instants import Instants
from pyspark_timestream.errors import SchemaRefused

Function = Literal["count", "sum", "min", "max"]
_FUNCTIONS: Final = ("count", "sum", "min", "max")

VIOLATION: Final = "violation"
_ADJUSTED: Final = "adjusted"

_MOST_ROWS: Final = 1 << 17
_MOST_BYTES: Final = 1 << 26
"""Fold at most this many rows or bytes together; a task holds no more."""

_ROWS_A_BATCH: Final = 1 << 14
_CODES_A_ROW: Final = 4
"""Renumber the groups if there are more codes for each row than this."""

_SUM_DIGITS: Final = 10
"""A sum of decimals has this many more digits, in Spark and here."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A column of partial rows.

    Attributes:
        function: how it summarizes the rows.
        column: the column that it summarizes; None: count the rows themselves.
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
        columns: the columns of the rows to fold, as Spark's JSON of a schema.
    """

    event_time: str
    pane_us: int
    by: tuple[str, ...]
    partials: tuple[Partial, ...]
    columns: str

    def to_text(self) -> str:
        """Return the text of option `foldWindows`."""
        partials = [[partial.function, partial.column] for partial in self.partials]
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
        names = [name.lower() for name in (self.event_time, CTI_COLUMN, *self.by)]
        prefix = "partial"
        while any(name.startswith(prefix) for name in names):
            prefix += "_"
        return [f"{prefix}{number}" for number in range(len(self.partials))]

    def build_schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of partial rows: event time, CTI, key and partial values.

        Raises:
            SchemaRefused: `rows` lacks a column, or a column has a type that is not folded.
        """
        for name in (self.event_time, CTI_COLUMN):
            if _find_field(rows, name).type != INSTANT:
                raise SchemaRefused(
                    f"column '{name}' is {_find_field(rows, name).type}",
                    "a timestamp column",
                    "give it the type timestamp in .schema(...), or name another column",
                )
        keys = [(name, _check_key(_find_field(rows, name))) for name in self.by]
        partials = [
            (name, _find_type(partial, rows))
            for name, partial in zip(self.name_partials(), self.partials, strict=True)
        ]
        return pa.schema([(self.event_time, INSTANT), (CTI_COLUMN, INSTANT), *keys, *partials])


def _parse_fold(text: str) -> WindowFold | None:
    if not text.strip():
        return None
    try:
        fields = json.loads(text)
        partials = tuple(Partial(function, column) for function, column in fields["partials"])
        fold = WindowFold(
            fields["eventTime"], fields["pane"], tuple(fields["by"]), partials, fields["columns"]
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError("not what aggregate_windows writes") from error
    names = [
        fold.event_time,
        fold.columns,
        *fold.by,
        *(partial.column or "" for partial in partials),
    ]
    is_known = all(partial.function in _FUNCTIONS for partial in partials)
    is_whole = type(fold.pane_us) is int and 0 < fold.pane_us < 2**63
    if not (is_known and is_whole and all(isinstance(name, str) for name in names)):
        raise ValueError("not what aggregate_windows writes")
    return fold


FOLD: Final = Parser(
    _parse_fold,
    "the text that aggregate_windows writes",
    format=WindowFold.to_text,
    none_text="",
)
"""Reads option `foldWindows`."""


def _find_field(rows: pa.Schema, name: str) -> pa.Field:
    index = rows.get_field_index(name)
    if index < 0:
        raise SchemaRefused(
            f"there is no column '{name}'",
            ", ".join(f"'{column}'" for column in rows.names),
            "name one of these, or add it to .schema(...)",
        )
    return rows.field(index)


def _is_ordered(data_type: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_integer(data_type)
        or types.is_floating(data_type)
        or types.is_decimal(data_type)
        or types.is_date(data_type)
        or types.is_timestamp(data_type)
        or types.is_boolean(data_type)
        or _is_bytes(data_type)
    )


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


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
    """Return the type of a partial column, wide enough for every partial value."""
    if partial.column is None:
        return pa.int64()
    field, types = _find_field(rows, partial.column), pa.types
    if partial.function == "count":
        return pa.int64()
    if partial.function in ("min", "max") and _is_ordered(field.type):
        return field.type
    if partial.function == "sum" and types.is_integer(field.type):
        return pa.int64()
    if partial.function == "sum" and types.is_decimal(field.type):
        digits = min(MAX_DIGITS, field.type.precision + _SUM_DIGITS)
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
        f"column '{field.name}' is {field.type}, which has no {partial.function}",
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
        if batch[CTI_COLUMN].null_count:
            waiting.append(batch)
        else:
            ctis.append(batch[CTI_COLUMN])
        count, size = count + len(batch), size + batch.nbytes
        if count >= _MOST_ROWS or size >= _MOST_BYTES:
            yield from _fold(fold, schema, pa.Table.from_batches(waiting, rows), ctis)
            waiting = []
            ctis = []
            count = 0
            size = 0
    yield from _fold(fold, schema, pa.Table.from_batches(waiting, rows), ctis)


def _fold(
    fold: WindowFold, schema: pa.Schema, table: pa.Table, ctis: list[pa.Array]
) -> Iterator[pa.RecordBatch]:
    data = _select_data(fold, table)
    if len(data):
        yield from _fold_data(fold, schema, data).to_batches(max_chunksize=_ROWS_A_BATCH)
    greatest = pc.max(pa.chunked_array([*table[CTI_COLUMN].chunks, *ctis], INSTANT))
    if greatest.is_valid:
        cti = pa.array([greatest.as_py()], INSTANT)
        columns = [cti if field.name == CTI_COLUMN else pa.nulls(1, field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _select_data(fold: WindowFold, table: pa.Table) -> pa.Table:
    """Return the rows that `advance_time` and a window leave: on time, with an event time."""
    conditions = []
    if table[CTI_COLUMN].null_count < len(table):
        conditions.append(table[CTI_COLUMN].is_null())
    if table[fold.event_time].null_count:
        conditions.append(table[fold.event_time].is_valid())
    if VIOLATION in table.column_names and table[VIOLATION].null_count < len(table):
        is_adjusted = pc.fill_null(pc.equal(table[VIOLATION], _ADJUSTED), True)
        conditions.append(is_adjusted)
    used = {
        fold.event_time,
        *fold.by,
        *(partial.column for partial in fold.partials if partial.column),
    }
    table = table.select([name for name in table.column_names if name in used])
    return table.filter(functools.reduce(pc.and_, conditions)) if conditions else table


def _fold_data(fold: WindowFold, schema: pa.Schema, table: pa.Table) -> pa.Table:
    data_types = dict(zip(fold.partials, schema.types[2 + len(fold.by) :], strict=True))
    us = table[fold.event_time].cast(pa.int64()).to_numpy()
    keys = [_encode_values(table[name]) for name in fold.by]
    if all(_is_safe(table, partial, data_type) for partial, data_type in data_types.items()):
        codes = _Codes(us, fold.pane_us, keys)
        groups = _RowGroups(codes.codes, codes.size)
        panes, key_indexes = codes.split(groups.used)
    else:
        # Spark adds these rows itself, so that a sum is out of bounds where Spark says so.
        groups = _RowGroups(np.arange(len(us)), len(us))
        panes = _floor_to_panes(us, fold.pane_us)
        key_indexes = [key.indices.to_numpy() for key in keys]
    results = [pa.array(panes).cast(INSTANT), pa.nulls(len(panes), INSTANT)]
    results += [
        key.dictionary.take(pa.array(indexes))
        for key, indexes in zip(keys, key_indexes, strict=True)
    ]
    columns = {
        name: _Values(table[name]) for name in {partial.column for partial in data_types} if name
    }
    results += [
        pa.array(groups.count(None))
        if partial.column is None
        else columns[partial.column].fold(partial.function, groups, data_type)
        for partial, data_type in data_types.items()
    ]
    return pa.Table.from_arrays(results, schema=schema)


def _encode_values(values: pa.ChunkedArray) -> pa.DictionaryArray:
    """Encode values as indexes into the distinct values; null is one of these."""
    encoded = values.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def _floor_to_panes(us: Instants, pane_us: int) -> Instants:
    """Return the panes of times; a time before 1970 stays, since `advance_time` refuses it."""
    floored: Instants = us // pane_us * pane_us
    return floored if us.min() >= 0 else np.where(us < 0, us, floored)


def _number_values(values: Integers) -> tuple[Integers, Integers]:
    """Return a number for each distinct value, without gaps, and the values by their numbers."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_numpy()


class _Codes:
    """One code for each row, which stands for its pane and its key.

    A new array for all rows would make the system map new pages, so the codes overwrite the times.

    Attributes:
        codes: the codes.
        size: all codes are below this.
    """

    def __init__(self, us: Instants, pane_us: int, keys: Iterable[pa.DictionaryArray]) -> None:
        # How `split` takes a code apart, from the last: a number of keys divides it, and an array
        # has the code or time for which a number without gaps stands.
        self._steps: list[int | Integers] = []
        self._pane_us = pane_us
        self._first_pane = 0
        self._number_panes(us)
        for key in keys:
            count = len(key.dictionary)
            self.codes *= count
            self.codes += key.indices.to_numpy()
            self.size *= count
            self._steps.append(count)
            if self.size > _CODES_A_ROW * len(us):
                self._number_anew(self.codes)

    def _number_panes(self, us: Instants) -> None:
        first_pane, last_pane = int(us.min()) // self._pane_us, int(us.max()) // self._pane_us
        self.size = last_pane - first_pane + 1
        if first_pane < 0 or self.size > len(us):
            self._number_anew(_floor_to_panes(us, self._pane_us))
            self._pane_us = 1  # The numbers stand for times already.
        else:
            self.codes = np.floor_divide(us, self._pane_us, out=us if us.flags.writeable else None)
            self._first_pane = first_pane
            self.codes -= first_pane

    def _number_anew(self, values: Integers) -> None:
        self.codes, distinct = _number_values(values)
        self.size = len(distinct)
        self._steps.append(distinct)

    def split(self, codes: Integers) -> tuple[Integers, list[Integers]]:
        """Return for each code the beginning of its pane, and the index of each key."""
        indexes: list[Integers] = []
        for step in reversed(self._steps):
            if isinstance(step, int):
                codes, index = np.divmod(codes, step)
                indexes.append(index)
            else:
                codes = step[codes]
        return (codes + self._first_pane) * self._pane_us, indexes[::-1]


class _RowGroups:
    """Groups of rows, in the order of their codes.

    Attributes:
        codes: the code of each row, below `size`.
        used: the codes that occur, one a group.
    """

    def __init__(self, codes: Integers, size: int) -> None:
        self.codes = codes
        self.size = size
        self._counts = np.bincount(codes, minlength=size)
        self.used = np.flatnonzero(self._counts)

    def count(self, rows: Integers | None) -> Integers:
        """Count in each group those of `rows`; None: all."""
        if rows is None:
            return self._counts[self.used]
        return np.bincount(self.codes[rows], minlength=self.size)[self.used]

    def fold(
        self, function: np.ufunc, initial: int, numbers: Integers, rows: Integers | None
    ) -> Integers:
        """Apply `function`, which begins with `initial`, to the numbers of `rows`; None: to all."""
        folded = np.full(self.size, initial, dtype=np.int64)
        codes = self.codes
        if rows is not None:
            codes, numbers = codes[rows], numbers[rows]
        function.at(folded, codes, numbers)
        return folded[self.used]


_UFUNCS: Final[dict[str, tuple[np.ufunc, int]]] = {
    "sum": (np.add, 0),
    "min": (np.minimum, 2**63 - 1),
    "max": (np.maximum, -(2**63)),
}


class _Values:
    """A column of values; once needed, they become numbers that sort in the same order."""

    def __init__(self, values: pa.ChunkedArray) -> None:
        self._values = values
        self._valid_rows: Integers | None = None
        """The rows with a value that is not null; None: all."""
        if values.null_count:
            self._valid_rows = np.flatnonzero(values.is_valid().to_numpy())
        self._ranked: pa.Array | None = None

    @functools.cached_property
    def _numbers(self) -> Integers | None:
        """The values as numbers; None: they are decimals of more than 64 bits."""
        values, types = self._values, pa.types
        if types.is_decimal(values.type):
            return _read_decimals(values)
        if types.is_floating(values.type):
            return _to_sortable(values)
        if _is_bytes(values.type):
            ranks, self._ranked = _rank_values(values)
            return ranks
        if types.is_date32(values.type):
            values = values.cast(pa.int32())
        values = values.cast(pa.int64())
        numbers: Integers = (pc.fill_null(values, 0) if values.null_count else values).to_numpy()
        return numbers

    def fold(self, function: Function, groups: _RowGroups, data_type: pa.DataType) -> pa.Array:
        """Return the result of `function` for each group, in `data_type`."""
        if function == "count":
            return pa.array(groups.count(self._valid_rows))
        numbers, types = self._numbers, pa.types
        if numbers is None or (
            types.is_decimal(data_type) and function == "sum" and _is_large(numbers)
        ):
            return self._fold_large(function, groups, data_type)
        folded = groups.fold(*_UFUNCS[function], numbers, self._valid_rows)
        is_null = None if self._valid_rows is None else groups.count(self._valid_rows) == 0
        if types.is_decimal(data_type):
            return _write_decimals(folded, is_null, data_type)
        if types.is_floating(data_type):
            return pa.array(_from_sortable(folded), mask=is_null).cast(data_type)
        results = pa.array(folded, mask=is_null)
        if self._ranked is not None:
            return self._ranked.take(results)
        return (results.cast(pa.int32()) if types.is_date32(data_type) else results).cast(data_type)

    def _fold_large(
        self, function: Function, groups: _RowGroups, data_type: pa.DataType
    ) -> pa.Array:
        rows = pa.table({"code": pa.array(groups.codes), "value": self._values})
        folded = rows.group_by("code", use_threads=False).aggregate([("value", function)])
        order = pc.sort_indices(folded["code"])
        return folded[f"value_{function}"].take(order).combine_chunks().cast(data_type)


def _is_large(numbers: Integers) -> bool:
    """Return whether some of these numbers might add up to more than 64 bits."""
    return max(-int(numbers.min()), int(numbers.max())) * len(numbers) >= 2**63


def _read_decimals(values: pa.ChunkedArray) -> Integers | None:
    """Return decimals without their points; None if one has more than 64 bits."""
    chunks = [np.empty(0, dtype=np.int64)]
    for chunk in values.chunks:
        start, count = chunk.offset * 2, len(chunk) * 2
        words = np.frombuffer(chunk.buffers()[1] or b"", dtype=np.int64)[start : start + count]
        low, high = words[::2], words[1::2]
        if np.any(high != low >> _SIGN):
            return None
        chunks.append(low)
    return np.concatenate(chunks)


def _write_decimals(numbers: Integers, is_null: Mask | None, data_type: pa.DataType) -> pa.Array:
    words = np.stack((numbers, numbers >> _SIGN), axis=1)
    validity = None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(data_type, len(numbers), [validity, pa.py_buffer(words)])


def _is_safe(table: pa.Table, partial: Partial, data_type: pa.DataType) -> bool:
    """Return whether every sum of some of these values fits the type of its column."""
    if partial.function != "sum" or partial.column is None:
        return True
    bounds = pc.min_max(table[partial.column]).as_py()
    if bounds["min"] is None:
        return True
    # Python rounds the product of decimals, and even what `abs` returns, to 28 digits.
    greatest = max(abs(Fraction(bounds["min"])), abs(Fraction(bounds["max"])))
    if pa.types.is_decimal(data_type):
        return bool(greatest * len(table) < 10 ** (data_type.precision - data_type.scale))
    return bool(greatest * len(table) < 2**63)


_SIGN: Final = np.int64(63)
_MAGNITUDE: Final = np.int64(2**63 - 1)


def _to_sortable(values: pa.ChunkedArray) -> Integers:
    """Map numbers to integers in Spark's order: any NaN is greatest, and -0.0 is 0.0."""
    if values.null_count:
        values = pc.fill_null(values, 0.0)
    numbers = values.to_numpy().astype(np.float64)
    # Adding 0.0 turns -0.0 into 0.0.
    numbers += 0.0
    is_nan = np.isnan(numbers)
    if is_nan.any():
        numbers[is_nan] = np.nan
    bits: Integers = numbers.view(np.int64)
    return bits ^ ((bits >> _SIGN) & _MAGNITUDE)


def _from_sortable(keys: Integers) -> npt.NDArray[np.float64]:
    bits = keys ^ ((keys >> _SIGN) & _MAGNITUDE)
    return bits.view(np.float64)


def _rank_values(values: pa.ChunkedArray) -> tuple[Integers, pa.Array]:
    """Return the rank of each value in the order of its bytes, and the values by their ranks."""
    encoded = _encode_values(values)
    order = pc.sort_indices(encoded.dictionary)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    return ranks[encoded.indices.to_numpy()], encoded.dictionary.take(order)
