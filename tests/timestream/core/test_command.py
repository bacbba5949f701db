"""Commands of both packages end quietly with their reader, and tell their version."""

import os
import shlex
import subprocess
import sys
from types import ModuleType

import pytest

import pyspark_timestream
import pyspark_tseries
from pyspark_timestream.core.processes import end_quietly

PACKAGES = [pyspark_timestream, pyspark_tseries]


@pytest.mark.thorough
@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_command_tells_its_version(package: ModuleType) -> None:
    line = [sys.executable, "-m", package.__name__, "--version"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout == f"pyspark-timestream {package.__version__}\n"


def test_command_whose_reader_has_gone_prints_no_traceback() -> None:
    program = (
        "import sys\n"
        "from pyspark_timestream.core.processes import end_quietly\n"
        "@end_quietly\n"
        "def main(arguments=None):\n"
        "    for n in range(100_000): print('line', n)\n"
        "    return 0\n"
        "sys.exit(main())\n"
    )
    line = f'{sys.executable} -c "{program}" | head -1'
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("line 0\n", "")


PRINTS = """
import sys
from pyspark_timestream.core.processes import end_quietly
@end_quietly
def main(arguments=None):
    try:
        print("k\u00fcche", flush=True)
    except OSError as error:
        print("the store has failed", file=sys.stderr)
        return 2
    return 0
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (">&-", 0, ""),
        ("> /dev/full", 1, "standard output cannot be written ([Errno 28] No space left"),
    ],
)
def test_an_output_that_cannot_be_written_is_no_failure_of_what_a_command_reads(
    output: str, code: int, said: str
) -> None:
    line = [sys.executable, "-c", PRINTS]
    done = subprocess.run(
        f"{shlex.join(line)} {output}", shell=True, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == code


def test_letters_that_the_encoding_of_the_output_lacks_are_escaped() -> None:
    line = [sys.executable, "-c", PRINTS]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(line, capture_output=True, text=True, env=ascii_only)
    assert (done.returncode, done.stdout, done.stderr) == (0, "k\\xfcche\n", "")


def test_command_with_a_reader_keeps_its_exit_code() -> None:
    assert end_quietly(lambda _: 7)([]) == 7


def test_tab_completion_shows_every_public_name() -> None:
    assert set(pyspark_timestream.__all__) <= set(dir(pyspark_timestream))
