"""All that talks to Kafka: the broker as the driver sees it, and reading a range into columns.

The only module that imports confluent_kafka. `read_range` is the one function that touches
records; a native reader can replace its inside.
"""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from pyspark_timestream.errors import BrokerUnreachable, DataLost
from pyspark_timestream.kafka_columns import METADATA
from pyspark_timestream.kafka_options import KafkaOptions
from pyspark_timestream.option_fields import SECRET, OptionError
from pyspark_timestream.ranges import Partition, Range
from pyspark_timestream.records import Needs, RecordBlock

__all__ = ["Broker", "RangeReader", "borrowed_reader"]

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)

BLOCK_RECORDS: Final = 20_000
_WAIT_S: Final = 0.05
"""How long a read waits to fill a block; what a range that ends in a gap costs."""

_METADATA_LIMIT: Final = 4_000
"""Brokers refuse group metadata above 4096 bytes by default (`offset.metadata.max.bytes`)."""

_REQUEST_TIMEOUT_S: Final = 30.0
_GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)

_ENGINE: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # A position that the broker does not have must be an error, never a silent jump.
    "auto.offset.reset": "error",
}
_DEFAULTS: Final[dict[str, Any]] = {
    "isolation.level": "read_committed",
    # A dead broker is asked again four times a second, not twenty.
    "reconnect.backoff.ms": 250,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 256 * 1024,
    "fetch.message.max.bytes": 16 * 1024 * 1024,
}


