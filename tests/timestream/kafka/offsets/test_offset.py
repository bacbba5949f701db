"""The Kafka transport's offset as JSON, and the states in it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import at

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET, check_offset, is_initial_offset
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.offsets.offset import (
    GivenWarning,
    ImportedPartition,
    ImportedTopic,
    MalformedPayloads,
    PartitionOffset,
    StreamOffset,
)
from pyspark_timestream.rules.clocks import PartitionClock

instants = st.none() | st.integers(-(2**62), 2**62)
clocks = st.builds(PartitionClock, instants, st.integers(0, 9), instants, st.integers(0, 2**40))
pendings = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple)
reasons = st.sampled_from(["framing", "key type", "type"])
malformed = st.dictionaries(reasons, st.integers(0, 9)).map(MalformedPayloads.from_reasons)
partition_offsets = st.builds(
    PartitionOffset,
    st.integers(0, 9),
    st.integers(0, 2**62),
    clocks,
    st.booleans(),
    instants,
    pendings,
    pendings,
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), instants), max_size=2).map(tuple),
    malformed_payloads=malformed,
)
topics = st.sampled_from(["a", "b", "a.b-c_d"])
some_partitions = st.builds(at, st.integers(0, 12), topics)
imported = st.builds(ImportedPartition, st.integers(0, 9), clocks, instants, st.booleans())
imports = st.builds(ImportedTopic, st.dictionaries(some_partitions, imported, max_size=3), instants)
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
    partitions=st.dictionaries(some_partitions, partition_offsets, max_size=4),
    cti_us=instants,
    first_cti_us=instants,
    tasks=st.integers(0, 9),
    end_of_run=st.booleans(),
    final=st.booleans(),
    topic_ids=st.dictionaries(topics, st.text(max_size=3)),
    imported=st.none() | imports,
    missing=st.dictionaries(some_partitions, partition_offsets, max_size=2),
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
    assert json.loads(text)["version"] == 1


def test_equal_offsets_have_equal_texts_in_any_order():
    clock = PartitionClock()
    pairs = [(at(n), PartitionOffset(0, n, clock)) for n in (2, 10, 1)]
    texts = {
        json.dumps(StreamOffset("me", dict(order), 1, dict(partitions)).to_json())
        for partitions in (pairs, pairs[::-1])
        for order in ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")])
    }
    assert len(texts) == 1


SETTINGS = {"ctiDelay": "5 seconds", "ctiFrequency": "10", "violationPolicy": "flag"}
OFFSET = StreamOffset("me", SETTINGS, 1, {})


@pytest.mark.parametrize("version", [0, 2, 99, None, "1"])
def test_another_format_version_is_refused_by_name(version):
    said = f"format version {version}; this timestream reads version 1: install the"
    with pytest.raises(CheckpointMismatch, match=said):
        check_offset({**OFFSET.to_json(), "version": version}, SETTINGS)


@pytest.mark.parametrize(
    ("today", "said"),
    [
        ({**SETTINGS, "ctiDelay": "6 seconds"}, "'ctiDelay' was '5 seconds' .* '6 seconds' now"),
        ({**SETTINGS, "edge": "k"}, "'edge' was 'not set' .* is 'k' now"),
        ({k: v for k, v in SETTINGS.items() if k != "ctiFrequency"}, "'10' .* 'not set' now"),
    ],
)
def test_another_setting_is_refused_with_option_old_and_new_value(today, said):
    with pytest.raises(CheckpointMismatch, match=said) as refused:
        check_offset(OFFSET.to_json(), today)
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
    offset = replace(OFFSET, settings={**SETTINGS, **then}).to_json()
    with pytest.raises(CheckpointMismatch, match=said):
        check_offset(offset, {**SETTINGS, **now})
    check_offset(offset, {**SETTINGS, **then})


def test_only_the_constant_first_offset_is_a_sentinel():
    assert is_initial_offset(INITIAL_OFFSET)
    assert is_initial_offset({"version": 99})
    assert not is_initial_offset(OFFSET.to_json())
