"""The six queries in Flink's SQL.

Watermarks are Flink's: by partition, four seconds behind the greatest time; the end of a bounded
topic releases all.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flink import kafka_table, sink_table

__all__ = ["statements"]

SECONDS: Final = "CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', {}) AS BIGINT) * 1000"
PERIODS: Final = """
    SELECT auction, COUNT(*) AS bids, window_start, window_end
    FROM TABLE(HOP(TABLE bids, DESCRIPTOR(event_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""
TUMBLE: Final = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(event_time), INTERVAL '10' SECOND))"

# Query -> the columns of its rows, the fields that it reads, and its rows.
QUERIES: Final = {
    "q0": (
        "auction BIGINT, bidder BIGINT, price BIGINT, instant BIGINT, extra STRING",
        "Bid",
        "SELECT auction, bidder, price, instant, extra FROM bids",
    ),
    "q1": (
        "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), instant BIGINT, extra STRING",
        "Bid",
        "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)), instant, extra FROM bids",
    ),
    "q5": (
        "instant BIGINT, auction BIGINT, bids BIGINT",
        "Bid",
        f"""
        SELECT {SECONDS.format("a.window_end")}, a.auction, a.bids FROM ({PERIODS}) a
        JOIN (SELECT MAX(bids) AS most, window_start, window_end FROM ({PERIODS})
              GROUP BY window_start, window_end) m
        ON a.window_start = m.window_start AND a.window_end = m.window_end AND a.bids >= m.most""",
    ),
    "q7": (
        "instant BIGINT, price BIGINT, auction BIGINT, bidder BIGINT, bid_ms BIGINT, extra STRING",
        "Bid",
        f"""
        SELECT {SECONDS.format("window_end")}, price, auction, bidder, instant, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end
                ORDER BY price DESC, auction DESC, bidder DESC, instant DESC, extra DESC) AS place
            FROM {TUMBLE.format("bids")}) WHERE place <= 1""",
    ),
    "q8": (
        "instant BIGINT, id BIGINT, name STRING",
        "Person, Auction",
        f"""
        SELECT {SECONDS.format("p.window_start")}, p.id, p.name FROM (
            SELECT id, name, window_start, window_end FROM {TUMBLE.format("persons")}
            GROUP BY id, name, window_start, window_end) p
        JOIN (
            SELECT seller, window_start, window_end FROM {TUMBLE.format("auctions")}
            GROUP BY seller, window_start, window_end) a
        ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
    ),
    "q11": (
        "bidder BIGINT, instant BIGINT, ends BIGINT, bids BIGINT",
        "Bid",
        """
        SELECT bidder, MIN(instant), MAX(instant) + 10000, COUNT(*)
        FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(event_time),
            INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    ),
}
BID_FIELDS: Final = {
    "q5": ("auction",),
    "q11": ("bidder",),
}
TYPES: Final = {"extra": "STRING", "name": "STRING"}
VIEWS: Final = {
    "Bid": ("bids", ("auction", "bidder", "price", "extra")),
    "Person": ("persons", ("id", "name")),
    "Auction": ("auctions", ("seller",)),
}


def statements(query: str, bootstrap: str, topic: str, rows: Path | None = None) -> list[str]:
    """A query to the end of a topic, as statements; the last one is the job.

    Args:
        query: its name.
        bootstrap: the broker's address.
        topic: the topic's name; its values are JSON.
        rows: where its rows go, as JSON; None if nowhere.
    """
    columns, kinds, select = QUERIES[query]
    fields = {}
    for kind in kinds.split(", "):
        view, every = VIEWS[kind]
        fields[kind] = (view, BID_FIELDS.get(query, every) if kind == "Bid" else every)
    structs = ", ".join(f"`{kind}` ROW<{_typed(names)}>" for kind, (_, names) in fields.items())
    events = f"""date_time BIGINT, {structs}, event_time AS TO_TIMESTAMP_LTZ(date_time, 3),
        WATERMARK FOR event_time AS event_time - INTERVAL '4' SECOND"""
    found = kafka_table("events", events, bootstrap, topic)
    for kind, (view, names) in fields.items():
        listed = ", ".join(f"`{kind}`.{name} AS {name}" for name in names)
        found.append(f"DROP TEMPORARY VIEW IF EXISTS {view}")
        found.append(
            f"CREATE TEMPORARY VIEW {view} AS SELECT {listed}, date_time AS instant, event_time "
            f"FROM events WHERE `{kind}`.{names[0]} IS NOT NULL"
        )
    return [*found, *sink_table("answer", columns, rows), f"INSERT INTO answer {select}"]


def _typed(names: Iterable[str]) -> str:
    """The fields of a kind of event, with their types."""
    return ", ".join(f"{name} {TYPES.get(name, 'BIGINT')}" for name in names)
