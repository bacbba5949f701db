"""Requests of the driver to the broker, over stand-ins for its clients."""

import re
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from timestream.builders import at, options

from pyspark_timestream.errors import BrokerUnreachable
from pyspark_timestream.kafka.client import errors
from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.client.errors import RetryBudget
from pyspark_timestream.kafka.ranges import Partition

DEAD = {"kafka.bootstrap.servers": "127.0.0.1:1"}


class StandIn:
    """A consumer and admin client: fails so often, then gives the answers it was made with."""

    def __init__(
        self, topics=None, offsets=None, failures=0, code=KafkaError._TRANSPORT, leaderless=()
    ):
        self.topics, self.offsets, self.failures = topics or {}, offsets or {}, failures
        self.code, self.leaderless = code, set(leaderless)
        self.asked, self.calls = 0, []

    def _asked(self, call):
        self.asked += 1
        self.calls.append(call)
        if self.asked <= self.failures:
            raise KafkaException(KafkaError(self.code))

    def poll(self, timeout):
        pass

    def list_topics(self, topic=None, timeout=None):
        self._asked(("list_topics", topic))
        there = self.topics if topic is None else {topic: self.topics.get(topic, 0)}
        return SimpleNamespace(topics={
            name: SimpleNamespace(
                topic=name,
                error=None if count else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART),
                partitions={
                    number: SimpleNamespace(leader=-1 if number in self.leaderless else 1)
                    for number in range(count)
                },
            )
            for name, count in there.items()
        })  # fmt: skip

    def list_offsets(self, asked, **_):
        self._asked(("list_offsets", len(asked)))
        return {part: done(self.offsets[part.partition]) for part in asked}


def done(offset):
    """An answer that has arrived."""
    future = Future()
    future.set_result(SimpleNamespace(offset=offset))
    return future


