"""A look at a sample: what is detected and shown, and that the options read it so."""

import ast
import io
import json
import struct

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from schema_registry import Mode, serve_schema_registry
from timestream.builders import at, block

from pyspark_timestream.commands.peek.command import format_report, format_snippet, to_json
from pyspark_timestream.commands.peek.examine import TopicSample, examine
from pyspark_timestream.core.declarations import suggests_secret
from pyspark_timestream.kafka.decode.columns import project
from pyspark_timestream.kafka.options.checks import read_kafka_options

GIVEN = {
    "transport": "kafka",
    "kafka.bootstrap.servers": "broker:9092",
    "subscribe": "topic",
}
BEGAN_MS = 1_700_000_000_000


def look(*values, given=(), **more):
    more.setdefault("timestamps_ms", [BEGAN_MS + n * 1_000 for n in range(len(values))])
    sample = TopicSample("topic", 1, len(values), ((at(0), block(*values, **more)),))
    return examine(sample, {**GIVEN, **dict(given)})


def as_json(**fields):
    return json.dumps(fields).encode()


def framed(schema_id, body):
    return b"\0" + struct.pack(">I", schema_id) + body


def test_json_fields_become_columns_by_their_paths():
    found = look(as_json(id=1, at={"x": 1.5, "a.b": [True]}, other=None), as_json(id=2))
    assert found.columns == (
        "id bigint",
        "`at.x` double",
        "`at.``a.b``` array<boolean>",
        "other string",
        "start_time timestamp",
    )
    assert found.rows.column("at.x").to_pylist() == [1.5, None]


def test_a_field_of_several_types_is_a_string():
    found = look(as_json(a=1, b=1), as_json(a="x", b=2.5), as_json(a={"c": 1}, b=None))
    assert found.columns[:2] == ("a string", "b double")
    assert found.rows.column("a").to_pylist() == ["1", "x", '{"c":1}']


def test_nothing_of_a_field_with_a_secrets_name_is_shown():
    secrets = {"password": "hunter2", "user": {"api_token": "hunter2", "name": "ada"}}
    inside = {"list": [{"pin": "hunter2", "n": 1}], "text": '{"secret": "hunter2"}'}
    mixed = as_json(mixed=[{"pwd": "hunter2"}], **secrets, **inside)
    headers = [[{"key": "auth_time", "value": b"2023-11-14T22:13:20Z"}]] * 2
    found = look(mixed, as_json(mixed=1, **secrets, **inside), headers=headers)
    assert found.secrets == 3
    for printed in (format_report(found, 500), to_json(found)):
        assert "hunter2" not in printed
        for name in ("password", "api_token", "pin", "pwd", "auth_time"):
            assert name not in printed
        assert "ada" in printed
        assert "(not shown)" in printed


def test_the_options_read_the_schema_that_is_printed_with_them():
    found = look(as_json(timestamp=1, a={"b": 1}, Offset=2), keys=[as_json(id=7)])
    options = read_kafka_options(found.options)
    projection = project(options, found.rows.drop(["(partition)", "(offset)"]).schema)
    assert options.metadata_prefix == "kafka_"
    assert projection.key_fields.names == ["key.id"]
    assert projection.fields.names == ["timestamp", "a.b", "Offset"]


def test_the_prefix_of_metadata_is_no_field_s_beginning():
    found = look(as_json(timestamp=1, kafka_start_time=2, _kafka_n=3), keys=[b"a"])
    projection = project(
        read_kafka_options(found.options),
        found.rows.drop(["(partition)", "(offset)"]).schema,
    )
    assert projection.fields.names == ["timestamp", "kafka_start_time", "_kafka_n"]
    assert set(projection.metadata.values()) == {"key", "start_time"}


def test_names_that_are_half_of_a_character_are_no_fields():
    found = look(b'{"\\ud800": 1, "a": [{"\\udc00": 1, "b": 2}]}')
    assert found.columns == ("a array<struct<b:bigint>>", "start_time timestamp")
    assert found.rows.column("a").to_pylist() == [[{"b": 2}]]


