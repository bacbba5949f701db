"""The options of transport `kafka`: a frozen value, built by `read_kafka_options`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark_timestream.core.declarations import (
    BOOLEAN,
    TEXT,
    OptionSpec,
    choice,
    option,
    option_specs,
    pinned_settings,
)
from pyspark_timestream.core.instants import TIME_UNITS
from pyspark_timestream.core.policies import (
    DEFAULT_FUTURE_POLICY,
    DEFAULT_POLICY,
    FUTURE_POLICIES,
    KEEP_ALL,
    KINDS,
    POLICIES,
)
from pyspark_timestream.kafka.options.keys import select_record_settings
from pyspark_timestream.kafka.options.parsers import (
    ANY_NAME,
    CHANGE_FROM,
    CTI_DELAY,
    CTI_FREQUENCY,
    CTI_IMPORT,
    EDGE_FROM,
    ISO_INSTANT,
    MAX_FUTURE,
    POSITIVE_DURATION,
    TIME_FROM,
    TIME_SETTINGS,
    WRITER_FROM,
    WRITERS,
    Frequency,
    ImportSource,
    SettingsSource,
    TimeFrom,
)
from pyspark_timestream.kafka.options.reading import PAYLOAD_SETTINGS, PayloadOptions
from pyspark_timestream.kafka.options.where import WHERE, Where
from pyspark_timestream.rules.clocks import TimeRules
from pyspark_timestream.rules.window_fold import FOLD, WindowFold

PRESETS: Final = ("IncreasingStartTime", "StrictlyIncreasingStartTime", "UnorderedStartTime")
_GENERATED: Final = ("ctiFrequency", "advanceTime")
_OWN_CTI_SOURCES: Final = (*_GENERATED, "ctiHeader")
_RUNNING_CTI_SOURCES: Final = (*_OWN_CTI_SOURCES, "ctiImport")
ENDING_OPTIONS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
CTI_SOURCES: Final = (*_RUNNING_CTI_SOURCES, "finalCti")
"""A column `cti` needs one of these options (semantics 2.8)."""


@dataclass(frozen=True, slots=True)
class KafkaOptions(PayloadOptions):
    """All options of transport `kafka`; this class adds those of metadata, event times and CTIs.

    Attributes:
        topic_settings: option name -> text, for the options taken from the topics' description.
    """

    topic_settings: Mapping[str, str] = field(default_factory=dict)
    time_settings: SettingsSource | None = option(
        "timeSettings",
        TIME_SETTINGS,
        None,
        description=(
            "what the topics say of their own time: the path of a JSON file on the driver, or "
            "`topic:NAME`, a compacted topic. It is read when the query is built; the query's own "
            "options override it, name by name"
        ),
        excludes=("subscribePattern",),
    )
    include_headers: bool = option(
        "includeHeaders", BOOLEAN, False, description="adds the column `headers`"
    )
    where: Where | None = option(
        "where",
        WHERE,
        None,
        description=(
            "an SQL condition over the columns, such as `kind = 'bid' and price > 100`: rows of "
            "data for which it is not true do not reach Spark. Clocks, policies and counters see "
            "every record, and CTI rows pass. It needs the extra `where` on the driver"
        ),
        help=(
            "correct it, and write a column whose name is a word of SQL, such as from, in `...`; "
            "or leave it out, and filter in Spark"
        ),
    )
    metadata_prefix: str = option(
        "metadataPrefix",
        TEXT,
        "",
        description="goes before all metadata column names, for fields of the same names",
    )
    fold: WindowFold | None = option(
        "foldWindows",
        FOLD,
        None,
        description=(
            "set only by `aggregate_windows`: how tasks fold rows into partial rows of windows"
        ),
    )
    shape: str = option(
        "eventShape",
        choice(*KINDS),
        "point",
        description="`point`, `interval` or `edge`",
        is_pinned=True,
    )
    start_time: TimeFrom = option(
        "startTime",
        TIME_FROM,
        TimeFrom("timestamp"),
        description=(
            "where the event's time is: `timestamp` or `record:timestamp` (the record's), "
            "`header:NAME`, or a field of the value, as `field:PATH` or only `PATH`; "
            "`payload.ts_ms` is the field `ts_ms` of the object `payload`"
        ),
        is_pinned=True,
    )
    end_time: TimeFrom | None = option(
        "endTime",
        TIME_FROM,
        None,
        description="the same for the end of an interval or edge",
        is_pinned=True,
    )
    edge: TimeFrom | None = option(
        "edge",
        EDGE_FROM,
        None,
        description="the same for an edge's kind: `start` or `end`",
        is_pinned=True,
    )
    time_unit: str = option(
        "timeUnit",
        choice(*TIME_UNITS),
        "ms",
        description="the unit of times that are numbers: `s`, `ms`, `us`, `ns`",
        is_pinned=True,
    )
    frequency: Frequency | None = option(
        "ctiFrequency",
        CTI_FREQUENCY,
        None,
        description=(
            "a CTI after this many events (`10`), or this much application time (`5 seconds`)"
        ),
        is_pinned=True,
        allowed_change="value",
        excludes=("advanceTime",),
    )
    delay_us: int = option(
        "ctiDelay",
        CTI_DELAY,
        0,
        description=(
            "a generated CTI lies this far behind the event that triggers it; may be negative (`-1 "
            "tick`)"
        ),
        is_pinned=True,
        allowed_change="value",
        needs=_GENERATED,
    )
    final_cti: bool = option(
        "finalCti",
        BOOLEAN,
        False,
        description=(
            "a bounded run (AvailableNow, batch) ends with a CTI at +infinity, 9999-12-31T23:59:59Z"
        ),
    )
    advance_time: str | None = option(
        "advanceTime",
        choice(*PRESETS),
        None,
        description=(
            "a preset, each a CTI at every event: `IncreasingStartTime` (delay 0), "
            "`StrictlyIncreasingStartTime` (`-1 tick`), `UnorderedStartTime` (`ctiDelay` "
            "required); `finalCti` defaults to true. A checkpoint keeps the settings that it "
            "stands for"
        ),
    )
    cti_header: str | None = option(
        "ctiHeader",
        ANY_NAME,
        None,
        description=(
            "the record header that carries an in-band CTI, read as `startTime` reads text; with "
            "`NAME-writer` and `NAME-close`"
        ),
        is_pinned=True,
        allowed_change="beside",
    )
    writer_from: TimeFrom | None = option(
        "writerFrom",
        WRITER_FROM,
        None,
        description=(
            "where the name of a record's writer is: `header:NAME`, or a field of the value, as "
            "`field:PATH` or only `PATH`. Every writer's events then generate CTIs of its "
            "own, and a partition's CTI is the least of its live writers', so that a wrong clock "
            "moves only itself"
        ),
        is_pinned=True,
        needs=_GENERATED,
        excludes=("ctiHeader",),
    )
    writers: tuple[str, ...] | None = option(
        "writers",
        WRITERS,
        None,
        description=(
            "writers, separated by commas, whose marks, or with `writerFrom` events, are waited "
            "for from the start"
        ),
        is_pinned=True,
        allowed_change="value",
        needs=("ctiHeader", "writerFrom"),
    )
    writer_grace_us: int | None = option(
        "writerGrace",
        POSITIVE_DURATION,
        None,
        description=(
            "no CTI of its writers takes effect in a partition until its record timestamps have "
            "moved on by this since the first: so that writers that are not listed can join"
        ),
        is_pinned=True,
        allowed_change="value",
        needs=("ctiHeader", "writerFrom"),
    )
    writer_timeout_us: int | None = option(
        "writerTimeout",
        POSITIVE_DURATION,
        None,
        description=(
            "a writer that is silent for longer, in record timestamps, no longer holds the CTI of "
            "its partition back; none: it is waited for indefinitely"
        ),
        is_pinned=True,
        allowed_change="value",
        needs=("ctiHeader", "writerFrom", "ctiImport"),
    )
    time_window: bool = option(
        "timeWindow",
        BOOLEAN,
        False,
        description=(
            "adds `time_lower`, `time_upper`: the least mark of the live writers and the greatest "
            "noted"
        ),
        needs=("ctiHeader",),
    )
    max_future_us: int | None = option(
        "maxFuture",
        MAX_FUTURE,
        None,
        description=(
            "an event whose time is further than this after its record's timestamp is in the "
            "future: it is counted and warned of, flagged under `flag`, and makes no CTI. With at "
            "most `ctiDelay` no clock that is ahead makes an event late"
        ),
        is_pinned=True,
        allowed_change="value",
        needs=CTI_SOURCES,
    )
    future_policy: str = option(
        "futurePolicy",
        choice(*FUTURE_POLICIES),
        DEFAULT_FUTURE_POLICY,
        description=(
            "what happens to events in the future: `keep`, `drop`, or `fail`, which ends the query"
        ),
        is_pinned=True,
        allowed_change="value",
        needs=("maxFuture",),
    )
    policy: str = option(
        "violationPolicy",
        choice(*POLICIES),
        DEFAULT_POLICY,
        description=(
            "what happens to events that break a CTI's promise: "
            + ", ".join(f"`{name}`" for name in POLICIES)
        ),
        is_pinned=True,
        allowed_change="value",
        needs=CTI_SOURCES,
    )
    idle_timeout_us: int | None = option(
        "idleTimeout",
        POSITIVE_DURATION,
        None,
        description=(
            "a partition that has been at the end of its log (the last stable offset, no open "
            "transaction) for this long by the wall clock no longer holds the stream's CTI back; "
            "what arrives later and below that CTI meets the policy. Which partitions were idle is "
            "recorded in the checkpoint and replays from it, but is not the same in a new run. "
            "Bounded runs (AvailableNow) wait for no partition; for a job that comes back, the "
            "time counts from the run that first saw the partition caught up"
        ),
        effect="stream",
        needs=CTI_SOURCES,
    )
    idle_advance_us: int | None = option(
        "idleAdvance",
        POSITIVE_DURATION,
        None,
        description=(
            "while all partitions are idle by `idleTimeout`, the stream's CTI follows the wall "
            "clock this far behind, in steps of a tenth of it, at least a second; what arrives "
            "later and below that CTI meets the policy. The steps are recorded in the checkpoint "
            "and replay from it"
        ),
        effect="stream",
        needs=("idleTimeout",),
    )
    max_skew_us: int | None = option(
        "maxSkew",
        POSITIVE_DURATION,
        None,
        description=(
            "no partition is read further than the slowest one's event time plus this, so that "
            "the state of windows, joins and deduplication stays small while a backlog is read; "
            "rows, CTIs and counters of partitions stay the same. Partitions at the end of their "
            "logs hold nobody. Exact where `startTime` is the record's timestamp, by the broker's "
            "time index; otherwise by the pace of each partition's last batch"
        ),
        effect="stream",
        needs=_RUNNING_CTI_SOURCES,
        excludes=("minPartitions", "maxRecordsPerPartition"),
    )
    cti_import: ImportSource | None = option(
        "ctiImport",
        CTI_IMPORT,
        None,
        description=(
            "a topic whose CTIs are imported, in addition to the stream's own or instead: its name "
            "(in-band CTIs under `ctiHeader`, else under header `cti`), or JSON with `topic` and "
            "`header` or `frequency`, `delay` and `startTime` (generated ones). The driver reads "
            "it from its earliest offset. Its CTI, the minimum over its partitions, takes effect "
            "on a partition once that has been read up to the end it had when the CTI was read; a "
            "final CTI is not imported. What open transactions have written by then counts as "
            "before that end, so that no row of theirs is late. When it took effect is recorded in "
            "the checkpoint and replays from it, but is not the same in a new run. `maxFuture`, "
            "`timeUnit` and `writerTimeout` apply to it too, and `idleTimeout` to its quiet or "
            "empty partitions"
        ),
        effect="stream",
        is_pinned=True,
        allowed_change="beside",
    )

    change_from: str | int | None = option(
        "changeFrom",
        CHANGE_FROM,
        None,
        description=(
            "lets a restart on the same checkpoint change the clock: `now` is the end of the last "
            "batch, an instant the first batch that starts when the stream's CTI has reached it. "
            "From there on the new values of `ctiFrequency`, `ctiDelay`, `violationPolicy`, "
            "`maxFuture`, `futurePolicy`, `writers`, `writerGrace` and `writerTimeout` hold. With "
            "`now`, topics may be added to `subscribe`, and a source of CTIs added or left out "
            "beside another. The checkpoint keeps old and new values, and no CTI goes back. "
            "Without a difference it does nothing"
        ),
        effect="stream",
    )
    starting_cti_us: int | None = option(
        "startingCti",
        ISO_INSTANT,
        None,
        description=(
            "show only rows at or after this instant, and no CTI before it: what the starting "
            "options let in before is read only for the clocks, so CTIs and violations equal those "
            "of the full run"
        ),
        is_pinned=True,
        needs=_OWN_CTI_SOURCES,
        excludes=("ctiImport",),
    )
    ending_cti_us: int | None = option(
        "endingCti",
        ISO_INSTANT,
        None,
        description=(
            "show only rows before this instant; each partition ends where its CTI reaches it, and "
            "the stream with this instant as its last CTI; `finalCti` then defaults to false, also "
            "with `advanceTime`"
        ),
        is_pinned=True,
        needs=_OWN_CTI_SOURCES,
        excludes=("ctiImport", "idleAdvance", *ENDING_OPTIONS),
    )

    @property
    def has_ctis(self) -> bool:
        """Whether the stream has a column `cti`."""
        return self.final_cti or self.is_ordered

    @property
    def is_ordered(self) -> bool:
        """Whether the fate of a record depends on those before it in its partition."""
        sources = (self.frequency, self.cti_header, self.cti_import)
        return any(source is not None for source in sources)

    @property
    def is_timed_by_record(self) -> bool:
        """Whether the time of an event is its record's timestamp."""
        return self.start_time.kind == "timestamp" and self.shape != "edge"

    @property
    def cuts_partitions(self) -> bool:
        """Whether several tasks may read one partition."""
        return self.min_partitions is not None or self.max_records is not None

    @property
    def rules(self) -> TimeRules:
        """The rules of a partition's state machine."""
        frequency = self.frequency or Frequency()
        return TimeRules(
            shape=self.shape,
            # A policy compares events with CTIs: a stream without CTIs keeps every event.
            policy=self.policy if self.has_ctis else KEEP_ALL,
            every_events=frequency.events,
            every_us=frequency.interval_us,
            delay_us=self.delay_us,
            max_future_us=self.max_future_us,
            writers=self.writers or (),
            writer_timeout_us=self.writer_timeout_us,
            time_window=self.time_window,
            future_policy=self.future_policy,
            writer_grace_us=self.writer_grace_us,
            from_us=self.starting_cti_us,
            until_us=self.ending_cti_us,
        )

    def as_of(self, settings: Mapping[str, str] | None) -> "KafkaOptions":
        """Return the options of a batch with `settings` in its offset (8.10); None: as they are."""
        if settings is None:
            return self
        values = {
            name: spec.default
            if (text := settings.get(spec.name)) is None
            else spec.parser.parse(text)
            for name, spec in option_specs(KafkaOptions).items()
            if spec.allowed_change in ("value", "beside")
        }
        return replace(self, **values)

    def settings(self) -> dict[str, str]:
        """Return the options that define time and records, as text; a checkpoint keeps them."""
        texts = {
            name: text
            for name, text in pinned_settings(self).items()
            if name not in PAYLOAD_SETTINGS
        }
        if self.frequency is None:
            del texts["ctiDelay"]
        if FUTURE_POLICIES[self.future_policy].action is None:
            # It changes no row: the checkpoint compares 'maxFuture' only.
            del texts["futurePolicy"]
        if self.ends_by_default:
            del texts["endingOffsets"]
        return {**texts, **self.payload_settings(), **select_record_settings(self.client)}


SPECS: Final[Mapping[str, OptionSpec]] = {
    spec.name: spec for spec in option_specs(KafkaOptions).values()
}
"""The name of each option -> its declaration."""
