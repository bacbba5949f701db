"""Places of n rows inside a block's bytes, and the Avro primitives that are read there."""

from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.connector.columns import Mask

__all__ = ["Places"]

Longs = npt.NDArray[np.int64]

_PADDING: Final = 16
"""Bytes after the last row, so that a word may be read at its end."""

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
"""Masks and shifts that close the gaps between groups of seven bits: of 1, of 2, of 4 groups."""


class Places:
    """The places where n rows are read next, all inside one array of bytes.

    A row that is broken stays within its bytes; the values that are read for it mean nothing.

    Attributes:
        at: n places.
        ends: n places: the first byte that is not the row's.
        broken: n booleans: the row's bytes contradict its schema.
        unfit: n booleans: a value of the row does not fit the type that it is read as.
        late: n booleans: the row has to be read by itself.
        budget: n numbers of items that the row's arrays and maps may still have.
    """

    __slots__ = ("_bytes", "_words", "at", "broken", "budget", "ends", "late", "unfit")

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        words: npt.NDArray[np.uint64],
        at: Longs,
        ends: Longs,
        budget: Longs,
    ) -> None:
        self._bytes, self._words, self.at, self.ends = data, words, at, ends
        self.budget = budget
        self.broken, self.unfit, self.late = (np.zeros(len(at), np.bool_) for _ in range(3))

    @classmethod
    def of(cls, bodies: pa.Array) -> Self:
        """Begin at the starts of `bodies`, n binary values; a null is empty."""
        _, offset_buffer, data_buffer = bodies.buffers()
        offsets = np.frombuffer(offset_buffer, np.int32)[bodies.offset :][: len(bodies) + 1]
        bounds = offsets.astype(np.int64)
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
        padding = np.zeros(_PADDING, np.uint8)
        padded = np.concatenate((data[bounds[0] : bounds[-1]], padding))
        words = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))
        bounds -= bounds[0]
        return cls(padded, words, bounds[:-1].copy(), bounds[1:].copy(), np.diff(bounds))

    def __len__(self) -> int:
        return len(self.at)

    def select(self, rows: Longs) -> "Places":
        """Return the places of some rows, to be read on their own; they are in order."""
        at, ends, budget = self.at[rows], self.ends[rows], self.budget[rows]
        return Places(self._bytes, self._words, at, ends, budget)

    def update(self, rows: Longs, part: "Places") -> None:
        """Take over the places of some rows after they have been read."""
        self.at[rows] = part.at
        self.budget[rows] = part.budget
        self.broken[rows] |= part.broken
        self.unfit[rows] |= part.unfit
        self.late[rows] |= part.late

    def finish(self) -> None:
        """Mark the rows that have bytes left over."""
        self.broken |= self.at != self.ends

    def _advance(self, lengths: Longs | int) -> None:
        self.at = self.at + lengths
        over = self.at > self.ends
        if over.any():
            self.broken |= over
            self.at = np.minimum(self.at, self.ends)

    def _read_varints(self) -> tuple[Longs, Longs | int]:
        """Read whole numbers of up to 64 bits; return also the bytes that they take."""
        first = self._bytes[self.at]
        if not len(first) or first.max() < 128:
            self._advance(1)
            numbers = first.astype(np.int64)
            return (numbers >> 1) ^ -(numbers & 1), 1
        words = self._words[self.at]
        stops = ~words & _STOP_BITS
        stop = stops & (~stops + _ONE)
        mask = (stop << _ONE) - _ONE
        lengths = (np.bitwise_count(mask) >> 3).astype(np.int64)
        folded = words & mask & _DATA_BITS
        for low, high, shift in _FOLDS:
            folded = (folded & low) | ((folded & high) >> shift)
        if not stop.all():
            self._read_long_varints(np.flatnonzero(stop == 0), words, folded, lengths)
        self._advance(lengths)
        signed = (folded >> _ONE).astype(np.int64)
        return signed ^ -(folded & _ONE).astype(np.int64), lengths

    def _read_long_varints(
        self,
        rows: Longs,
        words: npt.NDArray[np.uint64],
        folded: npt.NDArray[np.uint64],
        lengths: Longs,
    ) -> None:
        """Read those of nine or ten bytes; the tenth has the 64th bit and no other."""
        number = words[rows] & _DATA_BITS
        for low, high, shift in _FOLDS:
            number = (number & low) | ((number & high) >> shift)
        ninth = self._bytes[self.at[rows] + 8].astype(np.uint64)
        tenth = self._bytes[self.at[rows] + 9].astype(np.uint64)
        nine = ninth < 128
        number |= (ninth & _U64(0x7F)) << _U64(56)
        folded[rows] = np.where(nine, number, number | (tenth & _ONE) << _U64(63))
        lengths[rows] = np.where(nine, 9, 10)
        self.broken[rows] |= ~nine & (tenth > 1)

    def read_longs(self) -> Longs:
        """Read n numbers of type long."""
        return self._read_varints()[0]

    def read_ints(self) -> Longs:
        """Read n numbers of type int."""
        numbers, lengths = self._read_varints()
        if isinstance(lengths, np.ndarray):
            self.broken |= (lengths > _INT_BYTES) | (numbers != numbers.astype(np.int32))
        return numbers

    def read_index(self, size: int) -> Longs:
        """Read n indices below `size`; those of broken rows are 0 if there is one."""
        chosen = self.read_ints()
        outside = (chosen < 0) | (chosen >= size)
        if outside.any():
            self.broken |= outside
            chosen = np.where(outside, 0, chosen)
        return chosen

    def read_booleans(self) -> Mask:
        """Read n bytes that are 0 or 1."""
        read = self._bytes[self.at]
        self.broken |= read > 1
        self._advance(1)
        chosen: Mask = read == 1
        return chosen

    def read_floats(self, size: int) -> npt.NDArray[np.floating]:
        """Read n floats of 4 bytes, or doubles of 8."""
        words = self._words[self.at]
        self._advance(size)
        if size == _WORD:
            return words.view(np.float64)
        return words.astype(np.uint32).view(np.float32)

    def pass_fixed(self, size: int) -> tuple[Longs, Longs]:
        """Return where n values of `size` bytes start and stop."""
        starts = self.at
        # A size may be so large that adding it often exceeds 64 bits.
        self._advance(min(size, 2**32))
        return starts, self.at

    def pass_bytes(self) -> tuple[Longs, Longs]:
        """Return where n values start and stop that have their length before them."""
        lengths = self.read_longs()
        outside = (lengths < 0) | (lengths > self.ends - self.at)
        if outside.any():
            self.broken |= outside
            lengths = np.where(outside, 0, lengths)
        starts = self.at
        self.at = starts + lengths
        return starts, self.at

    def slice_bytes(self, starts: Longs, stops: Longs) -> pa.Array:
        """Return the bytes from n starts to n stops as binary values; broken rows have none.

        Rows are in order, and so are their bytes: values and what is between them are a binary
        array without copying, and every other one is taken.
        """
        if not len(starts):
            return pa.array([], pa.binary())
        if self.broken.any():
            stops = np.where(self.broken, starts, stops)
        bounds = np.empty(2 * len(starts), np.int32)
        bounds[0::2], bounds[1::2] = starts, stops
        both = pa.Array.from_buffers(
            pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(self._bytes)]
        )
        return both.take(pa.array(np.arange(0, len(bounds) - 1, 2)))

    def read_block_header(self, sized_end: Longs) -> tuple[Longs, Longs]:
        """Read the headers of the next blocks of n arrays or maps.

        A block that gave its size must end where it said. All arrays and maps of a payload have
        together at most as many items as it has bytes: only items without bytes could be more.

        Args:
            sized_end: n places where the block before must have ended; -1 if it gave no size.

        Returns:
            n numbers of items, 0 for the end of the array and for broken rows, and n places where
            the block must end.
        """
        self.broken |= (sized_end >= 0) & (self.at != sized_end)
        counts = self.read_longs()
        ends = np.full(len(self), -1, np.int64)
        sized = np.flatnonzero((counts < 0) & ~self.broken)
        if len(sized):
            part = self.select(sized)
            sizes = part.read_longs()
            outside = (sizes < 0) | (sizes > part.ends - part.at)
            part.broken |= outside
            ends[sized] = part.at + np.where(outside, 0, sizes)
            self.update(sized, part)
            counts = np.where(counts < 0, -counts, counts)
        # The least number stays negative.
        self.broken |= (counts < 0) | (counts > self.budget)
        counts = np.where(self.broken, 0, counts)
        self.budget -= counts
        return counts, ends
