"""Finds what holds a stream's CTI back, and orders all diagnoses for reports.

Each rule examines the last batch, and earlier ones only to find when a state began. An offset holds
the clocks *before* its batch's records, so a batch's effect shows one batch later; the source
completes the picture with an empty batch after the last records.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark_timestream.core.checkpoint import CTI_SETTINGS
from pyspark_timestream.core.instants import (
    format_duration,
    format_instant,
    parse_instant,
    round_duration,
)
from pyspark_timestream.kafka.diagnosis.diagnoses import (
    BOUNDED_RUN_ADVICE,
    FINAL_CTI_ADVICE,
    MOST,
    REPEATED_RUN_ADVICE,
    WRITER_CLOCK_ADVICE,
    Diagnosis,
    Kind,
    add_details,
    name_partitions,
    recall_warnings,
    report_no_topic,
)
from pyspark_timestream.kafka.diagnosis.history import (
    BatchRecord,
    History,
    count_remaining,
    find_blocking_partitions,
    find_silent_writers,
    find_since,
    find_unchanged_since,
)
from pyspark_timestream.kafka.diagnosis.mistakes import (
    describe_time_options,
    find_late_rows,
    find_lossy_partitions,
    find_mistakes,
    has_malformed,
    is_clock_ahead,
    makes_ctis,
    report_clocks_ahead,
)
from pyspark_timestream.kafka.offsets.offset import ImportedTopic, StreamOffset
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.clocks import PartitionClock, has_reached, max_known, min_cti

MAX_QUIET_US: Final = 30_000_000
"""How long a partition that is caught up may hold the CTI back without a warning."""

_MAX_WRITERS: Final = 3
"""A diagnosis names this many silent writers, and counts the others."""

_NO_SOURCE_ADVICE: Final = (
    "set 'ctiFrequency', or another option that makes CTIs, and start with a new checkpoint"
)

_KIND_ORDER: Final = tuple(Kind)
"""Reports list kinds in the order of their declarations."""


def diagnose(
    history: History, *, failed: bool = False, outside: Sequence[Diagnosis] = ()
) -> tuple[Diagnosis, ...]:
    """Return the diagnoses, never none, most important first.

    First come those that hold results back or are about most events, then those about fewer events,
    then all others; each of these groups begins with earlier warnings, in the order of kinds.
    `outside` are diagnoses from other sources, which count as earlier warnings; `failed`: the query
    failed after it had planned its last batch.
    """
    last_batch = history[-1]
    is_final = last_batch.offset.final
    warnings = recall_warnings(last_batch.offset.warnings)
    ahead = _find_clocks_ahead(last_batch)
    found = [
        *outside,
        *find_mistakes(history),
        *report_clocks_ahead(history, ahead),
        *_find_lost_rows(history, ahead),
    ]
    if not is_final:
        found += _find_blockers(history, ahead)
    # An earlier warning stays unless the history shows it again, or its later form.
    kinds = {diagnosis.kind for diagnosis in found}
    found += [warning for warning in warnings if kinds.isdisjoint(_list_refined(warning))]
    unread = {partition for partition, size in count_remaining(history).items() if size}
    if is_final:
        found.append(_report_end(history, is_wrong=failed or bool(found)))
    elif unread and all(diagnosis.kind is not Kind.BACKLOG for diagnosis in found):
        found.append(_report_backlog(history, sorted(unread)))
    if not found:
        return (_report_caught_up(last_batch),)
    warned = {kind for diagnosis in (*outside, *warnings) for kind in _list_refined(diagnosis)}
    found.sort(
        key=lambda diagnosis: (
            _rank(diagnosis),
            diagnosis.kind not in warned,
            _KIND_ORDER.index(diagnosis.kind),
        )
    )
    return tuple(add_details(found, last_batch.offset.warnings))


def _list_refined(warning: Diagnosis) -> tuple[Kind, ...]:
    """Return the kinds that a warning may turn into once the whole history is known."""
    if warning.kind is Kind.LATE_ROWS:
        return Kind.LATE_ROWS, Kind.EVERYTHING_DROPPED, Kind.FAR_FUTURE
    return (warning.kind,)


def _rank(diagnosis: Diagnosis) -> int:
    """Return 0 if it holds results back or is about most events, 1 if about fewer, else 2."""
    if diagnosis.share < MOST:
        # It is about few events, so it holds nothing back.
        return 1
    return 2 if _KIND_ORDER.index(diagnosis.kind) > _KIND_ORDER.index(Kind.LATE_ROWS) else 0


def find_warnings(history: History, now_us: int) -> list[Diagnosis]:
    """Return the diagnoses that a driver warns of; `history` ends with the present state."""
    ahead = _find_clocks_ahead(history[-1])
    return [
        *find_mistakes(history),
        *report_clocks_ahead(history, ahead),
        *find_late_rows(history, ahead),
        *_find_quiet_partitions(history, now_us),
    ]


def _find_clocks_ahead(batch: BatchRecord) -> frozenset[Partition]:
    return frozenset(
        partition for partition in batch.offset.partitions if is_clock_ahead(batch, partition)
    )


def _find_quiet_partitions(history: History, now_us: int) -> list[Diagnosis]:
    """Diagnose partitions that are caught up and have held the stream's CTI for MAX_QUIET_US.

    A bounded run reports them once everything is read, and partitions without any record at once.
    """
    last_batch, unread = history[-1], count_remaining(history)
    partition_offsets = last_batch.offset.partitions
    if not makes_ctis(last_batch) or (last_batch.offset.bounded and any(unread.values())):
        return []
    ahead_us = max_known(*(clock.cti_us for clock in last_batch.clocks.values()))
    partitions = {
        partition
        for partition in find_blocking_partitions(last_batch)
        if partition_offsets[partition].clock.cti_us != ahead_us
        and not unread.get(partition)
        and not partition_offsets[partition].pending
        and _is_quiet(last_batch.offset, partition, now_us)
    }
    return [_report_idle_partition(history, sorted(partitions))] if partitions else []


def _is_quiet(offset: StreamOffset, partition: Partition, now_us: int) -> bool:
    partition_offset = offset.partitions[partition]
    if offset.bounded and not partition_offset.clock.events:
        return True
    return (
        partition_offset.caught_up_since_us is not None
        and now_us - partition_offset.caught_up_since_us >= MAX_QUIET_US
    )


def _find_lost_rows(history: History, ahead: frozenset[Partition]) -> list[Diagnosis]:
    """Diagnose rows lost as late, except in the partitions in `ahead`, where the cause is known."""
    clocks = history[-1].clocks
    malformed = {partition for partition, clock in clocks.items() if has_malformed(clock, MOST)}
    lossy = list(find_lossy_partitions(history, ahead | malformed))
    return lossy or list(find_late_rows(history, ahead))


def _report_end(history: History, *, is_wrong: bool) -> Diagnosis:
    began_us = find_unchanged_since(history, lambda batch: batch.offset.final)
    unread = sum(count_remaining(history).values())
    text = "the final CTI promised that nothing changes any more, and every result is out"
    if not is_wrong and not unread:
        return Diagnosis(Kind.ENDED, "nothing is wrong", text, since_us=began_us)
    text += "; new records on this checkpoint are refused"
    return Diagnosis(Kind.FINAL_CTI, "option 'finalCti' of a bounded run", text, since_us=began_us)


def _report_caught_up(last_batch: BatchRecord) -> Diagnosis:
    offset = last_batch.offset
    partition_offsets = offset.partitions.values()
    size = sum(partition_offset.size for partition_offset in partition_offsets)
    if not partition_offsets and "subscribePattern" in last_batch.settings:
        return report_no_topic(last_batch.settings)
    if not partition_offsets:
        text = "the stream has no partitions"
    elif size:
        text = f"the last batch read {size} records; what they did shows with the next one"
    elif all(partition_offset.idle for partition_offset in partition_offsets):
        text = "all partitions are idle and everything is read"
        if offset.advanced_us is not None and offset.advanced_us == offset.cti_us:
            text += "; the CTI follows the wall clock by 'idleAdvance'"
    elif offset.end_of_run:
        text = _describe_end(offset)
    elif last_batch.readable_ends:
        text = "everything is read, and no partition is behind another"
    else:
        text = "what was there then is read, and no partition is behind another"
    advice = _mention_final_cti(offset, Kind.CAUGHT_UP.fix)
    return Diagnosis(Kind.CAUGHT_UP, "nobody", text, advice=advice)


def _describe_end(offset: StreamOffset) -> str:
    end = offset.settings.get("endingCti")
    if end is not None and has_reached(offset.cti_us, parse_instant(end)):
        return f"the replay has reached its end, option 'endingCti' ({end})"
    if offset.fixed_ends is not None:
        return "the stream has reached its end, which the ending options fixed at its first start"
    return "the bounded run has read everything that existed when it began"


def _find_blockers(history: History, ahead: frozenset[Partition]) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each reason why partitions at the minimum do not advance."""
    unread = count_remaining(history)
    reasons = dict[Kind, set[Partition]]()
    clocks = history[-1].clocks
    totals = _AllPartitions(
        sum(clock.events for clock in clocks.values()),
        max_known(*(clock.cti_us for partition, clock in clocks.items() if partition not in ahead)),
    )
    for partition in sorted(find_blocking_partitions(history[-1])):
        kind = _find_reason(history, partition, totals, unread)
        if kind is not None:
            reasons.setdefault(kind, set()).add(partition)
    for kind, partitions in reasons.items():
        yield _REPORTS[kind](history, sorted(partitions))


