"""The columns of a store and their types (semantics 15.3 and 15.5)."""

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from pyspark_tseries.errors import IncompatibleValue

__all__ = [
    "COMMIT",
    "EVENT",
    "INSTANT",
    "ORIGINAL",
    "RESERVED",
    "layout",
    "new_value",
    "one_value",
    "query_schema",
    "stored_values",
    "type_name",
    "unstorable",
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
COMMIT: Final = (
    pa.field("commit", pa.int64(), nullable=False),
    pa.field("commit_time", INSTANT, nullable=False),
)
_KIND: Final = pa.field("kind", pa.string(), nullable=False)
RESERVED: Final = tuple(field.name for field in (*EVENT, *ORIGINAL, *COMMIT, _KIND))
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

_TAGS: Final = {b"variant", b"geometry", b"geography"}
"""Spark's marks on a struct's field, which say that the struct is something else."""

_NOT_IN_NAMES: Final = set(" ,;{}()\n\t=")
"""Delta's, of tables without column mapping."""


def layout(values: Iterable[pa.Field]) -> pa.Schema:
    """The schema of the Delta table: metadata, values, what is overridden, the commit, the kind.

    `kind` (`event` or `edit`) is the partition column: edits stay in few small files.
    """
    return pa.schema([*EVENT, *values, *ORIGINAL, *COMMIT, _KIND])


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
        raise unstorable(field.name, "variant")
    return _value_type(field, field.type)


def new_value(field: pa.Field) -> pa.Field:
    """`field` as the value column that a store gets.

    Raises:
        IncompatibleValue: no store can have it, for its type or its name.
    """
    _check_name(field, field.name)
    return pa.field(field.name, value_type(field))


def unstorable(
    column: str, kind: str, reason: str = "which a store cannot hold"
) -> IncompatibleValue:
    """The error of a value column of a type that there is no place for."""
    return IncompatibleValue(
        f"column '{column}' is of type {kind}, {reason}; accepted: "
        "numbers, decimals, strings, binaries, booleans, dates, timestamps, and arrays, maps and "
        "structs of them; next step: cast the column, for example to bigint or string"
    )


def _value_type(column: pa.Field, kind: pa.DataType, in_map: bool = False) -> pa.DataType:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", _value_type(column, kind.value_type, in_map)))
    if types.is_map(kind):
        item = _value_type(column, kind.item_type, True)
        return pa.map_(_value_type(column, kind.key_type, True), item)
    if types.is_struct(kind):
        _check_struct(column, kind)
        return pa.struct([pa.field(f.name, _value_type(column, f.type, in_map)) for f in kind])
    if in_map and kind == pa.timestamp("us"):
        # deltalake does not look into maps for what makes a table need its feature, and then
        # no reader opens the table.
        reason = "which a Delta table cannot hold inside a map"
        raise unstorable(column.name, "timestamp_ntz", reason)
    return _flat_type(column, kind)


def _check_struct(column: pa.Field, kind: pa.DataType) -> None:
    for field in kind:
        for tag in _TAGS & (field.metadata or {}).keys():
            raise unstorable(column.name, tag.decode())
        _check_name(column, field.name)
    names = [field.name.lower() for field in kind]
    if not names:
        raise unstorable(column.name, "struct<>", "which Parquet cannot hold")
    for name in names:
        if names.count(name) > 1:
            raise IncompatibleValue(
                f"column '{column.name}' has two fields '{name}'; accepted: names that differ in "
                "more than case; next step: rename one of them"
            )


def _check_name(column: pa.Field, name: str) -> None:
    if not name or set(name) & _NOT_IN_NAMES:
        raise IncompatibleValue(
            f"column '{column.name}' has the name {name!r}, which a Delta table cannot have; "
            "accepted: names that are not empty and have no space, tab, line break or any of "
            "',;{}()='; next step: rename it"
        )


def _flat_type(column: pa.Field, kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind) and kind.unit == "us":
        return INSTANT if kind.tz else kind
    if kind in _SPARK_NAMES or kind in (pa.float32(), pa.float64()):
        return kind
    if types.is_decimal128(kind) and kind.scale >= 0:
        return kind
    raise unstorable(column.name, str(kind))


def one_value(field: pa.Field, value: Any) -> pa.Array:
    """A column of the one `value`; raises IncompatibleValue where `field` cannot hold it."""
    try:
        if field.type == INSTANT and isinstance(value, int):
            return pa.array([value]).cast(INSTANT)
        return pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise IncompatibleValue(
            f"column '{field.name}' cannot hold {value!r}: {str(error).splitlines()[0]}; "
            f"accepted: {field.type}; next step: convert it"
        ) from error
