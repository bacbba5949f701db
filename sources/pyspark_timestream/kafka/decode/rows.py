"""Turns processed records and CTIs into the rows of the stream (semantics 2.9)."""

import itertools
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.event_time import read_record_timestamps
from pyspark_timestream.core.instants import NEVER, Mask
from pyspark_timestream.kafka.decode.columns import METADATA, Projection
from pyspark_timestream.kafka.decode.payload import Payload
from pyspark_timestream.kafka.decode.records import RECORD_REASONS, Reasons, RecordBlock
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.step import ADJUSTED, VIOLATIONS, BlockResult

T = TypeVar("T")
Indices = npt.NDArray[np.int64]

_INSTANT: Final = METADATA["cti"]

_ROWS_A_CUT: Final = 400
"""With more rows than this per CTI, cutting a block is cheaper than taking each row."""


@dataclass(frozen=True, slots=True)
class ProcessedBlock:
    """n consecutive records of one partition, decoded and processed.

    Attributes:
        partition: the partition of the records.
        block: the n records.
        payload: their decoded content.
        result: the result of the state machine.
    """

    partition: Partition
    block: RecordBlock
    payload: Payload
    result: BlockResult

    def locate(self, index: int) -> str:
        """Name the record at `index`, for messages."""
        return f"{self.partition} offset {self.block.offsets[index].as_py()}"


def build_cti_rows(projection: Projection, ctis_us: Indices) -> pa.RecordBatch:
    """Build one row per CTI, in order."""
    columns = [
        pa.array(ctis_us, pa.int64()).cast(_INSTANT)
        if projection.metadata.get(field.name) == "cti"
        else pa.nulls(len(ctis_us), field.type)
        for field in projection.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=projection.schema)


def interleave_ctis(
    projection: Projection,
    processed: ProcessedBlock,
    keep: Mask,
    cti_after: Indices,
    ctis_us: Indices,
) -> pa.RecordBatch:
    """Build the rows of the records that `keep` selects, with CTI rows between them.

    For each of `ctis_us`, `cti_after` is the index of the record that the CTI row directly follows.
    """
    kept = np.flatnonzero(keep)
    places = np.searchsorted(kept, cti_after, side="right")
    if 0 < len(ctis_us) * _ROWS_A_CUT < len(keep):
        rows = _take_rows(projection, processed, kept, ctis_us[:0])
        return _insert_rows(rows, places, build_cti_rows(projection, ctis_us))
    return _take_rows(projection, processed, np.insert(kept, places, -1), ctis_us)


def _take_rows(
    projection: Projection, processed: ProcessedBlock, source: Indices, ctis_us: Indices
) -> pa.RecordBatch:
    """Build the rows of the records `source`; -1 there stands for a CTI row."""
    is_whole = not len(ctis_us) and len(source) == len(processed.block.offsets)
    indices = pa.array(source, mask=source < 0) if len(ctis_us) else pa.array(source)
    columns = []
    for field in projection.schema:
        if projection.metadata.get(field.name) == "cti":
            columns.append(_build_cti_column(source, ctis_us))
        else:
            column = _build_column(field.name, projection, processed)
            columns.append(column if is_whole else column.take(indices))
    return pa.RecordBatch.from_arrays(columns, schema=projection.schema)


def _insert_rows(rows: pa.RecordBatch, cuts: Indices, inserted: pa.RecordBatch) -> pa.RecordBatch:
    """Insert a row before each of the rows `cuts`, which must not decrease."""
    starts, pieces = [0, *cuts.tolist()], []
    for number, (start, cut) in enumerate(itertools.pairwise(starts)):
        pieces += [rows.slice(start, cut - start), inserted.slice(number, 1)]
    table = pa.Table.from_batches([*pieces, rows.slice(starts[-1])])
    return table.combine_chunks().to_batches()[0]


def _build_cti_column(source: Indices, ctis_us: Indices) -> pa.Array:
    if not len(ctis_us):
        return pa.nulls(len(source), _INSTANT)
    values = np.zeros(len(source), dtype=np.int64)
    values[source < 0] = ctis_us
    return pa.array(values, pa.int64(), mask=source >= 0).cast(_INSTANT)


