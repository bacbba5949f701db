"""Shared by integration tests: a real broker, fresh topics, one Spark session."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from broker import Broker, NoBroker, Record, unique_name
from broker import broker as open_broker

from pyspark_timestream.core.session import use_installed_pyspark

if TYPE_CHECKING:
    from both_sources import Source
    from kafka_query import Stream
    from pyspark.sql import SparkSession

use_installed_pyspark(os.environ)
# Spark starts its workers with `python3` from PATH unless told otherwise.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
# Jobs that tests start import what their tests import.
SUPPORT = [str(folder) for folder in sorted(Path(__file__).parent.glob("support/[a-z]*"))]
if os.environ.get("HAND_OVER") == "off":
    # Tasks read every batch, as with a Spark that takes no rows along with partitions
    # (semantics 8.9).
    SUPPORT.append(str(Path(__file__).parent / "no_hand_over"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*SUPPORT, os.getenv("PYTHONPATH")]))

pytest.register_assert_rewrite("both_sources")

SAID = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SAID] = []


def pytest_unconfigure() -> None:
    # Libraries bound by nanobind (DuckDB) report as leaked what tests of a worker have frozen.
    gc.unfreeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands what was said to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["said"] = session.config.stash[SAID]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[SAID].extend(getattr(node, "workeroutput", {}).get("said", []))


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
def peer_jars() -> str:
    """Spark's own Kafka source, where it can be fetched; empty elsewhere."""
    from peers import kafka_jars

    try:
        return kafka_jars()
    except (SystemExit, subprocess.TimeoutExpired):
        return ""


@pytest.fixture(scope="session")
def spark(peer_jars: str) -> Iterator[SparkSession]:
    """One session for all tests: two cores, UTC, no UI."""
    from spark_session import local_spark

    session = local_spark("integration", spark_jars=peer_jars)
    yield session
    session.stop()


@pytest.fixture
def stream(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> Callable[..., Stream]:
    """Make a `Stream` over a fresh topic filled with records; `config` is the topic's."""
    from kafka_query import Stream

    def make(
        records: Iterable[Record] = (),
        partitions: int = 1,
        schema: str | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Stream:
        name = topic(partitions, **(config or {}))
        broker.produce(name, list(records))
        given = {
            key.replace("__", "."): None if value is None else str(value)
            for key, value in options.items()
        }
        return Stream(spark, broker, name, tmp_path / name, given, schema)

    return make


@pytest.fixture
def both(
    peer_jars: str, spark: SparkSession, broker: Broker, tmp_path: Path
) -> tuple[Source, Source]:
    """Spark's own Kafka source and ours, over the same broker."""
    from both_sources import Source

    if not peer_jars:
        message = "Spark's own Kafka source could not be fetched from Maven Central"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    return (
        Source("kafka", spark, broker, tmp_path / "kafka"),
        Source("timestream", spark, broker, tmp_path / "timestream", {"transport": "kafka"}),
    )
