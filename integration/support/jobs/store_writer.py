"""The process that `test_store_kills` kills: `STORE ACKNOWLEDGED PHASE DIED`.

It appends while another thread merges, checkpoints, cleans, and changes the retained range, and
kills itself at a random moment of the given phase of its work, noting that in DIED.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pyarrow as pa

from pyspark_tseries.maintain import background, compactor
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.compactor import merge_file_groups
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.log import load_table
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch

PHASES = ("append", "merge", "replace", "checkpoint", "clean", "range")
SERIES = [f"s{i}" for i in range(5)]
KEPT = 10
VALUE = pa.field("value", pa.int64())
# Batches between two waits for the maintenance: appends without a wait outrun it more and more,
# and a phase of it that begins with a merge of thousands of files is not reached in minutes.
AHEAD = 100


def rows(number: int) -> pa.Table:
    """An event for every series; the one with value n must get the sequence n."""
    size = len(SERIES)
    return pa.table(
        {
            "series": pa.array(SERIES),
            "timestamp": pa.array([number] * size).cast(pa.timestamp("us", "UTC")),
            "author": pa.nulls(size, pa.string()),
            "original_sequence": pa.nulls(size, pa.int64()),
            "value": pa.array([number] * size),
        }
    )


class Doomed:
    """Kills this process inside a phase: not in its first passage, which says how long it takes."""

    def __init__(self, phase: str, died: str) -> None:
        self._phase, self._died = phase, died
        self._seconds: float | None = None

    @contextlib.contextmanager
    def passing(self, phase: str) -> Iterator[None]:
        """A passage of `phase`; if it is over before the kill comes, the next one is hit."""
        if phase != self._phase:
            yield
            return
        over = threading.Event()
        if self._seconds is not None:
            wait = random.uniform(0, self._seconds)
            threading.Thread(target=self._kill, args=(wait, over), daemon=True).start()
        begun = time.monotonic()
        yield
        over.set()
        self._seconds = time.monotonic() - begun

    def _kill(self, wait: float, over: threading.Event) -> None:
        if not over.wait(wait):
            with open(self._died, "a") as file:
                file.write(f"{self._phase}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Appends batch after batch while another thread merges, checkpoints and cleans."""
    location, acknowledged, phase, died = sys.argv[1:]
    store = Store.open(parse_location(location, json.loads(os.environ["STORAGE"])))
    doomed = Doomed(phase, died)
    maintained = threading.Event()
    threading.Thread(target=maintenance, args=(store, doomed, maintained), daemon=True).start()
    number = int(store.index().lookup(SERIES[:1])["last_sequence"][0]) + 1
    # Events stored but not acknowledged when the last process was killed are stored all the same.
    with open(acknowledged, "ab", buffering=0) as file:
        file.write(b"." * (number - os.path.getsize(acknowledged)))
        while True:
            with doomed.passing("append"):
                store.append(Batch(rows(number), "fail", "me", ("writer", number)))
            file.write(b".")
            number += 1
            if number % AHEAD == 0:
                maintained.wait()
                maintained.clear()


def maintenance(store: Store, doomed: Doomed, maintained: threading.Event) -> None:
    """Round after round of maintenance; `maintained` is set at the end of each."""
    replace = compactor.replace_files

    def replacing(*given: object) -> bool:
        with doomed.passing("replace"):
            return replace(*given)  # type: ignore[arg-type]

    compactor.replace_files = replacing
    background.SMALL_FILE_RETENTION_US = 3_600_000_000
    for limit in itertools.cycle((KEPT, KEPT + 2)):
        with doomed.passing("merge"):
            merge_file_groups(store, 2**60, everything=True)
        with doomed.passing("checkpoint"):
            load_table(store.location).create_checkpoint()
        with doomed.passing("clean"):
            # As if hour and ten minutes of grace were 20 seconds, far longer than an append takes.
            remove_obsolete_files(store, time.time_ns() // 1000 + 3_580_000_000)
        with doomed.passing("range"):
            set_retained_range(store, RetainedRange(limit=limit), time.time_ns() // 1000, "me")
        maintained.set()


if __name__ == "__main__":
    main()
