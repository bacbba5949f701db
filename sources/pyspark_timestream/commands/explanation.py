"""Explains streams as text and for notebooks: their state, what holds CTIs back, the fixes.

`explain_checkpoint` gathers an `Explanation`: the facts of each stream (`explain_stream`), and the
state that waits for CTIs. `format_stream` shows it as text; `draw_stream` adds a picture, with a
row per partition over an axis of application time: a bar up to its CTI, a circle at its newest
event, and a dashed line at the stream's CTI, as on the pages of `watch` (`report`). Partitions
that a diagnosis names are coloured *and* marked in words.

A query's progress has the size of each operator's state. A Spark session can read the state itself
from the checkpoint. Spark marks the column that it compares with the watermark, so a window waits
for a CTI at its end, and a row for a CTI after its time. If Spark keeps that time elsewhere, as for
joins, we know only the number of rows.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.core.checkpoint import WATERMARK_KEY, resolve_directory
from pyspark_timestream.core.instants import SECOND_US, format_duration, format_instant
from pyspark_timestream.kafka.diagnosis.causes import diagnose
from pyspark_timestream.kafka.diagnosis.diagnoses import HEALTHY_KINDS, Diagnosis, list_counts
from pyspark_timestream.kafka.diagnosis.history import (
    History,
    build_histories,
    count_remaining,
    find_unchanged_since,
    read_offset_log,
)
from pyspark_timestream.kafka.diagnosis.mistakes import MalformedReason, count_malformed_reasons
from pyspark_timestream.kafka.offsets.changes import ClockChange
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.report import (
    FAINT,
    FONT,
    SIZE,
    TimeScale,
    align,
    draw_lane,
    draw_time_axis,
    format_count,
    format_time,
    html_table,
    join_sections,
    paragraph,
    shorten_duration,
    svg,
    utc_ticks,
)
from pyspark_timestream.rules.clocks import COUNTERS, PartitionClock, max_known

MAX_TIMES: Final = 10
"""This many CTIs are listed for each operator, earliest first."""


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator.

    Attributes:
        operator: its number, and Spark's name for it.
        rows: the number of rows in its state; for an aggregation, of groups.
        memory: the bytes that it uses; None: unknown.
        due: the earliest times that the rows wait for, with the number of rows, in order; empty:
            unknown.
        is_window: True: a CTI at such a time releases the rows; False: only a later one does.
        times: the number of different times that its rows wait for; 0: unknown.
    """

    operator: str
    rows: int
    memory: int | None = None
    due: tuple[tuple[int, int], ...] = ()
    is_window: bool = False
    times: int = 0


def read_operators(progress: Mapping[str, Any]) -> tuple[OperatorState, ...]:
    """Return the state of a query's operators, from its progress as parsed JSON."""
    return tuple(
        OperatorState(
            f"{number} {operator.get('operatorName', '')}".strip(),
            int(operator.get("numRowsTotal", 0)),
            int(operator.get("memoryUsedBytes", 0)),
        )
        for number, operator in enumerate(progress.get("stateOperators") or ())
    )


def describe_state(operators: Sequence[OperatorState]) -> Iterator[str]:
    """Yield the lines about the state of operators.

    State with unknown times may wait for no CTI at all, as without `advance_time`.
    """
    for operator in operators:
        size = "1 row" if operator.rows == 1 else f"{operator.rows} rows"
        memory = "" if operator.memory is None else f", {operator.memory} bytes"
        yield f"State of operator {operator.operator}: {size}{memory}"
        for time_us, rows in operator.due[:MAX_TIMES]:
            when = "at" if operator.is_window else "after"
            yield f"   {_count_rows(rows)} for a CTI {when} {format_instant(time_us)}"
        more = operator.rows - sum(rows for _, rows in operator.due[:MAX_TIMES])
        if operator.due and more > 0:
            yield f"   {_count_rows(more)} for later ones"


