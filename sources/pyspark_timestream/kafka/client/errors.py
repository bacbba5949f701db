"""Decides which errors of Kafka's client are retried, and what its errors and log tell the user.

librdkafka reports an unreachable broker four times a second while the outage lasts. `ClientLog`
keeps the latest reason under the broker's address, for the error that may end the query, and logs a
repeated line once a minute.

Kafka marks passing errors as *retriable*, such as errors while a partition changes its leader.
Kafka's Java client retries for a minute inside one call (`default.api.timeout.ms`), and so does
this package, in the driver and in tasks. A client that no broker has ever answered gives up
sooner: then the address, the network or the login is wrong.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.core.declarations import hide_secrets
from pyspark_timestream.core.processes import ProcessLock
from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client.bounded import CallAbandoned

_LOG: Final = logging.getLogger(__name__)

_REPEAT_INTERVAL_S: Final = 60.0
_MAX_REMEMBERED_LINES: Final = 1_000
"""Distinct lines that are remembered; a forgotten line is logged again."""

_THREAD_PREFIX: Final = re.compile(r"^\[thrd:[^\]]*\]: ")
_BROKER: Final = re.compile(
    r"^(?:(?:\w+://)?(?P<address>[^\s/]+:\d+)/\w+|GroupCoordinator(?:/\w+)?: (?P<node>[^\s/]+:\d+))"
    r": (?P<reason>.*)$",
    re.DOTALL,
)
_STATE_SUFFIX: Final = re.compile(r" \(after \d+ms in state .*\)$")
_NUMBER: Final = re.compile(r"\d+")

_SYSLOG_WARNING: Final = 4
"""The syslog level; greater levels are less severe."""

_FAIL_FACILITY: Final = "FAIL"
"""librdkafka's log facility for a lost connection."""

_NO_CODE: Final = 0
_CLIENT_FAILURE_AGE_S: Final = 900.0


class BrokerFailure(NamedTuple):
    """The reason why a broker could not be reached; code 0 if it appeared only in the log."""

    code: int
    reason: str
    at_s: float


class RepeatFilter:
    """Passes each line once a minute, with the number of repeats in between."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._passed: dict[str, tuple[float, int]] = {}
        self._lock = ProcessLock(self._passed.clear)

    def filter(self, address: str, line: str) -> str | None:
        """Return the line to log, or None; lines that differ only in numbers are repeats."""
        key = f"{address} {_NUMBER.sub('#', line)}"
        now_s = self._now_s()
        with self._lock:
            since_s, suppressed = self._passed.get(key, (float("-inf"), 0))
            if now_s - since_s < _REPEAT_INTERVAL_S:
                self._passed[key] = since_s, suppressed + 1
                return None
            self._passed.pop(key, None)
            self._passed[key] = now_s, 0
            while len(self._passed) > _MAX_REMEMBERED_LINES:
                self._passed.pop(next(iter(self._passed)))
        return f"{line} ({suppressed} more like it since)" if suppressed else line


_REPEATS: Final = RepeatFilter()
"""All clients of this process share it, because they report the same about the same broker."""


class ClientLog:
    """Collects errors and log lines from clients of one configuration, and hides its secrets."""

    def __init__(
        self,
        config: Mapping[str, Any],
        repeats: RepeatFilter = _REPEATS,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._repeats = repeats
        self._now_s = now_s
        self._failures: dict[str, BrokerFailure] = {}

    def note_error(self, code: int, text: str) -> None:
        """Keep an error that the client reports, under the address of the broker that it names."""
        address, reason = self._split_address(text)
        self._failures[address] = BrokerFailure(code, reason, self._now_s())

    def log(self, level: int, form: str, *values: Any) -> None:
        """Log a line from confluent-kafka, which calls this like `logging.Logger.log`."""
        # The values are the facility, the client's name, and the line.
        self._emit(level, *((str(values[0]), str(values[-1])) if values else ("", form)))

    def log_syslog(self, level: int, facility: str, line: str) -> None:
        """Log a line from librdkafka, which uses syslog levels."""
        self._emit(logging.WARNING if level <= _SYSLOG_WARNING else logging.INFO, facility, line)

    def recent_failures(self, within_s: float) -> dict[str, BrokerFailure]:
        """Return the latest failure of each broker within the last `within_s`, by address."""
        now_s = self._now_s()
        # Failures of the client itself, such as a token that it cannot obtain, have the address "".
        # librdkafka reports these only once, so they count for longer.
        limits = {"": max(within_s, _CLIENT_FAILURE_AGE_S)}
        return {
            address: failure
            for address, failure in list(self._failures.items())
            if now_s - failure.at_s <= limits.get(address, within_s)
        }

    def _emit(self, level: int, facility: str, line: str) -> None:
        address, reason = self._split_address(line)
        if address and facility == _FAIL_FACILITY:
            # librdkafka raises no error when a broker closes the connection.
            failure = self._failures.get(address)
            code = failure.code if failure and failure.reason == reason else _NO_CODE
            self._failures[address] = BrokerFailure(code, reason, self._now_s())
        passed = self._repeats.filter(address, reason)
        if passed is not None:
            where = f"{address}: " if address else ""
            _LOG.log(min(level, logging.WARNING), "Kafka client: %s%s", where, passed)

    def _split_address(self, text: str) -> tuple[str, str]:
        """Split a text into the broker's address (or "") and the rest, with secrets hidden."""
        text = _STATE_SUFFIX.sub("", _THREAD_PREFIX.sub("", hide_secrets(text, self._config)))
        match = _BROKER.match(text)
        if not match:
            return "", text
        return match["address"] or match["node"], match["reason"]


