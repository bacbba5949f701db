"""Faults around a query on a real broker, each with its outcome: nothing lost or doubled.

The measure is always the same: what a second query, from its own checkpoint and without the fault,
makes of the same topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker import Broker, Record
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ResourceType
from harness import forget_batches, latest
from kafka_query import Stream, ctis, event, marks, times
from lengths import outside_ci
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timeout(900)

PATIENT = {"fetchOffset.numRetries": "120", "fetchOffset.retryIntervalMs": "1000"}
DRIVEN = {"ctiFrequency": "3", "ctiDelay": "2 seconds"}

Make = Callable[..., Stream]


@pytest.fixture
def stream(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> Iterator[Make]:
    """Make a `Stream` over a topic, a fresh one unless named, with a checkpoint of its own."""
    made: list[Stream] = []

    def make(name: str | None = None, partitions: int = 1, **options: str) -> Stream:
        place = tmp_path / str(len(made))
        made.append(Stream(spark, broker, name or topic(partitions), place, options))
        return made[-1]

    yield make
    for query in spark.streams.active:
        query.stop()


def shuffled(count: int, first: int = 0) -> list[Record]:
    """Events out of order by up to 22 s on two partitions, so that some are late."""
    return [event(n + (7 * n) % 23, n % 2) for n in range(first, first + count)]


def kept(rows: list[Row]) -> list[tuple[int, int, float]]:
    """The data rows, each as often as it came."""
    return sorted((r.partition, r.offset, r.start_time) for r in rows if r.cti is None)


def assert_undisturbed(disturbed: Stream, undisturbed: Stream) -> None:
    """Same rows, same counters, the same last CTI, and CTIs that only rose."""
    expected = undisturbed.run()
    rows = disturbed.rows()
    assert kept(rows) == kept(expected)
    assert len(kept(rows)) > 0
    told = [at for at in ctis(rows) if at is not None]
    assert told == sorted(told)
    assert told[-1] == ctis(expected)[-1]
    counters = ("events", "dropped", "malformed", "ctis")
    one, other = disturbed.report(), undisturbed.report()
    assert {name: one[name] for name in counters} == {name: other[name] for name in counters}


def wait_for_batch(query: StreamingQuery, number: int) -> None:
    """Return when a batch was completed; a query that ended has failed."""
    deadline = time.monotonic() + 120
    while not ((progress := query.lastProgress) and progress.batchId >= number):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"no batch {number}: {progress}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "outage_s",
    [
        # In CI brokers restart under a query (test_rolling_restarts.py), and one is killed under a
        # reader (test_native.py).
        pytest.param(0, id="restarted", marks=pytest.mark.soak),
        pytest.param(30, id="no leader for 30 s", marks=pytest.mark.soak),
    ],
)
def test_a_broker_that_is_killed_in_the_middle_only_delays_the_query(
    stoppable_broker: Broker, stream: Make, outage_s: int
) -> None:
    made = stream(partitions=2, **DRIVEN, **PATIENT)
    stoppable_broker.produce(made.topic, shuffled(120))
    query = made.query = made.start(once=False, maxOffsetsPerTrigger=24)
    wait_for_batch(query, 0)
    stoppable_broker.stop()
    # No condition to wait for: the outage itself is what is tested.
    time.sleep(outage_s)
    assert query.isActive, query.exception()
    stoppable_broker.start()
    stoppable_broker.produce(made.topic, shuffled(40, first=120))
    query.processAllAvailable()
    query.stop()
    made.run()
    assert made.report()["events"] == 160
    assert_undisturbed(made, stream(made.topic, **DRIVEN))


def group_of(made: Stream) -> str:
    """The stream's consumer group, as its offsets name it."""
    newest = max((made.place / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    return "timestream-" + str(json.loads(newest.read_text().splitlines()[-1])["stream"])


@pytest.mark.soak
def test_a_group_that_is_forbidden_for_a_while_changes_no_row(broker: Broker, stream: Make) -> None:
    made = stream(partitions=2, **DRIVEN)
    broker.produce(made.topic, shuffled(40))
    made.run(maxOffsetsPerTrigger=15)
    broker.produce(made.topic, shuffled(40, first=40))
    with broker.deny(ResourceType.GROUP, group_of(made)):
        made.run(maxOffsetsPerTrigger=15)
    broker.produce(made.topic, shuffled(40, first=80))
    made.run(maxOffsetsPerTrigger=15)
    assert_undisturbed(made, stream(made.topic, **DRIVEN))


FOREIGN = ["", "kafka-lag-exporter v1", '{"state": {"events": 999}}', "null", "[1]", "\u2603" * 99]


def commit(broker: Broker, made: Stream, metadata: str) -> None:
    """Commit other metadata at the stream's own positions, as a foreign tool might."""
    consumer = broker.consumer(group_id=group_of(made), enable_auto_commit=False)
    ends = broker.end_offsets(made.topic)
    consumer.commit(
        offsets=[TopicPartition(made.topic, part, end, metadata) for part, end in ends.items()],
        asynchronous=False,
    )
    consumer.close()


@pytest.mark.soak
def test_foreign_metadata_in_the_group_changes_no_row(broker: Broker, stream: Make) -> None:
    made = stream(partitions=2, **DRIVEN)
    for round_, metadata in enumerate(FOREIGN):
        broker.produce(made.topic, shuffled(15, first=15 * round_))
        made.run()
        forget_the_closing_batch(made)
        commit(broker, made, metadata)
    made.run()
    assert_undisturbed(made, stream(made.topic, **DRIVEN))


def forget_the_closing_batch(made: Stream) -> None:
    """So that the next start needs the state that tasks left behind, and finds the foreign one."""
    checkpoint = made.place / "checkpoint"
    last = latest(checkpoint / "offsets")
    offset = (checkpoint / "offsets" / str(last)).read_text()
    assert json.loads(offset.splitlines()[-1])["end_of_run"]
    for log in ("offsets", "commits"):
        forget_batches(checkpoint / log, last - 1)


def test_a_clock_that_jumps_back_makes_late_rows_and_no_cti_goes_back(
    broker: Broker, stream: Make
) -> None:
    """A producer's clock is set back by an hour: what it stamps is late until it has caught up."""
    stamped = [3600, 3610, 3620, 20, 30, 3619, 3620, 3630]
    dropping = stream(ctiFrequency="1")
    broker.produce(dropping.topic, [event(at) for at in stamped])
    assert marks(dropping.run()) == [
        "e3600", "c3600", "e3610", "c3610", "e3620", "c3620", "e3620", "e3630", "c3630",
    ]  # fmt: skip
    report = dropping.report()
    assert (report["events"], report["dropped"]) == (8, 3)
    flagging = stream(dropping.topic, ctiFrequency="1", violationPolicy="flag")
    rows = [row for row in flagging.run() if row.cti is None]
    assert times(rows) == stamped
    assert [row.violation for row in rows] == [None] * 3 + ["late"] * 3 + [None] * 2


@pytest.mark.parametrize("count", [*outside_ci(3), 9], ids=["shorter", "longer"])
def test_a_topic_deleted_and_created_anew_is_read_from_its_start_or_fails_by_name(
    broker: Broker, stream: Make, count: int
) -> None:
    """Also where the new topic is longer than the old one was, so that no offset is missing."""
    made = stream(ctiFrequency="1")
    broker.produce(made.topic, [event(at) for at in range(5)])
    made.run()
    broker.delete_topic(made.topic)
    broker.create_topic(made.topic)
    broker.produce(made.topic, [event(at) for at in range(100, 100 + count)])
    with pytest.raises(Exception, match=f"topic '{made.topic}' partition 0 .*created again"):
        made.run()
    rows = made.run(failOnDataLoss="false")
    assert times(rows) == [*range(5), *range(100, 100 + count)]
    assert made.report()["dropped"] == 0
