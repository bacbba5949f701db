"""The listener never raises, logs once what it cannot read, and serves its page."""

import json
import logging
import socket
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from uuid import UUID

import pytest
from timestream.histories import share, state
from timestream.progress_events import event, offset_of, parse_page, values

from pyspark_timestream.commands.metrics_export import TimeMetrics
from pyspark_timestream.errors import MissingExtra
from pyspark_timestream.kafka.offsets.offset import StreamOffset
from pyspark_timestream.serving import PageServer

ID, RUN = UUID(int=1), UUID(int=2)


def progress(*offsets, **more):
    found = event(*offsets, query=str(ID), run=str(RUN), **more)
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(found)))


def started():
    return SimpleNamespace(id=ID, runId=RUN, name="rides")


@pytest.fixture
def served():
    metrics = TimeMetrics(port=0)
    yield metrics
    metrics.close()


def fetch(metrics, path="/metrics", method="GET"):
    request = urllib.request.Request(f"http://127.0.0.1:{metrics.port}{path}", method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.headers, answer.read().decode("utf-8")


def test_a_progress_is_read_once_for_the_numbers_and_the_page(monkeypatch):
    read, parsed = StreamOffset.from_json.__func__, []

    def count(cls, value):
        parsed.append(value["number"])
        return read(cls, value)

    monkeypatch.setattr(StreamOffset, "from_json", classmethod(count))
    metrics = TimeMetrics(port=0, page=True)
    try:
        for number in range(3):
            found = progress(offset_of([share(state(1))], number), batch=number)
            metrics.onQueryProgress(found)
        assert "trips" in fetch(metrics, "/watch/sections")[1]
    finally:
        metrics.close()
    assert parsed == [0, 1, 2]
    assert "timestream_listener_failures_total 0" in metrics.text()


def test_query_is_followed_from_its_start_to_its_end(served):
    served.onQueryStarted(started())
    served.onQueryProgress(progress(offset_of([share(state(1))])))
    served.onQueryIdle(started())
    assert values(parse_page(served.text()), "timestream_query_active", query_name="rides") == [1]
    served.onQueryTerminated(started())
    page = parse_page(served.text())
    assert values(page, "timestream_query_active") == [0]
    assert values(page, "timestream_partition_events_total") == [20]


@pytest.mark.parametrize("garbage", ["", "{", "[]", "{}", "null", '{"id":1,"runId":2}'])
def test_garbage_is_logged_once_and_counted(garbage, caplog):
    metrics = TimeMetrics()
    metrics.onQueryStarted(started())
    for _ in range(3):
        metrics.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=garbage)))
    assert metrics.onQueryIdle(None) is None
    assert metrics.onQueryTerminated(object()) is None
    page = parse_page(metrics.text())
    assert values(page, "timestream_listener_failures_total")[0] >= 5
    told = [each for each in caplog.records if "could not read an event" in each.message]
    assert len(told) == 1
    assert values(page, "timestream_query_active") == [1]


@pytest.mark.parametrize("method", ["add", "end"])
def test_a_live_page_that_fails_is_logged_once_and_counted_and_costs_no_number(
    method, caplog, monkeypatch
):
    def fail(*_):
        raise RuntimeError("no page")

    metrics = TimeMetrics(port=0, page=True)
    monkeypatch.setattr(type(metrics._page), method, fail)
    try:
        metrics.onQueryStarted(started())
        for number in range(2):
            metrics.onQueryProgress(progress(offset_of([share(state(1))], number), batch=number))
            metrics.onQueryTerminated(started())
    finally:
        metrics.close()
    page = parse_page(metrics.text())
    assert values(page, "timestream_listener_failures_total") == [2]
    assert values(page, "timestream_partition_events_total") == [20]
    assert values(page, "timestream_query_active") == [0]
    assert len([each for each in caplog.records if "for the live page" in each.message]) == 1


