"""A consumer over librdkafka's C interface; the compiled `native_reader.c` collects its records.

The compiled library is optional: without it, `MessageConsumer` does the same from confluent-kafka's
objects, slower. It calls the librdkafka inside confluent-kafka's wheel, and uses only functions and
structs that rdkafka.h documents.
"""

import ctypes
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka.cimpl
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.core.processes import NATIVE_VARIABLE, declare_function, load_compiled
from pyspark_timestream.kafka.client.bounded import close_with_timeout
from pyspark_timestream.kafka.client.consumer import MAX_BLOCK_RECORDS, ConsumerError, PollResult
from pyspark_timestream.kafka.client.errors import ClientLog
from pyspark_timestream.kafka.decode.records import METADATA, ColumnSet, RecordBlock
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

_LOG: Final = logging.getLogger(__name__)

NATIVE_READER_PATH: Final = Path(__file__).parent / "native" / "native_reader.so"
_SOURCE: Final = NATIVE_READER_PATH.with_suffix(".c")

LIBRDKAFKA_FUNCTIONS: Final = (
    "rd_kafka_consume_batch_queue",
    "rd_kafka_message_destroy",
    "rd_kafka_message_timestamp",
    "rd_kafka_message_headers",
    "rd_kafka_header_get_all",
    "rd_kafka_topic_name",
    "rd_kafka_message_errstr",
)
"""The functions that `native_open` receives, in this order."""


class _Buffer(ctypes.Structure):
    _fields_ = (("at", c_void_p), ("used", c_int64), ("room", c_int64))


class _NativeColumn(ctypes.Structure):
    _fields_ = (
        ("rows", c_int64),
        ("nulls", c_int64),
        ("starts", _Buffer),
        ("data", _Buffer),
        ("valid", _Buffer),
    )


class Block(ctypes.Structure):
    """The struct `block` of native_reader.c."""

    _fields_ = (
        ("rows", c_int64),
        ("reached", c_int64),
        ("inflated", c_int64),
        ("header_nulls", c_int64),
        ("names_beyond_ascii", c_int64),
        ("offsets", _Buffer),
        ("stamps", _Buffer),
        ("stamp_types", _Buffer),
        ("header_starts", _Buffer),
        ("header_valid", _Buffer),
        ("keys", _NativeColumn),
        ("values", _NativeColumn),
        ("header_names", _NativeColumn),
        ("header_values", _NativeColumn),
        ("problem", c_int32),
        ("problem_partition", c_int32),
        ("problem_offset", c_int64),
        ("problem_topic", c_char * 256),
        ("problem_text", c_char * 512),
    )


class NativeReader(NamedTuple):
    """The compiled library's functions; each releases the GIL while it runs."""

    open: Callable[..., int | None]
    seek: Callable[..., None]
    read: Callable[..., int]
    release: Callable[[int | None], None]
    live_buffers: Callable[[], int]
    close: Callable[[int], None]
    new_counter: Callable[..., int | None]
    read_counter: Callable[[int], int]
    free_counter: Callable[[int], None]


@functools.cache
def warn_of_slow_reading() -> None:
    """Warn, once in a driver, that the native reader is missing, unless the user chose that."""
    if (
        load_native_reader() is None
        and not NATIVE_READER_PATH.exists()
        and not os.environ.get(NATIVE_VARIABLE)
    ):
        _LOG.warning(
            "this installation has no native reader, so records take more of "
            "the processor to read; next step: install pyspark-timestream from a wheel for this "
            "platform, or from source where a C compiler is (cc), on the driver and the "
            "executors; TIMESTREAM_NATIVE=0 accepts it and ends this warning"
        )


@functools.cache
def load_native_reader(library: Path = NATIVE_READER_PATH) -> NativeReader | None:
    """Load the library, or return None; see `load_compiled`.

    Raises:
        RuntimeError: `TIMESTREAM_NATIVE` has another value, or is `1` without a usable library.
    """
    return load_compiled(library, _SOURCE, "the native reader", _declare_functions)


