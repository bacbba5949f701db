"""Windows that have late rows: which are corrected now, which wait, and their new values.

Late rows come in batches, as partial aggregates of (series, window). A window is corrected once the
store's CTI is above its time: whatever its query writes of it is then in the store. Until then its
partial aggregates wait. `advance_windows` is a pure fold over batches; with the same rows and CTIs
it gives the same windows, so a batch that is repeated decides as it did before.

The rules are semantics 30.6.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.model.arrays import NEVER_US

__all__ = ["MERGES", "ROWS", "Merge", "WindowStep", "advance_windows", "merge_windows"]

Merge = str | Callable[[Any, Any], Any]
"""How two results of an aggregate become one: `sum`, `min`, `max`, or a function of both."""

MERGES: Final = ("sum", "min", "max")

ROWS: Final = "late_rows"
"""The column with the number of late rows of a window."""


@dataclass(frozen=True, slots=True)
class WindowStep:
    """The consequences of one batch of late rows; tables of series, window, results and `ROWS`.

    Attributes:
        ready: windows to correct now.
        waiting: windows that their query may not have written yet.
        too_old: windows that are left out.
    """

    ready: pa.Table
    waiting: pa.Table
    too_old: pa.Table


def advance_windows(
    waiting: pa.Table,
    new: pa.Table,
    merges: Mapping[str, Merge],
    *,
    keys: tuple[str, str],
    length_us: int,
    cti_us: int | None,
    oldest_us: int | None,
) -> WindowStep:
    """Divide the windows of `waiting` and `new` by the store's CTI.

    Args:
        waiting: of the batch before.
        new: of this batch's rows; the same columns.
        merges: by the columns of results.
        keys: the columns of series and window; the latter has its start.
        length_us: from a window's start to the time that the store has of it.
        cti_us: the store's CTI; None: all wait.
        oldest_us: windows whose time is before this are left out; None: none are.
    """
    windows = merge_windows(pa.concat_tables([waiting, new]), merges, keys)
    times = pc.add(windows[keys[1]].cast(pa.int64()), length_us)
    if cti_us is None:
        return WindowStep(windows.slice(0, 0), windows, windows.slice(0, 0))
    is_ready = pc.less(times, cti_us)
    is_old = pc.and_(is_ready, pc.less(times, NEVER_US if oldest_us is None else oldest_us))
    return WindowStep(
        windows.filter(pc.and_(is_ready, pc.invert(is_old))),
        windows.filter(pc.invert(is_ready)),
        windows.filter(is_old),
    )


def merge_windows(
    windows: pa.Table, merges: Mapping[str, Merge], keys: tuple[str, str]
) -> pa.Table:
    """One row for each series and window, in their order, with the results of all its rows.

    A null is the result of no value, and changes nothing.
    """
    own = {name: how for name, how in merges.items() if not isinstance(how, str)}
    known = {**{n: how for n, how in merges.items() if isinstance(how, str)}, ROWS: "sum"}
    lists = [(name, "list") for name in own]
    grouped = windows.group_by(list(keys), use_threads=False).aggregate(
        [*((name, str(how)) for name, how in known.items()), *lists]
    )
    columns = {key: grouped[key] for key in keys}
    for name in windows.column_names:
        if name in known:
            columns[name] = grouped[f"{name}_{known[name]}"].cast(windows[name].type)
        elif name in own:
            folded = [_fold(each, own[name]) for each in grouped[f"{name}_list"].to_pylist()]
            columns[name] = pa.chunked_array([pa.array(folded, windows[name].type)])
    merged = pa.table(columns, windows.schema)
    return merged.sort_by([(key, "ascending") for key in keys]).combine_chunks()


def _fold(values: list[Any], how: Callable[[Any, Any], Any]) -> Any:
    there = [value for value in values if value is not None]
    result = there[0] if there else None
    for value in there[1:]:
        result = how(result, value)
    return result
