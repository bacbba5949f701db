"""Steps between a source and `advance_time`: CTI rows pass them, or they are refused by name."""

import functools
import itertools
import json
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from pyspark_timestream import SchemaRefused, advance_time, import_ctis, shift_time, why
from pyspark_timestream.frames.cti_path import CtiCondition, keep_ctis
from pyspark_timestream.frames.plans import (
    ClassicOperator,
    _CtiWatch,
    keep_cti_rows,
    loses_ctis,
    watch_ctis,
)

CTI = CtiCondition("CTI")
OTHER = CtiCondition("AttributeReference")
NULL = CtiCondition("NULL")
IS_CTI, IS_DATA = CtiCondition("IsNotNull", (CTI,)), CtiCondition("IsNull", (CTI,))
LATE = CtiCondition("EqualTo", (OTHER, CtiCondition("Literal", value="late")))

SCHEMA = "station string, start_time timestamp, cti timestamp"
EVENTS = [
    {"station": station, "start_time": f"2026-01-01T10:{minute:02}:00Z"}
    for minute in range(6)
    for station in "ab"
]


def either(*parts):
    return CtiCondition("Or", parts)


def both(*parts):
    return CtiCondition("And", parts)


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
        (CtiCondition("Not", (IS_DATA,)), True),
        (CtiCondition("Not", (LATE,)), None),
        (CtiCondition("IsNotNull", (CtiCondition("Coalesce", (OTHER, CTI)),)), True),
        (CtiCondition("AtLeastNNonNulls", (OTHER, CTI), 1), True),
        (CtiCondition("AtLeastNNonNulls", (OTHER, CTI), 2), None),
        (CtiCondition("GreaterThan", (CTI, CtiCondition("Literal", value=1))), None),
        (either(IS_DATA, CtiCondition("IsNull", (NULL,))), True),
        (either(IS_DATA, CtiCondition("IsNull", (OTHER,))), None),
        (both(CtiCondition("IsNull", (NULL,)), either(IS_CTI, LATE)), True),
        (CtiCondition("IsNotNull", (NULL,)), False),
        (CtiCondition("IsNull", (CtiCondition("Coalesce", (NULL, OTHER)),)), None),
        (CtiCondition("EqualTo", (NULL, OTHER)), None),
    ],
)
def test_a_condition_is_true_of_a_cti_row_only_where_that_is_certain(condition, truth):
    assert condition.truth is truth


@pytest.mark.parametrize(
    ("condition", "matches_none"),
    [
        (CtiCondition("EqualTo", (NULL, OTHER)), True),
        (CtiCondition("EqualTo", (OTHER, CtiCondition("Cast", (NULL,)))), True),
        (both(LATE, CtiCondition("EqualTo", (OTHER, NULL))), True),
        (CtiCondition("EqualTo", (OTHER, OTHER)), False),
        (CtiCondition("EqualTo", (CTI, OTHER)), False),
        (CtiCondition("EqualNullSafe", (NULL, OTHER)), False),
        (either(LATE, CtiCondition("EqualTo", (NULL, OTHER))), False),
        (CtiCondition("EqualTo", (CtiCondition("Coalesce", (NULL, OTHER)), OTHER)), False),
    ],
)
def test_an_equality_matches_no_cti_row_only_where_a_side_is_null(condition, matches_none):
    assert condition.matches_none is matches_none


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

    One query unites them, and Spark's watermark is the slowest one's: all are released or none.
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
    "anti join": (
        lambda df: df.join(df.sparkSession.createDataFrame([("b",)], "station string"),
                           "station", "left_anti"), (6, 6),
    ),
    "data or null": (lambda df: df.where("cti IS NULL OR station IS NULL"), (6, 12)),
    "null and CTI": (
        lambda df: df.where("(station IS NULL OR station = 'a') "
                            "AND (cti IS NOT NULL OR minute(start_time) > 2)"), (3, 3),
    ),
    "udf": (lambda df: df.where(F.udf(lambda name: name == "a", "boolean")("station")), (6, 6)),
}  # fmt: skip


@pytest.mark.outside_ci
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
    assert loses_ctis(progresses, has_ended=has_ended) is found


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


