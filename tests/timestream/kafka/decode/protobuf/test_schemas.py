"""Protobuf payloads across schemas: old ones, newer ones, other ones."""

import pickle

import pyarrow as pa
import pytest
from timestream.kafka.decode.protobuf.schemas import Schema, field, file, message
from timestream.kafka.decode.protobuf.wire import delimited, tag

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.fields import FINE, FRAMING, TYPE, WantedFields
from pyspark_timestream.kafka.decode.framing import Writer, split_value_frames
from pyspark_timestream.kafka.decode.protobuf.decode import read_framed_protobuf, read_protobuf
from pyspark_timestream.kafka.decode.protobuf.descriptors import find_message_name

COLORS = {0: "RED", 1: "GREEN"}
SCHEMA = Schema(file(message("M", field("s", 1, "string"), field("i", 2, "int64"))))


def read_one(payload, name, kind, schema=SCHEMA):
    """The value of one column of one payload, and the reason why it is malformed."""
    wanted = WantedFields(pa.schema([(name, kind)]))
    block = read_protobuf(schema.reader, wanted, pa.array([payload]))
    return block.columns[0][0].as_py(), int(block.reasons[0])


OLD = Schema(
    file(
        message(
            "M",
            field("s", 1, "string"),
            field("e", 2, "enum .m.Color"),
            field("i", 3, "int32", default="7"),
            field("g", 4, "group .m.M.G"),
            field("es", 5, "enum .m.Color", repeated=True),
            nested=[message("G", field("x", 1, "int32"))],
        ),
        syntax="proto2",
        enums=[("Color", COLORS)],
    )
)


def test_an_old_schema_leaves_its_texts_and_enums_as_googles_library_does():
    group = tag(4, 3) + b"\x08\1" + tag(4, 4)
    payload = group + tag(1, 2) + delimited(b"\xff") + b"\x10\7" + b"\x28\1\x28\7\x28\0"
    assert read_one(payload, "s", pa.string(), OLD) == (None, TYPE)
    assert read_one(payload, "s", pa.binary(), OLD) == (b"\xff", FINE)
    assert read_one(payload, "e", pa.string(), OLD) == (None, FINE)
    assert read_one(payload, "es", pa.list_(pa.string()), OLD) == (["GREEN", "RED"], FINE)
    assert read_one(payload, "i", pa.int32(), OLD) == (None, FINE)


def test_a_group_is_refused_as_a_column():
    with pytest.raises(SchemaRefused, match=r"column 'g' .* 'm.M.g' is a group"):
        read_one(b"", "g", pa.struct([("x", pa.int32())]), OLD)


def test_a_message_from_another_schema_or_place_is_malformed_by_its_framing():
    written = {(1, (0,)): "m.Place", (1, (1,)): "m.M", (2, (1,)): "m.M", (2, (7,)): None}
    frames = [b"\0\0\0\0\1\0", b"\0\0\0\0\1\2\2", b"\0\0\0\0\2\2\2", b"\0\0\0\0\2\2\x0e", b"{"]
    payloads = pa.array([frame + b"\x10\5" for frame in frames] + [None])
    asked = []

    def find_message(writer):
        asked.append(writer)
        return written[writer.schema_id, writer.message]

    framed = split_value_frames(payloads, indexed=True)
    wanted = WantedFields(pa.schema([("i", pa.int64())]), ("i",))
    block = read_framed_protobuf(SCHEMA.reader, wanted, framed, find_message)
    assert block.columns[0].to_pylist() == [None, 5, 5, None, None, None]
    assert block.raw["i"][0].to_pylist() == [None, 5, 5, None, None, None]
    assert block.reasons.tolist() == [FRAMING, FINE, FINE, FRAMING, FRAMING, FINE]
    assert block.schema_ids.to_pylist() == [1, 1, 2, 2, None, None]
    assert asked == [Writer(key[0], None, key[1]) for key in written]


def test_a_registry_that_fails_fails_the_block():
    def find_message(writer):
        raise ConnectionError

    framed = split_value_frames(pa.array([b"\0\0\0\0\1\0"]), indexed=True)
    with pytest.raises(ConnectionError):
        read_framed_protobuf(SCHEMA.reader, WantedFields(pa.schema([])), framed, find_message)


def test_a_newer_writer_is_read_by_an_older_reader_and_the_other_way_round():
    old = Schema(file(message("M", field("i", 1, "int32"), field("gone", 2, "string"))))
    new = Schema(
        file(message("M", field("i", 1, "int64"), field("added", 3, "string", repeated=True)))
    )
    by_new = new.Message(i=2**40, added=["x"]).SerializeToString()
    by_old = old.Message(i=-5, gone="x").SerializeToString()
    # An int32 keeps the lower half of a wider number, as everywhere in Protobuf.
    assert read_one(by_new, "i", pa.int32(), old) == (0, FINE)
    assert read_one(by_new, "gone", pa.string(), old) == ("", FINE)
    assert read_one(by_old, "i", pa.int64(), new) == (-5, FINE)
    assert read_one(by_old, "added", pa.list_(pa.string()), new) == ([], FINE)


def test_a_reader_and_its_fingerprint_survive_pickling():
    reader = pickle.loads(pickle.dumps(SCHEMA.reader))
    assert reader == SCHEMA.reader
    assert reader.fingerprint == SCHEMA.reader.fingerprint
    found = read_protobuf(
        reader, WantedFields(pa.schema([("i", pa.int64())])), pa.array([b"\x10\5"])
    )
    assert found.columns[0].to_pylist() == [5]


def test_what_confluents_serializer_writes_is_read_with_the_schema_that_it_registered():
    clients = pytest.importorskip("confluent_kafka.schema_registry")
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    serialization = pytest.importorskip("confluent_kafka.serialization")
    schema = Schema(
        file(
            message("First"),
            message("M", nested=[message("Inner", field("i", 1, "int64"))]),
        ),
        name="m.M.Inner",
    )
    client = clients.SchemaRegistryClient.new_client({"url": "mock://protobuf"})
    serialize = protobuf.ProtobufSerializer(
        schema.Message, client, {"use.deprecated.format": False, "auto.register.schemas": True}
    )
    field_of = serialization.SerializationContext("topic", serialization.MessageField.VALUE)
    payloads = pa.array([serialize(schema.Message(i=i), field_of) for i in range(3)])

    def find_message(writer):
        registered = client.get_schema(writer.schema_id).schema_str.encode()
        return find_message_name(registered, writer.message)

    framed = split_value_frames(payloads, indexed=True)
    wanted = WantedFields(pa.schema([("i", pa.int64())]))
    block = read_framed_protobuf(schema.reader, wanted, framed, find_message)
    assert block.columns[0].to_pylist() == [0, 1, 2]
    assert not block.malformed.any()
    assert {writer.message for writer in framed.writers} == {(1, 0)}
