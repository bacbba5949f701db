"""The CTI that a query's batches commit with, and what its users are told of it."""

import threading

import pytest
from pyspark.sql.types import StructType
from tseries.spark_calls import ROWS, Query

from pyspark_tseries import DefaultSource, TimeSeries
from pyspark_tseries.spark import writer

FINAL_MS = 253_402_300_799_000


def test_watermark_minus_the_delay_is_committed_with_each_batch(tmp_path):
    query = Query(tmp_path, ctiDelay="1 second")
    query.commit(0, ("a", 0, 1))
    assert query.cti() is None
    query.commit(1, ("a", 5_000_000, 1), watermark_ms=5000)
    assert query.cti() == 4000
    query.commit(2, watermark_ms=9000)
    assert (query.cti(), TimeSeries.open(query.store).describe()["last_commit"]) == (8000, 2)


def test_batch_without_rows_and_news_makes_no_commit(tmp_path):
    query = Query(tmp_path, ctiDelay="0 seconds")
    query.commit(0, ("a", 0, 1), watermark_ms=3)
    for number in (1, 2):
        query.commit(number, watermark_ms=3)
    query.commit(3, watermark_ms=2)
    assert (query.cti(), TimeSeries.open(query.store).describe()["last_commit"]) == (3, 0)


def test_replayed_batch_is_stored_once_and_keeps_its_cti(tmp_path):
    query = Query(tmp_path, ctiDelay="0 seconds")
    for _ in range(2):
        query.commit(0, ("a", 10_000, 1), watermark_ms=3)
    for _ in range(2):
        query.commit(1, watermark_ms=7)
    facts = TimeSeries.open(query.store).describe()
    assert (query.cti(), facts["events"], facts["last_commit"]) == (7, 1, 1)


def test_final_watermark_is_a_final_cti_whatever_the_delay(tmp_path):
    query, other = (
        Query(tmp_path, ctiDelay="1 hour"),
        Query(tmp_path, "other", ctiDelay="0 seconds"),
    )
    query.commit(0, ("a", 0, 1), watermark_ms=FINAL_MS)
    assert query.cti() == FINAL_MS
    with pytest.raises(Exception, match="before the store's CTI"):
        other.commit(0, ("b", 0, 1), watermark_ms=5)


def test_writer_that_has_ended_holds_nobody_back(tmp_path):
    query, other = (
        Query(tmp_path, ctiDelay="0 seconds"),
        Query(tmp_path, "other", ctiDelay="1 second"),
    )
    other.commit(0, ("b", 0, 1))
    query.commit(0, ("a", 0, 1), watermark_ms=FINAL_MS)
    assert query.cti() is None
    other.commit(1, watermark_ms=5000)
    assert query.cti() == 4000
    other.commit(2, watermark_ms=FINAL_MS)
    assert query.cti() == FINAL_MS


def test_query_is_a_writer_from_its_first_batch_on_though_that_is_empty(tmp_path):
    ended = Query(tmp_path, ctiDelay="0 seconds")
    slow = Query(tmp_path, "slow", ctiDelay="1 second")
    ended.commit(0, ("a", 0, 1))
    for _ in range(2):  # As after a kill before Spark's note of the batch.
        slow.commit(0)
    ended.commit(1, watermark_ms=FINAL_MS)
    assert (ended.cti(), ended.writers()["query slow"]) == (None, None)
    slow.commit(1)
    slow.commit(2, ("b", 5_000_000, 1), watermark_ms=7_000)
    assert ended.cti() == 6_000
    assert TimeSeries.open(ended.store).describe()["last_commit"] == 3


def test_query_of_edits_holds_no_cti_back(tmp_path):
    query = Query(tmp_path, ctiDelay="0 seconds")
    edits = Query(tmp_path, "edits", StructType([*ROWS]).add("edit_of", "long"))
    query.commit(0, ("a", 0, 1), watermark_ms=3)
    edits.commit(0)
    query.commit(1, watermark_ms=5)
    assert (query.cti(), set(query.writers())) == (5, {"query q"})


