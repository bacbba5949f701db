"""Finds what holds a stream's CTI back, and why rows are missing.

A clock ahead drove the CTI, the delay is too short, or values and keys are malformed.

Each rule examines the last batch, and earlier ones only to find the beginning of a state. An offset
holds the state *before* its batch's records, so the effect of a batch shows one batch later; the
source runs an empty batch after the last records, which completes the picture.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.core.instants import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    format_duration,
    format_instant,
    parse_duration,
)
from pyspark_timestream.diagnose.diagnosis import (
    BOUNDED_RUN_ADVICE,
    NEXT_STEPS,
    REPEATED_RUN_ADVICE,
    WRITER_CLOCK_ADVICE,
    Diagnosis,
    Kind,
    add_details,
    find_well,
    list_counts,
    name_partitions,
    recall_warnings,
)
from pyspark_timestream.diagnose.history import (
    BatchRecord,
    History,
    count_remaining,
    describe_advance,
    describe_waiting,
    find_blocking_partitions,
    find_silent_writers,
    find_unchanged_since,
    keeps_late,
)
from pyspark_timestream.diagnose.mistakes import (
    MOST,
    describe_end,
    find_mistakes,
    has_malformed,
    makes_ctis,
)
from pyspark_timestream.kafka.offsets.imported_ctis import ImportedTopic
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.policies import KEEP_ALL
from pyspark_timestream.rules.state import FAR_US, MAX_LEAD_US, PartitionState
from pyspark_timestream.rules.stream_cti import max_known, min_cti

_MAX_AHEAD_US: Final = DAY_US
"""A CTI further ahead of the wall clock, or of the late events after it, is wrong."""

_MIN_AGREED_US: Final = 3_600_000_000
"""By as much most events, in order among themselves, must be late to show that a clock is ahead."""

_MIN_FUTURE_US: Final = 60_000_000
"""The least `maxFuture` that is proposed: clocks that are right differ by less."""

_MIN_LATE: Final = 10
"""Fewer late events do not show an order."""

_UNITS_US: Final = (DAY_US, HOUR_US, MINUTE_US, SECOND_US)


@dataclass(frozen=True, slots=True)
class MalformedReason:
    """Records of a stream whose value or key is malformed for one reason.

    Attributes:
        reason: the reason, as in `malformedValues` of the progress.
        total: their number.
        partitions: partition -> their number, without zeros.
        next_step: what to do about them.
    """

    reason: str
    total: int
    partitions: Mapping[Partition, int]
    next_step: str


def count_malformed_reasons(last: BatchRecord) -> tuple[MalformedReason, ...]:
    """Count the malformed values and keys by reason, the most frequent first."""
    counts: dict[str, dict[Partition, int]] = {}
    for part, share in sorted(last.offset.partitions.items()):
        for reason, count in share.malformed_values.by_reason:
            counts.setdefault(reason, {})[part] = count
    advice = Kind.MALFORMED_VALUES.fix
    found = [
        MalformedReason(reason, sum(parts.values()), parts, NEXT_STEPS.get(reason, advice))
        for reason, parts in counts.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.total, each.reason)))


def is_far(moment: BatchRecord, part: Partition) -> bool:
    """True if a clock ahead has driven the CTI of `part`."""
    state = moment.offset.partitions[part].state
    if state.cti_us is None:
        return False
    ahead_us, late = _measure_lead(moment, state), _count_late(state)
    if ahead_us > _MAX_AHEAD_US or not late:
        return ahead_us > _MAX_AHEAD_US
    return (
        2 * state.clues.ahead >= late
        or ahead_us > MAX_LEAD_US
        or _measure_gap(state) > _MAX_AHEAD_US
        or _is_majority_late(state)
    )


def _count_late(state: PartitionState) -> int:
    """The late events, without those whose times seem to be in another unit."""
    late = state.dropped + state.adjusted + state.flagged
    return max(late - state.clues.early, 0) if state.clues.has_other_unit else late


def _measure_lead(moment: BatchRecord, state: PartitionState) -> int:
    """How far the CTI is ahead of the wall clock; a task of a batch read has none."""
    if state.cti_us is None or not moment.planned_us:
        return 0
    return max(state.cti_us - moment.planned_us, 0)


def _measure_gap(state: PartitionState) -> int:
    """How far the CTI is ahead of the last late event."""
    behind_us = state.last_us if state.clues.behind_us is None else state.clues.behind_us
    if state.cti_us is None or state.last_us is None or behind_us is None:
        return 0
    return state.cti_us - behind_us if state.last_us < state.cti_us else 0


def _is_majority_late(state: PartitionState) -> bool:
    """True if most events are late by far, and in order among themselves: the others are wrong."""
    late, clues = _count_late(state), state.clues
    is_far = clues.most_late_us > _MIN_AGREED_US
    return is_far and late >= _MIN_LATE and 2 * late >= state.events and 10 * clues.misplaced < late


def report_far_future(history: History, far: frozenset[Partition]) -> Iterator[Diagnosis]:
    """A diagnosis for the partitions in `far`, those for which `is_far` is true."""
    last, settings = history[-1], history[-1].offset.settings
    states = {part: last.offset.partitions[part].state for part in far}
    # A last event of 2100 or later that made none late is told as an improbable time.
    far = frozenset(
        part
        for part, state in states.items()
        if _count_late(state) or (state.last_us or 0) < FAR_US
    )
    if not far:
        return
    states = {part: states[part] for part in far}
    parts = sorted(far, key=lambda part: (-_count_late(states[part]), part))
    worst = states[parts[0]]
    late = sum(map(_count_late, states.values()))
    events = sum(state.events for state in states.values())
    text = f"{_describe_lead(last, worst)}; {late} of {events} events came late"
    counts = {part: count for part in parts if (count := _count_late(states[part]))}
    if len(parts) > 1 and counts:
        text += f": {list_counts(counts)}"
    has_lead = any(state.clues.ahead or state.clues.lead_us for state in states.values())
    yield Diagnosis(
        Kind.FAR_FUTURE,
        name_partitions(parts),
        text,
        find_unchanged_since(history, _has_clock(parts[0], worst.cti_us)),
        frozenset(parts),
        level=late.bit_length(),
        advice=_advise_right_clock(settings, has_lead),
    )


def _describe_lead(moment: BatchRecord, state: PartitionState) -> str:
    assert state.cti_us is not None
    cti, lead_us = format_instant(state.cti_us), state.clues.lead_us
    if lead_us is not None:
        return f"an event {round_duration(lead_us)} after its record's timestamp made the CTI {cti}"
    if _measure_lead(moment, state):
        # No duration: an offset with a text that changes by itself would make a batch of its own.
        return f"its CTI is {cti}, ahead of the wall clock"
    gap_us = max(_measure_gap(state), state.clues.most_late_us)
    if gap_us > 0:
        return f"its CTI is {cti}, {round_duration(gap_us)} ahead of the events that follow"
    return f"events far after their records' timestamps made the CTI, which is {cti} by now"


def _advise_right_clock(settings: Mapping[str, str], has_lead: bool) -> str:
    """The way on after a clock ahead; `has_lead`: the records' timestamps show it."""
    if "ctiFrequency" not in settings:
        return (
            "correct the clock of the writer whose mark is ahead, and start with a new checkpoint, "
            "since a CTI never goes back"
        )
    limit = _propose_max_future(settings)
    start = "correct that clock; a CTI never goes back, so start with a new checkpoint and with "
    if not has_lead:
        ways = [
            way
            for way, is_open in (
                (
                    "'writerFrom', the field or header that names the device, so that each has a "
                    "clock of its own",
                    "writerFrom" not in settings,
                ),
                (
                    f"'maxFuture' = '{limit}', once the broker sets the records' timestamps (the "
                    "topic's 'message.timestamp.type' is 'LogAppendTime'): those of the producer "
                    "may come from the same clock",
                    settings.get("startTime") != "timestamp",
                ),
            )
            if is_open
        ]
        return start + (", or with ".join(ways) or "that device's records in another topic")
    before = settings.get("maxFuture")
    instead = "" if before is None else f" in place of '{before}'"
    return f"{start}'maxFuture' = '{limit}'{instead}: events further ahead drive no clock"


