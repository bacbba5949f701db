"""What the client stores is what it was given, or it is refused by name (semantics 15.6)."""

import datetime as dt
import enum
import math
import time
import uuid
from decimal import Decimal
from types import MappingProxyType
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_tseries import IncompatibleValue, InvalidQuery, NoSuchEvent, OutOfOrder, TimeSeries
from pyspark_tseries.client.convert import convert_column, convert_value

pytestmark = pytest.mark.pandas

UTC_US = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")
NOON = dt.datetime(2024, 2, 29, 12)  # noqa: DTZ001
MIDNIGHT = dt.datetime(2024, 2, 29)  # noqa: DTZ001
AWARE = NOON.replace(tzinfo=dt.UTC)
BERLIN = NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=1)))
POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
NANO = pd.Timestamp("2024-02-29T12:00:00.000000001Z")


class Level(enum.IntEnum):
    HIGH = 3


def new_store(path, kind):
    return TimeSeries.create(path / "s", {"value": kind}, "unlimited", auto_compact=False)


def back(store):
    return store.range_query().select_from("a").to_arrow()["value"].to_pylist()


REFUSED = [
    (1.9, pa.int64(), "no bigint is equal to it"),
    (math.nan, pa.int64(), "no bigint is equal to it"),
    (1e19, pa.int64(), "no bigint is equal to it"),
    (True, pa.int64(), "of type bool"),
    ("1", pa.int64(), "of type str"),
    (128, pa.int8(), "out of the range of tinyint"),
    (2**63, pa.int64(), "out of the range of bigint"),
    (2**70, pa.int64(), "out of the range of bigint"),
    (np.uint64(2**63), pa.int64(), "out of the range of bigint"),
    (1, pa.bool_(), "of type int"),
    (1e300, pa.float32(), "no float is equal to it"),
    (0.1, pa.float32(), "numpy.float32"),
    (2**53 + 2, pa.float64(), "not every whole number is a double"),
    (2**70, pa.float64(), "not every whole number is a double"),
    (2**24 + 1, pa.float32(), "not every whole number is a float"),
    (True, pa.float64(), "of type bool"),
    (Decimal("0.1"), pa.float64(), "of type Decimal"),
    (Decimal("1.234"), pa.decimal128(5, 2), "more digits than 5, or more than 2"),
    (Decimal("12345.6"), pa.decimal128(5, 2), "more digits"),
    (Decimal("NaN"), pa.decimal128(5, 2), "of type Decimal"),
    (0.5, pa.decimal128(5, 2), "of type float"),
    (1000, pa.decimal128(5, 2), "more digits"),
    (Decimal(82401564235628967044267), pa.decimal128(38, 18), "more digits than 38, or more than"),
    (2**62, pa.decimal128(38, 30), "more digits"),
    (5, pa.string(), "of type int"),
    (b"a", pa.string(), "of type bytes"),
    ("a\ud800", pa.string(), "not a valid text"),
    ("a", pa.binary(), "of type str"),
    (uuid.UUID(int=7), pa.string(), "of type UUID"),
    (AWARE, NTZ, "has a time zone"),
    (NOON, UTC_US, "has no time zone"),
    (np.datetime64("2024-02-29T12:00:00"), UTC_US, "has no time zone"),
    (NANO, UTC_US, "finer than a microsecond"),
    (np.datetime64("2024-02-29T12:00:00.000000001"), NTZ, "finer than a microsecond"),
    (np.datetime64(2**61, "10s"), NTZ, "out of the range"),
    ("2024-02-29", UTC_US, "of type str"),
    (0, UTC_US, "of type int"),
    (dt.date(2024, 2, 29), NTZ, "of type date"),
    (NOON, pa.date32(), "a time of day"),
    (AWARE, pa.date32(), "of type datetime"),
    ("2024-02-29", pa.date32(), "of type str"),
    (dt.time(1), pa.int64(), "of type time"),
    (dt.timedelta(1), pa.int64(), "of type timedelta"),
    (1j, pa.float64(), "of type complex"),
    (object, pa.string(), "of type type"),
    ("abc", pa.list_(pa.string()), "a list is needed"),
    ({"a": 1}, pa.list_(pa.string()), "a list is needed"),
    (5, pa.list_(pa.int64()), "a list is needed"),
    ([1, 1.9], pa.list_(pa.int64()), "'element'"),
    ([[1], "ab"], pa.list_(pa.list_(pa.int64())), "'element'"),
    ([True], pa.list_(pa.int64()), "'element'"),
    ({"x": 1, "Z": "a"}, POINT, "it has a field 'Z', which it lacks; its fields are 'x', 'y'"),
    ({"x": 1, "X": 2}, POINT, "has once"),
    ({"x": 1.5}, POINT, "in 'x'"),
    ({"x": 1, 5: 2}, POINT, "it has a field 5"),
    ([1, "a"], POINT, "a mapping of its fields is needed"),
    ((1, "a"), POINT, "a mapping of its fields is needed"),
    ([{"x": 1, "z": 1}], pa.list_(POINT), "in 'element'"),
    ({"k": 1.5}, pa.map_(pa.string(), pa.int64()), "in 'value'"),
    ({1: 1}, pa.map_(pa.string(), pa.int64()), "in 'key'"),
    ({None: 1}, pa.map_(pa.string(), pa.int64()), "a key is null"),
    ([1], pa.map_(pa.string(), pa.int64()), "a mapping, or a list of pairs"),
    ({"k": {"x": 1, "z": 2}}, pa.map_(pa.string(), POINT), "in 'value'"),
    ({"x": NOON}, pa.struct([("x", UTC_US)]), "in 'x'"),
]


