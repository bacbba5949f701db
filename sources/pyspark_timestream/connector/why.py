"""`why`: prints the message of this package out of the text that Spark makes of an error.

Spark wraps an exception of a Python data source in messages of its own, with the query's id and
plan and the frames of JVM and Python. Somewhere in it stands `pyspark_timestream.DataLost: ` or
the like, the name that users import, followed by the sentence with the next step.
"""

import re
import sys
from typing import Any, Final, TextIO

from pyspark_timestream.errors import walk_causes

__all__ = ["find_own_message", "is_own_error", "why"]

_PACKAGES: Final = ("pyspark_timestream", "pyspark_tseries")
_OWN: Final = re.compile(rf"\b(?:{'|'.join(_PACKAGES)})(?:\.\w+)+: ")
_END: Final = re.compile(
    r"\s*(?:\sSQLSTATE: |\n\s*at [\w$.]+[(/]|\n+JVM stacktrace:|\n+Driver stacktrace:"
    r"|\n=== Streaming Query ===|\n+Traceback \(most|\n+The above exc|\n+During handling|\Z)"
)
_NOT_FOUND: Final = re.compile(r"\[DATA_SOURCE_NOT_FOUND\].*: (timestream|tseries)\b")


def is_own_error(error: BaseException) -> bool:
    """True if the class of `error` belongs to one of the two packages."""
    return type(error).__module__.partition(".")[0] in _PACKAGES


def find_own_message(text: str) -> str | None:
    """The message of the last own error that `text` quotes, without the name of its class.

    >>> find_own_message("[STREAM_FAILED] pyspark_timestream.DataLost: gone; do this")
    'gone; do this'
    """
    found = list(_OWN.finditer(text))
    if not found:
        return None
    begin = found[-1].end()
    end = _END.search(text, begin)
    return text[begin : end.start() if end else None]


def why(error_or_query: Any = None, *, file: TextIO | None = None) -> None:
    """Print the reason of an error as one sentence, without Spark's traces.

        try:
            query.awaitTermination()
        except Exception as error:
            why(error)

    Args:
        error_or_query: an exception that Spark, a store or a helper raised, or a streaming query;
            None: the last uncaught exception, at a prompt or in a notebook.
        file: where to print; None: standard output.
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
    for each in chain:
        if is_own_error(each):
            return str(each)
    for each in chain:
        if message := find_own_message(str(each)):
            return message
        if missing := _NOT_FOUND.search(str(each)):
            # Imported late: this module is read where there is no Spark.
            from pyspark_timestream.connector.session.settings import explain_missing_format

            return explain_missing_format(missing.group(1))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    return f"not an error of timestream or tseries: {type(error).__name__}: {first}"
