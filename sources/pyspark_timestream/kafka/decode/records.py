"""Blocks of records and of their decoded fields, and the columns that a query requests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import INSTANT, Integers, Mask, locate
from pyspark_timestream.kafka.decode.condition import Condition
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import Path, TimeFrom, parse_path
from pyspark_timestream.kafka.ranges import OffsetRange

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

METADATA: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": INSTANT,
    "timestampType": pa.int32(),
    "headers": _HEADERS,
    "start_time": INSTANT,
    "end_time": INSTANT,
    "edge": pa.string(),
    "violation": pa.string(),
    "original_start_time": INSTANT,
    "original_end_time": INSTANT,
    "time_lower": INSTANT,
    "time_upper": INSTANT,
    "value_schema_id": pa.int32(),
    "value_schema_name": pa.string(),
    "cti": INSTANT,
}
"""Every metadata column with its type, in the order of the default schema."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that a query requests.

    Attributes:
        schema: the output columns in order.
        metadata: output column, or one that only `condition` reads -> the metadata that it
            contains.
        fields: the output columns that are fields of the value; each name is a path.
        key_fields: the output columns that are fields of the key; each name is a path after
            `keyPrefix`.
        dead_letter: output column -> what it says about malformed payloads (semantics 13.11).
        condition: option `where`, which selects the records that become rows; None: all do.
    """

    schema: pa.Schema
    metadata: Mapping[str, str]
    fields: pa.Schema
    key_fields: pa.Schema = field(default_factory=lambda: pa.schema([]))
    dead_letter: Mapping[str, str] = field(default_factory=dict)
    condition: Condition | None = None

    def requests(self, name: str) -> bool:
        """Return whether an output column, or the condition, needs the metadata `name`."""
        return name in self.metadata.values()


class ColumnSet(NamedTuple):
    """The columns to read; offsets are always among them."""

    timestamps: bool = False
    keys: bool = False
    values: bool = False
    headers: bool = False


class RecordBlock(NamedTuple):
    """n consecutive records of one partition, in offset order.

    Attributes:
        offsets: n int64.
        timestamps_ms: n int64, negative if the record has none; None if not needed.
        timestamp_types: n int32: 0 create time, 1 log append time, -1 none; None if not needed.
        keys: n binary, or None if not needed.
        values: n binary, or None if not needed.
        headers: n lists of struct<key: string, value: binary>, or None if not needed.
    """

    offsets: pa.Array
    timestamps_ms: pa.Array | None = None
    timestamp_types: pa.Array | None = None
    keys: pa.Array | None = None
    values: pa.Array | None = None
    headers: pa.Array | None = None


ReadRange = Callable[[OffsetRange, ColumnSet], Iterator[RecordBlock]]


def read_header(headers: pa.Array, name: str) -> pa.Array:
    """Read the header `name` of n records as text; null where it is absent or not UTF-8."""
    return to_texts(take_header_values(headers, find_header(headers, name)))


def to_texts(values: pa.Array) -> pa.Array:
    """Convert binary values to text; null where one is null or not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decode_or_none(value) for value in values.to_pylist()], pa.string())


def _decode_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def take_header_values(headers: pa.Array, indexes: Integers) -> pa.Array:
    """Take the values at `indexes` in the flat list of all headers; null where an index is -1."""
    return headers.flatten().field("value").take(pa.array(indexes, mask=indexes < 0))


def find_header(headers: pa.Array, name: str) -> Integers:
    """Return where each record's header `name` is in the flat list of all headers; -1 if absent.

    The last of repeated headers counts (semantics 1.2).
    """
    matches = pc.equal(headers.flatten().field("key"), name).to_numpy(zero_copy_only=False)
    indexes = np.full(len(headers), -1, dtype=np.int64)
    if matches.any():
        rows = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
        # A later assignment to the same row overwrites an earlier one.
        indexes[rows[matches]] = np.flatnonzero(matches)
    return indexes


def name_rows(names: Sequence[str | None], codes: npt.NDArray[np.integer]) -> pa.Array:
    """Return the name of each of n codes, which are indices into `names`; null for -1."""
    # The last place stands for no name.
    indexes = np.where(codes < 0, len(names), codes)
    return pa.array([*names, None], pa.string()).take(pa.array(indexes))


Reasons = npt.NDArray[np.uint8]

REASONS: Final = ("", "framing", "syntax", "type", "name")
"""Why a payload is malformed, by number (semantics 13.6)."""

FINE, FRAMING, SYNTAX, TYPE, NAME = range(len(REASONS))

RECORD_REASONS: Final = (*REASONS, *(f"key {reason}" for reason in REASONS[1:]))
"""Why a record is malformed, by number: the reason of its value, or else that of its key."""


@dataclass(frozen=True, slots=True)
class RequestedFields:
    """The fields to read of each payload.

    Attributes:
        columns: the fields that become columns: each one's path as text, and its Arrow type.
        raw: the paths, as text, of the fields that are read unconverted, for event times and edges:
            strings, numbers or timestamps.
        needs_names: True if the names of the records or messages are requested too.
    """

    columns: pa.Schema
    raw: tuple[str, ...] = ()
    needs_names: bool = False

    def column_paths(self) -> list[Path]:
        """Return the path of each column."""
        return [parse_path(name) for name in self.columns.names]

    def raw_paths(self) -> dict[str, Path]:
        """Return the path of each raw field, by its text."""
        return {text: parse_path(text) for text in self.raw}


