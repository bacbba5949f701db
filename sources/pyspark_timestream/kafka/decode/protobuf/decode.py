"""Decodes Protobuf payloads: n messages of the reader's type to columns.

ptars builds all of a message's fields, those of its own type as bytes, and reads Protobuf's own
types in its own way: a date that does not exist is 1970-01-01, a late timestamp the last of 2262.
The messages of a projection have none of that: only needed fields, a new type at every place, texts
as bytes, enums as numbers, and maps as what they are on the wire, repeated messages of a key and a
value. A message that is wanted as its bytes is bytes here: what its schema does not know stays in
it.

ptars is fast, and trusts: of bytes that no Protobuf library writes, it reads some that it should
refuse (overlong tags, ragged packed fields) and panics at others (lengths that wrap around). So
Google's library parses them first. n messages, each with a tag and its length in front, are one
message of n rows, and parsing that costs less than what ptars takes. A block that it refuses is
halved until the malformed rows are alone; so a row never depends on its neighbours. Where the two
read the same bytes differently (both members of a oneof, a repeated key of a map), Google's library
rewrites the needed fields of the rows, in the one form that all libraries agree on, and ptars reads
that.

The rules are then those of Google's library: it skips unknown fields and groups, the last of a
repeated scalar counts, repeated messages merge, and more than 99 levels are malformed.

The reader's message alone decides what is read, by Protobuf's own rules of evolution. A field that
the payload lacks is its default, or null where the schema tells absence apart (a message, an
`optional` field, a member of a oneof); a field that the reader does not know is skipped. The
writer's schema tells only which message was written: another than the reader's is malformed. The
rules are semantics 13.10.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import Mask
from pyspark_timestream.kafka.decode.framing import FramedBlock, Writer
from pyspark_timestream.kafka.decode.protobuf.descriptors import import_libraries
from pyspark_timestream.kafka.decode.protobuf.reader import (
    Plan,
    ProtobufReader,
    Tree,
    comes_in_pieces,
    compile_reader,
    nest_plans,
    plan_columns,
    plan_raw_fields,
)
from pyspark_timestream.kafka.decode.records import (
    FINE,
    FRAMING,
    NAME,
    SYNTAX,
    TYPE,
    DecodedBlock,
    Reasons,
    RequestedFields,
)
from pyspark_timestream.kafka.options.parsers import parse_path

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


_MAX_ROWS: Final = 8_192
_MAX_BYTES: Final = 256 * 1024
"""The size of a piece that is parsed at once, unless a single message is larger.

