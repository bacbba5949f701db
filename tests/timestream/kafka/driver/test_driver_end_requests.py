"""A running stream that is told to end (semantics 11.12), without Spark and without a broker."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timestream.builders import at
from timestream.driven import Driven, FakeBroker

from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.core.processes import EndRequests, find_directory
from pyspark_timestream.errors import CheckpointMismatch
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.rules.clocks import PartitionClock

SHARED_DIRECTORY = [HealthCheck.function_scoped_fixture]
STREAM = "0123456789abcdef" * 2


def run_of(broker, directory, offset=None, **raw) -> Driven:
    run = Driven(broker, **{"ctiFrequency": "1", **raw})
    run.driver._requests = EndRequests(directory)
    if offset is not None:
        run.offset = offset
    return run


def last(run) -> StreamOffset:
    return StreamOffset.from_json(run.offset)


def test_a_stream_that_is_told_to_end_reads_to_the_ends_and_then_is_final(tmp_path):
    broker = FakeBroker(p0=(0, 10))
    run = run_of(broker, tmp_path)
    assert run.plan() == {0: (0, 10)}
    assert run.plan() is None
    broker.log[at(0)] = (0, 25)
    EndRequests(tmp_path).make(last(run).stream)
    assert run.plan(cap=10) == {0: (10, 20)}
    broker.log[at(0)] = (0, 99)
    assert run.plan() == {0: (20, 25)}
    assert not last(run).end_of_run
    assert run.plan() == {0: (25, 25)}
    assert (last(run).end_of_run, last(run).final, last(run).first_cti_us) == (True, True, FINAL_US)
    assert run.plan() is None


@settings(deadline=None, max_examples=60, suppress_health_check=SHARED_DIRECTORY)
@given(
    caps=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    told=st.integers(0, 5),
    killed=st.integers(0, 8),
    grows=st.booleans(),
)
def test_a_stream_ends_once_wherever_it_is_killed(tmp_path, caps, told, killed, grows):
    broker = FakeBroker(p0=(0, 20), p1=(5, 9))
    run = run_of(broker, tmp_path)
    run.plan(cap=caps[0])
    stream = last(run).stream
    try:
        for number in range(60):
            if number >= told:
                EndRequests(tmp_path).make(stream)
            if number == killed:
                # A new process, from what the checkpoint has; end_stream waits in another one.
                run = run_of(broker, tmp_path, run.offset)
            run.plan(cap=caps[number % len(caps)])
    finally:
        EndRequests(tmp_path).withdraw(stream)
    assert last(run).final
    assert {span.partition.number: span.end_exclusive for span in last(run).ranges()} == {
        0: 20,
        1: 9,
    }
    # The request is gone, and only the checkpoint knows the end.
    again = run_of(broker, tmp_path, run.offset)
    if grows:
        broker.log[at(0)] = (0, 21)
        with pytest.raises(CheckpointMismatch, match="this checkpoint's stream has ended"):
            again.plan()
    else:
        again.plan()
        assert last(again).final


@pytest.mark.parametrize(
    ("grace_s", "trouble"),
    [
        # Without a grace the request waits for the next batch instead.
        (0, {"former_ends": [5]}),
        (0.05, {"former_ends": [5]}),
        (0.05, {"missing": [1]}),
    ],
)
@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_leader_change_while_a_stream_ends_cuts_off_no_records(
    tmp_path, monkeypatch, grace_s, trouble, later
):
    monkeypatch.setattr("pyspark_timestream.kafka.driver.trackers.LEADER_CHANGE_GRACE_S", grace_s)
    broker = FakeBroker(p0=(0, 20), p1=(5, 9))
    run = run_of(broker, tmp_path)
    run.plan()
    broker.log = {at(0): (0, 25), at(1): (5, 12)}
    EndRequests(tmp_path).make(last(run).stream)
    asked = "partitions" if "missing" in trouble else "ends"
    given, answers = getattr(broker, asked), iter(range(99))

    def answer(*wanted):
        if next(answers) == later:
            vars(broker).update(trouble)
        return given(*wanted)

    setattr(broker, asked, answer)
    while run.plan() is not None:
        pass
    assert last(run).final
    assert {
        partition.number: each.end_exclusive for partition, each in last(run).partitions.items()
    } == {
        0: 25,
        1: 12,
    }


def test_a_request_that_a_killed_program_left_behind_ends_no_later_run(tmp_path):
    broker = FakeBroker(p0=(0, 10))
    run = run_of(broker, tmp_path)
    run.plan()
    EndRequests(tmp_path).make(last(run).stream)
    later = run_of(broker, tmp_path, run.offset)
    later.plan()
    assert not list(tmp_path.iterdir())
    assert later.plan() is None
    assert not last(later).bounded


def test_a_stream_without_ctis_just_ends(tmp_path):
    run = run_of(FakeBroker(p0=(0, 10)), tmp_path, ctiFrequency=None)
    run.plan()
    EndRequests(tmp_path).make(last(run).stream)
    assert run.plan() == {0: (10, 10)}
    assert (last(run).end_of_run, last(run).final) == (True, False)


@pytest.mark.parametrize(
    "own",
    [{"endingOffsets": '{"topic": {"0": 10, "1": -1}}'}, {"endingCti": "1970-01-01T00:00:09Z"}],
)
def test_a_stream_at_its_own_end_gets_the_final_cti_that_it_is_told(tmp_path, own):
    broker = FakeBroker(p0=(0, 20), p1=(5, 9))
    run = run_of(broker, tmp_path, **own)
    run.driver._end_states.restore = lambda options, offset, span: PartitionClock(9_000_000)
    while run.plan() is not None:
        pass
    assert (last(run).end_of_run, last(run).final) == (True, False)
    broker.log = {at(0): (0, 30), at(1): (5, 12)}
    EndRequests(tmp_path).make(last(run).stream)
    assert {begin == end for begin, end in run.plan().values()} == {True}
    assert (last(run).final, last(run).first_cti_us) == (True, FINAL_US)
    assert run.plan() is None


def test_a_request_for_another_stream_changes_nothing(tmp_path):
    run = run_of(FakeBroker(p0=(0, 10)), tmp_path)
    run.plan()
    EndRequests(tmp_path).make(STREAM)
    assert run.plan() is None


def test_a_request_is_a_file_of_the_same_user(tmp_path):
    assert not EndRequests(tmp_path).take(STREAM, is_running=True)
    EndRequests(tmp_path).make(STREAM)
    EndRequests(tmp_path).make(STREAM)
    assert EndRequests(tmp_path).take(STREAM, is_running=True)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    EndRequests(tmp_path).withdraw(STREAM)
    EndRequests(tmp_path).withdraw(STREAM)
    path.symlink_to("/etc/hostname")
    assert not EndRequests(tmp_path).take(STREAM, is_running=True)
    with pytest.raises(OSError, match="exists"):
        EndRequests(tmp_path).make(STREAM)
    path.unlink()
    path.mkdir()
    assert not EndRequests(tmp_path).take(STREAM, is_running=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_request_of_another_user_counts_for_nothing(tmp_path):
    EndRequests(tmp_path).make(STREAM)
    (path,) = tmp_path.iterdir()
    os.chown(path, 12345, 12345)
    assert not EndRequests(tmp_path).take(STREAM, is_running=True)


@pytest.mark.parametrize("stream", ["", "../../etc/passwd", STREAM + "0", "x" * 32])
def test_a_stream_id_is_no_path(tmp_path, stream):
    assert not EndRequests(tmp_path).take(stream, is_running=True)
    with pytest.raises(ValueError, match="not the id of a stream"):
        EndRequests(tmp_path).make(stream)


def test_both_processes_find_the_same_directory(tmp_path, monkeypatch):
    given = {"TMPDIR": str(tmp_path / "gone"), "TEMP": str(tmp_path)}
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    assert str(find_directory()) == str(find_directory(lambda name: None)) == "/tmp"
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert find_directory() == find_directory(given.get) == tmp_path
