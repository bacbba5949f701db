"""The columns of a store and their types."""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from pyspark_tseries.errors import IncompatibleValue

__all__ = [
    "EVENT",
    "INSTANT",
    "ORIGINAL",
    "RESERVED",
    "layout",
    "query_schema",
    "stored_values",
    "type_name",
    "value_type",
]

INSTANT: Final = pa.timestamp("us", "UTC")

EVENT: Final = (
    pa.field("series", pa.string(), nullable=False),
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("timestamp", INSTANT, nullable=False),
    pa.field("author", pa.string(), nullable=False),
)
ORIGINAL: Final = (
    pa.field("original_sequence", pa.int64()),
    pa.field("original_timestamp", INSTANT),
    pa.field("original_author", pa.string()),
)
_COMMIT: Final = (
    pa.field("commit", pa.int64(), nullable=False),
    pa.field("commit_time", INSTANT, nullable=False),
)
_KIND: Final = pa.field("kind", pa.string(), nullable=False)
RESERVED: Final = tuple(field.name for field in (*EVENT, *ORIGINAL, *_COMMIT, _KIND))
"""The names that no value column may have, in any case."""

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


def layout(values: Iterable[pa.Field]) -> pa.Schema:
    """The schema of the Delta table: metadata, values, what is overridden, the commit, the kind.

    `kind` (`event` or `edit`) is the partition column: edits stay in few small files.
    """
    return pa.schema([*EVENT, *values, *ORIGINAL, *_COMMIT, _KIND])


def query_schema(values: Iterable[pa.Field]) -> pa.Schema:
    """The columns of a query, in order."""
    return pa.schema([*EVENT, *values, *ORIGINAL])


def stored_values(table: pa.Schema) -> list[pa.Field]:
    """The value columns of a store whose Delta schema is `table`."""
    return [
        field.with_type(value_type(field)) for field in table if field.name not in set(RESERVED)
    ]


def type_name(kind: pa.DataType) -> str:
    """The type as Spark names it, where Spark has another name than Arrow."""
    return _SPARK_NAMES.get(kind, str(kind))


def value_type(field: pa.Field) -> pa.DataType:
    """The type that `field` is stored as: Delta's, nullable all the way down.

    Raises:
        IncompatibleValue: Delta has no such type.
    """
    if (field.metadata or {}).get(b"variant") == b"true":
        raise _unstorable(field, "variant")
    return _value_type(field, field.type)


def _value_type(column: pa.Field, kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", _value_type(column, kind.value_type)))
    if types.is_map(kind):
        item = _value_type(column, kind.item_type)
        return pa.map_(_value_type(column, kind.key_type), item)
    if types.is_struct(kind):
        if any((inner.metadata or {}).get(b"variant") for inner in kind):
            raise _unstorable(column, "variant")
        return pa.struct([pa.field(f.name, _value_type(column, f.type)) for f in kind])
    return _flat_type(column, kind)


def _flat_type(column: pa.Field, kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.unit == "us":
        return INSTANT if kind.tz else kind
    if kind in _SPARK_NAMES or kind in (pa.float32(), pa.float64()) or types.is_decimal128(kind):
        return kind
    raise _unstorable(column, str(kind))


def _unstorable(column: pa.Field, kind: str) -> IncompatibleValue:
    return IncompatibleValue(
        f"column '{column.name}' is of type {kind}, which a Delta table cannot hold; accepted: "
        "numbers, decimals, strings, binaries, booleans, dates, timestamps, and arrays, maps and "
        "structs of them; next step: cast the column, for example to bigint or string"
    )
