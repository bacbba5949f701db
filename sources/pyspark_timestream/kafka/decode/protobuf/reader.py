"""The reader's Protobuf message, and how each column is made of its fields.

A plan is made once, and refuses a type that the field cannot be read as.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import FINAL_US, MIN_US, Mask
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.convert import (
    Convert,
    Converted,
    Longs,
    build_struct,
    can_cast,
    cast_scalars,
    convert_list,
    convert_map,
    keep,
)
from pyspark_timestream.kafka.decode.protobuf.descriptors import (
    import_libraries,
    normalize,
    well_known,
)
from pyspark_timestream.kafka.decode.records import to_mask
from pyspark_timestream.kafka.options.parsers import parse_path

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
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_MAX_DURATION_S: Final = 315_576_000_000
_NANOS: Final = 1_000_000_000


def _convert_timestamps(messages: pa.Array) -> Converted:
    """Read messages of seconds and nanos as timestamps, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, 2)
    first, last = MIN_US // 1_000_000, FINAL_US // 1_000_000
    legal = (seconds >= first) & (seconds <= last) & (nanos >= 0) & (nanos < _NANOS)
    us = np.where(legal, seconds, 0) * 1_000_000 + nanos // 1_000
    return _keep_legal(us, _INSTANT, messages, legal)


def _convert_durations(messages: pa.Array) -> Converted:
    """Read messages of seconds and nanos as durations, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, 2)
    legal = (np.abs(nanos) < _NANOS) & (seconds >= -_MAX_DURATION_S) & (seconds <= _MAX_DURATION_S)
    legal &= np.sign(seconds) * np.sign(nanos) >= 0
    us = np.where(legal, seconds, 0) * 1_000_000 + nanos // 1_000
    return _keep_legal(us, pa.duration("us"), messages, legal)


def _convert_dates(messages: pa.Array) -> Converted:
    """Read messages of year, month and day as dates."""
    year, month, day = _read_integers(messages, 3)
    legal = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = np.where(legal, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first, after = (each.astype("datetime64[D]").astype(np.int64) for each in (months, months + 1))
    days = first + np.where(legal, day, 1) - 1
    return _keep_legal(days.astype(np.int32), pa.date32(), messages, legal & (days < after))


def _read_integers(messages: pa.Array, count: int) -> list[Longs]:
    """Read the first integer fields by their numbers; 0 where the message is absent."""
    names = [f"f{number}" for number in range(1, count + 1)]
    arrays = [pc.fill_null(pc.struct_field(messages, name), 0) for name in names]
    return [array.to_numpy(zero_copy_only=False).astype(np.int64) for array in arrays]


def _keep_legal(
    values: npt.NDArray[np.integer], target: pa.DataType, messages: pa.Array, legal: Mask
) -> Converted:
    present = to_mask(messages.is_valid())
    return Converted(pa.array(values, mask=~(present & legal)).cast(target), present & ~legal)


_TIMES: Final[dict[str, tuple[pa.DataType, str, Tree, Convert]]] = {
    _TIMESTAMP: (_INSTANT, "a timestamp", {"seconds": None, "nanos": None}, _convert_timestamps),
    _DURATION: (
        pa.duration("us"),
        "an interval day to second",
        {"seconds": None, "nanos": None},
        _convert_durations,
    ),
    _DATE: (pa.date32(), "a date", {"year": None, "month": None, "day": None}, _convert_dates),
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
    is_message = field.type == field.TYPE_MESSAGE and field.is_repeated
    return is_message and is_map_entry(field.message_type)


def is_map_entry(message: Any) -> bool:
    """Check whether a message is an entry of a map."""
    return bool(message.GetOptions().map_entry)


def name_field(field: Any) -> str:
    """Name a field in what is read: by its number, since names could differ in style alone."""
    return f"f{field.number}"


def find_path(message: Any, name: str) -> list[str]:
    """Return the path `name`, which has been planned, through what is read."""
    path = []
    for step in parse_path(name):
        field = message.fields_by_name[step]
        path.append(name_field(field))
        message = field.message_type
    return path


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
        return Plan(
            tree,
            lambda array: convert_map(_sort_entries(array), target, keys.convert, values.convert),
        )
    if field.is_repeated:
        if not pa.types.is_list(target):
            raise _misfit(field, target, "an array")
        items = _plan_one(field, target.value_type)
        return Plan(items.tree, lambda array: convert_list(array, target, items.convert))
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
            return plan_field(field, _INSTANT)
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


def _cast_days(days: Converted) -> Converted:
    return days._replace(column=days.column.cast(pa.timestamp("s")).cast(_INSTANT))


def _sort_entries(array: pa.Array) -> pa.Array:
    """Make maps of repeated entries, by their keys: Google's library promises no order."""
    entries = array.flatten()
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    keys = pc.struct_field(entries, "f1")
    table = pa.table({"row": np.repeat(np.arange(len(array)), lengths), "key": keys})
    order = pc.sort_indices(table, sort_keys=[("row", "ascending"), ("key", "ascending")])
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    items = pc.struct_field(entries, "f2").take(order)
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(offsets, keys.take(order), items, mask=mask)


