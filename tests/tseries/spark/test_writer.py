"""What a write refuses before any task of it starts, and what it does after its commit."""

import time

import pytest
from pyspark.sql.types import StructType
from tseries.spark.test_writer_cti import Query

from pyspark_timestream import OptionError
from pyspark_tseries import DefaultSource, FutureEvent, TimeSeries
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.spark import writer
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store import store as stores

ROWS = StructType().add("series", "string").add("timestamp", "timestamp").add("value", "double")
HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
NUMBERED = {"txnAppId": "nightly", "txnVersion": "7", "retainedRange": "unlimited"}


def test_batch_number_in_a_streaming_write_is_refused_and_no_store_is_made(tmp_path):
    source = DefaultSource({"path": str(tmp_path / "s"), **NUMBERED})
    with pytest.raises(OptionError, match="'txnAppId': 'nightly' has no effect in a streaming"):
        source.streamWriter(ROWS, False)
    assert not (tmp_path / "s").exists()


def test_batch_number_in_a_batch_write_is_accepted(tmp_path):
    source = DefaultSource({"path": str(tmp_path / "s"), **NUMBERED})
    assert source.writer(ROWS, False) is not None


def test_commit_of_a_stream_is_read_before_the_next_batch_asks(tmp_path):
    query = Query(tmp_path)
    query.commit(0, ("a", 0, 1))
    store = stores._open_stores[parse_location(query.store)]
    deadline = time.monotonic() + 20
    while store.version() < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.version() == 1


def test_failed_refresh_after_a_commit_is_left_to_the_next_batch(tmp_path, monkeypatch):
    failed = []

    def fail(store):
        failed.append(store)
        raise UnusableStore("gone", "a store", "look")

    query = Query(tmp_path)
    query.commit(0, ("a", 0, 1))
    store = stores._open_stores[parse_location(query.store)]
    with monkeypatch.context() as patch:
        patch.setattr(stores.Store, "refresh", fail)
        writer._refresh(store)
    assert failed == [store]
    query.commit(1, ("a", 1, 2))
    assert TimeSeries.open(query.store).describe()["last_commit"] == 1


def test_stream_into_a_last_range_fails_at_a_timestamp_far_ahead_and_stores_nothing(tmp_path):
    query = Query(tmp_path, retainedRange="last 30D")
    query.commit(0, ("a", 1, 1))
    far_us = time.time_ns() // 1000 + 31 * DAY_US
    with pytest.raises(FutureEvent, match=r"'a'.* at most 30 days .*maxFuture.*futurePolicy"):
        query.commit(1, ("a", 2, 2), ("a", far_us, 3))
    assert TimeSeries.open(query.store).describe()["last_commit"] == 0
    query.options["maxFuture"] = "none"
    query.commit(1, ("a", 2, 2), ("a", far_us, 3))
    assert TimeSeries.open(query.store).describe()["events"] == 3


def test_stream_that_drops_rows_far_ahead_counts_them_and_says_so_once(tmp_path, caplog):
    options = {"maxFuture": "1 hour", "futurePolicy": "drop", "ctiDelay": "0 seconds"}
    query = Query(tmp_path, "far", **options)
    far_us = time.time_ns() // 1000 + 2 * HOUR_US
    query.commit(0, ("a", 1, 1), ("b", far_us, 3), watermark_ms=0)
    query.commit(1, ("a", 2, 2), ("b", far_us, 3), ("c", far_us, 3), watermark_ms=0)
    said = TimeSeries.open(query.store).describe()
    assert (said["events"], said["series"], said["future"]) == (2, 1, 3)
    assert said["last_future"]["series"] == "b"
    told = [record.getMessage() for record in caplog.records if "maxFuture" in record.getMessage()]
    assert len(told) == 1
    assert "query far: rows were left out" in told[0]
    assert "series 'b'" in told[0]
