"""The rows that a job keeps under Spark's watermark and under CTIs, as on the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from both_sources import Source
from broker import Broker
from documents import table
from lengths import choices
from reported_trips import (
    MINUTES,
    PARTITIONS,
    kept_by_ctis,
    kept_by_spark,
    lost_beforehand,
    records,
    trips,
)

pytestmark = pytest.mark.timeout(600)

PAGE = "docs/how-to/migrate-from-kafka.md"
JOBS = {"`withWatermark`": kept_by_spark, "`ctiDelay`": kept_by_ctis}
LAGGING = 3
"""The partition that is written after the others have been read."""


def rows(*reads: str) -> list[list[str]]:
    return [row for row in table(PAGE, "measured") if row[2] in reads]


def check(row: list[str], kept: int) -> None:
    assert row[3:] == [f"{kept:,}", str(MINUTES - kept)]


@pytest.mark.outside_ci
def test_the_same_delay_keeps_less_but_the_same_in_any_batches(
    both: tuple[Source, Source], broker: Broker, topic: Callable[..., str]
) -> None:
    sources, name = dict(zip(JOBS, both, strict=True)), topic(PARTITIONS)
    broker.produce(name, records(trips()))
    limits = {"in one batch": MINUTES, "in batches of 40": 40, "in batches of 240": 240}
    # Three dozen batches are outside CI.
    for row in rows(*choices(["in one batch", "in batches of 240"], [*limits])):
        job, delay, read = row[:3]
        check(row, JOBS[job](sources[job], name, delay, limits[read]))


def test_a_batch_read_tells_beforehand_what_a_delay_drops(
    both: tuple[Source, Source], broker: Broker, topic: Callable[..., str]
) -> None:
    name = topic(PARTITIONS)
    broker.produce(name, records(trips()))
    measured = {row[1]: int(row[4]) for row in rows("in one batch") if row[0] == "`ctiDelay`"}
    assert lost_beforehand(both[1], name, [10, 70, 100]) == [*measured.values(), 14]
    assert "a delay of 100 minutes loses 14" in " ".join(Path(PAGE).read_text().split())


@pytest.mark.outside_ci
def test_a_partition_that_lags_loses_its_rows_to_a_watermark_and_none_to_ctis(
    both: tuple[Source, Source], broker: Broker, topic: Callable[..., str]
) -> None:
    lagging = [trip for trip in trips() if trip.partition == LAGGING]
    others = [trip for trip in trips() if trip.partition != LAGGING]
    sources = dict(zip(JOBS, both, strict=True))
    for row in rows("one partition after the others"):
        job, delay = row[:2]
        name = topic(PARTITIONS)
        parts = [
            lambda part=part, to=name: broker.produce(to, records(part))
            for part in (others, lagging)
        ]
        check(row, JOBS[job](sources[job], name, delay, parts=parts))
