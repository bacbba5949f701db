"""The texts of the Kafka transport's options, and paths of fields (semantics 13.2).

A path is written as Spark writes the name of a nested column: names with dots between them. A name
in backquotes is literal, dots and all, and a backquote in it is doubled. `a.b` is the field `b` of
the object `a`, and ``a.`b.c` `` its field `b.c`.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeGuard

from pyspark_timestream.core.instants import (
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)
from pyspark_timestream.core.options import Parser, whole_number
from pyspark_timestream.kafka.ranges import Partition

Path = tuple[str, ...]
"""The names from the outermost object to the field; at least one."""

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
    at = 0
    while True:
        name, at = _read_quoted(text, at) if text[at : at + 1] == "`" else _read_plain(text, at)
        names.append(name)
        if at == len(text):
            return tuple(names)
        at += 1


def _read_quoted(text: str, start: int) -> tuple[str, int]:
    """Read the name whose opening backquote is at `start`; return also the place after it."""
    at = start + 1
    while True:
        close = text.find("`", at)
        if close < 0:
            raise ValueError("a backquote is not closed")
        if text[close + 1 : close + 2] != "`":
            break
        at = close + 2
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
    return ".".join(map(_quote, path))


def _quote(name: str) -> str:
    if name.strip() and not {".", "`"} & set(name):
        return name
    return "`" + name.replace("`", "``") + "`"


class Found(NamedTuple):
    """The end of a walk along a path.

    Attributes:
        value: the value at the end of the path; None if it is absent, or its parent is.
        depth: how many names of the path were followed.
        blocked: the walk met a value that is neither an object nor null, and the path goes on.
    """

    value: Any
    depth: int
    blocked: bool


def descend(value: Any, path: Path) -> Found:
    """Walk along `path` through the objects of parsed JSON, from `value` on."""
    for depth, name in enumerate(path):
        if not isinstance(value, dict):
            return Found(None, depth, value is not None)
        if name not in value:
            return Found(None, depth, False)
        value = value[name]
    return Found(value, len(path), False)


EARLIEST: Final = -2
LATEST: Final = -1

_MAX_DURATION_US: Final = parse_duration("500000 weeks")
"""Nearly 10,000 years: instants plus or minus this still fit 64 bits."""

_PREFIXED_FIELD: Final = re.compile(
    r"timestamp|record:timestamp|(header|field):.*", re.IGNORECASE | re.DOTALL
)
"""Field paths that mean something else if they stand alone."""


@dataclass(frozen=True, slots=True)
class TimeFrom:
    """The source of an event's time or edge: the record's timestamp, a header, or a field.

    Attributes:
        kind: `timestamp`, `header` or `field`.
        name: the header's name, or the field's path as `format_path` writes it; empty for
            `timestamp`.
        given: for `timestamp`, the option's text if it could also be the name of a field.
    """

    kind: str
    name: str = ""
    given: str = field(default="", compare=False)

    @property
    def path(self) -> Path:
        """The field's path."""
        return parse_path(self.name)

    def __str__(self) -> str:
        """The option's text, which reads back to this and which a checkpoint keeps."""
        if self.kind == "timestamp":
            return self.kind
        if self.kind == "header" or _PREFIXED_FIELD.fullmatch(self.name):
            return f"{self.kind}:{self.name}"
        return self.name


@dataclass(frozen=True, slots=True)
class Frequency:
    """The frequency of generated CTIs: a count of events, or a span of application time."""

    events: int | None = None
    span_us: int | None = None

    def __str__(self) -> str:
        """The option's text, which reads back to this."""
        return str(self.events) if self.span_us is None else format_duration(self.span_us)


def _parse_time_from(value: str) -> TimeFrom:
    word = value.lower()
    if word in ("timestamp", "record:timestamp"):
        return TimeFrom("timestamp", given=value if word == "timestamp" else "")
    kind, _, name = value.partition(":")
    if kind.lower() == "header" and value != kind:
        return TimeFrom("header", _parse_name(name))
    path = parse_path(name if kind.lower() == "field" and value != kind else value)
    return TimeFrom("field", format_path(path))


