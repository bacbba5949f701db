"""Spark's watermark of a batch, read from the query's checkpoint.

Spark writes the entry `offsets/N` before it runs batch N. Its second line is JSON, in which
`batchWatermarkMs` is the watermark that batch N evicts state with: in output mode append, batches
up to N contain all windows that end at or before it.
"""

import json
import os
from typing import Final

__all__ = ["read_watermark_us"]

_WATERMARK_KEY: Final = "batchWatermarkMs"


def read_watermark_us(checkpoint: str, batch: int) -> int | None:
    """The watermark of a batch, in microseconds; None if the checkpoint does not have it.

    It is also None while the watermark is at 1970, where it stands without any.

    Args:
        checkpoint: a directory of this machine.
        batch: its number.
    """
    try:
        with open(os.path.join(checkpoint, "offsets", str(batch)), encoding="utf-8") as file:
            file.readline()
            milliseconds = json.loads(file.readline()).get(_WATERMARK_KEY, 0)
    except (OSError, ValueError, AttributeError):
        return None
    whole = isinstance(milliseconds, int) and milliseconds > 0
    return milliseconds * 1000 if whole else None
