"""The transactions of producers, and batches that commit a note of being written (29.3).

`ProducerTransactions` is the protocol: `PunctuatedProducer` and `BatchTransaction` use it, and
`Requests` repeats its steps. An owner of transactions (a task, or the driver) has a transactional
id and a consumer group. Opening its transactions ends any that an earlier attempt left open, and
prevents that attempt from committing later. Only after that do we read the group's committed
offset, so it states for certain which batch is written.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
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

from pyspark_timestream.core.declarations import hide_secrets
from pyspark_timestream.errors import BrokerUnreachable, DeliveryFailed
from pyspark_timestream.kafka.client.bounded import GRACE_S, BoundedClient
from pyspark_timestream.kafka.client.consumer import open_client
from pyspark_timestream.kafka.client.errors import (
    API_TIMEOUT_S,
    ClientLog,
    FailureKind,
    RetryBudget,
    classify_failure,
    is_login_refused,
    no_answer_error,
)
from pyspark_timestream.rules.marks import Headers

T = TypeVar("T")

STEP_TIMEOUT_S: Final = 10.0
"""The longest time of one attempt at a request."""

_FIRST_PAUSE_S: Final = 0.05


class Requests:
    """Makes the requests of a writer's clients, and repeats those that may pass.

    Args:
        config: the user's settings for librdkafka.
        where: the subject of the requests, for messages.
        advise: returns the next step after an error.
        prefix: stands before librdkafka's names in the user's options.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        where: str,
        advise: Callable[[int, FailureKind], str],
        *,
        prefix: str = "",
        step_s: float | None = None,
    ) -> None:
        self._config = config
        self._where = where
        self._advise = advise
        self._prefix = prefix
        self.step_s = STEP_TIMEOUT_S if step_s is None else step_s
        self.log = ClientLog(config)
        self._clients: list[BoundedClient] = []
        self._is_connected = False

    def open_client(self, kind: Callable[..., Any], config: Mapping[str, Any]) -> BoundedClient:
        """Create a client, which `close` closes."""
        option = f"{self._prefix}*" if self._prefix else "config"
        client = open_client(kind, config, self.log, option)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.close()

    def run(self, step: Callable[[], T], action: str, limit_s: float = API_TIMEOUT_S) -> T:
        """Run one step, and repeat it while its error is retriable, for `limit_s`.

        Raises:
            DeliveryFailed: another attempt would not help, or the client has not returned.
            BrokerUnreachable: no broker has answered in time.
        """
        budget = RetryBudget(limit_s, _FIRST_PAUSE_S)

        def pause_or_raise(error: KafkaException) -> None:
            failed = self._pause_or_fail(budget, error, action)
            if failed is not None:
                raise failed from None

        answer = budget.call(lambda _: step(), pause_or_raise)
        self._is_connected = True
        return answer

    def _pause_or_fail(
        self, budget: RetryBudget, error: KafkaException, action: str
    ) -> DeliveryFailed | BrokerUnreachable | None:
        """Pause before the next attempt; if there is none, return the error to raise."""
        if classify_failure(error) is not FailureKind.RETRIABLE:
            return self.failure(error, action)
        for client in self._clients:
            # The clients' callbacks tell the log which brokers cannot be reached.
            client.poll(0)
        spent_s, cause = budget.elapsed_s, error.args[0]
        failures = self.log.recent_failures(spent_s + 1)
        is_refused = not self._is_connected and is_login_refused(failures, spent_s)
        if not is_refused and budget.pause_before_retry():
            return None
        if cause.code() >= 0 and not failures:
            return self.failure(error, action, may_repeat=False)
        target = f"{self._where} ({self._text(cause)})"
        unreached = no_answer_error(
            self._config, failures, spent_s, target, self._prefix, timeout_option=None
        )
        # A client that sat through a restart may keep its timeouts though the brokers are back.
        unreached.may_repeat = self._is_connected
        return unreached

    def run_once(self, step: Callable[[], T], action: str) -> T:
        """Run one step that must not be repeated, since it may have taken effect in part."""
        try:
            return step()
        except KafkaException as error:
            raise self.failure(error, action) from None

    def failure(
        self, error: KafkaException | KafkaError, action: str, *, may_repeat: bool = True
    ) -> DeliveryFailed:
        """Return the error for a failed step; it may be repeated if that can help."""
        kind = classify_failure(error)
        cause = error.args[0] if isinstance(error, KafkaException) else error
        failed = DeliveryFailed(
            f"could not {action} for {self._where}: {self._text(cause)}",
            next_step=self._advise(cause.code(), kind),
        )
        failed.may_repeat = may_repeat and kind.may_pass
        return failed

    def _text(self, cause: KafkaError) -> str:
        return hide_secrets(str(cause.str()), self._config)

    def list_partitions(
        self, client: BoundedClient, topic: str, limit_s: float = API_TIMEOUT_S
    ) -> range:
        """Return the topic's partitions; none if there is no such topic."""
        action = "list the partitions"
        timeout_s = min(self.step_s, limit_s)
        metadata = self.run(lambda: client.list_topics(topic, timeout=timeout_s), action, limit_s)
        entry = metadata.topics.get(topic)
        if entry is None or entry.partitions:
            return range(len(entry.partitions) if entry is not None else 0)
        if entry.error is not None and classify_failure(entry.error) is not FailureKind.MISSING:
            raise self.failure(entry.error, action)
        return range(0)


