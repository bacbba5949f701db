"""Filters that Spark tells a batch read of, where its pushdown for Python sources is on.

Only those on `series` save reading: all others are about the merged result, so they may not decide
which events a query takes into account. Spark applies every filter itself as well.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In

from pyspark_tseries.reader import RangeReader

__all__ = ["FilteredReader", "pushes_filters", "series_of"]

_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


def pushes_filters() -> bool:
    """Whether Spark plans this read with its filters: `spark.sql.python.filterPushdown.enabled`.

    A planner without that setting refuses a reader that could take filters, and does not tell the
    setting; but each kind of planner is a process of its own.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _WORKER in sys.modules or getattr(main, "name", None) == _WORKER


def series_of(filters: Iterable[Filter]) -> list[str] | None:
    """The series that all of `filters` leave, sorted; None where none is about series."""
    left: set[str] | None = None
    for one in filters:
        names = _names(one)
        if names is not None:
            left = names if left is None else left & names
    return None if left is None else sorted(left)


def _names(one: Filter) -> set[str] | None:
    if isinstance(one, EqualTo | EqualNullSafe) and _is_series(one.attribute):
        return {one.value} if isinstance(one.value, str) else set()
    if isinstance(one, In) and _is_series(one.attribute):
        return {name for name in one.value if isinstance(name, str)}
    return None


def _is_series(attribute: Sequence[str]) -> bool:
    return [part.lower() for part in attribute] == ["series"]


class FilteredReader(RangeReader):
    """A batch read that leaves out series which a filter would leave out anyway."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes note of filters on `series`; Spark is to apply all of them."""
        left = series_of(filters)
        if left is not None:
            self.narrow(left)
        return filters
