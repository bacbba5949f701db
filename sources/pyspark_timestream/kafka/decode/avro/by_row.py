"""Reads Avro payloads into columns: by blocks, or one by one where that does not pay.

Payloads are grouped by their writer's schema, decoded, cast, and put back in order. `by_block`
reads the payloads of one writer together in columns. If it cannot, or does not pay (types that
contain themselves, long arrays, small blocks), this module reads them one by one. It turns each
plan's steps into functions once; a function appends the wire values of its step to a list, and the
lists become columns together. The results are the same (semantics 13.6 and 13.9).
"""

import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import Integers, to_mask
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.avro.by_block import Cursors, read_block
from pyspark_timestream.kafka.decode.avro.plans import (
    AvroPlan,
    Bad,
    Record,
    Repeated,
    Scalar,
    SelfReference,
    Step,
    Union,
    all_bad,
    resolve_schemas,
)
from pyspark_timestream.kafka.decode.avro.schemas import (
    AvroReader,
    ParsedSchema,
    build_requested,
    find_name,
    parse_schema,
)
from pyspark_timestream.kafka.decode.convert import Converted, build_decoded_block, cast, keep
from pyspark_timestream.kafka.decode.records import (
    FINE,
    NAME,
    SYNTAX,
    TYPE,
    DecodedBlock,
    Reasons,
    RequestedFields,
    join_blocks,
    name_rows,
    split_pieces,
)
from pyspark_timestream.kafka.schemas import is_accepted

_MAX_DEPTH: Final = 100
"""The maximum nesting of records where the writer's schema has a type that contains itself."""

_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")

_BROKEN: Final = (ValueError, IndexError, struct.error, RecursionError)
"""Raised where bytes contradict their schema, or end too early."""


class _Row:
    """A payload that is being read: its bytes, the position to read next, and the lists to fill."""

    __slots__ = ("budget", "columns", "data", "depth", "position")

    def __init__(self, data: bytes, columns: list[list[Any]]) -> None:
        self.data = data
        self.position = 0
        self.depth = 0
        self.columns = columns
        self.budget = len(data)  # As in `by_block`: only items without bytes could be more.

    def _read_varint(self, max_bytes: int, bound: int) -> int:
        data, position = self.data, self.position
        byte = data[position]
        number, shift = byte & 127, 7
        while byte > 127:
            position += 1
            byte = data[position]
            number |= (byte & 127) << shift
            shift += 7
            if shift > 7 * max_bytes:
                raise ValueError("a number has too many bytes")
        self.position = position + 1
        number = (number >> 1) ^ -(number & 1)
        if not -bound <= number < bound:
            raise ValueError("a number has too many bits")
        return number

    def read_long(self) -> int:
        return self._read_varint(_LONG_BYTES, 2**63)

    def read_int(self) -> int:
        return self._read_varint(_INT_BYTES, 2**31)

    def read_index(self, size: int) -> int:
        index = self.read_int()
        if not 0 <= index < size:
            raise ValueError("an index is out of range")
        return index

    def take(self, length: int) -> bytes:
        if not 0 <= length <= len(self.data) - self.position:
            raise ValueError("a length exceeds the payload")
        begin = self.position
        self.position += length
        return self.data[begin : self.position]

    def read_bytes(self) -> bytes:
        return self.take(self.read_long())

    def read_boolean(self) -> bool:
        byte = self.take(1)
        if byte > b"\1":
            raise ValueError("a boolean is neither 0 nor 1")
        return byte == b"\1"

    def read_block_header(self) -> tuple[int, int]:
        """Read the header of an array's next block: its items, and its end or -1."""
        count, end = self.read_long(), -1
        if count < 0:
            count, size = -count, self.read_long()
            end = self.position + size
            if not self.position <= end <= len(self.data):
                raise ValueError("a block exceeds the payload")
        self.budget -= count
        if self.budget < 0:
            raise ValueError("there are more items than the payload has bytes")
        return count, end


Reader = Callable[[_Row], Any]


