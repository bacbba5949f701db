"""The columns that a DataFrame must have, and refusals before anything is written."""

import pyarrow as pa
import pytest

from pyspark_timestream.core.declarations import read_options
from pyspark_timestream.errors import OptionError
from pyspark_tseries.errors import IncompatibleValue, UpdateFailed
from pyspark_tseries.model.columns import INSTANT, RESERVED_NAMES, query_schema, table_schema
from pyspark_tseries.options import WriteOptions
from pyspark_tseries.write.rows import plan_rows, stage_rows

STORED = [pa.field("value", pa.float64()), pa.field("note", pa.string())]


def schema(**columns):
    return pa.schema({"series": pa.string(), **columns})


def plan(incoming, stored=STORED, **options):
    return plan_rows(incoming, WriteOptions(path="/s", **options), stored)


def test_the_other_columns_are_the_value_columns_of_a_new_store():
    made = plan(
        schema(timestamp=INSTANT, author=pa.string(), edit_of=pa.int64(), v=pa.int8()), None
    )
    assert made.values == (("v", pa.field("v", pa.int8())),)
    assert (made.series, made.timestamp, made.author, made.edit_of) == (
        "series",
        "timestamp",
        "author",
        "edit_of",
    )


def test_names_match_in_any_case_as_in_spark():
    made = plan(pa.schema({"Series": pa.string(), "VALUE": pa.float64(), "note": pa.string()}))
    assert made.series == "Series"
    assert made.values[0] == ("VALUE", STORED[0])


def test_a_store_column_that_does_not_come_in_is_null():
    made = plan(schema(value=pa.float64()))
    batch = pa.record_batch({"series": ["a"], "value": [1.0]})
    assert stage_rows(batch, made)["note"].to_pylist() == [None]


def test_value_of_another_type_is_refused_with_both_types():
    with pytest.raises(IncompatibleValue, match=r"'value'.*bigint.*double.*cast"):
        plan(schema(value=pa.int64()))


def test_a_new_value_column_is_refused_naming_it_and_what_the_store_has():
    with pytest.raises(IncompatibleValue, match=r"'extra'.*boolean.*'value' double"):
        plan(schema(extra=pa.bool_()))


@pytest.mark.parametrize("name", [*RESERVED_NAMES, "Kind"])
def test_a_value_column_named_like_a_metadata_column_is_refused(name):
    given = {"series_column": "s", "timestamp_column": "t", "author_column": "a"}
    incoming = pa.schema({"s": pa.string(), "t": INSTANT, "a": pa.string(), name: pa.int64()})
    with pytest.raises(IncompatibleValue, match=f"'{name}'.*metadata column"):
        plan(incoming, None, **given)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"seriesColumn": "nope"}, "series_column"),
        ({"timestampColumn": "nope"}, "timestamp_column"),
        ({"authorColumn": "nope"}, "author_column"),
        ({"editOfColumn": "nope"}, "edit_of_column"),
    ],
)
def test_an_option_that_names_no_column_is_refused_naming_the_columns(given, field):
    read = read_options(WriteOptions, {"path": "/s", **given})
    (option,) = given
    with pytest.raises(OptionError, match=f"'{option}'.*'nope'.*'series'.*next step"):
        plan(schema(), None, **{field: getattr(read, field)})


def test_a_dataframe_without_series_needs_an_option():
    with pytest.raises(
        OptionError, match=r"seriesColumn.*'series'.*set seriesColumn or seriesName"
    ):
        plan(pa.schema({"value": pa.float64()}))
    made = plan(pa.schema({"value": pa.float64()}), series_name="only")
    batch = pa.record_batch({"value": [1.0, 2.0]})
    assert stage_rows(batch, made)["series"].to_pylist() == ["only", "only"]


@pytest.mark.parametrize(
    ("column", "kind", "accepted"),
    [
        ("series", pa.int64(), "string"),
        ("timestamp", pa.timestamp("us"), "timestamp"),
        ("author", pa.int32(), "string"),
        ("edit_of", pa.int32(), "bigint"),
    ],
)
def test_a_metadata_column_of_a_wrong_type_is_refused(column, kind, accepted):
    with pytest.raises(IncompatibleValue, match=f"'{column}'.*accepted: {accepted};"):
        plan(pa.schema({"series": pa.string(), column: kind}), None)


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("ns"), pa.null()])
def test_a_type_that_delta_has_not_is_refused_by_name(kind):
    with pytest.raises(IncompatibleValue, match=r"'v' is of type .*cast the column"):
        plan(schema(v=kind), None)


def test_names_that_differ_only_in_case_are_refused():
    with pytest.raises(IncompatibleValue, match="'v' and 'V'"):
        plan(schema(v=pa.int8(), V=pa.int8()), None)


def test_a_row_without_a_series_is_refused():
    batch = pa.record_batch({"series": pa.array(["a", None]), "value": [1.0, 2.0]})
    with pytest.raises(UpdateFailed, match=r"'series' is null in 1 of 2.*filter these rows"):
        stage_rows(batch, plan(schema(value=pa.float64())))


def test_a_series_that_is_null_in_every_row_is_taken_for_a_wrong_name():
    batch = pa.record_batch({"series": pa.nulls(2, pa.string()), "value": [1.0, 2.0]})
    with pytest.raises(UpdateFailed, match=r"in 2 of 2 rows.*correct the name of the field"):
        stage_rows(batch, plan(schema(value=pa.float64())))


def test_an_edit_with_a_timestamp_is_refused_naming_its_series():
    made = plan(schema(value=pa.float64(), timestamp=INSTANT, edit_of=pa.int64()))
    targets, stamps = pa.array([None, 3], pa.int64()), pa.array([1, 1]).cast(INSTANT)
    rows = {"series": ["a", "b"], "value": [1.0, 2.0], "edit_of": targets, "timestamp": stamps}
    with pytest.raises(UpdateFailed, match=r"'b': the edit of 3 has a timestamp.*'timestamp'"):
        stage_rows(pa.record_batch(rows), made)
    rows["timestamp"] = pa.array([1, None]).cast(INSTANT)
    staged = stage_rows(pa.record_batch(rows), made)
    assert staged["original_sequence"].to_pylist() == [None, 3]


def test_every_storable_type_is_stored_nullable_all_the_way_down():
    nested = pa.struct([pa.field("x", pa.list_(pa.field("item", pa.int64(), nullable=False)))])
    kinds = {"d": pa.decimal128(20, 3), "n": nested, "m": pa.map_(pa.string(), pa.large_string())}
    stored = {field.name: field.type for _, field in plan(schema(**kinds), None).values}
    assert stored["d"] == pa.decimal128(20, 3)
    assert stored["n"].field("x").type.value_field.nullable
    assert stored["m"] == pa.map_(pa.string(), pa.string())


def test_the_layout_is_fixed():
    assert table_schema(STORED).names == [
        *query_schema(STORED).names,
        "commit",
        "commit_time",
        "kind",
    ]
    assert query_schema(STORED).names == [
        *("series", "sequence", "timestamp", "author", "value", "note"),
        *("original_sequence", "original_timestamp", "original_author"),
    ]
