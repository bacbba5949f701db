"""A consumer over librdkafka's own C interface, whose records the native gather takes.

librdkafka is the one inside confluent-kafka's wheel; only functions and structs that rdkafka.h
documents are used. `NativeConsumer` does what `kafka_messages.MessageConsumer` does, faster.
"""

import ctypes
import functools
import os
import weakref
from collections.abc import Iterable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, Final

import confluent_kafka.cimpl
from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.config import let_go
from pyspark_timestream.kafka.client.consumer import BLOCK_RECORDS, Problem, Taken
from pyspark_timestream.kafka.client.native.library import (
    GATHERED,
    Block,
    Gather,
    block_of,
    need_bits,
)
from pyspark_timestream.kafka.decode.records import Needs
from pyspark_timestream.kafka.ranges import Partition, Range

__all__ = ["NativeConsumer"]

_CONSUMER: Final = 1
_BLOCK_BYTES: Final = 64 * 1024 * 1024
"""A block is closed above this, so that large records cannot fill the memory."""

_COMMIT_TIMEOUT_MS: Final = 10_000
_TEXT: Final = 1024


class _TopicPartition(ctypes.Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("_private", c_void_p),
    )


class _TopicPartitions(ctypes.Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("cnt", c_int), ("size", c_int), ("elems", POINTER(_TopicPartition)))


_LIST: Final = POINTER(_TopicPartitions)
_ERROR_HANDLER: Final = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
_LOG_HANDLER: Final = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)
_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "conf_new": (c_void_p,),
    "conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "conf_destroy": (None, c_void_p),
    "conf_set_error_cb": (None, c_void_p, _ERROR_HANDLER),
    "conf_set_log_cb": (None, c_void_p, _LOG_HANDLER),
    "set_log_queue": (c_int, c_void_p, c_void_p),
    "new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "poll_set_consumer": (c_int, c_void_p),
    "queue_get_consumer": (c_void_p, c_void_p),
    "queue_new": (c_void_p, c_void_p),
    "queue_destroy": (None, c_void_p),
    "queue_poll": (c_void_p, c_void_p, c_int),
    "assign": (c_int, c_void_p, _LIST),
    "topic_partition_list_new": (_LIST, c_int),
    "topic_partition_list_add": (POINTER(_TopicPartition), _LIST, c_char_p, c_int32),
    "topic_partition_list_destroy": (None, _LIST),
    "query_watermark_offsets": (
        c_int, c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int,
    ),
    "conf_interceptor_add_on_new": (c_int, c_void_p, c_char_p, c_void_p, c_void_p),
    "interceptor_add_on_response_received": (c_int, c_void_p, c_char_p, c_void_p, c_void_p),
    "clusterid": (c_void_p, c_void_p, c_int),
    "mem_free": (None, c_void_p, c_void_p),
    "commit_queue": (c_int, c_void_p, _LIST, c_void_p, c_void_p, c_void_p),
    "event_error": (c_int, c_void_p),
    "event_topic_partition_list": (_LIST, c_void_p),
    "event_destroy": (None, c_void_p),
    "err2str": (c_char_p, c_int),
    "consumer_close": (c_int, c_void_p),
    "destroy": (None, c_void_p),
}  # fmt: skip
"""rd_kafka_...: the result's type, then the arguments'."""


