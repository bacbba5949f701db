"""Options of CTIs, and the columns of CTIs in rows to write."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tseries.builders import new_store

from pyspark_timestream import OptionError
from pyspark_tseries import IncompatibleValue, TimeSeries, UpdateFailed
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.options import SubscribeOptions, WriteOptions, parse_options
from pyspark_tseries.write.rows import plan_rows, split_ctis

ROWS = pa.schema([("series", pa.string()), ("value", pa.float64()), ("cti", INSTANT)])


@pytest.mark.parametrize(
    ("text", "column"), [("true", "cti"), ("False", ""), ("when", "when"), ("TRUE", "cti")]
)
def test_option_cti_is_a_boolean_or_a_name(text, column):
    assert parse_options(SubscribeOptions, {"path": "/s", "cti": text}).cti == column


@pytest.mark.parametrize("text", ["-1 second", "soon", "600000 weeks"])
def test_delay_that_is_no_duration_from_zero_on_is_refused(text):
    with pytest.raises(OptionError, match="'ctiDelay': cannot read"):
        parse_options(WriteOptions, {"path": "/s", "ctiDelay": text})


def test_timestamp_column_cti_has_ctis_unless_the_store_has_such_a_value():
    options = parse_options(WriteOptions, {"path": "/s"})
    assert plan_rows(ROWS, options, None).cti == "cti"
    stored = [pa.field("value", pa.float64()), pa.field("cti", INSTANT)]
    assert plan_rows(ROWS, options, stored).cti is None
    text = ROWS.set(2, pa.field("cti", pa.string()))
    assert plan_rows(text, options, None).cti is None
    with pytest.raises(IncompatibleValue, match="ctiColumn"):
        plan_rows(text, parse_options(WriteOptions, {"path": "/s", "ctiColumn": "cti"}), None)
    with pytest.raises(OptionError, match="no column 'mark'"):
        plan_rows(ROWS, parse_options(WriteOptions, {"path": "/s", "ctiColumn": "mark"}), None)


def test_rows_with_a_cti_are_split_off_and_the_greatest_counts():
    plan = plan_rows(ROWS, parse_options(WriteOptions, {"path": "/s"}), None)
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
    plan = plan_rows(ROWS, parse_options(WriteOptions, {"path": "/s"}), None)
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
