"""Bad values in Avro payloads: one rule, read in columns and one by one (semantics 13.13)."""

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.avro_reading import COPIES, read, rows_of
from timestream.avro_schemas import comparable, write
from timestream.builders import INSTANT

from pyspark_timestream.kafka.decode.records import FINE, TYPE


@dataclass(frozen=True)
class Kind:
    """A writer's type, the reader's, the column's, and cases.

    A case is a value to write, what is read, and True if that is bad or has something bad in it.
    """

    writer: Any
    reader: Any
    column: pa.DataType
    cases: st.SearchStrategy


def leaf(writer, column, cases, reader=None):
    return Kind(writer, reader or writer, column, st.sampled_from(cases))


def decimal(digits):
    return {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 0}


def enum(name, *symbols):
    return {"type": "enum", "name": name, "symbols": [*symbols]}


def leaves(name):
    numbers = [(Decimal(n), Decimal(n) if n < 100 else None, n > 99) for n in (7, 100, 10**19)]
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    ints = [(3, 3, False), (None, None, True)]
    return [
        leaf("long", pa.int8(), [(7, 7, False), (1000, None, True)]),
        leaf(decimal(20), pa.decimal128(2, 0), numbers),
        leaf(decimal(8), pa.decimal128(2, 0), numbers[:2]),
        leaf("bytes", pa.string(), [(b"a", "a", False), (b"\xff", None, True)], "string"),
        leaf("string", pa.decimal128(4), [("\7", Decimal(7), False), ("", None, True)], decimal(4)),
        leaf(
            enum(name, "A", "B"),
            pa.string(),
            [("A", "A", False), ("B", None, True)],
            enum(name, "A"),
        ),
        leaf(["null", "int"], pa.int32(), ints, "int"),
        leaf(["null", "int"], pa.int32(), [(3, 3, False), (None, None, False)]),
        leaf(millis, INSTANT, [(2**62, None, True)]),
    ]


@st.composite
def kinds(draw, name, depth=3):
    form = draw(st.sampled_from(["leaf", "record", "array", "map"])) if depth else "leaf"
    if form == "leaf":
        return draw(st.sampled_from(leaves(name)))
    if form == "record":
        return draw(records(name, depth - 1))
    inner = draw(kinds(name + "i", depth - 1))
    items = st.lists(inner.cases, max_size=3)
    if form == "array":
        schemas = [{"type": "array", "items": each} for each in (inner.writer, inner.reader)]
        return Kind(*schemas, pa.list_(inner.column), items.map(judge_list))
    schemas = [{"type": "map", "values": each} for each in (inner.writer, inner.reader)]
    return Kind(*schemas, pa.map_(pa.string(), inner.column), items.map(judge_map))


def judge_list(items):
    lost = any(bad and read is None for _, read, bad in items)
    found = None if lost else [read for _, read, _ in items]
    return [value for value, _, _ in items], found, any(bad for _, _, bad in items)


def judge_map(items):
    values, found, bad = judge_list(items)
    named = None if found is None else [(f"k{at}", each) for at, each in enumerate(found)]
    return {f"k{at}": value for at, value in enumerate(values)}, named, bad


@st.composite
def records(draw, name, depth=3):
    fields = {
        f"{name}{at}": draw(kinds(f"{name}{at}", depth)) for at in range(draw(st.integers(1, 3)))
    }

    def record(side):
        typed = [{"name": each, "type": getattr(kind, side)} for each, kind in fields.items()]
        return {"type": "record", "name": f"r{name}", "fields": typed}

    def judge(cases):
        by_place = [{each: case[at] for each, case in cases.items()} for at in range(3)]
        return by_place[0], by_place[1], any(by_place[2].values())

    column = pa.struct([(each, kind.column) for each, kind in fields.items()])
    cases = st.fixed_dictionaries({each: kind.cases for each, kind in fields.items()}).map(judge)
    return Kind(record("writer"), record("reader"), column, cases)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_bad_values_follow_the_rule_in_columns_and_one_by_one(data):
    drawn = data.draw(records("f"))
    cases = data.draw(st.lists(drawn.cases, min_size=1, max_size=5))
    bodies = write(drawn.writer, [value for value, _, _ in cases])
    names = drawn.column.names
    expected = [
        (comparable([row[name] for name in names]), TYPE if bad else FINE) for _, row, bad in cases
    ]

    def read_all(some):
        ids = pa.array([1] * len(some), pa.int32())
        writers = {1: json.dumps(drawn.writer)}
        return rows_of(read(drawn.reader, drawn.column, some, writers=writers, ids=ids))

    assert [row for body in bodies for row in read_all([body])] == expected
    assert read_all(bodies) == expected
    copies = COPIES * 2
    assert read_all(bodies * copies) == expected * copies


def test_the_last_of_equal_keys_counts_at_the_place_of_the_first():
    entries = [(b"a", 1), (b"b", 2), (b"a", 3), (b"c", 4)]
    coded = b"".join(bytes([2 * len(key)]) + key + bytes([2 * item]) for key, item in entries)
    body = bytes([2 * len(entries)]) + coded + b"\0"
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "m", "type": {"type": "map", "values": "long"}}],
    }
    columns = [pa.field("m", pa.map_(pa.string(), pa.int64()))]
    expected = [([[["a", 3], ["b", 2], ["c", 4]]], FINE)]
    assert rows_of(read(schema, columns, [body])) == expected
    assert rows_of(read(schema, columns, [body] * 100)) == expected * 100
