"""What a store holds, as facts for people and programs."""

from collections.abc import Mapping
from typing import Any

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.model.columns import type_name
from pyspark_tseries.model.retention import DEFAULT, format_range
from pyspark_tseries.storage.location import Place, place_of
from pyspark_tseries.store.store import Store

__all__ = ["describe"]


def describe(path: str | Place, storage_options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The facts of the store at `path`, a local path, a `file:` URI or an `s3:` URI.

    `events` counts what was ever appended, `stored_events` what compaction has left of it;
    `retained_range` says what queries see. `dropped`
    and `adjusted` count late rows since the store's creation, with the latest example of each.

    Raises:
        NoSuchStore: there is none.
        UnusableStore: it is of a newer version, or no store.
        ValueError: `path` is empty or a URI of another kind.
    """
    store = Store.open(place_of(path, storage_options))
    snapshot, (_, head) = store.snapshot(), store.head()
    note, last = head.note, head.columns["last_sequence"]
    return {
        "path": snapshot.root,
        "value_columns": {field.name: type_name(field.type) for field in snapshot.values},
        "series": int((last >= 0).sum()),
        "events": int((last + 1).sum()),
        "retained_range": format_range(snapshot.retained),
        "retained_default": snapshot.retained == DEFAULT,
        "stored_events": sum(file.rows for file in snapshot.files),
        "files": len(snapshot.files),
        "bytes": sum(file.size for file in snapshot.files),
        "policy": snapshot.policy,
        "last_commit": None if note.commit < 0 else note.commit,
        "last_commit_time": None if note.commit < 0 else format_instant(note.commit_us),
        "dropped": note.dropped,
        "last_dropped": note.last_dropped,
        "adjusted": note.adjusted,
        "last_adjusted": note.last_adjusted,
        "upkeep_error": _upkeep_error(snapshot.place),
    }


def _upkeep_error(place: Place) -> str | None:
    """What went wrong when the store last looked after itself; None where nothing did."""
    try:
        with place.read(place.file("_tseries", "upkeep.error")) as file:
            return str(file.read().decode())
    except FileNotFoundError:
        return None