class Clock:
    """Time that passes by waiting only."""

    def __init__(self):
        self.now_s, self.waits = 0.0, []

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now_s += seconds

    def patience(self, limit_s, pause_s=0.1):
        return RetryBudget(limit_s, pause_s, lambda: self.now_s, self.wait)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Nothing here waits really."""
    made = Clock()
    monkeypatch.setattr("pyspark_timestream.kafka.client.broker.RetryBudget", made.patience)
    return made


def broker(stand_in, answered=False, **raw):
    """The broker that `stand_in` plays, to every client that is made."""
    with pytest.MonkeyPatch.context() as patch:
        for client in ("Consumer", "AdminClient"):
            patch.setattr(
                f"pyspark_timestream.kafka.client.broker.{client}", lambda *_, **__: stand_in
            )
        made = Broker(options(**DEAD, **raw), "group")
    made._answered = answered
    return made


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    ],
)
def test_a_retriable_answer_is_asked_for_again_for_as_long_as_java_does(code, clock):
    passing = StandIn({"topic": 2}, failures=60, code=code)
    assert broker(passing).partitions() == [at(0), at(1)]
    assert 50 < clock.now_s < 60
    lasting = StandIn({"topic": 2}, failures=999, code=code)
    with pytest.raises(BrokerUnreachable) as failure:
        broker(lasting).partitions()
    message = str(failure.value)
    assert message.startswith("cannot get the partitions of topic 'topic': for 60 s the Kafka")
    assert f"brokers answered '{KafkaError(code).str()}'" in message
    for wrongly_blamed in ("bootstrap.servers", "exists", "rights"):
        assert wrongly_blamed not in message


def test_the_user_may_ask_for_more_patience_than_java_has(clock):
    given = {"fetchOffset.numRetries": "120", "fetchOffset.retryIntervalMs": "1000"}
    busy = StandIn({"topic": 1}, failures=999, code=KafkaError.LEADER_NOT_AVAILABLE)
    with pytest.raises(BrokerUnreachable, match="for 180 s"):
        broker(busy, **given).partitions()
    assert set(clock.waits) == {1}


def test_a_broker_that_has_never_answered_is_given_up_sooner(clock):
    dead = StandIn({"topic": 1}, failures=999)
    with pytest.raises(BrokerUnreachable, match="no Kafka broker answered within 30 s"):
        broker(dead).partitions()
    with pytest.raises(BrokerUnreachable, match="no Kafka broker answered within 60 s"):
        broker(dead, answered=True).partitions()
    with pytest.raises(BrokerUnreachable, match="no Kafka broker answered within 2 s"):
        broker(dead, **{"kafkaConsumer.connectTimeoutMs": "2000"}).partitions()


def test_an_error_that_does_not_pass_is_not_asked_again():
    refused = StandIn({"topic": 1}, failures=99, code=KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerUnreachable, match="Topic authorization failed'; next step: let the"):
        broker(refused).partitions()
    assert refused.asked == 1


def test_a_client_knows_the_leaders_before_it_asks_for_offsets():
    there = StandIn({"topic": 1}, {0: 17})
    asking = broker(there)
    assert asking.ends([at(0)]) == {at(0): 17}
    assert asking.earliest([at(0)]) == {at(0): 17}
    assert there.calls == [("list_topics", "topic"), ("list_offsets", 1), ("list_offsets", 1)]


def test_leaders_are_looked_up_again_after_a_failure():
    there = StandIn({"topic": 1}, {0: 17}, failures=3, code=KafkaError.NOT_LEADER_FOR_PARTITION)
    asking = broker(there)
    asking._topics_with_leaders.add("topic")
    assert asking.ends([at(0)]) == {at(0): 17}
    assert [call for call, _ in there.calls] == [
        "list_offsets", "list_topics", "list_topics", "list_topics", "list_offsets",
    ]  # fmt: skip


def test_a_partition_without_a_leader_is_waited_for_by_name():
    headless = StandIn({"topic": 2}, {0: 1, 1: 2}, leaderless=[1])
    with pytest.raises(
        BrokerUnreachable, match=r"Leader not available \(topic 'topic' partition 1"
    ):
        broker(headless).ends([at(0), at(1)])
    assert {call for call, _ in headless.calls} == {"list_topics"}
    # One that nobody asked for may be without.
    assert broker(headless).ends([at(0)]) == {at(0): 1}


def test_a_topic_that_is_gone_meanwhile_has_no_offsets():
    there = StandIn({"topic": 1}, {0: 17})
    assert broker(there).ends([at(0), at(0, "gone")]) == {at(0): 17}
    assert broker(there).ends([at(0, "gone")]) == {}


@pytest.mark.parametrize("where", ["127.0.0.1:1", "no.such.host.invalid:9092"])
def test_unreachable_broker_fails_in_time_naming_its_addresses(where, monkeypatch):
    monkeypatch.undo()
    given = {"kafka.bootstrap.servers": f"{where},127.0.0.1:2"}
    dead = Broker(options(**given, **{"kafkaConsumer.connectTimeoutMs": "2500"}), "group")
    began_s = time.monotonic()
    with pytest.raises(BrokerUnreachable) as failure:
        dead.partitions()
    assert time.monotonic() - began_s < 20
    message = str(failure.value)
    reason = "Connection refused" if where.startswith("127") else "Failed to resolve"
    assert re.search(rf"{re.escape(where)} \([^()]*{reason}", message), message
    assert re.search(r"127\.0\.0\.1:2 \([^()]*Connection refused", message), message
    assert "option 'kafkaConsumer.connectTimeoutMs'" in message


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_librdkafkas_repeats_are_one_line_a_minute(caplog, capfd, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(errors._REPEATS, "_passed", {})
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafkaConsumer.connectTimeoutMs": "4000"}
    for _ in range(2):
        with pytest.raises(BrokerUnreachable):
            Broker(options(**given), "group").partitions()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, lines
    assert "127.0.0.1:1: Connect to" in lines[0]
    assert "FAIL" not in capfd.readouterr().err


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
    there = StandIn({"topic": 2}, {0: 17, 1: -1})
    assert broker(there).offsets_at({at(0): 5, at(1): 5}) == {at(0): 17, at(1): None}


@pytest.mark.parametrize("ask", [lambda b: b.ends([at(0)]), lambda b: b.offsets_at({at(0): 5})])
def test_no_answer_is_no_offset(ask):
    silent = StandIn({"topic": 1}, {0: -1001})
    with pytest.raises(BrokerUnreachable, match="the offsets of topic 'topic'"):
        ask(broker(silent))
    assert silent.asked > 30


def test_only_a_timestamp_may_have_no_offset():
    with pytest.raises(BrokerUnreachable):
        broker(StandIn({"topic": 1}, {0: -1})).ends([at(0)])


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
    stand_in = StandIn({"t": 1})

    def list_offsets(asked, isolation_level, **_):
        end = stable if isolation_level == IsolationLevel.READ_COMMITTED else written
        return {part: done(end) for part in asked}

    stand_in.list_offsets = list_offsets
    busy = broker(stand_in).open_transactions({Partition("t", 0): seen})
    assert busy == ({Partition("t", 0)} if is_busy else set())
