"""Writes through clients that do not return from a call: each row and mark once, and in time.

`Cluster` keeps what transactions commit, and fences as Kafka does: a new producer of a
transactional id ends the transaction of the one before, and a late commit is refused.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.errors import BrokerUnreachable, DeliveryFailed
from pyspark_timestream.kafka.client import bounded
from pyspark_timestream.kafka.client.errors import RetryBudget
from pyspark_timestream.kafka.writer import rows, stream_writer
from pyspark_timestream.kafka.writer.ledger import MARKS, Owner
from pyspark_timestream.kafka.writer.rows import TaskRows
from pyspark_timestream.kafka.writer.stream_writer import MarkWriter, QueryRun
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions
from pyspark_timestream.producer import transactions
from pyspark_timestream.producer.transactions import read_entries

OPTIONS = KafkaWriteOptions("t", "w", client={"bootstrap.servers": "b:1"})
RUN = QueryRun("q", "run")
TASK = Owner.of(OPTIONS, "q", 0)


class Cluster:
    """Committed records, and the calls that hang: (method, whether it has an effect) by number."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.offsets: dict[str, tuple[int, str]] = {}
        self.owners: dict[str, Producer] = {}
        self.calls: Counter[str] = Counter()
        self.hanging: dict[str, int] = {}
        """Method -> how many of its next calls hang."""
        self.before_effect = True
        self.errors: list[Any] = []
        self.deaf: set[int] = set()
        """The producers, by number, that get no answer to their transactions."""
        self.groups: list[str] = []
        self.gate = threading.Event()
        self.made = 0

    def meet(self, name: str, effect: Any = lambda: None) -> Any:
        """Do what a call does, before it hangs or, by its zombie, after that."""
        self.calls[name] += 1
        if not self.hanging.get(name):
            return effect()
        self.hanging[name] -= 1
        if self.before_effect:
            self.gate.wait()
            return effect()
        done = effect()
        self.gate.wait()
        return done


class Producer:
    def __init__(self, cluster: Cluster, config: dict[str, Any]) -> None:
        cluster.made += 1
        self.number = cluster.made
        self.cluster, self.id = cluster, config["transactional.id"]
        self.open: list[Any] = []
        self.noted: tuple[str, tuple[int, str]] | None = None

    def check(self) -> None:
        if self.cluster.owners.get(self.id) is not self:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced"))

    def init_transactions(self, timeout: float) -> None:
        self.cluster.meet("init_transactions", lambda: self.cluster.owners.update({self.id: self}))

    def begin_transaction(self) -> None:
        self.check()
        self.open, self.noted = [], None
        self.cluster.meet("begin_transaction")

    def list_topics(self, topic: str, timeout: float) -> Any:
        listed = SimpleNamespace(partitions={0: None}, error=None)
        return self.cluster.meet("list_topics", lambda: SimpleNamespace(topics={topic: listed}))

    def produce(self, topic: str, **record: Any) -> None:
        self.cluster.meet("produce", lambda: self.open.append(record))

    def flush(self, timeout: float) -> int:
        return int(self.cluster.meet("flush", lambda: 0))

    def send_offsets_to_transaction(self, offsets: Any, group: str, timeout: float) -> None:
        def note() -> None:
            self.check()
            self.noted = group, (offsets[0].offset, offsets[0].metadata)

        if self.number in self.cluster.deaf:
            late = "Local: Timed out"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, late, False, True, False))
        if self.cluster.errors:
            raise KafkaException(self.cluster.errors.pop(0))
        self.cluster.meet("send_offsets_to_transaction", note)

    def commit_transaction(self, timeout: float) -> None:
        def commit() -> None:
            self.check()
            self.cluster.records += self.open
            if self.noted is not None:
                self.cluster.offsets[self.noted[0]] = self.noted[1]

        self.cluster.meet("commit_transaction", commit)

    def poll(self, timeout: float) -> None:
        """There are no callbacks."""

    def abort_transaction(self, timeout: float) -> None:
        self.cluster.meet("abort_transaction")


class Consumer:
    def __init__(self, cluster: Cluster, config: dict[str, Any]) -> None:
        self.cluster, self.group = cluster, config["group.id"]

    def committed(self, asked: Any, timeout: float) -> Any:
        offset, metadata = self.cluster.offsets.get(self.group, (-1001, None))
        found = SimpleNamespace(offset=offset, metadata=metadata, error=None)
        return self.cluster.meet("committed", lambda: [found])

    def consumer_group_metadata(self) -> str:
        return self.cluster.meet("consumer_group_metadata", lambda: self.group)

    def poll(self, timeout: float) -> None:
        """There are no callbacks."""

    def close(self) -> None:
        """Nothing is open."""


