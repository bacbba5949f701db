"""Decodes JSON values behind frames, as serializers for JSON Schema write them."""

import numpy as np

from pyspark_timestream.kafka.decode.fields import DecodedBlock, WantedFields
from pyspark_timestream.kafka.decode.framing import FramedBlock
from pyspark_timestream.kafka.decode.json.by_block import parse_json

__all__ = ["parse_framed_json"]


def parse_framed_json(fields: WantedFields, framed: FramedBlock) -> DecodedBlock:
    """Parse the bodies of `framed` as `parse_json` does; their schema is not checked."""
    block = parse_json(fields, framed.bodies)
    # The body behind a malformed frame is null, and so read as fine.
    reasons = np.maximum(block.reasons, framed.reasons)
    return block._replace(reasons=reasons, schema_ids=framed.schema_ids)
