"""CTIs that a running query loses before `advance_time`: its watermark stays at 1970.

Some plans do not show what comes between a source and `advance_time`: SQL and views of Spark
Connect, operators that are not known here. There a listener compares the query's watermark with the
CTIs that its streams report. The rules are semantics 11.14.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_timestream.connector.instants import parse_instant
from pyspark_timestream.errors import compose_message

LOST_CTIS: Final = (
    "its streams have CTIs, and Spark's watermark stands at 1970: something between a source and "
    "advance_time removes the CTI rows, in which every column but 'cti' is null, so no result "
    "appears"
)
LOST_CTIS_FIX: Final = (
    "call advance_time(df) on what the source delivers, and let filters, joins and functions follow"
)

_LOG: Final = logging.getLogger(__name__)
_watched: WeakSet[SparkSession] = WeakSet()


def loses_ctis(progresses: Sequence[Mapping[str, Any]], has_ended: bool = False) -> bool:
    """True if a query's watermark has not followed the CTIs of its streams.

    Args:
        progresses: of one run of a query, as parsed JSON.
        has_ended: the run has ended as it should. Until then a CTI of the last batch has yet to
            become the watermark.
    """
    if not progresses:
        return False
    watermark = (progresses[-1].get("eventTime") or {}).get("watermark")
    if watermark is None or parse_instant(watermark) > 0:
        return False
    return any(map(_has_ctis, progresses if has_ended else progresses[:-1]))


def _has_ctis(progress: Mapping[str, Any]) -> bool:
    """True if all sources are streams of ours, and each has delivered a CTI after 1970."""
    reports = [parse_report(source.get("latestOffset")) for source in progress["sources"]]
    ctis = [report.get("cti") if "partitions" in report else None for report in reports]
    return bool(ctis) and all(cti is not None and parse_instant(cti) > 0 for cti in ctis)


def parse_report(latest_offset: Any) -> dict[str, Any]:
    """A source's own report in a query's progress; empty: it has none."""
    try:
        report = json.loads(latest_offset) if isinstance(latest_offset, str) else latest_offset
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}


def watch_ctis(spark: SparkSession) -> None:
    """Warn once of each query of the session that loses its CTIs.

    A session that takes no listener is as before: without the warning.
    """
    if spark in _watched:
        return
    _watched.add(spark)
    try:
        spark.streams.addListener(_CtiWatch())
    except Exception as error:  # Spark, py4j and gRPC each have errors of their own.
        _LOG.warning(
            "the session takes no listener, so nothing warns of queries that lose their CTI rows "
            "before advance_time; explain_time(query) shows them (%s: %s)",
            type(error).__name__, error,
        )  # fmt: skip


class _CtiWatch(StreamingQueryListener):
    """Follows the runs of queries."""

    def __init__(self) -> None:
        self._seen = dict[str, list[Mapping[str, Any]]]()
        self._told = set[str]()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing has been seen of a new run."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """An idle query has no new CTIs."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Compare the watermark of a batch with the CTIs of those before."""
        try:
            for line in self._take(json.loads(event.progress.json)):
                _LOG.warning("%s", line)
        except Exception:
            _LOG.debug("a progress cannot be read", exc_info=True)

    def _take(self, progress: Mapping[str, Any]) -> Iterator[str]:
        run = progress["runId"]
        # The batches before matter by whether one of them had a CTI.
        seen = [*self._seen.get(run, ()), progress]
        self._seen[run] = [each for each in seen if _has_ctis(each)][:1]
        if run not in self._told and loses_ctis(seen):
            self._told.add(run)
            name = progress.get("name") or progress["id"]
            yield compose_message(f"query '{name}': {LOST_CTIS}", None, LOST_CTIS_FIX)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the run."""
        self._seen.pop(str(event.runId), None)
        self._told.discard(str(event.runId))
