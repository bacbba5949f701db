"""Retriable errors, and how long a request is retried."""

import pytest
from confluent_kafka import KafkaError

from pyspark_timestream.kafka.client.errors import (
    API_TIMEOUT_S,
    MISSING_CODES,
    FailureKind,
    RetryBudget,
    classify_failure,
)

KAFKA_4_3 = {
    "CORRUPT_MESSAGE": 2, "UNKNOWN_TOPIC_OR_PARTITION": 3, "LEADER_NOT_AVAILABLE": 5,
    "NOT_LEADER_OR_FOLLOWER": 6, "REQUEST_TIMED_OUT": 7, "REPLICA_NOT_AVAILABLE": 9,
    "NETWORK_EXCEPTION": 13, "COORDINATOR_LOAD_IN_PROGRESS": 14, "COORDINATOR_NOT_AVAILABLE": 15,
    "NOT_COORDINATOR": 16, "NOT_ENOUGH_REPLICAS": 19, "NOT_ENOUGH_REPLICAS_AFTER_APPEND": 20,
    "NOT_CONTROLLER": 41, "CONCURRENT_TRANSACTIONS": 51, "KAFKA_STORAGE_ERROR": 56,
    "FETCH_SESSION_ID_NOT_FOUND": 70, "INVALID_FETCH_SESSION_EPOCH": 71, "LISTENER_NOT_FOUND": 72,
    "FENCED_LEADER_EPOCH": 74, "UNKNOWN_LEADER_EPOCH": 75, "OFFSET_NOT_AVAILABLE": 78,
    "PREFERRED_LEADER_NOT_AVAILABLE": 80, "ELIGIBLE_LEADERS_NOT_AVAILABLE": 83,
    "ELECTION_NOT_NEEDED": 84, "UNSTABLE_OFFSET_COMMIT": 88, "THROTTLING_QUOTA_EXCEEDED": 89,
    "UNKNOWN_TOPIC_ID": 100, "INCONSISTENT_TOPIC_ID": 103, "FETCH_SESSION_TOPIC_ID_ERROR": 106,
}  # fmt: skip
"""Codes with a `RetriableException` in `Errors` of kafka-clients 4.3.0, but for share groups."""


@pytest.mark.parametrize("name", KAFKA_4_3)
def test_every_answer_that_kafka_calls_retriable_is_asked_for_again(name: str) -> None:
    # A topic that is not known is waited for where it is listed, and not for a minute.
    is_gone = KAFKA_4_3[name] in MISSING_CODES
    assert is_gone == (name == "UNKNOWN_TOPIC_OR_PARTITION")
    expected = FailureKind.MISSING if is_gone else FailureKind.RETRIABLE
    assert classify_failure(KafkaError(KAFKA_4_3[name])) is expected


@pytest.mark.parametrize(
    "code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE, KafkaError._NOENT]
)
def test_no_answer_is_worth_another_try(code: int) -> None:
    assert classify_failure(KafkaError(code)) is FailureKind.RETRIABLE


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, FailureKind.FATAL),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, FailureKind.MISSING),
        (KafkaError.UNSUPPORTED_VERSION, FailureKind.FATAL),
        (KafkaError._SSL, FailureKind.REFUSED),
        (KafkaError._AUTHENTICATION, FailureKind.REFUSED),
        (KafkaError.PRODUCER_FENCED, FailureKind.FENCED),
    ],
)
def test_error_that_needs_a_change_is_not_retriable(code: int, kind: FailureKind) -> None:
    assert classify_failure(KafkaError(code)) is kind
    assert not kind.may_pass


def test_an_error_that_ends_a_transaction_asks_for_the_next_one_if_that_may_succeed() -> None:
    def ending(code: int) -> FailureKind:
        return classify_failure(KafkaError(code, "text", False, False, True))

    assert ending(KafkaError.NOT_COORDINATOR) is FailureKind.ABORT_NEEDED
    assert ending(KafkaError.GROUP_AUTHORIZATION_FAILED) is FailureKind.FATAL


class Clock:
    """Time passes in waits and in requests."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


def patience(clock: Clock, limit_s: float, **more: float) -> RetryBudget:
    return RetryBudget(limit_s, **more, now_s=lambda: clock.now_s, wait=clock.wait)


def test_tries_go_on_for_the_whole_limit_and_no_longer() -> None:
    clock = Clock()
    trying = patience(clock, API_TIMEOUT_S, pause_s=0.01)
    while trying.pause_before_retry():
        pass
    assert clock.now_s == pytest.approx(60)
    assert clock.pauses[:8] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1])
    assert max(clock.pauses) == 1


def test_a_longer_first_pause_stays_as_it_was_asked_for() -> None:
    clock = Clock()
    trying = patience(clock, 10, pause_s=3)
    while trying.pause_before_retry():
        pass
    assert clock.pauses == pytest.approx([3, 3, 3, 1])


def test_requests_may_take_longer_with_each_try_but_not_beyond_the_limit() -> None:
    clock = Clock()
    trying, allowed = patience(clock, 60, pause_s=0.1), []
    while True:
        allowed.append(trying.request_timeout_s)
        clock.now_s += trying.request_timeout_s
        if not trying.pause_before_retry():
            break
    assert allowed[:4] == pytest.approx([2, 4, 8, 16])
    assert clock.now_s == pytest.approx(60, abs=0.2)


def test_a_limit_may_change_meanwhile() -> None:
    clock = Clock()
    trying = patience(clock, 1, pause_s=1)
    assert trying.pause_before_retry(60)
    assert trying.pause_before_retry(60)
    assert not trying.pause_before_retry(2)
