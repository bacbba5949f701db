"""Resolution of the starting options."""

import pytest
from timestream.builders import at, options

from pyspark_timestream.errors import DataLost, OptionError
from pyspark_timestream.kafka.offsets.positions import make_start_bound
from pyspark_timestream.kafka.options.checks import read_kafka_options

EARLIEST = {at(0): 3, at(1): 0}
ENDS = {at(0): 9, at(1): 5}


def starts(**raw):
    return make_start_bound(options(**raw)).resolve(EARLIEST, ENDS, dict)


def starts_at(found, **raw):
    """A query's start when the broker answers `found` to the timestamps it asks for."""
    asked = {}

    def answer(instants_ms):
        asked.update(instants_ms)
        return {partition: found[partition] for partition in instants_ms}

    resolved = make_start_bound(options(**raw)).resolve(EARLIEST, ENDS, answer)
    return asked, resolved


def test_new_query_starts_at_the_latest_offset_by_default():
    assert starts() == starts(startingOffsets="latest") == ENDS
    assert starts(startingOffsets="Earliest") == EARLIEST


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ('{"0": 5, "1": 0}', {at(0): 5, at(1): 0}),
        ('{"0": -2, "1": -1}', {at(0): 3, at(1): 5}),
        ('{"0": 3, "1": 5}', {at(0): 3, at(1): 5}),
    ],
)
def test_named_offsets_are_taken_and_minus_one_and_two_are_words(offsets, expected):
    assert starts(startingOffsets=f'{{"topic": {offsets}}}') == expected


@pytest.mark.parametrize("offsets", ['{"0": 5}', '{"0": 5, "1": 0, "2": 0}'])
def test_named_offsets_must_be_of_just_the_partitions_that_there_are(offsets):
    with pytest.raises(OptionError, match="the partitions are topic-0, topic-1") as refused:
        starts(startingOffsets=f'{{"topic": {offsets}}}')
    assert refused.value.name == "startingOffsets"


@pytest.mark.parametrize(("wanted", "nearest"), [(2, 3), (10, 9)])
def test_an_offset_that_is_not_there_is_lost_data_or_the_nearest(wanted, nearest):
    text = f'{{"topic": {{"0": {wanted}, "1": 0}}}}'
    with pytest.raises(DataLost, match=f"partition 0 has offsets 3 to 9, not {wanted}"):
        starts(startingOffsets=text)
    assert starts(startingOffsets=text, failOnDataLoss="false") == {at(0): nearest, at(1): 0}


def test_a_topic_that_does_not_exist_is_named():
    with pytest.raises(OptionError, match=r"topic 'other' does not exist.*correct its name, or"):
        starts(subscribe="topic,other")


def test_an_assigned_partition_that_does_not_exist_is_named():
    given = {"kafka.bootstrap.servers": "b:1", "assign": '{"topic": [0, 1, 7]}'}
    with pytest.raises(OptionError, match="there is no topic-7"):
        make_start_bound(read_kafka_options(given)).resolve(EARLIEST, ENDS, dict)


BY_PARTITION = '{"topic": {"0": 1000, "1": 2000}}'


def test_a_timestamp_starts_each_partition_at_its_first_record_at_or_after_it():
    asked, found = starts_at({at(0): 4, at(1): 2}, startingTimestamp="1500")
    assert asked == {at(0): 1500, at(1): 1500}
    assert found == {at(0): 4, at(1): 2}
    asked, found = starts_at({at(0): 7, at(1): 5}, startingOffsetsByTimestamp=BY_PARTITION)
    assert asked == {at(0): 1000, at(1): 2000}
    assert found == {at(0): 7, at(1): 5}


def test_the_timestamp_goes_before_those_by_partition_and_those_before_offsets():
    all_three = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": BY_PARTITION}
    answers = {at(0): 4, at(1): 2}
    assert starts_at(answers, **all_three)[0] == {at(0): 1000, at(1): 2000}
    assert starts_at(answers, **all_three)[1] == answers
    assert starts_at(answers, **all_three, startingTimestamp="5")[0] == {at(0): 5, at(1): 5}


@pytest.mark.parametrize(
    ("name", "text"),
    [("startingTimestamp", "1000"), ("startingOffsetsByTimestamp", BY_PARTITION)],
)
def test_a_timestamp_after_the_last_record_fails_unless_the_strategy_is_latest(name, text):
    answers = {at(0): None, at(1): 2}
    with pytest.raises(OptionError, match="no record at or after timestamp 1000") as refused:
        starts_at(answers, **{name: text})
    assert refused.value.name == name
    assert "'startingOffsetsByTimestampStrategy' to 'latest'" in str(refused.value)
    more = {name: text, "startingOffsetsByTimestampStrategy": "latest"}
    assert starts_at(answers, **more)[1] == {at(0): 9, at(1): 2}


def test_a_timestamp_in_microseconds_is_after_all_records_and_the_error_says_so():
    with pytest.raises(
        OptionError,
        match="microseconds, of 2024-01-01, convert it to milliseconds; otherwise choose",
    ):
        starts_at({at(0): None, at(1): 2}, startingTimestamp="1704110400000000")


@pytest.mark.parametrize("text", ['{"topic": {"0": 1}}', '{"other": {"0": 1, "1": 1}}'])
def test_timestamps_must_be_of_just_the_partitions_that_there_are(text):
    with pytest.raises(OptionError, match="the partitions are topic-0, topic-1") as refused:
        starts_at({}, startingOffsetsByTimestamp=text)
    assert refused.value.name == "startingOffsetsByTimestamp"


def test_missing_topic_is_named_by_every_starting_option():
    with pytest.raises(OptionError, match="topic 'other' does not exist"):
        starts_at({}, startingTimestamp="1", subscribe="topic,other")


def test_a_pattern_that_matches_nothing_yet_starts_nowhere():
    given = options(subscribe=None, subscribePattern="topic.*", startingTimestamp="7")
    assert make_start_bound(given).resolve({}, {}, dict) == {}
