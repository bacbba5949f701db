"""Benchmarks compare equal work only, in turns, and keep what they measured."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from core_seconds import CoreSeconds
from memory import PeakMemory
from side_by_side import (
    Comparison,
    Done,
    compare,
    report,
)


def contender(name: str, log: list[str], took: Iterable[float], rows: int) -> Callable[[], Done]:
    times = iter(took)

    def run() -> Done:
        log.append(name)
        return Done(next(times), {"rows": rows})

    return run


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    log: list[str] = []
    runs = {
        "peer": contender("peer", log, [99, 2, 3, 8], 7),
        "ours": contender("ours", log, [1, 4, 3, 2], 7),
    }
    found = compare("a job", runs, rows=7, rounds=3)
    assert log == ["ours", "peer", "peer", "ours", "ours", "peer", "peer", "ours"]
    assert found.took == {"peer": [2, 3, 8], "ours": [4, 3, 2]}
    assert found.spread() == (0.5, 1.0, 4.0)


def test_the_ratio_of_milliseconds_is_ours_over_the_peers() -> None:
    assert Comparison("a job", {"peer": [10.0], "ours": [5.0]}, unit="ms").ratios == [0.5]


@pytest.mark.parametrize("measured", [True, False])
def test_unequal_work_has_no_result(measured: bool) -> None:
    runs = {
        "peer": contender("peer", [], [1, 1], 7),
        "ours": contender("ours", [], [1, 1], 8 if measured else 7),
    }
    checks = None if measured else {"peer": lambda: {"sum": 1}, "ours": lambda: {"sum": 2}}
    with pytest.raises(SystemExit, match="unequal work is not compared"):
        compare("a job", runs, rounds=1, checks=checks)


def test_a_report_is_kept_with_its_versions_and_reads_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    took = {"peer": [2.0, 1.0], "ours": [1.0, 2.0]}
    job = Comparison("a job", took, 1000, memory_mb={"ours": {"worker": 12.0}})
    report("bench/some_job.py", [job], tmp_path)
    kept = json.loads((tmp_path / "some_job.json").read_text())
    assert Comparison.from_json(kept["jobs"][0]) == job
    assert {"python", "pyspark", "pyarrow", "librdkafka", "deltalake"} <= kept["versions"].keys()
    assert {"cores", "date", "commit"} <= kept["versions"].keys()
    assert "0.50   1.25  2.00" in capsys.readouterr().out


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    def jobs() -> Iterator[Comparison]:
        yield Comparison("a job", {"peer": [4.0], "ours": [2.0]})
        raise OSError("the broker is gone")

    with pytest.raises(OSError, match="the broker is gone"):
        report("bench/some_job.py", jobs(), tmp_path)
    (kept,) = json.loads((tmp_path / "some_job.json").read_text())["jobs"]
    assert kept["job"] == "a job"


@pytest.mark.thorough
def test_core_seconds_are_told_apart_by_kind_and_those_of_ended_processes_count() -> None:
    spin = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    kinds = {"jvm": "org.apache.spark.deploy.SparkSubmit", "broker": "kafka.Kafka"}
    with ExitStack() as open_:
        with CoreSeconds() as spent:
            for command in kinds.values():
                run = [sys.executable, "-c", f"{spin}\nprint(flush=True); input()", command]
                child = open_.enter_context(Popen(run, stdin=PIPE, stdout=PIPE))
                open_.callback(child.kill)
                assert child.stdout is not None
                child.stdout.readline()
            with Popen([sys.executable, "-c", spin]):
                pass
        with CoreSeconds() as idle:
            pass
    assert spent.by_kind.keys() == {"jvm", "broker", "python"}
    # The system counts in hundredths, and its own way.
    assert min(spent.by_kind.values()) >= 0.3
    assert sum(idle.by_kind.values()) < 0.3
    without_broker = spent.by_kind["jvm"] + spent.by_kind["python"]
    assert spent.total_s == pytest.approx(without_broker)


@contextmanager
def process(command: str, mapped: Path) -> Iterator[None]:
    """A process with `command` in its command line, and a file in its memory."""
    code = "import mmap, sys; file = open(sys.argv[2], 'rb')"
    code += "; kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); print(flush=True); input()"
    with Popen([sys.executable, "-c", code, command, str(mapped)], stdin=PIPE, stdout=PIPE) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == b"\n"
        try:
            yield
        finally:
            it.kill()


def test_the_memory_of_workers_and_driver_is_told_apart_and_a_brokers_is_not_counted(
    tmp_path: Path,
) -> None:
    (tmp_path / "some.so").write_bytes(b"x")
    commands = ("pyspark.daemon", "org.apache.spark.deploy.SparkSubmit", "kafka.Kafka")
    with ExitStack() as open_:
        for command in commands:
            open_.enter_context(process(command, tmp_path / "some.so"))
        with PeakMemory() as memory:
            while len(memory.peaks_mb) < 4:
                pass
    peaks = memory.peaks_mb
    assert peaks.keys() == {"main", "worker", "driver", "all"}
    assert min(peaks.values()) > 1
    assert peaks["all"] > peaks["main"] + min(peaks["worker"], peaks["driver"])