def _name_enums(numbers: pa.Array, names: dict[int, str]) -> pa.Array:
    """Name the numbers of an enum; one without a name stays as digits, as in Protobuf's JSON."""
    encoded = numbers.dictionary_encode()
    texts = [names.get(number, str(number)) for number in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _plan_one(field: Any, target: pa.DataType) -> Plan:
    """Plan the reading of one value of `field`, which may be repeated."""
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
    """Check that a scalar can be read as `target`; texts are bytes before they are read."""
    if pa.types.is_string(target):
        return bool(pa.types.is_integer(source) or pa.types.is_binary(source))
    is_number = pa.types.is_floating(source) and pa.types.is_floating(target)
    return is_number or can_cast(source, target)


def _plan_message(field: Any, target: pa.DataType) -> Plan:
    message = field.message_type
    if pa.types.is_struct(target):
        return _plan_struct(field, target)
    if message.full_name in _TIMES:
        kind, _, tree, convert = _TIMES[message.full_name]
        if target == kind:
            return Plan(tree, convert)
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
        and not is_map_entry(field.containing_type)
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
    fields = [_get_field(field.message_type, child.name) for child in target]
    plans = [plan_field(found, child.type) for found, child in zip(fields, target, strict=True)]

    def convert(array: pa.Array) -> Converted:
        children = [
            plan.convert(pc.struct_field(array, name_field(found)))
            for found, plan in zip(fields, plans, strict=True)
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


_BLOCK_FILE: Final = "pyspark_timestream/block.proto"
_BLOCK_PACKAGE: Final = "pyspark_timestream_block"


@dataclass(frozen=True, slots=True)
class ProtobufReader:
    """The message as which payloads are read; create it with `create_reader`.

    Attributes:
        descriptor_set: a serialised FileDescriptorSet, in the form of `normalize`.
        message: the full name of the message.
    """

    descriptor_set: bytes
    message: str

    @property
    def fingerprint(self) -> str:
        """The hash of all that decides how payloads are read: equal for equal schemas."""
        return hashlib.sha256(self.message.encode() + b"\0" + self.descriptor_set).hexdigest()


def create_reader(descriptor_set: bytes, message: str) -> ProtobufReader:
    """Create the reader of `message`, a full name, from a serialised FileDescriptorSet.

    Raises:
        SchemaRefused: the set is damaged or incomplete, or lacks the message.
        MissingExtra: the libraries are not installed.
    """
    reader = ProtobufReader(normalize(descriptor_set, message), message)
    compile_reader(reader)
    return reader


class CompiledReader(NamedTuple):
    """A reader with the classes of its library.

    Attributes:
        descriptor: the descriptor of the message, in which groups are fields of bytes.
        block_class: the class of a message of one field, `rows`, which repeats the message.
    """

    descriptor: Any
    block_class: Any


@functools.lru_cache(maxsize=16)
def compile_reader(reader: ProtobufReader) -> CompiledReader:
    """Compile the descriptors of `reader`.

    Raises:
        SchemaRefused: they do not fit together.
    """
    libraries = import_libraries()
    proto = libraries.descriptor_pb2.FileDescriptorSet.FromString(reader.descriptor_set)
    files = {file.name: file for file in proto.file}
    for file in files.values():
        _number_json_names(file)
    try:
        groups = _find_groups(_create_pool(files), files)
        for file in files.values():
            _remove_groups(file, groups)
        pool = _create_pool(files)
        descriptor = pool.FindMessageTypeByName(reader.message)
        pool.Add(_describe_block(descriptor))
        block = pool.FindMessageTypeByName(f"{_BLOCK_PACKAGE}.Block")
    except (TypeError, KeyError) as error:
        raise SchemaRefused(
            f"the Protobuf descriptor of '{reader.message}' does not compile: {error}",
            "a FileDescriptorSet that protoc or a registry wrote",
            "write it with protoc --descriptor_set_out=FILE --include_imports",
        ) from error
    return CompiledReader(descriptor, libraries.message_factory.GetMessageClass(block))


def _number_json_names(file: Any) -> None:
    """Give fields JSON names of their numbers: others could be equal, and nothing here reads JSON.

    Names that differ in style alone have one JSON name, which Google's library refuses.
    """
    pending = list(file.message_type)
    while pending:
        message = pending.pop()
        pending.extend(message.nested_type)
        for field in message.field:
            field.json_name = str(field.number)


def _create_pool(files: dict[str, Any]) -> Any:
    """Create a pool of `files`, imports first, and of Protobuf's own files."""
    pool = import_libraries().descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(file: Any) -> None:
        if file.name not in added:
            added.add(file.name)
            for name in file.dependency:
                add(well_known(name) or files[name])
            pool.Add(file)

    for file in files.values():
        add(file)
    return pool


def _find_groups(pool: Any, files: dict[str, Any]) -> frozenset[str]:
    """Find the names of the fields that are groups."""
    messages = [
        m for name in files for m in pool.FindFileByName(name).message_types_by_name.values()
    ]
    groups = set()
    while messages:
        message = messages.pop()
        messages.extend(message.nested_types)
        groups |= {field.full_name for field in message.fields if field.type == field.TYPE_GROUP}
    return frozenset(groups)


def _remove_groups(file: Any, groups: frozenset[str]) -> None:
    """Make groups fields of bytes, and extensions unknown.

    A group in a payload is then an unknown field, which is skipped as a whole.
    """
    file.ClearField("extension")
    pending = [(f"{file.package}." if file.package else "", each) for each in file.message_type]
    while pending:
        scope, message = pending.pop()
        scope = f"{scope}{message.name}."
        pending.extend((scope, each) for each in message.nested_type)
        message.ClearField("extension")
        if message.HasField("options"):
            message.options.ClearField("message_set_wire_format")
        for field in message.field:
            if scope + field.name in groups:
                field.type, field.json_name = field.TYPE_BYTES, f"{GROUP}{field.number}"
                field.ClearField("type_name")
                if field.options.HasField("features"):
                    field.options.features.ClearField("message_encoding")


def _describe_block(descriptor: Any) -> Any:
    field_type = import_libraries().descriptor_pb2.FieldDescriptorProto
    file = import_libraries().descriptor_pb2.FileDescriptorProto(
        name=_BLOCK_FILE,
        package=_BLOCK_PACKAGE,
        syntax="proto3",
        dependency=[descriptor.file.name],
    )
    file.message_type.add(name="Block").field.add(
        name="rows",
        number=1,
        type=field_type.TYPE_MESSAGE,
        type_name=f".{descriptor.full_name}",
        label=field_type.LABEL_REPEATED,
    )
    return file


def check_protobuf_columns(
    reader: ProtobufReader, columns: pa.Schema, raw: tuple[str, ...] = ()
) -> None:
    """Check that the payloads of `reader` can be read as `columns`, and times from `raw`.

    Raises:
        SchemaRefused: a column names no field, or has a type that the field is not read as.
    """
    plans = [
        (field.name, plan)
        for field, plan in zip(columns, plan_columns(reader, columns), strict=True)
    ]
    plans += plan_raw_fields(reader, raw).items()
    nest_plans(plans)


def plan_columns(reader: ProtobufReader, columns: pa.Schema) -> list[Plan]:
    """Plan the reading of `columns`, in their order.

    Raises:
        SchemaRefused: one cannot be read.
    """
    return [
        _refuse_misfit(f"column '{column.name}'", reader, column.name, column.type)
        for column in columns
    ]


def plan_raw_fields(reader: ProtobufReader, names: tuple[str, ...]) -> dict[str, Plan]:
    """Plan the reading of fields for event times and edges.

    Raises:
        SchemaRefused: one cannot be read.
    """
    return {name: _refuse_misfit(f"field '{name}'", reader, name, None) for name in names}


def nest_plans(plans: list[tuple[str, Plan]]) -> Tree:
    """Return the fields that the columns need, from the message on.

    Raises:
        SchemaRefused: a column needs a message's fields, and another one its bytes.
    """
    try:
        return merge_trees([_nest(name, plan) for name, plan in plans])
    except ValueError as error:
        raise SchemaRefused(
            f"field '{error}' is read as binary, and also as a struct or by its fields",
            "one of them",
            "leave one of the columns out",
        ) from None


def _nest(name: str, plan: Plan) -> Tree:
    *parents, last = parse_path(name)
    tree: Tree = {last: plan.tree}
    for parent in reversed(parents):
        tree = {parent: tree}
    return tree


def _refuse_misfit(
    what: str, reader: ProtobufReader, name: str, target: pa.DataType | None
) -> Plan:
    """Plan the field at `name`; errors begin with `what`."""
    try:
        field = _find_field(reader, name)
        return plan_raw(field) if target is None else plan_field(field, target)
    except Misfit as misfit:
        raise SchemaRefused(
            f"{what} cannot be read: {misfit.problem}",
            misfit.accepts,
            "declare one of these, or leave it out",
        ) from None


def _find_field(reader: ProtobufReader, name: str) -> Any:
    """Find the field at the path `name`, which leads through single messages."""
    message, field = compile_reader(reader).descriptor, None
    for part in parse_path(name):
        if field is not None:
            check_readable(field)
            if field.type != field.TYPE_MESSAGE or field.is_repeated:
                raise Misfit(
                    f"'{field.full_name}' is {describe_type(field)}, which is not a single message",
                    "a path through single messages",
                )
            message = field.message_type
        field = _get_field(message, part)
    return field
