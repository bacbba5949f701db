"""Findings as text for a terminal, and as JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

from pyspark_timestream.connector.instants import format_instant
from pyspark_timestream.kafka.decode.value_samples import suggests_secret
from pyspark_timestream.kafka.options.readers import ReaderSchema
from pyspark_timestream.peek.detect import Detection, format_key
from pyspark_timestream.peek.findings import Findings
from pyspark_timestream.peek.snippet import format_snippet, hide_option
from pyspark_timestream.peek.times import Candidate

__all__ = ["format_findings", "format_lag", "to_json"]

_MAX_CELL: Final = 40
_MIN_CELL: Final = 10
"""A column is cut to no less than this, and rather left out."""

_SHOWN_BYTES: Final = 8
_GAP: Final = "  "
_HIDDEN: Final = "(not shown)"
_LAG_UNITS: Final = (
    (86_400_000_000, "d"),
    (3_600_000_000, "h"),
    (60_000_000, "min"),
    (1_000_000, "s"),
)


def format_findings(findings: Findings, width: int) -> str:
    """Write the findings: facts, rows, candidates for the event time, and the query to paste."""
    sections = [_format_head(findings)]
    if len(findings.sample):
        rows = [findings.rows.column_names, *_format_rows(findings)]
        sections.append(_cut_table(rows, width))
        sections.append(["Candidates for the event time, the best one first:"])
        sections[-1] += _cut_table(_format_candidates(findings), width)
    if findings.notes:
        sections.append([f"Note: {note}." for note in findings.notes])
    text = "\n\n".join("\n".join(map(_escape_controls, section)) for section in sections)
    return f"{text}\n\n{format_snippet(findings.options, findings.columns)}"


def to_json(findings: Findings) -> str:
    """Write the findings as one JSON object."""
    sample = findings.sample
    found = {
        "topic": sample.topic,
        "partitions": sample.partitions,
        "offsets": sample.offsets,
        "records": len(sample),
        "timestamps": _find_timestamps(findings),
        "payloads": {each.part: _describe(findings, each) for each in findings.detections},
        "columns": list(findings.columns),
        "hidden_fields": findings.secrets,
        "rows": [
            dict(zip(findings.rows.column_names, cells, strict=True))
            for cells in _format_rows(findings)
        ],
        "malformed": dict(findings.malformed),
        "candidates": [_list_candidate(each) for each in findings.candidates],
        "options": {name: hide_option(name, text) for name, text in findings.options.items()},
        "notes": list(findings.notes),
    }
    return json.dumps(found, indent=2)


def _format_head(findings: Findings) -> list[str]:
    sample = findings.sample
    count = len(sample)
    lines = [
        f"Topic '{sample.topic}': {_count(sample.partitions, 'partition')}, "
        f"{_count(sample.offsets, 'offset')}; below the newest {_count(count, 'record')}"
    ]
    if not count:
        return [lines[0].split(";")[0], "It holds no records: nothing can be said of them."]
    stamps = _find_timestamps(findings)
    if stamps:
        lines.append(f"Their timestamps: {stamps[0]} to {stamps[1]}")
    for each in findings.detections:
        lines.append(f"{each.part.title()}s: {_format_detection(each)}")
        if each.part in findings.readers:
            lines.append(f"  read by {_format_reader(findings.readers[each.part])}")
    for reason, rows in findings.malformed.items():
        lines.append(f"Malformed {reason}, in {rows} of {count} records")
    if findings.secrets:
        lines.append(
            f"{_count(findings.secrets, 'field')} with names that suggest secrets: not shown, and "
            "not in the schema"
        )
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _find_timestamps(findings: Findings) -> tuple[str, str] | None:
    own = [each for each in findings.candidates if each.kind == "record"]
    return (format_instant(own[0].first_us), format_instant(own[0].last_us)) if own else None


def _format_detection(found: Detection) -> str:
    if not found.present:
        return "all null"
    framing = {
        "confluent": ", each behind the id of its schema",
        "header": ", with the id of its schema in a header",
        "none": "",
    }[found.framing]
    ids = ", ".join(map(format_key, found.keys))
    named = f" ({ids})" if ids and found.framing != "none" else ""
    return f"{found.format}{framing}{named}; {found.fitting} of {found.present} fit"


def _format_reader(reader: ReaderSchema) -> str:
    message = f", message {reader.message}" if reader.message else ""
    if reader.schema_id is None:
        return f"the schema of the options{message}"
    return f"schema {reader.schema_id}, version {reader.version} of '{reader.subject}'{message}"


def _describe(findings: Findings, found: Detection) -> dict[str, Any]:
    reader = findings.readers.get(found.part)
    return {
        "format": found.format,
        "framing": found.framing,
        "present": found.present,
        "fitting": found.fitting,
        "schema_ids": [format_key(key) for key in found.keys] if found.framing != "none" else [],
        "reader": None if reader is None else reader.to_json(),
    }


# -- rows ------------------------------------------------------------------------------------------


def _format_rows(findings: Findings) -> Iterator[list[str]]:
    for row in findings.rows.to_pylist():
        yield [_format_cell(value) for value in row.values()]


def _format_cell(value: Any) -> str:
    """Write a value; nothing that may be a secret, and the beginning of bytes that are not text."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case datetime():
            zone = "Z" if value.tzinfo else ""
            return value.replace(tzinfo=None).isoformat() + zone
        case date():
            return value.isoformat()
        case bytes():
            return _format_bytes(value)
        case str():
            return _HIDDEN if _hides_secret(value) else value
        case dict():
            return _format_fields(value.items())
        case list() if value and all(isinstance(each, tuple) for each in value):
            return _format_fields(value)
        case list():
            return f"[{', '.join(map(_format_cell, value))}]"
        case _:
            return str(value)


