"""What holds a stream's CTI back, and why rows are missing: rules over its history.

Each rule looks at the last batch, and at those before it only to say since when. An offset holds
the state *before* its batch's records, so what a batch did shows one batch later; the source runs
an empty batch after the last records, which completes the picture.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.connector.instants import format_duration, format_instant
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.cti.stream_cti import greatest, merge
from pyspark_timestream.explain.history import History, Moment, behind, holders, since
from pyspark_timestream.explain.mistakes import (
    improbable_times,
    late_rows,
    makes_ctis,
    malformed_events,
    wrong_types,
)
from pyspark_timestream.explain.row_losses import far_future, is_far, mostly_lost
from pyspark_timestream.kafka.plan.findings import IN_BOUNDED_RUN, Finding, Kind, names
from pyspark_timestream.kafka.plan.imported_ctis import Imported
from pyspark_timestream.kafka.plan.offset import StreamOffset
from pyspark_timestream.kafka.plan.warnings import standing_warnings, with_details
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["QUIET_US", "diagnose", "worth_a_warning"]

QUIET_US: Final = 30_000_000
"""A partition may hold the stream's CTI back for so long, at rest, before the driver warns."""

_ORDER: Final = tuple(Kind)
"""Kinds are declared in the order in which they are told."""

_TOLD_AS: Final = {Kind.LATE_ROWS: (Kind.EVERYTHING_DROPPED, Kind.FAR_FUTURE)}
"""What a warning may turn out to be when all of the history is looked at."""


