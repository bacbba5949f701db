"""Handling of the errors that a consumer reports among the records of a range."""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.errors import BrokerUnreachable, DataLost, OptionError
from pyspark_timestream.kafka.client import range_reader
from pyspark_timestream.kafka.client.consumer import ConsumerError, PollResult, Pool
from pyspark_timestream.kafka.client.errors import BrokerFailure, ClientLog, RetryBudget
from pyspark_timestream.kafka.client.range_reader import CommittedClock, RangeReader, acquire_reader
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

SPAN = OffsetRange(Partition("t", 0), 10, 20)


class Clock:
    """Time that passes by waiting, and by waiting for records."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s

    def patience(self, limit_s: float) -> RetryBudget:
        return RetryBudget(limit_s, 0.1, self.monotonic, self.wait)


@pytest.fixture
def clock() -> Clock:
    """Nothing here waits really."""
    return Clock()


OPTIONS = read_kafka_options({"kafka.bootstrap.servers": "b:1", "subscribe": "t"})


def reader_of(
    *consumers: object, options: KafkaOptions = OPTIONS, clock: Clock | None = None, **more: Any
) -> RangeReader:
    """A reader that takes these consumers one after the other, at the time of a clock."""
    given, clock = iter(consumers), clock or Clock()
    return RangeReader(
        options,
        "g",
        create_consumer=lambda *_: next(given),
        clock=clock.monotonic,
        budget=clock.patience,
        **more,
    )


Bounds = tuple[int, int] | KafkaError


class Scripted:
    """A consumer that follows a script, over a partition with the offsets 15 to 30.

    `bounds` are what the broker says of them otherwise, question by question; the last stays.
    """

    def __init__(
        self,
        script: Iterator[PollResult],
        bounds: Sequence[Bounds] = ((15, 30),),
        connected: bool = False,
    ) -> None:
        self._connected = connected
        self._script = script
        self._bounds = list(bounds)
        self.aims: list[int] = []
        self.closed = 0
        self.received_bytes = 0
        self.paused = 0

    def seek(self, partition: Partition, offset: int) -> None:
        self.aims.append(offset)

    def pause(self) -> None:
        self.paused += 1

    def poll(self, span: OffsetRange, position: int, needs: ColumnSet, wait_s: float) -> PollResult:
        return next(self._script)

    def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        said = self._bounds.pop(0) if len(self._bounds) > 1 else self._bounds[0]
        if isinstance(said, KafkaError):
            raise KafkaException(said)
        return said

    def is_connected(self, timeout_s: float) -> bool:
        return self._connected

    def commit_offsets(
        self, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        return {}

    def close(self) -> None:
        self.closed += 1


def lost(offset: int, partition: int = 0) -> ConsumerError:
    return ConsumerError(KafkaError(KafkaError._AUTO_OFFSET_RESET), "t", partition, offset)


def read(
    takes: Iterable[PollResult],
    *,
    fail: bool = True,
    bounds: Sequence[Bounds] = ((15, 30),),
    connected: bool = False,
    **more: Any,
) -> list[int]:
    """Reads SPAN; where the consumer was aimed at."""
    options = replace(OPTIONS, fail_on_data_loss=fail)
    consumer = Scripted(iter(takes), bounds, connected)
    reader = reader_of(*[consumer] * 200, options=options, **more)
    assert list(reader.read(SPAN, ColumnSet())) == []
    return consumer.aims


def test_a_range_that_is_left_before_its_end_fetches_no_more() -> None:
    taken = PollResult(RecordBlock(pa.array([10])), 11, ())
    consumer = Scripted(iter([taken]))
    blocks = reader_of(consumer).read(SPAN, ColumnSet())
    assert next(blocks) is taken.block
    assert consumer.paused == 0
    blocks.close()
    assert consumer.paused == 1


def test_a_loss_that_is_reported_twice_is_passed_over_once() -> None:
    takes = [
        PollResult(None, 10, (lost(10),)),
        PollResult(None, 15, (lost(10),)),
        PollResult(None, 20, ()),
    ]
    assert read(takes, fail=False) == [10, 15]


def test_loss_with_fail_on_data_loss_fails_the_query() -> None:
    with pytest.raises(DataLost, match="offset 10 can no longer be read"):
        read([PollResult(None, 10, (lost(10),))], fail=True)


def test_an_error_of_a_position_long_passed_loses_nothing() -> None:
    takes = [PollResult(None, 16, ()), PollResult(None, 16, (lost(12),)), PollResult(None, 20, ())]
    assert read(takes, fail=True) == [10]


def test_an_error_of_another_partition_is_not_this_ones() -> None:
    takes = [PollResult(None, 10, (lost(10, partition=1),)), PollResult(None, 20, ())]
    assert read(takes, fail=True) == [10]


def test_missing_rights_are_an_error() -> None:
    denied = ConsumerError(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "t", 0, -1)
    with pytest.raises(BrokerUnreachable, match=r"topic .t. partition 0: .*authorization failed"):
        read([PollResult(None, 10, (denied,))], fail=True)


# -- leaders that change -----------------------------------------------------------------------

BEHIND = (0, 12)
"""The answer of a broker that no longer leads the partition, or not yet."""
REFUSED = PollResult(None, 18, (lost(18),))


@pytest.mark.parametrize(
    "moment",
    [BEHIND, KafkaError(KafkaError.OFFSET_NOT_AVAILABLE), KafkaError(KafkaError._TRANSPORT)],
    ids=["behind", "answer that passes", "no answer"],
)
def test_a_log_that_seems_shorter_for_a_moment_has_lost_nothing(moment) -> None:
    takes = [PollResult(None, 18, ()), REFUSED, PollResult(None, 20, ())]
    assert read(takes, bounds=[*[moment] * 4, (0, 30)]) == [10, 18]


def test_a_topic_that_is_unknown_for_a_moment_is_not_gone() -> None:
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    missing = PollResult(None, 18, (ConsumerError(unknown, "t", 0, -1),))
    takes = [PollResult(None, 18, ()), missing, PollResult(None, 20, ())]
    assert read(takes, bounds=[unknown, unknown, (0, 30)]) == [10, 18]


@pytest.mark.parametrize(
    "lasting", [BEHIND, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)], ids=["shorter", "gone"]
)
def test_a_log_that_stays_shorter_for_seconds_has_lost_records(clock, lasting) -> None:
    with pytest.raises(DataLost, match="offset 18 can no longer be read"):
        read([PollResult(None, 18, ()), REFUSED], bounds=[lasting], clock=clock)
    assert 5 <= clock.now_s < 10


def test_a_first_answer_that_took_long_is_no_proof_of_a_loss(clock) -> None:
    class Slow(Scripted):
        def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
            clock.now_s += 8 if len(self._bounds) > 1 else 0
            return super().query_bounds(partition, timeout_s)

    taken = iter([PollResult(None, 18, ()), REFUSED, PollResult(None, 20, ())])
    consumer = Slow(taken, [BEHIND, (15, 30)])
    reader = reader_of(*[consumer] * 9, clock=clock)
    assert list(reader.read(SPAN, ColumnSet())) == []


def test_a_position_that_exists_is_asked_for_again_for_as_long_as_java_does(clock) -> None:
    takes = [PollResult(None, 18, ()), *[REFUSED] * 60, PollResult(None, 20, ())]
    assert read(takes, clock=clock)[1:] == [18] * 60
    assert clock.now_s < 60
    with pytest.raises(DataLost, match="offset 18 can no longer be read"):
        read(itertools.chain([PollResult(None, 18, ())], itertools.repeat(REFUSED)), clock=clock)


def test_error_lasting_a_minute_is_quoted_in_the_message(clock) -> None:
    with pytest.raises(BrokerUnreachable) as failure:
        read([REFUSED], bounds=[KafkaError(KafkaError.OFFSET_NOT_AVAILABLE)], clock=clock)
    message = str(failure.value)
    assert "for 60 s the Kafka brokers answered 'Broker: Leader high watermark is not" in message
    assert clock.now_s == pytest.approx(60)
    for wrongly_blamed in ("bootstrap.servers", "exists", "rights"):
        assert wrongly_blamed not in message


# -- brokers that do not answer ----------------------------------------------------------------


def waiting(clock: Clock, *problems: ConsumerError) -> Iterator[PollResult]:
    """A consumer that is given nothing but `problems`."""
    while True:
        clock.now_s += 0.05
        yield PollResult(None, 10, problems)


class Complaints(ClientLog):
    """The error that a client repeats about a broker."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__({})
        self._complaint = BrokerFailure(code, reason, 0)

    def recent_failures(self, within_s: float) -> dict[str, BrokerFailure]:
        return {"b:1": self._complaint}


