"""Decodes values and keys by their format and framing (semantics 13.6).

The options contain the reader's schema and say where writers' schemas come from. If a writer's
schema is not available, the task fails; a payload is malformed only if its bytes contradict a
schema.
"""

import base64
import contextlib
import functools
import json
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.errors import SchemaRefused, SchemaRegistryError
from pyspark_timestream.kafka.decode.framing import (
    HEADERS,
    FramedBlock,
    Writer,
    split_header_frames,
    split_unframed,
    split_value_frames,
)
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.records import FRAMING, DecodedBlock, RequestedFields
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.reading import PayloadRules
from pyspark_timestream.kafka.options.schemas import (
    AVRO,
    JSON,
    PROTOBUF,
    ReaderSchema,
    RegisteredSchema,
    inline_references,
)

if TYPE_CHECKING:
    from pyspark_timestream.kafka.decode.avro.schemas import AvroReader
    from pyspark_timestream.kafka.decode.protobuf.descriptors import ProtobufReader

_TYPES: Final = {"avro": AVRO, "protobuf": PROTOBUF, "json": JSON}


def decode_part(
    options: KafkaOptions,
    rules: PayloadRules,
    requested: RequestedFields,
    payloads: pa.Array,
    headers: pa.Array | None,
) -> DecodedBlock:
    """Decode n binary values or keys; a null becomes a row of nulls and is not malformed.

    Args:
        options: the options, with the schemas that the format reads by.
        rules: the options of the value or the key.
        requested: the fields to read.
        payloads: n binary.
        headers: the records' headers; None unless they contain the frames.

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
    from pyspark_timestream.kafka.decode.avro.read import can_read_avro

    return can_read_avro(_create_avro_readers(options.readers[rules.part]), requested, writer)


def check_fields(options: KafkaOptions, rules: PayloadRules, requested: RequestedFields) -> None:
    """Check that the reader's schema has the requested fields, with types that can be read.

    Raises:
        SchemaRefused: a field is missing, or its type cannot be read.
    """
    if rules.format == "avro":
        from pyspark_timestream.kafka.decode.avro.schemas import check_avro_columns

        reader = _create_avro_reader(options.readers[rules.part])
        check_avro_columns(reader, requested.columns, requested.raw)
    if rules.format == "protobuf":
        from pyspark_timestream.kafka.decode.protobuf.plans import check_protobuf_columns

        message = _create_protobuf_reader(options.readers[rules.part])
        check_protobuf_columns(message, requested.columns, requested.raw)


def have_own_unit(options: KafkaOptions, names: tuple[str, ...]) -> bool:
    """True if the schema of the values gives the unit of the times in the fields `names`."""
    reader = options.readers.get(options.value_rules.part)
    if options.value_format != "avro" or reader is None:
        return False
    from pyspark_timestream.kafka.decode.avro import schemas

    return schemas.have_own_unit(_create_avro_reader(reader), names)


def _split_frames(rules: PayloadRules, payloads: pa.Array, headers: pa.Array | None) -> FramedBlock:
    indexed = rules.format == "protobuf"
    if rules.framing == "confluent":
        return split_value_frames(payloads, indexed=indexed)
    if rules.framing == "header":
        assert headers is not None, "frames in headers are read with the headers"
        return split_header_frames(payloads, headers, HEADERS[rules.part], indexed=indexed)
    return split_unframed(payloads)


def _fetch(
    options: KafkaOptions, rules: PayloadRules, framed: FramedBlock, writer: Writer
) -> RegisteredSchema:
    """Fetch a writer's schema; an error names the writer's first payload."""
    try:
        return _fetch_checked(options, rules, writer)
    except (SchemaRefused, SchemaRegistryError) as error:
        error.row = int(np.argmax(framed.codes == framed.writers.index(writer)))
        raise


def _fetch_checked(options: KafkaOptions, rules: PayloadRules, writer: Writer) -> RegisteredSchema:
    """Fetch a writer's schema, and check that its type is the one that the format reads."""
    assert options.source is not None, "frames are looked up in a registry"
    key = writer.guid if writer.schema_id is None else writer.schema_id
    assert key is not None, "a frame holds an id or a GUID"
    found = options.source.fetch_schema(key, rules.format, rules.subject)
    requested = _TYPES[rules.format]
    if found.type != requested:
        shown = key if isinstance(key, int) else key.hex()
        raise SchemaRefused(
            f"schema {shown}, which wrote {rules.part}s of this topic, is {found.type}, and option "
            f"'{rules.option_name('format')}' is '{rules.format}'",
            f"{rules.part}s of one format in a topic",
            f"read them as '{found.type.lower()}', or in queries of their own",
        )
    return found


