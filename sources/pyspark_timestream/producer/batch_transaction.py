"""A batch's records in one transaction, with the note that they are written (semantics 29.3).

A place (a task, or the driver) has a transactional id and a consumer group. Opening it ends what an
earlier attempt of the same place has left open, and keeps that attempt from committing later. Only
then is the group's committed offset read, so it tells for certain what is written.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pyspark_timestream.connector.options import OptionError, hide_secrets
from pyspark_timestream.errors import DeliveryFailed
from pyspark_timestream.kafka.client.broker_errors import no_answer_error
from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.config import close_with_timeout, new_logged_client
from pyspark_timestream.kafka.client.retry import MISSING_CODES, is_retriable
from pyspark_timestream.producer.marks import Headers

__all__ = ["BatchTransaction"]

T = TypeVar("T")

_STEP_TIMEOUT_S: Final = 10.0
_RETRY_TIMEOUT_S: Final = 60.0
_MAX_CHUNK: Final = 10_000
_MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""Records are sent before more than this waits in memory."""

_DEFAULTS: Final[dict[str, Any]] = {
    # As Kafka's Java client: the same key goes to the same partition, whoever writes it.
    "partitioner": "murmur2_random",
    # Long enough for a slow task, and short enough for readers where a job never comes back.
    "transaction.timeout.ms": 300_000,
    "queue.buffering.max.messages": 100_000,
    "linger.ms": 20,
    "compression.type": "lz4",
}
_REQUIRED: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
}
_IN_BATCHES: Final = {"key", "value"}
"""The parts of a record that `produce_batch` takes; it ignores a partition without a word."""

_PRODUCER_ONLY: Final = ("transaction.", "queue.buffering.", "batch.", "partitioner")
_RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the user write to the topic and describe it",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "let the user write and describe "
    "transactional ids with the prefix of option 'transactionalIdPrefix'",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "let the user read consumer groups with the prefix of "
    "option 'transactionalIdPrefix'",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let the user write idempotently to the cluster",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise 'kafka.message.max.bytes' and the topic's "
    "max.message.bytes, or make the rows smaller",
    KafkaError._UNKNOWN_PARTITION: "correct the rows' column 'partition'",
    KafkaError._FENCED: "see to it that no other query, or attempt of this one, uses the same "
    "'writer'",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower 'kafka.transaction.timeout.ms' to at most the "
    "broker's transaction.max.timeout.ms",
    KafkaError._UNSUPPORTED_FEATURE: "use brokers with transactions (Kafka 0.11 or newer)",
}
_TOO_SLOW: Final = (
    "raise 'kafka.transaction.timeout.ms', since the broker ends a transaction that takes longer; "
    "or see to it that no other query uses the same 'writer'"
)


