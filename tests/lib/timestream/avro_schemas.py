"""Avro schemas drawn by Hypothesis, with their values and the columns that they are read as."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st
from timestream.builders import INSTANT

LOCAL = pa.timestamp("us")


@dataclass(frozen=True)
class Drawn:
    """An Avro type, the column's type, values to write, and fastavro's values as Arrow's."""

    schema: Any
    column: pa.DataType
    values: st.SearchStrategy
    convert: Callable[[Any], Any] = lambda value: value
    default: Any = None


INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.one_of(st.integers(-200, 200), st.integers(-(2**63), 2**63 - 1))
TEXT = st.text(max_size=12)
MOMENTS = st.datetimes().filter(lambda moment: 1 < moment.year < 9999)
AWARE = MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))


def to_millis(moment):
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


PLAIN = [
    Drawn("boolean", pa.bool_(), st.booleans(), default=True),
    Drawn("int", pa.int32(), INT, default=-7),
    Drawn("long", pa.int64(), LONG, default=2**40),
    Drawn("float", pa.float32(), st.floats(width=32), default=0.5),
    Drawn("double", pa.float64(), st.floats(), default=-1.5),
    Drawn("string", pa.string(), TEXT, default="é`"),
    Drawn("bytes", pa.binary(), st.binary(max_size=12), default="\u00ff\u0000"),
    Drawn(logical("int", "date"), pa.date32(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    Drawn(logical("long", "timestamp-millis"), INSTANT, AWARE.map(to_millis)),
    Drawn(logical("long", "timestamp-micros"), INSTANT, AWARE),
    Drawn(logical("long", "local-timestamp-millis"), LOCAL, MOMENTS.map(to_millis)),
    Drawn(logical("long", "local-timestamp-micros"), LOCAL, MOMENTS),
    Drawn(logical("string", "uuid"), pa.string(), st.uuids(), str),
    Drawn(
        logical("bytes", "decimal", precision=20, scale=3),
        pa.decimal128(20, 3),
        st.decimals(-(10**16), 10**16, places=3),
    ),
    Drawn(
        logical("bytes", "decimal", precision=9, scale=2),
        pa.decimal128(9, 2),
        st.decimals(Decimal("-9999999.99"), Decimal("9999999.99"), places=2),
    ),
]


@st.composite
def named(draw, name):
    kind = draw(st.sampled_from(["enum", "fixed", "decimal"]))
    if kind == "enum":
        symbols = draw(
            st.lists(st.from_regex("[A-Z]{1,3}", fullmatch=True), min_size=1, unique=True)
        )
        schema = {"type": "enum", "name": name, "symbols": symbols}
        return Drawn(schema, pa.string(), st.sampled_from(symbols), default=symbols[0])
    size = draw(st.integers(1, 9))
    schema = {"type": "fixed", "name": name, "size": size}
    if kind == "fixed":
        return Drawn(schema, pa.binary(), st.binary(min_size=size, max_size=size))
    digits = int(math.log10(2) * (8 * size - 1))
    if not digits:
        return PLAIN[0]
    schema |= {"logicalType": "decimal", "precision": digits, "scale": 1}
    bound = Decimal(10**digits - 1).scaleb(-1)
    return Drawn(schema, pa.decimal128(digits, 1), st.decimals(-bound, bound, places=1))


@st.composite
def types(draw, name, depth=2):
    kind = draw(st.sampled_from(["plain"] * 4 + ["named", "nullable"] + ["array", "map", "record"]))
    if kind == "named":
        return draw(named(name))
    if kind == "plain" or not depth:
        return draw(st.sampled_from(PLAIN))
    if kind == "record":
        return draw(records(name, depth - 1))
    inner = draw(types(name + "x", depth - 1))
    if kind == "nullable":
        return nullable(inner, null_first=draw(st.booleans()))
    if kind == "array":
        return Drawn(
            {"type": "array", "items": inner.schema},
            pa.list_(inner.column),
            st.lists(inner.values, max_size=4),
            lambda value: [inner.convert(each) for each in value],
            default=[],
        )
    return Drawn(
        {"type": "map", "values": inner.schema},
        pa.map_(pa.string(), inner.column),
        st.dictionaries(TEXT, inner.values, max_size=3),
        lambda value: [(key, inner.convert(each)) for key, each in value.items()],
        default={},
    )


def nullable(inner, *, null_first=True):
    if isinstance(inner.schema, list):
        return inner
    branches = ["null", inner.schema] if null_first else [inner.schema, "null"]
    return replace(
        inner,
        schema=branches,
        values=st.none() | inner.values,
        convert=lambda value: None if value is None else inner.convert(value),
        default=None,
    )


@st.composite
def records(draw, name, depth=2):
    count = draw(st.integers(1, 4))
    return record_of(name, {f"{name}_{i}": draw(types(f"{name}{i}", depth)) for i in range(count)})


def record_of(name, fields, namespace="some.where"):
    schema = {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": [{"name": field, "type": each.schema} for field, each in fields.items()],
    }

    def convert(value):
        return {field: each.convert(value[field]) for field, each in fields.items()}

    column = pa.struct([(field, each.column) for field, each in fields.items()])
    values = st.fixed_dictionaries({field: each.values for field, each in fields.items()})
    return Drawn(schema, column, values, convert)


def parse(schema):
    return fastavro.parse_schema(json.loads(json.dumps(schema)))


def write(schema, values):
    """Encode values with fastavro."""
    parsed = parse(schema)
    return [write_one(parsed, value) for value in values]


def write_one(parsed, value):
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, value)
    return buffer.getvalue()


def comparable(value):
    """Let NaN equal itself, and -0.0 differ from 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(each) for each in value]
    return value
