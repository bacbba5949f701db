"""The view of a query follows its checkpoint, for any order of reads, and stays bounded."""

import errno
import json
import os
import random
import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timestream.commands_watch import look, running, write
from timestream.histories import NOON, SECOND, history, share, state

from pyspark_timestream.commands.watch import follow
from pyspark_timestream.commands.watch.follow import (
    CheckpointFollower,
    CtiPoint,
    QueryLog,
    rank_partitions,
    thin_curve,
)
from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import CheckpointUnreadable
from pyspark_timestream.kafka.diagnosis.history import BatchReport

HELD = [share(state(5)), share(state(1))]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_a_checkpoint_that_is_read_as_it_grows_is_shown_as_one_that_is_read_at_once(
    tmp_path_factory, steps
):
    moments = running(sum(steps), late=1)
    root = tmp_path_factory.mktemp("checkpoint")
    grown, last = CheckpointFollower(str(root)), 0
    for step in steps:
        write(root, moments[last : last + step])
        view = look(grown, NOON)
        last += step
    assert view == look(CheckpointFollower(str(root)), NOON)
    assert [each.number for each in view.triggers] == list(range(last))
    assert {each.finished_us - each.planned_us for each in view.triggers} == {SECOND // 2}


def test_what_holds_back_comes_first_and_idle_partitions_last(tmp_path):
    shares = [share(state(9)), share(state(1)), share(state(4)), share(state(2), idle=True)]
    write(tmp_path, history(shares, shares))
    (stream,) = look(CheckpointFollower(str(tmp_path)), NOON).streams
    ranked = rank_partitions(stream.explanation.partitions)
    assert [fact.partition.number for fact in ranked] == [1, 2, 0, 3]
    assert ranked[0].is_cause


def test_late_rows_are_counted_and_the_offsets_are_named_in_which_they_were(tmp_path):
    write(tmp_path, running(4, late=3))
    (stream,) = look(CheckpointFollower(str(tmp_path)), NOON).streams
    assert (stream.counts["dropped"], stream.counts["events"]) == (9, 60)
    newest = stream.cases[0]
    assert (newest.counter, newest.counted, newest.start, newest.end, newest.batch) == (
        "dropped", 3, 20, 30, 2,
    )  # fmt: skip


def test_counts_are_of_the_last_minute_of_batches(tmp_path):
    write(tmp_path, running(90))
    (stream,) = look(CheckpointFollower(str(tmp_path)), NOON).streams
    assert stream.counts["events"] == 2 * 10 * 60


@pytest.mark.parametrize(
    ("finished", "now_s", "runs", "status"),
    [
        ({0, 1}, 2, None, "runs"),
        ({0, 1}, 60, None, "quiet"),
        ({0, 1}, 60, True, "runs"),
        ({0, 1}, 2, False, "stopped"),
        ({0}, 2, None, "works"),
        ({0}, 3600, None, "works"),
    ],
)
def test_the_status_says_what_a_checkpoint_can_know(finished, now_s, runs, status):
    log = QueryLog("q")
    for moment in running(2):
        number = moment.offset.number
        done_us = moment.planned_us + 1 if number in finished else None
        log.add(number, BatchReport(moment.planned_us, (moment.offset.to_json(),)), done_us)
    assert log.view(NOON + now_s * SECOND, runs=runs).status == status


def test_a_query_that_plans_nothing_while_records_wait_has_stopped(tmp_path):
    write(tmp_path, running(2))
    follower = CheckpointFollower(str(tmp_path))
    look(follower, NOON)
    part = follower.log.partitions[0]
    follower.log.ends[part] = 1_000
    view = look(follower, NOON + 60 * SECOND)
    assert view.status == "stopped"
    assert view.streams[0].waiting == {part: 980}


def test_a_final_cti_is_the_end_and_no_point_of_the_scale(tmp_path):
    done = state(5, events=20)
    end = [share(replace(done, cti_us=FINAL_US))]
    write(tmp_path, history([share(done)], end, final=True))
    view = look(CheckpointFollower(str(tmp_path)), NOON + 60 * SECOND)
    assert view.streams[0].is_final
    assert view.status == "stopped"


def test_a_checkpoint_that_is_restored_from_a_copy_is_read_anew(tmp_path):
    root, copy = tmp_path / "c", tmp_path / "copy"
    moments = running(8, late=1)
    write(root, moments[:3])
    shutil.copytree(root, copy)
    follower = CheckpointFollower(str(root))
    write(root, moments[3:])
    assert len(look(follower, NOON).triggers) == 8
    shutil.rmtree(root)
    shutil.copytree(copy, root)
    assert look(follower, NOON) == look(CheckpointFollower(str(root)), NOON)
    assert len(look(follower, NOON).triggers) == 3


def test_a_checkpoint_that_vanishes_is_said_to_and_what_was_known_stays(tmp_path):
    root = tmp_path / "c"
    follower = CheckpointFollower(str(root))
    before = look(follower, NOON)
    assert before.status == "unknown"
    assert "has no directory 'offsets'" in before.detail
    write(root, running(2))
    assert look(follower, NOON).status in ("runs", "quiet")
    shutil.rmtree(root)
    gone = look(follower, NOON)
    assert gone.status == "unknown"
    assert len(gone.triggers) == 2
    assert gone.streams
    write(root, running(3))
    assert len(look(follower, NOON).triggers) == 3


def test_a_torn_entry_is_named_and_read_when_it_is_whole(tmp_path):
    write(tmp_path, running(3))
    torn = tmp_path / "offsets" / "2"
    whole = torn.read_text()
    stamp = torn.stat()
    torn.write_text(whole[:40])
    os.utime(torn, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    follower = CheckpointFollower(str(tmp_path))
    view = look(follower, NOON)
    assert view.notes[0].startswith("offsets/2 cannot be read")
    assert len(view.triggers) == 2
    torn.write_text(whole)
    view = look(follower, NOON)
    assert view.notes == ()
    assert len(view.triggers) == 3


def test_entries_that_spark_has_removed_leave_their_point_of_the_curve(tmp_path):
    moments = running(12)
    write(tmp_path, moments[:6])
    follower = CheckpointFollower(str(tmp_path))
    look(follower, NOON)
    write(tmp_path, moments[6:])
    for number in range(5):
        (tmp_path / "offsets" / str(number)).unlink()
    (stream,) = look(follower, NOON).streams
    assert [point.planned_us for point in stream.curve] == [m.planned_us for m in moments]


def test_an_entry_between_others_that_becomes_whole_takes_its_place(tmp_path):
    write(tmp_path, running(6, late=1))
    torn = tmp_path / "offsets" / "3"
    whole = torn.read_text()
    torn.write_text(whole[:40])
    follower = CheckpointFollower(str(tmp_path))
    assert [each.number for each in look(follower, NOON).triggers] == [0, 1, 2, 4, 5]
    torn.write_text(whole)
    assert look(follower, NOON) == look(CheckpointFollower(str(tmp_path)), NOON)
    assert [each.number for each in look(follower, NOON).triggers] == list(range(6))


def test_of_a_long_history_the_curve_is_known_from_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "MAX_FULL_BATCHES", 10)
    monkeypatch.setattr(follow, "MAX_RECALLED", 30)
    monkeypatch.setattr(follow, "_MAX_LISTED_OFTEN", 50)
    moments = running(160, late=1)
    write(tmp_path, moments[:150])
    follower = CheckpointFollower(str(tmp_path))
    view = look(follower, NOON)
    assert [each.number for each in view.triggers] == list(range(140, 150))
    (stream,) = view.streams
    assert set(stream.curve) <= {CtiPoint(m.planned_us, m.offset.cti_us) for m in moments}
    assert stream.curve[0].planned_us == NOON
    assert list(stream.curve) == sorted(stream.curve)
    assert 30 <= len(stream.curve) <= 50
    write(tmp_path, moments[150:])
    (grown,) = look(follower, NOON).streams
    assert grown.curve == (
        *stream.curve,
        *(CtiPoint(m.planned_us, m.offset.cti_us) for m in moments[150:]),
    )


def test_large_entries_are_read_in_full_only_as_many_as_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "MAX_OFFSET_BYTES", 0)
    write(tmp_path, running(60))
    view = look(CheckpointFollower(str(tmp_path)), NOON)
    assert [each.number for each in view.triggers] == list(range(40, 60))
    assert [each.planned_us for each in view.streams[0].curve] == [
        NOON + n * SECOND for n in range(60)
    ]