def test_an_option_that_the_user_gave_is_kept():
    values = [as_json(ts=BEGAN_MS, other="2023-11-14")] * 2
    assert look(*values).options["startTime"] == "field:ts"
    kept = look(*values, given={"startTime": "other", "metadataPrefix": "m_"}.items())
    assert kept.options["startTime"] == "other"
    assert kept.columns[-1] == "m_start_time timestamp"
    assert kept.candidates[0].source == "field:ts"


def test_framed_json_is_read_without_a_registry():
    found = look(*(framed(3, as_json(ts=BEGAN_MS)) for _ in range(2)))
    assert (found.options["valueFormat"], found.options["valueFraming"]) == ("json", "confluent")
    assert found.rows.column("ts").to_pylist() == [BEGAN_MS] * 2


def test_malformed_values_are_counted_by_reason():
    found = look(as_json(a=1), as_json(a=2), b"{")
    assert found.malformed == {"value: syntax": 1}
    assert "Malformed value: syntax, in 1 of 3 records" in format_report(found, 120)


def test_values_that_are_all_null_stay_binary():
    found = look(None, None)
    assert (found.columns, found.options.get("valueFormat")) == ((), None)
    assert "Values: all null" in format_report(found, 120)


def test_bytes_that_are_not_text_are_shown_by_their_beginning():
    printed = format_report(look(bytes([200] * 40), b"plain"), 200)
    assert "40 bytes: c8 c8 c8 c8 c8 c8 c8 c8..." in printed
    assert "plain" in printed


def test_a_table_is_cut_at_the_width_and_names_what_is_left_out():
    found = look(as_json(**{f"column_{n}": n for n in range(20)}))
    lines = format_report(found, 80).split("stream = (")[0].splitlines()
    table = [line for line in lines if "column" in line]
    assert max(map(len, table)) <= 80
    assert any(line.startswith("and 1") and "more columns" in line for line in lines)


def test_control_characters_of_values_are_escaped():
    printed = format_report(look(as_json(a="\x1b[31mred")), 120)
    assert "\x1b" not in printed
    assert "\\x1b[31mred" in printed


def test_secret_options_are_dots():
    sasl = {"password": "hunter2", "username": "ada-l", "mechanism": "PLAIN"}
    given = {f"kafka.sasl.{name}": text for name, text in sasl.items()}
    found = look(as_json(a=1), given=given.items())
    for printed in (format_report(found, 120), to_json(found)):
        assert "hunter2" not in printed
        assert "ada-l" not in printed
        assert "PLAIN" in printed


@pytest.mark.parametrize("registry", [{}, {"schemaRegistry.url": "http://127.0.0.1:1"}])
def test_a_registry_that_nothing_needs_is_left_out(registry):
    found = look(as_json(a=1), given=registry.items())
    assert found.notes == ()
    assert not [name for name in found.options if name.startswith("schemaRegistry")]


TRIP = {
    "type": "record",
    "name": "Trip",
    "fields": [{"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
}


@pytest.fixture
def registry():
    with serve_schema_registry() as served:
        yield served


def as_avro(ms, schema=TRIP):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"ts": ms})
    return out.getvalue()


def look_with(registry, *values):
    return look(*values, given={"schemaRegistry.url": registry.url}.items())


def test_avro_without_a_subject_is_read_by_its_writers_schema(registry):
    number = registry.register("elsewhere", json.dumps(TRIP))
    found = look_with(registry, *(framed(number, as_avro(BEGAN_MS + n)) for n in range(3)))
    assert json.loads(found.options["readerSchema"]) == TRIP
    assert found.options["startTime"] == "field:ts"
    read = read_kafka_options(found.options)
    assert (read.value_format, read.value_rules.framing) == ("avro", "confluent")
    assert [at.timestamp() for at in found.rows.column("ts").to_pylist()] == [
        1_700_000_000 + n / 1_000 for n in range(3)
    ]


def test_a_record_of_an_unknown_schema_is_noted_and_the_others_are_read(registry):
    number = registry.register("topic-value", json.dumps(TRIP))
    body = as_avro(BEGAN_MS)
    found = look_with(registry, framed(number, body), framed(99, body), framed(number, body))
    assert found.rows.column("ts").null_count == 1
    assert found.notes[0].startswith("1 of 3 values name a schema that the registry lacks")


