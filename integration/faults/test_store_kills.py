"""A store survives SIGKILL at any moment of writing, compacting, checkpointing and cleaning."""

from __future__ import annotations

import collections
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import store_writer
from deltalake import DeltaTable
from lengths import repetitions
from store_writer import KEPT, PHASES, SERIES, VALUE
from tseries.builders import forget_stores
from tseries.object_store import Bucket, bucket  # noqa: F401 a fixture

from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.store.store import Store

KILLS = int(os.environ.get("STORE_KILLS", repetitions(10, 25)))
KILLS_AFAR = 4


@pytest.mark.timeout(30 * KILLS)
def test_nothing_acknowledged_is_lost_or_doubled_at_any_kill(tmp_path: Path) -> None:
    hit = survive(parse_location(tmp_path / "store"), tmp_path, KILLS)
    print(f"kills by phase: {dict(hit)}")
    assert sum(hit.values()) == KILLS
    assert set(hit) == set(PHASES)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_or_doubled_at_a_kill_of_a_writer_to_s3(
    bucket: Bucket,  # noqa: F811 the fixture
    tmp_path: Path,
) -> None:
    assert survive(parse_location(bucket.uri("kills"), bucket.options), tmp_path, KILLS_AFAR)


def survive(location: Location, directory: Path, kills: int) -> collections.Counter[str]:
    """Kills a writer again and again, checks the store each time; how often in which phase."""
    acknowledged, died = directory / "acknowledged", directory / "died"
    Store.create(location, [VALUE], RetainedRange(limit=KEPT), min_retention_us=0)
    removed = compacted = 0
    for kill, phase in zip(range(kills), itertools.cycle(PHASES), strict=False):
        run_and_kill(location, acknowledged, phase, died)
        forget_stores()
        assert verify(location) == [], f"after kill {kill}, in phase {phase}"
        stored = check(location, promised(acknowledged), kills)
        removed += stored > KEPT
        compacted += any(file.is_compacted for file in Store.open(location).snapshot().files)
    assert removed, "the store never grew beyond what it keeps"
    assert compacted, "no compaction ever came through"
    return collections.Counter(died.read_text().split())


def run_and_kill(location: Location, acknowledged: Path, phase: str, died: Path) -> None:
    """Runs the writer until it has killed itself in `phase`."""
    line = [
        sys.executable,
        store_writer.__file__,
        location.root,
        str(acknowledged),
        phase,
        str(died),
    ]
    environment = {**os.environ, "STORAGE": json.dumps(location.storage_options or {})}
    done = subprocess.run(line, env=environment, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, "the writer ended by itself"


def promised(acknowledged: Path) -> int:
    """How many batches the writer was told are stored; each is one byte."""
    return acknowledged.stat().st_size if acknowledged.exists() else 0


def check(location: Location, promised: int, kills: int) -> int:
    """The number of batches in the store; each is there once and whole."""
    head = Store.open(location).index()
    last = {int(number) for number in head.lookup(SERIES)["last_sequence"]}
    assert len(last) == 1, "a batch is there in part"
    stored = last.pop() + 1
    assert promised <= stored <= promised + kills
    table = DeltaTable(location.uri, storage_options=location.storage_options).to_pyarrow_table()
    assert table["sequence"].to_pylist() == table["value"].to_pylist()
    kept = {(row["series"], row["sequence"]) for row in table.to_pylist()}
    wanted = {(name, n) for name in SERIES for n in range(max(0, stored - KEPT), stored)}
    assert kept >= wanted
    return stored
