"""The rows that a place has written, and the next attempt (semantics 29.3 and 29.4)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.errors import ReplayDiffers
from pyspark_timestream.kafka.writer.ledger import (
    MARKS,
    LedgerEntry,
    Owner,
    check_other_tasks,
    check_row_count,
    check_written,
)
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions

PLACE = Owner("t/0/w", "t/0/w/q")
NUMBER = st.integers(0, 2**40)
MAYBE = st.one_of(st.none(), NUMBER)


@settings(deadline=None)
@given(NUMBER, MAYBE, MAYBE)
def test_an_entry_is_read_as_it_was_written(batch, rows, mark_us) -> None:
    entry = LedgerEntry(batch, rows, mark_us)
    assert LedgerEntry.decode(*entry.encode()) == entry


@pytest.mark.parametrize("metadata", [None, "", "no JSON", "[]", "7"])
def test_an_entry_whose_metadata_is_lost_still_has_its_batch(metadata) -> None:
    assert LedgerEntry.decode(3, metadata) == LedgerEntry(2)


@pytest.mark.parametrize("offset", [-1001, -1, 0])
def test_without_an_offset_nothing_is_written(offset) -> None:
    assert LedgerEntry.decode(offset, "") is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=20))
def test_any_repetition_of_batches_writes_each_one_once(steps) -> None:
    """A batch comes again until Spark notes it, and then the next one."""
    last, batch, written = None, 0, []
    for step in steps:
        if not check_written(last, batch, PLACE):
            written.append(batch)
            last = LedgerEntry(batch)
        batch += step == 0
    assert written == sorted(set(written))
    assert written == list(range(len(written)))


def test_a_checkpoint_that_was_set_back_is_refused() -> None:
    with pytest.raises(ReplayDiffers, match=r"batch 3 is to be written, and batch 4 .* 't/0/w/q'"):
        check_written(LedgerEntry(4), 3, PLACE)


def test_a_later_batch_is_told_to_be_perhaps_that_of_another_query_with_this_checkpoint() -> None:
    """Both write the same batches: a new checkpoint would write all of them again."""
    with pytest.raises(ReplayDiffers) as refused:
        check_written(LedgerEntry(4), 3, PLACE)
    assert refused.value.next_step.startswith("if another query runs with this checkpoint, end one")


def test_a_batch_that_comes_again_with_other_rows_is_refused() -> None:
    check_row_count(LedgerEntry(4, rows=7), 7, PLACE)
    check_row_count(LedgerEntry(4), 8, PLACE)
    with pytest.raises(ReplayDiffers, match=r"batch 4 was written with 7 rows, .* has 8"):
        check_row_count(LedgerEntry(4, rows=7), 8, PLACE)


@pytest.mark.parametrize("task", [0, 5, 8])
def test_a_task_that_wrote_the_batch_and_has_no_rows_now_is_refused(task) -> None:
    noted = {task: LedgerEntry(4, rows=3), 2: LedgerEntry(2), 1: LedgerEntry(4)}
    check_other_tasks(noted, 4, {1, task})
    check_other_tasks(noted, 5, {1})
    with pytest.raises(ReplayDiffers, match=f"batch 4 comes again .* task {task}, which has none"):
        check_other_tasks(noted, 4, {1})
    with pytest.raises(ReplayDiffers, match=rf"batch 3 .* batch 4 .* \(task {task}\)"):
        check_other_tasks(noted, 3, {1})


@settings(deadline=None)
@given(st.text("a/0", min_size=1), st.sampled_from(["t", "0"]), st.text("w/7", min_size=1))
def test_the_task_of_a_group_is_found_and_no_other_group_has_one(prefix, topic, writer) -> None:
    options = KafkaWriteOptions(topic, writer, prefix=prefix)
    for name in (0, 17, MARKS):
        group = Owner.of(options, "q", name).group
        assert Owner.find_task(options, "q", group) == (None if name == MARKS else name)
        assert Owner.find_task(options, "p", group) is None
        assert Owner.find_task(options, "q", f"x{group}") is None
    for middle in ("", "/", "-1", "1/2", "x"):
        other = f"{prefix}/{topic}/{middle}/{writer}/q"
        assert Owner.find_task(options, "q", other) is None


def test_places_of_other_topics_writers_and_tasks_are_others() -> None:
    options = [KafkaWriteOptions(topic, writer) for topic in "ab" for writer in "xy"]
    places = [Owner.of(each, "q", name) for each in options for name in (0, 1, MARKS)]
    assert len({each.transactional_id for each in places}) == len(places)


def test_a_new_checkpoint_has_new_groups_and_the_same_transactional_ids() -> None:
    options = KafkaWriteOptions("trips", "w")
    old, new = (Owner.of(options, query, 0) for query in ("q1", "q2"))
    assert old.transactional_id == new.transactional_id == "timestream-writer/trips/0/w"
    assert (old.group, new.group) == (f"{old.transactional_id}/q1", f"{old.transactional_id}/q2")


def test_without_a_writer_a_place_is_the_querys_own_and_tasks_are_found() -> None:
    for options in (KafkaWriteOptions("t"), KafkaWriteOptions()):
        places = [Owner.of(options, query, task) for query in ("p", "q") for task in (0, 7)]
        assert len({each.transactional_id for each in places}) == 4
        assert [Owner.find_task(options, "q", each.group) for each in places] == [
            None, None, 0, 7,
        ]  # fmt: skip
    assert Owner.of(KafkaWriteOptions(), "q", 0).group == "timestream-writer/*/0/q"
