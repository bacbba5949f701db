"""Asks the brokers for partitions, offsets, topic ids and committed metadata.

Every request is repeated while its error is retriable (see `client.errors`): until a broker has
answered for the first time, for the user's connect timeout; after that, as long as Kafka's Java
client does. A failure that outlasts this ends the query with `BrokerUnreachable` (semantics 9.1).
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client.bounded import CallAbandoned
from pyspark_timestream.kafka.client.consumer import (
    Pool,
    build_admin_config,
    build_consumer_config,
    open_client,
)
from pyspark_timestream.kafka.client.errors import (
    API_TIMEOUT_S,
    MISSING_CODES,
    REQUEST_TIMEOUT_S,
    ClientLog,
    FailureKind,
    RetryBudget,
    classify_failure,
    error_text,
    failed_request_error,
    is_login_refused,
)
from pyspark_timestream.kafka.offsets.group_metadata import describe_missing_clocks
from pyspark_timestream.kafka.offsets.positions import LEADER_CHANGE_GRACE_S
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import Partition

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)

_GROUP_TIMEOUT_S: Final = 10.0
_GROUP_RETRY_PAUSE_S: Final = 60.0
_SLOW_REQUEST_S: Final = 1.0
"""A slower request may have waited for a broker that was down."""

_NO_OFFSET: Final = -1
"""A broker's answer for a timestamp that no record is at or after."""

_INTERNAL_TOPICS: Final = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
)
"""Kafka's own topics, which a pattern never matches."""


