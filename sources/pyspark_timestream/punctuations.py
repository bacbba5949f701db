"""In-band CTIs: the marks of writers become CTIs of their partition (contract section 3.6).

The partition's in-band CTI is the minimum of its live writers' greatest marks. `note` folds the
punctuations of a block into *proposals*: each says what that minimum is from some place on, and
the clock (`generator.pace`) decides whether it takes effect. There is a loop over writers, closed
and forgotten ones; marks between those are columns (`mark_columns`).

A record at hand first moves the clock of record timestamps, and writers that have been silent for
more than `writerTimeout` are forgotten; then comes its event; then its mark; then its close.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_timestream.mark_columns import NEVER, Run, heard, unbroken
from pyspark_timestream.partition_state import PartitionState, Writer

__all__ = ["NEVER", "Marks", "Noted", "Proposals", "Window", "WriterRules", "note"]

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SHORTEST: Final = 16
"""A shorter run of marks is heard one by one, which then costs less than columns."""

_LONGEST: Final = 32_768


class Marks(NamedTuple):
    """The k punctuations in a block of records, in offset order.

    Attributes:
        places: k indices into the block.
        us: k instants: the marks; anything where there is none that can be read.
        marked: k booleans: it carries a mark, readable or not.
        readable: k booleans: the mark (and the writer's name) can be read.
        writers: k names; "" is the partition itself.
        closes: k booleans: it removes the writer.
    """

    places: Instants
    us: Instants
    marked: Mask
    readable: Mask
    writers: list[str]
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


_NO_PROPOSALS: Final = ([np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.bool_)])


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
    clock = _record_clock(rules, state, record_us)
    known = None if clock is None else clock[clock > NEVER]
    begins = bool(rows and rules.listed and not state.begun)
    live = dict(state.writers) | {name: Writer() for name in rules.listed if begins}
    fold = _Fold(rules, clock, int(known[0]) if known is not None and len(known) else None)
    fold.begin(live, state.noted_us)
    if len({len(column) for column in marks}) > 1:
        raise ValueError("the columns of punctuations differ in length")
    numbers: dict[str, int] = {}
    codes = np.array(
        [numbers.setdefault(name, len(numbers)) for name in marks.writers], dtype=np.int64
    )
    told, names = marks.marked & marks.readable, list(numbers)
    closes = np.flatnonzero(marks.closes & (codes != numbers.get("", -1))).tolist()
    begin = 0
    for stop in [*closes, None]:
        run = np.flatnonzero(told[begin : None if stop is None else stop + 1]) + begin
        fold.hear(marks.places[run], marks.us[run], codes[run], names)
        if stop is not None:
            place, begin = int(marks.places[stop]), stop + 1
            fold.forget(place + 1)
            fold.close(place, marks.writers[stop])
    fold.forget(rows)
    return Noted(
        writers=tuple(sorted(fold.live.items())),
        noted_us=fold.noted_us,
        record_us=int(known[-1]) if known is not None and len(known) else state.record_us,
        begun=state.begun or begins,
        proposals=fold.proposals(),
        unreadable=marks.places[marks.marked & ~marks.readable],
        window=fold.window(rows) if rules.windows else None,
    )


def _record_clock(
    rules: WriterRules, state: PartitionState, record_us: Instants | None
) -> Instants | None:
    """The greatest record timestamp so far, at each record."""
    if rules.timeout_us is None or record_us is None:
        return None
    before = NEVER if state.record_us is None else state.record_us
    return np.maximum.accumulate(np.concatenate(([before], record_us)))[1:]


@dataclass
class _Fold:
    """The writers of one partition while a block is folded.

    Attributes:
        clock: the greatest record timestamp so far, at each record; None without a timeout.
        first_us: the first known value of `clock`.
    """

    rules: WriterRules
    clock: Instants | None
    first_us: int | None
    live: dict[str, Writer] = field(default_factory=dict)
    noted_us: int | None = None
    made: list[Proposals] = field(default_factory=list)
    bounds: list[tuple[Instants, Instants, Instants]] = field(default_factory=list)

    def begin(self, live: dict[str, Writer], noted_us: int | None) -> None:
        """Writers that could not be clocked yet are clocked by the first known timestamp."""
        self.live = {
            name: writer._replace(heard_us=self.first_us) if writer.heard_us is None else writer
            for name, writer in live.items()
        }
        self.noted_us = noted_us
        self._bound(0)

    def forget(self, until_exclusive: int) -> None:
        """Forget the writers that fall silent at one of the records before `until_exclusive`."""
        while self.clock is not None and self.rules.timeout_us is not None:
            heard = [w.heard_us for w in self.live.values() if w.heard_us is not None]
            if not heard:
                return
            last_us = min(heard) + self.rules.timeout_us
            place = int(np.searchsorted(self.clock, last_us, side="right"))
            if place >= until_exclusive:
                return
            bound_us = int(self.clock[place]) - self.rules.timeout_us
            self.live = {
                name: writer
                for name, writer in self.live.items()
                if writer.heard_us is None or writer.heard_us >= bound_us
            }
            self._propose(place, is_mark=False)

    def hear(self, places: Instants, us: Instants, codes: Instants, names: list[str]) -> None:
        """The records at `places` carry marks `us` of the writers `names[codes]`."""
        begin, size, singly = 0, _LONGEST, _SHORTEST
        while begin < len(places):
            part = slice(begin, begin + size)
            run = Run(us[part], codes[part], names, self._clocked(places[part]))
            count = self._unbroken(run, places[part])
            if count >= _SHORTEST:
                self._hear_run(places[begin : begin + count], run.first(count))
                size, singly = min(2 * count, _LONGEST), _SHORTEST
                begin += count
                continue
            # The more often writers fall silent, the more seldom it is worth looking for a run.
            size, singly, until = 4 * _SHORTEST, 2 * singly, min(begin + singly, len(places))
            for at in range(begin, until):
                self.forget(int(places[at]) + 1)
                self.mark(int(places[at]), names[codes[at]], int(us[at]))
            begin = until

    def _unbroken(self, run: Run, places: Instants) -> int:
        """How many marks come before a writer falls silent."""
        if len(places) < _SHORTEST or run.now_us is None:
            return len(places)
        assert self.clock is not None
        assert self.rules.timeout_us is not None
        silent = unbroken(run, places, self.live, self.clock, self.rules.timeout_us)
        return len(places) if silent is None else int(np.searchsorted(places, silent))

    def _hear_run(self, places: Instants, run: Run) -> None:
        said = heard(run, self.live, self.noted_us)
        self.live = said.live
        self.noted_us = None if said.upper_us[-1] == NEVER else int(said.upper_us[-1])
        cuts = places + 1
        self.made.append(Proposals(cuts, said.least_us, np.ones(len(cuts), dtype=np.bool_)))
        upper_us = np.where(said.lower_us == NEVER, NEVER, said.upper_us)
        self.bounds.append((cuts, said.lower_us, upper_us))

    def mark(self, place: int, name: str, us: int) -> None:
        """The record at `place` carries a mark; a lower one than the writer's last says nothing."""
        before = self.live.get(name, Writer()).mark_us
        now_us = self._clocked(np.array([place]))
        heard_us = None if now_us is None else int(now_us[0])
        self.live[name] = Writer(us if before is None else max(before, us), heard_us)
        if name:
            self.noted_us = us if self.noted_us is None else max(self.noted_us, us)
        self._propose(place + 1, is_mark=True)

    def close(self, place: int, name: str) -> None:
        """The record at `place` removes the writer."""
        if self.live.pop(name, None) is not None:
            self._propose(place + 1, is_mark=False)

    def proposals(self) -> Proposals:
        """What was proposed, as columns."""
        columns = zip(*self.made, strict=True) if self.made else _NO_PROPOSALS
        return Proposals(*map(np.concatenate, columns))

    def window(self, rows: int) -> Window:
        """The bounds at each record: those that held before its own mark."""
        cuts, lower, upper = map(np.concatenate, zip(*self.bounds, strict=True))
        which = np.searchsorted(cuts, np.arange(rows), side="right") - 1
        return Window(lower[which], upper[which])

    def _clocked(self, places: Instants) -> Instants | None:
        """The clock at `places`, for a record before the first timestamp what that says."""
        if self.clock is None or self.first_us is None:
            return None
        now_us = self.clock[places]
        return np.where(now_us == NEVER, self.first_us, now_us)

    def _propose(self, cut: int, *, is_mark: bool) -> None:
        marks = [writer.mark_us for writer in self.live.values()]
        known = [mark_us for mark_us in marks if mark_us is not None]
        least = min(known) if known and len(known) == len(marks) else NEVER
        self.made.append(Proposals(np.array([cut]), np.array([least]), np.array([is_mark])))
        self._bound(cut)

    def _bound(self, cut: int) -> None:
        if self.rules.windows:
            named = [w.mark_us for name, w in self.live.items() if name and w.mark_us is not None]
            upper = self.noted_us if named and self.noted_us is not None else NEVER
            lower = min(named, default=NEVER)
            self.bounds.append((np.array([cut]), np.array([lower]), np.array([upper])))
