"""Reading a range of one partition into columns, and leaving clocks in the group's metadata.

`RangeReader` decides what becomes of losses and errors; its consumer brings the records as columns.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.errors import LOSS_ADVICE, BrokerUnreachable, DataLost
from pyspark_timestream.kafka_client import (
    GONE,
    REQUEST_TIMEOUT_S,
    consumer_config,
    made,
    passes,
    said,
)
from pyspark_timestream.kafka_messages import ColumnConsumer, MessageConsumer, Problem
from pyspark_timestream.kafka_native import NativeConsumer
from pyspark_timestream.kafka_options import KafkaOptions
from pyspark_timestream.native_gather import native_gather
from pyspark_timestream.ranges import Partition, Range
from pyspark_timestream.records import Needs, RecordBlock
from pyspark_timestream.stock import Stock

__all__ = ["RangeReader", "borrowed_reader"]

_LOG: Final = logging.getLogger(__name__)

_WAIT_S: Final = 0.05
"""How long a read waits to fill a block; what a range that ends in a gap costs."""

_METADATA_LIMIT: Final = 4_000
"""Brokers refuse group metadata above 4096 bytes by default (`offset.metadata.max.bytes`)."""

_COMMIT_PAUSE_S: Final = 60.0
_MOST_RENEWALS: Final = 3
"""How often a position that the broker does have is asked for again with a new consumer."""


class RangeReader:
    """Reads ranges into columns with one consumer, kept from range to range.

    Args:
        options: the client configuration and how patient to be.
        group: the consumer group in whose metadata states are left.
    """

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self._options = options
        self._config = consumer_config(options, group)
        self._next_commit_s = float("-inf")
        self._consumer = self._new_consumer()

    def read(self, span: Range, needs: Needs) -> Iterator[RecordBlock]:
        """The records of `span` in blocks, in offset order.

        The range ends by position, not by count: transactions and compaction leave gaps.

        Raises:
            DataLost: records of the range are gone, and option `failOnDataLoss` is true.
            BrokerUnreachable: no progress for `kafkaConsumer.pollTimeoutMs`.
        """
        position, end, renewals = span.start_inclusive, span.end_exclusive, 0
        self._consumer.aim(span.partition, position)
        patience_s = self._options.poll_timeout_ms / 1_000
        deadline, trouble = time.monotonic() + patience_s, ""
        while position < end:
            taken = self._consumer.take(span, position, needs, min(_WAIT_S, patience_s))
            if taken.block is not None:
                yield taken.block
            reached = taken.reached
            for problem in taken.problems:
                if not _is_of_lost_records(problem, span):
                    trouble = self._tolerated(problem, span)
                elif not 0 <= problem.offset < reached:
                    renewals += 1
                    reached = self._after_loss(span, reached, problem, renewals)
            if reached > position:
                position, deadline = reached, time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                raise self._stuck(span, position, trouble)
        # What was fetched past the range would only fill memory until the next one.
        self._consumer.rest()

    def leave(self, states: Mapping[Partition, tuple[int, str]]) -> None:
        """Commit (offset, metadata) of partitions to the group; best effort.

        What the broker refuses is read again by the driver: slower, never wrong.
        """
        if time.monotonic() < self._next_commit_s:
            return
        refusal = self._consumer.commit_offsets(
            {part: (offset, _fitting(metadata)) for part, (offset, metadata) in states.items()}
        )
        if refusal is not None:
            # A group that is forbidden would otherwise cost every batch the same wait.
            self._next_commit_s = time.monotonic() + _COMMIT_PAUSE_S
            _LOG.warning(
                "offsets cannot be committed to group '%s' (%s): clocks are restored by reading "
                "each batch's records again, and lag tools do not see this query",
                self._config["group.id"],
                refusal,
            )

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close()

    def _new_consumer(self) -> ColumnConsumer:
        gather = native_gather()
        if gather is None:
            return made(self._options, lambda: MessageConsumer(self._config))
        return made(self._options, lambda: NativeConsumer(self._config, gather))

    def _after_loss(self, span: Range, position: int, problem: Problem, renewals: int) -> int:
        """Where to go on after the broker has refused `position`, where the options allow it."""
        earliest, end = self._existing(span)
        if earliest <= position <= end and renewals <= _MOST_RENEWALS:
            # The refusal is older than this range, or than the topic that bears its name now.
            # The new one first: where it cannot be had, the old one is not closed a second time.
            old, self._consumer = self._consumer, self._new_consumer()
            old.close()
            self._consumer.aim(span.partition, position)
            return position
        what = (
            f"{span.partition}: offset {position} can no longer be read: "
            f"{problem.error.str()}; offsets {earliest} to {end} exist"
        )
        if self._options.fail_on_data_loss:
            raise DataLost(f"{what}. {LOSS_ADVICE}")
        resumed = earliest if position < earliest < span.end_exclusive else span.end_exclusive
        _LOG.warning("%s; going on at offset %d", what, resumed)
        self._consumer.aim(span.partition, resumed)
        return resumed

    def _existing(self, span: Range) -> tuple[int, int]:
        """The first offset that exists, and the one after the last; (0, 0) where none does."""
        try:
            return self._consumer.existing(span.partition, REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() in GONE:
                return 0, 0
            raise BrokerUnreachable(f"{span.partition}: {said(error)}") from error

    def _tolerated(self, problem: Problem, span: Range) -> str:
        """The text of an error that may pass, or is not about the range at all.

        Raises:
            BrokerUnreachable: it is about the range and does not pass, such as missing rights.
        """
        error = problem.error
        if _is_about(problem, span) and not passes(KafkaException(error)):
            raise BrokerUnreachable(f"{span.partition}: {error.str()}")
        # The group is only a place to leave clocks in: what it refuses must not stop the reading.
        return str(error.str())

    def _stuck(self, span: Range, position: int, trouble: str) -> BrokerUnreachable:
        why = f" ({trouble})" if trouble else ""
        return BrokerUnreachable(
            f"{span.partition}: no progress at offset {position} (of {span.end_exclusive}) for "
            f"{self._options.poll_timeout_ms} ms{why}; check the broker, or raise option "
            "'kafkaConsumer.pollTimeoutMs'"
        )


_STOCK: Final[Stock[RangeReader]] = Stock(most=4, idle_s=300)
"""Several queries of one application share workers."""


def borrowed_reader(options: KafkaOptions, group: str) -> AbstractContextManager[RangeReader]:
    """A reader from this process's stock; it goes back there unless something went wrong."""
    key = (group, options.poll_timeout_ms, options.fail_on_data_loss, *options.client.items())
    return _STOCK.borrowed(key, lambda: RangeReader(options, group))


def _is_about(problem: Problem, span: Range) -> bool:
    return (problem.topic, problem.partition) == span.partition


def _is_of_lost_records(problem: Problem, span: Range) -> bool:
    """Whether an error says that an offset of the range's partition cannot be read.

    It counts for nothing where its offset has been passed: a consumer's queue may still hold errors
    of the range before, and the same one twice.
    """
    lost = problem.error.code() in (KafkaError._AUTO_OFFSET_RESET, *GONE)
    return lost and _is_about(problem, span)


def _fitting(metadata: str) -> str:
    return metadata if len(metadata) <= _METADATA_LIMIT else ""
