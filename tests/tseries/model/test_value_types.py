"""A value of every type comes back as it was, by every way, or is refused before anything is there.

Spark's types take the way that its tasks and its driver take, but for the JVM.
"""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from pyspark_tseries import IncompatibleValue, TimeSeries
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.read.delivery import InitialEvents, read_delivery
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.rows import stage_rows
from pyspark_tseries.write.task_output import SpillLimits, write_task_output

pytestmark = pytest.mark.spark

LEAP = dt.datetime(2024, 2, 29, 23, 59, 59, 999_999)  # noqa: DTZ001 it is of no zone
EARLY = dt.datetime(1, 1, 1)  # noqa: DTZ001
AWARE = LEAP.replace(tzinfo=dt.UTC)
POINT = T.StructType().add("x", T.IntegerType(), False).add("Y.z", T.StringType())

STORED = {
    "boolean": (T.BooleanType(), [True, False, True]),
    "tinyint": (T.ByteType(), [-128, 0, 127]),
    "smallint": (T.ShortType(), [-(2**15), 0, 2**15 - 1]),
    "int": (T.IntegerType(), [-(2**31), 0, 2**31 - 1]),
    "bigint": (T.LongType(), [-(2**63), 0, 2**63 - 1]),
    "float": (T.FloatType(), [float("nan"), -0.0, 0.5]),
    "double": (T.DoubleType(), [float("inf"), float("nan"), 5e-324]),
    "decimal": (T.DecimalType(38, 18), [Decimal("-0.000000000000000001"), Decimal(10), Decimal(0)]),
    "small decimal": (T.DecimalType(4, 0), [Decimal(-9999), Decimal(0), Decimal(1)]),
    "string": (T.StringType(), ["", "ü\0\n", "a" * 1000]),
    "binary": (T.BinaryType(), [b"", b"\0\xff", b"x" * 1000]),
    "date": (T.DateType(), [EARLY.date(), dt.date(9999, 12, 31), LEAP.date()]),
    "timestamp": (T.TimestampType(), [AWARE, AWARE.replace(year=1972), AWARE.replace(year=9996)]),
    "timestamp_ntz": (T.TimestampNTZType(), [LEAP, EARLY, LEAP.replace(year=9996)]),
    "array": (T.ArrayType(T.LongType(), False), [[], [1], [2, 3]]),
    "array of arrays": (T.ArrayType(T.ArrayType(T.StringType())), [[], [[], None], [["a", None]]]),
    "array of ntz": (T.ArrayType(T.TimestampNTZType()), [[LEAP], [None], []]),
    "map": (T.MapType(T.StringType(), T.DoubleType(), False), [[], [("k", 1.5)], [("", 0.0)]]),
    "map of structs": (
        T.MapType(T.IntegerType(), POINT),
        [[(1, {"x": 1, "Y.z": None})], [(2, None)], []],
    ),
    "map with keys of structs": (
        T.MapType(POINT, T.ArrayType(T.BinaryType())),
        [[({"x": 1, "Y.z": "a"}, [b"1", None])], [], [({"x": 2, "Y.z": "b"}, None)]],
    ),
    "struct": (POINT, [{"x": 1, "Y.z": "a"}, {"x": 2, "Y.z": None}, {"x": 3, "Y.z": ""}]),
    "struct of all": (
        T.StructType()
        .add("s", POINT)
        .add("a", T.ArrayType(POINT))
        .add("m", T.MapType(T.StringType(), T.DecimalType(9, 2)))
        .add("t", T.TimestampNTZType()),
        [
            {"s": {"x": 1, "Y.z": "a"}, "a": [None], "m": [("k", Decimal("1.25"))], "t": LEAP},
            {"s": None, "a": None, "m": None, "t": None},
            {"s": {"x": 1, "Y.z": None}, "a": [], "m": [], "t": EARLY},
        ],
    ),
}


def columns(kind: T.DataType) -> T.StructType:
    return T.StructType().add("series", "string").add("edit_of", "long").add("value", kind)


def write(path, kind, values, edit_of=None):
    """A batch write of the series `a`, as Spark's driver and tasks do it."""
    schema = columns(kind)
    options = {"path": str(path), "retainedRange": "unlimited"}
    target = DefaultSource(options).writer(schema, False).target
    size = len(values)
    rows = {"series": ["a"] * size, "edit_of": [edit_of] * size, "value": values}
    arrow = to_arrow_schema(schema, timezone="UTC")
    batch = pa.record_batch(
        [pa.array(rows[field.name], field.type) for field in arrow], names=arrow.names
    )
    staged = pa.Table.from_batches([stage_rows(batch, target.plan)])
    Store.open(str(path)).append(Batch(staged, "fail", "me"))


def read(path, **options):
    """A batch read: the values, as Spark's tasks send them."""
    source = DefaultSource({"path": str(path), **options})
    reader = source.reader(source.schema())
    parts = [part for task in reader.partitions() for part in reader.read(task)]
    return [value for part in parts for value in part["value"].to_pylist()]


