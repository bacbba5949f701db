"""`explain_time(query)`: explains why a query does not emit, or loses rows."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_timestream.core.why import find_own_message
from pyspark_timestream.diagnose.checkpoint import read_offset_log, resolve_directory
from pyspark_timestream.diagnose.diagnosis import Diagnosis, Kind
from pyspark_timestream.diagnose.history import (
    Batch,
    build_histories,
    read_operators,
    read_progress,
)
from pyspark_timestream.diagnose.mistakes import (
    ONE_BATCH,
    Operator,
    find_plan_mistakes,
    find_progress_mistake,
    makes_ctis,
)
from pyspark_timestream.diagnose.report import Explanation, explain_stream
from pyspark_timestream.errors import CheckpointUnreadable, compose_message
from pyspark_timestream.frames.plans import LOST_CTIS, loses_ctis
from pyspark_timestream.frames.watermark import has_ended


def explain_time(query: StreamingQuery, details: bool = False) -> Explanation:
    """Explain what holds the CTIs of `query` back, why rows are lost, and the fix.

    Prints as text; a notebook shows a picture. Works on a running query, a stopped and a failed
    one. Everything is as of the start of the query's last batch. The past comes from the query's
    recent progress and, where the checkpoint is a local directory, from its offset log, which a
    client of Spark Connect does not reach. The rows of state that wait for later CTIs are counted
    by operator.

    Args:
        query: the query.
        details: show all diagnoses in full; else the first one, and a line of four others.

    Raises:
        TypeError: `query` is something else, such as a DataFrame.
        CheckpointMismatch: the checkpoint was written by a newer version.
    """
    if not hasattr(query, "recentProgress"):
        raise TypeError(
            compose_message(
                f"explain_time got a {type(query).__name__}",
                "the StreamingQuery that .start() returns",
                "query = df.writeStream....start(), then explain_time(query); of a query that is "
                "gone, `python -m pyspark_timestream explain --checkpoint DIRECTORY` says the same",
            )
        )
    reports = [json.loads(each.json) for each in query.recentProgress]
    batches = [*_read_offset_log(query), *map(read_progress, reports)]
    streams = build_histories(batches)
    failed = query.exception() is not None
    known = _find_plan_mistakes(query, batches, reports)
    once = [ONE_BATCH] if _runs_one_batch(query) else []
    return Explanation(
        f"Query {query.name!r} ({query.id})" if query.name else f"Query {query.id}",
        tuple(
            explain_stream(
                history,
                failed,
                [*known.get(stream, ()), *(once if makes_ctis(history[-1]) else ())],
            )
            for stream, history in streams.items()
        ),
        tuple(_list_notes(query, bool(streams))),
        read_operators(reports[-1]) if reports else (),
        details,
    )


def _runs_one_batch(query: StreamingQuery) -> bool:
    """True if the query has the trigger `once`, as far as the client knows."""
    try:
        java: Any = query._jsq
        name = str(java.streamingQuery().trigger().getClass().getSimpleName())
    except (AttributeError, Py4JError):
        return False
    return name.startswith("OneTimeTrigger")


def _find_plan_mistakes(
    query: StreamingQuery, batches: Sequence[Batch], reports: Sequence[Mapping[str, Any]]
) -> dict[str, list[Diagnosis]]:
    """The mistakes in the query's plan, or in its progress if the client has no plan, by stream."""
    offsets = batches[-1].offsets if batches else ()
    streams = [each.get("stream") if isinstance(each, dict) else None for each in offsets]
    found: Sequence[Diagnosis | None]
    try:
        java: Any = query._jsq
        found = find_plan_mistakes(_read_operator(java.streamingQuery().logicalPlan()))
    except (AttributeError, Py4JError):
        alone = len(streams) == 1 and reports and batches[-1].reports
        found = [find_progress_mistake(reports[-1], batches[-1].reports[0] or {})] if alone else []
    if not any(found) and loses_ctis(reports, has_ended=_has_ended(query)):
        found = [Diagnosis(Kind.LOST_CTIS, "a step before advance_time", LOST_CTIS)] * len(streams)
    pairs = zip(streams, found, strict=False)
    return {stream: [each] for stream, each in pairs if stream is not None and each is not None}


def _has_ended(query: StreamingQuery) -> bool:
    """True if the query's streams have ended, and what that releases is out."""
    return not query.isActive and query.exception() is None and has_ended(query)


def _read_operator(node: Any) -> Operator:
    """A node of Spark's plan, and all below it."""
    name = str(node.getClass().getSimpleName())
    inputs, children = [], node.children().iterator()
    while children.hasNext():
        inputs.append(_read_operator(children.next()))
    watermark = str(node.eventTime().name()) if name == "EventTimeWatermark" else None
    columns = []
    if not inputs and node.isStreaming():
        attributes = node.output().iterator()
        while attributes.hasNext():
            columns.append(str(attributes.next().name()))
    return Operator(name, tuple(inputs), watermark, tuple(columns))


def _read_offset_log(query: StreamingQuery) -> list[Batch]:
    """The batches in the checkpoint's offset log, if this client can read it.

    The log goes back over restarts and has the batch that runs now, but only Spark's classic client
    knows its place.
    """
    try:
        java: Any = query._jsq
        root = resolve_directory(java.streamingQuery().resolvedCheckpointRoot())
        return list(read_offset_log(root)[0].values())
    except (AttributeError, Py4JError, CheckpointUnreadable):
        return []


def _list_notes(query: StreamingQuery, has_streams: bool) -> Iterator[str]:
    failure = query.exception()
    if failure is not None:
        yield f"the query has failed: {find_own_message(str(failure)) or 'why(query) says why'}"
    elif not query.isActive:
        yield "the query has stopped"
    if not hasattr(query, "_jsq"):
        yield (
            "Spark Connect shows only the query's recent batches: `python -m pyspark_timestream "
            "explain --checkpoint DIRECTORY`, run where the checkpoint is, knows all of them"
        )
    if not has_streams:
        yield (
            "no Kafka stream of format 'timestream' has planned a batch yet: ask again when the "
            "query has run one"
        )
    if _lacks_retained_range(query):
        yield (
            "the sink 'tseries' was given no 'retainedRange': a store that this query has created "
            "keeps 'limit 10', so that reads show the ten newest events of each series"
        )


def _lacks_retained_range(query: StreamingQuery) -> bool:
    """True if the query writes into format `tseries` without a retained range."""
    try:
        java: Any = query._jsq
        write = java.streamingQuery().logicalPlan()
        if write.getClass().getSimpleName() != "WriteToMicroBatchDataSource":
            return False
        names = write.writeOptions().keysIterator()
        given = set()
        while names.hasNext():
            given.add(str(names.next()).lower())
        return write.table().name() == "tseries" and "retainedrange" not in given
    except (AttributeError, Py4JError):
        return False
