"""Random topics and ranges through the native reader, each against confluent-kafka's messages.

`native_soak.py SECONDS SEED [BOOTSTRAP]`: without a broker's address it starts one, and kills it
now and then. Some answers of brokers are spoilt on the way. `sanitized_environment` has the
environment variables for the address sanitizer.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from broker import Broker, broker, unique_name
from spoiling_proxy import garbled, sometimes, spoiling_proxy, with_wrong_checksums

from pyspark_timestream.errors import BrokerUnreachable, DataLost
from pyspark_timestream.kafka.client import native_consumer as native_library
from pyspark_timestream.kafka.client import range_reader
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

SANITIZE = ("-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")
KILL_EVERY_S = 60.0
EVERYTHING = ColumnSet(True, True, True, True)


def sanitized_environment(place: Path, build: Any, source: Path | None = None) -> dict[str, str]:
    """Environment variables that make Python load a sanitized library, by default the reader."""
    library = (place / (source or build.SOURCE).name).with_suffix(".so")
    trouble = build.build_library(library, [*SANITIZE, "-fno-sanitize-recover=all"], source)
    assert trouble is None, trouble
    asked = ["cc", "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "LD_PRELOAD": runtime,
        # Python itself leaves memory behind; the library counts its buffers instead.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "TIMESTREAM_NATIVE": "1",
        "SCANNER_LIBRARY" if source else "SOAK_LIBRARY": str(library),
    }


def fill(kafka: Broker, topic: str, dice: random.Random) -> int:
    """Records of every kind, some in transactions that are aborted; where the partition ends."""
    codec = dice.choice(["none", "gzip", "lz4", "zstd", "snappy"])
    settings: dict[str, Any] = {"compression_type": codec, "linger_ms": 50}
    for _ in range(dice.randint(1, 4)):
        in_transaction = dice.random() < 0.5
        extra = {"transactional_id": unique_name("soak")} if in_transaction else {}
        producer = kafka.producer(**settings, **extra)
        if in_transaction:
            producer.init_transactions()
            producer.begin_transaction()
        for _ in range(dice.choice([1, 30, 3_000])):
            producer.produce(
                topic, some(dice, 1_000), some(dice, 20), 0,
                timestamp=dice.randint(1, 1_700_000_000_000),
                headers=[
                    (dice.choice(["", "h", "größe"]), some(dice, 30))
                    for _ in range(dice.choice([0, 0, 1, 5]))
                ],
            )  # fmt: skip
            producer.poll(0)
        if dice.random() < 0.2:
            producer.produce(topic, dice.randbytes(900_000), partition=0)
        producer.flush(60)
        if in_transaction:
            dice.choice([producer.commit_transaction, producer.abort_transaction])()
    kafka.wait_for_markers(topic)
    return kafka.end_offsets(topic)[0]


def some(dice: random.Random, most: int) -> bytes | None:
    return None if dice.random() < 0.1 else dice.randbytes(dice.randint(0, most))


@contextmanager
def reader(bootstrap: str, native_reader: Any, **more: str) -> Iterator[RangeReader]:
    """A reader over `native_reader`, or over messages where it is None."""
    range_reader.load_native_reader = lambda: native_reader  # type: ignore[attr-defined]
    fixed = {"kafka.bootstrap.servers": bootstrap, "subscribe": "x"}
    made = RangeReader(read_kafka_options({**fixed, **more}), unique_name("soak"))
    try:
        yield made
    finally:
        made.close()


def rows(blocks: list[RecordBlock]) -> list[list[Any]]:
    """Every column's values; the arrays are checked as well."""
    columns: list[list[Any]] = [[] for _ in RecordBlock._fields]
    for block in blocks:
        for values, column in zip(columns, block, strict=True):
            if column is not None:
                column.validate(full=True)
                values += column.to_pylist()
    return columns


def compare(kafka: Broker, native_reader: Any, dice: random.Random) -> int:
    """One topic, some ranges; how many records were compared."""
    topic = kafka.create_topic()
    count, end = 0, fill(kafka, topic, dice)
    level = {"kafka.isolation.level": dice.choice(["read_committed", "read_uncommitted"])}
    if dice.random() < 0.3:
        kafka.delete_records(topic, {0: dice.randint(0, end)})
        level["failOnDataLoss"] = "false"
    place = kafka.bootstrap
    with reader(place, native_reader, **level) as ours, reader(place, None, **level) as theirs:
        for _ in range(4):
            start = dice.randint(0, end - 1)
            span = OffsetRange(Partition(topic, 0), start, dice.randint(start + 1, end))
            needs = ColumnSet(*(dice.random() < 0.7 for _ in range(4)))
            found = rows(list(ours.read(span, needs)))
            assert found == rows(list(theirs.read(span, needs))), (topic, span, needs)
            count += len(found[0])
            # A read given up in the middle must not disturb the next.
            next(ours.read(OffsetRange(span.partition, 0, end), needs), None)
    assert native_reader.live_buffers() == 0, f"{native_reader.live_buffers()} buffers are left"
    return count


