"""Check a batch's edits against their originals, and number them as events (semantics 18).

An edit is an ordinary event at the end of its series that also carries sequence, timestamp and
author of the original it overrides. As in `numbering`, nothing is kept between attempts: after a
lost race the edits are checked again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.policies import (
    LEAVE_OUT_POLICIES,
    STORE_POLICIES,
    Action,
    name_lenient,
)
from pyspark_tseries.errors import NoSuchEvent
from pyspark_tseries.model.arrays import NEVER_US, NO_SEQUENCE, BoolArray, Int64Array, encode_names
from pyspark_tseries.model.columns import ERASURE_FIELD, EVENT_FIELDS, INSTANT
from pyspark_tseries.model.ranges import RetainedRange, min_retained
from pyspark_tseries.model.series_index import SeriesIndex, make_change
from pyspark_tseries.storage.data_files import DataFile
from pyspark_tseries.storage.location import Location
from pyspark_tseries.storage.row_reader import BASE_SCHEMA, RowFilter, read_rows
from pyspark_tseries.write.numbering import Counts, NumberedRows, lookup_after

_REASON_ABSENT: Final = "the series has no such event"
_REASON_ERASED: Final = "that event was erased"
_REASON_HIDDEN: Final = "that event is itself an edit, or was discarded by the retained range"


@dataclass(frozen=True, slots=True)
class EditTargets:
    """The originals that a batch's edits name, in the order of the batch.

    Attributes:
        names: the distinct series, sorted.
        codes: the position in `names` of each edit's series.
        sequence: the sequence of the original that each edit names.
        us: the original's timestamp, NEVER_US if there is no original.
        author: the original's author, null if there is no original.
        erased: flags of the originals that were erased.
    """

    names: pa.Array
    codes: Int64Array
    sequence: Int64Array
    us: Int64Array
    author: pa.Array
    erased: BoolArray


@dataclass(frozen=True, slots=True)
class NumberedEdits:
    """A batch's edits as events, sorted by (series, sequence), and the counts of dropped ones.

    Attributes:
        events: `order` is the position among the batch's edits; `change` also covers the series of
            the appends; `dropped` counts edits without an original.
        originals: the columns `original_sequence`, `original_timestamp`, `original_author`.
    """

    events: NumberedRows
    originals: list[pa.Array]


def number_edits(
    targets: EditTargets,
    index: SeriesIndex,
    appended: pa.Table,
    retained: RetainedRange,
    *,
    missing_original: str,
    now_us: int,
) -> NumberedEdits:
    """Check and number a batch's edits, which follow its appends in the order of the input.

    An original may be edited if it is inside `retained` before the batch (by `index`), or in the
    batch itself. An edit gets the timestamp `now_us`, or its series' newest if that is later.
    """
    editable = _find_editable(targets, index, retained)
    before = lookup_after(targets.names, index, appended)
    lost = np.flatnonzero(~editable)
    example = _describe_missing(targets, int(lost[0]), before) if len(lost) else None
    if example and STORE_POLICIES[missing_original] is Action.FAIL:
        raise _missing_original_error(example, len(lost))
    order = np.flatnonzero(editable)
    order = order[np.argsort(targets.codes[order], kind="stable")]
    present, codes = np.unique(targets.codes[order], return_inverse=True)
    before = {name: column[present] for name, column in before.items()}
    last = before["last_sequence"]
    sizes = np.bincount(codes, minlength=len(present))
    within = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    us = np.maximum(before["newest_us"], now_us)
    counts = {"last_sequence": last + sizes, "newest_us": us, "edits": before["edits"] + sizes}
    names = targets.names.take(pa.array(present))
    numbered = NumberedRows(
        order=order,
        names=names,
        codes=codes,
        sequence=last[codes] + 1 + within,
        timestamp_us=us[codes],
        change=_merge_changes(appended, make_change(names, before | counts)),
        counts=Counts(dropped=len(lost), example=example),
    )
    return NumberedEdits(numbered, _original_columns(targets, order))


def _find_editable(targets: EditTargets, index: SeriesIndex, retained: RetainedRange) -> BoolArray:
    names = targets.names.to_pylist()
    before, codes = index.lookup(names), targets.codes
    newest = before["last_sequence"], before["original_us"]
    low, low_us = min_retained(retained, *newest, index.min_retained(names))
    known = targets.us != NEVER_US
    known &= ~targets.erased
    visible = (targets.sequence >= low[codes]) & (targets.us >= low_us[codes])
    editable: BoolArray = known & (visible | (targets.sequence > newest[0][codes]))
    return editable


def _describe_missing(
    targets: EditTargets, row: int, before: dict[str, Int64Array]
) -> dict[str, Any]:
    code, sequence = int(targets.codes[row]), int(targets.sequence[row])
    last = int(before["last_sequence"][code])
    hidden = _REASON_HIDDEN if 0 <= sequence <= last else _REASON_ABSENT
    return {
        "series": targets.names[code].as_py(),
        "edit_of": sequence,
        "last_sequence": None if last == NO_SEQUENCE else last,
        "reason": _REASON_ERASED if targets.erased[row] else hidden,
    }


def _missing_original_error(example: dict[str, Any], count: int) -> NoSuchEvent:
    last = example["last_sequence"]
    newest = "it is empty" if last is None else f"its newest event is sequence {last}"
    step = "name the original_sequence where the event is an edit"
    if example["reason"] == _REASON_ERASED:
        step = "append a new event"
    return NoSuchEvent(
        f"series '{example['series']}': there is no original {example['edit_of']} to edit, "
        f"{example['reason']}; {newest} ({count} such edits in the batch)",
        "the sequence of an original inside the retained range that was not erased",
        f"{step}, or set missingOriginal to {name_lenient(LEAVE_OUT_POLICIES)}. Nothing of the "
        "batch is stored",
    )


def _merge_changes(appended: pa.Table, edited: pa.Table) -> pa.Table:
    rest = pc.invert(pc.is_in(appended["series"], edited["series"].combine_chunks()))
    return pa.concat_tables([appended.filter(rest), edited]).combine_chunks()


def _original_columns(targets: EditTargets, order: Int64Array) -> list[pa.Array]:
    rows = pa.array(order)
    stamps = pa.array(targets.us[order]).cast(INSTANT)
    return [pa.array(targets.sequence[order]), stamps, targets.author.take(rows)]


EVENT_NAMES: Final = tuple(field.name for field in (*EVENT_FIELDS, ERASURE_FIELD))


def find_originals(
    location: Location, files: Iterable[DataFile], series: pa.Array, sequence: pa.Array
) -> EditTargets:
    """Return the originals in `files` that edits name by `series` and `sequence`, without nulls.

    Open only the files of originals with overlapping bounds of series and sequences, and read only
    the row groups that may have one.
    """
    names, codes = encode_names(series)
    wanted = sequence.to_numpy(zero_copy_only=False)
    distinct, bounds = names.to_pylist(), (int(wanted.min()), int(wanted.max()))
    data = [
        file
        for file in files
        if file.kind == "event"
        and file.max_sequence >= bounds[0]
        and file.min_sequence <= bounds[1]
        and file.first <= distinct[-1]
        and file.last >= distinct[0]
    ]
    row_filter = RowFilter(distinct, sequences=bounds)
    is_wanted = pc.field("sequence").isin(pa.array(np.unique(wanted)))
    originals = read_rows(location, data, BASE_SCHEMA, EVENT_NAMES, row_filter, is_wanted)
    edits = pa.table({"series": series, "sequence": sequence, "row": np.arange(len(codes))})
    joined = edits.join(originals, ["series", "sequence"], join_type="left outer").sort_by("row")
    us = joined["timestamp"].cast(pa.int64()).fill_null(NEVER_US).to_numpy()
    author = joined["author"].combine_chunks().cast(pa.string())
    erased = joined[ERASURE_FIELD.name].is_valid().to_numpy()
    return EditTargets(names, codes, wanted, us, author, erased)