def test_a_task_that_reaches_no_broker_fails_after_the_connect_timeout(clock) -> None:
    log = Complaints(KafkaError._TRANSPORT, "Connection refused")
    with pytest.raises(BrokerUnreachable, match=r"within 30 s .*: b:1 .Connection refused."):
        read(waiting(clock), clock=clock, log=log)
    assert clock.now_s == pytest.approx(30, abs=1)


def test_a_login_that_is_refused_is_not_waited_for(clock) -> None:
    log = Complaints(KafkaError._AUTHENTICATION, "Invalid username or password")
    with pytest.raises(BrokerUnreachable, match=r"Invalid username or password.*'kafka\.sasl\."):
        read(waiting(clock), clock=clock, log=log)
    assert clock.now_s < 10


def test_a_task_that_has_reached_a_broker_waits_for_the_others_longer(clock) -> None:
    log = Complaints(KafkaError._TRANSPORT, "Connection refused")
    with pytest.raises(BrokerUnreachable, match=r"within 120 s .*: b:1 .Connection refused."):
        read(waiting(clock), clock=clock, log=log, connected=True)


def test_an_answer_that_should_have_passed_is_the_message(clock) -> None:
    answer = ConsumerError(KafkaError(KafkaError.KAFKA_STORAGE_ERROR), "t", 0, -1)
    with pytest.raises(BrokerUnreachable, match=r"for 120 s .* answered 'Broker: Disk error"):
        read(waiting(clock, answer), clock=clock, connected=True)


