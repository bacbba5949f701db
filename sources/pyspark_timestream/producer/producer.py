"""A Kafka producer that says how far its time has come, by marks among its records (semantics 4.7).

    with PunctuatedProducer({"bootstrap.servers": "localhost:9092"}, "trips", "depot-7") as trips:
        trips.produce(value, key=station)
        trips.note_time(now)  # nothing before `now` will follow

Nothing produced before a mark can land behind it, whichever thread produced it: marks are sent
when all of it is in the log, and meanwhile no other thread can produce. A mark that has returned
is in the log.
"""

import threading
import time
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException, Producer

from pyspark_timestream.connector.options import OptionError, without_secrets
from pyspark_timestream.errors import DeliveryFailed
from pyspark_timestream.kafka.client.broker_errors import is_refused, no_answer
from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.config import logged_client
from pyspark_timestream.kafka.client.retry import Patience, is_retriable
from pyspark_timestream.producer.delivery import DeliveryReports, Report
from pyspark_timestream.producer.gate import Gate
from pyspark_timestream.producer.marks import (
    Headers,
    Writer,
    client_settings,
    noted_us,
    partitions_to_mark,
)
from pyspark_timestream.producer.transaction import Transaction

__all__ = ["PunctuatedProducer"]

_REQUEST_S: Final = 30.0
_MS_US: Final = 1_000


