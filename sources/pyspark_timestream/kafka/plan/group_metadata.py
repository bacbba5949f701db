"""What tasks leave in the consumer group's metadata, and what the driver reads there.

With each partition's offset a group keeps a text, no longer than the broker's setting
`offset.metadata.max.bytes` (4096 unless told otherwise). A task leaves the clock's state after its
range there. The state is compressed with that before the range as its dictionary, which both sides
know: names of writers and the beginnings of times are the same in both. About 300 writers fit.

A key covers the state before, the range and the settings, so that a copied checkpoint, which shares
the group, cannot take another run's state for its own.

The rules are semantics 8.3.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.kafka.plan.offset import StreamOffset
from pyspark_timestream.kafka.ranges import Partition

__all__ = [
    "GroupMetadata",
    "cost_without_states",
    "decode_group_metadata",
    "encode_group_metadata",
    "without_state",
]

_VERSION: Final = 2
"""Version 1 had the state as plain JSON and did not name the stream; it is still read."""

_STREAM_LETTERS: Final = 8
_RAW: Final = -zlib.MAX_WBITS
"""Deflate without a header; the key tells whether the text is ours."""

_MAX_MEMORY: Final = 9


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """What the metadata of one partition says to the driver of one batch.

    Attributes:
        state: the clock after the range, left by a task of this very batch; None: it is not there.
        unfit: how many values of the range were no JSON of the schema, as far as a task has told.
        settings: settings of the session that break what CTIs promise, name -> value, as a task
            has seen them.
        refused_length: how long the text with the state was, which the broker did not take; None:
            it was not refused for its length.
        other_stream: how the id begins of another stream, whose task has written there last; None:
            no other is known.
    """

    state: PartitionState | None = None
    unfit: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    refused_length: int | None = None
    other_stream: str | None = None


def encode_group_metadata(
    offset: StreamOffset,
    partition: Partition,
    end: PartitionState,
    unfit: int = 0,
    settings: Mapping[str, str] | None = None,
) -> str:
    """The text that a task leaves for a partition after its range; ASCII.

    Args:
        offset: the batch.
        partition: one of its partitions.
        end: the clock after the range.
        unfit: how many of its values were no JSON of the schema.
        settings: settings of the session that break what CTIs promise.
    """
    value = {
        "for": _key(offset, partition),
        "packed": _packed(end, offset.partitions[partition].state),
        "settings": dict(settings or {}),
        "stream": offset.stream[:_STREAM_LETTERS],
        "unfit": unfit,
        "version": _VERSION,
    }
    return _text({name: each for name, each in value.items() if each})


def without_state(metadata: str) -> str:
    """`metadata`, which the broker has refused as too long, with its length in place of the state.

    What has no state stays as it is.
    """
    value = json.loads(metadata or "{}")
    if "packed" not in value:
        return metadata
    del value["packed"]
    return _text({**value, "length": len(metadata)})


def decode_group_metadata(
    offset: StreamOffset, partition: Partition, metadata: str | None
) -> GroupMetadata:
    """What `metadata` says to the driver of the batch `offset`; foreign texts say nothing."""
    try:
        value = json.loads(metadata or "")
        if value["version"] not in (1, _VERSION):
            return GroupMetadata()
        if value["for"] != _key(offset, partition):
            stream = value.get("stream", "")
            is_other = stream and not offset.stream.startswith(stream)
            return GroupMetadata(other_stream=stream if is_other else None)
        return GroupMetadata(
            state=_state(value, offset.partitions[partition].state),
            unfit=value.get("unfit", 0),
            settings=tuple(sorted(value.get("settings", {}).items())),
            refused_length=value.get("length"),
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, zlib.error):
        # Foreign metadata, of whatever form, is no state of ours.
        return GroupMetadata()


def cost_without_states(is_ordered: bool) -> str:
    """What a stream loses where its tasks' states are not in the group.

    Args:
        is_ordered: CTIs judge its events, so that their clocks have to be known.
    """
    if is_ordered:
        return "its batches are read a second time to restore their clocks"
    return "the counts in the progress leave its records out"


def _state(value: Mapping[str, Any], start: PartitionState) -> PartitionState | None:
    if value["version"] == 1:
        return PartitionState.from_json(value["state"])
    return _unpacked(value["packed"], start) if "packed" in value else None


def _packed(state: PartitionState, start: PartitionState) -> str:
    # Digits have few long repeats: filtered they take less, and higher levels take longer only.
    how = (6, zlib.DEFLATED, _RAW, _MAX_MEMORY, zlib.Z_FILTERED)
    deflate = zlib.compressobj(*how, zdict=_bytes(start))
    squeezed = deflate.compress(_bytes(state)) + deflate.flush()
    return base64.b85encode(squeezed).decode()


def _unpacked(text: str, start: PartitionState) -> PartitionState:
    inflate = zlib.decompressobj(_RAW, zdict=_bytes(start))
    read = inflate.decompress(base64.b85decode(text)) + inflate.flush()
    return PartitionState.from_json(json.loads(read))


def _bytes(state: PartitionState) -> bytes:
    return _text(state.to_json()).encode()


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _key(offset: StreamOffset, partition: Partition) -> str:
    share = offset.partitions[partition]
    origin = [
        partition.topic,
        partition.number,
        share.start_inclusive,
        share.end_exclusive,
        share.state.to_json(),
        sorted(offset.settings.items()),
    ]
    return hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:32]
