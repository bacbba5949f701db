"""The texts that the options of writes and reads may have."""

import getpass
import json
import os
from typing import Final

from pyspark_timestream.connector.instants import format_duration, parse_duration, parse_instant
from pyspark_timestream.connector.options import Parser
from pyspark_tseries.model.query import parse_anchor, parse_span
from pyspark_tseries.model.retention import parse_initial, parse_range, parse_start_sequences
from pyspark_tseries.storage.location import (
    Location,
    OptionPairs,
    normalize_location,
    parse_location,
)

__all__ = [
    "ANCHOR",
    "COLUMNS",
    "CTI",
    "DELAY",
    "DURABILITIES",
    "FUTURE",
    "INITIAL",
    "INSTANT",
    "NAME",
    "PATH",
    "RANGE",
    "SERIES",
    "SPAN",
    "STARTS",
    "location_with",
    "os_user",
]

DURABILITIES: Final = ("fsync", "os")
"""`fsync`: every acknowledged commit survives a power loss. `os`: commits survive that the
operating system has written to the disk by then."""


def os_user() -> str:
    """The user of the operating system, who is the author and principal by default."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return str(os.getuid())


def _series_names(value: str) -> tuple[str, ...]:
    if not value.lstrip().startswith("["):
        return (value,)
    names = json.loads(value)
    if not all(isinstance(name, str) for name in names):
        raise ValueError("every element of the list must be a text")
    return tuple(names)


def _column_names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ValueError("a name is empty")
    if len(set(names)) < len(names):
        raise ValueError("a column is named twice")
    return names


def _fixed_location(value: str) -> str:
    """A location that does not depend on the working directory of the process."""
    location = normalize_location(value)
    if not location.startswith(("/", "s3://")):
        raise ValueError(
            "a relative path would be taken from the working directory of Spark's processes, which "
            f"need not be your program's: give os.path.abspath({value!r})"
        )
    return location


PATH: Final = Parser(
    _fixed_location,
    "an absolute local path, a file: URI, or an s3: URI",
    wrong_type="gs://bucket/a",
    out_of_range="trips/store",
)
NAME: Final = Parser(str, "the name of a column")
RANGE: Final = Parser(
    parse_range,
    "'limit N', 'last DURATION' or both (DURATION such as 30S, 5M, 1D), or 'unlimited'",
    wrong_type="last 5 parsecs",
    out_of_range="limit 0",
)
_POINTS: Final = "'start', 'sequence N', an ISO-8601 time, 'last N', 'last DURATION'"
ANCHOR: Final = Parser(parse_anchor, _POINTS, wrong_type="next 4", out_of_range="last -1")
SPAN: Final = Parser(
    parse_span,
    f"{_POINTS}, 'next N', 'next DURATION', 'previous N', 'previous DURATION'",
    wrong_type="some day",
    out_of_range="sequence -1",
)
INSTANT: Final = Parser(parse_instant, "an ISO-8601 time with a zone", wrong_type="yesterday")
SERIES: Final = Parser(
    _series_names,
    'one name, or a JSON list of names such as ["a", "b"]',
    wrong_type="[1, 2]",
)
COLUMNS: Final = Parser(
    _column_names,
    "names of columns, separated by commas, such as 'timestamp, celsius'",
    out_of_range="a,,b",
)


def _parse_delay(value: str) -> int:
    us = parse_duration(value)
    if not 0 <= us <= _MAX_DELAY_US:
        raise ValueError("it must be at least 0 and at most 500000 weeks")
    return us


def _parse_cti(value: str) -> str:
    word = value.strip().lower()
    if word in ("true", "false"):
        return "cti" if word == "true" else ""
    if not value.strip():
        raise ValueError("it is empty")
    return value


NO_MAX_US: Final = 2**62
"""`maxFuture` = `none`."""

_MAX_DELAY_US: Final = parse_duration("500000 weeks")
DELAY: Final = Parser(
    _parse_delay,
    "a duration such as '1 hour', at least '0 seconds'",
    wrong_type="some",
    out_of_range="-1 second",
    format=format_duration,
)
FUTURE: Final = Parser(
    lambda value: NO_MAX_US if value.strip().lower() == "none" else _parse_delay(value),
    "a duration such as '1 day', at least '0 seconds', or 'none'",
    wrong_type="some",
    out_of_range="-1 second",
    format=lambda us: "none" if us == NO_MAX_US else format_duration(us),
)
CTI: Final = Parser(
    _parse_cti,
    "'true', 'false' or the name of a column",
    wrong_type=" ",
    format=lambda column: column or "false",
)
INITIAL: Final = Parser(
    parse_initial,
    "'limit N', 'last DURATION', both, 'unlimited', or 'none'",
    wrong_type="some",
    out_of_range="limit 0",
)
STARTS: Final = Parser(
    parse_start_sequences, 'JSON such as {"series": 7}', wrong_type="[7]", out_of_range='{"a": -1}'
)


def location_with(path: str, storage: OptionPairs) -> Location:
    """The store at `path`, reached with these storage options."""
    return parse_location(path, dict(storage))
