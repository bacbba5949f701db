"""How a batch's edits become events: each judged by its original, numbered after the appends.

An edit is an ordinary event at the end of its series that also carries sequence, timestamp and
author of the original it overrides. Like `numbering` a fold over the head: a lost race judges the
edits again.

The rules are semantics 18.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tseries.errors import NoSuchEvent
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.retention import RetainedRange, kept
from pyspark_tseries.model.series_index import ABSENT, NEVER_US, Head, Longs, delta_of
from pyspark_tseries.write.numbering import Numbered, encode

__all__ = ["Edited", "Targets", "number_edits", "standing", "targets_of"]

Flags = npt.NDArray[np.bool_]

_ABSENT: Final = "the series has no such event"
_HIDDEN: Final = "that event is itself an edit, or was discarded by the retained range"


@dataclass(frozen=True, slots=True)
class Targets:
    """What a batch's edits name, in the order of the batch; the found ones with their originals.

    Attributes:
        names: the distinct series, sorted.
        codes: each edit's position in `names`.
        sequence: of the original that each edit names.
        us: the original's timestamp, NEVER_US where there is no such original.
        author: the original's, null where there is no such original.
    """

    names: pa.Array
    codes: Longs
    sequence: Longs
    us: Longs
    author: pa.Array

    def in_batch(self, head: Head, events: Numbered, authors: pa.Array) -> "Targets":
        """With the originals that are appended by the same batch.

        Args:
            head: the store before the batch.
            events: the batch's appends.
            authors: of the events, in their order.
        """
        first = head.of(self.names.to_pylist())["last_sequence"][self.codes] + 1
        code = pc.index_in(self.names, events.names).fill_null(-1).to_numpy()[self.codes]
        starts = np.append(np.searchsorted(events.codes, np.arange(len(events.names))), 0)
        sizes = np.append(np.bincount(events.codes, minlength=len(events.names)), 0)
        offset = self.sequence - first
        mine = (offset >= 0) & (offset < sizes[code])
        row = np.where(mine, starts[code] + np.where(mine, offset, 0), 0)
        if not mine.any():
            return self
        us = np.where(mine, events.timestamp_us[row], self.us)
        author = pc.if_else(pa.array(mine), authors.take(pa.array(row)), self.author)
        return Targets(self.names, self.codes, self.sequence, us, author)


@dataclass(frozen=True, slots=True)
class Edited:
    """A batch's edits as events, sorted by (series, sequence), and what became of the others.

    Attributes:
        events: `order` is each edit's place among the batch's edits; `delta` covers the series of
            the appends too; `dropped` counts edits without an original.
        originals: the columns `original_sequence`, `original_timestamp`, `original_author`.
    """

    events: Numbered
    originals: list[pa.Array]


def targets_of(series: pa.Array, sequence: pa.Array) -> Targets:
    """What edits of `series` and `sequence`, which has no nulls, name; no original is found yet."""
    names, codes = encode(series)
    nobody = pa.nulls(len(codes), pa.string())
    wanted = sequence.to_numpy(zero_copy_only=False)
    return Targets(names, codes, wanted, np.full(len(codes), NEVER_US), nobody)


def standing(names: pa.Array, head: Head, delta: pa.Table) -> dict[str, Longs]:
    """Where the series `names` stand: as `delta` says, else as `head` says."""
    columns = head.of(names.to_pylist())
    place = pc.index_in(names, delta["series"].combine_chunks()).fill_null(-1).to_numpy()
    touched = place >= 0
    for name, column in columns.items():
        now = delta[name].cast(pa.int64()).to_numpy()
        column[touched] = now[place[touched]]
    return columns


def number_edits(
    targets: Targets,
    head: Head,
    events: Numbered,
    retained: RetainedRange,
    policy: str,
    now_us: int,
) -> Edited:
    """Judges and numbers a batch's edits, which follow its appends in the order of the input.

    An original is as it was before the batch's retention: inside `retained` by `head`, or of the
    batch itself. An edit gets the timestamp `now_us`, or its series' newest where that is later.

    Args:
        targets: what the edits name.
        head: the store before the batch.
        events: the batch's appends.
        retained: the store's range.
        policy: `fail` or `drop` edits without an original.
        now_us: the time of the commit, or NEVER_US for the series' newest.

    Raises:
        NoSuchEvent: an original is missing under `fail`.
    """
    there = _found(targets, head, retained)
    before = standing(targets.names, head, events.delta)
    lost = np.flatnonzero(~there)
    example = _example(targets, int(lost[0]), before) if len(lost) else None
    if example and policy == "fail":
        raise _missing(example, len(lost))
    order = np.flatnonzero(there)
    order = order[np.argsort(targets.codes[order], kind="stable")]
    present, codes = np.unique(targets.codes[order], return_inverse=True)
    last, newest_us, *original = (column[present] for column in before.values())
    sizes = np.bincount(codes, minlength=len(present))
    within = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    us = np.maximum(newest_us, now_us)
    after = dict(zip(before, (last + sizes, us, *original), strict=True))
    names = targets.names.take(pa.array(present))
    numbered = Numbered(
        order=order,
        names=names,
        codes=codes,
        sequence=last[codes] + 1 + within,
        timestamp_us=us[codes],
        delta=_joined(events.delta, delta_of(names, after)),
        dropped=len(lost),
        adjusted=0,
        example=example,
    )
    return Edited(numbered, _original_columns(targets, order))


def _found(targets: Targets, head: Head, retained: RetainedRange) -> Flags:
    names = targets.names.to_pylist()
    before = head.of(names) | head.floors(names)
    last, *rest = (
        before[name][targets.codes]
        for name in ("last_sequence", "original_us", "floor_sequence", "floor_us")
    )
    known = targets.us != NEVER_US
    visible = kept(retained, targets.sequence, targets.us, last, *rest)
    there: Flags = known & (visible | (targets.sequence > last))
    return there


def _example(targets: Targets, row: int, before: dict[str, Longs]) -> dict[str, Any]:
    code, sequence = int(targets.codes[row]), int(targets.sequence[row])
    last = int(before["last_sequence"][code])
    return {
        "series": targets.names[code].as_py(),
        "edit_of": sequence,
        "last_sequence": None if last == ABSENT else last,
        "reason": _HIDDEN if 0 <= sequence <= last else _ABSENT,
    }


def _missing(example: dict[str, Any], count: int) -> NoSuchEvent:
    last = example["last_sequence"]
    newest = "it is empty" if last is None else f"its newest event is sequence {last}"
    return NoSuchEvent(
        f"series '{example['series']}': there is no original {example['edit_of']} to edit, "
        f"{example['reason']}; {newest} ({count} such edits in the batch); accepted: the sequence "
        "of an original inside the retained range; next step: name the original_sequence where "
        "the event is an edit, or set missingOriginal to 'drop'. Nothing of the batch is stored"
    )


def _joined(appended: pa.Table, edited: pa.Table) -> pa.Table:
    rest = pc.invert(pc.is_in(appended["series"], edited["series"].combine_chunks()))
    return pa.concat_tables([appended.filter(rest), edited]).combine_chunks()


def _original_columns(targets: Targets, order: Longs) -> list[pa.Array]:
    rows = pa.array(order)
    stamps = pa.array(targets.us[order]).cast(INSTANT)
    return [pa.array(targets.sequence[order]), stamps, targets.author.take(rows)]