class _AllPartitions(NamedTuple):
    """Over all partitions: the number of events, and the greatest CTI without clocks ahead."""

    events: int
    cti_us: int | None


def _find_reason(
    history: History, partition: Partition, totals: _AllPartitions, unread: Mapping[Partition, int]
) -> Kind | None:
    """Return why a partition at the minimum or without a CTI does not advance; None if it does."""
    offset = history[-1].offset
    partition_offset = offset.partitions[partition]
    clock, size = partition_offset.clock, partition_offset.size
    if partition_offset.pending or _import_is_late(offset, clock):
        return Kind.LATE_IMPORT
    if unread.get(partition, size):
        return Kind.BACKLOG
    generated = "ctiFrequency" in offset.settings and "writerFrom" not in offset.settings
    waits = not generated and _stands_still(history, partition) and find_silent_writers(clock)
    if waits and not _lags_as_a_whole(clock, totals):
        return Kind.SILENT_WRITER
    if clock.cti_us is None:
        others_have_events = totals.events > clock.events and makes_ctis(history[-1])
        return _explain_missing_cti(clock, size, others_have_events=others_have_events)
    is_behind = totals.cti_us is not None and totals.cti_us > clock.cti_us
    return Kind.IDLE_PARTITION if is_behind and not size else None


def _lags_as_a_whole(clock: PartitionClock, totals: _AllPartitions) -> bool:
    """Return whether a partition's writers are closer to each other than to other partitions."""
    marks_us = [writer.mark_us for _, writer in clock.writers]
    known_us = [mark_us for mark_us in marks_us if mark_us is not None]
    own_us = clock.cti_us
    if totals.cti_us is None or own_us is None or totals.cti_us <= own_us:
        return False
    if len(known_us) < len(marks_us):
        return False
    newest_us = max(*known_us, own_us if clock.last_us is None else clock.last_us)
    return totals.cti_us - newest_us > newest_us - min(known_us)


