"""The broker as the driver sees it: partitions, their ends, and what tasks left in the group."""

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

from pyspark_timestream.kafka.client.broker_errors import (
    answered_too_long,
    is_refused,
    no_answer,
    request_refused,
)
from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.config import (
    admin_config,
    consumer_config,
    let_go,
    logged_client,
    made,
)
from pyspark_timestream.kafka.client.pool import Stock
from pyspark_timestream.kafka.client.retry import (
    API_TIMEOUT_S,
    GONE,
    REFUSALS,
    REQUEST_TIMEOUT_S,
    Patience,
    answer_text,
    is_retriable,
)
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.plan.group_metadata import cost_without_states
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["Broker", "borrowed_broker"]

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)

_GROUP_TIMEOUT_S: Final = 10.0
_GROUP_PAUSE_S: Final = 60.0
_SLOW_S: Final = 1.0
"""A request that takes longer may have waited for a broker that was away."""

_NOWHERE: Final = -1
"""The broker's offset of a timestamp after the last record's."""

_INTERNAL: Final = (
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
)
"""Kafka's own topics, which no pattern means."""


class Broker:
    """Asks one broker for one query.

    Attributes:
        troubles: how many requests failed or took over a second so far.

    Args:
        options: the client configuration, the topics, and how patient to be.
        group: the query's consumer group, unless the options name one.

    Raises:
        OptionError: librdkafka refuses the client configuration.
    """

    def __init__(self, options: KafkaOptions, group: str) -> None:
        self.group = group
        self._options = options
        self._config = consumer_config(options, group)
        self._log = ClientLog(options.client)
        # It never subscribes, so it is no member of the group: it only asks.
        self._consumer = made(options, lambda: logged_client(Consumer, self._config, self._log))
        own = admin_config(options)
        self._admin = made(options, lambda: logged_client(AdminClient, own, self._log))
        self._led: set[str] = set()
        self._answered = False
        self._next_group_s = float("-inf")
        self.troubles = 0

    def partitions(self) -> list[Partition]:
        """The partitions that the options name, as far as they exist now."""
        if self._options.subscribe_pattern is not None:
            return self._matching(self._options.subscribe_pattern)
        wanted = None if self._options.assign is None else set(self._options.assign)
        topics = {part.topic for part in wanted} if wanted else set(self._options.subscribe or ())
        found = [part for topic in sorted(topics) for part in self._topic(topic)]
        return found if wanted is None else [part for part in found if part in wanted]

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset that each partition still has; what is gone is left out."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last readable record (the last stable one, if committed reads)."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.latest()))

    def written_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last record, those of open transactions included."""
        asked = dict.fromkeys(partitions, OffsetSpec.latest())
        return self._offsets(asked, IsolationLevel.READ_UNCOMMITTED)

    def offsets_at(self, instants_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """The first offset whose timestamp is at or after an instant; None where there is none."""
        specs = {part: OffsetSpec.for_timestamp(ms) for part, ms in instants_ms.items()}
        found = self._offsets(specs, none_is=_NOWHERE)
        return {part: None if at == _NOWHERE else at for part, at in found.items()}

    def in_transaction(self, ends: Mapping[Partition, int]) -> set[Partition]:
        """The partitions with an open transaction: their logs go on after the last stable offset.

        What goes on after `ends`, which were seen before, counts as open as well: a transaction
        that ends between two questions must not pass for none.
        """
        asked = dict.fromkeys(ends, OffsetSpec.latest())
        stable = self._offsets(asked, IsolationLevel.READ_COMMITTED)
        written = self.written_ends(ends)
        return {p for p, end in written.items() if end > min(ends[p], stable.get(p, end))}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of topics; without those whose id cannot be learnt, for whatever reason."""
        names = sorted(topics)
        if not names:
            return {}
        futures = self._admin.describe_topics(
            TopicCollection(names), request_timeout=REQUEST_TIMEOUT_S
        )
        began_s, found = time.monotonic(), {}
        for name, future in futures.items():
            try:
                topic_id = future.result().topic_id
            except KafkaException as error:
                _LOG.debug("the id of topic '%s' is not known: %s", name, answer_text(error))
                continue
            bits = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
            if any(bits):
                found[name] = "".join(f"{half & (2**64 - 1):016x}" for half in bits)
        # A refusal comes at once, and again and again: only a slow answer speaks of trouble.
        self.troubles += time.monotonic() - began_s > _SLOW_S
        return found

    def left_metadata(self, partitions: Sequence[Partition]) -> dict[Partition, str]:
        """What tasks left in the group's metadata; nothing where it cannot be read."""
        if not partitions or time.monotonic() < self._next_group_s:
            return {}
        asked = [TopicPartition(part.topic, part.number) for part in partitions]
        try:
            answer = self._consumer.committed(asked, timeout=_GROUP_TIMEOUT_S)
        except KafkaException as error:
            # Asking a group that is forbidden again would cost every batch the same wait.
            self._next_group_s = time.monotonic() + _GROUP_PAUSE_S
            _LOG.warning(
                "the metadata of group '%s' cannot be read (%s): %s",
                self._config["group.id"],
                answer_text(error),
                cost_without_states(self._options.is_ordered),
            )
            return {}
        return {
            Partition(left.topic, left.partition): left.metadata
            for left in answer
            if left.error is None and left.metadata
        }

    def _topic(self, topic: str) -> list[Partition]:
        def ask(request_s: float) -> list[Partition]:
            found = self._admin.list_topics(topic, timeout=request_s).topics
            return self._partitions_of(found[topic])

        return self._patiently(f"the partitions of topic '{topic}'", ask)

    def _matching(self, pattern: str) -> list[Partition]:
        def ask(request_s: float) -> list[Partition]:
            found = self._admin.list_topics(timeout=request_s).topics
            names = (name for name in sorted(found) if re.fullmatch(pattern, name))
            return [part for name in names if name not in _INTERNAL
                    for part in self._partitions_of(found[name])]  # fmt: skip

        return self._patiently(f"the topics that match '{pattern}'", ask)

    def _partitions_of(self, listed: Any) -> list[Partition]:
        """The partitions of a topic; none where it does not exist."""
        error = listed.error
        if error is not None and error.code() not in GONE:
            raise KafkaException(error)
        if error is None:
            self._led.add(listed.topic)
        return [Partition(listed.topic, number) for number in sorted(listed.partitions)]

    def _find_leaders(self, wanted: Collection[Partition], request_s: float) -> set[str]:
        """Let the client know the partitions' leaders; the topics that do not exist.

        Raises:
            KafkaException: one of them has none.
        """
        gone = set()
        for topic in sorted({part.topic for part in wanted} - self._led):
            listed = self._admin.list_topics(topic, timeout=request_s).topics[topic]
            if not self._partitions_of(listed):
                gone.add(topic)
            for number, partition in listed.partitions.items():
                if partition.leader < 0 and Partition(topic, number) in wanted:
                    self._led.discard(topic)
                    text = f"Broker: Leader not available (topic '{topic}' partition {number})"
                    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, text))
        return gone

    def _offsets(
        self,
        specs: Mapping[Partition, OffsetSpec],
        level: IsolationLevel | None = None,
        none_is: int | None = None,
    ) -> dict[Partition, int]:
        if not specs:
            return {}
        committed = self._config["isolation.level"] == "read_committed"
        own = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        topics = {part.topic for part in specs}

        def ask(request_s: float) -> dict[Partition, int]:
            # A client that knows no leader waits for one of its own timers, of up to 3 s.
            gone = self._find_leaders(specs.keys(), request_s)
            asked = {
                TopicPartition(part.topic, part.number): spec
                for part, spec in specs.items()
                if part.topic not in gone
            }
            if not asked:
                return {}
            try:
                futures = self._admin.list_offsets(
                    asked, isolation_level=level or own, request_timeout=request_s
                )
                answers = [(part, _offset_or_gone(each, none_is)) for part, each in futures.items()]
            except KafkaException:
                # The client goes on with the leaders and epochs that it knows. They may have
                # changed, and it would be refused for ever.
                self._led -= topics
                raise
            return {
                Partition(part.topic, part.partition): offset
                for part, offset in answers
                if offset is not None
            }

        return self._patiently("the offsets of " + _few(topics), ask)

    def _patiently(self, wanted: str, ask: Callable[[float], T]) -> T:
        """The answer of `ask`, which may take as long as it is told, and is tried again.

        Raises:
            BrokerUnreachable: there is none in time, or it is a refusal.
        """
        patience = Patience(self._limit_s(), self._options.retry_interval_ms / 1_000)
        while True:
            began_s = time.monotonic()
            try:
                answer = ask(patience.request_s)
            except KafkaException as error:
                self.troubles += 1
                self._note_failure(error, patience, wanted)
                continue
            self._answered = True
            self.troubles += time.monotonic() - began_s > _SLOW_S
            self._hear()
            return answer

    def _limit_s(self) -> float:
        """For how long a request is tried again."""
        if not self._answered:
            return self._options.connect_timeout_ms / 1_000
        more_ms = self._options.retries * self._options.retry_interval_ms
        return API_TIMEOUT_S + more_ms / 1_000

    def _note_failure(self, error: KafkaException, patience: Patience, wanted: str) -> None:
        """Pause before the next try.

        Raises:
            BrokerUnreachable: there is no next try.
        """
        code = error.args[0].code()
        # Codes below 0 are the client's own: no broker has answered.
        self._answered |= code > 0
        self._hear()
        if not is_retriable(error.args[0]) and code not in REFUSALS:
            raise request_refused(code, answer_text(error), wanted) from error
        since_s = patience.spent_s + _SLOW_S if self._answered else float("inf")
        heard = self._log.complaints(since_s)
        is_given_up = not self._answered and is_refused(heard, patience.spent_s)
        if not is_given_up and patience.has_more(self._limit_s()):
            return
        if code > 0:
            answer = answer_text(error)
            raise answered_too_long(answer, heard, patience.spent_s, wanted) from error
        raise no_answer(self._options.client, heard, patience.spent_s, wanted) from error

    def close(self) -> None:
        """Release the clients."""
        let_go(self._consumer.close)

    def _hear(self) -> None:
        """Let the clients say what they have to say."""
        self._admin.poll(0)
        self._consumer.poll(0)


