"""Reading a range of one partition into columns, and leaving clocks in the group's metadata.

`RangeReader` decides what becomes of losses and errors; its consumer brings the records as columns.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.errors import LOSS_ADVICE, BrokerUnreachable, DataLost
from pyspark_timestream.kafka.client.broker_errors import (
    answered_too_long,
    is_refused,
    no_answer,
    request_refused,
)
from pyspark_timestream.kafka.client.client_log import ClientLog, Complaint
from pyspark_timestream.kafka.client.config import consumer_config, made
from pyspark_timestream.kafka.client.consumer import ColumnConsumer, MessageConsumer, Problem, Taken
from pyspark_timestream.kafka.client.fetch_size import CAREFUL, inflation_of
from pyspark_timestream.kafka.client.native.consumer import NativeConsumer
from pyspark_timestream.kafka.client.native.library import native_gather
from pyspark_timestream.kafka.client.pool import Stock
from pyspark_timestream.kafka.client.retry import (
    API_TIMEOUT_S,
    GONE,
    SETTLING_S,
    Patience,
    answer_text,
    is_retriable,
)
from pyspark_timestream.kafka.decode.records import Needs, RecordBlock
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.plan.group_metadata import cost_without_states, without_state
from pyspark_timestream.kafka.ranges import Partition, Range

__all__ = ["RangeReader", "borrowed_reader"]

_LOG: Final = logging.getLogger(__name__)

_WAIT_S: Final = 0.05
"""How long a read waits to fill a block; what a range that ends in a gap costs."""

_TOO_LONG: Final = KafkaError.OFFSET_METADATA_TOO_LARGE
_COMMIT_PAUSE_S: Final = 60.0
_LOOK_S: Final = 1.0

_SIZES: Final = frozenset(("fetch.message.max.bytes", "max.partition.fetch.bytes"))
_UNCOUNTED: Final = {"fetch.message.max.bytes": 16 * 1024}
"""Without the gather nobody knows how much an answer inflates, so that all must be small."""


class RangeReader:
    """Reads ranges into columns with one consumer, kept from range to range.

    Args:
        options: the client configuration and how patient to be.
        group: the consumer group in whose metadata states are left.
    """

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self._options = options
        self._config = consumer_config(options, group)
        self._inflation = inflation_of(options.client["bootstrap.servers"])
        self._poll_timeout_s = options.poll_timeout_ms / 1_000
        self._log = ClientLog(options.client)
        self._is_connected = False
        self._next_commit_s = float("-inf")
        self._next_long_s = float("-inf")
        self._length_limit = sys.maxsize
        # librdkafka's own settings are the user's to choose; without the gather nobody counts.
        self._adapts = native_gather() is not None and _SIZES.isdisjoint(options.client)
        self._counted = 0
        self._is_careful = any(map(self._needs_care, options.subscribe or [""]))
        self._consumer = self._new_consumer()
        self._spare: ColumnConsumer | None = None

    def read(self, span: Range, needs: Needs) -> Iterator[RecordBlock]:
        """The records of `span` in blocks, in offset order.

        The range ends by position, not by count: transactions and compaction leave gaps.

        Raises:
            DataLost: records of the range are gone, and option `failOnDataLoss` is true.
            BrokerUnreachable: no progress for `kafkaConsumer.pollTimeoutMs`, or a broker refuses;
                where none has ever answered, after `kafkaConsumer.connectTimeoutMs`.
        """
        position, end = span.start_inclusive, span.end_exclusive
        self._aim(span.partition, position)
        since_s = time.monotonic()
        trouble: str | None = None
        loss: Patience | None = None
        while position < end:
            taken = self._take(span, position, needs)
            if taken.block is not None:
                yield taken.block
            reached = taken.reached
            self._is_connected |= reached > position
            for problem in taken.problems:
                if not _is_of_lost_records(problem, span):
                    trouble = self._tolerated(problem, span)
                elif not 0 <= problem.offset < reached:
                    loss = loss or Patience(API_TIMEOUT_S)
                    reached = self._after_loss(span, reached, problem, loss)
            if reached > position:
                position, since_s, trouble, loss = reached, time.monotonic(), None, None
                if position < end and self._needs_care(span.partition.topic) != self._is_careful:
                    self._aim(span.partition, position)
            else:
                self._check_progress(span, position, time.monotonic() - since_s, trouble)
        # What was fetched past the range would only fill memory until the next one.
        self._consumer.rest()

    def leave(self, states: Mapping[Partition, tuple[int, str]]) -> None:
        """Commit (offset, metadata) of partitions to the group; best effort.

        How long a text may be, the broker says by refusing it; then its length is left instead.
        What is not there is read again by the driver: slower, never wrong.
        """
        now_s = time.monotonic()
        if not states or now_s < self._next_commit_s:
            return
        limit = self._length_limit if now_s < self._next_long_s else sys.maxsize
        short = {part: _shortened(state, limit) for part, state in states.items()}
        refused = self._consumer.commit_offsets(short)
        too_long = {part for part, error in refused.items() if error.code() == _TOO_LONG}
        if too_long:
            self._length_limit = min(len(short[part][1]) for part in too_long) - 1
            self._next_long_s = now_s + _COMMIT_PAUSE_S
            again = {part: _shortened(short[part], self._length_limit) for part in too_long}
            others = {part: error for part, error in refused.items() if part not in too_long}
            refused = {**others, **self._consumer.commit_offsets(again)}
        if refused:
            # A group that is forbidden would otherwise cost every batch the same wait.
            self._next_commit_s = time.monotonic() + _COMMIT_PAUSE_S
            _LOG.warning(
                "offsets cannot be committed to group '%s' (%s): lag tools do not see this query, "
                "and %s",
                self._config["group.id"],
                next(iter(refused.values())).str(),
                cost_without_states(self._options.is_ordered),
            )

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close()
        if self._spare is not None:
            self._spare.close()

    def _needs_care(self, topic: str) -> bool:
        """Whether small answers only may be asked for."""
        return self._adapts and not self._inflation.is_harmless(topic)

    def _aim(self, partition: Partition, position: int) -> None:
        """Read on there, with the consumer that suits the topic."""
        if self._needs_care(partition.topic) != self._is_careful:
            self._consumer.rest()
            self._is_careful = not self._is_careful
            suited = self._spare or self._new_consumer()
            self._consumer, self._spare = suited, self._consumer
        self._counted = self._consumer.received
        self._consumer.aim(partition, position)

    def _take(self, span: Range, position: int, needs: Needs) -> Taken:
        """What there is of `span`; what it inflates to is noted."""
        taken = self._consumer.take(span, position, needs, min(_WAIT_S, self._poll_timeout_s))
        received = self._consumer.received
        topic = span.partition.topic
        self._inflation.note(topic, received - self._counted, taken.inflated, taken.records)
        self._counted = received
        return taken

    def _new_consumer(self) -> ColumnConsumer:
        gather, given = native_gather(), self._options.client
        small: Mapping[str, Any] = {}
        if self._is_careful:
            small = CAREFUL
        elif gather is None and _SIZES.isdisjoint(given):
            small = _UNCOUNTED
        config = self._config | {name: each for name, each in small.items() if name not in given}
        self._counted = 0
        if gather is None:
            return made(self._options, lambda: MessageConsumer(config, self._log))
        return made(self._options, lambda: NativeConsumer(config, gather, self._log))

    def _after_loss(self, span: Range, position: int, problem: Problem, patience: Patience) -> int:
        """Where to go on after the broker has refused `position`, where the options allow it."""
        bounds = self._settled_bounds(span, position)
        if bounds and bounds[0] <= position <= bounds[1] and patience.has_more():
            # The refusal is older than this range, or than the topic that bears its name now, or
            # came from a broker that no longer leads, or not yet.
            # The new one first: where it cannot be had, the old one is not closed a second time.
            old, self._consumer = self._consumer, self._new_consumer()
            old.close()
            self._consumer.aim(span.partition, position)
            return position
        earliest, end = bounds or (0, 0)
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

    def _settled_bounds(self, span: Range, position: int) -> tuple[int, int] | None:
        """The partition's bounds, not as seen in the middle of a change of its leader.

        A log that seems shorter than `position`, or not to exist, is looked at for some seconds
        before it is believed.
        """
        patience = Patience(SETTLING_S)
        while True:
            bounds = self._bounds(span, position)
            if (bounds and position <= bounds[1]) or not patience.has_more():
                return bounds

    def _bounds(self, span: Range, position: int) -> tuple[int, int] | None:
        """The first offset that exists, and the one after the last; None: there is no partition."""
        patience = Patience(API_TIMEOUT_S)
        while True:
            try:
                return self._consumer.existing(span.partition, patience.request_s)
            except KafkaException as error:
                code = error.args[0].code()
                if code in GONE:
                    return None
                if not is_retriable(error.args[0]):
                    raise request_refused(code, answer_text(error), str(span.partition)) from error
                if not patience.has_more():
                    answer = answer_text(error) if code > 0 else None
                    raise self._stuck(span, position, patience.spent_s, answer) from error

    def _tolerated(self, problem: Problem, span: Range) -> str:
        """The text of an error that may pass, or is not about the range at all.

        Raises:
            BrokerUnreachable: it is about the range and does not pass, such as missing rights.
        """
        error = problem.error
        if _is_about(problem, span) and not is_retriable(error):
            raise request_refused(error.code(), error.str(), f"the records of {span.partition}")
        # The group is only a place to leave clocks in: what it refuses must not stop the reading.
        return str(error.str())

    def _check_progress(
        self, span: Range, position: int, spent_s: float, trouble: str | None
    ) -> None:
        """Look at whether it is of use to go on.

        Raises:
            BrokerUnreachable: it is not.
        """
        if not self._is_connected and self._is_given_up(spent_s):
            self._is_connected = self._consumer.is_connected(_LOOK_S)
            if not self._is_connected:
                raise self._stuck(span, position, spent_s, None)
        if spent_s > self._poll_timeout_s:
            raise self._stuck(span, position, spent_s, trouble)

    def _is_given_up(self, spent_s: float) -> bool:
        """Whether a consumer that no broker has answered is waited for no longer."""
        if spent_s >= self._options.connect_timeout_ms / 1_000:
            return True
        return is_refused(self._heard(spent_s), spent_s)

    def _heard(self, spent_s: float) -> dict[str, Complaint]:
        """What was said of brokers meanwhile; of what never worked, ever."""
        within_s = spent_s + 2 * _LOOK_S if self._is_connected else float("inf")
        return self._log.complaints(within_s)

    def _stuck(
        self, span: Range, position: int, spent_s: float, answer: str | None
    ) -> BrokerUnreachable:
        wanted = f"the records of {span.partition} from offset {position} to {span.end_exclusive}"
        heard = self._heard(spent_s)
        if answer is not None:
            return answered_too_long(answer, heard, spent_s, wanted)
        if heard or not self._is_connected:
            return no_answer(self._options.client, heard, spent_s, wanted)
        return BrokerUnreachable(
            f"no progress with {wanted} for {spent_s:.0f} s, without an error; next step: look at "
            "the brokers, or raise option 'kafkaConsumer.pollTimeoutMs'"
        )


_STOCK: Final[Stock[RangeReader]] = Stock(most=4, idle_s=300)
"""Several queries of one application share workers."""


def borrowed_reader(options: KafkaOptions, group: str) -> AbstractContextManager[RangeReader]:
    """A reader from this process's stock; it goes back there unless something went wrong."""
    limits = (options.poll_timeout_ms, options.connect_timeout_ms, options.fail_on_data_loss)
    key = (group, *limits, *options.client.items())
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


def _shortened(state: tuple[int, str], limit: int) -> tuple[int, str]:
    """(offset, metadata) without the state where the text is longer than `limit`."""
    offset, metadata = state
    return offset, metadata if len(metadata) <= limit else without_state(metadata)
