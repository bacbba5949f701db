"""The command line: `python -m pyspark_timestream demo`, and `explain --checkpoint DIR`."""

import argparse
import sys

from pyspark_timestream.demo import command as demo
from pyspark_timestream.errors import TimestreamError
from pyspark_timestream.explain.checkpoint import explain_checkpoint

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code, 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_timestream")
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("demo", help="a Kafka topic to try this package on")
    demo.add_arguments(shown)
    why = commands.add_parser("explain", help="what holds a stopped query's CTI back")
    why.add_argument("--checkpoint", required=True, help="its checkpoint: a local directory")
    given = parser.parse_args(arguments)
    if given.command == "demo":
        return demo.main(given)
    try:
        print(explain_checkpoint(given.checkpoint))
    except (TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
