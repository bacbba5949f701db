"""Benchmarks compare equal work only, in turns, and keep what they measured."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import side_by_side
from core_seconds import CoreSeconds
from machine import machine_name
from memory import PeakMemory, family_of, workers_with
from sessions import Apart, Fresh
from side_by_side import (
    Comparison,
    Done,
    by_figure,
    compare,
    each_against_peer,
    report,
    report_table,
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


def test_each_figure_of_a_run_is_a_row_with_the_same_core_seconds() -> None:
    def run(took: float) -> Callable[[], Done]:
        return lambda: Done(took, {"rows": 7}, {"batch work": took, "whole run": 3 * took})

    ways = {"peer": run(4.0), "slow": run(8.0), "fast": run(1.0)}
    found = compare("a job", ways, rounds=2, warm_up=1)
    slow, fast = each_against_peer(found)
    rows = [*by_figure(slow), *by_figure(fast)]
    assert [(row.job, row.figure, row.took) for row in rows] == [
        ("a job, slow", "batch work", {"peer": [4.0] * 2, "slow": [8.0] * 2}),
        ("a job, slow", "whole run", {"peer": [12.0] * 2, "slow": [24.0] * 2}),
        ("a job, fast", "batch work", {"peer": [4.0] * 2, "fast": [1.0] * 2}),
        ("a job, fast", "whole run", {"peer": [12.0] * 2, "fast": [3.0] * 2}),
    ]
    assert all(row.core_s.keys() == row.took.keys() for row in rows)
    assert by_figure(Comparison("plain", {"peer": [1.0], "ours": [1.0]}))[0].figure == ""


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


def test_core_seconds_of_a_worker_that_nobody_waits_for_take_nothing_from_the_others() -> None:
    spin = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass\n"
    # PySpark's daemon ignores the ends of its workers.
    daemon = (
        "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        f"if not os.fork():\n exec({spin.format(1.0)!r}); print(flush=True); input(); os._exit(0)\n"
        "signal.pause()"
    )
    run = [sys.executable, "-c", daemon]
    with Popen(run, stdin=PIPE, stdout=PIPE) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdout.readline()
        with_worker = len(family_of(started.pid))
        with CoreSeconds() as spent:
            started.stdin.write(b"\n")
            started.stdin.flush()
            while len(family_of(started.pid)) == with_worker:
                time.sleep(0.01)
            with Popen([sys.executable, "-c", spin.format(0.4)]):
                pass
        started.kill()
    # The worker had taken a second before.
    assert spent.by_kind["python"] >= 0.3


def test_a_fresh_contender_has_a_new_process_for_every_run() -> None:
    with Fresh(pid_and_name, "x") as fresh:
        found = [(fresh.pid, fresh().took) for _ in range(2)]
    assert all(asked == was for asked, was in found)
    assert found[0] != found[1]


def pid_and_name(name: str) -> Done:
    return Done(os.getpid(), {"name": name})


def test_a_table_of_counts_is_kept_in_the_order_of_its_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side_by_side, "_PLACE", tmp_path)
    monkeypatch.setenv("BENCH_ROUNDS", "2")
    report_table("bench/some_counts.py", [{"source": "spark", "lost": 3}])
    kept = json.loads((tmp_path / "some_counts.json").read_text())
    assert [list(row.items()) for row in kept["table"]] == [[("source", "spark"), ("lost", 3)]]
    assert kept["command"].startswith("BENCH_ROUNDS=2 python bench some_counts")
    assert {"cpu", "machine", "java", "kafka", "spark-sql-kafka-0-10_2.13"} <= {*kept["versions"]}
    assert capsys.readouterr().out == "source: spark, lost: 3\n"


@pytest.mark.parametrize("name", ["Big Machine", "../elsewhere", "", "."])
def test_a_machine_whose_name_is_not_of_a_folder_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_MACHINE", name)
    with pytest.raises(SystemExit, match=f"BENCH_MACHINE is '{name}'; accepted: lower-case"):
        machine_name()


def test_a_machine_is_named_after_its_processor_unless_it_has_a_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BENCH_MACHINE", raising=False)
    assert machine_name().endswith(f"-{os.cpu_count()}-cores")
    monkeypatch.setenv("BENCH_MACHINE", "laptop-1")
    assert machine_name() == "laptop-1"


def test_memory_of_the_shortest_run_is_looked_at_once() -> None:
    with PeakMemory() as memory:
        pass
    assert memory.peaks_mb["all"] >= memory.peaks_mb["main"] > 1


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
