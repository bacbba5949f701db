"""Protobuf schemas: their descriptors, normalised and compiled, and the libraries that read them.

Descriptor sets from a registry, a compiler and Python differ in parts that reading does not need.
Those parts are removed, and so are Protobuf's own files, which the installed library provides. So
the same schema has the same fingerprint from any compiler and in any library.
"""

import base64
import binascii
import contextlib
import functools
import hashlib
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark_timestream.errors import MissingExtra, SchemaRefused


class Libraries(NamedTuple):
    """The modules that read Protobuf: Google's own reader, and the one that yields Arrow."""

    descriptor_pb2: Any
    descriptor_pool: Any
    message_factory: Any
    ptars: Any
    DecodeError: type[Exception]


@functools.cache
def import_libraries() -> Libraries:
    """Import the modules; raise MissingExtra if one is not installed."""
    try:
        return Libraries(
            importlib.import_module("google.protobuf.descriptor_pb2"),
            importlib.import_module("google.protobuf.descriptor_pool"),
            importlib.import_module("google.protobuf.message_factory"),
            importlib.import_module("ptars"),
            importlib.import_module("google.protobuf.message").DecodeError,
        )
    except ImportError as error:
        raise MissingExtra.create("reading Protobuf", error.name or "ptars", "protobuf") from error


_WELL_KNOWN: Final = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context"),
        *("struct", "timestamp", "type", "wrappers"),
    )
} | {
    f"google/type/{name}.proto": f"google.type.{name}_pb2"
    for name in (
        *("calendar_period", "color", "date", "datetime", "dayofweek", "expr", "fraction"),
        *("interval", "latlng", "localized_text", "money", "month", "phone_number"),
        *("postal_address", "quaternion", "timeofday", "decimal"),
    )
}
"""The files that registries take for granted -> the modules that contain them."""

_CONFLUENT: Final = {
    # They only declare options of schemas, which reading does not need.
    "confluent/meta.proto": b"\n\x14confluent/meta.proto\x12\tconfluentb\x06proto3",
    "confluent/type/decimal.proto": (
        b'\n\x1cconfluent/type/decimal.proto\x12\x0econfluent.type":\n\x07Decimal'
        b"\x12\r\n\x05value\x18\x01 \x01(\x0c\x12\x11\n\tprecision\x18\x02 \x01(\r"
        b"\x12\r\n\x05scale\x18\x03 \x01(\x05b\x06proto3"
    ),
}
"""The compiled files of Confluent's registry that schemas import."""

_BASE64: Final = re.compile(rb"[A-Za-z0-9+/\s]+=*\s*")
_MAIN: Final = "main.proto"


