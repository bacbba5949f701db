"""A Spark home without PySpark's zip, and when a session gets one."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pyspark_timestream import configure_spark
from pyspark_timestream.core import session
from pyspark_timestream.core.session import link_spark_home, use_installed_pyspark

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An installation as pip makes it, with settings of its user."""
    place = tmp_path / "packages" / "pyspark"
    for name in ("bin", "jars", "conf", "python/lib", "sql"):
        (place / name).mkdir(parents=True)
    for name in ("bin/spark-submit", "conf/spark-defaults.conf", "python/lib/pyspark.zip"):
        (place / name).touch()
    return place


def test_home_has_everything_of_spark_but_the_zip(installed: Path, tmp_path: Path) -> None:
    home = link_spark_home(installed, tmp_path / "cache")
    assert {each.name for each in home.iterdir()} == {"bin", "jars", "conf"}
    assert (home / "bin/spark-submit").samefile(installed / "bin/spark-submit")
    assert not (home / "python/lib/pyspark.zip").exists()


def test_home_of_another_installation_is_another(installed: Path, tmp_path: Path) -> None:
    other = installed.rename(tmp_path / "other")
    installed.mkdir()
    home = link_spark_home(installed, tmp_path / "cache")
    assert home != link_spark_home(other, tmp_path / "cache")


def test_home_is_repaired_where_a_link_is_wrong_or_missing(installed: Path, tmp_path: Path) -> None:
    home = link_spark_home(installed, tmp_path / "cache")
    (home / "bin").unlink()
    (home / "bin").symlink_to(tmp_path / "gone")
    (home / "jars").unlink()
    (installed / "conf/spark-defaults.conf").unlink()
    (installed / "conf").rmdir()
    assert link_spark_home(installed, tmp_path / "cache") == home
    assert {each.name for each in home.iterdir()} == {"bin", "jars"}
    assert (home / "bin").readlink() == installed / "bin"


def test_home_can_be_made_by_many_at_once(installed: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        cache = tmp_path / "cache"
        made = list(threads.map(lambda _: link_spark_home(installed, cache), range(64)))
    assert len(set(made)) == 1
    assert (made[0] / "jars").is_dir()


@pytest.mark.parametrize("given", [{"XDG_CACHE_HOME": "{}"}, {"HOME": "{}"}])
def test_home_is_in_the_users_cache(given: dict[str, str], tmp_path: Path) -> None:
    environment = {name: value.format(tmp_path) for name, value in given.items()}
    use_installed_pyspark(environment)
    home = Path(environment["SPARK_HOME"])
    assert home.is_relative_to(tmp_path if "XDG_CACHE_HOME" in given else tmp_path / ".cache")
    assert (home / "jars").samefile(INSTALLED / "jars")


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no home directory"),
        pytest.param({"XDG_CACHE_HOME": "here", "HOME": "there"}, id="relative paths"),
        pytest.param({"HOME": "/dev/null"}, id="no directory can be made"),
        pytest.param({"SPARK_HOME": "/opt/spark", "HOME": "/tmp"}, id="a home that is set"),
    ],
)
def test_home_is_left_alone_where_none_can_be_made(environment: dict[str, str]) -> None:
    before = dict(environment)
    use_installed_pyspark(environment)
    assert environment == before


def test_no_home_for_a_pyspark_that_only_this_process_finds(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_find_installed_spark", lambda: installed)
    environment = {"HOME": str(tmp_path)}
    use_installed_pyspark(environment)
    assert "SPARK_HOME" not in environment
    environment["PYTHONPATH"] = f"/elsewhere:{installed.parent}"
    use_installed_pyspark(environment)
    assert "SPARK_HOME" in environment


@pytest.fixture
def no_running_spark(monkeypatch: pytest.MonkeyPatch, without_jvm: None, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    # A mere deletion would not undo the test's setting.
    monkeypatch.setenv("SPARK_HOME", "")
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.spark
@pytest.mark.usefixtures("no_running_spark")
@pytest.mark.parametrize(
    ("master", "gets_one"),
    [
        ("local", True),
        ("local[2]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        (None, False),
    ],
)
def test_session_gets_a_home_for_a_local_master_alone(master: str | None, gets_one: bool) -> None:
    # A builder of its own: SparkSession.builder keeps what other tests have set.
    builder = SparkSession.Builder()
    builder._options = {}
    configure_spark(builder if master is None else builder.master(master))
    assert ("SPARK_HOME" in os.environ) == gets_one


@pytest.mark.spark
@pytest.mark.usefixtures("no_running_spark")
def test_session_of_another_interpreter_keeps_the_zip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 0\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    configure_spark(SparkSession.Builder().master("local[2]"))
    assert "SPARK_HOME" not in os.environ


JOB = """
from pyspark.sql import SparkSession
from pyspark_timestream import configure_spark

spark = configure_spark(SparkSession.builder.master("local[1]")).getOrCreate()
ask = lambda _: __import__("pyspark").__file__
print(spark.sparkContext.parallelize([0], 1).map(ask).collect()[0])
"""


@pytest.mark.outside_ci
@pytest.mark.spark
@pytest.mark.session
@pytest.mark.parametrize("own_home", [False, True])
def test_workers_import_the_installed_pyspark_unless_a_home_is_given(
    own_home: bool, tmp_path: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYTHONPATH")}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    if own_home:
        environment["SPARK_HOME"] = str(INSTALLED)
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, check=True
    )
    zipped = INSTALLED / "python/lib/pyspark.zip/pyspark/__init__.py"
    expected = zipped if own_home else INSTALLED / "__init__.py"
    assert done.stdout.splitlines()[-1] == str(expected)
    # Not even with pandas 3, although Spark warns of it when a session starts.
    assert "Warning" not in done.stderr
