"""What erased values are still in: files that are not of the store any more, and log entries.

An act replaces the files that hold a value, and both the old ones and the log's statistics of them
stay for a while, as after a compaction. Until they are gone they are found here by what is in
them, whoever left them; maintenance removes them earlier than others.

The rules are semantics 18.9.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tseries.model.erasures import KEY_COLUMNS, ErasedKeys, ErasureRecord
from pyspark_tseries.storage.erasure_files import mark_act, marked_acts, read_records
from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.last_checkpoint import read_mark
from pyspark_tseries.store.log_writer import write_checkpoint
from pyspark_tseries.store.store import Store
from pyspark_tseries.store.table import load_table

KEPT_FOR_READERS_US: Final = 600_000_000
"""Files and log entries with erased values are kept this long, for tasks that are reading them."""

_UNDECIDED_US: Final = 24 * 3_600_000_000
"""So long after an act a compaction that was killed may still have left a file with its values."""

_LOG_FILE: Final = re.compile(r"(\d{20})\.(?:json|checkpoint[^/]*\.parquet)")


def open_acts(store: Store) -> list[ErasureRecord]:
    """The acts whose values may still be in some file, oldest first."""
    last = store.metadata().erasure
    if last is None:
        return []
    done, found = marked_acts(store.location, "done"), []
    for record in read_records(store.location, last):
        if record.act.id in done:
            break
        found.append(record)
    return found[::-1]


def find_files_with_values(store: Store, records: Sequence[ErasureRecord]) -> list[str]:
    """The files that may still have a value that was erased, relative to the store.

    Args:
        store: the store, up to date.
        records: the acts.
    """
    if not records:
        return []
    keys = _keys_of(records)
    data = [*_find_dead_files(store, keys), *_find_kept_aside(store.location, keys)]
    data += _find_staged(store.location, max(record.act.time_us for record in records))
    return [*data, *(f"_delta_log/{name}" for _, name in _find_log_files(store.location, records))]


def remove_erased_bytes(store: Store, now_us: int) -> int:
    """Remove the files and log entries that have an erased value, ten minutes after the act.

    A file that no commit has named is left to the rule for such files, since its writer may be
    about to commit it; what a repair has put aside is left to the operator.

    Args:
        store: the store, up to date.
        now_us: the wall clock.

    Returns:
        How many files of events it removed.
    """
    records = open_acts(store)
    due = [each for each in records if each.act.time_us + KEPT_FOR_READERS_US <= now_us]
    if not due:
        return 0
    location, removed = store.location, 0
    dead = _find_dead_files(store, _keys_of(due))
    if dead:
        table = load_table(location)
        named = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False))
        live = {file.path for file in store.snapshot().files}
        gone = [location.file(path) for path in dead if path in named - live]
        location.remove(gone)
        removed = len(gone)
    _remove_log_files(store, due)
    for record in due:
        if record.act.time_us + _UNDECIDED_US > now_us or find_files_with_values(store, [record]):
            break
        mark_act(location, record.act.id, "done")
    return removed


def _keys_of(records: Sequence[ErasureRecord]) -> ErasedKeys:
    keys = ErasedKeys()
    for record in records:
        keys.add(record.act)
    return keys


def _find_dead_files(store: Store, keys: ErasedKeys) -> list[str]:
    """The data files outside of the store's current version that have one of `keys`."""
    location = store.location
    live = {file.path for file in store.snapshot().files}
    found = []
    for kind in ("event", "edit"):
        for path, _ in location.list_files(location.file(f"kind={kind}")):
            name = f"kind={kind}/{os.path.basename(path)}"
            if name not in live and path.endswith(".parquet") and _has_values(location, path, keys):
                found.append(name)
    return sorted(found)


def _find_kept_aside(location: Location, keys: ErasedKeys) -> list[str]:
    """Files that a repair has put aside with one of `keys`."""
    if not location.is_local:
        return []
    folders = os.walk(location.file("_tseries", "lost"))
    paths = [os.path.join(folder, name) for folder, _, names in folders for name in names]
    data = [path for path in sorted(paths) if path.endswith(".parquet")]
    return [
        os.path.relpath(path, location.root) for path in data if _has_values(location, path, keys)
    ]


def _find_staged(location: Location, before_us: int) -> list[str]:
    """Rows that waited for a commit before an act, as a writer that was killed has left them.

    They have no sequences yet, so any of them may be of an event that was erased.
    """
    staging = location.file("_tseries", "staging")
    found = list(location.list_files(staging))
    for folder in location.list_folders(staging):
        found += location.list_files(location.file("_tseries", "staging", folder, "_delta_log"))
    return sorted(
        os.path.relpath(path, location.file()) for path, ns in found if ns < before_us * 1000
    )


def _has_values(location: Location, path: str, keys: ErasedKeys) -> bool:
    """True if a data file has an event of `keys` with its values, or cannot be read."""
    try:
        with location.read(path) as source:
            file = pq.ParquetFile(source)
            there = [name for name in KEY_COLUMNS if name in file.schema_arrow.names]
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, columns=there)
                for name in set(KEY_COLUMNS) - set(there):
                    kind = pa.string() if name in ("series", "erasure") else pa.int64()
                    rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
                if keys.find_values(rows).any():
                    return True
    except FileNotFoundError:
        return False
    except (OSError, pa.ArrowException):
        return True
    return False


def _find_log_files(location: Location, records: Sequence[ErasureRecord]) -> list[tuple[int, str]]:
    """Entries and checkpoints from before the acts whose statistics may have a value."""
    clean = marked_acts(location, "log")
    records = [record for record in records if record.act.id not in clean]
    if not records:
        return []
    keys, upto = _keys_of(records), max(record.log_version for record in records)
    found = []
    for path, _ in location.list_files(location.file("_delta_log")):
        name = os.path.basename(path)
        match = _LOG_FILE.fullmatch(name)
        if match is None or int(match[1]) > upto:
            continue
        try:
            statistics = list(_read_statistics(location, path))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            found.append((int(match[1]), name))
            continue
        if any(map(keys.may_be_in, statistics)):
            found.append((int(match[1]), name))
    return sorted(found)


def _read_statistics(location: Location, path: str) -> Iterator[str | None]:
    with location.read(path) as source:
        if path.endswith(".parquet"):
            file = pq.ParquetFile(source)
            yield from (
                add["stats"]
                for add in file.read(columns=["add.stats"])["add"].to_pylist()
                if add is not None
            )
            return
        content = source.read()
    for line in content.splitlines():
        if b'"add"' in line:
            added = json.loads(line).get("add")
            if added is not None:
                yield added.get("stats")


def _remove_log_files(store: Store, records: Sequence[ErasureRecord]) -> None:
    """Remove the log up to the last entry or checkpoint that may have a value, oldest first."""
    location, upto = store.location, max(record.log_version for record in records)
    held = _find_log_files(location, records)
    if not held:
        # Nothing from before an act is added to the log later, so it is read once only.
        for act in {record.act.id for record in records} - marked_acts(location, "log"):
            mark_act(location, act, "log")
        return
    if read_mark(location).version <= upto:
        if location.is_local:
            write_checkpoint(location, store.version())
        else:
            load_table(location).create_checkpoint()
    if read_mark(location).version <= upto:
        return  # Another writer's is the last one; the next round tries again.
    last = held[-1][0]
    versions = {
        path: int(found[1])
        for path, _ in location.list_files(location.file("_delta_log"))
        if (found := _LOG_FILE.fullmatch(os.path.basename(path)))
    }
    location.remove(sorted(path for path, version in versions.items() if version <= last))
