"""Writes a batch's records in one transaction, with the note that they are written (29.3).

A place (a task, or the driver) has a transactional id and a consumer group. Opening the place ends
any transaction that an earlier attempt left open, and prevents that attempt from committing later.
Only after that do we read the group's committed offset, so it states for certain what is written.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from pyspark_timestream.core.options import hide_secrets
from pyspark_timestream.errors import DeliveryFailed, OptionError
from pyspark_timestream.kafka.client.bounded import GRACE_S, BoundedClient, CallAbandoned
from pyspark_timestream.kafka.client.config import new_bounded_client
from pyspark_timestream.kafka.client.errors import (
    API_TIMEOUT_S,
    MISSING_CODES,
    ClientLog,
    RetryBudget,
    is_retriable,
    no_answer_error,
)
from pyspark_timestream.producer.marks import Headers

T = TypeVar("T")

STEP_TIMEOUT_S: Final = 10.0
"""The longest time of one attempt at a request."""

_FIRST_PAUSE_S: Final = 0.05

PRODUCER_DEFAULTS: Final[dict[str, Any]] = {
    # As in Kafka's Java client, so that a key goes to the same partition whoever writes it.
    "partitioner": "murmur2_random",
    # Long enough for a slow task, and short enough for readers if a job never comes back.
    "transaction.timeout.ms": 300_000,
    "queue.buffering.max.messages": 100_000,
    "linger.ms": 20,
    "compression.type": "lz4",
}
PRODUCER_REQUIRED: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
}
_PRODUCER_ONLY: Final = ("transaction.", "queue.buffering.", "batch.", "partitioner")
"""The prefixes of settings that clients for reading must not get."""

# The advice for each error code.
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
    KafkaError.UNSTABLE_OFFSET_COMMIT: "wait until the broker has ended the transaction that an "
    "earlier attempt left open, at the latest after 'kafka.transaction.timeout.ms'",
    KafkaError._QUEUE_FULL: "raise 'kafka.queue.buffering.max.kbytes'",
    KafkaError._UNSUPPORTED_FEATURE: "use brokers with transactions (Kafka 0.11 or newer)",
}
_TOO_SLOW: Final = (
    "raise 'kafka.transaction.timeout.ms', since the broker ends a transaction that takes longer; "
    "or see to it that no other query uses the same 'writer'"
)


def reading_config(client: Mapping[str, str]) -> dict[str, Any]:
    """Return the user's settings for clients that read, without those of producers."""
    set_here = PRODUCER_DEFAULTS | PRODUCER_REQUIRED
    own = {key: text for key, text in client.items() if not key.startswith(_PRODUCER_ONLY)}
    return {key: text for key, text in own.items() if key not in set_here}


