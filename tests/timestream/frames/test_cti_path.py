"""Steps between a source and `advance_time`: CTI rows pass them, or they are refused by name."""

import functools
import itertools
import json
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from pyspark_timestream import SchemaRefused, advance_time, import_ctis, shift_time, why
from pyspark_timestream.frames.cti_path import Condition, keep_ctis
from pyspark_timestream.frames.cti_watch import _CtiWatch, loses_ctis

CTI = Condition("CTI")
OTHER = Condition("AttributeReference")
IS_CTI, IS_DATA = Condition("IsNotNull", (CTI,)), Condition("IsNull", (CTI,))
LATE = Condition("EqualTo", (OTHER, Condition("Literal", value="late")))

SCHEMA = "station string, start_time timestamp, cti timestamp"
EVENTS = [
    {"station": station, "start_time": f"2026-01-01T10:{minute:02}:00Z"}
    for minute in range(6)
    for station in "ab"
]


def either(*parts):
    return Condition("Or", parts)


def both(*parts):
    return Condition("And", parts)


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        (IS_CTI, True),
        (IS_DATA, False),
        (either(LATE, IS_CTI), True),
        (both(LATE, IS_DATA), False),
        (both(LATE, either(LATE, IS_CTI)), None),
        (both(either(LATE, IS_CTI), either(IS_CTI, LATE)), True),
        (either(LATE, IS_DATA), None),
        (Condition("Not", (IS_DATA,)), True),
        (Condition("Not", (LATE,)), None),
        (Condition("IsNotNull", (Condition("Coalesce", (OTHER, CTI)),)), True),
        (Condition("AtLeastNNonNulls", (OTHER, CTI), 1), True),
        (Condition("AtLeastNNonNulls", (OTHER, CTI), 2), None),
        (Condition("GreaterThan", (CTI, Condition("Literal", value=1))), None),
    ],
)
def test_a_condition_is_true_of_a_cti_row_only_where_that_is_certain(condition, truth):
    assert condition.truth is truth


@pytest.fixture
def stream(spark, tmp_path):
    """Make a stream of files: twelve events in six minutes, and a CTI behind them."""
    numbers = itertools.count()

    def make():
        place = tmp_path / f"stream{next(numbers)}"
        place.mkdir()
        rows = [*EVENTS, {"cti": "2026-01-01T10:06:00Z"}]
        (place / "rows").write_text("\n".join(json.dumps(row) for row in rows))
        return spark.readStream.schema(SCHEMA).json(str(place))

    return make


