"""Avro payloads: equal to fastavro's reader, and the same however a block is divided."""

import io
import json

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.avro_reading import COPIES, read, rows_of
from timestream.avro_schemas import comparable, parse, records, write
from timestream.builders import INSTANT

from pyspark_timestream.core.instants import read_value_times
from pyspark_timestream.kafka.decode.avro.by_row import read_avro
from pyspark_timestream.kafka.decode.avro.schemas import parse_avro_reader
from pyspark_timestream.kafka.decode.records import FINE, SYNTAX, RequestedFields


def read_singly(schema, columns, bodies):
    return [row for body in bodies for row in rows_of(read(schema, columns, [body]))]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_records_of_any_schema_equal_what_fastavro_reads(data):
    drawn = data.draw(records("r"))
    values = data.draw(st.lists(drawn.values, min_size=2, max_size=6))
    bodies = write(drawn.schema, values)
    parsed = parse(drawn.schema)
    names = [field.name for field in drawn.column]
    expected = []
    for body in bodies:
        oracle = drawn.convert(fastavro.schemaless_reader(io.BytesIO(body), parsed, parsed))
        expected.append((comparable([oracle[name] for name in names]), FINE))
    assert rows_of(read(drawn.schema, drawn.column, bodies)) == expected
    assert rows_of(read(drawn.schema, drawn.column, bodies * COPIES)) == expected * COPIES


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_bytes_among_records_change_no_neighbour_at_any_split(data):
    drawn = data.draw(records("r"))
    good = write(drawn.schema, data.draw(st.lists(drawn.values, min_size=1, max_size=4)))
    spoilt = [data.draw(spoil(body)) for body in good]
    bodies = data.draw(st.permutations([*good, *spoilt, None]))
    wanted = data.draw(st.lists(st.sampled_from(list(drawn.column)), unique_by=lambda f: f.name))
    expected = read_singly(drawn.schema, wanted, bodies)
    for body, (_, reason) in zip(bodies, expected, strict=True):
        assert reason == FINE or body not in good
    assert rows_of(read(drawn.schema, wanted, bodies * COPIES)) == expected * COPIES
    cut = data.draw(st.integers(0, len(bodies)))
    halves = bodies[:cut] * COPIES, bodies[cut:] * COPIES
    assert rows_of(read(drawn.schema, wanted, halves[0])) == expected[:cut] * COPIES
    assert rows_of(read(drawn.schema, wanted, halves[1])) == expected[cut:] * COPIES


@st.composite
def spoil(draw, body):
    """Change, insert or cut a few bytes."""
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        length = draw(st.integers(0, 3))
        odd = st.sampled_from([b"\xff", b"\x80", b"\x00", b"\x7f", b"\xff" * 9 + b"\x01"])
        changed[at : at + length] = draw(odd | st.binary(max_size=4))
    return bytes(changed)


LOG = {
    "type": "record",
    "name": "Log",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", LOG]},
        {"name": "after", "type": ["null", "Log"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "seen", "type": {"type": "long", "logicalType": "local-timestamp-nanos"}},
        {"name": "n", "type": "int"},
    ],
}


def envelopes(count):
    for i in range(count):
        log = {"id": i, "text": f"t{i}" if i % 3 else None, "at": 1000 * i}
        yield {"before": None, "after": log if i % 5 else None, "day": i, "seen": i - 50, "n": -i}


@pytest.mark.parametrize("count", [7, 100])
def test_paths_lead_into_records_and_a_null_record_has_null_fields(count):
    bodies = write(plain(ENVELOPE), envelopes(count))
    columns = [("after.id", pa.int64()), ("`after`.text", pa.string()), ("n", pa.int16())]
    block = read(ENVELOPE, [pa.field(*column) for column in columns], bodies)
    assert block.columns[0].to_pylist() == [i if i % 5 else None for i in range(count)]
    expected = [f"t{i}" if i % 5 and i % 3 else None for i in range(count)]
    assert block.columns[1].to_pylist() == expected
    assert block.columns[2].to_pylist() == [-i for i in range(count)]
    assert [column.type for column in block.columns] == [kind for _, kind in columns]
    assert not block.malformed.any()