class Admin:
    def __init__(self, cluster: Cluster, config: dict[str, Any]) -> None:
        self.cluster = cluster

    def poll(self, timeout: float) -> None:
        """There are no callbacks."""

    def list_consumer_groups(self, request_timeout: float) -> Future[Any]:
        errors = [self.cluster.errors.pop(0)] if self.cluster.errors else []
        valid = [SimpleNamespace(group_id=each) for each in self.cluster.groups]
        return self.answer("list_consumer_groups", SimpleNamespace(errors=errors, valid=valid))

    def list_consumer_group_offsets(self, asked: Any, **_: Any) -> dict[str, Future[Any]]:
        group = asked[0].group_id
        offset, metadata = self.cluster.offsets[group]
        found = SimpleNamespace(offset=offset, metadata=metadata, error=None)
        name = "list_consumer_group_offsets"
        return {group: self.answer(name, SimpleNamespace(topic_partitions=[found]))}

    def answer(self, name: str, found: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.cluster.calls[name] += 1
        if self.cluster.hanging.get(name):
            self.cluster.hanging[name] -= 1
        else:
            future.set_result(found)
        return future


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch):
    made = Cluster()
    monkeypatch.setattr(bounded, "GRACE_S", 0.3)
    monkeypatch.setattr(transactions, "STEP_TIMEOUT_S", 0.1)
    for name, kind in (("Producer", Producer), ("Consumer", Consumer), ("AdminClient", Admin)):
        monkeypatch.setattr(
            transactions, name, lambda config, logger, kind=kind: kind(made, config)
        )
    yield made
    made.gate.set()


def wait_for_zombies() -> None:
    deadline = time.monotonic() + 20
    while bounded.ABANDONED.calls:
        assert time.monotonic() < deadline
        time.sleep(0.01)


MARK_CALLS = [
    "init_transactions", "list_topics", "committed", "begin_transaction", "produce",
    "consumer_group_metadata", "send_offsets_to_transaction", "commit_transaction",
]  # fmt: skip


