"""The messages that ptars reads: those of the reader, cut down to the fields that are needed.

ptars builds all of a message's fields, those of its own type as bytes, and reads Protobuf's own
types in its own way: a date that does not exist is 1970-01-01, a late timestamp the last of 2262.
The messages of a projection have none of that: only needed fields, a new type at every place, texts
as bytes, enums as numbers, and maps as what they are on the wire, repeated messages of a key and a
value.
"""

from typing import Any, Final

from pyspark_timestream.kafka.decode.protobuf.libraries import import_libraries
from pyspark_timestream.kafka.decode.protobuf.plans import Tree

__all__ = ["create_handler", "needs_rewriting"]

_PACKAGE: Final = "wanted"


def create_handler(message: Any, tree: Tree) -> Any:
    """Create ptars' reader of a block's `rows`, which have the fields of `tree`."""
    libraries = import_libraries()
    file = libraries.descriptor_pb2.FileDescriptorProto(
        name="wanted.proto", package=_PACKAGE, syntax="proto3"
    )
    block = file.message_type.add(name="Block")
    types = libraries.descriptor_pb2.FieldDescriptorProto
    block.field.add(
        name="rows",
        number=1,
        type=types.TYPE_MESSAGE,
        label=types.LABEL_REPEATED,
        type_name=_add_message(file, message, tree),
    )
    pool = libraries.descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.Block")
    return libraries.ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)


def _add_message(file: Any, message: Any, tree: Tree) -> str:
    """Add `message` with the fields of `tree` to `file`, and return the name of its type."""
    added = file.message_type.add(name=f"M{len(file.message_type)}")
    for name, inner in tree.items():
        _add_field(file, added, message.fields_by_name[name], inner)
    return f".{_PACKAGE}.{added.name}"


def _add_field(file: Any, message: Any, field: Any, tree: Tree | None) -> None:
    types = import_libraries().descriptor_pb2.FieldDescriptorProto
    added = message.field.add(
        name=field.name,
        number=field.number,
        label=types.LABEL_REPEATED if field.is_repeated else types.LABEL_OPTIONAL,
        type=_choose_type(field, tree),
    )
    if tree is not None:
        added.type_name = _add_message(file, field.message_type, tree)
    if field.has_presence and not field.is_repeated and added.type != types.TYPE_MESSAGE:
        added.proto3_optional = True
        added.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _choose_type(field: Any, tree: Tree | None) -> int:
    """Choose the type as which ptars reads `field`; the bytes on the wire are the same."""
    types = import_libraries().descriptor_pb2.FieldDescriptorProto
    if field.type == types.TYPE_ENUM:
        return int(types.TYPE_INT32)
    as_bytes = field.type == types.TYPE_STRING or (
        field.type == types.TYPE_MESSAGE and tree is None
    )
    return int(types.TYPE_BYTES if as_bytes else field.type)


def needs_rewriting(message: Any, tree: Tree) -> bool:
    """Check whether ptars may read the fields of `tree` differently from Google's library.

    Of a oneof's members the last one counts, and of equal keys of a map the last entry. A message
    that is wanted as bytes is merged of its parts. Unknown numbers of a closed enum, and entries of
    maps with more than a key and a value, are left aside.
    """
    for name, inner in tree.items():
        field = message.fields_by_name[name]
        if field.type == field.TYPE_ENUM and field.enum_type.is_closed:
            return True
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            return True
        if field.type == field.TYPE_MESSAGE and (
            inner is None
            or field.message_type.GetOptions().map_entry
            or needs_rewriting(field.message_type, inner)
        ):
            return True
    return False
