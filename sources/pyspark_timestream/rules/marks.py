"""In-band CTIs: the marks of producers become CTIs of their partition (semantics 4).

A *mark* is a record with a time in its header: its writer promises that nothing before that time
will follow (4.1). A *close* removes a writer; a writer without a name is the partition itself, and
cannot be closed (4.4). A partition's in-band CTI is the minimum of its live writers' greatest marks
(4.2): a writer listed in `writers` that has not marked yet holds it back (4.3).

`Writer` makes the headers of a mark. `fold_marks` turns the marks, closes and silences of a block
into *proposals*: the values of that minimum after each change. `generator.generate_ctis` decides
which proposals take effect. All steps work on columns, for any number of writers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.arrow import Integers, Mask
from pyspark_timestream.core.instants import (
    NEVER,
    Instants,
    format_instant,
    instant_or_none,
    instant_or_sentinel,
)
from pyspark_timestream.errors import OptionError
from pyspark_timestream.rules.clocks import (
    PartitionClock,
    TimeRules,
    WriterState,
    accumulate_record_times,
)

Headers = list[tuple[str, bytes]]

_NO_INTERVAL: Final = np.iinfo(np.int64).max
_MAX_SHIFTED: Final = 2**62


def is_writer_name(name: str) -> bool:
    """Return whether a name fits into the comma list of the reader's option `writers`."""
    return bool(name) and "," not in name and name == name.strip()


@dataclass(frozen=True, slots=True)
class Writer:
    """The name of a writer of marks, and the header it uses.

    Attributes:
        name: the writer, as the reader's option `writers` would list it.
        header: the header of the reader's option `ctiHeader`.

    Raises:
        OptionError: the name does not fit into a comma list, or the header is empty.
    """

    name: str
    header: str

    def __post_init__(self) -> None:
        if not is_writer_name(self.name):
            raise OptionError(
                "writer_id",
                repr(self.name),
                "a name without commas and without blanks at its ends",
                "give each writer a name of its own that stays the same over restarts",
            )
        if not self.header:
            raise OptionError(
                "cti_header", "''", "the name of a record header", "leave it out for 'cti'"
            )

    def mark(self, time_us: int) -> Headers:
        """Return the headers of this writer's mark at `time_us`.

        >>> Writer("a", "cti").mark(0)
        [('cti', b'1970-01-01T00:00:00Z'), ('cti-writer', b'a')]
        """
        return [(self.header, format_instant(time_us).encode()), *self._writer_headers()]

    def close_mark(self, time_us: int | None) -> Headers:
        """Return the headers that end this writer; `time_us` is the last time it noted, if any."""
        headers = self.mark(time_us) if time_us is not None else self._writer_headers()
        return [*headers, (f"{self.header}-close", b"true")]

    def _writer_headers(self) -> Headers:
        return [(f"{self.header}-writer", self.name.encode())]


def sort_by_writer(keys: Integers, codes: Integers) -> Integers:
    """Return the order of n changes by the number of their writer, then by key."""
    # NumPy sorts numbers of two bytes, and keys of a few sorted runs, in linear time.
    narrow = codes.astype(np.uint16) if codes.max(initial=0) < 2**16 else codes
    return np.lexsort((keys, narrow))


def max_in_segments(us: Instants, is_first: Mask) -> Instants:
    """Return the running maximum of n instants, restarted at each `is_first`; NEVER is below all.

    Shift each segment above the one before, so that one running maximum serves all of them. If the
    instants are too far apart for that, shift their ranks instead.
    """
    segments = np.cumsum(is_first)
    known_us = us[us != NEVER]
    if not len(known_us):
        return us
    least_us, values = int(known_us.min()), None
    height = int(known_us.max()) - least_us + 2
    if height > _MAX_SHIFTED // (len(us) + 1):
        values, ranks = np.unique(us, return_inverse=True)
        shifted, height = ranks.astype(np.int64), len(values)
    else:
        # NEVER becomes 0, one below the least instant.
        shifted = np.where(us == NEVER, 0, us - least_us + 1)
    ground = segments * height
    greatest: Instants = np.maximum.accumulate(shifted + ground) - ground
    if values is not None:
        return values[greatest]
    return np.where(greatest == 0, NEVER, greatest + least_us - 1)


