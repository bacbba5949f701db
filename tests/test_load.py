"""The benchmark of large sizes tells the peak of each process, and which bound is exceeded."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from load.__main__ import as_row, find_exceeded
from load.jobs import _tables
from load.sizes_promised import SIZES, Size
from memory import HighWater

SIZE = Size("{} things", 5_000, core_s=10, python_mb=300, jvm_mb=1600)
PEAKS = {"main": 100.4, "source": 250.0, "worker": 90.0, "driver": 1200.0}


def test_a_row_has_what_each_process_took_beside_its_bound() -> None:
    row = as_row(SIZE, {"seconds": 3.14, "batches": 3, "median s": 2.04}, PEAKS, 9.04)
    assert row == {
        "size": "5,000 things",
        "longest s": 3.1,
        "core s": 9.0,
        "at most core s": 10,
        "MB, program": 100,
        "MB, source": 250,
        "MB, worker": 90,
        "at most MB": 300,
        "MB, JVM": 1200,
        "at most MB, JVM": 1600,
        "more": "batches 3; median s 2.0",
    }
    assert find_exceeded(row) == []


@pytest.mark.parametrize(
    ("core_s", "peaks", "said"),
    [
        (11.0, PEAKS, "5,000 things: 11.0 core s, at most 10 are promised"),
        (
            1.0,
            PEAKS | {"worker": 301.0},
            "5,000 things: 301 MB of Python, at most 300 are promised",
        ),
        (
            1.0,
            PEAKS | {"driver": 1700.0},
            "5,000 things: 1700 MB of the JVM, at most 1600 are promised",
        ),
    ],
)
def test_each_bound_that_is_exceeded_is_told(
    core_s: float, peaks: dict[str, float], said: str
) -> None:
    assert find_exceeded(as_row(SIZE, {"seconds": 100.0}, peaks, core_s)) == [said]


def test_every_size_has_a_job_and_a_bound() -> None:
    jobs = (Path(__file__).parents[1] / "bench/load/jobs.py").read_text()
    for name, size in SIZES.items():
        assert f"\ndef {name}(" in jobs
        assert min(size.count, size.core_s, size.python_mb) > 0


def test_the_large_store_has_each_event_once() -> None:
    tables = list(_tables(80_000))
    keys = {
        key
        for table in tables
        for key in zip(*map(list, table.select([0, 1]).columns), strict=True)
    }
    assert len(keys) == sum(table.num_rows for table in tables) == 80_000


def test_a_peak_is_seen_after_it_is_over() -> None:
    script = "b = bytearray(200_000_000); del b; print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as child:  # type: ignore[call-overload]
        child.stdout.readline()
        with HighWater(child.pid) as memory:
            end = time.monotonic() + 30
            while not memory.peaks_mb and time.monotonic() < end:
                time.sleep(0.01)
        child.communicate(b"\n")
    assert 200 < memory.peaks_mb["main"] < 300
