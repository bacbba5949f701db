"""Plans how to make each column from a Protobuf message's fields.

Planning happens once, and refuses a type that the field cannot be read as.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import FINAL_US, INSTANT, MIN_US, Mask
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.convert import (
    Convert,
    Converted,
    Longs,
    build_repeated,
    build_struct,
    can_cast,
    cast_scalars,
    convert_list,
    keep,
)
from pyspark_timestream.kafka.decode.protobuf.descriptors import (
    GROUP,
    ProtobufReader,
    compile_reader,
)
from pyspark_timestream.kafka.decode.records import Tree, find_conflict, merge, nest, to_mask
from pyspark_timestream.kafka.options.parsers import Path, parse_path

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
"""(Protobuf's name, Arrow type) of Protobuf's types, by their number, from 1."""

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
_MESSAGE: Final = "a struct or binary"
_MIN_S, _MAX_S = MIN_US // 1_000_000, FINAL_US // 1_000_000
_MAX_DURATION_S: Final = 315_576_000_000
_NANOS: Final = 1_000_000_000


def _convert_timestamps(messages: pa.Array) -> Converted:
    """Read messages of seconds and nanos, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, 2)
    legal = (seconds >= _MIN_S) & (seconds <= _MAX_S) & (nanos >= 0) & (nanos < _NANOS)
    return _keep_legal(_to_microseconds(seconds, nanos, legal), INSTANT, messages, legal)


def _convert_durations(messages: pa.Array) -> Converted:
    """Read messages of seconds and nanos, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, 2)
    legal = (np.abs(nanos) < _NANOS) & (np.abs(seconds) <= _MAX_DURATION_S)
    legal &= np.sign(seconds) * np.sign(nanos) >= 0
    us = _to_microseconds(seconds, nanos, legal)
    return _keep_legal(us, pa.duration("us"), messages, legal)


def _convert_dates(messages: pa.Array) -> Converted:
    """Read messages of year, month and day."""
    year, month, day = _read_integers(messages, 3)
    legal = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = np.where(legal, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first, after = (each.astype("datetime64[D]").astype(np.int64) for each in (months, months + 1))
    days = first + np.where(legal, day, 1) - 1
    # A day that its month lacks falls into the next month.
    return _keep_legal(days.astype(np.int32), pa.date32(), messages, legal & (days < after))


def _read_integers(messages: pa.Array, count: int) -> list[Longs]:
    """Read the integer fields numbered 1 to `count`; 0 where the message is absent."""
    names = [f"f{number}" for number in range(1, count + 1)]
    arrays = [pc.fill_null(pc.struct_field(messages, name), 0) for name in names]
    return [array.to_numpy(zero_copy_only=False).astype(np.int64) for array in arrays]


def _to_microseconds(seconds: Longs, nanos: Longs, legal: Mask) -> Longs:
    return np.where(legal, seconds, 0) * 1_000_000 + nanos // 1_000


def _keep_legal(
    values: npt.NDArray[np.integer], target: pa.DataType, messages: pa.Array, legal: Mask
) -> Converted:
    present = to_mask(messages.is_valid())
    return Converted(pa.array(values, mask=~(present & legal)).cast(target), present & ~legal)


class _Time(NamedTuple):
    """How to read a message that is a time: its type, the type's name in Spark, and its fields."""

    type: pa.DataType
    words: str
    fields: tuple[str, ...]
    convert: Convert


_TIMES: Final = {
    _TIMESTAMP: _Time(INSTANT, "a timestamp", ("seconds", "nanos"), _convert_timestamps),
    _DURATION: _Time(
        pa.duration("us"), "an interval day to second", ("seconds", "nanos"), _convert_durations
    ),
    _DATE: _Time(pa.date32(), "a date", ("year", "month", "day"), _convert_dates),
}


class Plan(NamedTuple):
    """How to read a field.

    Attributes:
        tree: the fields of it that are read; None: it is a scalar, or a message as bytes.
        convert: converts it.
        path: its place in the rows that ptars returns.
    """

    tree: Tree | None
    convert: Convert
    path: tuple[str, ...] = ()

    def read(self, rows: pa.Array) -> Converted:
        """Read the field of n rows."""
        return self.convert(pc.struct_field(rows, self.path))


class Plans(NamedTuple):
    """The plans of the requested columns and of raw fields, and all fields that these need."""

    columns: list[Plan]
    raw: dict[str, Plan]
    tree: Tree


class Misfit(Exception):
    """A field cannot be read as the type of a column.

    Args:
        problem: why not.
        accepts: the types that it can be read as.
    """

    def __init__(self, problem: str, accepts: str) -> None:
        super().__init__(problem)
        self.problem, self.accepts = problem, accepts


def _describe_type(field: Any) -> str:
    """Describe a field's type as the text of a schema does."""
    if _is_map(field):
        key, value = field.message_type.fields
        return f"map<{_describe_type(key)}, {_describe_type(value)}>"
    if field.type in (field.TYPE_MESSAGE, field.TYPE_GROUP):
        name = field.message_type.full_name
    elif field.type == field.TYPE_ENUM:
        name = field.enum_type.full_name
    else:
        name = _SCALARS[field.type - 1][0]
    return f"repeated {name}" if field.is_repeated else str(name)