def min_over_intervals(begins: Integers, ends: Integers, us: Instants, steps: int) -> Instants:
    """Return at each step the least `us` with an interval [begin, end) over it; NEVER if none.

    No interval may be empty. Each is the union of two intervals of the same length, a power of two.
    Enter all intervals of a length at once, from the longest down, and pass each to its halves.
    """
    # The longest power of two that fits: `frexp` gives its exponent plus one.
    levels = np.frexp(ends - begins)[1] - 1
    least = np.full(steps, _NO_INTERVAL)
    for level in range(int(levels.max(initial=0)), -1, -1):
        length = 1 << level
        if len(intervals := np.flatnonzero(levels == level)):
            np.minimum.at(least, begins[intervals], us[intervals])
            np.minimum.at(least, ends[intervals] - length, us[intervals])
        if half_length := length // 2:
            # An interval [s, s + length) has the halves at s and at s + half_length.
            halves = least.copy()
            np.minimum(halves[half_length:], least[:-half_length], out=halves[half_length:])
            least = halves
    least[least == _NO_INTERVAL] = NEVER
    return least


_BEFORE_BLOCK: Final = -1
_NO_INSTANTS: Final = np.empty(0, np.int64)


class Marks(NamedTuple):
    """The k marks and closes in a block of records, in offset order.

    Attributes:
        rows: k indices into the block.
        us: k instants: the marks; arbitrary where no mark is readable.
        marked: k booleans: the record carries a mark, readable or not.
        readable: k booleans: the mark and the writer's name are readable.
        writers: k texts; "" is the partition itself.
        closes: k booleans: the record removes the writer.
    """

    rows: Integers
    us: Instants
    marked: Mask
    readable: Mask
    writers: pa.Array
    closes: Mask


class Proposals(NamedTuple):
    """p changes of the in-band CTI: from `cuts[i]` records of the block on, its value is `us[i]`.

    Attributes:
        cuts: p record counts, increasing.
        us: p instants, NEVER where there is no minimum.
        is_mark: p booleans: a mark made it, not a close or a silence.
    """

    cuts: Integers
    us: Instants
    is_mark: Mask


class TimeWindows(NamedTuple):
    """The time bounds at each of n records' positions; NEVER where there is none."""

    lower_us: Instants
    upper_us: Instants


class MarkEffects(NamedTuple):
    """The effects of a block's marks and closes.

    Attributes:
        clock: the clock with its writers and record timestamps after the block.
        proposals: for the generator.
        unreadable: the rows of marks that cannot be read.
        time_windows: the rows' time windows; None if the rules ask for none.
    """

    clock: PartitionClock
    proposals: Proposals
    unreadable: Integers
    time_windows: TimeWindows | None


