"""Appends, edits, retained ranges, permissions through Spark: the conformance cases by number."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tseries.write_cases import WRITE_CASES, Edit, WriteCase

from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.maintain.verify import verify

pytestmark = pytest.mark.timeout(600)

COLUMNS = "series string, timestamp timestamp, edit_of bigint, value double"


def frame(spark: SparkSession, rows: Iterable[tuple[str, int | Edit | None]]) -> DataFrame:
    """Rows (series, milliseconds, an edit, or None), in one task."""
    plain = [
        (name, None, row.of) if isinstance(row, Edit) else (name, row, None) for name, row in rows
    ]
    given = spark.createDataFrame(plain, "series string, ms bigint, edit_of bigint").coalesce(1)
    return given.selectExpr(
        "series", "timestamp_millis(ms) AS timestamp", "edit_of", "1.0D AS value"
    )


def append(rows: DataFrame, store: Path, **options: str) -> None:
    rows.write.format("tseries").mode("append").options(**options).save(str(store))


def shown(spark: SparkSession, store: Path, **options: str) -> dict[str, str]:
    """The events of each series, as in the cases."""
    found: dict[str, list[str]] = {}
    frame = spark.read.format("tseries").options(**options).load(str(store))
    for name, sequence, original in frame.select(
        "series", "sequence", "original_sequence"
    ).collect():
        text = str(sequence) if original is None else f"{sequence}>{original}"
        found.setdefault(name, []).append(text)
    return {name: " ".join(events) for name, events in found.items()}


RANGES = list(dict.fromkeys(case.retained for case in WRITE_CASES))


@pytest.mark.parametrize("retained", RANGES)
def test_the_cases_of_a_retained_range_through_the_sink(
    spark: SparkSession, tmp_path: Path, retained: str | None
) -> None:
    """The cases are series of one store; those of the same turn are one batch."""
    cases = {case.number: case for case in WRITE_CASES if case.retained == retained}
    store, options = tmp_path / "s", {} if retained is None else {"retainedRange": retained}
    for turn in itertools.zip_longest(*(case.stored for case in cases.values())):
        both = zip(cases, turn, strict=True)
        rows = [(number, row) for number, batch in both for row in batch or ()]
        append(frame(spark, rows), store, **options)
    before = describe(str(store))["events"]
    for number, case in cases.items():
        if case.fails:
            fails(spark, store, number, case)
    assert shown(spark, store) == {number: case.expected for number, case in cases.items()}
    assert describe(str(store))["events"] == before
    assert verify(str(store)) == []


def fails(spark: SparkSession, store: Path, number: str, case: WriteCase) -> None:
    # With a row that would be stored without the others: nothing of the batch may be.
    rows = [*((number, row) for row in case.batches[-1]), ("another", None)]
    with pytest.raises(PySparkException, match=f"'{number}'.*({case.fails})"):
        append(frame(spark, rows), store)


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one series `s`: 0, 1, and 2 that edits 0; it keeps 3."""
    store = tmp_path_factory.mktemp("plain") / "s"
    append(frame(spark, [("s", 0), ("s", 1), ("s", Edit(0))]), store, retainedRange="limit 3")
    return store