@pytest.mark.parametrize("count", [7, 100])
def test_raw_fields_are_read_as_times_and_other_raw_fields_stay_as_they_are(count):
    raw = ("after.at", "day", "seen", "n", "after.text")
    block = read(ENVELOPE, [], write(plain(ENVELOPE), envelopes(count)), raw)
    found = {name: pa.concat_arrays(pieces) for name, pieces in block.raw.items()}
    assert [found[name].type for name in ("n", "after.text")] == [pa.int32(), pa.string()]

    def times(name):
        us, known = read_value_times(found[name], "s")
        return [at if is_known else None for at, is_known in zip(us.tolist(), known, strict=True)]

    assert times("after.at") == [1_000_000 * i if i % 5 else None for i in range(count)]
    assert times("day") == [86_400_000_000 * i for i in range(count)]
    assert times("seen") == [(i - 50) // 1000 for i in range(count)]


def plain(schema):
    """The schema without logical types, so that fastavro writes whole numbers as they are."""
    text = json.dumps(schema)
    for unit in ("millis", "nanos"):
        text = text.replace(f'"logicalType": "timestamp-{unit}"', '"x": 0')
        text = text.replace(f'"logicalType": "local-timestamp-{unit}"', '"x": 0')
    return json.loads(text.replace('"logicalType": "date"', '"x": 0'))


@pytest.mark.parametrize("copies", [1, 50])
def test_a_null_body_is_a_row_of_nulls_and_not_malformed(copies):
    bodies = [*write(plain(LOG), [{"id": 1, "text": "a", "at": 0}]), None] * copies
    block = read(LOG, [pa.field("id", pa.int64())], bodies)
    assert block.columns[0].to_pylist() == [1, None] * copies
    assert not block.malformed.any()


def test_no_bodies_give_empty_columns_of_the_wanted_types():
    block = read(LOG, [pa.field("at", INSTANT)], [], ("id",))
    assert [column.type for column in block.columns] == [INSTANT]
    assert len(block.columns[0]) == len(block.reasons) == sum(map(len, block.raw["id"])) == 0


@pytest.mark.parametrize("copies", [1, 50])
def test_groups_of_several_writers_come_back_in_the_order_of_the_payloads(copies):
    other = {"type": "record", "name": "Log", "fields": [{"name": "id", "type": "int"}]}
    ours = write(plain(LOG), [{"id": i, "text": None, "at": 0} for i in (1, 2)])
    theirs = write(other, [{"id": i} for i in (3, 4)])
    bodies = [theirs[0], ours[0], None, ours[1], theirs[1], b"\xff"] * copies
    ids = pa.array([9, 7, None, 7, 9, 7] * copies, pa.int32())
    writers = {7: json.dumps(LOG), 9: json.dumps(other)}
    block = read(LOG, [pa.field("id", pa.int64())], bodies, (), writers, ids)
    assert block.columns[0].to_pylist() == [3, 1, None, 2, 4, None] * copies
    assert block.reasons.tolist() == [0, 0, 0, 0, 0, SYNTAX] * copies
    assert block.schema_ids.equals(ids)


def test_blocks_of_a_sliced_array_are_read_at_their_own_places():
    bodies = pa.array(write(plain(LOG), [{"id": i, "text": "x", "at": 0} for i in range(300)]))
    reader = parse_avro_reader(json.dumps(LOG))
    wanted = RequestedFields(pa.schema([("id", pa.int64())]))
    block = read_avro(reader, wanted, bodies.slice(100, 100), {})
    assert block.columns[0].to_pylist() == list(range(100, 200))


def test_large_blocks_are_read_in_pieces_that_come_back_in_order():
    bodies = write(plain(LOG), ({"id": i, "text": str(i), "at": i} for i in range(20_000)))
    bodies[9_000] = b"\xff"
    ids = pa.array([i // 50 % 2 for i in range(20_000)], pa.int32())
    writers = {0: json.dumps(LOG), 1: json.dumps({**LOG, "doc": "the same"})}
    for block in (
        read(LOG, [pa.field("text", pa.string())], bodies, ("id",)),
        read(LOG, [pa.field("text", pa.string())], bodies, ("id",), writers, ids),
    ):
        numbers = [None if i == 9_000 else i for i in range(20_000)]
        assert pa.concat_arrays(block.raw["id"]).to_pylist() == numbers
        texts = [None if number is None else str(number) for number in numbers]
        assert block.columns[0].to_pylist() == texts
        assert block.reasons.nonzero()[0].tolist() == [9_000]


def test_a_payload_that_names_no_branch_has_no_name_beside_another_writer():
    """Not the last name of the writer before it."""
    union = [{"type": "record", "name": name, "fields": []} for name in "AB"]
    schema = {"type": "record", "name": "A", "fields": []}
    reader = parse_avro_reader(json.dumps(schema))
    writers = {1: json.dumps(schema), 2: json.dumps(union)}
    bodies = pa.array([b"", b"\x00", b"\x08", None], pa.binary())
    ids = pa.array([1, 2, 2, 2], pa.int32())
    block = read_avro(
        reader, RequestedFields(pa.schema([]), needs_names=True), bodies, writers, ids
    )
    assert block.names.to_pylist() == ["A", "A", None, None]
    assert block.reasons.tolist() == [FINE, FINE, SYNTAX, FINE]
