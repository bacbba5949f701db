"""What `configure_spark` gives a session, without starting one."""

import subprocess
import sys
import warnings

import pytest
from pyspark.sql import SparkSession

import pyspark_timestream
from pyspark_timestream import configure_spark, spark_settings, why
from pyspark_timestream.core.session import INTERPRETER, SETTINGS
from pyspark_timestream.errors import WrongInterpreter

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def no_running_spark(monkeypatch: pytest.MonkeyPatch, without_jvm: None) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)


def options(builder: SparkSession.Builder) -> dict[str, str]:
    return dict(builder._options)


def test_session_gets_every_setting() -> None:
    configured = options(configure_spark(SparkSession.builder))
    assert configured == {setting.name: setting.value for setting in SETTINGS}
    assert configured == spark_settings()
    assert len(configured) == 4


def test_spark_settings_documents_every_setting_and_the_interpreter() -> None:
    described = spark_settings.__doc__ or ""
    assert all(name in described for name in (*spark_settings(), INTERPRETER.name))


def test_session_keeps_what_was_set_before_and_takes_what_is_set_after() -> None:
    builder = SparkSession.builder.config("spark.sql.session.timeZone", "Europe/Vienna")
    builder = configure_spark(builder).config("spark.sql.shuffle.partitions", "64")
    configured = options(builder)
    assert configured["spark.sql.session.timeZone"] == "Europe/Vienna"
    assert configured["spark.sql.shuffle.partitions"] == "64"
    assert configured["spark.python.unix.domain.socket.enabled"] == "true"


def test_session_with_a_foreign_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/nowhere/jupyter")
    with pytest.raises(WrongInterpreter) as refused:
        configure_spark(SparkSession.builder)
    assert "'/nowhere/jupyter', from the environment variable PYSPARK_DRIVER_PYTHON" in str(
        refused.value
    )
    assert f"leave PYSPARK_DRIVER_PYTHON unset, or set it to {sys.executable}" in str(refused.value)


URL = "sc://server:15002"
OF_A_SESSION = {"spark.sql.shuffle.partitions", "spark.sql.session.timeZone"}


@pytest.fixture
def foreign_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a Python of its own that could not run the formats."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")


@pytest.mark.usefixtures("foreign_client")
def test_a_client_of_a_server_sets_its_session_and_checks_no_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configured = options(configure_spark(SparkSession.builder.remote(URL)))
    assert set(configured) == {"spark.remote", *OF_A_SESSION}
    given = SparkSession.builder.remote(URL).config("spark.sql.shuffle.partitions", "64")
    assert options(configure_spark(given))["spark.sql.shuffle.partitions"] == "64"
    monkeypatch.setenv("SPARK_REMOTE", URL)
    assert set(options(configure_spark(SparkSession.builder))) == OF_A_SESSION
    with pytest.raises(WrongInterpreter):
        configure_spark(SparkSession.builder.remote("local[2]"))


@pytest.mark.usefixtures("foreign_client")
def test_a_format_that_a_server_does_not_find_is_to_be_installed_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", URL)
    why(ValueError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: tseries. Make sure"))
    said = capsys.readouterr().out
    assert "format 'tseries' was not found: it is looked up by the Spark Connect server" in said
    assert "next step: install pyspark-timestream there" in said
    assert "/nowhere/python" not in said


def import_in_a_new_process(statement: str, path: str, **environment: str) -> str:
    """The warning on stderr for a driver that only imports us."""
    done = subprocess.run(
        [sys.executable, "-c", statement],
        env={"PATH": path, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr


@pytest.fixture(scope="module")
def foreign_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("bin")
    python = directory / "python3"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    return str(directory)


def test_import_of_a_helper_warns_of_a_foreign_interpreter(foreign_path: str) -> None:
    said = import_in_a_new_process("from pyspark_timestream import advance_time", foreign_path)
    assert f"UserWarning: Spark starts its Python workers as 'python3' ({foreign_path}" in said
    assert "configure_spark(SparkSession.builder)" in said
    assert f"PYSPARK_PYTHON={sys.executable}" in said


@pytest.mark.thorough
@pytest.mark.parametrize(
    "statement",
    [
        "from pyspark_timestream import advance_time, configure_spark",
        "from pyspark_timestream import configure_spark; from pyspark_timestream import shift_time",
        "from pyspark_timestream import PunctuatedProducer, DefaultSource",
        "import pyspark_timestream, pyspark_tseries; pyspark_tseries.TimeSeries",
    ],
)
def test_import_of_configure_spark_or_of_no_helper_warns_of_nothing(
    statement: str, foreign_path: str
) -> None:
    assert import_in_a_new_process(statement, foreign_path) == ""


@pytest.mark.thorough
def test_import_of_a_helper_warns_of_nothing_where_the_interpreter_is_right() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert pyspark_timestream.advance_time
    statement = "from pyspark_timestream import advance_time"
    assert import_in_a_new_process(statement, "", PYSPARK_PYTHON=sys.executable) == ""


@pytest.mark.thorough
def test_import_of_a_helper_by_a_client_of_a_server_warns_of_nothing(foreign_path: str) -> None:
    statement = "from pyspark_timestream import advance_time"
    assert import_in_a_new_process(statement, foreign_path, SPARK_REMOTE=URL) == ""
