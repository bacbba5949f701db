"""`explain_time(query)`: explains why a query does not emit, or loses rows.

A plan is a tree of operators. If a stream has CTIs, `advance_time`, which is a watermark on the
column `cti`, must come before the first operator with state on the way from the source.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_timestream.commands.explanation import (
    Explanation,
    StreamExplanation,
    explain_stream,
    read_operators,
)
from pyspark_timestream.core.arrow import CTI_COLUMN
from pyspark_timestream.core.checkpoint import resolve_directory
from pyspark_timestream.core.instants import parse_instant
from pyspark_timestream.core.why import find_own_message
from pyspark_timestream.errors import CheckpointUnreadable, compose_message
from pyspark_timestream.frames.cti_path import JOIN
from pyspark_timestream.frames.end import has_ended
from pyspark_timestream.frames.plans import LOST_CTIS, ClassicOperator, loses_ctis
from pyspark_timestream.kafka.diagnosis.diagnoses import Diagnosis, Kind
from pyspark_timestream.kafka.diagnosis.history import (
    BatchReport,
    build_histories,
    read_offset_log,
    read_progress,
)
from pyspark_timestream.kafka.diagnosis.mistakes import makes_ctis

T = TypeVar("T")


def explain_time(query: StreamingQuery, details: bool = False) -> Explanation:
    """Explain what holds the CTIs of `query` back, why rows are lost, and the fix.

    The result prints as text; a notebook shows a picture. The query may run, or have stopped or
    failed. Everything is as of the start of its last batch. The past comes from the query's recent
    progress and, if the checkpoint is a local directory, from its offset log, which a client of
    Spark Connect cannot reach. Rows of state that wait for later CTIs are counted by operator.

    Args:
        query: the query.
        details: show all diagnoses in full; else the first, and one line each for four others.

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
    reports = [json.loads(report.json) for report in query.recentProgress]
    batches = [*_read_offset_log(query), *map(read_progress, reports)]
    streams = build_histories(batches)
    failed = query.exception() is not None
    mistakes = _find_plan_mistakes(query, batches, reports)
    once = [ONE_BATCH] if _runs_one_batch(query) else []
    explained = tuple(
        explain_stream(
            history,
            failed,
            [*mistakes.get(stream, ()), *(once if makes_ctis(history[-1]) else ())],
        )
        for stream, history in streams.items()
    )
    return Explanation(
        f"Query {query.name!r} ({query.id})" if query.name else f"Query {query.id}",
        explained,
        tuple(_list_notes(query, explained, reports[-1] if reports else {})),
        read_operators(reports[-1]) if reports else (),
        details,
    )


def _ask_java(query: StreamingQuery, ask: Callable[[Any], T]) -> T | None:
    """Ask Spark's own object of the query; return None if this client has none."""
    try:
        java: Any = query._jsq
        return ask(java.streamingQuery())
    except (AttributeError, Py4JError):
        return None


def _runs_one_batch(query: StreamingQuery) -> bool:
    """Return whether this client can tell that the query has the trigger `once`."""
    name = _ask_java(query, lambda java: str(java.trigger().getClass().getSimpleName()))
    return name is not None and name.startswith("OneTimeTrigger")


def _find_plan_mistakes(
    query: StreamingQuery, batches: Sequence[BatchReport], reports: Sequence[Mapping[str, Any]]
) -> dict[str, list[Diagnosis]]:
    """Return by stream the mistakes in the query's plan, or in its progress if there is no plan."""
    offsets = batches[-1].offsets if batches else ()
    streams = [offset.get("stream") if isinstance(offset, dict) else None for offset in offsets]
    by_java = _ask_java(query, lambda java: find_plan_mistakes(ClassicOperator(java.logicalPlan())))
    causes: Sequence[Diagnosis | None] = by_java or []
    if by_java is None and len(streams) == 1 and reports and batches[-1].reports:
        causes = [find_progress_mistake(reports[-1], batches[-1].reports[0] or {})]
    # A query that is over may have ended its streams; then the rows that they release are out.
    is_over = not query.isActive and query.exception() is None
    if not any(causes) and loses_ctis(reports, has_ended=is_over and has_ended(query)):
        causes = [Diagnosis(Kind.LOST_CTIS, "a step before advance_time", LOST_CTIS)] * len(streams)
    pairs = zip(streams, causes, strict=False)
    return {stream: [cause] for stream, cause in pairs if stream is not None and cause is not None}


def _read_offset_log(query: StreamingQuery) -> list[BatchReport]:
    """Return the batches in the offset log, which only Spark's classic client finds."""
    location = _ask_java(query, lambda java: str(java.resolvedCheckpointRoot()))
    if location is None:
        return []
    try:
        batches, _ = read_offset_log(resolve_directory(location))
    except CheckpointUnreadable:
        return []
    return list(batches.values())


