"""Three stories that others tell of punctuations, on a real broker, step by step.

StreamInsight's page on advancing application time (its four examples), SQLstream's on rowtime
bounds, and Pravega's on watermarking.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from broker import Record
from kafka_query import DAY_MS, Stream, ctis, event, marks, seconds
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from pyspark_timestream import PunctuatedProducer, advance_time

pytestmark = pytest.mark.timeout(900)

Make = Callable[..., Stream]


# -- StreamInsight: four ways to advance application time -----------------------------------------


@pytest.mark.outside_ci
def test_streaminsight_every_ten_events_with_five_seconds_delay_and_a_final_cti(
    stream: Make,
) -> None:
    records = [event(at) for at in [*range(10), 3, *range(11, 25)]]
    rows = stream(records, ctiFrequency=10, ctiDelay="5 seconds", finalCti="true").run()
    told = marks(rows)
    # The tenth event is at 9 s, the twentieth at 19 s; the one at 3 s is late and counts.
    assert [at for at in told if at[0] == "c"] == ["c4", "c14", "cinf"]
    assert told.index("c4") == told.index("e9") + 1
    assert told.index("c14") == told.index("e19") + 1
    assert "e3" not in told[told.index("c4") :]


def test_streaminsight_every_event_without_delay_and_adjust(stream: Make) -> None:
    records = [event(0, s=s, e=e) for s, e in [(1, 5), (4, 6), (2, 7), (3, 4), (6, 9)]]
    made = stream(
        records, schema="start_time timestamp, end_time timestamp, violation string, cti timestamp",
        valueFormat="json", eventShape="interval", startTime="s", endTime="e",
        timeUnit="s", advanceTime="IncreasingStartTime", violationPolicy="adjust",
    )  # fmt: skip
    rows = made.run()
    kept = [(r.start_time.timestamp(), r.end_time.timestamp(), r.violation)
            for r in rows if r.cti is None]  # fmt: skip
    # [2, 7) begins at the CTI of 4 s; of [3, 4) nothing would be left.
    assert kept == [(1, 5, None), (4, 6, None), (4, 7, "adjusted"), (6, 9, None)]
    assert [r.cti.timestamp() for r in rows if r.cti is not None and r.cti.year < 9999] == [1, 4, 6]


def test_streaminsight_every_event_with_minus_one_tick_commits_each_point_at_once(
    stream: Make,
) -> None:
    made = stream([event(at) for at in (1, 2, 2, 3)], advanceTime="StrictlyIncreasingStartTime",
                  finalCti="false")  # fmt: skip
    assert ctis(made.run()) == [1.000001, 2.000001, 3.000001]
    assert [row.cti is None for row in made.rows()] == [True, False] * 3
    # The second point at 2 s came after it was committed.
    assert made.report()["dropped"] == 1
    # Without the tick each point is committed by the next one that moves time on.
    usual = stream([event(at) for at in (1, 2, 2, 3)], advanceTime="IncreasingStartTime",
                   finalCti="false")  # fmt: skip
    assert marks(usual.run()) == ["e1", "c1", "e2", "c2", "e2", "e3", "c3"]


STATES = "start_time timestamp, edge string, device long, state string, cti timestamp"
READINGS = "start_time timestamp, device long, cti timestamp"


def joined(readings: DataFrame, states: DataFrame) -> DataFrame:
    """Each reading with what state its device had; null where it had none in the last hour."""
    fast = advance_time(readings, releases="rows").alias("fast")
    slow = advance_time(states, releases="rows").alias("slow")
    within = (
        "fast.device = slow.device AND slow.start_time <= fast.start_time "
        "AND slow.start_time > fast.start_time - INTERVAL 1 HOUR"
    )
    found = fast.join(slow, F.expr(within), "leftOuter")
    return found.select("fast.start_time", "fast.device", "slow.state")


@pytest.mark.outside_ci
@pytest.mark.parametrize("imported", [True, False], ids=["imported", "on its own"])
def test_streaminsight_import_lets_a_slow_edge_stream_go_as_fast_as_the_fast_one(
    stream: Make, imported: bool
) -> None:
    """Without the import the join waits for the next edge, which may be hours away."""
    times = {"valueFormat": "json", "startTime": "second", "timeUnit": "s"}
    fast = stream(
        [event(at, device=at % 2) for at in range(1, 9)], schema=READINGS, ctiFrequency=1, **times
    )
    edges = [event(1, device=1, state="on", edge="start")]
    clock = json.dumps({"topic": fast.topic, "frequency": "1", "startTime": "second"})
    how = {"ctiImport": clock} if imported else {"ctiFrequency": 1}
    slow = stream(
        edges, schema=STATES, eventShape="edge", edge="edge", endTime="until", **how, **times
    )
    rows = fast.run(joined(fast.load(), slow.load()))
    found = sorted((row.start_time.timestamp(), row.device, row.state) for row in rows)
    matched = [(at, 1, "on") for at in (1, 3, 5, 7)]
    # A reading without a state is final once both sides have passed it: 8 s itself is still open.
    unmatched = [(at, 0, None) for at in (2, 4, 6)]
    assert found == sorted(matched + (unmatched if imported else []))


# -- SQLstream: clients that order, and clients that only say how late it is ----------------------


def clock(text: str) -> float:
    """A time of day as seconds."""
    hours, minutes = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60


def order(client: str, at: str) -> Record:
    """A row of a client; its rowtime is also the client's bound."""
    given = event(clock(at), client=client)
    return given._replace(headers=bound(client, at).headers)


