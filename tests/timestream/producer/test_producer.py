"""Marks against records, on a client that writes down what it is asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from pyspark_timestream import PunctuatedProducer
from pyspark_timestream.errors import BrokerUnreachable, DeliveryFailed, OptionError
from pyspark_timestream.kafka.client import bounded
from pyspark_timestream.producer import producer as producer_module
from pyspark_timestream.producer import transactions
from pyspark_timestream.producer.producer import ProducerLimits

T1, T2 = "2024-01-01T00:00:01Z", "2024-01-01T00:00:02Z"


class FakeClient:
    """Two partitions; a record is in the log when it is flushed, a mark's log line is its time."""

    made: ClassVar[list[FakeClient]] = []

    def __init__(self, config: dict[str, Any], logger: Any) -> None:
        self.config, self.log, self.steps = config, [], []
        self.queue: list[tuple[str, int, Callable[[Any, Any], None]]] = []
        self.broken = 0
        self.partitions = 2
        FakeClient.made.append(self)

    def produce(self, topic: str, value: Any, partition: int = -1, on_delivery: Any = None,
                headers: Any = None, **_: Any) -> None:  # fmt: skip
        names = dict(headers or [])
        label = value or "".join(f"{k}={v.decode()};" for k, v in names.items())
        self.queue.append((label, partition, on_delivery))

    def poll(self, timeout: float) -> None:
        """Nothing is delivered before a flush."""

    def flush(self, timeout: float = -1) -> int:
        while self.queue:
            label, partition, report = self.queue.pop(0)
            if self.broken:
                self.broken -= 1
                report(KafkaError(KafkaError._MSG_TIMED_OUT), SimpleNamespace(partition=lambda: 0))
            else:
                self.log.append((label, partition))
                report(None, None)
        return 0

    def list_topics(self, topic: str, timeout: float) -> Any:
        parts = dict.fromkeys(range(self.partitions))
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=parts, error=None)})

    def init_transactions(self, timeout: float = -1) -> None:
        self.steps.append("init")

    def begin_transaction(self) -> None:
        self.steps.append("begin")

    def commit_transaction(self, timeout: float = -1) -> None:
        self.flush()
        self.steps.append("commit")

    def abort_transaction(self, timeout: float = -1) -> None:
        self.queue.clear()
        self.steps.append("abort")


@pytest.fixture(autouse=True)
def made() -> list[FakeClient]:
    FakeClient.made.clear()
    return FakeClient.made


def producer(
    *, client: type[FakeClient] = FakeClient, limits: Any = None, **arguments: Any
) -> tuple[PunctuatedProducer, FakeClient]:
    config = arguments.pop("config", {})
    kind = producer_class(client, limits)
    return kind(config, "t", "w", **arguments), FakeClient.made[-1]


def producer_class(client: type[Any] = Producer, limits: Any = None) -> type[PunctuatedProducer]:
    """A producer with this client, which waits no longer than `limits`."""

    class Limited(PunctuatedProducer):
        client_class = client

    Limited.limits = limits or ProducerLimits()
    return Limited


HURRIED = ProducerLimits(request_s=0.05, flush_step_s=0.05, step_s=0.05)


def mark(t: str) -> str:
    return f"cti={t};cti-writer=w;"


def closing(t: str | None) -> str:
    return f"{mark(t) if t else 'cti-writer=w;'}cti-close=true;"


def test_a_mark_is_in_every_partition_behind_what_was_produced_before() -> None:
    one, client = producer()
    one.produce("a")
    one.note_time(T1)
    one.produce("b")
    one.close()
    assert client.log == [
        ("a", -1), (mark(T1), 0), (mark(T1), 1), ("b", -1), (closing(T1), 0), (closing(T1), 1),
    ]  # fmt: skip


def test_a_mark_that_returned_is_in_the_log() -> None:
    one, client = producer()
    one.note_time(T1)
    assert (client.log, client.queue) == ([(mark(T1), 0), (mark(T1), 1)], [])