def _list_notes(
    query: StreamingQuery, streams: Sequence[StreamExplanation], progress: Mapping[str, Any]
) -> Iterator[str]:
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
    if not streams:
        yield (
            "no Kafka stream of format 'timestream' has planned a batch yet: ask again when the "
            "query has run one"
        )
    store_options = _ask_java(query, lambda java: _read_tseries_options(java.logicalPlan()))
    if store_options is not None and any(stream.is_wrong for stream in streams):
        yield (
            "the sink is a store: a query with a new checkpoint writes all of its input again, so "
            "where a fix asks for one, give the query a new path as well"
        )
    if store_options is not None and "retainedrange" not in store_options:
        yield (
            "the sink 'tseries' was given no 'retainedRange': a store that this query has created "
            "keeps 'limit 10', so that reads show the ten newest events of each series"
        )
    cores = _ask_java(query, lambda java: java.sparkSession().sparkContext().defaultParallelism())
    if cores is not None and (note := note_partitions(progress, cores)) is not None:
        yield note


_MIN_PARTITIONS: Final = 32
_PARTITIONS_OF_A_CORE: Final = 8
_ROWS_OF_A_PARTITION: Final = 100
"""A state of fewer rows in more partitions takes longer to look after than to compute."""


def note_partitions(progress: Mapping[str, Any], cores: int) -> str | None:
    """Say that a query's state has far more partitions than its rows and `cores` need, or None.

    Args:
        progress: the query's last progress, as parsed JSON.
        cores: how many tasks run at once.
    """
    for operator in progress.get("stateOperators") or ():
        partitions, rows = operator.get("numShufflePartitions", 0), operator.get("numRowsTotal", 0)
        is_many = partitions >= max(_MIN_PARTITIONS, _PARTITIONS_OF_A_CORE * cores)
        if is_many and rows < _ROWS_OF_A_PARTITION * partitions:
            return (
                f"each batch runs {partitions} tasks, {cores} at once, for {rows} rows of state: "
                "set spark.sql.shuffle.partitions to about the number of cores, as configure_spark "
                f"does, and begin with a new checkpoint, since this one keeps its {partitions}"
            )
    return None


def _read_tseries_options(write: Any) -> set[str] | None:
    """Return the option names of a plan that writes into `tseries`; None for another plan."""
    if write.getClass().getSimpleName() != "WriteToMicroBatchDataSource":
        return None
    names, options = write.writeOptions().keysIterator(), set()
    while names.hasNext():
        options.add(str(names.next()).lower())
    return options if write.table().name() == "tseries" else None


# -- mistakes in a plan ---------------------------------------------------------------------------

ONE_BATCH: Final = Diagnosis(
    Kind.ONE_BATCH,
    ".trigger(once=True)",
    "a run of one batch has no end-of-run batch: the last CTI comes with the next run, a final CTI "
    "never, so the last windows are not released",
)
"""The diagnosis of a query that Spark ends after one batch; the source itself cannot see that."""

_STATEFUL_OPERATORS: Final = (
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
)


def find_plan_mistakes(root: ClassicOperator) -> list[Diagnosis | None]:
    """Return for each streaming source, in the order of the plan, its mistake or None."""
    return [_find_mistake(path) for path in _list_paths(root) if path[0].columns]


def find_progress_mistake(
    progress: Mapping[str, Any], report: Mapping[str, Any]
) -> Diagnosis | None:
    """Return the mistake that a query's last progress shows, for clients without its plan.

    `report` is the report of its only source of CTIs.
    """
    if report.get("cti") is None or not progress.get("stateOperators"):
        return None
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if watermark is None:
        return _no_advance_time("an operator with state")
    return (
        _own_watermark("withWatermark")
        if parse_instant(watermark) > parse_instant(report["cti"])
        else None
    )


def _list_paths(
    node: ClassicOperator, above: tuple[ClassicOperator, ...] = ()
) -> Iterator[tuple[ClassicOperator, ...]]:
    """Yield each source with the operators above it, nearest first."""
    if not node.inputs:
        yield (node, *above)
    for below in node.inputs:
        yield from _list_paths(below, (node, *above))


def _find_mistake(path: tuple[ClassicOperator, ...]) -> Diagnosis | None:
    source, *operators = path
    if not any(column.endswith(CTI_COLUMN) for column in source.columns):
        return None
    for operator in operators:
        if operator.watermark is not None:
            watermark = operator.watermark
            return (
                None
                if watermark.endswith(CTI_COLUMN)
                else _own_watermark(f"withWatermark on column '{watermark}'")
            )
        joins_streams = operator.name == JOIN and all(
            input_.is_stream for input_ in operator.inputs
        )
        if operator.name in _STATEFUL_OPERATORS or joins_streams:
            return _no_advance_time(operator.name)
    return None


def _own_watermark(cause: str) -> Diagnosis:
    return Diagnosis(
        Kind.OWN_WATERMARK,
        cause,
        "Spark's watermark follows the greatest time of any partition instead of the CTIs, so that "
        "rows of a partition that lags are lost in silence",
    )


def _no_advance_time(cause: str) -> Diagnosis:
    return Diagnosis(
        Kind.NO_ADVANCE_TIME,
        cause,
        "it keeps state of a stream with CTIs, and no watermark follows them: CTI rows count as "
        "rows, and no state is ever let go",
    )