@pytest.mark.parametrize(("value", "kind", "said"), REFUSED, ids=str)
def test_value_that_would_change_is_refused_by_column_value_and_type(tmp_path, value, kind, said):
    store = new_store(tmp_path, kind)
    store.append("a", None)
    ways = [
        lambda: store.append("a", value),
        lambda: store.append("a", {"value": value}),
        lambda: store.edit("a", 0, value),
        lambda: store.append_many([{"series": "a"}, {"series": "a", "value": value}]),
        lambda: store.append_many(
            [{"series": "a", "edit_of": 0}, {"series": "a", "edit_of": 0, "value": value}]
        ),
    ]
    for number, way in enumerate(ways):
        with pytest.raises(IncompatibleValue) as error:
            way()
        text = str(error.value)
        assert said in text
        assert f"{'row 1: ' if number > 2 else ''}column 'value'" in text
        assert "accepted: " in text
        assert "next step: " in text
        assert "Nothing is stored" in text
        assert "Column" not in text  # No name of an option of Spark.
    assert back(store) == [None]


TAKEN = [
    (2.0, pa.int64(), 2),
    (np.float64(-7), pa.int8(), -7),
    (np.int32(5), pa.int64(), 5),
    (np.uint8(255), pa.int16(), 255),
    (Level.HIGH, pa.int64(), 3),
    (Decimal("2.00"), pa.int64(), 2),
    (7, pa.float64(), 7.0),
    (2**53, pa.float64(), 2.0**53),
    (np.float32(0.1), pa.float32(), float(np.float32(0.1))),
    (np.float32(0.1), pa.float64(), float(np.float32(0.1))),
    (0.5, pa.float32(), 0.5),
    (math.inf, pa.float32(), math.inf),
    (7, pa.decimal128(5, 2), Decimal("7.00")),
    (Decimal("1.5"), pa.decimal128(5, 2), Decimal("1.50")),
    (np.str_("a"), pa.string(), "a"),
    (bytearray(b"a"), pa.binary(), b"a"),
    (memoryview(b"a"), pa.binary(), b"a"),
    (uuid.UUID(int=7), pa.binary(), uuid.UUID(int=7).bytes),
    (np.bool_(True), pa.bool_(), True),
    (BERLIN, UTC_US, BERLIN.astimezone(dt.UTC)),
    (pd.Timestamp(BERLIN), UTC_US, BERLIN.astimezone(dt.UTC)),
    (NOON.replace(tzinfo=dt.timezone(dt.timedelta(seconds=7))), UTC_US, None),
    (pd.Timestamp(NOON), NTZ, NOON),
    (np.datetime64("2024-02-29T12"), NTZ, NOON),
    (np.datetime64("2024-02-29T12", "10ms"), NTZ, NOON),
    (np.datetime64("2024-02-29T12", "30s"), NTZ, NOON),
    (MIDNIGHT, pa.date32(), MIDNIGHT.date()),
    (np.datetime64("2024-02-29"), pa.date32(), MIDNIGHT.date()),
    (pd.NA, pa.int64(), None),
    (pd.NaT, NTZ, None),
    (np.datetime64("NaT"), NTZ, None),
    ((1, 2.0), pa.list_(pa.int64()), [1, 2]),
    (np.array([1.0, 2.0]), pa.list_(pa.int64()), [1, 2]),
    (np.array([[1], [2]]), pa.list_(pa.list_(pa.int8())), [[1], [2]]),
    ({"x": 1.0}, POINT, {"x": 1, "y": None}),
    ({"Y": "a"}, POINT, {"x": None, "y": "a"}),
    (MappingProxyType({"x": 1}), POINT, {"x": 1, "y": None}),
    ({"k": 1.0}, pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    ([("k", 1), ("k", 2)], pa.map_(pa.string(), pa.int64()), [("k", 1), ("k", 2)]),
    ([{"x": 1}, None], pa.list_(POINT), [{"x": 1, "y": None}, None]),
]


@pytest.mark.parametrize(("value", "kind", "expected"), TAKEN, ids=range(len(TAKEN)))
def test_value_that_loses_nothing_is_taken_and_reads_back_equal(tmp_path, value, kind, expected):
    store = new_store(tmp_path, kind)
    store.append("a", value)
    store.edit("a", 0, {"value": value})
    store.append_many([{"series": "a"}, {"series": "a", "value": value}])
    if expected is None and isinstance(value, dt.datetime) and value is not pd.NaT:
        expected = value.astimezone(dt.UTC)
    assert back(store) == [expected, None, expected]


def test_names_of_columns_and_fields_match_in_any_case(tmp_path):
    store = TimeSeries.create(tmp_path / "s", {"Celsius": pa.float64(), "p": POINT})
    store.append("a", {"celsius": 1.0, "P": {"X": 1}})
    assert store.range_query().select_from("a").events[0].value == {
        "Celsius": 1.0,
        "p": {"x": 1, "y": None},
    }
    with pytest.raises(IncompatibleValue, match="each once"):
        store.append("a", {"celsius": 1.0, "CELSIUS": 2.0})


# -- columns -------------------------------------------------------------------------------------

INTS = pa.array([1, None, 3])
COLUMNS_TAKEN = {
    "pandas nullable": (pd.Series([1, None, 3], dtype="Int16"), pa.int64(), [1, None, 3]),
    "pandas floats of integers": (pd.Series([1, None, 3.0]), pa.int64(), [1, None, 3]),
    "pandas arrow": (pd.Series([1, None], dtype="uint8[pyarrow]"), pa.int16(), [1, None]),
    "pandas unsigned": (pd.Series([1, 2**63 - 1], dtype="uint64"), pa.int64(), [1, 2**63 - 1]),
    "pandas objects": (pd.Series([1, None, 2.0], dtype=object), pa.int64(), [1, None, 2]),
    "pandas categories": (pd.Series(["x", None], dtype="category"), pa.string(), ["x", None]),
    "pandas text": (pd.Series(["x", None], dtype="string"), pa.string(), ["x", None]),
    "pandas sparse": (pd.Series(pd.arrays.SparseArray([0.0, 5.0])), pa.float64(), [0.0, 5.0]),
    "pandas dicts": (
        pd.Series([{"k": 1.0}, {}, None]),
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], [], None],
    ),
    **{
        f"pandas {unit}": (
            pd.Series([NOON, None]).astype(f"datetime64[{unit}]"),
            NTZ,
            [NOON, None],
        )
        for unit in ("s", "ms", "us", "ns")
    },
    "pandas zone": (pd.Series([BERLIN]), UTC_US, [BERLIN]),
    "pandas days": (pd.Series([MIDNIGHT, None]), pa.date32(), [MIDNIGHT.date(), None]),
    "polars text": (pl.Series(["x", None]), pa.string(), ["x", None]),
    "polars categories": (pl.Series(["x"], dtype=pl.Categorical), pa.string(), ["x"]),
    "polars enum": (pl.Series(["x"], dtype=pl.Enum(["x", "y"])), pa.string(), ["x"]),
    "polars lists": (pl.Series([["x"], None, []]), pa.list_(pa.string()), [["x"], None, []]),
    "polars arrays": (
        pl.Series([[1, 2]], dtype=pl.Array(pl.UInt8, 2)),
        pa.list_(pa.int16()),
        [[1, 2]],
    ),
    "polars structs": (
        pl.Series([{"y": "a"}, None]),
        POINT,
        [{"x": None, "y": "a"}, None],
    ),
    "polars entries": (
        pl.Series([[{"key": "k", "value": 1}], None]),
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], None],
    ),
    "polars decimals": (
        pl.Series([Decimal("1.5")], dtype=pl.Decimal(5, 1)),
        pa.decimal128(9, 2),
        [Decimal("1.50")],
    ),
    "polars nothing": (pl.Series([None, None]), pa.list_(POINT), [None, None]),
    "polars ns": (
        pl.Series([NOON], dtype=pl.Datetime("ns", "Europe/Berlin")),
        UTC_US,
        None,
    ),
    "arrow nothing": (pa.nulls(2), pa.map_(pa.int8(), POINT), [None, None]),
    "arrow dictionary in lists": (
        pa.array([["x"], None], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        pa.list_(pa.string()),
        [["x"], None],
    ),
    "arrow runs": (
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), INTS.slice(0, 2)),
        pa.int32(),
        [1, 1, None],
    ),
    "arrow views": (
        pa.array([[b"x"], None], pa.list_view(pa.binary_view())),
        pa.list_(pa.binary()),
        [[b"x"], None],
    ),
    "arrow fixed": (pa.array([b"xy"], pa.binary(2)), pa.binary(), [b"xy"]),
    "arrow small decimals": (
        pa.array([Decimal("1.5")], pa.decimal32(3, 1)),
        pa.decimal128(5, 2),
        [Decimal("1.50")],
    ),
    "arrow integers": (INTS, pa.decimal128(5, 2), [Decimal(1), None, Decimal(3)]),
    "arrow halves": (pa.array([0.5], pa.float16()), pa.float32(), [0.5]),
    "arrow no value": (pa.array([None], pa.float64()), pa.float32(), [None]),
    "arrow no element": (pa.array([[]], pa.list_(pa.float64())), pa.list_(pa.float32()), [[]]),
    "arrow uuid": (pa.array([uuid.UUID(int=7)]), pa.binary(), [uuid.UUID(int=7).bytes]),
    "arrow sliced maps": (
        pa.array([[("z", 9)], [("k", 1)], None], pa.map_(pa.large_string(), pa.int8())).slice(1),
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], None],
    ),
    "arrow sliced structs": (
        pa.array([{"x": 9}, {"x": 1}, None], pa.struct([("x", pa.int8())])).slice(1),
        POINT,
        [{"x": 1, "y": None}, None],
    ),
}


