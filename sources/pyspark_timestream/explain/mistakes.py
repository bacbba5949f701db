"""Mistakes that a stream's counters show: times that cannot be read or true, values, late rows.

Each rule looks at the clocks before the last batch of a history, and at the batches before only to
say since when. So a driver that has just planned and a reader of a checkpoint find the same.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pyspark_timestream.connector.instants import FINAL_US, format_instant, parse_instant
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.explain.history import History, Moment, since
from pyspark_timestream.kafka.plan.findings import Finding, Kind, names
from pyspark_timestream.kafka.ranges import Partition

__all__ = [
    "improbable_times",
    "late_rows",
    "makes_ctis",
    "malformed_events",
    "start_at_end",
    "wrong_types",
]

_EPOCH_END_US: Final = parse_instant("1970-04-01T00:00:00Z")
"""Numbers of seconds up to the year 2100, read as milliseconds, lie before this."""

_FAR_US: Final = parse_instant("2100-01-01T00:00:00Z")
_DAY_US: Final = 86_400_000_000
_COUNTED: Final = 10
"""So many partitions are named with their counts before the rest is summed up."""


def malformed_events(history: History) -> Iterator[Finding]:
    """A finding for the partitions at least half of whose events are malformed."""
    parts = _where(history[-1], lambda state: 2 * state.malformed >= state.events > 0)
    if not parts or not _needs_times(history[-1]):
        return
    states = _states(history[-1])
    malformed = sum(states[part].malformed for part in parts)
    events = sum(states[part].events for part in parts)
    settings = history[-1].offset.settings
    yield Finding(
        Kind.MALFORMED,
        names(parts),
        f"{malformed} of {events} events have no time that can be read ({_sources(settings)})",
        since(history, _counted(parts, "malformed")),
        frozenset(parts),
    )


def improbable_times(history: History) -> Iterator[Finding]:
    """A finding for the partitions whose last event is of early 1970, or of 2100 or later."""
    states = _states(history[-1])
    parts = _where(history[-1], lambda state: _is_improbable(state.last_us))
    if not parts or not _needs_times(history[-1]):
        return
    last_us = states[parts[0]].last_us or 0
    settings = history[-1].offset.settings
    yield Finding(
        Kind.IMPROBABLE_TIMES,
        names(parts),
        f"the last event there is of {format_instant(last_us)}; option 'timeUnit' is "
        f"'{settings.get('timeUnit', 'ms')}', and the time comes from {_sources(settings)}",
        None,
        frozenset(parts),
    )


def wrong_types(history: History) -> Iterator[Finding]:
    """A finding for the partitions most of whose values are no JSON of the schema."""
    shares = history[-1].offset.partitions
    parts = sorted(p for p, share in shares.items() if 2 * share.unfit >= share.state.events > 0)
    if not parts:
        return
    unfit = sum(shares[part].unfit for part in parts)
    events = sum(shares[part].state.events for part in parts)

    def counted(moment: Moment) -> bool:
        return any(p in moment.offset.partitions and moment.offset.partitions[p].unfit
                   for p in parts)  # fmt: skip

    yield Finding(
        Kind.WRONG_TYPE,
        names(parts),
        f"{unfit} of {events} values are no JSON of the schema; what does not fit is null",
        since(history, counted),
        frozenset(parts),
    )


def late_rows(history: History) -> Iterator[Finding]:
    """A finding for the partitions that have dropped late events; its level doubles with them."""
    dropped = {part: state.dropped for part, state in _states(history[-1]).items() if state.dropped}
    if not dropped:
        return
    parts = sorted(dropped, key=lambda part: (-dropped[part], part))
    total, events = sum(dropped.values()), sum(s.events for s in _states(history[-1]).values())
    counts = [f"{dropped[part]} of {part}" for part in parts[:_COUNTED]]
    rest = sum(dropped[part] for part in parts[_COUNTED:])
    if rest:
        counts.append(f"{rest} of {len(parts) - _COUNTED} more partitions")
    yield Finding(
        Kind.LATE_ROWS,
        names(parts),
        f"{total} of {events} events came after a CTI that they precede and were dropped: "
        + ", ".join(counts),
        since(history, _counted(parts, "dropped")),
        frozenset(parts),
        level=total.bit_length(),
    )


def start_at_end(passed_over: int) -> Finding:
    """The finding of a bounded run that starts where it ends, and leaves out so many records."""
    return Finding(
        Kind.START_AT_END,
        "option 'startingOffsets'",
        "it was not given, so this new query starts at the latest offsets, and a bounded run ends "
        f"there as well: {passed_over} records that are in the topics are not read",
    )


def _is_improbable(us: int | None) -> bool:
    return us is not None and (-_DAY_US <= us < _EPOCH_END_US or _FAR_US <= us < FINAL_US)


def makes_ctis(moment: Moment) -> bool:
    """Whether some option makes CTIs while the stream runs."""
    settings = moment.offset.settings
    return not settings.keys().isdisjoint(("ctiFrequency", "ctiHeader", "ctiImport"))


def _needs_times(moment: Moment) -> bool:
    """Whether somebody has asked for event times: not who uses the format as Spark's own source."""
    return makes_ctis(moment) or moment.offset.settings.get("startTime", "timestamp") != "timestamp"


def _states(moment: Moment) -> Mapping[Partition, PartitionState]:
    return {part: share.state for part, share in moment.offset.partitions.items()}


def _where(moment: Moment, holds: Callable[[PartitionState], bool]) -> list[Partition]:
    return sorted(part for part, state in _states(moment).items() if holds(state))


def _counted(parts: list[Partition], counter: str) -> Callable[[Moment], bool]:
    """Whether something had been counted then."""

    def counted(moment: Moment) -> bool:
        shares = (moment.offset.partitions.get(part) for part in parts)
        return any(share is not None and getattr(share.state, counter) > 0 for share in shares)

    return counted


def _sources(settings: Mapping[str, str]) -> str:
    """The options that say where the times are, in words."""
    given = [
        (name, settings[name]) for name in ("startTime", "endTime", "edge") if name in settings
    ]
    return ", ".join(f"option '{name}' is '{value}'" for name, value in given)