@contextlib.contextmanager
def _refuse_bad_names() -> Iterator[None]:
    """Refuse a schema with a name that is not UTF-8, which the library finds when it is read."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise SchemaRefused(
            f"a name in the Protobuf descriptor is not UTF-8 ({error.reason})",
            "a descriptor that protoc or a registry wrote",
            "write it with protoc --descriptor_set_out=FILE --include_imports",
        ) from error


@_refuse_bad_names()
def build_descriptor_set(main: bytes, references: Mapping[str, bytes]) -> bytes:
    """Build a descriptor set, imports first, from a registry's answers to `format=serialized`.

    They are FileDescriptorProtos, plain or in base64; `references` has all imports by name, except
    those of Protobuf itself.
    """
    files = {name: _parse_file(name, data) for name, data in references.items()}
    file = _parse_file("", main)
    if not file.name or file.name in files:
        file.name = _MAIN
    files[file.name] = file
    proto = import_libraries().descriptor_pb2.FileDescriptorSet()
    proto.file.extend(_order_files(files, [file.name]))
    return bytes(proto.SerializeToString(deterministic=True))


def _parse_file(name: str, data: bytes) -> Any:
    libraries = import_libraries()
    try:
        decoded = base64.b64decode(data) if _BASE64.fullmatch(data) else data
        file = libraries.descriptor_pb2.FileDescriptorProto.FromString(decoded)
    except (binascii.Error, import_libraries().DecodeError) as error:
        subject = f"the imported schema '{name}'" if name else "the schema"
        raise SchemaRefused(
            f"{subject} is not a compiled Protobuf file",
            "a FileDescriptorProto, as it is or in base64",
            "ask the registry for it with format=serialized",
        ) from error
    if name:
        file.name = name
    return file


@_refuse_bad_names()
def normalize(descriptor_set: bytes, message: str) -> bytes:
    """Reduce a descriptor set to the parts that reading `message` needs, or refuse it."""
    libraries = import_libraries()
    try:
        proto = libraries.descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
    except import_libraries().DecodeError as error:
        raise SchemaRefused(
            "the Protobuf descriptor is not a descriptor set",
            "a FileDescriptorSet",
            "write it with protoc --descriptor_set_out=FILE --include_imports",
        ) from error
    files = {file.name: file for file in proto.file}
    homes = {
        name: file.name
        for file in proto.file
        if not _is_granted(file.name)
        for name, inner in _walk_messages(file)
        if not inner.options.map_entry
    }
    if message not in homes:
        raise SchemaRefused(
            f"the Protobuf descriptor lacks the message '{message}'",
            ", ".join(sorted(homes)[:20]) or "a descriptor set with messages",
            "give the message's full name, with its package",
        )
    normal = libraries.descriptor_pb2.FileDescriptorSet()
    ordered = _order_files(files, [homes[message]])
    normal.file.extend(_strip(file) for file in ordered if not _is_granted(file.name))
    return bytes(normal.SerializeToString(deterministic=True))


@_refuse_bad_names()
def find_message_name(main: bytes, indexes: Sequence[int] = (0,)) -> str | None:
    """Return the full name of the message at a frame's `indexes`; None if there is none.

    `main` is the schema: a FileDescriptorProto, plain or in base64.
    """
    file = _parse_file("", main)
    names = [file.package] if file.package else []
    messages = file.message_type
    for index in indexes:
        # Writers count in the text of a schema, which has no messages for entries of maps.
        candidates = [message for message in messages if not message.options.map_entry]
        if not 0 <= index < len(candidates):
            return None
        names.append(candidates[index].name)
        messages = candidates[index].nested_type
    return ".".join(names)


def _order_files(files: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    """List `names` and all their direct and indirect imports, imports first."""
    ordered: dict[str, Any] = {}
    entered: set[str] = set()
    pending = [(name, False) for name in names]
    while pending:
        name, imported = pending.pop()
        file = _well_known(name) or files.get(name)
        if file is None:
            raise SchemaRefused(
                f"the Protobuf descriptor lacks the imported file '{name}'",
                "a set with all imports",
                "write it with protoc --descriptor_set_out=FILE --include_imports",
            )
        if imported:
            ordered[name] = file
        elif name not in ordered:
            if name in entered:
                raise SchemaRefused(
                    f"the Protobuf file '{name}' and others import each other",
                    "imports without a circle",
                    "write the set with protoc --descriptor_set_out=FILE --include_imports",
                )
            entered.add(name)
            pending.append((name, True))
            pending.extend(
                (dependency, False) for dependency in file.dependency if dependency not in ordered
            )
    return list(ordered.values())


def _is_granted(name: str) -> bool:
    return name in _WELL_KNOWN or name in _CONFLUENT


def _well_known(name: str) -> Any | None:
    """Return the file `name` if it is one that a set need not contain, else None."""
    libraries = import_libraries()
    if name in _CONFLUENT:
        return libraries.descriptor_pb2.FileDescriptorProto.FromString(_CONFLUENT[name])
    if name not in _WELL_KNOWN:
        return None
    module = importlib.import_module(_WELL_KNOWN[name])
    return libraries.descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _strip(file: Any) -> Any:
    stripped = type(file).FromString(file.SerializeToString())
    stripped.ClearField("source_code_info")
    stripped.ClearField("service")
    for _, message in _walk_messages(stripped):
        for field in message.field:
            field.ClearField("json_name")
    return stripped


def _walk_messages(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield all messages of `file` with their full names."""
    scope = f"{file.package}." if file.package else ""
    pending = [(scope + message.name, message) for message in reversed(file.message_type)]
    while pending:
        name, message = pending.pop()
        yield name, message
        pending += [(f"{name}.{nested.name}", nested) for nested in reversed(message.nested_type)]


GROUP: Final = "group "
"""The prefix of JSON names of fields in Protobuf's outdated group encoding, which ptars lacks; the
field's number follows."""


