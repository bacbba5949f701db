"""Declares and reads the options of a write with transport `kafka` (semantics 29)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark_timestream.core.declarations import Parser, choice, option, option_specs, read_options
from pyspark_timestream.core.instants import (
    FINAL_US,
    MILLISECOND_US,
    MIN_US,
)
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.keys import is_idempotent, read_client_settings
from pyspark_timestream.kafka.options.parsers import ANY_NAME, MARK_DELAY
from pyspark_timestream.rules.marks import is_writer_name

_CLIENT: Final = "kafka."


def _parse_topic(text: str) -> str:
    name = text.strip()
    if not name or "," in name or "/" in name:
        raise ValueError("not the name of one topic")
    return name


def _parse_writer(text: str) -> str:
    if not is_writer_name(text):
        raise ValueError("empty, with a comma, or with blanks at its ends")
    return text


_TOPIC: Final = Parser(_parse_topic, "the name of one topic")
_WRITER: Final = Parser(_parse_writer, "a name without commas and without blanks at its ends")


@dataclass(frozen=True, slots=True)
class KafkaWriteOptions:
    """All options of writes with format `timestream` and transport `kafka`.

    Attributes:
        client: librdkafka's configuration, from the options `kafka.*`.
    """

    topic: str | None = option(
        "topic",
        _TOPIC,
        None,
        description=(
            "the topic that rows and marks go to; it must exist. Rows without marks may name "
            "theirs in a column `topic` instead; the option counts where there are both"
        ),
        help="set it, or select a column 'topic' as well",
    )
    writer: str | None = option(
        "writer",
        _WRITER,
        None,
        description=(
            "the name of the writer of the marks, as the next job's option `writers` would list "
            "it; required where there are CTIs, and without meaning elsewhere. No two queries that "
            "write to the topic have the same, and it stays the same after a restart"
        ),
        effect="stream",
        help="give each query a name of its own, which stays the same",
    )
    header: str = option(
        "ctiHeader",
        ANY_NAME,
        "cti",
        description="the record header of the marks, as the next job's option `ctiHeader` names it",
        effect="stream",
    )
    cti_from: str | None = option(
        "ctiFrom",
        choice("column", "watermark"),
        None,
        description=(
            "where the CTIs come from: the CTI rows of the column `cti` (`column`, the default "
            "where there is that column), or the batch's `watermark`, for results of windows and "
            "other stateful operators, which have no CTI rows. Without CTIs, and without `writer`, "
            "rows are written as they are, and no marks"
        ),
        effect="stream",
        help="set it to 'watermark' for results of windows, or add the column `cti`",
    )
    delay_us: int = option(
        "ctiDelay",
        MARK_DELAY,
        0,
        description=(
            "a mark lies this far behind its CTI: 0 where records carry the end of their window, "
            "the window's length where they carry its start"
        ),
        effect="stream",
    )
    prefix: str = option(
        "transactionalIdPrefix",
        ANY_NAME,
        "timestream-writer",
        description=(
            "transactional ids, and the consumer groups that remember which batches are written, "
            "begin with this"
        ),
        help="give it back the value that it had: with another one batches may be written twice",
    )
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def wants_marks(self) -> bool:
        """Whether an option about marks is set."""
        names = ("writer", "header", "cti_from", "delay_us")
        defaults = KafkaWriteOptions()
        return any(getattr(self, name) != getattr(defaults, name) for name in names)

    def find_mark(self, cti_us: int | None) -> int | None:
        """Return the mark for a CTI: `ctiDelay` before it; a final CTI stays as it is."""
        if cti_us is None or cti_us >= FINAL_US:
            return cti_us
        # Round down to a millisecond, as record timestamps and the times of `to_json` are, so that
        # a row at the CTI does not lie below the mark.
        mark_us = cti_us - self.delay_us
        return max(mark_us - mark_us % MILLISECOND_US, MIN_US)


_OWN_KEYS: Final = {
    "transactional.id": "option 'transactionalIdPrefix'",
    "group.id": "option 'transactionalIdPrefix'",
    "delivery.report.only.error": "nothing: the transaction reports what failed",
    "dr_cb": "nothing: the transaction reports what failed",
}
"""Client settings that the writer sets itself -> what to use instead."""


def read_write_options(raw: Mapping[str, Any]) -> KafkaWriteOptions:
    """Read the options of a write from Spark's string map."""
    lowered = {key.lower(): value for key, value in raw.items()}
    plain = {key: value for key, value in lowered.items() if not key.startswith(_CLIENT)}
    plain.pop("transport", None)
    read_names, write_names = (
        {spec.name for spec in option_specs(kind).values()}
        for kind in (KafkaOptions, KafkaWriteOptions)
    )
    foreign = dict.fromkeys(read_names - write_names, "belongs to reads, and this is a write")
    options = read_options(
        KafkaWriteOptions, plain, foreign=foreign, settings=("kafka.bootstrap.servers",)
    )
    client = read_client_settings(lowered)
    _check_client(client)
    return replace(options, client=client)


def _check_client(client: Mapping[str, str]) -> None:
    """Refuse settings that would break the transactions."""
    for key in client:
        if key in _OWN_KEYS:
            raise OptionError(
                f"kafka.{key}",
                "the writer sets it itself",
                "librdkafka's configuration, each name after 'kafka.'",
                f"use {_OWN_KEYS[key]}",
            )
    if not is_idempotent(client):
        raise OptionError(
            "kafka.enable.idempotence",
            f"'{client['enable.idempotence']}'",
            "'true': there is no transaction without it",
            "leave it out",
        )
