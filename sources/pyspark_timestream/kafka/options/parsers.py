"""Parses the texts of the Kafka transport's options, and paths of fields (semantics 13.2).

A path is written as Spark writes a nested column: names with dots between them. A name in
backquotes is literal, dots included, and a backquote in it is doubled. `a.b` is the field `b` of
the object `a`; ``a.`b.c` `` is its field `b.c`.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeGuard

from pyspark_timestream.core.declarations import (
    Parser,
    decode_file_uri,
    make_object,
    quote_column,
    whole_number,
)
from pyspark_timestream.core.instants import (
    MAX_DURATION,
    MAX_DURATION_US,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from pyspark_timestream.kafka.ranges import Partition, group_by_topic, list_by_partition

Path = tuple[str, ...]
"""The names from the outermost object to the field; never empty."""

PATH_FORM: Final = (
    "names with dots between them, each in backquotes if it contains a dot or a backquote itself"
)


@functools.lru_cache(4096)
def parse_path(text: str) -> Path:
    """Read a path.

    >>> parse_path("payload.`a.b`.c")
    ('payload', 'a.b', 'c')

    Raises:
        ValueError: a name is empty, or a backquote is not where it can be.
    """
    names: list[str] = []
    position = 0
    while True:
        name, position = (
            _read_quoted(text, position)
            if text[position : position + 1] == "`"
            else _read_plain(text, position)
        )
        names.append(name)
        if position == len(text):
            return tuple(names)
        position += 1


def _read_quoted(text: str, start: int) -> tuple[str, int]:
    """Read a name that begins with the backquote at `start`; return it and the place after it."""
    position = start + 1
    while True:
        close = text.find("`", position)
        if close < 0:
            raise ValueError("a backquote is not closed")
        if text[close + 1 : close + 2] != "`":
            break
        position = close + 2
    if text[close + 1 : close + 2] not in ("", "."):
        raise ValueError("a name in backquotes must end before a dot or at the end")
    return text[start + 1 : close].replace("``", "`"), close + 1


def _read_plain(text: str, start: int) -> tuple[str, int]:
    dot = text.find(".", start)
    end = len(text) if dot < 0 else dot
    name = text[start:end]
    if not name.strip():
        raise ValueError("the name is empty" if not text.strip() else "a name in it is empty")
    if "`" in name:
        raise ValueError("a backquote is inside a name that is not in backquotes")
    return name, end


def format_path(path: Path) -> str:
    """Return the text that reads back to `path`, with backquotes only where they are needed.

    >>> format_path(("payload", "a.b", "c"))
    'payload.`a.b`.c'
    """
    return ".".join(map(_quote_name, path))


def _quote_name(name: str) -> str:
    if name.strip() and not {".", "`"} & set(name):
        return name
    return quote_column(name)


class WalkResult(NamedTuple):
    """The result of a walk along a path.

    Attributes:
        value: the value at the end of the path; None if it or a parent is absent.
        depth: the number of names that were followed.
        blocked: True if a value before the path's end is neither an object nor null.
    """

    value: Any
    depth: int
    blocked: bool


def descend(value: Any, path: Path) -> WalkResult:
    """Walk along `path` through the objects of parsed JSON, from `value` on."""
    for depth, name in enumerate(path):
        if not isinstance(value, dict):
            return WalkResult(None, depth, value is not None)
        if name not in value:
            return WalkResult(None, depth, False)
        value = value[name]
    return WalkResult(value, len(path), False)


EARLIEST: Final = -2
LATEST: Final = -1


# -- times -----------------------------------------------------------------------------------------

_PREFIXED_FIELD: Final = re.compile(
    r"timestamp|record:timestamp|(header|field):.*|.*[.`].*", re.IGNORECASE | re.DOTALL
)
"""Field paths with more than a plain name, or that mean something else without `field:`."""


@dataclass(frozen=True, slots=True)
class TimeFrom:
    """The source of an event's time or edge: the record's timestamp, a header, or a field.

    Attributes:
        kind: `timestamp`, `header` or `field`.
        name: the header's name, or the field's path as `format_path` writes it; empty for
            `timestamp`.
        ambiguous_text: for `timestamp`, the option's text if it could also name a field.
    """

    kind: str
    name: str = ""
    ambiguous_text: str = field(default="", compare=False)

    @property
    def path(self) -> Path:
        """The field's path."""
        return parse_path(self.name)

    def __str__(self) -> str:
        """Return the option's text, which a checkpoint keeps and which parses to an equal value."""
        if self.kind == "timestamp":
            return self.kind
        if self.kind == "header" or _PREFIXED_FIELD.fullmatch(self.name):
            return f"{self.kind}:{self.name}"
        return self.name


