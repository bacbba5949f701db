"""A store and group metadata from before the packages got their folders are still of use."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from before_the_move.left import last_offset, left_in_kafka, unpacked

from pyspark_timestream.kafka.offsets.group_metadata import decode_group_metadata
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.kafka.ranges import Partition
from pyspark_tseries import TimeSeries

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> TimeSeries:
    return TimeSeries.open(unpacked("trips", tmp_path) / "store")


def values(store: TimeSeries, series: str) -> list[object]:
    return [event.value for event in store.range_query().select_from(series).events]


def test_an_old_store_is_whole_and_reads_as_it_did(store: TimeSeries) -> None:
    assert store.verify() == []
    by_hand = [{"trips": 7, "minutes": 70.5}, {"trips": 8, "minutes": 80.5}]
    assert values(store, "by hand") == by_hand
    # The query wrote another value, which was edited.
    assert values(store, "Central") == [{"trips": 1, "minutes": 1.5}]
    history = store.range_query().for_edits().select_from("Central").to_arrow()
    assert history["sequence"].to_pylist() == [0, 1]


def test_an_old_store_takes_appends_edits_and_compaction(store: TimeSeries) -> None:
    added = store.append("by hand", {"trips": 9, "minutes": 90.5}, NOON)
    edit = store.edit("Central", 0, {"trips": 2, "minutes": 2.5})
    assert (added.sequence, edit.sequence) == (2, 2)
    store.compact()
    assert store.verify() == []
    assert [value["trips"] for value in values(store, "by hand")] == [7, 8, 9]
    assert values(store, "Central") == [{"trips": 2, "minutes": 2.5}]


@pytest.mark.parametrize("query", ["trips", "writers"])
def test_old_group_metadata_gives_the_state_after_the_last_batch(query: str, tmp_path) -> None:
    offset = StreamOffset.from_json(last_offset(unpacked(query, tmp_path)))
    left = left_in_kafka(f"before-the-move-{query}")
    for number, (end, metadata) in left["committed"].items():
        partition = Partition(left["topic"], int(number))
        state = decode_group_metadata(offset, partition, metadata).state
        before = offset.partitions[partition]
        assert state is not None
        assert end == before.end_exclusive
        # Marks without a value are no events.
        assert (
            0 < state.events - before.state.events <= before.end_exclusive - before.start_inclusive
        )
