"""The columns of a query, and the schemas that are refused."""

import pyarrow as pa
import pytest
from timestream.builders import HEADERS, INSTANT, options, projection

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.columns import METADATA, default_schema, project

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
        (
            {**CTIS, "violationPolicy": "adjust"},
            ["start_time", "violation", "original_start_time", "cti"],
        ),
        (
            {**CTIS, **EDGE, "violationPolicy": "adjust"},
            ["start_time", "end_time", "edge", "violation", *ORIGINALS, "cti"],
        ),
    ],
)
def test_default_schema_has_sparks_columns_and_filled_metadata(raw, more):
    schema = default_schema(options(**raw))
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
    names = default_schema(given).names
    assert names == [f"k_{name}" for name in [*SPARKS, "start_time", "cti"]]
    assert projection(given).wants("cti")


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
    assert found.corrupt == "_corrupt_record"
    assert not found.wants("cti")


def test_the_column_of_malformed_values_can_have_another_name():
    given = options(valueFormat="json", columnNameOfCorruptRecord="broken")
    assert projection(given, ("broken", pa.string())).corrupt == "broken"
    assert projection(given, ("_corrupt_record", pa.string())).corrupt is None


@pytest.mark.parametrize(
    ("raw", "column", "said"),
    [
        ({}, ("price", pa.int64()), "'valueFormat' is 'binary'"),
        ({"valueFormat": "json"}, ("offset", pa.string()), "carries the metadata 'offset'"),
        ({"valueFormat": "json"}, ("raw", pa.duration("us")), "which is not read from JSON"),
        ({}, ("cti", INSTANT), "'ctiFrequency', 'advanceTime', 'ctiHeader' or 'finalCti'"),
        ({"ctiHeader": "c"}, ("time_lower", INSTANT), "'timeWindow' = 'true'"),
        ({}, ("end_time", INSTANT), "'eventShape' = 'interval' or 'edge'"),
        (INTERVAL, ("edge", pa.string()), "'eventShape' = 'edge'"),
        (CTIS, ("violation", pa.string()), "'violationPolicy' = 'flag' or 'adjust'"),
        (CTIS, ("original_start_time", INSTANT), "'violationPolicy' = 'adjust'"),
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
    assert projection(options(), ("headers", METADATA["headers"])).wants("headers")


def test_json_values_without_a_schema_are_refused():
    with pytest.raises(
        SchemaRefused, match=r"'valueFormat' is 'json'.*next step: add it, or leave"
    ):
        default_schema(options(valueFormat="json"))