def _read_json(
    options: KafkaOptions, rules: PayloadRules, requested: RequestedFields, framed: FramedBlock
) -> DecodedBlock:
    # Only the title of a schema is used, but its id must be known and be of a JSON Schema.
    writers = framed.writers if rules.has_registry else ()
    titles = [_find_title(_fetch(options, rules, framed, writer)) for writer in writers]
    block = parse_json(requested, framed.bodies)
    return block._replace(names=framed.name(titles)) if requested.names and titles else block


def _find_title(schema: RegisteredSchema) -> str | None:
    """Return the title of a JSON Schema, which serves as the name of its records."""
    with contextlib.suppress(ValueError):
        title = json.loads(schema.text).get("title")
        return title if isinstance(title, str) else None
    return None


def _read_avro(
    options: KafkaOptions, rules: PayloadRules, requested: RequestedFields, framed: FramedBlock
) -> DecodedBlock:
    from pyspark_timestream.kafka.decode.avro.read import read_avro

    reader, *newer = _create_avro_readers(options.readers[rules.part])
    if not rules.has_registry:
        # Without ids, only the options can say which schema wrote the payloads.
        writers = {0: rules.schema or reader.text}
        codes = pa.array(np.zeros(len(framed.bodies), dtype=np.int32))
    else:
        writers = {
            code: _inline(_fetch(options, rules, framed, writer))
            for code, writer in enumerate(framed.writers)
        }
        codes = pa.array(framed.codes, mask=framed.codes < 0)
    try:
        return read_avro(reader, requested, framed.bodies, writers, codes, newer=tuple(newer))
    except SchemaRefused as error:
        if error.row is None or not rules.has_registry:
            raise
        writer = framed.writers[framed.codes[error.row]]
        raise _refuse_writer(options.readers[rules.part], rules, writer, error) from None


def _refuse_writer(
    reader: ReaderSchema, rules: PayloadRules, writer: Writer, error: SchemaRefused
) -> SchemaRefused:
    """Add the names of both schemas, and the next step, to a refusal."""
    *_, last = reader.versions()
    option = rules.option_name("reader_schema")
    if last.schema_id is None:
        read_by = f"by option '{option}'"
        way = f"leave that column out, or correct '{option}' and start with a new checkpoint"
    else:
        read_by = f"by schema {last.schema_id} (version {last.version} of '{last.subject}')"
        way = (
            f"start the query again: it then reads such {rules.part}s by the latest version of "
            f"'{last.subject}', if that has every requested column with a type that fits; "
            "otherwise change the column in .schema(...) to what that version has, or leave it out"
        )
    refused = SchemaRefused(
        f"the {rules.part} was written with schema {_show_key(writer)} and is read {read_by}: "
        f"{error.problem}",
        error.accepts,
        way,
    )
    refused.row = error.row
    return refused


def _show_key(writer: Writer) -> str:
    return str(writer.schema_id) if writer.guid is None else writer.guid.hex()


@functools.lru_cache(maxsize=1_000)
def _inline(schema: RegisteredSchema) -> str:
    return inline_references(schema)


def _read_protobuf(
    options: KafkaOptions, rules: PayloadRules, requested: RequestedFields, framed: FramedBlock
) -> DecodedBlock:
    from pyspark_timestream.kafka.decode.protobuf.decode import read_framed_protobuf

    given = options.readers[rules.part]

    def find_message(writer: Writer) -> str | None:
        if not rules.has_registry:
            return given.message
        found = _fetch(options, rules, framed, writer)
        return _name_message(found, writer.message or ())

    return read_framed_protobuf(_create_protobuf_reader(given), requested, framed, find_message)


@functools.lru_cache(maxsize=1_000)
def _name_message(schema: RegisteredSchema, indexes: tuple[int, ...]) -> str | None:
    from pyspark_timestream.kafka.decode.protobuf.descriptors import find_message_name

    return find_message_name(schema.text.encode(), indexes)


@functools.lru_cache(maxsize=16)
def _create_protobuf_reader(given: ReaderSchema) -> "ProtobufReader":
    from pyspark_timestream.kafka.decode.protobuf.descriptors import create_reader

    return create_reader(base64.b64decode(given.text), given.message)


@functools.lru_cache(maxsize=16)
def _create_avro_reader(given: ReaderSchema) -> "AvroReader":
    from pyspark_timestream.kafka.decode.avro.schemas import parse_avro_reader

    return parse_avro_reader(given.text, given.message)


def _create_avro_readers(given: ReaderSchema) -> "tuple[AvroReader, ...]":
    """Create the readers of a schema and of its newer versions."""
    return tuple(map(_create_avro_reader, given.versions()))