def _format_fields(items: Any) -> str:
    """Write the fields of a struct or the entries of a map, of which a name may be a secret's."""
    shown = (
        f"{name}: {_HIDDEN if suggests_secret(str(name)) else _format_cell(value)}"
        for name, value in items
    )
    return "{" + ", ".join(shown) + "}"


def _format_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable():
        return _HIDDEN if suggests_secret(text) or _hides_secret(text) else text
    more = "..." if len(value) > _SHOWN_BYTES else ""
    return f"{_count(len(value), 'byte')}: {value[:_SHOWN_BYTES].hex(' ')}{more}"


def _hides_secret(text: str) -> bool:
    """Check for JSON in a text that has a field which suggests a secret."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        pending = [json.loads(text)]
    except (ValueError, RecursionError):
        return suggests_secret(text)
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if any(suggests_secret(name) for name in value):
                return True
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False


# -- candidates ------------------------------------------------------------------------------------


def _format_candidates(findings: Findings) -> list[list[str]]:
    rows = [["startTime", "is", "timeUnit", "records", "against the record's", "from", "to"]]
    for each in findings.candidates:
        times = [format_instant(each.first_us), format_instant(each.last_us)]
        readable = f"{each.readable} of {len(findings.sample)}"
        lag = "" if each.kind == "record" else format_lag(each)
        rows.append([each.source, each.kind, each.unit, readable, lag, *times])
    return rows


def format_lag(found: Candidate) -> str:
    """Say how far a candidate lies behind its records' timestamps, or ahead of them."""
    least, most = found.least_lag_us, found.most_lag_us
    if least is None or most is None:
        return "nothing to compare with"
    if least < 0 < most:
        return f"{_span(-least)} ahead to {_span(most)} behind"
    if least == most == 0:
        return "equal"
    near, far = sorted((abs(least), abs(most)))
    word = "behind" if most > 0 else "ahead"
    return f"{_span(far)} {word}" if near == far else f"{_span(near)} to {_span(far)} {word}"


def _span(us: int) -> str:
    for unit, name in _LAG_UNITS:
        if us >= unit:
            return f"{us / unit:,.1f} {name}".replace(".0 ", " ")
    return f"{us / 1_000:.3g} ms"


def _list_candidate(found: Candidate) -> Mapping[str, Any]:
    return {
        "startTime": found.source,
        "kind": found.kind,
        "timeUnit": found.unit or None,
        "readable": found.readable,
        "from": format_instant(found.first_us),
        "to": format_instant(found.last_us),
        "least_lag_us": found.least_lag_us,
        "most_lag_us": found.most_lag_us,
    }


# -- tables ----------------------------------------------------------------------------------------


def _cut_table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lay cells out in columns; those that would pass the width are cut, or left out and named."""
    cells = [[_escape_controls(cell) for cell in row] for row in rows]
    widths: list[int] = []
    for column in zip(*cells, strict=True):
        room = width - sum(widths) - len(_GAP) * len(widths)
        size = min(_MAX_CELL, max(map(len, column)))
        if size > room and room < _MIN_CELL and widths:
            break
        widths.append(max(min(size, room), 1))
    lines = [
        _GAP.join(
            _cut_text(cell, size).ljust(size) for cell, size in zip(row, widths, strict=False)
        ).rstrip()
        for row in cells
    ]
    left = cells[0][len(widths) :]
    if left:
        lines.append(_cut_text(f"and {_count(len(left), 'more column')}: {', '.join(left)}", width))
    return lines


def _cut_text(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: max(size - 3, 0)]}..."[:size]


def _escape_controls(line: str) -> str:
    """Escape control characters: names and values come from the records."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line)
