"""A Kafka cluster in memory: topics, their logs and transactions, and unreliable answers.

Answers are late, lost, outdated or refused, as in a real cluster: a partition may be missing from
metadata, a former leader tells an old end, an offset commit arrives long after it was given up.
Produced records are never lost.
"""

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec
from simulation.chance import Chance

from pyspark_timestream.kafka.client.bounded import CallAbandoned
from pyspark_timestream.kafka.client.consumer import ConsumerError, PollResult
from pyspark_timestream.kafka.decode.records import METADATA, ColumnSet, RecordBlock
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

TOPIC = "topic"
MAX_METADATA = 4096
EARLIEST, LATEST = OffsetSpec.earliest()._value, OffsetSpec.latest()._value

PASSING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
)
"""Errors that pass."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record that readers see; `mark` is the CTI of a punctuation, in milliseconds.

    `written` is when it was written, in the order of all records of the cluster.
    """

    offset: int
    stamp_ms: int
    mark: int | None = None
    written: int = 0


@dataclass(slots=True)
class Log:
    """A partition: its readable records, and the offsets that an open transaction has taken."""

    records: list[Record] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    open_records: list[Record] = field(default_factory=list)
    open_at: int | None = None
    writings: Iterator[int] = field(default_factory=itertools.count)

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        return self.end if self.open_at is None else self.open_at

    def append(self, stamp_ms: int, mark: int | None = None, *, is_open: bool = False) -> None:
        """Add a record, to the open transaction or outside of it."""
        record = Record(self.end, stamp_ms, mark, next(self.writings))
        (self.open_records if is_open else self.records).append(record)
        self.end += 1

    def begin_transaction(self) -> None:
        """Open a transaction: nothing after it can be read before it ends."""
        self.open_at = self.end if self.open_at is None else self.open_at

    def end_transaction(self, *, commits: bool) -> None:
        """End the transaction; its marker takes an offset."""
        if self.open_at is not None:
            kept = self.open_records if commits else []
            self.records = sorted([*self.records, *kept], key=lambda record: record.offset)
            self.open_records, self.open_at = [], None
            self.end += 1


class Cluster:
    """The brokers; the seed's monotonic clock tells all times."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.logs: dict[Partition, Log] = {}
        self.writings = itertools.count()
        self.made: dict[str, int] = {}
        """How often a topic was created; topics created only once are left out."""
        self.groups: dict[str, dict[Partition, tuple[int, str]]] = {}
        self.hidden: dict[Partition, int] = {}
        """Partitions that metadata lacks, and until when."""
        self.outdated: dict[Partition, tuple[int, int]] = {}
        """Partitions where a former leader still answers: the end that it tells, and until when."""
        self.down_until_us = 0
        self.keeps_ids = True
        """False if the request for topic ids may fail."""
        self.patience_s = 1.0

    def create(self, partition: Partition) -> None:
        """Create an empty partition."""
        self.logs[partition] = Log(writings=self.writings)

    def recreate(self, topic: str) -> dict[Partition, Log]:
        """Delete a topic and create it again; return its old logs. Its groups' offsets go too."""
        old = {each: log for each, log in self.logs.items() if each.topic == topic}
        for partition in old:
            self.create(partition)
            self.outdated.pop(partition, None)
            for kept in self.groups.values():
                kept.pop(partition, None)
        self.made[topic] = self.made.get(topic, 1) + 1
        return old

    def heal(self) -> None:
        """End all trouble."""
        self.hidden.clear()
        self.outdated.clear()
        self.down_until_us = 0
        for log in self.logs.values():
            log.end_transaction(commits=True)

    def is_changing(self) -> bool:
        """Whether a partition has no certain leader now."""
        now_us = self.chance.monotonic_us()
        ends_us = [*self.hidden.values(), *(until_us for _, until_us in self.outdated.values())]
        return any(now_us < until_us for until_us in ends_us)

    def is_hidden(self, partition: Partition) -> bool:
        """Whether metadata lacks it now."""
        until_us = self.hidden.get(partition, 0)
        return partition not in self.logs or self.chance.monotonic_us() < until_us

    def end_told(self, partition: Partition, *, stable: bool) -> int:
        """The end as a broker tells it now."""
        log = self.logs[partition]
        end = log.stable_end if stable else log.end
        former, until_us = self.outdated.get(partition, (end, 0))
        return min(former, end) if self.chance.monotonic_us() < until_us else end

    def request(self, name: str, timeout_s: float, share: float = 1.0) -> None:
        """Every request goes this way: it may be slow, fail, or find nobody."""
        chance = self.chance
        chance.point(name)
        if chance.monotonic_us() < self.down_until_us:
            chance.advance(timeout_s)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        # While leaders change, requests take long, and fail.
        share *= 6 if self.is_changing() else 1
        if chance.fails("slow answer", share):
            chance.advance(chance.random.uniform(0.5, 8))
        if chance.fails("request fails", share):
            chance.advance(chance.random.uniform(0, timeout_s))
            raise KafkaException(KafkaError(chance.pick(PASSING)))

    # -- consumer groups

    def commit(self, group: str, states: Mapping[Partition, tuple[int, str]]) -> dict[Any, Any]:
        """Commit offsets with their metadata; return the refusals."""
        chance = self.chance
        chance.point("commit offsets")
        late = KafkaError(KafkaError._TIMED_OUT)
        if chance.monotonic_us() < self.down_until_us or chance.fails("offset commit is lost"):
            chance.advance(10)
            return dict.fromkeys(states, late)
        if chance.fails("offset commit is delayed"):
            chance.advance(10)
            with chance.running(None):
                chance.later(lambda: self._keep(group, states))
            return dict.fromkeys(states, late)
        refused = self._keep(group, states)
        if chance.fails("answer of an offset commit is lost"):
            chance.advance(10)
            return dict.fromkeys(states, late)
        if chance.fails("offset commit is repeated"):
            with chance.running(None):
                chance.later(lambda: self._keep(group, states))
        chance.point("offsets committed")
        return refused

    def _keep(self, group: str, states: Mapping[Partition, tuple[int, str]]) -> dict[Any, Any]:
        kept = self.groups.setdefault(group, {})
        refused = {}
        for partition, (offset, metadata) in states.items():
            if len(metadata) > MAX_METADATA:
                refused[partition] = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)
            else:
                kept[partition] = offset, metadata
        return refused


