"""Declares the options that select records, and those that define the formats of payloads.

`ReadingOptions` selects records, `PayloadOptions` adds the formats, and `KafkaOptions` extends it.
Values and keys have the same options under different names: `PayloadRules` holds one such set, so
that the rules for both are written once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pyspark_timestream.core.declarations import (
    BOOLEAN,
    Parser,
    choice,
    option,
    option_specs,
    whole_number,
)
from pyspark_timestream.kafka.options.parsers import (
    ANY_NAME,
    ASSIGN,
    ENDING_OFFSETS,
    LATEST,
    MILLISECONDS,
    STARTING_OFFSETS,
    SUBSCRIBE,
    TIMESTAMP,
    TIMESTAMPS,
    TOPIC_PATTERN,
    TRIGGER_DELAY,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.kafka.schemas import (
    ReaderSchema,
    SchemaSource,
    fingerprint_schema,
    is_schema_text,
)


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Topics, starts and ends, sizes of batches and tasks, groups, timeouts and retries.

    Attributes:
        client: librdkafka's configuration, `kafka.` stripped; may hold secrets.
        starts_by_default: True if no option sets where a new query starts.
        ends_by_default: True if no option sets the offset where a partition ends.
    """

    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    starts_by_default: bool = False
    ends_by_default: bool = True
    subscribe: tuple[str, ...] | None = option(
        "subscribe",
        SUBSCRIBE,
        None,
        description="topics, separated by commas; this, `subscribePattern` or `assign` is required",
        help="correct it",
        is_pinned=True,
        allowed_change="more",
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
        help="correct it",
        is_pinned=True,
        excludes=("assign",),
    )
    assign: tuple[Partition, ...] | None = option(
        "assign",
        ASSIGN,
        None,
        description='exact partitions: `{"topic": [0, 1]}`',
        help="correct it",
        is_pinned=True,
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
            "milliseconds since 1970; takes precedence over `startingOffsetsByTimestamp` and "
            "`startingOffsets`"
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
        is_pinned=True,
    )
    ending_timestamp_ms: int | None = option(
        "endingTimestamp",
        TIMESTAMP,
        None,
        description=(
            "end each partition before its first record whose timestamp is at or after this, in "
            "milliseconds since 1970, or at the latest where there is none; takes precedence over "
            "`endingOffsetsByTimestamp` and `endingOffsets`; in a stream as the latter"
        ),
        is_pinned=True,
    )
    ending_timestamps_ms: Mapping[Partition, int] | None = option(
        "endingOffsetsByTimestamp",
        TIMESTAMPS,
        None,
        description="the same per partition; takes precedence over `endingOffsets`",
        is_pinned=True,
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
    max_driver_records: int = option(
        "maxDriverRecords",
        whole_number(0),
        10_000,
        description=(
            "a stream's batch of at most this many records, in one task, is read on the driver, "
            "in Spark's Python process of the source, so that its task starts no Python; 0: tasks "
            "read all"
        ),
        effect="stream",
    )
    min_partitions: int | None = option(
        "minPartitions",
        whole_number(1),
        None,
        description=(
            "cut the largest ranges until there are about this many tasks; refused in streams with "
            "a `cti` column. In batch reads with CTIs each task first reads what precedes it for "
            "its clock only, so the rows are the same; a stream's progress counts no events then"
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
        BOOLEAN,
        True,
        description=(
            "fail if records that the checkpoint has yet to read are gone; `false`: warn and go on "
            "with what is left"
        ),
    )
    group_prefix: str = option(
        "groupIdPrefix",
        ANY_NAME,
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


Side = Literal["value", "key"]

PayloadAttribute = Literal["format", "framing", "schema", "reader_schema", "message", "subject"]
"""An attribute of `PayloadRules` that an option of the side sets."""


class PayloadFormat(NamedTuple):
    """A format of payloads: its name in messages, and the attributes that it uses."""

    name: str
    uses: tuple[PayloadAttribute, ...]


FORMATS: Final = {
    "binary": PayloadFormat("bytes", ()),
    "json": PayloadFormat("JSON", ("framing",)),
    "avro": PayloadFormat("Avro", ("framing", "schema", "reader_schema", "message", "subject")),
    "protobuf": PayloadFormat("Protobuf", ("framing", "schema", "message", "subject")),
}
"""The options' text for each format -> what is known of it."""

SCHEMA_FORMATS: Final = tuple(name for name, form in FORMATS.items() if "schema" in form.uses)
"""Formats that cannot be read without a schema."""

FRAMINGS: Final = ("confluent", "header", "none")
LATEST_SCHEMA: Final = "latest"


def _parse_schema(value: str) -> str:
    if not value.strip():
        raise ValueError("it is empty")
    return value


_SCHEMA: Final = Parser(
    _parse_schema,
    "for 'avro' a schema as JSON text or the path of such a file; for 'protobuf' the path of a "
    "file that protoc --include_imports --descriptor_set_out wrote",
)
_READER_SCHEMA: Final = Parser(
    _parse_schema, "an Avro schema as JSON text, the path of such a file, or 'latest'"
)


class PayloadRules(NamedTuple):
    """How values are read, or keys.

    Attributes:
        side: `value` or `key`.
        format: `binary`, `json`, `avro` or `protobuf`.
        framing: `confluent`, `header` or `none`.
        has_registry: True if the registry resolves the ids in the framing.
        schema: the writer's schema if no registry has it: JSON for Avro, a descriptor set in base64
            for Protobuf. Before `load_schemas` it is the option's text, which may be a path.
        reader_schema: the reader's Avro schema as JSON; None means `schema`, or the subject's
            latest one.
        message: the full name of the Protobuf message, or of the one Avro record to read.
        subject: the registry's subject that has the reader's schema.
    """

    side: Side
    format: str
    framing: str
    has_registry: bool
    schema: str | None
    reader_schema: str | None
    message: str | None
    subject: str | None

    @property
    def needs_latest(self) -> bool:
        """Whether the reader's schema is the latest one of `subject` when the query starts."""
        is_read = self.has_registry and self.format in SCHEMA_FORMATS
        return is_read and self.reader_schema is None

    def option_name(self, attribute: PayloadAttribute) -> str:
        """Return the option that sets an attribute, such as `readerSchema` or `keyReaderSchema`."""
        words = attribute.title().replace("_", "")
        if (self.side, attribute) == ("value", "reader_schema"):
            return words[0].lower() + words[1:]
        return self.side + words


@dataclass(frozen=True, slots=True)
class PayloadOptions(ReadingOptions):
    """The options that say how bytes become fields.

    Attributes:
        registry: the registry client's configuration, `schemaRegistry.` stripped; may hold secrets.
        schema_texts: option name -> the schema that `load_schemas` found for it.
        reader_schemas: `value` or `key` -> the reader's schema, once the query has fixed it.
        source: returns the schemas that payloads were written with; None without a registry.
    """

    registry: Mapping[str, str] = field(default_factory=dict, repr=False)
    schema_texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    reader_schemas: Mapping[str, ReaderSchema] = field(default_factory=dict, repr=False)
    source: SchemaSource | None = field(default=None, repr=False)
    value_format: str = option(
        "valueFormat",
        choice(*FORMATS),
        "binary",
        description=(
            "`json`, `avro`, `protobuf`: schema columns that are not metadata are fields of the "
            "value; the name `payload.after.id` leads into objects, and a name in backquotes is "
            "literal. On a checkpoint `binary` may become `json`, and the other way round"
        ),
        is_pinned=True,
    )
    value_framing: str | None = option(
        "valueFraming",
        choice(*FRAMINGS),
        None,
        description=(
            "where the id of a value's schema is: in front of it, as Confluent's serializers write "
            "it (`confluent`; before Protobuf the message's index too), in the record's header "
            "`__value_schema_id` (`header`), or nowhere (`none`); by default `confluent` with "
            "`schemaRegistry.url`, else `none`"
        ),
        is_pinned=True,
    )
    value_schema: str | None = option(
        "valueSchema",
        _SCHEMA,
        None,
        description=(
            "the values' schema where no registry has it, the writer's and the reader's: Avro's "
            "JSON or the path of a file with it, for Protobuf the path of a descriptor set; a path "
            "is read on the driver when the query starts. A checkpoint keeps a fingerprint"
        ),
        is_pinned=True,
    )
    value_message: str | None = option(
        "valueMessage",
        ANY_NAME,
        None,
        description=(
            "the full name of the values' Protobuf message, such as `shop.Order`, required there "
            "with `valueSchema`; or of the one Avro record to read, also out of a union. A value "
            "of another name is malformed, with the reason `name`"
        ),
        is_pinned=True,
    )
    reader_schema: str | None = option(
        "readerSchema",
        _READER_SCHEMA,
        None,
        description=(
            "the Avro schema that values are converted to, by Avro's rules: JSON text, a path, or "
            "`latest`, the default with a registry: the subject's latest one when the query first "
            "starts. A checkpoint keeps a fingerprint"
        ),
        is_pinned=True,
    )
    value_subject: str | None = option(
        "valueSubject",
        ANY_NAME,
        None,
        description=(
            "the registry's subject with the reader's schema of the values; by default the topic's "
            "name and `-value`, which needs exactly one topic"
        ),
    )
    key_format: str = option(
        "keyFormat",
        choice(*FORMATS),
        "binary",
        description=(
            "as `valueFormat`, for the keys: schema columns that begin with `keyPrefix` are their "
            "fields"
        ),
        is_pinned=True,
    )
    key_prefix: str = option(
        "keyPrefix",
        ANY_NAME,
        "key.",
        description=(
            "what the names of columns begin with that are fields of the key, where `keyFormat` is "
            "not `binary`"
        ),
    )
    key_framing: str | None = option(
        "keyFraming",
        choice(*FRAMINGS),
        None,
        description="as `valueFraming`, for the keys; the header is `__key_schema_id`",
        is_pinned=True,
    )
    key_schema: str | None = option(
        "keySchema", _SCHEMA, None, description="as `valueSchema`, for the keys", is_pinned=True
    )
    key_message: str | None = option(
        "keyMessage", ANY_NAME, None, description="as `valueMessage`, for the keys", is_pinned=True
    )
    key_reader_schema: str | None = option(
        "keyReaderSchema",
        _READER_SCHEMA,
        None,
        description="as `readerSchema`, for the keys",
        is_pinned=True,
    )
    key_subject: str | None = option(
        "keySubject",
        ANY_NAME,
        None,
        description="as `valueSubject`, for the keys; by default the topic's name and `-key`",
    )
    parse_mode: str = option(
        "parseMode",
        choice("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
        "PERMISSIVE",
        description=(
            "a malformed value or key gives nulls; `DROPMALFORMED`: no row; `FAILFAST`: the query "
            "fails"
        ),
    )
    corrupt_column: str = option(
        "columnNameOfCorruptRecord",
        ANY_NAME,
        "_corrupt_record",
        description=(
            "a column of this name in the schema gets a malformed value: a string for `json`, else "
            "binary; with `_reason` after it (a string) why it is malformed, with `_schema_id` (an "
            "int) the id of its schema"
        ),
    )

    @property
    def has_schemas(self) -> bool:
        """Whether values or keys are read by schemas, or their schemas are looked up."""
        formats = {self.value_format, self.key_format}
        return bool(self.registry) or not formats.isdisjoint(SCHEMA_FORMATS)

    @property
    def value_rules(self) -> PayloadRules:
        """The rules for reading values."""
        return self._complete(
            PayloadRules(
                side="value",
                format=self.value_format,
                framing=self.value_framing or "",
                has_registry=bool(self.registry),
                schema=self.value_schema,
                reader_schema=self.reader_schema,
                message=self.value_message,
                subject=self.value_subject,
            )
        )

    @property
    def key_rules(self) -> PayloadRules:
        """The rules for reading keys."""
        return self._complete(
            PayloadRules(
                side="key",
                format=self.key_format,
                framing=self.key_framing or "",
                has_registry=bool(self.registry),
                schema=self.key_schema,
                reader_schema=self.key_reader_schema,
                message=self.key_message,
                subject=self.key_subject,
            )
        )

    @property
    def payload_rules(self) -> tuple[PayloadRules, PayloadRules]:
        """The rules for reading values, and those for keys."""
        return self.value_rules, self.key_rules

    def _complete(self, rules: PayloadRules) -> PayloadRules:
        """Complete what the options of a side say: loaded schemas, framing and default subject."""
        default_framing = "confluent" if rules.has_registry and rules.format != "binary" else "none"
        framing, reader_schema = rules.framing or default_framing, rules.reader_schema
        if reader_schema is not None and reader_schema.strip().lower() == LATEST_SCHEMA:
            reader_schema = None
        rules = rules._replace(
            framing=framing,
            has_registry=rules.has_registry and framing != "none",
            schema=self.schema_texts.get(rules.option_name("schema"), rules.schema),
            reader_schema=self.schema_texts.get(rules.option_name("reader_schema"), reader_schema),
        )
        if rules.subject is None and rules.needs_latest and (topic := self._only_topic()):
            rules = rules._replace(subject=f"{topic}-{rules.side}")
        return rules

    def _only_topic(self) -> str | None:
        """Return the one topic that is read; None if there may be several."""
        topics = set(self.subscribe or ()) | {partition.topic for partition in self.assign or ()}
        return topics.pop() if len(topics) == 1 else None

    def payload_settings(self) -> dict[str, str]:
        """Return the payload options that a checkpoint keeps, as option name -> text.

        Values or keys with neither schema nor framing leave nothing: `binary` may become `json`.

        Raises:
            ValueError: a schema is still a path.
        """
        settings: dict[str, str] = {}
        for rules in self.payload_rules:
            has_schema = rules.format in SCHEMA_FORMATS
            texts: dict[PayloadAttribute, str | None] = {
                "format": rules.format if has_schema else None,
                "framing": rules.framing if has_schema or rules.framing != "none" else None,
                "message": rules.message,
                "schema": self._fingerprint(rules.schema, rules.option_name("schema")),
                "reader_schema": self._fingerprint(
                    rules.reader_schema, rules.option_name("reader_schema")
                ),
            }
            settings |= {rules.option_name(name): text for name, text in texts.items() if text}
        return settings

    def _fingerprint(self, text: str | None, name: str) -> str | None:
        if text is None:
            return None
        if name not in self.schema_texts and not is_schema_text(text):
            raise ValueError(f"the schema of '{name}' is still a path")
        return fingerprint_schema(text)


PAYLOAD_SETTINGS: Final = frozenset(
    spec.name for spec in option_specs(PayloadOptions).values() if spec.is_pinned
) - frozenset(spec.name for spec in option_specs(ReadingOptions).values())
"""The options that `payload_settings` returns, as a checkpoint keeps them."""
