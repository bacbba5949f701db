"""Check that a query's store and checkpoint belong together before anything is written.

A query must not write to a store that its checkpoint does not belong to (semantics 16.6). The store
has a mark of every query that wrote to it, with the number of its last batch; even an empty first
batch leaves this mark. If the checkpoint is a directory on this machine, a file in it records the
store's id and location, so that a missing store is reported instead of being created again, empty.
The file also records the commits of the last batches, so that an older state of the store is
noticed.

The query that writes windows leaves a note in the store, `_tseries/streams/QUERY.json` (semantics
30.6): the options of its streams of records, from the offset of its first batch, and whether it
gives CTIs. `correct_late` compares its own streams and windows with these. If the checkpoint of a
query is not a directory on the driver's machine, there is no such note, and nothing is compared.

Spark's classic client calls the function for a batch in the query's own thread, which has the id.
Spark Connect calls it in a process beside the server, in a session without queries. There the query
gets a name of its own, so that the session that started it can find it.
"""

import contextlib
import json
import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, is_remote
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_timestream.core.checkpoint import (
    CTI_SETTINGS,
    find_location,
    parse_offset,
    read_batch_entry,
    resolve_directory,
)
from pyspark_timestream.core.declarations import quote_setting
from pyspark_timestream.core.instants import format_duration, format_instant
from pyspark_timestream.core.policies import DEFAULT_POLICY, KEEP_ALL, POLICIES
from pyspark_timestream.errors import CheckpointUnreadable, name_topics
from pyspark_tseries.errors import HistoryChanged, IncompatibleValue, StoreMismatch, UpdateFailed
from pyspark_tseries.maintain.corrections import REASON_COLUMN
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.commits import (
    BATCH_WRITES,
    QUERY_PREFIX,
    UNKNOWN_WRITERS,
    CommitId,
    name_writer,
)
from pyspark_tseries.model.ranges import RetainedRange, format_range
from pyspark_tseries.storage.failures import explain_failure
from pyspark_tseries.storage.location import Location, sync
from pyspark_tseries.store.commit_history import (
    describe_change,
    is_given_up,
    last_commit_id,
    note_commit,
)
from pyspark_tseries.store.log_entries import NewEntry
from pyspark_tseries.store.store import Store

_LOG: Final = logging.getLogger(__name__)

_UNRELATED: Final = frozenset(
    {
        "endingCti",
        "endingOffsets",
        "endingOffsetsByTimestamp",
        "endingTimestamp",
        "keyFormat",
        "keyFraming",
        "keyMessage",
        "keyReaderSchema",
        "keySchema",
        "readerSchema",
        "subscribe",
        "subscribePattern",
        "valueSchema",
        "violationPolicy",
    }
)
"""Settings in an offset that make no row late; topics are compared anyway."""

_IDLE: Final = {"idleTimeout"}

_noted: dict[tuple[str, str], int] = {}
"""How often this process has noted the streams of each query, at most twice.

Spark may first repeat a batch of an earlier run, with that run's options; the second batch has this
run's options.
"""


@dataclass(frozen=True, slots=True)
class RecordStream:
    """A stream of records, and the options that decide which of its rows are late.

    Attributes:
        settings: the options that its offset keeps, as text.
        starts: by topic and partition, the first offset that the query read; None if unknown.
    """

    settings: Mapping[str, str]
    starts: Mapping[str, int | None]

    @property
    def topics(self) -> set[str]:
        """The topics that it reads."""
        return {name.rpartition("-")[0] for name in self.starts}

    @property
    def makes_ctis(self) -> bool:
        """Whether it has CTIs, and so late rows, of its own."""
        return any(name in self.settings for name in CTI_SETTINGS)

    @property
    def policy(self) -> str:
        """The name of its violation policy; a later release may have written it."""
        return self.settings.get("violationPolicy", DEFAULT_POLICY)


@dataclass(frozen=True, slots=True)
class WriterNote:
    """The note of a store about a query that writes it.

    Attributes:
        gives_ctis: True if it commits CTIs.
        streams: the streams that it reads; empty if unknown.
    """

    gives_ctis: bool
    streams: tuple[RecordStream, ...] = ()


