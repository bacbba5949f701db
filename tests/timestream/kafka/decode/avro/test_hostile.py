"""Hostile Avro payloads: malformed in bounded time and memory, and no neighbour is harmed."""

import json
import random
import struct
import subprocess
import sys
import time

import pyarrow as pa
import pytest
from timestream.kafka.decode.avro.test_read import read

from pyspark_timestream.kafka.decode.records import FINE, SYNTAX

COPIES = 60


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
COLUMNS = {"long": pa.int64(), "int": pa.int32(), "string": pa.string(), "boolean": pa.bool_()}

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


@pytest.mark.parametrize("copies", [1, COPIES])
@pytest.mark.parametrize("case", CASES)
def test_bytes_that_contradict_their_schema_are_malformed_syntax(case, copies):
    schema, kind, body = CASES[case]
    column = pa.field("f0", kind) if kind is not None else pa.field("f1", pa.int64())
    for columns in ([column], []):
        if columns or "UTF-8" not in case:  # A text that is passed over is not looked at.
            block = read(schema, columns, [body] * copies)
            assert block.reasons.tolist() == [SYNTAX] * copies
            assert all(each.null_count == copies for each in block.columns)


@pytest.mark.parametrize("copies", [1, COPIES])
def test_odd_encodings_that_avro_allows_are_read(copies):
    block = [zigzag(-2), zigzag(2), zigzag(1), zigzag(2), zigzag(1), zigzag(3), b"\0"]
    for kind, column, body, value in [
        (array("long"), LONGS, b"".join(block), [1, 2, 3]),
        ("long", pa.int64(), b"\x82\x80\x80\x00", 1),
        ("long", pa.int64(), b"\xff" * 9 + b"\x01", -(2**63)),
        ("long", pa.int64(), zigzag(2**62), 2**62),
        ("long", pa.int64(), zigzag(2**55), 2**55),
        ("int", pa.int32(), b"\x82\x80\x80\x80\x00", 1),
        (["long"], pa.int64(), zigzag(0) + zigzag(7), 7),
        ("double", pa.float64(), struct.pack("<d", 1.5), 1.5),
        (array("null"), pa.list_(pa.null()), zigzag(1) + b"\0", [None]),
    ]:
        found = read(record(kind), [pa.field("f0", column)], [body] * copies)
        assert found.columns[0].to_pylist() == [value] * copies
        assert not found.malformed.any()


@pytest.mark.parametrize("copies", [1, COPIES])
def test_a_key_that_occurs_twice_has_its_last_value(copies):
    entries = zigzag(2) + zigzag(1) + b"k" + zigzag(4) + zigzag(1) + b"k" + zigzag(5) + b"\0"
    column = pa.field("f0", pa.map_(pa.string(), pa.int64()))
    block = read(record({"type": "map", "values": "long"}), [column], [entries] * copies)
    assert block.columns[0].to_pylist() == [[("k", 5)]] * copies


@pytest.mark.parametrize("copies", [1, COPIES])
def test_maps_and_arrays_inside_others_are_read_by_the_same_rules(copies):
    twice = zigzag(2) + zigzag(1) + b"k" + zigzag(4) + zigzag(1) + b"k" + zigzag(5) + b"\0"
    inner = {"type": "map", "values": "long"}
    kind = pa.list_(pa.map_(pa.string(), pa.int64()))
    body = zigzag(1) + zigzag(2) + twice + twice + b"\0"
    block = read(record(["null", array(inner)]), [pa.field("f0", kind)], [body, b"\0"] * copies)
    assert block.columns[0].to_pylist() == [[[("k", 5)], [("k", 5)]], None] * copies
    many = zigzag(100) + b"\2" * 100 + b"\0"
    body = zigzag(1) + zigzag(1) + many + b"\0"
    nested = record(["null", array(array("long"))])
    block = read(nested, [pa.field("f0", pa.list_(LONGS))], [body, b"\0"] * copies)
    assert block.columns[0].to_pylist() == [[[1] * 100], None] * copies


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


def test_types_that_contain_themselves_are_passed_over_to_a_limit():
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


@pytest.mark.parametrize("many", [1, 50])
@pytest.mark.parametrize("length", [7, 8, 9, 10, 500])
def test_long_arrays_are_read_whole_beside_short_ones(length, many):
    def body(count):
        return zigzag(count) + b"".join(map(zigzag, range(count))) + b"\0"

    counts = [length, *[1, 2, 3] * 20, *[length] * many]
    block = read(record(array("long")), [pa.field("f0", LONGS)], [body(n) for n in counts])
    assert block.columns[0].to_pylist() == [list(range(count)) for count in counts]
    assert not block.malformed.any()


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


@pytest.mark.parametrize("schema", [EVERYTHING, {**LINKED, "name": "L"}], ids=["all", "linked"])
def test_ten_thousand_hostile_payloads_are_malformed_in_seconds(schema):
    bodies = list(poison(10_000))
    begun = time.thread_time()
    block = read(schema, [pa.field("f0", pa.int64())], bodies)
    assert time.thread_time() - begun < 10
    assert block.malformed.mean() > 0.9


MEMORY_TEST = """
import resource, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/lib"]
from timestream.kafka.decode.avro import test_hostile
import pyarrow as pa
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**30, held + 2**30))
for case in test_hostile.CASES:
    for copies in (1, 60):
        test_hostile.test_bytes_that_contradict_their_schema_are_malformed_syntax(case, copies)
test_hostile.test_types_that_contain_themselves_are_passed_over_to_a_limit()
test_hostile.read(test_hostile.EVERYTHING, [], list(test_hostile.poison(10_000)))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown // 1024)
"""


def test_hostile_payloads_take_no_memory_by_what_they_claim():
    code = MEMORY_TEST.format(tests=next(path for path in sys.path if path.endswith("/tests")))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 200  # MB


LONG_ARRAYS = """
import resource, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/lib"]
from timestream.kafka.decode.avro.test_hostile import *
length = 500_000
nulls = zigzag(length) + b"\\0" + b"p" * length
schema = record(array("null"), {{"type": "fixed", "name": "P", "size": length}})
read(schema, [pa.field("f0", pa.list_(pa.int8()))], [nulls[:50]])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bodies = [nulls] * 50
held = pa.array(bodies, pa.binary())
before = peak()
block = read(schema, [], held)
assert not block.malformed.any()
print((peak() - before) // 1024)
"""


def test_long_arrays_take_memory_by_piece_and_not_by_block():
    """50 records of half a MB, each with an array of half a million items without bytes."""
    tests = next(path for path in sys.path if path.endswith("/tests"))
    code = LONG_ARRAYS.format(tests=tests)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 150  # MB


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("copies", [1, COPIES])
def test_a_signalling_nan_is_a_nan_without_a_warning(copies):
    for kind, bits in (("float", b"\1\0\x80\x7f"), ("double", b"\1\0\0\0\0\0\xf0\x7f")):
        for column in (pa.float32(), pa.float64())[kind == "double" :]:
            block = read(record(kind), [pa.field("f0", column)], [bits] * copies, ("f0",))
            assert set(map(str, block.columns[0].to_pylist())) == {"nan"}
    writers = {1: json.dumps(record("float"))}
    ids = pa.array([1] * copies, pa.int32())
    wide = [pa.field("f0", pa.float64())]
    block = read(record("double"), wide, [b"\1\0\x80\x7f"] * copies, (), writers, ids)
    assert set(map(str, block.columns[0].to_pylist())) == {"nan"}
