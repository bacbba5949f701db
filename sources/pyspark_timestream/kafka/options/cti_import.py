"""Option `ctiImport`: the topic whose CTIs become this stream's, and the way it makes them."""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.connector.instants import format_duration
from pyspark_timestream.connector.options import Parser
from pyspark_timestream.kafka.options.parsers import (
    CTI_DELAY,
    CTI_FREQUENCY,
    NAME,
    TIME_FROM,
    Frequency,
    TimeFrom,
    is_whole,
)

__all__ = ["CTI_IMPORT", "ImportSource"]

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
