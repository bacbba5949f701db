"""A Kafka producer that notes its progress in time by marks among its records (semantics 4.7).

    with PunctuatedProducer({"bootstrap.servers": "localhost:9092"}, "trips", "depot-7") as trips:
        trips.produce(value, key=station)
        trips.note_time(now)  # nothing before `now` will follow

A record produced before a mark never lands behind it, from any thread: the producer blocks other
threads, waits until all earlier records are in the log, and only then sends the mark. When the call
returns, the mark is in the log too.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from confluent_kafka import KafkaException, Producer

from pyspark_timestream.core.declarations import hide_secrets
from pyspark_timestream.core.instants import (
    MILLISECOND_US,
    check_instant,
    from_datetime,
    is_wait,
    parse_instant,
)
from pyspark_timestream.errors import (
    BrokerUnreachable,
    DeliveryFailed,
    OptionError,
    compose_message,
)
from pyspark_timestream.kafka.client.bounded import GRACE_S, CallAbandoned
from pyspark_timestream.kafka.client.errors import ClientLog, FailureKind, error_text
from pyspark_timestream.kafka.options.keys import is_idempotent
from pyspark_timestream.producer.transactions import ProducerTransactions, Requests
from pyspark_timestream.rules.marks import Headers, Writer

_RECENT_FAILURES_S: Final = 60.0
"""Messages quote brokers' failures that are no older than this."""

Report = Callable[[Any, Any], None]
"""The client calls it with an error, or None, and the message."""


class DeliveryReports:
    """Receives and counts every delivery report, and keeps the first failure until it is raised."""

    def __init__(self, writer: str, topic: str, config: Mapping[str, Any], log: ClientLog) -> None:
        self._writer = writer
        self._topic = topic
        self._config = config
        self._log = log
        self._failure: str | None = None
        self.count = 0

    def record_report(self, error: Any, message: Any) -> None:
        """Take the report of one record or mark."""
        self.count += 1
        if error is not None:
            self.fail(self.describe_failure(f"partition {message.partition()}: {error.str()}"))

    def combine_with(self, callback: Report | None) -> Report:
        """Return a report callback that also calls `callback`."""
        if callback is None:
            return self.record_report

        def both(error: Any, message: Any) -> None:
            self.record_report(error, message)
            callback(error, message)

        return both

    def fail(self, failure: str) -> None:
        """Keep `failure` unless there is an earlier one."""
        self._failure = self._failure or failure

    def clear_failure(self) -> None:
        """Forget the failure: the caller rolled its records back on purpose."""
        self._failure = None

    def raise_failure(self) -> None:
        """Raise the failure, if there is one, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise DeliveryFailed(failure)

    def describe_failure(self, why: str) -> str:
        """Compose the message about a record or mark that did not get into the log."""
        return compose_message(
            f"writer '{self._writer}' could not deliver to topic '{self._topic}', "
            f"{hide_secrets(why, self._config)}{self._describe_unreachable()}",
            next_step="produce again what is missing, before its time is noted",
        )

    def _describe_unreachable(self) -> str:
        failures = self._log.recent_failures(_RECENT_FAILURES_S)
        reasons = ", ".join(
            f"{address}: {failure.reason}" if address else failure.reason
            for address, failure in failures.items()
        )
        return f" ({reasons})" if reasons else ""


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """The longest waits of a producer, in seconds."""

    request_s: float = 30.0  # The list of partitions, and the last flush after an error.
    flush_step_s: float = 1.0  # After each step of a flush the producer checks for deliveries.
    step_s: float = 10.0  # One attempt at a step of a transaction; attempts go on for a minute.


T = TypeVar("T")

_POLL_STEP_S: Final = 0.1
_DEFAULT_LIFE_MS: Final = 300_000
"""librdkafka's `message.timeout.ms`: after this time it reports a record as failed."""


_FLUSHING: Final = "flushing"
_HOLDING: Final = "holding"


