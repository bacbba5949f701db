"""The command line: `python -m pyspark_timestream explain --checkpoint DIR`."""

import argparse
import sys

from pyspark_timestream.errors import TimestreamError
from pyspark_timestream.explain.checkpoint import explain_checkpoint

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Carries out one command; returns the exit code, 1 where the checkpoint is unusable."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_timestream")
    commands = parser.add_subparsers(dest="command", required=True)
    why = commands.add_parser("explain", help="what holds a stopped query's CTI back")
    why.add_argument("--checkpoint", required=True, help="its checkpoint: a local directory")
    try:
        print(explain_checkpoint(parser.parse_args(arguments).checkpoint))
    except (TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
