"""How a batch becomes events: sorted, checked against the head, numbered without gaps.

A fold: `number(head, rows)` says which rows are stored, in which order, with which sequence and
timestamp, and where their series stand afterwards. A lost race calls it again with the new head.

The rules are semantics 16 and 17.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.instants import FINAL_US, MIN_US, format_instant
from pyspark_tseries.errors import OutOfOrder, UpdateFailed
from pyspark_tseries.model.series_index import NEVER_US, Longs, Note, delta_of

__all__ = [
    "UNTIMED",
    "Numbered",
    "Standing",
    "by_code_and_time",
    "counted",
    "encode",
    "number",
    "ordered",
    "series_column",
]

Flags = npt.NDArray[np.bool_]

UNTIMED: Final = np.iinfo(np.int64).max
"""Stands for a null timestamp while sorting, which puts these rows last."""


class Standing(Protocol):
    """Where series stand, as a `Head` says it."""

    def of(self, names: Sequence[str]) -> dict[str, Longs]:
        """As `Head.of`."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A batch's events, sorted by (series, sequence), and what became of the others.

    Attributes:
        order: each event's row in the batch.
        names: the distinct series of the events, sorted.
        codes: each event's position in `names`.
        sequence: each event's.
        timestamp_us: each event's.
        delta: where the series of `names` stand afterwards; without a note.
        dropped: rows that are no events because they are late.
        adjusted: events whose timestamp was raised.
        example: one of the rows counted, or None.
    """

    order: Longs
    names: pa.Array
    codes: Longs
    sequence: Longs
    timestamp_us: Longs
    delta: pa.Table
    dropped: int
    adjusted: int
    example: dict[str, Any] | None


def number(series: pa.Array, given: pa.Array, head: Standing, policy: str, now_us: int) -> Numbered:
    """Numbers a batch.

    Events of a series are in the order of (timestamp, row); rows without a timestamp follow, in
    the order of rows, at `now_us` or their series' newest timestamp where that is later. A row is
    late where its timestamp is before that of its series' newest original in `head`: `policy`
    says what then. Late rows keep their order among themselves when they are adjusted.

    Args:
        series: string, without nulls.
        given: timestamps in microseconds UTC, nullable; as long as `series`.
        head: the store before the batch.
        policy: `fail`, `drop` or `adjust`.
        now_us: the time of the commit, not before that of the last one; NEVER_US assigns the
            series' newest timestamp.

    Raises:
        UpdateFailed: a row is late under `fail`, its timestamp is no legal instant, or there is
            nothing to assign one from.
    """
    order, names, codes, us = ordered(series, given)
    _check_legal(names, codes, us)
    before = head.of(names.to_pylist())
    late = _judge(us < before["original_us"][codes], names, codes, us, before, policy)
    if late.dropped:
        order, codes, us = order[late.on_time], codes[late.on_time], us[late.on_time]
    if late.adjusted:
        us = np.maximum(us, before["original_us"][codes])
    timed = us if given.null_count == 0 else np.where(us == UNTIMED, NEVER_US, us)
    return _numbered(names, codes, order, timed, before, now_us, late)


def ordered(series: pa.Array, given: pa.Array) -> tuple[Longs, pa.Array, Longs, Longs]:
    """Rows in the order of (series, timestamp, row), untimed ones last in their series.

    Returns:
        The rows; the distinct names, sorted; of each row in that order its position in the names,
        and its timestamp, UNTIMED where it has none.

    Raises:
        UpdateFailed: a given timestamp is UNTIMED.
    """
    names, codes = encode(series)
    given = given.cast(pa.int64())
    if (row := pc.index(given, UNTIMED).as_py()) >= 0:
        raise _illegal(series[row], UNTIMED)
    us = given.fill_null(UNTIMED).to_numpy(zero_copy_only=False)
    order = by_code_and_time(codes, us)
    return order, names, codes[order], us[order]


def by_code_and_time(codes: Longs, us: Longs) -> Longs:
    """The rows in the order of (code, timestamp, row); codes are not negative.

    As `np.lexsort((us, codes))`, in a fourth of the time: NumPy sorts 16-bit numbers without
    comparing them, and most batches are in the order of time already.
    """
    order = np.arange(len(us))
    if (us[1:] < us[:-1]).any():
        order = np.argsort(us, kind="stable")
    for shift in range(0, int(codes.max(initial=0)).bit_length(), 16):
        digits = ((codes >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def encode(series: pa.Array) -> tuple[pa.Array, Longs]:
    """The distinct names, sorted by their bytes, and each row's position among them."""
    encoded = series.dictionary_encode()
    by_name = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(by_name), np.int64)
    rank[by_name] = np.arange(len(by_name))
    return encoded.dictionary.take(pa.array(by_name)), rank[encoded.indices.to_numpy()]


