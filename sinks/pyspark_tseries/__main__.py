"""The command line: `python -m pyspark_tseries COMMAND PATH`.

The commands are `show`, `browse`, `describe`, `verify`, `repair`, `rebuild`, `compact`, `maintain`,
`erase`, `erasures`, `forget-writer`, `backup` and `rollup`.
"""

import shlex
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C ends this without a traceback while the commands are imported; then see `end_quietly`.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pyspark_timestream.core.instants import parse_instant, to_datetime
from pyspark_timestream.core.processes import end_quietly, leave_out_pandas, read_wall_clock
from pyspark_timestream.errors import escape_controls
from pyspark_tseries import __version__
from pyspark_tseries.client import browse, show
from pyspark_tseries.errors import DAMAGES, TseriesError
from pyspark_tseries.maintain.background import (
    LOCK_VARIABLE,
    OPTIONS_VARIABLE,
    MaintenanceResult,
    maintain,
    maintain_while_busy,
)
from pyspark_tseries.maintain.backup import backup, parse_end
from pyspark_tseries.maintain.compactor import CompactionResult, compact
from pyspark_tseries.maintain.erase import erase, list_erasures
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import RepairResult, repair
from pyspark_tseries.maintain.rollup import RollupOptions, rollup
from pyspark_tseries.maintain.verify import describe, verify
from pyspark_tseries.model.downsampling import parse_aggregate_argument
from pyspark_tseries.options import author_or_user, parse_optional
from pyspark_tseries.storage.erasures import Erasure
from pyspark_tseries.storage.failures import explained_failures
from pyspark_tseries.storage.location import STORAGE_OPTIONS, Location, parse_location
from pyspark_tseries.store.admin_commits import forget_writer
from pyspark_tseries.store.store import Store


