"""Reads through clients that do not return from a call: another one goes on, or a named error."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client import bounded, broker, range_reader
from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.client.consumer import PollResult, Pool
from pyspark_timestream.kafka.client.range_reader import (
    CommittedClock,
    Prefetcher,
    RangeReader,
    _BoundedConsumer,
    acquire_reader,
)
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

PART = Partition("t", 0)
SPAN = OffsetRange(PART, 10, 20)
OFFSETS = pa.array(range(30))
"""Made here, because the first array of a process imports pandas, and no call waits for that."""


TOPIC_ID = SimpleNamespace(
    get_most_significant_bits=lambda: 1, get_least_significant_bits=lambda: -1
)


class Cluster:
    """Counts calls; of a method in `hanging` this many do not return."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.hanging: Counter[str] = Counter()
        self.gate = threading.Event()
        self.made: Counter[str] = Counter()
        self.closed = self.abandoned = 0
        self.told_id: Future[Any] = Future()
        """The answer about the topic's id; it comes with those about offsets, if `tells_id`."""
        self.tells_id = False

    def meet(self, name: str, found: Any = None) -> Any:
        self.calls[name] += 1
        if self.hanging[name]:
            self.hanging[name] -= 1
            self.gate.wait()
        return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch):
    made = Cluster()
    monkeypatch.setattr(bounded, "GRACE_S", 0.5)
    monkeypatch.setattr(broker, "REQUEST_TIMEOUT_S", 0.05)
    monkeypatch.setattr(broker, "_GROUP_TIMEOUT_S", 0.05)
    monkeypatch.setattr("pyspark_timestream.kafka.client.errors._FIRST_REQUEST_TIMEOUT_S", 0.05)
    yield made
    made.gate.set()


def options(**given: str) -> Any:
    # A given fetch size: no second consumer with another one.
    size = {"kafka.fetch.message.max.bytes": "100000"}
    wanted = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", **size, **given}
    return read_kafka_options({name.lower(): text for name, text in wanted.items()})