def acquiring(
    monkeypatch: pytest.MonkeyPatch, create_consumer: Callable[..., Scripted]
) -> Callable[[], AbstractContextManager[RangeReader]]:
    """Take a reader from a pool of its own."""
    create = partial(RangeReader, create_consumer=create_consumer, budget=Clock().patience)
    monkeypatch.setattr(range_reader, "_POOL", Pool(max_idle=4, idle_s=300))
    monkeypatch.setattr(range_reader, "RangeReader", create)
    return lambda: acquire_reader(OPTIONS, "g")


def test_the_tasks_of_a_worker_share_one_consumer_until_one_of_them_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Scripted] = []

    def new_consumer(*_: object) -> Scripted:
        made.append(
            Scripted(
                iter([PollResult(None, 20, ()), PollResult(None, 30, ()), PollResult(None, 20, ())])
            )
        )
        return made[-1]

    acquire = acquiring(monkeypatch, new_consumer)
    later = OffsetRange(SPAN.partition, 20, 30)
    for span in (SPAN, later, SPAN):
        with acquire() as reader:
            assert list(reader.read(span, ColumnSet())) == []
    assert [consumer.aims for consumer in made] == [[10, 20, 10]]
    with pytest.raises(ZeroDivisionError), acquire():
        raise ZeroDivisionError
    with acquire() as reader:
        assert list(reader.read(SPAN, ColumnSet())) == []
    assert [consumer.aims for consumer in made] == [[10, 20, 10], [10]]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_consumer_that_is_replaced_is_closed_once(
    monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    # A refusal of offset 18, which exists, is out of date.
    made: list[Scripted] = []
    scripts = [[PollResult(None, 18, (lost(18),))], [PollResult(None, 20, ())]]

    def new_consumer(*_: object) -> Scripted:
        if made and is_refused:
            raise OptionError("kafka.*", "no", "librdkafka's", "correct it")
        made.append(Scripted(iter(scripts[len(made)])))
        return made[-1]

    acquire = acquiring(monkeypatch, new_consumer)
    refused = pytest.raises(OptionError) if is_refused else contextlib.nullcontext()
    with refused, acquire() as reader:
        assert list(reader.read(SPAN, ColumnSet())) == []
    assert [consumer.closed for consumer in made] == ([1] if is_refused else [1, 0])


class Group(Scripted):
    """A consumer of a broker that takes texts of this many characters, and none of partition 9."""

    def __init__(self, limit: int) -> None:
        super().__init__(iter([]))
        self.limit = limit
        self.commits: list[dict[Partition, int]] = []
        self.left: dict[Partition, tuple[int, str]] = {}

    def commit_offsets(
        self, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        self.commits.append({part: len(text) for part, (_, text) in offsets.items()})
        too_long = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE)
        denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        refused = {part: too_long for part, (_, text) in offsets.items() if len(text) > self.limit}
        refused |= {part: denied for part in offsets if part.number == 9}
        self.left |= {part: each for part, each in offsets.items() if part not in refused}
        return refused


def leaving(limit: int, clock: Clock | None = None) -> tuple[RangeReader, Group]:
    group = Group(limit)
    return reader_of(group, clock=clock), group


def packed(letters: int) -> str:
    return json.dumps({"for": "k", "packed": "x" * letters, "version": 2})


def test_state_of_any_size_is_committed_if_accepted() -> None:
    reader, group = leaving(100_000)
    text = packed(90_000)
    reader.commit_clocks({Partition("t", 0): CommittedClock(7, text)})
    assert group.left == {Partition("t", 0): (7, text)}


def test_state_refused_as_too_long_is_replaced_by_its_length(clock) -> None:
    reader, group = leaving(200, clock)
    long, short = Partition("t", 0), Partition("t", 1)
    for offset in (7, 8):
        clocks = {
            long: CommittedClock(offset, packed(500)),
            short: CommittedClock(offset, packed(9)),
        }
        reader.commit_clocks(clocks)
        assert group.left[short] == (offset, packed(9))
        assert group.left[long][0] == offset
        left = json.loads(group.left[long][1])
        assert (left["for"], left["length"]) == ("k", len(packed(500)))
    # A refused request is repeated not at once, but a minute later.
    assert [max(sizes.values()) > 200 for sizes in group.commits] == [True, False, False]
    clock.wait(61)
    reader.commit_clocks({long: CommittedClock(9, packed(500))})
    assert [max(sizes.values()) > 200 for sizes in group.commits[3:]] == [True, False]


def test_forbidden_group_is_not_asked_again_for_a_minute(caplog) -> None:
    reader, group = leaving(200)
    for _ in range(3):
        reader.commit_clocks({Partition("t", 9): CommittedClock(7, "")})
    assert len(group.commits) == 1
    assert "offsets cannot be committed to group 'g'" in caplog.text
    assert "the counts in the progress leave its records out" in caplog.text