def test_partitions_that_were_added_get_marks_too() -> None:
    one, client = producer()
    client.partitions = 3
    one.note_time(T1)
    assert [partition for _, partition in client.log] == [0, 1, 2]


def test_a_topic_that_does_not_exist_gets_no_mark() -> None:
    one, client = producer()
    client.partitions = 0
    with pytest.raises(LookupError, match=r"topic 't' does not exist.*create it"):
        one.note_time(T1)


def test_no_mark_follows_a_record_that_was_not_delivered_until_the_user_was_told() -> None:
    one, client = producer()
    client.broken = 1
    one.produce("a")
    with pytest.raises(DeliveryFailed, match=r"writer 'w'.*topic 't', partition 0.*produce again"):
        one.note_time(T1)
    assert client.log == []
    one.produce("a")
    one.note_time(T1)
    assert client.log == [("a", -1), (mark(T1), 0), (mark(T1), 1)]


def test_a_mark_that_was_not_delivered_raises() -> None:
    one, client = producer()
    client.broken = 1
    with pytest.raises(DeliveryFailed):
        one.note_time(T1)


def test_the_users_own_reports_are_of_records_and_not_of_marks() -> None:
    told: list[str] = []
    one, _ = producer(config={"on_delivery": lambda error, message: told.append("default")})
    one.produce("a")
    one.produce("b", on_delivery=lambda error, message: told.append("own"))
    one.note_time(T1)
    assert told == ["default", "own"]


def test_a_report_may_produce() -> None:
    one, client = producer()
    one.produce("a", on_delivery=lambda error, message: one.produce("b"))
    one.note_time(T1)
    assert [label for label, _ in client.log] == ["a", "b", mark(T1), mark(T1)]


@pytest.mark.timeout(60)
def test_threads_that_never_pause_neither_starve_a_mark_nor_get_behind_it() -> None:
    one, client = producer()
    stop, returned = threading.Event(), [0] * 3
    checked: list[tuple[int, list[int]]] = []

    def work(thread: int) -> None:
        while not stop.is_set():
            one.produce(f"{thread}:{returned[thread]}")
            returned[thread] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for second in range(20):
        before = returned[:]
        one.note_time(f"2024-01-01T00:00:{second:02d}Z")
        checked.append((second, before))
    stop.set()
    for thread in threads:
        thread.join()
    for second, before in checked:
        place = client.log.index((mark(f"2024-01-01T00:00:{second:02d}Z"), 0))
        seen = [0, 0, 0]
        for label, _ in client.log[:place]:
            if label[1] == ":":
                seen[int(label[0])] += 1
        assert all(have >= want for have, want in zip(seen, before, strict=True))


def test_a_writer_is_closed_once_and_then_refuses() -> None:
    one, client = producer()
    one.close()
    one.close()
    assert client.log == [(closing(None), 0), (closing(None), 1)]
    for use in (lambda: one.produce("a"), lambda: one.note_time(T1)):
        with pytest.raises(RuntimeError, match="closed; next step: make a new one"):
            use()


def test_a_failing_block_sends_no_close() -> None:
    class Oops(Exception):
        pass

    one, client = producer()
    one.produce("a")
    with pytest.raises(Oops), one:
        raise Oops
    assert client.log == [("a", -1)]
    with pytest.raises(RuntimeError):
        one.produce("b")


def test_a_block_that_ends_well_closes() -> None:
    one, client = producer()
    with one:
        one.note_time(T1)
    assert [label for label, _ in client.log] == [mark(T1)] * 2 + [closing(T1)] * 2


# -- transactions ---------------------------------------------------------------------------------

TX = {"transactional.id": "x"}


