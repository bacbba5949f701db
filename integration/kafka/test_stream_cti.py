"""The stream's CTI over partitions (semantics 5) on a real broker, a test a rule.

Late events are flagged: a row that meets the policy is seen, one that was judged by another CTI
than it should be is seen as well.
"""

import json
import threading
import time
from functools import partial

import pytest
from broker import Broker
from harness import JOBS, Job, between_files_and_checkpoint, latest, run_until
from kafka_query import Stream, event, read_rows, seconds
from running_stream import found, is_idle, offset_of, running, told, transaction

pytestmark = pytest.mark.timeout(400)

FLAGGED = {"ctiFrequency": "1", "violationPolicy": "flag", "idleTimeout": "1 second"}


@pytest.fixture
def stream(stream):
    """The same, with an idle time-out and the late rows flagged."""
    return partial(stream, **FLAGGED)


# -- idle partitions ------------------------------------------------------------------------------


def test_an_idle_partition_no_longer_holds_back_and_its_late_rows_meet_the_policy(stream) -> None:
    made = stream([event(5, 0), event(9, 0)], partitions=2)
    with running(made) as until:
        until(lambda: told(made) == [9])
        made.broker.produce(made.topic, [event(3, 1), event(12, 1)])
        until(lambda: len(found(made)) == 4)
        assert found(made)[2:] == [(1, 3, "late"), (1, 12, None)]
        # Partition 0 is idle at 9, so only the one that came back decides.
        until(lambda: told(made)[-1] == 12)
        assert told(made) == sorted(told(made))
        until(lambda: is_idle(made) == {0, 1})
        report = made.report()
    assert {part["idle"] for part in report["partitions"][made.topic].values()} <= {True, False}


def test_when_all_are_idle_the_greatest_partition_cti_counts(stream) -> None:
    made = stream([event(9, 0), event(5, 1)], partitions=2)
    with running(made) as until:
        until(lambda: told(made)[-1:] == [9])
        assert is_idle(made) == {0, 1}
        assert told(made) in ([5, 9], [9])


def test_an_open_transaction_is_not_idle(stream) -> None:
    made = stream([event(9, 0), event(5, 1)], partitions=2)
    producer = transaction(made, 6)
    with running(made) as until:
        until(lambda: is_idle(made) == {0})
        time.sleep(3)  # three times the timeout: a wrong rule would have time to be wrong
        assert told(made) == [5]
        producer.commit_transaction()
        until(lambda: len(found(made)) == 3)
        # Were the partition idle, the stream's CTI would be 9, and this row late.
        assert found(made)[-1] == (1, 6, None)


@pytest.mark.soak
def test_a_partition_held_back_by_a_rate_limit_is_not_idle(stream) -> None:
    backlog = [event(s, 1) for s in range(1, 31)]
    made = stream([event(100, 0), *backlog], partitions=2, maxOffsetsPerTrigger=2)
    with running(made) as until:
        until(lambda: len(found(made)) == 31)
        assert [row[2] for row in found(made)] == [None] * 31
        until(lambda: told(made)[-1] == 100)


def test_an_empty_partition_holds_back_and_a_bounded_run_waits_for_nobody(stream) -> None:
    made = stream([event(5, 0), event(9, 0)], partitions=2)
    made.run()
    assert told(made) == []
    with running(made) as until:
        until(lambda: told(made) == [9])
    made.broker.produce(made.topic, [event(12, 0)])
    # Partition 1 is recorded as idle: the bounded run leaves it out, and waits for no timeout.
    made.run()
    assert told(made)[-1] == 12
    assert 1 in is_idle(made)
    assert 0 not in is_idle(made)


# -- partitions that come and go ------------------------------------------------------------------


def test_a_partition_found_while_running_is_raised_to_the_streams_cti(stream) -> None:
    made = stream([event(9, 0)], idleTimeout=None)
    with running(made) as until:
        until(lambda: told(made) == [9])
        made.broker.add_partitions(made.topic, 2)
        made.broker.produce(made.topic, [event(3, 1), event(12, 1)])
        until(lambda: len(found(made)) == 3)
        assert found(made)[1:] == [(1, 3, "late"), (1, 12, None)]
        assert told(made) == [9]
        made.broker.produce(made.topic, [event(20, 0)])
        until(lambda: told(made) == [9, 12])


@pytest.mark.outside_ci
def test_a_deleted_partition_fails_or_leaves_the_minimum(stream) -> None:
    made, other = stream([event(9)], idleTimeout=None), stream([event(5)])
    both = f"{made.topic},{other.topic}"
    made.run(subscribe=both)
    assert told(made) == [5]
    other.broker.delete_topic(other.topic)
    with pytest.raises(Exception, match=f"topic '{other.topic}' partition 0 is gone"):
        made.run(subscribe=both)
    made.run(subscribe=both, failOnDataLoss="false")
    assert told(made)[-1] == 9


@pytest.mark.outside_ci
def test_a_topic_made_anew_is_recognised_though_it_is_longer_than_before(stream) -> None:
    made = stream([event(1)], idleTimeout=None)
    made.run()
    made.broker.delete_topic(made.topic)
    made.broker.create_topic(made.topic)
    made.broker.produce(made.topic, [event(s) for s in (2, 3, 4)])
    with pytest.raises(Exception, match="has been deleted and created again since"):
        made.run()
    made.run(failOnDataLoss="false")
    assert sorted(row[1] for row in found(made)) == [1, 2, 3, 4]