def test_what_is_kept_is_bounded_however_long_a_query_runs(monkeypatch):
    monkeypatch.setattr(follow, "MAX_POINTS", 50)
    log = QueryLog("q")
    for moment in running(500, late=1):
        batch = BatchReport(moment.planned_us, (moment.offset.to_json(),))
        log.add(moment.offset.number, batch, moment.planned_us)
    view = log.view(NOON)
    assert len(view.triggers) == follow.MAX_FULL_BATCHES
    assert len(view.streams[0].curve) <= 2 * 50
    assert len(view.streams[0].cases) == follow.MAX_CASES
    assert view.streams[0].curve[0].planned_us == NOON
    assert view.streams[0].curve[-1].planned_us == NOON + 499 * SECOND


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300), st.integers(4, 50))
def test_a_thinner_curve_keeps_its_ends_and_is_a_part_of_the_whole(times, most):
    points = [CtiPoint(us, us) for us in sorted(times)]
    thinned = thin_curve(points, most)
    assert len(thinned) <= most
    assert thinned[0].planned_us == points[0].planned_us
    assert thinned[-1] == points[-1]
    assert set(thinned) <= set(points)
    assert thinned == sorted(thinned)


def test_a_batch_that_is_reported_again_is_one(tmp_path):
    log = QueryLog("q")
    for moment in [*running(3), *running(3)[1:]]:
        log.add(
            moment.offset.number,
            BatchReport(moment.planned_us, (moment.offset.to_json(),)),
            moment.planned_us,
        )
    view = log.view(NOON)
    assert len(view.triggers) == 3
    assert len(view.streams[0].curve) == 3


