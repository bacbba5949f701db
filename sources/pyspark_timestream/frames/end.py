"""Ends a running stream: a final CTI releases all, then the query stops (semantics 11.12)."""

import time
from threading import Thread
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_timestream.core.checkpoint import CTI_SETTINGS, parse_offset
from pyspark_timestream.errors import compose_message
from pyspark_timestream.frames.end_requests import EndRequests, ServerEndRequests, find_directory
from pyspark_timestream.frames.watermark import has_ended


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
            other than topics.
        TimeoutError: the query has not ended in time. It continues, and may still end.
        StreamingQueryException: the query failed.
    """
    deadline_s = time.monotonic() + timeout_seconds
    if not query.isActive:
        raise ValueError(
            compose_message(
                f"query {query.id} does not run", "a running query", "call end_stream before stop()"
            )
        )
    requests = _open_requests(query)
    streams = _find_streams(query, deadline_s, poll_seconds)
    try:
        while query.isActive and not _has_final_end(query):
            # Repeat the request: a reader that has just started discards it as a leftover.
            for stream in streams:
                requests.make(stream)
            _sleep_until(deadline_s, poll_seconds, "has not ended")
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


def _find_streams(query: StreamingQuery, deadline_s: float, poll_seconds: float) -> list[str]:
    """Return the ids of the query's streams, once its first batch has named them."""
    while query.isActive:
        progress = query.lastProgress
        if progress:
            return [str(_read_offset(source.endOffset)["stream"]) for source in progress.sources]
        _sleep_until(deadline_s, poll_seconds, "has not run a batch")
    query.awaitTermination()
    raise ValueError(f"query {query.id} stopped before its first batch")


def _read_offset(end_offset: Any) -> dict[str, Any]:
    offset = parse_offset(end_offset)
    if "partitions" in offset and "stream" in offset:
        return offset
    raise ValueError(
        compose_message(
            "the query has a source that is not a topic read by format 'timestream'",
            "a query all of whose sources have transport 'kafka'",
            "stop it with query.stop(); a clock ends with option 'maxCount'",
        )
    )


def _sleep_until(deadline_s: float, poll_seconds: float, what: str) -> None:
    if time.monotonic() > deadline_s:
        raise _time_out(what)
    time.sleep(poll_seconds)


def _time_out(what: str) -> TimeoutError:
    return TimeoutError(
        compose_message(
            f"the query {what} within timeout_seconds",
            None,
            "see explain_time(query); a trigger with a long interval needs a longer timeout",
        )
    )


def _open_requests(query: Any) -> EndRequests | ServerEndRequests:
    """Return the place beside Spark's driver where the query's readers look for requests."""
    if hasattr(query, "_jsq"):
        jvm: Any = SparkContext._jvm
        return EndRequests(find_directory(jvm.java.lang.System.getenv))
    # The driver of a Spark Connect query may be on another machine.
    return ServerEndRequests(query._session)