def bound(client: str, at: str) -> Record:
    """A rowtime bound: no row of the client will be before it."""
    stamp = datetime.fromtimestamp(DAY_MS / 1000 + clock(at), UTC).isoformat()
    return Record(None, None, 0, DAY_MS, [("cti", stamp), ("cti-writer", client)])


def closing(client: str) -> Record:
    """The client has closed its stream."""
    return Record(None, None, 0, DAY_MS, [("cti-writer", client), ("cti-close", "")])


ORDERS = "client string, start_time timestamp, cti timestamp"
CLIENTS = {"valueFormat": "json", "startTime": "second", "timeUnit": "s", "ctiHeader": "cti",
           "writers": "A,B,C"}  # fmt: skip


def released(made: Stream, *records: Record) -> list[str]:
    """The rows from these records: orders by the minute, once time has passed them."""
    made.broker.produce(made.topic, records)
    before = len(made.rows())
    by_minute = advance_time(made.load()).groupBy(F.window("start_time", "1 minute").alias("w"))
    counts = by_minute.agg(F.collect_set("client").alias("clients"))
    minute = F.date_format(F.col("w.start"), "HH:mm").alias("minute")
    rows = made.run(counts.select(minute, "clients"))[before:]
    return sorted(f"{''.join(row.clients)} {row.minute}" for row in rows)


