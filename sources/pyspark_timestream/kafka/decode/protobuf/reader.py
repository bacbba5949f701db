"""The reader's Protobuf message, and the classes that Google's library makes of it."""

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.protobuf.descriptors import normalize, well_known
from pyspark_timestream.kafka.decode.protobuf.libraries import import_libraries
from pyspark_timestream.kafka.decode.protobuf.plans import GROUP

__all__ = ["CompiledReader", "ProtobufReader", "compile_reader", "create_reader"]

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