def test_a_latest_schema_that_does_not_fit_leaves_values_binary_with_a_note(registry):
    number = registry.register("topic-value", json.dumps(TRIP))
    kinds = {"type": "map", "values": "string"}
    other = {**TRIP, "fields": [{**field, "type": kinds} for field in TRIP["fields"]]}
    registry.register("topic-value", json.dumps(other))
    found = look_with(registry, framed(number, as_avro(BEGAN_MS)))
    assert found.options.get("valueFormat") is None
    assert found.columns == ()
    assert f"written with schema {number} and is read by schema" in found.notes[0]


def test_a_registry_is_asked_once_for_each_id(registry):
    number = registry.register("topic-value", json.dumps(TRIP))
    look_with(registry, *[framed(number, as_avro(BEGAN_MS))] * 5, *[framed(98, b"x")] * 2)
    assert registry.count("/schemas/ids/98") == 1
    assert registry.count(f"/schemas/ids/{number}") <= 2


def test_more_fields_than_a_schema_is_to_have_are_counted():
    found = look(as_json(**{f"f{n}": n for n in range(65)}))
    assert len(found.columns) == 61
    assert found.notes == ("the values have 5 more fields, which are not in the schema",)


def test_texts_that_may_hold_secrets_are_not_shown():
    printed = format_report(look(b"user=ada;password=hunter2", b"plain"), 200)
    assert "hunter2" not in printed
    assert "plain" in printed


@pytest.mark.parametrize("name", ["_corrupt_record", "_corrupt_record_reason"])
def test_a_field_with_the_name_of_malformed_values_keeps_its_content(name):
    found = look(as_json(**{name: "x", "_malformed": 1}), as_json(**{name: "y"}))
    assert found.options["columnNameOfCorruptRecord"] == "__malformed"
    assert found.rows.column(name).to_pylist() == ["x", "y"]
    assert f"{name} string" in found.columns


def test_fields_of_values_that_begin_as_fields_of_keys_keep_their_content():
    found = look(as_json(key={"id": 5}), keys=[as_json(id=7)])
    assert found.rows.column("key.id").to_pylist() == [5]
    assert found.rows.column("record_key.id").to_pylist() == [7]


def test_a_name_with_an_emoji_is_printed_as_python_reads_it():
    name = "\N{GRINNING FACE} é"
    found = look(as_json(**{name: 1, "ts": BEGAN_MS}))
    printed = format_snippet(found.options, found.columns)
    printed.encode()
    begin, end = printed.index(".schema(") + 7, printed.rindex(")\n    .load")
    schema = ast.literal_eval(printed[begin : end + 1])
    assert f"`{name}` bigint" in schema
    # A terminal that lacks the letter prints its escape, and Python reads the same.
    escaped = printed.encode("ascii", "backslashreplace").decode()
    begin, end = escaped.index(".schema(") + 7, escaped.rindex(")\n    .load")
    assert ast.literal_eval(escaped[begin : end + 1]) == schema


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (b"\xef\xbb\xbf" + as_json(a=1), "a byte order mark before the text"),
        (b'[{"a": 1}, {"a": 2}]', "a JSON array of objects"),
        (as_json(a=1) + b"\n" + as_json(a=2), "several JSON texts in one record"),
        (json.dumps(json.dumps({"a": 1})).encode(), "JSON within a JSON text"),
    ],
)
def test_what_is_nearly_json_is_named_and_what_to_do(content, form):
    found = look(content, content, as_json(a=1))
    assert found.detections[0].format == "binary"
    (note,) = found.notes
    assert note.startswith(f"2 of 3 values are not JSON objects, but {form}")
    assert look(b"plain text", b"\1\2").notes == ()


