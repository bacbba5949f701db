"""The arguments of `lateness`, its mistakes, and that it loads no Spark."""

import subprocess
import sys

import pytest

from pyspark_timestream import OptionError, measure_lateness
from pyspark_timestream.__main__ import main

ASKED = ["lateness", "--topic", "t", "--bootstrap-servers", "127.0.0.1:1", "--start-time", "a"]
EACH = ["--cti-frequency", "1"]

LOADED = """
import sys
from pyspark_timestream import measure_lateness
from pyspark_timestream.commands import lateness_report
print([name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")])
"""


def test_lateness_loads_no_spark() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delays", "20 seconds,soon"], "option 'delays': cannot read 'soon'"),
        (["--delays", "20 seconds,,"], "option 'delays': cannot read ''"),
        (["--delays", "1 hour,-5 seconds"], "option 'delays': '-5 seconds' is negative"),
        (["--last", "0 s"], "option 'last': '0 s' (0 ticks) leaves nothing to read"),
        (["--cti-frequency", "often"], "option 'ctiFrequency': cannot read 'often'"),
        (["--start-time", "header:"], "option 'startTime': cannot read 'header:'"),
        (["--option", "ctiDelay=5 s"], "option 'ctiDelay': it has no place here"),
        (["--option", "advanceTime=IncreasingStartTime"], "option 'advanceTime': it has no place"),
        (["--option", "IDLETIMEOUT=5 s"], "option 'idleTimeout': it has no place here"),
        (["--option", "ctiImport=x"], "option 'ctiImport': it has no place here"),
        (["--option", "timeSettings=/x"], "option 'timeSettings': it has no place here"),
        (["--option", "ctifrequency=5"], "leave it out, or use --cti-frequency"),
        (["--option", "startTime=b"], "leave it out, or use --start-time"),
        (["--option", "hunter2"], "an --option is not of the form NAME=VALUE"),
        (
            ["--option", "startingTimestamp=0", "--last", "1 hour"],
            "option 'startingTimestamp': it conflicts with 'last'",
        ),
        (["--option", "startingOffsets=latest"], "option 'startingOffsets': 'latest' (-1) was"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, said, capsys) -> None:
    assert main([*ASKED, *EACH, *arguments]) == 1
    printed = capsys.readouterr()
    assert said in printed.err
    assert "leave it out for the default" not in printed.err
    assert printed.out == ""
    assert "hunter2" not in printed.err


@pytest.mark.parametrize("missing", ["--cti-frequency", "--start-time"])
def test_what_must_be_known_is_asked_for(missing, capsys) -> None:
    given = [*ASKED, *EACH]
    place = given.index(missing)
    with pytest.raises(SystemExit):
        main(given[:place] + given[place + 2 :])
    assert f"the following arguments are required: {missing}" in capsys.readouterr().err


def test_the_function_names_a_missing_frequency() -> None:
    with pytest.raises(OptionError, match="option 'ctiFrequency': it is missing"):
        measure_lateness({"kafka.bootstrap.servers": "b:1", "subscribe": "t", "startTime": "a"})
    with pytest.raises(OptionError, match="option 'subscribe'"):
        measure_lateness({"kafka.bootstrap.servers": "b:1", "ctiFrequency": "1"})
