"""One run of a contender in its own process: filling a store, or answering queries."""

import functools
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from side_by_side import Done

from tsbs.load import Load
from tsbs.queries import Kind, digest, draw, rows_of
from tsbs.readers import READERS, Ask
from tsbs.stores import STORES, size_of

__all__ = ["answer", "answers", "fill"]


def fill(name: str, place: Path, files: Sequence[Path]) -> Done:
    """Fill a new store in a directory that may have had one.

    The figures are seconds, to the last commit and with maintenance, and the bytes on disk then.
    """
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    began = time.perf_counter()
    store = STORES[name](place)
    for file in files:
        store.append(file)
    written_s, written = time.perf_counter() - began, size_of(place)
    began = time.perf_counter()
    store.maintain()
    store.close()
    whole_s = written_s + time.perf_counter() - began
    figures = {"commits": written_s, "whole run": whole_s}
    sizes = {"as written": written, "maintained": size_of(place)}
    return Done(whole_s, {"files": len(files)}, figures | sizes)


def answer(name: str, place: Path, load: Load, kind: Kind) -> Done:
    """Ask a run's queries of a kind; the seconds of one."""
    queries = [draw(kind, load, number) for number in range(kind.a_run)]
    ask = _open(name, place)
    began = time.perf_counter()
    found = [ask(query) for query in queries]
    return Done((time.perf_counter() - began) / len(queries), {"rows": sum(map(len, found))})


def answers(name: str, place: Path, load: Load, kind: Kind) -> dict[str, Any]:
    """All that a run of `answer` finds: the number of rows, and a checksum of them."""
    ask = _open(name, place)
    found = [rows_of(ask(draw(kind, load, number))) for number in range(kind.a_run)]
    return {"rows": [len(rows) for rows in found], "digests": [digest(rows) for rows in found]}


@functools.cache
def _open(name: str, place: Path) -> Ask:
    store, reader = READERS[name]
    return reader(place / store)
