"""What integration tests share: a real broker, fresh topics, one Spark session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from broker import Broker, NoBroker, unique_name
from broker import broker as open_broker
from spark_home import use_installed_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

use_installed_pyspark()
# Spark starts its workers with `python3` from PATH unless told otherwise.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

SAID = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SAID] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash[SAID]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The session's broker; none fails in CI or with KAFKA_TIER, and skips by name elsewhere."""
    said = request.config.stash[SAID]
    with ExitStack() as stack:
        try:
            kafka = stack.enter_context(open_broker(say=said.append))
        except NoBroker as reason:
            if os.environ.get("CI") == "true" or "KAFKA_TIER" in os.environ:
                pytest.fail(f"there must be a Kafka broker here: {reason}", pytrace=False)
            pytest.skip(f"no Kafka broker: {reason}")
        yield kafka


@pytest.fixture
def stoppable_broker(broker: Broker) -> Iterator[Broker]:
    """The broker, for tests that kill it; it runs again after the test."""
    if not broker.can_stop:
        pytest.skip("the broker of KAFKA_BOOTSTRAP_SERVERS is not ours to stop")
    yield broker
    if not broker.is_running:
        broker.start()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Make a fresh topic: `topic(partitions=4, retention_ms=1000)` returns its name."""

    def fresh(partitions: int = 1, **config: Any) -> str:
        return broker.create_topic(unique_name(request.node.name), partitions, **config)

    return fresh


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests: two cores, UTC, no UI."""
    from spark_session import local_spark

    session = local_spark("integration")
    yield session
    session.stop()
