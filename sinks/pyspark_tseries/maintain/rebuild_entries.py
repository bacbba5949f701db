"""Rebuild damaged log entries from their traces (semantics 26.8).

A damaged entry leaves traces: its checksum tells which single bit changed; the names of its
commit's files have the commit's number and head; the head names the previous head and the batch of
a query; and the entries around it limit what it can have been. Between two commits with successive
numbers an entry held no commit: it added columns, which later files have, or it replaced files, and
can be left empty if the files before it still exist. Otherwise the entry is lost.

An entry is rebuilt only if all events then fit: each sequence exists once, as the head says.
"""

import contextlib
import os
import pathlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from pyspark_tseries.errors import TseriesError
from pyspark_tseries.maintain.verify import CompactionHorizon, check_file, check_rows
from pyspark_tseries.model.arrays import SizedKey
from pyspark_tseries.model.columns import value_fields
from pyspark_tseries.model.commits import NO_COMMIT, CommitMetadata
from pyspark_tseries.model.properties import read_settings
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage.data_files import WrittenFile, compute_stats, data_files
from pyspark_tseries.storage.location import (
    LOG_FOLDER,
    Location,
    list_event_files,
    make_directories,
    sync,
)
from pyspark_tseries.storage.snapshot import load_index, read_head_metadata, readable_metadata
from pyspark_tseries.store.checkpoints import LAST_CHECKPOINT, shadow_log
from pyspark_tseries.store.log_check import (
    HEAD_TRANSACTION,
    entry_damage,
    newest_version,
    read_entry,
    read_readable_log,
)
from pyspark_tseries.store.log_entries import (
    Entry,
    FileAction,
    NewEntry,
    TornEntry,
    add_files,
    adopt_entry,
    checkpoint_path,
    correct_bit,
    entry_path,
    format_entry,
    parse_entry,
)
from pyspark_tseries.store.store import HORIZON_TRANSACTION

MAX_DAMAGED: Final = 200
"""Give up a log with more damaged entries than this."""

_OWN_FILE: Final = re.compile(
    r"kind=(?P<kind>event|edit)/(?P<commit>\d{10,})-(?P<head>[0-9a-f]{16})(?:[.]\d{4,})?[.]parquet"
)
"""A file of a single commit."""

