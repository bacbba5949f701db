"""The cases of appends, edits and retained ranges, written by the client and by Spark.

A row is the milliseconds of an append, None for one without a timestamp, or `Edit` of an original.
"""

from dataclasses import dataclass

FUTURE = 4_102_444_800_000  # 2100


@dataclass(frozen=True)
class Edit:
    """A row that edits the original of this sequence."""

    of: int


Rows = tuple[int | Edit | None, ...]


@dataclass(frozen=True)
class WriteCase:
    """Batches of rows of one series, and the values that a query then gives.

    If `fails` is not empty, the last batch fails so, and nothing of it is stored.
    """

    number: str
    retained: str | None
    batches: tuple[Rows, ...]
    expected: str
    fails: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.retained}"

    @property
    def stored(self) -> tuple[Rows, ...]:
        """The batches that do not fail."""
        return self.batches[:-1] if self.fails else self.batches


def every(step_ms: int, count: int) -> Rows:
    return tuple(step_ms * n for n in range(count))


def numbers(first: int, last: int) -> str:
    return " ".join(str(n) for n in range(first, last + 1))


ANY = "limit 100"

WRITE_CASES = [
    WriteCase("W1", ANY, ((None,),), "0"),
    WriteCase("W2", ANY, (every(1, 3), (None,), (None,)), "0 1 2 3 4"),
    WriteCase("W3", ANY, ((0, 5), (5,)), "0 1 2"),
    WriteCase("W4", ANY, ((0, 5), (4,)), "0 1", r"sequence 1|newest"),
    # The vendor contradicts itself here: not refused, but stamped like the newest.
    WriteCase("W5", ANY, ((FUTURE,), (None,)), "0 1"),
    WriteCase("W6", ANY, ((0,), (FUTURE,)), "0 1"),
    WriteCase("W7", ANY, ((0, 1), (Edit(0),)), "2>0 1"),
    WriteCase("W8", ANY, ((0, 1), (Edit(0),), (Edit(2),)), "2>0 1", "itself an edit"),
    WriteCase("W9", ANY, ((0, 1), (Edit(99),)), "0 1", "no such event"),
    WriteCase("W10", "limit 2", ((0, 1, 2), (Edit(0),)), "1 2", "discarded"),
    # Otherwise than the vendor's: an edit's time of today neither blocks nor discards.
    WriteCase("W14", "last 10s", (every(1000, 5), (Edit(2),), (4000,)), "0 1 5>2 3 4 6"),
    WriteCase("R1", None, (every(1, 12),), numbers(2, 11)),
    WriteCase(
        "R2",
        "limit 15 last 10s",
        (every(1, 25), (Edit(20),)),
        f"{numbers(11, 19)} 25>20 {numbers(21, 24)}",
    ),
    WriteCase("R3", "limit 15 last 10s", (every(1, 25),), numbers(10, 24)),
    WriteCase("R4", "last 10s", (every(5000, 3),), "0 1 2"),
    *(
        WriteCase("R6", text, (every(10, 20),), numbers(15, 19))
        for text in ("limit 5 last 10s", "last 10s limit 5", "LIMIT 5 LAST 10S")
    ),
    WriteCase("R7", "limit 5 last 10s", (every(9000, 3),), "1 2"),
    WriteCase("R8", "last 10s", (every(9000, 2),), "0 1"),
    WriteCase("R11", "limit 3", ((0,), (Edit(0),), (0, 1), (Edit(0),)), "2 3", "discarded"),
    WriteCase("R12", "last 10s", (every(1000, 3), (Edit(0),)), "3>0 1 2"),
    WriteCase("R13", "last 1H", (every(1000, 5), (7_200_000,)), "5"),
    WriteCase("R14", "limit 2", (every(1, 5), (9,)), "4 5"),
    WriteCase("R16", "last 5M", ((0, 300_000), (600_000,)), "1 2"),
    WriteCase("R18", "limit 5 limit 3", (every(1, 9),), "6 7 8"),
]
