"""End states in group metadata: accepted by their own batch only, and small."""

import base64
import json
import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at

from pyspark_timestream.kafka.diagnosis.diagnoses import NEXT_STEPS
from pyspark_timestream.kafka.offsets import group_metadata
from pyspark_timestream.kafka.offsets.group_metadata import (
    GroupMetadata,
    decode_group_metadata,
    drop_clock,
    encode_group_metadata,
)
from pyspark_timestream.kafka.offsets.offset import MalformedPayloads, PartitionOffset, StreamOffset
from pyspark_timestream.rules.clocks import PartitionClock, WriterState

PART = at(0, "orders")
OFFSET = StreamOffset(
    "0f6f7a4e9d0e4b6c8f3b1c2d3e4f5a6b",
    {"ctiDelay": "5 seconds", "ctiFrequency": "10"},
    3,
    {PART: PartitionOffset(7, 19, PartitionClock(1_700_000_000_000_000, 4, events=7, dropped=1))},
)
END = PartitionClock(1_800_000_000_000_000, 1, 5, 19)
LEFT = encode_group_metadata(OFFSET, PART, END)
COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}
FOUR = MalformedPayloads.from_reasons({"framing": 3, "key type": 1})
BROKERS_DEFAULT = 4096
"""`offset.metadata.max.bytes`"""


def changed(**changes):
    partitions = {**OFFSET.partitions, PART: replace(OFFSET.partitions[PART], **changes)}
    return replace(OFFSET, partitions=partitions)


def state_in(metadata, offset=OFFSET, partition=PART):
    return decode_group_metadata(offset, partition, metadata).clock


def test_state_of_the_same_range_and_start_is_accepted():
    assert decode_group_metadata(OFFSET, PART, LEFT) == GroupMetadata(END)
    # The offset's other entries have no influence on the clock.
    assert state_in(LEFT, replace(OFFSET, starts=9, tasks=4, stream="copy")) == END


