"""A column's unit is kept from its creation on: in the Delta table, in answers, and in copies."""

import shutil

import deltalake
import pyarrow as pa
import pytest

from pyspark_tseries import IncompatibleValue, PermissionDenied, TimeSeries
from pyspark_tseries.maintain.backup import backup
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.model.columns import find_unit
from pyspark_tseries.storage.location import parse_location

SCHEMA = pa.schema(
    [
        pa.field("celsius", pa.float64(), metadata={"unit": "°C", "source": "somewhere"}),
        pa.field("n", pa.int64()),
    ]
)


@pytest.fixture
def store(tmp_path):
    made = TimeSeries.create(tmp_path / "s", SCHEMA, retained_range="unlimited", author="me")
    made.append("a", {"celsius": 1.0, "n": 1})
    return made


def units(store, table=None):
    table = store.range_query().select_from().table if table is None else table
    return {field.name: unit for field in table.schema if (unit := find_unit(field))}


def logged(path):
    fields = deltalake.DeltaTable(str(path)).schema().fields
    return {field.name: field.metadata for field in fields if field.metadata}


def test_a_unit_is_in_the_delta_table_and_in_every_answer(store, tmp_path):
    assert logged(tmp_path / "s") == {"celsius": {"unit": "°C"}}
    assert units(store) == {"celsius": "°C"}
    assert units(store, store.latest().table) == {"celsius": "°C"}
    assert units(store, store.range_query().for_edits().select_from("a").table) == {"celsius": "°C"}
    assert find_unit(store.range_query().stream_from("a").schema.field("celsius")) == "°C"
    hours = store.range_query().every("1 hour")
    named = {"mean": ("celsius", "mean"), "top": ("celsius", "max"), "n": ("celsius", "count")}
    assert units(store, hours.aggregate(**named).select_from().table) == {"mean": "°C", "top": "°C"}


def test_a_unit_stays_after_compaction_rebuild_and_in_copies(store, tmp_path):
    store.append("b", {"celsius": 2.0, "n": 1})
    store.compact()
    rebuild(parse_location(tmp_path / "s"), principal="me")
    assert units(TimeSeries.open(tmp_path / "s")) == {"celsius": "°C"}
    shutil.copytree(tmp_path / "s", tmp_path / "copied")
    backup(str(tmp_path / "s"), str(tmp_path / "kept"))
    for name in ("copied", "kept"):
        assert units(TimeSeries.open(tmp_path / name)) == {"celsius": "°C"}


def test_units_are_set_changed_and_removed(store, tmp_path):
    store.set_units({"n": "pcs", "celsius": "K"})
    assert units(store) == {"celsius": "K", "n": "pcs"}
    store.set_units({"n": ""})
    assert units(store) == units(TimeSeries.open(tmp_path / "s")) == {"celsius": "K"}
    assert store.verify() == []


def test_a_column_is_added_with_its_unit(store):
    store.add_columns(pa.schema([pa.field("bar", pa.float64(), metadata={"unit": "hPa"})]))
    assert units(store) == {"celsius": "°C", "bar": "hPa"}


def test_rows_with_and_without_units_are_appended(store):
    store.append_many(pa.table({"series": ["a"], "celsius": [1.0]}))
    fields = [("series", pa.string()), pa.field("celsius", pa.float64(), metadata={"unit": "K"})]
    store.append_many(pa.table([["a"], [1.0]], schema=pa.schema(fields)))
    assert units(store) == {"celsius": "°C"}
    assert store.verify() == []


def test_open_or_create_takes_a_store_with_other_units(store, tmp_path):
    again = TimeSeries.open_or_create(tmp_path / "s", {"celsius": pa.float64()})
    assert units(again) == {"celsius": "°C"}


def test_a_follower_and_a_view_of_the_past_go_on_after_a_change(store):
    with store.follow("a", start=None, timeout=1) as follower:
        store.set_units({"n": "pcs"})
        store.append("a", {"celsius": 3.0, "n": 1})
        assert [event.value["celsius"] for event in follower] == [1.0, 3.0]
    assert units(store, store.as_of(0).range_query().select_from().table) is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": "m"}, "no value column 'x' to have a unit; accepted: celsius, n"),
        ({"series": "m"}, "no value column 'series'"),
        ({"n": 3}, "column 'n' cannot have the unit 3; accepted: a text"),
        ({"n": "\ud800"}, "column 'n' cannot have the unit"),
    ],
)
def test_a_wrong_unit_is_refused_and_nothing_is_set(store, given, message):
    with pytest.raises(IncompatibleValue, match=message):
        store.set_units({"celsius": "K", **given})
    assert units(store) == {"celsius": "°C"}


def test_units_are_given_by_a_mapping_with_names_in_any_case(store):
    with pytest.raises(IncompatibleValue, match="5 does not name value columns and their units"):
        store.set_units(5)
    store.set_units({"CELSIUS": "K"})
    assert units(store) == {"celsius": "K"}


def test_a_unit_that_is_no_text_is_refused_at_creation(tmp_path):
    schema = pa.schema([pa.field("v", pa.float64(), metadata={b"unit": b"\xff"})])
    with pytest.raises(IncompatibleValue, match=r"'v' has the unit .* which is not UTF-8"):
        TimeSeries.create(tmp_path / "t", schema)
    assert not (tmp_path / "t").exists()


def test_units_are_an_owners(tmp_path):
    policy = {"me": ["own"], "you": ["read", "update"]}
    TimeSeries.create(tmp_path / "p", {"v": pa.float64()}, author="me", policy=policy)
    with pytest.raises(PermissionDenied, match="set units"):
        TimeSeries.open(tmp_path / "p", "you").set_units({"v": "m"})
