"""What a chain must have made of its topic despite all faults: each event once, as DuckDB counts.

The rules come from the semantics: a record without a readable time is malformed (1.7), an event
before the greatest earlier time of its partition minus the delay is late and dropped (2.5, 3.1),
and a window is there once every partition's clock is at its end (5.1).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import chaos_parts
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from chaos_chain import Chain, Parts, Stuck, wait_until
from chaos_driver import DELAY_S, WINDOW_S
from chaos_parts import AGGREGATES
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from pyspark_tseries import TimeSeries

WINDOWS = f"""
WITH
    events AS (
        SELECT
            part, at_offset, json ->> 'series' AS series, (json ->> 'n')::BIGINT AS n,
            epoch_us(try_cast(json ->> 'at' AS TIMESTAMPTZ)) AS at_us
        FROM (SELECT *, try_cast(value AS JSON) AS json FROM records)
        WHERE try_cast(json ->> 'at' AS TIMESTAMPTZ) IS NOT NULL
    ),
    judged AS (
        SELECT *, max(at_us) OVER (
            PARTITION BY part ORDER BY at_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) - {DELAY_S * 1_000_000} AS clock
        FROM events
    ),
    cti AS (
        SELECT min(newest) - {DELAY_S * 1_000_000} AS cti
        FROM (SELECT max(at_us) AS newest FROM events GROUP BY part)
    )
SELECT
    series, at_us // {WINDOW_S * 1_000_000} * {WINDOW_S * 1_000_000} AS start, sum(n)::BIGINT,
    count(*)
FROM judged, cti
WHERE clock IS NULL OR at_us >= clock
GROUP BY ALL
HAVING start + {WINDOW_S * 1_000_000} <= any_value(cti)
ORDER BY ALL
"""

Window = tuple[str, int, int, int]


def check(chain: Chain) -> dict[str, int]:
    """Check all that must hold when nothing comes any more; return how much there was of each."""
    records = [
        (each.partition(), each.offset(), each.value()) for each in chain.broker.read("events")
    ]
    expected = expected_windows(records)
    wait_for(lambda: len(originals(chain)) >= len(expected), "all windows")
    assert originals(chain) == expected, difference(originals(chain), expected)
    wait_for(lambda: len(published(chain)) >= len(expected), "all windows in the second topic")
    assert published(chain) == expected, difference(published(chain), expected)
    wait_for(lambda: len(copied(chain)) >= len(records), "all records in the copy")
    wanted = sorted(map(copy_of, records))
    assert copied(chain) == wanted, difference(copied(chain), wanted)
    assert TimeSeries.open(chain.stores / "copy").verify() == []
    return {"records": len(records), **check_parts(chain)}


def check_parts(chain: Parts) -> dict[str, int]:
    """The same of what the parts do, without a topic."""
    counts = {
        "windows": len(originals(chain)), "edits": check_edits(chain),
        "events followed": check_followers(chain), "buckets": check_rollup(chain),
        "numbers appended": check_notes(chain),
    }  # fmt: skip
    for name in ("windows", "rollup", "notes"):
        assert (found := TimeSeries.open(chain.stores / name).verify()) == [], found
    return counts


def check_written(chain: Parts) -> None:
    """The windows that a writer without Spark appended: each once, without a gap."""
    found = originals(chain)
    per_series = len({start for _, start, *_ in found})
    first = chaos_parts.DAY_S * 1_000_000
    assert found == [
        (f"s{n}", first + step * 10_000_000, chaos_parts.DAY_S + 10 * step, 1)
        for n in range(chaos_parts.SERIES)
        for step in range(per_series)
    ]


def wait_for(holds: Any, what: str) -> None:
    try:
        wait_until(holds, what)
    except Stuck:
        print(f"stuck: {what}")


def difference(found: list[Any], expected: list[Any]) -> str:
    extra, lacking = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
    told = f"extra {list(extra.items())[:5]}, lacking {list(lacking)[:5]}"
    return f"{len(found)} for {len(expected)}; {told}"


def expected_windows(records: list[tuple[int, int, bytes | None]]) -> list[Window]:
    parts, offsets, values = zip(*records, strict=True)
    texts = [decoded(value) for value in values]
    table = pa.table({"part": parts, "at_offset": offsets, "value": pa.array(texts, pa.string())})
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("records", table)
        return connection.execute(WINDOWS).fetchall()


def decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def rows(chain: Parts, store: str) -> pa.Table:
    return DeltaTable(chain.stores / store).to_pyarrow_table()


def originals(chain: Parts) -> list[Window]:
    """The windows of the store as they were first written."""
    table = rows(chain, "windows")
    table = table.filter(pc.is_null(table["original_sequence"]))
    stamps = table["timestamp"].cast(pa.int64())
    columns = (table["series"], stamps, table["total"], table["rows"])
    return sorted(zip(*(each.to_pylist() for each in columns), strict=True))


def published(chain: Chain) -> list[Window]:
    """The rows of a read_committed reader of the second topic, without the marks."""
    found = []
    for message in chain.broker.read("windows"):
        if "cti" in dict(message.headers() or []):
            continue
        value = json.loads(message.value())
        (stamp,) = duckdb.execute(
            "SELECT epoch_us($1::TIMESTAMPTZ)", [value["timestamp"]]
        ).fetchone() or (None,)
        found.append((value["series"], stamp, value["total"], value["rows"]))
    return sorted(found)


def copy_of(record: tuple[int, int, bytes | None]) -> tuple[str, int, str]:
    import hashlib

    part, offset, value = record
    digest = "" if value is None else hashlib.md5(value, usedforsecurity=False).hexdigest()
    return f"p{part}", offset, digest


def copied(chain: Chain) -> list[tuple[str, int, str]]:
    table = rows(chain, "copy")
    columns = (table["series"], table["timestamp"].cast(pa.int64()), table["digest"])
    found = zip(*(each.to_pylist() for each in columns), strict=True)
    return sorted((series, stamp, digest or "") for series, stamp, digest in found)


def check_edits(chain: Parts) -> int:
    """Every edit that was acknowledged is there once, and none that was never tried."""
    table = rows(chain, "windows")
    table = table.filter(pc.is_valid(table["original_sequence"]))
    stored = Counter(-total for total in table["total"].to_pylist())
    sequences = dict(
        zip((-n for n in table["total"].to_pylist()), table["sequence"].to_pylist(), strict=True)
    )
    lines = [line for name in running(chain, "editor") for line in chain.lines(name).update()]
    acknowledged = {line["edited"]: line["sequence"] for line in lines if "edited" in line}
    tried = {line["tried"] for line in lines if "tried" in line}
    assert max(stored.values(), default=1) == 1, stored.most_common(3)
    assert stored.keys() <= tried, stored.keys() - tried
    assert acknowledged.items() <= sequences.items(), acknowledged.items() - sequences.items()
    return len(stored)


def check_notes(chain: Parts) -> int:
    """Each appender's numbers without a gap, each once, and all that were acknowledged."""
    table = rows(chain, "notes").sort_by("sequence")
    for name in running(chain, "appender"):
        numbers = table.filter(pc.equal(table["series"], name))["number"].to_pylist()
        assert numbers == list(range(len(numbers))), numbers
        lines = chain.lines(name).update()
        assert len(numbers) >= max([line["appended"] for line in lines if "appended" in line])
    return int(table.num_rows)


