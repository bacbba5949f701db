"""`why`: finds this package's message in the text that Spark makes of an error, and prints it.

Spark wraps an exception of a Python data source in its own messages, with the query's id and plan
and the frames of JVM and Python. The text contains a name that users import, such as
`pyspark_timestream.DataLost: `, followed by the sentence with the next step.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any, Final, TextIO

from pyspark_timestream.errors import compose_message, walk_causes

_PACKAGES: Final = ("pyspark_timestream", "pyspark_tseries")
_OWN: Final = re.compile(rf"\b(?:{'|'.join(_PACKAGES)})(?:\.\w+)+: ")
"""The class name in front of the message of one of our errors."""

_END: Final = re.compile(
    r"\s*(?:\sSQLSTATE: |\n\s*at [\w$.]+[(/]|\n+JVM stacktrace:|\n+Driver stacktrace:"
    r"|\n=== Streaming Query ===|\n+Traceback \(most|\n+The above exc|\n+During handling|\Z)"
)
"""The text that Spark, Java or Python adds after the message of one of our errors."""

_NOT_FOUND: Final = re.compile(r"\[DATA_SOURCE_NOT_FOUND\].*: (timestream|tseries)\b")


_CAUSED_BY: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_RESUMES: Final = "start the query again: it goes on where it was"
_FOREIGN_CAUSES: Final = (
    (
        # Microseconds, as pyarrow names them: 9999-12-31T23:59:59Z.
        re.compile(r"out of bounds timestamp: 253402300799000000"),
        "pandas got the row of the final CTI, 9999-12-31T23:59:59Z, and its times end in 2262",
        "keep CTI rows from it: batch.where('cti IS NULL').drop('cti') before toPandas(), and "
        "advance_time(df) before mapInPandas; or let it see F.expr(\"if(cti > '2262-01-01', "
        "timestamp'2262-01-01', cti)\"), or use toArrow and mapInArrow, which hold all times",
    ),
    (
        re.compile(r"out of bounds timestamp: -?\d+"),
        "pandas got a time that it cannot hold: its times are from 1677-09-22 to 2262-04-11",
        "leave such rows out, or use toArrow and mapInArrow, which hold all times",
    ),
    (
        re.compile(
            r"CONCURRENT_STREAM_LOG_UPDATE|Concurrent update to the log"
            r"|Multiple streaming queries are concurrently using"
        ),
        "two queries run on one checkpoint, and Spark has ended this one",
        "let one of them run alone, and give the other a checkpointLocation of its own",
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE),
        "a disk that Spark writes to is full",
        f"free space where the checkpoint and spark.local.dir are, then {_RESUMES}",
    ),
    (
        re.compile(r"Read-only file system", re.IGNORECASE),
        "a file system that Spark writes to is read-only",
        f"mount the one with the checkpoint and spark.local.dir writable, then {_RESUMES}",
    ),
    (
        re.compile(r"AccessControlException|AccessDeniedException|\(Permission denied\)"),
        "Spark may not read or write a file",
        f"give its user the right to the checkpoint and spark.local.dir, then {_RESUMES}",
    ),
    (
        re.compile(r"Too many open files"),
        "Spark may open no more files",
        f"raise the limit (ulimit -n), then {_RESUMES}",
    ),
    (
        re.compile(
            r"File \S+(?:\.tmp|/(?:offsets|commits|sources/\d+|state/\d+/\d+)) does not exist"
            r"|chmod: cannot access '\S+\.tmp': No such file"
            r"|NoSuchFileException: \S*/blockmgr-[^;\s]*"
            r"|FileNotFoundException: \S*/blockmgr-\S* \(No such file or directory\)"
        ),
        "a directory that Spark writes to has gone",
        f"bring the mount with the checkpoint and spark.local.dir back, then {_RESUMES}",
    ),
    (
        re.compile(
            r"Python worker exited unexpectedly"
            r"|java\.\w+\.(?:EOFException|IOException: (?:Broken pipe|Stream closed)"
            r"|\w+Exception: Connection reset)"
            r"[^\n]*(?:\n\s+at (?!org\.apache)[^\n]+)*"
            r"\n\s+at org\.apache\.spark\.sql\.execution\.(?:datasources\.v2\.)?python\."
        ),
        "a process of Python that Spark runs for the query has ended",
        f"{_RESUMES}; if it ends again, see whether the system took its memory (dmesg)",
    ),
    (
        re.compile(r"Python worker (?:failed )?to connect back"),
        "a process of Python took longer to start than Spark waits for it",
        f"give the machine less to do at once, or more cores, then {_RESUMES}",
    ),
    (
        re.compile(r"java\.lang\.OutOfMemoryError"),
        "Spark's JVM has too little memory",
        f"raise spark.driver.memory or spark.executor.memory, then {_RESUMES}",
    ),
)
"""Errors of Spark and Java that users of the formats meet: pattern, problem, next step."""


def is_own_error(error: BaseException) -> bool:
    """Return whether one of the two packages defines the class of `error`."""
    return type(error).__module__.partition(".")[0] in _PACKAGES


def find_own_message(text: str) -> str | None:
    """Return the message of the last of our errors that `text` quotes, without its class name.

    >>> find_own_message("[STREAM_FAILED] pyspark_timestream.DataLost: gone; do this")
    'gone; do this'
    """
    messages = list(_OWN.finditer(text))
    if not messages:
        return None
    begin = messages[-1].end()
    end = _END.search(text, begin)
    return text[begin : end.start() if end else None]


def why(error_or_query: Any = None, *, file: TextIO | None = None) -> None:
    """Print the reason for an error as one sentence, without Spark's traces.

        try:
            query.awaitTermination()
        except Exception as error:
            why(error)

    Args:
        error_or_query: an exception that Spark, a store or a helper raised, or a streaming query;
            None: the last uncaught exception, at a prompt or in a notebook.
        file: receives the sentence; None: standard output.
    """
    print(_explain(error_or_query), file=file)


def _explain(subject: Any) -> str:
    if subject is None:
        subject = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if subject is None:
            return "no exception has been left uncaught: pass an exception or a streaming query"
    if isinstance(subject, BaseException):
        return _find_reason(subject)
    if not callable(getattr(subject, "exception", None)):
        raise TypeError(
            f"why({subject!r}): accepted are an exception and a streaming query, such as "
            "'query' in query = df.writeStream...start()"
        )
    failure = subject.exception()
    if failure is not None:
        return _find_reason(failure)
    if subject.isActive:
        return "the query runs: explain_time(query) says what holds its results back"
    return "the query has stopped without an error"


def _find_reason(error: BaseException) -> str:
    chain = list(walk_causes(error))
    for cause in chain:
        if is_own_error(cause) or _is_raised_here(cause):
            return str(cause)
    texts = [text for cause in chain for text in _find_texts(cause)]
    for text in texts:
        if message := find_own_message(text):
            return message
        if missing := _NOT_FOUND.search(text):
            # Imported late: this module also loads where there is no Spark.
            from pyspark_timestream.core.session import explain_missing_format

            return explain_missing_format(missing.group(1))
    for pattern, problem, next_step in _FOREIGN_CAUSES:
        if any(pattern.search(text) for text in texts):
            return compose_message(f"{problem} ({_find_root(texts, pattern)})", None, next_step)
    kind = type(error).__name__
    outcome = f"not an error of timestream or tseries: {kind}: {_first_line(texts[0])}"
    causes = [line for text in texts for line in _CAUSED_BY.findall(text)]
    root = causes[-1] if causes else f"{type(chain[-1]).__name__}: {_first_line(str(chain[-1]))}"
    return outcome if len(chain) == 1 and not causes else f"{outcome}; caused by {root}"


def _is_raised_here(error: BaseException) -> bool:
    """Return whether code of the two packages raised a built-in error about an argument."""
    if not isinstance(error, TypeError | ValueError) or error.__traceback__ is None:
        return False
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES


def _find_texts(error: BaseException) -> list[str]:
    """Return an error's own text, and the Java stack traces that Spark keeps with it."""
    traces = (getattr(error, name, None) for name in ("_stackTrace", "_stacktrace"))
    return [str(error), *(text for text in traces if isinstance(text, str))]


def _find_root(texts: Sequence[str], pattern: re.Pattern[str]) -> str:
    """Return the last line that `pattern` finds, or begins in: the root cause's."""
    lines = [line for text in texts for line in text.splitlines() if pattern.search(line)]
    # A pattern that looks at the trace below the error's line finds no single line.
    lines = lines or [match[0].splitlines()[0] for text in texts if (match := pattern.search(text))]
    line = lines[-1].strip().removeprefix("Caused by: ")
    return line.rsplit("with exception: ", 1)[-1].partition(" SQLSTATE")[0]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
