"""The native reader and confluent-kafka's messages on a real broker: the same columns and errors.

Each test reads a topic through both, with a reader of its own, as the tasks of a batch would.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from broker import Broker, Record, unique_name
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType
from harness import JOBS
from lengths import repetitions
from native_soak import SANITIZE, sanitized_environment
from spoiling_proxy import CRC_AT, batches, spoiling_proxy

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.client import range_reader
from pyspark_timestream.kafka.client.native_consumer import (
    NATIVE_READER_PATH,
    NativeConsumer,
    NativeReader,
    load_native_reader,
)
from pyspark_timestream.kafka.client.range_reader import CommittedClock, Prefetcher, RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not NATIVE_READER_PATH.exists(), reason="the native reader is not built here"
    ),
]

EVERYTHING = ColumnSet(True, True, True, True)
PATHS = ("messages", "native")
ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build_native.py"
SOAK_SECONDS = os.environ.get("SOAK_SECONDS", str(repetitions(12, 120)))
"""`make soak-native` sets half an hour."""

FUZZ_SECONDS = str(max(5, int(SOAK_SECONDS) // 10))


@pytest.fixture(scope="module")
def native_reader() -> Iterator[NativeReader]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMESTREAM_NATIVE", "1")
        load_native_reader.cache_clear()
        made = load_native_reader()
    load_native_reader.cache_clear()
    assert made is not None
    yield made
    assert made.live_buffers() == 0


class Paths:
    """Readers of both paths with the same options."""

    def __init__(self, broker: Broker, native_reader: NativeReader) -> None:
        self.broker, self.native_reader = broker, native_reader

    def options(self, **more: str) -> KafkaOptions:
        given = {name.replace("__", "."): value for name, value in more.items()}
        fixed = {"kafka.bootstrap.servers": self.broker.bootstrap, "subscribe": "x"}
        return read_kafka_options({**fixed, **given})

    @contextmanager
    def reader(self, path: str, **options: str) -> Iterator[RangeReader]:
        with pytest.MonkeyPatch.context() as patch:
            chosen = self.native_reader if path == "native" else None
            patch.setattr(range_reader, "load_native_reader", lambda: chosen)
            reader = RangeReader(self.options(**options), unique_name("native"))
            assert isinstance(reader._consumer._client.direct, NativeConsumer) == (path == "native")
            try:
                yield reader
            finally:
                reader.close()

    def columns(
        self, span: OffsetRange, needs: ColumnSet = EVERYTHING, **options: str
    ) -> list[Any]:
        """Each path's columns of `span`, or its error."""
        found: list[Any] = []
        for path in PATHS:
            with self.reader(path, **options) as reader:
                try:
                    found.append(joined(list(reader.read(span, needs))))
                except Exception as error:
                    found.append((type(error).__name__, str(error)))
        return found

    def same(self, topic: str, end: int, start: int = 0, **options: str) -> dict[str, list[Any]]:
        """The records of partition 0 of `topic` by both paths."""
        one, other = self.columns(OffsetRange(Partition(topic, 0), start, end), **options)
        assert one == other
        assert isinstance(one, dict), one
        return one


def joined(blocks: list[RecordBlock]) -> dict[str, list[Any]]:
    """Column -> values; every array is checked to be well formed."""
    found: dict[str, list[Any]] = {}
    for block in blocks:
        for name, column in block._asdict().items():
            if column is not None:
                column.validate(full=True)
                found.setdefault(name, []).extend(column.to_pylist())
    return found


@pytest.fixture
def paths(broker: Broker, native_reader: NativeReader) -> Paths:
    return Paths(broker, native_reader)


Topic = Callable[..., str]


