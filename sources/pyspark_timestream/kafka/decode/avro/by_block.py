"""Reads blocks of Avro payloads in columns: a step at a time, for all payloads at once.

Each payload has a cursor in the block's bytes. A step reads its values at the cursors of all rows
by array arithmetic, and moves the cursors on. It compares each length with the bytes that the
payload has left, so a false length allocates nothing: the payload is broken, and the others go on.
An array takes one round per item, so payloads with arrays much longer than the others' are left to
`by_row`, which gives the same results.
"""

import itertools
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.core.arrow import Integers, Mask, locate
from pyspark_timestream.kafka.decode.avro.plans import (
    Bad,
    Record,
    Repeated,
    Scalar,
    SelfReference,
    Step,
    Union,
    Wire,
    all_bad,
)
from pyspark_timestream.kafka.decode.convert import Converted, join_converted, keep

_PADDING: Final = 16
"""Bytes after the last row, so that a whole word can be read at its end."""

_WORD: Final = 8
_INT_BYTES: Final = 5
_U64: Final = np.uint64
_STOP_BITS: Final = _U64(0x8080808080808080)
_DATA_BITS: Final = _U64(0x7F7F7F7F7F7F7F7F)
_ONE: Final = _U64(1)
_FOLDS: Final = (
    (_U64(0x007F007F007F007F), _U64(0x7F007F007F007F00), _U64(1)),
    (_U64(0x00003FFF00003FFF), _U64(0x3FFF00003FFF0000), _U64(2)),
    (_U64(0x000000000FFFFFFF), _U64(0x0FFFFFFF00000000), _U64(4)),
)
"""Masks and shifts that close the gaps between groups of seven bits, then of 14, then of 28."""