def frame_of(column):
    """Rows with `column`, in a frame or a table of the library that it is of."""
    names = ["a"] * len(column)
    if isinstance(column, pd.Series):
        return pd.DataFrame({"series": names, "value": column})
    if isinstance(column, pl.Series):
        return pl.DataFrame({"series": names, "value": column})
    return pa.table({"series": names, "value": column})


@pytest.mark.parametrize("name", COLUMNS_TAKEN)
def test_column_of_another_library_is_taken_where_it_loses_nothing(tmp_path, name):
    column, kind, expected = COLUMNS_TAKEN[name]
    store = new_store(tmp_path, kind)
    frame = frame_of(column)
    made = store.append_many(frame)
    assert made["sequence"].to_pylist() == list(range(len(column)))
    if expected is None:
        expected = [moment.astimezone(dt.UTC) for moment in column.to_list()]
    assert back(store) == expected
    assert store.verify() == []


COLUMNS_REFUSED = {
    "fractions": (pa.array([1.0, None, 1.9]), pa.int64(), r"row 2: .*cannot hold 1\.9: no bigint"),
    "overflow": (pa.array([1e300]), pa.float32(), r"row 0: .*cannot hold 1e\+300"),
    "unsigned": (pa.array([1, 2**64 - 1], pa.uint64()), pa.int64(), "row 1: .*of bigint"),
    "bool": (pa.array([True]), pa.int64(), "is of type boolean, in the store it is of type bigint"),
    "int": (pa.array([1]), pa.bool_(), "is of type bigint, in the store it is of type boolean"),
    "large": (pa.array([0, 2**53 + 1]), pa.float64(), r"row 1: .*beyond 2\^53"),
    "nanoseconds": (pa.array([0, 1], pa.timestamp("ns")), NTZ, "row 1: .*finer than a micro"),
    "seconds": (pa.array([2**62], pa.timestamp("s")), NTZ, "row 0: .*range of times"),
    "naive": (pa.array([NOON]), UTC_US, r"no time zone.*tz_localize\('UTC'\)"),
    "aware": (pa.array([AWARE]), NTZ, r"a time zone.*tz_localize\(None\)"),
    "time of day": (pa.array([MIDNIGHT, NOON]), pa.date32(), "row 1: .*a time of day"),
    "text": (pa.array(["abc"]), pa.list_(pa.string()), "is of type string, in the store it is"),
    "digits": (pa.array([Decimal("1.25")]), pa.decimal128(5, 1), "row 0: .*more digits"),
    # Arrow's own cast makes other numbers of these: the product with 10^18 has too many bits.
    "digits of 128 bits": (
        pa.array([Decimal(1), Decimal(82401564235628967044267)], pa.decimal128(38, 0)),
        pa.decimal128(38, 18),
        "row 1: .*more digits",
    ),
    "digits of 256 bits": (
        pa.array([Decimal(10) ** 70], pa.decimal256(76, 0)),
        pa.decimal128(38, 18),
        "row 0: .*more digits",
    ),
    "digits of integers": (pa.array([10**12]), pa.decimal128(38, 30), "row 0: .*more digits"),
    "duration": (pa.array([1], pa.duration("us")), pa.int64(), "is of type duration"),
    "misspelt": (pa.array([{"x": 1, "why": "a"}]), POINT, "it has a field 'why', which it lacks"),
    "nested": (
        pa.array(
            [{"x": [[("k", 1)]]}, {"x": [[("k", 300)]]}],
            pa.struct([("x", pa.list_(pa.map_(pa.string(), pa.int64())))]),
        ),
        pa.struct([("x", pa.list_(pa.map_(pa.string(), pa.int8())))]),
        r"row 1: column 'value', in 'x\.element\.value', cannot hold 300",
    ),
    "nested value": (
        pa.array([[1], None, [2, 300]]),
        pa.list_(pa.int8()),
        "row 2: column 'value', in 'element', cannot hold 300",
    ),
    "behind chunks": (pa.chunked_array([[1.0], [2.0, 2.5]]), pa.int8(), "row 2: "),
    "pandas objects": (pd.Series([1, "2"], dtype=object), pa.int64(), "row 1: .*cannot hold '2'"),
    "pandas nanoseconds": (pd.Series([NANO]), UTC_US, "row 0: .*finer than a microsecond"),
    "pandas complex": (pd.Series([1j]), pa.float64(), "of type complex128"),
    "pandas periods": (pd.Series(pd.period_range("2024", periods=1)), NTZ, "is of type"),
    "polars durations": (pl.Series([dt.timedelta(1)]), pa.int64(), "is of type duration"),
    "polars objects": (pl.Series([object()], dtype=pl.Object), pa.string(), "is of type"),
}


