"""Names for what a value or a time is instead of what was expected, for warnings."""

import json
import re
from typing import Any, Final

__all__ = ["name_time_form", "name_value_form"]

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


def name_value_form(value: bytes | None) -> str:
    """Name what a value is that is not a JSON object; empty if nothing better is known."""
    if value is None:
        return "a tombstone: it is null"
    if not value.strip():
        return "empty"
    for beginning, name in _MAGIC:
        if value.startswith(beginning):
            return name
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "not text in UTF-8"
    try:
        found = json.loads(text)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return _name_broken(text, error)
    return _name_json(found)


def _name_json(found: Any) -> str:
    if isinstance(found, list):
        inside = " of objects: several events in one record" if _is_of_objects(found) else ""
        return f"a JSON array{inside}"
    if isinstance(found, str):
        try:
            inner = json.loads(found)
        except (ValueError, RecursionError):
            return "a JSON text"
        return "JSON within a JSON text" if isinstance(inner, dict | list) else "a JSON text"
    return "a JSON number or word"


def _is_of_objects(found: list[Any]) -> bool:
    return bool(found) and all(isinstance(each, dict) for each in found)


def _name_broken(text: str, error: ValueError) -> str:
    """Name a text that is not JSON."""
    at = error.pos if isinstance(error, json.JSONDecodeError) else 0
    if at == 0 or text.lstrip()[:1] not in ("{", "["):
        return "XML" if text.lstrip().startswith("<") else "no JSON"
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
        return "several JSON texts in one record"
    if at >= len(text.rstrip()) - 1 or error.args[0].startswith("Unterminated string"):
        return "JSON that is cut off"
    if "'" in text[at : at + 1]:
        return "JSON with single quotes"
    return f"no JSON from character {at + 1} on"


def name_time_form(value: Any) -> str:
    """Name the form of a value that is not a readable time; empty if nothing is known."""
    if isinstance(value, dict):
        for fields, name in (
            ({"$date"}, "MongoDB's extended JSON"),
            ({"seconds"}, "seconds and nanoseconds in fields of their own"),
        ):
            if fields <= value.keys():
                return name
        return ""
    if isinstance(value, list):
        is_jackson = 3 <= len(value) <= 7 and all(isinstance(each, int) for each in value)
        return (
            "year, month, day and so on in an array, as Jackson writes times" if is_jackson else ""
        )
    if not isinstance(value, str):
        return ""
    text = value.strip()
    return next((name for form, name in _TEXT_FORMS if re.fullmatch(form, text, re.ASCII)), "")
