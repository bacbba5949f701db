"""Formats and helpers over Spark Connect: a server, and a client that has no JVM.

The client is a process of its own (`connect_client`), since sessions of Spark Connect and classic
ones cannot be in one.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import connect_client
import pytest
from broker import Broker, Record
from connect_server import connect_server
from documents import blocks, check_comments
from kafka_query import DAY_MS, event

pytestmark = pytest.mark.timeout(400)

PAGE = "docs/how-to/spark-connect.md"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientProcess]:
    """A client of the module's server."""
    place = tmp_path_factory.mktemp("server")
    with connect_server(place) as server, ClientProcess(server.url) as process:
        yield process


class ClientProcess:
    """A process with a session of the server at `url`; called, it runs a function."""

    def __init__(self, url: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.url = url
        self._pool = ProcessPoolExecutor(1, spawn, connect_client.connect, (url,))

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._pool.submit(function, *arguments).result()


def test_a_client_is_configured_without_a_warning_and_without_a_jvm(client: ClientProcess) -> None:
    module, zone, has_jvm = client(connect_client.read_settings)
    assert module.startswith("pyspark.sql.connect")
    assert (zone, has_jvm) == ("UTC", False)


@pytest.mark.outside_ci
@pytest.mark.soak
def test_filters_before_advance_time_let_ctis_through_over_connect(
    client: ClientProcess, tmp_path: Path
) -> None:
    place = tmp_path / "stream"
    place.mkdir()
    rows: list[dict[str, object]] = [
        {"station": name, "start_time": f"2026-01-01T10:0{minute}:00Z", "n": minute}
        for minute in range(3)
        for name in "ab"
    ]
    rows += [{"station": "c", "start_time": "2026-01-01T10:00:00Z"}]
    rows += [{"cti": "2026-01-01T10:06:00Z"}]
    (place / "rows").write_text("\n".join(map(json.dumps, rows)))
    assert client(connect_client.count_filtered, str(place)) == {
        "where": 3, "column": 3, "stated": 3, "na.drop": 6,
        "cti is null": "SchemaRefused", "limit": "SchemaRefused", "na.drop()": "SchemaRefused",
    }  # fmt: skip


@pytest.mark.soak
def test_a_clock_is_stored_and_read_back_over_connect(
    client: ClientProcess, tmp_path: Path
) -> None:
    assert client(connect_client.store_clock, str(tmp_path)) == [(0, 0), (10, 1), (20, 2)]


@pytest.mark.outside_ci
def test_windows_are_stored_corrected_and_passed_on_over_connect(
    client: ClientProcess, broker: Broker, topic, tmp_path: Path
) -> None:
    name, target, place = topic(1), topic(1), str(tmp_path)
    broker.produce(name, [event(second) for second in (1, 12, 3, 31, 15)])
    counted = [broker.bootstrap, name, place]
    in_time, corrected = client(connect_client.count_windows, *counted)
    assert in_time == [(0, 1), (10, 1), (30, 1)]
    assert corrected == [(0, 2), (10, 2), (30, 1)]
    # The same query, by its checkpoint, has counted these rows.
    assert client(connect_client.count_windows, *counted) == [corrected, corrected]
    passed_on = client(connect_client.pass_on, broker.bootstrap, target, place)
    assert passed_on == [(0, 1), (10, 1), (30, 1)]
    marks = [dict(each.headers() or []).get("cti") for each in broker.read(target)]
    assert marks[-1] is not None


@pytest.mark.soak
def test_corrections_of_a_killed_server_are_finished_by_the_next_one(
    broker: Broker, topic, tmp_path: Path
) -> None:
    name, place = topic(1), tmp_path / "place"
    broker.produce(name, [event(second) for second in (1, 12, 3, 31, 15)])
    counted = (broker.bootstrap, name, str(place))
    with connect_server(tmp_path / "killed") as server:
        spawn = multiprocessing.get_context("spawn")
        client = spawn.Process(target=connect_client.run, args=(server.url, *counted))
        client.start()
        deadline = time.monotonic() + 200
        # The batch has decided what it corrects, and may have committed it or not.
        while not list(place.glob("store/_tseries/late/*/0*.arrow")):
            assert client.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        server.session.kill()
        # It would try for minutes to reach its server.
        client.kill()
        client.join()
    with connect_server(tmp_path / "next") as server, ClientProcess(server.url) as client:
        corrected = client(connect_client.count_windows, *counted)[1]
    assert corrected == [(0, 2), (10, 2), (30, 1)]


@pytest.mark.outside_ci
@pytest.mark.soak
def test_events_are_moved_given_lifetimes_and_ordered_over_connect(
    client: ClientProcess, broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(2)
    # One of the two at the same time arrives a batch before the other, in a later partition.
    broker.produce(name, [event(5, 1, station="a", number=1), event(2, 1, station="a", number=2)])
    broker.produce(name, [event(1, 0, station="a", number=4), event(5, 0, station="a", number=3)])
    place = str(tmp_path / "rows")
    rows = client(connect_client.order_events, broker.bootstrap, name, place)
    assert rows == [(61, 66, 4), (62, 67, 2), (65, 70, 1), (65, 70, 3)]


@pytest.mark.outside_ci
def test_a_running_query_is_explained_measured_and_ended_over_connect(
    client: ClientProcess, broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(2)
    broker.produce(name, [event(1), event(5), event(12)])
    found = client(connect_client.end_running, broker.bootstrap, name, str(tmp_path))
    assert f"{name} 1" in found["running"]
    assert "=> " in found["running"]
    assert "explain --checkpoint DIRECTORY" in found["running"]
    assert "the stream has ended" in found["ended"]
    assert "timestream_stream_ended{" in found["page"]
    assert "timestream_listener_failures_total 0" in found["page"]
    assert found["counted"] == [(0, 2), (10, 1)]


def test_helpers_in_a_function_of_a_pipeline_say_where_to_call_them(client: ClientProcess) -> None:
    (said,) = set(client(connect_client.ask_in_pipeline))
    assert "a function of a pipeline may not ask which columns" in said
    assert "next step: build it at the top of the file" in said


def trip(minute: int) -> Record:
    return Record(json.dumps({"station": "Central", "departed": DAY_MS + 60_000 * minute}))


def replaced(text: str, names: dict[str, str]) -> str:
    for written, own in names.items():
        text = text.replace(written, own)
    return text


@pytest.mark.outside_ci
def test_the_code_of_the_page_runs_in_a_client(
    client: ClientProcess, broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(1)
    broker.produce(name, [trip(minute) for minute in (10, 6, 70, 130)])
    here = {"localhost:9092": broker.bootstrap, '"rides"': f'"{name}"', "/data/": f"{tmp_path}/"}
    here["sc://localhost:15002"] = client.url
    run = [block for block in blocks(PAGE, "python") if "import pipelines" not in block.text]
    printed = client(connect_client.run_blocks, [replaced(block.text, here) for block in run])
    for block in run:
        check_comments(block, printed)


def test_a_failed_query_says_why_over_connect(
    client: ClientProcess, broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(1)
    broker.produce(name, [event(5), event(1)])
    of_error, of_query, explained, refused = client(
        connect_client.fail, broker.bootstrap, name, str(tmp_path)
    )
    assert "violationPolicy" in of_error
    assert of_query == of_error
    assert of_error in explained
    assert "does not run" in refused
