"""Framing and format are detected from what most payloads are, with a registry and without."""

import base64
import json
import struct

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st
from timestream.builders import HEADERS

from pyspark_timestream.commands.peek.detect import Payloads, detect_side, list_schema_ids
from pyspark_timestream.kafka.diagnosis.samples import parse_object
from pyspark_timestream.kafka.schemas import RegisteredSchema

AVRO = RegisteredSchema(7, "AVRO", '"long"')
JSON = RegisteredSchema(9, "JSON", "{}")
GUID = bytes.fromhex("7fb2ba10d6b94ef2a5a1b0a6c1a7a9a1")


def payloads(*contents, headers=None, side="value"):
    rows = pa.array(headers or [None] * len(contents), HEADERS)
    return Payloads(side, pa.array(contents, pa.binary()), rows)


def framed(schema_id, body=b"body"):
    return b"\0" + struct.pack(">I", schema_id) + body


def facts(found):
    return found.format, found.framing, found.fitting, found.present


@pytest.mark.parametrize(
    ("contents", "answers", "expected"),
    [
        ([b'{"a": 1}', b"{}", b"x"], None, ("json", "none", 2, 3)),
        ([b'{"a": 1}', b"[1]", b"x"], None, ("binary", "none", 3, 3)),
        ([b"{}", b"x"], None, ("binary", "none", 2, 2)),
        ([None, b"{}", None], {}, ("json", "none", 1, 1)),
        ([None], None, ("binary", "none", 0, 0)),
        ([], None, ("binary", "none", 0, 0)),
        ([framed(7), framed(7), b"{}"], {7: AVRO}, ("avro", "confluent", 2, 3)),
        ([framed(9, b"{}"), framed(9, b"x")], {9: JSON}, ("json", "confluent", 1, 2)),
        ([framed(7), framed(9), framed(7)], {7: AVRO, 9: JSON}, ("avro", "confluent", 2, 3)),
        ([framed(7), framed(8)], {7: AVRO}, ("binary", "none", 2, 2)),
        ([framed(7), framed(7)], None, ("binary", "confluent", 2, 2)),
        ([framed(9, b"{}"), framed(9, b"{}")], None, ("json", "confluent", 2, 2)),
        ([b"\1" + GUID + b"body"], None, ("binary", "confluent", 1, 1)),
        ([b"\1" + GUID + b"body"], {GUID: AVRO}, ("avro", "confluent", 1, 1)),
        ([framed(0)], None, ("binary", "none", 1, 1)),
        ([framed(2**31 - 1)], None, ("binary", "none", 1, 1)),
    ],
)
def test_most_payloads_decide_and_the_fitting_ones_are_counted(contents, answers, expected):
    assert facts(detect_side(payloads(*contents), answers)) == expected


def test_numbers_of_64_bits_are_not_taken_for_frames():
    times = [struct.pack(">q", 1_700_000_000_000 + n) for n in range(3)]
    assert facts(detect_side(payloads(*times, side="key"), None))[:2] == ("binary", "none")


def test_a_header_of_the_part_is_framing():
    frame = [{"key": "__value_schema_id", "value": framed(7, b"")}]
    values = payloads(b"a", b"b", headers=[frame, frame])
    assert list_schema_ids(values) == [7]
    assert facts(detect_side(values, {7: AVRO})) == ("avro", "header", 2, 2)
    keys = values._replace(side="key")
    assert list_schema_ids(keys) == []
    assert facts(detect_side(keys, {7: AVRO})) == ("binary", "none", 2, 2)


def test_an_id_that_the_registry_lacks_is_noted():
    found = detect_side(payloads(framed(8), framed(8)), {})
    assert found.notes == (
        "2 of 2 values begin as with a schema's id (8), and the registry lacks it: is it the "
        "registry of the topic's producers?",
    )


def test_payloads_whose_schema_cannot_be_used_are_marked():
    found = detect_side(payloads(framed(7), framed(9), None, framed(8), framed(7), framed(7)),
                        {7: AVRO, 9: JSON})  # fmt: skip
    assert found.unusable == (False, True, False, True, False, False)
    assert found.notes[0].startswith("2 of 5 values name a schema that the registry lacks")


def test_the_message_of_protobuf_frames_is_found():
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    text = base64.b64encode(file.SerializeToString()).decode()
    found = detect_side(
        payloads(framed(8, b"\x04\x02\x00body")), {8: RegisteredSchema(8, "PROTOBUF", text)}
    )
    assert (found.format, found.message) == ("protobuf", (1, 0))


@given(st.lists(st.one_of(st.none(), st.binary(max_size=30)), max_size=10), st.booleans())
def test_any_bytes_are_detected_as_something_and_counts_add_up(contents, asked):
    found = detect_side(payloads(*contents), {7: AVRO} if asked else None)
    assert found.present == sum(each is not None for each in contents)
    assert 0 <= found.fitting <= found.present
    assert not found.present or 2 * found.fitting > found.present or found.framing != "none"
    if found.format == "json" and found.framing == "none":
        assert found.fitting == sum(parse_object(each) is not None for each in contents)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"1", None, b""])
def test_what_is_not_a_json_object_is_none(content):
    assert parse_object(content) is None
    assert parse_object(json.dumps({"a": 1}).encode()) == {"a": 1}