class BatchTransaction:
    """The transactions of one place, one batch after the other; for one thread.

    Args:
        client: the user's settings for librdkafka.
        topic: where records and marks go.
        transactional_id: of the place.
        group: the consumer group whose committed offset says what is written.

    Raises:
        OptionError: librdkafka refuses the settings.
        DeliveryFailed: there is no such topic, or the transactional id cannot be used.
    """

    def __init__(
        self, client: Mapping[str, str], topic: str, transactional_id: str, group: str
    ) -> None:
        self._topic, self._client = topic, client
        self._log = ClientLog(client)
        self._queued_bytes = self._queued = 0
        config = {**_DEFAULTS, **client, **_REQUIRED, "transactional.id": transactional_id}
        self._max_queued = int(config["queue.buffering.max.messages"])
        own = {key: text for key, text in client.items() if not key.startswith(_PRODUCER_ONLY)}
        self._reading = {
            **{key: text for key, text in own.items() if key not in _DEFAULTS | _REQUIRED},
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        try:
            self._producer = new_logged_client(Producer, config, self._log)
            self._group = self._open_group(group)
        except KafkaException as error:
            raise OptionError(
                "kafka.*",
                self._text(error),
                "librdkafka's configuration of a producer, each name after 'kafka.'",
                "correct the name or the value",
            ) from None
        # First, since a missing topic would only show as a record that is not delivered in time.
        self.list_partitions()
        self._try(lambda: self._producer.init_transactions(_STEP_TIMEOUT_S), "open a transaction")

    def _open_group(self, group: str) -> Consumer:
        return new_logged_client(Consumer, {**self._reading, "group.id": group}, self._log)

    def read_entry(self) -> tuple[int, str | None]:
        """The committed offset of the group and its metadata; the offset is below 0 without one."""
        return self._read_committed(self._group)

    def read_entry_of(self, group: str) -> tuple[int, str | None]:
        """The same of another place's group, which may be about to change."""
        reader = self._open_group(group)
        try:
            return self._read_committed(reader)
        finally:
            close_with_timeout(reader.close)

    def _read_committed(self, group: Consumer) -> tuple[int, str | None]:
        asked = [TopicPartition(self._topic, 0)]
        (found,) = self._try(
            lambda: group.committed(asked, timeout=_STEP_TIMEOUT_S), "read what is written"
        )
        if found.error is not None:
            raise self._failure(found.error, "read what is written")
        return int(found.offset), found.metadata

    def begin(self) -> None:
        """Begin the transaction of a batch."""
        self._producer.begin_transaction()

    def send(self, messages: Sequence[dict[str, Any]]) -> None:
        """Send records, each a dict of the arguments of `Producer.produce`.

        Raises:
            DeliveryFailed: the client refuses a record.
        """
        chunk = min(_MAX_CHUNK, self._max_queued)
        for start in range(0, len(messages), chunk):
            part = list(messages[start : start + chunk])
            self._make_room(part)
            # Older releases of confluent-kafka have no produce_batch.
            if not part[0].keys() <= _IN_BATCHES or not hasattr(self._producer, "produce_batch"):
                self._send_one_by_one(part)
            elif self._producer.produce_batch(self._topic, part) < len(part):
                error = next(each["_error"] for each in part if "_error" in each)
                raise self._failure(error, "send a row")

    def _make_room(self, part: Sequence[dict[str, Any]]) -> None:
        """Wait until the records fit into the client's queue, so that none is refused."""
        size = sum(len(each["value"] or b"") for each in part)
        is_full = self._queued + len(part) > self._max_queued
        if is_full or self._queued_bytes + size > _MAX_QUEUED_BYTES:
            self._producer.flush()
            self._queued = self._queued_bytes = 0
        self._queued, self._queued_bytes = self._queued + len(part), self._queued_bytes + size

    def _send_one_by_one(self, part: Sequence[dict[str, Any]]) -> None:
        try:
            for message in part:
                self._producer.produce(self._topic, **message)
        except KafkaException as error:
            raise self._failure(error.args[0], "send a row") from None

    def send_marks(self, headers: Headers) -> None:
        """Send a record without key and value, with these headers, into every partition."""
        try:
            for partition in self.list_partitions():
                self._producer.produce(self._topic, partition=partition, headers=headers)
        except KafkaException as error:
            raise self._failure(error.args[0], "send a mark") from None

    def list_partitions(self) -> range:
        """The topic's partitions.

        Raises:
            DeliveryFailed: there is no such topic.
        """
        found = self._try(
            lambda: self._producer.list_topics(self._topic, timeout=_STEP_TIMEOUT_S),
            "list the partitions",
        ).topics.get(self._topic)
        if found is None or not found.partitions:
            error = None if found is None else found.error
            if error is not None and error.code() not in MISSING_CODES:
                raise self._failure(error, "list the partitions")
            raise DeliveryFailed(
                f"topic '{self._topic}' does not exist",
                next_step="create it, or correct option 'topic'. Nothing of the batch is written",
            )
        return range(len(found.partitions))

    def commit(self, offset: int, metadata: str) -> None:
        """Commit the records, and with them the offset and its metadata.

        Raises:
            DeliveryFailed: it is not committed, or, after a timeout, perhaps not.
        """
        written = [TopicPartition(self._topic, 0, offset, metadata)]
        group = self._group.consumer_group_metadata()
        self._try(
            lambda: self._producer.send_offsets_to_transaction(written, group, _STEP_TIMEOUT_S),
            "note that the batch is written",
        )
        self._try(
            lambda: self._producer.commit_transaction(_STEP_TIMEOUT_S), "commit the transaction"
        )
        self._queued = self._queued_bytes = 0

    def abort(self) -> None:
        """End the open transaction without its records; after an error of it, if possible."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(_STEP_TIMEOUT_S)
        except KafkaException:
            # A fenced producer has nothing open, and the broker ends what others leave.
            return

    def close(self) -> None:
        """Close the connections."""
        close_with_timeout(self._group.close)

    def _try(self, step: Callable[[], T], wanted: str) -> T:
        """Run one step, and retry while the client calls the error retriable."""
        began_s = time.monotonic()
        while True:
            try:
                return step()
            except KafkaException as error:
                cause, spent_s = error.args[0], time.monotonic() - began_s
                if not is_retriable(cause):
                    raise self._failure(cause, wanted) from None
                if spent_s > _RETRY_TIMEOUT_S:
                    raise self._unreachable(cause, spent_s, wanted) from None
                time.sleep(0.05)

    def _unreachable(self, error: KafkaError, spent_s: float, wanted: str) -> Exception:
        failures = self._log.recent_failures(spent_s + 1)
        if error.code() >= 0 and not failures:
            return self._failure(error, wanted)
        return no_answer_error(self._client, failures, spent_s, f"topic '{self._topic}'")

    def _failure(self, error: KafkaError, wanted: str) -> Exception:
        is_fenced = error.code() in (
            KafkaError._FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.INVALID_PRODUCER_ID_MAPPING,
            KafkaError.PRODUCER_FENCED,
            KafkaError._PURGE_QUEUE,
        )
        advice = _TOO_SLOW if is_fenced else _RIGHTS.get(error.code(), "correct what this names")
        return DeliveryFailed(
            f"could not {wanted} for topic '{self._topic}': "
            f"{hide_secrets(str(error.str()), self._client)}",
            next_step=f"{advice}; then start the query again: it goes on with this batch",
        )

    def _text(self, error: KafkaException) -> str:
        return hide_secrets(str(error.args[0].str()), self._client)
