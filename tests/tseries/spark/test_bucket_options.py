"""Spark's options for buckets and newest values give the client's rows (semantics 31.2, 32)."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from tseries.deliveries import BEGIN, Deliveries, programs
from tseries.limits import set_limits

from pyspark_timestream.errors import OptionError
from pyspark_tseries import DefaultSource, InvalidQuery, TimeSeries
from pyspark_tseries.model.downsampling import parse_aggregate_list
from pyspark_tseries.options import ReadOptions, parse_options

pytestmark = pytest.mark.spark

AGGREGATE = "celsius mean, high = celsius max, p9 = n 0.9, total=n sum, count"
NAMED = {
    "celsius": "mean",
    "high": ("celsius", "max"),
    "p9": ("n", 0.9),
    "total": ("n", "sum"),
    "count": ("*", "count"),
}


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """So that a task has a series or two, in several pieces."""
    set_limits(monkeypatch, group_rows=3, piece_rows=2, partition_bytes=500)


def read(path, **options):
    """The rows of a read, in the order of tasks, and the number of tasks."""
    source = DefaultSource({"path": path, **options})
    schema = source.schema()
    reader = source.reader(schema)
    tasks = reader.partitions()
    batches = [batch for task in tasks for batch in reader.read(task)]
    return pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC")), len(tasks)


@settings(max_examples=20)
@given(
    programs(erases=False),
    st.sampled_from([None, "Europe/Berlin"]),
    st.sampled_from([None, "null", "previous", "linear", "7"]),
    st.sampled_from(["1 hour", "1 day"]),
)
def test_a_read_of_buckets_gives_the_rows_of_the_client(tmp_path_factory, steps, zone, fill, width):
    path = str(tmp_path_factory.mktemp("buckets") / "s")
    store = Deliveries(path).run(steps)
    options = {"timezone": zone, "fill": fill, "from": BEGIN.isoformat()}
    given = {name: text for name, text in options.items() if text is not None}
    found, _ = read(path, every=width, aggregate=AGGREGATE, **given)
    query = store.series.range_query().from_(BEGIN).every(width, zone).aggregate(**NAMED)
    if fill is not None:
        query = query.fill(7 if fill == "7" else fill)
    assert found.equals(query.select_from().to_arrow().cast(found.schema))


@settings(max_examples=15)
@given(programs(erases=True), st.integers(1, 3))
def test_latest_gives_the_newest_originals_of_each_series(tmp_path_factory, steps, count):
    path = str(tmp_path_factory.mktemp("latest") / "s")
    store = Deliveries(path).run(steps)
    # An edited event has the sequence of its edit.
    found, _ = read(path, latest=str(count), columns="series, sequence, original_sequence, celsius")
    visible = store.visible().select(["series", "sequence", "celsius"]).to_pylist()
    rows = [tuple(row.values()) for row in visible]
    names = sorted({name for name, *_ in rows})
    wanted = [row for name in names for row in [r for r in rows if r[0] == name][-count:]]
    newest = [
        (name, sequence if original is None else original, celsius)
        for name, sequence, original, celsius in map(dict.values, found.to_pylist())
    ]
    assert newest == wanted


def test_tasks_take_whole_series(tmp_path):
    series = TimeSeries.create(tmp_path / "s", {"n": pa.int64()}, "unlimited")
    for name in "abcd":
        series.append_many([{"series": name, "n": n} for n in range(100)])
    found, tasks = read(str(tmp_path / "s"), every="1 day", aggregate="events = count")
    assert tasks > 1
    assert sum(found["events"].to_pylist()) == 400


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("n mean", [("n", "n", "mean")]),
        (" top=n MAX ,  q = n .5 ", [("top", "n", "max"), ("q", "n", 0.5)]),
        ("count", [("count", "*", "count")]),
        ("n count, all = count", [("n", "n", "count"), ("all", "*", "count")]),
        ("* count", [("count", "*", "count")]),
    ],
)
def test_aggregates_are_read_from_a_text(text, parsed):
    assert list(parse_aggregate_list(text)) == parsed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": "1 hour"}, "option 'every': '1 hour' has no effect alone"),
        ({"aggregate": "n mean"}, "option 'aggregate': 'n mean' has no effect alone"),
        ({"fill": "null"}, "option 'fill': 'null' has no effect alone"),
        ({"timezone": "UTC"}, "option 'timezone': 'UTC' has no effect alone"),
        ({"every": "often", "aggregate": "n mean"}, "option 'every': cannot read 'often'"),
        (
            {"every": "7 minutes", "timezone": "Europe/Berlin", "aggregate": "n mean"},
            "option 'every': a width of '7 minutes' neither divides a day",
        ),
        (
            {"every": "1 hour", "timezone": "Berlin", "aggregate": "n mean"},
            "option 'timezone': cannot read 'Berlin'",
        ),
        ({"every": "1 hour", "aggregate": ""}, "option 'aggregate': cannot read ''"),
        ({"every": "1 hour", "aggregate": "mean"}, "'mean' is not 'COLUMN FUNCTION'"),
        ({"every": "1 hour", "aggregate": "n average"}, "'average' is none of mean, min"),
        ({"every": "1 hour", "aggregate": "n 1.5"}, "'1.5' is none of mean"),
        ({"every": "1 hour", "aggregate": "n mean, n max"}, "two aggregates have the name 'n'"),
        (
            {"every": "1 hour", "aggregate": "n mean", "columns": "n"},
            "option 'every': '1 hour' conflicts with option 'columns'",
        ),
        (
            {"every": "1 hour", "aggregate": "n mean", "query": "allEdits"},
            "option 'every': '1 hour' is asked of a query of allEdits",
        ),
        ({"latest": "0"}, "option 'latest': cannot read '0'"),
        ({"latest": "2", "limit": "3"}, "option 'latest': '2' conflicts with option 'limit'"),
        ({"latest": "2", "query": "latestEdits"}, "'2' is asked of a query of latestEdits"),
    ],
)
def test_options_that_do_not_fit_are_named(options, said):
    with pytest.raises(OptionError) as refused:
        parse_options(ReadOptions, {"path": "/s", **options})
    for part in (said, "accepted: ", "next step: "):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregate": "fahrenheit mean"}, "the store has no value column 'fahrenheit'"),
        ({"aggregate": "room mean"}, "column 'room' .string. has no mean"),
        ({"aggregate": "room last", "fill": "linear"}, "column 'room' .string. has no values on"),
        ({"aggregate": "celsius mean", "fill": "cold"}, "cannot hold the fill 'cold'"),
    ],
)
def test_aggregates_that_the_store_lacks_are_named(tmp_path, options, said):
    path = str(tmp_path / "s")
    Deliveries(path)
    with pytest.raises(InvalidQuery, match=said):
        DefaultSource({"path": path, "every": "1 hour", **options}).schema()
