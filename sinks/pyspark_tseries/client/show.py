"""The command `show`: charts of series in a terminal, or a table of the newest values.

It uses the client, so it gives the answers and errors of `TimeSeries`.
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TextIO

import pyarrow as pa

from pyspark_timestream.core.instants import parse_duration, parse_instant, to_datetime
from pyspark_timestream.errors import escape_controls, show_value
from pyspark_timestream.report import align_within
from pyspark_tseries.chart.figure import is_line
from pyspark_tseries.chart.terminal import Style, draw_text
from pyspark_tseries.client.questions import BucketResult, Questions
from pyspark_tseries.client.results import (
    MAX_SERIES,
    ZONE_ARGUMENT,
    Chart,
    QueryResult,
    find_zone,
    format_briefly,
)
from pyspark_tseries.client.time_series import TimeSeries
from pyspark_tseries.errors import InvalidQuery
from pyspark_tseries.model.columns import RESERVED_NAMES, label_column
from pyspark_tseries.model.downsampling import FUNCTIONS
from pyspark_tseries.options import author_or_user
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.store import Store

_PIPED_WIDTH: Final = 100
_WIDTHS: Final = 30, 1000
_HEIGHTS: Final = 3, 200
_PROBE: Final = "⠿◆│┤└─┬█▁▒"
"""A terminal that cannot show these letters gets ASCII."""

SHOW_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "series": {"nargs": "*", "help": "names; without any, a table of the newest values"},
    "--prefix": {"help": "series whose names begin so"},
    "--pattern": {"help": "series whose names look so: * is any text, ? one letter"},
    "--column": {
        "action": "append",
        "help": "a column to draw; may be repeated; default: the first four with numbers or "
        "Booleans, else with texts; with --every those with numbers, else with Booleans",
    },
    "--last": {
        "metavar": "7D|100",
        "help": "only the last time before the newest event, or number",
    },
    "--every": {"metavar": "1h", "help": "buckets, such as '1 hour', '1 day', '1 month'"},
    "--aggregate": {
        "metavar": "FUNCTION",
        "help": f"what of each bucket: {', '.join(FUNCTIONS)}, or a quantile from 0 to 1; "
        "default: mean; last of Booleans and texts",
    },
    "--as-of": {
        "metavar": "TIME|COMMIT",
        "help": "the store as it was at an ISO-8601 time, or right after a commit",
    },
    **ZONE_ARGUMENT,
    "--max-series": {
        "type": int,
        "default": None,
        "help": f"how many series are shown; default: {MAX_SERIES} in a chart, 40 in the table",
    },
    "--save": {"metavar": "FILE", "help": "write the chart to FILE.svg or FILE.png instead"},
    "--width": {"type": int, "help": "in columns; default: the terminal's, 100 in a pipe"},
    "--height": {"type": int, "default": 10, "help": "rows of a panel; default: 10"},
    "--color": {
        "choices": ["auto", "always", "never"],
        "default": "auto",
        "help": "auto: in a terminal, unless NO_COLOR is set",
    },
    "--ascii": {"action": "store_true", "help": "draw with ASCII alone"},
}
"""The arguments of the command."""

_MAX_ROWS: Final = 40


def show(location: Location, arguments: argparse.Namespace) -> int:
    """Print the chart or the table.

    Raises:
        InvalidQuery, PermissionDenied: as `TimeSeries` does; or the store lacks a named series.
            If it has others of those named, these are shown before.
        ValueError: an argument cannot be read.
    """
    style = _choose_style(arguments, sys.stdout)
    now = TimeSeries(Store.open(location), author_or_user(arguments.principal))
    store: Questions = now
    if arguments.as_of is not None:
        store = now.as_of(_parse_moment(arguments.as_of))
    zone = find_zone(arguments.timezone)
    if not arguments.series and arguments.prefix is None and arguments.pattern is None:
        _refuse_without_series(arguments)
        print(_list_newest(store, arguments, zone, style))
        return 0
    result = _ask_store(store, arguments, zone)
    with_events = set(result.table["series"].unique().to_pylist())
    silent = [name for name in dict.fromkeys(arguments.series) if name not in with_events]
    # A series that has had events is known, although the query or the range may hide them.
    unknown = [name for name in silent if name not in now.series(prefix=name)["series"].to_pylist()]
    if unknown and len(unknown) == len(set(arguments.series)):
        raise _unknown_error(arguments.path, unknown)
    if arguments.save is not None:
        _save_chart(
            result.chart(
                arguments.column, max_series=_max_series(arguments), timezone=zone or "UTC"
            ),
            arguments.save,
        )
        print(f"wrote {arguments.save}")
    else:
        _draw_result(result, arguments, zone, style)
    if known := [name for name in silent if name not in unknown]:
        print(style.text(f"no events of {', '.join(map(escape_controls, known))}"))
    if unknown:
        raise _unknown_error(arguments.path, unknown)
    return 0


def _draw_result(
    result: QueryResult | BucketResult,
    arguments: argparse.Namespace,
    zone: str | None,
    style: Style,
) -> None:
    pixels = min(max(style.pixels, 240), 4000)
    chart = result.chart(
        arguments.column, max_series=_max_series(arguments), timezone=zone or "UTC", width=pixels
    )
    print(draw_text(chart.figure, style))


def _max_series(arguments: argparse.Namespace) -> int:
    return MAX_SERIES if arguments.max_series is None else int(arguments.max_series)


def _unknown_error(path: str, unknown: Sequence[str]) -> InvalidQuery:
    names = ", ".join(map(show_value, unknown))
    return InvalidQuery(
        f"the store '{path}' has no series {names}",
        "names of its series; letters count as they are, capital or small",
        f"correct the name; python -m pyspark_tseries show {shlex.quote(path)} lists the series",
    )


def _save_chart(chart: Chart, path: str) -> None:
    try:
        chart.save(path)
    except OSError as error:
        # The store has not failed.
        raise InvalidQuery(
            f"the chart cannot be written to '{path}': {error.strerror or error}",
            "a file in a directory that is there, and may be written",
            "correct the path, or make the directory",
        ) from error


def _choose_style(arguments: argparse.Namespace, out: TextIO) -> Style:
    """Return how to draw for `out`, a terminal or a pipe."""
    in_terminal = out.isatty()
    width = arguments.width
    if width is None:
        width = shutil.get_terminal_size((_PIPED_WIDTH, 24)).columns if in_terminal else 0
        width = min(max(width or _PIPED_WIDTH, _WIDTHS[0]), _WIDTHS[1])
    for name, value, (low, high) in (
        ("--width", width, _WIDTHS),
        ("--height", arguments.height, _HEIGHTS),
    ):
        if not low <= value <= high:
            raise InvalidQuery(f"{name} {value} has no room", f"{low} to {high}", "correct it")
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    has_colours = arguments.color == "always" or (
        arguments.color == "auto" and in_terminal and not plain
    )
    return Style(width, arguments.height, has_colours, arguments.ascii or not _can_draw(out))


def _can_draw(out: TextIO) -> bool:
    try:
        _PROBE.encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _refuse_without_series(arguments: argparse.Namespace) -> None:
    options = [
        f"--{name}" for name in ("last", "every", "aggregate", "save") if getattr(arguments, name)
    ]
    if options:
        raise InvalidQuery(
            f"{options[0]} is about a chart, and no series is named",
            "names of series, --prefix or --pattern",
            f"name them, or --pattern '*' for all; leave {options[0]} out for the newest values",
        )


# -- charts ----------------------------------------------------------------------------------------


def _ask_store(
    store: Questions, arguments: argparse.Namespace, zone: str | None
) -> QueryResult | BucketResult:
    query = store.range_query()
    if arguments.last is not None:
        query = query.from_last(_parse_last(arguments.last))
    series: dict[str, Any] = {"prefix": arguments.prefix, "pattern": arguments.pattern}
    names = arguments.series or None
    if arguments.every is None:
        if arguments.aggregate is not None:
            raise InvalidQuery(
                "--aggregate is about buckets, and --every is missing",
                "--every with the width of the buckets",
                "add --every, or leave --aggregate out",
            )
        return query.select_from(names, **series)
    aggregates = _choose_aggregates(store, arguments)
    return (
        query.every(arguments.every, timezone=zone)
        .aggregate(**aggregates)
        .select_from(names, **series)
    )


def _parse_last(text: str) -> int | timedelta:
    if text.strip().isdecimal():
        return int(text)
    try:
        return timedelta(microseconds=parse_duration(text))
    except (ValueError, OverflowError):
        raise InvalidQuery(
            f"--last {text!r} is neither a duration nor a number of events",
            "such as 7D, '12 hours' or 100",
            "correct it",
        ) from None


def _parse_moment(text: str) -> datetime | int:
    if text.strip().isdecimal():
        return int(text)
    try:
        return to_datetime(parse_instant(text))
    except ValueError:
        raise InvalidQuery(
            f"--as-of {text!r} is neither a time nor the number of a commit",
            "an ISO-8601 time with its zone, such as 2026-01-31T12:00:00Z, or a number",
            "correct it",
        ) from None


def _choose_aggregates(store: Questions, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the aggregates of buckets: of numbers the mean, and in a file minimum and maximum."""
    function = _parse_function(arguments.aggregate)
    # An answer without rows tells the columns and their types.
    fields = [f for f in store.latest([]).table.schema if f.name not in RESERVED_NAMES]
    by_name = {field.name: field for field in fields}
    columns = arguments.column or [f.name for f in fields if is_line(f.type)]
    if not columns:
        columns = [f.name for f in fields if pa.types.is_boolean(f.type)][:4]
    aggregates: dict[str, Any] = {}
    for name in columns[:4] if arguments.column is None else columns:
        is_number = name not in by_name or is_line(by_name[name].type)
        aggregates[name] = function or ("mean" if is_number else "last")
        # A terminal draws no areas.
        if arguments.save and is_number and aggregates[name] not in ("min", "max", "sum", "count"):
            aggregates |= {f"{name} min": (name, "min"), f"{name} max": (name, "max")}
    return aggregates or {"count": ("*", "count")}