class Broker:
    """Sends the requests of one query to its brokers.

    Attributes:
        group: the query's consumer group, unless the options name one.
        trouble_count: the number of requests that failed or took more than a second.

    Raises:
        OptionError: librdkafka refuses the client configuration.
    """

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self.group = group
        self._options = options
        self._config = build_consumer_config(options, group)
        self._log = ClientLog(options.client)
        # This consumer never subscribes, so it does not join the group.
        self._consumer = open_client(Consumer, self._config, self._log)
        self._admin = open_client(AdminClient, build_admin_config(options), self._log)
        self._topics_with_leaders: set[str] = set()
        self._answered = False
        self._next_group_s = float("-inf")
        self.trouble_count = 0

    def partitions(self) -> list[Partition]:
        """List the existing partitions among those that the options name."""
        if self._options.subscribe_pattern is not None:
            return self._list_matching(self._options.subscribe_pattern)
        assigned = None if self._options.assign is None else set(self._options.assign)
        topics = (
            {partition.topic for partition in assigned}
            if assigned
            else set(self._options.subscribe or ())
        )
        every = [partition for topic in sorted(topics) for partition in self._list_topic(topic)]
        return (
            every
            if assigned is None
            else [partition for partition in every if partition in assigned]
        )

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the first offset of each partition; missing partitions are left out."""
        return self._list_offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after the last readable record: the stable one for `read_committed`."""
        return self._list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()))

    def high_watermarks(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after the last record, including those of open transactions."""
        specs = dict.fromkeys(partitions, OffsetSpec.latest())
        return self._list_offsets(specs, IsolationLevel.READ_UNCOMMITTED)

    def offsets_at(self, instants_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return the first offset with a timestamp at or after an instant; None if none has."""
        specs = {partition: OffsetSpec.for_timestamp(ms) for partition, ms in instants_ms.items()}
        offsets = self._list_offsets(specs, none_is=_NO_OFFSET)
        return {
            partition: None if offset == _NO_OFFSET else offset
            for partition, offset in offsets.items()
        }

    def open_transactions(self, ends: Mapping[Partition, int]) -> set[Partition]:
        """Return the partitions with records after the last stable offset.

        Records after `ends`, which were read earlier, count too, so that a transaction that ends
        between the two requests is not missed.
        """
        specs = dict.fromkeys(ends, OffsetSpec.latest())
        stable = self._list_offsets(specs, IsolationLevel.READ_COMMITTED)
        log_ends = self.high_watermarks(ends)
        return {
            partition
            for partition, log_end in log_ends.items()
            if log_end > min(ends[partition], stable.get(partition, log_end))
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics, without those that cannot be determined."""
        return self._ask_topic_ids(topics)()

    def identify(
        self, partitions: Collection[Partition]
    ) -> tuple[dict[str, str], dict[Partition, int]]:
        """Return `topic_ids` and `earliest`, asking for both at the same time.

        A topic may be created again between the answers: a new id does not mean that the first
        offsets are the new topic's.
        """
        read_ids = self._ask_topic_ids({partition.topic for partition in partitions})
        earliest = self.earliest(partitions)
        return read_ids(), earliest

    def _ask_topic_ids(self, topics: Iterable[str]) -> Callable[[], dict[str, str]]:
        """Send the request for the ids; the result waits for the answer."""
        names = sorted(topics)
        if not names:
            return dict
        began_s, admin = time.monotonic(), self._admin
        try:
            futures = admin.describe_topics(
                TopicCollection(names), request_timeout=REQUEST_TIMEOUT_S
            )
        except CallAbandoned as error:
            _LOG.debug("cannot determine the ids of topics: %s", error_text(error))
            self._replace_abandoned()
            futures = {}
        return lambda: self._read_topic_ids(admin, futures, began_s)

    def _read_topic_ids(
        self, admin: Any, futures: Mapping[str, Any], began_s: float
    ) -> dict[str, str]:
        ids = {}
        for name, future in futures.items():
            if admin.is_abandoned and not future.done():
                # The client that sent the request has been given up.
                continue
            try:
                topic_id = admin.wait(future, REQUEST_TIMEOUT_S, "describe_topics").topic_id
            except KafkaException as error:
                _LOG.debug("cannot determine the id of topic '%s': %s", name, error_text(error))
                continue
            bits = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
            if any(bits):
                ids[name] = "".join(f"{word & (2**64 - 1):016x}" for word in bits)
        # Missing rights refuse every such request at once: only a slow answer means trouble.
        self.trouble_count += time.monotonic() - began_s > _SLOW_REQUEST_S
        self._replace_abandoned()
        return ids

    def committed_metadata(self, partitions: Sequence[Partition]) -> dict[Partition, str]:
        """Return the group metadata that tasks committed; nothing if it cannot be read."""
        if not partitions or time.monotonic() < self._next_group_s:
            return {}
        requests = [TopicPartition(partition.topic, partition.number) for partition in partitions]
        try:
            answer = self._consumer.committed(requests, timeout=_GROUP_TIMEOUT_S)
        except KafkaException as error:
            self._replace_abandoned()
            # Asking again for a forbidden group would cost every batch the same wait.
            self._next_group_s = time.monotonic() + _GROUP_RETRY_PAUSE_S
            _LOG.warning(
                "the metadata of group '%s' cannot be read (%s): %s",
                self._config["group.id"],
                error_text(error),
                describe_missing_clocks(self._options.is_ordered),
            )
            return {}
        return {
            Partition(committed.topic, committed.partition): committed.metadata
            for committed in answer
            if committed.error is None and committed.metadata
        }

    def _list_topic(self, topic: str) -> list[Partition]:
        def ask(request_s: float) -> list[Partition]:
            topics = self._admin.list_topics(topic, timeout=request_s).topics
            return self._read_partitions(topics[topic])

        return self._retry(f"the partitions of topic '{topic}'", ask)

    def _list_matching(self, pattern: str) -> list[Partition]:
        def ask(request_s: float) -> list[Partition]:
            topics = self._admin.list_topics(timeout=request_s).topics
            names = (name for name in sorted(topics) if re.fullmatch(pattern, name))
            return [partition for name in names if name not in _INTERNAL_TOPICS
                    for partition in self._read_partitions(topics[name])]  # fmt: skip

        return self._retry(f"the topics that match '{pattern}'", ask)

    def _read_partitions(self, topic_metadata: Any) -> list[Partition]:
        """Return the partitions of a topic; none if it does not exist."""
        error = topic_metadata.error
        if error is not None and error.code() not in MISSING_CODES:
            raise KafkaException(error)
        if error is None:
            self._topics_with_leaders.add(topic_metadata.topic)
        return [
            Partition(topic_metadata.topic, number) for number in sorted(topic_metadata.partitions)
        ]

    def _find_leaders(self, partitions: Collection[Partition], request_s: float) -> set[str]:
        """Make the client look up the partitions' leaders; return the topics that do not exist."""
        missing_topics = set()
        for topic in sorted(
            {partition.topic for partition in partitions} - self._topics_with_leaders
        ):
            topic_metadata = self._admin.list_topics(topic, timeout=request_s).topics[topic]
            if not self._read_partitions(topic_metadata):
                missing_topics.add(topic)
            for number, partition in topic_metadata.partitions.items():
                if partition.leader < 0 and Partition(topic, number) in partitions:
                    self._topics_with_leaders.discard(topic)
                    text = f"Broker: Leader not available (topic '{topic}' partition {number})"
                    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, text))
        return missing_topics

    def _list_offsets(
        self,
        specs: Mapping[Partition, OffsetSpec],
        level: IsolationLevel | None = None,
        none_is: int | None = None,
    ) -> dict[Partition, int]:
        if not specs:
            return {}
        if level is None:
            committed = self._config["isolation.level"] == "read_committed"
            level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        topics = {partition.topic for partition in specs}

        def ask(request_s: float) -> dict[Partition, int]:
            # Look up the leaders first: a client that lacks one waits up to 3 s for a timer.
            missing_topics = self._find_leaders(specs.keys(), request_s)
            requests = {
                TopicPartition(partition.topic, partition.number): spec
                for partition, spec in specs.items()
                if partition.topic not in missing_topics
            }
            if not requests:
                return {}
            try:
                futures = self._admin.list_offsets(
                    requests, isolation_level=level, request_timeout=request_s
                )
                answers = [
                    (partition, self._read_offset(future, none_is, request_s))
                    for partition, future in futures.items()
                ]
            except KafkaException:
                # The client keeps using the leaders and epochs that it knows. If they have changed,
                # brokers would refuse every later request, so look them up again.
                self._topics_with_leaders -= topics
                raise
            return {
                Partition(partition.topic, partition.partition): offset
                for partition, offset in answers
                if offset is not None
            }

        return self._retry("the offsets of " + _name_topics(topics), ask)

    def _retry(self, target: str, ask: Callable[[float], T]) -> T:
        """Call `ask` with a timeout in seconds until it succeeds."""
        budget = RetryBudget(self._retry_limit_s(), self._options.retry_interval_ms / 1_000)

        def ask_timed(timeout_s: float) -> T:
            began_s = time.monotonic()
            answer = ask(timeout_s)
            self.trouble_count += time.monotonic() - began_s > _SLOW_REQUEST_S
            return answer

        answer = budget.call(ask_timed, lambda error: self._pause_or_raise(error, budget, target))
        self._answered = True
        self._serve_callbacks()
        return answer

    def _retry_limit_s(self) -> float:
        if not self._answered:
            return self._options.connect_timeout_ms / 1_000
        more_ms = self._options.retries * self._options.retry_interval_ms
        return API_TIMEOUT_S + more_ms / 1_000

    def _pause_or_raise(self, error: KafkaException, budget: RetryBudget, target: str) -> None:
        """Pause before the next attempt; raise if it would not help, or no time is left."""
        kind = classify_failure(error)
        self.trouble_count += 1
        self._replace_abandoned()
        # Codes below 0 are the client's own; only those above are answers of a broker.
        self._answered |= error.args[0].code() > 0
        self._serve_callbacks()
        since_s = budget.elapsed_s + _SLOW_REQUEST_S if self._answered else float("inf")
        failures = self._log.recent_failures(since_s)
        is_final = not kind.may_pass and kind is not FailureKind.REFUSED
        if not self._answered:
            is_final |= is_login_refused(failures, budget.elapsed_s)
        if is_final or not budget.pause_before_retry(self._retry_limit_s()):
            raise failed_request_error(
                error, self._options.client, failures, budget.elapsed_s, target
            ) from error

    def close(self) -> None:
        """Release the clients."""
        self._consumer.close()
        self._admin.close()

    def _replace_abandoned(self) -> None:
        """Create a new client in place of one that has not returned from a call."""
        if self._consumer.is_abandoned:
            self._consumer = open_client(Consumer, self._config, self._log)
        if self._admin.is_abandoned:
            self._admin = open_client(AdminClient, build_admin_config(self._options), self._log)
            self._topics_with_leaders.clear()

    def _serve_callbacks(self) -> None:
        try:
            self._admin.poll(timeout=0)
            self._consumer.poll(timeout=0)
        except CallAbandoned:
            self._replace_abandoned()

    def _read_offset(self, future: Any, none_is: int | None, timeout_s: float) -> int | None:
        """Return the answer; None if the partition does not exist."""
        try:
            offset = int(self._admin.wait(future, timeout_s, "list_offsets").offset)
            # If no answer came, librdkafka gives -1001 and no error. For a timestamp, -1 is valid.
            if offset < 0 and offset != none_is:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return offset
        except KafkaException as error:
            if error.args[0].code() in MISSING_CODES:
                return None
            raise


