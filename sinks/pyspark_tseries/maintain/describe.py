"""Facts of a store, for people and programs."""

from collections.abc import Mapping
from typing import Any

from pyspark_timestream.connector.instants import format_instant
from pyspark_tseries.maintain.erased_bytes import find_files_with_values, open_acts
from pyspark_tseries.model.columns import type_name
from pyspark_tseries.model.retention import DEFAULT_RANGE, format_range
from pyspark_tseries.storage.erasure_files import read_records
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.store.store import Store

__all__ = ["describe"]


def describe(
    path: str | Location, storage_options: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The facts of the store at `path`, a local path, a `file:` URI or an `s3:` URI.

    `events` counts all events ever appended, `stored_events` those that compaction has kept;
    queries see those in `retained_range`. `dropped` and `adjusted` count late rows since the
    store was created, with the latest example of each. `cti` is what the store promises: no
    original before it is appended any more; `cti_writers` has the CTI of each writer, None for one
    that has given none. `erasures` counts the acts that erased values, and `erasure_files` names
    what still has some of these: the next maintenance ten minutes after an act removes it.

    Raises:
        NoSuchStore: there is none.
        UnusableStore: it is of a newer version, or no store.
        ValueError: `path` is empty or a URI of another kind.
    """
    store = Store.open(parse_location(path, storage_options))
    snapshot, (_, head) = store.snapshot(), store.index()
    metadata, last = head.metadata, head.columns["last_sequence"]
    return {
        "path": snapshot.root,
        "value_columns": {field.name: type_name(field.type) for field in snapshot.values},
        "series": int((last >= 0).sum()),
        "events": int((last + 1).sum()),
        "retained_range": format_range(snapshot.retained),
        "retained_default": snapshot.retained == DEFAULT_RANGE,
        "stored_events": sum(file.rows for file in snapshot.files),
        "files": len(snapshot.files),
        "bytes": sum(file.size for file in snapshot.files),
        "policy": snapshot.policy,
        "last_commit": None if metadata.commit < 0 else metadata.commit,
        "last_commit_time": None if metadata.commit < 0 else format_instant(metadata.commit_us),
        "dropped": metadata.dropped,
        "last_dropped": metadata.last_dropped,
        "adjusted": metadata.adjusted,
        "last_adjusted": metadata.last_adjusted,
        "future": metadata.future,
        "last_future": metadata.last_future,
        "cti": _format(metadata.ctis.promised_us),
        "cti_writers": {name: _format(us) for name, us in metadata.ctis.writers.items()},
        "erasures": sum(1 for _ in read_records(snapshot.location, metadata.erasure)),
        "erasure_files": find_files_with_values(store, open_acts(store)),
        "upkeep_error": _read_maintenance_error(snapshot.location),
    }


def _format(us: int | None) -> str | None:
    return None if us is None else format_instant(us)


def _read_maintenance_error(location: Location) -> str | None:
    """The error of the last maintenance; None if it succeeded."""
    try:
        with location.read(location.file("_tseries", "upkeep.error")) as file:
            return str(file.read().decode())
    except FileNotFoundError:
        return None