def _is_map(field: Any) -> bool:
    """Return whether a field is a map."""
    is_message = field.type == field.TYPE_MESSAGE and field.is_repeated
    return is_message and is_map_entry(field.message_type)


def is_map_entry(message: Any) -> bool:
    """Return whether a message is an entry of a map."""
    return bool(message.GetOptions().map_entry)


def name_field(field: Any) -> str:
    """Name a field by its number, because two names may differ only in style."""
    return f"f{field.number}"


def _plan_field(field: Any, target: pa.DataType) -> Plan:
    """Plan the reading of `field` as `target`."""
    _check_readable(field)
    if _is_map(field):
        if not pa.types.is_map(target):
            raise _misfit(field, target, "a map")
        key, value = field.message_type.fields
        keys, values = _plan_one(key, target.key_type), _plan_one(value, target.item_type)
        tree: Tree = {"key": None, "value": values.tree}
        return Plan(
            tree,
            lambda array: _convert_entries(array, target, keys.convert, values.convert),
        )
    if field.is_repeated:
        if not pa.types.is_list(target):
            raise _misfit(field, target, "an array")
        items = _plan_one(field, target.value_type)
        return Plan(items.tree, lambda array: convert_list(array, target, items.convert))
    return _plan_one(field, target)


def _plan_raw(field: Any) -> Plan:
    """Plan the reading of `field` for an event time or an edge; failures become nulls."""
    _check_readable(field)
    last = field
    if not field.is_repeated and field.type == field.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name in (_TIMESTAMP, _DATE):
            return _plan_field(field, _TIMES[name].type)
        if name in _WRAPPERS:
            last = field.message_type.fields_by_name["value"]
    kind = _SCALARS[last.type - 1][1]
    if last.type in (last.TYPE_STRING, last.TYPE_ENUM):
        target = pa.string()
    elif pa.types.is_integer(kind):
        target = pa.int64()
    elif pa.types.is_floating(kind):
        target = pa.float64()
    else:
        target = None
    if target is None or field.is_repeated:
        raise Misfit(
            f"'{field.full_name}' is {_describe_type(field)}",
            f"a {_TIMESTAMP}, {_DATE}, string, number or enum that is not repeated",
        )
    return _plan_field(field, target)


def _check_readable(field: Any) -> None:
    if field.json_name.startswith(GROUP):
        raise Misfit(f"'{field.full_name}' is a group, which is not read", "another field")


def _convert_entries(
    array: pa.Array, target: pa.DataType, convert_key: Convert, convert_item: Convert
) -> Converted:
    """Make maps of repeated entries, sorted by key, since Google's library promises no order."""
    entries = array.flatten()
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    keys = pc.struct_field(entries, "f1")
    table = pa.table({"row": np.repeat(np.arange(len(array)), lengths), "key": keys})
    order = pc.sort_indices(table, sort_keys=[("row", "ascending"), ("key", "ascending")])
    sorted_keys = convert_key(keys.take(order))
    items = convert_item(pc.struct_field(entries, "f2").take(order))
    return build_repeated(target, [sorted_keys, items], lengths, to_mask(array.is_null()))