class RowReader:
    """Reads payloads by one plan."""

    def __init__(self, plan: AvroPlan) -> None:
        self._plan = plan
        self._lists = 0
        self._recursive: dict[str, Reader] = {}
        for name, step in plan.recursive.items():
            self._recursive[name] = self._build(step)
        self._read = self._build(plan.step)

    def read(self, bodies: list[bytes]) -> tuple[pa.Array, Reasons]:
        """Read payloads; return also why each is malformed."""
        columns: list[list[Any]] = [[] for _ in range(self._lists)]
        broken = np.zeros(len(bodies), np.bool_)
        for number, body in enumerate(bodies):
            sizes = [len(column) for column in columns]
            row = _Row(body, columns)
            try:
                self._read(row)
                if row.position != len(body):
                    raise ValueError("bytes are left over")
            except _BROKEN:
                broken[number] = True
                for column, size in zip(columns, sizes, strict=True):
                    del column[size:]
        converted = _build_column(self._plan.step, iter(columns), int((~broken).sum()))
        reasons = np.full(len(bodies), SYNTAX, np.uint8)
        reasons[~broken] = np.where(converted.bad, TYPE, FINE)
        if not broken.any():
            return converted.column, reasons
        return converted.column.take(pa.array(np.cumsum(~broken) - 1, mask=broken)), reasons

    def _add_list(self) -> int:
        self._lists += 1
        return self._lists - 1

    def _build(self, step: Step) -> Reader:
        """Build the function of a step; it makes lists in the order of `_build_column`."""
        match step:
            case Scalar():
                return self._build_scalar(step)
            case Record():
                return self._build_record(step)
            case Union():
                return self._build_union(step)
            case Repeated():
                return self._build_repeated(step)
            case SelfReference(name):
                return lambda row: self._recursive[name](row)
            case Bad():
                return self._build(step.step)

    def _build_scalar(self, step: Scalar) -> Reader:
        read_value = _choose_reader(step)
        if step.type is None or step.kind == "null":
            return read_value
        column = self._add_list()
        if step.is_text:
            return lambda row: row.columns[column].append(read_value(row).decode())
        return lambda row: row.columns[column].append(read_value(row))

    def _build_record(self, step: Record) -> Reader:
        readers = [self._build(field) for field, _ in step.fields]

        def read(row: _Row) -> None:
            for reader in readers:
                reader(row)

        def read_deeper(row: _Row) -> None:
            row.depth += 1
            if row.depth > _MAX_DEPTH:
                raise ValueError("records are nested too deep")
            read(row)
            row.depth -= 1

        return read_deeper if self._plan.recursive else read

    def _build_union(self, step: Union) -> Reader:
        column = self._add_list() if step.type is not None else None
        readers = [self._build(branch) for branch in step.branches]

        def read(row: _Row) -> None:
            index = row.read_index(len(readers))
            if column is not None:
                row.columns[column].append(index)
            readers[index](row)

        return read

    def _build_repeated(self, step: Repeated) -> Reader:
        column = self._add_list() if step.type is not None else None
        key = Scalar("string", None if column is None else pa.string())
        read_key = self._build_scalar(key) if step.keyed else None
        read_item = self._build(step.item)

        def read(row: _Row) -> None:
            total = 0
            while True:
                count, end = row.read_block_header()
                if count == 0:
                    break
                for _ in range(count):
                    if read_key is not None:
                        read_key(row)
                    read_item(row)
                if end not in (-1, row.position):
                    raise ValueError("a block is not as long as it says")
                total += count
            if column is not None:
                row.columns[column].append(total)

        return read


def _choose_reader(step: Scalar) -> Reader:
    match step.kind:
        case "null":
            return lambda row: None
        case "boolean":
            return _Row.read_boolean
        case "int":
            return _Row.read_int
        case "long":
            return _Row.read_long
        case "float":
            return lambda row: _FLOAT.unpack(row.take(4))[0]
        case "double":
            return lambda row: _DOUBLE.unpack(row.take(8))[0]
        case "enum":
            return lambda row: row.read_index(len(step.symbols))
        case "fixed":
            return lambda row: row.take(step.size)
    return _Row.read_bytes


