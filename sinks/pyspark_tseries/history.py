"""A store as it was: the snapshot and the head of an earlier moment, while its rows exist.

Every row keeps its commit, and compaction removes only what was out of range at its horizon; so
from the horizon on the rows of any moment are there, and the head is found from them.
"""

import dataclasses
import hashlib
import secrets

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.instants import format_instant
from pyspark_tseries.columns import layout
from pyspark_tseries.errors import InvalidQuery, UnusableStore
from pyspark_tseries.files import DataFile, Snapshot
from pyspark_tseries.head_files import rewrite_head
from pyspark_tseries.heads import EMPTY_NOTE, Head, Note, floors_of, merge, snapshot_of, with_note
from pyspark_tseries.inspection import scan_standing
from pyspark_tseries.places import Place
from pyspark_tseries.standing import longs, standing_columns
from pyspark_tseries.store import Store

__all__ = ["sight_as_of"]

_COMMITS = pa.schema(list(layout([]))[-3:-1])


def sight_as_of(store: Store, us: int) -> tuple[Snapshot, Head]:
    """The store as it was at the commit time `us`, its retained range included.

    Raises:
        InvalidQuery: some of what was visible then may be gone; names the oldest possible time.
        UnusableStore: the reader may not write to the store.
    """
    snapshot, head = store.sight()
    if us >= head.note.commit_us:
        return snapshot, head
    oldest = max(store.horizon(), -1 if (since := head.note.retained_since) is None else since)
    commit, oldest_us = _commits(snapshot, us, oldest)
    if commit < oldest:
        raise InvalidQuery(
            f"asOf {format_instant(us)}: of the store as it was then some may be gone; accepted: "
            f"{format_instant(oldest_us)} or later; next step: ask for a later time, and keep "
            "more with tseries.minRetentionAge"
        )
    data = [file for file in snapshot.files if file.first_commit <= commit]
    note = dataclasses.replace(head.note, parent=None, commit=commit, commit_us=us)
    before = _head_of(snapshot.place, data, commit, head, note if commit >= 0 else EMPTY_NOTE)
    head_id = None if commit < 0 else _head_id(store.id, commit)
    if head_id is not None:
        own_id = secrets.randbits(62)
        try:
            rewrite_head(snapshot.place, head_id, snapshot_of(before), own_id)
        except OSError as error:
            raise UnusableStore(
                f"asOf keeps what it found in '{store.root}' for its tasks, which cannot be "
                f"written: {store.place.hides(str(error))}; accepted: a store that the reader may "
                "write; next step: correct the rights, or leave asOf out"
            ) from None
    past = dataclasses.replace(
        snapshot, files=data, head_id=head_id, note=before.note, as_of=commit
    )
    return past, before


def _head_id(store_id: str, commit: int) -> int:
    """A name of its own, as tasks load and keep heads by name; cleaning removes it in an hour.

    Beyond the names of commits' heads, and unlike that of a store that lay there before.
    """
    said = hashlib.sha256(f"{store_id} {commit}".encode()).digest()
    return (1 << 62) + int.from_bytes(said[:7])


def _commits(snapshot: Snapshot, us: int, oldest: int) -> tuple[int, int]:
    """The last commit with rows not after `us`, and the time of the first from `oldest` on."""
    commit, oldest_us = -1, 2**62
    for file in snapshot.files:
        source = snapshot.place.dataset([file.path], _COMMITS)
        for batch in source.to_batches():
            numbers, times = longs(batch["commit"]), longs(batch["commit_time"])
            commit = max(commit, int(numbers[times <= us].max(initial=-1)))
            oldest_us = min(oldest_us, int(times[numbers >= oldest].min(initial=2**62)))
    return commit, min(oldest_us, snapshot.note.commit_us)


def _head_of(place: Place, data: list[DataFile], commit: int, now: Head, note: Note) -> Head:
    found, _ = scan_standing(place, data, -1, pc.field("commit") <= commit)
    head = merge(Head(), with_note(standing_columns(found), note))
    floors = floors_of(now)
    if floors is None:
        return head
    there = pc.is_in(floors["series"], found["series"].combine_chunks())
    return merge(head, with_note(floors.filter(there), note))
