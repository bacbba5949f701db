"""Ctrl-C ends every command with one line at most and the exit code that shells expect."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyspark_timestream.__main__ as timestream
import pyspark_tseries.__main__ as tseries
from pyspark_timestream.commands.watch import command as watch
from pyspark_timestream.core.processes import INTERRUPTED
from pyspark_timestream.demo import command as demo
from pyspark_tseries import TimeSeries
from pyspark_tseries.client.browse import browse

INTERRUPTS = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""
"""Python runs this first: it presses Ctrl-C as a module is imported."""


def interrupt(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def list_timestream_commands() -> list[str]:
    parser = argparse.ArgumentParser
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "parse_args", lambda self, _: found.extend(_choices(self)) or exit(0))
        with pytest.raises(SystemExit):
            timestream.main([])
    return found


def _choices(parser: argparse.ArgumentParser) -> list[str]:
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return list(commands.choices)


@pytest.mark.parametrize("name", tseries.COMMANDS)
def test_ctrl_c_ends_a_command_on_a_store_with_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    does, _ = tseries.COMMANDS[name]
    monkeypatch.setitem(tseries.COMMANDS, name, (does, interrupt))
    needed = {"backup": ["x"], "rollup": ["--into", "x"], "forget-writer": ["--writer", "w"]}
    needed["erase"] = ["--series", "a", "--sequence", "1", "--reason", "r"]
    assert tseries.main([name, str(tmp_path), *needed.get(name, [])]) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("name", [each for each in list_timestream_commands() if each != "demo"])
def test_ctrl_c_in_a_command_that_only_reads_ends_the_process_at_once(name: str) -> None:
    assert name in timestream._READ_ONLY
    with timestream._end_at_interrupt():
        assert signal.getsignal(signal.SIGINT) is timestream._end


def test_ctrl_c_ends_the_demo_which_removes_what_it_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "choose_port", interrupt)
    assert timestream.main(["demo"]) == 0
    assert "its data is removed" in capsys.readouterr().out


@contextmanager
def running(*command: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **variables},
        # A process in the background ignores it otherwise, and so does what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("shown", [["--port", "0"], ["--text"]], ids=["page", "text"])
def test_ctrl_c_ends_watch(tmp_path: Path, shown: list[str]) -> None:
    assert watch.main in timestream._READ_ONLY.values()
    (tmp_path / "offsets").mkdir()
    with running("pyspark_timestream", "watch", str(tmp_path), *shown) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (INTERRUPTED, "interrupted\n")


@pytest.mark.thorough
def test_ctrl_c_ends_browse(tmp_path: Path) -> None:
    assert tseries.COMMANDS["browse"][1] is browse
    TimeSeries.create(tmp_path / "s", {"v": pa.int64()}, "unlimited").append("a", 1)
    with running("pyspark_tseries", "browse", str(tmp_path / "s"), "--port", "0") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (INTERRUPTED, "interrupted\n")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("pyspark_timestream", "pyspark_timestream.demo.command"),
        ("pyspark_tseries", "pyspark_tseries.client.browse"),
    ],
)
def test_ctrl_c_while_a_command_is_imported_prints_nothing(
    tmp_path: Path, package: str, module: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    given = {"PYTHONPATH": path, "INTERRUPTED_AT": module}
    with running(package, "--version", **given) as process:
        output = process.communicate(timeout=30)
        assert (process.returncode, output) == (-signal.SIGINT, ("", ""))
