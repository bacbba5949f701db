"""Detects the framing, the format and the schemas of some records (semantics 13.3 and 13.6).

The functions that detect are pure: a registry's answers for the ids in the frames are an argument.
With answers, a frame counts if the registry knows its id; without, if its id is plausible. The form
of most payloads decides, and a detection counts how many have it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_timestream.errors import SchemaRegistryError
from pyspark_timestream.kafka.decode.formats import (
    HEADERS,
    FramedBlock,
    Writer,
    split_header_frames,
    split_value_frames,
)
from pyspark_timestream.kafka.decode.protobuf.descriptors import find_message_name
from pyspark_timestream.kafka.decode.records import METADATA, RecordBlock
from pyspark_timestream.kafka.diagnosis.samples import ValueForm, name_value_form, parse_object
from pyspark_timestream.kafka.options.reading import (
    AVRO,
    JSON,
    PROTOBUF,
    RegisteredSchema,
    Side,
    inline_references,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.kafka.registry import SchemaRegistry


class NoSample(Exception):
    """There is nothing to look at; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest records of a topic, by partition and in offset order, with all columns.

    Not each of the offsets that the topic holds has a record.
    """

    topic: str
    partitions: int
    offsets: int
    blocks: tuple[tuple[Partition, RecordBlock], ...]

    def __len__(self) -> int:
        return sum(len(block.offsets) for _, block in self.blocks)

    def payloads(self, side: Side) -> pa.Array:
        """Return all values, or all keys."""
        return self._concat(f"{side}s", pa.binary())

    def headers(self) -> pa.Array:
        """Return the headers of all records."""
        return self._concat("headers", METADATA["headers"])

    def timestamps_ms(self) -> pa.Array:
        """Return the timestamps of all records."""
        return self._concat("timestamps_ms", pa.int64())

    def _concat(self, name: str, kind: pa.DataType) -> pa.Array:
        pieces = [getattr(block, name) for _, block in self.blocks]
        return pa.concat_arrays(pieces) if pieces else pa.array([], kind)


Key = int | bytes
"""A schema's id, or the 16 bytes of its GUID."""

Answers = Mapping[Key, RegisteredSchema]
"""The schemas that a registry has, by key."""

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

    Of the `present` payloads, `fitting` have this form. `keys` are the ids or GUIDs in their
    frames, `writer` the first schema that wrote one of them, `message` the indexes of the Protobuf
    message in it. A payload is `unusable` if its frame names a schema that the registry lacks, or
    one of another type.
    """

    side: Side
    framing: str
    format: str
    present: int
    fitting: int
    keys: tuple[Key, ...] = ()
    writer: RegisteredSchema | None = None
    message: tuple[int, ...] = ()
    unusable: tuple[bool, ...] = ()
    needs_registry: bool = False
    notes: tuple[str, ...] = ()


def list_keys(payloads: Payloads) -> list[Key]:
    """List the distinct ids that payloads may be framed with, to ask a registry for them."""
    blocks = [_split(payloads, framing) for framing in ("header", "confluent")]
    return list(dict.fromkeys(_key(writer) for block in blocks for writer in block.writers))


def detect_side(payloads: Payloads, answers: Answers | None) -> Detection:
    """Detect the framing and the format of n values or keys.

    `answers` has the registry's schemas for `list_keys`; None if none was asked, or did not answer.
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
    writers: Sequence[Writer | None],
    answers: Answers,
) -> Detection | None:
    """Detect payloads by the registry; None unless it knows the schemas of most."""
    side, present = payloads.side, payloads.present
    schemas = [None if writer is None else answers.get(_key(writer)) for writer in writers]
    kinds = Counter(schema.type for schema in schemas if schema is not None)
    if 2 * kinds.total() <= present:
        return None
    kind = kinds.most_common(1)[0][0]
    usable = [schema is not None and schema.type == kind for schema in schemas]
    unusable = tuple(
        writer is not None and not good for writer, good in zip(writers, usable, strict=True)
    )
    first = usable.index(True)
    fitting = kinds[kind]
    message: tuple[int, ...] = ()
    if kind == JSON:
        fitting = min(fitting, _count_objects(framed.bodies))
    if kind == PROTOBUF:
        indexed = _split(payloads, framing, indexed=True)
        code = int(indexed.codes[first])
        message = (indexed.writers[code].message or ()) if code >= 0 else ()
    notes = []
    if any(unusable):
        notes.append(
            f"{sum(unusable)} of {present} {side}s name a schema that the registry lacks, or that "
            f"is not {kind}: the source fails there"
        )
    return Detection(
        side, framing, kind.lower(), present, fitting, _keys(writers), schemas[first], message,
        unusable, notes=tuple(notes),
    )  # fmt: skip