def read_streams(offsets: Iterable[Any], batch: int) -> tuple[RecordStream, ...]:
    """Return the streams of records among the offsets of `batch`, which are parsed JSON."""
    streams = []
    for offset in offsets:
        if not isinstance(offset, dict) or not {"settings", "partitions"} <= offset.keys():
            continue
        starts = {
            f"{topic}-{number}": int(partition["from"]) if batch == 0 else None
            for topic, partitions in offset["partitions"].items()
            for number, partition in partitions.items()
        }
        settings = {**offset["settings"], **_describe_changes(offset)}
        streams.append(RecordStream(settings, starts))
    return tuple(streams)


def _describe_changes(offset: Mapping[str, Any]) -> dict[str, str]:
    """Return a setting that no other stream has if the options have changed (semantics 8.10)."""
    changes = [
        change for change in offset.get("changes", ()) if {*change["from"], *change["to"]} != _IDLE
    ]
    if not changes:
        return {}
    return {"changeFrom": f"now: stream {offset['stream'][:8]}, batch {changes[-1]['number']}"}


def read_checkpoint(checkpoint: Path, batch: int) -> tuple[RecordStream, ...]:
    """Return a query's streams from the entry of a batch in its checkpoint; empty if unknown."""
    try:
        return read_streams(read_batch_entry(checkpoint, batch).offsets, batch)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def note_writer(
    location: Location, query: str, batch: int, checkpoint: Path | None, *, gives_ctis: bool
) -> None:
    """Note the streams of a query, twice per process; without a note nothing is compared."""
    key = location.root, query
    if _noted.get(key, 0) == 2:
        return
    _noted[key] = _noted.get(key, 0) + 1
    with contextlib.suppress(OSError):
        earlier_note = _read_note(location, query)
        streams = () if checkpoint is None else read_checkpoint(checkpoint, batch)
        if earlier_note is not None:
            # Keep the starts of the first run.
            has_changed = any("changeFrom" in stream.settings for stream in streams)
            streams = streams if has_changed else earlier_note.streams or streams
            if earlier_note == WriterNote(gives_ctis, streams):
                return
        note = WriterNote(gives_ctis, streams)
        location.write_whole(_note_path(location, query), json.dumps(asdict(note)).encode())


def _note_path(location: Location, query: str) -> str:
    return location.file("_tseries", "streams", f"{query}.json")


def _read_note(location: Location, query: str) -> WriterNote | None:
    try:
        note = json.loads(location.read_whole(_note_path(location, query)))
        streams = tuple(RecordStream(**stream) for stream in note["streams"])
        return WriterNote(bool(note["gives_ctis"]), streams)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_notes(store: Store) -> dict[str, WriterNote]:
    """Return the notes of the queries that write the store, by their names as writers."""
    notes = {}
    for path, _ in store.location.list_files(store.location.file("_tseries", "streams")):
        query = Path(path).stem
        note = _read_note(store.location, query)
        if note is not None:
            notes[name_writer((f"{QUERY_PREFIX}{query}", 0))] = note
    return notes


def refuse_without_ctis(store: Store) -> None:
    """Refuse a store that gets no CTI from its writers."""
    ctis = store.metadata().ctis
    if ctis.store_us is not None:
        return
    notes = _read_notes(store)
    for name in ctis.without_cti():
        if name in (BATCH_WRITES, UNKNOWN_WRITERS) or (
            name in notes and not notes[name].gives_ctis
        ):
            raise UpdateFailed(
                f"the store '{store.root}' has no CTI, since writer '{name}' gives none: no window "
                "is known to be complete, and none would ever be corrected",
                "a store whose writers give CTIs",
                "start the query that writes the windows with option 'ctiDelay' (or 'ctiColumn'); "
                f"if that writer has ended, TimeSeries.forget_writer('{name}')",
            )


def refuse_other_streams(store: Store, mine: Sequence[RecordStream]) -> None:
    """Refuse late rows of streams with other options than the windows' stream."""
    theirs = [stream for note in _read_notes(store).values() for stream in note.streams]
    for stream in mine:
        if not stream.makes_ctis:
            continue
        _refuse_policy(store, stream)
        if not theirs:
            continue
        closest = min(theirs, key=lambda candidate: len(_list_differences(stream, candidate)))
        differences = _list_differences(stream, closest)
        if differences:
            raise UpdateFailed(
                f"{differences[0]}, so a row may be late in one of the two and in time in the "
                "other, and count twice or not at all",
                "a stream with the options of the query that wrote the windows",
                "read the same topics with the same options, or write the windows to a new store; "
                "if one query judges for both, let it write its late rows to a topic, and read "
                "that without options of CTIs. Nothing is stored",
            )
        _refuse_moving_policy(store, closest)
        for name, our_start, their_start in _list_starts(stream, closest):
            if our_start > their_start:
                _LOG.warning(
                    "the query that wrote the windows of '%s' began at offset %d of '%s', and this "
                    "one at %d: late rows between are not corrected, and some after that may be "
                    "taken for rows in time",
                    store.root, their_start, name, our_start,
                )  # fmt: skip


