"""Shared commits of several threads and processes survive SIGKILL: nothing is lost or doubled."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
import shared_writer
from deltalake import DeltaTable
from lengths import repetitions

from pyspark_tseries import TimeSeries

KILLS = repetitions(2, 25)
"""Of two writers each time."""
THREADS = 4


@pytest.mark.timeout(60 * KILLS)
def test_shared_commits_lose_and_double_no_event_at_any_kill(tmp_path: Path) -> None:
    store, acknowledged = tmp_path / "store", tmp_path / "acknowledged"
    series = TimeSeries.create(store, {"value": pa.string()}, "unlimited", "me")
    for turn in range(KILLS):
        kill_writers(store, acknowledged, turn)
        check(store, acknowledged.read_text().splitlines())
        assert series.verify() == [], f"after round {turn}"
    commits = series.describe()["last_commit"] + 1
    assert commits < series.describe()["events"], "some commits were shared"


def kill_writers(store: Path, acknowledged: Path, turn: int) -> None:
    """Start two writers, and kill each a random while after both have begun to append."""
    begun = acknowledged.stat().st_size if acknowledged.exists() else 0
    line = [sys.executable, shared_writer.__file__, str(store), str(acknowledged)]
    names = [f"w{turn}.{number}" for number in range(2)]
    writers = [subprocess.Popen([*line, name, str(THREADS)]) for name in names]
    try:
        end = time.monotonic() + 50
        while not all(f" {name}-" in noted_since(acknowledged, begun) for name in names):
            assert time.monotonic() < end, "a writer appends nothing"
            assert [writer.poll() for writer in writers] == [None, None]
            time.sleep(0.02)
        for writer in writers:
            time.sleep(random.uniform(0, 0.5))
            writer.kill()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def noted_since(acknowledged: Path, begun: int) -> str:
    return acknowledged.read_bytes()[begun:].decode() if acknowledged.exists() else ""


def check(store: Path, notes: list[str]) -> None:
    """Every acknowledged event is there once, as it was acknowledged, and no late one is."""
    table = DeltaTable(str(store)).to_pyarrow_table(columns=["series", "sequence", "value"])
    rows = Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert set(rows.values()) == {1}
    assert len({(name, value) for name, _, value in rows}) == len(rows), "an event is there twice"
    assert not any(value.startswith("late") for _, _, value in rows)
    assert "refused" in notes
    for note in notes:
        if note != "refused":
            name, sequence, value = note.split(" ", 2)
            assert rows[(name, int(sequence), value)] == 1, note
    for name in {name for name, _, _ in rows}:
        numbers = sorted(sequence for each, sequence, _ in rows if each == name)
        assert numbers == list(range(len(numbers)))
