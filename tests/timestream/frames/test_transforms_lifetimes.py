"""Event times shifted and lifetimes altered: against a brute-force oracle, and through Spark."""

import json
import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, alter_lifetime, shift_time, why
from pyspark_timestream.errors import SchemaRefused

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)
FINAL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
SCHEMA = "n int, start_time timestamp, end_time timestamp, cti timestamp"
EDGES = f"{SCHEMA}, edge string, violation string"
TEXT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"


def at(seconds):
    return NOON + timedelta(seconds=seconds)


@pytest.fixture
def table(spark):
    """Make a frame of rows in a schema; timestamps pass as text, since Python's end in 9999."""

    def make(rows, schema=SCHEMA):
        names = [field.split()[0] for field in schema.split(", ")]
        whole = [dict.fromkeys(names) | row for row in rows]
        texts = [json.dumps(row, default=datetime.isoformat) for row in whole]
        read = spark.createDataFrame(pa.table({"text": texts}))
        return read.select(F.from_json("text", schema).alias("row")).select("row.*")

    return make


def rows(df):
    """The rows as dictionaries without nulls, times in UTC."""
    times = [name for name, type_ in df.dtypes if type_ == "timestamp"]
    texts = df.select(*[F.date_format(c, TEXT).alias(c) if c in times else c for c in df.columns])
    read = [row.asDict() for row in texts.collect()]
    return [
        {
            name: datetime.fromisoformat(value).replace(tzinfo=UTC) if name in times else value
            for name, value in row.items()
            if value is not None
        }
        for row in read
    ]


def move(instant, by):
    """`instant` moved, and held within the legal instants."""
    try:
        return min(max(instant + by, FIRST), FINAL)
    except OverflowError:
        return FINAL if by > timedelta(0) else FIRST


def altered(row, length, by):
    """The oracle, from semantics 11.11: None where an end edge is left out."""
    if row.get("edge") == "end":
        return None
    new = dict(row)
    if "cti" in row and row["cti"] != FINAL:
        new["cti"] = move(row["cti"], by)
    new.pop("end_time", None)
    if "start_time" in row:
        new["start_time"] = move(row["start_time"], by)
        new["end_time"] = move(new["start_time"], length(row))
    return new


def a_stream(seed, count=150):
    """Rows as a source gives them: CTIs that rise, events at or after the CTI in force."""
    chance = random.Random(seed)
    cti, found = 0, []
    for n in range(count):
        if chance.random() < 0.2:
            cti += chance.randrange(20)
            found.append({"cti": at(cti)})
        start = at(cti + chance.randrange(30) + chance.randrange(10**6) / 10**6)
        row = {"n": n, "start_time": start, "end_time": start + timedelta(seconds=n + 1)}
        edge = chance.choice(["start", "end"])
        late = {"violation": "late", "start_time": at(cti - 5)} if chance.random() < 0.1 else {}
        found.append(row | {"edge": edge} | late)
    return [*found, {"n": count, "violation": "malformed"}, {"cti": FINAL}]


@pytest.mark.parametrize("by", ["0 seconds", "90 seconds", "-1 tick"])
def test_alter_lifetime_equals_the_oracle_row_by_row_for_edges(table, by) -> None:
    shift = {"0 seconds": 0, "90 seconds": 90, "-1 tick": -1e-6}[by]
    events = a_stream(by)
    done = rows(alter_lifetime(table(events, EDGES), "5 minutes", by))
    new = [
        altered(each, lambda _: timedelta(minutes=5), timedelta(seconds=shift)) for each in events
    ]
    assert done == [each for each in new if each is not None]
    assert len(done) < len(events)


def test_alter_lifetime_by_a_column_gives_each_event_its_own_end(table) -> None:
    events = [{k: v for k, v in row.items() if k in SCHEMA} for row in a_stream("column")]
    longer = F.col("end_time") - F.col("start_time") + F.expr("INTERVAL '0.000001' SECOND")
    before = timedelta(minutes=-1)

    def length(row):
        return row["end_time"] - row["start_time"] + timedelta(microseconds=1)

    done = rows(alter_lifetime(table(events), longer, "-1 minute"))
    assert done == [altered(each, length, before) for each in events]


@pytest.mark.parametrize("by", ["0 seconds", "-7 seconds", "1 day"])
def test_every_cti_still_promises_the_starts_after_alter_lifetime(table, by) -> None:
    kept = [row for row in a_stream(f"promise {by}") if "violation" not in row]
    reached = FIRST
    for row in rows(alter_lifetime(table(kept, EDGES), "1 second", by)):
        reached = max(reached, row.get("cti", FIRST))
        assert row.get("start_time", FINAL) >= reached


def test_points_get_an_end_that_is_added_as_the_last_column(table) -> None:
    points = table([{"n": 1, "start_time": at(0)}, {"cti": at(1)}]).drop("end_time")
    intervals = alter_lifetime(points, "1 tick")
    assert intervals.columns == ["n", "start_time", "cti", "end_time"]
    end = NOON + timedelta(microseconds=1)
    assert rows(intervals) == [{"n": 1, "start_time": at(0), "end_time": end}, {"cti": at(1)}]


