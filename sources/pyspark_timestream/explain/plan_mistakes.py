"""Mistakes that a query's plan shows: a watermark beside the CTIs, and state without any.

A plan is a tree of operators. Of a stream with CTIs the first thing with state on the way from the
source must come after `advance_time`, which is a watermark on the column `cti`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.connector.instants import parse_instant
from pyspark_timestream.kafka.plan.findings import Finding, Kind

__all__ = ["ONE_BATCH", "Operator", "find_plan_mistakes", "find_progress_mistake"]

ONE_BATCH: Final = Finding(
    Kind.ONE_BATCH,
    ".trigger(once=True)",
    "a run of one batch has no closing batch: the last CTI comes with the next run, a final CTI "
    "never, so the last windows are not released",
)
"""The finding of a query that Spark ends after one batch, which its source cannot know."""

_CTI_COLUMN: Final = "cti"
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


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a query's plan.

    Attributes:
        name: Spark's name of it.
        inputs: where its rows come from; empty: it is a source.
        watermark: the column of a `withWatermark`; None: it is another operator.
        columns: the columns of a streaming source; empty for all else.
    """

    name: str
    inputs: tuple["Operator", ...] = ()
    watermark: str | None = None
    columns: tuple[str, ...] = ()

    @property
    def is_stream(self) -> bool:
        """True if a stream is among its sources."""
        return bool(self.columns) or any(each.is_stream for each in self.inputs)

    @property
    def has_state(self) -> bool:
        """True if Spark keeps state for it."""
        both = self.name == "Join" and all(each.is_stream for each in self.inputs)
        return both or self.name in _STATEFUL_OPERATORS


def find_plan_mistakes(root: Operator) -> list[Finding | None]:
    """For each streaming source, in the order of the plan, its mistake, or None."""
    return [_find_mistake(path) for path in _list_paths(root) if path[0].columns]


def find_progress_mistake(progress: Mapping[str, Any], report: Mapping[str, Any]) -> Finding | None:
    """The mistake that the last progress of a query shows, for clients without access to the plan.

    Args:
        progress: the query's, as parsed JSON.
        report: the report of its only source of CTIs in it.
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


def _list_paths(node: Operator, above: tuple[Operator, ...] = ()) -> Iterator[tuple[Operator, ...]]:
    """Each source with the operators above it, nearest first."""
    if not node.inputs:
        yield (node, *above)
    for each in node.inputs:
        yield from _list_paths(each, (node, *above))


def _find_mistake(path: tuple[Operator, ...]) -> Finding | None:
    source, *way = path
    if not any(column.endswith(_CTI_COLUMN) for column in source.columns):
        return None
    for operator in way:
        if operator.watermark is not None:
            own = operator.watermark
            return (
                None
                if own.endswith(_CTI_COLUMN)
                else _own_watermark(f"withWatermark on column '{own}'")
            )
        if operator.has_state:
            return _no_advance_time(operator.name)
    return None


def _own_watermark(culprit: str) -> Finding:
    return Finding(
        Kind.OWN_WATERMARK,
        culprit,
        "Spark's watermark follows the greatest time of any partition instead of the CTIs, so that "
        "rows of a partition that lags are lost in silence",
    )


def _no_advance_time(culprit: str) -> Finding:
    return Finding(
        Kind.NO_ADVANCE_TIME,
        culprit,
        "it keeps state of a stream with CTIs, and no watermark follows them: CTI rows count as "
        "rows, and no state is ever let go",
    )
