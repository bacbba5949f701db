"""Schemas as options: texts, files that the driver reads once, and what a checkpoint keeps."""

import base64
import pickle

import pytest
from google.protobuf import descriptor_pb2
from timestream.builders import options

from pyspark_timestream import OptionError
from pyspark_timestream.kafka.reader_schemas import load_schemas
from pyspark_timestream.kafka.schemas import fingerprint_schema

TRIP = '{"type": "record", "name": "Trip", "fields": [{"name": "t", "type": "long"}]}'


def refusal(**raw):
    with pytest.raises(OptionError) as refused:
        load_schemas(options(**raw))
    assert "; accepted: " in str(refused.value)
    assert "; next step: " in str(refused.value)
    return str(refused.value)


def test_path_is_read_once_and_its_text_goes_on(tmp_path):
    file = tmp_path / "trip.avsc"
    # As editors on Windows write it.
    file.write_bytes(b"\xef\xbb\xbf" + TRIP.encode())
    loaded = load_schemas(options(valueFormat="avro", valueSchema=str(file)))
    file.unlink()
    sent = pickle.loads(pickle.dumps(loaded))
    assert sent.value_rules.schema == TRIP
    assert load_schemas(sent) == loaded


def test_text_and_path_of_a_schema_are_the_same_to_a_checkpoint(tmp_path):
    file = tmp_path / "trip.avsc"
    file.write_text(TRIP.replace(" ", "\n  "))
    by_path = load_schemas(options(valueFormat="avro", valueSchema=str(file)))
    by_text = load_schemas(options(valueFormat="avro", valueSchema=TRIP))
    assert by_path.settings() == by_text.settings()
    assert by_text.settings()["valueSchema"] == fingerprint_schema(TRIP)


def test_another_content_of_the_same_path_is_a_change_to_a_checkpoint(tmp_path):
    file = tmp_path / "trip.avsc"
    file.write_text(TRIP)
    raw = {"valueFormat": "avro", "valueSchema": '"string"', "readerSchema": str(file)}
    before = load_schemas(options(**raw)).settings()
    file.write_text(TRIP.replace("long", "int"))
    after = load_schemas(options(**raw)).settings()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"readerSchema"}


def test_every_schema_option_is_loaded(tmp_path):
    file = tmp_path / "trip.avsc"
    file.write_text(TRIP)
    texts = {"valueSchema": TRIP, "readerSchema": TRIP, "keySchema": TRIP, "keyReaderSchema": TRIP}
    loaded = load_schemas(
        options(valueFormat="avro", keyFormat="avro", **dict.fromkeys(texts, str(file)))
    )
    assert loaded.schema_texts == texts
    assert loaded.key_rules.reader_schema == loaded.value_rules.reader_schema == TRIP


def write_descriptors(path, *more):
    """A set with the message `a.B`; `more` is what reading it does not need."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="b.proto", package="a", syntax="proto3")
    file.message_type.add(name="B").field.add(name="t", number=1, type=3, label=1)
    files.file.extend(more)
    path.write_bytes(files.SerializeToString())
    return options(valueFormat="protobuf", valueSchema=str(path), valueMessage="a.B")


def test_descriptor_set_travels_as_text_and_compiled_again_is_the_same_schema(tmp_path):
    loaded = load_schemas(write_descriptors(tmp_path / "b.desc"))
    found = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(loaded.value_rules.schema))
    assert [file.name for file in found.file] == ["b.proto"]
    other = descriptor_pb2.FileDescriptorProto(name="other.proto", syntax="proto3")
    again = load_schemas(write_descriptors(tmp_path / "again.desc", other))
    assert again.settings() == loaded.settings()


def test_descriptor_set_without_the_message_is_refused_with_those_that_it_has(tmp_path):
    write_descriptors(tmp_path / "b.desc")
    message = refusal(
        valueFormat="protobuf", valueSchema=str(tmp_path / "b.desc"), valueMessage="a.C"
    )
    assert "lacks the message 'a.C'" in message
    assert "a.B" in message


def test_latest_is_not_a_path():
    given = options(valueFormat="avro", readerSchema="LATEST", **{"schemaRegistry.url": "http://a"})
    loaded = load_schemas(given)
    assert loaded.value_rules.reader_schema is None
    assert "readerSchema" not in loaded.settings()


def test_settings_before_schemas_are_loaded_are_refused():
    given = options(valueFormat="avro", valueSchema="/absent")
    with pytest.raises(ValueError, match="the schema of 'valueSchema' is still a path"):
        given.settings()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "on the driver (No such file or directory)"),
        (b"\xff", "is not UTF-8"),
        (b"message A {}", "is not JSON (Expecting value"),
        (b"", "is not JSON"),
    ],
)
def test_file_that_is_not_a_schema_is_refused_by_path(tmp_path, content, said):
    file = tmp_path / "trip.avsc"
    if content is not None:
        file.write_bytes(content)
    message = refusal(valueFormat="avro", valueSchema=str(file))
    assert message.startswith("option 'valueSchema': ")
    assert str(file) in message
    assert said in message


def test_folder_in_place_of_a_file_is_refused(tmp_path):
    assert "(Is a directory)" in refusal(valueFormat="avro", valueSchema=str(tmp_path))
    assert "null" in refusal(valueFormat="avro", valueSchema="a\0b")


def test_text_that_is_not_json_is_refused_without_the_text():
    message = refusal(valueFormat="avro", valueSchema='{"type": "record", "name": ')
    assert message.startswith("option 'valueSchema': its text is not JSON (Expecting value: line 1")


def test_proto_text_in_place_of_a_descriptor_set_is_refused(tmp_path):
    file = tmp_path / "trip.proto"
    file.write_text('syntax = "proto3";')
    message = refusal(keyFormat="protobuf", keySchema=str(file), keyMessage="a.B")
    assert message.startswith("option 'keySchema': ")
    assert "is not a descriptor set" in message
    assert "protoc --include_imports --descriptor_set_out" in message


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"type": "record", "name": "R", "fields": [1]}', "not an Avro schema"),
        ('{"type": "record", "name": "R", "fields": [{"name": 1.5, "type": "int"}]}', "not a text"),
        ('{"type": "enum", "name": "E", "symbols": ["A", true]}', "not an Avro schema"),
        ('["null", ["null", "long"]]', "a union is a branch of a union"),
        ('["null", {"type": ["long"]}]', "a union is a branch of a union"),
        ("[" * 3000 + "]" * 3000, "not"),
    ],
)
def test_json_that_is_no_avro_schema_is_refused_by_its_option(schema, said):
    message = refusal(valueFormat="avro", valueSchema=schema)
    assert "option 'valueSchema'" in message
    assert said in message
