"""Options of CTIs, the columns of CTIs in rows to write, and the watermark in a checkpoint."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tseries.builders import new_store

from pyspark_timestream import OptionError
from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.core.session import read_batch_watermark
from pyspark_tseries import IncompatibleValue, TimeSeries, UpdateFailed
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.options import parse_subscribe, parse_write
from pyspark_tseries.write.rows import plan_rows, split_ctis

ROWS = pa.schema([("series", pa.string()), ("value", pa.float64()), ("cti", INSTANT)])


@pytest.mark.parametrize(
    ("text", "column"), [("true", "cti"), ("False", ""), ("when", "when"), ("TRUE", "cti")]
)
def test_option_cti_is_a_boolean_or_a_name(text, column):
    assert parse_subscribe({"path": "/s", "cti": text}).cti == column


@pytest.mark.parametrize("text", ["-1 second", "soon", "600000 weeks"])
def test_delay_that_is_no_duration_from_zero_on_is_refused(text):
    with pytest.raises(OptionError, match="'ctiDelay': cannot read"):
        parse_write({"path": "/s", "ctiDelay": text})


def test_timestamp_column_cti_has_ctis_unless_the_store_has_such_a_value():
    options = parse_write({"path": "/s"})
    assert plan_rows(ROWS, options, None).cti == "cti"
    stored = [pa.field("value", pa.float64()), pa.field("cti", INSTANT)]
    assert plan_rows(ROWS, options, stored).cti is None
    text = ROWS.set(2, pa.field("cti", pa.string()))
    assert plan_rows(text, options, None).cti is None
    with pytest.raises(IncompatibleValue, match="ctiColumn"):
        plan_rows(text, parse_write({"path": "/s", "ctiColumn": "cti"}), None)
    with pytest.raises(OptionError, match="no column 'mark'"):
        plan_rows(ROWS, parse_write({"path": "/s", "ctiColumn": "mark"}), None)


def test_rows_with_a_cti_are_split_off_and_the_greatest_counts():
    plan = plan_rows(ROWS, parse_write({"path": "/s"}), None)
    rows = pa.RecordBatch.from_pylist(
        [
            {"series": "a", "value": 1.0, "cti": None},
            {"cti": 7},
            {"cti": 5},
        ],
        schema=pa.schema([ROWS.field(0), ROWS.field(1), pa.field("cti", pa.int64())]),
    )
    rows = rows.set_column(2, "cti", rows["cti"].cast(INSTANT))
    kept, cti_us = split_ctis(rows, plan)
    assert (kept["series"].to_pylist(), cti_us) == (["a"], 7)
    assert split_ctis(kept, plan) == (kept, None)


@pytest.mark.parametrize(("other", "given"), [("series", "a"), ("value", 1.0)])
def test_row_that_has_more_than_a_cti_is_refused_and_not_lost(other, given):
    plan = plan_rows(ROWS, parse_write({"path": "/s"}), None)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"series": "a", "value": 1.0}, {"cti": moment}, {"cti": moment, other: given}]
    batch = pa.RecordBatch.from_pylist(rows, schema=ROWS)
    with pytest.raises(UpdateFailed, match=f"'cti', 2026-01-01T00:00:00Z, has .*'{other}'"):
        split_ctis(batch, plan)


def test_client_takes_no_ctis(tmp_path):
    new_store(tmp_path / "s")
    table = pa.table({"series": ["a"], "value": [1.0], "cti": pa.array([1]).cast(INSTANT)})
    with pytest.raises(IncompatibleValue, match="only a streaming query"):
        TimeSeries.open(tmp_path / "s").append_many(table)
    with pytest.raises(IncompatibleValue, match="'cti'"):
        TimeSeries.create(tmp_path / "t", {"cti": INSTANT})


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ('v1\n{"batchWatermarkMs":1500,"conf":{}}\n{}', 1_500_000),
        ('v2\n{"batchWatermarkMs":1500}\n{}', 1_500_000),
        (f'v1\n{{"batchWatermarkMs":{FINAL_US // 1000 - 1}}}\n{{}}', FINAL_US),
        ('v1\n{"batchWatermarkMs":0}\n{}', None),
    ],
)
def test_watermark_is_read_from_the_entry_of_the_batch(tmp_path, text, us):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(text)
    assert read_batch_watermark(tmp_path, 3) == us


@pytest.mark.parametrize(
    "text", ['v1\n{"batchWatermarkMs":"1"}\n', "v1\n{}\n", "v1\n[]\n", "v1\n{torn", "", None]
)
def test_unreadable_entry_of_a_batch_is_an_error(tmp_path, text):
    (tmp_path / "offsets").mkdir()
    if text is not None:
        (tmp_path / "offsets" / "3").write_text(text)
    with pytest.raises((OSError, ValueError)):
        read_batch_watermark(tmp_path, 3)
