"""Awaits the end of bounded streams, and ends running ones by a final CTI (semantics 11.12).

The request to end is a file beside the driver (`core/processes.py`).

A client of Spark Connect may run far from the driver. But Spark asks a Python data source for its
columns in a process beside the driver, with the driver's environment. So a source without rows
makes the request there.
"""

import time
from threading import Thread
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_timestream.core.adapters import hide_tracebacks
from pyspark_timestream.core.checkpoint import CTI_SETTINGS, parse_offset
from pyspark_timestream.core.instants import read_seconds
from pyspark_timestream.core.processes import EndRequests, find_directory
from pyspark_timestream.errors import compose_message

_FORMAT: Final = "timestream_end_request"
_MAKE, _WITHDRAW = "make", "withdraw"


def await_end(query: StreamingQuery, poll_seconds: float = 0.2) -> None:
    """Wait until `query`'s bounded streams have delivered their end, then stop it cleanly.

    Option `maxCount` bounds transport `time`, an ending option or `endingCti` bounds transport
    `kafka`, and AvailableNow bounds any transport. On return the sink has everything that the end
    releases: with a final CTI every window; with a clock, the windows that its last tick closes.

    Raises:
        OptionError: `poll_seconds` is not above 0.
        StreamingQueryException: the query failed.
    """
    poll_s = read_seconds("poll_seconds", poll_seconds)
    while query.isActive and not has_ended(query):
        time.sleep(poll_s)
    if query.isActive:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()


def has_ended(query: StreamingQuery) -> bool:
    """Return whether all bounded sources of `query` have reported their end."""
    progress = query.lastProgress
    reports = [parse_offset(source.latestOffset) for source in progress.sources] if progress else []
    ends = [report["endOfStream"] for report in reports if "endOfStream" in report]
    return bool(ends) and all(ends)


def end_stream(
    query: StreamingQuery, timeout_seconds: float = 600.0, poll_seconds: float = 0.2
) -> None:
    """End the streams of a running query with a final CTI, and stop the query.

    The query reads up to the current end of its topics. Then a final CTI, 9999-12-31T23:59:59Z,
    releases every window. When the sink has everything, this function stops the query. Its streams
    have then ended for good, as with `finalCti` (semantics 7.3 and 11.12).

    Args:
        query: a running query that reads only from transport `kafka`.
        timeout_seconds: the longest wait for the end, including the wait for a first batch.
        poll_seconds: check the query at this interval.

    Raises:
        ValueError: the query does not run, stops before its streams have ended, or reads something
            other than topics; or a time to wait is not one.
        TimeoutError: the query has not ended in time. It continues, and may still end.
        StreamingQueryException: the query failed.
    """
    timeout_s = read_seconds("timeout_seconds", timeout_seconds, is_zero_allowed=True)
    poll_s = read_seconds("poll_seconds", poll_seconds)
    deadline_s = time.monotonic() + timeout_s
    if not query.isActive:
        raise ValueError(
            compose_message(
                f"query {query.id} does not run", "a running query", "call end_stream before stop()"
            )
        )
    requests = _open_requests(query)
    streams = _find_streams(query, deadline_s, poll_s)
    try:
        while query.isActive and not _has_final_end(query):
            # Repeat the request: a reader that has just started discards it as a leftover.
            for stream in streams:
                requests.make(stream)
            _sleep_until(deadline_s, poll_s, "has not ended")
        if query.isActive:
            _process_all(query, deadline_s)
            query.stop()
        query.awaitTermination()
        if not _has_final_end(query):
            raise ValueError(
                compose_message(
                    f"query {query.id} stopped before it was told to end, so its windows wait",
                    None,
                    "start it again on its checkpoint, without AvailableNow, and call end_stream",
                )
            )
    finally:
        for stream in streams:
            requests.withdraw(stream)


