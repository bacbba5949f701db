"""Restores the clocks after a batch from the broker (semantics 8.3).

The rules are in `end_states`. This asks the group for what the tasks committed, and reads the
records again of which no state is there.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.errors import DataLost
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.driver.end_states import EndStates, copy_start_states, find_end_states
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.plan.offset import StreamOffset, group_name
from pyspark_timestream.kafka.plan.tasks import TaskRange
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.kafka.task import compute_end_state

__all__ = ["find_restored_states", "read_again"]

_LOG: Final = logging.getLogger(__name__)


class Group(Protocol):
    """The query that is sent to the broker."""

    def committed_metadata(self, partitions: Sequence[Partition]) -> Mapping[Partition, str]:
        """Return the metadata that tasks committed."""


def find_restored_states(
    options: KafkaOptions,
    offset: StreamOffset,
    broker: Group,
    read_again: Callable[[Range], PartitionState],
) -> EndStates:
    """Return the clocks after the batch `offset`; `read_again` restores one from its records.

    Raises:
        DataLost: no task committed a state, and its records are gone.
    """
    if options.is_cut:
        # No task sees a whole partition, and without CTIs a state only holds counts.
        return copy_start_states(offset)
    left = broker.committed_metadata([span.partition for span in offset.ranges() if span.size])
    own = group_name(options.group_prefix, offset.stream)
    again = read_again if options.is_ordered else None
    return find_end_states(offset, left, again, options.client.get("group.id", own))


def read_again(
    options: KafkaOptions,
    offset: StreamOffset,
    span: Range,
    create_reader: Callable[[KafkaOptions, str], RangeReader],
) -> PartitionState:
    """Restore a state that no task committed, by reading `span` again.

    Raises:
        DataLost: its records are gone.
    """
    state = offset.partitions[span.partition].state
    _LOG.info("reading %s again: no task committed its state to the group", span)
    reader = create_reader(options, group_name(options.group_prefix, offset.stream))
    try:
        return compute_end_state(options, TaskRange(span, state), reader.read)
    except DataLost as error:
        raise DataLost(
            f"no task committed the clock of {span.partition} after offset "
            f"{span.end_exclusive - 1}, and reading its records again failed: {error}"
        ) from error
    finally:
        reader.close()
