"""Nexmark's events, DuckDB's answers, and what is said of rows that differ from them."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from nexmark.answers import Differences, answer, differences
from nexmark.events import (
    DISORDER_MS,
    LAG_S,
    PARTITIONS,
    START_MS,
    Event,
    Load,
    arrivals,
    rebase,
    sample_lines,
)

EVENTS = 4_000
Row = tuple[Any, ...]


def events_of(load: Load, partition: int) -> list[Event]:
    lines = sample_lines()[partition::PARTITIONS][load.first_line(partition) :]
    count = load.events // PARTITIONS
    return list(rebase(lines[:count], load.start_ms(partition), load.stretch))


def time_of(value: bytes) -> int:
    return int(json.loads(value)["date_time"])


def test_events_begin_with_2026_and_keep_their_distances() -> None:
    load = Load(EVENTS)
    (first, value), *_, (last, _) = events_of(load, 0)
    assert (first, load.stretch) == (START_MS, 500)
    # The last is number 3,996, which the generator has at 400 ms.
    assert last - first == 400 * 500
    event = json.loads(value)
    assert event["date_time"] == event["Person"]["date_time"] == START_MS
    assert Load(10_000_000).stretch == 1


@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_arrivals_are_all_events_less_than_the_delay_out_of_order(partition: int) -> None:
    load = Load(20_000)
    events = events_of(load, partition)
    arrived = list(arrivals(events, partition, load.closes_ms))
    *values, _, _, _ = arrived
    assert sorted(values) == sorted(value for _, value in events)
    assert list(arrivals(events, partition, load.closes_ms)) == arrived
    times = list(map(time_of, values))
    lags = [most - time for most, time in zip(itertools.accumulate(times, max), times, strict=True)]
    assert DISORDER_MS / 2 < max(lags) < DISORDER_MS


def test_a_lagging_partition_begins_a_minute_before_the_others() -> None:
    ordinary, lagging = Load(EVENTS), Load(EVENTS, "lagging")
    *ahead, last = (events_of(lagging, partition) for partition in range(PARTITIONS))
    assert last == events_of(ordinary, PARTITIONS - 1)
    for partition, events in enumerate(ahead):
        assert events[0][0] == START_MS + LAG_S * 1_000
        # They are the same events at the same times, but for the first minute and one more.
        same = events_of(ordinary, partition)[lagging.first_line(partition) :]
        assert events[: len(same)] == same
        assert len(same) < len(events) == len(last)


# -- the answers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["ordinary", "lagging"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place, load = tmp_path_factory.mktemp(request.param), Load(EVENTS, request.param)
    found = [place / f"{partition}.jsonl" for partition in range(PARTITIONS)]
    for partition, path in enumerate(found):
        path.write_bytes(b"\n".join(value for _, value in events_of(load, partition)))
    return found


def bids_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    every = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [each["Bid"] for each in every if "Bid" in each]


def answered(query: str, files: list[Path]) -> Counter[Row]:
    return Counter(answer(query, files).sql("FROM wanted").fetchall())


def test_duckdb_finds_the_hottest_auctions_of_each_period(files: list[Path]) -> None:
    counts: dict[int, Counter[int]] = {}
    for bid in bids_of(files):
        for end in range(bid["date_time"] // 2000 * 2000 + 2000, bid["date_time"] + 10_001, 2000):
            counts.setdefault(end, Counter())[bid["auction"]] += 1
    most = {end: max(count.values()) for end, count in counts.items()}
    hot = [(end, a, n) for end, each in counts.items() for a, n in each.items() if n == most[end]]
    assert answered("q5", files) == Counter(hot)


def test_duckdb_finds_the_highest_bid_of_each_window(files: list[Path]) -> None:
    highest: dict[int, Row] = {}
    for bid in bids_of(files):
        end = (bid["date_time"] // 10_000 + 1) * 10_000
        row = tuple(bid[name] for name in ("price", "auction", "bidder", "date_time", "extra"))
        highest[end] = max(highest.get(end, row), row)
    assert answered("q7", files) == Counter((end, *row) for end, row in highest.items())


def test_duckdb_finds_who_joined_and_sold_at_once(files: list[Path]) -> None:
    every = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    sellers = {(e["Auction"]["seller"], e["date_time"] // 10_000) for e in every if "Auction" in e}
    persons = [(e["Person"], e["date_time"] // 10_000) for e in every if "Person" in e]
    new = [(w * 10_000, p["id"], p["name"]) for p, w in persons if (p["id"], w) in sellers]
    assert new
    assert answered("q8", files) == Counter(new)


def test_duckdb_finds_sessions_up_to_a_gap_of_ten_seconds(files: list[Path]) -> None:
    sessions: dict[int, list[list[int]]] = {}
    for bid in sorted(bids_of(files), key=lambda bid: bid["date_time"]):
        of_bidder = sessions.setdefault(bid["bidder"], [])
        if of_bidder and bid["date_time"] - of_bidder[-1][-1] <= 10_000:
            of_bidder[-1].append(bid["date_time"])
        else:
            of_bidder.append([bid["date_time"]])
    rows = [(b, s[0], s[-1] + 10_000, len(s)) for b, each in sessions.items() for s in each]
    assert answered("q11", files) == Counter(rows)


@pytest.fixture
def kept(files: list[Path], tmp_path: Path) -> tuple[duckdb.DuckDBPyConnection, Path]:
    connection = answer("q11", files)
    connection.sql("FROM wanted").write_parquet(str(tmp_path / "rows.parquet"))
    return connection, tmp_path


def differing(connection: duckdb.DuckDBPyConnection, place: Path, sql: str) -> Differences:
    rows = connection.sql(sql)
    rows.write_parquet(str(place / "rows.parquet"))
    return differences(connection, "q11", Load(EVENTS), place)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sql", "wrong"),
    [
        ("FROM wanted", (0, 0, 0, 0)),
        ("FROM wanted ORDER BY bids LIMIT 10", (-10, 0, 0, 0)),
        ("FROM wanted UNION ALL FROM wanted", (0, None, 0, 0)),
        ("SELECT * REPLACE (bids + 1 AS bids) FROM wanted", (0, 0, None, 0)),
        ("FROM wanted UNION ALL SELECT -1, 5, 6, 7 FROM wanted", (0, 0, 0, None)),
        ("FROM wanted LIMIT 0", (None, 0, 0, 0)),
    ],
    ids=["the same", "all but ten missing", "all doubled", "all changed", "made up", "nothing"],
)
def test_each_difference_is_counted_as_what_it_is(
    kept: tuple[duckdb.DuckDBPyConnection, Path], sql: str, wrong: tuple[int | None, ...]
) -> None:
    rows, *counts = differing(*kept, sql)
    wanted = [rows if n is None else rows + n if n < 0 else n for n in wrong]
    assert counts == wanted
