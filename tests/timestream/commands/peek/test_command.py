"""The arguments of `peek`, and that it loads no Spark."""

import subprocess
import sys

import pytest

from pyspark_timestream.__main__ import main

ASKED = ["peek", "--topic", "t", "--bootstrap-servers", "127.0.0.1:1"]

LOADED = """
import sys
from pyspark_timestream.__main__ import main
from pyspark_timestream.commands.peek import command
try:
    main(["peek", "--help"])
except SystemExit:
    pass
print([name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")])
"""


def test_peek_loads_no_spark():
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("hunter2", "an --option is not of the form NAME=VALUE"),
        ("=hunter2", "an --option is not of the form NAME=VALUE"),
        (
            "subscribe=hunter2",
            "--option subscribe is not needed here: leave it out, or use --topic",
        ),
        ("Assign=hunter2", "--option assign is not needed here: leave it out, or use --topic"),
        ("KAFKA.bootstrap.servers=hunter2", "leave it out, or use --bootstrap-servers"),
        ("kafka.max.poll.records=1", "option 'kafka.max.poll.records': it is not supported here"),
        ("starttme=hunter2", "option 'starttme': there is no such option"),
        ("valueFormat=jsn", "option 'valueFormat': cannot read 'jsn'"),
        ("ctiDelay=soon", "option 'ctiDelay': cannot read 'soon'"),
        ("schemaRegistry.url=", "option 'schemaRegistry.url': it is missing"),
        ("schemaRegistry.basic.auth=hunter2", "option 'schemaRegistry.basic.auth'"),
    ],
)
def test_a_wrong_option_is_one_sentence(option, said, capsys):
    assert main([*ASKED, "--option", option]) == 1
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
    assert "hunter2" not in printed.err or "starttme" in option


def test_options_that_exclude_each_other_are_refused_before_the_broker_is_asked(capsys):
    given = [f"--option={text}" for text in ("maxTasks=2", "minPartitions=3")]
    assert main([*ASKED, *given]) == 1
    assert "conflicts with option" in capsys.readouterr().err
