"""Growth with a Kafka batch: time with its records, memory of a task, time with partitions.

Three answers: the rows a second of a batch of many records against one of few (1.0: each row costs
the same); what a task of the large batch holds in the last quarter of its run against the second
quarter (1.0: memory does not grow with what was read); and a batch over many partitions with a
few records in each against Spark's own source, in seconds: the project's goal is 3. Each contender
has a session of its own, so that the memory that is kept of each is its own as well.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from broker import Broker, broker
from kafka_records import filled
from kafka_source import WAITS_LESS, here, spark_source, timestream
from memory import PeakMemory
from peers import kafka_jars
from sessions import Apart, path_taken
from side_by_side import ROUNDS, Comparison, Done, by_figure, compare, report
from sizes import records, size, whole_number
from streams import finish, one_batch

PARTITIONS = 4
IN_EACH = 5
"""Records in each of the many partitions."""

GOAL_S = 3
SMALL, LARGE = records((1_000_000, 10_000_000), (100_000, 1_000_000))
MANY = whole_number("BENCH_PARTITIONS", size(1_000, 100))
MEMORY_ROUNDS = size(ROUNDS, 1)


def batch_of(bootstrap: str, topic: str, count: int, per: int) -> Done:
    """The time of a batch of `count` records for each `per` of them."""
    done = one_batch(timestream(*here(bootstrap), topic), count, extra=0.01)
    return Done(done.took * per / count, {"every record": True, "path": path_taken()})


def quarters(bootstrap: str, topic: str) -> tuple[float, float]:
    """The MB of the largest worker at its peak in the second and in the last quarter of a run."""
    with PeakMemory() as memory:
        finish(timestream(*here(bootstrap), topic))
    quarter = len(memory.worker_mb) // 4
    if not quarter:
        raise SystemExit("the run was too short for its memory to be looked at")
    return max(memory.worker_mb[quarter : 2 * quarter]), max(memory.worker_mb[-quarter:])


def speed(kafka: Broker, topics: dict[int, str]) -> Comparison:
    """Rows a second, with the number of records."""
    with ExitStack() as open_:
        contenders = {
            f"{count:,}": open_.enter_context(Apart()).contender(
                batch_of, kafka.bootstrap, topic, count, SMALL
            )
            for count, topic in topics.items()
        }
        job = f"Kafka -> noop, a batch of {LARGE:,}"
        return compare(job, contenders, SMALL, warm_up=2)


def memory(kafka: Broker, topic: str) -> Comparison:
    """The memory of a task, each time in workers that have read nothing before."""
    pairs = []
    for _ in range(MEMORY_ROUNDS):
        with Apart() as apart:
            pairs.append(apart.call(quarters, kafka.bootstrap, topic))
    took = dict(zip(("second quarter", "last quarter"), zip(*pairs, strict=True), strict=True))
    return Comparison("  memory of a task, last/second quarter", took, LARGE, "MB")


def trigger(source: str, bootstrap: str, topic: str, count: int) -> Done:
    """The time of the whole trigger, by one source."""
    place = here(bootstrap)
    ours = source == "timestream"
    frame = timestream(*place, topic) if ours else spark_source(*place, topic, **WAITS_LESS)
    return one_batch(frame, count, extra=1.0, phase="triggerExecution")


def breadth(kafka: Broker) -> Comparison:
    """A batch over many partitions with little in each."""
    count = MANY * IN_EACH
    topic = filled(kafka, count, MANY)
    with ExitStack() as open_:
        contenders = {
            source: open_.enter_context(Apart()).contender(
                trigger, source, kafka.bootstrap, topic, count
            )
            for source in ("spark", "timestream")
        }
        job = f"{MANY:,} partitions of {IN_EACH} (goal: {GOAL_S} s)"
        return compare(job, contenders)


def measure() -> Iterator[Comparison]:
    """All of them, as they come."""
    kafka_jars()
    with broker(say=lambda _: None) as kafka:
        yield from by_figure(breadth(kafka))
        topics = {count: filled(kafka, count, PARTITIONS) for count in (SMALL, LARGE)}
        yield speed(kafka, topics)
        yield memory(kafka, topics[LARGE])


if __name__ == "__main__":
    report(__file__, measure())
