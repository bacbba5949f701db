"""Option `where` on a topic: rows of Spark's filter behind the plain query, and its CTIs."""

import json
from pathlib import Path

import pytest
from broker import Broker, Record
from kafka_query import DAY_MS, Stream, event
from lengths import outside_ci
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time

pytestmark = pytest.mark.timeout(420)

WHERE = "(kind = 'bid' and price >= 2) or `after.note` like 'x%' or violation is not null"
SCHEMA = (
    "offset long, partition int, kind string, price decimal(10,2), `after.note` string, "
    "start_time timestamp, violation string, cti timestamp, _corrupt_record string"
)
OPTIONS = {
    "valueFormat": "json", "startTime": "second", "timeUnit": "s", "ctiFrequency": "3",
    "ctiDelay": "2 seconds", "violationPolicy": "flag",
}  # fmt: skip


def records(first: int, count: int, partitions: int) -> list[Record]:
    """Events out of order, some late, some malformed."""
    made = []
    for number in range(first, first + count):
        kind = ("bid", "person", None)[number % 3]
        note = {"note": ("x", "y", 5)[number % 3]} if number % 2 else None
        late = number - 60 * (number % 17 == 0)
        fields = {"kind": kind, "price": number % 5, "after": note}
        made.append(event(late, number % partitions, **fields))
        if number % 13 == 0:
            made.append(Record("broken", None, number % partitions, DAY_MS))
    return made


def counters(stream: Stream) -> dict[str, object]:
    """The records and the time in the last progress."""
    report = stream.report()
    for partition in report["partitions"].values():
        for topic in partition.values() if isinstance(partition, dict) else ():
            assert topic is not None
    return {
        name: value
        for name, value in report.items()
        if name in ("cti", "events", "late", "dropped", "flagged", "malformed", "ctis")
        or name == "malformedValues"
    }


def as_texts(rows: list[Row]) -> list[str]:
    """Rows without the batch that they came in."""
    plain = ({k: v for k, v in row.asDict().items() if k != "batch"} for row in rows)
    return [json.dumps(row, default=str, sort_keys=True) for row in plain]


@pytest.fixture
def pair(spark: SparkSession, broker: Broker, topic, tmp_path: Path):
    """Make the plain query and the one with `where` over one topic."""

    def make(partitions: int, **options: str) -> tuple[Stream, Stream]:
        name = topic(partitions)
        given = {**OPTIONS, **options}
        plain = Stream(spark, broker, name, tmp_path / "plain", given, SCHEMA)
        where = Stream(spark, broker, name, tmp_path / "where", {**given, "where": WHERE}, SCHEMA)
        return plain, where

    return make


def run_in_three(plain: Stream, where: Stream, partitions: int, build) -> tuple[list[str], ...]:
    """Run both three times, with more records each time; return all rows of both."""
    for start in (0, 90, 180):
        plain.broker.produce(plain.topic, records(start, 90, partitions))
        plain.run(build(plain.load(), filtered=True))
        where.run(build(where.load(), filtered=False))
        assert counters(where) == counters(plain)
    return as_texts(plain.rows()), as_texts(where.rows())


def test_rows_and_ctis_are_those_of_sparks_filter_over_restarts(pair) -> None:
    plain, where = pair(1)

    def build(frame: DataFrame, filtered: bool) -> DataFrame:
        return frame.where(f"cti IS NOT NULL OR ({WHERE})") if filtered else frame

    expected, found = run_in_three(plain, where, 1, build)
    assert found == expected
    assert any('"violation": "late"' in row for row in found)
    assert len(found) < 250


@pytest.mark.soak
@pytest.mark.parametrize("releases", ["rows", *outside_ci("windows")])
def test_windows_are_those_of_sparks_filter_over_restarts(pair, releases: str) -> None:
    plain, where = pair(3, finalCti="false")

    def build(frame: DataFrame, filtered: bool) -> DataFrame:
        rows = advance_time(frame, releases=releases)
        rows = rows.where(WHERE) if filtered else rows
        if releases == "rows":
            return rows.dropDuplicates(["start_time", "kind"])
        window = F.window("start_time", "10 seconds")
        return rows.groupBy(window, "kind").agg(F.count("*").alias("n"), F.sum("price").alias("p"))

    expected, found = run_in_three(plain, where, 3, build)
    if releases == "rows":
        # Spark's order of partitions decides which duplicate is kept.
        keys = ("start_time", "kind")
        expected, found = (
            [json.dumps([json.loads(row)[key] for key in keys]) for row in rows]
            for rows in (expected, found)
        )
    assert sorted(found) == sorted(expected)
    assert len(found) > 20


@pytest.mark.outside_ci
def test_batch_reads_are_filtered_too(pair) -> None:
    plain, where = pair(3)
    plain.broker.produce(plain.topic, records(0, 120, 3))
    data = "cti IS NULL"
    for more in ({}, {"maxRecordsPerPartition": "7"}, {"parseMode": "DROPMALFORMED"}):
        expected = plain.load_batch(**more).where(data).where(WHERE).collect()
        found = where.load_batch(**more).where(data).collect()
        assert sorted(as_texts(found)) == sorted(as_texts(expected))
        ctis = [
            sorted(row.cti for row in each.load_batch(**more).where("cti IS NOT NULL").collect())
            for each in (plain, where)
        ]
        assert ctis[0] == ctis[1]


def test_metadata_may_be_named_without_being_a_column(stream) -> None:
    made = stream([event(second) for second in range(6)], schema="key binary, offset long")
    rows = made.load_batch(where="timestamp >= '2024-01-01T00:00:04Z' or partition is null")
    assert [row.offset for row in rows.collect()] == [4, 5]
    assert made.load_batch(where="offset in (1, 3)").count() == 2


def test_a_condition_may_change_on_a_checkpoint(stream) -> None:
    made = stream([event(second) for second in range(4)], ctiFrequency=1)
    made.run(where="offset < 2")
    made.broker.produce(made.topic, [event(second) for second in range(4, 8)])
    rows = made.run(where="offset >= 6")
    assert [row.offset for row in rows if row.cti is None] == [0, 1, 6, 7]
    assert made.report()["events"] == 8


@pytest.mark.outside_ci
def test_a_wrong_condition_ends_the_query_before_any_task(stream) -> None:
    made = stream([event(1, n=1)], schema="n long", valueFormat="json")
    for condition, problem in (
        ("n = 'x'", "bigint is compared with string"),
        ("upper(n) = 1", "'upper', a function or another operator"),
        ("m = 1", "there is no column 'm' among n"),
    ):
        with pytest.raises(Exception, match=f"option 'where': .*{problem}.*next step"):
            made.load_batch(where=condition).collect()
        with pytest.raises(Exception, match=f"option 'where': .*{problem}.*next step"):
            made.run(where=condition)


def test_a_column_with_a_collation_is_refused(stream) -> None:
    made = stream([event(1, n="a")], schema="n string collate utf8_lcase", valueFormat="json")
    with pytest.raises(Exception, match="column 'n' is string collate UTF8_LCASE"):
        made.load_batch(where="n = 'A'").collect()