class _MarkLock:
    """A lock that threads hold for one record each, and that a mark gets before all records.

    At a plain lock, threads that produce without a pause would keep a mark waiting for ever. So a
    mark takes `_marking` first, and records wait while it is taken.

    The client calls back from the thread that makes a call while another thread waits for it. So
    the call runs in the role of the waiting thread (`lend`), which decides what waits:

    - No role: a record waits for marks, and a mark for records and marks.
    - Flushing, in a callback of a flush: a record does not wait, because the flush of a mark may
      wait for this callback; the mark then goes behind the record. A mark waits.
    - Holding, also in a callback of a call under the lock: nothing waits.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._marking = threading.Lock()
        self._roles: dict[int, str] = {}  # By thread.

    @contextmanager
    def shared(self) -> Iterator[bool]:
        """Hold it for one record; yield True if the record does not wait, in a callback."""
        me = threading.get_ident()
        if me in self._roles:
            yield True
            return
        with self._condition:
            while self._marking.locked():
                self._condition.wait()
            # Inlines `_as`, because this runs for each record.
            self._roles[me] = _HOLDING
            try:
                yield False
            finally:
                del self._roles[me]

    @property
    def is_held(self) -> bool:
        """Whether this thread holds it, directly or by `lend`."""
        return self._roles.get(threading.get_ident()) == _HOLDING

    def lend(self, function: Callable[[Any], T], *, is_flush: bool = False) -> Callable[[Any], T]:
        """Wrap `function` for another thread, which runs it in the role of this one."""
        role = self._roles.get(threading.get_ident(), _FLUSHING if is_flush else None)
        if role is None:
            return function

        def run(client: Any) -> T:
            with self._as(role):
                return function(client)

        return run

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold it for a mark: no other thread can produce meanwhile."""
        if self.is_held:
            yield
            return
        try:
            with self._marking, self._condition, self._as(_HOLDING):
                yield
        finally:
            with self._condition:
                self._condition.notify_all()

    @contextmanager
    def _as(self, role: str) -> Iterator[None]:
        """Give this thread a role inside the `with` block."""
        me = threading.get_ident()
        before = self._roles.get(me)
        self._roles[me] = role
        try:
            yield
        finally:
            if before is None:
                del self._roles[me]
            else:
                self._roles[me] = before