def fold_marks(
    rules: TimeRules, clock: PartitionClock, marks: Marks, record_us: Instants | None, rows: int
) -> MarkEffects:
    """Fold the marks and closes of `rows` records; only a timeout or grace needs `record_us`."""
    if len({len(column) for column in marks}) > 1:
        raise ValueError("the columns of punctuations differ in length")
    newest_us = None
    if rules.needs_record_times and record_us is not None:
        newest_us = accumulate_record_times(clock, record_us)
    seen_times = _NO_INSTANTS if newest_us is None else newest_us[newest_us > NEVER]
    first_us = clock.first_us
    if rules.writer_grace_us is not None and first_us is None and len(seen_times):
        first_us = int(seen_times[0])
    silence_clock = None if rules.writer_timeout_us is None else newest_us
    seen_from_us = None if silence_clock is None or not len(seen_times) else int(seen_times[0])
    begins = bool(rows and rules.writers and not clock.begun)
    live = dict(clock.writers) | {name: WriterState() for name in rules.writers if begins}
    changes = _list_changes(live, marks, silence_clock, seen_from_us)
    if newest_us is None and not len(marks.rows) and not rules.time_window:
        rows = 0  # Without marks, timeouts and windows the records themselves do not matter.
    ends = _find_ends(changes, silence_clock, rules.writer_timeout_us, rows)
    intervals = _find_intervals(changes, ends, rows)
    noted_marks = changes.us[changes.is_mark & changes.has_name & (changes.keys != _BEFORE_BLOCK)]
    earlier_noted_us = instant_or_sentinel(clock.noted_us)
    return MarkEffects(
        clock=replace(
            clock,
            writers=intervals.live,
            noted_us=instant_or_none(max(earlier_noted_us, int(noted_marks.max(initial=NEVER)))),
            record_us=int(seen_times[-1]) if len(seen_times) else clock.record_us,
            first_us=first_us,
            begun=clock.begun or begins,
        ),
        proposals=_propose(intervals, _find_end_of_grace(rules, clock, newest_us, first_us)),
        unreadable=marks.rows[marks.marked & ~marks.readable],
        time_windows=(
            _compute_time_windows(changes, intervals, earlier_noted_us)
            if rules.time_window
            else None
        ),
    )


# The steps from here on, by an example of three records. Writer a is live, with mark 10. Record 0
# has a's mark 50; record 1 has b's first mark, 30; record 2 has b's mark 70, and closes b.
#
# - Changes: keys -1 1 of a, then 4 7 8 of b; us 10 50 30 70 NEVER; each ends at key 1 9 7 8 9.
# - Intervals: something changes at keys -1 1 4 7 8, which become steps 0 to 4. Mark 10 holds in
#   steps [0, 1), 50 in [1, 5), 30 in [2, 3) and 70 in [3, 4).
# - Proposals: the least mark at the steps is 10 50 30 50 50. The first was so before the block, so
#   four are proposed, after 1 2 3 3 records. The close makes the last; only the first will rise.
# - Time windows: the records are judged at keys 0 3 6, which lie in steps 0 1 2. If 10 was the
#   greatest mark before the block, the lower bounds are 10 50 30, and the upper ones 10 50 50.


class _Changes(NamedTuple):
    """The d marks and closes, sorted by writer, and for each writer by key.

    A writer that is live before the block begins with its greatest mark so far.

    A *key* orders moments in the block. At record p the timestamp may first reveal a silence (3p),
    then the event is judged, its mark counts (3p + 1), and its close counts (3p + 2). Key -1 is
    before the block; three times the number of records is after it.

    Attributes:
        keys: d keys.
        codes: d numbers of writers.
        us: d instants: the marks; NEVER for a close, and for a writer that has not marked yet.
        seen_us: d instants: the greatest record timestamp by then; NEVER if it is unknown.
        is_mark: d booleans: a mark, not a close.
        has_name: d booleans: the writer has a name and is not the partition itself.
        names: the writers by their numbers.
    """

    keys: Integers
    codes: Integers
    us: Instants
    seen_us: Instants
    is_mark: Mask
    has_name: Mask
    names: list[str]


class _Intervals(NamedTuple):
    """The intervals in which m marks hold, over s steps: the moments when anything changes.

    Attributes:
        begins, ends: m steps: the mark holds from `begins` (inclusive) to `ends` (exclusive).
        us: m instants: the writer's greatest mark so far; NEVER if it has not marked yet.
        has_name: m booleans: the writer has a name.
        live: the writers after the block, in the order of their names.
        keys: s keys, increasing; the first step is before the block.
        steps: the last step at or before each key, from key -1 on.
    """

    begins: Integers
    ends: Integers
    us: Instants
    has_name: Mask
    live: tuple[tuple[str, WriterState], ...]
    keys: Integers
    steps: Integers


