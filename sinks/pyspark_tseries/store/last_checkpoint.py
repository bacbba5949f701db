"""The file `_last_checkpoint` of a log: which checkpoint is the last, and their checksums.

Delta takes it as a hint. On a local path this package adds an object `tseries` to it: the checksum
of the file itself, and those of the checkpoints that are kept. Another tool that writes a
checkpoint leaves the object out, and nothing is known of the checkpoints until this package writes
one again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_tseries.storage.location import Location
from pyspark_tseries.store.log_entries import CHECKSUM_KEY, NO_CHECKSUM, has_wrong_checksum, seal

__all__ = ["LAST_CHECKPOINT", "CheckpointMark", "format_mark", "read_mark"]

LAST_CHECKPOINT: Final = "_last_checkpoint"
"""The name of the file."""

_KEY: Final = "tseries"


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """The contents of the file.

    Attributes:
        version: of the last checkpoint; -1 if the file is missing or damaged.
        checksums: of checkpoints, by version.
        damaged: True if the file is there, but is not what was written.
    """

    version: int = -1
    checksums: Mapping[int, int] = field(default_factory=dict)
    damaged: bool = False


def read_mark(location: Location) -> CheckpointMark:
    """The mark of a store.

    Raises:
        OSError: the file is there, but cannot be read.
    """
    path = location.file("_delta_log", LAST_CHECKPOINT)
    try:
        # Not through Arrow on a local path: every opening of a store reads this small file.
        with open(path, "rb") if location.is_local else location.read(path) as file:
            content = file.read()
    except (FileNotFoundError, IsADirectoryError):
        return CheckpointMark()
    return _parse_mark(content)


def _parse_mark(content: bytes) -> CheckpointMark:
    if has_wrong_checksum(content):
        return CheckpointMark(damaged=True)
    try:
        said = json.loads(content)
        version, own = said["version"], said.get(_KEY, {})
        known = {int(number): int(crc, 16) for number, crc in own.get("checkpoints", {}).items()}
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            return CheckpointMark(damaged=True)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return CheckpointMark(damaged=True)
    return CheckpointMark(version, known)


def format_mark(content: bytes, checksums: Mapping[int, int]) -> bytes:
    """The contents of the file as Delta has written it, with checksums of checkpoints."""
    said: dict[str, Any] = json.loads(content)
    known = {str(version): f"{crc:08x}" for version, crc in sorted(checksums.items())}
    # `lines` is where the checksum of a log entry is looked for, too.
    said[_KEY] = {"checkpoints": known, "lines": 1, CHECKSUM_KEY: NO_CHECKSUM}
    return seal(json.dumps(said, separators=(",", ":")).encode())
