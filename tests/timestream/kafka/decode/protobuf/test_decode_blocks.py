"""Blocks of messages: malformed ones are isolated, even if they upset the libraries."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from timestream.protobuf_schemas import Schema, field, file, message

from pyspark_timestream.kafka.decode.protobuf import decode
from pyspark_timestream.kafka.decode.protobuf.decode import BlockReader, create_handler, parse_block
from pyspark_timestream.kafka.decode.protobuf.descriptors import compile_reader

SCHEMA = Schema(file(message("M", field("i", 1, "int64"), field("s", 2, "string"))))
COMPILED = compile_reader(SCHEMA.reader)
HANDLER = create_handler(COMPILED.descriptor, {"i": None})


class Panic(BaseException):
    """Like a panic of a Rust library, no Exception."""


class Panicking:
    """A handler that counts its calls and fails at the number 13."""

    def __init__(self, error):
        self.error, self.calls = error, 0

    def array_to_record_batch(self, array):
        self.calls += 1
        if b"\x08\x0d" in array[0].as_py():
            raise self.error
        return HANDLER.array_to_record_batch(array)


def number(i):
    return SCHEMA.Message(i=i).SerializeToString()


def parse(messages, handler=HANDLER):
    reader = BlockReader(COMPILED.block_class, handler)
    rows, fine = parse_block(reader, pa.array(messages, pa.binary()))
    return rows.field("f1").to_pylist(), fine.tolist()


@pytest.mark.parametrize("error", [Panic(), ValueError(), RuntimeError()])
def test_a_message_at_which_a_library_fails_is_isolated(error):
    handler = Panicking(error)
    found, fine = parse([number(i) for i in range(1, 1001)], handler)
    assert found == [i for i in range(1, 1001) if i != 13]
    assert [place for place, each in enumerate(fine) if not each] == [12]
    # Halving tries two pieces at each of ten sizes, and each failed one again without groups.
    assert handler.calls < 50


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), SystemExit()])
def test_an_interrupt_is_no_malformed_message(error):
    with pytest.raises(type(error)):
        parse([number(13)], Panicking(error))


def test_a_library_that_returns_too_few_rows_is_not_believed():
    class Forgetful:
        def array_to_record_batch(self, array):
            return HANDLER.array_to_record_batch(pa.array([b"\x0a\0"]))

    assert parse([number(1), number(2)], Forgetful()) == ([0, 0], [True, True])


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
@pytest.mark.parametrize("size", [1, 40, 10**6])
def test_the_size_of_pieces_changes_nothing(monkeypatch, rows, size):
    messages = [number(i) + b"\x0f" * (i % 7 == 0) + b"\x12\2ab" * (i % 3) for i in range(1, 51)]
    expected = parse(messages)
    monkeypatch.setattr(decode, "_MAX_ROWS", rows)
    monkeypatch.setattr(decode, "_MAX_BYTES", size)
    assert parse(messages) == expected
    assert expected[1] == [i % 7 != 0 for i in range(1, 51)]


@pytest.mark.parametrize("length", [126, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_messages_of_any_length_are_joined(length):
    messages = [number(7), b"\x12" + varint(length) + b"x" * length + b"\x08\1", number(8)]
    assert parse(messages) == ([7, 1, 8], [True] * 3)


def varint(value):
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


HOSTILE = r"""
import random, resource, sys, time
sys.path.insert(0, sys.argv[1])
import pyarrow as pa
from pyspark_timestream.kafka.decode.records import RequestedFields
from pyspark_timestream.kafka.decode.formats import split_value_frames
from pyspark_timestream.kafka.decode.formats import read_framed_protobuf
from timestream.protobuf_schemas import natural_columns, rich_schema
from timestream.protobuf_wire import HOSTILE, delimited, message, spoil, tag

schema, rng = rich_schema("proto3"), random.Random(3)
wanted = RequestedFields(natural_columns(schema), ("t",))
deep = b""
for _ in range(10_000):
    deep = tag(12, 2) + delimited(deep) if len(deep) < 30_000 else deep
large = [
    b"\x42\0" * 400_000,
    b"\x52\0" * 400_000,
    b"\x22" + delimited(b"\1" * 800_000),
    b"\x0b" * 500_000,
    b"\x12" + delimited(b"\xff" * 800_000),
    deep,
]
bodies = [rng.choice(HOSTILE) for _ in range(4_000)]
bodies += [spoil(rng, message(rng, schema.descriptor)) for _ in range(3_000)]
bodies += [rng.randbytes(rng.randrange(40)) for _ in range(2_900)]
bodies += large + [b""] * (10_000 - 9_900 - len(large))
rng.shuffle(bodies)
indexes = [b"\0", b"\2\2", b"\xff\xff", b"\xfe\xff\xff\xff\x0f"]
frames = [b"\0\0\0\0\1" + index for index in indexes] + [b"\1"]
payloads = [(frames[0] if rng.random() < 0.9 else rng.choice(frames)) + body for body in bodies]
names = {(0,): "m.M"}

def read(some):
    framed = split_value_frames(pa.array(some), indexed=True)
    find = lambda writer: names.get(writer.message)
    return read_framed_protobuf(schema.reader, wanted, framed, find)

read(payloads[:2])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20,) * 2)
start = time.process_time()
block = read(payloads)
assert time.process_time() - start < 15, "slow"
counts = [int((block.reasons == reason).sum()) for reason in range(4)]
assert sum(counts) == 10_000 and counts[1] > 500 and counts[2] > 3_000, counts
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is measured by Linux")
def test_ten_thousand_hostile_messages_take_bounded_time_and_memory():
    tests = str(Path(__file__).parents[4] / "lib")
    run = subprocess.run(
        [sys.executable, "-c", HOSTILE, tests],
        timeout=120,
        capture_output=True,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stderr == ""
