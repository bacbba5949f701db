"""What the log says of the bounds of its files, held against their rows, and mended where wrong.

Readers pass over files by these bounds. Logs of before 2026-11-22 hold names as escaped JSON, of
which deltalake 1.6 reads a character of an even plane, such as U+20BB7, as another one. This
package knows that such a bound may be wrong; deltalake and what is built on it lose rows.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import StoreBusy, UnusableStore
from pyspark_tseries.storage.data_files import (
    DataFile,
    Extent,
    WrittenFile,
    extent_of,
    logged_series,
)
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.table_scan import SCANNED, scan
from pyspark_tseries.store.admin_commits import replace_files
from pyspark_tseries.store.retry import wait_out
from pyspark_tseries.store.store import Store

__all__ = ["contradiction", "logged_bounds", "misstated", "restate"]

ATTEMPTS: Final = 5


def misstated(store: Store) -> Iterator[tuple[DataFile, Extent, str]]:
    """The readable files with rows outside of their logged bounds: their true bounds, and why.

    Files of other tools, which write their own statistics, are not looked at.
    """
    logged = logged_bounds(store)
    for file in (file for file in store.data_files() if not file.is_foreign):
        try:
            rows = _extent(store.place, file)
        except (OSError, UnusableStore):
            continue
        why = rows and contradiction(file, logged[file.path], rows)
        if rows and why:
            yield file, rows, why


def logged_bounds(store: Store) -> dict[str, tuple[str, str]]:
    """The first and the last series of each file by its path, as the log is read."""
    return logged_series(pa.table(store.log.table.get_add_actions(flatten=True)))


def _extent(place: Place, file: DataFile) -> Extent | None:
    whole: Extent | None = None
    for rows in scan(place, file, SCANNED, ("series", "sequence", "timestamp")):
        part = extent_of(rows)
        whole = part if whole is None else whole.followed(part)
    return whole


def contradiction(file: DataFile, logged: tuple[str, str], rows: Extent) -> str | None:
    """What the log says wrongly of `file`, whose rows are between `rows`; None: nothing.

    `logged` are the first and the last series as the log is read.
    """
    pairs = {
        "series": (logged, rows.series),
        "sequences": ((file.least_sequence, file.most_sequence), rows.sequence),
        "microseconds": ((file.least_us, file.most_us), rows.us),
    }
    for what, ((low, high), (first, last)) in pairs.items():
        if low > first or high < last:  # type: ignore[operator]
            return (
                f"file '{file.path}' has {what} {first!r} to {last!r}, the log is read as "
                f"{low!r} to {high!r}: other readers may pass over its rows"
            )
    return None


def restate(store: Store, wrong: Mapping[DataFile, Extent], now_us: int) -> None:
    """Names the files `wrong` anew, with the bounds of their rows; their content stays.

    Each gets another name, so that a compaction meanwhile makes this fail, or the other way round.

    Raises:
        StoreBusy: the files were compacted meanwhile; then they are named anew already.
        OSError, DeltaError: the storage failed.
    """
    place, lost = store.place, None
    ids: dict[str, str] = {}
    written = []
    for file, rows in wrong.items():
        path = _renamed(file, ids.setdefault(file.run, f"{secrets.randbits(62):016x}"))
        place.copy(place.file(file.path), place.file(path))
        written.append(WrittenFile(path, file.size, rows.statistics()))
    for turn in range(ATTEMPTS):
        try:
            if not replace_files(store, list(wrong), written, None, now_us):
                break
        except DeltaError as error:
            lost = error
        if {file.path for file in written} <= {file.path for file in store.snapshot().files}:
            return
        wait_out(turn)
    place.remove(place.file(file.path) for file in written)
    raise StoreBusy(
        f"store '{store.root}': a compaction was first; nothing was changed; next step: try again"
    ) from lost


def _renamed(file: DataFile, new_id: str) -> str:
    """The path of `file` with another id, which follows the last dash of its name."""
    directory, name = os.path.split(file.path)
    stem, dot, rest = name.partition(".")
    commits, dash, own = stem.rpartition("-")
    _, line, number = own.partition("_")
    return f"{directory}/{commits}{dash}{new_id}{line}{number}{dot}{rest}"
