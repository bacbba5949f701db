"""Mistakes that a query's plan shows: a watermark beside the CTIs, and state without any.

A plan is a tree of operators. Of a stream with CTIs the first thing with state on the way from the
source must come after `advance_time`, which is a watermark on the column `cti`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.connector.instants import parse_instant
from pyspark_timestream.kafka.plan.findings import Finding, Kind

__all__ = ["Operator", "mistakes_in_plan", "mistakes_in_progress"]

_CTI: Final = "cti"
_STATEFUL: Final = (
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
        """Whether a stream is among its sources."""
        return bool(self.columns) or any(each.is_stream for each in self.inputs)

    @property
    def has_state(self) -> bool:
        """Whether Spark keeps state for it."""
        both = self.name == "Join" and all(each.is_stream for each in self.inputs)
        return both or self.name in _STATEFUL


def mistakes_in_plan(root: Operator) -> list[Finding | None]:
    """For each streaming source, in the order of the plan, what is wrong with it; None: nothing."""
    return [_mistake(path) for path in _paths(root) if path[0].columns]


def mistakes_in_progress(progress: Mapping[str, Any], report: Mapping[str, Any]) -> Finding | None:
    """What the last progress of a query shows, where its plan cannot be had.

    Args:
        progress: the query's, as parsed JSON.
        report: what its only source of CTIs said in it.
    """
    if report.get("cti") is None or not progress.get("stateOperators"):
        return None
    watermark = (progress.get("eventTime") or {}).get("watermark")
    if watermark is None:
        return _without("an operator with state")
    return (
        _beside("withWatermark")
        if parse_instant(watermark) > parse_instant(report["cti"])
        else None
    )


def _paths(node: Operator, above: tuple[Operator, ...] = ()) -> Iterator[tuple[Operator, ...]]:
    """Each source with the operators on its way, its own first."""
    if not node.inputs:
        yield (node, *above)
    for each in node.inputs:
        yield from _paths(each, (node, *above))


def _mistake(path: tuple[Operator, ...]) -> Finding | None:
    source, *way = path
    if not any(column.endswith(_CTI) for column in source.columns):
        return None
    for operator in way:
        if operator.watermark is not None:
            own = operator.watermark
            return None if own.endswith(_CTI) else _beside(f"withWatermark on column '{own}'")
        if operator.has_state:
            return _without(operator.name)
    return None


def _beside(culprit: str) -> Finding:
    return Finding(
        Kind.OWN_WATERMARK,
        culprit,
        "Spark's watermark follows the greatest time of any partition instead of the CTIs, so that "
        "rows of a partition that lags are lost in silence",
    )


def _without(culprit: str) -> Finding:
    return Finding(
        Kind.NO_ADVANCE_TIME,
        culprit,
        "it keeps state of a stream with CTIs, and no watermark follows them: CTI rows count as "
        "rows, and no state is ever let go",
    )
