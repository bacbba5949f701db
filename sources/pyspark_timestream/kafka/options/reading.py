"""The options that say which records are read, in which batches and tasks.

`PayloadOptions` adds those about payloads, `KafkaOptions` those about metadata, times and CTIs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_timestream.connector.options import boolean, choice, option, whole_number
from pyspark_timestream.kafka.options.parsers import (
    ASSIGN,
    ENDING_OFFSETS,
    LATEST,
    MILLISECONDS,
    NAME,
    STARTING_OFFSETS,
    SUBSCRIBE,
    TIMESTAMP,
    TIMESTAMPS,
    TOPIC_PATTERN,
    TRIGGER_DELAY,
)
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["ReadingOptions"]


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Topics, starts and ends, the size of batches and tasks, groups, timeouts and retries.

    Attributes:
        client: librdkafka's configuration, `kafka.` stripped; may hold secrets.
        starts_by_default: no option sets where a new query starts.
        ends_by_default: no option sets the offset at which a partition ends.
    """

    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    starts_by_default: bool = False
    ends_by_default: bool = True
    subscribe: tuple[str, ...] | None = option(
        "subscribe",
        SUBSCRIBE,
        None,
        description="topics, separated by commas; this, `subscribePattern` or `assign` is required",
        may_change=False,
        excludes=("subscribePattern", "assign"),
    )
    subscribe_pattern: str | None = option(
        "subscribePattern",
        TOPIC_PATTERN,
        None,
        description=(
            "a Python regular expression that matches whole topic names; topics that appear later "
            "are read from earliest; Kafka's internal topics never match"
        ),
        may_change=False,
        excludes=("assign",),
    )
    assign: tuple[Partition, ...] | None = option(
        "assign",
        ASSIGN,
        None,
        description='exact partitions: `{"topic": [0, 1]}`',
        may_change=False,
    )
    starting_offsets: int | Mapping[Partition, int] = option(
        "startingOffsets",
        STARTING_OFFSETS,
        LATEST,
        description=(
            'where a new query starts: `earliest`, `latest` or `{"topic": {"0": 23, "1": -2}}` (-2 '
            "earliest, -1 latest); batch reads, replays (`startingCti`, `endingCti`) and "
            "streams with an ending option start at `earliest`, and the first and last refuse "
            "`latest`; partitions found later start at earliest"
        ),
    )
    starting_timestamp_ms: int | None = option(
        "startingTimestamp",
        TIMESTAMP,
        None,
        description=(
            "start each partition at its first record whose timestamp is at or after this, in "
            "milliseconds since 1970; takes precedence over the next two"
        ),
    )
    starting_timestamps_ms: Mapping[Partition, int] | None = option(
        "startingOffsetsByTimestamp",
        TIMESTAMPS,
        None,
        description=(
            'the same per partition: `{"topic": {"0": 1700000000000}}`; takes precedence over '
            "`startingOffsets`"
        ),
    )
    starting_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        choice("error", "latest"),
        "error",
        description=(
            "a partition without such a record fails the query; `latest`: it starts at its end"
        ),
        needs=("startingTimestamp", "startingOffsetsByTimestamp"),
    )
    ending_offsets: int | Mapping[Partition, int] = option(
        "endingOffsets",
        ENDING_OFFSETS,
        LATEST,
        description=(
            'where to end (exclusive): `latest` or `{"topic": {"0": 50, "1": -1}}`; a stream fixes '
            "its ends when it first starts, ends there under every trigger, and reads no "
            "partition that is found later"
        ),
        may_change=False,
    )
    ending_timestamp_ms: int | None = option(
        "endingTimestamp",
        TIMESTAMP,
        None,
        description=(
            "end each partition before its first record whose timestamp is at or after this, in "
            "milliseconds since 1970, or at the latest where there is none; takes precedence over "
            "the next two; in a stream as `endingOffsets`"
        ),
        may_change=False,
    )
    ending_timestamps_ms: Mapping[Partition, int] | None = option(
        "endingOffsetsByTimestamp",
        TIMESTAMPS,
        None,
        description="the same per partition; takes precedence over `endingOffsets`",
        may_change=False,
    )
    max_offsets: int | None = option(
        "maxOffsetsPerTrigger",
        whole_number(1),
        None,
        description=(
            "at most about this many offsets a batch, in proportion to each partition's backlog"
        ),
        effect="stream",
    )
    min_offsets: int | None = option(
        "minOffsetsPerTrigger",
        whole_number(1),
        None,
        description=(
            "a batch waits until this many offsets are new; bounded runs (AvailableNow) and the "
            "first batch after a start do not wait"
        ),
        effect="stream",
    )
    max_delay_us: int = option(
        "maxTriggerDelay",
        TRIGGER_DELAY,
        900_000_000,
        description=(
            "the longest such wait, counted from the last batch with records (at first: from the "
            "start)"
        ),
        effect="stream",
        needs=("minOffsetsPerTrigger",),
    )
    max_tasks: int | None = option(
        "maxTasks",
        whole_number(1),
        None,
        description="at most this many tasks a batch of a stream",
        effect="stream",
    )
    min_partitions: int | None = option(
        "minPartitions",
        whole_number(1),
        None,
        description=(
            "cut the largest ranges until there are about this many tasks; refused in streams with "
            "a `cti` column. In batch reads with CTIs each part first reads what precedes it for "
            "its clock alone, so the rows are the same; a stream's progress counts no events then"
        ),
        excludes=("maxTasks",),
    )
    max_records: int | None = option(
        "maxRecordsPerPartition",
        whole_number(1),
        None,
        description=(
            "cut ranges until no task reads more offsets than this; otherwise as `minPartitions`"
        ),
        excludes=("maxTasks",),
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        boolean,
        True,
        description=(
            "fail if records that the checkpoint has yet to read are gone; `false`: warn and go on "
            "with what is left"
        ),
    )
    group_prefix: str = option(
        "groupIdPrefix",
        NAME,
        "timestream",
        description=(
            "the consumer group is this, a dash and the stream's id, unless `kafka.group.id` names "
            "one"
        ),
    )
    connect_timeout_ms: int = option(
        "kafkaConsumer.connectTimeoutMs",
        MILLISECONDS,
        30_000,
        description=(
            "the query fails, naming the addresses tried and what each answered, when no broker "
            "has ever answered for this long (a stream's task waits as long as for progress, since "
            "brokers have answered its driver); a refused login or certificate fails after about "
            "5 seconds"
        ),
    )
    poll_timeout_ms: int = option(
        "kafkaConsumer.pollTimeoutMs",
        MILLISECONDS,
        120_000,
        description="a task whose read makes no progress for this long fails",
    )
    retries: int = option(
        "fetchOffset.numRetries",
        whole_number(0),
        3,
        description=(
            "a request that Kafka calls retriable is repeated for a minute, as Kafka's Java client "
            "does, and this many intervals more"
        ),
    )
    retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs",
        whole_number(0),
        10,
        description="the first wait between two tries; waits grow to a second",
    )
