"""Where a new query starts."""

import pytest
from timestream.builders import at, options

from pyspark_timestream.errors import DataLost
from pyspark_timestream.kafka_options import read_kafka_options
from pyspark_timestream.kafka_starts import starting_positions
from pyspark_timestream.option_fields import OptionError

EARLIEST = {at(0): 3, at(1): 0}
ENDS = {at(0): 9, at(1): 5}


def starts(**raw):
    return starting_positions(options(**raw), EARLIEST, ENDS)


def test_a_new_query_starts_at_the_latest_unless_told_otherwise():
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
    with pytest.raises(OptionError, match="topic 'other' does not exist"):
        starts(subscribe="topic,other")


def test_an_assigned_partition_that_does_not_exist_is_named():
    given = {"kafka.bootstrap.servers": "b:1", "assign": '{"topic": [0, 1, 7]}'}
    with pytest.raises(OptionError, match="topic-7 do not exist"):
        starting_positions(read_kafka_options(given), EARLIEST, ENDS)
