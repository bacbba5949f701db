"""Decodes Protobuf payloads: n messages of the reader's type to columns (semantics 13.10).

ptars would build all fields of a message, read fields of the message's own type as bytes, and treat
Protobuf's own types in its own way: a date that does not exist becomes 1970-01-01, a late timestamp
the last of 2262. So it reads a message type that we describe: requested fields only, named by their
numbers, a new type at every place, texts as bytes, enums as numbers, and maps as repeated messages
of a key and a value, as on the wire. A message that is requested as binary stays bytes, including
the fields that its schema lacks.

ptars is fast but trusts its input: of bytes that no Protobuf library writes, it reads some that it
should refuse (overlong tags, ragged packed fields) and panics at others (lengths that wrap around).
So Google's library parses them first. n messages, each after a tag and its length, are one message
of n rows; parsing that costs less than ptars takes. If the library refuses a block, it is halved
until malformed rows are alone, so a row never depends on its neighbours. Where the two read the
same bytes differently (both members of a oneof, a repeated key of a map), Google's library rewrites
the requested fields in a form on which all libraries agree, and ptars reads that.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.instants import Mask
from pyspark_timestream.kafka.decode.convert import Longs, build_block
from pyspark_timestream.kafka.decode.protobuf.descriptors import (
    ProtobufReader,
    compile_reader,
    describe_block,
    import_libraries,
)
from pyspark_timestream.kafka.decode.protobuf.plans import (
    Plans,
    comes_in_pieces,
    is_map_entry,
    name_field,
    plan_fields,
)
from pyspark_timestream.kafka.decode.records import (
    FINE,
    SYNTAX,
    DecodedBlock,
    Reasons,
    RequestedFields,
    Tree,
    join_blocks,
    locate,
    split_pieces,
    to_mask,
)

T = TypeVar("T")

_PACKAGE: Final = "requested"

_MAX_ROWS: Final = 8_192
_MAX_BYTES: Final = 256 * 1024
"""The size of a piece that is parsed at once, unless a single message is larger.

Parsed messages can take some hundred times the memory of their bytes.
"""

_ROW_TAG: Final = 0x0A
"""The tag of field 1 with a length-delimited value."""


class _Describer:
    """Describes a block's `rows` again, with only the fields of a tree.

    Both libraries read the same bytes with such descriptors. For ptars, members of oneofs are
    optional fields, enums are numbers and maps are repeated entries. For Google's library (`exact`)
    everything that decides which value counts stays: whole oneofs, closed enums, and maps.
    """

    def __init__(self, *, exact: bool) -> None:
        libraries = import_libraries()
        self._exact = exact
        self._types = libraries.descriptor_pb2.FieldDescriptorProto
        self._file = libraries.descriptor_pb2.FileDescriptorProto(
            name="block.proto", package=_PACKAGE, syntax="proto2" if exact else "proto3"
        )

    def describe(self, message: Any, tree: Tree) -> Any:
        """Return the descriptor of a block of `message`."""
        pool = import_libraries().descriptor_pool.DescriptorPool()
        return describe_block(pool, self._file, self._add_message(message, tree))

    def _add_message(self, message: Any, tree: Tree) -> str:
        """Add `message` with the fields of `tree`, and return the name of its type."""
        added = self._file.message_type.add(name=f"M{len(self._file.message_type)}")
        oneofs: set[str] = set()
        for name, inner in tree.items():
            field = message.fields_by_name[name]
            oneof = field.containing_oneof
            if not self._exact or oneof is None or len(oneof.fields) == 1:
                self._add_field(added, field, inner)
            elif oneof.name not in oneofs:
                oneofs.add(oneof.name)
                added.oneof_decl.add(name=f"o{len(oneofs)}")
                for member in oneof.fields:
                    kept = self._add_field(added, member, tree.get(member.name))
                    kept.oneof_index = len(oneofs) - 1
        return f".{_PACKAGE}.{added.name}"

    def _add_field(self, message: Any, field: Any, tree: Tree | None) -> Any:
        types = self._types
        in_pieces = tree is None and comes_in_pieces(field)
        added = message.field.add(
            name=name_field(field),
            number=field.number,
            label=types.LABEL_REPEATED if field.is_repeated or in_pieces else types.LABEL_OPTIONAL,
            type=self._choose_type(field, tree),
            json_name=str(field.number),
        )
        if self._exact and field.type == types.TYPE_ENUM and field.enum_type.is_closed:
            # A closed enum ignores unknown numbers, so its values have to be known.
            scope = self._file.message_type.add(name=f"E{len(self._file.message_type)}")
            field.enum_type.CopyToProto(scope.enum_type.add())
            added.type = types.TYPE_ENUM
            added.type_name = f".{_PACKAGE}.{scope.name}.{scope.enum_type[0].name}"
        elif self._exact and tree is not None and is_map_entry(field.message_type):
            added.type_name = self._add_entry(message, field, tree)
        elif tree is not None:
            added.type_name = self._add_message(field.message_type, tree)
        elif not self._exact and field.has_presence and not field.is_repeated and not in_pieces:
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{added.name}")
        return added

    def _add_entry(self, message: Any, field: Any, tree: Tree) -> str:
        """Add the type of a map's entries, so that the last of equal keys counts."""
        entry = message.nested_type.add(name=f"F{field.number}Entry")
        entry.options.map_entry = True
        key, value = field.message_type.fields
        entry.field.add(name="key", number=1, type=key.type, label=self._types.LABEL_OPTIONAL)
        self._add_field(entry, value, tree["value"]).name = "value"
        return f".{_PACKAGE}.{message.name}.{entry.name}"

    def _choose_type(self, field: Any, tree: Tree | None) -> int:
        """Choose the type to read `field` as; the bytes on the wire are the same."""
        types = self._types
        if field.type == types.TYPE_ENUM:
            return int(types.TYPE_INT32)
        is_bytes = field.type == types.TYPE_STRING or (
            field.type == types.TYPE_MESSAGE and tree is None
        )
        return int(types.TYPE_BYTES if is_bytes else field.type)