def _refuse_moving_policy(store: Store, stream: RecordStream) -> None:
    """Refuse windows with late rows of earlier ones; `stream` is the windows' stream."""
    if stream.policy not in POLICIES or POLICIES[stream.policy].moves:
        raise UpdateFailed(
            f"the query that wrote the windows of '{store.root}' has 'violationPolicy' = "
            f"'{stream.policy}', which moves late rows into later windows, where they are counted",
            f"windows of a query with 'violationPolicy' = '{KEEP_ALL}'",
            "write the windows to a new store with that policy. Nothing is stored",
        )


def _refuse_policy(store: Store, stream: RecordStream) -> None:
    """Refuse a stream of late rows that does not keep them, or judges them by the clock."""
    if stream.policy not in POLICIES or not POLICIES[stream.policy].flags_all:
        raise UpdateFailed(
            f"the stream of late rows has 'violationPolicy' = '{stream.policy}', which keeps no "
            f"late rows to correct '{store.root}' with",
            f"'{KEEP_ALL}'",
            f"set 'violationPolicy' to '{KEEP_ALL}' on the stream, with a new checkpoint. Nothing "
            "is stored",
        )
    if "ctiImport" in stream.settings:
        raise UpdateFailed(
            "the stream of late rows has option 'ctiImport': its CTIs depend on when a query "
            "runs, so that a row may be late in one query and in time in the other",
            "CTIs that come only from the records",
            "let one query judge for both and write rows and CTIs to a second topic. Nothing is "
            "stored",
        )


def _list_differences(mine: RecordStream, theirs: RecordStream) -> list[str]:
    differences = []
    if mine.topics != theirs.topics:
        differences.append(
            f"the late rows are of {name_topics(mine.topics) or 'no topic'}, and the windows of "
            f"{name_topics(theirs.topics) or 'no topic'}"
        )
    for name in sorted((mine.settings.keys() | theirs.settings.keys()) - _UNRELATED):
        our_text, their_text = mine.settings.get(name), theirs.settings.get(name)
        if our_text != their_text:
            differences.append(
                f"option '{name}' is {quote_setting(our_text)} here, and "
                f"{quote_setting(their_text)} in the query that wrote the windows"
            )
    differences.extend(
        f"this query reads '{name}' from offset {our_start}, and the query that wrote the windows "
        f"from {their_start} ('startingOffsets')"
        for name, our_start, their_start in _list_starts(mine, theirs)
        if our_start < their_start
    )
    return differences


def _list_starts(mine: RecordStream, theirs: RecordStream) -> list[tuple[str, int, int]]:
    """Return the partitions with two known starts, and both starts."""
    starts = [
        (name, mine.starts.get(name), their_start)
        for name, their_start in sorted(theirs.starts.items())
    ]
    return [
        (name, our_start, their_start)
        for name, our_start, their_start in starts
        if our_start is not None and their_start is not None
    ]


def refuse_other_windows(stored: pa.Table, start: str, *, window_us: int, offset_us: int) -> None:
    """Refuse windows that the store cannot have."""
    if not stored.num_rows:
        return
    starts = stored[start].cast(pa.int64()).to_numpy()
    distances = np.unique(stored["timestamp"].cast(pa.int64()).to_numpy() - starts)
    if len(distances) == 1 and distances[0] != offset_us:
        raise _window_error(
            stored, start, 0,
            f"has its timestamp {format_duration(int(distances[0]))} after its start, and with "
            f"window and timestamp as given it would be {format_duration(offset_us)}",
            "timestamp='start' or 'end' and the window's length as the query that wrote them has",
        )  # fmt: skip
    misplaced = np.flatnonzero(starts % window_us)
    if len(misplaced):
        raise _window_error(
            stored, start, int(misplaced[0]),
            f"is not where a window of {format_duration(window_us)} begins",
            "the length of the windows in the store",
        )  # fmt: skip


