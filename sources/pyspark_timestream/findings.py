"""What can be wrong with a stream: kinds, culprits and fixes, as the README lists them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark_timestream.ranges import Partition

__all__ = ["FIXES", "Finding", "Kind", "names"]

_NAMED: Final = 3
"""How many partitions a sentence names before it says how many more there are."""


class Kind(StrEnum):
    """What can be found; the README has an entry of the same name for each."""

    IDLE_PARTITION = "an idle partition"
    SILENT_WRITER = "a silent writer"
    FAR_FUTURE = "an event far in the future"
    BACKLOG = "a backlog"
    NO_CTI = "no CTI yet"
    LATE_IMPORT = "a late import"
    EVERYTHING_DROPPED = "everything dropped"
    FINAL_CTI = "a final CTI already sent"
    CAUGHT_UP = "nothing holds it back"


FIXES: Final[Mapping[Kind, str]] = {
    Kind.IDLE_PARTITION: (
        "set option 'idleTimeout', so that a partition without new records stops counting; or "
        "see to it that every partition gets records"
    ),
    Kind.SILENT_WRITER: (
        "let the writer note the time, or close it (PunctuatedProducer.close()); option "
        "'writerTimeout', on a new checkpoint, forgets writers that stay silent"
    ),
    Kind.FAR_FUTURE: (
        "a CTI never goes back: correct the producer, then start with a new checkpoint and "
        "option 'maxFuture', such as '1 hour', so that one wrong event cannot drive the clock"
    ),
    Kind.BACKLOG: (
        "wait, or raise 'maxOffsetsPerTrigger' or leave it out; more partitions and cores read "
        "faster"
    ),
    Kind.NO_CTI: (
        "see to it that records come, from where 'startingOffsets' says, and reach "
        "'ctiFrequency' or carry 'ctiHeader'; a smaller 'ctiFrequency' needs a new checkpoint"
    ),
    Kind.LATE_IMPORT: (
        "see to it that the imported topic goes on, and that its own CTIs advance: it is read "
        "from its earliest offset with the settings in 'ctiImport'"
    ),
    Kind.EVERYTHING_DROPPED: (
        "start with a new checkpoint and a larger 'ctiDelay', or with 'violationPolicy' = 'flag' "
        "to see the late rows; where events are malformed, correct 'startTime' and 'timeUnit'"
    ),
    Kind.FINAL_CTI: (
        "start with a new checkpoint; for a job that comes back set 'finalCti' to 'false' from "
        "the beginning"
    ),
    Kind.CAUGHT_UP: (
        "nothing to mend: a result appears once the CTI has passed it, one batch later; new "
        "records move the CTI on"
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: what it is.
        culprit: who is to blame, in words: partitions, a writer, a topic, an option.
        text: what was seen, one sentence or two.
        since_us: the wall clock since when, as far as the history reaches; None: it does not say.
        partitions: the partitions concerned.
        writers: the (partition, writer's name) concerned.
    """

    kind: Kind
    culprit: str
    text: str
    since_us: int | None = None
    partitions: frozenset[Partition] = frozenset()
    writers: frozenset[tuple[Partition, str]] = frozenset()

    @property
    def fix(self) -> str:
        """What to do about it."""
        return FIXES[self.kind]


def names(parts: Sequence[Partition]) -> str:
    """Partitions as a sentence names them: the first few, then how many more.

    >>> names([Partition("t", number) for number in range(5)])
    "topic 't' partition 0, topic 't' partition 1, topic 't' partition 2 and 2 more"
    """
    shown = ", ".join(str(part) for part in parts[:_NAMED])
    return shown if len(parts) <= _NAMED else f"{shown} and {len(parts) - _NAMED} more"