A parsed message takes up to some hundred times the memory of its bytes.
"""

_ROW_TAG: Final = 0x0A
"""Field 1, length-delimited."""


Places = npt.NDArray[np.int64]


class BlockReader(NamedTuple):
    """The classes that read blocks.

    Attributes:
        block_class: Google's class of a block.
        handler: ptars' reader of a block; None if no field is needed.
        rewrite: the two may read the same bytes of a wanted field differently.
        rewriter: Google's class of a block of the needed fields alone; None if none is needed.
    """

    block_class: Any
    handler: Any | None
    rewrite: bool = False
    rewriter: Any = None


class MessageBlock(NamedTuple):
    """n parsed messages.

    Attributes:
        rows: m structs of the fields that are needed, one per well-formed message; None if none
            is needed.
        fine: n booleans: the message is well-formed.
    """

    rows: pa.Array | None
    fine: Mask


def parse_block(reader: BlockReader, messages: pa.Array) -> MessageBlock:
    """Parse n binary messages, of which none is null."""
    fine = np.ones(len(messages), dtype=np.bool_)
    parts: list[pa.Array] = []
    for start, stop in _split(messages):
        data, bounds = _join(messages.slice(start, stop - start))
        fine[start:stop] = _judge(reader.block_class, data, bounds)
        if reader.handler is None:
            continue
        good = np.flatnonzero(fine[start:stop])
        if len(good) < stop - start:
            data, bounds = _keep(data, bounds, good)
        converted, failed = _convert(reader, data, bounds)
        parts += converted
        fine[start + good[failed]] = False
    if reader.handler is None:
        return MessageBlock(None, fine)
    return MessageBlock(pa.concat_arrays(parts or [_to_rows(reader.handler, b"", 0)]), fine)


def _split(messages: pa.Array) -> Iterator[tuple[int, int]]:
    """Split into pieces that are parsed at once."""
    if not len(messages):
        return
    narrow = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset :][: len(messages) + 1]
    # A search for a wider number would convert all of them again each time.
    ends = narrow.astype(np.int64)
    start = 0
    while start < len(messages):
        fitting = int(np.searchsorted(ends, ends[start] + _MAX_BYTES, side="right")) - 1
        stop = min(max(fitting, start + 1), start + _MAX_ROWS, len(messages))
        yield start, stop
        start = stop


def _join(messages: pa.Array) -> tuple[memoryview, Places]:
    """Write n messages as the rows of one; return also the bounds of the rows in it."""
    n = len(messages)
    ends = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset :][: n + 1]
    lengths = np.diff(ends).astype(np.int64)
    groups = np.ones(n, dtype=np.int64)
    for digits in range(7, int(lengths.max(initial=0)).bit_length(), 7):
        groups += lengths >= 1 << digits
    starts = np.concatenate(([0], np.cumsum(groups + 1)))
    heads = np.empty(starts[-1], dtype=np.uint8)
    heads[starts[:-1]] = _ROW_TAG
    for step in range(int(groups.max())):
        rows = np.flatnonzero(groups > step)
        more = np.where(groups[rows] > step + 1, 0x80, 0)
        heads[starts[rows] + 1 + step] = (lengths[rows] >> (7 * step)) & 0x7F | more
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(heads)]
    tags = pa.BinaryArray.from_buffers(pa.binary(), n, buffers)
    joined = pc.binary_join_element_wise(tags, messages, b"")
    bounds = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset :][: n + 1]
    return memoryview(joined.buffers()[2]), bounds.astype(np.int64)


def _judge(block_class: Any, data: memoryview, bounds: Places) -> Mask:
    """Find the well-formed rows of n."""
    fine = np.ones(len(bounds) - 1, dtype=np.bool_)
    pending = [(0, len(fine))]
    decode_error = import_libraries().DecodeError
    while pending:
        first, last = pending.pop()
        try:
            block_class.FromString(data[bounds[first] : bounds[last]])
        except decode_error:
            if last - first == 1:
                fine[first] = False
            else:
                pending += _halve(first, last)
    return fine


def _keep(data: memoryview, bounds: Places, rows: Places) -> tuple[memoryview, Places]:
    """Keep `rows`, which rise, of the rows in `data`."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
    kept = b"".join(data[bounds[run[0]] : bounds[run[-1] + 1]] for run in runs)
    return memoryview(kept), np.concatenate(([0], np.cumsum(np.diff(bounds)[rows])))


def _convert(
    reader: BlockReader, data: memoryview, bounds: Places
) -> tuple[list[pa.Array], list[int]]:
    """Convert n well-formed rows; return also the rows at which ptars fails: none is known."""
    parts: list[pa.Array] = []
    failed: list[int] = []
    pending = [(0, len(bounds) - 1)] if len(bounds) > 1 else []
    while pending:
        first, last = pending.pop()
        piece = data[bounds[first] : bounds[last]]
        try:
            part = _convert_piece(reader, piece, last - first)
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except BaseException:
            # A panic of ptars is no Exception.
            if last - first == 1:
                failed.append(first)
            else:
                pending += _halve(first, last)
            continue
        # ptars' arrays have room for many rows: of few, a copy is kept.
        parts.append(part if last - first == len(bounds) - 1 else part.take(np.arange(len(part))))
    return parts, failed


def _halve(first: int, last: int) -> list[tuple[int, int]]:
    middle = (first + last) // 2
    return [(middle, last), (first, middle)]


def _convert_piece(reader: BlockReader, data: memoryview, rows: int) -> pa.Array:
    if not reader.rewrite:
        # Should ptars refuse what Google's library accepts, it may read what that one writes.
        with contextlib.suppress(ValueError):
            return _to_rows(reader.handler, data, rows)
    block = reader.rewriter.FromString(data)
    block.DiscardUnknownFields()
    written = block.SerializePartialToString(deterministic=True)
    return _to_rows(reader.handler, written, rows)