def _window_error(
    stored: pa.Table, start: str, row: int, problem: str, accepts: str
) -> UpdateFailed:
    window_start = format_instant(int(pc.cast(stored[start][row], pa.int64()).as_py()))
    return UpdateFailed(
        f"the window of series '{stored['series'][row]}' at {window_start} {problem}",
        accepts,
        "give correct_late the 'window', 'timestamp' and 'start' of the query that writes the "
        "windows; sliding windows, and those with a start of their own, are not corrected. Nothing "
        "of the batch is stored",
    )


def check_window_columns(store: Store, start: str, results: list[str]) -> None:
    """Refuse a store that lacks a column of the windows, or has reasons that are not texts."""
    types = {field.name: field.type for field in store.values}
    missing = [name for name in (start, *results) if name not in types]
    if missing or types[start] != INSTANT:
        name = missing[0] if missing else start
        raise IncompatibleValue(
            f"the store '{store.root}' has no value column '{name}'"
            + ("" if missing else " of timestamps"),
            ", ".join(f"'{field}' {data_type}" for field, data_type in types.items()) or "none",
            "let the query that writes the windows select it, such as "
            "F.col('window.start').alias('window_start')",
        )
    if types.get(REASON_COLUMN, pa.string()) != pa.string():
        raise IncompatibleValue(
            f"the store '{store.root}' has a column '{REASON_COLUMN}' of type "
            f"{types[REASON_COLUMN]}",
            f"a store whose '{REASON_COLUMN}' is a text, and null in what others write",
            "let the query that writes the windows give that column another name",
        )


def refuse_limit(retained: RetainedRange, root: str) -> None:
    """Refuse a store in which a correction hides the window that it corrects."""
    if retained.limit is not None:
        raise UpdateFailed(
            f"the store '{root}' has the retained range '{format_range(retained)}', which counts "
            "edits too: each correction would hide an older window, or its own",
            "a retained range without 'limit', such as 'unlimited' or 'last 30D'",
            "create the store with such a retainedRange, or change it with "
            "TimeSeries.set_retained_range; windows that are hidden already are not corrected",
        )


def refuse_other_reasons(in_force: pa.Table) -> None:
    """Refuse to write over a user's column that has the name of the reasons."""
    is_reason = pc.and_(in_force[REASON_COLUMN].is_valid(), in_force["original_sequence"].is_null())
    row = pc.index(is_reason, True).as_py()
    if row >= 0:
        raise UpdateFailed(
            f"the column '{REASON_COLUMN}' is not of corrections: in series "
            f"'{in_force['series'][row]}' it is '{in_force[REASON_COLUMN][row]}', and the store "
            "has no corrections yet",
            f"a store whose column '{REASON_COLUMN}' is null in what others write",
            "write these values to a column of another name, in a new store. Nothing of the batch "
            "is stored",
        )


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The way to find a query from within one of its batches.

    Attributes:
        session: the session that starts the query. A session of Spark Connect stays the same when
            it is pickled into the server's process; a classic one is never pickled.
        name: the query's name in a session of Spark Connect; None if the client is classic.
    """

    session: Any
    name: str | None

    @staticmethod
    def of(rows: DataFrame) -> "QueryIdentity":
        """Return the identity of a query yet to be started on `rows`."""
        name = f"correct_late {secrets.token_hex(4)}"
        return QueryIdentity(rows.sparkSession, name if is_remote() else None)

    def mark(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Return the writer, with the name that identifies its query."""
        return writer if self.name is None else writer.queryName(self.name)

    def find_id(self, batch: DataFrame) -> str:
        """Return the id of the query that runs `batch`; it stays the same over restarts."""
        if self.name is None:
            context = batch.sparkSession.sparkContext
            query_id = context.getLocalProperty("sql.streaming.queryId")
            next_step = "start the writer that correct_late returns"
        else:
            active = self.session.streams.active
            query_id = next((query.id for query in active if query.name == self.name), None)
            next_step = "leave queryName(...) out, since the query is found by its name here"
        if not query_id:
            raise UpdateFailed(
                "Spark did not say which query it runs (sql.streaming.queryId)",
                "a streaming query",
                next_step,
            )
        return str(query_id)

    def find_streams(self, query_id: str, number: int) -> Sequence[RecordStream] | None:
        """Return the query's streams: an empty sequence if unknown; None if not known yet.

        The checkpoint has them at once. A session of Spark Connect does not know the checkpoint;
        there the query's progress has them from the second batch of a run on.
        """
        if self.name is None:
            running: Any = self.session.streams.get(query_id)
            if running is None:
                return ()
            root = str(running._jsq.streamingQuery().resolvedCheckpointRoot())
            try:
                return read_checkpoint(resolve_directory(root), number)
            except CheckpointUnreadable:
                return ()
        (query,) = (active for active in self.session.streams.active if active.name == self.name)
        if not query.recentProgress:
            return None
        # The first batch of the first run has the starts of all partitions.
        progress = json.loads(query.recentProgress[0].json)
        offsets = [parse_offset(source["endOffset"]) for source in progress["sources"]]
        return read_streams(offsets, progress["batchId"])


