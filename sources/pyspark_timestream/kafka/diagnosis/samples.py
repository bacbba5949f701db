"""Describes sample records, so that a warning has a field's name and an example value.

A description quotes the beginning of one value, and also the end if it cannot be parsed: at most
half of it and at most twelve characters. It quotes nothing if a field's name suggests a secret,
because logs have more readers than topics.
"""

import difflib
import json
import re
from collections.abc import Iterator, Sequence, Set
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.declarations import suggests_secret
from pyspark_timestream.core.instants import (
    format_instant,
    guess_unit,
)
from pyspark_timestream.kafka.decode.columns import strip_key_prefix
from pyspark_timestream.kafka.decode.formats import split_value_frames
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.payload import read_payload
from pyspark_timestream.kafka.decode.records import (
    FRAMING,
    METADATA,
    NAME,
    REASONS,
    SYNTAX,
    DecodedBlock,
    Projection,
    RecordBlock,
    RequestedFields,
    Tree,
    list_time_sources,
    merge,
    nest,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import (
    Path,
    TimeFrom,
    descend,
    format_path,
    parse_path,
)
from pyspark_timestream.kafka.options.reading import PayloadRules
from pyspark_timestream.rules.step import check_times

_MAGIC: Final = (
    (b"\xef\xbb\xbf", "a byte order mark before the text"),
    (b"\xff\xfe", "UTF-16 with a byte order mark"),
    (b"\xfe\xff", "UTF-16 with a byte order mark"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"\x04\x22\x4d\x18", "compressed with lz4"),
    (b"Obj\x01", "an Avro file"),
    (b"\0", "framed as by a schema registry: it begins with a zero byte"),
)

_TIME: Final = r"\d{4}-?\d\d-?\d\d[Tt ]\d\d:?\d\d\S*"
_TEXT_FORMS: Final = (
    (rf"{_TIME}\[[\w/+:-]+\]", "a time with a zone's name in brackets"),
    (rf"{_TIME} ?[A-Z][A-Za-z_]+/[A-Za-z_/]+", "a time with a zone's name"),
    (r"\d{1,2}[/.]\d{1,2}[/.]\d{2,4}.*", "a date that begins with its day or month"),
    (r".*\d ?[AaPp]\.?[Mm]\.?", "a time with AM or PM"),
    (r"\d{4}-\d\d-\d\d[T ][\d:.,]+ ?(?!Z$)[A-Z]{1,5}", "a time with a zone's abbreviation"),
    (r"\d{4}-\d\d-\d\d[T ][\d:.,]+[+-]\d", "a time with an offset of one digit"),
    (r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun).*", "a time as of mails or HTTP (RFC 1123)"),
    (r"\d{4}[/.]\d{1,2}[/.]\d{1,2}.*", "a date with slashes or points"),
    (r"\d{4}-?W\d\d.*", "a date by its week"),
    (r"\d{4}-?\d{3}", "a date by its day of the year"),
    (r"\d{4}-?\d\d-?\d\d[T ]24:?\d\d.*", "a time with hour 24"),
    (r"\d{4}-?\d\d-?\d\d[T ]\d\d:?\d\d:?60.*", "a time with a leap second"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d(Z|[+-].*)?", "a time without minutes"),
    (r"\d{1,2}:\d\d.*", "a time without a date"),
    (r"[+-]?\d+[.,eE][\d.,eE+-]*", "a number with decimals, as a text"),
    (r"[+-]?\d{14,}", "a number of that many digits, as a text"),
    (r"(?i)null|none|nan|n/a|-|undefined", "a word for no time"),
)


class ValueForm(NamedTuple):
    """The form of a value that is not a JSON object; near if it almost is one, or contains some."""

    name: str
    is_near: bool = False


def name_value_form(value: bytes | None) -> ValueForm:
    """Name the form of a value that is not a JSON object."""
    if value is None:
        return ValueForm("a tombstone: it is null")
    if not value.strip():
        return ValueForm("empty")
    for beginning, name in _MAGIC:
        if value.startswith(beginning):
            return ValueForm(name, is_near=beginning != b"\0")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return ValueForm("not text in UTF-8")
    try:
        parsed = json.loads(text)
    except RecursionError:
        return ValueForm("nested too deeply")
    except ValueError as error:
        return _name_broken(text, error)
    return _name_json(parsed)


def _name_json(value: Any) -> ValueForm:
    if isinstance(value, list):
        are_objects = bool(value) and all(isinstance(item, dict) for item in value)
        inside = " of objects: several events in one record" if are_objects else ""
        return ValueForm(f"a JSON array{inside}", is_near=True)
    if isinstance(value, str):
        try:
            if isinstance(json.loads(value), dict | list):
                return ValueForm("JSON within a JSON text", is_near=True)
        except (ValueError, RecursionError):
            pass
        return ValueForm("a JSON text")
    return ValueForm("a JSON number or word")


def _name_broken(text: str, error: ValueError) -> ValueForm:
    """Name the form of a text that is not JSON."""
    position = error.pos if isinstance(error, json.JSONDecodeError) else 0
    if position == 0 or text.lstrip()[:1] not in ("{", "["):
        is_xml = text.lstrip().startswith("<")
        return ValueForm("XML" if is_xml else "no JSON", is_xml)
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
        return ValueForm("several JSON texts in one record", is_near=True)
    if position >= len(text.rstrip()) - 1 or error.args[0].startswith("Unterminated string"):
        return ValueForm("JSON that is cut off", is_near=True)
    if "'" in text[position : position + 1]:
        return ValueForm("JSON with single quotes", is_near=True)
    return ValueForm(f"no JSON from character {position + 1} on")


def _name_time_form(value: Any) -> str:
    """Name the form of a value that is not a readable time; empty if it is unknown."""
    if isinstance(value, dict):
        for fields, name in (
            ({"$date"}, "MongoDB's extended JSON"),
            ({"seconds"}, "seconds and nanoseconds in fields of their own"),
        ):
            if fields <= value.keys():
                return name
        return ""
    if isinstance(value, list):
        is_jackson = 3 <= len(value) <= 7 and all(isinstance(item, int) for item in value)
        return (
            "year, month, day and so on in an array, as Jackson writes times" if is_jackson else ""
        )
    if not isinstance(value, str):
        return ""
    text = value.strip()
    return next((name for form, name in _TEXT_FORMS if re.fullmatch(form, text, re.ASCII)), "")


_MAX_SHOWN_CHARS: Final = 12
_MIN_SHOWN_CHARS: Final = 6
"""With fewer characters to show, only the beginning is shown."""

_MAX_NAMES: Final = 8
"""A list has at most this many names of fields or headers."""

_SHOWN_BYTES: Final = 6
"""A payload without its frame shows this many bytes."""

_MAX_DEPTH: Final = 4
"""Fields are searched for elsewhere down to this depth."""

_MAX_PATH_CHARS: Final = 80

_MIN_ALIKE: Final = 10
"""If so many objects have the same fields, one that they lack is hardly optional."""

_MIN_NEAR: Final = 3
"""Names of fewer letters are near only if they differ in case or signs."""

_METADATA_REMARK: Final = (
    "(a column of that name is the record's own, unless 'metadataPrefix' is set)"
)
_NO_LETTERS: Final = re.compile(r"[\W_]+")

_DIGITS: Final = re.compile(r"\s*([+-]?[0-9]{1,19})\s*", re.ASCII)
_WORD: Final = re.compile(r"[\w-]+")
_SPARK_NAMES: Final = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "int",
    "int64": "long",
}


def _is_plain_json(options: KafkaOptions) -> bool:
    """Return whether fields are read from values that are text."""
    return options.value_format in ("binary", "json") and options.value_rules.framing == "none"


def describe_malformed(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> str:
    """Describe the last malformed event of `block` that has a value; empty if there is none."""
    if not _is_plain_json(options):
        return _describe_payloads(options, projection, block)
    payload = read_payload(options, None, block)
    _, _, malformed = check_times(payload.events)
    if payload.events.valueless is not None:
        malformed = malformed & ~payload.events.valueless
    if not malformed.any():
        return ""
    row = int(np.flatnonzero(malformed)[-1])
    if not payload.start_known[row]:
        return _describe_time("startTime", options.start_time, options, block, row)
    edge = None if payload.edges is None else payload.edges[row].as_py()
    if options.edge is not None and edge not in ("start", "end"):
        return _describe_time("edge", options.edge, options, block, row)
    if options.end_time is not None and payload.end_known is not None:
        if not payload.end_known[row]:
            return _describe_time("endTime", options.end_time, options, block, row)
        return f"the end, in '{options.end_time}', is not after the start"
    return ""


def describe_unit(options: KafkaOptions, _: Projection | None, block: RecordBlock) -> str:
    """Suggest a unit for the last time that another unit would make plausible; empty if none is."""
    if not _is_plain_json(options):
        return ""
    source = options.start_time
    if source.kind == "timestamp":
        timestamp = block.timestamps_ms[-1].as_py() if block.timestamps_ms else None
        is_probable = timestamp is not None and guess_unit(timestamp) is not None
        return "the producer sets timestamps that are not in milliseconds" if is_probable else ""
    values = (_find_value(source, block, row)[1] for row in reversed(range(len(block.offsets))))
    return next(filter(None, (_find_other_unit(value, options) for value in values)), "")


def has_field_timestamp(block: RecordBlock) -> bool:
    """Return whether a value of `block` has a field with the name of the record's timestamp."""
    values = [] if block.values is None else block.values.to_pylist()
    names = (name for value in values for name in parse_object(value) or ())
    return any(name.lower() == "timestamp" for name in names)


def find_absent_fields(
    options: KafkaOptions,
    projection: Projection,
    blocks: Sequence[RecordBlock],
    columns: Set[str] | None = None,
) -> dict[str, str]:
    """Describe the fields of `columns` that no JSON value, or key, has; None means all columns.

    An optional field may be absent as well. So a field counts only if another one with a similar
    name is there, which the schema does not name, or if all objects have the same fields.
    """
    absent: dict[str, str] = {}
    for rules, fields, prefix in (
        (options.value_rules, projection.fields, ""),
        (options.key_rules, strip_key_prefix(options, projection.key_fields), options.key_prefix),
    ):
        if rules.format != "json" or not len(fields):
            continue
        schema_fields: Tree = {}
        for field in fields:
            merge(schema_fields, nest(parse_path(field.name), _nest_fields(field.type)))
        objects = _parse_objects(rules, blocks)
        for path, parents in _list_absent_fields(schema_fields, objects):
            names = [prefix + format_path(path[: end + 1]) for end in range(len(path))]
            if columns is None or not columns.isdisjoint(names):
                text = _describe_absent_field(options, schema_fields, path, parents, objects)
                absent |= {names[-1]: text} if text else {}
    return absent


def _parse_objects(rules: PayloadRules, blocks: Sequence[RecordBlock]) -> list[dict[str, Any]]:
    """Return the JSON objects among the values, or keys, of `blocks`."""
    objects = []
    for block in blocks:
        payloads = block.values if rules.side == "value" else block.keys
        if payloads is not None:
            if rules.framing == "confluent":
                payloads = split_value_frames(payloads).bodies
            objects += [parse_object(payload) for payload in payloads.to_pylist()]
    return [parsed for parsed in objects if parsed is not None]


def _nest_fields(data_type: pa.DataType) -> Tree:
    """Return the names of the fields inside a column, also of those of objects in a list."""
    if pa.types.is_list(data_type):
        return _nest_fields(data_type.value_type)
    fields = data_type if pa.types.is_struct(data_type) else ()
    return {field.name: _nest_fields(field.type) for field in fields}


def _list_absent_fields(
    schema_fields: Tree, objects: Sequence[dict[str, Any]], parent: Path = ()
) -> Iterator[tuple[Path, Sequence[dict[str, Any]]]]:
    """Yield the path of each field that none of `objects` has, and the objects that lack it."""
    for name, inner in schema_fields.items() if objects else ():
        values = [parsed[name] for parsed in objects if name in parsed]
        items = [item for value in values for item in (value if type(value) is list else [value])]
        if not values:
            yield (*parent, name), objects
        else:
            below = [item for item in items if isinstance(item, dict)]
            yield from _list_absent_fields(inner, below, (*parent, name))


def _describe_absent_field(
    options: KafkaOptions,
    schema_fields: Tree,
    path: Path,
    parents: Sequence[dict[str, Any]],
    objects: Sequence[dict[str, Any]],
) -> str:
    """Say which field is there in place of `path`; empty if it may just be an optional one."""
    absent = f"there is no field '{format_path(path)}'"
    names = dict.fromkeys(name for parsed in parents for name in parsed)
    unread = [name for name in names if not _is_read(schema_fields, (*path[:-1], name))]
    near = _find_near_name(path[-1], unread)
    if near is not None:
        meant = _mask_unprintable(format_path((*path[:-1], near))[:_MAX_PATH_CHARS])
        remark = f" {_METADATA_REMARK}" if meant in METADATA and not options.metadata_prefix else ""
        return f"{absent}: did you mean '{meant}'?{remark}"
    elsewhere = _find_elsewhere(objects[-1], path)
    if elsewhere is not None and not _is_read(schema_fields, parse_path(elsewhere)):
        return f"{absent}, but '{elsewhere}' is there"
    times = [source.path for source in list_time_sources(options).values() if source.name]
    unread = [name for name in unread if (*path[:-1], name) not in times]
    are_alike = len(parents) >= _MIN_ALIKE and len({frozenset(parsed) for parsed in parents}) == 1
    fields = [{"name": format_path((*path[:-1], name))} for name in unread]
    return f"{absent}{_list_names('field', fields, 'name')}" if are_alike and fields else ""


def _is_read(schema_fields: Tree, path: Path) -> bool:
    """Return whether the schema names the field at `path`."""
    return descend(schema_fields, path).depth == len(path)


def _find_near_name(name: str, names: Sequence[str]) -> str | None:
    """Find the name that may be meant by `name`: one that differs by letters, case or signs."""
    sought = _NO_LETTERS.sub("", name).lower()
    folded = {_NO_LETTERS.sub("", other).lower(): other for other in reversed(names)}
    if sought in folded or len(sought) < _MIN_NEAR:
        return folded.get(sought)
    long_enough = [other for other in folded if len(other) >= _MIN_NEAR]
    near = difflib.get_close_matches(sought, long_enough, n=1, cutoff=0.75) or [
        other for other in long_enough if other.startswith(sought) or sought.startswith(other)
    ]
    return folded[near[0]] if near else None


def describe_values(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> str:
    """Describe the fields with a type that a value of `block` does not match; empty if none."""
    if projection is None or not _is_plain_json(options) or len(projection.key_fields):
        return _describe_payloads(options, projection, block)
    values = block.values
    if values is None or not len(values):
        return ""
    # A null value has no fields.
    objects = [{} if v is None else parse_object(v) for v in values.to_pylist()]
    misfits = "; ".join(_describe_misfits(projection.fields, values, objects))
    broken = [row for row, parsed in enumerate(objects) if parsed is None]
    if broken and (not misfits or 2 * len(broken) >= len(objects)):
        return _describe_non_object(values[broken[-1]].as_py())
    return misfits


def _describe_misfits(
    fields: pa.Schema, values: pa.Array, objects: Sequence[dict[str, Any] | None]
) -> Iterator[str]:
    """Describe each of `fields` that does not fit one of the values that are objects."""
    are_objects = np.array([parsed is not None for parsed in objects])
    for field in fields:
        wrong = parse_json(RequestedFields(pa.schema([field])), values).malformed & are_objects
        if not wrong.any():
            continue
        row = int(np.flatnonzero(wrong)[-1])
        kind = _SPARK_NAMES.get(str(field.type), str(field.type))
        path = parse_path(field.name)
        lookup = descend(objects[row] or {}, path)
        if lookup.blocked:
            parent = _describe_parent(objects[row], path[: lookup.depth])
            yield f"field '{field.name}' of .schema(...) is inside another, and {parent}"
            continue
        summary = _summarize_value(field.name, lookup.value)
        yield f"field '{field.name}' is {kind} in .schema(...), and one value there is {summary}"


def _describe_time(
    option: str, source: TimeFrom, options: KafkaOptions, block: RecordBlock, row: int
) -> str:
    """Describe what `source` holds in a record that has no readable time, or edge, there."""
    problem, value = _find_value(source, block, row)
    if problem:
        return problem
    form = "" if option == "edge" else _name_time_form(value)
    text = f"one value in '{source}' is {_summarize_value(source.name, value, has_end=True)}"
    text += f": {form}" if form else ""
    unit = "" if option == "edge" else _find_other_unit(value, options)
    return f"{text}; {unit}" if unit else text


def _find_value(source: TimeFrom, block: RecordBlock, row: int) -> tuple[str, Any]:
    """Return why `source` has no value, which is empty if it has one, and the value."""
    if source.kind == "timestamp":
        return "the record has no timestamp", None
    if source.kind == "header":
        headers = (block.headers[row].as_py() if block.headers is not None else None) or []
        values = [header["value"] for header in headers if header["key"] == source.name]
        if not values:
            return (
                f"there is no header '{source.name}'{_list_names('header', headers, 'key')}",
                None,
            )
        return "", None if values[-1] is None else values[-1].decode(errors="replace")
    value = block.values[row].as_py() if block.values is not None else None
    if value is None:
        return "the record has no value", None
    parsed = parse_object(value)
    if parsed is None:
        return _describe_non_object(value), None
    path, lookup = source.path, descend(parsed, source.path)
    if lookup.depth == len(path):
        return "", lookup.value
    parent = descend(parsed, path[: lookup.depth]).value
    if isinstance(parent, dict):
        return _describe_absence(parsed, path, lookup.depth) + _compare_records(source, block), None
    return _describe_parent(parsed, path[: lookup.depth]), None


def _compare_records(source: TimeFrom, block: RecordBlock) -> str:
    """Say whether other records have the field that this one lacks."""
    values = [] if block.values is None else block.values.to_pylist()
    objects = [parse_object(value) for value in values]
    has = sum(
        descend(parsed, source.path).depth == len(source.path) for parsed in objects if parsed
    )
    return f"; {has} of {len(values)} records have it: events of another type" if has else ""


def _describe_parent(parsed: dict[str, Any] | None, path: Path) -> str:
    """Describe the value at `path`, which should be an object."""
    name = format_path(path)
    value = _summarize_value(name, descend(parsed, path).value)
    return f"one value in '{name}' is {value}, not an object"


def _describe_absence(parsed: dict[str, Any], path: Path, depth: int) -> str:
    """Describe that the object at the first `depth` names of `path` lacks the next name."""
    absent = f"there is no field '{format_path(path)}'"
    elsewhere = _find_elsewhere(parsed, path)
    if elsewhere is not None:
        option = TimeFrom("field", elsewhere)
        return f"{absent}, but '{elsewhere}' is there: name it '{option}'"
    siblings = descend(parsed, path[:depth]).value
    fields = [{"name": format_path((*path[:depth], name))} for name in siblings]
    return f"{absent}{_list_names('field', fields, 'name')}"


def _find_elsewhere(parsed: dict[str, Any], path: Path) -> str | None:
    """Find the path of a field named like the last name of `path`, or like all of it."""
    names = {path[-1], ".".join(path)}
    level: list[tuple[Path, dict[str, Any]]] = [((), parsed)]
    for _ in range(_MAX_DEPTH):
        for parent, inner in level:
            for name in inner:
                text = format_path((*parent, name))
                if name in names and len(text) <= _MAX_PATH_CHARS and _is_printable(text):
                    return text
        level = [
            ((*parent, name), value)
            for parent, inner in level
            for name, value in inner.items()
            if isinstance(value, dict)
        ]
    return None


def parse_object(value: bytes | None) -> dict[str, Any] | None:
    """Parse a value as a JSON object; None if it is not one."""
    try:
        parsed = None if value is None else json.loads(value.decode())
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _describe_non_object(value: bytes) -> str:
    if value[:1] == b"\0":
        return "the values are not JSON: they begin with a zero byte, as those of a schema registry"
    text = value.decode(errors="replace")
    # Both ends of the text may show any field, so one name that suggests a secret hides them.
    secret = next(filter(suggests_secret, _WORD.findall(text)), "")
    summary = _summarize_value(secret, text, has_end=True)
    return f"one value is not a JSON object, but {summary}: {name_value_form(value).name}"


def _list_names(noun: str, entries: Sequence[dict[str, Any]], key: str) -> str:
    names = [f"'{_mask_unprintable(str(entry[key])[:40])}'" for entry in entries[:_MAX_NAMES]]
    if not names:
        return f", nor any {noun}"
    more = f" and {len(entries) - _MAX_NAMES} more" if len(entries) > _MAX_NAMES else ""
    return f", but {', '.join(names)}{more}"


def _summarize_value(name: str, value: Any, *, has_end: bool = False) -> str:
    """Describe a value by its type and beginning, a possible secret only by its type.

    With `has_end` show the end too, if both together are at most half of the value.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    text = value if isinstance(value, str) else json.dumps(value)
    kind = "a text" if isinstance(value, str) else "a number"
    if not text:
        return "an empty text"
    if suggests_secret(name) or len(text) == 1:
        return kind
    length = min(len(text) // 2, _MAX_SHOWN_CHARS)
    at_end = length // 2 if has_end and length >= _MIN_SHOWN_CHARS else 0
    beginning = _mask_unprintable(text[: length - at_end])
    summary = f"{kind} of {len(text)} characters that begins '{beginning}'"
    return f"{summary} and ends '{_mask_unprintable(text[-at_end:])}'" if at_end else summary


def _mask_unprintable(text: str) -> str:
    return "".join(char if _is_printable(char) else "?" for char in text)


def _is_printable(text: str) -> bool:
    return text.isprintable() and "'" not in text


def _to_number(value: Any) -> int | float | None:
    """Return the number that a value is, or that its digits spell, else None."""
    digits = _DIGITS.fullmatch(value) if isinstance(value, str) else None
    if digits is not None:
        return int(digits[1])
    return None if isinstance(value, bool | str) or not isinstance(value, int | float) else value


def _find_other_unit(value: Any, options: KafkaOptions) -> str:
    """Suggest the unit that makes `value` a probable time; empty if the options have it."""
    number = _to_number(value)
    unit, us = (None if number is None else guess_unit(number)) or (options.time_unit, 0)
    if unit == options.time_unit:
        return ""
    return f"'timeUnit' = '{unit}' would fit: it is of {format_instant(us)[:10]} then"


def _describe_payloads(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> str:
    """Describe why most malformed values, or else keys, of `block` are malformed; empty if none."""
    payload = read_payload(options, projection, block)
    for rules, payloads, decoded in (
        (options.value_rules, block.values, payload.values),
        (options.key_rules, block.keys, payload.keys),
    ):
        if payloads is not None and decoded is not None and decoded.reasons.any():
            return _describe_reason(rules, payloads, decoded)
    return ""


def _describe_reason(rules: PayloadRules, payloads: pa.Array, decoded: DecodedBlock) -> str:
    counts = np.bincount(decoded.reasons, minlength=len(REASONS))
    reason = int(np.argmax(counts[1:])) + 1
    side = rules.side
    subject = f"{counts[reason]} of {len(payloads)} {rules.side}s"
    if reason == FRAMING:
        framing = rules.option_name("framing")
        example = payloads[int(np.argmax(decoded.reasons == FRAMING))].as_py()
        where = "one has no such header"
        if rules.framing != "header":
            beginning = example[:_SHOWN_BYTES].hex(" ") or "nothing"
            where = f"one begins with the bytes {beginning}"
        return f"{subject} lack the schema id of '{framing}' = '{rules.framing}' ({where})"
    if reason == NAME:
        return (
            f"{subject} are of other records or messages than '{rules.option_name('message')}' "
            "says, or than is read"
        )
    if reason == SYNTAX:
        return f"{subject} are not {rules.format} of the schema that wrote them"
    return (
        f"{subject} have a field that does not fit its column in .schema(...), or the {side}'s type"
    )
