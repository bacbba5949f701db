"""Our sentence out of what Spark makes of an error; the texts are Spark 4.3's, shortened."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import DataLost, why
from pyspark_timestream.core.why import find_own_message
from pyspark_timestream.errors import OptionError
from pyspark_tseries import NoSuchStore

OURS = "series 'a': timestamp 2020 is before the newest event; accepted: that: or later. No more"

STREAM_FAILED = f"""[STREAM_FAILED] Query [id = 57d592a0, runId = eca7c14d] terminated with \
exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source \
perform commit: \
pyspark_tseries.UpdateFailed: {OURS}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 57d592a0, runId = eca7c14d]
Current Available Offsets: {{PythonMicroBatchStream@46507229: {{"from": 0, "of": "pyspark_x"}}}}
"""
WITH_FRAMES = f"""[PYTHON_DATA_SOURCE_ERROR] Failed to commit Python data source write: \
Traceback (most recent call last):
  File "/venv/pyspark_tseries/spark/writer.py", line 188, in commit
    _commit(self.target, tasks, (f"tseries:q:{{_require_query_id(tasks)}}", batchId))
pyspark_tseries.errors.UpdateFailed: {OURS}
 SQLSTATE: 38000"""
IN_A_TASK = f"""An exception was thrown from the Python worker:
pyspark_tseries.UpdateFailed: {OURS}
"""
OF_PY4J = f"""An error occurred while calling o28.load.
: org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.0 in stage 0.0: \
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the \
Python worker: pyspark_tseries.UpdateFailed: {OURS}
 SQLSTATE: 38000
	at org.apache.spark.api.python.PythonArrowOutput.read(PythonArrowOutput.scala:170)

Driver stacktrace:
	at org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
"""
WITH_JVM = f"""[PYTHON_DATA_SOURCE_ERROR] Failed: pyspark_tseries.UpdateFailed: {OURS}

JVM stacktrace:
org.apache.spark.sql.AnalysisException: [PYTHON_DATA_SOURCE_ERROR]"""
BY_THE_JVM = f"""[USER_RAISED_EXCEPTION] pyspark_timestream.advance_time: {OURS} SQLSTATE: P0001
== DataFrame ==
"when" was called from"""
NOT_FOUND = (
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: tseries. Make sure the provider name "
    "is correct and the package is properly registered. SQLSTATE: 42K02"
)


def printed(subject: object) -> str:
    out = io.StringIO()
    why(subject, file=out)
    return out.getvalue()


class Query:
    """The parts of a streaming query that `why` looks at."""

    def __init__(self, failure: Exception | None, running: bool = False) -> None:
        self._failure = failure
        self.isActive = running

    def exception(self) -> Exception | None:
        return self._failure


@pytest.mark.parametrize(
    "text", [STREAM_FAILED, WITH_FRAMES, IN_A_TASK, OF_PY4J, WITH_JVM, BY_THE_JVM]
)
def test_why_of_a_wrapped_error_prints_our_sentence_alone(text: str) -> None:
    assert find_own_message(text) == OURS
    assert printed(RuntimeError(text)) == f"{OURS}\n"
    assert printed(Query(RuntimeError(text))) == f"{OURS}\n"


def test_why_of_a_message_of_several_lines_keeps_all_of_them() -> None:
    ours = 'the value is {\n  "a": 1\n}: correct it'
    text = f"Failed: pyspark_timestream.ViolationFound: {ours}\n SQLSTATE: 38000"
    assert printed(RuntimeError(text)) == f"{ours}\n"


def test_why_of_our_own_exceptions_prints_them() -> None:
    assert printed(NoSuchStore("there is no store here")) == "there is no store here\n"
    assert printed(OptionError("a", "b", "c", "d")).startswith("option 'a': b; accepted: c")


def test_why_finds_the_cause_of_a_foreign_exception() -> None:
    failure = RuntimeError("the job failed")
    failure.__cause__ = DataLost("records are gone")
    assert printed(failure) == "records are gone\n"


def test_why_of_what_is_not_ours_says_so_in_one_line() -> None:
    text = "[PATH_NOT_FOUND] Path does not exist: /x"
    assert printed(ValueError(f"{text}\nand 100 lines more")) == (
        f"not an error of timestream or tseries: ValueError: {text}\n"
    )


class OfJava(Exception):
    """An error of Java's as PySpark shows it: a text, a stack trace, and a cause."""

    def __init__(self, text: str, trace: str = "", cause: Exception | None = None) -> None:
        super().__init__(text)
        self._stackTrace, self._cause = trace, cause