class Listeners:
    """A session that refuses listeners."""

    class streams:
        @staticmethod
        def addListener(listener):
            raise NotImplementedError("no listeners here")


def test_a_session_that_takes_no_listener_is_warned_of_once_and_goes_on(caplog):
    session = Listeners()
    watch_ctis(session)
    watch_ctis(session)
    (line,) = caplog.messages
    assert line.startswith("the session takes no listener, so nothing warns of queries that lose")
    assert line.endswith("(NotImplementedError: no listeners here)")


def test_a_client_of_spark_connect_gets_no_listener_which_would_keep_it_from_ending(caplog):
    frame = SimpleNamespace(
        isStreaming=True,
        sparkSession=Listeners(),
        _plan=SimpleNamespace(_plan_id=1, _is_streaming=True),
        _session=SESSION,
    )
    assert keep_cti_rows(frame) is frame
    assert not caplog.messages


# -- plans of Spark Connect, without a server --------------------------------------------------


SESSION = SimpleNamespace(client=None)


@pytest.fixture(scope="module")
def connect():
    """A frame of Spark Connect over a stream; nothing asks a server."""
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import DataSource

    return DataFrame(DataSource("timestream", is_streaming=True), SESSION)


def keep_in_connect(frame):
    from pyspark_timestream.frames.plans import _ConnectOperator

    plan, is_sure = keep_ctis(_ConnectOperator(frame._plan, SESSION), "cti")
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


def _columns():
    from pyspark.sql.connect import functions

    return functions


def join_in_connect(frame, on, how="left_anti"):
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import DataSource, Join

    table = DataFrame(DataSource("parquet", is_streaming=False), SESSION)
    on = on(table) if callable(on) else on
    return DataFrame(Join(frame._plan, table._plan, on, how.replace("_", "")), SESSION)


def of_plan(frame, name):
    """A column that knows its frame, without asking a server whether it is there."""
    from pyspark.sql.connect.column import Column
    from pyspark.sql.connect.expressions import ColumnReference

    return Column(ColumnReference(name, frame._plan._plan_id))


