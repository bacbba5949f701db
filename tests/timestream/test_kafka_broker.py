"""How patiently the broker is asked and what its answers mean, over stand-ins for its clients."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from timestream.builders import at, options

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka_broker import Broker
from pyspark_timestream.ranges import Partition

DEAD = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.log_level": "0"}


class StandIn:
    """A consumer and admin client: fails so often, then gives the answers it was made with."""

    def __init__(self, topics=None, offsets=None, failures=0, code=KafkaError._TRANSPORT):
        self.topics, self.offsets, self.failures = topics or {}, offsets or {}, failures
        self.code, self.asked = code, 0

    def _asked(self):
        self.asked += 1
        if self.asked <= self.failures:
            raise KafkaException(KafkaError(self.code))

    def list_topics(self, topic=None, timeout=None):
        self._asked()
        return SimpleNamespace(topics={
            name: SimpleNamespace(topic=name, error=None, partitions=dict.fromkeys(range(count)))
            for name, count in self.topics.items()
        })  # fmt: skip

    def list_offsets(self, asked, **_):
        self._asked()
        return {part: done(self.offsets[part.partition]) for part in asked}


def done(offset):
    """An answer that has arrived."""
    future = Future()
    future.set_result(SimpleNamespace(offset=offset))
    return future


def broker(stand_in, **raw):
    """The broker that `stand_in` plays, to every client that is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark_timestream.kafka_broker.Consumer", lambda _: stand_in)
        made = Broker(options(**DEAD, **raw), "group")
    made._new_admin = lambda: stand_in
    made._admin = stand_in
    return made


@pytest.mark.parametrize("retries", [0, 2])
def test_a_passing_error_is_asked_again_as_often_as_the_options_say(retries):
    given = {"fetchOffset.numRetries": str(retries), "fetchOffset.retryIntervalMs": "1"}
    patient = StandIn({"topic": 2}, failures=retries)
    assert broker(patient, **given).partitions() == [at(0), at(1)]
    assert patient.asked == retries + 1
    dead = StandIn({"topic": 2}, failures=99)
    with pytest.raises(BrokerUnreachable, match="the partitions of topic 'topic' from the broker"):
        broker(dead, **given).partitions()
    assert dead.asked == retries + 1


def test_the_driver_waits_between_tries(monkeypatch):
    waits = []
    monkeypatch.setattr("pyspark_timestream.kafka_broker.time.sleep", waits.append)
    given = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "250"}
    broker(StandIn({"topic": 1}, failures=2), **given).partitions()
    assert waits == [0.25, 0.25]


def test_an_error_that_does_not_pass_is_not_asked_again():
    refused = StandIn({"topic": 1}, failures=99, code=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerUnreachable, match="access rights"):
        broker(refused).partitions()
    assert refused.asked == 1


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("topic", [at(0)]),
        ("topic.*", [at(0), at(0, "topic-b"), at(1, "topic-b")]),
        (".*", [at(0, "other"), at(0), at(0, "topic-b"), at(1, "topic-b")]),
        ("opic", []),
    ],
)
def test_a_pattern_means_whole_names_and_never_kafkas_own_topics(pattern, found):
    there = StandIn({"topic": 1, "topic-b": 2, "other": 1, "__consumer_offsets": 50})
    assert broker(there, subscribe=None, subscribePattern=pattern).partitions() == found


def test_a_timestamp_after_the_last_record_has_no_offset():
    there = StandIn(offsets={0: 17, 1: -1})
    assert broker(there).offsets_at({at(0): 5, at(1): 5}) == {at(0): 17, at(1): None}


@pytest.mark.parametrize("ask", [lambda b: b.ends([at(0)]), lambda b: b.offsets_at({at(0): 5})])
def test_no_answer_is_no_offset(ask):
    silent = StandIn(offsets={0: -1001})
    retries = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "0"}
    with pytest.raises(BrokerUnreachable, match=r"[Tt]imed out"):
        ask(broker(silent, **retries))
    assert silent.asked == 3


def test_only_a_timestamp_may_have_no_offset():
    with pytest.raises(BrokerUnreachable):
        broker(StandIn(offsets={0: -1}), **{"fetchOffset.numRetries": "0"}).ends([at(0)])


@pytest.mark.parametrize(
    ("seen", "stable", "written", "is_busy"),
    [
        (5, 5, 5, False),
        (5, 5, 7, True),
        # Committed, or begun and committed, since the ends were seen: there is something to read.
        (5, 7, 7, True),
    ],
)
def test_a_transaction_that_ends_between_two_questions_does_not_pass_for_none(
    seen, stable, written, is_busy
):
    stand_in = StandIn()

    def list_offsets(asked, isolation_level, **_):
        end = stable if isolation_level == IsolationLevel.READ_COMMITTED else written
        return {part: done(end) for part in asked}

    stand_in.list_offsets = list_offsets
    busy = broker(stand_in).in_transaction({Partition("t", 0): seen})
    assert busy == ({Partition("t", 0)} if is_busy else set())
