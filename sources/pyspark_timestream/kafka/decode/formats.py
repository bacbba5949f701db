"""Decodes values and keys by their framing and format (semantics 13.6 and 13.8).

A frame names the schema that wrote a payload. Frames are measured in columns, and each distinct one
is parsed once. The options contain the reader's schema and say where writers' schemas come from. If
a writer's schema is not available, the task fails; a payload is malformed only if its bytes
contradict a schema.
"""

import base64
import contextlib
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.core.arrow import Bytes, Integers, Mask, locate, to_mask
from pyspark_timestream.errors import SchemaRefused, SchemaRegistryError
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.records import (
    FINE,
    FRAMING,
    NAME,
    DecodedBlock,
    Reasons,
    RequestedFields,
    find_header,
    name_rows,
    take_header_values,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.reading import PayloadRules
from pyspark_timestream.kafka.schemas import AVRO, JSON, PROTOBUF, ReaderSchema, RegisteredSchema

if TYPE_CHECKING:
    from pyspark_timestream.kafka.decode.avro.schemas import AvroReader
    from pyspark_timestream.kafka.decode.protobuf.descriptors import ProtobufReader

_TYPES: Final = {"avro": AVRO, "protobuf": PROTOBUF, "json": JSON}


HEADERS: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""The record header with the frame of the key or the value."""

MAX_INDEXES: Final = 100
"""Frames with more message indexes are malformed; Protobuf's own readers stop at this nesting."""

_ID_LENGTH: Final = 5
_GUID_LENGTH: Final = 17
_MAX_VARINT: Final = 5
"""Maximum number of bytes of a 32-bit varint."""

_MAX_ID: Final = 2**31 - 1


class WriterSchema(NamedTuple):
    """The schema that wrote a payload, as its frame names it.

    Attributes:
        schema_id: the schema's id; None if the frame names a GUID.
        guid: the schema's GUID, 16 bytes; None if the frame names an id.
        message: the indexes of the message type in a Protobuf schema: first among the top-level
            messages, then among the messages nested in that one, and so on; None without.
    """

    schema_id: int | None = None
    guid: bytes | None = None
    message: tuple[int, ...] | None = None


class FramedBlock(NamedTuple):
    """n payloads without their frames.

    Attributes:
        bodies: n binary: the payload after its frame; null if the payload is null or malformed.
        schema_ids: n int32: the id of the writer's schema; null if there is none or it is a GUID.
        writers: the different writers of the block, in order of appearance.
        codes: n int32: the payload's writer as an index into `writers`; -1 if there is none.
        bad: n booleans: the frame is malformed.
    """

    bodies: pa.Array
    schema_ids: pa.Array
    writers: tuple[WriterSchema, ...]
    codes: npt.NDArray[np.int32]
    bad: Mask

    @property
    def reasons(self) -> Reasons:
        """The reasons of n payloads: FRAMING where the frame is malformed, else FINE."""
        return np.where(self.bad, FRAMING, FINE).astype(np.uint8)


def decode_side(
    options: KafkaOptions,
    rules: PayloadRules,
    requested: RequestedFields,
    payloads: pa.Array,
    headers: pa.Array | None,
) -> DecodedBlock:
    """Decode n binary values or keys; a null becomes a row of nulls and is not malformed.

    `headers` are the records' headers, if they contain the frames.

    Raises:
        SchemaRegistryError: a writer's schema is not available.
        SchemaRefused: the reader's schema cannot read a writer's schema.
    """
    framed = _split_frames(rules, payloads, headers)
    match rules.format:
        case "avro":
            block = _read_avro(options, rules, requested, framed)
        case "protobuf":
            block = _read_protobuf(options, rules, requested, framed)
        case "json" | "binary":  # For `binary` no fields are requested, so none are parsed.
            block = _read_json(options, rules, requested, framed)
        case unknown:
            raise NotImplementedError(f"nothing decodes {unknown}")
    if not framed.bad.any():
        return block._replace(schema_ids=framed.schema_ids)
    reasons = np.where(framed.bad, np.uint8(FRAMING), block.reasons)
    return block._replace(reasons=reasons, schema_ids=framed.schema_ids)


def can_read(
    options: KafkaOptions, rules: PayloadRules, requested: RequestedFields, writer: str
) -> bool:
    """Return whether the reader's schema can read payloads of a writer's Avro schema."""
    from pyspark_timestream.kafka.decode.avro.by_row import can_read_avro

    return can_read_avro(
        _create_avro_readers(options.reader_schemas[rules.side]), requested, writer
    )


def check_fields(options: KafkaOptions, rules: PayloadRules, requested: RequestedFields) -> None:
    """Refuse requested fields that the reader's schema lacks, or has with an unusable type."""
    if rules.format == "avro":
        from pyspark_timestream.kafka.decode.avro.schemas import check_avro_columns

        reader = _create_avro_reader(options.reader_schemas[rules.side])
        check_avro_columns(reader, requested.columns, requested.raw)
    if rules.format == "protobuf":
        from pyspark_timestream.kafka.decode.protobuf.decode import plan_fields

        message = _create_protobuf_reader(options.reader_schemas[rules.side])
        plan_fields(message, requested.columns, requested.raw)


def have_own_unit(options: KafkaOptions, names: tuple[str, ...]) -> bool:
    """Return whether the schema of the values gives the unit of the times in the fields `names`."""
    reader = options.reader_schemas.get(options.value_rules.side)
    if options.value_format != "avro" or reader is None:
        return False
    from pyspark_timestream.kafka.decode.avro import schemas

    return schemas.are_temporal(_create_avro_reader(reader), names)


def _split_frames(rules: PayloadRules, payloads: pa.Array, headers: pa.Array | None) -> FramedBlock:
    indexed = rules.format == "protobuf"
    if rules.framing == "confluent":
        return split_value_frames(payloads, indexed=indexed)
    if rules.framing == "header":
        assert headers is not None, "frames in headers are read with the headers"
        return split_header_frames(payloads, headers, HEADERS[rules.side], indexed=indexed)
    return split_unframed(payloads)


def _fetch(
    options: KafkaOptions, rules: PayloadRules, framed: FramedBlock, writer: WriterSchema
) -> RegisteredSchema:
    """Fetch a writer's schema, of the format's type; an error names the writer's first payload."""
    assert options.source is not None, "frames are looked up in a registry"
    key = writer.guid if writer.schema_id is None else writer.schema_id
    assert key is not None, "a frame holds an id or a GUID"
    try:
        schema = options.source.fetch_schema(key, rules.format, rules.subject)
        if schema.type != _TYPES[rules.format]:
            raise SchemaRefused(
                f"schema {_show_key(writer)}, which wrote {rules.side}s of this topic, is "
                f"{schema.type}, and option '{rules.option_name('format')}' is '{rules.format}'",
                f"{rules.side}s of one format in a topic",
                f"read them as '{schema.type.lower()}', or in queries of their own",
            )
    except (SchemaRefused, SchemaRegistryError) as error:
        error.row = int(np.argmax(framed.codes == framed.writers.index(writer)))
        raise
    return schema


def _read_json(
    options: KafkaOptions, rules: PayloadRules, requested: RequestedFields, framed: FramedBlock
) -> DecodedBlock:
    # Only the title of a schema is used, but its id must be known and be of a JSON Schema.
    writers = framed.writers if rules.has_registry else ()
    titles = [_find_title(_fetch(options, rules, framed, writer)) for writer in writers]
    block = parse_json(requested, framed.bodies)
    names = name_rows(titles, framed.codes) if requested.needs_names and titles else None
    return block._replace(names=names)


def _find_title(schema: RegisteredSchema) -> str | None:
    """Return the title of a JSON Schema, which serves as the name of its records."""
    with contextlib.suppress(ValueError, RecursionError):
        described = json.loads(schema.text)
        # A schema may also be just true or false.
        title = described.get("title") if isinstance(described, dict) else None
        return title if isinstance(title, str) else None
    return None


def _read_avro(
    options: KafkaOptions, rules: PayloadRules, requested: RequestedFields, framed: FramedBlock
) -> DecodedBlock:
    from pyspark_timestream.kafka.decode.avro.by_row import read_avro
    from pyspark_timestream.kafka.decode.avro.schemas import inline_references

    reader, *newer = _create_avro_readers(options.reader_schemas[rules.side])
    if not rules.has_registry:
        # Without ids, only the options can say which schema wrote the payloads.
        writers = {0: rules.schema or reader.text}
        codes = pa.array(np.zeros(len(framed.bodies), dtype=np.int32))
    else:
        writers = {
            code: inline_references(_fetch(options, rules, framed, writer))
            for code, writer in enumerate(framed.writers)
        }
        codes = pa.array(framed.codes, mask=framed.codes < 0)
    try:
        return read_avro(reader, requested, framed.bodies, writers, codes, newer=tuple(newer))
    except SchemaRefused as error:
        if error.row is None or not rules.has_registry:
            raise
        writer = framed.writers[framed.codes[error.row]]
        raise _refuse_writer(options.reader_schemas[rules.side], rules, writer, error) from None


def _refuse_writer(
    reader: ReaderSchema, rules: PayloadRules, writer: WriterSchema, error: SchemaRefused
) -> SchemaRefused:
    """Add the names of both schemas, and the next step, to a refusal."""
    *_, latest = reader.versions()
    option = rules.option_name("reader_schema")
    if latest.schema_id is None:
        read_by = f"by option '{option}'"
        next_step = f"leave that column out, or correct '{option}' and start with a new checkpoint"
    else:
        read_by = f"by schema {latest.schema_id} (version {latest.version} of '{latest.subject}')"
        next_step = (
            f"start the query again: it then reads such {rules.side}s by the latest version of "
            f"'{latest.subject}', if that has every requested column with a type that fits; "
            "otherwise change the column in .schema(...) to what that version has, or leave it out"
        )
    refusal = SchemaRefused(
        f"the {rules.side} was written with schema {_show_key(writer)} and is read {read_by}: "
        f"{error.problem}",
        error.accepts,
        next_step,
    )
    refusal.row = error.row
    return refusal


def _show_key(writer: WriterSchema) -> str:
    return str(writer.schema_id) if writer.guid is None else writer.guid.hex()


def _read_protobuf(
    options: KafkaOptions, rules: PayloadRules, requested: RequestedFields, framed: FramedBlock
) -> DecodedBlock:
    reader = options.reader_schemas[rules.side]

    def find_message(writer: WriterSchema) -> str | None:
        if not rules.has_registry:
            return reader.message
        schema = _fetch(options, rules, framed, writer)
        return _name_message(schema, writer.message or ())

    return read_framed_protobuf(_create_protobuf_reader(reader), requested, framed, find_message)


def read_framed_protobuf(
    reader: "ProtobufReader",
    requested: RequestedFields,
    framed: FramedBlock,
    find_message: Callable[[WriterSchema], str | None],
) -> DecodedBlock:
    """Decode the bodies of `framed`; `find_message` names the message that a writer wrote.

    A payload with another message than the reader's is malformed (reason `name`), and so is one
    with message indexes that its schema lacks (reason `framing`). Errors of `find_message` pass.
    """
    from pyspark_timestream.kafka.decode.protobuf.decode import read_protobuf

    reasons = framed.reasons
    names = [find_message(writer) for writer in framed.writers]
    wrong = [
        FINE if name == reader.message else FRAMING if name is None else NAME for name in names
    ]
    # The last entry stands for payloads without a writer.
    outcomes = np.array([*wrong, FINE], dtype=np.uint8)[framed.codes]
    reasons = np.where(outcomes == FINE, reasons, outcomes)
    block = read_protobuf(reader, requested, framed.bodies, reasons)
    row_names = name_rows(names, framed.codes) if requested.needs_names else None
    return block._replace(schema_ids=framed.schema_ids, names=row_names)


@functools.lru_cache(maxsize=1_000)
def _name_message(schema: RegisteredSchema, indexes: tuple[int, ...]) -> str | None:
    from pyspark_timestream.kafka.decode.protobuf.descriptors import find_message_name

    return find_message_name(schema.text.encode(), indexes)


@functools.lru_cache(maxsize=16)
def _create_protobuf_reader(schema: ReaderSchema) -> "ProtobufReader":
    from pyspark_timestream.kafka.decode.protobuf.descriptors import create_reader

    return create_reader(base64.b64decode(schema.text), schema.message)


@functools.lru_cache(maxsize=16)
def _create_avro_reader(schema: ReaderSchema) -> "AvroReader":
    from pyspark_timestream.kafka.decode.avro.schemas import parse_avro_reader

    try:
        return parse_avro_reader(schema.text, schema.message)
    except ValueError as error:
        where = "" if schema.subject is None else f" of subject '{schema.subject}'"
        raise SchemaRefused(
            f"the schema{where} cannot be read: {error}",
            "a schema of Avro",
            "correct it, or name another one",
        ) from error


def _create_avro_readers(schema: ReaderSchema) -> "tuple[AvroReader, ...]":
    """Create the readers of a schema and of its newer versions."""
    return tuple(map(_create_avro_reader, schema.versions()))


def split_unframed(payloads: pa.Array) -> FramedBlock:
    """Return payloads without frames as they are."""
    nothing = np.full(len(payloads), -1, dtype=np.int32)
    ids = pa.nulls(len(payloads), pa.int32())
    return FramedBlock(payloads, ids, (), nothing, np.zeros(len(payloads), dtype=np.bool_))


def split_value_frames(payloads: pa.Array, *, indexed: bool = False) -> FramedBlock:
    """Split n binary payloads into frame and body; `indexed` frames name a Protobuf message."""
    equal = _split_equal_frames(payloads, indexed=indexed)
    if equal is not None:
        return equal
    frames, bodies, bad = _cut_frames(payloads, indexed=indexed)
    return _parse_frames(frames, bodies, bad, indexed=indexed)


def split_header_frames(
    payloads: pa.Array, headers: pa.Array, name: str, *, indexed: bool = False
) -> FramedBlock:
    """Read the frames of n binary payloads from the record header `name`.

    A payload is malformed if it lacks that header, or if the header has bytes after the frame; a
    null payload never is.
    """
    frames, remainder, bad = _cut_frames(
        take_header_values(headers, find_header(headers, name)), indexed=indexed
    )
    longer = to_mask(remainder.is_valid()) & (np.diff(locate(remainder)[0]) > 0)
    bad = (bad | longer | to_mask(frames.is_null())) & to_mask(payloads.is_valid())
    return _parse_frames(
        _null_where(frames, to_mask(payloads.is_null()) | bad), payloads, bad, indexed=indexed
    )


def _split_equal_frames(payloads: pa.Array, *, indexed: bool) -> FramedBlock | None:
    """Split n payloads that all begin with the same frame, as in most blocks; else return None."""
    n = len(payloads)
    if n == 0 or payloads.null_count:
        return None
    bounds, data = locate(payloads)
    starts, ends = bounds[:-1], bounds[1:]
    frame_size = int(_measure_frames(data, starts[:1], ends[:1], indexed=indexed)[0])
    if frame_size == 0 or int((ends - starts).min()) < frame_size:
        return None
    frame = data[starts[0] : starts[0] + frame_size]
    # Compare one byte of all payloads after the other: few compares, and no copy of the frames.
    if not all(bool((data[starts + index] == byte).all()) for index, byte in enumerate(frame)):
        return None
    writer = _parse_frame(frame.tobytes(), indexed=indexed)
    if writer is None:
        return None
    bodies = _alternate(payloads, starts, ends, frame_size).take(pa.array(np.arange(1, 2 * n, 2)))
    schema_ids = pa.repeat(pa.scalar(writer.schema_id, pa.int32()), n)
    writer_indexes, malformed = np.zeros(n, np.int32), np.zeros(n, np.bool_)
    return FramedBlock(bodies, schema_ids, (writer,), writer_indexes, malformed)


def _cut_frames(payloads: pa.Array, *, indexed: bool) -> tuple[pa.Array, pa.Array, Mask]:
    """Cut payloads after their frames; both are null where a payload has no sound frame."""
    n = len(payloads)
    present = to_mask(payloads.is_valid())
    bounds, data = locate(payloads)
    starts, ends = bounds[:-1], bounds[1:]
    lengths = _measure_frames(data, starts, ends, indexed=indexed)
    bad = present & (lengths == 0)
    pieces = _alternate(payloads, starts, ends, lengths)
    absent = bad | ~present
    frame_indexes = np.arange(0, 2 * n, 2)
    return (
        pieces.take(pa.array(frame_indexes, mask=absent)),
        pieces.take(pa.array(frame_indexes + 1, mask=absent)),
        bad,
    )


def _alternate(
    payloads: pa.Array, starts: Integers, ends: Integers, lengths: Integers | int
) -> pa.Array:
    """Return an array of frame, body, frame, body and so on over the payloads' bytes."""
    n = len(payloads)
    bounds = np.empty(2 * n + 1, dtype=np.int32)
    bounds[0:-1:2], bounds[1::2], bounds[-1] = starts, starts + lengths, ends[-1] if n else 0
    buffers = [None, pa.py_buffer(bounds), payloads.buffers()[2] or pa.py_buffer(b"")]
    return pa.BinaryArray.from_buffers(pa.binary(), 2 * n, buffers)


def _measure_frames(data: Bytes, starts: Integers, ends: Integers, *, indexed: bool) -> Integers:
    """Return the length of each frame; 0 where it is malformed."""
    magic = _read_bytes(data, starts, ends)
    lengths = np.where(magic == 0, _ID_LENGTH, np.where(magic == 1, _GUID_LENGTH, 0))
    lengths[ends - starts < lengths] = 0
    if indexed:
        framed = np.flatnonzero(lengths)
        positions = starts[framed] + lengths[framed]
        # Most schemas write their first message, which is encoded as a single zero byte.
        is_first = _read_bytes(data, positions, ends[framed]) == 0
        after = positions + 1
        after[~is_first] = _skip_indexes(data, positions[~is_first], ends[framed[~is_first]])
        lengths[framed] = np.where(after > 0, after - starts[framed], 0)
    return lengths


def _skip_indexes(data: Bytes, positions: Integers, ends: Integers) -> Integers:
    """Return the positions after arrays of message indexes; 0 where an array is malformed."""
    counts, positions = _read_varints(data, positions, ends)
    # Zigzag encodes a negative count as an odd number.
    sound = (positions > 0) & (counts % 2 == 0) & (counts <= 2 * MAX_INDEXES)
    remaining = np.where(sound, counts // 2, 0)
    positions = np.where(sound, positions, 0)
    while (rows := np.flatnonzero(remaining)).size:
        indexes, after = _read_varints(data, positions[rows], ends[rows])
        positions[rows] = np.where(indexes % 2 == 0, after, 0)
        remaining[rows] = np.where(positions[rows] > 0, remaining[rows] - 1, 0)
    return positions


def _read_varints(data: Bytes, positions: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """Read 32-bit varints; return the values and the positions after them, 0 if malformed."""
    values = np.zeros(len(positions), dtype=np.int64)
    after = np.zeros(len(positions), dtype=np.int64)
    rows = np.arange(len(positions))
    for step in range(_MAX_VARINT):
        offsets = positions[rows] + step
        byte = _read_bytes(data, offsets, ends[rows])
        rows, offsets, byte = rows[byte >= 0], offsets[byte >= 0], byte[byte >= 0]
        values[rows] |= (byte & 0x7F) << (7 * step)
        is_last = byte < 0x80
        after[rows[is_last]] = offsets[is_last] + 1
        rows = rows[~is_last]
    return values, np.where(values < 2**32, after, 0)


def _read_bytes(data: Bytes, positions: Integers, ends: Integers) -> Integers:
    """Read a byte at each position; -1 where the payload ends before it."""
    inside = positions < ends
    if not inside.any():
        return np.full(len(positions), -1, dtype=np.int64)
    return np.where(inside, data[np.where(inside, positions, 0)], -1).astype(np.int64)


def _parse_frames(frames: pa.Array, bodies: pa.Array, bad: Mask, *, indexed: bool) -> FramedBlock:
    """Parse each distinct frame once; different bytes may name the same writer."""
    encoded = frames.dictionary_encode()
    writers: dict[WriterSchema, int] = {}
    meaning = np.full(len(encoded.dictionary) + 1, -1, dtype=np.int32)
    for index, frame in enumerate(encoded.dictionary.to_pylist()):
        writer = _parse_frame(frame, indexed=indexed)
        if writer is not None:
            meaning[index] = writers.setdefault(writer, len(writers))
    # The last entry stands for payloads without a frame.
    codes = meaning[encoded.indices.fill_null(len(meaning) - 1).to_numpy(zero_copy_only=False)]
    bad = bad | (to_mask(frames.is_valid()) & (codes < 0))
    if (bad & to_mask(bodies.is_valid())).any():
        bodies = _null_where(bodies, bad)
    ids = np.array([writer.schema_id or 0 for writer in writers] + [0], dtype=np.int32)
    has_id = np.array([writer.schema_id is not None for writer in writers] + [False])
    return FramedBlock(
        bodies, pa.array(ids[codes], mask=~has_id[codes]), tuple(writers), codes, bad
    )


def _parse_frame(frame: bytes, *, indexed: bool) -> WriterSchema | None:
    """Parse a frame of the right length; None if its id is above the maximum of a registry."""
    length = _GUID_LENGTH if frame[0] else _ID_LENGTH
    message = _parse_indexes(frame[length:]) if indexed else None
    if frame[0]:
        return WriterSchema(guid=frame[1:length], message=message)
    schema_id = int.from_bytes(frame[1:length])
    return WriterSchema(schema_id, message=message) if schema_id <= _MAX_ID else None


def _parse_indexes(frame: bytes) -> tuple[int, ...]:
    numbers, shift = [0], 0
    for byte in frame[:-1]:
        numbers[-1] |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(0)
            shift = 0
    numbers[-1] |= frame[-1] << shift
    return tuple(number // 2 for number in numbers[1:]) or (0,)


def _null_where(values: pa.Array, absent: Mask) -> pa.Array:
    return values.take(pa.array(np.arange(len(values)), mask=absent))