GENERATED = '{"topic": "%s", "frequency": "1"}'


@pytest.fixture
def fast(broker: Broker, topic):
    """Make a topic for importing its CTIs, filled with records."""

    def make(*records) -> str:
        name = topic()
        broker.produce(name, records)
        return name

    return make


# -- the same from the same checkpoint, whatever happened -----------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("decided", ["idle", "found", "import"])
def test_what_a_clock_or_another_topic_decided_replays_identically_after_a_kill(
    stream, fast, decided: str
) -> None:
    """A batch with late rows is killed once they are written, and run again from its offset."""
    other = fast(event(7))
    late = {"idle": 1, "found": 1, "import": 0}[decided]
    own = {"ctiFrequency": None, "ctiImport": GENERATED % other} if decided == "import" else {}
    made = stream([event(5, 0), event(9, 0)], 2 if decided == "idle" else 1, **own)
    job = Job(
        JOBS / "cti_job.py",
        [made.broker.bootstrap, made.topic, str(made.place), json.dumps(made.options)],
        log=made.place.with_suffix(".log"),
    )
    ready = {
        "idle": lambda: is_idle(made) >= {1},
        "found": lambda: offset_of(made).get("cti") is not None,
        "import": lambda: taken(made),
    }[decided]
    stopped = threading.Event()

    def feed() -> None:
        while not ready() and not stopped.wait(0.1):
            pass
        if decided == "found":
            made.broker.add_partitions(made.topic, 2)
        # A kill may come too late for one batch: then it hits the next.
        while not stopped.is_set():
            made.broker.produce(made.topic, [event(3, late), event(30, late), event(4, late)])
            stopped.wait(15)

    feeder = threading.Thread(target=feed)
    feeder.start()
    checkpoint = made.place / "checkpoint"
    point = between_files_and_checkpoint(checkpoint, lambda batch: has_late_rows(made, late, batch))
    try:
        attempt = run_until(job, point, timeout=240)
    finally:
        stopped.set()
        feeder.join()
    assert attempt.hit
    batch = latest(checkpoint / "offsets")
    place = made.place / "rows" / f"batch={batch:06d}"
    before = sorted(read_rows(place), key=str)
    made.run()
    after = sorted(read_rows(place), key=str)
    assert after == before
    assert {(seconds(row.start_time), row.violation) for row in after if row["cti"] is None} == {
        (3, "late"), (30, None), (4, "late"),
    }  # fmt: skip


@pytest.mark.outside_ci
def test_the_clock_of_a_quiet_stream_replays_identically_after_a_kill(stream) -> None:
    """The batch that moved the CTI by the wall clock runs again later, and reads no clock."""
    made = stream([event(5, 0), event(9, 1)], 2, idleAdvance="3 seconds")
    job = Job(
        JOBS / "cti_job.py",
        [made.broker.bootstrap, made.topic, str(made.place), json.dumps(made.options)],
        log=made.place.with_suffix(".log"),
    )
    checkpoint = made.place / "checkpoint"

    def moved(batch: int) -> int | None:
        """The stream's CTI after the clock has moved it in this batch, once it is written."""
        if not (made.place / "rows" / f"batch={batch:06d}" / "_SUCCESS").exists():
            return None
        text = (checkpoint / "offsets" / str(batch)).read_text()
        offset = json.loads(text.splitlines()[-1])
        return offset.get("advanced") if offset.get("advanced") == offset["first_cti"] else None

    began = time.time()
    point = between_files_and_checkpoint(checkpoint, lambda batch: moved(batch) is not None)
    assert run_until(job, point, timeout=240).hit
    batch = latest(checkpoint / "offsets")
    cti_us = moved(batch)
    assert cti_us is not None
    assert began - 4 < cti_us / 1e6 < time.time() - 3
    place = made.place / "rows" / f"batch={batch:06d}"
    before = read_rows(place)
    # Something old and something new: the first is late by the recorded CTI, at any time of day.
    old = event(10, 1)._replace(timestamp_ms=cti_us // 1000 - 1)
    made.broker.produce(made.topic, [old, old._replace(timestamp_ms=cti_us // 1000 + 1)])
    made.run()
    assert read_rows(place) == before
    assert [row.cti.timestamp() for row in before] == [cti_us / 1e6]
    assert [row[2] for row in found(made)] == [None, None, "late", None]


def taken(made: Stream) -> bool:
    """Whether the imported CTI is in force on partition 0."""
    share = offset_of(made).get("partitions", {}).get(made.topic, {}).get("0", {})
    return share.get("state", {}).get("cti_us") is not None


def has_late_rows(made: Stream, partition: int, batch: int) -> bool:
    """Whether the batch has records of the late partition, and its rows are written."""
    if not (made.place / "rows" / f"batch={batch:06d}" / "_SUCCESS").exists():
        return False
    text = (made.place / "checkpoint" / "offsets" / str(batch)).read_text()
    share = json.loads(text.splitlines()[-1])["partitions"][made.topic].get(str(partition))
    at_start = share is not None and "cti_us" in share["state"]
    return at_start and share["to"] > share["from"]
