"""Texts of schemas: fingerprints, and references put in place."""

import io
import json

import pytest

from pyspark_timestream.kafka.decode.avro.schemas import inline_references
from pyspark_timestream.kafka.schemas import (
    AVRO,
    RegisteredSchema,
    SchemaReference,
    fingerprint_schema,
)


def record(name, *fields, **more):
    return {
        "type": "record",
        "name": name,
        **more,
        "fields": [{"name": f"f{n}", "type": each} for n, each in enumerate(fields)],
    }


def inline(main, **references):
    """The parsed text of `main` with its references, which are named as their keys say."""
    texts = tuple(
        SchemaReference(name.replace("__", "."), json.dumps(each))
        for name, each in references.items()
    )
    return json.loads(inline_references(RegisteredSchema(1, AVRO, json.dumps(main), texts)))


@pytest.mark.parametrize(
    "same",
    [
        '{"name": "A", "type": "record", "fields": []}',
        '{\n "type" :"record","name":"A","fields":[ ]}',
        '{"type": "record", "doc": "a trip", "name": "A", "fields": []}',
    ],
)
def test_fingerprint_of_the_same_schema_is_the_same(same):
    assert fingerprint_schema(same) == fingerprint_schema(json.dumps(record("A")))


@pytest.mark.parametrize(
    "other",
    [
        record("B"),
        record("A", "int"),
        record("A", aliases=["B"]),
        {**record("A", "int"), "fields": [{"name": "f0", "type": "int", "default": 1}]},
        {**record("A", "int"), "fields": [{"name": "f0", "type": "int", "aliases": ["g"]}]},
    ],
    ids=str,
)
def test_fingerprint_changes_with_all_that_a_reader_goes_by(other):
    assert fingerprint_schema(json.dumps(other)) != fingerprint_schema(json.dumps(record("A")))


def test_fingerprint_takes_a_default_as_it_is():
    fields = [{"name": "m", "type": {"type": "map", "values": "int"}, "default": {"doc": 1}}]
    with_doc = {**record("A"), "fields": fields}
    without = {**record("A"), "fields": [{**fields[0], "default": {}}]}
    assert fingerprint_schema(json.dumps(with_doc)) != fingerprint_schema(json.dumps(without))


def test_fingerprint_of_what_is_not_json_is_that_of_the_text():
    assert fingerprint_schema("CgFh") == fingerprint_schema("CgFh")
    assert fingerprint_schema("CgFh") != fingerprint_schema("CgFi")


def test_schema_without_references_is_left_as_it_is():
    text = '{ "type" : "long" }'
    assert inline_references(RegisteredSchema(1, AVRO, text)) == text


def test_reference_is_defined_where_it_is_first_used():
    found = inline(record("A", "B", ["null", "B"]), B=record("B", "int"))
    inner = {**record("B", "int"), "namespace": ""}
    assert found == {**record("A", inner, ["null", "B"]), "namespace": ""}


def test_reference_of_a_reference_is_put_in_place_too():
    found = inline(record("A", "B", "C"), C=record("C"), B=record("B", "C"))
    inner = {**record("B", {**record("C"), "namespace": ""}), "namespace": ""}
    assert found == {**record("A", inner, "C"), "namespace": ""}


def test_name_is_looked_up_in_its_namespace():
    main = record("A", "B", "x.B", "y.C", namespace="x")
    apart = {"y__C": record("C", "D", namespace="y"), "y__D": record("D", namespace="y")}
    found = inline(main, x__B=record("x.B"), **apart)
    inner = record("C", record("D", namespace="y"), namespace="y")
    assert found == record("A", record("B", namespace="x"), "x.B", inner, namespace="x")


def test_primitive_is_not_taken_for_a_reference():
    assert inline(record("A", "string"), string=record("string")) == {
        **record("A", "string"),
        "namespace": "",
    }


def test_reference_is_found_everywhere_a_type_stands():
    main = record(
        "A",
        {"type": "array", "items": "B"},
        {"type": "map", "values": "C"},
        {"type": "D"},
    )
    found = inline(
        main,
        B={"type": "enum", "name": "B", "symbols": ["B", "C"]},
        C={"type": "fixed", "name": "C", "size": 3},
        D=record("D"),
    )
    types = [field["type"] for field in found["fields"]]
    assert types[0]["items"]["symbols"] == ["B", "C"]
    assert types[1]["values"]["size"] == 3
    assert types[2]["type"] == {**record("D"), "namespace": ""}


def test_type_that_contains_itself_stays_a_name():
    found = inline(record("A", "B"), B=record("B", ["null", "B"], ["null", "A"]))
    inner = {**record("B", ["null", "B"], ["null", "A"]), "namespace": ""}
    assert found == {**record("A", inner), "namespace": ""}


def test_union_and_name_alone_can_be_a_schema():
    both = [{**record(each), "namespace": ""} for each in "BC"]
    assert inline(["B", "C"], B=record("B"), C=record("C")) == both
    assert inline("B", B=record("B")) == both[0]


def test_inlined_schema_reads_what_was_written_with_the_references_apart():
    fastavro = pytest.importorskip("fastavro")
    texts = {
        "x.Unit": {"type": "enum", "name": "Unit", "namespace": "x", "symbols": ["km", "mi"]},
        "y.Leg": record("Leg", "x.Unit", "long", ["null", "y.Leg"], namespace="y"),
    }
    main = record("Trip", {"type": "array", "items": "y.Leg"}, "Unit", namespace="x")
    known = {}
    for each in texts.values():
        fastavro.parse_schema(each, named_schemas=known)
    apart = fastavro.parse_schema(main, named_schemas=known)
    leg = {"f0": "mi", "f1": 5, "f2": {"f0": "km", "f1": 7, "f2": None}}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, apart, {"f0": [leg], "f1": "km"})
    references = tuple(SchemaReference(name, json.dumps(each)) for name, each in texts.items())
    text = inline_references(RegisteredSchema(1, AVRO, json.dumps(main), references))
    written.seek(0)
    read = fastavro.schemaless_reader(written, fastavro.parse_schema(json.loads(text)), None)
    assert read == {"f0": [leg], "f1": "km"}


def test_reference_is_known_by_its_types_full_name_whatever_its_own_name_is():
    found = inline(record("A", "shop.B", namespace="shop"), any_thing=record("B", namespace="shop"))
    assert found == record("A", record("B", namespace="shop"), namespace="shop")


def test_reference_name_stands_for_its_text_where_no_type_has_that_name():
    found = inline(record("A", "Money"), Money={"type": "array", "items": "long"})
    assert found["fields"][0]["type"] == {"type": "array", "items": "long"}


def test_type_that_is_defined_inside_a_reference_is_found_before_and_after_it():
    inner = record("Inner", "int")
    outer = record("Outer", ["null", inner], {"type": "map", "values": "Inner"}, namespace="shop")
    before = inline(record("A", "shop.Inner", "shop.Outer"), Outer=outer)
    types = [field["type"] for field in before["fields"]]
    assert types[0] == {**inner, "namespace": "shop"}
    assert types[1]["fields"][0]["type"] == ["null", "shop.Inner"]
    after = inline(record("A", "shop.Outer", "shop.Inner"), Outer=outer)
    types = [field["type"] for field in after["fields"]]
    assert types[0]["fields"][0]["type"][1] == {**inner, "namespace": "shop"}
    assert types[1] == "shop.Inner"
    fastavro = pytest.importorskip("fastavro")
    for each in (before, after):
        fastavro.parse_schema(each)