_STOCK: Final[Stock[Broker]] = Stock(most=2, idle_s=300)
"""Tasks of batch reads that are evaluated again and again ask where they start and end."""


def borrowed_broker(options: KafkaOptions, group: str) -> AbstractContextManager[Broker]:
    """A broker from this process's stock; it goes back there unless something went wrong."""
    topics = options.subscribe, options.subscribe_pattern, options.assign
    patience = options.retries, options.retry_interval_ms, options.connect_timeout_ms
    key = (group, *topics, *patience, *sorted(options.client.items()))
    return _STOCK.borrowed(key, lambda: Broker(options, group))


def _few(topics: Set[str]) -> str:
    """Some of `topics`, for a message."""
    named = ", ".join(f"'{topic}'" for topic in sorted(topics)[:3])
    return f"topic {named}" if len(topics) == 1 else f"topics {named}" + ", ..." * (len(topics) > 3)


def _offset_or_gone(future: Any, none_is: int | None) -> int | None:
    """The answer; None where the partition is gone.

    Without an answer librdkafka gives -1001 and no error. -1 is one where a timestamp was asked
    for: `none_is`.
    """
    try:
        offset = int(future.result().offset)
        if offset < 0 and offset != none_is:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return offset
    except KafkaException as error:
        if error.args[0].code() in GONE:
            return None
        raise
