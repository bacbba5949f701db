"""Encodes a partition's end state as the metadata of its committed offset (semantics 8.3).

A consumer group stores a text with each partition's offset, up to the broker's setting
`offset.metadata.max.bytes` (by default 4096). A task commits the clock after its range there, and
the driver reads it for the next batch. Both sides know the state before the range, which serves as
the dictionary for compression: writers' names and the beginnings of times recur. About 300 writers
fit.

A key covers the state before, the range and the settings. A copied checkpoint shares the group, and
the key keeps it from mistaking another run's state for its own.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.kafka.offsets.offset import (
    NO_MALFORMED_VALUES,
    MalformedValues,
    StreamOffset,
)
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.state import PartitionState

_VERSION: Final = 1

_STREAM_PREFIX_LENGTH: Final = 8
_RAW_DEFLATE: Final = -zlib.MAX_WBITS
"""Deflate without header and checksum: the key shows whether the text is ours."""

_ZLIB_MEMORY_LEVEL: Final = 9


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The decoded metadata of one partition, for one batch.

    Attributes:
        state: the clock after the range, committed by a task of this batch; None if missing.
        malformed_values: the malformed values and keys in the range, if a task counted them.
        settings: (name, value) of session settings, seen by the task, that break what CTIs
            promise.
        refused_length: the length of the text with the state, if the broker refused it as too
            long; None otherwise.
        other_stream: the first characters of another stream's id, if a task of that stream wrote
            the metadata; None otherwise.
    """

    state: PartitionState | None = None
    malformed_values: MalformedValues = NO_MALFORMED_VALUES
    settings: tuple[tuple[str, str], ...] = ()
    refused_length: int | None = None
    other_stream: str | None = None


def encode_group_metadata(
    offset: StreamOffset,
    partition: Partition,
    end: PartitionState,
    malformed_values: MalformedValues = NO_MALFORMED_VALUES,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Return the ASCII text that a task commits for a partition after its range.

    `settings` are session settings that break what CTIs promise.
    """
    value = {
        "for": _compute_key(offset, partition),
        "packed": _pack(end, offset.partitions[partition].state),
        "settings": dict(settings or {}),
        "stream": offset.stream[:_STREAM_PREFIX_LENGTH],
        "version": _VERSION,
        **malformed_values.to_json(),
    }
    # Leave out empty entries, but not the offset 0.
    return _to_text({name: each for name, each in value.items() if each or each == 0})


def drop_state(metadata: str) -> str:
    """Replace the state by the text's length, after the broker refused the text as too long.

    Return a text without a state unchanged.
    """
    value = json.loads(metadata or "{}")
    if "packed" not in value:
        return metadata
    del value["packed"]
    return _to_text({**value, "length": len(metadata)})


def decode_group_metadata(
    offset: StreamOffset, partition: Partition, metadata: str | None
) -> GroupMetadata:
    """Decode `metadata` for the batch `offset`; return an empty result for foreign texts."""
    try:
        value = json.loads(metadata or "")
        if value["version"] != _VERSION:
            return GroupMetadata()
        if value["for"] != _compute_key(offset, partition):
            stream = value.get("stream", "")
            is_other = stream and not offset.stream.startswith(stream)
            return GroupMetadata(other_stream=stream if is_other else None)
        start = offset.partitions[partition].state
        return GroupMetadata(
            state=_unpack(value["packed"], start) if "packed" in value else None,
            malformed_values=MalformedValues.from_json(value),
            settings=tuple(sorted(value.get("settings", {}).items())),
            refused_length=value.get("length"),
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, zlib.error):
        # Foreign metadata may have any form.
        return GroupMetadata()


def describe_missing_states(is_ordered: bool) -> str:
    """Return, for a message, the cost of states that are missing in the group."""
    if is_ordered:
        return "its batches are read a second time to restore their clocks"
    return "the counts in the progress leave its records out"


def _pack(state: PartitionState, start: PartitionState) -> str:
    # Digits have few long repeats: Z_FILTERED suits them, and levels above 6 only take longer.
    how = (6, zlib.DEFLATED, _RAW_DEFLATE, _ZLIB_MEMORY_LEVEL, zlib.Z_FILTERED)
    deflate = zlib.compressobj(*how, zdict=_to_bytes(start))
    squeezed = deflate.compress(_to_bytes(state)) + deflate.flush()
    return base64.b85encode(squeezed).decode()


def _unpack(text: str, start: PartitionState) -> PartitionState:
    inflate = zlib.decompressobj(_RAW_DEFLATE, zdict=_to_bytes(start))
    read = inflate.decompress(base64.b85decode(text)) + inflate.flush()
    return PartitionState.from_json(json.loads(read))


def _to_bytes(state: PartitionState) -> bytes:
    return _to_text(state.to_json()).encode()


def _to_text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _compute_key(offset: StreamOffset, partition: Partition) -> str:
    partition_offset = offset.partitions[partition]
    origin = [
        partition.topic,
        partition.number,
        partition_offset.start_inclusive,
        partition_offset.end_exclusive,
        partition_offset.state.to_json(),
        sorted(offset.settings.items()),
    ]
    return hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:32]