_UNREADABLE: Final = (TseriesError, OSError, ValueError, KeyError, TypeError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class RebuiltEntry:
    """A log entry that was rebuilt.

    Attributes:
        version: its number.
        damage: what was wrong with it.
        content: its lines.
        how: how it was rebuilt, as a sentence.
    """

    version: int
    damage: str
    content: bytes
    how: str


@dataclass
class _KnownLog:
    """The known part of a log: its whole entries, and those rebuilt so far."""

    location: Location
    base: int
    newest: int
    torn: tuple[str, ...]
    entries: dict[int, Entry] = field(default_factory=dict)
    damage: dict[int, str] = field(default_factory=dict)
    rebuilt: dict[int, RebuiltEntry] = field(default_factory=dict)

    def take(self, entry: RebuiltEntry) -> None:
        """Add a rebuilt entry; raise TornEntry if it still cannot be read."""
        self.entries[entry.version] = parse_entry(entry.version, entry.content)
        self.rebuilt[entry.version] = entry

    def missing(self) -> list[int]:
        return [version for version in self.damage if version not in self.rebuilt]


def rebuild_entries(location: Location) -> list[RebuiltEntry]:
    """Rebuild the damaged entries of a local log, up to the first lost one; write nothing."""
    log = _read_log(location)
    if not log.damage or len(log.damage) > MAX_DAMAGED:
        return []
    for version in log.damage:
        with contextlib.suppress(OSError, TornEntry):
            with open(entry_path(location, version), "rb") as file:
                content = correct_bit(file.read())
            if content is not None:
                how = "one wrong bit of it was corrected by its checksum"
                log.take(RebuiltEntry(version, log.damage[version], content, how))
    corrected = list(log.rebuilt.values())
    if log.missing():
        with contextlib.suppress(*_UNREADABLE):
            _rebuild_from_files(log)
    # If an entry made from files does not fit, the entries corrected by checksum still may.
    for entries in (list(log.rebuilt.values()), corrected):
        lost = log.damage.keys() - {entry.version for entry in entries}
        last_version = min(lost, default=log.newest + 1) - 1
        usable = [entry for entry in entries if entry.version <= last_version]
        if usable and _fits(log, usable, last_version):
            return usable
    return []


def _read_log(location: Location) -> _KnownLog:
    newest = newest_version(location)
    reach = read_readable_log(location, newest)
    log = _KnownLog(location, reach.base, newest, reach.torn)
    for version in range(reach.base + 1, newest + 1):
        why = entry_damage(location, version)
        if why is not None:
            log.damage[version] = why
            if len(log.damage) > MAX_DAMAGED:
                break
        else:
            entry = read_entry(location, version)
            if entry is not None:
                log.entries[version] = entry
    return log


def _rebuild_from_files(log: _KnownLog) -> None:
    """Rebuild missing entries in order from files of their commits; stop at one that fails."""
    heads = readable_metadata(log.location)
    while log.missing():
        version = log.missing()[0]
        before = _find_commit_before(log, version, heads)
        after = min(
            (v for v in log.entries if v > version and _find_number(log.entries[v]) is not None),
            default=None,
        )
        gap = [v for v in log.missing() if after is None or v < after]
        lost = 1 if after is None else (_find_number(log.entries[after]) or 0) - before - 1
        if lost > len(gap) or version == 0:
            return
        if lost:
            content = _rebuild_commit(log, version, before + 1, after, heads)
            how = f"it was made again from the files of commit {before + 1}"
        else:
            content, how = _rebuild_change(log, version)
        if content is None:
            return
        log.take(RebuiltEntry(version, log.damage[version], content, how))


def _rebuild_change(log: _KnownLog, version: int) -> tuple[bytes | None, str]:
    """Rebuild the entry `version`, which held no commit; return it, or None, and how."""
    with _copy_log(log, list(log.rebuilt.values()), version - 1) as copy:
        table = DeltaTable(pathlib.Path(copy).as_uri())
        columns = _list_unknown_columns(log, pa.schema(table.schema()))
        if columns:
            table.alter.add_columns(Schema.from_arrow(pa.schema(columns)).fields)
            path = os.path.join(
                copy, LOG_FOLDER, os.path.basename(entry_path(log.location, version))
            )
            with open(path, "rb") as file:
                content = adopt_entry(file.read(), version - 1, log.location.uri)
            names = ", ".join(f"'{column.name}'" for column in columns)
            return content, f"it was made again from files that have the columns {names}"
    if not _has_replaced_files(log):
        return None, ""  # It may have set a property.
    empty = NewEntry()
    content = format_entry(empty, empty.info(version - 1), 0)
    return content, "it replaced files that are still there, and is empty now"


def _list_unknown_columns(log: _KnownLog, table_schema: pa.Schema) -> list[pa.Field]:
    """List the columns of event files that `table_schema` lacks."""
    unknown: dict[str, pa.Field] = {}
    for path in sorted({path for entry in log.entries.values() for path in entry.added}):
        with contextlib.suppress(FileNotFoundError):
            schema = pq.read_schema(log.location.file(path)).remove_metadata()
            unknown |= {
                field.name: field for field in schema if field.name not in table_schema.names
            }
    return [field.remove_metadata().with_nullable(True) for field in unknown.values()]


def _list_files_at_base(log: _KnownLog) -> set[str]:
    """Return the files that the checkpoint before the entries names, even as removed."""
    if log.base < 0:
        return set()
    path = checkpoint_path(log.location, log.base)
    table = pq.read_table(path, columns=["add.path", "remove.path"], partitioning=None)
    columns = (table[name].combine_chunks() for name in table.column_names)
    return {path for column in columns for path in column.field("path").drop_null().to_pylist()}


def _has_replaced_files(log: _KnownLog) -> bool:
    """Return whether a compaction has written files that no whole entry adds."""
    named_paths = {
        path for entry in log.entries.values() for path in entry.added
    } | _list_files_at_base(log)
    return any(
        file.path not in named_paths and _OWN_FILE.fullmatch(file.path) is None
        for file in list_event_files(log.location)
    )


def _find_number(entry: Entry) -> int | None:
    """Return the number of a commit of events; None for another entry."""
    return entry.commit if HEAD_TRANSACTION in entry.transactions else None


def _find_commit_before(log: _KnownLog, version: int, heads: Mapping[int, CommitMetadata]) -> int:
    """Return the number of the last commit before the entry `version`; -1 if there is none."""
    head_id = _find_head_before(log, version)
    if head_id is not None and head_id in heads:
        return heads[head_id].commit
    for earlier in range(version - 1, log.base, -1):
        if earlier in log.entries and (number := _find_number(log.entries[earlier])) is not None:
            return number
    if head_id is None:
        return NO_COMMIT.commit
    return read_head_metadata(log.location, head_id).commit


def _find_head_before(log: _KnownLog, version: int) -> int | None:
    for earlier in range(version - 1, log.base, -1):
        if earlier in log.entries and HEAD_TRANSACTION in log.entries[earlier].transactions:
            return int(log.entries[earlier].transactions[HEAD_TRANSACTION])
    if log.base < 0:
        return None
    with shadow_log(log.location, log.base, [*log.torn, LAST_CHECKPOINT]) as copy:
        head_id = DeltaTable(pathlib.Path(copy).as_uri()).transaction_version(HEAD_TRANSACTION)
    return None if head_id is None else int(head_id)


def _rebuild_commit(
    log: _KnownLog,
    version: int,
    number: int,
    after: int | None,
    heads: Mapping[int, CommitMetadata],
) -> bytes | None:
    """Rebuild the entry of the commit `number`; None if its files do not tell its contents."""
    parent = _find_head_before(log, version)
    head_ids = {
        head_id
        for head_id, metadata in heads.items()
        if metadata.commit == number and metadata.parent == parent
    }
    if after is not None:  # The next commit that is known was made on top of this one.
        head_ids &= _list_chain(log.entries[after].transactions[HEAD_TRANSACTION], heads)
    files = _list_files(log, version, number)
    file_ids = {file_id for file_id, _ in files}
    possible_ids = head_ids if len(head_ids) == 1 else head_ids & file_ids or file_ids
    if len(possible_ids) != 1:
        return None
    (own_id,) = possible_ids
    added_files = [action for file_id, action in files if file_id == own_id]
    metadata = heads.get(own_id)
    if metadata is None and not added_files:
        return None
    transactions = {HEAD_TRANSACTION: own_id}
    if metadata is not None:
        transactions |= metadata.marks or {}
        before = None if parent is None else read_head_metadata(log.location, parent).erasure
        if metadata.erasure != before:
            return None  # It erased values; a rebuilt entry would not.
    written_ms = max((file.time_ms for file in added_files), default=0)
    now_ms = written_ms if metadata is None else metadata.commit_us // 1000
    change = NewEntry(added_files, transactions, number)
    return format_entry(change, change.info(version - 1), now_ms)


def _list_chain(head_id: int, heads: Mapping[int, CommitMetadata]) -> set[int]:
    """Return the ids of the head `head_id` and of all heads before it."""
    chain: set[int] = set()
    following: int | None = head_id
    while following is not None and following not in chain:
        chain.add(following)
        following = heads[following].parent if following in heads else None
    return chain


def _list_files(log: _KnownLog, version: int, number: int) -> list[tuple[int, FileAction]]:
    """List the files of the commit `number` that no whole entry adds, with their heads' ids."""
    named_paths = {path for entry in log.entries.values() for path in entry.added}
    files: dict[str, tuple[int, FileAction]] = {}

    def parse(path: str) -> re.Match[str] | None:
        path_fields = _OWN_FILE.fullmatch(path)
        is_sought = path_fields and int(path_fields["commit"]) == number
        return path_fields if is_sought and path not in named_paths else None

    # A later entry may have removed a file, which may be gone by now.
    for later in range(version + 1, log.newest + 1):
        removed = log.entries[later].removed if later in log.entries else {}
        for path, removed_file in removed.items():
            if path_fields := parse(path):
                size = int(removed_file.get("size") or 0)
                kind = path_fields["kind"]
                action = FileAction(path, size, kind, 0, statistics="{}")
                files[path] = int(path_fields["head"], 16), action
    for file in list_event_files(log.location):
        if path_fields := parse(file.path):
            columns = ["series", "sequence", "timestamp"]
            rows = pq.read_table(file.full, columns=columns, partitioning=None)
            size = log.location.size(file.full)
            time_ms = file.modified_ns // 1_000_000
            (action,) = add_files([WrittenFile(file.path, size, compute_stats(rows))], time_ms)
            files[file.path] = int(path_fields["head"], 16), action
    return list(files.values())


def _fits(log: _KnownLog, entries: Sequence[RebuiltEntry], last_version: int) -> bool:
    """Return whether the log up to `last_version`, with `entries`, has every event once."""
    try:
        with _copy_log(log, entries, last_version) as copy:
            return not _has_faults(log.location, DeltaTable(pathlib.Path(copy).as_uri()))
    except (DeltaError, *_UNREADABLE):
        return False


@contextlib.contextmanager
def _copy_log(log: _KnownLog, entries: Sequence[RebuiltEntry], last_version: int) -> Iterator[str]:
    """Provide a directory with the log up to the entry `last_version`, including `entries`."""
    broken = [os.path.basename(entry_path(log.location, version)) for version in log.damage]
    with shadow_log(log.location, last_version, [*broken, *log.torn, LAST_CHECKPOINT]) as copy:
        for entry in entries:
            if entry.version <= last_version:
                name = os.path.basename(entry_path(log.location, entry.version))
                with open(os.path.join(copy, LOG_FOLDER, name), "wb") as file:
                    file.write(entry.content)
        yield copy


def _has_faults(location: Location, table: DeltaTable) -> bool:
    files = data_files(location, pa.table(table.get_add_actions(flatten=True)))
    head_id = table.transaction_version(HEAD_TRANSACTION)
    index = load_index(location, head_id, None, SeriesIndex())
    horizon = table.transaction_version(HORIZON_TRANSACTION)
    retained = read_settings(table.metadata().configuration, index.metadata).retained
    compacted = CompactionHorizon(-1 if horizon is None else horizon - 1, retained)
    values = value_fields(pa.schema(table.schema()))
    table_columns = set(pa.schema(table.schema()).names)
    samples: list[SizedKey] = []
    for file in files:
        check = check_file(location, file, values)
        names = pq.read_schema(location.file(file.path)).names if check.problem is None else ()
        if check.problem is not None or not table_columns.issuperset(names):
            return True
        samples += check.samples
    return any(check_rows(location, compacted, index, files, samples))


def put_rebuilt(location: Location, rebuilt: Iterable[RebuiltEntry]) -> str:
    """Replace damaged entries; return the folder with the originals."""
    entries = list(rebuilt)
    log = location.file(LOG_FOLDER)
    aside = location.file("_tseries", "lost", f"{entries[0].version:020d}-{secrets.token_hex(4)}")
    make_directories(os.path.join(aside, LOG_FOLDER))
    for entry in entries:
        path = entry_path(location, entry.version)
        draft = location.file("_tseries", "staging", f"{secrets.token_hex(8)}.json")
        location.write_whole(draft, entry.content, new=True)
        if os.path.exists(path):
            before = os.stat(path)
            location.copy(path, os.path.join(aside, LOG_FOLDER, os.path.basename(path)))
            os.utime(draft, ns=(before.st_atime_ns, before.st_mtime_ns))
        sync([draft, aside, os.path.join(aside, LOG_FOLDER)])
        os.replace(draft, path)  # At once, so that an interrupted repair can be repeated.
    sync([log])
    return aside
