"""JSON literals by type, against recorded results of Spark 4.3's `from_json`."""

from decimal import Decimal

import pyarrow as pa
import pytest

from pyspark_timestream.kafka.decode.json.by_block import parse_json
from pyspark_timestream.kafka.decode.records import RequestedFields

BAD = object()
WIDE, NARROW = pa.decimal128(38, 0), pa.decimal128(5, 2)
ZONED, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
PAIRS = pa.map_(pa.string(), pa.int64())
NINES = "9" * 38


@pytest.mark.parametrize("few", [1, 10**6], ids=["by Arrow", "one by one"])
@pytest.mark.parametrize(
    ("literal", "kind", "expected"),
    [
        ("-0", pa.int64(), 0),
        ("1.0", pa.int64(), BAD),
        ("1e2", pa.int64(), BAD),
        ("9223372036854775808", pa.int64(), BAD),
        ('"5"', pa.int64(), BAD),
        ('"-INF"', pa.float64(), float("-inf")),
        ('"+Infinity"', pa.float32(), float("inf")),
        ('"INF"', pa.float64(), BAD),
        ("9" * 310, pa.float64(), float("inf")),
        ("-" + "9" * 310, pa.float64(), float("-inf")),
        ("1e400", pa.float64(), float("inf")),
        ("1.00000017881393432617187499", pa.float32(), 1.0000001192092896),
        ("-1.235", NARROW, Decimal("-1.24")),
        ("999.994", NARROW, Decimal("999.99")),
        ("999.995", NARROW, BAD),
        ("12345", NARROW, BAD),
        ("1e-400", NARROW, Decimal("0.00")),
        ("3.4028235677973366e38", WIDE, BAD),
        (NINES, WIDE, Decimal(NINES)),
        (f"1{'0' * 38}", WIDE, BAD),
        ('"1,000"', WIDE, Decimal(1000)),
        ('" 1"', WIDE, BAD),
        ("1e40", pa.string(), "1.0E40"),
        ("0.00099", pa.string(), "9.9E-4"),
        ("0.001", pa.string(), "0.001"),
        ("9999999.5", pa.string(), "9999999.5"),
        ("10000000.5", pa.string(), "1.00000005E7"),
        ("NaN", pa.string(), '"NaN"'),
        ('{"x": 1.50, "z": [1 , -0]}', pa.string(), '{"x":1.5,"z":[1,0]}'),
        ('"aGk="', pa.binary(), b"hi"),
        ('" aGk= "', pa.binary(), b"hi"),
        ('"aGk"', pa.binary(), BAD),
        ("1357017420", ZONED, 1357017420000000),
        ("1357017420", LOCAL, BAD),
        ('"1357017420"', ZONED, BAD),
        ('"2013-01-01T05:00:00"', LOCAL, 1357016400000000),
        ('"2013-01-01T05:00:00+01:00"', LOCAL, BAD),
        ('"2013-01-01"', LOCAL, 1356998400000000),
        ('" 2013-01-01T25:00 "', pa.date32(), 15706),
        ('"2013-02-30"', pa.date32(), BAD),
        ('{"a":1,"b":null}', PAIRS, [("a", 1), ("b", None)]),
        ('{"a":1,"b":"x"}', PAIRS, BAD),
        ('[1,"x"]', pa.list_(pa.int64()), BAD),
    ],
)
def test_literal_is_converted_as_from_json_does(few, literal, kind, expected):
    given = pa.array([f'{{"v":{literal}}}'.encode()] * 2, pa.binary())
    block = parse_json(RequestedFields(pa.schema([("v", kind)])), given, few)
    (column,) = block.columns
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    assert column.to_pylist() == [None if expected is BAD else expected] * 2
    assert block.malformed.tolist() == [expected is BAD] * 2