T = TypeVar("T")

API_TIMEOUT_S: Final = 60.0
"""Time limit for all attempts at one request: Java's `default.api.timeout.ms`."""

REQUEST_TIMEOUT_S: Final = 30.0
"""Time limit for one attempt: Java's `request.timeout.ms`."""

_FIRST_REQUEST_TIMEOUT_S: Final = 2.0
_MAX_PAUSE_S: Final = 1.0

MISSING_CODES: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
"""Codes for a topic or partition that does not exist, no longer, or not yet on every broker."""

_REFUSED_CODES: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_FENCED_CODES: Final = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.PRODUCER_FENCED,
    KafkaError._PURGE_QUEUE,
)
_RETRIABLE_CODES: Final = frozenset(
    (
        # Every `RetriableException` in Kafka's own code, except those for unknown topics
        # (`MISSING_CODES`) and share groups. The list is needed because confluent-kafka's
        # `retriable()` does not cover answers to admin requests.
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
        # A broker that has just started sends it; newer ones send the codes above instead.
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


class FailureKind(Enum):
    """What to do about an error of Kafka's client.

    Attributes:
        may_pass: the same work may succeed later, with the same client or with a new one.
    """

    RETRIABLE = auto()  # The same request may succeed later.
    ABORT_NEEDED = auto()  # The transaction must be aborted; the next one may succeed.
    ABANDONED = auto()  # The call has not returned, so only a new client can go on.
    FENCED = auto()  # Another producer has taken the transactional id.
    MISSING = auto()  # The topic or partition does not exist.
    REFUSED = auto()  # One side refused the connection, rather than leaving it unanswered.
    FATAL = auto()  # The request will not succeed.

    @property
    def may_pass(self) -> bool:
        """Whether the same work may succeed later; see the class."""
        return self in (self.RETRIABLE, self.ABORT_NEEDED, self.ABANDONED)


def classify_failure(error: KafkaException | KafkaError) -> FailureKind:
    """Return the kind of an error."""
    if isinstance(error, CallAbandoned):
        return FailureKind.ABANDONED
    cause = error.args[0] if isinstance(error, KafkaException) else error
    code = cause.code()
    if cause.retriable() or code in _RETRIABLE_CODES:
        needs_abort = cause.txn_requires_abort()
        return FailureKind.ABORT_NEEDED if needs_abort else FailureKind.RETRIABLE
    if code in _FENCED_CODES:
        return FailureKind.FENCED
    if code in MISSING_CODES:
        return FailureKind.MISSING
    return FailureKind.REFUSED if code in _REFUSED_CODES else FailureKind.FATAL


def error_text(error: KafkaException) -> str:
    """Return the error's text."""
    return str(error.args[0].str())


class RetryBudget:
    """The time that one request may take: per attempt, between attempts, and in all.

    Timeouts and pauses grow from attempt to attempt: early ones show soon that a client cannot
    connect, later ones allow for a slow answer. No further attempt is made after `limit_s`.
    """

    def __init__(
        self,
        limit_s: float,
        pause_s: float = 0.1,
        now_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._now_s = now_s
        self._wait = wait
        self._began_s = now_s()
        self._limit_s = limit_s
        self._pause_s = pause_s
        self._request_s = _FIRST_REQUEST_TIMEOUT_S

    @property
    def elapsed_s(self) -> float:
        """The seconds since the first attempt."""
        return self._now_s() - self._began_s

    @property
    def request_timeout_s(self) -> float:
        """The timeout of the next attempt."""
        return max(min(self._request_s, self._limit_s - self.elapsed_s), 0.1)

    def call(self, ask: Callable[[float], T], on_error: Callable[[KafkaException], None]) -> T:
        """Call `ask` with each attempt's timeout until it succeeds.

        `on_error` pauses before the next attempt, or raises an error to give up.
        """
        while True:
            try:
                return ask(self.request_timeout_s)
            except KafkaException as error:
                on_error(error)

    def pause_before_retry(self, limit_s: float | None = None) -> bool:
        """Pause, and return whether there is time for another attempt.

        `limit_s` is a new limit, in seconds from the first attempt; None keeps the old one.
        """
        self._limit_s = self._limit_s if limit_s is None else limit_s
        left_s = self._limit_s - self.elapsed_s
        if left_s <= 0:
            return False
        self._wait(min(self._pause_s, left_s))
        self._pause_s = max(min(2 * self._pause_s, _MAX_PAUSE_S), self._pause_s)
        self._request_s = min(2 * self._request_s, REQUEST_TIMEOUT_S)
        return True


_MAX_REFUSED_S: Final = 5.0
"""How long every broker may refuse a login or certificate before the client gives up."""

_DEFAULT_PORT: Final = 9092
_ADVICE_BY_CODE: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the user describe and read the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "let the user read the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let the user describe the cluster",
}


def is_login_refused(failures: Mapping[str, BrokerFailure], spent_s: float) -> bool:
    """Return whether every contacted broker has refused the connection for too long.

    A token that cannot be obtained is not a refusal by a broker, and is retried.
    """
    codes = {failure.code for failure in failures.values()}
    are_refusals = bool(codes) and codes <= set(_REFUSED_CODES) and "" not in failures
    return are_refusals and spent_s >= _MAX_REFUSED_S


def no_answer_error(
    client: Mapping[str, Any],
    failures: Mapping[str, BrokerFailure],
    spent_s: float,
    target: str,
    prefix: str = "kafka.",
    *,
    timeout_option: str | None = "kafkaConsumer.connectTimeoutMs",
) -> BrokerUnreachable:
    """Build the error for brokers that did not answer the request for `target` within `spent_s`.

    `prefix` stands before librdkafka's names in the user's options. `timeout_option` is the option
    that waits longer; None if the user has none.
    """
    addresses = dict.fromkeys(
        [*_bootstrap_addresses(client), *(address for address in failures if address)]
    )
    answers = [f"{address} ({failures[address].reason if address in failures else 'no answer'})"
            for address in addresses]  # fmt: skip
    everywhere = f"{failures[''].reason}; " if "" in failures else ""
    return BrokerUnreachable(
        f"no Kafka broker answered within {spent_s:.0f} s when asked for {target}: "
        f"{everywhere}{', '.join(answers)}",
        next_step=_choose_advice(failures, prefix, timeout_option),
    )


def failed_request_error(
    error: KafkaException | KafkaError,
    client: Mapping[str, Any],
    failures: Mapping[str, BrokerFailure],
    spent_s: float,
    target: str,
) -> BrokerUnreachable:
    """Build the error for a request that is not repeated any more, or never was."""
    kind = classify_failure(error)
    cause = error.args[0] if isinstance(error, KafkaException) else error
    code, answer = cause.code(), cause.str()
    if kind is FailureKind.ABANDONED:
        return BrokerUnreachable(
            f"cannot get {target}: {answer}",
            next_step="look at the brokers, and start the query again: it goes on where it stopped",
        )
    if kind is FailureKind.REFUSED or (kind is FailureKind.RETRIABLE and code < 0):
        return no_answer_error(client, failures, spent_s, target)
    if kind is FailureKind.RETRIABLE:
        return lasting_error(answer, failures, spent_s, target)
    speaker = "the Kafka broker answered" if code > 0 else "the Kafka client says"
    return BrokerUnreachable(
        f"cannot get {target}: {speaker} '{answer}'",
        next_step=_ADVICE_BY_CODE.get(
            code, "fix the problem named above, and start the query again"
        ),
    )


def lasting_error(
    answer: str, failures: Mapping[str, BrokerFailure], spent_s: float, target: str
) -> BrokerUnreachable:
    """Build the error for a retriable error that persisted."""
    others = [f"{address} ({failure.reason})" for address, failure in failures.items() if address]
    unreached = f"; not to be reached meanwhile: {', '.join(others)}" if others else ""
    return BrokerUnreachable(
        f"cannot get {target}: for {spent_s:.0f} s the Kafka brokers answered "
        f"'{answer}'{unreached}",
        next_step="see to it that every partition has a leader and enough replicas in sync, and "
        "start the query again: it goes on where it stopped",
    )


def _bootstrap_addresses(client: Mapping[str, Any]) -> list[str]:
    """Split `bootstrap.servers` into addresses with ports.

    >>> _bootstrap_addresses({"bootstrap.servers": "a:1, SSL://b"})
    ['a:1', 'b:9092']
    """
    servers = str(client.get("bootstrap.servers", "")).split(",")
    addresses = (server.strip().rpartition("://")[2] for server in servers)
    return [
        address if address.rpartition(":")[2].isdigit() else f"{address}:{_DEFAULT_PORT}"
        for address in addresses
        if address
    ]


def _choose_advice(
    failures: Mapping[str, BrokerFailure], prefix: str, timeout_option: str | None
) -> str:
    codes = {failure.code for failure in failures.values()}
    protocol = f"'{prefix}security.protocol'"
    if KafkaError._AUTHENTICATION in codes:
        return (
            f"check the login: options {protocol}, '{prefix}sasl.mechanism', and "
            f"'{prefix}sasl.username' with '{prefix}sasl.password' or '{prefix}sasl.oauthbearer.*'"
        )
    if KafkaError._SSL in codes:
        return (
            f"check options {protocol} and '{prefix}ssl.ca.location' (whom to trust), and that the "
            "broker's certificate is of this address"
        )
    if any(failure.reason.startswith("Disconnected") for failure in failures.values()):
        return (
            f"check option {protocol}: a broker that hangs up may want a login (SASL_PLAINTEXT, "
            "SASL_SSL) or encryption (SSL, SASL_SSL)"
        )
    option = "option " if prefix else ""
    longer = f"; option '{timeout_option}' waits longer" if timeout_option else ""
    return (
        f"check {option}'{prefix}bootstrap.servers', that the brokers run, and the network to the "
        f"addresses that they advertise{longer}"
    )