def list_time_sources(options: KafkaOptions) -> dict[str, TimeFrom]:
    """Return where event times, edges and the names of writers are, by the options that say it."""
    sources = {
        "startTime": options.start_time,
        "endTime": options.end_time,
        "edge": options.edge,
        "writerFrom": options.writer_from,
    }
    return {name: source for name, source in sources.items() if source is not None}


Tree: TypeAlias = dict[str, Any]
"""The requested fields of an object by name: subtrees for objects, and leaves of any kind."""


def nest(path: Path, leaf: Any) -> Tree:
    """Make a tree that holds only the given leaf or subtree, at `path`."""
    for name in reversed(path[1:]):
        leaf = {name: leaf}
    return {path[0]: leaf}


def find_conflict(tree: Tree, branch: Tree) -> Path | None:
    """Find a path where two trees have different leaves, or one of them a leaf and one a tree."""
    for name in tree.keys() & branch.keys():
        node, inner = tree[name], branch[name]
        if isinstance(node, dict) and isinstance(inner, dict):
            below = find_conflict(node, inner)
            if below is not None:
                return (name, *below)
        elif node != inner:
            return (name,)
    return None


def merge(tree: Tree, branch: Tree) -> None:
    """Add the fields of a tree without conflict to another."""
    for name, inner in branch.items():
        if isinstance(inner, dict):
            merge(tree.setdefault(name, {}), inner)
        else:
            tree[name] = inner


class DecodedBlock(NamedTuple):
    """n decoded payloads.

    Attributes:
        columns: one column of n values per field in `RequestedFields.columns`, in that order.
        raw: for each raw field, by its path as text, consecutive pieces that add up to n values;
            each is an array of strings, numbers or timestamps, or of nulls.
        reasons: n numbers: why the payload is malformed, as an index into `REASONS`.
        schema_ids: n int32: the id of the schema that wrote the payload, null where there is none;
            None if payloads carry no ids.
        names: n strings: the full name of the record or message that the payload was written as;
            None unless requested, or if no payload has a name.
    """

    columns: list[pa.Array]
    raw: dict[str, list[pa.Array]]
    reasons: Reasons
    schema_ids: pa.Array | None = None
    names: pa.Array | None = None

    @property
    def malformed(self) -> Mask:
        """The mask of the malformed payloads, n booleans."""
        malformed: Mask = self.reasons != FINE
        return malformed


def join_blocks(
    requested: RequestedFields,
    blocks: list[DecodedBlock],
    order: Integers,
    reasons: Reasons,
) -> DecodedBlock:
    """Merge the payloads of `blocks`, which were decoded separately, in the order of the records.

    `order` has the index of each record's payload among the payloads of all blocks. It is -1 for a
    record without a payload, which becomes a row of nulls, malformed for its entry in `reasons`.
    """
    # As many records as payloads, in rising order: nothing has to move.
    in_order = len(order) == sum(len(block.reasons) for block in blocks)
    in_order = in_order and not (order[1:] < order[:-1]).any()
    rows = None if in_order else pa.array(order, mask=order < 0)
    columns = [
        _join_pieces([block.columns[number] for block in blocks], field.type, rows)
        for number, field in enumerate(requested.columns)
    ]
    raw = {
        name: _join_raw([piece for block in blocks for piece in block.raw[name]], order, rows)
        for name in requested.raw
    }
    all_reasons = np.concatenate([*(block.reasons for block in blocks), np.zeros(1, np.uint8)])
    return DecodedBlock(columns, raw, np.where(order < 0, reasons, all_reasons[order]))


def _join_pieces(pieces: list[pa.Array], data_type: pa.DataType, rows: pa.Array | None) -> pa.Array:
    column = pieces[0] if len(pieces) == 1 else pa.concat_arrays([*pieces, pa.nulls(0, data_type)])
    return column if rows is None else column.take(rows)


def _join_raw(pieces: list[pa.Array], order: Integers, rows: pa.Array | None) -> list[pa.Array]:
    """Join the pieces of a raw field, which may differ in type."""
    data_types = {piece.type for piece in pieces}
    if len(data_types) > 1 and all(map(pa.types.is_integer, data_types)):
        pieces = [piece.cast(pa.int64()) for piece in pieces]
        data_types = {pa.int64()}
    if len(data_types) <= 1:
        return [_join_pieces(pieces, data_types.pop() if data_types else pa.null(), rows)]
    # Types differ if, say, a writer changed whole numbers to fractions: each keeps its type, so the
    # result has a piece for each run of records with payloads in the same piece, or without one.
    starts = np.concatenate(([0], np.cumsum([len(piece) for piece in pieces])))
    piece_numbers = np.where(order < 0, -1, np.searchsorted(starts, order, side="right") - 1)
    joined = []
    for run in np.split(np.arange(len(order)), np.flatnonzero(np.diff(piece_numbers)) + 1):
        number = piece_numbers[run[0]]
        rows_of_piece = pa.array(order[run] - starts[number])
        joined.append(pa.nulls(len(run)) if number < 0 else pieces[number].take(rows_of_piece))
    return joined


def split_pieces(payloads: pa.Array, max_rows: int, max_bytes: int) -> Iterator[pa.Array]:
    """Split n binary payloads into pieces of at most this size; a larger payload is one piece."""
    if not len(payloads):
        return
    (bounds, _), start = locate(payloads), 0
    while start < len(payloads):
        fitting = int(np.searchsorted(bounds, bounds[start] + max_bytes, side="right")) - 1
        stop = min(max(fitting, start + 1), start + max_rows, len(payloads))
        yield payloads.slice(start, stop - start)
        start = stop