class Requests:
    """Makes the requests of one writer's clients.

    Args:
        client: the user's settings for librdkafka.
        topic: the topic of records and marks; None: each record names its topic.

    Attributes:
        log: takes the clients' errors.
    """

    def __init__(self, client: Mapping[str, str], topic: str | None) -> None:
        self._client = client
        self._where = "the rows' topics" if topic is None else f"topic '{topic}'"
        self.log = ClientLog(client)

    def run(self, step: Callable[[], T], wanted: str) -> T:
        """Run one step, and retry while the client calls the error retriable.

        Raises:
            DeliveryFailed: the error is not retriable or has ended the transaction; or the client
                library has not returned.
            BrokerUnreachable: no broker has answered for a minute.
        """
        budget = RetryBudget(API_TIMEOUT_S, _FIRST_PAUSE_S)

        def pause_or_raise(error: KafkaException) -> None:
            cause, spent_s = error.args[0], budget.elapsed_s
            is_passing = isinstance(error, CallAbandoned) or is_retriable(cause)
            if isinstance(error, CallAbandoned) or cause.txn_requires_abort() or not is_passing:
                raise self.failure(cause, wanted, may_repeat=is_passing) from None
            if not budget.pause_before_retry():
                raise self._unreachable(cause, spent_s, wanted) from None

        return budget.call(lambda _: step(), pause_or_raise)

    def run_once(self, step: Callable[[], T], wanted: str) -> T:
        """Run one step that must not be repeated, since it may have taken effect in part.

        Raises:
            DeliveryFailed: any error.
        """
        try:
            return step()
        except KafkaException as error:
            is_abandoned = isinstance(error, CallAbandoned)
            raise self.failure(error.args[0], wanted, may_repeat=is_abandoned) from None

    def _unreachable(self, error: KafkaError, spent_s: float, wanted: str) -> Exception:
        failures = self.log.recent_failures(spent_s + 1)
        if error.code() >= 0 and not failures:
            return self.failure(error, wanted)
        return no_answer_error(self._client, failures, spent_s, self._where)

    def failure(
        self, error: KafkaError, wanted: str, *, may_repeat: bool = False
    ) -> DeliveryFailed:
        """Return the error for a refusal of a broker or the client, with the remedy."""
        is_fenced = error.code() in (
            KafkaError._FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.INVALID_PRODUCER_ID_MAPPING,
            KafkaError.PRODUCER_FENCED,
            KafkaError._PURGE_QUEUE,
        )
        otherwise = "look at the brokers" if may_repeat else "correct what this names"
        advice = _TOO_SLOW if is_fenced else _RIGHTS.get(error.code(), otherwise)
        failed = DeliveryFailed(
            f"could not {wanted} for {self._where}: {hide_secrets(str(error.str()), self._client)}",
            next_step=f"{advice}; then start the query again: it goes on with this batch",
        )
        failed.may_repeat = may_repeat and not is_fenced
        return failed

    def refusal(self, error: KafkaException) -> OptionError:
        """Return the error for settings that librdkafka refuses."""
        return OptionError(
            "kafka.*",
            hide_secrets(str(error.args[0].str()), self._client),
            "librdkafka's configuration of a producer, each name after 'kafka.'",
            "correct the name or the value",
        )


_NONE: Final = -1001
"""librdkafka's offset for a group that has committed none."""


def read_entries(
    client: Mapping[str, str], topic: str | None, find_task: Callable[[str], int | None]
) -> dict[int, tuple[int, str | None]]:
    """Read the committed offset of each task's group and its metadata; below 0 without one.

    Wait for an offset that belongs to an open transaction.

    Args:
        client: the user's settings for librdkafka.
        topic: the topic of records and marks; None: any topics.
        find_task: returns the task by the name of its group; None: skip the group.

    Raises:
        OptionError: librdkafka refuses the settings.
        DeliveryFailed: the groups cannot be read.
    """
    requests, wanted = Requests(client, topic), "read what is written"
    admin = _Admin(client, requests)
    try:
        groups = requests.run(admin.list_groups, wanted)
        tasks = {group: task for group in groups if (task := find_task(group)) is not None}
        # Ask for all groups at once, and again only for those that fail.
        asked = {group: requests.run(partial(admin.ask, group, topic), wanted) for group in tasks}

        def read(group: str) -> tuple[int, str | None]:
            answer = asked.pop(group, None) or admin.ask(group, topic)
            return admin.read(answer)

        return {task: requests.run(partial(read, group), wanted) for group, task in tasks.items()}
    finally:
        admin.close()


def read_group(client: Mapping[str, str], group: str) -> tuple[int, str | None]:
    """Read the greatest offset that a group has committed for any topic, and its metadata.

    Raises:
        DeliveryFailed: the group cannot be read.
    """
    requests = Requests(client, None)
    admin = _Admin(client, requests)
    try:
        return requests.run(lambda: admin.read(admin.ask(group, None)), "read what is written")
    finally:
        admin.close()


