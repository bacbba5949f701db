"""Protobuf schemas built in Python, and Google's library as the oracle of their payloads."""

import datetime
import functools
import math

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.type import date_pb2, timeofday_pb2

from pyspark_timestream.kafka.decode.protobuf.descriptors import create_reader

UTC = datetime.UTC
INSTANT = pa.timestamp("us", tz="UTC")
TYPES = descriptor_pb2.FieldDescriptorProto
IMPORTED = [
    module.DESCRIPTOR for module in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
] + [date_pb2.DESCRIPTOR, timeofday_pb2.DESCRIPTOR]


def field(name, number, kind, *, repeated=False, optional=False, oneof=None, default=None):
    """A field's descriptor; `kind` is a scalar's name, or '.package.Message', 'enum .package.E'."""
    made = TYPES(name=name, number=number)
    made.label = TYPES.LABEL_REPEATED if repeated else TYPES.LABEL_OPTIONAL
    if "." in kind:
        word, _, type_name = kind.rpartition(" ")
        made.type = getattr(TYPES, f"TYPE_{(word or 'message').upper()}")
        made.type_name = type_name
    else:
        made.type = getattr(TYPES, f"TYPE_{kind.upper()}")
    if optional:
        made.proto3_optional = True
    if oneof is not None:
        made.oneof_index = oneof
    if default is not None:
        made.default_value = default
    return made


def message(name, *fields, oneofs=(), nested=(), map_entry=False):
    """A message's descriptor. Optional fields get the oneofs that proto3 requires."""
    made = descriptor_pb2.DescriptorProto(name=name, field=fields, nested_type=nested)
    for oneof in oneofs:
        made.oneof_decl.add(name=oneof)
    for each in made.field:
        if each.proto3_optional:
            each.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{each.name}")
    if map_entry:
        made.options.map_entry = True
    return made


def map_field(owner, name, number, key, value):
    """A map's field, and the nested message of its entries, for the message `owner`."""
    entry = "".join(part.capitalize() for part in name.split("_")) + "Entry"
    nested = message(entry, field("key", 1, key), field("value", 2, value), map_entry=True)
    return field(name, number, f"{owner}.{entry}", repeated=True), nested


def file(*messages, name="test.proto", package="m", syntax="proto3", enums=(), imports=None):
    made = descriptor_pb2.FileDescriptorProto(
        name=name, package=package, syntax=syntax, message_type=messages
    )
    found = IMPORTED if imports is None else []
    made.dependency.extend([each.name for each in found] + list(imports or ()))
    for enum, values in enums:
        added = made.enum_type.add(name=enum)
        for number, value in values.items():
            added.value.add(name=value, number=number)
    return made


def descriptor_set(*files):
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


class Schema:
    """A message as both sides see it."""

    def __init__(self, *files, name="m.M"):
        pool = descriptor_pool.DescriptorPool()
        for each in IMPORTED:
            pool.AddSerializedFile(each.serialized_pb)
        for each in files:
            pool.Add(each)
        self.Message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        self.descriptor = self.Message.DESCRIPTOR
        self.reader = create_reader(descriptor_set(*files), name)

    def parse(self, data):
        """The parsed message; None if it is malformed."""
        try:
            return self.Message.FromString(data)
        except Exception:
            return None


NATURAL = {
    **{f"TYPE_{n}": pa.int64() for n in ("INT64", "SINT64", "SFIXED64", "UINT32", "FIXED32")},
    **{f"TYPE_{n}": pa.int32() for n in ("INT32", "SINT32", "SFIXED32")},
    **{f"TYPE_{n}": pa.decimal128(20, 0) for n in ("UINT64", "FIXED64")},
    "TYPE_FLOAT": pa.float32(),
    "TYPE_DOUBLE": pa.float64(),
    "TYPE_BOOL": pa.bool_(),
    "TYPE_STRING": pa.string(),
    "TYPE_BYTES": pa.binary(),
    "TYPE_ENUM": pa.string(),
}
BY_NUMBER = {number: name for name, number in TYPES.Type.items()}


def natural_type(found, depth=3):
    """The type of a column that holds all of a field; messages of messages down to `depth`."""
    if found.type == found.TYPE_MESSAGE and found.message_type.GetOptions().map_entry:
        key, value = found.message_type.fields
        return pa.map_(natural_type(key, depth), natural_type(value, depth))
    if found.is_repeated:
        return pa.list_(_natural_item(found, depth))
    return _natural_item(found, depth)


def _natural_item(found, depth):
    if found.type != found.TYPE_MESSAGE:
        return NATURAL[BY_NUMBER[found.type]]
    name = found.message_type.full_name
    if name == "google.protobuf.Timestamp":
        return INSTANT
    if name == "google.protobuf.Duration":
        return pa.duration("us")
    if name == "google.type.Date":
        return pa.date32()
    if name.endswith("Value") and name in WRAPPER_NAMES:
        return natural_type(found.message_type.fields_by_name["value"])
    if depth == 0:
        return pa.binary()
    return natural_struct(found.message_type, depth - 1)


WRAPPER_NAMES = {
    found.full_name for found in wrappers_pb2.DESCRIPTOR.message_types_by_name.values()
}


def natural_struct(found, depth=3):
    return pa.struct([(each.name, natural_type(each, depth)) for each in found.fields])


class Misread(Exception):
    """The value does not match the type of its column."""


def expect(parsed, path_field, target):
    """The value of a field of a parsed message, and whether all of it matches `target`."""
    if path_field.has_presence and not parsed.HasField(path_field.name):
        return None, True
    try:
        return _expect_present(getattr(parsed, path_field.name), path_field, target)
    except UnicodeDecodeError:
        # Outdated schemas allow texts that are not UTF-8; Google's library raises where they are.
        return None, False