@pytest.mark.parametrize("name", COLUMNS_REFUSED)
def test_column_that_would_change_is_refused_by_row_value_and_type(tmp_path, name):
    column, kind, said = COLUMNS_REFUSED[name]
    store = new_store(tmp_path, kind)
    with pytest.raises(IncompatibleValue, match=rf"(?s)column 'value'.*{said}|{said}") as error:
        store.append_many(frame_of(column))
    assert "Column" not in str(error.value)
    assert back(store) == []


def test_next_step_of_a_refused_time_or_float_taken_helps(tmp_path):
    frame = pd.DataFrame({"series": ["a"], "timestamp": [NOON], "value": [0.1]})
    store = new_store(tmp_path, pa.float32())
    with pytest.raises(IncompatibleValue, match=r"'timestamp'.*dt\.tz_localize\('UTC'\)"):
        store.append_many(frame)
    frame["timestamp"] = frame["timestamp"].dt.tz_localize("UTC")
    with pytest.raises(IncompatibleValue, match=r"'value'.*numpy\.float32"):
        store.append_many(frame)
    frame["value"] = np.float32(frame["value"])
    store.append_many(frame)
    store.append("a", np.float32(0.1))
    assert back(store) == [float(np.float32(0.1))] * 2


def test_rows_come_as_any_table_frame_or_list(tmp_path):
    store = new_store(tmp_path, pa.int64())
    table = pa.table({"series": ["a", "a"], "value": [1, 2]})
    frame = table.to_pandas()
    for rows in (
        table,
        table.to_batches()[0],
        table.to_reader(),
        frame,
        frame.set_index("series"),
        frame[frame.value > 0],
        pl.DataFrame(frame),
        table.to_pylist(),
        tuple(table.to_pylist()),
    ):
        assert len(store.append_many(rows)) == 2
    assert back(store) == [1, 2] * 9
    assert store.append_many([]).num_rows == 0


