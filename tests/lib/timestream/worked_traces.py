"""Worked traces: small inputs and their results by the rules, written by hand.

A trace is a file of `traces/`: `options`, `records` of one partition (`value` is JSON or null, `at`
the record's timestamp, `headers` pairs of text), the rows that are `expected` (a CTI, or a record's
`offset` with its columns that are not null), and the `counters` that are not 0. All times are
seconds since 1970. `why` says what a line is there for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parents[2] / "timestream" / "traces"
NAMES = sorted(path.stem for path in PLACE.glob("*.json"))

COLUMNS = (
    "start_time", "end_time", "edge", "violation", "original_start_time", "original_end_time",
    "time_lower", "time_upper",
)  # fmt: skip


def trace(name: str) -> dict[str, Any]:
    """The trace in the file `name`."""
    return dict(json.loads((PLACE / f"{name}.json").read_text()))


def value_of(record: Mapping[str, Any]) -> bytes | None:
    """The record's value as it is produced."""
    return None if record["value"] is None else json.dumps(record["value"]).encode()


def headers_of(record: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """The record's headers as they are produced."""
    return [(key, text.encode()) for key, text in record.get("headers", [])]


def timestamp_ms(record: Mapping[str, Any]) -> int:
    """The record's timestamp; not 0, which a client takes for its own clock."""
    return int(record.get("at", 1) * 1000)


def as_written(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows as a trace writes them."""
    return [_as_written(row) for row in rows]


def _as_written(row: Mapping[str, Any]) -> dict[str, Any]:
    if row.get("cti") is not None:
        return {"cti": _plain(row["cti"])}
    said = {name: row[name] for name in COLUMNS if row.get(name) is not None}
    return {"offset": row["offset"]} | {name: _plain(each) for name, each in said.items()}


def _plain(each: Any) -> Any:
    return round(each.timestamp(), 6) if isinstance(each, datetime) else each