def _expect_present(value, path_field, target):
    if pa.types.is_map(target):
        key, inner = path_field.message_type.fields
        parts = {k: expect_one(value[k], inner, target.item_type) for k in value}
        keys = [expect_one(k, key, target.key_type) for k in value]
        if any(void for _, _, void in [*parts.values(), *keys]):
            return None, False
        return (
            [(expect_one(k, key, target.key_type)[0], parts[k][0]) for k in sorted(parts)],
            all(fine for _, fine, _ in parts.values()),
        )
    if pa.types.is_list(target):
        parts = [expect_one(each, path_field, target.value_type) for each in value]
        if any(void for _, _, void in parts):
            return None, False
        return [part for part, _, _ in parts], all(fine for _, fine, _ in parts)
    part, fine, _ = expect_one(value, path_field, target)
    return part, fine


def expect_one(value, found, target):
    """One value, whether all of it matches, and whether nothing of it does."""
    if pa.types.is_struct(target):
        inner = found.message_type.fields_by_name
        parts = {
            each.name: expect(value, inner[each.name], each.type)
            for each in (target.field(i) for i in range(target.num_fields))
        }
        return {k: v for k, (v, _) in parts.items()}, all(fine for _, fine in parts.values()), False
    try:
        return expect_leaf(value, found, target), True, False
    except Misread:
        return None, False, True


class SameMessage:
    """Equals bytes that contain this message; of a oneof it may be a piece."""

    def __init__(self, value, is_member):
        self.kind, self.is_member = type(value), is_member
        self.known = self._known(value)

    def __eq__(self, other):
        if not isinstance(other, bytes):
            return NotImplemented
        return self.is_member or self._known(self.kind.FromString(other)) == self.known

    __hash__ = None

    def __repr__(self):
        return f"{self.kind.__name__}({self.known!r})"

    @staticmethod
    def _known(value):
        value.DiscardUnknownFields()
        return value.SerializePartialToString(deterministic=True)


def expect_leaf(value, found, target):
    if found.type == found.TYPE_STRING and isinstance(value, bytes):
        # Or it returns the bytes of a text that is not UTF-8.
        raise Misread
    if found.type == found.TYPE_MESSAGE:
        name = found.message_type.full_name
        if name == "google.protobuf.Timestamp":
            if not (-62135596800 <= value.seconds < 253402300800 and 0 <= value.nanos < 10**9):
                raise Misread
            since = datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
            return datetime.datetime(1970, 1, 1, tzinfo=UTC) + since
        if name == "google.protobuf.Duration":
            if abs(value.seconds) > 315_576_000_000 or abs(value.nanos) >= 10**9:
                raise Misread
            if value.seconds * value.nanos < 0:
                raise Misread
            return datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        if name == "google.type.Date":
            try:
                return datetime.date(value.year, value.month, value.day)
            except (ValueError, OverflowError):
                raise Misread from None
        if name in WRAPPER_NAMES:
            return expect_leaf(value.value, value.DESCRIPTOR.fields[0], target)
        assert pa.types.is_binary(target)
        oneof = found.containing_oneof
        return SameMessage(value, oneof is not None and len(oneof.fields) > 1)
    if found.type == found.TYPE_ENUM and pa.types.is_string(target):
        names = [each.name for each in found.enum_type.values if each.number == value]
        return names[0] if names else str(value)
    if isinstance(value, float):
        if pa.types.is_float32(target):
            short = pa.array([value]).cast(pa.float32())[0].as_py()
            if math.isinf(short) and not math.isinf(value):
                raise Misread
            return repr(short)
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if pa.types.is_integer(target) and not _in_range(value, target):
            raise Misread
        return value if pa.types.is_integer(target) else str(value)
    return value


def _in_range(value, target):
    try:
        pa.scalar(value, target)
    except (OverflowError, pa.ArrowInvalid):
        return False
    return True


def show(value):
    """A column's value as `expect` gives it."""
    if isinstance(value, dict):
        return {name: show(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return [(show(k), show(v)) for k, v in value]
        return [show(inner) for inner in value]
    if isinstance(value, float):
        return repr(value)
    if type(value).__name__ == "Decimal":
        return str(value)
    return value


COLORS = {0: "RED", 1: "GREEN", 5: "BLUE"}


def natural_columns(schema, names=None):
    fields = schema.descriptor.fields
    return pa.schema(
        [
            (each.name, natural_type(each, depth=2))
            for each in fields
            if not names or each.name in names
        ]
    )


@functools.cache
def rich_schema(syntax):
    """A message with everything in it."""
    entries = [
        map_field(".m.M", "by_name", 10, "string", ".m.A"),
        map_field(".m.M", "colors", 11, "int32", "enum .m.Color"),
    ]
    plain = message(
        "A",
        field("x", 1, "sint64"),
        field("s", 2, "string"),
        field("ds", 3, "double", repeated=True),
    )
    rich = message(
        "M",
        field("i", 1, "int32"),
        field("s", 2, "string"),
        field("ds", 3, "double", repeated=True),
        field("is", 4, "int32", repeated=True),
        field("a", 5, ".m.A", oneof=0),
        field("n", 6, "int64", oneof=0),
        field("c", 7, "enum .m.Color", oneof=0),
        field("as", 8, ".m.A", repeated=True),
        field("t", 9, ".google.protobuf.Timestamp"),
        *(entry[0] for entry in entries),
        field("m", 12, ".m.M"),
        field("fs", 13, "fixed32", repeated=True),
        nested=[entry[1] for entry in entries],
        oneofs=["o"],
    )
    return Schema(file(plain, rich, syntax=syntax, enums=[("Color", COLORS)]))
