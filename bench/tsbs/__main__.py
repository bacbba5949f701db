"""A TSBS-shaped load for `tseries`: `python bench/tsbs`, or `python bench tsbs`.

Four contenders (`stores`) store the readings of hosts (`load`: cpu-only, ten tags, ten fields, our
own generator), file by file. Five (`readers`) answer TSBS's queries on them (`queries`); three of
these read the files of our store.

Rows: *ingest* is from Parquet files to commits, and with maintenance to the end; *disk* is the size
of all files of a store, in bytes for each of the ten fields' values; a query's seconds are for one
query, though a run asks several, of other hosts and times. Every store must have all readings, and
every reader must give the very same rows for each query, or there is no result.

    BENCH_HOSTS   how many hosts; default 400, with QUICK=1 20
    BENCH_HOURS   how many hours they report; default 24

Each contender has a process of its own.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sessions import Apart
from side_by_side import Comparison, against_each, by_figure, compare, report
from sizes import size, whole_number

from tsbs.load import Load, write_files
from tsbs.queries import KINDS, TOTALS, Kind
from tsbs.readers import READERS
from tsbs.runs import answer, answers, fill
from tsbs.stores import STORES

INGEST_ROUNDS: Final = size(3, 1)
DISK: Final = ("as written", "maintained")
BETWEEN: Final = ", beside "


def measure() -> Iterator[Comparison]:
    """Ingest, disk, then each query."""
    hosts, hours = whole_number("BENCH_HOSTS", size(400, 20)), whole_number("BENCH_HOURS", 24)
    load = Load(hosts, hours, file_minutes=size(10, 60))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as location:
        place = Path(location)
        yield from ingest(load, write_files(load, place / "files"), place)
        with ExitStack() as open_:
            readers = {name: open_.enter_context(Apart()) for name in READERS}
            # Speed does not matter here: do all answer from the same readings?
            compare(
                "readings", {}, rounds=0, warm_up=0, checks=checks(readers, place, load, TOTALS)
            )
            for kind in KINDS:
                yield from against_each(ask(readers, place, load, kind), BETWEEN)


def ingest(load: Load, files: list[Path], place: Path) -> Iterator[Comparison]:
    """Fill every store; the last ones stay in `place`."""
    with ExitStack() as open_:
        contenders = {
            name: open_.enter_context(Apart()).contender(fill, name, place / name, files)
            for name in STORES
        }
        found = compare("ingest", contenders, load.rows, rounds=INGEST_ROUNDS)
    sizes = {name: found.figures[name] for name in DISK}
    seconds = {name: each for name, each in found.figures.items() if name not in DISK}
    for peer in against_each(replace(found, figures=seconds), BETWEEN):
        yield from by_figure(peer)
    for when, of_stores in sizes.items():
        took = {name: [each / load.values for each in sizes] for name, sizes in of_stores.items()}
        disk = Comparison(f"disk of a value, {when}", took, load.rows, "bytes", found.work)
        yield from against_each(disk, BETWEEN)


def ask(readers: Mapping[str, Apart], place: Path, load: Load, kind: Kind) -> Comparison:
    """One kind of query, answered by all."""
    asked = {
        name: apart.contender(answer, name, place, load, kind) for name, apart in readers.items()
    }
    return compare(kind.name, asked, checks=checks(readers, place, load, kind))


def checks(
    readers: Mapping[str, Apart], place: Path, load: Load, kind: Kind
) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Reader -> the very rows that it finds."""
    return {
        name: functools.partial(apart.call, answers, name, place, load, kind)
        for name, apart in readers.items()
    }


if __name__ == "__main__":
    report("tsbs", measure())