def _build_column(step: Step, lists: Iterator[list[Any]], rows: int) -> Converted:
    """Build the column of a step with a type from its lists and its inner steps' lists."""
    match step:
        case Scalar(kind="null"):
            return keep(pa.nulls(rows, step.type))
        case Scalar():
            return step.convert(step.to_wire(next(lists)))
        case Record():
            placed = [(field, child) for field, child in step.fields if child is not None]
            return step.build(
                rows, {child: _build_column(field, lists, rows) for field, child in placed}
            )
        case Union():
            branch_indexes = np.array(next(lists), np.int64)
            counts = np.bincount(branch_indexes, minlength=len(step.branches)).tolist()
            branches = zip(step.branches, counts, strict=True)
            columns = [_build_column(branch, lists, count) for branch, count in branches]
            return step.join(branch_indexes, dict(enumerate(columns)))
        case Repeated():
            lengths = np.array(next(lists), np.int64)
            keys = [keep(pa.array(next(lists), pa.string()))] if step.keyed else []
            items = _build_column(step.item, lists, int(lengths.sum()))
            return step.build(lengths, [*keys, items])
        case Bad():
            return all_bad(rows, step.type)
        case SelfReference():
            raise AssertionError("a type that contains itself is skipped")


_FEW_BODIES: Final = 40
"""Up to this many payloads are read one by one, which costs less than calling numpy for them."""

_PIECE_BODIES: Final = 8_192
"""Read this many payloads at a time: their columns fit into a processor's cache."""

_PIECE_BYTES: Final = 1 << 20
"""Read this many bytes at a time, unless a single payload has more; this bounds the memory."""


class _Codec(NamedTuple):
    """The plan for one writer's schema, with its reader for single payloads."""

    plan: AvroPlan
    rows: RowReader


def read_avro(
    reader: AvroReader,
    requested: RequestedFields,
    bodies: pa.Array,
    writers: Mapping[int, str],
    schema_ids: pa.Array | None = None,
    *,
    newer: tuple[AvroReader, ...] = (),
) -> DecodedBlock:
    """Read n Avro payloads, some of them null; `check_avro_columns` accepted the fields.

    `schema_ids` name the schema of each payload, given as JSON in `writers`; null where the payload
    is not to be read. None: `reader` wrote them all. Writers' schemas that `reader` cannot read are
    read by its `newer` versions.

    Raises:
        SchemaRefused: the reader's schema cannot read a writer's schema, or the latter is not Avro;
            `row` is the first payload of that writer.
    """
    if not pa.types.is_binary(bodies.type):
        bodies = bodies.cast(pa.binary())
    reasons = np.full(len(bodies), FINE, np.uint8)
    # For each payload, its index in all `blocks` together, and its record name's index in `names`.
    read_index = np.full(len(bodies), -1, np.int64)
    name_index = np.full(len(bodies), -1, np.int64)
    blocks: list[DecodedBlock] = []
    names: list[str | None] = []
    read_count = 0
    for text, rows in _group_by_writer(reader, bodies, writers, schema_ids):
        group = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows))
        try:
            group_names, branches = _find_names(reader, requested, text, group)
            name_index[rows] = np.where(branches < 0, -1, branches + len(names))
            names += group_names
            # A payload of no branch, -1, takes the last entry: its reason is found when it is read.
            is_accepted = np.array([*map(reader.accepts, group_names), True])[branches]
            if not is_accepted.all():
                reasons[rows[~is_accepted]] = NAME
                rows = rows[is_accepted]
                group = group.filter(pa.array(is_accepted))
            if not len(rows):
                continue
            codec = _build_codec((reader, *newer), requested, text)
        except SchemaRefused as error:
            error.row = int(rows[0])
            raise
        pieces = split_pieces(group, _PIECE_BODIES, _PIECE_BYTES)
        blocks += [_read_piece(codec, requested, piece) for piece in pieces]
        read_index[rows] = np.arange(read_count, read_count + len(rows))
        read_count += len(rows)
    block = join_blocks(requested, blocks, read_index, reasons)
    row_names = name_rows(names, name_index) if requested.needs_names else None
    return block._replace(schema_ids=schema_ids, names=row_names)


