"""Configuration and closing of clients."""

import logging
import threading
import time

import pytest

from pyspark_timestream.kafka.client import bounded
from pyspark_timestream.kafka.client.bounded import close_with_timeout
from pyspark_timestream.kafka.client.consumer import build_admin_config, build_consumer_config
from pyspark_timestream.kafka.options.checks import read_kafka_options


def test_a_fetch_that_finds_nothing_does_not_hold_up_the_next_range() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    assert build_consumer_config(read_kafka_options(given), "g")["fetch.wait.max.ms"] <= 10
    named = read_kafka_options({**given, "kafka.fetch.wait.max.ms": "200"})
    assert build_consumer_config(named, "g")["fetch.wait.max.ms"] == "200"


def test_a_first_connection_and_the_next_one_do_not_wait_long() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    for config in (build_consumer_config(read_kafka_options(given), "g"),
                   build_admin_config(read_kafka_options(given))):  # fmt: skip
        assert config["reconnect.backoff.ms"] <= 20
        assert config["reconnect.backoff.max.ms"] <= 1_000
    slow = read_kafka_options({**given, "kafka.reconnect.backoff.ms": "5000"})
    assert "reconnect.backoff.max.ms" not in build_consumer_config(slow, "g")
    assert build_admin_config(slow)["reconnect.backoff.ms"] == "5000"


def test_a_client_that_never_closes_does_not_hold_up_a_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began_s, ever = time.monotonic(), threading.Event()
    monkeypatch.setattr(bounded, "_CLOSE_TIMEOUT_S", 0.1)
    with caplog.at_level(logging.WARNING):
        close_with_timeout(ever.wait)
    assert time.monotonic() - began_s < 5
    assert "left behind" in caplog.text
    ever.set()


def test_a_client_is_closed_before_the_task_goes_on() -> None:
    closed: list[str] = []
    close_with_timeout(lambda: (time.sleep(0.1), closed.append("closed")))
    assert closed == ["closed"]


def test_a_client_is_closed_also_where_python_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more_threads(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(bounded, "_IDLE", [])
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    closed: list[str] = []
    close_with_timeout(lambda: closed.append("closed"))
    assert closed == ["closed"]
