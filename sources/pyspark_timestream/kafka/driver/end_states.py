"""Where every clock stands after a batch: what its tasks left in the group, or its records again.

The records are read again for the clock alone: a stream that nothing judges has none, and then only
the counts of those records are missing. What cost time or counts is a finding, so that it is said.

The rules are semantics 8.3.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_timestream.connector.watermark_settings import next_step, reason
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.plan.findings import Finding, Kind, names
from pyspark_timestream.kafka.plan.group_metadata import (
    GroupMetadata,
    cost_without_states,
    decode_group_metadata,
)
from pyspark_timestream.kafka.plan.offset import StreamOffset
from pyspark_timestream.kafka.ranges import Partition, Range

__all__ = ["EndStates", "find_end_states", "start_states"]

_KINDS: Final = (Kind.SESSION_SETTING, Kind.LARGE_CLOCK, Kind.SHARED_GROUP, Kind.UNCOUNTED)


@dataclass(frozen=True, slots=True)
class EndStates:
    """What is known of the end of a batch.

    Attributes:
        states: every partition's clock.
        unfit: how many of its values were no JSON of the schema, as far as tasks have told.
        findings: what the user should know of how that was found.
    """

    states: Mapping[Partition, PartitionState]
    unfit: Mapping[Partition, int]
    findings: tuple[Finding, ...] = ()


def start_states(offset: StreamOffset) -> EndStates:
    """What was known at the start of the batch `offset`, as if nothing had been read."""
    return EndStates(
        {part: share.state for part, share in offset.partitions.items()},
        {part: share.unfit for part, share in offset.partitions.items()},
    )


def find_end_states(
    offset: StreamOffset,
    metadata: Mapping[Partition, str],
    read_again: Callable[[Range], PartitionState] | None,
    group: str,
) -> EndStates:
    """The end states of the batch `offset`.

    Args:
        offset: the batch.
        metadata: the group's metadata of partitions that have any.
        read_again: the clock after a range of the batch, by its records; None: that is not worth
            it, since the state holds nothing but counts.
        group: the consumer group's name.
    """
    begun = start_states(offset)
    states, unfit = dict(begun.states), dict(begun.unfit)
    left: dict[Partition, GroupMetadata] = {}
    for span in offset.ranges():
        if not span.size:
            continue
        part = span.partition
        left[part] = decode_group_metadata(offset, part, metadata.get(part))
        unfit[part] += left[part].unfit
        found = left[part].state
        if found is None and read_again is not None:
            found = read_again(span)
        states[part] = found or states[part]
    if not left:
        return EndStates(states, unfit, _standing(offset))
    findings = [*_broken_settings(left), *_too_long(left, states)]
    if any(each.state is None for each in left.values()):
        findings += _unfound(left, group, is_read_again=read_again is not None)
    return EndStates(states, unfit, tuple(findings))


def _standing(offset: StreamOffset) -> tuple[Finding, ...]:
    """What was found before: a batch without records shows nothing new."""
    given = (offset.warnings.get(kind) for kind in _KINDS)
    return tuple(each.finding for each in given if each is not None and each.holds)


def _broken_settings(left: Mapping[Partition, GroupMetadata]) -> Iterator[Finding]:
    found = {name: value for each in left.values() for name, value in each.settings}
    for name, value in sorted(found.items()):
        text = f"the query runs with '{value}', by which {reason(name)}"
        yield Finding(Kind.SESSION_SETTING, f"setting '{name}'", text, advice=next_step(name))


def _too_long(
    left: Mapping[Partition, GroupMetadata], states: Mapping[Partition, PartitionState]
) -> Iterator[Finding]:
    lengths = {part: each.refused_length for part, each in left.items() if each.refused_length}
    if not lengths:
        return
    longest = max(lengths, key=lambda part: (lengths[part], part))
    # A text that the native gather commits ends with a zero, which the broker counts.
    least = lengths[longest] + 1
    writers = len(states[longest].writers)
    yield Finding(
        Kind.LARGE_CLOCK,
        names(sorted(lengths)),
        f"the clock of {longest}, with {writers} writers, takes {least} characters of the group's "
        "metadata, more than the broker allows: each batch is read a second time to restore it",
        partitions=frozenset(lengths),
        advice=f"raise the broker's setting 'offset.metadata.max.bytes' to {least} at least, or "
        "let fewer writers mark a partition; 'writerTimeout' forgets those that are gone",
    )


def _unfound(
    left: Mapping[Partition, GroupMetadata], group: str, *, is_read_again: bool
) -> Iterator[Finding]:
    others = sorted({each.other_stream for each in left.values() if each.other_stream})
    if others:
        text = f"stream {', '.join(others)} writes over what the tasks of this one leave there: "
        text += cost_without_states(is_read_again)
        yield Finding(Kind.SHARED_GROUP, f"group '{group}'", text)
    elif not is_read_again:
        text = f"what the tasks have counted is not there: {cost_without_states(is_read_again)}"
        yield Finding(Kind.UNCOUNTED, f"group '{group}'", text)
