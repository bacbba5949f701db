"""The messages that ptars reads: those of the reader, cut down to the fields that are needed.

ptars builds all of a message's fields, those of its own type as bytes, and reads Protobuf's own
types in its own way: a date that does not exist is 1970-01-01, a late timestamp the last of 2262.
The messages of a projection have none of that: only needed fields, a new type at every place, texts
as bytes, enums as numbers, and maps as what they are on the wire, repeated messages of a key and a
value. A message that is wanted as its bytes is bytes here: what its schema does not know stays in
it.
"""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.kafka.decode.protobuf.libraries import import_libraries
from pyspark_timestream.kafka.decode.protobuf.plans import Tree, comes_in_pieces

__all__ = [
    "create_handler",
    "create_rewriter",
    "needs_renaming",
    "needs_rewriting",
    "rename_fields",
]

_PACKAGE: Final = "wanted"


def create_handler(message: Any, tree: Tree) -> Any:
    """Create ptars' reader of a block's `rows`, which have the fields of `tree`."""
    libraries = import_libraries()
    descriptor = _describe_block("proto3", lambda file: _add_message(file, message, tree))
    return libraries.ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)


def _add_message(file: Any, message: Any, tree: Tree) -> str:
    """Add `message` with the fields of `tree` to `file`, and return the name of its type."""
    added = file.message_type.add(name=f"M{len(file.message_type)}")
    by_number = _has_like_names(tree)
    for name, inner in tree.items():
        field = message.fields_by_name[name]
        _add_field(file, added, field, inner, _number_name(field) if by_number else name)
    return f".{_PACKAGE}.{added.name}"


def _has_like_names(tree: Tree) -> bool:
    """Check for names that ptars takes for the same: they differ in style alone."""
    return len({name.replace("_", "").lower() for name in tree}) < len(tree)


def _number_name(field: Any) -> str:
    return f"f{field.number}"


def needs_renaming(message: Any, tree: Tree) -> bool:
    """Check whether ptars' fields have other names than those of `message`."""
    return _has_like_names(tree) or any(
        inner is not None and needs_renaming(message.fields_by_name[name].message_type, inner)
        for name, inner in tree.items()
    )


def rename_fields(array: pa.Array, message: Any, tree: Tree) -> pa.Array:
    """Return what ptars has read of `message` with the message's own names."""
    if pa.types.is_list(array.type):
        values = rename_fields(array.values, message, tree)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, values, mask=mask)
    by_number, children = _has_like_names(tree), []
    for name, inner in tree.items():
        field = message.fields_by_name[name]
        found = pc.struct_field(array, _number_name(field) if by_number else name)
        children.append(found if inner is None else rename_fields(found, field.message_type, inner))
    return pa.StructArray.from_arrays(children, names=list(tree), mask=array.is_null())


def _add_field(file: Any, message: Any, field: Any, tree: Tree | None, name: str) -> None:
    types = import_libraries().descriptor_pb2.FieldDescriptorProto
    in_pieces = tree is None and comes_in_pieces(field)
    added = message.field.add(
        name=name,
        number=field.number,
        label=types.LABEL_REPEATED if field.is_repeated or in_pieces else types.LABEL_OPTIONAL,
        type=_choose_type(field, tree),
        json_name=str(field.number),
    )
    if in_pieces:
        return
    if tree is not None:
        added.type_name = _add_message(file, field.message_type, tree)
    if field.has_presence and not field.is_repeated and added.type != types.TYPE_MESSAGE:
        added.proto3_optional = True
        added.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def _choose_type(field: Any, tree: Tree | None) -> int:
    """Choose the type as which ptars reads `field`; the bytes on the wire are the same."""
    types = import_libraries().descriptor_pb2.FieldDescriptorProto
    if field.type == types.TYPE_ENUM:
        return int(types.TYPE_INT32)
    as_bytes = field.type == types.TYPE_STRING or (
        field.type == types.TYPE_MESSAGE and tree is None
    )
    return int(types.TYPE_BYTES if as_bytes else field.type)