_FILE_PATH: Final = Path("sinks", "tseries.json")
_DRAFT: Final = re.compile(r"tseries\.json\.[0-9a-f]{8}")
_DRAFT_LIFE_S: Final = 60
"""A killed process left a draft of the record that is older than this."""
_FORMAT_VERSION: Final = 1
MAX_RECORDED_BATCHES: Final = 100
"""Record the commits of this many batches, as many as Spark keeps in a checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """A checkpoint's record of its store.

    Attributes:
        id: the id of the Delta table.
        location: the location of the store.
        batches: the numbers of the last stored batches, ascending, each with the last commit then.
    """

    id: str
    location: str
    batches: tuple[tuple[int, CommitId], ...] = ()

    def batches_before(self, batch: int) -> list[tuple[int, CommitId]]:
        """Return the recorded batches before `batch`."""
        return [recorded for recorded in self.batches if recorded[0] < batch]

    def __str__(self) -> str:
        """Name the store as a message does."""
        return f"'{self.location}' (id {self.id})"


def find_checkpoint(options: Mapping[str, str]) -> Path | None:
    """Return the checkpoint in Spark's options, if it is a directory on this machine.

    A checkpoint location set for the whole session, or on another machine, is unknown here.
    """
    location = find_location(options)
    try:
        checkpoint = None if location is None else resolve_directory(location)
    except CheckpointUnreadable:
        return None
    return checkpoint if checkpoint and (checkpoint / "offsets").is_dir() else None


def check_before_batch(checkpoint: Path | None, location: Location) -> None:
    """Refuse a batch if its query has written to another store than the one at `location`."""
    recorded = None if checkpoint is None else _read_record(checkpoint)
    if recorded is None:
        return
    store = Store.find(location)
    if store is None:
        raise _mismatch_error(f"to the store {recorded}", f"there is no store at '{location.root}'")
    if store.id != recorded.id:
        raise _mismatch_error(
            f"to the store {recorded}", f"{_describe_store(store)} is another one"
        )


def check_in_commit(
    checkpoint: Path | None,
    store: Store,
    token: tuple[str, int],
    *,
    is_empty: bool = False,
    synced: bool = True,
) -> None:
    """Check, before anything of a batch is stored, that the store is the query's own."""
    name, batch = token
    recorded = None if checkpoint is None else _read_record(checkpoint)
    if checkpoint is not None and recorded is not None:
        _check_history(recorded, store, token)
        earlier_batches = recorded.batches_before(batch)
        if len(earlier_batches) < len(recorded.batches) and not store.has_token(token):
            # The record describes this and later batches in a state that was replaced. Remove
            # these now, because writing the record of this batch may fail.
            _write_record(checkpoint, store, earlier_batches)
    if store.transaction(name) is None:
        if recorded is None and batch > 0:
            batches = "a batch" if batch == 1 else f"{batch} batches"
            raise _mismatch_error(
                f"{batches} elsewhere", f"{_describe_store(store)} has nothing of it"
            )
        if is_empty:
            with store.commit_lock() as log:
                # Another driver of the query may have stored a batch since.
                if store.transaction(name) is None:
                    # Batches are numbered from 0: -1 marks the query before its first batch.
                    log.add(NewEntry((), {name: -1}), synced=synced)


def _check_history(recorded: CheckpointStore, store: Store, token: tuple[str, int]) -> None:
    """Refuse a store that lacks batches which the query has stored in it."""
    name, batch = token
    # Ignore the records of later batches: the checkpoint was set back, perhaps by hand.
    earlier_batches = recorded.batches_before(batch)
    if not earlier_batches:
        return
    number, commit = earlier_batches[-1]
    change = describe_change(store, commit)
    last_batch = store.transaction(name)
    has_batch = last_batch is not None and last_batch >= number
    if change is None and has_batch:
        return
    if has_batch and is_given_up(store.location, commit):
        return  # The batch is in the store; a repair has given up later commits of others.
    raise _changed_error(store, number, commit, change, last_batch)