def read_through_a_kill(kafka: Broker, native_reader: Any, dice: random.Random) -> None:
    """The broker dies while a range is read, and comes back."""
    topic = kafka.create_topic()
    end = fill(kafka, topic, dice)
    small = {"kafka.queued.max.messages.kbytes": "64", "kafka.fetch.message.max.bytes": "20000"}
    with reader(kafka.bootstrap, native_reader, **small) as ours:
        blocks = ours.read(OffsetRange(Partition(topic, 0), 0, end), ColumnSet(values=True))
        found = [block for block in [next(blocks, None)] if block is not None]
        kafka.stop()
        revival = threading.Thread(target=kafka.start)
        revival.start()
        found += blocks
        revival.join()
    with reader(kafka.bootstrap, None) as theirs:
        span = OffsetRange(Partition(topic, 0), 0, end)
        assert rows(found) == rows(list(theirs.read(span, ColumnSet(values=True))))


def read_what_is_spoilt(kafka: Broker, native_reader: Any, dice: random.Random) -> int:
    """Check that spoilt answers give right records, or an error behind some; return how many.

    Checksums are checked, as is our default: without that librdkafka 2.16 inflates some garbled
    batches for ever.
    """
    topic = kafka.create_topic()
    span = OffsetRange(Partition(topic, 0), 0, fill(kafka, topic, dice))
    with reader(kafka.bootstrap, None) as theirs:
        expected = rows(list(theirs.read(span, EVERYTHING)))
    count = 0
    for how in (with_wrong_checksums, garbled):
        # The proxy's threads would disturb the order of ours.
        theirs_alone = random.Random(dice.random())
        spoil = sometimes(theirs_alone, partial(how, theirs_alone))
        with (
            spoiling_proxy(kafka.bootstrap, spoil) as proxy,
            reader(
                proxy.bootstrap, native_reader, **{"kafkaConsumer.pollTimeoutMs": "3000"}
            ) as ours,
        ):
            blocks, is_whole = until_error(ours.read(span, EVERYTHING))
            count += proxy.spoilt
        found = rows(blocks)
        offsets = [span.start_inclusive - 1, *found[0], span.end_exclusive]
        assert all(one < next_one for one, next_one in pairwise(offsets)), (topic, offsets)
        size = None if is_whole else len(found[0])
        assert found == [column[:size] for column in expected], (topic, is_whole)
        del blocks
        assert native_reader.live_buffers() == 0, f"{native_reader.live_buffers()} buffers are left"
    return count


def until_error(blocks: Iterator[RecordBlock]) -> tuple[list[RecordBlock], bool]:
    """The blocks before an error, and whether there was none."""
    found = []
    try:
        for block in blocks:
            found.append(block)  # noqa: PERF402
    except (BrokerUnreachable, DataLost):
        return found, False
    return found, True


def soak(kafka: Broker, seconds: float, seed: int) -> None:
    """Compare until the time is over."""
    dice = random.Random(seed)
    library = Path(os.environ.get("SOAK_LIBRARY") or native_library.NATIVE_READER_PATH)
    native_reader = native_library.load_native_reader(library)
    assert native_reader is not None
    ends, next_kill = time.monotonic() + seconds, time.monotonic() + KILL_EVERY_S / 2
    topics = records = kills = spoilt = 0
    while time.monotonic() < ends or not topics:
        records += compare(kafka, native_reader, dice)
        spoilt += read_what_is_spoilt(kafka, native_reader, dice)
        topics += 1
        if kafka.can_stop and time.monotonic() > next_kill:
            read_through_a_kill(kafka, native_reader, dice)
            kills, next_kill = kills + 1, time.monotonic() + KILL_EVERY_S
    done = f"{topics} topics, {records} records, {kills} kills, {spoilt} answers spoilt"
    print(f"soaked: {done}, seed {seed}", flush=True)
    assert spoilt or topics < 10
    assert kills or not kafka.can_stop or seconds < KILL_EVERY_S


def main(seconds: str, seed: str, bootstrap: str = "") -> None:
    """See the module."""
    # Only this process runs under the sanitizer, not the broker that it starts.
    os.environ.pop("LD_PRELOAD", None)
    if bootstrap:
        soak(Broker(bootstrap, "given"), float(seconds), int(seed))
        return
    with broker() as kafka:
        soak(kafka, float(seconds), int(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
