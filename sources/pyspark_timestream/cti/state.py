"""The state of a partition between two records, which the rules fold.

It round-trips through JSON, because it is part of the Spark offset.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark_timestream.cti.clues import Clues

__all__ = ["COUNTERS", "PartitionState", "WriterState", "raise_cti"]

COUNTERS: Final = (
    "events",
    "dropped",
    "adjusted",
    "flagged",
    "malformed",
    "tombstones",
    "future",
    "ctis",
    "ignoredCtis",
    "outside",
)


class WriterState(NamedTuple):
    """One writer of in-band CTIs (semantics 4.2), or with a clock of its own (4.8).

    Attributes:
        mark_us: its greatest mark, or its CTI; None: it has none yet.
        seen_us: the greatest record timestamp of the partition by its last mark or event, or, for a
            listed writer that has yet to come, by the first record; None: no record had a timestamp
            yet, or silence does not matter.
        counted: its counted events since its counter last restarted; only with its own clock.
        base_us: the time from which its timespan is measured; None as well without one.
    """

    mark_us: int | None = None
    seen_us: int | None = None
    counted: int = 0
    base_us: int | None = None

    def to_json(self) -> list[int | None]:
        """A short list: the base is written as its distance from the mark, if both are known."""
        if self.base_us is not None:
            return [*self[:3], self.base_us - (self.mark_us or 0)]
        return [*self[:3]] if self.counted else [*self[:2]]

    @classmethod
    def from_json(
        cls,
        mark_us: int | None,
        seen_us: int | None,
        counted: int = 0,
        base_us: int | None = None,
    ) -> "WriterState":
        """The state that `to_json` wrote."""
        base_us = None if base_us is None else base_us + (mark_us or 0)
        return cls(mark_us, seen_us, counted, base_us)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition between two records.

    Attributes:
        cti_us: the CTI in force; None before the first.
        count: counted events since the counter last restarted.
        base_us: the time from which a timespan is measured; None before the first counted event.
        events: received events, malformed ones included.
        dropped: late events that the policy dropped.
        adjusted: late events whose start or end was moved.
        flagged: late events that were passed on.
        malformed: malformed events that have a value, under every policy.
        future: events in the future, under every policy.
        ctis: CTIs that took effect.
        ignored_ctis: marks that moved no CTI: not above the one in force, or unreadable.
        last_us: the time that the last well-formed event was judged by; None before the first.
        writers: the writers that are live or waited for, in the order of their names; the name ""
            stands for the partition's own marks.
        noted_us: the greatest mark that any named writer ever noted; None before the first.
        record_us: the greatest record timestamp so far; only kept with `writerTimeout` or
            `writerGrace`.
        first_us: the first record timestamp; only kept with `writerGrace`.
        begun: `writers` has the listed writers.
        outside: events that became no row because they are outside the span of a replay.
        tombstones: malformed events without a value, under every policy.
        clues: notes for diagnosis, on which no rule depends.
    """

    cti_us: int | None = None
    count: int = 0
    base_us: int | None = None
    events: int = 0
    dropped: int = 0
    adjusted: int = 0
    flagged: int = 0
    malformed: int = 0
    ctis: int = 0
    ignored_ctis: int = 0
    last_us: int | None = None
    writers: tuple[tuple[str, WriterState], ...] = ()
    noted_us: int | None = None
    record_us: int | None = None
    begun: bool = False
    future: int = 0
    first_us: int | None = None
    outside: int = 0
    tombstones: int = 0
    clues: Clues = Clues()

    def to_json(self) -> dict[str, Any]:
        """A JSON object; counters and fields at their start value are left out."""
        defaults = PartitionState()
        names = (field.name for field in dataclasses.fields(self))
        values = {name: getattr(self, name) for name in names}
        fields = {
            name: value
            for name, value in sorted(values.items())
            if value != getattr(defaults, name)
        }
        if self.writers:
            fields["writers"] = [[name, *writer.to_json()] for name, writer in self.writers]
        if "clues" in fields:
            fields["clues"] = self.clues.to_json()
        return fields

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "PartitionState":
        """The state that `to_json` wrote."""
        state = cls(**value)
        parsed: Any = state.writers
        writers = tuple((name, WriterState.from_json(*values)) for name, *values in parsed)
        clues = Clues.from_json(value.get("clues", {}))
        return dataclasses.replace(state, writers=writers, clues=clues)

    def counters(self) -> dict[str, int]:
        """The counters by their public names, in the order of `COUNTERS`."""
        return {
            name: self.ignored_ctis if name == "ignoredCtis" else getattr(self, name)
            for name in COUNTERS
        }


def raise_cti(state: PartitionState, cti_us: int) -> PartitionState:
    """`state` with the CTI `cti_us` in force, if that is greater; counter and base stay."""
    if state.cti_us is not None and state.cti_us >= cti_us:
        return state
    return dataclasses.replace(state, cti_us=cti_us, clues=state.clues._replace(lead_us=None))