def _parse_name(value: str) -> str:
    if not value.strip():
        raise ValueError("the name is empty")
    return value


def _parse_edge_from(value: str) -> TimeFrom:
    source = _parse_time_from(value)
    if source.kind == "timestamp":
        raise ValueError("a record's timestamp names no edge")
    return source


def _parse_writer_from(value: str) -> TimeFrom:
    source = _parse_time_from(value)
    if source.kind == "timestamp":
        raise ValueError("a record's timestamp names no writer")
    return source


def _parse_frequency(value: str) -> Frequency:
    count = value.strip()
    if re.fullmatch("[+-]?[0-9]+", count):
        if not 0 < int(count) < 2**31:
            raise ValueError("a count must be at least 1 and below 2^31")
        return Frequency(events=int(count))
    span_us = _parse_bounded_duration(value)
    if span_us <= 0:
        raise ValueError("a timespan must be positive")
    return Frequency(span_us=span_us)


def _parse_bounded_duration(value: str) -> int:
    us = parse_duration(value)
    if abs(us) > _MAX_DURATION_US:
        raise ValueError("longer than 500000 weeks")
    return us


def _parse_max_future(value: str) -> int:
    us = _parse_bounded_duration(value)
    if us < 0:
        raise ValueError("it must not be negative")
    return us


def _parse_timeout(value: str) -> int:
    us = _parse_bounded_duration(value)
    if us < 1:
        raise ValueError("it must be at least 1 tick")
    return us


def _parse_writers(value: str) -> tuple[str, ...]:
    return tuple(sorted({_parse_name(name).strip() for name in value.split(",")}))


def _parse_topics(value: str) -> tuple[str, ...]:
    topics = tuple(sorted({topic.strip() for topic in value.split(",")}))
    for topic in topics:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
            raise ValueError(f"'{topic}' is not a topic name")
    return topics


def _parse_assign(value: str) -> tuple[Partition, ...]:
    wanted = _parse_json_object(value)
    try:
        parts = {Partition(topic, number) for topic, nums in wanted.items() for number in nums}
    except TypeError as error:
        raise ValueError("a topic's value must be a list of partition numbers") from error
    if not parts or not all(_is_count(part.number) for part in parts):
        raise ValueError("partition numbers must be whole numbers, at least one of them")
    return tuple(sorted(parts))


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
    if not all(_is_count(at) or at in (EARLIEST, LATEST) for at in starts.values()):
        raise ValueError("an offset must be a whole number, -2 (earliest) or -1 (latest)")
    return starts


def _parse_ending(value: str) -> int | dict[Partition, int]:
    ends = _parse_starting(value)
    if ends == EARLIEST or (isinstance(ends, dict) and EARLIEST in ends.values()):
        raise ValueError("a read that ends at the earliest offset (-2) is always empty")
    return ends


def _parse_timestamps(value: str) -> dict[Partition, int]:
    instants = _parse_by_partition(value)
    if not all(_is_count(at) and at < 2**63 for at in instants.values()):
        raise ValueError("a timestamp must be a whole number of milliseconds since 1970")
    return instants


def _parse_by_partition(value: str) -> dict[Partition, Any]:
    """The leaves of JSON such as `{"topic": {"0": leaf}}`."""
    leaves: dict[Partition, Any] = {}
    for topic, numbers in _parse_json_object(value).items():
        if not isinstance(numbers, dict) or not all(map(_is_number, numbers)):
            raise ValueError(f"topic '{topic}' needs an object whose names are partition numbers")
        leaves.update({Partition(topic, int(number)): leaf for number, leaf in numbers.items()})
    return leaves


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _parse_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return _parse_name(value)