FAILED = "[STREAM_FAILED] Query [id = 57d592a0, runId = eca7] terminated with exception: "
TRACE = """org.apache.spark.SparkException: [TASK_WRITE_FAILED] Writing job failed.
	at org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec.run(Write.scala:27)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure
Caused by: {}
"""


@pytest.mark.parametrize(
    "error",
    [
        OfJava("Writing job failed.", TRACE.format(f"pyspark_tseries.UpdateFailed: {OURS}")),
        OfJava("Writing job failed.", cause=RuntimeError(f"pyspark_tseries.UpdateFailed: {OURS}")),
    ],
    ids=["stack trace", "cause"],
)
def test_why_finds_our_sentence_in_what_java_wraps(error: Exception) -> None:
    assert printed(error) == f"{OURS}\n"


PYTHON_GONE = """java.io.{}
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:397)
\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.commit(P.scala:302)
\tat org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution.runBatch(M.scala:1181)"""


@pytest.mark.parametrize(
    "how", ["EOFException", "IOException: Broken pipe", "IOException: Stream closed"]
)
def test_why_says_that_a_process_of_python_has_ended(how: str) -> None:
    """As Spark tells it when the process that plans a source's batches was killed."""
    error = OfJava(f"{FAILED} SQLSTATE: XXKST", PYTHON_GONE.format(how))
    assert printed(error).startswith(
        f"a process of Python that Spark runs for the query has ended (java.io.{how}); next step: "
    )
    elsewhere = PYTHON_GONE.format(how).replace("execution.python", "execution.parquet")
    assert printed(OfJava(f"{FAILED} SQLSTATE: XXKST", elsewhere)).startswith("not an error of")


@pytest.mark.parametrize(
    ("cause", "step"),
    [
        ("java.io.IOException: No space left on device", "free space where the checkpoint"),
        ("java.io.IOException: Disk quota exceeded", "free space where the checkpoint"),
        ("java.nio.file.FileSystemException: /c/offsets: Read-only file system", "writable"),
        ("java.io.FileNotFoundException: /c/metadata (Permission denied)", "the right to the"),
        ("java.net.SocketException: Too many open files", "ulimit -n"),
        ("java.lang.OutOfMemoryError: Java heap space", "spark.driver.memory"),
        ("Python worker exited unexpectedly (crashed)", "dmesg"),
        ("java.io.FileNotFoundException: File file:/c/offsets/.1.a.tmp does not exist", "mount"),
        ("java.io.FileNotFoundException: File file:/c/commits does not exist", "mount"),
        ("java.io.FileNotFoundException: File file:/c/state/0/1 does not exist", "mount"),
        (
            "ExitCodeException exitCode=1: chmod: cannot access '/c/commits/.36.a.tmp': No such "
            "file or directory",
            "mount",
        ),
        ("java.nio.file.NoSuchFileException: /tmp/blockmgr-06e192e0/3c", "spark.local.dir back"),
        ("Python worker failed to connect back.", "more cores"),
        (
            "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to "
            "connect back",
            "less to do",
        ),
        (
            "java.io.FileNotFoundException: /tmp/blockmgr-06/19/temp_shuffle_9e (No such file or "
            "directory)",
            "spark.local.dir back",
        ),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.", "checkpointLocation of"),
        ("Multiple streaming queries are concurrently using file:/c/offsets.", "let one of them"),
    ],
)
def test_why_names_the_root_of_an_error_of_spark_and_a_next_step(cause: str, step: str) -> None:
    for error in (
        OfJava(f"{FAILED}{cause} SQLSTATE: XXKST\n=== Streaming Query ==="),
        OfJava("Writing job failed.", TRACE.format(cause)),
        OfJava("Writing job failed.", cause=OfJava(cause)),
    ):
        said = printed(error)
        assert f"({cause}); next step: " in said
        assert step in said
        assert said.count("\n") == 1