def test_pandas_index_with_a_name_is_a_column_and_one_of_times_without_is_refused(tmp_path):
    store = new_store(tmp_path, pa.int64())
    index = pd.DatetimeIndex([AWARE], name="timestamp")
    frame = pd.DataFrame({"series": ["a"], "value": [1]}, index=index)
    store.append_many(frame)
    assert store.range_query().select_from("a").events[0].timestamp == AWARE
    with pytest.raises(IncompatibleValue, match=r"index .*has no name.*rename_axis"):
        store.append_many(frame.rename_axis(None))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"series": "a"}, "dict has no rows"),
        (5, "int has no rows"),
        # pandas 2 gives no stream of Arrow of a series.
        (pd.Series([1.0]), "Series has no rows.*; next step: (make a frame of|convert) it"),
        (pl.Series([1.0]), "Series has no rows: "),
        ("text", "str has no rows"),
        (pl.LazyFrame({"series": ["a"]}), r"LazyFrame has no rows.*collect\(\)"),
        ([{"series": "a"}, 5], "5 is not a row"),
        ([{"value": 1}], "no column 'series'"),
        ([{"series": "a", "valu": 1}], "column 'valu' is not in the store.*'value' bigint"),
        ([{"series": "a", "sequence": 1}], "'sequence' is one that the store fills itself"),
        ([{"series": "a", "cti": AWARE}], "only a streaming query"),
        ([{"series": "a", "Series": "b"}], "one name in a store"),
        ([{"series": "a", 5: 1}], "5 is not the name of a column"),
        ([{"series": 5}], "column 'series' cannot hold 5"),
        ([{"series": "a", "author": 5}], "column 'author' cannot hold 5"),
        ([{"series": "a", "edit_of": 0.5}], r"column 'edit_of' cannot hold 0\.5"),
        ([{"series": "a", "timestamp": NOON}], "column 'timestamp' cannot hold .*no time zone"),
        ([{"series": "a", "timestamp": "now"}], "column 'timestamp' cannot hold 'now'"),
        ([{"series": "a", "timestamp": NANO}], "column 'timestamp' cannot hold .*finer"),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_the_words_of_the_client(tmp_path, rows, said):
    store = new_store(tmp_path, pa.int64())
    with pytest.raises(IncompatibleValue, match=said) as error:
        store.append_many(rows)
    assert not any(word in str(error.value) for word in ("seriesColumn", "DataFrame", "option"))
    assert "next step: " in str(error.value)
    assert back(store) == []