class _Id:
    """A topic's id."""

    def __init__(self, made: int) -> None:
        self.get_most_significant_bits = lambda: made
        self.get_least_significant_bits = lambda: 2


def _done(answer: Any, error: int | None = None) -> "Future[Any]":
    future: Future[Any] = Future()
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(KafkaException(KafkaError(error)))
    return future


class Client:
    """The driver's consumer and admin client in one, as `kafka/client/broker.py` uses them."""

    is_abandoned = False

    def __init__(self, cluster: Cluster, config: Mapping[str, Any]) -> None:
        self._cluster, self._group = cluster, config.get("group.id", "")

    def poll(self, timeout: float) -> None:
        """Serve callbacks: there are none."""

    def close(self) -> None:
        """Release it."""

    def wait(self, future: "Future[Any]", timeout_s: float, name: str) -> Any:
        """The answer of a future."""
        return future.result(timeout=0)

    def list_topics(self, topic: str | None = None, timeout: float = 1) -> Any:
        """Metadata of a topic."""
        cluster, topic = self._cluster, topic or TOPIC
        cluster.request("list topics", timeout)
        found = [
            each for each in cluster.logs if each.topic == topic and not cluster.is_hidden(each)
        ]
        leaderless = found and cluster.chance.fails("no leader", 0.3)
        unled = cluster.chance.pick(found) if leaderless else None
        listed = SimpleNamespace(
            topic=topic,
            error=None if found else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
            partitions={
                each.number: SimpleNamespace(leader=-1 if each == unled else 1) for each in found
            },
        )
        return SimpleNamespace(topics={topic: listed})

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        """Topic ids."""
        cluster = self._cluster
        names = topics.topic_names
        try:
            cluster.request("describe topics", request_timeout, 0.0 if cluster.keeps_ids else 1.0)
        except KafkaException as error:
            return {name: _done(None, error.args[0].code()) for name in names}
        ids = {name: _Id(cluster.made.get(name, 1)) for name in names}
        return {name: _done(SimpleNamespace(topic_id=each)) for name, each in ids.items()}

    def list_offsets(
        self, asked: Mapping[Any, Any], isolation_level: Any, request_timeout: float
    ) -> dict[Any, Any]:
        """The first or last offsets, or those at times."""
        cluster = self._cluster
        cluster.request("list offsets", request_timeout)
        stable = isolation_level is IsolationLevel.READ_COMMITTED
        answers = {
            each: self._find_offset(Partition(each.topic, each.partition), spec, stable)
            for each, spec in asked.items()
        }
        cluster.chance.point("offsets listed")
        return answers

    def _find_offset(self, partition: Partition, spec: Any, stable: bool) -> "Future[Any]":
        cluster = self._cluster
        if cluster.is_hidden(partition):
            return _done(None, KafkaError.UNKNOWN_TOPIC_OR_PART)
        log, value = cluster.logs[partition], spec._value
        if value == EARLIEST:
            offset = log.begin
        elif value == LATEST:
            offset = cluster.end_told(partition, stable=stable)
        else:
            later = (each.offset for each in log.records if each.stamp_ms >= value)
            offset = next(later, -1)
        return _done(SimpleNamespace(offset=offset))

    def committed(self, asked: list[Any], timeout: float) -> list[Any]:
        """The group's offsets with their metadata."""
        cluster = self._cluster
        cluster.request("committed offsets", timeout)
        kept = cluster.groups.get(self._group, {})
        answer = [
            SimpleNamespace(
                topic=each.topic,
                partition=each.partition,
                metadata=kept.get(Partition(each.topic, each.partition), (0, ""))[1],
                error=None,
            )
            for each in asked
        ]
        cluster.chance.point("committed offsets told")
        return answer