class ProducerTransactions:
    """The transactions of one producer, one after the other.

    Attributes:
        is_open: whether a transaction was begun, and has not certainly ended.
        is_committing: whether the open transaction may be committed, because no answer has told.
            Only `commit` can go on with it.
    """

    def __init__(self, producer: BoundedClient, requests: Requests) -> None:
        self._producer = producer
        self._requests = requests
        self._has_id = self.is_open = self.is_committing = False

    def take_id(self) -> None:
        """End an earlier producer's open transaction with this id, and fence that producer."""
        if not self._has_id:
            self._run("init_transactions", "open a transaction")
            self._has_id = True

    def begin(self) -> None:
        """Begin a transaction; none may be open."""
        self.take_id()
        self._requests.run(self._producer.begin_transaction, "begin a transaction")
        self.is_open = True

    def commit(self, offset: TopicPartition | None = None, group: Any = None) -> None:
        """Commit the open transaction, and with it an offset of a consumer group."""
        if offset is not None:
            send = partial(self._send_offsets, [offset], group, timeout=self._requests.step_s)
            self._requests.run(send, "note that the batch is written")
        try_commit = partial(self._try_commit, timeout=self._requests.step_s)
        self._requests.run(try_commit, "commit the transaction")
        self.is_open = self.is_committing = False

    def _try_commit(self, timeout: float) -> None:
        try:
            self._producer.commit_transaction(timeout=timeout)
        except BaseException as error:
            # Only what must be aborted is certainly not committed.
            is_refused = isinstance(error, KafkaException) and error.args[0].txn_requires_abort()
            self.is_committing = not is_refused
            raise

    def abort(self, limit_s: float = API_TIMEOUT_S) -> None:
        """End the open transaction, if any, without its records."""
        if self.is_open:
            self._run("abort_transaction", "abort the transaction", limit_s=limit_s)
            self.is_open = False

    def _send_offsets(self, *arguments: Any, timeout: float) -> None:
        try:
            self._producer.send_offsets_to_transaction(*arguments, timeout=timeout)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            # A record failed during the call. Only the next call tells the cause, which may pass.
            self._producer.send_offsets_to_transaction(*arguments, timeout=timeout)

    def _run(self, name: str, action: str, limit_s: float = API_TIMEOUT_S) -> None:
        step = partial(getattr(self._producer, name), timeout=self._requests.step_s)
        self._requests.run(step, action, limit_s)


# -- batches of a query ---------------------------------------------------------------------------

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
_ADVICE_BY_CODE: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the user write to the topic and describe it",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "let the user write and describe "
    "transactional ids with the prefix of option 'transactionalIdPrefix'",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "let the user read consumer groups with the prefix of "
    "option 'transactionalIdPrefix'",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let the user write idempotently to the cluster",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise 'kafka.message.max.bytes' and the topic's "
    "max.message.bytes, or make the rows smaller",
    KafkaError._UNKNOWN_PARTITION: "correct the rows' column 'partition'",
    KafkaError.INVALID_TIMESTAMP: "correct the rows' column 'timestamp', or raise the topic's "
    "message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower 'kafka.transaction.timeout.ms' to at most the "
    "broker's transaction.max.timeout.ms",
    KafkaError.UNSTABLE_OFFSET_COMMIT: "wait until the broker has ended the transaction that an "
    "earlier attempt left open, at the latest after 'kafka.transaction.timeout.ms'",
    KafkaError._QUEUE_FULL: "raise 'kafka.queue.buffering.max.kbytes'",
    KafkaError._UNSUPPORTED_FEATURE: "use brokers with transactions (Kafka 0.11 or newer)",
}
_TOO_SLOW: Final = (
    "see to it that no other query uses the same 'writer' or the same checkpoint; or raise "
    "'kafka.transaction.timeout.ms', since the broker ends a transaction that takes longer"
)


def _advise_query(code: int, kind: FailureKind) -> str:
    otherwise = "look at the brokers" if kind.may_pass else "fix the problem named above"
    advice = _TOO_SLOW if kind is FailureKind.FENCED else _ADVICE_BY_CODE.get(code, otherwise)
    return f"{advice}; then start the query again: it goes on with this batch"