def create_handler(message: Any, tree: Tree) -> Any:
    """Create ptars' reader for a block with `rows` that have the fields of `tree`."""
    descriptor = _Describer(exact=False).describe(message, tree)
    return import_libraries().ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)


def _create_rewriter(message: Any, tree: Tree) -> Any:
    """Create Google's class of a block that writes only the values of `tree` that count, once."""
    descriptor = _Describer(exact=True).describe(message, tree)
    return import_libraries().message_factory.GetMessageClass(descriptor)


def _needs_rewriting(message: Any, tree: Tree) -> bool:
    """Return whether ptars may read the fields of `tree` differently from Google's library.

    In Google's library only the last member of a oneof counts, and the last of a map's entries with
    equal keys. It ignores unknown numbers of a closed enum, and further fields in entries of maps.
    """
    for name, inner in tree.items():
        field = message.fields_by_name[name]
        if field.type == field.TYPE_ENUM and field.enum_type.is_closed:
            return True
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            return True
        if field.type == field.TYPE_MESSAGE and (
            is_map_entry(field.message_type)
            or (inner is not None and _needs_rewriting(field.message_type, inner))
        ):
            return True
    return False


class BlockReader(NamedTuple):
    """The classes that read blocks.

    Attributes:
        block_class: Google's class of a block.
        handler: ptars' reader of a block; None if no field is requested.
        rewriter: Google's class of a block with only the requested fields; None without any.
        always_rewrite: True if the two may read the same bytes of a requested field differently.
    """

    block_class: Any
    handler: Any | None
    rewriter: Any = None
    always_rewrite: bool = False


def parse_block(reader: BlockReader, messages: pa.Array) -> tuple[pa.Array | None, Mask]:
    """Parse n binary messages, none of them null.

    Return the requested fields of the well-formed messages as structs, None if none is requested;
    and n booleans: the message is well-formed.
    """
    rows_read: list[pa.Array] = []
    pieces = split_pieces(messages, _MAX_ROWS, _MAX_BYTES)
    fine = np.concatenate(
        [np.ones(0, np.bool_), *(_parse_piece(reader, p, rows_read) for p in pieces)]
    )
    if reader.handler is None:
        return None, fine
    return pa.concat_arrays(rows_read or [_to_rows(reader.handler, b"", 0)]), fine


