"""Retry: which of Kafka's errors are retriable, and for how long a request is retried.

Kafka marks errors that pass by themselves as *retriable*, such as those while a partition changes
its leader. Kafka's Java client retries for a minute inside one call (`default.api.timeout.ms`), and
so does this package, in the driver and in tasks. A client that no broker has ever answered gives up
sooner: then the address, the network or the login is wrong.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

__all__ = [
    "API_TIMEOUT_S",
    "MISSING_CODES",
    "REFUSED_CODES",
    "REQUEST_TIMEOUT_S",
    "RetryBudget",
    "error_text",
    "is_retriable",
]

T = TypeVar("T")

API_TIMEOUT_S: Final = 60.0
"""Limit of all attempts at one request: Java's `default.api.timeout.ms`."""

REQUEST_TIMEOUT_S: Final = 30.0
"""Limit of one attempt: Java's `request.timeout.ms`."""

_FIRST_REQUEST_TIMEOUT_S: Final = 2.0
_MAX_PAUSE_S: Final = 1.0

MISSING_CODES: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
"""Codes for a topic or partition that does not exist (any more, or not yet on every broker)."""

REFUSED_CODES: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
"""Codes for a connection that one side refused, rather than left unanswered."""

_RETRIABLE_CODES: Final = frozenset(
    (
        # Every `RetriableException` of Kafka's own code, except for unknown topics
        # (`MISSING_CODES`) and share groups. confluent-kafka's `retriable()` does not cover
        # answers to admin requests.
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
        # From a broker that has just started; newer brokers send the codes above instead.
        KafkaError.BROKER_NOT_AVAILABLE,
        # librdkafka's own codes, when no broker has answered.
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._DESTROY_BROKER,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        # librdkafka's code when no partition has a leader at the moment.
        KafkaError._NOENT,
    )
)


def is_retriable(error: KafkaError) -> bool:
    """Check whether the same request may succeed later by itself."""
    return bool(error.retriable() or error.code() in _RETRIABLE_CODES)


def error_text(error: KafkaException) -> str:
    """Return the error's text."""
    return str(error.args[0].str())


class RetryBudget:
    """The time that one request may take: per attempt, between attempts, and in all.

    Timeouts and pauses grow from attempt to attempt: early ones show soon that a client cannot
    connect, later ones allow for a slow answer.

    Attributes:
        tries: attempts so far, the current one included.

    Args:
        limit_s: seconds from now until no further attempt is made.
        pause_s: the first pause.
        now_s: a monotonic clock.
        wait: waits for a number of seconds.
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
        self._request_s = _FIRST_REQUEST_TIMEOUT_S
        self.tries = 1

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first attempt."""
        return self._now_s() - self._began_s

    @property
    def request_timeout_s(self) -> float:
        """The timeout of the next attempt."""
        return max(min(self._request_s, self._limit_s - self.elapsed_s), 0.1)

    def call(self, ask: Callable[[float], T], on_error: Callable[[KafkaException], None]) -> T:
        """Call `ask` with the timeout of each attempt until it succeeds.

        Args:
            ask: sends the request.
            on_error: pauses before the next attempt, or raises to give up.
        """
        while True:
            try:
                return ask(self.request_timeout_s)
            except KafkaException as error:
                on_error(error)

    def pause_before_retry(self, limit_s: float | None = None) -> bool:
        """Pause, and return whether there is time for another attempt.

        Args:
            limit_s: the new limit, in seconds from the first attempt; None if unchanged.
        """
        self._limit_s = self._limit_s if limit_s is None else limit_s
        left_s = self._limit_s - self.elapsed_s
        if left_s <= 0:
            return False
        self._wait(min(self._pause_s, left_s))
        self._pause_s = max(min(2 * self._pause_s, _MAX_PAUSE_S), self._pause_s)
        self._request_s = min(2 * self._request_s, REQUEST_TIMEOUT_S)
        self.tries += 1
        return True
