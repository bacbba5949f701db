"""Jobs on a cluster of two executors: kills hit the driver and one of the executors.

One start of a cluster is for all of them: a chain of jobs from a topic through a store to a topic
(semantics 29 and 30), a topic that goes on while it is quiet (5.9), aligned reading (5.10), and
corrections by late rows (30.6).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import cluster_job
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broker import Broker, Record
from cluster import Cluster, cluster
from corrected_hours import expected_hours, in_force, late_flights, missing_flights
from flights import produce_flights
from harness import InBatch, Job, between_sink_and_checkpoint, run_to_end, run_until
from kafka_query import event, seconds
from lengths import choices, outside_ci, repetitions
from running_stream import offset_of
from store_chain import chain_topics, check_chain
from writing import WriteProgress

pytestmark = pytest.mark.timeout(600)

JOBS = tuple(cluster_job.JOBS)
FLIGHTS = repetitions(3_000, 20_000)
AHEAD_MS = 1_800_000
"""A time of the clock: an event there is in time, even if it is read much later."""


class Ran(NamedTuple):
    """The arguments of the jobs."""

    places: cluster_job.Places
    marked_us: int
    """The CTI of the quiet topic, moved by the clock before more came."""


@pytest.fixture(scope="module", params=choices(outside_ci("chain"), JOBS))
def ran(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ran]:
    """The jobs: a driver that runs one of them is killed, and an executor of one that runs all."""
    place = tmp_path_factory.mktemp("jobs")
    with cluster(place / "cluster") as running:
        places = cluster_job.Places(
            broker.bootstrap, running.url, str(place), *chain_topics(broker),
            produce_flights(broker, count=FLIGHTS), quiet_topic(broker),
        )  # fmt: skip
        with feeding(broker, places.quiet, place / "quiet") as fed:
            with kill_point(broker, places, request.param) as point:
                assert run_until(driver(places, request.param), point, timeout=240).hit
            with killing_an_executor(running, place / "chain/topic-checkpoint") as killed:
                assert run_to_end(driver(places, *JOBS), timeout=400).exit_code == 0
        assert len(killed) == 1
        yield Ran(places, *fed)


def driver(places: cluster_job.Places, *jobs: str) -> Job:
    """A driver that runs these jobs."""
    arguments = [json.dumps(places), *jobs]
    return Job(Path(cluster_job.__file__), arguments, log=Path(places.place) / "log")


@contextlib.contextmanager
def kill_point(broker: Broker, places: cluster_job.Places, job: str) -> Iterator[InBatch]:
    """A batch of the job is written, but for the mark of the topic, and Spark has not noted it."""
    place = Path(places.place)
    topic = place / "chain/topic-checkpoint"
    with contextlib.closing(WriteProgress(broker, places.hours, topic)) as progress:
        yield {
            "chain": InBatch(topic, then=progress.is_half_written),
            "quiet": InBatch(place / "quiet/checkpoint", then=is_written(place / "quiet/rows")),
            "late": between_sink_and_checkpoint(
                place / "corrections", place / "late", "tseries:late:"
            ),
        }[job]


def is_written(rows: Path) -> Callable[[int], bool]:
    """Whether a batch of files has rows besides the first batch, which has all of the topic."""
    return lambda batch: batch > 0 and (rows / f"batch={batch:06d}/_SUCCESS").exists()


@contextlib.contextmanager
def killing_an_executor(running: Cluster, checkpoint: Path) -> Iterator[list[int]]:
    """Kill one when two run and a batch has begun; the list has its process."""
    killed: list[int] = []
    point = InBatch(checkpoint)
    point.arm()

    def kill() -> bool:
        found = running.executors()
        if len(found) < cluster_job.EXECUTORS or not point.reached():
            return False
        os.kill(found[0], signal.SIGKILL)
        killed.append(found[0])
        return True

    with beside(kill):
        yield killed


def quiet_topic(broker: Broker) -> str:
    topic = broker.create_topic(partitions=2)
    broker.produce(topic, [event(5, 0), event(9, 1)])
    return topic


@contextlib.contextmanager
def feeding(broker: Broker, topic: str, place: Path) -> Iterator[list[int]]:
    """Produce below and above the CTI once the clock has moved it; the list has that CTI."""
    fed: list[int] = []
    stream: Any = type("Owner", (), {"place": place})

    def feed() -> bool:
        moved_us = offset_of(stream).get("advanced")
        if moved_us is None:
            return False
        late_ms = moved_us // 1000 - 1
        times = (late_ms, int(time.time() * 1000) + AHEAD_MS)
        broker.produce(topic, [Record(b"{}", None, 1, each) for each in times])
        fed.append(moved_us)
        return True

    with beside(feed):
        yield fed


@contextlib.contextmanager
def beside(act: Callable[[], bool]) -> Iterator[None]:
    """Try to act until it is done, beside what the block does."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(0.05) and not act():
            pass

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_chain_from_topic_to_topic_on_a_cluster_equals_one_query(broker: Broker, ran: Ran) -> None:
    check_chain(broker, ran.places.hours, Path(ran.places.place) / "chain", cluster_job.STAGES)


def test_aligned_reading_and_corrections_on_a_cluster_equal_one_query(ran: Ran) -> None:
    place = Path(ran.places.place)
    # The hours lack exactly the flights that are late by the plain rules, however they were read.
    assert missing_flights(place / "late", FLIGHTS) == late_flights(FLIGHTS) > 100
    assert in_force(place / "late") == expected_hours(FLIGHTS)
    # All at once they would be one batch, and the closing one.
    assert len([*(place / "late-checkpoint/commits").glob("[0-9]*")]) > 3


def test_quiet_topic_on_a_cluster_follows_the_clock_and_judges_by_it(ran: Ran) -> None:
    place = Path(ran.places.place) / "quiet"
    batches = {int(each.name[6:]): read_rows(each) for each in (place / "rows").iterdir()}
    rows = [row for number in sorted(batches) for row in batches[number]]
    data = [row for row in rows if row["cti"] is None]
    assert [row["violation"] for row in data] == [None, None, "late", None]
    assert {seconds(row["start_time"]) for row in data[:2]} == {5, 9}
    told = [instant_us(row["cti"]) for row in rows if row["cti"] is not None]
    assert sorted(told) == told
    assert ran.marked_us in told
    # Each step is what the offset of its batch says, and three seconds behind the clock.
    for number, batch in batches.items():
        planned = place / "checkpoint/offsets" / str(number)
        offset = json.loads(planned.read_text().splitlines()[-1])
        if offset["first_cti"] is not None and offset.get("advanced") == offset["first_cti"]:
            first = next(row["cti"] for row in batch if row["cti"] is not None)
            assert instant_us(first) == offset["advanced"]
            assert offset["advanced"] / 1e6 < planned.stat().st_mtime - 3


def read_rows(place: Path) -> list[dict[str, Any]]:
    """The rows of a batch, with their times in UTC."""
    table = pq.read_table(place)
    zoned = [
        each.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(each.type) else each
        for each in table.schema
    ]
    return list(table.cast(pa.schema(zoned)).to_pylist())


def instant_us(instant: datetime) -> int:
    return round(instant.timestamp() * 1e6)
