"""Windows that the source folds (`aggregate_windows`) beside the same query of `advance_time`.

Kafka -> one-minute windows by device with a count, a sum of integers and a maximum, of the same
records in JSON and in Avro. Each job is measured by the clock, from start to end of the query, and
by the core seconds that it took in all its processes.
"""

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

from broker import Broker, broker
from kafka_source import SIZES, WARM_UP
from payload_formats import fill_topics, reader_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from schema_registry import serve_schema_registry
from sessions import Apart
from side_by_side import Comparison, Done, by_core_seconds, compare, pair, report
from spark_session import local_spark
from streams import finish, summary

WINDOW: Final = "1 minute"
SUMS: Final = {
    "windows": "count(*)",
    "records": "sum(records)",
    "devices": "sum(devices)",
    "highest": "max(highest)",
}
FORMS: Final = {"json": "JSON", "avro": "Avro"}


def windows(way: str, bootstrap: str, topic: str, registry: str) -> DataFrame:
    """The windows of a way, which is `plain` or `folded`, and a payload format."""
    from pyspark_timestream import advance_time, aggregate_windows

    kind, form = way.split()
    reader = reader_of(session(), Broker(bootstrap, "given"), topic, form, registry)
    if kind == "folded":
        added = {"records": "count", "devices": ("sum", "device"), "highest": ("max", "reading")}
        return aggregate_windows(reader, WINDOW, added, by="device")
    by_minute = advance_time(reader.load()).groupBy("device", F.window("start_time", WINDOW))
    return by_minute.agg(
        F.count("*").alias("records"),
        F.sum("device").alias("devices"),
        F.max("reading").alias("highest"),
    )


@functools.cache
def session() -> SparkSession:
    """The session of this process."""
    return local_spark("bench")


def run(way: str, count: int, *given: str) -> Done:
    """One run of a contender, in its process."""
    return Done(finish(windows(way, *given)).run_s, {"rows": count})


def check(way: str, *given: str) -> dict[str, Any]:
    """The sums of a contender's windows."""
    return summary(windows(way, *given), SUMS)


def measure(count: int = SIZES[-1]) -> Iterator[Comparison]:
    """Both ways in turns for each format, by the clock and by core seconds."""
    with ExitStack() as open_:
        kafka = open_.enter_context(broker(say=lambda _: None))
        registry = open_.enter_context(serve_schema_registry())
        topics = fill_topics(kafka, registry, count)
        for form, name in FORMS.items():
            with ExitStack() as both:
                ways = {
                    f"{kind} {form}": both.enter_context(Apart()) for kind in ("plain", "folded")
                }
                given = (kafka.bootstrap, topics[form], registry.url)
                checks = {
                    way: functools.partial(each.call, check, way, *given)
                    for way, each in ways.items()
                }
                runs = {way: each.contender(run, way, count, *given) for way, each in ways.items()}
                job = f"{name} window, folded beside plain"
                runtimes = compare(job, runs, count, warm_up=WARM_UP, checks=checks)
            yield runtimes
            yield pair(by_core_seconds(runtimes), *runs, ", core s")


if __name__ == "__main__":
    report(__file__, measure())