def can_read_avro(readers: tuple[AvroReader, ...], requested: RequestedFields, writer: str) -> bool:
    """Return whether payloads of a writer's schema can be read."""
    return is_accepted(_build_codec, readers, requested, writer)


def _find_names(
    reader: AvroReader, requested: RequestedFields, text: str, bodies: pa.Array
) -> tuple[list[str | None], Integers]:
    """Return the names of the records that a schema writes, and for n payloads an index into them.

    The index is -1 if a union has no such branch, which makes the payload malformed anyway.
    """
    if not (requested.needs_names or reader.record):
        return [None], np.zeros(len(bodies), np.int64)
    parsed = _parse_writer(text)
    root = parsed.look_up(parsed.schema)
    if not isinstance(root, list):
        return [find_name(root)], np.zeros(len(bodies), np.int64)
    cursors = Cursors.of(bodies)
    branch_indexes = cursors.read_index(len(root))
    return [find_name(parsed.look_up(branch)) for branch in root], np.where(
        cursors.broken, -1, branch_indexes
    )


def _parse_writer(text: str) -> ParsedSchema:
    try:
        return parse_schema(text)
    except ValueError as error:
        raise SchemaRefused(
            str(error),
            "an Avro schema",
            "correct it, or register the topic's schemas again",
        ) from error


def _group_by_writer(
    reader: AvroReader, bodies: pa.Array, writers: Mapping[int, str], schema_ids: pa.Array | None
) -> list[tuple[str, Integers]]:
    """Return the writers' schemas, each with the rows that it wrote, in order."""
    present = to_mask(bodies.is_valid())
    if schema_ids is None:
        rows = np.flatnonzero(present)
        return [(reader.text, rows)] if len(rows) else []
    present &= to_mask(schema_ids.is_valid())
    ids = pc.fill_null(schema_ids, 0).to_numpy(zero_copy_only=False)
    return [
        (writers[int(writer)], np.flatnonzero(present & (ids == writer)))
        for writer in np.unique(ids[present])
    ]


@functools.lru_cache(maxsize=100)
def _build_codec(
    readers: tuple[AvroReader, ...], requested: RequestedFields, writer: str
) -> _Codec:
    """Plan the reading of a writer's schema with the first of `readers` that can read it."""
    main, *newer = readers
    try:
        plan = resolve_schemas(_parse_writer(writer), build_requested(main, requested))
    except SchemaRefused:
        if not newer:
            raise
        return _build_codec(tuple(newer), requested, writer)
    return _Codec(plan, RowReader(plan))


def _read_piece(codec: _Codec, requested: RequestedFields, bodies: pa.Array) -> DecodedBlock:
    """Read payloads of one writer, none of them null."""
    values, reasons = _read_values(codec, bodies)
    columns = [
        cast(pc.struct_field(values, path), column.type)
        for column, path in zip(requested.columns, requested.column_paths(), strict=True)
    ]
    paths = requested.raw_paths().items()
    raw = {text: [pc.struct_field(values, path)] for text, path in paths}
    return build_decoded_block(columns, raw, reasons)


def _read_values(codec: _Codec, bodies: pa.Array) -> tuple[pa.Array, Reasons]:
    """Read payloads as structs; malformed ones become null."""
    if len(bodies) <= _FEW_BODIES or codec.plan.recursive:
        return codec.rows.read(bodies.to_pylist())
    cursors = Cursors.of(bodies)
    values, bad = read_block(codec.plan.step, cursors)
    cursors.finish()
    reasons = np.where(bad, TYPE, FINE).astype(np.uint8)
    reasons[cursors.broken] = SYNTAX
    by_row = np.flatnonzero(cursors.by_row)
    # The place of each payload's value: those read by row are appended.
    value_index = np.arange(len(bodies))
    if len(by_row):
        row_values, reasons[by_row] = codec.rows.read(bodies.take(pa.array(by_row)).to_pylist())
        value_index[by_row] = np.arange(len(bodies), len(bodies) + len(by_row))
        values = pa.concat_arrays([values, row_values])
    absent = reasons == SYNTAX
    if not len(by_row) and not absent.any():
        return values, reasons
    return values.take(pa.array(value_index, mask=absent)), reasons