def _name_enums(numbers: pa.Array, names: dict[int, str]) -> pa.Array:
    """Name the numbers of an enum; one without a name becomes digits, as in Protobuf's JSON."""
    encoded = numbers.dictionary_encode()
    texts = [names.get(number, str(number)) for number in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _plan_one(field: Any, target: pa.DataType) -> Plan:
    """Plan the reading of one value of `field`, even if the field is repeated."""
    if field.type == field.TYPE_MESSAGE:
        return _plan_message(field, target)
    if field.type == field.TYPE_ENUM and pa.types.is_string(target):
        names: dict[int, str] = {}
        for value in field.enum_type.values:
            names.setdefault(value.number, value.name)
        return Plan(None, lambda array: keep(_name_enums(array, names)))
    if field.type == field.TYPE_BYTES and pa.types.is_string(target):
        raise _misfit(field, target, "binary")
    if not _is_target(_SCALARS[field.type - 1][1], target):
        raise _misfit(field, target, _list_targets(field))
    return Plan(None, lambda array: cast_scalars(array, target))


def _is_target(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a scalar can be read as `target`; texts are bytes until they are read."""
    if pa.types.is_string(target):
        return bool(pa.types.is_integer(source) or pa.types.is_binary(source))
    is_number = pa.types.is_floating(source) and pa.types.is_floating(target)
    return is_number or can_cast(source, target)


def _plan_message(field: Any, target: pa.DataType) -> Plan:
    message = field.message_type
    if pa.types.is_struct(target):
        return _plan_struct(field, target)
    time = _TIMES.get(message.full_name)
    if time is not None and target == time.type:
        return Plan(dict.fromkeys(time.fields), time.convert)
    if message.full_name in _WRAPPERS:
        value = message.fields_by_name["value"]
        try:
            inner = _plan_one(value, target)
        except Misfit as misfit:
            raise _misfit(field, target, misfit.accepts) from None
        return Plan(
            {"value": inner.tree}, lambda array: inner.convert(pc.struct_field(array, "f1"))
        )
    if pa.types.is_binary(target):
        joins = comes_in_pieces(field)
        return Plan(None, lambda array: keep(_join_pieces(array) if joins else array))
    raise _misfit(field, target, f"{time.words}, a struct or binary" if time else _MESSAGE)


def comes_in_pieces(field: Any) -> bool:
    """Return whether a message may arrive in several pieces, which form one message when joined.

    Those of a oneof and of a map's entry do not: each replaces the one before.
    """
    oneof = field.containing_oneof
    return bool(
        field.type == field.TYPE_MESSAGE
        and not field.is_repeated
        and (oneof is None or len(oneof.fields) == 1)
        and not is_map_entry(field.containing_type)
    )


def _join_pieces(pieces: pa.Array) -> pa.Array:
    """Join the pieces of each message, which lie side by side; null where a message has none."""
    if not len(pieces):
        return pa.array([], pa.binary())
    items, bounds = pieces.values, pieces.offsets.to_numpy()
    _, ends, data = items.buffers()
    places = np.frombuffer(ends, np.int32)[items.offset :] if ends else np.zeros(1, np.int32)
    buffers = [None, pa.py_buffer(places[bounds].copy()), data or pa.py_buffer(b"")]
    joined = pa.BinaryArray.from_buffers(pa.binary(), len(pieces), buffers)
    return pc.if_else(pa.array(np.diff(bounds) > 0), joined, None)


def _plan_struct(field: Any, target: pa.StructType) -> Plan:
    fields = [_get_field(field.message_type, child.name) for child in target]
    plans = [_plan_field(source, child.type) for source, child in zip(fields, target, strict=True)]

    def convert(array: pa.Array) -> Converted:
        children = [
            plan.convert(pc.struct_field(array, name_field(source)))
            for source, plan in zip(fields, plans, strict=True)
        ]
        return build_struct(target, children, to_mask(array.is_null()))

    return Plan({name: plan.tree for name, plan in zip(target.names, plans, strict=True)}, convert)


def _get_field(message: Any, name: str) -> Any:
    field = message.fields_by_name.get(name)
    if field is None:
        raise Misfit(
            f"message '{message.full_name}' lacks the field '{name}'",
            ", ".join(each.name for each in message.fields) or "a message with fields",
        )
    return field


def _misfit(field: Any, target: pa.DataType, accepts: str) -> Misfit:
    problem = f"'{field.full_name}' is {_describe_type(field)}, which is not read as {target}"
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


def plan_fields(reader: ProtobufReader, columns: pa.Schema, raw: tuple[str, ...] = ()) -> Plans:
    """Plan the reading of payloads of `reader` as `columns`, and of times from the fields `raw`.

    Raises:
        SchemaRefused: a column names no field, or has a type that the field cannot be read as; or
            one column reads a message's fields, and another one reads it as bytes.
    """
    planned = [
        _plan(f"column '{column.name}'", reader, column.name, column.type) for column in columns
    ]
    plans = Plans(planned, {name: _plan(f"field '{name}'", reader, name) for name in raw}, {})
    for name, plan in [*zip(columns.names, planned, strict=True), *plans.raw.items()]:
        tree = nest(parse_path(name), plan.tree)
        conflict = find_conflict(plans.tree, tree)
        if conflict is not None:
            raise SchemaRefused(
                f"field '{'.'.join(conflict)}' is read as binary, and also as a struct or by its "
                "fields",
                "one of them",
                "leave one of the columns out",
            )
        merge(plans.tree, tree)
    return plans


def _plan(what: str, reader: ProtobufReader, name: str, target: pa.DataType | None = None) -> Plan:
    """Plan the field at `name`; without a target, as event times. Errors begin with `what`."""
    try:
        fields = _find_fields(reader, parse_path(name))
        plan = _plan_raw(fields[-1]) if target is None else _plan_field(fields[-1], target)
    except Misfit as misfit:
        raise SchemaRefused(
            f"{what} cannot be read: {misfit.problem}",
            misfit.accepts,
            "declare one of these, or leave it out",
        ) from None
    return plan._replace(path=tuple(map(name_field, fields)))


def _find_fields(reader: ProtobufReader, path: Path) -> list[Any]:
    """Find the fields along a path; all parents must be single messages."""
    message = compile_reader(reader).descriptor
    fields = [_get_field(message, path[0])]
    for name in path[1:]:
        parent = fields[-1]
        _check_readable(parent)
        if parent.type != parent.TYPE_MESSAGE or parent.is_repeated:
            raise Misfit(
                f"'{parent.full_name}' is {_describe_type(parent)}, which is not a single message",
                "a path through single messages",
            )
        fields.append(_get_field(parent.message_type, name))
    return fields
