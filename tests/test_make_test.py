"""`make test` ends with the summary, and nothing after it."""

import subprocess
import sys
from pathlib import Path

FROZEN = """
import duckdb
from pyspark_timestream.connector.worker import freeze_objects

def test_a_worker_settles():
    assert duckdb.sql("SELECT 1").fetchall() == [(1,)]
    freeze_objects()
"""


def test_run_that_froze_memory_ends_without_reports_of_leaks(tmp_path: Path) -> None:
    script = tmp_path / "test_frozen.py"
    script.write_text(FROZEN)
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", str(script)],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": f"{tests}:{tests.parent / 'integration/support/sessions'}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.strip().splitlines()[-1].startswith("1 passed")
    assert done.stderr == ""
