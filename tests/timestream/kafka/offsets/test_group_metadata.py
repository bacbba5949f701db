"""End states in group metadata: accepted by their own batch only, and small."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at

from pyspark_timestream.diagnose.diagnosis import NEXT_STEPS
from pyspark_timestream.kafka.offsets.group_metadata import (
    GroupMetadata,
    decode_group_metadata,
    drop_state,
    encode_group_metadata,
)
from pyspark_timestream.kafka.offsets.offset import MalformedValues, StreamOffset
from pyspark_timestream.rules.state import PartitionState, WriterState

OFFSETS = Path(__file__).parents[2] / "offsets"
V1 = StreamOffset.from_json(json.loads((OFFSETS / "kafka_v1.json").read_text()))
PART = at(0, "orders")
END = PartitionState(1_800_000_000_000_000, 1, 5, 19)
LEFT = encode_group_metadata(V1, PART, END)
COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}
FOUR = MalformedValues.from_reasons({"framing": 3, "key type": 1})
BROKERS_DEFAULT = 4096
"""`offset.metadata.max.bytes`"""


def changed(**share):
    partitions = {**V1.partitions, PART: replace(V1.partitions[PART], **share)}
    return replace(V1, partitions=partitions)


def state_in(metadata, offset=V1, part=PART):
    return decode_group_metadata(offset, part, metadata).state


def test_state_of_the_same_range_and_start_is_accepted():
    assert decode_group_metadata(V1, PART, LEFT) == GroupMetadata(END)
    # What the offset says besides has no influence on the clock.
    assert state_in(LEFT, replace(V1, starts=9, tasks=4, stream="copy")) == END


def test_metadata_of_version_1_is_still_read():
    """A checkpoint that is upgraded between two batches does not read the last one again."""
    left = '{"for":"30c31377a0cb3892b8e686432e38346d","state":{"events":19},"version":1}'
    assert decode_group_metadata(V1, PART, left) == GroupMetadata(PartitionState(events=19))


@pytest.mark.parametrize(
    "offset",
    [
        changed(start_inclusive=6),
        changed(end_exclusive=20),
        changed(state=PartitionState()),
        changed(state=replace(V1.partitions[PART].state, count=5)),
        replace(V1, settings={**V1.settings, "ctiDelay": "6 seconds"}),
        replace(V1, settings={**V1.settings, **UNCOMMITTED}),
    ],
    ids=["start", "end", "no state", "another state", "settings", "isolation"],
)
def test_state_of_another_run_is_refused(offset):
    assert decode_group_metadata(offset, PART, LEFT) == GroupMetadata()


def test_state_under_another_isolation_level_is_refused():
    offset = replace(V1, settings={**V1.settings, **COMMITTED})
    left = encode_group_metadata(offset, PART, END)
    assert state_in(left, offset) == END
    assert state_in(left, replace(V1, settings={**V1.settings, **UNCOMMITTED})) is None


def test_state_of_another_partition_is_refused():
    other = at(0, "trades")
    offset = replace(V1, partitions={**V1.partitions, other: V1.partitions[PART]})
    assert state_in(LEFT, offset, other) is None
    assert state_in(LEFT, offset) == END


def test_metadata_of_another_stream_names_that_stream():
    other = replace(changed(start_inclusive=6), stream="0123456789abcdef")
    left = encode_group_metadata(other, PART, END)
    assert decode_group_metadata(V1, PART, left) == GroupMetadata(other_stream="01234567")
    # What this stream left of another batch says nothing of others.
    older = encode_group_metadata(changed(start_inclusive=6), PART, END)
    assert decode_group_metadata(V1, PART, older) == GroupMetadata()


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
        json.dumps({**json.loads(LEFT), "version": 3}),
        json.dumps({**json.loads(LEFT), "version": 1}),
        json.dumps({**json.loads(LEFT), "packed": None}),
        json.dumps({**json.loads(LEFT), "packed": "?"}),
        json.dumps({**json.loads(LEFT), "packed": "00000"}),
        json.dumps({**json.loads(LEFT), "settings": 7}),
        json.dumps({**json.loads(LEFT), "version": 1, "state": {"unheard_of": 1}}),
        json.dumps({"for": json.loads(LEFT)["for"]}),
    ],
)
def test_foreign_metadata_is_no_state_of_ours(metadata):
    assert decode_group_metadata(V1, PART, metadata) == GroupMetadata()


def test_metadata_without_state_keeps_counts_settings_and_length():
    settings = {"spark.sql.streaming.multipleWatermarkPolicy": "max"}
    left = encode_group_metadata(V1, PART, END, FOUR, settings)
    told = GroupMetadata(END, FOUR, tuple(settings.items()))
    assert decode_group_metadata(V1, PART, left) == told
    short = drop_state(left)
    assert len(short) < len(left)
    assert decode_group_metadata(V1, PART, short) == replace(
        told, state=None, refused_length=len(left)
    )
    assert drop_state(short) == short
    assert drop_state("") == ""


def test_counts_of_malformed_values_are_read_by_earlier_versions_and_from_them():
    """An earlier version writes and reads `unfit`, a number, and passes over other names."""
    written = json.loads(encode_group_metadata(V1, PART, END, FOUR))
    assert (written["version"], written["unfit"]) == (2, 4)
    assert written["unfit_by"] == {"framing": 3, "key type": 1}
    del written["unfit_by"]
    earlier = decode_group_metadata(V1, PART, json.dumps(written))
    assert (earlier.state, earlier.malformed_values) == (END, MalformedValues(4))


def test_records_without_a_malformed_value_take_no_room_in_the_metadata():
    assert "unfit" not in LEFT


def test_reasons_of_malformed_values_take_little_room_in_the_metadata():
    most = MalformedValues.from_reasons(dict.fromkeys(NEXT_STEPS, 10**9))
    left = encode_group_metadata(V1, PART, END, most)
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
    assert len(encode_group_metadata(V1, PART, PartitionState(*[-(2**62)] * 10))) < 500