def test_query_without_delay_and_column_gives_no_cti(tmp_path):
    query = Query(tmp_path)
    query.commit(0, ("a", 0, 1), watermark_ms=7)
    assert (query.cti(), query.writers()) == (None, {"query q": None})


def test_column_of_ctis_counts_before_the_watermark(tmp_path):
    query = Query(tmp_path, schema=StructType([*ROWS, *StructType().add("cti", "timestamp")]))
    query.commit(0, ("a", 9_000, 1), watermark_ms=7, cti_us=2_000)
    assert query.cti() == 2
    query.commit(1, watermark_ms=8)
    assert query.cti() == 2


def test_unreadable_checkpoint_gives_no_cti_and_is_told_once(tmp_path, caplog):
    query = Query(tmp_path, "elsewhere", ctiDelay="0 seconds")
    query.options["checkpointLocation"] = "s3a://bucket/checkpoint"
    for number in range(2):
        query.commit(number, ("a", 0, 1), watermark_ms=7)
    (told,) = [each for each in caplog.records if "no effect" in each.getMessage()]
    assert "checkpoint" in told.getMessage()
    assert query.cti() is None


def test_unreadable_entry_gives_no_cti_is_told_once_and_a_later_one_counts(tmp_path, caplog):
    query = Query(tmp_path, "torn", ctiDelay="0 seconds")
    for number in range(2):
        query.commit(number, ("a", 9_000, 1), watermark_ms=None)
    (told,) = [each for each in caplog.records if "without a CTI" in each.getMessage()]
    assert f"offsets/{0}'" in told.getMessage()
    assert "next step: see to it that the driver can read the checkpoint" in told.getMessage()
    assert query.cti() is None
    query.commit(2, watermark_ms=7)
    assert query.cti() == 7


def test_two_threads_of_a_query_that_warn_of_the_same_warn_once(monkeypatch, caplog):
    def warn():
        writer._warn_once("query", "about", "%s has no effect")

    class Told(dict):
        """The first thread that asks lets a second one in."""

        def setdefault(self, key, call):
            if not second.ident:
                second.start()
                second.join()
            return super().setdefault(key, call)

    second = threading.Thread(target=warn)
    monkeypatch.setattr(writer, "_warned", Told())
    warn()
    second.join()
    assert [each.getMessage() for each in caplog.records] == ["query has no effect"]


def test_subscriber_is_told_once_of_writers_without_ctis(tmp_path, caplog):
    query = Query(tmp_path)
    query.commit(0, ("a", 0, 1))
    source = DefaultSource({"path": query.store, "cti": "true"})
    reader = source.streamReader(source.schema())
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    query.commit(1, ("a", 1, 1))
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (start["commit"], end["commit"], end["cti"]) == (0, 1, None)
    told = [each for each in caplog.records if "gives no CTIs" in each.getMessage()]
    assert len(told) == 1
    assert "'query q'" in told[0].getMessage()
    report = reader.reportLatestOffset()
    assert (report["cti"], report["ctiHeldBackBy"]) == (None, ["query q"])


def test_cti_is_the_last_task_of_its_batch_also_on_replay(tmp_path):
    query = Query(tmp_path, ctiDelay="0 seconds")
    query.commit(0, ("a", 9_000_000, 1), watermark_ms=5)
    source = DefaultSource({"path": query.store, "cti": "true"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    query.commit(1, ("a", 9_000_000, 2), watermark_ms=8)
    for again in (reader, source.streamReader(source.schema())):
        tasks = again.partitions(start, end)
        rows = [row for task in tasks for part in again.read(task) for row in part.to_pylist()]
        assert [(row["value"], row["cti"] and row["cti"].microsecond) for row in rows] == [
            (1.0, None),
            (None, 5000),
        ]
    later = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert (later["cti"], later["version"]) == (8000, 1)
