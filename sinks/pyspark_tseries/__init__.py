"""An append-only time-series store for Spark: format `tseries`.

A *store* is a directory of many *series*; a series is a sequence of immutable *events*, numbered
from 0 without gaps. A batch is sorted, checked, numbered and committed as a whole, exactly once,
even when several writers share the store; a *retained range* limits what queries see of a series.

Each folder's docstring says what is in it; docs/explanation/architecture.md lists them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_tseries.client.follow import Follower
    from pyspark_tseries.client.questions import (
        BucketQuery,
        BucketResult,
        GapQuery,
        RangeQuery,
        StoreAsOf,
    )
    from pyspark_tseries.client.results import Chart, Event, EventMetadata, QueryResult
    from pyspark_tseries.client.time_series import TimeSeries
    from pyspark_tseries.errors import (
        ConditionFailed,
        Finding,
        FutureEvent,
        HistoryChanged,
        IncompatibleValue,
        InvalidQuery,
        NoSuchEvent,
        NoSuchStore,
        OutOfOrder,
        PermissionDenied,
        ReplayDiffers,
        StorageFailed,
        StoreBusy,
        StoreMismatch,
        TseriesError,
        UnusableStore,
        UpdateFailed,
        WrongClock,
    )
    from pyspark_tseries.maintain.compactor import CompactionResult
    from pyspark_tseries.maintain.corrections import withdraw_corrections
    from pyspark_tseries.maintain.rollup import RollupResult
    from pyspark_tseries.maintain.verify import describe
    from pyspark_tseries.spark.correct_late import correct_late
    from pyspark_tseries.spark.source import DefaultSource
    from pyspark_tseries.storage.erasures import Erasure

__all__ = [
    "BucketQuery",
    "BucketResult",
    "Chart",
    "CompactionResult",
    "ConditionFailed",
    "DefaultSource",
    "Erasure",
    "Event",
    "EventMetadata",
    "Finding",
    "Follower",
    "FutureEvent",
    "GapQuery",
    "HistoryChanged",
    "IncompatibleValue",
    "InvalidQuery",
    "NoSuchEvent",
    "NoSuchStore",
    "OutOfOrder",
    "PermissionDenied",
    "QueryResult",
    "RangeQuery",
    "ReplayDiffers",
    "RollupResult",
    "StorageFailed",
    "StoreAsOf",
    "StoreBusy",
    "StoreMismatch",
    "TimeSeries",
    "TseriesError",
    "UnusableStore",
    "UpdateFailed",
    "WrongClock",
    "__version__",
    "correct_late",
    "describe",
    "withdraw_corrections",
]

__version__ = "0.2.0"
"""Of the distribution `pyspark-timestream`, which holds both packages; a release changes both."""

_MODULES = {
    **dict.fromkeys(["BucketQuery", "BucketResult", "GapQuery"], "client.questions"),
    **dict.fromkeys(["Event", "EventMetadata", "QueryResult"], "client.results"),
    "Chart": "client.results",
    "CompactionResult": "maintain.compactor",
    "DefaultSource": "spark.source",
    "Erasure": "storage.erasures",
    "Finding": "errors",
    "Follower": "client.follow",
    "RangeQuery": "client.questions",
    "RollupResult": "maintain.rollup",
    "StoreAsOf": "client.questions",
    "TimeSeries": "client.time_series",
    "correct_late": "spark.correct_late",
    "describe": "maintain.verify",
    "withdraw_corrections": "maintain.corrections",
}
"""By exported name, the module that defines it; all other exported names are errors."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # Also names that are imported lazily.


def __getattr__(name: str) -> Any:
    # Lazy (PEP 562): Spark finds the format here, and one import that fails here would disable
    # every Python data source of the session; the rules must import without Spark and Delta.
    if name in __all__:
        module = importlib.import_module(f"pyspark_tseries.{_MODULES.get(name, 'errors')}")
        return getattr(module, name)
    raise AttributeError(f"module 'pyspark_tseries' has no attribute '{name}'")
