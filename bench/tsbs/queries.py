"""Five queries of TSBS in three dialects of SQL, and functions that make answers comparable.

| query | its rows |
| --- | --- |
| single-groupby-1-1-1 | the greatest value of a field each minute, of a host, in an hour |
| single-groupby-5-8-1 | the same of five fields, over eight hosts |
| double-groupby-1 | the mean of a field each hour, of every host, in twelve hours |
| lastpoint | the newest reading of every host, with its tags |
| high-cpu-all | the readings of all hosts in twelve hours with a `usage_user` above 90 |

Hosts and times are by chance, decided by the load's seed and the query's number. `timestamp` and
`series` are columns of a table `readings` in every dialect. Times are whole microseconds where they
are grouped; percentages are whole, so sums of them are exact in any order, and means are one
division: every contender has to give the very same rows.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tsbs.load import FIELDS, HOUR_US, START_US, TAGS, Load

__all__ = [
    "DATAFUSION",
    "DUCKDB",
    "KINDS",
    "SQLITE",
    "TOTALS",
    "Dialect",
    "Kind",
    "Query",
    "digest",
    "draw",
    "instant_of",
    "rows_of",
    "sql_of",
]

_GREATEST: Final = """SELECT {time} {divide} 60000000 AS minute, {greatest} FROM readings
    WHERE series IN ({hosts}) AND timestamp >= {start} AND timestamp < {end}
    GROUP BY 1 ORDER BY 1"""
_MEANS: Final = """SELECT {time} {divide} 3600000000 AS hour, series, avg({field}) AS mean
    FROM readings WHERE timestamp >= {start} AND timestamp < {end} GROUP BY 1, 2 ORDER BY 1, 2"""
_NEWEST: Final = f"SELECT series, timestamp, {', '.join(TAGS + FIELDS)} FROM {{newest}}"
_HIGH: Final = """SELECT series, timestamp, {fields} FROM readings
    WHERE usage_user > 90 AND timestamp >= {start} AND timestamp < {end}"""


@dataclass(frozen=True)
class Kind:
    """A kind of query.

    Attributes:
        name: TSBS's.
        sql: with places for what a dialect and a query have.
        fields: the fields that it reads.
        hosts: how many it asks for; 0 for all.
        hours: the length of its range; 0 for all times.
        a_run: how many queries a run asks.
    """

    name: str
    sql: str
    fields: tuple[str, ...]
    hosts: int = 0
    hours: int = 0
    a_run: int = 3


KINDS: Final = (
    Kind("single-groupby-1-1-1", _GREATEST, FIELDS[:1], hosts=1, hours=1, a_run=10),
    Kind("single-groupby-5-8-1", _GREATEST, FIELDS[:5], hosts=8, hours=1, a_run=10),
    Kind("double-groupby-1", _MEANS, FIELDS[:1], hours=12),
    Kind("lastpoint", _NEWEST, TAGS + FIELDS),
    Kind("high-cpu-all", _HIGH, FIELDS, hours=12),
)
TOTALS: Final = Kind(
    "totals",
    f"""SELECT count(*) AS n, count(DISTINCT series) AS hosts, min({{time}}) AS first,
    max({{time}}) AS last, {", ".join(f"CAST(sum({each}) AS BIGINT) AS {each}" for each in FIELDS)}
    FROM readings""",
    FIELDS,
)
"""Not a query of TSBS: it shows whether a contender has stored all readings."""


@dataclass(frozen=True)
class Query:
    """A query of a kind.

    Attributes:
        kind: what it asks.
        hosts: their names; none for all.
        start_us: the beginning of its range, inclusive.
        end_us: its end, exclusive.
    """

    kind: Kind
    hosts: tuple[str, ...]
    start_us: int
    end_us: int


class Dialect(NamedTuple):
    """Differences of SQL.

    Attributes:
        time: the microseconds of the column `timestamp`.
        divide: of whole numbers, rounding down.
        instant: microseconds -> what `timestamp` is compared with.
        newest: the rows of the newest reading of every host.
    """

    time: str
    divide: str
    instant: Callable[[int], str]
    newest: str


_JOIN: Final = """readings JOIN (SELECT series, max(timestamp) AS timestamp FROM readings
    GROUP BY series) AS newest USING (series, timestamp)"""
DUCKDB: Final = Dialect(
    "epoch_us(timestamp)", "//", lambda us: f"TIMESTAMPTZ '{instant_of(us).isoformat()}'", _JOIN
)
DATAFUSION: Final = Dialect(
    "CAST(timestamp AS BIGINT)",
    "/",
    lambda us: f"arrow_cast({us}, 'Timestamp(Microsecond, Some(\"UTC\"))')",
    _JOIN,
)
SQLITE: Final = Dialect(
    "timestamp",
    "/",
    str,
    """hosts CROSS JOIN points ON points.host = hosts.id AND points.timestamp =
    (SELECT max(timestamp) FROM points WHERE host = hosts.id)""",
)
"""`points` has the fields of `hosts`, by an index of host and time."""


def draw(kind: Kind, load: Load, number: int) -> Query:
    """The query of a number; its range is within the load's."""
    random = np.random.RandomState([load.seed, number])
    hosts = random.choice(load.names, kind.hosts, replace=False) if kind.hosts else ()
    hours = kind.hours or load.hours
    start = START_US + int(random.randint((load.hours - hours) * 3_600 + 1)) * 1_000_000
    return Query(kind, tuple(map(str, hosts)), start, start + hours * HOUR_US)


def sql_of(query: Query, dialect: Dialect) -> str:
    """The query's SQL."""
    fields = query.kind.fields
    return query.kind.sql.format(
        time=dialect.time,
        divide=dialect.divide,
        newest=dialect.newest,
        start=dialect.instant(query.start_us),
        end=dialect.instant(query.end_us),
        hosts=", ".join(f"'{name}'" for name in query.hosts),
        field=fields[0],
        fields=", ".join(fields),
        greatest=", ".join(f"max({name}) AS {name}" for name in fields),
    )


def instant_of(us: int) -> datetime:
    """Microseconds since 1970 as an instant."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def rows_of(answer: pa.Table | Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows of an answer in one order, with times as microseconds."""
    if isinstance(answer, pa.Table):
        columns = [
            each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each
            for each in answer.columns
        ]
        answer = list(zip(*(each.to_pylist() for each in columns), strict=True))
    return sorted(answer)


def digest(rows: Sequence[tuple[Any, ...]]) -> str:
    """A text that stands for rows: equal where they are."""
    return hashlib.sha256(repr(rows).encode()).hexdigest()
