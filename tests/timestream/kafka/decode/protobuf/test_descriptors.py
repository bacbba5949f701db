"""Descriptor sets from registries and compilers: complete, and equal if their schemas are."""

import base64
import subprocess
import sys

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from timestream.protobuf_schemas import (
    descriptor_set,
    field,
    file,
    map_field,
    message,
)

from pyspark_timestream.errors import MissingExtra, SchemaRefused
from pyspark_timestream.kafka.decode.protobuf import descriptors
from pyspark_timestream.kafka.decode.protobuf.decode import read_protobuf
from pyspark_timestream.kafka.decode.protobuf.descriptors import (
    build_descriptor_set,
    create_reader,
    find_message_name,
)
from pyspark_timestream.kafka.decode.records import RequestedFields

PLACE = file(message("Place", field("x", 1, "int32")), name="place.proto", package="p", imports=())
TIMES = file(
    message("Times", field("at", 1, ".google.protobuf.Timestamp")),
    name="times.proto",
    package="p",
    imports=("google/protobuf/timestamp.proto",),
)
MAIN = file(
    message("M", field("place", 1, ".p.Place"), field("times", 2, ".p.Times")),
    name="main.proto",
    package="m",
    imports=("times.proto", "place.proto"),
)
REFERENCES = {each.name: each.SerializeToString() for each in (PLACE, TIMES)}
DATA = MAIN.SerializeToString()


def names(serialized):
    return [each.name for each in descriptor_pb2.FileDescriptorSet.FromString(serialized).file]


def read_x(reader):
    payloads = pa.array([b"\x0a\2\x08\5"])
    block = read_protobuf(reader, RequestedFields(pa.schema([("place.x", pa.int32())])), payloads)
    return block.columns[0].to_pylist()


@pytest.mark.parametrize("main", [DATA, base64.b64encode(DATA), base64.encodebytes(DATA)])
def test_a_registrys_files_are_a_set_with_imports_first(main):
    built = build_descriptor_set(main, REFERENCES)
    found = names(built)
    assert sorted(found) == [
        "google/protobuf/timestamp.proto",
        "main.proto",
        "place.proto",
        "times.proto",
    ]
    assert found.index("google/protobuf/timestamp.proto") < found.index("times.proto")
    assert found[-1] == "main.proto"
    assert read_x(create_reader(built, "m.M")) == [5]


def test_a_references_name_is_that_of_its_import():
    renamed = type(PLACE).FromString(REFERENCES["place.proto"])
    renamed.name = "default"
    references = REFERENCES | {"place.proto": renamed.SerializeToString()}
    assert read_x(create_reader(build_descriptor_set(DATA, references), "m.M")) == [5]


def test_a_schema_without_a_name_gets_one():
    nameless = type(MAIN).FromString(DATA)
    nameless.ClearField("name")
    built = build_descriptor_set(nameless.SerializeToString(), REFERENCES)
    assert read_x(create_reader(built, "m.M")) == [5]


def test_files_that_registries_take_for_granted_need_not_be_given():
    granted = (
        *("google/type/date.proto", "google/protobuf/struct.proto"),
        *("confluent/meta.proto", "confluent/type/decimal.proto"),
    )
    main = file(
        message("M", field("on", 1, ".google.type.Date"), field("n", 2, ".confluent.type.Decimal")),
        imports=granted,
    )
    reader = create_reader(build_descriptor_set(main.SerializeToString(), {}), "m.M")
    assert names(reader.descriptor_set) == ["test.proto"]
    columns = pa.schema([("n.scale", pa.int32())])
    block = read_protobuf(reader, RequestedFields(columns), pa.array([b"\x12\2\x18\5"]))
    assert block.columns[0].to_pylist() == [5]