def _declare_functions(loaded: Any) -> NativeReader:
    if declare_function(loaded.native_block_size, c_int64)() != ctypes.sizeof(Block):
        raise ValueError(f"its block is not that of {_SOURCE.name}")
    limits = (c_int64, c_int64, c_int64, c_int64)
    return NativeReader(
        open=declare_function(loaded.native_open, c_void_p, c_void_p, c_void_p),
        seek=declare_function(loaded.native_aim, None, c_void_p, c_char_p, c_int32),
        read=declare_function(
            loaded.native_read, c_int, c_void_p, *limits, c_int32, c_uint32, POINTER(Block)
        ),
        release=declare_function(loaded.native_release, None, c_void_p),
        live_buffers=declare_function(loaded.native_live_buffers, c_int64),
        close=declare_function(loaded.native_close, None, c_void_p),
        new_counter=declare_function(loaded.native_count, c_void_p, c_void_p, c_void_p, c_void_p),
        read_counter=declare_function(loaded.native_counted, c_int64, c_void_p),
        free_counter=declare_function(loaded.native_uncount, None, c_void_p),
    )


def encode_columns(columns: ColumnSet) -> int:
    """Encode `columns` as the bits that native_reader.c expects."""
    flags = (columns.timestamps, columns.keys, columns.values, columns.headers)
    return sum(1 << bit for bit, is_wanted in enumerate(flags) if is_wanted)


# -- from C's buffers to Arrow's arrays, without a copy -------------------------------------------


class _OwnedBuffer:
    """Frees a buffer of the library when Arrow no longer uses it."""

    def __init__(self, native_reader: NativeReader, address: int) -> None:
        self._release = native_reader.release
        self._address = address

    def __del__(self) -> None:
        self._release(self._address)


def adopt_block(
    native_reader: NativeReader, block: Block, columns: ColumnSet
) -> RecordBlock | None:
    """Turn `block` into records and take over its buffers; return None if it is empty."""
    take = functools.partial(_adopt_buffer, native_reader)
    rows = block.rows
    offsets = _build_numbers(pa.int64(), rows, take(block.offsets))
    stamps = _build_numbers(pa.int64(), rows, take(block.stamps)) if columns.timestamps else None
    types = (
        _build_numbers(pa.int32(), rows, take(block.stamp_types)) if columns.timestamps else None
    )
    keys = _build_values(take, block.keys) if columns.keys else None
    values = _build_values(take, block.values) if columns.values else None
    headers = _build_headers(take, block) if columns.headers else None
    return (
        RecordBlock(
            offsets=offsets,
            timestamps_ms=stamps,
            timestamp_types=types,
            keys=keys,
            values=values,
            headers=headers,
        )
        if rows
        else None
    )


def _adopt_buffer(native_reader: NativeReader, buffer: _Buffer) -> pa.Buffer:
    if not buffer.at:
        return pa.py_buffer(b"")
    return pa.foreign_buffer(buffer.at, buffer.used, _OwnedBuffer(native_reader, buffer.at))


def _build_numbers(data_type: pa.DataType, rows: int, data: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(data_type, rows, [None, data], 0)


def _build_values(
    take: Callable[[_Buffer], pa.Buffer],
    column: _NativeColumn,
    data_type: pa.DataType | None = None,
) -> pa.Array:
    buffers = [take(column.valid), take(column.starts), take(column.data)]
    if not column.nulls:
        buffers[0] = None
    return pa.Array.from_buffers(data_type or pa.binary(), column.rows, buffers, column.nulls)


def _build_headers(take: Callable[[_Buffer], pa.Buffer], block: Block) -> pa.Array:
    if block.names_beyond_ascii:
        raw = _build_values(take, block.header_names)
        # Kafka's Java client replaces bytes that are not UTF-8, too.
        names = pa.array([name.decode(errors="replace") for name in raw.to_pylist()], pa.string())
    else:
        names = _build_values(take, block.header_names, pa.string())
    data_type = METADATA["headers"]
    pairs = pa.StructArray.from_arrays(
        [names, _build_values(take, block.header_values)], fields=list(data_type.value_type)
    )
    valid, starts = take(block.header_valid), take(block.header_starts)
    buffers = [valid if block.header_nulls else None, starts]
    return pa.Array.from_buffers(
        data_type, block.rows, buffers, block.header_nulls, children=[pairs]
    )


_RD_KAFKA_CONSUMER: Final = 1
_MAX_BLOCK_BYTES: Final = 64 * 1024 * 1024
"""A block ends above this size, so that large records cannot exhaust memory."""

_COMMIT_TIMEOUT_MS: Final = 10_000
_MAX_ERROR_TEXT_BYTES: Final = 1024


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


_PARTITION_LIST: Final = POINTER(_TopicPartitions)
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
    "assign": (c_int, c_void_p, _PARTITION_LIST),
    "topic_partition_list_new": (_PARTITION_LIST, c_int),
    "topic_partition_list_add": (POINTER(_TopicPartition), _PARTITION_LIST, c_char_p, c_int32),
    "topic_partition_list_destroy": (None, _PARTITION_LIST),
    "query_watermark_offsets": (
        c_int, c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int,
    ),
    "conf_interceptor_add_on_new": (c_int, c_void_p, c_char_p, c_void_p, c_void_p),
    "interceptor_add_on_response_received": (c_int, c_void_p, c_char_p, c_void_p, c_void_p),
    "clusterid": (c_void_p, c_void_p, c_int),
    "mem_free": (None, c_void_p, c_void_p),
    "commit_queue": (c_int, c_void_p, _PARTITION_LIST, c_void_p, c_void_p, c_void_p),
    "event_error": (c_int, c_void_p),
    "event_topic_partition_list": (_PARTITION_LIST, c_void_p),
    "event_destroy": (None, c_void_p),
    "err2str": (c_char_p, c_int),
    "consumer_close": (c_int, c_void_p),
    "destroy": (None, c_void_p),
}  # fmt: skip
"""NAME of a function rd_kafka_NAME -> the type of its result, then those of its arguments."""


