"""What the rules cost beside reading: `cti.step` over blocks in memory, by processor time.

Each row is a way of making CTIs, or of breaking their promise, on 20,000 records a block; its time
is a share of what it takes to parse the same records' JSON (three fields of about 90 bytes).
"""

import json
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from pyspark_timestream.cti import NO_MARKS, Events, Marks, PartitionState, TimeRules, step
from pyspark_timestream.json_types import JsonFields
from pyspark_timestream.json_values import parse_json

BLOCK = 20_000
ROUNDS = 7
SHUFFLED_US = 50_000
"""An event comes up to so much before or after its turn; events are a millisecond apart."""

_RANDOM = np.random.default_rng(1)
TIMES = 1_700_000_000_000_000 + np.arange(BLOCK) * 1_000
TIMES += _RANDOM.integers(-SHUFFLED_US, SHUFFLED_US, BLOCK)
FIELDS = JsonFields(pa.schema([("device", pa.int64()), ("reading", pa.float64())]), ("ts",))
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


def least_s(work: Callable[[], object]) -> float:
    """The least processor time of some rounds."""
    spent = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)


def main() -> None:
    """Print the shares."""
    given = values()
    parse_s = least_s(lambda: parse_json(FIELDS, given))
    print(f"{'rules, by processor time':<40}{'ns a record':>12}{'of a parse':>12}")
    for name, rules, events, told in cases():
        spent_s = least_s(lambda r=rules, e=events, m=told: step(r, PartitionState(), e, m))
        print(f"{name:<40}{spent_s / BLOCK * 1e9:>12.0f}{spent_s / parse_s:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