def _detect_by_form(
    payloads: Payloads, framing: str, framed: FramedBlock, writers: Sequence[Writer | None]
) -> Detection | None:
    """Detect payloads without a registry; None unless most have a plausible frame."""
    side, present = payloads.side, payloads.present
    plausible = sum(writer is not None and _is_plausible(writer) for writer in writers)
    longs = framing == "confluent" and _are_longs(payloads.contents)
    if 2 * plausible <= present or longs:
        return None
    objects = _count_objects(framed.bodies)
    if 2 * objects > present:
        # The header means nothing without a registry, and the payload is plain JSON.
        kept = "none" if framing == "header" else framing
        return Detection(side, kept, "json", present, objects, _keys(writers))
    keys = _keys(writers)
    return Detection(side, framing, "binary", present, plausible, keys, needs_registry=True)


def _split(payloads: Payloads, framing: str, *, indexed: bool = False) -> FramedBlock:
    if framing == "confluent":
        return split_value_frames(payloads.contents, indexed=indexed)
    name = HEADERS[payloads.side]
    return split_header_frames(payloads.contents, payloads.headers, name, indexed=indexed)


def _key(writer: Writer) -> Key:
    key = writer.guid if writer.schema_id is None else writer.schema_id
    assert key is not None, "a frame holds an id or a GUID"
    return key


def _keys(writers: Sequence[Writer | None]) -> tuple[Key, ...]:
    return tuple(dict.fromkeys(_key(writer) for writer in writers if writer is not None))


def _is_plausible(writer: Writer) -> bool:
    if writer.guid is not None:
        return writer.guid[6] >> 4 in _GUID_VERSIONS and writer.guid[8] >> 6 == 2
    return 0 < (writer.schema_id or 0) <= _MAX_PLAUSIBLE_ID


def _are_longs(contents: pa.Array) -> bool:
    """True if all values have 8 bytes: small 64-bit numbers begin with a zero byte, like frames."""
    lengths = {len(each) for each in contents.to_pylist() if each is not None}
    return lengths == {_LONG_BYTES}


def _note_form(payloads: Payloads) -> tuple[str, ...]:
    """Note the form of most payloads if they are nearly JSON objects, or contain them."""
    contents = [each for each in payloads.contents.to_pylist() if each is not None]
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
    unknown = [w for w in framed.writers if _key(w) not in answers and _is_plausible(w)]
    rows = sum(code >= 0 and framed.writers[code] in unknown for code in framed.codes)
    present = payloads.present
    if 2 * rows <= present or _are_longs(payloads.contents):
        return ()
    shown = ", ".join(format_key(_key(writer)) for writer in unknown)
    return (
        f"{rows} of {present} {payloads.side}s begin as with a schema's id ({shown}), and the "
        "registry lacks it: is it the registry of the topic's producers?",
    )


def format_key(key: Key) -> str:
    """Format an id or a GUID."""
    return key.hex() if isinstance(key, bytes) else str(key)


def _count_objects(contents: pa.Array) -> int:
    return sum(parse_object(each) is not None for each in contents.to_pylist())


_MAX_KEYS: Final = 40
_FIRST_MESSAGE: Final = (0,)


class Asked(NamedTuple):
    """The schemas that a registry has; None, and the problem, if it did not answer."""

    answers: Answers | None
    problem: str = ""


def ask_registry(
    registry: SchemaRegistry | None, keys: Sequence[Key], subject: str | None = None
) -> Asked:
    """Ask the registry for the schemas with these ids, until it fails.

    `subject` is the user's subject, which may belong to a context with ids of its own.
    """
    if registry is None:
        return Asked(None)
    answers = {}
    try:
        for key in keys[:_MAX_KEYS]:
            try:
                schema = registry.fetch_schema(key, "json", subject)
            except SchemaRegistryError as error:
                if not error.is_missing:
                    raise
                continue
            if schema.type == PROTOBUF:
                # The answer is .proto text, which is not read: ask again for descriptors.
                schema = registry.fetch_schema(key, "protobuf", subject)
            answers[key] = schema
    except SchemaRegistryError as error:
        return Asked(None, str(error))
    return Asked(answers)


def find_reader_options(
    registry: SchemaRegistry, topic: str, detection: Detection, given: str | None = None
) -> dict[str, str] | None:
    """Return the options that name the reader's schema; None if the registry lacks a subject.

    It is the latest of the user's subject, or else of the topic's or the record type's.
    """
    side = detection.side
    for subject in [given] if given is not None else _list_subjects(topic, detection):
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
            if message and message != find_message_name(latest.text.encode(), _FIRST_MESSAGE):
                options[f"{side}Message"] = message
            return options
    if given is None and detection.format == "avro" and detection.writer is not None:
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
