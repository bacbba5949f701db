"""JSON behind frames is read as JSON without them."""

import pyarrow as pa

from pyspark_timestream.kafka.decode.fields import FRAMING, REASONS, WantedFields
from pyspark_timestream.kafka.decode.framing import split_value_frames
from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.json.framed import parse_framed_json

FIELDS = WantedFields(pa.schema([("x", pa.int32())]), ("t",))
VALUES = [b'{"x": 1, "t": "a"}', None, b"[]", b'{"x": "y", "t": "b"}', b'{"t": 5}']


def test_framed_json_is_read_as_parse_json_reads_the_bodies():
    framed = [None if value is None else b"\0\0\0\0\7" + value for value in VALUES]
    block = parse_framed_json(FIELDS, split_value_frames(pa.array(framed)))
    alone = parse_json(FIELDS, pa.array(VALUES))
    assert [c.to_pylist() for c in block.columns] == [c.to_pylist() for c in alone.columns]
    assert [p.to_pylist() for p in block.raw["t"]] == [p.to_pylist() for p in alone.raw["t"]]
    assert block.reasons.tolist() == alone.reasons.tolist()
    assert block.schema_ids.to_pylist() == [7, None, 7, 7, 7]


def test_framed_json_without_a_frame_is_malformed_by_its_framing():
    payloads = pa.array([b'{"x": 1}', b'\0\0\0\0\7{"x": 2}', b""])
    block = parse_framed_json(FIELDS, split_value_frames(payloads))
    assert block.columns[0].to_pylist() == [None, 2, None]
    assert [REASONS[reason] for reason in block.reasons] == ["framing", "", "framing"]
    assert block.reasons[0] == FRAMING