_POOL: Final[Pool[Broker]] = Pool(max_idle=2, idle_s=300)
"""Brokers for tasks of batch reads, which look up their bounds in every evaluation."""


def acquire_broker(options: KafkaOptions, group: str) -> AbstractContextManager[Broker]:
    """Borrow a broker from this process's pool; if the block fails, the broker is closed."""
    topics = options.subscribe, options.subscribe_pattern, options.assign
    limits = options.retries, options.retry_interval_ms, options.connect_timeout_ms
    key = (group, *topics, *limits, *sorted(options.client.items()))
    return _POOL.acquire(key, lambda: Broker(options, group))


def find_every_range(
    broker: Broker, list_partitions: Callable[[], Collection[Partition]]
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return the first offset and the end of each listed partition.

    A partition may be listed without offsets, as while its leader changes. Where nobody would come
    back to one that is left out, its records would be lost: so ask again.

    Raises:
        BrokerUnreachable: a partition still has no offsets after `LEADER_CHANGE_GRACE_S`.
    """
    budget = RetryBudget(LEADER_CHANGE_GRACE_S)
    while True:
        partitions = list_partitions()
        ends = broker.ends(partitions)
        earliest = broker.earliest(ends)
        unknown = sorted(set(partitions) - earliest.keys())
        if not unknown:
            return earliest, ends
        if not budget.pause_before_retry():
            raise BrokerUnreachable(
                f"the brokers list {unknown[0]} and do not tell its offsets"
                + (f", nor those of {len(unknown) - 1} others" if unknown[1:] else ""),
                next_step="see to it that every partition has a leader, and start the query again: "
                "it goes on where it stopped",
            )


def _name_topics(topics: Set[str]) -> str:
    names = ", ".join(f"'{topic}'" for topic in sorted(topics)[:3])
    return f"topic {names}" if len(topics) == 1 else f"topics {names}" + ", ..." * (len(topics) > 3)