def _parse_piece(reader: BlockReader, messages: pa.Array, columns: list[pa.Array]) -> Mask:
    """Parse messages, add their rows to `columns`, and return which are well-formed."""
    data, bounds = _join(messages)
    fine = np.ones(len(messages), np.bool_)

    def check(first: int, last: int) -> None:
        reader.block_class.FromString(data[bounds[first] : bounds[last]])

    _, refused = _isolate(len(messages), check, import_libraries().DecodeError)
    fine[refused] = False
    if reader.handler is None:
        return fine
    good = np.flatnonzero(fine)
    if refused:
        data, bounds = _select(data, bounds, good)

    def convert(first: int, last: int) -> pa.Array:
        rows = _convert(reader, data[bounds[first] : bounds[last]], last - first)
        # ptars' arrays have room for many rows, so keep only a copy of a few.
        return rows if last - first == len(good) else rows.take(np.arange(len(rows)))

    # A panic of ptars is a BaseException; no message is known to cause one here.
    rows, failed = _isolate(len(good), convert, BaseException)
    columns += rows
    fine[good[failed]] = False
    return fine


def _isolate(
    n: int, parse: Callable[[int, int], T], failure: type[BaseException]
) -> tuple[list[T], list[int]]:
    """Parse n rows, halving what fails; return the results, and the rows that fail singly."""
    results: list[T] = []
    failed: list[int] = []
    pending = [(0, n)] if n else []
    while pending:
        first, last = pending.pop()
        try:
            results.append(parse(first, last))
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except failure:
            if last - first == 1:
                failed.append(first)
            else:
                middle = (first + last) // 2
                pending += [(middle, last), (first, middle)]
    return results, failed


def _join(messages: pa.Array) -> tuple[memoryview, Longs]:
    """Join n messages into one, as its rows; return also the bounds of each row in it."""
    n = len(messages)
    lengths = np.diff(locate(messages)[0])
    # The varint of a length takes one byte per group of seven bits.
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
    bounds, data = locate(pc.binary_join_element_wise(tags, messages, b""))
    return data.data, bounds


def _select(data: memoryview, bounds: Longs, rows: Longs) -> tuple[memoryview, Longs]:
    """Keep only `rows` (increasing) of the rows in `data`."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
    kept = b"".join(data[bounds[run[0]] : bounds[run[-1] + 1]] for run in runs)
    return memoryview(kept), np.concatenate(([0], np.cumsum(np.diff(bounds)[rows])))


def _convert(reader: BlockReader, data: memoryview, rows: int) -> pa.Array:
    if not reader.always_rewrite:
        # If ptars refuses what Google's library accepts, it may read what that library writes.
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
    records = handler.array_to_record_batch(blocks).column(0).flatten()
    if len(records) != rows:
        raise ValueError(f"{len(records)} rows instead of {rows}")
    return records


def read_protobuf(
    reader: ProtobufReader,
    requested: RequestedFields,
    bodies: pa.Array,
    reasons: Reasons | None = None,
) -> DecodedBlock:
    """Decode n binary messages; a null becomes a row of nulls and is not malformed.

    `reasons` are why payloads are already malformed, so that they are not read; None: none is.
    """
    blocks, plans = _create_decoder(reader, requested)
    n = len(bodies)
    reasons = np.zeros(n, dtype=np.uint8) if reasons is None else reasons.copy()
    rows = np.flatnonzero(to_mask(bodies.is_valid()) & (reasons == FINE))
    parsed, fine = parse_block(blocks, bodies if len(rows) == n else bodies.take(pa.array(rows)))
    reasons[rows[~fine]] = SYNTAX
    rows = rows[fine]
    order = np.full(n, -1, dtype=np.int64)
    order[rows] = np.arange(len(rows))
    columns = [plan.read(parsed) for plan in plans.columns]
    raw = {name: [plan.read(parsed).column] for name, plan in plans.raw.items()}
    block = build_block(columns, raw, np.full(len(rows), FINE, np.uint8))
    return join_blocks(requested, [block], order, reasons)


@functools.lru_cache(maxsize=64)
def _create_decoder(
    reader: ProtobufReader, requested: RequestedFields
) -> tuple[BlockReader, Plans]:
    message, block_class = compile_reader(reader)
    plans = plan_fields(reader, requested.columns, requested.raw)
    if not plans.tree:
        return BlockReader(block_class, None), plans
    blocks = BlockReader(
        block_class,
        create_handler(message, plans.tree),
        _create_rewriter(message, plans.tree),
        _needs_rewriting(message, plans.tree),
    )
    return blocks, plans
