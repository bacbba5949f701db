"""Records into Arrow without Spark, beside others: `python bench/neighbours`.

How many records a core reads in a second, from a topic of four partitions into columns: our reader
with the native reader and without it, beside a loop with confluent-kafka, confluent-kafka's
messages made columns by pyarrow, and kafkarrow 0.1.1 (`readers`, `kafkarrow_process`). Each has a
process of its own, and a new consumer for each run; it is measured from making the consumer to the
last record, by the seconds of all of its threads (`core s`) and by the clock (`whole run`).

Before that all tally the same topic: numbers, offsets, times, lengths and checksums of the bytes
have to agree; in each run all but the checksums. BENCH_RECORDS says how many records there are.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from broker import broker
from kafka_records import filled
from sessions import Apart
from side_by_side import Comparison, Contender, Done, by_figure, compare, pair, report
from sizes import records

from neighbours.kafkarrow_process import VERSION, Kafkarrow, NotInstalled, install
from neighbours.readers import READERS, Topic, settings
from neighbours.runs import as_done, run_there, sums_there
from pyspark_timestream.kafka.client.native_consumer import load_native_reader

RECORDS: Final = records((4_000_000,), (200_000,))
PARTITIONS: Final = 4
OURS: Final = {"without native": "0", "native": "1"}
"""Our contenders, and TIMESTREAM_NATIVE."""

Check = Callable[[], Mapping[str, int]]


def measure() -> Iterator[Comparison]:
    """Each of ours beside each neighbour."""
    with ExitStack() as open_:
        kafka = open_.enter_context(broker(say=lambda _: None))
        for count in RECORDS:
            topic = Topic(kafka.bootstrap, filled(kafka, count, PARTITIONS), PARTITIONS, count)
            contenders, checks = open_contenders(open_, topic)
            found = compare("records into Arrow", contenders, count, checks=checks)
            ways = [name for name in contenders if name in OURS]
            for ours in ways:
                for peer in contenders:
                    if peer not in OURS:
                        yield from by_figure(pair(found, peer, ours, f", {ours}, beside {peer}"))
            kafka.delete_topic(topic.name)


def open_contenders(
    open_: ExitStack, topic: Topic
) -> tuple[dict[str, Contender], dict[str, Check]]:
    """Contender -> a run, and what it reads with the checksums of all bytes; ours are the last."""
    runs: dict[str, Contender] = {}
    checks: dict[str, Check] = {}
    native = () if load_native_reader() is not None else ("native",)
    for name in READERS:
        if name == "without native":
            add_kafkarrow(open_, topic, runs, checks)
        if name not in native:
            apart = open_.enter_context(Apart(TIMESTREAM_NATIVE=OURS.get(name, "")))
            runs[name] = apart.contender(run_there, name, topic)
            checks[name] = functools.partial(apart.call, sums_there, name, topic)
    return runs, checks


def add_kafkarrow(
    open_: ExitStack, topic: Topic, runs: dict[str, Contender], checks: dict[str, Check]
) -> None:
    """Add kafkarrow to the contenders, or say why it is not one."""
    try:
        process = open_.enter_context(Kafkarrow(install()))
    except NotInstalled as error:
        print(f"kafkarrow does not take part: {error}", flush=True)
        return
    run = OfKafkarrow(process, topic)
    name = f"kafkarrow {VERSION}"
    runs[name], checks[name] = run, run.sums


@dataclass(frozen=True)
class OfKafkarrow:
    """Its runs, as `compare` wants them."""

    process: Kafkarrow
    topic: Topic

    @property
    def pid(self) -> int:
        return self.process.pid

    def __call__(self) -> Done:
        return as_done(**self._read(contents=False))

    def sums(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self._read(contents=True)["sums"]
        return found

    def _read(self, contents: bool) -> Any:
        topic = self.topic
        return self.process.read(settings(topic), topic.name, topic.records, contents)


if __name__ == "__main__":
    report("neighbours", measure())