@pytest.mark.parametrize(
    "offset",
    [
        changed(start_inclusive=6),
        changed(end_exclusive=20),
        changed(clock=PartitionClock()),
        changed(clock=replace(OFFSET.partitions[PART].clock, count=5)),
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
    # This stream's text of another batch says nothing of others.
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
    short = drop_clock(left)
    assert len(short) < len(left)
    assert decode_group_metadata(OFFSET, PART, short) == replace(
        told, clock=None, refused_length=len(left)
    )
    assert drop_clock(short) == short
    assert drop_clock("") == ""


def test_records_without_a_malformed_value_take_no_room_in_the_metadata():
    assert "malformed" not in LEFT


def test_reasons_of_malformed_values_take_little_room_in_the_metadata():
    most = MalformedPayloads.from_reasons(dict.fromkeys(NEXT_STEPS, 10**9))
    left = encode_group_metadata(OFFSET, PART, END, most)
    assert len(left) - len(LEFT) < 250


instants = st.integers(-(2**62), 2**62)
clocks = st.builds(
    WriterState,
    st.none() | instants,
    st.none() | instants,
    st.integers(0, 2**62),
    st.none() | instants,
)
clocks = st.builds(
    PartitionClock,
    cti_us=st.none() | instants,
    events=st.integers(0, 2**62),
    writers=st.dictionaries(st.text(max_size=2) | st.sampled_from("abcdefgh"), clocks).map(
        lambda found: tuple(sorted(found.items()))
    ),
    noted_us=st.none() | instants,
    begun=st.booleans(),
)


@given(clocks, clocks)
@settings(max_examples=300, deadline=None)
def test_any_state_comes_back_as_it_was(start, end):
    left = encode_group_metadata(changed(clock=start), PART, end)
    assert left.isascii()
    assert state_in(left, changed(clock=start)) == end


def refusal(text, start):
    try:
        group_metadata._unpack_clock(text, start)
    except ValueError as error:
        return str(error)
    return "none"


@given(clocks, clocks, st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_to_a_packed_clock_is_refused_by_name(start, end, data):
    good = group_metadata._pack_clock(end, start)
    place, letter = data.draw(st.integers(0, len(good))), data.draw(st.text(max_size=5))
    bad = good[:place] + letter + good[place + data.draw(st.integers(0, 5)) :]
    # There is no checksum: a state of the same form may come of it.
    assert refusal(bad, start).startswith(("the packed clock cannot be read: ", "none"))


def test_a_short_text_that_stands_for_gigabytes_is_refused():
    """Names that grow by one letter each, and zeros that deflate to nothing."""
    start = PartitionClock()
    head = {**start.to_json(), "writers": [[999_999] * 20_000, ["x"] * 20_000]}
    names = packed(json.dumps(head).encode() + b"\n")
    assert len(names) < 2_000
    assert refusal(names, start) == "the packed clock cannot be read: its names are too long"
    zeros = packed(bytes(1 << 25))
    assert refusal(zeros, start).endswith("it does not end where it should")


def packed(text):
    deflate = zlib.compressobj(wbits=-15)
    return base64.b85encode(deflate.compress(text) + deflate.flush()).decode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("~~~~~", "base85"),
        (packed(b"{}")[:-3], "does not end where it should"),
        (packed(b"7"), "'int' object has no attribute"),
        (packed(b"[" * 100_000), "recursion"),
        (packed(b'{"place":7}'), "has no field 'place'"),
        (packed(b"{}\nx"), "more numbers than writers"),
        (packed(b'{"writers":[[0],["a"]]}\n\x80'), "Expected 4 arguments, got 0"),
        (
            packed(b'{"writers":[[0],["a"],[0,1,0,1],[1,0,0,1]]}\n\x80'),
            "fewer numbers than writers",
        ),
        (packed(b'{"writers":[[0],["a"],[0,1,0,1],[65,0,0,1]]}\n\x80'), "a number has 65 bits"),
        (packed(b'{"writers":[[0],[7]]}'), "can only concatenate str"),
        (packed(b'{"writers":[[0],["a"],[0,1,0,1],[1,0,0,-1]]}\n\x80\x80'), "out of bounds"),
        (packed(b'{"writers":[[0],["a"],[0,1,%d,1]]}' % 2**64), "too large"),
    ],
)
def test_a_packed_clock_of_another_form_is_refused_by_name(text, reason):
    with pytest.raises(ValueError, match=f"the packed clock cannot be read: .*{reason}"):
        group_metadata._unpack_clock(text, PartitionClock())


MINUTE_US = 60_000_000
BEGUN_US = 1_766_000_000_000_000


def clock(base_us, writers):
    return PartitionClock(
        base_us,
        writers=tuple(sorted(writers.items())),
        noted_us=base_us,
        record_us=base_us,
        begun=True,
    )


def marked(names, base_us, chance):
    """So many writers, each with a mark anywhere in a minute, read within a tenth of a second."""
    last_us = base_us + MINUTE_US
    return {
        name: WriterState(
            base_us + chance.randrange(MINUTE_US), last_us - 1_000 * chance.randrange(100)
        )
        for name in names
    }


def size(start, end):
    offset = changed(clock=start)
    left = encode_group_metadata(offset, PART, end)
    assert state_in(left, offset) == end
    return len(left)


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["w", "01234567-89ab-cdef-0123-456789"])
def test_clocks_of_writers_take_little_beside_what_the_driver_knows(prefix):
    """5,000 that keep step and 600 of them mark in a batch, or 700 that all do."""
    chance = random.Random(7)
    names = [f"{prefix}{n:06}" for n in range(5_000)]
    before, later_us = marked(names, BEGUN_US, chance), BEGUN_US + MINUTE_US
    start = clock(BEGUN_US, before)
    in_step = {
        name: WriterState(mark_us + MINUTE_US, seen_us + MINUTE_US)
        for name, (mark_us, seen_us, *_) in before.items()
    }
    assert size(start, clock(later_us, in_step)) < 400
    some = marked(chance.sample(names, 600), later_us, chance)
    assert 2_500 < size(start, clock(later_us, {**before, **some})) < BROKERS_DEFAULT
    new = clock(later_us, marked(names[:600], later_us, chance))
    assert size(clock(BEGUN_US, {}), new) < (BROKERS_DEFAULT if prefix == "w" else 5_000)
    few = clock(BEGUN_US, {name: before[name] for name in names[:700]})
    of_their_own = clock(later_us, marked(names[:700], later_us, chance))
    assert 2_500 < size(few, of_their_own) < BROKERS_DEFAULT
    # This is the limit that the documents name.
    all_of_their_own = clock(later_us, marked(names, later_us, chance))
    assert 18_000 < size(start, all_of_their_own) < 34_000


def test_a_timespan_that_moves_with_the_mark_takes_no_room():
    def state(base_us, has_base):
        marks = {f"w{n}": base_us + n * 7_919_017 % MINUTE_US for n in range(500)}
        return clock(
            base_us,
            {
                name: WriterState(us, None, 0, us + 5 if has_base else None)
                for name, us in marks.items()
            },
        )

    sizes = [
        size(state(BEGUN_US, has_base), state(2 * BEGUN_US, has_base)) for has_base in (True, False)
    ]
    assert abs(sizes[0] - sizes[1]) < 20


def test_a_state_without_writers_takes_little():
    assert len(encode_group_metadata(OFFSET, PART, PartitionClock(*[-(2**62)] * 10))) < 500