class SimulatedConsumer:
    """A `ColumnConsumer` over the cluster."""

    def __init__(self, cluster: Cluster, config: Mapping[str, Any]) -> None:
        self._cluster, self._group = cluster, config["group.id"]
        self._at: tuple[Partition, int] | None = None
        self._is_stable = config.get("isolation.level") == "read_committed"
        self.received_bytes = 0

    def seek(self, partition: Partition, offset: int) -> None:
        """See `ColumnConsumer`."""
        self._cluster.chance.point("seek")
        self._at = partition, offset

    def pause(self) -> None:
        """See `ColumnConsumer`."""
        self._at = None

    def poll(self, span: OffsetRange, position: int, needs: ColumnSet, wait_s: float) -> PollResult:
        """See `ColumnConsumer`."""
        cluster, chance = self._cluster, self._cluster.chance
        chance.point("poll")
        assert self._at is not None, "polled without a place"
        assert self._at[0] == span.partition, "polled for another partition"
        problem = self._find_trouble(span.partition, position, wait_s)
        if problem is not None:
            return PollResult(None, position, problem)
        log = cluster.logs[span.partition]
        end = min(log.stable_end if self._is_stable else log.end, span.end_exclusive)
        first = max(position, self._at[1])
        records = [each for each in log.records if first <= each.offset < end]
        if not records:
            chance.advance(wait_s)
            return PollResult(None, max(position, end), ())
        most = len(records) if chance.happens(0.5) else chance.random.randint(1, len(records))
        taken = records[:most]
        self.received_bytes += 100 * len(taken)
        block = build(taken, needs)
        return PollResult(block, taken[-1].offset + 1, (), len(taken), 10 * len(taken))

    def _find_trouble(
        self, partition: Partition, position: int, wait_s: float
    ) -> tuple[ConsumerError, ...] | None:
        cluster, chance = self._cluster, self._cluster.chance
        if chance.monotonic_us() < cluster.down_until_us:
            chance.advance(cluster.patience_s)
            return ()
        if chance.fails("fetch is slow"):
            chance.advance(wait_s)
            return ()
        if chance.fails("client hangs", 0.1):
            chance.advance(10)
            raise CallAbandoned("consume", 10)
        refused = KafkaError(KafkaError._AUTO_OFFSET_RESET)
        if cluster.end_told(partition, stable=False) < position or chance.fails(
            "fetch is refused by a former leader", 0.3
        ):
            chance.advance(0.1)
            return (ConsumerError(refused, *partition, position),)
        if cluster.logs[partition].begin > position:
            return (ConsumerError(refused, *partition, position),)
        if chance.fails("fetch fails"):
            chance.advance(wait_s)
            return (ConsumerError(KafkaError(chance.pick(PASSING)), *partition, -1),)
        return None

    def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        """See `ColumnConsumer`."""
        self._cluster.request("query bounds", timeout_s)
        return self._cluster.logs[partition].begin, self._cluster.end_told(partition, stable=False)

    def is_connected(self, timeout_s: float) -> bool:
        """See `ColumnConsumer`."""
        return self._cluster.chance.monotonic_us() >= self._cluster.down_until_us

    def commit_offsets(self, offsets: Mapping[Partition, tuple[int, str]]) -> dict[Any, Any]:
        """See `ColumnConsumer`."""
        return self._cluster.commit(self._group, offsets)

    def close(self) -> None:
        """See `ColumnConsumer`."""

    def abandon(self) -> None:
        """See `ColumnConsumer`."""


def build(records: list[Record], needs: ColumnSet) -> RecordBlock:
    """The columns of records."""
    count = len(records)
    headers = None
    if needs.headers:
        headers = pa.array(
            [
                None if each.mark is None else [{"key": "cti", "value": str(each.mark).encode()}]
                for each in records
            ],
            METADATA["headers"],
        )
    return RecordBlock(
        offsets=pa.array([each.offset for each in records], pa.int64()),
        timestamps_ms=pa.array([each.stamp_ms for each in records], pa.int64()),
        timestamp_types=pa.array([0] * count, pa.int32()),
        keys=pa.nulls(count, pa.binary()) if needs.keys else None,
        values=pa.array([b"{}"] * count, pa.binary()) if needs.values else None,
        headers=headers,
    )
