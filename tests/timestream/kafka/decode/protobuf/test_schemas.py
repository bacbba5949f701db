"""Protobuf payloads across schemas: old ones, newer ones, other ones."""

import pickle

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from timestream.protobuf_schemas import (
    Schema,
    descriptor_set,
    field,
    file,
    map_field,
    message,
)
from timestream.protobuf_wire import delimited, tag

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.formats import (
    WriterSchema,
    read_framed_protobuf,
    split_value_frames,
)
from pyspark_timestream.kafka.decode.protobuf.decode import read_protobuf
from pyspark_timestream.kafka.decode.protobuf.descriptors import create_reader, find_message_name
from pyspark_timestream.kafka.decode.records import FINE, FRAMING, NAME, TYPE, RequestedFields

COLORS = {0: "RED", 1: "GREEN"}
SCHEMA = Schema(file(message("M", field("s", 1, "string"), field("i", 2, "int64"))))


def read_one(payload, name, kind, schema=SCHEMA):
    """The value of one column of one payload, and the reason why it is malformed."""
    wanted = RequestedFields(pa.schema([(name, kind)]))
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


def test_a_message_of_another_name_or_without_a_place_is_malformed_by_its_name_or_framing():
    written = {(1, (0,)): "m.Place", (1, (1,)): "m.M", (2, (1,)): "m.M", (2, (7,)): None}
    frames = [b"\0\0\0\0\1\0", b"\0\0\0\0\1\2\2", b"\0\0\0\0\2\2\2", b"\0\0\0\0\2\2\x0e", b"{"]
    payloads = pa.array([frame + b"\x10\5" for frame in frames] + [None])
    asked = []

    def find_message(writer):
        asked.append(writer)
        return written[writer.schema_id, writer.message]

    framed = split_value_frames(payloads, indexed=True)
    wanted = RequestedFields(pa.schema([("i", pa.int64())]), ("i",))
    block = read_framed_protobuf(SCHEMA.reader, wanted, framed, find_message)
    assert block.columns[0].to_pylist() == [None, 5, 5, None, None, None]
    assert block.raw["i"][0].to_pylist() == [None, 5, 5, None, None, None]
    assert block.reasons.tolist() == [NAME, FINE, FINE, FRAMING, FRAMING, FINE]
    assert block.schema_ids.to_pylist() == [1, 1, 2, 2, None, None]
    assert asked == [WriterSchema(key[0], None, key[1]) for key in written]


def test_a_registry_that_fails_fails_the_block():
    def find_message(writer):
        raise ConnectionError

    framed = split_value_frames(pa.array([b"\0\0\0\0\1\0"]), indexed=True)
    with pytest.raises(ConnectionError):
        read_framed_protobuf(SCHEMA.reader, RequestedFields(pa.schema([])), framed, find_message)


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
        reader, RequestedFields(pa.schema([("i", pa.int64())])), pa.array([b"\x10\5"])
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
    wanted = RequestedFields(pa.schema([("i", pa.int64())]))
    block = read_framed_protobuf(schema.reader, wanted, framed, find_message)
    assert block.columns[0].to_pylist() == [0, 1, 2]
    assert not block.malformed.any()
    assert {writer.message for writer in framed.writers} == {(1, 0)}


def extended():
    """A newer producer's message, with fields and an extension that the reader does not know."""
    place = message("Place", field("x", 1, "int32"))
    entry_field, entry = map_field(".m.M", "by_name", 5, "string", ".m.Place")
    return Schema(
        file(
            place,
            message(
                "M",
                field("place", 1, ".m.Place"),
                field("places", 2, ".m.Place", repeated=True),
                field("outer", 3, ".m.M"),
                field("one", 4, ".m.Place", oneof=0),
                field("other", 6, "int32", oneof=0),
                entry_field,
                nested=[entry],
                oneofs=["o"],
            ),
        )
    )


EXTENDED = extended()
UNKNOWN = b"\x12\3new" + b"\x08\5" + tag(1000, 2) + b"\2ab"
"""A field that the schema lacks in front of one that it has, and an extension."""

PIECES = [
    (1, "place", pa.binary(), UNKNOWN),
    (2, "places", pa.list_(pa.binary()), [UNKNOWN]),
    (4, "one", pa.binary(), UNKNOWN),
    (5, "by_name", pa.map_(pa.string(), pa.binary()), [("k", UNKNOWN)]),
]


@pytest.mark.parametrize(("number", "name", "kind", "expected"), PIECES)
def test_a_message_that_is_read_as_binary_is_its_bytes_with_all_that_is_in_them(
    number, name, kind, expected
):
    body = UNKNOWN if number != 5 else b"\x0a\1k" + tag(2, 2) + delimited(UNKNOWN)
    payload = tag(number, 2) + delimited(body)
    assert read_one(payload, name, kind, EXTENDED) == (expected, FINE)
    inside = tag(3, 2) + delimited(payload)
    assert read_one(inside, f"outer.{name}", kind, EXTENDED) == (expected, FINE)
    struct = pa.struct([(name, kind)])
    assert read_one(inside, "outer", struct, EXTENDED) == ({name: expected}, FINE)
    # A field of another wire type is skipped, and Google's library reads the block once more.
    odd = tag(number, 0) + b"\7" + payload
    assert read_one(odd, name, kind, EXTENDED) == (expected, FINE)