KEPT_JOINS = {
    "by name": lambda df: (df, "station"),
    "by names": lambda df: (df, ["n", "station"]),
    "renamed": lambda df: (df.withColumnRenamed("station", "s"), "s"),
    "alias": lambda df: (df.select("cti", _columns().col("station").alias("s")), "s"),
    "filtered": lambda df: (df.select("*").where(_columns().col("n") == 1), "station"),
    "by columns": lambda df: (df, lambda t: of_plan(df, "station") == of_plan(t, "station")),
    "and more": lambda df: (
        df, lambda t: (of_plan(df, "a") == of_plan(t, "b")) & (of_plan(t, "n") > 1),
    ),
    "again": lambda df: (join_in_connect(df, "station"), "station"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT_JOINS)
def test_a_block_list_by_equal_columns_of_the_source_keeps_ctis(connect, name):
    frame = join_in_connect(*KEPT_JOINS[name](connect))
    assert keep_in_connect(frame) is not None


REFUSED_JOINS = {
    "of a CTI": lambda df: (df, "cti"),
    "made": lambda df: (df.withColumn("station", _columns().lit("a")), "station"),
    "chosen": lambda df: (df.select("cti", _columns().lit("a").alias("station")), "station"),
    "exchanged": lambda df: (
        df.select("cti", _columns().expr("true").alias("station")), "station",
    ),
    "renamed": lambda df: (df.withColumnRenamed("station", "s"), "station"),
    "of a left join": lambda df: (join_in_connect(df, "station", "left"), "n"),
    "null-safe": lambda df: (
        df, lambda t: of_plan(df, "station").eqNullSafe(of_plan(t, "station")),
    ),
    "of the table": lambda df: (df, lambda t: of_plan(t, "station") == "a"),
    "of anyone": lambda df: (df, _columns().col("station") == "a"),
    "either": lambda df: (
        df, lambda t: (of_plan(df, "a") == of_plan(t, "a")) | (of_plan(t, "n") > 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_JOINS)
def test_a_block_list_that_may_hold_a_cti_row_is_refused(connect, name):
    frame = join_in_connect(*REFUSED_JOINS[name](connect))
    with pytest.raises(SchemaRefused, match=r"join comes before advance_time .*left_anti by equal"):
        keep_in_connect(frame)


def test_a_filter_that_asks_for_null_of_the_source_keeps_ctis_in_spark_connect(connect):
    col = _columns().col
    is_data, fine = col("cti").isNull(), col("violation").isNull()
    first = is_data | fine
    second = fine & (col("cti").isNotNull() | (col("x") > 5))
    for condition in (first, second):
        frame = connect.where(condition)
        assert keep_in_connect(frame) is frame._plan
        made = connect.withColumn("violation", _columns().lit("none")).where(condition)
        with pytest.raises(SchemaRefused, match="a filter on column 'cti'"):
            keep_in_connect(made)


# -- classic plans, as Java's operators look ------------------------------------------------------


class Java:
    """An object of Java: its class's simple name, and its methods' results."""

    def __init__(self, kind, **results):
        self._kind, self._results = kind, results

    def getClass(self):
        return SimpleNamespace(getSimpleName=lambda: self._kind)

    def __getattr__(self, name):
        found = self._results[name]
        return lambda: JavaList(found) if isinstance(found, list) else found


class JavaList(list):
    def iterator(self):
        items = list(self)
        return SimpleNamespace(hasNext=lambda: bool(items), next=lambda: items.pop(0))


def attribute(name):
    text = SimpleNamespace(toString=lambda: f"#{name}")
    return Java("AttributeReference", name=name, exprId=text, children=[])


def java_source(*names, streams=True):
    output = [attribute(name) for name in names]
    return Java("StreamingRelationV2", children=[], output=output, isStreaming=streams)


def java_project(below, **made):
    """Each column by its name: an attribute as it is, or an alias of an expression."""
    columns = [
        each if each._kind == "AttributeReference" and each.name() == name
        else Java("Alias", child=each, children=[each], references=[], **_named(name))
        for name, each in made.items()
    ]  # fmt: skip
    return Java("Project", children=[below], output=columns, projectList=columns, isStreaming=True)


def _named(name):
    return {"name": name, "exprId": SimpleNamespace(toString=lambda: f"#{name}")}


def java_anti(left, condition):
    right = java_source("r", streams=False)
    is_there = Java("Option", isDefined=True, isEmpty=False, get=condition)
    how = SimpleNamespace(toString=lambda: "LeftAnti")
    return Java(
        "Join", children=[left, right], output=list(left.output()), isStreaming=True,
        joinType=how, condition=is_there,
    )  # fmt: skip


def keep_classic(plan):
    return keep_ctis(ClassicOperator(plan), "#cti")


def equal(one, other):
    return Java("EqualTo", children=[one, other], references=[])


def test_a_classic_block_list_keeps_ctis_only_by_equal_columns_of_the_source():
    source = java_source("station", "cti")
    station, made, other = attribute("station"), attribute("made"), attribute("r")
    literal = Java("Literal", children=[], value="a")
    cti = attribute("cti")
    cti._results["references"] = [attribute("cti")]
    moved = java_project(source, made=station, cti=cti)
    constant = java_project(source, made=literal, cti=cti)
    for plan in (
        java_anti(source, equal(station, other)),
        java_anti(moved, equal(other, made)),
        java_anti(moved, equal(Java("Cast", children=[made]), other)),
    ):
        assert keep_classic(plan) == (plan, True)
    for plan in (
        java_anti(source, equal(attribute("cti"), other)),
        java_anti(source, equal(other, literal)),
        java_anti(constant, equal(made, other)),
        java_anti(source, Java("EqualNullSafe", children=[station, other])),
    ):
        with pytest.raises(SchemaRefused, match="join comes before advance_time"):
            keep_classic(plan)


def test_a_classic_filter_that_asks_for_null_of_the_source_keeps_ctis():
    source = java_source("violation", "cti")
    is_data = Java("IsNull", children=[attribute("cti")])
    fine = Java("IsNull", children=[attribute("violation")])
    condition = Java("Or", children=[is_data, fine], references=[attribute("cti")])
    plan = Java("Filter", children=[source], output=list(source.output()), condition=condition)
    assert keep_classic(plan) == (plan, True)