def _changed_error(
    store: Store, batch: int, commit: CommitId, change: str | None, last_batch: int | None
) -> HistoryChanged:
    change = change or "has nothing of that batch"
    begin = 0 if last_batch is None else last_batch + 1
    return HistoryChanged(
        f"the store {_describe_store(store)} {change}, and this query's checkpoint has seen "
        f"{commit} there, with its batch {batch}: an older state of the store was put back, or "
        "another copy of it",
        "the store as the query left it, or a later state of that",
        "put that state of the store back; or put the checkpoint of the same backup back; or let "
        f"the query write what is lost again: stop it and remove all files from number {begin} on "
        f"in 'commits', and from number {begin + 1} on in 'offsets', of its checkpoint (its source "
        "must still have that input); or start with a new checkpointLocation and a new path, since "
        "it writes all of its input again. Nothing of the batch is stored",
    )


def remember_commit(
    checkpoint: Path | None, store: Store, batch: int, commit: CommitId | None = None
) -> None:
    """Record in the checkpoint that its query has stored a batch.

    Without `commit` the batch was stored before: record the store's last commit.

    Raises:
        StorageFailed: the disk failed. The batch is stored, and is skipped when it runs again
            (16.6).
    """
    if checkpoint is None:
        return
    recorded = _read_record(checkpoint)
    commit = commit or last_commit_id(store)
    batches = [] if recorded is None else recorded.batches_before(batch)
    batches += [] if commit is None else [(batch, commit)]
    if commit is not None:
        # Another query's commits would otherwise make the next batch search the log for this one.
        note_commit(store, commit)
    try:
        _write_record(checkpoint, store, batches[-MAX_RECORDED_BATCHES:])
    except (FileExistsError, NotADirectoryError, PermissionError):
        return  # This checkpoint can have no record; the store still has its marks of queries.
    except OSError as error:
        # The checkpoint is on a disk of this machine, even if the store is elsewhere.
        raise explain_failure(None, error) or error from error


def _write_record(checkpoint: Path, store: Store, batches: Sequence[tuple[int, CommitId]]) -> None:
    path = checkpoint / _FILE_PATH
    record = {
        "batches": [[number, *commit_id.to_json()] for number, commit_id in batches],
        "id": store.id,
        "location": store.root,
        "version": _FORMAT_VERSION,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two instances of the query may be at work.
    draft = Path(f"{path}.{secrets.token_hex(4)}")
    try:
        draft.write_text(json.dumps(record), encoding="utf-8")
        sync([str(draft)])  # Otherwise a power loss may leave an empty record.
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        # A write's error names no file, and others may name the draft.
        error.filename = str(path)
        raise
    _remove_dead_drafts(path)


def _remove_dead_drafts(record: Path) -> None:
    """Remove the drafts that killed processes have left beside a record."""
    with contextlib.suppress(OSError):
        oldest_s = record.stat().st_mtime - _DRAFT_LIFE_S
        for path in record.parent.iterdir():
            if _DRAFT.fullmatch(path.name) and path.stat().st_mtime < oldest_s:
                path.unlink()


def _mismatch_error(what_it_wrote: str, reality: str) -> StoreMismatch:
    return StoreMismatch(
        f"this query's checkpoint has written {what_it_wrote}, and {reality}",
        "the store that the checkpoint has written to, wherever it was moved",
        "name that store or bring it back, or start with a new checkpoint and a new path, since it "
        "writes all of its input again. Nothing of the batch is stored",
    )


def _describe_store(store: Store) -> str:
    return str(CheckpointStore(store.id, store.root))


def _read_record(checkpoint: Path) -> CheckpointStore | None:
    """Return the store recorded in the checkpoint; None if there is no readable record."""
    try:
        record = json.loads((checkpoint / _FILE_PATH).read_text(encoding="utf-8"))
        store, location = str(record["id"]), str(record["location"])
        batches = (
            (int(number), CommitId(int(commit), int(head)))
            for number, commit, head in record.get("batches", ())
        )
        return CheckpointStore(store, location, tuple(batches))
    except (OSError, ValueError, KeyError, TypeError):
        return None
