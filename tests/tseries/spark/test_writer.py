"""Refusals of a write before any of its tasks starts, and its work after the commit."""

import time

import pytest
from pyspark.sql.types import StructType
from tseries.spark_calls import Query

from pyspark_timestream import OptionError
from pyspark_tseries import DefaultSource, TimeSeries
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.spark import writer
from pyspark_tseries.store.store import Store

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
    store = Store.open(query.store)
    query.commit(1, ("a", 1, 2))
    deadline = time.monotonic() + 20
    while store.log.version() < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.log.version() == 2


def test_failed_refresh_after_a_commit_is_left_to_the_next_batch(tmp_path):
    class Gone:
        tried = 0

        def refresh(self):
            self.tried += 1
            raise UnusableStore("gone", "a store", "look")

    query, gone = Query(tmp_path), Gone()
    query.commit(0, ("a", 0, 1))
    writer.refresh_quietly(gone)
    assert gone.tried == 1
    query.commit(1, ("a", 1, 2))
    assert TimeSeries.open(query.store).describe()["last_commit"] == 1