def _explain_missing_cti(
    clock: PartitionClock, size: int, *, others_have_events: bool
) -> Kind | None:
    """Return why a partition without backlog has no CTI yet."""
    if clock.events == 0 and size:
        return None
    if clock.events == 0 and others_have_events:
        return Kind.IDLE_PARTITION
    # If a counter names all events, a diagnosis of its own says what to do about them.
    return None if clock.events and clock.events == clock.unusable else Kind.NO_CTI


def _import_is_late(offset: StreamOffset, clock: PartitionClock) -> bool:
    """Return whether the clock waits for the import: it has later events and no other CTIs."""
    imported = offset.imported
    if imported is None:
        return False
    if imported.cti_us is None or clock.cti_us is None:
        return clock.cti_us is None and imported.cti_us is None
    is_only_source = offset.settings.keys() & set(CTI_SETTINGS) <= {"ctiImport"}
    waits = clock.last_us is not None and clock.last_us > clock.cti_us
    return is_only_source and waits and imported.cti_us <= clock.cti_us


def _stands_still(history: History, partition: Partition) -> bool:
    """Return whether the batch before the last did not move the clock of `partition`."""
    partition_offset = history[-1].offset.partitions[partition]
    before = history[-2].offset.partitions.get(partition) if len(history) > 1 else None
    is_caught_up = partition_offset.start_inclusive == partition_offset.end_exclusive
    return is_caught_up or before is None or before.clock.cti_us == partition_offset.clock.cti_us


