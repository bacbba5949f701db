"""Resolution of the ending options."""

import pytest
from timestream.builders import at, options

from pyspark_timestream.errors import DataLost, OptionError
from pyspark_timestream.kafka.offsets.positions import make_end_bound

EARLIEST = {at(0): 3, at(1): 0}
ENDS = {at(0): 9, at(1): 5}
BY_PARTITION = '{"topic": {"0": 1000, "1": 2000}}'


def ends(found=None, **raw):
    """The timestamps that are asked for, and where a read ends given the broker's answers."""
    asked = {}

    def answer(instants_ms):
        asked.update(instants_ms)
        return {partition: found[partition] for partition in instants_ms}

    stops = make_end_bound(options(**raw)).resolve(EARLIEST, ENDS, answer)
    return asked, stops


def test_batch_read_ends_at_the_latest_offset_by_default():
    assert ends() == ends(endingOffsets="latest") == ({}, ENDS)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ('{"0": 5, "1": 0}', {at(0): 5, at(1): 0}),
        ('{"0": 3, "1": -1}', {at(0): 3, at(1): 5}),
        ('{"0": 9, "1": 5}', ENDS),
    ],
)
def test_named_offsets_are_taken_and_minus_one_is_the_latest(offsets, expected):
    assert ends(endingOffsets=f'{{"topic": {offsets}}}')[1] == expected


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp"])
@pytest.mark.parametrize("offsets", ['{"0": 5}', '{"0": 5, "1": 0, "2": 0}'])
def test_an_end_must_be_of_just_the_partitions_that_there_are(name, offsets):
    with pytest.raises(OptionError, match="the partitions are topic-0, topic-1") as refused:
        ends({at(0): 1, at(1): 1}, **{name: f'{{"topic": {offsets}}}'})
    assert refused.value.name == name


@pytest.mark.parametrize(("wanted", "nearest"), [(2, 3), (10, 9)])
def test_an_end_that_is_not_there_is_lost_data_or_the_nearest(wanted, nearest):
    text = f'{{"topic": {{"0": {wanted}, "1": 0}}}}'
    with pytest.raises(DataLost, match=f"'endingOffsets': .* has offsets 3 to 9, not {wanted}"):
        ends(endingOffsets=text)
    assert ends(endingOffsets=text, failOnDataLoss="false")[1] == {at(0): nearest, at(1): 0}


def test_a_timestamp_ends_a_partition_before_its_first_record_at_or_after_it():
    answers = {at(0): 4, at(1): 2}
    assert ends(answers, endingTimestamp="7") == ({at(0): 7, at(1): 7}, answers)
    assert ends(answers, endingOffsetsByTimestamp=BY_PARTITION) == (
        {at(0): 1000, at(1): 2000},
        answers,
    )


def test_a_timestamp_after_the_last_record_ends_at_the_latest():
    assert ends({at(0): None, at(1): 2}, endingTimestamp="7")[1] == {at(0): 9, at(1): 2}


def test_the_timestamp_goes_before_those_by_partition_and_those_before_offsets():
    offsets = {"endingOffsets": '{"topic": {"0": 5, "1": 1}}'}
    by_partition = {**offsets, "endingOffsetsByTimestamp": BY_PARTITION}
    answers = {at(0): 4, at(1): 2}
    assert ends(answers, **by_partition) == ({at(0): 1000, at(1): 2000}, answers)
    assert ends(answers, **by_partition, endingTimestamp="9")[0] == {at(0): 9, at(1): 9}
