"""A store survives SIGKILL at any moment of writing, compacting, checkpointing and cleaning.

Run as a script it is the process that is killed: `STORE ACKNOWLEDGED`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pyspark_tseries import store as storage
from pyspark_tseries.attempts import Batch
from pyspark_tseries.compactor import merge_runs
from pyspark_tseries.inspection import verify
from pyspark_tseries.maintenance import clean
from pyspark_tseries.retention import RetainedRange
from pyspark_tseries.store import Store

KILLS = int(os.environ.get("STORE_KILLS", "25"))
SERIES = [f"s{i}" for i in range(5)]
KEPT = 10
VALUE = pa.field("value", pa.int64())


def rows(number: int) -> pa.Table:
    """An event for every series; what has the value n must get the sequence n."""
    size = len(SERIES)
    return pa.table(
        {
            "series": pa.array(SERIES),
            "timestamp": pa.array([number] * size).cast(pa.timestamp("us", "UTC")),
            "author": pa.nulls(size, pa.string()),
            "original_sequence": pa.nulls(size, pa.int64()),
            "value": pa.array([number] * size),
        }
    )


@pytest.mark.timeout(24 * KILLS)
def test_nothing_acknowledged_is_lost_or_doubled_at_any_kill(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "store", tmp_path / "acknowledged"
    chance = random.Random(7)
    Store.create(str(path), [VALUE], RetainedRange(limit=KEPT), min_retention_us=0)
    removed = compacted = 0
    for kill in range(KILLS):
        run_and_kill(path, acknowledged, chance.uniform(0.0, 0.6))
        storage._OPEN.clear()
        assert verify(str(path)) == [], f"after kill {kill}"
        stored = check(path, promised(acknowledged))
        removed += stored > KEPT
        compacted += any(file.merged for file in Store.open(str(path)).snapshot().files)
    assert removed, "the store never grew beyond what it keeps"
    assert compacted, "no compaction ever came through"


def run_and_kill(path: Path, acknowledged: Path, seconds: float) -> None:
    """Starts the writer, waits for its first acknowledgement and so long again, and kills it."""
    known = promised(acknowledged)
    line = [sys.executable, __file__, str(path), str(acknowledged)]
    with subprocess.Popen(line, start_new_session=True) as process:
        try:
            end = time.monotonic() + 120
            while promised(acknowledged) == known:
                assert process.poll() is None, "the writer ended by itself"
                assert time.monotonic() < end, "the writer wrote nothing in time"
                time.sleep(0.005)
            time.sleep(seconds)
            assert process.poll() is None, "the writer ended by itself"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def promised(acknowledged: Path) -> int:
    """How many batches the writer was told are stored; each is one byte."""
    return acknowledged.stat().st_size if acknowledged.exists() else 0


def check(path: Path, promised: int) -> int:
    """The number of batches in the store, each of which is there once and whole."""
    _, head = Store.open(str(path)).head()
    last = {int(number) for number in head.of(SERIES)["last_sequence"]}
    assert len(last) == 1, "a batch is there in part"
    stored = last.pop() + 1
    assert promised <= stored <= promised + KILLS
    table = DeltaTable(path).to_pyarrow_table()
    assert table["sequence"].to_pylist() == table["value"].to_pylist()
    kept = {(row["series"], row["sequence"]) for row in table.to_pylist()}
    wanted = {(name, n) for name in SERIES for n in range(max(0, stored - KEPT), stored)}
    assert kept >= wanted
    return stored


def main() -> None:
    """Appends batch after batch while another thread merges, checkpoints and cleans."""
    path, acknowledged = sys.argv[1:]
    store = Store.open(path)
    threading.Thread(target=upkeep, args=(store,), daemon=True).start()
    number = int(store.head()[1].of(SERIES[:1])["last_sequence"][0]) + 1
    # What was stored and not acknowledged when the last process was killed is stored for all that.
    with open(acknowledged, "ab", buffering=0) as file:
        file.write(b"." * (number - os.path.getsize(acknowledged)))
        while True:
            store.append(Batch(rows(number), "fail", "me", ("writer", number)))
            file.write(b".")
            number += 1


def upkeep(store: Store) -> None:
    while True:
        merge_runs(store, 2**60, everything=True)
        DeltaTable(store.root).create_checkpoint()
        # As if the hour of grace were 20 seconds, far longer than an append takes.
        clean(store, time.time_ns() // 1000 + 3_580_000_000)


if __name__ == "__main__":
    main()