def _report_backlog(history: History, partitions: Sequence[Partition]) -> Diagnosis:
    unread = count_remaining(history)
    partition_offsets = history[-1].offset.partitions
    count = sum(unread[partition] for partition in partitions if partition in unread)
    size = sum(partition_offsets[partition].size for partition in partitions)
    text = (
        f"{count} records or more are left to read after the last batch, which read up to {size}"
        if count
        else f"the last batch was to read {size} records; how many are left is not known here"
    )
    waiting = [partition for partition, entry in partition_offsets.items() if entry.waits]
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        text += f"; by 'maxSkew' {name_partitions(waiting)} {verb} for the slowest partition"
    return Diagnosis(
        Kind.BACKLOG,
        name_partitions(partitions),
        text,
        since_us=find_since(history, partitions, lambda entry: entry.size > 0),
        partitions=frozenset(partitions),
        advice=""
        if "maxOffsetsPerTrigger" in history[-1].offset.unpinned
        else "wait, or give it more partitions and cores, which read faster",
    )


def _report_blocked(
    kind: Kind, history: History, partitions: Sequence[Partition], text: str, **more: Any
) -> Diagnosis:
    """Report partitions that have held the stream's CTI since it reached its present value."""
    cti_us = history[-1].offset.cti_us
    blocking = frozenset(partitions)
    since_us = find_unchanged_since(
        history,
        lambda batch: batch.offset.cti_us == cti_us and blocking <= find_blocking_partitions(batch),
    )
    fields = {
        "cause": name_partitions(partitions),
        "since_us": since_us,
        "partitions": blocking,
        **more,
    }
    return Diagnosis(kind, text=text, **fields)


def _report_idle_partition(history: History, partitions: Sequence[Partition]) -> Diagnosis:
    clocks = history[-1].clocks
    ahead_us = max_known(*(clock.cti_us for clock in clocks.values()))
    own_us = clocks[partitions[0]].cti_us
    stand = "its clock" if len(partitions) == 1 else "each one's clock"
    stand += " has no CTI" if own_us is None else f" stands at {format_instant(own_us)}"
    others = f"others are up to {format_instant(ahead_us)}" if ahead_us else "others have records"
    if own_us is not None and ahead_us is not None:
        others += f", {round_duration(ahead_us - own_us)} ahead"
    return _report_blocked(
        Kind.IDLE_PARTITION,
        history,
        partitions,
        f"no records are left to read there, and {stand}, while {others}",
        advice=_advise_idle(history[-1].offset),
    )


def _advise_idle(offset: StreamOffset) -> str:
    """Advise what to do; leave out an option that is already set so."""
    timeout = offset.unpinned.get("idleTimeout")
    if offset.bounded:
        return BOUNDED_RUN_ADVICE if timeout is None else REPEATED_RUN_ADVICE
    if timeout is None:
        return _mention_final_cti(offset, Kind.IDLE_PARTITION.fix)
    return (
        "wait: by option 'idleTimeout' the stream goes on without it once it has been caught up "
        f"for {timeout}"
    )


def _mention_final_cti(offset: StreamOffset, fix: str) -> str:
    """Return `fix`, and what releases a final CTI if it waits for the end of a run without one."""
    waits = not offset.bounded and "finalCti" in offset.unpinned
    return f"{fix}; {FINAL_CTI_ADVICE}" if waits else fix


def _report_silent_writers(history: History, partitions: Sequence[Partition]) -> Diagnosis:
    """Report all of them in one diagnosis, since the same writer is often silent everywhere."""
    clocks = {partition: history[-1].clocks[partition] for partition in partitions}
    pairs = [
        (partition, name)
        for partition, clock in clocks.items()
        for name in find_silent_writers(clock)
    ]
    marks_us = {
        name: dict(clocks[partition].writers)[name].mark_us for partition, name in reversed(pairs)
    }
    # Writers without marks first, then those furthest behind.
    names = sorted(
        marks_us, key=lambda name: (marks_us[name] is not None, marks_us[name] or 0, name)
    )
    where = sorted({partition for partition, _ in pairs})
    kind, rows, advice = "mark", "marks", ""
    if "writerFrom" in history[-1].settings:
        kind, rows, advice = "CTI", "records", WRITER_CLOCK_ADVICE
    labels = [f"writer '{name}'" if name else f"the {rows} without a writer" for name in names]
    newest_us = max_known(*(_find_newest(clocks[partition]) for partition in where))
    text = f"{labels[0]} has {_describe_silence(marks_us[names[0]], newest_us, kind)}"
    listing = ", ".join(labels[:_MAX_WRITERS])
    if len(labels) > _MAX_WRITERS:
        listing += f" and {len(labels) - _MAX_WRITERS} more"
        text += f"; {len(labels) - 1} more writers hold back as well"
    return _report_blocked(
        Kind.SILENT_WRITER,
        history,
        where,
        text,
        cause=f"{listing} of {name_partitions(where)}",
        writers=frozenset(pairs),
        advice=advice,
    )