def _query_requests(config: Mapping[str, str], topic: str | None) -> Requests:
    where = "the rows' topics" if topic is None else f"topic '{topic}'"
    return Requests(config, where, _advise_query, prefix="kafka.")


def _reading_config(config: Mapping[str, str]) -> dict[str, Any]:
    """Return the user's settings for clients that read, without those of producers."""
    set_here = PRODUCER_DEFAULTS | PRODUCER_REQUIRED
    settings = {key: text for key, text in config.items() if not key.startswith(_PRODUCER_ONLY)}
    return {key: text for key, text in settings.items() if key not in set_here}


_NONE: Final = -1001
"""librdkafka's offset for a group that has committed none."""

_READ: Final = "read what is written"


def read_entries(
    config: Mapping[str, str], topic: str | None, find_task: Callable[[str], int | None]
) -> dict[int, tuple[int, str | None]]:
    """Read the committed offset of each task's group and its metadata; below 0 without one.

    Wait for an offset that belongs to an open transaction. `find_task` returns the task by the name
    of its group; None skips the group.
    """
    with _open_groups(config, topic) as (groups, requests):
        names = requests.run(groups.list_names, _READ)
        tasks = {name: task for name in names if (task := find_task(name)) is not None}
        # Ask for all groups at once, and again only for those that fail.
        in_flight: dict[str, Any] = {
            name: requests.run(partial(groups.ask, name), _READ) for name in tasks
        }

        def read(name: str) -> tuple[int, str | None]:
            return groups.read(in_flight.pop(name, None) or groups.ask(name))

        return {task: requests.run(partial(read, name), _READ) for name, task in tasks.items()}


class _GroupReader:
    """Reads consumer groups, of one topic or of all."""

    def __init__(self, client: BoundedClient, topic: str | None) -> None:
        self._client = client
        self._partitions = None if topic is None else [TopicPartition(topic, 0)]

    def list_names(self) -> list[str]:
        request = self._client.list_consumer_groups(request_timeout=STEP_TIMEOUT_S)
        groups = self._client.wait(request, STEP_TIMEOUT_S, "list_consumer_groups")
        for error in groups.errors:
            # A broker does not answer, and it may have one of our groups. confluent-kafka returns a
            # KafkaError, which is not an exception, or a KafkaException.
            raise KafkaException(error) if isinstance(error, KafkaError) else error
        return [group.group_id for group in groups.valid]

    def ask(self, name: str) -> Future[ConsumerGroupTopicPartitions]:
        request = ConsumerGroupTopicPartitions(name, self._partitions)
        answers: dict[str, Future[ConsumerGroupTopicPartitions]] = (
            self._client.list_consumer_group_offsets(
                [request], require_stable=True, request_timeout=STEP_TIMEOUT_S
            )
        )
        return answers[name]

    def read(self, answer: Future[ConsumerGroupTopicPartitions]) -> tuple[int, str | None]:
        """Return the greatest committed offset in the answer, and its metadata."""
        name = "list_consumer_group_offsets"
        committed: tuple[int, str | None] = (_NONE, None)
        for committed_offset in (
            self._client.wait(answer, STEP_TIMEOUT_S, name).topic_partitions or ()
        ):
            if committed_offset.error is not None:
                raise KafkaException(committed_offset.error)
            if int(committed_offset.offset) > committed[0]:
                committed = int(committed_offset.offset), committed_offset.metadata
        return committed


@contextmanager
def _open_groups(
    config: Mapping[str, str], topic: str | None
) -> Iterator[tuple[_GroupReader, Requests]]:
    requests = _query_requests(config, topic)
    try:
        yield (
            _GroupReader(requests.open_client(AdminClient, _reading_config(config)), topic),
            requests,
        )
    finally:
        requests.close()


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
    max_by_size = _MAX_QUEUED_BYTES * count // max(size_bytes, 1)
    return max(1, min(_MAX_CHUNK, max_queued, max_by_size))


