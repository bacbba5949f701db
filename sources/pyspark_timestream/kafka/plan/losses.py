"""What the broker no longer has: which positions that still exist, and which are lost.

The rules are semantics 9.1.
"""

from collections.abc import Mapping, Set

from pyspark_timestream.errors import LOSS_ADVICE, DataLost
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["made_anew", "proven_same", "reconcile"]


def made_anew(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """The topics that have another id than before: same name, but not the same records."""
    return frozenset(topic for topic, each in now.items() if before.get(topic, each) != each)


def proven_same(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """The topics whose id is known to be what it was."""
    return frozenset(topic for topic, each in now.items() if before.get(topic) == each)


def reconcile(
    wanted: Mapping[Partition, int],
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    fail_on_data_loss: bool,
    anew: Set[str] = frozenset(),
    same: Set[str] = frozenset(),
) -> tuple[dict[Partition, int], list[str]]:
    """Where to read on, given what the broker still has.

    Args:
        wanted: the next offset to read of each partition.
        earliest: the first offset that each still has.
        ends: the offset after the last one; without partitions that do not exist.
        fail_on_data_loss: a loss is an error.
        anew: the topics that were deleted and created anew.
        same: the topics that are certainly those that were read before.

    Returns:
        The positions of the partitions that still exist; and what was lost, in words.

    Raises:
        DataLost: something was lost and `fail_on_data_loss`.
    """
    positions, losses = dict(wanted), []
    for part, position in sorted(wanted.items()):
        if part not in ends:
            losses.append(f"{part} is gone; it was read up to offset {position}")
            del positions[part]
        elif part.topic in anew:
            losses.append(
                f"{part} was read up to offset {position}, but its topic has been deleted and "
                "created anew since"
            )
            positions[part] = earliest.get(part, 0)
        elif ends[part] < position and part.topic in same:
            losses.append(
                f"{part} ends at offset {ends[part]}, but was read up to {position}: the end of "
                "its log is lost, as after an unclean leader election; what was written since then "
                f"below offset {ends[part]} is not read"
            )
            positions[part] = ends[part]
        elif ends[part] < position:
            losses.append(
                f"{part} ends at offset {ends[part]}, but was read up to {position}: the topic "
                "was truncated or created anew"
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