def _propose_max_future(settings: Mapping[str, str]) -> str:
    """A `maxFuture` by which no CTI is ahead of its record, unless the delay is too short."""
    delay_us = parse_duration(settings.get("ctiDelay", "0 seconds"))
    return format_duration(max(delay_us, _MIN_FUTURE_US))


def find_late_rows(history: History, known: Set[Partition] = frozenset()) -> Iterator[Diagnosis]:
    """A diagnosis for partitions that dropped late events; its level grows as they double.

    Those in `known` are left out: the reason for their late rows is known.
    """
    shares = history[-1].offset.partitions
    dropped = {
        part: count
        for part, share in shares.items()
        if part not in known and (count := min(share.state.dropped, _count_late(share.state)))
    }
    if not dropped:
        return
    total, events = sum(dropped.values()), sum(each.state.events for each in shares.values())
    parts = sorted(dropped, key=lambda part: (-dropped[part], part))
    yield Diagnosis(
        Kind.LATE_ROWS,
        name_partitions(parts),
        f"{total} of {events} events came after a CTI that they precede and were dropped: "
        + list_counts(dropped),
        find_unchanged_since(history, lambda moment: _has_dropped(moment, parts)),
        frozenset(parts),
        level=total.bit_length(),
        advice=_advise_delay(
            history[-1].offset.settings, [shares[part].state for part in parts], "if too many are"
        ),
        share=total / max(sum(shares[part].state.events for part in parts), 1),
        well=frozenset(find_well(dropped, {part: shares[part].state.events for part in parts})),
    )