def _list_changes(
    live: Mapping[str, WriterState],
    marks: Marks,
    newest_us: Instants | None,
    first_us: int | None,
) -> _Changes:
    """List the changes; a writer without a known timestamp gets the block's first one.

    Each column begins with the live writers; then come the marks, then the closes.
    """
    numbers, writer_codes = _number_writers(live, marks.writers)
    unnamed = numbers.get("", -1)
    marked = np.flatnonzero(marks.marked & marks.readable)
    # The partition itself, which has no name, cannot be closed.
    closed = np.flatnonzero(marks.closes & (writer_codes != unnamed))

    mark_keys, close_keys = 3 * marks.rows[marked] + 1, 3 * marks.rows[closed] + 2
    keys = np.concatenate([np.full(len(live), _BEFORE_BLOCK), mark_keys, close_keys])
    codes = np.concatenate([np.arange(len(live)), writer_codes[marked], writer_codes[closed]])
    is_mark = np.arange(len(codes)) < len(codes) - len(closed)

    writers, never = live.values(), np.full(len(closed), NEVER)
    live_us = [instant_or_sentinel(writer.mark_us) for writer in writers]
    us = np.concatenate([np.array(live_us, np.int64), marks.us[marked], never])

    live_seen_us = [
        instant_or_sentinel(first_us if writer.seen_us is None else writer.seen_us)
        for writer in writers
    ]
    mark_seen_us = np.full(len(marked), NEVER)
    if newest_us is not None and first_us is not None:
        mark_seen_us = np.maximum(newest_us[marks.rows[marked]], first_us)
    seen_us = np.concatenate([np.array(live_seen_us, np.int64), mark_seen_us, never])

    order = sort_by_writer(keys, codes)
    return _Changes(
        keys=keys[order],
        codes=codes[order],
        us=us[order],
        seen_us=seen_us[order],
        is_mark=is_mark[order],
        has_name=codes[order] != unnamed,
        names=list(numbers),
    )


def _number_writers(
    live: Mapping[str, WriterState], writers: pa.Array
) -> tuple[dict[str, int], Integers]:
    """Number the live writers, then the writers of k marks; return all numbers, and the k's."""
    numbers = {name: number for number, name in enumerate(live)}
    encoded = writers.dictionary_encode()
    by_entry = [numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()]
    return numbers, np.array(by_entry, dtype=np.int64)[encoded.indices.to_numpy()]


def _find_ends(
    changes: _Changes, newest_us: Instants | None, timeout_us: int | None, rows: int
) -> Integers:
    """Find where each change ends, as a key: at the writer's next change or its silence (4.5)."""
    after_block = 3 * rows
    ends = np.full(len(changes.keys), after_block)
    has_next = changes.codes[1:] == changes.codes[:-1]
    ends[:-1][has_next] = changes.keys[1:][has_next]
    if newest_us is None or timeout_us is None:
        return ends
    silent_rows = np.searchsorted(newest_us, changes.seen_us + timeout_us, side="right")
    # A writer that was never seen cannot fall silent.
    silent_rows[changes.seen_us == NEVER] = rows
    ends_with_silences: Integers = np.minimum(ends, 3 * silent_rows)
    return ends_with_silences


