"""A stream of record batches has the rows of the whole result, in bounded memory."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from lengths import outside_ci

from pyspark_tseries import InvalidQuery, TimeSeries
from pyspark_tseries.read import scan


def at(second):
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


@pytest.fixture(params=["unlimited", "limit 40", "last 20S"])
def store(request, tmp_path):
    """Series of 1, 60 and 5 events in several files, with edits and an erased event."""
    store = TimeSeries.create(
        tmp_path / "s", {"v": pa.int64()}, request.param, "me", auto_compact=False
    )
    sizes = {"a": 1, "b": 60, "c": 5}
    for first in range(0, 60, 20):
        rows = [
            {"series": name, "timestamp": at(second), "v": second}
            for name, size in sizes.items()
            for second in range(first, min(first + 20, size))
        ]
        store.append_many(rows)
    for sequence in (45, 50, 50):
        store.edit("b", sequence, -sequence)
    store.erase("b", 59, "a test")
    return store


QUERIES = {
    "all": lambda query: query,
    "from a time": lambda query: query.from_(at(30)),
    "between times": lambda query: query.from_(at(55)).to(at(20)),
    "to a time": lambda query: query.to(at(48)),
    "from a sequence": lambda query: query.from_(41),
    "to a sequence": lambda query: query.to(47),
    "last seconds": lambda query: query.from_last(timedelta(seconds=12)),
    "last events": lambda query: query.from_last(7),
    "next of a time": lambda query: query.from_(at(42)).next(3),
    "limited": lambda query: query.limit(3),
    "edited since": lambda query: query.edit_range().from_(60),
    "all edits": lambda query: query.for_edits(),
    "latest edits": lambda query: query.for_edits().latest_edits(),
    "columns": lambda query: query.columns("v", "series"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("part_bytes", "chosen"), [(3000, {"series": ["b", "x"]}), *outside_ci((1, {}))]
)
def test_a_stream_has_the_rows_of_the_whole_result(store, monkeypatch, part_bytes, chosen):
    monkeypatch.setattr(scan, "PART_BYTES", part_bytes)
    for name, narrow in QUERIES.items():
        query = narrow(store.range_query())
        whole = query.select_from(**chosen).to_arrow()
        assert query.stream_from(**chosen).read_all().equals(whole.cast(whole.schema)), name


def test_a_stream_is_of_the_commit_at_which_it_was_asked_for(store):
    reader = store.range_query().stream_from()
    before = store.range_query().select_from().to_arrow()
    store.append("a", 1, at(99))
    assert reader.read_all().equals(before)


def test_a_wrong_stream_is_refused_at_once(store):
    with pytest.raises(InvalidQuery, match="column 'nothing'"):
        store.range_query().columns("nothing").stream_from()
    with pytest.raises(InvalidQuery, match="at the same time"):
        store.range_query().stream_from("a", prefix="b")


LIMITED = """
import resource, sys
from pyspark_tseries import TimeSeries
from pyspark_tseries.read import scan
scan.PART_BYTES = 2**20
store = TimeSeries.open(sys.argv[1])
sum(batch.num_rows for batch in store.range_query().limit(1).stream_from())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(batch.num_rows for batch in store.range_query().stream_from()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_a_stream_of_one_large_series_needs_a_part_of_its_memory(tmp_path):
    store = TimeSeries.create(tmp_path / "s", {"note": pa.string()}, "unlimited", "me")
    rows = 400_000
    times = pa.array(range(rows), pa.int64()).cast(pa.timestamp("us", "UTC"))
    notes = pa.array([f"{n:0200d}" for n in range(rows)])
    store.append_many(pa.table({"series": ["a"] * rows, "timestamp": times, "note": notes}))
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "s")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert int(said[0]) == rows
    assert int(said[1]) * 1024 < notes.nbytes / 2


BUCKETS = """
import resource, sys
from pyspark_tseries import TimeSeries
from pyspark_tseries.storage import row_reader
row_reader.ROWS_PER_PIECE = 20_000
store = TimeSeries.open(sys.argv[1])
named = {f"c{n}": "mean" for n in range(16)}
query = store.range_query().every("1 day").aggregate(n=("*", "count"), **named)
query.fill().select_from("b")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(query.select_from("a").to_arrow()["n"].to_pylist()))
print(sum(query.by("room").select_from().to_arrow()["n"].to_pylist()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.thorough
def test_buckets_of_one_large_series_need_a_part_of_its_memory(tmp_path):
    rows, named = 300_000, [f"c{n}" for n in range(16)]
    values = {"room": pa.string(), **dict.fromkeys(named, pa.float64())}
    store = TimeSeries.create(tmp_path / "s", values, "unlimited", "me")
    times = pa.array(np.arange(rows) * 10**6).cast(pa.timestamp("us", "UTC"))
    texts = {"series": pa.repeat(pa.scalar("a"), rows), "room": pa.repeat(pa.scalar("x"), rows)}
    numbers = dict.fromkeys(named, pa.array(np.arange(rows) / 7))
    events = pa.table({"timestamp": times, **texts, **numbers})
    store.append_many(events)
    store.append("b", {"c0": 1.0})
    command = [sys.executable, "-c", BUCKETS, str(tmp_path / "s")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said[:2] == [str(rows), str(rows + 1)]
    assert int(said[2]) * 1024 < events.select(named).nbytes / 2