class Cursors:
    """The cursors of n rows: where each is read next, all in one array of bytes.

    A broken row stays within its bytes; values read for it mean nothing.

    Attributes:
        positions: n indexes of bytes.
        ends: n indexes: the first byte after the row.
        broken: n booleans: the row's bytes contradict its schema.
        by_row: n booleans: `by_row` has to read the row.
        budget: n numbers of items that the row's arrays and maps may still have.
    """

    __slots__ = ("_bytes", "_words", "broken", "budget", "by_row", "ends", "positions")

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        words: npt.NDArray[np.uint64],
        positions: Integers,
        ends: Integers,
        budget: Integers,
    ) -> None:
        self._bytes = data
        self._words = words
        self.positions = positions
        self.ends = ends
        self.budget = budget
        self.broken = np.zeros(len(positions), np.bool_)
        self.by_row = np.zeros(len(positions), np.bool_)

    @classmethod
    def of(cls, bodies: pa.Array) -> Self:
        """Start at the beginnings of `bodies`, n binary values; a null counts as empty."""
        bounds, data = locate(bodies)
        padding = np.zeros(_PADDING, np.uint8)
        padded = np.concatenate((data[bounds[0] : bounds[-1]], padding))
        # Strides of one byte: `words[position]` is the eight bytes at any position.
        words = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))
        bounds -= bounds[0]
        return cls(padded, words, bounds[:-1].copy(), bounds[1:].copy(), np.diff(bounds))

    def __len__(self) -> int:
        return len(self.positions)

    def select(self, rows: Integers) -> "Cursors":
        """Return the cursors of `rows`, which are in order, to be read separately."""
        positions, ends, budget = self.positions[rows], self.ends[rows], self.budget[rows]
        return Cursors(self._bytes, self._words, positions, ends, budget)

    def update(self, rows: Integers, changed: "Cursors") -> None:
        """Copy back the cursors of `rows` after they have been read separately."""
        self.positions[rows] = changed.positions
        self.budget[rows] = changed.budget
        self.broken[rows] |= changed.broken
        self.by_row[rows] |= changed.by_row

    def finish(self) -> None:
        """Mark the rows that have bytes left as broken."""
        self.broken |= self.positions != self.ends

    def _advance(self, lengths: Integers | int) -> None:
        self.positions = self.positions + lengths
        over = self.positions > self.ends
        if over.any():
            self.broken |= over
            self.positions = np.minimum(self.positions, self.ends)

    def _read_varints(self) -> tuple[Integers, Integers | int]:
        """Read whole numbers of up to 64 bits; return also how many bytes each takes."""
        first_bytes = self._bytes[self.positions]
        # The numbers of many columns take one byte each.
        if not len(first_bytes) or first_bytes.max() < 128:
            self._advance(1)
            numbers = first_bytes.astype(np.int64)
            return (numbers >> 1) ^ -(numbers & 1), 1
        words = self._words[self.positions]
        # The last byte of a number has its top bit clear; keep the bits up to the first such byte.
        stops = ~words & _STOP_BITS
        stop = stops & (~stops + _ONE)
        mask = (stop << _ONE) - _ONE
        lengths = (np.bitwise_count(mask) >> 3).astype(np.int64)
        folded = words & mask & _DATA_BITS
        for low, high, shift in _FOLDS:
            folded = (folded & low) | ((folded & high) >> shift)
        if not stop.all():
            self._read_long_varints(np.flatnonzero(stop == 0), folded, lengths)
        self._advance(lengths)
        signed = (folded >> _ONE).astype(np.int64)
        return signed ^ -(folded & _ONE).astype(np.int64), lengths

    def _read_long_varints(
        self, rows: Integers, folded: npt.NDArray[np.uint64], lengths: Integers
    ) -> None:
        """Read varints of nine or ten bytes; the tenth may hold only the 64th bit."""
        # Without a last byte among eight, all of them were folded.
        number = folded[rows]
        ninth = self._bytes[self.positions[rows] + 8].astype(np.uint64)
        tenth = self._bytes[self.positions[rows] + 9].astype(np.uint64)
        nine = ninth < 128
        number |= (ninth & _U64(0x7F)) << _U64(56)
        folded[rows] = np.where(nine, number, number | (tenth & _ONE) << _U64(63))
        lengths[rows] = np.where(nine, 9, 10)
        self.broken[rows] |= ~nine & (tenth > 1)

    def read_longs(self) -> Integers:
        """Read n numbers of type long."""
        return self._read_varints()[0]

    def read_ints(self) -> Integers:
        """Read n numbers of type int."""
        numbers, lengths = self._read_varints()
        if isinstance(lengths, np.ndarray):
            self.broken |= (lengths > _INT_BYTES) | (numbers != numbers.astype(np.int32))
        return numbers

    def read_index(self, size: int) -> Integers:
        """Read n indices below `size`; an index outside breaks its row and becomes 0."""
        indexes = self.read_ints()
        outside = (indexes < 0) | (indexes >= size)
        if outside.any():
            self.broken |= outside
            indexes = np.where(outside, 0, indexes)
        return indexes

    def read_booleans(self) -> Mask:
        """Read n bytes that are 0 or 1."""
        values = self._bytes[self.positions]
        self.broken |= values > 1
        self._advance(1)
        truth: Mask = values == 1
        return truth

    def read_floats(self, size: int) -> npt.NDArray[np.floating]:
        """Read n floats of `size` bytes: 4 for a float, 8 for a double."""
        words = self._words[self.positions]
        self._advance(size)
        if size == _WORD:
            return words.view(np.float64)
        return words.astype(np.uint32).view(np.float32)

    def pass_fixed(self, size: int) -> tuple[Integers, Integers]:
        """Return where n values of `size` bytes start and stop."""
        starts = self.positions
        # Cap the size: added often, a huge one would exceed 64 bits.
        self._advance(min(size, 2**32))
        return starts, self.positions

    def pass_bytes(self) -> tuple[Integers, Integers]:
        """Read the lengths of n values, and return where the values after them start and stop."""
        lengths = self.read_longs()
        outside = (lengths < 0) | (lengths > self.ends - self.positions)
        if outside.any():
            self.broken |= outside
            lengths = np.where(outside, 0, lengths)
        starts = self.positions
        self.positions = starts + lengths
        return starts, self.positions

    def slice_bytes(self, starts: Integers, stops: Integers) -> pa.Array:
        """Return the bytes from n starts to n stops as binary values, empty for broken rows.

        The bytes are in the order of the rows. So an array over the same buffer, without a copy,
        alternates between values and the gaps between them; this takes the values from it.
        """
        if not len(starts):
            return pa.array([], pa.binary())
        if self.broken.any():
            stops = np.where(self.broken, starts, stops)
        bounds = np.empty(2 * len(starts), np.int32)
        bounds[0::2], bounds[1::2] = starts, stops
        values_and_gaps = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._bytes)]
        )
        return values_and_gaps.take(pa.array(np.arange(0, len(bounds) - 1, 2)))

    def read_block_header(self, sized_end: Integers) -> tuple[Integers, Integers]:
        """Read the headers of the next blocks of n arrays or maps.

        Return n numbers of items, 0 at the end of the array and for broken rows; and n positions
        where the block must end, -1 if its header gives no size. Pass these to the next call.
        """
        self.broken |= (sized_end >= 0) & (self.positions != sized_end)
        counts = self.read_longs()
        ends = np.full(len(self), -1, np.int64)
        sized = np.flatnonzero((counts < 0) & ~self.broken)
        if len(sized):
            with_size = self.select(sized)
            sizes = with_size.read_longs()
            outside = (sizes < 0) | (sizes > with_size.ends - with_size.positions)
            with_size.broken |= outside
            ends[sized] = with_size.positions + np.where(outside, 0, sizes)
            self.update(sized, with_size)
            counts = np.where(counts < 0, -counts, counts)
        # A payload may have at most as many items as bytes: only items without bytes could be more.
        # The most negative count stays negative when it is negated.
        self.broken |= (counts < 0) | (counts > self.budget)
        counts = np.where(self.broken, 0, counts)
        self.budget -= counts
        return counts, ends


_FEW_ROUNDS: Final = 8
_FEW_ROWS: Final = 256
"""After a few rounds of reading an array, `by_row` reads the last few rows: a round costs the same
for one row as for many."""


