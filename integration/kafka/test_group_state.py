"""Tasks leave clocks in the consumer group: no second read; and a message if one is needed."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from broker import Broker, Record, unique_name
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ResourcePatternType, ResourceType
from kafka_query import DAY_MS, Stream, event, times
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_timestream import advance_time
from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.kafka.reader import KafkaTransport

pytestmark = pytest.mark.timeout(300)

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def marks(writers: int, rounds: int) -> list[Record]:
    """A mark of every writer in turn, this many rounds, each anywhere within a minute of its own.

    None of them has a value. The first writer's mark is the round's beginning.
    """
    chance = random.Random(7)
    records = []
    for turn, number in itertools.product(range(rounds), range(writers)):
        ahead_us = chance.randrange(1, 60_000_000) if number else 0
        time = format_instant(1000 * DAY_MS + 60_000_000 * turn + ahead_us).encode()
        headers = [("cti", time), ("cti-writer", b"w%04d" % number)]
        stamp_ms = DAY_MS + 60_000 * turn + chance.randrange(60_000)
        records.append(Record(None, None, 0, stamp_ms, headers))
    return records


def left_in_group(made: Stream) -> dict[str, Any]:
    """The text in a stream's group for partition 0."""
    (offset,) = sorted((made.place / "checkpoint" / "offsets").glob("[0-9]*"))[-1:]
    group = "timestream-" + json.loads(offset.read_text().splitlines()[-1])["stream"]
    consumer = made.broker.consumer(group_id=group)
    (found,) = consumer.committed([TopicPartition(made.topic, 0)], timeout=30)
    consumer.close()
    return dict(json.loads(found.metadata))


# A forbidden group is waited for, ten seconds a process.
@pytest.mark.soak
def test_a_stream_without_ctis_is_not_read_again_for_its_counts(stream) -> None:
    prefix = unique_name("forbidden")
    made = stream([event(s) for s in range(5)], groupIdPrefix=prefix)
    with made.broker.deny(ResourceType.GROUP, prefix, pattern=ResourcePatternType.PREFIXED):
        # The driver has the counts of a batch that it reads itself.
        rows = made.run(made.load(maxOffsetsPerTrigger=2, maxDriverRecords=0))
    assert [row.offset for row in rows] == [0, 1, 2, 3, 4]
    report = made.report()
    # Read again, they would have been counted.
    assert report["events"] == 0
    (warning,) = report["warnings"]
    assert warning.startswith(f"records that are not counted: group '{prefix}-")


@pytest.mark.parametrize(("writers", "fits"), [(700, True), (2_000, False)])
def test_clocks_of_many_writers_fit_the_group_or_are_said_with_their_size(
    stream, writers: int, fits: bool
) -> None:
    made = stream(marks(writers, 3), ctiHeader="cti", writerTimeout="1 day")
    made.run(maxOffsetsPerTrigger=writers)
    assert made.report()["cti"] == "2024-01-01T00:02:00Z"
    left = left_in_group(made)
    assert ("packed" in left, "length" in left) == (fits, not fits)
    warnings = made.report()["warnings"]
    if fits:
        assert warnings == []
    else:
        (warning,) = warnings
        said = f"with {writers} writers, take "
        assert warning.startswith(f"a clock too large for the group: topic '{made.topic}' part")
        assert said in warning
        needed = int(warning.split(said)[1].split()[0])
        # A warning keeps its first number; the clock's size differs a little from batch to batch.
        assert needed > 4096
        assert abs(needed / left["length"] - 1) < 0.1
        assert f"'offset.metadata.max.bytes' to {needed} at least" in warning


def test_two_streams_of_one_group_say_that_they_read_twice(
    broker: Broker, topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    broker.produce(name, [event(s) for s in range(6)])
    given = {
        "transport": "kafka",
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": name,
        "startingOffsets": "earliest",
        "ctiFrequency": "1",
        "kafka.group.id": unique_name("shared"),
    }
    transport = KafkaTransport(given)
    one, other = (transport.stream_reader(transport.schema()) for _ in range(2))
    offsets: dict[Any, dict[str, Any]] = {one: INITIAL_OFFSET, other: INITIAL_OFFSET}
    # They leave the same for the same range from the same state.
    for reader, most in ((one, 2), (other, 3), (one, 2), (one, 2)):
        start = offsets[reader]
        offsets[reader] = reader.latestOffset(start, ReadMaxRows(most))
        for task in reader.partitions(start, offsets[reader]):
            assert sum(batch.num_rows for batch in reader.read(task)) > 0
    said = [line for line in caplog.messages if "a shared group" in line]
    assert len(said) == 1
    assert (
        f"group '{given['kafka.group.id']}': stream {offsets[other]['stream'][:8]} overwrites"
        in said[0]
    )
    # The clock is right all the same.
    state = offsets[one]["partitions"][name]["0"]
    assert (state["from"], state["to"], state["state"]["events"]) == (4, 6, 4)


def test_a_setting_that_breaks_ctis_is_said_of_the_query_that_runs_with_it(
    spark: SparkSession, stream
) -> None:
    """Also where it was set after the helper looked, or is the checkpoint's."""
    made = stream([event(s) for s in (1, 2)], ctiFrequency=1)
    frame = advance_time(made.load())
    usual = spark.conf.get(POLICY)
    spark.conf.set(POLICY, "max")
    try:
        assert times(row for row in with_cti(made.run(frame))) == [1, 2]
    finally:
        spark.conf.set(POLICY, usual)
    (warning,) = made.report()["warnings"]
    assert warning.startswith(
        f"a setting of the session: setting '{POLICY}': the query runs with 'max'"
    )
    made.broker.produce(made.topic, [event(3)])
    made.run(advance_time(made.load()))
    assert [each[:24] for each in made.report()["warnings"]] == ["a setting of the session"]


def with_cti(rows: list[Any]) -> list[Any]:
    """Rows of `advance_time`, which have no `cti`, as those of the source."""
    return [{**row.asDict(), "cti": None} for row in rows]
