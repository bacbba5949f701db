"""An append-only time-series store for Spark: format `tseries`.

A *store* is a directory of many *series*; a series is a sequence of immutable *events*, numbered
from 0 without gaps. A batch is sorted, checked, numbered and committed as a whole, exactly once,
however many writers share the store; a *retained range* says how much of each series queries see.

Reading order: `errors`, `columns`, `retention`, `options` (vocabulary), `heads`, `numbering`,
`edits`, `rows`, `slices`, `standing`, `invariants`, `compaction` (rules), `files`, `originals`,
`attempts`, `store`, `upkeep`, `inspection`, `compactor`, `maintenance`, `description` (storage),
`writer`, `reader`, `sink` (Spark).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_tseries.description import describe
    from pyspark_tseries.sink import DefaultSource

__all__ = ["DefaultSource", "describe"]


def __getattr__(name: str) -> Any:
    # Lazy (PEP 562): Spark finds the format here, and one import that fails here would disable
    # every Python data source of the session; the rules must import without Spark and Delta.
    if name == "DefaultSource":
        from pyspark_tseries.sink import DefaultSource

        return DefaultSource
    if name == "describe":
        from pyspark_tseries.description import describe

        return describe
    raise AttributeError(f"module 'pyspark_tseries' has no attribute '{name}'")
