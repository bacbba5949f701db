"""DuckDB's answers to the six queries, and how a contender's differ from them.

DuckDB reads the events' files, not the topic: all at once, without time or order. A row of DuckDB's
that a contender lacks is `missing`, and one that it has twice `doubled`. A row that DuckDB did not
make is `changed` if one with the same KEYS is missing, and both count as one; otherwise it is
`made_up`. Closing events are in no answer.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import duckdb

from nexmark.events import Load

__all__ = ["COLUMNS", "KEYS", "Differences", "answer", "differences", "is_exact", "lost_bids"]

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "q0": {
        "auction": "BIGINT",
        "bidder": "BIGINT",
        "price": "BIGINT",
        "instant": "BIGINT",
        "extra": "VARCHAR",
    },
    "q1": {
        "auction": "BIGINT",
        "bidder": "BIGINT",
        "price": "DECIMAL(23, 3)",
        "instant": "BIGINT",
        "extra": "VARCHAR",
    },
    "q5": {"instant": "BIGINT", "auction": "BIGINT", "bids": "BIGINT"},
    "q7": {
        "instant": "BIGINT",
        "price": "BIGINT",
        "auction": "BIGINT",
        "bidder": "BIGINT",
        "bid_ms": "BIGINT",
        "extra": "VARCHAR",
    },
    "q8": {"instant": "BIGINT", "id": "BIGINT", "name": "VARCHAR"},
    "q11": {"bidder": "BIGINT", "instant": "BIGINT", "ends": "BIGINT", "bids": "BIGINT"},
}
KEYS: Final[Mapping[str, str]] = {
    "q0": "auction, bidder, instant",
    "q1": "auction, bidder, instant",
    "q5": "instant",
    "q7": "instant",
    "q8": "id, instant",
    "q11": "bidder, instant",
}

_EVENTS: Final = """
CREATE OR REPLACE VIEW events AS FROM read_json({files}, format = 'newline_delimited', columns = {{
    date_time: 'BIGINT',
    Person: 'STRUCT(id BIGINT, "name" VARCHAR)',
    Auction: 'STRUCT(seller BIGINT)',
    Bid: 'STRUCT(auction BIGINT, bidder BIGINT, price BIGINT, extra VARCHAR)'}});
CREATE OR REPLACE VIEW bids AS
    SELECT Bid.auction AS auction, Bid.bidder AS bidder, Bid.price AS price, date_time AS instant,
        Bid.extra AS extra FROM events WHERE Bid IS NOT NULL
