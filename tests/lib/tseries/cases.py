"""The query cases of Diffusion's conformance list, once for the client and once for Spark.

`5>2` is the event with sequence 5 that edits original 2. Letters and numbers name the cases,
and stay the same; where the vendor has no mark, this package chose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tseries.builders import batch, new_store

from pyspark_tseries import QueryResult, RangeQuery, TimeSeries

SERIES = {"S1": "ab", "S2": "0", "S3": "0"}


def at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def iso(count: int) -> str:
    return at(count).isoformat()


def shown(result: QueryResult) -> str:
    """The events as in the cases."""
    return " ".join(
        f"{event.sequence}>{event.original.sequence}" if event.original else str(event.sequence)
        for event in result.events
    )


def build(directory: Path) -> dict[str, TimeSeries]:
    """The stores S1, S2 and S3; their one series is `s`."""
    stores = {}
    for name in ("S1", "S2", "S3"):
        store = new_store(directory / name, {"limit": 1000})
        if name == "S1":
            store.append(batch(("s", 1), ("s", 2)), clock=lambda: 3)
            store.append(batch(edits=[("s", 0, 102.0), ("s", 0, 103.0)]), clock=lambda: 4)
        else:
            store.append(batch(*(("s", 10_000 * n) for n in range(10))), clock=lambda: 0)
        if name == "S3":
            store.append(batch(edits=[("s", 4)]), clock=lambda: 100_000)
            store.append(batch(("s", 110_000)), clock=lambda: 100_000)
            store.append(batch(edits=[("s", 4)]), clock=lambda: 120_000)
        stores[name] = TimeSeries.open(str(directory / name))
    return stores


@dataclass(frozen=True)
class Case:
    """A query of one store, both ways, and what it gives."""

    number: str
    store: str
    ask: Callable[[RangeQuery], RangeQuery]
    options: dict[str, str]
    expected: str

    def __str__(self) -> str:
        return f"{self.number} {self.store} {self.options}"


def case(
    number: str,
    store: str,
    ask: Callable[[RangeQuery], RangeQuery],
    expected: str,
    query: str = "values",
    **options: str,
) -> Case:
    named = {name.rstrip("_"): value for name, value in options.items()}
    return Case(number, store, ask, {"query": query, **named}, expected)


ALL, LATEST = "allEdits", "latestEdits"

CASES = [
    case("Q1", "S1", lambda q: q.for_values(), "3>0 1"),
    case("Q2", "S2", lambda q: q.from_(3).to(6), "3 4 5 6", from_="sequence 3", to="sequence 6"),
    case("Q4", "S2", lambda q: q.from_start().to_start(), "", from_="start", to="start"),
    case("Q5", "S2", lambda q: q.from_(0).to_start(), "0", from_="sequence 0", to="start"),
    case("Q6", "S2", lambda q: q.from_start().to(0), "0", from_="start", to="sequence 0"),
    case("Q7", "S2", lambda q: q.from_start().next(4), "0 1 2 3", to="next 4"),
    case("Q8", "S2", lambda q: q.from_(5).next(3), "5 6 7 8", from_="sequence 5", to="next 3"),
    case("Q10", "S2", lambda q: q.from_last(1), "9", from_="last 1"),
    case("Q11", "S2", lambda q: q.from_last(3), "7 8 9", from_="last 3"),
    case("Q12", "S2", lambda q: q.until_last(0), "0 1 2 3 4 5 6 7 8 9", to="last 0"),
    case("Q13", "S2", lambda q: q.until_last(3), "0 1 2 3 4 5 6", to="last 3"),
    case("Q15", "S2", lambda q: q.from_last(0), "", from_="last 0"),
    case("Q17", "S2", lambda q: q.from_(at(25)).to(at(55)), "3 4 5", from_=iso(25), to=iso(55)),
    case("Q18", "S2", lambda q: q.from_(at(30)).to(at(50)), "3 4 5", from_=iso(30), to=iso(50)),
    case("Q20", "S2", lambda q: q.from_last(ms(25)), "7 8 9", from_="last 25 ms"),
    case("Q22", "S2", lambda q: q.from_(100), "", from_="sequence 100"),
    case("Q24", "S3", lambda q: q.from_(3).to(5), "3 12>4 5", from_="sequence 3", to="sequence 5"),
    case("Q27", "S3", lambda q: q.from_(10), "11", from_="sequence 10"),
    case("Q29", "S3", lambda q: q.from_last(1), "11", from_="last 1"),
    case("Q30", "S2", lambda q: q.for_edits().from_(7), "7 8 9", ALL, from_="sequence 7"),
    case(
        "Q30",
        "S2",
        lambda q: q.for_edits().latest_edits().from_last(2),
        "8 9",
        LATEST,
        editFrom="last 2",
    ),
    case("Q32", "S3", lambda q: q.limit(1), "11", limit="1"),
    case("Q33", "S2", lambda q: q.limit(0), "", limit="0"),
    case("E1", "S1", lambda q: q.for_edits(), "0 1 2>0 3>0", ALL),
    case("E1", "S1", lambda q: q.for_edits().all_edits(), "0 1 2>0 3>0", ALL),
    case("E2", "S1", lambda q: q.for_edits().latest_edits(), "0 1 3>0", LATEST),
    case(
        "E3",
        "S3",
        lambda q: q.for_edits().from_(3).to(5),
        "3 4 5 10>4 12>4",
        ALL,
        from_="sequence 3",
        to="sequence 5",
    ),
    case(
        "E5",
        "S3",
        lambda q: q.for_edits().from_(3).to(5).all_edits().from_(11),
        "12>4",
        ALL,
        from_="sequence 3",
        to="sequence 5",
        editFrom="sequence 11",
    ),
    case("E7", "S3", lambda q: q.for_edits().from_last(1), "", ALL, from_="last 1"),
    case(
        "B9",
        "S3",
        lambda q: q.from_(2).edit_range().from_(10).to(11),
        "10>4 11",
        from_="sequence 2",
        editFrom="sequence 10",
        editTo="sequence 11",
    ),
    case(
        "span before anchor",
        "S2",
        lambda q: q.from_(5).previous(3),
        "2 3 4 5",
        from_="sequence 5",
        to="previous 3",
    ),
    case(
        "span before anchor",
        "S2",
        lambda q: q.from_(at(50)).previous(ms(20)),
        "3 4 5",
        from_=iso(50),
        to="previous 20 ms",
    ),
    case(
        "last counts from the last original in a view range",
        "S3",
        lambda q: q.from_last(ms(30)),
        "8 9 11",
        from_="last 30 ms",
    ),
    case(
        "edit range of a value query",
        "S3",
        lambda q: q.edit_range().to(11),
        "0 1 2 3 10>4 5 6 7 8 9 11",
        editTo="sequence 11",
    ),
]

INVALID = [
    case(
        "Q23", "S2", lambda q: q.from_(100).next(ms(20)), "", from_="sequence 100", to="next 20 ms"
    ),
    case("Q23", "S2", lambda q: q.from_last(11).next(ms(20)), "", from_="last 11", to="next 20 ms"),
]