@pytest.mark.parametrize(
    "name",
    ["key", "Key", "author", "authors", "AUTHOR_ID", "authority", "coAuthorName", "cardinality",
     "primary_key", "PRIMARY-KEY", "foreign_key", "foreignKey", "partition_key", "partitionKey",
     "sort_key", "record_key", "recordKey", "keyboard", "spinner"],
)  # fmt: skip
def test_an_innocent_name_is_no_secret(name):
    assert not suggests_secret(name)
    found = look(as_json(attributes=[{name: "shown", "value": 1}]))
    assert found.secrets == 0
    assert found.rows.column("attributes").to_pylist()[0][0][name] == "shown"


@pytest.mark.parametrize(
    "name",
    ["password", "DB_PASSWD", "apiKey", "api_key", "APIKEY", "accessKeys", "authToken", "oauth",
     "x-auth", "Authorization", "credit_card", "cardNumber", "cvv2", "pin", "userPin", "ssn",
     "iban", "client_secret", "cookie", "privateKey", "ssh-key", "session_key", "authkey",
     "authcode", "authOrigin", "authorisation", "AUTHORIZED", "hmac_key", "client_key",
     "consumer_key", "device_key", "primaryKey", "rsakey", "author_key", "userpin", "pin_code",
     "debtoriban", "userssn", "cardholder", "creditcardnumber", "mastercardno", "sas_key",
     "instrumentationKey", "connection_key", "basicauth", "api_keys", "apikey_v2"],
)  # fmt: skip
def test_a_secrets_name_stays_one(name):
    assert suggests_secret(name)
    assert look(as_json(attributes=[{name: "shown", "value": 1}])).secrets == 1


def test_an_unsigned_number_of_64_bits_may_be_the_time(registry):
    """As `header.timestamp` of GTFS."""
    file = descriptor_pb2.FileDescriptorProto(name="gtfs.proto", package="gtfs", syntax="proto3")
    header = file.message_type.add(name="Feed").nested_type.add(name="Header")
    header.field.add(name="timestamp", number=1, type=4, label=1)
    file.message_type[0].field.add(
        name="header", number=1, type=11, label=1, type_name=".gtfs.Feed.Header"
    )
    number = registry.register(
        "topic-value", "message Feed {}", "PROTOBUF", (), file.SerializeToString()
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    feed = message_factory.GetMessageClass(pool.FindMessageTypeByName("gtfs.Feed"))
    values = []
    for second in range(3):
        message = feed()
        message.header.timestamp = BEGAN_MS // 1000 + second
        values.append(framed(number, b"\0" + message.SerializeToString()))
    found = look_with(registry, *values)
    assert found.columns[0] == "`header.timestamp` decimal(20,0)"
    assert found.options["startTime"] == "field:header.timestamp"
    assert found.options["timeUnit"] == "s"
    assert found.rows.column("start_time")[0].as_py().year == 2023


def test_a_subject_in_a_context_is_asked_for_with_its_ids(registry):
    number = registry.register(":.staging:topic-value", json.dumps(TRIP))
    given = {"schemaRegistry.url": registry.url, "valueSubject": ":.staging:topic-value"}
    found = look(framed(number, as_avro(BEGAN_MS)), given=given)
    assert found.options["valueSubject"] == ":.staging:topic-value"
    assert found.options["valueFormat"] == "avro"
    assert found.reader_schemas["value"].subject == ":.staging:topic-value"
    assert found.notes == ()


@pytest.mark.parametrize("subject", ["lost-value", ":.lost:topic-value"])
def test_a_subject_that_cannot_be_had_is_a_note_and_no_error(subject, registry):
    number = registry.register("topic-value", json.dumps(TRIP))
    given = {"schemaRegistry.url": registry.url, "valueSubject": subject}
    found = look(framed(number, as_avro(BEGAN_MS)), given=given)
    assert found.options.get("valueFormat") is None
    assert found.notes


def test_after_a_failure_the_registry_that_was_given_is_not_asked_for(registry):
    number = registry.register("topic-value", json.dumps(TRIP))
    registry.mode = Mode.FORBIDDEN
    given = {"schemaRegistry.url": registry.url, "valueSubject": "topic-value"}
    found = look(framed(number, as_avro(BEGAN_MS)), given=given)
    (note,) = found.notes
    assert "it answered 403" in note
    assert "--schema-registry" not in note
