"""The broker itself: what the other integration tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from broker import Broker, Record, unique_name
from lengths import choices
from process_session import answers, ends

Topics = Callable[..., str]


def values(broker: Broker, topic: str) -> list[bytes]:
    return [message.value() for message in broker.read(topic)]


def test_records_arrive_with_key_partition_timestamp_and_headers(
    broker: Broker, topic: Topics
) -> None:
    name = topic(partitions=2)
    broker.produce(name, [Record(b"v", "k", 1, 1_000, [("h", b"x"), ("empty", None)])])
    (message,) = broker.read(name)
    assert (message.value(), message.key(), message.partition()) == (b"v", b"k", 1)
    assert message.timestamp()[1] == 1_000
    assert message.headers() == [("h", b"x"), ("empty", None)]


def test_a_null_value_is_a_record(broker: Broker, topic: Topics) -> None:
    name = topic()
    broker.produce(name, [Record(None, "k")])
    assert values(broker, name) == [None]


def test_a_partition_keeps_the_order_of_many_records(broker: Broker, topic: Topics) -> None:
    name = topic(partitions=2)
    broker.produce(name, (Record(str(i), partition=i % 2) for i in range(50_000)))
    assert broker.end_offsets(name) == {0: 25_000, 1: 25_000}
    read = [message for message in broker.read(name) if message.partition() == 1]
    assert [int(message.value()) for message in read] == list(range(1, 50_000, 2))


def test_records_of_1970_are_not_expired(broker: Broker, topic: Topics) -> None:
    name = topic()
    broker.produce(name, [Record("old", timestamp_ms=1)])
    assert values(broker, name) == [b"old"]


def test_topics_grow_lose_records_and_go(broker: Broker, topic: Topics) -> None:
    name = topic()
    broker.produce(name, [Record("a"), Record("b")])
    broker.add_partitions(name, 3)
    broker.delete_records(name, {0: 1})
    assert broker.end_offsets(name) == {0: 2, 1: 0, 2: 0}
    assert values(broker, name) == [b"b"]
    broker.delete_topic(name)
    assert broker.end_offsets(name) == {}


def test_a_misspelt_topic_is_an_error(broker: Broker) -> None:
    with pytest.raises(OSError, match="refused"):
        broker.produce(unique_name("nowhere"), [Record("lost")])


def test_an_aborted_transaction_is_invisible_also_after_a_kill(
    stoppable_broker: Broker, topic: Topics
) -> None:
    broker, name = stoppable_broker, topic()
    producer = broker.producer(transactional_id=unique_name("writer"))
    producer.init_transactions(30)
    for text, finish in (("kept", "commit_transaction"), ("gone", "abort_transaction")):
        producer.begin_transaction()
        producer.produce(name, text)
        producer.flush()
        getattr(producer, finish)(30)
    broker.wait_for_markers(name)
    broker.stop()
    broker.start()
    assert values(broker, name) == [b"kept"]
    # Two records and their markers; a restarted coordinator may write a marker once more.
    assert broker.end_offsets(name)[0] >= 4


# -- no broker is left behind ----------------------------------------------------------------------

OWNER = """
import time
from broker import broker
with broker(say=lambda _: None) as kafka:
    print(kafka.bootstrap, flush=True)
    time.sleep(600)
"""


def begin_owner() -> subprocess.Popen[str]:
    """A program with a broker of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def files_and_processes(owner: int) -> list[str]:
    """The files and processes of this process's broker on this machine."""
    kept = Path(__file__).parents[2] / ".work" / "kafka" / "runs"
    directories = [str(path) for path in kept.glob(f"{owner}-*")]
    found = (each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"]))
    mark = f"{kept}/{owner}-"
    return directories + [line for line in map(" ".join, found) if mark in line]


@pytest.mark.outside_ci
@pytest.mark.parametrize(
    "number", choices([signal.SIGKILL], [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
)
def test_program_that_is_interrupted_leaves_no_broker(broker: Broker, number: int) -> None:
    if not broker.can_stop:
        pytest.skip("the broker of KAFKA_BOOTSTRAP_SERVERS is nobody's here")
    owner = begin_owner()
    assert owner.stdout is not None
    address = owner.stdout.readline().strip()
    answered = answers(address)
    # Ctrl-C reaches a terminal's whole process group.
    os.killpg(owner.pid, number)
    assert answered
    owner.communicate(timeout=60)
    assert ends(lambda: answers(address))
    assert ends(lambda: files_and_processes(owner.pid)), files_and_processes(owner.pid)


def test_program_that_is_killed_while_its_broker_starts_leaves_nothing(broker: Broker) -> None:
    if broker.tier != "process":
        pytest.skip("a container has no files here")
    owner = begin_owner()
    began = ends(lambda: not files_and_processes(owner.pid))
    os.killpg(owner.pid, signal.SIGKILL)
    assert began
    owner.communicate(timeout=60)
    assert ends(lambda: files_and_processes(owner.pid)), files_and_processes(owner.pid)
