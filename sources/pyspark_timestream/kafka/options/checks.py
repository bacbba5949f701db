"""The options of transport `kafka`: the only reader of Spark's string map for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark_timestream.clock.options import TimeOptions
from pyspark_timestream.connector.event_time import TIME_UNITS
from pyspark_timestream.connector.instants import TICK_US, format_duration
from pyspark_timestream.connector.options import (
    OptionError,
    boolean,
    choice,
    option,
    read_options,
    specs,
    text,
    whole_number,
)
from pyspark_timestream.cti.policy import POLICIES
from pyspark_timestream.cti.step import TimeRules
from pyspark_timestream.kafka.options.client_keys import client_settings, record_settings
from pyspark_timestream.kafka.options.cti_import import CTI_IMPORT, ImportSource
from pyspark_timestream.kafka.options.parsers import (
    ASSIGN,
    CTI_DELAY,
    CTI_FREQUENCY,
    EDGE_FROM,
    ENDING_OFFSETS,
    IDLE_TIMEOUT,
    LATEST,
    MAX_FUTURE,
    MILLISECONDS,
    NAME,
    STARTING_OFFSETS,
    SUBSCRIBE,
    TIME_FROM,
    TIMESTAMP,
    TIMESTAMPS,
    TOPIC_PATTERN,
    TRIGGER_DELAY,
    WRITER_TIMEOUT,
    WRITERS,
    Frequency,
    TimeFrom,
    assign_text,
)
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["KafkaOptions", "read_kafka_options"]

PRESETS: Final = ("IncreasingStartTime", "StrictlyIncreasingStartTime", "UnorderedStartTime")
_CTI_SOURCES: Final = ("ctiFrequency", "advanceTime")
_ANY_CTIS: Final = (*_CTI_SOURCES, "ctiHeader", "ctiImport", "finalCti")
_FOREIGN: Final = {
    **dict.fromkeys(
        (spec.name for spec in specs(TimeOptions).values()),
        "belongs to transport 'time' and conflicts with option 'transport' ('kafka')",
    ),
    "useDeprecatedOffsetFetching": "chooses how Spark's own source asks for offsets, and this one "
    "asks as that does with 'false': without joining a group",
}


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Everything that transport `kafka` was asked to do.

    Attributes:
        client: librdkafka's configuration, `kafka.` stripped; may hold secrets.
        starts_by_default: nobody said where a new query starts.
    """

    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    starts_by_default: bool = False
    subscribe: tuple[str, ...] | None = option(
        "subscribe", SUBSCRIBE, None, excludes=("subscribePattern", "assign")
    )
    subscribe_pattern: str | None = option(
        "subscribePattern", TOPIC_PATTERN, None, excludes=("assign",)
    )
    assign: tuple[Partition, ...] | None = option("assign", ASSIGN, None)
    starting_offsets: int | Mapping[Partition, int] = option(
        "startingOffsets", STARTING_OFFSETS, LATEST
    )
    starting_timestamp_ms: int | None = option("startingTimestamp", TIMESTAMP, None)
    starting_timestamps_ms: Mapping[Partition, int] | None = option(
        "startingOffsetsByTimestamp", TIMESTAMPS, None
    )
    starting_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        choice("error", "latest"),
        "error",
        needs=("startingTimestamp", "startingOffsetsByTimestamp"),
    )
    ending_offsets: int | Mapping[Partition, int] = option("endingOffsets", ENDING_OFFSETS, LATEST)
    ending_timestamp_ms: int | None = option("endingTimestamp", TIMESTAMP, None)
    ending_timestamps_ms: Mapping[Partition, int] | None = option(
        "endingOffsetsByTimestamp", TIMESTAMPS, None
    )
    max_offsets: int | None = option("maxOffsetsPerTrigger", whole_number(1), None)
    min_offsets: int | None = option("minOffsetsPerTrigger", whole_number(1), None)
    max_delay_us: int = option(
        "maxTriggerDelay", TRIGGER_DELAY, 900_000_000, needs=("minOffsetsPerTrigger",)
    )
    min_partitions: int | None = option(
        "minPartitions", whole_number(1), None, excludes=("maxTasks",)
    )
    max_records: int | None = option(
        "maxRecordsPerPartition", whole_number(1), None, excludes=("maxTasks",)
    )
    fail_on_data_loss: bool = option("failOnDataLoss", boolean, True)
    include_headers: bool = option("includeHeaders", boolean, False)
    group_prefix: str = option("groupIdPrefix", NAME, "timestream")
    poll_timeout_ms: int = option("kafkaConsumer.pollTimeoutMs", MILLISECONDS, 120_000)
    connect_timeout_ms: int = option("kafkaConsumer.connectTimeoutMs", MILLISECONDS, 30_000)
    retries: int = option("fetchOffset.numRetries", whole_number(0), 3)
    retry_interval_ms: int = option("fetchOffset.retryIntervalMs", whole_number(0), 10)
    value_format: str = option("valueFormat", choice("binary", "json"), "binary")
    parse_mode: str = option(
        "parseMode", choice("PERMISSIVE", "DROPMALFORMED", "FAILFAST"), "PERMISSIVE"
    )
    corrupt_column: str = option("columnNameOfCorruptRecord", NAME, "_corrupt_record")
    metadata_prefix: str = option("metadataPrefix", text, "")
    shape: str = option("eventShape", choice("point", "interval", "edge"), "point")
    start_time: TimeFrom = option("startTime", TIME_FROM, TimeFrom("timestamp"))
    end_time: TimeFrom | None = option("endTime", TIME_FROM, None)
    edge: TimeFrom | None = option("edge", EDGE_FROM, None)
    time_unit: str = option("timeUnit", choice(*TIME_UNITS), "ms")
    frequency: Frequency | None = option(
        "ctiFrequency", CTI_FREQUENCY, None, excludes=("advanceTime",)
    )
    delay_us: int = option("ctiDelay", CTI_DELAY, 0, needs=_CTI_SOURCES)
    final_cti: bool = option("finalCti", boolean, False)
    advance_time: str | None = option("advanceTime", choice(*PRESETS), None)
    cti_header: str | None = option("ctiHeader", NAME, None)
    writers: tuple[str, ...] | None = option("writers", WRITERS, None, needs=("ctiHeader",))
    writer_timeout_us: int | None = option(
        "writerTimeout", WRITER_TIMEOUT, None, needs=("ctiHeader", "ctiImport")
    )
    time_window: bool = option("timeWindow", boolean, False, needs=("ctiHeader",))
    max_future_us: int | None = option(
        "maxFuture", MAX_FUTURE, None, needs=(*_CTI_SOURCES, "ctiImport")
    )
    cti_import: ImportSource | None = option("ctiImport", CTI_IMPORT, None)
    policy: str = option("violationPolicy", choice(*POLICIES), "drop", needs=_ANY_CTIS)
    idle_timeout_us: int | None = option("idleTimeout", IDLE_TIMEOUT, None, needs=_ANY_CTIS)
    max_tasks: int | None = option("maxTasks", whole_number(1), None)

    @property
    def has_ctis(self) -> bool:
        """Whether the stream has a `cti` column."""
        sources = (self.frequency, self.cti_header, self.cti_import)
        return self.final_cti or any(source is not None for source in sources)

    @property
    def is_ordered(self) -> bool:
        """Whether what becomes of a record depends on those before it in its partition."""
        return replace(self, final_cti=False).has_ctis

    @property
    def is_cut(self) -> bool:
        """Whether several tasks may share a partition."""
        return self.min_partitions is not None or self.max_records is not None

    @property
    def rules(self) -> TimeRules:
        """What the state machine of a partition needs to know."""
        frequency = self.frequency or Frequency()
        return TimeRules(
            shape=self.shape,
            # A policy is about CTIs: where there are none, nothing is left out.
            policy=self.policy if self.has_ctis else "flag",
            every_events=frequency.events,
            every_us=frequency.span_us,
            delay_us=self.delay_us,
            max_future_us=self.max_future_us,
            writers=self.writers or (),
            writer_timeout_us=self.writer_timeout_us,
            time_window=self.time_window,
        )

    def settings(self) -> dict[str, str]:
        """The options that define time and records, as text: a checkpoint holds on to them."""
        values: dict[str, Any] = {
            "ctiDelay": format_duration(self.delay_us) if self.frequency else None,
            "ctiFrequency": self.frequency,
            "ctiHeader": self.cti_header,
            "ctiImport": self.cti_import,
            "edge": self.edge,
            "endTime": self.end_time,
            "eventShape": self.shape,
            "maxFuture": _duration(self.max_future_us),
            "startTime": self.start_time,
            "timeUnit": self.time_unit,
            "violationPolicy": self.policy,
            "writerTimeout": _duration(self.writer_timeout_us),
            "writers": ",".join(self.writers) if self.writers else None,
            "subscribe": ",".join(self.subscribe) if self.subscribe else None,
            "subscribePattern": self.subscribe_pattern,
            "assign": assign_text(self.assign) if self.assign else None,
        }
        given = {name: str(value) for name, value in values.items() if value is not None}
        return {**given, **record_settings(self.client)}