def _parse_time_from(value: str) -> TimeFrom:
    word = value.lower()
    if word in ("timestamp", "record:timestamp"):
        return TimeFrom("timestamp", ambiguous_text=value if word == "timestamp" else "")
    kind, _, name = value.partition(":")
    if kind.lower() == "header" and value != kind:
        return TimeFrom("header", _parse_name(name))
    path = parse_path(name if kind.lower() == "field" and value != kind else value)
    return TimeFrom("field", format_path(path))


def _header_or_field(example: str, use: str) -> Parser[TimeFrom]:
    """Return a parser that refuses the record's timestamp, since that cannot be a `use`."""

    def parse(value: str) -> TimeFrom:
        source = _parse_time_from(value)
        if source.kind == "timestamp":
            raise ValueError(f"a record's timestamp names no {use}")
        return source

    return Parser(parse, f"'header:NAME', 'field:PATH' or only a path, such as '{example}'")


def _parse_name(value: str) -> str:
    if not value.strip():
        raise ValueError("the name is empty")
    return value


def _parse_duration(value: str) -> int:
    us = parse_duration(value)
    if abs(us) > MAX_DURATION_US:
        raise ValueError(f"longer than {MAX_DURATION}")
    return us


def _duration(least_us: int, problem: str, accepts: str) -> Parser[int]:
    """Return a parser of durations of at least `least_us`; `problem` tells why others are wrong."""

    def parse(value: str) -> int:
        us = _parse_duration(value)
        if us < least_us:
            raise ValueError(problem)
        return us

    return Parser(parse, f"a duration such as {accepts}, up to {MAX_DURATION}", format_duration)


@dataclass(frozen=True, slots=True)
class Frequency:
    """The frequency of generated CTIs: a count of events, or an interval of application time."""

    events: int | None = None
    interval_us: int | None = None

    def __str__(self) -> str:
        """Return the option's text, which parses to an equal value."""
        return str(self.events) if self.interval_us is None else format_duration(self.interval_us)


def _parse_frequency(value: str) -> Frequency:
    count = value.strip()
    if re.fullmatch("[+-]?[0-9]+", count):
        if not 0 < int(count) < 2**31:
            raise ValueError("a count must be at least 1 and below 2^31")
        return Frequency(events=int(count))
    interval_us = _parse_duration(value)
    if interval_us <= 0:
        raise ValueError("a timespan must be positive")
    return Frequency(interval_us=interval_us)


def _parse_trigger_delay(value: str) -> int:
    # Spark reads a bare number as milliseconds.
    us = _parse_duration(f"{value} ms" if _is_number(value.strip()) else value)
    if us < 0:
        raise ValueError("a wait cannot be negative")
    return us


def _parse_milliseconds(value: str) -> int:
    number = whole_number(1).parse(value)
    if number > 2**31:
        raise ValueError("more than 2^31 ms")
    return number


ANY_NAME: Final = Parser(_parse_name, "a name, not empty")
TIME_FROM: Final = Parser(
    _parse_time_from,
    "'timestamp', 'header:NAME', 'field:PATH' or only a path, such as 'payload.ts_ms'",
)
EDGE_FROM: Final = _header_or_field("payload.kind", "edge")
WRITER_FROM: Final = _header_or_field("payload.device", "writer")
ISO_INSTANT: Final = Parser(
    parse_instant, "an ISO-8601 instant such as 2013-03-01T00:00:00Z", format_instant
)
NOW: Final = "now"
CHANGE_FROM: Final[Parser[str | int]] = Parser(
    lambda value: NOW if value.strip().lower() == NOW else parse_instant(value),
    f"'{NOW}', or an ISO-8601 instant such as 2013-03-01T00:00:00Z",
    lambda value: value if value == NOW else format_instant(value),
)
TIMESTAMP: Final = replace(
    whole_number(0), accepts="a whole number of milliseconds since 1970-01-01T00:00:00Z"
)
MILLISECONDS: Final = Parser(_parse_milliseconds, "a whole number of milliseconds, at least 1")
TRIGGER_DELAY: Final = Parser(
    _parse_trigger_delay, "a duration such as '15m', or milliseconds", format_duration
)
CTI_FREQUENCY: Final = Parser(
    _parse_frequency, "a count of events such as '10', or a timespan such as '5 seconds'"
)
CTI_DELAY: Final = _duration(-MAX_DURATION_US, "", "'5 seconds' or '-1 tick'")
MARK_DELAY: Final = _duration(0, "it must not be negative", "'1 hour', at least 0")
MAX_FUTURE: Final = _duration(0, "it must not be negative", "'5 minutes'")
POSITIVE_DURATION: Final = _duration(
    1, "it must be at least 1 microsecond", "'30 seconds', above 0"
)
WRITERS: Final = Parser(
    lambda value: tuple(sorted({_parse_name(name).strip() for name in value.split(",")})),
    "writers' names separated by commas",
    ",".join,
)


