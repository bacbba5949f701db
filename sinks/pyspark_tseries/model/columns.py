"""Define the columns of a store and their types (semantics 15.3 and 15.5), and check texts.

Arrow does not check that text is UTF-8, but DuckDB, Polars and Python cannot read a file with text
that is not. So `check_text` refuses a batch with such text before anything is written.

A column can get a wider type, which holds every value of the narrower one unchanged (semantics
35.4). Types follow the rules of Delta's feature `typeWidening`, and fields of structs Delta's
schema evolution.
"""

from collections.abc import Iterable, Sequence, Set
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import IncompatibleValue
from pyspark_tseries.model.arrays import find_first, is_any_binary, is_any_list, is_any_text

MAX_SHOWN_BYTES = 24


def is_valid_text(text: object) -> bool:
    """Return whether UTF-8 can encode `text`: a str without an unpaired surrogate."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(
    batch: pa.RecordBatch, columns: Sequence[str], series: str | None, series_name: str | None
) -> None:
    """Check every text in `columns` of a batch, nested texts included.

    The column `series` has each row's series; if it is None, all rows have `series_name`.

    Raises:
        IncompatibleValue: a text is not UTF-8; the error names series and column.
    """
    for name in columns:
        column = batch[name]
        if _contains_text(column.type) and not _is_valid_utf8(column):
            row = _first_invalid_row(column)
            owner = series_name if series is None else _describe_cell(batch[series], row)
            raise IncompatibleValue(
                f"series {owner!r}: column '{name}' holds {_describe_cell(column, row)!r}, which "
                "is not UTF-8",
                "text in UTF-8, or bytes in a binary column",
                "leave out the cast from binary to string, or mend it with Spark's "
                "make_valid_utf8. Nothing of the batch is stored",
            )


def _contains_text(data_type: pa.DataType) -> bool:
    if pa.types.is_map(data_type):
        return _contains_text(data_type.key_type) or _contains_text(data_type.item_type)
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return _contains_text(data_type.value_type)
    if pa.types.is_struct(data_type):
        return any(_contains_text(field.type) for field in data_type)
    return pa.types.is_string(data_type) or pa.types.is_large_string(data_type)  # type: ignore[no-any-return]


def _is_valid_utf8(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _first_invalid_row(column: pa.Array) -> int:
    # validate() checks the whole buffers of a slice; take() copies only these rows.
    return find_first(
        len(column),
        lambda start, end: not _is_valid_utf8(column.take(pa.array(np.arange(start, end)))),
    )


def _describe_cell(column: pa.Array, row: int) -> object:
    """Return a cell's text, or bytes around the first invalid one; for other types the type."""
    data_type = column.type
    if not (pa.types.is_string(data_type) or pa.types.is_large_string(data_type)):
        return str(data_type)
    cell = column.slice(row, 1).cast(pa.large_binary())[0].as_py()
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError as error:
        start = max(0, error.start - MAX_SHOWN_BYTES // 2)
        return cell[start : start + MAX_SHOWN_BYTES]


INSTANT: Final = pa.timestamp("us", "UTC")

EVENT_FIELDS: Final = (
    pa.field("series", pa.string(), nullable=False),
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("timestamp", INSTANT, nullable=False),
    pa.field("author", pa.string(), nullable=False),
)
ORIGINAL_FIELDS: Final = (
    pa.field("original_sequence", pa.int64()),
    pa.field("original_timestamp", INSTANT),
    pa.field("original_author", pa.string()),
)
COMMIT_FIELDS: Final = (
    pa.field("commit", pa.int64(), nullable=False),
    pa.field("commit_time", INSTANT, nullable=False),
)
EDIT_TIME: Final = pa.field("edit_timestamp", INSTANT)
"""The result column with the time of an event's edit (semantics 21.12)."""

_KIND_FIELD: Final = pa.field("kind", pa.string(), nullable=False)
ERASURE_FIELD: Final = pa.field("erasure", pa.string())
"""The id of the erasure that erased the event, or null (semantics 18.6).

The first erasure adds this column to the table; only files with an erased event have it.
"""
ERASED_FIELDS: Final = (
    pa.field("erased_by", pa.string()),
    pa.field("erased_at", INSTANT),
    pa.field("erased_because", pa.string()),
)
"""Who erased an event, when and why; null for an event that is not erased (`history`)."""

RESERVED_NAMES: Final = tuple(
    field.name
    for field in (
        *EVENT_FIELDS,
        *ORIGINAL_FIELDS,
        *COMMIT_FIELDS,
        _KIND_FIELD,
        ERASURE_FIELD,
        *ERASED_FIELDS,
        EDIT_TIME,
    )
)
"""Names that no value column may have; case does not matter."""

_SPARK_NAMES: Final = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    INSTANT: "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}

_EXTENSION_TAGS: Final = {b"variant", b"geometry", b"geography"}
"""Spark sets these metadata keys on the fields of a struct that represents another type."""

_FORBIDDEN_NAME_CHARACTERS: Final = set(" ,;{}()\n\t=")
"""Delta forbids these in tables without column mapping."""


def table_schema(values: Iterable[pa.Field]) -> pa.Schema:
    """Return the Delta table's schema: metadata, values, the overridden original, commit, kind.

    The table is partitioned by `kind` (`event` or `edit`), so that edits stay in few small files.
    """
    return event_schema(values).append(_KIND_FIELD)


def event_schema(values: Iterable[pa.Field]) -> pa.Schema:
    """Return the columns of an event as it is written: the table's, without `kind`."""
    return pa.schema([*EVENT_FIELDS, *values, *ORIGINAL_FIELDS, *COMMIT_FIELDS])


def select_fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the columns `names` of `schema`, in their order."""
    return pa.schema([schema.field(name) for name in names])


def file_schema(values: Iterable[pa.Field]) -> pa.Schema:
    """Return the columns of a data file: those of its events, and `erasure`."""
    return event_schema(values).append(ERASURE_FIELD)


def query_schema(values: Iterable[pa.Field]) -> pa.Schema:
    """Return the stored columns that queries and subscriptions show, in order."""
    return pa.schema([*EVENT_FIELDS, *values, *ORIGINAL_FIELDS])


def result_schema(values: Iterable[pa.Field]) -> pa.Schema:
    """Return the columns of the events of a query or a subscription, in order."""
    return query_schema(values).append(EDIT_TIME)


SHOWN_FROM: Final = ("timestamp", "original_sequence", "original_timestamp")
"""`show_columns` computes the times of a result from these stored columns."""


def show_columns(rows: pa.Table, names: Sequence[str], *, at_originals: bool) -> pa.Table:
    """Return the columns `names` of stored events as a result shows them (semantics 21.12).

    `rows` has these columns and `SHOWN_FROM`. With `at_originals`, an edit has the `timestamp` of
    its original, as in a `values` query.
    """
    computed = {}
    if at_originals and "timestamp" in names and rows["original_sequence"].null_count < len(rows):
        computed["timestamp"] = pc.coalesce(rows["original_timestamp"], rows["timestamp"])
    if EDIT_TIME.name in names:
        none = pa.scalar(None, EDIT_TIME.type)
        edited = rows["original_sequence"].is_valid()
        computed[EDIT_TIME.name] = pc.if_else(edited, rows["timestamp"], none)
    schema = rows.schema.append(EDIT_TIME)
    fields = [schema.field(name).with_nullable(True) for name in names]
    columns = [computed[name] if name in computed else rows[name] for name in names]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def originals_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the sequence of each event's original; of an original its own."""
    return pc.coalesce(rows["original_sequence"], rows["sequence"])


def list_python_values(table: pa.Table, name: str, next_step: str, use: str = "") -> list[Any]:
    """Return a column as Python's values, for the `use` that a message names.

    Raises:
        IncompatibleValue: the column has a time that no Python datetime or date can hold.
    """
    try:
        values: list[Any] = table[name].to_pylist()
    except OverflowError:
        raise IncompatibleValue(
            f"column '{name}' ({table[name].type}) holds a time that Python cannot represent{use}",
            "the years 1 to 9999",
            next_step,
        ) from None
    return values


def value_fields(table: pa.Schema) -> list[pa.Field]:
    """Return the value columns of the Delta schema `table`."""
    return [
        pa.field(field.name, value_type(field), field.nullable, metadata=_keep_unit(field))
        for field in table
        if field.name not in set(RESERVED_NAMES)
    ]


UNIT_KEY: Final = b"unit"
"""The metadata key of a column's unit."""


def find_unit(field: pa.Field) -> str | None:
    """Return the unit of a value column, such as `°C`; None if it has none (semantics 15.5)."""
    unit = (field.metadata or {}).get(UNIT_KEY)
    return None if not unit else unit.decode(errors="replace")


def label_column(field: pa.Field) -> str:
    """Return the name of a column, with its unit if it has one, as the head of a table."""
    unit = find_unit(field)
    return f"{field.name} ({unit})" if unit else str(field.name)


def _keep_unit(field: pa.Field) -> dict[bytes, bytes] | None:
    """Return the metadata of a column that a store keeps: its unit.

    Raises:
        IncompatibleValue: the unit is not UTF-8.
    """
    unit = (field.metadata or {}).get(UNIT_KEY)
    if not unit:
        return None
    try:
        unit.decode()
    except UnicodeDecodeError:
        raise IncompatibleValue(
            f"column '{field.name}' has the unit {unit!r}, which is not UTF-8",
            "a text such as '°C'",
            "correct the key 'unit' of its metadata",
        ) from None
    return {UNIT_KEY: unit}


def find_later_columns(query_columns: Set[str], values: Sequence[pa.Field]) -> Sequence[pa.Field]:
    """Return the columns of `values` added since a query selected all columns, `query_columns`.

    New columns come last. So a query that has the metadata and the first value columns once
    selected all columns. A query with fewer columns has chosen them and gets no new ones.
    """
    count = len(query_columns) - len(result_schema([]))
    if not 0 <= count < len(values) or query_columns != set(result_schema(values[:count]).names):
        return []
    return values[count:]


def type_name(data_type: pa.DataType) -> str:
    """Return Spark's name of the type, or Arrow's if both use the same."""
    return _SPARK_NAMES.get(data_type, str(data_type))


def value_type(field: pa.Field) -> pa.DataType:
    """Return the Delta type that stores `field`, nullable at every level.

    Raises:
        IncompatibleValue: Delta cannot store the type.
    """
    if (field.metadata or {}).get(b"variant") == b"true":
        raise unstorable_type_error(field.name, "variant")
    return _value_type(field, field.type)


def new_value_field(field: pa.Field) -> pa.Field:
    """Return the value column that stores an incoming `field`.

    Raises:
        IncompatibleValue: Delta cannot store its type or its name.
    """
    _check_name(field, field.name)
    return pa.field(field.name, value_type(field), metadata=_keep_unit(field))


def unstorable_type_error(
    column: str, type_text: str, reason: str = "which a store cannot hold"
) -> IncompatibleValue:
    """Return the error for a value column with a type that Delta cannot store."""
    return IncompatibleValue(
        f"column '{column}' is of type {type_text}, {reason}",
        "numbers, decimals, strings, binaries, booleans, dates, timestamps, and arrays, maps and "
        "structs of them",
        "cast the column, for example to bigint or string",
    )


def _value_type(column: pa.Field, data_type: pa.DataType, *, in_map: bool = False) -> pa.DataType:
    types = pa.types
    if is_any_list(data_type):
        item = _value_type(column, data_type.value_type, in_map=in_map)
        return pa.list_(pa.field("element", item))
    if types.is_map(data_type):
        item = _value_type(column, data_type.item_type, in_map=True)
        return pa.map_(_value_type(column, data_type.key_type, in_map=True), item)
    if types.is_struct(data_type):
        _check_struct(column, data_type)
        return pa.struct(
            [pa.field(f.name, _value_type(column, f.type, in_map=in_map)) for f in data_type]
        )
    if in_map and data_type == pa.timestamp("us"):
        # This type needs a table feature. deltalake does not look for it inside maps, so it would
        # not enable the feature, and no reader could open the table.
        reason = "which a Delta table cannot hold inside a map"
        raise unstorable_type_error(column.name, "timestamp_ntz", reason)
    return _primitive_type(column, data_type)


def _check_struct(column: pa.Field, data_type: pa.DataType) -> None:
    for field in data_type:
        for tag in _EXTENSION_TAGS & (field.metadata or {}).keys():
            raise unstorable_type_error(column.name, tag.decode())
        _check_name(column, field.name)
    names = [field.name.lower() for field in data_type]
    if not names:
        raise unstorable_type_error(column.name, "struct<>", "which Parquet cannot hold")
    for name in names:
        if names.count(name) > 1:
            raise IncompatibleValue(
                f"column '{column.name}' has two fields '{name}'",
                "names that differ in more than case",
                "rename one of them",
            )


def _check_name(column: pa.Field, name: str) -> None:
    if not name or set(name) & _FORBIDDEN_NAME_CHARACTERS:
        raise IncompatibleValue(
            f"column '{column.name}' has the name {name!r}, which a Delta table cannot have",
            "names that are not empty and have no space, tab, line break or any of ',;{}()='",
            "rename it",
        )


def _primitive_type(column: pa.Field, data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if is_any_text(data_type):
        return pa.string()
    if is_any_binary(data_type):
        return pa.binary()
    if types.is_timestamp(data_type) and data_type.unit == "us":
        return INSTANT if data_type.tz else data_type
    if data_type in _SPARK_NAMES or data_type in (pa.float32(), pa.float64()):
        return data_type
    if types.is_decimal128(data_type) and data_type.scale >= 0:
        return data_type
    raise unstorable_type_error(column.name, str(data_type))


_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""The types of whole numbers, narrowest first, and the most digits of their numbers."""

_DOUBLES = (pa.float32(), pa.int8(), pa.int16(), pa.int32())
"""A double holds every number of these types."""


def fits(data_type: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether the type `stored` holds every value of the type `data_type`."""
    return _find_misfit(data_type, stored, "") is None


def widen_field(current: pa.Field, requested: pa.Field) -> pa.Field:
    """Return the value column `current` with the type of `requested`, which is as wide or wider.

    Raises:
        IncompatibleValue: it is narrower; the error names what does not fit and the next step.
    """
    misfit = _find_misfit(current.type, requested.type, current.name)
    if misfit is not None:
        raise IncompatibleValue(
            f"column '{current.name}' cannot become {type_name(requested.type)}: {misfit[0]}",
            "a type that holds every value of the column: for whole numbers more bits, double (up "
            "to int) or a decimal, for float double, for decimals more digits before and after "
            "the point, for structs more fields",
            misfit[1],
        )
    return current.with_type(requested.type)


def add_fields(current: pa.Field, incoming: pa.DataType) -> pa.Field:
    """Return `current`, with the fields of structs that only `incoming` has added at the end."""
    return current.with_type(_unite_types(current.type, incoming))


_CAST = "add a column of the new type with add_columns, and write to that from now on"
_NAME = "give the whole type: the present fields in their order, then the new ones"


def _find_misfit(old: pa.DataType, new: pa.DataType, path: str) -> tuple[str, str] | None:
    """Return why `new` does not hold every value of `old`, and the next step; None if it does."""
    types = pa.types
    if old == new:
        return None
    if types.is_struct(old) and types.is_struct(new):
        return _find_field_misfit(old, new, path)
    if types.is_list(old) and types.is_list(new):
        return _find_misfit(old.value_type, new.value_type, f"{path}.element")
    if types.is_map(old) and types.is_map(new):
        key = _find_misfit(old.key_type, new.key_type, f"{path}.key")
        return key or _find_misfit(old.item_type, new.item_type, f"{path}.value")
    if _is_wider(old, new):
        return None
    if _is_wider(new, old):
        why = f"'{path}' is {type_name(old)} now, and {type_name(new)} is narrower"
        return why, "leave it as it is: it takes narrower values as well"
    return f"'{path}' is {type_name(old)}, and {type_name(new)} does not hold all of it", _CAST


def _find_field_misfit(old: pa.StructType, new: pa.StructType, path: str) -> tuple[str, str] | None:
    names = [field.name for field in new]
    position = -1
    for field in old:
        if field.name not in names:
            return f"the new type lacks the field '{path}.{field.name}'", _NAME
        if names.index(field.name) < position:
            return f"the field '{path}.{field.name}' is at another place", _NAME
        position = names.index(field.name)
        misfit = _find_misfit(field.type, new[position].type, f"{path}.{field.name}")
        if misfit is not None:
            return misfit
    return None


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    types = pa.types
    if types.is_decimal(new):
        room = new.precision - new.scale
        if old in _DIGITS:
            return bool(room >= _DIGITS[old] and new.scale >= 0)
        more = types.is_decimal(old) and room >= old.precision - old.scale
        return bool(more and new.scale >= old.scale)
    if new == pa.float64():
        return old in _DOUBLES
    return bool(old in _DIGITS and new in _DIGITS and _DIGITS[old] <= _DIGITS[new])


def _unite_types(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(old) and types.is_struct(new):
        theirs = {field.name.lower(): field for field in new}
        ours = {field.name.lower() for field in old}
        united = [
            field.with_type(_unite_types(field.type, theirs[field.name.lower()].type))
            if field.name.lower() in theirs
            else field
            for field in old
        ]
        return pa.struct([*united, *(field for name, field in theirs.items() if name not in ours)])
    if types.is_list(old) and types.is_list(new):
        return pa.list_(pa.field("element", _unite_types(old.value_type, new.value_type)))
    if types.is_map(old) and types.is_map(new):
        key = _unite_types(old.key_type, new.key_type)
        return pa.map_(key, _unite_types(old.item_type, new.item_type))
    return old


def is_readable_as(stored: pa.DataType, data_type: pa.DataType) -> bool:
    """Return whether every reader of Delta reads values of type `stored` in a file as `data_type`.

    To all readers, a field that a struct in a file lacks is null, but not inside a map. Other types
    must be equal: reading them as another needs a feature that many readers lack.
    """
    types = pa.types
    if types.is_struct(stored) and types.is_struct(data_type):
        needed = {field.name: field.type for field in data_type}
        return bool(len(stored)) and all(
            field.name in needed and is_readable_as(field.type, needed[field.name])
            for field in stored
        )
    if types.is_list(stored) and types.is_list(data_type):
        return is_readable_as(stored.value_type, data_type.value_type)
    if types.is_map(stored) and types.is_map(data_type):
        same = stored.key_type == data_type.key_type, stored.item_type == data_type.item_type
        return all(same)
    return bool(stored == data_type)


def widen_rows(rows: pa.Table, values: Sequence[pa.Field]) -> pa.Table:
    """Return `rows` with columns cast to the wider types that they have in `values`."""
    types = {field.name.lower(): field.type for field in values}
    for position, field in enumerate(rows.schema):
        data_type = types.get(field.name.lower(), field.type)
        if data_type != field.type and fits(field.type, data_type):
            rows = rows.set_column(
                position, field.with_type(data_type), rows[position].cast(data_type)
            )
    return rows