def fail_by_udf(rows: DataFrame) -> None:
    later = F.pandas_udf(lambda ctis: ctis, "timestamp")
    rows.select(later("cti")).collect()


def fail_by_map(rows: DataFrame) -> None:
    rows.mapInPandas(lambda batches: batches, rows.schema).collect()


def fail_by_frame(rows: DataFrame) -> None:
    rows.toPandas()


@pytest.mark.spark
@pytest.mark.parametrize("use", [fail_by_frame, fail_by_map, fail_by_udf])
def test_why_names_the_final_cti_that_pandas_cannot_hold_and_its_next_steps_help(
    spark: SparkSession, use: Callable[[DataFrame], None]
) -> None:
    rows = spark.sql(
        "SELECT TIMESTAMP'9999-12-31 23:59:59Z' AS cti, NULL AS n UNION ALL SELECT NULL, 1"
    )
    with pytest.raises(Exception, match="out of bounds timestamp") as failure:
        use(rows)
    said = printed(failure.value)
    assert said.startswith("pandas got the row of the final CTI, 9999-12-31T23:59:59Z")
    assert "batch.where('cti IS NULL').drop('cti')" in said
    use(rows.where("cti IS NULL"))
    seen = F.expr("if(cti > '2262-01-01', timestamp'2262-01-01', cti)")
    assert "if(cti > '2262-01-01', timestamp'2262-01-01', cti)" in said
    use(rows.withColumn("cti", seen))
    assert rows.select(seen.alias("cti")).where("cti IS NULL").count() == 1


def test_why_names_another_time_that_pandas_cannot_hold() -> None:
    said = printed(
        ValueError("Casting ... would result in out of bounds timestamp: 32503680000000000")
    )
    assert said.startswith("pandas got a time that it cannot hold")


def test_why_of_an_unknown_error_of_java_names_its_root() -> None:
    root = "com.example.Odd: it broke"
    assert printed(OfJava("Writing job failed.", TRACE.format(root))).endswith(f"by {root}\n")
    assert printed(OfJava("It failed", cause=OfJava(root))).endswith(f"by OfJava: {root}\n")


def test_why_takes_a_refusal_of_ours_for_ours_whatever_its_class() -> None:
    with pytest.raises(TypeError) as caught:
        why(42)
    assert printed(caught.value) == f"{caught.value}\n"


def test_a_connection_that_spark_closes_at_the_end_of_a_query_prints_no_traceback() -> None:
    program = """
import __main__
import traceback
from importlib.machinery import ModuleSpec
from pyspark_timestream.core.adapters import hide_tracebacks
@hide_tracebacks
class Writer:
    def write(self): pass
__main__.__spec__ = ModuleSpec("pyspark.daemon", None)
Writer().write()
for error in (BrokenPipeError(32, "Broken pipe"), ValueError("a bug")):
    try:
        raise error
    except Exception:
        traceback.print_exc()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "BrokenPipeError" not in done.stderr
    assert "ValueError: a bug" in done.stderr


def test_why_of_queries_without_a_failure_points_to_explain_time() -> None:
    assert "explain_time(query)" in printed(Query(None, running=True))
    assert printed(Query(None)) == "the query has stopped without an error\n"


@pytest.mark.usefixtures("without_jvm")
def test_why_of_a_format_that_was_not_found_names_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/nowhere/jupyter")
    said = printed(RuntimeError(NOT_FOUND))
    assert said.startswith("format 'tseries' was not found: Spark starts its Python workers as")
    assert "'/nowhere/jupyter'" in said
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    assert "Skipping the lookup of Python Data Sources" in printed(RuntimeError(NOT_FOUND))


def test_why_without_an_argument_takes_the_last_uncaught_exception(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "last_value", RuntimeError(STREAM_FAILED), raising=False)
    why()
    assert capsys.readouterr().out == f"{OURS}\n"


def test_why_of_anything_else_says_what_it_wants() -> None:
    with pytest.raises(TypeError, match="accepted are an exception and a streaming query"):
        why(42)
