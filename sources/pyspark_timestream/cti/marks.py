"""In-band CTIs: the marks of writers become CTIs of their partition (semantics 4).

The partition's in-band CTI is the minimum of its live writers' greatest marks. `note` folds the
punctuations of a block into *proposals*: each says what that minimum is from some place on, and
the clock (`generator.pace`) decides whether it takes effect. All is columns, whatever the number
of writers and of closes.

A record at hand first moves the clock of record timestamps, and writers that have been silent for
more than `writerTimeout` are forgotten; then comes its event; then its mark; then its close. So a
*key* says when something befell a writer: 3p is a silence that record p shows, 3p + 1 a mark of
record p, 3p + 2 its close; -1 is before the block, and thrice its records is after it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.cti.mark_columns import (
    NEVER,
    greatest_of_lives,
    least_of_spans,
    order_by_writer,
)
from pyspark_timestream.cti.state import PartitionState, Writer

__all__ = ["NEVER", "Marks", "Noted", "Proposals", "Window", "WriterRules", "note"]

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_BEFORE: Final = -1
_NOTHING: Final = np.empty(0, np.int64)


class Marks(NamedTuple):
    """The k punctuations in a block of records, in offset order.

    Attributes:
        places: k indices into the block.
        us: k instants: the marks; anything where there is none that can be read.
        marked: k booleans: it carries a mark, readable or not.
        readable: k booleans: the mark (and the writer's name) can be read.
        writers: k texts; "" is the partition itself.
        closes: k booleans: it removes the writer.
    """

    places: Instants
    us: Instants
    marked: Mask
    readable: Mask
    writers: pa.Array
    closes: Mask


class WriterRules(NamedTuple):
    """The options that decide which writers count.

    Attributes:
        listed: the writers that are waited for from the start.
        timeout_us: how long a writer may be silent, in record timestamps; None: for ever.
        windows: time windows are wanted.
    """

    listed: tuple[str, ...] = ()
    timeout_us: int | None = None
    windows: bool = False


class Proposals(NamedTuple):
    """What the in-band CTI is, from p places on.

    Attributes:
        cuts: p record counts, increasing: a proposal comes after so many records of the block.
        us: p instants, NEVER where there is no minimum.
        is_mark: p booleans: a mark made it, not a close or a silence.
    """

    cuts: Instants
    us: Instants
    is_mark: Mask


class Window(NamedTuple):
    """The bounds of time at each of n records' positions; NEVER where there is none."""

    lower_us: Instants
    upper_us: Instants


class Noted(NamedTuple):
    """What a block's punctuations say.

    Attributes:
        writers, noted_us, record_us, begun: as in PartitionState, after the block.
        proposals: for the clock.
        unreadable: the places of marks that cannot be read.
        window: the rows' time windows; None where they are not wanted.
    """

    writers: tuple[tuple[str, Writer], ...]
    noted_us: int | None
    record_us: int | None
    begun: bool
    proposals: Proposals
    unreadable: Instants
    window: Window | None


def note(
    rules: WriterRules, state: PartitionState, marks: Marks, record_us: Instants | None, rows: int
) -> Noted:
    """Fold the punctuations of a block of `rows` records.

    Args:
        rules: the options.
        state: the partition before the block.
        marks: its punctuations.
        record_us: the records' timestamps, NEVER where one has none; only with a timeout.
        rows: how many records the block has.
    """
    if len({len(column) for column in marks}) > 1:
        raise ValueError("the columns of punctuations differ in length")
    clock = _record_clock(rules, state, record_us)
    known = _NOTHING if clock is None else clock[clock > NEVER]
    begins = bool(rows and rules.listed and not state.begun)
    live = dict(state.writers) | {name: Writer() for name in rules.listed if begins}
    deeds = _deeds(live, marks, clock, int(known[0]) if len(known) else None)
    # Where nothing can happen in the block, there is no need to look at its records.
    is_quiet = clock is None and not len(marks.places) and not rules.windows
    ends = _ends(deeds, clock, rules.timeout_us, 0 if is_quiet else rows)
    spans = _spans(deeds, ends, 0 if is_quiet else rows)
    noted = deeds.us[deeds.is_mark & deeds.named & (deeds.keys != _BEFORE)]
    before_us = NEVER if state.noted_us is None else state.noted_us
    return Noted(
        writers=spans.live,
        noted_us=_or_none(max(before_us, int(noted.max(initial=NEVER)))),
        record_us=int(known[-1]) if len(known) else state.record_us,
        begun=state.begun or begins,
        proposals=_proposals(spans),
        unreadable=marks.places[marks.marked & ~marks.readable],
        window=_window(deeds, spans, before_us) if rules.windows else None,
    )


def _record_clock(
    rules: WriterRules, state: PartitionState, record_us: Instants | None
) -> Instants | None:
    """The greatest record timestamp so far, at each record."""
    if rules.timeout_us is None or record_us is None:
        return None
    before = NEVER if state.record_us is None else state.record_us
    return np.maximum.accumulate(np.concatenate(([before], record_us)))[1:]


class _Deeds(NamedTuple):
    """What d marks and closes say, by writer, and of each writer in time.

    A writer that is live before the block begins with its greatest mark so far.

    Attributes:
        keys: d keys.
        codes: d numbers of writers.
        us: d instants: the marks; NEVER for a close, and for a writer that has yet to mark.
        heard_us: d instants: the clock of record timestamps; NEVER where it is not known.
        is_mark: d booleans: it is no close.
        named: d booleans: it is of a named writer, not of the partition itself.
        names: the writers by their numbers.
    """

    keys: Instants
    codes: Instants
    us: Instants
    heard_us: Instants
    is_mark: Mask
    named: Mask
    names: list[str]


class _Spans(NamedTuple):
    """How long m marks hold, on s steps: the moments at which anything changes.

    Attributes:
        begins, ends: m steps: the mark holds from the one to before the other.
        us: m instants: the writer's greatest mark so far; NEVER where it has yet to mark.
        named: m booleans: the writer is named.
        live: the writers after the block, in the order of their names.
        keys: s keys, increasing; the first step is before the block.
        steps: the last step up to each key, from -1 on.
    """

    begins: Instants
    ends: Instants
    us: Instants
    named: Mask
    live: tuple[tuple[str, Writer], ...]
    keys: Instants
    steps: Instants


def _deeds(
    live: Mapping[str, Writer], marks: Marks, clock: Instants | None, first_us: int | None
) -> _Deeds:
    """Writers that could not be clocked yet are clocked by the first known timestamp."""
    encoded = marks.writers.dictionary_encode()
    numbers = {name: number for number, name in enumerate(live)}
    among = [numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()]
    told_by = np.array(among, dtype=np.int64)[encoded.indices.to_numpy()]
    own = numbers.get("", -1)
    marked = np.flatnonzero(marks.marked & marks.readable)
    closed = np.flatnonzero(marks.closes & (told_by != own))
    now_us = np.full(len(marked), NEVER)
    if clock is not None and first_us is not None:
        now_us = np.maximum(clock[marks.places[marked]], first_us)
    begun_us = [_instant(w.mark_us) for w in live.values()]
    since_us = [_instant(first_us if w.heard_us is None else w.heard_us) for w in live.values()]
    never = np.full(len(closed), NEVER)
    key_parts = [3 * marks.places[marked] + 1, 3 * marks.places[closed] + 2]
    keys = np.concatenate([np.full(len(live), _BEFORE), *key_parts])
    codes = np.concatenate([np.arange(len(live)), told_by[marked], told_by[closed]])
    is_mark = np.arange(len(codes)) < len(codes) - len(closed)
    us = np.concatenate([np.array(begun_us, np.int64), marks.us[marked], never])
    heard_us = np.concatenate([np.array(since_us, np.int64), now_us, never])
    by = order_by_writer(keys, codes)
    return _Deeds(
        keys[by], codes[by], us[by], heard_us[by], is_mark[by], codes[by] != own, list(numbers)
    )


def _ends(deeds: _Deeds, clock: Instants | None, timeout_us: int | None, rows: int) -> Instants:
    """When each deed is over: at the writer's next one, or when it falls silent, if at all."""
    ends = np.full(len(deeds.keys), 3 * rows)
    same = deeds.codes[1:] == deeds.codes[:-1]
    ends[:-1][same] = deeds.keys[1:][same]
    if clock is None or timeout_us is None:
        return ends
    silent = np.searchsorted(clock, deeds.heard_us + timeout_us, side="right")
    silent[deeds.heard_us == NEVER] = rows
    earlier: Instants = np.minimum(ends, 3 * silent)
    return earlier


def _spans(deeds: _Deeds, ends: Instants, rows: int) -> _Spans:
    fresh = np.ones(len(ends), dtype=np.bool_)
    fresh[1:] = (
        (deeds.codes[1:] != deeds.codes[:-1]) | ~deeds.is_mark[:-1] | (ends[:-1] < deeds.keys[1:])
    )
    greatest = greatest_of_lives(deeds.us, fresh)
    is_step = np.zeros(3 * rows + 2, dtype=np.bool_)
    is_step[[0, -1]] = True
    is_step[deeds.keys + 1] = True
    mine = np.flatnonzero(deeds.is_mark)
    is_step[ends[mine] + 1] = True
    steps = np.cumsum(is_step) - 1
    lasting = mine[ends[mine] == 3 * rows]
    told = zip(deeds.codes[lasting], greatest[lasting], deeds.heard_us[lasting], strict=True)
    live = {deeds.names[c]: Writer(_or_none(us), _or_none(heard)) for c, us, heard in told}
    return _Spans(
        begins=steps[deeds.keys[mine] + 1],
        ends=steps[ends[mine] + 1],
        us=greatest[mine],
        named=deeds.named[mine],
        live=tuple(sorted(live.items())),
        keys=np.flatnonzero(is_step)[:-1] - 1,
        steps=steps,
    )


def _proposals(spans: _Spans) -> Proposals:
    least_us = least_of_spans(spans.begins, spans.ends, spans.us, len(spans.keys))
    # A record comes after what it shows of silence, and before its own mark and close.
    keys = spans.keys[1:]
    return Proposals((keys + 2) // 3, least_us[1:], keys % 3 == 1)


def _window(deeds: _Deeds, spans: _Spans, noted_us: int) -> Window:
    """The bounds at each record: those that hold after its silences and before its own mark."""
    count = len(spans.keys)
    heard = spans.named & (spans.us != NEVER)
    lower_us = least_of_spans(spans.begins[heard], spans.ends[heard], spans.us[heard], count)
    upper_us = np.full(count, NEVER)
    said = deeds.is_mark & deeds.named & (deeds.keys != _BEFORE)
    upper_us[spans.steps[deeds.keys[said] + 1]] = deeds.us[said]
    upper_us[0] = noted_us
    upper_us = np.where(lower_us == NEVER, NEVER, np.maximum.accumulate(upper_us))
    at_records = spans.steps[1:-1:3]
    return Window(lower_us[at_records], upper_us[at_records])


def _instant(us: int | None) -> int:
    return NEVER if us is None else us


def _or_none(us: int) -> int | None:
    return None if us == NEVER else int(us)