def test_a_commit_has_its_marks_inside_the_transaction() -> None:
    one, client = producer(config=TX)
    one.produce("a")
    one.commit(T1)
    one.commit()
    one.produce("b")
    one.commit()
    assert client.steps == ["init", "begin", "commit", "begin", "commit"]
    assert [label for label, _ in client.log] == ["a", mark(T1), mark(T1), "b"]
    one.commit(T2)
    one.close()
    assert [label for label, _ in client.log][4:] == [mark(T2)] * 2 + [closing(T2)] * 2
    assert client.steps[5:] == ["begin", "commit", "begin", "commit"]


def test_an_aborted_transaction_says_nothing_of_its_time() -> None:
    one, client = producer(config=TX)
    one.produce("a")
    one.abort()
    one.abort()
    one.close()
    assert client.steps == ["init", "begin", "abort", "begin", "commit"]
    assert client.log == [(closing(None), 0), (closing(None), 1)]


def test_a_record_that_fails_keeps_its_transaction_from_being_committed() -> None:
    one, client = producer(config=TX)
    client.broken = 1
    one.produce("a")
    with pytest.raises(DeliveryFailed):
        one.commit(T1)
    assert "commit" not in client.steps
    one.abort()
    one.produce("a")
    one.commit(T1)
    assert client.steps[-2:] == ["begin", "commit"]


def test_a_failing_block_aborts_its_transaction() -> None:
    one, client = producer(config=TX)
    one.produce("a")
    with pytest.raises(ZeroDivisionError), one:
        raise ZeroDivisionError
    assert (client.steps, client.log) == (["init", "begin", "abort"], [])


def test_a_step_that_may_pass_is_tried_again_and_others_are_said() -> None:
    one, client = producer(config=TX)
    passing = [KafkaException(KafkaError(KafkaError._TIMED_OUT, "slow", False, True, False))]
    plain = client.init_transactions

    def init(timeout: float) -> None:
        if passing:
            raise passing.pop()
        plain()

    def commit(timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError.POLICY_VIOLATION, "refused", False, False, True))

    client.init_transactions, client.commit_transaction = init, commit  # type: ignore[method-assign]
    one.produce("a")
    with pytest.raises(
        DeliveryFailed, match=r"could not commit the transaction for topic 't': refused.*abort\(\)"
    ):
        one.commit()
    one.abort()


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._FENCED])
def test_records_of_a_commit_without_an_answer_are_never_in_the_log_twice(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(transactions.Requests.run, "__defaults__", (0.01,))
    one, client = producer(config=TX)
    plain, is_answered = client.commit_transaction, threading.Event()

    def commit(timeout: float) -> None:
        if not is_answered.is_set():
            is_retriable = code == KafkaError._TIMED_OUT
            raise KafkaException(KafkaError(code, "no answer", False, is_retriable, False))
        plain()

    client.commit_transaction = commit  # type: ignore[method-assign]
    one.produce("a")
    unknown = r"'w' does not know whether its transaction is committed: .*commit\(\) again.*only if"
    for step in (lambda: one.commit(T1), lambda: one.produce("a"), one.abort):
        with pytest.raises(DeliveryFailed, match=unknown):
            step()
    with pytest.raises(RuntimeError, match="open transaction"):
        one.close()
    is_answered.set()
    one.commit(T1)
    one.produce("b")
    one.commit(T2)
    marks = [mark(T1)] * 2, [mark(T2)] * 2
    assert [label for label, _ in client.log] == ["a", *marks[0], "b", *marks[1]]
    assert client.steps == ["init", "begin", "commit", "begin", "commit"]


def test_a_failing_block_tells_of_a_commit_without_an_answer_at_once() -> None:
    one, client = producer(config=TX)

    def commit(timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, "fenced"))

    client.commit_transaction = commit  # type: ignore[method-assign]

    def write() -> None:
        with one:
            one.produce("a")
            one.commit(T1)

    with pytest.raises(DeliveryFailed, match="does not know whether"):
        write()
    assert client.steps == ["init", "begin"]


