"""Our sentence out of what Spark makes of an error; the texts are Spark 4.3's, shortened."""

from __future__ import annotations

import io
import sys

import pytest

from pyspark_timestream import DataLost, why
from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.connector.why import find_own_message
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
    _commit(self._target, tasks, (f"tseries:q:{{_query_id(tasks)}}", batchId))
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
    """A streaming query, as far as `why` looks at one."""

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


def test_why_of_queries_without_a_failure_points_to_explain_time() -> None:
    assert "explain_time(query)" in printed(Query(None, running=True))
    assert printed(Query(None)) == "the query has stopped without an error\n"


def test_why_of_a_format_that_was_not_found_names_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.SparkContext._jvm", None)
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
