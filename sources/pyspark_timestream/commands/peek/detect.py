"""Detects what payloads are: framing, format, schemas, and columns for their fields.

Detection is pure: it gets the registry's answers for the ids in the frames as an argument;
`ask_registry` and `find_reader_options` make the requests. With answers, a frame counts if the
registry knows its id; without, if its id is plausible. The form of most payloads decides, and a
detection counts how many have it (semantics 13.3 and 13.6).

Every field that is not a struct becomes a column, by its path. Left out, at any depth, are fields
with names that suggest secrets, and types that Spark cannot have as a column.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pyspark_timestream.core.arrow import INSTANT, name_scalar
from pyspark_timestream.core.declarations import quote_column, suggests_secret
from pyspark_timestream.errors import SchemaRegistryError
from pyspark_timestream.kafka.decode.avro.schemas import (
    ParsedSchema,
    inline_references,
    kind_of,
    parse_schema,
    read_as,
)
from pyspark_timestream.kafka.decode.formats import (
    HEADERS,
    FramedBlock,
    WriterSchema,
    split_header_frames,
    split_value_frames,
)
from pyspark_timestream.kafka.decode.protobuf.descriptors import (
    compile_reader,
    create_reader,
    find_message_name,
)
from pyspark_timestream.kafka.diagnosis.samples import (
    ValueForm,
    name_value_form,
    parse_object,
)
from pyspark_timestream.kafka.options.parsers import format_path
from pyspark_timestream.kafka.options.reading import Side
from pyspark_timestream.kafka.registry import SchemaRegistry
from pyspark_timestream.kafka.schemas import AVRO, JSON, PROTOBUF, ReaderSchema, RegisteredSchema

_MAX_DEPTH: Final = 8
_PLAIN_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_LONG: Final = range(-(2**63), 2**63)

_NOTHING: Final = pa.null()
"""The type of a value that does not show its field's type."""

_PROTOBUF_TIMES: Final = {
    "google.protobuf.Timestamp": INSTANT,
    "google.protobuf.Duration": pa.duration("us"),
    "google.type.Date": pa.date32(),
}
_PROTOBUF_WRAPPER: Final = re.compile(r"google\.protobuf\.[A-Za-z0-9]+Value")
UINT64: Final = pa.decimal128(20, 0)
"""The type of a column for unsigned 64-bit numbers."""


class Columns(NamedTuple):
    """The columns of the values or the keys, by their paths as text.

    `secrets` counts the fields left out because their names suggest secrets, `omitted` those beyond
    the columns that a schema may have.
    """

    fields: pa.Schema
    secrets: int = 0
    omitted: int = 0


def list_columns(struct: pa.DataType) -> Columns:
    """List a struct's fields that are not structs themselves, by their paths."""
    visible, secrets = _drop_secrets(struct)
    fields = [
        pa.field(format_path(path), data_type)
        for path, data_type in _list_leaves(visible or pa.struct([]), ())
        if all(name.strip() and name.isprintable() for name in path)
    ]
    return Columns(pa.schema(fields), secrets)


def _list_leaves(
    data_type: pa.DataType, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], pa.DataType]]:
    if not pa.types.is_struct(data_type):
        yield path, data_type
        return
    for field in data_type:
        yield from _list_leaves(field.type, (*path, field.name))


def _drop_secrets(data_type: pa.DataType) -> tuple[pa.DataType | None, int]:
    """Return a type without fields that suggest secrets, or None, and the number of these."""
    if pa.types.is_list(data_type):
        inner, secrets = _drop_secrets(data_type.value_type)
        return (None if inner is None else pa.list_(inner)), secrets
    if pa.types.is_map(data_type):
        inner, secrets = _drop_secrets(data_type.item_type)
        return (None if inner is None else pa.map_(data_type.key_type, inner)), secrets
    if not pa.types.is_struct(data_type):
        return data_type, 0
    inner_types = {
        field.name: _drop_secrets(field.type)
        for field in data_type
        if not suggests_secret(field.name)
    }
    secrets = (
        data_type.num_fields - len(inner_types) + sum(hidden for _, hidden in inner_types.values())
    )
    children = [(name, inner) for name, (inner, _) in inner_types.items() if inner is not None]
    return (pa.struct(children) if children else None), secrets


