"""`make bench` goes on after a benchmark that fails or hangs, and says briefly which it was."""

import importlib.util
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psutil
import pytest


@pytest.fixture(scope="module")
def make_bench() -> ModuleType:
    path = Path(__file__).parents[1] / "bench" / "__main__.py"
    spec = importlib.util.spec_from_file_location("make_bench", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def script(place: Path, text: str) -> Path:
    path = place / "some_job.py"
    path.write_text(text)
    return path


def test_a_benchmark_that_ends_well_has_nothing_to_say(
    make_bench: ModuleType, tmp_path: Path
) -> None:
    quiet = script(tmp_path, "import sys; print('a warning', file=sys.stderr)")
    assert make_bench.failure(quiet, dict(os.environ), 60) is None


def test_a_failure_is_named_with_the_cut_end_of_what_it_said(
    make_bench: ModuleType, tmp_path: Path
) -> None:
    text = "import sys; print('x' * 5000 + '\\n' * 500 + 'why', file=sys.stderr); sys.exit(3)"
    why = make_bench.failure(script(tmp_path, text), dict(os.environ), 60)
    assert why.startswith("some_job.py failed (3):")
    assert why.endswith("why")
    assert len(why) < 4000


def test_small_results_are_not_kept_beside_full_ones(
    make_bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_MACHINE", "laptop")
    assert make_bench.results_folder() == make_bench.HERE / "results" / "laptop"
    monkeypatch.setattr(make_bench, "size", lambda full, quick: quick)
    assert make_bench.results_folder() == make_bench.HERE.parent / ".work" / "bench"


@pytest.mark.parametrize(("quick", "told"), [("", "full 5"), ("1", "small 2")])
def test_quick_is_told_to_every_benchmark_by_the_environment(quick: str, told: str) -> None:
    code = "import sizes; print(sizes.size('full', 'small'), sizes.ROUNDS)"
    environment = {"BENCH_QUICK": quick, "PATH": os.environ["PATH"]}
    place = Path(__file__).parents[1] / "bench" / "measuring"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment, cwd=place, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.strip() == told


def test_a_benchmark_that_cannot_run_here_says_why_and_is_no_failure(
    make_bench: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "import sys; print('it is skipped: no cargo', file=sys.stderr); sys.exit(77)"
    assert make_bench.failure(script(tmp_path, text), dict(os.environ), 60) is None
    assert capfd.readouterr().out == "it is skipped: no cargo\n"


def test_every_comparison_is_a_file_or_a_folder_with_a_program(make_bench: ModuleType) -> None:
    for name in make_bench.COMPARISONS:
        found = make_bench.script_of(name)
        assert (found / "__main__.py" if found.is_dir() else found).is_file()


def test_what_takes_too_long_is_ended_with_all_that_it_has_started(
    make_bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_bench, "GOODBYE_S", 1)
    pid = tmp_path / "pid"
    text = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
open({str(pid)!r}, "w").write(str(child.pid))
print("so far", file=sys.stderr, flush=True)
time.sleep(600)
"""
    why = make_bench.failure(script(tmp_path, text), dict(os.environ), 10)
    assert why == "some_job.py took longer than 10 s:\n  so far"
    deadline = time.monotonic() + 60
    while runs(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not runs(int(pid.read_text()))


def runs(pid: int) -> bool:
    # Nobody may be there to take notice of the end of an orphan: then it stays, as a zombie.
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def test_small_runs_end_in_time_and_name_what_was_left_out(
    make_bench: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, seconds in (("short", 0), ("long", 60), ("never", 0)):
        (tmp_path / f"{name}.py").write_text(f"import time; time.sleep({seconds})")
    monkeypatch.setattr(make_bench, "COMPARISONS", ("long", "never", "short"))
    monkeypatch.setattr(make_bench, "FIRST_QUICK", ("short",))
    monkeypatch.setattr(make_bench, "QUICK_S", 3)
    monkeypatch.setattr(make_bench, "size", lambda full, quick: quick)
    monkeypatch.setattr(make_bench, "script_of", lambda name: tmp_path / f"{name}.py")
    monkeypatch.setattr(make_bench, "versions", dict)
    monkeypatch.setattr(sys, "argv", ["bench"])
    began = time.monotonic()
    make_bench.main()
    assert time.monotonic() - began < 30
    said = capsys.readouterr().out
    assert said.endswith("no time was left for long, never; python bench NAME runs one of them\n")


def test_small_runs_begin_with_one_of_each_kind_and_go_on_to_all(make_bench: ModuleType) -> None:
    order = make_bench.quick_order()
    assert sorted(order) == sorted(make_bench.COMPARISONS)
    kinds = [
        {make_bench.script_of(name).parent for name in names}
        for names in (make_bench.FIRST_QUICK, make_bench.COMPARISONS)
    ]
    assert kinds[0] == kinds[1]