def test_pieces_of_a_message_are_joined_and_an_absent_one_is_null():
    pieces = tag(1, 2) + delimited(b"\x08\1") + tag(1, 2) + delimited(UNKNOWN)
    assert read_one(pieces, "place", pa.binary(), EXTENDED) == (b"\x08\1" + UNKNOWN, FINE)
    assert read_one(b"", "place", pa.binary(), EXTENDED) == (None, FINE)
    assert read_one(tag(1, 2) + b"\0", "place", pa.binary(), EXTENDED) == (b"", FINE)
    wanted = RequestedFields(pa.schema([("place", pa.binary())]))
    payloads = pa.array([pieces, b"", None, tag(1, 2) + delimited(UNKNOWN)] * 30)
    block = read_protobuf(EXTENDED.reader, wanted, payloads)
    assert block.columns[0].to_pylist() == [b"\x08\1" + UNKNOWN, None, None, UNKNOWN] * 30


def test_the_last_member_of_a_oneof_counts_beside_one_that_is_read_as_binary():
    one, other = tag(4, 2) + delimited(UNKNOWN), tag(6, 0) + b"\7"
    assert read_one(one + other, "one", pa.binary(), EXTENDED) == (None, FINE)
    assert read_one(other + one, "one", pa.binary(), EXTENDED) == (UNKNOWN, FINE)
    assert read_one(other + one, "other", pa.int32(), EXTENDED) == (None, FINE)


def test_a_closed_enum_beside_a_message_that_is_read_as_binary_skips_unknown_numbers():
    schema = Schema(
        file(
            message("Place", field("x", 1, "int32")),
            message(
                "M",
                field("place", 1, ".m.Place"),
                field("colors", 2, "enum .m.Color", repeated=True),
            ),
            syntax="proto2",
            enums=[("Color", COLORS)],
        )
    )
    payload = b"\x10\1\x10\x09\x10\0" + tag(1, 2) + delimited(UNKNOWN)
    wanted = RequestedFields(pa.schema([("place", pa.binary()), ("colors", pa.list_(pa.string()))]))
    block = read_protobuf(schema.reader, wanted, pa.array([payload]))
    assert block.columns[0].to_pylist() == [UNKNOWN]
    assert block.columns[1].to_pylist() == [["GREEN", "RED"]]


@pytest.mark.parametrize("delimited_fields", [False, True])
def test_a_message_with_two_groups_or_two_delimited_fields_is_read(delimited_fields):
    kind = ".m.M" if delimited_fields else "group .m.M.{}"
    fields = [field(name, at, kind.format(name.upper())) for at, name in ((2, "g"), (3, "h"))]
    nested = [] if delimited_fields else [message("G"), message("H")]
    made = file(
        message("M", field("i", 1, "int32"), *fields, nested=nested),
        syntax="editions" if delimited_fields else "proto2",
    )
    if delimited_fields:
        made.edition = descriptor_pb2.EDITION_2023
        made.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
    schema = Schema(made)
    payload = tag(2, 3) + tag(2, 4) + tag(3, 3) + tag(3, 4) + b"\x08\5"
    assert read_one(payload, "i", pa.int32(), schema) == (5, FINE)
    for name in "gh":
        with pytest.raises(SchemaRefused, match=f"'m.M.{name}' is a group"):
            read_one(payload, name, pa.binary(), schema)


def test_fields_whose_names_differ_in_style_only_are_read_each():
    names = ["foo_bar", "fooBar", "foo__bar", "FooBar"]
    fields = [field(name, at, "int32") for at, name in enumerate(names, 1)]
    entry_field, entry = map_field(".m.M", "ms", 6, "string", ".m.M")
    many = field("list", 5, ".m.M", repeated=True)
    made = file(message("M", *fields, many, entry_field, nested=[entry]))
    reader = create_reader(descriptor_set(made), "m.M")
    payload = b"".join(tag(at, 0) + bytes([at * 10]) for at in range(1, 5))
    wanted = RequestedFields(pa.schema([(name, pa.int32()) for name in names]))
    block = read_protobuf(reader, wanted, pa.array([payload]))
    assert [column[0].as_py() for column in block.columns] == [10, 20, 30, 40]
    whole = dict(zip(names, (10, 20, 30, 40), strict=True))
    struct = pa.struct([(name, pa.int32()) for name in names])
    inside = tag(5, 2) + delimited(payload) + tag(5, 2) + delimited(b"")
    inside += tag(6, 2) + delimited(b"\x0a\1k" + tag(2, 2) + delimited(payload))
    columns = [("list", pa.list_(struct)), ("ms", pa.map_(pa.string(), struct))]
    nested = read_protobuf(reader, RequestedFields(pa.schema(columns)), pa.array([inside, b""]))
    zeros = dict.fromkeys(names, 0)
    assert nested.columns[0].to_pylist() == [[whole, zeros], []]
    assert nested.columns[1].to_pylist() == [[("k", whole)], []]
