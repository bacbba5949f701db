"""Nexmark: `python bench/nexmark`, or `python bench nexmark`.

Six queries (`queries`) over topics of the generator's events (`events`), by Spark's own Kafka
source, by Flink where it is installed (`flink`), and by ours; q5 also with its counts folded in our
source (`folded`). Each is a bounded run, in batches of
20 seconds of event time, in a session that has run it before. We compare Nexmark's own metric, the
seconds of processors in all of a contender's processes, and the whole run from `start()` to its
end. The broker's processor time is not counted.

Before that each contender's rows are written down and compared with DuckDB's (`answers`).

    NEXMARK_EVENTS   how many events; default 10,000,000, with QUICK=1 200,000
    NEXMARK_ROUNDS   how many rounds are measured; default 3, with QUICK=1 one
    NEXMARK_QUERIES  which queries, such as q5,q11; default all
    NEXMARK_TOPICS   which topics, such as ordinary-avro; default all of TOPICS, with QUICK=1
                     lagging-json
    BENCH_FLINK      1: Flink must take part; 0: it does not; default: where it is installed;
                     with QUICK=1 it does not unless told to

With 10 million events it takes some hours: raise BENCH_LIMIT_S in `make bench`.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from broker import broker
from processor_time import machine
from side_by_side import Comparison, Done, compare, report
from sizes import chosen, whole_number

from nexmark.answers import answer, differences, lost_bids
from nexmark.contenders import Contender, open_contenders
from nexmark.events import Load
from nexmark.generator import PLACE, generate, require_generator
from nexmark.queries import QUERIES
from nexmark.runs import Taken
from nexmark.sources import Topic
from nexmark.topics import fill_topic, write_events

QUICK: Final = "1" in (os.environ.get("QUICK"), os.environ.get("BENCH_QUICK"))
TOPICS: Final = ("ordinary-json", "lagging-json", "ordinary-avro")
FORMATS: Final = {"json": "JSON", "avro": "Avro"}


def measure() -> Iterator[Comparison]:
    """All queries, each over the three topics."""
    events = whole_number("NEXMARK_EVENTS", 200_000 if QUICK else 10_000_000)
    rounds = whole_number("NEXMARK_ROUNDS", 1 if QUICK else 3)
    queries = chosen("NEXMARK_QUERIES", tuple(QUERIES))
    topics = chosen("NEXMARK_TOPICS", TOPICS, ("lagging-json",))
    require_generator()
    with ExitStack() as open_:
        contenders = open_contenders(open_, "0" if QUICK else None)
        kafka = open_.enter_context(broker(say=lambda _: None))
        for variant, _, form in (each.partition("-") for each in topics):
            load = Load(events, variant)
            files = write_events(load, PLACE / "events", generate)
            name = fill_topic(kafka, load, form, files)
            topic = Topic(kafka.bootstrap, name, form, load.batch)
            for query in queries:
                job = f"{query}, {FORMATS[form]}" + (", lagging" if variant == "lagging" else "")
                able = {
                    name: each
                    for name, each in contenders.items()
                    if form in each.formats and query in each.queries
                }
                exactness = check(query, load, files, topic, able)
                yield from measure_job(job, rounds, query, load, topic, able, exactness)
            kafka.delete_topic(name)


def check(
    query: str, load: Load, files: list[Path], topic: Topic, able: Mapping[str, Contender]
) -> dict[str, Any]:
    """Contender -> how its rows differ from DuckDB's."""
    found: dict[str, Any] = {}
    wanted = answer(query, files)
    for name, contender in able.items():
        with tempfile.TemporaryDirectory(dir=PLACE) as place:
            taken = contender.run(query, topic, Path(place))
            differing = differences(wanted, query, load, Path(place))
            found[name] = {**differing._asdict(), "dropped": taken.dropped}
            if query == "q11":
                found[name]["lost_bids"] = lost_bids(wanted)
            print(query, name, found[name], file=sys.stderr, flush=True)
    wanted.close()
    return found


def measure_job(
    job: str,
    rounds: int,
    query: str,
    load: Load,
    topic: Topic,
    able: Mapping[str, Contender],
    exactness: Mapping[str, Any],
) -> Iterator[Comparison]:
    """Two rows: processor seconds, and seconds of the whole run."""
    taken: dict[str, list[Taken]] = {name: [] for name in able}
    runs = {
        name: Measured(contender, query, topic, taken[name], load.events)
        for name, contender in able.items()
    }
    found = compare(job, runs, load.events, rounds=rounds, warm_up=0)
    work = dict(found.work) | {
        "exactness": exactness,
        "batches_s": {name: [each.batches_s for each in all_] for name, all_ in taken.items()},
        "triggers_s": {name: [each.triggers_s for each in all_] for name, all_ in taken.items()},
        "machine": machine(),
    }
    whole = {name: [each.whole_s for each in all_] for name, all_ in taken.items()}
    yield replace(found, figure="core s", work=work)
    yield replace(found, figure="whole run", took=whole, work=work)


class Measured:
    """A contender as `compare` wants it."""

    def __init__(
        self, contender: Contender, query: str, topic: Topic, taken: list[Taken], events: int
    ) -> None:
        self.pid = contender.pid
        self._run = contender.run
        self._given = (query, topic)
        self._taken = taken
        self._events = events

    def __call__(self) -> Done:
        self._taken.append(self._run(*self._given, None))
        return Done(self._taken[-1].core_s, {"events": self._events})


if __name__ == "__main__":
    report("nexmark", measure())
