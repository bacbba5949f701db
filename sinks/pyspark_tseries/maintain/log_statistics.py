"""Check and correction of the bounds that the log records for each file.

Readers skip files by these bounds. Logs written before 2026-11-22 hold names as escaped JSON, in
which deltalake 1.6 reads a character of an even plane, such as U+20BB7, as another one. This
package allows for such wrong bounds; deltalake and tools that build on it lose rows.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import StoreBusy, UnusableStore
from pyspark_tseries.storage.data_files import (
    DataFile,
    FileStats,
    WrittenFile,
    compute_stats,
    logged_series_bounds,
)
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.table_scan import BASE_SCHEMA, scan_file
from pyspark_tseries.store.admin_commits import replace_files
from pyspark_tseries.store.retry import backoff
from pyspark_tseries.store.store import Store

__all__ = [
    "correct_statistics",
    "describe_contradiction",
    "find_wrong_statistics",
    "read_logged_bounds",
]

MAX_ATTEMPTS: Final = 5


def find_wrong_statistics(store: Store) -> Iterator[tuple[DataFile, FileStats, str]]:
    """The readable files with rows outside their logged bounds, their true bounds, and why.

    Files of other tools, which write their own statistics, are skipped.
    """
    logged = read_logged_bounds(store)
    for file in (file for file in store.data_files() if not file.is_foreign):
        try:
            rows = _read_extent(store.location, file)
        except (OSError, UnusableStore):
            continue
        why = rows and describe_contradiction(file, logged[file.path], rows)
        if rows and why:
            yield file, rows, why


def read_logged_bounds(store: Store) -> dict[str, tuple[str, str]]:
    """The first and the last series of each file by its path, as deltalake reads the log."""
    return logged_series_bounds(pa.table(store.log.table.get_add_actions(flatten=True)))


def _read_extent(location: Location, file: DataFile) -> FileStats | None:
    whole: FileStats | None = None
    for rows in scan_file(location, file, BASE_SCHEMA, ("series", "sequence", "timestamp")):
        part = compute_stats(rows)
        whole = part if whole is None else whole.extended_with(part)
    return whole


def describe_contradiction(file: DataFile, logged: tuple[str, str], rows: FileStats) -> str | None:
    """Describe the logged bounds of `file` that exclude some of its `rows`; None if none do.

    `logged` are the first and the last series as deltalake reads the log.
    """
    pairs = {
        "series": (logged, rows.series),
        "sequences": ((file.min_sequence, file.max_sequence), rows.sequence),
        "microseconds": ((file.min_us, file.max_us), rows.us),
    }
    for what, ((low, high), (first, last)) in pairs.items():
        if low > first or high < last:  # type: ignore[operator]
            return (
                f"file '{file.path}' has {what} {first!r} to {last!r}, the log is read as "
                f"{low!r} to {high!r}: other readers may pass over its rows"
            )
    return None


def correct_statistics(store: Store, wrong: Mapping[DataFile, FileStats], now_us: int) -> None:
    """Log the files `wrong` again, with the bounds of their rows; their content stays the same.

    Each gets a new name, so that this and a concurrent compaction cannot both succeed.

    Raises:
        StoreBusy: a compaction has just replaced the files, which corrects their bounds, too.
        OSError, DeltaError: the storage failed.
    """
    location, lost = store.location, None
    ids: dict[str, str] = {}
    written = []
    for file, rows in wrong.items():
        path = _new_path(file, ids.setdefault(file.run, f"{store.new_id():016x}"))
        location.copy(location.file(file.path), location.file(path))
        written.append(WrittenFile(path, file.size, rows.to_json()))
    for attempt in range(MAX_ATTEMPTS):
        try:
            if not replace_files(store, list(wrong), written, None, now_us):
                break
        except DeltaError as error:
            lost = error
        if {file.path for file in written} <= {file.path for file in store.snapshot().files}:
            return
        backoff(attempt)
    location.remove(location.file(file.path) for file in written)
    raise StoreBusy(
        f"store '{store.root}': a compaction was first; nothing was changed", next_step="try again"
    ) from lost


def _new_path(file: DataFile, new_id: str) -> str:
    """The path of `file` with another id, which follows the last dash of its name."""
    directory, name = os.path.split(file.path)
    stem, dot, rest = name.partition(".")
    commits, dash, own = stem.rpartition("-")
    _, line, number = own.partition("_")
    return f"{directory}/{commits}{dash}{new_id}{line}{number}{dot}{rest}"
