"""Short words for tests that watch a running query: its reports, rows and records."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from kafka_query import DAY_MS, Stream, ctis, read_rows, seconds
from pyspark.sql import Row


@contextmanager
def running(made: Stream, **options: Any) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run the stream; the function given waits until something holds."""
    query = made.query = made.start(once=False, **options)

    def until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not holds():
            if not query.isActive:
                raise AssertionError(f"the query has ended: {query.exception()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not within two minutes; rows: {found(made)}")
            time.sleep(0.1)

    try:
        yield until
    finally:
        query.stop()


def offset_of(made: Stream) -> dict[str, Any]:
    """The newest offset in the checkpoint; empty before the first."""
    places = (made.place / "checkpoint" / "offsets").glob("[0-9]*")
    newest = max(places, key=lambda place: int(place.name), default=None)
    return json.loads(newest.read_text().splitlines()[-1]) if newest else {}


def is_idle(made: Stream) -> set[int]:
    """The partitions that the newest offset says are idle."""
    shares = offset_of(made).get("partitions", {}).get(made.topic, {})
    return {int(number) for number, share in shares.items() if share.get("idle")}


def rows(made: Stream) -> list[Row]:
    """The rows of the batches that are complete, in order of batch."""
    done = {int(place.name) for place in (made.place / "checkpoint" / "commits").glob("[0-9]*")}
    places = sorted((made.place / "rows").glob("batch=*"))
    kept = [place for place in places if int(place.name[6:]) in done]
    return [row for place in kept for row in read_rows(place)]


def found(made: Stream) -> list[tuple[int, float | None, str | None]]:
    """(partition, second, violation) of every data row so far, by partition and offset."""
    data = [row for row in rows(made) if row["cti"] is None]
    data.sort(key=lambda row: (row.topic, row.partition, row.offset))
    return [(row.partition, seconds(row.start_time), row.violation) for row in data]


def told(made: Stream) -> list[float | None]:
    """The stream's CTI rows so far."""
    return ctis(rows(made))


def transaction(made: Stream, second: float) -> Producer:
    """A transaction that stays open, with one event in partition 1."""
    producer = made.broker.producer(transactional_id=made.topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(made.topic, b"{}", partition=1, timestamp=DAY_MS + int(second * 1000))
    producer.flush()
    return producer
