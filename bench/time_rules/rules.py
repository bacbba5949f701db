"""The cost of the rules beside reading: `rules.step` over blocks in memory, by processor time.

Each row is a way of making CTIs, or of breaking their promise, on 20,000 records a block, and takes
turns with its peer, the parse of the same records' JSON (three fields of about 90 bytes): the ratio
is the share of a parse that the rules take.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from side_by_side import Comparison, Contender, Done, compare, report
from sizes import size

from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.records import RequestedFields
from pyspark_timestream.rules.clocks import Events, PartitionClock, TimeRules
from pyspark_timestream.rules.marks import Marks
from pyspark_timestream.rules.step import NO_MARKS, step

BLOCK = 20_000
BLOCKS = size(10, 2)
"""Blocks a run."""

SHUFFLED_US = 50_000
"""An event comes up to this much before or after its turn; events are a millisecond apart."""

_RANDOM = np.random.default_rng(1)
TIMES = 1_700_000_000_000_000 + np.arange(BLOCK) * 1_000
TIMES += _RANDOM.integers(-SHUFFLED_US, SHUFFLED_US, BLOCK)
FIELDS = RequestedFields(pa.schema([("device", pa.int64()), ("reading", pa.float64())]), ("ts",))
Case = tuple[str, TimeRules, Events, Marks]


def values() -> pa.Array:
    """The records' JSON."""
    fixed = {"unit": "celsius", "site": "north-hall"}
    told = (
        {"device": i % 100, "ts": 1_700_000_000_000 + i, "reading": i % 977 / 7, **fixed}
        for i in range(BLOCK)
    )
    return pa.array([json.dumps(value).encode() for value in told], pa.binary())


def marks(every: int, writers: int, closed: bool = False) -> Marks:
    """A mark, a minute behind, in every `every`-th record, of the writers in turn; 0: of none."""
    places = np.arange(0, BLOCK, every)
    count = len(places)
    names = [f"w{i % writers}" if writers else "" for i in range(count)]
    closes = np.arange(count) % 100 == 99 if closed else np.zeros(count, np.bool_)
    all_ = np.ones(count, np.bool_)
    return Marks(places, TIMES[places] - 60_000, all_, all_, pa.array(names), closes)


def cases() -> Iterator[Case]:
    """Names with rules, events and marks."""
    readable = np.ones(BLOCK, np.bool_)
    points, stamped = Events(TIMES, readable), Events(TIMES, readable, record_us=TIMES + 1_000)
    lasting = Events(TIMES, readable, TIMES + 5_000)
    edges = Events(TIMES, readable, TIMES + 5_000, np.arange(BLOCK) % 2 == 1)
    delay = 2 * SHUFFLED_US
    yield "no CTIs", TimeRules(), points, NO_MARKS
    yield "a CTI an event", TimeRules(every_events=1, delay_us=delay), points, NO_MARKS
    yield "a CTI every ms", TimeRules(every_us=1_000, delay_us=delay), points, NO_MARKS
    yield "a CTI every s", TimeRules(every_us=1_000_000, delay_us=delay), points, NO_MARKS
    for policy in ("drop", "flag"):
        yield f"most late, {policy}", TimeRules("point", policy, 1), points, NO_MARKS
    yield "most late, adjusted intervals", TimeRules("interval", "adjust", 1), lasting, NO_MARKS
    yield "most late, adjusted edges", TimeRules("edge", "adjust", 1), edges, NO_MARKS
    yield "a CTI an event, maxFuture", TimeRules(every_events=1, max_future_us=9), stamped, NO_MARKS
    yield "a mark a record", TimeRules(), points, marks(1, 0)
    for writers in (4, 100):
        yield f"a mark a record, {writers} writers", TimeRules(), points, marks(1, writers)
    yield "the same of 4, timeWindow", TimeRules(time_window=True), points, marks(1, 4)
    yield "the same of 4, a close in 100", TimeRules(), points, marks(1, 4, closed=True)
    patient = TimeRules(writer_timeout_us=1_000_000)
    yield "the same of 4, writerTimeout", patient, stamped, marks(1, 4)
    counted = TimeRules(every_events=1, delay_us=delay)
    yield "a mark in 10, a CTI an event", counted, points, marks(10, 4)
    promising = marks(10, 4)._replace(us=np.sort(TIMES[::10]) + 60_000)
    yield "the same, all marks ahead", counted, points, promising
    ordered, undelayed = Events(np.sort(TIMES), readable), TimeRules(every_events=1)
    in_turn = marks(10, 0)._replace(us=ordered.start_us[::10] + 1)
    yield "a mark in 10, a CTI an event, in turn", undelayed, ordered, in_turn
    for writers in (10, 1_000):
        names = pa.array([f"device-{i}" for i in _RANDOM.integers(0, writers, BLOCK)])
        written = Events(TIMES, readable, record_us=TIMES + 1_000, writers=names)
        yield f"a CTI an event of {writers} writers' clocks", counted, written, NO_MARKS
        spans = TimeRules(every_us=1_000_000, delay_us=delay)
        yield f"a CTI every s of {writers} writers' clocks", spans, written, NO_MARKS


def spent(work: Callable[[], Any], records: Callable[[Any], int]) -> Contender:
    """The processor time of some blocks, in ms, and how many records they had.

    Only this thread's time counts: another one looks at the memory.
    """

    def run() -> Done:
        began = time.thread_time()
        found = [work() for _ in range(BLOCKS)]
        took_ms = (time.thread_time() - began) * 1000
        return Done(took_ms, {"records": sum(map(records, found))})

    return run


def measure() -> Iterator[Comparison]:
    """Every case against the parse."""
    given = values()
    parse = spent(lambda: parse_json(FIELDS, given), lambda block: len(block.columns[0]))
    for name, rules, events, told in cases():
        judge = spent(
            lambda r=rules, e=events, m=told: step(r, PartitionClock(), e, m)[1],
            lambda judgement: len(judgement.keep),
        )
        contenders = {"parse": parse, "rules": judge}
        yield compare(f"rules: {name}", contenders, BLOCK * BLOCKS, "ms")


if __name__ == "__main__":
    report(__file__, measure())