def _build_column(name: str, projection: Projection, processed: ProcessedBlock) -> pa.Array:
    if name in projection.metadata:
        return _build_metadata(projection.metadata[name], processed)
    if name in projection.dead_letter:
        return _build_dead_letter(projection, name, processed)
    place = projection.fields.get_field_index(name)
    if place >= 0:
        return _require(processed.payload.values).columns[place]
    return _require(processed.payload.keys).columns[projection.key_fields.get_field_index(name)]


def _build_dead_letter(projection: Projection, name: str, processed: ProcessedBlock) -> pa.Array:
    """Build what column `name` says about malformed payloads; null elsewhere."""
    values = processed.payload.values
    if projection.dead_letter[name] == "reason":
        return _name_reasons(processed.payload.find_reasons(), len(processed.block.offsets))
    kind = projection.schema.field(name).type
    if values is None:
        return pa.nulls(len(processed.block.offsets), kind)
    malformed = pa.array(values.malformed)
    if projection.dead_letter[name] == "schema_id":
        ids = pa.nulls(len(malformed), kind) if values.schema_ids is None else values.schema_ids
        return pc.if_else(malformed, ids, None)
    found = pc.if_else(malformed, _require(processed.block.values), None)
    return _decode_texts(found) if pa.types.is_string(kind) else found


def _name_reasons(reasons: Reasons | None, rows: int) -> pa.Array:
    """Name why each record is malformed, such as `type` for its value or `key type` for its key."""
    if reasons is None:
        return pa.nulls(rows, pa.string())
    # Not a module constant: Arrow would load pandas for it, even in the driver.
    return pa.array([None, *RECORD_REASONS[1:]], pa.string()).take(pa.array(reasons))


def _decode_texts(values: pa.Array) -> pa.Array:
    """Decode values; invalid UTF-8 becomes U+FFFD, since readers refuse a column that holds it."""
    read = values.to_pylist()
    texts = [None if value is None else value.decode(errors="replace") for value in read]
    return pa.array(texts, pa.string())


def _build_metadata(name: str, processed: ProcessedBlock) -> pa.Array:
    partition, block, payload = processed.partition, processed.block, processed.payload
    result = processed.result
    rows = len(block.offsets)
    adjusted = result.violation == ADJUSTED
    match name:
        case "key":
            return _require(block.keys)
        case "value":
            return _require(block.values)
        case "headers":
            return _require(block.headers)
        case "topic":
            return pa.repeat(pa.scalar(partition.topic, pa.string()), rows)
        case "partition":
            return pa.repeat(pa.scalar(partition.number, pa.int32()), rows)
        case "offset":
            return block.offsets
        case "timestamp":
            return _build_instants(*read_record_timestamps(_require(block.timestamps_ms)))
        case "timestampType":
            return _require(block.timestamp_types)
        case "start_time":
            return _build_instants(result.start_us, payload.start_known)
        case "end_time":
            return _build_instants(_require(result.end_us), _require(payload.end_known))
        case "edge":
            return _require(payload.edges)
        case "violation":
            # Not a module constant: Arrow would load pandas for it, even in the driver.
            return pa.array(list(VIOLATIONS), pa.string()).take(pa.array(result.violation))
        case "original_start_time":
            return _build_instants(payload.events.start_us, adjusted)
        case "original_end_time":
            return _build_instants(
                _require(payload.events.end_us), adjusted & _require(payload.end_known)
            )
        case "value_schema_id":
            ids = payload.values.schema_ids if payload.values else None
            return pa.nulls(rows, METADATA[name]) if ids is None else ids
        case "value_schema_name":
            names = payload.values.names if payload.values else None
            return pa.nulls(rows, METADATA[name]) if names is None else names
        case "time_lower":
            return _build_bounds(_require(result.window).lower_us)
        case "time_upper":
            return _build_bounds(_require(result.window).upper_us)
        case _:
            raise AssertionError(f"no metadata {name}")


def _require(value: T | None) -> T:
    """Return `value`, which the projection guarantees to be present."""
    if value is None:
        raise AssertionError("a column was projected that was not read")
    return value


def _build_bounds(us: Indices) -> pa.Array:
    return _build_instants(us, us != NEVER)


def _build_instants(us: Indices, known: Mask) -> pa.Array:
    mask = None if known.all() else ~known
    return pa.array(us, pa.int64(), mask=mask).cast(_INSTANT)
