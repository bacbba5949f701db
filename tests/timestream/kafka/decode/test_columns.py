"""The columns of a query, and the schemas that are refused."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    GeometryType,
    IntegerType,
    StructField,
    StructType,
    VariantType,
)
from timestream.builders import HEADERS, INSTANT, options, projection

from pyspark_timestream.core.policies import POLICIES, name_any
from pyspark_timestream.errors import OptionError, SchemaRefused
from pyspark_timestream.kafka.decode.columns import build_default_schema, project
from pyspark_timestream.kafka.decode.records import METADATA

SPARKS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": INSTANT,
    "timestampType": pa.int32(),
}
INTERVAL = {"eventShape": "interval", "endTime": "e"}
EDGE = {"eventShape": "edge", "endTime": "e", "edge": "k"}
CTIS = {"ctiFrequency": "1"}
ORIGINALS = ["original_start_time", "original_end_time"]
LASTING = ("interval", "edge")


def name_filling(column, *shapes):
    """The policies that fill the column in events of one of the shapes."""
    filled = {name: map(policy.columns, shapes) for name, policy in POLICIES.items()}
    names = [name for name, columns in filled.items() if column in set().union(*columns)]
    return f"'violationPolicy' = {name_any(names)}"


@pytest.mark.parametrize(
    ("raw", "more"),
    [
        ({}, ["start_time"]),
        ({"includeHeaders": "true"}, ["headers", "start_time"]),
        (INTERVAL, ["start_time", "end_time"]),
        (EDGE, ["start_time", "end_time", "edge"]),
        (CTIS, ["start_time", "cti"]),
        ({"finalCti": "true"}, ["start_time", "cti"]),
        ({"advanceTime": "IncreasingStartTime"}, ["start_time", "cti"]),
        ({**CTIS, "violationPolicy": "fail"}, ["start_time", "cti"]),
        ({**CTIS, "violationPolicy": "flag"}, ["start_time", "violation", "cti"]),
        ({"ctiHeader": "c"}, ["start_time", "cti"]),
        (
            {"ctiHeader": "c", "timeWindow": "true"},
            ["start_time", "time_lower", "time_upper", "cti"],
        ),
        ({**CTIS, "violationPolicy": "adjust"}, ["start_time", "cti"]),
        (
            {**CTIS, **EDGE, "violationPolicy": "adjust"},
            ["start_time", "end_time", "edge", "violation", *ORIGINALS, "cti"],
        ),
    ],
)
def test_default_schema_has_sparks_columns_and_filled_metadata(raw, more):
    schema = build_default_schema(options(**raw))
    assert schema.names == [*SPARKS, *more]
    assert schema.types[:7] == list(SPARKS.values())
    instants = {"start_time", "end_time", "original_start_time", "original_end_time", "cti"} | {
        "time_lower",
        "time_upper",
    }
    for name in more:
        expected = HEADERS if name == "headers" else pa.string()
        assert schema.field(name).type == (INSTANT if name in instants else expected)
    assert project(options(**raw), schema).metadata == {name: name for name in schema.names}


def test_a_prefix_renames_all_metadata():
    given = options(metadataPrefix="k_", **CTIS)
    names = build_default_schema(given).names
    assert names == [f"k_{name}" for name in [*SPARKS, "start_time", "cti"]]
    assert projection(given).requests("cti")


def test_with_a_prefix_a_plain_name_is_a_json_field():
    given = options(metadataPrefix="k_", valueFormat="json")
    found = projection(given, ("key", pa.int64()), ("k_key", pa.binary()))
    assert found.metadata == {"k_key": "key"}
    assert found.fields == pa.schema([("key", pa.int64())])


def test_with_json_every_other_column_is_a_field():
    given = options(valueFormat="json", **CTIS)
    columns = [("price", pa.float64()), ("offset", pa.int64()), ("at", INSTANT)]
    found = projection(given, *columns, ("_corrupt_record", pa.string()))
    assert found.fields.names == ["price", "at"]
    assert found.metadata == {"offset": "offset"}
    assert found.dead_letter == {"_corrupt_record": "payload"}
    assert not found.requests("cti")


def test_the_column_of_malformed_values_can_have_another_name():
    given = options(valueFormat="json", columnNameOfCorruptRecord="broken")
    assert projection(given, ("broken", pa.string())).dead_letter == {"broken": "payload"}
    assert not projection(given, ("_corrupt_record", pa.string())).dead_letter


@pytest.mark.parametrize(
    ("raw", "column", "said"),
    [
        ({}, ("price", pa.int64()), "'valueFormat' is 'binary'"),
        ({"valueFormat": "json"}, ("offset", pa.string()), "carries the metadata 'offset'"),
        ({"valueFormat": "json"}, ("raw", pa.duration("us")), "which is not read from JSON"),
        ({}, ("cti", INSTANT), "'advanceTime', 'ctiHeader', 'ctiImport' or 'finalCti'"),
        ({"ctiHeader": "c"}, ("time_lower", INSTANT), "'timeWindow' = 'true'"),
        ({}, ("end_time", INSTANT), "'eventShape' = 'interval' or 'edge'"),
        (INTERVAL, ("edge", pa.string()), "'eventShape' = 'edge'"),
        (
            {**CTIS, **EDGE},
            ("violation", pa.string()),
            f"{name_filling('violation', 'edge')}; next",
        ),
        (CTIS, ("violation", pa.string()), f"option {name_filling('violation', 'point')}; next"),
        (
            CTIS,
            ("original_end_time", INSTANT),
            f"{name_filling(ORIGINALS[1], *LASTING)} and 'eventShape' = {name_any(LASTING)}; next",
        ),
        ({"metadataPrefix": "k_"}, ("k_cti", INSTANT), "would be empty"),
    ],
)
def test_empty_column_is_refused_naming_the_option_to_set(raw, column, said):
    with pytest.raises(SchemaRefused) as refused:
        projection(options(**raw), column)
    message = str(refused.value)
    assert message.startswith(f"column '{column[0]}' ")
    assert said in message
    assert "; accepted: " in message
    assert "; next step: " in message


def test_column_that_is_not_nullable_is_refused():
    schema = pa.schema([pa.field("offset", pa.int64(), nullable=False)])
    with pytest.raises(SchemaRefused, match="is not nullable"):
        project(options(), schema)


def test_headers_may_be_named_without_include_headers():
    assert projection(options(), ("headers", METADATA["headers"])).requests("headers")


def test_json_values_without_a_schema_are_refused():
    with pytest.raises(
        SchemaRefused, match=r"'valueFormat' is 'json'.*next step: add it, or leave"
    ):
        build_default_schema(options(valueFormat="json"))


# -- paths -----------------------------------------------------------------------------------------

JSON = {"valueFormat": "json"}
LONG, TEXT = pa.int64(), pa.string()


def test_a_metadata_name_in_backquotes_is_a_field():
    found = projection(options(**JSON), ("`offset`", LONG), ("offset", LONG))
    assert found.fields.names == ["`offset`"]
    assert found.metadata == {"offset": "offset"}


@pytest.mark.parametrize(
    ("name", "said", "way_out"),
    [
        ("a..b", "a name in it is empty", "call the column `a..b`"),
        ("a`b", "a backquote is inside a name", "call the column `a``b`"),
        ("`a", "a backquote is not closed", "call the column ```a`"),
    ],
)
def test_a_column_whose_name_is_no_path_is_refused_with_the_name_to_use(name, said, way_out):
    with pytest.raises(SchemaRefused) as refused:
        projection(options(**JSON), (name, LONG))
    message = str(refused.value)
    assert message.startswith(f"column '{name}' is not the path of a field: {said}")
    assert message.endswith(way_out)
    assert projection(options(**JSON), (way_out.rpartition(" ")[2], LONG)).fields


OBJECT = pa.struct([("items", pa.list_(pa.struct([("id", LONG)]))), ("tags", pa.map_(TEXT, TEXT))])


@pytest.mark.parametrize(
    ("column", "path", "through"),
    [
        (("p", pa.list_(LONG)), "p.id", "'p'"),
        (("p", pa.map_(TEXT, LONG)), "p.id", "'p'"),
        (("p", LONG), "p.id", "'p'"),
        (("p", OBJECT), "p.items.id", "'p.items'"),
        (("p", OBJECT), "p.tags.a", "'p.tags'"),
        (("`a.b`.p", OBJECT), "`a.b`.p.tags.a", "'`a.b`.p.tags'"),
    ],
)
def test_a_path_through_what_is_declared_and_is_no_object_is_refused(column, path, through):
    with pytest.raises(SchemaRefused) as refused:
        projection(options(**JSON), column, (path, LONG))
    assert f"column '{path}' goes through {through}, which column '{column[0]}' declares as " in (
        str(refused.value)
    )
    for name in ("startTime", "endTime", "edge"):
        given = options(**JSON, **{**EDGE, name: f"field:{path}"})
        with pytest.raises(OptionError) as option_refused:
            projection(given, column)
        assert str(option_refused.value).startswith(
            f"option '{name}': 'field:{path}' goes through {through}, which column"
        )


@pytest.mark.parametrize("held", [OBJECT, TEXT])
def test_a_path_into_a_struct_or_a_text_is_read_beside_it(held):
    given = options(**JSON, startTime="p.at")
    assert projection(given, ("p", held), ("p.id", LONG)).fields.names == ["p", "p.id"]


@pytest.mark.parametrize("name", ["timestamp", "TimeStamp"])
@pytest.mark.parametrize("option", ["startTime", "endTime"])
def test_a_time_that_means_the_record_s_and_a_field_of_the_schema_is_refused(name, option):
    given = {"metadataPrefix": "k_", **JSON, **INTERVAL, option: name}
    with pytest.raises(OptionError) as refused:
        projection(options(**given), (name, LONG))
    message = str(refused.value)
    assert message.startswith(f"option '{option}': '{name}' is ambiguous: ")
    assert f"'record:timestamp' for the record's, 'field:{name}' for the field" in message
    for way_out in ("record:timestamp", f"field:{name}"):
        assert projection(options(**{**given, option: way_out}), (name, LONG)).fields.names


def test_the_default_and_a_field_in_another_case_are_not_ambiguous():
    prefixed = {"metadataPrefix": "k_", **JSON}
    assert projection(options(**prefixed), ("timestamp", LONG), ("``", LONG)).fields
    assert projection(options(**prefixed, startTime="timestamp"), ("Timestamp", LONG)).fields
    assert projection(options(**JSON, startTime="timestamp"), ("timestamp", INSTANT)).metadata


@pytest.mark.parametrize("name", ["_corrupt_record", "_corrupt_record_schema_id"])
def test_a_dead_letter_column_of_another_type_is_refused_with_its_own(name):
    given = options(valueFormat="avro", valueSchema='"long"')
    with pytest.raises(SchemaRefused, match=f"column '{name}' is string, but carries the"):
        projection(given, (name, pa.string()))


INT = pa.int32()


@pytest.mark.parametrize(
    ("columns", "twice"),
    [
        ([("a", INT), ("a", INT)], "a"),
        ([("a", INT), ("b", INT), ("a", pa.string())], "a"),
        ([("offset", pa.int64()), ("offset", pa.int64())], "offset"),
        ([("x", pa.struct([("y", INT), ("z", INT), ("y", INT)]))], "y"),
        ([("x", pa.map_(pa.string(), pa.list_(pa.struct([("y", INT), ("y", INT)]))))], "y"),
    ],
)
def test_a_name_that_is_there_twice_is_refused(columns, twice):
    """One of the two would be lost, or Spark would read the columns of the rows in disorder."""
    with pytest.raises(SchemaRefused, match=f"the schema has '{twice}' twice"):
        projection(options(valueFormat="json"), *columns)


@pytest.mark.parametrize(
    ("raw", "column", "meant", "way_out"),
    [
        (CTIS, ("CTI", INSTANT), "cti", "metadataPrefix"),
        ({}, ("Start_Time", INSTANT), "start_time", "metadataPrefix"),
        ({}, ("OFFSET", LONG), "offset", "metadataPrefix"),
        ({"metadataPrefix": "K_"}, ("k_offset", LONG), "K_offset", "metadataPrefix"),
        ({}, ("_Corrupt_Record", TEXT), "_corrupt_record", "columnNameOfCorruptRecord"),
        ({"keyFormat": "json"}, ("Key.id", LONG), "key.id", "keyPrefix"),
    ],
)
def test_metadata_or_a_key_in_another_case_is_refused_and_a_field_by_its_option(
    raw, column, meant, way_out
):
    """It was taken for a field, and null in every row."""
    given = options(**raw, **JSON)
    name, kind = column
    with pytest.raises(SchemaRefused) as refused:
        projection(given, column)
    message = str(refused.value)
    assert message.startswith(f"column '{name}' differs from '{meant}' only in upper and")
    assert message.endswith(f"next step: write it so, or set option '{way_out}'")
    assert not projection(given, (meant, kind)).fields
    renamed = options(**{**raw, **JSON, way_out: "other_"})
    for there, columns in ((renamed, [column]), (given, [column, (meant, kind)])):
        assert projection(there, *columns).fields.names == [name]


def test_a_field_that_is_metadata_in_another_case_by_name_alone_is_a_field():
    for name in ("`CTI`", "Offset"):
        assert projection(options(**CTIS, **JSON), (name, pa.int8())).fields.names == [name]


def test_names_that_differ_in_case_or_place_are_not_twice_the_same():
    columns = [("a", INT), ("A", INT), ("x", pa.struct([("a", INT), ("A", INT)]))]
    found = projection(options(valueFormat="json"), *columns)
    assert found.fields.names == ["a", "A", "x"]


@pytest.mark.parametrize("kind", [VariantType(), ArrayType(VariantType()), GeometryType(4326)])
def test_a_type_of_spark_s_own_is_refused_by_its_name(kind):
    """Arrow has it as a struct, and no payload has its fields: all rows would be null."""
    columns = to_arrow_schema(StructType([StructField("a", kind)]), timezone="UTC")
    with pytest.raises(SchemaRefused, match="column 'a' is or contains a variant, geometry or"):
        project(options(valueFormat="json"), columns)


def test_a_field_with_a_comment_is_a_field_to_where():
    inner = StructType([StructField("y", IntegerType(), metadata={"comment": "of the shop"})])
    columns = to_arrow_schema(StructType([StructField("x", inner)]))
    assert project(options(valueFormat="json", where="x.y = 1"), columns).condition is not None
