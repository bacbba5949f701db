"""Decodes Protobuf payloads: n messages of the reader's type to columns.

The reader's message alone decides what is read, by Protobuf's own rules of evolution. A field that
the payload lacks is its default, or null where the schema tells absence apart (a message, an
`optional` field, a member of a oneof); a field that the reader does not know is skipped. The
writer's schema tells only which message was written: another than the reader's is malformed. The
rules are semantics 13.10.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.kafka.decode.fields import (
    FINE,
    FRAMING,
    NAME,
    SYNTAX,
    TYPE,
    DecodedBlock,
    Reasons,
    WantedFields,
)
from pyspark_timestream.kafka.decode.framing import FramedBlock, Writer
from pyspark_timestream.kafka.decode.protobuf.blocks import BlockReader, parse_block
from pyspark_timestream.kafka.decode.protobuf.columns import (
    nest_plans,
    plan_columns,
    plan_raw_fields,
)
from pyspark_timestream.kafka.decode.protobuf.plans import Plan
from pyspark_timestream.kafka.decode.protobuf.projection import (
    create_handler,
    create_rewriter,
    needs_renaming,
    needs_rewriting,
    rename_fields,
)
from pyspark_timestream.kafka.decode.protobuf.reader import ProtobufReader, compile_reader
from pyspark_timestream.kafka.options.paths import parse_path

__all__ = ["read_framed_protobuf", "read_protobuf"]


class _Decoder(NamedTuple):
    """The decoding of the wanted fields of one reader; `rename` gives rows the fields' names."""

    blocks: BlockReader
    rename: Callable[[pa.Array], pa.Array] | None
    columns: list[Plan]
    raw: dict[str, Plan]


def read_framed_protobuf(
    reader: ProtobufReader,
    wanted: WantedFields,
    framed: FramedBlock,
    find_message: Callable[[Writer], str | None],
) -> DecodedBlock:
    """Decode the bodies of `framed`; `find_message` names the message that a writer wrote.

    A payload with another message than the reader's is malformed by its name, and one with a place
    where its schema has none by its frame. What `find_message` raises is passed on.
    """
    reasons = framed.reasons
    names = [find_message(writer) for writer in framed.writers]
    wrong = [FINE if n == reader.message else FRAMING if n is None else NAME for n in names]
    # The last place stands for no writer.
    found = np.array([*wrong, FINE], dtype=np.uint8)[framed.codes]
    reasons = np.where(found == FINE, reasons, found)
    block = read_protobuf(reader, wanted, framed.bodies, reasons)
    named = framed.name(names) if wanted.names else None
    return block._replace(schema_ids=framed.schema_ids, names=named)


def read_protobuf(
    reader: ProtobufReader,
    wanted: WantedFields,
    bodies: pa.Array,
    reasons: Reasons | None = None,
) -> DecodedBlock:
    """Decode n binary messages; a null is a row of nulls, not malformed.

    Args:
        reader: the message to read.
        wanted: the fields to read of it.
        bodies: n binary.
        reasons: n numbers: why a payload is malformed already, which leaves it unread; None: none.
    """
    decoder = _create_decoder(reader, wanted)
    n = len(bodies)
    reasons = np.zeros(n, dtype=np.uint8) if reasons is None else reasons.copy()
    readable = np.array(bodies.is_valid().to_numpy(zero_copy_only=False)) & (reasons == FINE)
    rows = np.flatnonzero(readable)
    parsed = parse_block(decoder.blocks, bodies if len(rows) == n else bodies.take(pa.array(rows)))
    reasons[rows[~parsed.fine]] = SYNTAX
    rows = rows[parsed.fine]
    found = parsed.rows if decoder.rename is None else decoder.rename(parsed.rows)
    whole = len(rows) == n
    places = np.full(n, -1, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    spread = pa.array(places, mask=places < 0)
    columns = []
    for field, plan in zip(wanted.columns, decoder.columns, strict=True):
        converted = plan.convert(pc.struct_field(found, parse_path(field.name)))
        columns.append(converted.column if whole else converted.column.take(spread))
        reasons[rows[converted.partial]] = TYPE
    raw = {}
    for name, plan in decoder.raw.items():
        column = plan.convert(pc.struct_field(found, parse_path(name))).column
        raw[name] = [column if whole else column.take(spread)]
    return DecodedBlock(columns, raw, reasons)


@functools.lru_cache(maxsize=64)
def _create_decoder(reader: ProtobufReader, wanted: WantedFields) -> _Decoder:
    compiled = compile_reader(reader)
    columns = plan_columns(reader, wanted.columns)
    raw = plan_raw_fields(reader, wanted.raw)
    named = [(field.name, plan) for field, plan in zip(wanted.columns, columns, strict=True)]
    tree = nest_plans([*named, *raw.items()])
    handler = create_handler(compiled.descriptor, tree) if tree else None
    rewrite = needs_rewriting(compiled.descriptor, tree)
    rewriter = create_rewriter(compiled.descriptor, tree) if tree else None
    blocks = BlockReader(compiled.block_class, handler, rewrite, rewriter)
    rename = None
    if needs_renaming(compiled.descriptor, tree):
        rename = functools.partial(rename_fields, message=compiled.descriptor, tree=tree)
    return _Decoder(blocks, rename, columns, raw)
