"""Errors and log lines of Kafka's client: kept per broker, and logged once a minute."""

import logging

import pytest
from confluent_kafka import KafkaError

from pyspark_timestream.kafka.client.errors import ClientLog, RepeatFilter
from pyspark_timestream.kafka.client.native_consumer import _build_handlers

REFUSED = "Connect to ipv4#10.0.0.1:9092 failed: Connection refused"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock) -> ClientLog:
    config = {"bootstrap.servers": "a:9092", "sasl.password": "hunter2"}
    return ClientLog(config, RepeatFilter(clock), clock)


def line(broker: str, reason: str, ms: int = 0) -> str:
    """As librdkafka logs the failure of a connection."""
    return f"[thrd:{broker}/1]: {broker}/1: {reason} (after {ms}ms in state CONNECT, 3 more(s))"


def test_a_repeated_line_is_logged_once_a_minute_with_how_many_were_held_back(
    log: ClientLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(121):
        clock.now_s = 1_000 + second
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#1", line("a:9092", REFUSED, second))
    assert [record.getMessage() for record in caplog.records] == [
        f"Kafka client: a:9092: {REFUSED}",
        f"Kafka client: a:9092: {REFUSED} (59 more like it since)",
        f"Kafka client: a:9092: {REFUSED} (59 more like it since)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_two_brokers_and_two_reasons_do_not_pass_for_repeats(
    log: ClientLog, caplog: pytest.LogCaptureFixture
) -> None:
    for broker in ("a:9092", "a:9093", "sasl_ssl://a:9094"):
        for reason in (REFUSED, "Disconnected"):
            log.log_syslog(3, "FAIL", line(broker, reason))
    assert len(caplog.records) == 6


def test_client_log_keeps_the_level_of_lines_below_warning(
    log: ClientLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log.log_syslog(6, "FAIL", line("a:9092", "Disconnected"))
    log.log(logging.DEBUG, "%s [%s] %s", "FAIL", "rdkafka#1", "x")
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG"]


@pytest.mark.parametrize(
    ("text", "address", "reason"),
    [
        (line("a:9092", REFUSED), "a:9092", REFUSED),
        ("sasl_ssl://a:9092/bootstrap: SSL handshake failed", "a:9092", "SSL handshake failed"),
        ("[::1]:9092/bootstrap: Disconnected", "[::1]:9092", "Disconnected"),
        ("GroupCoordinator: a:9092: Disconnected", "a:9092", "Disconnected"),
        ("Failed to acquire SASL OAUTHBEARER token: x", "", None),
    ],
)
def test_a_reason_is_kept_under_the_address_of_its_broker(
    log: ClientLog, text: str, address: str, reason: str | None
) -> None:
    log.note_error(KafkaError._TRANSPORT, text)
    ((found, complaint),) = log.recent_failures(1).items()
    assert (found, complaint.reason) == (address, reason or text)


def test_the_last_reason_of_a_broker_counts_for_as_long_as_it_is_recent(
    log: ClientLog, clock: Clock
) -> None:
    log.note_error(KafkaError._TRANSPORT, line("a:9092", "Disconnected"))
    log.note_error(KafkaError._TRANSPORT, line("a:9092", REFUSED))
    log.note_error(KafkaError._AUTHENTICATION, "no token")
    clock.now_s += 60
    assert [each.reason for each in log.recent_failures(61).values()] == [REFUSED, "no token"]
    # A line about no broker is told once.
    assert [each.reason for each in log.recent_failures(59).values()] == ["no token"]
    clock.now_s += 900
    assert log.recent_failures(59) == {}
    assert len(log.recent_failures(float("inf"))) == 2


def test_failed_connection_keeps_its_reason_and_error_code(
    log: ClientLog,
) -> None:
    log.note_error(KafkaError._SSL, line("a:9092", "SSL handshake failed"))
    log.log_syslog(3, "FAIL", line("a:9092", "SSL handshake failed"))
    log.log_syslog(6, "FAIL", line("b:9092", "Disconnected"))
    log.log_syslog(4, "CONFWARN", line("c:9092", "something else"))
    found = {at: (each.code, each.reason) for at, each in log.recent_failures(1).items()}
    assert found == {
        "a:9092": (KafkaError._SSL, "SSL handshake failed"),
        "b:9092": (0, "Disconnected"),
    }


def test_secrets_are_in_no_reason_and_no_line(
    log: ClientLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.note_error(KafkaError._AUTHENTICATION, line("a:9092", "bad password hunter2"))
    log.log_syslog(3, "FAIL", line("a:9092", "bad password hunter2"))
    (complaint,) = log.recent_failures(1).values()
    assert "hunter2" not in complaint.reason + caplog.text
    assert "bad password [hidden]" in complaint.reason


def test_a_log_line_of_a_native_client_counts_as_a_complaint(log: ClientLog) -> None:
    _, note_line = _build_handlers(log)
    note_line(None, 3, b"FAIL", line("a:9092", REFUSED).encode())
    assert "a:9092" in log.recent_failures(60.0)