def _describe_silence(mark_us: int | None, newest_us: int | None, kind: str) -> str:
    """Describe the last mark or CTI of a silent writer, beside the newest time of the others."""
    if mark_us is None:
        return f"no {kind} yet, while other marks or events have gone on"
    ahead = "" if newest_us is None else f" by {round_duration(newest_us - mark_us)}"
    last = f"{format_instant(mark_us)} as its last {kind}"
    return f"{last}, while other marks or events have gone on{ahead}"


def _find_newest(clock: PartitionClock) -> int | None:
    """Return the greatest known time of a partition."""
    marks_us = [writer.mark_us for _, writer in clock.writers]
    return max_known(*marks_us, clock.last_us, clock.cti_us)


def _report_no_cti(history: History, partitions: Sequence[Partition]) -> Diagnosis:
    last_batch = history[-1]
    settings = last_batch.settings
    clock = last_batch.clocks[partitions[0]]
    text = _describe_missing_cti(settings, clock)
    if len(partitions) > 1:
        text += f"; so it is in {len(partitions)} partitions"
    # If no event has a time, more records do not help, even if the counters ask for them.
    is_timeless = "ctiFrequency" in settings and clock.events > 0 and _has_read_no_time(clock)
    if is_timeless:
        advice = Kind.MALFORMED.fix
    elif settings.keys().isdisjoint(CTI_SETTINGS):
        advice = _mention_final_cti(last_batch.offset, _NO_SOURCE_ADVICE)
    else:
        advice = _mention_final_cti(last_batch.offset, Kind.NO_CTI.fix)
    return _report_blocked(Kind.NO_CTI, history, partitions, text, advice=advice)


def _has_read_no_time(clock: PartitionClock) -> bool:
    return clock.last_us is None and not clock.count


def _describe_missing_cti(settings: Mapping[str, str], clock: PartitionClock) -> str:
    """Describe the condition that a partition's first CTI lacks."""
    frequency, header = settings.get("ctiFrequency"), settings.get("ctiHeader")
    if not clock.events:
        return "no event has been read yet"
    if settings.keys().isdisjoint(CTI_SETTINGS):
        return "no option makes CTIs while the stream runs: 'ctiFrequency' is not set"
    reasons = []
    if "writerGrace" in settings:
        reasons.append(f"option 'writerGrace' ('{settings['writerGrace']}') may not have passed")
    if header is not None:
        reasons.append(f"none of {clock.events} records had a readable header '{header}'")
    if "writerFrom" in settings:
        reasons.append("some of its writers have no CTI")
    elif frequency is not None and _has_read_no_time(clock):
        where = describe_time_options(settings)
        reasons.append(f"none of {clock.events} events has a time that can be read ({where})")
    elif frequency is not None and frequency.isdigit():
        reasons.append(f"{clock.count} events count so far, and 'ctiFrequency' is {frequency}")
    elif frequency is not None and clock.last_us is not None and clock.base_us is not None:
        later = format_duration(max(clock.last_us - clock.base_us, 0))
        reasons.append(f"the last event is {later} after the first, 'ctiFrequency' is {frequency}")
    return " and ".join(reasons) or "the events read so far have made none"


def _report_late_import(history: History, partitions: Sequence[Partition]) -> Diagnosis:
    offset = history[-1].offset
    imported = offset.imported or ImportedTopic()
    holding = {
        partition: progress.cti_us
        for partition, progress in imported.partitions.items()
        if not (progress.ended or progress.idle)
    }
    least = min_cti(holding.values())
    slow = sorted(partition for partition, cti_us in holding.items() if cti_us == least)
    cti = "no CTI yet" if imported.cti_us is None else format_instant(imported.cti_us)
    text = f"the imported CTI is {cti}"
    waiting = [
        pair for partition in partitions for pair in offset.partitions[partition].pending[:1]
    ]
    if waiting:
        until, cti_us = waiting[0]
        text += f"; {format_instant(cti_us)} takes effect once offset {until} has been read"
    else:
        text += f", and {name_partitions(partitions)} waits for more"
    cause = f"the import of {name_partitions(slow)}" if slow else "option 'ctiImport'"
    return _report_blocked(Kind.LATE_IMPORT, history, partitions, text, cause=cause)


_REPORTS: Final = {
    Kind.BACKLOG: _report_backlog,
    Kind.IDLE_PARTITION: _report_idle_partition,
    Kind.LATE_IMPORT: _report_late_import,
    Kind.NO_CTI: _report_no_cti,
    Kind.SILENT_WRITER: _report_silent_writers,
}