def test_w12_w13_w17_rows_that_do_not_fit_are_refused_and_create_nothing(
    spark: SparkSession, plain: Path, tmp_path: Path
) -> None:
    refused = {
        "SELECT 's' AS series, 'text' AS value": "'value' is of type string",
        "SELECT 's' AS series, 0L AS edit_of, now() AS timestamp, 1D AS value": "has a timestamp",
    }
    for rows, said in refused.items():
        with pytest.raises(PySparkException, match=said):
            append(spark.sql(rows), plain)
    with pytest.raises(PySparkException, match="'value' is of type void"):
        append(spark.sql("SELECT 's' AS series, null AS value"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert describe(str(plain))["events"] == 3


def test_r17_r19_r20_r21_a_range_is_set_once_and_readers_do_not_widen_it(
    spark: SparkSession, plain: Path, tmp_path: Path
) -> None:
    for wrong in ("last 5", "limit five"):
        with pytest.raises(PySparkException, match="retainedRange"):
            append(frame(spark, [("s", 0)]), tmp_path / "new", retainedRange=wrong)
    assert not (tmp_path / "new").exists()
    with pytest.raises(PySparkException, match=r"'limit 9'.*'limit 3'"):
        append(frame(spark, [("s", 5)]), plain, retainedRange="limit 9")
    with pytest.raises(PySparkException, match=r"retainedRange.*belongs to writes"):
        shown(spark, plain, retainedRange="limit 9")
    assert describe(str(plain))["events"] == 3
    assert shown(spark, plain, query="allEdits") == {"s": "0 1 2>0"}


@pytest.mark.outside_ci
def test_q33_q34_q36_what_is_no_range_of_a_query_is_refused(
    spark: SparkSession, plain: Path
) -> None:
    assert shown(spark, plain, limit="0") == {}
    for name in ("from", "editTo"):
        with pytest.raises(PySparkException, match=f"option '{name}'.*accepted"):
            shown(spark, plain, **{name: "sequence -1"})
    with pytest.raises(PySparkException, match="option 'limit'"):
        shown(spark, plain, limit="-1")
    assert shown(spark, plain, **{"from": "1960-01-01T00:00:00Z"}) == {"s": "2>0 1"}
    wrong = spark.read.schema("series string, value string").format("tseries").load(str(plain))
    with pytest.raises(PySparkException, match="'value' is asked for as string"):
        wrong.collect()


POLICY = {
    "owner": ["read", "update", "edit", "query_obsolete"],
    "author": ["update", "edit_own"],
    "reader": ["read"],
}


@pytest.mark.outside_ci
def test_w16_q37_a_session_does_what_its_principal_may_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "s"
    TimeSeries.create(store, {"value": pa.float64()}, "limit 9", author="owner", policy=POLICY)

    def write(principal: str, *rows: int | Edit | None) -> None:
        append(frame(spark, [("s", row) for row in rows]), store, principal=principal)

    def denied(said: str, action: object, *given: object, **options: str) -> None:
        assert callable(action)
        with pytest.raises(PySparkException, match=f"PermissionDenied.*{said}"):
            action(*given, **options)

    write("owner", 0)
    write("author", 1, Edit(1))
    denied("'author' may not edit an event of 'owner'", write, "author", Edit(0))
    for principal in ("reader", "stranger"):
        denied("'update'", write, principal, 2)
    write("owner", Edit(1))
    assert shown(spark, store, principal="reader") == {"s": "0 3>1"}
    denied("'read'", shown, spark, store, principal="author")
    obsolete = [{"query": "allEdits"}, {"editFrom": "sequence 1"}, {"asOf": "2999-01-01T00:00:00Z"}]
    for options in obsolete:
        denied("'query_obsolete'", shown, spark, store, principal="reader", **options)
    assert shown(spark, store, principal="owner", query="allEdits") == {"s": "0 1 2>1 3>1"}
    denied("the name of 'owner'", append, frame(spark, [("s", 9)]), store, principal="author",
           author="owner")  # fmt: skip

    def follow(number: int, **options: str) -> list[int]:
        rows = spark.readStream.format("tseries").options(**options).load(str(store))
        query = rows.writeStream.format("memory").queryName(f"permissions_{number}")
        query.trigger(availableNow=True).start().awaitTermination()
        return sorted(row.sequence for row in spark.table(f"permissions_{number}").collect())

    assert follow(0, principal="reader") == [3]
    denied("'read'", follow, 1, principal="author")
    known = {"startingSequence": '{"s": 1}'}
    denied("'query_obsolete'", follow, 2, principal="reader", **known)
    assert follow(3, principal="owner", **known) == [1, 2, 3]
    assert describe(str(store))["events"] == 4
    assert verify(str(store)) == []
