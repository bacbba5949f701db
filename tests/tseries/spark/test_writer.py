"""What a write refuses before any task of it starts."""

import pytest
from pyspark.sql.types import StructType

from pyspark_timestream import OptionError
from pyspark_tseries import DefaultSource

ROWS = StructType().add("series", "string").add("timestamp", "timestamp").add("value", "double")
NUMBERED = {"txnAppId": "nightly", "txnVersion": "7", "retainedRange": "unlimited"}


def test_batch_number_in_a_streaming_write_is_refused_and_no_store_is_made(tmp_path):
    source = DefaultSource({"path": str(tmp_path / "s"), **NUMBERED})
    with pytest.raises(OptionError, match="'txnAppId': 'nightly' has no effect in a streaming"):
        source.streamWriter(ROWS, False)
    assert not (tmp_path / "s").exists()


def test_batch_number_in_a_batch_write_is_accepted(tmp_path):
    source = DefaultSource({"path": str(tmp_path / "s"), **NUMBERED})
    assert source.writer(ROWS, False) is not None