class _Admin:
    """An admin client for reading consumer groups once."""

    def __init__(self, client: Mapping[str, str], requests: Requests) -> None:
        self._config, self._requests = reading_config(client), requests
        self._client = self._create()

    def _create(self) -> BoundedClient:
        try:
            return new_bounded_client(AdminClient, self._config, self._requests.log)
        except KafkaException as error:
            raise self._requests.refusal(error) from None

    def list_groups(self) -> list[str]:
        """List the names of all groups.

        Raises:
            KafkaException: a broker does not answer, and it may have one of our groups.
        """
        name = "list_consumer_groups"
        asked = self._client.list_consumer_groups(request_timeout=STEP_TIMEOUT_S)
        listed = self._client.wait(asked, STEP_TIMEOUT_S, name)
        for error in listed.errors:
            # confluent-kafka returns a KafkaError, which is no exception, or a KafkaException.
            raise KafkaException(error) if isinstance(error, KafkaError) else error
        return [each.group_id for each in listed.valid]

    def ask(self, group: str, topic: str | None) -> Future[ConsumerGroupTopicPartitions]:
        """Ask for a group's committed offsets, for one topic or for all."""
        asked = None if topic is None else [TopicPartition(topic, 0)]
        request = ConsumerGroupTopicPartitions(group, asked)
        answers: dict[str, Future[ConsumerGroupTopicPartitions]] = (
            self._client.list_consumer_group_offsets(
                [request], require_stable=True, request_timeout=STEP_TIMEOUT_S
            )
        )
        return answers[group]

    def read(self, answer: Future[ConsumerGroupTopicPartitions]) -> tuple[int, str | None]:
        """Return the greatest committed offset in the answer, and its metadata."""
        name = "list_consumer_group_offsets"
        found: tuple[int, str | None] = (_NONE, None)
        for each in self._client.wait(answer, STEP_TIMEOUT_S, name).topic_partitions or ():
            if each.error is not None:
                raise KafkaException(each.error)
            if int(each.offset) > found[0]:
                found = int(each.offset), each.metadata
        return found

    def close(self) -> None:
        """Free the client."""
        self._client.close()


_MAX_CHUNK: Final = 10_000
_MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""Flush before more than this waits in memory; exact only if all records have the same size."""

_NO_LIMIT: Final = 2**31
_FLUSH_STEP_S: Final = 1.0

_READING: Final = {"enable.auto.commit": False, "isolation.level": "read_committed"}
_IN_BATCHES: Final = {"key", "value"}
"""The parts of a record that `produce_batch` takes; it silently ignores a partition."""


def limit_chunk(count: int, size_bytes: int, max_queued: int) -> int:
    """Return how many of `count` records with `size_bytes` in total to send at a time, at least 1.

    >>> limit_chunk(100_000, 5_000_000, 2_000)
    2000
    >>> limit_chunk(1_000, 640 * 1024 * 1024, 2_000)
    100
    """
    of_size = _MAX_QUEUED_BYTES * count // max(size_bytes, 1)
    return max(1, min(_MAX_CHUNK, max_queued, of_size))


class BatchTransaction:
    """The transactions of one place, one batch after the other; not thread-safe.

    Args:
        client: the user's settings for librdkafka.
        topic: the topic of records and marks; None: each block of records names its topic.
        transactional_id: the place's id.
        group: the place's consumer group; its committed offset states what is written.

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
            # First, because a missing topic would otherwise only show as a record that times out.
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
        """Read the group's committed offset and its metadata; the offset is below 0 without one."""
        if self._topic is None:
            # A batch that runs again may name its topics in another order.
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
            size_bytes: the size of all records, with keys and headers.
            topic: their topic, unless the whole transaction goes to one topic.

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
        """Wait until the records fit into the client's queue, so that it refuses none."""
        is_full = self._queued + count > self._max_queued
        if is_full or self._queued_bytes + size_bytes > _MAX_QUEUED_BYTES:
            self._flush()
            self._queued = self._queued_bytes = 0
        self._queued, self._queued_bytes = self._queued + count, self._queued_bytes + size_bytes

    def _flush(self) -> None:
        """Wait until each record is delivered or has failed by its own timeout."""
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
        """Send a record with these headers and no key or value to every partition."""
        assert self._topic is not None
        partitions = self._list_partitions(self._topic)
        marks = [{"partition": each, "headers": headers} for each in partitions]
        self._produce(self._topic, marks, "send a mark")

    def _list_partitions(self, topic: str) -> range:
        """Return the topic's partitions.

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
            DeliveryFailed: the commit failed, or, after a timeout, may have failed.
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
        """End the open transaction without its records, if that is possible."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(timeout=STEP_TIMEOUT_S)
        except KafkaException:
            # A fenced producer has nothing open. The next producer of the place, or the broker's
            # timeout, ends anything that another producer leaves open.
            return

    def close(self) -> None:
        """Close the connections."""
        for each in self._clients:
            each.close()
