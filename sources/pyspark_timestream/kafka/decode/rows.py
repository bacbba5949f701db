"""Judged records and CTIs become the rows of the stream: data in offset order, CTIs between.

A CTI is a row with `cti` set and every other column null; a data row's `cti` is null.

The rules are semantics 2.9.
"""

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.connector.event_time import record_timestamps
from pyspark_timestream.cti.marks import NEVER
from pyspark_timestream.cti.step import ADJUSTED, VIOLATIONS, Judgement
from pyspark_timestream.kafka.decode.columns import METADATA, Projection
from pyspark_timestream.kafka.decode.payload import Payload
from pyspark_timestream.kafka.decode.records import RecordBlock
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["cti_rows", "weave"]

T = TypeVar("T")
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_INSTANT: Final = METADATA["cti"]


def cti_rows(projection: Projection, ctis_us: Indices) -> pa.RecordBatch:
    """One row per CTI, in order."""
    columns = [
        pa.array(ctis_us, pa.int64()).cast(_INSTANT)
        if projection.metadata.get(field.name) == "cti"
        else pa.nulls(len(ctis_us), field.type)
        for field in projection.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=projection.schema)


def weave(
    projection: Projection,
    partition: Partition,
    block: RecordBlock,
    payload: Payload,
    judgement: Judgement,
    keep: Mask,
    cti_after: Indices,
    ctis_us: Indices,
) -> pa.RecordBatch:
    """The rows of one block of n records.

    Args:
        projection: the output columns.
        partition: where the records are from.
        block: the n records.
        payload: what they say.
        judgement: what became of them.
        keep: n booleans: the record becomes a row.
        cti_after: for each CTI row the index of the record that it comes right after.
        ctis_us: those CTIs.
    """
    kept = np.flatnonzero(keep)
    places = np.searchsorted(kept, cti_after, side="right")
    source = np.insert(kept, places, -1)
    whole = not len(ctis_us) and len(kept) == len(keep)
    indices = pa.array(source, mask=source < 0) if len(ctis_us) else pa.array(source)
    columns = []
    for field in projection.schema:
        if projection.metadata.get(field.name) == "cti":
            columns.append(_cti_column(source, ctis_us))
        else:
            column = _column(field.name, projection, partition, block, payload, judgement)
            columns.append(column if whole else column.take(indices))
    return pa.RecordBatch.from_arrays(columns, schema=projection.schema)


def _cti_column(source: Indices, ctis_us: Indices) -> pa.Array:
    if not len(ctis_us):
        return pa.nulls(len(source), _INSTANT)
    values = np.zeros(len(source), dtype=np.int64)
    values[source < 0] = ctis_us
    return pa.array(values, pa.int64(), mask=source >= 0).cast(_INSTANT)


def _column(
    name: str,
    projection: Projection,
    partition: Partition,
    block: RecordBlock,
    payload: Payload,
    judgement: Judgement,
) -> pa.Array:
    """The n values of output column `name`, any but `cti`, before dropping and weaving."""
    parsed = payload.json
    if name in projection.metadata:
        return _metadata_column(projection.metadata[name], partition, block, payload, judgement)
    if parsed is None:
        raise AssertionError(f"column {name} comes from JSON, and no value was parsed")
    if name == projection.corrupt:
        return _texts(pc.if_else(pa.array(parsed.malformed), _given(block.values), None))
    return parsed.columns[projection.fields.get_field_index(name)]


def _texts(values: pa.Array) -> pa.Array:
    """Values as text; what is no UTF-8 becomes U+FFFD, since no reader takes a column with it."""
    read = values.to_pylist()
    texts = [None if value is None else value.decode(errors="replace") for value in read]
    return pa.array(texts, pa.string())


def _metadata_column(
    name: str, partition: Partition, block: RecordBlock, payload: Payload, judgement: Judgement
) -> pa.Array:
    rows = len(block.offsets)
    adjusted = judgement.violation == ADJUSTED
    match name:
        case "key":
            return _given(block.keys)
        case "value":
            return _given(block.values)
        case "headers":
            return _given(block.headers)
        case "topic":
            return pa.repeat(pa.scalar(partition.topic, pa.string()), rows)
        case "partition":
            return pa.repeat(pa.scalar(partition.number, pa.int32()), rows)
        case "offset":
            return block.offsets
        case "timestamp":
            return _instants(*record_timestamps(_given(block.timestamps_ms)))
        case "timestampType":
            return _given(block.timestamp_types)
        case "start_time":
            return _instants(judgement.start_us, payload.start_known)
        case "end_time":
            return _instants(_given(judgement.end_us), _given(payload.end_known))
        case "edge":
            return _given(payload.edges)
        case "violation":
            # Not a constant of the module: Arrow would load pandas for it, in the driver too.
            return pa.array(list(VIOLATIONS), pa.string()).take(pa.array(judgement.violation))
        case "original_start_time":
            return _instants(payload.events.start_us, adjusted)
        case "original_end_time":
            return _instants(_given(payload.events.end_us), adjusted & _given(payload.end_known))
        case "time_lower":
            return _bounds(_given(judgement.window).lower_us)
        case "time_upper":
            return _bounds(_given(judgement.window).upper_us)
        case _:
            raise AssertionError(f"no metadata {name}")


def _given(value: T | None) -> T:
    """`value`, which the projection made sure of."""
    if value is None:
        raise AssertionError("a column was projected that was not read")
    return value


def _bounds(us: Indices) -> pa.Array:
    return _instants(us, us != NEVER)


def _instants(us: Indices, known: Mask) -> pa.Array:
    mask = None if known.all() else ~known
    return pa.array(us, pa.int64(), mask=mask).cast(_INSTANT)
