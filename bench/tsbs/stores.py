"""Four stores of the readings: SQLite's and DuckDB's own, a plain Delta table, and `tseries`.

Each commits the readings file by file, and keeps them as its users would.

`tseries`: a host is a series, a reading is an event, and the value of an event is structured: the
ten fields and the nine other tags are value columns. A reading arrives in this form, so writing it
or grouping by a tag needs no look-up; a tag that changes keeps its history; and text that repeats
costs next to nothing in Parquet, which has a dictionary of it. A series for each field (TSBS's
hosts times ten) would store every time ten times, and no query of one instant's fields could be a
range query of one series.

Delta and DuckDB have the same columns in one table. SQLite, which stores rows, has the tags in a
table `hosts` and the readings in `points`, clustered by host and time, as TSBS's own loader of
PostgreSQL does; it takes no columns, so the rows are made objects of Python first.

A commit of `tseries` and of SQLite (WAL, `synchronous=FULL`) survives a loss of power, one of
DuckDB's too; deltalake's is left to the system. `maintain` is what each offers to make reading
fast and files few: SQLite's ANALYZE and checkpoint, DuckDB's checkpoint, compaction by deltalake
and by `tseries`. Files that these have replaced are removed at once, where by default they stay for
days; auto-compaction is off, so that it is measured and not beside.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from pyspark_tseries import TimeSeries
from tsbs.load import FIELDS, TAGS

__all__ = ["STORES", "StoreOfReadings", "size_of"]


class StoreOfReadings(Protocol):
    """A new store in an empty directory."""

    def append(self, file: Path) -> None:
        """Store the readings of a file, by one commit."""

    def maintain(self) -> None:
        """Make it fast and small to read."""

    def close(self) -> None:
        """Give back what it holds."""


class Sqlite:
    """SQLite's own storage."""

    def __init__(self, place: Path) -> None:
        self._ids: dict[str, int] = {}
        self._database = sqlite3.connect(place / "readings.db", isolation_level=None)
        tags = ", ".join(f"{tag} TEXT" for tag in TAGS)
        fields = ", ".join(f"{field} INTEGER" for field in FIELDS)
        self._database.executescript(
            f"""PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
            CREATE TABLE hosts (id INTEGER PRIMARY KEY, series TEXT UNIQUE, {tags});
            CREATE TABLE points (host INTEGER, timestamp INTEGER, {fields},
                PRIMARY KEY (host, timestamp)) WITHOUT ROWID;
            CREATE VIEW readings AS SELECT hosts.series AS series, points.*
                FROM hosts CROSS JOIN points ON points.host = hosts.id"""
        )

    def append(self, file: Path) -> None:
        readings = pq.read_table(file)
        names = readings["series"].combine_chunks().dictionary_encode()
        self._database.execute("BEGIN")
        self._add_hosts(readings, names)
        ids = pa.array([self._ids[name] for name in names.dictionary.to_pylist()])
        times = readings["timestamp"].cast(pa.int64())
        columns = [ids.take(names.indices), times, *(readings[field] for field in FIELDS)]
        places = ", ".join("?" * len(columns))
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        self._database.executemany(f"INSERT INTO points VALUES ({places})", rows)
        self._database.execute("COMMIT")

    def _add_hosts(self, readings: pa.Table, names: pa.DictionaryArray) -> None:
        """Insert the hosts that are new."""
        for number, name in enumerate(names.dictionary.to_pylist()):
            if name not in self._ids:
                first = pc.index(names.indices, number).as_py()
                (row,) = readings.select(["series", *TAGS]).slice(first, 1).to_pylist()
                self._ids[name] = len(self._ids)
                places = ", ".join("?" * (2 + len(TAGS)))
                given = (self._ids[name], *row.values())
                self._database.execute(f"INSERT INTO hosts VALUES ({places})", given)

    def maintain(self) -> None:
        self._database.executescript("ANALYZE; PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._database.close()


class DuckDB:
    """DuckDB's own storage."""

    def __init__(self, place: Path) -> None:
        self._database = duckdb.connect(str(place / "readings.duckdb"))
        columns = [f"{tag} VARCHAR" for tag in TAGS] + [f"{field} BIGINT" for field in FIELDS]
        self._database.execute(
            f"CREATE TABLE readings (series VARCHAR, timestamp TIMESTAMPTZ, {', '.join(columns)})"
        )

    def append(self, file: Path) -> None:
        self._database.execute(f"INSERT INTO readings SELECT * FROM read_parquet('{file}')")

    def maintain(self) -> None:
        self._database.execute("CHECKPOINT")

    def close(self) -> None:
        self._database.close()


class Delta:
    """A plain Delta table."""

    def __init__(self, place: Path) -> None:
        self._path = str(place)

    def append(self, file: Path) -> None:
        write_deltalake(self._path, pq.read_table(file), mode="append")

    def maintain(self) -> None:
        DeltaTable(self._path).optimize.compact()
        _remove_replaced(self._path)

    def close(self) -> None:
        pass


class Tseries:
    """A store of ours."""

    def __init__(self, place: Path) -> None:
        self._path = str(place)
        values = dict.fromkeys(TAGS, pa.string()) | dict.fromkeys(FIELDS, pa.int64())
        self._store = TimeSeries.create(place, values, "unlimited", auto_compact=False)

    def append(self, file: Path) -> None:
        self._store.append_many(pq.read_table(file))

    def maintain(self) -> None:
        self._store.compact()
        _remove_replaced(self._path)

    def close(self) -> None:
        pass


def _remove_replaced(path: str) -> None:
    """Remove the files that compaction has replaced; otherwise they stay, for a day and longer."""
    gone = DeltaTable(path).vacuum(0, dry_run=True, enforce_retention_duration=False)
    for name in gone:
        (Path(path) / name).unlink()


STORES: Final[dict[str, Callable[[Path], StoreOfReadings]]] = {
    "SQLite": Sqlite,
    "DuckDB": DuckDB,
    "deltalake": Delta,
    "tseries": Tseries,
}
"""Ours is the last."""


def size_of(place: Path) -> int:
    """The bytes of all files below a directory."""
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
