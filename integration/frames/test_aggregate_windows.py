"""Windows folded in the source equal the plain query's, and DuckDB's over its rows."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import fold_job
import pytest
from harness import InBatch, Job, run_killed
from kafka_query import DAY_MS, event
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from timestream.builders import PASSING, late_word

from pyspark_timestream import advance_time, aggregate_windows
from pyspark_timestream.core.policies import POLICIES

FIELDS = (
    "station string, line double, minutes long, small int, fee decimal(18,2), exact decimal(28,13)"
    ", big decimal(38,2), heat double, name string, noted timestamp, open boolean"
)
AGGREGATES: Mapping[str, str | Sequence[str]] = {
    "rows": "count",
    "noted": ("count", "minutes"),
    "minutes": ("sum", "minutes"),
    "smalls": ("sum", "small"),
    "fees": ("sum", "fee"),
    "bigs": ("sum", "big"),
    "mean_minutes": ("avg", "minutes"),
    "mean_small": ("mean", "small"),
    "mean_fee": ("avg", "fee"),
    "mean_exact": ("avg", "exact"),
    "coldest": ("min", "heat"),
    "hottest": ("max", "heat"),
    "first_name": ("min", "name"),
    "last_name": ("max", "name"),
    "first_noted": ("min", "noted"),
    "last_fee": ("max", "fee"),
    "ever_open": ("max", "open"),
}


def plain(
    rows: DataFrame,
    window: str,
    aggregates: Mapping[str, str | Sequence[str]],
    by: Sequence[str] = (),
    slide: str | None = None,
) -> DataFrame:
    """The same by Spark's own functions, behind `advance_time`."""
    made = {"count": F.count, "sum": F.sum, "min": F.min, "max": F.max, "avg": F.avg}
    made["mean"] = F.mean
    results = [
        (F.count("*") if given == "count" else made[given[0]](given[1])).alias(name)
        for name, given in aggregates.items()
    ]
    period = F.window("start_time", window, slide) if slide else F.window("start_time", window)
    return advance_time(rows).groupBy(*by, period).agg(*results)


def drawn(count: int, seed: int, partitions: int = 3) -> list[Any]:
    """Records out of order by up to 40 seconds, with nulls and odd values."""
    draw = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if draw.random() < 0.1 else value

    found = []
    for number in range(count):
        second = number / 4 - draw.random() * 40 + 60
        fields = {
            "station": maybe(draw.choice(["a", "b", "", "é"])),
            "line": maybe(draw.choice([0.0, -0.0, 1.5, "NaN"])),
            "minutes": maybe(draw.randrange(-1000, 1000)),
            "small": maybe(draw.randrange(-(2**31), 2**31)),
            "fee": maybe(round(draw.random() * 100, 2)),
            "exact": maybe(f"{draw.randrange(10**15)}.{draw.randrange(10**13):013}"),
            "big": maybe(f"{draw.randrange(10**34)}.{draw.randrange(100):02}"),
            "heat": maybe(draw.choice([-0.0, 0.0, 21.5, -3.25, "NaN", "Infinity"])),
            "name": maybe(draw.choice(["", "a", "Z", "ü", "\U0001f600", "￿"])),
            "noted": maybe(f"2024-01-01T0{draw.randrange(10)}:00:00.000001Z"),
            "open": maybe(draw.random() < 0.5),
            "end_ms": DAY_MS + int((second + draw.random() * 60) * 1000) + 1,
        }
        found.append(event(second, draw.randrange(partitions), **fields))
    return found