def test_what_does_not_go_with_transactions_is_refused() -> None:
    one, _ = producer(config=TX)
    with pytest.raises(RuntimeError, match=r"refused with 'transactional.id'.*commit\(t\)"):
        one.note_time(T1)
    one.produce("a")
    with pytest.raises(RuntimeError, match="open transaction"):
        one.close()
    with pytest.raises(OptionError, match="auto_note_time"):
        producer(config=TX, auto_note_time=1)
    plain, _ = producer()
    with pytest.raises(RuntimeError, match=r"commit\(\) needs 'transactional.id'"):
        plain.commit(T1)


# -- the wall clock -------------------------------------------------------------------------------


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_wall_clock_is_noted_to_the_millisecond_and_never_after_the_close() -> None:
    one, client = producer(auto_note_time=0.01)
    until(lambda: len(client.log) >= 6)
    one.close()
    count = len(client.log)
    time.sleep(0.05)
    assert len(client.log) == count
    assert client.log[-1][0].endswith("cti-close=true;")
    noted = [label.split(";")[0] for label, partition in client.log if partition == 0]
    assert noted == sorted(noted)
    assert all((text.endswith("Z") and text[-4:-1] in ("000", ":00")) or "." not in text
               for text in noted)  # fmt: skip


def test_a_clock_that_failed_is_told_by_the_next_call() -> None:
    one, client = producer(auto_note_time=0.01)
    client.partitions = 0
    until(lambda: not one._clock.is_alive())  # type: ignore[union-attr]
    with pytest.raises(DeliveryFailed, match="auto_note_time stopped: topic 't' does not exist"):
        one.produce("a")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_an_interval_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(OptionError, match=r"auto_note_time.*seconds above 0"):
        producer(auto_note_time=seconds)


