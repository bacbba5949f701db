"""Partitions are refreshed in the background, and never too old."""

import threading
import time
from types import SimpleNamespace

import pytest
from timestream.builders import at

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.driver.trackers import PartitionCache


class Asked:
    """A broker that lists one more partition with every answer, after waiting for `gate`."""

    def __init__(self) -> None:
        self.now_s, self.threads, self.answered = 0.0, [], 0
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.listing = PartitionCache(self.ask)

    def ask(self):
        self.threads.append(threading.current_thread())
        self.gate.wait(60)
        if self.fails:
            raise BrokerUnreachable("no answer")
        self.answered += 1
        return [at(number) for number in range(self.answered)]

    def settle(self) -> None:
        """Until somebody has asked beside the batches, and every thread has its answer."""
        deadline_s = time.monotonic() + 60
        while not (others := set(self.threads) - {threading.current_thread()}):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        for thread in others:
            thread.join(60)


@pytest.fixture
def broker(monkeypatch):
    """The clock of the cache is the broker's."""
    asked = Asked()
    clock = SimpleNamespace(monotonic=lambda: asked.now_s)
    monkeypatch.setattr("pyspark_timestream.kafka.driver.trackers.time", clock)
    return asked


def test_a_batch_never_waits_for_a_listing_that_is_renewed(broker):
    assert broker.listing.get() == [at(0)]
    assert broker.threads == [threading.current_thread()]
    broker.gate.clear()
    broker.now_s = 1.5
    for _ in range(3):
        assert broker.listing.get() == [at(0)]
    deadline_s = time.monotonic() + 60
    while len(broker.threads) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert len(broker.threads) == 2
    assert broker.threads[1].daemon
    broker.gate.set()
    broker.settle()
    assert broker.listing.get() == [at(0), at(1)]
    assert broker.listing.asked_at_s == 1.5


@pytest.mark.parametrize(("now_s", "fresh"), [(0.1, True), (2.5, False)])
def test_fresh_partitions_are_requested_at_once(broker, now_s, fresh):
    broker.listing.get()
    broker.now_s = now_s
    assert broker.listing.get(fresh=fresh) == [at(0), at(1)]
    assert set(broker.threads) == {threading.current_thread()}


def test_an_answer_that_is_overtaken_by_a_newer_one_does_not_count(broker):
    broker.listing.get()
    broker.gate.clear()
    broker.now_s = 1.5
    broker.listing.get()
    threading.Timer(0.05, broker.gate.set).start()
    newest = broker.listing.get(fresh=True)
    broker.settle()
    assert broker.listing.get() == newest


def test_a_failure_in_the_background_counts_only_if_the_broker_stays_away(broker):
    broker.listing.get()
    broker.fails, broker.now_s = True, 1.5
    broker.listing.get()
    broker.settle()
    assert broker.listing.get() == [at(0)]
    broker.now_s = 2.5
    with pytest.raises(BrokerUnreachable):
        broker.listing.get()
    broker.fails = False
    assert broker.listing.get() == [at(0), at(1)]