def subscribed(path):
    """The values of all events, in the order of a subscription."""
    follower = Subscription(str(path), InitialEvents(RetainedRange(), {}))
    start, found = follower.find_start(), []
    while (end := follower.find_end(start, None)) != start:
        for task in follower.plan_tasks(start, end):
            found += [value for part in read_delivery(task) for value in part["value"].to_pylist()]
        start = end
    return found


def same(found, expected):
    # As texts: a NaN is equal to itself there, and 0 is not -0.
    assert [repr(value) for value in found] == [repr(value) for value in expected]


@pytest.mark.parametrize("name", STORED)
def test_values_of_every_type_come_back_by_every_way(tmp_path, name):
    path, (kind, given) = tmp_path / "s", STORED[name]
    first, second, third = pa.array(given, to_arrow_type(kind, timezone="UTC")).to_pylist()
    write(path, kind, [given[0], given[1], None])
    write(path, kind, [given[2]], edit_of=1)
    current, events = [first, third, None], [first, second, None, third]
    back = DefaultSource({"path": str(path)}).schema()["value"].dataType
    assert back.simpleString() == kind.simpleString()
    same(read(path), current)
    same(read(path, query="allEdits"), events)
    same(read(path, series="a", **{"from": "last 2"}), current[1:])
    client = TimeSeries.open(str(path), auto_compact=False)
    client.append("a", given[1])
    client.edit("a", 2, given[0])
    client.append("a", None)
    table = client.range_query().select_from("a").to_arrow()
    current, events = [first, third, first, second, None], [*events, second, first, None]
    same(table["value"].to_pylist(), current)
    client.append_many(table.select(["series", "value"]))
    current, events = current * 2, events + current
    for _ in range(2):
        asked = client.range_query()
        result = asked.select_from("a")
        same([event.value for event in result.events], current)
        same([event.value for event in result.merge(result).events], current)
        assert "<table>" in result._repr_html_()
        same([event.value for event in asked.for_edits().select_from("a").events], events)
        same(read(path), current)
        same(subscribed(path), events)
        plain = DeltaTable(path).to_pyarrow_table().sort_by("sequence")
        same(plain["value"].to_pylist(), events)
        assert verify(str(path)) == []
        assert compact(str(path)).files_after == 2  # One of originals, one of edits.


@pytest.mark.parametrize("name", STORED)
def test_values_of_every_type_come_back_from_tasks_that_write_events(tmp_path, name):
    path, (kind, given) = tmp_path / "s", STORED[name]
    values = pa.array([*given, None], to_arrow_type(kind, timezone="UTC"))
    schema = columns(kind).add("timestamp", "timestamp")
    options = {"path": str(path), "retainedRange": "unlimited"}
    for commit in range(2):  # The first is published, the second merged: its shares have all of a.
        target = DefaultSource(options).writer(schema, False).target
        us = pa.array(np.arange(4) + 4 * commit).cast(pa.timestamp("us", "UTC"))
        none = pa.nulls(4, pa.int64())
        batch = pa.record_batch([pa.array(["a"] * 4), none, values, us], names=schema.names)
        rows, staged = stage_rows(batch, target.plan), target.plan.staged
        outputs = [
            write_task_output(
                target.location,
                [part],
                staged,
                target.optimistic,
                "me",
                unique_name=f"task{commit}{n}",
                limits=SpillLimits(0, 0, 1),
            )
            for n, part in enumerate([rows] if commit == 0 else [rows.slice(0, 3), rows.slice(3)])
        ]
        assert all(output.file is not None for output in outputs)
        store = Store.open(str(path))
        store.append(Batch(staged.empty_table(), "fail", "me", tasks=tuple(outputs)))
        same(read(path), values.to_pylist() * (commit + 1))
    assert verify(str(path)) == []


class PointType(T.UserDefinedType):
    """A user's type, as machine learning has them."""

    @classmethod
    def sqlType(cls):
        return T.ArrayType(T.DoubleType())

    @classmethod
    def module(cls):
        return __name__


NTZ = T.TimestampNTZType()
REFUSED = {
    "interval day to second": T.DayTimeIntervalType(),
    "interval year to month": T.YearMonthIntervalType(),
    "interval": T.CalendarIntervalType(),
    "variant": T.VariantType(),
    "void": T.NullType(),
    "time": T.TimeType(),
    "geometry": T.GeometryType(4326),
    "geography": T.GeographyType(4326),
    "'pointtype'": PointType(),
    "string collate UNICODE_CI": T.StringType("UNICODE_CI"),
    "char(3)": T.CharType(3),
    "varchar(3)": T.VarcharType(3),
    "struct<>": T.StructType(),
    "timestamp_ntz, which a Delta table cannot hold inside a map": T.MapType(NTZ, NTZ),
}


def around(kind):
    return [
        kind,
        T.ArrayType(kind),
        T.MapType(T.StringType(), kind),
        T.StructType().add("x", T.ArrayType(T.StructType().add("y", kind))),
    ]


