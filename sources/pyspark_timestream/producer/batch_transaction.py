"""A batch's records in one transaction, with the note that they are written (semantics 29.3).

A place (a task, or the driver) has a transactional id and a consumer group. Opening it ends what an
earlier attempt of the same place has left open, and keeps that attempt from committing later. Only
then is the group's committed offset read, so it tells for certain what is written.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pyspark_timestream.errors import DeliveryFailed
from pyspark_timestream.kafka.client.bounded import GRACE_S, BoundedClient
from pyspark_timestream.kafka.client.config import new_bounded_client
from pyspark_timestream.kafka.client.retry import MISSING_CODES
from pyspark_timestream.producer.entries import read_group
from pyspark_timestream.producer.marks import Headers
from pyspark_timestream.producer.requests import (
    PRODUCER_DEFAULTS,
    PRODUCER_REQUIRED,
    STEP_TIMEOUT_S,
    Requests,
    reading_config,
)

__all__ = ["BatchTransaction", "limit_chunk"]

_MAX_CHUNK: Final = 10_000
_MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""Records are sent before more than this waits in memory, as far as they are of one size."""

_NO_LIMIT: Final = 2**31
_FLUSH_STEP_S: Final = 1.0

_READING: Final = {"enable.auto.commit": False, "isolation.level": "read_committed"}
_IN_BATCHES: Final = {"key", "value"}
"""The parts of a record that `produce_batch` takes; it ignores a partition without a word."""


def limit_chunk(count: int, size_bytes: int, max_queued: int) -> int:
    """How many of `count` records of `size_bytes` in all go to the client at a time, at least 1.

    >>> limit_chunk(100_000, 5_000_000, 2_000)
    2000
    >>> limit_chunk(1_000, 640 * 1024 * 1024, 2_000)
    100
    """
    of_size = _MAX_QUEUED_BYTES * count // max(size_bytes, 1)
    return max(1, min(_MAX_CHUNK, max_queued, of_size))