def _parse_function(text: str | None) -> str | float | None:
    if text is None or text in FUNCTIONS:
        return text
    try:
        return float(text)
    except ValueError:
        return text  # The query refuses it, and names the functions.


# -- the newest values -----------------------------------------------------------------------------


def _list_newest(
    store: Questions, arguments: argparse.Namespace, zone: str | None, style: Style
) -> str:
    max_series = _MAX_ROWS if arguments.max_series is None else arguments.max_series
    if max_series < 1:
        raise InvalidQuery(f"--max-series {max_series} is below 1", "1 or more", "correct it")
    all_names = store.series()["series"].to_pylist()
    if not all_names:
        return "the store has no events"
    columns = None
    if arguments.column is not None:
        columns = ["series", "timestamp", *arguments.column]
    table = store.latest(all_names[:max_series], columns=columns).table
    names = [name for name in table.column_names if name not in _HIDDEN]
    heads = [label_column(table.schema.field(name)) for name in names]
    columns = [[format_briefly(cell, zone) or "-" for cell in table[name]] for name in names]
    rows = [[style.text(cell) for cell in row] for row in (heads, *zip(*columns, strict=True))]
    lines = align_within(rows, style.width)
    if len(all_names) > max_series:
        lines.append(
            f"and {len(all_names) - max_series:,} more series; name them, or use --max-series"
        )
    silent = min(max_series, len(all_names)) - len(table)
    if silent:
        lines.append(f"{silent:,} of them without an event in the retained range")
    lines += ["", f"times in {zone or 'UTC'}"]
    return "\n".join(lines)


_HIDDEN: Final = {"sequence", "author", *RESERVED_NAMES} - {"series", "timestamp"}