def _duration(us: int | None) -> str | None:
    return None if us is None else format_duration(us)


def read_kafka_options(raw: Mapping[str, str]) -> KafkaOptions:
    """The options of transport `kafka` in Spark's string map.

    Raises:
        OptionError: an option is wrong, missing, unknown, or conflicts with another.
    """
    given = {key.lower(): value for key, value in raw.items()}
    plain = {key: value for key, value in given.items() if not key.startswith("kafka.")}
    plain.pop("transport", None)
    # First, since a misspelt option is often why another one is missing.
    options = read_options(KafkaOptions, plain, foreign=_FOREIGN)
    client = client_settings(given)
    starts = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}
    options = replace(options, client=client, starts_by_default=starts.isdisjoint(plain))
    _check_topics(options)
    _check_limits(options)
    _check_shape(options, plain)
    options = _with_preset(options, plain)
    _check_policy(options, plain)
    return options


def _check_policy(options: KafkaOptions, plain: Mapping[str, str]) -> None:
    """A policy judges by CTIs, so it needs some; `finalCti` = `false` brings none."""
    policy = plain.get("violationpolicy")
    if policy is not None and not options.has_ctis:
        raise OptionError(
            "violationPolicy",
            f"'{policy}' has no effect: option 'finalCti' is 'false' and nothing else makes CTIs",
            "it together with a source of CTIs",
            "set 'ctiFrequency', 'advanceTime' or 'ctiHeader' too, or leave it out",
        )