def _has_final_end(query: StreamingQuery) -> bool:
    """Return whether each stream has ended with a final CTI, or for good if it has no CTIs.

    `has_ended` is not enough: a bounded run, or a stream with its own end, also reports its end
    without a final CTI.
    """
    progress = query.lastProgress
    if not progress or not has_ended(query):
        return False
    offsets = [_read_offset(source.endOffset) for source in progress.sources]
    return all(
        offset["final"]
        or (offset["end_of_run"] and offset["settings"].keys().isdisjoint(CTI_SETTINGS))
        for offset in offsets
    )


def _process_all(query: StreamingQuery, deadline_s: float) -> None:
    """Wait until the sink has everything; in a thread, because Spark's call has no timeout."""
    failures: list[Exception] = []

    def process() -> None:
        try:
            query.processAllAvailable()
        except Exception as error:
            failures.append(error)

    thread = Thread(target=process, daemon=True)
    thread.start()
    thread.join(max(deadline_s - time.monotonic(), 0))
    if thread.is_alive():
        raise _time_out("has not written all that its final CTI releases")
    if failures:
        raise failures[0]


def _find_streams(query: StreamingQuery, deadline_s: float, poll_s: float) -> list[str]:
    """Return the ids of the query's streams, once its first batch has named them."""
    while query.isActive:
        progress = query.lastProgress
        if progress:
            return [str(_read_offset(source.endOffset)["stream"]) for source in progress.sources]
        _sleep_until(deadline_s, poll_s, "has not run a batch")
    query.awaitTermination()
    raise ValueError(f"query {query.id} stopped before its first batch")


def _read_offset(end_offset: Any) -> dict[str, Any]:
    offset = parse_offset(end_offset)
    if "partitions" in offset and "stream" in offset:
        return offset
    raise ValueError(
        compose_message(
            "the query has a source that is not a topic read by format 'timestream'",
            "a query with transport 'kafka' in all of its sources",
            "stop it with query.stop(); a clock ends with option 'maxCount'",
        )
    )


def _sleep_until(deadline_s: float, poll_s: float, shortfall: str) -> None:
    if time.monotonic() > deadline_s:
        raise _time_out(shortfall)
    time.sleep(poll_s)


def _time_out(shortfall: str) -> TimeoutError:
    return TimeoutError(
        compose_message(
            f"the query {shortfall} within timeout_seconds",
            None,
            "see explain_time(query); a trigger with a long interval needs a longer timeout",
        )
    )


@hide_tracebacks
class EndRequestSource(DataSource):
    """Makes or withdraws the request for `stream` when Spark asks for its columns; has no rows."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name, which only this module uses."""
        return _FORMAT

    def schema(self) -> StructType:
        """Make or withdraw the request, on the driver's machine."""
        requests = EndRequests(find_directory())
        act = requests.make if self.options["act"] == _MAKE else requests.withdraw
        act(self.options["stream"])
        return StructType([StructField("stream", StringType())])


class ServerEndRequests:
    """Like `EndRequests`, but beside the driver of the Spark Connect server of a session."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._sent = 0
        spark.dataSource.register(EndRequestSource)

    def make(self, stream: str) -> None:
        """Ask the stream with that id to end; a repeated request changes nothing."""
        self._send(_MAKE, stream)

    def withdraw(self, stream: str) -> None:
        """Withdraw the request."""
        self._send(_WITHDRAW, stream)

    def _send(self, act: str, stream: str) -> None:
        self._sent += 1
        # The number makes each read differ: Spark may cache the columns of one that it has planned.
        options = {"act": act, "stream": stream, "number": str(self._sent)}
        _ = self._spark.read.format(_FORMAT).options(**options).load().schema


def _open_requests(query: Any) -> EndRequests | ServerEndRequests:
    """Return the place beside Spark's driver where the query's readers look for requests."""
    if hasattr(query, "_jsq"):
        jvm: Any = SparkContext._jvm
        return EndRequests(find_directory(jvm.java.lang.System.getenv))
    # The driver of a Spark Connect query may be on another machine.
    return ServerEndRequests(query._session)