class Broker:
    """The broker as the driver sees it: partitions, their ends, and the group's metadata.

    Raises:
        OptionError: librdkafka refuses the client configuration.
    """

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self.group = group
        self._options = options
        self._client = {**_DEFAULTS, **options.client, **_ENGINE}
        self._client.setdefault("group.id", group)
        # It never subscribes, so it is no member of the group: it only asks.
        self._consumer = _checked(options, lambda: Consumer(self._client))
        self._admin = AdminClient(_without_consumer_settings(options.client))

    def partitions(self) -> list[Partition]:
        """The partitions that the options name, as far as they exist now."""
        if self._options.assign is not None:
            topics = {part.topic for part in self._options.assign}
        else:
            topics = set(self._options.subscribe or ())
        found = [part for topic in sorted(topics) for part in self._topic(topic)]
        wanted = self._options.assign
        return found if wanted is None else [part for part in found if part in set(wanted)]

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset that each partition still has; what is gone is left out."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last readable record (the last stable one, if committed reads)."""
        return self._offsets(partitions, OffsetSpec.latest())

    def left_metadata(self, partitions: Sequence[Partition]) -> dict[Partition, str]:
        """What tasks left in the group's metadata; nothing where it cannot be read."""
        if not partitions:
            return {}
        asked = [TopicPartition(part.topic, part.number) for part in partitions]
        try:
            answer = self._consumer.committed(asked, timeout=_REQUEST_TIMEOUT_S)
        except KafkaException as error:
            _LOG.debug("the group's metadata cannot be read: %s", error)
            return {}
        return {
            Partition(left.topic, left.partition): left.metadata
            for left in answer
            if left.error is None and left.metadata
        }

    def _topic(self, topic: str) -> list[Partition]:
        listed = self._patiently(
            f"the partitions of topic '{topic}'",
            lambda: self._consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S),
        ).topics[topic]
        problem = listed.error
        if problem is not None and problem.code() not in _GONE and not problem.retriable():
            raise BrokerUnreachable(f"topic '{topic}': {problem.str()}")
        return [Partition(topic, number) for number in sorted(listed.partitions)]

    def _offsets(self, partitions: Iterable[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        asked = {TopicPartition(part.topic, part.number): spec for part in partitions}
        if not asked:
            return {}
        committed = self._client["isolation.level"] == "read_committed"
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

        def ask() -> dict[Partition, int]:
            futures = self._admin.list_offsets(
                asked, isolation_level=level, request_timeout=_REQUEST_TIMEOUT_S
            )
            answers = ((part, _offset_or_gone(future)) for part, future in futures.items())
            return {
                Partition(part.topic, part.partition): offset
                for part, offset in answers
                if offset is not None
            }

        return self._patiently("offsets", ask)

    def _patiently(self, what: str, ask: Callable[[], T]) -> T:
        """The answer of `ask`, which is tried again as often as the options say."""
        for attempt in range(self._options.retries + 1):
            try:
                return ask()
            except KafkaException as error:
                if attempt == self._options.retries or not _passes(error):
                    where = self._options.client["bootstrap.servers"]
                    raise BrokerUnreachable(
                        f"cannot get {what} from the broker at {where}: {_said(error)}; check "
                        "option 'kafka.bootstrap.servers', that the topic exists, and the access "
                        "rights"
                    ) from error
                time.sleep(self._options.retry_interval_ms / 1_000)
        raise AssertionError("unreachable")


def _offset_or_gone(future: Any) -> int | None:
    try:
        return int(future.result().offset)
    except KafkaException as error:
        if error.args[0].code() in _GONE:
            return None
        raise


def _passes(error: KafkaException) -> bool:
    problem = error.args[0]
    passing = (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        # So librdkafka says that no partition has a leader at the moment.
        KafkaError._NOENT,
    )
    return bool(problem.retriable() or problem.code() in passing)


def _said(error: KafkaException) -> str:
    return str(error.args[0].str())


def _checked(options: KafkaOptions, make: Callable[[], T]) -> T:
    try:
        return make()
    except KafkaException as error:
        said = _said(error)
        for key, value in options.client.items():
            if SECRET.search(key) and value:
                said = said.replace(value, "[hidden]")
        raise OptionError(
            "kafka.*",
            said,
            "librdkafka's configuration, each name after 'kafka.'",
            "correct the name or the value",
        ) from error


def _without_consumer_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """`client` without what an admin client would warn of."""
    consumer_only = ("group.", "fetch.", "queued.", "isolation.", "session.", "heartbeat.")
    alone = ("max.poll.interval.ms", "check.crcs", "partition.assignment.strategy")
    return {
        key: value
        for key, value in client.items()
        if not key.startswith(consumer_only) and key not in alone
    }


class RangeReader:
    """Reads ranges into columns with one consumer, kept from range to range.

    Args:
        options: the client configuration and how patient to be.
        group: the consumer group in whose metadata states are left.
    """

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self._options = options
        client = {**_DEFAULTS, **options.client, **_ENGINE}
        client.setdefault("group.id", group)
        self._consumer = _checked(options, lambda: Consumer(client))

    def read(self, span: Range, needs: Needs) -> Iterator[RecordBlock]:
        """The records of `span` in blocks, in offset order.

        The range ends by position, not by count: transactions and compaction leave gaps.

        Raises:
            DataLost: records of the range are gone, and option `failOnDataLoss` is true.
            BrokerUnreachable: no progress for `kafkaConsumer.pollTimeoutMs`.
        """
        position, end = span.start_inclusive, span.end_exclusive
        self._seek(span.partition, position)
        patience_s = self._options.poll_timeout_ms / 1_000
        deadline = time.monotonic() + patience_s
        while position < end:
            wanted = min(BLOCK_RECORDS, end - position)
            polled = self._consumer.consume(wanted, timeout=min(_WAIT_S, patience_s))
            records = [message for message in polled if message.error() is None]
            reached = self._position(span, position, polled, records)
            if records:
                block = _block(records, needs)
                if reached > end:
                    # The range's last records are missing; what follows belongs to a later batch.
                    inside = int(np.searchsorted(block.offsets.to_numpy(), end))
                    block = RecordBlock(*(c and c.slice(0, inside) for c in block))
                if len(block.offsets):
                    yield block
            if reached > position:
                position, deadline = reached, time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                position = self._give_up(span, position)

    def leave(self, states: Mapping[Partition, tuple[int, str]]) -> None:
        """Commit (offset, metadata) of partitions to the group; best effort."""
        _commit(self._consumer, states)

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close()

    def _seek(self, partition: Partition, offset: int) -> None:
        # A new assignment also discards what was fetched for the one before.
        self._consumer.assign([TopicPartition(partition.topic, partition.number, offset)])

    def _position(
        self, span: Range, position: int, polled: list[Message], records: list[Message]
    ) -> int:
        """How far the range is read after `polled`."""
        if records:
            position = records[-1].offset() + 1
        if len(records) == len(polled):
            return position
        for message in polled:
            problem = message.error()
            if problem is None:
                continue
            if problem.code() == KafkaError._PARTITION_EOF:
                position = max(position, message.offset())
            elif problem.code() in (KafkaError._AUTO_OFFSET_RESET, *_GONE):
                position = self._lost(span, position, str(problem.str()))
            elif not problem.retriable() and problem.code() != KafkaError._TRANSPORT:
                raise BrokerUnreachable(f"{_where(span)}: {problem.str()}")
        return position

    def _lost(self, span: Range, position: int, why: str) -> int:
        """Go on after lost records, where the options allow; the new position."""
        said = f"{_where(span)}: offset {position} can no longer be read ({why})"
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{said}. Some data may have been lost: set option 'failOnDataLoss' to 'false' to "
                "go on with what is left, or start with a new checkpoint"
            )
        part = TopicPartition(span.partition.topic, span.partition.number)
        try:
            earliest, _ = self._consumer.get_watermark_offsets(part, timeout=_REQUEST_TIMEOUT_S)
        except KafkaException:
            earliest = span.end_exclusive
        resumed = min(max(earliest, position), span.end_exclusive)
        if resumed == position:
            resumed = span.end_exclusive
        _LOG.warning("%s; going on at offset %d", said, resumed)
        self._seek(span.partition, resumed)
        return int(resumed)

    def _give_up(self, span: Range, position: int) -> int:
        waited = self._options.poll_timeout_ms
        raise BrokerUnreachable(
            f"{_where(span)}: no progress at offset {position} (of {span.end_exclusive}) for "
            f"{waited} ms; check the broker, or raise option 'kafkaConsumer.pollTimeoutMs'"
        )


@contextlib.contextmanager
def borrowed_reader(options: KafkaOptions, group: str) -> Iterator[RangeReader]:
    """A reader from this process's stock; it goes back there unless something went wrong.

    Spark reuses its Python workers, so a reader made for one batch serves the next.
    """
    key = (group, options.poll_timeout_ms, options.fail_on_data_loss, *options.client.items())
    reader = _STOCK.pop(key, None) or RangeReader(options, group)
    try:
        yield reader
    except BaseException:
        reader.close()
        raise
    for old in [_STOCK.pop(next(iter(_STOCK))) for _ in range(len(_STOCK) - _STOCK_SIZE + 1)]:
        old.close()
    _STOCK[key] = reader


def _commit(consumer: Consumer, states: Mapping[Partition, tuple[int, str]]) -> None:
    """Commit offsets with metadata; what the broker refuses is only slower, never wrong."""
    offsets = [
        TopicPartition(
            part.topic, part.number, offset, metadata if len(metadata) <= _METADATA_LIMIT else ""
        )
        for part, (offset, metadata) in states.items()
    ]
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        _LOG.debug("the group's metadata cannot be written: %s", error)


_STOCK: Final[dict[tuple[Any, ...], RangeReader]] = {}
_STOCK_SIZE: Final = 4
"""How many readers a worker keeps: several queries of one application share workers."""


def _where(span: Range) -> str:
    return f"topic '{span.partition.topic}' partition {span.partition.number}"


def _block(records: list[Message], needs: Needs) -> RecordBlock:
    """The needed fields of confluent-kafka's messages as columns."""
    stamps = types = None
    if needs.timestamps:
        flat = itertools.chain.from_iterable([message.timestamp() for message in records])
        pairs = np.fromiter(flat, np.int64, 2 * len(records)).reshape(-1, 2)
        # librdkafka counts the types from 0 = none, Spark's timestampType from -1.
        types = pa.array((pairs[:, 0] - 1).astype(np.int32))
        stamps = pa.array(np.where(pairs[:, 0] > 0, pairs[:, 1], -1))
    return RecordBlock(
        offsets=pa.array([message.offset() for message in records], pa.int64()),
        timestamps_ms=stamps,
        timestamp_types=types,
        keys=pa.array([m.key() for m in records], pa.binary()) if needs.keys else None,
        values=pa.array([m.value() for m in records], pa.binary()) if needs.values else None,
        headers=pa.array([m.headers() for m in records], METADATA["headers"])
        if needs.headers
        else None,
    )