@dataclass(frozen=True, slots=True)
class ProtobufReader:
    """The message type to read payloads as; create it with `create_reader`.

    Attributes:
        descriptor_set: a serialised FileDescriptorSet, in the form of `normalize`.
        message: the full name of the message.
    """

    descriptor_set: bytes
    message: str

    @property
    def fingerprint(self) -> str:
        """The hash of everything that decides how payloads are read; equal for equal schemas."""
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
    """A reader with the classes of Google's library."""

    descriptor: Any
    """The descriptor of the message, with groups as fields of bytes."""
    block_class: Any
    """The class of a message with one field, `rows`, which repeats the message."""


@functools.lru_cache(maxsize=16)
@_refuse_bad_names()
def compile_reader(reader: ProtobufReader) -> CompiledReader:
    """Compile the descriptors of `reader`; refuse files that contradict each other."""
    libraries = import_libraries()
    proto = libraries.descriptor_pb2.FileDescriptorSet.FromString(reader.descriptor_set)
    files = {file.name: file for file in proto.file}
    for file in files.values():
        # Google's library refuses equal JSON names, which names that differ only in style have.
        for _, message in _walk_messages(file):
            for field in message.field:
                field.json_name = str(field.number)
    try:
        for file in files.values():
            _check_maps(file)
        groups = _find_groups(_create_pool(files), files)
        for file in files.values():
            _remove_groups(file, groups)
        pool = _create_pool(files)
        descriptor = pool.FindMessageTypeByName(reader.message)
        file = libraries.descriptor_pb2.FileDescriptorProto(
            name="pyspark_timestream/block.proto",
            package="pyspark_timestream_block",
            syntax="proto3",
            dependency=[descriptor.file.name],
        )
        block = describe_block(pool, file, f".{descriptor.full_name}")
    except (TypeError, KeyError) as error:
        raise SchemaRefused(
            f"the Protobuf descriptor of '{reader.message}' does not compile: {error}",
            "a FileDescriptorSet that protoc or a registry wrote",
            "write it with protoc --descriptor_set_out=FILE --include_imports",
        ) from error
    return CompiledReader(descriptor, libraries.message_factory.GetMessageClass(block))


def _check_maps(file: Any) -> None:
    """Check what Google's library does not: that an entry of a map has a key and a value."""
    for name, message in _walk_messages(file):
        fields = [(field.name, field.number) for field in message.field]
        if message.options.map_entry and fields != [("key", 1), ("value", 2)]:
            raise TypeError(f"the entries of a map, '{name}', are not a key and a value")


def describe_block(pool: Any, file: Any, type_name: str) -> Any:
    """Add a message with `rows` of this type to `file`, and `file` to a pool; return it."""
    types = import_libraries().descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Block").field.add(
        name="rows",
        number=1,
        type=types.TYPE_MESSAGE,
        type_name=type_name,
        label=types.LABEL_REPEATED,
    )
    pool.Add(file)
    return pool.FindMessageTypeByName(f"{file.package}.Block")


def _create_pool(files: dict[str, Any]) -> Any:
    """Create a pool of `files`, imports first, and of Protobuf's own files."""
    pool = import_libraries().descriptor_pool.DescriptorPool()
    for file in _order_files(files, list(files)):
        pool.Add(file)
    return pool


def _find_groups(pool: Any, files: dict[str, Any]) -> frozenset[str]:
    """Find the full names of the fields that are groups."""
    messages = [
        pool.FindMessageTypeByName(name)
        for file in files.values()
        for name, _ in _walk_messages(file)
    ]
    fields = [field for message in messages for field in message.fields]
    return frozenset(field.full_name for field in fields if field.type == field.TYPE_GROUP)


def _remove_groups(file: Any, groups: frozenset[str]) -> None:
    """Turn groups into fields of bytes, and drop extensions.

    A group in a payload is then an unknown field, which is skipped as a whole.
    """
    file.ClearField("extension")
    for name, message in _walk_messages(file):
        message.ClearField("extension")
        if message.HasField("options"):
            message.options.ClearField("message_set_wire_format")
        for field in message.field:
            if f"{name}.{field.name}" in groups:
                field.type, field.json_name = field.TYPE_BYTES, f"{GROUP}{field.number}"
                field.ClearField("type_name")
                if field.options.HasField("features"):
                    field.options.features.ClearField("message_encoding")