def diagnose(
    history: History, failed: bool = False, known: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """What is found, what matters most first, and before all what was warned of; never empty.

    Args:
        history: the stream's.
        failed: the query has failed after the last batch was planned.
        known: what was found by other means; it counts as warned of.
    """
    last = history[-1]
    far = frozenset(part for part in last.offset.partitions if is_far(last, part))
    causes, late = _causes(history), _losses(history, far)
    rules = [*known, *causes, *far_future(history, far), *late]
    if not last.offset.final:
        rules += _holding(history, far)
    warnings, seen = standing_warnings(last.offset.warnings), {finding.kind for finding in rules}
    rules += [
        each for each in warnings if seen.isdisjoint((each.kind, *_TOLD_AS.get(each.kind, ())))
    ]
    if last.offset.final:
        rules.append(_final(history, failed or bool(rules)))
    elif all(finding.kind is not Kind.BACKLOG for finding in rules):
        rules += _backlog(history, {part for part, left in behind(history).items() if left})
    said = {
        kind for each in (*known, *warnings) for kind in (each.kind, *_TOLD_AS.get(each.kind, ()))
    }
    found = sorted(rules, key=lambda each: (each.kind not in said, _ORDER.index(each.kind)))
    return tuple(with_details(found, last.offset.warnings)) or (_caught_up(last),)


def worth_a_warning(history: History, now_us: int) -> list[Finding]:
    """What a driver warns of, of a history that ends with where the stream stands now."""
    return [*_causes(history), *late_rows(history), *_quiet_partitions(history, now_us)]


def _quiet_partitions(history: History, now_us: int) -> Iterator[Finding]:
    """A finding for partitions that have held the stream's CTI back for half a minute, at rest.

    A bounded run, which waits for nobody, tells so once everything is read, and of a partition that
    never had a record at once.
    """
    last, left = history[-1], behind(history)
    shares = last.offset.partitions
    if not makes_ctis(last) or (last.offset.bounded and any(left.values())):
        return
    ahead_us = greatest(*(share.state.cti_us for share in shares.values()))
    parts = {
        part
        for part in holders(last)
        if shares[part].state.cti_us != ahead_us
        and not left.get(part)
        and not shares[part].pending
        and _is_quiet(last.offset, part, now_us)
    }
    if parts:
        yield from _idle_partition(history, parts)


def _is_quiet(offset: StreamOffset, part: Partition, now_us: int) -> bool:
    share = offset.partitions[part]
    if offset.bounded and not share.state.events:
        return True
    return share.quiet_since_us is not None and now_us - share.quiet_since_us >= QUIET_US


def _causes(history: History) -> list[Finding]:
    """Mistakes in the options or the data, whatever became of the stream."""
    return [*malformed_events(history), *improbable_times(history), *wrong_types(history)]


def _losses(history: History, far: frozenset[Partition]) -> list[Finding]:
    """Rows that are lost for being late; of those in `far` it is known why."""
    malformed = {part for finding in malformed_events(history) for part in finding.partitions}
    found = list(mostly_lost(history, far | malformed))
    return found or [finding for finding in late_rows(history) if not finding.partitions <= far]


def _final(history: History, is_wrong: bool) -> Finding:
    began_us = since(history, lambda moment: moment.offset.final)
    left = sum(behind(history).values())
    text = "the final CTI promised that nothing changes any more, and every result is out"
    if not is_wrong and not left:
        return Finding(Kind.ENDED, "nothing is wrong", text, began_us)
    text += "; new records on this checkpoint are refused"
    return Finding(Kind.FINAL_CTI, "option 'finalCti' of a bounded run", text, began_us)


def _caught_up(last: Moment) -> Finding:
    offset = last.offset
    shares = offset.partitions.values()
    size = sum(share.end_exclusive - share.start_inclusive for share in shares)
    if not shares:
        text = "the stream has no partitions"
    elif size:
        text = f"the last batch read {size} records; what they did shows with the next one"
    elif all(share.idle for share in shares):
        text = "all partitions are idle and everything is read"
    elif offset.closing:
        text = "the bounded run has read everything that there was when it began"
    else:
        text = "everything is read, and no partition is behind another"
    return Finding(Kind.CAUGHT_UP, "nobody", text)


# -- what holds the CTI back ----------------------------------------------------------------------


def _holding(history: History, far: frozenset[Partition]) -> Iterator[Finding]:
    """A finding for each reason why partitions at the minimum do not move on."""
    left, reasons = behind(history), dict[Kind, set[Partition]]()
    whole = _whole(history[-1].offset, far)
    for part in sorted(holders(history[-1])):
        kind = _reason(history, part, whole, left)
        if kind is not None:
            reasons.setdefault(kind, set()).add(part)
    for kind, parts in reasons.items():
        yield from _REPORTS[kind](history, parts)


@dataclass(frozen=True, slots=True)
class _Whole:
    """What a partition is compared with.

    Attributes:
        events: of all partitions.
        cti_us: the greatest CTI of partitions that no wrong event has driven; None: none has any.
    """

    events: int
    cti_us: int | None


def _whole(offset: StreamOffset, far: frozenset[Partition]) -> _Whole:
    states = {part: share.state for part, share in offset.partitions.items()}
    return _Whole(
        sum(state.events for state in states.values()),
        greatest(*(state.cti_us for part, state in states.items() if part not in far)),
    )


def _reason(
    history: History, part: Partition, whole: _Whole, left: Mapping[Partition, int]
) -> Kind | None:
    """Why `part`, which is at the minimum or has no CTI, stands there; None: it moves."""
    offset = history[-1].offset
    share = offset.partitions[part]
    state, size = share.state, share.end_exclusive - share.start_inclusive
    if share.pending or _import_is_late(offset, state):
        return Kind.LATE_IMPORT
    if left.get(part, size):
        return Kind.BACKLOG
    generated = "ctiFrequency" in offset.settings
    if not generated and _stands(history, part) and _silent(state):
        return Kind.SILENT_WRITER
    if state.cti_us is None:
        others_have_events = whole.events > state.events and makes_ctis(history[-1])
        return _why_none(state, size, others_have_events)
    is_behind = whole.cti_us is not None and whole.cti_us > state.cti_us
    return Kind.IDLE_PARTITION if is_behind and not size else None


def _why_none(state: PartitionState, size: int, others_have_events: bool) -> Kind | None:
    """Why a partition without backlog has no CTI yet."""
    if state.events == 0 and size:
        return None
    if state.events == 0 and others_have_events:
        return Kind.IDLE_PARTITION
    return None if state.events and state.events == state.malformed else Kind.NO_CTI


def _import_is_late(offset: StreamOffset, state: PartitionState) -> bool:
    """Whether a clock waits for the imported topic: it has nothing better, and events went on."""
    imported = offset.imported
    if imported is None:
        return False
    if imported.cti_us is None or state.cti_us is None:
        return state.cti_us is None and imported.cti_us is None
    alone = offset.settings.keys().isdisjoint(("ctiFrequency", "ctiHeader"))
    waits = state.last_us is not None and state.last_us > state.cti_us
    return alone and waits and imported.cti_us <= state.cti_us


def _stands(history: History, part: Partition) -> bool:
    """Whether the clock of `part` did not move by the batch before the last."""
    share = history[-1].offset.partitions[part]
    before = history[-2].offset.partitions.get(part) if len(history) > 1 else None
    at_rest = share.start_inclusive == share.end_exclusive
    return at_rest or before is None or before.state.cti_us == share.state.cti_us


def _silent(state: PartitionState) -> list[str]:
    """The writers whose marks are the minimum, where others, or events, have gone on."""
    marks = {name: writer.mark_us for name, writer in state.writers}
    if None in marks.values():
        return [name for name, mark_us in marks.items() if mark_us is None]
    known = [mark_us for mark_us in marks.values() if mark_us is not None]
    gone_on = [*known, *([] if state.last_us is None else [state.last_us])]
    if not known or max(gone_on) == min(known):
        return []
    return [name for name, mark_us in marks.items() if mark_us == min(known)]


def _backlog(history: History, parts: Iterable[Partition]) -> Iterator[Finding]:
    left, shares = behind(history), history[-1].offset.partitions
    parts = sorted(parts)
    if not parts:
        return
    known = sum(left[part] for part in parts if part in left)
    size = sum(shares[part].end_exclusive - shares[part].start_inclusive for part in parts)
    text = (
        f"{known} records or more are left to read after the last batch, which read up to {size}"
        if known
        else f"the last batch was to read {size} records; how many are left is not known here"
    )

    def reading(moment: Moment) -> bool:
        spans = (moment.offset.partitions.get(part) for part in parts)
        return any(span and span.end_exclusive > span.start_inclusive for span in spans)

    yield Finding(Kind.BACKLOG, names(parts), text, since(history, reading), frozenset(parts))


def _idle_partition(history: History, parts: Iterable[Partition]) -> Iterator[Finding]:
    last, parts = history[-1], sorted(parts)
    ctis = [share.state.cti_us for share in last.offset.partitions.values()]
    ahead_us = max((cti_us for cti_us in ctis if cti_us is not None), default=None)
    own_us = last.offset.partitions[parts[0]].state.cti_us
    stand = "its clock" if len(parts) == 1 else "each one's clock"
    stand += " has no CTI" if own_us is None else f" stands at {format_instant(own_us)}"
    others = f"others are up to {format_instant(ahead_us)}" if ahead_us else "others have records"
    yield Finding(
        Kind.IDLE_PARTITION,
        names(parts),
        f"no records are left to read there, and {stand}, while {others}",
        _held_since(history, parts),
        frozenset(parts),
        advice=IN_BOUNDED_RUN if last.offset.bounded else "",
    )


def _silent_writer(history: History, parts: Iterable[Partition]) -> Iterator[Finding]:
    """One finding a writer: the same writer is often silent in every partition."""
    states = {part: history[-1].offset.partitions[part].state for part in sorted(parts)}
    for name in sorted({name for state in states.values() for name in _silent(state)}):
        where = [part for part, state in states.items() if name in _silent(state)]
        mark_us = dict(states[where[0]].writers)[name].mark_us
        mark = "no mark yet" if mark_us is None else f"{format_instant(mark_us)} as its last mark"
        who = f"writer '{name}'" if name else "the marks without a writer"
        yield Finding(
            Kind.SILENT_WRITER,
            f"{who} of {names(where)}",
            f"{who} has {mark}, while other marks or events have gone on",
            _held_since(history, where),
            frozenset(where),
            frozenset((part, name) for part in where),
        )


def _no_cti(history: History, parts: Iterable[Partition]) -> Iterator[Finding]:
    parts, offset = sorted(parts), history[-1].offset
    text = _missing_cti(offset.settings, offset.partitions[parts[0]].state)
    if len(parts) > 1:
        text += f"; so it is in {len(parts)} partitions"
    yield Finding(Kind.NO_CTI, names(parts), text, _held_since(history, parts), frozenset(parts))


def _missing_cti(settings: Mapping[str, str], state: PartitionState) -> str:
    """What is missing for a partition's first CTI."""
    frequency, header = settings.get("ctiFrequency"), settings.get("ctiHeader")
    if not state.events:
        return "no record has been read yet"
    if frequency is None and header is None and "ctiImport" not in settings:
        return "no option makes CTIs while the stream runs: 'ctiFrequency' is not set"
    reasons = []
    if header is not None:
        reasons.append(f"none of {state.events} records had a readable header '{header}'")
    if frequency is not None and frequency.isdigit():
        reasons.append(f"{state.count} events count so far, and 'ctiFrequency' is {frequency}")
    elif frequency is not None and state.last_us is not None and state.base_us is not None:
        span = format_duration(max(state.last_us - state.base_us, 0))
        reasons.append(f"the last event is {span} after the first, 'ctiFrequency' is {frequency}")
    return " and ".join(reasons) or "the events read so far have made none"


def _late_import(history: History, parts: Iterable[Partition]) -> Iterator[Finding]:
    parts, offset = sorted(parts), history[-1].offset
    imported = offset.imported or Imported()
    holding = {
        part: each.cti_us
        for part, each in imported.partitions.items()
        if not (each.ended or each.idle)
    }
    least = merge(holding.values())
    slow = sorted(part for part, cti_us in holding.items() if cti_us == least)
    told = "no CTI yet" if imported.cti_us is None else format_instant(imported.cti_us)
    text = f"the imported CTI is {told}"
    waiting = [pair for part in parts for pair in offset.partitions[part].pending[:1]]
    if waiting:
        until, cti_us = waiting[0]
        text += f"; {format_instant(cti_us)} takes effect once offset {until} has been read"
    else:
        text += f", and {names(parts)} waits for more"
    culprit = f"the import of {names(slow)}" if slow else "option 'ctiImport'"
    began_us = _held_since(history, parts)
    yield Finding(Kind.LATE_IMPORT, culprit, text, began_us, frozenset(parts))


def _held_since(history: History, parts: Iterable[Partition]) -> int | None:
    """Since when the stream's CTI has stood still with the same culprits."""
    now_us, culprits = history[-1].offset.cti_us, frozenset(parts)
    return since(history, lambda m: m.offset.cti_us == now_us and culprits <= holders(m))


_REPORTS: Final = {
    Kind.BACKLOG: _backlog,
    Kind.IDLE_PARTITION: _idle_partition,
    Kind.LATE_IMPORT: _late_import,
    Kind.NO_CTI: _no_cti,
    Kind.SILENT_WRITER: _silent_writer,
}
