"""The state that waits is counted by operator, and in a checkpoint by the CTI that it waits for."""

import json

import pytest
from timestream.histories import history, share, state

from pyspark_timestream.commands.explanation import (
    MAX_TIMES,
    Explanation,
    OperatorState,
    describe_state,
    explain_checkpoint,
    explain_stream,
    find_due_time,
    read_operators,
)
from pyspark_timestream.commands.metrics import read_watermark
from pyspark_timestream.core.instants import parse_instant

NOON = "2024-01-01T12:00:00Z"


def field(name, kind, **metadata):
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*fields):
    return {"type": "struct", "fields": list(fields)}


MARKED = {"spark.watermarkDelayMs": 0}
WINDOW = struct(field("start", "timestamp"), field("end", "timestamp"))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ([field("window", WINDOW, **MARKED), field("k", "long")], ("key.`window`.`end`", True)),
        ([field("k", "long"), field("a`t", "timestamp", **MARKED)], ("key.`a``t`", False)),
        ([field("window", WINDOW), field("at", "timestamp")], None),
        ([field("at", "long", **MARKED)], None),
        # Spark's own watermark.
        ([field("at", "timestamp", **{"spark.watermarkDelayMs": 1})], None),
        ([field("at", struct(), **MARKED)], None),
        ([], None),
    ],
)
def test_time_of_a_state_is_the_marked_column_of_its_key(key, expected):
    assert find_due_time(struct(field("key", struct(*key)), field("value", "long"))) == expected
    assert find_due_time(struct(field("value", struct(*key)))) is None


def test_operators_of_the_progress_are_described_with_their_rows():
    operators = read_operators(
        {"stateOperators": [{"operatorName": "dedupe", "numRowsTotal": 1, "memoryUsedBytes": 90}]}
    )
    assert list(describe_state(operators)) == ["State of operator 0 dedupe: 1 row, 90 bytes"]
    assert read_operators({}) == read_operators({"stateOperators": None}) == ()


def test_earliest_ctis_are_listed_and_the_rest_is_summed_up():
    noon = parse_instant(NOON)
    due = tuple((noon + n * 1_000_000, 2) for n in range(MAX_TIMES))
    lines = list(describe_state([OperatorState("0 a", 25, None, due, True)]))
    assert lines[0] == "State of operator 0 a: 25 rows"
    assert lines[1] == f"   2 rows wait for a CTI at {NOON}"
    assert lines[-1] == "   5 rows wait for later ones"
    assert len(lines) == MAX_TIMES + 2
    after = list(describe_state([OperatorState("0 a", 2, None, due[:1], False)]))
    assert after[1:] == [f"   2 rows wait for a CTI after {NOON}"]


def test_watermark_that_has_not_begun_is_none():
    assert read_watermark({"eventTime": {"watermark": NOON}}) == parse_instant(NOON)
    assert read_watermark({"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}) is None
    assert read_watermark({}) is None


def test_both_views_show_the_state_and_escape_its_names():
    stream = explain_stream(history([share(state(1))]))
    found = Explanation("q", (stream,), (), (OperatorState("0 <b>\x1b", 3),))
    assert str(found).endswith("State of operator 0 <b>\\x1b: 3 rows")
    assert "<p>State of operator 0 &lt;b&gt;" in found._repr_html_()
    assert "State" not in str(Explanation("q", (stream,)))


@pytest.mark.outside_ci
@pytest.mark.spark
def test_state_of_a_checkpoint_is_read_with_the_ctis_it_waits_for(spark, tmp_path):
    from pyspark.sql import functions as F

    from pyspark_timestream import advance_time, explain_time

    ticks = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 6)
        .option("startTimestamp", parse_instant(NOON) // 1000)
        .option("advanceMillisPerBatch", 30_000)
        .load()
    )
    # Three events half a minute apart with three keys each; no CTI comes.
    rows = ticks.selectExpr(
        "timestamp + make_interval(0, 0, 0, 0, 0, 0, (value % 6) * 30) AS start_time",
        "value % 3 AS k", "CAST(null AS timestamp) AS cti",
    )  # fmt: skip
    windows = advance_time(rows).groupBy(F.window("start_time", "1 minute")).count()
    place = str(tmp_path / "checkpoint")
    writer = windows.writeStream.format("noop").option("checkpointLocation", place)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    explanation = explain_checkpoint(place, spark)
    (found,) = explanation.state
    minute = 60_000_000
    first = parse_instant(NOON) + minute
    assert (found.operator, found.is_window) == ("0 stateStoreSave", True)
    assert found.due[:2] == ((first, 1), (first + minute, 1))
    (operator,) = json.loads(query.lastProgress.json)["stateOperators"]
    assert found.rows == len(found.due) == operator["numRowsTotal"]
    assert "   1 row waits for a CTI at 2024-01-01T12:01:00Z" in str(explanation)
    assert f"State of operator 0 stateStoreSave: {found.rows} rows" in str(explain_time(query))
