"""An append-only time-series store for Spark: format `tseries`.

A *store* is a directory of many *series*; a series is a sequence of immutable *events*, numbered
from 0 without gaps. A batch is sorted, checked, numbered and committed as a whole, exactly once,
however many writers share the store; a *retained range* says how much of each series queries see.

Reading order: `errors`, `model.columns`, `model.retention`, `model.query`, `storage.location`,
`options.values` (vocabulary), `model.block_columns`, `model.head_checksums`, `model.series_index`,
`write.numbering`, `write.edits`, `model.valid_text`, `write.rows`, `read.select`, `read.bounds`,
`client.range_query`, `model.policy`, `model.slices`, `model.series_state`, `storage.row_filter`,
`maintain.invariants`, `maintain.compaction`, `subscribe.position`, `model.properties`,
`model.commit_time`, `store.log_entries`, `store.foreign_changes` (rules), `storage.parquet_layout`,
`storage.parquet_checksums`, `storage.foreign_files`, `storage.data_files`, `storage.table_scan`,
`storage.head_files`, `storage.staging`, `write.originals`, `write.batch`, `write.spill`,
`write.event_writer`, `write.task_output`, `write.large_batch`, `storage.durability`,
`store.log_writer`, `store.log_check`, `store.log`, `storage.locks`, `store.retry`, `store.store`,
`store.ownership`, `maintain.head_recovery`, `store.admin_commits`, `maintain.log_statistics`,
`maintain.file_check`, `maintain.verify`, `maintain.repair.lost_commits`, `maintain.repair.rewind`,
`maintain.repair.revert`, `maintain.repair.time_correction`, `maintain.repair.future_commits`,
`maintain.repair.repair`, `maintain.compactor`, `maintain.background`, `maintain.describe`,
`storage.footer_cache`, `storage.row_groups`, `read.scan`, `read.as_of`, `read.late_binding`,
`subscribe.delivery`, `subscribe.follower` (storage), `client.chart`, `client.results`,
`client.receipts`, `client.arguments`, `client.time_series` (without Spark),
`spark.checkpoint_store`, `spark.writer`, `spark.reader`, `spark.stream_reader`, `spark.source`
(Spark).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_tseries.client.range_query import RangeQuery
    from pyspark_tseries.client.results import Event, EventMetadata, QueryResult
    from pyspark_tseries.client.time_series import TimeSeries
    from pyspark_tseries.errors import (
        IncompatibleValue,
        InvalidQuery,
        NoSuchEvent,
        NoSuchStore,
        OutOfOrder,
        PermissionDenied,
        StoreBusy,
        StoreMismatch,
        TseriesError,
        UnusableStore,
        UpdateFailed,
        WrongClock,
    )
    from pyspark_tseries.maintain.describe import describe
    from pyspark_tseries.spark.source import DefaultSource

__all__ = [
    "DefaultSource",
    "Event",
    "EventMetadata",
    "IncompatibleValue",
    "InvalidQuery",
    "NoSuchEvent",
    "NoSuchStore",
    "OutOfOrder",
    "PermissionDenied",
    "QueryResult",
    "RangeQuery",
    "StoreBusy",
    "StoreMismatch",
    "TimeSeries",
    "TseriesError",
    "UnusableStore",
    "UpdateFailed",
    "WrongClock",
    "describe",
]

_PLACES = {
    **dict.fromkeys(["IncompatibleValue", "InvalidQuery", "NoSuchEvent"], "errors"),
    **dict.fromkeys(["NoSuchStore", "OutOfOrder", "PermissionDenied", "StoreBusy"], "errors"),
    **dict.fromkeys(["StoreMismatch", "TseriesError", "UnusableStore"], "errors"),
    **dict.fromkeys(["UpdateFailed", "WrongClock"], "errors"),
    **dict.fromkeys(["Event", "EventMetadata", "QueryResult"], "client.results"),
    "DefaultSource": "spark.source",
    "RangeQuery": "client.range_query",
    "TimeSeries": "client.time_series",
    "describe": "maintain.describe",
}


def __getattr__(name: str) -> Any:
    # Lazy (PEP 562): Spark finds the format here, and one import that fails here would disable
    # every Python data source of the session; the rules must import without Spark and Delta.
    if name in _PLACES:
        return getattr(importlib.import_module(f"pyspark_tseries.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'pyspark_tseries' has no attribute '{name}'")