@pytest.mark.parametrize("before_effect", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("name", MARK_CALLS)
def test_a_mark_whose_call_never_returns_is_written_once_by_a_new_producer(
    cluster: Cluster, name: str, before_effect: bool
) -> None:
    cluster.hanging, cluster.before_effect = {name: 1}, before_effect
    process = MarkWriter()
    process.write_mark(OPTIONS, RUN, 0, 10**6)
    process.write_mark(OPTIONS, RUN, 1, 2 * 10**6)
    assert cluster.made == 2
    # The call of the abandoned producer goes on now, and must not double anything.
    cluster.gate.set()
    wait_for_zombies()
    process.write_mark(OPTIONS, RUN, 1, 2 * 10**6)
    times = [dict(each["headers"])["cti"] for each in cluster.records]
    assert times == [b"1970-01-01T00:00:01Z", b"1970-01-01T00:00:02Z"]
    assert cluster.offsets[Owner.of(OPTIONS, "q", MARKS).group][0] == 2


def test_a_call_that_never_returns_again_and_again_fails_the_batch_by_name_in_time(
    cluster: Cluster,
) -> None:
    cluster.hanging = {"send_offsets_to_transaction": 99}
    began_s = time.monotonic()
    with pytest.raises(DeliveryFailed, match=r"has not returned from send_offsets_to.*start the"):
        MarkWriter().write_mark(OPTIONS, RUN, 0, 10**6)
    assert cluster.made == stream_writer._ATTEMPTS
    assert time.monotonic() - began_s < 10
    assert cluster.records == []


def lost_coordinator() -> KafkaError:
    """The errors that end a transaction at a broker that has just started."""
    return KafkaError(KafkaError.NOT_COORDINATOR, "Not coordinator", False, False, True)


@pytest.mark.parametrize("ends_during_call", [False, True])
def test_a_transaction_that_a_restarted_broker_has_ended_is_begun_anew_at_once(
    cluster: Cluster, ends_during_call: bool
) -> None:
    """A transaction that ends during a call ends it without the cause, which the next one tells."""
    changed = [KafkaError(KafkaError._STATE, "Erroneous state")] if ends_during_call else []
    cluster.errors = [*changed, lost_coordinator()]
    began_s = time.monotonic()
    MarkWriter().write_mark(OPTIONS, RUN, 0, 10**6)
    assert (cluster.made, len(cluster.records)) == (2, 1)
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("deaf", [{1}, {1, 2, 3}], ids=["one client", "every client"])
def test_a_client_that_was_connected_and_gets_no_answer_any_more_is_replaced_in_bounds(
    cluster: Cluster, deaf: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart librdkafka may time out for ever, though the brokers answer new clients."""
    monkeypatch.setattr(transactions, "RetryBudget", lambda limit_s, pause_s: RetryBudget(0.1))
    cluster.deaf = deaf
    if len(deaf) == 1:
        MarkWriter().write_mark(OPTIONS, RUN, 0, 10**6)
        assert (cluster.made, len(cluster.records)) == (2, 1)
        return
    with pytest.raises(BrokerUnreachable, match="no Kafka broker answered"):
        MarkWriter().write_mark(OPTIONS, RUN, 0, 10**6)
    assert (cluster.made, cluster.records) == (stream_writer._ATTEMPTS, [])


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._FENCED, "fenced", True, False, False),
        KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "no", False, False, True),
    ],
)
def test_what_a_new_producer_would_not_change_is_not_repeated(cluster: Cluster, error) -> None:
    cluster.errors = [error]
    with pytest.raises(DeliveryFailed):
        MarkWriter().write_mark(OPTIONS, RUN, 0, 10**6)
    assert cluster.made == 1


def task_rows(count: int = 3) -> TaskRows:
    blocks = [pa.record_batch({"value": [f"{number}"]}) for number in range(count)]
    return TaskRows("cti", iter(blocks))


def write(some: TaskRows) -> None:
    assert some.has_rows()
    stream_writer.retry_with_new_client(
        lambda: stream_writer._write(OPTIONS, TASK, 0, some), some.rewind
    )


@pytest.mark.parametrize("before_effect", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("name", MARK_CALLS)
def test_rows_of_a_task_whose_call_never_returns_are_written_once(
    cluster: Cluster, name: str, before_effect: bool
) -> None:
    cluster.hanging, cluster.before_effect = {name: 1}, before_effect
    write(task_rows())
    cluster.gate.set()
    wait_for_zombies()
    write(task_rows())
    assert [each["value"] for each in cluster.records] == ["0", "1", "2"]
    assert cluster.offsets == {TASK.group: (1, '{"rows": 3, "version": 1}')}


def test_a_task_with_too_many_rows_to_keep_leaves_its_batch_to_spark(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_MAX_KEPT_BYTES", 10)
    cluster.hanging = {"commit_transaction": 1}
    with pytest.raises(DeliveryFailed, match="has not returned from commit_transaction"):
        write(task_rows())
    write(task_rows())
    assert [each["value"] for each in cluster.records] == ["0", "1", "2"]


def test_a_full_queue_that_is_never_emptied_ends_the_task_by_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_MAX_QUEUED_BYTES", 1)
    monkeypatch.setattr(transactions, "_FLUSH_STEP_S", 0.05)
    cluster.hanging = {"flush": 99}
    with pytest.raises(DeliveryFailed, match="has not returned from flush"):
        write(task_rows())


@pytest.mark.parametrize("name", ["list_consumer_groups", "list_consumer_group_offsets"])
def test_entries_whose_request_has_no_answer_are_read_by_another_client(
    cluster: Cluster, name: str
) -> None:
    cluster.groups, cluster.offsets = ["g"], {"g": (5, "{}")}
    cluster.hanging = {name: 1}
    found = stream_writer.retry_with_new_client(lambda: read_entries({}, "t", lambda group: 7))
    assert found == {7: (5, "{}")}


def test_a_broker_that_cannot_list_its_groups_for_a_moment_is_asked_again(
    cluster: Cluster,
) -> None:
    """confluent-kafka gives the error as a KafkaError, which cannot be raised as it is."""
    cluster.groups, cluster.offsets = ["g"], {"g": (5, "{}")}
    cluster.errors = [KafkaError(KafkaError._TIMED_OUT, "slow")]
    assert read_entries({}, "t", lambda group: 7) == {7: (5, "{}")}
    cluster.errors = [KafkaException(KafkaError(KafkaError._TIMED_OUT, "slow"))]
    assert read_entries({}, "t", lambda group: 7) == {7: (5, "{}")}


def test_a_refusal_to_list_groups_is_named(cluster: Cluster) -> None:
    cluster.errors = [KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "not allowed")]
    with pytest.raises(DeliveryFailed, match=r"could not read what is written .* not allowed"):
        read_entries({}, "t", lambda group: 7)


def test_rows_come_again_from_the_first_and_are_counted_once() -> None:
    some = task_rows(5)
    assert some.has_rows()
    seen = [some.next_block(), some.next_block()]
    assert some.rewind()
    some.next_block()
    assert some.rewind()
    again = []
    while block := some.next_block():
        again.append(block)
    assert [each.messages for each in again[:2]] == [each.messages for each in seen if each]
    assert (len(again), some.count) == (5, 5)
