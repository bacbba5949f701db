"""The harness hits what it says it hits, and the cluster is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from harness import (
    JOBS,
    Job,
    When,
    between_sink_and_checkpoint,
    latest,
    run_killed,
    run_to_end,
    run_until,
)
from lengths import repetitions
from process_session import members

FILES = repetitions(4, 8)


def sample_job(directory: Path, *arguments: str) -> Job:
    (directory / "in").mkdir()
    for number in range(FILES):
        (directory / "in" / f"{number}.txt").write_text(f"{number}\n")
    job = [str(directory), *arguments]
    return Job(JOBS / "sample_job.py", job, log=directory / "log")


def stored(directory: Path) -> list[int]:
    return sorted(DeltaTable(directory / "out").to_pyarrow_table()["id"].to_pylist())


def python(directory: Path, code: str) -> Job:
    script = directory / "script.py"
    script.write_text(code)
    return Job(script, log=directory / "log")


# The flights are killed there in CI.
@pytest.mark.soak
def test_kills_between_sink_and_checkpoint_are_real(tmp_path: Path) -> None:
    """A sink that looks for its batch survives them; `--twice` shows that they are needed."""
    point = between_sink_and_checkpoint(tmp_path / "checkpoint", tmp_path / "out", "sample")
    result = run_killed(sample_job(tmp_path), point, kills=2)
    assert (result.hits, result.exit_code) == (2, 0)
    assert stored(tmp_path) == list(range(FILES))


@pytest.mark.soak
def test_a_kill_leaves_a_batch_that_a_sink_that_does_not_look_writes_twice(tmp_path: Path) -> None:
    checkpoint, job = tmp_path / "checkpoint", sample_job(tmp_path, "--twice", "true")
    point = between_sink_and_checkpoint(checkpoint, tmp_path / "out", "sample", only=1)
    assert run_until(job, point).hit
    # Planned, written, and not complete.
    assert (latest(checkpoint / "offsets"), latest(checkpoint / "commits")) == (1, 0)
    assert len(stored(tmp_path)) == 2
    assert run_to_end(job).exit_code == 0
    assert len(stored(tmp_path)) == FILES + 1


def test_a_kill_reaches_the_whole_session(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getsid(0))); time.sleep(60)"
    code = f"import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}],"
    job = python(tmp_path, code + " preexec_fn=lambda: os.setpgid(0, 0))")
    attempt = run_until(job, When(lambda: pid.exists() and pid.read_text() != ""))
    assert attempt.hit
    assert members(int(pid.read_text())) == []


def test_a_point_that_does_not_hold_lets_the_job_go_on(tmp_path: Path) -> None:
    answers = iter([True, False] + [False] * 10_000)
    result = run_killed(
        python(tmp_path, "import time; time.sleep(0.5)"), When(lambda: next(answers))
    )
    assert (result.hits, result.exit_code) == (0, 0)
    assert result.attempts[0].false_alarms == 1
