"""`make bench` goes on after a benchmark that fails or hangs, and says briefly which it was."""

import importlib.util
import os
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


def test_a_failure_is_named_with_the_cut_end_of_what_it_said(
    make_bench: ModuleType, tmp_path: Path
) -> None:
    text = "import sys; print('x' * 5000 + '\\n' * 500 + 'why', file=sys.stderr); sys.exit(3)"
    why = make_bench.failure(script(tmp_path, text), dict(os.environ), 60)
    assert why.startswith("some_job.py failed (3):")
    assert why.endswith("why")
    assert len(why) < 4000


def test_no_folder_on_the_path_of_benchmarks_changes_how_python_starts() -> None:
    # One that turns handing rows over off was there for a day, and `make run` had it as well.
    shared = Path(__file__).parents[1] / "integration" / "support"
    assert list(shared.glob("*/*.py"))
    assert not [*shared.rglob("sitecustomize.py"), *shared.rglob("usercustomize.py")]


def test_small_results_are_not_kept_beside_full_ones(
    make_bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_MACHINE", "laptop")
    assert make_bench.results_folder() == make_bench.HERE / "results" / "laptop"
    monkeypatch.setattr(make_bench, "size", lambda full, quick: quick)
    assert make_bench.results_folder() == make_bench.HERE.parent / ".work" / "bench"


@pytest.mark.thorough
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