def comparable(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Rows in an order, NaN as a text, both zeros as one."""

    def simple(value: Any) -> Any:
        if isinstance(value, Row):
            return tuple(map(simple, value))
        if isinstance(value, float):
            return "NaN" if math.isnan(value) else value + 0.0
        return value

    return sorted((simple(Row(*row)) for row in rows), key=repr)


LASTING = {"eventShape": "interval", "endTime": "end_ms"}
WINDOWS = [("30 seconds", "12 seconds"), ("1 minute", None), ("20 seconds", "10 seconds")]


@pytest.mark.outside_ci
@pytest.mark.timeout(500)
@pytest.mark.parametrize("policy", PASSING)
def test_folded_windows_are_those_of_the_plain_query_over_restarts(
    stream, broker, policy: str
) -> None:
    window, slide = WINDOWS[PASSING.index(policy) % len(WINDOWS)]
    lasts = POLICIES[policy].moves
    records, by = drawn(450, seed=len(policy)), ("station", "line")
    columns = f"{FIELDS}, start_time timestamp, cti timestamp"
    columns += ", violation string" if lasts or late_word(policy) else ""
    options = {"ctiFrequency": "1 second", "valueFormat": "json", "violationPolicy": policy}
    options |= {"ctiDelay": "10 seconds", **(LASTING if lasts else {})}
    results, schemas = {}, {}
    for name in ("plain", "folded"):
        made = stream(records[:300], partitions=3, schema=columns, **options)
        for more in (None, records[300:]):
            if more:
                broker.produce(made.topic, more)
            final = {"finalCti": "true"} if more else {}
            limits = {"maxOffsetsPerTrigger": "110" if name == "plain" else "90"}
            if name == "plain":
                frame = plain(made.load(**final, **limits), window, AGGREGATES, by, slide)
            else:
                reader = made.configure(made.spark.readStream, **final, **limits)
                frame = aggregate_windows(reader, window, AGGREGATES, by, slide)
            results[name] = drop_batch(made.run(frame))
        schemas[name] = [(field.name, field.dataType) for field in frame.schema]
    wanted = comparable(results["plain"])
    assert len(wanted) > 20
    assert comparable(results["folded"]) == wanted
    assert schemas["folded"] == schemas["plain"]
    # A batch read, and DuckDB over what it judges: the same once more.
    batch = made.configure(made.spark.read, finalCti="true")
    read = aggregate_windows(batch, window, AGGREGATES, by, slide).collect()
    assert comparable(read) == wanted
    check_with_duckdb(advance_time(batch.load()).collect(), results["folded"], window, slide)


@pytest.mark.outside_ci
def test_windows_of_folded_intervals_are_those_of_records_in_the_same_batch(stream) -> None:
    columns = f"{FIELDS}, start_time timestamp, cti timestamp"
    options = {"ctiFrequency": "1 second", "valueFormat": "json", "ctiDelay": "20 seconds"}
    limits = {"finalCti": "true", "maxOffsetsPerTrigger": "90"}
    period = F.window("window", "30 seconds", "10 seconds").alias("window")
    results = []
    for window, slide in (("30 seconds", "10 seconds"), ("10 seconds", None)):
        made = stream(drawn(300, seed=5), partitions=3, schema=columns, **options)
        reader = made.configure(made.spark.readStream, **limits)
        sums = {"minutes": ("sum", "minutes")}
        folded = aggregate_windows(reader, window, sums, "station", slide)
        if slide is None:
            folded = folded.groupBy("station", period).agg(F.sum("minutes").alias("minutes"))
        results.append(comparable(made.run(folded)))
    of_records, of_intervals = results
    assert len({row[-1] for row in of_records}) > 2
    assert of_intervals == of_records


def drop_batch(rows: Iterable[Row]) -> list[Row]:
    return [Row(**{k: v for k, v in row.asDict().items() if k != "batch"}) for row in rows]


def check_with_duckdb(
    rows: Sequence[Row], folded: Sequence[Row], window: str, slide: str | None
) -> None:
    """Compare counts and sums of the judged rows, by windows that DuckDB is told the starts of."""
    length, step = (int(text.split()[0]) for text in (window, slide or window))
    if "minute" in window:
        length, step = 60 * length, 60 * step
    database = duckdb.connect()
    database.execute("CREATE TABLE r (t DOUBLE, station TEXT, minutes BIGINT, fee DECIMAL(18,2))")
    values = [(row.start_time.timestamp(), row.station, row.minutes, row.fee) for row in rows]
    database.executemany("INSERT INTO r VALUES (?, ?, ?, ?)", values)
    first = DAY_MS // 1000 // step * step - 600 // step * step
    wanted = database.execute(
        f"SELECT s, station, count(*), sum(minutes), sum(fee) FROM r, (SELECT unnest("
        f"generate_series({first}, {first} + 86400, {step})) AS s) "
        f"WHERE t >= s AND t < s + {length} GROUP BY ALL"
    ).fetchall()
    found: dict[tuple[float, str | None], list[Any]] = {}
    for row in folded:
        entry = found.setdefault((row.window.start.timestamp(), row.station), [0, None, None])
        entry[0] += row["rows"]
        for place, name in ((1, "minutes"), (2, "fees")):
            if row[name] is not None:
                entry[place] = (entry[place] or 0) + row[name]
    assert found == {(start, station): list(sums) for start, station, *sums in wanted}


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_kills_in_flight_neither_lose_nor_double_what_is_folded(
    spark, broker, topic, tmp_path
) -> None:
    name, draw = topic(2), random.Random(5)
    readings = [
        event(number / 4 + draw.random() * 4, number % 2, station=draw.choice("abc"), number=number)
        for number in range(300)
    ]
    broker.produce(name, readings)
    rows, checkpoint = tmp_path / "rows", tmp_path / "ck"
    arguments = [broker.bootstrap, name, str(rows), str(checkpoint)]
    job = Job(Path(fold_job.__file__), arguments, log=tmp_path / "log")
    killed = run_killed(job, InBatch(checkpoint, only=2), kills=1, timeout=400)
    assert (killed.hits, killed.exit_code) == (1, 0)
    batch = fold_job.configure(spark.read, broker.bootstrap, name).load()
    wanted = plain(batch, "10 seconds", fold_job.AGGREGATES, ["station"], "4 seconds")
    wanted = wanted.select("station", F.col("window.start").alias("start"), *fold_job.AGGREGATES)
    assert comparable(spark.read.parquet(str(rows)).collect()) == comparable(wanted.collect())


@pytest.mark.outside_ci
def test_a_row_before_1970_and_a_sum_that_is_too_large_fail_as_in_the_plain_query(stream) -> None:
    columns = "minutes long, start_time timestamp, cti timestamp"
    options = {"ctiFrequency": "1", "valueFormat": "json", "startTime": "at", "finalCti": "true"}
    large = [event(1, minutes=2**62, at=5) for _ in range(2)]
    early = [event(1, minutes=1, at=-1_500)]
    for records, said in ((large, "ARITHMETIC_OVERFLOW"), (early, "1969-12-31T23:59:58.500000Z")):
        for folds in (False, True):
            made = stream(records, schema=columns, **options)
            reader = made.configure(made.spark.readStream)
            total: dict[str, Any] = {"total": ("sum", "minutes")}
            frame = (
                aggregate_windows(reader, "1 minute", total)
                if folds
                else plain(reader.load(), "1 minute", total)
            )
            with pytest.raises(StreamingQueryException, match=said):
                made.run(frame)
