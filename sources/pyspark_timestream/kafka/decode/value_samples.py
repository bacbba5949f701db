"""What a few records say about a mistake that counters show: which field, and what is in it.

A warning shows the beginning of one value, at most half of it and at most twelve characters, and
nothing of a field whose name speaks of a secret: logs are read by more people than topics.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.connector.event_time import TIME_UNITS, number_times
from pyspark_timestream.connector.instants import format_instant, parse_instant
from pyspark_timestream.cti.violations import judged_times
from pyspark_timestream.kafka.decode.columns import Projection
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.json.types import JsonFields
from pyspark_timestream.kafka.decode.payload import read_payload
from pyspark_timestream.kafka.decode.records import RecordBlock
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.options.parsers import TimeFrom

__all__ = ["describe_malformed", "describe_unit", "describe_values"]

_SHOWN: Final = 12
_NAMED: Final = 8
"""So many names of fields or headers are listed."""

_SECRET: Final = re.compile(
    "passw|pwd|secret|token|credential|auth|cookie|private|key$|card|iban|ssn|cvv|pin$", re.I
)
_PROBABLE_US: Final = (
    parse_instant("1990-01-01T00:00:00Z"),
    parse_instant("2100-01-01T00:00:00Z"),
)
_DIGITS: Final = re.compile(r"\s*([+-]?[0-9]{1,19})\s*", re.ASCII)
_SPARK_NAMES: Final = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "int",
    "int64": "long",
}


def describe_malformed(options: KafkaOptions, block: RecordBlock) -> str:
    """What is wrong with the time of the first malformed event of `block`; empty: none is."""
    payload = read_payload(options, None, block)
    _, _, malformed = judged_times(payload.events)
    if not malformed.any():
        return ""
    row = int(np.argmax(malformed))
    if not payload.start_known[row]:
        return _described("startTime", options.start_time, options, block, row)
    edge = None if payload.edges is None else payload.edges[row].as_py()
    if options.edge is not None and edge not in ("start", "end"):
        return _described("edge", options.edge, options, block, row)
    if options.end_time is not None and payload.end_known is not None:
        if not payload.end_known[row]:
            return _described("endTime", options.end_time, options, block, row)
        return f"the end, in '{options.end_time}', is not after the start"
    return ""


def describe_unit(options: KafkaOptions, block: RecordBlock) -> str:
    """The unit in which the time of the last event of `block` would be probable; empty: none."""
    source = options.start_time
    for row in reversed(range(len(block.offsets))):
        _, value = _found(source, block, row)
        unit = _fitting_unit(value)
        if unit is not None and source.kind != "timestamp":
            return _unit_text(unit, value)
    if source.kind == "timestamp" and len(block.offsets) and block.timestamps_ms is not None:
        value = block.timestamps_ms[-1].as_py()
        if _fitting_unit(value) is not None:
            return "the producer sets timestamps that are not in milliseconds"
    return ""


def describe_values(projection: Projection, block: RecordBlock) -> str:
    """Which fields most values of `block` do not have in their type; empty: none is seen."""
    values = block.values
    if values is None or not len(values):
        return ""
    objects = [_object(value.as_py()) for value in values]
    broken = [row for row, read in enumerate(objects) if read is None]
    if 2 * len(broken) >= len(objects):
        return _no_object(values[broken[0]].as_py())
    return "; ".join(_misfits(projection.fields, values, objects))


def _misfits(
    fields: pa.Schema, values: pa.Array, objects: Sequence[dict[str, Any] | None]
) -> Iterator[str]:
    """A text for each of `fields` that does not fit in most of the values that are objects."""
    whole = np.array([read is not None for read in objects])
    for field in fields:
        wrong = parse_json(JsonFields(pa.schema([field])), values).malformed & whole
        if not wrong.any() or 2 * np.count_nonzero(wrong) < len(values):
            continue
        row = int(np.argmax(wrong))
        there = _shown(field.name, (objects[row] or {}).get(field.name))
        kind = _SPARK_NAMES.get(str(field.type), str(field.type))
        yield f"field '{field.name}' is {kind} in .schema(...), and one value there is {there}"


def _described(
    option: str, source: TimeFrom, options: KafkaOptions, block: RecordBlock, row: int
) -> str:
    """What is at `source` in a record that has no readable time, or edge, there."""
    problem, value = _found(source, block, row)
    if problem:
        return problem
    text = f"one value in '{source}' is {_shown(source.name, value)}"
    unit = _fitting_unit(value) if option != "edge" else None
    if unit is not None and unit != options.time_unit:
        text += f"; {_unit_text(unit, value)}"
    return text


def _found(source: TimeFrom, block: RecordBlock, row: int) -> tuple[str, Any]:
    """Why there is nothing at `source`, or empty; and what there is."""
    if source.kind == "timestamp":
        return "the record has no timestamp", None
    if source.kind == "header":
        headers = (block.headers[row].as_py() if block.headers is not None else None) or []
        values = [each["value"] for each in headers if each["key"] == source.name]
        if not values:
            return f"there is no header '{source.name}'{_names('header', headers, 'key')}", None
        return "", _text(values[-1])
    value = block.values[row].as_py() if block.values is not None else None
    if value is None:
        return "the record has no value", None
    read = _object(value)
    if read is None:
        return _no_object(value), None
    if source.name not in read:
        fields = [{"name": name} for name in read]
        return f"there is no field '{source.name}'{_names('field', fields, 'name')}", None
    return "", read[source.name]


def _object(value: bytes | None) -> dict[str, Any] | None:
    """The JSON object that `value` is; None where it is another thing. No value is no fields."""
    try:
        read = {} if value is None else json.loads(value.decode())
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def _no_object(value: bytes) -> str:
    if value[:1] == b"\0":
        return "the values are no JSON: they begin with a zero byte, as those of a schema registry"
    return f"one value is no JSON object, but {_shown('', _text(value))}"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _names(what: str, things: Sequence[dict[str, Any]], key: str) -> str:
    names = [f"'{_printable(str(each[key])[:40])}'" for each in things[:_NAMED]]
    if not names:
        return f", nor any {what}"
    more = f" and {len(things) - _NAMED} more" if len(things) > _NAMED else ""
    return f", but {', '.join(names)}{more}"


def _shown(name: str, value: Any) -> str:
    """What a value is and begins with; of a secret only what it is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    text = value if isinstance(value, str) else json.dumps(value)
    what = "a text" if isinstance(value, str) else "a number"
    if not text:
        return "an empty text"
    if _SECRET.search(name) or len(text) == 1:
        return what
    beginning = _printable(text[: min(len(text) // 2, _SHOWN)])
    return f"{what} of {len(text)} characters that begins '{beginning}'"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() and char != "'" else "?" for char in text)


def _number(value: Any) -> int | float | None:
    """The number that a value is, or that a text of digits says."""
    digits = _DIGITS.fullmatch(value) if isinstance(value, str) else None
    if digits is not None:
        return int(digits[1])
    return None if isinstance(value, bool | str) or not isinstance(value, int | float) else value


def _fitting_unit(value: Any) -> str | None:
    """The unit in which a number is a probable time; None: it is none in any, or no number."""
    number = _number(value)
    if number is None:
        return None
    least_us, most_us = _PROBABLE_US
    for unit in TIME_UNITS:
        us = _instant(number, unit)
        if us is not None and least_us <= us < most_us:
            return unit
    return None


def _instant(value: float, unit: str) -> int | None:
    try:
        us, readable = number_times(pa.array([value]), unit)
    except (pa.ArrowInvalid, OverflowError):
        return None
    return int(us[0]) if readable[0] else None


def _unit_text(unit: str, value: Any) -> str:
    us = _instant(_number(value) or 0, unit) or 0
    return f"'timeUnit' = '{unit}' would fit: it is of {format_instant(us)[:10]} then"
