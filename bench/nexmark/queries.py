"""The six queries as DataFrames, the same for each source: q0, q1, q5, q7, q8 and q11.

| query | its rows |
| --- | --- |
| q0 | every bid, as it is |
| q1 | every bid, its price in euros |
| q5 | the auctions with most bids in ten seconds, every two seconds |
| q7 | the highest bid of each ten seconds; of equal ones the last by its other columns |
| q8 | who has joined and opened an auction in the same ten seconds |
| q11 | how many bids a bidder has made until silent for more than ten seconds |

Times in rows are whole milliseconds since 1970. A source delivers, for a query, the fields that it
asks for and the event time, as `event_time`, under its watermark. q8 joins two of its streams.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = ["FIELDS", "QUERIES", "Query", "Read", "hottest"]

FIELDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "auction": ("Bid", "auction", "long"),
    "bidder": ("Bid", "bidder", "long"),
    "price": ("Bid", "price", "long"),
    "extra": ("Bid", "extra", "string"),
    "id": ("Person", "id", "long"),
    "name": ("Person", "name", "string"),
    "seller": ("Auction", "seller", "long"),
}
"""Column -> its kind of event, its field there, and its type."""

Read = Callable[..., DataFrame]
"""The named columns and `event_time`; without other kinds of event."""


@dataclass(frozen=True)
class Query:
    """A query over any source that reads its fields.

    Attributes:
        build: makes its rows.
        releases: what `advance_time` is told; None for a query without state.
    """

    build: Callable[[Read], DataFrame]
    releases: str | None = "windows"


def _q0(read: Read) -> DataFrame:
    bids = read("auction", "bidder", "price", "extra")
    return bids.select("auction", "bidder", "price", _ms("event_time", "instant"), "extra")


def _q1(read: Read) -> DataFrame:
    bids = read("auction", "bidder", "price", "extra")
    euros = F.expr("CAST(0.908 * price AS decimal(23, 3)) AS price")
    return bids.select("auction", "bidder", euros, _ms("event_time", "instant"), "extra")


def _q5(read: Read) -> DataFrame:
    period = F.window("event_time", "10 seconds", "2 seconds").alias("period")
    return hottest(read("auction").groupBy("auction", period).agg(F.count("*").alias("bids")))


def hottest(counts: DataFrame) -> DataFrame:
    """The rows of q5, of the bids of each auction and period."""
    every = F.collect_list(F.struct("auction", "bids")).alias("every")
    periods = counts.groupBy("period").agg(F.max("bids").alias("most"), every)
    hot = F.explode(F.expr("filter(every, each -> each.bids = most)")).alias("hot")
    found = periods.select(_ms("period.end", "instant"), hot)
    return found.select("instant", "hot.auction", "hot.bids")


def _q7(read: Read) -> DataFrame:
    bids = read("auction", "bidder", "price", "extra")
    bids = bids.select("*", _ms("event_time", "bid_ms"))
    bid = F.struct("price", "auction", "bidder", "bid_ms", "extra")
    highest = bids.groupBy(F.window("event_time", "10 seconds")).agg(F.max(bid).alias("bid"))
    return highest.select(_ms("window.end", "instant"), "bid.*")


def _q8(read: Read) -> DataFrame:
    window = F.window("event_time", "10 seconds").alias("window")
    persons = read("id", "name").groupBy("id", "name", window).agg(F.count("*"))
    sellers = read("seller").groupBy("seller", window).agg(F.count("*"))
    persons, sellers = persons.alias("p"), sellers.alias("s")
    same = (F.col("p.id") == F.col("s.seller")) & (F.col("p.window") == F.col("s.window"))
    joined = persons.join(sellers, same)
    return joined.select(_ms("p.window.start", "instant"), "p.id", "p.name")


def _q11(read: Read) -> DataFrame:
    session = F.session_window("event_time", "10 seconds").alias("session")
    sessions = read("bidder").groupBy("bidder", session).agg(F.count("*").alias("bids"))
    ends = _ms("session.end", "ends")
    return sessions.select("bidder", _ms("session.start", "instant"), ends, "bids")


def _ms(column: str, name: str) -> Column:
    return F.unix_millis(column).alias(name)


QUERIES: Final[Mapping[str, Query]] = {
    "q0": Query(_q0, releases=None),
    "q1": Query(_q1, releases=None),
    "q5": Query(_q5),
    "q7": Query(_q7),
    "q8": Query(_q8),
    "q11": Query(_q11, releases="rows"),
}
