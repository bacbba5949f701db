"""Benchmarks compare equal work only, in turns, and keep what they measured."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import side_by_side
from memory import PeakMemory, workers_with
from sessions import Apart
from side_by_side import Comparison, Done, compare, each_against_peer, report


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


def test_as_many_rounds_warm_up_as_are_asked_for() -> None:
    runs = {
        "peer": contender("peer", [], [9, 9, 9, 2], 7),
        "ours": contender("ours", [], [5, 5, 5, 1], 7),
    }
    assert compare("a job", runs, rounds=1, warm_up=3).took == {"peer": [2], "ours": [1]}


def test_each_way_of_ours_is_a_row_against_the_one_peer() -> None:
    took = {"peer": [4.0], "slow": [8.0], "fast": [1.0]}
    memory = {name: {"worker": size} for name, size in (("slow", 2.0), ("fast", 1.0))}
    slow, fast = each_against_peer(Comparison("a job", took, memory_mb=memory))
    assert (slow.job, slow.ratios, slow.memory_mb["slow"]) == ("a job, slow", [0.5], memory["slow"])
    assert (fast.job, fast.ratios, list(fast.memory_mb)) == ("a job, fast", [4.0], ["fast"])


def test_a_contender_apart_has_its_own_environment_and_memory() -> None:
    with Apart(BENCH_APART="yes") as apart:
        assert apart.call(os.getenv, "BENCH_APART") == "yes"
        assert apart.pid != os.getpid()
        with PeakMemory(apart.pid) as memory:
            while memory.peaks_mb.get("main", 0) == 0:
                pass
        alone = memory.peaks_mb["main"]
    assert os.getenv("BENCH_APART") is None
    with PeakMemory() as memory:
        while memory.peaks_mb.get("main", 0) == 0:
            pass
    assert alone < memory.peaks_mb["main"]


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side_by_side, "_PLACE", tmp_path)
    took = {"peer": [2.0, 1.0], "ours": [1.0, 2.0]}
    job = Comparison("a job", took, 1000, memory_mb={"ours": {"worker": 12.0}})
    report("bench/some_job.py", [job])
    kept = json.loads((tmp_path / "some_job.json").read_text())
    assert Comparison.from_json(kept["jobs"][0]) == job
    assert {"python", "pyspark", "pyarrow", "librdkafka", "deltalake"} <= kept["versions"].keys()
    assert {"cores", "date", "commit"} <= kept["versions"].keys()
    assert "0.50   1.25  2.00" in capsys.readouterr().out


def test_what_was_measured_before_a_failure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def jobs() -> Iterator[Comparison]:
        yield Comparison("a job", {"peer": [4.0], "ours": [2.0]})
        raise OSError("the broker is gone")

    monkeypatch.setattr(side_by_side, "_PLACE", tmp_path)
    with pytest.raises(OSError, match="the broker is gone"):
        report("bench/some_job.py", jobs())
    (kept,) = json.loads((tmp_path / "some_job.json").read_text())["jobs"]
    assert kept["job"] == "a job"


def test_a_peak_is_seen_of_memory_that_is_gone_by_the_end() -> None:
    with PeakMemory() as memory:
        while memory.peaks_mb.get("main", 0) == 0:
            pass
        before = memory.peaks_mb["main"]
        block = bytearray(os.urandom(1)) * 300_000_000
        while memory.peaks_mb["main"] < before + 200:
            pass
        del block
    assert memory.peaks_mb["main"] > before + 200


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
            while len(memory.peaks_mb) < 3:
                pass
    assert memory.peaks_mb.keys() == {"main", "worker", "driver"}
    assert min(memory.peaks_mb.values()) > 1


def test_which_path_the_workers_have_read_by_is_seen_in_what_they_have_loaded(
    tmp_path: Path,
) -> None:
    library = tmp_path / "gather.so"
    library.write_bytes(b"x")
    with process("pyspark.daemon", library):
        assert workers_with(os.getpid(), "/gather.so")
        assert not workers_with(os.getpid(), "/other.so")
    with process("kafka.Kafka", library):
        assert not workers_with(os.getpid(), "/gather.so")
