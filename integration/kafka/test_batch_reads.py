"""A batch DataFrame or view over a topic reads the records that exist when it is evaluated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kafka_query import Stream, ctis, event
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(400)

Make = Callable[..., Stream]


def places(frame: DataFrame) -> list[tuple[int, int]]:
    """Partition and offset of each row."""
    return sorted(
        (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
    )


def test_a_batch_dataframe_and_a_view_read_what_is_there_at_each_evaluation(
    spark: SparkSession, stream: Make
) -> None:
    """More records, in a partition that was empty too, a new partition, and records that went."""
    made = stream([event(n) for n in range(3)], partitions=2)
    frame = made.load_batch()
    derived = frame.where("offset >= 0")
    frame.createOrReplaceTempView("topic_view")
    assert spark.sql("SELECT count(*) AS n FROM topic_view").first().n == 3
    made.broker.produce(made.topic, [event(n, n % 2) for n in range(4)])
    assert spark.sql("SELECT count(*) AS n FROM topic_view").first().n == 7
    # Neither of these was evaluated before, and both were made before all others.
    assert derived.count() == 7
    made.broker.produce(made.topic, [event(9, 1)])
    assert len(frame.collect()) == 8
    made.broker.add_partitions(made.topic, 3)
    made.broker.produce(made.topic, [event(9, 2)])
    made.broker.delete_records(made.topic, {0: 4})
    expected = [(0, 4), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert places(spark.table("topic_view")) == expected
    assert places(frame.unionAll(frame)) == sorted(2 * expected)


def test_a_batch_read_that_is_cut_reads_what_has_grown_once_and_judges_it_alike(
    stream: Make,
) -> None:
    seconds = [1, 5, 3, 4, 9, 2, 8, 7, 10]
    options = {"ctiFrequency": "1", "violationPolicy": "flag"}
    made = stream([event(second) for second in seconds[:5]], **options)
    frame = made.load_batch(maxRecordsPerPartition=2)
    assert frame.count() == 5
    made.broker.produce(made.topic, [event(second) for second in seconds[5:]])
    rows = sorted((row.offset, row.violation) for row in frame.collect() if row.cti is None)
    late = {2, 3, 5, 6, 7}
    assert rows == [(n, "late" if n in late else None) for n in range(9)]


def test_a_batch_read_over_a_topic_that_went_away_says_so(
    spark: SparkSession, stream: Make
) -> None:
    made = stream([event(1)])
    frame = made.load_batch()
    assert frame.count() == 1
    made.broker.delete_topic(made.topic)
    with pytest.raises(Exception, match=f"option 'subscribe': topic '{made.topic}' does not exist"):
        frame.count()


@pytest.mark.parametrize(
    ("options", "starting"),
    [
        (
            {"startingOffsets": '{"%s": {"0": 3}}', "endingOffsets": '{"%s": {"0": 1}}'},
            "startingOffsets",
        ),
        (
            {"startingTimestamp": "1704067202000", "endingTimestamp": "1704067201000"},
            "startingTimestamp",
        ),
    ],
    ids=["offsets", "timestamps"],
)
def test_a_batch_read_whose_start_is_behind_its_end_is_refused_by_name(
    stream: Make, options: dict[str, str], starting: str
) -> None:
    made = stream([event(second) for second in range(4)])
    given = {name: text % made.topic if "%s" in text else text for name, text in options.items()}
    with pytest.raises(Exception, match=f"option '{starting}': topic .* starts at offset"):
        made.load_batch(**{"startingOffsets": None, **given}).collect()


@pytest.mark.outside_ci
def test_a_batch_read_with_an_empty_partition_tells_no_cti_that_a_stream_would_hold_back(
    stream: Make,
) -> None:
    events = [event(second) for second in (1, 5, 9)]
    made = stream(events, partitions=2, ctiFrequency="1")
    assert ctis(made.load_batch().collect()) == ctis(made.run()) == []
    assert ctis(made.load_batch(finalCti="true").collect()) == [float("inf")]
    alone = stream(events, ctiFrequency="1")
    assert ctis(alone.load_batch().collect()) == [1, 5, 9]
