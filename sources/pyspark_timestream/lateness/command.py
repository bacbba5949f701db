"""The command `lateness`: counts the late rows of a topic by delay, and says which to choose."""

import argparse
import logging
import shutil
import sys

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.errors import TimestreamError
from pyspark_timestream.lateness.measure import find_lateness
from pyspark_timestream.lateness.text import format_findings, to_json
from pyspark_timestream.peek.command import add_source_arguments, read_given
from pyspark_timestream.peek.records import NoSample

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_source_arguments(parser)
    parser.add_argument(
        "--start-time",
        required=True,
        metavar="FROM",
        help="where an event's time is: option startTime, such as field:departed or header:time",
    )
    parser.add_argument(
        "--cti-frequency",
        required=True,
        metavar="N",
        help="option ctiFrequency: a count of events such as 1, or a timespan such as '5 seconds'",
    )
    parser.add_argument(
        "--delays",
        metavar="DURATIONS",
        help="the delays to try, such as '20 seconds,5 minutes'; else a ladder from 0 to 1 day, "
        "shown up to the first delay without late rows",
    )
    parser.add_argument(
        "--last",
        metavar="DURATION",
        help="read only the topic's last '6 hours', say, by the records' timestamps",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(given: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    own = {"startTime": given.start_time, "ctiFrequency": given.cti_frequency}
    try:
        raw = read_given(given)
        for name in own:
            if name in raw:
                instead = {"startTime": "--start-time", "ctiFrequency": "--cti-frequency"}[name]
                raise NoSample(
                    f"--option {name} is not needed here: leave it out, or use {instead}"
                )
        raw |= own
        # The client's log repeats what an error says at its end.
        logging.getLogger("pyspark_timestream").addHandler(logging.NullHandler())
        findings = find_lateness(raw, given.delays, given.last)
    except (NoSample, OptionError, TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        print(to_json(findings))
    else:
        width = shutil.get_terminal_size((120, 24)).columns
        print(format_findings(findings, raw, width, all_delays=given.delays is not None))
    return 0