@pytest.mark.parametrize("text", [b'syntax = "proto3";', b"\xff\xff", b"====", b"abc"])
def test_a_schemas_text_is_refused_with_the_way_to_its_compiled_form(text):
    with pytest.raises(SchemaRefused, match="format=serialized"):
        build_descriptor_set(text, {})
    with pytest.raises(SchemaRefused, match=r"imported schema 'place\.proto'"):
        build_descriptor_set(DATA, REFERENCES | {"place.proto": text})


def test_a_missing_import_is_named():
    with pytest.raises(SchemaRefused, match=r"lacks the imported file 'place\.proto'"):
        build_descriptor_set(DATA, {"times.proto": REFERENCES["times.proto"]})
    with pytest.raises(SchemaRefused, match=r"lacks the imported file 'p.*--include_imports"):
        create_reader(descriptor_set(MAIN), "m.M")


def test_files_that_import_each_other_are_refused():
    one = file(message("M"), name="one.proto", imports=("two.proto",))
    two = file(message("N"), name="two.proto", imports=("one.proto",))
    with pytest.raises(SchemaRefused, match="import each other"):
        create_reader(descriptor_set(one, two), "m.M")


@pytest.mark.parametrize("name", ["M", "m.N", "", ".m.M", "m.M.x"])
def test_an_unknown_message_is_refused_with_those_there_are(name):
    with pytest.raises(SchemaRefused, match=r"accepted: m\.M, p\.Place, p\.Times"):
        create_reader(build_descriptor_set(DATA, REFERENCES), name)


def test_bytes_that_are_no_descriptor_set_are_refused():
    with pytest.raises(SchemaRefused, match="is not a descriptor set"):
        create_reader(b"\xff", "m.M")


def test_descriptors_that_do_not_fit_together_are_refused():
    broken = file(message("M", field("x", 1, ".m.Nothing")), imports=())
    with pytest.raises(SchemaRefused, match=r"descriptor of 'm\.M' does not compile"):
        create_reader(descriptor_set(broken), "m.M")


def test_equal_schemas_have_equal_fingerprints_whoever_compiled_them():
    built = build_descriptor_set(DATA, REFERENCES)
    plain = create_reader(built, "m.M")
    other = descriptor_pb2.FileDescriptorSet.FromString(built)
    # A compiler notes names for JSON and places in the text, and has its own copy of such files.
    files = sorted(other.file, key=lambda each: each.name, reverse=True)
    for each in files:
        each.source_code_info.location.add(path=[4, 0], span=[1, 2, 3])
        for found in each.message_type:
            for member in found.field:
                member.json_name = "x"
        if each.name.startswith("google/"):
            each.options.java_package = "elsewhere"
    unused = file(message("Unused"), name="unused.proto", package="u", imports=())
    compiled = create_reader(descriptor_set(unused, *files), "m.M")
    assert compiled.fingerprint == plain.fingerprint
    assert compiled == plain


def test_different_schemas_and_messages_have_different_fingerprints():
    changed = type(MAIN).FromString(DATA)
    changed.message_type[0].field.add(name="z", number=3, type=5, label=1)
    readers = [
        create_reader(build_descriptor_set(DATA, REFERENCES), "m.M"),
        create_reader(build_descriptor_set(DATA, REFERENCES), "p.Place"),
        create_reader(build_descriptor_set(changed.SerializeToString(), REFERENCES), "m.M"),
    ]
    assert len({reader.fingerprint for reader in readers}) == 3


def test_message_indexes_lead_to_a_message_and_maps_do_not_count():
    labels, entry = map_field(".m.B", "labels", 1, "string", "int32")
    inner = message("Inner", nested=[message("Deep")])
    main = file(message("A"), message("B", labels, nested=[entry, inner])).SerializeToString()
    expected = {
        (0,): "m.A",
        (1,): "m.B",
        (1, 0): "m.B.Inner",
        (1, 0, 0): "m.B.Inner.Deep",
        (2,): None,
        (1, 1): None,
        (0, 0): None,
    }
    assert {indexes: find_message_name(main, indexes) for indexes in expected} == expected
    bare = file(message("A"), package="").SerializeToString()
    assert find_message_name(bare, (0,)) == "A"


