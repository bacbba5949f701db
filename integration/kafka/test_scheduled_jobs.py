"""Jobs that come back every hour: AvailableNow runs from one checkpoint, on a simulated clock."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from broker import Broker, Record
from kafka_query import DAY_MS
from scheduled_job import Job

HOUR_S = 3600


def at(second: float, partition: int) -> Record:
    return Record(b"{}", None, partition, DAY_MS + int(second * 1000))


@pytest.mark.outside_ci
def test_a_job_that_comes_back_every_hour_goes_on_without_a_partition_that_is_quiet(
    broker: Broker, topic: Callable[..., str]
) -> None:
    """24 runs; partition 1 has had one record, partition 2 none at all."""
    name = topic(3)
    broker.produce(name, [at(10, 1)])
    job, told = Job(broker, name, idleTimeout="90 minutes"), []
    for hour in range(24):
        broker.produce(name, [at(HOUR_S * hour, 0), at(HOUR_S * hour + 60, 0)])
        told.append(job.run(HOUR_S * (hour + 1)))
    # Two runs cannot know yet; from then on each has told all that its own records allow.
    assert told[:2] == [[], []]
    assert [ctis[-1] for ctis in told[2:]] == [HOUR_S * hour + 60 for hour in range(2, 24)]
    everything = [cti for ctis in told for cti in ctis]
    assert everything == sorted(everything)
    assert job.late() == []
    # A partition that comes back meets the policy, and holds the stream back again.
    broker.produce(name, [at(HOUR_S * 20, 1), at(HOUR_S * 30, 1), at(HOUR_S * 40, 0)])
    assert job.run(HOUR_S * 25)[-1] == HOUR_S * 30
    assert job.late() == [HOUR_S * 20]


def test_a_job_without_idle_timeout_waits_for_a_quiet_partition(
    broker: Broker, topic: Callable[..., str]
) -> None:
    name = topic(2)
    job = Job(broker, name)
    for hour in range(3):
        broker.produce(name, [at(HOUR_S * hour, 0)])
        assert job.run(HOUR_S * (hour + 1)) == []


def test_a_job_goes_on_without_a_quiet_partition_of_the_topic_that_it_imports(
    broker: Broker, topic: Callable[..., str]
) -> None:
    name, other = topic(), topic(2)
    source = json.dumps({"topic": other, "frequency": 1})
    job, told = Job(broker, name, ctiImport=source, idleTimeout="90 minutes"), []
    for hour in range(5):
        broker.produce(other, [at(HOUR_S * hour + 30, 0)])
        broker.produce(name, [at(HOUR_S * hour, 0)])
        told.append(job.run(HOUR_S * (hour + 1))[-1:])
    assert told == [[HOUR_S * hour + (30 if hour > 1 else 0)] for hour in range(5)]


def test_a_scheduled_job_over_a_quiet_topic_goes_on_by_idle_advance(
    broker: Broker, topic: Callable[..., str]
) -> None:
    name = topic(2)
    job = Job(broker, name, idleTimeout="90 minutes", idleAdvance="10 minutes")
    broker.produce(name, [at(10, 0), at(20, 1)])
    told = [job.run(HOUR_S * hour)[-1:] for hour in range(1, 6)]
    # The first runs cannot know yet; each later one tells its own time, and ends.
    assert told == [[10], [10], *([HOUR_S * hour - 600] for hour in (3, 4, 5))]
    by_the_clock = [
        each["advanced"] == each["first_cti"] for each in job.offsets if "advanced" in each
    ]
    assert by_the_clock == [True] * 3
    # Events that come back below that are late, and their partition holds the stream back again.
    broker.produce(name, [at(HOUR_S * 4, 0), at(HOUR_S * 5, 0)])
    assert job.run(HOUR_S * 6)[-1] == HOUR_S * 5
    assert job.late() == [HOUR_S * 4]
