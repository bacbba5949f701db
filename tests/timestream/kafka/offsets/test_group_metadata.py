"""End states in group metadata: accepted by their own batch only, and small."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at

from pyspark_timestream.kafka.diagnosis.kinds import NEXT_STEPS
from pyspark_timestream.kafka.offsets.offset import (
    GroupMetadata,
    MalformedValues,
    PartitionOffset,
    StreamOffset,
    decode_group_metadata,
    drop_state,
    encode_group_metadata,
)
from pyspark_timestream.rules.state import PartitionState, WriterState

PART = at(0, "orders")
OFFSET = StreamOffset(
    "0f6f7a4e9d0e4b6c8f3b1c2d3e4f5a6b",
    {"ctiDelay": "5 seconds", "ctiFrequency": "10"},
    3,
    {PART: PartitionOffset(7, 19, PartitionState(1_700_000_000_000_000, 4, events=7, dropped=1))},
)
END = PartitionState(1_800_000_000_000_000, 1, 5, 19)
LEFT = encode_group_metadata(OFFSET, PART, END)
COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}
FOUR = MalformedValues.from_reasons({"framing": 3, "key type": 1})
BROKERS_DEFAULT = 4096
"""`offset.metadata.max.bytes`"""


def changed(**changes):
    partitions = {**OFFSET.partitions, PART: replace(OFFSET.partitions[PART], **changes)}
    return replace(OFFSET, partitions=partitions)


def state_in(metadata, offset=OFFSET, partition=PART):
    return decode_group_metadata(offset, partition, metadata).state


def test_state_of_the_same_range_and_start_is_accepted():
    assert decode_group_metadata(OFFSET, PART, LEFT) == GroupMetadata(END)
    # What the offset says besides has no influence on the clock.
    assert state_in(LEFT, replace(OFFSET, starts=9, tasks=4, stream="copy")) == END


@pytest.mark.parametrize(
    "offset",
    [
        changed(start_inclusive=6),
        changed(end_exclusive=20),
        changed(state=PartitionState()),
        changed(state=replace(OFFSET.partitions[PART].state, count=5)),
        replace(OFFSET, settings={**OFFSET.settings, "ctiDelay": "6 seconds"}),
        replace(OFFSET, settings={**OFFSET.settings, **UNCOMMITTED}),
    ],
    ids=["start", "end", "no state", "another state", "settings", "isolation"],
)
def test_state_of_another_run_is_refused(offset):
    assert decode_group_metadata(offset, PART, LEFT) == GroupMetadata()


def test_state_under_another_isolation_level_is_refused():
    offset = replace(OFFSET, settings={**OFFSET.settings, **COMMITTED})
    left = encode_group_metadata(offset, PART, END)
    assert state_in(left, offset) == END
    assert state_in(left, replace(OFFSET, settings={**OFFSET.settings, **UNCOMMITTED})) is None


def test_state_of_another_partition_is_refused():
    other = at(0, "trades")
    offset = replace(OFFSET, partitions={**OFFSET.partitions, other: OFFSET.partitions[PART]})
    assert state_in(LEFT, offset, other) is None
    assert state_in(LEFT, offset) == END


def test_metadata_of_another_stream_names_that_stream():
    other = replace(changed(start_inclusive=6), stream="0123456789abcdef")
    left = encode_group_metadata(other, PART, END)
    assert decode_group_metadata(OFFSET, PART, left) == GroupMetadata(other_stream="01234567")
    # What this stream left of another batch says nothing of others.
    older = encode_group_metadata(changed(start_inclusive=6), PART, END)
    assert decode_group_metadata(OFFSET, PART, older) == GroupMetadata()


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "spark",
        "{}",
        "[]",
        "7",
        "null",
        '"text"',
        LEFT[:-1],
        "[" * 4000,
        json.dumps({**json.loads(LEFT), "version": 2}),
        json.dumps({**json.loads(LEFT), "packed": None}),
        json.dumps({**json.loads(LEFT), "packed": "?"}),
        json.dumps({**json.loads(LEFT), "packed": "00000"}),
        json.dumps({**json.loads(LEFT), "settings": 7}),
        json.dumps({"for": json.loads(LEFT)["for"]}),
    ],
)
def test_foreign_metadata_is_no_state_of_ours(metadata):
    assert decode_group_metadata(OFFSET, PART, metadata) == GroupMetadata()


def test_metadata_without_state_keeps_counts_settings_and_length():
    settings = {"spark.sql.streaming.multipleWatermarkPolicy": "max"}
    left = encode_group_metadata(OFFSET, PART, END, FOUR, settings)
    told = GroupMetadata(END, FOUR, tuple(settings.items()))
    assert decode_group_metadata(OFFSET, PART, left) == told
    short = drop_state(left)
    assert len(short) < len(left)
    assert decode_group_metadata(OFFSET, PART, short) == replace(
        told, state=None, refused_length=len(left)
    )
    assert drop_state(short) == short
    assert drop_state("") == ""


def test_records_without_a_malformed_value_take_no_room_in_the_metadata():
    assert "malformed" not in LEFT


def test_reasons_of_malformed_values_take_little_room_in_the_metadata():
    most = MalformedValues.from_reasons(dict.fromkeys(NEXT_STEPS, 10**9))
    left = encode_group_metadata(OFFSET, PART, END, most)
    assert len(left) - len(LEFT) < 250


instants = st.integers(-(2**62), 2**62)
states = st.builds(
    PartitionState,
    cti_us=st.none() | instants,
    events=st.integers(0, 2**62),
    writers=st.dictionaries(
        st.text(max_size=9), st.builds(WriterState, st.none() | instants, st.none() | instants)
    ).map(lambda found: tuple(sorted(found.items()))),
    noted_us=st.none() | instants,
    begun=st.booleans(),
)


@given(states, states)
@settings(max_examples=300, deadline=None)
def test_any_state_comes_back_as_it_was(start, end):
    left = encode_group_metadata(changed(state=start), PART, end)
    assert left.isascii()
    assert state_in(left, changed(state=start)) == end


def clocks(count, prefix, base_us):
    """A state with so many writers, each of whose times is anywhere within a minute."""
    writers = tuple(
        (f"{prefix}{n:06}", WriterState(base_us + n * 7_919_017 % 60_000_000,
                                   base_us + n * 6_007_000 % 60_000_000))
        for n in range(count)
    )  # fmt: skip
    return PartitionState(base_us, writers=writers, noted_us=base_us, record_us=base_us, begun=True)


@pytest.mark.parametrize("prefix", ["w", "01234567-89ab-cdef-0123-456789"])
def test_270_writers_with_a_timeout_fit_the_brokers_default_limit(prefix):
    """As plain JSON 77 of short names did."""
    start, end = (clocks(270, prefix, base_us) for base_us in (1_766_000_000_000_000,
                                                              1_766_000_060_000_000))  # fmt: skip
    left = encode_group_metadata(changed(state=start), PART, end)
    assert len(left) < BROKERS_DEFAULT < len(json.dumps(end.to_json())) / 3


def test_a_state_without_writers_takes_little():
    assert len(encode_group_metadata(OFFSET, PART, PartitionState(*[-(2**62)] * 10))) < 500