def test_records_of_every_kind_are_the_same(paths: Paths, topic: Topic) -> None:
    name, stamped = topic(), topic(message_timestamp_type="LogAppendTime")
    sizes = [0, 1, 7, 8, 9, 1000, 900_000]
    records = [
        Record(None, None, 0, 1),
        Record(b"", b"", 0, 2, [("", b""), ("", None)]),
        Record(None, b"k", 0, 3, [("größe", b"\xff\x00"), ("cti", b"1"), ("cti", None)]),
        *(Record(b"\x00" * size, b"x" * (size % 11), 0, 4 + size) for size in sizes),
        *(
            Record(b"v%d" % n, None if n % 3 else b"k", 0, 1 + n, [("n", b"%d" % n)])
            for n in range(50)
        ),
    ]
    for each in (name, stamped):
        paths.broker.produce(each, records)
    found = paths.same(name, len(records))
    assert found["offsets"] == list(range(len(records)))
    assert found["values"] == [record.value for record in records]
    assert found["keys"] == [record.key for record in records]
    assert found["timestamps_ms"] == [record.timestamp_ms for record in records]
    assert set(found["timestamp_types"]) == {0}
    assert found["headers"][0] is None
    assert [(h["key"], h["value"]) for h in found["headers"][2]] == records[2].headers
    assert set(paths.same(stamped, len(records))["timestamp_types"]) == {1}


