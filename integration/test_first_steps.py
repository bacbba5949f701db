"""A first program, in a process whose PATH has no virtual environment: IDE, cron, notebook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()

OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
from pyspark_timestream import advance_time, configure_spark
try:
    configure_spark(SparkSession.builder)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""

SUBMITTED = """
from pyspark.sql import SparkSession
from pyspark_timestream import configure_spark
spark = configure_spark(SparkSession.builder.master("local[1]")).getOrCreate()
print("zone", spark.conf.get("spark.sql.session.timeZone"))
print("partitions", spark.conf.get("spark.sql.shuffle.partitions"))
print(spark.readStream.format("timestream").load().schema.simpleString())
"""


@pytest.fixture
def foreign(tmp_path: Path) -> dict[str, str]:
    """An environment whose `python3` is one that does not have this package."""
    commands = tmp_path / "commands"
    commands.mkdir()
    # The interpreter that the virtual environment was made from, under its plain name.
    (commands / "python3").symlink_to(Path(sys.executable).resolve())
    java = Path(shutil.which("java") or "java").parent
    kept = {name: os.environ[name] for name in ("HOME", "SPARK_HOME") if name in os.environ}
    return kept | {"PATH": f"{commands}:{java}:/usr/bin:/bin"}


def run(
    tmp_path: Path, program: str, environment: dict[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    job = tmp_path / "job.py"
    job.write_text(program)
    return subprocess.run(
        [*(command or [sys.executable]), str(job)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def clock_example(place: Path) -> str:
    """The README's example that needs no broker, as a reader pastes it."""
    _, _, section = README.partition("\n## A clock without Kafka\n")
    block = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[0]
    return block.replace("/data/", f"{place}/")


@pytest.mark.timeout(300)
def test_readme_example_without_a_virtual_environment_on_path_runs(
    tmp_path: Path, foreign: dict[str, str]
) -> None:
    program = clock_example(tmp_path)
    count = f'print("rows", spark.read.format("tseries").load("{tmp_path}/clock").count())'
    done = run(tmp_path, f"{program}\n{count}\n", foreign)
    assert "rows 3" in done.stdout, done.stderr[-3000:]


@pytest.mark.timeout(300)
def test_session_built_before_with_a_foreign_interpreter_is_told_by_name(
    tmp_path: Path, foreign: dict[str, str]
) -> None:
    done = run(tmp_path, OWN_SESSION, foreign)
    *_, refusal = done.stderr.strip().splitlines()
    assert refusal.startswith("WrongInterpreter: Spark starts its Python workers as 'python3'")
    assert f"PYSPARK_PYTHON={sys.executable} in its environment" in refusal


@pytest.mark.timeout(300)
def test_spark_submit_with_the_interpreter_in_its_environment_keeps_its_own_settings(
    tmp_path: Path, foreign: dict[str, str]
) -> None:
    submit = [f"{os.environ['SPARK_HOME']}/bin/spark-submit"]
    submit += ["--conf", "spark.sql.session.timeZone=Asia/Tokyo"]
    done = run(tmp_path, SUBMITTED, foreign | {"PYSPARK_PYTHON": sys.executable}, *submit)
    assert done.stdout.splitlines()[:2] == ["zone Asia/Tokyo", "partitions 4"], done.stderr[-3000:]
    assert "struct<timestamp:timestamp,value:bigint>" in done.stdout
