"""The versions of an event: the original and its edits that are still stored (semantics 31.5)."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import NoSuchEvent
from pyspark_tseries.model.arrays import MAX_NUMBER, MIN_NUMBER, to_int64
from pyspark_tseries.model.columns import ERASURE_FIELD, INSTANT, event_schema, file_schema
from pyspark_tseries.storage.head_files import read_records
from pyspark_tseries.storage.row_reader import ANY_VALUE, RowFilter, read_rows
from pyspark_tseries.storage.snapshot import Snapshot

ERASED_FIELDS: Final = (
    pa.field("erased_by", pa.string()),
    pa.field("erased_at", INSTANT),
    pa.field("erased_because", pa.string()),
)
"""Who erased an event, when and why; null where nobody has."""


def read_versions(snapshot: Snapshot, series: str, sequence: int) -> pa.Table:
    """Return an original and its edits, in the order of their sequences.

    Args:
        snapshot: the store.
        series: the name of the series.
        sequence: that of the original or of one of its edits.

    Returns:
        The event's own metadata, the values, the original's metadata, commit and commit time, and
        `ERASED_FIELDS`.

    Raises:
        NoSuchEvent: the event is not stored.
        UnusableStore: the record of an erasure is missing or damaged.
    """
    schema = _stored_schema(snapshot)
    if not MIN_NUMBER <= sequence <= MAX_NUMBER:
        raise _unknown_error(snapshot, series, sequence)
    named = _read_place(snapshot, schema, series, sequence)
    if not named.num_rows:
        raise _unknown_error(snapshot, series, sequence)
    original = named["original_sequence"][0].as_py()
    place = sequence if original is None else int(original)
    rows = pa.concat_tables(
        [
            _read_place(snapshot, schema, series, place, "event"),
            _read_edits(snapshot, schema, series, place),
        ]
    )
    order = np.argsort(to_int64(rows["sequence"]), kind="stable")
    return _tell_erasures(snapshot, rows.take(pa.array(order)))


def _stored_schema(snapshot: Snapshot) -> pa.Schema:
    return pa.schema(field.with_nullable(True) for field in file_schema(snapshot.values))


def _read_place(
    snapshot: Snapshot, schema: pa.Schema, series: str, sequence: int, kind: str | None = None
) -> pa.Table:
    """Return the event `sequence` of a series, if it is stored and of the kind."""
    files = [
        file
        for file in snapshot.files
        if file.first <= series <= file.last
        and file.min_sequence <= sequence <= file.max_sequence
        and kind in (None, file.kind)
    ]
    row_filter = RowFilter([series], sequences=(sequence, sequence), commits=_commits(snapshot))
    return read_rows(snapshot.location, files, schema, schema.names, row_filter)


def _read_edits(snapshot: Snapshot, schema: pa.Schema, series: str, place: int) -> pa.Table:
    files = [
        file
        for file in snapshot.files
        if file.kind == "edit" and file.first <= series <= file.last and file.max_sequence > place
    ]
    row_filter = RowFilter([series], commits=_commits(snapshot))
    of_place = pc.field("original_sequence") == place
    return read_rows(snapshot.location, files, schema, schema.names, row_filter, of_place)


def _commits(snapshot: Snapshot) -> tuple[int, int]:
    return ANY_VALUE if snapshot.as_of is None else (ANY_VALUE[0], snapshot.as_of)


def _tell_erasures(snapshot: Snapshot, rows: pa.Table) -> pa.Table:
    """Return rows with who erased them in place of the act's id."""
    acts = rows[ERASURE_FIELD.name].to_pylist()
    known = {}
    wanted = {act for act in acts if act is not None}
    if wanted:
        for record in read_records(snapshot.location, snapshot.metadata.erasure):
            known[record.act.id] = record.act
            if wanted <= known.keys():
                break
    told = [known.get(act) for act in acts]
    columns = [
        pa.array([act and act.principal for act in told], pa.string()),
        pa.array([act and act.time_us for act in told], pa.int64()).cast(INSTANT),
        pa.array([act and act.reason for act in told], pa.string()),
    ]
    rows = rows.select(event_schema(snapshot.values).names)
    for field, column in zip(ERASED_FIELDS, columns, strict=True):
        rows = rows.append_column(field, column)
    return rows


def _unknown_error(snapshot: Snapshot, series: str, sequence: int) -> NoSuchEvent:
    last = int(snapshot.index([series]).lookup([series])["last_sequence"][0])
    stands = "the series has no events" if last < 0 else f"its newest event is sequence {last}"
    gone = ", compaction has removed it" if 0 <= sequence <= last else ""
    return NoSuchEvent(
        f"series '{series}': event {sequence} is not stored{gone}; {stands}",
        "the sequence of a stored event",
        "ask for one in the result of a query",
    )