def test_arguments_of_the_client_are_named_as_it_has_them(tmp_path):
    store = new_store(tmp_path, pa.float64())
    store.append("a", 1.0, AWARE)
    early = AWARE - dt.timedelta(1)
    with pytest.raises(OutOfOrder, match=r"append_many .*out_of_order of 'drop'") as error:
        store.append("a", 1.0, early)
    assert "outOfOrder" not in str(error.value)
    late = [{"series": "a", "timestamp": early, "value": 2.0}]
    with pytest.raises(OutOfOrder, match="set out_of_order to 'drop' or 'adjust'") as error:
        store.append_many(late)
    assert "outOfOrder" not in str(error.value)
    assert store.append_many(late, out_of_order="drop")["sequence"].to_pylist() == [None]
    with pytest.raises(NoSuchEvent, match=r"original_sequence of an event") as error:
        store.edit("a", 5, 1.0)
    assert "missingOriginal" not in str(error.value)
    edit = [{"series": "a", "edit_of": 5, "value": 2.0}]
    with pytest.raises(NoSuchEvent, match="set missing_original to 'drop'"):
        store.append_many(edit)
    assert store.append_many(edit, missing_original="drop")["sequence"].to_pylist() == [None]
    for name in ("out_of_order", "missing_original", "clock"):
        with pytest.raises(ValueError, match=rf"cannot read {name} 'some' \(.*\); accepted: '.*'"):
            store.append_many(edit, **{name: "some"})
    with pytest.raises(IncompatibleValue, match=r"timestamp .* has no time zone"):
        store.append("a", 1.0, NOON)
    with pytest.raises(IncompatibleValue, match=r"timestamp .*finer than a microsecond"):
        store.append("a", 1.0, NANO)
    for name in ("timestamp", "author", "edit_of", "sequence", "series", "CTI"):
        with pytest.raises(
            IncompatibleValue, match=f"value column '{name}' is named like"
        ) as error:
            TimeSeries.create(tmp_path / "t", {name: UTC_US})
        assert "Column" not in str(error.value)


