"""`lateness` on a real broker: equal to queries with each delay, what it says, what it refuses."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import fastavro
import pyarrow as pa
import pytest
from broker import Broker, Record
from kafka_query import DAY_MS
from pyspark.sql import SparkSession
from schema_registry import serve_schema_registry

from pyspark_timestream import BrokerUnreachable, OptionError, measure_lateness
from pyspark_timestream.commands.measure_lateness import LADDER_US
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import ColumnSet
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.ranges import OffsetRange, Partition

pytestmark = pytest.mark.timeout(300)

# No Spark: an import of it fails.
LATENESS = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None
from pyspark_timestream.__main__ import main
sys.exit(main(["lateness", *sys.argv[1:]]))
"""
DELAYS = ("0 seconds", "20 seconds", "2 minutes")
HOUR_MS = 3_600_000
LADDER_S = [us / 1e6 for us in LADDER_US]


def rides(count: int = 3_000, partitions: int = 3) -> list[Record]:
    """Rides reported up to three minutes after their departure, some of them without one."""
    random, found = Random(4), []
    for number in range(count):
        stamp = DAY_MS + number * 1_000
        departed = None if number % 50 == 7 else stamp - random.randrange(180_000)
        value = json.dumps({"departed": departed, "station": number})
        found.append(Record(value, None, number % partitions, stamp))
    return found


@pytest.fixture
def filled(broker: Broker, topic: Callable[..., str]) -> Callable[..., str]:
    def fill(records: list[Record], partitions: int = 3) -> str:
        name = topic(partitions)
        broker.produce(name, records)
        return name

    return fill


@pytest.fixture
def options(broker: Broker) -> Callable[..., dict[str, str]]:
    def make(topic: str, **more: str) -> dict[str, str]:
        fixed = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
        return {**fixed, "startTime": "field:departed", "ctiFrequency": "1", **more}

    return make


@pytest.fixture
def lateness(broker: Broker) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(topic: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        given = ["--topic", topic, "--bootstrap-servers", broker.bootstrap, *arguments]
        if "--start-time" not in arguments:
            given += ["--start-time", "field:departed"]
        if "--cti-frequency" not in arguments:
            given += ["--cti-frequency", "1"]
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", LATENESS, *given],
            capture_output=True, text=True, check=False, timeout=120,
            env={**os.environ, "COLUMNS": "160"},
        )  # fmt: skip

    return run


def by_partition(table: pa.Table) -> dict[str, list[tuple[int, ...]]]:
    """Delay -> events, malformed and late ones, and CTIs, of each partition."""
    names = ("events", "malformed", "late", "ctis")
    return {
        f"{row['delay'].total_seconds():g}": [
            tuple(part[name] for name in names) for part in row["partitions"]
        ]
        for row in table.to_pylist()
    }


def test_each_delay_counts_what_a_query_with_it_counts(
    filled, options, spark: SparkSession, tmp_path: Path
) -> None:
    name = filled(rides(partitions=2), 2)
    table = measure_lateness(options(name), delays=list(DELAYS))
    queries = []
    for number, delay in enumerate(DELAYS):
        given = options(name, ctiDelay=delay, violationPolicy="flag", transport="kafka")
        frame = spark.readStream.format("timestream").options(
            **given,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=2_000 if number == 1 else 9_000,
        )
        queries.append(
            frame.load().writeStream.format("noop").trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / str(number))).start()
        )  # fmt: skip
    counted = {}
    for query, row in zip(queries, table.to_pylist(), strict=True):
        query.awaitTermination()
        said = json.loads(query.lastProgress.sources[0].latestOffset)["partitions"][name]
        counted[f"{row['delay'].total_seconds():g}"] = [
            tuple(part[each] for each in ("events", "malformed", "flagged", "ctis"))
            for _, part in sorted(said.items())
        ]
    assert counted == by_partition(table)
    late = [row["late"] for row in table.to_pylist()]
    assert late[0] > late[1] > late[2] > 0
    assert table["malformed"].to_pylist() == [60] * 3


def test_the_command_shows_the_ladder_and_the_options_to_paste(filled, options, lateness) -> None:
    name = filled(rides())
    done = lateness(name)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout
    assert f"Topic '{name}': 3 partitions, 3,000 events" in said
    assert "timestamps: 2024-01-01T00:00:00Z to 2024-01-01T00:49:59Z" in said
    assert '    .option("startTime", "field:departed")\n    .option("ctiFrequency", "1")' in said
    assert '    .option("ctiDelay", "5 minutes")' in said
    assert "60 of 3,000 events have no readable time" in said
    assert "\n10 minutes" not in said
    assert "####" in said
    found = json.loads(lateness(name, "--json").stdout)
    assert found["without_late_rows"] == "5 minutes"
    assert [each["delay"] for each in found["delays"]][-1] == "1 day"
    largest = f"{found['largest_lateness_us']} us"
    table = measure_lateness(options(name), delays=[largest])
    assert table["late"].to_pylist()[-1] == 0