@pytest.fixture
def count(spark, tmp_path):
    """By name, the windows of a minute that each of several streams releases, and their rows.

    One query unites them, and Spark's watermark is that of the slowest: all are released or none.
    """

    def run(streams):
        named = [
            rows.select(F.lit(name).alias("name"), "start_time") for name, rows in streams.items()
        ]
        rows = functools.reduce(lambda one, other: one.unionByName(other), named)
        windows = rows.groupBy("name", F.window("start_time", "1 minute")).count()
        query = (
            windows.writeStream.format("memory").queryName("windows_of_cti_path")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        found = {}
        for row in spark.table("windows_of_cti_path").collect():
            windows, events = found.get(row["name"], (0, 0))
            found[row["name"]] = windows + 1, events + row["count"]
        return found

    return run


def in_sql(df, text):
    df.createOrReplaceTempView("trips_of_cti_path")
    return df.sparkSession.sql(text.format("trips_of_cti_path"))


FILTERS = {
    "where": (lambda df: df.where("station = 'a'"), (6, 6)),
    "na.drop": (lambda df: df.na.drop(subset=["station", "start_time"]), (6, 12)),
    "na.drop all": (lambda df: df.na.drop(how="all"), (6, 12)),
    "stated": (lambda df: df.where("station = 'a' OR cti IS NOT NULL"), (6, 6)),
    "twice": (lambda df: df.where("station = 'a'").where("minute(start_time) > 2"), (3, 3)),
    "view": (lambda df: in_sql(df, "SELECT * FROM {} WHERE station = 'a'"), (6, 6)),
    "with": (
        lambda df: in_sql(df, "WITH t AS (SELECT * FROM {} WHERE station = 'a') TABLE t"), (6, 6),
    ),
    "renamed": (
        lambda df: df.withColumnRenamed("cti", "k_cti").where("station = 'a'")
        .withColumnRenamed("k_cti", "cti"), (6, 6),
    ),
    "moved": (
        lambda df: shift_time(df.where("station = 'a'"), "0 seconds"), (6, 6),
    ),
    "repartition": (
        lambda df: df.where("station = 'a'").repartition(2).hint("x").alias("q"), (6, 6),
    ),
    "left join": (
        lambda df: df.join(df.sparkSession.createDataFrame([("a", 1)], "station string, n int"),
                           "station", "left").where("n = 1"), (6, 6),
    ),
    "cross join": (lambda df: df.crossJoin(df.sparkSession.range(1)).where("id = 0"), (6, 12)),
    "explode outer": (
        lambda df: df.select("*", F.explode_outer(F.array("station"))).where("col = 'a'"), (6, 6),
    ),
    "udf": (lambda df: df.where(F.udf(lambda name: name == "a", "boolean")("station")), (6, 6)),
}  # fmt: skip


@pytest.mark.spark
def test_filters_before_advance_time_let_ctis_through(stream, count):
    made = stream()
    found = count({name: advance_time(step(made)) for name, (step, _) in FILTERS.items()})
    assert found == {name: expected for name, (_, expected) in FILTERS.items()}


def same(batches):
    yield from batches


def joined(df):
    return df.join(df.sparkSession.createDataFrame([("a",), ("b",)], "station string"), "station")


def mapped(df):
    return df.mapInArrow(same, df.schema)


def with_another(df):
    other = df.select("*").withColumn("station", F.lit("c"))
    return df.unionByName(other)


REMOVERS = {
    "a filter on column 'cti'": lambda df: df.where("cti is null"),
    "dropDuplicates": lambda df: df.dropDuplicates(["station", "start_time"]),
    "dropDuplicatesWithinWatermark": lambda df: df.dropDuplicatesWithinWatermark(["station"]),
    "explode": lambda df: df.select("*", F.explode(F.array("station"))),
    "join": joined,
    "limit": lambda df: df.limit(100),
    "mapInArrow": mapped,
    "withWatermark": lambda df: df.withWatermark("start_time", "1 minute"),
    "union": with_another,
    "groupBy": lambda df: df.groupBy("station", "start_time").agg(F.max("cti").alias("cti")),
    "applyInPandas": lambda df: df.groupBy("station").applyInPandas(same, df.schema),
    "intersect": lambda df: df.intersect(df),
}  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("name", REMOVERS)
def test_what_removes_ctis_before_advance_time_is_refused_by_its_name(stream, name, capsys):
    with pytest.raises(SchemaRefused) as refused:
        advance_time(REMOVERS[name](stream()).where("station = 'a'"))
    why(refused.value)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{name} comes before advance_time and ")
    assert "next step: " in line


@pytest.mark.spark
def test_na_drop_of_all_columns_is_refused_since_no_row_has_all(stream):
    with pytest.raises(SchemaRefused, match=r"na\.drop\(subset=\.\.\.\)"):
        advance_time(stream().na.drop())


NEXT_STEPS = {
    "dropDuplicates": lambda rows: rows.dropDuplicates(["station", "start_time"]),
    "explode": lambda rows: rows.select("*", F.explode(F.array("station"))),
    "join": joined,
    "mapInArrow": mapped,
    "withWatermark": lambda rows: rows,
}


@pytest.mark.spark
def test_the_next_steps_of_the_refusals_release_the_windows(stream, count):
    made = stream()
    slow = made.where("station = 'a'")
    fast = made.withColumn("cti", F.col("cti") - F.expr("INTERVAL 0 MINUTES"))
    found = count(
        {
            **{name: step(advance_time(made)) for name, step in NEXT_STEPS.items()},
            "import_ctis": advance_time(import_ctis(slow, fast)),
        }
    )
    assert found == {**dict.fromkeys(NEXT_STEPS, (6, 12)), "import_ctis": (6, 6)}


@pytest.mark.spark
def test_a_batch_is_taken_as_it_is(spark):
    frame = spark.createDataFrame([], SCHEMA).where("cti is null").limit(3)
    assert advance_time(frame).collect() == []


# -- what no plan shows ------------------------------------------------------------------------


def progress(watermark, *ctis, **more):
    reports = [{"partitions": {}, "cti": cti} for cti in ctis]
    sources = [{"latestOffset": json.dumps(report)} for report in reports]
    return {"eventTime": {"watermark": watermark} if watermark else {}, "sources": sources, **more}


AT_1970, MOVED = "1970-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("progresses", "has_ended", "found"),
    [
        ([progress(AT_1970, MOVED), progress(AT_1970, MOVED)], False, True),
        ([progress(AT_1970, MOVED)], False, False),
        ([progress(AT_1970, MOVED)], True, True),
        ([progress(AT_1970, None), progress(AT_1970, MOVED)], False, False),
        ([progress(AT_1970, MOVED), progress(MOVED, MOVED)], False, False),
        ([progress(None, MOVED), progress(None, MOVED)], False, False),
        ([progress(AT_1970, MOVED, None), progress(AT_1970, MOVED, MOVED)], False, False),
        ([progress(AT_1970, MOVED, MOVED), progress(AT_1970, MOVED, MOVED)], False, True),
        ([progress(AT_1970), progress(AT_1970)], True, False),
        ([], True, False),
    ],
)
def test_a_watermark_of_1970_beside_ctis_of_earlier_batches_is_found(progresses, has_ended, found):
    assert loses_ctis(progresses, has_ended) is found