def test_an_end_after_all_of_time_is_the_last_legal_instant(table) -> None:
    late = {"n": 1, "start_time": FINAL - timedelta(seconds=1)}
    for duration in ("1 minute", "521722 weeks", F.expr("make_dt_interval(100000000)")):
        (row,) = rows(alter_lifetime(table([late]), duration))
        assert row == late | {"end_time": FINAL}


def test_shift_time_moves_ends_only_where_asked_and_clamps_them(table) -> None:
    row = {"n": 1, "start_time": at(0), "end_time": FINAL - timedelta(seconds=1)}
    df = table([row, {"cti": at(5)}, {"cti": FINAL}])
    ctis = [{"cti": at(65)}, {"cti": FINAL}]
    assert rows(shift_time(df, "1 minute")) == [row | {"start_time": at(60)}, *ctis]
    both = row | {"start_time": at(60), "end_time": FINAL}
    assert rows(shift_time(df, "1 minute", end_time="end_time")) == [both, *ctis]


def test_shift_time_keeps_the_lifetimes_of_edges_and_their_promise(table) -> None:
    events = [row for row in a_stream("shift") if "violation" not in row]
    done = rows(shift_time(table(events, EDGES), "-90 seconds", end_time="end_time"))
    back = timedelta(seconds=-90)
    assert done == [
        {
            name: move(value, back) if name.endswith(("time", "cti")) and value != FINAL else value
            for name, value in row.items()
        }
        for row in events
    ]


def test_a_lifetime_longer_than_all_of_time_is_refused_by_name(table) -> None:
    with pytest.raises(ValueError, match="'duration': cannot read '521723 weeks'"):
        alter_lifetime(table([{"n": 1}]), "521723 weeks")


@pytest.mark.parametrize("sql", ["n", "INTERVAL '1' MONTH", "'5 minutes'", "start_time"])
def test_a_column_that_is_no_interval_is_refused_by_type(table, sql) -> None:
    with pytest.raises(SchemaRefused, match="duration is a column of type"):
        alter_lifetime(table([{"n": 1}]), F.expr(sql))


@pytest.mark.parametrize("end", ["start_time", "cti"])
def test_starts_and_ctis_are_refused_as_ends(table, end) -> None:
    df = table([{"n": 1}])
    for change in (lambda: alter_lifetime(df, "1 second", end_time=end),
                   lambda: shift_time(df, "1 second", end_time=end)):  # fmt: skip
        with pytest.raises(SchemaRefused, match=f"end_time='{end}' is the column of starts"):
            change()


@pytest.mark.parametrize("end", ["n", "ends"])
def test_shift_time_refuses_an_end_that_is_no_timestamp(table, end) -> None:
    with pytest.raises(SchemaRefused, match="pass end_time="):
        shift_time(table([{"n": 1}]), "1 second", end_time=end)


@pytest.mark.parametrize("seconds", ["0", "-1", "null"])
def test_a_row_without_a_lifetime_fails_with_the_next_step(table, seconds, capsys) -> None:
    fine = [{"n": 1, "start_time": at(0)}, {"cti": at(1)}]
    length = F.expr(f"if(n = 2, make_dt_interval(0, 0, 0, {seconds}), INTERVAL '1' SECOND)")
    assert len(rows(alter_lifetime(table(fine), length))) == 2
    with pytest.raises(PySparkException) as failure:
        rows(alter_lifetime(table([*fine, {"n": 2, "start_time": at(0)}]), length))
    why(failure.value)
    said = capsys.readouterr().out
    assert said.startswith("an event has the duration ")
    assert "leave them out before alter_lifetime" in said


def test_the_durations_of_end_edges_are_not_asked_for(table) -> None:
    edges = [
        {"n": 1, "start_time": at(0), "edge": "start"},
        {"n": 0, "start_time": at(0), "end_time": at(1), "edge": "end"},
    ]
    length = F.expr("make_dt_interval(0, 0, 0, n)")
    (row,) = rows(alter_lifetime(table(edges, EDGES), length).where("end_time > '2026-01-01'"))
    assert row == edges[0] | {"end_time": at(1)}


@pytest.mark.everyday
def test_a_stream_of_altered_events_releases_its_windows_by_moved_ctis(spark, tmp_path) -> None:
    batches = {
        "a": [{"n": 1, "start_time": at(0)}, {"n": 2, "start_time": at(3599)}, {"cti": at(3600)}],
        "b": [{"n": 3, "start_time": at(3600)}, {"cti": at(3601)}],
    }
    place = tmp_path / "in"
    place.mkdir()
    for name, batch in batches.items():
        lines = [json.dumps(row, default=datetime.isoformat) for row in batch]
        (place / name).write_text("\n".join(lines))
    read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(place))
    hours = (
        advance_time(alter_lifetime(read, "1 hour", "1 hour"))
        .groupBy(F.window("start_time", "1 hour"))
        .agg(F.count("*").alias("n"), F.max("end_time").alias("last"))
        .select("window.start", "n", "last")
    )
    query = (
        hours.writeStream.format("memory").queryName("altered")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert rows(spark.table("altered")) == [{"start": at(3600), "n": 2, "last": at(10799)}]