def _describe_block(syntax: str, add_rows: Callable[[Any], str]) -> Any:
    """Describe a block's `rows`, whose message `add_rows` adds to a file; it returns the name."""
    libraries = import_libraries()
    file = libraries.descriptor_pb2.FileDescriptorProto(
        name="block.proto", package=_PACKAGE, syntax=syntax
    )
    block = file.message_type.add(name="Block")
    types = libraries.descriptor_pb2.FieldDescriptorProto
    block.field.add(
        name="rows",
        number=1,
        type=types.TYPE_MESSAGE,
        label=types.LABEL_REPEATED,
        type_name=add_rows(file),
    )
    pool = libraries.descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindMessageTypeByName(f"{_PACKAGE}.Block")


def create_rewriter(message: Any, tree: Tree) -> Any:
    """Create Google's class of a block with the fields of `tree`, which reads them as they mean.

    What it writes has each field once, the last members of oneofs and the last entries of maps. A
    message that is wanted as bytes is bytes, so that nothing in it is lost.
    """
    descriptor = _describe_block("proto2", lambda file: _keep_message(file, message, tree))
    return import_libraries().message_factory.GetMessageClass(descriptor)


def _keep_message(file: Any, message: Any, tree: Tree) -> str:
    """Add `message` with the fields of `tree`, and all members of their oneofs, to `file`."""
    place = len(file.message_type)
    added = file.message_type.add(name=f"K{place}")
    oneofs: dict[str, int] = {}
    for name, inner in tree.items():
        field = message.fields_by_name[name]
        oneof = field.containing_oneof
        if oneof is None or len(oneof.fields) == 1:
            _keep_field(file, added, field, inner)
        elif oneof.name not in oneofs:
            oneofs[oneof.name] = len(added.oneof_decl)
            added.oneof_decl.add(name=f"o{len(added.oneof_decl)}")
            for member in oneof.fields:
                kept = _keep_field(file, added, member, tree.get(member.name))
                kept.oneof_index = oneofs[oneof.name]
    return f".{_PACKAGE}.{added.name}"


def _keep_field(file: Any, message: Any, field: Any, tree: Tree | None) -> Any:
    types = import_libraries().descriptor_pb2.FieldDescriptorProto
    in_pieces = tree is None and comes_in_pieces(field)
    kept = message.field.add(
        name=f"f{field.number}",
        number=field.number,
        label=types.LABEL_REPEATED if field.is_repeated or in_pieces else types.LABEL_OPTIONAL,
        type=_choose_type(field, tree),
        json_name=str(field.number),
    )
    if field.type == types.TYPE_ENUM and field.enum_type.is_closed:
        # Unknown numbers do not count, so the enum has to be known.
        scope = file.message_type.add(name=f"E{len(file.message_type)}")
        field.enum_type.CopyToProto(scope.enum_type.add())
        kept.type = types.TYPE_ENUM
        kept.type_name = f".{_PACKAGE}.{scope.name}.{scope.enum_type[0].name}"
    if tree is None:
        return kept
    if not field.message_type.GetOptions().map_entry:
        kept.type_name = _keep_message(file, field.message_type, tree)
        return kept
    entry = message.nested_type.add(name=f"F{field.number}Entry")
    entry.options.map_entry = True
    key, value = field.message_type.fields
    entry.field.add(name="key", number=1, type=key.type, label=types.LABEL_OPTIONAL)
    _keep_field(file, entry, value, tree["value"]).name = "value"
    kept.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
    return kept


def needs_rewriting(message: Any, tree: Tree) -> bool:
    """Check whether ptars may read the fields of `tree` differently from Google's library.

    Of a oneof's members the last one counts, and of equal keys of a map the last entry. Unknown
    numbers of a closed enum, and entries of maps with more than a key and a value, are left aside.
    """
    for name, inner in tree.items():
        field = message.fields_by_name[name]
        if field.type == field.TYPE_ENUM and field.enum_type.is_closed:
            return True
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            return True
        if field.type == field.TYPE_MESSAGE and (
            field.message_type.GetOptions().map_entry
            or (inner is not None and needs_rewriting(field.message_type, inner))
        ):
            return True
    return False
