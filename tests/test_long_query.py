"""The long run's devices report everything once, and a store that lacks a report is refused."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from long_producer import DEVICES, LATEST, START_S, arriving
from long_query import check

from pyspark_tseries import TimeSeries


def test_each_report_comes_once_and_not_too_late() -> None:
    come = [(tick, report, device) for tick in range(200) for device, report in arriving(tick)]
    assert all(0 <= tick - report <= LATEST for tick, report, _ in come)
    counted = Counter((report, device) for _, report, device in come)
    assert set(counted.values()) == {1}
    assert {key for key in counted if key[0] < 190} == {
        (report, device) for report in range(190) for device in range(DEVICES)
    }


def test_a_store_that_lacks_a_report_is_refused(tmp_path: Path) -> None:
    columns = {"reports": pa.int64(), "most": pa.float64()}
    store = TimeSeries.create(tmp_path / "store", columns, "last 12H")
    store.append_many(minutes(0, 20, 6))
    assert check(tmp_path / "store")["events in the store"] == 20 * DEVICES
    store.append_many(minutes(20, 21, 5))
    with pytest.raises(SystemExit, match=f"'minutes without all reports': {DEVICES}, "):
        check(tmp_path / "store")


def minutes(first: int, end: int, reports: int) -> pa.Table:
    pairs = [(minute, device) for minute in range(first, end) for device in range(DEVICES)]
    return pa.table(
        {
            "series": [f"d{device:02d}" for _, device in pairs],
            "timestamp": pa.array(
                [(START_S + minute * 60) * 1_000_000 for minute, _ in pairs],
                pa.timestamp("us", "UTC"),
            ),
            "reports": [reports] * len(pairs),
            "most": [1.0] * len(pairs),
        }
    )
