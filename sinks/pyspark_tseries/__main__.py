"""The command line: `python -m pyspark_tseries COMMAND PATH`.

The commands are `describe`, `verify`, `repair`, `rebuild`, `compact` and `maintain`.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable

from pyspark_tseries.errors import TseriesError
from pyspark_tseries.maintain.background import LOCK_VARIABLE, OPTIONS_VARIABLE, keep_up, maintain
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.describe import describe
from pyspark_tseries.maintain.repair.repair import Repaired, repair
from pyspark_tseries.maintain.verify import rebuild, verify
from pyspark_tseries.storage.location import STORAGE_OPTIONS, Place, place_of

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Carries out one command; returns the exit code, 1 where the store is unusable or broken."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_tseries")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (does, _) in COMMANDS.items():
        command = commands.add_parser(name, help=does)
        command.add_argument("path", help="the store: a local path, file: URI or s3: URI")
        command.add_argument(
            "--storage-option",
            metavar="KEY=VALUE",
            action="append",
            help=f"how an object store is reached: {', '.join(STORAGE_OPTIONS)}",
        )
        if name in OWNERS:
            command.add_argument(
                "--principal", help="who asks, where the store has a policy; default: the OS user"
            )
        if name == "repair":
            command.add_argument(
                "--dry-run", action="store_true", help="only say what would be done first"
            )
            command.add_argument(
                "--give-up",
                action="store_true",
                help="give up whole commits, too, that came after a file that cannot be put back",
            )
    given = parser.parse_args(arguments)
    try:
        place = place_of(given.path, _options(given.storage_option))
        return COMMANDS[given.command][1](place, given)
    except (TseriesError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def _options(given: list[str] | None) -> dict[str, str]:
    """The options of the command line, or else of the process that started this one.

    Raises:
        ValueError: an option without '='.
    """
    if given is None:
        return dict(json.loads(os.environ.get(OPTIONS_VARIABLE, "{}")))
    pairs = [option.partition("=") for option in given]
    if not all(middle for _, middle, _ in pairs):
        raise ValueError("--storage-option: accepted: KEY=VALUE; next step: write it so")
    return {key: value for key, _, value in pairs}


def _describe(path: Place, given: argparse.Namespace) -> int:
    for name, value in describe(path).items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{name:17} {shown}")
    return 0


def _verify(path: Place, given: argparse.Namespace) -> int:
    broken = verify(path)
    print("\n".join(broken) if broken else "sound")
    return 1 if broken else 0


def _repair(path: Place, given: argparse.Namespace) -> int:
    done = repair(path, dry_run=given.dry_run, give_up=given.give_up, principal=given.principal)
    if done == Repaired():
        print("nothing to repair")
    for heading, sentences in dataclasses.asdict(done).items():
        for sentence in sentences:
            print(f"{heading}: {sentence}")
    return 1 if done.left or (given.dry_run and done.mended) else 0


def _rebuild(path: Place, given: argparse.Namespace) -> int:
    print(f"{rebuild(path, principal=given.principal)} series")
    return 0


def _compact(path: Place, given: argparse.Namespace) -> int:
    for name, value in dataclasses.asdict(compact(path, principal=given.principal)).items():
        print(f"{name:17} {value}")
    return 0


def _maintain(path: Place, given: argparse.Namespace) -> int:
    os.nice(10)
    if LOCK_VARIABLE in os.environ:
        keep_up(path)
        return 0
    return 0 if maintain(path, principal=given.principal) else 2


OWNERS = ("repair", "rebuild", "compact", "maintain")
"""The commands that ask for the right `own` where a store has a policy."""

COMMANDS: dict[str, tuple[str, Callable[[Place, argparse.Namespace], int]]] = {
    "describe": ("what a store holds", _describe),
    "verify": ("checks every invariant; exits 1 with what is broken", _verify),
    "repair": (
        "mends what damaged it, and says what is lost; exits 1 if something is left",
        _repair,
    ),
    "rebuild": ("makes the head state anew from the events", _rebuild),
    "compact": ("rewrites files clustered by series, removes what is out of range", _compact),
    "maintain": ("what writers with autoCompact start now and then", _maintain),
}


if __name__ == "__main__":
    sys.exit(main())
