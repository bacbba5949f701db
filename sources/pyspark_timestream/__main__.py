"""`python -m pyspark_timestream`: the commands `demo`, `peek`, `lateness`, `explain`, `watch`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C ends this without a traceback while the commands are imported; then see `end_quietly`.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from pyspark_timestream import __version__
from pyspark_timestream.commands import lateness_report
from pyspark_timestream.commands.explanation import explain_checkpoint
from pyspark_timestream.commands.peek import command as peek
from pyspark_timestream.commands.watch import command as watch
from pyspark_timestream.core.processes import INTERRUPTED, end_quietly
from pyspark_timestream.demo import command as demo
from pyspark_timestream.errors import TimestreamError


@end_quietly
def main(words: list[str] | None = None) -> int:
    """Run one command; return the exit code: 1 if it failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_timestream")
    parser.add_argument("--version", action="version", version=f"pyspark-timestream {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo_command = commands.add_parser("demo", help="a Kafka topic to try this package on")
    demo.add_arguments(demo_command)
    explain_command = commands.add_parser("explain", help="what holds a stopped query's CTI back")
    explain_command.add_argument(
        "--checkpoint", required=True, help="its checkpoint: a local directory"
    )
    explain_command.add_argument(
        "--state",
        action="store_true",
        help="also count the rows of Spark's state and the CTIs that they wait for; starts a local "
        "Spark",
    )
    explain_command.add_argument("--details", action="store_true", help="all diagnoses in full")
    peek_command = commands.add_parser(
        "peek", help="a topic's records, and the options to read them"
    )
    peek.add_arguments(peek_command)
    lateness_command = commands.add_parser(
        "lateness", help="how many rows each delay would make late"
    )
    lateness_report.add_arguments(lateness_command)
    watch_command = commands.add_parser("watch", help="a live page of the time of queries")
    watch.add_arguments(watch_command)
    arguments = parser.parse_args(words)
    if arguments.command == "demo":
        return demo.main(arguments)
    with _end_at_interrupt():
        return _READ_ONLY[arguments.command](arguments)


def _explain(arguments: argparse.Namespace) -> int:
    try:
        spark = _start_spark() if arguments.state else None
        print(explain_checkpoint(arguments.checkpoint, spark, arguments.details))
    except (TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


_READ_ONLY: Final = {
    "explain": _explain,
    "peek": peek.main,
    "lateness": lateness_report.main,
    "watch": watch.main,
}


@contextmanager
def _end_at_interrupt() -> Iterator[None]:
    """End this process at once, with one line, when the user presses Ctrl-C.

    A KeyboardInterrupt could strike in a callback of the Kafka client, or while another error is
    handled, and turn into another error there. Ending at once is safe, because the commands only
    read.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_: object) -> NoReturn:
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


def _start_spark() -> Any:
    from pyspark.sql import SparkSession

    from pyspark_timestream.core.session import configure_spark

    builder = configure_spark(SparkSession.builder.master("local[1]"))
    return builder.config("spark.ui.enabled", "false").getOrCreate()


if __name__ == "__main__":
    sys.exit(main())
