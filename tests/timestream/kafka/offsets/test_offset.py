"""The Kafka transport's offset as JSON, and the states in it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at

from pyspark_timestream.core.offsets import INITIAL_OFFSET, check_offset, is_initial_offset
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.offsets.imported_ctis import ImportedPartition, ImportedTopic
from pyspark_timestream.kafka.offsets.offset import (
    OFFSET_VERSION,
    GivenWarning,
    MalformedValues,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.rules.state import PartitionState

FIXTURE = Path(__file__).parents[2] / "offsets" / "kafka_v1.json"
instants = st.none() | st.integers(-(2**62), 2**62)
states = st.builds(PartitionState, instants, st.integers(0, 9), instants, st.integers(0, 2**40))
pendings = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple)
reasons = st.sampled_from(["framing", "key type", "type"])
malformed = st.builds(
    lambda earlier, counts: MalformedValues(earlier) + MalformedValues.from_reasons(counts),
    st.integers(0, 9),
    st.dictionaries(reasons, st.integers(0, 9)),
)
shares = st.builds(
    PartitionOffset,
    st.integers(0, 9),
    st.integers(0, 2**62),
    states,
    st.booleans(),
    instants,
    pendings,
    pendings,
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), instants), max_size=2).map(tuple),
    malformed_values=malformed,
)
topics = st.sampled_from(["a", "b", "a.b-c_d"])
parts = st.builds(at, st.integers(0, 12), topics)
imported = st.builds(ImportedPartition, st.integers(0, 9), states, instants, st.booleans())
imports = st.builds(ImportedTopic, st.dictionaries(parts, imported, max_size=3), instants)
names, texts = st.text(min_size=1, max_size=3), st.text(max_size=3)
warnings = st.lists(
    st.builds(GivenWarning, names, names, names, texts, texts, st.integers(0, 9), st.booleans()),
    max_size=3,
).map(tuple)
offsets = st.builds(
    StreamOffset,
    stream=st.text(max_size=4),
    settings=st.dictionaries(st.sampled_from(["z", "a", "m"]), st.text(max_size=3)),
    starts=st.integers(1, 99),
    partitions=st.dictionaries(parts, shares, max_size=4),
    cti_us=instants,
    opening_us=instants,
    tasks=st.integers(0, 9),
    closing=st.booleans(),
    final=st.booleans(),
    topic_ids=st.dictionaries(topics, st.text(max_size=3)),
    imported=st.none() | imports,
    hidden=st.dictionaries(parts, shares, max_size=2),
    bounded=st.booleans(),
    warnings=warnings,
)


def sorted_everywhere(value):
    if isinstance(value, dict):
        keys = [key for key in value if not key.isdecimal()]
        numbers = [int(key) for key in value if key.isdecimal()]
        in_order = keys == sorted(keys) and numbers == sorted(numbers)
        return in_order and all(map(sorted_everywhere, value.values()))
    return True


@given(offsets)
@settings(deadline=None)
def test_an_offset_survives_json_and_is_the_same_text_each_time(offset):
    text = json.dumps(offset.to_json())
    read = StreamOffset.from_json(json.loads(text))
    assert read == offset
    assert json.dumps(read.to_json()) == text
    assert sorted_everywhere(json.loads(text))
    assert json.loads(text)["version"] == OFFSET_VERSION


def test_equal_offsets_have_equal_texts_in_any_order():
    state = PartitionState()
    pairs = [(at(n), PartitionOffset(0, n, state)) for n in (2, 10, 1)]
    texts = {
        json.dumps(StreamOffset("me", dict(order), 1, dict(partitions)).to_json())
        for partitions in (pairs, pairs[::-1])
        for order in ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")])
    }
    assert len(texts) == 1


V1 = StreamOffset(
    stream="0f6f7a4e9d0e4b6c8f3b1c2d3e4f5a6b",
    settings={
        "ctiDelay": "5 seconds",
        "ctiFrequency": "10",
        "eventShape": "point",
        "startTime": "header:time",
        "subscribe": "orders,trades",
        "timeUnit": "ms",
        "violationPolicy": "flag",
    },
    starts=3,
    partitions={
        at(0, "orders"): PartitionOffset(
            7, 19, PartitionState(1_700_000_000_000_000, 4, None, 7, 1, 2, 3, 4, 5, 6)
        ),
        at(11, "orders"): PartitionOffset(0, 0, PartitionState()),
        at(2, "trades"): PartitionOffset(5, 5, PartitionState(base_us=-1, cti_us=-5)),
    },
    cti_us=-5,
    opening_us=-5,
    tasks=1,
    closing=False,
    final=True,
    number=41,
)


def test_an_offset_of_format_version_1_stays_readable():
    """The file is what version 1 wrote; it never changes, whatever the code becomes."""
    stored = json.loads(FIXTURE.read_text())
    check_offset(stored, V1.settings, OFFSET_VERSION)
    assert StreamOffset.from_json(stored) == V1


V2 = Path(__file__).parents[2] / "offsets" / "kafka_v2.json"
NEW = replace(
    V1,
    partitions={
        **V1.partitions,
        at(11, "orders"): PartitionOffset(3, 3, PartitionState(), True, 1_700_000_000_000_000),
        at(2, "trades"): PartitionOffset(
            5, 9, PartitionState(cti_us=-5), False, None, ((7, 4), (12, 9))
        ),
    },
    topic_ids={"orders": "kAQXHmZmRqW2mQyLZcXhPA"},
    imported=ImportedTopic(
        {at(0, "clock"): ImportedPartition(8, PartitionState(7, 2), 7, True)}, 7
    ),
)


def test_an_offset_of_format_version_2_stays_readable():
    stored = json.loads(V2.read_text())
    check_offset(stored, V1.settings, OFFSET_VERSION)
    assert StreamOffset.from_json(stored) == NEW
    assert {**NEW.to_json(), "version": 2} == stored


V3 = Path(__file__).parents[2] / "offsets" / "kafka_v3.json"
NEWEST = replace(
    NEW,
    partitions={
        **NEW.partitions,
        at(2, "trades"): replace(
            NEW.partitions[at(2, "trades")],
            beginnings=((39, 0), (40, 3)),
            raises=((40, 3, -9), (41, 5, -5)),
            malformed_values=MalformedValues(3),
        ),
    },
    hidden={at(3, "trades"): PartitionOffset(6, 6, PartitionState(cti_us=-7), quiet_since_us=8)},
    imported=ImportedTopic(
        {at(0, "clock"): ImportedPartition(8, PartitionState(7, 2), 7, False, True, 9)}, 7
    ),
    bounded=True,
    warnings=(
        GivenWarning("malformed events", "orders", "7", detail="'x'", holds=False),
        GivenWarning("rows dropped as late", "everybody", "1 row", level=1),
    ),
)


def test_an_offset_of_format_version_3_stays_readable():
    stored = json.loads(V3.read_text())
    check_offset(stored, V1.settings, OFFSET_VERSION)
    assert StreamOffset.from_json(stored) == NEWEST
    assert NEWEST.to_json() == stored


def test_reasons_of_malformed_values_are_beside_the_total_that_version_3_reads():
    share = PartitionOffset(
        5, 9, PartitionState(), malformed_values=MalformedValues(4, (("key type", 1), ("type", 2)))
    )
    written = share.to_json()
    assert list(written)[-2:] == ["unfit", "unfit_by"]
    assert (written["unfit"], written["unfit_by"]) == (4, {"key type": 1, "type": 2})
    # An earlier release reads and writes the total alone.
    del written["unfit_by"]
    assert PartitionOffset.from_json(written).malformed_values == MalformedValues(4)


def test_a_newer_format_is_refused_by_name():
    with pytest.raises(CheckpointMismatch, match=f"version {OFFSET_VERSION + 1}; .* up to 3"):
        check_offset({**V1.to_json(), "version": OFFSET_VERSION + 1}, V1.settings, OFFSET_VERSION)


@pytest.mark.parametrize(
    ("today", "said"),
    [
        ({**V1.settings, "ctiDelay": "6 seconds"}, "'ctiDelay' was '5 seconds' .* '6 seconds' now"),
        ({**V1.settings, "edge": "k"}, "'edge' was 'not set' .* is 'k' now"),
        ({k: v for k, v in V1.settings.items() if k != "ctiFrequency"}, "'10' .* 'not set' now"),
    ],
)
def test_another_setting_is_refused_with_option_old_and_new_value(today, said):
    with pytest.raises(CheckpointMismatch, match=said) as refused:
        check_offset(V1.to_json(), today, OFFSET_VERSION)
    assert "new checkpoint" in str(refused.value)


COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (COMMITTED, UNCOMMITTED, r"'kafka.isolation.level' was 'read_committed' .* defines which "
         "records there are, so set it back to 'read_committed' or start with a new checkpoint"),
        (UNCOMMITTED, COMMITTED, "'read_uncommitted' when .* is 'read_committed' now"),
        (COMMITTED, {**COMMITTED, "kafka.topic.blacklist": "^t"}, "'.t' now; .* so leave it out"),
        ({**COMMITTED, "kafka.topic.blacklist": "^t"}, COMMITTED, "'.t' when .* 'not set' now"),
    ],
)  # fmt: skip
def test_another_client_setting_that_decides_the_records_is_refused_by_name(then, now, said):
    offset = replace(V1, settings={**V1.settings, **then}).to_json()
    with pytest.raises(CheckpointMismatch, match=said):
        check_offset(offset, {**V1.settings, **now}, OFFSET_VERSION)
    check_offset(offset, {**V1.settings, **then}, OFFSET_VERSION)


@pytest.mark.parametrize("now", [COMMITTED, UNCOMMITTED])
def test_a_checkpoint_from_before_client_settings_were_kept_goes_on(now):
    for file in (FIXTURE, V2):
        stored = json.loads(file.read_text())
        check_offset(stored, {**V1.settings, **now}, OFFSET_VERSION)
        with pytest.raises(CheckpointMismatch, match="'edge'"):
            check_offset(stored, {**V1.settings, **now, "edge": "k"}, OFFSET_VERSION)


def test_only_the_constant_first_offset_is_a_sentinel():
    assert is_initial_offset(INITIAL_OFFSET)
    assert is_initial_offset({"version": 99})
    assert not is_initial_offset(V1.to_json())
