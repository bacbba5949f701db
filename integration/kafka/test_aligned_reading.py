"""Aligned reading on a real broker (semantics 5.10): the same rows, read side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from broker import Broker, Record
from kafka_query import DAY_MS, event
from lengths import repetitions
from scheduled_job import Job

pytestmark = pytest.mark.timeout(300)

HOUR_S = 3600
DENSE = repetitions(7_200, 72_000)
"""Records an hour; the others have a tenth and a hundredth of it."""

FUTURE_S = 700 * 86_400
"""Two years ahead; a broker refuses timestamps that are ahead of its own clock."""


def timed(second: float, partition: int) -> Record:
    """A record with the same time in its header and as its timestamp."""
    return event(second, partition)._replace(headers=(("time", str(DAY_MS + int(second * 1000))),))


def backfill() -> list[Record]:
    """Two hours of four partitions, some out of order; the last partition lies an hour behind."""
    records = []
    for number, (count, begin_s) in enumerate(
        [(DENSE, HOUR_S), (DENSE // 10, HOUR_S), (DENSE // 100, HOUR_S), (DENSE, 0)]
    ):
        for n in range(2 * count):
            late_s = 900 if n % 97 == 0 else 0
            records.append(timed(round(begin_s + n * HOUR_S / count - late_s, 3), number))
    return records


@pytest.fixture(scope="module")
def filled(broker: Broker) -> str:
    """A topic of four partitions with transactions, aborted ones too, and a far-future event."""
    name = broker.create_topic(None, 4)
    records = backfill()
    broker.produce(name, records)
    producer = broker.producer(transactional_id=name)
    producer.init_transactions()
    for ends in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for n in range(300):
            given = {
                "partition": n % 2,
                "timestamp": DAY_MS + 5_000,
                "headers": {"time": str(DAY_MS + 5_000)},
            }
            producer.produce(name, b"{}", **given)
        producer.flush()
        ends()
    broker.produce(name, [timed(FUTURE_S, 0), *(timed(3 * HOUR_S + n, 0) for n in range(400))])
    return name


def lead_rows(job: Job) -> int:
    """The most records past the slowest partition and the skew that any batch had read."""
    rows = [row for row in job.rows if row["offset"] is not None]
    times: dict[int, dict[int, float]] = {n: {} for n in range(4)}
    for row in rows:
        times[row["partition"]][row["offset"]] = row["start_time"].timestamp()
    (last,) = job.offsets[-1]["partitions"].values()
    worst = 0
    for offset in job.offsets:
        (shares,) = offset["partitions"].values()
        ends = {int(number): share["to"] for number, share in shares.items()}
        if max(ends[0] - 2 * DENSE, ends[1] - DENSE // 5) > 0:
            break  # records after the backfill go back in time
        read = {n: [s for at, s in times[n].items() if at < end] for n, end in ends.items()}
        left = [n for n, end in ends.items() if end < last[str(n)]["to"] and read[n]]
        # The newest that was read, since the last one may be late.
        bound = min((max(read[n]) for n in left), default=math.inf) + 600
        worst = max(worst, sum(s >= bound for each in read.values() for s in each))
    return worst


def outcome(job: Job) -> tuple[list[Any], list[Any]]:
    """Rows by partition and offset, and each partition's clock with its counters at the end."""
    data = [row for row in job.rows if row["offset"] is not None]
    rows = [(row["partition"], row["offset"], row["start_time"], row["violation"]) for row in data]
    (shares,) = job.offsets[-1]["partitions"].values()
    return sorted(rows), [shares[number]["state"] for number in sorted(shares)]


TIMES = {
    "time index": {},
    "pace": {"startTime": "header:time"},
}


@pytest.fixture(scope="module")
def plain(broker: Broker, filled: str) -> Callable[[str], Job]:
    """The run without the option that the others must equal, one for each kind of time."""
    done: dict[str, Job] = {}

    def run(kind: str) -> Job:
        if kind not in done:
            limited = {"maxOffsetsPerTrigger": "2000", **TIMES[kind]}
            done[kind] = Job(broker, filled, **limited, ctiDelay="5 minutes")
            done[kind].run()
        return done[kind]

    return run


@pytest.mark.outside_ci
@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("limit", [None, "2000"])
def test_an_aligned_backfill_reads_side_by_side_and_gives_the_same_rows(
    broker: Broker, filled: str, plain: Callable[[str], Job], kind: str, limit: str | None
) -> None:
    limited = {} if limit is None else {"maxOffsetsPerTrigger": limit}
    job = Job(broker, filled, **TIMES[kind], **limited, ctiDelay="5 minutes", maxSkew="10 minutes")
    told = job.run()
    assert outcome(job) == outcome(plain(kind))
    assert told == sorted(set(told))
    assert job.offsets[-1]["end_of_run"]
    # 3 hours in steps of 10 minutes; with a limit as many more as it needs.
    size = sum(share["to"] for share in job.offsets[-1]["partitions"][filled].values())
    assert 18 <= len(job.offsets) < 60 + (2 * size / int(limit) if limit else 0)
    allowed = 4 * 100 + len(job.offsets) + (0 if kind == "time index" else DENSE / 6)
    assert lead_rows(job) <= allowed < lead_rows(plain(kind))
    assert any(share.get("waits") for each in job.offsets
               for share in each["partitions"][filled].values())  # fmt: skip


def test_an_aligned_run_that_restarts_after_any_batch_gives_the_same_rows(
    broker: Broker, filled: str, plain: Callable[[str], Job]
) -> None:
    """The option comes and goes on the checkpoint."""
    kinds = [{"maxSkew": "10 minutes"}, {"maxSkew": "25 minutes"}, {}]
    job = Job(broker, filled, ctiDelay="5 minutes")
    for turn in range(200):
        more = {"maxOffsetsPerTrigger": "1500"}
        job.change(ctiDelay="5 minutes", **more, **kinds[turn % len(kinds)])
        job.run(batches=1 + turn % 3)
        if job.has_ended:
            break
    assert job.has_ended
    assert outcome(job) == outcome(plain("time index"))