@functools.cache
def _load_librdkafka() -> Any:
    # Looking a symbol up in a shared library also finds the symbols of libraries that it links to.
    library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class _Handles(NamedTuple):
    """The addresses that a consumer must release.

    Attributes:
        client: librdkafka's client.
        counter: the counter of the bytes that it receives.
        queue: the client's queue of records.
        records: the native reader of that queue.
    """

    client: int
    counter: int
    queue: int
    records: int


class NativeConsumer:
    """A `ColumnConsumer` over librdkafka and the native reader; for one thread at a time."""

    def __init__(
        self, config: Mapping[str, Any], native_reader: NativeReader, log: ClientLog
    ) -> None:
        self._kafka = _load_librdkafka()
        self._native_reader = native_reader
        handlers = _build_handlers(log)
        client, counter = _create_client(self._kafka, native_reader, config, handlers)
        queue = self._kafka.rd_kafka_queue_get_consumer(client)
        records = _open_native_reader(self._kafka, native_reader, queue)
        self._handles = _Handles(client, counter, queue, records)
        # Release everything even without `close`: librdkafka's threads must not outlive the objects
        # that they use.
        self._end = weakref.finalize(
            self, _release, os.getpid(), self._kafka, native_reader, self._handles, handlers
        )

    @property
    def _open_handles(self) -> _Handles:
        """The handles; it raises once the consumer is closed."""
        if not self._end.alive:
            raise RuntimeError("Consumer closed")
        return self._handles

    @property
    def received_bytes(self) -> int:
        """The bytes of all fetch answers so far; see `ColumnConsumer`."""
        return self._native_reader.read_counter(self._open_handles.counter)

    def seek(self, partition: Partition, offset: int) -> None:
        """See `ColumnConsumer`; a new assignment discards records fetched before."""
        handles = self._open_handles
        with _OffsetList(self._kafka, {partition: (offset, "")}) as offsets:
            self._check(self._kafka.rd_kafka_assign(handles.client, offsets))
        self._native_reader.seek(handles.records, partition.topic.encode(), partition.number)

    def pause(self) -> None:
        """See `ColumnConsumer`."""
        handles = self._open_handles
        self._check(self._kafka.rd_kafka_assign(handles.client, None))
        self._native_reader.seek(handles.records, b"", -1)
        # librdkafka keeps outdated messages until the queue is read.
        block = Block()
        self._native_reader.read(handles.records, 0, 1, 1, 1, 0, 0, ctypes.byref(block))
        adopt_block(self._native_reader, block, ColumnSet())

    def poll(
        self, offset_range: OffsetRange, position: int, columns: ColumnSet, wait_s: float
    ) -> PollResult:
        """See `ColumnConsumer`; stops at the first error, and the next call continues after it."""
        records, block = self._open_handles.records, Block()
        limits = (position, offset_range.end_exclusive, MAX_BLOCK_RECORDS, _MAX_BLOCK_BYTES)
        wait_ms = max(1, round(wait_s * 1000))
        bits = encode_columns(columns)
        code = self._native_reader.read(records, *limits, wait_ms, bits, ctypes.byref(block))
        if code == -1:
            raise MemoryError(
                f"{offset_range.partition}: no memory for the records at offset {position}"
            )
        if code:
            raise OverflowError(
                f"{offset_range.partition}: the records after offset {position} exceed 2 GiB in a "
                "column"
            )
        rows = adopt_block(self._native_reader, block, columns)
        return PollResult(rows, block.reached, self._read_errors(block), block.rows, block.inflated)

    def query_bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        """See `ColumnConsumer`."""
        client = self._open_handles.client
        low = c_int64()
        high = c_int64()
        ends = (ctypes.byref(low), ctypes.byref(high))
        address = (partition.topic.encode(), partition.number)
        query = self._kafka.rd_kafka_query_watermark_offsets
        self._check(query(client, *address, *ends, round(timeout_s * 1000)))
        return low.value, high.value

    def is_connected(self, timeout_s: float) -> bool:
        """See `ColumnConsumer`."""
        client = self._open_handles.client
        # A broker's first answer contains the cluster's id.
        cluster = self._kafka.rd_kafka_clusterid(client, round(timeout_s * 1000))
        if cluster:
            self._kafka.rd_kafka_mem_free(client, cluster)
        return bool(cluster)

    def commit_offsets(
        self, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        """See `ColumnConsumer`."""
        client = self._open_handles.client
        # A queue of its own: a late answer must not pass for the next commit's answer.
        answers = self._kafka.rd_kafka_queue_new(client)
        try:
            with _OffsetList(self._kafka, offsets) as positions:
                commit = self._kafka.rd_kafka_commit_queue
                code = commit(client, positions, answers, None, None)
            return (
                self._refuse_all(offsets, code) if code else self._read_refusals(answers, offsets)
            )
        finally:
            self._kafka.rd_kafka_queue_destroy(answers)

    def _read_refusals(
        self, queue: int, offsets: Mapping[Partition, tuple[int, str]]
    ) -> dict[Partition, KafkaError]:
        event = self._kafka.rd_kafka_queue_poll(queue, _COMMIT_TIMEOUT_MS)
        if not event:
            late = KafkaError(KafkaError._TIMED_OUT, f"no answer in {_COMMIT_TIMEOUT_MS // 1000} s")
            return dict.fromkeys(offsets, late)
        try:
            answers = self._kafka.rd_kafka_event_topic_partition_list(event)
            entries = [answers[0].elems[n] for n in range(answers[0].cnt)] if answers else []
            codes = {
                Partition(entry.topic.decode(), entry.partition): entry.err
                for entry in entries
                if entry.err
            }
            code = self._kafka.rd_kafka_event_error(event)
            if code and not codes:
                return self._refuse_all(offsets, code)
            return {partition: self._to_error(refusal) for partition, refusal in codes.items()}
        finally:
            self._kafka.rd_kafka_event_destroy(event)

    def _refuse_all(self, offsets: Iterable[Partition], code: int) -> dict[Partition, KafkaError]:
        return dict.fromkeys(offsets, self._to_error(code))

    def close(self) -> None:
        """See `ColumnConsumer`; closing twice is harmless."""
        self._end()

    def abandon(self) -> None:
        """See `ColumnConsumer`; the consumer is released once the call returns, if it ever does."""
        self._end.atexit = False

    def _read_errors(self, block: Block) -> tuple[ConsumerError, ...]:
        if not block.problem:
            return ()
        text = block.problem_text.decode(errors="replace")
        topic = block.problem_topic.decode(errors="replace") or None
        error = KafkaError(block.problem, text)
        return (ConsumerError(error, topic, block.problem_partition, block.problem_offset),)

    def _check(self, code: int) -> None:
        if code:
            raise KafkaException(self._to_error(code))

    def _to_error(self, code: int) -> KafkaError:
        return KafkaError(code, self._kafka.rd_kafka_err2str(code).decode())


class _OffsetList:
    """A list of partitions with offsets and metadata, valid inside the `with` block."""

    def __init__(self, kafka: Any, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        self._kafka = kafka
        self._list = kafka.rd_kafka_topic_partition_list_new(len(offsets))
        for partition, (offset, metadata) in offsets.items():
            add = kafka.rd_kafka_topic_partition_list_add
            entry = add(self._list, partition.topic.encode(), partition.number)[0]
            entry.offset = offset
            if metadata:
                entry.metadata, entry.metadata_size = _copy_for_librdkafka(metadata.encode())

    def __enter__(self) -> Any:
        return self._list

    def __exit__(self, *_: object) -> None:
        self._kafka.rd_kafka_topic_partition_list_destroy(self._list)


def _copy_for_librdkafka(text: bytes) -> tuple[int, int]:
    """Copy `text` to memory that librdkafka frees with its list; return the address and size."""
    # confluent-kafka reads committed metadata up to a zero byte, so the copy has one.
    allocate = ctypes.CDLL(None).malloc
    allocate.restype, allocate.argtypes = c_void_p, [c_size_t]
    copy = allocate(len(text) + 1)
    if not copy:
        raise MemoryError("no memory for the metadata of an offset")
    ctypes.memmove(copy, text + b"\0", len(text) + 1)
    return copy, len(text) + 1


def _build_handlers(log: ClientLog) -> tuple[Any, Any]:
    """Build the callbacks for errors and log lines, which must live as long as the client."""

    def note_error(_client: int, code: int, text: bytes | None, _opaque: int) -> None:
        # "All brokers down" adds nothing to the reason of each broker.
        if code != KafkaError._ALL_BROKERS_DOWN:
            log.note_error(code, (text or b"").decode(errors="replace"))

    def note_line(_client: int, level: int, facility: bytes | None, text: bytes | None) -> None:
        log.log_syslog(
            level, *((field or b"").decode(errors="replace") for field in (facility, text))
        )

    return _ERROR_HANDLER(note_error), _LOG_HANDLER(note_line)


def _create_client(
    kafka: Any, native_reader: NativeReader, config: Mapping[str, Any], handlers: tuple[Any, Any]
) -> tuple[int, int]:
    """Create a client, and the counter of the bytes that it receives."""
    text = ctypes.create_string_buffer(_MAX_ERROR_TEXT_BYTES)
    conf = kafka.rd_kafka_conf_new()
    for name, value in config.items():
        value_text = str(value).lower() if isinstance(value, bool) else str(value)
        if kafka.rd_kafka_conf_set(
            conf, name.encode(), value_text.encode(), text, _MAX_ERROR_TEXT_BYTES
        ):
            kafka.rd_kafka_conf_destroy(conf)
            raise _configuration_error(text)
    kafka.rd_kafka_conf_set_error_cb(conf, handlers[0])
    # A user who sets librdkafka's own debug gets its output unchanged.
    is_logged = "debug" not in config
    if is_logged:
        # Log lines go through the queue, so that librdkafka's threads never call Python.
        kafka.rd_kafka_conf_set(conf, b"log.queue", b"true", text, _MAX_ERROR_TEXT_BYTES)
        kafka.rd_kafka_conf_set_log_cb(conf, handlers[1])
    functions = ("conf_interceptor_add_on_new", "interceptor_add_on_response_received")
    counter = native_reader.new_counter(
        *(_address_of(kafka, f"rd_kafka_{name}") for name in functions), conf
    )
    if not counter:
        kafka.rd_kafka_conf_destroy(conf)
        raise MemoryError("no memory for a Kafka consumer")
    client = kafka.rd_kafka_new(_RD_KAFKA_CONSUMER, conf, text, _MAX_ERROR_TEXT_BYTES)
    if not client:
        kafka.rd_kafka_conf_destroy(conf)
        native_reader.free_counter(counter)
        raise _configuration_error(text)
    if is_logged:
        kafka.rd_kafka_set_log_queue(client, None)
    kafka.rd_kafka_poll_set_consumer(client)
    return int(client), int(counter)


def _address_of(kafka: Any, name: str) -> int:
    return ctypes.cast(getattr(kafka, name), c_void_p).value or 0


def _configuration_error(text: Any) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))


def _open_native_reader(kafka: Any, native_reader: NativeReader, queue: int) -> int:
    table = (c_void_p * len(LIBRDKAFKA_FUNCTIONS))(
        *(_address_of(kafka, name) for name in LIBRDKAFKA_FUNCTIONS)
    )
    records = native_reader.open(table, queue)
    if not records:
        raise MemoryError("no memory for a Kafka consumer")
    return records


def _release(
    owner: int, kafka: Any, native_reader: NativeReader, handles: _Handles, handlers: Any
) -> None:
    """Release everything; a forked child has the handles but not librdkafka's threads."""
    if os.getpid() != owner:
        return
    native_reader.close(handles.records)
    kafka.rd_kafka_queue_destroy(handles.queue)
    close_with_timeout(functools.partial(_close_client, kafka, native_reader, handles, handlers))


def _close_client(
    kafka: Any, native_reader: NativeReader, handles: _Handles, _handlers: Any
) -> None:
    """Close the client, which may call the handlers until then; `_handlers` keeps them alive."""
    kafka.rd_kafka_consumer_close(handles.client)
    kafka.rd_kafka_destroy(handles.client)
    native_reader.free_counter(handles.counter)
