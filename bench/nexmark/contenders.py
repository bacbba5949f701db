"""The contenders: Spark's own source, Flink, and ours twice, each in a process of its own."""

import functools
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from core_seconds import CoreSeconds
from flink import Flink, takes_part
from peers import avro_jars
from pyspark.sql import SparkSession
from sessions import Apart
from spark_session import local_spark

from nexmark.events import FORMATS
from nexmark.flink_sql import statements
from nexmark.queries import QUERIES
from nexmark.runs import Taken, run
from nexmark.sources import FOLDED, Topic

__all__ = ["Contender", "open_contenders"]


class Contender(Protocol):
    """One that can run a query to the end of a topic.

    Attributes:
        pid: the process that it and all that it starts descend from.
        formats: of the topics that it can read.
        queries: the queries that it takes part in.
    """

    pid: int
    formats: tuple[str, ...]
    queries: tuple[str, ...]

    def run(self, query: str, topic: Topic, rows: Path | None) -> Taken:
        """Run a query; its rows go into a directory, or nowhere."""


@dataclass(frozen=True)
class InSpark:
    """A source in a session of its own."""

    source: str
    apart: Apart
    formats: tuple[str, ...] = FORMATS
    queries: tuple[str, ...] = tuple(QUERIES)

    @property
    def pid(self) -> int:
        return self.apart.pid

    def run(self, query: str, topic: Topic, rows: Path | None) -> Taken:
        taken: Taken = self.apart.call(_run_there, self.source, query, topic, rows)
        return taken


def _run_there(source: str, query: str, topic: Topic, rows: Path | None) -> Taken:
    return run(source, query, _session(), topic, rows)


@functools.cache
def _session() -> SparkSession:
    return local_spark("nexmark", spark_jars=avro_jars())


@dataclass(frozen=True)
class InFlink:
    """Flink; it splits no topic into batches."""

    flink: Flink
    formats: tuple[str, ...] = ("json",)
    queries: tuple[str, ...] = tuple(QUERIES)

    @property
    def pid(self) -> int:
        return self.flink.pid

    def run(self, query: str, topic: Topic, rows: Path | None) -> Taken:
        with CoreSeconds(self.pid) as spent:
            whole_s = self.flink.run(*statements(query, topic.bootstrap, topic.name, rows))
        return Taken(spent.total_s, whole_s)


def open_contenders(open_: ExitStack, flink: str | None) -> dict[str, Contender]:
    """The contenders, Spark's source first and ours last, until the stack is closed.

    Args:
        open_: closes them.
        flink: the value of BENCH_FLINK if it is not set.
    """
    avro_jars()
    found: dict[str, Contender] = {}
    found["spark"] = InSpark("spark", open_.enter_context(Apart()))
    if takes_part(flink):
        found["flink"] = InFlink(open_.enter_context(Flink()))
    found[FOLDED] = InSpark(FOLDED, open_.enter_context(Apart()), queries=("q5",))
    found["timestream"] = InSpark("timestream", open_.enter_context(Apart()))
    return found