def test_times_of_queries_are_taken_as_they_are_or_refused(tmp_path):
    store = new_store(tmp_path, pa.float64())
    store.append("a", 1.0, AWARE)
    asked = store.range_query()
    assert len(asked.from_(pd.Timestamp(AWARE)).select_from("a")) == 1
    for step in (
        lambda: asked.from_(NANO),
        lambda: asked.to(NANO),
        lambda: asked.from_last(pd.Timedelta(1500, "ns")),
        lambda: asked.next(pd.Timedelta(1500, "ns")),
        lambda: asked.from_(NOON),
        lambda: asked.from_(1.5),
        lambda: asked.from_(True),
        lambda: asked.from_("2024"),
        lambda: asked.limit(1.5),
    ):
        with pytest.raises(InvalidQuery, match="accepted: "):
            step()


def test_new_store_takes_the_schema_of_a_frame_of_polars(tmp_path):
    frame = pl.DataFrame({"text": ["a"], "list": [[b"b"]], "array": [[1]]}).cast(
        {"array": pl.Array(pl.Int8, 1)}
    )
    schema = pa.table(frame).schema
    assert schema.field("text").type == pa.string_view()
    store = TimeSeries.create(tmp_path / "s", schema)
    store.append_many(frame.with_columns(series=pl.lit("a")))
    assert store.range_query().select_from("a").events[0].value == {
        "text": "a",
        "list": [b"b"],
        "array": [1],
    }


# -- accepted values read back equal -------------------------------------------------------------

LEAVES = [
    pa.int8(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(9, 2),
    pa.decimal128(38, 18),
    pa.string(),
    pa.binary(),
    pa.bool_(),
    pa.date32(),
    UTC_US,
    NTZ,
]
KINDS = st.sampled_from(LEAVES) | st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        inner.map(lambda kind: pa.struct([("x", kind), ("y", pa.int8())])),
    ),
    max_leaves=3,
)
ZONES = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=2))])
NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0.1, 0.5, 1.0, -0.0, 1e300, math.nan, math.inf, 2.0**53, 2.0**63]),
    st.sampled_from([np.float32(0.1), np.int8(-1), np.uint64(2**64 - 1), np.float16(0.5)]),
    st.decimals(-(10**9), 10**9, allow_nan=False, places=2),
    st.integers(-(10**38), 10**38).map(Decimal),
    st.sampled_from(
        [Decimal("1E+3"), Decimal("5E+30"), Decimal("0.001"), Decimal("NaN"), Level.HIGH, pd.NA]
    ),
)
TIMES = st.one_of(
    st.datetimes(timezones=ZONES),
    st.dates(),
    st.sampled_from([MIDNIGHT, AWARE, NANO, pd.NaT, dt.time(1)]),
)
TEXTS = st.sampled_from(["", "a", "ü", "1", "a\ud800", b"", b"a", bytearray(b"b")])
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TIMES, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=2),
    ),
    max_leaves=4,
)


