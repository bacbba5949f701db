"""Plans of columns: the fields that a column needs of a message, and how it is made of them.

A plan is made once, and refuses a type that the field cannot be read as.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.kafka.decode.fields import ConvertedColumn
from pyspark_timestream.kafka.decode.protobuf.casts import (
    INSTANT,
    cast_column,
    cast_dates,
    cast_durations,
    cast_enums,
    cast_timestamps,
    fits,
)
from pyspark_timestream.kafka.decode.protobuf.nested import (
    Convert,
    convert_list,
    convert_map,
    convert_struct,
    mark,
)

__all__ = [
    "GROUP",
    "Misfit",
    "Plan",
    "Tree",
    "check_readable",
    "comes_in_pieces",
    "describe_type",
    "merge_trees",
    "plan_field",
    "plan_raw",
]

Tree: TypeAlias = dict[str, Any]
"""The fields needed of a message, each with its own tree; None: a scalar, or a message's bytes."""

GROUP: Final = "group "
"""The beginning of the JSON name of fields in Protobuf's outdated group encoding, which Arrow's
reader lacks; the field's number follows."""

_SCALARS: Final = (
    ("double", pa.float64()),
    ("float", pa.float32()),
    ("int64", pa.int64()),
    ("uint64", pa.uint64()),
    ("int32", pa.int32()),
    ("fixed64", pa.uint64()),
    ("fixed32", pa.uint32()),
    ("bool", pa.bool_()),
    ("string", pa.binary()),
    ("group", pa.null()),
    ("message", pa.null()),
    ("bytes", pa.binary()),
    ("uint32", pa.uint32()),
    ("enum", pa.int32()),
    ("sfixed32", pa.int32()),
    ("sfixed64", pa.int64()),
    ("sint32", pa.int32()),
    ("sint64", pa.int64()),
)
"""Protobuf's types by their number, from 1, and what they are in Arrow."""

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in (
        *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"),
    )
)
_TIMESTAMP, _DURATION, _DATE = (
    "google.protobuf.Timestamp",
    "google.protobuf.Duration",
    "google.type.Date",
)
_TIMES: Final[dict[str, tuple[pa.DataType, str, Tree, Any]]] = {
    _TIMESTAMP: (INSTANT, "a timestamp", {"seconds": None, "nanos": None}, cast_timestamps),
    _DURATION: (
        pa.duration("us"),
        "an interval day to second",
        {"seconds": None, "nanos": None},
        cast_durations,
    ),
    _DATE: (pa.date32(), "a date", {"year": None, "month": None, "day": None}, cast_dates),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The fields that a column needs of a field, and the conversion to the column."""

    tree: Tree | None
    convert: Convert


class Misfit(Exception):
    """A field cannot be read as the type of a column.

    Args:
        problem: why not.
        accepts: what it can be read as.
    """

    def __init__(self, problem: str, accepts: str) -> None:
        super().__init__(problem)
        self.problem, self.accepts = problem, accepts


def describe_type(field: Any) -> str:
    """Describe the type of a field as a schema's text does."""
    if _is_map(field):
        key, value = field.message_type.fields
        return f"map<{describe_type(key)}, {describe_type(value)}>"
    if field.type in (field.TYPE_MESSAGE, field.TYPE_GROUP):
        name = field.message_type.full_name
    elif field.type == field.TYPE_ENUM:
        name = field.enum_type.full_name
    else:
        name = _SCALARS[field.type - 1][0]
    return f"repeated {name}" if field.is_repeated else str(name)


def _is_map(field: Any) -> bool:
    """Check whether a field is a map."""
    return bool(
        field.type == field.TYPE_MESSAGE
        and field.is_repeated
        and field.message_type.GetOptions().map_entry
    )


def plan_field(field: Any, target: pa.DataType) -> Plan:
    """Plan the reading of `field` as `target`.

    Raises:
        Misfit: it cannot be read so.
    """
    check_readable(field)
    if _is_map(field):
        if not pa.types.is_map(target):
            raise _misfit(field, target, "a map")
        key, value = field.message_type.fields
        keys, values = _plan_one(key, target.key_type), _plan_one(value, target.item_type)
        tree: Tree = {"key": None, "value": values.tree}
        return Plan(tree, lambda array: convert_map(array, keys.convert, values.convert, target))
    if field.is_repeated:
        if not pa.types.is_list(target):
            raise _misfit(field, target, "an array")
        items = _plan_one(field, target.value_type)
        return Plan(items.tree, lambda array: convert_list(array, items.convert, target))
    return _plan_one(field, target)


def plan_raw(field: Any) -> Plan:
    """Plan the reading of `field` for an event time or an edge: failures are nulls.

    Raises:
        Misfit: it is neither a text, a number nor a time.
    """
    check_readable(field)
    found = field
    if not field.is_repeated and field.type == field.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name == _DATE:
            days = plan_field(field, pa.date32())
            return Plan(days.tree, lambda array: _cast_days(days.convert(array)))
        if name == _TIMESTAMP:
            return plan_field(field, INSTANT)
        if name in _WRAPPERS:
            found = field.message_type.fields_by_name["value"]
    kind = _SCALARS[found.type - 1][1]
    if found.type in (found.TYPE_STRING, found.TYPE_ENUM):
        target = pa.string()
    elif pa.types.is_integer(kind):
        target = pa.int64()
    elif pa.types.is_floating(kind):
        target = pa.float64()
    else:
        target = None
    if target is None or field.is_repeated:
        raise Misfit(
            f"'{field.full_name}' is {describe_type(field)}",
            f"a {_TIMESTAMP}, {_DATE}, string, number or enum that is not repeated",
        )
    return plan_field(field, target)


def check_readable(field: Any) -> None:
    """Check that a field can be read at all.

    Raises:
        Misfit: it cannot.
    """
    if field.json_name.startswith(GROUP):
        raise Misfit(f"'{field.full_name}' is a group, which is not read", "another field")


def _cast_days(days: ConvertedColumn) -> ConvertedColumn:
    return days._replace(column=days.column.cast(pa.timestamp("s")).cast(INSTANT))


def _plan_one(field: Any, target: pa.DataType) -> Plan:
    """Plan the reading of one value of `field`, which may be repeated."""
    if field.type == field.TYPE_MESSAGE:
        return _plan_message(field, target)
    if field.type == field.TYPE_ENUM and pa.types.is_string(target):
        names: dict[int, str] = {}
        for value in field.enum_type.values:
            names.setdefault(value.number, value.name)
        return Plan(None, lambda array: mark(cast_enums(array, names)))
    if field.type == field.TYPE_BYTES and pa.types.is_string(target):
        raise _misfit(field, target, "binary")
    if not fits(_SCALARS[field.type - 1][1], target):
        raise _misfit(field, target, _list_targets(field))
    return Plan(None, lambda array: mark(*cast_column(array, target)))


def _plan_message(field: Any, target: pa.DataType) -> Plan:
    message = field.message_type
    if pa.types.is_struct(target):
        return _plan_struct(field, target)
    if message.full_name in _TIMES:
        kind, _, tree, cast = _TIMES[message.full_name]
        if target == kind:
            return Plan(tree, lambda array: mark(*cast(array)))
    if message.full_name in _WRAPPERS:
        value = message.fields_by_name["value"]
        try:
            inner = _plan_one(value, target)
        except Misfit as misfit:
            raise _misfit(field, target, misfit.accepts) from None
        return Plan(
            {"value": inner.tree}, lambda array: inner.convert(pc.struct_field(array, "value"))
        )
    if pa.types.is_binary(target):
        joins = comes_in_pieces(field)
        return Plan(None, lambda array: mark(_join_pieces(array) if joins else array))
    named = _TIMES.get(message.full_name)
    raise _misfit(
        field, target, f"{named[1]}, a struct or binary" if named else "a struct or binary"
    )


def comes_in_pieces(field: Any) -> bool:
    """Check whether a message may be in several pieces, which are one message when joined.

    A member of a oneof takes the place of the one before, and an entry of a map has one value.
    """
    oneof = field.containing_oneof
    return bool(
        field.type == field.TYPE_MESSAGE
        and not field.is_repeated
        and (oneof is None or len(oneof.fields) == 1)
        and not field.containing_type.GetOptions().map_entry
    )


def _join_pieces(pieces: pa.Array) -> pa.Array:
    """Join the pieces of each message, which lie side by side; null where there is none."""
    if not len(pieces):
        return pa.array([], pa.binary())
    items, bounds = pieces.values, pieces.offsets.to_numpy()
    _, ends, data = items.buffers()
    places = np.frombuffer(ends, np.int32)[items.offset :] if ends else np.zeros(1, np.int32)
    buffers = [None, pa.py_buffer(places[bounds].copy()), data or pa.py_buffer(b"")]
    joined = pa.BinaryArray.from_buffers(pa.binary(), len(pieces), buffers)
    return pc.if_else(pa.array(np.diff(bounds) > 0), joined, None)


def _plan_struct(field: Any, target: pa.StructType) -> Plan:
    inner = [target.field(i) for i in range(target.num_fields)]
    plans: dict[str, Plan] = {}
    for each in inner:
        found = field.message_type.fields_by_name.get(each.name)
        if found is None:
            names = [each.name for each in field.message_type.fields]
            raise Misfit(
                f"message '{field.message_type.full_name}' lacks the field '{each.name}'",
                ", ".join(names) or "a message with fields",
            )
        plans[each.name] = plan_field(found, each.type)

    converters = [plans[each.name].convert for each in inner]
    return Plan(
        {name: plan.tree for name, plan in plans.items()},
        lambda array: convert_struct(array, converters, inner),
    )


def _misfit(field: Any, target: pa.DataType, accepts: str) -> Misfit:
    problem = f"'{field.full_name}' is {describe_type(field)}, which is not read as {target}"
    return Misfit(problem, accepts)


def _list_targets(field: Any) -> str:
    kind = _SCALARS[field.type - 1][1]
    if field.type == field.TYPE_STRING:
        return "a string or binary"
    if field.type == field.TYPE_ENUM:
        return "a string, for its name, or a number"
    if field.type == field.TYPE_BYTES:
        return "binary"
    if pa.types.is_integer(kind):
        return "a number, a decimal or a string"
    return "a float or a double" if pa.types.is_floating(kind) else "a boolean"


def merge_trees(trees: Sequence[Tree]) -> Tree:
    """Merge the fields that several columns need.

    Raises:
        ValueError: one needs a message's fields, and another its bytes; the text is the path.
    """
    merged: Tree = {}
    for name in dict.fromkeys(name for tree in trees for name in tree):
        found = [tree[name] for tree in trees if name in tree]
        inner = [tree for tree in found if tree is not None]
        if inner and len(inner) < len(found):
            raise ValueError(name)
        try:
            merged[name] = merge_trees(inner) if inner else None
        except ValueError as error:
            raise ValueError(f"{name}.{error}") from None
    return merged