def series_column(names: pa.Array, codes: Longs) -> pa.Array:
    """The column of series, as it is best written, of positions among the distinct `names`."""
    # A dictionary is the smaller column while names repeat, and the slower and larger one after.
    if len(names) > len(codes) * 0.2:
        return names.take(pa.array(codes))
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), names)


def _check_legal(names: pa.Array, codes: Longs, us: Longs) -> None:
    if us.min(initial=0) >= MIN_US and us.max(initial=0) <= FINAL_US:
        return
    illegal = np.flatnonzero(((us < MIN_US) | (us > FINAL_US)) & (us != UNTIMED))
    if len(illegal):
        raise _illegal(names[int(codes[illegal[0]])], int(us[illegal[0]]))


def _illegal(series: pa.Scalar, us: int) -> UpdateFailed:
    return UpdateFailed(
        f"series '{series}': timestamp {us} us since 1970 is out of range; accepted: "
        f"{format_instant(MIN_US)} to {format_instant(FINAL_US)}; next step: correct it, or "
        "give null to have one assigned. Nothing of the batch is stored"
    )


def _numbered(
    names: pa.Array,
    codes: Longs,
    order: Longs,
    timed_us: Longs,
    before: dict[str, Longs],
    now_us: int,
    late: "_Late",
) -> Numbered:
    """Sequences and assigned timestamps of rows sorted by series, timed ones first."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    sizes = np.diff(starts, append=len(codes))
    present = codes[starts]
    before = {name: column[present] for name, column in before.items()}
    codes = np.repeat(np.arange(len(present)), sizes)
    first = before["last_sequence"] + 1
    sequence = np.arange(len(codes)) - np.repeat(starts - first, sizes)
    untimed, us = timed_us == NEVER_US, timed_us
    if untimed.any():
        newest_us = np.maximum(np.maximum.reduceat(timed_us, starts), before["newest_us"])
        us = np.where(untimed, np.maximum(newest_us, now_us)[codes], timed_us)
        if (us == NEVER_US).any():
            raise _timeless(names[int(present[codes[np.argmin(us)]])].as_py())
    last = starts + sizes - 1
    names = names.take(pa.array(present))
    after = {
        "last_sequence": sequence[last],
        "newest_us": np.maximum(before["newest_us"], us[last]),
        "original_sequence": sequence[last],
        "original_us": us[last],
    }
    delta = delta_of(names, after)
    counts = late.dropped, late.adjusted, late.example
    return Numbered(order, names, codes, sequence, us, delta, *counts)


def _timeless(series: str) -> UpdateFailed:
    return UpdateFailed(
        f"series '{series}': its first event has no timestamp, and under clock 'event' there is "
        "none to take over; accepted: a timestamp in the first event of a series; next step: give "
        "one, or set clock to 'wall'. Nothing of the batch is stored"
    )


class _Late(NamedTuple):
    """What becomes of a batch's late rows; `on_time` marks the others."""

    on_time: Flags
    dropped: int
    adjusted: int
    example: dict[str, Any] | None


def _judge(
    late: Flags, names: pa.Array, codes: Longs, us: Longs, before: dict[str, Longs], policy: str
) -> _Late:
    rows = np.flatnonzero(late)
    if not len(rows):
        return _Late(~late, 0, 0, None)
    row, code = int(rows[0]), int(codes[rows[0]])
    example = {
        "series": names[code].as_py(),
        "timestamp": format_instant(int(us[row])),
        "newest_sequence": int(before["original_sequence"][code]),
        "newest_timestamp": format_instant(int(before["original_us"][code])),
    }
    if policy == "fail":
        raise _late(example, len(rows))
    dropped = len(rows) if policy == "drop" else 0
    return _Late(~late, dropped, len(rows) - dropped, example)


REORDER: Final = "order the input by time, or set outOfOrder to 'drop' or 'adjust'"


def _late(example: dict[str, Any], count: int) -> OutOfOrder:
    return OutOfOrder(
        f"series '{example['series']}': timestamp {example['timestamp']} is before the newest "
        f"event, sequence {example['newest_sequence']} at {example['newest_timestamp']} "
        f"({count} such rows in the batch); accepted: that timestamp or a later one; next step: "
        f"{REORDER}. Nothing of the batch is stored"
    )


def counted(note: Note, events: Numbered) -> Note:
    """`note` with the batch's dropped and adjusted rows added to its counts."""
    example = events.example and {**events.example, "commit": note.commit}
    return dataclasses.replace(
        note,
        dropped=note.dropped + events.dropped,
        adjusted=note.adjusted + events.adjusted,
        last_dropped=example if events.dropped else note.last_dropped,
        last_adjusted=example if events.adjusted else note.last_adjusted,
    )
