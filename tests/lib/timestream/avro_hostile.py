"""Avro payloads that claim what they do not have, and their fate."""

import random

import pyarrow as pa
from timestream.avro_reading import read

from pyspark_timestream.kafka.decode.records import FINE, SYNTAX


def zigzag(number):
    number = number * 2 if number >= 0 else -2 * number - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def record(*types):
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields}


def array(items):
    return {"type": "array", "items": items}


EMPTY = {"type": "record", "name": "Empty", "fields": []}

FIXED = {"type": "fixed", "name": "F", "size": 2**40}

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}

BOTH = record("long", "string")

GOOD = zigzag(5) + zigzag(3) + b"abc"

LONGS = pa.list_(pa.int64())

CASES = {
    "trailing bytes": (BOTH, pa.int64(), GOOD + b"\0"),
    "truncated text": (BOTH, pa.int64(), GOOD[:-1]),
    "empty": (BOTH, pa.int64(), b""),
    "a number without an end": (BOTH, pa.int64(), b"\x80"),
    "nine bytes without an end": (BOTH, pa.int64(), b"\x80" * 9),
    "a negative length": (BOTH, pa.int64(), zigzag(5) + zigzag(-2) + b"abc"),
    "a length of 2^40": (BOTH, pa.int64(), zigzag(5) + zigzag(2**40) + b"abc"),
    "a length of 2^63 - 1": (BOTH, pa.int64(), zigzag(5) + zigzag(2**63 - 1) + b"abc"),
    "the least length": (BOTH, pa.int64(), zigzag(5) + zigzag(-(2**63)) + b"abc"),
    "a number of 11 bytes": (BOTH, pa.int64(), b"\xff" * 10 + b"\x01\x00"),
    "a number of 65 bits": (BOTH, pa.int64(), b"\xff" * 9 + b"\x02\x00"),
    "an int of 33 bits": (record("int"), pa.int32(), zigzag(2**31)),
    "an int of 6 bytes": (record("int"), pa.int32(), b"\x81\x80\x80\x80\x80\x00"),
    "a branch that is not there": (record(["null", "long"]), pa.int64(), zigzag(2) + zigzag(1)),
    "a negative branch": (record(["null", "long"]), pa.int64(), zigzag(-1) + zigzag(1)),
    "a branch of 2^40": (record(["null", "long"]), pa.int64(), zigzag(2**40) + zigzag(1)),
    "a symbol that is not there": (record(ENUM), pa.string(), zigzag(2)),
    "a negative symbol": (record(ENUM), pa.string(), zigzag(-1)),
    "text that is not UTF-8": (record("string"), pa.string(), zigzag(2) + b"\xff\xfe"),
    "a surrogate as UTF-8": (record("string"), pa.string(), zigzag(3) + b"\xed\xa0\x80"),
    "a boolean of 2": (record("boolean"), pa.bool_(), b"\x02"),
    "half a double": (record("double"), pa.float64(), b"\0" * 4),
    "three bytes of a float": (record("float"), pa.float32(), b"\0" * 3),
    "a fixed size of 2^40": (record(FIXED), pa.binary(), b"\0" * 9),
    "2^40 items": (record(array("long")), LONGS, zigzag(2**40) + zigzag(1) + b"\0"),
    "2^63 items in blocks": (record(array("long")), LONGS, zigzag(2**63 - 1) + b"\0"),
    "2^40 nulls": (record(array("null"), "long"), None, zigzag(2**40) + b"\0" + zigzag(1)),
    "2^40 empty records": (record(array(EMPTY), "long"), None, zigzag(2**40) + b"\0\0"),
    "arrays of many nulls": (
        record(array(array("null")), "long"),
        None,
        zigzag(9) + (zigzag(20) + b"\0") * 9 + b"\0" + zigzag(1),
    ),
    "the least number of items": (
        record(array("long")),
        LONGS,
        zigzag(-(2**63)) + zigzag(1) + zigzag(1) + b"\0",
    ),
    "a block that is longer than it says": (
        record(array("long")),
        LONGS,
        zigzag(-2) + zigzag(1) + zigzag(1) + zigzag(2) + b"\0",
    ),
    "a block that is shorter than it says": (
        record(array("long")),
        LONGS,
        zigzag(-1) + zigzag(2) + zigzag(1) + b"\0\0",
    ),
    "a block of negative size": (
        record(array("long")),
        LONGS,
        zigzag(-1) + zigzag(-1) + zigzag(1) + b"\0",
    ),
    "an array without an end": (record(array("long")), LONGS, zigzag(1) + zigzag(1)),
    "a key that is not UTF-8": (
        record({"type": "map", "values": "long"}),
        pa.map_(pa.string(), pa.int64()),
        zigzag(1) + zigzag(1) + b"\xff" + zigzag(1) + b"\0",
    ),
    "a key of 2^40 bytes": (
        record({"type": "map", "values": "long"}),
        pa.map_(pa.string(), pa.int64()),
        zigzag(1) + zigzag(2**40) + b"k" + zigzag(1) + b"\0",
    ),
}


def check_contradiction(case, copies):
    """All of `copies` payloads of this case are malformed for any columns."""
    schema, kind, body = CASES[case]
    column = pa.field("f0", kind) if kind is not None else pa.field("f1", pa.int64())
    for columns in ([column], []):
        if columns or "UTF-8" not in case:  # A text that is passed over is not looked at.
            block = read(schema, columns, [body] * copies)
            assert block.reasons.tolist() == [SYNTAX] * copies
            assert all(each.null_count == copies for each in block.columns)


LINKED = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "f0", "type": "long"},
        {
            "name": "next",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "N",
                    "fields": [{"name": "n", "type": ["null", "N"]}, {"name": "v", "type": "int"}],
                },
            ],
        },
    ],
}


def check_depth():
    def chain(depth):
        return zigzag(9) + b"\x02" * depth + b"\0" + b"\0" * depth

    columns = [pa.field("f0", pa.int64()), pa.field("next.v", pa.int32())]
    bodies = [chain(depth) for depth in (0, 1, 50, 99, 100, 5_000, 1_000_000)]
    block = read(LINKED, columns, bodies)
    assert block.reasons.tolist() == [FINE] * 4 + [SYNTAX] * 3
    assert block.columns[0].to_pylist() == [9] * 4 + [None] * 3
    assert block.columns[1].to_pylist() == [None, 0, 0, 0, None, None, None]
    deep = read(LINKED, [pa.field("next.n.n.v", pa.int32())], bodies)
    assert deep.columns[0].to_pylist() == [None, None, 0, 0, None, None, None]
    assert deep.reasons.tolist() == read(LINKED, [], bodies).reasons.tolist()
    assert deep.reasons.tolist() == block.reasons.tolist()


def poison(count):
    """`count` hostile bodies for one schema that has every kind of type."""
    chance = random.Random(15)
    odd = [body for _, _, body in CASES.values()]
    for number in range(count):
        if number % 10 == 0:
            yield b"\x02" * chance.choice([1, 100, 10_000])
        elif number % 3:
            yield chance.choice(odd) + chance.choice(odd)
        else:
            yield chance.randbytes(chance.randrange(200))


EVERYTHING = record(
    "long",
    ["null", "string"],
    array(array("null")),
    {"type": "map", "values": array(EMPTY)},
    array("string"),
    FIXED,
)