class BatchTransaction:
    """The transactions of one place, one batch after the other; for one thread.

    Args:
        client: the user's settings for librdkafka.
        topic: where records and marks go; None: each block of records names its topic.
        transactional_id: of the place.
        group: the consumer group whose committed offset says what is written.

    Raises:
        OptionError: librdkafka refuses the settings.
        DeliveryFailed: there is no such topic, or the transactional id cannot be used.
    """

    def __init__(
        self, client: Mapping[str, str], topic: str | None, transactional_id: str, group: str
    ) -> None:
        self._topic, self._client, self._group_name = topic, client, group
        self._sent_to: list[str] = []
        self._requests = Requests(client, topic)
        self._queued_bytes = self._queued = 0
        config = {**PRODUCER_DEFAULTS, **client, **PRODUCER_REQUIRED}
        config["transactional.id"] = transactional_id
        reading = {**reading_config(client), **_READING, "group.id": group}
        log = self._requests.log
        self._clients: list[BoundedClient] = []
        try:
            for kind, own in ((Producer, config), (Consumer, reading)):
                self._clients.append(new_bounded_client(kind, own, log))
        except KafkaException as error:
            self.close()
            raise self._requests.refusal(error) from None
        self._producer, self._group = self._clients
        self._transaction_s = int(config["transaction.timeout.ms"]) / 1_000
        self._max_queued = int(config["queue.buffering.max.messages"]) or _NO_LIMIT
        try:
            # First, since a missing topic would only show as a record that is not delivered in
            # time.
            if topic is not None:
                self._list_partitions(topic)
            self._requests.run(
                lambda: self._producer.init_transactions(timeout=STEP_TIMEOUT_S),
                "open a transaction",
            )
        except BaseException:
            self.close()
            raise

    def read_entry(self) -> tuple[int, str | None]:
        """The committed offset of the group and its metadata; the offset is below 0 without one."""
        if self._topic is None:
            # A batch that comes again may name its topics in another order.
            return read_group(self._client, self._group_name)
        asked, wanted = [TopicPartition(self._topic, 0)], "read what is written"
        (found,) = self._requests.run(
            lambda: self._group.committed(asked, timeout=STEP_TIMEOUT_S), wanted
        )
        if found.error is not None:
            raise self._requests.failure(found.error, wanted)
        return int(found.offset), found.metadata

    def begin(self) -> None:
        """Begin the transaction of a batch."""
        self._queued_bytes = self._queued = 0
        self._sent_to.clear()
        self._requests.run(self._producer.begin_transaction, "begin a transaction")

    def send(
        self, messages: Sequence[dict[str, Any]], size_bytes: int, topic: str | None = None
    ) -> None:
        """Send records, each a dict of the arguments of `Producer.produce`.

        Args:
            messages: the records, at least one.
            size_bytes: of all of them, with keys and headers.
            topic: where they go, unless all of the transaction go to one topic.

        Raises:
            DeliveryFailed: the client refuses a record, or there is no such topic.
        """
        topic = self._topic or topic
        assert topic is not None
        if topic not in self._sent_to:
            if self._topic is None:
                self._list_partitions(topic)
            self._sent_to.append(topic)
        chunk = limit_chunk(len(messages), size_bytes, self._max_queued)
        for start in range(0, len(messages), chunk):
            part = list(messages[start : start + chunk])
            self._make_room(len(part), size_bytes * len(part) // len(messages))
            self._produce(topic, part, "send a row")

    def _make_room(self, count: int, size_bytes: int) -> None:
        """Wait until the records fit into the client's queue, so that none is refused."""
        is_full = self._queued + count > self._max_queued
        if is_full or self._queued_bytes + size_bytes > _MAX_QUEUED_BYTES:
            self._flush()
            self._queued = self._queued_bytes = 0
        self._queued, self._queued_bytes = self._queued + count, self._queued_bytes + size_bytes

    def _flush(self) -> None:
        """Wait until each record is delivered, or has failed by its own time-out."""
        deadline_s = time.monotonic() + self._transaction_s + GRACE_S
        flush = partial(self._producer.flush, timeout=_FLUSH_STEP_S)
        while self._requests.run_once(flush, "send the rows"):
            if time.monotonic() > deadline_s:
                late = KafkaError(KafkaError._TIMED_OUT, "no answer from the brokers")
                raise self._requests.failure(late, "send the rows", may_repeat=True)

    def _produce(self, topic: str, messages: list[dict[str, Any]], wanted: str) -> None:
        def queue(producer: Any) -> None:
            # Older releases of confluent-kafka have no produce_batch.
            if messages[0].keys() <= _IN_BATCHES and hasattr(producer, "produce_batch"):
                if producer.produce_batch(topic, messages) < len(messages):
                    raise KafkaException(next(m["_error"] for m in messages if "_error" in m))
                return
            for message in messages:
                try:
                    producer.produce(topic, **message)
                except BufferError:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from None

        self._requests.run_once(lambda: self._producer.run(queue, 0, "produce"), wanted)

    def send_marks(self, headers: Headers) -> None:
        """Send a record without key and value, with these headers, into every partition."""
        assert self._topic is not None
        partitions = self._list_partitions(self._topic)
        marks = [{"partition": each, "headers": headers} for each in partitions]
        self._produce(self._topic, marks, "send a mark")

    def _list_partitions(self, topic: str) -> range:
        """The topic's partitions.

        Raises:
            DeliveryFailed: there is no such topic.
        """
        found = self._requests.run(
            lambda: self._producer.list_topics(topic, timeout=STEP_TIMEOUT_S),
            "list the partitions",
        ).topics.get(topic)
        if found is None or not found.partitions:
            error = None if found is None else found.error
            if error is not None and error.code() not in MISSING_CODES:
                raise self._requests.failure(error, "list the partitions")
            raise DeliveryFailed(
                f"topic '{topic}' does not exist",
                next_step=f"create it, or correct {'option' if self._topic else 'the column'} "
                "'topic'. Nothing of the task is written",
            )
        return range(len(found.partitions))

    def commit(self, offset: int, metadata: str) -> None:
        """Commit the records, and with them the offset and its metadata.

        Raises:
            DeliveryFailed: it is not committed, or, after a timeout, perhaps not.
        """
        topic = self._topic or self._sent_to[0]
        written = [TopicPartition(topic, 0, offset, metadata)]
        wanted = "note that the batch is written"
        group = self._requests.run(self._group.consumer_group_metadata, wanted)
        self._requests.run(
            lambda: self._producer.send_offsets_to_transaction(
                written, group, timeout=STEP_TIMEOUT_S
            ),
            wanted,
        )
        self._requests.run(
            lambda: self._producer.commit_transaction(timeout=STEP_TIMEOUT_S),
            "commit the transaction",
        )

    def abort(self) -> None:
        """End the open transaction without its records; after an error of it, if possible."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(timeout=STEP_TIMEOUT_S)
        except KafkaException:
            # A fenced producer has nothing open. What an abandoned one or another leaves open, the
            # next producer of the place ends, or the broker.
            return

    def close(self) -> None:
        """Close the connections."""
        for each in self._clients:
            each.close()
