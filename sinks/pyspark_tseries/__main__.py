"""The command line: `python -m pyspark_tseries describe PATH`."""

import argparse
import json
import sys

from pyspark_tseries.description import describe
from pyspark_tseries.errors import TseriesError

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Carries out one command; returns the exit code, 1 where the store is unusable."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_tseries")
    commands = parser.add_subparsers(dest="command", required=True)
    about = commands.add_parser("describe", help="what a store holds")
    about.add_argument("path", help="the store: a local path or file: URI")
    try:
        facts = describe(parser.parse_args(arguments).path)
    except (TseriesError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for name, value in facts.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{name:17} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
