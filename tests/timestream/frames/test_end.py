"""A running query that is told to end, as the program that started it sees it (semantics 11.12)."""

import json
import time
from threading import Event
from types import SimpleNamespace

import pytest
from timestream.builders import options

from pyspark_timestream import end_stream
from pyspark_timestream.core import processes
from pyspark_timestream.core.checkpoint import CTI_SETTINGS
from pyspark_timestream.core.processes import EndRequests
from pyspark_timestream.frames import end
from pyspark_timestream.frames.end import EndRequestSource

STREAM = "0123456789abcdef" * 2


class Running:
    """A query of one stream: each look at its progress goes one step on."""

    id = "query"

    def __init__(self, directory, *steps, stops=False, hangs=False, **raw):
        self.requests, self.steps, self.stops = EndRequests(directory), list(steps), stops
        self.settings = options(**{"ctiFrequency": "1", **raw}).settings()
        self.isActive, self.hangs, self.was_told, self.has_all = True, hangs, False, False

    @property
    def lastProgress(self):
        self.was_told |= self.requests.take(STREAM, is_running=True)
        closing, final = self.steps[0]
        # The last step belongs to a request that was found.
        if len(self.steps) > 1 and (self.was_told or len(self.steps) > 2):
            del self.steps[0]
        elif self.stops:
            self.isActive = False
        offset = {"partitions": {}, "stream": STREAM, "settings": self.settings}
        offset |= {"end_of_run": closing, "final": final}
        report = {"endOfStream": closing}
        source = SimpleNamespace(endOffset=json.dumps(offset), latestOffset=json.dumps(report))
        return SimpleNamespace(sources=[source])

    def processAllAvailable(self):
        if self.hangs:
            Event().wait(30)
        self.has_all = True

    def stop(self):
        self.isActive = False

    def awaitTermination(self):
        assert not self.isActive


RUNS, CLOSED, FINAL = (False, False), (True, False), (True, True)


@pytest.fixture(autouse=True)
def directory(monkeypatch, tmp_path):
    """No driver of Spark tells which directory its readers look at."""
    monkeypatch.setattr(end, "_open_requests", lambda query: EndRequests(tmp_path))
    return tmp_path


@pytest.mark.parametrize("steps", [(RUNS, FINAL), (CLOSED, FINAL), (RUNS, CLOSED, FINAL)])
def test_a_query_is_ended_by_a_final_cti_alone(directory, steps):
    query = Running(directory, *steps)
    end_stream(query, timeout_seconds=10, poll_seconds=0.01)
    assert (query.was_told, query.has_all, query.isActive) == (True, True, False)
    assert not list(directory.iterdir())


def test_a_query_without_ctis_ends_without_one(directory):
    query = Running(directory, RUNS, CLOSED, ctiFrequency=None)
    end_stream(query, timeout_seconds=10, poll_seconds=0.01)
    assert (query.was_told, query.has_all) == (True, True)


@pytest.mark.parametrize("last", [RUNS, CLOSED])
def test_a_query_that_stops_without_a_final_cti_has_not_ended(directory, last):
    query = Running(directory, last, stops=True)
    with pytest.raises(ValueError, match="stopped before it was told to end"):
        end_stream(query, timeout_seconds=10, poll_seconds=0.01)
    assert not list(directory.iterdir())


def test_a_sink_that_never_takes_the_last_rows_is_waited_for_no_longer(directory):
    query = Running(directory, RUNS, FINAL, hangs=True)
    begun_s = time.monotonic()
    with pytest.raises(TimeoutError, match="has not written all that its final CTI releases"):
        end_stream(query, timeout_seconds=0.3, poll_seconds=0.01)
    assert time.monotonic() - begun_s < 10
    assert query.isActive


@pytest.mark.parametrize(
    "raw", [{}, {"ctiFrequency": "1"}, {"ctiHeader": "cti"}, {"ctiImport": "fast"}]
)
def test_a_stream_with_ctis_is_known_by_its_settings(raw):
    given = options(**raw)
    assert given.settings().keys().isdisjoint(CTI_SETTINGS) != given.has_ctis


def test_two_calls_at_once_ask_for_one_end(monkeypatch, tmp_path):
    requests, is_own, asked = EndRequests(tmp_path), processes._is_own, []

    def look_too_early(path):
        asked.append(path)
        return len(asked) > 1 and is_own(path)

    requests.make(STREAM)
    monkeypatch.setattr(processes, "_is_own", look_too_early)
    requests.make(STREAM)
    assert requests.take(STREAM, is_running=True)


def test_what_is_not_this_users_is_no_request_and_stays(tmp_path):
    requests = EndRequests(tmp_path)
    foreign = requests._path_of(STREAM)
    foreign.mkdir()
    with pytest.raises(FileExistsError):
        requests.make(STREAM)
    requests.withdraw(STREAM)
    assert foreign.is_dir()
    assert not requests.take(STREAM, is_running=True)


def test_a_server_makes_and_withdraws_requests_where_its_readers_look(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    make, withdraw = ({"act": act, "stream": STREAM} for act in ("make", "withdraw"))
    for _ in range(2):
        assert EndRequestSource(make).schema().names == ["stream"]
    assert EndRequests(tmp_path).take(STREAM, is_running=True)
    for _ in range(2):
        EndRequestSource(withdraw).schema()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="is not the id of a stream"):
        EndRequestSource({"act": "make", "stream": "../x"}).schema()