@pytest.mark.outside_ci
def test_the_last_hours_are_read_as_a_query_from_there_would(filled, options, lateness) -> None:
    records = [
        Record(json.dumps({"departed": DAY_MS + ms}), None, part, DAY_MS + ms)
        for part, ms in [(0, 0), (0, 5 * HOUR_MS), (0, HOUR_MS), (0, 6 * HOUR_MS), (1, 0)]
    ]
    name = filled(records, 2)
    table = measure_lateness(options(name), last="3 hours")
    # A late record that comes after the first of the last three hours is read, too.
    assert by_partition(table)["0"] == [(3, 0, 1, 2), (0, 0, 0, 0)]
    since = str(DAY_MS + 3 * HOUR_MS)
    more = {"startingTimestamp": since, "startingOffsetsByTimestampStrategy": "latest"}
    assert measure_lateness(options(name, **more)).equals(table)
    done = lateness(name, "--last", "9 hours", "--delays", "30 minutes,5 hours")
    assert "less than 9 hours: all of them were read" in done.stdout
    assert "30 minutes" in done.stdout
    assert "No late row in what was read" in done.stdout


def test_transactions_and_empty_partitions_are_gaps_and_nothing_else(
    broker: Broker, filled, options
) -> None:
    name = filled([], 2)
    producer = broker.producer(transactional_id=name)
    producer.init_transactions()
    for departed, end in ((9, producer.abort_transaction), (5, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(name, json.dumps({"departed": departed}), partition=0, timestamp=DAY_MS)
        producer.flush()
        end()
    broker.wait_for_markers(name)
    table = measure_lateness(options(name), last="1 hour")
    assert by_partition(table) == {f"{s:g}": [(1, 0, 0, 1), (0, 0, 0, 0)] for s in LADDER_S}


def test_a_field_without_times_is_refused_and_leads_to_peek(filled, options) -> None:
    given = options(filled(rides(4, 1)), startTime="field:departure")
    with pytest.raises(
        OptionError, match=r"none of 4 events has a readable time in 'departure'.*peek"
    ):
        measure_lateness(given)


def test_a_topic_that_is_missing_or_empty_is_refused(filled, options) -> None:
    with pytest.raises(OptionError, match="topic 'nowhere' exists at"):
        measure_lateness(options("nowhere"))
    with pytest.raises(OptionError, match="holds no records to measure"):
        measure_lateness(options(filled([])))
    given = options("nowhere")
    del given["ctiFrequency"]
    with pytest.raises(OptionError, match="'ctiFrequency': it is missing"):
        measure_lateness(given)


def test_times_in_avro_are_read_by_the_subjects_schema(filled, options) -> None:
    kind = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "Ride", "fields": [{"name": "departed", "type": kind}]}
    with serve_schema_registry() as registry:
        number = registry.register("rides", json.dumps(schema))
        values = []
        for minute in (10, 5, 12):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, {"departed": DAY_MS + minute * 60_000})
            values.append(b"\0" + struct.pack(">I", number) + out.getvalue())
        name = filled([Record(value, timestamp_ms=DAY_MS) for value in [*values, b"{}"]], 1)
        given = {"valueFormat": "avro", "valueSubject": "rides", "valueFraming": "confluent"}
        table = measure_lateness(
            options(name, **given, **{"schemaRegistry.url": registry.url}), delays="5 minutes"
        )
    assert by_partition(table) == {"0": [(4, 1, 1, 2)], "300": [(4, 1, 0, 2)]}


def test_brokers_that_do_not_answer_are_named(options) -> None:
    given = options("rides", **{"kafka.bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        measure_lateness({**given, "kafkaConsumer.connectTimeoutMs": "2000"})


def test_a_command_that_is_interrupted_ends_soon_with_one_line(options, tmp_path: Path) -> None:
    given = ["--topic", "rides", "--bootstrap-servers", "127.0.0.1:1", "--cti-frequency", "1"]
    command = [sys.executable, "-m", "pyspark_timestream", "lateness", *given]
    with (tmp_path / "errors").open("w") as errors:
        begun = subprocess.Popen(
            [*command, "--start-time", "field:departed"], stdout=errors, stderr=errors,
            # A process in the background ignores it otherwise, and so does what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    try:
        wait_for_client(begun.pid)
        begun.send_signal(signal.SIGINT)
        # It would look for the broker for half a minute.
        assert begun.wait(20) == 130
    finally:
        begun.kill()
        begun.wait()
    assert (tmp_path / "errors").read_text() == "interrupted\n"


def wait_for_client(pid: int) -> None:
    """Return when the process has a thread of librdkafka."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        names = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/comm")]
        if any(name.startswith("rdk:") for name in names):
            return
        time.sleep(0.05)
    raise TimeoutError("no client within a minute")


def test_a_read_that_is_left_behind_when_its_reader_closes_ends_in_silence(filled, options) -> None:
    name = filled(rides(1_000, 1), 1)
    reader = RangeReader(read_kafka_options({**options(name), "transport": "kafka"}), "left")
    blocks = reader.read(OffsetRange(Partition(name, 0), 0, 5_000), ColumnSet(timestamps=True))
    assert len(next(blocks).offsets) == 1_000
    reader.close()
    blocks.close()