def test_extensions_custom_options_and_message_sets_are_unknown_fields():
    base = message("M", field("i", 1, "int32"))
    base.extension_range.add(start=100, end=200)
    extended = file(base, syntax="proto2")
    extended.extension.add(name="more", number=100, type=5, label=1, extendee=".m.M")
    reader = create_reader(descriptor_set(extended), "m.M")
    columns = pa.schema([("i", pa.int32())])
    block = read_protobuf(reader, RequestedFields(columns), pa.array([b"\xa0\6\7\x08\5"]))
    assert block.columns[0].to_pylist() == [5]
    assert not block.malformed.any()


def test_schemas_of_editions_are_read():
    edition = file(message("M", field("i", 1, "int32"), field("m", 2, ".m.M")), syntax="editions")
    edition.edition = descriptor_pb2.EDITION_2023
    edition.message_type[0].field[
        0
    ].options.features.field_presence = descriptor_pb2.FeatureSet.IMPLICIT
    edition.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
    reader = create_reader(descriptor_set(edition), "m.M")
    wanted = RequestedFields(pa.schema([("i", pa.int32())]))
    block = read_protobuf(reader, wanted, pa.array([b"\x13\x08\5\x14", b"\x08\5"]))
    assert block.columns[0].to_pylist() == [0, 5]
    with pytest.raises(SchemaRefused, match=r"'m\.M\.m' is a group"):
        read_protobuf(reader, RequestedFields(pa.schema([("m", pa.binary())])), pa.array([b""]))


def test_a_missing_library_is_named_with_the_way_to_install_it(monkeypatch):
    descriptors.import_libraries.cache_clear()
    monkeypatch.setitem(sys.modules, "ptars", None)
    with pytest.raises(MissingExtra) as caught:
        descriptors.import_libraries()
    descriptors.import_libraries.cache_clear()
    assert str(caught.value).startswith("reading Protobuf needs ptars, which is not installed")
    assert "pip install 'pyspark-timestream[protobuf]'" in str(caught.value)


def test_no_module_imports_the_libraries_before_they_are_needed():
    code = (
        "import sys, pyspark_timestream.kafka.decode.protobuf.decode as d;"
        "assert not {'google.protobuf', 'ptars'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_librarys_own_timestamp_is_the_one_that_is_read():
    """Only a well-known name makes a well-known type, not a file of the user's under it."""
    own = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    own.message_type[0].field[0].number = 7
    main = file(message("M", field("at", 1, ".google.protobuf.Timestamp")), imports=(own.name,))
    reader = create_reader(descriptor_set(own, main), "m.M")
    wanted = RequestedFields(pa.schema([("at", pa.timestamp("us", tz="UTC"))]))
    block = read_protobuf(reader, wanted, pa.array([b"\x0a\2\x08\5"]))
    assert block.columns[0].cast(pa.int64()).to_pylist() == [5_000_000]


def test_a_map_whose_entries_are_no_key_and_value_is_refused_by_name():
    """Google's library takes them, and the columns of its map have no values."""
    mapped, entry = map_field(".m.M", "m", 1, "string", "int32")
    entry.field[1].name = "other"
    whole = descriptor_set(file(message("M", mapped, nested=[entry]), imports=()))
    with pytest.raises(SchemaRefused, match=r"entries of a map, 'm\.M\.MEntry'"):
        create_reader(whole, "m.M")


def test_a_name_that_is_not_utf8_is_refused_by_name():
    whole = descriptor_set(file(message("Place", field("x", 1, "int32")), imports=()))
    damaged = whole.replace(b"test.proto", b"test.prot\xf4")
    with pytest.raises(SchemaRefused, match="not UTF-8"):
        create_reader(damaged, "m.Place")