def running(chain: Parts, kind: str) -> list[str]:
    """The parts of that kind that the chain has."""
    return [name for name in chain.part_kinds() if name.startswith(kind)]


def check_followers(chain: Parts) -> int:
    """All; how many events they saw."""
    followers = running(chain, "follower")
    return sum(check_follower(chain, name.replace("follower", "seen")) for name in followers)


def check_follower(chain: Parts, name: str) -> int:
    """It saw every event of the store once, each series in order."""
    table = rows(chain, "windows")
    stored = sorted(zip(table["series"].to_pylist(), table["sequence"].to_pylist(), strict=True))

    def seen() -> list[tuple[str, int]]:
        lines = (chain.place / name).read_bytes().splitlines()
        return [(series, number) for series, number, *_ in map(json.loads, lines)]

    wait_for(lambda: len(seen()) >= len(stored), "all events at the follower")
    found = seen()
    assert sorted(found) == stored, difference(found, stored)
    last: dict[str, int] = {}
    for series, number in found:
        assert number == last.get(series, -1) + 1, (series, number)
        last[series] = number
    return len(found)


def check_rollup(chain: Parts) -> int:
    """It has each complete bucket of the current values."""
    source = TimeSeries.open(chain.stores / "windows", author="roller")
    source.rollup(chain.stores / "rollup", "1 minute", AGGREGATES)
    query = source.range_query().every("1 minute").aggregate(**AGGREGATES)
    wanted = query.select_from().to_arrow().to_pylist()
    rollup = TimeSeries.open(chain.stores / "rollup")
    found = rollup.range_query().select_from().to_arrow().to_pylist()
    names = list(wanted[0])
    complete = {(row["series"], row["timestamp"]) for row in found}
    shown = [row for row in wanted if (row["series"], row["timestamp"]) in complete]
    assert [{name: row[name] for name in names} for row in found] == shown
    lacking = [row for row in wanted if (row["series"], row["timestamp"]) not in complete]
    final = source.cti() or datetime.min.replace(tzinfo=UTC)
    newest = {
        row["series"]: datetime.fromtimestamp(row["at"], UTC) for row in newest_originals(chain)
    }
    for row in lacking:
        assert row["timestamp"] + timedelta(minutes=1) > max(final, newest[row["series"]]), row
    return len(found)


def newest_originals(chain: Parts) -> list[dict[str, Any]]:
    newest: dict[str, float] = {}
    for series, start, *_ in originals(chain):
        newest[series] = max(newest.get(series, 0), start / 1e6)
    return [{"series": series, "at": at} for series, at in newest.items()]


def leftovers(chain: Parts) -> list[str]:
    """Remains that must be gone when all have ended: staged and temporary files, groups."""
    found = [str(path) for path in (chain.place / "tmp").rglob("*") if is_ours(path)]
    for store in chain.stores.iterdir():
        log = store / "_delta_log"
        old = time.time() - 30
        found += [
            str(path) for path in log.rglob("*")
            if path.is_file() and path.name.startswith((".", "_commit", "tmp"))
            and path.stat().st_mtime > old
        ]  # fmt: skip
    return found


def unknown_groups(chain: Chain) -> list[str]:
    """Consumer groups that belong to no query's checkpoint."""
    admin = AdminClient({"bootstrap.servers": chain.places.bootstrap})
    groups = [each.group_id for each in admin.list_consumer_groups().result(10).valid]
    queries = {
        name: json.loads((chain.checkpoints / name / "metadata").read_text())["id"]
        for name in ("windows", "topic", "copy")
    }
    streams = {
        json.loads(newest(chain.checkpoints / name / "offsets").read_text().splitlines()[-1])[
            "stream"
        ]
        for name in ("windows", "copy")
    }
    known = [*queries.values(), *streams]
    return [name for name in groups if not any(each in name for each in known)]


def newest(log: Path) -> Path:
    return max(
        (path for path in log.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )


def is_ours(path: Path) -> bool:
    return path.is_file() and ("tseries" in path.name or "timestream" in path.name)