def test_offset_of_newer_code_costs_the_findings_alone(caplog):
    metrics = TimeMetrics()
    newer = offset_of([share(state(1))])
    found = progress(newer)
    parsed = json.loads(found.progress.json)
    end = {**json.loads(parsed["sources"][0]["endOffset"]), "version": 99}
    parsed["sources"][0]["endOffset"] = json.dumps(end)
    for _ in range(2):
        metrics.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(parsed))))
    page = parse_page(metrics.text())
    assert values(page, "timestream_partition_events_total") == [20]
    assert values(page, "timestream_listener_failures_total") == [2]
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


def test_partitions_past_the_limit_are_told_once(caplog):
    metrics = TimeMetrics(max_partitions=2)
    for number in range(3):
        metrics.onQueryProgress(progress(offset_of([share(state(1))] * 3, number), batch=number))
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == 1
    assert "first 2 partitions" in told[0]
    assert "max_partitions" in told[0]


def test_page_is_served_as_prometheus_expects_it(served):
    headers, text = fetch(served)
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert parse_page(text) == {("timestream_listener_failures_total", frozenset()): 0}
    assert fetch(served, "/metrics?x=1")[1] == text
    headers, nothing = fetch(served, method="HEAD")
    assert (headers["Content-Length"], nothing) == (str(len(text)), "")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(served, "/secrets")


def test_page_that_cannot_be_rendered_is_an_error_in_the_log(caplog):
    server = PageServer("127.0.0.1", 0, lambda *_: 1 // 0, "none", "--port")
    with pytest.raises(urllib.error.HTTPError, match="500"):
        fetch(server)
    server.close()
    assert ["ZeroDivisionError" in str(each.exc_info) for each in caplog.records] == [True]


def test_silent_client_does_not_keep_others_from_the_page(served):
    with socket.create_connection(("127.0.0.1", served.port)) as silent:
        silent.sendall(b"GET /met")
        assert "listener_failures" in fetch(served)[1]


def test_scrapes_during_updates_show_one_batch_each(served):
    batches = [
        progress(offset_of([share(state(1, events=n)), share(state(1, events=n))], n), batch=n)
        for n in range(60)
    ]

    def scrape(_):
        counts = values(parse_page(fetch(served)[1]), "timestream_partition_events_total")
        return len(set(counts)) <= 1

    with ThreadPoolExecutor(3) as threads:
        scraped = threads.map(scrape, range(30))
        for batch in batches:
            served.onQueryProgress(batch)
        assert all(scraped)


def test_port_that_is_taken_is_told_with_the_next_step(served):
    with pytest.raises(OSError, match=r"port \d+ of '127.0.0.1'.*next step: pass another one"):
        TimeMetrics(port=served.port)
    with pytest.raises(OSError, match="port 70000"):
        TimeMetrics(port=70_000)


def test_a_listener_that_gets_no_port_leaves_no_instruments(served):
    class Provider:
        def get_meter(self, *_, **__):
            raise AssertionError("instruments are made before the port is there")

    with pytest.raises(OSError, match="next step: pass another one"):
        TimeMetrics(port=served.port, opentelemetry=Provider())


def test_a_listener_without_opentelemetry_frees_its_port(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "opentelemetry", None)
        with pytest.raises(MissingExtra):
            TimeMetrics(port=port, opentelemetry=True)
    TimeMetrics(port=port).close()


def test_closed_server_frees_its_port():
    first = TimeMetrics(port=0)
    port = first.port
    first.close()
    first.close()
    again = TimeMetrics(port=port)
    assert (first.port, again.port) == (None, port)
    again.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [({"max_partitions": 0}, "option 'max_partitions'"), ({"keep_ended": "-1 s"}, "'keep_ended'")],
)
def test_mistaken_argument_is_refused_by_name(given, said):
    with pytest.raises(ValueError, match=said):
        TimeMetrics(**given)