"""
_ANSWERS: Final[Mapping[str, str]] = {
    "q0": "FROM bids",
    "q1": "SELECT * REPLACE (CAST(0.908 * price AS DECIMAL(23, 3)) AS price) FROM bids",
    "q5": """
        WITH counts AS (
            SELECT (instant // 2000 + step) * 2000 AS instant, auction, count(*) AS bids
            FROM bids, range(1, 6) AS steps(step) GROUP BY ALL)
        FROM counts QUALIFY bids = max(bids) OVER (PARTITION BY instant)""",
    "q7": """
        SELECT (instant // 10000 + 1) * 10000 AS instant, price, auction, bidder,
            instant AS bid_ms, extra
        FROM bids QUALIFY row_number() OVER (PARTITION BY bids.instant // 10000
            ORDER BY price DESC, auction DESC, bidder DESC, bids.instant DESC, extra DESC) = 1""",
    "q8": """
        SELECT DISTINCT p.date_time // 10000 * 10000 AS instant, p.Person.id AS id,
            p.Person.name AS name
        FROM events p JOIN events a ON p.Person.id = a.Auction.seller
            AND p.date_time // 10000 = a.date_time // 10000""",
    "q11": """
        WITH gaps AS (
            SELECT bidder, instant,
                instant - lag(instant) OVER (PARTITION BY bidder ORDER BY instant) AS gap
            FROM bids),
        numbered AS (
            SELECT bidder, instant, count(*) FILTER (gap IS NULL OR gap > 10000)
                OVER (PARTITION BY bidder ORDER BY instant) AS number
            FROM gaps)
        SELECT bidder, min(instant) AS instant, max(instant) + 10000 AS ends, count(*) AS bids
        FROM numbered GROUP BY bidder, number""",
}
_DIFFERENCES: Final = """
WITH counted AS (
    SELECT {columns}, sum(wanted) AS wanted, sum(found) AS found FROM (
        SELECT {columns}, 1 AS wanted, 0 AS found FROM wanted
        UNION ALL BY NAME SELECT {columns}, 0 AS wanted, 1 AS found FROM found)
    GROUP BY {columns}),
of_each AS (
    SELECT sum(wanted) AS rows, sum(greatest(wanted - found, 0)) AS lacking,
        sum(CASE WHEN wanted > 0 THEN greatest(found - wanted, 0) ELSE 0 END) AS doubled,
        sum(CASE WHEN wanted = 0 THEN found ELSE 0 END) AS foreign_rows
    FROM counted GROUP BY {key})
SELECT coalesce(sum(rows), 0), coalesce(sum(lacking - least(lacking, foreign_rows)), 0),
    coalesce(sum(doubled), 0), coalesce(sum(least(lacking, foreign_rows)), 0),
    coalesce(sum(foreign_rows - least(lacking, foreign_rows)), 0)
FROM of_each
"""


class Differences(NamedTuple):
    """Rows of a contender beside DuckDB's.

    Attributes:
        rows: how many DuckDB has.
        missing: DuckDB's rows that are not there.
        doubled: rows that are there again.
        changed: rows in place of a row of DuckDB's with the same key.
        made_up: rows that DuckDB has not.
    """

    rows: int
    missing: int
    doubled: int
    changed: int
    made_up: int


def is_exact(found: Differences) -> bool:
    """Whether all rows are DuckDB's, each as often."""
    return not any(found[1:])


def answer(query: str, files: Iterable[Path]) -> duckdb.DuckDBPyConnection:
    """A connection with DuckDB's rows of a query as the table `wanted`."""
    connection = duckdb.connect()
    connection.execute(_EVENTS.format(files=[str(file) for file in files]))
    columns = ", ".join(COLUMNS[query])
    connection.execute(f"CREATE TABLE wanted AS SELECT {columns} FROM ({_ANSWERS[query]})")
    return connection


def differences(
    connection: duckdb.DuckDBPyConnection, query: str, load: Load, place: Path
) -> Differences:
    """How a contender's rows differ.

    Args:
        connection: of `answer`.
        query: its name.
        load: what the topic had.
        place: a directory with the rows in Parquet files, or in files of JSON lines.
    """
    rows = f"read_parquet('{place}/*.parquet')"
    if not any(place.glob("*.parquet")):
        files = [str(each) for each in place.glob("[!._]*")]
        rows = f"read_json({files}, format = 'newline_delimited', columns = {COLUMNS[query]})"
    # Half an hour before them, since their windows begin a little earlier.
    before_ms = load.closes_ms - 1_800_000
    connection.execute(
        f"CREATE OR REPLACE VIEW found AS SELECT * FROM {rows} WHERE instant < {before_ms}"
    )
    (counts,) = connection.execute(
        _DIFFERENCES.format(columns=", ".join(COLUMNS[query]), key=KEYS[query])
    ).fetchall()
    return Differences(*map(int, counts))


def lost_bids(connection: duckdb.DuckDBPyConnection) -> float:
    """For q11, after `differences`: the share of all bids that are in no session."""
    sums = "(SELECT coalesce(sum(bids), 0) FROM {})"
    text = f"SELECT 1 - {sums.format('found')} / {sums.format('wanted')}"
    return float(connection.execute(text).fetchall()[0][0])