# -- topics, partitions and offsets ----------------------------------------------------------------


def _parse_topic(name: str) -> str:
    """Check a topic's name.

    Raises:
        ValueError: Kafka allows no such name.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        raise ValueError(f"'{name}' is not a topic name")
    return name


def _parse_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return _parse_name(value)


def _parse_assign(value: str) -> tuple[Partition, ...]:
    topics = _parse_json_object(value)
    try:
        assigned = {
            Partition(_parse_topic(topic), number)
            for topic, numbers in topics.items()
            for number in numbers
        }
    except TypeError as error:
        raise ValueError("a topic's value must be a list of partition numbers") from error
    if not assigned or not all(_is_count(partition.number) for partition in assigned):
        raise ValueError("partition numbers must be whole numbers, at least one of them")
    return tuple(sorted(assigned))


def _format_assign(assign: tuple[Partition, ...]) -> str:
    topics: dict[str, list[int]] = {}
    for topic, number in assign:
        topics.setdefault(topic, []).append(number)
    return json.dumps(topics)


def is_whole(value: Any) -> TypeGuard[int]:
    """True for an int of parsed JSON; a bool is an int in Python, but not here."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 0


def _parse_starting(value: str) -> int | dict[Partition, int]:
    words = {"earliest": EARLIEST, "latest": LATEST}
    if value.strip().lower() in words:
        return words[value.strip().lower()]
    starts = _parse_by_partition(value)
    if not all(_is_count(offset) or offset in (EARLIEST, LATEST) for offset in starts.values()):
        raise ValueError("an offset must be a whole number, -2 (earliest) or -1 (latest)")
    return starts


def _parse_ending(value: str) -> int | dict[Partition, int]:
    ends = _parse_starting(value)
    if ends == EARLIEST or (isinstance(ends, dict) and EARLIEST in ends.values()):
        raise ValueError("a read that ends at the earliest offset (-2) is always empty")
    return ends


def _parse_timestamps(value: str) -> dict[Partition, int]:
    instants = _parse_by_partition(value)
    if not all(_is_count(ms) and ms < 2**63 for ms in instants.values()):
        raise ValueError("a timestamp must be a whole number of milliseconds since 1970")
    return instants


def _parse_by_partition(value: str) -> dict[Partition, Any]:
    """Return the leaves of JSON such as `{"topic": {"0": leaf}}`."""
    topics = _parse_json_object(value)
    for topic, numbers in topics.items():
        if not isinstance(numbers, dict) or not all(map(_is_number, numbers)):
            raise ValueError(f"topic '{topic}' needs an object whose names are partition numbers")
    leaves = list_by_partition(topics)
    if len(leaves) < sum(map(len, topics.values())):
        raise ValueError("a partition is there twice, its number with and without zeros before it")
    return leaves


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _parse_json_object(value: str) -> dict[str, Any]:
    parsed = json.loads(value, object_pairs_hook=make_object)
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    return parsed


def _format_by_partition(leaves: Mapping[Partition, int]) -> str:
    return json.dumps(group_by_topic(leaves))


def _format_offsets(offsets: int | Mapping[Partition, int]) -> str:
    if isinstance(offsets, int):
        return "earliest" if offsets == EARLIEST else "latest"
    return _format_by_partition(offsets)


