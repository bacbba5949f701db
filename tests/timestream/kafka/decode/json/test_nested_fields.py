"""Nested fields of JSON values: by block, one by one, and by an oracle, with the same result."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT

from pyspark_timestream.kafka.decode.json import by_block
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.records import FINE, SYNTAX, TYPE, RequestedFields

OBJECT = pa.struct([("x", pa.int64()), ("q", pa.struct([("y", pa.string())]))])
KINDS = (pa.int64(), pa.string(), pa.float64(), INSTANT, pa.list_(pa.int64()), OBJECT)
names = st.sampled_from(["p", "q", "x", "y", "p.q"])


def quoted(path):
    return ".".join(f"`{name}`" if "." in name else name for name in path)


paths = st.lists(names, min_size=1, max_size=3).map(quoted)
columns = st.dictionaries(paths, st.sampled_from(KINDS), max_size=4)
wanted = st.builds(
    lambda of, raw: RequestedFields(pa.schema(list(of.items())), tuple(raw)),
    columns,
    st.lists(paths, unique=True, max_size=3),
)
leaves = st.sampled_from([None, 0, 7, 1.5, 2**53 + 1, "x", "7", "2013-01-01", True, [], [3]])
values = st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=4))
documents = st.dictionaries(names, values, max_size=5).map(lambda value: json.dumps(value).encode())
# A name that is there twice, which json.dumps cannot write.
doubles = st.tuples(names, values, values).map(
    lambda t: f'{{"p":{{"{t[0]}":{json.dumps(t[1])},"{t[0]}":{json.dumps(t[2])}}}}}'.encode()
)
others = st.sampled_from([None, b"", b"5", b"{}", b'{"p":', b'{"p":null}', b'{"p":{"q":5}}'])
texts = documents | documents | documents | doubles | others


def read(fields, values, few):
    """Per value: its columns, its raw fields with their types, and the reason."""
    block = parse_json(fields, pa.array(values, pa.binary()), few)
    assert [column.type for column in block.columns] == fields.columns.types
    for column in block.columns:
        column.validate(full=True)
    raws = [[v for piece in block.raw[name] for v in piece.to_pylist()] for name in fields.raw]
    assert {len(raw) for raw in [*raws, *block.columns]} <= {len(values)}
    return [
        ([column[i].as_py() for column in block.columns],
         [(type(raw[i]), raw[i]) for raw in raws], int(block.reasons[i]))
        for i in range(len(values))
    ]  # fmt: skip


@given(wanted, st.lists(texts, max_size=5))
@settings(max_examples=150, deadline=None)
def test_nested_fields_are_the_same_alone_and_beside_any_others(fields, values):
    alone = [row for value in values for row in read(fields, [value], 10**6)]
    assert read(fields, values, 10**6) == alone
    assert read(fields, values, 1) == alone
    twice = [value for value in values for _ in (1, 2)]
    assert read(fields, twice, 1)[::2] == alone


def walk(text, path):
    """The value of json.loads at the path, and whether something there is not an object."""
    value = json.loads(text)
    for name in path:
        if value is None:
            return None, False
        if type(value) is not dict:
            return None, True
        value = value.get(name)
    return value, False


@given(
    st.lists(st.lists(names, min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(documents | doubles, min_size=1, max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_long_columns_and_raw_fields_are_what_a_walk_through_json_finds(paths, values):
    fields = RequestedFields(
        pa.schema([(quoted(path), pa.int64()) for path in dict.fromkeys(map(tuple, paths))]),
        tuple(dict.fromkeys(map(quoted, paths))),
    )
    expected = []
    for value in values:
        walked = [walk(value, path) for path in dict.fromkeys(map(tuple, paths))]
        fits = [(None if type(v) is not int else v, not blocked and type(v) in (int, type(None)))
                for v, blocked in walked]  # fmt: skip
        raw = [v if type(v) in (int, float, str) else None for v, _ in walked]
        expected.append(([v for v, _ in fits], [(type(v), v) for v in raw],
                         FINE if all(fit for _, fit in fits) else TYPE))  # fmt: skip
    for few in (1, 10**6):
        assert read(fields, values, few) == expected


@given(
    st.lists(names, min_size=2, max_size=3),
    st.sampled_from(KINDS),
    st.lists(documents | doubles, min_size=1, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_a_path_finds_what_a_struct_column_of_its_parents_holds(path, kind, values):
    struct = kind
    for name in reversed(path[1:]):
        struct = pa.struct([(name, struct)])
    for few in (1, 10**6):
        nested = read(RequestedFields(pa.schema([(quoted(path), kind)])), values, few)
        whole = read(RequestedFields(pa.schema([(quoted(path[:1]), struct)])), values, few)
        for ((leaf,), _, reason), ((held,), _, expected) in zip(nested, whole, strict=True):
            for name in path[1:]:
                held = held and held[name]
            assert (leaf, reason) == (held, expected)


CHANGE = {"payload": {"op": "u", "ts_ms": 5, "after": {"id": 1, "a.b": "z"}, "before": None}}


def debezium(**changes):
    return json.dumps({"payload": {**CHANGE["payload"], **changes}}).encode()


@pytest.mark.parametrize("few", [1, 10**6])
@pytest.mark.parametrize(
    ("value", "found", "reason"),
    [
        (debezium(), [1, "z", None], FINE),
        (debezium(after=None), [None, None, None], FINE),
        (b'{"payload": null}', [None, None, None], FINE),
        (b"{}", [None, None, None], FINE),
        (debezium(before={"id": 2}), [1, "z", 2], FINE),
        (debezium(after=7), [None, None, None], TYPE),
        (debezium(after=[{"id": 1}]), [None, None, None], TYPE),
        (debezium(after="{}"), [None, None, None], TYPE),
        (debezium(after={"id": "one", "a.b": "z"}), [None, "z", None], TYPE),
        (b'{"payload": 5}', [None, None, None], TYPE),
        (b'{"payload": {', [None, None, None], SYNTAX),
    ],
)
def test_a_field_of_an_absent_parent_is_null_and_of_another_thing_malformed(
    few, value, found, reason
):
    fields = RequestedFields(
        pa.schema(
            [
                ("payload.after.id", pa.int64()),
                ("payload.after.`a.b`", pa.string()),
                ("payload.before.id", pa.int64()),
            ]
        )
    )
    good = ([1, "z", None], [], FINE)
    assert read(fields, [debezium(), value] * 2, few) == [good, (found, [], reason)] * 2


@pytest.mark.parametrize("few", [1, 10**6])
def test_a_raw_field_of_a_parent_that_is_not_an_object_is_null_and_not_malformed(few):
    fields = RequestedFields(pa.schema([]), ("payload.ts_ms",))
    rows = read(fields, [debezium(), b'{"payload": 5}', b'{"payload": null}', debezium()], few)
    nothing = ([], [(type(None), None)], FINE)
    assert rows == [([], [(int, 5)], FINE), nothing, nothing, ([], [(int, 5)], FINE)]


def read_schemas(fields, monkeypatch):
    """The explicit schemas that Arrow reads two values with."""
    found, before = [], by_block._read
    monkeypatch.setattr(by_block, "load_scanner", lambda: None)
    monkeypatch.setattr(
        by_block, "_read", lambda buffer, rows, schema: found.append(schema) or before(
            buffer, rows, schema)
    )  # fmt: skip
    assert read(fields, [debezium()] * 2, 1) == read(fields, [debezium()] * 2, 10**6)
    return found


AFTER = pa.struct([("id", pa.int64())])
TS_MS = [("ts_ms", pa.int64())]


@pytest.mark.parametrize(
    ("columns", "raw", "expected"),
    [
        # Parents are merged, and a struct takes in the paths that lead into it.
        ([("payload.op", pa.string()), ("payload.after.id", pa.int64())], ("payload.ts_ms",),
         [[("payload", pa.struct([("op", pa.string()), ("after", AFTER), *TS_MS]))]]),
        ([("payload", pa.struct([("after", AFTER)]))], ("payload.ts_ms",),
         [[("payload", pa.struct([("after", AFTER), *TS_MS]))]]),
        ([("payload", pa.struct([("ts_ms", pa.int64())]))], ("payload.ts_ms",),
         [[("payload", pa.struct([("ts_ms", pa.int64())]))]]),
        # A field that contradicts another one is read again.
        ([("payload", pa.struct([("ts_ms", pa.float64())]))], ("payload.ts_ms",),
         [[("payload", pa.struct([("ts_ms", pa.float64())]))],
          [("payload", pa.struct([("ts_ms", pa.int64())]))]]),
        ([("payload.ts_ms", pa.float64()), ("`payload`.ts_ms", pa.int64())], (),
         [[("payload", pa.struct([("ts_ms", pa.float64())]))],
          [("payload", pa.struct([("ts_ms", pa.int64())]))]]),
    ],
)  # fmt: skip
def test_arrow_reads_a_value_once_unless_fields_contradict_one_another(
    columns, raw, expected, monkeypatch
):
    schemas = read_schemas(RequestedFields(pa.schema(columns), raw), monkeypatch)
    assert schemas == [pa.schema(each) for each in expected]


def test_a_struct_column_shows_no_field_of_a_path_into_it():
    columns = pa.schema([("payload", pa.struct([("after", AFTER), ("op", pa.string())]))])
    fields = RequestedFields(columns, ("payload.ts_ms", "payload.after.`a.b`"))
    expected = ([{"after": {"id": 1}, "op": "u"}], [(int, 5), (str, "z")], FINE)
    nothing = ([None], [(type(None), None)] * 2, FINE)
    for few in (1, 10**6):
        assert read(fields, [debezium(), b"{}", debezium()], few) == [expected, nothing, expected]