class Client:
    """An admin client, and a consumer, of a topic with one partition of 30 offsets."""

    def __init__(self, kind: str, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.made[kind] += 1

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> Any:
        part = SimpleNamespace(leader=1)
        found = SimpleNamespace(topic="t", error=None, partitions={0: part})
        return self.cluster.meet("list_topics", SimpleNamespace(topics={"t": found}))

    def list_offsets(self, asked: Any, **_: Any) -> Any:
        self.cluster.meet("list_offsets")
        if self.cluster.tells_id and not self.cluster.told_id.done():
            self.cluster.told_id.set_result(SimpleNamespace(topic_id=TOPIC_ID))
        answers = {part: Future[Any]() for part in asked}
        if self.cluster.hanging["answer"]:
            self.cluster.hanging["answer"] -= 1
        else:
            for each in answers.values():
                each.set_result(SimpleNamespace(offset=30))
        return answers

    def describe_topics(self, asked: Any, **_: Any) -> Any:
        self.cluster.meet("describe_topics")
        return {"t": self.cluster.told_id}

    def committed(self, asked: Any, timeout: float) -> Any:
        (part,) = asked
        part = SimpleNamespace(topic="t", partition=0, error=None, metadata="state")
        return self.cluster.meet("committed", [part])

    def poll(self, timeout: float) -> None:
        self.cluster.meet("poll")


@pytest.fixture
def asking(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Broker:
    for kind in ("Consumer", "AdminClient"):
        monkeypatch.setattr(broker, kind, lambda *_, kind=kind, **__: Client(kind, cluster))
    return Broker(options(), "group")


@pytest.mark.parametrize("name", ["list_topics", "list_offsets", "answer", "poll"])
def test_a_request_that_never_returns_is_sent_by_a_new_client(
    asking: Broker, cluster: Cluster, name: str
) -> None:
    cluster.hanging[name] = 1
    assert asking.ends(asking.partitions()) == {PART: 30}
    assert cluster.made == {"AdminClient": 2, "Consumer": 1}
    assert asking.ends([PART]) == {PART: 30}


def test_a_request_that_never_returns_at_all_ends_the_query_by_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("Consumer", "AdminClient"):
        monkeypatch.setattr(broker, kind, lambda *_, kind=kind, **__: Client(kind, cluster))
    cluster.hanging["list_topics"] = 99
    asking = Broker(options(**{"kafkaConsumer.connectTimeoutMs": "1000"}), "group")
    began_s = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"partitions of topic 't': .* list_topics in"):
        asking.partitions()
    assert time.monotonic() - began_s < 20


def test_committed_states_that_do_not_come_are_read_from_the_records(
    asking: Broker, cluster: Cluster
) -> None:
    cluster.hanging["committed"] = 1
    assert asking.committed_metadata([PART]) == {}
    asking._next_group_s = float("-inf")
    assert asking.committed_metadata([PART]) == {PART: "state"}
    assert cluster.made["Consumer"] == 2


def test_topic_ids_that_do_not_come_are_left_out(asking: Broker, cluster: Cluster) -> None:
    assert asking.topic_ids(["t"]) == {}
    cluster.hanging["describe_topics"] = 1
    assert asking.topic_ids(["t"]) == {}
    assert asking.ends([PART]) == {PART: 30}


def test_ids_and_first_offsets_are_asked_for_at_the_same_time(
    asking: Broker, cluster: Cluster
) -> None:
    cluster.tells_id = True
    assert asking.identify([PART]) == ({"t": f"{1:016x}{2**64 - 1:016x}"}, {PART: 30})
    assert cluster.made["AdminClient"] == 1
    assert asking.trouble_count == 0


@pytest.mark.parametrize("name", ["describe_topics", "list_offsets", "answer", "no call"])
def test_first_offsets_and_ids_do_not_hang_with_each_other(
    asking: Broker, cluster: Cluster, name: str
) -> None:
    """The answer about ids never comes, and of the other calls one; a new client is asked."""
    cluster.hanging[name] = 1
    assert asking.identify([PART]) == ({}, {PART: 30})
    assert cluster.made["AdminClient"] == 2
    assert asking.ends([PART]) == {PART: 30}


def test_ids_that_are_refused_leave_the_first_offsets_beside_them(
    asking: Broker, cluster: Cluster
) -> None:
    cluster.told_id.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    assert asking.identify([PART]) == ({}, {PART: 30})
    assert (cluster.made["AdminClient"], asking.trouble_count) == (1, 0)


def test_first_offsets_that_fail_end_the_query_by_name_whatever_the_ids_are(
    asking: Broker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr(Client, "list_offsets", refuse)
    with pytest.raises(BrokerUnreachable, match="the offsets of topic 't'"):
        asking.identify([PART])


class Records:
    """A consumer of the offsets 10 to 19, two at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.received_bytes = cluster, 0
        self.at = -1
        cluster.made["consumer"] += 1

    def seek(self, partition: Partition, offset: int) -> None:
        self.cluster.meet("seek")
        self.at = offset

    def pause(self) -> None:
        self.cluster.meet("pause")

    def poll(self, span: OffsetRange, position: int, needs: ColumnSet, wait_s: float) -> PollResult:
        assert self.at == position
        self.cluster.meet("poll")
        self.at += 2
        return PollResult(RecordBlock(OFFSETS.slice(position, 2)), self.at, ())

    def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        return self.cluster.meet("query_bounds", (0, 30))

    def is_connected(self, timeout_s: float) -> bool:
        return self.cluster.meet("is_connected", True)

    def commit_offsets(self, offsets: Any) -> dict[Partition, KafkaError]:
        return self.cluster.meet("commit_offsets", {})

    def close(self) -> None:
        self.cluster.closed += 1

    def abandon(self) -> None:
        self.cluster.abandoned += 1


@pytest.fixture
def acquire(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], AbstractContextManager[RangeReader]]:
    """Take a reader from a pool of its own."""
    monkeypatch.setattr("pyspark_timestream.kafka.client.range_reader.COMMIT_TIMEOUT_S", 0.05)
    create = partial(RangeReader, create_consumer=lambda *_: _BoundedConsumer(Records(cluster)))
    monkeypatch.setattr(range_reader, "_POOL", Pool(max_idle=4, idle_s=300))
    monkeypatch.setattr(range_reader, "RangeReader", create)
    return lambda wanted: acquire_reader(wanted, "g")


def offsets(reader: RangeReader) -> list[int]:
    return [at for block in reader.read(SPAN, ColumnSet()) for at in block.offsets.to_pylist()]


@pytest.mark.parametrize("name", ["seek", "poll", "pause", "commit_offsets"])
def test_a_range_is_read_on_by_a_new_consumer_without_a_record_twice(
    cluster: Cluster, acquire: Any, name: str
) -> None:
    cluster.hanging[name] = 1
    with acquire(options()) as reader:
        for _ in range(2):
            assert offsets(reader) == [*range(10, 20)]
            reader.commit_clocks({PART: CommittedClock(20, "")})
        assert offsets(reader) == [*range(10, 20)]
        reader.close()
    assert cluster.made["consumer"] == 2
    # The abandoned one is not closed under the call that is still in it.
    assert (cluster.abandoned, cluster.closed) == (1, 1)


@pytest.mark.parametrize("name", ["seek", "poll"])
def test_a_range_whose_calls_never_return_ends_by_name_and_its_reader_is_not_used_again(
    cluster: Cluster, acquire: Any, name: str
) -> None:
    cluster.hanging[name] = 99
    own = options(**{"kafkaConsumer.pollTimeoutMs": "300"})
    message = r"the records of topic 't' partition 0 from offset 10 .*has not returned from"
    with pytest.raises(BrokerUnreachable, match=message), acquire(own) as reader:
        offsets(reader)
    cluster.hanging.clear()
    with acquire(own) as reader:
        assert offsets(reader) == [*range(10, 20)]


def test_small_ranges_whose_calls_never_return_are_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    class Fetching:
        def __init__(self, *_: Any, **__: Any) -> None:
            cluster.made["consumer"] += 1

        def assign(self, partitions: Any) -> None:
            cluster.meet("assign")

        def unassign(self) -> None:
            cluster.meet("unassign")

        def consume(self, count: int, timeout: float) -> list[Any]:
            return cluster.meet("consume", [])

        def close(self) -> None:
            cluster.meet("close")

    monkeypatch.setattr(range_reader, "Consumer", Fetching)
    monkeypatch.setattr(range_reader, "_MAX_STALL_S", 0.1)
    reader = Prefetcher(options(), "g")
    spans = [OffsetRange(Partition("t", number), 0, 2) for number in range(2)]
    for number, name in enumerate(("assign", "consume", "unassign"), 1):
        cluster.hanging[name] = 1
        began_s = time.monotonic()
        assert reader.read(spans, ColumnSet()) == {}
        assert time.monotonic() - began_s < 5
        assert cluster.made["consumer"] == number