def describe_operator(state: OperatorState) -> str:
    """Describe the state of an operator in a line: its rows, open windows, and the next release."""
    text = f"{state.operator}: {format_count(state.rows, 'row')}"
    if not state.due:
        return text
    first_us, rows = state.due[0]
    times = state.times or len(state.due)
    if state.is_window:
        text += f" in {format_count(times, 'open window')}"
        return f"{text}; a CTI at {format_instant(first_us)} releases {format_count(rows, 'row')}"
    after = f"a CTI after {format_instant(first_us)} releases {format_count(rows, 'row')}"
    return f"{text} of {format_count(times, 'time')}; {after}"


def _count_rows(rows: int) -> str:
    return "1 row waits" if rows == 1 else f"{rows} rows wait"


def read_state_store(spark: Any, location: str) -> tuple[OperatorState, ...]:
    """Read the state in the checkpoint at `location` after its last finished batch.

    This runs two Spark jobs per operator, and leaves out operators with a state that Spark hides.
    """
    stores: dict[tuple[int, str], list[str]] = {}
    for row in spark.read.format("state-metadata").load(location).collect():
        stores.setdefault((row.operatorId, row.operatorName), []).append(row.stateStoreName)
    entries = []
    for (number, name), names in sorted(stores.items()):
        # A join has four stores, and some of them hold a row of one side twice.
        if names == ["default"]:
            try:
                reader = spark.read.format("statestore").option("operatorId", number)
                entries.append(_read_store(reader.load(location), f"{number} {name}"))
            except Exception as error:
                if not _is_refused(error):
                    raise
    return tuple(entries)


def _read_store(rows: Any, operator: str) -> OperatorState:
    total = rows.count()
    time = find_due_time(rows.schema.jsonValue())
    if time is None:
        return OperatorState(operator, total)
    column, is_window = time
    times = rows.selectExpr(f"unix_micros({column}) AS due").where("due IS NOT NULL")
    earliest = times.groupBy("due").count().orderBy("due").limit(MAX_TIMES).collect()
    due = tuple((int(row["due"]), int(row["count"])) for row in earliest)
    return OperatorState(operator, total, None, due, is_window)