def test_timestamps_that_are_no_times_are_the_same(paths: Paths, topic: Topic) -> None:
    name = topic(message_timestamp_after_max_ms=2**63 - 1)
    stamps = [-1, -5000, 1, FINAL_US // 1000 + 1, 2**63 - 1, -(2**63)]
    paths.broker.produce(name, [Record(b"v", None, 0, stamp) for stamp in stamps])
    found = paths.same(name, len(stamps))
    assert found["timestamps_ms"] == stamps
    assert set(found["timestamp_types"]) == {0}


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_ranges_may_begin_and_end_inside_a_batch(paths: Paths, topic: Topic, codec: str) -> None:
    name = topic()
    producer = paths.broker.producer(compression_type=codec, linger_ms=100)
    for number in range(3_000):
        producer.produce(name, b"%d" % number, partition=0)
    producer.flush()
    for start, end in [(0, 1), (17, 2_983), (2_999, 3_000)]:
        found = paths.same(name, end, start)
        assert found["values"] == [b"%d" % number for number in range(start, end)]


def test_only_the_needed_columns_are_read(paths: Paths, topic: Topic) -> None:
    name = topic()
    paths.broker.produce(name, [Record(b"v", b"k", 0, 5, [("h", b"1")])])
    for needs in (
        ColumnSet(),
        ColumnSet(values=True),
        ColumnSet(timestamps=True),
        ColumnSet(headers=True),
    ):
        one, other = paths.columns(OffsetRange(Partition(name, 0), 0, 1), needs)
        assert one == other
        assert len(one) == 1 + needs.timestamps + sum(needs)


def test_aborted_records_are_passed_over_and_a_range_may_end_in_a_gap(
    paths: Paths, topic: Topic
) -> None:
    name = topic()
    paths.broker.produce(name, [Record(b"before")])
    producer = paths.broker.producer(transactional_id=name)
    producer.init_transactions()
    for text in (b"aborted", b"committed", b"aborted"):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(name, text + b"%d" % number, partition=0)
        producer.flush()
        (producer.commit_transaction if text == b"committed" else producer.abort_transaction)()
    paths.broker.wait_for_markers(name)
    # One record, then three records and a marker for each of three transactions.
    found = paths.same(name, 13)
    assert found["offsets"] == [0, 5, 6, 7]
    assert paths.same(name, 13, 9) == {}
    loud = paths.same(name, 13, kafka__isolation__level="read_uncommitted")
    assert loud["offsets"] == [0, 1, 2, 3, 5, 6, 7, 9, 10, 11]


def test_compacted_records_are_passed_over_and_a_range_may_end_where_one_was(
    paths: Paths, topic: Topic
) -> None:
    settings = {"segment_ms": 1_000, "min_cleanable_dirty_ratio": 0.01}
    name = topic(cleanup_policy="compact", **settings)
    # A batch that is thinned out, one that is emptied, then segments of their own: the latest one
    # is never compacted, and the one before keeps the last of each key.
    for hour, keys in enumerate([b"axaya", b"a", b"a", b"a"]):
        stamp = 1_700_000_000_000 + 3_600_000 * max(0, hour - 1)
        records = [Record(b"%d" % hour, keys[n : n + 1], 0, stamp) for n in range(len(keys))]
        paths.broker.produce(name, records)
    whole, deadline = OffsetRange(Partition(name, 0), 0, 8), time.monotonic() + 90
    # The topic may be compacted after the one path has read it and before the other has.
    while (found := [read["offsets"] for read in paths.columns(whole)]) != [[1, 3, 6, 7]] * 2:
        assert time.monotonic() < deadline, f"offsets {found} are left"
        time.sleep(0.2)
    assert paths.same(name, 8)["values"] == [b"0", b"0", b"2", b"3"]
    assert paths.same(name, 6)["offsets"] == [1, 3]
    assert paths.same(name, 6, 2)["values"] == [b"0"]
    assert paths.same(name, 6, 4) == {}


def test_deleted_records_are_an_error_or_passed_over(paths: Paths, topic: Topic) -> None:
    name = topic()
    paths.broker.produce(name, [Record(b"%d" % n) for n in range(6)])
    paths.broker.delete_records(name, {0: 4})
    one, other = paths.columns(OffsetRange(Partition(name, 0), 0, 6))
    assert one == other
    assert one[0] == "DataLost"
    assert "offset 0 can no longer be read" in one[1]
    assert "offsets 4 to 6 exist" in one[1]
    assert paths.same(name, 6, failOnDataLoss="false")["offsets"] == [4, 5]


def test_a_range_that_the_broker_does_not_have_is_an_error(paths: Paths, topic: Topic) -> None:
    name = topic()
    paths.broker.produce(name, [Record(b"0")])
    beyond = OffsetRange(Partition(name, 0), 0, 5)
    one, other = paths.columns(beyond, **{"kafkaConsumer.pollTimeoutMs": "6000"})
    assert one == other
    assert one[0] == "BrokerUnreachable"
    assert "no progress with the records of topic" in one[1]
    assert "from offset 1 to 5 for 6 s, without an error" in one[1]


def test_a_batch_with_a_wrong_checksum_is_an_error_and_nothing_is_passed_over(
    paths: Paths, topic: Topic
) -> None:
    name = topic(2)
    spans = [OffsetRange(Partition(name, number), 0, 3) for number in range(2)]
    for value in (b"0", b"1", b"2"):
        paths.broker.produce(name, [Record(value, None, number) for number in range(2)])

    def spoil(content: bytes) -> bytes:
        """The checksum of a partition's second batch is wrong."""
        starts = [start for start, _ in batches(content)]
        at = starts[1] + CRC_AT if len(starts) > 1 else 0
        return content[:at] + b"\0" * 4 + content[at + 4 :] if at else content

    with spoiling_proxy(paths.broker.bootstrap, spoil) as proxy:
        spoilt = {"kafka__bootstrap__servers": proxy.bootstrap}
        one, other = paths.columns(spans[0], **spoilt)
        assert one[0] == other[0] == "BrokerUnreachable"
        assert "MessageSet at offset 1 " in one[1]
        assert "failed CRC32C check" in one[1]
        assert one == other
        ahead = Prefetcher(paths.options(**spoilt), name)
        found = ahead.read(spans, EVERYTHING)
        ahead.close()
    # One answer may have had both, and one of them is spoilt.
    assert len(found) < 2
    assert all(joined(blocks)["values"] == [b"0", b"1", b"2"] for blocks in found.values())


def test_missing_rights_are_an_error(paths: Paths, topic: Topic) -> None:
    name = topic()
    paths.broker.produce(name, [Record(b"0")])
    with paths.broker.deny(ResourceType.TOPIC, name, AclOperation.READ):
        span, tries = OffsetRange(Partition(name, 0), 0, 1), 20
        found: list[Any] = [{}, {}]
        # A rule is in force a moment after the broker has taken it.
        while tries and any(isinstance(each, dict) for each in found):
            found = paths.columns(span, **{"kafkaConsumer.pollTimeoutMs": "3000"})
            tries -= 1
    # Whether the broker says why depends on what else is forbidden.
    assert [each[0] for each in found] == ["BrokerUnreachable", "BrokerUnreachable"]


@pytest.mark.parametrize("path", PATHS)
def test_what_is_left_in_the_group_is_found_there(paths: Paths, topic: Topic, path: str) -> None:
    name = topic(2)
    zero, one = Partition(name, 0), Partition(name, 1)
    consumer = paths.broker.consumer(group_id=name)
    with paths.reader(path, kafka__group__id=name) as reader:
        # Texts of many sizes: bytes behind a text without an end would show.
        for size in range(1, 200, 7):
            clocks = {zero: CommittedClock(size, "größe" * size), one: CommittedClock(9, "")}
            reader.commit_clocks(clocks)
            found = consumer.committed([TopicPartition(*part) for part in (zero, one)], timeout=30)
            left = [(part.offset, part.metadata or "") for part in found]
            assert left == [(size, "größe" * size), (9, "")]
    consumer.close()


def test_a_refused_configuration_is_told_without_its_secrets(paths: Paths) -> None:
    for wrong in ({"kafka__nonsense": "hush"}, {"kafka__fetch__wait__max__ms": "hush"}):
        for path in PATHS:
            with (
                pytest.raises(OptionError, match=next(iter(wrong))[7:].replace("__", ".")) as told,
                paths.reader(path, kafka__sasl__password="hush", **wrong),
            ):
                pass
            assert "hush" not in str(told.value)


def test_one_reader_reads_many_ranges_and_forgets_the_one_before(
    paths: Paths, topic: Topic
) -> None:
    name = topic(3)
    paths.broker.produce(name, [Record(b"%d" % n, None, n % 3) for n in range(30_000)])
    with paths.reader("native") as reader:
        for part, start, end in [(0, 0, 10), (2, 9_000, 10_000), (0, 5, 9_999), (1, 0, 10_000)]:
            found = joined(
                list(reader.read(OffsetRange(Partition(name, part), start, end), EVERYTHING))
            )
            assert found["values"] == [b"%d" % (3 * n + part) for n in range(start, end)]
        # A reader may be dropped in the middle of a range.
        next(reader.read(OffsetRange(Partition(name, 0), 0, 10_000), EVERYTHING))


@pytest.mark.outside_ci
def test_a_killed_broker_costs_time_and_no_record(
    stoppable_broker: Broker, paths: Paths, topic: Topic
) -> None:
    name, count = topic(), 40_000
    stoppable_broker.produce(name, (Record(b"%d" % n * 20) for n in range(count)))
    small = {
        "kafka.queued.max.messages.kbytes": "256",
        "kafka.fetch.message.max.bytes": "100000",
        "kafka.fetch.max.bytes": "1000000",
        "kafka.message.max.bytes": "1000000",
    }
    with paths.reader("native", **small) as reader:
        blocks = reader.read(OffsetRange(Partition(name, 0), 0, count), EVERYTHING)
        found = [next(blocks)]
        stoppable_broker.stop()
        revival = threading.Thread(target=stoppable_broker.start)
        revival.start()
        try:
            found.extend(blocks)
        finally:
            revival.join()
    assert len(found[0].offsets) < count
    assert joined(found)["values"] == [b"%d" % n * 20 for n in range(count)]


def test_a_block_of_large_records_is_bounded(paths: Paths, topic: Topic) -> None:
    name = topic(max_message_bytes="9000000")
    producer = paths.broker.producer(message_max_bytes=9_000_000)
    for number in range(14):
        producer.produce(name, bytes([number]) * 8_000_000, partition=0)
        producer.flush()
    with paths.reader("native") as reader:
        sizes = []
        for block in reader.read(OffsetRange(Partition(name, 0), 0, 14), ColumnSet(values=True)):
            assert block.values is not None
            firsts = [value[0] for value in block.values.to_pylist()]
            assert firsts == list(range(sum(sizes), sum(sizes) + len(firsts)))
            sizes.append(len(firsts))
    assert sum(sizes) == 14
    # 64 MiB and the record that passes it.
    assert max(sizes) <= 9


def test_memory_is_given_back(paths: Paths, topic: Topic) -> None:
    name = topic()
    paths.broker.produce(name, [Record(b"x" * 1000) for _ in range(100)])
    with paths.reader("native") as reader:
        kept = list(reader.read(OffsetRange(Partition(name, 0), 0, 100), ColumnSet(values=True)))
    assert paths.native_reader.live_buffers() > 0
    taken = pa.chunked_array([block.values for block in kept]).take([99])
    del kept
    assert paths.native_reader.live_buffers() == 0
    assert taken.to_pylist() == [b"x" * 1000]


@pytest.fixture
def sanitizers(tmp_path: Path) -> None:
    """Skips where not even an empty program can be built with them: what else fails is ours."""
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }")
    command = ["cc", *SANITIZE, "-o", str(tmp_path / "empty"), str(tmp_path / "empty.c")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no sanitizers here: {made.stderr[-500:]}")


@pytest.mark.usefixtures("sanitizers")
@pytest.mark.parametrize("program", ["fuzz.c", "fuzz_json.c"])
def test_what_is_compiled_is_clean_under_the_sanitizers(tmp_path: Path, program: str) -> None:
    """Over made up messages and JSON values: address, leak and undefined behaviour."""
    fuzz = ROOT / "tests" / "native" / program
    command = ["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", *SANITIZE]
    command += ["-fno-sanitize-recover=all", "-o", str(tmp_path / "fuzz"), str(fuzz)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    fuzzing = [str(tmp_path / "fuzz"), str(os.getpid()), FUZZ_SECONDS]
    ran = subprocess.run(fuzzing, capture_output=True, text=True, check=False)
    if "LeakSanitizer does not work under ptrace" in ran.stderr:
        pytest.skip("something traces this process, as the leak sanitizer wants to")
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]


@pytest.mark.outside_ci
@pytest.mark.usefixtures("sanitizers")
@pytest.mark.soak
def test_json_is_read_as_without_the_scanner_under_the_address_sanitizer(tmp_path: Path) -> None:
    """The tests of the scanner beside Arrow's parser and Python's."""
    build = SimpleNamespace(**runpy.run_path(str(BUILD)))
    settings = sanitized_environment(tmp_path, build, build.SCANNER)
    tests = ROOT / "tests/timestream/kafka/decode/json/test_by_block_scanner.py"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, **settings}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]


@pytest.mark.outside_ci
@pytest.mark.timeout(int(SOAK_SECONDS) + 600)
@pytest.mark.usefixtures("broker", "sanitizers")
@pytest.mark.soak
def test_random_topics_are_read_the_same_under_the_address_sanitizer(tmp_path: Path) -> None:
    """With a broker of its own, which is killed now and then."""
    script = JOBS / "native_soak.py"
    settings = sanitized_environment(tmp_path, SimpleNamespace(**runpy.run_path(str(BUILD))))
    ran = subprocess.run(
        [sys.executable, str(script), SOAK_SECONDS, str(os.getpid())],
        env={**os.environ, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = f"seed {os.getpid()}: {ran.stdout[-2000:]}{ran.stderr[-6000:]}"
    assert ran.returncode == 0, said
    assert "soaked: " in ran.stdout, said