def _to_rows(handler: Any, data: bytes | memoryview, rows: int) -> pa.Array:
    """Convert the block of `data` to an array of its rows."""
    bounds = pa.py_buffer(np.array([0, len(data)], dtype=np.int32))
    blocks = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, bounds, pa.py_buffer(data)])
    found = handler.array_to_record_batch(blocks).column(0).flatten()
    if len(found) != rows:
        raise ValueError(f"{len(found)} rows instead of {rows}")
    return found


class _Decoder(NamedTuple):
    """The decoding of the wanted fields of one reader; `rename` gives rows the fields' names."""

    blocks: BlockReader
    rename: Callable[[pa.Array], pa.Array] | None
    columns: list[Plan]
    raw: dict[str, Plan]


def read_framed_protobuf(
    reader: ProtobufReader,
    wanted: RequestedFields,
    framed: FramedBlock,
    find_message: Callable[[Writer], str | None],
) -> DecodedBlock:
    """Decode the bodies of `framed`; `find_message` names the message that a writer wrote.

    A payload with another message than the reader's is malformed by its name, and one with a place
    where its schema has none by its frame. What `find_message` raises is passed on.
    """
    reasons = framed.reasons
    names = [find_message(writer) for writer in framed.writers]
    wrong = [FINE if n == reader.message else FRAMING if n is None else NAME for n in names]
    # The last place stands for no writer.
    found = np.array([*wrong, FINE], dtype=np.uint8)[framed.codes]
    reasons = np.where(found == FINE, reasons, found)
    block = read_protobuf(reader, wanted, framed.bodies, reasons)
    named = framed.name(names) if wanted.names else None
    return block._replace(schema_ids=framed.schema_ids, names=named)


def read_protobuf(
    reader: ProtobufReader,
    wanted: RequestedFields,
    bodies: pa.Array,
    reasons: Reasons | None = None,
) -> DecodedBlock:
    """Decode n binary messages; a null is a row of nulls, not malformed.

    Args:
        reader: the message to read.
        wanted: the fields to read of it.
        bodies: n binary.
        reasons: n numbers: why a payload is malformed already, which leaves it unread; None: none.
    """
    decoder = _create_decoder(reader, wanted)
    n = len(bodies)
    reasons = np.zeros(n, dtype=np.uint8) if reasons is None else reasons.copy()
    readable = np.array(bodies.is_valid().to_numpy(zero_copy_only=False)) & (reasons == FINE)
    rows = np.flatnonzero(readable)
    parsed = parse_block(decoder.blocks, bodies if len(rows) == n else bodies.take(pa.array(rows)))
    reasons[rows[~parsed.fine]] = SYNTAX
    rows = rows[parsed.fine]
    found = parsed.rows if decoder.rename is None else decoder.rename(parsed.rows)
    whole = len(rows) == n
    places = np.full(n, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    spread = pa.array(places, mask=places < 0)
    columns = []
    for field, plan in zip(wanted.columns, decoder.columns, strict=True):
        converted = plan.convert(pc.struct_field(found, parse_path(field.name)))
        columns.append(converted.column if whole else converted.column.take(spread))
        reasons[rows[converted.bad]] = TYPE
    raw = {}
    for name, plan in decoder.raw.items():
        column = plan.convert(pc.struct_field(found, parse_path(name))).column
        raw[name] = [column if whole else column.take(spread)]
    return DecodedBlock(columns, raw, reasons)


@functools.lru_cache(maxsize=64)
def _create_decoder(reader: ProtobufReader, wanted: RequestedFields) -> _Decoder:
    compiled = compile_reader(reader)
    columns = plan_columns(reader, wanted.columns)
    raw = plan_raw_fields(reader, wanted.raw)
    named = [(field.name, plan) for field, plan in zip(wanted.columns, columns, strict=True)]
    tree = nest_plans([*named, *raw.items()])
    handler = create_handler(compiled.descriptor, tree) if tree else None
    rewrite = needs_rewriting(compiled.descriptor, tree)
    rewriter = create_rewriter(compiled.descriptor, tree) if tree else None
    blocks = BlockReader(compiled.block_class, handler, rewrite, rewriter)
    rename = None
    if needs_renaming(compiled.descriptor, tree):
        rename = functools.partial(rename_fields, message=compiled.descriptor, tree=tree)
    return _Decoder(blocks, rename, columns, raw)