def test_a_place_that_is_not_on_this_machine_is_refused():
    with pytest.raises(CheckpointUnreadable, match="not on this machine"):
        CheckpointFollower("s3://bucket/checkpoint")


def test_random_garbage_in_a_checkpoint_is_a_note_and_never_an_end(tmp_path):
    write(tmp_path, running(4))
    chance = random.Random(7)
    follower = CheckpointFollower(str(tmp_path))
    for _ in range(60):
        number = chance.randrange(4)
        path = tmp_path / "offsets" / str(number)
        data = bytearray(path.read_bytes())
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(bytes(data))
        view = look(follower, NOON)
        assert view.status in ("runs", "quiet", "works", "stopped", "unknown")
        write(tmp_path, running(4))


def spoil_offsets(root):
    shutil.rmtree(root / "offsets")
    (root / "offsets").write_bytes(b"\0not a directory")


def fill_with_another_program(root):
    for number in range(3):
        (root / "offsets" / str(number)).write_bytes(random.Random(number).randbytes(500))
    (root / "offsets" / "latest").write_text("{}")
    (root / "offsets" / "7").mkdir()


def fill_with_another_source(root):
    for number in range(3):
        note = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": NOON // 1000})
        (root / "offsets" / str(number)).write_text(f'v1\n{note}\n{{"topic":{{"0":{number}}}}}')


def write_half(root):
    for path in (root / "offsets").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def put_nothing(root):
    for path in (root / "offsets").iterdir():
        path.write_bytes(b"")


def make_commits_a_file(root):
    shutil.rmtree(root / "commits")
    (root / "commits").write_text("")


def look_at_all(follower):
    follower.read()
    follower.read_state()
    return follower.view(NOON)


@pytest.mark.parametrize(
    "spoil",
    [
        shutil.rmtree, spoil_offsets, fill_with_another_program, fill_with_another_source,
        write_half, put_nothing, make_commits_a_file,
    ],
    ids=lambda spoil: spoil.__name__,
)  # fmt: skip
@pytest.mark.parametrize("is_known", [False, True], ids=["from the start", "in between"])
def test_whatever_becomes_of_a_checkpoint_is_shown_and_its_return_is_followed(
    tmp_path, spoil, is_known
):
    root, whole = tmp_path / "c", tmp_path / "whole"
    write(root, running(4))
    shutil.copytree(root, whole)
    right = look_at_all(CheckpointFollower(str(root)))
    follower = CheckpointFollower(str(root))
    if is_known:
        assert look_at_all(follower) == right
    spoil(root)
    for _ in range(3):
        view = look_at_all(follower)
        assert view.detail or view.notes or view.streams
        assert view.status in ("runs", "quiet", "works", "stopped", "unknown")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(whole, root)
    assert look_at_all(follower) == right
    write(root, running(6))
    assert [each.number for each in look(follower, NOON).triggers] == list(range(6))


@pytest.mark.parametrize("kind", ["emptied", "away"])
def test_a_log_that_showed_nothing_once_is_neither_mixed_with_the_next_one_nor_read_twice(
    tmp_path, monkeypatch, kind
):
    messages = running(8)
    write(tmp_path, messages)
    follower = CheckpointFollower(str(tmp_path))
    look(follower, NOON)
    if kind == "emptied":
        for file in [*(tmp_path / "offsets").iterdir(), *(tmp_path / "commits").iterdir()]:
            file.unlink()
        look(follower, NOON)
        write(tmp_path, messages[:3])
    else:
        real = os.stat

        def fail(path, *given, **named):
            if "/offsets/" in str(path):
                raise OSError(errno.EIO, "Input/output error")
            return real(path, *given, **named)

        with monkeypatch.context() as broken:
            broken.setattr(os, "stat", fail)
            follower.read()
    assert look(follower, NOON) == look(CheckpointFollower(str(tmp_path)), NOON)
