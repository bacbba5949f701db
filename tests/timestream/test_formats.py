"""Samples of what is persisted, in format version 1: from the first tag on they stay readable.

The files are what version 1 writes. After the first tag they never change, even if the code does; a
new version gets samples of its own. The clock's offset is continued in `clock/test_reader.py`.
"""

import json
from pathlib import Path

from timestream.builders import at

from pyspark_timestream.core.checkpoint import check_offset
from pyspark_timestream.kafka.offsets.group_metadata import (
    GroupMetadata,
    decode_group_metadata,
    encode_group_metadata,
)
from pyspark_timestream.kafka.offsets.offset import (
    GivenWarning,
    ImportedPartition,
    ImportedTopic,
    MalformedPayloads,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.kafka.schemas import ReaderSchema
from pyspark_timestream.kafka.writer.ledger import LedgerEntry
from pyspark_timestream.rules.clocks import Clues, PartitionClock, WriterState

SAMPLES = Path(__file__).parent / "formats"
MALFORMED = MalformedPayloads((("key type", 1), ("type", 2)), 6, 5, 5)
OFFSET = StreamOffset(
    stream="0f6f7a4e9d0e4b6c8f3b1c2d3e4f5a6b",
    settings={"ctiDelay": "5 seconds", "ctiFrequency": "10", "subscribe": "orders,trades"},
    starts=3,
    partitions={
        at(0, "orders"): PartitionOffset(
            7,
            19,
            PartitionClock(
                cti_us=1_700_000_000_000_000,
                count=4,
                base_us=1_700_000_001_000_000,
                events=7,
                dropped=1,
                adjusted=2,
                flagged=3,
                malformed=4,
                ctis=5,
                ignored_ctis=6,
                last_us=1_700_000_002_000_000,
                writers=(("", WriterState(3)), ("north", WriterState(5, 6, 7, 8))),
                noted_us=9,
                record_us=10,
                begun=True,
                future=11,
                first_us=12,
                outside=13,
                tombstones=14,
                clues=Clues(15, 16, 17, 18, 19, 20, 21),
            ),
            waits=True,
        ),
        at(11, "orders"): PartitionOffset(3, 3, PartitionClock(), True, 1_700_000_000_000_000),
        at(2, "trades"): PartitionOffset(
            5,
            9,
            PartitionClock(cti_us=-5),
            pending=((7, 4), (12, 9)),
            restart_points=((39, 0), (40, 3)),
            forced_ctis=((40, 3, -9), (41, 5, -5)),
            malformed_payloads=MALFORMED,
        ),
    },
    number=41,
    cti_us=-5,
    first_cti_us=-5,
    tasks=1,
    final=True,
    topic_ids={"orders": "kAQXHmZmRqW2mQyLZcXhPA"},
    imported=ImportedTopic(
        {
            at(0, "clock"): ImportedPartition(8, PartitionClock(7, 2), 7, False, True, 9),
            at(1, "clock"): ImportedPartition(8, PartitionClock(7, 2), 7, True),
        },
        7,
    ),
    advanced_us=-6,
    missing={
        at(3, "trades"): PartitionOffset(6, 6, PartitionClock(cti_us=-7), caught_up_since_us=8)
    },
    bounded=True,
    warnings=(
        GivenWarning("malformed events", "orders", "7", detail="'x'", holds=False),
        GivenWarning("rows dropped as late", "everybody", "1 row", level=1, advice="nothing"),
    ),
    schemas={
        "value": ReaderSchema(
            "", "sha256:0f", "shop.Order", 7, "orders-value", 2, newer=ReaderSchema("", "sha256:1e")
        )
    },
    fixed_ends={at(0, "orders"): 50, at(2, "trades"): 9},
    unpinned={"group": "timestream-0f6f", "idleTimeout": "5 seconds"},
)
METADATA = GroupMetadata(
    PartitionClock(
        1_800_000_000_000_000,
        1,
        5,
        19,
        writers=(("north", WriterState(1_805, 106, 7, 1_808)), ("west", WriterState(5))),
    ),
    MALFORMED,
    (("spark.sql.session", "x"),),
)


def sample(name):
    return json.loads((SAMPLES / f"{name}.json").read_text())


def test_the_offset_in_the_sample_is_read_and_written():
    check_offset(sample("kafka_offset"), OFFSET.settings)
    assert StreamOffset.from_json(sample("kafka_offset")) == OFFSET
    assert json.dumps(OFFSET.to_json()) == json.dumps(sample("kafka_offset"))


def test_the_group_metadata_in_the_sample_is_read_and_written():
    part, text = at(0, "orders"), json.dumps(sample("group_metadata"))
    assert decode_group_metadata(OFFSET, part, text) == METADATA
    settings = dict(METADATA.settings)
    written = encode_group_metadata(
        OFFSET, part, METADATA.clock, METADATA.malformed_payloads, settings
    )
    assert json.loads(written) == sample("group_metadata")


def test_the_entry_of_the_ledger_in_the_sample_is_read_and_written():
    offset, metadata = sample("ledger")
    assert LedgerEntry.decode(offset, metadata) == LedgerEntry(4, 2, 1_700_000_000_000_000)
    assert LedgerEntry(4, 2, 1_700_000_000_000_000).encode() == (offset, metadata)