class PunctuatedProducer:
    """Records and marks of one writer into one topic; all threads of a process may share it.

    Args:
        config: of `confluent_kafka.Producer`; idempotence is on. With a `transactional.id`,
            `commit` takes the place of `note_time`. It is the program's own: nothing that loads
            code is refused here, as it is in options.
        topic: where records and marks go; it must exist.
        writer_id: the writer's name, the same after a restart.
        cti_header: the reader's option `ctiHeader`.
        auto_note_time: note the wall clock every so many seconds, for records whose event time is
            their record timestamp, and that are produced as they happen.

    Raises:
        OptionError: an argument that cannot work.
    """

    def __init__(
        self,
        config: dict[str, Any],
        topic: str,
        writer_id: str,
        cti_header: str = "cti",
        auto_note_time: float | None = None,
    ) -> None:
        self._topic, self._config = topic, config
        self._writer = Writer(writer_id, cti_header)
        self._transactional = bool(config.get("transactional.id"))
        self._check_interval(auto_note_time)
        self._log = ClientLog(config)
        self._reports = DeliveryReports(writer_id, topic, config, self._log)
        self._gate = Gate()
        self._last_us: int | None = None
        self._closed = False
        try:
            self._client = logged_client(Producer, client_settings(config), self._log)
        except KafkaException as error:
            raise OptionError(
                "config",
                self._said(error),
                "librdkafka's configuration of a producer",
                "correct the name or the value",
            ) from None
        self._transaction = Transaction(self._client, topic, self._said, self._transactional)
        self._ended = threading.Event()
        self._clock: threading.Thread | None = None
        if auto_note_time is not None:
            self._clock = threading.Thread(
                target=self._note_the_clock, args=(auto_note_time,), daemon=True
            )
            self._clock.start()

    def _check_interval(self, seconds: float | None) -> None:
        if seconds is not None and (self._transactional or not 0 < seconds < threading.TIMEOUT_MAX):
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
        """Queue one record, as `confluent_kafka.Producer.produce` does, waiting while it is full.

        With transactions the first record after a commit begins the next one.

        Raises:
            DeliveryFailed: an earlier record or mark could not be delivered, or this one cannot.
            RuntimeError: the producer is closed.
        """
        report = self._reports.heard_by(on_delivery or self._config.get("on_delivery"))
        with self._gate.passing():
            self._check_usable()
            self._transaction.begin()
            self._send(
                value,
                key=key,
                partition=partition,
                on_delivery=report,
                timestamp=timestamp,
                headers=headers,
            )
            self._client.poll(0)

    def flush(self) -> None:
        """Return when everything that was produced is in the log; raises as `note_time` does."""
        self._client.flush()
        self._reports.raise_failure()

    # -- time -------------------------------------------------------------------------------------

    def note_time(self, t: datetime | str) -> None:
        """Promise that no record with a time before `t` will follow, on every partition.

        Returns when the marks are in the log, behind everything that was produced before them.

        Args:
            t: a datetime with a zone, or ISO-8601 text. A reader ignores one below an earlier.

        Raises:
            DeliveryFailed: a record or a mark could not be delivered; where it was a record, no
                mark was sent.
            BrokerUnreachable: the broker did not say which partitions there are.
            LookupError: the topic does not exist.
            RuntimeError: the producer is closed or transactional.
            ValueError: `t` is no time.
        """
        if self._transactional:
            raise RuntimeError(
                "note_time() is refused with 'transactional.id', because a mark must not be "
                "visible before its records; next step: commit(t)"
            )
        at_us = noted_us(t)
        with self._gate.closed():
            self._note(at_us)

    def _note(self, at_us: int) -> None:
        self._check_usable()
        self.flush()
        self._mark(self._writer.mark(at_us))
        self._last_us = at_us
        self.flush()

    def _mark(self, headers: Headers) -> None:
        for partition in self._partitions():
            self._send(None, partition=partition, headers=headers, on_delivery=self._reports.hear)

    def _partitions(self) -> range:
        patience = Patience(_REQUEST_S)
        while True:
            try:
                found = self._client.list_topics(self._topic, timeout=patience.request_s).topics
            except KafkaException as error:
                self._client.poll(0)
                heard = self._log.complaints(patience.spent_s + 1)
                is_final = is_refused(heard, patience.spent_s) or not is_retriable(error.args[0])
                if is_final or not patience.has_more():
                    wanted = f"the partitions of topic '{self._topic}' ({self._said(error)})"
                    spent_s = patience.spent_s
                    raise no_answer(self._config, heard, spent_s, wanted, "") from None
            else:
                return partitions_to_mark(
                    self._topic, {name: len(t.partitions) for name, t in found.items()}
                )

    def _note_the_clock(self, seconds: float) -> None:
        while not self._ended.wait(seconds):
            try:
                with self._gate.closed():
                    if not self._closed:
                        # Read where nobody produces, and as coarse as record timestamps are: so no
                        # record that the client stamps itself is ever late.
                        self._note(time.time_ns() // 1_000_000 * _MS_US)
            except Exception as error:
                self._reports.fail(f"auto_note_time stopped: {error}")
                return

    # -- transactions -----------------------------------------------------------------------------

    def commit(self, t: datetime | str | None = None) -> None:
        """Commit the open transaction, with `t` noted inside it: seen together or not at all.

        Raises:
            DeliveryFailed: it could not be committed; `abort()` it and produce it again.
            RuntimeError: there is no `transactional.id`, or the producer is closed.
            ValueError: `t` is no time.
        """
        if not self._transactional:
            raise RuntimeError(
                "commit() needs 'transactional.id' in config; next step: add it, or note_time(t)"
            )
        at_us = None if t is None else noted_us(t)
        with self._gate.closed():
            self._check_usable()
            if at_us is not None:
                self._transaction.begin()
                self.flush()
                self._mark(self._writer.mark(at_us))
            self.flush()
            self._transaction.commit()
            self._last_us = self._last_us if at_us is None else at_us

    def abort(self) -> None:
        """Take back everything that was produced since the last commit."""
        with self._gate.closed():
            self._transaction.abort()
            # What was not sent is reported as failed; it was given up on purpose.
            self._reports.forget()

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the writer: its marks hold no reader back any longer. A second call does nothing.

        Raises:
            DeliveryFailed: a record or a mark could not be delivered.
            RuntimeError: a transaction is open.
        """
        self._stop_clock()
        with self._gate.closed():
            if self._closed:
                return
            if self._transaction.is_open:
                raise RuntimeError(
                    "close() with an open transaction; next step: commit() or abort() it first"
                )
            try:
                self._transaction.begin()
                self.flush()
                self._mark(self._writer.closing(self._last_us))
                self.flush()
                self._transaction.commit()
            finally:
                self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error without a word, so that the writer still holds readers back."""
        if error is None:
            return self.close()
        self._stop_clock()
        with self._gate.closed():
            if self._transaction.is_open:
                self.abort()
            self._closed = True
            self._client.flush(_REQUEST_S)

    def _stop_clock(self) -> None:
        self._ended.set()
        if self._clock is not None and self._clock is not threading.current_thread():
            self._clock.join()

    # -- the client -------------------------------------------------------------------------------

    def _send(self, value: bytes | str | None, **record: Any) -> None:
        while True:
            try:
                self._client.produce(self._topic, value, **record)
                return
            except BufferError:
                self._client.poll(0.1)
            except KafkaException as error:
                raise DeliveryFailed(self._reports.undelivered(self._said(error))) from None

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError("the producer is closed; next step: make a new one")
        self._reports.raise_failure()

    def _said(self, error: KafkaException) -> str:
        return without_secrets(str(error.args[0].str()), self._config)
