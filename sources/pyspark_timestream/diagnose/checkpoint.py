"""Reads the offset log of a Spark checkpoint in a local directory, and explains it.

The directory `offsets` has a file per batch, named by its number, and `commits` one per finished
batch. Spark writes a file elsewhere and renames it, so a half-written one comes from an incomplete
copy; it is skipped with a note.
"""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark_timestream.diagnose.history import (
    Batch,
    build_histories,
    drop_skipped,
    read_log_entry,
    read_state_store,
)
from pyspark_timestream.diagnose.report import Explanation, explain_stream
from pyspark_timestream.errors import CheckpointUnreadable

_NEXT_STEP = "pass the directory that the query had as option 'checkpointLocation'"


def explain_checkpoint(location: str, spark: Any = None, details: bool = False) -> Explanation:
    """The explanation of the query that left the checkpoint at `location`.

    Args:
        location: a local path or `file:` URI.
        spark: the session that reads the state that waits for later CTIs; None: it is not read.
        details: show all diagnoses in full; else the first one, and a line of four others.

    Raises:
        CheckpointUnreadable: there is no checkpoint, or no batch in it can be read.
        CheckpointMismatch: its offsets have another format version.
    """
    root = resolve_directory(location)
    batches, notes = read_offset_log(root)
    newest = max(batches)
    if not (root / "commits" / str(newest)).is_file():
        notes.append(f"batch {newest} was planned and not finished: the query failed or was killed")
    histories = build_histories(batches.values())
    streams = tuple(map(explain_stream, histories.values()))
    notes += [
        "a checkpoint does not know what has come since: `kafka-consumer-groups.sh --describe "
        f"--group {group}` shows the lag"
        for history in histories.values()
        if (group := history[-1].offset.unpinned.get("group"))
    ]
    if not streams:
        notes.append("none of its sources is a Kafka stream of format 'timestream'")
    state = (
        read_state_store(spark, str(root.absolute())) if spark and (root / "state").is_dir() else ()
    )
    return Explanation(f"Checkpoint {root}", streams, tuple(notes), state, details)


def read_offset_log(root: Path) -> tuple[dict[int, Batch], list[str]]:
    """The batches of the checkpoint `root` by number, and notes on what was left out.

    Raises:
        CheckpointUnreadable: there is no checkpoint, or no batch in it can be read.
    """
    log = root / "offsets"
    if not log.is_dir():
        raise CheckpointUnreadable(
            f"'{root}' is not a checkpoint of a Spark stream: it has no directory 'offsets'",
            "a local directory",
            _NEXT_STEP,
        )
    batches: dict[int, Batch] = {}
    notes = []
    for file in sorted((f for f in log.iterdir() if f.name.isdecimal()), key=_get_number):
        try:
            batches[_get_number(file)] = read_log_entry(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"offsets/{file.name} was passed over: {error}")
    if not batches:
        reason = notes[-1] if notes else "the query has planned no batch yet"
        raise CheckpointUnreadable(
            f"nothing in '{root}' can be explained: {reason}", next_step=_NEXT_STEP
        )
    kept = drop_skipped(batches)
    notes += [
        f"batch {number} was never finished: a forced repartition of the state skipped it"
        for number in batches.keys() - kept.keys()
    ]
    return kept, notes


def _get_number(file: Path) -> int:
    return int(file.name)


def resolve_directory(location: str) -> Path:
    """The path that `location`, a path or a `file:` URI, names.

    >>> str(resolve_directory("file:///tmp/a%20b")), str(resolve_directory("/tmp/a b"))
    ('/tmp/a b', '/tmp/a b')
    """
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if "://" in location or (parts.scheme and not Path(location).exists()):
        raise CheckpointUnreadable(
            f"'{location}' is not on this machine",
            "a local directory or a file: URI",
            "copy the checkpoint's directories 'offsets' and 'commits' here",
        )
    return Path(location)
