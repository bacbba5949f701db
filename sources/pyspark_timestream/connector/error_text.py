"""Our own sentence in the text that Spark makes of an error, and `why`, which prints it.

Spark wraps what a Python data source raises in messages of its own: what it was doing, the id of
the query, its plan, the frames of JVM and Python. In the midst is `pyspark_timestream.DataLost: `
or the like, where that name can be imported from, and then the sentence that says what to do.
"""

import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

__all__ = ["find_own_message", "is_own_error", "why"]

_PACKAGES: Final = ("pyspark_timestream", "pyspark_tseries")
_OWN: Final = re.compile(rf"\b(?:{'|'.join(_PACKAGES)})(?:\.\w+)+: ")
_END: Final = re.compile(
    r"\s*(?:\sSQLSTATE: |\n\s*at [\w$.]+[(/]|\n+JVM stacktrace:|\n+Driver stacktrace:"
    r"|\n=== Streaming Query ===|\n+Traceback \(most|\n+The above exc|\n+During handling|\Z)"
)
_NOT_FOUND: Final = re.compile(r"\[DATA_SOURCE_NOT_FOUND\].*: (timestream|tseries)\b")


def is_own_error(error: BaseException) -> bool:
    """Whether the class of `error` is one of ours: it says what the user can do."""
    return type(error).__module__.partition(".")[0] in _PACKAGES


def find_own_message(text: str) -> str | None:
    """The message of the last error of ours that `text` quotes, without the name of its class.

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
    """Print what went wrong as one sentence of ours, without Spark's traces.

        try:
            query.awaitTermination()
        except Exception as error:
            why(error)

    Args:
        error_or_query: an exception that Spark, a store or a helper raised, or a streaming query;
            None: the last exception that nobody caught, at a prompt or in a notebook.
        file: where to print; None: standard output.
    """
    print(_answer(error_or_query), file=file)


def _answer(subject: Any) -> str:
    if subject is None:
        subject = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if subject is None:
            return "no exception has been left uncaught: pass an exception or a streaming query"
    if isinstance(subject, BaseException):
        return _reason(subject)
    if not callable(getattr(subject, "exception", None)):
        raise TypeError(
            f"why({subject!r}): accepted are an exception and a streaming query, such as "
            "'query' in query = df.writeStream...start()"
        )
    failure = subject.exception()
    if failure is not None:
        return _reason(failure)
    if subject.isActive:
        return "the query runs: explain_time(query) says what holds its results back"
    return "the query has stopped without an error"


def _reason(error: BaseException) -> str:
    chain = list(_chain(error))
    for each in chain:
        if is_own_error(each):
            return str(each)
    for each in chain:
        if message := find_own_message(str(each)):
            return message
        if missing := _NOT_FOUND.search(str(each)):
            # Imported late: this module is read where there is no Spark.
            from pyspark_timestream.connector.session import missing_format

            return missing_format(missing.group(1))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    return f"not an error of timestream or tseries: {type(error).__name__}: {first}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and what led to it, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