def test_a_source_without_a_report_may_be_what_holds_the_watermark_back():
    batch = progress(AT_1970, MOVED)
    batch["sources"].append({"latestOffset": "3"})
    assert not loses_ctis([batch, batch])


def test_a_query_that_loses_its_ctis_is_warned_of_once(caplog):
    watch = _CtiWatch()
    batch = progress(AT_1970, MOVED, runId="1", id="2", name="hours")
    for _ in range(4):
        event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(batch)))
        watch.onQueryProgress(event)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("query 'hours': its streams have CTIs, and Spark's watermark stands at")
    assert "next step: call advance_time(df) on what the source delivers" in line


# -- plans of Spark Connect, without a server --------------------------------------------------


SESSION = SimpleNamespace(client=None)


@pytest.fixture(scope="module")
def connect():
    """A frame of Spark Connect over a stream; nothing asks a server."""
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import DataSource

    return DataFrame(DataSource("timestream", is_streaming=True), SESSION)


def keep_in_connect(frame):
    from pyspark_timestream.frames.plans import _ConnectStep

    plan, is_sure = keep_ctis(_ConnectStep(frame._plan, SESSION), "cti")
    assert is_sure
    return plan


def list_filters(plan):
    """The conditions of a plan's filters from above, as text."""
    found = []
    while plan is not None:
        if type(plan).__name__ == "Filter":
            found.append(str(plan.filter._expr).replace("`", ""))
        plan = plan._child
    return found


def test_a_filter_of_spark_connect_is_widened_and_keeps_its_number(connect):
    from pyspark.sql.connect import functions as C

    frame = connect.select("*", (C.col("cti")).alias("k")).where(C.col("station") == "a")
    frame = frame.select("station", "start_time", "cti").repartition(2)
    kept = keep_in_connect(frame)
    (condition,) = list_filters(kept)
    assert "cti" in condition
    assert "isnotnull" in condition.lower()
    assert "station" in condition
    assert kept._plan_id == frame._plan._plan_id
    assert kept is not frame._plan
    assert "cti" not in list_filters(frame._plan)[0]


def test_a_filter_of_spark_connect_that_keeps_ctis_stays_as_it_is(connect):
    from pyspark.sql.connect import functions as C

    frame = connect.where((C.col("station") == "a") | C.col("cti").isNotNull())
    assert keep_in_connect(frame) is frame._plan
    frame = connect.withColumnRenamed("cti", "k").where(C.col("k").isNotNull())
    frame = frame.withColumnRenamed("k", "cti")
    assert keep_in_connect(frame) is frame._plan


def test_what_removes_ctis_in_spark_connect_is_refused_by_its_name(connect):
    from pyspark.sql.connect import functions as C
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import DataSource, Join, SetOperation, WithWatermark

    table = DataSource("parquet", is_streaming=False)

    def join(how):
        return DataFrame(Join(connect._plan, table, "station", how), SESSION)

    def over(plan):
        return DataFrame(plan, SESSION)

    removers = {
        "a filter on column 'cti'": connect.where(C.col("cti").isNull()),
        "dropDuplicates": connect.dropDuplicates(["station"]),
        "limit": connect.limit(3),
        "join": join("inner"),
        "withWatermark": over(WithWatermark(connect._plan, "start_time", "1 minute")),
        "union": over(SetOperation(connect._plan, connect._plan, "union", by_name=True)),
        "groupBy": connect.groupBy("station").agg(C.max("cti").alias("cti")),
    }
    for name, frame in removers.items():
        with pytest.raises(SchemaRefused, match=f"{name} comes before advance_time and "):
            keep_in_connect(frame)
    assert keep_in_connect(join("left")) is not None
    with pytest.raises(SchemaRefused, match=r"na\.drop"):
        keep_in_connect(over(_drop_nulls(connect, None)))
    assert keep_in_connect(over(_drop_nulls(connect, 1))) is not None


def _drop_nulls(frame, needed):
    from pyspark.sql.connect.plan import NADrop

    return NADrop(frame._plan, None, needed)
