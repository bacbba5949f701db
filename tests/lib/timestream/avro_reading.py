"""Avro payloads, read by block and by record."""

import json

import pyarrow as pa
from timestream.avro_schemas import comparable

from pyspark_timestream.kafka.decode.avro.by_row import read_avro
from pyspark_timestream.kafka.decode.avro.schemas import check_avro_columns, parse_avro_reader
from pyspark_timestream.kafka.decode.records import RequestedFields

COPIES = 25
"""With this many copies, two payloads are read in columns."""


def read(schema, columns, bodies, raw=(), writers=None, ids=None):
    reader = parse_avro_reader(json.dumps(schema))
    columns = pa.schema(list(columns))
    check_avro_columns(reader, columns, raw)
    bodies = pa.array(bodies, pa.binary())
    return read_avro(reader, RequestedFields(columns, raw), bodies, writers or {}, ids)


def rows_of(block):
    table = pa.table(block.columns, names=[str(i) for i in range(len(block.columns))])
    rows = [list(row.values()) for row in table.to_pylist()] or [[] for _ in block.reasons]
    return [(comparable(row), int(why)) for row, why in zip(rows, block.reasons, strict=True)]