def daily(record: Record) -> Record:
    """The same record with the second counted from 1970 in its value, as JSON numbers do."""
    if record.value is None:
        return record
    value = json.loads(record.value)
    return record._replace(value=json.dumps(value | {"second": value["second"] + DAY_MS // 1000}))


@pytest.mark.soak
def test_sqlstream_orders_wait_for_the_slowest_client_and_bounds_move_them(stream: Make) -> None:
    made = stream(schema=ORDERS, **CLIENTS)

    def then(*records: Record) -> list[str]:
        return released(made, *map(daily, records))

    # A's order of 10:00 waits for B, of whom nothing is known.
    assert then(order("A", "10:00"), order("C", "10:05"), order("A", "10:20")) == []
    # B's own order says that B is at 10:10, and C is at 10:05.
    assert then(order("B", "10:10")) == ["A 10:00"]
    # A and C go on; B is what everybody waits for.
    assert then(order("A", "10:45"), order("C", "10:40")) == ["C 10:05"]
    # B orders nothing, but says that it is 10:30: as good as an order of 10:30.
    assert then(bound("B", "10:30")) == ["A 10:20", "B 10:10"]
    # B closes, and only A and C count.
    assert then(order("A", "10:55"), closing("B")) == []
    assert then(bound("C", "10:50")) == ["A 10:45", "C 10:40"]
    # B is back, below the clock: its row of 10:15 is rejected, and B counts again.
    assert then(order("B", "10:15"), bound("C", "11:00"), bound("A", "11:00")) == []
    assert made.report()["dropped"] == 1
    assert then(bound("B", "11:00")) == ["A 10:55"]


def test_sqlstream_a_bound_moves_time_exactly_as_a_row_does(stream: Make) -> None:
    before = [order("A", "10:00"), order("B", "10:10"), order("C", "10:05"), order("A", "10:45"),
              order("C", "10:40")]  # fmt: skip
    told = []
    for last in (order("B", "10:30"), bound("B", "10:30")):
        made = stream(map(daily, [*before, last]), schema=ORDERS, **CLIENTS)
        told.append(ctis(made.load_batch(startingOffsets=None).collect()))
    assert told[0] == told[1] == [clock("10:00"), clock("10:05"), clock("10:10"), clock("10:30")]


# -- Pravega: writers note times, and readers learn between which times they are ------------------


def windows(rows: list[Row]) -> list[tuple[str, float | None, float | None]]:
    """Each row's text with the bounds of time at its position."""
    return [(row.value.decode(), seconds(row.time_lower), seconds(row.time_upper))
            for row in rows if row.cti is None]  # fmt: skip


def test_pravega_writers_note_times_and_every_position_has_its_bounds(stream: Make) -> None:
    """Times are record timestamps in the minutes before and after now, marks are of 2024."""
    now_ms = int(time.time() * 1000)
    made = stream(
        ctiHeader="cti", writerTimeout="10 minutes", timeWindow="true", violationPolicy="flag"
    )

    def at(minute: float, text: str | None, writer: str = "", mark: float | None = None) -> Record:
        stamp = None if mark is None else str(DAY_MS + int(mark * 1000))
        headers = [("cti", stamp), ("cti-writer", writer)] if stamp else []
        return Record(text, None, 0, now_ms + int(minute * 60_000), headers)

    made.broker.produce(made.topic, [
        at(-9, "nobody"),
        at(-8, None, "one", 100), at(-8, "one"),
        at(-7, None, "two", 90), at(-7, "two"),
        at(-6, None, "two", 200), at(-6, "min of both"),
    ])  # fmt: skip
    # A transaction's rows and its time are seen together; an aborted one leaves nothing.
    settings = {"bootstrap.servers": made.broker.bootstrap, "transactional.id": made.topic}
    with PunctuatedProducer(settings, made.topic, "three") as three:
        three.produce("in the transaction")
        three.commit(datetime.fromtimestamp(DAY_MS / 1000 + 150, UTC))
        three.produce("aborted")
        three.abort()
        made.broker.produce(made.topic, [
            at(1, "three is in"),
            at(1.5, None, "one", 120), at(2, "one went on"),
        ])  # fmt: skip
        # Two was heard at -6 last, and three now: at 4.5 two is silent for longer than that.
        made.broker.produce(made.topic, [
            at(4.5, "two is forgotten"),
            at(5, None, "two", 110), at(5, "two is back, below the clock"),
            at(50, "all are forgotten"),
        ])  # fmt: skip
        rows = made.load_batch(startingOffsets=None).collect()
    assert windows(rows) == [
        ("nobody", None, None),
        ("one", 100, 100),
        ("two", 90, 100),
        ("min of both", 100, 200),
        ("in the transaction", 100, 200),
        ("three is in", 100, 200),
        ("one went on", 120, 200),
        ("two is forgotten", 120, 200),
        ("two is back, below the clock", 110, 200),
        ("all are forgotten", None, None),
    ]
    # 100 by one; two's 90 holds it, then 200 leaves one's 100; then one's 120.
    assert ctis(rows) == [100, 120]
