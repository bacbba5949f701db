"""The offset log and the progress are two witnesses of one history."""

import json

import pytest
from timestream.builders import at

from pyspark_timestream.core.checkpoint import INITIAL_OFFSET
from pyspark_timestream.errors import CheckpointMismatch, CheckpointUnreadable
from pyspark_timestream.kafka.diagnosis.history import (
    BatchReport,
    build_histories,
    count_remaining,
    drop_skipped,
    find_blocking_partitions,
    find_unchanged_since,
    read_progress,
)
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.rules.clocks import PartitionClock


def offset(number=0, stream="me", size=5):
    first = number * 5
    shares = {at(0): PartitionOffset(first, first + size, PartitionClock(events=first))}
    return StreamOffset(stream, {}, 1, shares, number)


def report(first, lag):
    return {"partitions": {"topic": {"0": {"offset": first, "lag": lag}}}}


def test_a_batch_that_a_repartition_skipped_is_left_out():
    """Batch 2 failed; 3 is the repartition's, with the offset of 1, and 4 goes on from there."""
    batches = {
        at: BatchReport(at, (None, offset(number).to_json()))
        for at, number in enumerate([0, 1, 2, 1, 2, 3])
    }
    assert list(drop_skipped(batches)) == [0, 1, 3, 4, 5]
    assert list(drop_skipped(dict(reversed(batches.items())))) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("encode", [json.dumps, lambda value: value])
def test_progress_gives_offset_and_log_ends_as_text_or_parsed(encode):
    source = {"endOffset": encode(offset().to_json()), "latestOffset": encode(report(0, 12))}
    batch = read_progress({"timestamp": "1970-01-01T00:00:01.000Z", "sources": [source]})
    (moment,) = build_histories([batch])["me"]
    assert (moment.planned_us, moment.offset, moment.readable_ends) == (
        1_000_000,
        offset(),
        {at(0): 12},
    )


def test_both_witnesses_of_a_batch_make_one_moment_whose_time_the_first_names():
    logged = [BatchReport(n, (offset(n).to_json(),)) for n in (2, 1)]
    told = BatchReport(1, (offset(2).to_json(),), (report(10, 8),))
    (first, second) = build_histories([*logged, told])["me"]
    assert (first.planned_us, first.offset.number, first.readable_ends) == (1, 1, {})
    assert (second.planned_us, second.offset.number, second.readable_ends) == (2, 2, {at(0): 18})
    assert count_remaining((first, second)) == {at(0): 3}


def test_log_ends_are_remembered_where_a_later_batch_has_none():
    told = BatchReport(1, (offset(1).to_json(),), (report(5, 8),))
    assert count_remaining(
        build_histories([told, BatchReport(2, (offset(2).to_json(),))])["me"]
    ) == {at(0): 0}
    assert count_remaining(build_histories([BatchReport(2, (offset(2).to_json(),))])["me"]) == {}


def test_streams_are_kept_apart_and_other_sources_are_left_out():
    foreign = [None, INITIAL_OFFSET, {"topic": {"0": 5}}, 17, "text", [1]]
    batch = BatchReport(1, (offset(0, "a").to_json(), *foreign, offset(0, "b").to_json()))
    assert list(build_histories([batch])) == ["a", "b"]


def test_a_newer_format_is_refused_by_name():
    newer = {**offset().to_json(), "version": 99}
    with pytest.raises(CheckpointMismatch, match="format version 99"):
        build_histories([BatchReport(1, (newer,))])


def test_a_damaged_offset_is_refused_by_its_stream():
    damaged = {**offset().to_json(), "partitions": {"topic": {"0": {"from": 1}}}}
    with pytest.raises(CheckpointUnreadable, match="'me' is damaged"):
        build_histories([BatchReport(1, (damaged,))])


def test_since_is_the_first_of_the_last_moments_alike():
    moments = build_histories([BatchReport(n, (offset(n).to_json(),)) for n in range(5)])["me"]
    assert find_unchanged_since(moments, lambda m: m.offset.number not in (0, 2)) == 3
    assert find_unchanged_since(moments, lambda m: m.offset.number < 4) is None


def test_holders_are_those_without_a_cti_else_the_least_and_never_the_idle():
    def moment(**clocks):
        shares = {
            at(int(name[1:])): PartitionOffset(0, 0, PartitionClock(cti_us=cti), idle=idle)
            for name, (cti, idle) in clocks.items()
        }
        value = StreamOffset("me", {}, 1, shares).to_json()
        return build_histories([BatchReport(0, (value,))])["me"][0]

    assert find_blocking_partitions(moment(p0=(5, False), p1=(None, False))) == {at(1)}
    assert find_blocking_partitions(moment(p0=(5, False), p1=(3, False), p2=(3, False))) == {
        at(1),
        at(2),
    }
    assert find_blocking_partitions(moment(p0=(5, False), p1=(None, True))) == {at(0)}


def test_what_a_description_gave_is_known_from_the_progress_alone():
    value = offset().to_json()
    told = {**report(0, 5), "timeSettings": {"from": "times.json", "taken": {"ctiDelay": "1 s"}}}
    log, progress = BatchReport(1, (value,)), BatchReport(2, (value,), (told,))
    for batches in ([log, progress], [progress, log], [progress]):
        ((record,),) = build_histories(batches).values()
        assert record.topic_settings == ("times.json", {"ctiDelay": "1 s"})
    ((record,),) = build_histories([log]).values()
    assert record.topic_settings is None


@pytest.mark.parametrize("stream", [["me"], {}, 5])
def test_a_stream_without_a_name_is_refused_by_name(stream):
    damaged = {**offset().to_json(), "stream": stream}
    with pytest.raises(CheckpointUnreadable, match="stream is"):
        build_histories(drop_skipped({0: BatchReport(1, (damaged,))}).values())
