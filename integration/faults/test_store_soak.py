"""Four writers on one store, two Python clients and two Spark queries: nothing is lost or doubled.

Eight seconds of it are part of `make soak`, ten minutes are `make soak-store`. Run as a script it
is a writer: `client|query STORE PLACE NUMBER`; it writes until there is a file `stop` in PLACE.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from process_session import ProcessSession

from pyspark_tseries import TimeSeries, describe
from pyspark_tseries.maintain.verify import verify

WRITERS = [("client", 0), ("client", 1), ("query", 0), ("query", 1)]
ROWS_PER_BATCH = 500
COLUMNS = {"writer": pa.string(), "number": pa.int64()}


# Two queries on one store are killed in CI: store/test_spark.py.
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_four_writers_lose_and_double_nothing_in_eight_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        soak(tmp_path, seconds=8)


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_four_writers_lose_and_double_nothing_in_ten_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        soak(tmp_path, seconds=600)


def soak(place: Path, seconds: int) -> None:
    """Runs the writers for `seconds` from when all have begun to write, and checks the store."""
    store = place / "store"
    first = TimeSeries.create(str(store), COLUMNS, retained_range="unlimited")
    first.append("shared", {"writer": "first", "number": 0})
    with ExitStack() as stack:
        writers = [begin(stack, place, *writer) for writer in WRITERS]
        wait_until_all_write(place, writers)
        began, before = time.monotonic(), events(store)
        while time.monotonic() < began + seconds:
            assert_alive(writers)
            time.sleep(0.5)
        during = events(store) - before
        took = time.monotonic() - began
        (place / "stop").touch()
        for writer in writers:
            assert writer.wait(240) == 0, writer.tail()
    facts = describe(str(store))
    print(
        f"\n4 writers, {took:.0f} s: {during / took:.0f} events/s; {facts['events']} events, "
        f"{facts['last_commit'] + 1} commits, {facts['files']} files"
    )
    check(store, place)


def begin(stack: ExitStack, place: Path, kind: str, number: int) -> ProcessSession:
    line = [sys.executable, __file__, kind, str(place / "store"), str(place), str(number)]
    writer = ProcessSession.begin(line, log=place / f"{kind}{number}.log")
    stack.callback(writer.end)
    return writer


def wait_until_all_write(place: Path, writers: list[ProcessSession]) -> None:
    end = time.monotonic() + 300
    while not all(promised(place, *writer) for writer in WRITERS):
        assert_alive(writers)
        assert time.monotonic() < end, "a writer wrote nothing in time"
        time.sleep(0.2)


def assert_alive(writers: list[ProcessSession]) -> None:
    for writer in writers:
        assert writer.exit_code is None, f"a writer ended by itself:\n{writer.tail()}"


def events(store: Path) -> int:
    return int(describe(str(store))["events"])


def promised(place: Path, kind: str, number: int) -> int:
    """How many events the writer was told are stored."""
    if kind == "client":
        return len(acknowledged(place, number))
    noted = (place / f"checkpoint{number}" / "commits").glob("[0-9]*")
    return ROWS_PER_BATCH * (1 + max((int(file.name) for file in noted), default=-1))


def acknowledged(place: Path, number: int) -> list[tuple[str, int, int, int]]:
    """Of a client: series, sequence, number of the event, edited sequence or -1."""
    file = place / f"acknowledged{number}"
    if not file.exists():
        return []
    lines = (line.split() for line in file.read_text().splitlines())
    return [(series, *map(int, rest)) for series, *rest in lines]  # type: ignore[misc]


def check(store: Path, place: Path) -> None:
    assert verify(str(store)) == []
    table = DeltaTable(store).to_pyarrow_table()
    for kind, number in WRITERS:
        rows = table.filter(pc.equal(table["writer"], f"{kind}{number}"))
        if kind == "client":
            original = pc.fill_null(rows["original_sequence"], -1)
            columns = (rows["series"], rows["sequence"], rows["number"], original)
            found = sorted(zip(*(column.to_pylist() for column in columns), strict=True))
            assert found == sorted(acknowledged(place, number))
        else:
            assert sorted(rows["number"].to_pylist()) == list(range(rows.num_rows))
            assert rows.num_rows % ROWS_PER_BATCH == 0
            assert rows.num_rows >= promised(place, kind, number)
    edits = [(sequence, f"client{n}", value)
             for n in range(2)
             for series, sequence, value, edited in acknowledged(place, n)
             if (series, edited) == ("shared", 0)]  # fmt: skip
    _, writer, number = max(edits)
    client = TimeSeries.open(str(store))
    (event,) = client.range_query().from_(0).to(0).select_from("shared").events
    assert event.value == {"writer": writer, "number": number}


# -- the writers ---------------------------------------------------------------------------------


def client(store: str, place: Path, number: int) -> None:
    """Appends to a series of its own and to a shared one, and edits in both."""
    mine, writer = f"own{number}", f"client{number}"
    series = TimeSeries.open(store)
    count = 0
    newest = 0
    with (place / f"acknowledged{number}").open("a", buffering=1) as file:
        while not (place / "stop").exists():
            name = (mine, "shared")[count % 2]
            value = {"writer": writer, "number": count}
            edited = -1
            if count % 5 == 4:
                edited = newest if name == mine else 0
                event = series.edit(name, edited, value)
            else:
                event = series.append(name, value)
                newest = event.sequence if name == mine else newest
            file.write(f"{name} {event.sequence} {count} {edited}\n")
            count += 1
            time.sleep(0.005)


def query(store: str, place: Path, number: int) -> None:
    """Appends batch after batch to ten series of its own and to the shared one."""
    from pyspark.sql import functions as F
    from spark_session import local_spark

    spark = local_spark("tseries soak", master="local[1]")
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", 1)
    frame = source.option("rowsPerBatch", ROWS_PER_BATCH).load()
    own = F.concat(F.lit(f"query{number} "), (F.col("value") % 11).cast("string"))
    rows = frame.select(
        F.when(F.col("value") % 11 == 0, "shared").otherwise(own).alias("series"),
        F.lit(f"query{number}").alias("writer"),
        F.col("value").alias("number"),
    )
    writer = rows.writeStream.format("tseries").trigger(processingTime="1 second")
    writer = writer.option("checkpointLocation", str(place / f"checkpoint{number}"))
    running = writer.start(store)
    while not (place / "stop").exists():
        if running.awaitTermination(0.2):
            raise RuntimeError("the query ended by itself")
    running.stop()
    spark.stop()


if __name__ == "__main__":
    {"client": client, "query": query}[sys.argv[1]](
        sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    )