@end_quietly
def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code, 1 if the store is unusable or damaged."""
    parser = argparse.ArgumentParser(prog="python -m pyspark_tseries")
    parser.add_argument("--version", action="version", version=f"pyspark-timestream {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (does, _) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=does,
            epilog=_list_damages() if name in ("verify", "repair") else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("path", help="the store: a local path, file: URI or s3: URI")
        command.add_argument(
            "--storage-option",
            metavar="KEY=VALUE",
            action="append",
            help=f"how to reach an object store: {', '.join(STORAGE_OPTIONS)}",
        )
        if name in (*OWNER_COMMANDS, "show", "browse"):
            command.add_argument(
                "--principal", help="who asks, if the store has a policy; default: the OS user"
            )
        for argument, settings in ARGUMENTS.get(name, {}).items():
            command.add_argument(argument, **settings)
    arguments_given, more = parser.parse_known_args(arguments)
    if arguments_given.command == "show" and not any(text.startswith("-") for text in more):
        arguments_given.series += more  # argparse takes no names after an option.
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    try:
        options = _parse_storage_options(arguments_given.storage_option)
        parse = parse_end if arguments_given.command == "backup" else parse_location
        location = parse(arguments_given.path, options)
        with explained_failures(location):
            return COMMANDS[arguments_given.command][1](location, arguments_given)
    except (TseriesError, ValueError, OSError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1


def _list_damages() -> str:
    """List what can be damaged, what `repair` does about it, and what that costs."""
    mended = [
        f"  {kind}: {damage.mended}; lost: {damage.costs}"
        for kind, damage in DAMAGES.items()
        if damage.mended is not None
    ]
    named_only = [kind for kind, damage in DAMAGES.items() if damage.mended is None]
    return "\n".join(
        ["what repair mends:", *mended, f"what it names only: {', '.join(named_only)}"]
    )


def _parse_storage_options(texts: list[str] | None) -> dict[str, str]:
    """Return the options of the command line, or else of the process that started this one.

    Raises:
        ValueError: an option has no '='.
    """
    if texts is None:
        return dict(json.loads(os.environ.get(OPTIONS_VARIABLE, "{}")))
    pairs = [option.partition("=") for option in texts]
    if not all(middle for _, middle, _ in pairs):
        raise ValueError("--storage-option: accepted: KEY=VALUE; next step: write it so")
    return {key: value for key, _, value in pairs}


def _describe(path: Location, arguments: argparse.Namespace) -> int:
    for name, value in describe(path).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        print(f"{name:17} {escape_controls(text)}")
    return 0


def _verify(path: Location, arguments: argparse.Namespace) -> int:
    findings = verify(path)
    for finding in findings[:MAX_FINDINGS]:
        print(finding)
    if len(findings) > MAX_FINDINGS:
        print(f"and {len(findings) - MAX_FINDINGS} more")
    if not findings:
        print("sound")
    return 1 if findings else 0


def _repair(path: Location, arguments: argparse.Namespace) -> int:
    done = repair(
        path, dry_run=arguments.dry_run, give_up=arguments.give_up, principal=arguments.principal
    )
    if done == RepairResult():
        print("nothing to repair")
    for field in dataclasses.fields(done):
        for line in getattr(done, field.name):
            print(f"{field.name}: {escape_controls(str(line))}")
    return 1 if done.left or (arguments.dry_run and done.mended) else 0


def _rebuild(path: Location, arguments: argparse.Namespace) -> int:
    print(f"{rebuild(path, principal=arguments.principal)} series")
    return 0


def _compact(path: Location, arguments: argparse.Namespace) -> int:
    for name, value in dataclasses.asdict(compact(path, principal=arguments.principal)).items():
        print(f"{name:17} {value}")
    return 0


def _maintain(path: Location, arguments: argparse.Namespace) -> int:
    os.nice(10)  # Leave the processor to the writers.
    if LOCK_VARIABLE in os.environ:
        maintain_while_busy(path)
        return 0
    done = maintain(path, principal=arguments.principal)
    if done is None:
        print("another process of this machine maintains the store already", file=sys.stderr)
        return 2
    merged = done.merged
    if merged.files_before != merged.files_after or merged.removed_events:
        print(f"merged {merged.files_before} files of events into {merged.files_after}")
    if merged.removed_events:
        print(f"removed {merged.removed_events} events out of the retained range")
    if done.removed_files:
        print(f"removed {done.removed_files} files that nothing refers to any more")
    if done == MaintenanceResult(CompactionResult(merged.files_before, merged.files_before, 0), 0):
        print("nothing to do")
    return 0


def _erase(path: Location, arguments: argparse.Namespace) -> int:
    what = arguments.series, arguments.sequence, arguments.reason
    erasure = erase(Store.open(path), *what, principal=arguments.principal)
    if erasure is None:
        print("all of them were erased before")
        return 0
    _print_erasure(erasure)
    if erasure.files:
        print(
            "what 'files' names still has the values: in ten minutes or later, let it be removed "
            f"with: python -m pyspark_tseries maintain {shlex.quote(path.root)}"
        )
    return 0


def _erasures(path: Location, arguments: argparse.Namespace) -> int:
    for erasure in list_erasures(Store.open(path)):
        _print_erasure(erasure)
    return 0


def _print_erasure(erasure: Erasure) -> None:
    print(json.dumps(dataclasses.asdict(erasure), ensure_ascii=False))


def _backup(path: Location, arguments: argparse.Namespace) -> int:
    target = parse_end(arguments.target, _parse_storage_options(arguments.storage_option))
    done = backup(path, target)
    commit = "no commit" if done.commit is None else str(done.commit)
    print(f"{commit} of '{path.root}': {done.files} files, {done.size} bytes")
    return 0


def _rollup(path: Location, arguments: argparse.Namespace) -> int:
    into = parse_location(arguments.into, _parse_storage_options(arguments.storage_option))
    aggregates = [parse_aggregate_argument(text) for text in arguments.aggregate]
    if len(dict(aggregates)) < len(aggregates):
        raise ValueError(
            "--aggregate: two have one name; accepted: a name each; next step: write "
            "NAME='COLUMN FUNCTION' for one of them"
        )
    options = RollupOptions(
        arguments.every,
        dict(aggregates) or None,
        arguments.timezone,
        None if arguments.origin is None else _parse_origin(arguments.origin),
        parse_optional("retained_range", arguments.retained_range),
    )
    author = author_or_user(arguments.author)
    done = rollup(Store.open(path), into, options, author, progress=_tell_progress)
    commit = "no commit" if done.covered < 0 else f"commit {done.covered}"
    print(f"buckets: {done.added} added, {done.edited} edited, up to {commit} of '{path.root}'")
    if done.left:
        print(
            f"changed buckets that stay as they are: {done.left}, because the rollup does not have "
            "them, or the source has not all of their events any more"
        )
    return 0


def _parse_origin(text: str) -> datetime:
    try:
        return to_datetime(parse_instant(text))
    except ValueError as error:
        raise ValueError(
            f"--origin: {error}; accepted: an ISO-8601 time, such as 2026-01-31T12:00:00Z; "
            "next step: correct it"
        ) from None


def _tell_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _forget_writer(path: Location, arguments: argparse.Namespace) -> int:
    forget_writer(
        Store.open(path), arguments.writer, read_wall_clock(), author_or_user(arguments.principal)
    )
    return 0


MAX_FINDINGS = 100
"""`verify` prints at most this many violations."""

OWNER_COMMANDS = ("repair", "rebuild", "compact", "maintain", "erase", "forget-writer")
"""Commands that need the right `own` if the store has a policy."""

ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "show": show.SHOW_ARGUMENTS,
    "browse": browse.BROWSE_ARGUMENTS,
    "backup": {"target": {"help": "where to: a directory or prefix that is empty"}},
    "rollup": {
        "--into": {
            "metavar": "STORE2",
            "required": True,
            "help": "the rollup: a path or URI, too; the first run creates it",
        },
        "--every": {"metavar": "WIDTH", "help": "the width of its buckets, such as 1h or 1 month"},
        "--aggregate": {
            "metavar": "NAME=WHAT",
            "nargs": "+",
            "action": "extend",
            "default": [],
            "help": "its columns, such as celsius=mean, n=count, or hottest='celsius max'",
        },
        "--timezone": {"metavar": "ZONE", "help": "the time zone of the buckets; default: UTC"},
        "--origin": {"metavar": "TIME", "help": "a time at which a bucket begins, ISO-8601"},
        "--retained-range": {
            "metavar": "RANGE",
            "help": "how much a new rollup keeps; default: unlimited",
        },
        "--author": {"help": "who writes the buckets; default: the OS user"},
    },
    "forget-writer": {
        "--writer": {"required": True, "help": "the writer, as describe names it in cti_writers"}
    },
    "erase": {
        "--series": {"required": True, "help": "the name of the series"},
        "--sequence": {
            "type": int,
            "nargs": "+",
            "required": True,
            "help": "the sequences of the events; edits of these are erased, too",
        },
        "--reason": {
            "required": True,
            "help": "why; it is kept with the act and shown by erasures",
        },
    },
    "repair": {
        "--dry-run": {
            "action": "store_true",
            "help": "print the first repairs without making them",
        },
        "--give-up": {
            "action": "store_true",
            "help": "also give up whole commits that follow a file that cannot be restored",
        },
    },
}
"""The arguments of single commands."""

COMMANDS: dict[str, tuple[str, Callable[[Location, argparse.Namespace], int]]] = {
    "show": ("draws series in the terminal, or lists the newest values", show.show),
    "browse": ("serves a page of the store: its series, edits and maintenance", browse.browse),
    "describe": ("prints the facts of a store", _describe),
    "verify": ("checks every invariant; exits 1 and lists the violations", _verify),
    "repair": ("repairs damage and lists what is lost; exits 1 if some damage is left", _repair),
    "rebuild": ("rebuilds the head from the events", _rebuild),
    "compact": ("rewrites files clustered by series, removes events out of range", _compact),
    "erase": ("makes the values of events null, and those of their edits", _erase),
    "erasures": ("prints who erased which events, when and why, a line per act", _erasures),
    "backup": ("copies the last commit, a whole store, while writers go on", _backup),
    "rollup": ("keeps the buckets of a store in another one, and corrects them", _rollup),
    "forget-writer": ("stops a writer from holding back the store's CTI", _forget_writer),
    "maintain": ("one round of the maintenance that writers with autoCompact start", _maintain),
}


if __name__ == "__main__":
    leave_out_pandas()
    sys.exit(main())
