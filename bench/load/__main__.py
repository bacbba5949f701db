"""The largest sizes: `python bench load` measures what each takes, beside its promised bound.

Each job has a broker that holds its topic, and a process of its own with a session (`jobs`), so
that the peak memory of each process (VmHWM, which the kernel keeps) is its own. *Longest* is the
longest batch, which may be the first one of a session, or the job where it has no batches; *core s*
are the core seconds of the whole job with the start of its session; other load on the machine does
not count. A job that exceeds a bound of `sizes_promised` fails the benchmark, after all have run
and were kept.

    BENCH_LOAD   which jobs, with commas between them; default all
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from broker import Broker, Record, broker
from core_seconds import CoreSeconds
from memory import HighWater
from sessions import Apart
from side_by_side import report_table
from sizes import chosen

from load import jobs
from load.sizes_promised import SIZES, Size

START_MS: Final = 1_700_006_400_000
BATCHES: Final = 2
AT_ONCE: Final = 100
"""Partitions that a busy broker makes within the time that it has."""

MEGABYTE: Final = 1_000_000


def readings(count: int, partitions: int, step_ms: int, every: int) -> Iterator[Record]:
    """`count` records over the partitions in turn; event time moves on after each `every`."""
    for number in range(count):
        at_ms = START_MS + number // every * step_ms
        value = b'{"device":%d,"ts":%d}' % (number % every, at_ms)
        yield Record(value, None, number % partitions, at_ms)


def partitions_topic(kafka: Broker, count: int) -> str:
    """Five records of each partition in a batch."""
    topic = kafka.create_topic(None, min(count, AT_ONCE))
    for total in range(2 * AT_ONCE, count + AT_ONCE, AT_ONCE):
        kafka.add_partitions(topic, min(total, count))
    kafka.produce(topic, readings(5 * BATCHES * count, count, 60_000, 5 * count))
    return topic


def series_topic(kafka: Broker, count: int) -> str:
    """A record of each series in a batch, a minute after the last one."""
    topic = kafka.create_topic(None, 4)
    kafka.produce(topic, readings(BATCHES * count, 4, 60_000, count))
    return topic


def values_topic(kafka: Broker, count: int) -> str:
    """Values that cannot be compressed."""
    topic = kafka.create_topic(None, 4, max_message_bytes=2 * MEGABYTE)
    producer = kafka.producer(message_max_bytes=2 * MEGABYTE, enable_idempotence=True)
    for number in range(BATCHES * count):
        producer.produce(topic, os.urandom(MEGABYTE), partition=number % 4)
        producer.poll(0)
        if number % 50 == 49:
            producer.flush(60)
    if producer.flush(60):
        raise OSError("the broker did not take all values")
    return topic


def ctis_topic(kafka: Broker, count: int) -> str:
    """Each record a second after the last one."""
    topic = kafka.create_topic(None, 1)
    kafka.produce(topic, readings(BATCHES * count, 1, 1000, 1))
    return topic


def writers_topic(kafka: Broker, count: int, *, marks: bool) -> str:
    """A record of each writer in a batch, with its mark."""
    topic = kafka.create_topic(None, 1)

    def made() -> Iterator[Record]:
        for number, record in enumerate(readings(BATCHES * count, 1, 60_000, count)):
            at = str(record.timestamp_ms).encode()
            writer = b"writer-%05d" % (number % count)
            headers = [("cti", at), ("cti-writer", writer)] if marks else []
            yield record._replace(headers=headers)

    kafka.produce(topic, made())
    return topic


TOPICS: Final[Mapping[str, Callable[[Broker, int], str]]] = {
    "partitions": partitions_topic,
    "series": series_topic,
    "values": values_topic,
    "stored_values": values_topic,
    "ctis": ctis_topic,
    "writers": partial(writers_topic, marks=True),
    "clocks": partial(writers_topic, marks=False),
}


def run(name: str, *given: Any) -> dict[str, Any]:
    """Run a job; its row."""
    size = SIZES[name]
    with Apart() as apart, HighWater(apart.pid) as memory, CoreSeconds(apart.pid) as spent:
        figures = apart.call(getattr(jobs, name), *given, size.count)
    return as_row(size, figures, memory.peaks_mb, spent.total_s)


def as_row(
    size: Size, figures: Mapping[str, Any], peaks_mb: Mapping[str, float], core_s: float
) -> dict[str, Any]:
    """The figures of a job, beside its bounds."""
    peaks = {name: round(peaks_mb.get(name, 0)) for name in ("main", "source", "worker", "driver")}
    jvm = peaks.pop("driver")
    more = {
        name: f"{each:,.1f}" if isinstance(each, float) else f"{each:,}"
        for name, each in figures.items()
        if name != "seconds"
    }
    return {
        "size": size.title,
        "longest s": round(figures["seconds"], 1),
        "core s": round(core_s, 1),
        "at most core s": size.core_s,
        "MB, program": peaks["main"],
        "MB, source": peaks["source"],
        "MB, worker": peaks["worker"],
        "at most MB": size.python_mb,
        "MB, JVM": jvm,
        "at most MB, JVM": size.jvm_mb,
        "more": "; ".join(f"{name} {each}" for name, each in more.items()),
    }


def find_exceeded(row: Mapping[str, Any]) -> list[str]:
    """The bounds that a row exceeds."""
    largest = max(row["MB, program"], row["MB, source"], row["MB, worker"])
    return [
        f"{row['size']}: {taken} {what}, at most {bound} are promised"
        for what, taken, bound in (
            ("core s", row["core s"], row["at most core s"]),
            ("MB of Python", largest, row["at most MB"]),
            ("MB of the JVM", row["MB, JVM"], row["at most MB, JVM"]),
        )
        if taken > bound
    ]


def measure(names: list[str], rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All jobs, as they come; appended to `rows` as well."""

    def found(row: dict[str, Any]) -> dict[str, Any]:
        rows.append(row)
        return row

    with broker(say=lambda _: None) as kafka:
        for name in (each for each in names if each in TOPICS):
            topic = TOPICS[name](kafka, SIZES[name].count)
            yield found(run(name, kafka.bootstrap, topic))
            kafka.delete_topic(topic)
    place = tempfile.mkdtemp()
    try:
        for name in (each for each in names if each not in TOPICS):
            yield found(run(name, place + "/store"))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """Run all, keep them, and say which bounds were exceeded.

    Raises:
        SystemExit: one was.
    """
    rows: list[dict[str, Any]] = []
    report_table("load", measure(list(chosen("BENCH_LOAD", list(SIZES))), rows))
    if exceeded := [each for row in rows for each in find_exceeded(row)]:
        raise SystemExit(json.dumps(exceeded, indent=1))


if __name__ == "__main__":
    main()