class BatchTransaction:
    """The transactions of one owner, one batch after the other; not thread-safe.

    Args:
        config: the user's settings for librdkafka.
        topic: the topic of records and marks; None: each block of records names its topic.
        transactional_id: the owner's id.
        group: the owner's consumer group; its committed offset states which batch is written.

    Raises:
        OptionError: librdkafka refuses the settings.
        DeliveryFailed: there is no such topic, or the transactional id cannot be used.
    """

    def __init__(
        self, config: Mapping[str, str], topic: str | None, transactional_id: str, group: str
    ) -> None:
        self._topic = topic
        self._config = config
        self._group_name = group
        self._sent_to: list[str] = []
        self._requests = _query_requests(config, topic)
        self._queued_bytes = self._queued = 0
        writing = {**PRODUCER_DEFAULTS, **config, **PRODUCER_REQUIRED}
        writing["transactional.id"] = transactional_id
        self._transaction_s = int(writing["transaction.timeout.ms"]) / 1_000
        self._max_queued = int(writing["queue.buffering.max.messages"]) or _NO_LIMIT
        reading = {**_reading_config(config), **_READING, "group.id": group}
        try:
            self._producer = self._requests.open_client(Producer, writing)
            self._group = self._requests.open_client(Consumer, reading)
            self._transactions = ProducerTransactions(self._producer, self._requests)
            # First, because a missing topic would otherwise only show as a record that times out.
            if topic is not None:
                self._list_partitions(topic)
            self._transactions.take_id()
        except BaseException:
            self.close()
            raise

    def read_entry(self) -> tuple[int, str | None]:
        """Read the group's committed offset and its metadata; the offset is below 0 without one."""
        if self._topic is None:
            # A batch that runs again may name its topics in another order.
            with _open_groups(self._config, None) as (groups, requests):
                return requests.run(lambda: groups.read(groups.ask(self._group_name)), _READ)
        partitions = [TopicPartition(self._topic, 0)]
        (entry,) = self._requests.run(
            lambda: self._group.committed(partitions, timeout=STEP_TIMEOUT_S), _READ
        )
        if entry.error is not None:
            raise self._requests.failure(entry.error, _READ)
        return int(entry.offset), entry.metadata

    def begin(self) -> None:
        """Begin the transaction of a batch."""
        self._queued_bytes = self._queued = 0
        self._sent_to.clear()
        self._transactions.begin()

    def send(
        self, messages: Sequence[dict[str, Any]], size_bytes: int, topic: str | None = None
    ) -> None:
        """Send records, at least one, each a dict of the arguments of `Producer.produce`.

        `size_bytes` is the size of all, with keys and headers.
        """
        topic = self._topic or topic
        assert topic is not None
        if topic not in self._sent_to:
            if self._topic is None:
                self._list_partitions(topic)
            self._sent_to.append(topic)
        chunk = limit_chunk(len(messages), size_bytes, self._max_queued)
        for start in range(0, len(messages), chunk):
            chunk_messages = list(messages[start : start + chunk])
            self._make_room(len(chunk_messages), size_bytes * len(chunk_messages) // len(messages))
            self._produce(topic, chunk_messages, "send a row")

    def _make_room(self, count: int, size_bytes: int) -> None:
        """Wait until the records fit into the client's queue, so that it refuses none."""
        is_full = self._queued + count > self._max_queued
        if is_full or self._queued_bytes + size_bytes > _MAX_QUEUED_BYTES:
            self._flush()
            self._queued = self._queued_bytes = 0
        self._queued += count
        self._queued_bytes += size_bytes

    def _flush(self) -> None:
        # Each record is delivered, or fails by its own timeout.
        deadline_s = time.monotonic() + self._transaction_s + GRACE_S
        flush = partial(self._producer.flush, timeout=_FLUSH_STEP_S)
        while self._requests.run_once(flush, "send the rows"):
            if time.monotonic() > deadline_s:
                late = KafkaError(KafkaError._TIMED_OUT, "no answer from the brokers")
                raise self._requests.failure(late, "send the rows")

    def _produce(self, topic: str, messages: list[dict[str, Any]], action: str) -> None:
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

        self._requests.run_once(lambda: self._producer.run(queue, 0, "produce"), action)

    def send_marks(self, headers: Headers) -> None:
        """Send a record with these headers and no key or value to every partition."""
        assert self._topic is not None
        partitions = self._list_partitions(self._topic)
        marks = [{"partition": partition, "headers": headers} for partition in partitions]
        self._produce(self._topic, marks, "send a mark")

    def _list_partitions(self, topic: str) -> range:
        partitions = self._requests.list_partitions(self._producer, topic)
        if not partitions:
            raise DeliveryFailed(
                f"topic '{topic}' does not exist",
                next_step=f"create it, or correct {'option' if self._topic else 'the column'} "
                "'topic'. Nothing of the task is written",
            )
        return partitions

    def commit(self, offset: int, metadata: str) -> None:
        """Commit the records, and with them the offset and its metadata.

        Raises:
            DeliveryFailed: the commit failed, or, after a timeout, may have failed.
        """
        entry = TopicPartition(self._topic or self._sent_to[0], 0, offset, metadata)
        group = self._requests.run(self._group.consumer_group_metadata, "find the group")
        self._transactions.commit(entry, group)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Begin the transaction of a batch; if the block fails, abort it."""
        self.begin()
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """End the open transaction without its records, if that is possible."""
        # A fenced producer has nothing open. The next producer of the owner, or the broker's
        # timeout, ends anything that another producer leaves open.
        with suppress(DeliveryFailed, BrokerUnreachable):
            self._transactions.abort(limit_s=0)

    def close(self) -> None:
        """Close the clients."""
        self._requests.close()
