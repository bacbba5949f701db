"""The files of heads: written under new names, and a chain of them read back as one head.

A head counts once a commit names it, so a crash leaves at most files that nobody reads.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.model.head_checksums import check_file, seal_file
from pyspark_tseries.model.series_index import Head, Note, merge, of_series, read_note
from pyspark_tseries.storage.location import Place

__all__ = [
    "GLANCES",
    "head_chain",
    "head_path",
    "load_head",
    "load_series",
    "read_head_note",
    "readable_notes",
    "unreadable_head",
    "write_head",
]

_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")
FEW_ROWS: Final = 64
"""Fewer are not worth compressing."""

FEW_SERIES: Final = 10_000
"""So many rows, or fewer, are merged in some milliseconds."""

LARGE_BYTES: Final = 1024 * 1024

_BROKEN: Final = (FileNotFoundError, pa.ArrowException, ValueError)
"""What the file itself is to blame for; other OSErrors may pass."""

GLANCES: Final = 4
"""So many queries of a process read where their series stand; the next keeps it of all series."""


def head_path(place: Place, head_id: int) -> str:
    """Where the head `head_id` lies."""
    return place.file("_tseries", "head", f"{head_id:016x}.arrow")


def write_head(place: Place, head_id: int, table: pa.Table) -> str:
    """Writes a head file; returns its path."""
    path = head_path(place, head_id)
    options = _LZ4 if table.num_rows >= FEW_ROWS else None
    content = io.BytesIO()
    with pa.ipc.new_file(content, table.schema, options=options) as writer:
        writer.write_table(table)
    sealed = bytearray(content.getbuffer())
    seal_file(sealed)
    with place.write(path) as file:
        file.write(sealed)
    return path


def read_head_note(place: Place, head_id: int) -> Note:
    """What the head file says besides its rows, without reading these.

    Raises:
        UnusableStore: it is missing or broken.
        OSError: it cannot be read now, though it may be there.
    """
    path = head_path(place, head_id)
    try:
        return _note_at(place, path)
    except _BROKEN as error:
        raise unreadable_head(place, path, str(error)) from error


def head_chain(place: Place, head_id: int | None, since_us: int) -> Iterator[str]:
    """The paths of the head files of `head_id` and of all that were current since `since_us`.

    Raises:
        UnusableStore: one is broken.
        OSError: one cannot be read now, though it may be there.
    """
    while head_id is not None:
        path = head_path(place, head_id)
        try:
            note = _note_at(place, path)
        except FileNotFoundError:
            return  # Removed before: nothing older is there either.
        except _BROKEN as error:
            raise unreadable_head(place, path, str(error)) from error
        yield path
        head_id = note.parent if note.depth or note.commit_us >= since_us else None


def readable_notes(place: Place) -> dict[int, Note]:
    """The notes of all head files that can be read, by the ids of the heads."""
    notes = {}
    heads = (path for path, _ in place.listed(place.file("_tseries", "head")))
    for path in heads:
        with contextlib.suppress(OSError, *_BROKEN):
            head_id = int(os.path.basename(path).split(".")[0], 16)
            notes[head_id] = _note_at(place, path)
    return notes


def _note_at(place: Place, path: str) -> Note:
    """The note of a file, of which a large one is not read whole."""
    with place.read(path) as file:
        if file.size() > LARGE_BYTES:
            return read_note(pa.ipc.open_file(file).schema)
        content = file.read()
    return read_note(_parsed(content).schema)


def _read_head(place: Place, path: str) -> pa.Table:
    try:
        with place.read(path) as file:
            content = file.read()
        table = _parsed(content)
        read_note(table.schema)
    except (OSError, *_BROKEN) as error:
        raise unreadable_head(place, path, str(error)) from error
    return table


def _parsed(content: bytes) -> pa.Table:
    """The content of a whole file; raises one of _BROKEN."""
    sealed = check_file(content)
    try:
        table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
    except OSError as error:  # Of a file in memory: it says something else than it was.
        raise ValueError(str(error)) from error
    if not sealed:
        table.validate(full=True)
    return table


def unreadable_head(place: Place, path: str, reason: str) -> UnusableStore:
    """The error of a head file that is missing or broken, as `reason` says."""
    return UnusableStore(
        f"the store's head file '{path}' cannot be read: {place.hides(reason)}; accepted: a "
        "store copied whole, '_tseries' included; next step: copy it again, restore that file, or "
        f"mend the store with: python -m pyspark_tseries repair {place.location}"
    )


def load_head(place: Place, head_id: int | None, known_id: int | None, known: Head) -> Head:
    """The head `head_id`, from files, or on top of `known` where that is in its chain.

    Args:
        place: where the store lies.
        head_id: None before the first commit.
        known_id: the id of `known`; None where `known` is the empty head.
        known: a head read before.
    """
    head, deltas = _chain(place, head_id, known_id, known)
    for delta in deltas:
        head = merge(head, delta)
    return head


def load_series(place: Place, head_id: int | None, names: Sequence[str]) -> tuple[Head, bool]:
    """The head `head_id` as far as `names` are concerned, and whether it is the whole head.

    It is where there are few series. Else every row is read, but only those of `names` get a
    place among what can be looked up, which takes most of the time and memory of a whole head.
    """
    head, deltas = _chain(place, head_id, None, Head())
    whole = sum(delta.num_rows for delta in deltas) <= FEW_SERIES
    for delta in deltas:
        head = merge(head, delta if whole else of_series(delta, names))
    return head, whole


def _chain(
    place: Place, head_id: int | None, known_id: int | None, known: Head
) -> tuple[Head, list[pa.Table]]:
    """A head that is in memory, and the deltas that make the head `head_id` of it, in order."""
    deltas: list[pa.Table] = []
    while head_id is not None and head_id != known_id:
        deltas.append(_read_head(place, head_path(place, head_id)))
        note = read_note(deltas[-1].schema)
        head_id = note.parent if note.depth else None
        known_id = known_id if note.depth else None
        known = known if note.depth else Head()
    return known if head_id == known_id else Head(), deltas[::-1]
