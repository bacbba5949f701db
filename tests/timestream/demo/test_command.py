"""The demo's options, and the one sentence that each thing that is missing gives."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_timestream.__main__ import main
from pyspark_timestream.demo.broker import (
    NoDemo,
    fetch_jars,
    find_user_cache,
    free_port,
    has_jars,
    read_java_version,
)
from pyspark_timestream.demo.command import EXAMPLE, choose_port, example


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def command(place: Path, name: str, script: str) -> Path:
    """A shell script as a command; returns the directory to put on PATH."""
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!/bin/sh\n{script}\n")
    (place / name).chmod(0o755)
    return place


# -- ports -----------------------------------------------------------------------------------------


def test_port_that_is_wanted_and_free_is_chosen() -> None:
    port = free_port()
    assert choose_port(port) == port


def test_port_that_is_taken_is_named_with_the_next_step(taken: int) -> None:
    with pytest.raises(NoDemo, match=rf"^port {taken} is in use: choose another with --port, or"):
        choose_port(taken)


def test_default_port_that_is_taken_gives_way_to_a_free_one(
    taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert choose_port(None, taken) not in (taken, 0)
    assert capsys.readouterr().out == f"Port {taken} is in use: a free one is taken.\n"


@pytest.mark.parametrize("port", [0, -1, 65_536])
def test_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(NoDemo, match=f"--port is {port}; accepted: 1 to 65535"):
        choose_port(port)


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_a_time_that_is_none_is_refused_before_a_broker_starts(
    capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert main(["demo", "--seconds", seconds]) == 1
    assert f"--seconds is {float(seconds)}; accepted: 0 or more" in capsys.readouterr().err


def test_command_prints_one_sentence_and_ends_with_one(
    taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--port", str(taken)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


# -- Java ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("what?", 0),
    ],
)
def test_java_version_is_read_from_what_it_prints(printed: str, version: int) -> None:
    assert read_java_version(printed) == version


def test_missing_java_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["demo"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("no Java here; Spark and Kafka need Java 17 or newer: install")


def test_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "old"
    home.mkdir()
    command(home / "bin", "java", "echo 'java version \"1.8.0_402\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert main(["demo"]) == 1
    assert capsys.readouterr().err.startswith(f"{home}/bin/java is Java 8; Spark and Kafka need")


# -- what has to be fetched ------------------------------------------------------------------------


def test_kafka_that_cannot_be_fetched_is_no_kafka(tmp_path: Path) -> None:
    java = command(tmp_path / "bin", "java", "echo 'UNRESOLVED DEPENDENCIES'; exit 1") / "java"
    lines: list[str] = []
    with pytest.raises(NoDemo, match="could not be fetched from Maven Central: check the network"):
        fetch_jars(tmp_path / "cache", str(java), lines.append)
    assert lines == ["UNRESOLVED DEPENDENCIES\n"]
    assert (tmp_path / "cache" / "ivy.log").read_text() == lines[0]
    assert not has_jars(tmp_path / "cache")


def test_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "jdk"
    home.mkdir()
    command(home / "bin", "java", "echo 'openjdk version \"17.0.15\"' >&2")
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["demo"]) == 1
    assert f"Not a directory: '{tmp_path}/file" in capsys.readouterr().err


def test_cache_is_where_the_desktop_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_user_cache() == tmp_path / "timestream"


# -- the example -----------------------------------------------------------------------------------


def test_example_has_the_address_of_the_broker() -> None:
    assert '"kafka.bootstrap.servers", "localhost:4711"' in example("localhost:4711")
    assert example("localhost:9092") == EXAMPLE


def test_demo_is_importable_without_spark_kafka_or_docker() -> None:
    program = "import sys, pyspark_timestream.demo.command as _;"
    program += "print([m for m in ('pyspark', 'confluent_kafka', 'docker') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
