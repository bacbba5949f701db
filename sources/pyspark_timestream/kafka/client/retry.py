"""Which of Kafka's answers are worth another try, and for how long a request is tried again.

Kafka marks its answers: what is *retriable* passes without anybody's doing, such as the moment in
which a partition changes its leader. Its Java client asks again for a minute inside one call
(`default.api.timeout.ms`), and so does this one, in the driver and in tasks. A client that no
broker has ever answered is given up sooner: there the address, the network or the login is wrong.
"""

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

__all__ = [
    "API_TIMEOUT_S",
    "GONE",
    "REFUSALS",
    "REQUEST_TIMEOUT_S",
    "SETTLING_S",
    "Patience",
    "answer_text",
    "is_retriable",
]

API_TIMEOUT_S: Final = 60.0
"""For how long a retriable answer is asked for again: Java's `default.api.timeout.ms`."""

REQUEST_TIMEOUT_S: Final = 30.0
"""How long one request may take at most: Java's `request.timeout.ms`."""

SETTLING_S: Final = 5.0
"""How long a log must seem shorter, or not to exist, to be so: leaders change in between."""

_FIRST_REQUEST_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 1.0

GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
"""Codes that say that a topic or partition does not exist (any more, or not yet everywhere)."""

REFUSALS: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
"""Codes of a connection that was refused by either side, rather than not answered."""

_RETRIABLE: Final = frozenset(
    (
        # What Kafka's own code marks as retriable (`RetriableException`), but for topics that are
        # unknown, which are `GONE`, and for share groups. confluent-kafka's `retriable()` does not
        # say it of the answers to admin requests.
        KafkaError.INVALID_MSG,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.ELECTION_NOT_NEEDED,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        106,  # FETCH_SESSION_TOPIC_ID_ERROR, which confluent-kafka has no name for
        # A broker that has just started; Kafka's newer code has the retriable ones above instead.
        KafkaError.BROKER_NOT_AVAILABLE,
        # librdkafka's own, where no broker has answered.
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._DESTROY_BROKER,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        # So librdkafka says that no partition has a leader at the moment.
        KafkaError._NOENT,
    )
)


def is_retriable(error: KafkaError) -> bool:
    """Whether the same request may succeed later, without anybody's doing."""
    return bool(error.retriable() or error.code() in _RETRIABLE)


def answer_text(error: KafkaException) -> str:
    """The error's text."""
    return str(error.args[0].str())


class Patience:
    """One request that is tried again: how long a try may take, how long to pause, when to end.

    Tries and pauses grow, so that a client that cannot connect is heard of soon, and a slow answer
    is still waited for.

    Args:
        limit_s: how long to go on, from now.
        pause_s: the first pause.
        now_s: a clock that does not jump.
        wait: waits so many seconds.
    """

    def __init__(
        self,
        limit_s: float,
        pause_s: float = 0.1,
        now_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._now_s, self._wait = now_s, wait
        self._began_s = now_s()
        self._limit_s, self._pause_s = limit_s, pause_s
        self._request_s = _FIRST_REQUEST_S
        self.tries = 1

    @property
    def spent_s(self) -> float:
        """How long it has been tried."""
        return self._now_s() - self._began_s

    @property
    def request_s(self) -> float:
        """How long the next try may take."""
        return max(min(self._request_s, self._limit_s - self.spent_s), 0.1)

    def has_more(self, limit_s: float | None = None) -> bool:
        """Pause, and say whether there is time for one more try.

        Args:
            limit_s: how long to go on from the beginning, where that has changed.
        """
        self._limit_s = self._limit_s if limit_s is None else limit_s
        left_s = self._limit_s - self.spent_s
        if left_s <= 0:
            return False
        self._wait(min(self._pause_s, left_s))
        self._pause_s = max(min(2 * self._pause_s, _LONGEST_PAUSE_S), self._pause_s)
        self._request_s = min(2 * self._request_s, REQUEST_TIMEOUT_S)
        self.tries += 1
        return True