def _find_intervals(changes: _Changes, ends: Integers, rows: int) -> _Intervals:
    """Turn changes into the intervals in which each writer's greatest mark holds."""
    # A writer's maximum starts over after another writer, a close or a silence.
    is_first = np.ones(len(ends), dtype=np.bool_)
    is_first[1:] = (
        (changes.codes[1:] != changes.codes[:-1])
        | ~changes.is_mark[:-1]
        | (ends[:-1] < changes.keys[1:])
    )
    greatest_us = max_in_segments(changes.us, is_first)
    marks = np.flatnonzero(changes.is_mark)
    after_block = 3 * rows
    # Number the keys where anything changes: the minimum is found per change, not per record. Index
    # k + 1 stands for key k, because the first key is -1.
    is_step = np.zeros(after_block + 2, dtype=np.bool_)
    is_step[[0, -1]] = True
    is_step[changes.keys + 1] = True
    is_step[ends[marks] + 1] = True
    steps = np.cumsum(is_step) - 1
    # A mark that still holds after the block belongs to a live writer.
    lasting = marks[ends[marks] == after_block]
    last_marks = zip(
        changes.codes[lasting], greatest_us[lasting], changes.seen_us[lasting], strict=True
    )
    live = {
        changes.names[code]: WriterState(instant_or_none(us), instant_or_none(seen_us))
        for code, us, seen_us in last_marks
    }
    return _Intervals(
        begins=steps[changes.keys[marks] + 1],
        ends=steps[ends[marks] + 1],
        us=greatest_us[marks],
        has_name=changes.has_name[marks],
        live=tuple(sorted(live.items())),
        keys=np.flatnonzero(is_step)[:-1] - 1,
        steps=steps,
    )


def _find_end_of_grace(
    rules: TimeRules, clock: PartitionClock, newest_us: Instants | None, first_us: int | None
) -> int | None:
    """Find the record before which the grace ends: -1 before the block, None after it."""
    if rules.writer_grace_us is None:
        return -1
    if first_us is None or newest_us is None:
        return None
    if clock.record_us is not None and clock.record_us - first_us >= rules.writer_grace_us:
        return -1
    row = int(np.searchsorted(newest_us, first_us + rules.writer_grace_us))
    return row if row < len(newest_us) else None


def _propose(intervals: _Intervals, grace_end: int | None) -> Proposals:
    least_us = min_over_intervals(
        intervals.begins, intervals.ends, intervals.us, len(intervals.keys)
    )
    # A record comes after the silences that it reveals, and before its own mark and close. So what
    # changes at key 3p holds from p records on; at 3p + 1 and 3p + 2, from p + 1 on.
    cuts, is_mark = (intervals.keys + 2) // 3, intervals.keys % 3 == 1
    if grace_end == -1:
        return Proposals(cuts[1:], least_us[1:], is_mark[1:])
    if grace_end is None:
        return Proposals(cuts[1:], np.full(len(cuts) - 1, NEVER), is_mark[1:])
    # In the grace nothing is proposed; at its end, the minimum that was reached by then.
    suppressed = int(np.searchsorted(cuts, grace_end, side="right"))
    first_us = least_us[suppressed - 1]
    least_us[:suppressed] = NEVER
    return Proposals(
        np.insert(cuts, suppressed, grace_end)[1:],
        np.insert(least_us, suppressed, first_us)[1:],
        np.insert(is_mark, suppressed, False)[1:],
    )


def _compute_time_windows(changes: _Changes, intervals: _Intervals, noted_us: int) -> TimeWindows:
    """Compute the bounds at each record (4.6), after its silences and before its own mark."""
    steps = len(intervals.keys)
    is_known = intervals.has_name & (intervals.us != NEVER)
    lower_us = min_over_intervals(
        intervals.begins[is_known], intervals.ends[is_known], intervals.us[is_known], steps
    )
    upper_us = np.full(steps, NEVER)
    is_noted = changes.is_mark & changes.has_name & (changes.keys != _BEFORE_BLOCK)
    upper_us[intervals.steps[changes.keys[is_noted] + 1]] = changes.us[is_noted]
    upper_us[0] = noted_us
    upper_us = np.where(lower_us == NEVER, NEVER, np.maximum.accumulate(upper_us))
    # Key 3p, at index 3p + 1, is when record p is judged. The last index, after the block, is not.
    at_records = intervals.steps[1:-1:3]
    return TimeWindows(lower_us[at_records], upper_us[at_records])