@functools.cache
def _librdkafka() -> Any:
    # A dynamic library's symbols include those of the libraries that it is linked with.
    library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class NativeConsumer:
    """A `ColumnConsumer` over librdkafka and the native gather; for one thread at a time.

    Args:
        config: librdkafka's configuration; truth values and numbers are written as it wants them.
        gather: the compiled library.
        log: hears the client's errors and log lines, whenever records are asked for.

    Raises:
        KafkaException: librdkafka refuses `config`.
    """

    def __init__(self, config: Mapping[str, Any], gather: Gather, log: ClientLog) -> None:
        self._kafka, self._gather = _librdkafka(), gather
        handlers = _handlers(log)
        client, self._counter = _client(self._kafka, gather, config, handlers)
        queue = self._kafka.rd_kafka_queue_get_consumer(client)
        self._handles = (_opened(self._kafka, gather, queue), client)
        # Also where nobody closes it: librdkafka's threads must not outlive what they use.
        kept = (self._counter, handlers)
        ending = (os.getpid(), self._kafka, gather, queue, *self._handles, kept)
        self._end = weakref.finalize(self, _ended, *ending)

    @property
    def _open(self) -> tuple[int, int]:
        """The gather's handle and librdkafka's; what is closed has none."""
        if not self._end.alive:
            raise RuntimeError("Consumer closed")
        return self._handles

    @property
    def received(self) -> int:
        """See `ColumnConsumer`."""
        _ = self._open
        return self._gather.read_counter(self._counter)

    def aim(self, partition: Partition, offset: int) -> None:
        """See `ColumnConsumer`; a new assignment discards what was fetched for the one before."""
        records, client = self._open
        with _Offsets(self._kafka, {partition: (offset, "")}) as offsets:
            self._demand(self._kafka.rd_kafka_assign(client, offsets))
        self._gather.aim(records, partition.topic.encode(), partition.number)

    def rest(self) -> None:
        """See `ColumnConsumer`."""
        records, client = self._open
        self._demand(self._kafka.rd_kafka_assign(client, None))
        self._gather.aim(records, b"", -1)
        # librdkafka keeps what is out of date until somebody takes from the queue.
        block = Block()
        self._gather.read(records, 0, 1, 1, 1, 0, 0, ctypes.byref(block))
        block_of(self._gather, block, Needs())

    def take(self, span: Range, position: int, needs: Needs, wait_s: float) -> Taken:
        """See `ColumnConsumer`; it brings at most one problem, and the next call what follows."""
        (records, _), block = self._open, Block()
        limits = (position, span.end_exclusive, BLOCK_RECORDS, _BLOCK_BYTES)
        wait_ms, bits = max(1, round(wait_s * 1000)), need_bits(needs)
        said = self._gather.read(records, *limits, wait_ms, bits, ctypes.byref(block))
        if said == -1:
            raise MemoryError(f"{span.partition}: no memory for the records at offset {position}")
        if said:
            raise OverflowError(
                f"{span.partition}: the records after offset {position} exceed 2 GiB in a column"
            )
        rows = block_of(self._gather, block, needs)
        return Taken(rows, block.reached, self._problems(block), block.rows, block.inflated)

    def existing(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        """See `ColumnConsumer`."""
        (_, client), low, high = self._open, c_int64(), c_int64()
        ends = (ctypes.byref(low), ctypes.byref(high))
        place = (partition.topic.encode(), partition.number)
        query = self._kafka.rd_kafka_query_watermark_offsets
        self._demand(query(client, *place, *ends, round(timeout_s * 1000)))
        return low.value, high.value

    def is_connected(self, timeout_s: float) -> bool:
        """See `ColumnConsumer`."""
        _, client = self._open
        # Which a broker's first answer names.
        cluster = self._kafka.rd_kafka_clusterid(client, round(timeout_s * 1000))
        if cluster:
            self._kafka.rd_kafka_mem_free(client, cluster)
        return bool(cluster)

    def commit_offsets(
        self, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        """See `ColumnConsumer`."""
        _, client = self._open
        # Its own queue: an answer that came too late would pass for that of the next commit.
        answers = self._kafka.rd_kafka_queue_new(client)
        try:
            with _Offsets(self._kafka, offsets) as wanted:
                commit = self._kafka.rd_kafka_commit_queue
                code = commit(client, wanted, answers, None, None)
            return self._all_refused(offsets, code) if code else self._refusals(answers, offsets)
        finally:
            self._kafka.rd_kafka_queue_destroy(answers)

    def _refusals(
        self, queue: int, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        """What a commit's answer refuses."""
        event = self._kafka.rd_kafka_queue_poll(queue, _COMMIT_TIMEOUT_MS)
        if not event:
            late = KafkaError(KafkaError._TIMED_OUT, f"no answer in {_COMMIT_TIMEOUT_MS // 1000} s")
            return dict.fromkeys(offsets, late)
        try:
            answers = self._kafka.rd_kafka_event_topic_partition_list(event)
            parts = [answers[0].elems[n] for n in range(answers[0].cnt)] if answers else []
            codes = {Partition(p.topic.decode(), p.partition): p.err for p in parts if p.err}
            code = self._kafka.rd_kafka_event_error(event)
            if code and not codes:
                return self._all_refused(offsets, code)
            return {part: self._error_of(each) for part, each in codes.items()}
        finally:
            self._kafka.rd_kafka_event_destroy(event)

    def _all_refused(self, offsets: Iterable[Partition], code: int) -> dict[Partition, KafkaError]:
        return dict.fromkeys(offsets, self._error_of(code))

    def close(self) -> None:
        """See `ColumnConsumer`; closing twice is harmless."""
        self._end()

    def _problems(self, block: Block) -> tuple[Problem, ...]:
        if not block.problem:
            return ()
        text = block.problem_text.decode(errors="replace")
        topic = block.problem_topic.decode(errors="replace") or None
        error = KafkaError(block.problem, text)
        return (Problem(error, topic, block.problem_partition, block.problem_offset),)

    def _demand(self, code: int) -> None:
        if code:
            raise KafkaException(self._error_of(code))

    def _error_of(self, code: int) -> KafkaError:
        return KafkaError(code, self._kafka.rd_kafka_err2str(code).decode())


class _Offsets:
    """A list of partitions with offsets and metadata, for as long as the `with` block."""

    def __init__(self, kafka: Any, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        self._kafka = kafka
        self._list = kafka.rd_kafka_topic_partition_list_new(len(offsets))
        for part, (offset, metadata) in offsets.items():
            add = kafka.rd_kafka_topic_partition_list_add
            entry = add(self._list, part.topic.encode(), part.number)[0]
            entry.offset = offset
            if metadata:
                entry.metadata, entry.metadata_size = _copied(metadata.encode())

    def __enter__(self) -> Any:
        return self._list

    def __exit__(self, *_: object) -> None:
        self._kafka.rd_kafka_topic_partition_list_destroy(self._list)


def _copied(text: bytes) -> tuple[int, int]:
    """A copy that librdkafka may free with the list that it is in, and its size.

    confluent-kafka reads what is committed up to a zero, which nobody adds: it is committed too.
    """
    allocate = ctypes.CDLL(None).malloc
    allocate.restype, allocate.argtypes = c_void_p, [c_size_t]
    place = allocate(len(text) + 1)
    if not place:
        raise MemoryError("no memory for the metadata of an offset")
    ctypes.memmove(place, text + b"\0", len(text) + 1)
    return place, len(text) + 1


def _handlers(log: ClientLog) -> tuple[Any, Any]:
    """What librdkafka calls with errors and log lines; it must live as long as the client."""

    def note_error(_client: int, code: int, text: bytes | None, _opaque: int) -> None:
        # That all brokers are down is said beside what each of them said.
        if code != KafkaError._ALL_BROKERS_DOWN:
            log.note_error(code, (text or b"").decode(errors="replace"))

    def note_line(_client: int, level: int, facility: bytes | None, text: bytes | None) -> None:
        log.log_syslog(
            level, *((each or b"").decode(errors="replace") for each in (facility, text))
        )

    return _ERROR_HANDLER(note_error), _LOG_HANDLER(note_line)


def _client(
    kafka: Any, gather: Gather, config: Mapping[str, Any], handlers: tuple[Any, Any]
) -> tuple[int, int]:
    """A client, and the counter of what it receives."""
    text = ctypes.create_string_buffer(_TEXT)
    conf = kafka.rd_kafka_conf_new()
    for name, value in config.items():
        written = str(value).lower() if isinstance(value, bool) else str(value)
        if kafka.rd_kafka_conf_set(conf, name.encode(), written.encode(), text, _TEXT):
            kafka.rd_kafka_conf_destroy(conf)
            raise _refused(text)
    kafka.rd_kafka_conf_set_error_cb(conf, handlers[0])
    # Who asks for librdkafka's own trace gets all of it, where it comes out.
    is_logged = "debug" not in config
    if is_logged:
        # Through the queue, so that no thread of librdkafka's ever calls Python.
        kafka.rd_kafka_conf_set(conf, b"log.queue", b"true", text, _TEXT)
        kafka.rd_kafka_conf_set_log_cb(conf, handlers[1])
    functions = ("conf_interceptor_add_on_new", "interceptor_add_on_response_received")
    counter = gather.new_counter(*(_address(kafka, f"rd_kafka_{name}") for name in functions), conf)
    if not counter:
        kafka.rd_kafka_conf_destroy(conf)
        raise MemoryError("no memory for a Kafka consumer")
    client = kafka.rd_kafka_new(_CONSUMER, conf, text, _TEXT)
    if not client:
        kafka.rd_kafka_conf_destroy(conf)
        gather.free_counter(counter)
        raise _refused(text)
    if is_logged:
        kafka.rd_kafka_set_log_queue(client, None)
    kafka.rd_kafka_poll_set_consumer(client)
    return int(client), int(counter)


def _address(kafka: Any, name: str) -> int:
    """Where a function of librdkafka's is, for C to call it."""
    return ctypes.cast(getattr(kafka, name), c_void_p).value or 0


def _refused(text: Any) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))


def _opened(kafka: Any, gather: Gather, queue: int) -> int:
    table = (c_void_p * len(GATHERED))(*(_address(kafka, name) for name in GATHERED))
    records = gather.open(table, queue)
    if not records:
        raise MemoryError("no memory for a Kafka consumer")
    return records


def _ended(
    owner: int,
    kafka: Any,
    gather: Gather,
    queue: int,
    records: int,
    client: int,
    kept: tuple[int, Any],
) -> None:
    """Give all back; a forked child has the handles but not librdkafka's threads."""
    if os.getpid() != owner:
        return
    gather.close(records)
    kafka.rd_kafka_queue_destroy(queue)

    let_go(functools.partial(_close, kafka, gather, client, *kept))


def _close(kafka: Any, gather: Gather, client: int, counter: int, _handlers: Any) -> None:
    """Close the client; until then it may call the handlers, so they are held by an argument."""
    kafka.rd_kafka_consumer_close(client)
    kafka.rd_kafka_destroy(client)
    gather.free_counter(counter)