@pytest.mark.parametrize("said", REFUSED)
def test_type_that_delta_lacks_is_refused_before_creation(tmp_path, said):
    for number, kind in enumerate(around(REFUSED[said])):
        with pytest.raises(IncompatibleValue) as error:
            write(tmp_path / f"{number}", kind, [])
        assert f"column 'value' is of type {said}" in str(error.value)
        assert "accepted: " in str(error.value)
        assert "next step: cast the column" in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.decimal128(5, -2), "of type decimal128(5, -2)"),
        (pa.decimal256(50, 2), "of type decimal256(50, 2)"),
        (pa.uint8(), "of type uint8"),
        (pa.timestamp("ns"), "of type timestamp[ns]"),
        (pa.map_(pa.timestamp("us"), pa.int8()), "of type timestamp_ntz"),
        (pa.map_(pa.int8(), pa.list_(pa.timestamp("us"))), "of type timestamp_ntz"),
        (pa.struct([("x", pa.int8()), ("X", pa.int8())]), "has two fields 'x'"),
        (pa.struct([("", pa.int8())]), "has the name ''"),
        (pa.list_(pa.struct([("x y", pa.int8())])), "has the name 'x y'"),
    ],
)
def test_what_only_arrow_has_is_refused_by_the_client_too(tmp_path, kind, said):
    with pytest.raises(IncompatibleValue) as error:
        TimeSeries.create(str(tmp_path / "s"), {"value": kind})
    assert f"column 'value' {said.replace('of type', 'is of type')}" in str(error.value)
    assert "next step: " in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", *(f"a{sign}b" for sign in " ,;{}()\n\t=")])
def test_a_name_that_delta_forbids_is_refused(tmp_path, name):
    with pytest.raises(IncompatibleValue, match="which a Delta table cannot have; accepted: "):
        TimeSeries.create(str(tmp_path / "s"), {"v": pa.int8(), name: pa.int8()})
    assert not list(tmp_path.iterdir())


def test_any_other_name_is_stored(tmp_path):
    names = ["a.b", "a`b", 'a"b', "ü", "a/b", "a\\b", "$", "a[0]", "-", "%20", "add", "_"]
    client = TimeSeries.create(str(tmp_path / "s"), dict.fromkeys(names, pa.int64()))
    value = {name: number for number, name in enumerate(names)}
    client.append("a", value)
    client.edit("a", 0, value)
    client.compact()
    (event,) = client.range_query().select_from("a").events
    assert event.value == value


@pytest.mark.parametrize("kind", [NTZ, T.ArrayType(NTZ), POINT, T.DecimalType(9, 2)])
def test_a_column_that_is_added_later_may_be_of_any_such_type(tmp_path, kind):
    path = str(tmp_path / "s")
    TimeSeries.create(path, {"n": pa.int8()}, auto_compact=False).append("a", 1)
    for name, wanted, said in [
        ("value", T.MapType(NTZ, NTZ), "inside a map"),
        ("a b", kind, "has the name 'a b'"),
    ]:
        schema = T.StructType().add("series", "string").add(name, wanted)
        with pytest.raises(IncompatibleValue, match=said):
            DefaultSource({"path": path, "mergeSchema": "true"}).writer(schema, False)
    assert DeltaTable(path).version() == 1
    schema = T.StructType().add("series", "string").add("value", kind)
    DefaultSource({"path": path, "mergeSchema": "true"}).writer(schema, False)
    back = DefaultSource({"path": path}).schema()["value"].dataType
    assert back.simpleString() == kind.simpleString()
    TimeSeries.open(path, auto_compact=False).append("a", {"n": 2})
    assert read(path) == [None, None]


# -- any nesting ---------------------------------------------------------------------------------

FLAT = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(),
    pa.decimal128(7, 2): st.decimals(-9999, 9999, places=2),
}


def nest(inner):
    def grown(pair):
        kind, values = pair
        some = st.none() | values
        return st.sampled_from(
            [
                (pa.list_(kind), st.lists(some, max_size=3)),
                (pa.map_(pa.int64(), kind), st.dictionaries(FLAT[pa.int64()], some, max_size=2)),
                (
                    pa.struct([("x", kind), ("y", pa.int64())]),
                    st.fixed_dictionaries({"x": some, "y": st.none() | FLAT[pa.int64()]}),
                ),
            ]
        )

    return inner.flatmap(grown)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_values_of_any_nesting_come_back(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("nested") / "s"
    kind, values = data.draw(st.recursive(st.sampled_from(list(FLAT.items())), nest, max_leaves=4))
    given_ = data.draw(st.lists(st.none() | values, min_size=1, max_size=4))
    rows = pa.array(given_, kind)
    client = TimeSeries.create(str(path), {"value": kind}, "unlimited", auto_compact=False)
    client.append_many(pa.table({"series": ["a"] * len(rows), "value": rows}))
    for value in given_:
        client.append("a", value)
    for _ in range(2):
        found = client.range_query().select_from("a").to_arrow()["value"]
        same(found.to_pylist(), rows.to_pylist() * 2)
        client.compact()