class _Patience:
    """Ends a wait after `limit_s` seconds without a change."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._state = object()
        self._since_s = time.monotonic()

    def is_over(self, state: object) -> bool:
        """Return whether `state` has stayed the same for longer than the limit."""
        now_s = time.monotonic()
        if state != self._state:
            self._state = state
            self._since_s = now_s
        return now_s - self._since_s > self._limit_s


class PunctuatedProducer:
    """Produces records and marks of one writer to one topic; thread-safe.

    Args:
        config: the configuration of `confluent_kafka.Producer`; idempotence is on. With a
            `transactional.id`, use `commit` instead of `note_time`. Unlike Spark options, it may
            contain settings that load code, because the program itself sets it.
        topic: the topic of records and marks; it must exist.
        writer_id: the writer's name, the same after a restart.
        cti_header: the reader's option `ctiHeader`.
        auto_note_time: note the wall clock at this interval in seconds; for records that are
            produced as they happen, with the record timestamp as event time.

    Attributes:
        client_class: makes the client from its configuration.
        limits: the longest waits.

    Raises:
        OptionError: an argument cannot work.
    """

    client_class: ClassVar[type[Any]] = Producer
    limits: ClassVar[ProducerLimits] = ProducerLimits()

    def __init__(
        self,
        config: dict[str, Any],
        topic: str,
        writer_id: str,
        cti_header: str = "cti",
        auto_note_time: float | None = None,
    ) -> None:
        self._topic = topic
        self._config = config
        self._writer = Writer(writer_id, cti_header)
        self._transactional = bool(config.get("transactional.id"))
        self._check_interval(auto_note_time)
        self._requests = Requests(
            config, f"topic '{topic}'", self._advise, step_s=self.limits.step_s
        )
        self._reports = DeliveryReports(writer_id, topic, config, self._requests.log)
        self._lock = _MarkLock()
        self._last_us: int | None = None
        self._committing_us: int | None = None
        """The mark in a transaction that may be committed."""
        self._closed = False
        self._client = self._requests.open_client(self.client_class, _require_idempotence(config))
        # Callbacks run in the threads that make the client's calls.
        self._client.wrap = self._lock.lend
        self._delivery_limit_s = _read_delivery_limit_s(config)
        self._transactions = ProducerTransactions(self._client, self._requests)
        self._ended = threading.Event()
        self._clock: threading.Thread | None = None
        if auto_note_time is not None:
            self._clock = threading.Thread(
                target=self._note_the_clock, args=(auto_note_time,), daemon=True
            )
            self._clock.start()

    def _check_interval(self, seconds: float | None) -> None:
        if seconds is None:
            return
        if self._transactional or not is_wait(seconds):
            raise OptionError(
                "auto_note_time",
                f"{seconds}, with{'' if self._transactional else 'out'} transactional.id",
                "seconds above 0, without transactions",
                "commit(t) notes time in a transaction",
            )

    # -- records ----------------------------------------------------------------------------------

    def produce(
        self,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Queue one record as `confluent_kafka.Producer.produce` does, but wait for room.

        With transactions the first record after a commit begins the next transaction.

        Raises:
            DeliveryFailed: an earlier record or mark could not be delivered, or this one cannot.
            RuntimeError: the producer is closed.
        """
        report = self._reports.combine_with(on_delivery or self._config.get("on_delivery"))
        with self._lock.shared() as is_callback:
            self._check_usable()
            self._begin()
            self._send(
                value,
                key=key,
                partition=partition,
                on_delivery=report,
                timestamp=timestamp,
                headers=headers,
            )
            client = self._live_client()
            # Confluent's client ends the process if a callback polls and another one follows it.
            if not is_callback:
                client.poll(0)

    def flush(self) -> None:
        """Wait until everything produced so far is in the log; raises as `note_time` does."""
        least = sys.maxsize
        patience = _Patience(self._delivery_limit_s)
        step_s = self.limits.flush_step_s

        def flush(client: Any) -> int:
            return int(client.flush(step_s))

        while waiting := self._serve(self._lock.lend(flush, is_flush=True), step_s, "flush"):
            # Other threads may refill the queue meanwhile, so progress is a new minimum.
            least = min(least, waiting)
            self._check_delivery(patience, least)
        self._reports.raise_failure()

    # -- time -------------------------------------------------------------------------------------

    def note_time(self, t: datetime | str) -> None:
        """Promise that no record with a time before `t` will follow, on every partition.

        Returns when the marks are in the log, behind everything produced before them.

        Args:
            t: a datetime with a zone, or ISO-8601 text. Readers ignore a time below an earlier one.

        Raises:
            DeliveryFailed: a record or a mark could not be delivered; if it was a record, no mark
                was sent.
            BrokerUnreachable: the broker did not list the partitions.
            LookupError: the topic does not exist.
            RuntimeError: the producer is closed or transactional.
            ValueError: `t` is not a time.
        """
        if self._transactional:
            raise RuntimeError(
                compose_message(
                    "note_time() is refused with 'transactional.id', because a mark must not be "
                    "visible before its records",
                    next_step="commit(t)",
                )
            )
        at_us = _parse_mark_time(t)
        with self._lock.exclusive():
            self._note(at_us)

    def _note(self, at_us: int) -> None:
        self._check_usable()
        self.flush()
        self._mark(self._writer.mark(at_us))
        self._last_us = at_us
        self.flush()

    def _mark(self, headers: Headers) -> None:
        for partition in self._partitions():
            self._send(
                None, partition=partition, headers=headers, on_delivery=self._reports.record_report
            )

    def _partitions(self) -> range:
        partitions = self._requests.list_partitions(
            self._client, self._topic, self.limits.request_s
        )
        if not partitions:
            raise LookupError(
                compose_message(
                    f"topic '{self._topic}' does not exist, so there is nowhere to note a time",
                    next_step="create it, or correct the name",
                )
            )
        return partitions

    def _note_the_clock(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            try:
                with self._lock.exclusive():
                    if not self._closed:
                        # Read the clock while nobody produces, and round down to the milliseconds
                        # of record timestamps, so that no record stamped by the client is late.
                        self._note(time.time_ns() // 1_000_000 * MILLISECOND_US)
            except Exception as error:
                self._reports.fail(f"auto_note_time stopped: {error}")
                return

    # -- transactions -----------------------------------------------------------------------------

    def commit(self, t: datetime | str | None = None) -> None:
        """Commit the open transaction with a mark for `t` in it: readers see both or neither.

        After a commit without an answer call it again with the same `t`: it goes on with that one.

        Raises:
            DeliveryFailed: the commit failed, or may have failed: do what the message says, because
                to produce the records again could double them.
            BrokerUnreachable: before the commit, no broker answered.
            RuntimeError: there is no `transactional.id`, or the producer is closed.
            ValueError: `t` is not a time.
        """
        if not self._transactional:
            raise RuntimeError(
                compose_message(
                    "commit() needs 'transactional.id' in config",
                    next_step="add it, or note_time(t)",
                )
            )
        at_us = None if t is None else _parse_mark_time(t)
        with self._lock.exclusive():
            self._check_usable()
            if self._transactions.is_committing:
                self._end_transaction(self._committing_us)
                if at_us in (None, self._committing_us):
                    return
            if at_us is not None:
                self._begin()
                self.flush()
                self._mark(self._writer.mark(at_us))
            self.flush()
            if self._transactions.is_open:
                self._end_transaction(at_us)

    def _end_transaction(self, at_us: int | None) -> None:
        """Commit the transaction with the mark `at_us`, or go on with its commit."""
        self._committing_us = at_us
        try:
            self._transactions.commit()
        except (BrokerUnreachable, DeliveryFailed) as failed:
            self._check_committed(failed.problem)
            raise
        self._last_us = self._last_us if at_us is None else at_us

    def _check_committed(self, why: str = "the last commit got no answer") -> None:
        """Refuse to go on while a transaction may be committed: its records could come twice."""
        if self._transactions.is_committing:
            raise DeliveryFailed(
                f"writer '{self._writer.name}' does not know whether its transaction is committed: "
                f"{why}",
                next_step="commit() again, which goes on with that one. If it fails for good, make "
                "a new producer, which ends the transaction, and produce the records again only if "
                "the topic lacks them: the mark of the commit is there if they are",
            )

    def _begin(self) -> None:
        if self._transactional:
            self._check_committed()
            if not self._transactions.is_open:
                self._transactions.begin()

    def abort(self) -> None:
        """Discard everything produced since the last commit.

        Raises:
            DeliveryFailed: a commit got no answer, so the records may be committed.
        """
        with self._lock.exclusive():
            self._check_committed()
            self._transactions.abort()
            # The client reports unsent records as failed, but we gave them up on purpose.
            self._reports.clear_failure()

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the writer: it no longer holds readers back. A second call does nothing.

        Raises:
            DeliveryFailed: a record or a mark could not be delivered.
            RuntimeError: a transaction is open.
        """
        self._stop_clock()
        with self._lock.exclusive():
            if self._closed:
                return
            if self._transactions.is_open:
                raise RuntimeError(
                    compose_message(
                        "close() with an open transaction", next_step="commit() or abort() it first"
                    )
                )
            try:
                self._begin()
                self.flush()
                self._mark(self._writer.close_mark(self._last_us))
                self.flush()
                if self._transactional:
                    self._transactions.commit()
            finally:
                self._closed = True
                self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error send no closing mark, so that readers still wait for the writer."""
        if error is None:
            return self.close()
        self._stop_clock()
        with self._lock.exclusive():
            try:
                if self._transactions.is_open and not self._transactions.is_committing:
                    self.abort()
                # A callback that produces now would begin another transaction.
                self._closed = self._transactional
                with suppress(DeliveryFailed):
                    limit_s = self.limits.request_s
                    self._serve(lambda client: client.flush(limit_s), limit_s, "flush")
            finally:
                self._closed = True
                self._client.close()

    def _stop_clock(self) -> None:
        self._ended.set()
        # A callback's thread holds the lock that the clock may wait for, so it must not join the
        # clock; the clock then ends without it.
        if self._clock is not None and not self._lock.is_held:
            self._clock.join()

    # -- the client -------------------------------------------------------------------------------

    def _send(self, value: bytes | str | None, **record: Any) -> None:
        patience: _Patience | None = None
        while True:
            try:
                self._live_client().produce(self._topic, value, **record)
                return
            except BufferError:
                patience = patience or _Patience(self._delivery_limit_s)
                self._serve(lambda client: client.poll(_POLL_STEP_S), _POLL_STEP_S, "poll")
                self._check_delivery(patience)
            except KafkaException as error:
                raise DeliveryFailed(self._reports.describe_failure(error_text(error))) from None

    def _live_client(self) -> Any:
        # Read it once: another thread may give the client up at any time.
        client = self._client.direct
        if client is None:
            late = CallAbandoned("produce", 0, "has not returned from an earlier call")
            raise self._requests.failure(late, "send a record")
        return client

    def _serve(self, function: Callable[[Any], T], timeout_s: float, name: str) -> T:
        run = partial(self._client.run, function, timeout_s, name)
        return self._requests.run_once(run, "deliver what was produced")

    def _advise(self, code: int, kind: FailureKind) -> str:
        if kind is FailureKind.ABANDONED and self._transactional:
            return (
                "make a new producer, which ends this transaction, and produce again what was "
                "produced since the last commit"
            )
        if kind is FailureKind.ABANDONED:
            return (
                "make a new producer, and produce again what was produced since the last time that "
                "was noted"
            )
        if self._transactional:
            return "abort() and produce it again; after a fatal error, with a new producer"
        return "fix the problem named above, and note the time again"

    def _check_delivery(self, patience: _Patience, waiting: int = 0) -> None:
        if patience.is_over((self._reports.count, waiting)):
            why = f"nothing was delivered in {self._delivery_limit_s:.0f} s"
            raise DeliveryFailed(self._reports.describe_failure(why))

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError(
                compose_message("the producer is closed", next_step="make a new one")
            )
        self._reports.raise_failure()


def _read_delivery_limit_s(config: Mapping[str, Any]) -> float:
    """Return the timeout of a record, plus a grace; infinite if the user set 0."""
    names = ("message.timeout.ms", "delivery.timeout.ms")
    life_ms = next((int(config[name]) for name in names if name in config), _DEFAULT_LIFE_MS)
    return life_ms / 1_000 + GRACE_S if life_ms else float("inf")


def _parse_mark_time(time: datetime | str) -> int:
    """Return the instant that a user notes, in microseconds.

    Args:
        time: a datetime with a zone, or ISO-8601 text (without a zone it is UTC).

    Raises:
        ValueError: `time` is neither, or outside the years 1 to 9999.
    """
    if isinstance(time, str):
        return parse_instant(time)
    if not isinstance(time, datetime):
        raise ValueError(
            compose_message(
                f"{time!r} is not a time",
                "a datetime with a zone, or ISO-8601 text",
                "note_time(datetime.now(UTC))",
            )
        )
    if time.tzinfo is None:
        raise ValueError(
            compose_message(
                f"{time!r} has no zone, and this machine's must not decide",
                "a datetime with a zone",
                "add tzinfo=UTC",
            )
        )
    return check_instant(from_datetime(time))


def _require_idempotence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Switch idempotence on in the user's configuration, so that retries keep the order.

    Raises:
        OptionError: the user turned idempotence off.
    """
    if not is_idempotent(config):
        raise OptionError(
            "enable.idempotence",
            f"'{config['enable.idempotence']}'",
            "true: without it a retried record can land behind a mark",
            "leave it out",
        )
    return {**config, "enable.idempotence": True}