SUBSCRIBE: Final = Parser(
    lambda value: tuple(sorted({_parse_topic(topic.strip()) for topic in value.split(",")})),
    "topic names separated by commas",
    ",".join,
)
TOPIC_PATTERN: Final = Parser(_parse_pattern, "a regular expression for whole topic names")
ASSIGN: Final = Parser(_parse_assign, 'JSON such as {"topic": [0, 1]}', _format_assign)
STARTING_OFFSETS: Final = Parser(
    _parse_starting,
    '\'earliest\', \'latest\' or JSON such as {"topic": {"0": 23, "1": -2}}',
    _format_offsets,
)
ENDING_OFFSETS: Final = Parser(
    _parse_ending, '\'latest\' or JSON such as {"topic": {"0": 23, "1": -1}}', _format_offsets
)
TIMESTAMPS: Final = Parser(
    _parse_timestamps,
    'milliseconds since 1970-01-01T00:00:00Z as JSON such as {"topic": {"0": 1700000000000}}',
    _format_by_partition,
)


# -- the imported topic ----------------------------------------------------------------------------

_KEYS: Final = ("topic", "frequency", "delay", "startTime", "header")


@dataclass(frozen=True, slots=True)
class ImportSource:
    """The topic that CTIs are imported from, and how they come about there.

    Attributes:
        topic: the topic's name.
        frequency: how often CTIs are generated; None if they are only in-band.
        delay_us: generated CTIs lie this far behind the event that triggers them.
        start_time: the source of the event times for generated CTIs.
        header: the header of in-band CTIs. None means no header if there is a `frequency`, else
            the stream's own `ctiHeader`, or `cti` without that.
    """

    topic: str
    frequency: Frequency | None = None
    delay_us: int = 0
    start_time: TimeFrom = TimeFrom("timestamp")
    header: str | None = None

    def __str__(self) -> str:
        """Return the option's canonical text, which parses to an equal value."""
        generated = (
            {}
            if self.frequency is None
            else {
                "frequency": str(self.frequency),
                "delay": format_duration(self.delay_us),
                "startTime": str(self.start_time),
            }
        )
        header = {} if self.header is None else {"header": self.header}
        keys = {"topic": self.topic, **generated, **header}
        return self.topic if len(keys) == 1 else json.dumps(keys)


def _parse_import(value: str) -> ImportSource:
    if not value.lstrip().startswith("{"):
        return ImportSource(_parse_topic(value.strip()))
    entries = _parse_json_object(value)
    unknown = sorted(set(entries) - set(_KEYS))
    if unknown:
        raise ValueError(f"unknown key '{unknown[0]}'; the keys are {', '.join(_KEYS)}")
    if "topic" not in entries:
        raise ValueError("the key 'topic' is missing")
    texts = {key: _read_text(key, entry) for key, entry in entries.items()}
    for key in ("delay", "startTime"):
        if key in texts and "frequency" not in texts:
            raise ValueError(f"the key '{key}' has no effect without 'frequency'")
    return ImportSource(
        topic=_parse_topic(texts["topic"]),
        frequency=CTI_FREQUENCY.parse(texts["frequency"]) if "frequency" in texts else None,
        delay_us=CTI_DELAY.parse(texts.get("delay", "0 s")),
        start_time=TIME_FROM.parse(texts.get("startTime", "timestamp")),
        header=ANY_NAME.parse(texts["header"]) if "header" in texts else None,
    )


def _read_text(key: str, value: Any) -> str:
    if is_whole(value):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"the value of '{key}' must be a string")
    return value


CTI_IMPORT: Final = Parser(
    _parse_import,
    'a topic\'s name, or JSON such as {"topic": "fast", "frequency": "10", "delay": "5 seconds", '
    '"startTime": "header:time"} or {"topic": "fast", "header": "cti"}',
)


_TOPIC_PREFIX: Final = "topic:"


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """Where the descriptions are: in a topic, or in a file on the driver.

    Attributes:
        text: the option's text.
        topic: the topic; None for a file.
        path: the file; None for a topic.
    """

    text: str
    topic: str | None = None
    path: str | None = None

    def __str__(self) -> str:
        """Return the option's text."""
        return self.text


def _parse_source(value: str) -> SettingsSource:
    text = value.strip()
    if text.startswith(_TOPIC_PREFIX):
        topic = text[len(_TOPIC_PREFIX) :]
        return SettingsSource(text, topic=_parse_topic(topic))
    if text.lower().startswith("file:"):
        text_path = decode_file_uri(text)
    elif re.match("[A-Za-z][A-Za-z0-9+.-]+://", text):
        raise ValueError("only files of the driver's machine can be read")
    else:
        text_path = text
    if not text_path or "\0" in text_path:
        raise ValueError("there is no path")
    return SettingsSource(text, path=text_path)


TIME_SETTINGS: Final = Parser(
    _parse_source,
    "the path of a JSON file on the driver, or 'topic:NAME'",
)