def find_due_time(schema: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Return the time that a state's rows wait for: an SQL expression, and if it ends a window.

    None if the key, in the schema that `statestore` reads, has no time that Spark compares with the
    watermark.
    """
    (key,) = [field["type"] for field in schema["fields"] if field["name"] == "key"] or [{}]
    location = locate_due_time(key)
    if location is None:
        return None
    name = key["fields"][location[1]]["name"].replace("`", "``")
    is_window = len(location) > 2
    return f"key.`{name}`{'.`end`' if is_window else ''}", is_window


def locate_due_time(key: Any) -> tuple[int, ...] | None:
    """Return where a key has the time that its row waits for; None if it has none.

    The result is the number of the key's fields and the index of the time among them; for the end
    of a window also the number of the window's fields and the index of its end.
    """
    fields = key.get("fields", ()) if isinstance(key, Mapping) else ()
    for index, field in enumerate(fields):
        # Only `advance_time` marks a column without a delay.
        if field.get("metadata", {}).get(WATERMARK_KEY) != 0:
            continue
        if field["type"] == "timestamp":
            return len(fields), index
        if isinstance(field["type"], Mapping):
            names = [inner["name"] for inner in field["type"]["fields"]]
            if "end" in names:
                return len(fields), index, len(names), names.index("end")
    return None


def _is_refused(error: Exception) -> bool:
    """Return whether Spark does not show this state, as for `transformWithState`."""
    get_condition = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    condition = get_condition() if get_condition else None
    return str(condition or "").startswith(("STDS_", "UNSUPPORTED_FEATURE.STATE_STORE"))


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """One writer of a partition.

    Attributes:
        name: its name; empty: the partition's marks without a writer.
        mark_us: its greatest mark; None: the partition waits for its first.
        is_cause: a diagnosis names it.
    """

    name: str
    mark_us: int | None
    is_cause: bool


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition before the last batch.

    Attributes:
        partition: the partition.
        offset: the next record to read.
        lag: the number of offsets from there to the end of the log; None: unknown.
        clock: its clock, with the counters.
        idle: True if it no longer counts, by `idleTimeout`.
        writers: the writers that are live or waited for.
        is_cause: a diagnosis names it, for more than a few of its events.
        behind_us: its distance behind the partition with the greatest CTI; None without a CTI.
    """

    partition: Partition
    offset: int
    lag: int | None
    clock: PartitionClock
    idle: bool
    writers: tuple[WriterFacts, ...]
    is_cause: bool
    behind_us: int | None = None

    @property
    def cti_us(self) -> int | None:
        """The CTI in force; None before the first."""
        return self.clock.cti_us

    @property
    def last_us(self) -> int | None:
        """The time of the last well-formed event; None before the first."""
        return self.clock.last_us

    @property
    def name(self) -> str:
        """The topic and number."""
        return f"{self.partition.topic} {self.partition.number}"


@dataclass(frozen=True, slots=True)
class StreamExplanation:
    """One stream: its state, when that began, and the causes.

    Attributes:
        topics: its topics, in order.
        batch: the number of the stream's last batch.
        planned_us: the wall clock when that was planned; everything is as of then.
        cti_us: the stream's CTI then.
        since_us: since when the CTI has that value, within the history; None: unknown.
        diagnoses: what is wrong, most important first; never empty.
        partitions: the facts: causes in the order of the diagnoses, then the others in order.
        malformed: the malformed values and keys by reason, the most frequent first.
        topic_settings: option `timeSettings`, and the settings that the stream takes from the
            topic; None: it has no such option, or no progress shows it.
        changes: the changes of options while it ran, in order.
        waiting_change: a change that waits for its instant; None without one.
    """

    topics: tuple[str, ...]
    batch: int
    planned_us: int
    cti_us: int | None
    since_us: int | None
    diagnoses: tuple[Diagnosis, ...]
    partitions: tuple[PartitionFacts, ...]
    malformed: tuple[MalformedReason, ...] = ()
    topic_settings: tuple[str, Mapping[str, str]] | None = None
    changes: tuple[ClockChange, ...] = ()
    waiting_change: str | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether something may have to be mended."""
        return any(diagnosis.kind not in HEALTHY_KINDS for diagnosis in self.diagnoses)


def explain_stream(
    history: History, failed: bool = False, outside: Sequence[Diagnosis] = ()
) -> StreamExplanation:
    """Report on `history`; see `diagnose` for the arguments."""
    last_batch, offset = history[-1], history[-1].offset
    diagnoses = diagnose(history, failed=failed, outside=outside)
    ranks: dict[Partition, int] = {}
    for rank, diagnosis in enumerate(diagnoses):
        for partition in diagnosis.partitions - diagnosis.healthy:
            ranks.setdefault(partition, rank)
    named_writers = {pair for diagnosis in diagnoses for pair in diagnosis.writers}
    facts = _list_facts(history, ranks.keys(), named_writers)
    return StreamExplanation(
        topics=tuple(sorted({partition.topic for partition in offset.partitions})),
        batch=offset.number,
        planned_us=last_batch.planned_us,
        cti_us=offset.cti_us,
        since_us=find_unchanged_since(history, lambda batch: batch.offset.cti_us == offset.cti_us),
        diagnoses=diagnoses,
        partitions=tuple(sorted(facts, key=lambda fact: ranks.get(fact.partition, len(ranks)))),
        malformed=count_malformed_reasons(last_batch),
        topic_settings=next(
            (batch.topic_settings for batch in reversed(history) if batch.topic_settings), None
        ),
        changes=offset.changes,
        waiting_change=offset.unpinned.get("changeFrom"),
    )


def _list_facts(
    history: History, causes: Set[Partition], named_writers: Set[tuple[Partition, str]]
) -> Iterator[PartitionFacts]:
    """Yield the facts of each partition; diagnoses name the `causes` and the writers."""
    last_batch, unread = history[-1], count_remaining(history)
    ahead_us = max_known(*(clock.cti_us for clock in last_batch.clocks.values()))
    for partition, partition_offset in sorted(last_batch.offset.partitions.items()):
        clock, size = partition_offset.clock, partition_offset.size
        behind_us = None if ahead_us is None or clock.cti_us is None else ahead_us - clock.cti_us
        yield PartitionFacts(
            partition=partition,
            offset=partition_offset.start_inclusive,
            lag=size + unread[partition] if partition in unread else None,
            clock=clock,
            idle=partition_offset.idle,
            writers=tuple(
                WriterFacts(name, writer.mark_us, (partition, name) in named_writers)
                for name, writer in clock.writers
            ),
            is_cause=partition in causes,
            behind_us=behind_us,
        )


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The state of the streams of a query, what holds their CTIs back, and the fixes.

    Attributes:
        subject: the explained query or checkpoint, in words.
        streams: one explanation per Kafka stream of this package, in the order of the sources.
        notes: further remarks, one sentence each.
        state: the state that waits for later CTIs, by operator.
        details: True: the text has all diagnoses in full; False: the first in full, and a line for
            each of four others.
    """

    subject: str
    streams: tuple[StreamExplanation, ...]
    notes: tuple[str, ...] = ()
    state: tuple[OperatorState, ...] = ()
    details: bool = False

    def __str__(self) -> str:
        head = "\n".join((self.subject, *(f"Note: {note}." for note in self.notes)))
        state = join_sections([list(describe_state(self.state))])
        streams = (format_stream(stream, self.details) for stream in self.streams)
        return "\n\n".join((head, *streams, *([state] if state else [])))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        notes = [[f"Note: {note}."] for note in self.notes]
        state = [[line] for line in describe_state(self.state)]
        return (
            f"<div>{paragraph([], self.subject)}{''.join(map(paragraph, notes))}"
            f"{''.join(map(_render_stream, self.streams))}{''.join(map(paragraph, state))}</div>"
        )


def explain_checkpoint(location: str, spark: Any = None, details: bool = False) -> Explanation:
    """Explain the query that left the checkpoint at `location`.

    Args:
        location: a local path or `file:` URI.
        spark: the session that reads the state that waits for later CTIs; None: it is not read.
        details: show all diagnoses in full; else the first, and one line each for four others.

    Raises:
        CheckpointUnreadable: there is no checkpoint, or no batch in it can be read.
        CheckpointMismatch: its offsets have another format version.
    """
    root = resolve_directory(location)
    batches, notes = read_offset_log(root)
    newest = max(batches)
    if not (root / "commits" / str(newest)).is_file():
        notes.append(f"batch {newest} was planned and not finished: the query failed or was killed")
    histories = build_histories(batches.values())
    for history in histories.values():
        if group := history[-1].offset.unpinned.get("group"):
            notes.append(
                "a checkpoint does not know what has come since: `kafka-consumer-groups.sh "
                f"--describe --group {group}` shows the lag"
            )
    if not histories:
        notes.append("none of its sources is a Kafka stream of format 'timestream'")
    has_state = spark is not None and (root / "state").is_dir()
    state = read_state_store(spark, str(root.absolute())) if has_state else ()
    streams = tuple(map(explain_stream, histories.values()))
    return Explanation(f"Checkpoint {root}", streams, tuple(notes), state, details)


# -- text ------------------------------------------------------------------------------------------

MAX_ROWS: Final = 20
"""A table shows this many partitions, causes first, and counts the others."""

MAX_OPTION_CHANGES: Final = 3
"""Show this many changes of options, the newest, and count the others."""

_MAX_WRITERS: Final = 10
"""A table shows this many writers of a partition: causes first, then those furthest behind."""

_MAX_DIAGNOSES: Final = 5
"""A text without details shows this many: the first in full, the others on one line each."""

SHOWN_COUNTERS: Final = tuple(
    name for name in COUNTERS if name not in ("ctis", "ignoredCtis", "outside")
)
"""The counters of events, by their public names."""

_COLUMNS: Final = (
    *("", "partition", "offset", "lag", "CTI", "behind", "last event", "idle"),
    *SHOWN_COUNTERS,
)


def format_stream(stream: StreamExplanation, details: bool = True) -> str:
    """Format one stream's explanation as lines for a terminal.

    Without `details` each diagnosis after the first takes one line, and only five are shown.
    """
    first, *others = stream.diagnoses
    lines = [*_describe_head(stream), "", *_describe_diagnosis(first), ""]
    if details:
        lines += [line for diagnosis in others for line in (*_describe_diagnosis(diagnosis), "")]
    elif others:
        lines += [_name_diagnosis(diagnosis) for diagnosis in others[: _MAX_DIAGNOSES - 1]]
        more = len(stream.diagnoses) - _MAX_DIAGNOSES
        lines += [f"... and {more} more"] if more > 0 else []
        lines += ["(texts and fixes of all: details=True, or --details)", ""]
    lines += [*align([_COLUMNS, *_list_rows(stream)]), *_count_hidden(stream)]
    malformed = [list(_describe_malformed(reason)) for reason in stream.malformed]
    return join_sections([lines, *malformed])


def _describe_head(stream: StreamExplanation) -> list[str]:
    """Return the topics, last batch, CTI and since when, and topic settings."""
    topics = ", ".join(f"'{topic}'" for topic in stream.topics) or "no topic"
    since = f", since {format_time(stream.since_us)}" if stream.since_us is not None else ""
    lines = [
        f"Stream of {topics}, before batch {stream.batch} of {format_time(stream.planned_us)}",
        f"CTI: {format_time(stream.cti_us)}{since}",
    ]
    if stream.topic_settings is not None:
        option_value, settings = stream.topic_settings
        texts = ", ".join(f"'{name}' = '{value}'" for name, value in settings.items())
        lines.append(f"From 'timeSettings' = '{option_value}': {texts or 'nothing'}")
    return lines + describe_changes(stream)


def describe_changes(stream: StreamExplanation) -> list[str]:
    """Return a line for each of the last changes of options, newest first."""
    waiting = stream.waiting_change
    coming = [] if waiting is None else [f"A change waits for the CTI {waiting}"]
    newest = stream.changes[: -MAX_OPTION_CHANGES - 1 : -1]
    lines = [
        f"Changed from batch {change.number} on, at CTI {format_time(change.cti_us)}: "
        f"{change.describe()}"
        for change in newest
    ]
    earlier = len(stream.changes) - len(newest)
    more = [f"... and {format_count(earlier, 'earlier change')}"] if earlier else []
    return [*coming, *lines, *more]


def _name_diagnosis(diagnosis: Diagnosis) -> str:
    since_us = diagnosis.since_us
    since = f" (since {format_time(since_us)})" if since_us is not None else ""
    return f"=> {diagnosis.kind}: {diagnosis.cause}{since}"


def _describe_diagnosis(diagnosis: Diagnosis) -> list[str]:
    texts = f"   {diagnosis.full_text}.", f"   Fix: {diagnosis.fix}."
    return [_name_diagnosis(diagnosis), *texts]


def _describe_malformed(reason: MalformedReason) -> tuple[str, str]:
    counts = f"{reason.total} ({list_counts(reason.partitions)})"
    return (
        f"Malformed values, reason '{reason.reason}': {counts}",
        f"   Next step: {reason.next_step}.",
    )


def _list_rows(stream: StreamExplanation) -> list[tuple[str, ...]]:
    """Return the table's rows: each partition, followed by its writers."""
    return [row for fact in stream.partitions[:MAX_ROWS] for row in _make_rows(fact)]


def _count_hidden(stream: StreamExplanation) -> list[str]:
    hidden = len(stream.partitions) - MAX_ROWS
    return [f"... and {hidden} more partitions"] if hidden > 0 else []


def _make_rows(fact: PartitionFacts) -> list[tuple[str, ...]]:
    counters = fact.clock.counters()
    rows: list[tuple[str, ...]] = [
        (
            "*" if fact.is_cause else "",
            fact.name,
            str(fact.offset),
            "?" if fact.lag is None else str(fact.lag),
            format_time(fact.cti_us),
            _format_behind(fact.behind_us),
            format_time(fact.last_us),
            "yes" if fact.idle else "no",
            *(str(counters[name]) for name in SHOWN_COUNTERS),
        )
    ]
    writers, more = fact.writers, len(fact.writers) - _MAX_WRITERS
    if more > 0:
        ranked = sorted(
            writers,
            key=lambda fact: (not fact.is_cause, fact.mark_us is not None, fact.mark_us or 0),
        )
        writers = tuple(ranked[:_MAX_WRITERS])
    for writer in writers:
        name = f"  writer {writer.name!r}" if writer.name else "  marks without a writer"
        rows.append(_pad("*" if writer.is_cause else "", name, format_time(writer.mark_us)))
    if more > 0:
        rows.append(_pad("", f"  ... and {more} more writers", ""))
    return rows


def _format_behind(us: int | None) -> str:
    if us is None:
        return ""
    if us % SECOND_US:
        return shorten_duration(us)
    return format_duration(us) if us else "0"


def _pad(mark: str, name: str, cti: str) -> tuple[str, ...]:
    return (mark, name, "", "", cti, *("",) * (len(_COLUMNS) - 5))


# -- notebooks -------------------------------------------------------------------------------------

_LABEL_WIDTH: Final = 190
_PLOT_WIDTH: Final = 470
_RIGHT: Final = _LABEL_WIDTH + _PLOT_WIDTH
_WIDTH: Final = _RIGHT + 130
_ROW_HEIGHT: Final = 22
_TOP_MARGIN: Final = 28
_MAX_LABEL: Final = 26


def _render_stream(stream: StreamExplanation) -> str:
    diagnoses = "".join(
        paragraph(lines, title.removeprefix("=> "))
        for title, *lines in map(_describe_diagnosis, stream.diagnoses)
    )
    hidden = _count_hidden(stream)
    return (
        f"<div>{paragraph(_describe_head(stream))}{diagnoses}{draw_stream(stream)}"
        f"{html_table(_COLUMNS, _list_rows(stream))}{paragraph(hidden) if hidden else ''}"
        f"{''.join(paragraph(_describe_malformed(reason)) for reason in stream.malformed)}</div>"
    )


def draw_stream(stream: StreamExplanation) -> str:
    """Draw only the picture; empty if no partition has a time yet."""
    facts = stream.partitions[:MAX_ROWS]
    times = [us for fact in facts for us in (fact.cti_us, fact.last_us) if us is not None]
    if not times:
        return ""
    scale = TimeScale(times, _LABEL_WIDTH, _PLOT_WIDTH)
    bottom = _TOP_MARGIN + _ROW_HEIGHT * len(facts) + 4
    height = bottom + 40
    legend = (
        "bar: CTI \N{NO-BREAK SPACE} circle: newest event \N{NO-BREAK SPACE} dashed: CTI of the "
        "stream"
    )
    axis = draw_time_axis(
        utc_ticks(scale.low, scale.high, _PLOT_WIDTH), scale.at, (_LABEL_WIDTH, _RIGHT), bottom,
        _WIDTH,
    )  # fmt: skip
    return svg(
        "svg", "",
        svg("title", "event time against CTI of each partition"),
        svg("text", legend, x=_LABEL_WIDTH, y=14, fill_opacity=FAINT),
        *(_draw_partition(scale, fact, row, stream.cti_us) for row, fact in enumerate(facts)),
        *axis,
        xmlns="http://www.w3.org/2000/svg", role="img", width=_WIDTH, height=height,
        viewBox=f"0 0 {_WIDTH} {height}", style="max-width:100%;height:auto",
        font_family=FONT, font_size=SIZE, fill="currentColor",
    )  # fmt: skip


def _draw_partition(scale: TimeScale, fact: PartitionFacts, row: int, stream_us: int | None) -> str:
    top = _TOP_MARGIN + _ROW_HEIGHT * row
    topic, number = fact.partition
    room = _MAX_LABEL - len(str(number)) - 1
    short = topic if len(topic) <= room else f"…{topic[1 - room :]}"
    weight = {"font_weight": 600} if fact.is_cause else {}
    lane = draw_lane(
        fact.cti_us, fact.last_us, stream_us, is_cause=fact.is_cause,
        to_x=lambda us: str(scale.at(us)), ends=(str(_LABEL_WIDTH), str(_PLOT_WIDTH)), top=top,
    )  # fmt: skip
    name = svg("text", f"{short} {number}", svg("title", fact.name), x=4, y=top + 12, **weight)
    note = ", ".join(name_remarks(fact))
    remark = svg("text", note, x=_RIGHT + 8, y=top + 12, **weight) if note else ""
    return name + lane + remark


def name_remarks(fact: PartitionFacts) -> list[str]:
    """Return the remarks on a partition that its numbers do not show."""
    marks = {"holds back": fact.is_cause, "idle": fact.idle, "no CTI": fact.cti_us is None}
    return [word for word, holds in marks.items() if holds]