_SKIPPED: Final = Converted(pa.nulls(0), np.zeros(0, np.bool_))


def read_block(step: Step, cursors: Cursors) -> Converted:
    """Read values at all cursors and move these on; values of broken rows mean nothing.

    A step without a type gives an empty column.
    """
    rows = len(cursors)
    match step:
        case Scalar():
            return _read_scalar(step, cursors)
        case Record():
            columns: dict[int, Converted] = {}
            for field, child in step.fields:
                values = read_block(field, cursors)
                if child is not None:
                    columns[child] = values
            return _SKIPPED if step.type is None else step.build(rows, columns)
        case Union():
            return _read_union(step, cursors)
        case Repeated():
            return _read_repeated(step, cursors)
        case Bad():
            read_block(step.step, cursors)
            return all_bad(rows, step.type)
        case SelfReference():
            raise AssertionError("types that contain themselves are read one by one")


def _read_union(step: Union, cursors: Cursors) -> Converted:
    branches = cursors.read_index(len(step.branches))
    if len(cursors) and not cursors.broken.any() and (branches == branches[0]).all():
        return read_block(step.branches[branches[0]], cursors)
    branches[cursors.broken] = -1
    by_branch: dict[int, Converted] = {}
    for branch in np.unique(branches[branches >= 0]).tolist():
        rows = np.flatnonzero(branches == branch)
        on_branch = cursors.select(rows)
        by_branch[branch] = read_block(step.branches[branch], on_branch)
        cursors.update(rows, on_branch)
    return _SKIPPED if step.type is None else step.join(branches, by_branch)


def _read_scalar(step: Scalar, cursors: Cursors) -> Converted:
    wire = _read_wire(step, cursors)
    if step.type is None:
        return _SKIPPED
    if wire is None:
        return keep(pa.nulls(len(cursors), step.type))
    converted = step.convert(wire)
    if step.is_text:
        # Bytes read as text need not be UTF-8, which is only bad; a string that is not is broken.
        cursors.broken |= converted.bad
    return converted


def _read_wire(step: Scalar, cursors: Cursors) -> Wire | None:
    """Read the wire values of a scalar; None for nulls and for bytes that are skipped."""
    match step.kind:
        case "null":
            return None
        case "boolean":
            return cursors.read_booleans()
        case "int":
            return cursors.read_ints()
        case "long":
            return cursors.read_longs()
        case "float":
            return cursors.read_floats(4)
        case "double":
            return cursors.read_floats(8)
        case "enum":
            indexes = cursors.read_index(len(step.symbols))
            return None if step.type is None else pa.array(indexes, mask=cursors.broken)
    starts, stops = cursors.pass_fixed(step.size) if step.kind == "fixed" else cursors.pass_bytes()
    return None if step.type is None else cursors.slice_bytes(starts, stops)


def _read_repeated(step: Repeated, cursors: Cursors) -> Converted:
    """Read the first item of every row, then the second, and so on; then put them in order."""
    # For each row: the items left in its block, and where that must end (-1: not stated).
    remaining = np.zeros(len(cursors), np.int64)
    sized_end = np.full(len(cursors), -1, np.int64)
    open_rows = np.flatnonzero(~cursors.broken)
    # An entry per round: the items, their keys in a map, and the rows that they belong to.
    items: list[Converted] = []
    keys: list[Converted] = []
    owners: list[Integers] = []
    for rounds in itertools.count():
        at_header = open_rows[remaining[open_rows] == 0]
        if len(at_header):
            selected = cursors.select(at_header)
            remaining[at_header], sized_end[at_header] = selected.read_block_header(
                sized_end[at_header]
            )
            cursors.update(at_header, selected)
            # An empty block ends the array.
            open_rows = open_rows[(remaining[open_rows] > 0) & ~cursors.broken[open_rows]]
        if not len(open_rows):
            break
        if rounds >= _FEW_ROUNDS and len(open_rows) < _FEW_ROWS:
            # Rows that are read again are broken here: no later step may move their cursors.
            cursors.by_row[open_rows] = True
            cursors.broken[open_rows] = True
            break
        selected = cursors.select(open_rows)
        if step.keyed:
            keys.append(_read_scalar(_KEY if step.type is not None else _PASSED_KEY, selected))
        items.append(read_block(step.item, selected))
        owners.append(open_rows)
        cursors.update(open_rows, selected)
        remaining[open_rows] -= 1
        open_rows = open_rows[~cursors.broken[open_rows]]
    if step.type is None:
        return _SKIPPED
    owner = np.concatenate(owners) if owners else np.zeros(0, np.int64)
    order = np.argsort(owner, kind="stable")
    lengths = np.bincount(owner, minlength=len(cursors))
    if not step.keyed:
        return step.build(lengths, [join_converted(items, order, step.type.value_type)])
    entries = [
        join_converted(keys, order, step.type.key_type),
        join_converted(items, order, step.type.item_type),
    ]
    return step.build(lengths, entries)


_KEY: Final = Scalar("string", pa.string())
_PASSED_KEY: Final = Scalar("string")
