"""Hostile Avro payloads: malformed in bounded time and memory, and no neighbour is harmed."""

import json
import struct
import subprocess
import sys
import time

import pyarrow as pa
import pytest
from timestream.avro_hostile import (
    CASES,
    EVERYTHING,
    LINKED,
    LONGS,
    array,
    check_contradiction,
    check_depth,
    poison,
    record,
    zigzag,
)
from timestream.avro_reading import read

COPIES = 60


COLUMNS = {"long": pa.int64(), "int": pa.int32(), "string": pa.string(), "boolean": pa.bool_()}


@pytest.mark.parametrize("copies", [1, COPIES])
@pytest.mark.parametrize("case", CASES)
def test_bytes_that_contradict_their_schema_are_malformed_syntax(case, copies):
    check_contradiction(case, copies)


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


def test_types_that_contain_themselves_are_passed_over_to_a_limit():
    check_depth()


@pytest.mark.parametrize("many", [1, 50])
@pytest.mark.parametrize("length", [7, 8, 9, 10, 500])
def test_long_arrays_are_read_whole_beside_short_ones(length, many):
    def body(count):
        return zigzag(count) + b"".join(map(zigzag, range(count))) + b"\0"

    counts = [length, *[1, 2, 3] * 20, *[length] * many]
    block = read(record(array("long")), [pa.field("f0", LONGS)], [body(n) for n in counts])
    assert block.columns[0].to_pylist() == [list(range(count)) for count in counts]
    assert not block.malformed.any()


@pytest.mark.thorough
@pytest.mark.parametrize("schema", [EVERYTHING, {**LINKED, "name": "L"}], ids=["all", "linked"])
def test_ten_thousand_hostile_payloads_are_malformed_in_seconds(schema):
    bodies = list(poison(10_000))
    begun = time.thread_time()
    block = read(schema, [pa.field("f0", pa.int64())], bodies)
    assert time.thread_time() - begun < 10
    assert block.malformed.mean() > 0.9


MEMORY_TEST = """
import resource, sys
sys.path.insert(0, {tests!r})
from timestream.avro_hostile import *
import pyarrow as pa
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**30, held + 2**30))
for case in CASES:
    for copies in (1, 60):
        check_contradiction(case, copies)
check_depth()
read(EVERYTHING, [], list(poison(10_000)))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown // 1024)
"""


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_hostile_payloads_take_no_memory_by_what_they_claim():
    code = MEMORY_TEST.format(tests=next(path for path in sys.path if path.endswith("/tests/lib")))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 200  # MB


LONG_ARRAYS = """
import resource, sys
sys.path.insert(0, {tests!r})
from timestream.avro_hostile import *
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


@pytest.mark.thorough
def test_long_arrays_take_memory_by_piece_and_not_by_block():
    """50 records of half a MB, each with an array of half a million items without bytes."""
    tests = next(path for path in sys.path if path.endswith("/tests/lib"))
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