def _check_topics(options: KafkaOptions) -> None:
    if (options.subscribe, options.subscribe_pattern, options.assign) == (None, None, None):
        raise OptionError(
            "subscribe",
            "neither it nor option 'subscribePattern' nor 'assign' was given",
            "topic names separated by commas",
            "set one of the three",
        )


def _check_limits(options: KafkaOptions) -> None:
    least, most = options.min_offsets, options.max_offsets
    if least is not None and most is not None and least > most:
        raise OptionError(
            "minOffsetsPerTrigger",
            f"'{least}' conflicts with option 'maxOffsetsPerTrigger' ('{most}'): it is higher",
            "at most as many as 'maxOffsetsPerTrigger'",
            "lower it, or raise 'maxOffsetsPerTrigger'",
        )


def _check_shape(options: KafkaOptions, plain: Mapping[str, str]) -> None:
    """An interval has an end, an edge also a kind, and a point has neither."""
    needs = {"point": (), "interval": ("endTime",), "edge": ("endTime", "edge")}[options.shape]
    for name in ("endTime", "edge"):
        value = plain.get(name.lower())
        if name in needs and value is None:
            raise OptionError(
                name,
                f"it is missing, and option 'eventShape' is '{options.shape}'",
                specs(KafkaOptions)["end_time" if name == "endTime" else "edge"].reader.accepts,
                f"set it, or set 'eventShape' to '{'point' if name == 'endTime' else 'interval'}'",
            )
        if name not in needs and value is not None:
            raise OptionError(
                name,
                f"'{value}' conflicts with option 'eventShape' ('{options.shape}')",
                "it with 'eventShape' = " + ("'edge'" if name == "edge" else "'interval', 'edge'"),
                f"set 'eventShape', or leave '{name}' out",
            )


def _with_preset(options: KafkaOptions, plain: Mapping[str, str]) -> KafkaOptions:
    """The options that a preset stands for (semantics 2.7)."""
    preset = options.advance_time
    if preset is None:
        return options
    delayed = "ctidelay" in plain
    if delayed != (preset == "UnorderedStartTime"):
        raise OptionError(
            "ctiDelay",
            f"'{plain['ctidelay']}' conflicts with option 'advanceTime' ('{preset}')"
            if delayed
            else f"it is missing, and option 'advanceTime' is '{preset}'",
            "a duration with 'UnorderedStartTime' or 'ctiFrequency'",
            f"leave it out with '{preset}'" if delayed else "set it",
        )
    return replace(
        options,
        frequency=Frequency(events=1),
        delay_us=-TICK_US if preset == "StrictlyIncreasingStartTime" else options.delay_us,
        final_cti=options.final_cti or "finalcti" not in plain,
    )