def _parse_trigger_delay(value: str) -> int:
    # Spark reads a bare number as milliseconds.
    us = _parse_bounded_duration(f"{value} ms" if _is_number(value.strip()) else value)
    if us < 0:
        raise ValueError("a wait cannot be negative")
    return us


def _parse_json_object(value: str) -> dict[str, Any]:
    parsed = json.loads(value)
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    return parsed


def _parse_milliseconds(value: str) -> int:
    number = whole_number(1).parse(value)
    if number > 2**31:
        raise ValueError("more than 2^31 ms")
    return number


def _format_assign(assign: tuple[Partition, ...]) -> str:
    topics: dict[str, list[int]] = {}
    for topic, number in assign:
        topics.setdefault(topic, []).append(number)
    return json.dumps(topics)


def _format_offsets(offsets: int | Mapping[Partition, int]) -> str:
    if isinstance(offsets, int):
        return "earliest" if offsets == EARLIEST else "latest"
    return _format_by_partition(offsets)


def _format_by_partition(leaves: Mapping[Partition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, number), leaf in sorted(leaves.items()):
        topics.setdefault(topic, {})[str(number)] = leaf
    return json.dumps(topics)


TIME_FROM: Final = Parser(
    _parse_time_from,
    "'timestamp', 'header:NAME', 'field:PATH' or a path alone, such as 'payload.ts_ms'",
    "header:",
    "field:a..b",
)
EDGE_FROM: Final = Parser(
    _parse_edge_from,
    "'header:NAME', 'field:PATH' or a path alone, such as 'payload.kind'",
    "header:",
    "`a",
)
WRITER_FROM: Final = Parser(
    _parse_writer_from,
    "'header:NAME', 'field:PATH' or a path alone, such as 'payload.device'",
    "header:",
    "`a",
)
NAME: Final = Parser(_parse_name, "a name, not empty", wrong_type=" ")
MILLISECONDS: Final = Parser(
    _parse_milliseconds, "a whole number of milliseconds, at least 1", "soon", "0"
)
SUBSCRIBE: Final = Parser(
    _parse_topics, "topic names separated by commas", wrong_type="no/topic", format=",".join
)
ASSIGN: Final = Parser(
    _parse_assign,
    'JSON such as {"topic": [0, 1]}',
    "topic",
    '{"topic": [-1]}',
    format=_format_assign,
)
STARTING_OFFSETS: Final = Parser(
    _parse_starting,
    '\'earliest\', \'latest\' or JSON such as {"topic": {"0": 23, "1": -2}}',
    "yesterday",
    '{"topic": {"0": -3}}',
    format=_format_offsets,
)
ENDING_OFFSETS: Final = Parser(
    _parse_ending,
    '\'latest\' or JSON such as {"topic": {"0": 23, "1": -1}}',
    "tomorrow",
    '{"topic": {"0": -2}}',
    format=_format_offsets,
)
TOPIC_PATTERN: Final = Parser(
    _parse_pattern, "a regular expression for whole topic names", wrong_type="topic("
)
TIMESTAMP: Final = replace(
    whole_number(0), accepts="a whole number of milliseconds since 1970-01-01T00:00:00Z"
)
INSTANT: Final = Parser(
    parse_instant,
    "an ISO-8601 instant such as 2013-03-01T00:00:00Z",
    "yesterday",
    "0000-01-01T00:00:00Z",
    format=format_instant,
)
TIMESTAMPS: Final = Parser(
    _parse_timestamps,
    'milliseconds since 1970-01-01T00:00:00Z as JSON such as {"topic": {"0": 1700000000000}}',
    "yesterday",
    '{"topic": {"0": -1}}',
    format=_format_by_partition,
)
TRIGGER_DELAY: Final = Parser(
    _parse_trigger_delay,
    "a duration such as '15m', or milliseconds",
    "soon",
    "-1 second",
    format=format_duration,
)
CTI_FREQUENCY: Final = Parser(
    _parse_frequency,
    "a count of events such as '10', or a timespan such as '5 seconds'",
    "often",
    "0",
)
MAX_FUTURE: Final = Parser(
    _parse_max_future,
    "a duration such as '5 minutes', up to 500000 weeks",
    "soon",
    "-1 tick",
    format=format_duration,
)
WRITERS: Final = Parser(
    _parse_writers, "writers' names separated by commas", " ", "a,,b", format=",".join
)
WRITER_TIMEOUT: Final = Parser(
    _parse_timeout,
    "a duration such as '1 minute', up to 500000 weeks",
    "soon",
    "0 s",
    format=format_duration,
)
WRITER_GRACE: Final = replace(WRITER_TIMEOUT)
CTI_DELAY: Final = Parser(
    _parse_bounded_duration,
    "a duration such as '5 seconds' or '-1 tick', up to 500000 weeks",
    "later",
    "600000 weeks",
    format=format_duration,
)


POSITIVE_DURATION: Final = Parser(
    _parse_timeout,
    "a duration such as '30 seconds', above 0, up to 500000 weeks",
    "soon",
    "0 s",
    format=format_duration,
)


_KEYS: Final = ("topic", "frequency", "delay", "startTime", "header")


@dataclass(frozen=True, slots=True)
class ImportSource:
    """The topic whose CTIs are imported, and the way it makes them.

    Attributes:
        topic: the topic.
        frequency: they are generated this often; None: they are in-band only.
        delay_us: generated CTIs lie this far behind their event.
        start_time: the source of the event times for generated CTIs.
        header: the header of in-band CTIs; None: none with `frequency`, else the stream's own
            `ctiHeader`, or `cti`.
    """

    topic: str
    frequency: Frequency | None = None
    delay_us: int = 0
    start_time: TimeFrom = TimeFrom("timestamp")
    header: str | None = None

    def __str__(self) -> str:
        """The option's canonical text, which reads back to this."""
        found = {
            "topic": self.topic,
            "frequency": str(self.frequency) if self.frequency else None,
            "delay": format_duration(self.delay_us) if self.frequency else None,
            "startTime": str(self.start_time) if self.frequency else None,
            "header": self.header,
        }
        named = {name: value for name, value in found.items() if value is not None}
        return self.topic if len(named) == 1 else json.dumps(named)


def _parse_import(value: str) -> ImportSource:
    if not value.lstrip().startswith("{"):
        return ImportSource(_parse_topic(value.strip()))
    given = json.loads(value)
    unknown = sorted(set(given) - set(_KEYS))
    if unknown:
        raise ValueError(f"unknown key '{unknown[0]}'; the keys are {', '.join(_KEYS)}")
    if "topic" not in given:
        raise ValueError("the key 'topic' is missing")
    texts = {key: _read_text(key, each) for key, each in given.items()}
    for key in ("delay", "startTime"):
        if key in texts and "frequency" not in texts:
            raise ValueError(f"the key '{key}' has no effect without 'frequency'")
    return ImportSource(
        _parse_topic(texts["topic"]),
        CTI_FREQUENCY.parse(texts["frequency"]) if "frequency" in texts else None,
        CTI_DELAY.parse(texts.get("delay", "0 s")),
        TIME_FROM.parse(texts.get("startTime", "timestamp")),
        NAME.parse(texts["header"]) if "header" in texts else None,
    )


def _read_text(key: str, value: Any) -> str:
    if is_whole(value):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"the value of '{key}' must be a string")
    return value


def _parse_topic(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
        raise ValueError(f"'{name}' is not a topic name")
    return name


CTI_IMPORT: Final = Parser(
    _parse_import,
    'a topic\'s name, or JSON such as {"topic": "fast", "frequency": "10", "delay": "5 seconds", '
    '"startTime": "header:time"} or {"topic": "fast", "header": "cti"}',
    "no/topic",
    '{"topic": "fast", "frequency": "0"}',
)
