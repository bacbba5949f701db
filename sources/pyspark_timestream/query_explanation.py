"""`explain_time(query)`: why a query does not emit, or loses rows, from what Spark knows of it."""

import json
from collections.abc import Iterator
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_timestream.checkpoint import local_directory, read_offset_log
from pyspark_timestream.errors import CheckpointUnreadable
from pyspark_timestream.explanation import explain_stream
from pyspark_timestream.explanation_views import Explanation
from pyspark_timestream.stream_history import Batch, histories, read_progress

__all__ = ["explain_time"]

_OUR_ERRORS: Final = "pyspark_timestream.errors."


def explain_time(query: StreamingQuery) -> Explanation:
    """Where the Kafka streams of `query` stand, what holds each one's CTI back, and the fix.

    Prints as text; a notebook shows a picture. Works on a running query, a stopped and a failed
    one. Everything is as of the start of the query's last batch. The past comes from the query's
    recent progress and, where the checkpoint is a local directory, from its offset log.

    Raises:
        CheckpointMismatch: the checkpoint was written by a newer version.
    """
    progress = [read_progress(json.loads(each.json)) for each in query.recentProgress]
    streams = histories([*_logged(query), *progress])
    return Explanation(
        f"Query {query.name!r} ({query.id})" if query.name else f"Query {query.id}",
        tuple(explain_stream(each, query.exception() is not None) for each in streams.values()),
        tuple(_notes(query, bool(streams))),
    )


def _logged(query: StreamingQuery) -> list[Batch]:
    """The batches in the checkpoint's offset log, where this client can see it.

    The log reaches back over restarts and holds the batch that runs now, but only Spark's classic
    client says where it is.
    """
    try:
        java: Any = query._jsq
        root = local_directory(java.streamingQuery().resolvedCheckpointRoot())
        return list(read_offset_log(root)[0].values())
    except (AttributeError, Py4JError, CheckpointUnreadable):
        return []


def _notes(query: StreamingQuery, has_streams: bool) -> Iterator[str]:
    failure = query.exception()
    if failure is not None:
        own = [line for line in str(failure).splitlines() if _OUR_ERRORS in line]
        said = own[-1].partition(_OUR_ERRORS)[2] if own else "query.exception() says why"
        yield f"the query has failed: {said}"
    elif not query.isActive:
        yield "the query has stopped"
    if not has_streams:
        yield (
            "no Kafka stream of format 'timestream' has planned a batch yet: ask again when the "
            "query has run one"
        )
