"""CTIs that are imported from another topic (semantics 6) on a real broker, a test a rule."""

import json
import time
from functools import partial

import pytest
from broker import Broker, Record
from kafka_query import DAY_MS, event
from running_stream import found, running, told, transaction

pytestmark = pytest.mark.timeout(400)

FLAGGED = {"ctiFrequency": "1", "violationPolicy": "flag", "idleTimeout": "1 second"}
GENERATED = '{"topic": "%s", "frequency": "1"}'


@pytest.fixture
def stream(stream):
    """The same, with an idle time-out and the late rows flagged."""
    return partial(stream, **FLAGGED)


@pytest.fixture
def fast(broker: Broker, topic):
    """Make a topic for importing its CTIs, filled with records."""

    def make(*records, partitions: int = 1) -> str:
        name = topic(partitions)
        broker.produce(name, records)
        return name

    return make


def test_an_imported_cti_alone_drives_a_stream_and_its_backlog_is_not_late(stream, fast) -> None:
    other = fast(event(7), event(10))
    made = stream([event(1), event(12), event(5)], ctiFrequency=None, idleTimeout=None)
    made.run(ctiImport=GENERATED % other)
    assert found(made) == [(0, 1, None), (0, 12, None), (0, 5, None)]
    assert told(made) == [10]
    made.broker.produce(made.topic, [event(9), event(11)])
    made.broker.produce(other, [event(20)])
    made.run(ctiImport=GENERATED % other)
    # 20 was read when the partition ended behind 11: it came after it.
    assert found(made)[3:] == [(0, 9, "late"), (0, 11, None)]
    assert told(made)[-1] == 20
    with pytest.raises(Exception, match="option 'ctiImport' was"):
        made.run(ctiImport=other)


def test_imported_and_generated_ctis_work_together(stream, fast) -> None:
    other = fast(event(10))
    made = stream([event(1), event(5)], idleTimeout=None)
    made.run(ctiImport=GENERATED % other)
    assert told(made) == [1, 5, 10]
    made.broker.produce(made.topic, [event(12), event(8)])
    made.run(ctiImport=GENERATED % other)
    assert found(made)[2:] == [(0, 12, None), (0, 8, "late")]
    assert told(made)[-1] == 12


@pytest.mark.outside_ci
def test_the_backlog_of_a_slow_topic_is_not_dropped_because_the_fast_one_was_read_first(
    stream, fast
) -> None:
    other = fast(event(100))
    made = stream([event(s) for s in range(20)], ctiFrequency=None, maxOffsetsPerTrigger=6)
    with running(made, ctiImport=GENERATED % other) as until:
        until(lambda: told(made) == [100])
        assert [row[2] for row in found(made)] == [None] * 20
        made.broker.produce(made.topic, [event(99)])
        until(lambda: found(made)[20:] == [(0, 99, "late")])


@pytest.mark.outside_ci
def test_a_final_cti_is_not_imported(stream, fast) -> None:
    stamps = (b"2024-01-01T00:00:10Z", b"9999-12-31T23:59:59Z")
    marks = [Record(None, None, 0, DAY_MS, [("cti", stamp)]) for stamp in stamps]
    made = stream([event(1)], ctiFrequency=None, idleTimeout=None, ctiImport=fast(*marks))
    made.run()
    assert told(made) == [10]
    made.broker.produce(made.topic, [event(15)])
    made.run()
    assert found(made)[1:] == [(0, 15, None)]


def mark(second: float, writer: str, record_second: float) -> Record:
    """A punctuation of a named writer."""
    text = f"2024-01-01T00:00:{second:02}Z".encode()
    headers = [("cti", text), ("cti-writer", writer.encode())]
    return Record(None, None, 0, DAY_MS + int(record_second * 1000), headers)


def test_an_empty_partition_of_the_imported_topic_stalls_the_stream_no_longer_than_idle_timeout(
    stream, fast
) -> None:
    other = fast(event(7), event(10), partitions=2)
    made = stream([event(1), event(12)], ctiFrequency=None)
    with running(made, ctiImport=GENERATED % other) as until:
        until(lambda: told(made) == [10])
        # The first one is at rest by now as well. It is written first: a producer writes partitions
        # in any order, and 22 by itself would be the topic's CTI.
        made.broker.produce(other, [event(20, 0)])
        made.broker.produce(other, [event(3, 1), event(22, 1)])
        # It is back, and the topic's CTI the minimum of both again.
        until(lambda: 20 in told(made))
        # Not late, also where the partition at 20 has become idle meanwhile.
        made.broker.produce(made.topic, [event(15), event(25)])
        until(lambda: found(made)[2:] == [(0, 15, "late"), (0, 25, None)])


def test_an_import_drops_no_row_of_a_transaction_that_was_open_when_it_was_read(
    stream, fast
) -> None:
    other = fast(event(100))
    made = stream([event(1, 0), event(1, 1)], 2, ctiFrequency=None, idleTimeout=None)
    producer = transaction(made, 6)
    with running(made, ctiImport=GENERATED % other) as until:
        until(lambda: len(found(made)) == 2)
        # Everything that can be read has been read; the CTI waits for the transaction all the same.
        time.sleep(3)
        assert told(made) == []
        producer.commit_transaction()
        until(lambda: told(made) == [100])
        assert found(made) == [(0, 1, None), (1, 1, None), (1, 6, None)]
        made.broker.produce(made.topic, [event(99, 1)])
        until(lambda: found(made)[3:] == [(1, 99, "late")])


@pytest.mark.outside_ci
def test_a_bounded_run_leaves_an_import_to_the_next_one_while_a_transaction_is_open(
    stream, fast
) -> None:
    other = fast(event(100))
    made = stream([event(1, 0), event(1, 1)], 2, ctiFrequency=None, idleTimeout=None)
    made.options["ctiImport"] = GENERATED % other
    producer = transaction(made, 6)
    made.run()
    assert told(made) == []
    producer.commit_transaction()
    made.broker.wait_for_markers(made.topic)
    made.run()
    assert found(made) == [(0, 1, None), (1, 1, None), (1, 6, None)]
    assert told(made) == [100]


@pytest.mark.outside_ci
def test_max_future_and_writer_timeout_hold_for_an_import_alone(stream, fast) -> None:
    """An event an hour ahead drives no CTI there; a writer that fell silent is forgotten."""
    late = json.dumps({"second": 3600})
    ahead = Record(late, None, 0, DAY_MS + 5_000, [("at", b"2024-01-01T01:00:00Z")])
    right = ahead._replace(timestamp_ms=DAY_MS + 7_000, headers=[("at", b"2024-01-01T00:00:07Z")])
    source = {"topic": fast(ahead, right), "frequency": 1, "startTime": "header:at"}
    made = stream([event(1)], ctiFrequency=None, idleTimeout=None, maxFuture="2 seconds")
    made.run(ctiImport=json.dumps(source))
    assert told(made) == [7]
    marked = fast(mark(1, "a", 1), mark(2, "b", 2), mark(50, "b", 30))
    made = stream([event(1)], ctiFrequency=None, idleTimeout=None, writerTimeout="10 seconds")
    made.run(ctiImport=marked)
    assert told(made) == [50]
