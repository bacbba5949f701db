"""Reconciles a stream's positions with what the broker still has (semantics 5.6, 9.1)."""

import dataclasses
from collections.abc import Collection, Mapping, Set
from typing import Final

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.errors import LOSS_ADVICE, DataLost
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.ranges import Partition

__all__ = [
    "LEADER_CHANGE_GRACE_S",
    "hide_missing",
    "reconcile",
    "recreated_topics",
    "unchanged_topics",
]

LEADER_CHANGE_GRACE_S: Final = 5.0
"""How long a partition must be missing, or its log shorter, before that is believed."""

_MAX_HIDDEN_US: Final = 7 * 86_400_000_000
"""How long a missing partition may return: as long as Kafka keeps a group's offsets."""


def recreated_topics(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return the topics whose id has changed: they have the same name but other records."""
    return frozenset(topic for topic, each in now.items() if before.get(topic, each) != each)


def unchanged_topics(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return the topics whose id is known to be the same as before."""
    return frozenset(topic for topic, each in now.items() if before.get(topic) == each)


def reconcile(
    wanted: Mapping[Partition, int],
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    fail_on_data_loss: bool,
    recreated: Set[str] = frozenset(),
    unchanged: Set[str] = frozenset(),
) -> tuple[dict[Partition, int], list[str]]:
    """Find the positions to continue at, given what the broker still has.

    Args:
        wanted: the next offset to read of each partition.
        earliest: the first offset of each that still exists.
        ends: the end offset of each; missing partitions are left out.
        fail_on_data_loss: a loss is an error.
        recreated: the topics that were deleted and created again.
        unchanged: the topics that are certainly those read before.

    Returns:
        The positions of the partitions that still exist, and a text for each loss.

    Raises:
        DataLost: something was lost and `fail_on_data_loss`.
    """
    positions, losses = dict(wanted), []
    for part, position in sorted(wanted.items()):
        if part not in ends:
            losses.append(f"{part} is gone; it was read up to offset {position}")
            del positions[part]
        elif part.topic in recreated:
            losses.append(
                f"{part} was read up to offset {position}, but its topic has been deleted and "
                "created again since"
            )
            positions[part] = earliest.get(part, 0)
        elif ends[part] < position and part.topic in unchanged:
            losses.append(
                f"{part} ends at offset {ends[part]}, but was read up to {position}: the end of "
                "its log is lost, as after an unclean leader election; what was written since then "
                f"below offset {ends[part]} is not read"
            )
            positions[part] = ends[part]
        elif ends[part] < position:
            losses.append(
                f"{part} ends at offset {ends[part]}, but was read up to {position}: the topic "
                "was truncated or created again"
            )
            positions[part] = earliest.get(part, 0)
        elif earliest.get(part, position) > position:
            losses.append(
                f"{part} begins at offset {earliest[part]}: offsets {position} to "
                f"{earliest[part] - 1} were deleted before they were read"
            )
            positions[part] = earliest[part]
    if losses and fail_on_data_loss:
        raise DataLost(f"{'; '.join(losses)}. {LOSS_ADVICE}")
    return positions, losses


def hide_missing(
    previous: StreamOffset,
    ended: Mapping[Partition, PartitionState],
    existing: Collection[Partition],
    topic_ids: Mapping[str, str],
    now_us: int,
) -> dict[Partition, PartitionOffset]:
    """Keep missing partitions whose topic id can prove that they are the same when they return.

    Args:
        previous: the offset of the last batch.
        ended: the end state of each partition of `previous`, hidden ones included.
        existing: the partitions that exist now.
        topic_ids: the ids that the topics have now, as far as they are known.
        now_us: the wall clock.
    """
    gone = {
        part: dataclasses.replace(
            share,
            start_inclusive=share.end_exclusive,
            state=ended[part],
            idle=False,
            quiet_since_us=now_us,
        )
        for part, share in previous.partitions.items()
        if part not in existing and part in ended
    }
    return {
        part: share
        for part, share in {**previous.hidden, **gone}.items()
        if part not in existing
        and previous.topic_ids.get(part.topic, "") == topic_ids.get(part.topic)
        and now_us - (share.quiet_since_us or 0) < _MAX_HIDDEN_US
    }
