"""The six queries in Flink's SQL; `flink.py` runs this in Flink's own environment.

Each line that is read asks for a run: {"query", "bootstrap", "topic", "rows"}. Each is answered by
a line {"took": seconds}. Watermarks are Flink's: by partition, four seconds behind the greatest
time; the end of a bounded topic releases all.
"""

import json
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

SECONDS = "CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', {}) AS BIGINT) * 1000"
PERIODS = """
    SELECT auction, COUNT(*) AS bids, window_start, window_end
    FROM TABLE(HOP(TABLE bids, DESCRIPTOR(event_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""
TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(event_time), INTERVAL '10' SECOND))"

# Query -> the columns of its rows, the fields that it reads, and its rows.
QUERIES = {
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
BID_FIELDS = {
    "q5": ("auction",),
    "q11": ("bidder",),
}
TYPES = {"extra": "STRING", "name": "STRING"}
VIEWS = {
    "Bid": ("bids", ("auction", "bidder", "price", "extra")),
    "Person": ("persons", ("id", "name")),
    "Auction": ("auctions", ("seller",)),
}


def run(tables, query, bootstrap, topic, rows):
    """Run a query; the seconds from its submission to its end."""
    columns, kinds, select = QUERIES[query]
    fields = {}
    for kind in kinds.split(", "):
        view, every = VIEWS[kind]
        fields[kind] = (view, BID_FIELDS.get(query, every) if kind == "Bid" else every)
    structs = ", ".join(f"`{kind}` ROW<{typed(names)}>" for kind, (_, names) in fields.items())
    tables.execute_sql("DROP TEMPORARY TABLE IF EXISTS events")
    tables.execute_sql(f"""CREATE TEMPORARY TABLE events (date_time BIGINT, {structs},
        event_time AS TO_TIMESTAMP_LTZ(date_time, 3),
        WATERMARK FOR event_time AS event_time - INTERVAL '4' SECOND) WITH (
        'connector' = 'kafka', 'properties.bootstrap.servers' = '{bootstrap}', 'topic' = '{topic}',
        'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset',
        'format' = 'json')""")
    for kind, (view, names) in fields.items():
        listed = ", ".join(f"`{kind}`.{name} AS {name}" for name in names)
        tables.execute_sql(f"DROP TEMPORARY VIEW IF EXISTS {view}")
        tables.execute_sql(
            f"CREATE TEMPORARY VIEW {view} AS SELECT {listed}, date_time AS instant, event_time "
            f"FROM events WHERE `{kind}`.{names[0]} IS NOT NULL"
        )
    sink = "'connector' = 'blackhole'"
    if rows is not None:
        sink = f"'connector' = 'filesystem', 'path' = 'file://{rows}', 'format' = 'json'"
    tables.execute_sql("DROP TEMPORARY TABLE IF EXISTS answer")
    tables.execute_sql(f"CREATE TEMPORARY TABLE answer ({columns}) WITH ({sink})")
    began = time.perf_counter()
    tables.execute_sql(f"INSERT INTO answer {select}").wait()
    return time.perf_counter() - began


def typed(names):
    """The fields of a kind of event, with their types."""
    return ", ".join(f"{name} {TYPES.get(name, 'BIGINT')}" for name in names)


def main():
    """Answer requests until there are no more."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = tables.get_config()
    settings.set("pipeline.jars", sys.argv[1])
    settings.set("parallelism.default", "2")
    settings.set("table.local-time-zone", "UTC")
    for line in sys.stdin:
        took = run(tables, **json.loads(line))
        print(json.dumps({"took": took}), flush=True)


if __name__ == "__main__":
    main()