def near(kind):
    """Values; many of them fit `kind`."""
    if pa.types.is_list(kind):
        return st.lists(near(kind.value_type), max_size=2)
    if pa.types.is_map(kind):
        return st.dictionaries(st.sampled_from("kl"), near(kind.item_type), max_size=2)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({}, optional={f.name: near(f.type) for f in kind})
    if pa.types.is_temporal(kind):
        return TIMES
    is_text = kind in (pa.string(), pa.binary())
    return TEXTS if is_text else st.booleans() if kind == pa.bool_() else NUMBERS


def equal(found, wanted, kind):
    """True if what was read is what was given, as a reader would say."""
    if wanted is None or wanted is pd.NaT or wanted is pd.NA:
        return found is None
    if pa.types.is_list(kind):
        pairs = zip(found, wanted, strict=True)
        return all(equal(one, other, kind.value_type) for one, other in pairs)
    if pa.types.is_map(kind):
        return [key for key, _ in found] == list(wanted) and all(
            equal(item, wanted[key], kind.item_type) for key, item in found
        )
    if pa.types.is_struct(kind):
        return set(wanted) <= set(found) and all(
            equal(found[field.name], wanted.get(field.name), field.type) for field in kind
        )
    if isinstance(found, bool) or isinstance(wanted, bool | np.bool_):
        return type(found) is bool and isinstance(wanted, bool | np.bool_) and found == wanted
    if isinstance(found, float) and math.isnan(found):
        return math.isnan(wanted)
    if isinstance(found, dt.date) and not isinstance(found, dt.datetime):
        day = dt.datetime.combine(found, dt.time())  # A date is also its midnight, without a zone.
        return wanted == (day if isinstance(wanted, dt.datetime) else found)
    return found == (int(wanted) if isinstance(wanted, np.integer) else wanted)


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), KINDS)
def test_whatever_the_client_accepts_reads_back_equal(data, kind):
    some = near(kind) if data.draw(st.integers(0, 3)) else VALUES
    values = data.draw(st.lists(some, min_size=1, max_size=3))
    field = pa.field("value", kind)
    for value in values:
        try:
            (found,) = convert_value(value, field).to_pylist()
        except IncompatibleValue:
            continue
        assert equal(found, value, kind), (found, value)
    try:
        found = convert_column(values, field)
    except IncompatibleValue:
        return
    for one, other in zip(found.to_pylist(), values, strict=True):
        assert equal(one, other, kind), (one, other)
    # The same of a column of Arrow, from each type to every other.
    for other in data.draw(st.permutations(LEAVES))[:4]:
        for wrap in (lambda kind: kind, pa.list_):
            if wrap is pa.list_ and not pa.types.is_list(kind):
                continue
            try:
                again = convert_column(found, pa.field("value", wrap(other)))
            except IncompatibleValue:
                continue
            for one, another in zip(again.to_pylist(), found.to_pylist(), strict=True):
                assert equal(one, another, wrap(other)), (one, another)


@pytest.mark.parametrize("zone_of_process", ["UTC", "America/New_York"])
def test_the_hour_that_comes_twice_in_autumn_stays_two_hours(
    tmp_path, monkeypatch, zone_of_process
):
    monkeypatch.setenv("TZ", zone_of_process)
    time.tzset()
    try:
        first = dt.datetime(2024, 11, 3, 1, 30, tzinfo=ZoneInfo("America/New_York"))
        second = first.replace(fold=1)
        moments = [first.astimezone(dt.UTC), second.astimezone(dt.UTC)]
        store = new_store(tmp_path, UTC_US)
        for moment in (first, second):
            store.append("rows", moment, moment)
        frame = {"series": ["pandas"] * 2, "timestamp": [first, second], "value": [first, second]}
        store.append_many(pd.DataFrame(frame))
        zoned = pl.Series(moments).dt.convert_time_zone("America/New_York")
        frame = {"series": ["polars"] * 2, "timestamp": zoned, "value": zoned}
        store.append_many(pl.DataFrame(frame))
        for name in ("rows", "pandas", "polars"):
            events = store.range_query().select_from(name).events
            assert [event.timestamp for event in events] == moments
            assert [event.value for event in events] == moments
            assert len(store.range_query().from_(second).select_from(name).events) == 1
    finally:
        monkeypatch.undo()
        time.tzset()