def format_columns(schema: pa.Schema) -> list[str]:
    """Format each column as in Spark's DDL.

    >>> format_columns(pa.schema([("a.b", pa.list_(pa.int64())), ("c", pa.bool_())]))
    ['`a.b` array<bigint>', 'c boolean']
    """
    return [f"{_quote_name(field.name)} {_format_type(field.type)}" for field in schema]


def _quote_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote_column(name)


def _format_type(data_type: pa.DataType) -> str:
    if pa.types.is_list(data_type):
        return f"array<{_format_type(data_type.value_type)}>"
    if pa.types.is_map(data_type):
        return f"map<{_format_type(data_type.key_type)},{_format_type(data_type.item_type)}>"
    if pa.types.is_struct(data_type):
        fields = (f"{_quote_name(field.name)}:{_format_type(field.type)}" for field in data_type)
        return f"struct<{','.join(fields)}>"
    return name_scalar(data_type)


# -- JSON ------------------------------------------------------------------------------------------


def infer_json(objects: Iterable[Mapping[str, Any]]) -> pa.DataType:
    """Infer a struct for JSON objects; a field of several types becomes a string."""
    schema = pa.struct([])
    for object_ in objects:
        schema = _merge(schema, _type_of(object_, 0))
    return pa.struct([(field.name, _settle(field.type)) for field in schema])


def _type_of(value: Any, depth: int) -> pa.DataType:
    match value:
        case None:
            return _NOTHING
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if value in _LONG else pa.string()
        case float():
            return pa.float64()
        case dict() if depth < _MAX_DEPTH:
            # Arrow has no names with half of a character, which are not printable either.
            return pa.struct(
                [
                    (name, _type_of(inner, depth + 1))
                    for name, inner in value.items()
                    if name.isprintable()
                ]
            )
        case list() if depth < _MAX_DEPTH:
            item = _NOTHING
            for element in value:
                item = _merge(item, _type_of(element, depth + 1))
            return pa.list_(item)
        case _:
            return pa.string()


