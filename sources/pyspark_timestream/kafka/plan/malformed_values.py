"""Counts of malformed payloads by reason, as tasks, group metadata and offsets pass them on.

A record whose value or key is malformed counts once, for its value's reason or else its key's, by
the names that a column of dead letters shows (semantics 13.5).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = ["NEXT_STEPS", "NO_MALFORMED_VALUES", "MalformedValues"]

NEXT_STEPS: Final[Mapping[str, str]] = {
    "framing": (
        "compare 'valueFraming' with the producer's serializer: 'confluent' and 'header' expect a "
        "schema id, 'none' expects the payload alone"
    ),
    "syntax": (
        "compare 'valueFormat' and the schema with what the producer writes; a column of "
        "'columnNameOfCorruptRecord' shows such values, so that they can go to a topic of their own"
    ),
    "type": (
        "correct the column's type in .schema(...), or declare it a string if the format allows"
    ),
    "name": (
        "nothing, if the topic has several record types: option 'valueMessage' names the one that "
        "is read, and a query of its own reads another"
    ),
    "key framing": (
        "compare 'keyFraming' with the producer's serializer: 'confluent' and 'header' expect a "
        "schema id, 'none' expects the payload alone"
    ),
    "key syntax": (
        "compare 'keyFormat' and the key's schema with what the producer writes; read the column "
        "'key' beside them to see such keys"
    ),
    "key type": (
        "correct the type of the key's column in .schema(...), or declare it a string if the "
        "format allows"
    ),
    "key name": (
        "nothing, if the topic has keys of several types: option 'keyMessage' names the one that "
        "is read"
    ),
}
"""Reason -> the next step of a user."""


@dataclass(frozen=True, slots=True)
class MalformedValues:
    """Numbers of records whose value or key is malformed.

    Attributes:
        total: all of them.
        by_reason: (reason, number) in the order of reasons, without zeros. The rest of the total
            was counted by a version that did not note reasons.
        value_at: the offset of a record with one, as an example; None without any.
        event_at: the offset of a malformed event that has a value; None without any.
        time_at: the offset of an event of early 1970; None without any.
    """

    total: int = 0
    by_reason: tuple[tuple[str, int], ...] = ()
    value_at: int | None = None
    event_at: int | None = None
    time_at: int | None = None

    @classmethod
    def from_reasons(cls, counts: Mapping[str, int]) -> "MalformedValues":
        """Return the numbers of records that are malformed for each reason."""
        return cls(sum(counts.values()), _sort(counts))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "MalformedValues":
        """Read what `to_json` wrote, in this version or one without reasons."""
        return cls(
            value.get("unfit", 0),
            _sort(value.get("unfit_by", {})),
            value.get("unfit_at"),
            value.get("unfit_event_at"),
            value.get("unfit_time_at"),
        )

    def to_json(self) -> dict[str, Any]:
        """Return entries for a JSON object, with sorted keys; without any number, none."""
        found: dict[str, Any] = {"unfit": self.total or None}
        found["unfit_at"] = self.value_at
        found["unfit_by"] = dict(self.by_reason) or None
        found["unfit_event_at"] = self.event_at
        found["unfit_time_at"] = self.time_at
        return {name: value for name, value in found.items() if value is not None}

    @property
    def unexplained(self) -> int:
        """The number of those without a reason."""
        return self.total - sum(count for _, count in self.by_reason)

    def __add__(self, other: "MalformedValues") -> "MalformedValues":
        return MalformedValues(
            self.total + other.total,
            self._combine(other, 1),
            self.value_at if other.value_at is None else other.value_at,
            self.event_at if other.event_at is None else other.event_at,
            self.time_at if other.time_at is None else other.time_at,
        )

    def __sub__(self, other: "MalformedValues") -> "MalformedValues":
        return replace(self, total=self.total - other.total, by_reason=self._combine(other, -1))

    def _combine(self, other: "MalformedValues", sign: int) -> tuple[tuple[str, int], ...]:
        counts = dict(self.by_reason)
        for reason, count in other.by_reason:
            counts[reason] = counts.get(reason, 0) + sign * count
        return _sort(counts)


def _sort(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((reason, count) for reason, count in counts.items() if count))


NO_MALFORMED_VALUES: Final = MalformedValues()