def _has_dropped(moment: BatchRecord, parts: Sequence[Partition]) -> bool:
    shares = (moment.offset.partitions.get(part) for part in parts)
    return any(share is not None and share.state.dropped > 0 for share in shares)


def _advise_delay(
    settings: Mapping[str, str], states: Sequence[PartitionState], condition: str
) -> str:
    """The delay by which none of the events were late; empty if that is not known."""
    most_late_us = max(state.clues.most_late_us for state in states)
    if "ctiFrequency" not in settings:
        return (
            f"{condition} late, let the writers note a time only once all before it is sent, or "
            f"start with a new checkpoint and 'violationPolicy' = '{KEEP_ALL}' to keep them as rows"
        )
    if not most_late_us or not settings.keys().isdisjoint(("ctiHeader", "ctiImport")):
        return ""
    delay_us = parse_duration(settings.get("ctiDelay", "0 seconds")) + most_late_us
    keep = (
        ""
        if keeps_late(settings)
        else f", or with 'violationPolicy' = '{KEEP_ALL}' to keep them as rows"
    )
    return (
        f"{condition} late, start with a new checkpoint and 'ctiDelay' = "
        f"'{_round_up(delay_us)}', by which none of them would have been{keep}"
    )


def _round_up(us: int) -> str:
    """A duration, rounded up to a unit that is easy to read."""
    unit_us = next((unit for unit in _UNITS_US[1:] if us >= 10 * unit), 1_000)
    return format_duration(-(-us // unit_us) * unit_us)


def find_lossy_partitions(history: History, known: Set[Partition]) -> Iterator[Diagnosis]:
    """A diagnosis for partitions that lose at least half of their events, lately or ever.

    Those in `known` are left out: the reason for their losses is known.
    """
    shares = history[-1].offset.partitions
    parts = sorted(part for part in shares if part not in known and _loses_rows(history, part))
    if not parts:
        return
    states = [shares[part].state for part in parts]
    events, malformed = sum(s.events for s in states), sum(s.malformed for s in states)
    dropped, flagged = sum(s.dropped for s in states), sum(s.flagged for s in states)
    counts = f"of {events} events {dropped} were dropped as late, {flagged} flagged, {malformed} "
    worst = max(states, key=_count_lost)
    has_late = 2 * malformed < dropped + flagged + malformed
    settings = history[-1].offset.settings
    yield Diagnosis(
        Kind.EVERYTHING_DROPPED,
        name_partitions(parts),
        counts + "malformed" + _describe_delay(worst),
        find_unchanged_since(
            history, lambda moment: any(_count_lost_then(moment, part) for part in parts)
        ),
        frozenset(parts),
        advice=_advise_delay(settings, states, "if they are not meant to be") if has_late else "",
    )


def _loses_rows(history: History, part: Partition) -> bool:
    """True if half of all events, or of those in the history, are lost."""
    now = history[-1].offset.partitions[part].state
    first = history[0].offset.partitions.get(part)
    before = first.state if first else PartitionState()
    recent = now.events - before.events
    return (now.events > 0 and 2 * _count_lost(now) >= now.events) or (
        recent > 0 and 2 * (_count_lost(now) - _count_lost(before)) >= recent
    )


def _count_lost(state: PartitionState) -> int:
    return max(_count_late(state) - state.adjusted, 0) + state.malformed


def _count_lost_then(moment: BatchRecord, part: Partition) -> int:
    share = moment.offset.partitions.get(part)
    return _count_lost(share.state) if share else 0


def _has_clock(part: Partition, cti_us: int | None) -> Callable[[BatchRecord], bool]:
    def same(moment: BatchRecord) -> bool:
        share = moment.offset.partitions.get(part)
        return share is not None and share.state.cti_us == cti_us

    return same


def _describe_delay(state: PartitionState) -> str:
    if state.cti_us is None or state.last_us is None or state.last_us >= state.cti_us:
        return ""
    return f"; the last event is {round_duration(state.cti_us - state.last_us)} before the CTI"


def round_duration(us: int) -> str:
    """A duration, rounded down to a unit that is easy to read."""
    unit_us = next((unit for unit in _UNITS_US if us >= unit), 1)
    return format_duration(us // unit_us * unit_us)


MAX_QUIET_US: Final = 30_000_000
"""The longest time that a partition at rest may hold the CTI back without a warning."""

_MAX_WRITERS: Final = 3
"""The silent writers that a diagnosis names; it counts the others."""

_KIND_ORDER: Final = tuple(Kind)
"""Kinds are declared in the order in which they are reported."""

_REFINED_KINDS: Final = {Kind.LATE_ROWS: (Kind.EVERYTHING_DROPPED, Kind.FAR_FUTURE)}
"""The kinds that a warning may turn into when all of the history is known."""


def diagnose(
    history: History, failed: bool = False, known: Sequence[Diagnosis] = ()
) -> tuple[Diagnosis, ...]:
    """The diagnoses; never empty.

    What holds results back, or is about most events, comes before what is about a part of them;
    then what was warned of, then by the order of kinds.

    Args:
        history: the stream's history.
        failed: the query has failed after the last batch was planned.
        known: diagnoses from other sources; they count as warned of.
    """
    last = history[-1]
    far = _find_far(last)
    causes, late = find_mistakes(history), _find_losses(history, far)
    rules = [*known, *causes, *report_far_future(history, far), *late]
    if not last.offset.final:
        rules += _find_blockers(history, far)
    warnings, seen = recall_warnings(last.offset.warnings), {diagnosis.kind for diagnosis in rules}
    rules += [
        each
        for each in warnings
        if seen.isdisjoint((each.kind, *_REFINED_KINDS.get(each.kind, ())))
    ]
    if last.offset.final:
        rules.append(_report_end(history, failed or bool(rules)))
    elif all(diagnosis.kind is not Kind.BACKLOG for diagnosis in rules):
        rules += _report_backlog(
            history, {part for part, left in count_remaining(history).items() if left}
        )
    warned = {
        kind
        for each in (*known, *warnings)
        for kind in (each.kind, *_REFINED_KINDS.get(each.kind, ()))
    }
    found = sorted(
        rules,
        key=lambda each: (
            _rank(each),
            each.kind not in warned,
            _KIND_ORDER.index(each.kind),
        ),
    )
    return tuple(add_details(found, last.offset.warnings)) or (_report_caught_up(last),)


def _rank(diagnosis: Diagnosis) -> int:
    """0: it holds results back, or is about most events; 1: about a part of them; 2: the rest."""
    if diagnosis.is_partial:
        return 1
    return 2 if _KIND_ORDER.index(diagnosis.kind) > _KIND_ORDER.index(Kind.LATE_ROWS) else 0


def find_warnings(history: History, now_us: int) -> list[Diagnosis]:
    """The diagnoses that a driver warns of; `history` ends with the present state of the stream."""
    far = _find_far(history[-1])
    return [
        *find_mistakes(history),
        *report_far_future(history, far),
        *find_late_rows(history, far),
        *_find_quiet_partitions(history, now_us),
    ]


def _find_far(moment: BatchRecord) -> frozenset[Partition]:
    return frozenset(part for part in moment.offset.partitions if is_far(moment, part))


def _find_quiet_partitions(history: History, now_us: int) -> Iterator[Diagnosis]:
    """A diagnosis for partitions that have held the stream's CTI back for MAX_QUIET_US, at rest.

    A bounded run reports them once everything is read, and those without any record at once.
    """
    last, left = history[-1], count_remaining(history)
    shares = last.offset.partitions
    if not makes_ctis(last) or (last.offset.bounded and any(left.values())):
        return
    ahead_us = max_known(*(share.state.cti_us for share in shares.values()))
    parts = {
        part
        for part in find_blocking_partitions(last)
        if shares[part].state.cti_us != ahead_us
        and not left.get(part)
        and not shares[part].pending
        and _is_quiet(last.offset, part, now_us)
    }
    if parts:
        yield from _report_idle_partition(history, parts)


def _is_quiet(offset: StreamOffset, part: Partition, now_us: int) -> bool:
    share = offset.partitions[part]
    if offset.bounded and not share.state.events:
        return True
    return share.quiet_since_us is not None and now_us - share.quiet_since_us >= MAX_QUIET_US


def _find_losses(history: History, far: frozenset[Partition]) -> list[Diagnosis]:
    """Rows lost as late; for the partitions in `far` the reason is known."""
    shares = history[-1].offset.partitions
    malformed = {part for part, share in shares.items() if has_malformed(share.state, MOST)}
    found = list(find_lossy_partitions(history, far | malformed))
    return found or list(find_late_rows(history, far))


def _report_end(history: History, is_wrong: bool) -> Diagnosis:
    began_us = find_unchanged_since(history, lambda moment: moment.offset.final)
    left = sum(count_remaining(history).values())
    text = "the final CTI promised that nothing changes any more, and every result is out"
    if not is_wrong and not left:
        return Diagnosis(Kind.ENDED, "nothing is wrong", text, began_us)
    text += "; new records on this checkpoint are refused"
    return Diagnosis(Kind.FINAL_CTI, "option 'finalCti' of a bounded run", text, began_us)


def _report_caught_up(last: BatchRecord) -> Diagnosis:
    offset = last.offset
    shares = offset.partitions.values()
    size = sum(share.end_exclusive - share.start_inclusive for share in shares)
    if not shares:
        text = "the stream has no partitions"
    elif size:
        text = f"the last batch read {size} records; what they did shows with the next one"
    elif all(share.idle for share in shares):
        text = "all partitions are idle and everything is read" + describe_advance(offset)
    elif offset.closing:
        text = describe_end(offset)
    elif last.log_ends:
        text = "everything is read, and no partition is behind another"
    else:
        text = "what was there then is read, and no partition is behind another"
    return Diagnosis(Kind.CAUGHT_UP, "nobody", text)


def _find_blockers(history: History, far: frozenset[Partition]) -> Iterator[Diagnosis]:
    """A diagnosis for each reason why partitions at the minimum do not move on."""
    left, reasons = count_remaining(history), dict[Kind, set[Partition]]()
    whole = _sum_up(history[-1].offset, far)
    for part in sorted(find_blocking_partitions(history[-1])):
        kind = _find_reason(history, part, whole, left)
        if kind is not None:
            reasons.setdefault(kind, set()).add(part)
    for kind, parts in reasons.items():
        yield from _REPORTS[kind](history, parts)


@dataclass(frozen=True, slots=True)
class _Totals:
    """The totals that a partition is compared with.

    Attributes:
        events: of all partitions.
        cti_us: the greatest CTI of partitions that no wrong event has driven; None: none has any.
    """

    events: int
    cti_us: int | None


def _sum_up(offset: StreamOffset, far: frozenset[Partition]) -> _Totals:
    states = {part: share.state for part, share in offset.partitions.items()}
    return _Totals(
        sum(state.events for state in states.values()),
        max_known(*(state.cti_us for part, state in states.items() if part not in far)),
    )


def _find_reason(
    history: History, part: Partition, whole: _Totals, left: Mapping[Partition, int]
) -> Kind | None:
    """The reason why `part`, at the minimum or without a CTI, stands still; None: it moves."""
    offset = history[-1].offset
    share = offset.partitions[part]
    state, size = share.state, share.end_exclusive - share.start_inclusive
    if share.pending or _import_is_late(offset, state):
        return Kind.LATE_IMPORT
    if left.get(part, size):
        return Kind.BACKLOG
    generated = "ctiFrequency" in offset.settings and "writerFrom" not in offset.settings
    waits = not generated and _stands_still(history, part) and find_silent_writers(state)
    if waits and not _lags_as_a_whole(state, whole):
        return Kind.SILENT_WRITER
    if state.cti_us is None:
        others_have_events = whole.events > state.events and makes_ctis(history[-1])
        return _explain_missing_cti(state, size, others_have_events)
    is_behind = whole.cti_us is not None and whole.cti_us > state.cti_us
    return Kind.IDLE_PARTITION if is_behind and not size else None


def _lags_as_a_whole(state: PartitionState, whole: _Totals) -> bool:
    """True if the writers of a partition are closer to each other than to other partitions."""
    marks_us = [writer.mark_us for _, writer in state.writers]
    known_us = [mark_us for mark_us in marks_us if mark_us is not None]
    own_us = state.cti_us
    if whole.cti_us is None or own_us is None or whole.cti_us <= own_us:
        return False
    if len(known_us) < len(marks_us):
        return False
    newest_us = max(*known_us, own_us if state.last_us is None else state.last_us)
    return whole.cti_us - newest_us > newest_us - min(known_us)


def _explain_missing_cti(state: PartitionState, size: int, others_have_events: bool) -> Kind | None:
    """The reason why a partition without backlog has no CTI yet."""
    if state.events == 0 and size:
        return None
    if state.events == 0 and others_have_events:
        return Kind.IDLE_PARTITION
    unusable = state.malformed + state.tombstones + state.future
    return None if state.events and state.events == unusable else Kind.NO_CTI


def _import_is_late(offset: StreamOffset, state: PartitionState) -> bool:
    """True if a clock waits for the imported topic: no other source of CTIs, and later events."""
    imported = offset.imported
    if imported is None:
        return False
    if imported.cti_us is None or state.cti_us is None:
        return state.cti_us is None and imported.cti_us is None
    alone = offset.settings.keys().isdisjoint(("ctiFrequency", "ctiHeader"))
    waits = state.last_us is not None and state.last_us > state.cti_us
    return alone and waits and imported.cti_us <= state.cti_us


def _stands_still(history: History, part: Partition) -> bool:
    """True if the batch before the last did not move the clock of `part`."""
    share = history[-1].offset.partitions[part]
    before = history[-2].offset.partitions.get(part) if len(history) > 1 else None
    at_rest = share.start_inclusive == share.end_exclusive
    return at_rest or before is None or before.state.cti_us == share.state.cti_us


def _report_backlog(history: History, parts: Iterable[Partition]) -> Iterator[Diagnosis]:
    left, shares = count_remaining(history), history[-1].offset.partitions
    parts = sorted(parts)
    if not parts:
        return
    known = sum(left[part] for part in parts if part in left)
    size = sum(shares[part].end_exclusive - shares[part].start_inclusive for part in parts)
    text = (
        f"{known} records or more are left to read after the last batch, which read up to {size}"
        if known
        else f"the last batch was to read {size} records; how many are left is not known here"
    ) + describe_waiting(shares)

    def reading(moment: BatchRecord) -> bool:
        spans = (moment.offset.partitions.get(part) for part in parts)
        return any(span and span.end_exclusive > span.start_inclusive for span in spans)

    yield Diagnosis(
        Kind.BACKLOG,
        name_partitions(parts),
        text,
        find_unchanged_since(history, reading),
        frozenset(parts),
        advice=""
        if "maxOffsetsPerTrigger" in history[-1].offset.unpinned
        else "wait, or give it more partitions and cores, which read faster",
    )


def _report_idle_partition(history: History, parts: Iterable[Partition]) -> Iterator[Diagnosis]:
    last, parts = history[-1], sorted(parts)
    ctis = [share.state.cti_us for share in last.offset.partitions.values()]
    ahead_us = max((cti_us for cti_us in ctis if cti_us is not None), default=None)
    own_us = last.offset.partitions[parts[0]].state.cti_us
    stand = "its clock" if len(parts) == 1 else "each one's clock"
    stand += " has no CTI" if own_us is None else f" stands at {format_instant(own_us)}"
    others = f"others are up to {format_instant(ahead_us)}" if ahead_us else "others have records"
    if own_us is not None and ahead_us is not None:
        others += f", {round_duration(ahead_us - own_us)} ahead"
    yield Diagnosis(
        Kind.IDLE_PARTITION,
        name_partitions(parts),
        f"no records are left to read there, and {stand}, while {others}",
        _find_blocked_since(history, parts),
        frozenset(parts),
        advice=_advise_idle(last.offset),
    )


def _advise_idle(offset: StreamOffset) -> str:
    """The way on, without an option that is set so already."""
    timeout = offset.unpinned.get("idleTimeout")
    if offset.bounded:
        return BOUNDED_RUN_ADVICE if timeout is None else REPEATED_RUN_ADVICE
    if timeout is None:
        return ""
    return (
        f"wait: by option 'idleTimeout' the stream goes on without it once it has been at rest for "
        f"{timeout}"
    )


def _report_silent_writers(history: History, parts: Iterable[Partition]) -> Iterator[Diagnosis]:
    """One diagnosis for all of them: the same writer is often silent in every partition."""
    states = {part: history[-1].offset.partitions[part].state for part in sorted(parts)}
    pairs = [(part, name) for part, state in states.items() for name in find_silent_writers(state)]
    marks_us = {name: dict(states[part].writers)[name].mark_us for part, name in reversed(pairs)}
    # Those without any first, then those furthest behind.
    names = sorted(
        marks_us, key=lambda name: (marks_us[name] is not None, marks_us[name] or 0, name)
    )
    where = sorted({part for part, _ in pairs})
    kind, rows, advice = "mark", "marks", ""
    if "writerFrom" in history[-1].offset.settings:
        kind, rows, advice = "CTI", "records", WRITER_CLOCK_ADVICE
    first, who = names[0], [f"writer '{n}'" if n else f"the {rows} without a writer" for n in names]
    mark_us = marks_us[first]
    mark = f"no {kind} yet" if mark_us is None else f"{format_instant(mark_us)} as its last {kind}"
    text = f"{who[0]} has {mark}, while other marks or events have gone on"
    if mark_us is not None:
        newest_us = max(_find_newest(states[part]) for part in where)
        text += f" by {round_duration(newest_us - mark_us)}"
    shown = ", ".join(who[:_MAX_WRITERS])
    if len(who) > _MAX_WRITERS:
        shown += f" and {len(who) - _MAX_WRITERS} more"
        text += f"; {len(who) - 1} more writers hold back as well"
    yield Diagnosis(
        Kind.SILENT_WRITER,
        f"{shown} of {name_partitions(where)}",
        text,
        _find_blocked_since(history, where),
        frozenset(where),
        frozenset(pairs),
        advice=advice,
    )


def _find_newest(state: PartitionState) -> int:
    """The greatest time of a partition that is known."""
    marks_us = [writer.mark_us for _, writer in state.writers]
    return max(us for us in (*marks_us, state.last_us, state.cti_us) if us is not None)


def _report_no_cti(history: History, parts: Iterable[Partition]) -> Iterator[Diagnosis]:
    parts, offset = sorted(parts), history[-1].offset
    text = _describe_missing_cti(offset.settings, offset.partitions[parts[0]].state)
    if len(parts) > 1:
        text += f"; so it is in {len(parts)} partitions"
    yield Diagnosis(
        Kind.NO_CTI,
        name_partitions(parts),
        text,
        _find_blocked_since(history, parts),
        frozenset(parts),
    )


def _describe_missing_cti(settings: Mapping[str, str], state: PartitionState) -> str:
    """The condition that is missing for a partition's first CTI."""
    frequency, header = settings.get("ctiFrequency"), settings.get("ctiHeader")
    if not state.events:
        return "no record has been read yet"
    if frequency is None and header is None and "ctiImport" not in settings:
        return "no option makes CTIs while the stream runs: 'ctiFrequency' is not set"
    reasons = []
    if "writerGrace" in settings:
        reasons.append(f"option 'writerGrace' ('{settings['writerGrace']}') may not have passed")
    if header is not None:
        reasons.append(f"none of {state.events} records had a readable header '{header}'")
    if "writerFrom" in settings:
        reasons.append("some of its writers have no CTI")
    elif frequency is not None and frequency.isdigit():
        reasons.append(f"{state.count} events count so far, and 'ctiFrequency' is {frequency}")
    elif frequency is not None and state.last_us is not None and state.base_us is not None:
        span = format_duration(max(state.last_us - state.base_us, 0))
        reasons.append(f"the last event is {span} after the first, 'ctiFrequency' is {frequency}")
    return " and ".join(reasons) or "the events read so far have made none"


def _report_late_import(history: History, parts: Iterable[Partition]) -> Iterator[Diagnosis]:
    parts, offset = sorted(parts), history[-1].offset
    imported = offset.imported or ImportedTopic()
    holding = {
        part: each.cti_us
        for part, each in imported.partitions.items()
        if not (each.ended or each.idle)
    }
    least = min_cti(holding.values())
    slow = sorted(part for part, cti_us in holding.items() if cti_us == least)
    cti = "no CTI yet" if imported.cti_us is None else format_instant(imported.cti_us)
    text = f"the imported CTI is {cti}"
    waiting = [pair for part in parts for pair in offset.partitions[part].pending[:1]]
    if waiting:
        until, cti_us = waiting[0]
        text += f"; {format_instant(cti_us)} takes effect once offset {until} has been read"
    else:
        text += f", and {name_partitions(parts)} waits for more"
    cause = f"the import of {name_partitions(slow)}" if slow else "option 'ctiImport'"
    began_us = _find_blocked_since(history, parts)
    yield Diagnosis(Kind.LATE_IMPORT, cause, text, began_us, frozenset(parts))


def _find_blocked_since(history: History, parts: Iterable[Partition]) -> int | None:
    """The start of the time in which the same causes have held the stream's CTI."""
    now_us, causes = history[-1].offset.cti_us, frozenset(parts)
    return find_unchanged_since(
        history, lambda m: m.offset.cti_us == now_us and causes <= find_blocking_partitions(m)
    )


_REPORTS: Final = {
    Kind.BACKLOG: _report_backlog,
    Kind.IDLE_PARTITION: _report_idle_partition,
    Kind.LATE_IMPORT: _report_late_import,
    Kind.NO_CTI: _report_no_cti,
    Kind.SILENT_WRITER: _report_silent_writers,
}