def test_a_broker_that_does_not_say_its_partitions_is_named_without_secrets() -> None:
    limits = ProducerLimits(request_s=0.2)
    one, client = producer(config={"sasl.password": "pa55"}, limits=limits)

    def silent(topic: str, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no route for pa55"))

    client.list_topics = silent  # type: ignore[method-assign,assignment]
    with pytest.raises(BrokerUnreachable, match=r"no route for \[hidden\]"):
        one.note_time(T1)


def test_a_producer_without_a_broker_says_who_was_asked_and_what_was_said(capfd: Any) -> None:
    one = producer_class(limits=ProducerLimits(request_s=1.5))(
        {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 1500}, "t", "w"
    )
    with pytest.raises(
        BrokerUnreachable, match=r"127.0.0.1:1 .*Connection refused.*'bootstrap.serv"
    ):
        one.note_time(T1)
    one.produce("a")
    with pytest.raises(DeliveryFailed, match=r"timed out .127.0.0.1:1: .*Connection refused"):
        one.flush()
    assert "FAIL" not in capfd.readouterr().err


def test_a_producers_own_handlers_hear_what_the_client_says() -> None:
    errors: list[Any] = []
    lines: list[str] = []

    class Lines:
        def log(self, level: int, form: str, *values: Any) -> None:
            lines.append(form % values)

    handlers = {"error_cb": errors.append, "logger": Lines()}
    config = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 1500, **handlers}
    one = PunctuatedProducer(config, "t", "w")
    one.produce("a")
    with pytest.raises(DeliveryFailed):
        one.flush()
    assert errors
    assert "Connection refused" in lines[0]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a method of the client never return, until the test ends."""
    monkeypatch.setattr(bounded, "GRACE_S", 0.3)
    gate = threading.Event()

    def hang(client: FakeClient, name: str) -> None:
        setattr(client, name, lambda *_, **__: gate.wait())

    yield hang
    gate.set()


@pytest.mark.parametrize("name", ["flush", "list_topics"])
def test_a_client_that_never_returns_fails_the_mark_by_name_and_takes_nothing_more(
    hanging: Any, name: str
) -> None:
    one, client = producer(limits=HURRIED)
    one.produce("a")
    hanging(client, name)
    with pytest.raises(DeliveryFailed, match=f"has not returned from {name}.*make a new producer"):
        one.note_time(T1)
    assert not any("cti" in label for label, _ in client.log)
    with pytest.raises(DeliveryFailed, match="make a new producer"):
        one.produce("b")
    with pytest.raises(DeliveryFailed, match="make a new producer"):
        one.close()


@pytest.mark.parametrize(
    "name", ["init_transactions", "begin_transaction", "flush", "commit_transaction"]
)
def test_a_transaction_whose_call_never_returns_fails_by_name(hanging: Any, name: str) -> None:
    one, client = producer(limits=HURRIED, config=TX)
    hanging(client, name)

    def write() -> None:
        one.produce("a")
        one.commit(T1)

    with pytest.raises(DeliveryFailed, match=f"has not returned from {name}.* new producer"):
        write()


def test_a_failing_block_ends_also_where_the_client_never_returns(hanging: Any) -> None:
    one, client = producer(limits=HURRIED)
    hanging(client, "flush")
    with pytest.raises(ZeroDivisionError), one:
        raise ZeroDivisionError


def test_a_queue_that_never_empties_ends_the_wait_after_the_records_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "GRACE_S", 0.1)
    one, client = producer(config={"message.timeout.ms": 100})

    def full(*_: Any, **__: Any) -> None:
        raise BufferError

    client.flush = lambda timeout: 1  # type: ignore[method-assign]
    with pytest.raises(DeliveryFailed, match="nothing was delivered in 0 s"):
        one.flush()
    client.produce = full  # type: ignore[method-assign]
    with pytest.raises(DeliveryFailed, match="nothing was delivered in 0 s"):
        one.produce("a")


def test_a_callback_that_produces_while_a_mark_is_noted_is_not_held_up() -> None:
    one, client = producer()
    one.produce("a", on_delivery=lambda error, message: again and one.produce(again.pop()))
    again = ["b"]
    one.note_time(T1)
    assert [label for label, _ in client.log][:2] == ["a", "b"]


class Small(FakeClient):
    """Has room for one record; a poll delivers one, also in a flush of one step."""

    def produce(self, *arguments: Any, **named: Any) -> None:
        if self.queue:
            raise BufferError
        super().produce(*arguments, **named)

    def poll(self, timeout: float) -> None:
        if timeout:
            self.flush()


def produce_again(one: PunctuatedProducer) -> Callable[[Any, Any], None]:
    """A delivery callback that produces one more record."""
    again = ["b"]
    return lambda error, message: again and one.produce(again.pop())  # type: ignore[return-value]


@pytest.mark.timeout(30)
def test_a_callback_may_produce_while_a_producing_thread_waits_for_room(
    hanging: Any,
) -> None:
    one, client = producer(client=Small, limits=HURRIED)
    one.produce("a", on_delivery=produce_again(one))
    one.produce("c")
    one.flush()
    assert sorted(label for label, _ in client.log) == ["a", "b", "c"]


@pytest.mark.timeout(30)
def test_a_callback_may_produce_while_the_partitions_are_listed(
    hanging: Any,
) -> None:
    one, client = producer(limits=replace(HURRIED, request_s=5))
    failures = [KafkaException(KafkaError(KafkaError._TRANSPORT, "down"))]
    listed = client.list_topics

    def list_topics(topic: str, timeout: float) -> Any:
        if failures:
            one.produce("late", on_delivery=produce_again(one))
            raise failures.pop()
        return listed(topic, timeout)

    client.list_topics = list_topics  # type: ignore[method-assign]
    client.poll = lambda timeout: client.flush()  # type: ignore[assignment,method-assign,return-value]
    one.note_time(T1)
    assert [label for label, _ in client.log] == ["late", "b", mark(T1), mark(T1)]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["commit", "abort"])
def test_a_callback_may_produce_while_a_transaction_ends(hanging: Any, name: str) -> None:
    one, client = producer(limits=HURRIED, config=TX)
    one.produce("a")
    called: list[str] = []
    end = getattr(client, f"{name}_transaction")

    def serve_and_end(timeout: float) -> None:
        one.produce("b")
        called.append("b")
        end()

    setattr(client, f"{name}_transaction", serve_and_end)
    getattr(one, name)()
    assert (called, client.steps[-1]) == (["b"], name)


@pytest.mark.timeout(30)
def test_a_callback_that_produces_does_not_hold_up_a_failing_block(hanging: Any) -> None:
    one, client = producer(limits=HURRIED)
    one.produce("a", on_delivery=produce_again(one))
    began_s = time.monotonic()
    with pytest.raises(ZeroDivisionError), one:
        raise ZeroDivisionError
    assert [label for label, _ in client.log] == ["a", "b"]
    assert time.monotonic() - began_s < 0.3  # GRACE_S


@pytest.mark.timeout(30)
@pytest.mark.parametrize("interval_s", [None, 0.01])
def test_a_callback_may_close_the_producer(hanging: Any, interval_s: float | None) -> None:
    one, client = producer(limits=HURRIED, auto_note_time=interval_s)
    one.produce("a", on_delivery=lambda error, message: one.close())
    with suppress(DeliveryFailed):
        one.flush() if interval_s else one.note_time(T1)
    until(lambda: one._closed)
    assert client.log[-1][0].endswith("cti-close=true;")


def test_a_client_that_another_thread_gives_up_is_a_failed_delivery() -> None:
    one, client = producer()

    class GivenUp:
        """`direct` and `is_abandoned` in turn when a flush elsewhere is abandoned."""

        is_abandoned = False
        direct: Any = None

    one.produce("a")
    one._client = GivenUp()  # type: ignore[assignment]
    with pytest.raises(DeliveryFailed, match="make a new producer"):
        one.produce("b")
    seen = [client, None]
    one._client = type(
        "Later", (), {"is_abandoned": False, "direct": property(lambda _: seen.pop(0))}
    )()
    with pytest.raises(DeliveryFailed, match="make a new producer"):
        one.produce("c")


@pytest.mark.parametrize("is_delivering", [True, False])
def test_a_flush_beside_producing_threads_waits_while_anything_is_delivered(
    monkeypatch: pytest.MonkeyPatch, is_delivering: bool
) -> None:
    monkeypatch.setattr(producer_module, "GRACE_S", 0.1)
    one, client = producer(config={"message.timeout.ms": 100})
    left = [5] * 20 + [0]

    def flush(timeout: float) -> int:
        time.sleep(0.05)
        if is_delivering:
            one._reports.record_report(None, None)
        return left.pop(0)

    client.flush = flush  # type: ignore[method-assign]
    if is_delivering:
        one.flush()
        assert left == []
    else:
        with pytest.raises(DeliveryFailed, match="nothing was delivered"):
            one.flush()


@pytest.mark.timeout(30)
def test_a_callback_of_a_flush_may_produce_while_another_thread_notes_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (bounded, producer_module):
        monkeypatch.setattr(module, "GRACE_S", 2)
    one = PunctuatedProducer(
        {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 500}, "t", "w"
    )
    begun, returned, order = threading.Event(), threading.Event(), list[str]()

    def produce_more(error: Any, message: Any) -> None:
        begun.set()
        until(one._lock._marking.locked)
        time.sleep(0.3)
        one._reports.clear_failure()
        one.produce("b", on_delivery=lambda error, message: order.append("b is reported"))
        returned.set()

    def note() -> None:
        begun.wait()
        # As a mark does, before it is sent.
        with suppress(DeliveryFailed), one._lock.exclusive():
            one.flush()
        order.append("a mark may be sent")

    one.produce("a", on_delivery=produce_more)
    marking = threading.Thread(target=note)
    marking.start()
    with suppress(DeliveryFailed):
        one.flush()
    marking.join()
    assert returned.is_set()
    assert not one._client.is_abandoned
    assert order == ["b is reported", "a mark may be sent"]
