"""Descriptions of payloads that are malformed: which reason, in how many, and what to look at."""

from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.kafka.decode.columns import Projection
from pyspark_timestream.kafka.decode.fields import FRAMING, SYNTAX, TYPE, DecodedBlock
from pyspark_timestream.kafka.decode.payload import read_payload
from pyspark_timestream.kafka.decode.records import RecordBlock
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.payloads import PayloadRules

__all__ = ["describe_payloads"]

_SHOWN_BYTES: Final = 6


def describe_payloads(
    options: KafkaOptions, projection: Projection | None, block: RecordBlock
) -> str:
    """Describe why most malformed values, or else keys, of `block` are so; empty if none is."""
    payload = read_payload(options, projection, block)
    for rules, payloads, decoded in (
        (options.value_rules, block.values, payload.values),
        (options.key_rules, block.keys, payload.keys),
    ):
        if payloads is not None and decoded is not None and decoded.reasons.any():
            return _describe(rules, payloads, decoded)
    return ""


def _describe(rules: PayloadRules, payloads: pa.Array, decoded: DecodedBlock) -> str:
    counts = np.bincount(decoded.reasons, minlength=TYPE + 1)
    reason = int(np.argmax(counts[1:])) + 1
    part, found = rules.part, f"{counts[reason]} of {len(payloads)} {rules.part}s"
    if reason == FRAMING:
        framing = rules.option_name("framing")
        first = payloads[int(np.argmax(decoded.reasons == FRAMING))].as_py()
        where = "one has no such header" if rules.framing == "header" else _show_bytes(first)
        return f"{found} lack the schema id of '{framing}' = '{rules.framing}' ({where})"
    if reason == SYNTAX:
        return f"{found} are not {rules.format} of the schema that wrote them"
    return (
        f"{found} have a field that does not fit its column in .schema(...), or the {part}'s type"
    )


def _show_bytes(payload: bytes) -> str:
    shown = payload[:_SHOWN_BYTES].hex(" ") or "nothing"
    return f"one begins with the bytes {shown}"
