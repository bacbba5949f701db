"""A rollup with killed and simultaneous runs has each bucket and each correction once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import rolling
from lengths import repetitions

from pyspark_tseries import TimeSeries

KILLS = repetitions(6, 60)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SERIES = [f"s{number}" for number in range(6)]
STEP = timedelta(seconds=15)


@pytest.mark.outside_ci
@pytest.mark.timeout(60 + 30 * KILLS)
def test_a_rollup_has_each_bucket_and_each_correction_once_at_any_kill(tmp_path: Path) -> None:
    source = TimeSeries.create(tmp_path / "source", {"value": pa.float64()}, "unlimited", "carl")
    chance, number = random.Random(), 0
    number = append(source, number, 400)
    for turn in range(KILLS):
        with rollers(tmp_path, 1 + turn % 2):
            end = time.monotonic() + chance.uniform(0, 1.5)
            while time.monotonic() < end:
                number = append(source, number, 8)
                edit(chance, source, number)
    done = source.rollup(tmp_path / "rollup", "1 minute", rolling.AGGREGATES)
    assert source.rollup(tmp_path / "rollup").covered == done.covered
    check(source, TimeSeries.open(tmp_path / "rollup"))


@contextmanager
def rollers(place: Path, count: int) -> Iterator[None]:
    """Processes that bring the rollup up to date; all have begun, and are killed at the end."""
    line = [sys.executable, rolling.__file__, str(place / "source"), str(place / "rollup")]
    begun = [place / f"begun-{number}" for number in range(count)]
    for path in begun:
        path.unlink(missing_ok=True)
    running = [subprocess.Popen([*line, str(path)]) for path in begun]
    try:
        end = time.monotonic() + 60
        while not all(path.exists() and path.stat().st_size for path in begun):
            assert time.monotonic() < end, "a process begins no run"
            time.sleep(0.02)
        yield
        assert [process.poll() for process in running] == [None] * count
    finally:
        for process in running:
            process.kill()
            process.wait()


def append(source: TimeSeries, first: int, count: int) -> int:
    """Append this many events to each series; return the number of the next one."""
    source.append_many(
        [
            {"series": name, "timestamp": BEGIN + number * STEP, "value": float(number % 7)}
            for number in range(first, first + count)
            for name in SERIES
        ],
        max_future=timedelta.max,
    )
    return first + count


def edit(chance: random.Random, source: TimeSeries, newest: int) -> None:
    """Edit the event of a time, which has another value then; the sequence is looked up."""
    name, at = chance.choice(SERIES), BEGIN + chance.randrange(newest) * STEP
    (event,) = source.range_query().from_(at).to(at).select_from(name).events
    original = event.sequence if event.original is None else event.original.sequence
    source.edit(name, original, chance.random())


def check(source: TimeSeries, rollup: TimeSeries) -> None:
    query = source.range_query().every("1 minute").aggregate(**rolling.AGGREGATES)
    wanted = query.select_from().to_arrow().to_pylist()
    newest = {row["series"]: row["timestamp"] for row in wanted}
    wanted = [row for row in wanted if row["timestamp"] < newest[row["series"]]]
    found = rollup.range_query().select_from().to_arrow().to_pylist()
    assert [{name: row[name] for name in wanted[0]} for row in found] == wanted
    edits = rollup.range_query().for_edits().select_from().to_arrow().to_pylist()
    reasons = [(row["series"], row["reason"]) for row in edits if row["reason"] is not None]
    assert len(reasons) == len(set(reasons)), "a change was told twice"
    assert all(row["author"] == "carl" for row in edits if row["reason"] is not None)
    assert rollup.verify() == []
