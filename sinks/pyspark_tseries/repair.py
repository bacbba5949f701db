"""Repair: a store that was damaged from outside is brought back to a sound state.

A list of mends is gone through, each for one kind of damage and in an order in which every mend may
rely on those before it. A mend finds its damage by itself, says what it did, and what is lost by
it; what it cannot mend it leaves as it is and says so. Writers should rest meanwhile.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.inspection import rebuild
from pyspark_tseries.log_statistics import misstated, restate
from pyspark_tseries.places import Place, place_of
from pyspark_tseries.store import Store

__all__ = ["Repaired", "repair"]


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do, as sentences.

    Attributes:
        mended: what was wrong, and what was done about it.
        lost: events, commits and settings that are gone.
        left: what is still wrong, with the next step.
    """

    mended: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def __add__(self, other: "Repaired") -> "Repaired":
        return Repaired(self.mended + other.mended, self.lost + other.lost, self.left + other.left)


Mend = Callable[[Place, bool], Repaired]
"""Finds one kind of damage in the store at a place; mends it, unless the flag `dry_run` is set."""


def repair(
    path: str | Place,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Repaired:
    """Mends what can be mended of the store at `path`, and says what it did and what is lost.

    Args:
        path: a local path, a `file:` URI or an `s3:` URI.
        dry_run: only says what it would do first; what follows from that is not known before.
        storage_options: how an object store is reached; see `STORAGE_OPTIONS`.

    Raises:
        NoSuchStore: there is no store.
        UnusableStore: what is there cannot be opened at all.
        OSError: a file could not be read or written.
        StoreBusy: other writers won every attempt.
    """
    place = place_of(path, storage_options)
    done = Repaired()
    for mend in MENDS:
        done += mend(place, dry_run)
        if dry_run and done != Repaired():
            break
    return done


def _mend_head(place: Place, dry_run: bool) -> Repaired:
    """A head that cannot be read is made again from the events."""
    try:
        Store.open(place).head()
    except UnusableStore as error:
        if not dry_run:
            rebuild(place)
        return Repaired(mended=(f"{error}. It is made again from the events",))
    return Repaired()


def _mend_statistics(place: Place, dry_run: bool) -> Repaired:
    """Files of which the log says too little are named again, with the bounds of their rows."""
    store = Store.open_damaged(place)
    found = list(misstated(store))
    if found and not dry_run:
        restate(store, {file: rows for file, rows, _ in found}, time.time_ns() // 1000)
    return Repaired(mended=tuple(f"{why}. The log says so now" for _, _, why in found))


MENDS: Final[tuple[Mend, ...]] = (_mend_statistics, _mend_head)
"""In order: the log, the files that it names, what it says of them, the head, the clock."""
