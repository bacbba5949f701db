"""The command line: `python -m pyspark_tseries describe|verify|rebuild|compact|maintain PATH`."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable

from pyspark_tseries.compactor import compact
from pyspark_tseries.description import describe
from pyspark_tseries.errors import TseriesError
from pyspark_tseries.inspection import rebuild, verify
from pyspark_tseries.maintenance import maintain

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Carries out one command; returns the exit code, 1 where the store is unusable or broken."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_tseries")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (does, _) in COMMANDS.items():
        command = commands.add_parser(name, help=does)
        command.add_argument("path", help="the store: a local path or file: URI")
    given = parser.parse_args(arguments)
    try:
        return COMMANDS[given.command][1](given.path)
    except (TseriesError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def _describe(path: str) -> int:
    for name, value in describe(path).items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{name:17} {shown}")
    return 0


def _verify(path: str) -> int:
    broken = verify(path)
    print("\n".join(broken) if broken else "sound")
    return 1 if broken else 0


def _rebuild(path: str) -> int:
    print(f"{rebuild(path)} series")
    return 0


def _compact(path: str) -> int:
    for name, value in dataclasses.asdict(compact(path)).items():
        print(f"{name:17} {value}")
    return 0


def _maintain(path: str) -> int:
    os.nice(10)
    return 0 if maintain(path) else 2


COMMANDS: dict[str, tuple[str, Callable[[str], int]]] = {
    "describe": ("what a store holds", _describe),
    "verify": ("checks every invariant; exits 1 with what is broken", _verify),
    "rebuild": ("makes the head state anew from the events", _rebuild),
    "compact": ("rewrites files clustered by series, removes what is out of range", _compact),
    "maintain": ("what writers with autoCompact start now and then", _maintain),
}


if __name__ == "__main__":
    sys.exit(main())
