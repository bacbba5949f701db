"""The promised sizes, and the most that each may take.

The bounds are about twice the figures of a machine with two cores: a slower one keeps them as
well, but code with a cost that grows with the square of a size does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sizes import size, whole_number


@dataclass(frozen=True)
class Size:
    """A size, and its bounds.

    Attributes:
        what: what is counted, with `{}` for the number.
        count: how many; a small run has fewer.
        core_s: seconds of cores that the whole job may take, with the start of its session.
        python_mb: the largest process of Python: the driver's program, Spark's process of the
            source, and each worker.
        jvm_mb: Spark's JVM, with Spark's default heap of a gigabyte; 0 where there is none.
    """

    what: str
    count: int
    core_s: float
    python_mb: float
    jvm_mb: float = 0

    @property
    def title(self) -> str:
        """For people."""
        return self.what.format(f"{self.count:,}")


_EVENTS: Final = whole_number("BENCH_EVENTS", size(100_000_000, 250_000))

SIZES: Final[Mapping[str, Size]] = {
    "partitions": Size("{} partitions in a batch", size(1_000, 50), 200, 300, 1600),
    "series": Size("{} series in a batch, to a store", size(100_000, 2_000), 200, 800, 1600),
    "values": Size("{} values of 1 MB in a batch", size(100, 10), 80, 500, 1200),
    "stored_values": Size("{} values of 1 MB, to a store", size(100, 10), 150, 1200, 1600),
    "ctis": Size("{} CTIs in a batch", size(10_000, 500), 80, 300, 1200),
    "writers": Size("{} writers that mark a partition", size(5_000, 100), 80, 300, 1200),
    "clocks": Size("{} writers with clocks of their own", size(5_000, 100), 80, 300, 1200),
    "append": Size("a store of {} events, each of 40 appends", _EVENTS, 120, 1300),
    "compact": Size("a store of {} events, compaction", _EVENTS, 400, 2000),
    "ask": Size("a store of {} events, a series and all newest events", _EVENTS, 60, 2000),
}  # fmt: skip
