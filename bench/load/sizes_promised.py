"""The sizes that are promised, and what each may take at most.

The bounds are about twice what a quiet machine of two cores has taken, so that a slower one keeps
them as well, and what grows with the square of a size does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sizes import size


@dataclass(frozen=True)
class Size:
    """A size, and its bounds.

    Attributes:
        what: what is so many, `{}` being the number.
        count: how many; a small run has fewer.
        seconds: the longest batch, or the whole job where there are none.
        python_mb: the largest process of Python: the driver's program, Spark's process of the
            source, and each worker.
        jvm_mb: Spark's JVM, whose heap has the size that Spark gives it by default, a gigabyte.
    """

    what: str
    count: int
    seconds: float
    python_mb: float
    jvm_mb: float = 0.0

    @property
    def title(self) -> str:
        """For people."""
        return self.what.format(f"{self.count:,}")


_EVENTS: Final = size(100_000_000, 250_000)

SIZES: Final[Mapping[str, Size]] = {
    "partitions": Size("{} partitions in a batch", size(1_000, 50), 20, 300, 1600),
    "series": Size("{} series in a batch, to a store", size(100_000, 2_000), 60, 500, 1600),
    "values": Size("{} values of 1 MB in a batch", size(100, 10), 30, 900, 1600),
    "stored_values": Size("{} values of 1 MB, to a store", size(100, 10), 60, 1200, 1600),
    "ctis": Size("{} CTIs in a batch", size(10_000, 500), 20, 300, 1600),
    "writers": Size("{} writers that mark a partition", size(5_000, 100), 20, 300, 1600),
    "clocks": Size("{} writers with clocks of their own", size(5_000, 100), 20, 300, 1600),
    "append": Size("a store of {} events, each of 40 appends", _EVENTS, 60, 3000),
    "compact": Size("a store of {} events, compaction", _EVENTS, 900, 3000),
    "ask": Size("a store of {} events, a series and all newest events", _EVENTS, 60, 3000),
}  # fmt: skip
