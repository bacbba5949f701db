"""An append-only time-series store for Spark: format `tseries`.

A *store* is a directory of many *series*; a series is a sequence of immutable *events*, numbered
from 0 without gaps. A batch is sorted, checked, numbered and committed as a whole, exactly once,
however many writers share the store; a *retained range* says how much of each series queries see.

Reading order: `errors`, `columns`, `retention`, `ranges`, `places`, `options` (vocabulary),
`block_columns`, `head_checksums`, `heads`, `numbering`, `edits`, `broken_text`, `rows`,
`selection`, `pruning`, `range_query`, `permissions`, `slices`, `standing`, `sieve`, `invariants`,
`compaction`, `subscription`, `properties`, `commit_time`, `log_entries`, `foreign_changes`
(rules), `parquet_layout`, `checksums`, `foreign_files`, `files`, `table_scan`, `head_files`,
`staging`, `originals`, `attempts`, `runs`, `merges`, `shares`, `large_batches`, `durability`,
`log_writer`, `log_check`, `delta_log`, `host_locks`, `races`, `store`, `ownership`,
`head_recovery`, `upkeep`, `log_statistics`, `file_check`, `inspection`, `lost_commits`, `rewind`,
`undoing`, `restamping`, `time_repair`, `repair`, `compactor`, `maintenance`, `description`,
`footers`, `row_groups`, `scan`, `history`, `late_binding`, `deliveries`, `follower` (storage),
`chart`, `results`, `receipts`, `arguments`, `client` (without Spark), `checkpoint_store`,
`writer`, `reader`, `subscriber`, `sink` (Spark).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_tseries.client import TimeSeries
    from pyspark_tseries.description import describe
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
    from pyspark_tseries.range_query import RangeQuery
    from pyspark_tseries.results import Event, EventMetadata, QueryResult
    from pyspark_tseries.sink import DefaultSource

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
    **dict.fromkeys(["Event", "EventMetadata", "QueryResult"], "results"),
    "DefaultSource": "sink",
    "RangeQuery": "range_query",
    "TimeSeries": "client",
    "describe": "description",
}


def __getattr__(name: str) -> Any:
    # Lazy (PEP 562): Spark finds the format here, and one import that fails here would disable
    # every Python data source of the session; the rules must import without Spark and Delta.
    if name in _PLACES:
        return getattr(importlib.import_module(f"pyspark_tseries.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'pyspark_tseries' has no attribute '{name}'")
