"""Reconciles a stream's positions with what the broker still has (semantics 9.1)."""

from collections.abc import Mapping, Set
from typing import Final

from pyspark_timestream.errors import LOSS_ADVICE, DataLost
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["LEADER_CHANGE_GRACE_S", "reconcile", "recreated_topics", "unchanged_topics"]

LEADER_CHANGE_GRACE_S: Final = 5.0
"""How long a partition must be missing, or its log shorter, before that is believed."""


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