def _merge(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or right == _NOTHING:
        return left
    if left == _NOTHING:
        return right
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(left) and pa.types.is_list(right):
        return pa.list_(_merge(left.value_type, right.value_type))
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        merged = {field.name: field.type for field in left}
        for field in right:
            merged[field.name] = _merge(merged.get(field.name, _NOTHING), field.type)
        return pa.struct(list(merged.items()))
    return pa.string()


def _settle(data_type: pa.DataType) -> pa.DataType:
    """Return a type that a column can have; an unknown type becomes a string."""
    if data_type == _NOTHING or data_type == pa.struct([]):
        return pa.string()
    if pa.types.is_list(data_type):
        return pa.list_(_settle(data_type.value_type))
    if pa.types.is_struct(data_type):
        return pa.struct([(field.name, _settle(field.type)) for field in data_type])
    return data_type


# -- schemas ---------------------------------------------------------------------------------------


def read_struct(format: str, reader: ReaderSchema) -> pa.DataType:
    """Return the struct that an Avro or Protobuf schema is read as; empty if it has no fields."""
    if format == "avro":
        parsed = parse_schema(reader.text)
        fields = _read_avro(parsed, parsed.schema, ())
    else:
        message = create_reader(base64.b64decode(reader.text), reader.message)
        fields = _read_message(compile_reader(message).descriptor, ())
    return fields if fields is not None and pa.types.is_struct(fields) else pa.struct([])


def _read_avro(parsed: ParsedSchema, schema: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    """Return the type of an Avro schema; None if it cannot be a column, or contains itself."""
    schema = parsed.look_up(schema)
    if isinstance(schema, list):
        types = [branch for branch in schema if branch != "null"]
        return _read_avro(parsed, types[0], outer) if len(types) == 1 else None
    match kind_of(schema):
        case "record":
            name = schema["name"]
            if name in outer or len(outer) >= _MAX_DEPTH:
                return None
            fields = [
                (field["name"], _read_avro(parsed, field["type"], (*outer, name)))
                for field in schema["fields"]
            ]
            return _create_struct(fields)
        case "array":
            item = _read_avro(parsed, schema["items"], outer)
            return None if item is None else pa.list_(item)
        case "map":
            item = _read_avro(parsed, schema["values"], outer)
            return None if item is None else pa.map_(pa.string(), item)
        case "null":
            return None
        case _:
            return read_as(schema)


def _read_message(message: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    """Return the struct of a Protobuf message; None if it contains itself."""
    if message.full_name in outer or len(outer) >= _MAX_DEPTH:
        return None
    inside = (*outer, message.full_name)
    return _create_struct([(field.name, _read_field(field, inside)) for field in message.fields])


def _read_field(field: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    is_message = field.type == field.TYPE_MESSAGE
    if is_message and field.is_repeated and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        item = _read_one(value, outer)
        return None if item is None else pa.map_(_read_one(key, outer), item)
    data_type = _read_one(field, outer)
    return pa.list_(data_type) if field.is_repeated and data_type is not None else data_type


def _read_one(field: Any, outer: tuple[str, ...]) -> pa.DataType | None:
    if field.type == field.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name in _PROTOBUF_TIMES:
            return _PROTOBUF_TIMES[name]
        wrapped = field.message_type.fields_by_name.get("value")
        if _PROTOBUF_WRAPPER.fullmatch(name) and wrapped is not None and name not in outer:
            return _read_one(wrapped, (*outer, name))
        return _read_message(field.message_type, outer)
    types: dict[int, pa.DataType] = {
        field.TYPE_DOUBLE: pa.float64(),
        field.TYPE_FLOAT: pa.float32(),
        field.TYPE_BOOL: pa.bool_(),
        field.TYPE_STRING: pa.string(),
        field.TYPE_ENUM: pa.string(),
        field.TYPE_BYTES: pa.binary(),
        field.TYPE_UINT64: UINT64,
        field.TYPE_FIXED64: UINT64,
        field.TYPE_INT32: pa.int32(),
        field.TYPE_SINT32: pa.int32(),
        field.TYPE_SFIXED32: pa.int32(),
        field.TYPE_GROUP: None,
    }
    return types.get(field.type, pa.int64())


def _create_struct(fields: Iterable[tuple[str, pa.DataType | None]]) -> pa.DataType:
    return pa.struct([(name, data_type) for name, data_type in fields if data_type is not None])


SchemaId = int | bytes
"""A schema's id, or the 16 bytes of its GUID."""

Answers = Mapping[SchemaId, RegisteredSchema]
"""The schemas that a registry has, by their ids."""

_MAX_PLAUSIBLE_ID: Final = 10_000_000
_LONG_BYTES: Final = 8
_GUID_VERSIONS: Final = range(1, 9)


class Payloads(NamedTuple):
    """The values or the keys of n records: n binary, and the records' headers."""

    side: Side
    contents: pa.Array
    headers: pa.Array

    @property
    def present(self) -> int:
        """The number of payloads that are not null."""
        return int(len(self.contents) - self.contents.null_count)


@dataclass(frozen=True, slots=True)
class Detection:
    """The framing and the format of the values or the keys.

    `fitting` of the `present` payloads have this form. `schema_ids` come from their frames,
    `writer` is the first schema that wrote one of them, and `message` the indexes of the Protobuf
    message in it. A payload is `unusable` if its frame names a schema that the registry lacks, or
    one of another type.
    """

    side: Side
    framing: str
    format: str
    present: int
    fitting: int
    schema_ids: tuple[SchemaId, ...] = ()
    writer: RegisteredSchema | None = None
    message: tuple[int, ...] = ()
    unusable: tuple[bool, ...] = ()
    needs_registry: bool = False
    notes: tuple[str, ...] = ()


def list_schema_ids(payloads: Payloads) -> list[SchemaId]:
    """List the distinct schema ids in what may be frames, to ask a registry for them."""
    blocks = [_split(payloads, framing) for framing in ("header", "confluent")]
    return list(dict.fromkeys(_id_of(writer) for block in blocks for writer in block.writers))


def detect_side(payloads: Payloads, answers: Answers | None) -> Detection:
    """Detect the framing and the format of n values or keys.

    `answers` has the registry's schemas for `list_schema_ids`; None if no registry was asked, or
    none answered.
    """
    contents, present = payloads.contents, payloads.present
    for framing in ("header", "confluent"):
        framed = _split(payloads, framing)
        writers = [framed.writers[code] if code >= 0 else None for code in framed.codes]
        if answers is not None:
            detection = _detect_by_registry(payloads, framing, framed, writers, answers)
        else:
            detection = _detect_by_form(payloads, framing, framed, writers)
        if detection is not None:
            return detection
    objects = _count_objects(contents)
    notes = () if answers is None else _note_unknown(payloads, answers)
    if 2 * objects > present:
        return Detection(payloads.side, "none", "json", present, objects, notes=notes)
    notes += _note_form(payloads)
    return Detection(payloads.side, "none", "binary", present, present, notes=notes)


def _detect_by_registry(
    payloads: Payloads,
    framing: str,
    framed: FramedBlock,
    writers: Sequence[WriterSchema | None],
    answers: Answers,
) -> Detection | None:
    """Detect payloads by the registry; None unless it knows the schemas of most."""
    side, present = payloads.side, payloads.present
    schemas = [None if writer is None else answers.get(_id_of(writer)) for writer in writers]
    type_counts = Counter(schema.type for schema in schemas if schema is not None)
    if 2 * type_counts.total() <= present:
        return None
    schema_type = type_counts.most_common(1)[0][0]
    usable = [schema is not None and schema.type == schema_type for schema in schemas]
    unusable = tuple(
        writer is not None and not is_usable
        for writer, is_usable in zip(writers, usable, strict=True)
    )
    row = usable.index(True)
    fitting = type_counts[schema_type]
    message: tuple[int, ...] = ()
    if schema_type == JSON:
        fitting = min(fitting, _count_objects(framed.bodies))
    if schema_type == PROTOBUF:
        indexed = _split(payloads, framing, indexed=True)
        code = int(indexed.codes[row])
        message = (indexed.writers[code].message or ()) if code >= 0 else ()
    notes = []
    if any(unusable):
        notes.append(
            f"{sum(unusable)} of {present} {side}s name a schema that the registry lacks, or that "
            f"is not {schema_type}: the source fails there"
        )
    return Detection(
        side=side,
        framing=framing,
        format=schema_type.lower(),
        present=present,
        fitting=fitting,
        schema_ids=_list_distinct_ids(writers),
        writer=schemas[row],
        message=message,
        unusable=unusable,
        notes=tuple(notes),
    )


def _detect_by_form(
    payloads: Payloads, framing: str, framed: FramedBlock, writers: Sequence[WriterSchema | None]
) -> Detection | None:
    """Detect payloads without a registry; None unless most have a plausible frame."""
    side, present = payloads.side, payloads.present
    plausible = sum(writer is not None and _is_plausible(writer) for writer in writers)
    longs = framing == "confluent" and _are_longs(payloads.contents)
    if 2 * plausible <= present or longs:
        return None
    objects = _count_objects(framed.bodies)
    is_json = 2 * objects > present
    return Detection(
        side=side,
        # The header means nothing without a registry if the payload is plain JSON.
        framing="none" if is_json and framing == "header" else framing,
        format="json" if is_json else "binary",
        present=present,
        fitting=objects if is_json else plausible,
        schema_ids=_list_distinct_ids(writers),
        needs_registry=not is_json,
    )


def _split(payloads: Payloads, framing: str, *, indexed: bool = False) -> FramedBlock:
    if framing == "confluent":
        return split_value_frames(payloads.contents, indexed=indexed)
    name = HEADERS[payloads.side]
    return split_header_frames(payloads.contents, payloads.headers, name, indexed=indexed)


def _id_of(writer: WriterSchema) -> SchemaId:
    schema_id = writer.guid if writer.schema_id is None else writer.schema_id
    assert schema_id is not None, "a frame holds an id or a GUID"
    return schema_id


def _list_distinct_ids(writers: Sequence[WriterSchema | None]) -> tuple[SchemaId, ...]:
    return tuple(dict.fromkeys(_id_of(writer) for writer in writers if writer is not None))


def _is_plausible(writer: WriterSchema) -> bool:
    if writer.guid is not None:
        return writer.guid[6] >> 4 in _GUID_VERSIONS and writer.guid[8] >> 6 == 2
    return 0 < (writer.schema_id or 0) <= _MAX_PLAUSIBLE_ID


def _are_longs(contents: pa.Array) -> bool:
    """Return whether all values have 8 bytes: small 64-bit numbers begin with 0, like frames."""
    lengths = {len(content) for content in contents.to_pylist() if content is not None}
    return lengths == {_LONG_BYTES}


def _note_form(payloads: Payloads) -> tuple[str, ...]:
    """Note the form of most payloads if they are nearly JSON objects, or contain them."""
    contents = [content for content in payloads.contents.to_pylist() if content is not None]
    forms = Counter(
        name_value_form(content) for content in contents if parse_object(content) is None
    )
    form, count = next(iter(forms.most_common(1)), (ValueForm(""), 0))
    if 2 * count <= len(contents) or not form.is_near:
        return ()
    return (
        f"{count} of {len(contents)} {payloads.side}s are not JSON objects, but {form.name}: the "
        "source reads one object a record; change the producer, or take the column apart in Spark",
    )


def _note_unknown(payloads: Payloads, answers: Answers) -> tuple[str, ...]:
    """Note that most payloads begin with a plausible id that the registry lacks."""
    framed = _split(payloads, "confluent")
    unknown = [
        writer
        for writer in framed.writers
        if _id_of(writer) not in answers and _is_plausible(writer)
    ]
    rows = sum(code >= 0 and framed.writers[code] in unknown for code in framed.codes)
    present = payloads.present
    if 2 * rows <= present or _are_longs(payloads.contents):
        return ()
    ids = ", ".join(format_schema_id(_id_of(writer)) for writer in unknown)
    return (
        f"{rows} of {present} {payloads.side}s begin as with a schema's id ({ids}), and the "
        "registry lacks it: is it the registry of the topic's producers?",
    )


def format_schema_id(schema_id: SchemaId) -> str:
    """Format an id or a GUID."""
    return schema_id.hex() if isinstance(schema_id, bytes) else str(schema_id)


def _count_objects(contents: pa.Array) -> int:
    return sum(parse_object(content) is not None for content in contents.to_pylist())


class RegistryAnswers(NamedTuple):
    """The schemas that a registry has; None, and the problem, if it did not answer."""

    answers: Answers | None
    problem: str = ""


def ask_registry(
    registry: SchemaRegistry | None, schema_ids: Sequence[SchemaId], subject: str | None
) -> RegistryAnswers:
    """Ask the registry for the schemas with these ids, until it fails.

    `subject` is the user's subject, which may belong to a context with ids of its own.
    """
    if registry is None:
        return RegistryAnswers(None)
    answers = {}
    try:
        for schema_id in schema_ids:
            try:
                schema = registry.fetch_schema(schema_id, "json", subject)
            except SchemaRegistryError as error:
                if not error.is_missing:
                    raise
                continue
            if schema.type == PROTOBUF:
                # The answer is .proto text, which is not read: ask again for descriptors.
                schema = registry.fetch_schema(schema_id, "protobuf", subject)
            answers[schema_id] = schema
    except SchemaRegistryError as error:
        return RegistryAnswers(None, str(error))
    return RegistryAnswers(answers)


def find_reader_options(
    registry: SchemaRegistry, topic: str, detection: Detection, user_subject: str | None
) -> dict[str, str] | None:
    """Return the options that name the reader's schema; None if the registry lacks a subject.

    It is the latest of the user's subject, or else of the topic's or the record type's.
    """
    side = detection.side
    for subject in [user_subject] if user_subject is not None else _list_subjects(topic, detection):
        try:
            latest = registry.fetch_latest(subject, detection.format)
        except SchemaRegistryError as error:
            if not error.is_missing:
                raise
            continue
        if latest.type.lower() == detection.format:
            is_default = subject == f"{topic}-{side}"
            options = {} if is_default else {f"{side}Subject": subject}
            message = _find_message(detection)
            if message and message != find_message_name(latest.text.encode()):
                options[f"{side}Message"] = message
            return options
    if user_subject is None and detection.format == "avro" and detection.writer is not None:
        name = "readerSchema" if side == "value" else "keyReaderSchema"
        return {name: inline_references(detection.writer)}
    return None


def _list_subjects(topic: str, detection: Detection) -> Iterator[str]:
    yield f"{topic}-{detection.side}"
    writer, name = detection.writer, None
    if writer is not None and writer.type == AVRO:
        schema = json.loads(writer.text)
        if isinstance(schema, dict) and isinstance(schema.get("name"), str):
            space, simple = schema.get("namespace"), schema["name"]
            name = f"{space}.{simple}" if space and "." not in simple else simple
    name = name or _find_message(detection)
    if name:
        yield name
        yield f"{topic}-{name}"


def _find_message(detection: Detection) -> str | None:
    """Return the Protobuf message that the frames name; None if there is none."""
    writer = detection.writer
    if writer is None or writer.type != PROTOBUF:
        return None
    return find_message_name(writer.text.encode(), detection.message)
